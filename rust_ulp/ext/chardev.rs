// SPDX-License-Identifier: GPL-2.0

//! The character device.
//!
//! In 7.2 the kernel crate's `MiscDevice` sets no owner, so a module could be unloaded under an
//! open file, and it has no `poll`. This module has `file_operations` of its own in `entry.c`,
//! where the function tracers see them. They call the functions that [`chardev!`] defines for the
//! one type that implements [`FileOperations`].
//!
//! C header: [`include/linux/miscdevice.h`](srctree/include/linux/miscdevice.h)

use super::{
    area::Area,
    uring::{
        Canceling,
        IssueResult,
        UringCmd, //
    }, //
};
use crate::bindings;
use core::cell::UnsafeCell;
use kernel::{
    error::to_result,
    fs::File,
    prelude::*,
    seq_file::SeqFile,
    sync::{
        poll::PollTable,
        Arc,
        ArcBorrow, //
    },
    uaccess::UserSliceWriter, //
};

/// The events that `poll` returns, as in `include/uapi/linux/eventpoll.h`.
pub(crate) mod events {
    /// There is data to read.
    pub(crate) const IN: u32 = kernel::bindings::POLLIN | kernel::bindings::POLLRDNORM;
    /// An error.
    pub(crate) const ERR: u32 = kernel::bindings::POLLERR;
    /// The device was removed.
    pub(crate) const HUP: u32 = kernel::bindings::POLLHUP;
}

