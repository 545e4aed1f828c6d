// SPDX-License-Identifier: GPL-2.0
//! A completion is looked at: it may be a failure.
//@ error unused_must_use: the request may have failed: call `ok()` or `check()`

#![deny(unused_must_use)]

pub fn promise(cq: &Cq) -> Result<()> {
    let done = cq.wait(std::time::Duration::from_secs(1))?.ok()?;
    cq.wait(std::time::Duration::from_secs(1))?; //~ BAD
    println!("{done}");
    Ok(())
}
