// SPDX-License-Identifier: GPL-2.0

//! Address vectors and address handles: paths to a peer.

use super::{
    device::{
        Device,
        LinkLayer,
        Port, //
    },
    pd::Pd, //
};
use crate::{
    bindings,
    ext::{
        errno::ehostunreach,
        fault, //
    }, //
};
use core::ptr::NonNull;
use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    pr_warn_once,
    prelude::*,
    sync::{
        Arc,
        SetOnce, //
    }, //
};

/// Maps an error of the resolver, which uses `ENODEV` for a route and not for the device.
fn of_route(err: Error) -> Error {
    if err == ENODEV {
        ehostunreach()
    } else {
        err
    }
}

/// Destroys an address handle. Sleeps.
///
/// # Safety
///
/// The caller owns `ah`, and no request refers to it.
unsafe fn destroy(ah: *mut bindings::ib_ah) {
    let flags = bindings::RDMA_DESTROY_AH_SLEEPABLE;
    // SAFETY: By the requirement; no user data is passed.
    let err = unsafe { bindings::rdma_destroy_ah_user(ah, flags, core::ptr::null_mut()) };
    if err != 0 {
        pr_warn_once!(
            "a driver refused to destroy an address handle: {}; it is leaked\n",
            err
        );
    }
}

/// An address vector: the fields of `struct rdma_ah_attr`, which `helpers.h` describes.
///
/// ```
/// fn to_peer(dgid: [u8; 16], traffic_class: u8) -> AddressVector {
///     AddressVector { dgid, traffic_class, port: 1, grh: true, ..AddressVector::default() }
/// }
/// ```
pub(crate) use bindings::rust_ulp_h_av as AddressVector;

impl AddressVector {
    pub(super) fn to_raw(self, device: &Device) -> bindings::rdma_ah_attr {
        let mut raw = bindings::rdma_ah_attr::default();
        // SAFETY: All pointers are valid.
        unsafe { bindings::rust_ulp_h_av_to_attr(device.as_raw(), &self, &mut raw) };
        raw
    }

    pub(super) fn from_raw(raw: &bindings::rdma_ah_attr) -> Self {
        let mut av = Self::default();
        // SAFETY: Both pointers are valid.
        unsafe { bindings::rust_ulp_h_av_from_attr(raw, &mut av) };
        av
    }

    /// Resolves the link-layer address of the peer, and the hop limit if that is 0. Sleeps, up to
    /// some seconds while ARP or neighbour discovery is under way.
    ///
    /// `ib_modify_qp()` expects a resolved address of kernel users, and the resolver is not
    /// exported. `rdma_create_user_ah()` resolves the attributes in place, so this makes and
    /// destroys an address handle. It sets the hop limit in any case
    /// (`ib_resolve_unicast_gid_dmac()`, drivers/infiniband/core/verbs.c).
    ///
    /// Fails as the route does, with `EHOSTUNREACH`, `ENETUNREACH` or [`ETIMEDOUT`], and with
    /// [`EINVAL`] for a GID index that is not in use. The resolver's `ENODEV` for a local route
    /// whose address no netdev has becomes `EHOSTUNREACH`.
    pub(crate) fn resolve(self, pd: &Pd) -> Result<Self> {
        let mut raw = self.to_raw(pd.device());
        fault::point()?;
        // SAFETY: The domain and the attributes are valid; no user data is passed.
        let ah = from_err_ptr(unsafe {
            bindings::rdma_create_user_ah(pd.as_raw(), &mut raw, core::ptr::null_mut())
        })
        .map_err(of_route)?;
        // SAFETY: The handle was just made, and nobody else has it.
        unsafe { destroy(ah) };
        let resolved = Self::from_raw(&raw);
        Ok(Self {
            hop_limit: match self.hop_limit {
                0 => resolved.hop_limit,
                given => given,
            },
            ..resolved
        })
    }

    /// Returns the path to `dgid`, which is GID `index` of `port` of `device`, the port with that
    /// `number`. The caller adds the local port and GID.
    pub(super) fn to_gid(
        device: &Device,
        port: &Port,
        number: u32,
        index: u32,
        dgid: [u8; 16],
    ) -> Result<Self> {
        let mut av = Self {
            dgid,
            hop_limit: 64,
            grh: true,
            ..Self::default()
        };
        fault::point()?;
        if port.link_layer == LinkLayer::InfiniBand {
            av.dlid = port.lid;
            return Ok(av);
        }
        // SAFETY: The device is registered; the core checks port and index.
        to_result(unsafe {
            bindings::rust_ulp_h_own_dmac(device.as_raw(), number, index, av.dmac.as_mut_ptr())
        })?;
        Ok(av)
    }
}

