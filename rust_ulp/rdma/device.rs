// SPDX-License-Identifier: GPL-2.0

//! RDMA devices and their ports.

use super::quirks::{
    self,
    Rule, //
};
use crate::{
    bindings,
    ext::{
        dmabuf::{
            Bound,
            Import, //
        },
        errno::eopnotsupp,
        fault,
        net::NetNs,
        pages::Pages, //
    }, //
};
use core::{
    mem::ManuallyDrop,
    ops::Deref,
    ptr::NonNull, //
};
use kernel::{
    error::to_result,
    fmt,
    prelude::*,
    str::BStr,
    sync::{
        aref::{
            ARef,
            AlwaysRefCounted, //
        },
        atomic::{
            AtomicFlag,
            Full, //
        },
        Arc, //
    },
    types::Opaque, //
};

/// The length of the longest device name, NUL included: `IB_DEVICE_NAME_MAX`.
pub(crate) const NAME_MAX: usize = 64;

/// The capabilities and limits of a device: fields of `struct ib_device` and `struct
/// ib_device_attr`, in types that are the same for all kernels.
///
/// ```
/// fn has_fast_registration(device: &Device) -> bool {
///     let attributes: Attributes = device.attributes();
///     attributes.max_fast_reg_pages > 0
/// }
/// ```
pub(crate) use bindings::rust_ulp_h_device as Attributes;

/// An RDMA device: `struct ib_device`.
///
/// ```
/// fn keep(device: &Device) -> ARef<Device> {
///     pr_info!("{device} has {} ports\n", device.attributes().phys_ports);
///     device.into()
/// }
/// ```
///
/// # Invariants
///
/// Always a registered device with a reference count above zero.
#[repr(transparent)]
pub(crate) struct Device(Opaque<bindings::ib_device>);

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        core::ptr::eq(self, other)
    }
}

// SAFETY: Drivers are reentrant, see "Thread safety" in mod.rs. The name is an array of bytes in the
// device, which a rename overwrites in place (core/device.c:ib_device_rename). The core reads tables
// of GIDs under their own lock (core/cache.c:rdma_query_gid_table).
unsafe impl Send for Device {}
// SAFETY: As above.
unsafe impl Sync for Device {}

// SAFETY: `ib_device_try_get` and `ib_device_put` count references. Unregistering a device waits
// until all references are returned.
unsafe impl AlwaysRefCounted for Device {
    fn inc_ref(&self) {
        // SAFETY: By the type invariant the count is above zero.
        unsafe { bindings::rust_ulp_h_device_get(self.as_raw()) };
    }

    unsafe fn dec_ref(obj: NonNull<Self>) {
        // SAFETY: The caller gives up a reference.
        unsafe { bindings::ib_device_put(obj.as_ptr().cast()) };
    }
}

/// A reference to a device, which keeps it registered.
///
/// # Invariants
///
/// Has the reference until `released` is set.
struct Registered {
    device: ManuallyDrop<ARef<Device>>,
    released: AtomicFlag,
}

impl Bound for Registered {
    fn release(&self) {
        if !self.released.xchg(true, Full) {
            // SAFETY: By the type invariant this value had the reference, and gives it up once.
            unsafe { Device::dec_ref(NonNull::from(&**self.device)) };
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.release();
    }
}

/// The state of a port: `struct ib_port_attr`, and the link layer.
///
/// ```
/// fn is_active_ethernet(device: &Device, number: u32) -> Result<bool> {
///     let port = device.port(number)?;
///     Ok(port.link_layer == LinkLayer::Ethernet && port.is_active())
/// }
/// ```
pub(crate) struct Port {
    attr: bindings::ib_port_attr,
    /// The link layer.
    pub(crate) link_layer: LinkLayer,
}

impl Deref for Port {
    type Target = bindings::ib_port_attr;

