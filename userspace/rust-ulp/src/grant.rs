// SPDX-License-Identifier: MIT OR Apache-2.0

//! Grants of access to memory: options, state, and what a grant is bound to.

use crate::abi;
use crate::access::Access;
use crate::buffer::Buffer;
use crate::device::DeviceInner;
use crate::error::{Error, Result};
use crate::info::info;
use crate::numbered::numbered;
use crate::object::Object;
use crate::qp::Qp;
use crate::range::widen;
use crate::remote::RemoteSlice;
use crate::sealed;
use crate::sys::Command;
use crate::transport::{Connected, State};
use nix::errno::Errno;
use std::ops::RangeBounds;
use std::sync::Arc;

/// A queue pair that a [`Grant`] can be bound to: with one peer, connected or not yet.
pub trait GrantFor: sealed::Sealed {
    /// Returns the handle, and the number of the device.
    #[doc(hidden)]
    fn bound(&self) -> (u32, u64);
}

impl<T: Connected, S: State> GrantFor for Qp<T, S> {
    fn bound(&self) -> (u32, u64) {
        (self.handle(), self.device_inner().id())
    }
}

/// Options of a [`Grant`], for [`Buffer::grant_with`].
#[derive(Clone, Copy, Debug, Default)]
pub struct GrantOptions {
    flags: u32,
    user_data: u64,
    /// Handle, and number of its device.
    qp: Option<(u32, u64)>,
}

impl GrantOptions {
    /// Returns the options of a grant to any peer that lasts until it is dropped.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends with this queue pair: when that is in error, reset or gone.
    ///
    /// The queue pair limits the life of the key, not its users: the peer of any queue pair of the
    /// same [`Pd`](crate::Pd) can use the key if it knows it.
    pub fn bound_to(mut self, qp: &impl GrantFor) -> Self {
        self.qp = Some(qp.bound());
        self
    }

    /// Ends as [`Self::bound_to`], and also when a send of the peer invalidates the key
    /// ([`Send::invalidate`](crate::wr::Send::invalidate)). The peer's device must have that
    /// request: today, Soft-RoCE has it.
    /// [`EventKind::GrantEnded`](crate::events::EventKind::GrantEnded) reports when the peer can no
    /// longer access the memory.
    #[doc(alias = "RUST_ULP_GRANT_ONE_SHOT_INV")]
    pub fn ends_on_invalidate(mut self, qp: &impl GrantFor) -> Self {
        self.flags |= abi::GRANT_ONE_SHOT_INV;
        self.bound_to(qp)
    }

    /// Sets a value of the caller's, which events of the grant carry
    /// ([`Event::user_data`](crate::events::Event::user_data)).
    pub fn user_data(mut self, value: u64) -> Self {
        self.user_data = value;
        self
    }

    /// Grants only the beginning of a range that does not fit under one key: [`Grant::remote`] has
    /// its length.
    #[doc(alias = "RUST_ULP_GRANT_PARTIAL")]
    pub fn partial(mut self) -> Self {
        self.flags |= abi::GRANT_PARTIAL;
        self
    }
}

impl Buffer {
    /// Lets whoever learns the key access a part of the buffer with the rights in `access`, until
    /// the grant is dropped. Fails as [`Self::grant_with`].
    pub fn grant(&self, range: impl RangeBounds<usize>, access: Access) -> Result<Grant> {
        self.grant_with(range, access, GrantOptions::new())
    }

    /// Grants access as [`Self::grant`], with options.
    ///
    /// # Errors
    ///
    /// [`Error::Range`] if the part is not within the buffer, [`Error::Unsupported`] if the device
    /// cannot, [`Error::Sys`] with `ERANGE` for an empty part or one that does not go under one key
    /// ([`GrantOptions::partial`], [`Self::grant_all`]), `EINVAL` for no rights, `ENOENT` for a
    /// queue pair of another device, `ENOMEM` over a limit.
    #[doc(alias = "rust_ulp_grant_create")]
    pub fn grant_with(
        &self,
        range: impl RangeBounds<usize>,
        access: Access,
        options: GrantOptions,
    ) -> Result<Grant> {
        let (offset, len) = self.local(widen(range))?;
        let device = self.device();
        if options.qp.is_some_and(|(_, of)| of != device.id()) {
            return Err(Error::sys(abi::GrantCreate::NAME, Errno::ENOENT));
        }
        let mut arg = abi::GrantCreate {
            flags: options.flags,
            user_data: options.user_data,
            buffer: self.handle(),
            access: access.bits(),
            offset: offset as u64,
            length: len as u64,
            qp: options.qp.map_or(0, |(handle, _)| handle),
            ..Command::new()
        };
        device.call(&mut arg)?;
        let object = Object::new(device, arg.handle);
        let remote = RemoteSlice::new(arg.addr, arg.length, arg.rkey)?;
        Ok(Grant {
            inner: Arc::new(Inner {
                object,
                buffer: self.clone(),
                offset,
                access,
                remote: remote.with_access(access),
            }),
        })
    }

