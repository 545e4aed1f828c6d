// SPDX-License-Identifier: MIT OR Apache-2.0

//! Devices and their ports: limits, attributes, GIDs and states.

use crate::abi;
use crate::error::{Error, Result};
use crate::gid::{Gid, Guid};
use crate::info::info;
use crate::numbered::numbered;
use crate::port::{all, choose, gids, text};
use crate::status::WrOpcode;
use crate::sync::{lock, Cache};
use crate::sys::{Command, File, Plain};
use crate::transport::Transport;
#[cfg(any(feature = "smol", feature = "tokio"))]
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(any(feature = "smol", feature = "tokio"))]
use std::sync::OnceLock;
use std::sync::{Arc, Mutex};

pub use crate::port::{
    DefaultGid, GidEntry, GidType, LinkLayer, LinkSpeed, PhysState, PortCaps, PortInfo, PortState,
};

/// The number of the next device that is opened; 0 is none.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Returns a name as a field of the ABI, or [`None`] if it is too long or has a NUL within.
fn field(name: &str) -> Option<[u8; abi::NAME_MAX]> {
    let mut bytes = [0; abi::NAME_MAX];
    if name.len() >= bytes.len() || name.contains('\0') {
        return None;
    }
    for (to, from) in bytes.iter_mut().zip(name.bytes()) {
        *to = from;
    }
    Some(bytes)
}

info! {
    /// The limits of one open file, and the version of the module.
    #[doc(alias = "rust_ulp_query")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Limits(query: &abi::Query) {
        /// Objects per [`Device`].
        pub max_objects: u32,
        /// Bytes per buffer, before the device's own limit.
        pub max_buffer: u64,
        /// Requests per call.
        pub max_batch: u32,
        /// Entries of one completion queue.
        pub max_cq_entries: u32,
        /// Requests per send or receive queue.
        pub max_queue_depth: u32,
        /// Elements per request.
        pub max_sge: u32,
        /// Inline bytes per request.
        pub max_inline: u32,
        /// Entries of all queues of one [`Device`] together.
        pub max_entries: u32,
    }
}

/// A device that can be opened; from [`Device::list`].
#[doc(alias = "rust_ulp_device_entry")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceEntry {
    /// The name, as shown by `rdma dev`.
    pub name: String,
    /// The index, as shown by `rdma dev`.
    pub index: u32,
    /// The node GUID.
    pub node_guid: Guid,
    /// The number of its ports, which are numbered from 1.
    pub ports: u32,
    /// True if [`Device::open_default`] takes it.
    pub is_default: bool,
    /// True if one of its GIDs is of a network interface in this network namespace.
    pub local_net: bool,
}

impl fmt::Display for DeviceEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, index {}, GUID {}",
            self.name, self.index, self.node_guid
        )
    }
}

