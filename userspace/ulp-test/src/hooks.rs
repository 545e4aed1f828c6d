// SPDX-License-Identifier: MIT OR Apache-2.0

//! Peers that the tests of the tool `ulp` need, and that the tool does not have.
//!
//! `revoking-peer` revokes its key too early, `broken-peer` has a broken queue pair.

use crate::cause::QpReport;
use clap::{Subcommand, ValueEnum};
use rust_ulp::qp::{QpAttr, QpState, Rc};
use rust_ulp::tcp::{Listener, Peer};
use rust_ulp::wr::Recv;
use rust_ulp::{Access, Cq, Device, Grant, Mtu, Qp};
use std::error::Error;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serves `ulp diagnose PEER`, but revokes the key before the client uses it.
    RevokingPeer {
        /// HOST:PORT
        listen: String,
    },
    /// Serves `ulp diagnose PEER`, but with a broken queue pair for the first client.
    BrokenPeer {
        /// HOST:PORT
        listen: String,
        /// What is wrong with it.
        #[arg(value_enum)]
        what: Break,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Break {
    /// It sends to another queue pair.
    Number,
    /// It expects other packet numbers.
    Psn,
    /// It sends to another address.
    Gid,
    /// It is destroyed.
    Dead,
}

/// Returns a flag that SIGINT and SIGTERM set.
fn interrupts() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    Ok(stop)
}

/// Runs `ulp-test revoking-peer ...` and `ulp-test broken-peer ...`. The exit status is 2 for errors.
pub fn run(command: Command) -> ExitCode {
    let done = match command {
        Command::RevokingPeer { listen } => revoking_peer(&listen),
        Command::BrokenPeer { listen, what } => broken_peer(&listen, what),
    };
    done.unwrap_or_else(|error| {
        eprintln!("ulp-test: {error}");
        ExitCode::from(2)
    })
}

/// Serves one client of `ulp diagnose` after the other.
fn revoking_peer(listen: &str) -> Result<ExitCode> {
    let (stop, device) = (interrupts()?, Device::open_default()?);
    let listener = Listener::bind(&device, listen)?;
    while !stop.load(Ordering::Relaxed) {
        let incoming = match listener.accept(Duration::from_millis(200)) {
            Err(rust_ulp::Error::Timeout { .. }) => continue,
            incoming => incoming?,
        };
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
        let buffer = pd.alloc_buffer(1 << 16)?;
        let grant = buffer.grant(.., Access::REMOTE_WRITE)?;
        let qp = pd.qp_builder::<Rc>(&cq).build()?;
        qp.post_recv(Recv::empty())?;
        grant.revoke()?;
        let _qp = incoming.accept(qp, &[&grant])?;
        wait(&cq, &stop)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Connects a queue pair anew, as it was but for one attribute.
fn break_qp(qp: &Qp<Rc>, what: Break) -> rust_ulp::error::Result<()> {
    let (info, mut peer) = (qp.query()?, *qp.peer());
    let mut path = info.path;
    match what {
        // Soft-RoCE acknowledges packets that are behind: these are ahead.
        Break::Psn => peer.psn = peer.psn.wrapping_sub(0x40_0000) & 0xff_ffff,
        Break::Number => peer.qp_num = 0xab_cdef,
        // The test gives the other host this address, but not on the interface of its device.
        Break::Gid => path.gid = std::net::Ipv4Addr::new(10, 9, 0, 99).into(),
        Break::Dead => {}
    }
    qp.modify(QpAttr::to(QpState::Reset))?;
    let init = QpAttr::to(QpState::Init).pkey_index(info.pkey_index);
    qp.modify(init.port(info.port).access(info.access))?;
    let rtr = QpAttr::to(QpState::Rtr)
        .path(path)
        .path_mtu(Mtu::B256)
        .dest_qp_num(peer.qp_num)
        .rq_psn(peer.psn)
        .max_dest_rd_atomic(1)
        .min_rnr_timer(info.min_rnr_timer);
    qp.modify(rtr)?;
    let rts = QpAttr::to(QpState::Rts)
        .timeout(info.timeout)
        .retry_cnt(info.retry_cnt)
        .rnr_retry(info.rnr_retry)
        .sq_psn(qp.endpoint().psn)
        .max_rd_atomic(1);
    qp.modify(rts).map(drop)
}

/// Serves clients of `ulp diagnose`, which connect a second time when the first queue pair fails.
fn broken_peer(listen: &str, what: Break) -> Result<ExitCode> {
    let (stop, device) = (interrupts()?, Device::open_default()?);
    let listener = Listener::bind(&device, listen)?;
    let mut first: Option<(Option<Qp<Rc>>, Peer, Grant)> = None;
    while !stop.load(Ordering::Relaxed) {
        let incoming = match listener.accept(Duration::from_millis(200)) {
            Err(rust_ulp::Error::Timeout { .. }) => continue,
            incoming => incoming?,
        };
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
        let (buffer, page) = (pd.alloc_buffer(1 << 16)?, pd.alloc_buffer(4096)?);
        if let Some((Some(qp), ..)) = &first {
            page.write_at(0, &QpReport::of(qp)?.to_bytes())?;
        }
        let data = buffer.grant(.., Access::REMOTE_WRITE)?;
        let reports = page.grant(.., Access::REMOTE_READ)?;
        let qp = pd.qp_builder::<Rc>(&cq).build()?;
        qp.post_recv(Recv::empty())?;
        let (qp, peer) = incoming.accept(qp, &[&data, &reports])?;
        if first.is_some() {
            wait(&cq, &stop)?;
            continue;
        }
        let qp = match what {
            Break::Dead => None,
            what => {
                break_qp(&qp, what)?;
                Some(qp)
            }
        };
        // Its key stays valid.
        first = Some((qp, peer, data));
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits for any completion: the write of the client ends the connection.
fn wait(cq: &Cq, stop: &AtomicBool) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        match cq.wait(Duration::from_millis(200)) {
            Err(rust_ulp::Error::Timeout { .. }) => {}
            done => return Ok(done.map(|_| ())?),
        }
    }
    Ok(())
}
