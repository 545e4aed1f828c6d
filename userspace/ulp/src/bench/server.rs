// SPDX-License-Identifier: MIT OR Apache-2.0

//! The server, `ulp bench serve`. It has no options of a measurement, because the client sends
//! them.

use super::call;
use super::config::{Backend, Config, Test, VERSION};
use super::connect;
use super::end::{join, Aborted, Control, DeviceOptions, End, Run, Task};
use super::loops;
use super::wire::{of_version, EndAddress, Message, Wire, MAGIC};
use crate::listen::Listener;
use crate::machine::Machine;
use crate::output::causes;
use anyhow::{bail, ensure, Context, Result};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// The deadline for the first message of a client.
const HELLO: Duration = Duration::from_secs(10);
/// The longest silence of a client, whatever its deadline: meanwhile no other client is served.
const SILENCE: Duration = Duration::from_secs(60);

/// Serves clients, one after the other, until `stop` is set.
///
/// With `once` it serves one client, and returns the failure of its measurement.
pub fn run(addr: &str, once: bool, device: &DeviceOptions, stop: &Arc<AtomicBool>) -> Result<()> {
    // The other back ends need no device of rust_ulp.
    let own = call::open(device).ok();
    let own = own.as_ref().map(|(device, _)| device);
    let listener = Listener::bind(own, addr).with_context(|| {
        format!("listening at {addr}: is another server there? -p takes another port")
    })?;
    message!("ulp: listening at {}", listener.local_addr()?);
    while let Some((tcp, peer)) = listener.accept(stop)? {
        match client(tcp, device, stop) {
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
    let mut wire = Wire::new(tcp, HELLO)?.until(stop);
    let result = serve(&mut wire, local, device, stop);
    if let Err(error) = &result {
        let _ = wire.send(&Message::Failed { why: causes(error) });
    }
    result
}

fn serve(
    wire: &mut Wire,
    local: SocketAddr,
    device: &DeviceOptions,
    stop: &Arc<AtomicBool>,
) -> Result<()> {
    let (magic, version, config) = expect!(
        wire,
        Message::Hello { magic, version, config } => (magic, version, config)
    );
    ensure!(magic == MAGIC, "the peer is another program");
    let config: Config = of_version("client", version, config)?;
    config.check()?;
    // Its size is no limit of a buffer of messages.
    ensure!(
        config.test != Test::Register,
        "a registration has no server"
    );
    wire.set_timeout(patience(&config));
    wire.send(&Message::Welcome {
        version: VERSION,
        machine: serde_json::to_value(Machine::here())?,
    })?;
    let config = &config;
    let run = Run {
        config,
        device,
        stop,
    };
    if config.test == Test::Connect {
        return connect::serve(run, wire, local);
    }
    loop {
        match wire.receive()? {
            Message::Row { size, ends } => {
                with_end!(config.peer_backend, row(run, size, &ends, wire))?;
            }
            Message::Bye => return Ok(()),
            Message::Alive => {}
            other => bail!("the client said {other:?}"),
        }
    }
}

fn row<E: End>(run: Run<'_>, size: u32, theirs: &[EndAddress], wire: &mut Wire) -> Result<()> {
    let config = run.config;
    ensure!(
        config.sizes.contains(&size),
        "a row of {size} bytes was not announced"
    );
    let (n, threads) = (theirs.len(), config.threads);
    ensure!(
        n == threads as usize,
        "the client has {n} ends for {threads} threads"
    );
    let task = Task::new(run, size);
    for end in theirs {
        end.check(config.qps, task.layout.bytes())?;
    }
    let mut ends: Vec<E> = loops::ends(&task, true)?;
    let addresses = ends.iter().map(End::address).collect();
    for (end, peer) in ends.iter_mut().zip(theirs) {
        end.connect(peer)?;
    }
    wire.send(&Message::Ready { ends: addresses })?;
    expect!(wire, Message::Start => ());
    let (sent, received) = serve_all(&mut ends, &task, wire)?;
    let lost = loops::lost(config, sent, received)?;
    wire.send(&Message::Done { lost })
}

/// Returns how long a client may be silent.
fn patience(config: &Config) -> Duration {
    config.timeout().min(SILENCE)
}

/// Runs the threads until the client is done.
///
/// Returns the numbers of messages that the client sent, and that the threads counted.
fn serve_all<E: End>(ends: &mut [E], task: &Task<'_>, wire: &mut Wire) -> Result<(u64, u64)> {
    let (config, control) = (task.config, &task.control);
    std::thread::scope(|scope| {
        let threads = ends
            .iter_mut()
            .map(|end| scope.spawn(move || control.guard(loops::serve(task, end))));
        let threads: Vec<_> = threads.collect();
        // From here on a thread may wait for messages that never come, so every failure sets
        // `abort`.
        let sent = control.guard(finish(config, wire, control));
        match join(threads) {
            Err(error) if !error.is::<Aborted>() => Err(error),
            counts => Ok((sent?, counts?.into_iter().sum())),
        }
    })
}

/// Waits until the client is done, while it reports that it is alive and no thread here has failed.
fn finish(config: &Config, wire: &mut Wire, control: &Control) -> Result<u64> {
    let mut silent = Duration::ZERO;
    // The client repeats its last messages until it is told that they have arrived.
    let mut tell = config.is_lossy() && config.is_counted();
    let tick = Duration::from_millis(if tell { 20 } else { 200 });
    loop {
        if tell && control.over.load(Ordering::Relaxed) == u64::from(config.threads) {
            wire.send(&Message::Heard)?;
            tell = false;
        }
        match wire.receive_within(tick)? {
            Some(Message::Finish { sent }) => return Ok(sent),
            Some(Message::Alive) => silent = Duration::ZERO,
            Some(other) => bail!("the client said {other:?}"),
            None => silent += tick,
        }
        control.check()?;
        ensure!(
            silent < patience(config),
            "the client sent nothing for {silent:?}"
        );
        ensure!(!control.stop.load(Ordering::Relaxed), "interrupted");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::loops::tests::with_task;
    use std::net::TcpListener;
    use std::sync::mpsc::channel;

    fn config(timeout_ms: u64) -> Config {
        Config {
            timeout_ms,
            ..crate::bench::config::tests::config()
        }
    }

    /// Returns a client that has sent its configuration, and the connection to it.
    fn hello(config: &Config) -> (Wire, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let here = listener.accept().unwrap().0;
        let mut there = Wire::new(there, Duration::from_secs(30)).unwrap();
        let hello = Message::Hello {
            magic: MAGIC.to_owned(),
            version: VERSION,
            config: serde_json::to_value(config).unwrap(),
        };
        there.send(&hello).unwrap();
        (there, here)
    }

    #[test]
    fn a_registration_has_no_server() {
        let config = Config {
            test: Test::Register,
            sizes: vec![1 << 30],
            ..config(1000)
        };
        let (_there, here) = hello(&config);
        with_task(&config, |task| {
            let served = client(here, task.device, &task.control.stop);
            let error = served.unwrap_err().to_string();
            assert!(error.contains("no server"), "{error}");
        });
    }

    #[test]
    fn a_silent_client_is_waited_for_a_minute_at_most() {
        assert_eq!(patience(&config(1000)), Duration::from_secs(1));
        assert_eq!(patience(&config(3_600_000)), Duration::from_secs(60));
    }

    #[test]
    fn one_interrupt_ends_the_wait_for_a_silent_client() {
        let config = config(3_600_000);
        let (mut there, here) = hello(&config);
        with_task(&config, |task| {
            let (device, stop) = (task.device.clone(), task.control.stop.clone());
            let (done, result) = channel();
            let theirs = stop.clone();
            std::thread::spawn(move || done.send(client(here, &device, &theirs)));
            assert!(matches!(there.receive(), Ok(Message::Welcome { .. })));
            stop.store(true, Ordering::Relaxed);
            let result = result.recv_timeout(Duration::from_secs(30));
            let error = result.expect("it should have ended").unwrap_err();
            assert_eq!(error.to_string(), "interrupted");
        });
    }
}
