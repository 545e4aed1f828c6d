// SPDX-License-Identifier: MIT OR Apache-2.0

//! `ulp-test rights`: what a peer may not do, it cannot do.
//!
//! IBA 9.7.4.1.5 has the responder answer a wrong key, a range outside of it and a right that the
//! key lacks with the NAK "remote access error", and nothing of such a request may be carried out.
//! A right that the responder's queue pair lacks is a NAK too; devices differ in which: Soft-RoCE
//! and others say "invalid request".

use crate::hosts::{connect, pattern, Host};
use crate::report::{because, check, equal, hang, Outcome, Report};
use rust_ulp::qp::Rc;
use rust_ulp::wr::{CompareSwap, FetchAdd, Read, Recv, Write};
use rust_ulp::{Access, Buffer, Error, Grant, Qp, RemoteSlice, Status};

/// Bytes of the peer's buffer.
const SIZE: usize = 16 * 4096;
/// Where the granted part of it begins, and how long it is: pages before and behind it are not.
const FROM: usize = 4 * 4096 + 1024;
const LEN: usize = 8 * 4096;

/// What the peer answers when a key does not allow it.
const REFUSED: &[Status] = &[Status::RemoteAccess];
/// What it answers when its queue pair does not.
const NOT_BY_QP: &[Status] = &[Status::RemoteAccess, Status::RemoteInvalidRequest];

/// What is tried.
#[derive(Clone, Copy, Debug)]
enum Op {
    Write,
    Read,
    Swap,
    Add,
}

const OPS: [Op; 4] = [Op::Write, Op::Read, Op::Swap, Op::Add];

impl Op {
    fn right(self) -> Access {
        match self {
            Self::Write => Access::REMOTE_WRITE,
            Self::Read => Access::REMOTE_READ,
            Self::Swap | Self::Add => Access::REMOTE_ATOMIC,
        }
    }
}

struct Rights {
    here: Host,
    there: Host,
    local: Buffer,
    remote: Buffer,
    all: Grant,
    /// Two queue pairs that have nothing to do with it, and their memory.
    other: [Qp<Rc>; 2],
    other_local: Buffer,
    other_remote: Buffer,
    other_grant: Grant,
}

/// The same memory, without what the grant says of rights: so the request is posted.
fn bare(slice: RemoteSlice) -> rust_ulp::error::Result<RemoteSlice> {
    RemoteSlice::new(slice.addr(), slice.len(), slice.rkey())
}

impl Rights {
    fn new() -> Outcome<Self> {
        let [here, there] = Host::two()?;
        let make = || -> rust_ulp::error::Result<_> {
            let (local, remote) = (here.pd.alloc_buffer(SIZE)?, there.pd.alloc_buffer(SIZE)?);
            local.write_at(0, &pattern(1, SIZE))?;
            remote.write_at(0, &pattern(2, SIZE))?;
            let all = remote.grant(FROM..FROM + LEN, Access::all())?;
            let other = connect(&here, &there, None)?;
            let other_local = here.pd.alloc_buffer(4096)?;
            let other_remote = there.pd.alloc_buffer(4096)?;
            let other_grant = other_remote.grant(.., Access::REMOTE_WRITE)?;
            Ok((
                local,
                remote,
                all,
                other,
                other_local,
                other_remote,
                other_grant,
            ))
        };
        let (local, remote, all, other, other_local, other_remote, other_grant) =
            make().map_err(because("setting up"))?;
        Ok(Self {
            here,
            there,
            local,
            remote,
            all,
            other,
            other_local,
            other_remote,
            other_grant,
        })
    }

    fn post(&self, qp: &Qp<Rc>, op: Op, to: RemoteSlice) -> rust_ulp::error::Result<()> {
        let local = self.local.slice(..to.len() as usize)?;
        match op {
            Op::Write => qp.post(Write::new(local, to).wr_id(1)),
            Op::Read => qp.post(Read::new(to, local).wr_id(1)),
            Op::Swap => qp.post(CompareSwap::new(to, 0, u64::MAX, local).wr_id(1)),
            Op::Add => qp.post(FetchAdd::new(to, 1, local).wr_id(1)),
        }
    }

