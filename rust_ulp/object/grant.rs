// SPDX-License-Identifier: GPL-2.0

//! Grants: keys by which a peer may use a range of a buffer.
//!
//! A grant ends when it is destroyed. One that is bound to a queue pair ends with the queue pair,
//! and one for a single use ends with that use. A key is never used again: a responder that is
//! copying may still write to a region that was invalidated. So the region is deregistered, which
//! waits for the responder, and a new one is registered when needed.
//!
//! # How a bound grant ends
//!
//! Completions and events of a queue pair end its grants, in any context: they note that in its
//! [`QpGrants`] and queue its work. The work runs in process context inside the device's gate. It
//! revokes the keys one by one and reports them to the file. Another thread may destroy such a
//! grant at the same time. The lock of the key orders the two: the second one finds the key gone.

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

/// The key of a grant, without the objects that the grant uses.
#[pin_data]
pub(crate) struct RemoteKey {
    /// The registration, until it has ended.
    #[pin]
    mr: Mutex<Option<Arc<Mr>>>,
    /// The grant's handle; 0 before it has one.
    handle: Atomic<u32>,
    /// `GRANT_ACTIVE`, or the reason why it ends: `GRANT_USED` or `GRANT_EXPIRED`.
    state: Atomic<u32>,
    /// `GRANT_ONE_SHOT_*` and other flags.
    flags: u32,
    /// The value that the creator of the grant gave it.
    user_data: u64,
    /// The epoch of its [`QpGrants`] when it was created: it ends when the epoch changes.
    epoch: i32,
}

impl RemoteKey {
    fn new(mr: Arc<Mr>, attr: &GrantAttr, epoch: i32) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                mr <- new_mutex!(Some(mr), "rust_ulp::RemoteKey::mr"),
                handle: Atomic::new(0),
                state: Atomic::new(abi::GRANT_ACTIVE),
                flags: attr.flags,
                user_data: attr.user_data,
                epoch,
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Revokes the key. After it returns, the peer can access nothing by it. Sleeps.
    ///
    /// Returns the key; [`None`] when it was gone.
    fn end(&self) -> Option<u32> {
        let mut slot = self.mr.lock();
        let mr = slot.take()?;
        let rkey = mr.rkey();
        // With the lock held: a thread that finds the key gone may rely on that.
        drop(mr);
        Some(rkey)
    }
}

/// The grants that end with a queue pair.
#[pin_data]
pub(crate) struct QpGrants {
    /// Sorted by their keys.
    #[pin]
    keys: SpinLockBh<KVVec<(u32, Arc<RemoteKey>)>>,
    /// Held by threads that add to `keys`.
    #[pin]
    growing: Mutex<()>,
    /// Changes when all of them are to end.
    epoch: Atomic<i32>,
    /// The length of `keys`.
    count: Atomic<i32>,
    events: Arc<FileEvents>,
    device: Arc<Device>,
    #[pin]
    work: Work<Self>,
}

impl_has_work! {
    impl HasWork<Self> for QpGrants { self.work }
}

