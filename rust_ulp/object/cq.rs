// SPDX-License-Identifier: GPL-2.0

//! Completion queues of a file: the device's queue, and the ring that user space reads.

use super::{
    deadline::Deadline,
    mmap::{
        MmapOffset,
        MmapOffsets, //
    },
    quota::QuotaCharge,
    ring::{
        Ring,
        Serving, //
    },
    usecount::{
        Counted,
        UseCount, //
    }, //
};
use crate::{
    events::FileEvents,
    ext::task,
    rdma,
    uapi::abi, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// The choices of the creator of a completion queue.
pub(crate) struct CqOptions {
    /// The number of entries: a power of two.
    pub(crate) entries: u32,
    /// The bytes of an entry, as user space knows it.
    pub(crate) entry_size: u32,
    /// `DELIVER_*`.
    pub(crate) delivery: u32,
    /// The completion vector.
    pub(crate) comp_vector: u32,
    /// How long a waiting thread polls the device's queue before it sleeps, in microseconds.
    pub(crate) busy_poll_us: u32,
}

/// A completion queue of a file.
pub(crate) struct CqObject {
    // Before the ring: the device's queue goes first.
    cq: Arc<rdma::cq::Cq>,
    ring: Arc<Ring>,
    mmap_offset: MmapOffset,
    delivery: u32,
    use_count: UseCount,
}

impl CqObject {
    /// Creates a completion queue. Sleeps.
    pub(crate) fn new(
        device: &rdma::device::Device,
        options: &CqOptions,
        file: Arc<FileEvents>,
        offsets: &Arc<MmapOffsets>,
        charge: QuotaCharge,
    ) -> Result<Arc<Self>> {
        let poll_context = match options.delivery {
            abi::DELIVER_WORKQUEUE => rdma::cq::PollContext::Workqueue,
            abi::DELIVER_SOFTIRQ => rdma::cq::PollContext::SoftIrq,
            _ => return Err(EINVAL),
        };
        let charge = Arc::new(charge, GFP_KERNEL_ACCOUNT)?;
        let &CqOptions {
            entries,
            entry_size,
            busy_poll_us,
            ..
        } = options;
        let ring = Ring::new(entries, entry_size, busy_poll_us, file, charge)?;
        let cq = rdma::cq::Cq::new(
            device,
            entries.saturating_add(rdma::qp::CQ_RESERVE),
            options.comp_vector,
            poll_context,
            ring.clone(),
        )?;
        Ok(Arc::new(
            Self {
                cq,
                mmap_offset: offsets.reserve(ring.pages().len())?,
                ring,
                delivery: options.delivery,
                use_count: UseCount::new(),
            },
            GFP_KERNEL_ACCOUNT,
        )?)
    }

    /// Returns the device's queue.
    pub(crate) fn cq(&self) -> &Arc<rdma::cq::Cq> {
        &self.cq
    }

    /// Returns the ring.
    pub(crate) fn ring(&self) -> &Arc<Ring> {
        &self.ring
    }

    /// Returns the delivery, `DELIVER_*`.
    pub(crate) fn delivery(&self) -> u32 {
        self.delivery
    }

    /// Sets its handle, by which lookups of its offset, traces and events name it.
    pub(crate) fn set_handle(&self, handle: u32) {
        self.ring.set_handle(handle);
        self.mmap_offset.set_handle(handle);
    }

    /// Returns the offset at which user space maps the ring.
    pub(crate) fn mmap_offset(&self) -> u64 {
        self.mmap_offset.bytes()
    }

    /// Returns the number of bytes to map.
    pub(crate) fn mmap_size(&self) -> u64 {
        self.ring.pages().len() as u64
    }

    /// Makes the calling thread a waiter: from here on it handles completions in place of a worker,
    /// unless a softirq does that. It may post requests before it waits: a completion that arrives
    /// early then calls no worker. It must not access user memory meanwhile: user space decides how
    /// long an access takes.
    ///
    /// A task of low priority leaves the completions to the worker. The timer of the queue does not
    /// make up for that: it takes a call from a thread that does not come, but not the mutex from
    /// one that loses its CPU while it polls. The mutex lends no priority, so the worker, other
    /// threads and the drain of a queue pair would wait for as long as ordinary tasks keep that CPU
    /// busy. An ordinary task waits for its share of the time only, which is small where the weight of
    /// its cgroup is: what waits then is of its own file.
    pub(crate) fn waiter(&self) -> CqWaiter<'_> {
        let serves = self.delivery == abi::DELIVER_WORKQUEUE && !task::is_background();
        CqWaiter {
            ring: &self.ring,
            serving: serves.then(|| self.ring.serve(&self.cq)),
        }
    }
}

/// A thread that waits for completions, or is about to. Dropping it sleeps.
pub(crate) struct CqWaiter<'a> {
    ring: &'a Ring,
    serving: Option<Serving<'a>>,
}

impl CqWaiter<'_> {
    /// Waits as [`Ring::wait`] does. Sleeps.
    pub(crate) fn wait(&self, min: u32, deadline: &Deadline) -> Result<u32> {
        match &self.serving {
            Some(serving) => serving.wait(min, deadline),
            None => self.ring.wait(min, deadline),
        }
    }
}

impl Counted for CqObject {
    fn use_count(&self) -> &UseCount {
        &self.use_count
    }
}
