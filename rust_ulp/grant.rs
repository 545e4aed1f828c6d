// SPDX-License-Identifier: GPL-2.0

//! Grants.
//!
//! A grant is a key by which a peer may use a range of a buffer. Process context.

use crate::{
    buffer::BufferObject,
    handle::Need,
    rdma::mr::{
        access,
        Mr, //
    },
    sys::net::NetNs,
    uapi::abi, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// A grant of a file: while it lives, its key opens its range.
pub(crate) struct GrantObject {
    mr: Arc<Mr>,
    _buffer: Need<BufferObject>,
    access: u32,
}

impl GrantObject {
    /// Grants `length` bytes at `offset` of `buffer`. Sleeps.
    ///
    /// `rights` are `ACCESS_REMOTE_*`, at least one, else [`EINVAL`]. [`ERANGE`] when the range is
    /// empty or not inside.
    pub(crate) fn new(
        buffer: Need<BufferObject>,
        net: &NetNs,
        offset: u64,
        length: u64,
        rights: u32,
    ) -> Result<Arc<Self>> {
        const REMOTE: u32 =
            abi::ACCESS_REMOTE_WRITE | abi::ACCESS_REMOTE_READ | abi::ACCESS_REMOTE_ATOMIC;
        if rights == 0 || rights & !REMOTE != 0 {
            return Err(EINVAL);
        }
        let end = offset.checked_add(length).ok_or(ERANGE)?;
        if length == 0 || end > buffer.length() {
            return Err(ERANGE);
        }
        let mut raw = 0;
        for (right, bits) in [
            (
                abi::ACCESS_REMOTE_WRITE,
                access::REMOTE_WRITE | access::LOCAL_WRITE,
            ),
            (abi::ACCESS_REMOTE_READ, access::REMOTE_READ),
            // Atomics write, which the verbs want to see said.
            (
                abi::ACCESS_REMOTE_ATOMIC,
                access::REMOTE_ATOMIC | access::LOCAL_WRITE,
            ),
        ] {
            if rights & right != 0 {
                raw |= bits;
            }
        }
        let mr = Mr::register(
            buffer.pd().registrar(net)?,
            buffer.pages().clone(),
            usize::try_from(offset).map_err(|_| ERANGE)?,
            usize::try_from(length).map_err(|_| ERANGE)?,
            raw,
        )?;
        Ok(Arc::new(
            Self {
                mr,
                _buffer: buffer,
                access: rights,
            },
            GFP_KERNEL_ACCOUNT,
        )?)
    }

    /// The registration.
    pub(crate) fn mr(&self) -> &Mr {
        &self.mr
    }

    /// Its rights, `ACCESS_REMOTE_*`.
    pub(crate) fn access(&self) -> u32 {
        self.access
    }
}
