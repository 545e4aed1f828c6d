// SPDX-License-Identifier: GPL-2.0

//! Checks of requests: whatever user space writes.

use crate::uapi::abi::{self, Zero};
use crate::uapi::decode::{check, shape, Limits, Refusal, TimeLimit};
use proptest::prelude::*;

const LIMITS: Limits = Limits {
    max_sge: 16,
    max_inline: 256,
};

const OPCODES: [u8; 9] = [
    abi::WR_RDMA_WRITE,
    abi::WR_RDMA_WRITE_WITH_IMM,
    abi::WR_SEND,
    abi::WR_SEND_WITH_IMM,
    abi::WR_RDMA_READ,
    abi::WR_ATOMIC_CMP_AND_SWP,
    abi::WR_ATOMIC_FETCH_AND_ADD,
    abi::WR_SEND_WITH_INV,
    abi::WR_RECV,
];

/// The operands of an atomic.
fn atomic(compare_add: u64, swap: u64) -> abi::WrArgs {
    abi::WrAtomic { compare_add, swap }.into()
}

/// The arguments as two words.
fn words(wr: &abi::Wr) -> [u64; 2] {
    let abi::WrAtomic { compare_add, swap } = wr.args.into();
    [compare_add, swap]
}

/// A request of any bytes whatever.
fn anything() -> impl Strategy<Value = abi::Wr> {
    (
        any::<(u64, u32, u8, u8, u16)>(),
        any::<(u64, u32, u32)>(),
        any::<(u32, u32, u64)>(),
        any::<(u64, u64, u64)>(),
    )
        .prop_map(
            |((user_data, qp, opcode, num_sge, flags), remote, sge, args)| abi::Wr {
                user_data,
                qp,
                opcode,
                num_sge,
                flags,
                remote_addr: remote.0,
                rkey: remote.1,
                imm_data: remote.2,
                sge: abi::Sge {
                    buffer: sge.0,
                    length: sge.1,
                    offset: sge.2,
                },
                args: atomic(args.0, args.1),
                timeout_ns: args.2,
            },
        )
}

/// A request whose fields are nearly right, in most cases.
fn plausible() -> impl Strategy<Value = abi::Wr> {
    let opcode = prop_oneof![9 => prop::sample::select(OPCODES.to_vec()), 1 => any::<u8>()];
    let or_zero = || prop_oneof![2 => Just(0u64), 1 => any::<u64>()];
    let or_zero32 = || prop_oneof![2 => Just(0u32), 1 => any::<u32>()];
    let sge = prop_oneof![
        2 => Just((0u32, 0u32, 0u64)),
        2 => (any::<u32>(), Just(8), any::<u64>()),
        1 => (any::<u32>(), 0u32..600, any::<u64>()),
        1 => (Just(0), Just(0), any::<u64>()),
    ];
    let timeout = prop_oneof![
        4 => Just(0u64),
        4 => any::<u64>(),
        1 => Just(abi::TIMEOUT_INFINITE),
    ];
    let addr =
        prop_oneof![1 => Just(0u64), 1 => any::<u64>().prop_map(|a| a & !7), 1 => any::<u64>()];
    (
        any::<(u64, u32)>(),
        (
            opcode,
            prop_oneof![8 => 0u8..4, 1 => 14u8..19, 1 => any::<u8>()],
            prop_oneof![9 => 0u16..64, 1 => any::<u16>()],
        ),
        (addr, or_zero32(), or_zero32()),
        sge,
        (or_zero(), or_zero()),
        timeout,
    )
        .prop_map(
            |((user_data, qp), (opcode, num_sge, flags), remote, sge, args, timeout_ns)| abi::Wr {
                user_data,
                qp,
                opcode,
                num_sge,
                flags,
                remote_addr: remote.0,
                rkey: remote.1,
                imm_data: remote.2,
                sge: abi::Sge {
                    buffer: sge.0,
                    length: sge.1,
                    offset: sge.2,
                },
                args: atomic(args.0, args.1),
                timeout_ns,
            },
        )
}

/// The words of the arguments that an opcode has.
const NONE: [u64; 2] = [0, 0];
const FIRST: [u64; 2] = [u64::MAX, 0];
const BOTH: [u64; 2] = [u64::MAX; 2];
/// All members of a receiver but its padding.
const RECEIVER: [u64; 2] = [u64::MAX, u64::from_le(0xffff_ffff)];

