// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory of a [`Buffer`]: pages of the module's, of this process's own, or of a dma-buf.

use crate::abi;
use crate::buffer::{Buffer, Parts};
use crate::error::{Error, Result};
use crate::info::info;
use crate::numbered::numbered;
use crate::object::Object;
use crate::params::buffer_len;
use crate::pd::Pd;
use crate::sys::{Command, Mapping};
use std::os::fd::{AsRawFd, OwnedFd};

pub use crate::buffer::{BufferBuilder, PageSize};

impl Pd {
    /// Begins a buffer of `len` bytes of this process's memory, registered where it is.
    pub fn user_memory_builder(&self, len: usize) -> UserMemoryBuilder {
        UserMemoryBuilder {
            pd: self.clone(),
            len,
            huge: false,
            read_only: false,
        }
    }

    /// Registers `len` bytes at `ptr`, memory of this process that the caller owns, as a buffer.
    ///
    /// The memory is pinned, and charged to `RLIMIT_MEMLOCK`, until the buffer is dropped and the
    /// device is done with it. Dropping the buffer does not free it.
    ///
    /// A forked child inherits the memory as any other of the caller's, unlike that of other
    /// buffers. Devices go on to access the parent's.
    ///
    /// # Safety
    ///
    /// Until the buffer and all clones, slices and grants of it are dropped:
    ///
    /// - the memory stays mapped, readable and writable;
    /// - no reference to it exists but to atomics, since peers and devices change it;
    /// - every access of this process to it that races with one by [`Buffer`] is atomic and of 8
    ///   aligned bytes.
    ///
    /// Devices go on to write to requests in flight after that, until these have completed or their
    /// queue pair is gone, and peers by a key that [`Grant::revoke`](crate::Grant::revoke) has not
    /// revoked: the kernel keeps the pages for them, but pages that the process reuses change.
    ///
    /// # Errors
    ///
    /// [`Error::Sys`] with `EFAULT` for a null pointer or memory that is not mapped, `EINVAL`
    /// unless `ptr` and `len` are multiples of 8; as [`UserMemoryBuilder::build`].
    #[allow(unsafe_code)]
    pub unsafe fn register_raw(&self, ptr: *mut u8, len: usize) -> Result<Buffer> {
        // SAFETY: What the caller promised; the buffer and what is made of it keep the mapping.
        let map = unsafe { Mapping::borrowed(ptr, len) };
        let map = map.map_err(|errno| Error::sys(abi::BufferRegister::NAME, errno))?;
        register(self.clone(), map, len, false)
    }

    /// Begins the import of a dma-buf, the memory of another driver or process, as a buffer.
    ///
    /// The memory is that of a file: whoever maps it sees what peers, devices and this crate write.
    /// This crate makes no reference to it. Code that maps the file by itself and makes a `&[u8]`
    /// of the mapping promises, in its own `unsafe` block, that nobody writes there; no part of
    /// this process can keep that promise while a peer may write to the buffer.
    pub fn dmabuf_builder(&self, fd: OwnedFd) -> DmabufBuilder {
        DmabufBuilder {
            pd: self.clone(),
            fd,
            offset: 0,
            len: 0,
            read_only: false,
            map: false,
        }
    }
}

/// A builder of a [`Buffer`] of this process's memory; from [`Pd::user_memory_builder`].
///
/// The memory is made here, and nothing else in this process has it: a slice of somebody else's
/// could not be registered soundly, since peers change what is registered. It is pinned, and
/// charged to `RLIMIT_MEMLOCK`, until the buffer is dropped and the device is done with it.
#[doc(alias = "rust_ulp_buffer_register")]
#[derive(Clone, Debug)]
#[must_use = "nothing is registered before `build`"]
pub struct UserMemoryBuilder {
    pd: Pd,
    len: usize,
    huge: bool,
    read_only: bool,
}

impl UserMemoryBuilder {
    /// Asks for pages of 2 MiB, of which many more go under one key. What came of it:
    /// [`Buffer::page_size`].
    pub fn huge_pages(mut self) -> Self {
        self.huge = true;
        self
    }

    /// Has requests and peers only read it; this process can write to it.
    #[doc(alias = "RUST_ULP_BUFFER_READ_ONLY")]
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Maps the memory, zeroed, and registers it.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the device does not register such memory; [`Error::Value`] for a
    /// length of 0 or more than [`Limits::max_buffer`](crate::device::Limits::max_buffer),
    /// [`Error::Sys`] with `ENOMEM` without memory or over a limit (`ulimit -l`), `EAGAIN` if the
    /// kernel cannot pin the memory now, `EMFILE` with too many objects; [`Error::DeviceGone`].
    pub fn build(self) -> Result<Buffer> {
        let device = self.pd.device();
        buffer_len(self.len, device.limits().max_buffer)?;
        let map = Mapping::anonymous(self.len as u64, self.huge)
            .map_err(|errno| Error::sys("mmap of memory", errno))?;
        register(self.pd, map, self.len, self.read_only)
    }
}

