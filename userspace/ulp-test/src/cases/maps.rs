// SPDX-License-Identifier: MIT OR Apache-2.0

//! `mmap` of completion rings and buffers.

use crate::file::{File, Set};
use crate::report::{because, check, equal, Outcome, Report};
use crate::sys::page;
use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags};

const RW: ProtFlags = ProtFlags::PROT_READ.union(ProtFlags::PROT_WRITE);

fn refused(
    file: &File,
    offset: u64,
    len: usize,
    prot: ProtFlags,
    flags: MapFlags,
    want: Errno,
) -> Outcome {
    let before = file.objects()?;
    let got = file.fd().map(offset, len, prot, flags).map(|map| map.len());
    equal("result", got, Err(want))?;
    equal("objects after a refusal", file.objects()?, before)
}

/// All cases of this file.
pub fn run(r: &mut Report) {
    let Some(set) = r.need("objects of every kind", Set::new) else {
        return;
    };
    let file = &set.file;
    let shared = MapFlags::MAP_SHARED;
    let maps = [
        ("a ring", set.cq.mmap_offset, set.cq.mmap_size),
        ("a buffer", set.buffer.mmap_offset, set.buffer.length),
    ];
    r.case("mmap: before ATTACH", || {
        let new = File::open()?;
        for (_, offset, _) in maps {
            refused(&new, offset, page(), RW, shared, Errno::ENXIO)?;
        }
        refused(&new, 0, page(), RW, shared, Errno::ENXIO)
    });
    for (name, offset, size) in maps {
        let len = size as usize;
        r.case(format!("mmap: past the end of {name}"), || {
            for (offset, len) in [
                (offset, len + page()),
                (offset, len + 1),
                (offset + page() as u64, len),
                (offset + size, page()),
                (offset + size + page() as u64, page()),
                (offset, 1 << 32),
                (offset, 1 << 40),
            ] {
                let what = format!("{len:#x} bytes at {offset:#x}");
                refused(file, offset, len, RW, shared, Errno::EINVAL).map_err(because(&what))?;
            }
            Ok(())
        });
        r.case(format!("mmap: {name} at an odd place"), || {
            for odd in [1, 8, 512, 4095] {
                refused(file, offset + odd, page(), RW, shared, Errno::EINVAL)?;
            }
            Ok(())
        });
        r.case(format!("mmap: {name} privately"), || {
            for prot in [ProtFlags::PROT_READ, RW] {
                refused(
                    file,
                    offset,
                    len,
                    prot,
                    MapFlags::MAP_PRIVATE,
                    Errno::EINVAL,
                )?;
            }
            Ok(())
        });
        r.case(format!("mmap: {name} to execute"), || {
            let prot = ProtFlags::PROT_READ | ProtFlags::PROT_EXEC;
            refused(file, offset, len, prot, shared, Errno::EPERM)?;
            let map = file.fd().share(offset, size);
            let map = map.map_err(because("mapping it"))?;
            equal("mprotect", map.try_protect(prot), Err(Errno::EACCES))
        });
        r.case(format!("mmap: {name} does not grow"), || {
            let map = file.fd().share(offset, size);
            let mut map = map.map_err(because("mapping it"))?;
            equal("mremap", map.try_grow(), Err(Errno::EFAULT))
        });
        r.case(format!("mmap: {name} in parts, to read, and twice"), || {
            let last = offset + size - page() as u64;
            for (offset, len, prot) in [
                (offset, len, RW),
                (offset, page(), ProtFlags::PROT_READ),
                (last, page(), ProtFlags::PROT_READ),
                (last, 1, RW),
                (offset, len, ProtFlags::PROT_NONE),
            ] {
                let map = file.fd().map(offset, len, prot, shared);
                map.map_err(because(&format!("{len:#x} bytes at {offset:#x}")))?;
            }
            Ok(())
        });
    }
    r.case("mmap: offsets of nothing", || {
        let page = page() as u64;
        for offset in [0, page, 1 << 43, (1 << 44) - page, 1 << 44, 1 << 62] {
            refused(file, offset, page as usize, RW, shared, Errno::ENOENT)
                .map_err(because(&format!("at {offset:#x}")))?;
        }
        Ok(())
    });
    r.case("mmap: offsets that a 32-bit process can pass", || {
        for (name, offset, _) in maps {
            check(name, offset != 0 && offset < 1 << 44 && offset % 65536 == 0)?;
        }
        Ok(())
    });
    r.case("mmap: offsets are not used again soon", || {
        let stale = file.cq(4)?;
        file.destroy(stale.handle)?;
        for _ in 0..64 {
            let next = file.cq(4)?;
            file.destroy(next.handle)?;
            check("the offset", next.mmap_offset != stale.mmap_offset)?;
        }
        refused(file, stale.mmap_offset, page(), RW, shared, Errno::ENOENT)
    });
    r.case("mmap: what was destroyed", || {
        let cq = file.cq(4)?;
        let buffer = file.buffer(set.pd, 1)?;
        let map = file.fd().share(buffer.mmap_offset, buffer.length);
        let map = map.map_err(because("mapping it"))?;
        map.put(0, b"still");
        file.destroy(cq.handle)?;
        file.destroy(buffer.handle)?;
        refused(file, cq.mmap_offset, page(), RW, shared, Errno::ENOENT)?;
        refused(file, buffer.mmap_offset, page(), RW, shared, Errno::ENOENT)?;
        equal("a mapping from before", map.get(0, 5), b"still".to_vec())
    });
    r.case(
        "mmap: a new buffer is zero, and one mapping is the other",
        || {
            let buffer = file.buffer(set.pd, 4 * page() as u64)?;
            let share = || file.fd().share(buffer.mmap_offset, buffer.length);
            let one = share().map_err(because("mapping it"))?;
            let two = share().map_err(because("mapping it again"))?;
            let zero = one.get(0, one.len()).iter().all(|byte| *byte == 0);
            check("it is not zero", zero)?;
            one.put(page() + 77, b"seen");
            equal(
                "the other mapping",
                two.get(page() + 77, 4),
                b"seen".to_vec(),
            )?;
            file.destroy(buffer.handle)
        },
    );
    r.case("all these mappings left nothing", || {
        equal("objects", file.count("")?, 9)
    });
    r.case("the queue pairs still work after bad mappings", || {
        set.works(7)
    });
}
