// SPDX-License-Identifier: GPL-2.0

//! Decoding of requests: whatever user space writes.

use crate::logic::remote::RemoteOp;
use crate::uapi::abi;
use crate::uapi::decode::{decode, is_plain, DecodedWr, Elements, Limits, Op, Refusal};
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

/// What was decoded, as the bytes that must have been there.
fn encode(request: &DecodedWr) -> abi::Wr {
    let mut wr = abi::Wr {
        user_data: request.user_data,
        qp: request.qp,
        opcode: request.opcode,
        timeout_ns: request.limit.map_or(0, |limit| limit.ns),
        ..abi::Wr::default()
    };
    let opcode = match request.op {
        Op::Remote(remote) => {
            (wr.remote_addr, wr.rkey) = (remote.addr, remote.rkey);
            match remote.op {
                RemoteOp::Write { imm: None } => abi::WR_RDMA_WRITE,
                RemoteOp::Write { imm: Some(imm) } => {
                    wr.imm_data = imm;
                    abi::WR_RDMA_WRITE_WITH_IMM
                }
                RemoteOp::Read => abi::WR_RDMA_READ,
                RemoteOp::CompareSwap { compare, swap } => {
                    (wr.arg0, wr.arg1) = (compare, swap);
                    abi::WR_ATOMIC_CMP_AND_SWP
                }
                RemoteOp::FetchAdd { add } => {
                    wr.arg0 = add;
                    abi::WR_ATOMIC_FETCH_AND_ADD
                }
            }
        }
        Op::Send {
            imm,
            invalidate,
            to,
        } => {
            wr.imm_data = imm.or(invalidate).unwrap_or(0);
            if let Some(to) = to {
                wr.arg0 = u64::from(to.ah) | (u64::from(to.qp_num) << 32);
                wr.arg1 = to.qkey.into();
            }
            match (imm, invalidate) {
                (None, None) => abi::WR_SEND,
                (Some(_), None) => abi::WR_SEND_WITH_IMM,
                (None, Some(_)) => abi::WR_SEND_WITH_INV,
                (Some(_), Some(_)) => panic!("no opcode does both"),
            }
        }
        Op::Recv => abi::WR_RECV,
    };
    assert_eq!(opcode, request.opcode);
    match request.elements {
        Elements::None => {}
        Elements::One(sge) => {
            wr.num_sge = 1;
            wr.sge = sge;
        }
        Elements::Array { addr, count } => {
            wr.num_sge = u8::try_from(count).unwrap();
            wr.sge.offset = addr;
        }
    }
    for (on, flag) in [
        (request.signaled, abi::SEND_SIGNALED),
        (request.fence, abi::SEND_FENCE),
        (request.solicited, abi::SEND_SOLICITED),
        (request.inline, abi::SEND_INLINE),
        (request.limit.is_some(), abi::REQUEST_TIMEOUT),
    ] {
        if on {
            wr.flags |= flag;
        }
    }
    wr
}

/// A request of any bytes whatever.
fn anything() -> impl Strategy<Value = abi::Wr> {
    (
        any::<(u64, u32, u8, u8, u16)>(),
        any::<(u64, u32, u32)>(),
        any::<(u32, u32, u64)>(),
        any::<(u64, u64, u64, u64)>(),
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
                arg0: args.0,
                arg1: args.1,
                timeout_ns: args.2,
                reserved: args.3,
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
        (timeout, prop_oneof![9 => Just(0u64), 1 => any::<u64>()]),
    )
        .prop_map(
            |((user_data, qp), (opcode, num_sge, flags), remote, sge, args, rest)| abi::Wr {
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
                arg0: args.0,
                arg1: args.1,
                timeout_ns: rest.0,
                reserved: rest.1,
            },
        )
}

