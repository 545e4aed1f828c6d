// SPDX-License-Identifier: MIT OR Apache-2.0

//! The back end `tcp`: the messages of `send` over TCP, with a connection for each queue pair.
//!
//! It has no device. A send is complete when the socket has taken all of it. A message without a
//! receive stays in the socket.

use super::end::{Control, Done, End, Kind, Op, Plan, Queue};
use super::wire::EndAddress;
use anyhow::{bail, ensure, Context, Result};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The interval at which a thread that waits checks whether the run is over.
const SLICE: Duration = Duration::from_millis(250);
/// The size of the header of a message: its length and its immediate data, 0 for none.
const HEAD: usize = 8;
/// Bytes that one call reads. Longer messages are read to their place.
const STAGE: usize = 65_536;
/// The messages that one call writes.
const GATHERED: usize = 64;

/// A message to send.
struct Outgoing {
    head: [u8; HEAD],
    op: Op,
}

/// Bytes that were read, and not yet taken.
struct Stage {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Stage {
    fn len(&self) -> usize {
        self.end - self.start
    }

    /// Moves bytes to `to`, and returns how many.
    fn take(&mut self, to: &mut [u8]) -> usize {
        let from = self.bytes.get(self.start..self.end).unwrap_or_default();
        let n = from.len().min(to.len());
        for (to, from) in to.iter_mut().zip(from) {
            *to = *from;
        }
        self.start += n;
        n
    }
}

/// The connection of a queue pair.
struct Line {
    tcp: TcpStream,
    sends: VecDeque<Outgoing>,
    /// Bytes of the first message that were written.
    written: usize,
    stage: Stage,
    head: [u8; HEAD],
    /// Bytes of the next message that arrived, with its header.
    arrived: usize,
}

/// Returns the number of bytes of a call that does not sleep; [`None`] if it would.
fn moved(result: std::io::Result<usize>) -> Result<Option<usize>> {
    match result {
        Ok(0) => bail!("the peer closed the connection"),
        Ok(n) => Ok(Some(n)),
        Err(e) if [ErrorKind::WouldBlock, ErrorKind::Interrupted].contains(&e.kind()) => Ok(None),
        Err(e) => Err(e).context("exchanging messages with the peer"),
    }
}

/// Returns the memory of a request.
fn place<'a>(memory: &'a mut [u8], op: &Op) -> Result<&'a mut [u8]> {
    let (at, len) = (op.local as usize, op.len as usize);
    let place = memory.get_mut(at..at.saturating_add(len));
    place.context("a request beyond the buffer")
}

impl Line {
    fn new(tcp: TcpStream) -> Result<Self> {
        tcp.set_nodelay(true)?;
        tcp.set_nonblocking(true)?;
        Ok(Self {
            tcp,
            sends: VecDeque::with_capacity(1024),
            written: 0,
            stage: Stage {
                bytes: vec![0; STAGE],
                start: 0,
                end: 0,
            },
            head: [0; HEAD],
            arrived: 0,
        })
    }

    /// Writes as much as the socket takes.
    fn write(&mut self, memory: &[u8], sent: &mut VecDeque<Done>) -> Result<()> {
        while !self.sends.is_empty() {
            let mut slices = Vec::with_capacity(2 * GATHERED);
            for message in self.sends.iter().take(GATHERED) {
                let (at, len) = (message.op.local as usize, message.op.len as usize);
                let body = memory.get(at..at.saturating_add(len));
                slices.push(IoSlice::new(&message.head));
                slices.push(IoSlice::new(body.context("a request beyond the buffer")?));
            }
            let mut rest = slices.as_mut_slice();
            IoSlice::advance_slices(&mut rest, self.written);
            let Some(n) = moved(self.tcp.write_vectored(rest))? else {
                break;
            };
            self.written += n;
            self.retire(sent);
        }
        Ok(())
    }

    /// Completes the messages of which everything was written.
    fn retire(&mut self, sent: &mut VecDeque<Done>) {
        while let Some(first) = self.sends.front() {
            let len = HEAD + first.op.len as usize;
            if self.written < len {
                return;
            }
            self.written -= len;
            if first.op.signaled {
                sent.push_back(Done {
                    id: first.op.id,
                    imm: None,
                });
            }
            self.sends.pop_front();
        }
    }

