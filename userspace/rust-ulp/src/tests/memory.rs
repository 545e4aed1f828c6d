// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory of every origin, and the keys to it.

use super::*;
use crate::grant::{GrantOptions, GrantState};
use crate::memory::BufferKind;
use crate::sync::without_locks;
use crate::sys::holds_in_child;
use nix::sys::memfd::{memfd_create, MFdFlags};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicU64;

/// A file that the stub takes for a dma-buf.
fn dmabuf(len: u64) -> File {
    let file = File::from(memfd_create(c"dmabuf", MFdFlags::MFD_CLOEXEC).unwrap());
    file.set_len(len).unwrap();
    file
}

#[test]
fn memory_of_this_process() {
    let p = pair();
    let mem = p.a.pd().user_memory_builder(5000).build().unwrap();
    assert_eq!((mem.len(), mem.keys(), mem.node()), (5000, 1, None));
    // Its last byte is not that of a page.
    mem.write_at(4999, b"x").unwrap();
    let error = mem.write_at(5000, b"x").unwrap_err();
    assert_matches!(error, Error::Range { capacity: 5000, .. });
    let info = mem.query().unwrap();
    assert_eq!((info.kind, info.len), (BufferKind::User, 5000));
    assert_eq!((info.charged, info.read_only), (8192, false));

    let huge =
        p.a.pd()
            .user_memory_builder(1 << 20)
            .huge_pages()
            .read_only();
    let huge = huge.build().unwrap();
    assert!(huge.query().unwrap().read_only);
    huge.write_at(0, b"mine").unwrap();
    assert_eq!(huge.to_vec(..4).unwrap(), b"mine");
}

#[test]
fn memory_of_this_process_that_cannot_be() {
    let p = pair();
    let pd = p.a.pd();
    let before = p.kernel.objects();
    for len in [0, usize::MAX] {
        let error = pd.user_memory_builder(len).build().unwrap_err();
        assert_matches!(error, Error::Value { .. });
    }
    for (errno, word) in [
        (Errno::ENOMEM, "ulimit -l"),
        (Errno::EOPNOTSUPP, "BUFFER_REGISTER"),
        (Errno::EMFILE, "as many objects"),
    ] {
        p.kernel.refuse("BUFFER_REGISTER", errno);
        let error = pd.user_memory_builder(4096).build().unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
    }
    assert_eq!(p.kernel.objects(), before);
}

#[test]
fn dmabufs_mapped_and_not() {
    let p = pair();
    let pd = p.a.pd();
    let file = dmabuf(4 * 4096);
    let fd = || OwnedFd::from(file.try_clone().unwrap());
    let mapped = pd.dmabuf_builder(fd()).map().build().unwrap();
    assert_eq!((mapped.len(), mapped.is_mapped()), (4 * 4096, true));
    mapped.write_at(77, b"to and fro").unwrap();
    let mut bytes = [0; 10];
    file.read_exact_at(&mut bytes, 77).unwrap();
    assert_eq!(&bytes, b"to and fro");
    // A part of it, and only the device reaches it.
    let part = pd.dmabuf_builder(fd()).part(4096, 100).build().unwrap();
    assert_eq!((part.len(), part.is_mapped()), (100, false));
    assert_eq!(part.query().unwrap().kind, BufferKind::Dmabuf);
    let grant = part.grant(.., Access::REMOTE_WRITE).unwrap();
    p.a.post(Write::new(part.slice(..5).unwrap(), grant.remote()))
        .unwrap();
    assert_eq!(p.kernel.posted()[0].elements[0].buffer, part.handle());
    for error in [
        part.read_at(0, &mut bytes).unwrap_err(),
        part.write_at(0, b"").unwrap_err(),
        part.to_vec(..).unwrap_err(),
        part.fill(.., 1).unwrap_err(),
        part.copy_from(0, &mapped, 0, 1).unwrap_err(),
        mapped.copy_from(0, &part, 0, 1).unwrap_err(),
        part.load_u8(0, Ordering::Relaxed).unwrap_err(),
        part.store_u64(0, 1, Ordering::Relaxed).unwrap_err(),
        part.compare_exchange_u64(0, 1, 2, Ordering::SeqCst)
            .unwrap_err(),
        part.slice(..1).unwrap().to_vec().unwrap_err(),
    ] {
        assert_matches!(error, Error::NotMapped);
    }

    let refused = |builder: crate::memory::DmabufBuilder| builder.build().unwrap_err().errno();
    p.kernel.refuse("BUFFER_IMPORT", Errno::EINVAL);
    assert_eq!(refused(pd.dmabuf_builder(fd())), Some(libc::EINVAL));
    // One that cannot be mapped leaves nothing behind.
    let before = p.kernel.objects();
    let sealed = File::open(format!(
        "/proc/self/fd/{}",
        std::os::fd::AsRawFd::as_raw_fd(&file)
    ));
    assert_eq!(
        refused(pd.dmabuf_builder(sealed.unwrap().into()).map()),
        Some(libc::EACCES)
    );
    assert_eq!(p.kernel.objects(), before);
}

