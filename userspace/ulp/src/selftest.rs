// SPDX-License-Identifier: MIT OR Apache-2.0

//! `ulp selftest`: tries a device with what the module does on it, and writes a report to be sent.
//!
//! A check uses queue pairs and memory of its own, and changes nothing else. The report has no
//! names, GUIDs or addresses.

use crate::args::{default_port, DeviceArg};
use crate::diagnose::refusal;
use crate::machine::Machine;
use crate::output::{self, answer, table, FormatArgs};
use crate::rdma::{self, RdmaDevice};
use anyhow::{ensure, Context, Result};
use clap::Args;
use rust_ulp::device::DeviceInfo;
use rust_ulp::error::ErrorKind;
use rust_ulp::grant::GrantOptions;
use rust_ulp::memory::PageSize;
use rust_ulp::qp::{Connected, QpAttr, QpBuilder, QpState, Rc, Uc, Ud};
use rust_ulp::wr::{FetchAdd, Post, Read, Recv, Send, SendTo, WrOpcode, Write};
use rust_ulp::{Access, Buffer, Cq, Device, Error, Grant, Pd, PreparedQp, Qp, RemoteSlice, Status};
use schemars::JsonSchema;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(30);
/// The bytes of a message.
const BYTES: usize = 64 << 10;
const HUGE: u64 = 2 << 20;
/// The bytes of a datagram.
const INLINE: u32 = 32;
/// The most that a check allocates.
const MOST: u64 = 64 << 20;
const HOW_TO_SEND: &str =
    "It has no names or addresses: read it, then send it to the issue tracker of rust_ulp";

/// Arguments of `ulp selftest`.
#[derive(Debug, Args)]
pub struct Selftest {
    #[command(flatten)]
    device: DeviceArg,
    /// Other device of this host, which answers [default: the device itself]
    #[arg(long, value_name = "NAME")]
    to: Option<String>,
    /// File to write the report to, as JSON without names and addresses, to be sent to the issue
    /// tracker of rust_ulp
    #[arg(short, long, value_name = "FILE")]
    report: Option<PathBuf>,
    #[command(flatten)]
    format: FormatArgs,
}

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Passed,
    Failed,
    /// The module or the device does not offer it.
    NotOffered,
}

/// A check and how it ended.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Check {
    name: &'static str,
    verdict: Verdict,
    what: String,
}

/// What the module assumes of the driver, and what was seen of it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Quirk {
    /// The rule of docs/providers.md.
    rule: &'static str,
    /// What the module does on this device.
    module: String,
    /// Whether a check confirmed that; null if none tried it.
    confirmed: Option<bool>,
    /// Whether a program can see it.
    observable: bool,
}

const LONG_LID: &str =
    "has a LID of more than 16 bits, which the crate does not support (docs/providers.md)";

/// The rules that no program can see: what the module leaves out because of them, or a failure of the
/// adapter.
const HIDDEN: [&str; 4] = ["ShortKeys", "NoLocalInv", "HidesFailure", "KeepsPackets"];

/// What was measured, by completions.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Figures {
    /// Median time of a Write of 8 bytes, from posting to its completion, in microseconds.
    write_us: f64,
    /// Writes of 64 KiB, 16 in flight, in MB/s.
    write_mb_per_s: f64,
    /// Writes whose last byte was there before the first, of 200: relaxed ordering.
    last_byte_first: u32,
}

impl Figures {
    fn text(&self) -> String {
        format!(
            "write of 8 bytes {:.1} us, writes of 64 KiB {:.0} MB/s, last byte first in {} of 200",
            self.write_us, self.write_mb_per_s, self.last_byte_first
        )
    }
}

/// The device and the machine.
#[derive(Debug, Serialize, JsonSchema)]
pub struct About {
    driver: Option<String>,
    protocol: Option<String>,
    vendor_id: Option<String>,
    vendor_part_id: Option<String>,
    board_id: Option<String>,
    firmware: Option<String>,
    rate_gbps: Option<f64>,
    active_mtu: Option<u32>,
    /// The type of the IOMMU group of the device: "DMA", "DMA-FQ" or "identity".
    iommu: Option<String>,
    kernel: String,
    architecture: &'static str,
    cpu: String,
    virtual_machine: bool,
    module: Option<String>,
    tool: String,
    /// Whether another device answered.
    two_devices: bool,
}

