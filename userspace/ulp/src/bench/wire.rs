// SPDX-License-Identifier: MIT OR Apache-2.0

//! The messages between client and server. The receiver checks numbers before it acts.

use super::config::VERSION;
use crate::wire;
use anyhow::{bail, ensure, Context, Result};
use rust_ulp::{Endpoint, RemoteSlice};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::AtomicBool;
use std::sync::Arc;
use std::time::Duration;

/// The first text of a client.
pub const MAGIC: &str = "ulp bench";

/// The address of the end of a thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndAddress {
    pub qps: Vec<Endpoint>,
    /// Its buffer.
    pub memory: RemoteSlice,
}

impl EndAddress {
    /// Checks that the end has so many queue pairs and bytes.
    pub fn check(&self, qps: u32, bytes: u64) -> Result<()> {
        let (n, len) = (self.qps.len(), self.memory.len());
        ensure!(n == qps as usize, "the peer has {n} queue pairs, not {qps}");
        ensure!(
            len >= bytes,
            "the peer's buffer has {len} bytes, not {bytes}"
        );
        for qp in &self.qps {
            ensure!(
                qp.qp_num < 1 << 24 && qp.psn < 1 << 24,
                "the peer's queue pair is invalid: {qp:?}"
            );
        }
        Ok(())
    }
}

/// A message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Message {
    /// Client: the parameters of the measurement, a [`Config`](super::config::Config) of the version.
    Hello {
        magic: String,
        version: u32,
        config: Value,
    },
    /// Server: the parameters are accepted; its [`Machine`](crate::machine::Machine) of the version.
    Welcome { version: u32, machine: Value },
    /// Client: the next row, with its ends, one per thread. They accept receives already.
    Row { size: u32, ends: Vec<EndAddress> },
    /// Server: its own ends, connected.
    Ready { ends: Vec<EndAddress> },
    /// Server: the port that accepts connections, in place of `Ready`.
    Listening { port: u16, memory: RemoteSlice },
    /// Client: its ends are connected, so that messages may come.
    Start,
    /// Either: the measurement goes on.
    Alive,
    /// Server: the last message of each queue pair has arrived, so that it need not be repeated.
    Heard,
    /// Client: the number of messages sent.
    Finish { sent: u64 },
    /// Server: the number of messages that were lost, if it counts them.
    Done { lost: Option<u64> },
    /// Either: the measurement failed.
    Failed { why: String },
    /// Client: there are no more rows.
    Bye,
}

/// Returns the part of a greeting of `peer` that differs between versions, or says that it has
/// another version.
pub fn of_version<T: DeserializeOwned>(peer: &str, version: u32, part: Value) -> Result<T> {
    ensure!(
        version == VERSION,
        "the {peer} speaks version {version}, this is {VERSION}: install the same version of ulp at \
         both ends"
    );
    serde_json::from_value(part).with_context(|| format!("the {peer} is another program"))
}

/// The connection. Every operation has a deadline.
#[derive(Debug)]
pub struct Wire {
    tcp: TcpStream,
    timeout: Duration,
    stop: Option<Arc<AtomicBool>>,
}

impl Wire {
    pub fn new(tcp: TcpStream, timeout: Duration) -> Result<Self> {
        tcp.set_nodelay(true)?;
        Ok(Self {
            tcp,
            timeout,
            stop: None,
        })
    }

    /// Lets every receive fail once `stop` is set.
    pub fn until(self, stop: &Arc<AtomicBool>) -> Self {
        let stop = Some(stop.clone());
        Self { stop, ..self }
    }

    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    pub fn peer_addr(&self) -> Result<SocketAddr> {
        Ok(self.tcp.peer_addr()?)
    }

    pub fn send(&mut self, message: &Message) -> Result<()> {
        self.tcp.set_write_timeout(Some(self.timeout))?;
        wire::send(&self.tcp, message)
    }

    /// Receives the next message; [`Message::Failed`] becomes an error.
    pub fn receive(&mut self) -> Result<Message> {
        match wire::receive(&self.tcp, self.timeout, self.stop.as_deref())? {
            Message::Failed { why } => bail!("the peer failed: {why}"),
            message => Ok(message),
        }
    }

