// SPDX-License-Identifier: MIT OR Apache-2.0
#![deny(missing_docs, unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

//! A key-value store in the memory of servers that take no part: a get is RDMA Reads, a put is an
//! RDMA Write and compare-and-swaps.
//!
//! ```no_run
//! use ulp_kv::{Options, Store};
//!
//! fn main() -> ulp_kv::Result<()> {
//!     let mut store = Store::connect(&["10.9.0.2:7170"], Options::default())?;
//!     store.put(b"name", b"value")?;
//!     assert_eq!(store.get(b"name")?.as_deref(), Some(&b"value"[..]));
//!     Ok(())
//! }
//! ```
//!
//! Keys have 1 to 255 bytes, values at most 64 KiB. With several servers a key is at one of them,
//! which its rendezvous hash names. Each key is linearizable: a get gives what the last put before
//! it, or one at the same time, has put. What readers see is whole: a record has its version at the
//! head and at the tail, and a checksum over all of it. A client that dies, or is cut off, while it
//! changes something changes it wholly or not at all. `docs/kv.md` has the protocol and why it is
//! right.
//!
//! A [`Store`] is one client: a thread that wants to do things at the same time has another.

mod control;
mod error;
pub mod history;
mod layout;
mod link;
mod server;
pub mod tcp;

pub use error::{Error, Result};
pub use layout::{Geometry, MAX_KEY, MAX_MEMORY, MAX_VALUE};
pub use server::{Server, ServerOptions, ServerStats};

use hrw_hash::HrwNodes;
use link::{Link, LANES};
use rust_ulp::Device;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::time::Duration;

/// How a client is to be.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The device; the default one unless said.
    pub device: Option<String>,
    /// How long one and the same client may have a lock before this one complains to the server, by
    /// this one's clock: 2 s. What is right does not depend on it; a client that is cut off without
    /// need connects again.
    pub lease: Duration,
    /// How long others may be in the way of one operation before it fails as [`Error::Contended`]:
    /// 60 s.
    pub patience: Duration,
    /// Whether the client verifies records before it returns their values.
    verify: bool,
    /// How long a reader sleeps between the reads of a slot and of its record.
    slow: Duration,
}

#[cfg(feature = "test-hooks")]
impl Options {
    /// Makes the client return values without verification, so that a test sees torn ones.
    pub fn unverified(&mut self) {
        self.verify = false;
    }

    /// Makes readers sleep between the reads of a slot and of its record, so that they meet more
    /// writers.
    pub fn slow(&mut self, delay: Duration) {
        self.slow = delay;
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            device: None,
            lease: Duration::from_secs(2),
            patience: Duration::from_secs(60),
            verify: true,
            slow: Duration::ZERO,
        }
    }
}

/// What a client has met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Batches of requests that were waited for.
    pub round_trips: u64,
    /// Records that were overwritten while they were read, and were read again.
    pub torn: u64,
    /// Locks that were not as they were when they were seen last.
    pub lock_misses: u64,
    /// Clients that others were cut off for.
    pub complaints: u64,
    /// Connections that were made anew.
    pub reconnects: u64,
}

/// A client of one server or of several.
///
/// When an operation fails with [`Error::Gone`], the next one that is for that server connects to
/// it again. A server that was started anew has nothing.
pub struct Store {
    device: Device,
    options: Options,
    names: HrwNodes<String>,
    links: HashMap<String, Option<Link>>,
    /// Of links that are gone.
    past: Stats,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("links", &self.links)
            .finish_non_exhaustive()
    }
}

/// A key for the hash that names its server. All machines hash the same bytes: those of a slice
/// where `usize` has 64 bits.
struct Placed<'a>(&'a [u8]);

impl Hash for Placed<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&(self.0.len() as u64).to_le_bytes());
        state.write(self.0);
    }
}

fn check(key: &[u8]) -> Result<()> {
    match key.len() {
        1..=MAX_KEY => Ok(()),
        len => Err(Error::Key { len }),
    }
}

