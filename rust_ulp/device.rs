// SPDX-License-Identifier: GPL-2.0

//! Devices: which there are, which files are attached to them, and how they go.
//!
//! Owns the gate of each device. Runs in process context.
//!
//! A device goes like this. `remove` takes it off the list, so that no file finds it any more, and
//! closes its gate: calls from now on are ENODEV, waiters are woken and leave. When nobody is
//! inside, everything that the attached files had made is destroyed, and `remove` returns. The
//! files are disassociated from then on: every call on them returns `ENODEV`.

use crate::{
    events::{
        EventSubscribers,
        FileEvents, //
    },
    kernel::{
        gate::{
            Gate,
            GateGuard, //
        },
        net::NetNs,
        workqueue::Workqueue, //
    },
    limits::Parameters,
    logic::numbered,
    rdma::{
        self,
        client::ClientSlot,
        gid::{
            Gid,
            GidType, //
        }, //
    },
    trace::{
        self,
        ulp_debug, //
    },
    uapi::abi, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        aref::ARef,
        Arc,
        ArcBorrow,
        Mutex, //
    }, //
};

/// All devices.
#[pin_data]
pub(crate) struct Registry {
    #[pin]
    devices: Mutex<KVec<Arc<Device>>>,
    workqueue: Arc<Workqueue>,
    parameters: Parameters,
}

/// What can be used while the gate is open.
pub(crate) struct DeviceState {
    device: ARef<rdma::device::Device>,
    /// Tells the attached files of the device's events.
    _events: Pin<KBox<rdma::event::Registration<EventSubscribers>>>,
    /// What the device can do.
    pub(crate) attributes: rdma::device::Attributes,
    /// Opcodes that work, for RC, UC and UD.
    pub(crate) send_ops: [u64; 3],
    /// Whether it speaks iWARP.
    pub(crate) is_iwarp: bool,
}

impl DeviceState {
    /// The device.
    pub(crate) fn device(&self) -> &rdma::device::Device {
        &self.device
    }

    /// Opcodes of send requests that work on queue pairs of `qp_type` here.
    pub(crate) fn send_ops(&self, qp_type: rdma::qp_attr::QpType) -> u64 {
        let [rc, uc, ud] = self.send_ops;
        match qp_type {
            rdma::qp_attr::QpType::Rc => rc,
            rdma::qp_attr::QpType::Uc => uc,
            rdma::qp_attr::QpType::Ud => ud,
        }
    }
}

/// Leave to use a device.
pub(crate) type DeviceGuard<'a> = GateGuard<'a, DeviceState>;

/// An open file that is attached to a device.
pub(crate) trait AttachedFile: Send + Sync {
    /// Its events.
    fn events(&self) -> &Arc<FileEvents>;

    /// Wakes those who wait inside the gate: the device goes.
    fn wake_waiters(&self);

    /// Disassociates it from the device, whose gate is closed with nobody inside. Sleeps.
    fn disassociate(&self);
}

/// One device.
#[pin_data]
pub(crate) struct Device {
    index: u32,
    #[pin]
    gate: Gate<DeviceState>,
    /// The files attached.
    #[pin]
    files: Mutex<KVec<Arc<dyn AttachedFile>>>,
    subscribers: Arc<EventSubscribers>,
    workqueue: Arc<Workqueue>,
}

/// Why a GID was preferred, best last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Foreign,
    Other,
    LinkLocal,
    V2,
    V2Ipv4,
}

/// A port and a GID index that are a good choice.
#[derive(Clone, Copy)]
pub(crate) struct Choice {
    rank: Rank,
    /// Port.
    pub(crate) port: u32,
    /// Index of the GID.
    pub(crate) gid_index: u32,
}

fn rank(gid: &Gid) -> Rank {
    match gid.gid_type {
        GidType::Ib => Rank::V2,
        _ if !gid.local_net => Rank::Foreign,
        GidType::RoceV2 if gid.is_ipv4() => Rank::V2Ipv4,
        _ if gid.is_link_local() => Rank::LinkLocal,
        GidType::RoceV2 => Rank::V2,
        GidType::RoceV1 => Rank::Other,
    }
}

/// The GID of `device` to use from `net`: RoCE v2 with an IPv4 address of a netdev in that
/// namespace before one with an IPv6 address, that before link-local ones, those before RoCE v1
/// and those before any of another namespace. Ports that are not active come last. Sleeps.
pub(crate) fn choose(device: &rdma::device::Device, net: &NetNs) -> Option<Choice> {
    let mut best: Option<(bool, Choice)> = None;
    device.for_each_gid(|port, index| {
        let Ok(gid) = device.gid(port, index, net) else {
            return;
        };
        // IB_PORT_ACTIVE
        let active = device.port(port).is_ok_and(|port| port.state() == 4);
        let choice = Choice {
            rank: rank(&gid),
            port,
            gid_index: index,
        };
        let better = match &best {
            None => true,
            Some((was_active, was)) => (active, choice.rank) > (*was_active, was.rank),
        };
        if better {
            best = Some((active, choice));
        }
    });
    best.map(|(_, choice)| choice)
}