/// An open file of the device.
///
/// ```
/// use ::kernel::{fs::File, seq_file::SeqFile, uaccess::UserSliceWriter};
/// use ::kernel::sync::{poll::PollTable, ArcBorrow};
/// use {area::Area, uring::{Canceling, IssueResult, UringCmd}};
///
/// /// A file that is always at its end.
/// pub(crate) struct Null;
///
/// impl FileOperations for Null {
///     type Shared = ();
///
///     fn open(_shared: &Arc<()>) -> Result<Arc<Self>> {
///         Ok(Arc::new(Null, GFP_KERNEL)?)
///     }
///
///     fn release(_: Arc<Self>) {}
///
///     fn ioctl(_: ArcBorrow<'_, Self>, _cmd: u32, _arg: usize) -> Result<isize> {
///         Err(ENOTTY)
///     }
///
///     fn read(_: ArcBorrow<'_, Self>, _block: bool, _to: UserSliceWriter) -> Result<usize> {
///         Ok(0)
///     }
///
///     fn uring_issue(_: ArcBorrow<'_, Self>, cmd: UringCmd<'_>) -> IssueResult {
///         cmd.refuse(EINVAL)
///     }
///
///     fn uring_cancel(_: ArcBorrow<'_, Self>, _command: Canceling<'_>) {}
///
///     fn mmap(_: ArcBorrow<'_, Self>, _area: &Area<'_>, _offset: u64) -> Result {
///         Err(ENODEV)
///     }
///
///     fn poll(_: ArcBorrow<'_, Self>, _file: &File, _: PollTable<'_>) -> u32 {
///         events::IN
///     }
///
///     fn show_fdinfo(_: ArcBorrow<'_, Self>, _m: &SeqFile) {}
/// }
///
/// chardev!(Null, c"pinger", 0o600);
///
/// fn init() -> Result<Registration<()>> {
///     register(Arc::new((), GFP_KERNEL)?)
/// }
/// ```
pub(crate) trait FileOperations: Send + Sync + Sized + 'static {
    /// The data that all open files share.
    type Shared: Send + Sync + 'static;

    /// Opens the device. Process context, may sleep.
    fn open(shared: &Arc<Self::Shared>) -> Result<Arc<Self>>;

    /// The last reference to the file was dropped: no other method runs on it now or later. Process
    /// context, may sleep; the current task may have given up its own files.
    fn release(this: Arc<Self>);

    /// Handles `ioctl(fd, cmd, arg)`. Process context, may sleep.
    fn ioctl(this: ArcBorrow<'_, Self>, cmd: u32, arg: usize) -> Result<isize>;

    /// Handles `read(fd, ..)`, and returns the number of bytes that it put into `to`. `block` says
    /// whether `O_NONBLOCK` is clear. Process context, may sleep.
    fn read(this: ArcBorrow<'_, Self>, block: bool, to: UserSliceWriter) -> Result<usize>;

    /// Issues a command of io_uring. Process context, may sleep; the lock of its ring may be held.
    fn uring_issue(this: ArcBorrow<'_, Self>, cmd: UringCmd<'_>) -> IssueResult;

    /// Ends a started command soon, because its ring or its task ends. Called repeatedly until the
    /// command has completed. Process context, may sleep; the lock of its ring is held.
    fn uring_cancel(this: ArcBorrow<'_, Self>, command: Canceling<'_>);

    /// Handles `mmap(.., fd, offset)`; `offset` is in bytes. Called with the `mmap_lock` of the
    /// process held for writing.
    fn mmap(this: ArcBorrow<'_, Self>, area: &Area<'_>, offset: u64) -> Result;

    /// Registers with `table`, then returns those [`events`] that there are. Process context.
    fn poll(this: ArcBorrow<'_, Self>, file: &File, table: PollTable<'_>) -> u32;

    /// Prints `/proc/PID/fdinfo/FD`. Process context, may sleep.
    fn show_fdinfo(this: ArcBorrow<'_, Self>, m: &SeqFile);
}

/// Holds the data that all files share, for the function that opens a file.
///
/// ```
/// static SHARED: SharedSlot<u32> = SharedSlot::new();
/// ```
///
/// # Invariants
///
/// Only a [`Registration`] writes it, while the device does not exist.
pub(crate) struct SharedSlot<T>(UnsafeCell<Option<Arc<T>>>);

// SAFETY: By the type invariant. It is read while the device exists.
unsafe impl<T: Send + Sync> Sync for SharedSlot<T> {}

impl<T: Send + Sync> SharedSlot<T> {
    /// Creates an empty slot.
    pub(crate) const fn new() -> Self {
        Self(UnsafeCell::new(None))
    }

    /// Returns the shared data.
    ///
    /// # Safety
    ///
    /// Only `open` of the device calls this, and does not use the result after it returns.
    pub(crate) unsafe fn get(&self) -> Option<&Arc<T>> {
        // SAFETY: `misc_open`, `misc_register` and `misc_deregister` run under `misc_mtx`: the
        // device exists while `open` runs, and nobody writes the slot.
        unsafe { (*self.0.get()).as_ref() }
    }
}

/// The registered device. Dropping it removes the device.
///
/// ```
/// fn unload(device: Registration<u32>) {
///     drop(device); // Nobody can open the device any more.
/// }
/// ```
pub(crate) struct Registration<T: Send + Sync + 'static> {
    slot: &'static SharedSlot<T>,
}

impl<T: Send + Sync + 'static> Registration<T> {
    /// Registers the device as `/dev/NAME` with these permissions. Sleeps.
    ///
    /// # Safety
    ///
    /// At most one registration exists, and `open` reads `slot`.
    pub(crate) unsafe fn new(
        slot: &'static SharedSlot<T>,
        shared: Arc<T>,
        name: &'static CStr,
        mode: u16,
    ) -> Result<Self> {
        // SAFETY: The device does not exist yet, so nobody reads the slot.
        unsafe { *slot.0.get() = Some(shared) };
        let registered = super::fault::point().and_then(|()| {
            // SAFETY: No registration exists, so the `miscdevice` of `entry.c` is not registered.
            to_result(unsafe { bindings::rust_ulp_chardev_register(name.as_char_ptr(), mode) })
        });
        if let Err(err) = registered {
            // SAFETY: The device still does not exist.
            unsafe { *slot.0.get() = None };
            return Err(err);
        }
        Ok(Self { slot })
    }
}

impl<T: Send + Sync + 'static> Drop for Registration<T> {
    fn drop(&mut self) {
        // SAFETY: `new` has registered it. Afterwards nobody opens the device. Open files keep the
        // module loaded, since the operations have an owner.
        unsafe { bindings::rust_ulp_chardev_unregister() };
        // SAFETY: The device no longer exists, so nobody reads the slot.
        unsafe { *self.slot.0.get() = None };
    }
}

