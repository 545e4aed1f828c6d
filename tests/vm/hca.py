#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""The module on an adapter that does DMA behind an IOMMU: tests/hca.

    hca.py pages|pinned|directions|lists|frames|ops|atomics|connect|iwarp|streams|srq|interrupts|undrained|worker|
        late|dereg|unrevoked|leaked|flushed|undestroyed|silent|refused|stopped|streamless|unplugged

Expects the module and two hosts with such adapters. Prints KTAP.
"""

import fcntl
import mmap
import os
import re
import signal
import struct
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import connect
import siw
import tracing
import ulp
from lifetime import ended, in_background
from ulp import N, End, Qp, Srq, UserBuffer, adapter, error_of, pattern

ALL = N["ACCESS_REMOTE_WRITE"] | N["ACCESS_REMOTE_READ"]
KIB, MIB = 1 << 10, 1 << 20
PAGE = 4 * KIB
FILL = 0xC3
REFUSED = 10  # IB_WC_REM_ACCESS_ERR
TOO_LONG = 1  # IB_WC_LOC_LEN_ERR


def personality():
    """The driver whose rules the adapter has."""
    with open("/sys/module/ulp_hca/parameters/personality") as f:
        return f.read().strip()


def two(**more):
    """Two connected ends: on InfiniBand each host sees both devices."""
    a, b = End("h1", "hca1", **more), End("h2", "hca2", **more)
    a.connect(b)
    b.connect(a)
    return a, b


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
        a, b = two()
        a.buffer = ulp.Buffer(a.file, a.pd, 8 * MIB)
        if not b.file.call("DEVICE_QUERY").page_size_cap & page_size:
            refused = error_of(ulp.Buffer, b.file, b.pd, 8 * MIB, page_size=page_size)
            r.equal(f"pages of {page_size >> 10} KiB, which the device does not have", refused, "ERANGE")
            continue
        buffer = ulp.Buffer(b.file, b.pd, 8 * MIB, page_size=page_size)
        for offset, length in (
            (0, 8 * MIB),
            (0, 2 * MIB),
            (PAGE, PAGE),
            (PAGE, 2 * MIB - PAGE),
            (2 * MIB - PAGE, 2 * PAGE),
            (3 * PAGE + 5, 1000),
            (5 * MIB + 3, 70001),
            (PAGE, 7 * MIB),
            (PAGE, MIB),
        ):
            if length > buffer.key_bytes:
                continue
            grant = b.file.grant(buffer, ALL, offset=offset, length=length)
            name = f"{length} bytes at {offset} of a buffer with pages of {buffer.page_size >> 10} KiB"
            through(r, name, a, b, grant, buffer.map, offset, length)


def test_pinned(r):
    """Memory of the process, which begins anywhere in a large page."""
    a, b = two(access=ALL)
    source, a.buffer = a.buffer, ulp.Buffer(a.file, a.pd, 4 * MIB)
    memory = mmap.mmap(-1, 8 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    memory[:] = bytes(8 * MIB)
    for at, length in ((0, 4 * MIB), (PAGE, 3 * MIB), (5 * PAGE + 7, 70001)):
        buffer = UserBuffer(b.file, b.pd, memory, at, length)
        size = min(length, buffer.key_bytes - at % PAGE)
        grant = b.file.grant(buffer, ALL, length=size)
        through(r, f"{size} bytes at {at} of memory that is pinned", a, b, grant, memory, at, size)
        b.file.destroy(grant.handle)
        source.map[:64] = pattern(at, 64)
        b.file.submit([b.qp.wr("RDMA_READ", buffer, 0, 64, remote_addr=a.grant.addr, rkey=a.grant.rkey)])
        r.equal("... and as a request's own memory", b.cq.wait(1)[0].status, 0)
        r.equal("... the right bytes", memory[at : at + 64], pattern(at, 64))
        b.file.destroy(buffer.handle)


def test_frames(r):
    """A dma-buf of memory without struct pages, imported for a driver that copies by the CPU."""
    ulp.shell("ip netns exec h1 rdma link add rxe1 type rxe netdev w1")
    f = ulp.File("h1", "rxe1")
    with open("/dev/ulp_dmabuf") as exporter:
        fd = fcntl.ioctl(exporter, 0)
    for flags in (0, N["BUFFER_READ_ONLY"]):
        said = error_of(f.call, "BUFFER_IMPORT", pd=f.pd(), fd=fd, flags=flags)
        r.equal(f"BUFFER_IMPORT with flags {flags} of memory without struct pages", said, "EOPNOTSUPP")
    os.close(fd)
    f.close()
    ulp.shell("rdma link del rxe1")


def test_directions(r):
    """The direction in which memory is mapped for the adapter: what nobody may write, it cannot."""
    a, _ = two()
    memory = mmap.mmap(-1, PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:8] = b"written!"

    def mapped(function, *args, **kwargs):
        """The directions of the mappings that the call makes."""
        tracing.write("trace", "")
        tracing.write("events/dma/dma_map_sg/enable", "1")
        tracing.write("tracing_on", "1")
        function(*args, **kwargs)
        tracing.write("events/dma/dma_map_sg/enable", "0")
        return re.findall(r"dma_map_sg: \S+ dir=(\w+)", tracing.read("trace"))

    read_only = {"flags": N["BUFFER_READ_ONLY"]}
    made = []
    directions = mapped(lambda: made.append(UserBuffer(a.file, a.pd, memory, **read_only)))
    r.equal("BUFFER_REGISTER with READ_ONLY", directions, ["TO_DEVICE"])
    directions = mapped(a.file.grant, made[0], N["ACCESS_REMOTE_READ"])
    r.equal("GRANT_CREATE with REMOTE_READ of a READ_ONLY buffer", directions, ["TO_DEVICE"])
    directions = mapped(lambda: made.append(UserBuffer(a.file, a.pd, memory)))
    r.equal("BUFFER_REGISTER", directions, ["BIDIRECTIONAL"])
    for right, want in (("READ", "TO_DEVICE"), ("WRITE", "BIDIRECTIONAL"), ("ATOMIC", "BIDIRECTIONAL")):
        directions = mapped(a.file.grant, made[1], N["ACCESS_REMOTE_" + right])
        r.equal(f"GRANT_CREATE with REMOTE_{right}", directions, [want])


#: The pages under one key that the adapter of a driver translates, where that is not 512 (PLAIN in personality.c).
LISTS = {"qedr": 8192, "strict": 16}


def test_lists(r):
    """A key with the longest list of pages."""
    a, b = two()
    most = b.file.call("DEVICE_QUERY").max_fast_reg_pages
    r.equal("DEVICE_QUERY: max_fast_reg_pages is what the adapter translates", most, LISTS.get(personality(), 512))
    buffer = ulp.Buffer(b.file, b.pd, (most + 1) * PAGE, page_size=PAGE)
    r.equal("a buffer of a page more: each key has as many pages", buffer.key_bytes, most * PAGE)
    grant = b.file.grant(buffer, ALL, length=buffer.key_bytes)
    for page in sorted({0, 1, most // 2, most - 1}):
        at, data = page * PAGE + 8, pattern(page, 64)
        a.buffer.map[:64] = data
        a.file.submit([a.qp.wr("RDMA_WRITE", a.buffer, 0, 64, remote_addr=grant.addr + at, rkey=grant.rkey)])
        r.equal(f"a write to page {page} lands there", (a.cq.wait(1)[0].status, buffer.map[at : at + 64]), (0, data))
    beyond = a.qp.wr("RDMA_WRITE", a.buffer, 0, 64, remote_addr=grant.addr + most * PAGE, rkey=grant.rkey)
    a.file.submit([beyond])
    r.equal("a write behind the key is refused", a.cq.wait(1)[0].status, REFUSED)


def test_ops(r):
    """Each operation once, and a key that ends."""
    a, b = two(access=ALL)
    a.buffer.map[:8] = b"message!"
    b.file.submit([b.qp.wr("RECV", b.buffer, 128, 64, user_data=5)])
    a.file.submit([a.qp.wr("SEND", a.buffer, 0, 8)])
    done = b.cq.wait(1)[0]
    r.equal("a message arrives", (done.status, done.user_data, done.byte_len), (0, 5, 8))
    r.equal("... without the vendor's error that the adapter left behind", done.vendor_err, 0)
    r.equal("... with its content", b.buffer.map[128:136], b"message!")
    r.equal("... and its sender hears of it", a.cq.wait(1)[0].status, 0)
    b.file.destroy(b.grant.handle)
    b.buffer.map[:8] = bytes(8)
    a.file.submit([a.write(b, 8)])
    r.equal("a key that was revoked lets nothing in", a.cq.wait(1)[0].status, REFUSED)
    r.equal("... not a byte", b.buffer.map[:8], bytes(8))
    if personality() == "strict":
        return  # no driver has its rules, so that the module does not know them
    device = a.file.call("DEVICE_QUERY")
    types = {kind for kind in ("RC", "UC", "UD") if getattr(device, kind.lower() + "_send_ops")}
    made = {kind for kind in ("RC", "UC", "UD") if error_of(Qp, a.file, a.pd, a.cq, kind=kind) == "none"}
    r.equal("the types of queue pair that the device has can be made, and no other", made, types)


def test_atomics(r):
    """Atomics where the driver posts them, and grants for them where its REG_MR gives that right."""
    a, b = two()
    posts = personality() not in ("mlx5", "bnxt", "strict")
    grants = personality() != "irdma"
    names = ("ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD")
    ops = a.file.call("DEVICE_QUERY").rc_send_ops
    r.equal("DEVICE_QUERY: rc_send_ops has atomics", [ops >> N["WR_" + n] & 1 for n in names], [posts] * 2)
    said = error_of(b.file.grant, b.buffer, ALL | N["ACCESS_REMOTE_ATOMIC"])
    r.equal("GRANT_CREATE with REMOTE_ATOMIC", said, "none" if grants else "EOPNOTSUPP")
    b.qp.modify("ACCESS_FLAGS", access_flags=ALL | N["ACCESS_REMOTE_ATOMIC"])
    there = b.file.grant(b.buffer, ALL | N["ACCESS_REMOTE_ATOMIC"] if grants else ALL)
    b.buffer.map[:8] = (7).to_bytes(8, "little")
    for name, after in zip(names, (9, 11) if posts and grants else (7, 7), strict=True):
        where = {"remote_addr": there.addr, "rkey": there.rkey}
        arg = {"arg0": 7, "arg1": 9} if "SWP" in name else {"arg0": 2}
        wr = a.qp.wr(name, a.buffer, 0, 8, **where, **arg)
        if posts and grants:
            a.file.submit([wr])
            r.equal(f"{name}: it completes", a.cq.wait(1)[0].status, 0)
        elif not posts:
            r.equal(f"{name} is refused", error_of(a.file.submit, [wr]), "EOPNOTSUPP")
        r.equal(f"{name}: the word", int.from_bytes(b.buffer.map[:8], "little"), after)


def test_srq(r):
    """A shared receive queue, where the driver says when a queue pair has left it."""
    tells = personality() in ("mlx4", "mlx5", "bnxt", "hns", "opa")
    a, b = End("h1", "hca1"), End("h2", "hca2")
    if not tells:
        r.equal("a shared receive queue is refused", error_of(Srq, b.file, b.pd, b.cq), "EOPNOTSUPP")
        return
    srq = Srq(b.file, b.pd, b.cq)
    b.qp = Qp(b.file, b.pd, b.cq, srq=srq.handle)
    b.psn = b.qp.num
    a.connect(b)
    b.connect(a)
    b.file.submit([srq.recv(b.buffer, 0, 64, user_data=9)])
    a.file.submit([a.qp.wr("SEND", a.buffer, 0, 8)])
    done = b.cq.wait(1)[0]
    r.equal("a message arrives in a shared receive queue", (done.status, done.user_data, done.byte_len), (0, 9, 8))
    r.equal("its queue pair is destroyed", error_of(b.file.destroy, b.qp.handle), "none")
    # The driver says nothing of it; 16-hca-rules looks for a complaint of that.
    unused = Qp(b.file, b.pd, b.cq, srq=srq.handle)
    unused.modify("STATE PKEY_INDEX PORT ACCESS_FLAGS", qp_state=N["QPS_INIT"], port_num=b.file.port)
    unused.modify("STATE", qp_state=N["QPS_ERR"])
    r.equal("one that failed in INIT is destroyed", error_of(b.file.destroy, unused.handle), "none")
    r.equal("and the queue", error_of(b.file.destroy, srq.handle), "none")


def test_interrupts(r):
    """An interrupt is late, and one is lost: the next one brings both completions."""
    a, b = two()
    adapter(interrupt_ms=100)
    a.file.submit([a.write(b, 8, user_data=1)])
    r.equal("a late interrupt completes the request", [c.user_data for c in a.cq.wait(1)], [1])
    adapter(interrupt_ms=0, lose_interrupt=1)
    a.file.submit([a.write(b, 8, user_data=2)])
    r.equal("an interrupt is lost", error_of(a.cq.wait, 1, 0.05), "ETIME")
    r.equal("and so is its completion", [c.user_data for c in a.cq.reap()], [])
    a.file.submit([a.write(b, 8, user_data=3)])
    r.equal("the next one brings both", [(c.user_data, c.status) for c in a.cq.wait(2)], [(2, 0), (3, 0)])


def test_undrained(r):
    """A queue pair that the driver does not move to ERR, while a worker handles its completions."""
    for delivery in ("WORKQUEUE", "SOFTIRQ", "CALLER"):
        a, b = two()
        a.cq = ulp.Cq(a.file, 256, N["DELIVER_" + delivery])
        a.qp = Qp(a.file, a.pd, a.cq)
        a.psn = a.qp.num
        a.connect(b)
        b.qp.modify("STATE", qp_state=N["QPS_RESET"])
        b.connect(a)
        adapter(poll_ms=500)
        wrs = [a.qp.wr("RECV", a.buffer, 0, 8, user_data=8)] + [a.write(b, 8, user_data=n) for n in range(8)]
        a.file.submit(wrs)
        adapter(fail_name="modify_qp", fail_command=1)
        r.equal(f"{delivery}: it is destroyed all the same", error_of(a.file.destroy, a.qp.handle), "none")
        r.equal(f"{delivery}: each request completes once", sorted(c.user_data for c in a.cq.wait(9)), list(range(9)))
        adapter(poll_ms=0, fail_name="")
        with open("/sys/module/ulp_hca/parameters/fail_command") as f:
            r.equal(f"{delivery}: the driver was asked, and refused", f.read().strip(), "0")
        a.close()
        b.close()


def test_worker(r):
    """An adapter fails while a worker handles datagrams: their queue pair waits for it, though it is not drained."""
    a, b = End("h1", "hca1", kind="UD"), End("h2", "hca2", kind="UD")
    for end in (a, b):
        end.qp.start(17)
    ah = a.file.ah(a.pd, b.file.gid().gid).handle
    adapter(poll_ms=1000)
    wrs = [a.qp.datagram(ah, b.qp.num, 17, a.buffer, 0, 8, user_data=n) for n in range(8)]
    a.file.submit(wrs)
    adapter(internal_error=1)
    r.equal("a request is refused", error_of(a.file.submit, wrs[:1]), "EIO")
    r.equal("the queue pair is destroyed", error_of(a.file.destroy, a.qp.handle), "none")
    # All that was polled has been handled.
    r.equal("each request has completed once", sorted(c.user_data for c in a.cq.reap()), list(range(8)))
    adapter(poll_ms=0)


def test_late(r):
    """A queue pair completes a receive of its shared queue while it is destroyed: that receive is its own.

    The driver does not take the completion away. Freed memory is overwritten, so that a handler that reads the
    queue pair then fails; the next one may have the same address.
    """
    rounds = 8
    for delivery in ("WORKQUEUE", "SOFTIRQ", "CALLER"):
        end = End("h1", "hca1")
        end.cq = ulp.Cq(end.file, 256, N["DELIVER_" + delivery])
        srq = Srq(end.file, end.pd, end.cq)
        end.file.submit([srq.recv(end.buffer, 64 * n, 64, user_data=n) for n in range(rounds + 1)])
        adapter(late_receive=1)
        seen, handles = [], []
        for _ in range(rounds):
            qp = Qp(end.file, end.pd, end.cq, srq=srq.handle)
            qp.connect(qp.num, end.file.gid().gid, 0, 0)
            end.file.destroy(qp.handle)
            handles.append(qp.handle)
            # There when DESTROY has returned: nobody waits.
            seen += [(c.user_data, c.status, c.qp) for c in end.cq.reap()]
        adapter(late_receive=0)
        each = [(n, 5, h) for n, h in enumerate(handles)]
        r.equal(f"{delivery}: each receive completes once, of its own queue pair", seen, each)
        r.equal(f"{delivery}: the last one stays", srq.query().recvs_in_flight, 1)
        end.file.destroy(srq.handle)
        left = [(c.user_data, c.status, c.qp) for c in end.cq.reap()]
        r.equal(f"{delivery}: and ends with its queue", left, [(rounds, 5, srq.handle)])
        end.close()


def test_dereg(r):
    """A region that the driver does not deregister: its memory is never used again."""
    a, b = two()
    adapter(fail_name="dereg_mr", fail_command=1)
    r.equal("a grant is revoked", error_of(b.file.destroy, b.grant.handle), "none")
    a.file.submit([a.write(b, 8)])
    r.equal("its key lets nothing in", a.cq.wait(1)[0].status, REFUSED)
    a.close()
    b.close()
    adapter(fail_name="")


def test_unrevoked(r):
    """A key that the driver neither deregisters nor invalidates: revoking it fails, and may be tried again."""
    a, b = two()

    def refused(function, *args, **kwargs):
        adapter(fail_name="dereg_mr", fail_command=1)
        said = error_of(function, *args, **kwargs)
        with open("/sys/module/ulp_hca/parameters/fail_command") as f:
            return said, f.read().strip()

    def write(grant, rkey):
        data = pattern(rkey & 63, 8)
        a.buffer.map[:8], b.buffer.map[:8] = data, bytes(8)
        a.file.submit([a.qp.wr("RDMA_WRITE", a.buffer, 0, 8, remote_addr=grant.addr, rkey=rkey)])
        return a.cq.wait(1)[0].status, b.buffer.map[:8] == data

    def query(grant):
        got = b.file.call("GRANT_QUERY", grant=grant.handle)
        return got.state, got.rkey

    grant = b.file.grant(b.buffer, ALL)
    active = N["GRANT_ACTIVE"], grant.rkey
    r.equal("DESTROY of a grant that the driver does not revoke", refused(b.file.destroy, grant.handle), ("EIO", "0"))
    r.equal("... the grant stays", query(grant), active)
    r.equal("... and its key works", write(grant, grant.rkey), (0, True))
    bound = b.file.call("GRANT_CREATE", buffer=b.buffer.handle, access=ALL, length=64, qp=Qp(b.file, b.pd, b.cq).handle)
    other = query(bound)
    b.file.events()
    said = refused(b.file.destroy, b.file.call("GRANT_QUERY", grant=bound.handle).qp)
    r.equal("DESTROY of a queue pair whose grant the driver does not revoke", said[0], "none")
    with open("/sys/module/ulp_hca/parameters/fail_command") as f:
        asked = ulp.until(lambda: f.seek(0) or f.read().strip() == "0")
    r.check("... the driver is asked for it", asked)
    r.equal("... the grant stays active", query(bound), other)
    r.equal("... and its key works", write(bound, bound.rkey), (0, True))
    ended = [event for event, handle, *_ in b.file.events() if handle == bound.handle]
    r.equal("... no event says that it has ended", ended, [])
    adapter(fail_command=0, fail_name="")
    for name, one in (("bound", bound), ("other", grant)):
        r.equal(f"DESTROY of the {name} grant when the driver works", error_of(b.file.destroy, one.handle), "none")
    r.equal("... its key lets nothing in", write(grant, grant.rkey), (REFUSED, False))
    a.close()
    b.close()


def test_leaked(r):
    """A dma-buf that the driver does not give up is leaked. The removal of the device does not wait for it."""
    b = End("h2", "hca2")
    with open("/dev/dma_heap/system", "rb") as heap:
        got = fcntl.ioctl(heap, 0xC0184800, struct.pack("QIIQ", MIB, 0, os.O_RDWR | os.O_CLOEXEC, 0))
    fd = struct.unpack("QIIQ", got)[1]
    buffer = b.file.call("BUFFER_IMPORT", pd=b.pd, fd=fd)
    os.close(fd)
    grant = b.file.grant(buffer, ALL)
    adapter(fail_name="dereg_mr", fail_command=1)
    r.equal(
        "DESTROY of a grant whose region the driver does not deregister", error_of(b.file.destroy, grant.handle), "none"
    )
    adapter(fail_name="")
    b.close()

    def unplug():
        with open("/sys/class/infiniband/hca2/device/remove", "w") as f:
            f.write("1")

    r.equal("the removal of the device ends", ended(in_background(unplug)), None)


def test_flushed(r):
    """Registrations that are flushed: three are repeated, the fourth is reported."""
    a, b = two()
    for times, want in ((1, "none"), (3, "none"), (4, "EIO"), (6, "EIO")):
        adapter(flush_register=times)
        said = error_of(b.file.grant, b.buffer)
        with open("/sys/module/ulp_hca/parameters/flush_register") as f:
            left = int(f.read())
        r.equal(f"a grant whose registration is flushed {times} times", (said, left), (want, max(0, times - 4)))
    adapter(flush_register=0)
    grant = b.file.grant(b.buffer)
    a.buffer.map[:8] = pattern(3, 8)
    a.file.submit([a.qp.wr("RDMA_WRITE", a.buffer, 0, 8, remote_addr=grant.addr, rkey=grant.rkey)])
    r.equal("after that a grant works", (a.cq.wait(1)[0].status, b.buffer.map[:8]), (0, pattern(3, 8)))


def test_undestroyed(r):
    """A queue pair that the driver does not destroy is leaked, with what it uses."""
    a, b = two()
    a.file.submit([a.write(b, 8)])
    a.cq.wait(1)
    memory = ulp.Buffer(a.file, a.pd, PAGE)
    a.file.submit([a.qp.wr("RECV", memory, 0, 8, user_data=9)])
    adapter(fail_name="destroy_qp", fail_command=1)
    r.equal("a queue pair is destroyed", error_of(a.file.destroy, a.qp.handle), "none")
    adapter(fail_name="")
    r.equal("... its receive is flushed", [(c.user_data, c.status) for c in a.cq.reap()], [(9, 5)])
    r.equal("... its memory", error_of(a.file.destroy, memory.handle), "none")
    r.equal("... its completion queue", error_of(a.file.destroy, a.cq.handle), "none")
    a.qp = Qp(a.file, a.pd, ulp.Cq(a.file, 256))
    a.cq = a.qp.cq
    b.qp.modify("STATE", qp_state=N["QPS_RESET"])
    a.connect(b)
    b.connect(a)
    a.file.submit([a.write(b, 8)])
    r.equal("... and others work", a.cq.wait(1)[0].status, 0)
    a.close()
    b.close()


def test_silent(r):
    """An adapter in an internal error raises no events: all shared receive queues together wait once for one."""
    seconds = []
    for count in (1, 4):
        b = End("h2", "hca2") if count == 1 else End("h1", "hca1")
        srqs = [Srq(b.file, b.pd, b.cq).handle for _ in range(count)]
        for qp in [Qp(b.file, b.pd, b.cq, srq=srq) for srq in srqs for _ in range(2)]:
            qp.connect(qp.num, b.file.gid().gid, 0, 0)
        adapter(internal_error=2 if count == 1 else 1)
        begin = time.monotonic()
        b.close()
        seconds.append(time.monotonic() - begin)
    r.check("four queues wait as long as one", seconds[1] < 2 * seconds[0], seconds)


def test_refused(r):
    """The adapter refuses the second request of each list: the queue still signals one in half a queue."""
    a, b = two(depth=12)
    wrs = [a.write(b, 8, remote_offset=8 * n, flags=0) for n in range(2)]

    def post():
        """Posts a list when there is room, which only completions make."""
        deadline = time.monotonic() + 20 * ulp.PATIENCE
        while True:
            adapter(refuse_send=2)
            why = error_of(a.file.submit, wrs)
            if why != "EAGAIN" or time.monotonic() > deadline:
                return why

    a.buffer.map[:8] = pattern(9, 8)
    other = next((why for _ in range(100) if (why := post()) != "ENOMEM"), "none")
    r.equal("a hundred lists through a queue of 12, none refused for another reason", other, "none")
    adapter(refuse_send=0)
    a.file.submit([a.write(b, 8, user_data=77)])
    r.equal("a signalled write makes the only completion", [c.user_data for c in a.cq.wait(1)], [77])
    r.equal("the first of each list has written, the second not", b.buffer.map[:16], pattern(9, 8) + bytes(8))


def sleeps_in(task):
    """The kernel's function that a task sleeps in; "0" of one that runs.

    Nobody may read the `stat` of a process that is being killed: do_task_stat() of fs/proc/array.c holds its memory
    for a moment, and can be the one who lets go of that last. Then the reader closes the files that it maps, and
    waits for their queues itself.
    """
    with open(f"/proc/{task}/wchan") as f:
        return f.read()


def test_stopped(r):
    """An adapter stops: what waits for it holds nobody else, and ends when its driver flushes."""
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        end = End("h2", "hca2")
        end.connect(end)
        end.file.submit([end.qp.wr("RECV", end.buffer, 0, 8)])
        os.write(tell, b"!")
        signal.pause()
    os.read(ready, 1)
    a, b = two()
    with open("/proc/sys/kernel/hung_task_timeout_secs", "r+") as f:
        warns = f.read()
        f.write("0")
    adapter(stop="Y")
    grant = in_background(b.file.grant, b.buffer)
    # A thread of this process.
    waiting = f"self/task/{grant.native_id}"
    r.check("a registration waits", ulp.until(lambda: "rust_ulp" in sleeps_in(waiting)), sleeps_in(waiting))
    os.kill(child, signal.SIGKILL)
    r.check(
        "the end of a process waits for its queues", ulp.until(lambda: "drain" in sleeps_in(child)), sleeps_in(child)
    )

    def described():
        with open(f"/proc/self/fdinfo/{b.file.fd}") as f:
            return "rust_ulp-qp" in f.read()

    r.equal("the file of the registration is described", ended(in_background(described)), True)
    others = (
        b.file.pd,
        lambda: ulp.Cq(b.file, 16),
        lambda: b.file.call("QP_QUERY", qp=b.qp.handle),
        lambda: b.file.destroy(b.qp.handle),
    )
    results = [ended(in_background(other)) for other in others]
    r.equal("its other commands go on", [x for x in results if isinstance(x, str)], [])

    def unplug():
        with open("/sys/class/infiniband/hca2/device/remove", "w") as f:
            f.write("1")

    removal = in_background(unplug)
    gone = ulp.until(lambda: removal.result != "not ended" or error_of(b.file.call, "DEVICE_QUERY") == "ENODEV")
    r.check("the removal of the device has begun", gone)
    r.equal("... and waits", removal.result, "not ended")
    adapter(internal_error=2)
    r.equal("the driver flushes: the registration fails", ended(grant), "EIO")
    r.equal("... and the process ends", os.waitpid(child, 0), (child, signal.SIGKILL))
    r.equal("... and the removal", ended(removal), None)
    adapter(stop="N")
    with open("/proc/sys/kernel/hung_task_timeout_secs", "w") as f:
        f.write(warns)
    a.close()
    b.close()


def test_connect(r):
    """The connection manager, by MADs over queue pair 1."""
    # On each host the device that is there.
    connect.End = lambda host, device="", **more: End(host, **more)
    f = ulp.File("h1", "")
    most = f.call("DEVICE_QUERY").max_qp_rd_atom
    f.close()
    for name in ("responder_resources", "initiator_depth"):
        connect.PARAM[name] = min(connect.PARAM[name], most)
    connect.test_write(r)


siw.WHERE = {"h1": ("hca1", "10.9.0.1"), "h2": ("hca2", "10.9.0.2")}


def over(end, conn):
    """Whether the end learns that its connection has ended, which leaves its queue pair in ERR."""
    state = N["CONN_DISCONNECTED"]
    return ulp.until(lambda: siw.query(end.file, conn).state == state, 20) and siw.qp_state(end) == N["QPS_ERR"]


def test_iwarp(r):
    """What iWARP has: sends and writes on a connection of the connection manager; and what it lacks."""
    server, c, got, request, accepted = siw.meet(initiator_depth=3, responder_resources=2)
    s = server.end
    r.equal("the request has the private data", bytes(request.private_data[: request.private_len]), siw.granted(c))
    r.equal("... and the answer", bytes(got.peer_private_data[: got.peer_private_len]), siw.granted(s))
    r.equal("both queue pairs are in RTS", (siw.qp_state(c), siw.qp_state(s)), (N["QPS_RTS"],) * 2)
    agreed = [(x.agreed.initiator_depth, x.agreed.responder_resources) for x in (got, accepted)]
    r.equal("reads as both asked", agreed, [(3, 2), (2, 3)])
    query = c.file.call("DEVICE_QUERY")
    works = 1 << N["WR_SEND"] | 1 << N["WR_RDMA_WRITE"]
    r.equal("the operations", (query.rc_send_ops, query.uc_send_ops, query.ud_send_ops), (works, 0, 0))
    for a, b, host in ((c, s, "h2"), (s, c, "h1")):
        # The message behind 4,080 bytes crosses the end of a page, which siw alone cannot send.
        for length in (1, 64, 4080, 4096, 16384):
            data, message = pattern(length, length), pattern(length + 1, 30)
            a.buffer.map[: length + 30] = data + message
            b.buffer.map[:32768] = bytes([FILL]) * 32768
            b.file.submit([b.qp.wr("RECV", b.buffer, 32768, 128, user_data=length)])
            write, send = a.write(b, length, remote_offset=5), a.qp.wr("SEND", a.buffer, length, 30)
            r.equal(f"{host}: a write of {length} bytes, and a send", siw.run(a, write, send), [0, 0])
            done = b.cq.wait(1)[0]
            r.equal("... which arrives", (done.status, done.user_data, done.byte_len), (0, length, 30))
            r.equal("... with its content", b.buffer.map[32768:32798], message)
            landed = bytes([FILL]) * 5 + data + bytes([FILL]) * (32763 - length)
            r.equal("... after the write has landed, and no byte beside", b.buffer.map[:32768], landed)
    s.file.submit([s.qp.wr("RECV")])
    empty = c.qp.wr("SEND", flags=N["SEND_INLINE"] | N["SEND_SIGNALED"])
    r.equal("an inline message without data", (siw.run(c, empty), s.cq.wait(1)[0].byte_len), ([0], 0))
    there = {"remote_addr": s.grant.addr, "rkey": s.grant.rkey}
    for op in ("RDMA_READ", "ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD", "RDMA_WRITE_WITH_IMM", "SEND_WITH_IMM"):
        wr = c.qp.wr(op, c.buffer, 0, 8, **there if op != "SEND_WITH_IMM" else {})
        r.equal(f"{op} is refused", error_of(c.file.submit, [wr]), "EOPNOTSUPP")
    for kind in ("UC", "UD"):
        r.equal(f"a queue pair of type {kind} is refused", error_of(Qp, c.file, c.pd, c.cq, kind=kind), "EOPNOTSUPP")
    r.equal("a shared receive queue is refused", error_of(Srq, c.file, c.pd, c.cq), "EOPNOTSUPP")
    other = Qp(c.file, c.pd, c.cq)
    r.equal("only a connection leads to RTS", error_of(other.connect, s.qp.num, bytes(16), 0, 0), "EOPNOTSUPP")
    siw.close(server, c)


def test_streams(r):
    """Connections of iWARP that are refused, and how they end."""
    server, c = siw.Server(), siw.end("h2")
    thread = siw.asks(server, c)
    siw.reject(server.end.file, server.request().handle, b"no room")
    r.equal("CONNECT that is rejected", (thread.name(), thread.error.data), ("ECONNREFUSED", b"no room"))
    thread = siw.asks(server, siw.end("h2"))
    r.check("a request waits", server.request().handle)
    siw.on("h1", server.end.file.destroy, server.listener)
    siw.close(server)
    r.equal("CONNECT whose listener goes", thread.name(), "ECONNREFUSED")
    thread = siw.asks(server, siw.end("h2"))
    r.equal("CONNECT where nobody listens", (thread.name(), thread.error.data), ("ECONNREFUSED", b""))

    def meet():
        server, c, got, request, _accepted = siw.meet()
        for end in (c, server.end):
            end.file.submit([end.qp.wr("RECV", end.buffer, 8192, 64, user_data=9)])
        return server, c, got.handle, request.handle

    def ends(name, server, c, conn, request, sent=()):
        r.equal(name, (over(c, conn), over(server.end, request)), (True, True))
        for host, end, more in (("h2", c, sent), ("h1", server.end, ())):
            done = sorted((x.user_data, x.status) for x in end.cq.wait(1 + len(more)))
            r.equal(f"... {host}: what completes", done, [*more, (9, siw.FLUSHED)])
        siw.close(server, c)

    server, c, conn, request = meet()
    server.end.file.call("DISCONNECT", conn=request)
    ends("DISCONNECT ends the connection", server, c, conn, request)

    server, c, conn, request = meet()
    s = server.end
    siw.on("h1", s.file.destroy, s.grant.handle)
    s.buffer.map[:64] = bytes(64)
    c.buffer.map[:64] = pattern(1, 64)
    # The stream has taken it when the peer refuses it.
    c.file.submit([c.write(s, 64, user_data=1)])
    r.check("a write by a key that is gone ends the connection", over(s, request))
    r.equal("... and does not land", s.buffer.map[:64], bytes(64))
    ends("... at both ends", server, c, conn, request, [(1, 0)])

    server, c, conn, request = meet()
    c.file.submit([c.qp.wr("SEND", c.buffer, 0, 65, user_data=1)])
    r.equal("a send that is too long ends the connection", (over(c, conn), over(server.end, request)), (True, True))
    r.equal("... its receive fails", [(x.user_data, x.status) for x in server.end.cq.wait(1)], [(9, TOO_LONG)])
    siw.close(server, c)

    server, c, conn, request = meet()
    c.file.submit([c.qp.wr("SEND", c.buffer, 0, 8, user_data=n) for n in (1, 2, 3)])
    r.equal("sends without a receive end the connection", (over(c, conn), over(server.end, request)), (True, True))
    r.equal("... after the one that has a receive", [(x.user_data, x.status) for x in server.end.cq.wait(1)], [(9, 0)])
    done = sorted((x.user_data, x.status) for x in c.cq.wait(4))
    r.equal("... what completes", done, [(1, 0), (2, 0), (3, siw.FLUSHED), (9, siw.FLUSHED)])
    siw.close(server, c)


def test_streamless(r):
    """Commands that fail while a domain connects with itself, and with a peer."""
    f = ulp.File("h1", "hca1")
    for command in ("listen", "connect", "accept", "modify_qp"):
        adapter(fail_name=command, fail_command=1)
        r.equal(f"the first memory, when {command} fails", error_of(siw.on, "h1", siw.create, f, f.pd()), "EIO")
    adapter(fail_name="")
    r.equal("then there is memory", error_of(siw.on, "h1", siw.create, f, f.pd()), "none")
    f.close()
    server, c = siw.Server(), siw.end("h2")
    adapter(fail_name="connect", fail_command=1)
    r.equal("CONNECT, when the adapter refuses it", siw.asks(server, c).name(), "EIO")
    c = siw.end("h2")
    adapter(fail_name="accept", fail_command=1)
    thread = siw.asks(server, c)
    accepted = error_of(siw.accept, server.end, server.request().handle, b"", siw.SECONDS)
    r.equal("ACCEPT, when the adapter refuses it", accepted, "EIO")
    r.equal("... and CONNECT of the peer", thread.name(), "ECONNREFUSED")
    adapter(fail_name="listen", fail_command=1)
    r.equal("LISTEN, when the adapter refuses it", error_of(siw.on, "h1", siw.listen, server.end.file), "EIO")
    adapter(fail_name="")
    siw.close(server)


def test_unplugged(r):
    """An adapter of iWARP goes, with a connection, a request that waits, and one that nobody has answered."""
    server, c, _got, request, _accepted = siw.meet()
    s = server.end
    s.file.submit([s.qp.wr("RECV", s.buffer, 0, 8)])
    asking = siw.end("h2")
    unanswered = siw.asks(server, asking)
    r.check("a request waits", server.request().handle)
    with open("/sys/class/infiniband/hca2/device/remove", "w") as f:
        f.write("1")
    r.equal("the request ends", unanswered.name(), "ENODEV")
    r.equal("every call of its file fails", error_of(c.file.call, "DEVICE_QUERY"), "ENODEV")
    r.check("the peer's connection has ended", over(s, request.handle))
    r.equal("... its receive is flushed", [x.status for x in s.cq.wait(1)], [siw.FLUSHED])
    r.equal("the other adapter goes on", error_of(siw.on, "h1", siw.create, s.file, s.file.pd()), "none")
    siw.close(server, c, asking)


ulp.main(__doc__, globals())
