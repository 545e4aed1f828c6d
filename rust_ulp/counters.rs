// SPDX-License-Identifier: GPL-2.0

//! Cumulative counters of requests, per queue pair and per file.
//!
//! The queues count posts under their lock ([`Posted`]). Completion handlers count the rest: those
//! of one queue run one after the other, so a counter of successes needs no atomic addition.

use crate::{
    ext::timer::now_ns,
    logic::{
        latency::{
            self,
            BUCKETS, //
        },
        numbered, //
    },
    rdma::request::{
        Posted,
        QueueKind, //
    },
    trace,
    uapi::abi, //
};
use kernel::sync::atomic::{
    Atomic,
    Relaxed, //
};

/// The statuses of `enum ib_wc_status`, from 0 to `IB_WC_GENERAL_ERR`.
const DEVICE_STATUSES: usize = 22;

/// Returns the index of a status in [`Queue::completed`]: device, TIMEOUT, CANCELED, others.
fn place(status: u16) -> usize {
    match status {
        abi::WC_STATUS_TIMEOUT => DEVICE_STATUSES,
        abi::WC_STATUS_CANCELED => DEVICE_STATUSES + 1,
        status => usize::from(status).min(DEVICE_STATUSES + 2),
    }
}

/// Returns the status that [`place`] puts there.
fn status(place: usize) -> u16 {
    match place {
        DEVICE_STATUSES => abi::WC_STATUS_TIMEOUT,
        place if place == DEVICE_STATUSES + 1 => abi::WC_STATUS_CANCELED,
        place if place < DEVICE_STATUSES => place as u16,
        _ => u16::MAX,
    }
}

/// Returns [`now_ns`] if latencies are recorded, else 0. Any context except NMI.
#[inline(always)]
pub(crate) fn start_ns() -> u64 {
    match trace::latency() {
        0 => 0,
        _ => now_ns(),
    }
}

type Counter = Atomic<u64>;

/// Adds to a counter that only one thread changes at a time.
fn add(counter: &Counter, count: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(count), Relaxed);
}

/// The counters of one queue.
struct Queue {
    /// The requests of queues that no longer exist; those of the others count for themselves.
    posted: Counter,
    /// The bytes of these requests. In a receive queue, the bytes that completed receives got.
    bytes: Counter,
    /// The completions by [`place`].
    completed: [Counter; DEVICE_STATUSES + 3],
}

/// The counters of a queue pair, or of all queue pairs of a file that were destroyed.
pub(crate) struct Counters {
    send: Queue,
    recv: Queue,
    /// The time from the post of a send request to its completion, by [`latency::bucket`].
    latency: [Counter; BUCKETS],
}

impl Counters {
    /// Returns counters that are 0.
    pub(crate) const fn new() -> Self {
        const fn queue() -> Queue {
            Queue {
                posted: Atomic::new(0),
                bytes: Atomic::new(0),
                completed: [const { Atomic::new(0) }; DEVICE_STATUSES + 3],
            }
        }
        Self {
            send: queue(),
            recv: queue(),
            latency: [const { Atomic::new(0) }; BUCKETS],
        }
    }

    fn queue(&self, kind: QueueKind) -> &Queue {
        match kind {
            QueueKind::Send => &self.send,
            QueueKind::Recv => &self.recv,
        }
    }

    /// Counts `count` requests that succeeded. Called by one completion handler at a time.
    pub(crate) fn succeeded(&self, kind: QueueKind, count: u32) {
        let [success, ..] = &self.queue(kind).completed;
        add(success, count.into());
    }

    /// Counts the bytes that a receive got. Called by one completion handler at a time.
    pub(crate) fn received(&self, bytes: u32) {
        add(&self.recv.bytes, bytes.into());
    }

    /// Counts a request that failed or was canceled. Any context.
    pub(crate) fn failed(&self, kind: QueueKind, status: u16) {
        if let Some(counter) = self.queue(kind).completed.get(place(status)) {
            counter.add(1, Relaxed);
        }
    }

    /// Counts the time since `start_ns`, when a send request was posted. Any context.
    pub(crate) fn took(&self, start_ns: u64) {
        let time = now_ns().saturating_sub(start_ns);
        if let Some(counter) = self.latency.get(latency::bucket(time)) {
            counter.add(1, Relaxed);
        }
    }

    /// Adds the counters of a queue pair that was destroyed, and what its queues had posted. Any
    /// context.
    pub(crate) fn absorb(&self, other: &Self, sends: Posted, recvs: Posted) {
        let sum = |to: &Counter, from: &Counter| to.add(from.load(Relaxed), Relaxed);
        for (kind, posted) in [(QueueKind::Send, sends), (QueueKind::Recv, recvs)] {
            let (to, from) = (self.queue(kind), other.queue(kind));
            to.posted.add(posted.requests, Relaxed);
            sum(&to.posted, &from.posted);
            to.bytes.add(Self::posted_bytes(kind, posted), Relaxed);
            sum(&to.bytes, &from.bytes);
            for (to, from) in to.completed.iter().zip(&from.completed) {
                sum(to, from);
            }
        }
        for (to, from) in self.latency.iter().zip(&other.latency) {
            sum(to, from);
        }
    }

    /// Returns the requests of a queue, `posted` included.
    pub(crate) fn posted(&self, kind: QueueKind, posted: Posted) -> Posted {
        let queue = self.queue(kind);
        Posted {
            requests: posted.requests.wrapping_add(queue.posted.load(Relaxed)),
            bytes: Self::posted_bytes(kind, posted).wrapping_add(queue.bytes.load(Relaxed)),
        }
    }

    /// Returns the bytes that count when requests are posted. A receive gets its bytes later.
    fn posted_bytes(kind: QueueKind, posted: Posted) -> u64 {
        match kind {
            QueueKind::Send => posted.bytes,
            QueueKind::Recv => 0,
        }
    }

    /// Returns the statuses with which requests completed, and how many did.
    pub(crate) fn completed(&self, kind: QueueKind) -> impl Iterator<Item = (u16, u64)> + '_ {
        numbered(self.queue(kind).completed.iter())
            .map(|(place, count)| (status(place as usize), count.load(Relaxed)))
            .filter(|(_, count)| *count > 0)
    }

    /// Returns the latencies: how many requests took less than so many nanoseconds, and at least
    /// half of that.
    pub(crate) fn latencies(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        numbered(self.latency.iter())
            .map(|(bucket, count)| (latency::below_ns(bucket as usize), count.load(Relaxed)))
            .filter(|(_, count)| *count > 0)
    }
}