impl Store {
    /// Connects to servers, each HOST:PORT. All clients have to give the same names, in any order:
    /// where a key is depends on them.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`], [`Error::Corrupt`], [`Error::Refused`], [`Error::Rdma`],
    /// [`Error::NoServer`].
    pub fn connect<S: AsRef<str>>(servers: &[S], options: Options) -> Result<Self> {
        let device = match &options.device {
            Some(name) => Device::open(name)?,
            None => Device::open_default()?,
        };
        let names: Vec<String> = servers
            .iter()
            .map(|name| name.as_ref().to_owned())
            .collect();
        if names.is_empty() {
            return Err(Error::NoServer);
        }
        let mut store = Self {
            links: names.iter().map(|name| (name.clone(), None)).collect(),
            names: HrwNodes::new(names.iter().cloned()),
            device,
            options,
            past: Stats::default(),
        };
        for name in &names {
            store.link(name)?;
        }
        // Those were the first.
        store.past.reconnects = 0;
        Ok(store)
    }

    /// The server of a key.
    ///
    /// # Errors
    ///
    /// [`Error::Key`].
    pub fn server_of(&self, key: &[u8]) -> Result<&str> {
        check(key)?;
        let placed = Placed(key);
        let mut sorted = self.names.sorted(&placed);
        sorted.next().map(String::as_str).ok_or(Error::NoServer)
    }

    fn link(&mut self, name: &str) -> Result<&mut Link> {
        let slot = self.links.get_mut(name).ok_or(Error::NoServer)?;
        if slot.as_ref().is_some_and(|link| link.is_broken) {
            if let Some(link) = slot.take() {
                self.past = sum(self.past, link.stats);
            }
        }
        match slot {
            Some(link) => Ok(link),
            None => {
                let link = Link::connect(name, &self.device, &self.options)?;
                self.past.reconnects += 1;
                Ok(slot.insert(link))
            }
        }
    }

    fn link_of(&mut self, key: &[u8]) -> Result<&mut Link> {
        let name = self.server_of(key)?.to_owned();
        self.link(&name)
    }

    /// The value of a key, if it has one.
    ///
    /// # Errors
    ///
    /// [`Error::Key`]; [`Error::Gone`] if the server is gone, and the next time
    /// [`Error::Unreachable`]; [`Error::Corrupt`], [`Error::Contended`], [`Error::Rdma`].
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.link_of(key)?.get(key)
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    ///
    /// As [`Self::get`]; [`Error::TooLarge`], [`Error::Full`]. After those of [`Error::is_unknown`]
    /// the value may have been set.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.link_of(key)?.put(key, value)
    }

    /// Takes a key away. Whether it was there.
    ///
    /// # Errors
    ///
    /// As [`Self::put`].
    pub fn delete(&mut self, key: &[u8]) -> Result<bool> {
        self.link_of(key)?.delete(key)
    }

    /// The values of many keys, in their order, by few round trips. Each is as [`Self::get`] would
    /// give it at some time during the call; all of them together are no snapshot.
    ///
    /// # Errors
    ///
    /// As [`Self::get`].
    pub fn get_many<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>> {
        let mut values = vec![None; keys.len()];
        let mut by_server: HashMap<String, Vec<usize>> = HashMap::new();
        for (n, key) in keys.iter().enumerate() {
            let server = self.server_of(key.as_ref())?.to_owned();
            by_server.entry(server).or_default().push(n);
        }
        for (server, indices) in by_server {
            for some in indices.chunks(LANES) {
                let wanted: Vec<&[u8]> = some
                    .iter()
                    .filter_map(|n| keys.get(*n))
                    .map(AsRef::as_ref)
                    .collect();
                let found = self.link(&server)?.get_many(&wanted)?;
                for (n, value) in some.iter().zip(found) {
                    if let Some(to) = values.get_mut(*n) {
                        *to = value;
                    }
                }
            }
        }
        Ok(values)
    }

    /// Calls `each` with every key and the length of its value. Keys that come or go meanwhile may
    /// be among them or not.
    ///
    /// # Errors
    ///
    /// As [`Self::get`].
    pub fn list(&mut self, mut each: impl FnMut(&[u8], usize)) -> Result<()> {
        let mut names: Vec<String> = self.links.keys().cloned().collect();
        names.sort();
        names
            .iter()
            .try_for_each(|name| self.link(name)?.list(&mut each))
    }

    /// Takes the lock of a key's bucket and keeps it, to test how other clients recover.
    ///
    /// # Errors
    ///
    /// As [`Self::put`].
    #[cfg(feature = "test-hooks")]
    pub fn hold(&mut self, key: &[u8]) -> Result<()> {
        self.link_of(key)?.hold(key)
    }

    /// Whether a key's server has hung up on this client.
    ///
    /// # Errors
    ///
    /// [`Error::Key`].
    pub fn is_over(&self, key: &[u8]) -> Result<bool> {
        let link = self.links.get(self.server_of(key)?);
        Ok(link.and_then(Option::as_ref).is_none_or(Link::is_over))
    }

    /// Each server's name, the number of its run, and its table.
    pub fn servers(&self) -> impl Iterator<Item = (&str, u64, &Geometry)> {
        let links = self.links.iter();
        links.filter_map(|(name, link)| {
            link.as_ref()
                .map(|link| (name.as_str(), link.run, link.table()))
        })
    }

    /// What it has met.
    pub fn stats(&self) -> Stats {
        let links = self.links.values().flatten();
        links.fold(self.past, |all, link| sum(all, link.stats))
    }
}

