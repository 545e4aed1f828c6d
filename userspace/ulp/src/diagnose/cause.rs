// SPDX-License-Identifier: MIT OR Apache-2.0

//! The one reason why nobody acknowledged a request: status 12.
//!
//! The reasons look the same to the device that gave up. What this end knows, what the peer says of
//! its queue pair, an echo over a new connection and the counters tell them apart.

use rust_ulp::device::PortState;
use rust_ulp::error::Result;
use rust_ulp::qp::{QpState, Rc};
use rust_ulp::{Device, Endpoint, Gid, Qp};

/// The reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Packets of the queue pair's MTU are larger than the port sends.
    Mtu,
    /// Some packets get through and others do not.
    Lossy,
    /// No packet gets through.
    Blocked,
}

impl RetryCause {
    /// Returns the check that fails by it, what is wrong, and what to do about it. `{0}` in a text is
    /// the network interface.
    pub fn texts(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::PortDown => (
                "port",
                "the local port carries no traffic",
                "bring its network interface up, and connect its cable",
            ),
            Self::WrongGid => (
                "gid_pair",
                "wrong GID: one end sends from or to an address that is not the other's",
                "`ulp gids` lists the GIDs of each end, and QpBuilder::gid() sets one; connect anew when addresses have changed",
            ),
            Self::WrongNumber => (
                "number",
                "wrong number: one end sends to another queue pair than that of the other end",
                "exchange the endpoints anew for each connection, as connect_tcp() and connect_cm() do",
            ),
            Self::WrongPsn => (
                "psn",
                "wrong PSN: the peer expects other packet numbers than this end sends",
                "rq_psn of each end is sq_psn of the other; never reuse an Endpoint of an earlier queue pair",
            ),
            Self::PeerDead => (
                "peer_queue",
                "the peer is dead: its queue pair is gone or in error",
                "look at the peer's program and its completions, and connect to it anew",
            ),
            Self::Paused => (
                "pause_frames",
                "pause frames stop the port: congestion, or a PFC storm",
                "find the port that sends them, with `ulp counters` and the counters of the switches",
            ),
            Self::Mtu => (
                "large",
                "packets of the queue pair's MTU do not get through, smaller ones do",
                "take a smaller QpBuilder::mtu(), or raise the MTU of the interfaces on the way",
            ),
            Self::Lossy => (
                "loss",
                "the path loses packets",
                "look for drops in the counters of ports and switches; turn on PFC or ECN, or lower the load",
            ),
            Self::Blocked => (
                "packets",
                "the peer answers by TCP, but not by RoCE v2: UDP port 4791 does not get through",
                "at both ends, and between them: nft list ruleset; nft insert rule inet filter input udp dport 4791 accept (firewall-cmd --add-port=4791/udp); to see where packets end: ulp sniff {0}",
            ),
        }
    }
}

/// The state of a queue pair, as one end tells it to the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpReport {
    pub qp_num: u32,
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

    /// Returns what the other end needs to know of a queue pair.
    pub fn of(qp: &Qp<Rc>) -> Result<Self> {
        let info = qp.query()?;
        Ok(Self {
            qp_num: info.qp_num,
            state: info.state,
            dest_qp_num: info.dest_qp_num,
            rq_psn: info.rq_psn,
            dest_gid: info.path.gid,
        })
    }

    /// Returns the report as bytes.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
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

/// This end of a connection, as it is now.
#[derive(Clone, Copy, Debug)]
pub struct Here {
    port_is_active: bool,
    /// The GID in the table, from which it sends.
    gid: Option<Gid>,
    /// The GID that it sends to.
    dest_gid: Gid,
    dest_qp_num: u32,
    /// Bytes of its packets, and the most that the port sends.
    mtu: (u32, u32),
}

impl Here {
    pub fn of(device: &Device, qp: &Qp<Rc>) -> Result<Self> {
        let info = qp.query()?;
        let (port, gids) = (device.port(info.port)?, device.gids(info.port)?);
        let index = info.path.gid_index;
        Ok(Self {
            port_is_active: matches!(port.state, PortState::Active | PortState::ActiveDefer),
            gid: (gids.iter().find(|entry| entry.index == index)).map(|entry| entry.gid),
            dest_gid: info.path.gid,
            dest_qp_num: info.dest_qp_num,
            mtu: (info.path_mtu.map_or(0, |mtu| mtu.bytes()), port.active_mtu),
        })
    }

    /// Returns what is wrong here, for a queue pair that was connected as `local` with `peer`.
    fn fault(&self, local: &Endpoint, peer: &Endpoint) -> Option<RetryCause> {
        let is_other_family = local.gid.ipv4().is_some() != peer.gid.ipv4().is_some();
        let is_wrong_gid =
            self.gid != Some(local.gid) || is_other_family || is_another(self.dest_gid, peer.gid);
        let faults = [
            (!self.port_is_active, RetryCause::PortDown),
            (is_wrong_gid, RetryCause::WrongGid),
            (self.dest_qp_num != peer.qp_num, RetryCause::WrongNumber),
            (self.mtu.0 > self.mtu.1, RetryCause::Mtu),
        ];
        let mut faults = faults.into_iter().filter(|(is_so, _)| *is_so);
        faults.next().map(|(_, cause)| cause)
    }
}

/// Returns whether a path leads to another address. Within a subnet of InfiniBand it has none.
fn is_another(path: Gid, gid: Gid) -> bool {
    path != Gid::default() && path != gid
}

/// The evidence about the peer and the path after a failure.
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "evidence does nothing before it is asked for the cause"]
pub struct Evidence {
    peer: Option<QpReport>,
    gone: bool,
    small: Option<bool>,
    repeats: u64,
    pauses: u64,
}

