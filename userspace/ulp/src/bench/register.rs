// SPDX-License-Identifier: MIT OR Apache-2.0

//! Measures granting peers access to memory, and revoking it. Needs no server.
//!
//! With /dev/rust_ulp, it allocates and maps the memory, grants it, revokes the grant, and frees
//! it. With libibverbs, it maps and populates anonymous pages, registers, deregisters and unmaps
//! them.

use super::call;
use super::client::{repeat, Times};
use super::config::Backend;
use super::end::Run;
use super::stats::Row;
use anyhow::Result;
use rust_ulp::Access;
use std::time::Duration;

const STEPS: &[&str] = &["allocate", "register", "deregister", "free", "total"];

pub fn run(run: Run<'_>, rows: &mut Vec<Row>) -> Result<()> {
    match run.config.backend {
        // Config::check() leaves io_uring out.
        Backend::Call | Backend::Uring => {
            let (device, _) = call::open(run.device)?;
            let pd = device.alloc_pd()?;
            let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
            sizes(run, rows, |size| {
                let mut times = Times::begin();
                let buffer = pd.alloc_buffer(size)?;
                times.step();
                let grant = buffer.grant(.., access)?;
                times.step();
                grant.revoke()?;
                drop(grant);
                times.step();
                drop(buffer);
                Ok(times.end())
            })
        }
        #[cfg(not(feature = "verbs"))]
        Backend::Verbs => super::without_verbs(),
        #[cfg(feature = "verbs")]
        Backend::Verbs => {
            let context = super::verbs::open(run.device)?.context;
            sizes(run, rows, |size| {
                let mut times = Times::begin();
                let mut memory = ulp_verbs::RegisteredOnce::new(&context, size)?;
                times.step();
                memory.register()?;
                times.step();
                memory.deregister()?;
                times.step();
                drop(memory);
                Ok(times.end())
            })
        }
    }
}

fn sizes(
    run: Run<'_>,
    rows: &mut Vec<Row>,
    mut one: impl FnMut(usize) -> Result<Vec<Duration>>,
) -> Result<()> {
    for size in &run.config.sizes {
        repeat(STEPS, run, *size, rows, || one(*size as usize))?;
    }
    Ok(())
}
