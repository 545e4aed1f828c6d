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
    current,
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    },
    task::Kuid, //
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
    /// Maximum entries of all queues of one user together.
    pub(crate) max_user_entries: u32,
    /// The context that delivers completions by default: `DELIVER_WORKQUEUE` or `DELIVER_SOFTIRQ`.
    pub(crate) delivery: u32,
    /// 1 when every process may choose delivery by softirq.
    pub(crate) user_softirq: u32,
}

impl Parameters {
    /// Checks the parameters. Logs an error and returns [`EINVAL`] if one is out of range.
    pub(crate) fn check(self) -> Result<Self> {
        let delivery = abi::DELIVER_WORKQUEUE..=abi::DELIVER_SOFTIRQ;
        if (1..=MAX_OBJECTS).contains(&self.max_objects)
            && delivery.contains(&self.delivery)
            && self.max_entries != 0
            && self.user_softirq <= 1
        {
            return Ok(self);
        }
        pr_err!(
            "max_objects must be 1 to 65536, max_entries at least 1, delivery 1 or 2, user_softirq 0 or 1\n"
        );
        Err(EINVAL)
    }
}

/// A user, whose objects count together whatever file they are in.
struct User {
    uid: Kuid,
    objects: Atomic<i64>,
    entries: Atomic<i64>,
}

/// The users that have something.
#[pin_data]
pub(crate) struct Users {
    max_objects: u32,
    max_entries: u32,
    /// Counts grow with this lock held only.
    #[pin]
    list: Mutex<KVec<Arc<User>>>,
}

impl Users {
    /// Makes an empty list, with the limits of `parameters`. Sleeps.
    pub(crate) fn new(parameters: &Parameters) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                max_objects: parameters.max_user_objects,
                max_entries: parameters.max_user_entries,
                list <- new_mutex!(KVec::new(), "rust_ulp::Users::list"),
            }),
            GFP_KERNEL,
        )
    }

    /// Charges so many objects, and so many entries of queues, to the user of the current process.
    /// Sleeps.
    ///
    /// Returns [`edquot`] when that is more than the user may have. A process with
    /// `CAP_SYS_RESOURCE` has no limit, and its user is not charged.
    pub(crate) fn charge(&self, objects: u32, entries: u32) -> Result<UserCharge> {
        let mut charge = UserCharge {
            user: None,
            objects,
            entries,
        };
        if task::may_exceed_limits() {
            return Ok(charge);
        }
        let uid = current!().uid();
        let mut list = self.list.lock();
        // Nobody else has a charge for such a user, and none is added without the lock.
        list.retain(|user| user.objects.load(Relaxed) != 0 || user.entries.load(Relaxed) != 0);
        let found = list.iter().find(|user| user.uid == uid).cloned();
        let user = match found {
            Some(user) => user,
            None => {
                let user = User {
                    uid,
                    objects: Atomic::new(0),
                    entries: Atomic::new(0),
                };
                let user = Arc::new(user, GFP_KERNEL_ACCOUNT)?;
                list.push(user.clone(), GFP_KERNEL_ACCOUNT)?;
                user
            }
        };
        let fits = |used: &Atomic<i64>, more: u32, limit: u32| {
            used.load(Relaxed).saturating_add(more.into()) <= limit.into()
        };
        if !fits(&user.objects, objects, self.max_objects)
            || !fits(&user.entries, entries, self.max_entries)
        {
            return Err(edquot());
        }
        user.objects.add(objects.into(), Relaxed);
        user.entries.add(entries.into(), Relaxed);
        charge.user = Some(user);
        Ok(charge)
    }
}

/// What a user was charged, until it is dropped. Any context.
pub(crate) struct UserCharge {
    /// [`None`] when nobody was.
    user: Option<Arc<User>>,
    objects: u32,
    entries: u32,
}

impl Drop for UserCharge {
    fn drop(&mut self) {
        if let Some(user) = &self.user {
            user.objects
                .add(i64::from(self.objects).wrapping_neg(), Relaxed);
            user.entries
                .add(i64::from(self.entries).wrapping_neg(), Relaxed);
        }
    }
}
