// SPDX-License-Identifier: GPL-2.0

//! The limits of all queues of an open file and of a user, and of the keys of a user.
//!
//! Drivers allocate the memory of queues and charge nobody for it, so the entries of a file's
//! queues have a limit, and so has an [estimate](rounded) of that memory for a user. A place in a
//! backlog counts as an entry: the connection manager charges nobody for its requests. Drivers also
//! allocate a table for each memory region, which has an entry for each page: that counts for the
//! user beside the queues, see [`region`]. So do the queues that register the memory of a domain,
//! see [`registration`]. A grant counts until it is destroyed, even when it has ended. Process
//! context.
//!
//! This module cannot charge that memory to a memory cgroup. `__GFP_ACCOUNT` is a flag of the
//! driver's own allocations; no scope of a task sets it, as `memalloc_nofs_save()` clears one. The
//! kernel exports none of the functions that charge (`mm/memcontrol.c`, `mm/page_counter.c`), and
//! distributions build it without the dmem cgroup, whose functions are exported. A socket that is
//! never used could be charged (`__sk_mem_schedule()`), as memory of sockets, which it is not.
//! Accounted pages of the same size, held as an estimate, would take the memory of the machine
//! twice.

use crate::{
    ext::errno::edquot,
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

/// Bytes of an element: `struct ib_sge`.
const SGE: u32 = 16;
/// Bytes of a send request without elements: `struct rxe_send_wqe`.
const SEND: u32 = 208;
/// Bytes of a receive request without elements: `struct rxe_recv_wqe`.
const RECV: u32 = 40;
/// Bytes of a completion, at most: `struct rxe_cqe`.
const COMPLETION: u32 = 96;
/// Bytes of a connection request: `struct rdma_id_private`, `struct cm_id_private` and messages.
const CONNECTION: u32 = 2048;

/// Bytes of an entry of a region's table of pages: `struct rxe_mr_page`.
const PAGE: u64 = 16;
/// Bytes of a region without its table: `struct rxe_mr`, and what the core and the module keep.
const REGION: u64 = 1024;

/// Returns an estimate, in bytes, of what a driver allocates, in one piece, for a memory region whose
/// table has `pages` entries.
pub(crate) fn region(pages: u32) -> u64 {
    let table = u64::from(pages).saturating_mul(PAGE);
    let rounded = table.checked_next_power_of_two().unwrap_or(u64::MAX);
    rounded.saturating_add(REGION)
}

/// Returns an estimate, in bytes, of what a driver allocates for a queue of `count` requests of
/// `size` bytes.
///
/// rxe rounds the number of slots, of which one stays free, and the bytes of each up to powers of
/// two (drivers/infiniband/sw/rxe/rxe_queue.c:rxe_queue_init), mlx5 their product
/// (hw/mlx5/qp.c:calc_sq_size). Each queue has a request more, for draining.
fn rounded(count: u32, size: u32) -> u64 {
    let slots = u64::from(count).saturating_add(2);
    let size = u64::from(size).max(64);
    slots
        .next_power_of_two()
        .saturating_mul(size.next_power_of_two())
}

/// Returns the bytes of elements. The device's queue may get one more than was asked for.
fn elements(asked: u32) -> u32 {
    asked.saturating_add(1).saturating_mul(SGE)
}

/// Estimates the bytes of a queue of send requests with so many elements, or bytes of inline data
/// in their place.
pub(crate) fn send_queue(requests: u32, sges: u32, inline: u32) -> u64 {
    rounded(requests, elements(sges).max(inline).saturating_add(SEND))
}

/// Estimates the bytes of a queue of receive requests with so many elements.
pub(crate) fn recv_queue(requests: u32, sges: u32) -> u64 {
    rounded(requests, elements(sges).saturating_add(RECV))
}

/// Estimates the bytes of a completion queue.
pub(crate) fn completion_queue(entries: u32) -> u64 {
    rounded(entries, COMPLETION)
}

/// Estimates the bytes of the queues that register the memory of a protection domain.
pub(crate) fn registration() -> u64 {
    [send_queue(2, 1, 0), recv_queue(1, 1), completion_queue(3)]
        .iter()
        .sum()
}

/// Estimates the bytes of connection requests that wait.
pub(crate) fn backlog(requests: u32) -> u64 {
    rounded(requests, CONNECTION)
}

/// The entries of all queues of a file.
pub(crate) struct Quota {
    used: Atomic<i64>,
    limit: u32,
    users: Arc<Users>,
}

impl Quota {
    /// Makes a quota of `limit` entries, whose bytes count for their users.
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

    /// Takes `entries` for a queue, which has `bytes` of a driver's memory. Sleeps.
    ///
    /// Returns [`edquot`] when the file has too many entries, or the user of the current process too
    /// many bytes.
    pub(crate) fn take(self: &Arc<Self>, entries: u32, bytes: u64) -> Result<QuotaCharge> {
        let with_queue = |used: i64| {
            let after = used.saturating_add(entries.into());
            if after > self.limit.into() {
                return Err(edquot());
            }
            Ok(after)
        };
        let mut used = self.used.load(Relaxed);
        // Before other files of the user could lack these bytes.
        with_queue(used)?;
        let user = self.users.charge(0, bytes)?;
        loop {
            match self.used.cmpxchg(used, with_queue(used)?, Relaxed) {
                Ok(_) => break,
                Err(now) => used = now,
            }
        }
        Ok(QuotaCharge {
            quota: self.clone(),
            entries,
            _user: user,
        })
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
    fn queues_weigh_what_their_requests_have() {
        assert_eq!(completion_queue(1), 4 * 128);
        assert_eq!(recv_queue(2, 0), 4 * 64);
        assert_eq!(recv_queue(3, 1), 8 * 128);
        assert_eq!(send_queue(62, 2, 0), 64 * 256);
        assert_eq!(send_queue(62, 3, 0), 64 * 512);
        assert_eq!(send_queue(62, 3, 512), 64 * 1024);
        assert_eq!(send_queue(63, 3, 512), 128 * 1024);
        assert_eq!(send_queue(u32::MAX, u32::MAX, u32::MAX), u64::MAX);
    }

    #[test]
    fn regions_weigh_what_their_pages_need() {
        assert_eq!(region(1), 16 + REGION);
        assert_eq!(region(1792), 32 * 1024 + REGION);
        assert_eq!(region(u32::MAX), (1 << 36) + REGION);
    }

    #[test]
    fn gives_no_more_than_there_is() -> Result {
        let parameters = Parameters {
            max_objects: 1,
            max_entries: 1,
            max_user_objects: u32::MAX,
            max_user_queues: u32::MAX,
            delivery: 1,
            user_softirq: 0,
            user_vector: 1,
        };
        let quota = Quota::new(10, Users::new(&parameters)?)?;
        let first = quota.take(6, 0)?;
        assert_eq!(quota.take(5, 0).err(), Some(edquot()));
        let second = quota.take(4, 0)?;
        assert_eq!(quota.usage(), (10, 10));
        assert_eq!(quota.take(1, 0).err(), Some(edquot()));
        drop(first);
        assert_eq!(quota.take(u32::MAX, 0).err(), Some(edquot()));
        let _third = quota.take(6, 0)?;
        drop(second);
        assert_eq!(quota.usage(), (6, 10));
        Ok(())
    }
}
