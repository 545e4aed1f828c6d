// SPDX-License-Identifier: MIT OR Apache-2.0

//! A thread of the fuzzer: how it makes a command wrong, issues it, and judges the answer.

use super::dice::Dice;
use super::rings::Rings;
use super::world::{lock, remember, Count, Counts, Kind, Object, Open, Seat, World};
use crate::file::Command;
use crate::sys::hostile::Epoll;
use crate::sys::{abi, arg, bytes, value, Area, Mapping, Place, Plain, Wild, PAGE};
use nix::errno::Errno;
use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Instant;

/// Pages for structs and for the requests that they name.
pub const ARGS: usize = 8;
/// Pages for what is registered, and what the kernel puts completions into.
pub const DATA: usize = 32;
/// Most objects of a file that are kept.
const OBJECTS: usize = 56;
/// The longest wait that is asked for.
const WAIT_NS: u64 = 20_000_000;

/// Memory of a file.
pub struct Mapped {
    /// Where.
    pub map: Mapping,
    /// Of a completion queue, not of a buffer.
    pub is_ring: bool,
    /// Entries of the completion queue.
    pub entries: u32,
    /// It can be written.
    pub writable: bool,
    /// It can be read.
    pub readable: bool,
}

/// A thread.
pub struct Actor<'w> {
    /// What it shares with the others.
    pub world: &'w World,
    /// Which one it is.
    pub number: usize,
    /// Its decisions in this operation.
    pub dice: Dice,
    /// How seldom a struct is spoiled; 0: never.
    pub spoil: usize,
    /// In this operation, only structs are spoiled.
    pub careful: bool,
    /// Its io_uring; goes before the memory that its entries name.
    pub rings: Option<Rings>,
    /// What it has mapped.
    pub maps: Vec<Mapped>,
    /// Its eventfds.
    pub eventfds: Vec<OwnedFd>,
    /// Its epoll.
    pub epoll: Option<Epoll>,
    /// For structs, and what these name.
    pub args: Area,
    /// For what the device writes.
    pub data: Area,
    /// How its operations ended.
    pub counts: Counts,
    /// The name of the operation that it is at.
    pub doing: &'static str,
    /// When it began with that, or with the call after the last one.
    pub since: Instant,
}

/// What came of a command: its result, and its struct as it is afterwards.
pub type Answer<C> = (Result<(), Errno>, C);

impl<'w> Actor<'w> {
    /// A thread that has done nothing.
    pub fn new(world: &'w World, number: usize) -> Result<Self, Errno> {
        Ok(Self {
            world,
            number,
            dice: Dice::new(0, Vec::new()),
            spoil: 0,
            careful: false,
            rings: None,
            maps: Vec::new(),
            eventfds: Vec::new(),
            epoll: None,
            args: Area::new(ARGS)?,
            data: Area::new(DATA)?,
            counts: Counts::new(),
            doing: "nothing",
            since: Instant::now(),
        })
    }

    /// Counts an operation, and judges how it ended.
    pub fn note(&mut self, what: &'static str, result: Result<(), Errno>) {
        self.world.done.fetch_add(1, Ordering::Relaxed);
        let errno = result.map_or_else(|errno| errno, |()| Errno::UnknownErrno);
        let now = Instant::now();
        let took = now.duration_since(std::mem::replace(&mut self.since, now));
        *self.counts.entry((what, errno as i32)).or_default() += Count { calls: 1, took };
        if let Err(errno) = result {
            self.world.judge(what, errno, || self.example());
        }
    }

    /// The operation as a line of a program.
    pub fn example(&self) -> String {
        // Enough of them to know it by.
        let words = self
            .dice
            .drawn
            .iter()
            .take(64)
            .map(|word| format!(" {word:x}"));
        let words: String = words.collect();
        format!("thread {}: {}{words}", self.number, self.doing)
    }

    /// Something that must not be.
    pub fn finding(&self, what: String) {
        self.world.finding(what, || self.example());
    }

    /// A number below `count`; when this is to be a careful operation, that number itself.
    pub fn odd(&mut self, count: usize) -> usize {
        if self.careful {
            count
        } else {
            self.dice.below(count)
        }
    }

    /// A file.
    pub fn file(&mut self) -> Arc<Open> {
        let slot = self.dice.below(self.world.slots.len());
        self.world.file(slot)
    }

    /// Where a host is.
    pub fn seat(&self, host: usize) -> Seat {
        lock(&self.world.seats)[host % 2]
    }

    // --- objects -------------------------------------------------------------------

    /// An object of that kind.
    pub fn one(&mut self, open: &Open, kind: Kind) -> Option<Object> {
        let objects = lock(&open.objects);
        let list: Vec<_> = objects.iter().filter(|o| o.kind == kind).copied().collect();
        drop(objects);
        self.dice.pick(&list)
    }

