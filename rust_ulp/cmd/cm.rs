// SPDX-License-Identifier: GPL-2.0

//! Commands of connections.
//!
//! The handlers wait inside the device's gate. Device removal wakes them.

use super::access::Ctx;
use crate::{
    device::DeviceState,
    ext::{
        errno::{
            ebadfd,
            ehostunreach,
            eopnotsupp,
            eproto, //
        },
        net::{
            AF_INET,
            AF_INET6, //
        }, //
    },
    file::UlpFile,
    limits::{
        MAX_BACKLOG,
        REMOTE_ACCESS, //
    },
    object::{
        conn_param::{
            ConnectParams,
            PrivateData,
            MAX_ACK_TIMEOUT, //
        },
        connection::Connection,
        deadline::Deadline,
        listener::{
            Backlog,
            Listener, //
        },
        qp::Claim,
        quota,
        Object, //
    },
    rdma::{
        cm,
        qp_attr::{
            QpType,
            State, //
        }, //
    },
    trace::ulp_debug,
    uapi::abi, //
};
use core::net::{
    Ipv4Addr,
    Ipv6Addr,
    SocketAddr,
    SocketAddrV4,
    SocketAddrV6, //
};
use kernel::prelude::*;

/// Converts an address from the ABI. Returns [`None`] if it is all zero, [`EINVAL`] if it is
/// invalid.
fn address(addr: &abi::Addr) -> Result<Option<SocketAddr>> {
    match addr.family {
        0 if *addr == abi::Addr::default() => Ok(None),
        AF_INET => {
            let [a, b, c, d, rest @ ..] = addr.addr;
            if rest != [0; 12] || addr.scope_id != 0 {
                return Err(EINVAL);
            }
            let ip = Ipv4Addr::new(a, b, c, d);
            Ok(Some(SocketAddrV4::new(ip, addr.port).into()))
        }
        AF_INET6 => {
            let ip = Ipv6Addr::from(addr.addr);
            // A link-local address needs an interface. Other addresses must not have one.
            let link_local = matches!(addr.addr, [0xfe, second, ..] if second & 0xc0 == 0x80);
            if link_local != (addr.scope_id != 0) {
                return Err(EINVAL);
            }
            Ok(Some(
                SocketAddrV6::new(ip, addr.port, 0, addr.scope_id).into(),
            ))
        }
        _ => Err(EINVAL),
    }
}

/// Converts an address to the ABI. [`None`] becomes zero.
fn raw_address(addr: Option<SocketAddr>) -> abi::Addr {
    let mut raw = abi::Addr::default();
    match addr {
        Some(SocketAddr::V4(v4)) => {
            raw.family = AF_INET;
            raw.port = v4.port();
            for (to, from) in raw.addr.iter_mut().zip(v4.ip().octets()) {
                *to = from;
            }
        }
        Some(SocketAddr::V6(v6)) => {
            raw.family = AF_INET6;
            raw.port = v6.port();
            raw.scope_id = v6.scope_id();
            raw.addr = v6.ip().octets();
        }
        None => (),
    }
    raw
}

/// Checks the parameters that do not depend on the device. Returns [`EINVAL`] or [`ERANGE`].
fn check_parameters(param: &abi::ConnParam) -> Result {
    const FLAGS: u32 = abi::CONN_TRAFFIC_CLASS | abi::CONN_FLOW_CONTROL;
    if param.flags & !FLAGS != 0 || param.access_flags & !REMOTE_ACCESS != 0 || param.path_mtu > 5 {
        return Err(EINVAL);
    }
    if param.retry_cnt > 7
        || param.rnr_retry > 7
        || param.min_rnr_timer > 31
        || param.ack_timeout > MAX_ACK_TIMEOUT
    {
        return Err(ERANGE);
    }
    Ok(())
}

/// Checks the parameters against the limits of the device. Returns [`ERANGE`].
fn check_limits(device: &DeviceState, param: &abi::ConnParam) -> Result {
    let attributes = &device.attributes;
    if u32::from(param.responder_resources) > attributes.max_qp_rd_atom
        || u32::from(param.initiator_depth) > attributes.max_qp_init_rd_atom
    {
        return Err(ERANGE);
    }
    Ok(())
}

