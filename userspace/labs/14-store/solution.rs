// SPDX-License-Identifier: MIT OR Apache-2.0
//? starter fails: torn

//! Lab 14: a client of a store that lies in a peer's memory.
//!
//!     main DEVICE ADDRESS:PORT

use lab::{Result, Wire, LONG};
use rust_ulp::qp::Rc;
use rust_ulp::wr::{CompareSwap, Read, Write};
use rust_ulp::{Buffer, Cq, Device, Qp, RemoteSlice};
use std::sync::atomic::Ordering;

/// A slot: its version, odd while somebody changes it, the length of its value, the value.
const LENGTH: usize = 8;
const VALUE: usize = 16;
const ROOM: usize = 4096;
const SLOT: usize = VALUE + ROOM;
/// From one slot to the next.
const STRIDE: u64 = 8192;
/// Where versions come to in the buffer, behind a copy of a slot.
const VERSION: usize = 8192;

fn main() {
    lab::run(work)
}

struct Store {
    qp: Qp<Rc>,
    cq: Cq,
    /// A copy of a slot, and a version.
    buf: Buffer,
}

impl Store {
    /// Reads a peer's memory to `at` in the buffer.
    fn fetch(&self, from: RemoteSlice, at: usize) -> Result<()> {
        let to = self.buf.slice(at..at + from.len() as usize)?;
        self.qp.post(Read::new(from, to))?;
        self.cq.wait(LONG)?.check()?;
        Ok(())
    }

    /// Writes what is at `at` in the buffer to a peer's memory. When this returns, it has arrived.
    fn store(&self, at: usize, to: RemoteSlice) -> Result<()> {
        let from = self.buf.slice(at..at + to.len() as usize)?;
        self.qp.post(Write::new(from, to))?;
        self.cq.wait(LONG)?.check()?;
        Ok(())
    }

    /// The version of a slot, by a Read of its own.
    fn version(&self, slot: RemoteSlice) -> Result<u64> {
        self.fetch(slot.slice(..8)?, VERSION)?;
        Ok(self.buf.load_u64(VERSION, Ordering::Acquire)?)
    }

    fn set_version(&self, slot: RemoteSlice, version: u64) -> Result<()> {
        self.buf.store_u64(VERSION, version, Ordering::Release)?;
        self.store(VERSION, slot.slice(..8)?)
    }

    /// Puts the version `new` in place of `old`, if that is there. What was there.
    fn swap(&self, slot: RemoteSlice, old: u64, new: u64) -> Result<u64> {
        let result = self.buf.slice(VERSION..VERSION + 8)?;
        let swap = CompareSwap::new(slot.slice(..8)?, old, new, result);
        self.qp.post(swap)?;
        self.cq.wait(LONG)?.check()?;
        Ok(self.buf.load_u64(VERSION, Ordering::Acquire)?)
    }

    /// Copies a slot into the buffer, as it was at one time. The length of its value.
    fn get(&self, slot: RemoteSlice) -> Result<usize> {
        // learner 1: the owner changes the slot while you read it: how do you know that it did not?
        //? self.fetch(slot, 0)?;
        loop {
            let before = self.version(slot)?;
            self.fetch(slot, 0)?;
            if before % 2 == 0 && self.version(slot)? == before {
                break;
            }
        }
        // end 1
        Ok(self.buf.load_u64(LENGTH, Ordering::Acquire)? as usize)
    }

    /// Makes the version odd, which keeps all others from changing the slot. What it was before.
    fn lock(&self, slot: RemoteSlice) -> Result<u64> {
        // learner 2: others want the same, and one of you may have it
        //? let version = self.version(slot)?;
        //? self.set_version(slot, version + 1)?;
        //? Ok(version)
        loop {
            let version = self.version(slot)?;
            if version % 2 == 0 && self.swap(slot, version, version + 1)? == version {
                return Ok(version);
            }
        }
        // end 2
    }

    /// Puts a value of `len` bytes, which is in its place in the buffer, into the slot.
    fn put(&self, slot: RemoteSlice, len: usize) -> Result<()> {
        let version = self.lock(slot)?;
        self.buf.store_u64(LENGTH, len as u64, Ordering::Release)?;
        let value = slot.slice(LENGTH as u64..(VALUE + len) as u64)?;
        // learner 3: the value, and the next even version: which one first?
        //? let _ = (value, version);
        self.store(LENGTH, value)?;
        self.set_version(slot, version + 2)?;
        // end 3
        Ok(())
    }

    /// Makes a slot empty: its length is 0.
    fn delete(&self, slot: RemoteSlice) -> Result<()> {
        // learner 4: whoever reads meanwhile gets all of the value, or nothing
        //? let _ = slot;
        let version = self.lock(slot)?;
        self.buf.store_u64(LENGTH, 0, Ordering::Release)?;
        self.store(LENGTH, slot.slice(LENGTH as u64..VALUE as u64)?)?;
        self.set_version(slot, version + 2)?;
        // end 4
        Ok(())
    }
}

fn work(args: &[&str]) -> Result<()> {
    let [device, addr] = *args else {
        return Err("usage: main DEVICE ADDRESS:PORT".into());
    };
    let mut wire = Wire::connect(addr)?;
    let peer = wire.hear()?;
    let dev = Device::open(device)?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(16)?);
    let buf = pd.alloc_buffer(VERSION + 8)?;
    let qp = pd.qp_builder::<Rc>(&cq).build()?;
    let own = qp.endpoint();
    wire.say(&format!(
        "qpn={} psn={} gid={}",
        own.qp_num, own.psn, own.gid
    ))?;
    let qp = qp.connect(peer.endpoint()?)?;
    let (base, rkey) = (peer.number("addr")?, peer.short("rkey")?);
    let mail = base + peer.number("mail")?;
    let store = Store { qp, cq, buf };
    loop {
        let line = wire.hear()?;
        if line.0 == "bye" {
            return Ok(());
        }
        let slot = base + line.number("slot")? * STRIDE;
        let slot = RemoteSlice::new(slot, SLOT as u64, rkey)?;
        let mut len = line.number("len")? as usize;
        match line.text("do")? {
            "get" => {
                len = store.get(slot)?;
                if len > ROOM {
                    return Err(format!("a value of {len} bytes").into());
                }
                if len > 0 {
                    store.store(VALUE, RemoteSlice::new(mail, len as u64, rkey)?)?;
                }
            }
            "put" => {
                store.fetch(RemoteSlice::new(mail, len as u64, rkey)?, VALUE)?;
                store.put(slot, len)?;
            }
            "delete" => store.delete(slot)?,
            other => return Err(format!("'{other}' came").into()),
        }
        wire.say(&format!("len={len}"))?;
    }
}
