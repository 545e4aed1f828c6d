// SPDX-License-Identifier: GPL-2.0

//! The objects of an open file, and the table that holds them.

pub(crate) mod ah;
pub(crate) mod buffer;
pub(crate) mod completion;
pub(crate) mod conn_param;
pub(crate) mod connection;
pub(crate) mod cq;
pub(crate) mod deadline;
pub(crate) mod grant;
pub(crate) mod listener;
pub(crate) mod mmap;
pub(crate) mod pd;
pub(crate) mod qp;
pub(crate) mod quota;
pub(crate) mod ring;
pub(crate) mod room;
pub(crate) mod show;
pub(crate) mod srq;
pub(crate) mod table;
pub(crate) mod usecount;

use crate::{
    ext::errno::ebadfd,
    logic::{
        cq_ring::CqRing,
        handle::Kind, //
    }, //
};
use ah::AhObject;
use buffer::BufferObject;
use connection::Connection;
use cq::CqObject;
use grant::GrantObject;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use listener::Listener;
use pd::PdObject;
use qp::QpObject;
use srq::SrqObject;
use table::{
    Charges,
    Stored,
    Table, //
};
use usecount::{
    Counted, //
    UseRef,
};

/// The objects of a file.
pub(crate) type ObjectTable = Table<Object>;

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
    /// Wakes the threads that wait for it, with `err`. Sleeps, but not for them.
    pub(crate) fn wake_waiters(&self, err: Error) {
        match self {
            Self::Cq(cq) => cq.ring().close(err),
            Self::Listener(listener) => listener.close(err),
            Self::Connection(connection) => connection.close(err),
            _ => (),
        }
    }

    /// Ends what goes on with an object that was removed from the table, whoever else has a reference:
    /// wakes the threads that wait for it, with `err`, ends a connection, shuts a queue pair or a
    /// shared receive queue down, and lets others destroy what it uses. Sleeps.
    ///
    /// With [`ENODEV`], a completion queue says that no completion follows: what completes there has
    /// ended before.
    pub(crate) fn end(&self, err: Error) {
        self.wake_waiters(err);
        match self {
            Self::Cq(cq) if err == ENODEV => cq.ring().die(),
            Self::Connection(connection) => connection.end(err),
            Self::Qp(qp) => qp.shut_down(),
            Self::Srq(srq) => srq.shut_down(),
            Self::Grant(grant) => grant.release(),
            Self::Buffer(buffer) => buffer.release(),
            _ => (),
        }
    }

    /// Sets its handle, which is in the table, and starts it. Sleeps.
    pub(crate) fn start(&self, handle: u32) -> Result {
        match self {
            Self::Cq(cq) => cq.set_handle(handle),
            Self::Buffer(buffer) => buffer.set_handle(handle),
            Self::Qp(qp) => qp.set_handle(handle),
            Self::Srq(srq) => srq.set_handle(handle),
            Self::Grant(grant) => grant.set_handle(handle),
            Self::Connection(connection) => return connection.start(handle),
            Self::Listener(listener) => return listener.listen(handle),
            Self::Pd(_) | Self::Ah(_) => (),
        }
        Ok(())
    }

    /// Holds `charges` for as long as posted requests may use the object, if they may do that after
    /// its handle is gone.
    pub(crate) fn hold(&self, charges: &Charges) {
        match self {
            Self::Ah(ah) => ah.ah().hold(charges.clone()),
            Self::Buffer(buffer) => buffer.hold(charges),
            _ => (),
        }
    }

    /// Returns the number of verbs objects that it has for itself, as the rdma cgroup counts them: at
    /// least 1, and the estimated bytes of the tables of its keys.
    ///
    /// The queues that register memory have charges of their own there, see [`PdObject::fast_reg`],
    /// and count here, whether or not they are made.
    pub(crate) fn weight(&self) -> (u32, u64) {
        match self {
            Self::Buffer(buffer) => {
                let regions = buffer.table_entries().map(quota::region);
                let (count, bytes) = regions.fold((0u32, 0u64), |(count, sum), bytes| {
                    (count.saturating_add(1), sum.saturating_add(bytes))
                });
                (count.max(1), bytes)
            }
            Self::Pd(_) => (1, quota::registration()),
            Self::Grant(grant) => (1, grant.table_entries().map_or(0, quota::region)),
            _ => (1, 0),
        }
    }

    /// Returns the number of a queue pair, else 0.
    pub(crate) fn number(&self) -> u32 {
        match self {
            Self::Qp(qp) => qp.number(),
            _ => 0,
        }
    }
}

impl Stored for Object {
    fn kind(&self) -> Kind {
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

    fn use_count(&self) -> u32 {
        match self {
            Self::Pd(object) => object.use_count().count(),
            Self::Cq(object) => object.use_count().count(),
            Self::Buffer(object) => object.use_count().count(),
            Self::Qp(object) => object.use_count().count(),
            Self::Srq(object) => object.use_count().count(),
            Self::Grant(_) | Self::Ah(_) | Self::Listener(_) | Self::Connection(_) => 0,
        }
    }
}

macro_rules! lookups {
    ($($(#[$meta:meta])* $name:ident $(, $use:ident)?: $variant:ident($ty:ty);)*) => { $(
        $(#[$meta])*
        pub(crate) fn $name(&self, handle: u32) -> Result<&Arc<$ty>> {
            match self.get(handle)? {
                Object::$variant(object) => Ok(object),
                _ => Err(ebadfd()),
            }
        }
        $(
            /// Returns the same for a new object that will use it.
            pub(crate) fn $use(&self, handle: u32) -> Result<UseRef<$ty>> {
                Ok(UseRef::new(self.$name(handle)?.clone()))
            }
        )?
    )* };
}

impl Table<Object> {
    lookups! {
        /// Returns a protection domain. [`ENOENT`], [`ebadfd`].
        pd, use_pd: Pd(PdObject);
        /// Returns a completion queue. [`ENOENT`], [`ebadfd`].
        cq, use_cq: Cq(CqObject);
        /// Returns a queue pair. [`ENOENT`], [`ebadfd`].
        qp, use_qp: Qp(QpObject);
        /// Returns a buffer. [`ENOENT`], [`ebadfd`].
        buffer, use_buffer: Buffer(BufferObject);
        /// Returns a grant. [`ENOENT`], [`ebadfd`].
        grant: Grant(GrantObject);
        /// Returns an address. [`ENOENT`], [`ebadfd`].
        ah: Ah(AhObject);
        /// Returns a shared receive queue. [`ENOENT`], [`ebadfd`].
        srq, use_srq: Srq(SrqObject);
        /// Returns a listener. [`ENOENT`], [`ebadfd`].
        listener: Listener(Listener);
        /// Returns a connection, or a request for one. [`ENOENT`], [`ebadfd`].
        connection: Connection(Connection);
    }
}
