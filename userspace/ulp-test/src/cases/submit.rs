// SPDX-License-Identifier: MIT OR Apache-2.0

//! SUBMIT: what is wrong with the call, and with each of its requests.

use crate::file::{array, stopped, Command, File, Set, BUFFER};
use crate::report::{because, check, equal, Outcome, Report};
use crate::sys::{abi, arg, bytes, Area, Wild, PAGE};
use nix::errno::Errno;

/// A request is refused like that, alone and as the seventh of ten; then the first six are posted.
fn bad(set: &Set, want: Errno, wr: abi::Wr) -> Outcome {
    set.file.stops(&[wr], want, 0)?;
    let mut ten = [set.write(); 10];
    for (i, first) in ten[..6].iter_mut().enumerate() {
        // Behind what the others would write.
        first.remote_addr += 64;
        first.user_data = i as u64;
    }
    ten[6] = wr;
    set.file
        .stops(&ten, want, 6)
        .map_err(because("seventh of ten"))?;
    six(set)
}

/// The first six of ten requests complete.
fn six(set: &Set) -> Outcome {
    let done = set.wait(6)?;
    let got: Vec<_> = done.iter().map(|c| (c.user_data, c.status)).collect();
    equal("those before it", got, (0..6).map(|i| (i, 0)).collect())
}

fn bad_ones(set: &Set, want: Errno, wrs: impl IntoIterator<Item = abi::Wr>) -> Outcome {
    for (i, wr) in wrs.into_iter().enumerate() {
        bad(set, want, wr).map_err(because(&format!("number {i}")))?;
    }
    Ok(())
}

/// The call fails like that with a request that is all right, which is not posted. What the module wrote.
fn refused_call(
    set: &Set,
    want: Errno,
    change: impl FnOnce(&mut abi::Submit),
) -> Result<abi::Submit, String> {
    let wrs = array(&[set.write()])?;
    let mut arg = abi::Submit {
        wrs: wrs.at(0),
        nr_wrs: 1,
        wr_size: abi::Wr::SIZE,
        ..abi::Submit::new()
    };
    change(&mut arg);
    let before = set.file.objects()?;
    let (result, out) = set.file.call(&arg);
    equal("result", result, Err(want))?;
    check("a request was posted", out.posted == 0)?;
    equal("objects after a refusal", set.file.objects()?, before)?;
    Ok(out)
}

fn bad_call(set: &Set, want: Errno, change: impl FnOnce(&mut abi::Submit)) -> Outcome {
    refused_call(set, want, change).map(drop)
}