/// Returns the first `len` bytes of `data`, or [`EMSGSIZE`].
fn private_data(data: &[u8], len: u32) -> Result<&[u8]> {
    data.get(..len as usize).ok_or(EMSGSIZE)
}

/// Claims the queue pair `handle` for a connection.
///
/// Returns [`eopnotsupp`] if it is not of type RC, and [`eproto`] if it is neither in RESET nor in
/// INIT.
fn claim(this: &UlpFile, handle: u32) -> Result<Claim> {
    let qp = this.table().read().use_qp(handle)?;
    if qp.qp().qp_type() != QpType::Rc {
        return Err(eopnotsupp());
    }
    let claim = Claim::new(qp)?;
    if !matches!(claim.qp().state(), State::Reset | State::Init) {
        return Err(eproto());
    }
    Ok(claim)
}

/// Checks the members that depend on neither an object nor the device.
pub(super) fn check_listen(value: &abi::Listen) -> Result {
    address(&value.addr)?.ok_or(EINVAL)?;
    if !(1..=MAX_BACKLOG).contains(&value.backlog) {
        return Err(ERANGE);
    }
    Ok(())
}

/// Creates a listener.
pub(super) fn listen(ctx: &Ctx<'_>, value: &mut abi::Listen) -> Result<Object> {
    let attributes = &ctx.device.attributes;
    let reads = [attributes.max_qp_rd_atom, attributes.max_qp_init_rd_atom];
    let [responder, initiator] = reads.map(|most| u8::try_from(most).unwrap_or(u8::MAX));
    let backlog = Backlog::new(
        value.backlog,
        ctx.file.device()?.clone(),
        (responder, initiator),
        value.user_data,
        ctx.file.events().clone(),
    )?;
    let charge = (ctx.file.quota()).take(value.backlog, quota::backlog(value.backlog))?;
    let listener = Listener::new(
        ctx.file.net(),
        ctx.device.device(),
        address(&value.addr)?.ok_or(EINVAL)?,
        backlog,
        charge,
    )?;
    value.addr = raw_address(Some(listener.addr()));
    Ok(Object::Listener(listener))
}

/// Takes the oldest request of a listener.
pub(super) fn get_request(ctx: &Ctx<'_>, value: &mut abi::GetRequest) -> Result<u32> {
    let deadline = Deadline::new(value.timeout_ns);
    // No reference to the listener: the last one ends it.
    let backlog = (ctx.file.table().read())
        .listener(value.listener)?
        .backlog()
        .clone();
    let taken = backlog.take(&deadline);
    value.timeout_ns = deadline.rest();
    let connection = taken?;
    let object = Object::Connection(connection.clone());
    let handle = match ctx.file.alloc_begin(object) {
        Ok(handle) => handle,
        Err(err) => {
            backlog.put_back(connection);
            return Err(err);
        }
    };
    connection.start(handle)?;
    let outcome = connection.outcome();
    value.handle = handle;
    value.peer = raw_address(outcome.peer);
    value.local = raw_address(outcome.local);
    value.param = outcome.param;
    value.peer_qp_num = outcome.peer_qp_num;
    value.private_len = outcome.private.len;
    value.private_data = outcome.private.data;
    Ok(handle)
}

/// Checks the members that depend on neither an object nor the device.
pub(super) fn check_accept(value: &abi::Accept) -> Result {
    check_parameters(&value.param)
}

/// Begins to accept a request.
pub(super) fn accept(ctx: &Ctx<'_>, value: &abi::Accept) -> Result {
    check_limits(&ctx.device, &value.param)?;
    let private = private_data(&value.private_data, value.private_len)?;
    let connection = ctx.file.table().read().connection(value.request)?.clone();
    let claim = claim(ctx.file, value.qp)?;
    let number = claim.number();
    connection
        .accept(claim, &value.param, private, value.user_data)
        .inspect_err(|&err| connection.trace_end(number, Err(err)))
}

