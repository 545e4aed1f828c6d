// SPDX-License-Identifier: MIT OR Apache-2.0
//? starter fails: credits

//! Lab 11: messages by credits, then many small writes.
//!
//!     main DEVICE ADDRESS:PORT

use lab::{Line, Result, Wire, LONG};
use rust_ulp::qp::{Rc, RnrRetries};
use rust_ulp::wr::{Recv, Send, Write};
use rust_ulp::{Buffer, Cq, Device, Opcode, Pd, Qp, RemoteSlice};

/// Places of the buffer: receives for the peer's credits, and behind them places to send from.
const CREDITS: usize = 16;
const PLACES: usize = 2 * CREDITS;
/// The depth of a send queue.
const DEPTH: u32 = 64;

fn main() {
    lab::run(work)
}

/// A connection with a completion queue of its own.
struct Lane {
    qp: Qp<Rc>,
    cq: Cq,
    /// What the peer said of its end.
    peer: Line,
}

impl Lane {
    /// Connects to the end of which the peer tells next.
    fn connect(dev: &Device, pd: &Pd, wire: &mut Wire, receives: Option<&Buffer>) -> Result<Self> {
        let peer = wire.hear()?;
        let cq = dev.create_cq(4 * DEPTH)?;
        let qp = pd
            .qp_builder::<Rc>(&cq)
            .max_send_wr(DEPTH)
            // What finds no receive is not sent again: the connection is broken then.
            .rnr_retry(RnrRetries::new(0)?)
            .build()?;
        if let Some(buf) = receives {
            let size = buf.len() / PLACES;
            for place in 0..CREDITS {
                let memory = buf.slice(place * size..(place + 1) * size)?;
                qp.post_recv(Recv::new(memory).wr_id(place as u64))?;
            }
        }
        let own = qp.endpoint();
        wire.say(&format!(
            "qpn={} psn={} gid={}",
            own.qp_num, own.psn, own.gid
        ))?;
        let qp = qp.connect(peer.endpoint()?)?;
        Ok(Self { qp, cq, peer })
    }

    /// Sends messages. `total`: how many receives the peer has posted so far.
    fn send_all(&self, buf: &Buffer, count: u64, mut total: u64) -> Result<()> {
        let size = buf.len() / PLACES;
        let mut free: Vec<usize> = (CREDITS..PLACES).collect();
        let (mut posted, mut sent) = (0, 0);
        while sent < count {
            // learner 1: when may message number `posted` be posted?
            //? let may = posted < count && !free.is_empty();
            let may = posted < count && posted < total && !free.is_empty();
            // end 1
            if may {
                let place = free.pop().ok_or("no place is free")?;
                let number = u64::to_be_bytes(posted).repeat(size / 8);
                // learner 2: this registers memory for each message. `buf` is registered: use its place `place`
                //? let fresh = self.qp.pd().alloc_buffer(size)?;
                //? fresh.write_at(0, &number)?;
                //? let message = fresh.slice(..)?;
                buf.write_at(place * size, &number)?;
                let message = buf.slice(place * size..(place + 1) * size)?;
                // end 2
                self.qp.post(Send::new(message).wr_id(place as u64))?;
                posted += 1;
                continue;
            }
            let done = self.cq.wait(LONG)?.ok()?;
            let place = done.wr_id as usize;
            if done.opcode != Opcode::Recv {
                free.push(place);
                sent += 1;
                continue;
            }
            let mut credits = [0; 8];
            buf.read_at(place * size, &mut credits)?;
            // learner 3: the peer has posted `credits` receives since the beginning, big endian; more will follow
            //? let _ = (&mut total, credits);
            total = u64::from_be_bytes(credits);
            let memory = buf.slice(place * size..(place + 1) * size)?;
            self.qp.post_recv(Recv::new(memory).wr_id(place as u64))?;
            // end 3
        }
        Ok(())
    }

    /// Writes the numbers from `first` on into the peer's memory, 8 bytes each, big endian.
    fn write_all(&self) -> Result<()> {
        let (first, count) = (self.peer.number("first")?, self.peer.number("writes")?);
        let (addr, rkey) = (self.peer.number("addr")?, self.peer.short("rkey")?);
        let to = RemoteSlice::new(addr, 8 * count, rkey)?;
        // learner 4: right, and slow: a system call and a completion for each write. With `poll=1`, never sleep
        //? for n in 0..count {
        //?     let number = u64::to_be_bytes(first + n);
        //?     let write = Write::inline_bytes(&number, to.slice(8 * n..8 * n + 8)?);
        //?     self.qp.post(write)?;
        //?     self.cq.wait(LONG)?.check()?;
        //? }
        let polls = self.peer.number("poll")? == 1;
        let numbers: Vec<[u8; 8]> = (first..first + count).map(u64::to_be_bytes).collect();
        let mut at = 0;
        for list in numbers.chunks(DEPTH as usize) {
            let mut batch = self.qp.batch();
            for (i, number) in list.iter().enumerate() {
                let write = Write::inline_bytes(number, to.slice(at..at + 8)?);
                // The last one tells of those before it, and frees their places in the queue.
                batch.push(write.signaled(i + 1 == list.len()))?;
                at += 8;
            }
            let done = if polls {
                batch.submit()?;
                lab::until(|| Ok(self.cq.poll()?))?
            } else {
                batch.submit_and_wait(1, LONG)?;
                // It is there: this makes no system call.
                self.cq.wait(LONG)?
            };
            done.check()?;
        }
        // end 4
        Ok(())
    }
}

fn work(args: &[&str]) -> Result<()> {
    let [device, addr] = *args else {
        return Err("usage: main DEVICE ADDRESS:PORT".into());
    };
    let mut wire = Wire::connect(addr)?;
    let plan = wire.hear()?;
    let size = plan.number("size")? as usize;
    let dev = Device::open(device)?;
    let pd = dev.alloc_pd()?;
    let buf = pd.alloc_buffer(PLACES * size)?;
    let messages = Lane::connect(&dev, &pd, &mut wire, Some(&buf))?;
    let lanes = (0..plan.number("lanes")?)
        .map(|_| Lane::connect(&dev, &pd, &mut wire, None))
        .collect::<Result<Vec<_>>>()?;
    wire.say("connected")?;
    wire.wait_for("send")?;
    messages.send_all(&buf, plan.number("count")?, plan.number("receives")?)?;
    wire.say("sent")?;
    wire.wait_for("write")?;
    // learner 5: one processor does all of it. A lane shares nothing with the others
    //? for lane in &lanes {
    //?     lane.write_all()?;
    //? }
    std::thread::scope(|scope| {
        let run = |lane: &Lane| lane.write_all().map_err(|error| error.to_string());
        let threads: Vec<_> = lanes
            .iter()
            .map(|lane| scope.spawn(move || run(lane)))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| "a thread broke off")?)
    })?;
    // end 5
    wire.say("written")?;
    wire.wait_for("bye")
}
