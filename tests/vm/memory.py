#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Memory: buffers and their keys, grants, between h1 and h2.

    memory.py keys|local|grants|once|expiry|look|late|revoke|ends|user|dirty|import|fork|destroy|several

Expects the module and two hosts. Prints KTAP.
"""

import ctypes
import errno
import fcntl
import json
import mmap
import os
import struct
import subprocess
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tracing
import ulp
from personality import HERE
from ulp import N, PAGE, S, SMALL, Buffer, End, Srq, UserBuffer, address_of, error_of, pair, pattern, remote

ALL = N["ACCESS_REMOTE_WRITE"] | N["ACCESS_REMOTE_READ"] | ulp.REMOTE_ATOMIC
LARGE = 2 << 20
KEY = 512 * PAGE  # what rxe puts under one key, in pages of that size
HALF = KEY // 2


def joined(sges=1, **more):
    """Two connected ends whose requests may have `sges` elements."""
    return pair(access=ALL, depth=64, max_send_sge=sges, max_recv_sge=sges, **more)


def reconnect(a, b):
    """Connects the two once more, from whatever state."""
    for end in (a, b):
        end.qp.reset()
        end.cq.reap()
    a.meet(b)


def done(end, count=1):
    """The statuses of that many completions."""
    return [c.status for c in end.cq.wait(count)]


def test_keys(r):
    a, b = joined()
    small = Buffer(a.file, a.pd, 5 * HALF, SMALL)
    r.equal(
        "two and a half keys in small pages have three",
        (small.keys, small.key_bytes, small.page_size, small.length),
        (3, KEY, PAGE, 5 * HALF),
    )
    there = Buffer(b.file, b.pd, 5 * HALF, SMALL)
    small.map[:] = pattern(3, 5 * HALF)
    # Each end's element lies across a border, not at the same place.
    grant = b.file.grant(there, ALL, offset=KEY - 70000, length=200000)
    r.equal("a grant lies across them, with the addresses of its offsets", grant.addr, KEY - 70000)
    a.file.submit([a.qp.wr("RDMA_WRITE", small, 2 * KEY - 33333, 150001, **remote(grant, 5))])
    r.equal(
        "a write from one side of a border to the other, across one at the peer",
        (
            done(a),
            there.map[KEY - 69995 : KEY + 80006] == small.map[2 * KEY - 33333 : 2 * KEY + 116668],
            there.map[KEY - 69996],
            there.map[KEY + 80006],
        ),
        ([0], True, 0, 0),
    )
    a.file.submit([a.qp.wr("RDMA_READ", small, KEY - 1, 8192, **remote(grant, 1000))])
    r.equal(
        "a read of what lies there, across a border",
        (done(a), small.map[KEY - 1 : KEY + 8191] == there.map[KEY - 69000 : KEY - 60808]),
        ([0], True),
    )
    b.file.submit([b.qp.wr("RECV", there, 2 * KEY - 5000, 10000)])
    a.file.submit([a.qp.wr("SEND", small, KEY - 4000, 9999)])
    r.equal(
        "a send and its receive",
        (
            done(b),
            done(a),
            there.map[2 * KEY - 5000 : 2 * KEY + 4999] == small.map[KEY - 4000 : KEY + 5999],
            there.map[2 * KEY + 4999],
        ),
        ([0], [0], True, 0),
    )
    word = ctypes.c_uint64.from_buffer(there.map, KEY + 8)
    word.value = 0x1122334455667788
    b.qp.modify("ACCESS_FLAGS", access_flags=ALL)
    add = a.qp.wr("ATOMIC_FETCH_AND_ADD", small, KEY - 4, 8, remote_addr=KEY + 8, rkey=grant.rkey, atomic=(1,))
    if HERE.atomics:
        r.equal("what an atomic returns, half under each key: refused", error_of(a.file.submit, [add]), "E2BIG")
        r.equal("... it is not carried out", word.value, 0x1122334455667788)
        add.sge.offset = KEY - 8
        a.file.submit([add])
        r.equal(
            "... at the end of a key",
            (done(a), small.map[KEY - 8 : KEY], word.value),
            ([0], (0x1122334455667788).to_bytes(8, "little"), 0x1122334455667789),
        )
    twice = [a.qp.wr("RDMA_WRITE", small, 0, n, **remote(grant)) for n in (64, 2 * KEY + 1)]
    r.equal("an element under three keys is one too many", a.file.try_submit(twice)[:3], ("E2BIG", 1, "E2BIG"))
    r.equal("... the write before it is posted", done(a), [0])
    got = a.file.call("QP_QUERY", qp=a.qp.handle)
    r.equal("a queue pair has as many elements as it was asked to have", (got.max_send_sge, got.max_recv_sge), (1, 1))
    keep = (S["sge"] * 2)(S["sge"](buffer=small.handle, length=8), S["sge"](buffer=small.handle, length=8))
    two = a.qp.wr("RDMA_WRITE", **remote(grant), num_sge=2, sge=S["sge"](offset=ctypes.addressof(keep)))
    r.equal("and no more of the caller's", error_of(a.file.submit, [two]), "E2BIG")
    r.equal("neither posted anything else", a.cq.reap(), [])
    r.equal("a range of more than a key", error_of(b.file.grant, there, length=KEY + 1), "ERANGE")
    r.equal("... or that lies in one page more", error_of(b.file.grant, there, offset=1, length=KEY), "ERANGE")

    c, d = joined(sges=3)
    wide, target = Buffer(c.file, c.pd, 7 * HALF, SMALL), Buffer(d.file, d.pd, 8 * HALF)
    grant = d.file.grant(target)
    wide.map[:] = pattern(8, 7 * HALF)
    c.file.submit([c.qp.wr("RDMA_WRITE", wide, 100, 3 * KEY - 50, remote_addr=1, rkey=grant.rkey)])
    r.equal(
        "with room for four, an element lies under four",
        (done(c), target.map[1 : 3 * KEY - 49] == wide.map[100 : 3 * KEY + 50]),
        ([0], True),
    )

    e, f = End("h1", access=ALL), End("h2", access=ALL)
    srq, shared = Srq(f.file, f.pd, f.cq, max_sge=1), Buffer(f.file, f.pd, 2 * KEY, SMALL)
    f.file.destroy(f.qp.handle)
    f.qp = ulp.Qp(f.file, f.pd, f.cq, srq=srq.handle)
    f.psn = f.qp.num * 4099 & 0xFFFFFF
    e.meet(f)
    r.equal("a shared receive queue has what it was asked for, too", srq.query().max_sge, 1)
    f.file.submit([srq.recv(shared, KEY - 100, 300)])
    e.buffer.map[:300] = pattern(5, 300)
    e.file.submit([e.qp.wr("SEND", e.buffer, 0, 300)])
    r.equal(
        "a receive of a shared queue, across a border",
        (done(f), shared.map[KEY - 100 : KEY + 200]),
        ([0], pattern(5, 300)),
    )

    for end in (a, b, c, d, e, f):
        end.file.close()
    a, b = pair()
    most = a.file.call("QUERY").max_buffer
    big = Buffer(a.file, a.pd, most)
    r.equal(
        "the largest buffer has one key, of large pages",
        (most, big.keys, big.key_bytes, big.page_size),
        (1 << 30, 1, 1 << 30, LARGE),
    )
    grant = a.file.grant(big)
    r.equal("and one grant opens all of it", (grant.addr, grant.length), (0, most))
    a.file.close()
    big.map.close()
    a, b = pair()
    big = Buffer(a.file, a.pd, most, SMALL)
    r.equal("or many, of small ones", (big.keys, big.key_bytes, big.page_size), (most // KEY, KEY, PAGE))
    grant = a.file.grant(big, offset=most - KEY, length=KEY)
    b.buffer.map[:] = pattern(1, b.buffer.length)
    at = most - KEY // 2 - 77
    b.file.submit([b.qp.wr("RDMA_WRITE", b.buffer, 0, b.buffer.length, remote_addr=at, rkey=grant.rkey)])
    r.equal(
        "and a peer reaches the last of them",
        (done(b), big.map[at : at + b.buffer.length] == b.buffer.map[:]),
        ([0], True),
    )
    big.map[most - KEY - 500 : most - KEY + 500] = pattern(2, 1000)
    b.file.submit([b.qp.wr("RECV", b.buffer, 0, 1000)])
    a.file.submit([a.qp.wr("SEND", big, most - KEY - 500, 1000)])
    r.equal("and its owner", (done(a), done(b), b.buffer.map[:1000]), ([0], [0], pattern(2, 1000)))


def keys_on(device, what, *names):
    """The keys of all regions, or domains, that the module has there."""
    out = subprocess.run(f"rdma -j -d resource show {what}".split(), capture_output=True, text=True, check=True).stdout
    items = [m for m in json.loads(out) if m["ifname"] == device and "rust_ulp" in m["comm"]]
    return {int(m[key], 16) for m in items for key in names}


def test_local(r):
    """A connected peer tries the keys by which the owner of a buffer uses it itself."""
    a, b = joined()
    own = memory(1 << 20)
    own[:] = pattern(5, 1 << 20)
    UserBuffer(a.file, a.pd, own, flags=N["BUFFER_READ_ONLY"])
    small = Buffer(a.file, a.pd, 5 * HALF, SMALL)
    small.map[:] = before = pattern(6, 5 * HALF)
    domains = keys_on(ulp.DEV1, "pd", "local_dma_lkey")
    regions = keys_on(ulp.DEV1, "mr", "lkey", "rkey") - {a.grant.rkey}
    local = domains | regions
    a.qp.modify("ACCESS_FLAGS", access_flags=ALL)
    r.check("the owner's buffers have keys", domains and regions, (domains, regions))
    for op in ("RDMA_WRITE", "RDMA_READ", "ATOMIC_FETCH_AND_ADD"):
        if op.startswith("ATOMIC") and not HERE.atomics:
            continue
        statuses = set()
        for key in local:
            length = 8 if op.startswith("ATOMIC") else 64
            b.file.submit([b.qp.wr(op, b.buffer, 0, length, remote_addr=0, rkey=key)])
            statuses |= set(done(b))
            reconnect(a, b)
            a.qp.modify("ACCESS_FLAGS", access_flags=ALL)
        r.equal(f"{op} by a key that was not granted", statuses, {10})
    r.check("nothing was changed", (small.map[:], own[:]) == (before, pattern(5, 1 << 20)))


def query(file, grant):
    return file.call("GRANT_QUERY", grant=grant.handle)


def test_grants(r):
    a, b = joined()
    target = Buffer(a.file, a.pd, 4 * HALF, SMALL)
    grant = a.file.grant(target, ALL, offset=100, length=5000)
    got = query(a.file, grant)
    r.equal(
        "what a grant is",
        (got.state, got.grant_flags, got.buffer, got.qp, got.offset, got.length, got.addr, got.rkey, got.access),
        (N["GRANT_ACTIVE"], 0, target.handle, 0, 100, 5000, grant.addr, grant.rkey, ALL),
    )
    got = a.file.call("BUFFER_QUERY", buffer=target.handle)
    r.equal(
        "what its buffer is",
        (got.kind, got.length, got.keys, got.key_bytes, got.page_size, got.grants, got.buffer_flags),
        (N["BUFFER_PAGES"], 4 * HALF, 2, KEY, PAGE, 1, 0),
    )
    part = {"buffer": target.handle, "access": ALL, "flags": N["GRANT_PARTIAL"]}
    for at, want, length in (
        (0, 4 * HALF, KEY),
        (1, 4 * HALF - 1, KEY - 1),
        (PAGE - 1, 3 * HALF, KEY - PAGE + 1),
        (10, 20, 20),
    ):
        got = a.file.call("GRANT_CREATE", offset=at, length=min(want, 4 * HALF - at), **part)
        r.equal(f"as much as goes under one key from {at} on", (got.length, got.addr), (length, at))
        last = got.addr + got.length - 8
        b.buffer.map[:8] = at.to_bytes(4, "little") * 2
        b.file.submit([b.qp.wr("RDMA_WRITE", b.buffer, 0, 8, remote_addr=last, rkey=got.rkey)])
        r.equal(
            "... which a peer reaches to the last byte", (done(b), target.map[last : last + 8]), ([0], b.buffer.map[:8])
        )
        a.file.destroy(got.handle)
    r.equal(
        "a part of what is not inside",
        error_of(a.file.call, "GRANT_CREATE", offset=4 * HALF, length=1, **part),
        "ERANGE",
    )
    for flags, qp in ((N["GRANT_ONE_SHOT_INV"], 0), (4, a.qp.handle), (8, 0), (1 << 31, a.qp.handle)):
        r.equal(
            f"flags {flags:#x} with queue pair {qp:#x}",
            error_of(a.file.call, "GRANT_CREATE", buffer=target.handle, access=ALL, length=8, flags=flags, qp=qp),
            "EINVAL",
        )
    other = ulp.Qp(a.file, a.file.pd(), a.cq)
    r.equal(
        "a queue pair of another domain",
        error_of(a.file.call, "GRANT_CREATE", buffer=target.handle, access=ALL, length=8, qp=other.handle),
        "EXDEV",
    )
    r.equal(
        "a queue pair that is none",
        error_of(a.file.call, "GRANT_CREATE", buffer=target.handle, access=ALL, length=8, qp=target.handle),
        "EBADFD",
    )

    def write(rkey):
        b.file.submit([b.qp.wr("RDMA_WRITE", b.buffer, 0, 64, remote_addr=grant.addr, rkey=rkey)])
        return done(b)

    def renew(handle):
        a.file.destroy(handle)
        return a.file.call("GRANT_CREATE", buffer=target.handle, access=ALL, offset=100, length=64)

    b.buffer.map[:64] = pattern(4, 64)
    fresh = renew(grant.handle)
    r.check(
        "a range that is granted again: another key, the same address",
        fresh.rkey != grant.rkey and fresh.addr == grant.addr,
        f"{fresh.rkey:#x}",
    )
    r.equal("the new key opens the same range", (write(fresh.rkey), target.map[100:164]), ([0], pattern(4, 64)))
    b.buffer.map[:64] = bytes(64)
    r.equal("the old key opens nothing", (write(grant.rkey), target.map[100:164]), ([10], pattern(4, 64)))
    keys = set()
    for _ in range(50):
        fresh = renew(fresh.handle)
        keys.add(fresh.rkey)
    r.check("50 times destroyed and created: at least 41 keys", len(keys) > 40, len(keys))
    a.file.destroy(fresh.handle)
    r.equal("a grant that was destroyed", error_of(query, a.file, fresh), "ENOENT")
    r.equal("no grant is left", a.file.call("BUFFER_QUERY", buffer=target.handle).grants, 0)


def endings(file, count, seconds=20):
    """The grants that have ended, and why, when so many events have come or it takes too long."""
    out = []
    ulp.until(
        lambda: (
            len(out) >= count or out.extend((h, info) for e, h, _, info in file.events() if e == N["EVENT_GRANT_ENDED"])
        ),
        seconds,
    )
    return sorted(out)


def bound(end, flags=0, buffer=None, **more):
    """A grant that ends with the queue pair."""
    return end.file.call(
        "GRANT_CREATE",
        **{"buffer": (buffer or end.buffer).handle, "access": ALL, "length": 4096, "qp": end.qp.handle, "flags": flags}
        | more,
    )


def test_once(r):
    """A one-shot grant ends when its key is invalidated, and by nothing else that a receive reports."""
    a, b = joined()
    inv = N["GRANT_ONE_SHOT_INV"]
    used, active = N["GRANT_USED"], N["GRANT_ACTIVE"]
    a.file.submit([a.qp.wr("RECV", a.buffer, 32768, 64) for _ in range(8)])

    def send(op, data, **fields):
        b.file.submit([b.qp.wr(op, b.buffer, 0, 64, imm_data=data, **fields)])
        return done(b) + done(a)

    def states(*grants):
        return [query(a.file, g).state for g in grants]

    g, later, other = bound(a, inv), bound(a, inv), bound(a)
    r.equal("GRANT_QUERY of a one-shot grant: its flag", query(a.file, g).grant_flags, inv)
    r.equal("GRANT_QUERY of a bound grant: no flag", query(a.file, other).grant_flags, 0)
    r.equal("GRANT_QUERY: the struct can be issued again", a.file.issue("GRANT_QUERY", query(a.file, g))[0], 0)
    b.buffer.map[:64] = pattern(g.rkey & 255, 64)
    a.buffer.map[:64] = bytes(64)
    got = send("RDMA_WRITE_WITH_IMM", g.rkey, **remote(g))
    r.equal("a write whose immediate data is the key lands", (got, a.buffer.map[:64]), ([0, 0], b.buffer.map[:64]))
    r.equal("... and does not end the grant", (endings(a.file, 1, 0.1), states(g)), ([], [active]))
    got = send("SEND_WITH_IMM", g.rkey)
    r.equal("a send whose immediate data is the key does not end the grant", (got, states(g)), ([0, 0], [active]))
    got = send("SEND_WITH_INV", g.rkey)
    r.equal("a send that invalidates the key ends the grant", (got, endings(a.file, 1)), ([0, 0], [(g.handle, used)]))
    r.equal("... which says so", (states(g), query(a.file, g).rkey), ([used], 0))
    r.equal("... and no other grant", states(later, other), [active] * 2)
    r.equal(
        "a bound grant without the flag is not ended when its key is invalidated",
        (send("SEND_WITH_INV", other.rkey), endings(a.file, 1, 0.1), states(other)),
        ([0, 0], [], [active]),
    )
    got = send("SEND_WITH_INV", later.rkey)
    r.equal("another one-shot grant ends by its own key", (got, endings(a.file, 1)), ([0, 0], [(later.handle, used)]))
    b.file.submit([b.qp.wr("RDMA_WRITE", b.buffer, 0, 64, **remote(g))])
    r.equal("the key of a grant that was used opens nothing", done(b), [10])
    for grant in (g, later, other):
        a.file.destroy(grant.handle)
    reconnect(a, b)
    endings(a.file, 1, 0.1)
    a.file.submit([a.qp.wr("RECV", a.buffer, 32768, 64)])
    again = bound(a, inv)
    got = send("SEND_WITH_INV", again.rkey)
    r.equal("a one-shot grant after RESET ends as well", (got, endings(a.file, 1)), ([0, 0], [(again.handle, used)]))


def test_expiry(r):
    expired = N["GRANT_EXPIRED"]

    def fresh():
        a, b = joined()
        return a, b, [bound(a) for _ in range(20)], a.file.grant(a.buffer, ALL)

    def check(name, a, grants, free, late="ENOTCONN"):
        got, want = endings(a.file, len(grants)), sorted((g.handle, expired) for g in grants)
        r.equal(f"{name}: its grants end, each once", got, want)
        if len(got) < len(want):
            raise TimeoutError("the other cases would wait as long")
        r.equal(
            f"{name}: and say so", {(query(a.file, g).state, query(a.file, g).rkey) for g in grants}, {(expired, 0)}
        )
        r.equal(f"{name}: others do not", query(a.file, free).state, N["GRANT_ACTIVE"])
        if late == "ENOTCONN":
            ulp.until(lambda: a.file.call("QP_QUERY", qp=a.qp.handle).attr.qp_state == N["QPS_ERR"])
        r.equal(f"{name}: a later grant", error_of(bound, a), late)
        r.equal(
            f"{name}: their handles can be destroyed", {error_of(a.file.destroy, g.handle) for g in grants}, {"none"}
        )
        a.file.close()

    for state, late in (("ERR", "ENOTCONN"), ("RESET", "none")):
        a, _, grants, free = fresh()
        a.qp.modify("STATE", qp_state=N["QPS_" + state])
        check(f"to {state} by command", a, grants, free, late)
    a, _, grants, free = fresh()
    grants += [bound(a) for _ in range(100)]
    a.qp.modify("STATE", qp_state=N["QPS_ERR"])
    check("to ERR by command, with more grants than one look finds", a, grants, free)
    a, _, grants, free = fresh()
    a.file.destroy(a.qp.handle)
    check("destroyed", a, grants, free, "ENOENT")
    a, b, grants, free = fresh()
    a.file.submit([a.qp.wr("RECV", a.buffer, 0, 64) for _ in range(4)])
    gone = a.file.grant(a.buffer, ALL)
    a.file.destroy(gone.handle)
    b.file.submit([b.qp.wr("RDMA_WRITE", b.buffer, 0, 64, **remote(gone))])
    r.equal("a peer without a key", done(b), [10])
    check("to ERR by what a peer did", a, grants, free)
    a, b, grants, free = fresh()
    b.file.close()
    a.qp.reset()
    b = End("h2")
    a.connect(b, **ulp.FINITE)
    a.file.submit([a.write(b, 64)])
    r.equal("a peer that does not answer", done(a), [12])
    check("to ERR by a send that failed", a, grants, free)


def test_look(r):
    """GRANT_QUERY while grants end: what it says of the state and of the key is of one moment."""
    a, _ = joined()
    grants, seen, stop = [bound(a) for _ in range(20)], set(), threading.Event()
    ends = {(N["GRANT_ACTIVE"], True), (N["GRANT_EXPIRED"], False)}

    def look():
        while not stop.is_set():
            seen.update((got.state, got.rkey != 0) for got in (query(a.file, g) for g in grants))

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    ulp.until(lambda: seen)
    a.qp.modify("STATE", qp_state=N["QPS_ERR"])
    ulp.until(lambda: ends <= seen)
    stop.set()
    for thread in threads:
        thread.join()
    r.equal("a grant that is active has a key, and one that has ended has none", seen, ends)


def test_late(r):
    """Grants that are made while their queue pair ends: those that are to end do, without another event."""
    rounds = 20
    a = End("h1", access=ALL)
    made, errors, stop = [], set(), threading.Event()
    # A new grant gets its handle under the lock of the file's table. Those who print a long table hold
    # it for long, so there is time for the queue pair to end before the grant has a handle.
    for _ in range(500):
        a.file.pd()
    printing = f"while open('/proc/self/fdinfo/{a.file.fd}').read(): pass"
    printers = [subprocess.Popen([sys.executable, "-c", printing], pass_fds=[a.file.fd]) for _ in range(2)]

    def make():
        while not stop.is_set():
            try:
                made.append(bound(a))
            except OSError as e:
                errors.add(errno.errorcode[e.errno])
                return

    def active(grant):
        return query(a.file, grant).state == N["GRANT_ACTIVE"]

    # In RESET a queue pair may have grants again, in ERR it may not.
    states = [("RESET", set())] * HERE.resets + [("ERR", {"ENOTCONN"})]
    for state, refused in states:
        hanging = expired = 0
        for _ in range(rounds):
            made.clear()
            stop.clear()
            if refused:
                # RESET leads to INIT only.
                a.qp.reset()
                a.connect(a)
            maker = threading.Thread(target=make)
            maker.start()
            ulp.until(lambda: len(made) >= 3 or errors)
            before = len(made)
            a.qp.modify("STATE", qp_state=N["QPS_" + state])
            ulp.until(lambda: errors or not refused, 1)
            stop.set()
            maker.join()
            # In ERR every grant has to end. In RESET a grant that is made while the command runs may stay.
            ending = made if refused else made[:before]
            ulp.until(lambda those=ending: not any(map(active, those)), 5)
            left = sum(map(active, ending))
            hanging += left
            expired += sum(query(a.file, g).state == N["GRANT_EXPIRED"] for g in made)
            for g in made:
                a.file.destroy(g.handle)
            if left or errors != refused:
                break
            errors.clear()
            a.qp.reset()
        r.equal(f"{state}: grants are made meanwhile", errors, set())
        r.check(f"{state}: some of them end with the queue pair", expired >= rounds, expired)
        r.equal(f"{state}: and none is left that has to end", hanging, 0)
    for printer in printers:
        printer.kill()
        printer.wait()


def test_revoke(r):
    """A peer that writes without a pause, over many packets each, while its key dies again and again."""
    size, rounds = 1 << 16, ulp.count("ULP_ROUNDS", 10, 4)
    a, b = joined(length=2 * size, entries=512)
    b.buffer.map[:] = pattern(7, 2 * size)
    grant = a.file.grant(a.buffer, ALL, length=size)
    rkey, statuses, late, still = grant.rkey, set(), 0, 0

    def storm(rkey, out):
        posted = 0
        while True:
            wrs = [
                b.qp.wr("RDMA_WRITE", b.buffer, (posted + i) % 97 * 64, size, remote_addr=grant.addr, rkey=rkey)
                for i in range(4)
            ]
            try:
                b.file.submit(wrs)
            except OSError as e:
                out.append(e)
                return
            posted += 4
            got = b.cq.wait(4, 60)
            if any(c.status for c in got):
                out += [c.status for c in got if c.status]
                return

    for _ in range(rounds):
        before, out = a.buffer.map[:64], []
        writer = threading.Thread(target=storm, args=(rkey, out))
        writer.start()
        # What is seen once counts: the writer comes back to what was there before.
        still += not ulp.until(lambda known=before: a.buffer.map[:64] != known, 20)
        a.file.destroy(grant.handle)
        then = a.buffer.map[:size]
        writer.join(30 * ulp.PATIENCE)
        late += a.buffer.map[:size] != then
        statuses |= {out[0] if out else "none"}
        grant = a.file.grant(a.buffer, ALL, length=size)
        rkey = grant.rkey
        reconnect(a, b)
    r.equal(f"{rounds} times a peer was writing", still, 0)
    r.equal(f"{rounds} times nothing landed after the key was dead", late, 0)
    r.equal("and it got an access error, each time", statuses, {10})
    b.file.submit([b.qp.wr("RDMA_WRITE", b.buffer, 0, size, remote_addr=grant.addr, rkey=rkey)])
    r.equal("the last key works", (done(b), a.buffer.map[:size] == b.buffer.map[:size]), ([0], True))


def test_ends(r):
    """Grants that end while they are destroyed, their file is closed, their device removed."""
    ulp.need_reset()
    a, _b = joined()

    def at_once(*functions):
        got = {}

        def body(f):
            got[f] = error_of(f)

        threads = [threading.Thread(target=body, args=(f,)) for f in functions]
        for t in threads:
            t.start()
        for t in threads:
            t.join(30 * ulp.PATIENCE)
        return [got.get(f, "hangs") for f in functions]

    seen = set()
    for _ in range(10):
        grants = [bound(a) for _ in range(16)]

        def destroy():
            for g in grants:
                a.file.destroy(g.handle)

        seen |= {tuple(at_once(destroy, lambda: a.qp.modify("STATE", qp_state=N["QPS_RESET"])))}
    r.equal("destroyed while their queue pair ends", seen, {("none", "none")})
    r.equal("the buffer has one left, of another kind", a.file.call("BUFFER_QUERY", buffer=a.buffer.handle).grants, 1)
    a.file.events()
    seen = set()
    for _ in range(10):
        old, new = [bound(a) for _ in range(8)], []

        def renew(old=old, new=new):
            for g in old:
                a.file.destroy(g.handle)
                new.append(bound(a))

        seen |= set(at_once(renew, lambda: a.qp.modify("STATE", qp_state=N["QPS_RESET"])))
        a.qp.modify("STATE", qp_state=N["QPS_RESET"])
        # An old one ends once at most: when it was not destroyed before.
        ulp.until(lambda new=new: all(query(a.file, g).state == N["GRANT_EXPIRED"] for g in new))
        got = [handle for handle, _ in endings(a.file, 1 << 30, 0.1)]
        if len(got) != len(set(got)) or not {g.handle for g in new} <= set(got):
            seen |= {f"{len(got)} ended"}
        for g in new:
            a.file.destroy(g.handle)
    r.equal("destroyed and created again while their queue pair ends", seen, {"none"})
    for _ in range(5):
        c = End("h1", access=ALL)
        for _ in range(32):
            bound(c)
        c.qp.modify("STATE", qp_state=N["QPS_RESET"])
        c.file.close()
    c, d = End("h1", access=ALL), End("h1", access=ALL)
    for _ in range(64):
        bound(c)
        bound(d)
    c.qp.modify("STATE", qp_state=N["QPS_RESET"])
    d.file.destroy(d.qp.handle)
    r.equal("the device goes while grants end", ulp.unplug(ulp.DEV1), (0, ""))
    r.equal("their file is a husk", error_of(query, c.file, c.grant), "ENODEV")


def memory(length, advice=mmap.MADV_NOHUGEPAGE, **more):
    """Anonymous memory, in the smallest pages unless told otherwise."""
    out = mmap.mmap(-1, length, **({"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} | more))
    out.madvise(advice)
    return out


def status_of(key, pid="self"):
    """A line of /proc/PID/status in bytes."""
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith(key + ":"))


def unlocks_of(function):
    """How often this process gives up a lock of a queue while `function` runs."""
    unlock = "rust_ulp_h_spin_unlock_bh"
    tracing.write("set_ftrace_pid", str(os.getpid()))
    try:
        with tracing.Trace("function", [unlock]) as trace:
            function()
    finally:
        tracing.write("set_ftrace_pid", "")
    return sum(record["what"].startswith(unlock) for record in trace.records())


def test_destroy(r):
    """DESTROY of a buffer looks at slots that were used, and not at all that a file has: counted, not timed."""
    depth, posted, few = 4096, 100, 32
    a, b = pair(depth=depth, entries=2 * depth)
    c = End("h1", depth=depth, entries=2 * depth)
    for end in (a, b, c):
        end.spare = [Buffer(end.file, end.pd, PAGE) for _ in range(3)]

    def destroy(end):
        """The unlocks of a DESTROY of a spare buffer, and whether its memory is given back."""
        spare, before = end.spare.pop(), status_of("VmPin")
        spare.map.close()
        unlocks = unlocks_of(lambda: end.file.destroy(spare.handle))
        return unlocks, before - status_of("VmPin")

    unlocks, given_back = destroy(c)
    r.note(f"unused queues: {unlocks} unlocks")
    r.equal("unused queues are not searched", (unlocks < few, given_back), (True, PAGE))
    for _ in range(2):
        b.file.submit([b.qp.wr("RECV", b.spare[-1], 0, 8) for _ in range(posted)])
        a.file.submit([a.qp.wr("SEND", a.spare[-1], 0, 8) for _ in range(posted)])
        r.equal("requests succeed", (done(a, posted), done(b, posted)), ([0] * posted, [0] * posted))
        for name, end in (("send", a), ("receive", b)):
            unlocks, given_back = destroy(end)
            r.note(f"{name} queue with {posted} requests: {unlocks} unlocks")
            r.equal(f"the slots of a {name} queue that were used give the buffer back", given_back, PAGE)
            r.equal("the others are not searched", unlocks < 4 * posted, True)
    unlocks, given_back = destroy(a)
    r.note(f"nothing posted since: {unlocks} unlocks")
    r.equal("slots that nothing used since are not searched again", (unlocks < few, given_back), (True, PAGE))


def test_several(r):
    """A request with elements in several buffers keeps all of them until the device is done with it."""
    depth = 64
    a, b = joined(sges=3)
    spare = [Buffer(b.file, b.pd, PAGE) for _ in range(2)]
    for turn in ("first", "second"):
        buffers = [Buffer(b.file, b.pd, PAGE) for _ in range(3)]
        array = (S["sge"] * 3)(*[S["sge"](buffer=each.handle, length=8, offset=8) for each in buffers])
        b.file.submit([b.qp.wr("RECV", num_sge=3, sge=S["sge"](offset=ctypes.addressof(array)))])
        for each in [*buffers, spare[-1]]:
            each.map.close()
        before = status_of("VmPin")
        for each in buffers:
            b.file.destroy(each.handle)
        r.equal(f"{turn} use of a slot: DESTROY gives no buffer of a posted receive back", status_of("VmPin"), before)
        a.file.submit([a.qp.wr("SEND", a.buffer, 0, 24)])
        ended = done(a), [(c.status, c.byte_len) for c in b.cq.wait(1)]
        r.equal(f"{turn} use of a slot: the receive succeeds", ended, ([0], [(0, 24)]))
        b.file.destroy(spare.pop().handle)
        r.equal(
            f"{turn} use of a slot: after that, DESTROY of a fourth buffer gives all four back",
            before - status_of("VmPin"),
            4 * PAGE,
        )
        # The next request is in the same slot.
        b.file.submit([b.qp.wr("RECV", b.buffer, 0, 8) for _ in range(depth - 1)])
        a.file.submit([a.qp.wr("SEND", a.buffer, 0, 8) for _ in range(depth - 1)])
        r.equal(f"{turn} use of a slot: the others are used", (done(a, 63), done(b, 63)), ([0] * 63, [0] * 63))


def test_user(r):
    a, b = joined()
    pinned = status_of("VmPin")
    for at, length in ((0, PAGE), (1, 1), (PAGE - 1, 2), (123, 3 << 20), (PAGE * 3 + 77, KEY + 5)):
        own = memory(2 * KEY)
        own[:] = pattern(at & 63, 2 * KEY)
        model = bytearray(own[:])
        buffer = UserBuffer(a.file, a.pd, own, at, length)
        got = a.file.call("BUFFER_QUERY", buffer=buffer.handle)
        first = (address_of(own) + at) % buffer.page_size
        charged = ((at + length + PAGE - 1) // PAGE - at // PAGE) * PAGE
        r.equal(
            f"{length} bytes at {at}: what it is",
            (
                got.kind,
                got.length,
                got.keys,
                got.mmap_offset,
                got.charged,
                status_of("VmPin") - pinned,
                got.buffer_flags,
            ),
            (N["BUFFER_USER"], length, (first + length - 1) // buffer.key_bytes + 1, 0, charged, charged, 0),
        )
        n = min(length, 40000)
        a.file.submit([a.qp.wr("RDMA_WRITE", buffer, length - n, n, **remote(b.grant))])
        r.equal(
            f"{length} bytes at {at}: its end is written to the peer",
            (done(a), b.buffer.map[:n] == own[at + length - n : at + length]),
            ([0], True),
        )
        grant = a.file.grant(buffer, ALL, offset=0, length=min(length, 1 << 20))
        b.buffer.map[:n] = pattern(99, n)
        b.file.submit([b.qp.wr("RDMA_WRITE", b.buffer, 0, n, **remote(grant))])
        model[at : at + n] = pattern(99, n)
        r.equal(
            f"{length} bytes at {at}: the peer writes its begin, and nothing beside it",
            (done(b), own[:] == model),
            ([0], True),
        )
        r.equal(f"{length} bytes at {at}: it cannot be mapped", error_of(a.file.map, 4096, got.mmap_offset), "ENOENT")
        a.file.destroy(grant.handle)
        a.file.destroy(buffer.handle)
        r.equal(f"{length} bytes at {at}: unpinned", status_of("VmPin"), pinned)
    raw = memory(32 << 20, mmap.MADV_HUGEPAGE)
    huge = -address_of(raw) % LARGE
    raw[huge : huge + (16 << 20)] = bytes(16 << 20)
    with open("/proc/self/smaps_rollup") as f:
        thp = next(int(line.split()[1]) for line in f if line.startswith("AnonHugePages"))
    buffer = UserBuffer(a.file, a.pd, raw, huge + 5, (16 << 20) - 5)
    r.check(
        "16 MiB in large pages need one key, or eight of small pages",
        thp >= 16 << 10 and (buffer.page_size, buffer.keys) == ((LARGE, 1) if HERE.key is None else (PAGE, 8)),
        f"{thp} KiB, {buffer.page_size}, {buffer.keys}",
    )
    a.file.destroy(buffer.handle)

    start = address_of(memory(4096))
    own = memory(1 << 20)
    own[:] = pattern(5, 1 << 20)
    base = address_of(own)
    only = mmap.mmap(-1, 8192, prot=mmap.PROT_READ)

    def refused(addr, length, flags=0, **more):
        return error_of(
            a.file.call, "BUFFER_REGISTER", **({"pd": a.pd, "addr": addr, "length": length, "flags": flags} | more)
        )

    read_only = N["BUFFER_READ_ONLY"]
    hole = memory(3 * PAGE)
    hole[:] = bytes(3 * PAGE)
    gap = address_of(hole) + PAGE
    r.equal("a hole is made", ulp.libc.munmap(ctypes.c_void_p(gap), ctypes.c_size_t(PAGE)), 0)
    for name, args, want in (
        ("no bytes", (base, 0), "ERANGE"),
        ("more than a buffer has", (base, (1 << 30) + 1), "ERANGE"),
        ("beyond all", (base, 2**64 - 1), "ERANGE"),
        ("an address of the kernel", (2**64 - 2 * PAGE, PAGE), "EFAULT"),
        ("around the end", (2**64 - 4096, 8192), "EFAULT"),
        ("nothing", (0, 4096), "EFAULT"),
        ("a hole", (gap - PAGE, 3 * PAGE), "EFAULT"),
        ("what may only be read", (address_of(only), 8192), "EFAULT"),
        ("unknown flags", (base, 4096, 2), "EINVAL"),
    ):
        r.equal(f"to register {name}", refused(*args), want)
    r.equal("in what is no domain", refused(base, 4096, pd=a.qp.handle), "EBADFD")
    # The kernel's own: clocks of the hypervisor, and before 7.3 all that is called vvar.
    bare, at = [], 0
    with open("/proc/self/smaps") as f:
        for line in f:
            if "[vvar" in line:
                at = int(line.split("-")[0], 16)
            elif line.startswith("VmFlags:"):
                if at and {"io", "pf"} & set(line.split()):
                    bare.append(at)
                at = 0
    r.equal("to register what is no memory", {refused(v, 4096, read_only) for v in bare}, {"EOPNOTSUPP"})
    r.equal("nothing of that is pinned", status_of("VmPin"), pinned)
    buffer = UserBuffer(a.file, a.pd, only, flags=read_only)
    got = a.file.call("BUFFER_QUERY", buffer=buffer.handle)
    r.equal("read-only: it says so", got.buffer_flags, read_only)
    r.equal("read-only: the query can be issued again", a.file.issue("BUFFER_QUERY", got)[0], 0)
    a.file.submit([a.qp.wr("RDMA_WRITE", buffer, 0, 8192, **remote(b.grant))])
    r.equal("read-only: it is read", (done(a), b.buffer.map[:8192] == bytes(8192)), ([0], True))
    writes = [
        a.qp.wr(op, buffer, 0, 8, **remote(b.grant))
        for op in ("RECV", "RDMA_READ", "ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD")
        if HERE.posts(op)
    ]
    for wr in writes:
        if wr.opcode == N["WR_RECV"]:
            wr.remote_addr = wr.rkey = 0
    r.equal("read-only: it is not written", {error_of(a.file.submit, [wr]) for wr in writes}, {"EACCES"})
    for right in ("WRITE", "ATOMIC"):
        r.equal(
            f"read-only: no grant to {right}", error_of(a.file.grant, buffer, N["ACCESS_REMOTE_" + right]), "EACCES"
        )
    a.file.grant(buffer, N["ACCESS_REMOTE_READ"])

    # What becomes of the memory meanwhile is the caller's business, and does not harm.
    own = memory(1 << 20)
    own[:] = pattern(5, 1 << 20)
    buffer = UserBuffer(a.file, a.pd, own)
    grant = a.file.grant(buffer, ALL)
    del start
    own.close()
    b.buffer.map[:] = pattern(6, b.buffer.length)
    b.file.submit(
        [
            b.qp.wr("RDMA_WRITE", b.buffer, 0, 65536, **remote(grant)),
            b.qp.wr("RDMA_READ", b.buffer, 0, 4096, **remote(grant, 1 << 19)),
        ]
    )
    r.equal(
        "what was unmapped is still there for a peer",
        (done(b, 2), b.buffer.map[:4096]),
        ([0, 0], pattern(5, 1 << 20)[1 << 19 : (1 << 19) + 4096]),
    )
    r.equal("and pinned", a.file.call("BUFFER_QUERY", buffer=buffer.handle).charged, 1 << 20)
    own = memory(1 << 20)
    own[:] = pattern(5, 1 << 20)
    buffer = UserBuffer(a.file, a.pd, own)
    grant = a.file.grant(buffer, ALL)
    own.resize(2 << 20)  # mremap
    b.buffer.map[:] = pattern(9, b.buffer.length)
    b.file.submit([b.qp.wr("RDMA_WRITE", b.buffer, 0, 65536, **remote(grant))])
    r.equal("what was moved is where it was moved to", (done(b), own[:65536] == pattern(9, 65536)), ([0], True))
    a.close()
    b.close()
    r.equal("nothing is pinned at the end", status_of("VmPin"), 0)


def test_dirty(r):
    """The kernel may throw away anonymous pages that nobody has written since MADV_FREE: a peer has."""
    pages, madv_free, madv_pageout = 64, 8, 21
    length = pages * PAGE
    a, b = joined()
    own, bare = memory(length), memory(length)
    buffer = UserBuffer(a.file, a.pd, own)
    grant = a.file.grant(buffer, ALL)
    for area in (own, bare):
        area[:] = pattern(5, length)
        area.madvise(madv_free)
    b.buffer.map[:] = pattern(9, len(b.buffer.map))
    size = len(b.buffer.map)
    for at in range(0, length, size):
        b.file.submit([b.qp.wr("RDMA_WRITE", b.buffer, 0, size, **remote(grant, at))])
    r.equal("a peer writes to pages that were freed", done(b, length // size), [0] * (length // size))
    a.file.destroy(grant.handle)
    a.file.destroy(buffer.handle)
    for area in (own, bare):
        area.madvise(madv_pageout)
    gone = sum(bare[i : i + PAGE] == bytes(PAGE) for i in range(0, length, PAGE))
    r.check("the kernel throws others away", gone > 0, f"{gone} of {pages} pages")
    kept = sum(own[i : i + PAGE] == b.buffer.map[i % size : i % size + PAGE] for i in range(0, length, PAGE))
    r.equal("and keeps what the peer has written", kept, pages)


def dmabuf(length, flags=0):
    """A dma-buf of a memfd, and that memfd mapped; None when the kernel has none."""
    if not os.path.exists("/dev/udmabuf"):
        return None
    fd = os.memfd_create("ulp", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, length)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    with open("/dev/udmabuf", "rb") as dev:
        buf = fcntl.ioctl(dev, 0x40187542, bytearray(struct.pack("IIQQ", fd, 1, 0, length)), True)
    memory = mmap.mmap(fd, length)
    os.close(fd)
    return buf, memory


def test_import(r):
    a, b = joined()

    def imported(fd, **more):
        return a.file.call("BUFFER_IMPORT", **({"pd": a.pd, "fd": fd} | more))

    got = dmabuf(3 << 20)
    if got is None:
        r.skip("a dma-buf", "this kernel has no /dev/udmabuf")
    else:
        fd, memory_of = got
        memory_of[:] = pattern(3, 3 << 20)
        buffer = imported(fd)
        q = a.file.call("BUFFER_QUERY", buffer=buffer.handle)
        r.equal(
            "what it is",
            (q.kind, q.length, q.mmap_offset, q.charged, q.keys, buffer.length, q.buffer_flags),
            (N["BUFFER_DMABUF"], 3 << 20, 0, 0, buffer.keys, 3 << 20, 0),
        )
        r.equal("it cannot be mapped by us", error_of(a.file.map, 4096, q.mmap_offset), "ENOENT")
        at = KEY - 1000 if KEY < 3 << 20 else 1000
        a.file.submit([a.qp.wr("RDMA_WRITE", buffer, at, 5000, **remote(b.grant))])
        r.equal("it is written to a peer", (done(a), b.buffer.map[:5000] == memory_of[at : at + 5000]), ([0], True))
        part = imported(fd, offset=1 << 20, length=8000)
        grant = a.file.grant(part, ALL)
        r.equal("a part of it", (part.length, grant.length), (8000, 8000))
        b.buffer.map[:8000] = pattern(77, 8000)
        before = memory_of[:]
        b.file.submit([b.qp.wr("RDMA_WRITE", b.buffer, 0, 8000, **remote(grant))])
        r.equal(
            "which a peer writes, and nothing beside it",
            (done(b), memory_of[:] == before[: 1 << 20] + pattern(77, 8000) + before[(1 << 20) + 8000 :]),
            ([0], True),
        )
        for name, fields, want in (
            ("an offset that is no page", {"offset": 100}, "EINVAL"),
            ("more than there is", {"length": (3 << 20) + 1}, "ERANGE"),
            ("what is behind it", {"offset": 3 << 20}, "ERANGE"),
            ("far behind it", {"offset": 1 << 63}, "ERANGE"),
            ("around the end", {"offset": PAGE, "length": 2**64 - PAGE}, "ERANGE"),
            ("unknown flags", {"flags": 2}, "EINVAL"),
            ("padding", {"pad": 1}, "EINVAL"),
            ("no domain", {"pd": a.qp.handle}, "EBADFD"),
        ):
            r.equal(f"to import {name}", error_of(imported, fd, **fields), want)
        only = imported(fd, flags=N["BUFFER_READ_ONLY"])
        r.equal("read-only: no grant to write", error_of(a.file.grant, only, N["ACCESS_REMOTE_WRITE"]), "EACCES")
        os.close(fd)
        memory_of.close()
        b.file.submit([b.qp.wr("RDMA_READ", b.buffer, 0, 100, **remote(grant))])
        r.equal("it stays when its descriptor is closed", (done(b), b.buffer.map[:100]), ([0], pattern(77, 8000)[:100]))
    heap = "/dev/dma_heap/system"
    if os.path.exists(heap):

        def allocate(mode):
            with open(heap, "rb") as dev:
                arg = fcntl.ioctl(dev, 0xC0184800, struct.pack("QIIQ", 4 << 20, 0, mode | os.O_CLOEXEC, 0))
            return struct.unpack("QIIQ", arg)[1]

        fd = allocate(os.O_RDONLY)
        r.equal("to import for writing what is open for reading", error_of(imported, fd), "EACCES")
        r.equal("to import it for reading", imported(fd, flags=N["BUFFER_READ_ONLY"]).length, 4 << 20)
        os.close(fd)
        fd = allocate(os.O_RDWR)
        buffer = imported(fd)
        shown = mmap.mmap(fd, 4 << 20)
        shown[:] = pattern(4, 4 << 20)
        a.file.submit([a.qp.wr("RDMA_WRITE", buffer, 1000, 65536, **remote(b.grant))])
        r.equal("one of the system's heap", (done(a), b.buffer.map[:] == shown[1000:66536]), ([0], True))
        r.equal("in the chunks that it has, or in pages", buffer.page_size >= 65536, HERE.key is None)
        os.close(fd)
    else:
        r.skip("a dma-buf of the system's heap", f"this kernel has no {heap}")
    r.equal("to import what is nothing", error_of(imported, 999), "EBADF")
    r.equal("to import another file", error_of(imported, a.file.fd), "EINVAL")


def test_fork(r):
    a, b = joined()
    own = memory(1 << 20)
    own[:] = pattern(5, 1 << 20)
    buffer = UserBuffer(a.file, a.pd, own)
    grant = a.file.grant(buffer, ALL)
    go, come, was = os.pipe(), os.pipe(), own[:8192]
    child = os.fork()
    if child == 0:
        os.close(go[1])
        ok = own[:4096] == was[:4096]
        own[:4096] = pattern(1, 4096)  # its own copy
        os.write(come[1], b"y" if ok else b"n")
        os.read(go[0], 1)
        ok = own[:4096] == pattern(1, 4096) and own[4096:8192] == was[4096:]
        os._exit(0 if ok else 1)
    os.close(come[1])
    r.equal("a child has a copy", os.read(come[0], 1), b"y")
    r.equal("which is not the parent's", own[:4096] == was[:4096], True)
    own[100000:100064] = pattern(3, 64)
    a.file.submit([a.qp.wr("RDMA_WRITE", buffer, 100000, 64, **remote(b.grant))])
    r.equal("the parent's writes go out", (done(a), b.buffer.map[:64]), ([0], pattern(3, 64)))
    b.buffer.map[:8192] = pattern(8, 8192)
    b.file.submit([b.qp.wr("RDMA_WRITE", b.buffer, 0, 8192, **remote(grant))])
    r.equal("what a peer writes comes to the parent", (done(b), own[:8192] == pattern(8, 8192)), ([0], True))
    os.write(go[1], b"x")
    r.equal("and not to the child", os.waitpid(child, 0)[1], 0)
    r.equal(
        "the parent pays",
        (status_of("VmPin") > 0, a.file.call("BUFFER_QUERY", buffer=buffer.handle).charged),
        (True, 1 << 20),
    )

    # exec: the address space that pays goes on, unseen, until the file is closed.
    for last in (
        "os.execv('/bin/true', ['true'])",
        "os._exit(0)",
        "os.kill(os.getpid(), 9)",
        "f.close(), os.execv('/bin/true', ['true'])",
    ):
        code = f"""if True:
            import mmap, os, sys
            sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})
            from ulp import *
            f = File('h1', '')
            b = UserBuffer(f, f.pd(), mmap.mmap(-1, 1 << 20))
            Buffer(f, f.pd(), 1 << 16)
            os.write(1, b'there')
            {last}
        """
        got = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=60 * ulp.PATIENCE)
        r.equal(f"a process that registered, then {last}", (got.stdout, got.returncode in (0, -9)), (b"there", True))


if __name__ == "__main__":
    ulp.main(__doc__, globals())