#[test]
#[allow(unsafe_code)]
fn memory_that_the_caller_owns() {
    let p = pair();
    let own: Vec<AtomicU64> = (0..2048).map(|_| AtomicU64::new(0)).collect();
    let own = &own[own.as_ptr().align_offset(4096)..][..1024];
    let (ptr, len) = (own.as_ptr().cast_mut().cast::<u8>(), 8 * own.len());
    // SAFETY: The vector outlives the buffer, and all access to it is atomic and of 8 bytes.
    let register = |ptr, len| unsafe { p.a.pd().register_raw(ptr, len) };
    let mem = register(ptr, len).unwrap();
    assert_eq!(mem.as_ptr().unwrap().as_ptr(), ptr);
    assert_eq!(
        (mem.len(), mem.query().unwrap().kind),
        (8192, BufferKind::User)
    );
    mem.store_u64(8, 77, Ordering::Relaxed).unwrap();
    drop(mem);
    // It is still the caller's.
    assert_eq!(own[1].load(Ordering::Relaxed), 77);
    for (ptr, len, errno) in [
        (std::ptr::null_mut(), len, libc::EFAULT),
        (ptr.wrapping_add(4), 8, libc::EINVAL),
        (ptr, 12, libc::EINVAL),
    ] {
        assert_eq!(register(ptr, len).unwrap_err().errno(), Some(errno));
    }
}

#[test]
fn numbers_of_every_size() {
    let p = pair();
    let (mem, order) = (&p.mem, Ordering::SeqCst);
    mem.fill(.., 0x11).unwrap();
    mem.store_u8(1, 0xfe, order).unwrap();
    mem.store_u16(2, 0x2222, Ordering::Release).unwrap();
    mem.store_u32(4, 0x3333_3333, Ordering::Relaxed).unwrap();
    // No store has changed the bytes beside it.
    let bytes = [0x11, 0xfe, 0x22, 0x22, 0x33, 0x33, 0x33, 0x33, 0x11];
    assert_eq!(mem.to_vec(..9).unwrap(), bytes);
    assert_eq!(mem.fetch_add_u8(1, 3, order).unwrap(), 0xfe);
    assert_eq!(mem.fetch_add_u16(2, 1, order).unwrap(), 0x2222);
    assert_eq!(
        mem.fetch_add_u32(4, 1, Ordering::AcqRel).unwrap(),
        0x3333_3333
    );
    assert_eq!(mem.load_u8(0, order).unwrap(), 0x11);
    assert_eq!(mem.load_u8(1, order).unwrap(), 1);
    assert_eq!(mem.load_u16(2, order).unwrap(), 0x2223);
    assert_eq!(mem.load_u32(4, Ordering::Acquire).unwrap(), 0x3333_3334);
    mem.store_u64(8, u64::MAX, order).unwrap();
    assert_eq!(mem.fetch_add_u64(8, 2, order).unwrap(), u64::MAX);
    assert_eq!(mem.load_u64(8, order).unwrap(), 1);
    for error in [
        mem.store_u16(1, 0, order).unwrap_err(),
        mem.store_u32(2, 0, order).unwrap_err(),
        mem.store_u64(4, 0, order).unwrap_err(),
        mem.fetch_add_u32(6, 0, order).unwrap_err(),
    ] {
        assert_matches!(error, Error::Misaligned { .. });
    }
    let error = mem.store_u8(8192, 0, order).unwrap_err();
    assert_matches!(error, Error::Range { .. });
}

