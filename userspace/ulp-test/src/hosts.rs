// SPDX-License-Identifier: MIT OR Apache-2.0

//! Two ends to write between, through the crate.

use crate::report::{because, Outcome};
use crate::sys::enter_net;
use rust_ulp::qp::{QpBuilder, Rc, Retries};
use rust_ulp::{Access, Cq, Device, Pd, Qp};
use std::fs::File;

/// An open device with a domain and a completion queue.
pub struct Host {
    /// The device.
    pub dev: Device,
    /// Its domain.
    pub pd: Pd,
    /// Its completion queue.
    pub cq: Cq,
}

/// Opens the default device, or the first there is when none is of this network namespace.
fn open() -> Outcome<Device> {
    let error = match Device::open_default() {
        Ok(dev) => return Ok(dev),
        Err(error) => error,
    };
    let list = Device::list().map_err(because("listing devices"))?;
    let first = list.first().ok_or(error.to_string())?;
    Device::open(&first.name).map_err(because(&first.name))
}

/// Opens the device of the network namespace called `name`; the file stays there, this thread not.
fn open_in(name: &str) -> Outcome<Device> {
    let here = File::open("/proc/thread-self/ns/net").map_err(because("this namespace"))?;
    let there = File::open(format!("/run/netns/{name}")).map_err(because(name))?;
    enter_net(&there).map_err(because(name))?;
    let dev = open();
    enter_net(&here).map_err(because("coming back"))?;
    dev
}

impl Host {
    fn new(dev: Device) -> rust_ulp::error::Result<Self> {
        let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(256)?);
        Ok(Self { dev, pd, cq })
    }

    /// Two of them: on h1 and h2 where `two-hosts` has made these, else on one device.
    pub fn two() -> Outcome<[Self; 2]> {
        let make = |name: &str| {
            let dev = if std::path::Path::new("/run/netns/h2").exists() {
                open_in(name)?
            } else {
                open()?
            };
            Self::new(dev).map_err(because(name))
        };
        Ok([make("h1")?, make("h2")?])
    }

    /// How its queue pairs are. Not with 7 repeats: that is for ever on Soft-RoCE.
    pub fn qp(&self) -> QpBuilder<Rc> {
        self.pd
            .qp_builder::<Rc>(&self.cq)
            .retry_cnt(Retries::DEFAULT)
    }
}

/// Two queue pairs, connected to each other; the second one allows its peer `access`.
pub fn connect(a: &Host, b: &Host, access: Option<Access>) -> rust_ulp::error::Result<[Qp<Rc>; 2]> {
    let first = a.qp().build()?;
    let second = match access {
        Some(access) => b.qp().access(access).build()?,
        None => b.qp().build()?,
    };
    let (to, from) = (second.endpoint(), first.endpoint());
    Ok([first.connect(to)?, second.connect(from)?])
}

/// Numbers that look random, the same for each seed: xorshift64*.
pub struct Dice(u64);

impl Dice {
    /// The numbers of that seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next one.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// One of them.
    pub fn of<T: Copy, const N: usize>(&mut self, what: [T; N]) -> T {
        what[self.below(N as u64) as usize]
    }

    /// Less than `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 16) % n
    }

    /// Whether it happens this time.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Bytes that differ with the seed and from place to place.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut dice = Dice::new(seed);
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        out.extend(dice.next().to_le_bytes());
    }
    out.truncate(len);
    out
}
