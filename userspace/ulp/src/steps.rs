// SPDX-License-Identifier: MIT OR Apache-2.0

//! `ulp steps`: a connection step by step, with the meaning of each parameter, and the classic
//! mistakes.

use crate::args::{address, DeviceArg};
use crate::output::print;
use anyhow::{bail, ensure, Context, Result};
use clap::{Args, Subcommand, ValueEnum};
use rust_ulp::{
    Access, AckTimeout, Buffer, Completion, Cq, Device, Endpoint, Grant, Mtu, PreparedQp, Qp,
    QpAttr, QpState, Rc, Read, Recv, RemoteSlice, Retries, RnrRetries, RnrTimer, Send, Status,
    Write,
};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

const PORT: u16 = 18517;
const LEN: usize = 16_384;
const TEXT: &str = "hello, step by step";
/// The deadline of each step.
const PATIENCE: Duration = Duration::from_secs(120);
/// The timeout of an acknowledgement.
const ACK: Duration = Duration::from_millis(500);
const RETRIES: u8 = 3;

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
        #[command(flatten)]
        common: Common,
    },
}

#[derive(Debug, Args)]
struct Common {
    /// Language of the explanations.
    #[arg(long, value_enum, default_value_t = Lang::En)]
    lang: Lang,
    /// TCP port of the server.
    #[arg(short, long, default_value_t = PORT)]
    port: u16,
    #[command(flatten)]
    device: DeviceArg,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Lang {
    En,
    Zh,
}

/// A classic mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
enum Mistake {
    /// The path leads to a GID that is not the peer's.
    Gid,
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
}

/// A text in both languages.
struct Said(&'static str, &'static str);

impl Said {
    fn in_lang(&self, lang: Lang) -> &'static str {
        match lang {
            Lang::En => self.0,
            Lang::Zh => self.1,
        }
    }
}

/// The explanation of a mistake.
struct Lesson {
    /// The possible statuses of the request.
    statuses: &'static [Status],
    mistake: Said,
    symptom: Said,
    cure: Said,
}

