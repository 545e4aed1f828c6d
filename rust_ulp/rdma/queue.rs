// SPDX-License-Identifier: GPL-2.0

//! Queues: the slots in which requests live while a device may touch them.
//!
//! A queue is the send or the receive queue of a queue pair, or a shared receive queue. See [`super::qp`] for what
//! becomes of a request.

use super::{
    ah::Ah,
    request::{
        QueueKind,
        WrContext, //
    },
    wr::Local, //
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

/// No slot.
pub(super) const NONE: u32 = u32::MAX;

/// The request as the driver takes it: one of them, all beginning with the general part.
pub(super) union Wr {
    pub(super) send: bindings::ib_send_wr,
    pub(super) rdma: bindings::ib_rdma_wr,
    pub(super) atomic: bindings::ib_atomic_wr,
    pub(super) ud: bindings::ib_ud_wr,
    pub(super) reg: bindings::ib_reg_wr,
    pub(super) recv: bindings::ib_recv_wr,
}

/// The parts of a slot that a request refers to.
pub(super) struct SlotParts {
    /// What [`Queue::cqe`] returns.
    pub(super) cqe: *mut bindings::ib_cqe,
    /// The elements.
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

/// What is in a slot. Belongs to whoever owns the slot: see [`WrSlot`].
pub(super) struct WrState<R> {
    /// The next slot of the list that this one is in.
    pub(super) next: u32,
    /// The one before it, in the list of posted ones.
    pub(super) prev: u32,
    pub(super) wr: Wr,
    /// Whether the owner wants to hear of it when it succeeds.
    pub(super) signaled: bool,
    /// Whether the owner has heard the last of it already, while the device has it.
    pub(super) canceled: bool,
    /// When that is to happen, of [`now_ns`]; 0 is never. Posted slots that have one, and were not
    /// canceled, are in [`Lists::deadlines`].
    pub(super) deadline: u64,
    pub(super) request: Option<R>,
    /// Where it goes, when that is not the queue pair's one peer.
    pub(super) ah: Option<Arc<Ah>>,
}

impl<R> WrState<R> {
    /// Whether the device reports when the request succeeds: for its owner, or because somebody has
    /// to know that it is done before its deadline.
    pub(super) fn is_signaled(&self) -> bool {
        self.signaled || self.deadline != 0
    }
}

/// Room for one request.
///
/// # Invariants
///
/// - `hook` is never changed once the owner of the queue exists.
/// - `content`, and the parts of the queue's arrays that belong to the slot, are accessed by one
///   owner at a time: the queue, under its lock, for a slot in the list of free ones or in the
///   list of posted ones; a chain for a slot in it, or that it has taken ahead.
#[repr(C)]
pub(super) struct WrSlot<R> {
    pub(super) hook: bindings::rust_ulp_cqe_hook,
    /// The queue pair or shared receive queue, for `hook`.
    pub(super) owner: *const c_void,
    pub(super) kind: QueueKind,
    pub(super) index: u32,
    /// Its number in the order of posting, from 1 on, while it is in the list of posted ones; else
    /// 0. Changed under the queue's lock.
    number: Atomic<u64>,
    /// 1 while it is in the list of free ones, else 0. Changed under the queue's lock.
    free: Atomic<u32>,
    content: UnsafeCell<WrState<R>>,
}

impl<R> WrSlot<R> {
    /// Returns a slot that is in the list of free ones, before `next`.
    fn new(
        kind: QueueKind,
        owner: *const c_void,
        done: unsafe extern "C" fn(*mut bindings::ib_cq, *mut bindings::ib_wc),
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
            }),
        }
    }

    /// Returns the slot that `cqe` belongs to.
    ///
    /// # Safety
    ///
    /// `cqe` came out of [`Queue::cqe`] of a queue that lives longer than `'a`.
    pub(super) unsafe fn from_cqe<'a>(cqe: *mut bindings::ib_cqe) -> &'a Self {
        // SAFETY: By the requirement `cqe` is the field of the hook of a slot, and may be used to
        // reach all of the slot.
        unsafe {
            let hook = kernel::container_of!(cqe, bindings::rust_ulp_cqe_hook, cqe);
            &*kernel::container_of!(hook, Self, hook)
        }
    }
}

