// SPDX-License-Identifier: MIT OR Apache-2.0

//! A process that does everything at once, on the devices of h1 and h2, until it is told to stop.
//!
//! Each worker is a thread that runs one session after the other: it opens files, makes objects,
//! does some steps with them and leaves, in good order or in the middle of what it does. Devices,
//! namespaces and the line may go at any time. Then a command fails with the errno that the header
//! promises, or a request with a status, and the worker begins anew. Anything else is wrong, and so
//! is data that is not there though the request that carried it has succeeded.
//!
//! On its standard input it takes
//!
//! - `calm`: from now on nothing is taken away, and `outage`: something may be. It begins in an
//!   outage. A session that lies in a calm as a whole may fail in fewer ways;
//! - `?`, which it answers with a line of counts, and `did`, before whose answer it prints how often
//!   it has done each thing;
//! - `exec`, after which it goes on as a new program;
//! - `stop`, or the end. Then it prints what it did, what it met and what was wrong, one a line.

use crate::file::{timed, Ring, INIT, REMOTE, RTR, RTS};
use crate::hosts::{pattern, Dice};
use crate::report::patience;
use crate::sys::abi::Command;
use crate::sys::{
    abi, arg, bytes, enter_net, linger, value, Area, Fd, Mapping, Place, Plain, Uring, PAGE,
};
use io_uring::{opcode, types};
use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::mman::ProtFlags;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command as Program, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Why a session ended before its time.
enum Stop {
    /// A command failed.
    Errno(&'static str, Errno),
    /// A request did, or was ended.
    Status(u16),
    /// What must never be.
    Wrong(String),
}

type Done<T = ()> = Result<T, Stop>;

fn wrong<T>(why: impl Into<String>) -> Done<T> {
    Err(Stop::Wrong(why.into()))
}

/// Takes a failure of the kind that `expected` names for success.
fn may<T>(result: Done<T>, expected: &[Errno]) -> Done<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Stop::Errno(_, errno)) if expected.contains(&errno) => Ok(None),
        Err(stop) => Err(stop),
    }
}

/// Returns whether the header documents that failure: at any time if the peer or a signal causes
/// it, and unless it `is_calm` also if a device, a namespace, an address, the line or memory is gone.
fn documented(command: &str, errno: Errno, is_calm: bool) -> bool {
    use Errno::*;
    match errno {
        // The peer does not answer, or not in time on a busy machine.
        EHOSTUNREACH | ETIMEDOUT => ROUTED.contains(&command),
        ECONNREFUSED | ECONNRESET | ENOTCONN => {
            matches!(command, "CONN_WAIT" | "ACCEPT" | "DISCONNECT")
        }
        ETIME => matches!(command, "GET_REQUEST" | "CONN_WAIT"),
        // It was stopped, and goes on.
        EINTR => matches!(command, "GET_REQUEST" | "CONN_WAIT" | "poll"),
        _ if is_calm => false,
        // The device was removed, no other is there yet, or no memory.
        ENODEV | ENOENT | ENOMEM => true,
        // The module is gone: there is no device file.
        ENXIO => command == "open",
        ENETUNREACH | ENETDOWN => ROUTED.contains(&command),
        EXDEV => matches!(command, "CONN_WAIT" | "ACCEPT"),
        // The device has no address, which keys need too.
        EADDRNOTAVAIL => {
            ROUTED.contains(&command)
                || matches!(
                    command,
                    "BUFFER_CREATE" | "BUFFER_REGISTER" | "GRANT_CREATE"
                )
        }
        // The GID that the address names has gone meanwhile.
        EINVAL | ENODATA => matches!(command, "QP_MODIFY" | "AH_CREATE"),
        _ => false,
    }
}

/// The commands that need a route.
const ROUTED: [&str; 6] = [
    "QP_MODIFY",
    "AH_CREATE",
    "CONNECT",
    "CONN_WAIT",
    "ACCEPT",
    "LISTEN",
];

/// What a worker does at the moment.
#[derive(Default)]
struct Pulse {
    beats: AtomicU64,
    command: Mutex<&'static str>,
}

/// What the workers have together.
#[derive(Default)]
struct All {
    stop: AtomicBool,
    /// Grows with each outage and each calm; odd in a calm.
    phase: AtomicU64,
    did: Mutex<BTreeMap<&'static str, u64>>,
    met: Mutex<BTreeMap<String, u64>>,
    wrong: Mutex<Vec<String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl All {
    fn did(&self, what: &'static str, times: u64) {
        *lock(&self.did).entry(what).or_default() += times;
    }

    fn met(&self, what: String) {
        *lock(&self.met).entry(what).or_default() += 1;
    }

    fn wrong(&self, why: String) {
        println!("wrong {}", why.replace('\n', " "));
        lock(&self.wrong).push(why);
    }

    fn say_done(&self) {
        for (what, times) in &*lock(&self.did) {
            println!("did {times} {what}");
        }
    }

    fn say_sum(&self) {
        let done: u64 = lock(&self.did).values().sum();
        println!("at {done} wrong {}", lock(&self.wrong).len());
    }

    /// Begins a calm, or an outage; if it is at hand already, it goes on.
    fn begin(&self, is_calm: bool) {
        let phase = self.phase.load(Relaxed);
        self.phase
            .store(phase + u64::from((phase % 2 == 1) != is_calm), Relaxed);
    }
}

/// A worker.
#[derive(Clone, Copy)]
struct Worker<'a> {
    all: &'a All,
    pulse: &'a Pulse,
    /// The phase in which its session began.
    phase: u64,
}

impl Worker<'_> {
    fn over(&self) -> bool {
        self.all.stop.load(Relaxed)
    }

    /// Returns whether nothing has been taken away since its session began.
    fn is_calm(&self) -> bool {
        self.phase % 2 == 1 && self.all.phase.load(Relaxed) == self.phase
    }

    fn begins(&self, command: &'static str) {
        *lock(&self.pulse.command) = command;
        self.pulse.beats.fetch_add(1, Relaxed);
    }
}

// --- files and objects --------------------------------------------------------------

/// An attached file, and memory for one thread's arguments.
struct Link<'a> {
    worker: Worker<'a>,
    fd: Arc<Fd>,
    area: Area,
    port: u32,
    gid_index: u8,
    gid: [u8; 16],
}

fn memory(pages: usize) -> Done<Area> {
    Area::new(pages).map_err(|errno| Stop::Errno("mmap of memory", errno))
}

/// Runs `make` in the network namespace `host`.
fn inside<T>(host: &str, make: impl FnOnce() -> T) -> Done<T> {
    let gone = |error: std::io::Error| {
        Stop::Errno("netns", Errno::from_raw(error.raw_os_error().unwrap_or(0)))
    };
    let here = fs::File::open("/proc/thread-self/ns/net").map_err(gone)?;
    let there = fs::File::open(format!("/run/netns/{host}")).map_err(gone)?;
    // What is left of a deleted namespace is a plain file.
    if enter_net(&there).is_err() {
        return Err(Stop::Errno("netns", Errno::ENOENT));
    }
    let made = make();
    match enter_net(&here) {
        Ok(()) => Ok(made),
        Err(errno) => wrong(format!("coming back to the namespace: {errno}")),
    }
}

