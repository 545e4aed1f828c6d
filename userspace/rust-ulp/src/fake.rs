// SPDX-License-Identifier: MIT OR Apache-2.0

//! A kernel for unit tests, in this process: enough of `/dev/rust_ulp` to connect queue pairs of one
//! kernel with each other, and to carry their requests out at once.
//!
//! It is as strict as the real one where the crate has to keep rules: sizes, flags, handles, the order of
//! states, room in the rings. Memory is a memfd, of which buffers and rings are parts; what requests point
//! at is read by way of `/proc/self/mem`, so a wrong address is an `EFAULT`.

use crate::abi;
use crate::device::{lock, Device};
use crate::ring::{Producer, SharedIndex};
use crate::sys::{counting, File};
use nix::errno::Errno;
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What the address of offset 0 of the memory is to peers.
const ADDRESS: u64 = 0x7000_0000_0000;
const PAGE: u64 = 4096;

#[derive(Debug)]
pub(crate) struct Kernel {
    /// The memory of all buffers and rings.
    memory: std::fs::File,
    /// This process.
    process: std::fs::File,
    state: Mutex<State>,
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
}

#[derive(Debug)]
enum Object {
    Pd,
    Cq(Cq),
    Qp(Box<Qp>),
    Buffer {
        at: u64,
        len: u64,
        pd: u32,
    },
    Grant {
        buffer: u32,
        access: u32,
        at: u64,
        len: u64,
    },
}

#[derive(Debug)]
struct Cq {
    at: u64,
    producer: Producer,
    reserved: u32,
}

