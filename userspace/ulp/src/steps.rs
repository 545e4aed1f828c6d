// SPDX-License-Identifier: MIT OR Apache-2.0

//! `ulp steps`: a connection step by step, with the meaning of each parameter, and the classic
//! mistakes. `steps/en.txt` and `steps/zh.txt` have the texts.

use crate::args::{address, size_in, DeviceArg};
use crate::lang::{Lang, LangArg, Texts};
use crate::listen::Listener;
use crate::output::{print, printable};
use crate::{netlink, wire};
use anyhow::{bail, ensure, Context, Result};
use clap::{Args, Subcommand, ValueEnum};
use rust_ulp::device::GidType;
use rust_ulp::qp::{AckTimeout, Path, QpAttr, QpState, Rc, Retries, RnrRetries, RnrTimer};
use rust_ulp::wr::{Read, Recv, Send, Write};
use rust_ulp::{
    Access, Buffer, Completion, Cq, Device, Endpoint, Error, Gid, Grant, Mtu, PreparedQp, Qp,
    RemoteSlice, Status,
};
use serde::{Deserialize, Serialize};
use std::collections::hash_map::RandomState;
use std::fmt::Display;
use std::hash::{BuildHasher, Hasher};
use std::net::TcpStream;
use std::process::{Command, ExitCode};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

const PORT: u16 = 18517;
/// Half of the memory is for messages out, half for messages in.
const LEN: usize = 16_384;
/// The deadline of each step: somebody may read what `--pause` shows.
const PATIENCE: Duration = Duration::from_secs(1800);
/// The timeout of an acknowledgement.
const ACK: Duration = Duration::from_millis(500);
const RETRIES: u8 = 3;
/// Reads of a burst.
const BURST: u64 = 8;

const TEXTS: Texts = [include_str!("steps/en.txt"), include_str!("steps/zh.txt")];

/// Arguments of `ulp steps`.
#[derive(Debug, Args)]
pub struct Steps {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Serves one client, which writes, sends and reads.
    #[command(visible_alias = "server")]
    Serve {
        /// Listen at this address only.
        #[arg(long, value_name = "ADDRESS", default_value = "::")]
        listen: String,
        #[command(flatten)]
        common: Common,
    },
    /// Connects to a server, writes, sends and reads.
    #[command(visible_alias = "client")]
    Connect {
        /// Host of `ulp steps serve`.
        host: String,
        /// Make this classic mistake, and explain its symptom.
        #[arg(long = "break", value_enum, value_name = "WHAT")]
        mistake: Option<Mistake>,
        /// Show the outcome alone, and ask which mistake it was; the status is 1 when the answer is wrong.
        #[arg(short, long, requires = "mistake")]
        quiet: bool,
        #[command(flatten)]
        data: Data,
        #[command(flatten)]
        common: Common,
    },
}

/// What the client moves.
#[derive(Debug, Args)]
struct Data {
    /// Text of the messages.
    #[arg(short, long, default_value = "hello, step by step")]
    message: String,
    /// Bytes of a message: the text, cut or repeated [default: the length of the text].
    #[arg(short, long, value_name = "SIZE", value_parser = size_in(1..=8192, "1 byte and 8KiB"))]
    size: Option<u32>,
    /// Writes, sends and reads.
    #[arg(short = 'n', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
}

impl Data {
    fn bytes(&self) -> Result<Vec<u8>> {
        ensure!(!self.message.is_empty(), "the message is empty");
        let len = self.size.map_or(self.message.len(), |size| size as usize);
        ensure!(
            len <= LEN / 2,
            "the message has more than {} bytes",
            LEN / 2
        );
        Ok(self.message.bytes().cycle().take(len).collect())
    }
}

#[derive(Debug, Args)]
struct Common {
    #[command(flatten)]
    lang: LangArg,
    /// Wait for Enter before each step, so that its effects can be looked at (`ulp qp`).
    #[arg(long)]
    pause: bool,
    /// TCP port of the server.
    #[arg(short, long, default_value_t = PORT)]
    port: u16,
    /// Index of this end's GID [default: the one that `ulp gids` marks *].
    #[arg(short = 'x', long, value_name = "INDEX")]
    gid_index: Option<u8>,
    #[command(flatten)]
    device: DeviceArg,
}