    /// Receives the next message if it begins within `time`.
    pub fn receive_within(&mut self, time: Duration) -> Result<Option<Message>> {
        self.tcp.set_read_timeout(Some(time))?;
        match self.tcp.peek(&mut [0]) {
            Ok(_) => self.receive().map(Some),
            Err(error) => match error.kind() {
                WouldBlock | TimedOut | Interrupted => Ok(None),
                _ => Err(error).context("waiting for the peer"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::config::Config;
    use proptest::prelude::*;
    use rust_ulp::{Gid, Mtu};
    use std::io::Write;
    use std::net::TcpListener;

    fn pair() -> (Wire, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let here = listener.accept().unwrap().0;
        (Wire::new(here, Duration::from_millis(200)).unwrap(), there)
    }

    #[test]
    fn messages_come_out_as_they_went_in() {
        let (mut wire, there) = pair();
        let mut other = Wire::new(there, Duration::from_secs(1)).unwrap();
        let hello = Message::Hello {
            magic: MAGIC.into(),
            version: 1,
            config: serde_json::to_value(crate::bench::config::tests::config()).unwrap(),
        };
        for message in [hello, Message::Alive, Message::Finish { sent: 7 }] {
            other.send(&message).unwrap();
            assert_eq!(wire.receive().unwrap(), message);
        }
        other.send(&Message::Failed { why: "x".into() }).unwrap();
        assert!(wire.receive().is_err());
        assert!(wire
            .receive_within(Duration::from_millis(10))
            .unwrap()
            .is_none());
    }

    #[test]
    fn lengths_are_checked_and_silence_ends() {
        let (mut wire, mut there) = pair();
        there.write_all(&u32::MAX.to_be_bytes()).unwrap();
        assert!(wire
            .receive()
            .unwrap_err()
            .to_string()
            .contains("another program"));
        let (mut wire, mut there) = pair();
        there.write_all(&[0, 0, 0, 9, b'"']).unwrap();
        assert!(wire
            .receive()
            .unwrap_err()
            .to_string()
            .contains("sent nothing"));
        let (mut wire, there) = pair();
        drop(there);
        assert!(wire.receive().unwrap_err().to_string().contains("hung up"));
    }

    #[test]
    fn an_end_that_makes_no_sense_is_refused() {
        let qp = |qp_num, psn| Endpoint::new(qp_num, psn, Gid([0; 16]), Mtu::at_most(1024));
        let end = |qp| EndAddress {
            qps: vec![qp],
            memory: RemoteSlice::new(4096, 128, 1).unwrap(),
        };
        end(qp(1, 2)).check(1, 128).unwrap();
        assert!(end(qp(1, 2)).check(2, 128).is_err());
        assert!(end(qp(1, 2)).check(1, 129).is_err());
        assert!(end(qp(1 << 24, 2)).check(1, 128).is_err());
        assert!(end(qp(1, 1 << 24)).check(1, 128).is_err());
    }

    #[test]
    fn a_greeting_of_another_version_is_received() {
        let old = serde_json::json!({"old": 1});
        for greeting in [
            serde_json::json!({"hello": {"magic": MAGIC, "version": 7, "config": old}}),
            serde_json::json!({"welcome": {"version": 7, "machine": old}}),
        ] {
            let (mut wire, there) = pair();
            wire::send(&there, &greeting).unwrap();
            let (version, rest) = match wire.receive().unwrap() {
                Message::Hello {
                    version, config, ..
                } => (version, config),
                Message::Welcome { version, machine } => (version, machine),
                other => panic!("{other:?}"),
            };
            let error = of_version::<Config>("client", version, rest).unwrap_err();
            let text = error.to_string();
            assert!(text.contains("the client speaks version 7"), "{text}");
        }
    }

    proptest! {
        /// Whatever bytes arrive: an answer, never a panic.
        #[test]
        fn any_bytes_are_taken(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let (mut wire, mut there) = pair();
            there.write_all(&(bytes.len() as u32).to_be_bytes()).unwrap();
            there.write_all(&bytes).unwrap();
            let _ = wire.receive();
        }
    }
}
