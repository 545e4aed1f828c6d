// SPDX-License-Identifier: GPL-2.0

//! Runs a command: copies its struct, enters the device, calls the handler, writes the struct back.
//!
//! A struct is never copied inside the device's gate: the copy may wait for user memory.
//!
//! The handle of a new object is written to user space before another command can find the object.
//! If the write fails, the object is destroyed.

use crate::{
    device::DeviceGuard,
    ext::{
        errno::eprotonosupport,
        user::{
            Arg,
            Plain, //
        }, //
    },
    file::UlpFile,
    object::Object,
    uapi::abi, //
};
use kernel::{
    prelude::*,
    sync::ArcBorrow, //
};

/// The struct of a command in user space.
pub(super) struct User<T> {
    ptr: usize,
    min: u32,
    check: fn(&T) -> Result,
}

impl<T: Plain> User<T> {
    /// Describes the struct at `ptr`: its first version has `min` bytes, and `check` checks it.
    #[inline(always)]
    pub(super) fn new(ptr: usize, min: u32, check: fn(&T) -> Result) -> Self {
        Self { ptr, min, check }
    }

    /// Copies the struct once, and checks the copy. Sleeps.
    #[inline(always)]
    fn read(self) -> Result<Arg<T>> {
        let arg = Arg::read(self.ptr, self.min)?;
        (self.check)(&arg.value)?;
        Ok(arg)
    }

    /// Reads the struct as [`Self::read`] does, and writes it back to find out whether that is
    /// possible. Sleeps.
    #[inline(always)]
    fn read_writable(self) -> Result<Arg<T>> {
        let arg = self.read()?;
        arg.write()?;
        Ok(arg)
    }
}

/// Checks the size that the caller knows of a struct that the kernel writes.
///
/// Returns [`eprotonosupport`] unless it is a multiple of 8 from `first`, the size of the first
/// version, to `known`.
pub(super) fn check_entry_size(size: u32, first: u32, known: u32) -> Result {
    if size < first || size > known || size & 7 != 0 {
        return Err(eprotonosupport());
    }
    Ok(())
}

/// An open file, and the guard that keeps its device from being removed.
pub(super) struct Ctx<'a> {
    /// The file.
    pub(super) file: &'a UlpFile,
    /// The guard.
    pub(super) device: DeviceGuard<'a>,
}

impl<'a> Ctx<'a> {
    /// Enters the device of `file`. Returns [`ENXIO`] if it has none, [`ENODEV`] if it was removed.
    fn enter(file: &'a UlpFile) -> Result<Self> {
        let device = file.enter()?;
        Ok(Self { file, device })
    }
}

/// Runs a command that does not use the device, or whose handler enters it.
pub(super) fn outside<T: Plain>(
    file: ArcBorrow<'_, UlpFile>,
    user: User<T>,
    run: impl FnOnce(&UlpFile, &mut T) -> Result,
) -> Result {
    let mut arg = user.read()?;
    run(&file, &mut arg.value)?;
    arg.write()
}

