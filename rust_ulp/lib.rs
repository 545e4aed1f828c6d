// SPDX-License-Identifier: GPL-2.0

//! An RDMA upper-layer protocol that exposes verbs to user space through `/dev/rust_ulp`.
//!
//! # Layers
//!
//! A file imports only from its own layer and from the layers below it. `scripts/layers` checks
//! this.
//!
//! | layer | contents |
//! |---|---|
//! | `lib`, `fops` | the module; the file operations that the kernel calls |
//! | `cmd/` | the table of commands, their handlers, and the commands of io_uring |
//! | `request/` | requests on their way from user memory to the queues: copy, look up, check |
//! | `file` | an open file: its object table, its device, its events |
//! | `object/` | the object table, and each kind of object that a file can create |
//! | `device` | the devices, the files attached to each, and device removal |
//! | `events`, `counters` | event records; counters of requests |
//! | `trace/`, `limits` | tracepoints and debug messages; limits and parameters |
//! | `uapi/` | the ABI |
//! | `rdma/` | verbs and the connection manager, independent of this module |
//! | `ext/` | kernel APIs that the kernel crate lacks, independent of RDMA |
//! | `bindings/` | bindgen output and C helpers; used by `rdma/` and `ext/` only |
//! | `logic/` | pure code without kernel API or ABI; the host tests compile it too |
//!
//! # Data path
//!
//! ```text
//! user space: ioctl SUBMIT
//!   ext/entry.c         rust_ulp_ioctl
//!   fops, cmd/access    copy and check struct rust_ulp_submit
//!   request/copy        copies the work requests
//!   request/run         looks handles up; uapi/decode checks; rdma/post builds what drivers take
//!   rdma/post           fills slots (rdma/queue), and links the requests of a queue
//!   rdma/entry.c        rust_ulp_post_send, then the driver
//!
//! driver: completion
//!   rdma/entry.c        rust_ulp_completion
//!   rdma/qp, rdma/srq   find the request
//!   object/completion   makes the completion queue entry
//!   object/ring         writes the entry to the mapped ring and wakes the waiters
//! ```
//!
//! With io_uring, a request arrives through `rust_ulp_uring_cmd` and `cmd/uring`, and then takes the
//! same steps as with SUBMIT. `object/completion` completes the command (`ext/uring`) in the task
//! that submitted it. CANCEL, a deadline, and the end of a task or io_uring cancel a request in
//! `rdma/queue`; `object/completion` discards the driver's completion of a canceled request.
//!
//! # Events, memory, connections
//!
//! - `rdma/event`, `rdma/qp`, `rdma/srq` and `rdma/cq` report events of drivers. `events` adds a
//!   record to each file that an event concerns, and wakes the readers of the file.
//! - `object/buffer` holds the keys for requests of the owner, `object/grant` the keys for a peer.
//!   `rdma/mr` registers regions through `rdma/fast_reg`. `ext/pages` allocates, pins
//!   (`ext/pinned`) or imports (`ext/dmabuf`) the pages.
//! - `cmd/cm` has the commands of connections, `object/listener` and `object/connection` the
//!   objects, `object/conn_param` what both ends agree on. `rdma/cm` wraps `rdma_cm_id`, whose
//!   events arrive through `rust_ulp_cm_event` of rdma/entry.c.
//!
//! # Lock order
//!
//! A thread that holds a lock takes only locks from lower rows. Several locks in one row are taken
//! from left to right. The last column is the context of a lock: "process" stands for a mutex,
//! "softirq" for `SpinLockBh`, "hardirq" for `SpinLockIrq`.
//!
//! | lock | protects | context |
//! |---|---|---|
//! | `unregistration_lock` (RDMA core) | the removal of a device | `remove`, when the device goes |
//! | `devices_rwsem`, `clients_rwsem`, `client_data_rwsem` (RDMA core) | devices and clients | `add`, `rename`; not `remove` |
//! | `uring_lock` (kernel) | an io_uring instance. Held over commands, which may wait for user memory: no thread inside the gate waits for it | `uring_cmd`, task work |
//! | `UlpFile::attaching` | ATTACH, one at a time | process |
//! | `Registry::devices` | the list of devices. No lock is taken under it | process |
//! | `Device::gate` | not a lock but a reference count: a guard prevents the removal of the device. For lockdep a guard is a reader, and the removal a writer | process; may sleep inside |
//! | `mmap_lock` (kernel) | an address space. Copies from and to user space take it: no lock below is held over a copy | process |
//! | `Device::files` | the files attached to a device | process |
//! | `Device::name` | the name of a device. No lock is taken under it | process |
//! | `UlpFile::table` | handles. Lookups share it | process |
//! | `UlpFile::rooms` | spare memory for lists of requests. No lock is taken under it | process |
//! | `MmapOffsets::ranges` | the offsets at which user space maps objects. No lock is taken under it | process |
//! | `UlpFile::attached` | the rdma cgroup's charge for the file | process |
//! | `RemoteKey::mr` | the key of a grant. Held while the key is revoked | process |
//! | `Connection::id` | the identifier of a connection, until it ends or its attempt has failed. Held during each step outside of the manager's handler; not taken under `UlpFile::table` | process |
//! | `QpObject::claimed` | whether a connection has the queue pair. Held while the owner changes attributes | process |
//! | `PdObject::fast_reg` | creation of what registers memory | process |
//! | `rdmacg_mutex` (kernel) | the rdma cgroup's charges | process |
//! | handler mutex of an identifier (connection manager); a listener's before its request's | the identifier's state. Held over `cm::Handler` and `cm::Listener`. Dropping an identifier takes it: no lock below is held over the drop. Not taken under `UlpFile::table`: `ucma_migrate_id()` of rdma_ucm copies to user space under those of its identifiers, and lockdep knows no difference | process |
//! | `Backlog::waiting` | the connection requests of a listener | process |
//! | `Connection::progress` | the state of a connection. Held over `ib_modify_qp()` while its queue pair moves to ERR | process |
//! | `rdma::FastRegQp::current` | one registration at a time, and creation of another queue pair for it when one has failed | process |
//! | `rtnl_lock` (kernel) | netdevs. Held by the core's GID workers; `ib_query_port()` takes it | process |
//! | `EventSubscribers::files` | the files that receive a device's events | process |
//! | `rdma::Srq::life`, `rdma::Qp::modifying` | one transition, query or end at a time | process |
//! | `rdma::Srq::joining` | one queue pair that joins or leaves a shared receive queue at a time. Held while one that leaves is destroyed | process |
//! | `rdma::Srq::marks` | the progress of the queue pairs of a shared receive queue | process |
//! | `rdma::Cq::draining`, `rdma::Cq::polling` | one drain or poll at a time | process |
//! | `rdma::Qp::address` | the address that draining a datagram queue pair needs. No lock is taken under it | process |
//! | `locked_pages_lock` (bindings/mm.c) | the locked pages of each user. No lock is taken under it | process |
//! | `Users::list` | the users that have objects. No lock is taken under it | process |
//! | `rdma::Srq::members` | the queue pairs of a shared receive queue. Held over `WrHandler::complete` of its receives | process, softirq |
//! | `rdma::Queue::lists` | the slots of a queue. Held over the driver's `post_send` and over `WrHandler::cancel` | process, softirq |
//! | `QpGrants::keys` | the grants of a queue pair | process, softirq |
//! | `Ring::state` | a completion ring. Held while its eventfd is signaled | process, softirq |
//! | `FileEvents::log` | event records. Taken under drivers' locks | process, softirq, hardirq |
//! | `Ring::wakeups` | the wake-ups of threads that wait for completions | process, softirq, hardirq |
//! | wait queues (kernel) | waiters | process, softirq, hardirq |
//!
//! docs/internals.md gives the reasons for this order, the lifetime of each object, and the memory
//! ordering of each atomic.
//!
//! # Contexts
//!
//! | entry | context | rules |
//! |---|---|---|
//! | `open`, `ioctl`, `fdinfo`, debugfs | process | may sleep; hold no lock over copies from and to user space |
//! | `uring_cmd` | process: a task, an io_uring worker or the SQPOLL thread. `uring_lock` may be held; with `IO_URING_F_CANCEL` it is, in any kernel thread | copies from user space before it enters the gate; completes a started command only after the last reference to it is dropped |
//! | io_uring task work | the submitting task with `uring_lock` held, or a kernel thread if the task has exited | holds no object of a device, so device removal need not wait for it |
//! | `mmap` | process, `mmap_lock` held | enters the gate, takes `UlpFile::table`, copies nothing |
//! | `poll` | process | takes `FileEvents::log` |
//! | `read` | process | sleeps outside the gate until a signal, a record or device removal |
//! | `release` | process, perhaps exiting: no `current->files`, no `current->nsproxy` | destroys the objects; drains |
//! | `Client::add`, `remove` | process | `remove` is bounded: it waits only for guards, whose holders it wakes |
//! | connection manager handlers | process (the manager's workqueues), handler mutex held | may sleep. The manager runs one handler per CPU, for all users: they wait for other threads only as long as a driver's `ib_modify_qp()` takes, under `Connection::progress` or `rdma::Qp::modifying`. Do not enter the gate; drop no identifier |
//! | deadlines (`rdma::Queue::timer`) | process (a worker) | take `rdma::Queue::lists`, call its `WrHandler` |
//! | grant revocation work | process (the module's workqueue) | enters the gate; returns early on device removal |
//! | connection work | process (the module's workqueue) | does not enter the gate: `Connection::end`, which device removal calls, waits for it. Takes the steps of an attempt, and gives the identifier of one that failed back |
//! | completion handlers | process (a worker, or a thread that waits) or softirq, as CQ_CREATE chose | must not sleep |
//! | events of queue pairs, shared receive queues and completion queues | process, softirq or hardirq; interrupts off, under the driver's locks | store flags and records; wake waiters |
//! | events of ports and devices | process (a worker of the core, perhaps with `rtnl_lock`) | take `EventSubscribers::files` |

