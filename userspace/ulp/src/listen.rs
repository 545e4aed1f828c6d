// SPDX-License-Identifier: MIT OR Apache-2.0

//! Waits for a peer that Ctrl-C ends: for one that connects, and for a completion.
//!
//! The TCP listeners of the commands end when their device is removed.

use anyhow::{ensure, Context, Result};
use nix::errno::Errno;
use rust_ulp::{cm, Completion, Cq, Device, Error};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The interval at which a wait looks whether Ctrl-C was pressed.
const SLICE: Duration = Duration::from_millis(100);
/// How long a peer of another program may be silent.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for a peer that connects by the connection manager. Fails once `stop` is set.
pub fn request(listener: &cm::Listener, stop: &AtomicBool) -> Result<cm::Request> {
    loop {
        match listener.next_request(SLICE) {
            Err(Error::Timeout { .. }) => ensure!(!stop.load(Ordering::Relaxed), "interrupted"),
            request => return Ok(request?),
        }
    }
}

/// Waits for a completion. Fails once `stop` is set, and after [`PATIENCE`].
pub fn completion(cq: &Cq, stop: &AtomicBool) -> Result<Completion> {
    let begin = Instant::now();
    loop {
        match cq.wait(SLICE) {
            Err(Error::Timeout { .. }) => {
                ensure!(!stop.load(Ordering::Relaxed), "interrupted");
                ensure!(begin.elapsed() < PATIENCE, "the peer does not answer");
            }
            done => return Ok(done?),
        }
    }
}

/// A listener.
pub enum Listener {
    /// Beside an open device, whose removal ends it with [`Error::DeviceGone`].
    Beside(rust_ulp::tcp::Listener),
    /// Without a device of rust_ulp.
    Alone(TcpListener),
}

/// Binds to `addr`, HOST:PORT. On a host without IPv6, `[::]` stands for all IPv4 addresses.
fn with_or_without_ipv6<T>(addr: &str, bind: impl Fn(&str) -> Result<T>) -> Result<T> {
    let port = addr.strip_prefix("[::]:");
    match (bind(addr), port) {
        (Err(error), Some(port)) if errno(&error) == Some(Errno::EAFNOSUPPORT as i32) => {
            bind(&format!("0.0.0.0:{port}"))
        }
        (bound, _) => bound,
    }
}

fn errno(error: &anyhow::Error) -> Option<i32> {
    let of_system = || error.downcast_ref::<std::io::Error>()?.raw_os_error();
    error.downcast_ref().map_or_else(of_system, Error::errno)
}

/// Listens at `addr` beside an open device.
pub fn beside(device: &Device, addr: &str) -> Result<rust_ulp::tcp::Listener> {
    with_or_without_ipv6(addr, |addr| {
        Ok(rust_ulp::tcp::Listener::bind(device, addr)?)
    })
}

impl Listener {
    /// Listens at `addr`, beside the device if there is one.
    pub fn bind(device: Option<&Device>, addr: &str) -> Result<Self> {
        Ok(match device {
            Some(device) => Self::Beside(beside(device, addr)?),
            None => {
                let tcp = with_or_without_ipv6(addr, |addr| Ok(TcpListener::bind(addr)?))?;
                tcp.set_nonblocking(true)?;
                Self::Alone(tcp)
            }
        })
    }

    pub fn local_addr(&self) -> Result<SocketAddr> {
        Ok(match self {
            Self::Beside(listener) => listener.local_addr()?,
            Self::Alone(tcp) => tcp.local_addr()?,
        })
    }

    /// Waits for a peer that connects; returns [`None`] once `stop` is set.
    pub fn accept(&self, stop: &AtomicBool) -> Result<Option<(TcpStream, SocketAddr)>> {
        while !stop.load(Ordering::Relaxed) {
            if let Some(accepted) = self.accept_within(SLICE)? {
                return Ok(Some(accepted));
            }
        }
        Ok(None)
    }

    fn accept_within(&self, time: Duration) -> Result<Option<(TcpStream, SocketAddr)>> {
        match self {
            Self::Beside(listener) => match listener.accept(time) {
                Ok(incoming) => {
                    let addr = incoming.addr();
                    Ok(Some((incoming.into_tcp(), addr)))
                }
                Err(Error::Timeout { .. }) => Ok(None),
                Err(error) => Err(error).context("waiting for a peer to connect"),
            },
            Self::Alone(tcp) => match tcp.accept() {
                Ok(accepted) => Ok(Some(accepted)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    std::thread::sleep(time / 5);
                    Ok(None)
                }
                Err(e)
                    if [ErrorKind::Interrupted, ErrorKind::ConnectionAborted]
                        .contains(&e.kind()) =>
                {
                    Ok(None)
                }
                Err(e) => Err(e).context("accepting a connection"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn a_host_without_ipv6_listens_at_its_ipv4_addresses() {
        let without = |addr: &str| -> Result<String> {
            match addr.starts_with('[') {
                true => Err(io::Error::from(Errno::EAFNOSUPPORT).into()),
                false => Ok(addr.to_owned()),
            }
        };
        let beside = |addr: &str| {
            without(addr).map_err(|_| {
                let (what, peer) = ("listening at", None);
                let cause = Errno::EAFNOSUPPORT.into();
                anyhow::Error::new(Error::Tcp { what, peer, cause })
            })
        };
        let addr = with_or_without_ipv6("[::]:18516", without).unwrap();
        assert_eq!(addr, "0.0.0.0:18516");
        let addr = with_or_without_ipv6("[::]:18516", beside).unwrap();
        assert_eq!(addr, "0.0.0.0:18516");
        // An address that somebody asked for is not another one.
        assert!(with_or_without_ipv6("[::1]:18516", without).is_err());
        let addr = with_or_without_ipv6("[::]:1", |addr| Ok(addr.to_owned())).unwrap();
        assert_eq!(addr, "[::]:1");
    }
}
