// SPDX-License-Identifier: GPL-2.0

//! Commands of buffers.
//!
//! Memory is had outside the gate, since the caller or others decide how long that takes.

use crate::{
    device::DeviceGuard,
    file::UlpFile,
    kernel::{
        dmabuf::Import,
        pages::{
            node_is_online,
            Pages, //
        }, //
    },
    object::{
        buffer::{
            self,
            BufferObject, //
        },
        cq::mmap_offset,
        grant,
        Object, //
    },
    uapi::abi, //
};
use kernel::prelude::*;

/// Allocates memory. It may take long until there are large pages.
pub(super) fn allocate(file: &UlpFile, value: &abi::BufferCreate) -> Result<Pages> {
    let device = file.enter()?;
    let node = match value.node {
        abi::NODE_ANY => None,
        node if node_is_online(node) => Some(node),
        _ => return Err(ERANGE),
    };
    file.table().lock().pd(value.pd)?;
    let attributes = device.attributes;
    drop(device);
    buffer::allocate(&attributes, value.length, value.page_size, node)
}

/// Makes a buffer of memory that was allocated.
pub(super) fn create(
    file: &UlpFile,
    _device: &DeviceGuard<'_>,
    value: &mut abi::BufferCreate,
    pages: Pages,
) -> Result<Object> {
    let pd = file.table().lock().use_pd(value.pd)?;
    let kind = abi::BUFFER_PAGES;
    let object = BufferObject::register(pd, file.net(), pages, kind, false)?;
    value.length = object.length();
    value.page_size = object.pages().chunk_size() as u32;
    value.node = object.pages().node();
    value.key_bytes = object.key_bytes();
    value.keys = object.keys();
    Ok(Object::Buffer(object))
}

/// Pins memory of the caller, who decides how long its page faults take.
pub(super) fn pin(file: &UlpFile, value: &abi::BufferRegister) -> Result<Pages> {
    let device = file.enter()?;
    let sizes = device.attributes.page_size_cap;
    file.table().lock().pd(value.pd)?;
    drop(device);
    let read_only = value.flags & abi::BUFFER_READ_ONLY != 0;
    buffer::pin(value.addr, value.length, read_only, sizes)
}

/// Makes a buffer of memory that was pinned.
pub(super) fn register(
    file: &UlpFile,
    _device: &DeviceGuard<'_>,
    value: &mut abi::BufferRegister,
    pages: Pages,
) -> Result<Object> {
    let read_only = value.flags & abi::BUFFER_READ_ONLY != 0;
    let pd = file.table().lock().use_pd(value.pd)?;
    let kind = abi::BUFFER_USER;
    let object = BufferObject::register(pd, file.net(), pages, kind, read_only)?;
    value.key_bytes = object.key_bytes();
    value.keys = object.keys();
    value.page_size = object.pages().chunk_size() as u32;
    Ok(Object::Buffer(object))
}

/// Maps a dma-buf for a software device: the exporter decides how long it takes.
pub(super) fn map(file: &UlpFile, value: &abi::BufferImport) -> Result<(Import, Option<Pages>)> {
    let read_only = value.flags & abi::BUFFER_READ_ONLY != 0;
    let device = file.enter()?;
    let sizes = device.attributes.page_size_cap;
    let is_software = device.attributes.virt_dma;
    file.table().lock().pd(value.pd)?;
    drop(device);
    let what = buffer::import(value.fd, value.offset, value.length, read_only, sizes);
    let mapped = if is_software {
        Some(Pages::import(&what)?)
    } else {
        None
    };
    Ok((what, mapped))
}

/// Makes a buffer of a dma-buf.
pub(super) fn import(
    file: &UlpFile,
    _device: &DeviceGuard<'_>,
    value: &mut abi::BufferImport,
    (what, mapped): (Import, Option<Pages>),
) -> Result<Object> {
    let read_only = value.flags & abi::BUFFER_READ_ONLY != 0;
    let pd = file.table().lock().use_pd(value.pd)?;
    let pages = match mapped {
        Some(pages) => pages,
        None => buffer::attach(pd.pd().device(), &what)?,
    };
    let kind = abi::BUFFER_DMABUF;
    let object = BufferObject::register(pd, file.net(), pages, kind, read_only)?;
    value.length = object.length();
    value.key_bytes = object.key_bytes();
    value.keys = object.keys();
    value.page_size = object.pages().chunk_size() as u32;
    Ok(Object::Buffer(object))
}

/// Says what a buffer is.
pub(super) fn query(
    file: &UlpFile,
    _device: &DeviceGuard<'_>,
    value: &mut abi::BufferQuery,
) -> Result {
    let buffer = file.table().lock().buffer(value.buffer)?.clone();
    *value = abi::BufferQuery {
        size: value.size,
        flags: if buffer.is_read_only() {
            abi::BUFFER_READ_ONLY
        } else {
            0
        },
        buffer: value.buffer,
        kind: buffer.kind(),
        length: buffer.length(),
        charged: buffer.pages().charged(),
        mmap_offset: if buffer.pages().can_be_mapped() {
            mmap_offset(value.buffer)
        } else {
            0
        },
        key_bytes: buffer.key_bytes(),
        keys: buffer.keys(),
        page_size: buffer.pages().chunk_size() as u32,
        node: buffer.pages().node(),
        grants: grant::count_of(&buffer),
    };
    Ok(())
}