/// A classic mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
enum Mistake {
    /// The path leads to a GID that is not the peer's.
    Gid,
    /// The index is that of a GID of the other family: IPv6 towards an IPv4 peer, or the reverse.
    Family,
    /// The sequence number of the first packet is not the one that the peer expects.
    Psn,
    /// The peer has posted no receive.
    Rnr,
    /// The key is not the one that the peer granted.
    Rkey,
    /// The ends have different MTUs.
    Mtu,
    /// The peer is gone.
    Timeout,
    /// Packets are lost. As root; it sets a rule of nft.
    Loss,
    /// A short buffer, and no flow control. As root; it sets a rule of nft.
    Pfc,
    /// One of the others, except `family`, which the error message names.
    Random,
}

impl Mistake {
    /// Those that fail by the status of a request; [`Self::Random`] draws one of them.
    const ALL: [Self; 8] = [
        Self::Gid,
        Self::Psn,
        Self::Rnr,
        Self::Rkey,
        Self::Mtu,
        Self::Timeout,
        Self::Loss,
        Self::Pfc,
    ];

    /// Returns the mistake; a drawn one for [`Self::Random`].
    fn drawn(self) -> Self {
        if self != Self::Random {
            return self;
        }
        // Each state has a key of its own, which is random.
        let number = RandomState::new().build_hasher().finish() as usize;
        let drawn = Self::ALL.get(number % Self::ALL.len());
        drawn.copied().unwrap_or(Self::Gid)
    }

    fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Returns one of its texts: `mistake`, `symptom` or `cure`.
    fn text(self, lang: Lang, part: &str) -> &'static str {
        lang.text(TEXTS, &format!("{}.{part}", self.name()))
    }

    /// The possible statuses of the request.
    fn statuses(self) -> &'static [Status] {
        match self {
            Self::Gid | Self::Psn | Self::Timeout => &[Status::RetryExceeded],
            Self::Rnr => &[Status::RnrRetryExceeded],
            Self::Rkey => &[Status::RemoteAccess],
            Self::Mtu => &[
                Status::RemoteInvalidRequest,
                Status::RemoteOperation,
                Status::RetryExceeded,
            ],
            Self::Loss | Self::Pfc => &[Status::Success, Status::RetryExceeded],
            // Without a connection, there is no request.
            Self::Family | Self::Random => &[],
        }
    }

    /// Returns commands of nft that drop packets, if the mistake needs that.
    ///
    /// They replace those of an earlier run. A signal may end this program before the rule is
    /// deleted: it drops nothing after a minute, when the set is empty.
    fn rules(self) -> Option<String> {
        let which = match self {
            Self::Loss => "numgen inc mod 2 == 0",
            Self::Pfc => "limit rate over 10 kbytes/second burst 6 kbytes",
            _ => return None,
        };
        Some(format!(
            "add table inet ulp_steps; delete table inet ulp_steps; add table inet ulp_steps; \
             add set inet ulp_steps ports {{ type inet_service; flags timeout; \
             elements = {{ 4791 timeout 60s }} }}; \
             add chain inet ulp_steps input {{ type filter hook input priority 0; }}; \
             add rule inet ulp_steps input udp dport @ports {which} drop"
        ))
    }

    /// Drops packets from the peer by a rule of nft, until the value is dropped.
    fn bad_line(self) -> Result<Option<BadLine>> {
        let Some(rules) = self.rules() else {
            return Ok(None);
        };
        let status = Command::new("nft").arg(rules).status();
        let status = status.context("nft: install it (package nftables)")?;
        ensure!(status.success(), "nft failed: run this as root");
        Ok(Some(BadLine))
    }
}

/// A rule that drops packets.
struct BadLine;

impl Drop for BadLine {
    fn drop(&mut self) {
        let _ = Command::new("nft")
            .args(["delete", "table", "inet", "ulp_steps"])
            .status();
    }
}

