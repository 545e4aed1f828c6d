// SPDX-License-Identifier: GPL-2.0

//! Devices, the files attached to them, and device removal. Runs in process context.
//!
//! `Registry::remove` removes a device in these steps:
//!
//! 1. It takes the device off the list, so that no file can attach to it.
//! 2. It closes the gate. New commands return ENODEV. It wakes the threads inside, which leave.
//! 3. When no guard is left, it destroys all objects of the attached files.
//!
//! The files are then disassociated: every call on them returns ENODEV.

use crate::{
    events::{
        EventSubscribers,
        FileEvents, //
    },
    ext::{
        debugfs::Show,
        errno::eopnotsupp,
        gate::{
            Gate,
            GateGuard, //
        },
        net::NetNs,
        workqueue::Workqueue, //
    },
    limits::{
        Parameters,
        Users, //
    },
    logic::numbered,
    rdma::{
        self,
        client::ClientSlot,
        gid::{
            Gid,
            GidType, //
        },
        silence::Silence, //
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
    seq_file::SeqFile,
    sync::{
        aref::ARef,
        Arc,
        ArcBorrow,
        Mutex, //
    }, //
};

/// The list of all devices.
#[pin_data]
pub(crate) struct Registry {
    /// No lock is taken under it: whoever looks at a device holds a reference instead, see
    /// [`Self::iter`].
    #[pin]
    devices: Mutex<KVec<Arc<Device>>>,
    workqueue: Arc<Workqueue>,
    parameters: Parameters,
    users: Arc<Users>,
}

/// The state of a device inside its gate.
pub(crate) struct DeviceState {
    device: ARef<rdma::device::Device>,
    /// Reports the device's events to the attached files.
    _events: Pin<KBox<rdma::event::Registration<EventSubscribers>>>,
    /// The attributes of the device.
    pub(crate) attributes: rdma::device::Attributes,
    /// The supported send opcodes of RC, UC and UD. Bit n stands for opcode n.
    pub(crate) send_ops: [u64; 3],
}

impl DeviceState {
    /// Returns the device.
    pub(crate) fn device(&self) -> &rdma::device::Device {
        &self.device
    }

    /// Returns the supported send opcodes of `qp_type`. Bit n stands for opcode n.
    pub(crate) fn send_ops(&self, qp_type: rdma::qp_attr::QpType) -> u64 {
        let [rc, uc, ud] = self.send_ops;
        match qp_type {
            rdma::qp_attr::QpType::Rc => rc,
            rdma::qp_attr::QpType::Uc => uc,
            rdma::qp_attr::QpType::Ud => ud,
        }
    }
}

/// A guard that prevents the removal of a device.
pub(crate) type DeviceGuard<'a> = GateGuard<'a, DeviceState>;

/// An open file that is attached to a device.
pub(crate) trait AttachedFile: Send + Sync {
    /// Returns the events of the file.
    fn events(&self) -> &Arc<FileEvents>;

    /// Prints the objects and counters of the file, whose caller is inside the gate. Sleeps.
    fn show(&self, m: &SeqFile);

    /// Wakes all threads of the file that wait inside the gate, for device removal.
    fn wake_waiters(&self);

    /// Disassociates the file from the device, whose gate is closed and has no guard. Sleeps.
    ///
    /// `last` is what the device was waited for in vain before: it is not waited for that again.
    /// Returns the same.
    fn disassociate(&self, last: Option<&Silence>) -> Arc<Silence>;
}

/// One device.
#[pin_data]
pub(crate) struct Device {
    index: u32,
    /// The name, as the core last gave it to [`Registry::add`](rdma::client::Client::add) or
    /// [`Registry::rename`](rdma::client::Client::rename). No lock is taken under it.
    #[pin]
    name: Mutex<[u8; rdma::device::NAME_MAX]>,
    #[pin]
    gate: Gate<DeviceState>,
    /// The attached files. Lock order: before `UlpFile::table`.
    #[pin]
    files: Mutex<KVVec<Arc<dyn AttachedFile>>>,
    subscribers: Arc<EventSubscribers>,
    workqueue: Arc<Workqueue>,
}

/// The suitability of a GID, best last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Other,
    LinkLocal,
    V2,
    V2Ipv4,
}

/// The preferred GID of a device.
#[derive(Clone, Copy)]
pub(crate) struct Choice {
    /// Whether the port is active.
    is_active: bool,
    rank: Rank,
    /// The port.
    pub(crate) port: u32,
    /// The index of the GID.
    pub(crate) gid_index: u32,
}

impl Choice {
    /// Returns whether this GID is a better default than `other`, of the same device or of another.
    ///
    /// A GID of an active port comes first: nothing can be sent from the others.
    pub(crate) fn is_better_than(&self, other: &Self) -> bool {
        (self.is_active, self.rank) > (other.is_active, other.rank)
    }
}