info! {
    /// The attributes of a device.
    #[doc(alias = "rust_ulp_device_query")]
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct DeviceInfo(dev: &abi::DeviceQuery) {
        /// The name, as shown by `rdma dev`.
        pub name: String = text(&dev.name),
        /// Version of its firmware; empty on software devices.
        pub fw_ver: String = text(&dev.fw_ver),
        /// The node GUID.
        pub node_guid: Guid = Guid(dev.node_guid),
        /// The GUID of the system that it is part of.
        pub sys_image_guid: Guid = Guid(dev.sys_image_guid),
        /// Bytes under one key.
        pub max_mr_size: u64,
        /// Bit n: pages of 2^n bytes can be registered.
        pub page_size_cap: u64,
        /// True if it is a software device, without DMA.
        pub software: bool = dev.caps & abi::CAP_VIRT_DMA != 0,
        /// Vendor's number.
        pub vendor_id: u32,
        /// Part's number.
        pub vendor_part_id: u32,
        /// Hardware's version.
        pub hw_ver: u32,
        /// The number of its ports, which are numbered from 1.
        pub ports: u32 = dev.phys_ports,
        /// Queue pairs.
        pub max_qp: u32,
        /// Requests per queue.
        pub max_qp_wr: u32,
        /// Elements of a send request.
        pub max_send_sge: u32,
        /// Elements of a receive request.
        pub max_recv_sge: u32,
        /// Elements of a read request.
        pub max_sge_rd: u32,
        /// Completion queues.
        pub max_cq: u32,
        /// Entries of a completion queue.
        pub max_cqe: u32,
        /// Keys.
        pub max_mr: u32,
        /// Protection domains.
        pub max_pd: u32,
        /// Reads and atomics that a queue pair answers at a time.
        pub max_responder: u32 = dev.max_qp_rd_atom,
        /// Reads and atomics that a queue pair has under way at a time.
        pub max_initiator: u32 = dev.max_qp_init_rd_atom,
        /// Shared receive queues.
        pub max_srq: u32,
        /// Requests of a shared receive queue.
        pub max_srq_wr: u32,
        /// Elements of a request of a shared receive queue.
        pub max_srq_sge: u32,
        /// Pages under one key.
        pub max_fast_reg_pages: u32,
        /// Completion vectors.
        pub num_comp_vectors: u32,
        /// The longest time to acknowledge a request: 4.096 us * 2^n.
        pub ack_delay: u32 = dev.local_ca_ack_delay,
        /// Against what else the atomics of a peer are atomic, as the driver says. Whether this
        /// device posts atomics is what [`Self::supports`] tells.
        pub atomic_cap: AtomicCap = AtomicCap::from_code(dev.atomic_cap),
        /// Capabilities that the driver reports: bits of `enum ib_device_cap_flags`.
        pub device_cap_flags: u64,
        send_ops: [u64; 3] = [dev.rc_send_ops, dev.uc_send_ops, dev.ud_send_ops],
    }
}

numbered! {
    /// Against what else the atomics of a peer are atomic.
    pub enum AtomicCap(pub(crate) u32) {
        /// The device has no atomics.
        None = abi::ATOMIC_NONE,
        /// Other atomics of the same device, but no store of a processor: `IB_ATOMIC_HCA`.
        Hca = abi::ATOMIC_HCA,
        /// Atomics of other devices and of processors, too: `IB_ATOMIC_GLOB`.
        Glob = abi::ATOMIC_GLOB,
    }
}

/// Writes the name that `ibv_devinfo -v` prints.
impl fmt::Display for AtomicCap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("ATOMIC_NONE"),
            Self::Hca => f.write_str("ATOMIC_HCA"),
            Self::Glob => f.write_str("ATOMIC_GLOB"),
            Self::Other(code) => write!(f, "{code}"),
        }
    }
}

impl DeviceInfo {
    /// Returns whether queue pairs of type `T` carry out send requests with this opcode here.
    pub fn supports<T: Transport>(&self, opcode: WrOpcode) -> bool {
        let [rc, uc, ud] = self.send_ops;
        let ops = match T::QP_TYPE {
            abi::QPT_RC => rc,
            abi::QPT_UC => uc,
            _ => ud,
        };
        ops.checked_shr(opcode as u32).unwrap_or(0) & 1 != 0
    }
}

#[derive(Debug)]
pub(crate) struct DeviceInner {
    /// Names this open file among all that this process ever had. Handles are unique within one
    /// only.
    id: u64,
    file: File,
    name: String,
    limits: Limits,
    info: DeviceInfo,
    port: u32,
    chosen: Result<DefaultGid, String>,
    /// The peers of the queue pairs, by handle: number and GID, for the error of a failed
    /// completion.
    peers: Mutex<HashMap<u32, (u32, Gid)>>,
    /// Memory for the next batch.
    pub(crate) storage: Cache,
    /// See [`Self::taken_events`].
    #[cfg(any(feature = "smol", feature = "tokio"))]
    taken_events: OnceLock<EventFd>,
}

impl DeviceInner {
    #[inline]
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    #[inline]
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn call<C: Plain>(&self, arg: &mut C) -> Result<()> {
        self.file
            .call(arg)
            .map_err(|errno| Error::sys(C::NAME, errno))
    }

    pub(crate) fn info(&self) -> &DeviceInfo {
        &self.info
    }

