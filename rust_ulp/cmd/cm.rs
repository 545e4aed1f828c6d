// SPDX-License-Identifier: GPL-2.0

//! Commands of connections: from a struct of the caller to a listener or a connection, and back.
//!
//! As the commands of `ioctl`: the struct is read once and checked; nothing but handles and plain
//! values leaves the gate. What waits does so inside the gate, and leaves when the device goes.

use super::publish;
use crate::{
    device::{
        Alive,
        Live, //
    },
    file::Context,
    kernel::{
        errno::{
            ebadfd,
            ehostunreach,
            eopnotsupp,
            eproto, //
        },
        user::Arg, //
    },
    limits::MAX_BACKLOG,
    object::{
        connection::{
            Connection,
            Deadline,
            Times,
            Wanted, //
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
    sync::{
        Arc,
        ArcBorrow, //
    }, //
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

fn check_limits(live: &Live, param: &abi::ConnParam) -> Result {
    let attributes = &live.attributes;
    if u32::from(param.responder_resources) > attributes.max_qp_rd_atom
        || u32::from(param.initiator_depth) > attributes.max_qp_init_rd_atom
    {
        return Err(ERANGE);
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
fn claim(this: &Context, handle: u32) -> Result<(Arc<QpObject>, Claim)> {
    let table = this.table().lock();
    let qp = table.qp(handle)?.clone();
    let need = table.need_qp(handle)?;
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

/// Listens.
pub(crate) fn listen(this: ArcBorrow<'_, Context>, arg: usize) -> Result {
    let mut arg = Arg::<abi::Listen>::read(arg, abi::Listen::SIZE)?;
    if arg.value.flags != 0 {
        return Err(EINVAL);
    }
    let addr = address(&arg.value.addr)?.ok_or(EINVAL)?;
    if !(1..=MAX_BACKLOG).contains(&arg.value.backlog) {
        return Err(ERANGE);
    }
    let alive = this.enter()?;
    let listener = Listener::new(
        this.net(),
        alive.device(),
        addr,
        arg.value.backlog,
        this.arrivals().clone(),
        this.events().clone(),
    )?;
    let handle = this.insert(Object::Listener(listener.clone()))?;
    listener.set_handle(handle);
    if let Err(err) = listener.listen() {
        drop(listener);
        this.destroy(&alive, handle, false)?;
        return Err(err);
    }
    arg.value.addr = raw_address(Some(listener.addr()));
    arg.value.handle = handle;
    ulp_debug!("listener {:#x}: port {}\n", handle, arg.value.addr.port);
    drop(listener);
    drop(alive);
    publish(this, &arg, handle)
}

/// Takes a request.
pub(crate) fn get_request(this: ArcBorrow<'_, Context>, arg: usize) -> Result {
    let mut arg = Arg::<abi::GetRequest>::read(arg, abi::GetRequest::SIZE)?;
    if arg.value.flags != 0 || arg.value.timeout_ns > abi::TIMEOUT_MAX_NS {
        return Err(EINVAL);
    }
    // A struct that cannot be written is found out before a request is taken.
    arg.write()?;
    let deadline = Deadline::new(arg.value.timeout_ns);
    let alive = this.enter()?;
    let listener = this.table().lock().listener(arg.value.listener)?.clone();
    let backlog = listener.backlog().clone();
    drop(listener);
    let connection = backlog.take(&deadline)?;
    let handle = match this.insert(Object::Connection(connection.clone())) {
        Ok(handle) => handle,
        Err(err) => {
            backlog.put_back(connection);
            return Err(err);
        }
    };
    connection.set_handle(handle);
    let outcome = connection.outcome();
    drop(connection);
    let value = &mut arg.value;
    value.handle = handle;
    value.peer = raw_address(outcome.peer);
    value.local = raw_address(outcome.local);
    value.param = outcome.param;
    value.peer_qp_num = outcome.peer_qp_num;
    value.private_len = outcome.private.len;
    value.private_data = outcome.private.data;
    drop(alive);

    let written = arg.write();
    let alive = this.enter()?;
    let result = match written {
        Ok(()) => this.table().lock().publish(handle),
        Err(err) => {
            if let Ok(Object::Connection(connection)) = this.withdraw(&alive, handle) {
                connection.set_handle(0);
                backlog.put_back(connection);
                return Err(err);
            }
            Err(err)
        }
    };
    backlog.forget();
    result
}

/// Accepts a request.
pub(crate) fn accept(this: ArcBorrow<'_, Context>, arg: usize) -> Result {
    let mut arg = Arg::<abi::Accept>::read(arg, abi::Accept::SIZE)?;
    let value = &arg.value;
    if value.flags != 0 || value.pad != 0 || value.timeout_ns > abi::TIMEOUT_MAX_NS {
        return Err(EINVAL);
    }
    let private = private_data(
        &value.private_data,
        value.private_len,
        abi::CM_REP_PRIVATE_MAX,
    )?;
    check_parameters(&value.param)?;
    // A struct that cannot be written is found out before anything changes.
    arg.write()?;
    let deadline = Deadline::new(value.timeout_ns);
    let alive = this.enter()?;
    check_limits(&alive, &value.param)?;
    let connection = this.table().lock().connection(value.request)?.clone();
    let (qp, claim) = claim(&this, value.qp)?;
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
        let _ = this.destroy(&alive, value.request, true);
        return Err(err);
    }
    accepted??;
    arg.value.param = param;
    drop(alive);
    arg.write()
}

/// Rejects a request.
pub(crate) fn reject(this: ArcBorrow<'_, Context>, arg: usize) -> Result {
    let arg = Arg::<abi::Reject>::read(arg, abi::Reject::SIZE)?;
    if arg.value.flags != 0 {
        return Err(EINVAL);
    }
    let private = private_data(
        &arg.value.private_data,
        arg.value.private_len,
        abi::CM_REJ_PRIVATE_MAX,
    )?;
    let alive = this.enter()?;
    let connection = this.table().lock().connection(arg.value.request)?.clone();
    connection.reject(private)?;
    drop(connection);
    ulp_debug!("connection {:#x}: rejected\n", arg.value.request);
    this.destroy(&alive, arg.value.request, true)
}

/// What CONNECT does inside the gate, up to the handle.
fn try_connect(
    this: &Context,
    alive: &Alive<'_>,
    value: &mut abi::Connect,
    wanted: &Wanted<'_>,
    deadline: &Deadline,
) -> Result {
    let (qp, claim) = claim(this, value.qp)?;
    let (net, file) = (this.net(), this.events().clone());
    let connection = Connection::new(net, alive.device(), claim, file)?;
    let handle = this.insert(Object::Connection(connection.clone()))?;
    connection.set_handle(handle);
    let mut times = Times::default();
    // Whoever closes the gate says so before he looks for those who wait: he finds this connection
    // in the table, or it is too late for it here.
    let result = if this.device()?.is_gone() {
        Err(ENODEV)
    } else {
        connection.connect(&qp, wanted, deadline, &mut times)
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
    match result {
        Ok(()) => {
            value.handle = handle;
            value.src = raw_address(outcome.local);
            value.param = outcome.param;
            value.peer_qp_num = outcome.peer_qp_num;
            Ok(())
        }
        Err(err) => {
            this.destroy(alive, handle, false)?;
            Err(err)
        }
    }
}

/// Takes the queue pair that `handle` names back to RESET, unless another connection has it. Sleeps.
fn take_back(this: &Context, handle: u32) -> Result {
    let _alive = this.enter()?;
    let need = this.table().lock().need_qp(handle)?;
    Claim::new(need)?.move_to(State::Reset)
}

/// Connects.
pub(crate) fn connect(this: ArcBorrow<'_, Context>, arg: usize) -> Result {
    let mut arg = Arg::<abi::Connect>::read(arg, abi::Connect::SIZE)?;
    let given = arg.value;
    if given.flags != 0 || given.timeout_ns > abi::TIMEOUT_MAX_NS {
        return Err(EINVAL);
    }
    let dst = address(&given.dst)?.ok_or(EINVAL)?;
    let src = address(&given.src)?;
    if dst.port() == 0
        || dst.ip().is_unspecified()
        || src.is_some_and(|src| src.is_ipv4() != dst.is_ipv4())
    {
        return Err(EINVAL);
    }
    let private = private_data(
        &given.private_data,
        given.private_len,
        abi::CM_REQ_PRIVATE_MAX,
    )?;
    check_parameters(&given.param)?;
    if cm::is_wildcard(dst.ip()) {
        // The manager would take it for its own address, whatever device that is on.
        return Err(ehostunreach());
    }
    // A struct that cannot be written is found out before anything changes.
    arg.write()?;
    let deadline = Deadline::new(given.timeout_ns);
    let alive = this.enter()?;
    check_limits(&alive, &given.param)?;
    let wanted = Wanted {
        dst,
        src,
        param: given.param,
        private_data: private,
        device: alive.attributes.index,
    };
    let result = try_connect(&this, &alive, &mut arg.value, &wanted, &deadline);
    drop(alive);
    match result {
        Ok(()) => publish(this, &arg, arg.value.handle).inspect_err(|_| {
            // The connection is gone again, which has left it in ERR.
            let _ = take_back(&this, given.qp);
        }),
        Err(err) => {
            // Why the peer rejects. That it could be written was found out above.
            let _ = arg.write();
            Err(err)
        }
    }
}

/// Disconnects.
pub(crate) fn disconnect(this: ArcBorrow<'_, Context>, arg: usize) -> Result {
    let arg = Arg::<abi::Disconnect>::read(arg, abi::Disconnect::SIZE)?;
    if arg.value.flags != 0 || arg.value.pad != 0 {
        return Err(EINVAL);
    }
    let _alive = this.enter()?;
    let connection = this.table().lock().connection(arg.value.conn)?.clone();
    connection.disconnect()
}

/// Says how a listener, a request or a connection is.
pub(crate) fn query(this: ArcBorrow<'_, Context>, arg: usize) -> Result {
    let mut arg = Arg::<abi::ConnQuery>::read(arg, abi::ConnQuery::SIZE)?;
    if arg.value.flags != 0 {
        return Err(EINVAL);
    }
    let alive = this.enter()?;
    let object = this.table().lock().get(arg.value.conn)?.clone();
    let mut value = abi::ConnQuery {
        size: arg.value.size,
        conn: arg.value.conn,
        ..Default::default()
    };
    match &object {
        Object::Listener(listener) => {
            value.state = abi::CONN_LISTENING;
            value.local = raw_address(Some(listener.addr()));
            value.backlog = listener.backlog().limit();
            (value.waiting, value.rejected) = listener.backlog().usage();
        }
        Object::Connection(connection) => {
            let outcome = connection.outcome();
            (value.state, value.qp) = connection.state();
            value.local = raw_address(outcome.local);
            value.peer = raw_address(outcome.peer);
            value.param = outcome.param;
            value.peer_qp_num = outcome.peer_qp_num;
        }
        _ => return Err(ebadfd()),
    }
    arg.value = value;
    drop(object);
    drop(alive);
    arg.write()
}
