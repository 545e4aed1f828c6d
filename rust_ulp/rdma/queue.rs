// SPDX-License-Identifier: GPL-2.0

//! Queues of work requests, and the slots in which requests live while a device may access them.
//!
//! A [`Queue`] is the send or receive queue of a queue pair, or a shared receive queue.
//! [`super::qp`] describes the life of a request.

use super::{
    ah::Ah,
    request::{
        QueueKind,
        WrContext, //
    },
    wr::{
        Local,
        Wr, //
    }, //
};
use crate::{
    bindings,
    kernel::{
        lock::{
            new_spinlock_bh,
            SpinLockBh, //
        },
        timer::{
            now_ns,
            Timer, //
        }, //
    },
    logic::{
        deadlines::{
            Deadline,
            Deadlines, //
        },
        unsignaled::Unsignaled, //
    }, //
};
use core::cell::UnsafeCell;
use kernel::{
    ffi::{
        c_int,
        c_void, //
    },
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};

/// The index of no slot.
pub(super) const NONE: u32 = u32::MAX;

/// The parts of a slot that a request refers to.
pub(super) struct SlotParts {
    /// What [`Queue::cqe`] returns.
    pub(super) cqe: *mut bindings::ib_cqe,
    /// The array of elements.
    pub(super) sg_list: *mut bindings::ib_sge,
    /// How many elements the request has.
    pub(super) num_sge: c_int,
}

impl SlotParts {
    /// Returns the general part of a send request with the flags `send_flags`.
    pub(super) fn send_wr(self, send_flags: c_int) -> bindings::ib_send_wr {
        let mut wr = bindings::ib_send_wr {
            sg_list: self.sg_list,
            num_sge: self.num_sge,
            send_flags,
            ..Default::default()
        };
        wr.__bindgen_anon_1.wr_cqe = self.cqe;
        wr
    }
}

/// The contents of a slot. [`WrSlot`] says who owns them.
pub(super) struct WrState<R> {
    /// The next slot of the list that contains this one.
    pub(super) next: u32,
    /// The previous slot in the list of posted slots.
    pub(super) prev: u32,
    pub(super) wr: Wr,
    /// Whether the success of the request is reported to the owner.
    pub(super) signaled: bool,
    /// Whether the request was canceled. This was reported, but the device still has the request.
    pub(super) canceled: bool,
    /// When the request is canceled, in the time of [`now_ns`]; 0 is never. [`Lists::deadlines`]
    /// contains the posted slots that have a deadline and were not canceled.
    pub(super) deadline: u64,
    pub(super) request: Option<R>,
    /// The address of a datagram, kept alive for the device.
    pub(super) ah: Option<Arc<Ah>>,
    /// The number of the slot's elements, from the first on, that may keep memory alive.
    pub(super) held: u32,
}

/// A slot that its owner fills, with its parts.
pub(super) struct SlotRef<'a, R> {
    pub(super) content: &'a mut WrState<R>,
    /// What [`Queue::cqe`] returns.
    pub(super) cqe: *mut bindings::ib_cqe,
    /// The memory that `sges` refer to.
    pub(super) locals: &'a mut [Option<Local>],
    pub(super) sges: &'a mut [bindings::ib_sge],
}

impl<R> WrState<R> {
    /// Whether the device reports the success of the request. A request with a deadline is always
    /// reported: the queue must know in time that it is done.
    pub(super) fn is_signaled(&self) -> bool {
        self.signaled || self.deadline != 0
    }
}

/// A slot for one request.
///
/// # Invariants
///
/// - `hook` does not change once the owner of the queue exists.
/// - One owner at a time accesses `content` and the slot's parts of the queue's arrays. The queue
///   owns free and posted slots, under its lock. A [`Chain`](super::chain::Chain) owns the slots
///   that it took.
#[repr(C)]
pub(super) struct WrSlot<R> {
    pub(super) hook: bindings::rust_ulp_cqe_hook,
    /// The queue pair or shared receive queue, for the functions of `hook`.
    pub(super) owner: *const c_void,
    pub(super) kind: QueueKind,
    pub(super) index: u32,
    /// The number of the request in the order of posting, from 1; 0 while the slot is not posted.
    /// Changed under the queue's lock.
    number: Atomic<u64>,
    /// 1 while the slot is free, else 0. Changed under the queue's lock.
    free: Atomic<u32>,
    content: UnsafeCell<WrState<R>>,
}

