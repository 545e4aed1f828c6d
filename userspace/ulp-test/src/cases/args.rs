// SPDX-License-Identifier: MIT OR Apache-2.0

//! What holds for every command: numbers, sizes, flags, padding, addresses, and before ATTACH.

use super::matrix::Member;
use crate::annotations::MEMBERS;
use crate::file::{Command, File, Set};
use crate::report::{because, check, equal, Outcome, Report};
use crate::sys::{abi, bytes, value, Area, Place, Plain, Wild, PAGE};
use nix::errno::Errno;
use std::mem::offset_of;
use std::os::fd::AsRawFd;

/// A file to issue a command on: one that was opened for it, or the set's.
enum On {
    New(Box<File>),
    Set,
}

/// An argument, and where to issue it.
type Call = (On, Vec<u8>);

/// A command with an argument that works.
pub struct Probe {
    pub name: &'static str,
    nr: u32,
    size: usize,
    /// The size of its first version.
    first: usize,
    /// Its members that the kernel reads.
    pub members: &'static [Member],
    /// Where it writes the handle of a new object.
    handle: Option<usize>,
    /// Whether it writes anything at all.
    writes: bool,
    /// Whether it needs a device.
    attached: bool,
    /// The errno with which it ends although its argument is right.
    ends: Option<Errno>,
    /// The argument, with what has to be there for it.
    make: fn(&Set) -> Outcome<Call>,
}

/// The members of a command that the kernel reads.
fn members(command: &str) -> &'static [Member] {
    MEMBERS
        .iter()
        .find(|(name, _)| *name == command)
        .map_or(&[], |(_, members)| members)
}

macro_rules! probe {
    ($ty:ident, $make:expr) => {
        Probe {
            name: abi::$ty::NAME,
            nr: abi::$ty::NR,
            size: size_of::<abi::$ty>(),
            first: size_of::<abi::$ty>(),
            members: members(abi::$ty::NAME),
            handle: None,
            writes: true,
            attached: true,
            ends: None,
            make: $make,
        }
    };
}

fn on_set<C: Command + Plain>(arg: &C) -> Outcome<Call> {
    Ok((On::Set, bytes(arg)))
}

