// SPDX-License-Identifier: GPL-2.0

//! What an open file may have of queues.
//!
//! Drivers allocate the memory of queues on our behalf, and charge nobody for it: so all queues of a
//! file together have a limit. Any context.

use crate::kernel::errno::edquot;
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
}

impl Quota {
    /// None used, of `limit`.
    pub(crate) fn new(limit: u32) -> Result<Arc<Self>> {
        Ok(Arc::new(
            Self {
                used: Atomic::new(0),
                limit,
            },
            GFP_KERNEL_ACCOUNT,
        )?)
    }

    /// How many are used, and how many there may be.
    pub(crate) fn usage(&self) -> (u64, u32) {
        (
            u64::try_from(self.used.load(Relaxed)).unwrap_or(0),
            self.limit,
        )
    }

    /// Takes `entries` for a queue. [`edquot`] when that is more than there are left.
    pub(crate) fn take(self: &Arc<Self>, entries: u32) -> Result<QuotaCharge> {
        let before = self.used.fetch_add(entries.into(), Relaxed);
        let charge = QuotaCharge {
            quota: self.clone(),
            entries,
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

    #[test]
    fn gives_no_more_than_there_is() -> Result {
        let quota = Quota::new(10)?;
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
