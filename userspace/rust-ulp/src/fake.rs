// SPDX-License-Identifier: MIT OR Apache-2.0

//! A kernel for unit tests, in this process: enough of `/dev/rust_ulp` to connect queue pairs of
//! one kernel with each other by parameters, and to carry their requests out at once. Of the
//! connection manager it has requests of nobody, and waits that end with their time, unless a test
//! has a peer that says more.
//!
//! It is as strict as the real one where the crate has to keep rules: sizes, flags, handles, the
//! order of states, room in the rings. Memory is a memfd, of which buffers and rings are parts;
//! what requests point at is read by way of `/proc/self/mem`, so a wrong address is an `EFAULT`.

use crate::abi;
use crate::device::Device;
use crate::ring::{Producer, SharedIndex};
use crate::sync::lock;
use crate::sys::{counting, look_up, FakeKernel, File};
use nix::errno::Errno;
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// What the address of offset 0 of the memory is to peers.
const ADDRESS: u64 = 0x7000_0000_0000;
const PAGE: u64 = 4096;
/// `IB_WC_WR_FLUSH_ERR`.
const FLUSHED: u16 = 5;
/// 512 pages.
const KEY_BYTES: u64 = 2 << 20;

#[derive(Debug)]
pub(crate) struct Kernel {
    /// The memory of all buffers and rings.
    memory: Arc<std::fs::File>,
    /// This process.
    process: std::fs::File,
    /// Is readable while there are events, and hung up when the device is gone.
    event_file: UnixStream,
    state: Mutex<State>,
    resolution: Mutex<Resolution>,
    resolved: Condvar,
}

/// How the kernel finds the way to a peer.
#[derive(Debug, Default)]
struct Resolution {
    /// It waits for [`Kernel::resolve`].
    is_slow: bool,
    waiting: usize,
    resolved: usize,
}

#[derive(Debug, Default)]
struct State {
    next: u32,
    used: u64,
    objects: BTreeMap<u32, Object>,
    refuse: VecDeque<(&'static str, Errno)>,
    log: Vec<&'static str>,
    /// By how much the ABI's version is ahead.
    newer: u32,
    events: VecDeque<abi::Event>,
    /// The other end of the kernel's `event_file`.
    teller: Option<UnixStream>,
    /// The device was removed.
    gone: bool,
    /// Requests that the next SUBMIT posts before the device refuses.
    stumble: Option<u32>,
    /// The second GID, if it is not that of [`gids`].
    address: Option<[u8; 16]>,
    /// Bytes under one key, if not [`KEY_BYTES`].
    key_bytes: Option<u64>,
    /// Peers that ask to connect.
    asking: u32,
    /// The peer of the next ACCEPT, if it confirms the connection.
    peer: Option<Peer>,
}

/// What a peer of the connection manager does once it has confirmed the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Stays,
    HangsUp,
}

/// Where the first byte of something is.
#[derive(Clone, Debug)]
enum Place {
    /// In a file: that of all buffers and rings, or a dma-buf.
    File(Arc<std::fs::File>, u64),
    /// In this process.
    Process(u64),
}

impl Place {
    fn plus(&self, offset: u64) -> Self {
        match self {
            Self::File(file, at) => Self::File(file.clone(), at + offset),
            Self::Process(at) => Self::Process(at + offset),
        }
    }
}

#[derive(Debug)]
enum Object {
    Pd,
    Cq(Cq),
    Qp(Box<Qp>),
    Ah {
        pd: u32,
        attr: abi::AhAttr,
    },
    Srq(Srq),
    /// A listener, or an attempt to connect, with the queue pair that ACCEPT connected, or 0.
    Cm {
        qp: u32,
    },
    Buffer(Memory),
    Grant(Grant),
}

#[derive(Debug)]
struct Memory {
    place: Place,
    len: u64,
    pd: u32,
    kind: u32,
    flags: u32,
}

#[derive(Debug)]
struct Grant {
    arg: abi::GrantCreate,
    place: Place,
    state: u32,
}

#[derive(Debug)]
struct Cq {
    at: u64,
    producer: Producer,
    reserved: u32,
    eventfd: Option<std::fs::File>,
}

type Recvs = VecDeque<Recv>;

#[derive(Debug)]
struct Recv {
    wr: abi::Wr,
    sges: Vec<abi::Sge>,
    end: Option<Instant>,
    /// It has timed out or was canceled, and takes a message all the same.
    over: bool,
}

impl Recv {
    fn new(wr: abi::Wr, sges: Vec<abi::Sge>) -> Self {
        let timed = wr.flags & abi::REQUEST_TIMEOUT != 0;
        let timeout = timed.then(|| Duration::from_nanos(wr.timeout_ns));
        Self {
            wr,
            sges,
            end: timeout.and_then(|timeout| Instant::now().checked_add(timeout)),
            over: false,
        }
    }

    /// What it says when it has come to nothing.
    fn failed(&self, queue: u32, qp_num: u32, status: u16) -> abi::Cqe {
        abi::Cqe {
            user_data: self.wr.user_data,
            qp: queue,
            qp_num,
            opcode: abi::WC_RECV,
            status,
            ..abi::Cqe::default()
        }
    }
}

#[derive(Debug)]
struct Qp {
    arg: abi::QpCreate,
    attr: abi::QpAttr,
    recvs: Recvs,
}

#[derive(Debug)]
struct Srq {
    arg: abi::SrqCreate,
    limit: u32,
    recvs: Recvs,
}

/// An index of a ring.
struct Index<'a>(&'a std::fs::File, u64);

impl SharedIndex for Index<'_> {
    fn load_acquire(&self) -> u32 {
        let mut bytes = [0; 4];
        self.0.read_exact_at(&mut bytes, self.1).unwrap();
        u32::from_ne_bytes(bytes)
    }

    fn store_release(&self, value: u32) {
        self.0.write_all_at(&value.to_ne_bytes(), self.1).unwrap();
    }
}

const HEAD: u64 = std::mem::offset_of!(abi::CqRing, head) as u64;
const TAIL: u64 = std::mem::offset_of!(abi::CqRing, tail) as u64;
const FLAGS: u64 = std::mem::offset_of!(abi::CqRing, flags) as u64;
const DROPPED: u64 = std::mem::offset_of!(abi::CqRing, dropped) as u64;

/// Numbers, one after the other.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (head, tail) = self.0.split_first_chunk().unwrap();
        self.0 = tail;
        *head
    }

    fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }

    fn sge(&mut self) -> abi::Sge {
        abi::Sge {
            buffer: self.u32(),
            length: self.u32(),
            offset: self.u64(),
        }
    }

    fn wr(&mut self) -> abi::Wr {
        abi::Wr {
            user_data: self.u64(),
            qp: self.u32(),
            opcode: self.take::<1>()[0],
            num_sge: self.take::<1>()[0],
            flags: u16::from_ne_bytes(self.take()),
            remote_addr: self.u64(),
            rkey: self.u32(),
            imm_data: self.u32(),
            sge: self.sge(),
            args: abi::WrAtomic {
                compare_add: self.u64(),
                swap: self.u64(),
            }
            .into(),
            timeout_ns: self.u64(),
        }
    }
}

fn name(text: &str) -> [u8; abi::NAME_MAX] {
    let mut bytes = [0; abi::NAME_MAX];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    bytes
}