impl<'a> Link<'a> {
    /// A file of the device that `host` prefers.
    fn open(worker: Worker<'a>, host: &str) -> Done<Self> {
        worker.begins("open");
        let fd = inside(host, Fd::open)?.map_err(|error| {
            Stop::Errno("open", Errno::from_raw(error.raw_os_error().unwrap_or(0)))
        })?;
        Self::adopt(worker, fd)
    }

    /// The same with a file that is open, and perhaps attached.
    fn adopt(worker: Worker<'a>, fd: Fd) -> Done<Self> {
        let mut link = Self {
            worker,
            fd: Arc::new(fd),
            area: memory(6)?,
            port: 1,
            gid_index: 0,
            gid: [0; 16],
        };
        if let Some(got) = may(link.call(abi::Attach::new()), &[Errno::EALREADY])? {
            (link.port, link.gid_index) = (got.port, got.gid_index as u8);
            if got.gid_index == u32::MAX {
                return Err(Stop::Errno("ATTACH", Errno::ENOENT));
            }
        }
        let size = size_of::<abi::GidEntry>();
        let got = link.call(abi::GidQuery {
            entries: link.area.at(2 * PAGE),
            entry_size: abi::GidEntry::SIZE,
            capacity: 32,
            port: link.port,
            ..abi::GidQuery::default()
        })?;
        let gids = (0..got.count.min(32) as usize)
            .map(|i| value::<abi::GidEntry>(&link.area.get(2 * PAGE + i * size, size)));
        let preferred = gids
            .into_iter()
            .find(|gid| gid.flags & abi::GID_PREFERRED != 0);
        let gid = preferred.ok_or(Stop::Errno("GID_QUERY", Errno::ENOENT))?;
        (link.gid, link.gid_index) = (gid.gid, gid.index as u8);
        Ok(link)
    }

    /// The same file for another thread.
    fn again(&self) -> Done<Self> {
        Ok(Self {
            fd: Arc::clone(&self.fd),
            area: memory(6)?,
            ..*self
        })
    }

    fn call<C: Command + Plain>(&self, arg: C) -> Done<C> {
        self.worker.begins(C::NAME);
        self.area.put(0, &bytes(&arg));
        // Every command begins with the size of its struct.
        self.area.put(0, &bytes(&(size_of::<C>() as u32)));
        match self.fd.ioctl(C::NR, Place::In(&self.area, 0)) {
            Ok(()) => Ok(value(&self.area.get(0, size_of::<C>()))),
            Err(errno) => Err(Stop::Errno(C::NAME, errno)),
        }
    }

    fn share(&self, offset: u64, len: u64) -> Done<Mapping> {
        self.worker.begins("mmap");
        let map = self.fd.share(offset, len);
        map.map_err(|errno| Stop::Errno("mmap", errno))
    }

    fn pd(&self) -> Done<u32> {
        Ok(self.call(abi::PdCreate::default())?.handle)
    }

    fn destroy(&self, handle: u32) -> Done {
        let arg = arg!(Destroy, handle);
        self.call(arg).map(drop)
    }

    fn buffer(&self, pd: u32, length: u64) -> Done<abi::BufferCreate> {
        let node = abi::NODE_ANY;
        self.call(arg!(BufferCreate, pd, length, node))
    }

    fn grant(&self, buffer: u32, length: u64) -> Done<abi::GrantCreate> {
        self.call(arg!(GrantCreate, buffer, length, access = REMOTE))
    }

    /// Posts all of `wrs`; when a queue is full, the first of them.
    fn post(&self, wrs: &[abi::Wr]) -> Done {
        let array: Vec<u8> = wrs.iter().flat_map(bytes).collect();
        self.area.put(PAGE, &array);
        let got = self.call(abi::Submit {
            wrs: self.area.at(PAGE),
            nr_wrs: wrs.len() as u32,
            wr_size: abi::Wr::SIZE,
            ..abi::Submit::default()
        })?;
        match (got.stop_error, got.posted as usize == wrs.len()) {
            (0, true) => Ok(()),
            (error, false) if error != 0 => {
                Err(Stop::Errno(abi::Submit::NAME, Errno::from_raw(-error)))
            }
            _ => wrong(format!(
                "{} of {} requests were posted, stop_error {}",
                got.posted,
                wrs.len(),
                got.stop_error
            )),
        }
    }

    /// Sleeps for a completion in `cq`.
    fn sleep(&self, cq: u32, milliseconds: u64) -> Done<i32> {
        let got = self.call(abi::Submit {
            cq,
            wr_size: abi::Wr::SIZE,
            min_complete: 1,
            timeout_ns: milliseconds * 1_000_000,
            ..abi::Submit::default()
        })?;
        Ok(got.wait_error)
    }
}

/// Naps that together are longer than all the tries of a sender take.
const NAPS: u32 = 80;

/// A completion queue.
struct Queue {
    handle: u32,
    ring: Ring,
}

impl Queue {
    fn new(link: &Link<'_>, entries: u32, delivery: u32) -> Done<Self> {
        Self::with(link, arg!(CqCreate, entries, delivery))
    }

    fn with(link: &Link<'_>, options: abi::CqCreate) -> Done<Self> {
        let got = link.call(options)?;
        Ok(Self {
            handle: got.handle,
            ring: Ring::over(link.share(got.mmap_offset, got.mmap_size)?, got.entries),
        })
    }

    /// What is there.
    fn reap(&self) -> Vec<abi::Cqe> {
        self.ring.reap()
    }

    /// Sleeps for a quarter of a second, or until a completion is there, and says whether one came.
    fn nap(&self, link: &Link<'_>) -> Done<bool> {
        match link.sleep(self.handle, 250)? {
            0 => Ok(true),
            error => match Errno::from_raw(-error) {
                Errno::ETIME | Errno::EINTR => Ok(false),
                errno => Err(Stop::Errno("wait", errno)),
            },
        }
    }

    /// The next `count` completions. Sleeps are counted, and not the time: who is stopped is late.
    fn wait(&self, link: &Link<'_>, count: usize) -> Done<Vec<abi::Cqe>> {
        let (mut out, mut idle) = (Vec::new(), 0);
        loop {
            out.extend(self.reap());
            if out.len() >= count {
                return Ok(out);
            }
            idle = if self.nap(link)? { 0 } else { idle + 1 };
            if idle > NAPS * patience() {
                return wrong(format!(
                    "{} of {count} completions came in {idle} sleeps",
                    out.len()
                ));
            }
        }
    }
}

/// Whether the line loses, doubles and reorders. No atomics then: rxe loses what they bring.
fn rough() -> bool {
    std::env::var_os("ULP_LOAD_LINE").is_some_and(|value| value == "rough")
}

