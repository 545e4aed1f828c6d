// SPDX-License-Identifier: GPL-2.0

//! The commands: one table, and a file for each kind of object.
//!
//! [`access`] copies and checks the struct of a command, enters the device, and writes the struct
//! back. A handler gets a reference to the struct, and the guard of the device in [`access::Ctx`].
//! The commands of io_uring have a table in [`uring`].

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
mod srq;
mod submit;
pub(crate) mod uring;

use crate::{
    file::UlpFile,
    uapi::abi, //
};
use access::User;
use kernel::{
    prelude::*,
    sync::ArcBorrow, //
};

/// Returns whether all bytes of `value` are zero.
fn is_zero<T: abi::Zero + PartialEq>(value: &T) -> bool {
    *value == T::ZERO
}

/// Declares the commands. Each line has:
///
/// - the number and the struct of the command;
/// - `first`: the size of the first version of a struct that has grown;
/// - `flags`: the defined flags; `zero`: padding, also of nested structs. The command fails with
///   [`EINVAL`] for other values;
/// - `private`: the maximum length of private data, else [`EMSGSIZE`]; zeros follow the data;
/// - `check`: a function that checks everything else that depends on neither an object nor the
///   device;
/// - the function of [`access`] that runs the command, and its handlers.
macro_rules! commands {
    ($(
        $number:ident: $name:ident {
            $(first: $first:ident,)? flags: $flags:expr $(, zero: ($($($zero:ident).+),+))?
            $(, check: $check:path)? $(, private: $private:ident)?
        } => $access:ident($($handler:path),+);
    )*) => {
        /// Runs command `cmd`, whose struct is at `arg`. Sleeps.
        ///
        /// Returns [`ENOTTY`] if there is no such command.
        pub(crate) fn dispatch(file: ArcBorrow<'_, UlpFile>, cmd: u32, arg: usize) -> Result {
            let run: fn(ArcBorrow<'_, UlpFile>, usize) -> Result = match cmd {
                $(abi::$number => |file, arg| {
                    fn check(value: &abi::$name) -> Result {
                        if value.flags & !$flags != 0
                            $($(|| !is_zero(&value.$($zero).+))+)?
                        {
                            return Err(EINVAL);
                        }
                        $($check(value)?;)?
                        $(if value.private_len as usize > abi::$private {
                            return Err(EMSGSIZE);
                        }
                        let mut rest = value.private_data.iter().skip(value.private_len as usize);
                        if rest.any(|&byte| byte != 0) {
                            return Err(EINVAL);
                        })?
                        Ok(())
                    }
                    const MIN: u32 = [$(abi::$first,)? abi::$name::SIZE][0];
                    let user = User::<abi::$name>::new(arg, MIN, check);
                    access::$access(file, user, $($handler),+)
                },)*
                _ => return Err(ENOTTY),
            };
            // Every command on a disassociated file returns ENODEV. The gate ensures this only for
            // commands that use the device.
            if file.device().is_ok_and(|device| device.is_gone()) {
                return Err(ENODEV);
            }
            run(file, arg)
        }
    };
}