/// Defines the functions that `entry.c` calls, for a type that implements [`FileOperations`], and a
/// function `register(shared) -> Result<Registration>` for the device `/dev/$name` with the
/// permissions `$mode`.
macro_rules! chardev {
    ($file:ty, $name:literal, $mode:literal) => {
        mod chardev_glue {
            use super::*;
            use ::kernel::{
                bindings,
                ffi::{c_char, c_int, c_long, c_uint, c_ulong},
                fs::{file::flags, File},
                mm::virt::VmaNew,
                seq_file::SeqFile,
                sync::{
                    atomic::{AtomicFlag, Full},
                    poll::PollTable,
                    Arc, ArcBorrow,
                },
                types::ForeignOwnable,
                uaccess::{UserPtr, UserSlice},
            };
            use $crate::ext::{
                area::Area,
                chardev::{FileOperations, Registration, SharedSlot},
                uring::Call,
            };

            static SHARED: SharedSlot<<$file as FileOperations>::Shared> = SharedSlot::new();

            /// Registers the device; dropping the result removes it. Fails with [`EBUSY`] the
            /// second time that a loaded module calls it.
            pub(crate) fn register(
                shared: Arc<<$file as FileOperations>::Shared>,
            ) -> Result<Registration<<$file as FileOperations>::Shared>> {
                static DONE: AtomicFlag = AtomicFlag::new(false);
                if DONE.xchg(true, Full) {
                    return Err(EBUSY);
                }
                // SAFETY: This is the only registration, and the functions below read this slot.
                unsafe { Registration::new(&SHARED, shared, $name, $mode) }
            }

            /// # Safety
            ///
            /// `rust_ulp_rs_open` has set the `private_data` of `file`, which is not released
            /// before `'a` ends.
            unsafe fn this<'a>(file: *mut bindings::file) -> ArcBorrow<'a, $file> {
                // SAFETY: By the requirement.
                unsafe { Arc::<$file>::borrow((*file).private_data) }
            }

            /// # Safety
            ///
            /// Called by `entry.c`, for a file of this device.
            #[no_mangle]
            unsafe extern "C" fn rust_ulp_rs_open(file: *mut bindings::file) -> c_int {
                // SAFETY: This is `open`, and does not use the reference afterwards.
                let Some(shared) = (unsafe { SHARED.get() }) else {
                    return ENODEV.to_errno();
                };
                match <$file as FileOperations>::open(shared) {
                    Ok(this) => {
                        // SAFETY: `file` is being opened, and nobody else accesses its private
                        // data.
                        unsafe { (*file).private_data = this.into_foreign() };
                        0
                    }
                    Err(err) => err.to_errno(),
                }
            }

            /// # Safety
            ///
            /// Called by `entry.c`, for a file of this device.
            #[no_mangle]
            unsafe extern "C" fn rust_ulp_rs_release(file: *mut bindings::file) {
                // SAFETY: `rust_ulp_rs_open` has set it. A file is released once, when nothing else
                // uses it.
                let this = unsafe { Arc::<$file>::from_foreign((*file).private_data) };
                <$file as FileOperations>::release(this);
            }

            /// # Safety
            ///
            /// Called by `entry.c`, for a file of this device.
            #[no_mangle]
            unsafe extern "C" fn rust_ulp_rs_ioctl(
                file: *mut bindings::file,
                cmd: c_uint,
                arg: c_ulong,
            ) -> c_long {
                // SAFETY: The file is open, and stays so during the call.
                let this = unsafe { this(file) };
                match <$file as FileOperations>::ioctl(this, cmd, arg) {
                    Ok(value) => value as c_long,
                    Err(err) => err.to_errno() as c_long,
                }
            }

            /// # Safety
            ///
            /// Called by `entry.c`, for a file of this device.
            #[no_mangle]
            unsafe extern "C" fn rust_ulp_rs_read(
                file: *mut bindings::file,
                buf: *mut c_char,
                count: usize,
            ) -> isize {
                // SAFETY: The file is open, and stays so during the call.
                let this = unsafe { this(file) };
                // SAFETY: As above. The file is a stream, which has no position to lock.
                let block = unsafe { File::from_raw_file(file) }.flags() & flags::O_NONBLOCK == 0;
                let to = UserSlice::new(UserPtr::from_ptr(buf.cast()), count).writer();
                match <$file as FileOperations>::read(this, block, to) {
                    Ok(done) => isize::try_from(done).unwrap_or(isize::MAX),
                    Err(err) => err.to_errno() as isize,
                }
            }

            /// # Safety
            ///
            /// Called by `entry.c`, for a file of this device, with the arguments of `uring_cmd`.
            #[no_mangle]
            unsafe extern "C" fn rust_ulp_rs_uring_cmd(
                file: *mut bindings::file,
                cmd: *mut bindings::io_uring_cmd,
                flags: c_uint,
            ) -> c_int {
                // SAFETY: The command holds the file, which stays open during the call.
                let this = unsafe { this(file) };
                // SAFETY: By the requirement. The result is used during the call only.
                match unsafe { Call::new(cmd, flags) } {
                    Some(Call::Issue(cmd)) => {
                        <$file as FileOperations>::uring_issue(this, cmd).raw()
                    }
                    Some(Call::Cancel(command)) => {
                        <$file as FileOperations>::uring_cancel(this, command);
                        0
                    }
                    None => EINVAL.to_errno(),
                }
            }

            /// # Safety
            ///
            /// Called by `entry.c`, for a file of this device.
            #[no_mangle]
            unsafe extern "C" fn rust_ulp_rs_mmap(
                file: *mut bindings::file,
                vma: *mut bindings::vm_area_struct,
            ) -> c_int {
                // SAFETY: The file is open, and stays so during the call.
                let this = unsafe { this(file) };
                // SAFETY: `mmap` is called for an area that is being set up.
                let (area, pgoff) = unsafe { (VmaNew::from_raw(vma), (*vma).vm_pgoff) };
                let result = (pgoff as u64)
                    .checked_mul($crate::ext::pages::PAGE_SIZE as u64)
                    .ok_or(EOVERFLOW)
                    .and_then(|offset| {
                        <$file as FileOperations>::mmap(this, &Area::new(area), offset)
                    });
                match result {
                    Ok(()) => 0,
                    Err(err) => err.to_errno(),
                }
            }

            /// # Safety
            ///
            /// Called by `entry.c`, for a file of this device.
            #[no_mangle]
            unsafe extern "C" fn rust_ulp_rs_poll(
                file: *mut bindings::file,
                table: *mut bindings::poll_table,
            ) -> u32 {
                // SAFETY: The file is open, and stays so during the call.
                let this = unsafe { this(file) };
                // SAFETY: As above. Nothing here reads or moves the position of the file.
                let file = unsafe { File::from_raw_file(file) };
                // SAFETY: `poll` gets a table that is null or valid during the call.
                let table = unsafe { PollTable::from_raw(table) };
                <$file as FileOperations>::poll(this, file, table)
            }

            /// # Safety
            ///
            /// Called by `entry.c`, for a file of this device.
            #[no_mangle]
            unsafe extern "C" fn rust_ulp_rs_show_fdinfo(
                m: *mut bindings::seq_file,
                file: *mut bindings::file,
            ) {
                // SAFETY: The file is open, and stays so during the call.
                let this = unsafe { this(file) };
                // SAFETY: `show_fdinfo` gets a file that is valid during the call.
                let m = unsafe { SeqFile::from_raw(m) };
                <$file as FileOperations>::show_fdinfo(this, m);
            }

            // Checks that the functions have the types that `entry.h` declares.
            const _: unsafe extern "C" fn(*mut bindings::file, c_uint, c_ulong) -> c_long =
                rust_ulp_rs_ioctl;
        }
        pub(crate) use chardev_glue::register;
    };
}
pub(crate) use chardev;
