// SPDX-License-Identifier: GPL-2.0

//! Grants.
//!
//! A grant is a key by which a peer may use a range of a buffer. It ends when it is destroyed; one
//! that is bound to a queue pair, with that; and one for a single use when it was used. Its key is
//! never used again: a region that was invalidated may still be written by a responder that is
//! copying, so it is deregistered, which waits for that, and another one is made where one is needed.
//!
//! # How a bound grant ends
//!
//! Completions and events of a queue pair say in any context that its grants are to end: they note
//! it in its [`Bonds`], and put those into the workqueue. There, in process context and inside the
//! device's gate, the keys are taken away one by one, and the file is told. Who destroys the grant
//! meanwhile, its owner or who tears down the file, finds the key gone, or takes it away itself, and
//! waits for the other in either case: by the lock of the key.

use super::{
    buffer::BufferObject,
    usecount::{
        Counted,
        UseRef, //
    }, //
};
use crate::{
    device::Device,
    events::FileEvents,
    kernel::{
        errno::enotconn,
        lock::{
            new_spinlock_bh,
            SpinLockBh, //
        },
        net::NetNs, //
    },
    rdma::mr::{
        access,
        Mr, //
    },
    trace::{
        self,
        ulp_debug, //
    },
    uapi::abi, //
};
use kernel::{
    new_mutex,
    new_work,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Full,
            Relaxed, //
        },
        Arc,
        Mutex, //
    },
    workqueue::{
        impl_has_work,
        Work,
        WorkItem, //
    }, //
};

/// The key of a grant, apart from what the grant needs.
#[pin_data]
pub(crate) struct Lease {
    /// The registration, until it has ended.
    #[pin]
    mr: Mutex<Option<Arc<Mr>>>,
    /// The grant's handle; 0 before it has one.
    handle: Atomic<u32>,
    /// Why it is to end, or has: `GRANT_USED` or `GRANT_EXPIRED`; else `GRANT_ACTIVE`.
    state: Atomic<u32>,
    one_shot: bool,
    /// That of its [`Bonds`] when it was made: it ends with another.
    epoch: i32,
}

impl Lease {
    fn new(mr: Arc<Mr>, one_shot: bool, epoch: i32) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                mr <- new_mutex!(Some(mr), "rust_ulp::Lease::mr"),
                handle: Atomic::new(0),
                state: Atomic::new(abi::GRANT_ACTIVE),
                one_shot,
                epoch,
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Takes the key away. When it returns, nothing lands any more. Sleeps.
    ///
    /// Returns what the key was; [`None`] when it was gone.
    fn end(&self) -> Option<u32> {
        let mut slot = self.mr.lock();
        let mr = slot.take()?;
        let rkey = mr.rkey();
        // With the lock held: who finds the key gone may rely on that.
        drop(mr);
        Some(rkey)
    }
}

/// The grants that end with a queue pair; kept with its completions.
#[pin_data]
pub(crate) struct Bonds {
    /// By their keys.
    #[pin]
    leases: SpinLockBh<KVVec<(u32, Arc<Lease>)>>,
    /// Held by those who add to `leases`.
    #[pin]
    growing: Mutex<()>,
    /// Changes when all of them are to end.
    epoch: Atomic<i32>,
    /// How many there are.
    count: Atomic<i32>,
    events: Arc<FileEvents>,
    device: Arc<Device>,
    #[pin]
    work: Work<Self>,
}

impl_has_work! {
    impl HasWork<Self> for Bonds { self.work }
}

