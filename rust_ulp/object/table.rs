// SPDX-License-Identifier: GPL-2.0

//! The table of what an open file has made.
//!
//! Each object is found by its handle (`logic/handle.rs` says what is in one), in the file that
//! made it and nowhere else. The table is under the context's lock; whoever looks an object up
//! holds a reference to it, and may use it for as long as the device's gate lets it.

use super::{
    ah::AhObject,
    buffer::BufferObject,
    connection::Connection,
    cq::CqObject,
    grant::GrantObject,
    listener::Listener,
    pd::PdObject,
    qp::QpObject,
    srq::SrqObject, //
};
use crate::{
    kernel::errno::ebadfd,
    logic::{
        handle::{
            Handle,
            Kind,
            MAX_OBJECTS, //
        },
        numbered, //
    },
    rdma::cgroup::Charge, //
};
use core::ops::Deref;
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};

/// How many other objects need an object.
pub(crate) struct Users(Atomic<i32>);

impl Users {
    /// None yet.
    pub(crate) const fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// How many there are now.
    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.0.load(Relaxed)).unwrap_or(0)
    }
}

/// An object that others may need.
pub(crate) trait Needed {
    /// How many do.
    fn users(&self) -> &Users;
}

/// A reference to an object that must not be destroyed while this exists.
pub(crate) struct Need<T: Needed>(Arc<T>);

impl<T: Needed> Need<T> {
    fn new(object: Arc<T>) -> Self {
        // The table's lock orders this against `Table::remove`.
        object.users().0.add(1, Relaxed);
        Self(object)
    }
}

impl<T: Needed> Deref for Need<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Needed> Drop for Need<T> {
    fn drop(&mut self) {
        self.0.users().0.add(-1, Relaxed);
    }
}

/// Any object.
#[derive(Clone)]
pub(crate) enum Object {
    Pd(Arc<PdObject>),
    Cq(Arc<CqObject>),
    Qp(Arc<QpObject>),
    Buffer(Arc<BufferObject>),
    Grant(Arc<GrantObject>),
    Ah(Arc<AhObject>),
    Srq(Arc<SrqObject>),
    Listener(Arc<Listener>),
    Connection(Arc<Connection>),
}

impl Object {
    /// What it is.
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Pd(_) => Kind::Pd,
            Self::Cq(_) => Kind::Cq,
            Self::Qp(_) => Kind::Qp,
            Self::Buffer(_) => Kind::Buffer,
            Self::Grant(_) => Kind::Grant,
            Self::Ah(_) => Kind::Ah,
            Self::Srq(_) => Kind::Srq,
            Self::Listener(_) => Kind::Listener,
            Self::Connection(_) => Kind::Connection,
        }
    }

    fn users(&self) -> i32 {
        match self {
            Self::Pd(object) => object.users().0.load(Relaxed),
            Self::Cq(object) => object.users().0.load(Relaxed),
            Self::Buffer(object) => object.users().0.load(Relaxed),
            Self::Qp(object) => object.users().0.load(Relaxed),
            Self::Srq(object) => object.users().0.load(Relaxed),
            Self::Grant(_) | Self::Ah(_) | Self::Listener(_) | Self::Connection(_) => 0,
        }
    }

    /// Makes those who wait inside it leave, with `err`.
    pub(crate) fn shoo(&self, err: Error) {
        match self {
            Self::Pd(pd) => pd.close(err),
            Self::Cq(cq) => cq.ring().kill(),
            Self::Listener(listener) => listener.close(err),
            Self::Connection(connection) => connection.close(err),
            _ => (),
        }
    }

    /// The number of a queue pair, else 0.
    pub(crate) fn number(&self) -> u32 {
        match self {
            Self::Qp(qp) => qp.number(),
            _ => 0,
        }
    }
}

struct Entry {
    generation: u16,
    /// The next free entry, when this one is.
    next: u16,
    object: Option<Object>,
    /// What the rdma cgroup counts for it.
    charge: Option<Charge>,
    /// Whether user space knows the handle already.
    published: bool,
}

/// The table.
pub(crate) struct Table {
    entries: KVVec<Entry>,
    /// Free entries, the longest unused first.
    first_free: u16,
    last_free: u16,
    free: u32,
    used: u32,
    limit: u32,
}

