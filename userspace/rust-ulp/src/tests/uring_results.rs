// SPDX-License-Identifier: MIT OR Apache-2.0

//! The word of an io_uring completion beside its result.

use super::*;
use crate::fake::Kernel;
use crate::status::{Opcode, Status};

#[test]
fn the_extra_word_says_what_the_result_does_not() {
    let device = Kernel::new().device();
    let mut slot = Slot {
        wr_id: 7,
        opcode: abi::WC_RECV,
        ..Slot::default()
    };
    let outcome = |slot: &Slot, res, extra| slot.outcome(res, extra, device.inner());
    let (failed, status) = (-libc::EREMOTEIO, 10);
    let vendor_err = 0xbad << abi::URING_VENDOR_ERR_SHIFT;
    let third = 3 << abi::URING_INDEX_SHIFT;

    let flags = u64::from(abi::WC_WITH_IMM) << abi::URING_FLAGS_SHIFT;
    let sender = 0x12_3456 << abi::URING_SRC_QP_SHIFT;
    let done = outcome(&slot, 48, 0x89ab_cdef | sender | flags).unwrap();
    assert_eq!((done.wr_id, done.byte_len), (7, 48));
    assert_eq!((done.imm, done.src_qp), (Some(0x89ab_cdef), 0x12_3456));
    assert_eq!((done.opcode, done.invalidated), (Opcode::Recv, None));
    let done = outcome(&slot, 5, flags | abi::URING_RDMA_WITH_IMM).unwrap();
    assert_eq!((done.opcode, done.imm), (Opcode::RecvWriteImm, Some(0)));
    assert_eq!(done.flags, abi::WC_WITH_IMM);
    let done = outcome(&slot, failed, status | vendor_err).unwrap();
    assert_eq!(done.status, Status::RemoteAccess);
    assert_eq!((done.opcode, done.vendor_err), (Opcode::Recv, 0xbad));
    let error = outcome(&slot, -libc::ENOENT, 0).unwrap_err();
    assert_eq!(error.errno(), Some(libc::ENOENT));

    slot.count = Some(5);
    assert!(outcome(&slot, 5, 0).unwrap().ok().is_ok());
    let error = outcome(&slot, failed, status | third | vendor_err).unwrap_err();
    let Error::Batch {
        index: 3,
        posted: 5,
        cause,
    } = error
    else {
        panic!("{error:?}");
    };
    assert!(matches!(*cause, Error::Completion(_)), "{cause:?}");
    let error = outcome(&slot, -libc::EAGAIN, third).unwrap_err();
    let Error::Batch {
        index: 3,
        posted: 3,
        cause,
    } = error
    else {
        panic!("{error:?}");
    };
    assert!(matches!(*cause, Error::QueueFull), "{cause:?}");
}
