// SPDX-License-Identifier: GPL-2.0

//! Open files.
//!
//! An open file owns the table of its objects and the network namespace of its opener. It uses its
//! device only inside the device's gate. Runs in process context.

use crate::{
    device::{
        name_of,
        AttachedFile,
        Device,
        DeviceGuard,
        Registry, //
    },
    events::FileEvents,
    ext::{
        errno::{
            ealready,
            edquot, //
        },
        net::NetNs,
        rwsem::{
            new_rwsem,
            RwSemaphore, //
        }, //
    },
    limits::UserCharge,
    logic::handle::Kind,
    object::{
        mmap::MmapOffsets,
        quota::Quota,
        room::Room,
        show::{
            show,
            Totals, //
        },
        table::{
            Charges,
            ObjectCharges,
            Stored, //
        },
        Object,
        ObjectTable, //
    },
    rdma::{
        cgroup::{
            Charge,
            Resource, //
        },
        silence::Silence, //
    },
    trace::{
        self,
        ulp_debug, //
    }, //
};
use kernel::{
    new_mutex,
    prelude::*,
    seq_file::SeqFile,
    seq_print,
    str::BStr,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        ArcBorrow,
        Mutex,
        SetOnce, //
    }, //
};

/// An open file.
#[pin_data]
pub(crate) struct UlpFile {
    /// Serial number, for tracepoints and debug messages.
    id: u32,
    registry: Arc<Registry>,
    net: NetNs,
    /// Serialises ATTACH. Lock order: before `Registry::devices` and the gate.
    #[pin]
    attaching: Mutex<()>,
    /// The device that the file is attached to; set once.
    device: SetOnce<Arc<Device>>,
    /// The bytes of an event, as the opener knows it. Set before `device`.
    event_size: Atomic<u32>,
    /// The objects. Lock order: after `mmap_lock` and `Device::files`, before the locks of objects.
    #[pin]
    table: RwSemaphore<ObjectTable>,
    mmap_offsets: Arc<MmapOffsets>,
    events: Arc<FileEvents>,
    /// Spare memory for lists of requests. Lock order: no lock is taken under it.
    #[pin]
    rooms: Mutex<[Option<Room>; 4]>,
    quota: Arc<Quota>,
    /// The number of destroyed objects that slots of queues still keep.
    lingering: Arc<Atomic<u32>>,
    /// For its shared receive queues.
    silence: Arc<Silence>,
    /// The charges for this file, to the rdma cgroup and the user of the task that attached it. Lock
    /// order: before `rdmacg_mutex` and `Users::list` only.
    #[pin]
    attached: Mutex<Option<(Charge, UserCharge)>>,
}

