// SPDX-License-Identifier: GPL-2.0

//! Work requests and their completions.

use super::{
    ah::Ah,
    mr::{
        Memory,
        Mr, //
    }, //
};
use crate::bindings;
use kernel::{
    ffi::c_int,
    prelude::*,
    sync::Arc, //
};

/// A work request in the form that drivers take. Every variant of a send request begins with
/// `send`, and every variant with the fields that [`Wr::link`] sets.
#[derive(Clone, Copy)]
pub(super) union Wr {
    send: bindings::ib_send_wr,
    rdma: bindings::ib_rdma_wr,
    atomic: bindings::ib_atomic_wr,
    ud: bindings::ib_ud_wr,
    reg: bindings::ib_reg_wr,
    recv: bindings::ib_recv_wr,
}

/// Whether send and receive requests have a field at the same place.
macro_rules! is_common {
    ($field:ident) => {
        core::mem::offset_of!(bindings::ib_send_wr, $field)
            == core::mem::offset_of!(bindings::ib_recv_wr, $field)
    };
}
const _: () = assert!(is_common!(next) && is_common!(__bindgen_anon_1));
const _: () = assert!(is_common!(sg_list) && is_common!(num_sge));

impl Wr {
    /// Returns the number of elements.
    #[inline(always)]
    pub(super) fn num_sge(&self) -> c_int {
        // SAFETY: `Plain::fill` has set it, at the same place in all variants.
        unsafe { self.recv.num_sge }
    }

    /// Returns whether the device reports the success of a send request.
    #[inline(always)]
    pub(super) fn is_signaled(&self) -> bool {
        // SAFETY: All variants of a send request have the field; `Plain::fill` has set it.
        unsafe { self.send.send_flags & bindings::IB_SEND_SIGNALED != 0 }
    }

    /// Has the device report the success of a send request.
    #[inline(always)]
    pub(super) fn signal(&mut self) {
        // SAFETY: As above.
        unsafe { self.send.send_flags |= bindings::IB_SEND_SIGNALED };
    }

    /// Gives the request `wr` its `wr_cqe` and its elements, and makes it the one after `previous`,
    /// unless that is null.
    ///
    /// # Safety
    ///
    /// Both are valid, and [`Plain::fill`] or [`Operation::fill`] has filled them.
    #[inline(always)]
    pub(super) unsafe fn link(
        wr: *mut Self,
        cqe: *mut bindings::ib_cqe,
        sg_list: *mut bindings::ib_sge,
        previous: *mut Self,
    ) {
        // SAFETY: By the requirements. A send request has these fields at the same place.
        unsafe {
            (*wr).recv.__bindgen_anon_1.wr_cqe = cqe;
            (*wr).recv.sg_list = sg_list;
            if !previous.is_null() {
                (*previous).recv.next = wr.cast();
            }
        }
    }
}

/// What a request has beside the general fields.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// A receive, which has less.
    Recv,
    /// Nothing.
    Message,
    /// An address and a key of the peer.
    Remote,
    /// These and operands.
    Atomic,
    /// A receiver.
    Datagram,
    /// A region.
    Register,
}

/// The operation code of a request: `enum ib_wr_opcode`, or that of a receive.
///
/// ```
/// const ANSWER: Opcode = Opcode::SEND_WITH_IMM;
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Opcode {
    raw: bindings::ib_wr_opcode,
    form: Form,
}

impl Opcode {
    /// An RDMA Write.
    pub(crate) const WRITE: Self = Self::new(bindings::IB_WR_RDMA_WRITE, Form::Remote);
    /// An RDMA Write with immediate data.
    pub(crate) const WRITE_WITH_IMM: Self =
        Self::new(bindings::IB_WR_RDMA_WRITE_WITH_IMM, Form::Remote);
    /// An RDMA Read.
    pub(crate) const READ: Self = Self::new(bindings::IB_WR_RDMA_READ, Form::Remote);
    /// An atomic that replaces an expected value.
    pub(crate) const COMPARE_SWAP: Self =
        Self::new(bindings::IB_WR_ATOMIC_CMP_AND_SWP, Form::Atomic);
    /// An atomic that adds, modulo 2^64.
    pub(crate) const FETCH_ADD: Self =
        Self::new(bindings::IB_WR_ATOMIC_FETCH_AND_ADD, Form::Atomic);
    /// A Send.
    pub(crate) const SEND: Self = Self::new(bindings::IB_WR_SEND, Form::Message);
    /// A Send with immediate data.
    pub(crate) const SEND_WITH_IMM: Self = Self::new(bindings::IB_WR_SEND_WITH_IMM, Form::Message);
    /// A Send with a key that the peer's device invalidates.
    pub(crate) const SEND_WITH_INV: Self = Self::new(bindings::IB_WR_SEND_WITH_INV, Form::Message);
    /// A receive.
    pub(crate) const RECV: Self = Self::new(0, Form::Recv);
    const LOCAL_INV: Self = Self::new(bindings::IB_WR_LOCAL_INV, Form::Message);
    const REG_MR: Self = Self::new(bindings::IB_WR_REG_MR, Form::Register);

