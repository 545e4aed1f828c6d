// SPDX-License-Identifier: GPL-2.0

//! Decodes work requests without looking up any object.

use crate::{
    logic::remote::{
        Remote,
        RemoteOp, //
    },
    uapi::abi::{
        self,
        Zero, //
    }, //
};

/// The reason why a request is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub)]
pub enum Refusal {
    /// An undefined opcode or flag, padding that is not zero, or a field that the opcode does not
    /// use.
    Invalid,
    /// An opcode of `enum ib_wr_opcode` that the module does not support.
    Unsupported,
    /// Too many elements.
    TooManyElements,
    /// Too many inline bytes.
    TooLong,
}

#[allow(unreachable_pub)]
impl Refusal {
    /// Returns the positive errno that the caller gets.
    pub const fn errno(self) -> i32 {
        match self {
            Self::Invalid => 22,        // EINVAL
            Self::Unsupported => 95,    // EOPNOTSUPP
            Self::TooManyElements => 7, // E2BIG
            Self::TooLong => 90,        // EMSGSIZE
        }
    }
}

/// Limits that hold for every device.
#[derive(Clone, Copy, Debug)]
#[allow(unreachable_pub, missing_docs)]
pub struct Limits {
    pub max_sge: u32,
    pub max_inline: u32,
}

/// The receiver of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub)]
pub struct Receiver {
    /// Handle of the address handle.
    pub ah: u32,
    /// Number of the queue pair.
    pub qp_num: u32,
    /// Q_Key.
    pub qkey: u32,
}

impl Receiver {
    /// Decodes the arguments of a send. Returns [`None`] if all are zero.
    fn new(args: abi::WrArgs) -> Result<Option<Self>, Refusal> {
        if args == abi::WrArgs::ZERO {
            return Ok(None);
        }
        match args.into() {
            abi::WrUd {
                ah,
                qp_num,
                qkey,
                pad: 0,
            } => Ok(Some(Self { ah, qp_num, qkey })),
            _ => Err(Refusal::Invalid),
        }
    }
}

/// The operation of a request, with the fields that its opcode uses.
///
/// A send has a receiver if its arguments are not zero. The type of the queue pair decides later
/// whether it must have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub, missing_docs)]
pub enum Op {
    Remote(Remote),
    Send {
        imm: Option<u32>,
        invalidate: Option<u32>,
        to: Option<Receiver>,
    },
    Recv,
}

#[allow(unreachable_pub)]
impl Op {
    /// Returns whether it is an RDMA Read.
    pub const fn is_read(self) -> bool {
        matches!(self, Self::Remote(remote) if matches!(remote.op, RemoteOp::Read))
    }

    /// Returns whether the device writes to the elements of the request.
    pub const fn writes_local(self) -> bool {
        match self {
            Self::Recv => true,
            Self::Remote(remote) => !matches!(remote.op, RemoteOp::Write { .. }),
            Self::Send { .. } => false,
        }
    }
}

/// The elements of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub, missing_docs)]
pub enum Elements {
    None,
    One(abi::Sge),
    /// `count` elements in an array at this address of user space.
    Array {
        addr: u64,
        count: u32,
    },
}

/// The time limit of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub, missing_docs)]
pub struct TimeLimit {
    /// Nanoseconds, or `TIMEOUT_INFINITE`; not 0.
    pub ns: u64,
}

#[allow(unreachable_pub)]
impl TimeLimit {
    fn new(wr: &abi::Wr) -> Result<Option<Self>, Refusal> {
        match (wr.flags & abi::REQUEST_TIMEOUT != 0, wr.timeout_ns) {
            (false, 0) => Ok(None),
            (true, ns @ 1..) => Ok(Some(Self { ns })),
            _ => Err(Refusal::Invalid),
        }
    }

    /// Returns when it ends, for a request that is posted at `now`; 0 for no limit.
    pub fn end(self, now: u64) -> u64 {
        match self.ns {
            abi::TIMEOUT_INFINITE => 0,
            ns => now.saturating_add(ns),
        }
    }
}

/// A decoded request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub, missing_docs)]
pub struct DecodedWr {
    pub user_data: u64,
    pub qp: u32,
    pub opcode: u8,
    pub op: Op,
    pub elements: Elements,
    pub signaled: bool,
    pub fence: bool,
    pub solicited: bool,
    pub inline: bool,
    pub limit: Option<TimeLimit>,
}

/// The fields of a request that an opcode uses, besides `remote_addr` and `rkey` for
/// [`Op::Remote`]. All others must be zero.
struct Uses {
    flags: u16,
    imm_data: bool,
    /// Whether it has arguments; [`operation`] has checked them.
    args: bool,
}