impl Mistake {
    fn lesson(self) -> Lesson {
        let lesson = |statuses, mistake, symptom, cure| Lesson {
            statuses,
            mistake,
            symptom,
            cure,
        };
        match self {
            Self::Gid => lesson(
                &[Status::RetryExceeded],
                Said("the path leads to a GID that is not the peer's", "路径指向的 GID 不是对端的 GID"),
                Said(
                    "both ends are in RTS, but nobody answers: the packets go to a host that has no such queue pair",
                    "两端都到了 RTS，却没有应答：报文发到了没有这个队列对的主机",
                ),
                Said(
                    "compare `ulp gids` at both ends with what was exchanged; use the GID marked *; ulp diagnose HOST",
                    "用 `ulp gids` 核对两端交换的 GID，使用带 * 的那个；再运行 ulp diagnose HOST",
                ),
            ),
            Self::Psn => lesson(
                &[Status::RetryExceeded],
                Said(
                    "sq_psn here is not rq_psn at the peer",
                    "本端 sq_psn 与对端 rq_psn 不一致",
                ),
                Said(
                    "the peer takes every packet for one that came too early, and asks for those before it, until the retries are used up",
                    "对端认为每个报文都来得太早，一再要求重发之前的报文，直到重试次数用完",
                ),
                Said(
                    "exchange the numbers anew for each queue pair: rq_psn of each end is sq_psn of the other (Qp::query() tells both)",
                    "每建一个队列对都重新交换 PSN：一端的 rq_psn 必须等于另一端的 sq_psn（用 Qp::query() 查看）",
                ),
            ),
            Self::Rnr => lesson(
                &[Status::RnrRetryExceeded],
                Said("the peer has posted no receive", "对端没有提交接收请求"),
                Said(
                    "the network is fine: the peer's device answers 'receiver not ready' each time, until rnr_retry is used up",
                    "网络正常：对端网卡每次都回答“接收方未就绪”，直到 rnr_retry 用完",
                ),
                Said(
                    "post receives before the peer sends, and a new one for each that completes",
                    "在对端发送之前先提交接收请求，每完成一个就补上一个",
                ),
            ),
            Self::Rkey => lesson(
                &[Status::RemoteAccess],
                Said("the key is not the one that the peer gave", "rkey 不是对端给出的那个"),
                Said(
                    "the peer's device refuses at once, and takes its queue pair to ERR; the network is fine",
                    "对端网卡立即拒绝，并把它的队列对置为 ERR；网络正常",
                ),
                Said(
                    "take address, length and key from the exchange; keys of an earlier run, or revoked ones, are worth nothing",
                    "地址、长度和 rkey 都要取自本次交换；上一次运行的或已撤销的 rkey 无效",
                ),
            ),
            Self::Mtu => lesson(
                &[Status::RemoteInvalidRequest, Status::RemoteOperation, Status::RetryExceeded],
                Said(
                    "path_mtu is larger here than at the peer",
                    "本端 path_mtu 大于对端",
                ),
                Said(
                    "messages of one small packet arrive, larger ones do not: the peer's device finds packets longer than can be",
                    "只有一个小报文的消息能到达，大消息不行：对端网卡收到的报文长度不合法",
                ),
                Said(
                    "both ends take the smaller one of both: PreparedQp::connect() does so; ip link show tells the interfaces'",
                    "两端都取较小的 MTU（PreparedQp::connect() 会这样做）；用 ip link show 查看接口 MTU",
                ),
            ),
            Self::Timeout => lesson(
                &[Status::RetryExceeded],
                Said("the peer's queue pair is gone", "对端的队列对已经不在了"),
                Said(
                    "nobody acknowledges; the request fails after (retry_cnt + 1) times the timeout, or longer",
                    "没有确认；至少经过 (retry_cnt + 1) 倍 timeout 之后请求失败",
                ),
                Said(
                    "look why the peer ended; a larger timeout or retry_cnt helps only if it is slow (4.096 us * 2^n each)",
                    "查明对端为何退出；只有在对端太慢时才加大 timeout（4.096 us * 2^n）或 retry_cnt",
                ),
            ),
        }
    }
}

/// Prints the steps.
struct Teller {
    lang: Lang,
    step: u32,
}

impl Teller {
    fn step(&mut self, title: Said) -> Result<()> {
        self.step += 1;
        print(&format!("\n[{}] {}", self.step, title.in_lang(self.lang)))
    }

    /// Prints a parameter, its value, and its meaning.
    fn value(&self, name: &str, value: impl std::fmt::Display, meaning: Said) -> Result<()> {
        print(&format!(
            "    {name:20} = {value}\n    {:20}   {}",
            "",
            meaning.in_lang(self.lang)
        ))
    }

    fn say(&self, said: Said) -> Result<()> {
        print(&format!("    {}", said.in_lang(self.lang)))
    }

    /// Prints the state machine, with the state of the queue pair marked.
    fn state(&self, now: QpState) -> Result<()> {
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

/// The message that each end sends, a line of JSON.
#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    qp_num: u32,
    psn: u32,
    gid: String,
    mtu: u8,
    addr: u64,
    len: u64,
    rkey: u32,
    mistake: Option<Mistake>,
}

struct Tcp(BufReader<TcpStream>);

impl Tcp {
    fn new(tcp: TcpStream) -> Result<Self> {
        tcp.set_read_timeout(Some(PATIENCE))?;
        Ok(Self(BufReader::new(tcp)))
    }

    fn send(&mut self, hello: &Hello) -> Result<()> {
        let line = serde_json::to_string(hello)? + "\n";
        Ok(self.0.get_mut().write_all(line.as_bytes())?)
    }

    fn receive(&mut self) -> Result<Hello> {
        let mut line = String::new();
        self.0.by_ref().take(4096).read_line(&mut line)?;
        serde_json::from_str(&line).context("the peer is not `ulp steps`")
    }

