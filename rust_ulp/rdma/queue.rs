// SPDX-License-Identifier: GPL-2.0

//! Queues of work requests, and the slots in which requests live while a device may access them.
//!
//! A [`Queue`] is the send or receive queue of a queue pair, or a shared receive queue.
//! [`super::qp`] describes the life of a request.
//!
//! # Memory
//!
//! A slot is an entry of three arrays, 40 bytes together: a [`Hook`], an [`Entry`] and the memory that
//! the request uses. All three have powers of two as their sizes, and so they fill the pieces that
//! the allocator has for queues of powers of two; an array with a header would take twice as much.
//! What only some requests have lies in [`Sides`], whose arrays are made on first use.

use super::{
    ah::Ah,
    mr::Memory,
    request::{
        Posted,
        QueueKind,
        SlotRef,
        WrContext, //
    }, //
};
use crate::{
    bindings,
    ext::{
        late_vec::LateVec,
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
        deadlines::{
            self,
            Deadlines, //
        },
        mark::Mark,
        order::{
            Link,
            Order, //
        },
        sharing::{
            self,
            Share, //
        },
        unsignaled::Unsignaled, //
    }, //
};
use core::{
    cell::Cell,
    mem::size_of, //
};
use kernel::{
    ffi::c_void,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
    types::Opaque, //
};

/// The `wr_cqe` of the requests in a slot, and whose slot that is: `struct rust_ulp_cqe_hook`.
type Hook = Opaque<bindings::rust_ulp_cqe_hook>;

/// The owner of an array of hooks, to which each of them points.
///
/// # Invariants
///
/// `context` and `hooks` are those of the queue that this value belongs to.
#[repr(C)]
pub(super) struct CqeOwner {
    raw: bindings::rust_ulp_cqe_owner,
    /// The queue pair or shared receive queue, for the function of `raw`.
    pub(super) context: *const c_void,
    pub(super) kind: QueueKind,
    /// The hook of slot 0.
    hooks: *const Hook,
}

impl CqeOwner {
    /// Returns the owner and the number of the slot that `cqe` belongs to.
    ///
    /// # Safety
    ///
    /// `cqe` came out of [`Queue::push`] of a queue that lives longer than `'a`.
    pub(super) unsafe fn slot_of<'a>(cqe: *mut bindings::ib_cqe) -> (&'a Self, u32) {
        // SAFETY: By the requirement `cqe` is a field of a hook, derived from a pointer to all hooks
        // of the queue. A hook does not change, and its `owner` is the field `raw` of a value like
        // this, derived from a pointer to the whole queue.
        let (hook, owner) = unsafe {
            let hook = kernel::container_of!(cqe, bindings::rust_ulp_cqe_hook, cqe);
            (hook, &*(*hook).owner.cast::<Self>())
        };
        // By the type invariant this is the distance in an array.
        let bytes = (hook as usize).wrapping_sub(owner.hooks as usize);
        (owner, (bytes / size_of::<Hook>()) as u32)
    }
}

/// What every slot keeps of its request.
#[repr(C, align(8))]
struct Entry<R: WrContext> {
    /// There is one while the slot is posted.
    kept: Option<R::Kept>,
    mark: Mark,
}

/// Returns the bytes of a slot, without what only some requests have.
pub(crate) const fn slot_bytes<R: WrContext>() -> usize {
    size_of::<Hook>() + size_of::<Entry<R>>() + size_of::<Option<Arc<Memory>>>()
}

/// The arrays of what only some requests have, as bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Needs(u32);

impl Needs {
    pub(super) const NONE: Self = Self(0);
    /// The address of a datagram.
    pub(super) const ADDRESS: Self = Self(1 << 0);
    /// [`WrContext::Reference`].
    pub(super) const REFERENCE: Self = Self(1 << 1);
    /// [`WrContext::start_ns`].
    pub(super) const START: Self = Self(1 << 2);
    /// A deadline.
    pub(super) const DEADLINE: Self = Self(1 << 3);
    /// More than one region of memory.
    pub(super) const MEMORY: Self = Self(1 << 4);

    /// Returns whether all of `other` are among these.
    #[inline(always)]
    pub(super) fn has(self, Self(other): Self) -> bool {
        other & !self.0 == 0
    }

    /// Returns whether an array of addresses or times is among these: every request has an entry in
    /// it.
    #[inline(always)]
    fn is_of_each(self) -> bool {
        self.0 & (Self::ADDRESS.0 | Self::START.0) != 0
    }