fn calls(r: &mut Report, set: &Set) {
    let file = &set.file;
    r.case("CANCEL: what is refused is not written", || {
        let arg = arg!(Cancel, canceled = 77);
        let (result, out) = set.file.call(&arg);
        equal("result", result, Err(Errno::ENOENT))?;
        equal("canceled", out.canceled, 77)
    });
    r.case("SUBMIT: nothing to do", || {
        let got = file.accepted(&abi::Submit::new())?;
        equal("posted, completed", (got.posted, got.completed), (0, 0))?;
        for wild in Wild::ALL {
            file.accepted(&arg!(Submit, wrs = wild.address()))?;
        }
        Ok(())
    });
    r.case("SUBMIT: too many requests", || {
        let most = file.accepted(&abi::Query::new())?.max_batch;
        let wrs = vec![set.write(); most as usize + 1];
        let (result, out) = file.submit(&wrs, abi::Submit::new())?;
        equal("one more", (result, out.posted), (Err(Errno::E2BIG), 0))?;
        for count in [most + 1, 1 << 16, 1 << 31, u32::MAX] {
            bad_call(set, Errno::E2BIG, |arg| arg.nr_wrs = count)?;
        }
        // As many as there may be are looked at: it is a queue that has no room. Of those that are
        // posted later, as many as have room meanwhile are taken.
        let (result, out) = file.submit(&wrs[..most as usize], abi::Submit::new())?;
        let got = (result, out.stop_error);
        equal("result, stop_error", got, (Ok(()), -(Errno::EAGAIN as i32)))?;
        check("fewer than the queue holds", out.posted >= 64)?;
        let done = set.wait(out.posted as usize)?;
        check("a request failed", done.iter().all(|c| c.status == 0))
    });
    r.case("SUBMIT: wr_size too small", || {
        for size in [0, 1, 4, 8, abi::WR_SIZE_V1 - 1] {
            bad_call(set, Errno::EINVAL, |arg| arg.wr_size = size)
                .map_err(because(&format!("size {size}")))?;
        }
        Ok(())
    });
    r.case("SUBMIT: wr_size too large", || {
        for size in [PAGE as u32 + 1, u32::MAX] {
            bad_call(set, Errno::E2BIG, |arg| arg.wr_size = size)
                .map_err(because(&format!("size {size}")))?;
        }
        Ok(())
    });
    r.case("SUBMIT: larger requests with zeros", || {
        let size = abi::Wr::SIZE as usize;
        for stride in [size + 1, size + 8, 3 * size, PAGE] {
            let area = Area::new(5).map_err(because("mapping memory"))?;
            for i in 0..4 {
                area.put(i * stride, &bytes(&set.write()));
            }
            // Behind the last one it is not the kernel's to look.
            area.put(4 * stride, &[0xa5; 64]);
            let got = file.accepted(&abi::Submit {
                wrs: area.at(0),
                nr_wrs: 4,
                wr_size: stride as u32,
                ..abi::Submit::new()
            })?;
            equal("posted", got.posted, 4)?;
            let done = set.wait(4)?;
            check("a request failed", done.iter().all(|c| c.status == 0))?;
        }
        Ok(())
    });
    r.case("SUBMIT: larger requests without, stop_error", || {
        let size = abi::Wr::SIZE as usize;
        for stride in [size + 1, size + 8, 3 * size] {
            for at in [size, stride - 1] {
                let area = Area::new(1).map_err(because("mapping memory"))?;
                for i in 0..10 {
                    let wr = abi::Wr {
                        user_data: i as u64,
                        ..set.write()
                    };
                    area.put(i * stride, &bytes(&wr));
                }
                area.put(6 * stride + at, &[1]);
                let before = file.handles()?;
                let (result, out) = file.call(&abi::Submit {
                    wrs: area.at(0),
                    nr_wrs: 10,
                    wr_size: stride as u32,
                    ..abi::Submit::new()
                });
                equal("result", result, Err(Errno::E2BIG))?;
                equal("objects after a refusal", file.handles()?, before)?;
                stopped(&out, Errno::E2BIG, 6)?;
                six(set)?;
            }
        }
        Ok(())
    });
    r.case("SUBMIT: requests that cannot be read", || {
        for wild in Wild::ALL {
            bad_call(set, Errno::EFAULT, |arg| arg.wrs = wild.address())
                .map_err(because(&format!("{wild:?}")))?;
        }
        Ok(())
    });
    r.case("SUBMIT: requests up to the end of what is mapped", || {
        let area = Area::new(1).map_err(because("mapping memory"))?;
        let size = abi::Wr::SIZE as usize;
        for i in 1..=6 {
            area.put(area.len() - i * size, &bytes(&set.write()));
        }
        let call = |count: u32| {
            file.call(&abi::Submit {
                wrs: area.at(area.len() - 6 * size),
                nr_wrs: count,
                wr_size: size as u32,
                ..abi::Submit::new()
            })
        };
        let before = file.handles()?;
        let (result, out) = call(10);
        equal("result", result, Err(Errno::EFAULT))?;
        equal("objects after a refusal", file.handles()?, before)?;
        stopped(&out, Errno::EFAULT, 6)?;
        equal("posted of the six", call(6).1.posted, 6)?;
        check(
            "a request failed",
            set.wait(12)?.iter().all(|c| c.status == 0),
        )
    });
    r.case("SUBMIT: timeout_ns", || {
        for timeout_ns in [0, 1, 1 << 63, abi::TIMEOUT_INFINITE] {
            let got = file.accepted(&arg!(Submit, cq = set.cq.handle, timeout_ns))?;
            let what = format!("{timeout_ns}: wait_error and timeout_ns");
            equal(what, (got.wait_error, got.timeout_ns), (0, timeout_ns))?;
        }
        let passed = file.accepted(&abi::Submit {
            cq: set.cq.handle,
            min_complete: 1,
            timeout_ns: 1,
            ..abi::Submit::new()
        })?;
        let want = (-(Errno::ETIME as i32), 0);
        equal(
            "a wait of one nanosecond",
            (passed.wait_error, passed.timeout_ns),
            want,
        )
    });
    r.case("SUBMIT: min_complete without a queue", || {
        for count in [1, 2, u32::MAX] {
            bad_call(set, Errno::EINVAL, |arg| arg.min_complete = count)?;
        }
        Ok(())
    });
    r.case("SUBMIT: min_complete beyond the ring", || {
        for count in [set.cq.entries + 1, 1 << 31, u32::MAX] {
            let out = refused_call(set, Errno::ERANGE, |arg| {
                arg.cq = set.cq.handle;
                arg.min_complete = count;
            })
            .map_err(because(&format!("{count}")))?;
            equal("stop_error when no request is refused", out.stop_error, 0)?;
        }
        let got = file.accepted(&abi::Submit {
            cq: set.cq.handle,
            min_complete: set.cq.entries,
            ..abi::Submit::new()
        })?;
        equal("wait_error", got.wait_error, -(Errno::ETIME as i32))
    });
    r.case(
        "SUBMIT: a struct that cannot be written posts nothing",
        || {
            let wrs = array(&[set.write()])?;
            let area = array(&[abi::Submit {
                wrs: wrs.at(0),
                nr_wrs: 1,
                wr_size: abi::Wr::SIZE,
                ..abi::Submit::new()
            }])?;
            let area = area.read_only().map_err(because("protecting memory"))?;
            let place = crate::sys::Place::In(&area, 0);
            file.refuse(abi::Submit::NR, place, Errno::EFAULT)
        },
    );
}

