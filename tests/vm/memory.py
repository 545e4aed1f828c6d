#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Memory: buffers and their keys, grants, between h1 and h2.

    memory.py keys

Expects the module and two hosts. Prints `ok` and `not ok` lines.
"""
import ctypes
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import ulp
from ulp import N, S, Buffer, End, Srq, error_of, pair, pattern

ALL = N["ACCESS_REMOTE_WRITE"] | N["ACCESS_REMOTE_READ"] | N["ACCESS_REMOTE_ATOMIC"]
PAGE = 4096
LARGE = 2 << 20
KEY = 512 * PAGE  # what rxe puts under one key, in pages of that size


def joined(sges=1, length=1 << 16, **more):
    """Two connected ends whose requests may have `sges` elements."""
    a, b = End("h1", length=length, access=ALL, **more), End("h2", length=length, access=ALL, **more)
    for end in (a, b):
        end.file.destroy(end.qp.handle)
        got = end.file.call("QP_CREATE", pd=end.pd, send_cq=end.cq.handle, recv_cq=end.cq.handle, qp_type=N["QPT_RC"],
                            max_send_wr=64, max_recv_wr=64, max_send_sge=sges, max_recv_sge=sges)
        end.qp.handle, end.qp.num, end.psn = got.handle, got.qp_num, got.qp_num * 4099 & 0xFFFFFF
    a.connect(b)
    b.connect(a)
    return a, b


def done(end, count=1):
    """The statuses of that many completions."""
    return [c.status for c in end.cq.wait(count)]


def test_keys(r):
    a, b = joined()
    small = Buffer(a.file, a.pd, 5 << 20, PAGE)
    r.equal("5 MiB in pages of 4 KiB have three keys",
            (small.keys, small.key_bytes, small.page_size, small.length), (3, KEY, PAGE, 5 << 20))
    there = Buffer(b.file, b.pd, 5 << 20, PAGE)
    small.map[:] = pattern(3, 5 << 20)
    # Each end's element lies across a border, not at the same place.
    grant = b.file.grant(there, ALL, offset=KEY - 70000, length=200000)
    r.equal("a grant lies across them, with the addresses of its offsets", grant.addr, KEY - 70000)
    a.file.submit([a.qp.wr("RDMA_WRITE", small, 2 * KEY - 33333, 150001, remote_addr=grant.addr + 5, rkey=grant.rkey)])
    r.equal("a write from one side of a border to the other, across one at the peer",
            (done(a), there.map[KEY - 69995:KEY + 80006] == small.map[2 * KEY - 33333:2 * KEY + 116668],
             there.map[KEY - 69996], there.map[KEY + 80006]), ([0], True, 0, 0))
    a.file.submit([a.qp.wr("RDMA_READ", small, KEY - 1, 8192, remote_addr=grant.addr + 1000, rkey=grant.rkey)])
    r.equal("a read of what lies there, across a border",
            (done(a), small.map[KEY - 1:KEY + 8191] == there.map[KEY - 69000:KEY - 60808]), ([0], True))
    b.file.submit([b.qp.wr("RECV", there, 2 * KEY - 5000, 10000)])
    a.file.submit([a.qp.wr("SEND", small, KEY - 4000, 9999)])
    r.equal("a send and its receive", (done(b), done(a), there.map[2 * KEY - 5000:2 * KEY + 4999] ==
                                       small.map[KEY - 4000:KEY + 5999], there.map[2 * KEY + 4999]), ([0], [0], True, 0))
    word = ctypes.c_uint64.from_buffer(there.map, KEY + 8)
    word.value = 0x1122334455667788
    b.qp.modify("ACCESS_FLAGS", access_flags=ALL)
    a.file.submit([a.qp.wr("ATOMIC_FETCH_AND_ADD", small, KEY - 4, 8, remote_addr=KEY + 8, rkey=grant.rkey, arg0=1)])
    r.equal("what an atomic returns, half under each key",
            (done(a), small.map[KEY - 4:KEY + 4], word.value),
            ([0], (0x1122334455667788).to_bytes(8, "little"), 0x1122334455667789))
    twice = [a.qp.wr("RDMA_WRITE", small, 0, n, remote_addr=grant.addr, rkey=grant.rkey) for n in (64, 2 * KEY + 1)]
    r.equal("an element under three keys is one too many", error_of(a.file.submit, twice), "E2BIG")
    got = a.file.call("QP_QUERY", qp=a.qp.handle)
    r.equal("a queue pair has as many elements as it was asked to have", (got.max_send_sge, got.max_recv_sge), (1, 1))
    keep = (S["sge"] * 2)(S["sge"](buffer=small.handle, length=8), S["sge"](buffer=small.handle, length=8))
    two = a.qp.wr("RDMA_WRITE", remote_addr=grant.addr, rkey=grant.rkey, num_sge=2,
                  sge=S["sge"](offset=ctypes.addressof(keep)))
    r.equal("and no more of the caller's", error_of(a.file.submit, [two]), "E2BIG")
    r.equal("neither posted anything", a.cq.reap(), [])
    r.equal("a range of more than a key", error_of(b.file.grant, there, length=KEY + 1), "ERANGE")
    r.equal("... or that lies in one page more", error_of(b.file.grant, there, offset=1, length=KEY), "ERANGE")

    c, d = joined(sges=3)
    wide, target = Buffer(c.file, c.pd, 7 << 20, PAGE), Buffer(d.file, d.pd, 8 << 20)
    grant = d.file.grant(target)
    wide.map[:] = pattern(8, 7 << 20)
    c.file.submit([c.qp.wr("RDMA_WRITE", wide, 100, 3 * KEY - 50, remote_addr=1, rkey=grant.rkey)])
    r.equal("with room for four, an element lies under four",
            (done(c), target.map[1:3 * KEY - 49] == wide.map[100:3 * KEY + 50]), ([0], True))

    e, f = End("h1", access=ALL), End("h2", access=ALL)
    srq, shared = Srq(f.file, f.pd, f.cq, max_sge=1), Buffer(f.file, f.pd, 2 * KEY, PAGE)
    f.file.destroy(f.qp.handle)
    f.qp = ulp.Qp(f.file, f.pd, f.cq, srq=srq.handle)
    f.psn = f.qp.num * 4099 & 0xFFFFFF
    e.connect(f)
    f.connect(e)
    r.equal("a shared receive queue has what it was asked for, too", srq.query().max_sge, 1)
    f.file.submit([srq.recv(shared, KEY - 100, 300)])
    e.buffer.map[:300] = pattern(5, 300)
    e.file.submit([e.qp.wr("SEND", e.buffer, 0, 300)])
    r.equal("a receive of a shared queue, across a border", (done(f), shared.map[KEY - 100:KEY + 200]), ([0], pattern(5, 300)))

    for end in (a, b, c, d, e, f):
        end.file.close()
    a, b = pair()
    most = a.file.call("QUERY").max_buffer
    big = Buffer(a.file, a.pd, most)
    r.equal("the largest buffer has one key, of large pages", (most, big.keys, big.key_bytes, big.page_size),
            (1 << 30, 1, 1 << 30, LARGE))
    grant = a.file.grant(big)
    r.equal("and one grant opens all of it", (grant.addr, grant.length), (0, most))
    a.file.close()
    big.map.close()
    a, b = pair()
    big = Buffer(a.file, a.pd, most, PAGE)
    r.equal("or 512, of small ones", (big.keys, big.key_bytes, big.page_size), (512, KEY, PAGE))
    grant = a.file.grant(big, offset=most - KEY, length=KEY)
    b.buffer.map[:] = pattern(1, b.buffer.length)
    at = most - KEY // 2 - 77
    b.file.submit([b.qp.wr("RDMA_WRITE", b.buffer, 0, b.buffer.length, remote_addr=at, rkey=grant.rkey)])
    r.equal("and a peer reaches the last of them", (done(b), big.map[at:at + b.buffer.length] == b.buffer.map[:]), ([0], True))
    big.map[511 * KEY - 500:511 * KEY + 500] = pattern(2, 1000)
    b.file.submit([b.qp.wr("RECV", b.buffer, 0, 1000)])
    a.file.submit([a.qp.wr("SEND", big, 511 * KEY - 500, 1000)])
    r.equal("and its owner", (done(a), done(b), b.buffer.map[:1000]), ([0], [0], pattern(2, 1000)))


def main():
    test = globals().get("test_" + (sys.argv[1] if len(sys.argv) == 2 else ""))
    if test is None:
        print(__doc__.split("\n\n")[1].strip(), file=sys.stderr)
        sys.exit(2)
    report = ulp.Report()
    report.run(sys.argv[1], test)
    sys.stdout.flush()
    os._exit(report.status())


if __name__ == "__main__":
    main()