    fn deref(&self) -> &Self::Target {
        &self.attr
    }
}

/// The link layer of a port: `enum rdma_link_layer`.
///
/// ```
/// fn needs_grh(port: &Port) -> bool {
///     port.link_layer == LinkLayer::Ethernet
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkLayer {
    /// Another one.
    Unspecified,
    /// InfiniBand.
    InfiniBand,
    /// Ethernet: RoCE or iWARP.
    Ethernet,
}

/// Returns the bytes of a path MTU of `enum ib_mtu`, 0 for other numbers.
pub(crate) const fn mtu_bytes(mtu: u32) -> u32 {
    match mtu {
        bindings::IB_MTU_256 => 256,
        bindings::IB_MTU_512 => 512,
        bindings::IB_MTU_1024 => 1024,
        bindings::IB_MTU_2048 => 2048,
        bindings::IB_MTU_4096 => 4096,
        _ => 0,
    }
}

impl Port {
    /// Returns whether the link is up: `IB_PORT_ACTIVE`.
    pub(crate) fn is_active(&self) -> bool {
        self.attr.state == bindings::IB_PORT_ACTIVE
    }

    /// Returns the length of the GID table.
    pub(crate) fn gid_tbl_len(&self) -> u32 {
        u32::try_from(self.attr.gid_tbl_len).unwrap_or(0)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name();
        let end = name.iter().position(|byte| *byte == 0);
        let name = name.get(..end.unwrap_or(name.len())).unwrap_or(&name);
        fmt::Display::fmt(BStr::from_bytes(name), f)
    }
}

impl Device {
    /// Wraps a device of the core.
    ///
    /// # Safety
    ///
    /// `ptr` is a registered device with a reference count above zero during `'a`.
    pub(crate) unsafe fn from_raw<'a>(ptr: *mut bindings::ib_device) -> &'a Self {
        // SAFETY: By the requirement. The type is transparent.
        unsafe { &*ptr.cast() }
    }

    /// Returns the C pointer.
    pub(crate) fn as_raw(&self) -> *mut bindings::ib_device {
        self.0.get()
    }

    /// Returns the capabilities and limits. Does not sleep.
    ///
    /// `page_size_cap` and `max_fast_reg_pages` are limited to what the driver registers correctly,
    /// see [`quirks`].
    pub(crate) fn attributes(&self) -> Attributes {
        let mut out = Attributes::default();
        // SAFETY: Both pointers are valid.
        unsafe { bindings::rust_ulp_h_device_describe(self.as_raw(), &mut out) };
        out.page_size_cap = quirks::page_sizes(out.driver_id, out.page_size_cap, || {
            self.is_driven_by(quirks::LAB)
        });
        out.max_fast_reg_pages = out.max_fast_reg_pages.min(quirks::max_pages(out.driver_id));
        if out.max_sge_rd == 0 {
            // The driver sets no limit of its own for reads.
            out.max_sge_rd = out.max_send_sge;
        }
        out
    }

    /// Imports a range of a dma-buf for the DMA of this device. Sleeps.
    ///
    /// The pages hold a reference to the device, so its removal waits until they are dropped, or
    /// leaked. Fails with [`eopnotsupp`] when the driver copies by the CPU, and as [`Pages::attach`] does.
    pub(crate) fn import(&self, what: &Import) -> Result<Pages> {
        // SAFETY: The device is registered.
        let ptr = unsafe { bindings::rust_ulp_h_dma_device(self.as_raw()) };
        if ptr.is_null() {
            return Err(eopnotsupp());
        }
        let registered: Arc<dyn Bound> = Arc::new(
            Registered {
                device: ManuallyDrop::new(self.into()),
                released: AtomicFlag::new(false),
            },
            GFP_KERNEL_ACCOUNT,
        )?;
        // SAFETY: A driver unregisters its RDMA device before it unbinds from the device that
        // performs the DMA, and unregistering waits for `registered`.
        unsafe { Pages::attach(kernel::device::Device::from_raw(ptr), what, registered) }
    }