impl Bonds {
    /// None yet, of a queue pair of the file with those events on `device`. Sleeps.
    pub(crate) fn new(events: Arc<FileEvents>, device: Arc<Device>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                leases <- new_spinlock_bh!(KVVec::new(), "rust_ulp::Bonds::leases"),
                growing <- new_mutex!((), "rust_ulp::Bonds::growing"),
                epoch: Atomic::new(0),
                count: Atomic::new(0),
                events,
                device,
                work <- new_work!("rust_ulp::Bonds::work"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Adds a grant that has the key `rkey`. Sleeps.
    fn add(&self, rkey: u32, lease: Arc<Lease>) -> Result {
        let growing = self.growing.lock();
        let leases = self.leases.lock();
        let (len, room) = (leases.len(), leases.capacity());
        drop(leases);
        let mut larger = KVVec::new();
        if len == room {
            larger.reserve(len.saturating_mul(2).max(8), GFP_KERNEL_ACCOUNT)?;
        }
        let mut leases = self.leases.lock();
        // It may have become shorter meanwhile, not longer.
        if larger.capacity() > leases.len() {
            for entry in leases.drain_all() {
                let _ = larger.push_within_capacity(entry);
            }
            core::mem::swap(&mut *leases, &mut larger);
        }
        let at = place(&leases, rkey);
        let added = leases.insert_within_capacity(at, (rkey, lease)).is_ok();
        drop(leases);
        drop(growing);
        if !added {
            return Err(ENOMEM);
        }
        // Before it is looked whether they are to end: see `end_all`.
        let _ = self.count.fetch_add(1, Full);
        Ok(())
    }

    /// Takes a grant out, if it is still there. Sleeps.
    fn remove(&self, lease: &Lease) {
        let mut leases = self.leases.lock();
        let at = last(&leases, |other| core::ptr::eq(other, lease));
        let entry = at.and_then(|at| leases.remove(at).ok());
        drop(leases);
        if entry.is_some() {
            self.count.add(-1, Relaxed);
        }
    }

    /// Notes that `lease` has the key `rkey` now. Sleeps.
    fn rename(&self, lease: &Lease, rkey: u32) {
        let mut leases = self.leases.lock();
        let at = last(&leases, |other| core::ptr::eq(other, lease));
        if let Some((_, lease)) = at.and_then(|at| leases.remove(at).ok()) {
            let at = place(&leases, rkey);
            // There is room: one was just taken out.
            let _ = leases.insert_within_capacity(at, (rkey, lease));
        }
    }

    /// The number that a grant made now is given.
    fn epoch(&self) -> i32 {
        self.epoch.load(Relaxed)
    }

    /// Whether `lease` is to end.
    fn is_over(&self, lease: &Lease) -> bool {
        lease.epoch != self.epoch() || lease.state.load(Relaxed) != abi::GRANT_ACTIVE
    }

    /// The queue pair has ended: so do all its grants. Any context.
    pub(crate) fn end_all(self: &Arc<Self>) {
        // Who adds one meanwhile counts it and then looks at this; either sees the other.
        let _ = self.epoch.fetch_add(1, Full);
        if self.count.load(Relaxed) > 0 {
            self.kick();
        }
    }

    /// A receive of the queue pair says that the key `rkey` was used: it ends when it was for one
    /// use. Process context or softirq.
    pub(crate) fn used(self: &Arc<Self>, rkey: u32) {
        if self.count.load(Relaxed) == 0 {
            return;
        }
        let leases = self.leases.lock();
        let at = place(&leases, rkey);
        let is_one_shot = match leases.get(at) {
            Some((other, lease)) if *other == rkey && lease.one_shot => {
                // Unless it is to end already, for another reason.
                let _ = lease
                    .state
                    .cmpxchg(abi::GRANT_ACTIVE, abi::GRANT_USED, Relaxed);
                true
            }
            _ => false,
        };
        drop(leases);
        if is_one_shot {
            self.kick();
        }
    }

    /// Has what is to end ended. Any context.
    fn kick(self: &Arc<Self>) {
        // When it is in the queue already, it will see what was noted before.
        let _ = self.device.workqueue().enqueue(self.clone());
    }

    /// Takes out one that is to end, and that has a handle to be reported by.
    fn next(&self) -> Option<Arc<Lease>> {
        let mut leases = self.leases.lock();
        let at = last(&leases, |lease| {
            self.is_over(lease) && lease.handle.load(Relaxed) != 0
        })?;
        let entry = leases.remove(at).ok();
        drop(leases);
        let (_, lease) = entry?;
        self.count.add(-1, Relaxed);
        Some(lease)
    }
}

/// The place of the first one with the key `rkey` or a larger one; they are sorted.
fn place(leases: &[(u32, Arc<Lease>)], rkey: u32) -> usize {
    let (mut low, mut high) = (0usize, leases.len());
    while low < high {
        let middle = low.midpoint(high);
        match leases.get(middle) {
            Some((other, _)) if *other < rkey => low = middle.saturating_add(1),
            _ => high = middle,
        }
    }
    low
}

/// The place of the last one of which `test` holds.
fn last(leases: &[(u32, Arc<Lease>)], test: impl Fn(&Lease) -> bool) -> Option<usize> {
    let mut end = leases.len();
    while let Some(at) = end.checked_sub(1) {
        if leases.get(at).is_some_and(|(_, lease)| test(lease)) {
            return Some(at);
        }
        end = at;
    }
    None
}

impl WorkItem for Bonds {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let Ok(_alive) = this.device.enter() else {
            // Who takes the device away ends all grants.
            return;
        };
        while !this.device.is_gone() {
            let Some(lease) = this.next() else {
                break;
            };
            let _ = lease
                .state
                .cmpxchg(abi::GRANT_ACTIVE, abi::GRANT_EXPIRED, Relaxed);
            let Some(rkey) = lease.end() else {
                continue;
            };
            let (handle, reason) = (lease.handle.load(Relaxed), lease.state.load(Relaxed));
            trace::grant_end(this.events.file(), handle, rkey, reason);
            ulp_debug!(
                "file {}: grant {:#x} with key {:#x} has ended: {}\n",
                this.events.file(),
                handle,
                rkey,
                reason
            );
            this.events.raise(abi::EVENT_GRANT_ENDED, handle, reason);
        }
    }
}

/// What a grant is to be.
pub(crate) struct Terms {
    /// First byte.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) length: u64,
    /// `ACCESS_REMOTE_*`.
    pub(crate) access: u32,
    /// `GRANT_*`.
    pub(crate) flags: u32,
    /// The handle of its buffer.
    pub(crate) buffer: u32,
    /// The handle of its queue pair, or 0.
    pub(crate) qp: u32,
}

/// A grant of a file: while it lives and has not ended, its key opens its range.
pub(crate) struct GrantObject {
    lease: Arc<Lease>,
    bonds: Option<Arc<Bonds>>,
    terms: Terms,
    buffer: UseRef<BufferObject>,
}

impl GrantObject {
    /// Grants what `terms` say, which it makes smaller where they allow that. Sleeps.
    ///
    /// `access` are `ACCESS_REMOTE_*`, at least one, else [`EINVAL`]. [`EACCES`] when they write and
    /// the buffer is read-only. [`ERANGE`] when the range is
    /// empty, not inside, or more than goes under one key.
    pub(crate) fn new(
        buffer: UseRef<BufferObject>,
        net: &NetNs,
        bonds: Option<Arc<Bonds>>,
        mut terms: Terms,
    ) -> Result<Arc<Self>> {
        const REMOTE: u32 =
            abi::ACCESS_REMOTE_WRITE | abi::ACCESS_REMOTE_READ | abi::ACCESS_REMOTE_ATOMIC;
        if terms.access == 0 || terms.access & !REMOTE != 0 {
            return Err(EINVAL);
        }
        if buffer.is_read_only() && terms.access & !abi::ACCESS_REMOTE_READ != 0 {
            return Err(EACCES);
        }
        let end = terms.offset.checked_add(terms.length).ok_or(ERANGE)?;
        if terms.length == 0 || end > buffer.length() {
            return Err(ERANGE);
        }
        if terms.flags & abi::GRANT_PARTIAL != 0 {
            terms.length = terms.length.min(buffer.most_from(terms.offset));
        }
        // Before anything else: it ends when its queue pair does from here on.
        let epoch = bonds.as_ref().map_or(0, |bonds| bonds.epoch());
        let mr = register(&buffer, net, &terms)?;
        let rkey = mr.rkey();
        let lease = Lease::new(mr, terms.flags & abi::GRANT_ONE_SHOT != 0, epoch)?;
        if let Some(bonds) = &bonds {
            bonds.add(rkey, lease.clone())?;
        }
        // What is dropped when this fails takes the grant out again.
        let this = Self {
            lease,
            bonds,
            terms,
            buffer,
        };
        Ok(Arc::new(this, GFP_KERNEL_ACCOUNT)?)
    }

