// SPDX-License-Identifier: MIT OR Apache-2.0

//! What matrix.rs cannot derive from one member, of everything but QP_MODIFY and SUBMIT: arrays, values that
//! depend on others, and what is accepted.

use crate::file::{Command, File, Set, BUFFER};
use crate::report::{because, check, equal, Outcome, Report};
use crate::sys::{abi, arg, page, Area, Plain, Wild, PAGE};
use nix::errno::Errno;

/// The command is refused like that, whichever of `args` it has.
fn all<C: Command + Plain>(file: &File, want: Errno, args: &[C]) -> Outcome {
    for (i, arg) in args.iter().enumerate() {
        file.refused(arg, want)
            .map_err(because(&format!("number {i} of {}", args.len())))?;
    }
    Ok(())
}

fn name(text: &[u8]) -> [u8; abi::NAME_MAX] {
    let mut out = [0; abi::NAME_MAX];
    for (to, from) in out.iter_mut().zip(text) {
        *to = *from;
    }
    out
}

fn attach(name: [u8; abi::NAME_MAX]) -> abi::Attach {
    arg!(Attach, name)
}

fn attaching(r: &mut Report) {
    r.case("ATTACH: unknown names", || {
        let file = File::open()?;
        let longest = name(&[b'a'; 63]);
        let all = [
            name(b"nosuch0"),
            name(b"rxe"),
            name(b" "),
            name(b"../x"),
            longest,
        ];
        for name in all {
            file.refused(&attach(name), Errno::ENOENT)?;
        }
        file.accepted(&abi::Attach::new()).map(drop)
    });
    r.case("ATTACH: a name without its NUL", || {
        let file = File::open()?;
        file.refused(&attach([b'a'; 64]), Errno::EINVAL)?;
        file.refused(&attach([0xff; 64]), Errno::EINVAL)?;
        file.accepted(&abi::Attach::new()).map(drop)
    });
    r.case("ATTACH: sizes of an event", || {
        let file = File::open()?;
        let most = file.accepted(&abi::Query::new())?.event_size;
        equal("the largest", most, abi::Event::SIZE)?;
        let least = abi::EVENT_SIZE_V1;
        let sizes = [
            0,
            8,
            least - 8,
            least - 1,
            most + 1,
            most + 8,
            4096,
            u32::MAX,
        ];
        for event_size in sizes {
            let wrong = arg!(Attach, event_size);
            file.refused(&wrong, Errno::EPROTONOSUPPORT)?;
        }
        file.accepted(&abi::Attach::new()).map(drop)
    });
    r.case("ATTACH: twice", || {
        let file = File::open()?;
        let got = file.accepted(&abi::Attach::new())?;
        file.refused(&abi::Attach::new(), Errno::EALREADY)?;
        file.refused(&attach(got.name), Errno::EALREADY)
    });
    r.case("ATTACH: by name is as by default", || {
        let got = File::open()?.accepted(&abi::Attach::new())?;
        let again = File::open()?.accepted(&attach(got.name))?;
        equal("what it says", again, got)?;
        check(
            "the name has its NUL",
            got.name.contains(&0) && got.name[0] != 0,
        )
    });
    r.case("QUERY and DEVICE_LIST before ATTACH", || {
        let file = File::open()?;
        let got = file.accepted(&abi::Query::new())?;
        equal("version", got.abi_version, abi::ABI_VERSION)?;
        let some = [
            u64::from(got.max_objects),
            got.max_buffer,
            got.max_batch.into(),
            got.max_cq_entries.into(),
            got.max_queue_depth.into(),
            got.max_sge.into(),
            got.max_inline.into(),
        ];
        check("a limit is zero", some.iter().all(|n| *n > 0))?;
        let got = file.accepted(&abi::DeviceList::new())?;
        check("no device", got.count > 0)
    });
}

/// An array that a command fills: where it is, how long its entries, and how many.
#[derive(Clone, Copy)]
struct Room {
    entries: u64,
    entry_size: u32,
    capacity: u32,
}

/// A command that fills an array; the result is how many entries there are.
type Fill<'a> = dyn Fn(Room) -> (Result<(), Errno>, u32) + 'a;

