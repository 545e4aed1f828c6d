// SPDX-License-Identifier: MIT OR Apache-2.0

//! A stub of `/dev/rust_ulp` for unit tests, in this process. It answers commands, keeps count of
//! objects, and records the requests that SUBMIT posts. It carries out none of them: a test says
//! what each request completes with, which command fails, and which events there are.
//!
//! Memory is a memfd, of which buffers and rings are parts. The stub reads elements and inline bytes
//! by way of `/proc/self/mem`, so a wrong address is an `EFAULT`.

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

/// The address that peers have for offset 0 of the memory.
const ADDRESS: u64 = 0x7000_0000_0000;
const PAGE: u64 = 4096;
/// 512 pages.
const KEY_BYTES: u64 = 2 << 20;

#[derive(Debug)]
pub(crate) struct Kernel {
    /// The memory of all buffers and rings.
    memory: std::fs::File,
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
    /// The requests that were posted and have not completed, in their order.
    posted: Vec<Posted>,
    /// A queue whose requests fail, with their status.
    failed: Option<(u32, u16)>,
    answers: VecDeque<(&'static str, Result<(), Errno>)>,
    log: Vec<&'static str>,
    /// By how much the ABI's version is ahead.
    newer: u32,
    events: VecDeque<abi::Event>,
    /// The other end of the kernel's `event_file`.
    teller: Option<UnixStream>,
    /// The device was removed.
    gone: bool,
    /// Requests that the next SUBMIT posts before it stops, and the error of the next one.
    stumble: Option<(u32, Errno)>,
    /// The second GID, if it is not that of [`gids`].
    address: Option<[u8; 16]>,
    /// Bytes under one key, if not [`KEY_BYTES`].
    key_bytes: Option<u64>,
    /// Peers that ask to connect.
    asking: u32,
    /// The state of the queue pair that an ACCEPT has connected.
    accepted: Option<u8>,
}

/// A request that SUBMIT posted.
#[derive(Clone, Debug)]
pub(crate) struct Posted {
    pub(crate) wr: abi::Wr,
    pub(crate) elements: Vec<abi::Sge>,
    /// The inline bytes of all elements.
    pub(crate) inline: Vec<u8>,
}

#[derive(Debug)]
struct Object {
    /// The objects that it needs, which cannot be destroyed before it.
    needs: Vec<u32>,
    user_data: u64,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Plain,
    Cq(Cq),
    Qp(Box<Qp>),
    Buffer(abi::BufferQuery),
    Grant(abi::GrantCreate),
}

#[derive(Debug)]
struct Cq {
    at: u64,
    producer: Producer,
    eventfd: Option<std::fs::File>,
}

#[derive(Debug)]
struct Qp {
    arg: abi::QpCreate,
    attr: abi::QpAttr,
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
            memory: std::fs::File::from(memory.unwrap()),
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
        lock(&self.state).answers.push_back((name, Err(errno)));
    }