fn rank(gid: &Gid) -> Rank {
    match gid.gid_type {
        GidType::Ib => Rank::V2,
        GidType::RoceV2 if gid.is_ipv4() => Rank::V2Ipv4,
        _ if gid.is_link_local() => Rank::LinkLocal,
        GidType::RoceV2 => Rank::V2,
        GidType::RoceV1 => Rank::Other,
    }
}

/// Returns the preferred GID of `device` in the network namespace `net`, if it has any. Sleeps.
///
/// Prefers GIDs of active ports, and among those, in this order: RoCE v2 with an IPv4 address, RoCE
/// v2 with an IPv6 address, link-local addresses, and RoCE v1. GIDs whose netdev is in another
/// namespace do not count. Asks the driver for the state of each port once: that may take a command
/// of the firmware, or `rtnl_lock`.
pub(crate) fn choose(device: &rdma::device::Device, net: &NetNs) -> Option<Choice> {
    let mut best: Option<Choice> = None;
    // The last port, and whether it is active. The GIDs of a port follow each other.
    let mut last: Option<(u32, bool)> = None;
    device.for_each_gid(|port, index| {
        let Ok(gid) = device.gid(port, index, Some(net)) else {
            return;
        };
        if gid.foreign_net {
            return;
        }
        let is_active = match last {
            Some((number, is_active)) if number == port => is_active,
            _ => device.port(port).is_ok_and(|port| port.is_active()),
        };
        last = Some((port, is_active));
        let choice = Choice {
            is_active,
            rank: rank(&gid),
            port,
            gid_index: index,
        };
        if best.is_none_or(|was| choice.is_better_than(&was)) {
            best = Some(choice);
        }
    });
    best
}

/// Returns the send opcodes that a device and its driver support for kernel users, for RC, UC and
/// UD.
///
/// The module rejects requests with other opcodes, and queue pairs of a type without opcodes.
///
/// | excluded operation | reason |
/// |---|---|
/// | `ATOMIC_WRITE`, `FLUSH` | rxe: `init_send_wr()` in `rxe_verbs.c` copies neither address, nor key, nor type, so the peer gets those of an earlier request |
/// | `BIND_MW` | rxe: as above; the kernel has no memory windows |
/// | `RDMA_READ_WITH_INV`, `LOCAL_INV`, `REG_MR` | they change keys, which the module manages, see `rdma/mr.rs` |
/// | `SEND_WITH_INV` except on RC | IBA has it for RC only; rxe's `rxe_opcode.c` also accepts it for UC |
/// | `SEND_WITH_INV` on most drivers | untested, see [`rdma::device::Device::has_send_with_inv`] |
/// | atomics if `atomic_cap` is `IB_ATOMIC_NONE` | the device does not support them |
/// | atomics on some drivers | they refuse those of kernel queue pairs, see [`rdma::device::Device::posts_atomics`] |
/// | UC, UD | some drivers do not create such queue pairs, see [`rdma::device::Device::has_uc`] |
/// | masked atomics, TSO | rxe: no entry in `rxe_opcode.c` |
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

    let mut rc = RC;
    if attributes.atomic_cap != 0 && device.posts_atomics() {
        rc |= ATOMICS;
    }
    if device.has_send_with_inv() {
        rc |= ops(&[abi::WR_SEND_WITH_INV]);
    }
    let uc = if device.has_uc() { UC } else { 0 };
    let ud = if device.has_ud() { UD } else { 0 };
    [rc, uc, ud]
}

impl Registry {
    /// Creates an empty registry. Work of its devices runs on `workqueue`.
    pub(crate) fn new(
        workqueue: Arc<Workqueue>,
        parameters: Parameters,
        users: Arc<Users>,
    ) -> impl PinInit<Self> {
        pin_init!(Self {
            workqueue,
            parameters,
            users,
            devices <- new_mutex!(KVec::new(), "rust_ulp::Registry::devices"),
        })
    }

    /// Returns the module parameters.
    pub(crate) fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Returns the users and their limits.
    pub(crate) fn users(&self) -> &Arc<Users> {
        &self.users
    }

    /// Returns the devices in the order of their indices. The list is not locked meanwhile: devices
    /// may come and go. Sleeps.
    fn iter(&self) -> impl Iterator<Item = Arc<Device>> + '_ {
        let mut next = Some(0);
        core::iter::from_fn(move || {
            let from = next?;
            let devices = self.devices.lock();
            let later = devices.iter().filter(|device| device.index >= from);
            let device = later.min_by_key(|device| device.index)?.clone();
            drop(devices);
            next = device.index.checked_add(1);
            Some(device)
        })
    }

    /// Calls `f` for each device that files of processes in the network namespace `net` may attach
    /// to. Sleeps.
    pub(crate) fn for_each(&self, net: &NetNs, mut f: impl FnMut(&Device, &DeviceState)) {
        for device in self.iter() {
            let Ok(state) = device.gate.enter() else {
                continue;
            };
            if state.device.is_accessible_from(net) && state.device.obstacle().is_none() {
                f(&device, &state);
            }
        }
    }

    /// Returns the device `name`, or the device with the best GID if `name` is empty. Sleeps.
    ///
    /// Returns [`ENOENT`] unless processes in the network namespace `net` may use such a device, and
    /// [`eopnotsupp`] when `name` is a device that the module cannot serve. That is no default
    /// either.
    pub(crate) fn find(&self, net: &NetNs, name: &[u8]) -> Result<Arc<Device>> {
        let mut best: Option<(Choice, Arc<Device>)> = None;
        for device in self.iter() {
            let Ok(state) = device.gate.enter() else {
                continue;
            };
            if !state.device.is_accessible_from(net) {
                continue;
            }
            if !name.is_empty() {
                if name_of(&device.name()) == name {
                    check_service(&device, &state)?;
                    return Ok(device.clone());
                }
                continue;
            }
            if state.device.obstacle().is_some() {
                continue;
            }
            if let Some(choice) = choose(&state.device, net) {
                if best
                    .as_ref()
                    .is_none_or(|(was, _)| choice.is_better_than(was))
                {
                    best = Some((choice, device.clone()));
                }
            }
        }
        best.map(|(_, device)| device).ok_or(ENOENT)
    }
}