fn filling<T: Plain>(r: &mut Report, name: &str, file: &File, fill: &Fill<'_>) {
    let size = size_of::<T>() as u32;
    let area = || Area::new(2).map_err(because("mapping memory"));
    let count_with = |room: Room| match fill(room) {
        (Ok(()), count) => Ok(count),
        (Err(errno), _) => Err(format!("{errno:?}")),
    };
    let refused = |room: Room, want: Errno| {
        let before = file.objects()?;
        equal("result", fill(room).0, Err(want))?;
        equal("objects after a refusal", file.objects()?, before)
    };
    let none = Room {
        entries: 0,
        entry_size: 0,
        capacity: 0,
    };
    r.case(format!("{name}: no room, just the count"), || {
        let count = count_with(none)?;
        check("nothing there", count > 0)?;
        for wild in Wild::ALL {
            let room = Room {
                entries: wild.address(),
                ..none
            };
            equal("the count", count_with(room)?, count)?;
        }
        Ok(())
    });
    r.case(format!("{name}: less room than there is"), || {
        let area = area()?;
        area.put(0, &[0xa5; PAGE]);
        let all = count_with(Room {
            entries: area.at(0),
            entry_size: size,
            capacity: 16,
        })?;
        check("one entry only: nothing to see", all > 1)?;
        let second = area.get(size as usize, size as usize);
        area.put(0, &[0xa5; PAGE]);
        let count = count_with(Room {
            entries: area.at(0),
            entry_size: size,
            capacity: all - 1,
        })?;
        equal("the count", count, all)?;
        let end = (all - 1) as usize * size as usize;
        equal("behind the room", area.get(end, 16), vec![0xa5; 16])?;
        check(
            "an entry is missing",
            all == 2 || area.get(size as usize, size as usize) == second,
        )
    });
    r.case(format!("{name}: entries that are too small"), || {
        let area = area()?;
        area.put(0, &[0xa5; 512]);
        for entry_size in [0, 1, 4, size - 1] {
            refused(
                Room {
                    entries: area.at(0),
                    entry_size,
                    capacity: 4,
                },
                Errno::EINVAL,
            )?;
        }
        equal("memory", area.get(0, 512), vec![0xa5; 512])
    });
    r.case(format!("{name}: entries that are larger"), || {
        let area = area()?;
        let all = count_with(Room {
            entries: area.at(0),
            entry_size: size,
            capacity: 16,
        })? as usize;
        let usual: Vec<_> = (0..all)
            .map(|i| area.get(i * size as usize, size as usize))
            .collect();
        let large = size as usize + 24;
        area.put(0, &[0xa5; PAGE]);
        count_with(Room {
            entries: area.at(0),
            entry_size: large as u32,
            capacity: 16,
        })?;
        for (i, entry) in usual.iter().enumerate() {
            equal("an entry", &area.get(i * large, size as usize), entry)?;
            let rest = area.get(i * large + size as usize, 24);
            equal("the rest of an entry", rest, vec![0; 24])?;
        }
        equal(
            "behind the entries",
            area.get(all * large, 16),
            vec![0xa5; 16],
        )
    });
    r.case(format!("{name}: arrays that cannot be written"), || {
        for wild in Wild::ALL {
            let room = Room {
                entries: wild.address(),
                entry_size: size,
                capacity: 4,
            };
            refused(room, Errno::EFAULT).map_err(because(&format!("{wild:?}")))?;
        }
        let area = area()?;
        let room = |entries: u64| Room {
            entries,
            entry_size: size,
            capacity: 4,
        };
        refused(room(area.at(area.len())), Errno::EFAULT)?;
        refused(room(area.at(area.len() - 1)), Errno::EFAULT)?;
        refused(room(area.at(area.len() - size as usize + 1)), Errno::EFAULT)?;
        let one = Room {
            capacity: 1,
            ..room(area.at(area.len() - size as usize))
        };
        count_with(one).map_err(because("one at the very end"))?;
        let area = area.read_only().map_err(because("protecting memory"))?;
        refused(room(area.at(0)), Errno::EFAULT).map_err(because("read-only"))?;
        Ok(())
    });
    r.case(format!("{name}: entries that are too large"), || {
        let area = area()?;
        for entry_size in [PAGE as u32 + 1, u32::MAX] {
            let room = Room {
                entries: area.at(0),
                entry_size,
                capacity: 4,
            };
            refused(room, Errno::E2BIG).map_err(because(&format!("size {entry_size}")))?;
        }
        Ok(())
    });
}

fn queries(r: &mut Report, set: &Set) {
    let file = &set.file;
    filling::<abi::DeviceEntry>(r, "DEVICE_LIST", file, &|room: Room| {
        let (result, out) = file.call(&abi::DeviceList {
            entries: room.entries,
            entry_size: room.entry_size,
            capacity: room.capacity,
            ..abi::DeviceList::new()
        });
        (result, out.count)
    });
    filling::<abi::GidEntry>(r, "GID_QUERY", file, &|room: Room| {
        let (result, out) = file.call(&abi::GidQuery {
            entries: room.entries,
            entry_size: room.entry_size,
            capacity: room.capacity,
            port: file.port,
            ..abi::GidQuery::new()
        });
        (result, out.count)
    });
    r.case("GID_QUERY: one entry is the preferred one", || {
        let gids = file.gids()?;
        let preferred = gids
            .iter()
            .filter(|gid| gid.flags & abi::GID_PREFERRED != 0);
        let preferred: Vec<u32> = preferred.map(|gid| gid.index).collect();
        equal("preferred", preferred, vec![file.gid_index])
    });
}

