// SPDX-License-Identifier: GPL-2.0

//! An open file.
//!
//! Owns the table of objects, and knows the network namespace of its opener. What it does to a
//! device it does inside the device's gate.

use crate::{
    device::{
        AttachedFile,
        Device,
        DeviceGuard,
        Registry, //
    },
    events::FileEvents,
    kernel::{
        errno::ealready,
        net::NetNs, //
    },
    logic::handle::Kind,
    object::{
        batch::Batch,
        listener::PendingConns,
        quota::Quota,
        table::Stored,
        Object,
        ObjectTable, //
    },
    rdma::cgroup::{
        Charge,
        Resource, //
    },
    trace::{
        self,
        ulp_debug, //
    }, //
};
use kernel::{
    new_mutex,
    prelude::*,
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
    /// Serial number, for traces.
    id: u32,
    registry: Arc<Registry>,
    net: NetNs,
    /// Serialises ATTACH.
    #[pin]
    attaching: Mutex<()>,
    /// The device that the file is attached to; set once.
    device: SetOnce<Arc<Device>>,
    #[pin]
    table: Mutex<ObjectTable>,
    events: Arc<FileEvents>,
    pending: Arc<PendingConns>,
    /// Spare batches for those who submit.
    #[pin]
    batches: Mutex<[Option<KBox<Batch>>; 4]>,
    quota: Arc<Quota>,
    /// That it is attached, as the rdma cgroup of who did that counts it.
    #[pin]
    attached: Mutex<Option<Charge>>,
}