    /// The pair that has nothing to do with it still works.
    fn bystanders(&self) -> Outcome {
        let data = pattern(u64::from(self.other[0].qp_num()), 256);
        let write = || -> rust_ulp::error::Result<_> {
            self.other_remote.fill(.., 0)?;
            self.other_local.write_at(0, &data)?;
            let to = self.other_grant.remote().slice(..256)?;
            let from = self.other_local.slice(..256)?;
            self.other[0].post(Write::new(from, to).wr_id(2))?;
            let _done = self.here.cq.wait(hang())?.ok()?;
            self.other_remote.to_vec(..256)
        };
        equal(
            "what crossed",
            write().map_err(because("the other pair"))?,
            data,
        )
    }

    /// `op` succeeds.
    fn works(&self, op: Op, to: RemoteSlice) -> Outcome {
        let run = || -> rust_ulp::error::Result<_> {
            let [qp, _peer] = connect(&self.here, &self.there, None)?;
            self.post(&qp, op, to)?;
            self.here.cq.wait(hang())?.ok()
        };
        run().map_err(because(&format!("{op:?}"))).map(drop)
    }

    /// `op` fails at the peer like that, in words too, and changes no byte on either side.
    fn refused(&self, op: Op, to: RemoteSlice, how: &[Status], access: Option<Access>) -> Outcome {
        let run = || -> rust_ulp::error::Result<_> {
            let [qp, peer] = connect(&self.here, &self.there, access)?;
            // Bytes that were never written: a write that lands changes something.
            let fresh = pattern((1 << 32) | u64::from(qp.qp_num()), SIZE);
            self.local.write_at(0, &fresh)?;
            let before = (self.remote.to_vec(..)?, fresh);
            self.post(&qp, op, bare(to)?)?;
            let done = self.here.cq.wait(hang())?;
            let after = (self.remote.to_vec(..)?, self.local.to_vec(..)?);
            Ok((done, peer.qp_num(), qp.qp_num(), before == after))
        };
        let what = format!("{op:?} of {to}");
        let (done, peer, own, untouched) = run().map_err(because(&what))?;
        check(format!("{what}: memory changed"), untouched)?;
        let status = done.status;
        check(
            format!("{what}: status {status:?}, want {how:?}"),
            how.contains(&status),
        )?;
        equal(&what, (done.wr_id, done.qp_num), (1, own))?;
        let words = match done.ok() {
            Ok(_) => return Err(format!("{what}: no error")),
            Err(error) => error.to_string(),
        };
        for part in [
            format!("request 1 on queue pair {own} to queue pair {peer} at "),
            format!(": {} (status {}", status.name(), status.code()),
            status.explanation().to_owned(),
        ] {
            check(format!("{words:?} has no {part:?}"), words.contains(&part))?;
        }
        Ok(())
    }

    fn refused_and_others_work(&self, op: Op, to: RemoteSlice) -> Outcome {
        self.refused(op, to, REFUSED, None)?;
        self.bystanders()
    }

    /// `len` bytes at `distance` of the first granted byte, by its key.
    fn at(&self, distance: i64, len: u64) -> Outcome<RemoteSlice> {
        let all = self.all.remote();
        let addr = all.addr().wrapping_add_signed(distance);
        RemoteSlice::new(addr, len, all.rkey()).map_err(because("an address"))
    }

    fn keyed(&self, rkey: u32, len: u64) -> Outcome<RemoteSlice> {
        RemoteSlice::new(self.all.remote().addr(), len, rkey).map_err(because("a key"))
    }

