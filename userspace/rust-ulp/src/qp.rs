// SPDX-License-Identifier: MIT OR Apache-2.0

//! Queue pairs: transports, options, attributes and states, from the builder to the connection.

use crate::abi;
use crate::access::Access;
use crate::completion::Completion;
use crate::cq::Cq;
use crate::device::{Device, DeviceInner};
use crate::endpoint::{Endpoint, Mtu};
use crate::error::{Error, Result};
use crate::gid::Gid;
use crate::object::Object;
use crate::params::{at_most, bits_24};
use crate::pd::Pd;
use crate::port::family_error;
use crate::post::{cancel, post_one};
use crate::refusal::Rejection;
use crate::srq::Srq;
use crate::status::WrOpcode;
use crate::sync::{lock, Cache};
use crate::sys::Command;
use crate::wait::{self, Helper, Who};
use crate::wr::{Post, Recv, RequestFor, Target};
use nix::errno::Errno;
use std::fmt;
use std::future::{pending, Future};
use std::marker::PhantomData;
use std::sync::Arc;

pub use crate::attr::{QpAttr, QpCaps, QpInfo};
pub use crate::params::{AckTimeout, Retries, RnrRetries, RnrTimer, TrafficClass};
pub use crate::path::Path;
pub use crate::state::{AttrSet, QpState};
pub use crate::transport::{Connected, Init, Rc, Rts, State, Transport, Uc, Ud};

/// Returns the number of a first packet, which a peer cannot guess.
fn random_psn() -> Result<u32> {
    let errno = |error: getrandom::Error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
    let random = getrandom::u32().map_err(|error| Error::sys("getrandom", errno(error)))?;
    Ok(random & 0xff_ffff)
}

impl Pd {
    /// Returns options for a queue pair of type `T` in this domain, whose completions go to `cq`.
    pub fn qp_builder<T: Transport>(&self, cq: &Cq) -> QpBuilder<T> {
        let info = self.device().info();
        let limits = self.device().limits();
        let depth = 128.min(info.max_qp_wr).min(limits.max_queue_depth);
        QpBuilder {
            pd: self.clone(),
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            caps: QpCaps {
                max_send_wr: depth,
                max_recv_wr: depth,
                max_send_sge: 4.min(info.max_send_sge).min(limits.max_sge),
                max_recv_sge: 4.min(info.max_recv_sge).min(limits.max_sge),
                max_inline: 64.min(limits.max_inline),
            },
            inline_said: false,
            srq: None,
            signal_all: false,
            user_data: 0,
            access: None,
            gid: None,
            params: Params {
                pkey_index: 0,
                mtu: None,
                timeout: AckTimeout::DEFAULT,
                retry_cnt: Retries::DEFAULT,
                rnr_retry: RnrRetries::DEFAULT,
                min_rnr_timer: RnrTimer::DEFAULT,
                rd_atomic: 16,
                hop_limit: 0,
                traffic_class: None,
                flow_label: 0,
                sl: 0,
                qkey: Ud::DEFAULT_QKEY,
            },
            transport: PhantomData,
        }
    }
}

/// Options of a queue pair; from [`Pd::qp_builder`].
#[doc(alias = "rust_ulp_qp_create")]
#[derive(Clone, Debug)]
#[must_use = "nothing is made before `build`"]
pub struct QpBuilder<T: Transport> {
    pd: Pd,
    send_cq: Cq,
    recv_cq: Cq,
    caps: QpCaps,
    /// [`Self::max_inline`] was called.
    inline_said: bool,
    srq: Option<Srq>,
    signal_all: bool,
    user_data: u64,
    access: Option<Access>,
    gid: Option<(u32, u8)>,
    params: Params,
    transport: PhantomData<fn() -> T>,
}

/// Parameters that are used when the connection is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Params {
    pub(crate) pkey_index: u16,
    pub(crate) mtu: Option<Mtu>,
    pub(crate) timeout: AckTimeout,
    pub(crate) retry_cnt: Retries,
    pub(crate) rnr_retry: RnrRetries,
    pub(crate) min_rnr_timer: RnrTimer,
    pub(crate) rd_atomic: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: Option<TrafficClass>,
    pub(crate) flow_label: u32,
    pub(crate) sl: u8,
    pub(crate) qkey: u32,
}