/// The GIDs of port 1: link-local, then IPv4.
fn gids() -> [abi::GidEntry; 2] {
    let mut ifname = [0; 16];
    ifname[..4].copy_from_slice(b"eth0");
    let entry = |index, gid, flags| abi::GidEntry {
        gid,
        index,
        ifindex: 2,
        gid_type: abi::GID_ROCE_V2,
        flags: flags | abi::GID_LOCAL_NET,
        ifname,
    };
    let mut local = [0; 16];
    (local[0], local[1], local[15]) = (0xfe, 0x80, 1);
    let ipv4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, 1];
    [
        entry(0, local, abi::GID_LINK_LOCAL),
        entry(1, ipv4, abi::GID_IPV4 | abi::GID_PREFERRED),
    ]
}

/// What stands before a datagram that came here: IPv4, from the second GID to itself.
fn grh() -> Vec<u8> {
    let mut bytes = vec![0; 40];
    bytes[20] = 0x45;
    bytes[28] = 64;
    bytes[32..36].copy_from_slice(&gids()[1].gid[12..]);
    bytes[36..40].copy_from_slice(&gids()[1].gid[12..]);
    bytes
}

impl Kernel {
    pub(crate) fn new() -> Arc<Self> {
        let memory = nix::sys::memfd::memfd_create(c"fake", nix::sys::memfd::MFdFlags::MFD_CLOEXEC);
        let process = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open("/proc/self/mem");
        let (event_file, teller) = UnixStream::pair().unwrap();
        for end in [&event_file, &teller] {
            end.set_nonblocking(true).unwrap();
        }
        Arc::new(Self {
            memory: Arc::new(memory.unwrap().into()),
            process: process.unwrap(),
            event_file,
            state: Mutex::new(State {
                teller: Some(teller),
                ..State::default()
            }),
            resolution: Mutex::default(),
            resolved: Condvar::new(),
        })
    }

    /// The device, opened.
    pub(crate) fn device(self: &Arc<Self>) -> Device {
        Device::attach(self.file(), "").unwrap()
    }

    pub(crate) fn file(self: &Arc<Self>) -> File {
        File::fake(self.clone(), self.memory.try_clone().unwrap().into())
    }

    /// The next command of this name fails.
    pub(crate) fn refuse(&self, name: &'static str, errno: Errno) {
        lock(&self.state).refuse.push_back((name, errno));
    }

    /// From now on this is a kernel of another version.
    pub(crate) fn upgrade(&self) {
        lock(&self.state).newer = 1;
    }