/// Every command.
pub fn probes() -> Vec<Probe> {
    vec![
        Probe {
            attached: false,
            ..probe!(Query, |_| on_set(&abi::Query::new()))
        },
        Probe {
            attached: false,
            ..probe!(DeviceList, |_| on_set(&abi::DeviceList::new()))
        },
        Probe {
            attached: false,
            ..probe!(Attach, |_| {
                let file = Box::new(File::open()?);
                Ok((On::New(file), bytes(&abi::Attach::new())))
            })
        },
        Probe {
            first: abi::DEVICE_QUERY_SIZE_V1 as usize,
            ..probe!(DeviceQuery, |_| on_set(&abi::DeviceQuery::new()))
        },
        probe!(PortQuery, |set| on_set(&abi::PortQuery {
            port: set.file.port,
            ..abi::PortQuery::new()
        })),
        probe!(GidQuery, |set| on_set(&abi::GidQuery {
            port: set.file.port,
            ..abi::GidQuery::new()
        })),
        probe!(PkeyQuery, |set| on_set(&abi::PkeyQuery {
            port: set.file.port,
            ..abi::PkeyQuery::new()
        })),
        Probe {
            handle: Some(offset_of!(abi::PdCreate, handle)),
            ..probe!(PdCreate, |_| on_set(&abi::PdCreate::new()))
        },
        Probe {
            handle: Some(offset_of!(abi::CqCreate, handle)),
            ..probe!(CqCreate, |_| on_set(&abi::CqCreate {
                entries: 4,
                ..abi::CqCreate::new()
            }))
        },
        Probe {
            handle: Some(offset_of!(abi::QpCreate, handle)),
            ..probe!(QpCreate, |set| on_set(&File::qp_args(
                set.pd,
                set.cq.handle
            )))
        },
        probe!(QpModify, |set| {
            let mut arg = set.file.modify_args(set.idle.handle, abi::QPS_INIT, 0);
            arg.attr_mask = abi::QP_STATE | abi::QP_ACCESS_FLAGS;
            on_set(&arg)
        }),
        probe!(QpQuery, |set| on_set(&abi::QpQuery {
            qp: set.a.handle,
            ..abi::QpQuery::new()
        })),
        Probe {
            handle: Some(offset_of!(abi::BufferCreate, handle)),
            ..probe!(BufferCreate, |set| on_set(&abi::BufferCreate {
                pd: set.pd,
                node: abi::NODE_ANY,
                length: 1,
                ..abi::BufferCreate::new()
            }))
        },
        Probe {
            handle: Some(offset_of!(abi::BufferRegister, handle)),
            ..probe!(BufferRegister, |set| on_set(&File::register_args(set.pd)))
        },
        probe!(BufferQuery, |set| on_set(&abi::BufferQuery {
            buffer: set.buffer.handle,
            ..abi::BufferQuery::new()
        })),
        probe!(GrantQuery, |set| on_set(&abi::GrantQuery {
            grant: set.grant.handle,
            ..abi::GrantQuery::new()
        })),
        Probe {
            handle: Some(offset_of!(abi::GrantCreate, handle)),
            ..probe!(GrantCreate, |set| on_set(&File::grant_args(
                set.buffer.handle
            )))
        },
        Probe {
            handle: Some(offset_of!(abi::AhCreate, handle)),
            ..probe!(AhCreate, |set| on_set(&set.file.ah_args(set.pd)))
        },
        Probe {
            handle: Some(offset_of!(abi::SrqCreate, handle)),
            ..probe!(SrqCreate, |set| on_set(&File::srq_args(
                set.pd,
                set.cq.handle
            )))
        },
        Probe {
            writes: false,
            ..probe!(SrqModify, |set| on_set(&abi::SrqModify {
                srq: set.srq.handle,
                limit: 3,
                ..abi::SrqModify::new()
            }))
        },
        probe!(SrqQuery, |set| on_set(&abi::SrqQuery {
            srq: set.srq.handle,
            ..abi::SrqQuery::new()
        })),
        Probe {
            writes: false,
            ..probe!(Destroy, |set| on_set(&abi::Destroy {
                handle: set.file.pd()?,
                ..abi::Destroy::new()
            }))
        },
        probe!(Submit, |set| on_set(&abi::Submit {
            cq: set.cq.handle,
            ..abi::Submit::new()
        })),
        Probe {
            ..probe!(Cancel, |set| on_set(&abi::Cancel {
                queue: set.a.handle,
                user_data: 1 << 63,
                ..abi::Cancel::new()
            }))
        },
        Probe {
            handle: Some(offset_of!(abi::BufferImport, handle)),
            ..probe!(BufferImport, |set| on_set(&abi::BufferImport {
                pd: set.pd,
                fd: set.dma_buf.as_ref().map_or(-1, AsRawFd::as_raw_fd),
                ..abi::BufferImport::new()
            }))
        },
        Probe {
            handle: Some(offset_of!(abi::Listen, handle)),
            ..probe!(Listen, |set| on_set(&set.file.listen_args()?))
        },
        // No request comes, and there is no time to wait for one.
        Probe {
            ends: Some(Errno::ETIME),
            ..probe!(GetRequest, |set| on_set(&abi::GetRequest {
                listener: set.listener,
                ..abi::GetRequest::new()
            }))
        },
        // The connection has failed, since nobody listens.
        Probe {
            ends: Some(Errno::ECONNREFUSED),
            ..probe!(Accept, |set| on_set(&abi::Accept {
                request: set.connection,
                qp: set.spare,
                ..abi::Accept::new()
            }))
        },
        Probe {
            writes: false,
            ends: Some(Errno::ENOTCONN),
            ..probe!(Reject, |set| on_set(&abi::Reject {
                request: set.connection,
                ..abi::Reject::new()
            }))
        },
        Probe {
            handle: Some(offset_of!(abi::Connect, handle)),
            ..probe!(Connect, |set| on_set(&set.file.connect_args(set.spare)?))
        },
        Probe {
            ends: Some(Errno::ECONNREFUSED),
            ..probe!(ConnWait, |set| on_set(&abi::ConnWait {
                conn: set.connection,
                ..abi::ConnWait::new()
            }))
        },
        Probe {
            ends: Some(Errno::ENOTCONN),
            ..probe!(Disconnect, |set| on_set(&abi::Disconnect {
                conn: set.connection,
                ..abi::Disconnect::new()
            }))
        },
        probe!(ConnQuery, |set| on_set(&abi::ConnQuery {
            conn: set.connection,
            ..abi::ConnQuery::new()
        })),
        Probe {
            writes: false,
            ..probe!(CqEventfd, |set| on_set(&abi::CqEventfd {
                cq: set.cq.handle,
                fd: -1,
                ..abi::CqEventfd::new()
            }))
        },
    ]
}

