// SPDX-License-Identifier: MIT OR Apache-2.0

//! A stream through a ring of the receiver's.

use super::extra::stream::{PreparedReceiver, PreparedSender, Receiver, Sender, ENTRIES};
use super::*;
use std::sync::mpsc;

pub(super) struct Ends {
    pub(super) kernel: Arc<Kernel>,
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
}

/// Carries out what two queue pairs have posted: writes with the bytes that were written, and what
/// completes at the other end. Returns whether there was something.
pub(super) fn carry_out(kernel: &Kernel, ends: [u32; 2]) -> bool {
    let mut any = false;
    for (from, to) in [(ends[0], ends[1]), (ends[1], ends[0])] {
        while let Some(posted) = kernel.take(from, false) {
            any = true;
            let wr = &posted.wr;
            let mut at = wr.remote_addr;
            for element in &posted.elements {
                kernel.copy(element, at);
                at += u64::from(element.length);
            }
            let is_write = wr.opcode == abi::WR_RDMA_WRITE_WITH_IMM;
            if is_write || wr.opcode == abi::WR_SEND_WITH_IMM {
                kernel.arrive(to, |cqe| {
                    (cqe.flags, cqe.imm_data) = (abi::WC_WITH_IMM, wr.imm_data);
                    if is_write {
                        cqe.opcode = abi::WC_RECV_RDMA_WITH_IMM;
                    }
                });
            }
            if wr.flags & abi::SEND_SIGNALED != 0 {
                kernel.end(&posted, |_| {});
            }
        }
    }
    any
}

impl Ends {
    pub(super) fn ends(&self) -> [u32; 2] {
        [self.sender.qp().handle(), self.receiver.qp().handle()]
    }

    fn carry_out(&self) {
        carry_out(&self.kernel, self.ends());
    }

    /// Carries out what is posted until the result is dropped.
    pub(super) fn carrier(&self) -> Carrier {
        let (ends, kernel) = (self.ends(), self.kernel.clone());
        let (done, is_done) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            while is_done.try_recv() == Err(mpsc::TryRecvError::Empty) {
                carry_out(&kernel, ends);
                std::thread::sleep(Duration::from_micros(50));
            }
        });
        Carrier(Some((done, thread)))
    }
}

/// A thread that carries out what a stream posts.
pub(super) struct Carrier(Option<(mpsc::Sender<()>, std::thread::JoinHandle<()>)>);