impl Choice {
    /// Whether its netdev is in the namespace that was asked for, or it needs none.
    pub(crate) fn is_local(&self) -> bool {
        self.rank != Rank::Foreign
    }
}

/// Opcodes that a device and its driver carry out for kernel users, for RC, UC and UD. What would
/// misbehave is left out: a request with it is refused, and so is a queue pair of a type that has
/// none.
///
/// | operation | left out because |
/// |---|---|
/// | `ATOMIC_WRITE`, `FLUSH` | rxe: `init_send_wr()` in `rxe_verbs.c` copies neither address, nor key, nor type, so the peer gets those of the request that had the place in the ring before |
/// | `BIND_MW` | rxe: as above; and the kernel has no memory windows |
/// | `RDMA_READ_WITH_INV`, `LOCAL_INV`, `REG_MR` | they change keys: those are the module's, see `rdma/mr.rs` |
/// | `SEND_WITH_INV` but on RC | the standard has it for RC alone; rxe's `rxe_opcode.c` has it for UC too |
/// | `SEND_WITH_INV` but on rxe | it has not been tried; siw takes away any key of the domain that it is told (`siw_invalidate_stag()`), not only one that was granted to the peer |
/// | atomics where the device says `IB_ATOMIC_NONE` | |
/// | masked atomics, TSO | rxe: no entry in `rxe_opcode.c` |
/// | UC, UD, immediate data, atomics on iWARP | it has none; `siw_post_send()` leaves its queue full when it refuses a request |
fn capabilities(device: &rdma::device::Device, attributes: &rdma::device::Attributes) -> [u64; 3] {
    const fn ops(list: &[u8]) -> u64 {
        let mut bits = 0;
        let mut rest = list;
        while let [first, tail @ ..] = rest {
            bits |= 1u64 << (*first & 63);
            rest = tail;
        }
        bits
    }
    const UD: u64 = ops(&[abi::WR_SEND, abi::WR_SEND_WITH_IMM]);
    const UC: u64 = UD | ops(&[abi::WR_RDMA_WRITE, abi::WR_RDMA_WRITE_WITH_IMM]);
    const RC: u64 = UC | ops(&[abi::WR_RDMA_READ]);
    const ATOMICS: u64 = ops(&[abi::WR_ATOMIC_CMP_AND_SWP, abi::WR_ATOMIC_FETCH_AND_ADD]);

    if device.is_iwarp() {
        let rc = ops(&[abi::WR_SEND, abi::WR_RDMA_WRITE, abi::WR_RDMA_READ]);
        return [rc, 0, 0];
    }
    let mut rc = RC;
    if attributes.atomic_cap != 0 {
        rc |= ATOMICS;
    }
    if device.is_driven_by(c"rdma_rxe") {
        rc |= ops(&[abi::WR_SEND_WITH_INV]);
    }
    [rc, UC, UD]
}

impl Registry {
    /// An empty registry, whose devices have their work done by `workqueue`.
    pub(crate) fn new(workqueue: Arc<Workqueue>, parameters: Parameters) -> impl PinInit<Self> {
        pin_init!(Self {
            workqueue,
            parameters,
            devices <- new_mutex!(KVec::new(), "rust_ulp::Registry::devices"),
        })
    }

    /// The parameters of the module.
    pub(crate) fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Calls `f` for each device that processes in `net` may use. Sleeps.
    pub(crate) fn for_each(&self, net: &NetNs, mut f: impl FnMut(&Device, &DeviceState)) {
        for device in self.devices.lock().iter() {
            let Ok(state) = device.gate.enter() else {
                continue;
            };
            if state.device.is_accessible_from(net) {
                f(device, &state);
            }
        }
    }

    /// The device of that name that processes in `net` may use, or with an empty name the one that
    /// has the best GID for them. Sleeps.
    ///
    /// [`ENOENT`] when there is none.
    pub(crate) fn find(&self, net: &NetNs, name: &[u8]) -> Result<Arc<Device>> {
        let mut best: Option<(Choice, Arc<Device>)> = None;
        for device in self.devices.lock().iter() {
            let Ok(state) = device.gate.enter() else {
                continue;
            };
            if !state.device.is_accessible_from(net) {
                continue;
            }
            if !name.is_empty() {
                if name_of(&state.device.name()) == name {
                    return Ok(device.clone());
                }
                continue;
            }
            if let Some(choice) = choose(&state.device, net).filter(Choice::is_local) {
                if best.as_ref().is_none_or(|(was, _)| choice.rank > was.rank) {
                    best = Some((choice, device.clone()));
                }
            }
        }
        best.map(|(_, device)| device).ok_or(ENOENT)
    }
}

