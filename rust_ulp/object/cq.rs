// SPDX-License-Identifier: GPL-2.0

//! Completion queues of a file: the device's queue, and the ring that user space reads.

use super::{
    quota::QuotaCharge,
    ring::Ring,
    usecount::{
        Counted,
        UseCount, //
    }, //
};
use crate::{
    events::FileEvents,
    kernel::{
        errno::etime,
        timer::now_ns, //
    },
    rdma,
    uapi::abi, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// A completion queue of a file.
pub(crate) struct CqObject {
    // Before the ring: the device's queue goes first.
    cq: Arc<rdma::cq::Cq>,
    ring: Arc<Ring>,
    delivery: u32,
    use_count: UseCount,
    _charge: QuotaCharge,
}

impl CqObject {
    /// Creates a completion queue of `entries` entries, a power of two, of `entry_size` bytes each.
    /// Sleeps.
    pub(crate) fn new(
        device: &rdma::device::Device,
        entries: u32,
        entry_size: u32,
        delivery: u32,
        vector: u32,
        file: Arc<FileEvents>,
        charge: QuotaCharge,
    ) -> Result<Arc<Self>> {
        let poll_context = match delivery {
            abi::DELIVER_WORKQUEUE => rdma::cq::PollContext::Workqueue,
            abi::DELIVER_SOFTIRQ => rdma::cq::PollContext::SoftIrq,
            abi::DELIVER_CALLER => rdma::cq::PollContext::Direct,
            _ => return Err(EINVAL),
        };
        let ring = Ring::new(entries, entry_size, None, file)?;
        let cq = rdma::cq::Cq::new(
            device,
            entries.saturating_add(rdma::qp::CQ_RESERVE),
            vector,
            poll_context,
            ring.clone(),
        )?;
        Ok(Arc::new(
            Self {
                cq,
                ring,
                delivery,
                use_count: UseCount::new(),
                _charge: charge,
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

    /// Returns the number of bytes to map.
    pub(crate) fn mmap_size(&self) -> u64 {
        self.ring.pages().len() as u64
    }

    /// Waits as [`Ring::wait`] does. Moves completions when only callers do that. Sleeps.
    pub(crate) fn wait(&self, min: u32, timeout_ns: u64) -> Result {
        if self.delivery != abi::DELIVER_CALLER {
            return self.ring.wait(min, timeout_ns);
        }
        let start = now_ns();
        loop {
            let done = self.cq.process(256);
            match self.ring.wait(min, 0) {
                Err(err) if err == etime() => (),
                result => return result,
            }
            let elapsed = now_ns().saturating_sub(start);
            if elapsed >= timeout_ns {
                return Err(etime());
            }
            if kernel::current!().signal_pending() {
                return Err(EINTR);
            }
            if done == 0 {
                crate::kernel::task::relax();
            }
        }
    }
}

impl Counted for CqObject {
    fn use_count(&self) -> &UseCount {
        &self.use_count
    }
}

/// Returns the offset at which user space maps the object with that handle.
pub(crate) const fn mmap_offset(handle: u32) -> u64 {
    (handle as u64) << 32
}