impl<T: Transport> QpBuilder<T> {
    /// Sets a queue of its own for the completions of receives. It has no effect with
    /// [`Self::srq`].
    pub fn recv_cq(mut self, cq: &Cq) -> Self {
        self.recv_cq = cq.clone();
        self
    }

    /// Takes its receives from `srq`, whose completion queue becomes that of its receives. It takes
    /// none of its own then.
    pub fn srq(mut self, srq: &Srq) -> Self {
        self.srq = Some(srq.clone());
        self
    }

    /// Sets the number of send requests in flight. The default is 128, as far as the device goes.
    pub fn max_send_wr(mut self, n: u32) -> Self {
        self.caps.max_send_wr = n;
        self
    }

    /// Sets the number of receive requests in flight. The default is 128, as far as the device
    /// goes. It has no effect with [`Self::srq`].
    pub fn max_recv_wr(mut self, n: u32) -> Self {
        self.caps.max_recv_wr = n;
        self
    }

    /// Sets the elements per send and per receive request. The default is 4 and 4. The latter has
    /// no effect with [`Self::srq`].
    pub fn max_sge(mut self, send: u32, recv: u32) -> Self {
        self.caps.max_send_sge = send;
        self.caps.max_recv_sge = recv;
        self
    }

    /// Sets the inline bytes per send request. The default is 64, or none where the device refuses
    /// these.
    pub fn max_inline(mut self, bytes: u32) -> Self {
        self.caps.max_inline = bytes;
        self.inline_said = true;
        self
    }

    /// Makes every send request signaled, whatever it says itself.
    #[doc(alias = "RUST_ULP_QP_SIG_ALL")]
    pub fn signal_all(mut self) -> Self {
        self.signal_all = true;
        self
    }

    /// Sets a value of the caller's, which completions and events of the queue pair carry
    /// ([`Completion::qp_user_data`](crate::Completion::qp_user_data),
    /// [`Event::user_data`](crate::events::Event::user_data)). A completion of a request that was
    /// added to a ring of io_uring by `Ring::push` has 0 instead; `DeviceBatch::post_by` posts by a
    /// ring, and its completions carry the value.
    pub fn user_data(mut self, value: u64) -> Self {
        self.user_data = value;
        self
    }

    /// Sets port and GID index, instead of those that [`Device::default_gid`] names.
    pub fn gid(mut self, port: u32, gid_index: u8) -> Self {
        self.gid = Some((port, gid_index));
        self
    }

    /// Sets the index into the port's P_Key table. The default is 0.
    pub fn pkey_index(mut self, index: u16) -> Self {
        self.params.pkey_index = index;
        self
    }

    /// Sets the number of routers that may be passed. The default 0 is what the route says.
    pub fn hop_limit(mut self, hops: u8) -> Self {
        self.params.hop_limit = hops;
        self
    }

    /// Sets DSCP and ECN. The default is 0, and over the connection manager what the route has.
    pub fn traffic_class(mut self, class: TrafficClass) -> Self {
        self.params.traffic_class = Some(class);
        self
    }

    /// Sets the flow label, 20 bits, which selects among equal routes. The default is 0.
    pub fn flow_label(mut self, label: u32) -> Self {
        self.params.flow_label = label;
        self
    }

    /// Sets the service level (with RoCE the priority): 0 to 7, on InfiniBand to 15. The default is
    /// 0.
    pub fn sl(mut self, sl: u8) -> Self {
        self.params.sl = sl;
        self
    }