/// The output of `ulp selftest`, and the report.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Report {
    about: About,
    /// Why the module refuses the device, which is not tried then.
    refused: Option<&'static str>,
    checks: Vec<Check>,
    quirks: Vec<Quirk>,
    /// [`None`] if the check `write` or `figures` failed.
    figures: Option<Figures>,
}

/// One end: what a device needs to take part.
struct Side {
    pd: Pd,
    cq: Cq,
    buffer: Buffer,
}

impl Side {
    fn new(device: &Device) -> rust_ulp::error::Result<Self> {
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(64)?;
        let buffer = pd.alloc_buffer(BYTES)?;
        Ok(Self { pd, cq, buffer })
    }

    /// Waits for the next request to succeed.
    fn done(&self) -> Result<()> {
        Ok(self.cq.wait(LONG)?.check()?)
    }
}

/// Returns bytes that differ for each `seed`.
fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i * 31 + i / 251 + seed * 7) as u8)
        .collect()
}

/// Two ends, for one check: one that fails may leave completions and broken queue pairs.
struct Ends {
    from: Side,
    to: Side,
}

impl Ends {
    fn new(from: &Device, to: &Device) -> Result<Self> {
        Ok(Self {
            from: Side::new(from)?,
            to: Side::new(to)?,
        })
    }

    fn pair<T: Connected>(&self) -> Result<(Qp<T>, Qp<T>)> {
        self.connect(self.to.pd.qp_builder(&self.to.cq), |_| Ok(()))
    }

    fn connect<T: Connected>(
        &self,
        to: QpBuilder<T>,
        prepare: impl FnOnce(&PreparedQp<T>) -> Result<()>,
    ) -> Result<(Qp<T>, Qp<T>)> {
        let from = self.from.pd.qp_builder::<T>(&self.from.cq).build()?;
        prepare(&from)?;
        let to = to.build()?;
        let (here, there) = (from.endpoint(), to.endpoint());
        let from = from.connect(there).map_err(Error::from)?;
        Ok((from, to.connect(here).map_err(Error::from)?))
    }

    /// Writes 64 bytes to each of `places` of what `grant` covers, and looks for them in its buffer.
    fn write_at(&self, grant: &Grant, places: &[u64]) -> Result<()> {
        let (from, _to) = self.pair::<Rc>()?;
        for (seed, at) in places.iter().enumerate() {
            let data = pattern(seed + 1, 64);
            self.from.buffer.write_at(0, &data)?;
            let remote = grant.remote().slice(*at..*at + 64)?;
            from.post(Write::new(self.from.buffer.slice(..64)?, remote))?;
            self.from.done()?;
            let at = usize::try_from(*at)?;
            ensure!(
                grant.buffer().to_vec(at..at + 64)? == data,
                "a write to byte {at} is not there"
            );
        }
        Ok(())
    }

    fn write(self) -> Result<String> {
        let (from, to) = self.pair::<Rc>()?;
        let grant = self.to.buffer.grant(.., Access::REMOTE_WRITE)?;
        let data = pattern(1, BYTES);
        self.from.buffer.write_at(0, &data)?;
        to.post_recv(Recv::empty())?;
        // The last one is a message, and covers those before.
        for n in 0..16 {
            let part = n * BYTES / 16..(n + 1) * BYTES / 16;
            let remote = grant.remote().slice(part.start as u64..part.end as u64)?;
            let write = Write::new(self.from.buffer.slice(part)?, remote);
            from.post(if n == 15 { write.imm(7) } else { write })?;
        }
        ensure!(
            self.to.cq.wait(LONG)?.ok()?.imm == Some(7),
            "the immediate data is wrong"
        );
        ensure!(
            self.to.buffer.to_vec(..)? == data,
            "the data is wrong behind the message"
        );
        (0..16).try_for_each(|_| self.from.done())?;
        Ok("16 writes are there when the message behind them is".to_owned())
    }

    fn read(self) -> Result<String> {
        let (from, _to) = self.pair::<Rc>()?;
        let grant = self.to.buffer.grant(.., Access::REMOTE_READ)?;
        let data = pattern(2, BYTES);
        self.to.buffer.write_at(0, &data)?;
        from.post(Read::new(grant.remote(), self.from.buffer.slice(..)?))?;
        self.from.done()?;
        ensure!(self.from.buffer.to_vec(..)? == data, "the data is wrong");
        Ok(format!("{BYTES} bytes"))
    }

