// SPDX-License-Identifier: MIT OR Apache-2.0

//! QP_MODIFY: which transitions there are, what they need, and attributes that count together. matrix.rs
//! has the values of each.

use crate::file::{Command, Set, INIT, RTR, RTS};
use crate::report::{because, equal, Outcome, Report};
use crate::sys::{abi, bytes, Area, Place};
use nix::errno::Errno;

const STATES: [(u8, &str); 7] = [
    (abi::QPS_RESET, "RESET"),
    (abi::QPS_INIT, "INIT"),
    (abi::QPS_RTR, "RTR"),
    (abi::QPS_RTS, "RTS"),
    (abi::QPS_SQD, "SQD"),
    (abi::QPS_SQE, "SQE"),
    (abi::QPS_ERR, "ERR"),
];

/// What RC allows: IBA 10.3.1, and `qp_state_table` of the kernel.
fn is_allowed(from: u8, to: u8) -> bool {
    match to {
        abi::QPS_RESET => true,
        abi::QPS_ERR => from != abi::QPS_RESET,
        abi::QPS_INIT => matches!(from, abi::QPS_RESET | abi::QPS_INIT),
        abi::QPS_RTR => from == abi::QPS_INIT,
        abi::QPS_RTS => matches!(from, abi::QPS_RTR | abi::QPS_RTS | abi::QPS_SQD),
        abi::QPS_SQD => matches!(from, abi::QPS_RTS | abi::QPS_SQD),
        _ => false,
    }
}

/// A queue pair in that state, for the time of `f`.
fn with_qp(set: &Set, state: u8, f: impl FnOnce(u32) -> Outcome) -> Outcome {
    let qp = set.file.qp(set.pd, set.cq.handle)?.handle;
    let result = set
        .file
        .bring(qp, state, set.a.qp_num)
        .map_err(because("on the way"))
        .and_then(|()| f(qp));
    set.file.destroy(qp)?;
    result
}

fn state_is(set: &Set, qp: u32, want: u8) -> Outcome {
    equal("state", set.file.query(qp)?.attr.qp_state, want)
}

fn pair(set: &Set, from: u8, to: u8) -> Outcome {
    with_qp(set, from, |qp| {
        let mut arg = set.file.modify_args(qp, to, set.a.qp_num);
        // From RTS and SQD nothing but the state is needed to be in RTS, nor from INIT for INIT.
        if is_allowed(from, to) && !matches!((from, to), (0, 1) | (1, 2) | (2, 3)) {
            arg.attr_mask = abi::QP_STATE;
        }
        if is_allowed(from, to) {
            set.file.accepted(&arg)?;
            state_is(set, qp, to)
        } else {
            let (result, out) = set.file.call(&arg);
            equal("result", result, Err(Errno::EPROTO))?;
            let masks = (out.missing_mask, out.extra_mask);
            equal("masks", masks, (0, abi::QP_STATE))?;
            state_is(set, qp, from)
        }
    })
}

/// The three steps up, each with what it needs and a few attributes that it does not take.
const STEPS: [(u8, u8, u32, u32); 3] = [
    (
        abi::QPS_RESET,
        abi::QPS_INIT,
        INIT,
        abi::QP_QKEY | abi::QP_AV | abi::QP_SQ_PSN | abi::QP_TIMEOUT | abi::QP_DEST_QPN,
    ),
    (
        abi::QPS_INIT,
        abi::QPS_RTR,
        RTR,
        abi::QP_QKEY | abi::QP_SQ_PSN | abi::QP_TIMEOUT | abi::QP_MAX_QP_RD_ATOMIC,
    ),
    (
        abi::QPS_RTR,
        abi::QPS_RTS,
        RTS,
        abi::QP_QKEY | abi::QP_AV | abi::QP_RQ_PSN | abi::QP_DEST_QPN | abi::QP_PATH_MTU,
    ),
];

fn each_bit(mask: u32) -> impl Iterator<Item = u32> {
    (0..32)
        .map(|bit| 1 << bit)
        .filter(move |bit| mask & bit != 0)
}