    /// Waits until both ends call this.
    fn meet(&mut self) -> Result<()> {
        self.0.get_mut().write_all(b".")?;
        let mut byte = [0];
        self.0
            .read_exact(&mut byte)
            .context("the peer closed the connection")
    }
}

struct End {
    teller: Teller,
    device: Device,
    cq: Cq,
    buffer: Buffer,
    grant: Grant,
    qp: PreparedQp<Rc>,
}

impl End {
    /// Creates all objects that do not depend on the peer.
    fn make(common: &Common) -> Result<Self> {
        let mut t = Teller {
            lang: common.lang,
            step: 0,
        };
        t.step(Said("open the device", "打开设备"))?;
        let device = common.device.open()?;
        t.value(
            "device",
            device.name(),
            Said(
                "an RDMA device, as `rdma dev` shows it",
                "RDMA 设备，即 `rdma dev` 显示的名字",
            ),
        )?;
        let chosen = device.default_gid()?.clone();
        t.value(
            "GID",
            format!("{} (index {})", chosen.gid, chosen.gid_index),
            Said(
                "this end's address: with RoCE v2 its IP address",
                "本端地址：RoCE v2 下就是 IP 地址",
            ),
        )?;
        t.step(Said("a protection domain", "保护域（PD）"))?;
        let pd = device.alloc_pd()?;
        t.say(Said(
            "queue pairs reach only memory of their own domain",
            "队列对只能访问同一保护域内的内存",
        ))?;
        t.step(Said("a completion queue", "完成队列（CQ）"))?;
        let cq = device.create_cq(16)?;
        t.value(
            "entries",
            cq.entries(),
            Said(
                "completions that it has room for: one for each request in flight",
                "能容纳的完成项：每个在途请求一个",
            ),
        )?;
        t.step(Said("memory, and a key to it", "内存区（MR）与密钥"))?;
        let buffer = pd.alloc_buffer(LEN)?;
        let rights = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let grant = buffer.grant(.., rights)?;
        t.value(
            "rkey",
            format!("{:#x}", grant.remote().rkey()),
            Said(
                "who has it may write and read, until it is revoked",
                "持有者可读写，直到撤销",
            ),
        )?;
        t.value("length", LEN, Said("bytes that it opens", "可访问的字节数"))?;
        t.step(Said(
            "a queue pair (RC: reliable, with one peer)",
            "队列对（RC：可靠，一对一）",
        ))?;
        let qp = pd.create_qp::<Rc>(&cq).build()?;
        t.value(
            "qp_num",
            qp.qp_num(),
            Said(
                "its number, 24 bits: packets carry the receiver's",
                "编号，24 位：报文里带接收方的编号",
            ),
        )?;
        qp.modify(QpAttr::to(QpState::Reset))?;
        t.state(qp.query()?.state)?;
        t.step(Said(
            "RESET -> INIT: it may take receives",
            "RESET -> INIT：可以提交接收请求",
        ))?;
        let port = chosen.port;
        qp.modify(
            QpAttr::to(QpState::Init)
                .pkey_index(0)
                .port(port)
                .access(rights),
        )?;
        t.value(
            "port",
            port,
            Said("of the device, from 1", "设备端口，从 1 开始"),
        )?;
        t.value(
            "pkey_index",
            0,
            Said(
                "the partition; with RoCE there is one",
                "分区；RoCE 只有一个",
            ),
        )?;
        t.value(
            "access",
            format!("{rights:?}"),
            Said(
                "what the peer may do, if a key allows it, too",
                "在密钥也允许时对端可做的操作",
            ),
        )?;
        t.state(qp.query()?.state)?;
        Ok(Self {
            teller: t,
            device,
            cq,
            buffer,
            grant,
            qp,
        })
    }