/// Bytes of a buffer of an [`End`], and of each half.
const LENGTH: usize = 1 << 16;
const HALF: usize = LENGTH / 2;

/// All that one end of a line needs. What is dropped first is chance's in [`part`].
struct End<'a> {
    link: Link<'a>,
    pd: u32,
    cq: Queue,
    qp: abi::QpCreate,
    buffer: abi::BufferCreate,
    grant: abi::GrantCreate,
    memory: Mapping,
    psn: u32,
}

impl<'a> End<'a> {
    fn new(
        link: Link<'a>,
        dice: &mut Dice,
        qp_type: u32,
        srq: Option<(u32, Queue, u32)>,
    ) -> Done<Self> {
        let (pd, cq, srq) = match srq {
            Some((pd, cq, srq)) => (pd, cq, srq),
            None => (link.pd()?, Queue::new(&link, 256, dice.below(3) as u32)?, 0),
        };
        let qp = link.call(abi::QpCreate {
            pd,
            send_cq: cq.handle,
            recv_cq: cq.handle,
            srq,
            qp_type,
            max_send_wr: 64,
            max_recv_wr: if srq == 0 { 64 } else { 0 },
            max_send_sge: 2,
            max_recv_sge: if srq == 0 { 2 } else { 0 },
            max_inline: 64,
            ..abi::QpCreate::default()
        })?;
        let buffer = link.buffer(pd, LENGTH as u64)?;
        let grant = link.grant(buffer.handle, LENGTH as u64)?;
        let memory = link.share(buffer.mmap_offset, buffer.length)?;
        let psn = dice.below(1 << 24) as u32;
        Ok(Self {
            link,
            pd,
            cq,
            qp,
            buffer,
            grant,
            memory,
            psn,
        })
    }

    /// Has another queue pair, whose waiter polls the device's queue before it sleeps.
    fn poll_busily(&mut self) -> Done {
        self.link.destroy(self.qp.handle)?;
        self.link.destroy(self.cq.handle)?;
        let options = abi::CqCreate {
            entries: 256,
            delivery: abi::DELIVER_WORKQUEUE,
            busy_poll_us: 1000,
            ..abi::CqCreate::new()
        };
        self.cq = Queue::with(&self.link, options)?;
        let cq = self.cq.handle;
        self.qp = self.link.call(abi::QpCreate {
            send_cq: cq,
            recv_cq: cq,
            ..self.qp
        })?;
        Ok(())
    }

    fn attributes(&self, peer: &Self) -> abi::QpAttr {
        abi::QpAttr {
            qkey: QKEY,
            rq_psn: peer.psn,
            sq_psn: self.psn,
            dest_qp_num: peer.qp.qp_num,
            access_flags: REMOTE,
            path_mtu: 3,
            port_num: self.link.port,
            timeout: 14,
            retry_cnt: 6,
            rnr_retry: 6,
            min_rnr_timer: 12,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            ah: self.address(&peer.link),
            ..abi::QpAttr::default()
        }
    }

    fn address(&self, peer: &Link<'_>) -> abi::AhAttr {
        abi::AhAttr {
            dgid: peer.gid,
            sgid_index: self.link.gid_index,
            port_num: self.link.port,
            is_global: 1,
            hop_limit: 64,
            ..abi::AhAttr::default()
        }
    }

    fn modify(&self, state: u8, attr_mask: u32, attr: abi::QpAttr) -> Done {
        let attr = abi::QpAttr {
            qp_state: state,
            ..attr
        };
        let qp = self.qp.handle;
        let arg = arg!(QpModify, qp, attr_mask, attr);
        self.link.call(arg).map(drop)
    }

    /// RESET to RTS, towards the peer.
    fn connect(&self, peer: &Self, qp_type: u32) -> Done {
        const RESPONDER: u32 = abi::QP_MAX_DEST_RD_ATOMIC | abi::QP_MIN_RNR_TIMER;
        let attr = self.attributes(peer);
        match qp_type {
            abi::QPT_UD => {
                let init = INIT & !abi::QP_ACCESS_FLAGS | abi::QP_QKEY;
                self.modify(abi::QPS_INIT, init, attr)?;
                self.modify(abi::QPS_RTR, abi::QP_STATE, attr)?;
                self.modify(abi::QPS_RTS, abi::QP_STATE | abi::QP_SQ_PSN, attr)
            }
            abi::QPT_UC => {
                self.modify(abi::QPS_INIT, INIT, attr)?;
                self.modify(abi::QPS_RTR, RTR & !RESPONDER, attr)?;
                self.modify(abi::QPS_RTS, abi::QP_STATE | abi::QP_SQ_PSN, attr)
            }
            _ => {
                self.modify(abi::QPS_INIT, INIT, attr)?;
                self.modify(abi::QPS_RTR, RTR, attr)?;
                self.modify(abi::QPS_RTS, RTS, attr)
            }
        }
    }

    fn sge(&self, offset: usize, length: usize) -> abi::Sge {
        abi::Sge {
            buffer: self.buffer.handle,
            length: length as u32,
            offset: offset as u64,
        }
    }

    fn recv(&self, offset: usize, length: usize, user_data: u64) -> abi::Wr {
        abi::Wr {
            user_data,
            qp: self.qp.handle,
            opcode: abi::WR_RECV,
            num_sge: 1,
            sge: self.sge(offset, length),
            ..abi::Wr::default()
        }
    }

    /// A request from `offset` here to `to` there.
    fn request(
        &self,
        op: u8,
        peer: &Self,
        offset: usize,
        to: usize,
        length: usize,
        user_data: u64,
    ) -> abi::Wr {
        abi::Wr {
            user_data,
            qp: self.qp.handle,
            opcode: op,
            flags: abi::SEND_SIGNALED,
            num_sge: 1,
            remote_addr: if op == abi::WR_SEND {
                0
            } else {
                peer.grant.addr + to as u64
            },
            rkey: if op == abi::WR_SEND {
                0
            } else {
                peer.grant.rkey
            },
            sge: self.sge(offset, length),
            ..abi::Wr::default()
        }
    }

    /// Waits for the requests with these numbers, in order, which all succeed.
    fn succeed(&self, numbers: std::ops::Range<u64>) -> Done {
        let got = self
            .cq
            .wait(&self.link, (numbers.end - numbers.start) as usize)?;
        for (done, number) in got.iter().zip(numbers.clone()) {
            if done.user_data != number {
                return wrong(format!(
                    "request {} completed for {number} of {numbers:?}",
                    done.user_data
                ));
            }
            if done.status != 0 {
                return Err(Stop::Status(done.status));
            }
        }
        match got.len() as u64 == numbers.end - numbers.start {
            true => Ok(()),
            false => wrong(format!("{} completions for {numbers:?}", got.len())),
        }
    }