/// Decodes the operation of `wr`, and returns the fields that it uses.
#[inline(always)]
fn operation(wr: &abi::Wr) -> Result<(Op, Uses), Refusal> {
    const TIME: u16 = abi::REQUEST_TIMEOUT;
    const ANY: u16 = abi::SEND_FENCE | abi::SEND_SIGNALED | TIME;
    const MESSAGE: u16 = ANY | abi::SEND_INLINE | abi::SEND_SOLICITED;
    let remote = |op| {
        let (addr, rkey) = (wr.remote_addr, wr.rkey);
        Op::Remote(Remote { addr, rkey, op })
    };
    let write = |imm| remote(RemoteOp::Write { imm });
    let send = |imm, invalidate, to| Op::Send {
        imm,
        invalidate,
        to,
    };
    let (op, flags, imm_data, args) = match wr.opcode {
        abi::WR_RDMA_WRITE => (write(None), ANY | abi::SEND_INLINE, false, false),
        abi::WR_RDMA_WRITE_WITH_IMM => (write(Some(wr.imm_data)), MESSAGE, true, false),
        abi::WR_RDMA_READ => (remote(RemoteOp::Read), ANY, false, false),
        abi::WR_SEND => {
            let to = Receiver::new(wr.args)?;
            (send(None, None, to), MESSAGE, false, true)
        }
        abi::WR_SEND_WITH_IMM => {
            let to = Receiver::new(wr.args)?;
            (send(Some(wr.imm_data), None, to), MESSAGE, true, true)
        }
        abi::WR_SEND_WITH_INV => (send(None, Some(wr.imm_data), None), MESSAGE, true, false),
        abi::WR_ATOMIC_CMP_AND_SWP => {
            let abi::WrAtomic {
                compare_add: compare,
                swap,
            } = wr.args.into();
            let op = RemoteOp::CompareSwap { compare, swap };
            (remote(op), ANY, false, true)
        }
        abi::WR_ATOMIC_FETCH_AND_ADD => match wr.args.into() {
            abi::WrAtomic {
                compare_add: add,
                swap: 0,
            } => (remote(RemoteOp::FetchAdd { add }), ANY, false, true),
            _ => return Err(Refusal::Invalid),
        },
        abi::WR_RECV => (Op::Recv, TIME, false, false),
        // LOCAL_INV, BIND_MW, TSO and later opcodes of `enum ib_wr_opcode`.
        7 | 8 | 10..=15 => return Err(Refusal::Unsupported),
        _ => return Err(Refusal::Invalid),
    };
    let uses = Uses {
        flags,
        imm_data,
        args,
    };
    Ok((op, uses))
}

/// Decodes the elements of `wr`.
fn elements(wr: &abi::Wr, max_sge: u32) -> Result<Elements, Refusal> {
    let count = u32::from(wr.num_sge);
    if count > max_sge {
        return Err(Refusal::TooManyElements);
    }
    match count {
        0 if wr.sge == abi::Sge::default() => Ok(Elements::None),
        1 => Ok(Elements::One(wr.sge)),
        2.. if wr.sge.buffer == 0 && wr.sge.length == 0 => Ok(Elements::Array {
            addr: wr.sge.offset,
            count,
        }),
        _ => Err(Refusal::Invalid),
    }
}

/// Returns whether the flags of `wr` are those of its operation, and the fields that this does not
/// use are zero.
#[inline(always)]
fn is_clean(wr: &abi::Wr, op: &Op, uses: &Uses) -> bool {
    let is_remote = matches!(op, Op::Remote(_));
    wr.flags & !uses.flags == 0
        && (is_remote || (wr.remote_addr == 0 && wr.rkey == 0))
        && (uses.imm_data || wr.imm_data == 0)
        && (uses.args || wr.args == abi::WrArgs::ZERO)
}

/// Returns whether [`decode`] accepts `wr`, which was copied from user space, and it is plain: it is
/// no atomic, and has one element, which is in a buffer, and no receiver or time limit. Inline data
/// may be too long.
#[allow(unreachable_pub)]
#[inline(always)]
pub fn is_plain(wr: &abi::Wr) -> bool {
    wr.num_sge == 1
        && wr.sge.buffer != 0
        && wr.flags & abi::REQUEST_TIMEOUT == 0
        && (wr.args == abi::WrArgs::ZERO && wr.timeout_ns == 0)
        && operation(wr).is_ok_and(|(op, uses)| {
            let is_atomic = matches!(op, Op::Remote(_)) && uses.args;
            !is_atomic && is_clean(wr, &op, &uses)
        })
}

/// Decodes `wr`, which was copied from user space.
#[allow(unreachable_pub)]
pub fn decode(wr: &abi::Wr, limits: Limits) -> Result<DecodedWr, Refusal> {
    let (op, uses) = operation(wr)?;
    if !is_clean(wr, &op, &uses) {
        return Err(Refusal::Invalid);
    }
    let elements = elements(wr, limits.max_sge)?;
    if matches!(op, Op::Remote(_)) && uses.args {
        // An atomic: it returns 8 bytes, and its remote address is a multiple of 8.
        match elements {
            Elements::One(sge) if sge.length == 8 && wr.remote_addr & 7 == 0 => (),
            _ => return Err(Refusal::Invalid),
        }
    }
    let inline = wr.flags & abi::SEND_INLINE != 0;
    if let Elements::One(sge) = elements {
        if inline && sge.length > limits.max_inline {
            return Err(Refusal::TooLong);
        }
    }
    Ok(DecodedWr {
        user_data: wr.user_data,
        qp: wr.qp,
        opcode: wr.opcode,
        op,
        elements,
        signaled: wr.flags & abi::SEND_SIGNALED != 0,
        fence: wr.flags & abi::SEND_FENCE != 0,
        solicited: wr.flags & abi::SEND_SOLICITED != 0,
        inline,
        limit: TimeLimit::new(wr)?,
    })
}
