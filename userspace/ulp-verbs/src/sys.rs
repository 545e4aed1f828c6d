// SPDX-License-Identifier: MIT OR Apache-2.0

//! The calls into libibverbs: with [`cm`] the only module of the crate with `unsafe`.
//!
//! Objects of libibverbs may be used from any thread, and each type here destroys what it made. They
//! hold what they were made of, so that nothing is destroyed before what depends on it.

use crate::{Done, Error, Kind, Peer, Request, Result, Transport, QKEY};
use memmap2::{Advice, MmapOptions, MmapRaw};
use rdma_sys as ib;
use std::ffi::CStr;
use std::mem::{zeroed, ManuallyDrop};
use std::ptr::{null_mut, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

pub mod cm;

/// The sizes in the headers, which `build.rs` looks up.
#[allow(dead_code, missing_docs, non_camel_case_types)]
mod sizes {
    include!(concat!(env!("OUT_DIR"), "/sizes.rs"));
}

macro_rules! assert_sizes {
    ($($name:ident $size:ident)*) => { $(
        const _: () = assert!(
            size_of::<ib::$name>() == sizes::$size as usize,
            concat!("rdma-sys and the headers differ in the size of ", stringify!($name))
        );
    )* };
}
assert_sizes! {
    ibv_gid IBV_GID
    ibv_wc IBV_WC
    ibv_send_wr IBV_SEND_WR
    ibv_ah_attr IBV_AH_ATTR
    ibv_qp_attr IBV_QP_ATTR
    rdma_cm_event RDMA_CM_EVENT
    rdma_cm_id RDMA_CM_ID
}

/// Takes a pointer that a call returned.
fn made<T>(call: &'static str, ptr: *mut T) -> Result<NonNull<T>> {
    NonNull::new(ptr).ok_or_else(|| Error::last(call))
}

/// Takes an error number that a call returned.
fn check(call: &'static str, ret: i32) -> Result<()> {
    match ret {
        0 => Ok(()),
        -1 => Err(Error::last(call)),
        errno => Err(Error::new(call, errno.abs())),
    }
}

/// The devices that there are. Frees the list when dropped.
struct List {
    list: NonNull<*mut ib::ibv_device>,
    len: usize,
}

impl List {
    fn new() -> Result<Self> {
        let mut len = 0;
        // SAFETY: The argument is a place for an int; the list is freed once, in drop().
        let list = unsafe { ib::ibv_get_device_list(&mut len) };
        Ok(Self {
            list: made("ibv_get_device_list", list)?,
            len: usize::try_from(len).unwrap_or(0),
        })
    }

    fn devices(&self) -> &[*mut ib::ibv_device] {
        // SAFETY: The list has so many elements until it is freed, which is in drop().
        unsafe { std::slice::from_raw_parts(self.list.as_ptr(), self.len) }
    }

    fn name(device: *mut ib::ibv_device) -> String {
        // SAFETY: The device is one of the list, which outlives the call; its name is a C string in it.
        let name = unsafe { ib::ibv_get_device_name(device) };
        if name.is_null() {
            return String::new();
        }
        // SAFETY: As above.
        let name = unsafe { CStr::from_ptr(name) };
        name.to_string_lossy().into_owned()
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: It is what ibv_get_device_list() returned, and freed once. Opened devices have their
        // own reference.
        unsafe { ib::ibv_free_device_list(self.list.as_ptr()) };
    }
}

/// An open device with a protection domain.
///
/// # Invariants
///
/// Both are what libibverbs returned, and are closed in drop().
#[derive(Debug)]
pub struct Context {
    context: NonNull<ib::ibv_context>,
    pd: NonNull<ib::ibv_pd>,
}

// SAFETY: libibverbs is thread safe, and its objects belong to no thread.
unsafe impl Send for Context {}
// SAFETY: As above.
unsafe impl Sync for Context {}

impl Context {
    /// Opens the device of this name.
    pub fn open(name: &str) -> Result<Arc<Self>> {
        let list = List::new()?;
        let device = list.devices().iter().find(|d| List::name(**d) == name);
        let device = *device.ok_or(Error::new("ibv_open_device", libc::ENODEV))?;
        // SAFETY: The device is one of the list, which is still there.
        let context = made("ibv_open_device", unsafe { ib::ibv_open_device(device) })?;
        // SAFETY: The context was just opened.
        let pd = unsafe { ib::ibv_alloc_pd(context.as_ptr()) };
        match made("ibv_alloc_pd", pd) {
            // INVARIANT: As returned.
            Ok(pd) => Ok(Arc::new(Self { context, pd })),
            Err(error) => {
                // SAFETY: It was just opened, and nothing was made of it.
                unsafe { ib::ibv_close_device(context.as_ptr()) };
                Err(error)
            }
        }
    }

    /// Returns the `enum ibv_mtu` of a port, 1 to 5.
    pub fn active_mtu(&self, port: u8) -> Result<u8> {
        // SAFETY: Plain numbers, for which zero is a value.
        let mut attr: ib::ibv_port_attr = unsafe { zeroed() };
        let compat = (&raw mut attr).cast();
        // SAFETY: By the type invariants the context is open; what the function writes is a beginning of
        // `ibv_port_attr`: the header's inline function casts in the same way.
        let ret = unsafe { ib::ibv_query_port(self.context.as_ptr(), port, compat) };
        check("ibv_query_port", ret)?;
        Ok(u8::try_from(attr.active_mtu).unwrap_or(1))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: By the type invariants both are open; what was made of them holds a reference to
        // `self`, so nothing is left of it. If one fails, the object stays until the process ends.
        unsafe {
            ib::ibv_dealloc_pd(self.pd.as_ptr());
            ib::ibv_close_device(self.context.as_ptr());
        }
    }
}

/// Maps at least `len` bytes of present pages, which a child does not inherit.
fn map(len: usize) -> Result<MmapRaw> {
    let errno = |error: std::io::Error| error.raw_os_error().unwrap_or(libc::EINVAL);
    let pages = MmapOptions::new().len(len).populate().map_anon();
    let pages = pages.map_err(|error| Error::new("mmap", errno(error)))?;
    let advised = pages.advise(Advice::DontFork);
    advised.map_err(|error| Error::new("madvise", errno(error)))?;
    Ok(pages.into())
}

/// Registers pages for whatever a peer may do.
fn register(context: &Context, pages: &MmapRaw) -> Result<NonNull<ib::ibv_mr>> {
    let access = ib::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
        | ib::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
        | ib::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0
        | ib::ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
    let (pd, base, len) = (context.pd.as_ptr(), pages.as_mut_ptr().cast(), pages.len());
    // SAFETY: The domain is open; the pages are mapped, and stay so until the region is gone: both users
    // drop the region first. They are accessed by atomics only, as a device may write them at any time.
    made("ibv_reg_mr", unsafe {
        ib::ibv_reg_mr(pd, base, len, access as i32)
    })
}

/// Registered memory that a peer may read, write and do atomics on.
///
/// There is no way to a reference to its bytes: they are copied in and out, by words.
#[derive(Debug)]
pub struct Memory {
    mr: NonNull<ib::ibv_mr>,
    pages: ManuallyDrop<MmapRaw>,
    len: usize,
    domain: Arc<Context>,
}

// SAFETY: A mapping and its registration belong to the process; all access is atomic.
unsafe impl Send for Memory {}
// SAFETY: As above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates and registers `len` bytes, zeroed.
    pub fn new(context: &Arc<Context>, len: usize) -> Result<Arc<Self>> {
        let pages = map(len)?;
        Ok(Arc::new(Self {
            mr: register(context, &pages)?,
            pages: ManuallyDrop::new(pages),
            len,
            domain: context.clone(),
        }))
    }

    /// The memory as words. What devices and peers write is outside of this program; this program
    /// accesses it by this slice alone, and libibverbs copies inline data out of it.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: The mapping has so many aligned words, and stays while `self` is borrowed. Any bytes are
        // an AtomicU64, which may change behind a shared reference.
        unsafe { std::slice::from_raw_parts(self.pages.as_ptr().cast(), self.len / 8) }
    }

    /// Its first byte, in this process's terms, which are the peer's as well.
    pub fn addr(&self) -> u64 {
        self.pages.as_ptr() as u64
    }

    /// The key for peers.
    pub fn rkey(&self) -> u32 {
        // SAFETY: The region is registered as long as `self` is there.
        unsafe { self.mr.as_ref() }.rkey
    }

    fn lkey(&self) -> u32 {
        // SAFETY: The region is registered as long as `self` is there.
        unsafe { self.mr.as_ref() }.lkey
    }

    /// Returns the element of `len` bytes at `offset`.
    fn sge(&self, offset: usize, len: u32) -> Result<ib::ibv_sge> {
        let end = offset.checked_add(len as usize);
        if end.is_none_or(|end| end > self.len) {
            return Err(Error::new("posting beyond the memory", libc::EFAULT));
        }
        Ok(ib::ibv_sge {
            addr: self.addr() + offset as u64,
            length: len,
            lkey: self.lkey(),
        })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: Registered in new(), and no queue pair is left that uses it: each holds a reference.
        let ret = unsafe { ib::ibv_dereg_mr(self.mr.as_ptr()) };
        // If it failed, the device may still access the pages: they stay mapped.
        if ret == 0 {
            // SAFETY: Dropped once, here; what borrows from the mapping has ended.
            unsafe { ManuallyDrop::drop(&mut self.pages) };
        }
    }
}

