// SPDX-License-Identifier: GPL-2.0

//! Memory regions, made by fast registration.
//!
//! `ib_alloc_mr()`, `ib_map_mr_sg()`, then a REG_MR request on a queue pair of the same protection
//! domain. For those requests a [`Registrar`] keeps a reliable queue pair of its own, connected to
//! itself, so that memory can be registered before any other queue pair exists, and without a
//! request in the queues of anyone else. On iWARP, where that cannot be, it has two that are connected
//! to each other.
//!
//! Addresses in a region are positions in the pages that it covers: the device and the peer see
//! no address of the kernel.

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
        self,
        Device,
        LinkLayer, //
    },
    event::Event,
    loopback::Pair,
    pd::Pd,
    qp::{
        self,
        mask,
        Attributes,
        Capacity,
        Qp,
        QpType,
        State, //
    },
    queue::Side,
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
        net::NetNs,
        pages::Pages, //
    }, //
};
use core::ptr::NonNull;
use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    ffi::c_uint,
    new_mutex,
    page::PAGE_SIZE,
    pr_warn_once,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Acquire,
            Atomic,
            Release, //
        },
        Arc,
        Completion,
        Mutex, //
    },
    types::Opaque, //
};

/// Rights to a memory region: `enum ib_access_flags`.
pub(crate) mod access {
    use crate::bindings;
    /// Requests of our own may write into it.
    pub(crate) const LOCAL_WRITE: u32 = bindings::IB_ACCESS_LOCAL_WRITE;
    /// A peer may write into it.
    pub(crate) const REMOTE_WRITE: u32 = bindings::IB_ACCESS_REMOTE_WRITE;
    /// A peer may read it.
    pub(crate) const REMOTE_READ: u32 = bindings::IB_ACCESS_REMOTE_READ;
    /// A peer may carry out atomics in it.
    pub(crate) const REMOTE_ATOMIC: u32 = bindings::IB_ACCESS_REMOTE_ATOMIC;
}

/// Somebody who waits for a request of a [`Registrar`].
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

/// The owner of a registrar's queue pair.
struct Requests;

impl qp::Ticket for Arc<Waiter> {
    fn detach(&mut self) -> Self {
        self.clone()
    }
}

impl qp::Handler for Requests {
    type Request = Arc<Waiter>;

    fn complete(&self, _side: Side, request: Arc<Waiter>, wc: &WorkCompletion) {
        request.status.store(wc.status, Release);
        request.done.complete_all();
    }

    fn retire(&self, _count: u32) {
        // Every request is signalled: this is not reached.
    }

    fn abandon(&self, request: Arc<Waiter>, _why: qp::Abandoned) {
        // Nobody gives up a request of a registrar.
        request.done.complete_all();
    }

    fn late(&self, _request: Arc<Waiter>, _wc: &WorkCompletion) {}

    fn cancel(&self, request: Arc<Waiter>) {
        request.done.complete_all();
    }

    fn event(&self, _event: Event) {}
}

impl cq::Handler for Requests {
    fn event(&self, _event: Event) {}
}

/// Registers memory in a protection domain.
#[pin_data]
pub(crate) struct Registrar {
    // Before the queue pair: that goes last.
    way: Way,
    qp: Arc<Qp<Requests>>,
    /// One request at a time.
    #[pin]
    turn: Mutex<()>,
}

/// What the queue pair of a registrar is connected to.
enum Way {
    /// Itself.
    Itself { port: u32, path: Path },
    /// Another one, on iWARP. There is no way back when that has ended.
    Other { pair: Pair, _qp: Arc<Qp<Requests>> },
}

/// How a device reaches itself.
struct Path {
    av: AddressVector,
    mtu: u32,
}

impl Registrar {
    /// How often a request is posted at most.
    const TRIES: u32 = 4;

    /// Makes a registrar for `pd`. Sleeps.
    ///
    /// [`eopnotsupp`] when the device has no fast registration; [`eaddrnotavail`] when none of its
    /// ports has an address yet. On iWARP it takes as long as [`Pair::new`] says, and fails as that
    /// does.
    pub(crate) fn new(pd: Arc<Pd>, net: &NetNs) -> Result<Arc<Self>> {
        let attributes = pd.device().attributes();
        if attributes.max_fast_reg_pages == 0 {
            return Err(eopnotsupp());
        }
        if pd.device().is_iwarp() {
            return Self::with_pair(pd, net);
        }
        let (port, path) = Self::find_path(pd.device(), net)?;
        let qp = Self::queue_pair(pd)?;
        let this = Self::of(Way::Itself { port, path }, qp)?;
        this.connect()?;
        Ok(this)
    }

