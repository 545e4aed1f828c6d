// SPDX-License-Identifier: MIT OR Apache-2.0

//! The TCP connections of a rank to the next and from the previous rank, barriers, and lost ranks.
//!
//! The first message each way is a line. The others have four bytes: the kind, a rank, and a port in
//! network order.

use super::number::Type;
use super::SLICE;
use anyhow::{anyhow, bail, ensure, Context, Result};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

const VERSION: u32 = 4;
/// Bytes of the longest line.
const MAX_LINE: usize = 1000;
/// The kind of message for a barrier.
const MEET: u8 = 1;
/// The kind of message with the port that the sender listens at.
const PORT: u8 = 2;
/// The kind of message for a rank that closed its connections.
const GONE: u8 = 3;
/// The kind of message for a rank that failed.
const FAILED: u8 = 4;

type Message = [u8; 4];

fn say(mut tcp: &TcpStream, line: &str) -> Result<()> {
    Ok(tcp.write_all(format!("{line}\n").as_bytes())?)
}

/// Receives a line, which must arrive within `timeout`, with `?` for each control character: a
/// terminal would obey it. Reads no byte after it.
fn hear(mut tcp: &TcpStream, timeout: Duration) -> Result<String> {
    let (until, mut line, mut byte) = (Instant::now() + timeout, Vec::new(), [0]);
    while byte != *b"\n" {
        tcp.set_read_timeout(Some(left(until).max(Duration::from_millis(1))))?;
        tcp.read_exact(&mut byte).context("waiting for a rank")?;
        line.extend(byte);
        ensure!(
            line.len() <= MAX_LINE,
            "this is no rank: its line has no end"
        );
    }
    line.pop();
    let line = String::from_utf8(line).context("this is no rank")?;
    Ok(line.replace(char::is_control, "?"))
}

/// The error for a rank that is gone.
#[derive(Debug, thiserror::Error)]
#[error("rank {rank} ({name}) {}", if *.failed { "has failed: see its messages" } else { "is gone" })]
struct Lost {
    rank: usize,
    name: String,
    failed: bool,
}

/// The end of the time without progress.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    patience: Duration,
    end: Instant,
}

impl Deadline {
    fn new(patience: Duration) -> Self {
        let end = Instant::now() + patience;
        Self { patience, end }
    }

    /// Moves the deadline, since something has arrived or left.
    pub fn progress(&mut self) {
        *self = Self::new(self.patience);
    }
}

/// The connections of a rank.
pub struct Ring {
    names: Vec<String>,
    rank: usize,
    next: TcpStream,
    prev: TcpStream,
    /// The time to wait for progress of the other ranks.
    pub patience: Duration,
    stop: Arc<AtomicBool>,
}