/// An address handle, the destination of a datagram: `struct ib_ah`.
///
/// Each request holds a reference until it is done: rxe looks the handle up by its index when it
/// makes the packet.
///
/// ```
/// fn receiver(pd: &Arc<pd::Pd>, dgid: [u8; 16]) -> Result<Arc<Ah>> {
///     let av = AddressVector { dgid, port: 1, grh: true, ..AddressVector::default() };
///     let (ah, _resolved) = Ah::new(pd.clone(), &av)?;
///     Ok(ah)
/// }
/// fn datagram(receiver: &Arc<Ah>) -> wr::Operation<'_> {
///     let (qp_num, qkey) = (7, 0x1111_1111);
///     wr::Operation::send().to(receiver, qp_num, qkey)
/// }
/// ```
///
/// # Invariants
///
/// `ptr` is an address handle of `pd` that this value owns.
pub(crate) struct Ah {
    ptr: NonNull<bindings::ib_ah>,
    /// The longest datagram in bytes, and the MTU of the netdev when it was determined.
    mtu: u32,
    netdev_mtu: u32,
    pd: Arc<Pd>,
    /// Dropped with the handle.
    held: SetOnce<Arc<dyn Send + Sync>>,
}

// SAFETY: Nothing here changes an address handle. Destroying it is reentrant, see "Thread safety"
// in mod.rs.
unsafe impl Send for Ah {}
// SAFETY: As above.
unsafe impl Sync for Ah {}

impl Ah {
    /// Makes an address handle for `av` in `pd`, and returns it with the resulting address vector.
    /// Sleeps.
    ///
    /// On RoCE, a link-layer address of 0 is resolved, and a hop limit of 0 with it. For how long,
    /// and the errors, see [`AddressVector::resolve`].
    pub(crate) fn new(pd: Arc<Pd>, av: &AddressVector) -> Result<(Arc<Self>, AddressVector)> {
        let port = pd.device().port(av.port)?;
        let mut resolve = port.link_layer == LinkLayer::Ethernet && av.dmac == [0; 6];
        let mut av = *av;
        if resolve && av.hop_limit != 0 {
            // The handle that resolves has the hop limit of the route.
            av = av.resolve(&pd)?;
            resolve = false;
        }
        let mut raw = av.to_raw(pd.device());
        fault::point()?;
        // SAFETY: The domain and the attributes are valid; no user data is passed.
        let ptr = from_err_ptr(unsafe {
            if resolve {
                bindings::rdma_create_user_ah(pd.as_raw(), &mut raw, core::ptr::null_mut())
            } else {
                bindings::rdma_create_ah(pd.as_raw(), &mut raw, bindings::RDMA_CREATE_AH_SLEEPABLE)
            }
        })
        .map_err(of_route)?;
        // INVARIANT: The handle was just made. When an allocation below fails, dropping the value
        // frees it.
        let ah = Self {
            ptr: NonNull::new(ptr).ok_or(ENOMEM)?,
            mtu: super::device::mtu_bytes(port.active_mtu),
            // SAFETY: The handle was just made.
            netdev_mtu: unsafe { bindings::rust_ulp_h_ah_netdev_mtu(ptr) },
            pd,
            held: SetOnce::new(),
        };
        Ok((
            Arc::new(ah, GFP_KERNEL_ACCOUNT)?,
            AddressVector::from_raw(&raw),
        ))
    }

    /// Returns the protection domain.
    pub(super) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Holds `value`, such as a charge, until no request uses the handle. Holds one value only.
    pub(crate) fn hold(&self, value: Arc<dyn Send + Sync>) {
        self.held.populate(value);
    }

    /// Returns the C pointer.
    pub(super) fn as_raw(&self) -> *mut bindings::ib_ah {
        self.ptr.as_ptr()
    }

    /// Returns the length of the longest datagram in bytes. Does not sleep.
    ///
    /// That is the MTU of the port when the handle was made, or less if the netdev's MTU was
    /// lowered since. A handle whose netdev or GID no longer exists keeps its length; what it sends
    /// is dropped or flushed.
    pub(crate) fn max_datagram(&self) -> u32 {
        // SAFETY: By the type invariant.
        let now = unsafe { bindings::rust_ulp_h_ah_netdev_mtu(self.as_raw()) };
        if now == 0 || now >= self.netdev_mtu {
            return self.mtu;
        }
        // SAFETY: A pure function of its argument.
        self.mtu.min(unsafe { bindings::rust_ulp_h_iboe_mtu(now) })
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        fault::step();
        // SAFETY: Owned, and no request refers to it.
        unsafe { destroy(self.ptr.as_ptr()) };
    }
}
