// SPDX-License-Identifier: GPL-2.0

//! Queues of work requests, and the slots in which requests live while a device may access them.
//!
//! A [`Queue`] is the send or receive queue of a queue pair, or a shared receive queue.
//! [`super::qp`] describes the life of a request.

use super::{
    ah::Ah,
    mr::Memory,
    request::{
        Posted,
        QueueKind,
        WrContext, //
    }, //
};
use crate::{
    bindings,
    ext::{
        lock::{
            new_spinlock_bh,
            SpinLockBh, //
        },
        timer::{
            now_ns,
            WorkTimer, //
        }, //
    },
    logic::{
        deadlines::Deadlines,
        numbered,
        order::{
            Link,
            Order, //
        },
        unsignaled::Unsignaled, //
    }, //
};
use core::{
    cell::{
        Cell,
        UnsafeCell, //
    },
    mem::MaybeUninit, //
};
use kernel::{
    ffi::c_void,
    prelude::*,
    sync::Arc, //
};

/// The contents of a slot. [`WrSlot`] says who accesses them.
pub(super) struct WrState<R> {
    /// The number of the request in the order of posting, from 1. The slot is posted if it is
    /// greater than [`Lists::done`].
    number: u64,
    /// The request of a posted slot.
    request: MaybeUninit<R>,
    /// The address of a datagram, kept alive for the device.
    ah: Option<Arc<Ah>>,
    /// The number of the slot's entries in [`Queue::memory`], from the first on, that may keep
    /// memory alive.
    held: u32,
    /// The number of consecutive plain requests that end with this one, see
    /// [`WrContext::is_plain`].
    plain: u32,
    /// Whether the success of the request is reported to the owner.
    signaled: bool,
    /// Whether the request was canceled. This was reported, but the device still has the request.
    canceled: bool,
}

/// A slot for one request. A driver copies the work request itself when it is posted, see
/// [`Chain`](super::chain::Chain).
///
/// # Invariants
///
/// - `hook` does not change once the owner of the queue exists.
/// - `content` and the slot's part of the queue's `memory` are accessed under the queue's lock.
/// - The `request` of a posted slot is initialized.
#[repr(C)]
pub(super) struct WrSlot<R> {
    hook: bindings::rust_ulp_cqe_hook,
    /// The queue pair or shared receive queue, for the functions of `hook`.
    pub(super) owner: *const c_void,
    pub(super) kind: QueueKind,
    pub(super) index: u32,
    content: UnsafeCell<WrState<R>>,
}

impl<R> WrSlot<R> {
    /// Returns a free slot.
    fn new(kind: QueueKind, owner: *const c_void, done: Done, index: u32) -> Self {
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
            content: UnsafeCell::new(WrState {
                number: 0,
                request: MaybeUninit::uninit(),
                ah: None,
                held: 0,
                plain: 0,
                signaled: false,
                canceled: false,
            }),
        }
    }

    /// Returns the slot that `cqe` belongs to.
    ///
    /// # Safety
    ///
    /// `cqe` came out of [`Queue::push`] of a queue that lives longer than `'a`.
    pub(super) unsafe fn from_cqe<'a>(cqe: *mut bindings::ib_cqe) -> &'a Self {
        // SAFETY: By the requirement `cqe` is a field of the hook of a slot, derived from a pointer
        // to the whole slot.
        unsafe {
            let hook = kernel::container_of!(cqe, bindings::rust_ulp_cqe_hook, cqe);
            &*kernel::container_of!(hook, Self, hook)
        }
    }
}

/// The data that the lock of a queue protects, beside the contents of the slots.
pub(super) struct Lists {
    /// The posted slots in the order of posting, and the free ones.
    pub(super) order: Order<KVVec<Link>>,
    /// The number of the newest request.
    pub(super) number: u64,
    /// The bytes of all requests up to that one.
    bytes: u64,
    /// The device is done with all requests up to this number. Stays 0 in a shared receive queue,
    /// where the number of a slot becomes 0 instead.
    done: u64,
    /// The free slots that chains have reserved.
    reserved: u32,
    /// The posted slots that were canceled.
    canceled: u32,
    /// The `plain` of the newest posted slot.
    plain: u32,
    /// The send requests since the last one that is signaled.
    pub(super) unsignaled: Unsignaled,
    /// Whether posting is refused because the queue is drained.
    pub(super) closed: bool,
    /// Whether something was posted since the queue was last drained.
    pub(super) used: bool,
    /// The deadlines of the posted slots that were not canceled. Has no memory before
    /// [`Queue::reserve_deadlines`].
    deadlines: Deadlines<KVVec<u64>>,
    /// When the timer fires, [`u64::MAX`] when it does not run. Once [`Queue::start_timer`] was
    /// called, no deadline is earlier, except those that [`Queue::expire`] is looking for.
    due: u64,
    /// The first of the deadlines that were set since [`Queue::start_timer`] was called.
    first_new: u64,
}

