// SPDX-License-Identifier: GPL-2.0
//! A stream is written over a reliable connection.
//@ error E0308: mismatched types

pub fn promise(reliable: PreparedQp<Rc>, other: PreparedQp<Uc>) -> Result<()> {
    let _ = stream::PreparedSender::new(&reliable, 4096)?;
    let _ = stream::PreparedSender::new(&other, 4096)?; //~ BAD
    Ok(())
}
