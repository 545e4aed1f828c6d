// SPDX-License-Identifier: MIT OR Apache-2.0

//! Diagnoses of failed requests: possible causes, and the evidence at this end.

use crate::attr::QpInfo;
use crate::device::Device;
use crate::endpoint::{Endpoint, Mtu};
use crate::error::{CompletionError, Result};
use crate::gid::Gid;
use crate::port::{PortInfo, PortState};
use crate::qp::Qp;
use crate::state::QpState;
use crate::status::Status;
use crate::transport::Transport;
use std::fmt;

/// Something that can have made a request fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cause {
    /// The cause.
    pub what: &'static str,
    /// The way to recognize it, and the cure.
    pub cure: &'static str,
}

/// The meaning of a status, and its possible causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Advice {
    /// The symptom.
    pub symptom: &'static str,
    /// Its causes, the most likely first.
    pub causes: &'static [Cause],
}

macro_rules! advice {
    ($($status:ident: $symptom:literal, [$($what:literal => $cure:literal;)*];)*) => {
        impl Status {
            /// Returns the meaning of this status and its possible causes; [`None`] for what only a
            /// driver knows.
            pub fn advice(self) -> Option<&'static Advice> {
                match self {
                    $(Self::$status => Some(&Advice {
                        symptom: $symptom,
                        causes: &[$(Cause { what: $what, cure: $cure },)*],
                    }),)*
                    _ => None,
                }
            }
        }
    };
}

advice! {
    RetryExceeded: "nobody acknowledged the request, however often it was repeated", [
        "the peer's queue pair is gone, in error, or not yet ready to receive" =>
            "look at the peer's program and its completions; the peer has to be in Rtr before this end sends, which \
             connect_tcp() and connect_cm() see to";
        "a wrong GID: this end sends from an address that the peer cannot answer, or to one that is not the peer's" =>
            "compare Device::default_gid() at both ends with Qp::peer(): both GIDs have to be of one type, RoCE v1 or v2, \
             and their addresses have to reach each other (ping -I); QpBuilder::gid() takes another";
        "RoCE v2's packets do not get through" =>
            "let UDP port 4791 through the firewalls of both hosts and between them; look with ulp sniff at both ends";
        "the path loses packets: congestion without flow control" =>
            "see whether `rdma statistic` and the network interfaces count drops and repeats; turn on PFC or ECN in \
             the switches, or lower the load";
        "packets are larger than a hop lets through" =>
            "small messages work and large ones do not: take a smaller QpBuilder::mtu(), or raise the MTU of the \
             interfaces on the way";
        "the ends disagree on packet numbers" =>
            "the rq_psn of each end is the sq_psn of the other: compare Qp::query() of both; never reuse an Endpoint \
             of an earlier queue pair";
        "the peer is there, but slow" => "take a longer QpBuilder::timeout() or more retry_cnt()";
    ];
    RnrRetryExceeded: "the peer answered that it has no receive posted: the network is fine", [
        "the peer posted none before this end sent" =>
            "post receives to the PreparedQp, before it is connected";
        "the peer posts fewer than this end has under way" =>
            "post as many as the peer may send, and a new one for each that completes; with a shared receive queue, \
             arm its limit and post when it is reached";
        "writes with immediate data take receives, too" => "post one for each of them";
        "the peer is late, and this end does not wait long enough" =>
            "take more QpBuilder::rnr_retry() here, or a longer min_rnr_timer() at the peer";
    ];
    RemoteAccess: "the peer's device refused the access to its memory: the network is fine", [
        "the key is wrong, or was revoked" =>
            "the peer has to keep its Grant until this end is done; keys of an earlier run are worth nothing";
        "the access goes over the end of what was granted" =>
            "take RemoteSlice::slice() of what the peer granted, which checks it";
        "the grant lacks the right" => "the peer grants REMOTE_WRITE, REMOTE_READ or REMOTE_ATOMIC for it";
        "the peer's queue pair lacks the right" => "QpBuilder::access() there, or leave it out: it allows everything";
        "the peer's buffer and queue pair are of different domains" => "make both of one Pd";
    ];
    LocalProtection: "this end's device refused the request's own memory", [
        "the memory's key was taken away while the request was in flight" =>
            "destroy buffers only after their requests have completed (this crate's slices see to that)";
        "the buffer is of another protection domain than the queue pair" => "make both of one Pd";
        "a receive's memory cannot be written by the device" => "receive into a Buffer";
    ];
    LocalLength: "what came is longer than the receive that took it, or a message is longer than can be", [
        "the receive is too small" => "post receives as large as the peer's longest message";
        "a datagram's receive has no room for the network header" =>
            "post 40 bytes more than the longest datagram has";
        "the message is longer than the port takes" => "PortInfo::max_msg_size is the limit: split the message";
    ];
    RemoteInvalidRequest: "the peer's device does not take such a request", [
        "the peer's receive is too small for the message" => "the peer posts larger ones, or this end sends less";
        "the peer's queue pair does not allow the operation" => "QpBuilder::access() there";
        "more reads and atomics under way than the peer answers" =>
            "take QpBuilder::rd_atomic() of what the peer's Endpoint::responder says";
    ];
    RemoteOperation: "the peer's device could not carry the request out: the network is fine", [
        "the peer's receive is too small for the message: Soft-RoCE answers so" =>
            "the peer posts larger ones, or this end sends less";
        "the peer's queue pair or completion queue has failed" => "look at the peer's completions, events and log";
    ];
    LocalQpOperation: "this end's device could not carry the request out", [
        "what came is longer than the receive that took it: Soft-RoCE says it so" =>
            "post receives as large as the peer's longest message";
        "the request does not go with the queue pair's type, state or limits" =>
            "see Qp::query(), Qp::caps() and DeviceInfo::supports()";
    ];
    LocalAccess: "a peer's request was refused the memory of a receive here", [
        "the receive's memory cannot be written by the device" => "receive into a Buffer";
    ];
    BadResponse: "the peer's device answered with what fits no request", [
        "the ends disagree on packet numbers, MTU or type" => "connect both with what the other's endpoint() says";
    ];
    Flushed: "the request was not carried out, or nobody knows: the queue pair had failed or was taken down before", [
        "an earlier request failed" => "the first completion with another status has the cause";
        "this end or the peer disconnected" => "Connection::query() tells; nothing is wrong then";
        "the peer broke a rule, and this end's device stopped" =>
            "Device::events() has QpAccessError or QpRequestError about this queue pair";
    ];
}

