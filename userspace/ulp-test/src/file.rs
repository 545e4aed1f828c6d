// SPDX-License-Identifier: MIT OR Apache-2.0

//! An open file and its commands, with what every refusal has to keep to.

use crate::report::{because, check, equal, hang, Outcome};
use crate::sys::hostile::dma_buf;
use crate::sys::{abi, arg, bytes, value, Area, Fd, Mapping, Place, Plain, PAGE};
use nix::errno::Errno;
use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

pub use crate::sys::abi::Command;

/// The bytes of inline data that a queue pair asks for: mlx4 copies none, see tests/vm/personality.py.
pub fn max_inline() -> u32 {
    match std::env::var("ULP_HCA").as_deref() {
        Ok("mlx4") => 0,
        _ => 64,
    }
}

/// All rights of a peer.
pub const REMOTE: u32 =
    abi::ACCESS_REMOTE_WRITE | abi::ACCESS_REMOTE_READ | abi::ACCESS_REMOTE_ATOMIC;

/// What a transition from RESET to INIT needs.
pub const INIT: u32 = abi::QP_STATE | abi::QP_PKEY_INDEX | abi::QP_PORT | abi::QP_ACCESS_FLAGS;
/// What a transition from INIT to RTR needs.
pub const RTR: u32 = abi::QP_STATE
    | abi::QP_AV
    | abi::QP_PATH_MTU
    | abi::QP_DEST_QPN
    | abi::QP_RQ_PSN
    | abi::QP_MAX_DEST_RD_ATOMIC
    | abi::QP_MIN_RNR_TIMER;
/// What a transition from RTR to RTS needs.
pub const RTS: u32 = abi::QP_STATE
    | abi::QP_TIMEOUT
    | abi::QP_RETRY_CNT
    | abi::QP_RNR_RETRY
    | abi::QP_SQ_PSN
    | abi::QP_MAX_QP_RD_ATOMIC;

/// An open file.
#[derive(Debug)]
pub struct File {
    fd: Fd,
    area: Area,
    /// The port that ATTACH named.
    pub port: u32,
    /// The GID index that ATTACH named.
    pub gid_index: u32,
    /// That GID.
    pub gid: [u8; 16],
}

impl File {
    /// Opens the device's file.
    pub fn open() -> Outcome<Self> {
        Ok(Self {
            fd: Fd::open().map_err(because("opening the device"))?,
            area: Area::new(4).map_err(because("mapping memory"))?,
            port: 0,
            gid_index: 0,
            gid: [0; 16],
        })
    }

    /// Opens it, and attaches it to the default device.
    pub fn attached() -> Outcome<Self> {
        let mut file = Self::open()?;
        let got = file.accepted(&abi::Attach::new())?;
        (file.port, file.gid_index) = (got.port, got.gid_index);
        let gids = file.gids()?;
        let gid = gids.iter().find(|gid| gid.index == file.gid_index);
        file.gid = gid.ok_or("the GID that ATTACH names is not listed")?.gid;
        Ok(file)
    }

    /// The file itself.
    pub fn fd(&self) -> &Fd {
        &self.fd
    }

    /// All GIDs of the port.
    pub fn gids(&self) -> Outcome<Vec<abi::GidEntry>> {
        let got = self.accepted(&abi::GidQuery {
            entries: self.area.at(2 * PAGE),
            entry_size: abi::GidEntry::SIZE,
            capacity: 16,
            port: self.port,
            ..abi::GidQuery::new()
        })?;
        let size = size_of::<abi::GidEntry>();
        Ok((0..got.count.min(16) as usize)
            .map(|i| value(&self.area.get(2 * PAGE + i * size, size)))
            .collect())
    }

    /// Issues a command; what it wrote back comes with the result.
    pub fn call<C: Command + Plain>(&self, arg: &C) -> (Result<(), Errno>, C) {
        self.area.put(0, &bytes(arg));
        let result = self.fd.ioctl(C::NR, Place::In(&self.area, 0));
        (result, value(&self.area.get(0, size_of::<C>())))
    }