/// Returns the hardware counters of a port of a device, by netlink: in the network namespace of one
/// host, sysfs has none.
fn counters(device: &str, port: u32) -> Result<Vec<(String, u64)>> {
    let devices = netlink::devices().context("listing the RDMA devices by netlink")?;
    let device = devices.iter().find(|it| it.name == device);
    let device = device.context("the RDMA device is gone")?;
    let read = netlink::counters(device.index, port);
    let read = read.context("reading the hardware counters by netlink")?;
    Ok(read.unwrap_or_default())
}

/// Prints the steps.
struct Teller {
    lang: Lang,
    pause: bool,
    /// Nothing is shown: it would tell the mistake.
    quiet: bool,
    step: u32,
}

impl Teller {
    /// Prints the title of a step, and the functions of libibverbs that it stands for.
    fn step(&mut self, key: &str, verbs: &str) -> Result<()> {
        self.step += 1;
        if self.quiet {
            return Ok(());
        }
        if self.pause && self.step > 1 {
            message!("    {}", self.lang.text(TEXTS, "pause"));
            // The end of the input is as good as Enter.
            std::io::stdin().read_line(&mut String::new())?;
        }
        let title = self.lang.text(TEXTS, &format!("step.{key}"));
        let verbs = if verbs.is_empty() {
            String::new()
        } else {
            format!("   ({verbs})")
        };
        print(&format!("\n[{}] {title}{verbs}", self.step))
    }

    /// Prints a parameter, its value, and its meaning.
    fn value(&self, name: &str, value: impl Display) -> Result<()> {
        self.explained(name, value, self.lang.text(TEXTS, name))
    }

    fn explained(&self, name: &str, value: impl Display, meaning: &str) -> Result<()> {
        if self.quiet {
            return Ok(());
        }
        print(&parameter(name, value, meaning))
    }

    /// Prints the state machine, with the state of the queue pair marked.
    fn state(&self, now: QpState) -> Result<()> {
        if self.quiet {
            return Ok(());
        }
        let states = [
            (QpState::Reset, "RESET"),
            (QpState::Init, "INIT"),
            (QpState::Rtr, "RTR"),
            (QpState::Rts, "RTS"),
        ];
        let drawn: Vec<String> = states
            .iter()
            .map(|(state, name)| match *state == now {
                true => format!("[{name}]"),
                false => format!(" {name} "),
            })
            .collect();
        let error = if now == QpState::Err {
            "[ERR]"
        } else {
            " ERR "
        };
        print(&format!("    {} --> (any) -->{error}", drawn.join("-->")))
    }
}

/// Formats a parameter, its value, which may be the peer's, and its meaning.
fn parameter(name: &str, value: impl Display, meaning: &str) -> String {
    let value = printable(&value.to_string());
    format!("    {name:20} = {value}\n    {:20}   {meaning}", "")
}

/// The message that each end sends.
#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    end: Endpoint,
    memory: RemoteSlice,
    rounds: u32,
    mistake: Option<Mistake>,
    quiet: bool,
}

struct Tcp(TcpStream);

impl Tcp {
    fn send(&self, hello: &Hello) -> Result<()> {
        wire::send(&self.0, hello)
    }

    fn receive(&self) -> Result<Hello> {
        wire::receive(&self.0, PATIENCE, None)
    }

    /// Waits until both ends call this.
    fn meet(&self) -> Result<()> {
        wire::send(&self.0, &())?;
        wire::receive(&self.0, PATIENCE, None)
    }
}

struct End {
    teller: Teller,
    device: Device,
    gid: Gid,
    gid_index: u8,
    port: u32,
    cq: Cq,
    buffer: Buffer,
    grant: Grant,
    qp: PreparedQp<Rc>,
}

