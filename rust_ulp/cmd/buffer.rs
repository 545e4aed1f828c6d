// SPDX-License-Identifier: GPL-2.0

//! Commands of buffers.
//!
//! Memory is allocated, pinned and mapped outside the device's gate, because page faults of the
//! caller, reclaim, and exporters of dma-bufs may take long.

use super::access::Ctx;
use crate::{
    ext::{
        dmabuf::Import,
        pages::{
            node_is_online,
            Pages, //
        }, //
    },
    file::UlpFile,
    object::{
        buffer::{
            self,
            BufferObject, //
        },
        grant,
        Object, //
    },
    rdma,
    uapi::abi, //
};
use kernel::prelude::*;

/// Returns the attributes of the device, and checks that `pd` is a protection domain.
fn prepare(file: &UlpFile, pd: u32) -> Result<rdma::device::Attributes> {
    let device = file.enter()?;
    file.table().read().pd(pd)?;
    Ok(device.attributes)
}

/// Registers `pages`, which are of `kind`, in the protection domain `pd`.
fn register_pages(
    ctx: &Ctx<'_>,
    pd: u32,
    pages: Pages,
    kind: u32,
    flags: u32,
) -> Result<kernel::sync::Arc<BufferObject>> {
    let pd = ctx.file.table().read().use_pd(pd)?;
    let read_only = flags & abi::BUFFER_READ_ONLY != 0;
    BufferObject::register(pd, ctx.file.mmap_offsets(), pages, kind, read_only)
}

/// Allocates memory. Sleeps, possibly for long until large pages are free.
pub(super) fn allocate(file: &UlpFile, value: &abi::BufferCreate) -> Result<Pages> {
    let attributes = prepare(file, value.pd)?;
    let node = match value.node {
        abi::NODE_ANY => None,
        node if node_is_online(node) => Some(node),
        _ => return Err(ERANGE),
    };
    buffer::allocate(&attributes, value.length, value.page_size, node)
}

/// Creates a buffer of allocated memory.
pub(super) fn create(ctx: &Ctx<'_>, value: &mut abi::BufferCreate, pages: Pages) -> Result<Object> {
    let object = register_pages(ctx, value.pd, pages, abi::BUFFER_PAGES, 0)?;
    value.length = object.length();
    value.page_size = object.pages().chunk_size() as u32;
    value.node = object.pages().node();
    value.key_bytes = object.key_bytes();
    value.keys = object.keys();
    value.mmap_offset = object.mmap_offset();
    Ok(Object::Buffer(object))
}

/// Pins memory of the caller. Sleeps, possibly for long in page faults.
pub(super) fn pin(file: &UlpFile, value: &abi::BufferRegister) -> Result<Pages> {
    let sizes = prepare(file, value.pd)?.page_size_cap;
    let read_only = value.flags & abi::BUFFER_READ_ONLY != 0;
    buffer::pin(value.addr, value.length, read_only, sizes)
}

/// Creates a buffer of pinned memory.
pub(super) fn register(
    ctx: &Ctx<'_>,
    value: &mut abi::BufferRegister,
    pages: Pages,
) -> Result<Object> {
    let object = register_pages(ctx, value.pd, pages, abi::BUFFER_USER, value.flags)?;
    value.key_bytes = object.key_bytes();
    value.keys = object.keys();
    value.page_size = object.pages().chunk_size() as u32;
    Ok(Object::Buffer(object))
}

/// Maps a dma-buf if the device is a software device. Sleeps, as long as the exporter takes.
pub(super) fn map(file: &UlpFile, value: &abi::BufferImport) -> Result<(Import, Option<Pages>)> {
    let read_only = value.flags & abi::BUFFER_READ_ONLY != 0;
    let attributes = prepare(file, value.pd)?;
    let sizes = attributes.page_size_cap;
    let import = buffer::import(value.fd, value.offset, value.length, read_only, sizes);
    let mapped = if attributes.virt_dma {
        Some(Pages::import(&import)?)
    } else {
        None
    };
    Ok((import, mapped))
}

/// Creates a buffer of a dma-buf. Attaches any other device to the dma-buf.
pub(super) fn import(
    ctx: &Ctx<'_>,
    value: &mut abi::BufferImport,
    (import, mapped): (Import, Option<Pages>),
) -> Result<Object> {
    let pages = match mapped {
        Some(pages) => pages,
        None => ctx.device.device().import(&import)?,
    };
    let object = register_pages(ctx, value.pd, pages, abi::BUFFER_DMABUF, value.flags)?;
    value.length = object.length();
    value.key_bytes = object.key_bytes();
    value.keys = object.keys();
    value.page_size = object.pages().chunk_size() as u32;
    Ok(Object::Buffer(object))
}

/// Describes a buffer.
pub(super) fn query(ctx: &Ctx<'_>, value: &mut abi::BufferQuery) -> Result {
    let buffer = ctx.file.table().read().buffer(value.buffer)?.clone();
    *value = abi::BufferQuery {
        size: value.size,
        flags: 0,
        buffer: value.buffer,
        kind: buffer.kind(),
        length: buffer.length(),
        charged: buffer.pages().charged(),
        mmap_offset: buffer.mmap_offset(),
        key_bytes: buffer.key_bytes(),
        keys: buffer.keys(),
        page_size: buffer.pages().chunk_size() as u32,
        node: buffer.pages().node(),
        grants: grant::count_of(&buffer),
        buffer_flags: if buffer.is_read_only() {
            abi::BUFFER_READ_ONLY
        } else {
            0
        },
        pad: 0,
    };
    Ok(())
}