macro_rules! lookups {
    ($($(#[$meta:meta])* $name:ident: $variant:ident($ty:ty);)*) => { $(
        $(#[$meta])*
        pub(crate) fn $name(&self, handle: u32) -> Result<&Arc<$ty>> {
            match self.get(handle)? {
                Object::$variant(object) => Ok(object),
                _ => Err(ebadfd()),
            }
        }
    )* };
}

impl Table {
    /// An empty table for at most `limit` objects.
    pub(crate) fn new(limit: u32) -> Self {
        Self {
            entries: KVVec::new(),
            first_free: 0,
            last_free: 0,
            free: 0,
            used: 0,
            limit: limit.min(MAX_OBJECTS),
        }
    }

    /// Adds `object`, with what is counted for it, and returns its handle, which finds nothing until it is published.
    ///
    /// [`EMFILE`] when the table is full. May sleep.
    pub(crate) fn insert(&mut self, object: Object, charge: Charge) -> Result<u32> {
        if self.used >= self.limit {
            return Err(EMFILE);
        }
        let kind = object.kind();
        let index = if self.free > 0 {
            let index = self.first_free;
            let entry = self.entries.get_mut(usize::from(index)).ok_or(EMFILE)?;
            self.first_free = entry.next;
            self.free = self.free.saturating_sub(1);
            entry.object = Some(object);
            entry.charge = Some(charge);
            entry.published = false;
            index
        } else {
            let index = u16::try_from(self.entries.len()).map_err(|_| EMFILE)?;
            let entry = Entry {
                generation: 0,
                next: 0,
                object: Some(object),
                charge: Some(charge),
                published: false,
            };
            self.entries.push(entry, GFP_KERNEL_ACCOUNT)?;
            index
        };
        self.used = self.used.saturating_add(1);
        let generation = self
            .entries
            .get(usize::from(index))
            .map_or(0, |entry| entry.generation);
        Ok(Handle {
            kind,
            index,
            generation,
        }
        .to_raw())
    }

    fn entry(&self, handle: Handle) -> Result<&Entry> {
        let entry = self.entries.get(usize::from(handle.index)).ok_or(EBADF)?;
        match &entry.object {
            Some(object)
                if entry.generation == handle.generation && object.kind() == handle.kind =>
            {
                Ok(entry)
            }
            _ => Err(EBADF),
        }
    }

    /// Lets `handle`, which came from [`Self::insert`], be found.
    ///
    /// [`ENODEV`] when the object was taken away meanwhile, with the device.
    pub(crate) fn publish(&mut self, handle: u32) -> Result {
        let handle = Handle::from_raw(handle).ok_or(ENODEV)?;
        self.entry(handle).map_err(|_| ENODEV)?;
        let entry = self
            .entries
            .get_mut(usize::from(handle.index))
            .ok_or(ENODEV)?;
        entry.published = true;
        Ok(())
    }

    /// The object that `handle` names. [`EBADF`] when there is none.
    pub(crate) fn get(&self, handle: u32) -> Result<&Object> {
        let entry = self.entry(Handle::from_raw(handle).ok_or(EBADF)?)?;
        match &entry.object {
            Some(object) if entry.published => Ok(object),
            _ => Err(EBADF),
        }
    }

    lookups! {
        /// A protection domain. [`EBADF`], [`ebadfd`].
        pd: Pd(PdObject);
        /// A completion queue. [`EBADF`], [`ebadfd`].
        cq: Cq(CqObject);
        /// A queue pair. [`EBADF`], [`ebadfd`].
        qp: Qp(QpObject);
        /// A buffer. [`EBADF`], [`ebadfd`].
        buffer: Buffer(BufferObject);
        /// A grant. [`EBADF`], [`ebadfd`].
        grant: Grant(GrantObject);
        /// An address. [`EBADF`], [`ebadfd`].
        ah: Ah(AhObject);
        /// A shared receive queue. [`EBADF`], [`ebadfd`].
        srq: Srq(SrqObject);
        /// A listener. [`EBADF`], [`ebadfd`].
        listener: Listener(Listener);
        /// A connection, or a request for one. [`EBADF`], [`ebadfd`].
        connection: Connection(Connection);
    }

    /// A protection domain that a new object will need.
    pub(crate) fn need_pd(&self, handle: u32) -> Result<Need<PdObject>> {
        Ok(Need::new(self.pd(handle)?.clone()))
    }

    /// A completion queue that a new object will need.
    pub(crate) fn need_cq(&self, handle: u32) -> Result<Need<CqObject>> {
        Ok(Need::new(self.cq(handle)?.clone()))
    }

    /// A queue pair that a new object will need.
    pub(crate) fn need_qp(&self, handle: u32) -> Result<Need<QpObject>> {
        Ok(Need::new(self.qp(handle)?.clone()))
    }

    /// A buffer that a new object will need.
    pub(crate) fn need_buffer(&self, handle: u32) -> Result<Need<BufferObject>> {
        Ok(Need::new(self.buffer(handle)?.clone()))
    }

    /// A shared receive queue that a new object will need.
    pub(crate) fn need_srq(&self, handle: u32) -> Result<Need<SrqObject>> {
        Ok(Need::new(self.srq(handle)?.clone()))
    }

    /// Takes out what `handle` names. [`EBUSY`] while others need it.
    ///
    /// `published` tells whether it must have been published.
    pub(crate) fn remove(&mut self, handle: u32, published: bool) -> Result<Object> {
        let handle = Handle::from_raw(handle).ok_or(EBADF)?;
        let entry = self.entry(handle)?;
        if entry.published != published {
            return Err(EBADF);
        }
        if entry
            .object
            .as_ref()
            .is_some_and(|object| object.users() > 0)
        {
            return Err(EBUSY);
        }
        self.take(handle.index).ok_or(EBADF)
    }

    fn take(&mut self, index: u16) -> Option<Object> {
        let entry = self.entries.get_mut(usize::from(index))?;
        let object = entry.object.take()?;
        entry.charge = None;
        entry.generation = Handle::next_generation(entry.generation);
        entry.published = false;
        if self.free == 0 {
            self.first_free = index;
        } else if let Some(last) = self.entries.get_mut(usize::from(self.last_free)) {
            last.next = index;
        }
        self.last_free = index;
        self.free = self.free.saturating_add(1);
        self.used = self.used.saturating_sub(1);
        Some(object)
    }

    /// Takes out some object of that kind, published or not.
    pub(crate) fn take_any(&mut self, kind: Kind) -> Option<(u32, Object)> {
        let (handle, _) = self.iter().find(|(_, object)| object.kind() == kind)?;
        let index = Handle::from_raw(handle)?.index;
        Some((handle, self.take(index)?))
    }

    /// All objects with their handles.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Object)> {
        numbered(self.entries.iter()).filter_map(|(index, entry)| {
            let object = entry.object.as_ref()?;
            let index = u16::try_from(index).ok()?;
            let handle = Handle {
                kind: object.kind(),
                index,
                generation: entry.generation,
            };
            Some((handle.to_raw(), object))
        })
    }
}