    /// Waits for `count` completions with whatever status.
    fn settle(&self, count: usize) -> Done {
        let got = self.cq.wait(&self.link, count)?;
        for done in got.iter().filter(|done| done.status != 0) {
            self.link.worker.all.met(status(done.status));
        }
        match got.len() == count {
            true => Ok(()),
            false => wrong(format!("{} completions for {count} requests", got.len())),
        }
    }

    fn holds(&self, what: &str, at: usize, want: &[u8]) -> Done {
        match self.memory.get(at, want.len()) == want {
            true => Ok(()),
            false => wrong(format!(
                "{what}: {} bytes at {at} are not what was sent",
                want.len()
            )),
        }
    }
}

const QKEY: u32 = 0x1122_3344;

fn status(status: u16) -> String {
    format!("status {status}")
}

/// Two ends, each on its host, that nobody connected.
fn two<'a>(worker: Worker<'a>, dice: &mut Dice, qp_type: u32) -> Done<(End<'a>, End<'a>)> {
    let mut hosts = ["h1", "h2"];
    if dice.one_in(2) {
        hosts.reverse();
    }
    let [a, b] = hosts.map(|host| Link::open(worker, host));
    Ok((
        End::new(a?, dice, qp_type, None)?,
        End::new(b?, dice, qp_type, None)?,
    ))
}

/// Leaves two ends, in one of the ways that there are.
fn part(dice: &mut Dice, a: End<'_>, b: End<'_>) -> Done {
    match dice.below(6) {
        // With a peer that is gone first, or a mapping that is left.
        0 => {
            drop(b.link);
            drop(a.memory);
        }
        1 => {
            let End {
                link, memory, cq, ..
            } = a;
            drop(link);
            // Pages and rings outlive the file.
            memory.put(0, &[1; 64]);
            drop(cq.reap());
        }
        // Everything by its own command, in an order that works.
        2 => {
            for end in [&b, &a] {
                for handle in [
                    end.qp.handle,
                    end.grant.handle,
                    end.buffer.handle,
                    end.cq.handle,
                    end.pd,
                ] {
                    // What was destroyed before, and what a shared receive queue needs.
                    may(end.link.destroy(handle), &[Errno::ENOENT, Errno::EBUSY])?;
                }
            }
        }
        // The rings first, and the file from under its mappings.
        3 => {
            drop(a.cq);
            drop(b.cq);
        }
        _ => (),
    }
    Ok(())
}

// --- sessions ------------------------------------------------------------------------

/// Reliable connections: every operation, checked; and what is destroyed while it is in flight.
fn reliable(worker: Worker<'_>, dice: &mut Dice) -> Done {
    let all = worker.all;
    let (mut a, b) = two(worker, dice, abi::QPT_RC)?;
    if dice.one_in(4) {
        a.poll_busily()?;
    }
    a.connect(&b, abi::QPT_RC)?;
    b.connect(&a, abi::QPT_RC)?;
    all.did("rc", 1);
    let mut n = 0;
    for _ in 0..8 + dice.below(32) {
        if worker.over() {
            break;
        }
        let most = dice.of([64, 2048, 8192]);
        let length = 1 + dice.below(most) as usize;
        let (from, to) = (
            dice.below((HALF - length) as u64) as usize,
            HALF + dice.below((HALF - length) as u64) as usize,
        );
        let data = pattern(dice.next(), length);
        n += 1;
        match dice.below(6) {
            3 if rough() => (),
            0 | 1 => {
                a.memory.put(from, &data);
                a.link
                    .post(&[a.request(abi::WR_RDMA_WRITE, &b, from, to, length, n)])?;
                a.succeed(n..n + 1)?;
                b.holds("a write", to, &data)?;
                all.did("write", 1);
            }
            2 => {
                b.memory.put(to, &data);
                a.link
                    .post(&[a.request(abi::WR_RDMA_READ, &b, from, to, length, n)])?;
                a.succeed(n..n + 1)?;
                a.holds("a read", from, &data)?;
                all.did("read", 1);
            }
            3 => {
                let (to, old, add) = (to & !7, dice.next(), dice.next());
                b.memory.put(to, &old.to_le_bytes());
                let swap = dice.one_in(2);
                let op = if swap {
                    abi::WR_ATOMIC_CMP_AND_SWP
                } else {
                    abi::WR_ATOMIC_FETCH_AND_ADD
                };
                let new = if swap { add } else { old.wrapping_add(add) };
                let (compare_add, second) = if swap { (old, add) } else { (add, 0) };
                let args = abi::WrAtomic {
                    compare_add,
                    swap: second,
                };
                a.link.post(&[abi::Wr {
                    args: args.into(),
                    ..a.request(op, &b, from & !7, to, 8, n)
                }])?;
                a.succeed(n..n + 1)?;
                a.holds("an atomic's old value", from & !7, &old.to_le_bytes())?;
                b.holds("an atomic's new value", to, &new.to_le_bytes())?;
                all.did("atomic", 1);
            }
            4 => {
                a.memory.put(from, &data);
                b.link.post(&[b.recv(to, length, n)])?;
                a.link
                    .post(&[a.request(abi::WR_SEND, &b, from, 0, length, n)])?;
                a.succeed(n..n + 1)?;
                b.succeed(n..n + 1)?;
                b.holds("a send", to, &data)?;
                all.did("send", 1);
            }
            _ => {
                let wrs: Vec<_> = (n..n + 16)
                    .map(|i| a.request(abi::WR_RDMA_WRITE, &b, 0, HALF, 2048, i))
                    .collect();
                a.link.post(&wrs)?;
                a.succeed(n..n + 16)?;
                n += 16;
                all.did("batch", 16);
            }
        }
    }
    let wrs: Vec<_> = (0..24)
        .map(|i| {
            let wr = a.request(abi::WR_RDMA_WRITE, &b, 0, HALF, 4096, i);
            timed(wr, if i % 4 == 3 { 50_000_000 } else { 0 })
        })
        .collect();
    match dice.below(8) {
        0 => return part(dice, a, b),
        1 => {
            a.link.post(&wrs)?;
            b.link.destroy(b.grant.handle)?;
            all.did("grant revoked in flight", 1);
            a.settle(24)?;
            return Ok(());
        }
        2 => {
            a.link.post(&wrs)?;
            drop(a.memory);
            drop(b.memory);
            all.did("mapping gone in flight", 1);
            return Ok(());
        }
        3 => {
            a.link.post(&wrs)?;
            // Mapped and in flight. The memory is there for as long as a mapping is.
            a.memory.put(PAGE, &[9; 64]);
            for (end, handle) in [
                (&b, b.grant.handle),
                (&b, b.buffer.handle),
                (&a, a.grant.handle),
                (&a, a.buffer.handle),
            ] {
                end.link.destroy(handle)?;
            }
            a.holds("a buffer that was destroyed", PAGE, &[9; 64])?;
            all.did("buffer destroyed in flight", 2);
            a.settle(24)?;
        }
        4 => {
            a.link.post(&wrs)?;
            a.link.destroy(a.qp.handle)?;
            all.did("queue pair destroyed in flight", 1);
            a.settle(24)?;
        }
        5 => {
            a.link.post(&wrs)?;
            a.modify(abi::QPS_ERR, abi::QP_STATE, abi::QpAttr::default())?;
            a.settle(24)?;
        }
        6 => {
            a.link.post(&wrs)?;
            let queue = a.qp.handle;
            let arg = arg!(Cancel, queue, flags = abi::CANCEL_ALL);
            let got = a.link.call(arg)?;
            all.did("cancel", u64::from(got.canceled));
            a.settle(24)?;
        }
        _ => a.link.post(&wrs)?,
    }
    all.did("left in flight", 1);
    part(dice, a, b)
}