/// Rejects a request.
pub(super) fn reject(ctx: &Ctx<'_>, value: &abi::Reject) -> Result {
    let private = private_data(&value.private_data, value.private_len)?;
    let connection = ctx.file.table().read().connection(value.request)?.clone();
    connection.reject(private)?;
    drop(connection);
    ulp_debug!("connection {:#x}: rejected\n", value.request);
    ctx.file.destroy(&ctx.device, value.request)
}

/// Checks the members that depend on neither an object nor the device.
pub(super) fn check_connect(value: &abi::Connect) -> Result {
    let dst = address(&value.dst)?.ok_or(EINVAL)?;
    let src = address(&value.src)?;
    if dst.port() == 0
        || dst.ip().is_unspecified()
        || src.is_some_and(|src| src.is_ipv4() != dst.is_ipv4())
    {
        return Err(EINVAL);
    }
    check_parameters(&value.param)?;
    if cm::is_wildcard(dst.ip()) {
        // The connection manager would take it for an address of this host, on any device.
        return Err(ehostunreach());
    }
    Ok(())
}

/// Begins to connect a queue pair to a listener.
pub(super) fn connect(ctx: &Ctx<'_>, value: &mut abi::Connect) -> Result<Object> {
    check_limits(&ctx.device, &value.param)?;
    let private = private_data(&value.private_data, value.private_len)?;
    let params = ConnectParams {
        dst: address(&value.dst)?.ok_or(EINVAL)?,
        src: address(&value.src)?,
        param: value.param,
        private: PrivateData::new(private),
    };
    let claim = claim(ctx.file, value.qp)?;
    Ok(Object::Connection(Connection::connecting(
        ctx.file.net(),
        ctx.device.device(),
        ctx.file.device()?.clone(),
        ctx.file.events().clone(),
        claim,
        params,
        value.user_data,
    )?))
}

/// Waits for the end of an attempt to connect.
pub(super) fn wait(ctx: &Ctx<'_>, value: &mut abi::ConnWait) -> Result {
    let deadline = Deadline::new(value.timeout_ns);
    let connection = ctx.file.table().read().connection(value.conn)?.clone();
    // Device removal closes the gate, then wakes the objects in the table. It either finds this
    // connection there, or the gate is closed by now.
    if ctx.file.device()?.is_gone() {
        return Err(ENODEV);
    }
    let result = connection.wait(&deadline);
    value.timeout_ns = deadline.rest();
    let outcome = connection.outcome();
    value.reject_reason = outcome.reject_reason;
    value.private_len = outcome.private.len;
    value.private_data = outcome.private.data;
    if result.is_ok() {
        value.local = raw_address(outcome.local);
        value.agreed = outcome.param;
        value.peer_qp_num = outcome.peer_qp_num;
    }
    result
}

/// Ends a connection.
pub(super) fn disconnect(ctx: &Ctx<'_>, value: &abi::Disconnect) -> Result {
    let connection = ctx.file.table().read().connection(value.conn)?.clone();
    connection.disconnect()
}

/// Describes a listener, a request or a connection.
pub(super) fn query(ctx: &Ctx<'_>, value: &mut abi::ConnQuery) -> Result {
    let mut now = abi::ConnQuery {
        size: value.size,
        conn: value.conn,
        ..Default::default()
    };
    let table = ctx.file.table().read();
    match table.get(value.conn)? {
        Object::Listener(listener) => {
            // As in `get_request`.
            let (addr, backlog) = (listener.addr(), listener.backlog().clone());
            drop(table);
            now.state = abi::CONN_LISTENING;
            now.local = raw_address(Some(addr));
            now.user_data = backlog.user_data();
            now.backlog = backlog.limit();
            (now.waiting, now.rejected) = backlog.usage();
        }
        Object::Connection(connection) => {
            let connection = connection.clone();
            drop(table);
            let outcome;
            (now.state, now.qp, outcome) = connection.look();
            now.local = raw_address(outcome.local);
            now.peer = raw_address(outcome.peer);
            now.param = outcome.param;
            now.peer_qp_num = outcome.peer_qp_num;
            now.user_data = connection.user_data();
        }
        _ => return Err(ebadfd()),
    }
    *value = now;
    Ok(())
}
