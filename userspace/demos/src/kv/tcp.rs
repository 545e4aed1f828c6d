// SPDX-License-Identifier: MIT OR Apache-2.0

//! A store served over TCP, to compare with: the server's processor looks every key up.
//!
//! A request is a [`Change`] as a message has it, or a get, whose number is 1; before it is its
//! length. An answer is whether there was a value, its length, and the value.

use crate::client::PATIENCE;
use crate::error::{Error, Result};
use crate::layout::{MAX_KEY, MAX_VALUE};
use crate::server::TICK;
use crate::wire::{message_len, Change};
use std::collections::HashMap;
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

type Map = Arc<RwLock<HashMap<Vec<u8>, Vec<u8>>>>;

/// The number of a get, and of a change.
const GET: u32 = 1;
const CHANGE: u32 = 0;

struct Stream {
    from: BufReader<TcpStream>,
    to: BufWriter<TcpStream>,
}

impl Stream {
    fn new(tcp: TcpStream) -> io::Result<Self> {
        tcp.set_nodelay(true)?;
        Ok(Self {
            from: BufReader::with_capacity(2 * MAX_VALUE, tcp.try_clone()?),
            to: BufWriter::with_capacity(2 * MAX_VALUE, tcp),
        })
    }

    fn word(&mut self) -> io::Result<u32> {
        let mut word = [0; 4];
        self.from.read_exact(&mut word)?;
        Ok(u32::from_le_bytes(word))
    }

    fn bytes(&mut self) -> io::Result<Vec<u8>> {
        let len = self.word()? as usize;
        if len > message_len(MAX_VALUE as u32) {
            return Err(ErrorKind::InvalidData.into());
        }
        let mut bytes = vec![0; len];
        self.from.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        // At most those of a message.
        self.to.write_all(&(bytes.len() as u32).to_le_bytes())?;
        self.to.write_all(bytes)
    }
}

fn serve(tcp: TcpStream, map: &Map) -> io::Result<()> {
    let mut stream = Stream::new(tcp)?;
    loop {
        let message = stream.bytes()?;
        let Some((number, Change { key, value })) = Change::decode(&message) else {
            return Err(ErrorKind::InvalidData.into());
        };
        let write = || map.write().unwrap_or_else(PoisonError::into_inner);
        let had = match (number, value) {
            (GET, _) => map
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .get(key)
                .cloned(),
            (_, Some(value)) => {
                write().insert(key.to_vec(), value.to_vec());
                Some(Vec::new())
            }
            (_, None) => write().remove(key).map(|_| Vec::new()),
        };
        stream
            .to
            .write_all(&u32::from(had.is_some()).to_le_bytes())?;
        stream.put(&had.unwrap_or_default())?;
        // Answers to requests that came together leave together.
        if stream.from.buffer().is_empty() {
            stream.to.flush()?;
        }
    }
}

/// Serves at `addr` until `stop`.
///
/// # Errors
///
/// It cannot listen there.
pub fn run(addr: &str, stop: &AtomicBool) -> io::Result<()> {
    let listener = TcpListener::bind(addr)?;
    listener.set_nonblocking(true)?;
    eprintln!("listening at {}, until Ctrl-C", listener.local_addr()?);
    let map = Map::default();
    while !stop.load(Ordering::Relaxed) {
        let Ok((tcp, _)) = listener.accept() else {
            std::thread::sleep(TICK);
            continue;
        };
        let map = map.clone();
        let session = move || {
            let _ = tcp.set_nonblocking(false);
            serve(tcp, &map)
        };
        // Without a thread for it, the client finds its connection closed.
        if std::thread::Builder::new().spawn(session).is_err() {
            std::thread::sleep(TICK);
        }
    }
    Ok(())
}

/// Connects to HOST:PORT. The server has [`PATIENCE`] for this, and for each answer.
fn dial(server: &str) -> io::Result<Stream> {
    let mut last = ErrorKind::AddrNotAvailable.into();
    for addr in server.to_socket_addrs()? {
        match TcpStream::connect_timeout(&addr, PATIENCE) {
            Ok(tcp) => {
                tcp.set_read_timeout(Some(PATIENCE))?;
                tcp.set_write_timeout(Some(PATIENCE))?;
                return Stream::new(tcp);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A client of such a server.
pub struct TcpStore {
    stream: Stream,
    server: String,
}

impl TcpStore {
    /// Connects to HOST:PORT.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`].
    pub fn connect(server: &str) -> Result<Self> {
        Ok(Self {
            stream: dial(server).map_err(|cause| Error::Unreachable {
                server: server.to_owned(),
                cause: cause.to_string(),
            })?,
            server: server.to_owned(),
        })
    }

    /// Sends all requests, then takes all answers: whether each had a value, and which.
    fn ask(&mut self, number: u32, asks: &[Change<'_>]) -> Result<Vec<Option<Vec<u8>>>> {
        let mut all = || -> io::Result<_> {
            for ask in asks {
                if !(1..=MAX_KEY).contains(&ask.key.len()) {
                    return Err(ErrorKind::InvalidInput.into());
                }
                self.stream.put(&ask.encode(number))?;
            }
            self.stream.to.flush()?;
            let answer = |_| Ok((self.stream.word()? == 1, self.stream.bytes()?));
            let answers = asks.iter().map(answer).collect::<io::Result<Vec<_>>>()?;
            Ok(answers
                .into_iter()
                .map(|(had, value)| had.then_some(value))
                .collect())
        };
        all().map_err(|cause| Error::Gone {
            server: self.server.clone(),
            cause: cause.to_string(),
        })
    }

    /// Returns the values of keys.
    pub fn get(&mut self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        let asks: Vec<_> = keys.iter().map(|key| Change { key, value: None }).collect();
        self.ask(GET, &asks)
    }

    /// Makes changes.
    pub fn change(&mut self, changes: &[Change<'_>]) -> Result<Vec<bool>> {
        let done = self.ask(CHANGE, changes)?;
        Ok(done.into_iter().map(|had| had.is_some()).collect())
    }
}
