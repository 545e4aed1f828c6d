// SPDX-License-Identifier: GPL-2.0

//! rdma_ping: an RDMA kernel module to learn from. docs/reading.md walks through it.
//!
//! It connects each RDMA device with itself and with those before it, moves messages by Send, RDMA
//! Write and RDMA Read, checks each message, and prints how long one takes. iWARP is left out.

#![allow(dead_code, unused_imports, unused_macros)] // The folders below offer more than is used.
#[path = "../bindings/mod.rs"]
mod bindings; // What bindgen makes of the kernel's headers, for the next three alone.
#[path = "../ext/mod.rs"]
mod ext; // What the kernel crate lacks.
#[path = "../logic/mod.rs"]
mod logic;
#[path = "../rdma/mod.rs"]
mod rdma; // The verbs.

use crate::ext::timer::now_ns;
use crate::rdma::{buffer::Buffer, client, device::Device, fast_reg::FastRegQp, mr::access};
use crate::rdma::{mr::Register, path::LocalPath, pd::Pd, qp::Qp, qp_attr, wr};
use ::kernel::{new_mutex, prelude::*, sync::Arc, sync::Mutex};

/// Messages of each operation.
const MESSAGES: u8 = 64;
/// Bytes of a message.
const SIZE: usize = 64;
/// Milliseconds after which a request is given up: `add` holds a lock of the core meanwhile.
const LIMIT: u32 = 10_000;

module! { type: RdmaPing, name: "rdma_ping", description: "An RDMA client", license: "GPL", }

/// The loaded module. Unloading drops the registration, which calls `remove` for each device.
struct RdmaPing(Pin<KBox<client::Registration<Pinger>>>);

impl ::kernel::Module for RdmaPing {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let pinger = pin_init!(Pinger { devices <- new_mutex!(KVec::new()) });
        // Registering calls `add` for each device that is there.
        let registration = client::Registration::new(Arc::pin_init(pinger, GFP_KERNEL)?);
        Ok(Self(KBox::pin_init(registration, GFP_KERNEL)?))
    }
}

/// The client of the RDMA core.
#[pin_data]
struct Pinger {
    /// One for each device. Locked during pings, so that `remove` waits for them.
    #[pin]
    devices: Mutex<KVec<Arc<FastRegQp>>>,
}

impl client::Client for Pinger {
    type Data = FastRegQp; // What the core keeps for the client with each device.
    const NAME: &'static CStr = c"rdma_ping";

    fn slot() -> &'static client::ClientSlot<Self> {
        static SLOT: client::ClientSlot<Pinger> = client::ClientSlot::new();
        &SLOT // The callbacks find the client here.
    }

    fn add(&self, device: &Device) -> Result<Arc<FastRegQp>> {
        // The queue pair that registers memory in a new protection domain.
        let new = FastRegQp::new(Pd::new(device)?)
            .inspect_err(|err| pr_err!("{device} is not used: {err:?}\n"))?;
        let mut devices = self.devices.lock();
        devices.push(new.clone(), GFP_KERNEL)?;
        for peer in devices.iter() {
            let to = peer.pd().device();
            match ping(&new, peer) {
                Ok([s, w, r]) => pr_info!("{device} to {to}: send {s} write {w} read {r} ns\n"),
                Err(err) => pr_err!("{device} to {to}: {err:?}\n"),
            }
        }
        Ok(new)
    }

    fn remove(&self, _device: &Device, gone: Arc<FastRegQp>) {
        // The last references: nothing of the client is left on the device.
        self.devices.lock().retain(|kept| !Arc::ptr_eq(kept, &gone));
    }
}

/// Connects two queue pairs; returns the nanoseconds that a Send, a Write and a Read take.
fn ping(from: &Arc<FastRegQp>, to: &Arc<FastRegQp>) -> Result<[u64; 3]> {
    // Each end has a queue pair for one request in each queue, and memory that the peer may use.
    let a = Qp::with_waiters(from.pd(), 1, 1)?;
    let b = Qp::with_waiters(to.pd(), 1, 1)?;
    let rights = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ;
    let near = Buffer::new(from, SIZE, rights)?;
    let far = Buffer::new(to, SIZE, rights)?;
    // Each queue pair gets the path to the other one, its number, and the first packet number.
    let psn = qp_attr::random_psn();
    for (qp, peer, from, to) in [(&a, &b, from, to), (&b, &a, to, from)] {
        let path = LocalPath::find(from.pd().device(), to.pd().device())?;
        qp.bring_up(&path.attributes(peer.number(), psn).with_rights(rights, 1))?;
    }
    // Moves messages from one buffer to the other one, and checks each.
    let run = |source: &Buffer, destination: &Buffer, op: wr::Operation<'_>| -> Result<u64> {
        let mut ns = 0u64;
        for number in 1..=MESSAGES {
            source.write(&[number; SIZE])?;
            let start = now_ns();
            // A Send fills the oldest receive request of the peer: one has to be posted before.
            let received = match op.is_send() {
                true => Some(b.post_recv(far.local()?)?),
                false => None,
            };
            a.post_send(&op, near.local()?)?.wait_within(LIMIT)?;
            received.map_or(Ok(()), |received| received.wait_within(LIMIT))?;
            ns = ns.saturating_add(now_ns().saturating_sub(start));
            destination.check(&[number; SIZE])?; // EBADMSG when something else arrived.
        }
        Ok(ns / u64::from(MESSAGES))
    };
    Ok([
        run(&near, &far, wr::Operation::send())?,
        run(&near, &far, wr::Operation::write_to(far.mr()))?,
        run(&far, &near, wr::Operation::read_from(far.mr()))?,
    ])
}