/// Pages for measuring how long a registration takes.
#[derive(Debug)]
pub struct RegisteredOnce {
    mr: Option<NonNull<ib::ibv_mr>>,
    pages: MmapRaw,
    context: Arc<Context>,
}

impl RegisteredOnce {
    /// Allocates `len` bytes, zeroed, present, and not registered.
    pub fn new(context: &Arc<Context>, len: usize) -> Result<Self> {
        Ok(Self {
            mr: None,
            pages: map(len)?,
            context: context.clone(),
        })
    }

    /// `ibv_reg_mr`. They are deregistered first if they are registered.
    pub fn register(&mut self) -> Result<()> {
        self.deregister()?;
        self.mr = Some(register(&self.context, &self.pages)?);
        Ok(())
    }

    /// `ibv_dereg_mr`, if they are registered.
    pub fn deregister(&mut self) -> Result<()> {
        let Some(mr) = self.mr.take() else {
            return Ok(());
        };
        // SAFETY: Registered in register(), taken out, and no queue pair ever used it.
        check("ibv_dereg_mr", unsafe { ib::ibv_dereg_mr(mr.as_ptr()) })
    }
}

impl Drop for RegisteredOnce {
    fn drop(&mut self) {
        let _ = self.deregister();
    }
}

/// Returns the text of libibverbs for a status.
pub fn status_text(status: u32) -> String {
    // SAFETY: It takes any number, and returns a static C string.
    let text = unsafe { CStr::from_ptr(ib::ibv_wc_status_str(status)) };
    text.to_string_lossy().into_owned()
}