    /// Reads what there is into the posted receives.
    fn read(
        &mut self,
        memory: &mut [u8],
        receives: &mut VecDeque<Op>,
        received: &mut VecDeque<Done>,
    ) -> Result<()> {
        while let Some(op) = receives.front() {
            let body = place(memory, op)?;
            if !self.advance(body)? {
                return Ok(());
            }
            if self.arrived == HEAD + body.len() {
                let [.., a, b, c, d] = self.head;
                let imm = u32::from_be_bytes([a, b, c, d]);
                received.push_back(Done {
                    id: op.id,
                    imm: (imm != 0).then_some(imm),
                });
                receives.pop_front();
                self.arrived = 0;
            }
        }
        Ok(())
    }

    /// Moves some bytes of the next message to their place; returns false if there are none.
    fn advance(&mut self, body: &mut [u8]) -> Result<bool> {
        let rest = match self.arrived.checked_sub(HEAD) {
            None => self.head.get_mut(self.arrived..),
            Some(done) => body.get_mut(done..),
        };
        let rest = rest.unwrap_or_default();
        let n = if self.stage.len() != 0 {
            self.stage.take(rest)
        } else if rest.len() >= STAGE {
            match moved(self.tcp.read(rest))? {
                Some(n) => n,
                None => return Ok(false),
            }
        } else {
            let read = moved(self.tcp.read(&mut self.stage.bytes))?;
            (self.stage.start, self.stage.end) = (0, read.unwrap_or(0));
            return Ok(read.is_some());
        };
        self.arrived += n;
        if self.arrived == HEAD {
            let [a, b, c, d, ..] = self.head;
            let len = u32::from_be_bytes([a, b, c, d]) as usize;
            ensure!(
                len == body.len(),
                "the peer sent a message of {len} bytes, not {}",
                body.len()
            );
        }
        Ok(true)
    }
}

pub struct TcpEnd {
    memory: RefCell<Vec<u8>>,
    listener: Option<TcpListener>,
    lines: Vec<Line>,
    /// The posted receives of each queue pair.
    receives: Vec<VecDeque<Op>>,
    sent: VecDeque<Done>,
    received: VecDeque<Done>,
    one_queue: bool,
    control: Arc<Control>,
}

impl TcpEnd {
    /// Sends and receives what is possible without sleeping.
    fn progress(&mut self) -> Result<()> {
        let memory = self.memory.get_mut();
        for (line, receives) in self.lines.iter_mut().zip(&mut self.receives) {
            let received = match self.one_queue {
                true => &mut self.sent,
                false => &mut self.received,
            };
            line.read(memory, receives, received)?;
            line.write(memory, &mut self.sent)?;
        }
        Ok(())
    }

    fn queue(&mut self, queue: Queue) -> &mut VecDeque<Done> {
        match queue {
            Queue::Recv if !self.one_queue => &mut self.received,
            _ => &mut self.sent,
        }
    }

    /// Sleeps until a connection can go on, at most for [`SLICE`].
    fn sleep(&self) -> Result<()> {
        let mut fds = Vec::with_capacity(self.lines.len());
        for (line, receives) in self.lines.iter().zip(&self.receives) {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::POLLIN, !receives.is_empty());
            flags.set(PollFlags::POLLOUT, !line.sends.is_empty());
            if !flags.is_empty() {
                fds.push(PollFd::new(line.tcp.as_fd(), flags));
            }
        }
        wait(&mut fds, SLICE).map(drop)
    }
}