impl UlpFile {
    /// Opens a file in the network namespace of the current process. Sleeps.
    pub(crate) fn new(registry: &Arc<Registry>) -> Result<Arc<Self>> {
        static SERIAL: Atomic<i32> = Atomic::new(1);
        let id = SERIAL.fetch_add(1, Relaxed) as u32;
        let net = NetNs::current().ok_or(EINVAL)?;
        let events = FileEvents::new(id)?;
        let max_objects = registry.parameters().max_objects;
        let quota = Quota::new(registry.parameters().max_entries)?;
        let pending = Arc::new(PendingConns::new(max_objects), GFP_KERNEL_ACCOUNT)?;
        let this = Arc::pin_init(
            pin_init!(Self {
                id,
                registry: registry.clone(),
                net,
                attaching <- new_mutex!((), "rust_ulp::UlpFile::attaching"),
                device: SetOnce::new(),
                table <- new_mutex!(
                    ObjectTable::new(max_objects),
                    "rust_ulp::UlpFile::table"
                ),
                events,
                pending,
                batches <- new_mutex!([const { None }; 4], "rust_ulp::UlpFile::batches"),
                quota,
                attached <- new_mutex!(None, "rust_ulp::UlpFile::attached"),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        trace::open(id);
        Ok(this)
    }

    /// The last reference to the file is gone. Sleeps.
    pub(crate) fn release(this: Arc<Self>) {
        trace::release(this.id);
        if let Ok(device) = this.device() {
            // With the gate closed it is the device's removal that tears everything down.
            if let Ok(alive) = device.enter() {
                this.tear_down();
                drop(this.attached.lock().take());
                device.detach(&alive, &*this);
            }
        }
        ulp_debug!("file {}: released\n", this.id);
    }

    /// Its serial number.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// The namespace of its opener.
    pub(crate) fn net(&self) -> &NetNs {
        &self.net
    }

    /// All devices.
    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The table of its objects. Hold its lock over no copy from or to user space, and no wait.
    pub(crate) fn table(&self) -> &Mutex<ObjectTable> {
        &self.table
    }

    /// Its events, and those who poll it.
    pub(crate) fn events(&self) -> &Arc<FileEvents> {
        &self.events
    }

    /// The requests for connections that wait.
    pub(crate) fn pending_conns(&self) -> &Arc<PendingConns> {
        &self.pending
    }

    /// What its queues may have.
    pub(crate) fn quota(&self) -> &Arc<Quota> {
        &self.quota
    }

    /// The device it is attached to; [`ENXIO`] when to none.
    pub(crate) fn device(&self) -> Result<&Arc<Device>> {
        self.device.as_ref().ok_or(ENXIO)
    }

    /// Goes into its device's gate. [`ENXIO`], [`ENODEV`].
    pub(crate) fn enter(&self) -> Result<DeviceGuard<'_>> {
        self.device()?.enter()
    }

    /// Attaches it to the device called `name`, or the best one when that is empty. Sleeps.
    ///
    /// [`ENOENT`] when there is none, [`ealready`] when it is attached.
    pub(crate) fn attach(this: ArcBorrow<'_, Self>, name: &[u8]) -> Result {
        let _attaching = this.attaching.lock();
        if this.device.as_ref().is_some() {
            return Err(ealready());
        }
        let device = this.registry.find(&this.net, name)?;
        // A device that goes meanwhile is one that is not there.
        let alive = device.enter().map_err(|_| ENOENT)?;
        let charge = Charge::new(alive.device(), Resource::Handle)?;
        device.attach(&alive, Arc::<Self>::from(this))?;
        this.device.populate(device.clone());
        *this.attached.lock() = Some(charge);
        ulp_debug!("file {}: attached to device {}\n", this.id, device.index());
        Ok(())
    }

    /// Adds `object` to the table and returns its handle, which is to be committed. Sleeps.
    ///
    /// [`EMFILE`] when the table is full, [`edquot`](crate::kernel::errno::edquot) when the rdma cgroup
    /// allows no more.
    pub(crate) fn alloc_begin(&self, object: Object) -> Result<u32> {
        let (kind, number) = (object.kind(), object.number());
        let charge = Charge::new(self.enter()?.device(), Resource::Object)?;
        let handle = self.table.lock().alloc_begin(object, charge)?;
        trace::object_create(self.id, kind as u32, handle, number);
        Ok(handle)
    }

    /// Destroys the object that `handle` names. Sleeps.
    pub(crate) fn destroy(&self, _device: &DeviceGuard<'_>, handle: u32) -> Result {
        let object = self.table.lock().remove(handle)?;
        self.drop_object(handle, object);
        Ok(())
    }

    /// Destroys an object whose handle was not committed. Sleeps.
    pub(crate) fn alloc_abort(&self, _device: &DeviceGuard<'_>, handle: u32) -> Result {
        let object = self.table.lock().alloc_abort(handle)?;
        self.drop_object(handle, object);
        Ok(())
    }

    /// Removes an object whose handle was not committed, for another use.
    pub(crate) fn withdraw(&self, _device: &DeviceGuard<'_>, handle: u32) -> Result<Object> {
        let object = self.table.lock().alloc_abort(handle)?;
        trace::object_destroy(self.id, object.kind() as u32, handle, object.number());
        Ok(object)
    }

    /// Drops an object that was removed from the table. Sleeps.
    fn drop_object(&self, handle: u32, object: Object) {
        let kind = object.kind();
        trace::object_destroy(self.id, kind as u32, handle, object.number());
        // A thread that waits for the object holds it, and nothing else would wake that thread.
        object.wake_waiters(EBADF);
        if let Object::Grant(grant) = &object {
            // Another command may hold it: its key dies now all the same.
            grant.end();
        }
        drop(object);
        if matches!(kind, Kind::Buffer | Kind::Ah) {
            // What this cannot do for want of memory, the next use of the slots does.
            let _ = self.purge();
        }
    }

    /// Lets go of memory that only requests which are done still refer to. Sleeps.
    fn purge(&self) -> Result {
        let mut queues = KVVec::new();
        let table = self.table.lock();
        for (_, object) in table.iter() {
            if matches!(object, Object::Qp(_) | Object::Srq(_)) {
                queues.push(object.clone(), GFP_KERNEL)?;
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

    /// Destroys everything, users before what they use. Sleeps.
    ///
    /// Nobody may be able to make anything any more: the gate is closed and empty, or the file is
    /// released.
    fn tear_down(&self) {
        for kind in Kind::TEARDOWN {
            loop {
                let Some((handle, object)) = self.table.lock().take_any(kind) else {
                    break;
                };
                trace::object_destroy(self.id, kind as u32, handle, object.number());
                object.wake_waiters(ENODEV);
                drop(object);
            }
        }
    }

    /// Lends the room for a batch, or makes some.
    pub(crate) fn take_batch(&self) -> Result<KBox<Batch>> {
        let kept = self.batches.lock().iter_mut().find_map(Option::take);
        if let Some(batch) = kept {
            return Ok(batch);
        }
        Ok(KBox::new(Batch::new(), GFP_KERNEL_ACCOUNT)?)
    }

    /// Takes the room back.
    pub(crate) fn give_batch(&self, batch: KBox<Batch>) {
        let mut batch = Some(batch);
        if let Some(spare) = self.batches.lock().iter_mut().find(|it| it.is_none()) {
            core::mem::swap(spare, &mut batch);
        }
        // More than are kept go.
        drop(batch);
    }
}

impl AttachedFile for UlpFile {
    fn events(&self) -> &Arc<FileEvents> {
        &self.events
    }

    fn wake_waiters(&self) {
        for (_, object) in self.table.lock().iter() {
            object.wake_waiters(ENODEV);
        }
        self.events.wait.notify_all();
    }

    fn disassociate(&self) {
        self.tear_down();
        drop(self.attached.lock().take());
        self.events.end();
    }
}
