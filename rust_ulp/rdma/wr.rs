// SPDX-License-Identifier: GPL-2.0

//! Work requests and their completions.

use super::{
    ah::Ah,
    mr::{
        Memory,
        Mr, //
    }, //
};
use crate::{
    bindings,
    logic::remote::{
        Remote,
        RemoteOp, //
    }, //
};
use kernel::{
    ffi::c_int,
    prelude::*,
    sync::Arc, //
};

/// A work request in the form that drivers take. Every variant of a send request begins with
/// `send`.
#[derive(Clone, Copy)]
pub(super) union Wr {
    pub(super) send: bindings::ib_send_wr,
    pub(super) rdma: bindings::ib_rdma_wr,
    pub(super) atomic: bindings::ib_atomic_wr,
    pub(super) ud: bindings::ib_ud_wr,
    pub(super) reg: bindings::ib_reg_wr,
    pub(super) recv: bindings::ib_recv_wr,
}

/// The operation of a plain request, which has one element and no address handle.
///
/// ```
/// fn write_to(peer: &mr::Mr) -> PlainOp {
///     PlainOp::Write { rkey: peer.rkey(), imm: None }
/// }
/// ```
#[derive(Clone, Copy)]
pub(crate) enum PlainOp {
    /// `IB_WR_RDMA_WRITE` or `IB_WR_RDMA_WRITE_WITH_IMM`.
    Write {
        /// The key of the peer's region.
        rkey: u32,
        /// Immediate data, in host order.
        imm: Option<u32>,
    },
    /// `IB_WR_RDMA_READ`.
    Read {
        /// The key of the peer's region.
        rkey: u32,
    },
    /// `IB_WR_SEND`, `IB_WR_SEND_WITH_IMM` or `IB_WR_SEND_WITH_INV`.
    Send(Tail),
    /// A receive.
    Recv,
}

impl PlainOp {
    /// Returns the operation in the form that drivers take.
    #[inline(always)]
    pub(super) fn to_raw(self) -> RawOp {
        let mut wr = bindings::ib_send_wr::default();
        let (opcode, rkey) = match self {
            Self::Write { rkey, imm } => match set_imm(&mut wr, imm) {
                false => (bindings::IB_WR_RDMA_WRITE, rkey),
                true => (bindings::IB_WR_RDMA_WRITE_WITH_IMM, rkey),
            },
            Self::Read { rkey } => (bindings::IB_WR_RDMA_READ, rkey),
            Self::Send(tail) => (tail.set(&mut wr), 0),
            Self::Recv => return RawOp::Recv,
        };
        let ex = wr.ex;
        RawOp::Send { opcode, ex, rkey }
    }
}

/// The fields of a work request that a [`PlainOp`] decides.
#[derive(Clone, Copy)]
pub(super) enum RawOp {
    Send {
        opcode: bindings::ib_wr_opcode,
        ex: bindings::ib_send_wr__bindgen_ty_2,
        rkey: u32,
    },
    Recv,
}

impl RawOp {
    /// Writes the request to `to` in the form that drivers take. `remote_addr` is that of the peer's
    /// memory, and 0 for a send; `send_flags` have no meaning for a receive.
    #[inline(always)]
    pub(super) fn fill(self, to: &mut Wr, remote_addr: u64, send_flags: c_int) {
        match self {
            Self::Send { opcode, ex, rkey } => {
                let wr = bindings::ib_send_wr {
                    num_sge: 1,
                    opcode,
                    send_flags,
                    ex,
                    ..Default::default()
                };
                to.rdma = bindings::ib_rdma_wr {
                    wr,
                    remote_addr,
                    rkey,
                };
            }
            Self::Recv => {
                to.recv = bindings::ib_recv_wr {
                    num_sge: 1,
                    ..Default::default()
                };
            }
        }
    }
}

/// An operation of a send queue: `enum ib_wr_opcode`.
///
/// ```
/// # use crate::logic::remote::{Remote, RemoteOp};
/// fn count(addr: u64, rkey: u32) -> Operation {
///     Operation::Remote(Remote { addr, rkey, op: RemoteOp::FetchAdd { add: 1 } })
/// }
/// ```
#[derive(Clone)]
pub(crate) enum Operation {
    /// A Write, a Read or an atomic.
    Remote(Remote),
    /// `IB_WR_SEND`, `IB_WR_SEND_WITH_IMM` or `IB_WR_SEND_WITH_INV`.
    Send(Tail),
    /// `IB_WR_SEND` or `IB_WR_SEND_WITH_IMM` on UD.
    Datagram {
        /// The address of the receiver; kept until the slot of the request is reused.
        ah: Arc<Ah>,
        /// The number of the receiver's queue pair; 24 bits.
        qp_num: u32,
        /// The queue key of the receiver.
        qkey: u32,
        /// Immediate data, in host order.
        imm: Option<u32>,
    },
}