    /// Makes the queue pair, in the state Reset.
    fn create(&self, port: u32, gid_index: u8, access: Access) -> Result<Arc<Inner>> {
        let device = self.pd.device();
        // A shared receive queue brings its own, whatever was set before or after it.
        let (recv_cq, max_recv_wr, max_recv_sge) = match &self.srq {
            Some(srq) => (srq.cq(), 0, 0),
            None => (&self.recv_cq, self.caps.max_recv_wr, self.caps.max_recv_sge),
        };
        // Handles of another file name other things there.
        let queues = [&self.send_cq, recv_cq].map(Cq::device_inner);
        let srq = self.srq.as_ref().map(Srq::device_inner);
        if queues
            .into_iter()
            .chain(srq)
            .any(|of| !Arc::ptr_eq(of, device))
        {
            return Err(Error::sys(abi::QpCreate::NAME, Errno::EXDEV));
        }
        let mut arg = abi::QpCreate {
            flags: if self.signal_all { abi::QP_SIG_ALL } else { 0 },
            pd: self.pd.handle(),
            send_cq: self.send_cq.handle(),
            recv_cq: recv_cq.handle(),
            srq: self.srq.as_ref().map_or(0, Srq::handle),
            qp_type: T::QP_TYPE,
            max_send_wr: self.caps.max_send_wr,
            max_recv_wr,
            max_send_sge: self.caps.max_send_sge,
            max_recv_sge,
            max_inline: self.caps.max_inline,
            user_data: self.user_data,
            ..Command::new()
        };
        let mut made = device.call(&mut arg);
        // No attribute of a device says how much it takes.
        if !self.inline_said
            && made
                .as_ref()
                .is_err_and(|e| e.errno() == Some(libc::EINVAL))
        {
            arg.max_inline = 0;
            made = device.call(&mut arg);
        }
        made?;
        Ok(Arc::new(Inner {
            object: Object::new(device, arg.handle),
            qp_num: arg.qp_num,
            caps: QpCaps {
                max_send_wr: arg.max_send_wr,
                max_recv_wr: arg.max_recv_wr,
                max_send_sge: arg.max_send_sge,
                max_recv_sge: arg.max_recv_sge,
                max_inline: arg.max_inline,
            },
            send_cq: self.send_cq.clone(),
            recv_cq: recv_cq.clone(),
            srq: self.srq.clone(),
            pd: self.pd.clone(),
            port,
            gid_index,
            params: self.params,
            access,
            storage: Cache::default(),
            helper: Helper::default(),
        }))
    }

    /// Makes the queue pair and takes it to the state Init, in which receives can be posted.
    ///
    /// # Errors
    ///
    /// [`Error::NoUsableGid`] if no GID was given and the device has none to choose, or if the table
    /// of the port has no GID at that index;
    /// [`Error::Unsupported`] if the device does not do this type, [`Error::Sys`] with `ERANGE` for
    /// more than the device has room for, `EXDEV` for completion queues of another [`Device`] or a
    /// shared receive queue of another domain, `EPERM` for a Q_Key with the highest bit set without
    /// `CAP_NET_RAW`, `EMFILE`, `ENOMEM`.
    pub fn build(self) -> Result<PreparedQp<T>> {
        let device = Device::from_inner(self.pd.device());
        let (port, gid_index) = match self.gid {
            None => {
                let chosen = device.default_gid()?;
                (chosen.port, chosen.gid_index)
            }
            Some(chosen) => chosen,
        };
        // The table may have changed since the device was opened.
        let gids = device.gids(port)?;
        let entry = gids.iter().find(|gid| gid.index == gid_index);
        let entry = entry.ok_or_else(|| Error::NoUsableGid {
            port,
            tried: format!("index {gid_index} is empty"),
        })?;
        at_most("a service level", self.params.sl, 15)?;
        at_most("a flow label", self.params.flow_label, 0xf_ffff)?;
        let about_port = device.port(port)?;
        let info = device.info();
        let supported = [
            (WrOpcode::Write, Access::REMOTE_WRITE),
            (WrOpcode::Read, Access::REMOTE_READ),
            (WrOpcode::CompareSwap, Access::REMOTE_ATOMIC),
        ];
        let supported = supported
            .into_iter()
            .filter(|(op, _)| info.supports::<T>(*op));
        let access = self
            .access
            .unwrap_or(supported.map(|(_, right)| right).collect());
        let inner = self.create(port, gid_index, access)?;
        let params = &self.params;
        let up_to = |n: u32| u8::try_from(n).unwrap_or(u8::MAX).min(params.rd_atomic);
        let port_mtu = Mtu::at_most(about_port.active_mtu);
        let qp = Qp {
            local: Endpoint {
                qp_num: inner.qp_num,
                psn: random_psn()?,
                gid: entry.gid,
                lid: about_port.short_lid()?,
                mtu: params.mtu.unwrap_or(port_mtu).min(port_mtu),
                responder: up_to(info.max_responder),
                initiator: up_to(info.max_initiator),
            },
            inner,
            peer: (),
        };
        qp.initialize()?;
        Ok(qp)
    }
}