/// A completion queue with a channel of its own.
///
/// # Invariants
///
/// Both are what libibverbs returned, and are destroyed in drop().
#[derive(Debug)]
pub struct VerbsCq {
    cq: NonNull<ib::ibv_cq>,
    channel: NonNull<ib::ibv_comp_channel>,
    /// Events taken and not acknowledged; all are before it is destroyed.
    events: AtomicU32,
    _context: Arc<Context>,
}

// SAFETY: libibverbs is thread safe, and its objects belong to no thread.
unsafe impl Send for VerbsCq {}
// SAFETY: As above.
unsafe impl Sync for VerbsCq {}

/// Events are acknowledged in such numbers, as each costs a lock.
const ACK_BATCH: u32 = 64;

impl VerbsCq {
    /// Makes one with room for `entries`.
    pub fn new(context: &Arc<Context>, entries: u32) -> Result<Arc<Self>> {
        let raw = context.context.as_ptr();
        // SAFETY: The context is open.
        let channel = made("ibv_create_comp_channel", unsafe {
            ib::ibv_create_comp_channel(raw)
        })?;
        let entries = i32::try_from(entries).unwrap_or(i32::MAX);
        // SAFETY: The context is open, and the channel was just made of it.
        let cq = unsafe { ib::ibv_create_cq(raw, entries, null_mut(), channel.as_ptr(), 0) };
        match made("ibv_create_cq", cq) {
            // INVARIANT: As returned.
            Ok(cq) => Ok(Arc::new(Self {
                cq,
                channel,
                events: AtomicU32::new(0),
                _context: context.clone(),
            })),
            Err(error) => {
                // SAFETY: Just made, and not used.
                unsafe { ib::ibv_destroy_comp_channel(channel.as_ptr()) };
                Err(error)
            }
        }
    }