impl Operation {
    /// Writes to the beginning of the peer's region `mr`, for peers in the same module.
    pub(crate) fn write_to(mr: &Mr) -> Self {
        Self::on(mr, RemoteOp::Write { imm: None })
    }

    /// Reads from the beginning of the peer's region `mr`, for peers in the same module.
    pub(crate) fn read_from(mr: &Mr) -> Self {
        Self::on(mr, RemoteOp::Read)
    }

    fn on(mr: &Mr, op: RemoteOp) -> Self {
        let (addr, rkey) = (mr.addr(), mr.rkey());
        Self::Remote(Remote { addr, rkey, op })
    }

    /// Returns the address of a datagram, [`None`] for other operations.
    pub(super) fn ah(&self) -> Option<&Arc<Ah>> {
        match self {
            Self::Datagram { ah, .. } => Some(ah),
            _ => None,
        }
    }

    /// Writes the request to `to` in the form that drivers take; `wr` is its general part.
    #[inline(always)]
    pub(super) fn fill(&self, to: &mut Wr, mut wr: bindings::ib_send_wr) {
        match *self {
            Self::Remote(remote) => fill_remote(to, wr, remote),
            Self::Send(tail) => {
                wr.opcode = tail.set(&mut wr);
                to.send = wr;
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
                to.ud = bindings::ib_ud_wr {
                    wr,
                    ah: ah.as_raw(),
                    remote_qpn: qp_num,
                    remote_qkey: qkey,
                    ..Default::default()
                };
            }
        }
    }
}

/// Sets the immediate data of a request, and returns whether there is any.
fn set_imm(wr: &mut bindings::ib_send_wr, imm: Option<u32>) -> bool {
    if let Some(imm) = imm {
        wr.ex.imm_data = imm.to_be();
    }
    imm.is_some()
}

/// Writes a request for memory of the peer to `to`.
#[inline(always)]
fn fill_remote(to: &mut Wr, mut wr: bindings::ib_send_wr, remote: Remote) {
    let (opcode, operands) = match remote.op {
        RemoteOp::Write { imm } => match set_imm(&mut wr, imm) {
            false => (bindings::IB_WR_RDMA_WRITE, None),
            true => (bindings::IB_WR_RDMA_WRITE_WITH_IMM, None),
        },
        RemoteOp::Read => (bindings::IB_WR_RDMA_READ, None),
        RemoteOp::CompareSwap { compare, swap } => {
            (bindings::IB_WR_ATOMIC_CMP_AND_SWP, Some((compare, swap)))
        }
        RemoteOp::FetchAdd { add } => (bindings::IB_WR_ATOMIC_FETCH_AND_ADD, Some((add, 0))),
    };
    wr.opcode = opcode;
    let Remote { addr, rkey, .. } = remote;
    match operands {
        None => {
            to.rdma = bindings::ib_rdma_wr {
                wr,
                remote_addr: addr,
                rkey,
            };
        }
        Some((compare_add, swap)) => {
            to.atomic = bindings::ib_atomic_wr {
                wr,
                remote_addr: addr,
                compare_add,
                swap,
                rkey,
                ..Default::default()
            };
        }
    }
}

/// The additional field of a Send.
///
/// ```
/// fn send_number(number: u32) -> Operation {
///     Operation::Send(Tail::Imm(number))
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tail {
    /// Nothing.
    None,
    /// Immediate data, in host order.
    Imm(u32),
    /// A key that the peer's device invalidates.
    Invalidate(u32),
}

impl Tail {
    /// Returns the tail of a Send with immediate data, or with a key to invalidate.
    pub(crate) fn new(imm: Option<u32>, invalidate: Option<u32>) -> Self {
        match (imm, invalidate) {
            (_, Some(rkey)) => Self::Invalidate(rkey),
            (Some(imm), None) => Self::Imm(imm),
            (None, None) => Self::None,
        }
    }

    /// Writes the field to `wr`, and returns the opcode of the Send.
    #[inline(always)]
    fn set(self, wr: &mut bindings::ib_send_wr) -> bindings::ib_wr_opcode {
        match self {
            Self::None => bindings::IB_WR_SEND,
            Self::Imm(imm) => {
                set_imm(wr, Some(imm));
                bindings::IB_WR_SEND_WITH_IMM
            }
            Self::Invalidate(rkey) => {
                wr.ex.invalidate_rkey = rkey;
                bindings::IB_WR_SEND_WITH_INV
            }
        }
    }
}

