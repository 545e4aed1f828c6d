// SPDX-License-Identifier: GPL-2.0

//! Commands of io_uring: `IORING_OP_URING_CMD`.
//!
//! A command that is issued is answered at once ([`UringCmd::answer`], [`UringCmd::refuse`]), or
//! started ([`UringCmd::begin`]). The parts of a started command have a [`CmdRef`] each, or several
//! share one, and the command completes once, when the last one is dropped. Its state is in the 32 bytes that io_uring keeps
//! with a command, so nothing is allocated.
//!
//! A started command is marked cancelable before the first [`CmdRef`] exists. When its ring or its
//! task ends, io_uring passes it to the module as [`Canceling`], repeatedly, until it has
//! completed. The module then drops its references.
//!
//! The task that submitted a command completes it, in task work. That task may be stopped, so
//! nobody may wait for the completion, and the completion holds no object.
//!
//! C header: [`include/linux/io_uring/cmd.h`](srctree/include/linux/io_uring/cmd.h)

use super::user::Plain;
use crate::bindings;
use core::{
    cell::Cell,
    mem::size_of,
    num::NonZeroU16,
    ptr::NonNull, //
};
use kernel::{
    bindings::io_uring_cmd,
    ffi::{
        c_int,
        c_uint, //
    },
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Full,
            Relaxed, //
        }, //
    }, //
};

/// The length of a command in an entry of 64 bytes.
const SMALL: usize = 16;
/// The length of a command in an entry of 128 bytes.
const LARGE: usize = 80;

/// The result of `uring_cmd` for a command that completes later.
const QUEUED: c_int = (kernel::bindings::EIOCBQUEUED as c_int).wrapping_neg();

/// The `res` of a command whose part ended without a result.
const CANCELED: i32 = (kernel::bindings::ECANCELED as i32).wrapping_neg();

/// A call of `uring_cmd`.
///
/// ```
/// fn is_issue(call: &Call<'_>) -> bool {
///     matches!(call, Call::Issue(_))
/// }
/// ```
pub(crate) enum Call<'a> {
    /// A command is issued.
    Issue(UringCmd<'a>),
    /// A started command must end, because its ring or its task ends.
    Cancel(Canceling<'a>),
}

impl Call<'_> {
    /// Wraps the arguments of a call.
    ///
    /// # Safety
    ///
    /// `cmd` and `flags` are the arguments of a call of `uring_cmd` that returns after `'a` ends.
    pub(crate) unsafe fn new(cmd: *mut io_uring_cmd, flags: c_uint) -> Option<Self> {
        let cmd = NonNull::new(cmd)?;
        if flags & bindings::IO_URING_F_CANCEL as c_uint != 0 {
            // SAFETY: io_uring cancels commands that are marked, so this one was started. It does
            // not complete during the call: io_uring holds the lock of the ring, which its
            // completion takes.
            return Some(Self::Cancel(Canceling(unsafe { Pdu::of(cmd) })));
        }
        // INVARIANT: The command is being issued, and nobody else knows it.
        Some(Self::Issue(UringCmd {
            cmd,
            flags,
            _call: core::marker::PhantomData,
        }))
    }
}

/// The result of `uring_cmd` for a command that is issued.
///
/// ```
/// fn do_nothing(cmd: UringCmd<'_>) -> IssueResult {
///     cmd.answer(0)
/// }
/// ```
///
/// # Invariants
///
/// The number came out of a [`UringCmd`].
#[must_use]
pub(crate) struct IssueResult(c_int);

impl IssueResult {
    /// Returns the number.
    pub(crate) fn raw(&self) -> c_int {
        self.0
    }
}

/// Where the number of a part begins in the first extra word of a failure.
pub(crate) const INDEX_SHIFT: u32 = 16;
/// Where the error code of the vendor begins there.
pub(crate) const DETAIL_SHIFT: u32 = 32;

/// The `res` of a command with a part that failed.
const FAILED: i32 = (kernel::bindings::EREMOTEIO as i32).wrapping_neg();

/// Why a part of a command failed, as the first extra word of its completion.
///
/// The lower 16 bits are the status of the part, the next ones its number, and the upper half is the
/// error code of the vendor. A part that was refused has no status, and its errno in the place of
/// that code. So no failure is 0.
#[derive(Clone, Copy)]
struct Failure(u64);

