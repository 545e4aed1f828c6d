// SPDX-License-Identifier: MIT OR Apache-2.0

//! The back end `call`: one system call posts requests to any number of queue pairs, and waits.

use super::config::Delivery;
use super::end::{Control, DeviceOptions, Done, End, Kind, Op, Plan, Queue};
use super::wire::{EndAddress, QpAddress};
use anyhow::{ensure, Context, Result};
use rust_ulp as ulp;
use rust_ulp::uring::Ring;
use rust_ulp::{
    Access, Buffer, Completion, Cq, CqOptions, Device, DeviceBatch, Endpoint, Gid, Grant, Mtu,
    Post, PreparedQp, Qp, Rc, RemoteSlice, RnrRetries, RnrTimer,
};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The interval at which a thread that waits checks whether the run is over.
const SLICE: Duration = Duration::from_millis(250);

pub struct CallEnd {
    device: Device,
    buffer: Buffer,
    grant: Grant,
    send_cq: Cq,
    recv_cq: Cq,
    prepared: Vec<PreparedQp<Rc>>,
    qps: Vec<Qp<Rc>>,
    remote: Option<RemoteSlice>,
    /// Whether only system calls move completions.
    by_caller: bool,
    control: Arc<Control>,
}

/// Opens the device, and returns port and GID for queue pairs if they are not the default ones.
pub fn open(options: &DeviceOptions) -> Result<(Device, Option<(u32, u8)>)> {
    let device = match &options.name {
        Some(name) => Device::open(name),
        None => Device::open_default(),
    }?;
    let gid = match (options.port, options.gid_index) {
        (None, None) => None,
        (port, index) => {
            let chosen = device.default_gid().ok();
            let port = port.map(u32::from).or(chosen.map(|c| c.port));
            let index = index.or(chosen.and_then(|c| u8::try_from(c.gid_index).ok()));
            Some((port.unwrap_or(1), index.unwrap_or(0)))
        }
    };
    Ok((device, gid))
}

/// A receiver of requests.
trait Sink<'a> {
    fn push<R: Post<'a, Rc>>(&mut self, qp: &Qp<Rc>, request: R) -> ulp::Result<()>;
}

impl<'a> Sink<'a> for DeviceBatch<'a> {
    fn push<R: Post<'a, Rc>>(&mut self, qp: &Qp<Rc>, request: R) -> ulp::Result<()> {
        DeviceBatch::push(self, qp, request)
    }
}

impl<'a> Sink<'a> for Ring {
    fn push<R: Post<'a, Rc>>(&mut self, qp: &Qp<Rc>, request: R) -> ulp::Result<()> {
        Ring::push(self, qp, request)
    }
}

impl CallEnd {
    fn cq(&self, queue: Queue) -> &Cq {
        match queue {
            Queue::Send => &self.send_cq,
            Queue::Recv => &self.recv_cq,
        }
    }