/// The options of a request: `enum ib_send_flags`.
///
/// ```
/// const AFTER_READS: Flags = Flags { fence: true, signaled: true, solicited: false };
/// ```
#[derive(Clone, Copy, Default)]
pub(crate) struct Flags {
    /// Starts the request when the reads and atomics before it are done.
    pub(crate) fence: bool,
    /// Reports the success of the request; a failure is always reported.
    pub(crate) signaled: bool,
    /// Raises a solicited event at the peer.
    pub(crate) solicited: bool,
}

impl Flags {
    /// Returns the flags in the form that drivers take.
    #[inline(always)]
    pub(super) fn to_raw(self, inline: bool) -> c_int {
        let flag = |set, flag| if set { flag } else { 0 };
        flag(self.fence, bindings::IB_SEND_FENCE)
            | flag(self.signaled, bindings::IB_SEND_SIGNALED)
            | flag(self.solicited, bindings::IB_SEND_SOLICITED)
            | flag(inline, bindings::IB_SEND_INLINE)
    }
}

/// A range of registered memory that a request reads or writes.
///
/// The request keeps the memory until its slot is reused.
///
/// ```
/// fn first_bytes(memory: &Arc<mr::Memory>) -> Result<Local<'_>> {
///     Local::new(memory, 0, 64)
/// }
/// ```
///
/// # Invariants
///
/// The `length` bytes at `offset` are in the memory, and `length` is not 0.
#[derive(Clone, Copy)]
pub(crate) struct Local<'a> {
    pub(super) memory: &'a Arc<Memory>,
    offset: u64,
    length: u32,
}

impl<'a> Local<'a> {
    /// Returns `length` bytes at `offset` of `memory`. Fails with [`ERANGE`] when they are not in
    /// it, or `length` is 0.
    pub(crate) fn new(memory: &'a Arc<Memory>, offset: u64, length: u32) -> Result<Self> {
        let end = offset.checked_add(length.into()).ok_or(ERANGE)?;
        if length == 0 || end > memory.length() {
            return Err(ERANGE);
        }
        // INVARIANT: Just checked.
        Ok(Self {
            memory,
            offset,
            length,
        })
    }

    pub(super) fn to_raw(self) -> bindings::ib_sge {
        self.to_raw_with(self.memory.addr(), self.memory.lkey())
    }

    /// Does what [`Self::to_raw`] does, with the address and the key of the memory.
    #[inline(always)]
    pub(super) fn to_raw_with(self, base: u64, lkey: u32) -> bindings::ib_sge {
        bindings::ib_sge {
            // Cannot wrap: these addresses are in the memory.
            addr: base.wrapping_add(self.offset),
            length: self.length,
            lkey,
        }
    }
}

/// The completion of a request: `struct ib_wc`.
///
/// ```
/// fn log(wc: &WorkCompletion) {
///     if wc.is_success() {
///         pr_info!("{} bytes, immediate data {:?}\n", wc.byte_len, wc.imm);
///     }
/// }
/// ```
#[derive(Clone, Copy, Default)]
pub(crate) struct WorkCompletion {
    /// `enum ib_wc_status`: 0 is success.
    pub(crate) status: u32,
    /// `enum ib_wc_opcode`; valid when the request succeeded.
    pub(crate) opcode: u32,
    /// The driver's own error code.
    pub(crate) vendor_err: u32,
    /// Bytes received.
    pub(crate) byte_len: u32,
    /// Immediate data in host order.
    pub(crate) imm: Option<u32>,
    /// The key that the peer has invalidated.
    pub(crate) invalidated: Option<u32>,
    /// Whether a GRH precedes the data.
    pub(crate) grh: bool,
    /// The number of the sender's queue pair, on UD.
    pub(crate) src_qp: u32,
    /// P_Key index, on UD.
    pub(crate) pkey_index: u16,
    /// The LID of the sender, on InfiniBand.
    pub(crate) slid: u32,
    /// Service level.
    pub(crate) sl: u8,
    /// The low bits of the local LID.
    pub(crate) dlid_path_bits: u8,
    /// Port.
    pub(crate) port: u32,
}

impl WorkCompletion {
    /// The completion of a request that was posted when its queue pair failed or was destroyed.
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

    /// Returns whether the request succeeded.
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
