// SPDX-License-Identifier: GPL-2.0

//! How a command gets at its struct and its device.
//!
//! Here, and nowhere else, structs of commands are copied and checked, the device is entered and left,
//! and structs are written back. No struct is copied inside the device's gate.
//!
//! An object that was made is not to be found before its handle was written; when that fails, it is
//! destroyed again.

use crate::{
    device::DeviceGuard,
    file::UlpFile,
    kernel::user::{
        Arg,
        Plain, //
    },
    object::{
        cq::mmap_offset,
        listener::Backlog,
        qp::Claim,
        Object, //
    },
    rdma::qp_attr::State,
    uapi::abi, //
};
use kernel::{
    prelude::*,
    sync::{
        Arc,
        ArcBorrow, //
    }, //
};

/// The struct of a command in user space, and what is checked of it without any object.
pub(super) struct User<T> {
    ptr: usize,
    /// The size of its first version.
    min: u32,
    check: fn(&T) -> Result,
}

impl<T: Plain> User<T> {
    /// The struct at `ptr`, which is at least `min` bytes long.
    #[inline(always)]
    pub(super) fn new(ptr: usize, min: u32, check: fn(&T) -> Result) -> Self {
        Self { ptr, min, check }
    }

    /// Copies the struct, once, and checks it.
    #[inline(always)]
    fn read(self) -> Result<Arg<T>> {
        let arg = Arg::read(self.ptr, self.min)?;
        (self.check)(&arg.value)?;
        Ok(arg)
    }

    /// The same of a struct whose command changes something: that it can be written is found out
    /// before.
    #[inline(always)]
    fn read_writable(self) -> Result<Arg<T>> {
        let arg = self.read()?;
        arg.write()?;
        Ok(arg)
    }
}

/// Runs a command that uses no device, or enters it by itself.
pub(super) fn ask<T: Plain>(
    file: ArcBorrow<'_, UlpFile>,
    user: User<T>,
    run: impl FnOnce(&UlpFile, &mut T) -> Result,
) -> Result {
    let mut arg = user.read()?;
    run(&file, &mut arg.value)?;
    arg.write()
}