/// Unreliable connections, and datagrams into a shared receive queue: what arrives is right.
fn unreliable(worker: Worker<'_>, dice: &mut Dice) -> Done {
    let all = worker.all;
    let kind = if dice.one_in(3) {
        abi::QPT_UC
    } else {
        abi::QPT_UD
    };
    let datagrams = kind == abi::QPT_UD;
    let a = End::new(Link::open(worker, "h1")?, dice, kind, None)?;
    let link = Link::open(worker, "h2")?;
    let (pd, cq) = (link.pd()?, Queue::new(&link, 256, dice.below(3) as u32)?);
    let srq = link.call(abi::SrqCreate {
        pd,
        cq: cq.handle,
        max_wr: 64,
        max_sge: 2,
        ..abi::SrqCreate::default()
    })?;
    let srq = if datagrams { srq.handle } else { 0 };
    let b = End::new(link, dice, kind, Some((pd, cq, srq)))?;
    a.connect(&b, kind)?;
    b.connect(&a, kind)?;
    all.did(if datagrams { "ud" } else { "uc" }, 1);
    let mut earlier: Vec<Vec<u8>> = Vec::new();
    for n in 0..4 + dice.below(12) {
        if worker.over() {
            break;
        }
        let length = 1 + dice.below(900) as usize;
        let data = pattern(dice.next(), length);
        a.memory.put(0, &data);
        let recv = b.recv(HALF, 1024, n);
        b.link.post(&[abi::Wr {
            qp: if srq == 0 { recv.qp } else { srq },
            ..recv
        }])?;
        let mut wr = a.request(abi::WR_SEND, &b, 0, 0, length, n);
        if datagrams {
            let attr = a.address(&b.link);
            let ah = a.link.call(arg!(AhCreate, pd = a.pd, attr))?;
            wr.args = abi::WrUd {
                ah: ah.handle,
                qp_num: b.qp.qp_num,
                qkey: QKEY,
                pad: 0,
            }
            .into();
            a.link.post(&[wr])?;
            a.link.destroy(ah.handle)?;
        } else {
            a.link.post(&[wr])?;
        }
        a.succeed(n..n + 1)?;
        all.did("datagram", 1);
        b.link.sleep(b.cq.handle, 100)?;
        let got = b.cq.reap();
        let [done] = got[..] else { break };
        if done.status != 0 {
            return Err(Stop::Status(done.status));
        }
        let head = if datagrams { 40 } else { 0 };
        // Unreliable transports do not tell what the line has doubled: one of before takes this receive.
        let again = |old: &Vec<u8>| {
            done.byte_len as usize == head + old.len()
                && b.memory.get(HALF + head, old.len()) == *old
        };
        if rough() && done.user_data == n && earlier.iter().any(again) {
            all.did("datagram twice", 1);
            break;
        }
        if done.byte_len as usize != head + length || done.user_data != n {
            return wrong(format!(
                "a datagram of {length} bytes arrived with {}",
                done.byte_len
            ));
        }
        b.holds("a datagram", HALF + head, &data)?;
        all.did("datagram received", 1);
        earlier.push(data);
    }
    if dice.one_in(2) {
        b.link
            .call(arg!(SrqQuery, srq))
            .map(drop)
            .or_else(|stop| match srq {
                0 => Ok(()),
                _ => Err(stop),
            })?;
        b.link.destroy(b.qp.handle)?;
        if srq != 0 {
            b.link.destroy(srq)?;
        }
        return Ok(());
    }
    part(dice, a, b)
}

/// Buffers that are made, mapped, granted once and again, cut, moved, protected and destroyed.
fn buffers(worker: Worker<'_>, dice: &mut Dice) -> Done {
    let all = worker.all;
    let link = Link::open(worker, dice.of(["h1", "h2"]))?;
    let pd = link.pd()?;
    let mut kept = Vec::new();
    let own = memory(16)?;
    for _ in 0..4 + dice.below(24) {
        if worker.over() {
            break;
        }
        let most = dice.of([4, 64, 512]);
        let length = PAGE as u64 * (2 + dice.below(most));
        let buffer = link.buffer(pd, length)?;
        let mut map = link.share(buffer.mmap_offset, buffer.length)?;
        let mut grant = link.grant(buffer.handle, 1 + dice.below(length))?;
        let mark = dice.next().to_le_bytes();
        map.put(PAGE, &mark);
        all.did("buffer", 1);
        match dice.below(7) {
            0 => {
                link.destroy(grant.handle)?;
                grant = link.grant(buffer.handle, grant.length)?;
                all.did("granted anew", 1);
            }
            1 => {
                // Half of the mapping goes, the other half stays.
                let (first, second) = map.split(PAGE);
                drop(first);
                if second.get(0, 8) != mark {
                    return wrong("what was not unmapped has changed");
                }
                map = second;
                all.did("partial munmap", 1);
            }
            2 => {
                map.relocate()
                    .map_err(|errno| Stop::Errno("mremap", errno))?;
                all.did("mremap", 1);
                if map.get(PAGE, 8) != mark {
                    return wrong("what was moved has changed");
                }
            }
            3 => {
                for rights in [ProtFlags::PROT_NONE, ProtFlags::PROT_READ] {
                    map.try_protect(rights)
                        .map_err(|errno| Stop::Errno("mprotect", errno))?;
                }
                let rights = ProtFlags::PROT_READ | ProtFlags::PROT_EXEC;
                if map.try_protect(rights) != Err(Errno::EACCES) || map.try_grow().is_ok() {
                    return wrong("a mapping became executable, or grew");
                }
                all.did("mprotect", 1);
            }
            4 => {
                let addr = own.at(dice.below(PAGE as u64) as usize);
                let length = 1 + dice.below(8 * PAGE as u64);
                let user = link.call(arg!(BufferRegister, pd, addr, length))?;
                link.grant(user.handle, length)?;
                if dice.one_in(2) {
                    kept.push((None, user.handle));
                }
                all.did("register", 1);
            }
            5 => {
                link.destroy(grant.handle)?;
                link.destroy(buffer.handle)?;
                if map.get(PAGE, 8) != mark {
                    return wrong("a mapped buffer that was destroyed has changed");
                }
                all.did("buffer destroyed while mapped", 1);
                continue;
            }
            _ => {
                link.call(arg!(BufferQuery, buffer = buffer.handle))?;
            }
        }
        if dice.one_in(3) {
            kept.push((Some(map), buffer.handle));
        } else {
            drop(map);
            link.destroy(grant.handle)?;
            link.destroy(buffer.handle)?;
        }
    }
    if dice.one_in(2) {
        let maps: Vec<_> = kept.into_iter().filter_map(|(map, _)| map).collect();
        drop(link);
        drop(maps);
    }
    Ok(())
}

