// SPDX-License-Identifier: MIT OR Apache-2.0

//! Handles, in every field that takes one: none, never made, stale, another file's, another type's.

use crate::file::{File, Set};
use crate::report::{because, check, equal, Outcome, Report};
use crate::sys::{abi, arg};
use nix::errno::Errno;

/// What a handle names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Pd,
    Cq,
    Qp,
    Buffer,
    Grant,
    Ah,
    Srq,
    Listener,
    Connection,
}

/// All kinds.
pub const KINDS: [Kind; 9] = [
    Kind::Pd,
    Kind::Cq,
    Kind::Qp,
    Kind::Buffer,
    Kind::Grant,
    Kind::Ah,
    Kind::Srq,
    Kind::Listener,
    Kind::Connection,
];

impl Kind {
    /// The names of that kind in the header.
    pub fn names(self) -> &'static [&'static str] {
        match self {
            Self::Pd => &["pd"],
            Self::Cq => &["cq"],
            Self::Qp => &["qp"],
            Self::Buffer => &["buffer"],
            Self::Grant => &["grant"],
            Self::Ah => &["ah"],
            Self::Srq => &["srq"],
            Self::Listener => &["listener"],
            Self::Connection => &["conn", "request"],
        }
    }

    /// A handle of that kind in `set`.
    pub fn of(self, set: &Set) -> u32 {
        match self {
            Self::Pd => set.pd,
            Self::Cq => set.cq.handle,
            Self::Qp => set.idle.handle,
            Self::Buffer => set.buffer.handle,
            Self::Grant => set.grant.handle,
            Self::Ah => set.ah.handle,
            Self::Srq => set.srq.handle,
            Self::Listener => set.listener,
            Self::Connection => set.connection,
        }
    }

    /// One more object of that kind.
    fn make(self, set: &Set) -> Outcome<u32> {
        let file = &set.file;
        Ok(match self {
            Self::Pd => file.pd()?,
            Self::Cq => file.cq(1)?.handle,
            Self::Qp => file.qp(set.pd, set.cq.handle)?.handle,
            Self::Buffer => file.buffer(set.pd, 1)?.handle,
            Self::Grant => file.grant(set.buffer.handle)?.handle,
            Self::Ah => file.ah(set.pd)?.handle,
            Self::Srq => file.srq(set.pd, set.cq.handle)?.handle,
            Self::Listener => file.accepted(&file.listen_args()?)?.handle,
            Self::Connection => file.failed(set.spare)?,
        })
    }
}

/// A field of a request that takes a handle, or one that counts with requests. matrix.rs has those of the
/// commands.
struct Field {
    name: &'static str,
    /// What it has to name.
    kind: Kind,
    /// Whether 0 is allowed, and means none.
    optional: bool,
    /// Issues the command with that handle in it; it is refused like that.
    refused: fn(&Set, u32, Errno) -> Outcome,
}

fn post(set: &Set, wr: abi::Wr, want: Errno) -> Outcome {
    set.file.stops(&[wr], want, 0)
}

const FIELDS: &[Field] = &[
    Field {
        name: "SUBMIT.cq",
        kind: Kind::Cq,
        optional: true,
        refused: |set, handle, want| {
            let arg = arg!(Submit, cq = handle);
            // With requests that are all right: none of them is posted.
            let before = set.file.objects()?;
            let (result, out) = set.file.submit(&[set.recv(), set.write()], arg)?;
            equal("with requests", result, Err(want))?;
            equal("posted", out.posted, 0)?;
            equal("objects after a refusal", set.file.objects()?, before)
        },
    },
    Field {
        name: "wr.qp of a receive",
        kind: Kind::Qp,
        optional: false,
        refused: |set, qp, want| post(set, abi::Wr { qp, ..set.recv() }, want),
    },
    Field {
        name: "wr.qp of a write",
        kind: Kind::Qp,
        optional: false,
        refused: |set, qp, want| post(set, abi::Wr { qp, ..set.write() }, want),
    },
    Field {
        name: "sge.buffer of a receive",
        kind: Kind::Buffer,
        optional: false,
        refused: |set, handle, want| {
            let mut wr = set.recv();
            wr.sge.buffer = handle;
            post(set, wr, want)
        },
    },
    Field {
        name: "sge.buffer of a write",
        kind: Kind::Buffer,
        optional: false,
        refused: |set, handle, want| {
            let mut wr = set.write();
            wr.sge.buffer = handle;
            post(set, wr, want)
        },
    },
    Field {
        name: "sge.buffer of an inline write",
        kind: Kind::Buffer,
        optional: true, // the offset is an address then
        refused: |set, handle, want| {
            let mut wr = set.write();
            wr.flags |= abi::SEND_INLINE;
            wr.sge.buffer = handle;
            post(set, wr, want)
        },
    },
    Field {
        name: "the last of three elements",
        kind: Kind::Buffer,
        optional: false,
        refused: |set, handle, want| {
            let mut list = [set.sge(0, 8); 3];
            list[2].buffer = handle;
            let area = crate::file::array(&list)?;
            let mut wr = set.write();
            wr.num_sge = 3;
            wr.sge = abi::Sge {
                offset: area.at(0),
                ..abi::Sge::default()
            };
            post(set, wr, want)
        },
    },
];