impl End {
    /// Creates all objects that do not depend on the peer.
    fn make(common: &Common, quiet: bool) -> Result<Self> {
        let mut t = Teller {
            lang: common.lang.get(),
            pause: common.pause,
            quiet,
            step: 0,
        };
        t.step("devices", "ibv_get_device_list")?;
        let devices: Vec<_> = Device::list()?
            .into_iter()
            .map(|entry| format!("{}{}", entry.name, if entry.is_default { "*" } else { "" }))
            .collect();
        t.value("devices", devices.join(", "))?;
        t.step("open", "ibv_open_device, ibv_query_port, ibv_query_gid")?;
        let device = common.device.open()?;
        t.value("device", device.name())?;
        let chosen = device.default_gid()?;
        let (port, mut gid, mut index) = (chosen.port, chosen.gid, chosen.gid_index);
        if let Some(wanted) = common.gid_index {
            let entries = device.gids(port)?;
            let entry = entries.iter().find(|entry| entry.index == wanted);
            let entry = entry.with_context(|| {
                format!("GID index {wanted} of port {port} is empty; `ulp gids` lists them")
            })?;
            (gid, index) = (entry.gid, wanted);
        }
        let info = device.port(port)?;
        t.value(
            "port",
            format!(
                "{port}: {:?}, {} bytes, {:?}",
                info.state, info.active_mtu, info.link_layer
            ),
        )?;
        t.value("GID", format!("{gid} (index {index})"))?;
        t.step("pd", "ibv_alloc_pd")?;
        let pd = device.alloc_pd()?;
        t.value("domain", "PD")?;
        t.step("cq", "ibv_create_cq")?;
        let cq = device.create_cq(32)?;
        t.value("entries", cq.entries())?;
        t.step("memory", "ibv_reg_mr")?;
        let buffer = pd.alloc_buffer(LEN)?;
        let rights = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let grant = buffer.grant(.., rights)?;
        t.value("lkey", "-")?;
        t.value("rkey", format!("{:#x}", grant.remote().rkey()))?;
        t.value("length", LEN)?;
        t.step("qp", "ibv_create_qp")?;
        let qp = pd.qp_builder::<Rc>(&cq).build()?;
        t.value("qp_num", qp.qp_num())?;
        let caps = qp.caps();
        t.value(
            "capacities",
            format!(
                "{} + {} requests, {} + {} elements, {} bytes",
                caps.max_send_wr,
                caps.max_recv_wr,
                caps.max_send_sge,
                caps.max_recv_sge,
                caps.max_inline
            ),
        )?;
        qp.modify(QpAttr::to(QpState::Reset))?;
        t.state(qp.query()?.state)?;
        t.step("init", "ibv_modify_qp")?;
        qp.modify(
            QpAttr::to(QpState::Init)
                .pkey_index(0)
                .port(port)
                .access(rights),
        )?;
        t.value("pkey_index", 0)?;
        t.value("access", format!("{rights:?}"))?;
        t.state(qp.query()?.state)?;
        Ok(Self {
            teller: t,
            gid,
            gid_index: index,
            port,
            device,
            cq,
            buffer,
            grant,
            qp,
        })
    }

    fn hello(&self, rounds: u32, mistake: Option<Mistake>) -> Hello {
        let mut end = self.qp.endpoint();
        end.gid = self.gid;
        Hello {
            end,
            memory: self.grant.remote(),
            rounds,
            mistake,
            quiet: self.teller.quiet,
        }
    }

    /// Prints what the peer says of its end.
    fn told(&self, hello: &Hello) -> Result<()> {
        let (t, end, memory) = (&self.teller, hello.end, hello.memory);
        t.value("qp_num, psn", format!("{}, {:#x}", end.qp_num, end.psn))?;
        t.explained("GID", end.gid, t.lang.text(TEXTS, "peer GID"))?;
        let (rkey, addr, len) = (memory.rkey(), memory.addr(), memory.len());
        t.value("rkey, addr, len", format!("{rkey:#x}, {addr:#x}, {len}"))
    }

