// SPDX-License-Identifier: MIT OR Apache-2.0

//! `ulp-test write-sizes`: writes of every size arrive, between two ends that met over TCP.

use crate::hosts::{pattern, Host};
use crate::report::{because, check, equal, hang, Outcome, Report};
use rust_ulp::qp::Rc;
use rust_ulp::tcp::Listener;
use rust_ulp::wr::{Recv, Write};
use rust_ulp::{Access, Buffer, Grant, Opcode, Qp, RemoteSlice};

const MIB: usize = 1 << 20;
/// Bytes of the largest write: ULP_LARGE MiB.
fn large() -> usize {
    let mib = std::env::var("ULP_LARGE").ok().and_then(|n| n.parse().ok());
    mib.map_or(8, |n: usize| n.clamp(1, 1000)) * MIB
}

/// Bytes of both buffers: the largest write, at an odd place, with room around it.
fn size() -> usize {
    large() + 8192
}

struct Ends {
    here: Host,
    there: Host,
    from: Qp<Rc>,
    to: Qp<Rc>,
    local: Buffer,
    remote: Buffer,
    _grant: Grant,
    /// The grant as the exchange brought it.
    target: RemoteSlice,
}

fn ends() -> Outcome<Ends> {
    let [here, there] = Host::two()?;
    let meet = || -> rust_ulp::error::Result<_> {
        let (local, remote) = (
            here.pd.alloc_buffer(size())?,
            there.pd.alloc_buffer(size())?,
        );
        let granted = remote.len().min(remote.key_bytes() as usize);
        let grant = remote.grant(..granted, Access::REMOTE_WRITE)?;
        let listener = Listener::bind(&there.dev, "127.0.0.1:0")?;
        let addr = listener.local_addr()?;
        let (first, second) = (here.qp().build()?, there.qp().build()?);
        let (from, to) = std::thread::scope(|scope| {
            let accept = scope.spawn(|| -> rust_ulp::error::Result<_> {
                Ok(listener.accept(hang())?.accept(second, &[&grant])?)
            });
            let from = first.connect_tcp(addr, &[]);
            (from, accept.join())
        });
        let (from, peer) = from?;
        Ok((local, remote, peer.grant(0)?, grant, from, to))
    };
    let (local, remote, target, grant, from, to) = meet().map_err(because("meeting"))?;
    let to = to.map_err(|_| "the accepting thread panicked")?;
    let (to, _) = to.map_err(because("accepting"))?;
    Ok(Ends {
        here,
        there,
        from,
        to,
        local,
        remote,
        _grant: grant,
        target,
    })
}

impl Ends {
    /// One case, if a key of the device, which covers `longest` bytes, reaches so far.
    fn case(
        &self,
        (r, longest): (&mut Report, Option<usize>),
        name: String,
        (len, at): (usize, usize),
        imm: Option<u32>,
    ) {
        if longest.is_some_and(|longest| len + at > longest) {
            r.skip(name, "no key of the device reaches so far");
        } else {
            r.case(name, || self.cross(len, at, imm));
        }
    }

    /// `len` bytes cross to offset `at`, and no byte around them changes.
    fn cross(&self, len: usize, at: usize, imm: Option<u32>) -> Outcome {
        let data = pattern((len + at) as u64, len);
        let margin = at.saturating_sub(64)..(at + len + 64).min(size());
        let run = || -> rust_ulp::error::Result<_> {
            self.local.write_at(0, &data)?;
            self.remote.fill(margin.clone(), 0xc3)?;
            let dst = self.target.slice(at as u64..(at + len) as u64)?;
            let write = Write::new(self.local.slice(..len)?, dst).wr_id(len as u64);
            match imm {
                Some(imm) => {
                    self.to.post(Recv::empty().wr_id(9))?;
                    self.from.post(write.imm(imm))?;
                }
                None => self.from.post(write)?,
            }
            let sent = self.here.cq.wait(hang())?.ok()?;
            let got = match imm {
                Some(_) => Some(self.there.cq.wait(hang())?.ok()?),
                None => None,
            };
            Ok((sent, got, self.remote.to_vec(margin.clone())?))
        };
        let (sent, got, now) = run().map_err(because("writing"))?;
        equal(
            "completion",
            (sent.wr_id, sent.opcode),
            (len as u64, Opcode::Write),
        )?;
        if let Some(got) = got {
            equal(
                "receive",
                (got.wr_id, got.opcode, got.imm, got.byte_len as usize),
                (9, Opcode::RecvWriteImm, imm, len),
            )?;
        }
        let (before, rest) = now.split_at(at - margin.start);
        let (written, behind) = rest.split_at(len);
        if written != data {
            let first = written.iter().zip(&data).position(|(a, b)| a != b);
            return Err(format!("byte {first:?} of {len} differs"));
        }
        let is_untouched = |part: &[u8]| part.iter().all(|byte| *byte == 0xc3);
        check("bytes before it changed", is_untouched(before))?;
        check("bytes behind it changed", is_untouched(behind))?;
        let none = self.here.cq.poll().map_err(because("polling"))?;
        check("a completion too many", none.is_none())
    }
}

/// All cases, on a device whose keys cover `longest` bytes.
pub fn run(r: &mut Report, longest: Option<usize>) {
    let Some(ends) = r.need("two ends that meet over TCP", ends) else {
        return;
    };
    let mtu = ends.from.endpoint().mtu.min(ends.from.peer().mtu).bytes() as usize;
    println!(
        "# {} writes to {}, MTU {mtu}",
        ends.here.dev, ends.there.dev
    );
    let sizes = [1, 8, 1023, mtu, mtu + 1, 2 * mtu - 1, MIB, large()];
    for (i, len) in sizes.into_iter().enumerate() {
        for at in [0, 4093 + i] {
            let name = format!("a write of {len} bytes to {at}");
            ends.case((r, longest), name, (len, at), None);
        }
    }
    for (len, imm) in [(0, 0), (1, u32::MAX), (mtu + 1, 0xdead_beef), (MIB, 1)] {
        let name = format!("a write of {len} bytes with immediate data");
        ends.case((r, longest), name, (len, 4096), Some(imm));
    }
}
