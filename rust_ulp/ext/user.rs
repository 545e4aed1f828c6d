// SPDX-License-Identifier: GPL-2.0

//! Structs that are copied from and to user space.
//!
//! Each begins with its size, so that either side may know a longer version than the other: the
//! semantics of `copy_struct_from_user()`.
//!
//! C header: [`include/linux/uaccess.h`](srctree/include/linux/uaccess.h)

use core::mem::MaybeUninit;
use kernel::{
    prelude::*,
    transmute::{
        AsBytes,
        FromBytes, //
    },
    uaccess::{
        UserPtr,
        UserSlice,
        UserSliceReader, //
    }, //
};

/// A struct of the ABI.
///
/// `abi_check!` implements it, for types without padding that accept every bit pattern.
///
/// ```
/// fn from_user<T: Plain>(addr: usize) -> Result<T> {
///     Ok(Arg::<T>::read(addr, 4)?.value)
/// }
/// ```
pub(crate) trait Plain: FromBytes + AsBytes + Copy + Default {}

/// Checks a struct of the ABI; `uapi/define.rs` calls this for each of them.
///
/// Compares its size and offsets with those that bindgen found in the C header, and implements
/// [`Plain`].
macro_rules! abi_check {
    ($name:ident, $c:ident, $($field:ident)*) => {
        const _: () = {
            assert!(
                ::core::mem::size_of::<$name>()
                    == ::core::mem::size_of::<$crate::bindings::$c>(),
                "a struct of the ABI has another size in C"
            );
            $(assert!(
                ::core::mem::offset_of!($name, $field)
                    == ::core::mem::offset_of!($crate::bindings::$c, $field),
                "a field of the ABI has another offset in C"
            );)*
        };
        // SAFETY: The fields are integers, arrays of them, and structs of this kind, since `Zero`
        // is implemented for nothing else. So every bit pattern is a value.
        unsafe impl ::kernel::transmute::FromBytes for $name {}
        // SAFETY: `abi!` asserts that there is no padding. For the rest see above.
        unsafe impl ::kernel::transmute::AsBytes for $name {}
        impl $crate::ext::user::Plain for $name {}
    };
}
/// The largest size of a struct or of an array's entry in bytes: one page, as for
/// `copy_struct_from_user()`.
const MAX_SIZE: usize = 4096;

/// A struct that was read from user space and may be written back.
///
/// ```
/// fn ioctl<T: Plain>(arg: usize, handle: impl FnOnce(&mut T) -> Result) -> Result {
///     let mut arg = Arg::<T>::read(arg, 16)?;
///     handle(&mut arg.value)?;
///     arg.write()
/// }
/// ```
pub(crate) struct Arg<T> {
    ptr: UserPtr,
    /// The number of bytes that both sides know.
    known: usize,
    /// The struct.
    pub(crate) value: T,
}

impl<T: Plain> Arg<T> {
    /// Reads the struct at `ptr` once. Sleeps. `min` is the size of its first version. Fails with
    ///
    /// - [`EINVAL`] when the struct is shorter than `min`,
    /// - [`E2BIG`] when it is longer than `T` and not zero there, or longer than a page,
    /// - [`EFAULT`] when it cannot be read.
    pub(crate) fn read(ptr: usize, min: u32) -> Result<Self> {
        let ptr = UserPtr::from_addr(ptr);
        let mut value = T::default();
        let bytes = value.as_bytes_mut();
        // One copy of what every version has. Where it fails, the size may still be there, and wrong.
        let (first, more) = bytes.split_at_mut_checked(min as usize).ok_or(EINVAL)?;
        let head = UserSlice::new(ptr, first.len()).reader().read_slice(first);
        let mut word = [0u8; 4];
        match head {
            Ok(()) => word.copy_from_slice(first.get(..4).ok_or(EINVAL)?),
            Err(_) => UserSlice::new(ptr, 4).reader().read_slice(&mut word)?,
        }
        let size = u32::from_ne_bytes(word);
        if size < min {
            return Err(EINVAL);
        }
        let size = size as usize;
        if size > MAX_SIZE {
            return Err(E2BIG);
        }
        head?;
        let known = size.min(core::mem::size_of::<T>());
        let mut reader = UserSlice::new(ptr, size).reader();
        reader.skip(first.len())?;
        let len = more.len().min(reader.len());
        if len > 0 {
            reader.read_slice(more.get_mut(..len).ok_or(EINVAL)?)?;
        }

        let mut rest = [0u8; 64];
        while !reader.is_empty() {
            let len = reader.len().min(rest.len());
            let part = rest.get_mut(..len).ok_or(EINVAL)?;
            reader.read_slice(part)?;
            if part.iter().any(|&byte| byte != 0) {
                return Err(E2BIG);
            }
        }
        Ok(Self { ptr, known, value })
    }

    /// Writes the struct back, as far as the caller knows it. Sleeps.
    pub(crate) fn write(&self) -> Result {
        let bytes = self.value.as_bytes();
        UserSlice::new(self.ptr, self.known)
            .writer()
            .write_slice(bytes.get(..self.known).ok_or(EINVAL)?)
    }
}