/// Waits for one of the files, and returns false if none is ready in time.
pub fn wait(fds: &mut [PollFd<'_>], time: Duration) -> Result<bool> {
    let time = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
    match poll(fds, time) {
        Ok(n) => Ok(n != 0),
        Err(nix::errno::Errno::EINTR) => Ok(true),
        Err(errno) => Err(errno).context("waiting for the peer"),
    }
}

impl End for TcpEnd {
    fn new(plan: &Plan<'_>) -> Result<Self> {
        let bytes = usize::try_from(plan.layout.bytes())?;
        Ok(Self {
            memory: RefCell::new(vec![0; bytes]),
            listener: None,
            lines: Vec::new(),
            receives: (0..plan.config.qps).map(|_| VecDeque::new()).collect(),
            sent: VecDeque::with_capacity(1024),
            received: VecDeque::with_capacity(1024),
            one_queue: plan.config.one_queue(),
            control: plan.control.clone(),
        })
    }

    fn address(&self) -> EndAddress {
        EndAddress {
            qps: Vec::new(),
            addr: 0,
            len: self.memory.borrow().len() as u64,
            rkey: 0,
        }
    }

    fn connect(&mut self, _peer: &EndAddress) -> Result<()> {
        Ok(())
    }

    fn listen(&mut self, ip: IpAddr) -> Result<u16> {
        let listener = TcpListener::bind((ip, 0)).with_context(|| format!("listening at {ip}"))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        self.listener = Some(listener);
        Ok(port)
    }

    fn accept(&mut self) -> Result<()> {
        let listener = self.listener.take().context("the end does not listen")?;
        while self.lines.len() < self.receives.len() {
            let mut fds = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
            let timeout = self.control.timeout;
            ensure!(
                wait(&mut fds, timeout)?,
                "the client made no connection for {timeout:?}"
            );
            match listener.accept() {
                Ok((tcp, _)) => self.lines.push(Line::new(tcp)?),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) => return Err(e).context("accepting a connection"),
            }
        }
        Ok(())
    }

    fn dial(&mut self, addr: SocketAddr) -> Result<()> {
        for _ in 0..self.receives.len() {
            let tcp = TcpStream::connect_timeout(&addr, self.control.timeout);
            let tcp = tcp.with_context(|| format!("connecting to {addr}"))?;
            self.lines.push(Line::new(tcp)?);
        }
        Ok(())
    }

    fn post(&mut self, ops: &[Op]) -> Result<()> {
        for op in ops {
            let qp = op.qp as usize;
            match op.kind {
                Kind::Recv => {
                    let receives = self.receives.get_mut(qp);
                    receives.context("no such queue pair")?.push_back(*op);
                }
                Kind::Send => {
                    let [a, b, c, d] = op.len.to_be_bytes();
                    let [e, f, g, h] = op.imm.unwrap_or(0).to_be_bytes();
                    let head = [a, b, c, d, e, f, g, h];
                    let line = self.lines.get_mut(qp).context("not connected")?;
                    line.sends.push_back(Outgoing { head, op: *op });
                }
                // Config::check() leaves these out.
                kind => bail!("TCP has no {kind:?}"),
            }
        }
        self.progress()
    }

    fn post_and_wait(&mut self, ops: &[Op], queue: Queue, _min: u32) -> Result<()> {
        self.post(ops)?;
        // Reading the clock is not part of the measurement.
        let mut until = None;
        while self.queue(queue).is_empty() {
            self.control.check()?;
            self.sleep()?;
            self.progress()?;
            let now = Instant::now();
            ensure!(
                now < *until.get_or_insert(now + self.control.timeout),
                "no message for {:?}",
                self.control.timeout
            );
        }
        Ok(())
    }

    fn reap(&mut self, queue: Queue, done: &mut Vec<Done>) -> Result<usize> {
        self.progress()?;
        let ready = self.queue(queue);
        let n = ready.len();
        done.extend(ready.drain(..));
        Ok(n)
    }

    fn load(&self, offset: u64) -> Result<u8> {
        let memory = self.memory.borrow();
        let byte = memory.get(offset as usize).copied();
        byte.context("beyond the buffer")
    }

    fn store(&self, offset: u64, byte: u8) -> Result<()> {
        self.write(offset, &[byte])
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let (memory, at) = (self.memory.borrow(), offset as usize);
        let from = memory.get(at..at.saturating_add(bytes.len()));
        bytes.copy_from_slice(from.context("beyond the buffer")?);
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let (mut memory, at) = (self.memory.borrow_mut(), offset as usize);
        let to = memory.get_mut(at..at.saturating_add(bytes.len()));
        to.context("beyond the buffer")?.copy_from_slice(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::config::{tests::config, Backend, Config, Layout, Test};
    use crate::bench::end::DeviceOptions;
    use std::cell::OnceCell;

    /// Two connected ends with two queue pairs, and the layout of messages of `size` bytes.
    fn pair(size: u32) -> (TcpEnd, TcpEnd, Layout) {
        let config = Config {
            test: Test::Send,
            backend: Backend::Tcp,
            peer_backend: Backend::Tcp,
            ..config()
        };
        config.check().unwrap();
        let layout = Layout::new(&config, size);
        let control = Control::new(&Arc::default(), config.timeout());
        let plan = Plan {
            device: &DeviceOptions::default(),
            shared: OnceCell::new(),
            config: &config,
            layout,
            control: &control,
        };
        let mut server = TcpEnd::new(&plan).unwrap();
        let mut client = TcpEnd::new(&plan).unwrap();
        let ip = IpAddr::from([127, 0, 0, 1]);
        let port = server.listen(ip).unwrap();
        client.dial(SocketAddr::new(ip, port)).unwrap();
        server.accept().unwrap();
        (client, server, layout)
    }

    fn op(kind: Kind, qp: u64, at: u64, len: u32, id: u64) -> Op {
        let mut op = Op::new(kind, qp, at, 0, len);
        op.id = id;
        op
    }

    #[test]
    fn messages_arrive_in_order_with_their_data() {
        for size in [1, 100, 65_536, 200_000] {
            let (mut client, mut server, layout) = pair(size);
            for number in 0..4 {
                let (qp, at) = (number % 2, layout.inbox(number % 2, number));
                let recv = op(Kind::Recv, qp, at, size, number);
                server.post(&[recv]).unwrap();
                let at = layout.outbox(qp, number);
                client
                    .write(at, &vec![number as u8 + 1; size as usize])
                    .unwrap();
                let mut send = op(Kind::Send, qp, at, size, 10 + number);
                send.imm = (number == 3).then_some(7);
                client.post(&[send]).unwrap();
            }
            let (mut sent, mut received) = (Vec::new(), Vec::new());
            while sent.len() < 4 || received.len() < 4 {
                client.reap(Queue::Send, &mut sent).unwrap();
                server.reap(Queue::Recv, &mut received).unwrap();
            }
            sent.sort_by_key(|done| done.id);
            received.sort_by_key(|done| done.id);
            let ids = |all: &[Done]| all.iter().map(|done| done.id).collect::<Vec<_>>();
            assert_eq!(ids(&sent), [10, 11, 12, 13]);
            assert_eq!(ids(&received), [0, 1, 2, 3]);
            assert_eq!((received[0].imm, received[3].imm), (None, Some(7)));
            for number in 0..4 {
                let mut bytes = vec![0; size as usize];
                let at = layout.inbox(number % 2, number);
                server.read(at, &mut bytes).unwrap();
                assert!(bytes.iter().all(|byte| u64::from(*byte) == number + 1));
            }
        }
    }

    #[test]
    fn an_unexpected_length_and_a_closed_connection_are_errors() {
        let (mut client, mut server, layout) = pair(64);
        let recv = |at| op(Kind::Recv, 0, at, 64, 0);
        server
            .post(&[recv(layout.inbox(0, 0)), recv(layout.inbox(0, 1))])
            .unwrap();
        let send = op(Kind::Send, 0, layout.outbox(0, 0), 8, 0);
        client.post(&[send]).unwrap();
        let error = server.post_and_wait(&[], Queue::Recv, 1).unwrap_err();
        assert!(error.to_string().contains("8 bytes, not 64"), "{error}");
        let (client, mut server, layout) = pair(64);
        server.post(&[recv(layout.inbox(0, 0))]).unwrap();
        drop(client);
        let error = server.post_and_wait(&[], Queue::Recv, 1).unwrap_err();
        assert!(error.to_string().contains("closed"), "{error}");
    }

    #[test]
    fn a_thread_that_waits_ends_in_time() {
        let (_client, mut server, layout) = pair(64);
        let recv = op(Kind::Recv, 0, layout.inbox(0, 0), 64, 0);
        let error = server.post_and_wait(&[recv], Queue::Recv, 1).unwrap_err();
        assert!(error.to_string().contains("no message"), "{error}");
    }
}