    /// Creates the request of `op`, and adds it to a batch or a ring.
    fn push<'a>(&'a self, sink: &mut impl Sink<'a>, op: &Op) -> Result<()> {
        let qp = self.qps.get(op.qp as usize).context("no such queue pair")?;
        let (local, len) = (op.local as usize, op.len as usize);
        let slice = self.buffer.slice(local..local.saturating_add(len))?;
        let remote = || -> Result<RemoteSlice> {
            let remote = self.remote.context("not connected")?;
            Ok(remote.slice(op.remote..op.remote.saturating_add(op.len.into()))?)
        };
        match op.kind {
            Kind::Write => {
                let mut write = ulp::Write::new(slice, remote()?).wr_id(op.id);
                if let Some(imm) = op.imm {
                    write = write.imm(imm);
                }
                if op.inline {
                    write = write.inline();
                }
                sink.push(qp, write.signaled(op.signaled))
            }
            Kind::Send => {
                let mut send = ulp::Send::new(slice).wr_id(op.id);
                if let Some(imm) = op.imm {
                    send = send.imm(imm);
                }
                if op.inline {
                    send = send.inline();
                }
                sink.push(qp, send.signaled(op.signaled))
            }
            Kind::Read => {
                let read = ulp::Read::new(remote()?, slice).wr_id(op.id);
                sink.push(qp, read.signaled(op.signaled))
            }
            Kind::FetchAdd => {
                let add = ulp::FetchAdd::new(remote()?, op.args.0, slice).wr_id(op.id);
                sink.push(qp, add.signaled(op.signaled))
            }
            Kind::CmpSwap => {
                let (compare, swap) = op.args;
                let swap = ulp::CompareSwap::new(remote()?, compare, swap, slice).wr_id(op.id);
                sink.push(qp, swap.signaled(op.signaled))
            }
            Kind::Recv => sink.push(qp, ulp::Recv::new(slice).wr_id(op.id)),
        }?;
        Ok(())
    }

    /// Adds a request to a ring; before the queue pair is connected, only a receive.
    pub fn push_by(&self, ring: &mut Ring, op: &Op) -> Result<()> {
        if self.qps.is_empty() {
            let qp = self.prepared.get(op.qp as usize);
            let local = op.local as usize;
            let slice = self
                .buffer
                .slice(local..local.saturating_add(op.len as usize))?;
            ring.push(
                qp.context("no such queue pair")?,
                ulp::Recv::new(slice).wr_id(op.id),
            )?;
            return Ok(());
        }
        self.push(ring, op)
    }

    pub fn batch(&self, ops: &[Op]) -> Result<DeviceBatch<'_>> {
        let mut batch = self.device.batch();
        for op in ops {
            self.push(&mut batch, op)?;
        }
        Ok(batch)
    }

    /// Sleeps until there is a completion, after a first wait that timed out.
    fn wait(&self, queue: Queue, min: u32) -> Result<()> {
        let until = Instant::now() + self.control.timeout;
        loop {
            self.control.check()?;
            match self.cq(queue).wait_for(min, SLICE) {
                Ok(_) => return Ok(()),
                Err(ulp::Error::Timeout { .. }) if Instant::now() < until => {
                    // The last completions are fewer than `min`.
                    if self.cq(queue).wait_for(1, Duration::ZERO).is_ok() {
                        return Ok(());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl End for CallEnd {
    fn new(plan: &Plan<'_>) -> Result<Self> {
        let config = plan.config;
        let (device, gid) = open(plan.device)?;
        let pd = device.alloc_pd()?;
        let bytes = usize::try_from(plan.layout.bytes())?;
        let buffer = pd.alloc_buffer(bytes)?;
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let grant = buffer.grant(.., access)?;
        let delivery = match config.delivery {
            Delivery::Default => ulp::Delivery::Default,
            Delivery::Workqueue => ulp::Delivery::Workqueue,
            Delivery::Softirq => ulp::Delivery::Softirq,
            Delivery::Caller => ulp::Delivery::Caller,
        };
        let (sends, recvs) = (config.depth + 2, config.rx_depth + 2);
        let queue = |per_qp: u32| {
            let options = CqOptions::default().delivery(delivery);
            device.create_cq_with(per_qp.saturating_mul(config.qps), options)
        };
        let (send_cq, recv_cq) = (queue(sends)?, queue(recvs)?);
        let mut prepared = Vec::new();
        for _ in 0..config.qps {
            let mut builder = pd
                .create_qp::<Rc>(&send_cq)
                .recv_cq(&recv_cq)
                .max_send_wr(sends)
                .max_recv_wr(recvs)
                .max_inline(config.inline)
                .rnr_retry(RnrRetries::FOREVER)
                .min_rnr_timer(RnrTimer::new(12)?)
                .access(access);
            if let Some((port, index)) = gid {
                builder = builder.gid(port, index);
            }
            prepared.push(builder.build()?);
        }
        Ok(Self {
            device,
            buffer,
            grant,
            by_caller: send_cq.delivery() == ulp::Delivery::Caller,
            send_cq,
            recv_cq,
            prepared,
            qps: Vec::new(),
            remote: None,
            control: plan.control.clone(),
        })
    }

    fn address(&self) -> EndAddress {
        let ends = self.prepared.iter().map(PreparedQp::endpoint);
        let ends = ends.chain(self.qps.iter().map(|qp| *qp.local()));
        let remote = self.grant.remote();
        EndAddress {
            qps: ends
                .map(|end| QpAddress {
                    qp_num: end.qp_num,
                    psn: end.psn,
                    gid: end.gid.0,
                    lid: end.lid,
                    mtu: end.mtu.bytes(),
                    rd_atomic: (end.responder, end.initiator),
                })
                .collect(),
            addr: remote.addr(),
            len: remote.len(),
            rkey: remote.rkey(),
        }
    }

    fn connect(&mut self, peer: &EndAddress) -> Result<()> {
        self.remote = Some(RemoteSlice::new(peer.addr, peer.len, peer.rkey)?);
        ensure!(
            peer.qps.len() == self.prepared.len(),
            "the peer has another number of queue pairs"
        );
        for (qp, peer) in self.prepared.drain(..).zip(&peer.qps) {
            let end = Endpoint::new(peer.qp_num, peer.psn, Gid(peer.gid), Mtu::at_most(peer.mtu))
                .lid(peer.lid)
                .rd_atomic(peer.rd_atomic.0, peer.rd_atomic.1);
            self.qps.push(qp.connect(end)?);
        }
        Ok(())
    }

    fn post(&mut self, ops: &[Op]) -> Result<()> {
        if self.qps.is_empty() {
            for op in ops {
                let qp = self
                    .prepared
                    .get(op.qp as usize)
                    .context("no such queue pair")?;
                let local = op.local as usize;
                let slice = self
                    .buffer
                    .slice(local..local.saturating_add(op.len as usize))?;
                qp.post_recv(ulp::Recv::new(slice).wr_id(op.id))?;
            }
            return Ok(());
        }
        let batch = self.batch(ops)?;
        if self.by_caller {
            // This also moves completions of earlier requests into the ring.
            batch.submit_and_wait(&self.send_cq, 0, Duration::ZERO)?;
        } else {
            batch.submit()?;
        }
        Ok(())
    }

    fn post_and_wait(&mut self, ops: &[Op], queue: Queue, min: u32) -> Result<()> {
        if ops.is_empty() {
            return self.wait(queue, min);
        }
        match self.batch(ops)?.submit_and_wait(self.cq(queue), min, SLICE) {
            Ok(_) => Ok(()),
            Err(ulp::Error::Timeout { .. }) => self.wait(queue, min),
            Err(error) => Err(error.into()),
        }
    }

    fn reap(&mut self, queue: Queue, done: &mut Vec<Done>) -> Result<usize> {
        let cq = self.cq(queue);
        if self.by_caller {
            match cq.wait_for(1, Duration::ZERO) {
                Err(ulp::Error::Timeout { .. }) => return Ok(0),
                other => other?,
            };
        }
        let mut some = [Completion::EMPTY; 32];
        let mut total = 0;
        loop {
            let n = cq.poll_into(&mut some)?;
            for completion in some.iter().take(n) {
                let completion = completion.ok()?;
                done.push(Done {
                    id: completion.wr_id,
                    imm: completion.imm,
                });
            }
            total += n;
            if n < some.len() {
                return Ok(total);
            }
        }
    }

    fn load(&self, offset: u64) -> Result<u8> {
        Ok(self.buffer.load_u8(offset as usize, Ordering::Acquire)?)
    }

    fn store(&self, offset: u64, byte: u8) -> Result<()> {
        Ok(self.buffer.write_at(offset as usize, &[byte])?)
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        Ok(self.buffer.read_at(offset as usize, bytes)?)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        Ok(self.buffer.write_at(offset as usize, bytes)?)
    }
}