/// The lists that every slot of a queue is in, except for those in chains.
pub(super) struct Lists {
    /// Free slots: a stack.
    pub(super) free: u32,
    /// Posted slots: a queue, in the order of posting.
    pub(super) first: u32,
    pub(super) last: u32,
    pub(super) posted: u32,
    /// The number of the request posted last.
    pub(super) number: u64,
    /// The send requests since the last one that is signaled.
    pub(super) unsignaled: Unsignaled,
    /// Nothing can be posted: the queue is being drained.
    pub(super) closed: bool,
    /// Something was posted since the queue was drained.
    pub(super) used: bool,
    /// The deadlines of posted slots whose owner is still to hear of them.
    deadlines: Deadlines<KVVec<Deadline>, KVVec<u32>>,
    /// When the timer is due, [`u64::MAX`] when it is not running: no deadline is before that.
    due: u64,
}

/// The functions that a queue calls, with its owner.
pub(super) struct Calls {
    /// For each completion.
    pub(super) done: unsafe extern "C" fn(*mut bindings::ib_cq, *mut bindings::ib_wc),
    /// When a deadline has passed: for [`Queue::expire`].
    pub(super) expired: unsafe extern "C" fn(*const c_void),
}

/// Deadlines are met to a multiple of this, in ns, later than they say: however many there are, a
/// queue looks through its requests no more often than that.
const DEADLINE_STEP: u64 = 1 << 20;

/// A queue of requests.
#[pin_data]
pub(super) struct Queue<R: WrContext> {
    /// Due when the first deadline of a posted request has passed, or before.
    #[pin]
    timer: Timer,
    #[pin]
    pub(super) lists: SpinLockBh<Lists>,
    pub(super) slots: KVVec<WrSlot<R>>,
    /// `max_sge` for each slot.
    sges: KVVec<UnsafeCell<bindings::ib_sge>>,
    /// What `sges` point into.
    locals: KVVec<UnsafeCell<Option<Local>>>,
    /// `max_inline` for each slot.
    pub(super) inline: KVVec<UnsafeCell<u8>>,
    max_sge: u32,
    pub(super) max_inline: u32,
}

// SAFETY: Slots and their parts have one owner at a time, see `WrSlot`; the requests are `Send`.
unsafe impl<R: WrContext> Send for Queue<R> {}
// SAFETY: As above.
unsafe impl<R: WrContext> Sync for Queue<R> {}

impl<R: WrContext> Queue<R> {
    /// Slots `0..depth`, of which `calls` hears; `owner` is for these.
    ///
    /// # Safety
    ///
    /// They may be called for `owner` from the first post on; `expired` until [`Self::stop`] was
    /// called with nothing posted, or the queue is gone.
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
        let mut slots = KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
        for index in 0..depth {
            let next = index.wrapping_add(1);
            let slot = WrSlot::new(
                kind,
                owner,
                calls.done,
                index,
                (next < depth).then_some(next),
            );
            slots.push(slot, GFP_KERNEL_ACCOUNT)?;
        }
        let mut sges = KVVec::with_capacity(total_sge, GFP_KERNEL_ACCOUNT)?;
        let mut locals = KVVec::with_capacity(total_sge, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..total_sge {
            sges.push(UnsafeCell::new(Default::default()), GFP_KERNEL_ACCOUNT)?;
            locals.push(UnsafeCell::new(None), GFP_KERNEL_ACCOUNT)?;
        }
        let inline = KVVec::from_elem(0u8, total_inline, GFP_KERNEL_ACCOUNT)?;
        let (bytes, len, capacity) = inline.into_raw_parts();
        // SAFETY: These are the parts of such a vector; a cell has the layout of what is in it.
        let inline =
            unsafe { KVVec::from_raw_parts(bytes.cast::<UnsafeCell<u8>>(), len, capacity) };
        let lists = Lists {
            free: if depth > 0 { 0 } else { NONE },
            first: NONE,
            last: NONE,
            posted: 0,
            number: 0,
            unsignaled: Unsignaled::default(),
            closed: false,
            used: false,
            deadlines: Deadlines::new(
                KVVec::from_elem(Deadline::default(), count, GFP_KERNEL_ACCOUNT)?,
                KVVec::from_elem(0, count, GFP_KERNEL_ACCOUNT)?,
            ),
            due: u64::MAX,
        };
        // SAFETY: By the requirement; the timer is only started when something is posted.
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

    pub(super) fn depth(&self) -> u32 {
        self.slots.len() as u32
    }

    /// The state of slot `index`.
    ///
    /// # Safety
    ///
    /// The caller owns the slot, and makes no other reference to its content meanwhile.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn content(&self, index: u32) -> Option<&mut WrState<R>> {
        self.slots
            .get(index as usize)
            // SAFETY: By the requirement the reference is the only one.
            .map(|slot| unsafe { &mut *slot.content.get() })
    }