    const fn new(raw: bindings::ib_wr_opcode, form: Form) -> Self {
        Self { raw, form }
    }
}

/// An operation of the general fields alone: a receive, a Send, a Write or a Read.
///
/// ```
/// fn send_number(number: u32) -> Plain {
///     Plain::new(Opcode::SEND_WITH_IMM, number)
/// }
/// ```
#[derive(Clone, Copy)]
pub(crate) struct Plain {
    opcode: Opcode,
    /// The immediate data in network order, or the key to invalidate.
    ex: u32,
    /// Of the peer's memory.
    addr: u64,
    rkey: u32,
}

impl Plain {
    /// Returns an operation with the immediate data or the key `tail`. Those without one ignore it.
    #[inline(always)]
    pub(crate) fn new(opcode: Opcode, tail: u32) -> Self {
        let is_key = matches!(
            opcode.raw,
            bindings::IB_WR_SEND_WITH_INV | bindings::IB_WR_LOCAL_INV
        );
        Self {
            opcode,
            ex: if is_key { tail } else { tail.to_be() },
            addr: 0,
            rkey: 0,
        }
    }

    /// Returns the operation on the memory of the peer at `addr`, with its key.
    #[inline(always)]
    pub(crate) fn on(self, addr: u64, rkey: u32) -> Self {
        Self { addr, rkey, ..self }
    }

    /// Returns whether it is a receive.
    #[inline(always)]
    pub(super) fn is_recv(&self) -> bool {
        self.opcode.form == Form::Recv
    }

    /// Returns whether it needs more than the general fields: [`Operation`].
    #[inline(always)]
    pub(super) fn is_partial(&self) -> bool {
        !matches!(self.opcode.form, Form::Recv | Form::Message | Form::Remote)
    }

    /// Writes the request to `to` in the form that drivers take, but for the fields that
    /// [`Wr::link`] sets: it ends a list.
    ///
    /// # Safety
    ///
    /// `to` is memory for a request.
    #[inline(always)]
    pub(super) unsafe fn fill(self, to: *mut Wr, send_flags: c_int, num_sge: c_int) {
        // SAFETY: By the requirement. All variants have these fields at the same place, and all
        // variants of a send request begin with `send`. Those of a message have room for more.
        unsafe {
            (*to).recv.next = core::ptr::null_mut();
            (*to).recv.num_sge = num_sge;
            if self.opcode.form == Form::Recv {
                return;
            }
            (*to).send.opcode = self.opcode.raw;
            (*to).send.send_flags = send_flags;
            (*to).send.ex.invalidate_rkey = self.ex;
            (*to).rdma.remote_addr = self.addr;
            (*to).rdma.rkey = self.rkey;
        }
    }
}

/// The receiver of a datagram.
#[derive(Clone, Copy)]
struct Receiver<'a> {
    ah: &'a Arc<Ah>,
    qp_num: u32,
    qkey: u32,
}

/// An operation: what a request does, but for the memory of its poster.
///
/// ```
/// fn add_one(peer: &mr::Mr) -> Operation<'static> {
///     let plain = Plain::new(Opcode::FETCH_ADD, 0).on(peer.addr(), peer.rkey());
///     Operation::from(plain).with([1, 0])
/// }
/// ```
///
/// # Invariants
///
/// `mr` is as [`Operation::register`] demands in the form that has one.
#[derive(Clone, Copy)]
pub(crate) struct Operation<'a> {
    plain: Plain,
    operands: [u64; 2],
    to: Option<Receiver<'a>>,
    mr: *mut bindings::ib_mr,
    access: u32,
}

impl From<Plain> for Operation<'_> {
    fn from(plain: Plain) -> Self {
        // INVARIANT: No caller has `Opcode::REG_MR` but `register`, which sets `mr`.
        Self {
            plain,
            operands: [0; 2],
            to: None,
            mr: core::ptr::null_mut(),
            access: 0,
        }
    }
}