impl Drop for Carrier {
    fn drop(&mut self) {
        let (done, thread) = self.0.take().unwrap();
        drop(done);
        let ended = thread.join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

fn prepared(kernel: &Arc<Kernel>) -> PreparedQp<Rc> {
    let device = kernel.device();
    let cq = device.create_cq(ENTRIES).unwrap();
    let pd = device.alloc_pd().unwrap();
    pd.qp_builder::<Rc>(&cq).build().unwrap()
}

pub(super) fn ends(staging: usize, ring: usize) -> Ends {
    let kernel = Kernel::new();
    let (a, b) = (prepared(&kernel), prepared(&kernel));
    let sender = PreparedSender::new(&a, staging).unwrap();
    let receiver = PreparedReceiver::new(&b, ring).unwrap();
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    let remote = receiver.grant().remote();
    Ends {
        kernel,
        sender: sender.start(a.connect(at_b).unwrap(), remote).unwrap(),
        receiver: receiver.start(b.connect(at_a).unwrap()).unwrap(),
    }
}

#[test]
fn bytes_go_through_and_end() {
    let mut e = ends(64, 64);
    assert_eq!(e.receiver.try_recv(&mut [0; 8]).unwrap(), None);
    e.sender.send(b"hello, ring", SOON).unwrap();
    e.carry_out();
    let mut out = [0; 5];
    assert_eq!(e.receiver.recv(&mut out, SOON).unwrap(), 5);
    assert_eq!(&out, b"hello");
    assert_eq!(e.receiver.recv(&mut [], SOON).unwrap(), 0);
    assert_eq!(e.sender.in_flight(), 11);
    // Nobody takes the rest: the end cannot be told to have come.
    e.carry_out();
    let error = e.sender.finish(NOW).unwrap_err();
    assert_matches!(error, Error::Timeout { after: NOW, .. });
    e.carry_out();
    let error = e.sender.send(b"more", SOON).unwrap_err();
    assert_matches!(error, Error::NotConnected);
    let mut out = [0; 16];
    assert_eq!(e.receiver.recv(&mut out, SOON).unwrap(), 6);
    assert_eq!(&out[..6], b", ring");
    e.carry_out();
    for _ in 0..2 {
        assert_eq!(e.receiver.recv(&mut out, SOON).unwrap(), 0);
    }
    e.sender.finish(SOON).unwrap();
    assert_eq!(e.sender.in_flight(), 0);
}

#[test]
fn back_pressure_is_no_error() {
    let mut e = ends(100, 64);
    let data: Vec<u8> = (0..100).collect();
    assert_eq!(e.sender.try_send(&data).unwrap(), 64);
    e.carry_out();
    assert_eq!(e.sender.try_send(&data).unwrap(), 0);
    let error = e.sender.send(&data, NOW).unwrap_err();
    assert_matches!(error, Error::Timeout { .. });
    // A quarter is given back as a whole.
    let mut out = [0; 64];
    assert_eq!(e.receiver.try_recv(&mut out[..15]).unwrap(), Some(15));
    e.carry_out();
    assert_eq!(e.sender.try_send(&data[64..]).unwrap(), 0);
    assert_eq!(e.receiver.try_recv(&mut out[15..16]).unwrap(), Some(1));
    e.carry_out();
    assert_eq!(e.sender.try_send(&data[64..]).unwrap(), 16);
    e.carry_out();
    assert_eq!(e.receiver.try_recv(&mut out[16..]).unwrap(), Some(48));
    assert_eq!(out, data[..64]);
    // Many small ones: their number is what is limited.
    let mut e = ends(4096, 4096);
    let sent = (0..100).map_while(|i| (e.sender.try_send(&[i]).unwrap() == 1).then_some(i));
    assert_eq!(sent.count(), 32);
    e.carry_out();
    let mut out = [0; 64];
    assert_eq!(e.receiver.try_recv(&mut out).unwrap(), Some(32));
    e.carry_out();
    assert_eq!(e.sender.try_send(&[1]).unwrap(), 1);
}

#[test]
fn a_sleeper_is_woken_at_either_end() {
    let mut e = ends(32, 32);
    let _carrier = e.carrier();
    let data: Vec<u8> = (0..3000u32).map(|n| n as u8 ^ (n >> 8) as u8).collect();
    let got = std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            e.sender.send(&data, SOON).unwrap();
            e.sender.finish(SOON).unwrap();
        });
        let (mut all, mut some) = (Vec::<u8>::new(), [0; 100]);
        while let n @ 1.. = e.receiver.recv(&mut some, SOON).unwrap() {
            all.extend(&some[..n]);
        }
        sender.join().unwrap();
        all
    });
    assert!(got == data);
}

#[test]
fn a_stream_allocates_nothing() {
    let mut e = ends(1000, 700);
    let mut out = [0; 300];
    let mut round = |e: &mut Ends| {
        assert_eq!(e.sender.try_send(&[7; 300]).unwrap(), 300);
        counting::uncounted(|| e.carry_out());
        assert_eq!(e.receiver.try_recv(&mut out).unwrap(), Some(300));
        counting::uncounted(|| e.carry_out());
    };
    round(&mut e);
    let before = allocations();
    (0..50).for_each(|_| round(&mut e));
    assert_eq!(allocations() - before, 0);
}