impl Lists {
    /// Returns the number of the newest request that the device is done with, unless the queue is
    /// shared.
    pub(super) fn done(&self) -> u64 {
        self.done
    }
}

/// A request that is being posted.
pub(super) struct NewWr<'a, R> {
    /// There is one; [`Queue::push`] takes it.
    pub(super) request: &'a mut Option<R>,
    /// Whether its success is reported to the owner.
    pub(super) signaled: bool,
    /// The address of a datagram. Becomes the one that the slot kept before.
    pub(super) ah: &'a mut Option<Arc<Ah>>,
    /// When it is canceled, in the time of [`now_ns`]; 0 is never.
    pub(super) deadline: u64,
}

/// The memory of requests in a [`Chain`](super::chain::Chain), kept alive until the device is done
/// with them.
pub(super) struct UsedMemory {
    /// The numbers in the chain of the first and of the last request that use it: consecutive
    /// requests for the same queue pair. The slot of the last one keeps it, since a queue pair
    /// completes them in order.
    pub(super) first: u32,
    pub(super) last: u32,
    /// The memory; what the slot kept before, once that keeps it.
    pub(super) memory: Option<Arc<Memory>>,
}

impl UsedMemory {
    pub(super) fn is(&self, memory: &Arc<Memory>) -> bool {
        self.memory
            .as_ref()
            .is_some_and(|used| Arc::ptr_eq(used, memory))
    }
}

/// The slot of a request that was posted.
pub(super) struct PostedWr {
    pub(super) index: u32,
    /// For [`WrSlot::from_cqe`].
    pub(super) cqe: *mut bindings::ib_cqe,
    /// Whether it keeps memory of its last request: the caller calls [`Queue::keep`].
    pub(super) is_keeping: bool,
}

/// The requests that [`Queue::complete`] has completed.
pub(super) struct Completed<R: WrContext> {
    /// The requests that were not signaled and succeeded, if there are any.
    pub(super) unsignaled: Option<R::Unsignaled>,
    /// The request that is reported.
    pub(super) request: Option<R>,
    /// Whether that request was canceled.
    pub(super) canceled: bool,
    /// Whether that is the request that the device has reported, and not one before it.
    pub(super) is_last: bool,
}

/// A request that was in a slot.
pub(super) struct TakenWr<R> {
    pub(super) request: R,
    pub(super) number: u64,
    pub(super) canceled: bool,
}

/// A function for completions, as `struct ib_cqe` has it.
pub(super) type Done = unsafe extern "C" fn(*mut bindings::ib_cq, *mut bindings::ib_wc);

/// The functions that a queue calls with its owner.
pub(super) struct Calls {
    /// Called for each completion.
    pub(super) done: Done,
    /// Called by a worker when a deadline has passed; calls [`Queue::expire`].
    pub(super) expired: unsafe extern "C" fn(*const c_void),
}

/// The granularity of deadlines, in nanoseconds. Deadlines are rounded up to a multiple of it, so
/// the timer of a queue fires at most once in this time.
const DEADLINE_STEP: u64 = 1 << 20;

/// Returns the first multiple of [`DEADLINE_STEP`] that is not before `at_ns`.
fn step_from(at_ns: u64) -> u64 {
    at_ns
        .checked_next_multiple_of(DEADLINE_STEP)
        .unwrap_or(u64::MAX)
}

/// The most slots that are looked at while the lock is held, with bottom halves disabled.
const LOCKED_SLOTS: u32 = 64;

/// A queue of work requests.
///
/// # Invariants
///
/// `memory` has `max_sge` entries for each slot.
#[pin_data]
pub(super) struct Queue<R: WrContext> {
    /// Fires at the first deadline, or earlier.
    #[pin]
    timer: WorkTimer,
    /// Lock order: after all mutexes, before the locks of drivers. Held over the driver's `post_send`
    /// and over [`WrHandler::cancel`](super::request::WrHandler::cancel).
    #[pin]
    pub(super) lists: SpinLockBh<Lists>,
    slots: KVVec<WrSlot<R>>,
    /// The memory of the requests in the slots, kept alive for the device.
    memory: KVVec<UnsafeCell<Option<Arc<Memory>>>>,
    pub(super) max_sge: u32,
    pub(super) max_inline: u32,
}

