// SPDX-License-Identifier: GPL-2.0

//! Buffers and grants.
//!
//! A buffer is pages that the module allocates and user space maps, registered for requests of its
//! owner. A grant is a key by which a peer may use a range of a buffer. Both run in process context.

use crate::{
    handle::{
        Need,
        Needed,
        Users, //
    },
    pd::PdObject,
    rdma::mr::{
        self,
        access,
        Mr, //
    },
    sys::{
        net::NetNs,
        pages::{
            Pages,
            PAGE_SHIFT,
            PAGE_SIZE, //
        }, //
    },
    uapi::abi, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Most bytes of a buffer, before the device's limit: 1 GiB.
pub(crate) const MAX_LENGTH: u64 = 1 << 30;

/// Pages of 2 MiB.
const LARGE_ORDER: u32 = 21 - PAGE_SHIFT as u32;

/// A buffer of a file.
pub(crate) struct BufferObject {
    // Before the pages: the device is done with them first.
    mr: Arc<Mr>,
    pages: Arc<Pages>,
    pd: Need<PdObject>,
    users: Users,
}

impl BufferObject {
    /// Makes a buffer of at least `length` bytes. Sleeps.
    ///
    /// `page_size` is 0 for a good choice, or 4 KiB, or 2 MiB. A choice that the device cannot put
    /// under one key is [`ERANGE`]. Without a given size, large buffers get chunks of up to 2 MiB:
    /// the largest that waste little and can be had, of which the device can take so many.
    pub(crate) fn new(
        pd: Need<PdObject>,
        net: &NetNs,
        length: u64,
        page_size: u32,
        node: Option<i32>,
    ) -> Result<Arc<Self>> {
        if length == 0 {
            return Err(ERANGE);
        }
        let registrar = pd.registrar(net)?;
        let device = pd.pd().device();
        let rounded = |order: u32| {
            let chunk = (PAGE_SIZE << (order & 15)) as u64;
            length.div_ceil(chunk).saturating_mul(chunk)
        };
        let fits = |order: u32| {
            let chunk = PAGE_SIZE << (order & 15);
            rounded(order) <= mr::max_bytes(device, chunk).min(MAX_LENGTH)
        };
        // The largest chunks that waste no more than an eighth.
        let good = (0..=LARGE_ORDER)
            .rev()
            .find(|&order| rounded(order).saturating_sub(length) <= length / 8)
            .unwrap_or(0);
        let orders: (u32, u32) = match page_size {
            4096 => (0, 0),
            0x20_0000 => (LARGE_ORDER, LARGE_ORDER),
            0 => (0, good),
            _ => return Err(EINVAL),
        };
        let (smallest, largest) = orders;
        let len = usize::try_from(length).map_err(|_| ERANGE)?;
        let mut result = Err(ERANGE);
        let mut order = largest;
        loop {
            if !fits(order) {
                break;
            }
            // The last that is tried may make an effort.
            let last = order == smallest || !fits(order.saturating_sub(1));
            result = Pages::new(len, order, node, !last);
            match &result {
                Err(err) if *err == ENOMEM && !last => order = order.saturating_sub(1),
                _ => break,
            }
        }
        let pages = Arc::new(result?, GFP_KERNEL_ACCOUNT)?;
        let mr = Mr::register(
            registrar,
            pages.clone(),
            0,
            pages.len(),
            access::LOCAL_WRITE,
        )?;
        Ok(Arc::new(
            Self {
                mr,
                pages,
                pd,
                users: Users::new(),
            },
            GFP_KERNEL_ACCOUNT,
        )?)
    }

    /// The pages.
    pub(crate) fn pages(&self) -> &Arc<Pages> {
        &self.pages
    }

    /// The registration for requests of the owner.
    pub(crate) fn mr(&self) -> &Arc<Mr> {
        &self.mr
    }

    /// The protection domain.
    pub(crate) fn pd(&self) -> &PdObject {
        &self.pd
    }

    /// Bytes.
    pub(crate) fn length(&self) -> u64 {
        self.pages.len() as u64
    }
}

impl Needed for BufferObject {
    fn users(&self) -> &Users {
        &self.users
    }
}

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
