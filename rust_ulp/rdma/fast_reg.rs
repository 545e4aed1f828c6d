// SPDX-License-Identifier: GPL-2.0

//! The queue pair by which memory regions of a protection domain are registered.
//!
//! For REG_MR and LOCAL_INV requests a [`FastRegQp`] keeps a reliable queue pair of its own, connected
//! to itself, so that memory can be registered before any other queue pair exists, and without a
//! request in the queues of anyone else. On iWARP, where that cannot be, it has two that are connected
//! to each other.

use super::{
    ah::AddressVector,
    chain::{
        Chain,
        Target, //
    },
    cq::{
        self,
        Cq,
        PollContext, //
    },
    device::{
        Device,
        LinkLayer, //
    },
    event::Event,
    loopback::{
        LoopbackConnector,
        LoopbackPair, //
    },
    mr::Register,
    pd::Pd,
    qp::{
        Qp,
        CQ_RESERVE, //
    },
    qp_attr::{
        mask,
        Attributes,
        Capacity,
        QpType,
        State,
        MAX_PSN, //
    },
    request::{
        CancelReason,
        QueueKind,
        WrContext,
        WrHandler, //
    },
    wr::WorkCompletion, //
};
use crate::{
    bindings,
    kernel::{
        errno::{
            eaddrnotavail,
            enodata,
            eopnotsupp, //
        },
        fault,
        net::NetNs, //
    }, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Release, //
        },
        Arc,
        Completion,
        Mutex, //
    }, //
};

/// Somebody who waits for a request of a [`FastRegQp`].
#[pin_data]
struct Waiter {
    #[pin]
    done: Completion,
    status: Atomic<u32>,
}

impl Waiter {
    fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                done <- Completion::new(),
                status: Atomic::new(bindings::IB_WC_GENERAL_ERR),
            }),
            GFP_KERNEL,
        )
    }
}

/// The owner of a registration queue pair.
struct Requests;

impl WrContext for Arc<Waiter> {
    fn detach(&mut self) -> Self {
        self.clone()
    }
}

impl WrHandler for Requests {
    type Request = Arc<Waiter>;

    fn complete(&self, _side: QueueKind, request: Arc<Waiter>, wc: &WorkCompletion) {
        request.status.store(wc.status, Release);
        request.done.complete_all();
    }

    fn complete_unsignaled(&self, _count: u32) {
        // Every request is signalled: this is not reached.
    }

    fn cancel(&self, request: Arc<Waiter>, _why: CancelReason) {
        // Nobody cancels a registration request.
        request.done.complete_all();
    }

    fn complete_canceled(&self, _request: Arc<Waiter>, _wc: &WorkCompletion) {}

    fn discard(&self, request: Arc<Waiter>) {
        request.done.complete_all();
    }

    fn event(&self, _event: Event) {}
}

impl cq::Handler for Requests {
    fn event(&self, _event: Event) {}
}

/// Registers memory in a protection domain.
#[pin_data]
pub(crate) struct FastRegQp {
    // Before the queue pair: that goes last.
    way: RegPath,
    qp: Arc<Qp<Requests>>,
    /// One request at a time.
    #[pin]
    post_lock: Mutex<()>,
}

/// What a registration queue pair is connected to.
enum RegPath {
    /// Itself.
    Itself { port: u32, path: Path },
    /// Another one, on iWARP. There is no way back when that has ended.
    Other {
        pair: LoopbackPair,
        _qp: Arc<Qp<Requests>>,
    },
}

/// How a device reaches itself.
struct Path {
    av: AddressVector,
    mtu: u32,
}

impl FastRegQp {
    /// How often a request is posted at most.
    const TRIES: u32 = 4;

    /// Creates the registration queue pair of `pd`. On iWARP `connector` connects it. Sleeps.
    ///
    /// [`eopnotsupp`] when the device has no fast registration; [`eaddrnotavail`] when none of its
    /// ports has an address yet. On iWARP it takes as long as [`LoopbackPair::new`] says, and fails as that
    /// does.
    pub(crate) fn new(
        pd: Arc<Pd>,
        connector: &LoopbackConnector,
        net: &NetNs,
    ) -> Result<Arc<Self>> {
        let attributes = pd.device().attributes();
        if attributes.max_fast_reg_pages == 0 {
            return Err(eopnotsupp());
        }
        if pd.device().is_iwarp() {
            return Self::with_pair(pd, connector, net);
        }
        let (port, path) = Self::find_path(pd.device(), net)?;
        let qp = Self::queue_pair(pd)?;
        let this = Self::of(RegPath::Itself { port, path }, qp)?;
        this.connect()?;
        Ok(this)
    }

    fn with_pair(pd: Arc<Pd>, connector: &LoopbackConnector, net: &NetNs) -> Result<Arc<Self>> {
        let (near, far) = (Self::queue_pair(pd.clone())?, Self::queue_pair(pd.clone())?);
        let pair = LoopbackPair::new(&pd, connector, net, &near, &far)?;
        Self::of(RegPath::Other { pair, _qp: far }, near)
    }

