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
    ext::{
        errno::eopnotsupp,
        lock::{
            new_spinlock_bh,
            SpinLockBh, //
        }, //
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
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
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
    /// The registration, until it has ended. Lock order: before the locks of `rdma`. Held while
    /// the key is revoked.
    #[pin]
    mr: Mutex<Option<Mr>>,
    /// By which its [`QpGrants`] has it.
    rkey: u32,
    /// The address of its first byte.
    addr: u64,
    /// The grant's handle; 0 before it has one.
    handle: Atomic<u32>,
    /// `GRANT_ACTIVE`, or the reason why it ends: `GRANT_USED` or `GRANT_EXPIRED`.
    state: Atomic<u32>,
    /// `GRANT_*`.
    flags: u32,
    /// The value that the creator of the grant gave it.
    user_data: u64,
    /// The epoch of its [`QpGrants`] when it was created: it ends when the epoch changes.
    epoch: i32,
}

impl RemoteKey {
    fn new(mr: Mr, attr: &GrantAttr, epoch: i32) -> Result<Arc<Self>> {
        let (rkey, addr) = (mr.rkey(), mr.addr());
        Arc::pin_init(
            pin_init!(Self {
                rkey,
                addr,
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
    /// Returns the key; [`None`] when it was gone. Fails with [`EIO`] when the driver refuses: the
    /// key stays valid.
    fn end(&self) -> Result<Option<u32>> {
        let mut slot = self.mr.lock();
        let Some(mr) = slot.as_ref() else {
            return Ok(None);
        };
        mr.revoke()?;
        let rkey = mr.rkey();
        // With the lock held: a thread that finds the key gone may rely on that.
        *slot = None;
        Ok(Some(rkey))
    }
}

/// Grants by their keys. Every grant in it is registered, so no two have the same key. A grant that
/// is not in it may have the key of one that is: drivers give a number again at once
/// (drivers/infiniband/hw/hns/hns_roce_mr.c:alloc_mr_key,
/// drivers/net/ethernet/qlogic/qed/qed_rdma.c:qed_rdma_bmap_alloc_id).
type Keys = RBTree<u32, Arc<RemoteKey>>;

/// Returns whether `keys` has `key`, and not another grant with its number.
fn has(keys: &Keys, key: &RemoteKey) -> bool {
    let found = keys.get(&key.rkey);
    found.is_some_and(|found| core::ptr::eq::<RemoteKey>(&**found, key))
}

/// The grants of a queue pair.
struct Sets {
    live: Keys,
    /// Those that are to end for themselves: the others are found by their epoch.
    ended: Keys,
}

impl Sets {
    fn live(&mut self) -> &mut Keys {
        &mut self.live
    }

    fn ended(&mut self) -> &mut Keys {
        &mut self.ended
    }

    /// Moves the grant with the key `rkey` to those that are to end.
    fn end(&mut self, rkey: u32) {
        if let Some(node) = self.live.remove_node(&rkey) {
            // Nothing is replaced: a key is in one of the two.
            let _ = self.ended.insert(node);
        }
    }
}

/// How many grants are looked at while the lock is held.
const STRIDE: usize = 32;

/// The grants that end with a queue pair.
#[pin_data]
pub(crate) struct QpGrants {
    /// Held for a search by key, or for [`STRIDE`] of them. Lock order: after
    /// `rdma::Queue::lists`, before `FileEvents::log`.
    #[pin]
    keys: SpinLockBh<Sets>,
    /// Changes when all of them are to end.
    epoch: Atomic<i32>,
    /// The epoch for which the work has looked at all grants. Only the work uses it.
    seen: Atomic<i32>,
    /// The number of grants.
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
                keys <- new_spinlock_bh!(
                    Sets { live: RBTree::new(), ended: RBTree::new() },
                    "rust_ulp::QpGrants::keys"
                ),
                epoch: Atomic::new(0),
                seen: Atomic::new(0),
                count: Atomic::new(0),
                events,
                device,
                work <- new_work!("rust_ulp::QpGrants::work"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Adds a grant. Sleeps.
    fn add(&self, key: Arc<RemoteKey>) -> Result {
        let node = RBTreeNode::new(key.rkey, key, GFP_KERNEL_ACCOUNT)?;
        let _ = self.keys.lock().live.insert(node);
        // Before `is_over` is asked: see `end_all`.
        let _ = self.count.fetch_add(1, Full);
        Ok(())
    }

    /// Removes a grant, and returns whether it was still there. Sleeps.
    fn remove(&self, key: &RemoteKey) -> bool {
        let mut sets = self.keys.lock();
        let node = if has(&sets.live, key) {
            sets.live.remove_node(&key.rkey)
        } else if has(&sets.ended, key) {
            sets.ended.remove_node(&key.rkey)
        } else {
            None
        };
        drop(sets);
        if node.is_some() {
            self.count.add(-1, Relaxed);
        }
        node.is_some()
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
            self.queue_work();
        }
    }

    /// Ends the grant with the key `rkey`, which a receive has invalidated, if it is for a single
    /// use. Process context or softirq.
    pub(crate) fn used(self: &Arc<Self>, rkey: u32) {
        if self.count.load(Relaxed) == 0 {
            return;
        }
        let mut keys = self.keys.lock();
        let is_one_shot = match keys.live.get(&rkey) {
            Some(key) if key.flags & abi::GRANT_ONE_SHOT_INV != 0 => {
                // Unless it is to end already, for another reason.
                let _ = key
                    .state
                    .cmpxchg(abi::GRANT_ACTIVE, abi::GRANT_USED, Relaxed);
                keys.end(rkey);
                true
            }
            _ => false,
        };
        drop(keys);
        if is_one_shot {
            self.queue_work();
        }
    }

    /// Has the work end `key`, which is over. Sleeps.
    fn end(self: &Arc<Self>, key: &RemoteKey) {
        let mut sets = self.keys.lock();
        if has(&sets.live, key) {
            sets.end(key.rkey);
        }
        drop(sets);
        self.queue_work();
    }

    /// Queues the work that ends grants. Any context.
    fn queue_work(self: &Arc<Self>) {
        // Work that is queued already will see what was noted before.
        let _ = self.device.workqueue().enqueue(self.clone());
    }

    /// Removes the first grant of a set that is to end and has a handle, by which it is reported.
    ///
    /// Looks at the keys from `from` on, and sets it to where to go on.
    fn next(
        &self,
        set: impl Fn(&mut Sets) -> &mut Keys,
        from: &mut Option<u32>,
    ) -> Option<Arc<RemoteKey>> {
        while from.is_some() {
            let mut sets = self.keys.lock();
            let keys = set(&mut sets);
            for _ in 0..STRIDE {
                let Some(at) = from.and_then(|from| keys.cursor_lower_bound(&from)) else {
                    *from = None;
                    break;
                };
                let (&rkey, key) = at.current();
                *from = rkey.checked_add(1);
                if self.is_over(key) && key.handle.load(Relaxed) != 0 {
                    let node = keys.remove_node(&rkey);
                    drop(sets);
                    self.count.add(-1, Relaxed);
                    return node.map(|node| node.to_key_value().1);
                }
            }
        }
        None
    }

    /// Revokes the keys of the grants of a set that are to end, and reports them. A grant whose key
    /// the driver does not revoke stays active, and is not looked at again. Sleeps.
    fn end_over(&self, set: impl Fn(&mut Sets) -> &mut Keys) {
        let mut from = Some(0);
        while !self.device.is_gone() {
            let Some(key) = self.next(&set, &mut from) else {
                break;
            };
            let _ = key
                .state
                .cmpxchg(abi::GRANT_ACTIVE, abi::GRANT_EXPIRED, Relaxed);
            let Ok(Some(rkey)) = key.end() else {
                continue;
            };
            let (handle, reason) = (key.handle.load(Relaxed), key.state.load(Relaxed));
            trace::grant_end(self.events.file(), handle, rkey, reason);
            ulp_debug!(
                "file {}: grant {:#x} with key {:#x} has ended: {}\n",
                self.events.file(),
                handle,
                rkey,
                reason
            );
            self.events
                .raise(abi::EVENT_GRANT_ENDED, handle, key.user_data, reason);
        }
    }
}

impl WorkItem for QpGrants {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let Ok(_guard) = this.device.enter() else {
            // The removal of the device ends all grants.
            return;
        };
        this.end_over(Sets::ended);
        // A grant that has no handle now ends for itself when it gets one: see `set_handle`.
        let epoch = this.epoch();
        if this.seen.load(Relaxed) != epoch {
            this.seen.store(epoch, Relaxed);
            this.end_over(Sets::live);
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
    /// Returns [`EINVAL`] unless `access` is one or several of `ACCESS_REMOTE_*`, [`EACCES`] when
    /// it allows writing and the buffer is read-only, [`ERANGE`] when the range is empty, not
    /// inside, or too long for one key, and [`eopnotsupp`] when it allows atomics and the driver
    /// does not grant them.
    pub(crate) fn new(
        buffer: UseRef<BufferObject>,
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
        if attr.access & abi::ACCESS_REMOTE_ATOMIC != 0
            && !buffer.pd().pd().device().grants_atomics()
        {
            return Err(eopnotsupp());
        }
        if attr.flags & abi::GRANT_PARTIAL != 0 {
            attr.length = attr.length.min(buffer.most_from(attr.offset));
        }
        // First: from here on the end of the queue pair ends the grant.
        let epoch = grants.as_ref().map_or(0, |grants| grants.epoch());
        let mr = register(&buffer, &attr)?;
        let key = RemoteKey::new(mr, &attr, epoch)?;
        if let Some(grants) = &grants {
            grants.add(key.clone())?;
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
        self.end_if_over();
    }

    /// Has the work end the grant if its queue pair has ended, or it was used. Sleeps.
    fn end_if_over(&self) {
        if let Some(grants) = &self.grants {
            if grants.is_over(&self.key) {
                grants.end(&self.key);
            }
        }
    }

    /// Returns the key; [`None`] when it has ended. Sleeps.
    pub(crate) fn key(&self) -> Option<u32> {
        self.key.mr.lock().as_ref().map(Mr::rkey)
    }

    /// Revokes the key. After it returns, the peer can access nothing by it. Sleeps.
    ///
    /// Fails with [`EIO`] when the driver refuses: the grant stays as it was.
    pub(crate) fn end(&self) -> Result {
        let removed = match &self.grants {
            Some(grants) => grants.remove(&self.key),
            None => false,
        };
        let result = self.key.end().map(|_| ());
        if let (Err(_), Some(grants), true) = (&result, &self.grants, removed) {
            // Without memory for that, it no longer ends with its queue pair.
            if grants.add(self.key.clone()).is_ok() {
                self.end_if_over();
            }
        }
        result
    }

    /// Lets others destroy its buffer, whoever else has a reference to the grant.
    pub(crate) fn release(&self) {
        self.buffer.release();
    }

    /// Returns `GRANT_ACTIVE` and the key, or why it has ended and 0. Sleeps while it ends.
    pub(crate) fn state(&self) -> (u32, u32) {
        match self.key() {
            Some(rkey) => (abi::GRANT_ACTIVE, rkey),
            None => (self.key.state.load(Relaxed), 0),
        }
    }

    /// Returns the number of entries of its region's table of pages; [`None`] when it has ended.
    /// Sleeps.
    pub(crate) fn table_entries(&self) -> Option<u32> {
        self.key.mr.lock().as_ref().map(Mr::table_entries)
    }

    /// Returns its attributes.
    pub(crate) fn attr(&self) -> &GrantAttr {
        &self.attr
    }

    /// Returns the address of its first byte, by which peers reach it.
    pub(crate) fn addr(&self) -> u64 {
        self.key.addr
    }
}

impl Drop for GrantObject {
    fn drop(&mut self) {
        if let Some(grants) = &self.grants {
            let _ = grants.remove(&self.key);
        }
        // The memory is leaked if the driver refuses.
        let _ = self.key.end();
    }
}

/// Registers the range of `attr`. Sleeps.
fn register(buffer: &BufferObject, attr: &GrantAttr) -> Result<Mr> {
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
        buffer.pd().fast_reg()?,
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