#![crate_name = "rust_ulp"]
#![deny(clippy::undocumented_unsafe_blocks)]

use ::kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::ext::compat::Parameter as _;

mod bindings;
#[macro_use]
mod ext;
mod logic;
mod rdma;
mod trace;
mod uapi;

mod cmd;
mod counters;
mod device;
mod events;
mod file;
mod fops;
mod limits;
mod object;
mod request;

module! {
    type: RustUlp,
    name: "rust_ulp",
    authors: ["The rust_ulp maintainers"],
    description: "Exposes RDMA verbs to user space",
    license: "GPL",
    params: {
        max_objects: u32 {
            default: 1024,
            description: "Maximum objects of one open file, 1 to 65536",
        },
        max_entries: u32 {
            default: 1 << 18,
            description: "Maximum entries of all queues of one open file together, at least 1",
        },
        max_user_objects: u32 {
            default: 16384,
            description: "Objects that all open files of one user may have together",
        },
        max_user_queues: u32 {
            default: 1 << 18,
            description: "KiB that drivers may allocate for all queues and keys of one user together, as estimated",
        },
        delivery: u32 {
            default: 1,
            description: "Context that delivers completions by default: 1 workqueue, 2 softirq",
        },
        user_softirq: u32 {
            default: 0,
            description: "1: processes without CAP_SYS_NICE may choose delivery by softirq",
        },
        user_vector: u32 {
            default: 1,
            description: "0: processes without CAP_SYS_NICE have completion vector 0",
        },
    },
}

