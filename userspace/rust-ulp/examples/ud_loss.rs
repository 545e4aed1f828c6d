// SPDX-License-Identifier: MIT OR Apache-2.0

//! Numbered datagrams over a network that loses some, and which of them those were.
//!
//!     ud_loss listen                  # on one host; prints its GID and number
//!     ud_loss GID NUMBER 100          # on the other: so many datagrams
//!
//! The sender's completions say success for all of them: they have left. Only who receives can tell what is lost, and
//! only because they are numbered. What has to arrive, here the question at the end, is sent until an answer comes.

use rust_ulp::qp::Ud;
use rust_ulp::wr::{Recv, SendTo};
use rust_ulp::{Buffer, Cq, Device, Endpoint, Error, Grh, Mtu, Qp};
use std::{collections::BTreeSet, time::Duration};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
const LONG: Duration = Duration::from_secs(60);
const ROOM: u32 = 512; // receives: a datagram that finds none is lost, too

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["listen"] => listen(),
        [gid, number, count] => send(gid, number, count),
        _ => Err("usage: ud_loss listen | ud_loss GID NUMBER COUNT".into()),
    };
    if let Err(line) = result.map_err(|error| format!("ud_loss: {error}\n")) {
        eprint!("{line}"); // one write, so that lines of two programs do not mix
        std::process::exit(1)
    }
}

fn open() -> Result<(Qp<Ud>, Cq, Buffer)> {
    let dev = Device::open_default()?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(2 * ROOM)?);
    let buf = pd.alloc_buffer(Grh::LEN + 8)?; // all come to one place: what they say comes beside
    let qp = pd.qp_builder::<Ud>(&cq).max_recv_wr(ROOM).build()?;
    (0..ROOM).try_for_each(|_| qp.post_recv(Recv::new(buf.slice(..)?)))?;
    Ok((qp.ready()?, cq, buf))
}

fn listen() -> Result<()> {
    let (qp, cq, buf) = open()?;
    println!("{} {}", qp.local().gid, qp.qp_num());
    let mut come = BTreeSet::new();
    loop {
        let done = cq.wait(LONG)?.ok()?;
        let got = qp.received(&done, &buf.slice(..)?)?;
        if got.payload.is_empty() {
            come.extend(got.imm);
            continue;
        }
        let count = got.imm.unwrap_or(0); // of the question
        let lost: Vec<_> = (0..count).filter(|n| !come.contains(n)).collect();
        println!("{} of {count} have come; lost: {lost:?}", come.len());
        qp.post(SendTo::empty(&qp.reply_to(&got)?).imm(lost.len() as u32))?;
        return Ok(cq.wait(LONG)?.ok().map(drop)?); // it has left; whether it arrives, nobody says
    }
}

fn send(gid: &str, number: &str, count: &str) -> Result<()> {
    let ((qp, cq, _buf), count) = (open()?, count.parse::<u32>()?);
    let peer = Endpoint::new(number.parse()?, 0, gid.parse()?, Mtu::B1024);
    let to = qp.address(&peer)?.queue_pair(peer.qp_num, qp.qkey());
    for n in 0..count {
        qp.post(SendTo::empty(&to).imm(n))?;
        println!("{}", cq.wait(LONG)?.ok()?);
    }
    for _ in 0..5 {
        let question = SendTo::inline_bytes(b"and?", &to).imm(count);
        qp.post(question.signaled(false))?;
        match cq.wait(Duration::from_secs(2)) {
            Err(Error::Timeout { .. }) => println!("no answer: asking again"),
            done => {
                println!("{} lost", done?.ok()?.imm.unwrap_or(0));
                return Ok(());
            }
        }
    }
    Err("nobody answers".into())
}