impl<R> WrSlot<R> {
    /// Returns a free slot; `next` is the free slot after it.
    fn new(
        kind: QueueKind,
        owner: *const c_void,
        done: Done,
        index: u32,
        next: Option<u32>,
    ) -> Self {
        Self {
            hook: bindings::rust_ulp_cqe_hook {
                cqe: bindings::ib_cqe {
                    done: Some(bindings::rust_ulp_completion),
                },
                done: Some(done),
            },
            owner,
            kind,
            index,
            number: Atomic::new(0),
            free: Atomic::new(1),
            content: UnsafeCell::new(WrState {
                next: next.unwrap_or(NONE),
                prev: NONE,
                wr: Wr {
                    send: Default::default(),
                },
                signaled: false,
                canceled: false,
                deadline: 0,
                request: None,
                ah: None,
                held: 0,
            }),
        }
    }

    /// Returns the slot that `cqe` belongs to.
    ///
    /// # Safety
    ///
    /// `cqe` came out of [`Queue::cqe`] of a queue that lives longer than `'a`.
    pub(super) unsafe fn from_cqe<'a>(cqe: *mut bindings::ib_cqe) -> &'a Self {
        // SAFETY: By the requirement `cqe` is a field of the hook of a slot, derived from a pointer
        // to the whole slot.
        unsafe {
            let hook = kernel::container_of!(cqe, bindings::rust_ulp_cqe_hook, cqe);
            &*kernel::container_of!(hook, Self, hook)
        }
    }
}

/// The lists of a queue. Each slot that no chain owns is in the list of free or of posted slots.
pub(super) struct Lists {
    /// The first free slot: the list is a stack.
    pub(super) free: u32,
    /// The oldest and the newest posted slot: the list is in the order of posting.
    pub(super) first: u32,
    pub(super) last: u32,
    pub(super) posted: u32,
    /// The number of the newest request.
    pub(super) number: u64,
    /// The send requests since the last one that is signaled.
    pub(super) unsignaled: Unsignaled,
    /// Whether posting is refused because the queue is drained.
    pub(super) closed: bool,
    /// Whether something was posted since the queue was last drained.
    pub(super) used: bool,
    /// The deadlines of the posted slots that were not canceled. Has no memory before
    /// [`Queue::reserve_deadlines`].
    deadlines: Deadlines<KVVec<Deadline>, KVVec<u32>>,
    /// When the timer fires, [`u64::MAX`] when it does not run. No deadline is earlier.
    due: u64,
}

impl Lists {
    /// Creates the lists of a queue of `count` free slots.
    fn new(count: usize) -> Self {
        Self {
            free: if count > 0 { 0 } else { NONE },
            first: NONE,
            last: NONE,
            posted: 0,
            number: 0,
            unsignaled: Unsignaled::default(),
            closed: false,
            used: false,
            deadlines: Deadlines::new(KVVec::new(), KVVec::new()),
            due: u64::MAX,
        }
    }
}

/// A function for completions, as `struct ib_cqe` has it.
pub(super) type Done = unsafe extern "C" fn(*mut bindings::ib_cq, *mut bindings::ib_wc);

/// The functions that a queue calls with its owner.
pub(super) struct Calls {
    /// Called for each completion.
    pub(super) done: Done,
    /// Called when a deadline has passed; calls [`Queue::expire`].
    pub(super) expired: unsafe extern "C" fn(*const c_void),
}

/// The granularity of deadlines, in nanoseconds. Deadlines are rounded up to a multiple of it, so
/// the timer of a queue fires at most once in this time.
const DEADLINE_STEP: u64 = 1 << 20;

/// A queue of work requests.
///
/// # Invariants
///
/// - Every slot is free, posted, or owned by one chain.
/// - `sges` and `locals` have `max_sge` entries for each slot, `inline` has `max_inline` bytes.
#[pin_data]
pub(super) struct Queue<R: WrContext> {
    /// Fires at the first deadline, or earlier.
    #[pin]
    timer: Timer,
    #[pin]
    pub(super) lists: SpinLockBh<Lists>,
    pub(super) slots: KVVec<WrSlot<R>>,
    /// The elements of the slots.
    sges: KVVec<UnsafeCell<bindings::ib_sge>>,
    /// The memory that `sges` refer to, kept alive for the device.
    locals: KVVec<UnsafeCell<Option<Local>>>,
    /// The inline data of the slots.
    pub(super) inline: KVVec<UnsafeCell<u8>>,
    max_sge: u32,
    pub(super) max_inline: u32,
}