    /// Fails to move the queue pair to RTR, by a source GID of another family than the peer's, and
    /// explains why.
    fn wrong_family(mut self, peer: &Endpoint) -> Result<()> {
        let is_ipv4 = peer.gid.ipv4().is_some();
        let gids = self.device.gids(self.port)?;
        let wrong = gids.iter().find(|gid| {
            gid.gid_type == GidType::RoceV2 && gid.interface.is_some() && gid.is_ipv4 != is_ipv4
        });
        let wrong = wrong.with_context(|| {
            let other = if is_ipv4 { "IPv6" } else { "IPv4" };
            format!("this host has no {other} GID to use by mistake: give its interface an {other} address")
        })?;
        let t = &mut self.teller;
        t.step("rtr", "ibv_modify_qp")?;
        t.value("path.gid", peer.gid)?;
        t.value("sgid_index", format!("{} ({})", wrong.index, wrong.gid))?;
        let path = Path::new(peer.gid, self.port, wrong.index);
        let error = match self.qp.modify(to_rtr(path, peer, self.qp.endpoint().mtu)) {
            Ok(_) => bail!("the transition to RTR succeeded in spite of the mistake"),
            Err(error @ Error::GidFamily { .. }) => error,
            Err(other) => return Err(other.into()),
        };
        let mistake = Mistake::Family;
        t.step("wrong", "")?;
        t.state(self.qp.query()?.state)?;
        t.value("mistake", mistake.text(t.lang, "mistake"))?;
        t.value("error", error)?;
        t.value("symptom", mistake.text(t.lang, "symptom"))?;
        t.value("cure", mistake.text(t.lang, "cure"))
    }

    /// Moves the queue pair from INIT to RTS, with the mistake.
    fn connect(
        mut self,
        peer: &Endpoint,
        mistake: Option<Mistake>,
        is_client: bool,
    ) -> Result<(Connected, Teller)> {
        let (t, here) = (&mut self.teller, self.qp.endpoint());
        let mine = mistake.filter(|_| is_client);
        let mut gid = peer.gid;
        let mut mtu = here.mtu.min(peer.mtu);
        let mut psn = here.psn;
        match mine {
            // The own device may have a queue pair with the peer's number. A packet with a later
            // sequence number is not acknowledged there; one with an earlier number would count as
            // a duplicate.
            Some(Mistake::Gid) => {
                (gid, psn) = (self.gid, peer.psn.wrapping_add(0x1000) & 0xff_ffff)
            }
            Some(Mistake::Psn) => psn = psn.wrapping_add(0x1000) & 0xff_ffff,
            _ => {}
        }
        if mistake == Some(Mistake::Mtu) {
            mtu = if is_client { Mtu::B1024 } else { Mtu::B256 };
        }
        t.step("rtr", "ibv_modify_qp")?;
        let path = Path::new(gid, self.port, self.gid_index);
        let path = self.qp.modify(to_rtr(path, peer, mtu))?;
        t.value("path.gid", path.gid)?;
        t.value("sgid_index", path.gid_index)?;
        t.value("hop_limit", path.hop_limit)?;
        t.value("traffic_class", format!("{:?}", path.traffic_class))?;
        t.value("flow_label", format!("{:#x}", path.flow_label))?;
        t.value("path_mtu", mtu.bytes())?;
        t.value("dest_qp_num", peer.qp_num)?;
        t.value("rq_psn", format!("{:#x}", peer.psn))?;
        t.value(
            "min_rnr_timer",
            RnrTimer::at_least(Duration::from_millis(10)),
        )?;
        t.state(self.qp.query()?.state)?;
        t.step("rts", "ibv_modify_qp")?;
        let timeout = AckTimeout::at_least(ACK);
        self.qp.modify(
            QpAttr::to(QpState::Rts)
                .sq_psn(psn)
                .timeout(timeout)
                .retry_cnt(Retries::new(RETRIES)?)
                .rnr_retry(RnrRetries::new(RETRIES)?)
                .max_rd_atomic(1),
        )?;
        t.value("sq_psn", format!("{psn:#x}"))?;
        t.value("timeout", timeout)?;
        t.value("retry_cnt", RETRIES)?;
        t.value("rnr_retry", RETRIES)?;
        let qp = self.qp.into_connected()?;
        t.state(qp.query()?.state)?;
        let Self {
            teller,
            device,
            port,
            cq,
            buffer,
            grant,
            ..
        } = self;
        Ok((
            Connected {
                before: counters(device.name(), port)?,
                device,
                port,
                qp,
                cq,
                buffer,
                _grant: grant,
            },
            teller,
        ))
    }
}

/// Returns the attributes of the transition to RTR.
fn to_rtr(path: Path, peer: &Endpoint, mtu: Mtu) -> QpAttr {
    QpAttr::to(QpState::Rtr)
        .path(path)
        .path_mtu(mtu)
        .dest_qp_num(peer.qp_num)
        .rq_psn(peer.psn)
        .max_dest_rd_atomic(1)
        .min_rnr_timer(RnrTimer::at_least(Duration::from_millis(10)))
}