impl<'a> Operation<'a> {
    /// Returns the atomic with these operands: the expected value and the one that replaces it, or
    /// the addend and 0.
    pub(crate) fn with(self, operands: [u64; 2]) -> Self {
        Self { operands, ..self }
    }

    /// Returns the Send as a datagram to the queue pair `qp_num`, of 24 bits, with its queue key. The
    /// address is kept until the slot of the request is reused. Another operation has no receiver.
    pub(crate) fn to(self, ah: &'a Arc<Ah>, qp_num: u32, qkey: u32) -> Self {
        let opcode = self.plain.opcode;
        if opcode.form != Form::Message {
            return self;
        }
        Self {
            plain: Plain {
                opcode: Opcode::new(opcode.raw, Form::Datagram),
                ..self.plain
            },
            to: Some(Receiver { ah, qp_num, qkey }),
            ..self
        }
    }

    /// Sends a message.
    pub(crate) fn send() -> Self {
        Plain::new(Opcode::SEND, 0).into()
    }

    /// Writes to the beginning of the peer's region `mr`, for peers in the same module.
    pub(crate) fn write_to(mr: &Mr) -> Self {
        let plain = Plain::new(Opcode::WRITE, 0);
        plain.on(mr.addr(), mr.rkey()).into()
    }

    /// Reads from the beginning of the peer's region `mr`, for peers in the same module.
    pub(crate) fn read_from(mr: &Mr) -> Self {
        let plain = Plain::new(Opcode::READ, 0);
        plain.on(mr.addr(), mr.rkey()).into()
    }

    /// Registers `mr` with `key` and the rights `access`.
    ///
    /// # Safety
    ///
    /// `mr` is mapped, belongs to the protection domain of the queue pair that the request is posted
    /// to, and lives until the request is done.
    pub(super) unsafe fn register(mr: *mut bindings::ib_mr, key: u32, access: u32) -> Self {
        // INVARIANT: By the requirement.
        Self {
            mr,
            access,
            ..Self::from(Plain::new(Opcode::REG_MR, 0).on(0, key))
        }
    }

    /// Invalidates the key `rkey` of the queue pair's own protection domain.
    pub(super) fn invalidate(rkey: u32) -> Self {
        Plain::new(Opcode::LOCAL_INV, rkey).into()
    }

    /// Returns whether it uses a receive of the peer.
    pub(crate) fn is_send(&self) -> bool {
        self.plain.opcode == Opcode::SEND
    }

    /// Returns whether it is a receive.
    pub(super) fn is_recv(&self) -> bool {
        self.plain.is_recv()
    }

    /// Returns the address of a datagram, [`None`] for other operations.
    pub(super) fn ah(&self) -> Option<&'a Arc<Ah>> {
        self.to.map(|to| to.ah)
    }

    /// Writes the request to `to` as [`Plain::fill`] does.
    ///
    /// # Safety
    ///
    /// `to` is memory for a request.
    pub(super) unsafe fn fill(&self, to: *mut Wr, send_flags: c_int, num_sge: c_int) {
        // SAFETY: By the requirement.
        unsafe {
            self.plain.fill(to, send_flags, num_sge);
            match (self.plain.opcode.form, self.to) {
                (Form::Atomic, _) => {
                    let [compare_add, swap] = self.operands;
                    (*to).atomic.remote_addr = self.plain.addr;
                    (*to).atomic.compare_add = compare_add;
                    (*to).atomic.swap = swap;
                    (*to).atomic.compare_add_mask = 0;
                    (*to).atomic.swap_mask = 0;
                    (*to).atomic.rkey = self.plain.rkey;
                }
                (Form::Register, _) => {
                    (*to).reg.mr = self.mr;
                    (*to).reg.key = self.plain.rkey;
                    (*to).reg.access = self.access as c_int;
                }
                (Form::Datagram, Some(Receiver { ah, qp_num, qkey })) => {
                    (*to).ud.ah = ah.as_raw();
                    (*to).ud.header = core::ptr::null_mut();
                    (*to).ud.hlen = 0;
                    (*to).ud.mss = 0;
                    (*to).ud.remote_qpn = qp_num;
                    (*to).ud.remote_qkey = qkey;
                    (*to).ud.pkey_index = 0;
                    (*to).ud.port_num = 0;
                }
                _ => (),
            }
        }
    }
}

