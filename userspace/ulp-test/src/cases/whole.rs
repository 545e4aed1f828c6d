// SPDX-License-Identifier: MIT OR Apache-2.0

//! The file as a whole: layout, how many objects, and what the device says to a wild address.

use crate::file::{Command, File, Set};
use crate::report::{because, check, equal, Outcome, Report};
use crate::sys::{abi, PAGE};
use nix::errno::Errno;
use std::collections::HashMap;

/// The header, as users compile it.
const HEADER: &str = include_str!("../../../../rust_ulp/uapi/rust_ulp.h");

/// The header without its comments.
fn text() -> String {
    let mut out = String::new();
    let mut rest = HEADER;
    while let Some((before, comment)) = rest.split_once("/*") {
        out.push_str(before);
        rest = comment.split_once("*/").map_or("", |(_, after)| after);
    }
    out + rest
}

/// Field, offset and size of each field of each struct, where a long word is aligned to 4 bytes
/// unless it says otherwise: the layout that a 32-bit compiler makes.
type Layout = HashMap<String, Vec<(String, usize, usize)>>;

fn layout32() -> Outcome<Layout> {
    let text = text();
    let mut all: Layout = HashMap::new();
    let mut aligns: HashMap<String, usize> = HashMap::new();
    for part in text.split("\nstruct rust_ulp_").skip(1) {
        let (name, rest) = part.split_once('{').ok_or("a struct without its brace")?;
        let (body, _) = rest.split_once("\n}").ok_or("a struct without its end")?;
        let name = format!("rust_ulp_{}", name.trim());
        let (mut at, mut align) = (0usize, 1usize);
        let mut fields = Vec::new();
        for member in body.split(';').map(str::trim).filter(|m| !m.is_empty()) {
            let words: Vec<&str> = member
                .trim_start_matches("struct ")
                .split_whitespace()
                .collect();
            let [kind, field] = words[..] else {
                return Err(format!("{name}: {member:?} is not understood"));
            };
            let (field, count) = match field.trim_end_matches(']').split_once('[') {
                None => (field, 1),
                Some((field, "RUST_ULP_NAME_MAX")) => (field, abi::NAME_MAX),
                Some((field, "RUST_ULP_CM_PRIVATE_MAX")) => (field, abi::CM_PRIVATE_MAX),
                Some((field, count)) => (field, count.parse().map_err(because(member))?),
            };
            let (size, alignment) = match kind {
                "__u8" => (1, 1),
                "__u16" => (2, 2),
                "__u32" | "__s32" => (4, 4),
                "__u64" | "__s64" => (8, 4),
                "__aligned_u64" => (8, 8),
                other => {
                    let inner = all.get(other).and_then(|fields| fields.last());
                    let (_, offset, size) = inner.ok_or(format!("what is {other}?"))?;
                    (offset + size, aligns.get(other).copied().unwrap_or(1))
                }
            };
            at = at.next_multiple_of(alignment);
            align = align.max(alignment);
            fields.push((field.to_owned(), at, size * count));
            at += size * count;
        }
        check(
            format!("{name}: {at} bytes are no multiple of {align}"),
            at % align == 0,
        )?;
        aligns.insert(name.clone(), align);
        all.insert(name, fields);
    }
    Ok(all)
}

fn layouts() -> Outcome {
    let there = layout32()?;
    let mut seen = 0;
    let mut same = |name: &str, ours: &[(&str, usize, usize)]| {
        seen += 1;
        let theirs = there.get(name).ok_or(format!("no {name} in the header"))?;
        let ours: Vec<_> = ours
            .iter()
            .map(|(f, o, s)| ((*f).to_owned(), *o, *s))
            .collect();
        equal(name, &ours, theirs)
    };
    macro_rules! each {
        ($($ty:ident)*) => { $( same(abi::$ty::C_NAME, abi::$ty::LAYOUT)?; )* };
    }
    each!(Query DeviceEntry DeviceList Attach DeviceQuery PortQuery GidEntry GidQuery PkeyQuery
        PdCreate CqCreate CqRing Cqe QpCreate AhAttr QpAttr QpModify QpQuery BufferCreate
        GrantCreate AhCreate SrqCreate SrqModify SrqQuery Destroy Event Addr ConnParam Listen
        GetRequest Accept Reject Connect Disconnect ConnQuery Sge Wr Submit
        Cancel CqEventfd UringBatch UringCancel UringStream);
    equal("structs of the header", there.len(), seen)
}

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
    let cq = abi::CqCreate {
        entries: 4,
        ..abi::CqCreate::new()
    };
    file.refused(&cq, Errno::EMFILE)?;
    file.refused(&File::qp_args(set.pd, set.cq.handle), Errno::EMFILE)?;
    let buffer = abi::BufferCreate {
        pd: set.pd,
        node: abi::NODE_ANY,
        length: 1,
        ..abi::BufferCreate::new()
    };
    file.refused(&buffer, Errno::EMFILE)?;
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
        file.keeps(handle, Errno::EBADF)?;
    }
    equal("objects", file.count("")?, 0)
}

/// All cases of this file.
pub fn run(r: &mut Report) {
    r.case("the layout of a 32-bit compiler is the same", layouts);
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

#[cfg(test)]
mod tests {
    #[test]
    fn layouts() {
        assert_eq!(super::layouts(), Ok(()));
    }
}