/// The part of `name` before its NUL.
pub(crate) fn name_of(name: &[u8]) -> &[u8] {
    let end = name.iter().position(|&byte| byte == 0);
    end.and_then(|end| name.get(..end)).unwrap_or(name)
}

impl Device {
    /// The number by which `rdma dev` shows it.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// Where work on it is done.
    pub(crate) fn workqueue(&self) -> &Workqueue {
        &self.workqueue
    }

    /// Goes in: while the result lives, the device stays. [`ENODEV`] when it is going.
    pub(crate) fn enter(&self) -> Result<DeviceGuard<'_>> {
        self.gate.enter()
    }

    /// Whether it is gone, or going.
    pub(crate) fn is_gone(&self) -> bool {
        self.gate.is_closed()
    }

    /// Notes that `file` makes objects here. Sleeps.
    pub(crate) fn attach(&self, _alive: &DeviceGuard<'_>, file: Arc<dyn AttachedFile>) -> Result {
        let events = file.events().clone();
        self.subscribers.add(events.clone())?;
        self.files
            .lock()
            .push(file, GFP_KERNEL)
            .inspect_err(|_| self.subscribers.remove(&events))?;
        Ok(())
    }

    /// Forgets `file`, which has made its last object.
    pub(crate) fn detach(&self, _alive: &DeviceGuard<'_>, file: &dyn AttachedFile) {
        self.subscribers.remove(file.events());
        let mut found = None;
        let mut files = self.files.lock();
        for (index, other) in numbered(files.iter()) {
            if core::ptr::addr_eq(&**other, file) {
                found = Some(index);
                break;
            }
        }
        let file = found.and_then(|index| files.remove(index as usize).ok());
        drop(files);
        drop(file);
    }
}

impl rdma::client::Client for Registry {
    type Data = Device;

    const NAME: &'static CStr = c"rust_ulp";

    fn slot() -> &'static ClientSlot<Self> {
        static SLOT: ClientSlot<Registry> = ClientSlot::new();
        &SLOT
    }

    fn add(&self, device: &rdma::device::Device) -> Result<Arc<Device>> {
        let mut attributes = device.attributes();
        if device.is_iwarp() {
            // Nobody has looked how its queue pairs leave one.
            attributes.max_srq = 0;
            // siw looks for the memory of a second element where it found that of the first
            // (`siw_tx_hdt()`).
            attributes.max_send_sge = 1;
        }
        let index = attributes.index;
        let subscribers = EventSubscribers::new()?;
        let state = DeviceState {
            _events: KBox::pin_init(
                rdma::event::Registration::new(device, subscribers.clone()),
                GFP_KERNEL,
            )?,
            send_ops: capabilities(device, &attributes),
            is_iwarp: device.is_iwarp(),
            attributes,
            device: device.into(),
        };
        let data = Arc::pin_init(
            try_pin_init!(Device {
                index,
                gate <- Gate::new(state),
                files <- new_mutex!(KVec::new(), "rust_ulp::Device::files"),
                subscribers,
                workqueue: self.workqueue.clone(),
            }? Error),
            GFP_KERNEL,
        )?;
        self.devices.lock().push(data.clone(), GFP_KERNEL)?;
        trace::device_add(index);
        ulp_debug!("device {}: added\n", index);
        Ok(data)
    }

    fn remove(&self, _device: &rdma::device::Device, data: Arc<Device>) {
        trace::device_remove(data.index);
        self.devices
            .lock()
            .retain(|other| !Arc::ptr_eq(other, &data));
        let state = data.gate.close(|| {
            for file in data.files.lock().iter() {
                file.wake_waiters();
            }
        });
        let files = core::mem::take(&mut *data.files.lock());
        let count = files.len();
        for file in files.iter() {
            file.disassociate();
        }
        drop(files);
        // The last reference to the device.
        drop(state);
        trace::device_removed(data.index);
        ulp_debug!(
            "device {}: removed, {} files disassociated\n",
            data.index,
            count
        );
    }

    fn rename(&self, device: &rdma::device::Device, data: ArcBorrow<'_, Device>) {
        let name = device.name();
        ulp_debug!(
            "device {}: now called {}\n",
            data.index,
            kernel::str::BStr::from_bytes(name_of(&name))
        );
        data.subscribers.tell(abi::EVENT_DEVICE_RENAMED, 0);
    }
}
