// SPDX-License-Identifier: GPL-2.0

//! An RDMA upper-layer protocol that exposes verbs to user space through `/dev/rust_ulp`.
//!
//! # Layers
//!
//! A file imports only from its own layer and from the layers below it. `scripts/layers` checks that.
//!
//! | layer | contents |
//! |---|---|
//! | `lib`, `fops` | the module; the file operations that the kernel calls |
//! | `cmd/` | the table of commands, their handlers, and the commands of io_uring |
//! | `file` | an open file: its object table, its device, its events |
//! | `object/` | the object table, and each kind of object that a file can create |
//! | `device` | the devices, the files attached to each, and device removal |
//! | `events`, `trace/`, `limits` | event records; tracepoints and debug messages; limits and parameters |
//! | `uapi/` | the ABI |
//! | `rdma/` | verbs and the connection manager; knows nothing of this module |
//! | `kernel/` | what the kernel crate lacks; knows nothing of RDMA |
//! | `bindings/` | bindgen output and C helpers; used by `rdma/` and `kernel/` only |
//! | `logic/` | pure code without kernel API or ABI; the host tests compile it too |
//!
//! # Data path
//!
//! ```text
//! user space: ioctl SUBMIT
//!   kernel/entry.c      rust_ulp_ioctl
//!   fops, cmd/access    copy and check struct rust_ulp_submit
//!   object/batch        copies the work requests; object/decode checks them
//!   cmd/submit          looks handles up, chains the requests of each queue, posts, waits
//!   rdma/chain          fills slots (rdma/queue) and links them
//!   rdma/entry.c        rust_ulp_post_send, then the driver
//!
//! driver: completion
//!   rdma/entry.c        rust_ulp_completion
//!   rdma/qp, rdma/srq   find the request
//!   object/completion   makes the completion queue entry
//!   object/ring         writes the entry to the mapped ring and wakes the waiters
//! ```
//!
//! With io_uring a request arrives through `rust_ulp_uring_cmd` and `cmd/uring`, and then takes the
//! same steps. `object/completion` completes the command (`kernel/uring`) in the task that submitted
//! it. A stream of completions leaves `object/ring` through `rust_ulp_uring_run`. CANCEL, a deadline,
//! and the end of a task or ring cancel a request in `rdma/queue`; the driver's completion of a
//! canceled request ends in `object/completion`.
//!
//! # Events, memory, connections
//!
//! - `rdma/event`, `rdma/qp`, `rdma/srq` and `rdma/cq` report events of drivers. `events` keeps a record
//!   for each file that an event concerns, and wakes the readers of the file.
//! - `object/buffer` holds the keys that the owner's requests use, `object/grant` the keys that a peer
//!   may use. `rdma/mr` registers both through `rdma/fast_reg`. The pages are those of `kernel/pages`:
//!   allocated, pinned (`kernel/pinned`) or imported (`kernel/dmabuf`).
//! - On iWARP `rdma/loopback` connects the queue pairs of `rdma/fast_reg` with each other.
//! - `cmd/cm` has the commands of connections, `object/listener` and `object/connection` the objects.
//!   `rdma/cm` has the connection manager's identifiers, whose events arrive through
//!   `rust_ulp_cm_event` of rdma/entry.c.
//!
//! # Lock order
//!
//! From the top to the bottom: no lock is taken while a lock below it is held.
//!
//! | lock | protects | context |
//! |---|---|---|
//! | `devices_rwsem`, `clients_rwsem` (RDMA core) | devices and clients | `add`, `remove` |
//! | `uring_lock` (kernel) | an io_uring instance. Held over commands, which may wait for user memory: nobody inside the gate waits for it | `uring_cmd`, task work |
//! | `UlpFile::attaching` | serialises ATTACH | process |
//! | `Registry::devices` | the list of devices | process |
//! | `Device::gate` | not a lock: a guard keeps the device from going away | process; may sleep inside |
//! | `mmap_lock` (kernel) | an address space. Copies from and to user space take it: no lock below is held over a copy | process |
//! | `Device::files` | the files attached to a device | process |
//! | `UlpFile::table` | handles | process |
//! | `UlpFile::batches` | spare batches. Nothing is taken under it | process |
//! | `UlpFile::attached` | the rdma cgroup's charge for the file | process |
//! | `rdmacg_mutex` (kernel) | the rdma cgroup's charges | process |
//! | `QpGrants::growing` | the capacity of `QpGrants::keys` | process |
//! | `RemoteKey::mr` | the key of a grant. Held while the key is revoked or replaced | process |
//! | `PdObject::fast_reg` | creation of the registration queue pair. On iWARP held while it connects | process |
//! | `rdma::loopback::LoopbackConnector::state` | the connection attempt in progress | process |
//! | handler mutex of an identifier (connection manager); a listener's before its request's | the identifier's state. Held over `cm::Handler` and `cm::Listener`. Dropping an identifier takes it: nothing below is held over the drop | process |
//! | `Backlog::waiting` | the connection requests of a listener | process |
//! | `Connection::progress` | the state of a connection. Held while its queue pair moves to ERR | process |
//! | `rdma::loopback::LoopbackConn::progress` | the state of a loopback connection | process |
//! | `rtnl_lock` (kernel) | netdevs. Held by the core's GID workers; `ib_query_port()` takes it | process |
//! | `EventSubscribers::files` | the files that receive a device's events | process |
//! | `rdma::Srq::marks` | the queue pairs of a shared receive queue | process |
//! | `rdma::FastRegQp::post_lock`, `rdma::Qp::modifying`, `rdma::Cq::draining`, `rdma::Cq::polling` | serialise their operation; taken in this order | process |
//! | `rdma::Qp::address` | the address that draining a datagram queue pair needs. Nothing is taken under it | process |
//! | `rdma::DeferredPages::kept` | pages that a peer may still read. Nothing is taken under it | process |
//! | `rdma::Queue::lists` | the slots of a queue. Held over the driver's `post_send` and over `WrHandler::cancel` | process, softirq |
//! | `QpGrants::keys` | the grants of a queue pair | process, softirq |
//! | `Ring::state` | a completion ring. Held while its stream and its eventfd are woken | process, softirq |
//! | `FileEvents::log` | event records. Taken under drivers' locks | any; interrupts off |
//! | wait queues (kernel) | waiters | any |
//!
//! docs/internals.md gives the reasons for this order, the lifetime of each object, and the memory
//! ordering of each atomic.
//!
//! # Contexts
//!
//! | entry | context | rules |
//! |---|---|---|
//! | `open`, `ioctl`, `fdinfo` | process | may sleep; nothing is held over copies from and to user space |
//! | `uring_cmd` | process: a task, an io_uring worker or the SQPOLL thread. `uring_lock` may be held; with `IO_URING_F_CANCEL` it is, in any kernel thread | copies from user space before it enters the gate; completes a started command only when all references to it are gone |
//! | io_uring task work | the submitting task with `uring_lock` held, or a kernel thread when the task is gone | holds no object of a device: nobody waits for it |
//! | `mmap` | process, `mmap_lock` held | enters the gate, takes the table, copies nothing |
//! | `poll` | process | takes the table |
//! | `read` | process | sleeps outside the gate until a signal, a record or device removal |
//! | `release` | process, perhaps exiting: no `current->files`, no `current->nsproxy` | destroys the objects; drains |
//! | `Client::add`, `remove` | process | `remove` is bounded: it waits only for guards, whose holders it wakes |
//! | connection manager handlers | process (the manager's workqueues), handler mutex held | may sleep; wait for nobody; do not enter the gate; drop no identifier |
//! | deadlines (`rdma::Queue::timer`) | softirq | take the queue's lock, call its owner |
//! | grant revocation work | process (the module's workqueue) | inside the gate; leaves it when the device goes |
//! | completion handlers | process (workqueue, caller) or softirq, as the completion queue was created | must not sleep |
//! | events of queue pairs, shared receive queues and completion queues | any; interrupts off, under the driver's locks | store flags and records; wake waiters |
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