/// Reads `room.len()` entries of `stride` bytes each into `room`, up to the first one that cannot be
/// read. Sleeps. What an entry lacks becomes zero.
///
/// `min` is the size of an entry's first version. Returns the entries, and the error of the one after
/// them. That is [`EINVAL`] when `stride` is less than `min`, and [`E2BIG`] when it is more than a
/// page, or when the entry is longer than `T` and not zero there.
pub(crate) fn read_array<T: Plain>(
    ptr: u64,
    stride: u32,
    min: u32,
    room: &mut [MaybeUninit<T>],
) -> (&[T], Result) {
    let (count, result) = match read_entries(ptr, stride, min, room) {
        Ok(()) => (room.len(), Ok(())),
        Err((count, error)) => (count, Err(error)),
    };
    let read: *const [MaybeUninit<T>] = room.get(..count).unwrap_or_default();
    // SAFETY: `read_entries` has initialized that many.
    (unsafe { &*(read as *const [T]) }, result)
}

/// Appends `count` entries of the size of `T` to `values`. Sleeps. Fails with [`ENOMEM`] and
/// [`EFAULT`]; then `values` is as before.
pub(crate) fn append_array<T: Plain>(ptr: u64, count: u32, values: &mut KVVec<T>) -> Result {
    let count = count as usize;
    values.reserve(count, GFP_KERNEL_ACCOUNT)?;
    let room = values.spare_capacity_mut().get_mut(..count).ok_or(ENOMEM)?;
    let size = core::mem::size_of::<T>() as u32;
    read_entries(ptr, size, size, room).map_err(|(_, error)| error)?;
    // SAFETY: `read_entries` has initialized that many after the last one.
    unsafe { values.inc_len(count) };
    Ok(())
}

/// Reads entries as [`read_array`] does. An error comes with the number of its entry; those before
/// it are initialized.
fn read_entries<T: Plain>(
    ptr: u64,
    stride: u32,
    min: u32,
    room: &mut [MaybeUninit<T>],
) -> Result<(), (usize, Error)> {
    let ptr = usize::try_from(ptr).map_err(|_| (0, EFAULT))?;
    if stride < min {
        return Err((0, EINVAL));
    }
    let stride = stride as usize;
    if stride > MAX_SIZE {
        return Err((0, E2BIG));
    }
    let len = stride.checked_mul(room.len()).ok_or((0, EINVAL))?;
    let slice = || UserSlice::new(UserPtr::from_addr(ptr), len);
    // Entries of our length are read by one call. If that fails, the loop below finds the entry.
    if stride == core::mem::size_of::<T>() && slice().reader().read_raw(all_bytes(room)).is_ok() {
        return Ok(());
    }
    let mut reader = slice().reader();
    for (index, place) in room.iter_mut().enumerate() {
        read_entry(&mut reader, stride, place.write(T::default())).map_err(|err| (index, err))?;
    }
    Ok(())
}

/// Returns the bytes of `room`.
fn all_bytes<T: Plain>(room: &mut [MaybeUninit<T>]) -> &mut [MaybeUninit<u8>] {
    let len = core::mem::size_of_val(room);
    // SAFETY: The bytes are those of `room`, which is borrowed for as long. They need not be
    // initialized, and any bytes are a value of `T` (`FromBytes`).
    unsafe { core::slice::from_raw_parts_mut(room.as_mut_ptr().cast(), len) }
}

fn read_entry<T: Plain>(reader: &mut UserSliceReader, stride: usize, value: &mut T) -> Result {
    let known = stride.min(core::mem::size_of::<T>());
    reader.read_slice(value.as_bytes_mut().get_mut(..known).ok_or(EINVAL)?)?;
    let mut left = stride.saturating_sub(known);
    while left > 0 {
        let mut rest = [0u8; 64];
        let now = left.min(rest.len());
        let part = rest.get_mut(..now).ok_or(EINVAL)?;
        reader.read_slice(part)?;
        if part.iter().any(|&byte| byte != 0) {
            return Err(E2BIG);
        }
        left = left.saturating_sub(now);
    }
    Ok(())
}

/// Writes `entries` to an array in user space, as many as it has room for. Sleeps.
///
/// The array is at `ptr` and has `capacity` entries of `stride` bytes. Writes zero to what the caller's
/// entries have beyond `T`. Where there is room, fails with [`EINVAL`] when they have less, and with
/// [`E2BIG`] when they have more than a page.
pub(crate) fn write_entries<T: Plain>(
    ptr: u64,
    stride: u32,
    capacity: u32,
    entries: &[T],
) -> Result {
    let (stride, size) = (stride as usize, core::mem::size_of::<T>());
    if capacity == 0 {
        return Ok(());
    }
    let beyond = stride.checked_sub(size).ok_or(EINVAL)?;
    if stride > MAX_SIZE {
        return Err(E2BIG);
    }
    let count = entries.len().min(capacity as usize);
    let length = stride.checked_mul(count).ok_or(EFAULT)?;
    let ptr = usize::try_from(ptr).map_err(|_| EFAULT)?;
    let mut writer = UserSlice::new(UserPtr::from_addr(ptr), length).writer();
    let zeros = [0u8; 64];
    for entry in entries.iter().take(count) {
        writer.write_slice(entry.as_bytes())?;
        let mut left = beyond;
        while left > 0 {
            let now = left.min(zeros.len());
            writer.write_slice(zeros.get(..now).ok_or(EINVAL)?)?;
            left = left.saturating_sub(now);
        }
    }
    Ok(())
}

/// Reads `buf.len()` bytes at `ptr`. Sleeps.
pub(crate) fn read_bytes(ptr: u64, buf: &mut [u8]) -> Result {
    let ptr = usize::try_from(ptr).map_err(|_| EFAULT)?;
    UserSlice::new(UserPtr::from_addr(ptr), buf.len())
        .reader()
        .read_slice(buf)
}