    /// `ibv_poll_cq`: appends what there is, at most `max` at a time, and returns how many.
    pub fn poll(&self, max: usize, mut done: impl FnMut(Done)) -> Result<usize> {
        const N: usize = 32;
        // SAFETY: Plain numbers and a union of them, for which zero is a value.
        let mut wcs: [ib::ibv_wc; N] = unsafe { zeroed() };
        let n = max.min(N) as i32;
        // SAFETY: The queue exists by the type invariants; there is room for N.
        let n = unsafe { ib::ibv_poll_cq(self.cq.as_ptr(), n, wcs.as_mut_ptr()) };
        let n = usize::try_from(n).map_err(|_| Error::new("ibv_poll_cq", libc::EIO))?;
        for wc in wcs.iter().take(n) {
            let with_imm = wc.wc_flags & ib::ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
            // SAFETY: Both members of the union are a u32.
            let imm = unsafe { wc.imm_data_invalidated_rkey_union.imm_data };
            done(Done {
                wr_id: wc.wr_id,
                status: wc.status,
                imm: with_imm.then_some(u32::from_be(imm)),
                byte_len: wc.byte_len,
                qp_num: wc.qp_num,
            });
        }
        Ok(n)
    }

    /// `ibv_req_notify_cq`: the next completion makes an event.
    pub fn arm(&self) -> Result<()> {
        // SAFETY: The queue exists by the type invariants.
        let ret = unsafe { ib::ibv_req_notify_cq(self.cq.as_ptr(), 0) };
        check("ibv_req_notify_cq", ret)
    }

    /// `ibv_get_cq_event`: sleeps until there is an event, without a deadline. To end it, move a queue
    /// pair to ERR that has requests of its own on this queue ([`QueuePair::fail`]).
    pub fn wait_event(&self) -> Result<()> {
        let (mut cq, mut context) = (null_mut(), null_mut());
        // SAFETY: The channel exists by the type invariants; the others are places for pointers.
        let ret = unsafe { ib::ibv_get_cq_event(self.channel.as_ptr(), &mut cq, &mut context) };
        if ret != 0 {
            return Err(Error::last("ibv_get_cq_event"));
        }
        if self.events.fetch_add(1, Ordering::Relaxed) + 1 >= ACK_BATCH {
            self.acknowledge();
        }
        Ok(())
    }

    fn acknowledge(&self) {
        let n = self.events.swap(0, Ordering::Relaxed);
        // SAFETY: The queue exists, it is the only one of its channel, and so many events were taken.
        unsafe { ib::ibv_ack_cq_events(self.cq.as_ptr(), n) };
    }
}

impl Drop for VerbsCq {
    fn drop(&mut self) {
        self.acknowledge();
        // SAFETY: By the type invariants both are there; queue pairs on it hold a reference, so there is
        // none. If one fails, the object stays until the process ends.
        unsafe {
            ib::ibv_destroy_cq(self.cq.as_ptr());
            ib::ibv_destroy_comp_channel(self.channel.as_ptr());
        }
    }
}

/// Memory for a list of requests, kept from one posting to the next.
#[derive(Default)]
pub struct Requests {
    sends: Vec<ib::ibv_send_wr>,
    recvs: Vec<ib::ibv_recv_wr>,
    sges: Vec<ib::ibv_sge>,
}

impl std::fmt::Debug for Requests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Requests").finish_non_exhaustive()
    }
}

// SAFETY: Outside of a call nothing in it is used as a pointer.
unsafe impl Send for Requests {}

impl Requests {
    /// Creates receives from the number, offset and length of each. Returns the head of their list,
    /// which is valid until `self` changes; null if there are none.
    fn receives(
        &mut self,
        memory: &Memory,
        list: impl Iterator<Item = (u64, usize, u32)>,
    ) -> Result<*mut ib::ibv_recv_wr> {
        self.recvs.clear();
        self.sges.clear();
        for (wr_id, offset, len) in list {
            self.sges.push(memory.sge(offset, len)?);
            self.recvs.push(ib::ibv_recv_wr {
                wr_id,
                next: null_mut(),
                sg_list: null_mut(),
                num_sge: 1,
            });
        }
        let sges = self.sges.as_mut_ptr();
        let mut next = null_mut();
        // Nothing is pushed any more: pointers into the two vectors hold until the end.
        for (i, wr) in self.recvs.iter_mut().enumerate().rev() {
            // SAFETY: There is an element for each request.
            wr.sg_list = unsafe { sges.add(i) };
            wr.next = next;
            next = wr;
        }
        Ok(next)
    }
}

