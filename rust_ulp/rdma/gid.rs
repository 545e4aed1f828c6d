// SPDX-License-Identifier: GPL-2.0

//! GIDs, the addresses of a port.
//!
//! C header: [`include/rdma/ib_cache.h`](srctree/include/rdma/ib_cache.h)

use super::device::Device;
use crate::{
    bindings,
    ext::net::NetNs, //
};
use core::ptr::NonNull;
use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    prelude::*,
    sync::aref::ARef, //
};

/// The type of a GID: `enum ib_gid_type`.
///
/// ```
/// fn is_roce(gid: &Gid) -> bool {
///     matches!(gid.gid_type, GidType::RoceV1 | GidType::RoceV2)
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum GidType {
    /// InfiniBand.
    Ib,
    /// RoCE v1: Ethernet frames.
    RoceV1,
    /// RoCE v2: UDP.
    RoceV2,
}

/// An entry of a GID table, see [`Device::gid`].
///
/// ```
/// fn count_ipv4(device: &device::Device, net: &crate::ext::net::NetNs) -> usize {
///     let mut count = 0;
///     device.for_each_gid(|port, index| {
///         let is_v2 = |gid: Gid| gid.gid_type == GidType::RoceV2 && gid.is_ipv4();
///         count += usize::from(device.gid(port, index, Some(net)).is_ok_and(is_v2));
///     });
///     count
/// }
/// ```
pub(crate) struct Gid {
    /// The address, in network order.
    pub(crate) raw: [u8; 16],
    /// The type.
    pub(crate) gid_type: GidType,
    /// Whether the netdev is in the requested namespace.
    pub(crate) local_net: bool,
    /// Whether the netdev is in another namespace. A GID of InfiniBand has no netdev.
    pub(crate) foreign_net: bool,
    /// The index of the netdev, if `local_net`.
    pub(crate) ifindex: u32,
    /// The name of the netdev, NUL-terminated, if `local_net`.
    pub(crate) ifname: [u8; 16],
}

impl Gid {
    /// Returns whether it contains an IPv4 address: `::ffff:a.b.c.d`.
    pub(crate) fn is_ipv4(&self) -> bool {
        matches!(self.raw, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ..])
    }

    /// Returns whether it is a link-local IPv6 address: `fe80::/10`.
    pub(crate) fn is_link_local(&self) -> bool {
        matches!(self.raw, [0xfe, second, ..] if second & 0xc0 == 0x80)
    }
}

/// A reference to an entry of a GID table. It also holds a reference to the device.
///
/// Until it is dropped, the index names this entry or, if the GID was removed, none. On RoCE,
/// `del_gid()` leaves the entry in the table. `find_gid()` does not give its place to another GID
/// before the last reference has called `free_gid_entry_locked()` (`core/cache.c`). A GID of
/// InfiniBand belongs to no namespace.
///
/// ```
/// fn with_gid(device: &device::Device, index: u32, connect: impl FnOnce() -> Result) -> Result {
///     let _held: GidRef = device.hold_gid(1, index)?;
///     connect()
/// }
/// ```
///
/// # Invariants
///
/// This value owns a reference to `entry`, of the GID table of `_device`.
#[must_use]
pub(crate) struct GidRef {
    entry: NonNull<bindings::ib_gid_attr>,
    _device: ARef<Device>,
}

impl Drop for GidRef {
    fn drop(&mut self) {
        // SAFETY: By the type invariant. The last reference queues work that uses the device.
        // Removal waits for `_device`, which is dropped after this, and then for that work
        // (`ib_cache_cleanup_one()`).
        unsafe { bindings::rdma_put_gid_attr(self.entry.as_ptr()) };
    }
}

impl Device {
    /// Calls `each` with the port and the index of every GID in use. Sleeps.
    ///
    /// Reads all tables in one pass, since a table may have a thousand entries of which a few are
    /// in use. Without memory for that, or when very many are in use, calls `each` for every index.
    /// The GIDs of a port follow each other.
    pub(crate) fn for_each_gid(&self, mut each: impl FnMut(u32, u32)) {
        // The first number usually suffices. The driver is not asked for the lengths of the tables,
        // which may take a command of its firmware.
        for room in [64, 1 << 10, 1 << 14] {
            let mut entries = KVVec::new();
            let empty = bindings::ib_uverbs_gid_entry::default();
            if entries.resize(room, empty, GFP_KERNEL_ACCOUNT).is_err() {
                break;
            }
            let count =
                // SAFETY: The device is valid, and `entries` has `room` entries.
                unsafe { bindings::rdma_query_gid_table(self.as_raw(), entries.as_mut_ptr(), room) };
            if let Ok(count) = usize::try_from(count) {
                for entry in entries.iter().take(count) {
                    each(entry.port_num, entry.gid_index);
                }
                return;
            }
        }
        for port in 1..=self.attributes().phys_ports {
            let length = self.port(port).map_or(0, |port| port.gid_tbl_len());
            for index in 0..length {
                each(port, index);
            }
        }
    }

    /// Returns a reference to entry `index` of the GID table of port `port`. Does not sleep. Fails
    /// with [`ENOENT`] when the entry is not in use.
    pub(crate) fn hold_gid(&self, port: u32, index: u32) -> Result<GidRef> {
        let index = i32::try_from(index).map_err(|_| ENOENT)?;
        // SAFETY: The device is registered; the core checks port and index.
        let entry = unsafe { bindings::rdma_get_gid_attr(self.as_raw(), port, index) };
        let entry = from_err_ptr(entry.cast_mut()).map_err(|_| ENOENT)?;
        // INVARIANT: The core has counted this reference.
        Ok(GidRef {
            entry: NonNull::new(entry).ok_or(ENOENT)?,
            _device: self.into(),
        })
    }

    /// Returns entry `index` of the GID table of port `port`, seen from `net`; without one, every
    /// netdev is foreign. Does not sleep. Fails with [`ENOENT`] when the entry is not in use.
    pub(crate) fn gid(&self, port: u32, index: u32, net: Option<&NetNs>) -> Result<Gid> {
        let net = net.map_or(core::ptr::null_mut(), NetNs::as_ptr);
        let mut out = bindings::rust_ulp_h_gid::default();
        // SAFETY: The pointers are valid, or there is no namespace, which is compared only; the core
        // checks port and index.
        to_result(unsafe { bindings::rust_ulp_h_gid(self.as_raw(), port, index, net, &mut out) })
            .map_err(|_| ENOENT)?;
        Ok(Gid {
            raw: out.gid,
            gid_type: match out.gid_type {
                bindings::IB_GID_TYPE_ROCE_UDP_ENCAP => GidType::RoceV2,
                bindings::IB_GID_TYPE_ROCE => GidType::RoceV1,
                _ => GidType::Ib,
            },
            local_net: out.local_net,
            foreign_net: out.foreign_net,
            ifindex: out.ifindex,
            ifname: out.ifname,
        })
    }
}
