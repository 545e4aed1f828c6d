// SPDX-License-Identifier: GPL-2.0

//! Commands of io_uring: `IORING_OP_URING_CMD`.
//!
//! A command that is issued is answered at once ([`UringCmd::answer`], [`UringCmd::refuse`]), or
//! started ([`UringCmd::begin`]). Each part of a started command has a [`CmdRef`], and the command
//! completes once, when the last one is dropped. Its state is in the 32 bytes that io_uring keeps
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
    ptr::NonNull, //
};
use kernel::{
    bindings::io_uring_cmd,
    ffi::{
        c_int,
        c_uint,
        c_void, //
    },
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Full,
            Relaxed, //
        },
        Arc, //
    },
    uaccess::{
        UserPtr,
        UserSlice,
        UserSliceWriter, //
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
    /// The command is a [`Stream`](super::Stream).
    pub(super) const STREAM: u32 = 1 << 17;
    /// The number of parts; of a stream, the group of buffers.
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

    /// Notes the result of part `index`.
    fn note(self, index: u32, res: i32, extra: u64) {
        if self.count() == 1 {
            self.outcome().store(u64::from(res as u32), Relaxed);
            self.extra().store(extra, Relaxed);
        } else if res < 0 {
            // The first failure counts.
            let outcome = u64::from(res as u32) | u64::from(index) << 32;
            let _ = self.outcome().cmpxchg(0, outcome, Full);
        }
    }

    /// Drops `count` references, and returns whether the last one was among them; then the caller
    /// completes the command.
    fn put(self, count: u32) -> bool {
        // Orders the results of the parts before the completion.
        self.refs().fetch_sub(count, Full) == count
    }

    /// Returns the `res` of the completion, and the first further word.
    fn result(self) -> (i32, u64) {
        let outcome = self.outcome().load(Relaxed);
        match (self.count(), outcome as u32 as i32) {
            (1, res) => (res, self.extra().load(Relaxed)),
            (count, 0) => (count as i32, 0),
            (_, res) => (res, outcome >> 32),
        }
    }

    /// Has the task complete the command, whose last reference was dropped. Any context.
    fn complete(self) {
        let (res, extra) = self.result();
        // From here on, only the task work reads these fields.
        self.outcome().store(u64::from(res as u32), Relaxed);
        self.extra().store(extra, Relaxed);
        // SAFETY: By the type invariant the command has not completed.
        unsafe { bindings::rust_ulp_h_uring_complete(self.cmd.as_ptr()) };
    }

    fn is_big(self) -> bool {
        self.kind().load(Relaxed) & kind::BIG != 0
    }

    /// Returns the state of a stream, which has other fields behind `kind`.
    fn stream(self) -> *mut bindings::rust_ulp_uring_source {
        self.raw().cast()
    }

    /// Changes the [`state`] of a stream, and returns the old state.
    fn change(self, change: impl Fn(u32) -> u32) -> u32 {
        let mut old = self.refs().load(Relaxed);
        loop {
            match self.refs().cmpxchg(old, change(old), Full) {
                Ok(_) => return old,
                Err(other) => old = other,
            }
        }
    }

    /// Clears [`state::BUSY`] of a stream, unless the stream was woken meanwhile. Returns whether
    /// it did. Then the task work may run again at once, and complete the command.
    fn try_idle(self) -> bool {
        let old = self.change(|old| match old & state::WOKEN {
            0 => old & !state::BUSY,
            _ => old,
        });
        old & state::WOKEN == 0
    }

    /// Ends a stream with the result `res`. Returns whether the caller completes the command; if
    /// not, dropping the [`Stream`] does.
    fn end_stream(self, res: i32) -> bool {
        // These fields held the source, which nobody needs any more.
        self.outcome().store(u64::from(res as u32), Relaxed);
        self.extra().store(0, Relaxed);
        self.change(|old| old | state::ENDED) & state::HELD == 0
    }
}