struct Connected {
    device: Device,
    port: u32,
    before: Vec<(String, u64)>,
    qp: Qp<Rc>,
    cq: Cq,
    buffer: Buffer,
    _grant: Grant,
}

impl Connected {
    fn done(&self, t: &Teller) -> Result<Completion> {
        let done = self.cq.wait(PATIENCE)?;
        t.value("completion", done)?;
        Ok(done)
    }

    /// Returns the errors that the device has counted since the queue pair was connected.
    fn counted(&self) -> Result<String> {
        let now = counters(self.device.name(), self.port)?;
        let risen: Vec<_> = now
            .iter()
            .filter(|(name, _)| name.ends_with("_err") || name.ends_with("_request"))
            .filter_map(|(name, value)| {
                let before = self.before.iter().find(|(other, _)| other == name);
                let more = value.saturating_sub(before.map_or(0, |(_, before)| *before));
                (more > 0).then(|| format!("{name} {more}"))
            })
            .collect();
        Ok(if risen.is_empty() {
            "-".to_owned()
        } else {
            risen.join(", ")
        })
    }
}

fn explain(
    t: &mut Teller,
    mistake: Mistake,
    connected: &Connected,
    done: &Completion,
) -> Result<()> {
    t.step("wrong", "")?;
    t.state(connected.qp.query()?.state)?;
    t.value("mistake", mistake.text(t.lang, "mistake"))?;
    t.explained(
        "status",
        format!("{} ({})", done.status.name(), done.status.code()),
        t.lang.status(done.status),
    )?;
    t.value("counters", connected.counted()?)?;
    t.value("symptom", mistake.text(t.lang, "symptom"))?;
    t.value("cure", mistake.text(t.lang, "cure"))?;
    ensure!(
        mistake.statuses().contains(&done.status),
        "the request should have ended with one of {:?}, and ended with {:?}",
        mistake.statuses(),
        done.status
    );
    Ok(())
}

/// Reads much at once, and returns the first completion that failed, or the last one.
fn burst(t: &mut Teller, connected: &Connected, memory: RemoteSlice) -> Result<Completion> {
    t.step("burst", "ibv_post_send, ibv_poll_cq")?;
    let _line = Mistake::Pfc.bad_line()?;
    for number in 0..BURST {
        let place = connected.buffer.slice(LEN / 2..)?;
        let theirs = memory.slice(..LEN as u64 / 2)?;
        connected
            .qp
            .post(Read::new(theirs, place).wr_id(10 + number))?;
    }
    t.value("bytes", BURST * LEN as u64 / 2)?;
    let mut done = connected.done(t)?;
    for _ in 1..BURST {
        let next = connected.done(t)?;
        if done.status == Status::Success {
            done = next;
        }
    }
    Ok(done)
}

/// Waits until both ends can receive.
fn ready(t: &mut Teller, tcp: &Tcp) -> Result<()> {
    t.step("ready", "")?;
    tcp.meet()?;
    t.value("ready", "RTS")
}