// SAFETY: Each slot and its parts have one owner at a time, see `WrSlot`. Requests are `Send`.
unsafe impl<R: WrContext> Send for Queue<R> {}
// SAFETY: As above.
unsafe impl<R: WrContext> Sync for Queue<R> {}

impl<R: WrContext> Queue<R> {
    /// Creates a queue of `depth` slots. Sleeps.
    ///
    /// # Safety
    ///
    /// - `calls` may be called with `owner` from the first post on.
    /// - `calls.expired` may be called with `owner` until [`Self::stop`] is called with nothing
    ///   posted, or the queue is dropped.
    pub(super) unsafe fn new(
        kind: QueueKind,
        owner: *const c_void,
        calls: Calls,
        depth: u32,
        max_sge: u32,
        max_inline: u32,
    ) -> Result<impl PinInit<Self>> {
        let count = depth as usize;
        let total_sge = count.checked_mul(max_sge as usize).ok_or(ERANGE)?;
        let total_inline = count.checked_mul(max_inline as usize).ok_or(ERANGE)?;
        let mut sges = KVVec::with_capacity(total_sge, GFP_KERNEL_ACCOUNT)?;
        let mut locals = KVVec::with_capacity(total_sge, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..total_sge {
            sges.push(UnsafeCell::new(Default::default()), GFP_KERNEL_ACCOUNT)?;
            locals.push(UnsafeCell::new(None), GFP_KERNEL_ACCOUNT)?;
        }
        let slots = Self::new_slots(kind, owner, calls.done, depth)?;
        let inline = Self::new_inline(total_inline)?;
        let lists = Lists::new(count);
        // SAFETY: By the requirement; the timer starts only when something is posted.
        let timer = unsafe { Timer::new(calls.expired, owner) };
        Ok(pin_init!(Self {
            timer <- timer,
            lists <- new_spinlock_bh!(lists, "rdma::Queue::lists"),
            slots,
            sges,
            locals,
            inline,
            max_sge,
            max_inline,
        }))
    }

    /// Allocates `depth` free slots, each with the number of the next one. Sleeps.
    fn new_slots(
        kind: QueueKind,
        owner: *const c_void,
        done: Done,
        depth: u32,
    ) -> Result<KVVec<WrSlot<R>>> {
        let mut slots = KVVec::with_capacity(depth as usize, GFP_KERNEL_ACCOUNT)?;
        for index in 0..depth {
            let next = Some(index.wrapping_add(1)).filter(|next| *next < depth);
            let slot = WrSlot::new(kind, owner, done, index, next);
            slots.push(slot, GFP_KERNEL_ACCOUNT)?;
        }
        Ok(slots)
    }

    /// Allocates `total` bytes for inline data. Sleeps.
    fn new_inline(total: usize) -> Result<KVVec<UnsafeCell<u8>>> {
        let (bytes, len, capacity) =
            KVVec::from_elem(0u8, total, GFP_KERNEL_ACCOUNT)?.into_raw_parts();
        // SAFETY: These are the parts of a vector, and `UnsafeCell<u8>` has the layout of `u8`.
        Ok(unsafe { KVVec::from_raw_parts(bytes.cast::<UnsafeCell<u8>>(), len, capacity) })
    }

    pub(super) fn depth(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Returns the contents of slot `index`.
    ///
    /// # Safety
    ///
    /// The caller owns the slot, and has no other reference to its contents.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn content(&self, index: u32) -> Option<&mut WrState<R>> {
        self.slots
            .get(index as usize)
            // SAFETY: By the requirement this is the only reference.
            .map(|slot| unsafe { &mut *slot.content.get() })
    }

    /// Returns a pointer to the request of slot `index`, null for [`NONE`].
    ///
    /// The pointer is not derived from a reference to the request, so it stays valid when the owner
    /// of the slot calls [`Self::content`].
    pub(super) fn wr(&self, index: u32) -> *mut Wr {
        match self.slots.get(index as usize) {
            // SAFETY: The cell holds a value; a pointer into it is made.
            Some(slot) => unsafe { &raw mut (*slot.content.get()).wr },
            None => core::ptr::null_mut(),
        }
    }

    /// Returns the `wr_cqe` of slot `index`, for [`WrSlot::from_cqe`].
    pub(super) fn cqe(&self, index: u32) -> Option<*mut bindings::ib_cqe> {
        if index >= self.depth() {
            return None;
        }
        // Derived from the pointer to all slots: `from_cqe` reaches the whole slot by it.
        let slot = self.slots.as_ptr().wrapping_add(index as usize).cast_mut();
        // SAFETY: The slot exists; a pointer into it is made.
        Some(unsafe { &raw mut (*slot).hook.cqe })
    }

    /// Returns the parts of `locals` and `sges` that belong to slot `index`.
    pub(super) fn pieces(
        &self,
        index: u32,
    ) -> (
        &[UnsafeCell<Option<Local>>],
        &[UnsafeCell<bindings::ib_sge>],
    ) {
        let start = (index as usize).saturating_mul(self.max_sge as usize);
        let end = start.saturating_add(self.max_sge as usize);
        (
            self.locals.get(start..end).unwrap_or(&[]),
            self.sges.get(start..end).unwrap_or(&[]),
        )
    }

    /// Returns slot `index` with its parts, to be filled.
    ///
    /// # Safety
    ///
    /// The caller owns the slot, and has no other reference to it or its parts.
    pub(super) unsafe fn slot(&self, index: u32) -> Option<SlotRef<'_, R>> {
        let (locals, sges) = self.pieces(index);
        let cqe = self.cqe(index)?;
        // SAFETY: By the requirement these are the only references. An `UnsafeCell` has the layout
        // of its value.
        unsafe {
            let locals_at = UnsafeCell::raw_get(locals.as_ptr());
            let sges_at = UnsafeCell::raw_get(sges.as_ptr());
            Some(SlotRef {
                content: self.content(index)?,
                cqe,
                locals: core::slice::from_raw_parts_mut(locals_at, locals.len()),
                sges: core::slice::from_raw_parts_mut(sges_at, sges.len()),
            })
        }
    }

