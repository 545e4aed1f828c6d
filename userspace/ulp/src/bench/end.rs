// SPDX-License-Identifier: MIT OR Apache-2.0

//! The interface of the back ends, which the loops in [`super::loops`] use.
//!
//! An end belongs to one thread. It has a buffer, queue pairs that reach the peer's buffer, and two
//! completion queues. Requests name both buffers by offset. Every back end copies a request once,
//! into its own form.

use super::config::{Config, Layout};
use super::wire::EndAddress;
use crate::args::DeviceArg;
use anyhow::{anyhow, bail, Error, Result};
use clap::Args;
use rust_ulp::Device;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// The port and the index of its GID for queue pairs, if they are not the default ones.
pub type PortGid = Option<(u32, u8)>;

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Write,
    Read,
    Send,
    Recv,
    /// Adds `args.0`.
    FetchAdd,
    /// Stores `args.1` if the value is `args.0`.
    CmpSwap,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    pub kind: Kind,
    /// The number of the queue pair, from 0.
    pub qp: u32,
    /// Offsets into this end's buffer and the peer's.
    pub local: u64,
    pub remote: u64,
    pub len: u32,
    pub signaled: bool,
    pub inline: bool,
    pub imm: Option<u32>,
    pub args: (u64, u64),
    /// The identifier that the completion carries.
    pub id: u64,
}

impl Op {
    pub fn new(kind: Kind, qp: u64, local: u64, remote: u64, len: u32) -> Self {
        Self {
            kind,
            // Config::check() limits the number of queue pairs.
            qp: qp as u32,
            local,
            remote,
            len,
            signaled: true,
            inline: false,
            imm: None,
            args: (0, 0),
            id: 0,
        }
    }
}

/// A request that succeeded.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    pub id: u64,
    pub imm: Option<u32>,
    /// With a shared receive queue, the index of the queue pair at which the message arrived.
    pub qp: u32,
}

impl Done {
    pub fn new(id: u64, imm: Option<u32>) -> Self {
        Self { id, imm, qp: 0 }
    }
}

/// One of the two completion queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    Send,
    Recv,
}

/// The state that the threads of a run share.
#[derive(Debug)]
pub struct Control {
    /// Set by Ctrl-C: the row ends early.
    pub stop: Arc<AtomicBool>,
    /// Set when the run has failed: all threads stop waiting.
    pub abort: AtomicBool,
    /// The threads that have received the last message on each queue pair.
    pub over: AtomicU64,
    /// Whether the peer has received the last message of every queue pair.
    pub heard: AtomicBool,
    pub timeout: Duration,
}

impl Control {
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Returns an error once the run has failed.
    pub fn check(&self) -> Result<()> {
        if self.abort.load(Ordering::Relaxed) {
            bail!(Aborted);
        }
        Ok(())
    }

    /// Stops the other threads if the work of one has failed.
    pub fn guard<T>(&self, result: Result<T>) -> Result<T> {
        if result.is_err() {
            self.abort.store(true, Ordering::Relaxed);
        }
        result
    }

    /// Polls until `there` returns true.
    pub fn spin(&self, what: &str, mut there: impl FnMut() -> Result<bool>) -> Result<()> {
        let mut began = None;
        for i in 1_u64.. {
            if there()? {
                break;
            }
            std::hint::spin_loop();
            if i % 1024 == 0 {
                self.check()?;
                if began.get_or_insert_with(Instant::now).elapsed() > self.timeout {
                    bail!("{what}: nothing for {:?}", self.timeout);
                }
            }
        }
        Ok(())
    }
}

/// The error of a thread that stopped because another thread or the peer failed.
#[derive(Debug)]
pub struct Aborted;

impl std::fmt::Display for Aborted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("stopped because another thread failed")
    }
}

impl std::error::Error for Aborted {}

/// Joins threads, and returns their results, or the failure that caused the others.
pub fn join<T>(threads: Vec<ScopedJoinHandle<'_, Result<T>>>) -> Result<Vec<T>> {
    let (mut all, mut failure) = (Vec::new(), None);
    for thread in threads {
        match thread
            .join()
            .unwrap_or_else(|_| Err(anyhow!("a thread panicked")))
        {
            Ok(result) => all.push(result),
            Err(error) if failure.as_ref().is_none_or(|e: &Error| e.is::<Aborted>()) => {
                failure = Some(error);
            }
            Err(_) => {}
        }
    }
    failure.map_or(Ok(all), Err)
}

/// The options that choose the device, with perftest's letters.
#[derive(Clone, Debug, Args)]
pub struct DeviceOptions {
    #[command(flatten)]
    pub name: DeviceArg,
    /// Port of the device [default: the port of the default GID]
    #[arg(short, long, value_name = "N")]
    pub ib_port: Option<u8>,
    /// Index of the GID [default: RoCE v2, IPv4]
    #[arg(short = 'x', long, value_name = "N")]
    pub gid_index: Option<u8>,
    /// TCP port of the server.
    #[arg(short, long, default_value_t = 18515)]
    pub port: u16,
    /// The address of this host to connect from; the route has it if it is [`None`].
    #[arg(skip)]
    pub source: Option<IpAddr>,
}

/// A measurement, as one side sees it.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    pub config: &'a Config,
    pub device: &'a DeviceOptions,
    /// Set by Ctrl-C.
    pub stop: &'a Arc<AtomicBool>,
}

/// The parameters of the ends of a row, one for each thread.
#[derive(Debug)]
pub struct Task<'a> {
    pub device: &'a DeviceOptions,
    /// The device that the threads share, once one of them has opened it.
    pub shared: OnceLock<(Device, PortGid)>,
    pub config: &'a Config,
    pub layout: Layout,
    pub control: Arc<Control>,
}

impl<'a> Task<'a> {
    pub fn new(run: Run<'a>, size: u32) -> Self {
        Self {
            device: run.device,
            shared: OnceLock::new(),
            config: run.config,
            layout: Layout::new(run.config, size),
            control: Arc::new(Control {
                stop: run.stop.clone(),
                abort: AtomicBool::new(false),
                over: AtomicU64::new(0),
                heard: AtomicBool::new(false),
                timeout: run.config.timeout(),
            }),
        }
    }
}

/// One end: [`super::call::CallEnd`], [`super::uring::UringEnd`], [`super::verbs::VerbsEnd`].
pub trait End: Send + Sized {
    /// Creates all objects, up to queue pairs that accept receives.
    fn new(task: &Task<'_>) -> Result<Self>;

    /// Returns the address that the other side needs.
    fn address(&self) -> EndAddress;

    /// Connects its queue pairs to the peer's, of which there are as many, one by one. Called once.
    fn connect(&mut self, peer: &EndAddress) -> Result<()>;

    /// Posts requests. Before [`Self::connect`] these can only be receives.
    fn post(&mut self, ops: &[Op]) -> Result<()>;

    /// Posts requests, then sleeps until `queue` has a completion. Some back ends wait for `min` of
    /// them.
    fn post_and_wait(&mut self, ops: &[Op], queue: Queue, min: u32) -> Result<()>;

    /// Takes completions without sleeping, and returns how many were appended.
    ///
    /// A completion with an error is an error.
    fn reap(&mut self, queue: Queue, done: &mut Vec<Done>) -> Result<usize>;

    /// Returns the byte at an offset of the buffer.
    fn load(&self, offset: u64) -> Result<u8>;

    /// Sets the byte at an offset of the buffer.
    fn store(&self, offset: u64, byte: u8) -> Result<()>;
}
