// SPDX-License-Identifier: GPL-2.0

//! Work requests and their completions.

use super::{
    ah::Ah,
    mr::Mr,
    pd::Pd,
    queue::Wr, //
};
use crate::bindings;
use kernel::{
    ffi::c_int,
    prelude::*,
    sync::Arc, //
};

/// Operations of a send queue.
#[derive(Clone)]
pub(crate) enum Operation {
    /// `IB_WR_RDMA_WRITE`, with immediate data `IB_WR_RDMA_WRITE_WITH_IMM`.
    Write {
        /// Address in the peer's memory region.
        remote_addr: u64,
        /// Key of that region.
        rkey: u32,
        /// Immediate data, in host order.
        imm: Option<u32>,
    },
    /// `IB_WR_RDMA_READ`.
    Read {
        /// Address in the peer's memory region.
        remote_addr: u64,
        /// Key of that region.
        rkey: u32,
    },
    /// `IB_WR_SEND`, `IB_WR_SEND_WITH_IMM` or `IB_WR_SEND_WITH_INV`.
    Send(Tail),
    /// The same of a datagram, without a key.
    Datagram {
        /// The way to the receiver; kept until the slot of the request is used again.
        ah: Arc<Ah>,
        /// The receiver's number; 24 bits.
        qp_num: u32,
        /// The receiver's queue key.
        qkey: u32,
        /// Immediate data, in host order.
        imm: Option<u32>,
    },
    /// `IB_WR_ATOMIC_CMP_AND_SWP`.
    CompareSwap {
        /// Address in the peer's memory region, a multiple of 8.
        remote_addr: u64,
        /// Key of that region.
        rkey: u32,
        /// What must stand there.
        compare: u64,
        /// What then stands there.
        swap: u64,
    },
    /// `IB_WR_ATOMIC_FETCH_AND_ADD`.
    FetchAdd {
        /// Address in the peer's memory region, a multiple of 8.
        remote_addr: u64,
        /// Key of that region.
        rkey: u32,
        /// What is added, modulo 2^64.
        add: u64,
    },
}

impl Operation {
    /// Writes to the beginning of the peer's region `mr`, which is at hand where the peer is in the
    /// same module.
    pub(crate) fn write_to(mr: &Mr) -> Self {
        Self::Write {
            remote_addr: mr.addr(),
            rkey: mr.rkey(),
            imm: None,
        }
    }

    /// Reads from the beginning of the peer's region `mr`.
    pub(crate) fn read_from(mr: &Mr) -> Self {
        Self::Read {
            remote_addr: mr.addr(),
            rkey: mr.rkey(),
        }
    }

    /// Returns the address of a datagram.
    pub(super) fn ah(&self) -> Option<&Arc<Ah>> {
        match self {
            Self::Datagram { ah, .. } => Some(ah),
            _ => None,
        }
    }

    /// Returns the request as drivers take it; `wr` is its general part.
    pub(super) fn to_raw(&self, mut wr: bindings::ib_send_wr) -> Wr {
        match *self {
            Self::Write {
                remote_addr,
                rkey,
                imm,
            } => {
                wr.opcode = match set_imm(&mut wr, imm) {
                    false => bindings::IB_WR_RDMA_WRITE,
                    true => bindings::IB_WR_RDMA_WRITE_WITH_IMM,
                };
                rdma_wr(wr, remote_addr, rkey)
            }
            Self::Read { remote_addr, rkey } => {
                wr.opcode = bindings::IB_WR_RDMA_READ;
                rdma_wr(wr, remote_addr, rkey)
            }
            Self::Send(tail) => {
                wr.opcode = match tail {
                    Tail::None => bindings::IB_WR_SEND,
                    Tail::Imm(imm) => {
                        set_imm(&mut wr, Some(imm));
                        bindings::IB_WR_SEND_WITH_IMM
                    }
                    Tail::Invalidate(rkey) => {
                        wr.ex.invalidate_rkey = rkey;
                        bindings::IB_WR_SEND_WITH_INV
                    }
                };
                Wr { send: wr }
            }
            Self::Datagram {
                ref ah,
                qp_num,
                qkey,
                imm,
            } => {
                wr.opcode = match set_imm(&mut wr, imm) {
                    false => bindings::IB_WR_SEND,
                    true => bindings::IB_WR_SEND_WITH_IMM,
                };
                Wr {
                    ud: bindings::ib_ud_wr {
                        wr,
                        ah: ah.as_raw(),
                        remote_qpn: qp_num,
                        remote_qkey: qkey,
                        ..Default::default()
                    },
                }
            }
            Self::CompareSwap {
                remote_addr,
                rkey,
                compare,
                swap,
            } => {
                wr.opcode = bindings::IB_WR_ATOMIC_CMP_AND_SWP;
                atomic_wr(wr, remote_addr, rkey, compare, swap)
            }
            Self::FetchAdd {
                remote_addr,
                rkey,
                add,
            } => {
                wr.opcode = bindings::IB_WR_ATOMIC_FETCH_AND_ADD;
                atomic_wr(wr, remote_addr, rkey, add, 0)
            }
        }
    }
}

/// Puts immediate data into a request, and returns whether there is any.
fn set_imm(wr: &mut bindings::ib_send_wr, imm: Option<u32>) -> bool {
    if let Some(imm) = imm {
        wr.ex.imm_data = imm.to_be();
    }
    imm.is_some()
}

/// Returns a request for memory of the peer.
fn rdma_wr(wr: bindings::ib_send_wr, remote_addr: u64, rkey: u32) -> Wr {
    Wr {
        rdma: bindings::ib_rdma_wr {
            wr,
            remote_addr,
            rkey,
        },
    }
}