    /// Takes up to `count` free slots, as a list that the caller owns. Returns the first one,
    /// [`NONE`] when there are none.
    pub(super) fn take(&self, count: u32) -> u32 {
        let mut lists = self.lists.lock();
        let (first, mut last) = (lists.free, NONE);
        for _ in 0..count {
            let index = lists.free;
            // SAFETY: The slot is free, and the lock is held.
            let Some(content) = (unsafe { self.content(index) }) else {
                break;
            };
            lists.free = content.next;
            self.set_free(&mut lists, index, false);
            last = index;
        }
        // SAFETY: As above: the slot was just taken.
        match unsafe { self.content(last) } {
            Some(content) => {
                content.next = NONE;
                first
            }
            None => NONE,
        }
    }

    /// Returns the slots of the list from `first` on to the queue.
    ///
    /// # Safety
    ///
    /// The caller owns the slots, and gives them up.
    pub(super) unsafe fn put_all(&self, first: u32) {
        if first == NONE {
            return;
        }
        let mut lists = self.lists.lock();
        let mut at = first;
        // SAFETY: By the requirement: the caller owns each slot until the queue gets it.
        while let Some(next) = unsafe { self.content(at) }.map(|content| content.next) {
            // SAFETY: As above.
            unsafe { self.put(&mut lists, at) };
            at = next;
        }
    }

    /// Returns slot `index` to the queue.
    ///
    /// # Safety
    ///
    /// The caller owns the slot, and gives it up.
    pub(super) unsafe fn put(&self, lists: &mut Lists, index: u32) {
        // SAFETY: By the requirement.
        if let Some(content) = unsafe { self.content(index) } {
            content.next = lists.free;
            lists.free = index;
            self.set_free(lists, index, true);
        }
    }

    fn set_free(&self, _lists: &mut Lists, index: u32, free: bool) {
        if let Some(slot) = self.slots.get(index as usize) {
            slot.free.store(free.into(), Relaxed);
        }
    }

    /// Returns the number of the request in slot `index`, 0 when the slot is not posted.
    pub(super) fn number(&self, index: u32) -> u64 {
        self.slots
            .get(index as usize)
            .map_or(0, |slot| slot.number.load(Relaxed))
    }

