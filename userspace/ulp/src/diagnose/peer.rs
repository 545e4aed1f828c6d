// SPDX-License-Identifier: MIT OR Apache-2.0

//! Checks of the path to a peer: it listens, small and large packets get through and are not lost,
//! and its key is valid.
//!
//! A request that nobody acknowledges has many causes. The check then connects a second time: that
//! echo shows whether the path works. Over it the check reads what the peer says of the queue pair of
//! the first connection.

use super::cause::{Evidence, Here, QpReport, RetryCause};
use super::{Diagnose, Findings};
use crate::args::{address, default_port, without_port};
use crate::rdma::{self, RdmaDevice};
use crate::{listen, netlink, show};
use anyhow::Result;
use rust_ulp::error::CompletionError;
use rust_ulp::qp::{AckTimeout, Rc, Retries};
use rust_ulp::tcp::{Peer, TcpOptions};
use rust_ulp::wire::Refusal;
use rust_ulp::wr::{Read, Recv, Send, Write};
use rust_ulp::{Access, Cq, Device, Error, Grant, Mtu, Pd, PreparedQp, Qp, Status};
use std::io::ErrorKind;
use std::net::ToSocketAddrs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// The size of the large write: many packets, whatever the MTU.
const LEN: usize = 1 << 16;
const SMALL: usize = 64;
/// How long the peer waits for a client that connected.
const PATIENCE: Duration = Duration::from_secs(60);

fn prepare(
    args: &Diagnose,
    device: &Device,
    pd: &Pd,
    cq: &rust_ulp::Cq,
    mtu: Option<Mtu>,
) -> rust_ulp::error::Result<PreparedQp<Rc>> {
    let mut builder = pd
        .qp_builder::<Rc>(cq)
        // A peer that does not answer is detected after seven seconds or more.
        .timeout(AckTimeout::at_least(Duration::from_secs(1)))
        .retry_cnt(Retries::new(6)?);
    if let Some(mtu) = mtu {
        builder = builder.mtu(mtu);
    }
    if let Some(index) = args.gid_index {
        builder = builder.gid(default_port(device), index);
    }
    builder.build()
}

// --- the peer -----------------------------------------------------------------------

/// The most queue pairs that the peer tells of.
const REPORTS: usize = 64;

/// The most clients that the peer serves at a time, and the most that it refuses besides.
const CLIENTS: usize = 64;
/// How long the peer waits when it has no files or no memory for a client.
const PAUSE: Duration = Duration::from_secs(1);

/// The queue pairs of the connections of this peer.
#[derive(Default)]
struct Served(Mutex<Vec<Arc<Qp<Rc>>>>);