/// A command that is being issued.
///
/// ```
/// fn issue(cmd: UringCmd<'_>, start: impl FnOnce(CmdRef) -> Result) -> IssueResult {
///     if cmd.op() != 1 {
///         return cmd.refuse(EINVAL);
///     }
///     cmd.begin(1, 0, |pending| start(pending.cmd_ref(0)).map_err(|err| (0, err)))
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
        if size_of::<T>() < room {
            let mut command = [0u8; LARGE];
            // SAFETY: A command of this ring has `room` bytes, and the array has at least as many.
            unsafe {
                bindings::rust_ulp_h_uring_copy(
                    self.cmd.as_ptr(),
                    command.as_mut_ptr().cast(),
                    room,
                )
            };
            if command.iter().skip(size_of::<T>()).any(|&byte| byte != 0) {
                return Err(E2BIG);
            }
        }
        let mut value = T::default();
        let bytes = value.as_bytes_mut();
        // SAFETY: The entry has that many bytes, and so has the value, which may have any bytes.
        unsafe {
            bindings::rust_ulp_h_uring_copy(
                self.cmd.as_ptr(),
                bytes.as_mut_ptr().cast(),
                bytes.len(),
            )
        };
        Ok(value)
    }

    /// Completes the command with `res`, which is not negative.
    pub(crate) fn answer(self, res: u32) -> IssueResult {
        // INVARIANT: The number is the result of this command, which is used up. The same holds
        // below.
        IssueResult(c_int::try_from(res).unwrap_or(c_int::MAX))
    }

    /// Completes the command with an error.
    pub(crate) fn refuse(self, error: Error) -> IssueResult {
        if error != EAGAIN {
            return IssueResult(error.to_errno());
        }
        // io_uring would issue the command again from a worker, out of order.
        self.done(error.to_errno(), 0, false)
    }

    /// Completes the command.
    fn done(self, res: i32, extra: u64, big: bool) -> IssueResult {
        // SAFETY: By the type invariant the command has not completed. These are the flags of the
        // call.
        unsafe {
            bindings::rust_ulp_h_uring_done(self.cmd.as_ptr(), res, extra, self.flags, big);
        }
        IssueResult(QUEUED)
    }

    fn init(&self, kind: u32, queue: u32, refs: u32) -> Pdu<'static> {
        let big = if self.flags & bindings::IO_URING_F_CQE32 as c_uint != 0 {
            kind::BIG
        } else {
            0
        };
        // SAFETY: By the type invariant the command has not completed. The users of this value hold
        // references, or are this call.
        let pdu = unsafe { Pdu::of(self.cmd) };
        // SAFETY: Nobody else accesses the command before it is marked.
        unsafe {
            *pdu.raw() = bindings::rust_ulp_uring {
                refs,
                queue,
                slot: u32::MAX,
                kind: kind | big,
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

    /// Starts the command; `f` makes up to `count` references to it, 1 to 65535. May sleep; call it
    /// without locks.
    ///
    /// The command completes when `f` has returned and all references are dropped. The result of a
    /// command of one part is the result of that part, or [`ECANCELED`] if it has none. The result
    /// of a command of several parts is their number, or the first failure. A failure of `f`, with
    /// the number of a part, counts as a failure of that part. [`Canceling::queue`] returns
    /// `queue`.
    ///
    /// [`ECANCELED`]: CANCELED
    pub(crate) fn begin(
        self,
        count: u16,
        queue: u32,
        f: impl FnOnce(&PendingCmd) -> Result<(), (u32, Error)>,
    ) -> IssueResult {
        let outcome = if count == 1 {
            u64::from(CANCELED as u32)
        } else {
            0
        };
        let count = u32::from(count);
        let pdu = self.init(count, queue, count.saturating_add(1));
        pdu.outcome().store(outcome, Relaxed);
        pdu.extra().store(0, Relaxed);
        self.mark();
        // INVARIANT: `init` counted these references.
        let begun = PendingCmd {
            pdu,
            left: Cell::new(count),
        };
        let result = f(&begun);
        if let Err((index, error)) = result {
            pdu.note(index, error.to_errno(), u64::from(index));
        }
        if pdu.put(begun.left.get().saturating_add(1)) {
            if result.is_err() {
                let ((res, extra), big) = (pdu.result(), pdu.is_big());
                return self.done(res, extra, big);
            }
            // Not here: earlier commands may still wait for their task work.
            pdu.complete();
        }
        IssueResult(QUEUED)
    }

    /// Starts the command as a [`Stream`] of a source. May sleep; call it without locks.
    ///
    /// `find` returns the source, and a guard that is kept until the stream has begun.
    /// [`Canceling::queue`] returns `queue`. Fails with [`EINVAL`] unless the command is multishot
    /// and has a group of buffers.
    pub(crate) fn stream<S: Source, G>(
        self,
        queue: u32,
        find: impl FnOnce() -> Result<(Arc<S>, G)>,
    ) -> IssueResult {
        let mut group = 0;
        // SAFETY: By the type invariant. The group is valid.
        if !unsafe { bindings::rust_ulp_h_uring_group(self.cmd.as_ptr(), &mut group) } {
            return self.refuse(EINVAL);
        }
        let pdu = self.init(kind::STREAM | u32::from(group), queue, 1);
        self.mark();
        let (source, guard) = match find() {
            Ok(found) => found,
            Err(error) => return self.done(error.to_errno(), 0, pdu.is_big()),
        };
        let kept = source.clone();
        let context = Arc::into_raw(source);
        // SAFETY: The struct fits, and nobody accesses these fields before the task work is queued.
        unsafe {
            (*pdu.stream()).source = context.cast();
            (*pdu.stream()).run = Some(Stream::run::<S>);
        }
        // This call stands for the task work until the stream has begun.
        pdu.refs().store(state::HELD | state::BUSY, Relaxed);
        // INVARIANT: `HELD` is set, and this is the only handle.
        let begun = kept.begin(Stream(self.cmd));
        drop(guard);
        match begun {
            Ok(()) => {
                if !pdu.try_idle() {
                    // SAFETY: The state is `BUSY`, so the command has not completed, and nobody
                    // else queues its task work.
                    unsafe { bindings::rust_ulp_h_uring_stream(self.cmd.as_ptr()) };
                }
                IssueResult(QUEUED)
            }
            Err(error) => {
                // SAFETY: The pointer came out of `into_raw` above. The state is `BUSY`, so no task
                // work runs.
                drop(unsafe { Arc::from_raw(context) });
                match pdu.end_stream(error.to_errno()) {
                    true => self.done(error.to_errno(), 0, pdu.is_big()),
                    false => IssueResult(QUEUED),
                }
            }
        }
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
    /// Returns a reference for part `index`.
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
            count: 1,
        }
    }
}

