// SPDX-License-Identifier: MIT OR Apache-2.0

//! Handles, in every field that takes one: none, never made, stale, another file's, another type's.

use crate::file::{Command, File, Set};
use crate::report::{because, check, equal, Outcome, Report};
use crate::sys::abi;
use nix::errno::Errno;

/// What a handle names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Pd,
    Cq,
    Qp,
    Buffer,
    Grant,
    Ah,
    Srq,
}

const KINDS: [Kind; 7] = [
    Kind::Pd,
    Kind::Cq,
    Kind::Qp,
    Kind::Buffer,
    Kind::Grant,
    Kind::Ah,
    Kind::Srq,
];

impl Kind {
    /// A handle of that kind in `set`.
    fn of(self, set: &Set) -> u32 {
        match self {
            Self::Pd => set.pd,
            Self::Cq => set.cq.handle,
            Self::Qp => set.idle.handle,
            Self::Buffer => set.buffer.handle,
            Self::Grant => set.grant.handle,
            Self::Ah => set.ah.handle,
            Self::Srq => set.srq.handle,
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
        })
    }
}

/// A field of a command that takes a handle.
struct Field {
    name: &'static str,
    /// What it has to name; [`None`] for anything.
    kind: Option<Kind>,
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
        name: "QP_CREATE.pd",
        kind: Some(Kind::Pd),
        optional: false,
        refused: |set, handle, want| {
            let arg = File::qp_args(handle, set.cq.handle);
            set.file.refused(&arg, want)
        },
    },
    Field {
        name: "QP_CREATE.send_cq",
        kind: Some(Kind::Cq),
        optional: false,
        refused: |set, handle, want| {
            let mut arg = File::qp_args(set.pd, set.cq.handle);
            arg.send_cq = handle;
            set.file.refused(&arg, want)
        },
    },
    Field {
        name: "QP_CREATE.recv_cq",
        kind: Some(Kind::Cq),
        optional: false,
        refused: |set, handle, want| {
            let mut arg = File::qp_args(set.pd, set.cq.handle);
            arg.recv_cq = handle;
            set.file.refused(&arg, want)
        },
    },
    Field {
        name: "QP_MODIFY.qp",
        kind: Some(Kind::Qp),
        optional: false,
        refused: |set, handle, want| {
            let arg = set.file.modify_args(handle, abi::QPS_ERR, 0);
            set.file.refused(&arg, want)
        },
    },
    Field {
        name: "QP_QUERY.qp",
        kind: Some(Kind::Qp),
        optional: false,
        refused: |set, handle, want| {
            let arg = abi::QpQuery {
                qp: handle,
                ..abi::QpQuery::new()
            };
            set.file.refused(&arg, want)
        },
    },
    Field {
        name: "QP_CREATE.srq",
        kind: Some(Kind::Srq),
        optional: true,
        refused: |set, handle, want| {
            let mut arg = File::qp_args(set.pd, set.cq.handle);
            arg.srq = handle;
            set.file.refused(&arg, want)
        },
    },
    Field {
        name: "AH_CREATE.pd",
        kind: Some(Kind::Pd),
        optional: false,
        refused: |set, handle, want| set.file.refused(&set.file.ah_args(handle), want),
    },
    Field {
        name: "SRQ_CREATE.pd",
        kind: Some(Kind::Pd),
        optional: false,
        refused: |set, handle, want| {
            set.file
                .refused(&File::srq_args(handle, set.cq.handle), want)
        },
    },
    Field {
        name: "SRQ_CREATE.cq",
        kind: Some(Kind::Cq),
        optional: false,
        refused: |set, handle, want| set.file.refused(&File::srq_args(set.pd, handle), want),
    },
    Field {
        name: "SRQ_MODIFY.srq",
        kind: Some(Kind::Srq),
        optional: false,
        refused: |set, handle, want| {
            let arg = abi::SrqModify {
                srq: handle,
                ..abi::SrqModify::new()
            };
            set.file.refused(&arg, want)
        },
    },
    Field {
        name: "SRQ_QUERY.srq",
        kind: Some(Kind::Srq),
        optional: false,
        refused: |set, handle, want| {
            let arg = abi::SrqQuery {
                srq: handle,
                ..abi::SrqQuery::new()
            };
            set.file.refused(&arg, want)
        },
    },
    Field {
        name: "BUFFER_CREATE.pd",
        kind: Some(Kind::Pd),
        optional: false,
        refused: |set, handle, want| {
            let arg = abi::BufferCreate {
                pd: handle,
                node: abi::NODE_ANY,
                length: 1,
                ..abi::BufferCreate::new()
            };
            set.file.refused(&arg, want)
        },
    },
    Field {
        name: "GRANT_CREATE.buffer",
        kind: Some(Kind::Buffer),
        optional: false,
        refused: |set, handle, want| set.file.refused(&File::grant_args(handle), want),
    },
    Field {
        name: "GRANT_CREATE.qp",
        kind: Some(Kind::Qp),
        optional: true,
        refused: |set, handle, want| {
            let arg = abi::GrantCreate {
                qp: handle,
                ..File::grant_args(set.buffer.handle)
            };
            set.file.refused(&arg, want)
        },
    },
    Field {
        name: "GRANT_QUERY.grant",
        kind: Some(Kind::Grant),
        optional: false,
        refused: |set, handle, want| {
            let arg = abi::GrantQuery {
                grant: handle,
                ..abi::GrantQuery::new()
            };
            set.file.refused(&arg, want)
        },
    },
    Field {
        name: "BUFFER_REGISTER.pd",
        kind: Some(Kind::Pd),
        optional: false,
        refused: |set, handle, want| set.file.refused(&File::register_args(handle), want),
    },
    Field {
        name: "BUFFER_IMPORT.pd",
        kind: Some(Kind::Pd),
        optional: false,
        refused: |set, handle, want| {
            let arg = abi::BufferImport {
                pd: handle,
                fd: -1,
                ..abi::BufferImport::new()
            };
            set.file.refused(&arg, want)
        },
    },
    Field {
        name: "BUFFER_QUERY.buffer",
        kind: Some(Kind::Buffer),
        optional: false,
        refused: |set, handle, want| {
            let arg = abi::BufferQuery {
                buffer: handle,
                ..abi::BufferQuery::new()
            };
            set.file.refused(&arg, want)
        },
    },
    Field {
        name: "DESTROY.handle",
        kind: None,
        optional: false,
        refused: |set, handle, want| set.file.keeps(handle, want),
    },
    Field {
        name: "SUBMIT.cq",
        kind: Some(Kind::Cq),
        optional: true,
        refused: |set, handle, want| {
            let arg = abi::Submit {
                cq: handle,
                ..abi::Submit::new()
            };
            set.file.refused(&arg, want)?;
            // With requests that are all right: none of them is posted.
            let before = set.file.objects()?;
            let (result, out) = set.file.submit(&[set.recv(), set.write()], arg)?;
            equal("with requests", result, Err(want))?;
            equal("posted", out.posted, 0)?;
            equal("objects after a refusal", set.file.objects()?, before)
        },
    },
    Field {
        name: "CANCEL.queue",
        kind: Some(Kind::Qp),
        optional: false,
        refused: |set, handle, want| {
            // It names both.
            if handle == set.srq.handle {
                return equal("a shared receive queue", want, Errno::EBADFD);
            }
            let arg = abi::Cancel {
                queue: handle,
                ..abi::Cancel::new()
            };
            set.file.refused(&arg, want)
        },
    },
    Field {
        name: "CQ_EVENTFD.cq",
        kind: Some(Kind::Cq),
        optional: false,
        refused: |set, handle, want| {
            let arg = abi::CqEventfd {
                cq: handle,
                fd: -1,
                ..abi::CqEventfd::new()
            };
            set.file.refused(&arg, want)
        },
    },
    Field {
        name: "wr.qp of a receive",
        kind: Some(Kind::Qp),
        optional: false,
        refused: |set, qp, want| post(set, abi::Wr { qp, ..set.recv() }, want),
    },
    Field {
        name: "wr.qp of a write",
        kind: Some(Kind::Qp),
        optional: false,
        refused: |set, qp, want| post(set, abi::Wr { qp, ..set.write() }, want),
    },
    Field {
        name: "sge.buffer of a receive",
        kind: Some(Kind::Buffer),
        optional: false,
        refused: |set, handle, want| {
            let mut wr = set.recv();
            wr.sge.buffer = handle;
            post(set, wr, want)
        },
    },
    Field {
        name: "sge.buffer of a write",
        kind: Some(Kind::Buffer),
        optional: false,
        refused: |set, handle, want| {
            let mut wr = set.write();
            wr.sge.buffer = handle;
            post(set, wr, want)
        },
    },
    Field {
        name: "sge.buffer of an inline write",
        kind: Some(Kind::Buffer),
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
        kind: Some(Kind::Buffer),
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
        let Some(right) = self.kind else {
            return Ok(());
        };
        for kind in KINDS.into_iter().filter(|kind| *kind != right) {
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
fn stale(set: &Set) -> Outcome<Vec<(Kind, u32)>> {
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
fn refill(set: &Set, old: &[(Kind, u32)]) -> Outcome<Vec<u32>> {
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
fn foreign(set: &Set) -> Outcome<Set> {
    // Indices that the first file has never reached.
    let mut far = Set::new()?;
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
    let Some(set) = r.need("objects of every kind", Set::new) else {
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
        if field.kind.is_some() {
            r.case(format!("{name}: of another type"), || {
                field.wrong_type(&set)
            });
        }
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
        equal("objects", set.file.count("")?, 9)?;
        if let Some(far) = &far {
            equal(
                "objects of the other file",
                far.file.count("")?,
                9 + 201 + 6,
            )?;
        }
        Ok(())
    });
    r.case("the queue pairs still work after bad handles", || {
        set.works(2)
    });
}
