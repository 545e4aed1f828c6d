// SPDX-License-Identifier: MIT OR Apache-2.0

//! What client and server say to each other over TCP: a line of JSON per message. The connection stays for as
//! long as the client does, so that its end is the client's end.

use crate::layout::Geometry;
use rust_ulp::{Endpoint, Mtu, RemoteSlice};
use serde::{de::DeserializeOwned, Deserialize, Serialize};
use std::io::{BufRead, BufReader, Error, ErrorKind, Result, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// Version of all this, the layout of the table included.
pub const VERSION: u32 = 1;
/// Bytes of the longest message: a server tells of at most 512 keys.
const MAX_LINE: usize = 1 << 16;
/// Keys of the memory, at most.
pub const MAX_SEGMENTS: usize = 512;

/// One end of the queue pair.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct End {
    qp_num: u32,
    psn: u32,
    gid: String,
    lid: u16,
    mtu: u8,
    responder: u8,
    initiator: u8,
}

impl From<Endpoint> for End {
    fn from(end: Endpoint) -> Self {
        Self {
            qp_num: end.qp_num,
            psn: end.psn,
            gid: end.gid.to_string(),
            lid: end.lid,
            mtu: end.mtu as u8,
            responder: end.responder,
            initiator: end.initiator,
        }
    }
}

impl End {
    /// The end, if it makes sense.
    pub fn endpoint(&self) -> Option<Endpoint> {
        let gid = self.gid.parse().ok()?;
        let mtu = Mtu::from_code(self.mtu)?;
        let end = Endpoint::new(self.qp_num, self.psn, gid, mtu);
        Some(end.lid(self.lid).rd_atomic(self.responder, self.initiator))
    }
}

/// A key of the memory: address, length, number.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Segment(pub u64, pub u64, pub u32);

impl Segment {
    /// As requests want it.
    pub fn remote(&self) -> Option<RemoteSlice> {
        RemoteSlice::new(self.0, self.1, self.2).ok()
    }
}

/// What a client says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum FromClient {
    /// It wants to connect.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// Its end.
        end: End,
    },
    /// Somebody does not give this lock back.
    Stuck {
        /// The bucket.
        bucket: u32,
        /// The lock's word, as it was all the time.
        lock: u64,
    },
}

/// What a server says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum FromServer {
    /// It is connected.
    Welcome {
        /// The client's number: not 0, and nobody else's as long as the server runs.
        id: u32,
        /// Of this run of the server.
        run: u64,
        /// The server's end.
        end: End,
        /// The table.
        table: Geometry,
        /// The keys of its memory, in order.
        segments: Vec<Segment>,
    },
    /// The one who had it is cut off, or the lock is another's by now.
    Freed,
    /// It will not do it.
    Refused(String),
}

/// The connection.
#[derive(Debug)]
pub struct Control {
    tcp: BufReader<TcpStream>,
}

impl Control {
    pub fn new(tcp: TcpStream) -> Result<Self> {
        tcp.set_nodelay(true)?;
        Ok(Self {
            tcp: BufReader::new(tcp),
        })
    }

    pub fn stream(&self) -> &TcpStream {
        self.tcp.get_ref()
    }

    pub fn send(&mut self, message: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.tcp.get_mut().write_all(&line)
    }

    /// Receives a message, however long it takes.
    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<T> {
        self.receive_by(None)
    }

    /// Receives a message of which all is here within `limit`; else the error is of the kind
    /// `TimedOut` or `WouldBlock`.
    pub fn receive_within<T: DeserializeOwned>(&mut self, limit: Duration) -> Result<T> {
        self.receive_by(Some(Instant::now() + limit))
    }

    fn receive_by<T: DeserializeOwned>(&mut self, deadline: Option<Instant>) -> Result<T> {
        let mut line = Vec::new();
        while line.len() < MAX_LINE {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(ErrorKind::TimedOut.into());
            }
            self.stream().set_read_timeout(left)?;
            let some = match self.tcp.fill_buf() {
                Ok([]) => break,
                Ok(some) => some,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let end = some.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(some.len(), |at| at + 1);
            line.extend_from_slice(some.get(..taken).unwrap_or_default());
            self.tcp.consume(taken);
            if end.is_some() {
                return Ok(serde_json::from_slice(&line)?);
            }
        }
        if line.is_empty() {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Err(Error::new(
            ErrorKind::InvalidData,
            "a message without an end",
        ))
    }

    /// Whether the other end has hung up.
    pub fn is_over(&self) -> bool {
        let tcp = self.stream();
        let seen = tcp.set_nonblocking(true).and_then(|()| tcp.peek(&mut [0]));
        let _ = tcp.set_nonblocking(false);
        match seen {
            Ok(n) => n == 0,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = self.stream().shutdown(Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// What a server's end receives within `limit` of what `say` sends.
    fn received(
        limit: Duration,
        say: impl FnOnce(&mut TcpStream) + Send,
    ) -> std::result::Result<FromClient, ErrorKind> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || say(&mut TcpStream::connect(addr).unwrap()));
            let mut control = Control::new(listener.accept().unwrap().0).unwrap();
            control.receive_within(limit).map_err(|error| error.kind())
        })
    }

    #[test]
    fn a_message_has_an_end_and_a_deadline() {
        let forever = Duration::from_secs(1000);
        let stuck = br#"{"Stuck":{"bucket":1,"lock":2}}"#;
        let whole = received(forever, |tcp| {
            for byte in stuck.iter().chain(b"\n") {
                tcp.write_all(&[*byte]).unwrap();
            }
        });
        assert!(matches!(
            whole,
            Ok(FromClient::Stuck { bucket: 1, lock: 2 })
        ));
        let cut = received(forever, |tcp| tcp.write_all(stuck).unwrap());
        assert_eq!(cut.unwrap_err(), ErrorKind::InvalidData);
        let nothing = received(forever, |_| ());
        assert_eq!(nothing.unwrap_err(), ErrorKind::UnexpectedEof);
        let long = received(forever, |tcp| {
            let _ = tcp.write_all(&[b'x'; 2 * MAX_LINE]);
        });
        assert_eq!(long.unwrap_err(), ErrorKind::InvalidData);
        // Each byte is here in time, the whole of them is not.
        let slow = received(Duration::from_millis(100), |tcp| {
            for _ in 0..1000 {
                std::thread::sleep(Duration::from_millis(10));
                if tcp.write_all(b" ").is_err() {
                    return;
                }
            }
        });
        assert!(matches!(
            slow.unwrap_err(),
            ErrorKind::TimedOut | ErrorKind::WouldBlock
        ));
    }
}