/// A shared receive queue.
///
/// # Invariants
///
/// It is what libibverbs returned, and is destroyed in drop().
#[derive(Debug)]
pub struct Srq {
    srq: NonNull<ib::ibv_srq>,
    memory: Arc<Memory>,
}

// SAFETY: libibverbs is thread safe, and its objects belong to no thread.
unsafe impl Send for Srq {}
// SAFETY: As above.
unsafe impl Sync for Srq {}

impl Srq {
    /// Creates a queue with room for `receives` receives.
    pub fn new(memory: &Arc<Memory>, receives: u32) -> Result<Arc<Self>> {
        // SAFETY: Plain numbers and pointers, for which zero is a value.
        let mut init: ib::ibv_srq_init_attr = unsafe { zeroed() };
        init.attr.max_wr = receives;
        init.attr.max_sge = 1;
        let pd = memory.domain.pd.as_ptr();
        // SAFETY: The domain is open, and kept as long as the queue; the attributes are valid.
        let srq = unsafe { ib::ibv_create_srq(pd, &mut init) };
        // INVARIANT: As returned.
        Ok(Arc::new(Self {
            srq: made("ibv_create_srq", srq)?,
            memory: memory.clone(),
        }))
    }

    /// `ibv_post_srq_recv` of a list: number, offset and length of each.
    pub fn post_recv(
        &self,
        room: &mut Requests,
        list: impl Iterator<Item = (u64, usize, u32)>,
    ) -> Result<()> {
        let head = room.receives(&self.memory, list)?;
        if head.is_null() {
            return Ok(());
        }
        let mut bad = null_mut();
        // SAFETY: The queue exists by the type invariants. `head` heads a list of valid receives, of
        // which each has one element that lies in `self.memory`, which is registered and kept until
        // the queue is destroyed; this program reads it by atomics only.
        let ret = unsafe { ib::ibv_post_srq_recv(self.srq.as_ptr(), head, &mut bad) };
        check("ibv_post_srq_recv", ret)
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        // SAFETY: It exists by the type invariants, and is destroyed once; its queue pairs hold a
        // reference, so there is none.
        if unsafe { ib::ibv_destroy_srq(self.srq.as_ptr()) } != 0 {
            // It is still there, and may still use the memory: that stays as well.
            std::mem::forget(self.memory.clone());
        }
    }
}

/// The peer of datagrams.
///
/// # Invariants
///
/// `ah` is what libibverbs returned, and is destroyed in drop().
#[derive(Debug)]
struct Datagrams {
    ah: NonNull<ib::ibv_ah>,
    qp_num: u32,
}

// SAFETY: libibverbs is thread safe, and its objects belong to no thread.
unsafe impl Send for Datagrams {}
// SAFETY: As above.
unsafe impl Sync for Datagrams {}

impl Drop for Datagrams {
    fn drop(&mut self) {
        // SAFETY: It exists by the type invariants, and is destroyed once, after its queue pair.
        unsafe { ib::ibv_destroy_ah(self.ah.as_ptr()) };
    }
}

/// A queue pair with one peer.
///
/// # Invariants
///
/// It is what libibverbs returned, and is destroyed in drop().
#[derive(Debug)]
pub struct QueuePair {
    qp: NonNull<ib::ibv_qp>,
    qp_num: u32,
    transport: Transport,
    /// The peer of a queue pair of datagrams, once it is known.
    to: OnceLock<Datagrams>,
    memory: Arc<Memory>,
    srq: Option<Arc<Srq>>,
    _send_cq: Arc<VerbsCq>,
    _recv_cq: Arc<VerbsCq>,
}

// SAFETY: libibverbs is thread safe, and its objects belong to no thread.
unsafe impl Send for QueuePair {}
// SAFETY: As above.
unsafe impl Sync for QueuePair {}

fn mask(flags: &[ib::ibv_qp_attr_mask]) -> i32 {
    flags.iter().fold(0, |sum, flag| sum | flag.0) as i32
}

