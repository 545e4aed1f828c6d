// SPDX-License-Identifier: MIT OR Apache-2.0

//! Shared receive queues: options and state.

use crate::abi;
use crate::cq::Cq;
use crate::device::DeviceInner;
use crate::error::{Error, Result};
use crate::info::info;
use crate::object::Object;
use crate::pd::Pd;
use crate::post::{cancel, post_one};
use crate::sys::Command;
use crate::wr::{Recv, RequestFor, Target};
use nix::errno::Errno;
use std::sync::Arc;

impl Pd {
    /// Begins a shared receive queue of this domain, whose receives complete in `cq`.
    pub fn srq_builder(&self, cq: &Cq) -> SrqBuilder {
        let (info, limits) = (self.device().info(), self.device().limits());
        SrqBuilder {
            pd: self.clone(),
            cq: cq.clone(),
            max_wr: 128.min(info.max_srq_wr).min(limits.max_queue_depth),
            max_sge: 4.min(info.max_recv_sge).min(limits.max_sge),
            limit: 0,
        }
    }
}

/// Options of a shared receive queue; from [`Pd::srq_builder`].
#[doc(alias = "rust_ulp_srq_create")]
#[derive(Clone, Debug)]
#[must_use = "nothing is made before `build`"]
pub struct SrqBuilder {
    pd: Pd,
    cq: Cq,
    max_wr: u32,
    max_sge: u32,
    limit: u32,
}

impl SrqBuilder {
    /// Receives in flight; 128 unless said, as far as the device goes.
    pub fn max_wr(mut self, n: u32) -> Self {
        self.max_wr = n;
        self
    }

    /// Sets the elements per receive; 4 unless said.
    pub fn max_sge(mut self, n: u32) -> Self {
        self.max_sge = n;
        self
    }

    /// Arms the limit as [`Srq::arm_limit`] does; 0, unless said, does not.
    pub fn limit(mut self, n: u32) -> Self {
        self.limit = n;
        self
    }

    /// Makes the queue.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the device has none,
    /// [`Error::Sys`] with `ERANGE` for more than the device has room for,
    /// `EXDEV` for a completion queue of another device, `EMFILE`, `ENOMEM`;
    /// [`Error::DeviceGone`].
    pub fn build(self) -> Result<Srq> {
        let device = self.pd.device();
        // The handle of another file names another thing there.
        if !Arc::ptr_eq(self.cq.device_inner(), device) {
            return Err(Error::sys(abi::SrqCreate::NAME, Errno::EXDEV));
        }
        let mut arg = abi::SrqCreate {
            pd: self.pd.handle(),
            cq: self.cq.handle(),
            max_wr: self.max_wr,
            max_sge: self.max_sge,
            limit: self.limit,
            ..Command::new()
        };
        device.call(&mut arg)?;
        Ok(Srq {
            inner: Arc::new(Inner {
                object: Object::new(device, arg.handle),
                cq: self.cq,
                pd: self.pd,
                max_wr: arg.max_wr,
                max_sge: arg.max_sge,
            }),
        })
    }
}

// Dropped in this order: the object, its completion queue, its protection domain.
#[derive(Debug)]
struct Inner {
    object: Object,
    cq: Cq,
    pd: Pd,
    max_wr: u32,
    max_sge: u32,
}

/// A queue of receives that queue pairs share ([`QpBuilder::srq`](crate::qp::QpBuilder::srq)): each
/// message that comes for one of them takes the first. Its completion names the queue pair
/// ([`Completion::is_of`](crate::Completion::is_of)), unless the receive was added to a ring of
/// io_uring by `Ring::push`: post it by `DeviceBatch::post_by` instead.
///
/// When a queue pair ends in the middle of a message, the receive of that message completes later as
/// [`Status::Flushed`](crate::Status::Flushed), with `qp_user_data` 0, and
/// [`Completion::is_of`](crate::Completion::is_of) is false for all queue pairs: a server posts
/// another in its place.
///
/// Cheap to clone; destroyed when the last clone and the last queue pair on it is gone.
#[derive(Clone, Debug)]
pub struct Srq {
    inner: Arc<Inner>,
}

