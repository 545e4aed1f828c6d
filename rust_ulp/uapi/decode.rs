// SPDX-License-Identifier: GPL-2.0

//! Checks work requests without looking up any object.

use crate::uapi::abi::{
    self,
    Zero, //
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

/// The time limit of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub, missing_docs)]
pub struct TimeLimit {
    /// Nanoseconds, or `TIMEOUT_INFINITE`; not 0.
    pub ns: u64,
}

#[allow(unreachable_pub)]
impl TimeLimit {
    /// Returns the limit of `wr`, which [`check`] accepts.
    pub fn of(wr: &abi::Wr) -> Option<Self> {
        (wr.flags & abi::REQUEST_TIMEOUT != 0).then_some(Self { ns: wr.timeout_ns })
    }

    /// Returns when it ends, for a request that is posted at `now`; 0 for no limit.
    pub fn end(self, now: u64) -> u64 {
        match self.ns {
            abi::TIMEOUT_INFINITE => 0,
            ns => now.saturating_add(ns),
        }
    }
}

/// What an opcode allows, and what it does. All that it does not use must be zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub)]
pub struct Rule {
    /// The flags that it allows; none for an opcode that is not supported.
    flags: u16,
    uses: u16,
}

/// It has an address and a key of the peer.
const REMOTE: u16 = 1 << 0;
/// It has immediate data, or a key to invalidate.
const IMM: u16 = 1 << 1;
/// It may have a receiver.
const RECEIVER: u16 = 1 << 2;
/// It has operands.
const OPERANDS: u16 = 1 << 3;
/// It has only the first one.
const ONE_OPERAND: u16 = 1 << 4;
/// The device writes to the elements of the request.
const WRITES: u16 = 1 << 5;

/// The flags of all send requests, and of those with a message.
const ANY: u16 = abi::SEND_FENCE | abi::SEND_SIGNALED | abi::REQUEST_TIMEOUT;
const MESSAGE: u16 = ANY | abi::SEND_INLINE | abi::SEND_SOLICITED;

/// The rules by opcode.
static RULES: [Rule; 16] = [
    Rule::new(ANY | abi::SEND_INLINE, REMOTE),  // WR_RDMA_WRITE
    Rule::new(MESSAGE, REMOTE | IMM),           // WR_RDMA_WRITE_WITH_IMM
    Rule::new(MESSAGE, RECEIVER),               // WR_SEND
    Rule::new(MESSAGE, RECEIVER | IMM),         // WR_SEND_WITH_IMM
    Rule::new(ANY, REMOTE | WRITES),            // WR_RDMA_READ
    Rule::new(ANY, REMOTE | OPERANDS | WRITES), // WR_ATOMIC_CMP_AND_SWP
    Rule::new(ANY, REMOTE | OPERANDS | ONE_OPERAND | WRITES), // WR_ATOMIC_FETCH_AND_ADD
    Rule::NONE,
    Rule::NONE,
    Rule::new(MESSAGE, IMM), // WR_SEND_WITH_INV
    Rule::NONE,
    Rule::NONE,
    Rule::NONE,
    Rule::NONE,
    Rule::NONE,
    Rule::NONE,
];

const RECV: Rule = Rule::new(abi::REQUEST_TIMEOUT, WRITES);

#[allow(unreachable_pub)]
impl Rule {
    /// That of an opcode of `enum ib_wr_opcode` that is not supported: LOCAL_INV, BIND_MW, TSO and
    /// later ones.
    const NONE: Self = Self::new(0, 0);

    const fn new(flags: u16, uses: u16) -> Self {
        Self { flags, uses }
    }

    /// Returns the rule for `opcode`.
    #[inline(always)]
    fn of(opcode: u8) -> Result<Self, Refusal> {
        match RULES.get(usize::from(opcode)) {
            Some(rule) if rule.flags != 0 => Ok(*rule),
            Some(_) => Err(Refusal::Unsupported),
            None if opcode == abi::WR_RECV => Ok(RECV),
            None => Err(Refusal::Invalid),
        }
    }

    #[inline(always)]
    const fn uses(self, what: u16) -> bool {
        self.uses & what != 0
    }

    /// Returns whether the device writes to the elements of the request.
    #[inline(always)]
    pub const fn writes_local(self) -> bool {
        self.uses(WRITES)
    }

    /// Returns whether the request may have a receiver.
    #[inline(always)]
    pub const fn has_receiver(self) -> bool {
        self.uses(RECEIVER)
    }

    /// Returns whether it is an atomic.
    #[inline(always)]
    pub const fn is_atomic(self) -> bool {
        self.uses(OPERANDS)
    }

    /// Returns whether the flags of `wr` are those of the opcode, and what that does not use is zero.
    #[inline(always)]
    fn is_clean(self, wr: &abi::Wr) -> bool {
        wr.flags & !self.flags == 0 && self.has_clean_operation(wr) && self.has_clean_args(wr.args)
    }

    /// Returns whether the opcode has the address, the key and the immediate data of `wr`.
    #[inline(always)]
    fn has_clean_operation(self, wr: &abi::Wr) -> bool {
        (self.uses(REMOTE) || (wr.remote_addr == 0 && wr.rkey == 0))
            && (self.uses(IMM) || wr.imm_data == 0)
    }

    /// Returns whether [`check`] accepts `wr`, too, and it has no arguments. It has accepted a request
    /// of the same [`shape`] with this rule, which has one element, no inline data and no arguments.
    #[inline(always)]
    pub fn accepts_another(self, wr: &abi::Wr) -> bool {
        wr.args == abi::WrArgs::ZERO && self.has_clean_operation(wr) && is_timed(wr)
    }

    /// Returns whether the opcode has these arguments.
    #[inline(always)]
    fn has_clean_args(self, args: abi::WrArgs) -> bool {
        let abi::WrAtomic { compare_add, swap } = args.into();
        if compare_add | swap == 0 {
            return true;
        }
        if self.uses(RECEIVER) {
            return abi::WrUd::from(args).pad == 0;
        }
        self.uses(OPERANDS) && !(self.uses(ONE_OPERAND) && swap != 0)
    }

    /// Checks the elements, and the length of inline data in one.
    #[inline(never)]
    fn check_elements(self, wr: &abi::Wr, limits: Limits) -> Result<(), Refusal> {
        let (count, sge) = (u32::from(wr.num_sge), wr.sge);
        if count > limits.max_sge {
            return Err(Refusal::TooManyElements);
        }
        let is_right = match count {
            0 => sge == abi::Sge::default(),
            1 => true,
            // The address of an array.
            _ => sge.buffer == 0 && sge.length == 0,
        };
        // An atomic returns 8 bytes, and its remote address is a multiple of 8.
        let is_right = is_right
            && (!self.is_atomic() || (count == 1 && sge.length == 8 && wr.remote_addr & 7 == 0));
        if !is_right {
            return Err(Refusal::Invalid);
        }
        if count == 1 && wr.flags & abi::SEND_INLINE != 0 && sge.length > limits.max_inline {
            return Err(Refusal::TooLong);
        }
        Ok(())
    }
}

/// Returns the opcode, the number of elements and the flags of `wr` as one number.
#[allow(unreachable_pub)]
#[inline(always)]
pub fn shape(wr: &abi::Wr) -> u32 {
    u32::from(wr.opcode) | (u32::from(wr.num_sge) << 8) | (u32::from(wr.flags) << 16)
}

/// Returns whether `wr` has a time exactly if its flags say so.
#[inline(always)]
fn is_timed(wr: &abi::Wr) -> bool {
    (wr.flags & abi::REQUEST_TIMEOUT != 0) == (wr.timeout_ns != 0)
}

/// Checks `wr`, which was copied from user space, and returns the rule of its opcode.
#[allow(unreachable_pub)]
#[inline(always)]
pub fn check(wr: &abi::Wr, limits: Limits) -> Result<Rule, Refusal> {
    let rule = Rule::of(wr.opcode)?;
    if !rule.is_clean(wr) {
        return Err(Refusal::Invalid);
    }
    if wr.num_sge != 1
        || limits.max_sge == 0
        || rule.is_atomic()
        || wr.flags & abi::SEND_INLINE != 0
    {
        rule.check_elements(wr, limits)?;
    }
    if !is_timed(wr) {
        return Err(Refusal::Invalid);
    }
    Ok(rule)
}