impl QueuePair {
    /// Makes one with room for so many sends and receives and bytes of inline data, in the state Reset.
    /// With `srq`, it takes its receives from there.
    pub fn new(
        transport: Transport,
        memory: &Arc<Memory>,
        send_cq: &Arc<VerbsCq>,
        recv_cq: &Arc<VerbsCq>,
        (sends, recvs, inline): (u32, u32, u32),
        srq: Option<&Arc<Srq>>,
    ) -> Result<Self> {
        // SAFETY: Plain numbers and pointers, for which zero is a value.
        let mut init: ib::ibv_qp_init_attr = unsafe { zeroed() };
        init.send_cq = send_cq.cq.as_ptr();
        init.recv_cq = recv_cq.cq.as_ptr();
        init.srq = srq.map_or(null_mut(), |srq| srq.srq.as_ptr());
        init.cap.max_send_wr = sends;
        init.cap.max_recv_wr = recvs;
        init.cap.max_send_sge = 1;
        init.cap.max_recv_sge = 1;
        init.cap.max_inline_data = inline;
        init.qp_type = match transport {
            Transport::Rc => ib::ibv_qp_type::IBV_QPT_RC,
            Transport::Uc => ib::ibv_qp_type::IBV_QPT_UC,
            Transport::Ud => ib::ibv_qp_type::IBV_QPT_UD,
        };
        let pd = memory.domain.pd.as_ptr();
        // SAFETY: Domain and queues exist, and are kept as long as the queue pair.
        let qp = made("ibv_create_qp", unsafe { ib::ibv_create_qp(pd, &mut init) })?;
        // INVARIANT: As returned.
        Ok(Self {
            qp,
            // SAFETY: The queue pair was just made.
            qp_num: unsafe { qp.as_ref() }.qp_num,
            transport,
            to: OnceLock::new(),
            memory: memory.clone(),
            srq: srq.cloned(),
            _send_cq: send_cq.clone(),
            _recv_cq: recv_cq.clone(),
        })
    }

    /// Its number.
    pub fn qp_num(&self) -> u32 {
        self.qp_num
    }

    fn modify(&self, attr: &mut ib::ibv_qp_attr, mask: i32) -> Result<()> {
        // SAFETY: The queue pair exists by the type invariants, and `attr` is valid.
        let ret = unsafe { ib::ibv_modify_qp(self.qp.as_ptr(), attr, mask) };
        check("ibv_modify_qp", ret)
    }

    fn attr() -> ib::ibv_qp_attr {
        // SAFETY: Plain numbers and unions of them, for which zero is a value.
        unsafe { zeroed() }
    }

    /// To the state Init, on a port: it takes receives.
    pub fn init(&self, port: u8) -> Result<()> {
        use ib::ibv_qp_attr_mask as m;
        let mut attr = Self::attr();
        attr.qp_state = ib::ibv_qp_state::IBV_QPS_INIT;
        attr.port_num = port;
        attr.qkey = QKEY;
        attr.qp_access_flags = ib::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        if self.transport == Transport::Rc {
            attr.qp_access_flags |= ib::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0
                | ib::ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
        }
        let mask = [
            m::IBV_QP_STATE,
            m::IBV_QP_PKEY_INDEX,
            m::IBV_QP_PORT,
            match self.transport {
                Transport::Rc | Transport::Uc => m::IBV_QP_ACCESS_FLAGS,
                Transport::Ud => m::IBV_QP_QKEY,
            },
        ];
        self.modify(&mut attr, self::mask(&mask))
    }

    /// From Init to the state Rts, with `psn` as the number of its own first packet.
    pub fn connect(&self, port: u8, gid_index: u8, psn: u32, peer: &Peer) -> Result<()> {
        let mut way = way(port, gid_index, peer);
        self.ready_to_receive(way, peer)?;
        self.ready_to_send(psn, peer)?;
        if self.transport == Transport::Ud {
            let pd = self.memory.domain.pd.as_ptr();
            // SAFETY: The domain is open, and kept as long as the queue pair; the attributes are valid.
            let ah = made("ibv_create_ah", unsafe { ib::ibv_create_ah(pd, &mut way) })?;
            let qp_num = peer.qp_num;
            // INVARIANT: As returned. If there is one already, the new one is destroyed.
            let _ = self.to.set(Datagrams { ah, qp_num });
        }
        Ok(())
    }