#[test]
fn additions_of_threads_add_up() {
    // As many that the threads meet, though one processor may run them one after the other.
    const N: u16 = 50_000;
    let (p, start) = (pair(), std::sync::Barrier::new(4));
    std::thread::scope(|scope| {
        for i in 0..4 {
            let (mem, start) = (&p.mem, &start);
            scope.spawn(move || {
                start.wait();
                for _ in 0..N {
                    mem.fetch_add_u64(0, 1, Ordering::Relaxed).unwrap();
                    // These four share a word.
                    mem.fetch_add_u16(8 + 2 * i, 1, Ordering::Relaxed).unwrap();
                }
            });
        }
    });
    let sum = p.mem.load_u64(0, Ordering::Acquire).unwrap();
    assert_eq!(sum, 4 * u64::from(N));
    assert!((0..4).all(|i| p.mem.load_u16(8 + 2 * i, Ordering::Acquire).unwrap() == N));
}

#[test]
fn a_read_only_dmabuf_is_mapped_to_be_read() {
    let p = pair();
    let file = dmabuf(4096);
    file.write_all_at(b"to be read", 8).unwrap();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let fd = OwnedFd::from(File::open(path).unwrap());
    let mem =
        p.a.pd()
            .dmabuf_builder(fd)
            .read_only()
            .map()
            .build()
            .unwrap();
    assert_eq!(mem.to_vec(8..18).unwrap(), b"to be read");
    let word = u64::from_ne_bytes(*b"to be re");
    for order in [Ordering::Relaxed, Ordering::Acquire, Ordering::SeqCst] {
        assert_eq!(mem.load_u64(8, order).unwrap(), word);
    }
    for error in [
        mem.write_at(0, b"x").unwrap_err(),
        mem.fill(.., 1).unwrap_err(),
        mem.copy_from(0, &p.mem, 0, 1).unwrap_err(),
        mem.store_u8(0, 1, Ordering::Relaxed).unwrap_err(),
        mem.store_u64(0, 1, Ordering::Relaxed).unwrap_err(),
        mem.fetch_add_u32(0, 1, Ordering::Relaxed).unwrap_err(),
        mem.compare_exchange_u64(0, 0, 2, Ordering::SeqCst)
            .unwrap_err(),
    ] {
        assert_matches!(error, Error::ReadOnly);
    }
    p.mem.copy_from(0, &mem, 8, 10).unwrap();
    assert_eq!(p.mem.to_vec(..10).unwrap(), b"to be read");
}

#[test]
fn memory_goes_whatever_is_under_way() {
    let p = pair();
    let before = p.kernel.objects();
    let mem = p.a.pd().user_memory_builder(4096).build().unwrap();
    p.b.post_recv(Recv::new(mem.slice(..).unwrap())).unwrap();
    std::mem::forget(mem.clone());
    drop(mem); // a clone was forgotten: it is only leaked
    let mem = p.a.pd().user_memory_builder(4096).build().unwrap();
    p.b.post_recv(Recv::new(mem.slice(..).unwrap())).unwrap();
    drop(mem);
    assert_eq!(p.kernel.objects(), before + 1);
    let mem = p.a.pd().user_memory_builder(4096).build().unwrap();
    let grant = mem.grant(.., Access::REMOTE_WRITE).unwrap();
    drop(mem);
    grant.buffer().write_at(0, b"kept").unwrap();
    p.kernel.log();
    drop(grant);
    assert_eq!(p.kernel.log(), ["DESTROY", "DESTROY"]);
    assert_eq!(p.kernel.objects(), before + 1);
}

#[test]
fn a_grant_is_not_bound_to_a_queue_pair_of_a_device_that_is_gone() {
    let first = pair();
    let options = GrantOptions::new().bound_to(&first.a);
    let handle = first.a.handle();
    drop(first);
    // The allocator may put the next device where the first was.
    for _ in 0..64 {
        let next = pair();
        assert_eq!(next.a.handle(), handle);
        let error = next.mem.grant_with(.., Access::REMOTE_READ, options);
        assert_eq!(error.unwrap_err().errno(), Some(libc::ENOENT));
    }
}