commands! {
    IOC_QUERY: Query { flags: 0 } => outside(query::module);
    IOC_DEVICE_LIST: DeviceList { flags: 0, zero: (pad) } => outside(query::devices);
    IOC_ATTACH: Attach { flags: 0, zero: (pad), check: query::check_attach }
        => modify_outside(query::attach);
    IOC_DEVICE_QUERY: DeviceQuery { first: DEVICE_QUERY_SIZE_V1, flags: 0 } => query(query::device);
    IOC_PORT_QUERY: PortQuery { flags: 0, zero: (pad) } => query(query::port);
    IOC_GID_QUERY: GidQuery { flags: 0 } => outside(query::gids);
    IOC_PKEY_QUERY: PkeyQuery { flags: 0, zero: (pad) } => query(query::pkey);
    IOC_PD_CREATE: PdCreate { flags: 0, zero: (pad) } => create(pd::create);
    IOC_CQ_CREATE: CqCreate { flags: 0, check: cq::check } => create(cq::create);
    IOC_CQ_EVENTFD: CqEventfd { flags: 0 } => input(cq::eventfd);
    IOC_QP_CREATE: QpCreate { flags: abi::QP_SIG_ALL } => create(qp::create);
    IOC_QP_MODIFY: QpModify {
        flags: 0,
        zero: (attr.pad, attr.reserved, attr.ah.pad, attr.ah.pad2, attr.ah.reserved)
    } => modify(qp::modify);
    IOC_QP_QUERY: QpQuery {
        flags: 0,
        zero: (attr.pad, attr.reserved, attr.ah.pad, attr.ah.pad2, attr.ah.reserved)
    } => query(qp::query);
    IOC_SRQ_CREATE: SrqCreate { flags: 0 } => create(srq::create);
    IOC_SRQ_MODIFY: SrqModify { flags: 0 } => input(srq::modify);
    IOC_SRQ_QUERY: SrqQuery { flags: 0 } => query(srq::query);
    IOC_AH_CREATE: AhCreate {
        flags: 0, zero: (attr.pad, attr.pad2, attr.reserved), check: ah::check
    } => create(ah::create);
    IOC_BUFFER_CREATE: BufferCreate { flags: 0, zero: (pad) }
        => create_prepared(buffer::allocate, buffer::create);
    IOC_BUFFER_REGISTER: BufferRegister { flags: abi::BUFFER_READ_ONLY }
        => create_prepared(buffer::pin, buffer::register);
    IOC_BUFFER_IMPORT: BufferImport { flags: abi::BUFFER_READ_ONLY, zero: (pad) }
        => create_prepared(buffer::map, buffer::import);
    IOC_BUFFER_QUERY: BufferQuery { flags: 0, zero: (pad) } => query(buffer::query);
    IOC_GRANT_CREATE: GrantCreate {
        flags: (abi::GRANT_ONE_SHOT_INV | abi::GRANT_PARTIAL),
        zero: (pad), check: grant::check
    } => create(grant::create);
    IOC_GRANT_QUERY: GrantQuery { flags: 0, zero: (pad) } => query(grant::query);
    IOC_LISTEN: Listen { flags: 0, check: cm::check_listen } => create(cm::listen);
    IOC_GET_REQUEST: GetRequest { flags: 0, zero: (param.reserved) }
        => produce(cm::get_request);
    IOC_ACCEPT: Accept {
        flags: 0, zero: (pad, param.reserved), check: cm::check_accept, private: CM_REP_PRIVATE_MAX
    } => input(cm::accept);
    IOC_REJECT: Reject { flags: 0, private: CM_REJ_PRIVATE_MAX } => input(cm::reject);
    IOC_CONNECT: Connect {
        flags: 0, zero: (pad, param.reserved), check: cm::check_connect, private: CM_REQ_PRIVATE_MAX
    } => create(cm::connect);
    IOC_DISCONNECT: Disconnect { flags: 0, zero: (pad) } => input(cm::disconnect);
    IOC_CONN_QUERY: ConnQuery { flags: 0, zero: (pad, param.reserved) } => query(cm::query);
    IOC_CONN_WAIT: ConnWait { flags: 0, zero: (agreed.reserved) } => modify(cm::wait);
    IOC_SUBMIT: Submit { flags: 0, check: submit::check } => modify_outside(submit::submit);
    IOC_CANCEL: Cancel { flags: abi::CANCEL_ALL, check: cancel::check }
        => modify_outside(cancel::cancel);
    IOC_DESTROY: Destroy { flags: 0, zero: (pad) } => input(destroy);
}

/// Destroys an object.
fn destroy(ctx: &access::Ctx<'_>, value: &abi::Destroy) -> Result {
    ctx.file.destroy(&ctx.device, value.handle)
}