impl Evidence {
    /// The peer says this of its queue pair.
    pub fn peer(mut self, report: QpReport) -> Self {
        self.peer = Some(report);
        self
    }

    /// The peer says that it has no such queue pair, or has hung up.
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

    /// Returns the cause that this end and the evidence leave, if that is one, for a queue pair that
    /// was connected as `local` with `peer`.
    pub fn cause(&self, here: &Here, local: &Endpoint, peer: &Endpoint) -> Option<RetryCause> {
        here.fault(local, peer).or_else(|| self.fault(local))
    }

    /// Returns what is wrong at the peer or with the path.
    fn fault(&self, local: &Endpoint) -> Option<RetryCause> {
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
        match self.small {
            // Pause frames are no fault of a path that works.
            small if self.pauses > 0 && (small == Some(false) || self.repeats > 0) => {
                Some(RetryCause::Paused)
            }
            Some(true) if self.repeats > 0 => Some(RetryCause::Lossy),
            Some(false) => Some(RetryCause::Blocked),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rust_ulp::Mtu;

    const OURS: Gid = Gid([1; 16]);
    const THEIRS: Gid = Gid([2; 16]);

    fn ends() -> [Endpoint; 2] {
        [(7, 100, OURS), (8, 200, THEIRS)]
            .map(|(number, psn, gid)| Endpoint::new(number, psn, gid, Mtu::B1024))
    }

    /// An end on which nothing is wrong.
    fn here() -> Here {
        Here {
            port_is_active: true,
            gid: Some(OURS),
            dest_gid: THEIRS,
            dest_qp_num: 8,
            mtu: (1024, 1024),
        }
    }

    #[test]
    fn causes_that_the_peer_and_the_path_show_are_told_apart() {
        let [local, peer] = ends();
        let good = QpReport {
            qp_num: 8,
            state: QpState::Rts,
            dest_qp_num: 7,
            rq_psn: 101,
            dest_gid: OURS,
        };
        assert_eq!(QpReport::from_bytes(&good.to_bytes()), good);
        let report = |report| Evidence::default().peer(report);
        let works = Evidence::default().small_echo(true);
        let state = QpState::Err;
        let (dest_gid, dest_qp_num, rq_psn) = (Gid([7; 16]), 9, 91);
        for (evidence, cause) in [
            (Evidence::default(), None),
            (report(good), None),
            (works, None),
            (Evidence::default().peer_gone(), Some(RetryCause::PeerDead)),
            (
                report(QpReport { state, ..good }),
                Some(RetryCause::PeerDead),
            ),
            (
                report(QpReport { dest_gid, ..good }),
                Some(RetryCause::WrongGid),
            ),
            (
                report(QpReport {
                    dest_qp_num,
                    ..good
                }),
                Some(RetryCause::WrongNumber),
            ),
            (
                report(QpReport { rq_psn, ..good }),
                Some(RetryCause::WrongPsn),
            ),
            // A storm: pause frames came in, and requests were repeated for that reason.
            (
                works.peer(good).repeats(5).pauses(3),
                Some(RetryCause::Paused),
            ),
            (works.small_echo(false).pauses(1), Some(RetryCause::Paused)),
            (works.pauses(9), None),
            (works.repeats(1), Some(RetryCause::Lossy)),
            (works.peer(good), Some(RetryCause::Lossy)),
            (
                Evidence::default().small_echo(false),
                Some(RetryCause::Blocked),
            ),
        ] {
            assert_eq!(
                evidence.cause(&here(), &local, &peer),
                cause,
                "{evidence:?}"
            );
        }
    }

    #[test]
    fn a_fault_of_this_end_comes_before_those_of_the_peer() {
        let [local, peer] = ends();
        let cause = |here: &Here| Evidence::default().peer_gone().cause(here, &local, &peer);
        assert_eq!(cause(&here()), Some(RetryCause::PeerDead));
        for (changed, cause_of_it) in [
            (
                Here {
                    mtu: (2048, 1024),
                    ..here()
                },
                RetryCause::Mtu,
            ),
            (
                Here {
                    dest_qp_num: 9,
                    mtu: (2048, 1024),
                    ..here()
                },
                RetryCause::WrongNumber,
            ),
            (
                Here {
                    dest_gid: OURS,
                    dest_qp_num: 9,
                    ..here()
                },
                RetryCause::WrongGid,
            ),
            (
                Here {
                    gid: None,
                    ..here()
                },
                RetryCause::WrongGid,
            ),
            (
                Here {
                    gid: Some(THEIRS),
                    ..here()
                },
                RetryCause::WrongGid,
            ),
            (
                Here {
                    port_is_active: false,
                    gid: None,
                    ..here()
                },
                RetryCause::PortDown,
            ),
        ] {
            assert_eq!(cause(&changed), Some(cause_of_it), "{changed:?}");
        }
        // Within a subnet of InfiniBand the path has no GID.
        let local_subnet = Here {
            dest_gid: Gid::default(),
            ..here()
        };
        assert_eq!(cause(&local_subnet), Some(RetryCause::PeerDead));
        // The one end has an IPv4 address, the other one none.
        let mapped = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, 1]);
        let local = Endpoint::new(7, 100, mapped, Mtu::B1024);
        let here = Here {
            gid: Some(mapped),
            ..here()
        };
        let evidence = Evidence::default();
        assert_eq!(
            evidence.cause(&here, &local, &peer),
            Some(RetryCause::WrongGid)
        );
    }
}
