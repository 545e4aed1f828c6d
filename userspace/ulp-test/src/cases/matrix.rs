// SPDX-License-Identifier: MIT OR Apache-2.0

//! Values that the header does not allow, of each member of each command: `crate::annotations` is
//! made of the comments of `rust_ulp.h`.

use super::args::{probes, Probe};
use super::handles::{foreign, refill, stale, Kind, KINDS};
use crate::annotations::MEMBERS;
use crate::file::{Command, Set, INIT, RTR, RTS};
use crate::report::{because, equal, Outcome, Report};
use crate::sys::{abi, bytes};
use nix::errno::Errno::{self, *};

/// A member that the kernel reads: its name, offset and size, and the values that it may have.
#[derive(Clone, Copy, Debug)]
pub struct Member(pub &'static str, pub usize, pub usize, pub Rule);

/// The values that a member may have.
#[derive(Clone, Copy, Debug)]
pub enum Rule {
    /// All: only the command itself can tell.
    Any,
    /// Zero: padding.
    Zero,
    /// These bits.
    Bits(u64),
    /// These ranges.
    List(&'static [(u64, u64)]),
    /// Those from the one to the other; the errnos of a smaller and of a larger one.
    Range(u64, Limit, Errno, Errno),
    /// A handle of an object of these types, or 0 if that is allowed.
    Handle(&'static [&'static str], bool),
}

/// The end of a range.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// This number.
    Known(u64),
    /// What the device, or another member, says under this name.
    UpTo(&'static str),
    /// One less.
    Below(&'static str),
}

/// The members that no single call can show to be wrong, the file that has their cases, and why.
const EXCEPTIONS: &[(&str, &str, &str, &str)] = &[
    (
        "DEVICE_LIST",
        "entry_size",
        "ranges.rs",
        "it counts with a capacity",
    ),
    (
        "GID_QUERY",
        "entry_size",
        "ranges.rs",
        "it counts with a capacity",
    ),
    ("SUBMIT", "wr_size", "submit.rs", "it counts with requests"),
    (
        "QP_MODIFY",
        "attr.cur_qp_state",
        "modify.rs",
        "it counts with its bit of the mask",
    ),
    (
        "QP_MODIFY",
        "attr.en_sqd_async_notify",
        "modify.rs",
        "it counts on the way to SQD",
    ),
    (
        "QP_MODIFY",
        "attr_mask",
        "modify.rs",
        "known bits depend on the transition",
    ),
];

/// What is no command by itself: requests, in submit.rs, and those of io_uring, in ../uring.rs.
const ELSEWHERE: &[&str] = &["WR", "URING_BATCH", "URING_CANCEL"];

/// The attributes that count on the way to INIT, RTR and RTS. All of the path counts on the way to RTR.
const STEPS: [(u8, u32, &[&str]); 3] = [
    (
        abi::QPS_INIT,
        INIT,
        &["qp_state", "pkey_index", "port_num", "access_flags"],
    ),
    (
        abi::QPS_RTR,
        RTR,
        &[
            "path_mtu",
            "dest_qp_num",
            "rq_psn",
            "max_dest_rd_atomic",
            "min_rnr_timer",
        ],
    ),
    (
        abi::QPS_RTS,
        RTS,
        &[
            "timeout",
            "retry_cnt",
            "rnr_retry",
            "sq_psn",
            "max_rd_atomic",
        ],
    ),
];

/// The step on the way to RTS that an attribute of QP_MODIFY counts on.
fn step_of(member: &str) -> Option<(u8, u32)> {
    let name = member.strip_prefix("attr.")?;
    let found = STEPS.iter().find(|(_, _, names)| names.contains(&name));
    let path = name.starts_with("ah.").then_some(&STEPS[1]);
    found.or(path).map(|(state, mask, _)| (*state, *mask))
}

/// What the device, or an object of the set, has under that name.
fn limit(set: &Set, name: &str) -> Outcome<u64> {
    let device = set.file.accepted(&abi::DeviceQuery::new())?;
    let port = set.file.accepted(&abi::PortQuery {
        port: set.file.port,
        ..abi::PortQuery::new()
    })?;
    Ok(match name {
        "phys_ports" => device.phys_ports,
        "num_comp_vectors" => device.num_comp_vectors,
        "max_qp_rd_atom" => device.max_qp_rd_atom,
        "max_qp_init_rd_atom" => device.max_qp_init_rd_atom,
        "gid_tbl_len" => port.gid_tbl_len,
        "pkey_tbl_len" => port.pkey_tbl_len,
        "max_wr" => set.srq.max_wr,
        "cq" => set.cq.entries,
        _ => return Err(format!("nobody says what {name} is")),
    }
    .into())
}

/// The largest value of a member of that many bytes.
fn most(size: usize) -> u64 {
    u64::MAX >> (64 - 8 * size.min(8))
}

/// Values that the rule does not allow, each with its errno; none for a handle.
fn wrong(set: &Set, member: &Member) -> Outcome<Vec<(u64, Errno)>> {
    let Member(_, _, size, rule) = *member;
    let most = most(size);
    Ok(match rule {
        Rule::Any | Rule::Zero | Rule::Handle(..) => Vec::new(),
        Rule::Bits(known) => (0..8 * size)
            .map(|bit| 1 << bit)
            .filter(|bit| known & bit == 0)
            .map(|bit| (bit, EINVAL))
            .collect(),
        Rule::List(ranges) => {
            let is_known = |value: &u64| {
                ranges
                    .iter()
                    .any(|(low, high)| (low..=high).contains(&value))
            };
            let around = ranges
                .iter()
                .flat_map(|(low, high)| [low.wrapping_sub(1), high + 1]);
            around
                .chain([0, most / 2 + 1, most])
                .filter(|value| *value <= most && !is_known(value))
                .map(|value| (value, EINVAL))
                .collect()
        }
        Rule::Range(low, high, below, above) => {
            let high = match high {
                Limit::Known(high) => high,
                Limit::UpTo(name) => limit(set, name)?,
                Limit::Below(name) => limit(set, name)?.saturating_sub(1),
            };
            let under = (low > 0).then(|| [low - 1, 0].map(|value| (value, below)));
            // Among them two that a narrower type would cut off.
            let over = [
                high.saturating_add(1),
                low + 0x100,
                low + 0x1_0000,
                most / 2 + 1,
                most,
            ];
            let over = over
                .into_iter()
                .filter(|value| high < *value && *value <= most);
            let over = over.map(|value| (value, above));
            under.into_iter().flatten().chain(over).collect()
        }
    })
}

/// The argument with another value of a member.
fn with(right: &[u8], member: &Member, value: u64) -> Vec<u8> {
    let Member(_, at, size, _) = *member;
    let mut out = right.to_vec();
    let all = value.to_ne_bytes();
    let part = if cfg!(target_endian = "big") {
        &all[all.len() - size..]
    } else {
        &all[..size]
    };
    out[at..at + size].copy_from_slice(part);
    out
}

/// Handles that are no object of the set, and those of each type.
struct Handles {
    none: Vec<u32>,
    there: Vec<(Kind, u32)>,
}

impl Handles {
    fn new(set: &Set) -> Outcome<(Self, Set)> {
        let far = foreign(set)?;
        // Handles whose places are in use again, and others whose places are free.
        let mut old = stale(set)?;
        refill(set, &old)?;
        old.extend(stale(set)?);
        let mut none: Vec<u32> = old.iter().map(|(_, handle)| *handle).collect();
        none.extend(KINDS.map(|kind| kind.of(&far)));
        none.extend([1, 2, 0xffff, 0x1_0000, 0x7fff_ffff, 0x8000_0000, u32::MAX]);
        let known = set.file.handles()?;
        none.retain(|handle| !known.contains(handle));
        let there = KINDS.map(|kind| (kind, kind.of(set))).to_vec();
        Ok((Self { none, there }, far))
    }

    /// Those that are wrong where an object of `kinds` belongs, each with its errno.
    fn wrong(&self, kinds: &[&str], is_optional: bool) -> Vec<(u32, Errno)> {
        let right = |kind: &Kind| kind.names().iter().any(|name| kinds.contains(name));
        // Each bit of a handle counts.
        let near = self.there.iter().find(|(kind, _)| right(kind));
        let near = near
            .into_iter()
            .flat_map(|(_, handle)| (0..32).map(move |bit| handle ^ (1 << bit)));
        let near =
            near.filter(|near| *near != 0 && self.there.iter().all(|(_, there)| there != near));
        let near: Vec<u32> = near.collect();
        let zero = (!is_optional).then_some(&0);
        let none = self
            .none
            .iter()
            .chain(zero)
            .chain(&near)
            .map(|handle| (*handle, ENOENT));
        let others = self.there.iter().filter(|(kind, _)| !right(kind));
        none.chain(others.map(|(_, handle)| (*handle, EBADFD)))
            .collect()
    }
}

impl Probe {
    /// Each value that the rule of a member does not allow is refused, and what the header allows is not.
    fn member(&self, set: &Set, handles: &Handles, member: &Member) -> Outcome {
        let Member(_, at, size, rule) = *member;
        self.try_all(set, |file, right| {
            if let Rule::Zero = rule {
                for at in at..at + size {
                    for set in [1, 0x80] {
                        let mut wrong = right.to_vec();
                        wrong[at] = set;
                        self.refused(file, &wrong, EINVAL)
                            .map_err(because(&format!("byte {at} is {set:#x}")))?;
                    }
                }
            }
            if let Rule::Handle(kinds, is_optional) = rule {
                let known = file.handles()?;
                for (handle, want) in handles.wrong(kinds, is_optional) {
                    if want == ENOENT && known.contains(&handle) {
                        continue;
                    }
                    self.refused(file, &with(right, member, handle.into()), want)
                        .map_err(because(&format!("handle {handle:#x}")))?;
                }
            }
            for (value, want) in wrong(set, member)? {
                self.refused(file, &with(right, member, value), want)
                    .map_err(because(&format!("{value:#x}")))?;
            }
            Ok(())
        })
    }
}

/// The same for an attribute of QP_MODIFY, on the way on which it counts.
fn attribute(set: &Set, member: &Member, (state, mask): (u8, u32)) -> Outcome {
    let file = &set.file;
    let qp = file.qp(set.pd, set.cq.handle)?.handle;
    file.bring(qp, state - 1, set.a.qp_num)?;
    let right = file.modify_args(qp, state, set.a.qp_num);
    equal("the mask", right.attr_mask, mask)?;
    for (value, want) in wrong(set, member)? {
        let wrong: abi::QpModify = crate::sys::value(&with(&bytes(&right), member, value));
        file.refused(&wrong, want)
            .map_err(because(&format!("{value:#x}")))?;
        equal("state", file.query(qp)?.attr.qp_state, state - 1)?;
    }
    file.accepted(&right)?;
    equal("state", file.query(qp)?.attr.qp_state, state)?;
    file.destroy(qp)
}

/// All cases of this file.
pub fn run(r: &mut Report) {
    let Some(set) = r.need("objects of every kind", Set::complete) else {
        return;
    };
    let Some((handles, _far)) = r.need("handles of no object", || Handles::new(&set)) else {
        return;
    };
    let before = set.file.count("");
    for probe in &probes() {
        for member in probe.members {
            let (command, name) = (probe.name, member.0);
            let is_excepted = EXCEPTIONS
                .iter()
                .any(|(of, at, ..)| (*of, *at) == (command, name));
            let title = match member.3 {
                Rule::Any => continue,
                Rule::Zero => "padding that is not zero",
                Rule::Bits(_) => "undefined bits",
                Rule::Handle(..) => "handles of no object, and of other types",
                Rule::List(_) | Rule::Range(..) => "values that the header does not allow",
            };
            if is_excepted {
                continue;
            }
            let counts_on_the_way = command == "QP_MODIFY" && !matches!(member.3, Rule::Zero);
            let step = counts_on_the_way.then(|| step_of(name)).flatten();
            r.case(format!("{command}.{name}: {title}"), || match step {
                Some(step) => attribute(&set, member, step),
                None => probe.member(&set, &handles, member),
            });
        }
    }
    r.case("each exception names a member", || {
        let names = |(command, name, ..): &(&str, &str, &str, &str)| {
            MEMBERS
                .iter()
                .any(|(of, members)| of == command && members.iter().any(|m| m.0 == *name))
        };
        let lost: Vec<_> = EXCEPTIONS.iter().filter(|entry| !names(entry)).collect();
        equal("exceptions", lost, Vec::new())
    });
    r.case("each command has its members tried", || {
        let tried: Vec<_> = probes().iter().map(|probe| probe.name).collect();
        let all = MEMBERS.iter().map(|(name, _)| *name);
        let lost: Vec<_> = all
            .filter(|name| !tried.contains(name) && !ELSEWHERE.contains(name))
            .collect();
        equal("commands", lost, Vec::new())
    });
    r.case("all these values changed nothing", || {
        equal("objects", set.file.count("")?, before?)
    });
    r.case("the queue pairs still work after bad values", || {
        set.works(7)
    });
}