impl QpGrants {
    /// Makes an empty list for a queue pair on `device`, of the file with these events. Sleeps.
    pub(crate) fn new(events: Arc<FileEvents>, device: Arc<Device>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                keys <- new_spinlock_bh!(KVVec::new(), "rust_ulp::QpGrants::keys"),
                growing <- new_mutex!((), "rust_ulp::QpGrants::growing"),
                epoch: Atomic::new(0),
                count: Atomic::new(0),
                events,
                device,
                work <- new_work!("rust_ulp::QpGrants::work"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Adds a grant that has the key `rkey`. Sleeps.
    fn add(&self, rkey: u32, key: Arc<RemoteKey>) -> Result {
        let growing = self.growing.lock();
        let keys = self.keys.lock();
        let (len, room) = (keys.len(), keys.capacity());
        drop(keys);
        let mut larger = KVVec::new();
        if len == room {
            larger.reserve(len.saturating_mul(2).max(8), GFP_KERNEL_ACCOUNT)?;
        }
        let mut keys = self.keys.lock();
        // Another thread may have made it shorter, not longer.
        if larger.capacity() > keys.len() {
            for entry in keys.drain_all() {
                let _ = larger.push_within_capacity(entry);
            }
            core::mem::swap(&mut *keys, &mut larger);
        }
        let at = place(&keys, rkey);
        let added = keys.insert_within_capacity(at, (rkey, key)).is_ok();
        drop(keys);
        drop(growing);
        if !added {
            return Err(ENOMEM);
        }
        // Before `is_over` is asked: see `end_all`.
        let _ = self.count.fetch_add(1, Full);
        Ok(())
    }

    /// Removes a grant, if it is still there. Sleeps.
    fn remove(&self, key: &RemoteKey) {
        let mut keys = self.keys.lock();
        let at = last(&keys, |other| core::ptr::eq(other, key));
        let entry = at.and_then(|at| keys.remove(at).ok());
        drop(keys);
        if entry.is_some() {
            self.count.add(-1, Relaxed);
        }
    }

    /// Notes that `key` has the key `rkey` now. Sleeps.
    fn rename(&self, key: &RemoteKey, rkey: u32) {
        let mut keys = self.keys.lock();
        let at = last(&keys, |other| core::ptr::eq(other, key));
        if let Some((_, key)) = at.and_then(|at| keys.remove(at).ok()) {
            let at = place(&keys, rkey);
            // There is room: an entry was just removed.
            let _ = keys.insert_within_capacity(at, (rkey, key));
        }
    }

    /// Returns the epoch of a grant that is created now.
    fn epoch(&self) -> i32 {
        self.epoch.load(Relaxed)
    }

    /// Returns whether `key` is to end.
    fn is_over(&self, key: &RemoteKey) -> bool {
        key.epoch != self.epoch() || key.state.load(Relaxed) != abi::GRANT_ACTIVE
    }

    /// Ends all grants: the queue pair has ended. Any context.
    pub(crate) fn end_all(self: &Arc<Self>) {
        // A thread that adds a grant counts it and then loads this: one of the two sees the other.
        let _ = self.epoch.fetch_add(1, Full);
        if self.count.load(Relaxed) > 0 {
            self.kick();
        }
    }

    /// Ends the grant with the key `rkey` if it ends with a use of kind `how`, one of
    /// `GRANT_ONE_SHOT_*`, which a receive reports. Process context or softirq.
    pub(crate) fn used(self: &Arc<Self>, rkey: u32, how: u32) {
        if self.count.load(Relaxed) == 0 {
            return;
        }
        let keys = self.keys.lock();
        let at = place(&keys, rkey);
        let is_one_shot = match keys.get(at) {
            Some((other, key)) if *other == rkey && key.flags & how != 0 => {
                // Unless it is to end already, for another reason.
                let _ = key
                    .state
                    .cmpxchg(abi::GRANT_ACTIVE, abi::GRANT_USED, Relaxed);
                true
            }
            _ => false,
        };
        drop(keys);
        if is_one_shot {
            self.kick();
        }
    }

    /// Queues the work that ends grants. Any context.
    fn kick(self: &Arc<Self>) {
        // Work that is queued already will see what was noted before.
        let _ = self.device.workqueue().enqueue(self.clone());
    }

    /// Removes a grant that is to end and has a handle, by which it is reported.
    fn next(&self) -> Option<Arc<RemoteKey>> {
        let mut keys = self.keys.lock();
        let at = last(&keys, |key| {
            self.is_over(key) && key.handle.load(Relaxed) != 0
        })?;
        let entry = keys.remove(at).ok();
        drop(keys);
        let (_, key) = entry?;
        self.count.add(-1, Relaxed);
        Some(key)
    }
}

/// Returns the place of the first entry whose key is at least `rkey`.
fn place(keys: &[(u32, Arc<RemoteKey>)], rkey: u32) -> usize {
    let (mut low, mut high) = (0usize, keys.len());
    while low < high {
        let middle = low.midpoint(high);
        match keys.get(middle) {
            Some((other, _)) if *other < rkey => low = middle.saturating_add(1),
            _ => high = middle,
        }
    }
    low
}

/// Returns the place of the last entry for which `test` holds.
fn last(keys: &[(u32, Arc<RemoteKey>)], test: impl Fn(&RemoteKey) -> bool) -> Option<usize> {
    let mut end = keys.len();
    while let Some(at) = end.checked_sub(1) {
        if keys.get(at).is_some_and(|(_, key)| test(key)) {
            return Some(at);
        }
        end = at;
    }
    None
}

impl WorkItem for QpGrants {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let Ok(_alive) = this.device.enter() else {
            // The removal of the device ends all grants.
            return;
        };
        while !this.device.is_gone() {
            let Some(key) = this.next() else {
                break;
            };
            let _ = key
                .state
                .cmpxchg(abi::GRANT_ACTIVE, abi::GRANT_EXPIRED, Relaxed);
            let Some(rkey) = key.end() else {
                continue;
            };
            let (handle, reason) = (key.handle.load(Relaxed), key.state.load(Relaxed));
            trace::grant_end(this.events.file(), handle, rkey, reason);
            ulp_debug!(
                "file {}: grant {:#x} with key {:#x} has ended: {}\n",
                this.events.file(),
                handle,
                rkey,
                reason
            );
            this.events
                .raise(abi::EVENT_GRANT_ENDED, handle, key.user_data, reason);
        }
    }
}

/// The attributes of a grant.
pub(crate) struct GrantAttr {
    /// The offset of its first byte.
    pub(crate) offset: u64,
    /// Its length in bytes.
    pub(crate) length: u64,
    /// `ACCESS_REMOTE_*`.
    pub(crate) access: u32,
    /// `GRANT_*`.
    pub(crate) flags: u32,
    /// The handle of its buffer.
    pub(crate) buffer: u32,
    /// The handle of its queue pair, or 0.
    pub(crate) qp: u32,
    /// The value for its events.
    pub(crate) user_data: u64,
}

/// A grant of a file.
pub(crate) struct GrantObject {
    key: Arc<RemoteKey>,
    grants: Option<Arc<QpGrants>>,
    attr: GrantAttr,
    buffer: UseRef<BufferObject>,
}

impl GrantObject {
    /// Creates a grant with `attr`, shortened where its flags allow that. Sleeps.
    ///
    /// `access` are `ACCESS_REMOTE_*`, at least one, else [`EINVAL`]. [`EACCES`] when they write
    /// and the buffer is read-only. [`ERANGE`] when the range is empty, not inside, or more than
    /// goes under one key.
    pub(crate) fn new(
        buffer: UseRef<BufferObject>,
        net: &NetNs,
        grants: Option<Arc<QpGrants>>,
        mut attr: GrantAttr,
    ) -> Result<Arc<Self>> {
        const REMOTE: u32 =
            abi::ACCESS_REMOTE_WRITE | abi::ACCESS_REMOTE_READ | abi::ACCESS_REMOTE_ATOMIC;
        if attr.access == 0 || attr.access & !REMOTE != 0 {
            return Err(EINVAL);
        }
        if buffer.is_read_only() && attr.access & !abi::ACCESS_REMOTE_READ != 0 {
            return Err(EACCES);
        }
        let end = attr.offset.checked_add(attr.length).ok_or(ERANGE)?;
        if attr.length == 0 || end > buffer.length() {
            return Err(ERANGE);
        }
        if attr.flags & abi::GRANT_PARTIAL != 0 {
            attr.length = attr.length.min(buffer.most_from(attr.offset));
        }
        // First: from here on the end of the queue pair ends the grant.
        let epoch = grants.as_ref().map_or(0, |grants| grants.epoch());
        let mr = register(&buffer, net, &attr)?;
        let rkey = mr.rkey();
        let key = RemoteKey::new(mr, &attr, epoch)?;
        if let Some(grants) = &grants {
            grants.add(rkey, key.clone())?;
        }
        // When this fails, dropping the value removes the grant.
        let this = Self {
            key,
            grants,
            attr,
            buffer,
        };
        Ok(Arc::new(this, GFP_KERNEL_ACCOUNT)?)
    }