fn server(listen: &str, common: &Common) -> Result<()> {
    let mut end = End::make(common, false)?;
    end.teller.step("exchange", "")?;
    let listener = Listener::bind(Some(&end.device), listen)?;
    message!("listening at {}", listener.local_addr()?);
    // Ctrl-C ends the program.
    let accepted = listener.accept(&AtomicBool::new(false))?;
    let tcp = Tcp(accepted.context("interrupted")?.0);
    let theirs = tcp.receive()?;
    let mistake = theirs.mistake;
    end.teller.quiet = theirs.quiet;
    end.told(&theirs)?;
    tcp.send(&end.hello(0, None))?;
    if mistake != Some(Mistake::Rnr) {
        end.teller.step("recv", "ibv_post_recv")?;
        end.qp
            .post_recv(Recv::new(end.buffer.slice(LEN / 2..)?).wr_id(1))?;
    }
    let (connected, mut t) = end.connect(&theirs.end, mistake, false)?;
    if let Some(mistake) = mistake {
        if mistake == Mistake::Timeout {
            drop(connected.qp);
        }
        // The client's queue pair does not leave INIT.
        if mistake != Mistake::Family {
            ready(&mut t, &tcp)?;
        }
        t.step("wrong", "")?;
        t.value("mistake", mistake.text(t.lang, "mistake"))?;
        // The requests of the client fail; it reports when it is done.
        return tcp.meet();
    }
    ready(&mut t, &tcp)?;
    for round in 1..=theirs.rounds {
        t.step("message", "ibv_poll_cq")?;
        let done = connected.done(&t)?.ok()?;
        let len = done.byte_len as usize;
        let message = connected.buffer.to_vec(LEN / 2..LEN / 2 + len)?;
        t.value("message", String::from_utf8_lossy(&message))?;
        let written = connected.buffer.to_vec(..len)?;
        t.value("written", String::from_utf8_lossy(&written))?;
        ensure!(
            message == written,
            "the message differs from what was written"
        );
        if round < theirs.rounds {
            let place = connected.buffer.slice(LEN / 2..)?;
            connected.qp.post_recv(Recv::new(place).wr_id(1))?;
        }
        tcp.meet()?;
    }
    Ok(())
}

/// Shows what a host sees of the mistake, and asks for its name. Whether the answer is right.
fn ask(t: &Teller, mistake: Mistake, connected: &Connected, done: &Completion) -> Result<bool> {
    let (status, counted) = (done.status, connected.counted()?);
    let names = Mistake::ALL.map(Mistake::name).join(" ");
    print(&format!("status = {} ({})", status.name(), status.code()))?;
    print(&format!("counters = {counted}"))?;
    print(&format!("{} {names}", t.lang.text(TEXTS, "which")))?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    let right = answer.trim() == mistake.name();
    let verdict = t.lang.text(TEXTS, if right { "right" } else { "wrong" });
    print(&format!("{verdict} {}", mistake.name()))?;
    Ok(right)
}

/// Whether the mistake was named, if there was a question.
fn client(
    host: &str,
    mistake: Option<Mistake>,
    quiet: bool,
    data: &Data,
    common: &Common,
) -> Result<bool> {
    let mistake = mistake.map(Mistake::drawn);
    ensure!(
        !(quiet && mistake == Some(Mistake::Family)),
        "the error message of `--break family` names the mistake: run it without --quiet"
    );
    let mut text = data.bytes()?;
    let mut end = End::make(common, quiet)?;
    end.teller.step("exchange", "")?;
    let advice = "is `ulp steps serve` running there?";
    let tcp = Tcp(wire::dial(host, None, wire::CONNECT_TIMEOUT, advice)?);
    tcp.send(&end.hello(data.rounds, mistake))?;
    let theirs = tcp.receive()?;
    end.told(&theirs)?;
    let (peer, mut memory) = (theirs.end, theirs.memory);
    if mistake == Some(Mistake::Rkey) {
        memory = RemoteSlice::new(memory.addr(), memory.len(), memory.rkey() ^ 0x5a)?;
    }
    if mistake == Some(Mistake::Family) {
        end.wrong_family(&peer)?;
        tcp.meet()?;
        return Ok(true);
    }
    let (connected, mut t) = end.connect(&peer, mistake, true)?;
    ready(&mut t, &tcp)?;
    let (qp, buffer) = (&connected.qp, &connected.buffer);
    // With too large packets, only a message of several packets fails.
    if mistake == Some(Mistake::Mtu) {
        text = text.into_iter().cycle().take(LEN / 2).collect();
    }
    let len = text.len();
    let post = |t: &mut Teller, send: bool| -> Result<Completion> {
        if send {
            t.step("send", "ibv_post_send, ibv_poll_cq")?;
        } else {
            t.step("write", "ibv_post_send, ibv_poll_cq")?;
        }
        // After the prompt of the step: no packets are dropped while it waits for Enter.
        let _line = mistake.map_or(Ok(None), Mistake::bad_line)?;
        if send {
            qp.post(Send::new(buffer.slice(..len)?).wr_id(2))?;
        } else {
            qp.post(Write::new(buffer.slice(..len)?, memory.slice(..len as u64)?).wr_id(1))?;
        }
        t.value("bytes", len)?;
        connected.done(t)
    };
    buffer.write_at(0, &text)?;
    if let Some(mistake) = mistake {
        let done = if mistake == Mistake::Pfc {
            burst(&mut t, &connected, memory)?
        } else {
            post(&mut t, mistake == Mistake::Rnr)?
        };
        if done.status == Status::Success && !mistake.statuses().contains(&Status::Success) {
            bail!("the request succeeded in spite of the mistake");
        }
        // The peer need not wait for the answer.
        tcp.meet()?;
        let right = !quiet || ask(&t, mistake, &connected, &done)?;
        t.quiet = false;
        explain(&mut t, mistake, &connected, &done)?;
        return Ok(right);
    }
    for _ in 0..data.rounds {
        buffer.write_at(0, &text)?;
        post(&mut t, false)?.check()?;
        post(&mut t, true)?.check()?;
        t.step("read", "ibv_post_send, ibv_poll_cq")?;
        qp.post(
            Read::new(
                memory.slice(..len as u64)?,
                buffer.slice(LEN / 2..LEN / 2 + len)?,
            )
            .wr_id(3),
        )?;
        connected.done(&t)?.check()?;
        let read = buffer.to_vec(LEN / 2..LEN / 2 + len)?;
        t.value("read", String::from_utf8_lossy(&read))?;
        ensure!(read == text, "the read data differs from the written data");
        tcp.meet()?;
    }
    t.step("end", "ibv_modify_qp, ibv_destroy_qp")?;
    qp.modify(QpAttr::to(QpState::Err))?;
    t.state(qp.query()?.state)?;
    Ok(true)
}