impl Failure {
    /// Returns the failure of part `index`, which has completed.
    fn completed(index: u32, status: NonZeroU16, detail: u32) -> Self {
        Self(
            u64::from(status.get())
                | u64::from(index & 0xffff) << INDEX_SHIFT
                | u64::from(detail) << DETAIL_SHIFT,
        )
    }

    /// Returns the failure of part `index`, which was refused.
    fn refused(index: u32, error: Error) -> Self {
        let errno = error.to_errno().unsigned_abs();
        Self(u64::from(index & 0xffff) << INDEX_SHIFT | u64::from(errno) << DETAIL_SHIFT)
    }

    /// Returns the number of the part.
    fn index(self) -> u64 {
        (self.0 >> INDEX_SHIFT) & 0xffff
    }

    /// Returns the `res` of the completion, and the first extra word.
    fn result(self) -> (i32, u64) {
        match self.0 as u16 {
            0 => {
                let errno = (self.0 >> DETAIL_SHIFT) as i32;
                (errno.wrapping_neg(), self.0 & u64::from(u32::MAX))
            }
            _ => (FAILED, self.0),
        }
    }
}

/// The state of a started command. Its fields are atomic, since references are in any context.
///
/// # Invariants
///
/// `cmd` has not completed, and its `pdu` is initialized.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Pdu<'a> {
    cmd: NonNull<io_uring_cmd>,
    _cmd: core::marker::PhantomData<&'a ()>,
}

/// Bits of `rust_ulp_uring.kind`.
mod kind {
    /// The completion has room for 32 bytes.
    pub(super) const BIG: u32 = crate::bindings::RUST_ULP_URING_BIG;
    /// The number of parts.
    pub(super) const COUNT: u32 = 0xffff;
}

impl<'a> Pdu<'a> {
    /// # Safety
    ///
    /// `cmd` does not complete before `'a` ends. It was started, or [`UringCmd::init`] initializes
    /// its `pdu` before anything is read.
    unsafe fn of(cmd: NonNull<io_uring_cmd>) -> Self {
        // INVARIANT: By the requirement.
        Self {
            cmd,
            _cmd: core::marker::PhantomData,
        }
    }

    fn raw(self) -> *mut bindings::rust_ulp_uring {
        // SAFETY: The command is valid; a pointer into it is made.
        unsafe { bindings::rust_ulp_h_uring_pdu(self.cmd.as_ptr()) }
    }

    fn refs(self) -> &'a Atomic<u32> {
        // SAFETY: By the type invariant the field is valid and initialized. It is accessed as an
        // atomic only.
        unsafe { Atomic::from_ptr(&raw mut (*self.raw()).refs) }
    }

    fn queue(self) -> &'a Atomic<u32> {
        // SAFETY: As above.
        unsafe { Atomic::from_ptr(&raw mut (*self.raw()).queue) }
    }

    fn slot(self) -> &'a Atomic<u32> {
        // SAFETY: As above.
        unsafe { Atomic::from_ptr(&raw mut (*self.raw()).slot) }
    }

    fn kind(self) -> &'a Atomic<u32> {
        // SAFETY: As above.
        unsafe { Atomic::from_ptr(&raw mut (*self.raw()).kind) }
    }

    fn outcome(self) -> &'a Atomic<u64> {
        // SAFETY: As above.
        unsafe { Atomic::from_ptr(&raw mut (*self.raw()).outcome) }
    }

    fn extra(self) -> &'a Atomic<u64> {
        // SAFETY: As above.
        unsafe { Atomic::from_ptr(&raw mut (*self.raw()).extra) }
    }

    fn count(self) -> u32 {
        self.kind().load(Relaxed) & kind::COUNT
    }

    /// Sets the `res` of the completion, and the first extra word.
    fn set(self, res: i32, extra: u64) {
        self.outcome().store(u64::from(res as u32), Relaxed);
        self.extra().store(extra, Relaxed);
    }

    /// Notes the result of a part that succeeded.
    fn succeed(self, res: i32, extra: u64) {
        if self.count() == 1 {
            self.set(res, extra);
        }
    }

    /// Notes that a part failed.
    fn fail(self, failure: Failure) {
        if self.count() == 1 {
            let (res, extra) = failure.result();
            self.set(res, extra);
            return;
        }
        // The failure of the part with the lowest number counts, whichever comes first.
        let mut old = self.outcome().load(Relaxed);
        while old == 0 || failure.index() < Failure(old).index() {
            match self.outcome().cmpxchg(old, failure.0, Full) {
                Ok(_) => break,
                Err(now) => old = now,
            }
        }
    }

    /// Drops `count` references, and returns whether the last one was among them; then the caller
    /// completes the command.
    fn put(self, count: u32) -> bool {
        // Orders the results of the parts before the completion.
        self.refs().fetch_sub(count, Full) == count
    }

    /// Returns the `res` of the completion, and the first extra word.
    fn result(self) -> (i32, u64) {
        match (self.count(), self.outcome().load(Relaxed)) {
            (1, res) => (res as u32 as i32, self.extra().load(Relaxed)),
            (count, 0) => (count as i32, 0),
            (_, failure) => Failure(failure).result(),
        }
    }

    /// Has the task complete the command, whose last reference was dropped. Any context.
    fn complete(self) {
        let (res, extra) = self.result();
        // From here on, only the task work reads these fields.
        self.set(res, extra);
        // SAFETY: By the type invariant the command has not completed.
        unsafe { bindings::rust_ulp_h_uring_complete(self.cmd.as_ptr()) };
    }
}