    /// Returns whether an array is among these that has a part of [`WrContext`], or an address.
    #[inline(always)]
    fn is_of_requests(self) -> bool {
        self.is_of_each() || self.0 & Self::REFERENCE.0 != 0
    }

    /// Returns these without `other`.
    fn without(self, Self(other): Self) -> Self {
        Self(self.0 & !other)
    }

    /// Returns these and `other`.
    #[inline(always)]
    pub(super) fn and(self, Self(other): Self) -> Self {
        Self(self.0 | other)
    }
}

/// What only some requests have. Each array has an entry for each slot, or has none before
/// [`Queue::reserve_sides`] was called for it.
struct Sides<R: WrContext> {
    /// The addresses of datagrams, kept alive for the device.
    addresses: KVVec<Option<Arc<Ah>>>,
    /// None in a slot whose request has none.
    references: KVVec<Option<R::Reference>>,
    starts: KVVec<u64>,
    /// The memory of a request beyond the first: `max_sge - 1` entries for each slot.
    memory: KVVec<Option<Arc<Memory>>>,
    /// The arrays that are there.
    made: Needs,
}

impl<R: WrContext> Sides<R> {
    /// Returns the arrays without memory.
    fn new() -> Self {
        Self {
            addresses: KVVec::new(),
            references: KVVec::new(),
            starts: KVVec::new(),
            memory: KVVec::new(),
            made: Needs::NONE,
        }
    }

    /// Keeps the parts of the request in slot `index`. The address that the slot kept before moves to
    /// `ah`.
    #[inline(never)]
    fn put(
        &mut self,
        index: u32,
        ah: &mut Option<Arc<Ah>>,
        reference: Option<R::Reference>,
        start_ns: u64,
    ) {
        if let Some(reference) = &reference {
            R::placed(reference, index);
        }
        let index = index as usize;
        if let Some(kept) = self.addresses.get_mut(index) {
            core::mem::swap(kept, ah);
        }
        if let (Some(kept), Some(_)) = (self.references.get_mut(index), &reference) {
            *kept = reference;
        }
        if let Some(kept) = self.starts.get_mut(index) {
            *kept = start_ns;
        }
    }

    /// Returns the reference of the request in slot `index`.
    fn reference(&self, index: u32) -> Option<&R::Reference> {
        self.references.get(index as usize)?.as_ref()
    }

    /// Takes the reference and the time of the request in slot `index`.
    #[inline(never)]
    fn take(&mut self, index: u32) -> (Option<R::Reference>, u64) {
        let index = index as usize;
        let reference = self.references.get_mut(index).and_then(Option::take);
        (reference, self.starts.get(index).copied().unwrap_or(0))
    }
}

/// The data that the lock of a queue protects.
pub(super) struct Lists<R: WrContext> {
    /// The posted slots in the order of posting, and the free ones.
    pub(super) order: Order<KVVec<Link>>,
    /// What each slot keeps of its request.
    entries: KVVec<Entry<R>>,
    /// The memory of the request in each slot, or of those up to it, kept alive for the device.
    memory: KVVec<Option<Arc<Memory>>>,
    sides: Sides<R>,
    /// The numbers of the requests in the slots of a shared receive queue, 0 in a free slot. No
    /// entries in other queues, where slots are used in turn, and the numbers follow from `done`.
    numbers: KVVec<u64>,
    /// The number of the newest request.
    pub(super) number: u64,
    /// The bytes of all requests up to that one.
    bytes: u64,
    /// The device is done with all requests up to this number. Stays 0 in a shared receive queue.
    done: u64,
    /// The posted slots that were canceled.
    canceled: u32,
    /// The number of consecutive plain requests that end with the newest one, see
    /// [`WrContext::is_plain`]. All of them share a reference, or none.
    plain: u32,
    /// Whether the newest request shares a reference.
    sharing: bool,
    /// The send requests since the last one that is signaled.
    pub(super) unsignaled: Unsignaled,
    /// Whether posting is refused because the queue is drained.
    pub(super) closed: bool,
    /// Whether something was posted since the queue was last drained.
    pub(super) used: bool,
    /// The deadlines of the posted slots that were not canceled. Has no memory before
    /// [`Queue::reserve_sides`].
    deadlines: Deadlines<KVVec<u64>>,
    /// When the timer fires, [`u64::MAX`] when it does not run. Once [`Queue::start_timer`] was
    /// called, no deadline is earlier, except those that [`Queue::expire`] is looking for.
    due: u64,
    /// The first of the deadlines that were set since [`Queue::start_timer`] was called.
    first_new: u64,
}