fn sum(a: Stats, b: Stats) -> Stats {
    Stats {
        round_trips: a.round_trips + b.round_trips,
        torn: a.torn + b.torn,
        lock_misses: a.lock_misses + b.lock_misses,
        complaints: a.complaints + b.complaints,
        reconnects: a.reconnects + b.reconnects,
    }
}

/// What a store does, whatever carries it.
pub trait Kv {
    /// As [`Store::get`].
    ///
    /// # Errors
    ///
    /// As [`Store::get`].
    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>>;
    /// As [`Store::put`].
    ///
    /// # Errors
    ///
    /// As [`Store::put`].
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;
    /// As [`Store::delete`].
    ///
    /// # Errors
    ///
    /// As [`Store::delete`].
    fn delete(&mut self, key: &[u8]) -> Result<bool>;
}

impl Kv for Store {
    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Store::get(self, key)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Store::put(self, key, value)
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool> {
        Store::delete(self, key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is hashed, in no form that a machine chooses.
    #[derive(Default)]
    struct Bytes(Vec<u8>);

    impl Hasher for Bytes {
        fn write(&mut self, bytes: &[u8]) {
            self.0.extend(bytes);
        }
        fn write_usize(&mut self, _: usize) {
            panic!("its size depends on the machine");
        }
        fn finish(&self) -> u64 {
            0
        }
    }

    #[test]
    fn every_machine_hashes_the_same_bytes() {
        let mut bytes = Bytes::default();
        Placed(b"name").hash(&mut bytes);
        assert_eq!(bytes.0, b"\x04\0\0\0\0\0\0\0name");
    }

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn keys_stay_where_they_were() {
        let names = ["10.9.0.1:7170", "10.9.0.2:7170", "10.9.0.3:7170"].map(str::to_owned);
        let nodes = HrwNodes::new(names.iter().cloned());
        for n in 0..100 {
            let key = format!("key {n}");
            let slice = key.as_bytes();
            let then: Vec<_> = nodes.sorted(&slice).collect();
            let placed = Placed(key.as_bytes());
            let now: Vec<_> = nodes.sorted(&placed).collect();
            assert_eq!(now, then);
        }
    }
}
