// SPDX-License-Identifier: MIT OR Apache-2.0

//! Chunks in requests of a ring, beside requests of other kinds.

use super::extra::pool::{Chunk, Pool};
use super::uring::ring;
use super::*;

#[test]
fn requests_that_were_not_submitted_go() {
    let Some(mut ring) = ring() else { return };
    let p = pair();
    let grant = p.mem.grant(..8, Access::REMOTE_WRITE).unwrap();
    let pool = Pool::new(p.mem.slice(..).unwrap(), 4096).unwrap();
    let mem = p.a.pd().alloc_buffer(64).unwrap();
    let before = p.kernel.objects();
    let chunks = [mem.slice(..4).unwrap(), mem.slice(8..12).unwrap()];
    ring.push(&p.a, Write::gather(&chunks, grant.remote()))
        .unwrap();
    ring.link();
    let chunk = pool.take().unwrap();
    chunk
        .push_to(&mut ring, &p.b, |memory| Ok(Recv::new(memory)))
        .unwrap();
    let chunk = pool.take().unwrap();
    let refused = chunk
        .push_to(&mut ring, &p.b, |memory| {
            Ok(Recv::new(memory.slice(5000..)?))
        })
        .unwrap_err();
    assert!(matches!(refused.error(), Error::Range { .. }));
    drop(refused);
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
    let refused = (pool.take().unwrap()).push_to(&mut ring, &p.b, |memory| Ok(Recv::new(memory)));
    assert!(refused.unwrap_err().error().is_backpressure());
    let error = p.device.batch().post_by(&mut ring, 10).unwrap_err();
    assert_matches!(error, Error::Value { value: 0, .. });
    assert_eq!(pool.available(), 1);
    assert!(ring.poll().unwrap().is_none());
    let error = ring.wait(NOW).unwrap_err();
    assert_matches!(error, Error::Timeout { .. });
    // The ring keeps what they refer to.
    drop(mem);
    assert_eq!(p.kernel.objects(), before);
    drop(ring);
    assert_eq!(p.kernel.objects(), before - 1);
    assert_eq!((pool.reclaim(), pool.available()), (0, 1));
    // Nothing tells the pool that its entry was not submitted.
    drop(p.b);
    assert_eq!((pool.reclaim(), pool.available()), (1, 2));
}

#[test]
fn a_chunk_in_a_ring_whose_queue_pair_is_dropped_has_one_owner() {
    for is_submitted in [false, true] {
        let Some(mut ring) = ring() else { return };
        let p = pair(); // its file is a memfd, which refuses every entry
        let pool = Pool::new(p.mem.slice(..).unwrap(), 4096).unwrap();
        for _ in 0..2 {
            let chunk = pool.take().unwrap();
            chunk
                .push_to(&mut ring, &p.b, |memory| Ok(Recv::new(memory)))
                .unwrap();
        }
        drop(p.b);
        if is_submitted {
            ring.submit().unwrap();
            // The pool has one of them back already, as another owner does with the other.
            let first = ring.wait(SOON).unwrap();
            let chunk = pool.complete_entry(&first).unwrap();
            assert!(pool.complete_entry(&first).is_none());
            drop(chunk);
            assert_eq!(pool.reclaim(), 1);
            let second = ring.wait(SOON).unwrap();
            assert!(second.result.is_err() && pool.complete_entry(&second).is_none());
        }
        drop(ring);
        assert_eq!(pool.reclaim(), if is_submitted { 0 } else { 2 });
        let taken: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        let places: std::collections::HashSet<_> = taken.iter().map(Chunk::offset).collect();
        assert_eq!((taken.len(), places.len()), (2, 2));
    }
}

#[test]
fn a_file_that_is_no_device_refuses() {
    let Some(mut ring) = ring() else { return };
    let p = pair(); // its file is a memfd
    let pool = Pool::new(p.mem.slice(..).unwrap(), 4096).unwrap();
    ring.push(&p.a, Send::inline_bytes(b"x").wr_id(7)).unwrap();
    let chunk = pool.take().unwrap();
    chunk
        .push_to(&mut ring, &p.b, |memory| Ok(Recv::new(memory)))
        .unwrap();
    assert_eq!(ring.submit().unwrap(), 2);
    for is_of_pool in [false, true] {
        let done = ring.wait(SOON).unwrap();
        assert_eq!(pool.complete_entry(&done).is_some(), is_of_pool);
        let error = done.result.unwrap_err();
        assert_matches!(error, Error::Unsupported { .. });
    }
    assert_eq!((ring.in_flight(), pool.available()), (0, 2));
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
    let pool = Pool::new(p.mem.slice(..).unwrap(), 4096).unwrap();
    let mut round = || {
        ring.push(&p.a, Write::gather(&chunks, grant.remote()))
            .unwrap();
        ring.push(&p.a, Send::inline_bytes(b"x")).unwrap();
        let chunk = pool.take().unwrap();
        chunk
            .push_to(&mut ring, &p.b, |memory| Ok(Recv::new(memory)))
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
            drop(pool.complete_entry(&done));
        }
    };
    // Each slot of the ring may make room for itself.
    (0..16).for_each(|_| round());
    let before = allocations();
    (0..100).for_each(|_| round());
    assert_eq!(allocations() - before, 0);
}