    fn hello(&self, mistake: Option<Mistake>) -> Hello {
        let (here, remote) = (self.qp.endpoint(), self.grant.remote());
        Hello {
            qp_num: here.qp_num,
            psn: here.psn,
            gid: here.gid.to_string(),
            mtu: here.mtu as u8,
            addr: remote.addr(),
            len: remote.len(),
            rkey: remote.rkey(),
            mistake,
        }
    }

    fn told(&self, hello: &Hello) -> Result<(Endpoint, RemoteSlice)> {
        let t = &self.teller;
        t.value(
            "qp_num, psn",
            format!("{}, {:#x}", hello.qp_num, hello.psn),
            Said(
                "the peer's queue pair, and the number of its first packet",
                "对端队列对，及其首个报文的序号",
            ),
        )?;
        t.value("GID", &hello.gid, Said("the peer's address", "对端地址"))?;
        t.value(
            "rkey, addr, len",
            format!("{:#x}, {:#x}, {}", hello.rkey, hello.addr, hello.len),
            Said("the peer's memory", "对端内存"),
        )?;
        let mtu = Mtu::from_code(hello.mtu).context("the peer sent an invalid MTU")?;
        let gid = hello.gid.parse().context("the peer sent an invalid GID")?;
        Ok((
            Endpoint::new(hello.qp_num, hello.psn, gid, mtu),
            RemoteSlice::new(hello.addr, hello.len, hello.rkey)?,
        ))
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
                (gid, psn) = (here.gid, peer.psn.wrapping_add(0x1000) & 0xff_ffff)
            }
            Some(Mistake::Psn) => psn = psn.wrapping_add(0x1000) & 0xff_ffff,
            _ => {}
        }
        if mistake == Some(Mistake::Mtu) {
            mtu = if is_client { Mtu::B1024 } else { Mtu::B256 };
        }
        t.step(Said(
            "INIT -> RTR: it receives, and knows its peer",
            "INIT -> RTR：可以接收，并知道对端",
        ))?;
        let chosen = self.device.default_gid()?;
        let index = u8::try_from(chosen.gid_index).unwrap_or(0);
        let path = self.qp.modify(
            QpAttr::to(QpState::Rtr)
                .path(rust_ulp::Path::new(gid, chosen.port, index))
                .path_mtu(mtu)
                .dest_qp_num(peer.qp_num)
                .rq_psn(peer.psn)
                .max_dest_rd_atomic(1)
                .min_rnr_timer(RnrTimer::at_least(Duration::from_millis(10))),
        )?;
        t.value(
            "path.gid",
            path.gid,
            Said("where packets go", "报文的目的地址"),
        )?;
        t.value(
            "path_mtu",
            mtu.bytes(),
            Said(
                "bytes of a packet, the same at both ends",
                "每个报文的字节数，两端相同",
            ),
        )?;
        t.value(
            "dest_qp_num",
            peer.qp_num,
            Said("the peer's queue pair", "对端队列对"),
        )?;
        t.value(
            "rq_psn",
            format!("{:#x}", peer.psn),
            Said(
                "the first packet that is waited for: sq_psn of the peer",
                "等待的首个报文序号：对端的 sq_psn",
            ),
        )?;
        t.value(
            "min_rnr_timer",
            RnrTimer::at_least(Duration::from_millis(10)),
            Said(
                "what a peer waits that found no receive",
                "对端发现没有接收请求时应等待的时间",
            ),
        )?;
        t.state(self.qp.query()?.state)?;
        t.step(Said("RTR -> RTS: it sends, too", "RTR -> RTS：也可以发送"))?;
        let timeout = AckTimeout::at_least(ACK);
        self.qp.modify(
            QpAttr::to(QpState::Rts)
                .sq_psn(psn)
                .timeout(timeout)
                .retry_cnt(Retries::new(RETRIES)?)
                .rnr_retry(RnrRetries::new(RETRIES)?)
                .max_rd_atomic(1),
        )?;
        t.value(
            "sq_psn",
            format!("{psn:#x}"),
            Said(
                "the number of the first packet that is sent",
                "发送的首个报文序号",
            ),
        )?;
        t.value(
            "timeout",
            timeout,
            Said(
                "4.096 us * 2^n: then a request is sent again",
                "4.096 us * 2^n：超时后重发",
            ),
        )?;
        t.value("retry_cnt", RETRIES, Said("how often", "重发次数"))?;
        t.value(
            "rnr_retry",
            RETRIES,
            Said(
                "how often after 'receiver not ready'",
                "“接收方未就绪”后的重发次数",
            ),
        )?;
        let qp = self.qp.into_connected()?;
        t.state(qp.query()?.state)?;
        let Self {
            teller,
            cq,
            buffer,
            grant,
            ..
        } = self;
        Ok((
            Connected {
                qp,
                cq,
                buffer,
                _grant: grant,
            },
            teller,
        ))
    }
}