impl Field {
    fn no_such(&self, set: &Set, handle: u32) -> Outcome {
        (self.refused)(set, handle, Errno::ENOENT).map_err(because(&format!("{handle:#x}")))
    }

    fn never_made(&self, set: &Set) -> Outcome {
        let known = set.file.handles()?;
        // All are looked up in one way: on the debug kernel the neighbours of one have to do.
        let is_slow = std::env::var_os("ULP_DEBUG").is_some();
        let kinds = if is_slow { 1 } else { KINDS.len() };
        for kind in KINDS.into_iter().take(kinds) {
            let there = kind.of(set);
            check("fdinfo has no such handle", known.contains(&there))?;
            for bit in 0..32 {
                let handle = there ^ (1 << bit);
                // Where 0 means none, it is no handle.
                if !known.contains(&handle) && (handle != 0 || !self.optional) {
                    self.no_such(set, handle)?;
                }
            }
        }
        for handle in [1, 2, 0xffff, 0x1_0000, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
            self.no_such(set, handle)?;
        }
        Ok(())
    }

    fn wrong_type(&self, set: &Set) -> Outcome {
        for kind in KINDS.into_iter().filter(|kind| *kind != self.kind) {
            if kind == Kind::Srq && self.name == "wr.qp of a receive" {
                continue; // takes receives as well
            }
            (self.refused)(set, kind.of(set), Errno::EBADFD)
                .map_err(because(&format!("{kind:?}")))?;
        }
        Ok(())
    }
}

/// Handles of objects that were destroyed, some of them with their place in use again.
pub fn stale(set: &Set) -> Outcome<Vec<(Kind, u32)>> {
    let mut out = Vec::new();
    for kind in KINDS {
        let handle = kind.make(set)?;
        set.file.destroy(handle)?;
        set.file.keeps(handle, Errno::ENOENT)?;
        out.push((kind, handle));
    }
    Ok(out)
}

/// Fills every place that was ever in use, with objects of each kind.
pub fn refill(set: &Set, old: &[(Kind, u32)]) -> Outcome<Vec<u32>> {
    let mut new = Vec::new();
    for (kind, _) in old {
        for _ in 0..8 {
            let handle = kind.make(set)?;
            check(
                "a stale handle came again",
                old.iter().all(|(_, was)| *was != handle),
            )?;
            new.push(handle);
        }
    }
    Ok(new)
}

/// A set whose handles are none of `set`'s.
pub fn foreign(set: &Set) -> Outcome<Set> {
    // Indices that the first file has never reached.
    let mut far = Set::complete()?;
    for _ in 0..200 {
        far.file.pd()?;
    }
    far.pd = far.file.pd()?;
    far.cq = far.file.cq(1)?;
    far.idle = far.file.qp(far.pd, far.cq.handle)?;
    far.buffer = far.file.buffer(far.pd, 1)?;
    far.grant = far.file.grant(far.buffer.handle)?;
    far.ah = far.file.ah(far.pd)?;
    far.srq = far.file.srq(far.pd, far.cq.handle)?;
    far.listener = far.file.accepted(&far.file.listen_args()?)?.handle;
    far.connection = far.file.failed(far.spare)?;
    let known = set.file.handles()?;
    let strange = KINDS.iter().all(|kind| !known.contains(&kind.of(&far)));
    check("two files have the same handles", strange)?;
    Ok(far)
}