/// The operands of an atomic.
fn atomic(compare_add: u64, swap: u64) -> abi::WrArgs {
    abi::WrAtomic { compare_add, swap }.into()
}

/// A request of every opcode that is all right.
fn right_ones(set: &Set) -> [(&'static str, abi::Wr); 9] {
    let write = set.write();
    let send = abi::Wr {
        opcode: abi::WR_SEND,
        remote_addr: 0,
        rkey: 0,
        ..write
    };
    let atomic = abi::Wr {
        opcode: abi::WR_ATOMIC_FETCH_AND_ADD,
        sge: set.sge(0, 8),
        args: atomic(1, 0),
        ..write
    };
    let with = |opcode: u8, wr: abi::Wr| abi::Wr { opcode, ..wr };
    [
        ("RDMA_WRITE", write),
        (
            "RDMA_WRITE_WITH_IMM",
            with(abi::WR_RDMA_WRITE_WITH_IMM, write),
        ),
        ("SEND", send),
        ("SEND_WITH_IMM", with(abi::WR_SEND_WITH_IMM, send)),
        ("SEND_WITH_INV", with(abi::WR_SEND_WITH_INV, send)),
        ("RDMA_READ", with(abi::WR_RDMA_READ, write)),
        (
            "ATOMIC_CMP_AND_SWP",
            with(abi::WR_ATOMIC_CMP_AND_SWP, atomic),
        ),
        ("ATOMIC_FETCH_AND_ADD", atomic),
        ("RECV", set.recv()),
    ]
}

/// Those that the device has: all, where it does not say.
fn listed_ones(set: &Set) -> impl Iterator<Item = (&'static str, abi::Wr)> {
    let query = set.file.accepted(&abi::DeviceQuery::new());
    let ops = query.map_or(u64::MAX, |query| query.rc_send_ops);
    right_ones(set)
        .into_iter()
        .filter(move |(_, wr)| wr.opcode == abi::WR_RECV || ops & (1 << wr.opcode) != 0)
}

/// Which flags an opcode has.
fn flags_of(opcode: u8) -> u16 {
    const ANY: u16 = abi::SEND_FENCE | abi::SEND_SIGNALED;
    match opcode {
        abi::WR_RECV => 0,
        abi::WR_RDMA_WRITE => ANY | abi::SEND_INLINE,
        abi::WR_RDMA_READ | abi::WR_ATOMIC_CMP_AND_SWP | abi::WR_ATOMIC_FETCH_AND_ADD => ANY,
        _ => ANY | abi::SEND_INLINE | abi::SEND_SOLICITED,
    }
}

fn requests(r: &mut Report, set: &Set) {
    let file = &set.file;
    let write = set.write();
    r.case("wr.opcode: unknown", || {
        let unknown = (16..=255).filter(|opcode| *opcode != abi::WR_RECV);
        bad_ones(
            set,
            Errno::EINVAL,
            unknown.map(|opcode| abi::Wr { opcode, ..write }),
        )
    });
    // LOCAL_INV, BIND_MW, TSO, READ_WITH_INV, masked atomics, FLUSH, ATOMIC_WRITE of the enum.
    r.case("wr.opcode: known to verbs, not offered", || {
        let others = [7, 8, 10, 11, 12, 13, 14, 15];
        bad_ones(
            set,
            Errno::EOPNOTSUPP,
            others.map(|opcode| abi::Wr { opcode, ..write }),
        )
    });
    r.case("wr.opcode: what DEVICE_QUERY does not list", || {
        let ops = file.accepted(&abi::DeviceQuery::new())?.rc_send_ops;
        let on_adapter = std::env::var("ULP_HCA").is_ok_and(|name| !name.is_empty());
        for (name, wr) in right_ones(set) {
            if wr.opcode == abi::WR_RECV {
                continue;
            }
            // Of the devices on which this runs, Soft-RoCE and mlx4, the latter alone lacks one.
            let has = wr.opcode != abi::WR_SEND_WITH_INV || !on_adapter;
            equal(
                format!("{name} is listed"),
                ops & (1 << wr.opcode) != 0,
                has,
            )?;
            if !has {
                bad(set, Errno::EOPNOTSUPP, wr).map_err(because(name))?;
            }
        }
        Ok(())
    });
    for (name, right) in listed_ones(set) {
        r.case(format!("{name}: flags that it has not"), || {
            for bit in 0..16 {
                if flags_of(right.opcode) & (1 << bit) == 0 {
                    let mut wr = right;
                    wr.flags |= 1 << bit;
                    bad(set, Errno::EINVAL, wr).map_err(because(&format!("bit {bit}")))?;
                }
            }
            Ok(())
        });
        r.case(format!("{name}: fields that it has not"), || {
            let remote = !matches!(
                right.opcode,
                abi::WR_RECV | abi::WR_SEND | abi::WR_SEND_WITH_IMM | abi::WR_SEND_WITH_INV
            );
            let imm = matches!(
                right.opcode,
                abi::WR_RDMA_WRITE_WITH_IMM | abi::WR_SEND_WITH_IMM | abi::WR_SEND_WITH_INV
            );
            let is_atomic = matches!(
                right.opcode,
                abi::WR_ATOMIC_CMP_AND_SWP | abi::WR_ATOMIC_FETCH_AND_ADD
            );
            let mut wrs = Vec::new();
            let mut no = |change: fn(&mut abi::Wr)| {
                let mut wr = right;
                change(&mut wr);
                wrs.push(wr);
            };
            if !remote {
                no(|wr| wr.remote_addr = 8);
                no(|wr| wr.remote_addr = 1 << 63);
                no(|wr| wr.rkey = 1);
                no(|wr| wr.rkey = 1 << 31);
            }
            if !imm {
                no(|wr| wr.imm_data = 1);
                no(|wr| wr.imm_data = 1 << 31);
            }
            if right.opcode == abi::WR_ATOMIC_FETCH_AND_ADD {
                no(|wr| wr.args = atomic(1, 1));
                no(|wr| wr.args = atomic(1, 1 << 63));
            }
            if !is_atomic {
                no(|wr| wr.args = atomic(1, 0));
                no(|wr| wr.args = atomic(1 << 63, 0));
                no(|wr| wr.args = atomic(0, 1));
                no(|wr| wr.args = atomic(0, 1 << 63));
            }
            bad_ones(set, Errno::EINVAL, wrs)
        });
        r.case(format!("{name}: outside of the buffer"), || {
            let len = right.sge.length;
            let offsets = [
                BUFFER - u64::from(len) + 1,
                BUFFER,
                BUFFER + 1,
                1 << 32,
                1 << 63,
                u64::MAX - u64::from(len),
                u64::MAX - u64::from(len) + 1,
                u64::MAX - 7,
                u64::MAX,
            ];
            bad_ones(
                set,
                Errno::ERANGE,
                offsets.map(|offset| abi::Wr {
                    sge: abi::Sge {
                        offset,
                        ..right.sge
                    },
                    ..right
                }),
            )
        });
        r.case(format!("{name}: too many elements"), || {
            let list = array(&vec![set.sge(0, 8); 256])?;
            for num_sge in [5, 16, 17, 128, 255] {
                // An atomic has one.
                let atomic = matches!(
                    right.opcode,
                    abi::WR_ATOMIC_CMP_AND_SWP | abi::WR_ATOMIC_FETCH_AND_ADD
                );
                let want = if atomic && num_sge <= 16 {
                    Errno::EINVAL
                } else {
                    Errno::E2BIG
                };
                let wr = abi::Wr {
                    num_sge,
                    sge: abi::Sge {
                        offset: list.at(0),
                        ..abi::Sge::default()
                    },
                    ..right
                };
                bad(set, want, wr).map_err(because(&format!("{num_sge} elements")))?;
            }
            Ok(())
        });
        r.case(format!("{name}: elements that make no sense"), || {
            // None, and one is described; an array, and one is described.
            let mut wrs = Vec::new();
            for sge in [set.sge(0, 0), set.sge(1, 0), set.sge(0, 1)] {
                wrs.push(abi::Wr {
                    num_sge: 0,
                    sge,
                    ..right
                });
            }
            let list = array(&[set.sge(0, 4); 4])?;
            for (buffer, length) in [(set.buffer.handle, 0), (0, 4), (set.buffer.handle, 4)] {
                wrs.push(abi::Wr {
                    num_sge: 2,
                    sge: abi::Sge {
                        buffer,
                        length,
                        offset: list.at(0),
                    },
                    ..right
                });
            }
            bad_ones(set, Errno::EINVAL, wrs)
        });
    }
    lists_and_inline(r, set);
    r.case("wr: atomics of other sizes and places", || {
        let mut wrs = Vec::new();
        for (_, right) in &right_ones(set)[6..8] {
            for length in [0, 1, 4, 7, 9, 16] {
                wrs.push(abi::Wr {
                    sge: set.sge(0, length),
                    ..*right
                });
            }
            for odd in [1, 2, 4, 7] {
                wrs.push(abi::Wr {
                    remote_addr: right.remote_addr + odd,
                    ..*right
                });
            }
        }
        bad_ones(set, Errno::EINVAL, wrs)
    });
    r.case("wr: a buffer of another domain", || {
        let pd = file.pd()?;
        let other = file.buffer(pd, 4096)?.handle;
        let mut wr = write;
        wr.sge.buffer = other;
        bad(set, Errno::EXDEV, wr)?;
        let mut wr = set.recv();
        wr.sge.buffer = other;
        bad(set, Errno::EXDEV, wr)?;
        file.destroy(other)?;
        file.destroy(pd)
    });
}

fn lists_and_inline(r: &mut Report, set: &Set) {
    let write = set.write();
    let listed = |at: u64, num_sge: u8| abi::Wr {
        num_sge,
        sge: abi::Sge {
            offset: at,
            ..abi::Sge::default()
        },
        ..write
    };
    let inlined = |offset: u64, length: u32| abi::Wr {
        flags: abi::SEND_INLINE | abi::SEND_SIGNALED,
        sge: abi::Sge {
            buffer: 0,
            length,
            offset,
        },
        ..write
    };
    r.case("wr: lists of elements that cannot be read", || {
        for wild in Wild::ALL {
            bad(set, Errno::EFAULT, listed(wild.address(), 2))
                .map_err(because(&format!("{wild:?}")))?;
        }
        let area = Area::new(1).map_err(because("mapping memory"))?;
        let end = area.at(area.len());
        bad_ones(
            set,
            Errno::EFAULT,
            [end, end - 16, end - 31].map(|at| listed(at, 2)),
        )?;
        area.put(area.len() - 32, &bytes(&set.sge(0, 8)));
        area.put(area.len() - 16, &bytes(&set.sge(8, 8)));
        set.file.post(&[listed(end - 32, 2)])?;
        equal("status", set.wait(1)?[0].status, 0)
    });
    r.case("wr: the last element of a list is outside", || {
        for bad_one in [set.sge(BUFFER - 7, 8), set.sge(u64::MAX - 3, 8)] {
            let list = array(&[set.sge(0, 8), set.sge(8, 8), bad_one])?;
            bad(set, Errno::ERANGE, listed(list.at(0), 3))?;
        }
        Ok(())
    });
    r.case("wr: more bytes than a message may have", || {
        let too_long = abi::Wr {
            sge: set.sge(0, (1 << 31) + 1),
            ..write
        };
        bad(set, Errno::EMSGSIZE, too_long)?;
        let list = array(&[set.sge(0, 1 << 30), set.sge(0, 1 << 30), set.sge(0, 1)])?;
        bad(set, Errno::EMSGSIZE, listed(list.at(0), 3))?;
        // A sum that is over 32 bits.
        let list = array(&[set.sge(0, 1 << 31), set.sge(0, 1 << 31), set.sge(0, 64)])?;
        bad(set, Errno::EMSGSIZE, listed(list.at(0), 3))
    });
    r.case("wr: more inline bytes than the queue pair takes", || {
        let most = set.file.query(set.a.handle)?.max_inline;
        let area = Area::new(2).map_err(because("mapping memory"))?;
        for length in [most + 1, 513, 4096, 1 << 20, u32::MAX] {
            bad(set, Errno::EMSGSIZE, inlined(area.at(0), length))
                .map_err(because(&format!("{length} bytes")))?;
        }
        let mut from_buffer = inlined(0, most + 1);
        from_buffer.sge.buffer = set.buffer.handle;
        bad(set, Errno::EMSGSIZE, from_buffer).map_err(because("from a buffer"))?;
        let list = array(&[inlined(area.at(0), most).sge, inlined(area.at(0), 1).sge])?;
        let mut both = listed(list.at(0), 2);
        both.flags |= abi::SEND_INLINE;
        bad(set, Errno::EMSGSIZE, both).map_err(because("in two pieces"))?;
        let zeros = match most {
            0 => abi::Wr {
                sge: set.sge(2 * PAGE as u64, 64),
                ..write
            },
            most => inlined(area.at(0), most),
        };
        set.file.post(&[zeros])?;
        equal("status", set.wait(1)?[0].status, 0)
    });
    r.case("wr: inline data that cannot be read", || {
        for wild in Wild::ALL {
            bad(set, Errno::EFAULT, inlined(wild.address(), 8))
                .map_err(because(&format!("{wild:?}")))?;
        }
        let area = Area::new(1).map_err(because("mapping memory"))?;
        let end = area.at(area.len());
        bad_ones(
            set,
            Errno::EFAULT,
            [end, end - 1, end - 7].map(|at| inlined(at, 8)),
        )?;
        if set.file.query(set.a.handle)?.max_inline == 0 {
            return Ok(());
        }
        set.file.post(&[inlined(end - 8, 8)])?;
        equal("status", set.wait(1)?[0].status, 0)
    });
}

fn states(r: &mut Report, set: &Set) {
    let file = &set.file;
    for (name, state, recv, send) in [
        ("RESET", abi::QPS_RESET, false, false),
        ("INIT", abi::QPS_INIT, true, false),
        ("RTR", abi::QPS_RTR, true, false),
        ("RTS", abi::QPS_RTS, true, true),
        ("ERR", abi::QPS_ERR, true, true),
    ] {
        r.case(format!("SUBMIT: requests in state {name}"), || {
            let (pd, cq) = (set.pd, file.cq(64)?);
            let qp = file.qp(pd, cq.handle)?.handle;
            file.bring(qp, state, set.a.qp_num)?;
            let receive = abi::Wr { qp, ..set.recv() };
            if recv {
                file.post(&[receive])?;
            } else {
                bad(set, Errno::ENOTCONN, receive).map_err(because("a receive"))?;
            }
            for (name, wr) in listed_ones(set) {
                if !send && wr.opcode != abi::WR_RECV {
                    bad(set, Errno::ENOTCONN, abi::Wr { qp, ..wr }).map_err(because(name))?;
                }
            }
            file.destroy(qp)?;
            file.destroy(cq.handle)
        });
    }
    r.case("SUBMIT: a full queue", || {
        let cq = file.cq(64)?;
        let mut arg = File::qp_args(set.pd, cq.handle);
        (arg.max_send_wr, arg.max_recv_wr) = (8, 8);
        let qp = file.accepted(&arg)?;
        file.bring(qp.handle, abi::QPS_INIT, 0)?;
        let receive = abi::Wr {
            qp: qp.handle,
            ..set.recv()
        };
        let depth = file.query(qp.handle)?.max_recv_wr;
        let wrs = vec![receive; depth as usize + 1];
        file.stops(&wrs, Errno::EAGAIN, depth)?;
        file.stops(&wrs[..1], Errno::EAGAIN, 0)?;
        file.destroy(qp.handle)?;
        file.destroy(cq.handle)
    });
}

/// All cases of this file.
pub fn run(r: &mut Report) {
    let Some(set) = r.need("objects of every kind", Set::new) else {
        return;
    };
    set.memory.put(PAGE, &[0; 64]);
    calls(r, &set);
    set.memory.put(0, &[0x5a; 64]);
    set.memory.put(PAGE, &[0; 64]);
    r.case("the queue pairs work before bad requests", || set.works(5));
    set.memory.put(0, &[0xc3; 64]);
    requests(r, &set);
    states(r, &set);
    r.case(
        "none of the bad requests and those after them was posted",
        || {
            std::thread::sleep(std::time::Duration::from_millis(100));
            equal("completions", set.ring.reap().len(), 0)?;
            let info = file_in_flight(&set.file, set.a.handle)?;
            equal("in flight", info, (0, 0))
        },
    );
    r.case("nor did one of them write", || {
        // Those that were right did, the last of them zeros.
        let now = set.memory.get(PAGE, 64);
        check(
            "bytes of a refused write",
            now.iter().all(|byte| *byte == 0),
        )
    });
    r.case("all these requests left nothing", || {
        equal("objects", set.file.count("")?, 9)
    });
    r.case("the queue pairs still work after bad requests", || {
        set.works(6)
    });
}

fn file_in_flight(file: &File, qp: u32) -> Outcome<(u32, u32)> {
    let info = file.query(qp)?;
    Ok((info.sends_in_flight, info.recvs_in_flight))
}
