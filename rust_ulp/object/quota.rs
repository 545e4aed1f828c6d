// SPDX-License-Identifier: GPL-2.0

//! The limits of all queues of an open file and of a user.
//!
//! Drivers allocate the memory of queues and charge nobody for it, so the entries of queues have
//! limits. A place in a backlog counts as an entry: the connection manager charges nobody for its
//! requests. Process context; giving back in any context.
//!
//! This module cannot charge that memory to a memory cgroup. `__GFP_ACCOUNT` is a flag of the
//! driver's own allocations; no scope of a task sets it, as `memalloc_nofs_save()` clears one. The
//! kernel exports none of the functions that charge (`mm/memcontrol.c`, `mm/page_counter.c`), and
//! distributions build it without the dmem cgroup, whose functions are exported. Accounted pages of
//! the same size, held as an estimate, would take the memory of the machine twice. rxe allocates up
//! to 2 KiB for an entry of a send queue: 32 MiB for 16,384 requests of 16 elements.

use crate::{
    kernel::errno::edquot,
    limits::{
        UserCharge,
        Users, //
    }, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};

/// The entries of all queues of a file.
pub(crate) struct Quota {
    used: Atomic<i64>,
    limit: u32,
    users: Arc<Users>,
}

impl Quota {
    /// Makes a quota of `limit` entries, which count for their users as well.
    pub(crate) fn new(limit: u32, users: Arc<Users>) -> Result<Arc<Self>> {
        Ok(Arc::new(
            Self {
                used: Atomic::new(0),
                limit,
                users,
            },
            GFP_KERNEL_ACCOUNT,
        )?)
    }

    /// Returns how many are used, and the limit.
    pub(crate) fn usage(&self) -> (u64, u32) {
        (
            u64::try_from(self.used.load(Relaxed)).unwrap_or(0),
            self.limit,
        )
    }

    /// Takes `entries` for a queue. Sleeps.
    ///
    /// Returns [`edquot`] when the file or the user of the current process has too many.
    pub(crate) fn take(self: &Arc<Self>, entries: u32) -> Result<QuotaCharge> {
        let user = self.users.charge(0, entries)?;
        let before = self.used.fetch_add(entries.into(), Relaxed);
        let charge = QuotaCharge {
            quota: self.clone(),
            entries,
            _user: user,
        };
        if before.saturating_add(entries.into()) > self.limit.into() {
            // Gives them back.
            drop(charge);
            return Err(edquot());
        }
        Ok(charge)
    }
}

/// The entries of a queue, until it is dropped.
pub(crate) struct QuotaCharge {
    quota: Arc<Quota>,
    entries: u32,
    _user: UserCharge,
}

impl Drop for QuotaCharge {
    fn drop(&mut self) {
        self.quota
            .used
            .add(i64::from(self.entries).wrapping_neg(), Relaxed);
    }
}

#[kunit_tests(rust_ulp_quota)]
mod tests {
    use super::*;
    use crate::limits::Parameters;

    #[test]
    fn gives_no_more_than_there_is() -> Result {
        let parameters = Parameters {
            max_objects: 1,
            max_entries: 1,
            max_user_objects: u32::MAX,
            max_user_entries: u32::MAX,
            delivery: 1,
            user_softirq: 0,
            user_vector: 1,
        };
        let quota = Quota::new(10, Users::new(&parameters)?)?;
        let first = quota.take(6)?;
        assert_eq!(quota.take(5).err(), Some(edquot()));
        let second = quota.take(4)?;
        assert_eq!(quota.usage(), (10, 10));
        assert_eq!(quota.take(1).err(), Some(edquot()));
        drop(first);
        assert_eq!(quota.take(u32::MAX).err(), Some(edquot()));
        let _third = quota.take(6)?;
        drop(second);
        assert_eq!(quota.usage(), (6, 10));
        Ok(())
    }
}
