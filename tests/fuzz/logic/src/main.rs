// SPDX-License-Identifier: GPL-2.0

//! What the module decides without the kernel, under libFuzzer: the sources are compiled as they stand.
//!
//! The first byte says what the others are: a request to decode, a handle, the calls of a queue of
//! events, the plan of a buffer. Nothing may panic, overflow included, and what is decoded has to be
//! what was there.
#![no_main]
#![allow(dead_code, unreachable_pub)]

use libfuzzer_sys::fuzz_target;

macro_rules! abi_check {
    ($($_:tt)*) => {};
}

#[path = "../../../../rust_ulp/uapi/mod.rs"]
mod uapi;

#[path = "../../../../rust_ulp/logic/mod.rs"]
mod logic;

use logic::chunks::{common_order, Plan};
use logic::events::{Queue, PLACES};
use logic::handle::{Handle, MAX_OBJECTS};
use uapi::abi;
use uapi::decode::{check, Limits, TimeLimit};

/// Numbers out of bytes; zeros at the end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn u8(&mut self) -> u8 {
        let byte = self.0.first().copied().unwrap_or(0);
        self.0 = self.0.get(1..).unwrap_or(&[]);
        byte
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes([self.u8(), self.u8(), self.u8(), self.u8()])
    }

    fn u64(&mut self) -> u64 {
        u64::from(self.u32()) | (u64::from(self.u32()) << 32)
    }
}

fn request(input: &mut Input<'_>) {
    let limits = Limits {
        max_sge: u32::from(input.u8()) % 17,
        max_inline: input.u32() % 513,
    };
    // Bit by bit: what is not given is zero, as most fields have to be.
    let given = input.u32();
    let field = |bit: u32, input: &mut Input<'_>| match (given >> bit) & 1 {
        0 => 0,
        _ => input.u64(),
    };
    let mut wr = abi::Wr {
        user_data: field(0, input),
        qp: field(1, input) as u32,
        opcode: match input.u8() {
            // Those that there are, and one of receives.
            small @ 0..=127 => small % 12,
            other => other,
        },
        num_sge: field(2, input) as u8,
        flags: u16::from(input.u8() & 0x3f) | field(3, input) as u16,
        remote_addr: field(4, input),
        rkey: field(5, input) as u32,
        imm_data: field(6, input) as u32,
        sge: abi::Sge {
            buffer: field(7, input) as u32,
            length: field(8, input) as u32,
            offset: field(9, input),
        },
        args: abi::WrAtomic {
            compare_add: field(10, input),
            swap: field(11, input),
        }
        .into(),
        timeout_ns: field(12, input),
    };
    if (given >> 13) & 1 != 0 {
        // One element, about as long as may be.
        wr.num_sge = 1;
        wr.sge.length = (limits.max_inline + u32::from(input.u8())).saturating_sub(128);
    }
    let rule = match check(&wr, limits) {
        Ok(rule) => rule,
        Err(refusal) => {
            assert!([7, 22, 90, 95].contains(&refusal.errno()));
            return;
        }
    };
    let limit = TimeLimit::of(&wr).map_or(0, |limit| limit.ns);
    assert_eq!(limit, wr.timeout_ns);
    let inline = wr.flags & abi::SEND_INLINE != 0;
    assert!(u32::from(wr.num_sge) <= limits.max_sge);
    match wr.num_sge {
        0 => assert_eq!(wr.sge, abi::Sge::default()),
        1 => assert!(!inline || wr.sge.length <= limits.max_inline),
        _ => assert_eq!((wr.sge.buffer, wr.sge.length), (0, 0)),
    }
    if rule.is_atomic() {
        assert_eq!((wr.num_sge, wr.sge.length, wr.remote_addr % 8), (1, 8, 0));
    }
    if rule.has_receiver() || wr.opcode == abi::WR_RECV {
        assert_eq!((wr.remote_addr, wr.rkey), (0, 0));
    }
    assert!(!(rule.writes_local() && inline));
}

fn handle(input: &mut Input<'_>) {
    let raw = input.u32();
    if let Some(handle) = Handle::from_raw(raw) {
        assert_eq!(handle.to_raw(), raw);
        assert!(u32::from(handle.index) < MAX_OBJECTS);
        assert!(Handle::next_generation(handle.generation) < 2047);
    }
}

fn events(input: &mut Input<'_>) {
    let mut places = vec![abi::Event::default(); PLACES as usize];
    let (mut queue, mut pushed, mut got, mut lost, mut ended) =
        (Queue::new(), 0u64, 0u64, 0u64, false);
    let mut last = 0;
    while !input.0.is_empty() {
        match input.u8() {
            0..=200 => {
                for _ in 0..=input.u8() {
                    let event = abi::Event {
                        time_ns: pushed + 1,
                        ..abi::Event::default()
                    };
                    queue.push(&mut places, event);
                    pushed += u64::from(!ended);
                }
            }
            201..=250 => {
                for _ in 0..=input.u8() {
                    match queue.pop(&mut places) {
                        Some(event) if event.event == abi::EVENT_LOST => {
                            lost += u64::from(event.info)
                        }
                        Some(event) if event.event == abi::EVENT_DEVICE_REMOVED => assert!(ended),
                        Some(event) => {
                            assert!(event.time_ns > last, "out of order");
                            last = event.time_ns;
                            got += 1;
                        }
                        None => break,
                    }
                }
            }
            _ => {
                let event = abi::Event {
                    event: abi::EVENT_DEVICE_REMOVED,
                    ..abi::Event::default()
                };
                queue.end(event);
                ended = true;
            }
        }
    }
    while let Some(event) = queue.pop(&mut places) {
        match event.event {
            abi::EVENT_LOST => lost += u64::from(event.info),
            abi::EVENT_DEVICE_REMOVED => (),
            _ => got += 1,
        }
    }
    assert_eq!(got + lost, pushed, "each is read or counted");
}

fn plan(input: &mut Input<'_>) {
    // Pages of 4, 16 or 64 KiB.
    let shift = 12 + 2 * (u32::from(input.u8()) % 3);
    let (length, size, most) = (input.u64(), input.u32() & 0x20_1000, input.u64());
    if let Some(plan) = Plan::new(shift, length, size) {
        let attempts: Vec<_> = plan.attempts(|bytes| most & !(bytes - 1)).collect();
        assert!(attempts.len() <= 10 && attempts.iter().all(|(order, _)| *order <= 9));
        assert!(attempts.windows(2).all(|pair| pair[0].0 > pair[1].0));
    }
    let sizes = input.u64();
    let number = input.u64() as usize;
    let frames: Vec<_> = std::iter::repeat_with(|| input.u32() as usize)
        .take(16)
        .collect();
    assert!(common_order(shift, frames.into_iter(), number, sizes, 9) <= 9);
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input(bytes);
    match input.u8() % 4 {
        0 => request(&mut input),
        1 => handle(&mut input),
        2 => events(&mut input),
        _ => plan(&mut input),
    }
});