/// Polls `ready` until it returns a value.
fn until<T>(
    mut ready: impl FnMut() -> Result<Option<T>>,
    deadline: Instant,
    stop: &[&AtomicBool],
    whom: &str,
) -> Result<T> {
    loop {
        // Read first, so that `ready` is polled once more after a stop.
        let stopped = stop.iter().any(|stop| stop.load(Ordering::Relaxed));
        if let Some(it) = ready()? {
            return Ok(it);
        }
        ensure!(!stopped, "interrupted");
        ensure!(Instant::now() < deadline, "{whom} did not connect in time");
        std::thread::sleep(SLICE / 2);
    }
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Connects to a rank that may not listen yet.
fn dial(name: &str, deadline: Instant, stop: &[&AtomicBool]) -> Result<TcpStream> {
    let mut last = None;
    let dialled = until(
        || {
            for addr in name.to_socket_addrs().with_context(|| name.to_owned())? {
                let most = left(deadline).clamp(SLICE, Duration::from_secs(2));
                match TcpStream::connect_timeout(&addr, most) {
                    Ok(tcp) => return Ok(Some(tcp)),
                    Err(error) => last = Some(error),
                }
            }
            Ok(None)
        },
        deadline,
        stop,
        name,
    );
    match (dialled, last) {
        (Err(error), Some(last)) => Err(error.context(format!("connecting to {name}: {last}"))),
        (dialled, _) => dialled,
    }
}

/// Accepts a connection, if there is one.
fn incoming(listener: &TcpListener) -> Result<Option<(TcpStream, SocketAddr)>> {
    match listener.accept() {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        accepted => Ok(Some(accepted?)),
    }
}

/// Waits for the previous rank, and refuses others once this one `said` to the next what it is: a
/// rank that both is refused and has to refuse this one ends, and would leave this one unanswered.
fn accept(
    listener: &TcpListener,
    (want, rank): (&str, usize),
    said: &AtomicBool,
    deadline: Instant,
    stop: &[&AtomicBool],
) -> Result<TcpStream> {
    listener.set_nonblocking(true)?;
    until(
        || {
            let Some((tcp, addr)) = incoming(listener)? else {
                return Ok(None);
            };
            tcp.set_nonblocking(false)?;
            // A peer that sends nothing blocks the others for a short time only.
            let soon = left(deadline).min(Duration::from_secs(2));
            let Ok(hello) = hear(&tcp, soon) else {
                return Ok(None);
            };
            if hello == *want {
                return Ok(say(&tcp, "").is_ok().then_some(tcp));
            }
            let said = || Ok(said.load(Ordering::Relaxed).then_some(()));
            until(said, deadline, stop, "the next rank")?;
            let answer = format!("rank {rank} waits for {want}, not {hello}");
            eprintln!("{addr} was refused: {answer}");
            // It may be gone already.
            let _ = say(&tcp, &answer);
            Ok(None)
        },
        deadline,
        stop,
        "the previous rank",
    )
}

impl Ring {
    /// Connects to the next rank, and waits for the previous one.
    pub fn connect(
        names: Vec<String>,
        rank: usize,
        (count, numbers): (u32, Type),
        patience: Duration,
        stop: Arc<AtomicBool>,
    ) -> Result<Self> {
        let (ranks, deadline) = (names.len(), Instant::now() + patience);
        let name = |rank: usize| names.get(rank % ranks).map_or("", String::as_str);
        // What a rank that wants to connect says of itself.
        let hello = |rank: usize| {
            let rank = rank % ranks;
            format!(
                "version: {VERSION}, rank: {rank}, ranks: {ranks}, count: {count}, type: {numbers:?}"
            )
        };
        let own = name(rank);
        let listener = TcpListener::bind(own)
            .with_context(|| format!("listening at {own}, which is this rank"))?;
        let (said, alone) = (AtomicBool::new(false), AtomicBool::new(false));
        let (prev, next) = std::thread::scope(|scope| {
            let want = hello(rank + ranks - 1);
            let (listener, stop, said, alone) = (&listener, &*stop, &said, &alone);
            let stops = [stop, alone];
            let prev = scope.spawn(move || accept(listener, (&want, rank), said, deadline, &stops));
            let next = dial(name(rank + 1), deadline, &[stop]).and_then(|tcp| {
                say(&tcp, &hello(rank))?;
                said.store(true, Ordering::Relaxed);
                let answer = hear(&tcp, left(deadline))?;
                ensure!(answer.is_empty(), "{} refuses: {answer}", name(rank + 1));
                Ok(tcp)
            });
            // Without a next rank the previous one is not needed.
            alone.store(next.is_err(), Ordering::Relaxed);
            (prev.join(), next)
        });
        let next = next?;
        let prev = prev.map_err(|_| anyhow!("a thread broke off"))??;
        for tcp in [&next, &prev] {
            tcp.set_nodelay(true)?;
            tcp.set_read_timeout(Some(SLICE))?;
            tcp.set_write_timeout(Some(patience))?;
        }
        Ok(Self {
            names,
            rank,
            next,
            prev,
            patience,
            stop,
        })
    }

    pub fn ranks(&self) -> usize {
        self.names.len()
    }

    /// Returns a deadline that progress moves.
    pub fn deadline(&self) -> Deadline {
        Deadline::new(self.patience)
    }

    /// Returns the address at which the previous rank reached this one, with another port.
    pub fn own_addr(&self, port: u16) -> Result<SocketAddr> {
        let mut addr = self.prev.local_addr()?;
        addr.set_port(port);
        Ok(addr)
    }

    /// Returns the address of the next rank, with another port.
    pub fn next_addr(&self, port: u16) -> Result<SocketAddr> {
        let mut addr = self.next.peer_addr()?;
        addr.set_port(port);
        Ok(addr)
    }

    fn lost(&self, rank: usize, failed: bool) -> anyhow::Error {
        let rank = rank % self.ranks();
        let name = self.names.get(rank).cloned().unwrap_or_default();
        Lost { rank, name, failed }.into()
    }

    /// Returns an error if a message says that a rank is gone or has failed.
    fn read(&self, message: Message) -> Result<Message> {
        match message {
            [kind @ (GONE | FAILED), rank, ..] => Err(self.lost(rank.into(), kind == FAILED)),
            _ => Ok(message),
        }
    }

    /// Returns the connections, with their ranks.
    fn neighbours(&self) -> [(&TcpStream, usize); 2] {
        let before = self.rank + self.ranks() - 1;
        [(&self.next, self.rank + 1), (&self.prev, before)]
            .map(|(tcp, rank)| (tcp, rank % self.ranks()))
    }

    /// Returns an error if a rank is gone, or this one was interrupted.
    fn check(&self) -> Result<()> {
        for (tcp, rank) in self.neighbours() {
            let mut message: Message = [0; 4];
            tcp.set_nonblocking(true)?;
            let peeked = tcp.peek(&mut message);
            tcp.set_nonblocking(false)?;
            match peeked {
                Ok(4) => self.read(message).map(drop)?,
                Ok(1..) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                _ => return Err(self.lost(rank, false)),
            }
        }
        ensure!(!self.stop.load(Ordering::Relaxed), "interrupted");
        Ok(())
    }

    /// Returns an error if a rank is gone, this one was interrupted, or `deadline` is over.
    pub fn look(&self, deadline: &Deadline) -> Result<()> {
        self.check()?;
        ensure!(
            Instant::now() < deadline.end,
            "the other ranks are connected, but nothing arrived for {} s: is one of them stopped, or are packets lost?",
            self.patience.as_secs()
        );
        Ok(())
    }

    /// Returns the cause of `error`: mostly a rank that is gone, which is reported a moment later.
    pub fn why(&self, error: impl Into<anyhow::Error>) -> anyhow::Error {
        let end = Instant::now() + Duration::from_secs(2);
        while Instant::now() < end {
            if let Err(lost) = self.check() {
                return lost;
            }
            std::thread::sleep(SLICE / 2);
        }
        error.into()
    }

    fn send(&self, mut tcp: &TcpStream, message: Message) -> Result<()> {
        tcp.write_all(&message).map_err(|error| self.why(error))
    }

    /// Receives the next message, which must be of a kind.
    fn receive(&self, mut tcp: &TcpStream, kind: u8) -> Result<Message> {
        let mut deadline = self.deadline();
        let (mut message, mut have): (Message, usize) = ([0; 4], 0);
        while let Some(rest) = message.get_mut(have..).filter(|rest| !rest.is_empty()) {
            match tcp.read(rest) {
                Ok(n @ 1..) => {
                    have += n;
                    deadline.progress();
                }
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                    ) =>
                {
                    self.look(&deadline)?;
                }
                // The peer closed the connection.
                _ => {
                    self.look(&deadline)?;
                    bail!("a rank closed its connection");
                }
            }
        }
        let [is, ..] = self.read(message)?;
        ensure!(is == kind, "message {is} arrived instead of {kind}");
        Ok(message)
    }

    /// Waits until all ranks call this.
    pub fn meet(&self) -> Result<()> {
        ensure!(!self.stop.load(Ordering::Relaxed), "interrupted");
        // The first round shows that all ranks are here, the second that all know.
        for _ in 0..2 {
            if self.rank == 0 {
                self.send(&self.next, [MEET, 0, 0, 0])?;
            }
            self.receive(&self.prev, MEET)?;
            if self.rank != 0 {
                self.send(&self.next, [MEET, 0, 0, 0])?;
            }
        }
        Ok(())
    }

    /// Sends the port of this rank to the previous one, and returns the port of the next one.
    pub fn tell(&self, port: u16) -> Result<u16> {
        let [high, low] = port.to_be_bytes();
        self.send(&self.prev, [PORT, 0, high, low])?;
        let [_, _, high, low] = self.receive(&self.next, PORT)?;
        Ok(u16::from_be_bytes([high, low]))
    }

    /// Tells the neighbors why this rank leaves, and returns the reason.
    pub fn leave(&self, error: anyhow::Error) -> anyhow::Error {
        let (kind, rank) = match error.downcast_ref::<Lost>() {
            Some(lost) if !lost.failed => (GONE, lost.rank),
            lost => (FAILED, lost.map_or(self.rank, |lost| lost.rank)),
        };
        for (mut tcp, _) in self.neighbours() {
            // At most 3. A rank that misses the message sees the end of the connection.
            let _ = tcp.write_all(&[kind, rank as u8, 0, 0]);
        }
        error
    }

    /// Creates the connections for the vectors.
    pub fn data(&self) -> Result<Data> {
        let deadline = self.deadline();
        let listener = TcpListener::bind(self.own_addr(0)?)?;
        let port = self.tell(listener.local_addr()?.port())?;
        // The connection is established before it is accepted.
        let next = TcpStream::connect_timeout(&self.next_addr(port)?, self.patience)?;
        listener.set_nonblocking(true)?;
        let accepted = || {
            self.look(&deadline)?;
            incoming(&listener)
        };
        let (prev, _) = until(accepted, deadline.end, &[&self.stop], "the previous rank")?;
        for tcp in [&next, &prev] {
            tcp.set_nodelay(true)?;
            tcp.set_nonblocking(true)?;
        }
        Ok(Data { next, prev })
    }
}

