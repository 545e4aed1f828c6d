// SPDX-License-Identifier: MIT OR Apache-2.0

//! Devices: opening, asking, and what lives on them.

use crate::abi;
use crate::ah::AddressHandle;
use crate::batch::DeviceBatch;
use crate::buffer::{Buffer, BufferBuilder};
use crate::cq::{Cq, CqOptions};
use crate::error::{Error, Result};
use crate::events::Events;
use crate::memory::{DmabufBuilder, UserMemoryBuilder};
use crate::multi::MultiQueueBuilder;
use crate::qp::{Gid, Path, QpBuilder, Transport};
use crate::srq::SrqBuilder;
use crate::sync::{lock, Cache};
use crate::sys::{Command, File, Plain};
use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// The text of a NUL-terminated field.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned()
}

/// A name as a field of the ABI, or [`None`] if it is too long or has a NUL within.
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

/// An EUI-64 of a device, in network order.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Guid(pub [u8; 8]);

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, pair) in self.0.chunks(2).enumerate() {
            if i != 0 {
                f.write_str(":")?;
            }
            for byte in pair {
                write!(f, "{byte:02x}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What the module is, and what one open file may have.
///
/// Header struct: `rust_ulp_query`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
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

/// A device that can be opened; from [`Device::list`].
///
/// Header struct: `rust_ulp_device_entry`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceEntry {
    /// Its name, as shown by `rdma dev`.
    pub name: String,
    /// Its index, as shown by `rdma dev`.
    pub index: u32,
    /// Its GUID.
    pub node_guid: Guid,
    /// How many ports it has, numbered from 1.
    pub ports: u32,
    /// Whether [`Device::open_default`] takes it.
    pub is_default: bool,
    /// Whether one of its GIDs is of a network interface in this network namespace.
    pub local_net: bool,
}

/// What a device is and can do.
///
/// Header struct: `rust_ulp_device_query`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Its name, as shown by `rdma dev`.
    pub name: String,
    /// Version of its firmware; empty on software devices.
    pub fw_ver: String,
    /// Its GUID.
    pub node_guid: Guid,
    /// The GUID of the system that it is part of.
    pub sys_image_guid: Guid,
    /// Bytes under one key.
    pub max_mr_size: u64,
    /// Bit n: pages of 2^n bytes can be registered.
    pub page_size_cap: u64,
    /// Whether buffers and grants can be made.
    pub fast_reg: bool,
    /// Whether it is a software device, without DMA.
    pub software: bool,
    /// Vendor's number.
    pub vendor_id: u32,
    /// Part's number.
    pub vendor_part_id: u32,
    /// Hardware's version.
    pub hw_ver: u32,
    /// How many ports it has, numbered from 1.
    pub ports: u32,
    /// Queue pairs.
    pub max_qp: u32,
    /// Requests per queue.
    pub max_qp_wr: u32,
    /// Elements of a send request.
    pub max_send_sge: u32,
    /// Elements of a receive request.
    pub max_recv_sge: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of a completion queue.
    pub max_cqe: u32,
    /// Keys.
    pub max_mr: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Reads and atomics that a queue pair answers at a time.
    pub max_responder: u32,
    /// Reads and atomics that a queue pair has under way at a time.
    pub max_initiator: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Requests of a shared receive queue.
    pub max_srq_wr: u32,
    /// Pages under one key.
    pub max_fast_reg_pages: u32,
    /// Completion vectors.
    pub num_comp_vectors: u32,
    /// How long it may take to acknowledge: 4.096 us * 2^n.
    pub ack_delay: u32,
    send_ops: [u64; 3],
}

impl DeviceInfo {
    /// Whether a send request with this opcode of the ABI (`RUST_ULP_WR_*`) works on queue pairs of
    /// type `T` here.
    pub fn supports<T: Transport>(&self, opcode: u8) -> bool {
        let [rc, uc, ud] = self.send_ops;
        let ops = match T::QP_TYPE {
            abi::QPT_RC => rc,
            abi::QPT_UC => uc,
            _ => ud,
        };
        ops.checked_shr(u32::from(opcode)).unwrap_or(0) & 1 != 0
    }
}

/// What a port is in.
///
/// Header: `rust_ulp_port_query.state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortState {
    /// No link, or its interface is down.
    Down,
    /// Link, not yet configured by the subnet manager.
    Init,
    /// Configured, not yet active.
    Armed,
    /// Carries traffic.
    Active,
    /// Carries traffic, link error being recovered.
    ActiveDefer,
    /// A number that this crate does not know.
    Other(u32),
}

