#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Arrays of requests, posted by SUBMIT and by URING_BATCH with URING_RING.

    submit.py NAME, as 25-ops and 40-lifetime list them

Expects the module and two hosts; `rxe1` is gone when `removed` or `uring_removed` returns. Prints KTAP.
"""

import ctypes
import os
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import ulp
from lifetime import blocked, ended, in_background, ours, remove, wait_for_one
from ring import Uring
from ulp import N, S, Cq, Qp, error_of, ioctl, pair, pattern, remote, sizes_of

REFUSED = 10  # IB_WC_REM_ACCESS_ERR


class Call:
    """Posts by SUBMIT."""

    name = "SUBMIT"

    def __init__(self, file):
        self.file, self.posted = file, 0

    def post(self, wrs, **fields):
        array = (S["wr"] * max(1, len(wrs)))(*wrs)
        arg = S["submit"](wrs=ctypes.addressof(array), nr_wrs=len(wrs), **sizes_of("submit"), **fields)
        arg.size = ctypes.sizeof(arg)
        try:
            ioctl(self.file.fd, N["IOC_SUBMIT"], ctypes.byref(arg))
        finally:
            self.posted = arg.posted
        if arg.stop_error:
            raise OSError(-arg.stop_error, os.strerror(-arg.stop_error))


class Entry:
    """Posts by an entry of io_uring, which completes when the requests are posted."""

    name = "URING_BATCH"

    def __init__(self, file, **how):
        self.file, self.posted = file, 0
        self.uring = Uring(**how)

    def post(self, wrs):
        array = (S["wr"] * len(wrs))(*wrs)
        batch = S["uring_batch"](
            wrs=ctypes.addressof(array), nr_wrs=len(wrs), wr_size=ctypes.sizeof(S["wr"]), flags=N["URING_RING"]
        )
        self.uring.prepare(self.file.fd, N["URING_BATCH"], bytes(batch))
        self.uring.submit(1)
        [(_, result)] = self.uring.wait(1)
        self.posted = result if result >= 0 else self.uring.extra >> N["URING_INDEX_SHIFT"]
        if result < 0:
            raise OSError(-result, os.strerror(-result))


WAYS = Call, Entry


def done(cq, count):
    return [(c.user_data, c.status) for c in cq.wait(count)]


def test_order(r):
    """Requests are posted once, in the order of the array, and each has what it says."""
    for way in WAYS:
        a, b = pair()
        poster = way(a.file)
        a.buffer.map[:] = pattern(1, len(a.buffer.map))
        sent, got, counts = 0, [], []
        while sent < 200:
            count = 1 + sent % 9
            numbers = range(sent, sent + count)
            poster.post([a.write(b, 8, offset=8 * i, remote_offset=8 * i, user_data=i) for i in numbers])
            sent += count
            counts.append(poster.posted == count)
            got += done(a.cq, count)
        r.equal(f"{way.name}: each completes once and in order", got, [(i, 0) for i in range(sent)])
        r.equal(f"{way.name}: the peer has the bytes", b.buffer.map[: 8 * sent] == a.buffer.map[: 8 * sent], True)
        r.equal(f"{way.name}: it says how many are posted", set(counts), {True})
        # Requests that differ in one member each from the one before.
        keys = [b.grant, b.file.grant(b.buffer)]
        b.buffer.map[:128] = bytes(128)
        silent, wrs = {2: 0, 3: 0}, []
        for i in range(6):
            wr = a.write(b, 8 + i % 2, offset=16 * i, user_data=i, flags=silent.get(i, N["SEND_SIGNALED"]))
            wr.remote_addr, wr.rkey = keys[i % 2].addr + 16 * i, keys[i % 2].rkey
            wrs.append(wr)
        poster.post(wrs)
        first = done(a.cq, 4)
        b.file.destroy(keys[1].handle)
        bad = a.write(b, 8, user_data=8)
        bad.rkey = keys[1].rkey
        poster.post([a.write(b, 8, user_data=7), bad])
        r.equal(
            f"{way.name}: each request has its own key and flags",
            (first, done(a.cq, 2)),
            ([(i, 0) for i in (0, 1, 4, 5)], [(7, 0), (8, REFUSED)]),
        )
        parts = [slice(16 * i, 16 * i + 8 + i % 2) for i in range(6)]
        same = [b.buffer.map[part] == a.buffer.map[part] for part in parts]
        r.equal(f"{way.name}: and its own memory", same, [True] * 6)


def test_queues(r):
    """One array has requests for all queues of its file."""
    for way in WAYS:
        a, b = pair()
        c, d = Qp(a.file, a.pd, a.cq), Qp(b.file, b.pd, b.cq)
        c.connect(d.num, b.file.gid().gid, 1, 2)
        d.connect(c.num, a.file.gid().gid, 2, 1)
        theirs, mine = way(b.file), way(a.file)
        a.buffer.map[:512] = pattern(2, 512)
        receives, sends = [], []
        for i in range(4):
            receives.append(b.qp.wr("RECV", b.buffer, 64 * i, 64, user_data=i))
            receives.append(d.wr("RECV", b.buffer, 1024 + 64 * i, 64, user_data=10 + i))
            sends.append(a.qp.wr("SEND", a.buffer, 64 * i, 64, user_data=20 + i))
            sends.append(c.wr("SEND", a.buffer, 256 + 64 * i, 64, user_data=30 + i))
        theirs.post(receives)
        mine.post(sends)
        got = sorted(done(a.cq, 8))
        r.equal(f"{way.name}: every send completes", got, [(n, 0) for n in (*range(20, 24), *range(30, 34))])
        numbers = sorted(w.user_data for w in b.cq.wait(8))
        r.equal(f"{way.name}: each receive has its own", numbers, [*range(4), *range(10, 14)])
        got = [b.buffer.map[:256], b.buffer.map[1024:1280]]
        r.equal(f"{way.name}: in the order of the sends", got, [a.buffer.map[:256], a.buffer.map[256:512]])


def test_bad(r):
    """A request that fails a check ends the array: those before it are posted, and the command says how many."""
    sge = S["sge"]
    for way in WAYS:
        a, b = pair()
        other = ulp.End("h1")
        poster = way(a.file)
        good = [a.write(b, 8, offset=8 * i, remote_offset=8 * i, user_data=i) for i in range(5)]
        handle, end = a.buffer.handle, len(a.buffer.map)
        two = (sge * 2)(sge(buffer=handle, length=8), sge(buffer=handle, length=8))
        # One element is inline data at an address, one in a buffer.
        mixed = (sge * 2)(sge(buffer=handle, length=8), sge(length=8, offset=ctypes.addressof(two)))
        wrong = {
            "an opcode that is not defined": ({"opcode": 99}, "EINVAL"),
            "a flag that is not defined": ({"flags": 1 << 15}, "EINVAL"),
            "a field that the opcode does not have": ({"args": ((0, 1),)}, "EINVAL"),
            "a queue pair of another file": ({"qp": other.qp.handle + (1 << 16)}, "ENOENT"),
            "a completion queue": ({"qp": a.cq.handle}, "EBADFD"),
            "a buffer that is none": ({"sge": sge(buffer=0x20000777, length=8)}, "ENOENT"),
            "bytes beyond the buffer": ({"sge": sge(buffer=handle, length=8, offset=end - 7)}, "ERANGE"),
            "too many elements": ({"num_sge": 17, "sge": sge(offset=ctypes.addressof(two))}, "E2BIG"),
            "elements that cannot be read": ({"num_sge": 2, "sge": sge(offset=4096)}, "EFAULT"),
            "more elements than the queue has": (
                {"num_sge": 2, "sge": sge(offset=ctypes.addressof(two))},
                "E2BIG",
            ),
            "inline data that cannot be read": (
                {"flags": N["SEND_INLINE"], "sge": sge(length=8, offset=4096)},
                "EFAULT",
            ),
            "inline data partly in a buffer": (
                {"flags": N["SEND_INLINE"], "num_sge": 2, "sge": sge(offset=ctypes.addressof(mixed))},
                "EINVAL",
            ),
            "a timeout of nothing": ({"flags": N["REQUEST_TIMEOUT"]}, "EINVAL"),
        }
        a.buffer.map[:40] = pattern(3, 40)
        for what, (fields, want) in wrong.items():
            b.buffer.map[:40] = bytes(40)
            bad = a.write(b, 8, offset=24, remote_offset=24, user_data=3)
            for name, value in fields.items():
                setattr(bad, name, value)
            got = error_of(poster.post, [*good[:3], bad, good[4]])
            first = done(a.cq, 3)
            r.equal(
                f"{way.name} with {what} is refused, and posts what is before it",
                (got, poster.posted, [*first, *done(a.cq, 0)], b.buffer.map[:40]),
                (want, 3, [(i, 0) for i in range(3)], a.buffer.map[:24] + bytes(16)),
            )
            poster.post(good)
            r.equal(
                "... and all are posted when it is right",
                (done(a.cq, 5), b.buffer.map[:40] == a.buffer.map[:40]),
                ([(i, 0) for i in range(5)], True),
            )


def test_alike(r):
    """Sends and receives that follow their like are checked as the first is, and each has its own memory."""
    a, b = pair()
    theirs, mine = Call(b.file), Call(a.file)
    a.buffer.map[:512] = pattern(4, 512)
    sizes = [8 + i for i in range(6)]
    receives, sends = [], []
    for i, size in enumerate(sizes):
        receives.append(b.qp.wr("RECV", b.buffer, 64 * i, size, user_data=i))
        flags = 0 if i in (1, 2) else N["SEND_SIGNALED"]
        sends.append(a.qp.wr("SEND_WITH_IMM", a.buffer, 32 * i, size, user_data=i, imm_data=i // 3, flags=flags))
    theirs.post(receives)
    mine.post(sends)
    r.equal("sends that are signaled complete", done(a.cq, 4), [(i, 0) for i in (0, 3, 4, 5)])
    got = [(c.user_data, c.byte_len, c.imm_data, c.status) for c in b.cq.wait(6)]
    r.equal("each receive has its own send", got, [(i, size, i // 3, 0) for i, size in enumerate(sizes)])
    parts = [(slice(64 * i, 64 * i + size), slice(32 * i, 32 * i + size)) for i, size in enumerate(sizes)]
    r.equal("in its own memory", [b.buffer.map[to] == a.buffer.map[at] for to, at in parts], [True] * 6)

    beyond = S["sge"](buffer=a.buffer.handle, length=8, offset=len(a.buffer.map) - 7)
    wrong = {
        "an address at the peer": {"remote_addr": 8},
        "a key of the peer": {"rkey": 8},
        "an argument": {"args": ((1 << 40, 0),)},
        "a time without a timeout": {"timeout_ns": 1},
        "memory beyond the buffer": {"sge": beyond},
    }
    of_sends = {"a signal": {"flags": N["SEND_SIGNALED"]}, "immediate data": {"imm_data": 1}}
    for opcode, more in (("SEND", {}), ("RECV", of_sends)):
        for what, fields in (wrong | more).items():
            wrs = [a.qp.wr(opcode, a.buffer, 64 * i, 8, user_data=i) for i in range(4)]
            for name, value in fields.items():
                setattr(wrs[3], name, value)
            count = 3 if opcode == "SEND" else 0
            theirs.post([b.qp.wr("RECV", b.buffer, 0, 8) for _ in range(count)])
            got = error_of(mine.post, wrs)
            want = "ERANGE" if "memory" in what else "EINVAL"
            first = done(a.cq, count)
            r.equal(
                f"a {opcode} with {what} is refused, and its like before it are posted",
                (got, mine.posted, [*first, *done(a.cq, 0)], len(b.cq.wait(count))),
                (want, 3, [(i, 0) for i in range(count)], count),
            )


def test_parts(r):
    """Requests with several elements, inline data and timeouts, in one array."""
    a, b = pair()
    qp = Qp(a.file, a.pd, a.cq, depth=16, max_send_sge=5, max_recv_sge=5, max_inline=200)
    peer = Qp(b.file, b.pd, b.cq)
    qp.connect(peer.num, b.file.gid().gid, 1, 2)
    peer.connect(qp.num, a.file.gid().gid, 2, 1)
    a.buffer.map[:] = pattern(4, len(a.buffer.map))
    kept = []

    def keep(memory):
        kept.append(memory)
        return ctypes.addressof(memory)

    def write(at, **fields):
        return qp.wr("RDMA_WRITE", **remote(b.grant, at), **fields)

    def inline(at, *pieces, **fields):
        elements = [
            S["sge"](length=len(p), offset=keep(ctypes.create_string_buffer(p, max(1, len(p))))) for p in pieces
        ]
        sge = elements[0] if len(elements) == 1 else S["sge"](offset=keep((S["sge"] * len(elements))(*elements)))
        wr = write(at, num_sge=len(pieces), sge=sge, **fields)
        wr.flags |= N["SEND_INLINE"] | N["SEND_SIGNALED"]
        return wr

    def gather(at, *parts, **fields):
        elements = [S["sge"](buffer=a.buffer.handle, offset=o, length=n) for o, n in parts]
        array = keep((S["sge"] * len(elements))(*elements))
        return write(at, num_sge=len(parts), sge=S["sge"](offset=array), **fields)

    def limited(wr):
        wr.flags |= N["REQUEST_TIMEOUT"]
        wr.timeout_ns = 10**10
        return wr

    for way in WAYS:
        poster = way(a.file)
        b.buffer.map[:4096] = bytes(4096)
        data = pattern(10, 130)
        poster.post([inline(0, data[:8], user_data=1), inline(64, data, user_data=2), inline(512, b"", user_data=3)])
        r.equal(f"{way.name}: inline data of 8, 130 and no bytes", done(a.cq, 3), [(1, 0), (2, 0), (3, 0)])
        r.equal("... arrives", (b.buffer.map[:8], b.buffer.map[64:194]), (data[:8], data))
        parts = [(4096 * i, 16 + i) for i in range(5)]
        want = b"".join(a.buffer.map[o : o + n] for o, n in parts)
        one = write(3072, num_sge=1, sge=S["sge"](buffer=a.buffer.handle, length=9), user_data=6)
        both = inline(3200, pattern(1, 8), pattern(2, 70), user_data=7)
        poster.post(
            [gather(1024, *parts, user_data=4), limited(gather(2048, *parts[:2], user_data=5)), limited(one), both]
        )
        r.equal(
            f"{way.name}: five elements, two with a timeout, one with a timeout, inline data in two pieces",
            done(a.cq, 4),
            [(i, 0) for i in range(4, 8)],
        )
        r.equal(
            "... arrive",
            [b.buffer.map[at : at + n] for at, n in ((1024, len(want)), (2048, 33), (3072, 9), (3200, 78))],
            [want, want[:33], a.buffer.map[:9], pattern(1, 8) + pattern(2, 70)],
        )
        plain = write(0, num_sge=1, sge=S["sge"](buffer=a.buffer.handle, length=8), user_data=8)
        bad = write(0, num_sge=1, sge=S["sge"](buffer=1, length=8))
        error = error_of(poster.post, [inline(0, pattern(1, 100), user_data=7), plain, bad])
        r.equal(f"{way.name}: the index of a bad one among them", (error, poster.posted), ("ENOENT", 2))
        r.equal("... and those before it are posted", (done(a.cq, 2), a.cq.reap()), ([(7, 0), (8, 0)], []))


def test_full(r):
    """A queue that is full takes the first of the array."""
    for way in WAYS:
        a, b = pair(depth=16)
        poster = way(a.file)
        wrs = [a.write(b, 8, user_data=i) for i in range(20)]
        got = error_of(poster.post, wrs)
        r.equal(f"{way.name} of more than the queue has room for", (got, poster.posted), ("EAGAIN", 16))
        r.equal("... posts the first", (done(a.cq, 16), a.cq.reap()), ([(i, 0) for i in range(16)], []))
        poster.post(wrs[16:])
        r.equal("... and then the others", done(a.cq, 4), [(i, 0) for i in range(16, 20)])


def test_wait(r):
    """A wait that is refused posts nothing."""
    a, b = pair()
    poster, wr = Call(a.file), a.write(b, 8, user_data=2)
    refused = {
        "a flag that is not defined": ({"flags": 2}, "EINVAL"),
        "a flag that is not defined, without a queue": ({"flags": 1 << 31, "cq": 0}, "EINVAL"),
        "more than the queue has": ({"min_complete": a.cq.entries + 1}, "ERANGE"),
        "a queue that is none": ({"cq": a.qp.handle}, "EBADFD"),
        "a queue that is not there": ({"cq": a.cq.handle + (1 << 16)}, "ENOENT"),
    }
    for what, (fields, want) in refused.items():
        fields = {"cq": a.cq.handle, "min_complete": 1} | fields
        r.equal(f"a wait with {what} posts nothing", (error_of(poster.post, [wr], **fields), poster.posted), (want, 0))
    poster.post([wr])
    r.equal("without a wait it is posted", done(a.cq, 1), [(2, 0)])
    waits = [in_background(wait_for_one, a.file, a.cq) for _ in range(2)]
    blocked(waits)
    poster.post([wr])
    r.equal("one completion ends the waits of two threads", [ended(t) for t in waits], [None, None])


def test_polled(r):
    """A thread of the kernel submits the entry."""
    a, b = pair()
    poster = Entry(a.file, polled=True)
    a.buffer.map[:64] = pattern(3, 64)
    poster.post([a.write(b, 16, offset=16 * i, remote_offset=16 * i, user_data=i) for i in range(4)])
    r.equal("all are posted", poster.posted, 4)
    r.equal("they complete in order", done(a.cq, 4), [(i, 0) for i in range(4)])
    r.equal("the peer has them", b.buffer.map[:64], pattern(3, 64))
    wrong = a.write(b, 16)
    wrong.qp = a.cq.handle
    r.equal("what is wrong is refused", error_of(poster.post, [wrong]), "EBADFD")


def test_removed(r, way=Call):
    """The device goes while threads post and wait."""
    a, b = pair()
    poster, idle, posted = way(a.file), way(a.file), [0]

    def post():
        while True:
            try:
                poster.post([a.write(b, 1 << 16, flags=0) for _ in range(8)])
                posted[0] += 8
            except BlockingIOError:
                a.cq.reap()

    waiter = in_background(wait_for_one, a.file, Cq(a.file, 4))
    blocked([waiter])
    thread = in_background(post)
    r.check("requests are posted", ulp.until(lambda: posted[0] > 64), posted)
    remove(r, ulp.DEV1)
    r.equal(f"a thread that posts by {way.name} gets ENODEV", ended(thread), "ENODEV")
    r.equal("... and one that waits", ended(waiter), "ENODEV")
    r.equal(f"every later {way.name} is ENODEV", error_of(idle.post, [a.write(b, 8)]), "ENODEV")


def test_uring_removed(r):
    """As `removed`, by io_uring."""
    test_removed(r, Entry)


def test_killed(r, way=Call):
    """A process is killed while its threads post and wait."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        a, b = pair()
        cq, poster = Cq(a.file, 4), way(a.file)
        waits = [in_background(wait_for_one, a.file, cq) for _ in range(2)]
        blocked(waits)
        os.write(writing, b"y")
        while True:
            error_of(poster.post, [a.write(b, 1 << 16, flags=0)])
    r.equal("its threads post and wait", os.read(reading, 1), b"y")
    r.check("it has objects", ours("qp"), "none")
    time.sleep(0.2)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    r.check("none is left", ulp.until(lambda: not any(ours(kind) for kind in ("qp", "cq", "pd", "mr"))))


def test_uring_killed(r):
    """As `killed`, by io_uring."""
    test_killed(r, Entry)


if __name__ == "__main__":
    ulp.main(__doc__, globals())