/// Who needs what.
fn busy(set: &Set) -> Outcome {
    let file = &set.file;
    let pd = file.pd()?;
    let (send, recv) = (file.cq(4)?.handle, file.cq(4)?.handle);
    let mut arg = File::qp_args(pd, send);
    arg.recv_cq = recv;
    let qp = file.accepted(&arg)?.handle;
    for (what, handle) in [
        ("domain", pd),
        ("send queue", send),
        ("receive queue", recv),
    ] {
        file.keeps(handle, Errno::EBUSY)
            .map_err(because(&format!("the {what} of a queue pair")))?;
    }
    file.destroy(qp)?;
    let srq = file.srq(pd, recv)?.handle;
    arg.srq = srq;
    let qp = file.accepted(&arg)?.handle;
    for (what, handle) in [("queue", srq), ("domain", pd), ("completions", recv)] {
        file.keeps(handle, Errno::EBUSY)
            .map_err(because(&format!("the shared {what} of a queue pair")))?;
    }
    file.destroy(qp)?;
    for (what, handle) in [("domain", pd), ("completions", recv)] {
        file.keeps(handle, Errno::EBUSY)
            .map_err(because(&format!("the {what} of a shared queue")))?;
    }
    file.destroy(srq)?;
    let ah = file.ah(pd)?.handle;
    file.keeps(pd, Errno::EBUSY)
        .map_err(because("the domain of an address"))?;
    file.destroy(ah)?;
    let buffer = file.buffer(pd, 1)?.handle;
    let (one, two) = (file.grant(buffer)?.handle, file.grant(buffer)?.handle);
    file.keeps(buffer, Errno::EBUSY)
        .map_err(because("a buffer with two grants"))?;
    file.destroy(one)?;
    file.keeps(buffer, Errno::EBUSY)
        .map_err(because("a buffer with a grant"))?;
    file.keeps(pd, Errno::EBUSY)
        .map_err(because("the domain of a buffer"))?;
    file.destroy(two)?;
    file.destroy(buffer)?;
    for handle in [send, recv, pd] {
        file.destroy(handle)?;
    }
    // A creation that fails needs nothing any more.
    let (pd, cq) = (file.pd()?, file.cq(4)?.handle);
    file.refused(&File::qp_args(pd, pd), Errno::EBADFD)?;
    let mut arg = File::qp_args(pd, cq);
    arg.max_inline = u32::MAX;
    file.refused(&arg, Errno::ERANGE)?;
    arg = File::qp_args(pd, cq);
    arg.recv_cq = 0;
    file.refused(&arg, Errno::ENOENT)?;
    file.destroy(cq)?;
    file.destroy(pd)
}

/// All cases of this file.
pub fn run(r: &mut Report) {
    let Some(set) = r.need("objects of every kind", Set::complete) else {
        return;
    };
    let name = "handles that are stale";
    let Some(old) = r.need(name, || stale(&set)) else {
        return;
    };
    let far = r.need("another file's handles", || foreign(&set));
    for field in FIELDS {
        let name = field.name;
        if !field.optional {
            r.case(format!("{name}: 0"), || field.no_such(&set, 0));
        }
        r.case(format!("{name}: never made"), || field.never_made(&set));
        r.case(format!("{name}: stale"), || {
            old.iter()
                .try_for_each(|(_, was)| field.no_such(&set, *was))
        });
        if let Some(far) = &far {
            r.case(format!("{name}: of another file"), || {
                KINDS
                    .iter()
                    .try_for_each(|kind| field.no_such(&set, kind.of(far)))
            });
        }
        r.case(format!("{name}: of another type"), || {
            field.wrong_type(&set)
        });
    }
    let Some(new) = r.need("objects in the places of others", || refill(&set, &old)) else {
        return;
    };
    for field in FIELDS {
        let name = field.name;
        r.case(format!("{name}: stale, its place in use again"), || {
            old.iter()
                .try_for_each(|(_, was)| field.no_such(&set, *was))
        });
    }
    r.case("DESTROY: each once", || {
        for handle in &new {
            set.file.destroy(*handle)?;
            set.file.keeps(*handle, Errno::ENOENT)?;
        }
        Ok(())
    });
    r.case("DESTROY: what others need", || busy(&set));
    r.case("all these handles changed nothing", || {
        equal("objects", set.file.count("")?, 12)?;
        if let Some(far) = &far {
            equal(
                "objects of the other file",
                far.file.count("")?,
                12 + 201 + 8,
            )?;
        }
        Ok(())
    });
    r.case("the queue pairs still work after bad handles", || {
        set.works(2)
    });
}