fn area(count: usize) -> Outcome<Area> {
    Area::new(count).map_err(because("mapping memory"))
}

fn with_size(bytes: &[u8], size: u32) -> Vec<u8> {
    let mut out = bytes.to_vec();
    out[..4].copy_from_slice(&size.to_ne_bytes());
    out
}

impl Probe {
    /// The command at `place` succeeds, and leaves no more than it made.
    fn accept(&self, file: &File, area: &Area, offset: usize) -> Outcome {
        let before = file.count("")?;
        let got = file.fd().ioctl(self.nr, Place::In(area, offset));
        equal("result", got, self.ends.map_or(Ok(()), Err))?;
        if let Some(handle) = self.handle {
            let handle = value::<u32>(&area.get(offset + handle, 4));
            equal("objects", file.count("")?, before + 1)?;
            equal("top bit of the handle", handle >> 31, 0)?;
            file.destroy(handle)?;
        }
        Ok(())
    }

    /// Makes an argument, has `wrong` try wrong ones, and then issues it as it is: it was right.
    pub fn try_all(&self, set: &Set, wrong: impl FnOnce(&File, &[u8]) -> Outcome) -> Outcome {
        let (on, right) = (self.make)(set)?;
        let file = match &on {
            On::New(file) => file,
            On::Set => &set.file,
        };
        wrong(file, &right)?;
        let area = area(1)?;
        area.put(0, &right);
        let last = self.accept(file, &area, 0);
        last.map_err(because("in the end, as it should be"))
    }

    fn refuse(&self, file: &File, area: &Area, bytes: &[u8], want: Errno) -> Outcome {
        area.put(0, bytes);
        file.refuse(self.nr, Place::In(area, 0), want)
    }

    /// The command is refused like that, and changes nothing.
    pub fn refused(&self, file: &File, bytes: &[u8], want: Errno) -> Outcome {
        self.refuse(file, &area(1)?, bytes, want)
    }

    fn too_small(&self, set: &Set) -> Outcome {
        self.try_all(set, |file, right| {
            let area = area(1)?;
            for size in 0..self.first as u32 {
                self.refuse(file, &area, &with_size(right, size), Errno::EINVAL)
                    .map_err(because(&format!("size {size}")))?;
            }
            Ok(())
        })
    }