    /// The handle of an object of that kind, or now and then of none.
    pub fn handle(&mut self, open: &Open, kind: Kind) -> u32 {
        match self.odd(24) {
            0 => self.dice.any32(),
            1 => {
                let stale = lock(&open.stale).clone();
                self.dice.pick(&stale).unwrap_or(0)
            }
            2 => {
                let objects = lock(&open.objects).clone();
                self.dice.pick(&objects).map_or(0, |object| object.handle)
            }
            3 => {
                let other = self.file();
                self.one(&other, kind).map_or(0, |object| object.handle)
            }
            4 => {
                let bit = self.dice.below(32);
                let right = self.one(open, kind).map_or(0, |object| object.handle);
                right ^ (1 << bit)
            }
            _ => self.one(open, kind).map_or(0, |object| object.handle),
        }
    }

    /// Notes an object that was made.
    pub fn made(&mut self, open: &Open, object: Object) {
        let mut objects = lock(&open.objects);
        let handle = object.handle;
        if handle == 0 || handle >> 31 != 0 {
            self.finding(format!("a handle of a {:?} is {handle:#x}", object.kind));
        }
        let twin = objects.iter().find(|other| other.handle == handle);
        if let Some(twin) = twin {
            self.finding(format!(
                "a {:?} has the handle of a {:?}",
                object.kind, twin.kind
            ));
        }
        objects.push(object);
        let too_many = objects.len() > OBJECTS;
        drop(objects);
        match object.kind {
            Kind::Qp => remember(&self.world.peers, (open.host, object.number), 64),
            Kind::Grant => {
                let key = (object.at, object.number, object.len);
                remember(&self.world.keys, key, 64);
            }
            _ => (),
        }
        if too_many {
            // The last ones first: the others need those before them.
            for _ in 0..OBJECTS / 4 {
                let Some(object) = lock(&open.objects).pop() else {
                    break;
                };
                self.destroy(open, object);
            }
        }
    }

    /// Destroys an object that was taken off the list; puts it back when that is refused, or when a
    /// spoiled struct named another object.
    pub fn destroy(&mut self, open: &Open, object: Object) {
        let arg = arg!(Destroy, handle = object.handle);
        let (result, sent) = self.cmd(open, arg);
        let other = sent.handle != object.handle;
        match result {
            Ok(()) if other => {
                let mut objects = lock(&open.objects);
                objects.retain(|other| other.handle != sent.handle);
                objects.push(object);
                remember(&open.stale, sent.handle, 32);
            }
            Ok(()) => {
                remember(&open.stale, object.handle, 32);
                let spoil = std::mem::take(&mut self.spoil);
                let again = self.cmd(open, arg).0;
                self.spoil = spoil;
                if again == Ok(()) {
                    self.finding(format!("a {:?} was destroyed twice", object.kind));
                }
            }
            Err(Errno::ENOENT | Errno::ENODEV | Errno::ENXIO) if !other => (),
            Err(_) => lock(&open.objects).push(object),
        }
    }

    /// Makes an object: `object` says what it is, from the struct.
    pub fn create<C: Command + Plain>(
        &mut self,
        open: &Open,
        arg: C,
        object: impl FnOnce(&C) -> Object,
    ) -> Option<Object> {
        let (result, out) = self.cmd(open, arg);
        result.ok()?;
        let object = object(&out);
        self.made(open, object);
        Some(object)
    }

    // --- commands --------------------------------------------------------------------

    /// Issues a command, with a struct that is spoiled now and then.
    pub fn cmd<C: Command + Plain>(&mut self, open: &Open, arg: C) -> Answer<C> {
        self.cmd_as(open, C::NAME, C::NR, arg)
    }

    /// The same, whatever comes of it.
    pub fn issue<C: Command + Plain>(&mut self, open: &Open, arg: C) {
        let _ = self.cmd(open, arg);
    }