impl UlpFile {
    /// Opens a file in the network namespace of the current process. Sleeps.
    pub(crate) fn new(registry: &Arc<Registry>) -> Result<Arc<Self>> {
        static SERIAL: Atomic<i32> = Atomic::new(1);
        let id = SERIAL.fetch_add(1, Relaxed) as u32;
        let net = NetNs::current().ok_or(EINVAL)?;
        let events = FileEvents::new(id)?;
        let quota = Quota::new(registry.parameters().max_entries, registry.users().clone())?;
        let mmap_offsets = MmapOffsets::new()?;
        let silence = Silence::new()?;
        let lingering = Arc::new(Atomic::new(0), GFP_KERNEL_ACCOUNT)?;
        let this = Arc::pin_init(
            pin_init!(Self {
                id,
                registry: registry.clone(),
                net,
                attaching <- new_mutex!((), "rust_ulp::UlpFile::attaching"),
                device: SetOnce::new(),
                event_size: Atomic::new(0),
                table <- new_rwsem!(
                    ObjectTable::new(registry.parameters().max_objects),
                    "rust_ulp::UlpFile::table"
                ),
                mmap_offsets,
                events,
                rooms <- new_mutex!([const { None }; 4], "rust_ulp::UlpFile::rooms"),
                quota,
                lingering,
                silence,
                attached <- new_mutex!(None, "rust_ulp::UlpFile::attached"),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        trace::open(id);
        Ok(this)
    }

    /// Destroys all objects, after the last descriptor of the file was closed. Sleeps.
    pub(crate) fn release(this: Arc<Self>) {
        trace::release(this.id);
        if let Ok(device) = this.device() {
            // If the gate is closed, device removal tears the file down.
            if let Ok(guard) = device.enter() {
                this.tear_down();
                drop(this.attached.lock().take());
                device.detach(&guard, &*this);
            }
        }
        ulp_debug!("file {}: released\n", this.id);
    }

    /// Returns the serial number.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Returns the network namespace of the opener.
    pub(crate) fn net(&self) -> &NetNs {
        &self.net
    }

    /// Returns the list of all devices.
    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Returns the object table. Its lock must not be held over a copy from or to user space, or
    /// over a wait.
    pub(crate) fn table(&self) -> &RwSemaphore<ObjectTable> {
        &self.table
    }

    /// Returns the events of the file, with its pollers.
    pub(crate) fn events(&self) -> &Arc<FileEvents> {
        &self.events
    }

    /// Returns the offsets at which user space maps objects.
    pub(crate) fn mmap_offsets(&self) -> &Arc<MmapOffsets> {
        &self.mmap_offsets
    }

    /// Returns the quota of queue entries.
    pub(crate) fn quota(&self) -> &Arc<Quota> {
        &self.quota
    }

    /// Returns what the shared receive queues know of a device that fails.
    pub(crate) fn silence(&self) -> &Arc<Silence> {
        &self.silence
    }

    /// Returns the device that the file is attached to, or [`ENXIO`].
    pub(crate) fn device(&self) -> Result<&Arc<Device>> {
        self.device.as_ref().ok_or(ENXIO)
    }

    /// Enters the gate of the device. Returns [`ENXIO`] if the file is not attached, and [`ENODEV`]
    /// if the device was removed.
    pub(crate) fn enter(&self) -> Result<DeviceGuard<'_>> {
        self.device()?.enter()
    }

    /// Returns the bytes of an event, as the opener knows it; 0 if the file is not attached.
    pub(crate) fn event_size(&self) -> usize {
        self.event_size.load(Relaxed) as usize
    }

    /// Attaches the file to the device `name`, or to the default device if `name` is empty. Events
    /// have `event_size` bytes. Sleeps.
    ///
    /// Returns [`ENOENT`] if there is no such device, [`ealready`] if the file is attached, and
    /// [`edquot`] if the limit of the rdma cgroup or of the user is reached.
    pub(crate) fn attach(this: ArcBorrow<'_, Self>, name: &[u8], event_size: u32) -> Result {
        let _attaching = this.attaching.lock();
        if this.device.as_ref().is_some() {
            return Err(ealready());
        }
        let device = this.registry.find(&this.net, name)?;
        // The device may have been removed since `find`.
        let guard = device.enter().map_err(|_| ENOENT)?;
        let charge = Charge::new(guard.device(), Resource::Handle)?;
        let charges = (charge, this.registry.users().charge(1, 0)?);
        device.attach(&guard, Arc::<Self>::from(this))?;
        this.event_size.store(event_size, Relaxed);
        this.device.populate(device.clone());
        *this.attached.lock() = Some(charges);
        ulp_debug!("file {}: attached to device {}\n", this.id, device.index());
        Ok(())
    }

    /// Charges the current process for `object`. Sleeps.
    fn charge(&self, object: &Object) -> Result<Charges> {
        let (count, bytes) = object.weight();
        let device = self.enter()?;
        let mut verbs = KVVec::with_capacity(count as usize, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..count {
            let charge = Charge::new(device.device(), Resource::Object)?;
            verbs.push(charge, GFP_KERNEL_ACCOUNT)?;
        }
        ObjectCharges::new(
            verbs,
            self.registry.users().charge(1, bytes)?,
            &self.lingering,
        )
    }

    /// Adds `object` to the table and returns its handle, which the caller commits or aborts.
    /// Sleeps.
    ///
    /// Returns [`EMFILE`] if the table is full, and [`edquot`] if the
    /// limit of the rdma cgroup or of the user is reached.
    pub(crate) fn alloc_begin(&self, object: Object) -> Result<u32> {
        let (kind, number) = (object.kind(), object.number());
        let charges = match self.charge(&object) {
            Err(err) if err == edquot() => {
                // The slots of completed requests may hold charges yet.
                self.purge()?;
                self.charge(&object)
            }
            result => result,
        }?;
        object.hold(&charges);
        let handle = self.table.write().alloc_begin(object, charges)?;
        trace::object_create(self.id, kind as u32, handle, number);
        Ok(handle)
    }

    /// Destroys an object. Sleeps.
    ///
    /// Returns [`ENOENT`] if there is no such object, [`EBUSY`] if another object uses it, and
    /// [`EIO`] if it is a grant whose key the driver does not revoke.
    pub(crate) fn destroy(&self, _device: &DeviceGuard<'_>, handle: u32) -> Result {
        let grant = match self.table.read().get(handle)? {
            Object::Grant(grant) => Some(grant.clone()),
            _ => None,
        };
        if let Some(grant) = grant {
            // Revoke the key even if another command holds a reference.
            grant.end()?;
        }
        let (object, charges) = self.table.write().remove(handle)?;
        self.drop_object(handle, object, charges);
        Ok(())
    }

    /// Destroys an object whose handle was not committed. Sleeps.
    pub(crate) fn alloc_abort(&self, _device: &DeviceGuard<'_>, handle: u32) -> Result {
        let (object, charges) = self.table.write().remove(handle)?;
        self.drop_object(handle, object, charges);
        Ok(())
    }

    /// Drops an object that was removed from the table with its `charges`. Sleeps.
    fn drop_object(&self, handle: u32, object: Object, charges: Option<Charges>) {
        let kind = object.kind();
        trace::object_destroy(self.id, kind as u32, handle, object.number());
        // A thread that waits for the object holds a reference, and has no other reason to wake up.
        object.end(ENOENT);
        if let Object::Grant(grant) = &object {
            // If its handle was not committed, nobody knows the key.
            let _ = grant.end();
        }
        // A slot keeps regions and addresses with their charges, see `Object::hold`.
        let can_linger = matches!(kind, Kind::Buffer | Kind::Ah);
        if let Some(charges) = charges.as_ref().filter(|_| can_linger) {
            charges.note_destroyed();
        }
        drop(object);
        // After what they are for.
        drop(charges);
        if can_linger && self.lingering.load(Relaxed) > 0 {
            // If memory is short, the slots drop their references when they are used again.
            let _ = self.purge();
        }
    }

    /// Drops the references that slots of completed requests hold to memory regions and address
    /// handles. Sleeps.
    ///
    /// Looks at each object of the file, at most `max_objects`, and at each slot that was used since
    /// the last call.
    fn purge(&self) -> Result {
        let mut queues = KVVec::new();
        let table = self.table.read();
        for (_, object) in table.iter() {
            if matches!(object, Object::Qp(_) | Object::Srq(_)) {
                queues.push(object.clone(), GFP_KERNEL_ACCOUNT)?;
            }
        }
        drop(table);
        for object in queues.iter() {
            match object {
                Object::Qp(qp) => qp.qp().purge(),
                Object::Srq(srq) => srq.srq().purge(),
                _ => (),
            }
        }
        Ok(())
    }

    /// Destroys all objects, each before the objects that it uses. Sleeps.
    ///
    /// No other thread may be able to create objects: the gate is closed and has no guard, or the
    /// file is released.
    fn tear_down(&self) {
        for kind in Kind::TEARDOWN {
            let mut from = 0;
            loop {
                let next = self.table.write().take_next(kind, &mut from);
                let Some((handle, object, charges)) = next else {
                    break;
                };
                trace::object_destroy(self.id, kind as u32, handle, object.number());
                object.end(ENODEV);
                drop(object);
                drop(charges);
            }
        }
    }

    /// Takes spare memory for a list of requests, or allocates it. Sleeps.
    pub(crate) fn take_room(&self) -> Result<Room> {
        let kept = self.rooms.lock().iter_mut().find_map(Option::take);
        kept.map_or_else(Room::new, Ok)
    }

    /// Keeps that memory for reuse, or frees it if there is enough.
    pub(crate) fn give_room(&self, room: Room) {
        let mut room = Some(room);
        if let Some(spare) = self.rooms.lock().iter_mut().find(|it| it.is_none()) {
            core::mem::swap(spare, &mut room);
        }
    }
}

impl AttachedFile for UlpFile {
    fn events(&self) -> &Arc<FileEvents> {
        &self.events
    }

    fn show(&self, m: &SeqFile) {
        let Ok(name) = self.device().map(|device| device.name()) else {
            return;
        };
        let (used, limit) = self.quota.usage();
        seq_print!(
            m,
            "rust_ulp-file:\t{}\nrust_ulp-device:\t{}\nrust_ulp-entries:\t{} of {}\n",
            self.id,
            BStr::from_bytes(name_of(&name)),
            used,
            limit
        );
        let Ok(totals) = Totals::new(&self.events.ended) else {
            return;
        };
        for (handle, object) in self.table.read().iter() {
            show(m, handle, object);
            totals.add(object);
        }
        totals.show(m);
    }

    fn wake_waiters(&self) {
        for (_, object) in self.table.read().iter() {
            object.wake_waiters(ENODEV);
        }
        self.events.wait.notify_all();
    }

    fn disassociate(&self, last: Option<&Silence>) -> Arc<Silence> {
        if let Some(last) = last {
            self.silence.note(last);
        }
        self.tear_down();
        drop(self.attached.lock().take());
        self.events.end();
        self.silence.clone()
    }
}
