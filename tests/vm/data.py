#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""What crosses between h1 and h2 through the module's ABI: contents, order, counts.

    data.py writes|large|order|overlap|receive|full|wait

Expects the module and two hosts. Prints KTAP.
"""

import ctypes
import errno
import os
import random
import select
import signal
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import ulp
from ulp import HCA, N, Cq, End, error_of, pair, pattern, remote

COUNT = ulp.count("ULP_WRITES", 1000, 500)
MTU = 4096
MIB = 1 << 20
LARGE = ulp.count("ULP_LARGE", 8) * MIB


def one_write(r, a, b, length, where=0, seed=1):
    data = pattern(seed, length)
    a.buffer.map[:length] = data
    fill = bytes([0xC3]) * 64
    b.buffer.map[where + length : where + length + 64] = fill
    a.file.submit([a.write(b, length, remote_offset=where, user_data=length)])
    done = a.cq.wait(1)[0]
    r.equal(
        f"a write of {length} bytes at {where} arrives, and no byte more",
        (
            done.status,
            done.user_data,
            done.opcode,
            done.qp_num,
            done.qp,
            b.buffer.map[where : where + length] == data,
            b.buffer.map[where + length : where + length + 64] == fill,
        ),
        (0, length, N["WC_RDMA_WRITE"], a.qp.num, a.qp.handle, True, True),
    )


def test_writes(r):
    a, b = pair(length=2 * MIB)
    r.equal("new buffers are zero", [e.buffer.map[:] == bytes(2 * MIB) for e in (a, b)], [True, True])
    for i, (length, where) in enumerate(
        [
            (1, 0),
            (8, 8),
            (1023, 1),
            (1024, 0),
            (MTU, 0),
            (MTU + 1, 4095),
            (MTU + 1, 0),
            (2 * MTU - 1, 3),
            (65536, 61),
            (MIB, 0),
            (MIB, 4093),
        ]
    ):
        one_write(r, a, b, length, where, i)
    one_write(r, b, a, 5000, 17, 99)
    a.file.submit([a.qp.wr("RDMA_WRITE", **remote(b.grant))])
    r.equal("a write of no bytes completes", [c.status for c in a.cq.wait(1)], [0])
    b.buffer.map[:8] = bytes(8)
    local = (ctypes.c_char * 8)(*b"inline!!")
    wr = a.qp.wr(
        "RDMA_WRITE",
        **remote(b.grant),
        flags=N["SEND_INLINE"] | N["SEND_SIGNALED"],
        num_sge=1,
        sge=ulp.S["sge"](buffer=0, length=8, offset=ctypes.addressof(local)),
    )
    most = a.file.call("QP_QUERY", qp=a.qp.handle).max_inline
    if most >= 8:
        a.file.submit([wr])
        ctypes.memset(local, 0, 8)
        r.equal("inline data from any address", (a.cq.wait(1)[0].status, b.buffer.map[:8]), (0, b"inline!!"))
    else:
        r.equal("inline data beyond the queue pair's limit", error_of(a.file.submit, [wr]), "EMSGSIZE")


def test_large(r):
    a, b = pair(length=LARGE + 4096)
    one_write(r, a, b, LARGE, 0, 5)


def test_order(r):
    """Every write puts its number into the same eight bytes; nobody may see them go back."""
    a, b = pair(length=max(65536, 8 * COUNT), depth=128)
    for i in range(COUNT):
        a.buffer.map[8 * i : 8 * i + 8] = (i + 1).to_bytes(8, "little")
    cell = ctypes.c_uint64.from_buffer(b.buffer.map)
    seen, back, stop = [0], [], threading.Event()

    def watch():
        while not stop.is_set():
            now = cell.value
            if now < seen[0]:
                back.append((seen[0], now))
            seen[0] = now

    sys.setswitchinterval(0.0005)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    done, posted, early = [], 0, []
    while len(done) < COUNT:
        n = min(64, COUNT - posted, 128 - (posted - len(done)))
        if n > 0:
            a.file.submit([a.write(b, 8, offset=8 * i, user_data=i) for i in range(posted, posted + n)])
            posted += n
        got = a.cq.wait(1)
        done += got
        if cell.value < len(done):
            early.append((len(done), cell.value))
    stop.set()
    watcher.join(10)
    r.equal(f"{COUNT} writes complete once each, in order", [c.user_data for c in done], list(range(COUNT)))
    r.equal("with success", {c.status for c in done}, {0})
    r.equal("no earlier write lands after a later one", back, [])
    r.equal("what completed has landed", early, [])
    r.equal("the last write wins", cell.value, COUNT)


def test_overlap(r):
    """Overlapping writes of every size, one in eight signalled, against a model.

    An adapter with relaxed ordering lands those between two waits in any order: hw/mlx5/mr.c,
    mlx5_set_umr_free_mkey(). There each byte is one that a write of the last batch put there.
    """
    rng = random.Random(11)
    size, relaxed, strays = 16384, HCA == "mlx5", []
    a, b = pair(length=size, depth=128)
    a.buffer.map[:] = pattern(3, size)
    source, model = a.buffer.map[:], bytearray(size)
    for batch in range(20):
        wrs, values, before = [], {}, b.buffer.map[:]
        for i in range(64):
            length = rng.choice((1, 7, 64, 1000, 4096, 4097, 9000))
            at, to = rng.randrange(size - length), rng.randrange(size - length)
            model[to : to + length] = source[at : at + length]
            for n in range(length if relaxed else 0):
                values.setdefault(to + n, set()).add(source[at + n])
            wrs.append(
                a.write(
                    b,
                    length,
                    offset=at,
                    remote_offset=to,
                    user_data=batch * 64 + i,
                    flags=N["SEND_SIGNALED"] if i % 8 == 7 else 0,
                )
            )
        a.file.submit(wrs)
        got = a.cq.wait(8)
        want = [batch * 64 + i for i in range(7, 64, 8)]
        if [(c.user_data, c.status) for c in got] != [(w, 0) for w in want]:
            r.equal(f"completions of batch {batch}", [(c.user_data, c.status) for c in got], [(w, 0) for w in want])
            return
        if relaxed:
            now = b.buffer.map[:]
            strays += [(batch, n) for n in range(size) if now[n] not in values.get(n, before[n : n + 1])]
    if relaxed:
        r.equal("1280 overlapping writes: each byte is of a write since the wait before", strays[:5], [])
    else:
        same = b.buffer.map[:] == bytes(model)
        r.check("1280 overlapping writes land in the order of the requests", same, "they differ")
    r.equal("only signalled writes complete", [c.user_data for c in a.cq.reap()], [])


def test_receive(r):
    a, b = pair()
    b.file.submit([b.qp.wr("RECV", b.buffer, 8192 * i, 5000, user_data=70 + i) for i in range(4)])
    a.buffer.map[:] = pattern(8, a.buffer.length)
    sent = a.buffer.map
    a.file.submit(
        [
            a.write(b, 300, remote_offset=60000, user_data=1),
            a.qp.wr(
                "RDMA_WRITE_WITH_IMM", a.buffer, 10, 300, **remote(b.grant, 50000), imm_data=0xDEADBEEF, user_data=2
            ),
            a.qp.wr("SEND", a.buffer, 20, 5000, user_data=3),
            a.qp.wr("SEND_WITH_IMM", a.buffer, 30, 1, imm_data=5, user_data=4),
            a.qp.wr("SEND", user_data=5),
        ]
    )
    r.equal(
        "writes and sends complete in order",
        [(c.user_data, c.status, c.opcode) for c in a.cq.wait(5)],
        [(1, 0, 1), (2, 0, 1), (3, 0, 0), (4, 0, 0), (5, 0, 0)],
    )
    imm = N["WC_WITH_IMM"]
    received = b.cq.wait(4)
    r.equal(
        "what only datagrams report is 0",
        {(c.src_qp, c.pkey_index, c.slid, c.sl, c.dlid_path_bits, c.port, c.vendor_err) for c in received},
        {(0,) * 7},
    )
    r.equal(
        "write with immediate, sends and an empty send complete a receive each, in order",
        [
            (c.user_data, c.status, c.opcode, c.byte_len, c.flags & imm, c.imm_data if c.flags & imm else 0)
            for c in received
        ],
        [(70, 0, 129, 300, imm, 0xDEADBEEF), (71, 0, 128, 5000, 0, 0), (72, 0, 128, 1, imm, 5), (73, 0, 128, 0, 0, 0)],
    )
    r.check("the data of the write with immediate is in place", b.buffer.map[50000:50300] == sent[10:310], "it differs")
    r.check(
        "the data of the send is in the second receive's buffer",
        b.buffer.map[8192:13192] == sent[20:5020],
        "it differs",
    )
    r.equal("one byte in the third", b.buffer.map[16384:16386], sent[30:31] + b"\0")
    b.file.submit([b.qp.wr("RECV", b.buffer, 0, 100, user_data=80)])
    a.file.submit([a.qp.wr("SEND", a.buffer, 0, 101, user_data=6)])
    r.check("a send that is too long for the receive fails at the sender", a.cq.wait(1)[0].status != 0, "it succeeded")
    got = b.cq.wait(1)[0]
    r.equal(
        "and at the receiver, with a length error or what its driver makes of it",
        (got.user_data, got.status != 0, b.buffer.map[100]),
        (80, True, 0),
    )


def test_full(r):
    """A queue that is full says so, and takes what fits."""
    a, b = pair(depth=16, entries=64)
    depth = a.file.call("QP_QUERY", qp=a.qp.handle).max_send_wr
    wrs = [a.write(b, 4096, user_data=i) for i in range(depth + 1)]
    got = a.file.try_submit(wrs)[:3]
    r.equal("one request more than the queue holds, in one call: the others are posted", got, ("none", depth, "EAGAIN"))
    r.equal("... and complete", [c.user_data for c in a.cq.wait(depth)], list(range(depth)))
    # The kernel copies 64 requests at a time: the refused one is not in the last part.
    many = [a.write(b, 8, user_data=i) for i in range(4 * 64)]
    got = a.file.try_submit(many, cq=a.cq.handle, min_complete=depth, timeout_ns=ulp.hang_ns())
    r.equal(
        "far more than the queue holds, in one call that waits: it waits for those that are posted",
        (*got[:3], got[3].completed, got[3].wait_error),
        ("none", depth, "EAGAIN", depth, 0),
    )
    r.equal("... and they complete", [c.user_data for c in a.cq.reap()], list(range(depth)))
    small = Cq(a.file, 2)
    q = ulp.Qp(a.file, a.pd, small, depth=16)
    q.modify("STATE PKEY_INDEX PORT ACCESS_FLAGS", qp_state=N["QPS_INIT"], port_num=a.file.port)
    receives = [q.wr("RECV", a.buffer, 0, 64, user_data=i) for i in range(small.entries + 1)]
    got = a.file.try_submit(receives)[:3]
    r.equal(
        "more requests than the completion ring can hold: the others are posted", got, ("none", small.entries, "EAGAIN")
    )
    r.equal("a full ring of promises takes no more", error_of(a.file.submit, receives[:1]), "EAGAIN")
    q.modify("STATE", qp_state=N["QPS_ERR"])
    r.equal(
        "receives of a queue pair in error are flushed, each once",
        [(c.user_data, c.status) for c in small.wait(small.entries)],
        [(i, 5) for i in range(small.entries)],
    )


def switches_of_a_poll(a, b):
    """How often a thread that polls a's file runs during some writes."""
    end = os.eventfd(0)
    poll, thread = select.poll(), threading.Thread(target=lambda: poll.poll())
    poll.register(a.file.fd, select.POLLIN)
    poll.register(end, select.POLLIN)
    thread.start()
    task = f"/proc/self/task/{thread.native_id}"

    def switches():
        with open(f"{task}/status") as f:
            return sum(int(line.split()[1]) for line in f if "ctxt_switches" in line)

    def sleeps():
        with open(f"{task}/wchan") as f:
            return "poll" in f.read()

    if not ulp.until(sleeps):
        return "the thread does not sleep in poll"
    before = switches()
    for _ in range(20):
        a.file.submit([a.write(b, 64)])
        a.cq.wait(1)
    ulp.until(sleeps)
    got = switches() - before
    os.eventfd_write(end, 1)
    thread.join()
    os.close(end)
    return got