/// The one reason why nobody acknowledged a request ([`Status::RetryExceeded`]).
///
/// The causes look the same to the device that gave up. [`Qp::diagnose`] tells some of them apart by
/// what this end knows, [`Qp::diagnose_with`] all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RetryCause {
    /// The local port carries no traffic.
    PortDown,
    /// One end sends from or to an address that is not, or no longer, the other's.
    WrongGid,
    /// One end sends to another queue pair than the other end's.
    WrongNumber,
    /// The peer expects other packet numbers than this end sends.
    WrongPsn,
    /// The peer's queue pair no longer exists, or takes no more requests.
    PeerDead,
    /// Pause frames stop the port, as in a PFC storm.
    Paused,
    /// Small packets get through, packets of the queue pair's MTU do not.
    Mtu,
    /// Some packets get through and others do not.
    Lossy,
    /// No packet gets through.
    Blocked,
}

impl RetryCause {
    /// Returns what is wrong, and what to do about it.
    pub fn cause(self) -> Cause {
        let (what, cure) = match self {
            Self::PortDown => (
                "the local port carries no traffic",
                "bring its network interface up, and connect its cable",
            ),
            Self::WrongGid => (
                "wrong GID: one end sends from or to an address that is not the other's",
                "compare Device::default_gid() at both ends with Qp::peer(); connect anew when addresses have changed",
            ),
            Self::WrongNumber => (
                "wrong number: one end sends to another queue pair than that of the other end",
                "exchange the endpoints anew for each connection, as connect_tcp() and connect_cm() do",
            ),
            Self::WrongPsn => (
                "wrong PSN: the peer expects other packet numbers than this end sends",
                "rq_psn of each end is sq_psn of the other; never reuse an Endpoint of an earlier queue pair",
            ),
            Self::PeerDead => (
                "the peer is dead: its queue pair is gone or in error",
                "look at the peer's program and its completions, and connect to it anew",
            ),
            Self::Paused => (
                "pause frames stop the port: congestion, or a PFC storm",
                "find the port that sends them, with `ulp counters` and the counters of the switches",
            ),
            Self::Mtu => (
                "packets of the queue pair's MTU do not get through, smaller ones do",
                "take a smaller QpBuilder::mtu(), or raise the MTU of the interfaces on the way",
            ),
            Self::Lossy => (
                "the path loses packets",
                "look for drops in the counters of ports and switches; turn on PFC or ECN, or lower the load",
            ),
            Self::Blocked => (
                "RoCE v2 packets do not get through",
                "let UDP port 4791 through the firewalls of both hosts and between them; look with ulp sniff at both ends",
            ),
        };
        Cause { what, cure }
    }
}

