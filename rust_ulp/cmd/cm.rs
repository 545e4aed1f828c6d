// SPDX-License-Identifier: GPL-2.0

//! Commands of connections: from a struct of the caller to a listener or a connection, and back.
//!
//! Nothing but handles and plain values leaves the gate. What waits does so inside the gate, and leaves
//! when the device goes.

use super::access::{
    Made,
    Undo, //
};
use crate::{
    device::{
        DeviceGuard,
        DeviceState, //
    },
    file::UlpFile,
    kernel::errno::{
        ebadfd,
        ehostunreach,
        eopnotsupp,
        eproto, //
    },
    limits::MAX_BACKLOG,
    object::{
        connection::{
            ConnectParams,
            ConnectTimes,
            Connection,
            Deadline, //
        },
        listener::Listener,
        qp::{
            Claim,
            QpObject, //
        },
        Object, //
    },
    rdma::{
        cm,
        qp_attr::{
            QpType,
            State, //
        }, //
    },
    trace::{
        self,
        ulp_debug, //
    },
    uapi::abi, //
};
use core::net::{
    Ipv4Addr,
    Ipv6Addr,
    SocketAddr,
    SocketAddrV4,
    SocketAddrV6, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// The address that `addr` says; [`None`] when it is left out. [`EINVAL`].
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
            // A link-local address needs its link, and no other has one.
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

/// Checks what the device has no part in.
fn check_parameters(param: &abi::ConnParam) -> Result {
    const REMOTE: u32 =
        abi::ACCESS_REMOTE_WRITE | abi::ACCESS_REMOTE_READ | abi::ACCESS_REMOTE_ATOMIC;
    const FLAGS: u32 = abi::CONN_TRAFFIC_CLASS | abi::CONN_FLOW_CONTROL;
    if param.flags & !FLAGS != 0 || param.access_flags & !REMOTE != 0 || param.path_mtu > 5 {
        return Err(EINVAL);
    }
    if param.retry_cnt > 7
        || param.rnr_retry > 7
        || param.min_rnr_timer > 31
        || param.ack_timeout > 31
    {
        return Err(ERANGE);
    }
    Ok(())
}

fn check_limits(live: &DeviceState, param: &abi::ConnParam) -> Result {
    let attributes = &live.attributes;
    if u32::from(param.responder_resources) > attributes.max_qp_rd_atom
        || u32::from(param.initiator_depth) > attributes.max_qp_init_rd_atom
    {
        return Err(ERANGE);
    }
    Ok(())
}

/// Checks a time to wait. [`EINVAL`].
fn check_timeout(timeout_ns: u64) -> Result {
    if timeout_ns > abi::TIMEOUT_MAX_NS {
        return Err(EINVAL);
    }
    Ok(())
}

/// The first `len` bytes of `data`. [`EMSGSIZE`] when that is more than `most`.
fn private_data(data: &[u8], len: u32, most: usize) -> Result<&[u8]> {
    let len = len as usize;
    if len > most {
        return Err(EMSGSIZE);
    }
    data.get(..len).ok_or(EMSGSIZE)
}

/// The queue pair that `handle` names, and the right to it; it is RC, and in RESET or INIT.
fn claim(this: &UlpFile, handle: u32) -> Result<(Arc<QpObject>, Claim)> {
    let table = this.table().lock();
    let qp = table.qp(handle)?.clone();
    let need = table.use_qp(handle)?;
    drop(table);
    if qp.qp().qp_type() != QpType::Rc {
        return Err(eopnotsupp());
    }
    let claim = Claim::new(need)?;
    if !matches!(qp.qp().state(), State::Reset | State::Init) {
        return Err(eproto());
    }
    Ok((qp, claim))
}

/// Checks what the device has no part in.
pub(super) fn check_listen(value: &abi::Listen) -> Result {
    address(&value.addr)?.ok_or(EINVAL)?;
    if !(1..=MAX_BACKLOG).contains(&value.backlog) {
        return Err(ERANGE);
    }
    Ok(())
}

/// Makes a listener.
pub(super) fn listen(
    file: &UlpFile,
    device: &DeviceGuard<'_>,
    value: &mut abi::Listen,
) -> Result<Object> {
    let listener = Listener::new(
        file.net(),
        device.device(),
        address(&value.addr)?.ok_or(EINVAL)?,
        value.backlog,
        file.pending_conns().clone(),
        file.events().clone(),
    )?;
    value.addr = raw_address(Some(listener.addr()));
    Ok(Object::Listener(listener))
}

/// Checks what the device has no part in.
pub(super) fn check_get_request(value: &abi::GetRequest) -> Result {
    check_timeout(value.timeout_ns)
}

/// Takes a request from a listener.
pub(super) fn get_request(
    file: &UlpFile,
    _device: &DeviceGuard<'_>,
    value: &mut abi::GetRequest,
) -> Result<Made> {
    let deadline = Deadline::new(value.timeout_ns);
    let listener = file.table().lock().listener(value.listener)?.clone();
    let backlog = listener.backlog().clone();
    drop(listener);
    let connection = backlog.take(&deadline)?;
    let handle = match file.alloc_begin(Object::Connection(connection.clone())) {
        Ok(handle) => handle,
        Err(err) => {
            backlog.put_back(connection);
            return Err(err);
        }
    };
    connection.set_handle(handle);
    let outcome = connection.outcome();
    value.handle = handle;
    value.peer = raw_address(outcome.peer);
    value.local = raw_address(outcome.local);
    value.param = outcome.param;
    value.peer_qp_num = outcome.peer_qp_num;
    value.private_len = outcome.private.len;
    value.private_data = outcome.private.data;
    Ok(Made {
        handle,
        undo: Undo::PutBack(backlog),
    })
}

/// Checks what the device has no part in.
pub(super) fn check_accept(value: &abi::Accept) -> Result {
    check_timeout(value.timeout_ns)?;
    private_data(
        &value.private_data,
        value.private_len,
        abi::CM_REP_PRIVATE_MAX,
    )?;
    check_parameters(&value.param)
}

/// Accepts a request.
pub(super) fn accept(file: &UlpFile, device: &DeviceGuard<'_>, value: &mut abi::Accept) -> Result {
    let private = private_data(
        &value.private_data,
        value.private_len,
        abi::CM_REP_PRIVATE_MAX,
    )?;
    let deadline = Deadline::new(value.timeout_ns);
    check_limits(device, &value.param)?;
    let connection = file.table().lock().connection(value.request)?.clone();
    let (qp, claim) = claim(file, value.qp)?;
    let accepted = connection.accept(claim, &qp, &value.param, private, &deadline);
    let result = accepted.and_then(|result| result);
    trace::accept(
        value.request,
        qp.number(),
        result.err().map_or(0, |err| err.to_errno()),
    );
    ulp_debug!(
        "connection {:#x}: accepted with qp {}: {:?}\n",
        value.request,
        qp.number(),
        result
    );
    let param = connection.outcome().param;
    drop(qp);
    drop(connection);
    if let Ok(Err(err)) = accepted {
        // Spent. Somebody else may have destroyed it meanwhile.
        let _ = file.destroy(device, value.request);
        return Err(err);
    }
    accepted??;
    value.param = param;
    Ok(())
}

/// Checks what the device has no part in.
pub(super) fn check_reject(value: &abi::Reject) -> Result {
    private_data(
        &value.private_data,
        value.private_len,
        abi::CM_REJ_PRIVATE_MAX,
    )
    .map(|_| ())
}

/// Rejects a request.
pub(super) fn reject(file: &UlpFile, device: &DeviceGuard<'_>, value: &abi::Reject) -> Result {
    let private = private_data(
        &value.private_data,
        value.private_len,
        abi::CM_REJ_PRIVATE_MAX,
    )?;
    let connection = file.table().lock().connection(value.request)?.clone();
    connection.reject(private)?;
    drop(connection);
    ulp_debug!("connection {:#x}: rejected\n", value.request);
    file.destroy(device, value.request)
}

/// Checks what the device has no part in.
pub(super) fn check_connect(value: &abi::Connect) -> Result {
    check_timeout(value.timeout_ns)?;
    let dst = address(&value.dst)?.ok_or(EINVAL)?;
    let src = address(&value.src)?;
    if dst.port() == 0
        || dst.ip().is_unspecified()
        || src.is_some_and(|src| src.is_ipv4() != dst.is_ipv4())
    {
        return Err(EINVAL);
    }
    private_data(
        &value.private_data,
        value.private_len,
        abi::CM_REQ_PRIVATE_MAX,
    )?;
    check_parameters(&value.param)?;
    if cm::is_wildcard(dst.ip()) {
        // The manager would take it for its own address, whatever device that is on.
        return Err(ehostunreach());
    }
    Ok(())
}

/// Connects.
pub(super) fn connect(
    file: &UlpFile,
    device: &DeviceGuard<'_>,
    value: &mut abi::Connect,
) -> Result<Made> {
    let deadline = Deadline::new(value.timeout_ns);
    let given = *value;
    check_limits(device, &given.param)?;
    let params = ConnectParams {
        dst: address(&given.dst)?.ok_or(EINVAL)?,
        src: address(&given.src)?,
        param: given.param,
        private_data: private_data(
            &given.private_data,
            given.private_len,
            abi::CM_REQ_PRIVATE_MAX,
        )?,
        device: device.attributes.index,
    };
    let (qp, claim) = claim(file, value.qp)?;
    let connection = Connection::new(file.net(), device.device(), claim, file.events().clone())?;
    let handle = file.alloc_begin(Object::Connection(connection.clone()))?;
    connection.set_handle(handle);
    let mut times = ConnectTimes::default();
    // Whoever closes the gate says so before he looks for those who wait: he finds this connection
    // in the table, or it is too late for it here.
    let result = if file.device()?.is_gone() {
        Err(ENODEV)
    } else {
        connection.connect(&qp, &params, &deadline, &mut times)
    };
    trace::connect(
        handle,
        qp.number(),
        times.resolve,
        times.route,
        times.connect,
        result.err().map_or(0, |err| err.to_errno()),
    );
    ulp_debug!(
        "connection {:#x}: connected with qp {}: {:?}\n",
        handle,
        qp.number(),
        result
    );
    let outcome = connection.outcome();
    drop(connection);
    drop(qp);
    value.reject_reason = outcome.reject_reason;
    value.private_len = outcome.private.len;
    value.private_data = outcome.private.data;
    value.resolve_us = times.resolve;
    value.route_us = times.route;
    value.connect_us = times.connect;
    if let Err(err) = result {
        file.alloc_abort(device, handle)?;
        return Err(err);
    }
    value.handle = handle;
    value.src = raw_address(outcome.local);
    value.param = outcome.param;
    value.peer_qp_num = outcome.peer_qp_num;
    Ok(Made {
        handle,
        undo: Undo::Disconnect(given.qp),
    })
}

/// Disconnects.
pub(super) fn disconnect(
    file: &UlpFile,
    _device: &DeviceGuard<'_>,
    value: &abi::Disconnect,
) -> Result {
    let connection = file.table().lock().connection(value.conn)?.clone();
    connection.disconnect()
}

/// Says how a listener, a request or a connection is.
pub(super) fn query(
    file: &UlpFile,
    _device: &DeviceGuard<'_>,
    value: &mut abi::ConnQuery,
) -> Result {
    let object = file.table().lock().get(value.conn)?.clone();
    let mut now = abi::ConnQuery {
        size: value.size,
        conn: value.conn,
        ..Default::default()
    };
    match &object {
        Object::Listener(listener) => {
            now.state = abi::CONN_LISTENING;
            now.local = raw_address(Some(listener.addr()));
            now.backlog = listener.backlog().limit();
            (now.waiting, now.rejected) = listener.backlog().usage();
        }
        Object::Connection(connection) => {
            let outcome = connection.outcome();
            (now.state, now.qp) = connection.state();
            now.local = raw_address(outcome.local);
            now.peer = raw_address(outcome.peer);
            now.param = outcome.param;
            now.peer_qp_num = outcome.peer_qp_num;
        }
        _ => return Err(ebadfd()),
    }
    *value = now;
    Ok(())
}