    /// Sets its handle, and ends the grant if its queue pair has ended since.
    pub(crate) fn set_handle(&self, handle: u32) {
        // A full barrier before `is_over` loads the epoch: `end_all` changes the epoch before the
        // work looks for a handle, so one of the two sees the other.
        let _ = self.key.handle.xchg(handle, Full);
        if let Some(grants) = &self.grants {
            if grants.is_over(&self.key) {
                grants.kick();
            }
        }
    }

    /// Returns address and key; [`None`] when it has ended. Sleeps.
    pub(crate) fn key(&self) -> Option<(u64, u32)> {
        let slot = self.key.mr.lock();
        slot.as_ref().map(|mr| (mr.addr(), mr.rkey()))
    }

    /// Replaces the key, and returns address and new key. Sleeps.
    ///
    /// The old key is dead then; it lives when this fails. [`enotconn`] when the grant has ended,
    /// or is about to.
    pub(crate) fn rotate(&self, net: &NetNs) -> Result<(u64, u32)> {
        let mut slot = self.key.mr.lock();
        let Some(old) = slot.as_ref().map(|mr| mr.rkey()) else {
            return Err(enotconn());
        };
        if self
            .grants
            .as_ref()
            .is_some_and(|grants| grants.is_over(&self.key))
        {
            return Err(enotconn());
        }
        let handle = self.key.handle.load(Relaxed);
        let fresh = register(&self.buffer, net, &self.attr)
            .inspect_err(|err| trace::grant_rotate(handle, old, old, err.to_errno()))?;
        let (addr, rkey) = (fresh.addr(), fresh.rkey());
        if let Some(grants) = &self.grants {
            grants.rename(&self.key, rkey);
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

    /// Revokes the key for good. After it returns, the peer can access nothing by it. Sleeps.
    pub(crate) fn end(&self) {
        if let Some(grants) = &self.grants {
            grants.remove(&self.key);
        }
        self.key.end();
    }

    /// Returns `GRANT_ACTIVE`, or why it has ended. Sleeps while it ends.
    pub(crate) fn state(&self) -> u32 {
        match self.key() {
            Some(_) => abi::GRANT_ACTIVE,
            None => self.key.state.load(Relaxed),
        }
    }

    /// Returns its attributes.
    pub(crate) fn attr(&self) -> &GrantAttr {
        &self.attr
    }

    /// Returns the address of its first byte.
    pub(crate) fn addr(&self) -> u64 {
        self.attr
            .offset
            .saturating_add(self.buffer.pages().lead() as u64)
    }
}

impl Drop for GrantObject {
    fn drop(&mut self) {
        self.end();
    }
}

/// Registers the range of `attr`. Sleeps.
fn register(buffer: &BufferObject, net: &NetNs, attr: &GrantAttr) -> Result<Arc<Mr>> {
    let mut raw = 0;
    for (right, bits) in [
        (
            abi::ACCESS_REMOTE_WRITE,
            access::REMOTE_WRITE | access::LOCAL_WRITE,
        ),
        (abi::ACCESS_REMOTE_READ, access::REMOTE_READ),
        // The verbs require the right to write for atomics.
        (
            abi::ACCESS_REMOTE_ATOMIC,
            access::REMOTE_ATOMIC | access::LOCAL_WRITE,
        ),
    ] {
        if attr.access & right != 0 {
            raw |= bits;
        }
    }
    Mr::register(
        buffer.pd().fast_reg(net)?,
        buffer.pages().clone(),
        usize::try_from(attr.offset).map_err(|_| ERANGE)?,
        usize::try_from(attr.length).map_err(|_| ERANGE)?,
        raw,
    )
}

/// Returns the number of grants of `buffer`.
pub(crate) fn count_of(buffer: &BufferObject) -> u32 {
    buffer.use_count().count()
}