    /// Gives the request in slot `index`, which is about to be posted, the next number.
    pub(super) fn set_number(&self, lists: &mut Lists, index: u32) {
        lists.number = lists.number.wrapping_add(1);
        if let Some(slot) = self.slots.get(index as usize) {
            slot.number.store(lists.number, Relaxed);
        }
    }

    /// Removes the number and the deadline of slot `index`, which is no longer posted.
    pub(super) fn clear_number(&self, lists: &mut Lists, index: u32) {
        lists.deadlines.remove(index);
        if let Some(slot) = self.slots.get(index as usize) {
            slot.number.store(0, Relaxed);
        }
    }

    /// Removes slot `index` from the list of posted slots.
    ///
    /// # Safety
    ///
    /// The slot is posted. The caller owns it afterwards.
    pub(super) unsafe fn unlink(&self, lists: &mut Lists, index: u32) {
        // SAFETY: The slot is posted, and the lock is held.
        let Some((prev, next)) = (unsafe { self.content(index) }).map(|it| (it.prev, it.next))
        else {
            return;
        };
        // SAFETY: As above: the neighbours of a posted slot are posted.
        match unsafe { self.content(prev) } {
            Some(before) => before.next = next,
            None => lists.first = next,
        }
        // SAFETY: As above.
        match unsafe { self.content(next) } {
            Some(after) => after.prev = prev,
            None => lists.last = prev,
        }
        lists.posted = lists.posted.saturating_sub(1);
        self.clear_number(lists, index);
    }

    /// Frees the posted slots before `index`, up to the first one that is to be reported. Adds their
    /// requests to `done`, and returns how many there were. They made no completion, so they
    /// succeeded.
    ///
    /// # Safety
    ///
    /// Slot `index` is posted, and the device is done with it and with the slots before it.
    pub(super) unsafe fn complete_unsignaled(
        &self,
        lists: &mut Lists,
        index: u32,
        done: &mut R::Unsignaled,
    ) -> u32 {
        let (mut at, mut count) = (lists.first, 0u32);
        // SAFETY: The slot is posted, and the lock is held.
        while let Some(content) = unsafe { self.content(at) } {
            if at == index || content.canceled || content.signaled {
                break;
            }
            let next = content.next;
            if let Some(request) = &mut content.request {
                request.complete_unsignaled(done);
            }
            self.clear_number(lists, at);
            // SAFETY: By the requirement the device is done with the slot. It leaves the list of
            // posted slots below, before the lock is released.
            unsafe { self.put(lists, at) };
            count = count.wrapping_add(1);
            at = next;
        }
        if count > 0 {
            lists.first = at;
            // SAFETY: As above.
            match unsafe { self.content(at) } {
                Some(content) => content.prev = NONE,
                None => lists.last = NONE,
            }
            lists.posted = lists.posted.saturating_sub(count);
        }
        count
    }

    /// Returns the deadline of a request that is posted now and may take `timeout_ns`; 0 for none.
    pub(super) fn deadline(timeout_ns: u64) -> u64 {
        match timeout_ns {
            0 => 0,
            _ => now_ns()
                .saturating_add(timeout_ns)
                .checked_next_multiple_of(DEADLINE_STEP)
                .unwrap_or(u64::MAX),
        }
    }

    /// Allocates memory for the deadlines, if there is none. Sleeps.
    pub(super) fn reserve_deadlines(&self) -> Result {
        if !self.lists.lock().deadlines.is_unallocated() {
            return Ok(());
        }
        let mut deadlines = Deadlines::new(
            KVVec::from_elem(Deadline::default(), self.slots.len(), GFP_KERNEL_ACCOUNT)?,
            KVVec::from_elem(0, self.slots.len(), GFP_KERNEL_ACCOUNT)?,
        );
        let mut lists = self.lists.lock();
        // Unless another thread was faster.
        if lists.deadlines.is_unallocated() {
            core::mem::swap(&mut lists.deadlines, &mut deadlines);
        }
        drop(lists);
        // What is left is freed without the lock.
        drop(deadlines);
        Ok(())
    }

    /// Adds the deadline of the request in slot `index`, which has a number.
    pub(super) fn set_deadline(&self, lists: &mut Lists, index: u32, deadline: u64) {
        lists.deadlines.insert(Deadline {
            at_ns: deadline,
            number: self.number(index),
            slot: index,
        });
    }