/// A command that is being issued.
///
/// ```
/// fn issue(cmd: UringCmd<'_>, start: impl FnOnce(CmdRef) -> Result) -> IssueResult {
///     if cmd.op() != 1 {
///         return cmd.refuse(EINVAL);
///     }
///     cmd.begin(1, |pending| start(pending.cmd_ref(0)).map_err(|err| (0, err)))
/// }
/// ```
///
/// # Invariants
///
/// `cmd` is a command that is being issued with `flags`, and nobody else knows it.
pub(crate) struct UringCmd<'a> {
    cmd: NonNull<io_uring_cmd>,
    flags: c_uint,
    _call: core::marker::PhantomData<&'a ()>,
}

impl UringCmd<'_> {
    /// Returns the operation: `cmd_op`.
    pub(crate) fn op(&self) -> u32 {
        // SAFETY: By the type invariant.
        unsafe { bindings::rust_ulp_h_uring_op(self.cmd.as_ptr()) }
    }

    /// Returns whether the entry has `uring_cmd_flags`, which the core leaves to this file.
    pub(crate) fn has_flags(&self) -> bool {
        // SAFETY: By the type invariant.
        unsafe { bindings::rust_ulp_h_uring_flags(self.cmd.as_ptr()) != 0 }
    }

    /// Copies the struct in the entry, once, since user space can write to the entry. Fails with
    /// [`EINVAL`] when the struct is longer than the commands of this ring, and with [`E2BIG`] when
    /// a byte of the command after the struct is not zero.
    pub(crate) fn read<T: Plain>(&self) -> Result<T> {
        let room = if self.flags & bindings::IO_URING_F_SQE128 as c_uint != 0 {
            LARGE
        } else {
            SMALL
        };
        if size_of::<T>() > room {
            return Err(EINVAL);
        }
        let mut command = [0u8; LARGE];
        // SAFETY: A command of this ring has `room` bytes, and the array has at least as many.
        unsafe {
            bindings::rust_ulp_h_uring_copy(self.cmd.as_ptr(), command.as_mut_ptr().cast(), room)
        };
        let (known, rest) = command.split_at_checked(size_of::<T>()).ok_or(EINVAL)?;
        if rest.iter().any(|&byte| byte != 0) {
            return Err(E2BIG);
        }
        let mut value = T::default();
        value.as_bytes_mut().copy_from_slice(known);
        Ok(value)
    }

    /// Completes the command with `res`, which is not negative.
    pub(crate) fn answer(self, res: u32) -> IssueResult {
        self.done(i32::try_from(res).unwrap_or(i32::MAX), 0)
    }

    /// Completes the command with an error.
    pub(crate) fn refuse(self, error: Error) -> IssueResult {
        self.done(error.to_errno(), 0)
    }

    /// Completes the command with the error of part `index`, which the first extra word names.
    pub(crate) fn refuse_part(self, index: u32, error: Error) -> IssueResult {
        let (res, extra) = Failure::refused(index, error).result();
        self.done(res, extra)
    }

    /// Returns whether the completion has room for 32 bytes.
    fn is_big(&self) -> bool {
        self.flags & bindings::IO_URING_F_CQE32 as c_uint != 0
    }

    /// Completes the command. A result that `uring_cmd` returns would have two faults. Its extra words
    /// may be those of an earlier command in the same memory (io_uring/io_uring.h:io_fill_cqe_req).
    /// After EAGAIN, io_uring would issue the command again from a worker, out of order.
    fn done(self, res: i32, extra: u64) -> IssueResult {
        let big = self.is_big();
        // SAFETY: By the type invariant the command has not completed. These are the flags of the
        // call.
        unsafe {
            bindings::rust_ulp_h_uring_done(self.cmd.as_ptr(), res, extra, self.flags, big);
        }
        // INVARIANT: The number is the result of this command, which is used up.
        IssueResult(QUEUED)
    }

    fn init(&self, count: u32) -> Pdu<'static> {
        let big = if self.is_big() { kind::BIG } else { 0 };
        // SAFETY: By the type invariant the command has not completed. The users of this value hold
        // references, or are this call.
        let pdu = unsafe { Pdu::of(self.cmd) };
        // SAFETY: Nobody else accesses the command before it is marked.
        unsafe {
            *pdu.raw() = bindings::rust_ulp_uring {
                refs: count.saturating_add(1),
                queue: 0,
                slot: u32::MAX,
                kind: count | big,
                ..Default::default()
            }
        };
        pdu
    }

    /// Marks the command cancelable. May sleep, on the lock of the ring.
    fn mark(&self) {
        // SAFETY: By the type invariant. These are the flags of the call.
        unsafe { bindings::rust_ulp_h_uring_mark(self.cmd.as_ptr(), self.flags) };
    }

    /// Starts the command of `count` parts, 1 to 65535; `f` makes references to it. May sleep; call it
    /// without locks.
    ///
    /// The command completes when `f` has returned and all references are dropped. The result of a
    /// command of one part is the result of that part, or [`ECANCELED`] if it has none. The result
    /// of a command of several parts is their number, or the failure of the part with the lowest
    /// number. A failure of `f`, with the number of a part, counts as a failure of that part; those
    /// after it have no reference.
    ///
    /// [`ECANCELED`]: CANCELED
    pub(crate) fn begin(
        self,
        count: u16,
        f: impl FnOnce(&PendingCmd) -> Result<(), (u32, Error)>,
    ) -> IssueResult {
        let count = u32::from(count);
        let pdu = self.init(count);
        pdu.set(if count == 1 { CANCELED } else { 0 }, 0);
        self.mark();
        // INVARIANT: `init` counted these references.
        let begun = PendingCmd {
            pdu,
            left: Cell::new(count),
        };
        let result = f(&begun);
        if let Err((index, error)) = result {
            pdu.fail(Failure::refused(index, error));
        }
        if pdu.put(begun.left.get().saturating_add(1)) {
            if result.is_err() {
                let (res, extra) = pdu.result();
                return self.done(res, extra);
            }
            // Not here: earlier commands may still wait for their task work.
            pdu.complete();
        }
        IssueResult(QUEUED)
    }
}

