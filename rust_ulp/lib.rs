// SPDX-License-Identifier: GPL-2.0

//! An RDMA upper-layer protocol: verbs for processes, by `/dev/rust_ulp`.
//!
//! # Rooms
//!
//! One direction of knowledge: this crate's own modules use `rdma`, that uses `sys`, that uses
//! `bindings`; `logic` uses nothing, and all may use it. The way of a request:
//!
//! ```text
//! user space: ioctl SUBMIT
//!   kernel/entry.c     rust_ulp_ioctl, the door
//!   ioctl           copies the struct, picks the command
//!   submit          copies the requests, decodes them (object/decode), resolves handles (handle),
//!                   chains them per queue, posts, waits
//!   rdma/chain      puts them into slots (rdma/queue) and links them
//!   rdma/entry.c       rust_ulp_post_send, the door out; then the driver
//!
//!   driver, core    poll the completion queue
//!   rdma/entry.c       rust_ulp_completion
//!   rdma/qp, srq    find the request
//!   qp              makes the entry
//!   cq              puts it into the ring that user space reads, wakes who waits
//! ```
//!
//! By io_uring the way in is `IORING_OP_URING_CMD`, `rust_ulp_uring_cmd`, `uring`, and then the
//! steps of `submit`; on the way back `qp` tells the command (`kernel/uring`), which the task
//! completes in `rust_ulp_uring_done` of kernel/entry.c. Completions as a stream go from `cq` through
//! `rust_ulp_uring_run`. A request that is over before the device is done with it, by `CANCEL`, its
//! deadline, or the end of its ring or task, takes the way back from `rdma/queue`, by `rdma/qp` or
//! `srq`; what the driver says of it later ends in `qp`.
//!
//! And of an event:
//!
//! ```text
//!   driver, core    something happened to a queue, a port or the device
//!   rdma/event, qp, srq, cq
//!   qp, cq, device  know whose it is
//!   events          keeps a record (logic/events) for each file that it concerns, wakes who waits
//!   kernel/entry.c     rust_ulp_read; context
//! ```
//!
//! And of memory: `buffer` has what requests of the owner name, `grant` what a peer may use, `rdma/mr`
//! makes the keys of both; the pages are those of `kernel/pages`, which come from the page allocator, or
//! by `kernel/pinned` from a process, or by `kernel/dmabuf` from another driver.
//!
//! On iWARP `rdma/mr` has a connection of the device with itself for that, by `rdma/loopback`.
//!
//! And of a connection: `connect` has the commands, `listener` and `connection` the objects that
//! they make, `rdma/cm` the manager's identifiers, whose events come in through
//! `rust_ulp_cm_event` of rdma/entry.c.
//!
//! # Lock order
//!
//! Top to bottom; nothing above is taken while something below is held.
//!
//! | lock | what it protects | taken in |
//! |---|---|---|
//! | `devices_rwsem`, `clients_rwsem` (RDMA core) | devices and clients | `add`, `remove` |
//! | `uring_lock` (kernel) | a ring of io_uring; held over commands. A command may wait for user memory with it, so nobody waits for it who is inside the gate | `uring_cmd`, its task work |
//! | `Registry::devices` | the list of devices | process |
//! | `Device::gate` | not a lock: who is inside keeps the device from going | process, may sleep inside |
//! | `mmap_lock` (kernel) | an address space; taken by copies from and to user space, so no lock below is held over one | process |
//! | `Device::files` | the files attached to a device | process |
//! | `UlpFile::table` | handles | process |
//! | `UlpFile::batches` | room for batches; nothing is taken under it | process |
//! | `UlpFile::attached` | what the rdma cgroup counts for the file itself | process |
//! | `rdmacg_mutex` (kernel) | what the rdma cgroup counts | process |
//! | `QpGrants::growing` | room for the grants of a queue pair | process |
//! | `RemoteKey::mr` | the key of a grant; held while it dies, and while another is made | process |
//! | `PdObject::fast_reg` | making the fast_reg; on iWARP held over a connection | process |
//! | `rdma::loopback::LoopbackConnector::state` | who makes such a connection, and whether he may | process |
//! | handler mutex of an identifier (connection manager); a listener's before that of its request | what happens to the identifier | process; held over `cm::Handler` and `cm::Listener`. Dropping an identifier takes it, so nothing below is held over that |
//! | `Backlog::waiting` | the requests of a listener | process |
//! | `Connection::progress` | how far a connection is; held over the move of its queue pair to ERR | process |
//! | `rdma::loopback::LoopbackConn::progress` | how far such a connection is | process |
//! | `rtnl_lock` (kernel) | netdevs; held by the core's GID workers, and taken by `ib_query_port()` | process |
//! | `EventSubscribers::files` | the files that hear of a device's events | process |
//! | `rdma::Srq::marks` | the queue pairs of a shared receive queue | process |
//! | `rdma::FastRegQp::post_lock`, `rdma::Qp::modifying`, `rdma::Cq::draining`, `rdma::Cq::polling` | one at a time, in this order | process |
//! | `rdma::Qp::address` | an address that draining needs; nothing is taken under it | process |
//! | `rdma::DeferredPages::kept` | memory that a peer may still be reading; nothing is taken under it | process |
//! | `rdma::Queue::lists` | slots of a queue | process, softirq; held over the driver's `post_send`, and over `Handler::cancel` |
//! | `QpGrants::keys` | the grants of a queue pair | process, softirq |
//! | `Ring::state` | a completion ring | process, softirq; held over waking its stream and its eventfd |
//! | `FileEvents::log` | records of events | any, interrupts off; under drivers' locks |
//! | wait queues (kernel) | waiters | any |
//!
//! Why they are in that order, how long each object lives and which ordering each atomic has:
//! docs/internals.md.
//!
//! # Contexts
//!
//! | entry | context | rules |
//! |---|---|---|
//! | `open`, `ioctl`, `fdinfo` | process | may sleep; nothing held over copies from and to user space |
//! | `uring_cmd` | process: a task, a worker of io_uring or its polling thread; `uring_lock` perhaps held, with `IO_URING_F_CANCEL` always (then any kernel thread) | copies from user space before it enters the gate; completes a command it has begun only when all shares are gone |
//! | task work of io_uring | the task that submitted, `uring_lock` held; a kernel thread when the task is gone | holds no object of a device: nobody waits for it |
//! | `mmap` | process, `mmap_lock` held | takes the gate and the table, copies nothing |
//! | `poll` | process | takes the table |
//! | `read` | process | sleeps outside the gate, until a signal, a record or the device's end |
//! | `release` | process, perhaps exiting: no `current->files`, no `current->nsproxy` | tears down, drains |
//! | `Client::add`, `remove` | process | `remove` is bounded: waits only for those inside the gate, who are woken |
//! | connection manager's handlers | process (the manager's workqueues), handler mutex held | may sleep, wait for nobody, do not look at the gate; drop no identifier |
//! | deadlines (`rdma::Queue::timer`) | softirq | take the queue's lock, tell its owner |
//! | work that ends grants | process (our workqueue) | inside the gate, which it leaves when the device goes |
//! | completion handlers | process (workqueue, caller) or softirq, as the completion queue was made | must not sleep |
//! | events of queue pairs, shared receive queues and completion queues | any, interrupts off, under the driver's locks | store flags and records, wake |
//! | events of ports and devices | process (a worker of the core, perhaps with `rtnl_lock`) | take `EventSubscribers::files` |