/// A reference to a started command, held by one of its parts, or the references of several parts
/// that have ended. The command completes when the last one is dropped.
///
/// ```
/// fn received(part: CmdRef, bytes: i32) {
///     part.finish(bytes, 0);
/// }
/// ```
///
/// # Invariants
///
/// `cmd` was started, and counts `count` references for this value.
pub(crate) struct CmdRef {
    cmd: NonNull<io_uring_cmd>,
    index: u32,
    count: u32,
}

// SAFETY: What is accessed through it is atomic, and any context may queue the task work that
// completes the command (`__io_req_task_work_add()`, io_uring/tw.h:40).
unsafe impl Send for CmdRef {}
// SAFETY: As above.
unsafe impl Sync for CmdRef {}

impl CmdRef {
    /// Notes that the part is in slot `slot` of its queue, for [`Canceling::slot`].
    pub(crate) fn placed(&self, slot: u32) {
        self.pdu().slot().store(slot, Relaxed);
    }

    /// Adds the reference of a part that succeeded to `refs`. If those are to another command,
    /// drops them. Any context.
    pub(crate) fn merge(self, refs: &mut Option<Self>) {
        match refs {
            Some(refs) if refs.cmd == self.cmd => {
                // INVARIANT: The references of `self` are those of `refs` from here on. There are
                // no more of them than `begin` counted.
                refs.count = refs.count.wrapping_add(self.count);
                core::mem::forget(self);
            }
            _ => *refs = Some(self),
        }
    }

