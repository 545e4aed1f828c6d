// SPDX-License-Identifier: MIT OR Apache-2.0

//! The back end `verbs`: libibverbs, with a list per queue pair by `ibv_post_send`.
//!
//! It sleeps in `ibv_get_cq_event`.

pub mod connect;

use super::config::{Config, Transport};
use super::end::{Aborted, Control, DeviceOptions, Done, End, Kind, Op, Queue, Task};
use super::wire::EndAddress;
use crate::output::causes;
use crate::rdma::{self, RdmaDevice};
use anyhow::{bail, ensure, Context as _, Result};
use rust_ulp::{Endpoint, Gid, Mtu, RemoteSlice};
use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::time::{Duration, Instant};
use ulp_verbs::{Context, Memory, Peer, QueuePair, Request, Requests, Srq, VerbsCq};

/// A device, with the port and the GID of its queue pairs.
pub struct Chosen {
    pub context: Arc<Context>,
    pub port: u8,
    gid_index: u8,
    gid: Gid,
    lid: u16,
    mtu: Mtu,
}

/// Opens a device: the named one, or the first with a usable port.
pub fn open(options: &DeviceOptions) -> Result<Chosen> {
    let mut tried = Vec::new();
    for device in rdma::devices(options.name.name.as_deref())? {
        match open_device(&device, options) {
            Ok(chosen) => return Ok(chosen),
            Err(error) => tried.push(format!("{}: {}", device.name, causes(&error))),
        }
    }
    ensure!(
        !tried.is_empty(),
        "there is no RDMA device: load its driver (rdma link add ... type rxe ...)"
    );
    bail!("libibverbs can use no device: {}", tried.join("; "))
}