fn completion_queues(r: &mut Report, set: &Set) {
    let file = &set.file;
    let with = |entries: u32| arg!(CqCreate, entries);
    r.case("CQ_CREATE: entries", || {
        for (entries, want) in [(1, 1), (3, 4), (255, 256)] {
            let got = file.accepted(&with(entries))?;
            equal("entries", got.entries, want)?;
            let least = abi::CQ_ENTRIES_OFFSET as u64 + u64::from(want) * 64;
            check("too little to map", got.mmap_size >= least)?;
            file.destroy(got.handle)?;
        }
        Ok(())
    });
    r.case("CQ_CREATE: sizes of a completion", || {
        let most = file.accepted(&abi::Query::new())?.cqe_size;
        equal("the largest", most, abi::Cqe::SIZE)?;
        let least = abi::CQE_SIZE_V1;
        let args = [
            0,
            8,
            least - 8,
            least - 1,
            most + 1,
            most + 8,
            4096,
            u32::MAX,
        ];
        let args = args.map(|cqe_size| abi::CqCreate {
            cqe_size,
            ..with(4)
        });
        all(file, Errno::EPROTONOSUPPORT, &args)
    });
    r.case("CQ_CREATE: delivery", || {
        for delivery in abi::DELIVER_DEFAULT..=abi::DELIVER_SOFTIRQ {
            let got = file.accepted(&abi::CqCreate {
                delivery,
                ..with(4)
            })?;
            file.destroy(got.handle)?;
            check(
                "what was chosen",
                got.delivery == delivery || delivery == 0 && got.delivery != 0,
            )?;
        }
        Ok(())
    });
    r.case("CQ_CREATE: busy_poll_us", || {
        let polls = |busy_poll_us, delivery| abi::CqCreate {
            busy_poll_us,
            delivery,
            ..with(4)
        };
        let (worker, most) = (abi::DELIVER_WORKQUEUE, 10_000);
        all(file, Errno::EINVAL, &[polls(1, abi::DELIVER_SOFTIRQ)])?;
        for time in [0, 1, most] {
            let got = file.accepted(&polls(time, worker))?;
            equal("busy_poll_us", got.busy_poll_us, time)?;
            file.destroy(got.handle)?;
        }
        Ok(())
    });
}

fn queue_pairs(r: &mut Report, set: &Set) {
    let file = &set.file;
    let usual = File::qp_args(set.pd, set.cq.handle);
    r.case("QP_CREATE: what was asked for is what there is", || {
        let got = file.accepted(&usual)?;
        let said = file.query(got.handle)?;
        file.destroy(got.handle)?;
        equal(
            "sizes",
            [
                said.max_send_wr,
                said.max_recv_wr,
                said.max_send_sge,
                said.max_recv_sge,
            ],
            [
                got.max_send_wr,
                got.max_recv_wr,
                got.max_send_sge,
                got.max_recv_sge,
            ],
        )?;
        equal("inline", said.max_inline, got.max_inline)?;
        equal("number", said.qp_num, got.qp_num)?;
        check(
            "less than was asked for",
            got.max_send_wr >= 64 && got.max_recv_sge >= 4,
        )
    });
}

fn buffers(r: &mut Report, set: &Set) {
    let file = &set.file;
    let with = |length: u64| arg!(BufferCreate, pd = set.pd, node = abi::NODE_ANY, length);
    for (name, page_size) in [("any", 0), ("small", 4096), ("large", 0x20_0000)] {
        r.case(
            format!("BUFFER_CREATE: too many bytes, {name} pages"),
            || {
                let most = file.accepted(&abi::Query::new())?.max_buffer;
                let lengths = [
                    most + 1,
                    2 * most,
                    1 << 40,
                    1 << 63,
                    u64::MAX - 4095,
                    u64::MAX - 1,
                    u64::MAX,
                ];
                let args = lengths.map(|length| abi::BufferCreate {
                    page_size,
                    ..with(length)
                });
                all(file, Errno::ERANGE, &args)
            },
        );
    }
    r.case("BUFFER_CREATE: page_size", || {
        let page = page() as u64;
        for (page_size, length, want) in [
            (4096, 1, page),
            (4096, page + 1, 2 * page),
            (0x20_0000, 1, 0x20_0000),
            (0, 1, page),
        ] {
            let got = file.accepted(&abi::BufferCreate {
                page_size,
                ..with(length)
            })?;
            equal("length", got.length, want)?;
            file.destroy(got.handle)?;
        }
        Ok(())
    });
    r.case("BUFFER_CREATE: node", || {
        let nodes = [-2, 1023, 1024, 1 << 20, i32::MIN, i32::MAX];
        let args = nodes.map(|node| abi::BufferCreate { node, ..with(1) });
        all(file, Errno::ERANGE, &args)
    });
}