#[test]
fn ends_that_cannot_be() {
    let kernel = Kernel::new();
    let device = kernel.device();
    let pd = device.alloc_pd().unwrap();
    let (cq, small) = (
        device.create_cq(ENTRIES).unwrap(),
        device.create_cq(ENTRIES / 2).unwrap(),
    );
    let build = |builder: crate::qp::QpBuilder<Rc>| builder.build().unwrap();
    let before = kernel.objects();
    for (qp, what) in [
        (
            build(pd.qp_builder(&small)),
            "completion queue of a stream's queue pair is 64; pass 128 or more",
        ),
        (
            build(pd.qp_builder(&cq).max_send_wr(16)),
            "max_send_wr of a stream's queue pair is 16; pass 96 or more",
        ),
        (
            build(pd.qp_builder(&cq).max_recv_wr(16)),
            "max_recv_wr of a stream's queue pair is 16; pass 32 or more",
        ),
        (
            build(pd.qp_builder(&cq).recv_cq(&small)),
            "completion queues of a stream's queue pair is 2; pass 1",
        ),
    ] {
        let error = PreparedReceiver::new(&qp, 64).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
        assert!(PreparedSender::new(&qp, 64).is_err());
    }
    assert_eq!(kernel.objects(), before);
    // Another queue pair than was prepared; a ring that is none.
    let (a, b) = (prepared(&kernel), prepared(&kernel));
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    let sender = || PreparedSender::new(&a, 64).unwrap();
    let (one, two) = (sender(), sender());
    let wrong = PreparedReceiver::new(&b, 64).unwrap();
    let a = a.connect(at_b).unwrap();
    assert_eq!(
        wrong.start(a.clone()).unwrap_err().errno(),
        Some(libc::ENOENT)
    );
    let none = RemoteSlice::new(1, 0, 1).unwrap();
    let error = one.start(a.clone(), none).unwrap_err();
    assert!(
        error.to_string().contains("is 0; pass 1 or more"),
        "{error}"
    );
    let buffer = b.pd().alloc_buffer(64).unwrap();
    let read = buffer.grant(.., Access::REMOTE_READ).unwrap();
    let b = b.connect(at_a).unwrap();
    assert!(matches!(
        two.start(a, read.remote()),
        Err(Error::Access { .. })
    ));
    drop(b);
}

/// A receiver, and a queue pair whose peer does as it likes.
fn hostile() -> (Arc<Kernel>, Receiver) {
    let kernel = Kernel::new();
    let (a, b) = (prepared(&kernel), prepared(&kernel));
    let receiver = PreparedReceiver::new(&b, 64).unwrap();
    let receiver = receiver.start(b.connect(a.endpoint()).unwrap()).unwrap();
    (kernel, receiver)
}

#[test]
fn peers_that_break_the_rules_are_told_off() {
    use abi::{WC_RECV as MESSAGE, WC_RECV_RDMA_WITH_IMM as WRITE};
    let arrive = |kernel: &Kernel, queue, opcode, imm: Option<u32>| {
        kernel.arrive(queue, |cqe| {
            cqe.opcode = opcode;
            if let Some(imm) = imm {
                (cqe.flags, cqe.imm_data) = (abi::WC_WITH_IMM, imm);
            }
        });
    };
    let told = |what: &str, lies: &[(u8, Option<u32>)]| {
        let (kernel, mut receiver) = hostile();
        let queue = receiver.qp().handle();
        for (opcode, imm) in lies {
            arrive(&kernel, queue, *opcode, *imm);
        }
        let error = receiver.recv(&mut [0; 8], SOON).unwrap_err();
        assert_matches!(error, Error::Stream { .. });
        assert!(error.to_string().contains(what), "{error}");
        // What comes later is not trusted.
        for _ in 0..2 {
            arrive(&kernel, queue, WRITE, Some(1));
            let error = receiver.recv(&mut [0; 8], SOON).unwrap_err();
            assert_matches!(error, Error::NotConnected);
        }
    };
    for imm in [65, u32::MAX] {
        told("more than there is room for", &[(WRITE, Some(imm))]);
    }
    told("no part of one", &[(MESSAGE, None)]);
    // A message where data belongs, data where the end belongs, and what comes after the end.
    told("no part of one", &[(MESSAGE, Some(5))]);
    told("no part of one", &[(WRITE, Some(0))]);
    told("more chunks", &[(MESSAGE, Some(0)), (MESSAGE, Some(0))]);

    // Credit that nobody gave.
    let mut e = ends(64, 64);
    e.sender.send(b"abc", SOON).unwrap();
    e.carry_out();
    arrive(&e.kernel, e.sender.qp().handle(), MESSAGE, Some(4));
    let error = e.sender.send(b"d", SOON).unwrap_err();
    assert!(error.to_string().contains("gives room back"), "{error}");
    for error in [
        e.sender.send(b"d", SOON).unwrap_err(),
        e.sender.finish(SOON).unwrap_err(),
    ] {
        assert_matches!(error, Error::NotConnected);
    }
    // And somebody else's completion.
    let mut e = ends(64, 64);
    e.kernel.complete(abi::Cqe::default());
    let error = e.sender.send(b"d", SOON).unwrap_err();
    assert!(
        error.to_string().contains("not this end's alone"),
        "{error}"
    );
}