    /// Ends the part with a result. Any context.
    pub(crate) fn finish(self, res: i32, extra: u64) {
        self.pdu().note(self.index, res, extra);
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
        if pdu.put(self.count) {
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
    /// Returns the `queue` that [`UringCmd::begin`] or [`UringCmd::stream`] got.
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

    /// Returns whether it is a stream.
    pub(crate) fn is_stream(&self) -> bool {
        self.0.kind().load(Relaxed) & kind::STREAM != 0
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

    /// Returns whether it is the command of `stream`.
    pub(crate) fn is(&self, stream: &Stream) -> bool {
        self.0.cmd == stream.0
    }
}

/// The number of buffers that a stream fills before it lets other task work run.
const BUDGET: u32 = 64;

/// A source of the data that a [`Stream`] copies to user space.
///
/// ```
/// use ::kernel::uaccess::UserSliceWriter;
///
/// struct Zeros(lock::SpinLockIrq<Option<Stream>>);
///
/// impl Source for Zeros {
///     fn begin(&self, stream: Stream) -> Result {
///         let mut kept = self.0.lock();
///         if kept.is_some() {
///             return Err(EBUSY);
///         }
///         kept.insert(stream).wake();
///         Ok(())
///     }
///
///     fn poll(&self) -> Result<bool> {
///         Ok(true)
///     }
///
///     fn copy(&self, mut to: UserSliceWriter) -> Result<usize> {
///         to.write(&0u64)?;
///         Ok(8)
///     }
///
///     fn copied(&self) {}
///
///     fn end(&self) {
///         *self.0.lock() = None;
///     }
/// }
/// ```
pub(crate) trait Source: Send + Sync + 'static {
    /// Keeps `stream`, and wakes it when there is data. Fails, and drops `stream`, when the source
    /// has another one.
    fn begin(&self, stream: Stream) -> Result;

    /// Returns whether there is data for the stream. If there is none, the source wakes the stream
    /// when data arrives. Fails, and drops its [`Stream`], when the stream ends.
    fn poll(&self) -> Result<bool>;

    /// Copies out as much data as fits. Process context; may sleep.
    fn copy(&self, to: UserSliceWriter) -> Result<usize>;

    /// The data that was copied last has arrived.
    fn copied(&self);

    /// Drops its [`Stream`]: the stream ends.
    fn end(&self);
}

/// The state of a stream: bits of `rust_ulp_uring.refs`.
mod state {
    /// The [`Stream`](super::Stream) exists.
    pub(super) const HELD: u32 = 1 << 0;
    /// The task work is queued or runs.
    pub(super) const BUSY: u32 = 1 << 1;
    /// The stream was woken or dropped since the task work polled the source.
    pub(super) const WOKEN: u32 = 1 << 2;
    /// The task work has ended: dropping the [`Stream`](super::Stream) completes the command.
    pub(super) const ENDED: u32 = 1 << 3;
}

/// The handle of a command that completes many times, into buffers that user space provides.
///
/// The command ends when the handle is dropped.
///
/// ```
/// fn announce(kept: &lock::SpinLockIrq<Option<Stream>>) {
///     if let Some(stream) = &*kept.lock() {
///         stream.wake();
///     }
/// }
/// ```
///
/// # Invariants
///
/// The command is a stream, and [`state::HELD`] is set. The command does not complete for the last
/// time while that bit is set.
pub(crate) struct Stream(NonNull<io_uring_cmd>);

// SAFETY: A stream gives access to the command's state, which is atomic, and queues task work,
// which io_uring takes in any context (`__io_req_task_work_add()`, io_uring/tw.h:40).
unsafe impl Send for Stream {}
// SAFETY: As above.
unsafe impl Sync for Stream {}

impl Stream {
    /// Has task context poll the source soon. Any context, at any time.
    pub(crate) fn wake(&self) {
        self.notify(|state| state);
    }

    /// Changes the state as `change` says, and queues the task work if it is idle. Returns the old
    /// state.
    fn notify(&self, change: impl Fn(u32) -> u32) -> u32 {
        // SAFETY: By the type invariant the command has not completed.
        let pdu = unsafe { Pdu::of(self.0) };
        let old = pdu.change(|old| match old & state::ENDED {
            0 => change(old | state::BUSY | state::WOKEN),
            _ => change(old),
        });
        if old & (state::BUSY | state::ENDED) == 0 {
            // SAFETY: The command has not completed: the handle exists, or was dropped by this
            // call, and then only the task work completes the command. This call has set `BUSY`,
            // and nobody else queues the task work.
            unsafe { bindings::rust_ulp_h_uring_stream(self.0.as_ptr()) };
        }
        old
    }

    /// Runs as task work; `ended` says that the task no longer exists.
    ///
    /// # Safety
    ///
    /// `cmd` is a stream of an `S` in the state [`state::BUSY`].
    unsafe extern "C" fn run<S: Source>(cmd: *mut io_uring_cmd, ended: bool) {
        let Some(ptr) = NonNull::new(cmd) else {
            return;
        };
        // SAFETY: By the requirement. Only the end of this function completes the command.
        let pdu = unsafe { Pdu::of(ptr) };
        // SAFETY: `UringCmd::stream` has set it.
        let context = unsafe { (*pdu.stream()).source }.cast::<S>();
        // SAFETY: The pointer came out of `Arc::into_raw` in `UringCmd::stream`. It is freed only
        // below.
        let source = unsafe { kernel::sync::ArcBorrow::from_raw(context) };
        let Some(res) = Self::fill_buffers(pdu, &*source, ended) else {
            return;
        };
        // SAFETY: As above; this is the last use of the reference.
        drop(unsafe { Arc::from_raw(context) });
        if pdu.end_stream(res) {
            let big = pdu.is_big();
            // SAFETY: Task work of that command, which has not completed.
            unsafe { bindings::rust_ulp_h_uring_end(cmd, res, big) };
        }
    }

    /// Copies data of `source` into buffers. Returns the last result of the command, or [`None`]
    /// when the stream goes on, and this is called again.
    fn fill_buffers<S: Source>(pdu: Pdu<'_>, source: &S, ended: bool) -> Option<i32> {
        let group = pdu.kind().load(Relaxed) & kind::COUNT;
        for _ in 0..BUDGET {
            // What wakes the stream from here on is seen below.
            if pdu.change(|old| old & !state::WOKEN) & state::HELD == 0 {
                return Some(CANCELED);
            }
            match source.poll() {
                Ok(false) if pdu.try_idle() => return None,
                Ok(false) => continue,
                Err(error) => return Some(error.to_errno()),
                Ok(true) if ended => {
                    source.end();
                    return Some(CANCELED);
                }
                Ok(true) => (),
            }
            let context = core::ptr::from_ref(source).cast_mut().cast::<c_void>();
            // SAFETY: Task work of that command; `fill` takes the source for what it is.
            let res = unsafe {
                bindings::rust_ulp_h_uring_post(
                    pdu.cmd.as_ptr(),
                    group,
                    Some(Self::fill::<S>),
                    context,
                )
            };
            if res >= 0 {
                source.copied();
            }
            if res != 0 {
                source.end();
                return Some(res);
            }
        }
        // SAFETY: The command has not completed, and is in no list of task work.
        unsafe { bindings::rust_ulp_h_uring_stream(pdu.cmd.as_ptr()) };
        None
    }

    /// # Safety
    ///
    /// `source` is an `S`. `to` may be any address.
    unsafe extern "C" fn fill<S: Source>(
        source: *mut c_void,
        to: *mut c_void,
        len: usize,
    ) -> isize {
        // SAFETY: By the requirement.
        let source = unsafe { &*source.cast::<S>() };
        let to = UserSlice::new(UserPtr::from_ptr(to.cast()), len).writer();
        match source.copy(to) {
            Ok(done) => isize::try_from(done).unwrap_or(isize::MAX),
            Err(error) => error.to_errno() as isize,
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let old = self.notify(|state| state & !state::HELD);
        if old & state::ENDED != 0 {
            // SAFETY: The task work has ended, and left the last completion to this.
            unsafe { bindings::rust_ulp_h_uring_complete(self.0.as_ptr()) };
        }
    }
}