    fn with_pair(pd: Arc<Pd>, net: &NetNs) -> Result<Arc<Self>> {
        let (near, far) = (Self::queue_pair(pd.clone())?, Self::queue_pair(pd.clone())?);
        let pair = Pair::new(&pd, net, &near, &far)?;
        Self::of(Way::Other { pair, _qp: far }, near)
    }

    fn of(way: Way, qp: Arc<Qp<Requests>>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                way,
                qp,
                turn <- new_mutex!((), "rdma::Registrar::turn"),
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
        let entries = capacity.max_send_wr.saturating_add(qp::CQ_RESERVE);
        let cq = Cq::new(pd.device(), entries, 0, PollContext::Workqueue, handler)?;
        Qp::new(pd, cq.clone(), cq, None, QpType::Rc, capacity, Requests)
    }

    /// Whether it will never register anything any more, so that another one has to be made.
    pub(crate) fn is_over(&self) -> bool {
        match &self.way {
            Way::Itself { .. } => false,
            Way::Other { pair, .. } => pair.is_over() || self.qp.state() != State::Rts,
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
        let Way::Itself { port, path } = &self.way else {
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
        let psn = unsafe { bindings::rust_ulp_h_random() } as u32 & qp::MAX_PSN;
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

    /// The protection domain's device.
    fn pd(&self) -> &Arc<Pd> {
        self.qp.pd()
    }

    /// Posts one request and waits for it. Sleeps, for as long as the device takes: a local
    /// operation needs no peer, and is flushed when the queue pair fails.
    ///
    /// One that was flushed did not fail itself: somebody took the queue pair to ERR, by a packet that he
    /// had no right to send. It is posted again, [`Self::TRIES`] times in all. [`EIO`] after that, or
    /// when the device refuses it.
    fn run(&self, push: impl Fn(&mut Chain<Requests>, Arc<Waiter>) -> Result) -> Result {
        let _turn = self.turn.lock();
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
        if let Way::Other { .. } = self.way {
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

/// A table of pieces of memory: `struct sg_table`.
///
/// # Invariants
///
/// Allocated. It holds no pointer to itself: it may move.
struct Table(Opaque<kernel::bindings::sg_table>);

impl Table {
    /// Room for `count` pieces. Sleeps.
    fn new(count: usize) -> Result<Self> {
        let count = c_uint::try_from(count).map_err(|_| ERANGE)?;
        let table = Opaque::<kernel::bindings::sg_table>::zeroed();
        // SAFETY: `table` is memory for a table.
        to_result(unsafe { bindings::rust_ulp_h_sg_alloc(table.get(), count) })?;
        // INVARIANT: Just allocated.
        Ok(Self(table))
    }

    fn get(&self) -> *mut kernel::bindings::sg_table {
        self.0.get()
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; who maps it for a device unmaps it first.
        unsafe { kernel::bindings::sg_free_table(self.get()) };
    }
}

/// Pages as a device sees them.
///
/// # Invariants
///
/// `table` is mapped for `device`; its pages are those of `_pages`. It is ours to unmap, unless it is
/// `foreign`: then it has what `_pages` were mapped to, which they are for as long as they live.
struct Mapping {
    table: Table,
    foreign: bool,
    device: ARef<Device>,
    _pages: Arc<Pages>,
}

// SAFETY: The table is not changed while it is mapped, and mapping goes through the core.
unsafe impl Send for Mapping {}
// SAFETY: As above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes at `offset` of `pages` for both directions. Sleeps.
    fn new(device: &Device, pages: Arc<Pages>, offset: usize, length: usize) -> Result<KBox<Self>> {
        let table = Table::new(pages.chunks_of(offset, length)?)?;
        // SAFETY: The table was allocated, with an entry for each chunk.
        let mut sg = unsafe { (*table.get()).sgl };
        for (page, within, bytes) in pages.extents(offset, length) {
            // SAFETY: `sg` is an entry of the table, which has one for each chunk, and the bytes
            // follow each other from there on.
            unsafe {
                bindings::rust_ulp_h_sg_set(sg, page.as_ptr(), bytes as c_uint, within as c_uint);
                sg = bindings::rust_ulp_h_sg_next(sg);
            }
        }
        let foreign = pages.addresses(offset, length);
        let is_foreign = foreign.is_some();
        for (addr, bytes) in foreign.into_iter().flatten() {
            // SAFETY: As above.
            unsafe {
                bindings::rust_ulp_h_sg_set_dma(sg, addr, bytes as c_uint);
                sg = bindings::rust_ulp_h_sg_next(sg);
            }
        }
        let mapping = KBox::new_uninit(GFP_KERNEL)?;
        fault::point()?;
        if !is_foreign {
            // SAFETY: The device is registered, the table complete.
            to_result(unsafe { bindings::rust_ulp_h_dma_map(device.as_raw(), table.get()) })?;
        }
        // INVARIANT: Just mapped, or filled with what has been.
        Ok(KBox::write(
            mapping,
            Self {
                table,
                foreign: is_foreign,
                device: device.into(),
                _pages: pages,
            },
        ))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !self.foreign {
            // SAFETY: By the type invariant; the region that used it is gone.
            unsafe { bindings::rust_ulp_h_dma_unmap(self.device.as_raw(), self.table.get()) };
        }
    }
}

/// Memory that a peer had a key to, and that a response to its read may still be made of.
///
/// It stays here until the protection domain goes, and with that all its queue pairs.
#[pin_data]
pub(super) struct Limbo {
    #[pin]
    kept: Mutex<KVVec<Arc<Pages>>>,
}

impl Limbo {
    /// Most that one keeps.
    const MAX: usize = 1024;

    /// An empty one. Sleeps.
    pub(super) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                kept <- new_mutex!(KVVec::new(), "rdma::Limbo::kept"),
            }),
            GFP_KERNEL,
        )
    }

    /// Keeps `pages`. [`ENOMEM`] when it is full. Sleeps.
    fn keep(&self, pages: &Arc<Pages>) -> Result {
        let mut kept = self.kept.lock();
        if kept.iter().any(|other| Arc::ptr_eq(other, pages)) {
            return Ok(());
        }
        if kept.len() >= Self::MAX {
            return Err(ENOMEM);
        }
        Ok(kept.push(pages.clone(), GFP_KERNEL_ACCOUNT)?)
    }
}

/// A memory region: `struct ib_mr`, registered.
///
/// Dropping it invalidates its keys and returns when no access is under way any more: what a peer
/// sends after that does not land. That sleeps. With siw a response to a read that had begun may go
/// on, and finds the pages that it began with, see [`Limbo`].
///
/// # Invariants
///
/// - `ptr` is a memory region of the registrar's protection domain, owned.
/// - While `registered`, it covers `length` bytes from the address `addr` on, those of `_mapping`.
pub(crate) struct Mr {
    ptr: NonNull<bindings::ib_mr>,
    registered: bool,
    addr: u64,
    length: u64,
    registrar: Arc<Registrar>,
    /// Whether a peer may use it.
    remote: bool,
    _mapping: KBox<Mapping>,
}

// SAFETY: The core and the drivers lock what they change.
unsafe impl Send for Mr {}
// SAFETY: As above.
unsafe impl Sync for Mr {}

impl Mr {
    /// Registers `length` bytes at `offset` of `pages` with the rights `access`. Sleeps.
    ///
    /// They get their positions as addresses. [`ERANGE`] when that is more than the device puts
    /// under one key, see [`max_bytes`]. With siw, what a peer may read is at most one page, else
    /// [`eopnotsupp`], and [`Limbo`] keeps what a peer may use, [`ENOMEM`] when it is full.
    pub(crate) fn register(
        registrar: Arc<Registrar>,
        pages: Arc<Pages>,
        offset: usize,
        length: usize,
        access: u32,
    ) -> Result<Arc<Self>> {
        let chunk = pages.chunk_size();
        let count = pages.chunks_of(offset, length)?;
        let addr = pages.lead().saturating_add(offset) as u64;
        let pd = registrar.pd().clone();
        let remote =
            access & (access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC) != 0;
        if let Some(limbo) = pd.limbo().filter(|_| remote) {
            // See `Device::is_siw`.
            let within = addr & (PAGE_SIZE as u64).wrapping_sub(1);
            if access & access::REMOTE_READ != 0
                && within.saturating_add(length as u64) > PAGE_SIZE as u64
            {
                return Err(eopnotsupp());
            }
            limbo.keep(&pages)?;
        }
        let mapping = Mapping::new(pd.device(), pages, offset, length)?;
        let count = u32::try_from(count).map_err(|_| ERANGE)?;
        if count > pd.device().attributes().max_fast_reg_pages {
            return Err(ERANGE);
        }
        fault::point()?;
        // SAFETY: The domain is valid.
        let ptr = from_err_ptr(unsafe {
            bindings::ib_alloc_mr(pd.as_raw(), bindings::IB_MR_TYPE_MEM_REG, count)
        })?;
        // INVARIANT: Just allocated, and not registered.
        let mut mr = Self {
            ptr: NonNull::new(ptr).ok_or(ENOMEM)?,
            registered: false,
            addr,
            length: length as u64,
            registrar,
            remote,
            _mapping: mapping,
        };
        // SAFETY: The table is mapped, by its type invariant.
        let (sgl, nents) = unsafe {
            let table = &*mr._mapping.table.get();
            (table.sgl, table.nents)
        };
        fault::point()?;
        // SAFETY: The region is valid and not registered, the list is mapped.
        let mapped = unsafe {
            bindings::ib_map_mr_sg(
                mr.ptr.as_ptr(),
                sgl,
                i32::try_from(nents).map_err(|_| ERANGE)?,
                core::ptr::null_mut(),
                u32::try_from(chunk).map_err(|_| ERANGE)?,
            )
        };
        to_result(mapped.min(0))?;
        if u32::try_from(mapped) != Ok(nents) {
            return Err(ERANGE);
        }
        // SAFETY: The region is valid, mapped and not registered. Offset and DMA address agree in
        // their lower bits, since chunks are aligned to their size in both.
        unsafe {
            bindings::rust_ulp_h_mr_next_key(mr.ptr.as_ptr());
            bindings::rust_ulp_h_mr_set_iova(mr.ptr.as_ptr(), mr.addr);
        }
        let (raw, key) = (mr.ptr.as_ptr(), mr.rkey());
        mr.registrar.clone().run(|chain, waiter| {
            // SAFETY: The region is mapped, and `run` returns when the request is done.
            unsafe { chain.push_register(raw, key, access, waiter) }
        })?;
        // INVARIANT: The device has it now.
        mr.registered = true;
        Ok(Arc::new(mr, GFP_KERNEL)?)
    }