#[test]
fn an_end_that_goes() {
    let mut e = ends(64, 64);
    let fails = |e: &Ends| {
        let queue = e.sender.qp().handle();
        e.kernel.fail(queue, Status::RemoteAccess.code());
    };
    e.sender.send(b"abc", SOON).unwrap();
    fails(&e);
    let error = e.sender.send(b"d", SOON).unwrap_err();
    assert_matches!(error, Error::Completion(_));
    // Nothing goes out any more.
    for _ in 0..100 {
        let error = e.sender.try_send(b"d").unwrap_err();
        assert_matches!(error, Error::NotConnected);
    }
    let mut e = ends(64, 64);
    e.sender.write_all(b"d").unwrap();
    fails(&e);
    let error = e.sender.write_all(b"d").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionAborted);
    let mut e = ends(64, 64);
    drop(e.sender);
    assert_eq!(e.receiver.try_recv(&mut [0; 8]).unwrap(), None);
    let error = e.receiver.recv(&mut [0; 8], NOW).unwrap_err();
    assert_matches!(error, Error::Timeout { .. });
}

/// A sender that has told the end, and a receiver that has not read it; the queue pair of the sender
/// is gone before it has acknowledged what the receiver gave back.
pub(super) fn ended() -> (Arc<Kernel>, Receiver) {
    let kernel = Kernel::new();
    let (a, b) = (prepared(&kernel), prepared(&kernel));
    let sender = PreparedSender::new(&a, 64).unwrap();
    let receiver = PreparedReceiver::new(&b, 64).unwrap();
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    let remote = receiver.grant().remote();
    let mut sender = sender.start(a.connect(at_b).unwrap(), remote).unwrap();
    let mut receiver = receiver.start(b.connect(at_a).unwrap()).unwrap();
    sender.send(b"x", SOON).unwrap();
    carry_out(&kernel, [sender.qp().handle(), receiver.qp().handle()]);
    assert_eq!(receiver.recv(&mut [0; 8], SOON).unwrap(), 1);
    let error = sender.finish(NOW).unwrap_err();
    assert_matches!(error, Error::Timeout { .. });
    let queue = receiver.qp().handle();
    kernel.arrive(queue, |cqe| cqe.flags = abi::WC_WITH_IMM);
    kernel.fail(queue, Status::RetryExceeded.code());
    (kernel, receiver)
}

#[test]
fn an_end_that_was_taken_is_no_error_though_the_receiver_is_gone() {
    let mut e = ends(64, 64);
    let error = e.sender.finish(NOW).unwrap_err();
    assert_matches!(error, Error::Timeout { .. });
    let queue = e.sender.qp().handle();
    e.kernel.arrive(queue, |cqe| cqe.flags = abi::WC_WITH_IMM);
    e.kernel
        .arrive(queue, |cqe| cqe.status = Status::Flushed.code());
    e.sender.finish(SOON).unwrap();
}

#[test]
fn an_end_that_was_told_is_no_error_though_the_sender_is_gone() {
    let (_kernel, mut receiver) = ended();
    for _ in 0..3 {
        assert_eq!(receiver.recv(&mut [0; 8], SOON).unwrap(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    // What comes out is what went in, whatever the sizes.
    #[test]
    fn it_is_a_queue(
        staging in 1usize..80,
        ring in 1usize..80,
        steps in prop::collection::vec((any::<bool>(), 0usize..120), 1..60),
    ) {
        let mut e = ends(staging, ring);
        let (mut sent, mut got) = (Vec::<u8>::new(), Vec::<u8>::new());
        let mut next = 0u8;
        for (send, n) in steps {
            if send {
                let bytes: Vec<u8> = (0..n).map(|i| next.wrapping_add(i as u8)).collect();
                let count = e.sender.try_send(&bytes).unwrap();
                next = next.wrapping_add(count as u8);
                sent.extend(&bytes[..count]);
                e.carry_out();
            } else {
                let mut out = vec![0; n];
                let count = e.receiver.try_recv(&mut out).unwrap().unwrap_or(0);
                got.extend(&out[..count]);
                e.carry_out();
            }
            let under_way = sent.len() - got.len();
            prop_assert!(under_way <= staging.min(ring));
            prop_assert!(e.sender.in_flight() >= under_way as u64);
            prop_assert_eq!(&got[..], &sent[..got.len()]);
        }
        let mut rest = vec![0; 200];
        let count = e.receiver.try_recv(&mut rest).unwrap().unwrap_or(0);
        got.extend(&rest[..count]);
        prop_assert_eq!(got, sent);
    }
}