impl<R: WrContext> Lists<R> {
    /// Returns the number of the newest request that the device is done with, unless the queue is
    /// shared.
    pub(super) fn done(&self) -> u64 {
        self.done
    }

    /// Returns the number of the request in slot `index`, 0 if that is free.
    fn number_of(&self, index: u32) -> u64 {
        match self.numbers.get(index as usize) {
            Some(&number) => number,
            None => match self.order.place(index) {
                Some(place) => self.done.saturating_add(1).saturating_add(place.into()),
                None => 0,
            },
        }
    }

    /// Has the newest request, in slot `index`, canceled at `at_ns`. It is not plain.
    #[cold]
    #[inline(never)]
    pub(super) fn set_deadline(&mut self, index: u32, at_ns: u64) {
        self.deadlines.set(index, at_ns);
        self.first_new = self.first_new.min(at_ns);
        self.plain = 0;
        if let Some(entry) = self.entries.get_mut(index as usize) {
            entry.mark = entry.mark.posted(entry.mark.is_reported(), 0);
        }
    }

    /// Joins the parts of the request in slot `index`, which are taken. It gets the reference `shared`
    /// if it has none.
    #[inline(always)]
    fn join(&mut self, index: u32, kept: R::Kept, shared: Option<R::Reference>) -> R {
        let (reference, start_ns) = if self.sides.made.is_of_requests() {
            self.sides.take(index)
        } else {
            (None, 0)
        };
        R::join(kept, reference.or(shared), start_ns)
    }

    /// Returns what the request in the posted slot `index` has of a reference.
    fn share(&self, index: u32) -> Share {
        match self.entries.get(index as usize) {
            Some(entry) if entry.mark.is_canceled() => Share::Canceled,
            Some(_) if self.sides.reference(index).is_some() => Share::Own,
            Some(Entry {
                kept: Some(kept), ..
            }) if R::is_sharing(kept) => Share::Next,
            _ => Share::None,
        }
    }

    /// Returns the slot whose reference the request in the posted slot `index` has or shares, and how
    /// many places behind it that is. `near` is what this has returned for an older request, since the
    /// lock is held: no newer request was canceled since then.
    fn holder(&self, index: u32, near: &mut Option<u32>) -> Option<(u32, u32)> {
        match self.share(index) {
            Share::None | Share::Canceled => return None,
            Share::Own => return Some((index, 0)),
            Share::Next => (),
        }
        let place = |slot| self.order.place(slot);
        let places = near.and_then(|slot| place(slot)?.checked_sub(place(index)?));
        let found = match (*near, places) {
            (Some(slot), Some(places)) => Some((slot, places)),
            _ => sharing::holder(&self.order, index, |at| self.share(at)),
        };
        *near = found.map(|(slot, _)| slot);
        found
    }

    /// Returns a reference for the request in the posted slot `index`, if it shares one. `near` as in
    /// [`Self::holder`].
    fn shared(&self, index: u32, near: &mut Option<u32>) -> Option<R::Reference> {
        if !self.sides.made.has(Needs::REFERENCE) {
            return None;
        }
        match self.holder(index, near)? {
            (_, 0) => None,
            (slot, places) => R::shared(self.sides.reference(slot)?, places),
        }
    }

    /// Has the newest request that shares the reference of slot `index` have it: the request there is
    /// being canceled.
    fn hand_over(&mut self, index: u32) {
        let Some(reference) = self.sides.reference(index) else {
            return;
        };
        let Some((slot, places)) = sharing::heir(&self.order, index, |at| self.share(at)) else {
            return;
        };
        let shared = R::shared(reference, places);
        if let Some(heir) = self.sides.references.get_mut(slot as usize) {
            *heir = shared;
        }
    }
}

/// Memory of a request, beyond that of its first element, in a run of requests that are posted.
pub(super) struct MoreMemory {
    /// The number of the request.
    pub(super) at: u32,
    /// The memory; what the slot has kept before, once that keeps it.
    pub(super) memory: Option<Arc<Memory>>,
}

