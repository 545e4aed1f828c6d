// SPDX-License-Identifier: GPL-2.0
//? starter fails: objects

//! Lab 13: an RDMA client in the kernel. It connects each device with itself and with those that
//! it knows, and moves messages by Send, RDMA Write and RDMA Read.

// What the check calls as root, line by line, after insmod:
// learner 5: switch the debug line on, and trace each post down to the driver
//? // run: true
// run: echo 'module lab_ping +p' >/proc/dynamic_debug/control
// run: cd /sys/kernel/tracing
// run: echo rust_ulp_post_send >set_ftrace_filter
// run: echo rxe_post_send >>set_ftrace_filter
// run: echo rust_ulp_post_send >set_graph_function
// run: echo function_graph >current_tracer
// end 5

#![allow(dead_code, unused_imports, unused_macros, unused_variables)]
// bindgen's verbs, what the kernel crate lacks, logic without a kernel, and the verbs for Rust.
#[rustfmt::skip]
#[path = "../bindings/mod.rs"]
mod bindings;
#[rustfmt::skip]
#[path = "../ext/mod.rs"]
mod ext;
#[rustfmt::skip]
#[path = "../logic/mod.rs"]
mod logic;
#[rustfmt::skip]
#[path = "../rdma/mod.rs"]
mod rdma;

use crate::ext::dyndbg::dynamic_pr_debug;
use crate::rdma::{buffer::Buffer, client, device::Device, fast_reg::FastRegQp, mr::access};
use crate::rdma::{mr::Register, path::LocalPath, pd::Pd, qp::Qp, qp_attr, waiter::Waiter, wr};
use ::kernel::{new_mutex, prelude::*, sync::Arc, sync::Mutex};

/// Messages of each operation.
const MESSAGES: u8 = 8;
/// Bytes of a message.
const SIZE: usize = 64;
/// Milliseconds after which a request is given up: longer than all retries take.
const LIMIT: u32 = 5000;

module! { type: LabPing, name: "lab_ping", description: "Lab 13", license: "GPL", }

/// The loaded module. Unloading drops the registration, which calls `remove` for each device.
struct LabPing(Pin<KBox<client::Registration<Pinger>>>);

impl ::kernel::Module for LabPing {
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
    const NAME: &'static CStr = c"lab_ping";

    fn slot() -> &'static client::ClientSlot<Self> {
        static SLOT: client::ClientSlot<Pinger> = client::ClientSlot::new();
        &SLOT
    }

    fn add(&self, device: &Device) -> Result<Arc<FastRegQp>> {
        // learner 1: the queue pair that registers memory, in a new protection domain of `device`
        //? let new = Err::<Arc<FastRegQp>, Error>(ENODEV)?;
        let new = FastRegQp::new(Pd::new(device)?)?;
        // end 1
        let mut devices = self.devices.lock();
        devices.push(new.clone(), GFP_KERNEL)?;
        for peer in devices.iter() {
            if let Err(err) = ping(&new, peer) {
                pr_err!("{device} to {}: {err:?}\n", peer.pd().device());
            }
        }
        Ok(new)
    }

    fn remove(&self, _device: &Device, gone: Arc<FastRegQp>) {
        // The last references: nothing of the client is left on the device.
        self.devices.lock().retain(|kept| !Arc::ptr_eq(kept, &gone));
    }
}

/// Connects two queue pairs, and moves messages by each operation.
fn ping(from: &Arc<FastRegQp>, to: &Arc<FastRegQp>) -> Result {
    let a = Qp::with_waiters(from.pd(), 1, 1)?;
    let b = Qp::with_waiters(to.pd(), 1, 1)?;
    let rights = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ;
    let near = Buffer::new(from, SIZE, rights)?;
    let far = Buffer::new(to, SIZE, rights)?;
    let psn = qp_attr::random_psn();
    for (qp, peer, from, to) in [(&a, &b, from, to), (&b, &a, to, from)] {
        let path = LocalPath::find(from.pd().device(), to.pd().device())?;
        // learner 2: connect `qp` to `peer` over the path; it may write, and one Read at a time
        //? let attributes = qp_attr::Attributes::default();
        let attributes = path.attributes(peer.number(), psn).with_rights(rights, 1);
        // end 2
        // With 7 retries rxe would repeat a request for ever.
        let (timeout, retry_cnt, rnr_retry) = (17, 6, 2);
        qp.bring_up(&qp_attr::Attributes {
            timeout,
            retry_cnt,
            rnr_retry,
            ..attributes
        })?;
    }
    let run = |source: &Buffer, destination: &Buffer, op: wr::Operation<'_>| -> Result {
        for number in 1..=MESSAGES {
            source.write(&[number; SIZE])?;
            // learner 3: what does a Send need at the other end? The other operations need nothing
            //? let received: Option<Arc<Waiter>> = None;
            let received = match op.is_send() {
                true => Some(b.post_recv(far.local()?)?),
                false => None,
            };
            // end 3
            // learner 4: a debug line, with the number of the message and that of the queue pair
            dynamic_pr_debug!("lab_ping", "message {} of qp {}\n", number, a.number());
            // end 4
            a.post_send(&op, near.local()?)?.wait_within(LIMIT)?;
            received.map_or(Ok(()), |received| received.wait_within(LIMIT))?;
            destination.check(&[number; SIZE])?; // EBADMSG when something else arrived.
        }
        Ok(())
    };
    run(&near, &far, wr::Operation::send())?;
    run(&near, &far, wr::Operation::write_to(far.mr()))?;
    run(&far, &near, wr::Operation::read_from(far.mr()))
}