    /// Tells it its handle.
    pub(crate) fn set_handle(&self, handle: u32) {
        self.lease.handle.store(handle, Relaxed);
        if let Some(bonds) = &self.bonds {
            if bonds.is_over(&self.lease) {
                bonds.kick();
            }
        }
    }

    /// Address and key; [`None`] when it has ended. Sleeps.
    pub(crate) fn key(&self) -> Option<(u64, u32)> {
        let slot = self.lease.mr.lock();
        slot.as_ref().map(|mr| (mr.addr(), mr.rkey()))
    }

    /// Gives it another key, returns address and key. Sleeps.
    ///
    /// The old key is dead then; it lives when this fails. [`enotconn`] when the grant has ended, or
    /// is about to.
    pub(crate) fn rotate(&self, net: &NetNs) -> Result<(u64, u32)> {
        let mut slot = self.lease.mr.lock();
        let Some(old) = slot.as_ref().map(|mr| mr.rkey()) else {
            return Err(enotconn());
        };
        if self
            .bonds
            .as_ref()
            .is_some_and(|bonds| bonds.is_over(&self.lease))
        {
            return Err(enotconn());
        }
        let handle = self.lease.handle.load(Relaxed);
        let fresh = register(&self.buffer, net, &self.terms)
            .inspect_err(|err| trace::grant_rotate(handle, old, old, err.to_errno()))?;
        let (addr, rkey) = (fresh.addr(), fresh.rkey());
        if let Some(bonds) = &self.bonds {
            bonds.rename(&self.lease, rkey);
        }
        let dead = slot.replace(fresh);
        drop(dead);
        trace::grant_rotate(handle, old, rkey, 0);
        ulp_debug!(
            "grant {:#x}: key {:#x} instead of {:#x}\n",
            handle,
            rkey,
            old
        );
        Ok((addr, rkey))
    }

