// SPDX-License-Identifier: MIT OR Apache-2.0

//! Posting and canceling without a batch.

use crate::abi;
use crate::buffer::LocalSlice;
use crate::device::DeviceInner;
use crate::error::{Error, Result};
use crate::sys::{self, Command};
use crate::wr::{Local, Request, Target};
use nix::errno::Errno;

/// More elements than this need a batch.
const STACK_SGES: usize = 32;

/// Returns the error for an error number of SUBMIT.
pub(crate) fn submit_error(errno: Errno) -> Error {
    match errno {
        Errno::EAGAIN => Error::QueueFull,
        Errno::ENOTCONN => Error::NotConnected,
        errno => Error::sys(abi::Submit::NAME, errno),
    }
}

/// Posts one request, without allocating.
pub(crate) fn post_one(target: &Target<'_>, request: &Request<'_>) -> Result<()> {
    let wr = request.encode(target)?;
    match &request.local {
        Local::Many(slices) if slices.len() > 1 => post_several(target, wr, slices),
        _ => submit(target, wr),
    }
}

/// Posts a request with several elements.
fn post_several(target: &Target<'_>, mut wr: abi::Wr, slices: &[LocalSlice<'_>]) -> Result<()> {
    let mut sges = [abi::Sge::default(); STACK_SGES];
    let Some(sges) = sges.get_mut(..slices.len()) else {
        return Err(Error::TooMany {
            what: "elements",
            count: slices.len() as u64,
            max: STACK_SGES as u64,
        });
    };
    for (to, slice) in sges.iter_mut().zip(slices) {
        *to = slice.sge();
    }
    wr.sge.offset = sys::address_of(sges);
    submit(target, wr)
}

fn submit(target: &Target<'_>, wr: abi::Wr) -> Result<()> {
    let mut arg: abi::Submit = Command::new();
    let file = target.device.file();
    file.submit(&[wr], &mut arg).map_err(submit_error)
}

/// Has the kernel complete requests of `queue`: those with that number, or all.
pub(crate) fn cancel(device: &DeviceInner, queue: u32, wr_id: Option<u64>) -> Result<u32> {
    let mut arg = abi::Cancel {
        flags: if wr_id.is_none() { abi::CANCEL_ALL } else { 0 },
        queue,
        user_data: wr_id.unwrap_or(0),
        ..Command::new()
    };
    device.call(&mut arg)?;
    Ok(arg.canceled)
}
