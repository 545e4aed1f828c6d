// SPDX-License-Identifier: MIT OR Apache-2.0

//! The end of one request.

use crate::abi;
use crate::device::DeviceInner;
use crate::error::{CompletionError, Error, Result};
use crate::gid::Gid;
use crate::status::{Opcode, Status};
use std::fmt;

/// The end of one request, good or bad: [`Self::ok`] tells.
#[doc(alias = "rust_ulp_cqe")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the request may have failed: call `ok()` or `check()`"]
#[non_exhaustive]
pub struct Completion {
    /// The request's number, as given to it with `wr_id`.
    pub wr_id: u64,
    /// The status: success, or why it failed.
    pub status: Status,
    /// The kind of the request.
    pub opcode: Opcode,
    /// The driver's own code for a failure.
    pub vendor_err: u32,
    /// Bytes received, read, or fetched by an atomic, if it succeeded; else 0. For
    /// [`Opcode::RecvWriteImm`], bytes that the peer wrote.
    pub byte_len: u32,
    /// Immediate data, in host order, where the peer sent some.
    pub imm: Option<u32>,
    /// The key of this side's grant that the peer took away with its message.
    pub invalidated: Option<u32>,
    /// Number of the queue pair that it was posted to.
    pub qp_num: u32,
    /// The value that the queue pair got with
    /// [`QpBuilder::user_data`](crate::qp::QpBuilder::user_data).
    pub qp_user_data: u64,
    pub(crate) qp: u32,
    /// Number of the device, to tell handles of different devices apart.
    pub(crate) device: u64,
    peer: Option<(u32, Gid)>,
    pub(crate) flags: u8,
    pub(crate) sl: u8,
    pub(crate) slid: u16,
    pub(crate) pkey_index: u16,
    pub(crate) src_qp: u32,
}

impl Completion {
    /// An empty one, to fill arrays with for [`Cq::poll_into`](crate::Cq::poll_into).
    pub const EMPTY: Self = Self {
        wr_id: 0,
        status: Status::Success,
        opcode: Opcode::Send,
        vendor_err: 0,
        byte_len: 0,
        imm: None,
        invalidated: None,
        qp_num: 0,
        qp_user_data: 0,
        qp: 0,
        device: 0,
        peer: None,
        flags: 0,
        sl: 0,
        slid: 0,
        pkey_index: 0,
        src_qp: 0,
    };

    pub(crate) fn new(cqe: &abi::Cqe, device: &DeviceInner) -> Self {
        let failed = cqe.status != 0;
        Self {
            wr_id: cqe.user_data,
            status: Status::from_code(cqe.status),
            opcode: Opcode::from_code(cqe.opcode),
            vendor_err: cqe.vendor_err,
            byte_len: cqe.byte_len,
            imm: (cqe.flags & abi::WC_WITH_IMM != 0).then_some(cqe.imm_data),
            invalidated: (cqe.flags & abi::WC_WITH_INVALIDATE != 0).then_some(cqe.imm_data),
            qp_num: cqe.qp_num,
            qp_user_data: cqe.qp_user_data,
            qp: cqe.qp,
            device: device.id(),
            // Only failures are explained: the others do not pay for it.
            peer: if failed { device.peer_of(cqe.qp) } else { None },
            flags: cqe.flags,
            sl: cqe.sl,
            slid: cqe.slid,
            pkey_index: cqe.pkey_index,
            src_qp: cqe.src_qp,
        }
    }

    /// Returns the completion itself if the request succeeded.
    ///
    /// # Errors
    ///
    /// [`Error::Completion`] with what is known about the failure.
    pub fn ok(self) -> Result<Self> {
        self.check()?;
        Ok(self)
    }

    /// Returns an error if the request failed, as [`Self::ok`], for callers that need nothing else
    /// of the completion.
    #[inline]
    pub fn check(&self) -> Result<()> {
        if self.status == Status::Success {
            return Ok(());
        }
        Err(Error::Completion(CompletionError {
            wr_id: self.wr_id,
            opcode: self.opcode,
            status: self.status,
            vendor_err: self.vendor_err,
            qp_num: self.qp_num,
            peer: self.peer,
        }))
    }
}

impl fmt::Display for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} request {} on queue pair {}: {}",
            self.opcode,
            self.wr_id,
            self.qp_num,
            self.status.name()
        )?;
        if self.byte_len != 0 {
            write!(f, ", {} bytes", self.byte_len)?;
        }
        if let Some(imm) = self.imm {
            write!(f, ", immediate data {imm:#x}")?;
        }
        Ok(())
    }
}