/// The slot of a request that was posted.
pub(super) struct PostedWr {
    /// For [`CqeOwner::slot_of`].
    pub(super) cqe: *mut bindings::ib_cqe,
    /// Whether it keeps memory of its last request: the caller calls [`Queue::keep`].
    pub(super) is_keeping: bool,
    /// Whether the request has a deadline: it is always reported, so that the queue knows in time
    /// that it is done.
    pub(super) is_timed: bool,
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

/// The most slots that are looked at while the lock is held, with bottom halves disabled.
const LOCKED_SLOTS: u32 = 64;

/// A queue of work requests.
///
/// # Invariants
///
/// `hooks` has an entry for each slot, and each points to `owner`.
#[pin_data]
pub(super) struct Queue<R: WrContext> {
    /// Fires at the first deadline, or earlier.
    #[pin]
    timer: WorkTimer,
    /// Lock order: after all mutexes, before the locks of drivers. Held over the driver's `post_send`
    /// and over [`WrHandler::cancel`](super::request::WrHandler::cancel).
    #[pin]
    pub(super) lists: SpinLockBh<Lists<R>>,
    owner: CqeOwner,
    hooks: KVVec<Hook>,
    /// The bits of [`Sides::made`], to be read without the lock.
    made: Atomic<u32>,
    pub(super) max_sge: u32,
    pub(super) max_inline: u32,
}

// SAFETY: `context` of the owner is used by its functions only. The driver and the core use the hooks
// in any thread. Requests and their parts are `Send`.
unsafe impl<R: WrContext> Send for Queue<R> {}
// SAFETY: As above. All else that changes is atomic, or under the lock.
unsafe impl<R: WrContext> Sync for Queue<R> {}

/// Returns `count` new entries. Sleeps.
fn filled<T>(count: usize, new: impl Fn() -> T) -> Result<KVVec<T>> {
    let mut entries = KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
    for _ in 0..count {
        entries.push(new(), GFP_KERNEL_ACCOUNT)?;
    }
    Ok(entries)
}

impl<R: WrContext> Queue<R> {
    /// Creates a queue of `depth` slots, which complete in any order if it `is_shared`. Sleeps.
    ///
    /// # Safety
    ///
    /// - `calls` may be called with `context` from the first post on.
    /// - `calls.expired` may be called with `context` until [`Self::stop`] is called with nothing
    ///   posted, or the queue is dropped.
    pub(super) unsafe fn new(
        kind: QueueKind,
        is_shared: bool,
        context: *const c_void,
        calls: Calls,
        depth: u32,
        max_sge: u32,
        max_inline: u32,
    ) -> Result<impl PinInit<Self>> {
        let slots = depth as usize;
        let any_order = if is_shared { slots } else { 0 };
        let mut hooks = filled(slots, Hook::uninit)?;
        let entry = || Entry {
            kept: None,
            mark: Mark::default(),
        };
        let lists = Lists {
            order: Order::new(depth, filled(any_order, Link::default)?),
            entries: filled(slots, entry)?,
            memory: filled(slots, || None)?,
            sides: Sides::new(),
            numbers: filled(any_order, || 0)?,
            number: 0,
            bytes: 0,
            done: 0,
            canceled: 0,
            plain: 0,
            sharing: false,
            unsignaled: Unsignaled::default(),
            closed: false,
            used: false,
            deadlines: Deadlines::new(KVVec::new()),
            due: u64::MAX,
            first_new: u64::MAX,
        };
        // INVARIANT: These are the context and the hooks of this queue.
        let owner = CqeOwner {
            raw: bindings::rust_ulp_cqe_owner {
                done: Some(calls.done),
            },
            context,
            kind,
            hooks: hooks.as_ptr(),
        };
        // SAFETY: By the requirement; the timer starts only when something is posted.
        let timer = unsafe { WorkTimer::new(calls.expired, context) };
        Ok(pin_init!(&this in Self {
            timer <- timer,
            lists <- new_spinlock_bh!(lists, "rdma::Queue::lists"),
            owner,
            // INVARIANT: Each hook points to `owner`.
            hooks: {
                for hook in hooks.iter_mut() {
                    *hook = Opaque::new(bindings::rust_ulp_cqe_hook {
                        cqe: bindings::ib_cqe { done: Some(bindings::rust_ulp_completion) },
                        // SAFETY: A pointer to a field of this value is made, which does not move.
                        owner: unsafe { &raw const (*this.as_ptr()).owner.raw },
                    });
                }
                hooks
            },
            made: Atomic::new(0),
            max_sge,
            max_inline,
        }))
    }

