// SPDX-License-Identifier: MIT OR Apache-2.0

//! The queue pairs of the back ends `call` and `uring`, of each transport.

use super::config::{Config, Transport};
use super::end::{Kind, Op, PortGid};
use anyhow::{bail, ensure, Result};
use rust_ulp as ulp;
use rust_ulp::qp::{
    AckTimeout, Connected as OnePeer, QpBuilder, Rc, RnrRetries, RnrTimer, TrafficClass, Uc, Ud,
};
use rust_ulp::uring::Ring;
use rust_ulp::wr::{Recv, RequestFor};
use rust_ulp::{
    Access, Cq, Destination, DeviceBatch, Endpoint, LocalSlice, Mtu, Pd, PreparedQp, Qp,
    RemoteSlice, Srq,
};

/// A receiver of requests.
pub trait Sink<'a> {
    fn push<Q, R: RequestFor<'a, Q>>(&mut self, queue: Q, request: R) -> ulp::error::Result<()>;
}

impl<'a> Sink<'a> for DeviceBatch<'a> {
    fn push<Q, R: RequestFor<'a, Q>>(&mut self, queue: Q, request: R) -> ulp::error::Result<()> {
        DeviceBatch::push(self, queue, request)
    }
}

impl<'a> Sink<'a> for Ring {
    fn push<Q, R: RequestFor<'a, Q>>(&mut self, queue: Q, request: R) -> ulp::error::Result<()> {
        Ring::push(self, queue, request)
    }
}

/// Posts each request by a call of its own.
pub struct Alone;

impl<'a> Sink<'a> for Alone {
    fn push<Q, R: RequestFor<'a, Q>>(&mut self, queue: Q, request: R) -> ulp::error::Result<()> {
        request.post_to(queue)
    }
}

/// A queue pair that is not yet connected.
pub enum Prepared {
    Rc(PreparedQp<Rc>),
    Uc(PreparedQp<Uc>),
    Ud(PreparedQp<Ud>),
}

/// The parameters of the queue pairs of an end.
pub struct Maker<'a> {
    pub pd: &'a Pd,
    pub send_cq: &'a Cq,
    pub recv_cq: &'a Cq,
    pub srq: Option<&'a Srq>,
    pub config: &'a Config,
    /// Port and GID index, if they are not the default ones.
    pub gid: PortGid,
}

impl Maker<'_> {
    /// Creates queue pair number `index`.
    pub fn build(&self, index: u32) -> Result<Prepared> {
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        Ok(match self.config.transport {
            Transport::Rc => Prepared::Rc(self.reliable(index, access)?),
            Transport::Uc => {
                Prepared::Uc(self.connected::<Uc>(index, Access::REMOTE_WRITE).build()?)
            }
            Transport::Ud => Prepared::Ud(self.builder::<Ud>(index).build()?),
        })
    }

    fn reliable(&self, index: u32, access: Access) -> Result<PreparedQp<Rc>> {
        let (config, builder) = (self.config, self.connected::<Rc>(index, access));
        let builder = builder
            .rnr_retry(RnrRetries::FOREVER)
            .min_rnr_timer(RnrTimer::new(12)?)
            .timeout(AckTimeout::new(config.qp_timeout)?)
            .rd_atomic(config.outs());
        let qp = builder.build()?;
        let most = qp.endpoint().initiator;
        ensure!(
            config.outs.is_none_or(|outs| outs <= most),
            "the device has at most {most} outstanding reads and atomics (-o)"
        );
        Ok(qp)
    }

    fn builder<T: ulp::qp::Transport>(&self, index: u32) -> QpBuilder<T> {
        let config = self.config;
        let builder = self
            .pd
            .qp_builder::<T>(self.send_cq)
            .recv_cq(self.recv_cq)
            .max_send_wr(config.depth + 2)
            .max_recv_wr(config.rx_depth + 2)
            .max_inline(config.inline)
            .sl(config.sl)
            .traffic_class(TrafficClass(config.traffic_class))
            .user_data(index.into());
        let builder = match self.srq {
            Some(srq) => builder.srq(srq),
            None => builder,
        };
        match self.gid {
            Some((port, index)) => builder.gid(port, index),
            None => builder,
        }
    }

    fn connected<T: OnePeer>(&self, index: u32, access: Access) -> QpBuilder<T> {
        let builder = self.builder::<T>(index).access(access);
        match self.config.mtu {
            Some(mtu) => builder.mtu(Mtu::at_most(mtu)),
            None => builder,
        }
    }
}