    fn keys(&self, r: &mut Report) {
        let right = self.all.remote().rkey();
        let others = [right, self.other_grant.remote().rkey()];
        let wrong = move |key: &u32| !others.contains(key);
        r.case("wrong keys: one bit", || {
            (0..32)
                .map(|bit| right ^ (1 << bit))
                .filter(wrong)
                .try_for_each(|key| self.refused(Op::Write, self.keyed(key, 64)?, REFUSED, None))
        });
        r.case("wrong keys: every other one of the same index", || {
            (0..256)
                .map(|byte| right & !0xff | byte)
                .filter(wrong)
                .try_for_each(|key| self.refused(Op::Write, self.keyed(key, 64)?, REFUSED, None))
        });
        r.case(
            "wrong keys: none, all bits, the bytes in another order",
            || {
                [0, u32::MAX, right.swap_bytes(), !right]
                    .into_iter()
                    .filter(wrong)
                    .try_for_each(|key| {
                        OPS.into_iter()
                            .try_for_each(|op| self.refused(op, self.keyed(key, 8)?, REFUSED, None))
                    })
            },
        );
        r.case("wrong keys: a long write", || {
            self.refused_and_others_work(Op::Write, self.keyed(right ^ 1, LEN as u64)?)
        });
        r.case("a wrong key does no harm to others", || self.bystanders());
    }

    fn ranges(&self, r: &mut Report) {
        let len = LEN as i64;
        for (name, distance, bytes) in [
            ("right before", -8, 8),
            ("a page before", -1024, 1024),
            ("over the beginning", -8, 16),
            ("right behind", len, 8),
            ("a page behind", len + 4096, 8),
            ("over the end", len - 8, 16),
            ("one byte over the end", 0, LEN as u64 + 1),
            ("pages over the end", len - 4096, 3 * 4096),
            ("far away", 1 << 40, 8),
            ("at the last addresses", -1 - 1024 - 8, 8),
        ] {
            r.case(format!("outside of the grant: {name}"), || {
                let to = if name == "at the last addresses" {
                    let key = self.all.remote().rkey();
                    RemoteSlice::new(u64::MAX - 8, 8, key).map_err(because("an address"))?
                } else {
                    self.at(distance, bytes)?
                };
                self.refused_and_others_work(Op::Write, to)?;
                self.refused(Op::Read, to, REFUSED, None)
            });
        }
        for (name, distance) in [("before", -8), ("behind", len)] {
            r.case(format!("outside of the grant: atomics {name}"), || {
                self.refused_and_others_work(Op::Swap, self.at(distance, 8)?)?;
                self.refused_and_others_work(Op::Add, self.at(distance, 8)?)
            });
        }
        r.case(
            "an address that wraps around is refused by the crate",
            || match RemoteSlice::new(u64::MAX - 7, 16, self.all.remote().rkey()) {
                Err(Error::Range { .. }) => Ok(()),
                other => Err(format!("{other:?}")),
            },
        );
    }

    fn lacking(&self, r: &mut Report) {
        for bits in 1..8u32 {
            let access = Access::from_bits_truncate(bits << 1);
            let grant = || {
                let grant = self.remote.grant(FROM..FROM + LEN, access);
                grant.map_err(because("granting"))
            };
            for op in OPS {
                if access.contains(op.right()) {
                    continue;
                }
                r.case(format!("{op:?} under a grant of {access:?}"), || {
                    let grant = grant()?;
                    let to = grant.remote().slice(64..72).map_err(because("a part"))?;
                    self.refused_and_others_work(op, to)?;
                    // The crate knows better, if it is told of the rights.
                    let [qp, _peer] =
                        connect(&self.here, &self.there, None).map_err(because("connecting"))?;
                    match self.post(&qp, op, to) {
                        Err(Error::Access { needed, granted }) => {
                            equal("rights", (needed, granted), (op.right(), access))
                        }
                        other => Err(format!("posted with rights: {other:?}")),
                    }
                });
            }
        }
        for op in OPS {
            let access = Access::all().difference(op.right());
            r.case(
                format!("{op:?} to a queue pair that allows {access:?}"),
                || {
                    let to = self.at(64, 8)?;
                    self.refused(op, to, NOT_BY_QP, Some(access))?;
                    self.bystanders()
                },
            );
        }
    }

