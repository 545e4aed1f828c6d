// SPDX-License-Identifier: GPL-2.0

//! Events of the device and the objects of a file, as a stream of records.
//!
//! Drivers report events in any context, under their locks and with interrupts off. Records are
//! therefore added to an array that was allocated when the file was opened. Process context reads
//! them.

use crate::{
    counters::Counters,
    ext::{
        lock::{
            new_spinlock_irq,
            SpinLockIrq, //
        },
        timer::now_ns, //
    },
    logic::events::{
        Queue,
        MAX,
        PLACES, //
    },
    rdma::{
        self,
        event::Event, //
    },
    trace::{
        self,
        ulp_debug, //
    },
    uapi::abi, //
};
use kernel::{
    new_condvar,
    new_mutex,
    new_poll_condvar,
    prelude::*,
    sync::{
        poll::PollCondVar,
        Arc,
        CondVar,
        Mutex, //
    }, //
};

const _: () = assert!(MAX as usize == abi::EVENTS_MAX);

struct Log {
    queue: Queue<abi::Event>,
    places: KVVec<abi::Event>,
}

/// The events of a file, its wait queues, and the counters that outlive its queue pairs.
#[pin_data]
pub(crate) struct FileEvents {
    /// Serial number of the file, for tracepoints and debug messages.
    file: u32,
    /// Wakes pollers of the file when there is an event, or the device was removed.
    #[pin]
    pub(crate) wait: PollCondVar,
    /// Lock order: after all locks of the module and of drivers, before wait queues only.
    #[pin]
    log: SpinLockIrq<Log>,
    /// Wakes threads that wait for a record.
    #[pin]
    readers: CondVar,
    /// The counters of the queue pairs and shared receive queues of the file that were destroyed.
    pub(crate) ended: Counters,
}

impl FileEvents {
    /// Returns the serial number of the file.
    pub(crate) fn file(&self) -> u32 {
        self.file
    }

    /// Creates an empty stream. Sleeps.
    pub(crate) fn new(file: u32) -> Result<Arc<Self>> {
        let mut places = KVVec::new();
        places.resize(PLACES as usize, abi::Event::default(), GFP_KERNEL_ACCOUNT)?;
        let log = Log {
            queue: Queue::new(),
            places,
        };
        Arc::pin_init(
            pin_init!(Self {
                file,
                wait <- new_poll_condvar!("rust_ulp::FileEvents::wait"),
                log <- new_spinlock_irq!(log, "rust_ulp::FileEvents::log"),
                readers <- new_condvar!("rust_ulp::FileEvents::readers"),
                ended: Counters::new(),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Adds a record of `event`, one of `EVENT_*`, for the object `handle`, whose creator gave it
    /// `user_data`. Any context.
    pub(crate) fn raise(&self, event: u32, handle: u32, user_data: u64, info: u32) {
        self.push(abi::Event {
            event,
            handle,
            info,
            user_data,
            ..Default::default()
        });
    }

    /// Adds a record of `event`, one of `EVENT_*`, for the device, or for `port` if that is not 0.
    /// Any context.
    fn raise_on_port(&self, event: u32, port: u32) {
        self.push(abi::Event {
            event,
            port,
            ..Default::default()
        });
    }

    fn push(&self, record: abi::Event) {
        let record = self.stamp(record);
        let mut log = self.log.lock();
        let Log { queue, places } = &mut *log;
        queue.push(places, record);
        drop(log);
        self.wake();
    }

    /// Ends the stream with a record of the device's removal. Any context.
    pub(crate) fn end(&self) {
        let record = self.stamp(abi::Event {
            event: abi::EVENT_DEVICE_REMOVED,
            ..Default::default()
        });
        self.log.lock().queue.end(record);
        self.wake();
    }

    /// Sets the time of a record, and traces it.
    fn stamp(&self, record: abi::Event) -> abi::Event {
        trace::event(
            self.file,
            record.event,
            record.handle,
            record.port,
            record.info,
        );
        ulp_debug!(
            "file {}: event {} handle {:#x} port {} info {}\n",
            self.file,
            record.event,
            record.handle,
            record.port,
            record.info
        );
        abi::Event {
            time_ns: now_ns(),
            ..record
        }
    }

    fn wake(&self) {
        self.readers.notify_all();
        self.wait.notify_all();
    }

    /// Returns whether [`Self::take`] returns at once. If not, the next record wakes the pollers that
    /// registered with [`Self::wait`] before this call.
    pub(crate) fn is_readable(&self) -> bool {
        let log = self.log.lock();
        log.queue.is_ready() || log.queue.is_over()
    }

    /// Removes the oldest record. Sleeps until there is one if `block` is set.
    ///
    /// Returns [`ENODEV`] after the last record, [`EAGAIN`] if there is none, and [`ERESTARTSYS`]
    /// if a signal arrives.
    pub(crate) fn take(&self, block: bool) -> Result<abi::Event> {
        let mut log = self.log.lock();
        loop {
            let Log { queue, places } = &mut *log;
            if let Some(event) = queue.pop(places) {
                return Ok(event);
            }
            if queue.is_over() {
                return Err(ENODEV);
            }
            if !block {
                return Err(EAGAIN);
            }
            if self.readers.wait_interruptible(&mut log) {
                return Err(ERESTARTSYS);
            }
        }
    }

    /// Puts back a record that was not delivered.
    pub(crate) fn put_back(&self, event: abi::Event) {
        let mut log = self.log.lock();
        let Log { queue, places } = &mut *log;
        queue.unpop(places, event);
        drop(log);
        self.wake();
    }
}

/// The files that receive a device's events.
#[pin_data]
pub(crate) struct EventSubscribers {
    /// Lock order: after `rtnl_lock`, which the core's GID worker holds when it reports an event.
    #[pin]
    files: Mutex<KVVec<Arc<FileEvents>>>,
}

impl EventSubscribers {
    /// Creates an empty list. Sleeps.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                files <- new_mutex!(KVVec::new(), "rust_ulp::EventSubscribers::files"),
            }),
            GFP_KERNEL,
        )
    }

    /// Adds `file`, which receives all later events. Sleeps.
    pub(crate) fn add(&self, file: Arc<FileEvents>) -> Result {
        Ok(self.files.lock().push(file, GFP_KERNEL)?)
    }

    /// Removes `file`. Sleeps.
    pub(crate) fn remove(&self, file: &Arc<FileEvents>) {
        self.files.lock().retain(|other| !Arc::ptr_eq(other, file));
    }

    /// Reports an event of the device, or of `port` if that is not 0, to all files. Sleeps.
    pub(crate) fn report(&self, event: u32, port: u32) {
        for file in self.files.lock().iter() {
            file.raise_on_port(event, port);
        }
    }
}

impl rdma::event::Handler for EventSubscribers {
    fn event(&self, event: Event, port: u32) {
        // The ABI has no name for later ones, such as mlx5's IB_EVENT_DEVICE_SPEED_CHANGE.
        if event.number() <= abi::EVENT_GID_CHANGE {
            self.report(event.number(), port);
        }
    }
}