/// The state of a queue pair, for the diagnosis at the other end; from [`Qp::report`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpReport {
    /// Its number.
    pub qp_num: u32,
    /// Its state.
    pub state: QpState,
    /// The number of the queue pair that it sends to.
    pub dest_qp_num: u32,
    /// The number of the packet that it expects next: 24 bits.
    pub rq_psn: u32,
    /// The GID that it sends to.
    pub dest_gid: Gid,
}

impl QpReport {
    /// The length of a report that is sent to the other end.
    pub const LEN: usize = 32;

    /// Returns the report as bytes.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let state = u32::from(self.state.code());
        let numbers = [self.qp_num, state, self.dest_qp_num, self.rq_psn];
        let mut bytes = [0; Self::LEN];
        for (to, number) in bytes.chunks_exact_mut(4).zip(numbers) {
            to.copy_from_slice(&number.to_le_bytes());
        }
        if let Some(to) = bytes.last_chunk_mut::<16>() {
            *to = self.dest_gid.0;
        }
        bytes
    }

    /// Returns the report that [`Self::to_bytes`] made.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let number = |at: usize| {
            let bytes = bytes.get(at..).and_then(<[u8]>::first_chunk);
            bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
        };
        Self {
            qp_num: number(0),
            state: QpState::from_code(number(4) as u8),
            dest_qp_num: number(8),
            rq_psn: number(12),
            dest_gid: Gid(bytes.last_chunk().copied().unwrap_or_default()),
        }
    }
}

/// The evidence about the peer and the path after a failure, for [`Qp::diagnose_with`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "evidence does nothing before it is given to `diagnose_with`"]
pub struct Evidence {
    peer: Option<QpReport>,
    gone: bool,
    small: Option<bool>,
    large: Option<bool>,
    repeats: u64,
    pauses: u64,
}

impl Evidence {
    /// The peer says this of its queue pair.
    pub fn peer(mut self, report: QpReport) -> Self {
        self.peer = Some(report);
        self
    }

    /// The peer says that it has no such queue pair, or has hung up:
    /// [`Peer::is_gone`](crate::tcp::Peer::is_gone).
    pub fn peer_gone(mut self) -> Self {
        self.gone = true;
        self
    }

    /// Sets whether the peer acknowledges packets of 256 bytes to a new queue pair on the same
    /// path.
    pub fn small_echo(mut self, arrives: bool) -> Self {
        self.small = Some(arrives);
        self
    }

    /// Sets whether the peer acknowledges packets of the failed queue pair's MTU to a new one.
    pub fn large_echo(mut self, arrives: bool) -> Self {
        self.large = Some(arrives);
        self
    }

    /// The requests that the device repeated during the echo, by its counters.
    pub fn repeats(mut self, count: u64) -> Self {
        self.repeats = count;
        self
    }

    /// The pause frames that the port received during the echo, by its counters.
    pub fn pauses(mut self, count: u64) -> Self {
        self.pauses = count;
        self
    }
}

/// Why a request failed, as far as this end can see; from [`Qp::diagnose`]. Its text has a line for
/// each thing.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Diagnosis {
    /// The failure.
    pub error: CompletionError,
    /// The meaning of the status, and its possible causes.
    pub advice: Option<&'static Advice>,
    /// This end, as it is now.
    pub info: QpInfo,
    /// Its port, as it is now.
    pub port: PortInfo,
    /// This end, as it was connected.
    pub local: Endpoint,
    /// The other end, as it was connected.
    pub peer: Option<Endpoint>,
    /// The faults at this end, in words. They come before the possible causes.
    pub findings: Vec<String>,
    /// The cause of [`Status::RetryExceeded`], if what is known leaves only one.
    pub cause: Option<RetryCause>,
}