    /// The next command of this name is carried out, and answers that come later are for others.
    pub(crate) fn accept(&self, name: &'static str) {
        lock(&self.state).answers.push_back((name, Ok(())));
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
        let mut rings = state
            .objects
            .values()
            .filter_map(|object| match &object.kind {
                Kind::Cq(cq) => Some(cq.at),
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

    /// Lets a peer ask the listener for a connection.
    pub(crate) fn ask(&self) {
        let mut state = lock(&self.state);
        state.asking += 1;
        let waiting = state.asking;
        state.happen(abi::EVENT_CONNECT_REQUEST, 0, waiting);
    }

    /// From now on an ACCEPT connects its queue pair at once, which is in this state then.
    pub(crate) fn confirm(&self, qp_state: u8) {
        lock(&self.state).accepted = Some(qp_state);
    }

    /// Reports an event.
    pub(crate) fn happen(&self, event: abi::Event) {
        lock(&self.state).tell(event);
    }

    /// The next SUBMIT posts so many requests, and fails with this error at the next one.
    pub(crate) fn stumble(&self, after: u32, errno: Errno) {
        lock(&self.state).stumble = Some((after, errno));
    }

    /// From now on the port has this address.
    pub(crate) fn set_address(&self, gid: [u8; 16]) {
        lock(&self.state).address = Some(gid);
    }

    /// From now on the device puts so many bytes under one key.
    pub(crate) fn set_key_bytes(&self, bytes: u64) {
        lock(&self.state).key_bytes = Some(bytes);
    }

    /// Takes all requests that were posted and have not completed.
    pub(crate) fn posted(&self) -> Vec<Posted> {
        std::mem::take(&mut lock(&self.state).posted)
    }

    /// Takes the oldest receive of a queue, or its oldest other request.
    pub(crate) fn take(&self, queue: u32, is_recv: bool) -> Option<Posted> {
        let posted = &mut lock(&self.state).posted;
        let is_it = |it: &Posted| (it.wr.qp, it.wr.opcode == abi::WR_RECV) == (queue, is_recv);
        let at = posted.iter().position(is_it)?;
        Some(posted.remove(at))
    }

    /// Completes a request with success, or as `change` says.
    pub(crate) fn end(&self, posted: &Posted, change: impl FnOnce(&mut abi::Cqe)) {
        self.end_in(&mut lock(&self.state), posted, change);
    }

    fn end_in(&self, state: &mut State, posted: &Posted, change: impl FnOnce(&mut abi::Cqe)) {
        let wr = &posted.wr;
        let Some(Kind::Qp(qp)) = state.objects.get(&wr.qp).map(|object| &object.kind) else {
            panic!("{posted:?} is of no queue pair");
        };
        let (is_recv, qp) = (wr.opcode == abi::WR_RECV, &qp.arg);
        let (qp_num, cq) = (qp.qp_num, if is_recv { qp.recv_cq } else { qp.send_cq });
        let mut cqe = abi::Cqe {
            user_data: wr.user_data,
            qp: wr.qp,
            qp_num,
            opcode: match wr.opcode {
                abi::WR_RDMA_WRITE | abi::WR_RDMA_WRITE_WITH_IMM => abi::WC_RDMA_WRITE,
                abi::WR_RDMA_READ => abi::WC_RDMA_READ,
                abi::WR_ATOMIC_CMP_AND_SWP => abi::WC_COMP_SWAP,
                abi::WR_ATOMIC_FETCH_AND_ADD => abi::WC_FETCH_ADD,
                abi::WR_RECV => abi::WC_RECV,
                _ => abi::WC_SEND,
            },
            ..abi::Cqe::default()
        };
        change(&mut cqe);
        counting::uncounted(|| self.push(state, cq, &cqe));
    }

    /// Completes the requests of a queue with this status, but for its receives: those in flight, and
    /// those that are posted later.
    pub(crate) fn fail(&self, queue: u32, status: u16) {
        while let Some(posted) = self.take(queue, false) {
            self.end(&posted, |cqe| cqe.status = status);
        }
        lock(&self.state).failed = Some((queue, status));
    }

    /// Completes the oldest request of a queue that is no receive.
    pub(crate) fn finish(&self, queue: u32, change: impl FnOnce(&mut abi::Cqe)) {
        let posted = self.take(queue, false);
        self.end(&posted.unwrap(), change);
    }

    /// Completes the oldest receive of a queue.
    pub(crate) fn arrive(&self, queue: u32, change: impl FnOnce(&mut abi::Cqe)) {
        let posted = self.take(queue, true);
        self.end(&posted.unwrap(), change);
    }

    /// Copies the bytes of an element to an address that a grant has.
    pub(crate) fn copy(&self, from: &abi::Sge, to: u64) {
        let state = lock(&self.state);
        let mut bytes = vec![0; from.length as usize];
        let at = state.buffer(from.buffer).unwrap().mmap_offset + from.offset;
        self.memory.read_exact_at(&mut bytes, at).unwrap();
        self.memory.write_all_at(&bytes, to - ADDRESS).unwrap();
    }

    /// Removes the device.
    pub(crate) fn remove(&self) {
        let mut state = lock(&self.state);
        state.gone = true;
        for object in state.objects.values_mut() {
            if let Kind::Cq(cq) = &mut object.kind {
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
        counting::uncounted(|| {
            let mut state = lock(&self.state);
            let is_cq = |object: &Object| matches!(object.kind, Kind::Cq(_));
            let mut objects = state.objects.iter();
            let cq = objects.find_map(|(handle, object)| is_cq(object).then_some(*handle));
            self.push(&mut state, cq.unwrap(), &cqe);
        });
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
                arg.handle = state.add(&[], 0, Kind::Plain);
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
                let producer = Producer::new(arg.entries);
                let cq = Cq { at: arg.mmap_offset, producer, eventfd: None };
                arg.handle = state.add(&[], 0, Kind::Cq(cq));
                Ok(())
            };
            QpCreate => |arg| {
                arg.qp_num = state.next + 0x100;
                let qp = Qp { arg: *arg, attr: abi::QpAttr::default() };
                let needs = [arg.pd, arg.send_cq, arg.recv_cq, arg.srq];
                arg.handle = state.add(&needs, arg.user_data, Kind::Qp(Box::new(qp)));
                Ok(())
            };
            QpModify => |arg| {
                state.qp(arg.qp)?.modify(arg);
                Ok(())
            };
            QpQuery => |arg| {
                let qp = state.qp(arg.qp)?;
                (arg.qp_num, arg.qp_type, arg.attr) = (qp.arg.qp_num, qp.arg.qp_type, qp.attr);
                (arg.max_send_wr, arg.max_recv_wr) = (qp.arg.max_send_wr, qp.arg.max_recv_wr);
                (arg.max_send_sge, arg.max_recv_sge) = (qp.arg.max_send_sge, qp.arg.max_recv_sge);
                arg.max_inline = qp.arg.max_inline;
                Ok(())
            };
            BufferCreate => |arg| {
                arg.length = arg.length.next_multiple_of(PAGE);
                arg.mmap_offset = self.allocate(state, arg.length);
                arg.page_size = PAGE as u32;
                let kind = abi::BUFFER_PAGES;
                arg.handle = state.add_buffer(arg.pd, arg.length, kind, 0, arg.mmap_offset);
                (arg.key_bytes, arg.keys) = state.keys(arg.length);
                Ok(())
            };
            BufferRegister => |arg| {
                assert_eq!(arg.flags & !abi::BUFFER_READ_ONLY, 0);
                self.peek(arg.addr, arg.length as usize)?;
                let kind = abi::BUFFER_USER;
                arg.handle = state.add_buffer(arg.pd, arg.length, kind, arg.flags, 0);
                (arg.key_bytes, arg.keys) = state.keys(arg.length);
                arg.page_size = PAGE as u32;
                Ok(())
            };
            BufferImport => |arg| {
                assert_eq!(arg.flags & !abi::BUFFER_READ_ONLY, 0);
                let there = std::fs::metadata(format!("/proc/self/fd/{}", arg.fd)).unwrap().len();
                if arg.length == 0 {
                    arg.length = there - arg.offset;
                }
                let kind = abi::BUFFER_DMABUF;
                arg.handle = state.add_buffer(arg.pd, arg.length, kind, arg.flags, 0);
                (arg.key_bytes, arg.keys) = state.keys(arg.length);
                arg.page_size = PAGE as u32;
                Ok(())
            };
            BufferQuery => |arg| {
                let is_of = |object: &&Object| match &object.kind {
                    Kind::Grant(grant) => grant.buffer == arg.buffer,
                    _ => false,
                };
                let grants = state.objects.values().filter(is_of).count() as u32;
                *arg = abi::BufferQuery { grants, ..*state.buffer(arg.buffer)? };
                Ok(())
            };
            GrantCreate => |arg| {
                let buffer = state.buffer(arg.buffer)?;
                if arg.flags & abi::GRANT_PARTIAL != 0 {
                    arg.length = arg.length.min(buffer.key_bytes);
                }
                arg.addr = ADDRESS + buffer.mmap_offset + arg.offset;
                arg.rkey = (state.next + 1) << 8;
                arg.handle = state.add(&[arg.buffer], arg.user_data, Kind::Grant(*arg));
                Ok(())
            };
            GrantQuery => |arg| {
                let Some(Kind::Grant(of)) = state.objects.get(&arg.grant).map(|it| &it.kind) else {
                    return Err(Errno::ENOENT);
                };
                // A later module may have more flags.
                arg.grant_flags = (of.flags & abi::GRANT_ONE_SHOT_INV) | (1 << 31);
                (arg.state, arg.rkey) = (abi::GRANT_ACTIVE, of.rkey);
                (arg.buffer, arg.qp, arg.offset) = (of.buffer, of.qp, of.offset);
                (arg.length, arg.addr, arg.access) = (of.length, of.addr, of.access);
                Ok(())
            };
            AhCreate => |arg| {
                arg.handle = state.add(&[arg.pd], 0, Kind::Plain);
                Ok(())
            };
            Cancel => |arg| {
                arg.canceled = 0;
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
                cq.eventfd = Some(look_up(arg.fd)?.into());
                Ok(())
            };
            SrqCreate => |arg| {
                arg.handle = state.add(&[arg.pd, arg.cq], 0, Kind::Plain);
                Ok(())
            };
            Listen => |arg| {
                arg.handle = state.add(&[], 0, Kind::Plain);
                Ok(())
            };
            Connect => |arg| {
                arg.handle = state.add(&[arg.qp], 0, Kind::Plain);
                Ok(())
            };
            GetRequest => |arg| {
                state.asking = state.asking.checked_sub(1).ok_or(Errno::ETIME)?;
                arg.handle = state.add(&[], 0, Kind::Plain);
                Ok(())
            };
            Accept => |arg| {
                if let Some(qp_state) = state.accepted {
                    let attr = &mut state.qp(arg.qp)?.attr;
                    (attr.qp_state, attr.dest_qp_num, attr.path_mtu) = (qp_state, 7, 3);
                }
                Ok(())
            };
            ConnWait => |arg| {
                arg.peer_qp_num = 7;
                state.accepted.map(drop).ok_or(Errno::ETIME)
            };
            ConnQuery => |arg| {
                arg.state = match state.accepted {
                    Some(abi::QPS_ERR) => abi::CONN_DISCONNECTED,
                    Some(_) => abi::CONN_ESTABLISHED,
                    None => abi::CONN_CONNECTING,
                };
                Ok(())
            };
            Destroy => |arg| {
                if state.objects.values().any(|object| object.needs.contains(&arg.handle)) {
                    return Err(Errno::EBUSY);
                }
                state.posted.retain(|posted| posted.wr.qp != arg.handle);
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
        let (stumble, errno) = state.stumble.take().unwrap_or((u32::MAX, Errno::EIO));
        for index in 0..arg.nr_wrs {
            if index == stumble {
                arg.stop_error = -(errno as i32);
                if errno != Errno::EAGAIN || index == 0 {
                    return Err(errno);
                }
                break;
            }
            let posted = self.read(fields.wr())?;
            match state.failed {
                Some((queue, status))
                    if queue == posted.wr.qp && posted.wr.opcode != abi::WR_RECV =>
                {
                    self.end_in(&mut state, &posted, |cqe| cqe.status = status);
                }
                _ => state.posted.push(posted),
            }
            arg.posted = index + 1;
        }
        drop(state);
        if arg.cq == 0 {
            return Ok(());
        }
        let end = Instant::now() + Duration::from_nanos(arg.timeout_ns);
        loop {
            let mut state = lock(&self.state);
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

    /// Reads what a request refers to.
    fn read(&self, wr: abi::Wr) -> Result<Posted, Errno> {
        let timed = wr.flags & abi::REQUEST_TIMEOUT != 0;
        assert_eq!(timed, wr.timeout_ns != 0, "the kernel refuses these");
        let elements = match wr.num_sge {
            0 => Vec::new(),
            1 => vec![wr.sge],
            n => {
                assert_eq!((wr.sge.buffer, wr.sge.length), (0, 0));
                let len = usize::from(n) * abi::Sge::SIZE as usize;
                let bytes = self.peek(wr.sge.offset, len)?;
                let mut fields = Fields(&bytes);
                (0..n).map(|_| fields.sge()).collect()
            }
        };
        let mut inline = Vec::new();
        for element in elements.iter().filter(|element| element.buffer == 0) {
            inline.extend(self.peek(element.offset, element.length as usize)?);
        }
        Ok(Posted {
            wr,
            elements,
            inline,
        })
    }

    fn push(&self, state: &mut State, cq: u32, cqe: &abi::Cqe) {
        let qp_user_data = state.user_data(cqe.qp);
        let cq = state.cq(cq).unwrap();
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
            state.answer(name)?;
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
    /// Takes the answer that a test has for the next command `name`.
    fn answer(&mut self, name: &str) -> Result<(), Errno> {
        match self.answers.front() {
            Some((next, _)) if *next == name => self.answers.pop_front().unwrap().1,
            _ => Ok(()),
        }
    }

    fn add(&mut self, needs: &[u32], user_data: u64, kind: Kind) -> u32 {
        self.next += 1;
        let object = Object {
            needs: needs.iter().copied().filter(|need| *need != 0).collect(),
            user_data,
            kind,
        };
        self.objects.insert(self.next, object);
        self.next
    }

    fn add_buffer(&mut self, pd: u32, length: u64, kind: u32, flags: u32, at: u64) -> u32 {
        let (key_bytes, keys) = self.keys(length);
        let buffer = abi::BufferQuery {
            buffer: self.next + 1,
            buffer_flags: flags,
            charged: length.next_multiple_of(PAGE),
            mmap_offset: at,
            page_size: PAGE as u32,
            kind,
            length,
            key_bytes,
            keys,
            ..abi::Command::new()
        };
        self.add(&[pd], 0, Kind::Buffer(buffer))
    }

    fn kind(&mut self, handle: u32) -> Result<&mut Kind, Errno> {
        let object = self.objects.get_mut(&handle).ok_or(Errno::ENOENT)?;
        Ok(&mut object.kind)
    }

    fn cq(&mut self, handle: u32) -> Result<&mut Cq, Errno> {
        match self.kind(handle)? {
            Kind::Cq(cq) => Ok(cq),
            _ => Err(Errno::EBADFD),
        }
    }

    fn qp(&mut self, handle: u32) -> Result<&mut Qp, Errno> {
        match self.kind(handle)? {
            Kind::Qp(qp) => Ok(qp),
            _ => Err(Errno::EBADFD),
        }
    }

    fn buffer(&self, handle: u32) -> Result<&abi::BufferQuery, Errno> {
        match self.objects.get(&handle).map(|object| &object.kind) {
            Some(Kind::Buffer(buffer)) => Ok(buffer),
            _ => Err(Errno::ENOENT),
        }
    }

    /// Returns the value that the creator of an object gave it.
    fn user_data(&self, handle: u32) -> u64 {
        self.objects
            .get(&handle)
            .map_or(0, |object| object.user_data)
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

    /// Bytes under one key, and how many keys so many bytes take.
    fn keys(&self, len: u64) -> (u64, u32) {
        let most = self.key_bytes.unwrap_or(KEY_BYTES);
        (most, len.div_ceil(most) as u32)
    }
}

impl Qp {
    fn modify(&mut self, arg: &abi::QpModify) {
        let (mask, new) = (arg.attr_mask, &arg.attr);
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
    }
}
