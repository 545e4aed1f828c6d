// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which errors the header allows of each command: any other is a finding.

use crate::annotations::ERRNOS;
use nix::errno::Errno::{self, *};

/// What any call may say.
const ANY: &[Errno] = &[E2BIG, EFAULT, EINVAL, ENODEV, ENXIO];
/// What io_uring says itself: of a link; of a number that is no file, or another's, when it comes to
/// an entry that the thread has prepared before another thread closed the file.
const RING: &[Errno] = &[ECANCELED, EBADF, EOPNOTSUPP];

/// The list that the header has for a command.
fn header(command: &str) -> &'static [Errno] {
    ERRNOS
        .iter()
        .find(|(name, _)| *name == command)
        .map_or(&[], |(_, errnos)| errnos)
}

/// The lists that hold for `what`: the name of a command, or of another call.
fn lists(what: &str) -> Vec<&'static [Errno]> {
    match what {
        super::ops::NO_COMMAND => vec![ANY, &[ENOTTY]],
        // What is not the module's to say: the kernel's mmap() and its kin.
        "mmap" => vec![
            ANY,
            &[EACCES, EAGAIN, ENOENT, ENOMEM, EOVERFLOW, EPERM, EOPNOTSUPP],
        ],
        "munmap" | "mprotect" | "mremap" | "madvise" => {
            vec![ANY, &[EACCES, ENOMEM, EPERM, EAGAIN]]
        }
        "read" => vec![ANY, &[EAGAIN]],
        "uring poll" => vec![ANY, RING, &[EAGAIN, EALREADY]],
        "uring cancel" => vec![ANY, RING, &[ENOENT, EALREADY]],
        "uring REQUEST" | "uring spoiled" => vec![header("URING_REQUEST")],
        "uring BATCH" => vec![header("URING_BATCH")],
        "uring CANCEL" => vec![header("URING_CANCEL")],
        "uring none" => vec![ANY, RING, &[ENOTTY]],
        "fork" => vec![&[EAGAIN, ENOMEM]],
        command => vec![header(command)],
    }
}

/// Whether the header, or what is said above of the kernel's own calls, allows it.
pub fn is_documented(what: &str, errno: Errno) -> bool {
    lists(what).iter().any(|list| list.contains(&errno))
}