impl<T: Transport> Qp<T> {
    /// Returns what the diagnosis at the other end needs to know of this one.
    ///
    /// # Errors
    ///
    /// As [`Self::query`].
    pub fn report(&self) -> Result<QpReport> {
        let info = self.query()?;
        Ok(QpReport {
            qp_num: info.qp_num,
            state: info.state,
            dest_qp_num: info.dest_qp_num,
            rq_psn: info.rq_psn,
            dest_gid: info.path.gid,
        })
    }

    /// Looks at this end of a failed request: what is wrong here is found, the rest is told as
    /// possible causes.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceGone`](crate::Error::DeviceGone): which explains it, too.
    pub fn diagnose(&self, error: &CompletionError) -> Result<Diagnosis> {
        self.diagnose_with(error, Evidence::default())
    }

    /// Looks at this end of a failed request as [`Self::diagnose`] does, and names the cause that
    /// this end, the peer and the path leave.
    ///
    /// # Errors
    ///
    /// As [`Self::diagnose`].
    pub fn diagnose_with(&self, error: &CompletionError, evidence: Evidence) -> Result<Diagnosis> {
        let info = self.query()?;
        let device = Device::from_inner(self.device_inner());
        let (port, gids) = (device.port(info.port)?, device.gids(info.port)?);
        let local = *self.local();
        let peer = self.end().copied();
        let (mut findings, mut own) = (Vec::new(), None);
        if !matches!(port.state, PortState::Active | PortState::ActiveDefer) {
            findings.push(format!(
                "port {} is {:?}: bring its network interface up, and connect its cable",
                port.port, port.state
            ));
            own.get_or_insert(RetryCause::PortDown);
        }
        // Known of connections only.
        let index = u32::from(info.path.gid_index);
        let now = gids.iter().find(|entry| entry.index == index);
        if let Some(peer) = &peer {
            if now.is_none_or(|entry| entry.gid != local.gid)
                || local.gid.ipv4().is_some() != peer.gid.ipv4().is_some()
                || is_another(info.path.gid, peer.gid)
            {
                own.get_or_insert(RetryCause::WrongGid);
            }
            match now {
                None => findings.push(format!(
                    "GID index {index}, from which it sends, is empty now: {} was taken off the interface",
                    local.gid
                )),
                Some(entry) if entry.gid != local.gid => findings.push(format!(
                    "GID index {index}, from which it sends, is {} now, and was {}: the interface's addresses \
                     have changed",
                    entry.gid, local.gid
                )),
                Some(_) => {}
            }
            if local.gid.ipv4().is_some() != peer.gid.ipv4().is_some() {
                findings.push(format!(
                    "it sends from {} to {}: one is an IPv4 address and the other is not",
                    local.gid, peer.gid
                ));
            }
            if info.dest_qp_num != peer.qp_num {
                findings.push(format!(
                    "it sends to queue pair {:#x} now, and was connected with {:#x}",
                    info.dest_qp_num, peer.qp_num
                ));
                own.get_or_insert(RetryCause::WrongNumber);
            }
            if info.path_mtu.map(Mtu::bytes) > Some(port.active_mtu) {
                findings.push(format!(
                    "its packets of {} bytes are larger than the {} that the port sends now",
                    info.path_mtu.map_or(0, Mtu::bytes),
                    port.active_mtu
                ));
                own.get_or_insert(RetryCause::Mtu);
            }
        }
        let unanswered = error.status == Status::RetryExceeded;
        let cause = own.or_else(|| evidence.cause(&local));
        Ok(Diagnosis {
            error: *error,
            advice: error.status.advice(),
            info,
            port,
            local,
            peer,
            findings,
            cause: cause.filter(|_| unanswered),
        })
    }
}

/// Returns whether a path leads to another address. Within a subnet of InfiniBand it has none.
fn is_another(path: Gid, gid: Gid) -> bool {
    path != Gid::default() && path != gid
}