impl<T: Connected> QpBuilder<T> {
    /// Sets the rights of the peer to memory that is granted to it: everything that the device can,
    /// unless said.
    pub fn access(mut self, access: Access) -> Self {
        self.access = Some(access);
        self
    }

    /// Sets the largest MTU. The default is the port's. The connection gets the smaller one of both
    /// ends.
    pub fn mtu(mut self, mtu: Mtu) -> Self {
        self.params.mtu = Some(mtu);
        self
    }
}

impl QpBuilder<Rc> {
    /// Sets how long to wait for an acknowledgement. The default is [`AckTimeout::DEFAULT`] (67
    /// ms).
    pub fn timeout(mut self, timeout: AckTimeout) -> Self {
        self.params.timeout = timeout;
        self
    }

    /// Sets how often to repeat a request that is not acknowledged: 6 unless said, since rxe takes
    /// 7 for ever and would never tell of a peer that vanished.
    pub fn retry_cnt(mut self, count: Retries) -> Self {
        self.params.retry_cnt = count;
        self
    }

    /// Sets how often to repeat a request that finds no receive: 6 unless said. For ever hides a
    /// peer that forgot to post. Over the connection manager, this is what the peer is told to do,
    /// and the peer says what this end does.
    pub fn rnr_retry(mut self, count: RnrRetries) -> Self {
        self.params.rnr_retry = count;
        self
    }

    /// Sets how long a peer waits whose request found no receive: [`RnrTimer::DEFAULT`] (10.24 ms)
    /// unless said.
    pub fn min_rnr_timer(mut self, timer: RnrTimer) -> Self {
        self.params.min_rnr_timer = timer;
        self
    }

    /// Sets the reads and atomics at a time, in each direction. The default is 16, as far as both
    /// ends go.
    pub fn rd_atomic(mut self, count: u8) -> Self {
        self.params.rd_atomic = count;
        self
    }
}

impl QpBuilder<Ud> {
    /// Sets the Q_Key that a datagram has to carry to be received: [`Ud::DEFAULT_QKEY`] unless
    /// said. Those with the highest bit set are for the privileged.
    pub fn qkey(mut self, qkey: u32) -> Self {
        self.params.qkey = qkey;
        self
    }
}

// Dropped in this order: the peer's entry, the object, the queues, the domain.
#[derive(Debug)]
struct Inner {
    object: Object,
    qp_num: u32,
    caps: QpCaps,
    send_cq: Cq,
    recv_cq: Cq,
    srq: Option<Srq>,
    pd: Pd,
    port: u32,
    gid_index: u8,
    params: Params,
    /// The rights of the peer.
    access: Access,
    /// Memory for the next batch.
    storage: Cache,
    /// The thread that takes it to the state Rtr, when a task has given that up.
    helper: Helper,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.object.device.file().is_inherited() {
            return;
        }
        self.object.device.set_peer(self.object.handle(), None);
    }
}

impl Inner {
    /// Returns the target of requests; datagrams have at most `mtu` bytes.
    #[inline]
    fn target(&self, mtu: Option<Mtu>) -> Target<'_> {
        Target {
            handle: self.object.handle(),
            #[cfg(feature = "io-uring")]
            qp_num: self.qp_num,
            life: self.object.life(),
            device: &self.object.device,
            mtu: mtu.map(Mtu::bytes),
            takes_receives: self.srq.is_none(),
            max_inline: self.caps.max_inline,
        }
    }

    fn path_to(&self, gid: Gid, lid: u16) -> Path {
        let params = &self.params;
        Path {
            hop_limit: params.hop_limit,
            traffic_class: params.traffic_class.unwrap_or_default(),
            flow_label: params.flow_label,
            sl: params.sl,
            lid,
            ..Path::new(gid, self.port, self.gid_index)
        }
    }

    fn modify(&self, attr: QpAttr) -> Result<Path> {
        let mut arg = abi::QpModify {
            qp: self.object.handle(),
            attr_mask: attr.mask,
            attr: attr.attr,
            ..Command::new()
        };
        match self.object.device.file().call(&mut arg) {
            Ok(()) => Ok(Path::from_abi(&arg.attr.ah)),
            Err(Errno::EPROTO) => {
                let current = self.query()?.state;
                Err(Error::InvalidTransition {
                    current,
                    next: attr.next().unwrap_or(current),
                    missing: AttrSet {
                        mask: arg.missing_mask,
                    },
                    extra: AttrSet {
                        mask: arg.extra_mask,
                    },
                })
            }
            Err(errno) => {
                let has_address = attr.mask & abi::QP_AV != 0 && errno == Errno::EINVAL;
                let family =
                    has_address.then(|| family_error(self.object.device.file(), &attr.attr.ah));
                let error = || Error::sys(abi::QpModify::NAME, errno);
                Err(family.flatten().unwrap_or_else(error))
            }
        }
    }

    fn query(&self) -> Result<QpInfo> {
        let mut arg = abi::QpQuery {
            qp: self.object.handle(),
            ..Command::new()
        };
        self.object.device.call(&mut arg)?;
        Ok(QpInfo::new(&arg))
    }
}

