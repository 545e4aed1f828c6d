// SPDX-License-Identifier: MIT OR Apache-2.0

//! What client and server say to each other over TCP: a line of JSON per message.
//!
//! The connection stays for as long as the client does, so that its end is the client's end. Where
//! the server has a secret, both sides prove that they know it before they tell anything else.

use crate::layout::Geometry;
use hmac::{Hmac, KeyInit, Mac};
use rust_ulp::{Endpoint, Mtu, RemoteSlice};
use serde::{de::DeserializeOwned, Deserialize, Serialize};
use sha2::Sha256;
use std::io::{BufRead, BufReader, Error, ErrorKind, Result, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// Version of all this, the layout of the memory included.
pub const VERSION: u32 = 3;
/// Bytes of the longest message: a server tells of at most 512 keys.
const MAX_LINE: usize = 1 << 16;
/// Keys of the memory, at most.
pub const MAX_SEGMENTS: usize = 512;
/// Members, at most.
pub const MAX_MEMBERS: usize = 256;

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

/// A random number that a proof is about.
pub type Nonce = [u64; 2];

/// Returns the proof that one side knows the secret; empty without one.
///
/// It depends on who proves, on random numbers of both sides, and on the queue pair, so that nobody
/// can use it again.
pub fn proof(secret: Option<&[u8]>, of: &str, nonces: [Nonce; 2], end: &End) -> Vec<u8> {
    mac(secret, of, nonces, end).map_or_else(Vec::new, |mac| mac.finalize().into_bytes().to_vec())
}

/// Returns whether the other side has proved that it knows the secret, if there is one. The time
/// that this takes tells nothing.
pub fn is_proved(
    proof: &[u8],
    secret: Option<&[u8]>,
    of: &str,
    nonces: [Nonce; 2],
    end: &End,
) -> bool {
    mac(secret, of, nonces, end).is_none_or(|mac| mac.verify_slice(proof).is_ok())
}

fn mac(secret: Option<&[u8]>, of: &str, nonces: [Nonce; 2], end: &End) -> Option<Hmac<Sha256>> {
    // A key of any length does.
    let mut mac = Hmac::<Sha256>::new_from_slice(secret?).ok()?;
    mac.update(of.as_bytes());
    for word in nonces.iter().flatten() {
        mac.update(&word.to_le_bytes());
    }
    mac.update(&serde_json::to_vec(end).ok()?);
    Some(mac)
}

/// The servers of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Members {
    /// The number of this list: it grows with every change; 0 if the server was given no list.
    pub epoch: u64,
    /// The servers, HOST:PORT.
    pub names: Vec<String>,
}

/// What a client says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum FromClient {
    /// It wants to connect.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// The same for all connections of a client, and nobody else's.
        client: u64,
        /// For the server's proof.
        nonce: Nonce,
        /// Its end.
        end: End,
        /// Its proof.
        proof: Vec<u8>,
    },
    /// It asks for the members.
    GetMembers,
    /// The members change.
    SetMembers {
        /// The new list.
        members: Members,
        /// Keys move: until this is false again, the server refuses all writes but those of the
        /// client that moves them.
        moving: bool,
        /// The server gives no version before this one any more.
        next_version: u64,
    },
}

/// What a server says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum FromServer {
    /// The client may say who it is.
    Challenge {
        /// [`VERSION`].
        version: u32,
        /// For the client's proof.
        nonce: Nonce,
    },
    /// It is connected.
    Welcome(Box<Welcome>),
    /// The members.
    Members(Members),
    /// It has the new list of members.
    Changed {
        /// The version that it gives next.
        next_version: u64,
    },
    /// It will not do it.
    Refused(String),
}

/// What a client needs to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// Of this run of the server.
    pub run: u64,
    /// Whether the server has the replies to what this client asked for before.
    pub known: bool,
    /// Messages that a client may have in flight.
    pub window: u32,
    /// Bytes of a message of the client, at most.
    pub request: u32,
    /// Bytes of the server's answer, at most.
    pub answer: u32,
    /// The server's end.
    pub end: End,
    /// The table.
    pub geometry: Geometry,
    /// The keys of its memory, in order.
    pub segments: Vec<Segment>,
    /// The members.
    pub members: Members,
    /// The server's proof.
    pub proof: Vec<u8>,
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
    fn a_proof_is_of_one_side_and_one_connection() {
        let end = |qp_num| End {
            qp_num,
            psn: 2,
            gid: "::1".to_owned(),
            lid: 0,
            mtu: 3,
            responder: 1,
            initiator: 1,
        };
        let (secret, nonces) = (Some(&b"secret"[..]), [[1, 2], [3, 4]]);
        let good = proof(secret, "client", nonces, &end(1));
        assert!(is_proved(&good, secret, "client", nonces, &end(1)));
        for bad in [
            is_proved(&good, secret, "server", nonces, &end(1)),
            is_proved(&good, secret, "client", [[1, 2], [3, 5]], &end(1)),
            is_proved(&good, secret, "client", nonces, &end(2)),
            is_proved(&good, Some(b"other"), "client", nonces, &end(1)),
            is_proved(&[], secret, "client", nonces, &end(1)),
        ] {
            assert!(!bad);
        }
        assert!(proof(None, "client", nonces, &end(1)).is_empty());
        assert!(is_proved(&good, None, "client", nonces, &end(1)));
    }

    #[test]
    fn a_message_has_an_end_and_a_deadline() {
        let forever = Duration::from_secs(1000);
        let set = br#"{"SetMembers":{"members":{"epoch":3,"names":["a"]},"moving":true,"next_version":7}}"#;
        let whole = received(forever, |tcp| {
            for byte in set.iter().chain(b"\n") {
                tcp.write_all(&[*byte]).unwrap();
            }
        });
        assert!(matches!(
            whole,
            Ok(FromClient::SetMembers { members, moving: true, next_version: 7 }) if members.epoch == 3
        ));
        let cut = received(forever, |tcp| tcp.write_all(set).unwrap());
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
