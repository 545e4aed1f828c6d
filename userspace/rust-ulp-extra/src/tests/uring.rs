// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests of a ring.

use super::uring::ring;
use super::*;

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