// SAFETY: The slots are accessed under the lock, see `WrSlot`. Requests are `Send`.
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
        let total_sge = (depth as usize)
            .checked_mul(max_sge as usize)
            .ok_or(ERANGE)?;
        let mut memory = KVVec::with_capacity(total_sge, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..total_sge {
            memory.push(UnsafeCell::new(None), GFP_KERNEL_ACCOUNT)?;
        }
        let slots = Self::new_slots(kind, owner, calls.done, depth)?;
        let links = KVVec::from_elem(Link::default(), depth as usize, GFP_KERNEL_ACCOUNT)?;
        let lists = Lists {
            order: Order::new(links),
            number: 0,
            bytes: 0,
            done: 0,
            reserved: 0,
            canceled: 0,
            plain: 0,
            unsignaled: Unsignaled::default(),
            closed: false,
            used: false,
            deadlines: Deadlines::new(KVVec::new()),
            due: u64::MAX,
            first_new: u64::MAX,
        };
        // SAFETY: By the requirement; the timer starts only when something is posted.
        let timer = unsafe { WorkTimer::new(calls.expired, owner) };
        Ok(pin_init!(Self {
            timer <- timer,
            lists <- new_spinlock_bh!(lists, "rdma::Queue::lists"),
            slots,
            memory,
            max_sge,
            max_inline,
        }))
    }

    /// Allocates `depth` free slots. Sleeps.
    fn new_slots(
        kind: QueueKind,
        owner: *const c_void,
        done: Done,
        depth: u32,
    ) -> Result<KVVec<WrSlot<R>>> {
        let mut slots = KVVec::with_capacity(depth as usize, GFP_KERNEL_ACCOUNT)?;
        for index in 0..depth {
            let slot = WrSlot::new(kind, owner, done, index);
            slots.push(slot, GFP_KERNEL_ACCOUNT)?;
        }
        Ok(slots)
    }

    pub(super) fn depth(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Returns the contents of slot `index`.
    ///
    /// # Safety
    ///
    /// The caller holds the queue's lock, and has no other reference to the contents.
    #[allow(clippy::mut_from_ref)]
    unsafe fn content(&self, index: u32) -> Option<&mut WrState<R>> {
        self.slots
            .get(index as usize)
            // SAFETY: By the requirement this is the only reference.
            .map(|slot| unsafe { &mut *slot.content.get() })
    }

    /// Returns the `wr_cqe` of slot `index`, for [`WrSlot::from_cqe`].
    fn cqe(&self, index: u32) -> *mut bindings::ib_cqe {
        // Derived from the pointer to all slots: `from_cqe` reaches the whole slot by it.
        let slot = self.slots.as_ptr().wrapping_add(index as usize);
        // SAFETY: `order` has one entry for each slot, so the slot exists; a pointer into it is
        // made.
        unsafe { (&raw const (*slot).hook.cqe).cast_mut() }
    }

    /// Returns the part of `memory` that belongs to slot `index`.
    fn memory(&self, index: u32) -> &[UnsafeCell<Option<Arc<Memory>>>] {
        let start = (index as usize).saturating_mul(self.max_sge as usize);
        let end = start.saturating_add(self.max_sge as usize);
        self.memory.get(start..end).unwrap_or(&[])
    }

    /// Reserves up to `count` free slots, and returns how many.
    pub(super) fn reserve(&self, count: u32) -> u32 {
        let mut lists = self.lists.lock();
        let count = count.min(self.free(&lists));
        lists.reserved = lists.reserved.saturating_add(count);
        count
    }

    /// Returns the number of slots that are neither posted nor reserved.
    pub(super) fn free(&self, lists: &Lists) -> u32 {
        let taken = lists.order.posted().saturating_add(lists.reserved);
        self.depth().saturating_sub(taken)
    }

    /// Gives up `count` reserved slots.
    pub(super) fn release(&self, lists: &mut Lists, count: u32) {
        lists.reserved = lists.reserved.saturating_sub(count);
    }

    /// Posts `new` in the next free slot, for which the caller has a reservation.
    #[inline(always)]
    pub(super) fn push(&self, lists: &mut Lists, new: NewWr<'_, R>) -> Option<PostedWr> {
        let NewWr {
            request,
            signaled,
            ah,
            deadline,
        } = new;
        let taken = core::ptr::from_ref(request.as_ref()?);
        let index = lists.order.push()?;
        // SAFETY: The lock is held, and there is no other reference.
        let content = unsafe { self.content(index) }?;
        // INVARIANT: The slot is posted and has a request. The last one was taken out.
        // SAFETY: `taken` is the request, which is overwritten without its destructor and so is
        // moved once. That is faster than `Option::take`, which moves it twice.
        let request = unsafe {
            let moved = content.request.write(taken.read());
            core::ptr::from_mut(request).write(None);
            moved
        };
        request.placed(index);
        lists.number = lists.number.wrapping_add(1);
        lists.bytes = lists.bytes.wrapping_add(request.bytes().into());
        lists.plain = if signaled || deadline != 0 || !request.is_plain() {
            0
        } else {
            lists.plain.saturating_add(1)
        };
        content.number = lists.number;
        content.plain = lists.plain;
        content.signaled = signaled;
        content.canceled = false;
        core::mem::swap(&mut content.ah, ah);
        let is_keeping = content.held > 0;
        if deadline != 0 {
            lists.deadlines.set(index, deadline);
            lists.first_new = lists.first_new.min(deadline);
        }
        Some(PostedWr {
            index,
            cqe: self.cqe(index),
            is_keeping,
        })
    }

    /// Makes slot `index` keep the memory of `new`, and exchanges it for what the slot has kept
    /// before. What the slot has kept beyond that is moved to `stale`, as far as it has room.
    pub(super) fn keep(
        &self,
        _lists: &mut Lists,
        index: u32,
        new: &mut [UsedMemory],
        stale: &mut KVVec<Arc<Memory>>,
    ) {
        // SAFETY: The lock is held, and there is no other reference.
        let Some(content) = (unsafe { self.content(index) }) else {
            return;
        };
        let held = core::mem::replace(&mut content.held, new.len() as u32);
        if let ([used], [cell, ..], 0..=1) = (&mut *new, self.memory(index), held) {
            // SAFETY: As above.
            core::mem::swap(&mut used.memory, unsafe { &mut *cell.get() });
            return;
        }
        let mut new = new.iter_mut();
        for (place, cell) in numbered(self.memory(index).iter()) {
            // SAFETY: As above.
            let kept = unsafe { &mut *cell.get() };
            match new.next() {
                Some(used) => core::mem::swap(&mut used.memory, kept),
                None if place >= held => break,
                None => {
                    if let Some(Err(full)) =
                        kept.take().map(|memory| stale.push_within_capacity(memory))
                    {
                        *kept = Some(full.0);
                        content.held = place.wrapping_add(1);
                    }
                }
            }
        }
    }

    /// Takes back the newest posted request, which the device has not taken, with a reference to
    /// the first memory that its slot keeps.
    pub(super) fn pop(&self, lists: &mut Lists) -> Option<(R, Option<Arc<Memory>>)> {
        let index = lists.order.pop()?;
        lists.number = lists.number.wrapping_sub(1);
        lists.deadlines.remove(index);
        let last = lists.order.last();
        lists.plain = last
            // SAFETY: The lock is held, and there is no other reference.
            .and_then(|last| unsafe { self.content(last) })
            .map_or(0, |content| content.plain);
        // SAFETY: As above.
        let content = unsafe { self.content(index) }?;
        content.number = 0;
        let first = self.memory(index).first().filter(|_| content.held > 0);
        // SAFETY: As above.
        let memory = first.and_then(|cell| unsafe { (*cell.get()).clone() });
        // SAFETY: By the type invariant of the slot, which was posted. It is read once: the slot is
        // free now.
        let request = unsafe { content.request.assume_init_read() };
        lists.bytes = lists.bytes.wrapping_sub(request.bytes().into());
        Some((request, memory))
    }

    /// Makes the newest posted slot keep `memory` as its entry `place`, and returns what it kept
    /// there.
    pub(super) fn adopt(
        &self,
        lists: &mut Lists,
        place: u32,
        memory: Arc<Memory>,
    ) -> Option<Arc<Memory>> {
        let index = lists.order.last()?;
        // SAFETY: The lock is held, and there is no other reference.
        let content = unsafe { self.content(index) }?;
        let cell = self.memory(index).get(place as usize)?;
        content.held = content.held.max(place.saturating_add(1));
        // SAFETY: As above.
        unsafe { (*cell.get()).replace(memory) }
    }

    /// Calls `f` for the request of the posted slot `index`, unless it is reported to the owner.
    pub(super) fn with_unsignaled(&self, _lists: &mut Lists, index: u32, f: impl FnOnce(&mut R)) {
        // SAFETY: The lock is held, and there is no other reference.
        match unsafe { self.content(index) } {
            // SAFETY: By the type invariant of the slot, which is posted.
            Some(content) if !content.signaled => f(unsafe { content.request.assume_init_mut() }),
            _ => (),
        }
    }

    /// Completes the request in slot `index` of a queue that completes in order, and the requests
    /// before it: they made no completion, so they succeeded. Stops at an older one that is reported,
    /// whose completion the driver lost, and after [`LOCKED_SLOTS`] if it has to look at each: the
    /// caller calls it again until [`Completed::is_last`]. Returns [`None`] if the slot is not
    /// posted.
    ///
    /// `is_success` says whether the device reported success.
    pub(super) fn complete(&self, index: u32, is_success: bool) -> Option<Completed<R>> {
        let mut lists = self.lists.lock();
        // SAFETY: The lock is held, and there is no other reference.
        let number = unsafe { self.content(index) }?.number;
        let older = number.checked_sub(lists.done)?.checked_sub(1)?;
        let mut unsignaled = R::Unsignaled::default();
        let mut any = older > 0;
        let (mut at, mut count) = (index, u32::try_from(older).ok()?.checked_add(1)?);
        if older > 0 {
            let before = lists.order.prev(index);
            // SAFETY: As above.
            let plain = unsafe { self.content(before) }?.plain;
            if older <= plain.into() && lists.canceled == 0 && lists.deadlines.is_empty() {
                R::complete_plain(older as u32, &mut unsignaled);
            } else {
                (at, any) = self.complete_unsignaled(&mut lists, index, &mut unsignaled)?;
                count = 1;
            }
        }
        // SAFETY: As above.
        let content = unsafe { self.content(at) }?;
        let canceled = content.canceled;
        // SAFETY: By the type invariant of the slot, which is posted. It is read once: the slot is
        // freed below.
        let request = unsafe { content.request.assume_init_read() };
        let is_last = at == index;
        let request = if canceled || content.signaled || is_last && !is_success {
            Some(request)
        } else {
            // It was signaled only to empty the queue, or is one of many.
            request.complete_unsignaled(&mut unsignaled);
            any = true;
            None
        };
        lists.done = content.number;
        lists.canceled = lists.canceled.saturating_sub(canceled.into());
        lists.deadlines.remove(at);
        lists.order.free_oldest(at, count);
        Some(Completed {
            unsignaled: any.then_some(unsignaled),
            request,
            canceled,
            is_last,
        })
    }

    /// Frees the posted slots before `index`, up to the first one that is reported, and fewer than
    /// [`LOCKED_SLOTS`]. Adds their requests to `unsignaled`. Returns the oldest slot that is left,
    /// and whether a slot was freed.
    fn complete_unsignaled(
        &self,
        lists: &mut Lists,
        index: u32,
        unsignaled: &mut R::Unsignaled,
    ) -> Option<(u32, bool)> {
        let mut any = false;
        for _ in 1..LOCKED_SLOTS {
            let at = lists.order.first()?;
            // SAFETY: The lock is held, and there is no other reference.
            let content = unsafe { self.content(at) }?;
            if at == index || content.canceled || content.signaled {
                break;
            }
            // SAFETY: By the type invariant of the slot, which is posted. It is read once: the slot
            // is freed below.
            unsafe { content.request.assume_init_read() }.complete_unsignaled(unsignaled);
            lists.done = content.number;
            lists.deadlines.remove(at);
            lists.order.free_oldest(at, 1);
            any = true;
        }
        Some((lists.order.first()?, any))
    }

    /// Takes the request out of slot `index` of a shared receive queue, and frees the slot. Returns
    /// [`None`] if it is not posted.
    pub(super) fn take(&self, index: u32) -> Option<TakenWr<R>> {
        let mut lists = self.lists.lock();
        // SAFETY: The lock is held, and there is no other reference.
        let content = unsafe { self.content(index) }?;
        let number = core::mem::take(&mut content.number);
        if number == 0 {
            return None;
        }
        let canceled = content.canceled;
        lists.canceled = lists.canceled.saturating_sub(canceled.into());
        lists.deadlines.remove(index);
        lists.order.remove(index);
        Some(TakenWr {
            // SAFETY: By the type invariant of the slot, which was posted. It is read once: the
            // slot is free now.
            request: unsafe { content.request.assume_init_read() },
            number,
            canceled,
        })
    }

    /// Returns the requests that the queue has taken.
    pub(super) fn posted(&self) -> Posted {
        let lists = self.lists.lock();
        Posted {
            requests: lists.number,
            bytes: lists.bytes,
        }
    }

    /// Returns the oldest posted slot and the number of its request.
    pub(super) fn oldest(&self) -> Option<(u32, u64)> {
        let lists = self.lists.lock();
        let index = lists.order.first()?;
        Some((index, self.number(&lists, index)))
    }

    /// Returns the deadline of a request that is posted now; 0 for none.
    #[cold]
    pub(super) fn deadline(request: &R) -> u64 {
        match request.end_ns(0) {
            0 => 0,
            _ => step_from(request.end_ns(now_ns())),
        }
    }

    /// Allocates memory for the deadlines, if there is none. Sleeps.
    pub(super) fn reserve_deadlines(&self) -> Result {
        if !self.lists.lock().deadlines.is_unallocated() {
            return Ok(());
        }
        let times = KVVec::from_elem(0, self.slots.len(), GFP_KERNEL_ACCOUNT)?;
        let mut deadlines = Deadlines::new(times);
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

    /// Has the timer fire in time for the deadlines that were set since the last call.
    pub(super) fn start_timer(&self, lists: &mut Lists) {
        let first = core::mem::replace(&mut lists.first_new, u64::MAX);
        if first < lists.due {
            lists.due = first;
            self.timer.start(first);
        }
    }

    /// Stops the timer for good. Sleeps; nothing is posted, and nothing will be.
    pub(super) fn stop(&self) {
        self.timer.cancel();
    }

    /// Has the completions that come from now on ignored: the device was not stopped, and may complete
    /// what it has. Those that are being handled may still use the slots. Process context, and nothing
    /// is posted.
    pub(super) fn ignore(&self) {
        for index in 0..self.depth() {
            let cqe = self.cqe(index);
            // SAFETY: The slot is valid. The core reads the field when it handles a completion.
            unsafe { (&raw mut (*cqe).done).write_volatile(Some(bindings::rust_ulp_ignore)) };
        }
    }

    /// Leaks the slots, which the device may still complete. Called after [`Self::ignore`], when no
    /// completion is being handled. Process context; sleeps. The queue has no slots after this.
    pub(super) fn leak(&mut self) {
        self.purge();
        core::mem::forget(core::mem::take(&mut self.slots));
    }

    /// Cancels the posted requests that `which` selects, and returns how many it canceled. Process
    /// context.
    ///
    /// Calls `tell` for each request, the oldest first, under the queue's lock. The slots stay
    /// posted until the device is done with them. The lock is released after [`LOCKED_SLOTS`].
    /// Requests that are posted meanwhile are left out.
    pub(super) fn cancel(&self, which: impl Fn(&R) -> bool, tell: impl FnMut(R)) -> u32 {
        self.cancel_each(|_, _, request| which(request), tell)
    }

    /// Does what [`Self::cancel`] does; `which` gets the slot of each request, too.
    fn cancel_each(
        &self,
        which: impl Fn(&Lists, u32, &R) -> bool,
        mut tell: impl FnMut(R),
    ) -> u32 {
        let (mut count, mut newest, mut next) = (0u32, None, None);
        loop {
            let mut lists = self.lists.lock();
            let newest = *newest.get_or_insert(lists.number);
            let mut at = match next {
                Some((index, number)) if self.is_posted(&lists, index, number) => Some(index),
                // When the device is done with that one, it mostly is with those before it, too.
                _ => lists.order.first(),
            };
            for _ in 0..LOCKED_SLOTS {
                let Some(index) = at.filter(|&at| self.number(&lists, at) <= newest) else {
                    return count;
                };
                if self.cancel_posted(&mut lists, index, &which, &mut tell) {
                    count = count.saturating_add(1);
                }
                let is_last = lists.order.last() == Some(index);
                at = (!is_last).then(|| lists.order.next(index));
            }
            next = at.map(|at| (at, self.number(&lists, at)));
            if next.is_none() {
                return count;
            }
        }
    }

    /// Returns the number of the request in slot `index`; 0 if it never had one.
    fn number(&self, _lists: &Lists, index: u32) -> u64 {
        // SAFETY: The lock is held, and there is no other reference.
        unsafe { self.content(index) }.map_or(0, |content| content.number)
    }

    /// Returns whether slot `index` is posted and has request `number`.
    fn is_posted(&self, lists: &Lists, index: u32, number: u64) -> bool {
        number > lists.done && self.number(lists, index) == number
    }

    /// Cancels the request in slot `index` if it is posted and `which` selects it. Otherwise as
    /// [`Self::cancel`].
    pub(super) fn cancel_slot(
        &self,
        index: u32,
        which: impl Fn(&R) -> bool,
        tell: impl FnOnce(R),
    ) -> bool {
        let which = |_: &Lists, _, request: &R| which(request);
        self.cancel_posted(&mut self.lists.lock(), index, which, tell)
    }

    /// Cancels the requests whose deadline has passed, and has the timer fire at the next one.
    /// Otherwise as [`Self::cancel`].
    pub(super) fn expire(&self, tell: impl FnMut(R)) {
        let now = now_ns();
        // A request that is posted from here on starts the timer itself.
        self.lists.lock().due = u64::MAX;
        let next = Cell::new(u64::MAX);
        let is_over = |lists: &Lists, index, _: &R| match lists.deadlines.get(index) {
            0 => false,
            at_ns if at_ns <= now => true,
            at_ns => {
                next.set(next.get().min(at_ns));
                false
            }
        };
        self.cancel_each(is_over, tell);
        let mut lists = self.lists.lock();
        // The timer does not start again once the queue is empty, see `stop`.
        if !lists.deadlines.is_empty() {
            lists.first_new = lists.first_new.min(next.get());
            self.start_timer(&mut lists);
        }
    }

    /// Cancels the request in slot `index`, if it is posted, `which` selects it and it was not
    /// canceled before. Returns whether it did.
    fn cancel_posted(
        &self,
        lists: &mut Lists,
        index: u32,
        which: impl FnOnce(&Lists, u32, &R) -> bool,
        tell: impl FnOnce(R),
    ) -> bool {
        // SAFETY: The lock is held, and there is no other reference.
        match unsafe { self.content(index) } {
            Some(content) if content.number > lists.done && !content.canceled => {
                // SAFETY: By the type invariant of the slot, which is posted.
                let request = unsafe { content.request.assume_init_mut() };
                if !which(lists, index, request) {
                    return false;
                }
                content.canceled = true;
                lists.canceled = lists.canceled.saturating_add(1);
                lists.deadlines.remove(index);
                tell(request.detach());
                true
            }
            _ => false,
        }
    }

    /// Drops what free slots still hold of their last requests. Sleeps. The slots stay free.
    ///
    /// Looks at slots that were used since the last call, and at no more than the queue has: what
    /// calls cost together depends on the number of requests, not on the depth of the queue.
    pub(super) fn purge(&self) {
        for _ in 0..self.depth() {
            let Some(index) = self.take_used() else {
                return;
            };
            while let Some(rest) = self.leftover(index) {
                drop(rest);
            }
        }
    }

    /// Returns a free slot that may hold something of its last request, each once until it is used
    /// again.
    fn take_used(&self) -> Option<u32> {
        self.lists.lock().order.take_used()
    }

    /// Takes something that slot `index` still holds of its last request. Returns [`None`] when the
    /// slot holds nothing, or is posted. Dropping the result may sleep.
    fn leftover(&self, index: u32) -> Option<Leftover> {
        let lists = self.lists.lock();
        // SAFETY: The lock is held, and there is no other reference.
        let content = unsafe { self.content(index) }?;
        if content.number > lists.done {
            return None;
        }
        if let Some(ah) = content.ah.take() {
            return Some(Leftover::Address(ah));
        }
        let held = content.held as usize;
        self.memory(index).iter().take(held).find_map(|cell| {
            // SAFETY: As above.
            unsafe { (*cell.get()).take() }.map(Leftover::Memory)
        })
    }
}

/// The objects that a free slot may still hold.
#[expect(dead_code, reason = "it is there to be dropped")]
enum Leftover {
    Address(Arc<Ah>),
    Memory(Arc<Memory>),
}