    pub(super) fn depth(&self) -> u32 {
        self.hooks.len() as u32
    }

    /// Returns the `wr_cqe` of slot `index`, for [`CqeOwner::slot_of`].
    #[inline(always)]
    fn cqe(&self, index: u32) -> *mut bindings::ib_cqe {
        // Derived from the pointer to all hooks: `slot_of` reaches the whole hook by it.
        let hook = self.hooks.as_ptr().wrapping_add(index as usize);
        // SAFETY: `order` has one slot for each hook, so the hook exists; a pointer into it is made.
        unsafe { &raw mut (*Opaque::cast_into(hook)).cqe }
    }

    /// Makes the arrays that `needs` names, unless they are there. Sleeps.
    pub(super) fn reserve_sides(&self, needs: Needs) -> Result {
        let needs = needs.without(Needs(self.made.load(Relaxed)));
        if needs == Needs::NONE {
            return Ok(());
        }
        let slots = self.hooks.len();
        let beyond = slots.saturating_mul((self.max_sge as usize).saturating_sub(1));
        if needs.has(Needs::ADDRESS) {
            self.add(filled(slots, || None)?, |lists| &mut lists.sides.addresses);
        }
        if needs.has(Needs::REFERENCE) {
            self.add(filled(slots, || None)?, |lists| &mut lists.sides.references);
        }
        if needs.has(Needs::START) {
            self.add(filled(slots, || 0)?, |lists| &mut lists.sides.starts);
        }
        if needs.has(Needs::MEMORY) {
            self.add(filled(beyond, || None)?, |lists| &mut lists.sides.memory);
        }
        if needs.has(Needs::DEADLINE) {
            let times = filled(slots, || 0)?;
            self.add(times, |lists| lists.deadlines.times_mut());
        }
        let mut lists = self.lists.lock();
        lists.sides.made = lists.sides.made.and(needs);
        self.made.store(lists.sides.made.0, Relaxed);
        Ok(())
    }

    /// Has `field` be the array `made`, unless another thread was faster. Sleeps.
    fn add<T>(&self, mut made: KVVec<T>, field: impl FnOnce(&mut Lists<R>) -> &mut KVVec<T>) {
        let mut lists = self.lists.lock();
        let array = field(&mut lists);
        if array.is_empty() {
            core::mem::swap(array, &mut made);
        }
        drop(lists);
        // What is left is freed without the lock.
        drop(made);
    }

    /// Returns the number of free slots.
    pub(super) fn free(&self, lists: &Lists<R>) -> u32 {
        self.depth().saturating_sub(lists.order.posted())
    }

    /// Returns whether [`Self::keep`] may need room for what a slot has kept before.
    pub(super) fn keeps_many(&self) -> bool {
        Needs(self.made.load(Relaxed)).has(Needs::MEMORY)
    }

    /// Puts the request that `make` returns into slot `index`, which was just posted, as the newest one.
    /// [`Self::reserve_sides`] was called for what it needs. [`None`] if there is no such slot.
    ///
    /// `signaled` says whether the success of the request is reported to the owner, and `timed`
    /// whether it may have a deadline. `ah` becomes the address that the slot has kept before.
    #[inline(always)]
    pub(super) fn push(
        &self,
        lists: &mut Lists<R>,
        index: u32,
        make: impl FnOnce() -> R,
        signaled: bool,
        timed: bool,
        ah: &mut Option<Arc<Ah>>,
    ) -> Option<PostedWr> {
        let entry = lists.entries.get_mut(index as usize)?;
        let request = make();
        let deadline = if timed {
            Self::deadline(&request, self.depth())
        } else {
            0
        };
        lists.number = lists.number.wrapping_add(1);
        lists.bytes = lists.bytes.wrapping_add(request.bytes().into());
        let is_plain = !signaled && request.is_plain();
        let start_ns = request.start_ns();
        let (kept, reference) = request.split();
        let sharing = R::is_sharing(&kept);
        if sharing != lists.sharing {
            lists.sharing = sharing;
            lists.plain = 0;
        }
        lists.plain = match is_plain {
            true => lists.plain.wrapping_add(1),
            false => 0,
        };
        let is_keeping = entry.mark.is_keeping();
        *entry = Entry {
            kept: Some(kept),
            mark: entry.mark.posted(signaled, lists.plain),
        };
        if let Some(number) = lists.numbers.get_mut(index as usize) {
            *number = lists.number;
        }
        if lists.sides.made.is_of_each() || reference.is_some() {
            lists.sides.put(index, ah, reference, start_ns);
        }
        if deadline != 0 {
            lists.set_deadline(index, deadline);
        }
        Some(PostedWr {
            cqe: self.cqe(index),
            is_keeping,
            is_timed: deadline != 0,
        })
    }

