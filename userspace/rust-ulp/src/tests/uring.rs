// SPDX-License-Identifier: MIT OR Apache-2.0

//! What of a ring can be told without a kernel that has the commands: `ulp-test` and the example
//! see the rest.

use super::*;
use crate::sys::holds_in_child;
use crate::uring::Ring;

/// A ring, unless this machine has none: then the error says so.
pub(super) fn ring() -> Option<Ring> {
    match Ring::builder().entries(4).build() {
        Ok(ring) => Some(ring),
        Err(error) => {
            assert!(matches!(error, Error::NoUring { .. }), "{error}");
            assert!(error.to_string().contains("Qp::post()"), "{error}");
            None
        }
    }
}

#[test]
fn what_is_missing_is_named() {
    for (errno, words) in [
        (libc::EPERM, "kernel.io_uring_disabled"),
        (libc::ENOSYS, "seccomp"),
        (libc::ENOMEM, "ulimit -l"),
    ] {
        let cause = std::io::Error::from_raw_os_error(errno);
        let error = Error::NoUring { cause };
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(error.errno(), Some(errno));
    }
}

#[test]
fn a_forked_child_takes_no_completions() {
    let Some(mut ring) = ring() else { return };
    let p = pair();
    ring.push(&p.a, Send::inline_bytes(b"x").wr_id(7)).unwrap();
    assert_eq!(ring.submit().unwrap(), 1);
    let mut ring = Some(ring);
    // The ring's memory is not mapped there.
    assert!(holds_in_child(|| ring.take().is_some()));
    assert_eq!(ring.unwrap().wait(SOON).unwrap().wr_id, 7);
}