struct Connected {
    qp: Qp<Rc>,
    cq: Cq,
    buffer: Buffer,
    _grant: Grant,
}

impl Connected {
    fn done(&self, t: &Teller) -> Result<Completion> {
        let done = self.cq.wait(PATIENCE)?;
        t.value(
            "completion",
            done,
            Said("how the request ended", "请求的结果"),
        )?;
        Ok(done)
    }
}

fn explain(
    t: &mut Teller,
    mistake: Mistake,
    connected: &Connected,
    done: &Completion,
) -> Result<()> {
    let lesson = mistake.lesson();
    t.step(Said("what went wrong", "错在哪里"))?;
    t.state(connected.qp.query()?.state)?;
    t.value(
        "mistake",
        lesson.mistake.in_lang(t.lang),
        Said("made on purpose (--break)", "故意犯的错误（--break）"),
    )?;
    t.value(
        "status",
        format!("{} ({})", done.status.name(), done.status.code()),
        Said(done.status.explanation(), "完成状态，即 enum ib_wc_status"),
    )?;
    t.value(
        "symptom",
        lesson.symptom.in_lang(t.lang),
        Said("how to know it", "如何识别"),
    )?;
    t.value(
        "cure",
        lesson.cure.in_lang(t.lang),
        Said("what to do", "如何解决"),
    )?;
    ensure!(
        lesson.statuses.contains(&done.status),
        "the request should have failed with one of {:?}, and ended with {:?}",
        lesson.statuses,
        done.status
    );
    Ok(())
}

fn server(listen: &str, common: &Common) -> Result<()> {
    let mut end = End::make(common)?;
    end.teller
        .step(Said("exchange by TCP", "通过 TCP 交换信息"))?;
    let listener = TcpListener::bind(listen).with_context(|| listen.to_owned())?;
    message!("listening at {}", listener.local_addr()?);
    let mut tcp = Tcp::new(listener.accept()?.0)?;
    let theirs = tcp.receive()?;
    let mistake = theirs.mistake;
    let (peer, _) = end.told(&theirs)?;
    tcp.send(&end.hello(None))?;
    if mistake != Some(Mistake::Rnr) {
        end.teller.step(Said(
            "post a receive, before anybody can send",
            "在对端能发送之前提交接收请求",
        ))?;
        end.qp
            .post_recv(Recv::new(end.buffer.slice(LEN / 2..)?).wr_id(1))?;
    }
    let (connected, mut t) = end.connect(&peer, mistake, false)?;
    if mistake == Some(Mistake::Timeout) {
        drop(connected.qp);
        tcp.meet()?;
        return tcp.meet();
    }
    tcp.meet()?;
    if mistake.is_some() {
        // The requests of the client fail; it reports when it is done.
        return tcp.meet();
    }
    t.step(Said("the client's message", "客户端的消息"))?;
    let done = connected.done(&t)?.ok()?;
    let message = connected
        .buffer
        .to_vec(LEN / 2..LEN / 2 + done.byte_len as usize)?;
    t.value(
        "message",
        String::from_utf8_lossy(&message),
        Said(
            "what it sent, in the receive",
            "它发送的内容，在接收缓冲区里",
        ),
    )?;
    let written = connected.buffer.to_vec(..TEXT.len())?;
    t.value(
        "written",
        String::from_utf8_lossy(&written),
        Said(
            "what it wrote before: no completion told of that",
            "它之前写入的内容：没有完成项通知",
        ),
    )?;
    ensure!(
        message == TEXT.as_bytes() && written == TEXT.as_bytes(),
        "the received data differs from the sent data"
    );
    tcp.meet()
}