fn local(host: u8, port: u16) -> abi::Addr {
    let mut addr = abi::Addr {
        family: 2,
        port,
        ..abi::Addr::default()
    };
    addr.addr[..4].copy_from_slice(&[10, 9, 0, host]);
    addr
}

fn param() -> abi::ConnParam {
    abi::ConnParam {
        responder_resources: 4,
        initiator_depth: 4,
        retry_cnt: 6,
        rnr_retry: 6,
        min_rnr_timer: 12,
        ack_timeout: 14,
        access_flags: REMOTE,
        ..abi::ConnParam::default()
    }
}

/// A server, whom a client connects to, and who accepts, refuses or leaves.
fn manager(worker: Worker<'_>, dice: &mut Dice) -> Done {
    let server = End::new(Link::open(worker, "h1")?, dice, abi::QPT_RC, None)?;
    let addr = abi::Addr {
        family: 2,
        ..abi::Addr::default()
    };
    let listener = server.link.call(arg!(Listen, addr, backlog = 4))?;
    let (seed, sent) = (dice.next(), &AtomicBool::new(false));
    thread::scope(|scope| {
        let port = listener.addr.port;
        let client = scope.spawn(move || client(worker, &mut Dice::new(seed), port, sent));
        let left = || client.is_finished().then(|| sent.load(Relaxed));
        let served = serve(worker, dice, &server, listener.handle, left);
        let left = server.link.destroy(listener.handle);
        let client = client
            .join()
            .unwrap_or_else(|_| wrong("the client panicked"));
        for stop in [served, left, client].into_iter().filter_map(Result::err) {
            match stop {
                Stop::Wrong(why) => return Err(Stop::Wrong(why)),
                stop => report(worker, stop),
            }
        }
        Ok(())
    })
}

/// Accepts a request and receives a message. `left` is `None` while the client is there, and then
/// says whether its message has arrived.
fn serve(
    worker: Worker<'_>,
    dice: &mut Dice,
    end: &End<'_>,
    listener: u32,
    left: impl Fn() -> Option<bool>,
) -> Done {
    let arg = arg!(GetRequest, listener, timeout_ns = 2_000_000_000);
    let request = end.link.call(arg)?.handle;
    match dice.below(6) {
        0 => {
            end.link.call(arg!(Reject, request))?;
            worker.all.did("reject", 1);
            return Ok(());
        }
        1 => return end.link.destroy(request),
        2 => return Ok(()),
        _ => (),
    }
    let accepted = end.link.call(abi::Accept {
        request,
        qp: end.qp.handle,
        param: param(),
        ..abi::Accept::default()
    });
    let accepted = accepted.and_then(|_| wait(end, request, 4_000_000_000));
    if accepted.is_err() {
        // It is pending, or has failed.
        may(end.link.destroy(request), &[Errno::ENOENT])?;
    }
    accepted?;
    worker.all.did("accept", 1);
    end.link.post(&[end.recv(HALF, 64, 7)])?;
    // A client that leaves says so once (cm.c, cm_destroy_id()). If the line loses that, nothing ends
    // the connection, and its receiver must give up of its own accord.
    let mut naps = 0;
    while !end.cq.nap(&end.link)? {
        let Some(has_sent) = left() else { continue };
        naps += 1;
        if naps > 8 && !has_sent && (rough() || !worker.is_calm()) {
            worker.all.met("a peer that left unheard".into());
            return Ok(());
        }
        if naps > NAPS * patience() {
            return wrong(format!(
                "nothing came in {naps} naps after the client had left, message sent: {has_sent}"
            ));
        }
    }
    end.succeed(7..8)?;
    end.holds("a message over a connection", HALF, &[0x5a; 64])?;
    if dice.one_in(2) {
        disconnect(worker, end, request)?;
        end.link.destroy(request)?;
    }
    Ok(())
}

/// Waits for the end of an attempt to connect.
fn wait(end: &End<'_>, conn: u32, timeout_ns: u64) -> Done {
    end.link.call(arg!(ConnWait, conn, timeout_ns))?;
    Ok(())
}

/// Connects and sends a message; `sent` says whether it has arrived.
fn client(worker: Worker<'_>, dice: &mut Dice, port: u16, sent: &AtomicBool) -> Done {
    let end = End::new(Link::open(worker, "h2")?, dice, abi::QPT_RC, None)?;
    let got = end.link.call(abi::Connect {
        qp: end.qp.handle,
        dst: local(1, port),
        param: param(),
        ..abi::Connect::default()
    })?;
    let waited = wait(&end, got.handle, 1_000_000 * dice.of([50, 3000, 6000]));
    if waited.is_err() {
        // It is pending, or has failed.
        may(end.link.destroy(got.handle), &[Errno::ENOENT])?;
    }
    waited?;
    worker.all.did("connect", 1);
    end.memory.put(0, &[0x5a; 64]);
    end.link.post(&[abi::Wr {
        rkey: 0,
        remote_addr: 0,
        ..end.request(abi::WR_SEND, &end, 0, 0, 64, 3)
    }])?;
    end.succeed(3..4)?;
    sent.store(true, Relaxed);
    end.link.call(arg!(ConnQuery, conn = got.handle))?;
    match dice.below(3) {
        0 => disconnect(worker, &end, got.handle),
        1 => end.link.destroy(got.handle),
        _ => Ok(()),
    }
}

/// Ends a connection, unless the peer was first.
fn disconnect(worker: Worker<'_>, end: &End<'_>, conn: u32) -> Done {
    let arg = arg!(Disconnect, conn);
    let done = may(end.link.call(arg), &[Errno::ENOTCONN])?;
    worker.all.did("disconnect", done.is_some().into());
    Ok(())
}