    /// Grants a part of the buffer by as many keys as it takes, in order.
    ///
    /// # Errors
    ///
    /// As [`Self::grant_with`]. Nothing is granted then.
    pub fn grant_all(
        &self,
        range: impl RangeBounds<usize>,
        access: Access,
        options: GrantOptions,
    ) -> Result<Vec<Grant>> {
        let (mut offset, len) = self.local(widen(range))?;
        // Within the buffer: no overflow.
        let end = offset + len;
        let mut grants = Vec::new();
        loop {
            let grant = self.grant_with(offset..end, access, options.partial())?;
            let got = usize::try_from(grant.remote().len()).unwrap_or(usize::MAX);
            grants.push(grant);
            offset = offset.saturating_add(got.max(1));
            if offset >= end {
                return Ok(grants);
            }
        }
    }
}

// Dropped in this order: the key, the buffer.
#[derive(Debug)]
struct Inner {
    object: Object,
    buffer: Buffer,
    offset: usize,
    access: Access,
    remote: RemoteSlice,
}

numbered! {
    /// The state of a [`Grant`].
    #[doc(alias = "RUST_ULP_GRANT_ACTIVE")]
    pub enum GrantState(pub(crate) u32) {
        /// Peers can use the key.
        Active = abi::GRANT_ACTIVE,
        /// The grant was for one use, and was used.
        Used = abi::GRANT_USED,
        /// The queue pair of the grant has ended.
        Expired = abi::GRANT_EXPIRED,
    }
}

info! {
    /// A [`Grant`], as the kernel has it.
    #[doc(alias = "rust_ulp_grant_query")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct GrantInfo(arg: &abi::GrantQuery) {
        /// The state.
        pub state: GrantState = GrantState::from_code(arg.state),
        /// The offset of its first byte in the buffer.
        pub offset: u64,
        /// Bytes.
        pub len: u64 = arg.length,
        /// The rights that it gives.
        pub access: Access = Access::from_bits_truncate(arg.access),
        /// The key; [`None`] when the grant has ended.
        pub rkey: Option<u32> = (arg.rkey != 0).then_some(arg.rkey),
        /// True if the grant ends when it is invalidated.
        pub one_shot: bool = arg.grant_flags & abi::GRANT_ONE_SHOT_INV != 0,
        /// True if the grant ends with a queue pair.
        pub bound: bool = arg.qp != 0,
    }
}

/// A key by which peers access a part of a [`Buffer`].
///
/// Cheap to clone; the key dies with the last clone, or by [`Self::revoke`], and with
/// [`GrantOptions`] before. It keeps its buffer, but not the queue pair that it is bound to. A
/// driver may refuse to revoke the key, of which only [`Self::revoke`] tells.
#[derive(Clone, Debug)]
pub struct Grant {
    inner: Arc<Inner>,
}

impl Grant {
    /// Returns the memory as a peer addresses it.
    pub fn remote(&self) -> RemoteSlice {
        self.inner.remote
    }

    /// Returns the rights that it gives.
    pub fn access(&self) -> Access {
        self.inner.access
    }

    /// Returns its buffer.
    pub fn buffer(&self) -> &Buffer {
        &self.inner.buffer
    }

    /// Returns the offset of its first byte in the buffer.
    pub fn offset(&self) -> usize {
        self.inner.offset
    }

    /// Asks the kernel for its state.
    ///
    /// # Errors
    ///
    /// [`Error::Sys`] with `ENOENT` if it was revoked; [`Error::DeviceGone`].
    pub fn query(&self) -> Result<GrantInfo> {
        let mut arg = abi::GrantQuery {
            grant: self.handle(),
            ..Command::new()
        };
        self.inner.buffer.device().call(&mut arg)?;
        Ok(GrantInfo::new(&arg))
    }

    /// Kills the key, for all clones. After this returns `Ok`, nothing that uses it lands any more.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceGone`], or [`Error::Sys`] with `ENOENT` if it was revoked before or another
    /// thread revokes it, which may still fail, and with `EIO` if the driver did not revoke it: the
    /// key is alive, and another call tries again.
    pub fn revoke(&self) -> Result<()> {
        self.inner.object.destroy()
    }

    pub(crate) fn handle(&self) -> u32 {
        self.inner.object.handle()
    }

    pub(crate) fn device_inner(&self) -> &Arc<DeviceInner> {
        self.inner.buffer.device()
    }
}