#[derive(Debug)]
struct Qp {
    arg: abi::QpCreate,
    attr: abi::QpAttr,
    recvs: VecDeque<(abi::Wr, Vec<abi::Sge>)>,
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
            arg0: self.u64(),
            arg1: self.u64(),
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
        Arc::new(Self {
            memory: memory.unwrap().into(),
            process: process.unwrap(),
            state: Mutex::default(),
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
        self.scribble(0, FLAGS, flags);
        self.scribble(0, DROPPED, dropped);
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

    pub(crate) fn command(&self, name: &'static str, arg: &mut dyn Any) -> Result<(), Errno> {
        counting::uncounted(|| {
            let mut state = lock(&self.state);
            state.log.push(name);
            if state
                .refuse
                .front()
                .is_some_and(|(refused, _)| *refused == name)
            {
                return Err(state.refuse.pop_front().unwrap().1);
            }
            if let Some(arg) = arg.downcast_mut::<abi::Submit>() {
                drop(state);
                return self.submit(arg);
            }
            self.control(&mut state, arg)
        })
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
                arg.features = abi::FEATURE_CALL | abi::FEATURE_GRANTS;
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
                (arg.phys_ports, arg.num_comp_vectors) = (1, 1);
                (arg.max_qp_wr, arg.max_send_sge, arg.max_recv_sge) = (1024, 8, 8);
                (arg.max_qp_rd_atom, arg.max_qp_init_rd_atom) = (128, 12);
                arg.caps = abi::CAP_FAST_REG | abi::CAP_VIRT_DMA;
                Ok(())
            };
            PortQuery => |arg| {
                if arg.port != 1 {
                    return Err(Errno::ENOENT);
                }
                (arg.state, arg.max_mtu, arg.active_mtu) = (4, 4096, 1024);
                arg.link_layer = abi::LINK_ETHERNET;
                Ok(())
            };
            GidQuery => |arg| {
                assert_eq!(arg.entry_size, abi::GidEntry::SIZE);
                if arg.port != 1 {
                    return Err(Errno::ENOENT);
                }
                arg.count = 2;
                for (i, gid) in gids().iter().enumerate().take(arg.capacity as usize) {
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
                arg.qp_num = state.next + 0x100;
                let (attr, recvs) = (abi::QpAttr::default(), VecDeque::new());
                arg.handle = state.add(Object::Qp(Box::new(Qp { arg: *arg, attr, recvs })));
                Ok(())
            };
            QpModify => |arg| state.qp(arg.qp)?.modify(arg);
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
                    return Err(Errno::EINVAL);
                }
                arg.length = arg.length.next_multiple_of(PAGE);
                (arg.page_size, arg.node) = (PAGE as u32, 0);
                arg.mmap_offset = self.allocate(state, arg.length);
                let (at, len, pd) = (arg.mmap_offset, arg.length, arg.pd);
                arg.handle = state.add(Object::Buffer { at, len, pd });
                Ok(())
            };
            GrantCreate => |arg| {
                let (at, len) = state.buffer(arg.buffer)?;
                if arg.access == 0 || arg.access & !0xe != 0 {
                    return Err(Errno::EINVAL);
                }
                if arg.length == 0 || arg.offset + arg.length > len {
                    return Err(Errno::ERANGE);
                }
                let (buffer, access) = (arg.buffer, arg.access);
                let (at, len) = (at + arg.offset, arg.length);
                arg.handle = state.add(Object::Grant { buffer, access, at, len });
                (arg.addr, arg.rkey) = (ADDRESS + at, arg.handle << 8);
                Ok(())
            };
            Destroy => |arg| {
                let needed = state.objects.values().any(|object| match object {
                    Object::Pd | Object::Cq(_) => false,
                    Object::Qp(qp) => [qp.arg.pd, qp.arg.send_cq, qp.arg.recv_cq].contains(&arg.handle),
                    Object::Buffer { pd, .. } => *pd == arg.handle,
                    Object::Grant { buffer, .. } => *buffer == arg.handle,
                });
                if needed {
                    return Err(Errno::EBUSY);
                }
                state.objects.remove(&arg.handle).map(drop).ok_or(Errno::EBADF)
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
        assert_eq!((arg.size, arg.wr_size.max(64)), (abi::Submit::SIZE, 64));
        let mut state = lock(&self.state);
        let bytes = self.peek(arg.wrs, arg.nr_wrs as usize * abi::Wr::SIZE as usize)?;
        let mut fields = Fields(&bytes);
        for index in 0..arg.nr_wrs {
            if let Err(errno) = self.post(&mut state, fields.wr()) {
                // The real one checks all before it posts the first; here tests do without.
                (arg.bad_index, arg.posted) = (index, index);
                return Err(errno);
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
            let (at, len) = state.buffer(sge.buffer)?;
            if sge.offset + u64::from(sge.length) > len {
                return Err(Errno::ERANGE);
            }
            let mut bytes = vec![0; sge.length as usize];
            self.memory
                .read_exact_at(&mut bytes, at + sge.offset)
                .unwrap();
            data.extend(bytes);
        }
        Ok(data)
    }

    fn scatter(&self, state: &State, sges: &[abi::Sge], mut data: &[u8]) -> Result<(), Errno> {
        for sge in sges {
            let (at, _) = state.buffer(sge.buffer)?;
            let (head, tail) = data.split_at(data.len().min(sge.length as usize));
            self.memory.write_all_at(head, at + sge.offset).unwrap();
            data = tail;
        }
        if data.is_empty() {
            Ok(())
        } else {
            Err(Errno::EMSGSIZE)
        }
    }

    /// Where `len` bytes of the peer stand, if it granted them.
    fn remote(&self, state: &State, wr: &abi::Wr, len: u64, needed: u32) -> Option<u64> {
        match state.objects.get(&(wr.rkey >> 8)) {
            Some(Object::Grant {
                access,
                at,
                len: granted,
                ..
            }) if access & needed != 0 => {
                let from = wr.remote_addr.checked_sub(ADDRESS + at)?;
                (from.checked_add(len)? <= *granted).then_some(at + from)
            }
            _ => None,
        }
    }

    fn post(&self, state: &mut State, wr: abi::Wr) -> Result<(), Errno> {
        let sges = self.elements(&wr)?;
        let qp = state.qp(wr.qp)?;
        let (create, qp_state) = (qp.arg, qp.attr.qp_state);
        let recv = wr.opcode == abi::WR_RECV;
        let needed = if recv { abi::QPS_INIT } else { abi::QPS_RTS };
        if qp_state < needed || qp_state == abi::QPS_ERR {
            return Err(Errno::ENOTCONN);
        }
        self.reserve(state, if recv { create.recv_cq } else { create.send_cq })?;
        if recv {
            state.qp(wr.qp)?.recvs.push_back((wr, sges));
            return Ok(());
        }
        let data = self.gather(state, &sges)?;
        let mut cqe = abi::Cqe {
            user_data: wr.user_data,
            qp: wr.qp,
            qp_num: create.qp_num,
            ..abi::Cqe::default()
        };
        let atomic = |f: &dyn Fn(u64) -> u64, cqe: &mut abi::Cqe| {
            let at = self.remote(state, &wr, 8, abi::ACCESS_REMOTE_ATOMIC)?;
            let mut old = [0; 8];
            self.memory.read_exact_at(&mut old, at).unwrap();
            let new = f(u64::from_ne_bytes(old)).to_ne_bytes();
            self.memory.write_all_at(&new, at).unwrap();
            self.scatter(state, &sges, &old).ok()?;
            cqe.byte_len = 8;
            Some(())
        };
        let len = data.len() as u64;
        let done = match wr.opcode {
            abi::WR_RDMA_WRITE | abi::WR_RDMA_WRITE_WITH_IMM => {
                cqe.opcode = abi::WC_RDMA_WRITE;
                self.remote(state, &wr, len, abi::ACCESS_REMOTE_WRITE)
                    .map(|at| self.memory.write_all_at(&data, at).unwrap())
            }
            abi::WR_RDMA_READ => {
                (cqe.opcode, cqe.byte_len) = (abi::WC_RDMA_READ, data.len() as u32);
                self.remote(state, &wr, len, abi::ACCESS_REMOTE_READ)
                    .map(|at| {
                        let mut bytes = vec![0; data.len()];
                        self.memory.read_exact_at(&mut bytes, at).unwrap();
                        self.scatter(state, &sges, &bytes).unwrap();
                    })
            }
            abi::WR_ATOMIC_CMP_AND_SWP => {
                cqe.opcode = abi::WC_COMP_SWAP;
                atomic(&|old| if old == wr.arg0 { wr.arg1 } else { old }, &mut cqe)
            }
            abi::WR_ATOMIC_FETCH_AND_ADD => {
                cqe.opcode = abi::WC_FETCH_ADD;
                atomic(&|old| old.wrapping_add(wr.arg0), &mut cqe)
            }
            abi::WR_SEND | abi::WR_SEND_WITH_IMM => Some(()),
            _ => return Err(Errno::EINVAL),
        };
        if done.is_none() {
            // Remote access error; the queue pair is in error from now on.
            (cqe.status, cqe.byte_len, cqe.vendor_err) = (10, 0, 0x2a);
            state.qp(wr.qp)?.attr.qp_state = abi::QPS_ERR;
        }
        let peer = state.peer(wr.qp);
        let mut taken = None;
        let imm = matches!(
            wr.opcode,
            abi::WR_RDMA_WRITE_WITH_IMM | abi::WR_SEND_WITH_IMM
        );
        if done.is_some() && (imm || wr.opcode == abi::WR_SEND) {
            taken = peer.and_then(|peer| state.qp(peer).ok()?.recvs.pop_front());
            if taken.is_none() {
                cqe.status = 13;
            }
        }
        if let (Some((recv, sges)), Some(peer)) = (taken, peer) {
            let written = wr.opcode == abi::WR_RDMA_WRITE_WITH_IMM;
            if !written {
                self.scatter(state, &sges, &data)?;
            }
            let arg = state.qp(peer)?.arg;
            let theirs = abi::Cqe {
                user_data: recv.user_data,
                qp: peer,
                qp_num: arg.qp_num,
                opcode: if written {
                    abi::WC_RECV_RDMA_WITH_IMM
                } else {
                    abi::WC_RECV
                },
                flags: if imm { abi::WC_WITH_IMM } else { 0 },
                imm_data: wr.imm_data,
                byte_len: data.len() as u32,
                ..abi::Cqe::default()
            };
            self.push(state, arg.recv_cq, &theirs);
        }
        let all = create.flags & abi::QP_SIG_ALL != 0;
        if cqe.status != 0 || all || wr.flags & abi::SEND_SIGNALED != 0 {
            self.push(state, create.send_cq, &cqe);
        } else {
            state.cq(create.send_cq)?.reserved -= 1;
        }
        Ok(())
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
        let cq = state.cq(cq).unwrap();
        cq.reserved = cq.reserved.saturating_sub(1);
        let mut bytes = cqe.user_data.to_ne_bytes().to_vec();
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
    }
}

impl State {
    fn add(&mut self, object: Object) -> u32 {
        self.next += 1;
        self.objects.insert(self.next, object);
        self.next
    }

    fn pd(&self, handle: u32) -> Result<(), Errno> {
        match self.objects.get(&handle) {
            Some(Object::Pd) => Ok(()),
            Some(_) => Err(Errno::EBADFD),
            None => Err(Errno::EBADF),
        }
    }

    fn cq(&mut self, handle: u32) -> Result<&mut Cq, Errno> {
        match self.objects.get_mut(&handle) {
            Some(Object::Cq(cq)) => Ok(cq),
            Some(_) => Err(Errno::EBADFD),
            None => Err(Errno::EBADF),
        }
    }

    fn qp(&mut self, handle: u32) -> Result<&mut Qp, Errno> {
        match self.objects.get_mut(&handle) {
            Some(Object::Qp(qp)) => Ok(qp),
            Some(_) => Err(Errno::EBADFD),
            None => Err(Errno::EBADF),
        }
    }

    fn buffer(&self, handle: u32) -> Result<(u64, u64), Errno> {
        match self.objects.get(&handle) {
            Some(Object::Buffer { at, len, .. }) => Ok((*at, *len)),
            Some(_) => Err(Errno::EBADFD),
            None => Err(Errno::EBADF),
        }
    }

    /// The handle of the queue pair that this one is connected to.
    fn peer(&self, handle: u32) -> Option<u32> {
        let Some(Object::Qp(qp)) = self.objects.get(&handle) else {
            return None;
        };
        self.objects
            .iter()
            .find_map(|(handle, object)| match object {
                Object::Qp(other) if other.arg.qp_num == qp.attr.dest_qp_num => Some(*handle),
                _ => None,
            })
    }
}

impl Qp {
    fn modify(&mut self, arg: &mut abi::QpModify) -> Result<(), Errno> {
        let (mask, new) = (arg.attr_mask, &arg.attr);
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
            _ => return Err(Errno::EPROTO),
        };
        if mask & needed != needed {
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