impl Prepared {
    pub fn endpoint(&self) -> Endpoint {
        match self {
            Self::Rc(qp) => qp.endpoint(),
            Self::Uc(qp) => qp.endpoint(),
            Self::Ud(qp) => qp.endpoint(),
        }
    }

    pub fn push<'a>(&self, sink: &mut impl Sink<'a>, recv: Recv<'a>) -> ulp::error::Result<()> {
        match self {
            Self::Rc(qp) => sink.push(qp, recv),
            Self::Uc(qp) => sink.push(qp, recv),
            Self::Ud(qp) => sink.push(qp, recv),
        }
    }

    pub fn connect(self, peer: Endpoint) -> ulp::error::Result<Connected> {
        Ok(match self {
            Self::Rc(qp) => Connected::Rc(qp.connect(peer)?),
            Self::Uc(qp) => Connected::Uc(qp.connect(peer)?),
            Self::Ud(qp) => {
                let qp = qp.ready()?;
                let way = qp.address(&peer)?;
                Connected::Ud(qp, way.queue_pair(peer.qp_num, Ud::DEFAULT_QKEY))
            }
        })
    }
}

/// Creates a request with the identifier and the flags of an [`Op`].
macro_rules! request {
    ($op:expr, $($new:tt)*) => {{
        let mut request = ulp::wr::$($new)*.wr_id($op.id).signaled($op.signaled);
        if let Some(imm) = $op.imm {
            request = request.imm(imm);
        }
        if $op.inline {
            request = request.inline();
        }
        request
    }};
}

/// A queue pair that can send.
pub enum Connected {
    Rc(Qp<Rc>),
    Uc(Qp<Uc>),
    /// With the peer's queue pair.
    Ud(Qp<Ud>, Destination),
}

impl Connected {
    /// Creates the request of `op`, and gives it to a batch, a ring or [`Alone`].
    pub fn push<'a>(
        &'a self,
        sink: &mut impl Sink<'a>,
        op: &Op,
        local: LocalSlice<'a>,
        remote: impl Fn() -> Result<RemoteSlice>,
    ) -> Result<()> {
        let recv = || Recv::new(local).wr_id(op.id);
        match (self, op.kind) {
            (Self::Rc(qp), Kind::Recv) => sink.push(qp, recv())?,
            (Self::Uc(qp), Kind::Recv) => sink.push(qp, recv())?,
            (Self::Ud(qp, _), Kind::Recv) => sink.push(qp, recv())?,
            (Self::Rc(qp), Kind::Send) => sink.push(qp, request!(op, Send::new(local)))?,
            (Self::Uc(qp), Kind::Send) => sink.push(qp, request!(op, Send::new(local)))?,
            (Self::Ud(qp, to), Kind::Send) => {
                sink.push(qp, request!(op, SendTo::new(local, to)))?
            }
            (Self::Rc(qp), Kind::Write) => {
                sink.push(qp, request!(op, Write::new(local, remote()?)))?
            }
            (Self::Uc(qp), Kind::Write) => {
                sink.push(qp, request!(op, Write::new(local, remote()?)))?
            }
            (Self::Rc(qp), Kind::Read) => {
                let read = ulp::wr::Read::new(remote()?, local).wr_id(op.id);
                sink.push(qp, read.signaled(op.signaled))?;
            }
            (Self::Rc(qp), Kind::FetchAdd) => {
                let add = ulp::wr::FetchAdd::new(remote()?, op.args.0, local).wr_id(op.id);
                sink.push(qp, add.signaled(op.signaled))?;
            }
            (Self::Rc(qp), Kind::CmpSwap) => {
                let (compare, swap) = op.args;
                let swap = ulp::wr::CompareSwap::new(remote()?, compare, swap, local).wr_id(op.id);
                sink.push(qp, swap.signaled(op.signaled))?;
            }
            // Config::check() leaves these out.
            (Self::Uc(_) | Self::Ud(..), kind) => bail!("this transport has no {kind:?}"),
        }
        Ok(())
    }
}