#![crate_name = "rust_ulp"]
#![deny(clippy::undocumented_unsafe_blocks)]

use ::kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::kernel::compat::Parameter as _;

mod bindings;
#[macro_use]
mod kernel;
mod logic;
mod rdma;
mod trace;
mod uapi;

mod cmd;
mod device;
mod events;
mod file;
mod fops;
mod limits;
mod object;

module! {
    type: RustUlp,
    name: "rust_ulp",
    authors: ["The rust_ulp maintainers"],
    description: "RDMA verbs for processes, in Rust",
    license: "GPL",
    imports_ns: ["DMA_BUF"],
    params: {
        max_objects: u32 {
            default: 1024,
            description: "Objects that one open file may have, at most 65536",
        },
        max_entries: u32 {
            default: 1 << 18,
            description: "Entries that all queues of one open file may have together",
        },
        delivery: u32 {
            default: 1,
            description: "Who moves completions by default: 1 workqueue, 2 softirq",
        },
    },
}

/// The loaded module. Fields are dropped in this order: first nobody opens the device any more,
/// then the RDMA core takes all devices away, then work that was still to be done ends, then what
/// they shared goes.
struct RustUlp {
    _chardev: kernel::chardev::Registration<device::Registry>,
    _client: Pin<KBox<rdma::client::Registration<device::Registry>>>,
    _drain: kernel::workqueue::Drain,
    _faults: kernel::fault::Directory,
}

impl ::kernel::Module for RustUlp {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let parameters = limits::Parameters {
            max_objects: module_parameters::max_objects.value().get(),
            max_entries: module_parameters::max_entries.value().get(),
            delivery: module_parameters::delivery.value().get(),
        };
        let parameters = parameters.check()?;
        let faults = kernel::fault::Directory::new();
        let workqueue = kernel::workqueue::Workqueue::new()?;
        let registry = Arc::pin_init(
            device::Registry::new(workqueue.clone(), parameters),
            GFP_KERNEL,
        )?;
        let client = KBox::pin_init(
            rdma::client::Registration::new(registry.clone()),
            GFP_KERNEL,
        )?;
        Ok(Self {
            _chardev: fops::register(registry)?,
            _client: client,
            _drain: kernel::workqueue::Drain(workqueue),
            _faults: faults,
        })
    }
}