    fn gone(&self, r: &mut Report) {
        r.case("a grant that was destroyed", || {
            let make = || self.remote.grant(FROM..FROM + LEN, Access::all());
            let grant = make().map_err(because("granting"))?;
            let to = grant.remote().slice(64..72).map_err(because("a part"))?;
            let before = self.remote.to_vec(..).map_err(because("reading"))?;
            OPS.into_iter().try_for_each(|op| self.works(op, to))?;
            let restore = || self.remote.write_at(0, &before);
            restore().map_err(because("writing"))?;
            grant.revoke().map_err(because("revoking"))?;
            OPS.into_iter()
                .try_for_each(|op| self.refused_and_others_work(op, to))?;
            // Whatever is granted after it: the old key stays dead.
            let new: rust_ulp::error::Result<Vec<Grant>> = (0..16).map(|_| make()).collect();
            let new = new.map_err(because("granting again"))?;
            let again = new.iter().any(|grant| grant.remote().rkey() == to.rkey());
            check("the key came again", !again)?;
            self.refused_and_others_work(Op::Write, to)
        });
        r.case("a queue pair that the peer destroyed", || {
            let run = || -> rust_ulp::error::Result<_> {
                let [qp, peer] = connect(&self.here, &self.there, None)?;
                drop(peer);
                let before = self.remote.to_vec(..)?;
                self.post(&qp, Op::Write, bare(self.all.remote().slice(..64)?)?)?;
                let done = self.here.cq.wait(hang())?;
                Ok((done.status, before == self.remote.to_vec(..)?))
            };
            let got = run().map_err(because("writing"))?;
            equal("status, untouched", got, (Status::RetryExceeded, true))?;
            self.bystanders()
        });
        r.case(
            "a write with immediate data and a wrong key completes no receive",
            || {
                let run = || -> rust_ulp::error::Result<_> {
                    let before = self.remote.to_vec(..)?;
                    let [qp, peer] = connect(&self.here, &self.there, None)?;
                    peer.post(Recv::empty().wr_id(3))?;
                    let key = self.all.remote().rkey() ^ 1;
                    let to = RemoteSlice::new(self.all.remote().addr(), 64, key)?;
                    qp.post(Write::new(self.local.slice(..64)?, to).imm(7).wr_id(1))?;
                    let sent = self.here.cq.wait(hang())?.status;
                    let got = self.there.cq.wait(hang())?;
                    Ok((sent, got, before == self.remote.to_vec(..)?))
                };
                let (sent, got, untouched) = run().map_err(because("writing"))?;
                equal("status at the writer", sent, Status::RemoteAccess)?;
                check("the receive succeeded", got.status != Status::Success)?;
                equal("immediate data", (got.wr_id, got.imm), (3, None))?;
                check("memory changed", untouched)?;
                self.bystanders()
            },
        );
    }
}

/// All cases.
pub fn run(r: &mut Report) {
    let Some(rights) = r.need("two ends", Rights::new) else {
        return;
    };
    println!("# {} writes to {}", rights.here.dev, rights.there.dev);
    r.case("what is granted works", || {
        let before = rights.remote.to_vec(..).map_err(because("reading"))?;
        for op in OPS {
            rights.works(op, rights.at(64, 8)?)?;
        }
        let all = rights.all.remote();
        rights.works(Op::Write, all.slice(..).map_err(because("all of it"))?)?;
        let around = |now: Vec<u8>| {
            now[..FROM] == before[..FROM] && now[FROM + LEN..] == before[FROM + LEN..]
        };
        let now = rights.remote.to_vec(..).map_err(because("reading"))?;
        let written = rights.local.to_vec(..LEN).map_err(because("reading"))?;
        check("it was not written", now[FROM..FROM + LEN] == written[..])?;
        check("bytes around it changed", around(now))
    });
    rights.keys(r);
    rights.ranges(r);
    rights.lacking(r);
    rights.gone(r);
    r.case("what is granted still works", || {
        rights.bystanders()?;
        rights.works(Op::Write, rights.at(0, LEN as u64)?)
    });
}
