// SPDX-License-Identifier: MIT OR Apache-2.0

//! Stores served over TCP, to compare with: the server's processor looks every key up.
//!
//! In the protocol of [`TcpServer`] a request is an operation (1 get, 2 put, 3 delete), a key and a value; an answer is
//! whether there was one, and a value. Lengths are of 4 bytes, in network order.

use crate::error::{Error, Result};
use crate::memcached;
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

/// What a client and its server speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// That of [`TcpServer`].
    Own,
    /// The meta commands of memcached 1.6.
    Memcached,
}

/// A client.
pub struct TcpStore {
    name: String,
    protocol: Protocol,
    depth: usize,
    stream: Stream,
}

impl TcpStore {
    /// Connects to HOST:PORT, for `depth` operations at a time.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`].
    pub fn connect(name: &str, protocol: Protocol, depth: usize) -> Result<Self> {
        let stream = TcpStream::connect(name).and_then(Stream::new);
        let stream = stream.map_err(|cause| Error::Unreachable {
            server: name.to_owned(),
            cause,
        })?;
        Ok(Self {
            name: name.to_owned(),
            protocol,
            depth: depth.max(1),
            stream,
        })
    }

    fn request(&mut self, op: &Op<'_>) -> io::Result<()> {
        op.check()
            .map_err(|error| io::Error::new(ErrorKind::InvalidInput, error))?;
        let to = &mut self.stream;
        if self.protocol == Protocol::Memcached {
            return memcached::request(op, &mut to.to);
        }
        let (operation, value): (u8, &[u8]) = match op {
            Op::Put { value, .. } => (PUT, value),
            Op::Delete { .. } => (DELETE, &[]),
            _ => (GET, &[]),
        };
        to.to.write_all(&[operation])?;
        to.put(op.key())?;
        to.put(value)
    }

    fn answer(&mut self, op: &Op<'_>) -> io::Result<Outcome> {
        if self.protocol == Protocol::Memcached {
            return memcached::answer(op, &mut self.stream.from);
        }
        let found = self.stream.byte()? != 0;
        let bytes = self.stream.bytes(MAX_VALUE)?;
        Ok(match op {
            Op::Put { .. } => Outcome::Written(0),
            Op::Delete { .. } => Outcome::Deleted(found),
            _ => Outcome::Value(found.then_some(Value { bytes, version: 0 })),
        })
    }

    /// Sends the requests of operations at once, then receives the answers. The puts come first: a
    /// server whose answers nobody takes yet may not take the rest of long requests.
    fn ask(&mut self, ops: &[Op<'_>]) -> io::Result<Vec<Outcome>> {
        let (puts, others): (Vec<_>, Vec<_>) = ops
            .iter()
            .enumerate()
            .partition(|(_, op)| matches!(op, Op::Put { .. }));
        for (_, op) in puts.iter().chain(&others) {
            self.request(op)?;
        }
        self.stream.to.flush()?;
        let mut outcomes = Vec::with_capacity(ops.len());
        for (n, op) in puts.into_iter().chain(others) {
            outcomes.push((n, self.answer(op)?));
        }
        outcomes.sort_by_key(|(n, _)| *n);
        Ok(outcomes.into_iter().map(|(_, outcome)| outcome).collect())
    }

    fn failed(&self, error: &io::Error) -> Error {
        let (server, what) = (self.name.clone(), error.to_string());
        match error.kind() {
            ErrorKind::InvalidData | ErrorKind::InvalidInput | ErrorKind::Unsupported => {
                Error::Refused { server, what }
            }
            _ => Error::Gone { server, why: what },
        }
    }
}

impl std::fmt::Debug for TcpStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpStore")
            .field("name", &self.name)
            .field("protocol", &self.protocol)
            .finish_non_exhaustive()
    }
}

impl Kv for TcpStore {
    /// As of a [`Store`](crate::Store), but conditions, times and sums are not served. After an error
    /// the connection is of no use.
    fn run(&mut self, ops: &[Op<'_>]) -> Vec<Result<Outcome>> {
        let mut results = Vec::with_capacity(ops.len());
        for some in ops.chunks(self.depth) {
            match self.ask(some) {
                Ok(outcomes) => results.extend(outcomes.into_iter().map(Ok)),
                Err(error) => results.extend(some.iter().map(|_| Err(self.failed(&error)))),
            }
        }
        results
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Condition;
    use std::io::BufRead;

    #[test]
    fn over_tcp() {
        let server = TcpServer::new("127.0.0.1:0").unwrap();
        let addr = server.local_addr().unwrap().to_string();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| server.run(&stop));
            let mut store = TcpStore::connect(&addr, Protocol::Own, 3).unwrap();
            let only_if = Condition::Always;
            let long = vec![7; MAX_VALUE];
            // Three at a time, of which the puts come first.
            let ops = [
                Op::get(b"a"),
                Op::get(b"b"),
                Op::Delete { key: b"a", only_if },
                Op::get(b"a"),
                Op::put(b"a", b""),
                Op::put(b"b", &long),
                Op::get(b"b"),
                Op::Delete { key: b"a", only_if },
                Op::get(b"a"),
            ];
            let results = store.run(&ops);
            stop.store(true, Ordering::Relaxed);
            let outcomes: Vec<_> = results.into_iter().map(Result::unwrap).collect();
            let value = |bytes: &[u8]| {
                Outcome::Value(Some(Value {
                    bytes: bytes.to_vec(),
                    version: 0,
                }))
            };
            let want = [
                Outcome::Value(None),
                Outcome::Value(None),
                Outcome::Deleted(false),
                value(b""),
                Outcome::Written(0),
                Outcome::Written(0),
                value(&long),
                Outcome::Deleted(true),
                Outcome::Value(None),
            ];
            assert_eq!(outcomes, want);
        });
    }

    /// Serves one client of memcached, whose requests have so many lines, with an answer.
    fn answers(lines: usize, answer: &'static [u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            let (tcp, _) = listener.accept().unwrap();
            let mut from = BufReader::new(tcp.try_clone().unwrap());
            for _ in 0..lines {
                from.read_line(&mut String::new()).unwrap();
            }
            (&tcp).write_all(answer).unwrap();
        });
        addr
    }

    #[test]
    fn over_memcached() {
        let connect = |lines, answer| {
            TcpStore::connect(&answers(lines, answer), Protocol::Memcached, 16).unwrap()
        };
        let ops = [Op::get(b"a"), Op::put(b"b", b"x"), Op::get(b"c")];
        let outcomes = connect(4, b"HD\r\nVA 1\r\ny\r\nEN\r\n").run(&ops);
        let bytes = b"y".to_vec();
        let want = [
            Outcome::Value(Some(Value { bytes, version: 0 })),
            Outcome::Written(0),
            Outcome::Value(None),
        ];
        assert_eq!(
            outcomes.into_iter().map(Result::unwrap).collect::<Vec<_>>(),
            want
        );
        let refused = connect(4, b"SERVER_ERROR no memory\r\n").run(&ops);
        let is_refused = |result: &Result<Outcome>| matches!(result, Err(Error::Refused { what, .. }) if what.contains("no memory"));
        assert!(
            refused.len() == 3 && refused.iter().all(is_refused),
            "{refused:?}"
        );
        let cut = connect(4, b"HD\r\nVA 1\r\ny").run(&ops);
        let is_gone = |result: &Result<Outcome>| matches!(result, Err(Error::Gone { .. }));
        assert!(cut.len() == 3 && cut.iter().all(is_gone), "{cut:?}");
    }
}