impl Evidence {
    /// Returns the cause that the evidence leaves, for a queue pair that was connected as `local`.
    fn cause(&self, local: &Endpoint) -> Option<RetryCause> {
        // The peer has taken a request or two at most beyond the first packet.
        const NEAR: u32 = 1 << 16;
        let ahead = |report: &QpReport| report.rq_psn.wrapping_sub(local.psn) & 0xff_ffff;
        match &self.peer {
            _ if self.gone => return Some(RetryCause::PeerDead),
            Some(report) if !matches!(report.state, QpState::Rtr | QpState::Rts | QpState::Sqd) => {
                return Some(RetryCause::PeerDead)
            }
            Some(report) if is_another(report.dest_gid, local.gid) => {
                return Some(RetryCause::WrongGid)
            }
            Some(report) if report.dest_qp_num != local.qp_num => {
                return Some(RetryCause::WrongNumber)
            }
            Some(report) if ahead(report) >= NEAR => return Some(RetryCause::WrongPsn),
            _ => {}
        }
        // Both ends are as they should be, and the request failed on a path that works: it does so now
        // and then.
        let is_passing = self.small == Some(true) && self.peer.is_some();
        self.path_fault()
            .or(is_passing.then_some(RetryCause::Lossy))
    }

    /// Returns what is wrong with the path, by the echo and the counters alone.
    pub fn path_fault(&self) -> Option<RetryCause> {
        match (self.small, self.large) {
            // Pause frames are no fault of a path that works.
            (small, _) if self.pauses > 0 && (small == Some(false) || self.repeats > 0) => {
                Some(RetryCause::Paused)
            }
            (Some(true), _) if self.repeats > 0 => Some(RetryCause::Lossy),
            (Some(true), Some(false)) => Some(RetryCause::Mtu),
            (Some(false), _) => Some(RetryCause::Blocked),
            _ => None,
        }
    }
}

impl Diagnosis {
    /// Returns how long this end repeated the request before it gave up, in words, where that
    /// matters.
    fn patience(&self) -> Option<String> {
        let QpInfo {
            timeout,
            retry_cnt,
            rnr_retry,
            ..
        } = &self.info;
        match self.error.status {
            Status::RetryExceeded => Some(match timeout.duration() {
                Some(time) => format!(
                    "it gave up after {} repeats, each after {time:?} or more",
                    retry_cnt.count()
                ),
                None => "it waits for ever for an acknowledgement".to_owned(),
            }),
            Status::RnrRetryExceeded => Some(match rnr_retry.count() {
                Some(count) => {
                    format!("it gave up after {count} repeats, each when the peer said so")
                }
                None => "it repeats for ever".to_owned(),
            }),
            _ => None,
        }
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            error, info, port, ..
        } = self;
        writeln!(
            f,
            "{:?} request {} failed: {} (status {})",
            error.opcode,
            error.wr_id,
            error.status.name(),
            error.status.code()
        )?;
        if let Some(advice) = self.advice {
            writeln!(f, "symptom: {}", advice.symptom)?;
        } else {
            writeln!(f, "symptom: {}", error.status.explanation_for(error.opcode))?;
        }
        write!(f, "this end: {}, {:?}", self.local, info.state)?;
        if info.state == QpState::Err {
            f.write_str(" (it takes nothing more: make a new one)")?;
        }
        writeln!(
            f,
            ", {} sends and {} receives in flight, port {} {:?} with MTU {}",
            info.sends_in_flight, info.recvs_in_flight, port.port, port.state, port.active_mtu
        )?;
        if let Some(peer) = &self.peer {
            writeln!(
                f,
                "other end, as it was connected: {peer}, first packet {:#x}, MTU {}",
                peer.psn,
                peer.mtu.bytes()
            )?;
        }
        if let Some(patience) = self.patience() {
            writeln!(f, "patience: {patience}")?;
        }
        for finding in &self.findings {
            writeln!(f, "found: {finding}")?;
        }
        if let Some(Cause { what, cure }) = self.cause.map(RetryCause::cause) {
            return writeln!(f, "cause: {what}; {cure}");
        }
        for (i, cause) in (1..).zip(self.advice.map_or(&[][..], |advice| advice.causes)) {
            writeln!(f, "cause {i}: {}; {}", cause.what, cause.cure)?;
        }
        Ok(())
    }
}