/// A started command while it is issued.
///
/// ```
/// fn halves(pending: &PendingCmd) -> [CmdRef; 2] {
///     [pending.cmd_ref(0), pending.cmd_ref(1)]
/// }
/// ```
///
/// # Invariants
///
/// The value owns `left` references to the command, and one more.
pub(crate) struct PendingCmd {
    pdu: Pdu<'static>,
    left: Cell<u32>,
}

impl PendingCmd {
    /// Notes the queue of its first part, for [`Canceling::queue`].
    pub(crate) fn set_queue(&self, queue: u32) {
        self.pdu.queue().store(queue, Relaxed);
    }

    /// Returns a reference for part `index`.
    #[inline(never)]
    pub(crate) fn cmd_ref(&self, index: u32) -> CmdRef {
        match self.left.get().checked_sub(1) {
            // INVARIANT: The result owns this reference.
            Some(left) => self.left.set(left),
            None => {
                self.pdu.refs().fetch_add(1, Relaxed);
            }
        }
        // INVARIANT: The reference is counted.
        CmdRef {
            cmd: self.pdu.cmd,
            index,
        }
    }
}

/// A reference to a started command, held by one of its parts, for itself and for those before it that
/// share it. The command completes when the last one is dropped.
///
/// ```
/// fn received(part: CmdRef, bytes: i32) {
///     part.succeed(bytes, 0);
/// }
/// ```
///
/// # Invariants
///
/// `cmd` was started, and counts this reference.
pub(crate) struct CmdRef {
    cmd: NonNull<io_uring_cmd>,
    index: u32,
}

