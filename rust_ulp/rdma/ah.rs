// SPDX-License-Identifier: GPL-2.0

//! Address vectors and handles: the way to a peer.

use super::{
    device::Device,
    pd::Pd, //
};
use crate::{
    bindings,
    kernel::{
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
    prelude::*,
    sync::Arc, //
};

/// What the resolver's `err` says of a route, not of the device.
fn of_route(err: Error) -> Error {
    if err == ENODEV {
        ehostunreach()
    } else {
        err
    }
}

/// `struct rdma_ah_attr`.
#[derive(Clone, Copy, Default)]
pub(crate) struct AddressVector {
    /// GID of the peer.
    pub(crate) dgid: [u8; 16],
    /// 20 bits.
    pub(crate) flow_label: u32,
    /// Index of our GID.
    pub(crate) sgid_index: u8,
    /// 0 leaves it to the route.
    pub(crate) hop_limit: u8,
    /// The upper six bits are the DSCP.
    pub(crate) traffic_class: u8,
    /// Service level.
    pub(crate) sl: u8,
    /// LID of the peer, on InfiniBand.
    pub(crate) dlid: u16,
    /// Our port.
    pub(crate) port: u32,
    /// Whether the fields of the GRH count. Always on RoCE.
    pub(crate) grh: bool,
    /// Rate limit, `enum ib_rate`.
    pub(crate) static_rate: u8,
    /// Low bits of our LID, on InfiniBand.
    pub(crate) src_path_bits: u8,
    /// Link-layer address of the peer, on RoCE.
    pub(crate) dmac: [u8; 6],
}

impl AddressVector {
    pub(super) fn to_raw(self, device: &Device) -> bindings::rdma_ah_attr {
        let mut raw = bindings::rdma_ah_attr::default();
        // SAFETY: All pointers are valid, the GID and the address have the lengths expected.
        unsafe {
            bindings::rust_ulp_h_ah_attr_set(
                device.as_raw(),
                &mut raw,
                self.port,
                self.dgid.as_ptr(),
                self.flow_label,
                self.sgid_index,
                self.hop_limit,
                self.traffic_class,
                self.grh,
                self.sl,
                self.dlid,
                self.src_path_bits,
                self.static_rate,
            );
            bindings::rust_ulp_h_ah_attr_set_dmac(&mut raw, self.dmac.as_ptr());
        }
        raw
    }

    pub(super) fn from_raw(raw: &bindings::rdma_ah_attr) -> Self {
        let mut av = Self::default();
        // SAFETY: All pointers are valid, the GID and the address have the lengths expected.
        unsafe {
            bindings::rust_ulp_h_ah_attr_get(
                raw,
                &mut av.port,
                av.dgid.as_mut_ptr(),
                &mut av.flow_label,
                &mut av.sgid_index,
                &mut av.hop_limit,
                &mut av.traffic_class,
                &mut av.grh,
                &mut av.sl,
                &mut av.dlid,
                &mut av.src_path_bits,
                &mut av.static_rate,
            );
            bindings::rust_ulp_h_ah_attr_get_dmac(raw, av.dmac.as_mut_ptr());
        }
        av
    }

    /// Finds the link-layer address of the peer, and the hop limit when that is 0.
    ///
    /// Kernel users have to bring a resolved address to `ib_modify_qp()`, and the resolver is not
    /// exported. `rdma_create_user_ah()` is: it resolves the attributes in place, so an address
    /// handle is made and destroyed for it. Sleeps, up to some seconds while ARP or neighbour
    /// discovery is under way. Fails as the route does: `EHOSTUNREACH`, `ENETUNREACH`,
    /// [`ETIMEDOUT`]; [`EINVAL`] for a GID index that is not in use.
    ///
    /// The resolver says `ENODEV` of a local route whose address no netdev has: that is
    /// `EHOSTUNREACH` here, since it says nothing of the device.
    pub(crate) fn resolve(self, pd: &Pd) -> Result<Self> {
        let mut raw = self.to_raw(pd.device());
        fault::point()?;
        // SAFETY: The domain is valid, and so are the attributes; no user data is passed.
        let ah = from_err_ptr(unsafe {
            bindings::rdma_create_user_ah(pd.as_raw(), &mut raw, core::ptr::null_mut())
        })
        .map_err(of_route)?;
        // SAFETY: Just made, and ours.
        unsafe { bindings::rust_ulp_h_destroy_ah(ah) };
        Ok(Self::from_raw(&raw))
    }

    /// The way to `dgid`, which is GID `index` of port `port` of `device`. The caller adds our own
    /// port and GID, and on InfiniBand the LID.
    pub(super) fn to_gid(device: &Device, port: u32, index: u32, dgid: [u8; 16]) -> Result<Self> {
        let mut av = Self {
            dgid,
            hop_limit: 64,
            grh: true,
            ..Self::default()
        };
        fault::point()?;
        // SAFETY: The device is registered; the core checks port and index.
        to_result(unsafe {
            bindings::rust_ulp_h_own_dmac(device.as_raw(), port, index, av.dmac.as_mut_ptr())
        })?;
        Ok(av)
    }
}

/// `struct ib_ah`: where a datagram goes.
///
/// rxe looks it up by its index when it makes the packet, so it must stay until the request is
/// done: each request holds a reference.
///
/// # Invariants
///
/// `ptr` is an address handle of `pd`, owned.
pub(crate) struct Ah {
    ptr: NonNull<bindings::ib_ah>,
    /// Most bytes of a datagram, and the MTU that its netdev had when that was found out.
    mtu: u32,
    netdev_mtu: u32,
    pd: Arc<Pd>,
}

// SAFETY: Nothing here changes an address handle; destroying it is reentrant, see "Thread safety" in
// mod.rs.
unsafe impl Send for Ah {}
// SAFETY: As above.
unsafe impl Sync for Ah {}

impl Ah {
    /// Makes an address handle for `av` in `pd`, and says what the address vector has become: the
    /// link-layer address is resolved when it is 0 on RoCE, and the hop limit with it. Sleeps; how
    /// long, and errors, as [`AddressVector::resolve`] has them.
    pub(crate) fn new(pd: Arc<Pd>, av: &AddressVector) -> Result<(Arc<Self>, AddressVector)> {
        let port = pd.device().port(av.port)?;
        let mut raw = av.to_raw(pd.device());
        let resolve = port.link_layer == super::device::LinkLayer::Ethernet && av.dmac == [0; 6];
        fault::point()?;
        // SAFETY: The domain and the attributes are valid; no user data is passed.
        let ptr = from_err_ptr(unsafe {
            if resolve {
                bindings::rdma_create_user_ah(pd.as_raw(), &mut raw, core::ptr::null_mut())
            } else {
                bindings::rust_ulp_h_create_ah(pd.as_raw(), &mut raw)
            }
        })
        .map_err(of_route)?;
        // INVARIANT: Just made; destroyed with the value also when there is no memory for it.
        let ah = Self {
            ptr: NonNull::new(ptr).ok_or(ENOMEM)?,
            mtu: super::device::mtu_bytes(port.active_mtu()),
            // SAFETY: Just made.
            netdev_mtu: unsafe { bindings::rust_ulp_h_ah_netdev_mtu(ptr) },
            pd,
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

    /// The C pointer.
    pub(super) fn as_raw(&self) -> *mut bindings::ib_ah {
        self.ptr.as_ptr()
    }

    /// Most bytes that a datagram may have: the MTU that the port had when this was made, or what a
    /// netdev that became narrower since then has room for. Whose netdev or GID is gone keeps what it
    /// had: what is posted is then dropped, or flushed, not too long. Does not sleep.
    pub(crate) fn max_datagram(&self) -> u32 {
        // SAFETY: By the type invariant.
        let now = unsafe { bindings::rust_ulp_h_ah_netdev_mtu(self.as_raw()) };
        if now == 0 || now >= self.netdev_mtu {
            return self.mtu;
        }
        // SAFETY: A function of its argument.
        self.mtu.min(unsafe { bindings::rust_ulp_h_iboe_mtu(now) })
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        fault::step();
        // SAFETY: Owned, and no request refers to it any more.
        unsafe { bindings::rust_ulp_h_destroy_ah(self.ptr.as_ptr()) };
    }
}