#[test]
fn a_forked_child_destroys_nothing() {
    let p = pair();
    let mem = p.a.pd().user_memory_builder(4096).build().unwrap();
    let grant = mem.grant(.., Access::REMOTE_WRITE).unwrap();
    let eventfd = p.cq.eventfd().unwrap();
    let kernel = p.kernel.clone();
    kernel.log();
    let all = (grant, mem, eventfd, p);
    assert!(holds_in_child(|| {
        // Another thread may have held any lock.
        without_locks(|| drop(all));
        kernel.log().is_empty()
    }));
}

// --- several keys -----------------------------------------------------------------------------------------

#[test]
fn a_buffer_of_several_keys() {
    let p = pair();
    p.kernel.set_key_bytes(8192);
    let mem = p.a.pd().alloc_buffer(20_000).unwrap();
    assert_eq!((mem.key_bytes(), mem.keys()), (8192, 3));
    let some = GrantOptions::new().partial();
    let some = mem.grant_with(100.., Access::REMOTE_WRITE, some).unwrap();
    assert_eq!((some.offset(), some.remote().len()), (100, 8192));

    let all = mem
        .grant_all(1.., Access::REMOTE_WRITE, GrantOptions::new())
        .unwrap();
    let parts: Vec<_> = all
        .iter()
        .map(|grant| (grant.offset(), grant.remote().len()))
        .collect();
    assert_eq!(parts, [(1, 8192), (8193, 8192), (16385, 3615)]);
    assert_eq!(mem.query().unwrap().grants, 4);
    drop(all);
    assert_eq!(mem.query().unwrap().grants, 1);
    // When one of them fails there are none.
    p.kernel.accept("GRANT_CREATE");
    p.kernel.accept("GRANT_CREATE");
    p.kernel.refuse("GRANT_CREATE", Errno::ENOMEM);
    let error = mem
        .grant_all(.., Access::REMOTE_READ, GrantOptions::new())
        .unwrap_err();
    assert_eq!(error.errno(), Some(libc::ENOMEM), "{error}");
    assert_eq!(mem.query().unwrap().grants, 1);
}

// --- grants -----------------------------------------------------------------------------------------------

#[test]
fn a_key_that_is_revoked() {
    let p = pair();
    let grant = p.mem.grant(64..128, Access::REMOTE_WRITE).unwrap();
    let (clone, old) = (grant.clone(), grant.remote());
    assert_eq!((old.len(), old.access()), (64, Some(Access::REMOTE_WRITE)));
    assert_eq!(clone.remote(), old);
    let info = clone.query().unwrap();
    assert_eq!(
        (info.state, info.rkey),
        (GrantState::Active, Some(old.rkey()))
    );
    assert_eq!((info.offset, info.len), (64, 64));
    assert_eq!((info.one_shot, info.bound), (false, false));
    // Revoking may fail and be tried again.
    p.kernel.refuse("DESTROY", Errno::EIO);
    assert_eq!(grant.revoke().unwrap_err().errno(), Some(libc::EIO));
    p.kernel.refuse("DESTROY", Errno::EBUSY);
    let busy = grant.revoke();
    assert!(matches!(busy, Err(Error::Busy { what: "DESTROY" })));
    assert_eq!(grant.query().unwrap().rkey, Some(old.rkey()), "as it was");
    let before = p.kernel.objects();
    grant.revoke().unwrap();
    assert_eq!(p.kernel.objects(), before - 1);
    assert_eq!(clone.query().unwrap_err().errno(), Some(libc::ENOENT));
    p.kernel.log();
    assert_eq!(clone.revoke().unwrap_err().errno(), Some(libc::ENOENT));
    drop((grant, clone));
    assert!(p.kernel.log().is_empty(), "nothing is revoked twice");
    let new = p.mem.grant(64..128, Access::REMOTE_WRITE).unwrap().remote();
    assert_ne!(new.rkey(), old.rkey());
}