    /// Returns whether `other` performs the DMA of this device.
    pub(super) fn is_served_by(&self, other: &kernel::device::Device) -> bool {
        // SAFETY: The device is registered.
        let ptr = unsafe { bindings::rust_ulp_h_dma_device(self.as_raw()) };
        core::ptr::eq(ptr.cast(), other)
    }

    /// Copies the name, NUL-terminated and padded. Does not sleep.
    ///
    /// In `Client::add` and `Client::rename` the core's lock keeps the name. At any other time it may
    /// change, and while it does, the copy may have bytes of both names.
    pub(crate) fn name(&self) -> [u8; NAME_MAX] {
        let mut name = [0; NAME_MAX];
        // SAFETY: The buffer has the length that is passed, which is that of the device's array. That
        // lives as long as the device.
        unsafe {
            bindings::rust_ulp_h_device_name(self.as_raw(), name.as_mut_ptr().cast(), NAME_MAX)
        };
        name
    }

    /// Returns the version of the firmware, NUL-terminated: at most `IB_FW_VERSION_NAME_MAX` bytes.
    /// Process context.
    pub(crate) fn firmware(&self) -> [u8; 32] {
        let mut text = [0; 32];
        // SAFETY: The core writes at most 32 bytes, NUL included.
        unsafe { bindings::ib_get_device_fw_str(self.as_raw(), text.as_mut_ptr().cast()) };
        text
    }

    /// Returns whether the module with the name `module` drives the device.
    fn is_driven_by(&self, module: &CStr) -> bool {
        // SAFETY: The device is registered, which keeps its driver. The name is NUL-terminated.
        unsafe { bindings::rust_ulp_h_device_is_driven_by(self.as_raw(), module.as_char_ptr()) }
    }

    /// Returns whether the driver creates shared receive queues, and reports when a queue pair in ERR
    /// has left one: `IB_EVENT_QP_LAST_WQE_REACHED`. Does not sleep.
    pub(crate) fn raises_last_wqe(&self) -> bool {
        self.has(Rule::LastWqe)
    }

    /// Returns whether the driver takes the receives of a shared receive queue in the order of their
    /// posting. Does not sleep.
    pub(super) fn has_ordered_srq(&self) -> bool {
        self.has(Rule::OrderedSrq)
    }

    /// Returns whether Send with Invalidate was tried on the driver. Does not sleep.
    pub(crate) fn has_send_with_inv(&self) -> bool {
        self.has(Rule::SendWithInv)
    }

    /// Returns whether the driver may keep packets of a queue pair, see [`Rule::KeepsPackets`]. Does
    /// not sleep.
    pub(super) fn keeps_packets(&self) -> bool {
        self.has(Rule::KeepsPackets)
    }

    /// Returns whether the driver creates queue pairs of type UC. Does not sleep.
    pub(crate) fn has_uc(&self) -> bool {
        !self.has(Rule::NoUc)
    }

    /// Returns whether the driver creates queue pairs of type UD. Does not sleep.
    pub(crate) fn has_ud(&self) -> bool {
        !self.has(Rule::NoUd)
    }

    /// Returns whether the driver posts atomics of a kernel queue pair. Does not sleep.
    pub(crate) fn posts_atomics(&self) -> bool {
        !self.has(Rule::NoAtomics)
    }

    /// Returns whether the driver registers memory for the atomics of a peer. Does not sleep.
    pub(crate) fn grants_atomics(&self) -> bool {
        !self.has(Rule::NoRemoteAtomics)
    }

    /// Returns whether the driver copies the inline data of a datagram, unless it says when it creates
    /// the queue pair that it takes none. Does not sleep.
    pub(super) fn has_ud_inline(&self) -> bool {
        !self.has(Rule::NoUdInline)
    }

    /// Returns whether the driver brings a queue pair back to RESET. Does not sleep.
    pub(crate) fn has_reset(&self) -> bool {
        !self.has(Rule::NoReset)
    }

