// SPDX-License-Identifier: MIT OR Apache-2.0

//! `ulp pingpong cm`: the other end of librdmacm's examples `rdma_client` and `rdma_server`.
//!
//! The RDMA connection manager connects one queue pair of type RC. The client sends 16 bytes, the
//! server answers with 16 bytes, and the client disconnects.

use super::Summary;
use crate::args::address;
use crate::listen;
use anyhow::{ensure, Context, Result};
use rust_ulp::cm::{AcceptOptions, ConnectOptions, Connection, Listener};
use rust_ulp::qp::Rc;
use rust_ulp::wr::{Recv, Send};
use rust_ulp::{Buffer, Completion, Cq, Device, Error, PreparedQp, Status};
use std::net::{Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// The port of `rdma_server`.
pub const PORT: u16 = 7471;
const LEN: usize = 16;
/// The numbers of the two requests.
const SEND: u64 = 1;
const RECV: u64 = 2;

/// The objects of one end.
struct Ready {
    qp: PreparedQp<Rc>,
    cq: Cq,
    memory: Buffer,
}

impl Ready {
    /// Creates a queue pair with a posted receive.
    fn new(device: &Device) -> Result<Self> {
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(4)?);
        let memory = pd.alloc_buffer(2 * LEN)?;
        let qp = pd.qp_builder::<Rc>(&cq).max_send_wr(2).max_recv_wr(2);
        let qp = qp.build()?;
        qp.post_recv(recv(&memory)?)?;
        Ok(Self { qp, cq, memory })
    }
}

/// A receive into the second half of the memory.
fn recv(memory: &Buffer) -> Result<Recv<'_>> {
    Ok(Recv::new(memory.slice(LEN..2 * LEN)?).wr_id(RECV))
}

/// One end of a connection.
struct End<'a> {
    connection: Connection,
    cq: Cq,
    memory: Buffer,
    stop: &'a AtomicBool,
}

impl End<'_> {
    /// Waits for the next completion.
    fn next(&self) -> Result<Completion> {
        listen::completion(&self.cq, self.stop)
    }

    /// Waits for the requests with these numbers, in any order.
    fn wait(&self, mut wanted: Vec<u64>) -> Result<()> {
        while !wanted.is_empty() {
            let done = self.next()?;
            // Who has the peer's message may see it disconnect before its acknowledgement.
            if done.status == Status::Flushed && wanted == [SEND] {
                return Ok(());
            }
            let done = done.ok()?;
            let len = done.byte_len as usize;
            ensure!(
                done.wr_id == SEND || len == LEN,
                "the peer sent {len} bytes, not {LEN}"
            );
            wanted.retain(|number| *number != done.wr_id);
        }
        Ok(())
    }

    /// Waits until the peer disconnects, which flushes a receive, or does nothing for a minute.
    fn wait_for_disconnect(&self) -> Result<()> {
        // Fails when the peer has done so already.
        if self.connection.qp().post_recv(recv(&self.memory)?).is_ok() {
            while self.next().is_ok_and(|done| done.status != Status::Flushed) {}
        }
        Ok(())
    }

    fn send(&self) -> Result<()> {
        let send = Send::new(self.memory.slice(..LEN)?).wr_id(SEND).inline();
        Ok(self.connection.qp().post(send)?)
    }
}

/// Accepts one client, and answers its message. Returns when the client connected.
fn server(device: &Device, port: u16, stop: &AtomicBool) -> Result<Instant> {
    let addr = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
    let listener = Listener::bind(device, addr, 1)?;
    message!("listening at {}", listener.local_addr());
    let request = listen::request(&listener, stop)?;
    let begin = Instant::now();
    let Ready { qp, cq, memory } = Ready::new(device)?;
    let end = End {
        connection: request.accept(qp, &AcceptOptions::new())?,
        cq,
        memory,
        stop,
    };
    end.wait(vec![RECV])?;
    end.send()?;
    end.wait(vec![SEND])?;
    // The client is the one to disconnect: a server that does so first can take from it the
    // acknowledgement of its message, which rxe sends after the completion, and not at all in ERR
    // (do_complete(), rxe_resp.c). The client would then send its message again for ever.
    end.wait_for_disconnect()?;
    Ok(begin)
}

/// Sends a message to a server, and waits for the answer. Returns when it began to connect.
fn client(device: &Device, host: &str, port: u16, stop: &AtomicBool) -> Result<Instant> {
    let host = address(host, port);
    let addr = host.to_socket_addrs()?.next().context("no such host")?;
    let begin = Instant::now();
    let Ready { qp, cq, memory } = Ready::new(device)?;
    let connection = qp.connect_cm(addr, &ConnectOptions::new());
    let end = End {
        connection: connection
            .map_err(Error::from)
            .with_context(|| format!("{host}: does rdma_server listen there?"))?,
        cq,
        memory,
        stop,
    };
    end.send()?;
    // Dropping the connection disconnects, unless the server was faster.
    end.wait(vec![SEND, RECV])?;
    Ok(begin)
}

/// Exchanges one message in each direction with a server at `host`, or with a client.
pub fn run(device: &Device, host: Option<&str>, port: u16, stop: &AtomicBool) -> Result<Summary> {
    let begin = match host {
        Some(host) => client(device, host, port, stop)?,
        None => server(device, port, stop)?,
    };
    Ok(Summary {
        messages: 1,
        bytes: 2 * LEN as u64,
        seconds: begin.elapsed().as_secs_f64(),
        invalid: 0,
    })
}
