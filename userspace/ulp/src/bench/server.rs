// SPDX-License-Identifier: MIT OR Apache-2.0

//! The server, `ulp bench serve`. It has no options of a measurement, because the client sends
//! them.

use super::call::CallEnd;
use super::config::{Backend, Config, Layout, Test, VERSION};
use super::connect;
use super::end::{Aborted, Control, DeviceOptions, End, Plan};
use super::loops::{self, Task};
use super::machine::Machine;
use super::uring::UringEnd;
use super::verbs::VerbsEnd;
use super::wire::{EndAddress, Message, Wire, MAGIC};
use crate::output::causes;
use anyhow::{bail, ensure, Context, Result};
use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// The deadline for the first message of a client.
const HELLO: Duration = Duration::from_secs(10);

/// Serves clients, one after the other, until `stop` is set.
///
/// With `once` it serves one client, and returns the failure of its measurement.
pub fn run(addr: &str, once: bool, device: &DeviceOptions, stop: &Arc<AtomicBool>) -> Result<()> {
    let listener = TcpListener::bind(addr).with_context(|| {
        format!("listening at {addr}: is another server there? -p takes another port")
    })?;
    listener.set_nonblocking(true)?;
    message!("ulp: listening at {}", listener.local_addr()?);
    while !stop.load(Ordering::Relaxed) {
        let (tcp, peer) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(e) if e.kind() == ErrorKind::WouldBlock || e.kind() == ErrorKind::Interrupted => {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            }
            Err(e) if e.kind() == ErrorKind::ConnectionAborted => continue,
            Err(e) => return Err(e).context("accepting a connection"),
        };
        let result = tcp
            .set_nonblocking(false)
            .map_err(anyhow::Error::from)
            .and_then(|()| client(tcp, device, stop));
        match result {
            Ok(()) => {}
            Err(error) if once => return Err(error.context(format!("client {peer}"))),
            Err(error) => message!("ulp: client {peer}: {}", causes(&error)),
        }
        if once {
            break;
        }
    }
    Ok(())
}

fn client(tcp: TcpStream, device: &DeviceOptions, stop: &Arc<AtomicBool>) -> Result<()> {
    let local = tcp.local_addr()?;
    let mut wire = Wire::new(tcp, HELLO)?;
    let result = serve(&mut wire, local, device, stop);
    if let Err(error) = &result {
        let _ = wire.send(&Message::Failed { why: causes(error) });
    }
    result
}

fn serve(
    wire: &mut Wire,
    local: std::net::SocketAddr,
    device: &DeviceOptions,
    stop: &Arc<AtomicBool>,
) -> Result<()> {
    let config = match wire.receive()? {
        Message::Hello {
            magic,
            version,
            config,
        } => {
            ensure!(magic == MAGIC, "the peer is another program");
            ensure!(
                version == VERSION,
                "the client speaks version {version}, this is {VERSION}"
            );
            config
        }
        other => bail!("the client said {other:?}"),
    };
    config.check()?;
    wire.set_timeout(config.timeout());
    wire.send(&Message::Welcome {
        version: VERSION,
        machine: Box::new(Machine::here()),
    })?;
    if config.test == Test::Connect {
        return connect::serve(&config, device, wire, local, stop);
    }
    loop {
        match wire.receive()? {
            Message::Row { size, ends } => match config.peer_backend {
                Backend::Call => row::<CallEnd>(&config, device, size, &ends, wire, stop)?,
                Backend::Uring => row::<UringEnd>(&config, device, size, &ends, wire, stop)?,
                Backend::Verbs => row::<VerbsEnd>(&config, device, size, &ends, wire, stop)?,
            },
            Message::Bye => return Ok(()),
            Message::Alive => {}
            other => bail!("the client said {other:?}"),
        }
    }
}

fn row<E: End>(
    config: &Config,
    device: &DeviceOptions,
    size: u32,
    theirs: &[EndAddress],
    wire: &mut Wire,
    stop: &Arc<AtomicBool>,
) -> Result<()> {
    ensure!(
        config.sizes.contains(&size),
        "a row of {size} bytes was not announced"
    );
    ensure!(
        theirs.len() == config.threads as usize,
        "the client has {} ends for {} threads",
        theirs.len(),
        config.threads
    );
    let control = Control::new(stop, config.timeout());
    let layout = Layout::new(config, size);
    for end in theirs {
        end.check(config.qps, layout.bytes())?;
    }
    let plan = Plan {
        device,
        config,
        layout,
        control: &control,
    };
    let task = |thread: usize| Task {
        config,
        layout,
        control: &control,
        thread: thread as u64,
    };
    let mut ends = Vec::new();
    for thread in 0..theirs.len() {
        let mut end = E::new(&plan)?;
        loops::prepare(&task(thread), &mut end, true)?;
        ends.push(end);
    }
    let addresses = ends.iter().map(End::address).collect();
    for (end, peer) in ends.iter_mut().zip(theirs) {
        end.connect(peer)?;
    }
    let (sent, mut verified) = std::thread::scope(|scope| -> Result<(Vec<Vec<u64>>, u64)> {
        let control = &control;
        let threads: Vec<_> = ends
            .iter_mut()
            .enumerate()
            .map(|(thread, end)| {
                let task = task(thread);
                scope.spawn(move || {
                    let result = loops::serve(&task, end);
                    if result.is_err() {
                        control.abort.store(true, Ordering::Relaxed);
                    }
                    result
                })
            })
            .collect();
        // From here on a thread may wait for messages that never come, so every failure sets
        // `abort`.
        let sent = wire
            .send(&Message::Ready { ends: addresses })
            .and_then(|()| finish(wire, control));
        if sent.is_err() {
            control.abort.store(true, Ordering::Relaxed);
        }
        let mut verified = 0;
        let mut failure = None;
        for thread in threads {
            match thread.join() {
                Ok(Ok(n)) => verified += n,
                Ok(Err(error)) if error.is::<Aborted>() => {}
                Ok(Err(error)) => failure = Some(error),
                Err(_) => failure = Some(anyhow::anyhow!("a thread of the server panicked")),
            }
        }
        match failure {
            Some(error) => Err(error),
            None => Ok((sent?, verified)),
        }
    })?;
    ensure!(
        sent.len() == ends.len(),
        "the client counts {} threads",
        sent.len()
    );
    for (thread, (end, sent)) in ends.iter().zip(&sent).enumerate() {
        verified += loops::inspect(&task(thread), end, sent)?;
    }
    wire.send(&Message::Done { verified })
}

/// Waits until the client is done, while it reports that it is alive and no thread here has failed.
fn finish(wire: &mut Wire, control: &Control) -> Result<Vec<Vec<u64>>> {
    let mut silent = Duration::ZERO;
    let tick = Duration::from_millis(200);
    loop {
        match wire.receive_within(tick)? {
            Some(Message::Finish { sent }) => return Ok(sent),
            Some(Message::Alive) => silent = Duration::ZERO,
            Some(other) => bail!("the client said {other:?}"),
            None => silent += tick,
        }
        control.check()?;
        ensure!(
            silent < control.timeout,
            "the client sent nothing for {silent:?}"
        );
        ensure!(!control.stopped(), "interrupted");
    }
}
