// SPDX-License-Identifier: GPL-2.0

//! Protection domains.

use super::device::Device;
use crate::{
    bindings,
    ext::fault, //
};
use core::ptr::NonNull;
use kernel::{
    error::from_err_ptr,
    pr_warn_once,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            AtomicFlag,
            Relaxed, //
        },
        Arc, //
    }, //
};

/// Whether the device has a queue pair, or a shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    Alive,
    /// The driver has destroyed it.
    Ended,
    /// The driver refused to destroy it: it is leaked.
    Leaked,
}

/// A protection domain: `struct ib_pd`. Its queue pairs can access only its memory regions.
///
/// It has no remote key of its own (`IB_PD_UNSAFE_GLOBAL_RKEY`).
///
/// ```
/// fn allocate(device: &device::Device) -> Result<Arc<Pd>> {
///     let pd = Pd::new(device)?;
///     assert!(pd.device() == device);
///     Ok(pd)
/// }
/// ```
///
/// # Invariants
///
/// `ptr` is a protection domain of `device` that this value owns.
pub(crate) struct Pd {
    ptr: NonNull<bindings::ib_pd>,
    /// Whether a queue of the domain was leaked: the domain is, too, and the memory that is used by
    /// its key.
    leaked: AtomicFlag,
    /// Whether a key of the domain stays valid: the domain is leaked, but no memory with it.
    kept: AtomicFlag,
    device: ARef<Device>,
}

// SAFETY: Drivers are reentrant, see "Thread safety" in mod.rs, and the core counts the users of a
// domain atomically (drivers/infiniband/core/verbs.c:_rdma_create_ah).
unsafe impl Send for Pd {}
// SAFETY: As above.
unsafe impl Sync for Pd {}

impl Pd {
    /// Allocates a protection domain on `device`. Sleeps.
    pub(crate) fn new(device: &Device) -> Result<Arc<Self>> {
        fault::point()?;
        // SAFETY: The device is registered.
        let ptr = from_err_ptr(unsafe { bindings::rust_ulp_h_alloc_pd(device.as_raw()) })?;
        // INVARIANT: Just allocated. When an allocation below fails, dropping the value frees it.
        let pd = Self {
            ptr: NonNull::new(ptr).ok_or(ENOMEM)?,
            leaked: AtomicFlag::new(false),
            kept: AtomicFlag::new(false),
            device: device.into(),
        };
        Ok(Arc::new(pd, GFP_KERNEL_ACCOUNT)?)
    }

    /// Returns the key for local requests with DMA addresses. Every domain has one, see
    /// `__ib_alloc_pd()`.
    pub(super) fn local_dma_lkey(&self) -> u32 {
        // SAFETY: By the type invariant. The key does not change after the allocation.
        unsafe { bindings::rust_ulp_h_pd_lkey(self.ptr.as_ptr()) }
    }

    /// Returns the C pointer.
    pub(super) fn as_raw(&self) -> *mut bindings::ib_pd {
        self.ptr.as_ptr()
    }

    /// Has the domain outlive this value: a driver did not destroy a queue that belongs to it.
    pub(super) fn leak(&self) {
        self.leaked.store(true, Relaxed);
    }

    /// Has the domain outlive this value: a key stays valid that the driver did not revoke. Most
    /// drivers deallocate such a domain (drivers/infiniband/hw/irdma/verbs.c:irdma_dealloc_pd), and
    /// the next one that gets its number would have that key.
    pub(super) fn keep(&self) {
        self.kept.store(true, Relaxed);
    }

    /// Returns whether [`Self::leak`] was called.
    pub(super) fn is_leaked(&self) -> bool {
        self.leaked.load(Relaxed)
    }

    /// Destroys a queue pair of the domain, and returns whether the driver did that. A queue pair
    /// that it did not destroy is leaked, and the domain with it. Sleeps.
    ///
    /// # Safety
    ///
    /// The caller owns `qp`, a valid queue pair of this domain, and uses it afterwards only when
    /// this returns `false`.
    pub(super) unsafe fn destroy_qp(&self, qp: NonNull<bindings::ib_qp>) -> bool {
        // SAFETY: By the contract of this function.
        let err = unsafe { bindings::ib_destroy_qp_user(qp.as_ptr(), core::ptr::null_mut()) };
        if err != 0 {
            pr_warn_once!(
                "a driver refused to destroy a queue pair: {}; it is leaked\n",
                err
            );
            self.leak();
        }
        err == 0
    }

    /// Returns the device.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        fault::step();
        if !self.is_leaked() && !self.kept.load(Relaxed) {
            // SAFETY: Owned. Every object of the domain held a reference to this value.
            let err =
                unsafe { bindings::ib_dealloc_pd_user(self.ptr.as_ptr(), core::ptr::null_mut()) };
            if err == 0 {
                return;
            }
            pr_warn_once!(
                "a driver refused to deallocate a protection domain: {}\n",
                err
            );
        }
        // SAFETY: Nothing but a call.
        unsafe { bindings::rust_ulp_h_keep_owner() };
    }
}