    fn ready_to_receive(&self, way: ib::ibv_ah_attr, peer: &Peer) -> Result<()> {
        use ib::ibv_qp_attr_mask as m;
        let mut attr = Self::attr();
        attr.qp_state = ib::ibv_qp_state::IBV_QPS_RTR;
        attr.path_mtu = peer.mtu.into();
        attr.dest_qp_num = peer.qp_num;
        attr.rq_psn = peer.psn;
        attr.max_dest_rd_atomic = peer.initiator;
        attr.min_rnr_timer = 12; // 640 us
        attr.ah_attr = way;
        let connected = [
            m::IBV_QP_AV,
            m::IBV_QP_PATH_MTU,
            m::IBV_QP_DEST_QPN,
            m::IBV_QP_RQ_PSN,
        ];
        let reliable = [m::IBV_QP_MAX_DEST_RD_ATOMIC, m::IBV_QP_MIN_RNR_TIMER];
        self.modify_to(&mut attr, &[], &connected, &reliable)
    }

    fn ready_to_send(&self, psn: u32, peer: &Peer) -> Result<()> {
        use ib::ibv_qp_attr_mask as m;
        let mut attr = Self::attr();
        attr.qp_state = ib::ibv_qp_state::IBV_QPS_RTS;
        attr.timeout = peer.timeout;
        attr.retry_cnt = 7;
        attr.rnr_retry = 7;
        attr.sq_psn = psn;
        attr.max_rd_atomic = peer.responder;
        let reliable = [
            m::IBV_QP_TIMEOUT,
            m::IBV_QP_RETRY_CNT,
            m::IBV_QP_RNR_RETRY,
            m::IBV_QP_MAX_QP_RD_ATOMIC,
        ];
        self.modify_to(&mut attr, &[m::IBV_QP_SQ_PSN], &[], &reliable)
    }

    /// To the state of `attr`, with the attributes that all transports have, those of connections, and
    /// those of reliable ones.
    fn modify_to(
        &self,
        attr: &mut ib::ibv_qp_attr,
        all: &[ib::ibv_qp_attr_mask],
        connected: &[ib::ibv_qp_attr_mask],
        reliable: &[ib::ibv_qp_attr_mask],
    ) -> Result<()> {
        let mut flags = mask(&[ib::ibv_qp_attr_mask::IBV_QP_STATE]) | mask(all);
        if self.transport != Transport::Ud {
            flags |= mask(connected);
        }
        if self.transport == Transport::Rc {
            flags |= mask(reliable);
        }
        self.modify(attr, flags)
    }

    /// Moves it to the state Err: what was posted to it completes with an error, which wakes threads
    /// that sleep on its completion queues. The receives of a shared receive queue do not complete.
    pub fn fail(&self) -> Result<()> {
        let mut attr = Self::attr();
        attr.qp_state = ib::ibv_qp_state::IBV_QPS_ERR;
        self.modify(&mut attr, mask(&[ib::ibv_qp_attr_mask::IBV_QP_STATE]))
    }

    /// `ibv_post_send` of a list. Fails with `ENOTCONN` for datagrams before [`Self::connect`].
    pub fn post(&self, room: &mut Requests, list: impl Iterator<Item = Request>) -> Result<()> {
        if self.transport == Transport::Ud && self.to.get().is_none() {
            // Providers read the address handle of each datagram.
            return Err(Error::new("ibv_post_send", libc::ENOTCONN));
        }
        room.sends.clear();
        room.sges.clear();
        for request in list {
            room.sges
                .push(self.memory.sge(request.offset, request.len)?);
            let mut wr = send_wr(&request);
            if let Some(to) = self.to.get() {
                wr.wr.ud = ib::ud_t {
                    ah: to.ah.as_ptr(),
                    remote_qpn: to.qp_num,
                    remote_qkey: QKEY,
                };
            }
            room.sends.push(wr);
        }
        let sges = room.sges.as_mut_ptr();
        let mut next = null_mut();
        // Nothing is pushed any more: pointers into the two vectors hold until the end.
        for (i, wr) in room.sends.iter_mut().enumerate().rev() {
            // SAFETY: There is an element for each request.
            wr.sg_list = unsafe { sges.add(i) };
            wr.next = next;
            next = wr;
        }
        if next.is_null() {
            return Ok(());
        }
        let mut bad = null_mut();
        // SAFETY: The queue pair exists. `next` heads a list of valid requests, of which each has one
        // element that lies in `self.memory`, which is registered and kept until the queue pair is
        // destroyed, as is the peer of datagrams. Inline data is read from there during the call.
        let ret = unsafe { ib::ibv_post_send(self.qp.as_ptr(), next, &mut bad) };
        check("ibv_post_send", ret)
    }

