// SPDX-License-Identifier: MIT OR Apache-2.0

//! The back end `call`: one system call posts requests to any number of queue pairs, and waits.

use super::config::Delivery;
use super::end::{Control, DeviceOptions, Done, End, Kind, Op, PortGid, Queue, Task};
use super::qp::{Alone, Connected, Maker, Prepared, Sink};
use super::wire::EndAddress;
use anyhow::{Context, Result};
use rust_ulp as ulp;
use rust_ulp::wr::Recv;
use rust_ulp::{
    Access, Buffer, Completion, Cq, Device, DeviceBatch, Grant, LocalSlice, RemoteSlice, Srq,
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
    srq: Option<Srq>,
    prepared: Vec<Prepared>,
    qps: Vec<Connected>,
    remote: Option<RemoteSlice>,
    control: Arc<Control>,
    /// Memory for completions.
    reaped: [Completion; 32],
}

/// Opens the device, and returns port and GID for queue pairs if they are not the default ones.
pub fn open(options: &DeviceOptions) -> Result<(Device, PortGid)> {
    let device = options.name.open()?;
    let gid = match (options.ib_port, options.gid_index) {
        (None, None) => None,
        (port, index) => {
            let chosen = device.default_gid().ok();
            let port = port.map(u32::from).or(chosen.map(|c| c.port));
            let index = index.or(chosen.map(|c| c.gid_index));
            Some((port.unwrap_or(1), index.unwrap_or(0)))
        }
    };
    Ok((device, gid))
}

impl CallEnd {
    fn cq(&self, queue: Queue) -> &Cq {
        match queue {
            Queue::Send => &self.send_cq,
            Queue::Recv => &self.recv_cq,
        }
    }

    pub fn recv_cq(&self) -> &Cq {
        &self.recv_cq
    }

    /// Returns whether the queue pairs can send.
    pub fn is_connected(&self) -> bool {
        !self.qps.is_empty()
    }

    /// Returns the local memory of a request.
    fn local(&self, op: &Op) -> Result<LocalSlice<'_>> {
        let (at, len) = (op.local as usize, op.len as usize);
        Ok(self.buffer.slice(at..at.saturating_add(len))?)
    }

    /// Creates the request of `op`, and gives it to a batch, a ring or [`Alone`].
    ///
    /// Before the queue pair is connected, it can only be a receive.
    pub fn push<'a>(&'a self, sink: &mut impl Sink<'a>, op: &Op) -> Result<()> {
        if let (Some(srq), Kind::Recv) = (&self.srq, op.kind) {
            return Ok(sink.push(srq, Recv::new(self.local(op)?).wr_id(op.id))?);
        }
        let index = op.qp as usize;
        let Some(qp) = self.qps.get(index) else {
            let qp = self.prepared.get(index).context("no such queue pair")?;
            return Ok(qp.push(sink, Recv::new(self.local(op)?).wr_id(op.id))?);
        };
        let remote = || -> Result<RemoteSlice> {
            let remote = self.remote.context("not connected")?;
            Ok(remote.slice(op.remote..op.remote.saturating_add(op.len.into()))?)
        };
        qp.push(sink, op, self.local(op)?, remote)
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
    fn new(task: &Task<'_>) -> Result<Self> {
        let config = task.config;
        let (device, gid) = match task.shared.get() {
            Some(shared) if config.one_file => shared.clone(),
            _ => open(task.device)?,
        };
        // Only the first one stays.
        let _ = task.shared.set((device.clone(), gid));
        let pd = device.alloc_pd()?;
        let bytes = usize::try_from(task.layout.bytes())?;
        let buffer = pd.alloc_buffer(bytes)?;
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let grant = buffer.grant(.., access)?;
        let delivery = match config.delivery {
            Delivery::Default => ulp::cq::Delivery::Default,
            Delivery::Workqueue => ulp::cq::Delivery::Workqueue,
            Delivery::Softirq => ulp::cq::Delivery::Softirq,
        };
        let (sends, recvs) = config.requests(2);
        let queue = |entries: u32| {
            let queue = device.cq_builder(entries).delivery(delivery);
            queue
                .busy_poll(Duration::from_micros(config.busy_poll_us.into()))
                .build()
        };
        let (send_cq, recv_cq) = (queue(sends)?, queue(recvs)?);
        let srq = pd.srq_builder(&recv_cq).max_wr(config.rx_depth + 2);
        let srq = config.srq.then(|| srq.max_sge(1).build()).transpose()?;
        let maker = Maker {
            pd: &pd,
            send_cq: &send_cq,
            recv_cq: &recv_cq,
            srq: srq.as_ref(),
            config,
            gid,
        };
        let prepared = (0..config.qps).map(|index| maker.build(index));
        let prepared = prepared.collect::<Result<_>>()?;
        Ok(Self {
            device,
            buffer,
            grant,
            send_cq,
            recv_cq,
            srq,
            prepared,
            qps: Vec::new(),
            remote: None,
            control: task.control.clone(),
            reaped: [Completion::EMPTY; 32],
        })
    }

    fn address(&self) -> EndAddress {
        EndAddress {
            qps: self.prepared.iter().map(Prepared::endpoint).collect(),
            memory: self.grant.remote(),
        }
    }

    fn connect(&mut self, peer: &EndAddress) -> Result<()> {
        self.remote = Some(peer.memory);
        for (qp, peer) in self.prepared.drain(..).zip(&peer.qps) {
            self.qps.push(qp.connect(*peer)?);
        }
        Ok(())
    }

    fn post(&mut self, ops: &[Op]) -> Result<()> {
        if let [op] = ops {
            return self.push(&mut Alone, op);
        }
        self.batch(ops)?.submit()?;
        Ok(())
    }

    fn post_and_wait(&mut self, ops: &[Op], queue: Queue, min: u32) -> Result<()> {
        if ops.is_empty() {
            return self.wait(queue, min);
        }
        let posted = self.batch(ops)?.submit_and_wait(self.cq(queue), min, SLICE);
        match posted {
            Ok(_) => Ok(()),
            Err(ulp::Error::Timeout { .. }) => self.wait(queue, min),
            Err(error) => Err(error.into()),
        }
    }

    fn reap(&mut self, queue: Queue, done: &mut Vec<Done>) -> Result<usize> {
        let cq = match queue {
            Queue::Send => &self.send_cq,
            Queue::Recv => &self.recv_cq,
        };
        let some = &mut self.reaped;
        let mut total = 0;
        loop {
            let n = cq.poll_into(some)?;
            for completion in some.iter().take(n) {
                completion.check()?;
                done.push(Done {
                    id: completion.wr_id,
                    imm: completion.imm,
                    qp: completion.qp_user_data as u32,
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
}