/// Requests by io_uring, whose ring goes before the file, or after it, or in the middle.
fn uring(worker: Worker<'_>, dice: &mut Dice) -> Done {
    let all = worker.all;
    let (a, b) = two(worker, dice, abi::QPT_RC)?;
    a.connect(&b, abi::QPT_RC)?;
    b.connect(&a, abi::QPT_RC)?;
    let mut ring = match Uring::new(64, |_| ()) {
        Ok(ring) => ring,
        Err(error) => {
            return Err(Stop::Errno(
                "io_uring",
                Errno::from_raw(error.raw_os_error().unwrap_or(0)),
            ))
        }
    };
    let entry = |wr: &abi::Wr| {
        let mut cmd = [0; 80];
        cmd[..size_of::<abi::Wr>()].copy_from_slice(&bytes(wr));
        let fd = types::Fd(a.link.fd.number());
        opcode::UringCmd80::new(fd, abi::URING_REQUEST)
            .cmd(cmd)
            .build()
            .user_data(wr.user_data)
    };
    for round in 0..2 + dice.below(10) {
        if worker.over() {
            break;
        }
        let length = 1 + dice.below(4096) as usize;
        let data = pattern(dice.next(), length);
        a.memory.put(0, &data);
        let count = 1 + dice.below(16);
        for i in 0..count {
            let at = HALF + 8 * i as usize;
            if !ring.push(&entry(&a.request(abi::WR_RDMA_WRITE, &b, 0, at, length, i))) {
                return wrong("a ring of 64 has no room for 16");
            }
        }
        let mut got = 0;
        let mut idle = 0;
        let mut failed = None;
        while got < count {
            worker.begins("io_uring_enter");
            let _ = ring.enter((count - got) as usize);
            let done = ring.reap();
            idle = if done.is_empty() { idle + 1 } else { 0 };
            for (_, res, _, extra) in done {
                got += 1;
                if res < 0 {
                    failed = Some((Errno::from_raw(-res), extra as u16));
                }
            }
            if idle > 2 * patience() {
                return wrong(format!(
                    "{got} of {count} requests by io_uring completed in {idle} waits"
                ));
            }
        }
        match failed {
            None => b.holds(
                "a write by io_uring",
                HALF + 8 * (count - 1) as usize,
                &data,
            )?,
            Some((Errno::EREMOTEIO, status)) => return Err(Stop::Status(status)),
            Some((errno, _)) => return Err(Stop::Errno("URING_REQUEST", errno)),
        }
        all.did("io_uring", count);
        let _ = round;
    }
    for i in 0..8 {
        ring.push(&entry(&a.request(abi::WR_RDMA_WRITE, &b, 0, HALF, 4096, i)));
    }
    let _ = ring.submit();
    if dice.one_in(2) {
        drop(ring);
        return part(dice, a, b);
    }
    part(dice, a, b)?;
    drop(ring);
    all.did("ring left in flight", 1);
    Ok(())
}

/// Threads that sleep in every way that there is, while what they sleep on goes.
fn waiters(worker: Worker<'_>, dice: &mut Dice) -> Done {
    let all = worker.all;
    let link = Link::open(worker, dice.of(["h1", "h2"]))?;
    let (cq, other) = (
        Queue::new(&link, 16, 0)?,
        Queue::new(&link, 16, dice.below(3) as u32)?,
    );
    let counter =
        nix::sys::eventfd::EventFd::from_value(0).map_err(|errno| Stop::Errno("eventfd", errno))?;
    let number = std::os::fd::AsRawFd::as_raw_fd(&counter.as_fd());
    link.call(arg!(CqEventfd, cq = cq.handle, fd = number))?;
    // What becomes of the file and the queues meanwhile; see below. DESTROY ends a wait at once.
    let fate = dice.below(4);
    let last = if fate == 1 { 3_600_000 } else { 400 };
    let links = [link.again()?, link.again()?];
    let (polled, read) = (Arc::clone(&link.fd), Arc::clone(&link.fd));
    thread::scope(|scope| {
        let waits = [(cq.handle, 400), (other.handle, last)];
        let mut threads = Vec::new();
        for (link, (queue, milliseconds)) in links.into_iter().zip(waits) {
            threads.push(scope.spawn(move || link.sleep(queue, milliseconds).map(drop)));
        }
        threads.push(scope.spawn(move || {
            let mut set = [PollFd::new(polled.as_fd(), PollFlags::POLLIN)];
            poll(&mut set, PollTimeout::from(300u16))
                .map(drop)
                .map_err(|errno| Stop::Errno("poll", errno))
        }));
        threads.push(scope.spawn(move || {
            // Of a file that is blocking: what is there, or what comes with the end.
            let events = PollFlags::POLLIN | PollFlags::POLLHUP;
            let mut set = [PollFd::new(read.as_fd(), events)];
            if poll(&mut set, PollTimeout::from(300u16)) == Ok(1) {
                read.read_event()
                    .map(drop)
                    .map_err(|errno| Stop::Errno("read", errno))?;
            }
            Ok(())
        }));
        thread::sleep(Duration::from_millis(dice.below(120)));
        let mut result = Ok(());
        match fate {
            // close() while others are inside: the number names nothing of ours any more.
            0 => {
                result = link.fd.blank().map_err(|errno| Stop::Errno("dup3", errno));
                all.did("closed under waiters", 1);
            }
            1 => {
                result = may(link.destroy(other.handle), &[Errno::EBUSY]).map(drop);
                all.did("queue destroyed under waiters", 1);
            }
            2 => {
                let _ = linger(&link.fd, 20 + dice.below(200) as u32);
                all.did("forked under waiters", 1);
            }
            _ => (),
        }
        for thread in threads {
            match thread.join().unwrap_or_else(|_| wrong("a waiter panicked")) {
                // Another file, or a queue that is no more.
                Err(Stop::Errno(
                    _,
                    Errno::ENOTTY | Errno::EBADF | Errno::EINVAL | Errno::ENOENT,
                )) => (),
                other => result = result.and(other),
            }
        }
        all.did("wait", 4);
        result
    })
}

/// Who opens, looks and goes; whose file lives on in a child, or in another program.
fn openers(worker: Worker<'_>, dice: &mut Dice) -> Done {
    let all = worker.all;
    let host = dice.of(["h1", "h2"]);
    let link = Link::open(worker, host)?;
    all.did("open", 1);
    link.call(abi::Query::default())?;
    link.call(abi::DeviceQuery::default())?;
    link.call(arg!(PortQuery, port = link.port))?;
    match dice.below(6) {
        0 => {
            let end = End::new(link, dice, abi::QPT_RC, None)?;
            let child = linger(&end.link.fd, 10 + dice.below(300) as u32);
            drop(end);
            all.did("fork after mmap", 1);
            child.map(drop).map_err(|errno| Stop::Errno("fork", errno))
        }
        1 if dice.one_in(3) => pass(worker, dice, link),
        2 => {
            let path = format!("/proc/self/fdinfo/{}", link.fd.number());
            fs::read_to_string(path)
                .map(drop)
                .map_err(|error| Stop::Wrong(error.to_string()))
        }
        _ => Ok(()),
    }
}

