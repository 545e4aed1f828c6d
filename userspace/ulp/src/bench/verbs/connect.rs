// SPDX-License-Identifier: MIT OR Apache-2.0

//! The two ends of `ulp bench connect` that use librdmacm.

use crate::bench::client::Times;
use crate::bench::connect::{Server, Target, BUFFER, BYTES, SLICE};
use crate::bench::end::DeviceOptions;
use anyhow::{ensure, Context as _, Result};
use rust_ulp::RemoteSlice;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use ulp_verbs::{cm, Memory, QueuePair, Transport, VerbsCq};

/// Connects by librdmacm.
pub fn client(
    device: &DeviceOptions,
    (addr, remote): Target,
    timeout: Duration,
) -> Result<impl FnMut() -> Result<Vec<Duration>>> {
    let chosen = super::open(device)?;
    let cq = VerbsCq::new(&chosen.context, 16)?;
    let channel = cm::Channel::new()?;
    let remote = (remote.addr(), remote.rkey());
    let source = device.source;
    Ok(move || {
        let mut times = Times::begin();
        let memory = Memory::new(&chosen.context, BUFFER)?;
        times.step();
        let mut id = cm::Id::new(&channel)?;
        id.resolve_addr(source, addr, timeout)?;
        id.resolve_route(timeout)?;
        id.create_qp(&memory, &cq)?;
        id.connect(timeout)?;
        times.step();
        id.write(remote, BYTES as u32)?;
        let mut status = None;
        while status.is_none() {
            if cq.poll(1, |done| status = Some(done.status))? != 0 {
                break;
            }
            cq.arm()?;
            if cq.poll(1, |done| status = Some(done.status))? == 0 {
                // Only this identifier has events here. A write that fails causes one, too.
                cq.wait_event()?;
            }
        }
        let times = times.end();
        ensure!(
            status == Some(0),
            "the write failed: {}",
            ulp_verbs::status_text(status.unwrap_or(5))
        );
        id.disconnect(timeout)?;
        // Discards the requests that the end of the queue pair flushed.
        while cq.poll(16, |_| {})? != 0 {}
        Ok(times)
    })
}

/// A server that accepts by librdmacm.
pub struct Theirs {
    listener: cm::Listener,
    connection: Option<cm::Id>,
    next: Option<QueuePair>,
    cq: Arc<VerbsCq>,
    memory: Arc<Memory>,
    remote: RemoteSlice,
    timeout: Duration,
}

impl Theirs {
    pub fn new(options: &DeviceOptions, addr: SocketAddr, timeout: Duration) -> Result<Self> {
        let chosen = super::open(options)?;
        let memory = Memory::new(&chosen.context, BUFFER)?;
        Ok(Self {
            listener: cm::Listener::bind(addr)?,
            connection: None,
            next: None,
            cq: VerbsCq::new(&chosen.context, 16)?,
            remote: RemoteSlice::new(memory.addr(), BUFFER as u64, memory.rkey())?,
            memory,
            timeout,
        })
    }
}

impl Server for Theirs {
    fn target(&self) -> (u16, RemoteSlice) {
        (self.listener.port(), self.remote)
    }

    fn prepare(&mut self) -> Result<()> {
        let (memory, cq) = (&self.memory, &self.cq);
        let qp = QueuePair::new(Transport::Rc, memory, cq, cq, (1, 1, 0), None)?;
        self.next = Some(qp);
        Ok(())
    }

    fn accept(&mut self) -> Result<bool> {
        let Some(mut id) = self.listener.next_request(SLICE)? else {
            return Ok(false);
        };
        let qp = self.next.take().context("no queue pair is prepared")?;
        if id.accept(qp, self.timeout).context("accepting")? {
            self.connection = Some(id);
        }
        Ok(true)
    }

    fn is_over(&mut self) -> Result<bool> {
        let over = match &self.connection {
            Some(id) => id.wait_disconnected(SLICE)?,
            None => true,
        };
        if over {
            self.connection = None;
        }
        Ok(over)
    }
}
