// SPDX-License-Identifier: GPL-2.0

//! The bugs of faulty.c that Rust can commit, with `unsafe` or without:
//! `insmod ulp_faulty_rust.ko bug=N`.

use core::ptr;
use kernel::{new_mutex, new_spinlock, prelude::*};

module! {
    type: Faulty,
    name: "ulp_faulty_rust",
    authors: ["The rust_ulp authors"],
    description: "Bugs in Rust for the debug kernel to find",
    license: "GPL",
    params: {
        bug: i32 {
            default: 0,
            description: "Which bug to commit",
        },
    },
}

struct Faulty;

type Block = [u8; 64];

/// A block that is leaked into a raw pointer, so that the compiler lets go of it.
fn block() -> Result<*mut Block> {
    Ok(KBox::into_raw(KBox::new([0; 64], GFP_KERNEL)?))
}

#[inline(never)]
fn use_after_free() -> Result {
    let p = block()?;
    // SAFETY: From `into_raw`.
    drop(unsafe { KBox::from_raw(p) });
    // SAFETY: There is none, that is the bug.
    unsafe { ptr::read_volatile(p.cast::<u8>()) }; // bug: use_after_free
    Ok(())
}

#[inline(never)]
fn out_of_bounds() -> Result {
    let p = block()?;
    // SAFETY: There is none, that is the bug.
    unsafe { ptr::write_volatile(p.cast::<u8>().wrapping_add(64), 1) }; // bug: out_of_bounds

    // SAFETY: From `into_raw`.
    drop(unsafe { KBox::from_raw(p) });
    Ok(())
}

#[inline(never)]
fn sleep_in_atomic() -> Result {
    let spin = KBox::pin_init(new_spinlock!(0u32, "faulty spin"), GFP_KERNEL)?;
    let mutex = KBox::pin_init(new_mutex!(0u32, "faulty mutex"), GFP_KERNEL)?;
    let held = spin.lock();
    drop(mutex.lock()); // bug: sleep_in_atomic
    drop(held);
    Ok(())
}

#[inline(never)]
fn leak() -> Result {
    for _ in 0..8 {
        let _ = KBox::into_raw(KBox::new([0u8; 517], GFP_KERNEL)?); // bug: leak
    }
    Ok(())
}

impl kernel::Module for Faulty {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        match *module_parameters::bug.value() {
            0 => Ok(()),
            1 => use_after_free(),
            2 => out_of_bounds(),
            3 => sleep_in_atomic(),
            4 => leak(),
            _ => Err(EINVAL),
        }?;
        Ok(Faulty)
    }
}