/// Returns [`eopnotsupp`] for a device that the module cannot serve.
fn check_service(device: &Device, state: &DeviceState) -> Result {
    if let Some(obstacle) = state.device.obstacle() {
        ulp_debug!("device {}: not attached, {}\n", device.index, obstacle);
        return Err(eopnotsupp());
    }
    Ok(())
}

/// Returns the part of `name` before its NUL.
pub(crate) fn name_of(name: &[u8]) -> &[u8] {
    let end = name.iter().position(|&byte| byte == 0);
    end.and_then(|end| name.get(..end)).unwrap_or(name)
}

impl Device {
    /// Returns the index that `rdma dev` shows.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// Returns the name, NUL-terminated and padded. While the device is renamed, that is the old or
    /// the new one. Sleeps.
    pub(crate) fn name(&self) -> [u8; rdma::device::NAME_MAX] {
        *self.name.lock()
    }

    /// Returns the workqueue for work on the device.
    pub(crate) fn workqueue(&self) -> &Workqueue {
        &self.workqueue
    }

    /// Enters the gate: the guard prevents the removal of the device. Returns [`ENODEV`] if the
    /// removal has begun.
    pub(crate) fn enter(&self) -> Result<DeviceGuard<'_>> {
        self.gate.enter()
    }

    /// Returns whether the removal of the device has begun.
    pub(crate) fn is_gone(&self) -> bool {
        self.gate.is_closed()
    }

    /// Adds `file` to the attached files. Sleeps.
    pub(crate) fn attach(&self, _guard: &DeviceGuard<'_>, file: Arc<dyn AttachedFile>) -> Result {
        let events = file.events().clone();
        self.subscribers.add(events.clone())?;
        self.files
            .lock()
            .push(file, GFP_KERNEL)
            .inspect_err(|_| self.subscribers.remove(&events))?;
        Ok(())
    }

    /// Removes `file`, which has no objects and creates no more, from the attached files.
    pub(crate) fn detach(&self, _guard: &DeviceGuard<'_>, file: &dyn AttachedFile) {
        self.subscribers.remove(file.events());
        let mut files = self.files.lock();
        let found = numbered(files.iter())
            .find_map(|(index, other)| core::ptr::addr_eq(&**other, file).then_some(index));
        let file = found.and_then(|index| files.remove(index as usize).ok());
        drop(files);
        drop(file);
    }
}

impl Show for Registry {
    /// Prints the objects and counters of all files that are attached to a device.
    fn show(&self, m: &SeqFile) {
        for device in self.iter() {
            if let Ok(_guard) = device.gate.enter() {
                for file in device.files.lock().iter() {
                    file.show(m);
                }
            }
        }
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
        if !device.raises_last_wqe() {
            // Nothing says when a queue pair has left a shared receive queue.
            attributes.max_srq = 0;
        }
        let index = attributes.index;
        let subscribers = EventSubscribers::new()?;
        let state = DeviceState {
            _events: KBox::pin_init(
                rdma::event::Registration::new(device, subscribers.clone()),
                GFP_KERNEL,
            )?,
            send_ops: capabilities(device, &attributes),
            attributes,
            device: device.into(),
        };
        let data = Arc::pin_init(
            try_pin_init!(Device {
                index,
                name <- new_mutex!(device.name(), "rust_ulp::Device::name"),
                gate <- Gate::new(state),
                files <- new_mutex!(KVVec::new(), "rust_ulp::Device::files"),
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
        // One wait in vain for a device that is going is enough for all files.
        let mut last = None;
        for file in files.iter() {
            last = Some(file.disassociate(last.as_deref()));
        }
        drop(files);
        // Drops the last reference to the device.
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
        *data.name.lock() = name;
        ulp_debug!(
            "device {}: now called {}\n",
            data.index,
            kernel::str::BStr::from_bytes(name_of(&name))
        );
        data.subscribers.report(abi::EVENT_DEVICE_RENAMED, 0);
    }
}
