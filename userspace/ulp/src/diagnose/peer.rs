// SPDX-License-Identifier: MIT OR Apache-2.0

//! Checks of the path to a peer: it listens, small and large packets get through, and its key is
//! valid.

use super::{Diagnose, Findings};
use crate::args::address;
use anyhow::Result;
use rust_ulp::{
    Access, AckTimeout, Device, Endpoint, Error, Listener, Mtu, Pd, PreparedQp, Rc, Recv, Retries,
    Send, Status, TcpOptions, Write,
};
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The size of the large write: many packets, whatever the MTU.
const LEN: usize = 1 << 16;
const SMALL: usize = 64;
/// How long the peer waits for a client that connected.
const PATIENCE: Duration = Duration::from_secs(60);

fn prepare(
    args: &Diagnose,
    pd: &Pd,
    cq: &rust_ulp::Cq,
    mtu: Option<Mtu>,
) -> rust_ulp::Result<PreparedQp<Rc>> {
    let mut builder = pd
        .create_qp::<Rc>(cq)
        // A peer that does not answer is detected after four seconds or more.
        .timeout(AckTimeout::at_least(Duration::from_secs(1)))
        .retry_cnt(Retries::new(3)?);
    if let Some(mtu) = mtu {
        builder = builder.mtu(mtu);
    }
    if let Some(index) = args.gid_index {
        builder = builder.gid(1, index);
    }
    builder.build()
}

// --- the peer -----------------------------------------------------------------------

fn answer(
    args: &Diagnose,
    device: &Device,
    incoming: rust_ulp::Incoming,
    stop: &AtomicBool,
) -> rust_ulp::Result<()> {
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
    let buffer = pd.alloc_buffer(LEN)?;
    let grant = buffer.grant(.., Access::REMOTE_WRITE)?;
    let qp = prepare(args, &pd, &cq, None)?;
    qp.post_recv(Recv::empty())?;
    let (_qp, _) = incoming.accept(qp, &[&grant])?;
    // The client sends when it is done. Its process may end, or a request may break the connection.
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end && !stop.load(Ordering::Relaxed) {
        match cq.wait(Duration::from_millis(200)) {
            Err(Error::Timeout { .. }) => {}
            done => return done.map(|_| ()),
        }
    }
    Ok(())
}

