// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is between two hosts: the peer listens, the packets get through, small ones and large ones, and
//! its key is good.

use super::{Diagnose, Findings};
use crate::output::address;
use anyhow::Result;
use rust_ulp::{
    Access, AckTimeout, Device, Endpoint, Error, Listener, Mtu, Pd, PreparedQp, Rc, Recv, Retries,
    Send, Status, TcpOptions, Write,
};
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bytes that are written: many packets, whatever the MTU.
const LEN: usize = 1 << 16;
const SMALL: usize = 64;
/// How long the peer waits for somebody who connected.
const PATIENCE: Duration = Duration::from_secs(60);

fn prepare(
    args: &Diagnose,
    pd: &Pd,
    cq: &rust_ulp::Cq,
    mtu: Option<Mtu>,
) -> rust_ulp::Result<PreparedQp<Rc>> {
    let mut builder = pd
        .create_qp::<Rc>(cq)
        // Nobody answers: known after four seconds or more.
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
    // It says when it is done, or goes, or breaks the connection by what it tries.
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end && !stop.load(Ordering::Relaxed) {
        match cq.wait(Duration::from_millis(200)) {
            Err(Error::Timeout { .. }) => {}
            done => return done.map(|_| ()),
        }
    }
    Ok(())
}

/// Answers those who diagnose, until it is told to stop.
pub fn serve(args: &Diagnose, stop: &AtomicBool) -> Result<()> {
    let device = match &args.device {
        Some(name) => Device::open(name)?,
        None => Device::open_default()?,
    };
    let listener = Listener::bind(address(&args.listen, args.port))?;
    eprintln!("{device}");
    eprintln!("listening at {}, until Ctrl-C", listener.local_addr()?);
    std::thread::scope(|scope| {
        while !stop.load(Ordering::Relaxed) {
            match listener.accept(Duration::from_millis(200)) {
                Ok(incoming) => {
                    let (from, device) = (incoming.addr(), &device);
                    scope.spawn(move || match answer(args, device, incoming, stop) {
                        Ok(()) => eprintln!("{from}: done"),
                        Err(error) => eprintln!("{from}: {error}"),
                    });
                }
                Err(Error::Timeout { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    })
}

// --- the one who looks -----------------------------------------------------------------

/// Connects with packets of at most `mtu`, and writes `len` bytes. The peer's end, and how it went.
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

/// Which of the classic ways a write has failed.
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
            format!("nobody listens at {host}: its host is there, the program is not"),
            "there: ulp diagnose --serve (or start the program that it stands for)",
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
            format!("what listens at {host} is another program: {error}"),
            "there: ulp diagnose --serve, of this version",
        ),
        Error::Sys { .. } => found.fail(
            "peer",
            format!("the peer answers by TCP, but there is no way to its GID: {error}"),
            "ulp gids at both ends: the GIDs in use have to be addresses that reach each other (ping -I)",
        ),
        error => found.fail("peer", error.to_string(), "ulp diagnose at the peer"),
    }
}

/// Looks at the way to a peer.
pub fn look(args: &Diagnose, peer: &str, device: &Device, found: &mut Findings) -> Result<()> {
    let host = address(peer, args.port);
    let (theirs, small) = match write(args, &host, device, Some(Mtu::B256), SMALL) {
        Ok(done) => done,
        Err(error) => return connect_failed(&host, &error, found),
    };
    found.ok("peer", format!("{host} listens, and is {theirs}"))?;
    let port = device.port(device.default_gid().map_or(1, |chosen| chosen.port))?;
    let netdev =
        crate::show::interface(&port).map_or_else(|| "NETDEV".to_owned(), |netdev| netdev.name);
    if let Err(error) = small {
        return match status(&error) {
            Some(Status::RetryExceeded) => found.fail(
                "packets",
                "TCP reaches the peer, but nobody answers RoCE v2: UDP port 4791 does not get through",
                format!(
                    "at both ends, and between them: nft list ruleset; nft insert rule inet filter input udp dport 4791 \
                     accept (firewall-cmd --add-port=4791/udp); to see where they end: tcpdump -ni {netdev} udp port 4791"
                ),
            ),
            Some(Status::RemoteAccess) => found.fail(
                "key",
                "packets get through, but the peer's device refuses the key that the peer gave: revoked, or its memory is gone",
                "at the peer: keep the Grant until its peers are done, and start the program anew, which makes a new key",
            ),
            _ => found.fail("packets", error.to_string(), "ulp diagnose at the peer"),
        };
    }
    found.ok(
        "packets",
        "small packets get through, and their answers come back",
    )?;
    found.ok("key", "the peer's key is good")?;
    let (here, there) = (Mtu::at_most(port.active_mtu), theirs.mtu);
    let smaller = here.min(there).bytes();
    if here != there {
        let cure = match here < there {
            true => format!("here: ip link set {netdev} mtu {}", there.bytes() + 104),
            false => format!("at the peer: ip link set NETDEV mtu {}", here.bytes() + 104),
        };
        found.could(
            "peer mtu",
            format!(
                "MTU mismatch: packets carry {} bytes here and {} at the peer; {smaller} are used",
                here.bytes(),
                there.bytes()
            ),
            cure,
        )?;
    } else {
        found.ok(
            "peer mtu",
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