    fn of(way: RegPath, qp: Arc<Qp<Requests>>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                way,
                qp,
                post_lock <- new_mutex!((), "rdma::FastRegQp::post_lock"),
            }),
            GFP_KERNEL,
        )
    }

    fn queue_pair(pd: Arc<Pd>) -> Result<Arc<Qp<Requests>>> {
        let handler = Arc::new(Requests, GFP_KERNEL)?;
        let capacity = Capacity {
            max_send_wr: 2,
            max_send_sge: 1,
            ..Capacity::default()
        };
        let entries = capacity.max_send_wr.saturating_add(CQ_RESERVE);
        let cq = Cq::new(pd.device(), entries, 0, PollContext::Workqueue, handler)?;
        Qp::new(pd, cq.clone(), cq, None, QpType::Rc, capacity, Requests)
    }

    /// Whether it will never register anything any more, so that another one has to be made.
    pub(crate) fn is_over(&self) -> bool {
        match &self.way {
            RegPath::Itself { .. } => false,
            RegPath::Other { pair, .. } => pair.is_over() || self.qp.state() != State::Rts,
        }
    }

    /// A port with an address, and the way from it to itself.
    fn find_path(device: &Device, net: &NetNs) -> Result<(u32, Path)> {
        for number in 1..=device.attributes().phys_ports {
            let port = device.port(number)?;
            let mtu = port.active_mtu();
            for index in 0..port.gid_tbl_len().min(256) {
                let Ok(gid) = device.gid(number, index, net) else {
                    continue;
                };
                // It may have gone meanwhile.
                let Ok(mut av) = AddressVector::to_self(device, number, index, gid.raw) else {
                    continue;
                };
                if port.link_layer == LinkLayer::InfiniBand {
                    av.dlid = port.lid() as u16;
                }
                return Ok((number, Path { av, mtu }));
            }
        }
        Err(eaddrnotavail())
    }

    /// Brings the queue pair from RESET to RTS, connected to itself.
    ///
    /// [`eaddrnotavail`] when the address that was found has gone, [`EIO`] when there is no such way.
    fn connect(&self) -> Result {
        let RegPath::Itself { port, path } = &self.way else {
            return Err(EIO);
        };
        self.bring_up(*port, path).map_err(|err| {
            if err == enodata() {
                eaddrnotavail()
            } else {
                err
            }
        })
    }

    fn bring_up(&self, port: u32, path: &Path) -> Result {
        // A packet that another queue pair of this device sends here has the right addresses: with the
        // right number, too, it would take the queue pair to ERR.
        // SAFETY: Takes no argument.
        let psn = unsafe { bindings::rust_ulp_h_random() } as u32 & MAX_PSN;
        let attributes = Attributes {
            port,
            av: path.av,
            path_mtu: path.mtu,
            dest_qp_num: self.qp.number(),
            sq_psn: psn,
            rq_psn: psn,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            ..Attributes::default()
        };
        let to = |state: State| Attributes {
            qp_state: state as u32,
            ..attributes
        };
        self.qp.modify(
            &to(State::Init),
            mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS,
        )?;
        self.qp.modify(
            &to(State::Rtr),
            mask::STATE
                | mask::AV
                | mask::PATH_MTU
                | mask::DEST_QPN
                | mask::RQ_PSN
                | mask::MAX_DEST_RD_ATOMIC
                | mask::MIN_RNR_TIMER,
        )?;
        self.qp.modify(
            &to(State::Rts),
            mask::STATE
                | mask::TIMEOUT
                | mask::RETRY_CNT
                | mask::RNR_RETRY
                | mask::SQ_PSN
                | mask::MAX_QP_RD_ATOMIC,
        )
    }

    /// Posts one request and waits for it. Sleeps, for as long as the device takes: a local
    /// operation needs no peer, and is flushed when the queue pair fails.
    ///
    /// One that was flushed did not fail itself: somebody took the queue pair to ERR, by a packet that he
    /// had no right to send. It is posted again, [`Self::TRIES`] times in all. [`EIO`] after that, or
    /// when the device refuses it.
    fn run(&self, push: impl Fn(&mut Chain<Requests>, Arc<Waiter>) -> Result) -> Result {
        let _turn = self.post_lock.lock();
        for _ in 0..Self::TRIES {
            let waiter = Waiter::new()?;
            if self.qp.state() != State::Rts {
                // The last one failed, and so did the way back.
                self.recover()?;
            }
            let mut chain = Chain::new(Target::Send(self.qp.clone()), 1);
            push(&mut chain, waiter.clone())?;
            let (_, result) = chain.post(|_| ());
            result?;
            waiter.done.wait_for_completion();
            let injected = fault::point().is_err();
            let status = waiter.status.load(Acquire);
            if status == bindings::IB_WC_SUCCESS && !injected {
                return Ok(());
            }
            // The queue pair failed with the request. What that leaves to be done the next one does.
            let recovered = self.recover();
            if status != bindings::IB_WC_WR_FLUSH_ERR || recovered.is_err() {
                break;
            }
        }
        Err(EIO)
    }

    /// Takes the queue pair back to RTS; where it has no way there, to ERR. Sleeps.
    fn recover(&self) -> Result {
        if let RegPath::Other { .. } = self.way {
            let error = Attributes {
                qp_state: State::Err as u32,
                ..Attributes::default()
            };
            self.qp.modify(&error, mask::STATE)?;
            return Err(EIO);
        }
        let reset = Attributes {
            qp_state: State::Reset as u32,
            ..Attributes::default()
        };
        self.qp.modify(&reset, mask::STATE)?;
        self.connect()
    }
}

impl Register for FastRegQp {
    fn pd(&self) -> &Arc<Pd> {
        self.qp.pd()
    }

    unsafe fn register(&self, mr: *mut bindings::ib_mr, key: u32, access: u32) -> Result {
        self.run(|chain, waiter| {
            // SAFETY: By the requirement, and `run` returns when the request is done.
            unsafe { chain.push_register(mr, key, access, waiter) }
        })
    }

    fn invalidate(&self, rkey: u32) -> Result {
        self.run(|chain, waiter| chain.push_invalidate(rkey, waiter))
    }
}