/// Runs a command that has an effect, and whose handler enters the device.
///
/// Writes the struct back even if the handler fails, for the members that are valid then.
#[inline(always)]
pub(super) fn modify_outside<T: Plain>(
    file: ArcBorrow<'_, UlpFile>,
    user: User<T>,
    run: impl FnOnce(ArcBorrow<'_, UlpFile>, &mut T) -> Result,
) -> Result {
    let mut arg = user.read_writable()?;
    let result = run(file, &mut arg.value);
    let written = arg.write();
    result.and(written)
}

/// Runs a command that returns nothing.
pub(super) fn input<T: Plain>(
    file: ArcBorrow<'_, UlpFile>,
    user: User<T>,
    run: impl FnOnce(&Ctx<'_>, &T) -> Result,
) -> Result {
    let arg = user.read()?;
    run(&Ctx::enter(&file)?, &arg.value)
}

/// Runs a command that has no effect but what it returns.
pub(super) fn query<T: Plain>(
    file: ArcBorrow<'_, UlpFile>,
    user: User<T>,
    run: impl FnOnce(&Ctx<'_>, &mut T) -> Result,
) -> Result {
    let mut arg = user.read()?;
    run(&Ctx::enter(&file)?, &mut arg.value)?;
    arg.write()
}

/// Runs a command that changes an object and returns something.
///
/// Writes the struct back even if the handler fails, for the members that are valid then.
pub(super) fn modify<T: Plain>(
    file: ArcBorrow<'_, UlpFile>,
    user: User<T>,
    run: impl FnOnce(&Ctx<'_>, &mut T) -> Result,
) -> Result {
    modify_outside(file, user, |file, value| run(&Ctx::enter(&file)?, value))
}

/// The struct of a command that creates an object.
pub(super) trait Created: Plain {
    /// Sets the handle of the new object.
    fn set_handle(&mut self, handle: u32);
}

macro_rules! created {
    ($($name:ident;)*) => { $(
        impl Created for abi::$name {
            fn set_handle(&mut self, handle: u32) {
                self.handle = handle;
            }
        }
    )* };
}

created! {
    PdCreate;
    CqCreate;
    QpCreate;
    SrqCreate;
    AhCreate;
    BufferCreate;
    BufferRegister;
    BufferImport;
    GrantCreate;
    Listen;
    Connect;
}

/// Runs a command that creates an object.
pub(super) fn create<T: Created>(
    file: ArcBorrow<'_, UlpFile>,
    user: User<T>,
    make: impl FnOnce(&Ctx<'_>, &mut T) -> Result<Object>,
) -> Result {
    create_prepared(file, user, |_, _| Ok(()), |ctx, value, ()| make(ctx, value))
}

/// Runs a command that creates an object from the result of `prepare`, which runs outside the gate.
pub(super) fn create_prepared<T: Created, P>(
    file: ArcBorrow<'_, UlpFile>,
    user: User<T>,
    prepare: impl FnOnce(&UlpFile, &T) -> Result<P>,
    make: impl FnOnce(&Ctx<'_>, &mut T, P) -> Result<Object>,
) -> Result {
    let mut arg = user.read()?;
    let prepared = prepare(&file, &arg.value)?;
    let ctx = Ctx::enter(&file)?;
    let object = make(&ctx, &mut arg.value, prepared)?;
    // Device removal takes the object out of the table. This reference must not outlive the guard.
    let handle = file
        .alloc_begin(object.clone())
        .inspect_err(|&err| object.end(err))?;
    let started = object.start(handle);
    drop(object);
    if let Err(err) = started {
        file.alloc_abort(&ctx.device, handle)?;
        return Err(err);
    }
    arg.value.set_handle(handle);
    drop(ctx);
    finish(&file, &arg, handle)
}

/// Runs a command whose handler puts a new object into the table, and returns its handle.
///
/// Writes the struct back even if the handler fails, for the members that are valid then.
pub(super) fn produce<T: Plain>(
    file: ArcBorrow<'_, UlpFile>,
    user: User<T>,
    run: impl FnOnce(&Ctx<'_>, &mut T) -> Result<u32>,
) -> Result {
    let mut arg = user.read_writable()?;
    let result = run(&Ctx::enter(&file)?, &mut arg.value);
    match result {
        Ok(handle) => finish(&file, &arg, handle),
        Err(err) => {
            // The caller gets the error of the handler in any case.
            let _ = arg.write();
            Err(err)
        }
    }
}

/// Writes the struct back, then lets commands find the object `handle`. If that fails, destroys the
/// object. Must not be called inside the gate.
fn finish<T: Plain>(file: &UlpFile, arg: &Arg<T>, handle: u32) -> Result {
    let written = arg.write();
    let device = file.enter()?;
    if written.is_err() {
        // The caller does not know the handle, so it cannot destroy the object.
        file.alloc_abort(&device, handle)?;
        return written;
    }
    file.table().write().alloc_commit(handle)
}
