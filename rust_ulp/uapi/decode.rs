// SPDX-License-Identifier: GPL-2.0

//! What can be said of a work request before any object is looked up.

use crate::uapi::abi;

/// Why a request is refused; [`Refusal::errno`] is what the caller gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub)]
pub enum Refusal {
    /// An opcode that nobody knows, an unknown flag, padding, a field that the opcode has not.
    Invalid,
    /// An opcode that exists and is not offered.
    Unsupported,
    /// Too many elements.
    TooManyElements,
    /// More bytes than a message or inline data may have.
    TooLong,
}

#[allow(unreachable_pub)]
impl Refusal {
    /// The errno, positive.
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

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub)]
pub struct Receiver {
    /// Handle of the address.
    pub ah: u32,
    /// Number of the queue pair.
    pub qp_num: u32,
    /// Its queue key.
    pub qkey: u32,
}

impl Receiver {
    /// What the arguments of a send say; [`None`] when they say nothing, as on a connection.
    const fn new(arg0: u64, arg1: u64) -> Result<Option<Self>, Refusal> {
        if arg1 >> 32 != 0 {
            return Err(Refusal::Invalid);
        }
        if arg0 == 0 && arg1 == 0 {
            return Ok(None);
        }
        Ok(Some(Self {
            ah: arg0 as u32,
            qp_num: (arg0 >> 32) as u32,
            qkey: arg1 as u32,
        }))
    }
}

/// What a request is to do, with the fields that its opcode has. A send has a receiver where its
/// arguments are not zero: whether it must, the type of the queue pair says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub, missing_docs)]
pub enum Op {
    Write {
        remote_addr: u64,
        rkey: u32,
        imm: Option<u32>,
    },
    Read {
        remote_addr: u64,
        rkey: u32,
    },
    Send {
        imm: Option<u32>,
        invalidate: Option<u32>,
        to: Option<Receiver>,
    },
    CompareSwap {
        remote_addr: u64,
        rkey: u32,
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        remote_addr: u64,
        rkey: u32,
        add: u64,
    },
    Recv,
}

/// Where the elements of a request stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub, missing_docs)]
pub enum Elements {
    None,
    One(abi::Sge),
    /// An array of `count` elements at this address of user space.
    Array {
        addr: u64,
        count: u32,
    },
}

/// A request, decoded.
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
    /// 0, or how long it may take.
    pub timeout_ns: u64,
}

/// Opcodes of a send queue that the ABI numbers and no queue pair here carries out: LOCAL_INV,
/// BIND_MW, TSO and later ones of `enum ib_wr_opcode`.
const fn is_known_elsewhere(opcode: u8) -> bool {
    matches!(opcode, 7 | 8 | 10..=15)
}

/// Decodes `wr`, which was copied from user space.
#[allow(unreachable_pub)]
pub fn decode(wr: &abi::Wr, limits: Limits) -> Result<DecodedWr, Refusal> {
    const ANY: u16 = abi::SEND_FENCE | abi::SEND_SIGNALED;
    let (remote_addr, rkey) = (wr.remote_addr, wr.rkey);

    // What the opcode allows: flags, and which fields may be other than zero.
    let (op, flags, remote, imm, args) = match wr.opcode {
        abi::WR_RDMA_WRITE => (
            Op::Write {
                remote_addr,
                rkey,
                imm: None,
            },
            ANY | abi::SEND_INLINE,
            true,
            false,
            0,
        ),
        abi::WR_RDMA_WRITE_WITH_IMM => (
            Op::Write {
                remote_addr,
                rkey,
                imm: Some(wr.imm_data),
            },
            ANY | abi::SEND_INLINE | abi::SEND_SOLICITED,
            true,
            true,
            0,
        ),
        abi::WR_RDMA_READ => (Op::Read { remote_addr, rkey }, ANY, true, false, 0),
        abi::WR_SEND | abi::WR_SEND_WITH_IMM => {
            let with_imm = wr.opcode == abi::WR_SEND_WITH_IMM;
            let to = Receiver::new(wr.arg0, wr.arg1)?;
            (
                Op::Send {
                    imm: if with_imm { Some(wr.imm_data) } else { None },
                    invalidate: None,
                    to,
                },
                ANY | abi::SEND_INLINE | abi::SEND_SOLICITED,
                false,
                with_imm,
                2,
            )
        }
        abi::WR_SEND_WITH_INV => (
            Op::Send {
                imm: None,
                invalidate: Some(wr.imm_data),
                to: None,
            },
            ANY | abi::SEND_INLINE | abi::SEND_SOLICITED,
            false,
            true,
            0,
        ),
        abi::WR_ATOMIC_CMP_AND_SWP => (
            Op::CompareSwap {
                remote_addr,
                rkey,
                compare: wr.arg0,
                swap: wr.arg1,
            },
            ANY,
            true,
            false,
            2,
        ),
        abi::WR_ATOMIC_FETCH_AND_ADD => (
            Op::FetchAdd {
                remote_addr,
                rkey,
                add: wr.arg0,
            },
            ANY,
            true,
            false,
            1,
        ),
        abi::WR_RECV => (Op::Recv, 0, false, false, 0),
        opcode if is_known_elsewhere(opcode) => return Err(Refusal::Unsupported),
        _ => return Err(Refusal::Invalid),
    };
    if wr.flags & !flags != 0
        || wr.timeout_ns > abi::TIMEOUT_MAX_NS
        || wr.reserved != 0
        || (!remote && (remote_addr != 0 || rkey != 0))
        || (!imm && wr.imm_data != 0)
        || (args < 1 && wr.arg0 != 0)
        || (args < 2 && wr.arg1 != 0)
    {
        return Err(Refusal::Invalid);
    }

    let count = u32::from(wr.num_sge);
    if count > limits.max_sge {
        return Err(Refusal::TooManyElements);
    }
    let elements = match count {
        0 if wr.sge
            != (abi::Sge {
                buffer: 0,
                length: 0,
                offset: 0,
            }) =>
        {
            return Err(Refusal::Invalid);
        }
        0 => Elements::None,
        1 => Elements::One(wr.sge),
        _ if wr.sge.buffer != 0 || wr.sge.length != 0 => return Err(Refusal::Invalid),
        _ => Elements::Array {
            addr: wr.sge.offset,
            count,
        },
    };

    match op {
        // An atomic takes the value that was there, 8 bytes, and works on 8 aligned ones.
        Op::CompareSwap { .. } | Op::FetchAdd { .. } => match elements {
            Elements::One(sge) if sge.length == 8 && remote_addr & 7 == 0 => (),
            _ => return Err(Refusal::Invalid),
        },
        _ => (),
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
        timeout_ns: wr.timeout_ns,
    })
}
