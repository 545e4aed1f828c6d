#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""The pages of buffers: on which NUMA node, and in how large pieces.

    pages.py nodes|full|cpuset|scattered|orders

Expects the module and two hosts; the first three, a guest with two NUMA nodes. Prints KTAP.
"""

import ctypes
import fcntl
import itertools
import mmap
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import faultpoint
import limits
import ulp
from ulp import N, PAGE, SMALL, Buffer, End, address_of, error_of, pattern, remote

ALL = N["ACCESS_REMOTE_WRITE"] | N["ACCESS_REMOTE_READ"]
LARGE = 2 << 20
MEBI = 1 << 20
SET_MEMPOLICY, MOVE_PAGES = (237, 239) if os.uname().machine == "aarch64" else (238, 279)


def nodes_of(memory):
    """The node of each page of an mmap, as move_pages(2) says."""
    count = len(memory) // PAGE
    pages = (ctypes.c_void_p * count)(*range(address_of(memory), address_of(memory) + len(memory), PAGE))
    status = (ctypes.c_int * count)()
    if ulp.libc.syscall(MOVE_PAGES, 0, ctypes.c_ulong(count), pages, None, status, 0):
        raise OSError(ctypes.get_errno(), "move_pages")
    return list(status)


def bind(node):
    """Binds the memory of this task to a node, or to none: set_mempolicy(2) with MPOL_BIND or MPOL_DEFAULT."""
    mask = ctypes.c_ulong(0 if node is None else 1 << node)
    if ulp.libc.syscall(SET_MEMPOLICY, 0 if node is None else 2, ctypes.byref(mask), ctypes.c_ulong(64)):
        raise OSError(ctypes.get_errno(), "set_mempolicy")


def ends(length):
    """The owner of buffers, and a peer that has one of `length` bytes."""
    a, b = End("h1", access=ALL), End("h2", length=length, access=ALL)
    # Nothing is lost, so nothing is to be sent again, however slow the machine: what comes twice may come when
    # its key is gone, and end the queue pair.
    a.meet(b, timeout=21)
    return a, b


def works(r, name, a, b, buffer):
    """What a peer writes to the buffer's last bytes is there, goes back to it, and is what the owner sends."""
    size = min(buffer.length, b.buffer.length)
    base, key = buffer.length - size, buffer.key_bytes
    want = pattern(buffer.handle & 63, size)
    # A grant is no larger than a key, and none of these lies under two.
    cuts = [base, *range(base // key * key + key, buffer.length, key), buffer.length]
    pieces = [(at, end - at) for at, end in itertools.pairwise(cuts)]
    seen = []
    for at, length in pieces:
        grant = a.file.grant(buffer, ALL, offset=at, length=length)
        here = slice(at - base, at - base + length)
        b.buffer.map[here] = want[here]
        b.file.submit([b.qp.wr("RDMA_WRITE", b.buffer, at - base, length, **remote(grant))])
        seen.append((b.cq.wait(1)[0].status, buffer.map[at : at + length] == want[here]))
        b.buffer.map[here] = bytes(length)
        b.file.submit([b.qp.wr("RDMA_READ", b.buffer, at - base, length, **remote(grant))])
        seen.append((b.cq.wait(1)[0].status, b.buffer.map[here] == want[here]))
        a.file.destroy(grant.handle)
    r.equal(f"{name}: a peer writes and reads {size} bytes", set(seen), {(0, True)})
    b.buffer.map[:size] = bytes(size)
    a.file.submit([a.qp.wr("RDMA_WRITE", buffer, at, length, **remote(b.grant, at - base)) for at, length in pieces])
    r.equal(
        f"{name}: its owner sends them",
        ({c.status for c in a.cq.wait(len(pieces))}, b.buffer.map[:size] == want),
        ({0}, True),
    )


def drop(file, buffer):
    buffer.map.close()
    file.destroy(buffer.handle)


def test_nodes(r):
    with open("/sys/devices/system/node/has_memory") as f:
        r.equal("the guest has two nodes", f.read().strip(), "0-1")
    a, b = ends(2 * MEBI)
    for node in (1, 0, 1):
        for length, size in ((MEBI, SMALL), (2 * MEBI, LARGE), (3 * MEBI, 0), (1, 0)):
            name = f"node {node}, {length} bytes in pages of {size}"
            buffer = Buffer(a.file, a.pd, length, size, node)
            r.equal(
                f"{name}: told by CREATE, by QUERY, and by the kernel of every page",
                (buffer.node, a.file.call("BUFFER_QUERY", buffer=buffer.handle).node, set(nodes_of(buffer.map))),
                (node, node, {node}),
            )
            if size or length == 1:
                works(r, name, a, b, buffer)
            drop(a.file, buffer)
    buffer = Buffer(a.file, a.pd, MEBI)
    r.equal("any node: told which", buffer.node, nodes_of(buffer.map)[0])
    for node in (1, 0, 1):
        bind(node)
        for size in (SMALL, LARGE, 0):
            buffer = Buffer(a.file, a.pd, 2 * MEBI, size)
            got = buffer.node, set(nodes_of(buffer.map))
            r.equal(f"any node, pages of {size}, a task that is bound to node {node}: its pages", got, (node, {node}))
            drop(a.file, buffer)
        buffer = Buffer(a.file, a.pd, MEBI, SMALL, 1 - node)
        r.equal(f"node {1 - node}, a task that is bound to node {node}", set(nodes_of(buffer.map)), {1 - node})
        drop(a.file, buffer)
    bind(None)
    for node in (2, 63, 64, 1023, 1024, 1 << 20, 2**31 - 1, -2, -1024, -(2**31)):
        got = {error_of(Buffer, a.file, a.pd, MEBI, size, node) for size in (0, SMALL, LARGE)}
        r.equal(f"node {node}, which is not there", got, {"ERANGE"})


def test_full(r):
    """A node is the preferred one: what it has not comes from the other, and is told."""
    a, b = ends(MEBI)
    kept, wrong, elsewhere = [], [], 0
    # One may come from elsewhere while pages are being freed.
    while len(kept) < 800 and elsewhere < 8:
        buffer = a.file.call("BUFFER_CREATE", pd=a.pd, node=1, length=LARGE, page_size=LARGE)
        kept.append(buffer.handle)
        with a.file.map(PAGE, buffer.mmap_offset) as first:
            if buffer.node != nodes_of(first)[0]:
                wrong.append(len(kept))
        elsewhere = 0 if buffer.node else elsewhere + 1
    r.check("node 1 was full after a while", len(kept) > 8 and elsewhere == 8, f"{len(kept)} buffers")
    r.equal("of each the node of the first page is told", wrong, [])
    for _ in range(8):
        buffer = Buffer(a.file, a.pd, LARGE, LARGE, 1)
        # Whatever is freed on node 1 meanwhile (a page cache that is shrunk, say) is given out before node 0's.
        if buffer.node == 0:
            break
        kept.append(buffer.handle)
    r.equal("then they come from node 0", (buffer.node, set(nodes_of(buffer.map))), (0, {0}))
    works(r, "a buffer that was to be on another node", a, b, buffer)
    for handle in kept:
        a.file.destroy(handle)
    buffer = Buffer(a.file, a.pd, 8 * MEBI, LARGE, 1)
    r.equal("what was given back is to be had again", (buffer.node, set(nodes_of(buffer.map))), (1, {1}))


def test_cpuset(r):
    """A task whose cpuset has one node gets no page of the other, even when that node is full."""
    a = End("h1", access=ALL)
    kept, nodes = [], set()

    def fill():
        # A page of node 0 ends it: where they are given out, both nodes would be filled, and this process killed.
        while len(kept) < 800 and nodes <= {1}:
            buffer = a.file.call("BUFFER_CREATE", pd=a.pd, node=N["NODE_ANY"], length=LARGE, page_size=LARGE)
            kept.append(buffer.handle)
            nodes.add(buffer.node)

    limits.cgroup("nodes", ["cpuset"])
    limits.write("cpuset.mems", "1", "nodes")
    limits.write("cgroup.procs", "0", "nodes")
    full = error_of(fill)
    limits.write("cgroup.procs", "0", "")
    os.rmdir(f"{limits.ROOT}/nodes")
    r.equal("a cpuset of node 1, when that is full: ENOMEM", (full, len(kept) > 8), ("ENOMEM", True))
    r.equal("a cpuset of node 1: no page of node 0", nodes, {1})
    buffer = Buffer(a.file, a.pd, LARGE, LARGE)
    r.equal("no cpuset, when node 1 is full: pages of node 0", (buffer.node, set(nodes_of(buffer.map))), (0, {0}))
    a.file.close()


def test_orders(r):
    """Pages of each order and above are not to be had: the next smaller ones are taken."""
    at = f"{faultpoint.DEBUGFS}/fail_page_alloc"
    if not os.path.isdir(at):
        r.skip("which order is taken when the kernel refuses larger ones", "this kernel refuses none")
        return
    a, b = ends(4 * MEBI)
    b.file.destroy(b.file.grant(b.buffer).handle)  # what is made once
    for name, value in (
        ("ignore-gfp-wait", "N"),
        ("ignore-gfp-highmem", "N"),
        ("verbose", 0),
        ("task-filter", "Y"),
        ("times", -1),
        ("interval", 1),
        ("space", 0),
        ("stacktrace-depth", 0),
        ("require-start", "0x0"),
        ("require-end", f"{2**64 - 1:#x}"),
    ):
        faultpoint.put(f"{at}/{name}", value)

    def refusing(order, function, *args):
        faultpoint.put(f"{at}/min-order", order)
        faultpoint.put("/proc/thread-self/make-it-fail", 1)
        faultpoint.put(f"{at}/probability", 100)
        try:
            return function(*args)
        finally:
            faultpoint.put(f"{at}/probability", 0)
            faultpoint.put("/proc/thread-self/make-it-fail", 0)

    # The driver's own table takes pages of order 2.
    for order in range(9, 2, -1):
        buffer = refusing(order, Buffer, a.file, a.pd, 4 * MEBI)
        r.equal(
            f"without order {order}: the page size, and how many keys",
            (buffer.page_size, buffer.keys),
            (PAGE << order - 1, 1),
        )
        r.equal(
            f"without order {order}: 2 MiB pages",
            error_of(refusing, order, Buffer, a.file, a.pd, 4 * MEBI, LARGE),
            "ENOMEM",
        )
        works(r, f"without order {order}", a, b, buffer)
        drop(a.file, buffer)
    r.equal("without any page", error_of(refusing, 0, Buffer, a.file, a.pd, 4 * MEBI), "ENOMEM")
    buffer = Buffer(a.file, a.pd, 4 * MEBI)
    r.equal("and with all of them again", buffer.page_size, LARGE)


def meminfo(key):
    with open("/proc/meminfo") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith(key + ":"))


class IoVec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def scatter(length, step):
    """Frees `length` bytes, but for one page in `step` bytes: those are in pipes, so nobody moves them."""
    area = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(mmap.MADV_NOHUGEPAGE)
    area.madvise(23)  # MADV_POPULATE_WRITE
    pipes, start = [], address_of(area)
    places = range(start, start + length, step)
    for first in range(0, len(places), 1024):
        if first % 4096 == 0:
            pipes.append(os.pipe())
            fcntl.fcntl(pipes[-1][1], 1031, 4096 * PAGE)  # F_SETPIPE_SZ
        some = places[first : first + 1024]
        vector = (IoVec * len(some))(*((place, PAGE) for place in some))
        got = ulp.libc.vmsplice(pipes[-1][1], vector, ctypes.c_ulong(len(some)), 2)  # SPLICE_F_NONBLOCK
        if got != len(some) * PAGE:
            raise OSError(ctypes.get_errno(), f"vmsplice took {got} bytes")
    area.close()
    return [fd for pipe in pipes for fd in pipe]


def test_scattered(r):
    """There is memory, in small pieces that cannot be moved."""
    a, b = ends(2 * MEBI)
    threshold = "/proc/sys/vm/extfrag_threshold"
    with open(threshold) as f:
        before = f.read()
    # Moving pages would be in vain, and takes its time.
    faultpoint.put(threshold, 1000)
    fds = scatter(meminfo("MemAvailable") * 3 // 5 // LARGE * LARGE, 128 << 10)
    kept = []
    for length in (8 * MEBI, LARGE):
        while len(kept) < 200:
            kept.append(Buffer(a.file, a.pd, length))
            if kept[-1].page_size != LARGE:
                drop(a.file, kept.pop())
                break
    free = meminfo("MemFree")
    r.check(
        "what there was of 2 MiB is taken, and there is memory",
        0 < len(kept) < 200 and free > 128 * MEBI,
        f"{free >> 20} MiB free, {len(kept)} buffers taken",
    )
    # rxe allocates the page table of a region in one piece, 16 bytes for 4 KiB.
    # For 64 MiB no free piece is long enough.
    for length in (8 * MEBI, 3 * MEBI + 5, 16 * MEBI):
        buffer = Buffer(a.file, a.pd, length)
        while buffer.page_size == LARGE and len(kept) < 400:
            # The kernel has put one together meanwhile: that is taken, too.
            kept.append(buffer)
            buffer = Buffer(a.file, a.pd, length)
        name = f"{length} bytes without large pages"
        got = a.file.call("BUFFER_QUERY", buffer=buffer.handle)
        r.check(
            f"{name}: smaller ones are told",
            buffer.page_size == got.page_size in [PAGE << n for n in range(9)],
            f"{buffer.page_size}, {got.page_size}",
        )
        r.equal(
            f"{name}: with as many keys as that takes",
            (buffer.key_bytes, buffer.keys),
            (512 * buffer.page_size, -(-buffer.length // (512 * buffer.page_size))),
        )
        r.check(
            f"{name}: no less than was asked for", length <= buffer.length < length + buffer.page_size, buffer.length
        )
        works(r, name, a, b, buffer)
        drop(a.file, buffer)
    for fd in fds:
        os.close(fd)
    while kept:
        drop(a.file, kept.pop())
    faultpoint.put(threshold, before)
    buffer = Buffer(a.file, a.pd, 8 * MEBI, LARGE)
    r.equal("when there are large pages again, they are to be had", buffer.page_size, LARGE)
    works(r, "after all that", a, b, buffer)


if __name__ == "__main__":
    ulp.main(__doc__, globals())
