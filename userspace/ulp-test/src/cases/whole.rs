// SPDX-License-Identifier: MIT OR Apache-2.0

//! The file as a whole: how many objects, and what the device says to a wild address.

use crate::file::{Command, File, Set};
use crate::report::{because, check, equal, Outcome, Report};
use crate::sys::{abi, arg, PAGE};
use nix::errno::Errno;

fn full(set: &Set) -> Outcome {
    let file = &set.file;
    let most = file.accepted(&abi::Query::new())?.max_objects as usize;
    let mut made = Vec::new();
    for _ in file.count("")?..most {
        made.push(
            file.pd()
                .map_err(because(&format!("after {}", made.len())))?,
        );
    }
    equal("objects", file.count("")?, most)?;
    let mut sorted = made.clone();
    sorted.sort_unstable();
    sorted.dedup();
    equal("different handles", sorted.len(), made.len())?;
    file.refused(&abi::PdCreate::new(), Errno::EMFILE)?;
    let cq = arg!(CqCreate, entries = 4);
    file.refused(&cq, Errno::EMFILE)?;
    file.refused(&File::qp_args(set.pd, set.cq.handle), Errno::EMFILE)?;
    let buffer = arg!(BufferCreate, pd = set.pd, node = abi::NODE_ANY, length = 1);
    file.refused(&buffer, Errno::EMFILE)?;
    file.refused(&File::register_args(set.pd), Errno::EMFILE)?;
    file.refused(&File::grant_args(set.buffer.handle), Errno::EMFILE)?;
    set.works(8).map_err(because("with a full table"))?;
    let last = made.pop().ok_or("no object was made")?;
    file.destroy(last)?;
    made.push(file.cq(4).map_err(because("after a destroy"))?.handle);
    file.refused(&abi::PdCreate::new(), Errno::EMFILE)?;
    // What the refused ones needed is free.
    for handle in made {
        file.destroy(handle)?;
    }
    equal("objects", file.count("")?, 9)
}

/// A write to where nothing is: the device refuses it, and nothing is written.
fn wild_write(remote_addr: impl Fn(&Set) -> u64) -> Outcome {
    let set = Set::new()?;
    set.memory.put(0, &[0x77; 64]);
    let before = set.memory.get(0, 4 * PAGE);
    set.file.post(&[abi::Wr {
        remote_addr: remote_addr(&set),
        ..set.write()
    }])?;
    equal("status", set.wait(1)?[0].status, 10)?;
    check("memory changed", set.memory.get(0, 4 * PAGE) == before)
}

/// Everything is destroyed, users first; then nothing is left.
fn dismantle(set: Set) -> Outcome {
    let file = &set.file;
    set.works(9)?;
    for handle in [
        set.idle.handle,
        set.a.handle,
        set.b.handle,
        set.srq.handle,
        set.ah.handle,
        set.grant.handle,
        set.buffer.handle,
        set.cq.handle,
        set.pd,
    ] {
        file.destroy(handle)?;
        file.keeps(handle, Errno::ENOENT)?;
    }
    equal("objects", file.count("")?, 0)
}

/// All cases of this file.
pub fn run(r: &mut Report) {
    let Some(set) = r.need("objects of every kind", Set::new) else {
        return;
    };
    r.case("fdinfo shows what there is", || {
        let mut there = set.file.handles()?;
        let mut want = vec![
            set.pd,
            set.cq.handle,
            set.idle.handle,
            set.a.handle,
            set.b.handle,
            set.buffer.handle,
            set.grant.handle,
            set.ah.handle,
            set.srq.handle,
        ];
        there.sort_unstable();
        want.sort_unstable();
        equal("handles", there, want)
    });
    r.case("EMFILE, and usable after a destroy", || full(&set));
    r.case("a write to an address that wraps around", || {
        wild_write(|_| u64::MAX - 31)
    });
    r.case("a write to the last address", || wild_write(|_| u64::MAX));
    r.case("a write that begins before its grant", || {
        wild_write(|set| set.grant.addr.wrapping_sub(1))
    });
    r.case("a write right behind its grant", || {
        wild_write(|set| set.grant.addr + set.buffer.length)
    });
    r.case("a write over the end of its grant", || {
        wild_write(|set| set.grant.addr + set.buffer.length - 63)
    });
    r.case(
        "the file works to the end, and everything can be destroyed",
        || dismantle(set),
    );
}