    /// Issues a command that has to succeed.
    pub fn accepted<C: Command + Plain>(&self, arg: &C) -> Outcome<C> {
        match self.call(arg) {
            (Ok(()), out) => Ok(out),
            (Err(errno), _) => Err(format!("{} is {errno:?}", C::NAME)),
        }
    }

    /// What `/proc/self/fdinfo` says of the file, without its counters: a line for each object.
    pub fn objects(&self) -> Outcome<Vec<String>> {
        let path = format!("/proc/self/fdinfo/{}", self.fd.number());
        let text = std::fs::read_to_string(path).map_err(because("reading fdinfo"))?;
        let is_object = |line: &&str| {
            let key = line.split(':').next().unwrap_or_default();
            let counts = ["send", "recv", "latency"].map(|word| format!("-{word}"));
            key.starts_with("rust_ulp-") && !counts.iter().any(|word| key.ends_with(word))
        };
        Ok(text.lines().filter(is_object).map(str::to_owned).collect())
    }

    /// How many objects of a kind there are; every kind: `""`.
    pub fn count(&self, kind: &str) -> Outcome<usize> {
        const NOT: [&str; 3] = ["file", "device", "entries"];
        let lines = self.objects()?;
        Ok(lines
            .iter()
            .filter_map(|line| line.strip_prefix("rust_ulp-")?.split_once(':'))
            .filter(|(is, _)| !NOT.contains(is) && (kind.is_empty() || *is == kind))
            .count())
    }

    /// The handles of all objects, as fdinfo shows them.
    pub fn handles(&self) -> Outcome<Vec<u32>> {
        let lines = self.objects()?;
        Ok(lines
            .iter()
            .filter_map(|line| line.split_once(":\t0x"))
            .filter_map(|(_, rest)| u32::from_str_radix(rest.split(' ').next()?, 16).ok())
            .collect())
    }

    /// Issues a command that has to fail like that, and to change nothing.
    pub fn refuse(&self, cmd: u32, place: Place<'_>, want: Errno) -> Outcome {
        let before = self.objects()?;
        let got = self.fd.ioctl(cmd, place);
        let after = self.objects()?;
        match got {
            Err(errno) if errno == want => equal("objects after a refusal", after, before),
            Err(errno) => Err(format!("{errno:?}, want {want:?}")),
            Ok(()) => Err(format!("it was accepted, want {want:?}")),
        }
    }

    /// The same for a struct.
    pub fn refused<C: Command + Plain>(&self, arg: &C, want: Errno) -> Outcome {
        self.area.put(0, &bytes(arg));
        self.refuse(C::NR, Place::In(&self.area, 0), want)
    }

    // --- objects --------------------------------------------------------------

    /// A protection domain.
    pub fn pd(&self) -> Outcome<u32> {
        Ok(self.accepted(&abi::PdCreate::new())?.handle)
    }

    /// A completion queue.
    pub fn cq(&self, entries: u32) -> Outcome<abi::CqCreate> {
        self.accepted(&arg!(CqCreate, entries))
    }

    /// What makes a queue pair.
    pub fn qp_args(pd: u32, cq: u32) -> abi::QpCreate {
        abi::QpCreate {
            pd,
            send_cq: cq,
            recv_cq: cq,
            qp_type: abi::QPT_RC,
            max_send_wr: 64,
            max_recv_wr: 64,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline: max_inline(),
            ..abi::QpCreate::new()
        }
    }

    /// A queue pair, in RESET.
    pub fn qp(&self, pd: u32, cq: u32) -> Outcome<abi::QpCreate> {
        self.accepted(&Self::qp_args(pd, cq))
    }

    /// A buffer.
    pub fn buffer(&self, pd: u32, length: u64) -> Outcome<abi::BufferCreate> {
        self.accepted(&arg!(BufferCreate, pd, length, node = abi::NODE_ANY))
    }

