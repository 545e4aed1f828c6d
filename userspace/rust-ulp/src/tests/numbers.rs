// SPDX-License-Identifier: MIT OR Apache-2.0

use crate::cm::State;
use crate::device::{AtomicCap, GidType, LinkLayer, LinkSpeed, PhysState, PortState};
use crate::grant::GrantState;
use crate::memory::BufferKind;
use crate::qp::QpState;
use crate::refusal::{Refusal, RejectReason};
use crate::status::{Opcode, Status};

#[test]
fn each_number_stands_for_one_value_which_keeps_it() {
    macro_rules! check {
        ($($name:ident)*) => { $(
            for code in 0..=u8::MAX {
                let code = code.into();
                assert_eq!($name::from_code(code).code(), code);
            }
        )* };
    }
    check!(AtomicCap BufferKind GidType GrantState LinkLayer LinkSpeed Opcode PhysState PortState);
    check!(QpState Refusal RejectReason State Status);
    for code in [256, 257, 258, u16::MAX] {
        assert_eq!(Status::from_code(code).code(), code);
    }
    assert_eq!(LinkSpeed::from_code(256).code(), 256);
}