    fn send<T: Connected>(self) -> Result<String>
    where
        for<'a> Send<'a>: Post<'a, T>,
    {
        let (from, to) = self.pair::<T>()?;
        self.message(&from, &to)
    }

    fn message<T: Connected>(&self, from: &Qp<T>, to: &Qp<T>) -> Result<String>
    where
        for<'a> Send<'a>: Post<'a, T>,
    {
        let data = pattern(3, BYTES);
        self.from.buffer.write_at(0, &data)?;
        to.post_recv(Recv::new(self.to.buffer.slice(..)?))?;
        from.post(Send::new(self.from.buffer.slice(..)?))?;
        self.from.done()?;
        let got = self.to.cq.wait(LONG)?.ok()?;
        ensure!(got.byte_len as usize == BYTES, "{} bytes", got.byte_len);
        ensure!(self.to.buffer.to_vec(..)? == data, "the data is wrong");
        Ok(format!("{BYTES} bytes"))
    }

    fn datagram(self, inline: bool) -> Result<String> {
        let ready = |side: &Side| {
            let builder = side.pd.qp_builder::<Ud>(&side.cq);
            let bytes = if inline { INLINE } else { 0 };
            builder.max_inline(bytes).build()?.ready()
        };
        let (from, to) = (ready(&self.from)?, ready(&self.to)?);
        let address = from.address(&to.endpoint())?;
        let there = address.queue_pair(to.qp_num(), to.qkey());
        let data = pattern(5, INLINE as usize);
        self.from.buffer.write_at(0, &data)?;
        let into = self.to.buffer.slice(..256)?;
        to.post_recv(Recv::new(into))?;
        from.post(match inline {
            true => SendTo::inline_bytes(&data, &there),
            false => SendTo::new(self.from.buffer.slice(..data.len())?, &there),
        })?;
        self.from.done()?;
        let got = self.to.cq.wait(LONG)?;
        let payload = to.received(&got, &into)?.payload.to_vec()?;
        ensure!(payload == data, "the data is wrong");
        Ok(format!("{INLINE} bytes"))
    }

    fn reset(self, port: u32) -> Result<String> {
        let to = self.to.pd.qp_builder::<Rc>(&self.to.cq);
        let (from, to) = self.connect(to, |from| {
            from.modify(QpAttr::to(QpState::Reset))?;
            let init = QpAttr::to(QpState::Init).pkey_index(0).port(port);
            from.modify(init.access(Access::REMOTE_WRITE))?;
            Ok(())
        })?;
        self.message(&from, &to)
    }

    fn invalidate(self) -> Result<String> {
        let (from, to) = self.pair::<Rc>()?;
        let options = GrantOptions::new().ends_on_invalidate(&to);
        let grant = self
            .to
            .buffer
            .grant_with(.., Access::REMOTE_WRITE, options)?;
        to.post_recv(Recv::empty())?;
        from.post(Send::empty().invalidate(grant.remote()))?;
        self.from.done()?;
        self.to.done()?;
        from.post(Write::new(self.from.buffer.slice(..)?, grant.remote()))?;
        let status = self.from.cq.wait(LONG)?.status;
        ensure!(status != Status::Success, "the write succeeded");
        Ok(format!("{} behind it", status.name()))
    }

    fn atomics(self) -> Result<String> {
        let (from, _to) = self.pair::<Rc>()?;
        let grant = self.to.buffer.grant(..8, Access::REMOTE_ATOMIC)?;
        self.to.buffer.store_u64(0, 40, Ordering::Release)?;
        from.post(FetchAdd::new(
            grant.remote(),
            2,
            self.from.buffer.slice(..8)?,
        ))?;
        self.from.done()?;
        let (old, new) = (
            self.from.buffer.load_u64(0, Ordering::Acquire)?,
            self.to.buffer.load_u64(0, Ordering::Acquire)?,
        );
        ensure!((old, new) == (40, 42), "{old} became {new} instead of 42");
        Ok("fetch and add".to_owned())
    }

    /// Writes at the borders of pages of `size` bytes of a buffer of `bytes`.
    fn pages(self, pages: PageSize, size: u64, bytes: u64) -> Result<String> {
        let builder = self.to.pd.buffer_builder(usize::try_from(bytes)?);
        let buffer = builder.pages(pages).build()?;
        let len = buffer.key_bytes().min(bytes);
        let grant = buffer.grant(..usize::try_from(len)?, Access::REMOTE_WRITE)?;
        let middle = len / 2 / size * size;
        let places = [0, 4096, size - 64, middle, middle + 4104, len - 64];
        let inside = places.into_iter().filter(|at| at + 64 <= len);
        self.write_at(&grant, &inside.collect::<Vec<_>>())?;
        Ok(format!("{len} bytes under one key, in pages of {size}"))
    }