    /// What grants all of a page.
    pub fn grant_args(buffer: u32) -> abi::GrantCreate {
        arg!(GrantCreate, buffer, access = REMOTE, length = PAGE as u64)
    }

    /// A grant of a page.
    pub fn grant(&self, buffer: u32) -> Outcome<abi::GrantCreate> {
        self.accepted(&Self::grant_args(buffer))
    }

    /// What registers a page of our memory, which is never freed.
    pub fn register_args(pd: u32) -> abi::BufferRegister {
        let memory: &'static mut [u8] = vec![0; 2 * PAGE].leak();
        abi::BufferRegister {
            pd,
            addr: memory.as_ptr() as u64,
            length: PAGE as u64,
            ..abi::BufferRegister::new()
        }
    }

    /// What makes an address, our own.
    pub fn ah_args(&self, pd: u32) -> abi::AhCreate {
        arg!(AhCreate, pd, attr = self.attributes(0).ah)
    }

    /// An address.
    pub fn ah(&self, pd: u32) -> Outcome<abi::AhCreate> {
        self.accepted(&self.ah_args(pd))
    }

    /// What makes a shared receive queue.
    pub fn srq_args(pd: u32, cq: u32) -> abi::SrqCreate {
        arg!(SrqCreate, pd, cq, max_wr = 16, max_sge = 2)
    }

    /// A shared receive queue.
    pub fn srq(&self, pd: u32, cq: u32) -> Outcome<abi::SrqCreate> {
        self.accepted(&Self::srq_args(pd, cq))
    }