// SAFETY: What is accessed through it is atomic, and any context may queue the task work that
// completes the command (io_uring/tw.h:__io_req_task_work_add).
unsafe impl Send for CmdRef {}
// SAFETY: As above.
unsafe impl Sync for CmdRef {}

impl CmdRef {
    /// Notes that the part is in slot `slot` of its queue, for [`Canceling::slot`].
    pub(crate) fn placed(&self, slot: u32) {
        self.pdu().slot().store(slot, Relaxed);
    }

    /// Returns a reference for the part whose number is by `places` lower. Any context.
    pub(crate) fn before(&self, places: u32) -> Self {
        self.pdu().refs().fetch_add(1, Relaxed);
        // INVARIANT: The command has not completed, since `self` is counted, and the result is counted
        // from here on.
        Self {
            cmd: self.cmd,
            index: self.index.wrapping_sub(places),
        }
    }

    /// Ends the part, which succeeded. Its `res`, which is not negative, and the first extra word are
    /// those of a command of one part. Any context.
    pub(crate) fn succeed(self, res: i32, extra: u64) {
        self.pdu().succeed(res, extra);
    }

    /// Ends the part, which failed with `status` and the error code `detail` of the vendor. Any
    /// context.
    pub(crate) fn fail(self, status: NonZeroU16, detail: u32) {
        let failure = Failure::completed(self.index, status, detail);
        self.pdu().fail(failure);
    }

    fn pdu(&self) -> Pdu<'_> {
        // SAFETY: By the type invariant the command was started. It does not complete before this
        // reference is dropped.
        unsafe { Pdu::of(self.cmd) }
    }
}

impl Drop for CmdRef {
    fn drop(&mut self) {
        let pdu = self.pdu();
        // The last reference completes the command, which nobody else uses any more.
        if pdu.put(1) {
            pdu.complete();
        }
    }
}

/// A started command that must end. The lock of its ring is held.
///
/// ```
/// fn end(command: Canceling<'_>, held: &mut Option<CmdRef>) {
///     if held.as_ref().is_some_and(|cmd_ref| command.has(cmd_ref)) {
///         // The last reference completes the command.
///         *held = None;
///     }
/// }
/// ```
pub(crate) struct Canceling<'a>(Pdu<'a>);

impl Canceling<'_> {
    /// Returns what [`PendingCmd::set_queue`] got; 0 before.
    pub(crate) fn queue(&self) -> u32 {
        self.0.queue().load(Relaxed)
    }

    /// Returns the slot of its only part; [`None`] when it has several parts, or no slot yet.
    pub(crate) fn slot(&self) -> Option<u32> {
        let slot = self.0.slot().load(Relaxed);
        (self.0.count() == 1 && slot != u32::MAX).then_some(slot)
    }

    /// Returns whether it has one part.
    pub(crate) fn is_single(&self) -> bool {
        self.0.count() == 1
    }

    /// Returns whether no reference to it is left: its completion is on its way.
    pub(crate) fn is_complete(&self) -> bool {
        self.0.refs().load(Relaxed) == 0
    }

    /// Returns whether `cmd_ref` is a reference to it.
    pub(crate) fn has(&self, cmd_ref: &CmdRef) -> bool {
        self.0.cmd == cmd_ref.cmd
    }

    /// Returns whether the command of `cmd_ref` is to end as well: io_uring ends all commands of a
    /// ring, or all that a task has in a ring (`io_uring_try_cancel_uring_cmd()`).
    pub(crate) fn ends_with(&self, cmd_ref: &CmdRef) -> bool {
        let (this, other) = (self.0.cmd.as_ptr(), cmd_ref.cmd.as_ptr());
        // SAFETY: By the type invariants neither command has completed.
        unsafe { bindings::rust_ulp_h_uring_end_together(this, other) }
    }
}
