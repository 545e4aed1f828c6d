// SPDX-License-Identifier: GPL-2.0

//! Clients: who is told of devices.

use super::device::Device;
use crate::{
    bindings,
    kernel::fault, //
};
use core::{
    cell::UnsafeCell,
    ptr::NonNull, //
};
use kernel::{
    error::to_result,
    ffi::{
        c_int,
        c_void, //
    },
    prelude::*,
    sync::{
        atomic::{
            AtomicFlag,
            Full, //
        },
        Arc,
        ArcBorrow, //
    },
    types::{
        ForeignOwnable,
        Opaque, //
    }, //
};

/// A client of the RDMA core: `struct ib_client`.
pub(crate) trait Client: Send + Sync + Sized + 'static {
    /// What the client keeps for each device.
    type Data: Send + Sync + 'static;

    /// Name of the client, as the core shows it.
    const NAME: &'static CStr;

    /// Where the one registered client of this type is found: a `static` of the implementer.
    fn slot() -> &'static ClientSlot<Self>;

    /// A device appeared. May sleep. When it fails, the device is not heard of again.
    fn add(&self, device: &Device) -> Result<Arc<Self::Data>>;

    /// A device goes: when this returns, every object that the client made on it must be gone.
    /// May sleep, and must end in bounded time whatever user space does.
    fn remove(&self, device: &Device, data: Arc<Self::Data>);

    /// A device has another name. May sleep.
    fn rename(&self, _device: &Device, _data: ArcBorrow<'_, Self::Data>) {}
}

/// Holds the registered client of a type, for callbacks that get no pointer to it.
pub(crate) struct ClientSlot<T> {
    client: UnsafeCell<Option<(Arc<T>, NonNull<bindings::ib_client>)>>,
    taken: AtomicFlag,
}

// SAFETY: Written by `Registration` only while no callback can run.
unsafe impl<T: Send + Sync> Sync for ClientSlot<T> {}

impl<T> ClientSlot<T> {
    /// An empty slot.
    pub(crate) const fn new() -> Self {
        Self {
            client: UnsafeCell::new(None),
            taken: AtomicFlag::new(false),
        }
    }
}

/// A client is registered while this exists.
///
/// # Invariants
///
/// `client` is registered, and the slot of `T` holds the client.
#[pin_data(PinnedDrop)]
pub(crate) struct Registration<T: Client> {
    #[pin]
    client: Opaque<bindings::ib_client>,
    owner: Arc<T>,
}

// SAFETY: The core registers and unregisters clients under `clients_rwsem`
// (drivers/infiniband/core/device.c:102); the client itself is `Send` and `Sync`.
unsafe impl<T: Client> Send for Registration<T> {}
// SAFETY: As above.
unsafe impl<T: Client> Sync for Registration<T> {}

impl<T: Client> Registration<T> {
    /// Registers `client`: `add` is called for each device there is, before this returns.
    ///
    /// [`EBUSY`] when one of this type is registered already.
    pub(crate) fn new(client: Arc<T>) -> impl PinInit<Self, Error> {
        let (shared, owner) = (client.clone(), client);
        try_pin_init!(Self {
            client <- Opaque::try_ffi_init(move |slot: *mut bindings::ib_client| {
                if T::slot().taken.xchg(true, Full) {
                    return Err(EBUSY);
                }
                let raw = NonNull::new(slot).ok_or(ENOMEM)?;
                // SAFETY: The slot is ours, and no callback runs, for nothing is registered.
                unsafe { *T::slot().client.get() = Some((shared, raw)) };
                let value = bindings::ib_client {
                    name: T::NAME.as_char_ptr(),
                    add: Some(Self::add),
                    remove: Some(Self::remove),
                    rename: Some(Self::rename),
                    ..Default::default()
                };
                // SAFETY: `slot` is memory for an `ib_client`, and pinned from here on.
                unsafe { slot.write(value) };
                let registered = fault::point().and_then(|()| {
                    // SAFETY: As above; it stays until it is unregistered in `drop`.
                    to_result(unsafe { bindings::ib_register_client(slot) })
                });
                registered.inspect_err(|_| Self::empty_slot())
            }),
            owner,
        }? Error)
    }

    fn empty_slot() {
        // SAFETY: Nothing is registered, so no callback runs.
        unsafe { *T::slot().client.get() = None };
        T::slot().taken.store(false, kernel::sync::atomic::Release);
    }

    /// The registered client, and what it is registered by.
    ///
    /// # Safety
    ///
    /// To be called by callbacks of the core, and not to be used after they return.
    unsafe fn client<'a>() -> Option<&'a (Arc<T>, NonNull<bindings::ib_client>)> {
        // SAFETY: While a callback runs, the client is registered and its slot is not written.
        unsafe { (*T::slot().client.get()).as_ref() }
    }

    /// # Safety
    ///
    /// Called by the RDMA core, for the registered client of this type.
    unsafe extern "C" fn add(device: *mut bindings::ib_device) -> c_int {
        // SAFETY: This is a callback.
        let Some((client, raw)) = (unsafe { Self::client() }) else {
            return ENODEV.to_errno();
        };
        // SAFETY: The core calls `add` with a registered device.
        match client.add(unsafe { Device::from_raw(device) }) {
            Ok(data) => {
                // SAFETY: `add` was called for this device on behalf of this client.
                unsafe { bindings::ib_set_client_data(device, raw.as_ptr(), data.into_foreign()) };
                0
            }
            Err(err) => err.to_errno(),
        }
    }

    /// # Safety
    ///
    /// Called by the RDMA core, for the registered client of this type.
    unsafe extern "C" fn remove(device: *mut bindings::ib_device, data: *mut c_void) {
        if data.is_null() {
            return;
        }
        // SAFETY: Set by `add`, and `remove` is called once for each time that it succeeded.
        let data = unsafe { Arc::<T::Data>::from_foreign(data) };
        // SAFETY: This is a callback.
        if let Some((client, _)) = unsafe { Self::client() } {
            // SAFETY: The core calls `remove` while the device still has references.
            client.remove(unsafe { Device::from_raw(device) }, data);
        }
    }

    /// # Safety
    ///
    /// Called by the RDMA core, for the registered client of this type.
    unsafe extern "C" fn rename(device: *mut bindings::ib_device, data: *mut c_void) {
        if data.is_null() {
            return;
        }
        // SAFETY: Set by `add`, and not taken back before `remove`.
        let data = unsafe { Arc::<T::Data>::borrow(data) };
        // SAFETY: This is a callback.
        if let Some((client, _)) = unsafe { Self::client() } {
            // SAFETY: The core renames registered devices.
            client.rename(unsafe { Device::from_raw(device) }, data);
        }
    }
}

#[pinned_drop]
impl<T: Client> PinnedDrop for Registration<T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: It is registered, by the type invariant. Removes all devices; after it returns
        // no callback runs.
        unsafe { bindings::ib_unregister_client(self.client.get()) };
        Self::empty_slot();
    }
}
