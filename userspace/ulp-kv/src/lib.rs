// SPDX-License-Identifier: MIT OR Apache-2.0
#![deny(missing_docs, unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

//! A key-value store over RDMA: clients read the memory of its servers, and send them what is to be
//! written.
//!
//! ```no_run
//! use ulp_kv::{Op, Options, Store};
//!
//! fn main() -> ulp_kv::Result<()> {
//!     let mut store = Store::connect(&["10.9.0.2:7170"], Options::default())?;
//!     store.put(b"name", b"value")?;
//!     assert_eq!(store.get(b"name")?.as_deref(), Some(&b"value"[..]));
//!     // Many operations under way at a time.
//!     let ops: Vec<Op> = (0..100).map(|_| Op::get(b"name")).collect();
//!     assert!(store.run(&ops).iter().all(Result::is_ok));
//!     Ok(())
//! }
//! ```
//!
//! Keys have 1 to 255 bytes, values at most 64 KiB. With several servers a key is at one of them,
//! which its rendezvous hash names. Each key is linearizable. `docs/kv.md` has the protocol and why
//! it is right.
//!
//! A [`Store`] is one client: a thread that wants to do things at the same time has another. With
//! the feature `tokio`, [`Store::run_async`] lets a task wait instead of a thread.

mod control;
mod dump;
mod engine;
mod error;
pub mod history;
mod layout;
mod link;
mod lookup;
mod memcached;
mod op;
mod replies;
mod server;
mod service;
mod space;
mod store;
mod table;
pub mod tcp;
mod wire;

pub use control::Members;
pub use error::{Error, Result};
pub use layout::{Geometry, MAX_KEY, MAX_MEMORY, MAX_VALUE};
pub use link::MAX_DEPTH;
pub use op::{Kv, Op, Outcome, Value};
pub use server::{Server, ServerOptions, ServerStats};
pub use store::{Options, Stats, Store};
pub use wire::Condition;