    fn with_sizes(&self, set: &Set, sizes: impl IntoIterator<Item = usize>) -> Outcome {
        for size in sizes {
            let what = format!("size {size}");
            let (on, right) = (self.make)(set)?;
            let file = match &on {
                On::New(file) => file,
                On::Set => &set.file,
            };
            let area = area(2)?;
            area.put(0, &with_size(&right, size as u32));
            // What is behind the struct is not the kernel's to look at.
            area.put(size, &[0xa5; 64]);
            self.accept(file, &area, 0).map_err(because(&what))?;
            equal(&what, value::<u32>(&area.get(0, 4)), size as u32)?;
            equal(&what, area.get(size, 64), vec![0xa5; 64])?;
            let tail = area.get(self.size, size.saturating_sub(self.size));
            check("the tail was written to", tail.iter().all(|b| *b == 0))?;
        }
        Ok(())
    }

    fn tail_not_zero(&self, set: &Set) -> Outcome {
        self.try_all(set, |file, right| {
            for size in [self.size + 1, self.size + 8, 1024, PAGE] {
                for at in [self.size, size - 1] {
                    let area = area(2)?;
                    area.put(at, &[0x80]);
                    area.put(0, &with_size(right, size as u32));
                    file.refuse(self.nr, Place::In(&area, 0), Errno::E2BIG)
                        .map_err(because(&format!("size {size}, byte {at} set")))?;
                }
            }
            Ok(())
        })
    }

    fn over_a_page(&self, set: &Set) -> Outcome {
        self.try_all(set, |file, right| {
            let area = area(4)?;
            for size in [PAGE as u32 + 1, 2 * PAGE as u32, 1 << 31, u32::MAX] {
                self.refuse(file, &area, &with_size(right, size), Errno::E2BIG)
                    .map_err(because(&format!("size {size:#x}")))?;
            }
            Ok(())
        })
    }

    /// What the command returned can be passed in again.
    fn again(&self, set: &Set) -> Outcome {
        let (_, right) = (self.make)(set)?;
        let area = area(1)?;
        area.put(0, &right);
        self.accept(&set.file, &area, 0)?;
        self.accept(&set.file, &area, 0)
    }

    fn wild_addresses(&self, set: &Set) -> Outcome {
        self.try_all(set, |file, right| {
            for wild in Wild::ALL {
                file.refuse(self.nr, Place::Wild(wild), Errno::EFAULT)
                    .map_err(because(&format!("{wild:?}")))?;
            }
            // The struct runs over the end of what is mapped, early or late.
            let area = area(1)?;
            for bytes in [0, 1, 3, 4, 5, 8, self.size / 2, self.size - 1] {
                let offset = area.len() - bytes;
                area.put(offset, right);
                file.refuse(self.nr, Place::In(&area, offset), Errno::EFAULT)
                    .map_err(because(&format!("{bytes} bytes before the end")))?;
            }
            // All that is known is there, what the size promises is not.
            let offset = area.len() - self.size;
            area.put(offset, &with_size(right, self.size as u32 + 8));
            file.refuse(self.nr, Place::In(&area, offset), Errno::EFAULT)
                .map_err(because("a tail that is not mapped"))
        })
    }

    fn cannot_be_written(&self, set: &Set) -> Outcome {
        self.try_all(set, |file, right| {
            let area = area(1)?;
            area.put(0, right);
            let area = area.read_only().map_err(because("protecting memory"))?;
            let place = Place::In(&area, 0);
            if self.writes {
                return file.refuse(self.nr, place, Errno::EFAULT);
            }
            Ok(())
        })?;
        if self.writes {
            return Ok(());
        }
        // One that writes nothing has no need of that.
        let (on, right) = (self.make)(set)?;
        let file = match &on {
            On::New(file) => file,
            On::Set => &set.file,
        };
        let area = area(1)?;
        area.put(0, &right);
        let area = area.read_only().map_err(because("protecting memory"))?;
        self.accept(file, &area, 0)
            .map_err(because("in memory that cannot be written"))
    }

    fn odd_places(&self, set: &Set) -> Outcome {
        let area = area(1)?;
        for offset in [area.len() - self.size, 1, 3, PAGE / 2 + 7] {
            let (on, right) = (self.make)(set)?;
            let file = match &on {
                On::New(file) => file,
                On::Set => &set.file,
            };
            area.put(offset, &right);
            self.accept(file, &area, offset)
                .map_err(because(&format!("at {offset} of a page")))?;
        }
        Ok(())
    }
}