/// The loaded module.
///
/// Dropping the fields in their order removes the file in debugfs and the device node, then all
/// RDMA devices, then waits for pending work, then removes the fault injection directory.
struct RustUlp {
    _files: ext::debugfs::File<device::Registry>,
    _chardev: ext::chardev::Registration<device::Registry>,
    _client: Pin<KBox<rdma::client::Registration<device::Registry>>>,
    _drain: ext::workqueue::Drain,
    _faults: ext::fault::Directory,
}

impl ::kernel::Module for RustUlp {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let parameters = limits::Parameters {
            max_objects: module_parameters::max_objects.value().get(),
            max_entries: module_parameters::max_entries.value().get(),
            max_user_objects: module_parameters::max_user_objects.value().get(),
            max_user_queues: module_parameters::max_user_queues.value().get(),
            delivery: module_parameters::delivery.value().get(),
            user_softirq: module_parameters::user_softirq.value().get(),
            user_vector: module_parameters::user_vector.value().get(),
        };
        let parameters = parameters.check()?;
        let faults = ext::fault::Directory::new(c"fail_rust_ulp");
        let workqueue = ext::workqueue::Workqueue::new(c"rust_ulp")?;
        let registry = Arc::pin_init(
            device::Registry::new(
                workqueue.clone(),
                parameters,
                limits::Users::new(&parameters)?,
            ),
            GFP_KERNEL,
        )?;
        let client = KBox::pin_init(
            rdma::client::Registration::new(registry.clone()),
            GFP_KERNEL,
        )?;
        let files = ext::debugfs::File::new(c"rust_ulp", c"files", registry.clone())?;
        Ok(Self {
            _files: files,
            _chardev: fops::register(registry)?,
            _client: client,
            _drain: ext::workqueue::Drain(workqueue),
            _faults: faults,
        })
    }
}
