// SPDX-License-Identifier: MIT OR Apache-2.0

//! Receivers of datagrams: address handles and destinations.

use crate::abi;
use crate::error::Result;
use crate::object::Object;
use crate::params::bits_24;
use crate::path::Path;
use crate::pd::Pd;
use crate::port::family_error;
use crate::sys::Command;
use std::sync::Arc;

// Dropped in this order: the object, its protection domain.
#[derive(Debug)]
struct Inner {
    object: Object,
    pd: Pd,
    path: Path,
}

/// The path to a host to which datagrams are sent. From [`Pd::create_ah`],
/// [`Qp::address`](crate::Qp::address) or [`Qp::reply_to`](crate::Qp::reply_to).
///
/// Cheap to clone; destroyed with the last clone, which may be while datagrams are under way.
#[doc(alias = "rust_ulp_ah_create")]
#[derive(Clone, Debug)]
pub struct AddressHandle {
    inner: Arc<Inner>,
}

impl Pd {
    /// Creates an address handle for datagrams of this domain's queue pairs.
    /// [`Qp::address`](crate::Qp::address) and [`Qp::reply_to`](crate::Qp::reply_to) fill in most
    /// of `path`.
    ///
    /// # Errors
    ///
    /// [`Error::Sys`](crate::Error::Sys) with `EHOSTUNREACH`, `ENETUNREACH` or `ETIMEDOUT` if there
    /// is no way to the GID, `ENOENT` for a port or GID index that there is not, `ERANGE` for
    /// numbers that are too large, `EMFILE`; [`Error::Unsupported`](crate::Error::Unsupported) if
    /// the device has no datagrams, [`Error::DeviceGone`](crate::Error::DeviceGone).
    pub fn create_ah(&self, path: Path) -> Result<AddressHandle> {
        let mut arg = abi::AhCreate {
            pd: self.handle(),
            attr: path.to_abi(),
            ..Command::new()
        };
        let device = self.device();
        device.call(&mut arg).map_err(|error| match error.errno() {
            Some(libc::EINVAL) => family_error(device.file(), &arg.attr).unwrap_or(error),
            _ => error,
        })?;
        Ok(AddressHandle {
            inner: Arc::new(Inner {
                object: Object::new(device, arg.handle),
                pd: self.clone(),
                path: Path::from_abi(&arg.attr),
            }),
        })
    }
}

impl AddressHandle {
    /// Returns the path, as the kernel resolved it.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Returns its protection domain. Queue pairs of another domain cannot use it.
    pub fn pd(&self) -> &Pd {
        &self.inner.pd
    }

    /// Returns the queue pair at that host with this number (24 bits) and this Q_Key.
    ///
    /// With the highest bit of `qkey` set, the specification has the sending queue pair's own Q_Key
    /// used instead.
    pub fn queue_pair(&self, qp_num: u32, qkey: u32) -> Destination {
        Destination {
            ah: self.clone(),
            qp_num,
            qkey,
        }
    }

    pub(crate) fn handle(&self) -> u32 {
        self.inner.object.handle()
    }
}

/// The receiver of a datagram: a queue pair at a host. From [`AddressHandle::queue_pair`] or
/// [`Qp::reply_to`](crate::Qp::reply_to).
#[derive(Clone, Debug)]
pub struct Destination {
    pub(crate) ah: AddressHandle,
    pub(crate) qp_num: u32,
    pub(crate) qkey: u32,
}

impl Destination {
    /// Returns the address handle of the host.
    pub fn ah(&self) -> &AddressHandle {
        &self.ah
    }

    /// Returns the number of the queue pair there.
    pub fn qp_num(&self) -> u32 {
        self.qp_num
    }

    /// Returns the Q_Key that is sent along.
    pub fn qkey(&self) -> u32 {
        self.qkey
    }

    /// Returns it as requests carry it.
    pub(crate) fn to_abi(&self) -> Result<abi::WrUd> {
        Ok(abi::WrUd {
            ah: self.ah.handle(),
            qp_num: bits_24("the number of a queue pair", self.qp_num)?,
            qkey: self.qkey,
            pad: 0,
        })
    }
}