/// A queue pair of the transport `T`, whose type says its state `S`: [`Rts`] unless said.
///
/// A [`PreparedQp`] takes receives. Connecting it, or making it ready, turns it into a `Qp<T>`, to
/// which any request can be posted. The queue pair is destroyed when it is dropped, or the last of
/// its clones, with whatever is in flight on it. Completions that are in the queue already can
/// still be taken. It keeps its completion queues and its protection domain.
#[derive(Debug)]
#[must_use = "a queue pair that is dropped is destroyed"]
pub struct Qp<T: Transport, S: State = Rts> {
    inner: Arc<Inner>,
    local: Endpoint,
    peer: S::Peer<T>,
}

/// A queue pair that is not yet connected (state Init): receives can be posted, so that they are
/// there before the peer sends.
///
/// Connecting turns it into a [`Qp`]. It is not to be cloned: nothing is left of it then.
pub type PreparedQp<T> = Qp<T, Init>;

/// A clone is cheap. The queue pair is destroyed when the last one is dropped.
impl<T: Transport> Clone for Qp<T> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            ..*self
        }
    }
}

impl<T: Transport, S: State> Qp<T, S> {
    /// Posts a receive, as [`Qp::post`].
    pub fn post_recv(&self, recv: Recv<'_>) -> Result<()> {
        post_one(&self.target(), &recv.into())
    }

    /// Completes the requests in flight whose number is `wr_id` as
    /// [`Status::Canceled`](crate::Status::Canceled), and returns how many there were. What has
    /// completed already stays as it is, and the queue goes on. The device is not done with what
    /// was canceled: see there. An unsignaled send counts as in flight until a later one has
    /// completed.
    #[doc(alias = "rust_ulp_cancel")]
    pub fn cancel(&self, wr_id: u64) -> Result<u32> {
        cancel(&self.inner.object.device, self.handle(), Some(wr_id))
    }

    /// Cancels all requests in flight, as [`Self::cancel`].
    pub fn cancel_all(&self) -> Result<u32> {
        cancel(&self.inner.object.device, self.handle(), None)
    }

    /// Returns its number: 24 bits.
    pub fn qp_num(&self) -> u32 {
        self.inner.qp_num
    }

    /// Returns its capacities.
    pub fn caps(&self) -> &QpCaps {
        &self.inner.caps
    }

    /// Returns this end, as the other end needs to know it. The first packet's number is random.
    pub fn endpoint(&self) -> Endpoint {
        self.local
    }

    /// Returns its protection domain.
    pub fn pd(&self) -> &Pd {
        &self.inner.pd
    }

    /// Returns the completion queue of its sends.
    pub fn send_cq(&self) -> &Cq {
        &self.inner.send_cq
    }

    /// Returns the completion queue of its receives.
    pub fn recv_cq(&self) -> &Cq {
        &self.inner.recv_cq
    }

    /// Returns the shared receive queue from which it takes its receives, if there is one.
    pub fn srq(&self) -> Option<&Srq> {
        self.inner.srq.as_ref()
    }