/// Below what a port sits.
///
/// Header: `RUST_ULP_LINK_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkLayer {
    /// InfiniBand: peers are addressed by LID.
    InfiniBand,
    /// Ethernet (RoCE): peers are addressed by GID.
    Ethernet,
    /// Unspecified, or a number that this crate does not know.
    Other(u32),
}

/// A port of a device.
///
/// Header struct: `rust_ulp_port_query`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortInfo {
    /// Its number, from 1.
    pub port: u32,
    /// What it is in.
    pub state: PortState,
    /// `enum ib_port_phys_state`.
    pub phys_state: u32,
    /// Largest MTU, bytes.
    pub max_mtu: u32,
    /// MTU, bytes.
    pub active_mtu: u32,
    /// What it sits on.
    pub link_layer: LinkLayer,
    /// Local identifier; InfiniBand only.
    pub lid: u16,
    /// The subnet manager's LID; InfiniBand only.
    pub sm_lid: u16,
    /// Bits of the LID that select a path; InfiniBand only.
    pub lmc: u8,
    /// The subnet manager's service level; InfiniBand only.
    pub sm_sl: u8,
    /// Bytes of one message.
    pub max_msg_size: u32,
    /// Entries of its GID table.
    pub gid_table_len: u32,
    /// Entries of its P_Key table.
    pub pkey_table_len: u32,
    /// `enum ib_port_width`.
    pub active_width: u32,
    /// `enum ib_port_speed`.
    pub active_speed: u32,
    /// `IB_PORT_*_SUP` bits.
    pub cap_flags: u32,
    /// Packets with a wrong P_Key.
    pub bad_pkeys: u32,
    /// Packets with a wrong Q_Key.
    pub qkey_violations: u32,
    /// Its network interface, when that is in this network namespace.
    pub ifindex: Option<u32>,
}

/// What a GID stands for on the wire.
///
/// Header: `RUST_ULP_GID_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GidType {
    /// InfiniBand.
    Ib,
    /// RoCE v1: Ethernet, one broadcast domain.
    RoceV1,
    /// RoCE v2: UDP, can be routed.
    RoceV2,
    /// A number that this crate does not know.
    Other(u32),
}

impl fmt::Display for GidType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ib => f.write_str("InfiniBand"),
            Self::RoceV1 => f.write_str("RoCE v1"),
            Self::RoceV2 => f.write_str("RoCE v2"),
            Self::Other(n) => write!(f, "GID type {n}"),
        }
    }
}

/// An entry of a port's GID table.
///
/// Header struct: `rust_ulp_gid_entry`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GidEntry {
    /// The GID.
    pub gid: Gid,
    /// Its place in the table.
    pub index: u32,
    /// What it stands for.
    pub gid_type: GidType,
    /// Number and name of its network interface, when that is in this network namespace.
    pub interface: Option<(u32, String)>,
    /// Whether it is an IPv4 address (`::ffff:a.b.c.d`).
    pub is_ipv4: bool,
    /// Whether it is good for one link only (`fe80::/10`).
    pub is_link_local: bool,
    /// Whether [`Device::chosen`] names it.
    pub is_preferred: bool,
}

impl GidEntry {
    fn in_words(&self) -> String {
        let address = if self.is_ipv4 {
            "an IPv4 address"
        } else if self.is_link_local {
            "a link-local address"
        } else {
            "an IPv6 address"
        };
        match &self.interface {
            Some((_, name)) => format!("{}, {address} of {name}", self.gid_type),
            None if self.gid_type == GidType::Ib => self.gid_type.to_string(),
            None => format!(
                "{}, {address} of an interface in another network namespace",
                self.gid_type
            ),
        }
    }
}

/// The port and GID that a queue pair uses unless told otherwise, and why.
///
/// Header struct: `rust_ulp_attach`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Chosen {
    /// The port, from 1.
    pub port: u32,
    /// Index into its GID table.
    pub gid_index: u32,
    /// The GID.
    pub gid: Gid,
    /// Why this one, in words.
    pub reason: String,
}

impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "port {}, GID index {}, {}: {}",
            self.port, self.gid_index, self.gid, self.reason
        )
    }
}