/// Hands the file to another program, which goes on with it.
fn pass(worker: Worker<'_>, dice: &mut Dice, link: Link<'_>) -> Done {
    let fd = link.fd.as_fd().try_clone_to_owned();
    let fd = fd.map_err(|error| Stop::Wrong(error.to_string()))?;
    let child = Program::new("/proc/self/exe")
        .args(["load", "--passed", &dice.next().to_string()])
        .stdin(Stdio::from(fd))
        .stdout(Stdio::inherit())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            return Err(Stop::Errno(
                "spawn",
                Errno::from_raw(error.raw_os_error().unwrap_or(0)),
            ))
        }
    };
    if dice.one_in(2) {
        drop(link);
    }
    worker.all.did("descriptor passed", 1);
    for _ in 0..200 * patience() {
        worker.begins("waitpid");
        match child.try_wait() {
            Ok(Some(status)) if status.code() == Some(1) => {
                return wrong("who was passed a descriptor")
            }
            Ok(None) => thread::sleep(Duration::from_millis(100)),
            _ => return Ok(()),
        }
    }
    wrong("who was passed a descriptor does not end")
}

/// What that program does: two queue pairs of the file that is its standard input write to each other.
fn passed(seed: u64) -> ExitCode {
    let (all, pulse) = (All::default(), Pulse::default());
    let worker = Worker {
        all: &all,
        pulse: &pulse,
        phase: 0,
    };
    let mut dice = Dice::new(seed);
    let result = (|| {
        let fd = Fd::stdin().map_err(|errno| Stop::Errno("dup", errno))?;
        let link = Link::adopt(worker, fd)?;
        let second = link.again()?;
        let (a, b) = (
            End::new(link, &mut dice, abi::QPT_RC, None)?,
            End::new(second, &mut dice, abi::QPT_RC, None)?,
        );
        a.connect(&b, abi::QPT_RC)?;
        b.connect(&a, abi::QPT_RC)?;
        for n in 0..dice.below(60) {
            let data = pattern(dice.next(), 2048);
            a.memory.put(0, &data);
            a.link
                .post(&[a.request(abi::WR_RDMA_WRITE, &b, 0, HALF, 2048, n)])?;
            a.succeed(n..n + 1)?;
            b.holds("a write by a descriptor that was passed", HALF, &data)?;
        }
        Ok(())
    })();
    match result {
        Err(Stop::Wrong(why)) => println!("wrong {why}"),
        Err(Stop::Errno(command, errno)) if !documented(command, errno, false) => {
            println!("wrong {command} is {errno:?} in who was passed a descriptor");
        }
        _ => return ExitCode::SUCCESS,
    }
    ExitCode::from(1)
}

// --- the process ----------------------------------------------------------------------

type Session = fn(Worker<'_>, &mut Dice) -> Done;

const WORKERS: [(&str, Session); 8] = [
    ("reliable", reliable),
    ("reliable too", reliable),
    ("unreliable", unreliable),
    ("buffers", buffers),
    ("manager", manager),
    ("uring", uring),
    ("waiters", waiters),
    ("openers", openers),
];

/// Counts why a session ended.
fn report(worker: Worker<'_>, stop: Stop) {
    let (all, is_calm) = (worker.all, worker.is_calm());
    match stop {
        Stop::Errno(command, errno) if documented(command, errno, is_calm) => {
            all.met(format!("{command} {errno:?}"));
        }
        Stop::Errno(command, errno) => {
            let when = if is_calm {
                " while nothing is taken away"
            } else {
                ""
            };
            all.wrong(format!("{command} is {errno:?}{when}"));
        }
        // Those of the peer that has gone, of the key that was revoked, and of the end.
        Stop::Status(code @ (5 | 9 | 10 | 11 | 12 | 13 | 256 | 257)) => all.met(status(code)),
        Stop::Status(code) => all.wrong(format!("a request completed with {}", status(code))),
        Stop::Wrong(why) => all.wrong(why),
    }
}

fn work(worker: Worker<'_>, name: &str, session: Session, seed: u64) {
    let mut dice = Dice::new(seed);
    while !worker.over() {
        let phase = worker.all.phase.load(Relaxed);
        let worker = Worker { phase, ..worker };
        if let Err(stop) = session(worker, &mut dice) {
            let idle = matches!(stop, Stop::Errno(..));
            if let Stop::Wrong(why) = stop {
                worker.all.wrong(format!("{name}: {why}"));
            } else {
                report(worker, stop);
            }
            if idle {
                thread::sleep(Duration::from_millis(20));
            }
        }
        worker.begins("between sessions");
    }
}

/// Says who does not come back from a call. Counts its own sleeps: who is stopped is late.
fn watch(all: &All, pulses: &[Pulse]) {
    let mut last: Vec<(u64, u32)> = vec![(0, 0); pulses.len()];
    loop {
        thread::sleep(Duration::from_millis(100));
        for ((pulse, (name, _)), (beats, ticks)) in pulses.iter().zip(WORKERS).zip(&mut last) {
            let now = pulse.beats.load(Relaxed);
            (*beats, *ticks) = if now == *beats {
                (now, *ticks + 1)
            } else {
                (now, 0)
            };
            if *ticks == 300 * patience() {
                all.wrong(format!(
                    "{name} does not return from {}",
                    lock(&pulse.command)
                ));
            }
        }
    }
}

/// `ulp-test load SEED`, and `ulp-test load --passed SEED` for a program that was handed a file.
pub fn run(seed: u64, is_passed: bool) -> ExitCode {
    if is_passed {
        return passed(seed);
    }
    // They live until the process ends, with the thread that watches.
    let all: &'static All = Box::leak(Box::default());
    let pulses: &'static [Pulse] = Box::leak(WORKERS.map(|_| Pulse::default()).into());
    thread::spawn(move || watch(all, pulses));
    let workers: Vec<_> = WORKERS
        .iter()
        .zip(pulses)
        .zip(seed.wrapping_mul(1000)..)
        .map(|((&(name, session), pulse), seed)| {
            let phase = 0;
            thread::spawn(move || work(Worker { all, pulse, phase }, name, session, seed))
        })
        .collect();
    // No more than a line is read ahead: after `exec` the next line is the new program's.
    let lines = match std::io::stdin().as_fd().try_clone_to_owned() {
        Ok(fd) => BufReader::with_capacity(1, File::from(fd)).lines(),
        Err(error) => {
            eprintln!("ulp-test load: cannot read the standard input: {error}");
            return ExitCode::FAILURE;
        }
    };
    for line in lines {
        match line.as_deref() {
            Ok(word @ ("calm" | "outage")) => all.begin(word == "calm"),
            Ok("?") => all.say_sum(),
            Ok("did") => {
                all.say_done();
                all.say_sum();
            }
            Ok("exec") => {
                let next = seed.wrapping_add(1).to_string();
                let error = Program::new("/proc/self/exe").args(["load", &next]).exec();
                all.wrong(format!("exec: {error}"));
            }
            _ => break,
        }
    }
    all.stop.store(true, Relaxed);
    for worker in workers {
        if worker.join().is_err() {
            all.wrong("a worker panicked".into());
        }
    }
    all.say_done();
    for (what, times) in &*lock(&all.met) {
        println!("met {times} {what}");
    }
    match lock(&all.wrong).len() {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