    /// Returns where the request of slot `index` is, null for [`NONE`].
    ///
    /// The pointer is not derived from a reference to the request: it stays valid when somebody who
    /// owns the slot calls [`Self::content`].
    pub(super) fn wr(&self, index: u32) -> *mut Wr {
        match self.slots.get(index as usize) {
            // SAFETY: The cell holds a value; a pointer into it is made.
            Some(slot) => unsafe { &raw mut (*slot.content.get()).wr },
            None => core::ptr::null_mut(),
        }
    }

    /// Returns what drivers and the core get as the `wr_cqe` of slot `index`, for
    /// [`WrSlot::from_cqe`].
    pub(super) fn cqe(&self, index: u32) -> Option<*mut bindings::ib_cqe> {
        if index >= self.depth() {
            return None;
        }
        // Derived from the pointer to all slots, so that the whole slot can be reached from it.
        let slot = self.slots.as_ptr().wrapping_add(index as usize).cast_mut();
        // SAFETY: The slot exists; a pointer into it is made.
        Some(unsafe { &raw mut (*slot).hook.cqe })
    }

    /// The parts of `locals` and `sges` that belong to slot `index`.
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

    /// Drops what slot `index` still holds of its last request. Sleeps.
    ///
    /// # Safety
    ///
    /// The caller owns the slot.
    pub(super) unsafe fn clear(&self, index: u32) {
        // SAFETY: By the requirement.
        if let Some(content) = unsafe { self.content(index) } {
            content.request = None;
            content.ah = None;
        }
        for local in self.pieces(index).0 {
            // SAFETY: By the requirement the caller owns the slot's parts too.
            unsafe { *local.get() = None };
        }
    }

    /// Takes `count` free slots, or as many as there are: the first one of them, or [`NONE`].
    ///
    /// They are a list, which the caller owns.
    pub(super) fn take(&self, count: u32) -> u32 {
        let mut lists = self.lists.lock();
        let (first, mut last) = (lists.free, NONE);
        for _ in 0..count {
            let index = lists.free;
            // SAFETY: The slot is in the list of free ones, and the lock is held.
            let Some(content) = (unsafe { self.content(index) }) else {
                break;
            };
            lists.free = content.next;
            self.set_free(&mut lists, index, false);
            last = index;
        }
        // SAFETY: As above, when it was taken.
        match unsafe { self.content(last) } {
            Some(content) => {
                content.next = NONE;
                first
            }
            None => NONE,
        }
    }

    /// Gives the slots of the list from `first` on back.
    ///
    /// # Safety
    ///
    /// The caller owns them, and does so no longer.
    pub(super) unsafe fn put_all(&self, first: u32) {
        if first == NONE {
            return;
        }
        let mut lists = self.lists.lock();
        let mut at = first;
        // SAFETY: By the requirement; each belongs to the caller until it is given back.
        while let Some(next) = unsafe { self.content(at) }.map(|content| content.next) {
            // SAFETY: As above.
            unsafe { self.put(&mut lists, at) };
            at = next;
        }
    }

    /// Gives slot `index` back.
    ///
    /// # Safety
    ///
    /// The caller owns the slot, and does so no longer.
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

    /// The number of the request in slot `index`; 0 when it is not posted.
    pub(super) fn number(&self, index: u32) -> u64 {
        self.slots
            .get(index as usize)
            .map_or(0, |slot| slot.number.load(Relaxed))
    }

    /// Gives the request in slot `index` the next number: it is about to be posted.
    pub(super) fn set_number(&self, lists: &mut Lists, index: u32) {
        lists.number = lists.number.wrapping_add(1);
        if let Some(slot) = self.slots.get(index as usize) {
            slot.number.store(lists.number, Relaxed);
        }
    }

    /// Takes the number and the deadline of slot `index`, which is not posted any more, or was not
    /// after all.
    pub(super) fn clear_number(&self, lists: &mut Lists, index: u32) {
        lists.deadlines.remove(index);
        if let Some(slot) = self.slots.get(index as usize) {
            slot.number.store(0, Relaxed);
        }
    }