    /// The address of the port, with that port number of the connection manager.
    pub fn address(&self, port: u16) -> Outcome<abi::Addr> {
        let mut addr = abi::Addr {
            family: libc::AF_INET as u16,
            port,
            ..abi::Addr::default()
        };
        let mapped = self
            .gid
            .strip_prefix(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
        let v4 = mapped.ok_or("the preferred GID is of no IPv4 address")?;
        for (to, from) in addr.addr.iter_mut().zip(v4) {
            *to = *from;
        }
        Ok(addr)
    }

    /// What makes a listener, at a port of the kernel's choice.
    pub fn listen_args(&self) -> Outcome<abi::Listen> {
        Ok(arg!(Listen, addr = self.address(0)?, backlog = 1))
    }

    /// What connects a queue pair to our own address, where nobody listens.
    pub fn connect_args(&self, qp: u32) -> Outcome<abi::Connect> {
        Ok(arg!(Connect, qp, dst = self.address(1)?))
    }

    /// A connection that has failed.
    pub fn failed(&self, qp: u32) -> Outcome<u32> {
        let conn = self.accepted(&self.connect_args(qp)?)?.handle;
        let (result, _) = self.call(&arg!(ConnWait, conn, timeout_ns = hang().as_nanos() as u64));
        equal("CONN_WAIT", result, Err(Errno::ECONNREFUSED))?;
        Ok(conn)
    }

    /// Destroys.
    pub fn destroy(&self, handle: u32) -> Outcome {
        let arg = arg!(Destroy, handle);
        self.accepted(&arg).map(drop)
    }

    /// Destroys what cannot be destroyed.
    pub fn keeps(&self, handle: u32, want: Errno) -> Outcome {
        let arg = arg!(Destroy, handle);
        self.refused(&arg, want)
    }

    // --- queue pairs ------------------------------------------------------------

    /// Every attribute as it should be, for a peer with that number on the same device.
    pub fn attributes(&self, dest_qp_num: u32) -> abi::QpAttr {
        let mut ah = abi::AhAttr {
            dgid: self.gid,
            sgid_index: self.gid_index as u8,
            port_num: self.port,
            is_global: 1,
            ..abi::AhAttr::default()
        };
        ah.hop_limit = 64;
        abi::QpAttr {
            dest_qp_num,
            access_flags: REMOTE,
            path_mtu: 3,
            port_num: self.port,
            timeout: 14,
            retry_cnt: 6,
            rnr_retry: 6,
            min_rnr_timer: 12,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            ah,
            ..abi::QpAttr::default()
        }
    }

    /// What takes `qp` to that state, with what the way there from the state before needs.
    pub fn modify_args(&self, qp: u32, state: u8, dest_qp_num: u32) -> abi::QpModify {
        let attr_mask = match state {
            abi::QPS_INIT => INIT,
            abi::QPS_RTR => RTR,
            abi::QPS_RTS => RTS,
            _ => abi::QP_STATE,
        };
        let mut attr = self.attributes(dest_qp_num);
        attr.qp_state = state;
        arg!(QpModify, qp, attr_mask, attr)
    }

    /// Takes `qp` through all states up to RTS, or up to `state`, from RESET.
    pub fn bring(&self, qp: u32, state: u8, dest_qp_num: u32) -> Outcome {
        let way: &[u8] = match state {
            abi::QPS_RESET => &[],
            abi::QPS_INIT => &[1],
            abi::QPS_RTR => &[1, 2],
            abi::QPS_RTS => &[1, 2, 3],
            abi::QPS_SQD => &[1, 2, 3, 4],
            _ => &[abi::QPS_INIT, abi::QPS_ERR],
        };
        for step in way {
            self.accepted(&self.modify_args(qp, *step, dest_qp_num))?;
        }
        if state == abi::QPS_SQD {
            let end = Instant::now() + hang();
            while self.query(qp)?.attr.sq_draining != 0 {
                check("it still drains", Instant::now() < end)?;
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        Ok(())
    }

    /// What is said of a queue pair.
    pub fn query(&self, qp: u32) -> Outcome<abi::QpQuery> {
        self.accepted(&arg!(QpQuery, qp))
    }

    // --- requests -----------------------------------------------------------------

    /// Issues SUBMIT with `wrs`; `arg` has the rest.
    pub fn submit(
        &self,
        wrs: &[abi::Wr],
        arg: abi::Submit,
    ) -> Outcome<(Result<(), Errno>, abi::Submit)> {
        let area = array(wrs)?;
        Ok(self.call(&abi::Submit {
            wrs: area.at(0),
            nr_wrs: wrs.len() as u32,
            wr_size: abi::Wr::SIZE,
            ..arg
        }))
    }

    /// Posts `wrs`, which has to succeed.
    pub fn post(&self, wrs: &[abi::Wr]) -> Outcome {
        let (result, out) = self.submit(wrs, abi::Submit::new())?;
        result.map_err(|errno| format!("SUBMIT is {errno:?}, posted {}", out.posted))?;
        equal("posted", out.posted, wrs.len() as u32)
    }

    /// Posts `wrs`, of which the one at `index` has to be refused like that. Those before it are posted.
    pub fn stops(&self, wrs: &[abi::Wr], want: Errno, index: u32) -> Outcome {
        let (before, handles) = (self.objects()?, self.handles()?);
        let arg = arg!(Submit, posted = 77, stop_error = 77);
        let (result, out) = self.submit(wrs, arg)?;
        let is_short = want == Errno::EAGAIN && index > 0;
        equal("result", result, if is_short { Ok(()) } else { Err(want) })?;
        stopped(&out, want, index)?;
        if index == 0 {
            return equal("objects after a refusal", self.objects()?, before);
        }
        // The queues have what was posted.
        equal("objects after a refusal", self.handles()?, handles)
    }
}

/// SUBMIT has posted those before `index`, and says that this one was refused like that.
pub fn stopped(out: &abi::Submit, want: Errno, index: u32) -> Outcome {
    let got = (out.posted, out.stop_error);
    equal("posted, stop_error", got, (index, -(want as i32)))
}

/// Memory with an array in it.
pub fn array<T: Plain>(items: &[T]) -> Outcome<Area> {
    let len = size_of_val(items).div_ceil(PAGE).max(1);
    let area = Area::new(len).map_err(because("mapping memory"))?;
    for (i, item) in items.iter().enumerate() {
        area.put(i * size_of::<T>(), &bytes(item));
    }
    Ok(area)
}

/// A completion queue's ring.
#[derive(Debug)]
pub struct Ring {
    map: Mapping,
    entries: u32,
}

impl Ring {
    /// Maps it.
    pub fn new(file: &File, cq: &abi::CqCreate) -> Outcome<Self> {
        let map = file.fd.share(cq.mmap_offset, cq.mmap_size);
        let map = map.map_err(because("mapping a ring"))?;
        Ok(Self::over(map, cq.entries))
    }

    /// The ring in this mapping.
    pub fn over(map: Mapping, entries: u32) -> Self {
        Self { map, entries }
    }

    /// Takes all completions that are there.
    pub fn reap(&self) -> Vec<abi::Cqe> {
        let tail = self.map.load(offset_of!(abi::CqRing, tail));
        let mut head = self.map.load(offset_of!(abi::CqRing, head));
        let mut out = Vec::new();
        let size = size_of::<abi::Cqe>();
        while head != tail {
            let slot = (head & (self.entries - 1)) as usize;
            out.push(value(
                &self.map.get(abi::CQ_ENTRIES_OFFSET + slot * size, size),
            ));
            head = head.wrapping_add(1);
        }
        self.map.store(offset_of!(abi::CqRing, head), head);
        out
    }

    /// Waits for `count` completions, and takes them. A wait that ends because io_uring has something for
    /// the thread to do begins anew.
    pub fn wait(&self, file: &File, cq: u32, count: usize) -> Outcome<Vec<abi::Cqe>> {
        let mut out = self.reap();
        let end = Instant::now() + hang();
        while out.len() < count {
            let arg = abi::Submit {
                cq,
                min_complete: (count - out.len()) as u32,
                timeout_ns: hang().as_nanos() as u64,
                ..abi::Submit::new()
            };
            let (result, got) = file.submit(&[], arg)?;
            result.map_err(|errno| format!("waiting is {errno:?}"))?;
            let more = self.reap();
            let again = got.wait_error == -libc::EINTR && Instant::now() < end;
            if more.is_empty() && got.wait_error != 0 && !again {
                let (had, error) = (out.len(), Errno::from_raw(-got.wait_error));
                return Err(format!("{had} of {count} completions came: {error}"));
            }
            out.extend(more);
        }
        Ok(out)
    }
}

/// An attached file with an object of every kind.
#[derive(Debug)]
pub struct Set {
    /// The file.
    pub file: File,
    /// A protection domain.
    pub pd: u32,
    /// A completion queue.
    pub cq: abi::CqCreate,
    /// A queue pair in INIT.
    pub idle: abi::QpCreate,
    /// A queue pair in RTS, connected to `b`.
    pub a: abi::QpCreate,
    /// A queue pair in RTS, connected to `a`.
    pub b: abi::QpCreate,
    /// A buffer of four pages.
    pub buffer: abi::BufferCreate,
    /// A grant of all of it, with all rights.
    pub grant: abi::GrantCreate,
    /// An address.
    pub ah: abi::AhCreate,
    /// A shared receive queue, which nothing uses.
    pub srq: abi::SrqCreate,
    /// The buffer's bytes.
    pub memory: Mapping,
    /// The ring of `cq`.
    pub ring: Ring,
    /// A listener, in a complete set.
    pub listener: u32,
    /// A queue pair in RESET that may be connected, in a complete set.
    pub spare: u32,
    /// A connection that has failed, in a complete set.
    pub connection: u32,
    /// A dma-buf of four pages, in a complete set.
    pub dma_buf: Option<OwnedFd>,
}

/// Bytes of the buffer of a [`Set`].
pub const BUFFER: u64 = 4 * PAGE as u64;

impl Set {
    /// Makes one.
    pub fn new() -> Outcome<Self> {
        let file = File::attached()?;
        let pd = file.pd()?;
        let cq = file.cq(256)?;
        let (idle, a) = (file.qp(pd, cq.handle)?, file.qp(pd, cq.handle)?);
        let b = file.qp(pd, cq.handle)?;
        let buffer = file.buffer(pd, BUFFER)?;
        let grant = file.accepted(&abi::GrantCreate {
            length: BUFFER,
            ..File::grant_args(buffer.handle)
        })?;
        file.bring(idle.handle, abi::QPS_INIT, 0)?;
        file.bring(a.handle, abi::QPS_RTS, b.qp_num)?;
        file.bring(b.handle, abi::QPS_RTS, a.qp_num)?;
        let (ah, srq) = (file.ah(pd)?, file.srq(pd, cq.handle)?);
        let memory = file.fd.share(buffer.mmap_offset, buffer.length);
        let memory = memory.map_err(because("mapping the buffer"))?;
        let ring = Ring::new(&file, &cq)?;
        Ok(Self {
            file,
            pd,
            cq,
            idle,
            a,
            b,
            buffer,
            grant,
            ah,
            srq,
            memory,
            ring,
            listener: 0,
            spare: 0,
            connection: 0,
            dma_buf: None,
        })
    }

    /// Makes one that has a listener and a connection, too, and a dma-buf.
    pub fn complete() -> Outcome<Self> {
        let mut set = Self::new()?;
        set.listener = set.file.accepted(&set.file.listen_args()?)?.handle;
        set.spare = set.file.qp(set.pd, set.cq.handle)?.handle;
        set.connection = set.file.failed(set.spare)?;
        set.dma_buf = Some(dma_buf(4).map_err(because("making a dma-buf"))?);
        Ok(set)
    }

    /// `length` bytes at `offset` of the buffer.
    pub fn sge(&self, offset: u64, length: u32) -> abi::Sge {
        abi::Sge {
            buffer: self.buffer.handle,
            length,
            offset,
        }
    }

    /// A receive of 64 bytes on the queue pair in INIT.
    pub fn recv(&self) -> abi::Wr {
        abi::Wr {
            qp: self.idle.handle,
            opcode: abi::WR_RECV,
            num_sge: 1,
            sge: self.sge(0, 64),
            ..abi::Wr::default()
        }
    }

    /// A write of the first 64 bytes of the buffer to its second page, from `a` to `b`.
    pub fn write(&self) -> abi::Wr {
        abi::Wr {
            qp: self.a.handle,
            opcode: abi::WR_RDMA_WRITE,
            flags: abi::SEND_SIGNALED,
            num_sge: 1,
            remote_addr: self.grant.addr + PAGE as u64,
            rkey: self.grant.rkey,
            sge: self.sge(0, 64),
            ..abi::Wr::default()
        }
    }

    /// Waits for `count` completions, and takes them. A wait that ends because io_uring has something for
    /// the thread to do begins anew.
    pub fn wait(&self, count: usize) -> Outcome<Vec<abi::Cqe>> {
        self.ring.wait(&self.file, self.cq.handle, count)
    }

    /// A write crosses, whatever was done before.
    pub fn works(&self, seed: u8) -> Outcome {
        let data: Vec<u8> = (0..64)
            .map(|i| seed.wrapping_mul(31).wrapping_add(i))
            .collect();
        self.memory.put(0, &data);
        self.memory.put(PAGE, &[!seed; 80]);
        self.file.post(&[abi::Wr {
            user_data: 4711,
            ..self.write()
        }])?;
        let done = self.wait(1)?;
        let got: Vec<_> = done.iter().map(|c| (c.user_data, c.status, c.qp)).collect();
        equal("completions", got, vec![(4711, 0, self.a.handle)])?;
        equal("data", self.memory.get(PAGE, 64), data)?;
        equal(
            "bytes behind it",
            self.memory.get(PAGE + 64, 16),
            vec![!seed; 16],
        )
    }
}

/// Returns `wr` with a time limit; 0 for none.
pub fn timed(wr: abi::Wr, timeout_ns: u64) -> abi::Wr {
    let flag = if timeout_ns == 0 {
        0
    } else {
        abi::REQUEST_TIMEOUT
    };
    abi::Wr {
        timeout_ns,
        flags: wr.flags | flag,
        ..wr
    }
}
