// SPDX-License-Identifier: GPL-2.0

//! One RDMA Write of 8 bytes with its completion, between two marks of insns.c: scripts/coverage --tour records which
//! code of the module and of the crate runs for it.

use rust_ulp::{Access, Device, Rc, Write};
use std::process::Command;
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn mark() -> Result<()> {
    let status = Command::new("/share/mark").status()?;
    status.success().then_some(()).ok_or("no mark")?;
    Ok(())
}

fn main() -> Result<()> {
    let dev = Device::open_default()?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(16)?);
    let (from, to) = (pd.alloc_buffer(4096)?, pd.alloc_buffer(4096)?);
    let grant = to.grant(.., Access::REMOTE_WRITE)?;
    let (one, other) = (
        pd.qp_builder::<Rc>(&cq).build()?,
        pd.qp_builder::<Rc>(&cq).build()?,
    );
    let (here, there) = (one.endpoint(), other.endpoint());
    let (one, _other) = (one.connect(there)?, other.connect(here)?);
    from.write_at(0, b"one tour")?;
    let (src, dst) = (from.slice(..8)?, grant.remote().slice(..8)?);
    mark()?;
    one.post(Write::new(src, dst))?;
    cq.wait(Duration::from_secs(30))?.check()?;
    mark()?;
    (to.to_vec(..8)? == b"one tour")
        .then_some(())
        .ok_or("it did not arrive")?;
    Ok(())
}