    fn user_memory(self) -> Result<String> {
        let buffer = self.to.pd.user_memory_builder(1 << 20).build()?;
        let len = buffer.key_bytes().min(1 << 20);
        let grant = buffer.grant(..usize::try_from(len)?, Access::REMOTE_WRITE)?;
        self.write_at(&grant, &[0, 5000, len / 2 + 8, len - 64])?;
        Ok(format!("{len} bytes"))
    }

    /// A write that must fail, with nothing written.
    fn refused(self, prepare: impl FnOnce(&Grant) -> Result<()>, access: Access) -> Result<String> {
        let (from, _to) = self.pair::<Rc>()?;
        let grant = self.to.buffer.grant(.., access)?;
        self.to.buffer.fill(.., 0)?;
        self.from.buffer.fill(.., 1)?;
        prepare(&grant)?;
        // A slice that does not know its rights: else the crate refuses the request.
        let granted = grant.remote();
        let remote = RemoteSlice::new(granted.addr(), granted.len(), granted.rkey())?;
        from.post(Write::new(self.from.buffer.slice(..)?, remote))?;
        let status = self.from.cq.wait(LONG)?.status;
        ensure!(status != Status::Success, "the write succeeded");
        let landed = self.to.buffer.to_vec(..)?.iter().any(|byte| *byte != 0);
        ensure!(
            !landed,
            "bytes landed, though the write failed: {}",
            status.name()
        );
        Ok(format!("{}, and no byte landed", status.name()))
    }

    fn shared_receives(self, in_order: &mut Option<bool>) -> Result<String> {
        let srq = self.to.pd.srq_builder(&self.to.cq).build()?;
        let builder = self.to.pd.qp_builder::<Rc>(&self.to.cq).srq(&srq);
        let (from, to) = self.connect(builder, |_| Ok(()))?;
        (0..8).try_for_each(|n| srq.post_recv(Recv::empty().wr_id(n)))?;
        (0..8).try_for_each(|_| from.post(Send::empty()))?;
        (0..8).try_for_each(|_| self.from.done())?;
        let taken = (0..8).map(|_| Ok(self.to.cq.wait(LONG)?.ok()?.wr_id));
        *in_order = Some(taken.collect::<Result<Vec<_>>>()? == Vec::from_iter(0..8u64));
        // The kernel waits for the driver's event, at most ten seconds.
        let begin = Instant::now();
        drop(to);
        let took = begin.elapsed();
        ensure!(took.as_secs() < 10, "no event ended the use of the queue");
        Ok(format!(
            "messages, and the end of their queue pair after {took:.1?}"
        ))
    }

    fn figures(self) -> Result<Figures> {
        let (from, _to) = self.pair::<Rc>()?;
        let grant = self.to.buffer.grant(.., Access::REMOTE_WRITE)?;
        let write = |len: usize| -> Result<_> {
            let remote = grant.remote().slice(..len as u64)?;
            Ok(from.post(Write::new(self.from.buffer.slice(..len)?, remote))?)
        };
        let mut times = Vec::new();
        for _ in 0..500 {
            let begin = Instant::now();
            write(8)?;
            self.from.done()?;
            times.push(begin.elapsed());
        }
        times.sort();
        let median = times.get(times.len() / 2).context("no time")?;
        let begin = Instant::now();
        for n in 0..256 {
            if n >= 16 {
                self.from.done()?;
            }
            write(BYTES)?;
        }
        (0..16).try_for_each(|_| self.from.done())?;
        let seconds = begin.elapsed().as_secs_f64();
        let mut last_byte_first = 0;
        for n in 0..200 {
            let mark = (n % 250 + 1) as u8;
            self.from.buffer.fill(.., mark)?;
            self.to.buffer.fill(.., 0)?;
            write(BYTES)?;
            let until = Instant::now() + LONG;
            let byte = |at| self.to.buffer.load_u8(at, Ordering::Acquire);
            while byte(BYTES - 1)? != mark && Instant::now() < until {
                std::hint::spin_loop();
            }
            last_byte_first += u32::from(byte(0)? != mark);
            self.from.done()?;
        }
        Ok(Figures {
            write_us: median.as_secs_f64() * 1e6,
            write_mb_per_s: (256 * BYTES) as f64 / seconds / 1e6,
            last_byte_first,
        })
    }
}

