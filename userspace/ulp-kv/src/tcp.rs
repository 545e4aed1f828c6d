// SPDX-License-Identifier: MIT OR Apache-2.0

//! The same store served over TCP, to compare with: the server's processor looks every key up.
//!
//! A request is an operation (1 get, 2 put, 3 delete), a key and a value; an answer is whether there was one, and
//! a value. Lengths are of 4 bytes, in network order.

use crate::error::{Error, Result};
use crate::{check, Kv, MAX_KEY, MAX_VALUE};
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
        stream.to.flush()?;
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
    stream: Stream,
}

impl TcpStore {
    /// Connects to HOST:PORT.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`].
    pub fn connect(name: &str) -> Result<Self> {
        let stream = TcpStream::connect(name).and_then(Stream::new);
        let stream = stream.map_err(|cause| Error::Unreachable {
            server: name.to_owned(),
            cause,
        })?;
        Ok(Self {
            name: name.to_owned(),
            stream,
        })
    }

    fn ask(&mut self, operation: u8, key: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>> {
        check(key)?;
        if value.len() > MAX_VALUE {
            let server = self.name.clone();
            return Err(Error::TooLarge {
                len: value.len(),
                max: MAX_VALUE,
                server,
            });
        }
        let stream = &mut self.stream;
        let mut asked = || -> io::Result<_> {
            stream.to.write_all(&[operation])?;
            stream.put(key)?;
            stream.put(value)?;
            stream.to.flush()?;
            let found = stream.byte()? != 0;
            Ok(Some(stream.bytes(MAX_VALUE)?).filter(|_| found))
        };
        asked().map_err(|error| Error::Gone {
            server: self.name.clone(),
            why: error.to_string(),
        })
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
    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.ask(GET, key, &[])
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.ask(PUT, key, value).map(|_| ())
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool> {
        Ok(self.ask(DELETE, key, &[])?.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn over_tcp() {
        let server = TcpServer::new("127.0.0.1:0").unwrap();
        let addr = server.local_addr().unwrap().to_string();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| server.run(&stop));
            let mut store = TcpStore::connect(&addr).unwrap();
            assert_eq!(store.get(b"a").unwrap(), None);
            store.put(b"a", b"1").unwrap();
            store.put(b"a", b"").unwrap();
            assert_eq!(store.get(b"a").unwrap(), Some(Vec::new()));
            assert!(store.delete(b"a").unwrap() && !store.delete(b"a").unwrap());
            assert!(matches!(store.get(b""), Err(Error::Key { len: 0 })));
            assert!(matches!(
                store.put(b"a", &[0; MAX_VALUE + 1]),
                Err(Error::TooLarge { .. })
            ));
            stop.store(true, Ordering::Relaxed);
        });
    }
}