#[derive(Debug)]
pub(crate) struct DeviceInner {
    file: File,
    name: String,
    limits: Limits,
    features: u64,
    info: DeviceInfo,
    port: u32,
    chosen: Result<Chosen, String>,
    /// The peers of the queue pairs, by handle: number and GID, for the error of a failed completion.
    peers: Mutex<HashMap<u32, (u32, Gid)>>,
    /// Memory for the next batch.
    pub(crate) storage: Cache,
}

impl DeviceInner {
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

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Refuses what the module does not offer: `RUST_ULP_FEATURE_*`.
    pub(crate) fn needs(&self, feature: u64, what: &'static str) -> Result<()> {
        if self.features & feature == 0 {
            return Err(Error::Unsupported { what });
        }
        Ok(())
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

/// A handle of the kernel's, destroyed when this is dropped.
#[derive(Debug)]
pub(crate) struct Object {
    handle: u32,
    gone: AtomicBool,
    /// Gone when the kernel has let go of it, and of what was in flight on it.
    life: Arc<()>,
    // Dropped after the body of `drop`: the device outlives its objects.
    device: Arc<DeviceInner>,
}

impl Object {
    pub(crate) fn new(device: &Arc<DeviceInner>, handle: u32) -> Self {
        Self {
            handle,
            gone: AtomicBool::new(false),
            life: Arc::new(()),
            device: device.clone(),
        }
    }

    pub(crate) fn handle(&self) -> u32 {
        self.handle
    }

    pub(crate) fn life(&self) -> &Arc<()> {
        &self.life
    }

    /// Notes that the kernel has destroyed it.
    pub(crate) fn is_gone(&self) {
        self.gone.store(true, Ordering::Release);
    }

    /// Destroys it now. The second time, this is the `EBADF` that the kernel would say.
    pub(crate) fn destroy(&self) -> Result<()> {
        let mut arg = abi::Destroy {
            handle: self.handle,
            ..Command::new()
        };
        if self.gone.swap(true, Ordering::AcqRel) {
            return Err(Error::Sys {
                call: abi::Destroy::NAME,
                errno: libc::EBADF,
            });
        }
        let result = self.device.call(&mut arg);
        if matches!(result, Err(Error::Busy { .. })) {
            self.gone.store(false, Ordering::Release);
        }
        result
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // An error leaves nothing to do: the device is gone, or it was destroyed before. What is left
        // goes when the file is closed.
        if let Err(Error::Busy { .. }) = self.destroy() {
            std::mem::forget(self.life.clone());
        }
    }
}

/// An RDMA device, opened through `/dev/rust_ulp`.
///
/// It is one open file: objects of one `Device` are unknown to another, even of the same device.
/// Cheap to clone; the file is closed when the last clone and the last object is gone.
///
/// [`AsFd`] gives the file for `poll`, `epoll` and the like: it is readable while any completion queue of
/// this device has completions that were not reaped, has priority data (`POLLPRI`) while there are
/// [`Events`], and is hung up when the device was removed.
#[derive(Clone, Debug)]
pub struct Device {
    inner: Arc<DeviceInner>,
}

impl Device {
    /// Opens the device whose network interface is in this network namespace, or the first one.
    ///
    /// # Errors
    ///
    /// [`Error::Open`] without the module or the permission, [`Error::Abi`] if the module is of another
    /// version, [`Error::NoDevice`] if there is none.
    pub fn open_default() -> Result<Self> {
        Self::attach(Self::file()?, "")
    }

    /// Opens the device with this name, as shown by `rdma dev`.
    ///
    /// # Errors
    ///
    /// As [`Self::open_default`].
    pub fn open(name: &str) -> Result<Self> {
        if name.is_empty() {
            return Err(Error::NoDevice {
                name: "".to_owned(),
            });
        }
        Self::attach(Self::file()?, name)
    }

    /// The devices that this process may open.
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
        File::open(abi::DEVICE_PATH).map_err(|source| Error::Open {
            path: abi::DEVICE_PATH.to_owned(),
            source,
        })
    }

    fn query(file: &File) -> Result<abi::Query> {
        let mut arg: abi::Query = Command::new();
        file.call(&mut arg)
            .map_err(|errno| Error::sys(abi::Query::NAME, errno))?;
        if arg.abi_version != abi::ABI_VERSION {
            return Err(Error::Abi {
                kernel: arg.abi_version,
                library: abi::ABI_VERSION,
            });
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
            errno => Error::sys(abi::Attach::NAME, errno),
        })?;
        let mut dev: abi::DeviceQuery = Command::new();
        file.call(&mut dev)
            .map_err(|errno| Error::sys(abi::DeviceQuery::NAME, errno))?;
        let gids = gids(&file, attach.port)?;
        let chosen = choose(&attach, &gids);
        Ok(Self {
            inner: Arc::new(DeviceInner {
                file,
                name: text(&attach.name),
                limits: Limits {
                    max_objects: query.max_objects,
                    max_buffer: query.max_buffer,
                    max_batch: query.max_batch,
                    max_cq_entries: query.max_cq_entries,
                    max_queue_depth: query.max_queue_depth,
                    max_sge: query.max_sge,
                    max_inline: query.max_inline,
                    max_entries: query.max_entries,
                },
                features: query.features,
                info: info(&dev),
                port: attach.port,
                chosen,
                peers: Mutex::new(HashMap::new()),
                storage: Cache::default(),
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

    /// Its name, as shown by `rdma dev` when it was opened.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// What the module allows.
    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    /// What the module offers beyond version 1 of the ABI: `RUST_ULP_FEATURE_*`.
    pub fn features(&self) -> u64 {
        self.inner.features
    }

    /// What the device is and can do, as asked when it was opened.
    pub fn info(&self) -> &DeviceInfo {
        &self.inner.info
    }

    /// The port and GID that queue pairs use unless told otherwise, and why.
    ///
    /// # Errors
    ///
    /// [`Error::NoUsableGid`] if the port has none.
    pub fn chosen(&self) -> Result<&Chosen> {
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
        Ok(PortInfo {
            port,
            state: match arg.state {
                1 => PortState::Down,
                2 => PortState::Init,
                3 => PortState::Armed,
                4 => PortState::Active,
                5 => PortState::ActiveDefer,
                n => PortState::Other(n),
            },
            phys_state: arg.phys_state,
            max_mtu: arg.max_mtu,
            active_mtu: arg.active_mtu,
            link_layer: match arg.link_layer {
                abi::LINK_INFINIBAND => LinkLayer::InfiniBand,
                abi::LINK_ETHERNET => LinkLayer::Ethernet,
                n => LinkLayer::Other(n),
            },
            lid: arg.lid as u16,
            sm_lid: arg.sm_lid as u16,
            lmc: arg.lmc as u8,
            sm_sl: arg.sm_sl as u8,
            max_msg_size: arg.max_msg_sz,
            gid_table_len: arg.gid_tbl_len,
            pkey_table_len: arg.pkey_tbl_len,
            active_width: arg.active_width,
            active_speed: arg.active_speed,
            cap_flags: arg.port_cap_flags,
            bad_pkeys: arg.bad_pkey_cntr,
            qkey_violations: arg.qkey_viol_cntr,
            ifindex: (arg.ifindex != 0).then_some(arg.ifindex),
        })
    }

    /// The GIDs of a port, from 1.
    ///
    /// # Errors
    ///
    /// As [`Self::port`].
    pub fn gids(&self, port: u32) -> Result<Vec<GidEntry>> {
        gids(&self.inner.file, port)
    }

    /// The P_Key at `index` of the table of a port.
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

    /// Makes a protection domain: queue pairs reach the buffers of their own domain only.
    ///
    /// Header struct: `rust_ulp_pd_create`.
    ///
    /// # Errors
    ///
    /// [`Error::Sys`] with `EMFILE` with too many objects, [`Error::DeviceGone`].
    pub fn alloc_pd(&self) -> Result<Pd> {
        let mut arg: abi::PdCreate = Command::new();
        self.inner.call(&mut arg)?;
        Ok(Pd {
            inner: Arc::new(Object::new(&self.inner, arg.handle)),
        })
    }

    /// Makes a completion queue with room for at least `entries` completions.
    ///
    /// There has to be room for every request in flight on it; posting says
    /// [`Error::QueueFull`] where there is not.
    ///
    /// # Errors
    ///
    /// [`Error::Sys`] with `ERANGE` for more than [`Limits::max_cq_entries`] or none, `EMFILE`, `ENOMEM`;
    /// [`Error::DeviceGone`].
    pub fn create_cq(&self, entries: u32) -> Result<Cq> {
        self.create_cq_with(entries, CqOptions::default())
    }

    /// Makes a completion queue, with options.
    ///
    /// # Errors
    ///
    /// As [`Self::create_cq`].
    pub fn create_cq_with(&self, entries: u32, options: CqOptions) -> Result<Cq> {
        Cq::create(&self.inner, entries, options)
    }

    /// Queue pairs with a completion thread each, one for each processor unless said otherwise.
    pub fn multi_queue(&self) -> MultiQueueBuilder {
        MultiQueueBuilder::new(self.clone())
    }

    /// What happens on it: ports, queues, connections, its removal.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the module has no events.
    pub fn events(&self) -> Result<Events> {
        self.inner.needs(abi::FEATURE_EVENTS, "events")?;
        Ok(Events::new(&self.inner))
    }

    /// An empty batch of requests for any of this device's queue pairs, to be posted by one call.
    pub fn batch(&self) -> DeviceBatch<'_> {
        DeviceBatch::new(self)
    }

    /// Posts requests for any of this device's queue pairs, by one call. Returns how many there were.
    ///
    /// [`Self::batch`] does the same for requests of different types or known one by one.
    ///
    /// # Errors
    ///
    /// As [`DeviceBatch::submit`].
    pub fn submit<'a, Q, R>(&'a self, requests: impl IntoIterator<Item = (Q, R)>) -> Result<usize>
    where
        R: crate::wr::RequestFor<'a, Q>,
    {
        let mut batch = self.batch();
        for (qp, request) in requests {
            batch.push(qp, request)?;
        }
        batch.submit()
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

fn info(dev: &abi::DeviceQuery) -> DeviceInfo {
    DeviceInfo {
        name: text(&dev.name),
        fw_ver: text(&dev.fw_ver),
        node_guid: Guid(dev.node_guid),
        sys_image_guid: Guid(dev.sys_image_guid),
        max_mr_size: dev.max_mr_size,
        page_size_cap: dev.page_size_cap,
        fast_reg: dev.caps & abi::CAP_FAST_REG != 0,
        software: dev.caps & abi::CAP_VIRT_DMA != 0,
        vendor_id: dev.vendor_id,
        vendor_part_id: dev.vendor_part_id,
        hw_ver: dev.hw_ver,
        ports: dev.phys_ports,
        max_qp: dev.max_qp,
        max_qp_wr: dev.max_qp_wr,
        max_send_sge: dev.max_send_sge,
        max_recv_sge: dev.max_recv_sge,
        max_cq: dev.max_cq,
        max_cqe: dev.max_cqe,
        max_mr: dev.max_mr,
        max_pd: dev.max_pd,
        max_responder: dev.max_qp_rd_atom,
        max_initiator: dev.max_qp_init_rd_atom,
        max_srq: dev.max_srq,
        max_srq_wr: dev.max_srq_wr,
        max_fast_reg_pages: dev.max_fast_reg_pages,
        num_comp_vectors: dev.num_comp_vectors,
        ack_delay: dev.local_ca_ack_delay,
        send_ops: [dev.rc_send_ops, dev.uc_send_ops, dev.ud_send_ops],
    }
}

/// Asks with arrays that grow until they hold everything.
fn all<T: Clone, E>(
    zero: T,
    mut ask: impl FnMut(&mut [T]) -> std::result::Result<u32, E>,
) -> std::result::Result<Vec<T>, E> {
    let mut entries = vec![zero.clone(); 16];
    loop {
        let count = ask(&mut entries)? as usize;
        // Nothing has more of anything than this.
        if count <= entries.len() || entries.len() >= 1 << 16 {
            entries.truncate(count);
            return Ok(entries);
        }
        entries.resize(count.min(1 << 16), zero.clone());
    }
}

fn gids(file: &File, port: u32) -> Result<Vec<GidEntry>> {
    let raw = all(abi::GidEntry::default(), |entries| {
        file.gid_query(port, entries)
    });
    let raw = raw.map_err(|errno| Error::sys("GID_QUERY", errno))?;
    Ok(raw
        .iter()
        .map(|entry| GidEntry {
            gid: Gid(entry.gid),
            index: entry.index,
            gid_type: match entry.gid_type {
                abi::GID_IB => GidType::Ib,
                abi::GID_ROCE_V1 => GidType::RoceV1,
                abi::GID_ROCE_V2 => GidType::RoceV2,
                n => GidType::Other(n),
            },
            interface: (entry.flags & abi::GID_LOCAL_NET != 0)
                .then(|| (entry.ifindex, text(&entry.ifname))),
            is_ipv4: entry.flags & abi::GID_IPV4 != 0,
            is_link_local: entry.flags & abi::GID_LINK_LOCAL != 0,
            is_preferred: entry.flags & abi::GID_PREFERRED != 0,
        })
        .collect())
}

/// What ATTACH chose, with the reason; or what there is, if it chose none.
fn choose(attach: &abi::Attach, gids: &[GidEntry]) -> Result<Chosen, String> {
    let tried = || {
        let all: Vec<String> = gids
            .iter()
            .map(|gid| format!("index {}: {}", gid.index, gid.in_words()))
            .collect();
        if all.is_empty() {
            "its table is empty".to_owned()
        } else {
            all.join("; ")
        }
    };
    let gid = gids.iter().find(|gid| gid.index == attach.gid_index);
    let gid = gid.ok_or_else(tried)?;
    let others: Vec<String> = gids
        .iter()
        .filter(|other| other.index != gid.index)
        .map(|other| format!("{} ({})", other.index, other.in_words()))
        .collect();
    let reason = if others.is_empty() {
        format!("{}; the only one of port {}", gid.in_words(), attach.port)
    } else {
        format!(
            "{}; rather than index {}",
            gid.in_words(),
            others.join(", ")
        )
    };
    Ok(Chosen {
        port: attach.port,
        gid_index: gid.index,
        gid: gid.gid,
        reason,
    })
}

/// A protection domain: queue pairs reach the buffers of their own domain only.
///
/// Cheap to clone; destroyed when the last clone, buffer and queue pair of it is gone.
#[derive(Clone, Debug)]
pub struct Pd {
    inner: Arc<Object>,
}

impl Pd {
    /// Allocates a buffer of `len` bytes, zeroed. [`Self::buffer`] has more to choose.
    ///
    /// # Errors
    ///
    /// As [`BufferBuilder::alloc`].
    pub fn alloc_buffer(&self, len: usize) -> Result<Buffer> {
        self.buffer(len).alloc()
    }

    /// A buffer of `len` bytes, with page size and NUMA node to be chosen.
    pub fn buffer(&self, len: usize) -> BufferBuilder {
        BufferBuilder::new(self.clone(), len)
    }

    /// Memory of `len` bytes that belongs to this process, registered where it is.
    pub fn user_memory(&self, len: usize) -> UserMemoryBuilder {
        UserMemoryBuilder::new(self.clone(), len)
    }

    /// A dma-buf, to be used as a buffer: memory of another driver or process.
    pub fn dmabuf(&self, fd: OwnedFd) -> DmabufBuilder {
        DmabufBuilder::new(self.clone(), fd)
    }

    /// A shared receive queue of this domain, whose receives complete in `cq`.
    pub fn create_srq(&self, cq: &Cq) -> SrqBuilder {
        SrqBuilder::new(self, cq)
    }

    /// A way on which datagrams of this domain's queue pairs can go. [`Qp::address`](crate::Qp::address)
    /// and [`Qp::reply_to`](crate::Qp::reply_to) know most of it already.
    ///
    /// # Errors
    ///
    /// [`Error::Sys`] with `EHOSTUNREACH`, `ENETUNREACH` or `ETIMEDOUT` if there is no way to the GID,
    /// `ENOENT` for a port or GID index that there is not, `ERANGE` for numbers that are too large,
    /// `EMFILE`; [`Error::Unsupported`] if the device has no datagrams, [`Error::DeviceGone`].
    pub fn create_ah(&self, path: Path) -> Result<AddressHandle> {
        AddressHandle::create(self, path)
    }

    /// A queue pair of type `T` in this domain, whose completions go to `cq`.
    pub fn create_qp<T: Transport>(&self, cq: &Cq) -> QpBuilder<T> {
        QpBuilder::new(self, cq)
    }

    pub(crate) fn handle(&self) -> u32 {
        self.inner.handle
    }

    pub(crate) fn device(&self) -> &Arc<DeviceInner> {
        &self.inner.device
    }
}