    /// Sets attributes, and returns the path as the kernel resolved it. A program that takes a
    /// [`PreparedQp`] to the state Rts by this way calls [`PreparedQp::into_connected`] afterwards.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidTransition`] if the state table does not allow it; [`Error::Sys`] with
    /// `ERANGE` for numbers that are too large, `EHOSTUNREACH`, `ENETUNREACH` or `ETIMEDOUT` if
    /// there is no way to the peer, `EPERM` for a Q_Key with the highest bit set without
    /// `CAP_NET_RAW`; [`Error::DeviceGone`].
    #[doc(alias = "RUST_ULP_IOC_QP_MODIFY")]
    pub fn modify(&self, attr: QpAttr) -> Result<Path> {
        self.inner.modify(attr)
    }

    /// Asks the kernel for its state and attributes.
    pub fn query(&self) -> Result<QpInfo> {
        self.inner.query()
    }

    pub(crate) fn handle(&self) -> u32 {
        self.inner.object.handle()
    }

    pub(crate) fn device_inner(&self) -> &Arc<DeviceInner> {
        &self.inner.object.device
    }

    pub(crate) fn target(&self) -> Target<'_> {
        let datagrams = T::QP_TYPE == abi::QPT_UD;
        self.inner.target(datagrams.then_some(self.local.mtu))
    }
}

impl<T: Transport> Qp<T> {
    /// Posts a request: it is under way when this returns, and reports its end to the completion
    /// queue.
    ///
    /// # Errors
    ///
    /// [`Error::QueueFull`] if there is no room: reap and try again. [`Error::Range`],
    /// [`Error::Misaligned`], [`Error::Access`], [`Error::TooMany`] or [`Error::DatagramTooLong`]
    /// for a request that cannot work, [`Error::SharedReceives`] for a receive on a queue pair that
    /// has a shared receive queue, [`Error::NotConnected`] if [`Self::modify`] has reset the queue
    /// pair, [`Error::Sys`] with `EMSGSIZE` for too many bytes, `EXDEV` for a buffer of another
    /// domain or `ENOENT` for one of another [`Device`], [`Error::DeviceGone`]. Nothing was posted
    /// then.
    ///
    /// After a request has failed, the queue pair is in the state [`QpState::Err`]. It still takes
    /// requests, and each completes with [`Status::Flushed`](crate::Status::Flushed).
    pub fn post<'a>(&self, request: impl Post<'a, T>) -> Result<()> {
        post_one(&self.target(), &request.into())
    }

    pub(crate) fn storage(&self) -> &Cache {
        &self.inner.storage
    }
}

impl<T: Transport> PreparedQp<T> {
    /// Takes it from the state Reset to Init.
    fn initialize(&self) -> Result<()> {
        let (inner, params) = (&self.inner, &self.inner.params);
        let init = QpAttr::to(QpState::Init)
            .pkey_index(params.pkey_index)
            .port(inner.port);
        self.modify(if T::QP_TYPE == abi::QPT_UD {
            init.qkey(params.qkey)
        } else {
            init.access(inner.access)
        })?;
        Ok(())
    }

    /// Takes it to the state Init again after a failure.
    fn restore(&self) -> Result<()> {
        match self.query()?.state {
            QpState::Init => return Ok(()),
            QpState::Reset => (),
            _ => drop(self.modify(QpAttr::to(QpState::Reset))?),
        }
        self.initialize()
    }

    /// Takes a queue pair that [`Self::modify`] brought to the state Rts as connected.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidTransition`] if it is in another state.
    pub fn into_connected(self) -> Result<Qp<T>> {
        let taken = self.take_connected(&[QpState::Rts]);
        taken.map_err(|(error, _qp)| error)
    }

    /// Takes it as connected if it is in one of `states`. Returns the queue pair if it fails.
    pub(crate) fn take_connected(
        mut self,
        states: &[QpState],
    ) -> Result<Qp<T>, (Error, Box<Self>)> {
        match self.look_at_connection(states) {
            Ok(peer) => Ok(self.into_qp(peer)),
            Err(error) => Err((error, Box::new(self))),
        }
    }