    /// Takes the key away for good. When it returns, nothing lands any more. Sleeps.
    pub(crate) fn end(&self) {
        if let Some(bonds) = &self.bonds {
            bonds.remove(&self.lease);
        }
        self.lease.end();
    }

    /// `GRANT_ACTIVE`, or why it has ended. Sleeps while it ends.
    pub(crate) fn state(&self) -> u32 {
        match self.key() {
            Some(_) => abi::GRANT_ACTIVE,
            None => self.lease.state.load(Relaxed),
        }
    }

    /// What it is.
    pub(crate) fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Address of its first byte.
    pub(crate) fn addr(&self) -> u64 {
        self.terms
            .offset
            .saturating_add(self.buffer.pages().lead() as u64)
    }
}

impl Drop for GrantObject {
    fn drop(&mut self) {
        self.end();
    }
}

/// Registers the range of `terms`. Sleeps.
fn register(buffer: &BufferObject, net: &NetNs, terms: &Terms) -> Result<Arc<Mr>> {
    let mut raw = 0;
    for (right, bits) in [
        (
            abi::ACCESS_REMOTE_WRITE,
            access::REMOTE_WRITE | access::LOCAL_WRITE,
        ),
        (abi::ACCESS_REMOTE_READ, access::REMOTE_READ),
        // Atomics write, which the verbs want to see said.
        (
            abi::ACCESS_REMOTE_ATOMIC,
            access::REMOTE_ATOMIC | access::LOCAL_WRITE,
        ),
    ] {
        if terms.access & right != 0 {
            raw |= bits;
        }
    }
    Mr::register(
        buffer.pd().registrar(net)?,
        buffer.pages().clone(),
        usize::try_from(terms.offset).map_err(|_| ERANGE)?,
        usize::try_from(terms.length).map_err(|_| ERANGE)?,
        raw,
    )
}

/// How many grants there are of `buffer`.
pub(crate) fn count_of(buffer: &BufferObject) -> u32 {
    buffer.use_count().count()
}