/// Returns an atomic request.
fn atomic_wr(
    wr: bindings::ib_send_wr,
    remote_addr: u64,
    rkey: u32,
    compare_add: u64,
    swap: u64,
) -> Wr {
    Wr {
        atomic: bindings::ib_atomic_wr {
            wr,
            remote_addr,
            compare_add,
            swap,
            rkey,
            ..Default::default()
        },
    }
}

/// What goes with a Send.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tail {
    /// Nothing.
    None,
    /// Immediate data, in host order.
    Imm(u32),
    /// A key that the peer's device invalidates.
    Invalidate(u32),
}

/// Options of a request: `enum ib_send_flags`.
#[derive(Clone, Copy, Default)]
pub(crate) struct Flags {
    /// Starts after the reads and atomics before it are done.
    pub(crate) fence: bool,
    /// Makes a completion when it succeeds; one that fails makes one in any case.
    pub(crate) signaled: bool,
    /// Raises a solicited event at the peer.
    pub(crate) solicited: bool,
}

impl Flags {
    /// Returns the flags as drivers take them.
    pub(super) fn to_raw(self, inline: bool) -> c_int {
        [
            (self.fence, bindings::IB_SEND_FENCE),
            (self.signaled, bindings::IB_SEND_SIGNALED),
            (self.solicited, bindings::IB_SEND_SOLICITED),
            (inline, bindings::IB_SEND_INLINE),
        ]
        .into_iter()
        .fold(
            0,
            |flags, (set, flag)| if set { flags | flag } else { flags },
        )
    }
}

/// A piece of registered memory that a request reads or writes.
///
/// Holds the memory region until the request's slot is used again.
///
/// # Invariants
///
/// `offset` and `length` lie in the region, `length` is not 0.
pub(crate) struct Local {
    mr: Arc<Mr>,
    offset: u64,
    length: u32,
}

impl Local {
    /// `length` bytes at `offset` of `mr`; [`ERANGE`] when they are not inside, or none.
    pub(crate) fn new(mr: Arc<Mr>, offset: u64, length: u32) -> Result<Self> {
        let end = offset.checked_add(length.into()).ok_or(ERANGE)?;
        if length == 0 || end > mr.length() {
            return Err(ERANGE);
        }
        // INVARIANT: Just checked.
        Ok(Self { mr, offset, length })
    }

    /// Returns the protection domain of the memory.
    pub(super) fn pd(&self) -> &Arc<Pd> {
        self.mr.pd()
    }

    pub(super) fn to_raw(&self) -> bindings::ib_sge {
        bindings::ib_sge {
            // Cannot wrap: the region lies at these addresses.
            addr: self.mr.addr().wrapping_add(self.offset),
            length: self.length,
            lkey: self.mr.lkey(),
        }
    }
}

/// What became of a request: `struct ib_wc`.
#[derive(Clone, Copy, Default)]
pub(crate) struct WorkCompletion {
    /// `enum ib_wc_status`: 0 is success.
    pub(crate) status: u32,
    /// `enum ib_wc_opcode`; only valid when it succeeded.
    pub(crate) opcode: u32,
    /// Driver's own code.
    pub(crate) vendor_err: u32,
    /// Bytes received.
    pub(crate) byte_len: u32,
    /// Immediate data in host order.
    pub(crate) imm: Option<u32>,
    /// Key that the peer had invalidated.
    pub(crate) invalidated: Option<u32>,
    /// Whether a GRH stands before the data.
    pub(crate) grh: bool,
    /// Sender, on UD.
    pub(crate) src_qp: u32,
    /// P_Key index, on UD.
    pub(crate) pkey_index: u16,
    /// Sender's LID, on InfiniBand.
    pub(crate) slid: u32,
    /// Service level.
    pub(crate) sl: u8,
    /// Low bits of our LID.
    pub(crate) dlid_path_bits: u8,
    /// Port.
    pub(crate) port: u32,
}

impl WorkCompletion {
    /// What a request gets that was in a queue when its queue pair failed or went.
    pub(crate) const FLUSHED: Self = Self {
        status: bindings::IB_WC_WR_FLUSH_ERR,
        opcode: 0,
        vendor_err: 0,
        byte_len: 0,
        imm: None,
        invalidated: None,
        grh: false,
        src_qp: 0,
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
        port: 0,
    };

    /// Whether it succeeded.
    pub(crate) fn is_success(&self) -> bool {
        self.status == bindings::IB_WC_SUCCESS
    }

    pub(super) fn new(wc: &bindings::ib_wc) -> Self {
        let flags = wc.wc_flags as u32;
        // SAFETY: Both variants are 32-bit integers.
        let (imm, key) = unsafe { (wc.ex.imm_data, wc.ex.invalidate_rkey) };
        Self {
            status: wc.status,
            opcode: wc.opcode,
            vendor_err: wc.vendor_err,
            byte_len: wc.byte_len,
            imm: (flags & bindings::IB_WC_WITH_IMM != 0).then(|| u32::from_be(imm)),
            invalidated: (flags & bindings::IB_WC_WITH_INVALIDATE != 0).then_some(key),
            grh: flags & bindings::IB_WC_GRH != 0,
            src_qp: wc.src_qp,
            pkey_index: wc.pkey_index,
            slid: wc.slid,
            sl: wc.sl,
            dlid_path_bits: wc.dlid_path_bits,
            port: wc.port_num,
        }
    }
}