/// The options of a request: `enum ib_send_flags`.
///
/// ```
/// const AFTER_READS: Flags = Flags::FENCE.and(Flags::SIGNALED);
/// ```
#[derive(Clone, Copy)]
pub(crate) struct Flags(c_int);

impl Flags {
    /// No option.
    pub(crate) const NONE: Self = Self(0);
    /// Starts the request when the reads and atomics before it are done.
    pub(crate) const FENCE: Self = Self(bindings::IB_SEND_FENCE);
    /// Reports the success of the request; a failure is always reported.
    pub(crate) const SIGNALED: Self = Self(bindings::IB_SEND_SIGNALED);
    /// Raises a solicited event at the peer.
    pub(crate) const SOLICITED: Self = Self(bindings::IB_SEND_SOLICITED);
    const INLINE: Self = Self(bindings::IB_SEND_INLINE);

    /// Returns these options and `other`.
    #[inline(always)]
    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns these options if `condition` holds, else none.
    #[inline(always)]
    pub(crate) fn only_if(self, condition: bool) -> Self {
        Self(if condition { self.0 } else { 0 })
    }

    /// Returns the flags in the form that drivers take.
    #[inline(always)]
    pub(super) fn to_raw(self, inline: bool) -> c_int {
        self.and(Self::INLINE.only_if(inline)).0
    }
}

/// Memory that several requests read or write: what their elements have in common, read once.
///
/// ```
/// fn halves(memory: &Arc<mr::Memory>) -> Option<[Local<'_>; 2]> {
///     let memory = LocalMemory::new(memory);
///     Some([memory.local(0, 32)?, memory.local(32, 32)?])
/// }
/// ```
#[derive(Clone, Copy)]
pub(crate) struct LocalMemory<'a> {
    memory: &'a Arc<Memory>,
    addr: u64,
    lkey: u32,
    length: u64,
}

impl<'a> LocalMemory<'a> {
    /// Looks at `memory`.
    pub(crate) fn new(memory: &'a Arc<Memory>) -> Self {
        Self {
            memory,
            addr: memory.addr(),
            lkey: memory.lkey(),
            length: memory.length(),
        }
    }

    /// Returns `length` bytes at `offset`. [`None`] when they are not in the memory, or `length` is
    /// 0.
    #[inline(always)]
    pub(crate) fn local(&self, offset: u64, length: u32) -> Option<Local<'a>> {
        let end = offset.checked_add(length.into())?;
        if length == 0 || end > self.length {
            return None;
        }
        // INVARIANT: Just checked.
        Some(Local {
            memory: self.memory,
            raw: bindings::ib_sge {
                // Cannot wrap: these addresses are in the memory.
                addr: self.addr.wrapping_add(offset),
                length,
                lkey: self.lkey,
            },
        })
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
/// The bytes of `raw` are in the memory, and its key is that of the memory. There is at least one.
#[derive(Clone, Copy)]
pub(crate) struct Local<'a> {
    pub(super) memory: &'a Arc<Memory>,
    /// The element in the form that drivers take.
    pub(super) raw: bindings::ib_sge,
}

impl<'a> Local<'a> {
    /// Returns `length` bytes at `offset` of `memory`. Fails with [`ERANGE`] when they are not in
    /// it, or `length` is 0.
    pub(crate) fn new(memory: &'a Arc<Memory>, offset: u64, length: u32) -> Result<Self> {
        LocalMemory::new(memory).local(offset, length).ok_or(ERANGE)
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
    /// P_Key index, on UD. This and what follows are of InfiniBand: drivers of other adapters set some
    /// of them, and the rest is what was in the memory before
    /// (drivers/infiniband/core/cq.c:ib_process_cq_direct).
    pub(crate) pkey_index: u16,
    /// The LID of the sender.
    pub(crate) slid: u32,
    /// Service level.
    pub(crate) sl: u8,
    /// The low bits of the local LID.
    pub(crate) dlid_path_bits: u8,
}

impl WorkCompletion {
    /// The completion of a request that was posted when its queue pair failed or was destroyed.
    pub(crate) const FLUSHED: Self = Self::failed(bindings::IB_WC_WR_FLUSH_ERR);
    /// That of a request whose completion the driver lost: nobody knows what came of it.
    pub(super) const LOST: Self = Self::failed(bindings::IB_WC_GENERAL_ERR);

    const fn failed(status: u32) -> Self {
        Self {
            status,
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
        }
    }

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
        }
    }
}