/// Numbers that are no command of ours.
fn unknown_numbers(file: &File) -> Outcome {
    let known: Vec<u32> = probes().iter().map(|probe| probe.nr).collect();
    let area = area(1)?;
    // Were it one, its struct would be too small.
    for magic in [0xbe, 0xbf, 0xc0] {
        for nr in 0..=0xff {
            let cmd = (magic << 8) | nr;
            if !known.contains(&cmd) {
                file.refuse(cmd, Place::In(&area, 0), Errno::ENOTTY)
                    .map_err(because(&format!("{cmd:#x}")))?;
            }
        }
    }
    Ok(())
}

/// The same numbers with a direction or a size, as `_IOWR` would have it.
fn other_encodings(set: &Set) -> Outcome {
    for probe in probes() {
        probe.try_all(set, |file, right| {
            let area = area(1)?;
            area.put(0, right);
            for bits in [
                1 << 30,
                2 << 30,
                3 << 30,
                (probe.size as u32) << 16,
                (3 << 30) | ((probe.size as u32) << 16),
                1 << 16,
            ] {
                file.refuse(probe.nr | bits, Place::In(&area, 0), Errno::ENOTTY)
                    .map_err(because(&format!("{} with {bits:#x}", probe.name)))?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// All cases of this file.
pub fn run(r: &mut Report) {
    let Some(set) = r.need("objects of every kind", Set::complete) else {
        return;
    };
    r.case("numbers that are no command", || unknown_numbers(&set.file));
    r.case("numbers that are no command, before ATTACH", || {
        unknown_numbers(&File::open()?)
    });
    r.case("numbers with a direction or a size", || {
        other_encodings(&set)
    });
    for probe in &probes() {
        let name = probe.name;
        r.case(format!("{name}: a size that is too small"), || {
            probe.too_small(&set)
        });
        if probe.first < probe.size {
            r.case(format!("{name}: a struct of an earlier version"), || {
                probe.with_sizes(&set, probe.first..probe.size)
            });
        }
        r.case(format!("{name}: a larger struct with zeros"), || {
            let sizes = [1, 4, 8].map(|more| probe.size + more);
            probe.with_sizes(&set, sizes.into_iter().chain([1024, PAGE]))
        });
        r.case(format!("{name}: a larger struct without"), || {
            probe.tail_not_zero(&set)
        });
        r.case(format!("{name}: a size over a page"), || {
            probe.over_a_page(&set)
        });
        if name.ends_with("QUERY") || name.ends_with("LIST") {
            r.case(format!("{name}: with what it returned"), || {
                probe.again(&set)
            });
        }
        r.case(format!("{name}: addresses that cannot be read"), || {
            probe.wild_addresses(&set)
        });
        if probe.ends.is_none() {
            r.case(format!("{name}: a struct that cannot be written"), || {
                probe.cannot_be_written(&set)
            });
        }
        r.case(format!("{name}: at the end of a page, and odd"), || {
            probe.odd_places(&set)
        });
        if probe.attached {
            r.case(format!("{name}: before ATTACH"), || {
                let (_, right) = (probe.make)(&set)?;
                let (file, area) = (File::open()?, area(1)?);
                probe.refuse(&file, &area, &right, Errno::ENXIO)
            });
        }
    }
    // The DESTROY before ATTACH left its protection domain behind.
    r.case("the right commands among them left nothing", || {
        let kinds = ["pd", "cq", "qp", "buffer", "grant"];
        let counts: Outcome<Vec<_>> = kinds.iter().map(|kind| set.file.count(kind)).collect();
        equal("objects", counts?, vec![2, 1, 4, 1, 1])
    });
    r.case("and the queue pairs still work", || set.works(1));
}