    /// Takes over what others did to it: where it starts, and where its peer is.
    fn look_at_connection(&mut self, states: &[QpState]) -> Result<T::Peer> {
        let info = self.inner.query()?;
        if !states.contains(&info.state) {
            return Err(Error::InvalidTransition {
                current: info.state,
                next: QpState::Rts,
                missing: AttrSet::default(),
                extra: AttrSet::default(),
            });
        }
        let (port, index) = (info.path.port, info.path.gid_index);
        let known = (port, index) == (self.inner.port, self.inner.gid_index);
        if T::QP_TYPE != abi::QPT_UD && !known && port != 0 {
            let gids = Device::from_inner(&self.inner.object.device).gids(port)?;
            if let Some(entry) = gids.iter().find(|entry| entry.index == index) {
                self.local.gid = entry.gid;
            }
        }
        self.local.psn = info.sq_psn;
        Ok(T::peer(&info, self.local.mtu))
    }

    pub(crate) fn into_qp(self, peer: T::Peer) -> Qp<T> {
        let inner = &self.inner;
        let end = T::end(&peer).map(|end| (end.qp_num, end.gid));
        inner.object.device.set_peer(inner.object.handle(), end);
        Qp {
            inner: self.inner,
            local: self.local,
            peer,
        }
    }

    pub(crate) fn params(&self) -> &Params {
        &self.inner.params
    }

    /// Returns the rights of the peer.
    pub(crate) fn access(&self) -> Access {
        self.inner.access
    }
}

impl<T: Connected> PreparedQp<T> {
    /// Returns the attributes that take it to the state Rtr, towards `peer`.
    fn receiving_from(&self, peer: &Endpoint) -> Result<QpAttr> {
        let attr = QpAttr::to(QpState::Rtr)
            .path(self.inner.path_to(peer.gid, peer.lid))
            .path_mtu(self.local.mtu.min(peer.mtu))
            .dest_qp_num(bits_24("the number of a queue pair", peer.qp_num)?)
            .rq_psn(bits_24("the number of a packet", peer.psn)?);
        Ok(if T::RELIABLE {
            attr.max_dest_rd_atomic(self.local.responder.min(peer.initiator))
                .min_rnr_timer(self.inner.params.min_rnr_timer)
        } else {
            attr
        })
    }

    /// Takes it to the state Rtr, towards `peer`: it receives from now on. A task waits for a
    /// helper thread: the kernel may sleep for seconds until the peer's address is resolved.
    ///
    /// A task fails with what `over` returns, if that is ready first. Then the state may still change,
    /// until [`ConnectError::into_qp`].
    pub(crate) async fn ready_to_receive(
        &self,
        who: Who,
        peer: &Endpoint,
        over: impl Future<Output = Error>,
    ) -> Result<()> {
        let (inner, attr) = (self.inner.clone(), self.receiving_from(peer)?);
        let helper = &self.inner.helper;
        wait::blocking(who, over, helper, move || inner.modify(attr)).await??;
        Ok(())
    }

    /// Takes it from the state Rtr to Rts: it can send from now on.
    pub(crate) fn ready_to_send(&self, peer: &Endpoint) -> Result<()> {
        let params = &self.inner.params;
        let attr = QpAttr::to(QpState::Rts).sq_psn(self.local.psn);
        self.modify(if T::RELIABLE {
            attr.timeout(params.timeout)
                .retry_cnt(params.retry_cnt)
                .rnr_retry(params.rnr_retry)
                .max_rd_atomic(self.local.initiator.min(peer.responder))
        } else {
            attr
        })?;
        Ok(())
    }

    /// Connects to an end that the caller knows, by whatever way. The other end has to do the same
    /// with [`Self::endpoint`] of this one, and nobody may send before both have.
    ///
    /// The MTU is the smaller one of both ends.
    ///
    /// # Errors
    ///
    /// [`Error::GidFamily`] if one GID is an IPv4 address and the other an IPv6 address;
    /// [`Error::Sys`] with `EHOSTUNREACH`, `ENETUNREACH` or `ETIMEDOUT` if there is no way to the
    /// peer's GID; [`Error::Value`] for numbers that are too large; [`Error::DeviceGone`]. The queue
    /// pair can be tried again.
    pub fn connect(self, peer: Endpoint) -> Result<Qp<T>, ConnectError<T>> {
        let ready = wait::run(self.ready_to_receive(Who::Thread, &peer, pending()));
        match ready.and_then(|()| self.ready_to_send(&peer)) {
            Ok(()) => Ok(self.into_qp(peer)),
            Err(error) => Err(ConnectError::new(error, self)),
        }
    }
}

