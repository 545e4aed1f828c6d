// SPDX-License-Identifier: MIT OR Apache-2.0

//! What of a ring can be told without a kernel that has the commands: `ulp-test` and the example
//! see the rest.

use super::*;
use crate::sys::{holds_in_child, interrupted_after};
use crate::uring::Ring;

/// A ring, unless this machine has none: then the error says so.
fn ring() -> Option<Ring> {
    match Ring::builder().entries(4).build() {
        Ok(ring) => Some(ring),
        Err(error) => {
            assert_matches!(error, Error::NoUring { .. });
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

/// A batch borrows what its requests refer to, and a ring outlives the batch.
#[test]
fn a_ring_keeps_what_a_batch_borrowed() {
    let Some(mut ring) = ring() else { return };
    let d = datagrams();
    let ah = d.a.address(&d.b.endpoint()).unwrap();
    let to = ah.queue_pair(d.b.qp_num(), d.b.qkey());
    drop(ah);
    let buffers = [0; 3].map(|_| d.a.pd().alloc_buffer(64).unwrap());
    let [one, two, three] = buffers.each_ref().map(|buffer| buffer.slice(..8).unwrap());
    let pair = [two, three];
    let objects = d.kernel.objects();
    let device = Device::from_inner(d.a.device_inner());
    let mut batch = device.batch();
    // What is refused is not kept.
    let long = d.mem.slice(..1025).unwrap();
    assert!(batch.push(&d.a, SendTo::new(long, &to)).is_err());
    batch.push(&d.a, SendTo::new(one, &to)).unwrap();
    batch.push(&d.a, SendTo::gather(&pair, &to)).unwrap();
    batch.submit_by(&mut ring, 1).unwrap();
    drop(batch);
    drop((to, buffers));
    assert_eq!(d.kernel.objects(), objects);
    drop(ring);
    assert_eq!(d.kernel.objects(), objects - 4);
}

#[test]
fn a_batch_that_a_full_ring_refuses_stays_as_it_was() {
    let Some(mut ring) = ring() else { return };
    let p = pair();
    let grant = p.mem.grant(..8, Access::REMOTE_WRITE).unwrap();
    let ends = [
        grant.remote().slice(..4).unwrap(),
        grant.remote().slice(4..).unwrap(),
    ];
    while ring.push(&p.b, Recv::empty()).is_ok() {}
    let mem = p.a.pd().alloc_buffer(64).unwrap();
    let slices = [mem.slice(..2).unwrap(), mem.slice(2..4).unwrap()];
    let mut batch = p.device.batch();
    batch
        .push(&p.a, Write::inline_bytes(b"kept", ends[0]))
        .unwrap();
    batch.push(&p.a, Write::gather(&slices, ends[1])).unwrap();
    for refused in [batch.submit_by(&mut ring, 1), batch.post_by(&mut ring, 1)] {
        assert!(matches!(refused, Err(Error::QueueFull)), "{refused:?}");
    }
    assert_eq!(batch.len(), 2);
    // Its requests are posted by a call instead, each once.
    assert_eq!(batch.submit().unwrap(), 2);
    let posted = p.kernel.posted();
    assert_eq!((posted.len(), &posted[0].inline[..]), (2, &b"kept"[..]));
    assert_eq!(places(&posted[1]), [(0, 2), (2, 2)]);

    // Or by the ring, once it has room. The file is no device, and refuses what it is given.
    batch.push(&p.a, Write::gather(&slices, ends[1])).unwrap();
    assert!(batch.post_by(&mut ring, 1).unwrap_err().is_backpressure());
    let count = ring.submit().unwrap();
    for _ in 0..count {
        assert!(ring.wait(SOON).unwrap().result.is_err());
    }
    batch.submit_by(&mut ring, 9).unwrap();
    assert!(batch.is_empty());
    let error = batch.submit_by(&mut ring, 9).unwrap_err();
    assert_matches!(error, Error::Value { value: 0, .. });
    batch
        .push(&p.a, Write::inline_bytes(b"more", ends[0]))
        .unwrap();
    batch.post_by(&mut ring, 10).unwrap();
    assert_eq!((ring.submit().unwrap(), batch.len()), (2, 0));
    let numbers = [(); 2].map(|()| ring.wait(SOON).unwrap().wr_id);
    assert_eq!(numbers, [9, 10]);
    // Neither the batch nor the ring has the buffer any more.
    drop(batch);
    let objects = p.kernel.objects();
    drop(mem);
    assert_eq!(p.kernel.objects(), objects - 1);
}

#[test]
fn a_number_of_entries_that_no_ring_has_is_named() {
    for entries in [0, 32_769, u32::MAX] {
        let error = Ring::builder().entries(entries).build().unwrap_err();
        assert_matches!(
            error,
            Error::Value { value, min: 1, max: 32_768, .. } if value == u64::from(entries)
        );
    }
}

/// The time of a wait includes the time before a signal.
#[test]
fn a_ring_that_a_signal_interrupts_does_not_wait_its_time_again() {
    let Some(mut ring) = ring() else { return };
    let time = 120 * NOW;
    let begin = std::time::Instant::now();
    let error = interrupted_after(100 * NOW, || ring.wait(time).unwrap_err());
    assert_matches!(error, Error::Timeout { .. });
    assert_eq!(ring.waits(), 2);
    let waited = begin.elapsed();
    assert!(waited >= time && waited < 180 * NOW, "{waited:?}");
}

/// The call that submits returns how many entries it took, and not that the time is over.
#[test]
fn a_ring_that_submits_and_waits_does_not_wait_twice() {
    let Some(mut ring) = ring() else { return };
    let p = pair();
    ring.push(&p.a, Send::inline_bytes(b"x").wr_id(7)).unwrap();
    let error = ring.submit_and_wait(2, 20 * NOW).unwrap_err();
    assert_matches!(error, Error::Timeout { .. });
    assert_eq!(ring.waits(), 1);
    // It was submitted, and has completed.
    assert_eq!(ring.poll().unwrap().unwrap().wr_id, 7);
    assert_eq!(ring.in_flight(), 0);
    let error = ring.wait(NOW).unwrap_err();
    assert_matches!(error, Error::Timeout { .. });
    assert_eq!(ring.waits(), 2);
}

#[test]
fn a_ring_does_not_wait_for_more_than_it_can_have() {
    let Some(mut ring) = ring() else { return };
    let p = pair();
    ring.push(&p.a, Send::inline_bytes(b"x").wr_id(7)).unwrap();
    for min in [9, u32::MAX] {
        let error = ring.submit_and_wait(min, Duration::MAX).unwrap_err();
        assert_matches!(error, Error::Value { max: 8, .. });
    }
    assert_eq!(ring.waits(), 0);
    assert_eq!(ring.submit_and_wait(1, SOON).unwrap(), 1);
}

#[test]
fn requests_that_were_not_submitted_go() {
    let Some(mut ring) = ring() else { return };
    let p = pair();
    let grant = p.mem.grant(..8, Access::REMOTE_WRITE).unwrap();
    let mem = p.a.pd().alloc_buffer(64).unwrap();
    let before = p.kernel.objects();
    let chunks = [mem.slice(..4).unwrap(), mem.slice(8..12).unwrap()];
    ring.push(&p.a, Write::gather(&chunks, grant.remote()))
        .unwrap();
    ring.link();
    ring.push(&p.b, Recv::new(p.mem.slice(..4096).unwrap()))
        .unwrap();
    // What cannot work is refused here, and takes no room.
    let error = ring
        .push(&p.a, Write::inline_bytes(&[0; 9], grant.remote()))
        .unwrap_err();
    assert_matches!(error, Error::Range { .. });
    let mut batch = p.device.batch();
    batch.push(&p.a, Send::inline_bytes(b"kept")).unwrap();
    batch.push(&p.b, Recv::empty().timeout(SOON)).unwrap();
    batch.submit_by(&mut ring, 9).unwrap();
    let error = p.device.batch().submit_by(&mut ring, 9).unwrap_err();
    assert_matches!(error, Error::Value { value: 0, .. });
    let mut batch = p.device.batch();
    batch.push(&p.b, Recv::empty()).unwrap();
    batch.post_by(&mut ring, 10).unwrap();
    assert_eq!(ring.in_flight(), 4);
    let error = ring.push(&p.b, Recv::empty()).unwrap_err();
    assert!(error.is_backpressure(), "{error}");
    let error = p.device.batch().post_by(&mut ring, 10).unwrap_err();
    assert_matches!(error, Error::Value { value: 0, .. });
    assert!(ring.poll().unwrap().is_none());
    let error = ring.wait(NOW).unwrap_err();
    assert_matches!(error, Error::Timeout { .. });
    // The ring keeps what they refer to.
    drop(mem);
    assert_eq!(p.kernel.objects(), before);
    drop(ring);
    assert_eq!(p.kernel.objects(), before - 1);
}

#[test]
fn a_file_that_is_no_device_refuses() {
    let Some(mut ring) = ring() else { return };
    let p = pair(); // its file is a memfd
    ring.push(&p.a, Send::inline_bytes(b"x").wr_id(7)).unwrap();
    ring.push(&p.b, Recv::new(p.mem.slice(..4096).unwrap()))
        .unwrap();
    assert_eq!(ring.submit().unwrap(), 2);
    for _ in 0..2 {
        let error = ring.wait(SOON).unwrap().result.unwrap_err();
        assert_matches!(error, Error::Unsupported { .. });
    }
    assert_eq!(ring.in_flight(), 0);
    assert_eq!(ring.submit().unwrap(), 0);

    let mut batch = p.device.batch();
    batch.push(&p.a, Send::inline_bytes(b"x")).unwrap();
    batch.post_by(&mut ring, 8).unwrap();
    assert_eq!(ring.submit().unwrap(), 1);
    let done = ring.wait(SOON).unwrap();
    assert_eq!(done.wr_id, 8);
    let error = done.result.unwrap_err();
    assert_matches!(error, Error::Unsupported { .. });
}

#[test]
fn a_ring_allocates_nothing() {
    let Some(mut ring) = ring() else { return };
    let p = pair();
    let grant = p.mem.grant(.., Access::all()).unwrap();
    let chunks = [p.mem.slice(..4).unwrap(), p.mem.slice(8..12).unwrap()];
    let mut round = || {
        ring.push(&p.a, Write::gather(&chunks, grant.remote()))
            .unwrap();
        ring.push(&p.a, Send::inline_bytes(b"x")).unwrap();
        ring.push(&p.b, Recv::new(p.mem.slice(..4096).unwrap()))
            .unwrap();
        let mut batch = p.device.batch();
        batch.push(&p.a, Send::inline_bytes(b"kept")).unwrap();
        batch.push(&p.b, Recv::empty().timeout(SOON)).unwrap();
        batch.submit_by(&mut ring, 9).unwrap();
        ring.submit().unwrap();
        for _ in 0..4 {
            // Not a device: each is refused.
            let done = ring.wait(SOON).unwrap();
            assert!(done.result.is_err());
        }
    };
    // Each slot of the ring may make room for itself.
    (0..16).for_each(|_| round());
    let before = allocations();
    (0..100).for_each(|_| round());
    assert_eq!(allocations() - before, 0);
}