/// Registers the first `len` bytes of `map`.
fn register(pd: Pd, map: Mapping, len: usize, read_only: bool) -> Result<Buffer> {
    let device = pd.device();
    let mut arg = abi::BufferRegister {
        flags: flags(read_only),
        pd: pd.handle(),
        length: len as u64,
        ..Command::new()
    };
    let registered = device.file().register(&map, &mut arg);
    registered.map_err(|errno| Error::sys(abi::BufferRegister::NAME, errno))?;
    Ok(Buffer::new(Parts {
        object: Object::new(device, arg.handle),
        map: Some(map),
        pd,
        len,
        page_size: arg.page_size,
        node: None,
        key_bytes: arg.key_bytes,
        keys: arg.keys,
    }))
}

fn flags(read_only: bool) -> u32 {
    if read_only {
        abi::BUFFER_READ_ONLY
    } else {
        0
    }
}

/// A builder of a [`Buffer`] of a dma-buf; from [`Pd::dmabuf_builder`].
///
/// For software devices, and memory of the system such as that of `/dev/udmabuf` or of a DMA heap.
#[doc(alias = "rust_ulp_buffer_import")]
#[derive(Debug)]
#[must_use = "nothing is imported before `build`"]
pub struct DmabufBuilder {
    pd: Pd,
    fd: OwnedFd,
    offset: u64,
    len: u64,
    read_only: bool,
    map: bool,
}

impl DmabufBuilder {
    /// Takes `len` bytes from `offset`, a multiple of the page size; with 0, all that follow.
    pub fn part(mut self, offset: u64, len: u64) -> Self {
        self.offset = offset;
        self.len = len;
        self
    }

    /// Has requests, peers and this process only read it: the file need not be open for writing,
    /// and every store by [`Buffer`] is [`Error::ReadOnly`].
    #[doc(alias = "RUST_ULP_BUFFER_READ_ONLY")]
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Maps it into this process too, for those whose memory can be, so that the buffer can be read
    /// and written here. Its exporter's caches are not synchronized: this is for memory that is
    /// coherent, as system memory is on most machines.
    pub fn map(mut self) -> Self {
        self.map = true;
        self
    }

    /// Registers it. The descriptor is not needed any more and is closed.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for memory that the device cannot
    /// reach; [`Error::Sys`] with `EINVAL` for a file that is no dma-buf, or an offset that is not
    /// aligned, `ERANGE` for a part that it does not have, `EACCES` for one that is not open for
    /// writing without [`Self::read_only`], `EAGAIN` if its exporter cannot pin it now, `ENOMEM`,
    /// `EMFILE`, and with [`Self::map`] what the exporter says to mmap(); [`Error::DeviceGone`].
    pub fn build(self) -> Result<Buffer> {
        let device = self.pd.device();
        let mut arg = abi::BufferImport {
            flags: flags(self.read_only),
            pd: self.pd.handle(),
            fd: self.fd.as_raw_fd(),
            offset: self.offset,
            length: self.len,
            ..Command::new()
        };
        device.call(&mut arg)?;
        let object = Object::new(device, arg.handle);
        let map = self
            .map
            .then(|| Mapping::shared(&self.fd, self.offset, arg.length, !self.read_only))
            .transpose()
            .map_err(|errno| Error::sys("mmap of a dma-buf", errno))?;
        let overflow = |_| Error::sys(abi::BufferImport::NAME, nix::errno::Errno::EOVERFLOW);
        Ok(Buffer::new(Parts {
            object,
            map,
            pd: self.pd,
            len: usize::try_from(arg.length).map_err(overflow)?,
            page_size: arg.page_size,
            node: None,
            key_bytes: arg.key_bytes,
            keys: arg.keys,
        }))
    }
}

numbered! {
    /// The owner of the memory of a [`Buffer`].
    pub enum BufferKind(pub(crate) u32) {
        /// The module.
        Pages = abi::BUFFER_PAGES,
        /// The process.
        User = abi::BUFFER_USER,
        /// Another driver or process, by a dma-buf.
        Dmabuf = abi::BUFFER_DMABUF,
    }
}

info! {
    /// A [`Buffer`], as the kernel has it.
    #[doc(alias = "rust_ulp_buffer_query")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct BufferInfo(arg: &abi::BufferQuery) {
        /// The owner of the memory.
        pub kind: BufferKind = BufferKind::from_code(arg.kind),
        /// Bytes.
        pub len: u64 = arg.length,
        /// Bytes that count against `RLIMIT_MEMLOCK`.
        pub charged: u64,
        /// Bytes under one key, at most.
        pub key_bytes: u64,
        /// Keys that it takes.
        pub keys: u32,
        /// Bytes of its pages, or those that were found contiguous: a power of two.
        pub page_size: u32,
        /// NUMA node of its first page.
        pub node: i32,
        /// Grants that there are of it.
        pub grants: u32,
        /// True if requests and peers only read it.
        pub read_only: bool = arg.buffer_flags & abi::BUFFER_READ_ONLY != 0,
    }
}

impl Buffer {
    /// Asks the kernel for its state.
    pub fn query(&self) -> Result<BufferInfo> {
        let mut arg = abi::BufferQuery {
            buffer: self.handle(),
            ..Command::new()
        };
        self.device().call(&mut arg)?;
        Ok(BufferInfo::new(&arg))
    }
}