/// Formats an error for the report, without the addresses that errors name.
fn without_addresses(error: &anyhow::Error) -> String {
    match error.downcast_ref() {
        Some(Error::Completion(failed)) => {
            let mut failed = *failed;
            failed.peer = None;
            failed.to_string()
        }
        Some(Error::GidFamily { .. }) => {
            "the GIDs of the two ends are an IPv4 address and an IPv6 address".to_owned()
        }
        Some(Error::NoUsableGid { port, .. }) => format!("port {port} has no usable GID"),
        Some(
            error @ (Error::Rejected(_)
            | Error::Tcp { .. }
            | Error::Timeout { peer: Some(_), .. }
            | Error::NoDevice { .. }
            | Error::Batch { .. }),
        ) => format!("{:?}", error.kind()),
        _ => output::causes(error),
    }
}

/// Runs a check if it is `offered`.
fn run(
    checks: &mut Vec<Check>,
    name: &'static str,
    offered: bool,
    check: impl FnOnce() -> Result<String>,
) -> Option<bool> {
    let (verdict, what) = match offered.then(check) {
        None => (Verdict::NotOffered, String::new()),
        Some(Ok(what)) => (Verdict::Passed, what),
        Some(Err(error)) => (Verdict::Failed, without_addresses(&error)),
    };
    checks.push(Check {
        name,
        verdict,
        what,
    });
    offered.then_some(verdict == Verdict::Passed)
}

/// Returns how many of `bytes` may be allocated here, [`MOST`] at most. Without CAP_IPC_LOCK a user has
/// `ulimit -l`.
fn most_memory(pd: &Pd, bytes: u64) -> Result<u64> {
    let mut most = bytes.min(MOST);
    loop {
        let builder = pd.buffer_builder(usize::try_from(most)?);
        match builder.pages(PageSize::Small).build() {
            Err(error) if error.kind() == ErrorKind::OutOfMemory && most > 4096 => most /= 2,
            built => return Ok(built.map(|_| most)?),
        }
    }
}

fn about(device: &RdmaDevice, opened: Option<&Device>, two_devices: bool) -> Result<About> {
    let machine = Machine::here();
    let port = opened.map_or(1, default_port);
    let described = opened.map(|opened| opened.port(port)).transpose()?;
    let group = format!(
        "/sys/class/infiniband/{}/device/iommu_group/type",
        device.name
    );
    let software = opened.is_some_and(|opened| opened.info().software);
    let software = software.then(|| "rdma_rxe".to_owned());
    let on = device.ports.iter().find(|on| on.port == port);
    Ok(About {
        driver: device.driver.clone().or(software),
        protocol: device.protocol.clone(),
        vendor_id: device.vendor_id.clone(),
        vendor_part_id: device.vendor_part_id.clone(),
        board_id: device.board_id.clone(),
        firmware: device.firmware.clone(),
        rate_gbps: on.and_then(|port| port.rate_gbps),
        active_mtu: described.map(|port| port.active_mtu),
        iommu: std::fs::read_to_string(group)
            .ok()
            .map(|kind| kind.trim().to_owned()),
        kernel: machine.kernel,
        architecture: std::env::consts::ARCH,
        cpu: machine.cpu,
        virtual_machine: machine.virtual_machine,
        module: machine.module,
        tool: machine.tool,
        two_devices,
    })
}

impl Report {
    fn refused(device: &RdmaDevice, why: &'static str) -> Result<Self> {
        Ok(Self {
            about: about(device, None, false)?,
            refused: Some(why),
            checks: Vec::new(),
            quirks: Vec::new(),
            figures: None,
        })
    }

