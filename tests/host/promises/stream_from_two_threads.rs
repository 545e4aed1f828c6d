// SPDX-License-Identifier: GPL-2.0
//! A stream has one writer at a time.
//@ error E0596: cannot borrow `*shared` as mutable

pub fn promise(sender: &mut stream::Sender) -> Result<()> {
    sender.send(b"mine", Duration::ZERO)?;
    let shared = &*sender;
    let _ = shared.in_flight();
    shared.send(b"ours", Duration::ZERO)?; //~ BAD
    Ok(())
}
