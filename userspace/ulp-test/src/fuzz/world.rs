// SPDX-License-Identifier: MIT OR Apache-2.0

//! What all threads share: open files and their objects, what peers may know of each other, and
//! what was counted and found.

use super::corpus::Corpus;
use super::errnos;
use crate::report::{because, Outcome};
use crate::sys::hostile::thread_id;
use crate::sys::{enter_net, Area, Fd, Racing};
use nix::errno::Errno;
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a handle is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Pd,
    Cq,
    Qp,
    Buffer,
    Grant,
    Ah,
    Srq,
    Listener,
    Request,
    Conn,
}

/// An object of a file, as far as it is worth knowing.
#[derive(Clone, Copy, Debug)]
pub struct Object {
    /// What it is.
    pub kind: Kind,
    /// Its handle.
    pub handle: u32,
    /// Where it is mapped, or its remote address.
    pub at: u64,
    /// Bytes.
    pub len: u64,
    /// Of a queue pair its number, of a grant its key, of a queue its entries.
    pub number: u32,
}

/// An open file.
#[derive(Debug)]
pub struct Open {
    /// The file.
    pub fd: Fd,
    /// Which of the two hosts has opened it.
    pub host: usize,
    /// Its objects; a file that was dup()ed shares them.
    pub objects: Arc<Mutex<Vec<Object>>>,
    /// Handles of what was destroyed.
    pub stale: Arc<Mutex<Vec<u32>>>,
}

/// Where a host is on the network.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seat {
    /// The port that ATTACH named.
    pub port: u32,
    /// The index of its GID.
    pub gid_index: u32,
    /// The GID.
    pub gid: [u8; 16],
}

/// What a thread is at.
#[derive(Debug, Default)]
pub struct Pulse {
    /// Milliseconds since the beginning at which its operation began, or 0.
    since: AtomicU64,
    /// Number of the operation's name.
    what: AtomicUsize,
    /// Number of the thread.
    thread: AtomicI32,
}

/// Calls that ended alike.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    /// How many.
    pub calls: u64,
    /// How long they took, with what was done to make them.
    pub took: Duration,
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.calls += other.calls;
        self.took += other.took;
    }
}

/// How often something ended like that: by what, and the errno or 0.
pub type Counts = BTreeMap<(&'static str, i32), Count>;

/// A finding: how often, and the first time.
pub type Findings = BTreeMap<String, (u64, String)>;

/// All of it.
pub struct World {
    /// The open files.
    pub slots: Vec<Mutex<Arc<Open>>>,
    /// Keys that were granted: address, key, bytes.
    pub keys: Mutex<Vec<(u64, u32, u64)>>,
    /// Queue pairs that there are: host and number.
    pub peers: Mutex<Vec<(usize, u32)>>,
    /// Where the hosts are.
    pub seats: Mutex<[Seat; 2]>,
    /// Memory that all threads write over while the kernel reads requests there.
    pub shared: Racing<'static>,
    /// Operations done.
    pub done: AtomicU64,
    /// It is over.
    pub stop: AtomicBool,
    /// Programs that reach what others do not.
    pub corpus: Mutex<Corpus>,
    findings: Mutex<Findings>,
    pulses: Vec<Pulse>,
    began: Instant,
    names: [Option<File>; 2],
    here: File,
}

/// The lock, whatever became of who had it.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the last of them.
pub fn remember<T>(list: &Mutex<Vec<T>>, item: T, most: usize) {
    let mut list = lock(list);
    if list.len() >= most {
        list.remove(0);
    }
    list.push(item);
}

impl World {
    /// With `files` files for each host, none of them attached, for `threads` threads.
    pub fn new(files: usize, threads: usize) -> Outcome<Self> {
        let name = |name: &str| File::open(format!("/run/netns/{name}")).ok();
        let area = Area::new(1).map_err(because("mapping memory"))?;
        let mut world = Self {
            slots: Vec::new(),
            keys: Mutex::default(),
            peers: Mutex::default(),
            seats: Mutex::default(),
            shared: Racing::new(Box::leak(Box::new(area))),
            done: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            corpus: Mutex::default(),
            findings: Mutex::default(),
            pulses: (0..threads).map(|_| Pulse::default()).collect(),
            began: Instant::now(),
            names: [name("h1"), name("h2")],
            here: File::open("/proc/thread-self/ns/net").map_err(because("this namespace"))?,
        };
        for number in 0..2 * files {
            let open = world.open(number % 2).map_err(because("opening"))?;
            world.slots.push(Mutex::new(Arc::new(open)));
        }
        Ok(world)
    }

    /// Opens the device's file as that host.
    pub fn open(&self, host: usize) -> std::io::Result<Open> {
        let name = self.names[host % 2].as_ref();
        if let Some(name) = name {
            enter_net(name)?;
        }
        let fd = Fd::open();
        if name.is_some() {
            enter_net(&self.here)?;
        }
        let fd = fd?;
        fd.never_block()?;
        Ok(Open {
            fd,
            host: host % 2,
            objects: Arc::default(),
            stale: Arc::default(),
        })
    }

    /// A file.
    pub fn file(&self, slot: usize) -> Arc<Open> {
        lock(&self.slots[slot % self.slots.len()]).clone()
    }

    /// Puts a file in place of another.
    pub fn replace(&self, slot: usize, open: Open) {
        let new = Arc::new(open);
        let old = std::mem::replace(&mut *lock(&self.slots[slot % self.slots.len()]), new);
        // Outside the lock: the last one who has it closes it.
        drop(old);
    }

    /// Thread `number` begins operation `what`; or is done with it.
    pub fn pulse(&self, number: usize, what: Option<usize>) {
        let pulse = &self.pulses[number];
        let since = what.map_or(0, |_| self.began.elapsed().as_millis() as u64 + 1);
        pulse.what.store(what.unwrap_or(0), Ordering::Relaxed);
        pulse.thread.store(thread_id(), Ordering::Relaxed);
        pulse.since.store(since, Ordering::Release);
    }

    /// The threads whose operation has lasted longer than `millis`: number, operation, and of the
    /// kernel's thread.
    pub fn late(&self, millis: u64) -> Vec<(usize, usize, i32)> {
        let now = self.began.elapsed().as_millis() as u64;
        let late = self.pulses.iter().enumerate().filter(|(_, pulse)| {
            let since = pulse.since.load(Ordering::Acquire);
            since != 0 && now > since + millis
        });
        let load = |(number, pulse): (usize, &Pulse)| {
            let what = pulse.what.load(Ordering::Relaxed);
            (number, what, pulse.thread.load(Ordering::Relaxed))
        };
        late.map(load).collect()
    }

    /// Something that must not be.
    pub fn finding(&self, what: String, example: impl FnOnce() -> String) {
        let mut findings = lock(&self.findings);
        let entry = findings.entry(what).or_insert_with(|| (0, example()));
        entry.0 += 1;
    }

    /// All that was found.
    pub fn findings(&self) -> Findings {
        lock(&self.findings).clone()
    }

    /// Whether that end of a call is allowed; else it is a finding.
    pub fn judge(&self, what: &str, errno: Errno, example: impl FnOnce() -> String) {
        if !errnos::is_documented(what, errno) {
            self.finding(
                format!("{what} is {errno:?}, which is not documented"),
                example,
            );
        }
    }
}
