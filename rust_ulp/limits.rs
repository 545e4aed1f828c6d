// SPDX-License-Identifier: GPL-2.0

//! The limits that hold for every device, user and file, and the module parameters.

use crate::{
    ext::{
        errno::edquot,
        task, //
    },
    logic::handle::MAX_OBJECTS,
    uapi::abi, //
};
use kernel::{
    new_mutex,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    sync::{
        Arc,
        Mutex, //
    }, //
};

/// Maximum requests in one queue.
pub(crate) const MAX_QUEUE_DEPTH: u32 = 1 << 14;

/// Maximum elements of a request.
pub(crate) const MAX_SGE: u32 = 16;

/// Maximum inline bytes of a request.
pub(crate) const MAX_INLINE: u32 = 512;

/// Maximum requests of one SUBMIT.
pub(crate) const MAX_BATCH: u32 = 1024;

/// Maximum bytes of a message: IBA 9.4.1.
pub(crate) const MAX_MESSAGE: u64 = 1 << 31;

/// Maximum entries of a completion ring.
pub(crate) const MAX_CQ_ENTRIES: u32 = 1 << 15;

/// Maximum time that a thread polls before it sleeps, in microseconds.
pub(crate) const MAX_BUSY_POLL_US: u32 = 10_000;

/// Maximum bytes of a buffer: 1 GiB. A device may allow less.
pub(crate) const MAX_BUFFER: u64 = 1 << 30;

/// Maximum pending requests of a listener.
pub(crate) const MAX_BACKLOG: u32 = 1024;

/// The rights that a peer can have.
pub(crate) const REMOTE_ACCESS: u32 =
    abi::ACCESS_REMOTE_WRITE | abi::ACCESS_REMOTE_READ | abi::ACCESS_REMOTE_ATOMIC;

/// The module parameters. They do not change while the module is loaded.
#[derive(Clone, Copy)]
pub(crate) struct Parameters {
    /// Maximum objects of one open file.
    pub(crate) max_objects: u32,
    /// Maximum entries of all queues of one open file together.
    pub(crate) max_entries: u32,
    /// Maximum objects of all open files of one user together.
    pub(crate) max_user_objects: u32,
    /// Maximum KiB that drivers may allocate for all queues and keys of one user together, as
    /// estimated.
    pub(crate) max_user_queues: u32,
    /// The context that delivers completions by default: `DELIVER_WORKQUEUE` or `DELIVER_SOFTIRQ`.
    pub(crate) delivery: u32,
    /// 1 when every process may choose delivery by softirq.
    pub(crate) user_softirq: u32,
    /// 1 when every process may choose the completion vector.
    pub(crate) user_vector: u32,
}

impl Parameters {
    /// Checks the parameters. Logs an error and returns [`EINVAL`] if one is out of range.
    pub(crate) fn check(self) -> Result<Self> {
        let delivery = abi::DELIVER_WORKQUEUE..=abi::DELIVER_SOFTIRQ;
        if (1..=MAX_OBJECTS).contains(&self.max_objects)
            && delivery.contains(&self.delivery)
            && self.max_entries != 0
            && self.user_softirq.max(self.user_vector) <= 1
        {
            return Ok(self);
        }
        pr_err!(
            "max_objects must be 1 to 65536, max_entries at least 1, delivery 1 or 2, user_softirq and user_vector 0 or 1\n"
        );
        Err(EINVAL)
    }
}

/// What a user has in all open files together.
#[derive(Clone, Copy, Default)]
struct Usage {
    objects: u64,
    /// The bytes of the queues and of the tables of keys.
    bytes: u64,
}

/// The users that have something: users as the machine's owner sees them, see [`task::payer`].
#[pin_data]
pub(crate) struct Users {
    max: Usage,
    /// By the numbers of their `kuid_t`. No lock is taken under it.
    #[pin]
    list: Mutex<RBTree<u32, Usage>>,
}

