// SPDX-License-Identifier: GPL-2.0

//! Events of a file: what happened to its device and its objects, as a stream of records.
//!
//! Records are made in any context, under drivers' locks and with interrupts off: they go into an
//! array that was allocated when the file was opened. They are read in process context.

use crate::{
    kernel::{
        lock::{
            new_spinlock_irq,
            SpinLockIrq, //
        },
        timer::now_ns, //
    },
    logic::events::{
        Queue,
        Record,
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

impl Record for abi::Event {
    fn time_ns(&self) -> u64 {
        self.time_ns
    }

    fn lost(count: u32, time_ns: u64) -> Self {
        Self {
            event: abi::EVENT_LOST,
            info: count,
            time_ns,
            ..Default::default()
        }
    }
}

struct Log {
    queue: Queue<abi::Event>,
    places: KVVec<abi::Event>,
}

/// Events of a file, and those who wait for something of it.
#[pin_data]
pub(crate) struct FileEvents {
    /// Serial number of the file, for traces.
    file: u32,
    /// Those who `poll` the file: woken whenever something may have become ready.
    #[pin]
    pub(crate) wait: PollCondVar,
    #[pin]
    log: SpinLockIrq<Log>,
    /// Those who wait for a record.
    #[pin]
    readers: CondVar,
}

impl FileEvents {
    /// Serial number of the file.
    pub(crate) fn file(&self) -> u32 {
        self.file
    }

    /// No records, and nobody waits. Sleeps.
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
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Notes that `event`, one of `EVENT_*`, happened to the object that `handle` names. Any
    /// context.
    pub(crate) fn raise(&self, event: u32, handle: u32, info: u32) {
        self.push(abi::Event {
            event,
            handle,
            info,
            ..Default::default()
        });
    }

    /// Notes that `event`, one of `EVENT_*`, happened to the device, or to its port `port` when
    /// that is not 0. Any context.
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

    /// Ends the stream: the device is gone. Any context.
    pub(crate) fn end(&self) {
        let record = self.stamp(abi::Event {
            event: abi::EVENT_DEVICE_REMOVED,
            ..Default::default()
        });
        self.log.lock().queue.end(record);
        self.wake();
    }

    /// Traces a record, and says when it was made.
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

    /// Whether there is a record. Those who have registered with [`Self::wait`] before this call
    /// are woken by the next one.
    pub(crate) fn is_ready(&self) -> bool {
        self.log.lock().queue.is_ready()
    }

    /// Takes the oldest record. Sleeps until there is one, if `block` says so.
    ///
    /// [`ENODEV`] after the last one, [`EAGAIN`] when there is none, [`ERESTARTSYS`] when a signal
    /// comes.
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

    /// Gives back a record that was taken and could not be delivered.
    pub(crate) fn put_back(&self, event: abi::Event) {
        let mut log = self.log.lock();
        let Log { queue, places } = &mut *log;
        queue.unpop(places, event);
        drop(log);
        self.wake();
    }
}

/// The files that hear of a device's events.
///
/// The core's worker of GID changes holds `rtnl_lock` when it calls: nothing that waits for that
/// may be done under the lock.
#[pin_data]
pub(crate) struct EventSubscribers {
    #[pin]
    files: Mutex<KVec<Arc<FileEvents>>>,
}

impl EventSubscribers {
    /// Nobody yet. Sleeps.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                files <- new_mutex!(KVec::new(), "rust_ulp::EventSubscribers::files"),
            }),
            GFP_KERNEL,
        )
    }

    /// Lets `file` hear of what happens from now on. Sleeps.
    pub(crate) fn add(&self, file: Arc<FileEvents>) -> Result {
        Ok(self.files.lock().push(file, GFP_KERNEL)?)
    }

    /// The opposite.
    pub(crate) fn remove(&self, file: &Arc<FileEvents>) {
        self.files.lock().retain(|other| !Arc::ptr_eq(other, file));
    }

    /// Tells all of them. Sleeps.
    pub(crate) fn tell(&self, event: u32, port: u32) {
        for file in self.files.lock().iter() {
            file.raise_on_port(event, port);
        }
    }
}

impl rdma::event::Handler for EventSubscribers {
    fn event(&self, event: Event, port: u32) {
        self.tell(event.number(), port);
    }
}