    #[inline]
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the file that is written to whenever somebody has taken an event. Nobody reads it: each
    /// write is an edge for epoll.
    #[cfg(any(feature = "smol", feature = "tokio"))]
    pub(crate) fn taken_events(&self) -> Result<&EventFd> {
        if let Some(file) = self.taken_events.get() {
            return Ok(file);
        }
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let file = EventFd::from_value_and_flags(0, flags);
        let file = file.map_err(|errno| Error::sys("eventfd", errno))?;
        Ok(self.taken_events.get_or_init(|| file))
    }

    /// Tells the tasks that wait for what events tell of that somebody has taken one.
    pub(crate) fn event_was_taken(&self) {
        #[cfg(any(feature = "smol", feature = "tokio"))]
        if let Some(file) = self.taken_events.get() {
            // It fails only after 2^64 events.
            let _ = file.write(1);
        }
    }

    pub(crate) fn peer_of(&self, qp: u32) -> Option<(u32, Gid)> {
        lock(&self.peers).get(&qp).copied()
    }

    pub(crate) fn set_peer(&self, qp: u32, peer: Option<(u32, Gid)>) {
        let mut peers = lock(&self.peers);
        match peer {
            Some(peer) => {
                peers.insert(qp, peer);
            }
            None => {
                peers.remove(&qp);
            }
        }
    }
}

/// An RDMA device, opened through `/dev/rust_ulp`.
///
/// It is one open file: objects of one `Device` are unknown to another, even of the same device.
/// Cheap to clone; the file is closed when the last clone and the last object is gone.
///
/// [`AsFd`] gives the file for `poll`, `epoll` and the like: it is readable while there are
/// [`Events`](crate::events::Events), and is hung up when the device was removed. Completions do
/// not make it readable: [`Cq::eventfd`](crate::Cq::eventfd) does that.
#[derive(Clone, Debug)]
pub struct Device {
    inner: Arc<DeviceInner>,
}

impl Device {
    /// Opens the device that has the best GID in this network namespace. A GID of an active port comes
    /// first; among those, the GID of a RoCE v2 port with an IPv4 address is the best.
    ///
    /// # Errors
    ///
    /// [`Error::Open`] without the module or the permission, [`Error::Abi`] if the module is of
    /// another version, [`Error::NoDevice`] if no device has a GID in this network namespace.
    pub fn open_default() -> Result<Self> {
        Self::attach(Self::file()?, "")
    }

    /// Opens the device with this name, as shown by `rdma dev`.
    ///
    /// # Errors
    ///
    /// As [`Self::open_default`]; [`Error::NoDevice`] if there is no such device,
    /// [`Error::Unsupported`] if it is an iWARP device, or one that cannot register memory for the
    /// kernel.
    pub fn open(name: &str) -> Result<Self> {
        if name.is_empty() {
            return Err(Error::NoDevice {
                name: "".to_owned(),
            });
        }
        Self::attach(Self::file()?, name)
    }

    /// Returns the devices that this process may open.
    ///
    /// # Errors
    ///
    /// As [`Self::open_default`]; no device is no error, but an empty list.
    pub fn list() -> Result<Vec<DeviceEntry>> {
        let file = Self::file()?;
        Self::query(&file)?;
        let raw = all(abi::DeviceEntry::default(), |entries| {
            file.device_list(entries)
        });
        let raw = raw.map_err(|errno| Error::sys("DEVICE_LIST", errno))?;
        Ok(raw
            .iter()
            .map(|entry| DeviceEntry {
                name: text(&entry.name),
                index: entry.index,
                node_guid: Guid(entry.node_guid),
                ports: entry.phys_ports,
                is_default: entry.flags & abi::DEVICE_DEFAULT != 0,
                local_net: entry.flags & abi::DEVICE_LOCAL_NET != 0,
            })
            .collect())
    }

    fn file() -> Result<File> {
        File::open(abi::DEVICE_PATH).map_err(|cause| Error::Open {
            path: abi::DEVICE_PATH.to_owned(),
            cause,
        })
    }

    fn query(file: &File) -> Result<abi::Query> {
        let speaks = |kernel| Error::Abi {
            kernel,
            library: abi::ABI_VERSION,
        };
        let mut arg: abi::Query = Command::new();
        file.call(&mut arg).map_err(|errno| match errno {
            // Version 3 made the struct shorter; a module of version 2 refuses its size.
            nix::errno::Errno::EINVAL => speaks(2),
            errno => Error::sys(abi::Query::NAME, errno),
        })?;
        if arg.abi_version != abi::ABI_VERSION {
            return Err(speaks(arg.abi_version));
        }
        Ok(arg)
    }

