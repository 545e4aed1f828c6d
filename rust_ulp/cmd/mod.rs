// SPDX-License-Identifier: GPL-2.0

//! The commands: one table, and a file for each kind of object.
//!
//! [`access`] copies the struct of a command, checks it, enters the device, and writes the struct back.
//! A handler gets the struct by reference, and the guard of the device.

mod access;
mod address;
mod ah;
mod buffer;
mod cancel;
mod cm;
mod cq;
mod grant;
mod pd;
mod qp;
mod query;
mod resolve;
mod srq;
mod submit;
pub(crate) mod uring;

use crate::{
    device::DeviceGuard,
    file::UlpFile,
    uapi::abi, //
};
use access::User;
use kernel::{
    prelude::*,
    sync::ArcBorrow, //
};

/// Declares the commands. Each line has:
///
/// - the number, and the struct that goes with it;
/// - the flags that are defined, the fields that must be zero, and a function that checks the rest of
///   what needs no object: [`EINVAL`] for others;
/// - how it gets at the struct and the device: a function of [`access`];
/// - its handler, or handlers.
macro_rules! commands {
    ($(
        $number:ident: $name:ident { flags: $flags:expr $(, zero: $zero:ident)? $(, check: $check:path)? }
            => $access:ident($($handler:path),+);
    )*) => {
        /// Runs command `cmd`. Sleeps. [`ENOTTY`] for what is no command.
        pub(crate) fn dispatch(file: ArcBorrow<'_, UlpFile>, cmd: u32, arg: usize) -> Result {
            let run: fn(ArcBorrow<'_, UlpFile>, usize) -> Result = match cmd {
                $(abi::$number => |file, arg| {
                    fn check(value: &abi::$name) -> Result {
                        if value.flags & !$flags != 0 $(|| value.$zero != 0)? {
                            return Err(EINVAL);
                        }
                        $($check(value)?;)?
                        Ok(())
                    }
                    let user = User::<abi::$name>::new(arg, abi::$name::SIZE, check);
                    access::$access(file, user, $($handler),+)
                },)*
                _ => return Err(ENOTTY),
            };
            // Every command on a disassociated file returns ENODEV. The gate decides for commands that
            // use the device; this is for the others.
            if file.device().is_ok_and(|device| device.is_gone()) {
                return Err(ENODEV);
            }
            run(file, arg)
        }
    };
}

commands! {
    IOC_QUERY: Query { flags: 0 } => ask(query::module);
    IOC_DEVICE_LIST: DeviceList { flags: 0, zero: pad } => ask(query::devices);
    IOC_ATTACH: Attach { flags: 0, check: query::check_name } => change(query::attach);
    IOC_DEVICE_QUERY: DeviceQuery { flags: 0, zero: pad } => query(query::device);
    IOC_PORT_QUERY: PortQuery { flags: 0, zero: pad } => query(query::port);
    IOC_GID_QUERY: GidQuery { flags: 0 } => ask(query::gids);
    IOC_PKEY_QUERY: PkeyQuery { flags: 0, zero: pad } => query(query::pkey);
    IOC_PD_CREATE: PdCreate { flags: 0, zero: pad } => create(pd::create);
    IOC_CQ_CREATE: CqCreate { flags: 0 } => create(cq::create);
    IOC_CQ_EVENTFD: CqEventfd { flags: 0 } => tell(cq::eventfd);
    IOC_QP_CREATE: QpCreate { flags: abi::QP_SIG_ALL } => create(qp::create);
    IOC_QP_MODIFY: QpModify { flags: 0 } => modify(qp::modify);
    IOC_QP_QUERY: QpQuery { flags: 0, check: qp::check_query } => query(qp::query);
    IOC_SRQ_CREATE: SrqCreate { flags: 0 } => create(srq::create);
    IOC_SRQ_MODIFY: SrqModify { flags: 0 } => tell(srq::modify);
    IOC_SRQ_QUERY: SrqQuery { flags: 0, zero: pad } => query(srq::query);
    IOC_AH_CREATE: AhCreate { flags: 0, zero: pad, check: ah::check } => create(ah::create);
    IOC_BUFFER_CREATE: BufferCreate { flags: 0, zero: pad }
        => create_of(buffer::allocate, buffer::create);
    IOC_BUFFER_REGISTER: BufferRegister { flags: abi::BUFFER_READ_ONLY }
        => create_of(buffer::pin, buffer::register);
    IOC_BUFFER_IMPORT: BufferImport { flags: abi::BUFFER_READ_ONLY, zero: pad }
        => create_of(buffer::map, buffer::import);
    IOC_BUFFER_QUERY: BufferQuery { flags: 0 } => query(buffer::query);
    IOC_GRANT_CREATE: GrantCreate {
        flags: (abi::GRANT_ONE_SHOT | abi::GRANT_PARTIAL), zero: pad, check: grant::check
    } => create(grant::create);
    IOC_GRANT_ROTATE: GrantRotate { flags: 0 } => modify(grant::rotate);
    IOC_GRANT_QUERY: GrantQuery { flags: 0 } => query(grant::query);
    IOC_LISTEN: Listen { flags: 0, check: cm::check_listen } => create(cm::listen);
    IOC_GET_REQUEST: GetRequest { flags: 0, check: cm::check_get_request }
        => produce(cm::get_request);
    IOC_ACCEPT: Accept { flags: 0, zero: pad, check: cm::check_accept } => modify(cm::accept);
    IOC_REJECT: Reject { flags: 0, check: cm::check_reject } => tell(cm::reject);
    IOC_CONNECT: Connect { flags: 0, check: cm::check_connect } => produce(cm::connect);
    IOC_DISCONNECT: Disconnect { flags: 0, zero: pad } => tell(cm::disconnect);
    IOC_CONN_QUERY: ConnQuery { flags: 0 } => query(cm::query);
    IOC_SUBMIT: Submit { flags: 0, check: submit::check } => change(submit::submit);
    IOC_CANCEL: Cancel { flags: abi::CANCEL_ALL, check: cancel::check }
        => change(cancel::cancel);
    IOC_DESTROY: Destroy { flags: 0, zero: pad } => tell(destroy);
}

/// Destroys an object.
fn destroy(file: &UlpFile, device: &DeviceGuard<'_>, value: &abi::Destroy) -> Result {
    file.destroy(device, value.handle)
}