fn open_device(device: &RdmaDevice, options: &DeviceOptions) -> Result<Chosen> {
    let context = Context::open(&device.name)?;
    let number = options.ib_port.unwrap_or(1);
    let port = device.ports.iter().find(|p| p.port == u32::from(number));
    let port = port.with_context(|| format!("there is no port {number}"))?;
    ensure!(port.is_active(), "port {number} is down");
    let mut gids = device.gids(port).into_iter();
    let entry = match options.gid_index {
        Some(index) => Some(
            gids.find(|gid| gid.index == u32::from(index))
                .with_context(|| format!("port {number} has no GID {index}"))?,
        ),
        None if port.is_infiniband() => None,
        // As the module chooses: RoCE v2, IPv4 rather than IPv6, and link-local last.
        None => Some(
            gids.filter(|gid| gid.r#type == "roce_v2" && gid.netdev.is_some())
                .min_by_key(|gid| (gid.link_local, gid.ipv4.is_none(), gid.index))
                .context("no RoCE v2 GID of an address of this network namespace")?,
        ),
    };
    let (gid_index, gid) = match entry {
        Some(entry) => (u8::try_from(entry.index)?, entry.gid.parse()?),
        None => (0, Gid([0; 16])),
    };
    Ok(Chosen {
        mtu: Mtu::from_code(context.active_mtu(number)?).context("the port has no MTU")?,
        lid: u16::try_from(port.lid.unwrap_or(0))?,
        context,
        port: number,
        gid_index,
        gid,
    })
}

/// A thread that ends sleeps in libibverbs, which have no deadline, by moving the queue pairs to
/// ERR.
///
/// It checks the run ten times a second.
struct Guard {
    /// The time at which this end went to sleep, in ms since `began`, plus 1; 0 while it is awake.
    asleep: Arc<AtomicU64>,
    overdue: Arc<AtomicBool>,
    began: Instant,
    /// Its drop ends the thread.
    end: Option<Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Guard {
    fn new(qps: Arc<Vec<QueuePair>>, control: Arc<Control>) -> Self {
        let (end, ended) = channel();
        let (asleep, overdue) = (
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let began = Instant::now();
        let theirs = (asleep.clone(), overdue.clone());
        let thread = std::thread::spawn(move || {
            let (asleep, overdue) = theirs;
            while ended.recv_timeout(Duration::from_millis(100)) == Err(RecvTimeoutError::Timeout) {
                let since = asleep.load(Ordering::Relaxed);
                let asleep = began.elapsed().saturating_sub(Duration::from_millis(since));
                let late = since != 0 && asleep > control.timeout;
                if late || control.abort.load(Ordering::Relaxed) {
                    overdue.store(late, Ordering::Relaxed);
                    for qp in qps.iter() {
                        let _ = qp.fail();
                    }
                    if late {
                        return;
                    }
                }
            }
        });
        Self {
            asleep,
            overdue,
            began,
            end: Some(end),
            thread: Some(thread),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A completion queue, and the completions that were polled and not yet reaped.
struct Polled {
    cq: Arc<VerbsCq>,
    done: VecDeque<ulp_verbs::Done>,
}

pub struct VerbsEnd {
    guard: Guard,
    /// Those of the configuration, and behind them one that only wakes, if there is `srq`.
    qps: Arc<Vec<QueuePair>>,
    psns: Vec<u32>,
    config: Config,
    chosen: Chosen,
    memory: Arc<Memory>,
    memory_remote: RemoteSlice,
    srq: Option<Arc<Srq>>,
    /// By [`Queue`].
    queues: [Polled; 2],
    room: Requests,
    remote: Option<RemoteSlice>,
    control: Arc<Control>,
}

fn random_psn() -> u32 {
    RandomState::new().build_hasher().finish() as u32 & 0xff_ffff
}

impl VerbsEnd {
    fn request(op: &Op, remote: Option<RemoteSlice>) -> Result<Request> {
        let target = || -> Result<(u64, u32)> {
            let remote = remote.context("not connected")?;
            let end = op.remote.checked_add(op.len.into());
            ensure!(
                end.is_some_and(|end| end <= remote.len()),
                "beyond the peer's buffer"
            );
            Ok((remote.addr() + op.remote, remote.rkey()))
        };
        use ulp_verbs::Kind as V;
        Ok(Request {
            kind: match op.kind {
                Kind::Write => V::Write {
                    remote: target()?,
                    imm: op.imm,
                },
                Kind::Read => V::Read { remote: target()? },
                Kind::Send => V::Send { imm: op.imm },
                Kind::FetchAdd => V::FetchAdd {
                    remote: target()?,
                    add: op.args.0,
                },
                Kind::CmpSwap => V::CmpSwap {
                    remote: target()?,
                    compare: op.args.0,
                    swap: op.args.1,
                },
                Kind::Recv => bail!("a receive among sends"),
            },
            wr_id: op.id,
            offset: usize::try_from(op.local)?,
            len: op.len,
            signaled: op.signaled,
            inline: op.inline,
        })
    }

    /// Polls once, and returns the number of completions to reap.
    fn poll(&mut self, queue: Queue) -> Result<usize> {
        let Polled { cq, done } = &mut self.queues[queue as usize];
        while cq.poll(32, |d| done.push_back(d))? == 32 {}
        Ok(done.len())
    }

    fn wait(&mut self, queue: Queue) -> Result<()> {
        while self.poll(queue)? == 0 {
            let cq = self.queues[queue as usize].cq.clone();
            cq.arm()?;
            // Completions from before the queue was armed cause no event.
            if self.poll(queue)? != 0 {
                return Ok(());
            }
            self.control.check()?;
            let now = self.guard.began.elapsed().as_millis() as u64 + 1;
            self.guard.asleep.store(now, Ordering::Relaxed);
            cq.wait_event()?;
            self.guard.asleep.store(0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns the word with the byte at an offset, and the index of the byte in it.
    fn word(&self, offset: u64) -> Result<(&AtomicU64, usize)> {
        let word = self.memory.words().get(offset as usize / 8);
        Ok((word.context("beyond the buffer")?, offset as usize % 8))
    }
}

impl End for VerbsEnd {
    fn new(task: &Task<'_>) -> Result<Self> {
        let config = task.config;
        let mut chosen = open(task.device)?;
        if let Some(mtu) = config.mtu {
            chosen.mtu = chosen.mtu.min(Mtu::at_most(mtu));
        }
        let memory = Memory::new(&chosen.context, usize::try_from(task.layout.bytes())?)?;
        let (sends, recvs) = config.requests(2);
        let queue = |entries: u32| -> Result<Polled> {
            let cq = VerbsCq::new(&chosen.context, entries)?;
            let done = VecDeque::with_capacity(1024);
            Ok(Polled { cq, done })
        };
        let queues = [queue(sends)?, queue(recvs)?];
        let [send_cq, recv_cq] = [&queues[0].cq, &queues[1].cq];
        let mut qps = Vec::new();
        let transport = match config.transport {
            Transport::Rc => ulp_verbs::Transport::Rc,
            Transport::Uc => ulp_verbs::Transport::Uc,
            Transport::Ud => ulp_verbs::Transport::Ud,
        };
        let srq = config.srq.then(|| Srq::new(&memory, config.rx_depth + 2));
        let srq = srq.transpose()?;
        for _ in 0..config.qps {
            let room = (config.depth + 2, config.rx_depth + 2, config.inline);
            let qp = QueuePair::new(transport, &memory, send_cq, recv_cq, room, srq.as_ref())?;
            qp.init(chosen.port)?;
            qps.push(qp);
        }
        if srq.is_some() {
            // A queue pair in ERR does not flush a shared receive queue. For the guard, this one has a
            // receive of its own; it is never connected.
            let qp = QueuePair::new(transport, &memory, send_cq, recv_cq, (1, 1, 0), None)?;
            qp.init(chosen.port)?;
            qp.post_recv(&mut Requests::default(), std::iter::once((0, 0, 0)))?;
            qps.push(qp);
        }
        let qps = Arc::new(qps);
        Ok(Self {
            guard: Guard::new(qps.clone(), task.control.clone()),
            psns: (0..config.qps).map(|_| random_psn()).collect(),
            config: config.clone(),
            qps,
            chosen,
            memory_remote: RemoteSlice::new(memory.addr(), task.layout.bytes(), memory.rkey())?,
            memory,
            srq,
            queues,
            room: Requests::default(),
            remote: None,
            control: task.control.clone(),
        })
    }

    fn address(&self) -> EndAddress {
        let (chosen, outs) = (&self.chosen, self.config.outs());
        let qps = self.qps.iter().zip(&self.psns).map(|(qp, psn)| {
            let end = Endpoint::new(qp.qp_num(), *psn, chosen.gid, chosen.mtu);
            end.lid(chosen.lid).rd_atomic(outs, outs)
        });
        EndAddress {
            qps: qps.collect(),
            memory: self.memory_remote,
        }
    }

    fn connect(&mut self, peer: &EndAddress) -> Result<()> {
        self.remote = Some(peer.memory);
        let (chosen, config) = (&self.chosen, &self.config);
        for ((qp, psn), peer) in self.qps.iter().zip(&self.psns).zip(&peer.qps) {
            let peer = Peer {
                qp_num: peer.qp_num,
                psn: peer.psn,
                gid: peer.gid.0,
                lid: peer.lid,
                mtu: peer.mtu.min(chosen.mtu) as u8,
                responder: peer.responder.min(config.outs()),
                initiator: peer.initiator.min(config.outs()),
                sl: config.sl,
                traffic_class: config.traffic_class,
                timeout: config.qp_timeout,
            };
            qp.connect(chosen.port, chosen.gid_index, *psn, &peer)?;
        }
        Ok(())
    }

    fn post(&mut self, ops: &[Op]) -> Result<()> {
        let same =
            |a: &Op, b: &Op| a.qp == b.qp && (a.kind == Kind::Recv) == (b.kind == Kind::Recv);
        for list in ops.chunk_by(same) {
            let Some(first) = list.first() else { continue };
            let qp = self
                .qps
                .get(first.qp as usize)
                .context("no such queue pair")?;
            if first.kind == Kind::Recv {
                let recvs = list.iter().map(|op| (op.id, op.local as usize, op.len));
                match &self.srq {
                    Some(srq) => srq.post_recv(&mut self.room, recvs)?,
                    None => qp.post_recv(&mut self.room, recvs)?,
                }
                continue;
            }
            let remote = self.remote;
            let mut bad = None;
            let sends = list.iter().map_while(|op| match Self::request(op, remote) {
                Ok(request) => Some(request),
                Err(error) => {
                    bad = Some(error);
                    None
                }
            });
            qp.post(&mut self.room, sends)?;
            if let Some(error) = bad {
                return Err(error);
            }
        }
        Ok(())
    }

    fn post_and_wait(&mut self, ops: &[Op], queue: Queue, _min: u32) -> Result<()> {
        self.post(ops)?;
        self.wait(queue)
    }

    fn reap(&mut self, queue: Queue, done: &mut Vec<Done>) -> Result<usize> {
        let n = self.poll(queue)?;
        if n == 0 {
            return Ok(0);
        }
        for d in self.queues[queue as usize].done.drain(..) {
            if d.status != 0 {
                if self.guard.overdue.load(Ordering::Relaxed) {
                    bail!("no completion for {:?}", self.control.timeout);
                }
                if self.control.abort.load(Ordering::Relaxed) {
                    bail!(Aborted);
                }
                bail!(
                    "a request failed: {} (status {})",
                    ulp_verbs::status_text(d.status),
                    d.status
                );
            }
            // Only the shared queue does not tell the queue pairs apart.
            let qp = match &self.srq {
                Some(_) => self.qps.iter().position(|qp| qp.qp_num() == d.qp_num),
                None => None,
            };
            done.push(Done {
                id: d.wr_id,
                imm: d.imm,
                qp: qp.unwrap_or(0) as u32,
            });
        }
        Ok(n)
    }

    fn load(&self, offset: u64) -> Result<u8> {
        let (word, at) = self.word(offset)?;
        Ok(word.load(Ordering::Acquire).to_ne_bytes()[at])
    }

    fn store(&self, offset: u64, byte: u8) -> Result<()> {
        let (word, at) = self.word(offset)?;
        // Other threads may write the other bytes of the word.
        let _ = word.fetch_update(Ordering::Release, Ordering::Relaxed, |old| {
            let mut new = old.to_ne_bytes();
            new[at] = byte;
            Some(u64::from_ne_bytes(new))
        });
        Ok(())
    }
}