    /// Returns whether the driver posts `IB_WR_LOCAL_INV`. Does not sleep.
    pub(super) fn has_local_inv(&self) -> bool {
        !self.has(Rule::NoLocalInv)
    }

    /// Returns whether a key is to be invalidated before it is deregistered. Does not sleep.
    pub(super) fn invalidates_first(&self) -> bool {
        self.has(Rule::InvalidateFirst)
    }

    /// Returns whether the driver reports success although its adapter failed to revoke a key. Does
    /// not sleep.
    pub(super) fn hides_failure(&self) -> bool {
        self.has(Rule::HidesFailure)
    }

    /// Returns whether `port` is one of InfiniBand, and not of RoCE. Does not sleep.
    pub(crate) fn has_lids(&self, port: u32) -> bool {
        // SAFETY: The device is registered; the helper checks the port.
        unsafe { bindings::rust_ulp_h_port_is_ib(self.as_raw(), port) }
    }

    /// Returns whether the driver has the property `rule`.
    fn has(&self, rule: Rule) -> bool {
        quirks::has(self.attributes().driver_id, rule)
    }

    /// Returns why no protection domain of the device can register memory, if so: as text for
    /// "device N: ...". Does not sleep.
    ///
    /// See "What the module requires of a driver" and "iWARP" in docs/providers.md.
    pub(crate) fn obstacle(&self) -> Option<&'static str> {
        // SAFETY: The device is registered.
        if unsafe { bindings::rust_ulp_h_device_is_iwarp(self.as_raw()) } {
            Some("it is iWARP")
        } else if self.has(Rule::NoRc) {
            Some("its driver has no reliable queue pairs for the kernel")
        } else if self.attributes().max_fast_reg_pages == 0 {
            Some("it has no fast registration")
        } else {
            None
        }
    }

    /// Returns whether processes in `net` may use the device. Does not sleep.
    pub(crate) fn is_accessible_from(&self, net: &NetNs) -> bool {
        // SAFETY: Both pointers are valid.
        unsafe { bindings::rdma_dev_access_netns(self.as_raw(), net.as_ptr()) }
    }

    /// Returns the state of port `port`, from 1. Sleeps. Fails with [`ENOENT`] when there is no
    /// such port.
    pub(crate) fn port(&self, port: u32) -> Result<Port> {
        if port == 0 || port > self.attributes().phys_ports {
            return Err(ENOENT);
        }
        let mut attr = bindings::ib_port_attr::default();
        fault::point()?;
        // SAFETY: The device is registered, and the port exists.
        to_result(unsafe { bindings::ib_query_port(self.as_raw(), port, &mut attr) })?;
        // SAFETY: As above.
        let link_layer = match unsafe { bindings::rdma_port_get_link_layer(self.as_raw(), port) } {
            bindings::IB_LINK_LAYER_INFINIBAND => LinkLayer::InfiniBand,
            bindings::IB_LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
            _ => LinkLayer::Unspecified,
        };
        Ok(Port { attr, link_layer })
    }

    /// Returns the index of the netdev of port `port` if that is in `net`, else 0. Sleeps.
    pub(crate) fn port_ifindex(&self, port: u32, net: &NetNs) -> u32 {
        // SAFETY: Both pointers are valid. The core checks the port.
        unsafe { bindings::rust_ulp_h_port_ifindex(self.as_raw(), port, net.as_ptr()) }
    }

    /// Returns entry `index` of the P_Key table of port `port`. Sleeps. Fails with [`ENOENT`] when
    /// there is no such port or entry.
    pub(crate) fn pkey(&self, port: u32, index: u32) -> Result<u16> {
        if index >= self.port(port)?.pkey_tbl_len.into() {
            return Err(ENOENT);
        }
        let mut pkey = 0;
        fault::point()?;
        // SAFETY: The device is registered, and the port and the index exist.
        to_result(unsafe {
            bindings::ib_query_pkey(self.as_raw(), port, index as u16, &mut pkey)
        })?;
        Ok(pkey)
    }
}