/// The connections for vectors over TCP.
pub struct Data {
    next: TcpStream,
    prev: TcpStream,
}

impl Data {
    /// Sends `sends` to the next rank while it receives `takes` from the previous one. Each byte
    /// moves `deadline`.
    pub fn exchange(
        &mut self,
        mut sends: &[u8],
        mut takes: &mut [u8],
        ring: &Ring,
        deadline: &mut Deadline,
    ) -> Result<()> {
        while !sends.is_empty() || !takes.is_empty() {
            let mut files = Vec::with_capacity(2);
            if !sends.is_empty() {
                files.push(PollFd::new(self.next.as_fd(), PollFlags::POLLOUT));
            }
            if !takes.is_empty() {
                files.push(PollFd::new(self.prev.as_fd(), PollFlags::POLLIN));
            }
            // The caller checks for signals.
            if poll(&mut files, PollTimeout::try_from(SLICE)?).unwrap_or(0) == 0 {
                ring.look(deadline)?;
                continue;
            }
            if !sends.is_empty() {
                match self.next.write(sends) {
                    Ok(n) => {
                        sends = sends.get(n..).unwrap_or_default();
                        deadline.progress();
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(ring.why(error)),
                }
            }
            if !takes.is_empty() {
                match self.prev.read(takes) {
                    Ok(0) => return Err(ring.why(std::io::Error::from(ErrorKind::UnexpectedEof))),
                    Ok(n) => {
                        takes = std::mem::take(&mut takes).get_mut(n..).unwrap_or_default();
                        deadline.progress();
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(ring.why(error)),
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rings of three, at addresses that no other test has.
    fn rings(net: u8, patience: Duration) -> Vec<Ring> {
        let names: Vec<_> = (1..4)
            .map(|n| format!("127.{net}.{}.{n}:7180", std::process::id() % 250))
            .collect();
        let one = |rank| {
            let names = names.clone();
            std::thread::spawn(move || {
                Ring::connect(names, rank, (7, Type::F32), patience, Arc::default()).unwrap()
            })
        };
        let all: Vec<_> = (0..3).map(one).collect();
        all.into_iter().map(|ring| ring.join().unwrap()).collect()
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_terminal_gets_no_control_characters_of_a_rank() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        there
            .write_all("a\x1b]0;title\x07\rb 名\n".as_bytes())
            .unwrap();
        let here = listener.accept().unwrap().0;
        assert_eq!(hear(&here, LONG).unwrap(), "a?]0;title??b 名");
    }

    #[test]
    fn ranks_meet_and_tell_where_they_listen() {
        let ports = rings(71, LONG)
            .into_iter()
            .zip(100u16..)
            .map(|(ring, port)| {
                std::thread::spawn(move || {
                    ring.meet().unwrap();
                    let next = ring.tell(port).unwrap();
                    ring.meet().unwrap();
                    (port, next)
                })
            });
        let ports: Vec<_> = ports
            .collect::<Vec<_>>()
            .into_iter()
            .map(|told| told.join().unwrap())
            .collect();
        assert_eq!(ports, [(100, 101), (101, 102), (102, 100)]);
    }

    #[test]
    fn who_is_gone_is_named_by_all() {
        let mut rings = rings(72, LONG);
        drop(rings.remove(1));
        let gone = rings[0].meet().unwrap_err();
        assert!(gone.to_string().contains("rank 1 (127.72."), "{gone}");
        assert!(gone.to_string().ends_with("is gone"), "{gone}");
        rings[0].leave(gone);
        drop(rings.remove(0));
        let gone = rings[0].check().unwrap_err();
        assert!(gone.to_string().contains("is gone"), "{gone}");
    }

    #[test]
    fn who_gives_up_says_so() {
        let rings = rings(73, LONG);
        let error = rings[2].leave(anyhow!("enough"));
        assert_eq!(error.to_string(), "enough");
        for rank in [0, 1] {
            let told = rings[rank].meet().unwrap_err().to_string();
            assert!(
                told.contains("rank 2 (127.73.") && told.contains("has failed"),
                "{told}"
            );
        }
    }

    #[test]
    fn ranks_that_refuse_each_other_both_hear_why() {
        let names: Vec<_> = (1..3).map(|n| format!("127.76.0.{n}:7180")).collect();
        let ranks = [0, 1].map(|rank| {
            let (names, vector) = (names.clone(), (7 + rank as u32, Type::F32));
            std::thread::spawn(move || Ring::connect(names, rank, vector, LONG, Arc::default()))
        });
        for rank in ranks {
            let refused = rank.join().unwrap().err().unwrap().to_string();
            assert!(refused.contains(":7180 refuses: rank "), "{refused}");
        }
    }

    #[test]
    fn nobody_is_waited_for_without_end() {
        let rings = rings(74, Duration::from_secs(20));
        rings[0].look(&Deadline::new(LONG)).unwrap();
        let late = rings[0].look(&Deadline::new(Duration::ZERO));
        let late = late.unwrap_err().to_string();
        assert!(late.contains("nothing arrived for 20 s"), "{late}");
        let nobody = Ring::connect(
            vec!["127.75.0.1:7180".to_owned(), "127.75.0.2:7180".to_owned()],
            0,
            (7, Type::F32),
            Duration::from_millis(300),
            Arc::default(),
        );
        let text = format!("{:#}", nobody.err().unwrap());
        assert!(
            text.starts_with("connecting to 127.75.0.2:7180: "),
            "{text}"
        );
    }

    #[test]
    fn bytes_move_the_deadline() {
        let rings = rings(77, LONG);
        let ranks: Vec<_> = rings
            .into_iter()
            .map(|ring| {
                std::thread::spawn(move || {
                    let mut data = ring.data().unwrap();
                    let (mut came, mut deadline) = ([0; 3], ring.deadline());
                    let before = deadline.end;
                    data.exchange(&[1, 2, 3], &mut came, &ring, &mut deadline)
                        .unwrap();
                    ring.meet().unwrap();
                    (came, deadline.end > before)
                })
            })
            .collect();
        for rank in ranks {
            assert_eq!(rank.join().unwrap(), ([1, 2, 3], true));
        }
    }
}
