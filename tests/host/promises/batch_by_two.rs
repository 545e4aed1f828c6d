// SPDX-License-Identifier: GPL-2.0
//! Two holders of a batch do not post it at once.
//@ error E0499: cannot borrow `batch` as mutable more than once at a time

pub fn promise(qp: &Qp<Rc>) -> Result<()> {
    let mut batch = qp.batch();
    let first = &mut batch;
    batch.submit()?; //~ BAD
    first.submit()?;
    Ok(())
}