impl Steps {
    pub fn run(self) -> Result<ExitCode> {
        match &self.role {
            Role::Serve { listen, common } => server(&address(listen, common.port), common)?,
            Role::Connect {
                host,
                mistake,
                quiet,
                data,
                common,
            } => {
                let host = address(host, common.port);
                if !client(&host, *mistake, *quiet, data, common)? {
                    return Ok(ExitCode::FAILURE);
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lang::keys;

    #[test]
    fn a_terminal_gets_no_control_characters_of_a_peer() {
        let text = parameter("GID", "fe80::1\x1b]0;title\x07\n[12] done", "its address");
        assert_eq!(text.lines().count(), 2, "{text:?}");
        assert!(text.contains("fe80::1?]0;title??[12] done\n"), "{text:?}");
    }

    #[test]
    fn a_rule_that_drops_packets_replaces_an_earlier_one_and_expires() {
        for mistake in Mistake::ALL {
            let Some(rules) = mistake.rules() else {
                continue;
            };
            let begin = "add table inet ulp_steps; delete table inet ulp_steps; add table inet";
            assert!(rules.starts_with(begin), "{rules}");
            assert!(rules.contains("4791 timeout 60s"), "{rules}");
            assert!(rules.contains("udp dport @ports "), "{rules}");
        }
        assert!(Mistake::Loss.rules().is_some() && Mistake::Pfc.rules().is_some());
    }

    #[test]
    fn both_languages_have_the_same_keys() {
        let english = keys(TEXTS);
        for mistake in Mistake::value_variants() {
            if *mistake == Mistake::Random {
                continue;
            }
            for part in ["mistake", "symptom", "cure"] {
                let key = format!("{}.{part}", mistake.name());
                assert!(english.contains(&*key), "{key}");
            }
        }
    }

    #[test]
    fn each_key_of_the_program_has_a_text() {
        let source = include_str!("steps.rs");
        let source = source.split("#[cfg(test)]").next().unwrap_or_default();
        let mut found = 0;
        for (call, prefix) in [
            ("t.step(", "step."),
            ("teller.step(", "step."),
            ("t.value(", ""),
        ] {
            for rest in source.split(call).skip(1) {
                let Some(name) = rest.trim_start().strip_prefix('"') else {
                    continue;
                };
                let key = format!("{prefix}{}", name.split('"').next().unwrap_or_default());
                assert!(!Lang::En.text(TEXTS, &key).is_empty(), "{key}");
                found += 1;
            }
        }
        assert!(found > 40, "{found}");
    }
}
