#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""The module on an adapter that does DMA behind an IOMMU: tests/hca.

    hca.py pages|pinned|ops|connect

Expects the module and two hosts with such adapters. Prints KTAP.
"""

import mmap
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import connect
import ulp
from ulp import N, End, UserBuffer, pair, pattern

ALL = N["ACCESS_REMOTE_WRITE"] | N["ACCESS_REMOTE_READ"]
KIB, MIB = 1 << 10, 1 << 20
PAGE = 4 * KIB
FILL = 0xC3
REFUSED = 10  # IB_WC_REM_ACCESS_ERR


def through(r, name, a, b, grant, memory, offset, length):
    """A write by `grant` fills `length` bytes at `offset` of `memory` and no byte beside; a read returns them."""
    data = pattern(offset + length, length)
    a.buffer.map[:length] = data
    memory[:] = bytes([FILL]) * len(memory)
    where = {"remote_addr": grant.addr, "rkey": grant.rkey}
    a.file.submit([a.qp.wr("RDMA_WRITE", a.buffer, 0, length, **where)])
    written = a.cq.wait(1)[0].status
    rest = (memory[:offset] + memory[offset + length :]).count(FILL)
    a.buffer.map[:length] = bytes(length)
    a.file.submit([a.qp.wr("RDMA_READ", a.buffer, 0, length, **where)])
    read = a.cq.wait(1)[0].status
    r.equal(
        name,
        (written, memory[offset : offset + length] == data, rest, read, a.buffer.map[:length] == data),
        (0, True, len(memory) - length, 0, True),
    )


def test_pages(r):
    """Grants that begin and end anywhere in a buffer."""
    for page_size in (PAGE, 2 * MIB):
        a, b = pair(length=8 * MIB)
        buffer = ulp.Buffer(b.file, b.pd, 8 * MIB, page_size=page_size)
        for offset, length in (
            (0, 8 * MIB if page_size > PAGE else 2 * MIB),
            (PAGE, PAGE),
            (PAGE, 2 * MIB - PAGE),
            (2 * MIB - PAGE, 2 * PAGE),
            (3 * PAGE + 5, 1000),
            (5 * MIB + 3, 70001),
            (PAGE, 7 * MIB if page_size > PAGE else MIB),
        ):
            grant = b.file.grant(buffer, ALL, offset=offset, length=length)
            name = f"{length} bytes at {offset} of a buffer with pages of {buffer.page_size >> 10} KiB"
            through(r, name, a, b, grant, buffer.map, offset, length)


def test_pinned(r):
    """Memory of the process, which begins anywhere in a large page."""
    a, b = pair(length=4 * MIB, access=ALL)
    memory = mmap.mmap(-1, 8 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    memory[:] = bytes(8 * MIB)
    for at, length in ((0, 4 * MIB), (PAGE, 3 * MIB), (5 * PAGE + 7, 70001)):
        buffer = UserBuffer(b.file, b.pd, memory, at, length)
        size = min(length, buffer.key_bytes)
        grant = b.file.grant(buffer, ALL, length=size)
        through(r, f"{size} bytes at {at} of memory that is pinned", a, b, grant, memory, at, size)
        b.file.destroy(grant.handle)
        b.buffer.map[:64] = bytes(64)
        b.file.submit([b.qp.wr("RDMA_READ", buffer, 0, 64, remote_addr=a.grant.addr, rkey=a.grant.rkey)])
        r.equal("... and as a request's own memory", b.cq.wait(1)[0].status, 0)
        r.equal("... the right bytes", memory[at : at + 64], a.buffer.map[:64])
        b.file.destroy(buffer.handle)


def test_ops(r):
    """Each operation once, and a key that ends."""
    a, b = End("h1", access=ALL), End("h2", access=ALL)
    a.connect(b)
    b.connect(a)
    a.buffer.map[:8] = b"message!"
    b.file.submit([b.qp.wr("RECV", b.buffer, 128, 64, user_data=5)])
    a.file.submit([a.qp.wr("SEND", a.buffer, 0, 8)])
    done = b.cq.wait(1)[0]
    r.equal("a message arrives", (done.status, done.user_data, done.byte_len), (0, 5, 8))
    r.equal("... with its content", b.buffer.map[128:136], b"message!")
    r.equal("... and its sender hears of it", a.cq.wait(1)[0].status, 0)
    b.file.destroy(b.grant.handle)
    b.buffer.map[:8] = bytes(8)
    a.file.submit([a.write(b, 8)])
    r.equal("a key that was revoked lets nothing in", a.cq.wait(1)[0].status, REFUSED)
    r.equal("... not a byte", b.buffer.map[:8], bytes(8))


def test_connect(r):
    """The connection manager, by MADs over queue pair 1."""
    # On each host the device that is there.
    connect.End = lambda host, device="", **more: End(host, **more)
    connect.test_write(r)


ulp.main(__doc__, globals())