/// Runs a command that changes something, and enters the device by itself. What it has noted in the
/// struct is written back also when it fails: that helps the caller, who has the error in any case.
#[inline(always)]
pub(super) fn change<T: Plain>(
    file: ArcBorrow<'_, UlpFile>,
    user: User<T>,
    run: impl FnOnce(ArcBorrow<'_, UlpFile>, &mut T) -> Result,
) -> Result {
    let mut arg = user.read_writable()?;
    let result = run(file, &mut arg.value);
    let written = arg.write();
    result.and(written)
}

/// Runs a command that uses the device, and writes nothing back.
pub(super) fn tell<T: Plain>(
    file: ArcBorrow<'_, UlpFile>,
    user: User<T>,
    run: impl FnOnce(&UlpFile, &DeviceGuard<'_>, &T) -> Result,
) -> Result {
    let arg = user.read()?;
    let device = file.enter()?;
    run(&file, &device, &arg.value)
}

/// Runs a command that looks at the device.
pub(super) fn query<T: Plain>(
    file: ArcBorrow<'_, UlpFile>,
    user: User<T>,
    run: impl FnOnce(&UlpFile, &DeviceGuard<'_>, &mut T) -> Result,
) -> Result {
    let mut arg = user.read()?;
    let device = file.enter()?;
    run(&file, &device, &mut arg.value)?;
    drop(device);
    arg.write()
}

/// Runs a command that changes an object of the device.
pub(super) fn modify<T: Plain>(
    file: ArcBorrow<'_, UlpFile>,
    user: User<T>,
    run: impl FnOnce(&UlpFile, &DeviceGuard<'_>, &mut T) -> Result,
) -> Result {
    let mut arg = user.read_writable()?;
    let device = file.enter()?;
    run(&file, &device, &mut arg.value)?;
    drop(device);
    arg.write()
}

/// A struct that says which object was made.
pub(super) trait Created: Plain {
    /// Notes the handle.
    fn set_handle(&mut self, handle: u32);
}

macro_rules! created {
    ($($name:ident $($mmap_offset:ident)?;)*) => { $(
        impl Created for abi::$name {
            fn set_handle(&mut self, handle: u32) {
                self.handle = handle;
                $(self.$mmap_offset = mmap_offset(handle);)?
            }
        }
    )* };
}

created! {
    PdCreate;
    CqCreate mmap_offset;
    QpCreate;
    SrqCreate;
    AhCreate;
    BufferCreate mmap_offset;
    BufferRegister;
    BufferImport;
    GrantCreate;
    Listen;
}

/// Makes an object.
pub(super) fn create<T: Created>(
    file: ArcBorrow<'_, UlpFile>,
    user: User<T>,
    make: impl FnOnce(&UlpFile, &DeviceGuard<'_>, &mut T) -> Result<Object>,
) -> Result {
    create_of(
        file,
        user,
        |_, _| Ok(()),
        |file, device, value, ()| make(file, device, value),
    )
}

/// Makes an object of what `prepare` has outside the device's gate.
pub(super) fn create_of<T: Created, P>(
    file: ArcBorrow<'_, UlpFile>,
    user: User<T>,
    prepare: impl FnOnce(&UlpFile, &T) -> Result<P>,
    make: impl FnOnce(&UlpFile, &DeviceGuard<'_>, &mut T, P) -> Result<Object>,
) -> Result {
    let mut arg = user.read()?;
    let prepared = prepare(&file, &arg.value)?;
    let device = file.enter()?;
    let object = make(&file, &device, &mut arg.value, prepared)?;
    // Not ours to hold outside the gate: if the device goes meanwhile, the table gives it up.
    let handle = file.alloc_begin(object.clone())?;
    let started = object.start(handle);
    drop(object);
    if let Err(err) = started {
        file.alloc_abort(&device, handle)?;
        return Err(err);
    }
    arg.value.set_handle(handle);
    drop(device);
    finish(file, &arg, handle, &Undo::Destroy)
}

/// What becomes of an object whose handle cannot be written.
pub(super) enum Undo {
    /// It is destroyed.
    Destroy,
    /// It is destroyed, and the queue pair of that handle is taken back to RESET.
    Disconnect(u32),
    /// It goes back to the listener that it was taken from.
    PutBack(Arc<Backlog>),
}

/// An object in the table that cannot be found yet.
pub(super) struct Made {
    /// Its handle.
    pub(super) handle: u32,
    /// What becomes of it when that cannot be written.
    pub(super) undo: Undo,
}

/// Runs a command that makes an object and puts it into the table by itself. What it has noted in the
/// struct is written back also when it fails.
pub(super) fn produce<T: Plain>(
    file: ArcBorrow<'_, UlpFile>,
    user: User<T>,
    run: impl FnOnce(&UlpFile, &DeviceGuard<'_>, &mut T) -> Result<Made>,
) -> Result {
    let mut arg = user.read_writable()?;
    let device = file.enter()?;
    let result = run(&file, &device, &mut arg.value);
    drop(device);
    match result {
        Ok(made) => finish(file, &arg, made.handle, &made.undo),
        Err(err) => {
            // That it could be written was found out above.
            let _ = arg.write();
            Err(err)
        }
    }
}

/// Writes the struct back, and lets `handle`, which is in it, be found; if that fails, undoes what was
/// done. Not to be called inside the gate.
fn finish<T: Plain>(
    file: ArcBorrow<'_, UlpFile>,
    arg: &Arg<T>,
    handle: u32,
    undo: &Undo,
) -> Result {
    let written = arg.write();
    let device = file.enter()?;
    let result = written.and_then(|()| file.table().lock().alloc_commit(handle));
    if let (Err(err), Undo::PutBack(backlog)) = (written, undo) {
        if let Ok(Object::Connection(connection)) = file.withdraw(&device, handle) {
            connection.set_handle(0);
            backlog.put_back(connection);
            return Err(err);
        }
    } else if written.is_err() {
        // Nobody knows the handle, so nobody can need the object.
        file.alloc_abort(&device, handle)?;
    }
    match undo {
        Undo::Destroy => (),
        Undo::Disconnect(_) if result.is_ok() => (),
        // The connection is gone, which has left its queue pair in ERR. Another one may have that.
        Undo::Disconnect(qp) => {
            let qp = file.table().lock().use_qp(*qp);
            let _ = qp
                .and_then(Claim::new)
                .and_then(|claim| claim.move_to(State::Reset));
        }
        Undo::PutBack(backlog) => backlog.forget(),
    }
    result
}