impl Served {
    fn change(&self, change: impl FnOnce(&mut Vec<Arc<Qp<Rc>>>)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns the reports of all queue pairs, one after the other.
    fn reports(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.change(|all| {
            let reports = all.iter().rev().take(REPORTS).map(|qp| QpReport::of(qp));
            bytes.extend(reports.flatten().flat_map(|report| report.to_bytes()));
        });
        bytes
    }
}

fn answer(
    args: &Diagnose,
    device: &Device,
    incoming: rust_ulp::tcp::Incoming,
    served: &Served,
    stop: &AtomicBool,
) -> rust_ulp::error::Result<()> {
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
    let buffer = pd.alloc_buffer(LEN)?;
    let page = pd.alloc_buffer(REPORTS * QpReport::LEN)?;
    page.write_at(0, &served.reports())?;
    let grants = [
        buffer.grant(.., Access::REMOTE_WRITE)?,
        page.grant(.., Access::REMOTE_READ)?,
    ];
    let grants: Vec<&Grant> = grants.iter().collect();
    let qp = prepare(args, device, &pd, &cq, None)?;
    qp.post_recv(Recv::empty())?;
    let (qp, peer) = incoming.accept(qp, &grants)?;
    let qp = Arc::new(qp);
    served.change(|all| all.push(qp.clone()));
    let done = attend(&cq, &peer, stop);
    served.change(|all| all.retain(|other| !Arc::ptr_eq(other, &qp)));
    done
}

/// Waits until the client is done: it sends, or hangs up when a request broke the connection.
fn attend(cq: &Cq, peer: &Peer, stop: &AtomicBool) -> rust_ulp::error::Result<()> {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end && !stop.load(Ordering::Relaxed) && !peer.is_gone()? {
        match cq.wait(Duration::from_millis(200)) {
            Err(Error::Timeout { .. }) => {}
            done => {
                done.map(|_| ())?;
                // The acknowledgement of what came last may be on its way.
                let _ = peer.wait_gone(Duration::from_secs(1));
                break;
            }
        }
    }
    Ok(())
}

/// Serves peers that test the path to this host, until `stop` is set.
pub fn serve(args: &Diagnose, stop: &AtomicBool) -> Result<()> {
    let device = args.device.open()?;
    let listener = listen::beside(&device, &address(&args.listen, args.port))?;
    let served = Served::default();
    message!("{device}");
    message!("listening at {}, until Ctrl-C", listener.local_addr()?);
    std::thread::scope(|scope| {
        let mut clients = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            match listener.accept(Duration::from_millis(200)) {
                Ok(incoming) => {
                    let (from, device, served) = (incoming.addr(), &device, &served);
                    clients.retain(|client: &ScopedJoinHandle<'_, ()>| !client.is_finished());
                    if clients.len() >= 2 * CLIENTS {
                        continue;
                    }
                    if clients.len() >= CLIENTS {
                        message!("{from}: refused, {CLIENTS} others are served");
                        // This waits for the client, which may be silent.
                        clients.push(scope.spawn(move || drop(incoming.refuse(Refusal::Busy))));
                        continue;
                    }
                    let client = move || match answer(args, device, incoming, served, stop) {
                        Ok(()) => message!("{from}: done"),
                        Err(error) => message!("{from}: {error}"),
                    };
                    clients.push(scope.spawn(client));
                }
                Err(Error::Timeout { .. }) => {}
                // Clients that end give their files and memory back.
                Err(error) if error.is_retryable() => {
                    message!("{error}");
                    std::thread::sleep(PAUSE);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    })
}

// --- the client ------------------------------------------------------------------------

/// A connection to the peer, for one check.
struct Link {
    qp: Qp<Rc>,
    cq: Cq,
    pd: Pd,
    peer: Peer,
}

impl Link {
    /// Connects with packets of at most `mtu`.
    fn new(
        args: &Diagnose,
        host: &str,
        device: &Device,
        mtu: Option<Mtu>,
    ) -> rust_ulp::error::Result<Self> {
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
        let qp = prepare(args, device, &pd, &cq, mtu)?;
        let options = TcpOptions::default().timeout(Duration::from_secs(15));
        let (qp, peer) = qp.connect_tcp_with(host, &[], options)?;
        Ok(Self { qp, cq, pd, peer })
    }

    /// Writes `len` bytes, so often.
    fn write(&self, len: usize, times: usize) -> rust_ulp::error::Result<()> {
        let buffer = self.pd.alloc_buffer(len)?;
        let to = self.peer.grant(0)?.slice(..len as u64)?;
        for _ in 0..times {
            self.qp.post(Write::new(buffer.slice(..)?, to))?;
            self.cq.wait(PATIENCE)?.check()?;
        }
        Ok(())
    }

    /// Reads what the peer says of its queue pair with a number. Returns [`None`] if it has none.
    fn ask(&self, qp_num: u32) -> rust_ulp::error::Result<Option<QpReport>> {
        let page = self.pd.alloc_buffer(REPORTS * QpReport::LEN)?;
        self.qp
            .post(Read::new(self.peer.grant(1)?, page.slice(..)?))?;
        self.cq.wait(PATIENCE)?.check()?;
        let bytes = page.to_vec(..)?;
        let reports = bytes
            .chunks_exact(QpReport::LEN)
            .flat_map(<&[u8; QpReport::LEN]>::try_from);
        Ok(reports
            .map(QpReport::from_bytes)
            .find(|report| report.qp_num == qp_num))
    }

    /// Tells the peer that the check is over.
    fn end(self) -> rust_ulp::error::Result<()> {
        self.qp.post(Send::empty())?;
        self.cq.wait(PATIENCE)?.check()
    }
}

/// The counters of the device and of its interfaces that tell of repeats and pause frames.
struct Counted {
    repeats: u64,
    pauses: u64,
}

impl Counted {
    fn now(device: &RdmaDevice) -> Self {
        let mut counted = Self {
            repeats: 0,
            pauses: 0,
        };
        for port in &device.ports {
            let hardware = netlink::counters(device.index, port.port).unwrap_or_default();
            let netdev = port.netdev.as_deref().map(rdma::ethtool_counters);
            for (name, value) in hardware.into_iter().chain(netdev).flatten() {
                if show::RETRIES.contains(&name.as_str()) {
                    counted.repeats = counted.repeats.wrapping_add(value);
                }
                if name.contains("rx") && name.contains("pause") {
                    counted.pauses = counted.pauses.wrapping_add(value);
                }
            }
        }
        counted
    }

    /// Adds what has been counted since `before` to `evidence`.
    fn since(&self, before: &Self, evidence: Evidence) -> Evidence {
        evidence
            .repeats(self.repeats.saturating_sub(before.repeats))
            .pauses(self.pauses.saturating_sub(before.pauses))
    }
}

/// Returns what is wrong with a path on which everything arrived since `before`.
fn fault_since(device: &RdmaDevice, before: &Counted) -> Option<RetryCause> {
    let evidence = Evidence::default().small_echo(true);
    Counted::now(device).since(before, evidence).path_fault()
}

/// Returns what is wrong with the path of a link that worked until now.
fn echo(link: &Link, device: &RdmaDevice) -> Option<RetryCause> {
    let before = Counted::now(device);
    match link.write(SMALL, ECHO) {
        Ok(()) => fault_since(device, &before),
        Err(_) => Some(RetryCause::Lossy),
    }
}

/// Packets of an echo.
const ECHO: usize = 16;

/// Collects evidence about a link whose small write nobody acknowledged.
fn investigate(
    args: &Diagnose,
    host: &str,
    device: &Device,
    counters: &RdmaDevice,
    failed: &Link,
) -> Evidence {
    let mut evidence = Evidence::default();
    if failed.peer.is_gone().unwrap_or(true) {
        evidence = evidence.peer_gone();
    }
    let before = Counted::now(counters);
    let Ok(link) = Link::new(args, host, device, Some(Mtu::B256)) else {
        return evidence;
    };
    let arrives = link.write(SMALL, ECHO).is_ok();
    evidence = Counted::now(counters).since(&before, evidence.small_echo(arrives));
    match link.ask(failed.peer.endpoint.qp_num) {
        Ok(Some(report)) => evidence = evidence.peer(report),
        Ok(None) => evidence = evidence.peer_gone(),
        Err(_) => {}
    }
    // A path that is broken fails this, too.
    let _ = link.end();
    evidence
}

/// Returns the completion of a request that failed.
fn completion(error: &Error) -> Option<&CompletionError> {
    match error {
        Error::Completion(error) => Some(error),
        _ => None,
    }
}

/// Names the one cause that a request was not acknowledged for.
fn unanswered(cause: Option<RetryCause>, netdev: &str, found: &mut Findings) -> Result<()> {
    let Some(cause) = cause else {
        return found.fail(
            "packets",
            say!(found, "the peer answers by TCP, but acknowledges nothing, and what is known leaves several causes"),
            say!(found, "ulp counters --watch 1 --nonzero at both ends"),
        );
    };
    let (check, what, cure) = cause.texts();
    let (what, cure) = (found.say(what, &[]), found.say(cure, &[&netdev]));
    found.fail(check, what, cure)
}

/// Says why the queue pair of the peer does not reach this end's GID, and what to do.
fn not_reached(args: &Diagnose, host: &str, device: &Device, found: &Findings) -> (String, String) {
    let both = say!(
        found,
        "ulp gids at both ends: the GIDs in use must be addresses that reach each other (ping -I)"
    );
    let default = device.default_gid().ok().map(|chosen| chosen.gid_index);
    let index = args.gid_index.or(default);
    let gids = device.gids(default_port(device)).unwrap_or_default();
    let ours = gids.iter().find(|gid| Some(gid.index) == index);
    let peer = host.to_socket_addrs().ok().and_then(|mut all| all.next());
    let family = |is_ipv4| if is_ipv4 { "IPv4" } else { "IPv6" };
    match (ours, peer) {
        (Some(ours), Some(peer)) if ours.is_ipv4 != peer.is_ipv4() => {
            let right = gids.iter().filter(|gid| gid.is_ipv4 == peer.is_ipv4());
            let right = right.min_by_key(|gid| (!gid.is_preferred, gid.is_link_local, gid.index));
            let what = say!(
                found,
                "{0} listens, but its queue pair does not connect to GID index {1} of this end, {2}: this is an {3} \
                 address, and that of the peer an {4} address",
                host,
                ours.index,
                ours.gid,
                family(ours.is_ipv4),
                family(peer.is_ipv4())
            );
            let cure = right.map(|gid| {
                say!(
                    found,
                    "use GID index {0} here, {1} (-x {0})",
                    gid.index,
                    gid.gid
                )
            });
            (what, cure.unwrap_or(both))
        }
        (ours, _) => {
            let gid = ours.map_or_else(String::new, |gid| format!(", {}", gid.gid));
            let what = say!(
                found,
                "{0} listens, but its queue pair does not connect to the GID of this end{1}",
                host,
                gid
            );
            (what, both)
        }
    }
}

/// Returns an MTU of an interface whose packets have less than `active` bytes: that of Ethernet, if
/// it is small enough.
fn with_less(active: u32) -> u32 {
    match active {
        ..=1024 => active / 2 + 104,
        _ => 1500,
    }
}

fn connect_failed(
    args: &Diagnose,
    host: &str,
    device: &Device,
    error: &Error,
    found: &mut Findings,
) -> Result<()> {
    let ping = without_port(host);
    match error {
        Error::Tcp { cause, .. } if cause.kind() == ErrorKind::ConnectionRefused => found.fail(
            "peer",
            say!(found, "nobody listens at {0}: the host answers, but the program does not run", host),
            say!(found, "there: ulp diagnose --serve (or start the program in question)"),
        ),
        Error::Tcp { cause, .. } => found.fail(
            "peer",
            say!(found, "{0} cannot be reached by TCP: {1}", host, cause),
            say!(found, "ping {0}; ip route get {0}; let the TCP port through the firewalls", ping),
        ),
        Error::Timeout { .. } => found.fail(
            "peer",
            say!(found, "{0} does not answer by TCP", host),
            say!(found, "ping {0}; ip route get {0}; let the TCP port through the firewalls", ping),
        ),
        Error::GidFamily { .. } => found.fail(
            "peer",
            error.to_string(),
            say!(found, "the GID index of the message (-x), or none at either end"),
        ),
        // The peer's queue pair does not reach this end's GID.
        Error::Refused(Refusal::Setup) => {
            let (what, cure) = not_reached(args, host, device, found);
            found.fail("peer", what, cure)
        }
        Error::Refused(Refusal::Busy) => found.fail(
            "peer",
            say!(found, "{0} listens, and serves as many others as it can", host),
            say!(found, "try again in a minute"),
        ),
        Error::Wire(_) | Error::Refused(_) => found.fail(
            "peer",
            say!(found, "another program listens at {0}: {1}", host, error),
            say!(found, "there: ulp diagnose --serve, of this version"),
        ),
        Error::Sys { .. } => found.fail(
            "peer",
            say!(found, "the peer answers by TCP, but there is no route to its GID: {0}", error),
            say!(found, "ulp gids at both ends: the GIDs in use must be addresses that reach each other (ping -I)"),
        ),
        error => found.fail("peer", error.to_string(), say!(found, "ulp diagnose at the peer")),
    }
}

/// Runs all checks of the path to a peer.
pub fn check(args: &Diagnose, peer: &str, device: &Device, found: &mut Findings) -> Result<()> {
    let host = address(peer, args.port);
    let link = match Link::new(args, &host, device, Some(Mtu::B256)) {
        Ok(link) => link,
        Err(error) => return connect_failed(args, &host, device, &error, found),
    };
    let theirs = link.peer.endpoint;
    found.ok(
        "peer",
        say!(found, "{0} listens; its endpoint is {1}", host, theirs),
    )?;
    let port = device.port(default_port(device))?;
    let here = rdma::devices(Some(device.name()))?;
    let Some(here) = here.first() else {
        return found.fail(
            "device",
            say!(found, "{0} is gone", device.name()),
            "rdma dev show",
        );
    };
    let netdev = here.ports.iter().filter(|it| it.port == port.port);
    let netdev = netdev.filter_map(|it| it.netdev.clone()).next();
    let netdev = netdev.unwrap_or_else(|| "NETDEV".to_owned());
    let before = Counted::now(here);
    if let Err(error) = link.write(SMALL, ECHO) {
        return match completion(&error) {
            Some(failed) if failed.status == Status::RetryExceeded => {
                let evidence = investigate(args, &host, device, here, &link);
                let here = Here::of(device, &link.qp)?;
                let cause = evidence.cause(&here, &link.qp.endpoint(), &theirs);
                unanswered(cause, &netdev, found)
            }
            Some(failed) if failed.status == Status::RemoteAccess => found.fail(
                "key",
                say!(found, "packets get through, but the peer's device refuses the key that the peer gave: the key was revoked, or its memory was freed"),
                say!(found, "at the peer: keep the Grant until its peers are done, and start the program again, which makes a new key"),
            ),
            _ => found.fail("packets", error.to_string(), say!(found, "ulp diagnose at the peer")),
        };
    }
    // A host that stalls once makes the device repeat, too.
    if let (Some(_), Some(cause)) = (fault_since(here, &before), echo(&link, here)) {
        return unanswered(Some(cause), &netdev, found);
    }
    // The peer may be slow to take it; what it has is enough.
    let _ = link.end();
    found.ok(
        "packets",
        say!(
            found,
            "small packets get through, and so do their acknowledgements"
        ),
    )?;
    found.ok("key", say!(found, "the peer's key is valid"))?;
    let (here, there) = (Mtu::at_most(port.active_mtu), theirs.mtu);
    let smaller = here.min(there).bytes();
    if here != there {
        let cure = match here < there {
            true => say!(
                found,
                "here: ip link set {0} mtu {1}",
                netdev,
                there.bytes() + 104
            ),
            false => say!(
                found,
                "at the peer: ip link set NETDEV mtu {0}",
                here.bytes() + 104
            ),
        };
        found.could(
            "peer_mtu",
            say!(
                found,
                "MTU mismatch: packets carry {0} bytes here and {1} at the peer; {2} are used",
                here.bytes(),
                there.bytes(),
                smaller
            ),
            cure,
        )?;
    } else {
        found.ok(
            "peer_mtu",
            say!(found, "packets carry {0} bytes at both ends", smaller),
        )?;
    }
    if found.is_over() {
        return Ok(());
    }
    let link = match Link::new(args, &host, device, None) {
        Ok(link) => link,
        Err(error) => return connect_failed(args, &host, device, &error, found),
    };
    match link.write(LEN, 1) {
        Ok(()) => found.ok("large", say!(found, "packets of {0} bytes get through", smaller)),
        Err(error) if completion(&error).is_some_and(|it| it.status == Status::RetryExceeded) => found.fail(
            "large",
            say!(found, "packets of 256 bytes get through, those of {0} do not: a hop between has a smaller MTU", smaller),
            say!(
                found,
                "find it: ping -M do -s {0} {1}; then raise its MTU, or here: ip link set {2} mtu {3}",
                smaller,
                without_port(&host),
                netdev,
                with_less(smaller)
            ),
        ),
        Err(error) => found.fail("large", error.to_string(), say!(found, "ulp counters --nonzero at both ends")),
    }?;
    let _ = link.end();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_makes_packets_smaller() {
        for active in [512, 1024, 2048, 4096] {
            // Headers of RoCE over IPv4 or IPv6, as elsewhere here.
            assert!(with_less(active) < active + 104, "{active}");
        }
        assert_eq!(with_less(4096), 1500);
    }
}