/// A connection that did not come about.
///
/// The queue pair is as it was, with the receives that were posted to it: it can be tried again.
/// Only when the two ends had answered each other already, its receives are flushed, and have to be
/// posted anew.
pub struct ConnectError<T: Transport = Rc> {
    error: Error,
    qp: Box<PreparedQp<T>>,
}

impl<T: Transport> ConnectError<T> {
    pub(crate) fn new(error: Error, qp: PreparedQp<T>) -> Self {
        // If that fails, it fails again for the one who tries again. A helper thread that is left may
        // change the state once more.
        if lock(&qp.inner.helper).is_none() {
            let _ = qp.restore();
        }
        Self {
            error,
            qp: Box::new(qp),
        }
    }

    /// Returns the error.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// Returns the peer's rejection, if the error is one.
    pub fn rejection(&self) -> Option<&Rejection> {
        match &self.error {
            Error::Rejected(rejection) => Some(rejection),
            _ => None,
        }
    }

    /// Returns the queue pair, to try again.
    ///
    /// If the time of a task was over while the kernel resolved the peer's address, this sleeps until
    /// the kernel has done so, some seconds at most.
    pub fn into_qp(self) -> PreparedQp<T> {
        let helper = lock(&self.qp.inner.helper).take();
        if let Some(helper) = helper {
            let _ = helper.join(); // a panic of it is of no interest here
            let _ = self.qp.restore();
        }
        *self.qp
    }
}

/// The error alone: there is much to a queue pair.
impl<T: Transport> fmt::Debug for ConnectError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ConnectError").field(&self.error).finish()
    }
}

impl<T: Transport> fmt::Display for ConnectError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl<T: Transport> std::error::Error for ConnectError<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}

impl<T: Transport> From<ConnectError<T>> for Error {
    fn from(error: ConnectError<T>) -> Self {
        error.error
    }
}

impl PreparedQp<Ud> {
    /// Takes it to the state Rts: it sends to and receives from anybody who knows its number and
    /// Q_Key.
    pub fn ready(self) -> Result<Qp<Ud>> {
        self.modify(QpAttr::to(QpState::Rtr))?;
        self.modify(QpAttr::to(QpState::Rts).sq_psn(self.local.psn))?;
        Ok(self.into_qp(()))
    }
}

impl<T: Connected> Qp<T> {
    /// Returns the other end of the connection.
    pub fn peer(&self) -> &Endpoint {
        &self.peer
    }
}

impl Qp<Ud> {
    /// Returns the Q_Key that a datagram has to carry to be received, as the queue pair was built.
    pub fn qkey(&self) -> u32 {
        self.inner.params.qkey
    }

    pub(crate) fn path_to(&self, gid: Gid, lid: u16) -> Path {
        self.inner.path_to(gid, lid)
    }
}

impl Completion {
    /// Returns true if the request was posted to this queue pair.
    pub fn is_of<T: Transport, S: State>(&self, qp: &Qp<T, S>) -> bool {
        (self.qp, self.device) == (qp.handle(), qp.device_inner().id())
    }
}

#[cfg(any(feature = "smol", feature = "tokio"))]
impl<T: Transport, S: State> crate::wr::RequestQueue for Qp<T, S> {
    fn keep(&self) -> Arc<dyn std::any::Any + std::marker::Send + Sync> {
        self.inner.clone()
    }

    fn completes_to(&self, receives: bool) -> &Cq {
        if receives {
            &self.inner.recv_cq
        } else {
            &self.inner.send_cq
        }
    }
}

impl<'a, T: Transport, R: Post<'a, T>> RequestFor<'a, &Qp<T>> for R {
    fn target<'q>(qp: &'q &Qp<T>) -> Target<'q> {
        qp.target()
    }

    fn post_to(self, qp: &Qp<T>) -> Result<()> {
        qp.post(self)
    }
}

impl<'a, T: Transport> RequestFor<'a, &PreparedQp<T>> for Recv<'a> {
    fn target<'q>(qp: &'q &PreparedQp<T>) -> Target<'q> {
        qp.target()
    }

    fn post_to(self, qp: &PreparedQp<T>) -> Result<()> {
        qp.post_recv(self)
    }
}