    /// Takes slot `index` out of the list of posted ones.
    ///
    /// # Safety
    ///
    /// The slot is in that list. The caller owns it from then on.
    pub(super) unsafe fn unlink(&self, lists: &mut Lists, index: u32) {
        // SAFETY: The slot is in the list, and the lock is held.
        let Some((prev, next)) = (unsafe { self.content(index) }).map(|it| (it.prev, it.next))
        else {
            return;
        };
        // SAFETY: As above: neighbours in the list are in the list.
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

    /// Gives the posted slots before `index` back, up to the first whose owner is to hear of it: how many
    /// it were. Their requests made no completion, so they succeeded.
    ///
    /// # Safety
    ///
    /// Slot `index` is posted, and the device is done with those before it, and with it.
    pub(super) unsafe fn complete_unsignaled(&self, lists: &mut Lists, index: u32) -> u32 {
        let (mut at, mut count) = (lists.first, 0u32);
        // SAFETY: The slot is in the list of posted ones, and the lock is held.
        while let Some(content) = unsafe { self.content(at) } {
            if at == index || content.canceled || content.signaled {
                break;
            }
            let next = content.next;
            self.clear_number(lists, at);
            // SAFETY: By the requirement the device does not know it any more; it leaves the list
            // below, before anybody can look.
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

    /// The deadline of a request that is posted now, which may take `timeout_ns`; 0 for none.
    pub(super) fn deadline(timeout_ns: u64) -> u64 {
        match timeout_ns {
            0 => 0,
            _ => now_ns()
                .saturating_add(timeout_ns)
                .checked_next_multiple_of(DEADLINE_STEP)
                .unwrap_or(u64::MAX),
        }
    }

    /// Has the request in slot `index`, which has a number, canceled at `deadline`.
    pub(super) fn set_deadline(&self, lists: &mut Lists, index: u32, deadline: u64) {
        lists.deadlines.insert(Deadline {
            at_ns: deadline,
            number: self.number(index),
            slot: index,
        });
    }

    /// Sees to it that [`Self::expire`] is called when the first deadline has passed.
    pub(super) fn start_timer(&self, lists: &mut Lists) {
        match lists.deadlines.first() {
            Some(first) if first.at_ns < lists.due => {
                lists.due = first.at_ns;
                self.timer.start(first.at_ns);
            }
            _ => (),
        }
    }

    /// Stops the timer. Process context; nothing may be posted.
    pub(super) fn stop(&self) {
        self.timer.cancel();
    }

    /// Gives up the posted requests that `which` names: `tell` gets what was kept with each, oldest
    /// first, under the lock. Their slots stay posted until the device is done with them. Returns
    /// how many it were.
    pub(super) fn cancel(&self, which: impl Fn(&R) -> bool, mut tell: impl FnMut(R)) -> u32 {
        let mut lists = self.lists.lock();
        let (mut at, mut count) = (lists.first, 0u32);
        // SAFETY: The slot is in the list of posted ones, and the lock is held.
        while let Some(next) = unsafe { self.content(at) }.map(|content| content.next) {
            if self.cancel_posted(&mut lists, at, &which, &mut tell) {
                count = count.saturating_add(1);
            }
            at = next;
        }
        count
    }

    /// The same for slot `index` alone, if it is posted.
    pub(super) fn cancel_slot(
        &self,
        index: u32,
        which: impl Fn(&R) -> bool,
        tell: impl FnOnce(R),
    ) -> bool {
        let mut lists = self.lists.lock();
        self.number(index) != 0 && self.cancel_posted(&mut lists, index, which, tell)
    }

    /// The same for those whose deadline has passed, the earliest first. In a softirq, or process
    /// context.
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

    /// Gives up the request in slot `index`, which is posted, if `which` names it and its owner is
    /// still to hear of it. Returns whether it did.
    fn cancel_posted(
        &self,
        lists: &mut Lists,
        index: u32,
        which: impl FnOnce(&R) -> bool,
        tell: impl FnOnce(R),
    ) -> bool {
        // SAFETY: The slot is in the list of posted ones, and the lock is held.
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

    /// Drops what free slots still hold of their last requests. Sleeps.
    ///
    /// They stay free meanwhile, for whoever wants to post something.
    pub(super) fn purge(&self) {
        for index in 0..self.depth() {
            while let Some(rest) = self.leftover(index) {
                drop(rest);
            }
        }
    }

    /// Takes out something that slot `index` holds of its last request; [`None`] when there is nothing
    /// any more, or the slot is not free. What is returned may sleep when it is dropped.
    fn leftover(&self, index: u32) -> Option<Leftover<R>> {
        let _lists = self.lists.lock();
        if self.slots.get(index as usize)?.free.load(Relaxed) == 0 {
            return None;
        }
        // SAFETY: The slot is in the list of free ones, and the lock is held.
        let content = unsafe { self.content(index) }?;
        if let Some(request) = content.request.take() {
            return Some(Leftover::Request(request));
        }
        if let Some(ah) = content.ah.take() {
            return Some(Leftover::Address(ah));
        }
        self.pieces(index).0.iter().find_map(|local| {
            // SAFETY: As above: its parts belong to the same owner.
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