impl Users {
    /// Makes an empty list, with the limits of `parameters`. Sleeps.
    pub(crate) fn new(parameters: &Parameters) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                max: Usage {
                    objects: parameters.max_user_objects.into(),
                    bytes: u64::from(parameters.max_user_queues).saturating_mul(1024),
                },
                list <- new_mutex!(RBTree::new(), "rust_ulp::Users::list"),
            }),
            GFP_KERNEL,
        )
    }

    /// Charges so many objects, and so many bytes of queues and key tables, to the user who pays for
    /// the current process. Sleeps.
    ///
    /// Returns [`edquot`] when that is more than the user may have. A process with
    /// `CAP_SYS_RESOURCE` has no limit, and its user is not charged.
    pub(crate) fn charge(self: &Arc<Self>, objects: u32, bytes: u64) -> Result<UserCharge> {
        let usage = Usage {
            objects: objects.into(),
            bytes,
        };
        let uid = (!task::may_exceed_limits()).then(task::payer);
        self.charge_user(uid, usage)
    }

    /// Charges `usage` to user `uid`, to nobody with [`None`]. Otherwise as [`Self::charge`].
    fn charge_user(self: &Arc<Self>, uid: Option<u32>, usage: Usage) -> Result<UserCharge> {
        if let Some(uid) = uid {
            // Before the lock, under which nobody waits for memory of one user's cgroup.
            let node = RBTreeNode::new(uid, usage, GFP_KERNEL_ACCOUNT)?;
            let mut list = self.list.lock();
            let had = list.get(&uid).copied().unwrap_or_default();
            let sum = Usage {
                objects: had.objects.saturating_add(usage.objects),
                bytes: had.bytes.saturating_add(usage.bytes),
            };
            if sum.objects > self.max.objects || sum.bytes > self.max.bytes {
                return Err(edquot());
            }
            match list.get_mut(&uid) {
                Some(user) => *user = sum,
                None => {
                    list.insert(node);
                }
            }
        }
        Ok(UserCharge {
            users: self.clone(),
            uid,
            usage,
        })
    }
}

/// The charge of a user, given back when it is dropped. Dropping it sleeps.
pub(crate) struct UserCharge {
    users: Arc<Users>,
    /// The user that was charged; [`None`] with `CAP_SYS_RESOURCE`.
    uid: Option<u32>,
    usage: Usage,
}

impl Drop for UserCharge {
    fn drop(&mut self) {
        let Some(uid) = self.uid else {
            return;
        };
        let mut list = self.users.list.lock();
        let Some(user) = list.get_mut(&uid) else {
            return;
        };
        user.objects = user.objects.saturating_sub(self.usage.objects);
        user.bytes = user.bytes.saturating_sub(self.usage.bytes);
        if (user.objects, user.bytes) == (0, 0) {
            list.remove(&uid);
        }
    }
}

#[kunit_tests(rust_ulp_limits)]
mod tests {
    use super::*;

    #[test]
    fn a_user_without_charges_leaves_the_list() -> Result {
        let users = Users::new(&Parameters {
            max_objects: 1,
            max_entries: 1,
            max_user_objects: 3,
            max_user_queues: 1,
            delivery: 1,
            user_softirq: 0,
            user_vector: 1,
        })?;
        let charge = |uid, objects, bytes| users.charge_user(uid, Usage { objects, bytes });
        let first = charge(Some(7), 2, 1000)?;
        assert_eq!(charge(Some(7), 2, 0).err(), Some(edquot()));
        assert_eq!(charge(Some(7), 0, 25).err(), Some(edquot()));
        assert_eq!(charge(Some(7), 0, u64::MAX).err(), Some(edquot()));
        let second = charge(Some(7), 1, 24)?;
        let other = charge(Some(8), 3, 0)?;
        let _nobody = charge(None, 4, 2000)?;
        assert_eq!(users.list.lock().keys().count(), 2);
        drop(first);
        let left = users.list.lock().get(&7).copied().unwrap_or_default();
        assert_eq!((left.objects, left.bytes), (1, 24));
        drop(other);
        drop(second);
        assert!(users.list.lock().is_empty());
        Ok(())
    }
}
