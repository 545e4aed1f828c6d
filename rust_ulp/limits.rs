// SPDX-License-Identifier: GPL-2.0

//! The limits that hold for every device, user and file, and the module parameters.

use crate::{
    kernel::{
        errno::edquot,
        task, //
    },
    logic::handle::MAX_OBJECTS,
    uapi::abi, //
};
use kernel::{
    new_mutex,
    prelude::*,
    rbtree::RBTree,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
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

/// Maximum entries of a completion ring, which is one chunk of pages.
pub(crate) const MAX_CQ_ENTRIES: u32 = 1 << 15;

/// Maximum time that a thread spins before it sleeps, in microseconds.
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

/// A user as the machine's owner sees him, see [`task::payer`]. His objects count together whatever
/// file they are in.
struct User {
    objects: Atomic<i64>,
    /// The bytes of the queues and of the tables of keys.
    bytes: Atomic<i64>,
}

impl User {
    /// Returns whether the user has nothing.
    fn is_idle(&self) -> bool {
        self.objects.load(Relaxed) == 0 && self.bytes.load(Relaxed) == 0
    }
}

/// Users, by the numbers of their `kuid_t`.
struct UserTree {
    tree: RBTree<u32, Arc<User>>,
    /// The number from which on the next search for idle users begins.
    next: u32,
}

impl UserTree {
    /// Returns user `uid`, and adds it if the tree lacks it.
    ///
    /// Each time that it adds a user, it checks two others and removes them if they are idle. So
    /// after a while at most every second user is idle.
    fn get(&mut self, uid: u32) -> Result<Arc<User>> {
        if let Some(user) = self.tree.get(&uid) {
            return Ok(user.clone());
        }
        for _ in 0..2 {
            let Some((at, is_idle)) = self.tree.cursor_lower_bound(&self.next).map(|at| {
                let (uid, user) = at.current();
                (*uid, user.is_idle())
            }) else {
                self.next = 0;
                continue;
            };
            if is_idle {
                // Nobody else has a charge for such a user, and none is added without the lock.
                drop(self.tree.remove_node(&at));
            }
            self.next = at.wrapping_add(1);
        }
        let user = User {
            objects: Atomic::new(0),
            bytes: Atomic::new(0),
        };
        let user = Arc::new(user, GFP_KERNEL_ACCOUNT)?;
        let _ = self
            .tree
            .try_create_and_insert(uid, user.clone(), GFP_KERNEL_ACCOUNT)?;
        Ok(user)
    }
}

/// The users that have something.
#[pin_data]
pub(crate) struct Users {
    max_objects: u32,
    max_bytes: u64,
    /// Counts grow with this lock held only. Nothing is taken under it.
    #[pin]
    list: Mutex<UserTree>,
}

impl Users {
    /// Makes an empty list, with the limits of `parameters`. Sleeps.
    pub(crate) fn new(parameters: &Parameters) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                max_objects: parameters.max_user_objects,
                max_bytes: u64::from(parameters.max_user_queues).saturating_mul(1024),
                list <- new_mutex!(
                    UserTree { tree: RBTree::new(), next: 0 },
                    "rust_ulp::Users::list"
                ),
            }),
            GFP_KERNEL,
        )
    }

    /// Charges so many objects, and so many bytes of queues and key tables, to the user who pays for
    /// the current process. Sleeps.
    ///
    /// Returns [`edquot`] when that is more than the user may have. A process with
    /// `CAP_SYS_RESOURCE` has no limit, and its user is not charged.
    pub(crate) fn charge(&self, objects: u32, bytes: u64) -> Result<UserCharge> {
        let mut charge = UserCharge {
            user: None,
            objects: objects.into(),
            bytes: i64::try_from(bytes).map_err(|_| edquot())?,
        };
        if task::may_exceed_limits() {
            return Ok(charge);
        }
        let mut list = self.list.lock();
        let user = list.get(task::payer())?;
        let fits = |used: &Atomic<i64>, more: i64, limit: u64| {
            u64::try_from(used.load(Relaxed).saturating_add(more)).is_ok_and(|sum| sum <= limit)
        };
        if !fits(&user.objects, charge.objects, self.max_objects.into())
            || !fits(&user.bytes, charge.bytes, self.max_bytes)
        {
            return Err(edquot());
        }
        user.objects.add(charge.objects, Relaxed);
        user.bytes.add(charge.bytes, Relaxed);
        charge.user = Some(user);
        Ok(charge)
    }
}

/// The charge of a user, given back when it is dropped. Any context.
pub(crate) struct UserCharge {
    /// The user that was charged; [`None`] with `CAP_SYS_RESOURCE`.
    user: Option<Arc<User>>,
    objects: i64,
    bytes: i64,
}

impl Drop for UserCharge {
    fn drop(&mut self) {
        if let Some(user) = &self.user {
            user.objects.add(self.objects.wrapping_neg(), Relaxed);
            user.bytes.add(self.bytes.wrapping_neg(), Relaxed);
        }
    }
}

#[kunit_tests(rust_ulp_limits)]
mod tests {
    use super::*;

    #[test]
    fn idle_users_go_and_others_stay() -> Result {
        let mut users = UserTree {
            tree: RBTree::new(),
            next: 0,
        };
        for uid in 0..1000u32 {
            let user = users.get(uid)?;
            user.bytes.store((uid % 10 == 0).into(), Relaxed);
        }
        let busy = |users: &UserTree| users.tree.values().filter(|user| !user.is_idle()).count();
        assert_eq!(busy(&users), 100);
        // The walk comes round within so many, and finds the idle ones.
        for uid in 1000..2000u32 {
            let _ = users.get(uid)?;
        }
        assert_eq!(busy(&users), 100);
        assert!(users.tree.keys().count() < 400);
        let again = users.get(500)?;
        assert_eq!(again.bytes.load(Relaxed), 1);
        Ok(())
    }
}