fn client(host: &str, mistake: Option<Mistake>, common: &Common) -> Result<()> {
    let mut end = End::make(common)?;
    end.teller
        .step(Said("exchange by TCP", "通过 TCP 交换信息"))?;
    let mut tcp = Tcp::new(
        TcpStream::connect(host)
            .with_context(|| format!("{host}: is `ulp steps serve` running there?"))?,
    )?;
    tcp.send(&end.hello(mistake))?;
    let (peer, mut memory) = end.told(&tcp.receive()?)?;
    if mistake == Some(Mistake::Rkey) {
        memory = RemoteSlice::new(memory.addr(), memory.len(), memory.rkey() ^ 0x5a)?;
    }
    let (connected, mut t) = end.connect(&peer, mistake, true)?;
    tcp.meet()?;
    let (qp, buffer) = (&connected.qp, &connected.buffer);
    buffer.write_at(0, TEXT.as_bytes())?;
    // With too large packets, only a message of several packets fails.
    let len = if mistake == Some(Mistake::Mtu) {
        LEN / 2
    } else {
        TEXT.len()
    };
    let post = |t: &mut Teller, send: bool| -> Result<Completion> {
        if send {
            t.step(Said(
                "post a send: the message goes into the peer's receive",
                "提交 SEND：消息进入对端的接收请求",
            ))?;
            qp.post(Send::new(buffer.slice(..len)?).wr_id(2))?;
        } else {
            t.step(Said(
                "post an RDMA Write: the peer's program takes no part",
                "提交 RDMA WRITE：对端程序不参与",
            ))?;
            qp.post(Write::new(buffer.slice(..len)?, memory.slice(..len as u64)?).wr_id(1))?;
        }
        t.value(
            "bytes",
            len,
            Said("of this end's memory", "本端内存中的数据"),
        )?;
        connected.done(t)
    };
    if let Some(mistake) = mistake {
        let done = post(&mut t, mistake == Mistake::Rnr)?;
        if done.status == Status::Success {
            bail!("the request succeeded in spite of the mistake");
        }
        explain(&mut t, mistake, &connected, &done)?;
        return tcp.meet();
    }
    post(&mut t, false)?.check()?;
    post(&mut t, true)?.check()?;
    t.step(Said(
        "post an RDMA Read: what was written comes back",
        "提交 RDMA READ：读回写入的内容",
    ))?;
    qp.post(
        Read::new(
            memory.slice(..len as u64)?,
            buffer.slice(LEN / 2..LEN / 2 + len)?,
        )
        .wr_id(3),
    )?;
    connected.done(&t)?.check()?;
    let read = buffer.to_vec(LEN / 2..LEN / 2 + len)?;
    t.value(
        "read",
        String::from_utf8_lossy(&read),
        Said("the peer's memory", "对端内存中的内容"),
    )?;
    ensure!(
        read == TEXT.as_bytes(),
        "the read data differs from the written data"
    );
    tcp.meet()?;
    t.step(Said(
        "take it down: any state -> ERR, what is in flight is flushed",
        "拆除：任意状态 -> ERR，在途请求被冲刷",
    ))?;
    qp.modify(QpAttr::to(QpState::Err))?;
    t.state(qp.query()?.state)
}

impl Steps {
    pub fn run(self) -> Result<ExitCode> {
        match &self.role {
            Role::Serve { listen, common } => server(&address(listen, common.port), common)?,
            Role::Connect {
                host,
                mistake,
                common,
            } => client(&address(host, common.port), *mistake, common)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
