// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages between two of this tool over TCP.
//!
//! A message is a length (4 bytes, network order) and that many bytes of JSON. The receiver checks
//! the length before it reads. Like the crate's own exchange the connection has no authentication
//! and no encryption: use it on trusted networks only.
//!
//! `postcard` would make the messages shorter, which they need not be, and no line of this shorter:
//! JSON says which field is missing when the peer has another version. The other exchanges have forms
//! that are promised or another program's: the crate's ([`rust_ulp`], its private data included),
//! and those of the peers of `ulp pingpong` and `ulp rping`.

use anyhow::{anyhow, bail, ensure, Context, Result};
use serde::{de::DeserializeOwned, Serialize};
use socket2::{Domain, Socket, Type};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The time that an address of a peer has to answer. Without a limit, a host that is down would be
/// waited for as long as the kernel repeats its packets: two minutes.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The interval at which a wait for a peer looks whether Ctrl-C was pressed.
const SLICE: Duration = Duration::from_millis(200);

/// The length of the longest message.
const MAX_LEN: usize = 1 << 20;

/// Connects to HOST:PORT, from `source` if there is one. Each address of the host gets `timeout`.
///
/// `advice` is the end of the error message: what to do when nobody answers.
pub fn dial(
    host: &str,
    source: Option<IpAddr>,
    timeout: Duration,
    advice: &str,
) -> Result<TcpStream> {
    let addrs = host.to_socket_addrs();
    let addrs = addrs.with_context(|| format!("{host}: no such host"))?;
    let mut last = anyhow!("no such host");
    for addr in addrs {
        match connect(source, addr, timeout) {
            Ok(tcp) => return Ok(tcp),
            Err(error) => last = error,
        }
    }
    Err(last).with_context(|| format!("nobody answers at {host}: {advice}"))
}

fn connect(source: Option<IpAddr>, addr: SocketAddr, timeout: Duration) -> Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
    if let Some(source) = source {
        let bound = socket.bind(&SocketAddr::new(source, 0).into());
        bound.with_context(|| format!("connecting from {source}"))?;
    }
    socket.connect_timeout(&addr.into(), timeout)?;
    Ok(socket.into())
}

/// Sends a message.
pub fn send(mut tcp: &TcpStream, message: &impl Serialize) -> Result<()> {
    let body = serde_json::to_vec(message)?;
    ensure!(body.len() <= MAX_LEN, "a message of {} bytes", body.len());
    let mut bytes = (body.len() as u32).to_be_bytes().to_vec();
    bytes.extend(body);
    tcp.write_all(&bytes).context("sending to the peer")
}

/// Receives a message, which must arrive within `timeout`, unless `stop` is set before. Reads no byte
/// after it.
pub fn receive<T: DeserializeOwned>(
    tcp: &TcpStream,
    timeout: Duration,
    stop: Option<&AtomicBool>,
) -> Result<T> {
    let until = Instant::now() + timeout;
    let mut len = [0; 4];
    fill(tcp, &mut len, (timeout, until), stop)?;
    let len = u32::from_be_bytes(len) as usize;
    ensure!(
        len <= MAX_LEN,
        "the peer is another program: a message of {len} bytes"
    );
    let mut body = vec![0; len];
    fill(tcp, &mut body, (timeout, until), stop)?;
    serde_json::from_slice(&body).context("the peer is another program")
}

/// Fills a buffer from a connection until a deadline, unless `stop` is set before.
pub fn fill(
    mut tcp: &TcpStream,
    buffer: &mut [u8],
    (timeout, until): (Duration, Instant),
    stop: Option<&AtomicBool>,
) -> Result<()> {
    let mut done = 0;
    while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
        let stopped = stop.is_some_and(|stop| stop.load(Ordering::Relaxed));
        ensure!(!stopped, "interrupted");
        let left = until.saturating_duration_since(Instant::now());
        ensure!(!left.is_zero(), "the peer sent nothing for {timeout:?}");
        tcp.set_read_timeout(Some(left.min(SLICE)))?;
        match tcp.read(rest) {
            Ok(0) => bail!("the peer hung up"),
            Ok(n) => done += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&e.kind()) => {}
            Err(e) => return Err(e).context("waiting for the peer"),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};

    #[test]
    fn a_host_that_does_not_answer_is_given_up() {
        // The kernel drops the packets of those for whom the queue has no room.
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        listener.bind(&any.into()).unwrap();
        listener.listen(0).unwrap();
        let listener = TcpListener::from(listener);
        let host = listener.local_addr().unwrap().to_string();
        let _first = TcpStream::connect(&host).unwrap();
        let (done, result) = std::sync::mpsc::channel();
        let there = host.clone();
        std::thread::spawn(move || {
            // One or two find room.
            let soon = Duration::from_millis(100);
            let dial = || dial(&there, None, soon, "start it there");
            let _ = done.send((0..3).map(|_| dial()).collect::<Result<Vec<_>>>());
        });
        let result = result.recv_timeout(Duration::from_secs(30));
        let error = result.expect("it should have given up").unwrap_err();
        let said = error.to_string();
        assert_eq!(said, format!("nobody answers at {host}: start it there"));
        let cause = error.root_cause().downcast_ref::<std::io::Error>();
        assert_eq!(cause.map(std::io::Error::kind), Some(ErrorKind::TimedOut));
    }

    #[test]
    fn a_host_that_refuses_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        dial(&host, None, CONNECT_TIMEOUT, "").unwrap();
        drop(listener);
        let error = dial(&host, None, CONNECT_TIMEOUT, "start it there").unwrap_err();
        let said = error.to_string();
        assert_eq!(said, format!("nobody answers at {host}: start it there"));
    }
}