fn masks(r: &mut Report, set: &Set) {
    let file = &set.file;
    for (from, to, needs, takes_not) in STEPS {
        let name = STATES[usize::from(to)].1;
        // Each bit of `bits` is wrong: it is missing from the mask, or added to it.
        let step = |bits: u32, want: Errno| {
            with_qp(set, from, |qp| {
                let right = file.modify_args(qp, to, set.a.qp_num);
                for bit in each_bit(bits) {
                    let attr_mask = right.attr_mask ^ bit;
                    let (result, out) = file.call(&abi::QpModify { attr_mask, ..right });
                    let named = match want {
                        Errno::EPROTO => (right.attr_mask & bit, bit & !right.attr_mask),
                        _ => (0, 0),
                    };
                    equal("result", result, Err(want))
                        .and_then(|()| equal("masks", (out.missing_mask, out.extra_mask), named))
                        .map_err(because(&format!("mask {attr_mask:#x}")))?;
                    state_is(set, qp, from)?;
                }
                file.accepted(&right)?;
                state_is(set, qp, to)
            })
        };
        r.case(
            format!("QP_MODIFY: to {name} without what it needs"),
            || step(needs & !abi::QP_STATE, Errno::EPROTO),
        );
        r.case(
            format!("QP_MODIFY: to {name} with what it does not take"),
            || step(takes_not, Errno::EPROTO),
        );
        r.case(
            format!("QP_MODIFY: to {name} with attributes that nobody knows"),
            || {
                // Not among them: ALT_PATH, PATH_MIG_STATE, CAP, bit 14, 18 and 19.
                let known = 0x0013_bfff;
                step(!known, Errno::EINVAL)
            },
        );
    }
    r.case("QP_MODIFY: attributes without a state", || {
        with_qp(set, abi::QPS_RTS, |qp| {
            let mut arg = file.modify_args(qp, abi::QPS_RTS, 0);
            arg.attr_mask = abi::QP_ACCESS_FLAGS;
            arg.attr.access_flags = abi::ACCESS_REMOTE_READ;
            file.accepted(&arg)?;
            state_is(set, qp, abi::QPS_RTS)?;
            arg.attr_mask = abi::QP_DEST_QPN;
            file.refused(&arg, Errno::EPROTO)
        })
    });
    r.case("QP_MODIFY: a state that it is not in", || {
        with_qp(set, abi::QPS_RTR, |qp| {
            let mut arg = file.modify_args(qp, abi::QPS_RTS, 0);
            arg.attr_mask |= abi::QP_CUR_STATE;
            arg.attr.cur_qp_state = abi::QPS_INIT;
            file.refused(&arg, Errno::EPROTO)?;
            state_is(set, qp, abi::QPS_RTR)?;
            arg.attr.cur_qp_state = abi::QPS_RTR;
            file.accepted(&arg)?;
            state_is(set, qp, abi::QPS_RTS)
        })
    });
}

type Change = fn(&mut abi::QpModify, u32);