info! {
    /// The state of a shared receive queue, as the kernel has it.
    #[doc(alias = "rust_ulp_srq_query")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SrqInfo(arg: &abi::SrqQuery) {
        /// Receives that it has room for.
        pub max_wr: u32,
        /// Elements per receive.
        pub max_sge: u32,
        /// The limit that is armed; [`None`] when there is none, or when its event was raised.
        pub limit: Option<u32> = (arg.limit != 0).then_some(arg.limit),
        /// Receives posted and not completed.
        pub recvs_in_flight: u32,
        /// Receives in flight that a queue pair has taken, though a later one has completed. Each
        /// queue pair in use may hold one; queue pairs that have ended hold the rest. Others can be
        /// posted in their place.
        pub orphans: u32,
    }
}

impl Srq {
    /// Posts a receive, as [`Qp::post`](crate::Qp::post).
    pub fn post_recv(&self, recv: Recv<'_>) -> Result<()> {
        post_one(&self.target(), &recv.into())
    }

    /// Cancels the requests in flight whose number is `wr_id`, as [`Qp::cancel`](crate::Qp::cancel).
    #[doc(alias = "rust_ulp_cancel")]
    pub fn cancel(&self, wr_id: u64) -> Result<u32> {
        cancel(&self.inner.object.device, self.handle(), Some(wr_id))
    }

    /// Cancels all requests in flight, as [`Self::cancel`].
    pub fn cancel_all(&self) -> Result<u32> {
        cancel(&self.inner.object.device, self.handle(), None)
    }

    /// Asks for one [`EventKind::SrqLimit`](crate::events::EventKind::SrqLimit) when fewer than `n`
    /// receives are left; 0 asks for none. After the event, it has to be asked for again.
    ///
    /// # Errors
    ///
    /// [`Error::Sys`] with `ERANGE` for more than [`Self::max_wr`];
    /// [`Error::DeviceGone`].
    #[doc(alias = "rust_ulp_srq_modify")]
    pub fn arm_limit(&self, n: u32) -> Result<()> {
        let mut arg = abi::SrqModify {
            srq: self.handle(),
            limit: n,
            ..Command::new()
        };
        self.inner.object.device.call(&mut arg)
    }

    /// Asks the kernel for its state.
    pub fn query(&self) -> Result<SrqInfo> {
        let mut arg = abi::SrqQuery {
            srq: self.handle(),
            ..Command::new()
        };
        self.inner.object.device.call(&mut arg)?;
        Ok(SrqInfo::new(&arg))
    }

    /// Receives that it has room for, as the device granted it.
    pub fn max_wr(&self) -> u32 {
        self.inner.max_wr
    }

    /// Returns the elements per receive, as the device granted them.
    pub fn max_sge(&self) -> u32 {
        self.inner.max_sge
    }

    /// Returns the completion queue of its receives.
    pub fn cq(&self) -> &Cq {
        &self.inner.cq
    }

    /// Returns its protection domain.
    pub fn pd(&self) -> &Pd {
        &self.inner.pd
    }

    pub(crate) fn handle(&self) -> u32 {
        self.inner.object.handle()
    }

    pub(crate) fn device_inner(&self) -> &Arc<DeviceInner> {
        &self.inner.object.device
    }

    pub(crate) fn target(&self) -> Target<'_> {
        Target {
            handle: self.handle(),
            #[cfg(feature = "io-uring")]
            qp_num: 0,
            life: self.inner.object.life(),
            device: &self.inner.object.device,
            mtu: None,
            takes_receives: true,
            max_inline: 0,
        }
    }
}

#[cfg(any(feature = "smol", feature = "tokio"))]
impl crate::wr::RequestQueue for Srq {
    fn keep(&self) -> Arc<dyn std::any::Any + Send + Sync> {
        self.inner.clone()
    }

    fn completes_to(&self, _receives: bool) -> &Cq {
        self.cq()
    }
}

impl<'a> RequestFor<'a, &Srq> for Recv<'a> {
    fn target<'q>(srq: &'q &Srq) -> Target<'q> {
        srq.target()
    }

    fn post_to(self, srq: &Srq) -> Result<()> {
        srq.post_recv(self)
    }
}