    /// The commands since the last look.
    pub(crate) fn log(&self) -> Vec<&'static str> {
        std::mem::take(&mut lock(&self.state).log)
    }

    /// Objects that there are.
    pub(crate) fn objects(&self) -> usize {
        lock(&self.state).objects.len()
    }

    /// Writes into the ring number `n` what a kernel would not, or what only a failed one would.
    fn scribble(&self, n: usize, offset: u64, value: u32) {
        let state = lock(&self.state);
        let mut rings = state.objects.values().filter_map(|object| match object {
            Object::Cq(cq) => Some(cq.at),
            _ => None,
        });
        let at = rings.nth(n).unwrap() + offset;
        self.memory.write_all_at(&value.to_ne_bytes(), at).unwrap();
    }

    pub(crate) fn set_tail(&self, tail: u32) {
        self.scribble(0, TAIL, tail);
    }

    pub(crate) fn set_flags(&self, flags: u32, dropped: u32) {
        self.set_flags_of(0, flags, dropped);
    }

    pub(crate) fn set_flags_of(&self, n: usize, flags: u32, dropped: u32) {
        self.scribble(n, DROPPED, dropped);
        self.scribble(n, FLAGS, flags);
    }

    /// From now on a command that needs the way to a peer sleeps until [`Self::resolve`].
    pub(crate) fn resolve_slowly(&self) {
        lock(&self.resolution).is_slow = true;
    }

    /// Returns how many commands wait for a [`Self::resolve`].
    pub(crate) fn resolving(&self) -> usize {
        let resolution = lock(&self.resolution);
        resolution.waiting.saturating_sub(resolution.resolved)
    }

    /// The way for one of the commands is found.
    pub(crate) fn resolve(&self) {
        lock(&self.resolution).resolved += 1;
        self.resolved.notify_all();
    }

    /// Finds the way to a peer, or does not within the time of any test.
    fn find_way(&self) -> Result<(), Errno> {
        let mut resolution = lock(&self.resolution);
        if !resolution.is_slow {
            return Ok(());
        }
        resolution.waiting += 1;
        let patience = Duration::from_secs(100);
        let waits = |it: &mut Resolution| it.resolved == 0;
        let waited = self
            .resolved
            .wait_timeout_while(resolution, patience, waits);
        let (mut resolution, waited) = waited.unwrap();
        resolution.waiting -= 1;
        if waited.timed_out() {
            return Err(Errno::ETIMEDOUT);
        }
        resolution.resolved -= 1;
        Ok(())
    }

    /// A peer asks to connect to the listener.
    pub(crate) fn ask(&self) {
        let mut state = lock(&self.state);
        state.asking += 1;
        let waiting = state.asking;
        state.happen(abi::EVENT_CONNECT_REQUEST, 0, waiting);
    }

    /// The peer of the next request that is accepted confirms the connection.
    pub(crate) fn confirm(&self, peer: Peer) {
        lock(&self.state).peer = Some(peer);
    }

    /// Something happens.
    pub(crate) fn happen(&self, event: abi::Event) {
        lock(&self.state).tell(event);
    }

    /// The device refuses the request after so many of the next SUBMIT.
    pub(crate) fn stumble(&self, after: u32) {
        lock(&self.state).stumble = Some(after);
    }

    /// From now on the port has this address.
    pub(crate) fn set_address(&self, gid: [u8; 16]) {
        lock(&self.state).address = Some(gid);
    }

    /// From now on the device puts so many bytes under one key.
    pub(crate) fn set_key_bytes(&self, bytes: u64) {
        lock(&self.state).key_bytes = Some(bytes);
    }

    /// The device goes.
    pub(crate) fn remove(&self) {
        let mut state = lock(&self.state);
        state.gone = true;
        for object in state.objects.values_mut() {
            if let Object::Cq(cq) = object {
                let at = cq.at + FLAGS;
                self.memory
                    .write_all_at(&abi::CQ_DEAD.to_ne_bytes(), at)
                    .unwrap();
                cq.signal();
            }
        }
        state.happen(abi::EVENT_DEVICE_REMOVED, 0, 0);
        if let Some(teller) = &state.teller {
            teller.shutdown(Shutdown::Both).unwrap();
        }
    }

    /// Completes something that nobody asked for, on the ring number 0.
    pub(crate) fn complete(&self, cqe: abi::Cqe) {
        let mut state = lock(&self.state);
        let cq = state
            .objects
            .iter()
            .find_map(|(handle, object)| match object {
                Object::Cq(_) => Some(*handle),
                _ => None,
            });
        self.push(&mut state, cq.unwrap(), &cqe);
    }

    fn control(&self, state: &mut State, arg: &mut dyn Any) -> Result<(), Errno> {
        macro_rules! commands {
            ($($ty:ident => |$arg:ident| $body:expr;)*) => { $(
                if let Some($arg) = arg.downcast_mut::<abi::$ty>() {
                    assert_eq!($arg.size, abi::$ty::SIZE);
                    return $body;
                }
            )* };
        }
        commands! {
            Query => |arg| {
                arg.abi_version = abi::ABI_VERSION + state.newer;
                arg.max_objects = 1 << 16;
                arg.max_entries = 1 << 16;
                arg.max_buffer = 1 << 26;
                (arg.max_batch, arg.max_cq_entries) = (64, 1 << 15);
                (arg.max_queue_depth, arg.max_sge, arg.max_inline) = (4096, 16, 256);
                Ok(())
            };
            DeviceList => |arg| {
                assert_eq!(arg.entry_size, abi::DeviceEntry::SIZE);
                // More than the first array of the crate has room for.
                arg.count = 20;
                for i in 0..arg.count.min(arg.capacity) {
                    let mut bytes = name(&format!("fake{i}")).to_vec();
                    bytes.extend([7; 8]);
                    for n in [i, u32::from(i == 0), 1, 0] {
                        bytes.extend(n.to_ne_bytes());
                    }
                    self.poke(arg.entries + u64::from(i) * bytes.len() as u64, &bytes)?;
                }
                Ok(())
            };
            Attach => |arg| {
                if arg.name != [0; abi::NAME_MAX] && arg.name != name("fake0") {
                    return Err(Errno::ENOENT);
                }
                arg.name = name("fake0");
                (arg.phys_ports, arg.port, arg.gid_index) = (1, 1, 1);
                Ok(())
            };
            DeviceQuery => |arg| {
                arg.name = name("fake0");
                arg.rc_send_ops = 0b10_0111_1111;
                (arg.uc_send_ops, arg.ud_send_ops) = (0b1111, 0b1100);
                (arg.max_srq, arg.max_srq_wr) = (16, 1024);
                (arg.phys_ports, arg.num_comp_vectors) = (1, 1);
                (arg.max_qp_wr, arg.max_send_sge, arg.max_recv_sge) = (1024, 8, 8);
                (arg.max_qp_rd_atom, arg.max_qp_init_rd_atom) = (128, 12);
                arg.caps = abi::CAP_VIRT_DMA;
                arg.atomic_cap = abi::ATOMIC_GLOB;
                Ok(())
            };
            PortQuery => |arg| {
                if arg.port != 1 {
                    return Err(Errno::ENOENT);
                }
                (arg.max_mtu, arg.active_mtu) = (4096, 1024);
                arg.state = 4;
                arg.link_layer = abi::LINK_ETHERNET;
                Ok(())
            };
            GidQuery => |arg| {
                assert_eq!(arg.entry_size, abi::GidEntry::SIZE);
                if arg.port != 1 {
                    return Err(Errno::ENOENT);
                }
                arg.count = 2;
                let mut gids = gids();
                if let Some(address) = state.address {
                    gids[1].gid = address;
                }
                for (i, gid) in gids.iter().enumerate().take(arg.capacity as usize) {
                    let mut bytes = gid.gid.to_vec();
                    for n in [gid.index, gid.ifindex, gid.gid_type, gid.flags] {
                        bytes.extend(n.to_ne_bytes());
                    }
                    bytes.extend(gid.ifname);
                    self.poke(arg.entries + (i * bytes.len()) as u64, &bytes)?;
                }
                Ok(())
            };
            PkeyQuery => |arg| {
                arg.pkey = 0xffff;
                if arg.index == 0 { Ok(()) } else { Err(Errno::ENOENT) }
            };
            PdCreate => |arg| {
                arg.handle = state.add(Object::Pd);
                Ok(())
            };
            CqCreate => |arg| {
                if arg.entries == 0 || arg.entries > 1 << 15 {
                    return Err(Errno::ERANGE);
                }
                arg.entries = arg.entries.next_power_of_two();
                arg.mmap_size = PAGE + u64::from(arg.entries * abi::Cqe::SIZE);
                arg.mmap_offset = self.allocate(state, arg.mmap_size);
                arg.delivery = arg.delivery.max(1);
                arg.handle = state.add(Object::Cq(Cq {
                    at: arg.mmap_offset,
                    producer: Producer::new(arg.entries),
                    reserved: 0,
                    eventfd: None,
                }));
                Ok(())
            };
            QpCreate => |arg| {
                state.pd(arg.pd)?;
                state.cq(arg.send_cq)?;
                state.cq(arg.recv_cq)?;
                if arg.max_send_wr > 1024 || arg.max_recv_wr > 1024 {
                    return Err(Errno::ERANGE);
                }
                if arg.srq != 0 {
                    if state.srq(arg.srq)?.arg.cq != arg.recv_cq {
                        return Err(Errno::EXDEV);
                    }
                    if (arg.max_recv_wr, arg.max_recv_sge) != (0, 0) {
                        return Err(Errno::ERANGE);
                    }
                }
                arg.qp_num = state.next + 0x100;
                let (attr, recvs) = (abi::QpAttr::default(), VecDeque::new());
                arg.handle = state.add(Object::Qp(Box::new(Qp { arg: *arg, attr, recvs })));
                Ok(())
            };
            QpModify => |arg| {
                state.qp(arg.qp)?.modify(arg)?;
                let over = [abi::QPS_ERR, abi::QPS_RESET].contains(&arg.attr.qp_state);
                if over && arg.attr_mask & abi::QP_STATE != 0 {
                    state.expire(arg.qp);
                    self.flush(state, arg.qp);
                }
                Ok(())
            };
            QpQuery => |arg| {
                let qp = state.qp(arg.qp)?;
                (arg.qp_num, arg.qp_type, arg.attr) = (qp.arg.qp_num, qp.arg.qp_type, qp.attr);
                (arg.max_send_wr, arg.max_recv_wr) = (qp.arg.max_send_wr, qp.arg.max_recv_wr);
                (arg.max_send_sge, arg.max_recv_sge) = (qp.arg.max_send_sge, qp.arg.max_recv_sge);
                (arg.max_inline, arg.recvs_in_flight) = (qp.arg.max_inline, qp.recvs.len() as u32);
                Ok(())
            };
            BufferCreate => |arg| {
                state.pd(arg.pd)?;
                if arg.length == 0 {
                    return Err(Errno::ERANGE);
                }
                arg.length = arg.length.next_multiple_of(PAGE);
                (arg.page_size, arg.node) = (PAGE as u32, 0);
                arg.mmap_offset = self.allocate(state, arg.length);
                let place = Place::File(self.memory.clone(), arg.mmap_offset);
                arg.handle = state.memory(place, arg.length, arg.pd, abi::BUFFER_PAGES, 0);
                (arg.key_bytes, arg.keys) = state.keys(arg.length);
                Ok(())
            };
            BufferRegister => |arg| {
                state.pd(arg.pd)?;
                assert_eq!(arg.flags & !abi::BUFFER_READ_ONLY, 0);
                if arg.length == 0 {
                    return Err(Errno::ERANGE);
                }
                self.peek(arg.addr, arg.length as usize)?;
                let place = Place::Process(arg.addr);
                arg.handle = state.memory(place, arg.length, arg.pd, abi::BUFFER_USER, arg.flags);
                (arg.key_bytes, arg.keys) = state.keys(arg.length);
                arg.page_size = PAGE as u32;
                Ok(())
            };
            BufferImport => |arg| {
                state.pd(arg.pd)?;
                assert_eq!(arg.flags & !abi::BUFFER_READ_ONLY, 0);
                // A memfd of this process plays the dma-buf.
                let path = format!("/proc/self/fd/{}", arg.fd);
                let name = std::fs::read_link(&path).map_err(|_| Errno::EBADF)?;
                if !name.to_string_lossy().contains("memfd:dmabuf") || arg.offset % PAGE != 0 {
                    return Err(Errno::EINVAL);
                }
                let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
                let there = file.metadata().unwrap().len();
                if arg.length == 0 {
                    arg.length = there.saturating_sub(arg.offset);
                }
                if arg.length == 0 || arg.offset + arg.length > there {
                    return Err(Errno::ERANGE);
                }
                let place = Place::File(Arc::new(file), arg.offset);
                arg.handle = state.memory(place, arg.length, arg.pd, abi::BUFFER_DMABUF, arg.flags);
                (arg.key_bytes, arg.keys) = state.keys(arg.length);
                arg.page_size = PAGE as u32;
                Ok(())
            };
            BufferQuery => |arg| {
                let grants = state.objects.values().filter(|object| match object {
                    Object::Grant(grant) => grant.arg.buffer == arg.buffer,
                    _ => false,
                });
                arg.grants = grants.count() as u32;
                let memory = state.buffer(arg.buffer)?;
                (arg.kind, arg.buffer_flags, arg.length) = (memory.kind, memory.flags, memory.len);
                arg.charged = memory.len.next_multiple_of(PAGE);
                (arg.page_size, arg.node) = (PAGE as u32, 0);
                (arg.key_bytes, arg.keys) = state.keys(arg.length);
                Ok(())
            };
            GrantCreate => |arg| {
                let memory = state.buffer(arg.buffer)?;
                let (place, len) = (memory.place.plus(arg.offset), memory.len);
                if arg.access == 0 || arg.access & !0xe != 0 {
                    return Err(Errno::EINVAL);
                }
                if arg.qp != 0 {
                    state.qp(arg.qp)?;
                } else if arg.flags & abi::GRANT_ONE_SHOT_INV != 0 {
                    return Err(Errno::EINVAL);
                }
                if arg.length == 0 || arg.offset + arg.length > len {
                    return Err(Errno::ERANGE);
                }
                let most = state.keys(len).0;
                if arg.flags & abi::GRANT_PARTIAL != 0 {
                    arg.length = arg.length.min(most);
                } else if arg.length > most {
                    return Err(Errno::ERANGE);
                }
                arg.addr = ADDRESS + u64::from(state.next) * (1 << 32) + arg.offset;
                arg.rkey = (state.next + 1) << 8;
                let grant = Grant { arg: *arg, place, state: abi::GRANT_ACTIVE };
                arg.handle = state.add(Object::Grant(grant));
                Ok(())
            };
            GrantQuery => |arg| {
                let grant = state.grant(arg.grant)?;
                let of = &grant.arg;
                let active = grant.state == abi::GRANT_ACTIVE;
                // A later module may have more flags.
                arg.grant_flags = (of.flags & abi::GRANT_ONE_SHOT_INV) | (1 << 31);
                arg.state = grant.state;
                (arg.buffer, arg.qp, arg.offset) = (of.buffer, of.qp, of.offset);
                (arg.length, arg.addr, arg.access) = (of.length, of.addr, of.access);
                arg.rkey = if active { of.rkey } else { 0 };
                Ok(())
            };
            AhCreate => |arg| {
                state.pd(arg.pd)?;
                if arg.attr.port_num != 1 || arg.attr.sgid_index > 1 {
                    return Err(Errno::ENOENT);
                }
                if arg.attr.dgid == [0; 16] {
                    return Err(Errno::EHOSTUNREACH);
                }
                if arg.attr.hop_limit == 0 {
                    arg.attr.hop_limit = 64;
                }
                let (pd, attr) = (arg.pd, arg.attr);
                arg.handle = state.add(Object::Ah { pd, attr });
                Ok(())
            };
            Cancel => |arg| {
                if arg.flags & !abi::CANCEL_ALL != 0 || (arg.flags != 0 && arg.user_data != 0) {
                    return Err(Errno::EINVAL);
                }
                let (all, wr_id) = (arg.flags != 0, arg.user_data);
                let which = |recv: &Recv| all || recv.wr.user_data == wr_id;
                let status = abi::WC_STATUS_CANCELED;
                arg.canceled = self.give_up(state, arg.queue, status, which)?;
                Ok(())
            };
            CqEventfd => |arg| {
                let cq = state.cq(arg.cq)?;
                if arg.fd == -1 {
                    cq.eventfd = None;
                    return Ok(());
                }
                if cq.eventfd.is_some() {
                    return Err(Errno::EBUSY);
                }
                let fd = look_up(arg.fd)?;
                let path = format!("/proc/self/fd/{}", arg.fd);
                let name = std::fs::read_link(path).unwrap();
                if name.to_str() != Some("anon_inode:[eventfd]") {
                    return Err(Errno::EINVAL);
                }
                cq.eventfd = Some(fd.into());
                Ok(())
            };
            SrqCreate => |arg| {
                state.pd(arg.pd)?;
                state.cq(arg.cq)?;
                if arg.max_wr > 1024 || arg.max_sge > 8 || arg.limit > arg.max_wr {
                    return Err(Errno::ERANGE);
                }
                let recvs = VecDeque::new();
                arg.handle = state.add(Object::Srq(Srq { arg: *arg, limit: arg.limit, recvs }));
                Ok(())
            };
            SrqModify => |arg| {
                let srq = state.srq(arg.srq)?;
                if arg.limit > srq.arg.max_wr {
                    return Err(Errno::ERANGE);
                }
                srq.limit = arg.limit;
                Ok(())
            };
            SrqQuery => |arg| {
                let srq = state.srq(arg.srq)?;
                (arg.max_wr, arg.max_sge) = (srq.arg.max_wr, srq.arg.max_sge);
                (arg.limit, arg.recvs_in_flight) = (srq.limit, srq.recvs.len() as u32);
                Ok(())
            };
            Listen => |arg| {
                arg.handle = state.add(Object::Cm { qp: 0 });
                Ok(())
            };
            Connect => |arg| {
                arg.handle = state.add(Object::Cm { qp: 0 });
                Ok(())
            };
            GetRequest => |arg| {
                state.asking = state.asking.checked_sub(1).ok_or(Errno::ETIME)?;
                arg.handle = state.add(Object::Cm { qp: 0 });
                Ok(())
            };
            Accept => |arg| {
                state.conn(arg.request)?;
                state.qp(arg.qp)?;
                let Some(peer) = state.peer.take() else {
                    return Ok(());
                };
                state.objects.insert(arg.request, Object::Cm { qp: arg.qp });
                let qp = state.qp(arg.qp)?;
                qp.attr.qp_state = abi::QPS_RTS;
                (qp.attr.dest_qp_num, qp.attr.ah.dgid) = (7, gids()[1].gid);
                state.happen(abi::EVENT_ESTABLISHED, arg.request, 0);
                if peer == Peer::HangsUp {
                    state.qp(arg.qp)?.attr.qp_state = abi::QPS_ERR;
                    self.flush(state, arg.qp);
                    state.happen(abi::EVENT_DISCONNECTED, arg.request, 0);
                }
                Ok(())
            };
            ConnWait => |arg| match state.conn(arg.conn)? {
                0 => Err(Errno::ETIME),
                qp => {
                    arg.peer_qp_num = state.qp(qp)?.attr.dest_qp_num;
                    arg.agreed.path_mtu = 3;
                    Ok(())
                }
            };
            ConnQuery => |arg| {
                let qp = state.conn(arg.conn)?;
                arg.state = match state.qp(qp) {
                    Ok(qp) if qp.attr.qp_state == abi::QPS_ERR => abi::CONN_DISCONNECTED,
                    Ok(_) => abi::CONN_ESTABLISHED,
                    Err(_) => abi::CONN_CONNECTING,
                };
                arg.qp = qp;
                Ok(())
            };
            Destroy => |arg| {
                let needed = state.objects.values().any(|object| match object {
                    Object::Pd | Object::Cq(_) => false,
                    Object::Cm { qp } => *qp == arg.handle,
                    Object::Qp(qp) => {
                        let arg_of = &qp.arg;
                        let needs = [arg_of.pd, arg_of.send_cq, arg_of.recv_cq, arg_of.srq];
                        needs.contains(&arg.handle)
                    }
                    Object::Ah { pd, .. } => *pd == arg.handle,
                    Object::Srq(srq) => [srq.arg.pd, srq.arg.cq].contains(&arg.handle),
                    Object::Buffer(memory) => memory.pd == arg.handle,
                    Object::Grant(grant) => grant.arg.buffer == arg.handle,
                });
                if needed {
                    return Err(Errno::EBUSY);
                }
                state.expire(arg.handle);
                state.objects.remove(&arg.handle).map(drop).ok_or(Errno::ENOENT)
            };
        }
        Err(Errno::ENOTTY)
    }

    fn allocate(&self, state: &mut State, len: u64) -> u64 {
        let at = state.used;
        state.used += len.next_multiple_of(PAGE);
        self.memory.set_len(state.used).unwrap();
        at
    }

    fn peek(&self, addr: u64, len: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; len];
        let read = self.process.read_exact_at(&mut bytes, addr);
        read.map_err(|_| Errno::EFAULT)?;
        Ok(bytes)
    }

    fn poke(&self, addr: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.process
            .write_all_at(bytes, addr)
            .map_err(|_| Errno::EFAULT)
    }

    fn submit(&self, arg: &mut abi::Submit) -> Result<(), Errno> {
        assert_eq!(arg.size, abi::Submit::SIZE);
        assert_eq!(arg.wr_size, abi::Wr::SIZE);
        let mut state = lock(&self.state);
        let bytes = self.peek(arg.wrs, arg.nr_wrs as usize * arg.wr_size as usize)?;
        let mut fields = Fields(&bytes);
        let stumble = state.stumble.take().unwrap_or(u32::MAX);
        for index in 0..arg.nr_wrs {
            let wr = fields.wr();
            let posted = match index == stumble {
                true => Err(Errno::EIO),
                false => self.post(&mut state, wr),
            };
            match posted {
                Ok(()) => arg.posted = index + 1,
                Err(errno) => {
                    arg.stop_error = -(errno as i32);
                    if errno != Errno::EAGAIN || index == 0 {
                        return Err(errno);
                    }
                    break;
                }
            }
        }
        drop(state);
        if arg.cq == 0 {
            return Ok(());
        }
        let end = Instant::now() + Duration::from_nanos(arg.timeout_ns);
        loop {
            let mut state = lock(&self.state);
            self.tick(&mut state);
            let cq = state.cq(arg.cq)?;
            arg.completed = cq.producer.refresh(&Index(&self.memory, cq.at + HEAD));
            if arg.completed >= arg.min_complete {
                return Ok(());
            }
            if Index(&self.memory, cq.at + FLAGS).load_acquire() & abi::CQ_ERROR != 0 {
                arg.wait_error = -(Errno::EIO as i32);
                return Ok(());
            }
            drop(state);
            if Instant::now() >= end {
                arg.wait_error = -(Errno::ETIME as i32);
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn elements(&self, wr: &abi::Wr) -> Result<Vec<abi::Sge>, Errno> {
        match wr.num_sge {
            0 => Ok(Vec::new()),
            1 => Ok(vec![wr.sge]),
            n => {
                assert_eq!((wr.sge.buffer, wr.sge.length), (0, 0));
                let bytes = self.peek(wr.sge.offset, usize::from(n) * abi::Sge::SIZE as usize)?;
                let mut fields = Fields(&bytes);
                Ok((0..n).map(|_| fields.sge()).collect())
            }
        }
    }

    fn gather(&self, state: &State, sges: &[abi::Sge]) -> Result<Vec<u8>, Errno> {
        let mut data = Vec::new();
        for sge in sges {
            if sge.buffer == 0 {
                data.extend(self.peek(sge.offset, sge.length as usize)?);
                continue;
            }
            let memory = state.buffer(sge.buffer)?;
            if sge.offset + u64::from(sge.length) > memory.len {
                return Err(Errno::ERANGE);
            }
            data.extend(self.read(&memory.place.plus(sge.offset), sge.length as usize));
        }
        Ok(data)
    }

    fn scatter(&self, state: &State, sges: &[abi::Sge], mut data: &[u8]) -> Result<(), Errno> {
        for sge in sges {
            let memory = state.buffer(sge.buffer)?;
            let (head, tail) = data.split_at(data.len().min(sge.length as usize));
            self.write(&memory.place.plus(sge.offset), head);
            data = tail;
        }
        if data.is_empty() {
            Ok(())
        } else {
            Err(Errno::EMSGSIZE)
        }
    }

    fn read(&self, place: &Place, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        match place {
            Place::File(file, at) => file.read_exact_at(&mut bytes, *at).unwrap(),
            Place::Process(at) => bytes = self.peek(*at, len).unwrap(),
        }
        bytes
    }

    fn write(&self, place: &Place, bytes: &[u8]) {
        match place {
            Place::File(file, at) => file.write_all_at(bytes, *at).unwrap(),
            Place::Process(at) => self.poke(*at, bytes).unwrap(),
        }
    }

    /// Where `len` bytes of the peer stand, if it granted them.
    fn remote(&self, state: &State, wr: &abi::Wr, len: u64, needed: u32) -> Option<Place> {
        match state.objects.get(&(wr.rkey >> 8)) {
            Some(Object::Grant(grant))
                if grant.state == abi::GRANT_ACTIVE
                    && grant.arg.rkey == wr.rkey
                    && grant.arg.access & needed != 0 =>
            {
                let from = wr.remote_addr.checked_sub(grant.arg.addr)?;
                (from.checked_add(len)? <= grant.arg.length).then(|| grant.place.plus(from))
            }
            _ => None,
        }
    }

    fn post(&self, state: &mut State, wr: abi::Wr) -> Result<(), Errno> {
        let sges = self.elements(&wr)?;
        let recv = wr.opcode == abi::WR_RECV;
        let timed = wr.flags & abi::REQUEST_TIMEOUT != 0;
        assert_eq!(timed, wr.timeout_ns != 0, "the kernel refuses these");
        if let (true, Ok(srq)) = (recv, state.srq(wr.qp)) {
            if srq.recvs.len() as u32 >= srq.arg.max_wr {
                return Err(Errno::EAGAIN);
            }
            let cq = srq.arg.cq;
            self.reserve(state, cq)?;
            state.srq(wr.qp)?.recvs.push_back(Recv::new(wr, sges));
            return Ok(());
        }
        let qp = state.qp(wr.qp)?;
        let (create, qp_state) = (qp.arg, qp.attr.qp_state);
        let needed = if recv { abi::QPS_INIT } else { abi::QPS_RTS };
        if qp_state < needed {
            return Err(Errno::ENOTCONN);
        }
        let flushed = qp_state == abi::QPS_ERR;
        if recv {
            assert_eq!(create.srq, 0, "the crate refuses these");
            self.reserve(state, create.recv_cq)?;
            let recv = Recv::new(wr, sges);
            if flushed {
                let cqe = recv.failed(wr.qp, create.qp_num, FLUSHED);
                self.push(state, create.recv_cq, &cqe);
            } else {
                state.qp(wr.qp)?.recvs.push_back(recv);
            }
            return Ok(());
        }
        let data = self.gather(state, &sges)?;
        let unreliable = create.qp_type != abi::QPT_RC;
        let peer = match create.qp_type {
            abi::QPT_UD => {
                if data.len() > 1024 {
                    return Err(Errno::EMSGSIZE);
                }
                let to = abi::WrUd::from(wr.args);
                let ah = match state.objects.get(&to.ah) {
                    Some(Object::Ah { attr, .. }) => *attr,
                    Some(_) => return Err(Errno::EBADFD),
                    None => return Err(Errno::ENOENT),
                };
                state.with_number(to.qp_num).filter(|qp| {
                    let qkey = state.qp(*qp).map(|qp| qp.attr.qkey);
                    gids().iter().any(|gid| gid.gid == ah.dgid) && qkey == Ok(to.qkey)
                })
            }
            _ => state.peer(wr.qp),
        };
        self.reserve(state, create.send_cq)?;
        let mut cqe = abi::Cqe {
            user_data: wr.user_data,
            qp: wr.qp,
            qp_num: create.qp_num,
            ..abi::Cqe::default()
        };
        if flushed {
            cqe.status = FLUSHED;
            self.push(state, create.send_cq, &cqe);
            return Ok(());
        }
        let atomic = |f: &dyn Fn(u64) -> u64, cqe: &mut abi::Cqe| {
            let at = self.remote(state, &wr, 8, abi::ACCESS_REMOTE_ATOMIC)?;
            let old: [u8; 8] = self.read(&at, 8).try_into().unwrap();
            self.write(&at, &f(u64::from_ne_bytes(old)).to_ne_bytes());
            self.scatter(state, &sges, &old).ok()?;
            cqe.byte_len = 8;
            Some(())
        };
        let len = data.len() as u64;
        let abi::WrAtomic { compare_add, swap } = wr.args.into();
        let done = match wr.opcode {
            abi::WR_RDMA_WRITE | abi::WR_RDMA_WRITE_WITH_IMM => {
                cqe.opcode = abi::WC_RDMA_WRITE;
                self.remote(state, &wr, len, abi::ACCESS_REMOTE_WRITE)
                    .map(|at| self.write(&at, &data))
            }
            abi::WR_RDMA_READ => {
                (cqe.opcode, cqe.byte_len) = (abi::WC_RDMA_READ, data.len() as u32);
                self.remote(state, &wr, len, abi::ACCESS_REMOTE_READ)
                    .map(|at| {
                        let bytes = self.read(&at, data.len());
                        self.scatter(state, &sges, &bytes).unwrap();
                    })
            }
            abi::WR_ATOMIC_CMP_AND_SWP => {
                cqe.opcode = abi::WC_COMP_SWAP;
                atomic(&|old| if old == compare_add { swap } else { old }, &mut cqe)
            }
            abi::WR_ATOMIC_FETCH_AND_ADD => {
                cqe.opcode = abi::WC_FETCH_ADD;
                atomic(&|old| old.wrapping_add(compare_add), &mut cqe)
            }
            abi::WR_SEND | abi::WR_SEND_WITH_IMM => Some(()),
            abi::WR_SEND_WITH_INV => match state.objects.get_mut(&(wr.imm_data >> 8)) {
                Some(Object::Grant(grant)) if grant.arg.rkey == wr.imm_data => {
                    if grant.arg.qp != 0 && Some(grant.arg.qp) != peer {
                        None
                    } else {
                        grant.arg.access = 0;
                        Some(())
                    }
                }
                _ => None,
            },
            _ => return Err(Errno::EINVAL),
        };
        if done.is_none() && !unreliable {
            // Remote access error; the queue pair is in error from now on.
            (cqe.status, cqe.byte_len, cqe.vendor_err) = (10, 0, 0x2a);
            state.qp(wr.qp)?.attr.qp_state = abi::QPS_ERR;
            state.expire(wr.qp);
        }
        let mut taken = None;
        let imm = matches!(
            wr.opcode,
            abi::WR_RDMA_WRITE_WITH_IMM | abi::WR_SEND_WITH_IMM
        );
        let sent = matches!(wr.opcode, abi::WR_SEND | abi::WR_SEND_WITH_INV);
        if done.is_some() && (imm || sent) {
            taken = peer.and_then(|peer| state.take(peer));
            if taken.is_none() && !unreliable {
                cqe.status = 13;
            }
        }
        // What takes it was given up: it is lost.
        let taken = taken.filter(|recv| !recv.over);
        if let (Some(recv), Some(peer)) = (taken, peer) {
            let written = wr.opcode == abi::WR_RDMA_WRITE_WITH_IMM;
            let mut theirs = abi::Cqe {
                flags: if imm { abi::WC_WITH_IMM } else { 0 },
                ..abi::Cqe::default()
            };
            if wr.opcode == abi::WR_SEND_WITH_INV {
                theirs.flags |= abi::WC_WITH_INVALIDATE;
            }
            let mut message = data.clone();
            if create.qp_type == abi::QPT_UD {
                theirs.flags |= abi::WC_GRH;
                theirs.src_qp = create.qp_num;
                message = grh();
                message.extend(&data);
            }
            if !written {
                self.scatter(state, &recv.sges, &message)?;
            }
            let arg = state.qp(peer)?.arg;
            let theirs = abi::Cqe {
                user_data: recv.wr.user_data,
                qp: peer,
                qp_num: arg.qp_num,
                opcode: if written {
                    abi::WC_RECV_RDMA_WITH_IMM
                } else {
                    abi::WC_RECV
                },
                imm_data: wr.imm_data,
                byte_len: message.len() as u32,
                ..theirs
            };
            self.push(state, arg.recv_cq, &theirs);
            if wr.opcode == abi::WR_SEND_WITH_INV {
                state.used(peer, wr.imm_data);
            }
        }
        let all = create.flags & abi::QP_SIG_ALL != 0;
        if cqe.status != 0 || all || wr.flags & abi::SEND_SIGNALED != 0 {
            self.push(state, create.send_cq, &cqe);
        } else {
            state.cq(create.send_cq)?.reserved -= 1;
        }
        Ok(())
    }

    /// The receives of a queue pair come to nothing; in the state Reset without a word.
    fn flush(&self, state: &mut State, qp: u32) {
        let of = state.qp(qp).unwrap();
        let (arg, silent) = (of.arg, of.attr.qp_state == abi::QPS_RESET);
        for recv in std::mem::take(&mut of.recvs) {
            if recv.over {
                continue;
            }
            if silent {
                state.cq(arg.recv_cq).unwrap().reserved -= 1;
            } else {
                self.push(state, arg.recv_cq, &recv.failed(qp, arg.qp_num, FLUSHED));
            }
        }
    }

    /// Gives up the receives of a queue that `which` names, and says how many there were.
    fn give_up(
        &self,
        state: &mut State,
        queue: u32,
        status: u16,
        which: impl Fn(&Recv) -> bool,
    ) -> Result<u32, Errno> {
        let (recvs, cq, qp_num) = match state.objects.get_mut(&queue) {
            Some(Object::Qp(qp)) => (&mut qp.recvs, qp.arg.recv_cq, qp.arg.qp_num),
            Some(Object::Srq(srq)) => (&mut srq.recvs, srq.arg.cq, 0),
            Some(_) => return Err(Errno::EBADFD),
            None => return Err(Errno::ENOENT),
        };
        let mut told = Vec::new();
        for recv in recvs.iter_mut().filter(|recv| !recv.over && which(recv)) {
            recv.over = true;
            told.push(recv.failed(queue, qp_num, status));
        }
        for cqe in &told {
            self.push(state, cq, cqe);
        }
        Ok(told.len() as u32)
    }

    /// Time passes.
    fn tick(&self, state: &mut State) {
        let queues = state.objects.iter().filter_map(|(handle, object)| {
            let queue = matches!(object, Object::Qp(_) | Object::Srq(_));
            queue.then_some(*handle)
        });
        let now = Instant::now();
        for queue in queues.collect::<Vec<_>>() {
            let late = |recv: &Recv| recv.end.is_some_and(|end| end <= now);
            self.give_up(state, queue, abi::WC_STATUS_TIMEOUT, late)
                .unwrap();
        }
    }

    fn reserve(&self, state: &mut State, cq: u32) -> Result<(), Errno> {
        let cq = state.cq(cq)?;
        let unread = cq.producer.refresh(&Index(&self.memory, cq.at + HEAD));
        if unread + cq.reserved >= cq.producer.entries() {
            return Err(Errno::EAGAIN);
        }
        cq.reserved += 1;
        Ok(())
    }

    fn push(&self, state: &mut State, cq: u32, cqe: &abi::Cqe) {
        let qp_user_data = state.user_data(cqe.qp);
        let cq = state.cq(cq).unwrap();
        cq.reserved = cq.reserved.saturating_sub(1);
        let mut bytes = cqe.user_data.to_ne_bytes().to_vec();
        bytes.extend(qp_user_data.to_ne_bytes());
        bytes.extend(cqe.qp.to_ne_bytes());
        bytes.extend(cqe.qp_num.to_ne_bytes());
        bytes.extend(cqe.status.to_ne_bytes());
        bytes.extend([cqe.opcode, cqe.flags]);
        for n in [cqe.vendor_err, cqe.byte_len, cqe.imm_data, cqe.src_qp] {
            bytes.extend(n.to_ne_bytes());
        }
        cq.producer.refresh(&Index(&self.memory, cq.at + HEAD));
        let slot = u64::from(cq.producer.slot().unwrap());
        let at = cq.at + PAGE + slot * u64::from(abi::Cqe::SIZE);
        self.memory.write_all_at(&bytes, at).unwrap();
        cq.producer.publish(&Index(&self.memory, cq.at + TAIL));
        cq.signal();
    }
}

impl FakeKernel for Kernel {
    fn read_events(&self, out: &mut [abi::Event]) -> Result<usize, Errno> {
        let mut state = lock(&self.state);
        let n = state.events.len().min(out.len());
        for (to, from) in out.iter_mut().zip(state.events.drain(..n)) {
            *to = from;
        }
        // As the real one, the file is readable while there are events, and when the device is gone.
        if state.events.is_empty() && !state.gone {
            while matches!((&self.event_file).read(&mut [0; 64]), Ok(1..)) {}
        }
        match (n, state.gone) {
            (0, true) => Err(Errno::ENODEV),
            (0, false) => Err(Errno::EAGAIN),
            (n, _) => Ok(n),
        }
    }

    fn wait_event(&self, timeout: Duration) {
        let end = Instant::now() + timeout;
        while Instant::now() < end {
            let state = lock(&self.state);
            if !state.events.is_empty() || state.gone {
                return;
            }
            drop(state);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn is_gone(&self) -> bool {
        lock(&self.state).gone
    }

    fn event_file(&self) -> BorrowedFd<'_> {
        self.event_file.as_fd()
    }

    fn command(&self, name: &'static str, arg: &mut dyn Any) -> Result<(), Errno> {
        counting::uncounted(|| {
            if let Some(arg) = arg.downcast_ref::<abi::QpModify>() {
                if arg.attr_mask & abi::QP_AV != 0 {
                    self.find_way()?;
                }
            }
            let mut state = lock(&self.state);
            state.log.push(name);
            state.refused(name)?;
            if let Some(arg) = arg.downcast_mut::<abi::Submit>() {
                drop(state);
                return self.submit(arg);
            }
            self.control(&mut state, arg)
        })
    }
}

impl Cq {
    fn signal(&mut self) {
        if let Some(eventfd) = &mut self.eventfd {
            eventfd.write_all(&1u64.to_ne_bytes()).unwrap();
        }
    }
}

impl State {
    /// The error that a test wants of the next command `name`.
    fn refused(&mut self, name: &str) -> Result<(), Errno> {
        match self.refuse.front() {
            Some((refused, _)) if *refused == name => Err(self.refuse.pop_front().unwrap().1),
            _ => Ok(()),
        }
    }

    fn add(&mut self, object: Object) -> u32 {
        self.next += 1;
        self.objects.insert(self.next, object);
        self.next
    }

    fn pd(&self, handle: u32) -> Result<(), Errno> {
        match self.objects.get(&handle) {
            Some(Object::Pd) => Ok(()),
            Some(_) => Err(Errno::EBADFD),
            None => Err(Errno::ENOENT),
        }
    }

    fn cq(&mut self, handle: u32) -> Result<&mut Cq, Errno> {
        match self.objects.get_mut(&handle) {
            Some(Object::Cq(cq)) => Ok(cq),
            Some(_) => Err(Errno::EBADFD),
            None => Err(Errno::ENOENT),
        }
    }

    fn qp(&mut self, handle: u32) -> Result<&mut Qp, Errno> {
        match self.objects.get_mut(&handle) {
            Some(Object::Qp(qp)) => Ok(qp),
            Some(_) => Err(Errno::EBADFD),
            None => Err(Errno::ENOENT),
        }
    }

    /// The queue pair of a connection, or 0.
    fn conn(&self, handle: u32) -> Result<u32, Errno> {
        match self.objects.get(&handle) {
            Some(Object::Cm { qp }) => Ok(*qp),
            Some(_) => Err(Errno::EBADFD),
            None => Err(Errno::ENOENT),
        }
    }

    fn srq(&mut self, handle: u32) -> Result<&mut Srq, Errno> {
        match self.objects.get_mut(&handle) {
            Some(Object::Srq(srq)) => Ok(srq),
            Some(_) => Err(Errno::EBADFD),
            None => Err(Errno::ENOENT),
        }
    }

    /// The value that the maker of an object gave it.
    fn user_data(&self, handle: u32) -> u64 {
        match self.objects.get(&handle) {
            Some(Object::Qp(qp)) => qp.arg.user_data,
            Some(Object::Grant(grant)) => grant.arg.user_data,
            _ => 0,
        }
    }

    fn happen(&mut self, event: u32, handle: u32, info: u32) {
        let user_data = self.user_data(handle);
        self.tell(abi::Event {
            event,
            handle,
            info,
            user_data,
            ..abi::Event::default()
        });
    }

    fn tell(&mut self, event: abi::Event) {
        self.events.push_back(event);
        if let Some(mut teller) = self.teller.as_ref() {
            // It is full of events, or the device is gone: the file is readable in both cases.
            let _ = teller.write(&[0]);
        }
    }

    /// The first receive of a queue pair, or of its shared queue.
    fn take(&mut self, qp: u32) -> Option<Recv> {
        let handle = self.qp(qp).ok()?.arg.srq;
        if handle == 0 {
            return self.qp(qp).ok()?.recvs.pop_front();
        }
        let srq = self.srq(handle).ok()?;
        let taken = srq.recvs.pop_front();
        if (srq.recvs.len() as u32) < srq.limit {
            srq.limit = 0;
            self.happen(abi::EVENT_SRQ_LIMIT, handle, 0);
        }
        taken
    }

    fn with_number(&self, number: u32) -> Option<u32> {
        self.objects
            .iter()
            .find_map(|(handle, object)| match object {
                Object::Qp(qp) if qp.arg.qp_num == number => Some(*handle),
                _ => None,
            })
    }

    fn memory(&mut self, place: Place, len: u64, pd: u32, kind: u32, flags: u32) -> u32 {
        self.add(Object::Buffer(Memory {
            place,
            len,
            pd,
            kind,
            flags,
        }))
    }

    fn buffer(&self, handle: u32) -> Result<&Memory, Errno> {
        match self.objects.get(&handle) {
            Some(Object::Buffer(memory)) => Ok(memory),
            Some(_) => Err(Errno::EBADFD),
            None => Err(Errno::ENOENT),
        }
    }

    fn grant(&mut self, handle: u32) -> Result<&mut Grant, Errno> {
        match self.objects.get_mut(&handle) {
            Some(Object::Grant(grant)) => Ok(grant),
            Some(_) => Err(Errno::EBADFD),
            None => Err(Errno::ENOENT),
        }
    }

    /// Bytes under one key, and how many keys so many bytes take.
    fn keys(&self, len: u64) -> (u64, u32) {
        let most = self.key_bytes.unwrap_or(KEY_BYTES);
        (most, len.div_ceil(most) as u32)
    }

    /// Ends the grants that `which` names.
    fn end_grants(&mut self, how: u32, which: impl Fn(&Grant) -> bool) {
        let mut ended = Vec::new();
        for (handle, object) in &mut self.objects {
            if let Object::Grant(grant) = object {
                if grant.state == abi::GRANT_ACTIVE && which(grant) {
                    grant.state = how;
                    ended.push(*handle);
                }
            }
        }
        for handle in ended {
            self.happen(abi::EVENT_GRANT_ENDED, handle, how);
        }
    }

    /// A queue pair has ended.
    fn expire(&mut self, qp: u32) {
        self.end_grants(abi::GRANT_EXPIRED, |grant| grant.arg.qp == qp);
    }

    /// A receive of `qp` named that key.
    fn used(&mut self, qp: u32, rkey: u32) {
        self.end_grants(abi::GRANT_USED, |grant| {
            let once = grant.arg.flags & abi::GRANT_ONE_SHOT_INV != 0;
            grant.arg.qp == qp && grant.arg.rkey == rkey && once
        });
    }

    /// The handle of the queue pair that this one is connected to.
    fn peer(&self, handle: u32) -> Option<u32> {
        let Some(Object::Qp(qp)) = self.objects.get(&handle) else {
            return None;
        };
        self.with_number(qp.attr.dest_qp_num)
    }
}

impl Qp {
    fn modify(&mut self, arg: &mut abi::QpModify) -> Result<(), Errno> {
        let (mask, new) = (arg.attr_mask, &arg.attr);
        let reliable = self.arg.qp_type == abi::QPT_RC;
        let datagrams = self.arg.qp_type == abi::QPT_UD;
        let needed = match (self.attr.qp_state, new.qp_state) {
            _ if mask & abi::QP_STATE == 0 => 0,
            (_, abi::QPS_ERR | abi::QPS_RESET) => abi::QP_STATE,
            (abi::QPS_RESET, abi::QPS_INIT) => {
                let who = match self.arg.qp_type {
                    abi::QPT_UD => abi::QP_QKEY,
                    _ => abi::QP_ACCESS_FLAGS,
                };
                abi::QP_STATE | abi::QP_PKEY_INDEX | abi::QP_PORT | who
            }
            (abi::QPS_INIT, abi::QPS_RTR) if datagrams => abi::QP_STATE,
            (abi::QPS_RTR, abi::QPS_RTS) if !reliable => abi::QP_STATE | abi::QP_SQ_PSN,
            (abi::QPS_INIT, abi::QPS_RTR) if !reliable => {
                abi::QP_STATE | abi::QP_AV | abi::QP_PATH_MTU | abi::QP_DEST_QPN | abi::QP_RQ_PSN
            }
            (abi::QPS_INIT, abi::QPS_RTR) => {
                abi::QP_STATE
                    | abi::QP_AV
                    | abi::QP_PATH_MTU
                    | abi::QP_DEST_QPN
                    | abi::QP_RQ_PSN
                    | abi::QP_MAX_DEST_RD_ATOMIC
                    | abi::QP_MIN_RNR_TIMER
            }
            (abi::QPS_RTR, abi::QPS_RTS) => {
                abi::QP_STATE
                    | abi::QP_TIMEOUT
                    | abi::QP_RETRY_CNT
                    | abi::QP_RNR_RETRY
                    | abi::QP_SQ_PSN
                    | abi::QP_MAX_QP_RD_ATOMIC
            }
            _ => {
                arg.extra_mask = abi::QP_STATE;
                return Err(Errno::EPROTO);
            }
        };
        let only_reliable = abi::QP_TIMEOUT
            | abi::QP_RETRY_CNT
            | abi::QP_RNR_RETRY
            | abi::QP_MIN_RNR_TIMER
            | abi::QP_MAX_QP_RD_ATOMIC
            | abi::QP_MAX_DEST_RD_ATOMIC;
        arg.missing_mask = needed & !mask;
        arg.extra_mask = if reliable { 0 } else { mask & only_reliable };
        if arg.missing_mask != 0 || arg.extra_mask != 0 {
            return Err(Errno::EPROTO);
        }
        macro_rules! set {
            ($($bit:ident $field:ident),* $(,)?) => { $(
                if mask & abi::$bit != 0 {
                    self.attr.$field = new.$field;
                }
            )* };
        }
        set!(
            QP_STATE qp_state, QP_ACCESS_FLAGS access_flags, QP_PKEY_INDEX pkey_index, QP_PORT port_num,
            QP_QKEY qkey, QP_AV ah, QP_PATH_MTU path_mtu, QP_TIMEOUT timeout, QP_RETRY_CNT retry_cnt,
            QP_RNR_RETRY rnr_retry, QP_RQ_PSN rq_psn, QP_MAX_QP_RD_ATOMIC max_rd_atomic,
            QP_MIN_RNR_TIMER min_rnr_timer, QP_SQ_PSN sq_psn,
            QP_MAX_DEST_RD_ATOMIC max_dest_rd_atomic, QP_DEST_QPN dest_qp_num,
        );
        Ok(())
    }
}