def test_wait(r):
    a, b = pair()
    got = a.file.submit(cq=a.cq.handle, min_complete=1, timeout_ns=10**6)
    r.equal(
        "a wait for nothing ends with ETIME, and nothing is left of its time",
        (-got.wait_error, got.completed, got.timeout_ns),
        (errno.ETIME, 0, 0),
    )
    signal.signal(signal.SIGALRM, lambda *_: None)
    # Again and again: on a busy machine the first may precede the call.
    signal.setitimer(signal.ITIMER_REAL, 0.3, 0.3)
    got = a.file.submit(cq=a.cq.handle, min_complete=1, timeout_ns=ulp.hang_ns())
    signal.setitimer(signal.ITIMER_REAL, 0)
    r.equal("a signal ends a wait with EINTR", -got.wait_error, errno.EINTR)
    r.check("and leaves the rest of its time", 0 < got.timeout_ns < ulp.hang_ns(), got.timeout_ns)
    begin = time.monotonic_ns()
    got = a.file.submit(cq=a.cq.handle, min_complete=1, timeout_ns=10**7)
    r.equal(
        "a wait of 10 ms ends with ETIME, and has no time left", (-got.wait_error, got.timeout_ns), (errno.ETIME, 0)
    )
    r.check("... and not before", time.monotonic_ns() >= begin + 10**7)
    p = select.poll()
    p.register(a.file.fd, select.POLLIN)
    got = a.file.submit(
        [a.write(b, 64, user_data=i) for i in range(3)],
        cq=a.cq.handle,
        min_complete=3,
        timeout_ns=ulp.hang_ns(),
    )
    r.equal("post and wait in one call", (got.posted, got.wait_error, got.completed), (3, 0, 3))
    r.equal("poll of the device's file with completions unread: not readable", p.poll(0), [])
    r.equal("they are there", [c.user_data for c in a.cq.reap()], [0, 1, 2])
    r.equal("completions do not wake a thread that polls the device's file", switches_of_a_poll(a, b), 0)
    counter = os.eventfd(0, os.EFD_NONBLOCK)
    a.file.call("CQ_EVENTFD", cq=a.cq.handle, fd=counter)
    level, edge = select.epoll(), select.epoll()
    level.register(counter, select.EPOLLIN)
    edge.register(counter, select.EPOLLIN | select.EPOLLET)
    ready = [(counter, select.EPOLLIN)]
    for i in range(2):
        a.file.submit([a.write(b, 64)])
        r.equal(
            f"epoll by level and by edge: completion {i + 1} is an event",
            (edge.poll(5 * ulp.PATIENCE), level.poll(5 * ulp.PATIENCE)),
            (ready, ready),
        )
        r.equal("... which stays by level, and not by edge", (edge.poll(0), level.poll(0)), ([], ready))
    r.equal("... until the eventfd is read", (os.eventfd_read(counter), level.poll(0), edge.poll(0)), (2, [], []))
    r.equal("both completions are in the ring", len(a.cq.reap()), 2)
    level.close()
    edge.close()
    os.close(counter)
    end = End("h1")
    r.equal("a write before the queue pair is connected", error_of(end.file.submit, [end.write(b, 8)]), "ENOTCONN")


if __name__ == "__main__":
    ulp.main(__doc__, globals())
