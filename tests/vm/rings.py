#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Submission rings, written by hand.

    rings.py NAME, as 25-ops and 40-lifetime list them

Expects the module and two hosts; `rxe1` is gone when `removed` or `uring_removed` returns. Prints KTAP.
"""

import ctypes
import errno
import gc
import os
import random
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import ulp
from faults import Uring
from lifetime import DEADLINE, LONG, blocked, ended, in_background, ours, remove
from ulp import N, S, Cq, Qp, SubmitRing, error_of, pair, pattern

# Threads take turns here: `faults` is for a process that has one.
sys.setswitchinterval(0.005)
TIMEOUT = N["REQUEST_TIMEOUT"]
REFUSED = 10  # IB_WC_REM_ACCESS_ERR


def test_order(r):
    """Requests are posted once, in the order of their entries, around the ring."""
    a, b = pair()
    ring = SubmitRing(a.file, 5)
    r.equal(
        "the ring says what it is",
        (ring.entries, ring.header.entries, ring.header.entry_size, ring.header.entries_offset),
        (8, 8, N["RING_ENTRY_SIZE"], N["RING_ENTRIES_OFFSET"]),
    )
    a.buffer.map[:] = pattern(1, len(a.buffer.map))
    sent, done, heads, counts = 0, [], [], []
    while sent < 200:
        count = sent % 9
        for i in range(sent, sent + count):
            ring.put(a.write(b, 8, offset=8 * i, remote_offset=8 * i, user_data=i))
        ring.kick()
        sent += count
        heads.append(ring.header.head == sent)
        counts.append(ring.header.posted == count)
        done += a.cq.wait(count)
        if not count:
            sent += 1
            ring.put(a.write(b, 8, offset=8 * (sent - 1), remote_offset=8 * (sent - 1), user_data=sent - 1))
            ring.kick()
            done += a.cq.wait(1)
    r.equal("each completes once and in order", [(c.user_data, c.status) for c in done], [(i, 0) for i in range(sent)])
    r.equal("the peer has the bytes", b.buffer.map[: 8 * sent] == a.buffer.map[: 8 * sent], True)
    r.equal("the kernel says how far it is", (set(heads), set(counts)), ({True}, {True}))
    r.equal("nothing more is posted without an entry", (error_of(ring.kick), a.cq.reap()), ("none", []))
    # Requests that differ in one member each from the one before.
    keys = [b.grant, b.file.grant(b.buffer)]
    b.buffer.map[:64] = bytes(64)
    silent = {2: 0, 3: 0}
    for i in range(6):
        wr = a.write(b, 8 + i % 2, offset=16 * i, user_data=i, flags=silent.get(i, N["SEND_SIGNALED"]))
        wr.remote_addr, wr.rkey = keys[i % 2].addr + 16 * i, keys[i % 2].rkey
        ring.put(wr)
    ring.kick()
    done = [(c.user_data, c.status) for c in a.cq.wait(4)]
    b.file.destroy(keys[1].handle)
    bad = a.write(b, 8, user_data=8)
    bad.rkey = keys[1].rkey
    ring.put(a.write(b, 8, user_data=7))
    ring.put(bad)
    ring.kick()
    r.equal(
        "each request has its own key and flags",
        (done, [(c.user_data, c.status) for c in a.cq.wait(2)]),
        ([(i, 0) for i in (0, 1, 4, 5)], [(7, 0), (8, 0 if ulp.is_iwarp() else REFUSED)]),
    )
    parts = [slice(16 * i, 16 * i + 8 + i % 2) for i in range(6)]
    r.equal("and its own memory", [b.buffer.map[part] == a.buffer.map[part] for part in parts], [True] * 6)


def test_queues(r):
    """One ring serves all queues of its file, and several rings one queue."""
    a, b = pair()
    c, d = Qp(a.file, a.pd, a.cq), Qp(b.file, b.pd, b.cq)
    c.connect(d.num, b.file.gid().gid, 1, 2)
    d.connect(c.num, a.file.gid().gid, 2, 1)
    theirs, ours_, second = SubmitRing(b.file, 16), SubmitRing(a.file, 16), SubmitRing(a.file, 16)
    for i in range(4):
        theirs.put(b.qp.wr("RECV", b.buffer, 64 * i, 64, user_data=i))
        theirs.put(d.wr("RECV", b.buffer, 1024 + 64 * i, 64, user_data=10 + i))
    theirs.kick()
    a.buffer.map[:512] = pattern(2, 512)
    for i in range(4):
        ring = (ours_, second)[i % 2]
        ring.put(a.qp.wr("SEND", a.buffer, 64 * i, 64, user_data=20 + i))
        ring.put(c.wr("SEND", a.buffer, 256 + 64 * i, 64, user_data=30 + i))
        ring.kick()
    got = sorted((w.user_data, w.status) for w in a.cq.wait(8))
    r.equal("every send completes", got, [(n, 0) for n in (*range(20, 24), *range(30, 34))])
    got = [[w.user_data for w in b.cq.wait(8)], b.buffer.map[:256], b.buffer.map[1024:1280]]
    r.equal("each receive has its own", sorted(got[0]), [*range(4), *range(10, 14)])
    r.equal("in the order of the sends", got[1:], [a.buffer.map[:256], a.buffer.map[256:512]])
    for _ in range(32):
        b.file.pd()  # the next handle is none of the other file's
    other = SubmitRing(b.file, 4)
    r.equal(
        "a ring of another file is none",
        (error_of(other.kick, a.file), error_of(other.kick, a.file, a.qp.handle), error_of(other.kick, a.file, 0)),
        ("ENOENT", "EBADFD", "ENOENT"),
    )
    r.equal("nor is a number beyond any handle", error_of(other.kick, a.file, 1 << 40 | ours_.handle), "ENOENT")
    a.file.destroy(ours_.handle)
    r.equal("nor one that was destroyed", error_of(ours_.kick), "ENOENT")
    second.put(a.write(b, 8, user_data=1))
    second.kick()
    r.equal("another one goes on", [(w.user_data, w.status) for w in a.cq.wait(1)], [(1, 0)])


def test_tail(r):
    """A tail that is too far is refused; what was posted stays posted."""
    a, b = pair()
    ring = SubmitRing(a.file, 8)
    for i in range(8):
        ring.put(a.write(b, 8, user_data=i))
    ring.kick()
    r.equal("a full ring is posted", [c.user_data for c in a.cq.wait(8)], list(range(8)))
    for i in range(8):
        ring.put(a.write(b, 8, user_data=10 + i))
    dice = random.Random(1)
    bad = [8 + 9, 7, 0, 8 - 1 << 31, 0xFFFFFFFF, *(dice.randrange(32, 1 << 32) for _ in range(50))]
    got = {error_of(ring.kick, tail=tail & 0xFFFFFFFF) for tail in bad}
    r.equal("further ahead than the ring is long", (got, ring.header.head, ring.header.posted), ({"EINVAL"}, 8, 0))
    ring.header.head = 3
    ring.header.entries = 1 << 20
    r.equal("the kernel reads none of what it writes", error_of(ring.kick, tail=8 + 9), "EINVAL")
    r.equal("nothing of that was posted", a.cq.reap(), [])
    ring.kick(tail=8)
    r.equal("entries that are taken back are not posted", (a.cq.reap(), ring.header.head), ([], 8))
    ring.kick()
    r.equal("and the right tail works", [c.user_data for c in a.cq.wait(8)], list(range(10, 18)))


def test_bad(r):
    """A request that fails a check keeps all others of the call, and says which one it is."""
    a, b = pair()
    other = ulp.End("h1")
    ring = SubmitRing(a.file, 16)
    good = [a.write(b, 8, offset=8 * i, remote_offset=8 * i, user_data=i) for i in range(5)]
    wrong = {
        "an opcode that is not defined": ({"opcode": 99}, "EINVAL"),
        "a flag that is not defined": ({"flags": 1 << 15}, "EINVAL"),
        "a field that the opcode does not have": ({"arg1": 1}, "EINVAL"),
        "a queue pair of another file": ({"qp": other.qp.handle + (1 << 16)}, "ENOENT"),
        "a completion queue": ({"qp": a.cq.handle}, "EBADFD"),
        "the ring itself": ({"qp": ring.handle}, "EBADFD"),
        "a buffer that is none": ({"sge": S["sge"](buffer=0x20000777, length=8)}, "ENOENT"),
        "bytes beyond the buffer": (
            {"sge": S["sge"](buffer=a.buffer.handle, length=8, offset=len(a.buffer.map) - 7)},
            "ERANGE",
        ),
        "an address of inline data": ({"flags": N["SEND_INLINE"], "sge": S["sge"](length=8, offset=4096)}, "EINVAL"),
        "too many elements": ({"num_sge": 17, "sge": S["sge"]()}, "E2BIG"),
        "an address of elements": ({"num_sge": 2, "sge": S["sge"](offset=4096)}, "EINVAL"),
        "more elements than the queue has": ({"num_sge": 2, "sge": S["sge"]()}, "E2BIG"),
        "inline data that does not end": ({"flags": N["SEND_INLINE"], "sge": S["sge"](length=512)}, "EINVAL"),
        "a timeout that does not follow": ({"flags": TIMEOUT}, "EINVAL"),
    }
    a.buffer.map[:40] = pattern(3, 40)
    for what, (fields, want) in wrong.items():
        b.buffer.map[:40] = bytes(40)
        start = ring.tail
        for wr in good[:3]:
            ring.put(wr)
        at = ring.tail
        bad = a.write(b, 8, offset=24, remote_offset=24, user_data=3)
        for name, value in fields.items():
            setattr(bad, name, value)
        more = [bytes(64)] * (1 if what == "more elements than the queue has" else 0)
        ring.put(bad, *more)
        if "follow" not in what:
            ring.put(good[4])
        got = error_of(ring.kick)
        r.equal(
            f"{what} is refused, and nothing is posted",
            (got, ring.header.bad_index, ring.header.posted, ring.header.head, a.cq.reap()),
            (want, 3, 0, start, []),
        )
        ring.tail = at
        ring.put(good[3])
        ring.put(good[4])
        ring.kick()
        done = [(c.user_data, c.status) for c in a.cq.wait(5)]
        r.equal(
            "... and all is, once it is right",
            (done, b.buffer.map[:40] == a.buffer.map[:40]),
            ([(i, 0) for i in range(5)], True),
        )


def test_alike(r):
    """Sends and receives that follow their like are checked as the first is, and each has its own memory."""
    ulp.not_on_iwarp("immediate data")
    a, b = pair()
    theirs, ring = SubmitRing(b.file, 16), SubmitRing(a.file, 16)
    a.buffer.map[:512] = pattern(4, 512)
    sizes = [8 + i for i in range(6)]
    for i, size in enumerate(sizes):
        theirs.put(b.qp.wr("RECV", b.buffer, 64 * i, size, user_data=i))
        flags = 0 if i in (1, 2) else N["SEND_SIGNALED"]
        ring.put(a.qp.wr("SEND_WITH_IMM", a.buffer, 32 * i, size, user_data=i, imm_data=i // 3, flags=flags))
    theirs.kick()
    ring.kick()
    done = [(c.user_data, c.status) for c in a.cq.wait(4)]
    r.equal("sends that are signaled complete", done, [(i, 0) for i in (0, 3, 4, 5)])
    got = [(c.user_data, c.byte_len, c.imm_data, c.status) for c in b.cq.wait(6)]
    r.equal("each receive has its own send", got, [(i, size, i // 3, 0) for i, size in enumerate(sizes)])
    parts = [(slice(64 * i, 64 * i + size), slice(32 * i, 32 * i + size)) for i, size in enumerate(sizes)]
    r.equal("in its own memory", [b.buffer.map[to] == a.buffer.map[at] for to, at in parts], [True] * 6)

    wrong = {
        "an address at the peer": {"remote_addr": 8},
        "a key of the peer": {"rkey": 8},
        "an argument": {"arg0": 1 << 40},
        "a time that does not follow": {"flags": N["REQUEST_ABSOLUTE"]},
        "memory beyond the buffer": {"sge": S["sge"](buffer=a.buffer.handle, length=8, offset=len(a.buffer.map) - 7)},
    }
    of_sends = {"a signal": {"flags": N["SEND_SIGNALED"]}, "immediate data": {"imm_data": 1}}
    for opcode, more in (("SEND", {}), ("RECV", of_sends)):
        for what, fields in (wrong | more).items():
            for i in range(4):
                wr = a.qp.wr(opcode, a.buffer, 64 * i, 8, user_data=i)
                for name, value in fields.items() if i == 3 else ():
                    setattr(wr, name, value)
                ring.put(wr)
            got = error_of(ring.kick)
            ring.tail = ring.header.head
            want = "ERANGE" if "memory" in what else "EINVAL"
            r.equal(
                f"a {opcode} with {what} is refused, and nothing is posted",
                (got, ring.header.bad_index, ring.header.posted, a.cq.reap()),
                (want, 3, 0, []),
            )


def test_parts(r):
    """Elements, inline data and timeouts are in the entries after a request."""
    a, b = pair()
    got = a.file.call(
        "QP_CREATE",
        pd=a.pd,
        send_cq=a.cq.handle,
        recv_cq=a.cq.handle,
        qp_type=N["QPT_RC"],
        max_send_wr=16,
        max_recv_wr=16,
        max_send_sge=5,
        max_recv_sge=5,
        max_inline=200,
    )
    peer = Qp(b.file, b.pd, b.cq)
    qp = a.qp
    qp.handle, qp.num = got.handle, got.qp_num
    qp.connect(peer.num, b.file.gid().gid, 1, 2)
    peer.connect(qp.num, a.file.gid().gid, 2, 1)
    ring = SubmitRing(a.file, 8)
    a.buffer.map[:] = pattern(4, len(a.buffer.map))

    def write(at, **fields):
        return qp.wr("RDMA_WRITE", remote_addr=b.grant.addr + at, rkey=b.grant.rkey, **fields)

    def inline(at, data, **fields):
        wr = write(at, num_sge=1, **fields)
        wr.flags |= N["SEND_INLINE"] | N["SEND_SIGNALED"]
        wr.sge = S["sge"](length=len(data))
        return wr, data

    def gather(at, *parts, **fields):
        return write(at, num_sge=len(parts), **fields), b"".join(
            bytes(S["sge"](buffer=a.buffer.handle, offset=o, length=n)) for o, n in parts
        )

    def limited(wr, *more, ns=10**10, rest=b""):
        wr.flags |= TIMEOUT
        wr.timeout_ns = ns
        return wr, rest or bytes(wr)[64:].ljust(64, b"\0"), *more

    for round_ in range(5):  # the ring has 8 entries: each request begins elsewhere
        b.buffer.map[:4096] = bytes(4096)
        data = pattern(10 + round_, 130)
        ring.put(*inline(0, data[:8], user_data=1))
        ring.put(*inline(64, data, user_data=2))
        ring.put(*inline(512, b"", user_data=3))
        ring.kick()
        done = [(c.user_data, c.status) for c in a.cq.wait(3)]
        r.equal("inline data of 8, 130 and no bytes", done, [(1, 0), (2, 0), (3, 0)])
        r.equal("... arrives", (b.buffer.map[:8], b.buffer.map[64:194]), (data[:8], data))
        parts = [(4096 * i + round_, 16 + i) for i in range(5)]
        want = b"".join(a.buffer.map[o : o + n] for o, n in parts)
        ring.put(*gather(1024, *parts, user_data=4))
        ring.put(*limited(*gather(2048, *parts[:2], user_data=5)))
        ring.put(*limited(write(3072, num_sge=1, sge=S["sge"](buffer=a.buffer.handle, length=9), user_data=6)))
        ring.kick()
        done = [(c.user_data, c.status) for c in a.cq.wait(3)]
        r.equal("five elements, two with a timeout, one with a timeout", done, [(4, 0), (5, 0), (6, 0)])
        r.equal(
            "... arrive",
            (b.buffer.map[1024 : 1024 + len(want)], b.buffer.map[2048:2081], b.buffer.map[3072:3081]),
            (want, want[:33], a.buffer.map[:9]),
        )
    start = ring.tail

    def refused(*requests):
        ring.tail = start
        for request in requests:
            ring.put(*request)
        return error_of(ring.kick), ring.header.bad_index, ring.header.head - start

    first = inline(0, pattern(1, 100), user_data=7)
    plain = write(0, num_sge=1, sge=S["sge"](buffer=a.buffer.handle, length=8), user_data=8)
    bad = write(0, num_sge=1, sge=S["sge"](buffer=1, length=8))
    r.equal("the bad index counts requests, not entries", refused(first, (plain,), (bad,)), ("ENOENT", 2, 0))
    r.equal("a timeout of nothing", refused(first, limited(plain, ns=0)), ("EINVAL", 1, 0))
    plain.flags, plain.timeout_ns = N["SEND_SIGNALED"], 0
    unknown = bytes(S["wr"](timeout_ns=10**9))[64:].ljust(63, b"\0") + b"\1"
    r.equal("bytes that the kernel does not know", refused(first, limited(plain, rest=unknown)), ("E2BIG", 1, 0))
    plain.flags, plain.timeout_ns = N["SEND_SIGNALED"], 0
    r.equal("an element without a buffer", refused((write(0, num_sge=2), bytes(64))), ("ENOENT", 0, 0))
    both = write(0, num_sge=2, flags=N["SEND_INLINE"])
    mixed = bytes(S["sge"](buffer=a.buffer.handle, length=8)) + bytes(S["sge"](length=8))
    r.equal("inline data partly in a buffer", refused((both, mixed)), ("EINVAL", 0, 0))
    r.equal("nothing of that was posted", a.cq.reap(), [])
    ring.tail = start
    parts = bytes(S["sge"](length=8)) + bytes(S["sge"](length=70))
    ring.put(both, parts, pattern(1, 8), pattern(2, 70))
    ring.kick()
    came = ulp.until(lambda: b.buffer.map[:78] == pattern(1, 8) + pattern(2, 70))
    r.check("inline data in two pieces arrive", came, b.buffer.map[:78])


def test_full(r):
    """A queue that is full takes nothing of the call; the entries wait for the next one."""
    a, b = pair(depth=16)
    ring = SubmitRing(a.file, 32)
    for i in range(20):
        ring.put(a.write(b, 8, user_data=i))
    got = error_of(ring.kick)
    r.equal("more than the queue has room for", (got, ring.header.bad_index, ring.header.head), ("EAGAIN", 16, 0))
    r.equal("nothing of it is posted", a.cq.reap(), [])
    ring.kick(tail=16)
    r.equal("the first part is", [c.user_data for c in a.cq.wait(16)], list(range(16)))
    ring.kick(tail=20)
    r.equal("and then the rest", [c.user_data for c in a.cq.wait(4)], list(range(16, 20)))


def test_wait(r):
    """KICK waits as SUBMIT does."""
    a, b = pair()
    ring = SubmitRing(a.file, 8)
    header = ring.header
    ring.put(a.write(b, 8, user_data=1))
    ring.kick(cq=a.cq.handle, min_complete=1, timeout_ns=ulp.hang_ns())
    r.equal("post and wait in one call", (header.wait_error, header.completed, header.posted), (0, 1, 1))
    r.equal("the completion is there", [c.user_data for c in a.cq.reap()], [1])
    ring.kick(cq=a.cq.handle, min_complete=1, timeout_ns=10**7)
    r.equal(
        "the time runs out",
        (header.wait_error, header.completed, header.timeout_ns),
        (-errno.ETIME, 0, 0),
    )
    ring.kick(cq=a.cq.handle, min_complete=1, timeout_ns=1, flags=N["TIMEOUT_ABSOLUTE"])
    r.equal("a time that is over", (header.wait_error, header.timeout_ns), (-errno.ETIME, 1))
    ring.put(a.write(b, 8, user_data=2))
    refused = {
        "a flag that is not defined": ({"flags": 2}, "EINVAL"),
        "a flag that is not defined, without a queue": ({"flags": 1 << 31, "cq": 0}, "EINVAL"),
        "more than the queue has": ({"min_complete": a.cq.entries + 1}, "ERANGE"),
        "a queue that is none": ({"cq": a.qp.handle}, "EBADFD"),
        "a queue that is not there": ({"cq": a.cq.handle + (1 << 16)}, "ENOENT"),
    }
    for what, (fields, want) in refused.items():
        fields = {"cq": a.cq.handle, "min_complete": 1, "timeout_ns": 0, "flags": 0} | fields
        r.equal(f"{what} posts nothing", (error_of(ring.kick, **fields), header.posted, header.head), (want, 0, 1))
    ring.kick(cq=0, min_complete=7, timeout_ns=7, flags=0)
    r.equal("without a queue it does not wait", ([c.user_data for c in a.cq.wait(1)], header.posted), ([2], 1))
    waits = [SubmitRing(a.file, 4) for _ in range(2)]
    threads = [in_background(lambda w=w: w.kick(cq=a.cq.handle, min_complete=1, timeout_ns=LONG)) for w in waits]
    blocked(threads)
    a.file.destroy(waits[0].handle)
    ring.put(a.write(b, 8, user_data=3))
    ring.kick()
    r.equal("waits of two threads, one on a ring that is destroyed", [ended(t) for t in threads], [None, None])
    r.equal("... and they say so", [(w.header.wait_error, w.header.completed) for w in waits], [(0, 1)] * 2)
    a.cq.reap()
    late = Cq(a.file, 16)
    thread = in_background(lambda: ring.kick(cq=late.handle, min_complete=1, timeout_ns=LONG))
    blocked([thread])
    a.file.destroy(late.handle)
    r.equal("DESTROY of the queue ends it", (ended(thread), header.wait_error), (None, -errno.ENOENT))
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    ring.kick(cq=a.cq.handle, min_complete=1, timeout_ns=LONG)
    r.equal("a signal ends it", header.wait_error, -errno.EINTR)
    r.check("... and it says what is left", 0 < header.timeout_ns < LONG, header.timeout_ns)


def test_limits(r):
    """What a ring may have, and what it costs."""
    a = ulp.End("h1")

    def entries():
        with open(f"/proc/self/fdinfo/{a.file.fd}") as f:
            lines = f.read().splitlines()
        used = next(line.split()[1] for line in lines if line.startswith("rust_ulp-entries"))
        return int(used), sum(line.startswith("rust_ulp-ring") for line in lines)

    before = entries()
    create = a.file.call
    got = [error_of(create, "RING_CREATE", entries=n) for n in (0, 1025, 1 << 31, 0xFFFFFFFF)]
    r.equal("lengths that it cannot have", got, ["ERANGE"] * 4)
    r.equal("a flag", error_of(create, "RING_CREATE", entries=1, flags=1), "EINVAL")
    rings = [SubmitRing(a.file, n) for n in (1, 1000)]
    r.equal("lengths are powers of two", [ring.entries for ring in rings], [1, 1024])
    r.equal("entries count as those of queues do", entries(), (before[0] + 1025, before[1] + 2))
    cq = ulp.Cq(a.file, 512)
    for made in (*rings, cq):
        a.file.destroy(made.handle)
    rings[1].map[:4] = b"\0\0\0\0"
    r.equal("the mapping of a ring that is destroyed stays", rings[1].header.entries, 1024)
    r.equal("and its entries count, as those of a queue do", entries(), (before[0] + 1025 + 512, before[1]))
    del rings[1], cq, made
    gc.collect()
    r.equal("until it is unmapped", entries(), (before[0] + 1, before[1]))
    r.equal("a mapping of more than it has", error_of(a.file.map, 1 << 20, SubmitRing(a.file, 1).offset), "EINVAL")


class UringRing(SubmitRing):
    """One that a command of io_uring posts, which does not wait: of the header it reads the tail alone."""

    def __init__(self, *args, polled=False):
        super().__init__(*args)
        self.uring = Uring(small=True, polled=polled)

    def kick(self, file=None, handle=None, tail=None, **header):
        for name, value in header.items():
            setattr(self.header, name, value)
        self.header.tail = self.tail if tail is None else tail
        command = bytes(S["uring_kick"](ring=self.handle if handle is None else handle))
        self.uring.prepare((file or self.file).fd, N["URING_KICK"], command, None)
        call = self.uring.enter(1, 0)
        call.function(*call.args)
        [(_, result)] = self.uring.wait(1)
        if result < 0:
            raise OSError(-result, os.strerror(-result))


def test_uring_polled(r):
    """A thread of the kernel submits the command."""
    a, b = pair()
    ring = UringRing(a.file, 8, polled=True)
    a.buffer.map[:64] = pattern(3, 64)
    for i in range(4):
        ring.put(a.write(b, 16, offset=16 * i, remote_offset=16 * i, user_data=i))
    ring.kick()
    r.equal("all are posted", (ring.header.head, ring.header.posted), (4, 4))
    r.equal("they complete in order", [(c.user_data, c.status) for c in a.cq.wait(4)], [(i, 0) for i in range(4)])
    r.equal("the peer has them", b.buffer.map[:64], pattern(3, 64))
    r.equal("another handle is refused", error_of(ring.kick, None, a.qp.handle), "EBADFD")


def test_uring_scribbled(r):
    """As `scribbled`, for the command of io_uring."""
    test_scribbled(r, UringRing)


def test_uring_removed(r):
    """As `removed`, for the command of io_uring."""
    test_removed(r, UringRing)


def test_uring_killed(r):
    """As `killed`, for the command of io_uring."""
    test_killed(r, UringRing)


def scribble(ring, seed):
    """Overwrites all of the ring without a pause."""
    dice, words = random.Random(seed), ring.file.map(len(ring.map), ring.offset)
    entry = N["RING_ENTRIES_OFFSET"]
    while True:
        at = dice.choice((0, 4, 8, 12, 16, 64, 68, 72, 84, entry + 4 * dice.randrange(ring.entries * 16)))
        words[at : at + 4] = dice.choice(
            (b"\0" * 4, b"\xff" * 4, dice.randbytes(4), bytes((dice.randrange(4), 0, 0, 0)))
        )


def test_scribbled(r, kind=SubmitRing):
    """Another process overwrites the ring while KICK runs, for ULP_RING_SECONDS or more."""
    seed = int(os.environ.get("ULP_SEED", "1"))
    seconds = float(os.environ.get("ULP_RING_SECONDS", "2"))
    a, b = pair(entries=64)
    ring = kind(a.file, 16)
    child = os.fork()
    if child == 0:
        scribble(ring, seed)
    results, posted, allowed = (
        {},
        0,
        "none EINVAL EAGAIN ENOENT EBADFD E2BIG EMSGSIZE ERANGE EOPNOTSUPP ENOTCONN EACCES",
    )
    begin = time.monotonic()
    while (took := time.monotonic() - begin) < seconds or (not posted and took < seconds + DEADLINE):
        for _ in range(4):
            ring.put(a.write(b, 64))
        got = error_of(ring.kick, flags=0, cq=0)
        results[got] = results.get(got, 0) + 1
        posted += got == "none"
        head = ring.header.head
        if got == "EINVAL":
            # The child may have written the tail, or the head that is read here.
            probe = kind(a.file, 16)
            a.file.destroy(ring.handle)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            ring = probe
            seed += 1
            child = os.fork()
            if child == 0:
                scribble(ring, seed)
        else:
            ring.tail = head
        a.cq.reap()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print(f"# {seconds:.0f} s until seed {seed}: {posted} calls posted, {results}")
    r.check("calls post, or are refused", set(results) <= set(allowed.split()) and posted, results)
    r.equal("the ring goes", error_of(a.file.destroy, ring.handle), "none")
    r.equal("and the queue pair", error_of(a.file.destroy, a.qp.handle), "EBUSY" if ulp.is_iwarp() else "none")
    c, d = pair()
    other = SubmitRing(c.file, 4)
    c.buffer.map[:64] = pattern(seed, 64)
    other.put(c.write(d, 64))
    other.kick()
    r.equal("others work", ([w.status for w in c.cq.wait(1)], d.buffer.map[:64]), ([0], pattern(seed, 64)))


def test_removed(r, kind=SubmitRing):
    """The device goes while threads are in KICK."""
    a, b = pair()
    waiting, posting, idle = SubmitRing(a.file, 16), kind(a.file, 16), kind(a.file, 16)

    def post():
        while True:
            for _ in range(8):
                posting.put(a.write(b, 1 << 16, flags=0))
            try:
                posting.kick(flags=0, cq=0)
            except BlockingIOError:
                posting.tail -= 8
                a.cq.reap()

    waiter = in_background(lambda: waiting.kick(cq=Cq(a.file, 4).handle, min_complete=1, timeout_ns=LONG))
    blocked([waiter])
    poster = in_background(post)
    r.check("requests are posted", ulp.until(lambda: posting.header.head > 64), posting.header.head)
    remove(r, ulp.DEV1)
    r.equal("a thread that posts gets ENODEV", ended(poster), "ENODEV")
    r.equal("one that waits says so", (ended(waiter), waiting.header.wait_error), (None, -errno.ENODEV))
    r.equal("then every KICK is ENODEV", (error_of(idle.kick), error_of(idle.kick, None, 0)), ("ENODEV",) * 2)
    r.equal("mappings stay", idle.header.entries, 16)


def test_killed(r, kind=SubmitRing):
    """A process is killed while its threads are in KICK."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        a, b = pair()
        cq = Cq(a.file, 4)
        rings = [kind(a.file, 16), SubmitRing(a.file, 16), SubmitRing(a.file, 16)]
        waits = [in_background(lambda w=w: w.kick(cq=cq.handle, min_complete=1, timeout_ns=LONG)) for w in rings[1:]]
        blocked(waits)
        os.write(writing, b"y")
        while True:
            rings[0].put(a.write(b, 1 << 16, flags=0))
            if error_of(rings[0].kick, flags=0, cq=0) != "none":
                rings[0].tail -= 1
    r.equal("its threads are in KICK", os.read(reading, 1), b"y")
    r.check("it has objects", ours("qp"), "none")
    time.sleep(0.2)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    r.check("none is left", ulp.until(lambda: not any(ours(kind) for kind in ("qp", "cq", "pd", "mr"))))


def test_forked(r):
    """A child has the file, not the mapping."""
    a, b = pair()
    ring = SubmitRing(a.file, 4)
    ring.put(a.write(b, 8, user_data=5))
    ring.header.tail = ring.tail

    def mappings():
        with open("/proc/self/maps") as f:
            return sum("rust_ulp" in line for line in f)

    before = mappings()
    child = os.fork()
    if child == 0:
        got = error_of(ulp.ioctl, a.file.fd, N["KICK"], ctypes.c_void_p(ring.handle))
        os._exit(mappings() if got == "none" else 99)
    r.check("the parent has mappings", before > 0, before)
    r.equal("the child has none, and may KICK", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
    ring.kick()
    r.equal("it posted once", ([c.user_data for c in a.cq.wait(1)], a.cq.reap()), ([5], []))


if __name__ == "__main__":
    ulp.main(__doc__, globals())
