// SPDX-License-Identifier: MIT OR Apache-2.0

//! The same store served over TCP, to compare with: the server's processor looks every key up.
//!
//! A request is an operation (1 get, 2 put, 3 delete), a key and a value; an answer is whether there was one, and
//! a value. Lengths are of 4 bytes, in network order.

use crate::error::{Error, Result};
use crate::{Kv, Op, Outcome, Value, MAX_KEY, MAX_VALUE};
use std::collections::HashMap;
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

type Table = Arc<RwLock<HashMap<Vec<u8>, Vec<u8>>>>;

const GET: u8 = 1;
const PUT: u8 = 2;
const DELETE: u8 = 3;

struct Stream {
    from: BufReader<TcpStream>,
    to: BufWriter<TcpStream>,
}

impl Stream {
    fn new(tcp: TcpStream) -> io::Result<Self> {
        tcp.set_nodelay(true)?;
        Ok(Self {
            from: BufReader::with_capacity(MAX_VALUE + 512, tcp.try_clone()?),
            to: BufWriter::with_capacity(MAX_VALUE + 512, tcp),
        })
    }

    fn byte(&mut self) -> io::Result<u8> {
        let mut byte = [0];
        self.from.read_exact(&mut byte)?;
        Ok(u8::from_ne_bytes(byte))
    }

    fn bytes(&mut self, max: usize) -> io::Result<Vec<u8>> {
        let mut len = [0; 4];
        self.from.read_exact(&mut len)?;
        let len = u32::from_be_bytes(len) as usize;
        if len > max {
            return Err(ErrorKind::InvalidData.into());
        }
        let mut bytes = vec![0; len];
        self.from.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        // At most MAX_VALUE.
        self.to.write_all(&(bytes.len() as u32).to_be_bytes())?;
        self.to.write_all(bytes)
    }
}

fn serve(tcp: TcpStream, table: &Table) -> io::Result<()> {
    let mut stream = Stream::new(tcp)?;
    loop {
        let operation = stream.byte()?;
        let (key, value) = (stream.bytes(MAX_KEY)?, stream.bytes(MAX_VALUE)?);
        let answer = match operation {
            GET => table
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .get(&key)
                .cloned(),
            PUT => table
                .write()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(key, value)
                .map(|_| Vec::new()),
            DELETE => table
                .write()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(&key)
                .map(|_| Vec::new()),
            _ => return Err(ErrorKind::InvalidData.into()),
        };
        stream.to.write_all(&[answer.is_some().into()])?;
        stream.put(&answer.unwrap_or_default())?;
        // Answers to requests that came together leave together.
        if stream.from.buffer().is_empty() {
            stream.to.flush()?;
        }
    }
}

/// A server.
#[derive(Debug)]
pub struct TcpServer {
    listener: TcpListener,
}

impl TcpServer {
    /// Listens at `addr`.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`].
    pub fn new(addr: &str) -> Result<Self> {
        let made = TcpListener::bind(addr).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        let listener = made.map_err(|cause| Error::Unreachable {
            server: addr.to_owned(),
            cause,
        })?;
        Ok(Self { listener })
    }

    /// Where it listens.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`].
    pub fn local_addr(&self) -> Result<SocketAddr> {
        let addr = self.listener.local_addr();
        addr.map_err(|cause| Error::Unreachable {
            server: "this".to_owned(),
            cause,
        })
    }

    /// Serves until `stop` is set, a thread for each client.
    pub fn run(&self, stop: &AtomicBool) {
        let table = Table::default();
        while !stop.load(Ordering::Relaxed) {
            let Ok((tcp, _)) = self.listener.accept() else {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            };
            let table = table.clone();
            let _ = tcp.set_nonblocking(false);
            std::thread::spawn(move || serve(tcp, &table));
        }
    }
}

/// A client.
pub struct TcpStore {
    name: String,
    depth: usize,
    stream: Stream,
}

impl TcpStore {
    /// Connects to HOST:PORT, for `depth` operations at a time.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`].
    pub fn connect(name: &str, depth: usize) -> Result<Self> {
        let stream = TcpStream::connect(name).and_then(Stream::new);
        let stream = stream.map_err(|cause| Error::Unreachable {
            server: name.to_owned(),
            cause,
        })?;
        Ok(Self {
            name: name.to_owned(),
            depth: depth.max(1),
            stream,
        })
    }

    /// Sends the requests of operations at once, then receives the answers.
    fn ask(&mut self, ops: &[Op<'_>]) -> io::Result<Vec<Outcome>> {
        let to = &mut self.stream;
        for op in ops {
            op.check().map_err(io::Error::other)?;
            let (operation, value): (u8, &[u8]) = match op {
                Op::Put { value, .. } => (PUT, value),
                Op::Delete { .. } => (DELETE, &[]),
                _ => (GET, &[]),
            };
            to.to.write_all(&[operation])?;
            to.put(op.key())?;
            to.put(value)?;
        }
        to.to.flush()?;
        let answer = |op: &Op<'_>| {
            let found = self.stream.byte()? != 0;
            let bytes = self.stream.bytes(MAX_VALUE)?;
            Ok(match op {
                Op::Put { .. } => Outcome::Written(0),
                Op::Delete { .. } => Outcome::Deleted(found),
                _ => Outcome::Value(found.then_some(Value { bytes, version: 0 })),
            })
        };
        ops.iter().map(answer).collect()
    }
}

impl std::fmt::Debug for TcpStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpStore")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Kv for TcpStore {
    /// As of a [`Store`](crate::Store), but conditions, times and sums are not served.
    fn run(&mut self, ops: &[Op<'_>]) -> Vec<Result<Outcome>> {
        let mut results = Vec::with_capacity(ops.len());
        for some in ops.chunks(self.depth) {
            match self.ask(some) {
                Ok(outcomes) => results.extend(outcomes.into_iter().map(Ok)),
                Err(error) => results.extend(some.iter().map(|_| {
                    Err(Error::Gone {
                        server: self.name.clone(),
                        why: error.to_string(),
                    })
                })),
            }
        }
        results
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Condition;

    #[test]
    fn over_tcp() {
        let server = TcpServer::new("127.0.0.1:0").unwrap();
        let addr = server.local_addr().unwrap().to_string();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| server.run(&stop));
            let mut store = TcpStore::connect(&addr, 3).unwrap();
            let only_if = Condition::Always;
            let ops = [
                Op::get(b"a"),
                Op::put(b"a", b"1"),
                Op::put(b"a", b""),
                Op::get(b"a"),
                Op::Delete { key: b"a", only_if },
                Op::Delete { key: b"a", only_if },
            ];
            let outcomes: Vec<_> = store.run(&ops).into_iter().map(Result::unwrap).collect();
            let empty = Value {
                bytes: Vec::new(),
                version: 0,
            };
            let want = [
                Outcome::Value(None),
                Outcome::Written(0),
                Outcome::Written(0),
                Outcome::Value(Some(empty)),
                Outcome::Deleted(true),
                Outcome::Deleted(false),
            ];
            assert_eq!(outcomes, want);
            stop.store(true, Ordering::Relaxed);
        });
    }
}