/// What the header says of each opcode, written down once more: flags, remote memory, immediate
/// data, arguments.
fn allowed(opcode: u8) -> Option<(u16, bool, bool, [u64; 2])> {
    let time = abi::REQUEST_TIMEOUT;
    let any = abi::SEND_FENCE | abi::SEND_SIGNALED | time;
    let data = any | abi::SEND_INLINE | abi::SEND_SOLICITED;
    Some(match opcode {
        0 => (any | abi::SEND_INLINE, true, false, NONE),
        1 => (data, true, true, NONE),
        2 => (data, false, false, RECEIVER),
        3 => (data, false, true, RECEIVER),
        9 => (data, false, true, NONE),
        4 => (any, true, false, NONE),
        5 => (any, true, false, BOTH),
        6 => (any, true, false, FIRST),
        128 => (time, false, false, NONE),
        _ => return None,
    })
}

/// Whether a request is in order, and if not, which errors would be right.
fn expected(wr: &abi::Wr, limits: Limits) -> Vec<Refusal> {
    let Some((flags, remote, imm, args)) = allowed(wr.opcode) else {
        return vec![match wr.opcode {
            7 | 8 | 10..=15 => Refusal::Unsupported,
            _ => Refusal::Invalid,
        }];
    };
    let mut wrong = Vec::new();
    let atomic = is_atomic(wr.opcode);
    let no_sge = wr.sge.buffer == 0 && wr.sge.length == 0;
    let invalid = wr.flags & !flags != 0
        || (wr.flags & abi::REQUEST_TIMEOUT != 0) != (wr.timeout_ns != 0)
        || !remote && (wr.remote_addr != 0 || wr.rkey != 0)
        || !imm && wr.imm_data != 0
        || words(wr)
            .iter()
            .zip(args)
            .any(|(word, has)| word & !has != 0)
        || wr.num_sge == 0 && (!no_sge || wr.sge.offset != 0)
        || wr.num_sge > 1 && !no_sge
        || atomic && (wr.num_sge != 1 || wr.sge.length != 8 || wr.remote_addr % 8 != 0);
    if invalid {
        wrong.push(Refusal::Invalid);
    }
    if u32::from(wr.num_sge) > limits.max_sge {
        wrong.push(Refusal::TooManyElements);
    }
    if wr.flags & abi::SEND_INLINE != 0 && wr.num_sge == 1 && wr.sge.length > limits.max_inline {
        wrong.push(Refusal::TooLong);
    }
    wrong
}

/// Whether the opcode is an atomic.
fn is_atomic(opcode: u8) -> bool {
    [abi::WR_ATOMIC_CMP_AND_SWP, abi::WR_ATOMIC_FETCH_AND_ADD].contains(&opcode)
}

