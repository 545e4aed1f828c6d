// SPDX-License-Identifier: GPL-2.0
//! Inline bytes are read when the batch is posted: they live until then.
//@ error E0597: `bytes` does not live long enough

pub fn promise(qp: &Qp<Rc>, dst: RemoteSlice) -> Result<usize> {
    let kept = vec![1, 2, 3];
    let mut batch = qp.batch();
    batch.push(Write::inline_bytes(&kept, dst))?;
    {
        let bytes = vec![4, 5, 6];
        let _ = &bytes;
        batch.push(Write::inline_bytes(&bytes, dst))?; //~ BAD
    }
    batch.submit()
}
