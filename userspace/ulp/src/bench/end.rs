// SPDX-License-Identifier: MIT OR Apache-2.0

//! One end of a measurement, whatever carries it: what the loops in [`super::loops`] are written over.
//!
//! An end belongs to one thread. It has a buffer, queue pairs that reach the peer's buffer, and two
//! completion queues. Requests name both buffers by offset. Posting copies a request once into the form
//! that the back end wants, for all of them alike.

use super::config::{Config, Layout};
use super::wire::EndAddress;
use anyhow::{bail, Result};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Write,
    Read,
    Send,
    Recv,
    /// Adds `args.0`.
    FetchAdd,
    /// Puts `args.1` where `args.0` is.
    CmpSwap,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    pub kind: Kind,
    /// Which queue pair, from 0.
    pub qp: u32,
    /// Offsets into this end's buffer and the peer's.
    pub local: u64,
    pub remote: u64,
    pub len: u32,
    pub signaled: bool,
    pub inline: bool,
    pub imm: Option<u32>,
    pub args: (u64, u64),
    /// Comes back in the completion.
    pub id: u64,
}

impl Op {
    pub fn new(kind: Kind, qp: u64, local: u64, remote: u64, len: u32) -> Self {
        Self {
            kind,
            // At most as many as Config::check() allows.
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
}

/// Which of the two completion queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    Send,
    Recv,
}

/// What threads of a run share.
#[derive(Debug)]
pub struct Control {
    /// Set by Ctrl-C: the row ends as if it were over.
    pub stop: Arc<AtomicBool>,
    /// The run came to nothing: whoever waits stops waiting.
    pub abort: AtomicBool,
    /// Messages so far, for the progress bar.
    pub progress: AtomicU64,
    pub timeout: Duration,
}

impl Control {
    pub fn new(stop: &Arc<AtomicBool>, timeout: Duration) -> Arc<Self> {
        Arc::new(Self {
            stop: stop.clone(),
            abort: AtomicBool::new(false),
            progress: AtomicU64::new(0),
            timeout,
        })
    }

    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// An error once the run came to nothing.
    pub fn check(&self) -> Result<()> {
        if self.abort.load(Ordering::Relaxed) {
            bail!(Aborted);
        }
        Ok(())
    }

    /// Looks until `there` says so.
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

/// Not a failure of its own: another thread or the peer has the reason.
#[derive(Debug)]
pub struct Aborted;

impl std::fmt::Display for Aborted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("given up")
    }
}

impl std::error::Error for Aborted {}

/// Which device, and what of it; what is not said is chosen.
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions {
    pub name: Option<String>,
    pub port: Option<u8>,
    pub gid_index: Option<u8>,
}

/// What an end is made for.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    pub device: &'a DeviceOptions,
    pub config: &'a Config,
    pub layout: Layout,
    pub control: &'a Arc<Control>,
}

/// One end: [`super::call::CallEnd`], [`super::uring::UringEnd`], [`super::verbs::VerbsEnd`].
pub trait End: Send + Sized {
    /// Makes everything up to queue pairs that take receives.
    fn new(plan: &Plan<'_>) -> Result<Self>;

    /// What the other side has to know.
    fn address(&self) -> EndAddress;

    /// Connects its queue pairs to the peer's, one by one. Called once.
    fn connect(&mut self, peer: &EndAddress) -> Result<()>;

    /// Posts requests. Before [`Self::connect`] these can only be receives.
    fn post(&mut self, ops: &[Op]) -> Result<()>;

    /// Posts requests, then sleeps until there is something to reap from `queue`; where the back end can,
    /// until there is `min` of it.
    fn post_and_wait(&mut self, ops: &[Op], queue: Queue, min: u32) -> Result<()>;

    /// Takes what there is without sleeping, and returns how many were appended. All must have
    /// succeeded.
    fn reap(&mut self, queue: Queue, done: &mut Vec<Done>) -> Result<usize>;

    /// The byte at an offset of its buffer.
    fn load(&self, offset: u64) -> Result<u8>;

    /// Sets the byte at an offset.
    fn store(&self, offset: u64, byte: u8) -> Result<()>;

    /// Copies bytes out.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()>;

    /// Copies bytes in.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()>;
}