    fn new(device: &RdmaDevice, from: &Device, to: Option<&Device>) -> Result<Self> {
        let answering = to.unwrap_or(from);
        let ends = || Ends::new(from, answering);
        // The rules are those of the device that answers.
        let info = answering.info();
        let small = info.page_size_cap & 4096 != 0;
        let huge = info.page_size_cap & HUGE != 0;
        let has = |op| info.supports::<Rc>(op) && from.info().supports::<Rc>(op);
        let whole = u64::from(info.max_fast_reg_pages) * 4096;
        let list = if small {
            most_memory(&ends()?.to.pd, whole)?
        } else {
            0
        };
        let all = &mut Vec::new();
        let written = run(all, "write", true, || ends()?.write());
        run(all, "read", true, || ends()?.read());
        run(all, "send", true, || ends()?.send::<Rc>());
        let both = |supports: fn(&DeviceInfo) -> bool| supports(info) && supports(from.info());
        let uc = both(|info| info.supports::<Uc>(WrOpcode::Send));
        let uc = run(all, "uc", uc, || ends()?.send::<Uc>());
        let ud = both(|info| info.supports::<Ud>(WrOpcode::Send));
        let ud = run(all, "datagram", ud, || ends()?.datagram(false));
        // Where the driver copies none, it or the module refuses.
        let here = Side::new(from)?;
        let builder = here.pd.qp_builder::<Ud>(&here.cq).max_inline(INLINE);
        let inline = ud.is_some() && builder.build().is_ok();
        let inline = run(all, "inline_datagram", inline, || ends()?.datagram(true));
        let qp = here.pd.qp_builder::<Rc>(&here.cq).build()?;
        let reset = qp.modify(QpAttr::to(QpState::Reset));
        let reset = !matches!(reset, Err(Error::Unsupported { .. }));
        let reset = run(all, "reset", reset, || ends()?.reset(default_port(from)));
        let invalidates = has(WrOpcode::SendInvalidate);
        let invalidated = run(all, "invalidate", invalidates, || ends()?.invalidate());
        // Some drivers post atomics, and grant none.
        let granted = Side::new(answering)?
            .buffer
            .grant(..8, Access::REMOTE_ATOMIC);
        let granted = !matches!(granted, Err(Error::Unsupported { .. }));
        let atomic = has(WrOpcode::FetchAdd) && granted;
        let atomics = run(all, "atomics", atomic, || ends()?.atomics());
        let listed = run(all, "page_list", small, || {
            ends()?.pages(PageSize::Small, 4096, list)
        });
        let large = run(all, "large_pages", huge, || {
            ends()?.pages(PageSize::Huge, HUGE, 2 * HUGE)
        });
        run(all, "user_memory", true, || ends()?.user_memory());
        run(all, "rights", true, || {
            ends()?.refused(|_| Ok(()), Access::REMOTE_READ)
        });
        let revoked = run(all, "revoke", true, || {
            ends()?.refused(|grant| Ok(grant.revoke()?), Access::REMOTE_WRITE)
        });
        let mut in_order = None;
        let shared = run(all, "shared_receives", info.max_srq > 0, || {
            ends()?.shared_receives(&mut in_order)
        });
        let mut figures = None;
        if written == Some(true) {
            run(all, "figures", true, || {
                let measured = ends()?.figures()?;
                Ok(figures.insert(measured).text())
            });
        }
        let quirk = |rule, module: &str, confirmed| Quirk {
            rule,
            module: module.to_owned(),
            confirmed,
            observable: !HIDDEN.contains(&rule),
        };
        let offers = |what| if what { "offers it" } else { "offers none" };
        let tried = |rule, result: Option<bool>| quirk(rule, offers(result.is_some()), result);
        let (ordered, order) = match info.software {
            true => ("relies on it", in_order),
            false => ("does not rely on it", None),
        };
        let pages = format!("at most {}", info.max_fast_reg_pages);
        let mut quirks = vec![
            tried("LargePages", large),
            // A part of the list can only refute the rule.
            quirk("MaxPages", &pages, listed.filter(|ok| list == whole || !ok)),
            quirk("NoAtomics", offers(has(WrOpcode::FetchAdd)), atomics),
            quirk("NoRemoteAtomics", offers(granted), atomics),
            quirk("InvalidateFirst", "revokes a key", revoked),
            tried("LastWqe", shared),
            quirk("OrderedSrq", ordered, order),
            tried("SendWithInv", invalidated),
            tried("NoUdInline", inline),
            tried("NoReset", reset),
            // REG_MR registers its grant.
            tried("NoFastReg", written),
            tried("NoRc", written),
            tried("NoUc", uc),
            tried("NoUd", ud),
        ];
        quirks.extend(HIDDEN.map(|rule| quirk(rule, "", None)));
        Ok(Self {
            about: about(device, Some(from), to.is_some())?,
            refused: None,
            checks: std::mem::take(all),
            quirks,
            figures,
        })
    }