fn look(wr: &abi::Wr, limits: Limits) -> Result<(), TestCaseError> {
    let wrong = expected(wr, limits);
    match check(wr, limits) {
        Ok(rule) => {
            prop_assert!(wrong.is_empty(), "accepted: {:?}, expected {:?}", wr, wrong);
            let writes =
                is_atomic(wr.opcode) || [abi::WR_RECV, abi::WR_RDMA_READ].contains(&wr.opcode);
            let receiver = [abi::WR_SEND, abi::WR_SEND_WITH_IMM].contains(&wr.opcode);
            prop_assert_eq!(rule.writes_local(), writes);
            prop_assert_eq!(rule.has_receiver(), receiver);
            prop_assert_eq!(rule.is_atomic(), is_atomic(wr.opcode));
            let limit = TimeLimit::of(wr).map_or(0, |limit| limit.ns);
            prop_assert_eq!(limit, wr.timeout_ns);
        }
        Err(refusal) => prop_assert!(
            wrong.contains(&refusal),
            "{:?}: {:?}, expected {:?}",
            wr,
            refusal,
            wrong
        ),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// What a request with one element, without inline data and arguments, was accepted with, accepts
    /// another one of its shape exactly if that has no arguments either, and would be accepted by itself.
    #[test]
    fn another_of_its_shape(mut first in plausible(), mut second in plausible()) {
        first.num_sge = 1;
        first.flags &= !abi::SEND_INLINE;
        first.args = abi::WrArgs::ZERO;
        (second.opcode, second.num_sge, second.flags) = (first.opcode, first.num_sge, first.flags);
        prop_assert_eq!(shape(&first), shape(&second));
        if let Ok(rule) = check(&first, LIMITS) {
            if !rule.is_atomic() {
                let alone = check(&second, LIMITS).is_ok() && words(&second) == [0; 2];
                prop_assert_eq!(rule.accepts_another(&second), alone);
            }
        }
    }

    /// Requests of one shape have the same opcode, number of elements and flags.
    #[test]
    fn shapes_differ(one in plausible(), other in plausible()) {
        let parts = |wr: &abi::Wr| (wr.opcode, wr.num_sge, wr.flags);
        prop_assert_eq!(shape(&one) == shape(&other), parts(&one) == parts(&other));
    }

    #[test]
    fn any_bytes(wr in anything(), max_sge in any::<u32>(), max_inline in any::<u32>()) {
        look(&wr, Limits { max_sge, max_inline })?;
    }

    #[test]
    fn what_is_nearly_right(wr in plausible(), max_sge in 0u32..=16, max_inline in 0u32..=512) {
        look(&wr, LIMITS)?;
        look(&wr, Limits { max_sge, max_inline })?;
    }

    #[test]
    fn plain_requests(wr in plausible(), buffer in 1u32.., flags in 0u16..8, max_sge in 0u32..3) {
        let sge = abi::Sge { buffer, ..wr.sge };
        let args = abi::WrArgs::default();
        let wr = abi::Wr { num_sge: 1, flags, args, timeout_ns: 0, sge, ..wr };
        look(&wr, Limits { max_sge, ..LIMITS })?;
    }

    #[test]
    fn bytes_beyond_what_an_opcode_has(wr in plausible(), bit in 0u32..576) {
        // One bit more or less in a request that is in order.
        if check(&wr, LIMITS).is_ok() {
            look(&flip(&wr, bit), LIMITS)?;
        }
    }
}

fn flip(wr: &abi::Wr, bit: u32) -> abi::Wr {
    let mut wr = *wr;
    let by = bit % 64;
    match bit / 64 {
        0 => wr.user_data ^= 1 << by,
        1 if by < 32 => wr.qp ^= 1 << by,
        1 if by < 40 => wr.opcode ^= 1 << (by - 32),
        1 if by < 48 => wr.num_sge ^= 1 << (by - 40),
        1 => wr.flags ^= 1 << (by - 48),
        2 => wr.remote_addr ^= 1 << by,
        3 if by < 32 => wr.rkey ^= 1 << by,
        3 => wr.imm_data ^= 1 << (by - 32),
        4 if by < 32 => wr.sge.buffer ^= 1 << by,
        4 => wr.sge.length ^= 1 << (by - 32),
        5 => wr.sge.offset ^= 1 << by,
        6 => wr.args = atomic(words(&wr)[0] ^ (1 << by), words(&wr)[1]),
        7 => wr.args = atomic(words(&wr)[0], words(&wr)[1] ^ (1 << by)),
        _ => wr.timeout_ns ^= 1 << by,
    }
    wr
}

#[test]
fn refusals_have_the_errnos_of_the_header() {
    let header =
        std::fs::read_to_string(crate::repository().join("rust_ulp/uapi/rust_ulp.h")).unwrap();
    for (refusal, errno, name) in [
        (Refusal::Invalid, 22, "EINVAL"),
        (Refusal::Unsupported, 95, "EOPNOTSUPP"),
        (Refusal::TooManyElements, 7, "E2BIG"),
        (Refusal::TooLong, 90, "EMSGSIZE"),
    ] {
        assert_eq!(refusal.errno(), errno);
        let is_told = header
            .lines()
            .filter_map(|line| line.strip_prefix(" * "))
            .any(|line| line.trim_start().starts_with(&format!("{name} ")));
        assert!(is_told, "the header says nothing of {name}");
    }
}

#[test]
fn limits_are_where_they_are_said_to_be() {
    let inline = |length| abi::Wr {
        opcode: abi::WR_SEND,
        flags: abi::SEND_INLINE,
        num_sge: 1,
        sge: abi::Sge {
            buffer: 0,
            length,
            offset: 1,
        },
        ..abi::Wr::default()
    };
    assert!(check(&inline(256), LIMITS).is_ok());
    assert_eq!(check(&inline(257), LIMITS), Err(Refusal::TooLong));
    let many = |num_sge| abi::Wr {
        opcode: abi::WR_SEND,
        num_sge,
        ..abi::Wr::default()
    };
    assert!(check(&many(16), LIMITS).is_ok());
    assert_eq!(check(&many(17), LIMITS), Err(Refusal::TooManyElements));
    for opcode in [abi::WR_ATOMIC_CMP_AND_SWP, abi::WR_ATOMIC_FETCH_AND_ADD] {
        for remote_addr in 0..64 {
            for length in 0..17 {
                let wr = abi::Wr {
                    opcode,
                    remote_addr,
                    num_sge: 1,
                    sge: abi::Sge {
                        buffer: 1,
                        length,
                        offset: 0,
                    },
                    ..abi::Wr::default()
                };
                assert_eq!(
                    check(&wr, LIMITS).is_ok(),
                    remote_addr % 8 == 0 && length == 8
                );
            }
        }
    }
}

#[test]
fn each_class_of_refusal() {
    let good = abi::Wr {
        opcode: abi::WR_SEND,
        num_sge: 1,
        sge: abi::Sge {
            buffer: 1,
            length: 8,
            offset: 0,
        },
        ..abi::Wr::default()
    };
    assert!(check(&good, LIMITS).is_ok());
    let refusal = |change: fn(&mut abi::Wr)| {
        let mut wr = good;
        change(&mut wr);
        check(&wr, LIMITS).map_err(Refusal::errno).unwrap_err()
    };
    assert_eq!(refusal(|wr| wr.opcode = 7), 95);
    assert_eq!(refusal(|wr| wr.opcode = 16), 22);
    assert_eq!(refusal(|wr| wr.opcode = 255), 22);
    assert_eq!(refusal(|wr| wr.flags = 1 << 4), 22);
    assert_eq!(refusal(|wr| wr.rkey = 1), 22);
    assert_eq!(refusal(|wr| wr.imm_data = 1), 22);
    for opcode in [abi::WR_SEND, abi::WR_SEND_WITH_IMM] {
        let to = |pad| abi::WrUd {
            ah: 1,
            qp_num: 2,
            qkey: 3,
            pad,
        };
        let with = |pad| {
            let args = to(pad).into();
            check(
                &abi::Wr {
                    opcode,
                    args,
                    ..good
                },
                LIMITS,
            )
        };
        assert!(with(0).is_ok());
        assert_eq!(with(1), Err(Refusal::Invalid));
    }
    let args = |opcode, args| {
        let remote = abi::Wr {
            opcode,
            args,
            ..good
        };
        check(&remote, LIMITS).map_err(Refusal::errno).err()
    };
    assert_eq!(args(abi::WR_ATOMIC_CMP_AND_SWP, atomic(1, 1)), None);
    assert_eq!(args(abi::WR_ATOMIC_FETCH_AND_ADD, atomic(1, 0)), None);
    assert_eq!(args(abi::WR_ATOMIC_FETCH_AND_ADD, atomic(1, 1)), Some(22));
    for opcode in [
        abi::WR_RDMA_WRITE,
        abi::WR_RDMA_READ,
        abi::WR_SEND_WITH_INV,
        abi::WR_RECV,
    ] {
        assert_eq!(args(opcode, atomic(0, 0)), None);
        assert_eq!(args(opcode, atomic(1, 0)), Some(22));
        assert_eq!(args(opcode, atomic(0, 1 << 63)), Some(22));
    }
    assert_eq!(refusal(|wr| wr.num_sge = 0), 22);
    assert_eq!(refusal(|wr| wr.num_sge = 2), 22);
    assert_eq!(
        refusal(|wr| (wr.num_sge, wr.sge) = (17, abi::Sge::default())),
        7
    );
    assert_eq!(
        refusal(|wr| (wr.flags, wr.sge.length) = (abi::SEND_INLINE, 257)),
        90
    );
    assert_eq!(
        refusal(|wr| (wr.opcode, wr.sge.length) = (abi::WR_ATOMIC_FETCH_AND_ADD, 4)),
        22
    );
}