    /// `ibv_post_recv` of a list: number, offset and length of each.
    pub fn post_recv(
        &self,
        room: &mut Requests,
        list: impl Iterator<Item = (u64, usize, u32)>,
    ) -> Result<()> {
        let head = room.receives(&self.memory, list)?;
        if head.is_null() {
            return Ok(());
        }
        let mut bad = null_mut();
        // SAFETY: As in post(): the device may write to that memory until the queue pair is destroyed,
        // and this program reads it by atomics only.
        let ret = unsafe { ib::ibv_post_recv(self.qp.as_ptr(), head, &mut bad) };
        check("ibv_post_recv", ret)
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: It exists by the type invariants, and is destroyed once.
        if unsafe { ib::ibv_destroy_qp(self.qp.as_ptr()) } != 0 {
            // It is still there, and may still use the memory: that stays as well.
            std::mem::forget((self.memory.clone(), self.srq.clone()));
        }
    }
}

/// The way to a peer.
fn way(port: u8, gid_index: u8, peer: &Peer) -> ib::ibv_ah_attr {
    // SAFETY: Plain numbers and a union of them, for which zero is a value.
    let mut way: ib::ibv_ah_attr = unsafe { zeroed() };
    way.is_global = u8::from(peer.gid != [0; 16]);
    way.grh.dgid = ib::ibv_gid { raw: peer.gid };
    way.grh.sgid_index = gid_index;
    way.grh.hop_limit = 64;
    way.grh.traffic_class = peer.traffic_class;
    way.sl = peer.sl;
    way.dlid = peer.lid;
    way.port_num = port;
    way
}

/// The request as libibverbs has it, without its element and its successor.
fn send_wr(request: &Request) -> ib::ibv_send_wr {
    use ib::ibv_wr_opcode as op;
    // SAFETY: Numbers, pointers and unions of them, for which zero is a value.
    let mut wr: ib::ibv_send_wr = unsafe { zeroed() };
    wr.wr_id = request.wr_id;
    wr.num_sge = 1;
    if request.signaled {
        wr.send_flags |= ib::ibv_send_flags::IBV_SEND_SIGNALED.0;
    }
    if request.inline {
        wr.send_flags |= ib::ibv_send_flags::IBV_SEND_INLINE.0;
    }
    let mut with_imm = |imm: Option<u32>, without, with| match imm {
        None => without,
        Some(imm) => {
            wr.imm_data_invalidated_rkey_union = ib::imm_data_invalidated_rkey_union_t {
                imm_data: imm.to_be(),
            };
            with
        }
    };
    let opcode = match request.kind {
        Kind::Write { imm, .. } => {
            with_imm(imm, op::IBV_WR_RDMA_WRITE, op::IBV_WR_RDMA_WRITE_WITH_IMM)
        }
        Kind::Send { imm } => with_imm(imm, op::IBV_WR_SEND, op::IBV_WR_SEND_WITH_IMM),
        Kind::Read { .. } => op::IBV_WR_RDMA_READ,
        Kind::FetchAdd { .. } => op::IBV_WR_ATOMIC_FETCH_AND_ADD,
        Kind::CmpSwap { .. } => op::IBV_WR_ATOMIC_CMP_AND_SWP,
    };
    wr.opcode = opcode;
    let atomic = |(remote_addr, rkey), compare_add, swap| ib::wr_t {
        atomic: ib::atomic_t {
            remote_addr,
            compare_add,
            swap,
            rkey,
        },
    };
    match request.kind {
        Kind::Write { remote, .. } | Kind::Read { remote } => {
            let (remote_addr, rkey) = remote;
            wr.wr = ib::wr_t {
                rdma: ib::rdma_t { remote_addr, rkey },
            };
        }
        Kind::FetchAdd { remote, add } => wr.wr = atomic(remote, add, 0),
        Kind::CmpSwap {
            remote,
            compare,
            swap,
        } => wr.wr = atomic(remote, compare, swap),
        Kind::Send { .. } => {}
    }
    wr
}