fn registered(r: &mut Report, set: &Set) {
    let file = &set.file;
    let right = File::register_args(set.pd);
    let with = |addr: u64, length: u64| abi::BufferRegister {
        addr,
        length,
        ..right
    };
    r.case("BUFFER_REGISTER: addresses", || {
        for wild in Wild::ALL {
            file.refused(&with(wild.address(), 64), Errno::EFAULT)
                .map_err(because(&format!("{wild:?}")))?;
        }
        let area = Area::new(1).map_err(because("mapping memory"))?;
        let end = area.at(area.len());
        let args = [
            with(end - 1, 2),
            with(end, 1),
            with(area.at(0), area.len() as u64 + 1),
        ];
        all(file, Errno::EFAULT, &args)?;
        let area = area.read_only().map_err(because("protecting memory"))?;
        file.refused(&with(area.at(0), 64), Errno::EFAULT)?;
        let read_only = abi::BufferRegister {
            flags: abi::BUFFER_READ_ONLY,
            ..with(area.at(0), 64)
        };
        file.destroy(file.accepted(&read_only)?.handle)
    });
    r.case("BUFFER_IMPORT: no dma-buf", || {
        let with = |fd: i32| arg!(BufferImport, pd = set.pd, fd);
        all(
            file,
            Errno::EBADF,
            &[-1, 1 << 20, i32::MIN, i32::MAX].map(with),
        )?;
        file.refused(&with(file.fd().number()), Errno::EINVAL)
    });
}

fn grants(r: &mut Report, set: &Set) {
    let file = &set.file;
    let with = |offset: u64, length: u64| abi::GrantCreate {
        offset,
        length,
        ..File::grant_args(set.buffer.handle)
    };
    r.case("GRANT_CREATE: outside of the buffer", || {
        let args = [
            with(0, BUFFER + 1),
            with(1, BUFFER),
            with(BUFFER - 1, 2),
            with(BUFFER, 1),
            with(1 << 40, 1),
            with(1 << 63, 1),
            with(u64::MAX, 1),
            with(u64::MAX, 2),
            with(1, u64::MAX),
            with(0, u64::MAX),
            with(u64::MAX - 7, 16),
            with(u64::MAX, u64::MAX),
            with(BUFFER, u64::MAX - BUFFER + 1),
            with(8, u64::MAX - 6),
        ];
        all(file, Errno::ERANGE, &args)
    });
    r.case("GRANT_CREATE: without a right", || {
        let none = abi::GrantCreate {
            access: 0,
            ..with(0, 1)
        };
        file.refused(&none, Errno::EINVAL)
    });
    r.case(
        "GRANT_CREATE: every range and right that there may be",
        || {
            for (offset, length) in [
                (0, 1),
                (0, BUFFER),
                (BUFFER - 1, 1),
                (4095, 2),
                (1, BUFFER - 1),
            ] {
                for access in 1..8 {
                    let got = file.accepted(&abi::GrantCreate {
                        access: access << 1,
                        ..with(offset, length)
                    })?;
                    file.destroy(got.handle)?;
                }
            }
            Ok(())
        },
    );
    r.case("GRANT_CREATE: a single use of a queue pair", || {
        let once = abi::GrantCreate {
            flags: abi::GRANT_ONE_SHOT_INV,
            ..with(0, 1)
        };
        file.refused(&once, Errno::EINVAL)?;
        let once = abi::GrantCreate {
            qp: set.idle.handle,
            ..once
        };
        file.destroy(file.accepted(&once)?.handle)
    });
    r.case("GRANT_CREATE: keys differ", || {
        let made: Outcome<Vec<_>> = (0..32).map(|_| file.grant(set.buffer.handle)).collect();
        let made = made?;
        let mut keys: Vec<u32> = made.iter().map(|grant| grant.rkey).collect();
        keys.sort_unstable();
        keys.dedup();
        for grant in &made {
            file.destroy(grant.handle)?;
        }
        equal("keys", keys.len(), made.len())
    });
}

/// All cases of this file.
pub fn run(r: &mut Report) {
    attaching(r);
    let Some(set) = r.need("objects of every kind", Set::new) else {
        return;
    };
    queries(r, &set);
    completion_queues(r, &set);
    queue_pairs(r, &set);
    buffers(r, &set);
    registered(r, &set);
    grants(r, &set);
    r.case("all these numbers changed nothing", || {
        equal("objects", set.file.count("")?, 9)
    });
    r.case("the queue pairs still work after bad numbers", || {
        set.works(3)
    });
}