fn attributes(r: &mut Report, set: &Set) {
    let file = &set.file;
    let mut bad = |name: &str, to: u8, want: Errno, values: &[u32], change: Change| {
        r.case(format!("QP_MODIFY: {name}"), || {
            with_qp(set, to - 1, |qp| {
                let right = file.modify_args(qp, to, set.a.qp_num);
                for value in values {
                    let mut wrong = right;
                    change(&mut wrong, *value);
                    file.refused(&wrong, want)
                        .map_err(because(&format!("{value:#x}")))?;
                    state_is(set, qp, to - 1)?;
                }
                file.accepted(&right)?;
                state_is(set, qp, to)
            })
        });
    };
    use abi::{QPS_INIT, QPS_RTR, QPS_RTS};
    use Errno::{EINVAL, ENOENT};
    bad(
        "cur_qp_state",
        QPS_RTS,
        EINVAL,
        &[7, 8, 128, 255],
        |arg, n| {
            arg.attr_mask |= abi::QP_CUR_STATE;
            arg.attr.cur_qp_state = n as u8;
        },
    );
    bad(
        "pkey_index alone",
        QPS_RTR,
        ENOENT,
        &[0x7fff, 0xffff],
        |arg, n| {
            arg.attr_mask |= abi::QP_PKEY_INDEX;
            arg.attr.pkey_index = n as u16;
        },
    );
    bad("ah.is_global", QPS_RTR, EINVAL, &[0], |arg, n| {
        arg.attr.ah.is_global = n as u8;
    });
    let sqd = QPS_RTS + 1;
    bad("en_sqd_async_notify", sqd, EINVAL, &[2, 255], |arg, n| {
        arg.attr_mask |= abi::QP_EN_SQD_ASYNC_NOTIFY;
        arg.attr.en_sqd_async_notify = n as u8;
    });
    r.case("QP_MODIFY: a GID index that is not in use", || {
        let used: Vec<u32> = file.gids()?.iter().map(|gid| gid.index).collect();
        with_qp(set, QPS_INIT, |qp| {
            let right = file.modify_args(qp, QPS_RTR, set.a.qp_num);
            for index in (0..=255).filter(|index| !used.contains(index)) {
                let mut wrong = right;
                wrong.attr.ah.sgid_index = index as u8;
                file.refused(&wrong, ENOENT)
                    .map_err(because(&format!("index {index}")))?;
            }
            state_is(set, qp, QPS_INIT)?;
            file.accepted(&right)?;
            state_is(set, qp, QPS_RTR)
        })
    });
    r.case("QP_MODIFY: attributes at their ends", || {
        with_qp(set, abi::QPS_RESET, |qp| {
            let mut init = file.modify_args(qp, QPS_INIT, 0);
            init.attr.access_flags = 0;
            file.accepted(&init)?;
            let mut rtr = file.modify_args(qp, QPS_RTR, 0xff_ffff);
            rtr.attr.rq_psn = 0xff_ffff;
            rtr.attr.min_rnr_timer = 31;
            rtr.attr.max_dest_rd_atomic = 0;
            rtr.attr.ah.flow_label = 0xf_ffff;
            let got = file.accepted(&rtr)?;
            equal("hop limit", got.attr.ah.hop_limit, 64)?;
            let mut rts = file.modify_args(qp, QPS_RTS, 0);
            rts.attr.sq_psn = 0xff_ffff;
            rts.attr.timeout = 31;
            rts.attr.retry_cnt = 7;
            rts.attr.rnr_retry = 7;
            rts.attr.max_rd_atomic = 0;
            file.accepted(&rts)?;
            let attr = file.query(qp)?.attr;
            equal(
                "what is said of it",
                [
                    attr.rq_psn,
                    attr.sq_psn,
                    attr.dest_qp_num,
                    attr.access_flags,
                ],
                [0xff_ffff, 0xff_ffff, 0xff_ffff, 0],
            )?;
            equal(
                "and the rest",
                [
                    attr.timeout,
                    attr.retry_cnt,
                    attr.rnr_retry,
                    attr.min_rnr_timer,
                ],
                [31, 7, 7, 31],
            )
        })
    });
    r.case(
        "QP_MODIFY: attributes that do not count are not looked at",
        || {
            with_qp(set, abi::QPS_RESET, |qp| {
                let mut arg = file.modify_args(qp, QPS_INIT, u32::MAX);
                arg.attr.sq_psn = u32::MAX;
                arg.attr.path_mtu = 77;
                arg.attr.timeout = 255;
                arg.attr.ah.port_num = 99;
                file.accepted(&arg)?;
                state_is(set, qp, QPS_INIT)
            })
        },
    );
    r.case(
        "QP_MODIFY: a struct that cannot be written, to INIT",
        || {
            with_qp(set, abi::QPS_RESET, |qp| {
                let area = Area::new(1).map_err(because("mapping memory"))?;
                area.put(0, &bytes(&file.modify_args(qp, QPS_INIT, 0)));
                let area = area.read_only().map_err(because("protecting memory"))?;
                file.refuse(abi::QpModify::NR, Place::In(&area, 0), Errno::EFAULT)?;
                state_is(set, qp, abi::QPS_RESET)
            })
        },
    );
}

/// All cases of this file.
pub fn run(r: &mut Report) {
    let Some(set) = r.need("objects of every kind", Set::new) else {
        return;
    };
    for (from, from_name) in STATES {
        // SQE is reached by errors of unreliable queue pairs only.
        if from == abi::QPS_SQE {
            continue;
        }
        for (to, to_name) in STATES {
            let word = if is_allowed(from, to) {
                "works"
            } else {
                "is refused"
            };
            r.case(
                format!("QP_MODIFY: {from_name} to {to_name} {word}"),
                || pair(&set, from, to),
            );
        }
    }
    masks(r, &set);
    attributes(r, &set);
    r.case("all these attributes changed nothing", || {
        equal("objects", set.file.count("")?, 9)
    });
    r.case("the queue pairs still work after bad attributes", || {
        set.works(4)
    });
}