    pub(crate) fn attach(file: File, name: &str) -> Result<Self> {
        let no_device = || Error::NoDevice {
            name: name.to_owned(),
        };
        let query = Self::query(&file)?;
        let mut attach = abi::Attach {
            name: field(name).ok_or_else(no_device)?,
            ..Command::new()
        };
        file.call(&mut attach).map_err(|errno| match errno {
            nix::errno::Errno::ENOENT | nix::errno::Errno::ENODEV => no_device(),
            nix::errno::Errno::EOPNOTSUPP => Error::Unsupported {
                what: "an iWARP device, or one that cannot register memory for the kernel,",
            },
            errno => Error::sys(abi::Attach::NAME, errno),
        })?;
        let mut dev: abi::DeviceQuery = Command::new();
        file.call(&mut dev)
            .map_err(|errno| Error::sys(abi::DeviceQuery::NAME, errno))?;
        let gids = gids(&file, attach.port)?;
        let chosen = choose(&attach, &gids);
        Ok(Self {
            inner: Arc::new(DeviceInner {
                id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
                file,
                name: text(&attach.name),
                limits: Limits::new(&query),
                info: DeviceInfo::new(&dev),
                port: attach.port,
                chosen,
                peers: Mutex::new(HashMap::new()),
                storage: Cache::default(),
                #[cfg(any(feature = "smol", feature = "tokio"))]
                taken_events: OnceLock::new(),
            }),
        })
    }

    pub(crate) fn inner(&self) -> &Arc<DeviceInner> {
        &self.inner
    }

    pub(crate) fn from_inner(inner: &Arc<DeviceInner>) -> Self {
        Self {
            inner: inner.clone(),
        }
    }

    /// Returns the name that `rdma dev` showed when it was opened.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Returns the limits of the module.
    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    /// Returns the device's attributes of the time when it was opened.
    pub fn info(&self) -> &DeviceInfo {
        &self.inner.info
    }

    /// Returns the port and the index of the GID that queue pairs use unless told otherwise, and why.
    ///
    /// The choice is made when the device is opened, and the GID is the one that was at this index
    /// then. A queue pair gets the GID that is at this index when it is built. Open the device again
    /// to choose anew after addresses have changed.
    ///
    /// # Errors
    ///
    /// [`Error::NoUsableGid`] if the port has none.
    #[doc(alias = "chosen")]
    pub fn default_gid(&self) -> Result<&DefaultGid> {
        self.inner
            .chosen
            .as_ref()
            .map_err(|tried| Error::NoUsableGid {
                port: self.inner.port,
                tried: tried.clone(),
            })
    }

    /// Asks about a port, from 1.
    ///
    /// # Errors
    ///
    /// [`Error::Sys`] with `ENOENT` for a port that there is not, [`Error::DeviceGone`].
    pub fn port(&self, port: u32) -> Result<PortInfo> {
        let mut arg = abi::PortQuery {
            port,
            ..Command::new()
        };
        self.inner.call(&mut arg)?;
        Ok(PortInfo::new(&arg))
    }

    /// Returns the GIDs of a port, from 1. Fails as [`Self::port`].
    pub fn gids(&self, port: u32) -> Result<Vec<GidEntry>> {
        gids(&self.inner.file, port)
    }

    /// Returns the P_Key at `index` of the table of a port.
    ///
    /// # Errors
    ///
    /// As [`Self::port`]; [`Error::Sys`] with `ENOENT` beyond the end of the table.
    pub fn pkey(&self, port: u32, index: u32) -> Result<u16> {
        let mut arg = abi::PkeyQuery {
            port,
            index,
            ..Command::new()
        };
        self.inner.call(&mut arg)?;
        Ok(arg.pkey as u16)
    }
}

/// Name, port and GID, and why that one.
impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match &self.inner.chosen {
            Ok(chosen) => write!(f, ", {chosen}"),
            Err(tried) => write!(f, ", port {}, no usable GID: {tried}", self.inner.port),
        }
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.file.as_fd()
    }
}