    fn text(&self) -> String {
        if let Some(why) = self.refused {
            return format!("The device {why}");
        }
        let word = |verdict| match verdict {
            Verdict::Passed => "ok",
            Verdict::Failed => "FAIL",
            Verdict::NotOffered => "-",
        };
        let checks = self.checks.iter().map(|check| {
            [word(check.verdict), check.name, &check.what]
                .map(str::to_owned)
                .to_vec()
        });
        let quirks = self.quirks.iter().map(|quirk| {
            let found = match quirk.confirmed {
                Some(true) => "confirmed",
                Some(false) => "REFUTED",
                None if quirk.observable => "not tried",
                None => "not observable from here",
            };
            vec![
                quirk.rule.to_owned(),
                quirk.module.clone(),
                found.to_owned(),
            ]
        });
        let mut text = table(&["", "CHECK", "FOUND"], checks);
        text += "\n\n";
        text += &table(&["RULE", "THE MODULE", "FOUND"], quirks);
        text
    }
}

impl Selftest {
    fn try_device(&self) -> Result<Report> {
        let from = match self.device.open() {
            Ok(from) => from,
            Err(error @ (Error::NoDevice { .. } | Error::Unsupported { .. })) => {
                let devices = rdma::devices(self.device.name.as_deref()).unwrap_or_default();
                let refused = devices
                    .iter()
                    .find_map(|device| Some((device, refusal(device, Some(&[]))?)));
                let (device, why) = refused.ok_or(error)?;
                return Report::refused(device, why);
            }
            Err(error) => return Err(error.into()),
        };
        let to = self.to.as_deref().map(Device::open).transpose()?;
        let devices = rdma::devices(Some(from.name()))?;
        let device = devices.first().context("the device is gone")?;
        if u16::try_from(from.port(default_port(&from))?.lid).is_err() {
            return Report::refused(device, LONG_LID);
        }
        Report::new(device, &from, to.as_ref())
    }

    pub fn run(self) -> Result<ExitCode> {
        let report = self.try_device()?;
        self.format.print(&report, || report.text())?;
        if let Some(path) = &self.report {
            let text = serde_json::to_string_pretty(&output::versioned(&report))? + "\n";
            std::fs::write(path, text).with_context(|| path.display().to_string())?;
            message!("the report is in {}. {HOW_TO_SEND}", path.display());
        }
        let failed = |check: &Check| check.verdict == Verdict::Failed;
        Ok(answer(
            report.refused.is_none() && !report.checks.iter().any(failed),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rust_ulp::Completion;

    /// Returns what the report says of a check that fails by `error`.
    fn reported(error: Error) -> String {
        let mut checks = Vec::new();
        let verdict = run(&mut checks, "write", true, || Err(error.into()));
        assert_eq!(verdict, Some(false));
        checks.remove(0).what
    }

    #[test]
    fn the_report_has_no_addresses_of_errors() {
        let ours = "::ffff:192.168.1.7".parse().unwrap();
        let theirs = "2001:db8::9".parse().unwrap();
        let peer = "192.168.1.8:18515".parse().unwrap();
        let mut done = Completion::EMPTY;
        done.status = Status::RetryExceeded;
        let Err(Error::Completion(mut failed)) = done.check() else {
            panic!("the request failed");
        };
        failed.peer = Some((19, ours));
        for (error, says) in [
            (Error::Completion(failed), "(status 12)"),
            (
                Error::GidFamily {
                    port: 1,
                    index: 3,
                    local: ours,
                    peer: theirs,
                    usable: None,
                },
                "GIDs",
            ),
            (
                Error::NoUsableGid {
                    port: 2,
                    tried: "192.168.1.9 of eth0".to_owned(),
                },
                "port 2 has no usable GID",
            ),
            (
                Error::Tcp {
                    what: "connecting to",
                    peer: Some(peer),
                    cause: nix::errno::Errno::ECONNREFUSED.into(),
                },
                "ConnectionRefused",
            ),
            (
                Error::Timeout {
                    what: "connecting to",
                    peer: Some(peer),
                    after: LONG,
                },
                "TimedOut",
            ),
        ] {
            let what = reported(error);
            assert!(what.contains(says), "{what}");
            for address in ["192.168", "2001:db8", "eth0"] {
                assert!(!what.contains(address), "{what}");
            }
        }
    }
}