/// What the header says of each opcode, written down once more: flags, remote memory, immediate
/// data, arguments.
fn allowed(opcode: u8) -> Option<(u16, bool, bool, u32)> {
    let time = abi::REQUEST_TIMEOUT;
    let any = abi::SEND_FENCE | abi::SEND_SIGNALED | time;
    let data = any | abi::SEND_INLINE | abi::SEND_SOLICITED;
    Some(match opcode {
        0 => (any | abi::SEND_INLINE, true, false, 0),
        1 => (data, true, true, 0),
        2 => (data, false, false, 2),
        3 => (data, false, true, 2),
        9 => (data, false, true, 0),
        4 => (any, true, false, 0),
        5 => (any, true, false, 2),
        6 => (any, true, false, 1),
        128 => (time, false, false, 0),
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
    let atomic = [abi::WR_ATOMIC_CMP_AND_SWP, abi::WR_ATOMIC_FETCH_AND_ADD].contains(&wr.opcode);
    let no_sge = wr.sge.buffer == 0 && wr.sge.length == 0;
    let invalid = wr.flags & !flags != 0
        || (wr.flags & abi::REQUEST_TIMEOUT != 0) != (wr.timeout_ns != 0)
        || wr.reserved != 0
        || !remote && (wr.remote_addr != 0 || wr.rkey != 0)
        || !imm && wr.imm_data != 0
        || args < 1 && wr.arg0 != 0
        || args < 2 && wr.arg1 != 0
        || args == 2 && !atomic && wr.arg1 >> 32 != 0
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

/// Whether a request takes the short way: nothing is wrong with it but its length, and it has one
/// element in a buffer.
fn takes_short_way(wr: &abi::Wr) -> bool {
    let atomic = [abi::WR_ATOMIC_CMP_AND_SWP, abi::WR_ATOMIC_FETCH_AND_ADD].contains(&wr.opcode);
    let wrong = expected(wr, LIMITS);
    wrong.iter().all(|refusal| *refusal == Refusal::TooLong)
        && !atomic
        && (wr.num_sge, wr.arg0, wr.arg1) == (1, 0, 0)
        && wr.sge.buffer != 0
        && wr.flags & abi::REQUEST_TIMEOUT == 0
}

fn check(wr: &abi::Wr, limits: Limits) -> Result<(), TestCaseError> {
    prop_assert_eq!(is_plain(wr), takes_short_way(wr), "{:?}", wr);
    let wrong = expected(wr, limits);
    match decode(wr, limits) {
        Ok(request) => {
            prop_assert!(wrong.is_empty(), "accepted: {:?}, expected {:?}", wr, wrong);
            prop_assert_eq!(encode(&request), *wr);
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

    #[test]
    fn any_bytes(wr in anything(), max_sge in any::<u32>(), max_inline in any::<u32>()) {
        check(&wr, Limits { max_sge, max_inline })?;
    }

    #[test]
    fn what_is_nearly_right(wr in plausible()) {
        check(&wr, LIMITS)?;
    }

    #[test]
    fn plain_requests(wr in plausible(), buffer in 1u32.., flags in 0u16..8) {
        let one = abi::Wr { num_sge: 1, flags, arg0: 0, arg1: 0, timeout_ns: 0, reserved: 0, ..wr };
        check(&abi::Wr { sge: abi::Sge { buffer, ..wr.sge }, ..one }, LIMITS)?;
    }

    #[test]
    fn bytes_beyond_what_an_opcode_has(wr in plausible(), bit in 0u32..640) {
        // Each bit of a request that is in order says something, or must not be set: no two
        // requests mean the same.
        if let Ok(request) = decode(&wr, LIMITS) {
            let other = flip(&wr, bit);
            if let Ok(changed) = decode(&other, LIMITS) {
                prop_assert_ne!(request, changed);
            }
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
        6 => wr.arg0 ^= 1 << by,
        7 => wr.arg1 ^= 1 << by,
        8 => wr.timeout_ns ^= 1 << by,
        _ => wr.reserved ^= 1 << by,
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
        assert!(
            header.contains(&format!(" *  {name} ")),
            "the header says nothing of {name}"
        );
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
    assert!(decode(&inline(256), LIMITS).is_ok());
    assert_eq!(decode(&inline(257), LIMITS), Err(Refusal::TooLong));
    let many = |num_sge| abi::Wr {
        opcode: abi::WR_SEND,
        num_sge,
        ..abi::Wr::default()
    };
    assert!(decode(&many(16), LIMITS).is_ok());
    assert_eq!(decode(&many(17), LIMITS), Err(Refusal::TooManyElements));
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
                    decode(&wr, LIMITS).is_ok(),
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
    assert!(decode(&good, LIMITS).is_ok());
    let refusal = |change: fn(&mut abi::Wr)| {
        let mut wr = good;
        change(&mut wr);
        decode(&wr, LIMITS).map_err(Refusal::errno).unwrap_err()
    };
    assert_eq!(refusal(|wr| wr.opcode = 7), 95);
    assert_eq!(refusal(|wr| wr.opcode = 16), 22);
    assert_eq!(refusal(|wr| wr.opcode = 255), 22);
    assert_eq!(refusal(|wr| wr.flags = 1 << 4), 22);
    assert_eq!(refusal(|wr| wr.rkey = 1), 22);
    assert_eq!(refusal(|wr| wr.imm_data = 1), 22);
    assert_eq!(refusal(|wr| wr.arg1 = 1 << 32), 22);
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
