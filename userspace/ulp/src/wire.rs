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

use anyhow::{bail, ensure, Context, Result};
use serde::{de::DeserializeOwned, Serialize};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The length of the longest message.
const MAX_LEN: usize = 1 << 20;

/// Sends a message.
pub fn send(mut tcp: &TcpStream, message: &impl Serialize) -> Result<()> {
    let body = serde_json::to_vec(message)?;
    ensure!(body.len() <= MAX_LEN, "a message of {} bytes", body.len());
    let mut bytes = (body.len() as u32).to_be_bytes().to_vec();
    bytes.extend(body);
    tcp.write_all(&bytes).context("sending to the peer")
}

/// Receives a message, which must arrive within `timeout`. Reads no byte after it.
pub fn receive<T: DeserializeOwned>(tcp: &TcpStream, timeout: Duration) -> Result<T> {
    let until = Instant::now() + timeout;
    let mut len = [0; 4];
    fill(tcp, &mut len, timeout, until)?;
    let len = u32::from_be_bytes(len) as usize;
    ensure!(
        len <= MAX_LEN,
        "the peer is another program: a message of {len} bytes"
    );
    let mut body = vec![0; len];
    fill(tcp, &mut body, timeout, until)?;
    serde_json::from_slice(&body).context("the peer is another program")
}

fn fill(mut tcp: &TcpStream, buffer: &mut [u8], timeout: Duration, until: Instant) -> Result<()> {
    let mut done = 0;
    while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
        let left = until.saturating_duration_since(Instant::now());
        ensure!(!left.is_zero(), "the peer sent nothing for {timeout:?}");
        tcp.set_read_timeout(Some(left))?;
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