    /// The same, as another command than the struct's.
    pub fn cmd_as<C: Command + Plain>(
        &mut self,
        open: &Open,
        what: &'static str,
        nr: u32,
        arg: C,
    ) -> Answer<C> {
        let mut raw = bytes(&arg);
        let mut offset = 0;
        let mut wild = None;
        if self.spoil != 0 && self.dice.one_in(self.spoil) {
            match self.dice.below(10) {
                0 => wild = self.dice.pick(&Wild::ALL),
                1 => offset = self.args.len() - 4 * self.dice.below(raw.len() / 4),
                2 => offset = self.dice.below(8),
                3 => self.spoil_size(&mut raw),
                4 | 5 => {
                    let at = 8 * self.dice.below(raw.len() / 8);
                    let word = self.dice.any64();
                    raw[at..at + 8].copy_from_slice(&word.to_ne_bytes());
                }
                _ => {
                    let at = 4 * self.dice.below(raw.len() / 4);
                    let word = self.dice.any32();
                    raw[at..at + 4].copy_from_slice(&word.to_ne_bytes());
                }
            }
            self.tame(nr, &mut raw);
        }
        self.args.put(offset, &raw);
        let place = wild.map_or(Place::In(&self.args, offset), Place::Wild);
        let result = open.fd.ioctl(nr, place);
        let whole = wild.is_none() && offset + raw.len() <= self.args.len();
        if whole {
            let after = self.args.get(offset, raw.len());
            // These say something when they fail as well: what is left of the time, for example.
            let may_say = matches!(
                nr,
                abi::IOC_SUBMIT | abi::IOC_CONN_WAIT | abi::IOC_GET_REQUEST | abi::IOC_QP_MODIFY
            );
            if result.is_err() && after != raw && !may_say && result != Err(Errno::EFAULT) {
                self.finding(format!("{what} wrote to its struct, and is {result:?}"));
            }
            raw = after;
        }
        if result == Err(Errno::ENODEV)
            && open.fd.poll_now().is_ok_and(|is| is & libc::POLLHUP == 0)
        {
            self.finding(format!("{what} is ENODEV, and the device is there"));
        }
        self.note(what, result);
        raw.resize(raw.len().max(size_of::<C>()), 0);
        (result, value(&raw))
    }

    /// Another size, and bytes behind the end that are zero or not.
    fn spoil_size(&mut self, raw: &mut Vec<u8>) {
        let size = raw.len() as u32;
        let other = match self.dice.below(4) {
            0 => self.dice.any32(),
            1 => self.dice.below(size as usize) as u32,
            _ => size + self.dice.below(64) as u32,
        };
        raw[..4].copy_from_slice(&other.to_ne_bytes());
        let len = (other as usize).clamp(raw.len(), PAGE + 64);
        let fill = if self.dice.one_in(3) {
            self.dice.word() as u8
        } else {
            0
        };
        raw.resize(len, fill);
    }

    /// Keeps what was spoiled from harming the fuzzer itself: long waits, much memory, and addresses
    /// of memory that is not meant for it.
    fn tame(&self, nr: u32, raw: &mut [u8]) {
        let mut change = |at: usize, how: &dyn Fn(u64) -> u64| {
            if let Some(Ok(word)) = raw.get(at..at + 8).map(<[u8; 8]>::try_from) {
                let word = how(u64::from_ne_bytes(word));
                raw[at..at + 8].copy_from_slice(&word.to_ne_bytes());
            }
        };
        let wait = |wait: u64| wait % WAIT_NS;
        let address = |address: u64| {
            let own = self.args.has(address) || self.data.has(address) || self.is_shared(address);
            if own || address >> 47 != 0 {
                address
            } else {
                address % PAGE as u64
            }
        };
        // Peers write to what is registered.
        let pinned = |at: u64| {
            if self.data.has(at) || at >> 47 != 0 {
                at
            } else {
                at % PAGE as u64
            }
        };
        const MOST: u64 = 1 << 22;
        let memory = |bytes: u64| match bytes {
            MOST..=0x4000_0000 => bytes % MOST,
            _ => bytes,
        };
        match nr {
            abi::IOC_SUBMIT => {
                change(offset_of!(abi::Submit, timeout_ns), &wait);
                change(offset_of!(abi::Submit, wrs), &address);
            }
            abi::IOC_GET_REQUEST => change(offset_of!(abi::GetRequest, timeout_ns), &wait),
            abi::IOC_CONN_WAIT => change(offset_of!(abi::ConnWait, timeout_ns), &wait),
            abi::IOC_BUFFER_CREATE => change(offset_of!(abi::BufferCreate, length), &memory),
            abi::IOC_BUFFER_REGISTER => change(offset_of!(abi::BufferRegister, addr), &pinned),
            abi::IOC_DEVICE_LIST => change(offset_of!(abi::DeviceList, entries), &address),
            abi::IOC_GID_QUERY => change(offset_of!(abi::GidQuery, entries), &address),
            _ => (),
        }
    }

    fn is_shared(&self, address: u64) -> bool {
        let base = self.world.shared.at(0);
        (base..base + PAGE as u64).contains(&address)
    }

    /// A wait of at most some milliseconds.
    pub fn wait(&mut self) -> u64 {
        match self.dice.below(4) {
            0 => 0,
            1 => 1,
            _ => self.dice.below(8) as u64 * 1_000_000,
        }
    }
}