    /// Starts the timer if the first deadline is earlier than the timer.
    pub(super) fn start_timer(&self, lists: &mut Lists) {
        match lists.deadlines.first() {
            Some(first) if first.at_ns < lists.due => {
                lists.due = first.at_ns;
                self.timer.start(first.at_ns);
            }
            _ => (),
        }
    }

    /// Stops the timer. Process context; nothing is posted.
    pub(super) fn stop(&self) {
        self.timer.cancel();
    }

    /// Cancels the posted requests that `which` selects, and returns how many it canceled.
    ///
    /// Calls `tell` for each request, the oldest first, under the queue's lock. The slots stay
    /// posted until the device is done with them.
    pub(super) fn cancel(&self, which: impl Fn(&R) -> bool, mut tell: impl FnMut(R)) -> u32 {
        let mut lists = self.lists.lock();
        let (mut at, mut count) = (lists.first, 0u32);
        // SAFETY: The slot is posted, and the lock is held.
        while let Some(next) = unsafe { self.content(at) }.map(|content| content.next) {
            if self.cancel_posted(&mut lists, at, &which, &mut tell) {
                count = count.saturating_add(1);
            }
            at = next;
        }
        count
    }

    /// Cancels the request in slot `index` if it is posted and `which` selects it. Otherwise as
    /// [`Self::cancel`].
    pub(super) fn cancel_slot(
        &self,
        index: u32,
        which: impl Fn(&R) -> bool,
        tell: impl FnOnce(R),
    ) -> bool {
        let mut lists = self.lists.lock();
        self.number(index) != 0 && self.cancel_posted(&mut lists, index, which, tell)
    }

    /// Cancels the requests whose deadline has passed, the earliest first. Softirq or process
    /// context. Otherwise as [`Self::cancel`].
    pub(super) fn expire(&self, mut tell: impl FnMut(R)) {
        let mut lists = self.lists.lock();
        let now = now_ns();
        while let Some(first) = lists.deadlines.first().filter(|first| first.at_ns <= now) {
            lists.deadlines.remove(first.slot);
            self.cancel_posted(&mut lists, first.slot, |_| true, &mut tell);
        }
        lists.due = u64::MAX;
        self.start_timer(&mut lists);
    }

    /// Cancels the request in slot `index`, which is posted, if `which` selects it and it was not
    /// canceled before. Returns whether it did.
    fn cancel_posted(
        &self,
        lists: &mut Lists,
        index: u32,
        which: impl FnOnce(&R) -> bool,
        tell: impl FnOnce(R),
    ) -> bool {
        // SAFETY: The slot is posted, and the lock is held.
        let Some(content) = (unsafe { self.content(index) }) else {
            return false;
        };
        match &mut content.request {
            Some(request) if !content.canceled && which(request) => {
                content.canceled = true;
                lists.deadlines.remove(index);
                tell(request.detach());
                true
            }
            _ => false,
        }
    }

    /// Drops what free slots still hold of their last requests. Sleeps. The slots stay free.
    pub(super) fn purge(&self) {
        for index in 0..self.depth() {
            while let Some(rest) = self.leftover(index) {
                drop(rest);
            }
        }
    }

    /// Takes something that slot `index` still holds of its last request. Returns [`None`] when the
    /// slot holds nothing, or is not free. Dropping the result may sleep.
    fn leftover(&self, index: u32) -> Option<Leftover<R>> {
        let _lists = self.lists.lock();
        if self.slots.get(index as usize)?.free.load(Relaxed) == 0 {
            return None;
        }
        // SAFETY: The slot is free, and the lock is held.
        let content = unsafe { self.content(index) }?;
        if let Some(request) = content.request.take() {
            return Some(Leftover::Request(request));
        }
        if let Some(ah) = content.ah.take() {
            return Some(Leftover::Address(ah));
        }
        self.pieces(index).0.iter().find_map(|local| {
            // SAFETY: As above: the slot's parts have the same owner.
            unsafe { (*local.get()).take() }.map(Leftover::Memory)
        })
    }
}

/// What a free slot may still hold.
#[expect(dead_code, reason = "it is there to be dropped")]
enum Leftover<R> {
    Request(R),
    Address(Arc<Ah>),
    Memory(Local),
}