    /// Address of the first byte.
    pub(crate) fn addr(&self) -> u64 {
        self.addr
    }

    /// Bytes.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// The key for requests of our own.
    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: By the type invariant.
        unsafe { bindings::rust_ulp_h_mr_lkey(self.ptr.as_ptr()) }
    }

    /// The key for requests of a peer.
    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: By the type invariant.
        unsafe { bindings::rust_ulp_h_mr_rkey(self.ptr.as_ptr()) }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        if self.registered {
            // When it cannot be invalidated, deregistering does all the same, for good.
            let key = self.rkey();
            let _ = self
                .registrar
                .run(|chain, waiter| chain.push_invalidate(key, waiter));
        }
        fault::step();
        // SAFETY: Owned. The driver waits for accesses that are under way.
        let err = unsafe { bindings::rust_ulp_h_dereg_mr(self.ptr.as_ptr()) };
        if err != 0 {
            pr_warn_once!("a driver refused to deregister memory: {}\n", err);
        }
        if self.remote && self.registrar.pd().limbo().is_some() {
            // What a peer writes siw puts where it is to be with a spinlock held (`siw_qp_llp_data_ready()`).
            // SAFETY: Process context, no lock of RCU is held.
            unsafe { bindings::rust_ulp_h_synchronize_rcu() };
        }
    }
}

/// How many bytes a device with these `attributes` puts under one key, when they are in chunks of
/// `chunk` bytes and begin with one; a multiple of `chunk`, 0 when it has no pages of that size.
pub(crate) fn max_bytes(attributes: &device::Attributes, chunk: u64) -> u64 {
    if attributes.page_size_cap & chunk == 0 {
        return 0;
    }
    let bytes = u64::from(attributes.max_fast_reg_pages)
        .saturating_mul(chunk)
        .min(attributes.max_mr_size);
    bytes & !chunk.wrapping_sub(1)
}