    /// Returns the entries in which slot `index` keeps memory.
    fn cells<'a>(
        &self,
        lists: &'a mut Lists<R>,
        index: u32,
    ) -> impl Iterator<Item = &'a mut Option<Arc<Memory>>> {
        let beyond = (self.max_sge as usize).saturating_sub(1);
        let start = (index as usize).saturating_mul(beyond);
        let end = start.saturating_add(beyond);
        let more = lists.sides.memory.get_mut(start..end).unwrap_or_default();
        Iterator::chain(lists.memory.get_mut(index as usize).into_iter(), more)
    }

    /// Makes slot `index` keep `first` and `more`, and exchanges them for what the slot has kept
    /// before. What it has kept beyond that is moved to `stale`, as far as it has room.
    #[inline(never)]
    pub(super) fn keep(
        &self,
        lists: &mut Lists<R>,
        index: u32,
        first: &mut Option<Arc<Memory>>,
        more: &mut [MoreMemory],
        stale: &mut LateVec<Arc<Memory>>,
    ) {
        let mut is_keeping = first.is_some() || !more.is_empty();
        let more = more.iter_mut().map(|more| &mut more.memory);
        let mut new = Iterator::chain(core::iter::once(first), more);
        for kept in self.cells(lists, index) {
            match new.next() {
                Some(memory) => core::mem::swap(memory, kept),
                None => {
                    if let Some(Err(full)) = kept
                        .take()
                        .map(|memory| stale.made().push_within_capacity(memory))
                    {
                        *kept = Some(full.0);
                        is_keeping = true;
                    }
                }
            }
        }
        if let Some(entry) = lists.entries.get_mut(index as usize) {
            entry.mark.keep(is_keeping);
        }
    }

    /// Takes back the newest posted request, which the device has not taken, with a reference to
    /// the first memory that its slot keeps.
    pub(super) fn pop(&self, lists: &mut Lists<R>) -> Option<(R, Option<Arc<Memory>>)> {
        let index = lists.order.pop()?;
        lists.number = lists.number.wrapping_sub(1);
        lists.deadlines.remove(index);
        // The next one is the first of those that are counted.
        lists.plain = 0;
        if let Some(number) = lists.numbers.get_mut(index as usize) {
            *number = 0;
        }
        let memory = lists.memory.get(index as usize).cloned().flatten();
        let kept = lists.entries.get_mut(index as usize)?.kept.take()?;
        let request = lists.join(index, kept, None);
        lists.bytes = lists.bytes.wrapping_sub(request.bytes().into());
        Some((request, memory))
    }

    /// Makes the newest posted slot keep `memory`, unless it keeps that of its first element.
    /// Returns what it does not keep.
    pub(super) fn adopt(&self, lists: &mut Lists<R>, memory: Arc<Memory>) -> Option<Arc<Memory>> {
        let index = lists.order.last()?;
        if let Some(entry) = lists.entries.get_mut(index as usize) {
            entry.mark.keep(true);
        }
        match lists.memory.get_mut(index as usize) {
            Some(kept) if kept.is_none() => kept.replace(memory),
            _ => Some(memory),
        }
    }

    /// Ends the sharing of the newest `count` requests, up to one that has a reference: the one whose
    /// reference they shared was refused.
    pub(super) fn end_sharing(&self, lists: &mut Lists<R>, count: u32) {
        let mut next = lists.order.last();
        for _ in 0..count {
            let Some(index) = next.filter(|&index| lists.sides.reference(index).is_none()) else {
                return;
            };
            let entry = lists.entries.get_mut(index as usize);
            if let Some(kept) = entry.and_then(|entry| entry.kept.as_mut()) {
                R::end_sharing(kept);
            }
            next = Some(lists.order.prev(index));
        }
    }

    /// Completes the request in slot `index` of a queue that completes in order, and the requests
    /// before it: they made no completion, so they succeeded. Stops at an older one that is reported,
    /// whose completion the driver has lost, and after [`LOCKED_SLOTS`] if it has to look at each: the
    /// caller calls it again until [`Completed::is_last`]. Returns [`None`] if the slot is not
    /// posted.
    ///
    /// `is_success` says whether the device reported success.
    pub(super) fn complete(&self, index: u32, is_success: bool) -> Option<Completed<R>> {
        let mut lists = self.lists.lock();
        let older = lists.order.place(index)?;
        let mut unsignaled = R::Unsignaled::default();
        let mut any = older > 0;
        let (mut at, mut count) = (index, older.saturating_add(1));
        if older > 0 {
            let before = lists.order.prev(index);
            let before = lists.entries.get(before as usize)?;
            if older <= before.mark.plain() && lists.canceled == 0 && lists.deadlines.is_empty() {
                R::complete_plain(before.kept.as_ref()?, older, &mut unsignaled);
            } else {
                (at, any) = self.complete_unsignaled(&mut lists, index, &mut unsignaled)?;
                count = 1;
            }
        }
        let mark = lists.entries.get(at as usize)?.mark;
        let is_last = at == index;
        let request = if mark.is_canceled() || mark.is_reported() || is_last && !is_success {
            let shared = lists.shared(at, &mut None);
            let kept = lists.entries.get_mut(at as usize)?.kept.take()?;
            Some(lists.join(at, kept, shared))
        } else {
            // It was signaled only to empty the queue, or is one of many.
            let kept = lists.entries.get_mut(at as usize)?.kept.take()?;
            lists
                .join(at, kept, None)
                .complete_unsignaled(&mut unsignaled);
            any = true;
            None
        };
        lists.done = lists.done.saturating_add(count.into());
        lists.canceled = lists.canceled.saturating_sub(mark.is_canceled().into());
        lists.deadlines.remove(at);
        lists.order.free_oldest(at, count);
        Some(Completed {
            unsignaled: any.then_some(unsignaled),
            request,
            canceled: mark.is_canceled(),
            is_last,
        })
    }

    /// Frees the posted slots before `index`, up to the first one that is reported, and fewer than
    /// [`LOCKED_SLOTS`]. Adds their requests to `unsignaled`. Returns the oldest slot that is left,
    /// and whether a slot was freed.
    fn complete_unsignaled(
        &self,
        lists: &mut Lists<R>,
        index: u32,
        unsignaled: &mut R::Unsignaled,
    ) -> Option<(u32, bool)> {
        let mut any = false;
        for _ in 1..LOCKED_SLOTS {
            let at = lists.order.first()?;
            let entry = lists.entries.get_mut(at as usize)?;
            if at == index || entry.mark.is_canceled() || entry.mark.is_reported() {
                break;
            }
            let kept = entry.kept.take()?;
            lists.join(at, kept, None).complete_unsignaled(unsignaled);
            lists.done = lists.done.saturating_add(1);
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
        let number = core::mem::take(lists.numbers.get_mut(index as usize)?);
        if number == 0 {
            return None;
        }
        let entry = lists.entries.get_mut(index as usize)?;
        let canceled = entry.mark.is_canceled();
        let kept = entry.kept.take()?;
        lists.canceled = lists.canceled.saturating_sub(canceled.into());
        lists.deadlines.remove(index);
        lists.order.remove(index);
        Some(TakenWr {
            request: lists.join(index, kept, None),
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
        Some((index, lists.number_of(index)))
    }

    /// Returns the deadline of a request that is posted now to a queue with `slots` slots; 0 for none.
    // Inlined: a reference would keep the requests in memory.
    #[inline(always)]
    fn deadline(request: &R, slots: u32) -> u64 {
        match request.end_ns(0) {
            0 => 0,
            _ => deadlines::rounded(request.end_ns(now_ns()), slots),
        }
    }

    /// Has the timer fire in time for the deadlines that were set since the last call.
    pub(super) fn start_timer(&self, lists: &mut Lists<R>) {
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

    /// Leaks the hooks, which the device may still complete. Called after [`Self::ignore`], when no
    /// completion is being handled. Process context; sleeps. The queue has no slots after this.
    pub(super) fn leak(&mut self) {
        self.purge();
        core::mem::forget(core::mem::take(&mut self.hooks));
    }

    /// Cancels the posted requests that `which` selects, and returns how many it canceled. Process
    /// context.
    ///
    /// Calls `tell` for each request, the oldest first, under the queue's lock. The slots stay
    /// posted until the device is done with them. The lock is released after [`LOCKED_SLOTS`].
    /// Requests that are posted meanwhile are left out.
    pub(super) fn cancel(
        &self,
        which: impl Fn(SlotRef<'_, R>) -> bool,
        tell: impl FnMut(R),
    ) -> u32 {
        self.cancel_each(|_, _, slot| which(slot), tell)
    }

    /// Does what [`Self::cancel`] does; `which` gets the slot of each request, too.
    fn cancel_each(
        &self,
        which: impl Fn(&Lists<R>, u32, SlotRef<'_, R>) -> bool,
        mut tell: impl FnMut(R),
    ) -> u32 {
        let (mut count, mut newest, mut next) = (0u32, None, None);
        loop {
            let mut lists = self.lists.lock();
            let mut near = None;
            let newest = *newest.get_or_insert(lists.number);
            let mut at = match next {
                Some((index, number)) if lists.number_of(index) == number => Some(index),
                // When the device is done with that one, it mostly is with those before it, too.
                _ => lists.order.first(),
            };
            for _ in 0..LOCKED_SLOTS {
                let Some(index) = at.filter(|&at| lists.number_of(at) <= newest) else {
                    return count;
                };
                if self.cancel_posted(&mut lists, index, &mut near, &which, &mut tell) {
                    count = count.saturating_add(1);
                }
                let is_last = lists.order.last() == Some(index);
                at = (!is_last).then(|| lists.order.next(index));
            }
            next = at.map(|at| (at, lists.number_of(at)));
            if next.is_none() {
                return count;
            }
        }
    }

    /// Cancels the request in slot `index` if it is posted and `which` selects it. Otherwise as
    /// [`Self::cancel`].
    pub(super) fn cancel_slot(
        &self,
        index: u32,
        which: impl Fn(SlotRef<'_, R>) -> bool,
        tell: impl FnOnce(R),
    ) -> bool {
        let which = |_: &Lists<R>, _, slot: SlotRef<'_, R>| which(slot);
        self.cancel_posted(&mut self.lists.lock(), index, &mut None, which, tell)
    }

    /// Cancels the requests whose deadline has passed, and has the timer fire at the next one.
    /// Otherwise as [`Self::cancel`].
    pub(super) fn expire(&self, tell: impl FnMut(R)) {
        let now = now_ns();
        // A request that is posted from here on starts the timer itself.
        self.lists.lock().due = u64::MAX;
        let next = Cell::new(u64::MAX);
        let is_over = |lists: &Lists<R>, index, _: SlotRef<'_, R>| match lists.deadlines.get(index)
        {
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
    /// canceled before. Returns whether it did. `near` as in [`Lists::holder`].
    fn cancel_posted(
        &self,
        lists: &mut Lists<R>,
        index: u32,
        near: &mut Option<u32>,
        which: impl FnOnce(&Lists<R>, u32, SlotRef<'_, R>) -> bool,
        tell: impl FnOnce(R),
    ) -> bool {
        let at = index as usize;
        match lists.entries.get(at) {
            Some(entry) if lists.number_of(index) != 0 && !entry.mark.is_canceled() => {
                let Some(kept) = &entry.kept else {
                    return false;
                };
                let holder = lists.holder(index, near);
                let reference = holder.and_then(|(slot, _)| lists.sides.reference(slot));
                if !which(lists, index, SlotRef { kept, reference }) {
                    return false;
                }
                let kept = kept.clone();
                let shared = lists.shared(index, near);
                lists.hand_over(index);
                if let Some(entry) = lists.entries.get_mut(at) {
                    entry.mark.cancel();
                }
                lists.canceled = lists.canceled.saturating_add(1);
                lists.deadlines.remove(index);
                let request = lists.join(index, kept, shared);
                tell(request);
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
        let mut lists = self.lists.lock();
        if lists.number_of(index) != 0 {
            return None;
        }
        let addresses = &mut lists.sides.addresses;
        if let Some(ah) = addresses.get_mut(index as usize).and_then(Option::take) {
            return Some(Leftover::Address(ah));
        }
        let mut cells = self.cells(&mut lists, index);
        cells.find_map(Option::take).map(Leftover::Memory)
    }
}

/// The objects that a free slot may still hold.
#[expect(dead_code, reason = "it is there to be dropped")]
enum Leftover {
    Address(Arc<Ah>),
    Memory(Arc<Memory>),
}