/// Serves peers that test the path to this host, until `stop` is set.
pub fn serve(args: &Diagnose, stop: &AtomicBool) -> Result<()> {
    let device = args.device.open()?;
    let listener = Listener::bind(&device, address(&args.listen, args.port))?;
    message!("{device}");
    message!("listening at {}, until Ctrl-C", listener.local_addr()?);
    std::thread::scope(|scope| {
        while !stop.load(Ordering::Relaxed) {
            match listener.accept(Duration::from_millis(200)) {
                Ok(incoming) => {
                    let (from, device) = (incoming.addr(), &device);
                    scope.spawn(move || match answer(args, device, incoming, stop) {
                        Ok(()) => message!("{from}: done"),
                        Err(error) => message!("{from}: {error}"),
                    });
                }
                Err(Error::Timeout { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    })
}

// --- the client ------------------------------------------------------------------------

/// Connects with packets of at most `mtu`, and writes `len` bytes.
///
/// Returns the peer's endpoint, and the result of the write.
fn write(
    args: &Diagnose,
    host: &str,
    device: &Device,
    mtu: Option<Mtu>,
    len: usize,
) -> rust_ulp::Result<(Endpoint, rust_ulp::Result<()>)> {
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
    let buffer = pd.alloc_buffer(LEN)?;
    let qp = prepare(args, &pd, &cq, mtu)?;
    let options = TcpOptions::default().timeout(Duration::from_secs(15));
    let (qp, peer) = qp.connect_tcp_with(host, &[], options)?;
    let one = || {
        qp.post(Write::new(
            buffer.slice(..len)?,
            peer.grant(0)?.slice(..len as u64)?,
        ))?;
        cq.wait(PATIENCE)?.check()?;
        qp.post(Send::empty())?;
        cq.wait(PATIENCE)?.ok().map(|_| ())
    };
    Ok((peer.endpoint, one()))
}

/// Returns the completion status of a failed write.
fn status(error: &Error) -> Option<Status> {
    match error {
        Error::Completion(error) => Some(error.status),
        _ => None,
    }
}

fn connect_failed(host: &str, error: &Error, found: &mut Findings) -> Result<()> {
    let ping = host.rsplit_once(':').map_or(host, |(host, _)| host);
    match error {
        Error::Tcp { cause, .. } if cause.kind() == ErrorKind::ConnectionRefused => found.fail(
            "peer",
            format!("nobody listens at {host}: the host answers, but the program does not run"),
            "there: ulp diagnose --serve (or start the program in question)",
        ),
        Error::Tcp { cause, .. } => found.fail(
            "peer",
            format!("{host} cannot be reached by TCP: {cause}"),
            format!("ping {ping}; ip route get {ping}; let the TCP port through the firewalls"),
        ),
        Error::Timeout { .. } => found.fail(
            "peer",
            format!("{host} does not answer by TCP"),
            format!("ping {ping}; ip route get {ping}; let the TCP port through the firewalls"),
        ),
        Error::Wire(_) | Error::Refused(_) => found.fail(
            "peer",
            format!("another program listens at {host}: {error}"),
            "there: ulp diagnose --serve, of this version",
        ),
        Error::Sys { .. } => found.fail(
            "peer",
            format!("the peer answers by TCP, but there is no route to its GID: {error}"),
            "ulp gids at both ends: the GIDs in use must be addresses that reach each other (ping -I)",
        ),
        error => found.fail("peer", error.to_string(), "ulp diagnose at the peer"),
    }
}

/// Runs all checks of the path to a peer.
pub fn check(args: &Diagnose, peer: &str, device: &Device, found: &mut Findings) -> Result<()> {
    let host = address(peer, args.port);
    let (theirs, small) = match write(args, &host, device, Some(Mtu::B256), SMALL) {
        Ok(done) => done,
        Err(error) => return connect_failed(&host, &error, found),
    };
    found.ok("peer", format!("{host} listens; its endpoint is {theirs}"))?;
    let port = device.port(device.default_gid().map_or(1, |chosen| chosen.port))?;
    let here = crate::rdma::devices(Some(device.name()))?;
    let here = here.iter().flat_map(|device| &device.ports);
    let netdev = here
        .filter(|it| it.port == port.port)
        .find_map(|it| it.netdev.clone());
    let netdev = netdev.unwrap_or_else(|| "NETDEV".to_owned());
    if let Err(error) = small {
        return match status(&error) {
            Some(Status::RetryExceeded) => found.fail(
                "packets",
                "the peer answers by TCP, but not by RoCE v2: UDP port 4791 does not get through",
                format!(
                    "at both ends, and between them: nft list ruleset; nft insert rule inet filter input udp dport 4791 \
                     accept (firewall-cmd --add-port=4791/udp); to see where packets end: tcpdump -ni {netdev} udp port 4791"
                ),
            ),
            Some(Status::RemoteAccess) => found.fail(
                "key",
                "packets get through, but the peer's device refuses the key that the peer gave: the key was revoked, or its memory was freed",
                "at the peer: keep the Grant until its peers are done, and start the program again, which makes a new key",
            ),
            _ => found.fail("packets", error.to_string(), "ulp diagnose at the peer"),
        };
    }
    found.ok(
        "packets",
        "small packets get through, and so do their acknowledgements",
    )?;
    found.ok("key", "the peer's key is valid")?;
    let (here, there) = (Mtu::at_most(port.active_mtu), theirs.mtu);
    let smaller = here.min(there).bytes();
    if here != there {
        let cure = match here < there {
            true => format!("here: ip link set {netdev} mtu {}", there.bytes() + 104),
            false => format!("at the peer: ip link set NETDEV mtu {}", here.bytes() + 104),
        };
        found.could(
            "peer_mtu",
            format!(
                "MTU mismatch: packets carry {} bytes here and {} at the peer; {smaller} are used",
                here.bytes(),
                there.bytes()
            ),
            cure,
        )?;
    } else {
        found.ok(
            "peer_mtu",
            format!("packets carry {smaller} bytes at both ends"),
        )?;
    }
    if found.is_over() {
        return Ok(());
    }
    match write(args, &host, device, None, LEN) {
        Ok((_, Ok(()))) => found.ok("large", format!("packets of {smaller} bytes get through")),
        Ok((_, Err(error))) if status(&error) == Some(Status::RetryExceeded) => found.fail(
            "large",
            format!("packets of 256 bytes get through, those of {smaller} do not: a hop between has a smaller MTU"),
            format!(
                "find it: ping -M do -s {smaller} {}; then raise its MTU, or here: ip link set {netdev} mtu 1500",
                host.rsplit_once(':').map_or(host.as_str(), |(host, _)| host)
            ),
        ),
        Ok((_, Err(error))) => found.fail("large", error.to_string(), "ulp counters --nonzero at both ends"),
        Err(error) => connect_failed(&host, &error, found),
    }
}
