// SPDX-License-Identifier: MIT OR Apache-2.0

//! Why requests fail: what each status can mean, and what this end can see of it.

use crate::attr::QpInfo;
use crate::device::Device;
use crate::endpoint::{Endpoint, Mtu};
use crate::error::{CompletionError, Result};
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
    /// What it is.
    pub what: &'static str,
    /// How to tell, and what to do about it.
    pub cure: &'static str,
}

/// What a status says, and what can have led to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Advice {
    /// What was seen.
    pub symptom: &'static str,
    /// What it can come from, the most likely first.
    pub causes: &'static [Cause],
}

macro_rules! advice {
    ($($status:ident: $symptom:literal, [$($what:literal => $cure:literal;)*];)*) => {
        impl Status {
            /// What this status says, and what can have led to it; [`None`] for what only a driver
            /// knows.
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
            "let UDP port 4791 through the firewalls of both hosts and between them; look with tcpdump at both ends";
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

/// Why a request failed, as far as this end can see; from [`Qp::diagnose`]. Its text has a line for
/// each thing.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Diagnosis {
    /// The failure.
    pub error: CompletionError,
    /// What the status says, and what can have led to it.
    pub advice: Option<&'static Advice>,
    /// This end, as it is now.
    pub info: QpInfo,
    /// Its port, as it is now.
    pub port: PortInfo,
    /// This end, as it was connected.
    pub local: Endpoint,
    /// The other end, as it was connected.
    pub peer: Option<Endpoint>,
    /// What is wrong at this end, in words: these come before the possible causes.
    pub findings: Vec<String>,
}

impl<T: Transport> Qp<T> {
    /// Looks at this end of a failed request: what is wrong here is found, the rest is told as
    /// possible causes.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceGone`](crate::Error::DeviceGone): which explains it, too.
    pub fn diagnose(&self, error: &CompletionError) -> Result<Diagnosis> {
        let info = self.query()?;
        let device = Device::from_inner(self.device_inner());
        let (port, gids) = (device.port(info.port)?, device.gids(info.port)?);
        let local = *self.local();
        let peer = self.end().copied();
        let mut findings = Vec::new();
        if !matches!(port.state, PortState::Active | PortState::ActiveDefer) {
            findings.push(format!(
                "port {} is {:?}: bring its network interface up, and connect its cable",
                port.port, port.state
            ));
        }
        // Known of connections only.
        let index = u32::from(info.path.gid_index);
        let now = gids.iter().find(|entry| entry.index == index);
        if let Some(peer) = &peer {
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
            }
            if info.path_mtu.map(Mtu::bytes) > Some(port.active_mtu) {
                findings.push(format!(
                    "its packets of {} bytes are larger than the {} that the port sends now",
                    info.path_mtu.map_or(0, Mtu::bytes),
                    port.active_mtu
                ));
            }
        }
        Ok(Diagnosis {
            error: *error,
            advice: error.status.advice(),
            info,
            port,
            local,
            peer,
            findings,
        })
    }
}

impl Diagnosis {
    /// How long this end went on before it gave up, in words, where that matters.
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
            writeln!(f, "symptom: {}", error.status.explanation())?;
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
        for (i, cause) in (1..).zip(self.advice.map_or(&[][..], |advice| advice.causes)) {
            writeln!(f, "cause {i}: {}; {}", cause.what, cause.cure)?;
        }
        Ok(())
    }
}
