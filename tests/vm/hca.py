#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""The module on an adapter that does DMA behind an IOMMU: tests/hca.

    hca.py pages|pinned|directions|lists|frames|peer|ops|inline|reset|atomics|query|reads|events|reused|most|landing|
        connect|unusable|srq|interrupts|contexts|delayed|undrained|worker|late|halfway|dereg|unrevoked|hidden|kept|
        leaked|flushed|sqe|unanswered|undestroyed|silent|refused|stopped

Expects the module and two hosts with such adapters. Prints KTAP.
"""

import errno
import fcntl
import json
import mmap
import os
import re
import select
import signal
import struct
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import connect
import tracing
import ulp
from lifetime import ended, in_background, ours
from memory import bound, endings
from ops import elements
from personality import PERSONALITIES
from ulp import N, OUT, S, End, Qp, Srq, UserBuffer, adapter, error_of, pattern, remote
from uring import Batches
from verbs import ops_of

ALL = N["ACCESS_REMOTE_WRITE"] | N["ACCESS_REMOTE_READ"]
KIB, MIB = 1 << 10, 1 << 20
PAGE = 4 * KIB
FILL = 0xC3
REFUSED = 10  # IB_WC_REM_ACCESS_ERR
NOT_THERE = 11  # IB_WC_REM_OP_ERR


def adapter_says(name):
    """The value of a parameter of the adapter."""
    with open(f"/sys/module/ulp_hca/parameters/{name}") as f:
        return f.read().strip()


def personality():
    """The driver whose rules the adapter has."""
    return adapter_says("personality")


def has():
    """What the adapter has, by the table."""
    return PERSONALITIES[personality()]


def two(**more):
    """Two connected ends: on InfiniBand each host sees both devices."""
    a, b = End("h1", "hca1", **more), End("h2", "hca2", **more)
    a.meet(b)
    return a, b


def through(r, name, a, b, grant, memory, offset, length):
    """A write by `grant` fills `length` bytes at `offset` of `memory` and no byte beside; a read returns them."""
    data = pattern(offset + length, length)
    a.buffer.map[:length] = data
    memory[:] = bytes([FILL]) * len(memory)
    where = remote(grant)
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
        if page_size > PAGE and has().key is not None:
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
            asked = b.file.call("GRANT_QUERY", grant=grant.handle)
            r.equal(f"{name}: GRANT_QUERY tells its address", asked.addr, grant.addr)
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
        b.file.submit([b.qp.wr("RDMA_READ", buffer, 0, 64, **remote(a.grant))])
        r.equal("... and as a request's own memory", b.cq.wait(1)[0].status, 0)
        r.equal("... the right bytes", memory[at : at + 64], pattern(at, 64))
        b.file.destroy(buffer.handle)


def exported(length=0, kind=0):
    """A dma-buf of the lab's adapter, which says that it has `length` bytes; of kind 1, pages that only a pin keeps."""
    try:
        with open("/dev/ulp_dmabuf") as exporter:
            return fcntl.ioctl(exporter, kind, length)
    except FileNotFoundError:
        if not os.uname().release.endswith("-debug"):
            raise
        raise ulp.Missing(0, "the debug kernel maps no such memory") from None


def test_frames(r):
    """A dma-buf of memory without struct pages, imported for a driver that copies by the CPU."""
    fd = exported()
    ulp.shell("ip netns exec h1 rdma link add rxe1 type rxe netdev w1")
    f = ulp.File("h1", "rxe1")
    for flags in (0, N["BUFFER_READ_ONLY"]):
        said = error_of(f.call, "BUFFER_IMPORT", pd=f.pd(), fd=fd, flags=flags)
        r.equal(f"BUFFER_IMPORT with flags {flags} of memory without struct pages", said, "EOPNOTSUPP")
    os.close(fd)
    most = f.call("QUERY").max_buffer
    for length, want in ((most, "EOPNOTSUPP"), (most + PAGE, "ERANGE")):
        fd = exported(length)
        said = error_of(f.call, "BUFFER_IMPORT", pd=f.pd(), fd=fd)
        r.equal(f"BUFFER_IMPORT of {length:#x} such bytes, the limit is {most:#x}", said, want)
        os.close(fd)
    r.equal("... nothing of them is pinned", adapter_says("pinned"), "0")
    fd = exported(kind=1)
    pd = f.pd()
    buffer = f.call("BUFFER_IMPORT", pd=pd, fd=fd)
    os.close(fd)
    r.equal("BUFFER_IMPORT of memory that may move: it is pinned", adapter_says("pinned"), "1")
    f.destroy(buffer.handle)
    r.equal("... until it is destroyed", adapter_says("pinned"), "0")
    f.close()
    ulp.shell("rdma link del rxe1")


def test_peer(r):
    """A dma-buf of memory without struct pages, which an adapter reaches by its addresses on the bus."""
    fd = exported()
    a, b = two(max_inline=min(8, ulp.HERE.inline))
    buffer = b.file.call("BUFFER_IMPORT", pd=b.pd, fd=fd)
    os.close(fd)
    r.equal("BUFFER_IMPORT of two pages on the bus: one key", buffer.keys, 1)
    grant = b.file.grant(buffer, ALL, length=2 * PAGE)
    where = remote(grant, PAGE - 32)
    a.buffer.map[:64] = data = pattern(7, 64)
    done = []
    for name in ("RDMA_WRITE", "RDMA_READ"):
        a.file.submit([a.qp.wr(name, a.buffer, 0, 64, **where)])
        done.append(a.cq.wait(1)[0].status)
        a.buffer.map[:64] = bytes(64) if name == "RDMA_WRITE" else a.buffer.map[:64]
    r.equal("a write across both, and a read of it", (done, a.buffer.map[:64]), ([0, 0], data))
    if ulp.HERE.inline:
        # The processor does not reach such memory.
        inline = b.qp.wr("SEND", buffer, 0, 8, flags=N["SEND_INLINE"])
        r.equal("inline data of it", error_of(b.file.submit, [inline]), "EOPNOTSUPP")
    a.close()
    b.close()


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
LISTS = {"pvrdma": 128, "qedr": 8192, "strict": 16}


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
        a.file.submit([a.qp.wr("RDMA_WRITE", a.buffer, 0, 64, **remote(grant, at))])
        r.equal(f"a write to page {page} lands there", (a.cq.wait(1)[0].status, buffer.map[at : at + 64]), (0, data))
    beyond = a.qp.wr("RDMA_WRITE", a.buffer, 0, 64, **remote(grant, most * PAGE))
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
    flags = a.file.call("QP_QUERY", qp=a.qp.handle).attr.access_flags
    r.equal("QP_QUERY: the rights of peers, and none that the driver adds", flags, ALL)
    b.file.destroy(b.grant.handle)
    b.buffer.map[:8] = bytes(8)
    a.file.submit([a.write(b, 8)])
    r.equal("a key that was revoked lets nothing in", a.cq.wait(1)[0].status, REFUSED)
    r.equal("... not a byte", b.buffer.map[:8], bytes(8))
    read_only = UserBuffer(a.file, a.pd, mmap.mmap(-1, PAGE), flags=N["BUFFER_READ_ONLY"])
    for name in ("RECV", "RDMA_READ"):
        where = {} if name == "RECV" else remote(b.grant)
        said = error_of(a.file.submit, [a.qp.wr(name, read_only, 0, 8, **where)])
        r.equal(f"{name} into READ_ONLY memory is refused", said, "EACCES")
    if personality() == "strict":
        return  # no driver has its rules, so that the module does not know them
    device = a.file.call("DEVICE_QUERY")
    types = {kind for kind in ("RC", "UC", "UD") if getattr(device, kind.lower() + "_send_ops")}
    made = {kind for kind in ("RC", "UC", "UD") if error_of(Qp, a.file, a.pd, a.cq, kind=kind) == "none"}
    r.equal("DEVICE_QUERY: the types of queue pair that the device has", types, {*has().kinds})
    r.equal("... these can be made, and no other", made, types)


def test_inline(r):
    """Inline data where the driver copies them. Others say so when they create a queue pair, or not at all."""
    a = End("h1", "hca1")
    for kind in has().kinds:
        said = {size: error_of(Qp, a.file, a.pd, a.cq, 32, kind=kind, max_inline=size) for size in (0, 1, 64)}
        # hw/hns/hns_roce_hw_v2.c:set_ud_wqe
        takes = has().inline and (personality(), kind) != ("hns", "UD")
        some = "none" if takes else "EINVAL"
        r.equal(f"{kind}: QP_CREATE for so many bytes of inline data", said, {0: "none", 1: some, 64: some})


def test_reset(r):
    """A queue pair that was not used goes back to RESET where the driver has a way, and registrations go on without."""
    a, b = two()
    can = has().resets  # hw/irdma/verbs.c:irdma_modify_qp_roce

    def state():
        return a.file.call("QP_QUERY", qp=a.qp.handle).attr.qp_state

    said = error_of(a.qp.modify, "STATE", qp_state=N["QPS_RESET"])
    want = ("none", N["QPS_RESET"]) if can else ("EOPNOTSUPP", N["QPS_RTS"])
    r.equal("a change to RESET", (said, state()), want)
    if can:
        b.qp.modify("STATE", qp_state=N["QPS_RESET"])
        a.meet(b)
    a.buffer.map[:8] = pattern(4, 8)
    a.file.submit([a.write(b, 8)])
    r.equal("after that it works", (a.cq.wait(1)[0].status, b.buffer.map[:8]), (0, pattern(4, 8)))
    adapter(flush_register=1)
    r.equal("a grant whose registration is flushed", error_of(b.file.grant, b.buffer), "none")
    others = [error_of(b.file.destroy, b.file.grant(b.buffer).handle) for _ in range(2)]
    r.equal("other grants, and their end", others, ["none"] * 2)
    a.file.submit([a.write(b, 8)])
    r.equal("the first one still holds", a.cq.wait(1)[0].status, 0)


def test_atomics(r):
    """Atomics where the driver posts them, and grants for them where its REG_MR gives that right."""
    a, b = two()
    posts, grants = has().posts_atomics, has().grants_atomics
    names = ("ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD")
    ops = a.file.call("DEVICE_QUERY").rc_send_ops
    r.equal("DEVICE_QUERY: rc_send_ops has atomics", [ops >> N["WR_" + n] & 1 for n in names], [posts] * 2)
    cap = N["ATOMIC_NONE" if personality() in ("bnxt", "strict") else "ATOMIC_HCA"]
    r.equal("DEVICE_QUERY: atomic_cap is what the driver says", a.file.call("DEVICE_QUERY").atomic_cap, cap)
    said = error_of(b.file.grant, b.buffer, ALL | N["ACCESS_REMOTE_ATOMIC"])
    r.equal("GRANT_CREATE with REMOTE_ATOMIC", said, "none" if grants else "EOPNOTSUPP")
    b.qp.modify("ACCESS_FLAGS", access_flags=ALL | N["ACCESS_REMOTE_ATOMIC"])
    there = b.file.grant(b.buffer, ALL | N["ACCESS_REMOTE_ATOMIC"] if grants else ALL)
    b.buffer.map[:8] = (7).to_bytes(8, "little")
    for name, after in zip(names, (9, 11) if posts and grants else (7, 7), strict=True):
        where = remote(there)
        wr = a.qp.wr(name, a.buffer, 0, 8, atomic=(7, 9) if "SWP" in name else (2,), **where)
        if posts and grants:
            a.file.submit([wr])
            r.equal(f"{name}: it completes", a.cq.wait(1)[0].status, 0)
            # Of the drivers, rxe_verbs.c:validate_send_wr() looks at the address; this one does not.
            odd = [a.qp.wr(name, a.buffer, 0, 8, atomic=(1,), **remote(there, n)) for n in (1, 2, 4, 7)]
            r.equal(f"{name} between words is refused", [error_of(a.file.submit, [wr]) for wr in odd], ["EINVAL"] * 4)
        elif not posts:
            r.equal(f"{name} is refused", error_of(a.file.submit, [wr]), "EOPNOTSUPP")
        r.equal(f"{name}: the word", int.from_bytes(b.buffer.map[:8], "little"), after)
    most = a.file.call("DEVICE_QUERY").max_fast_reg_pages
    if posts and most <= 512:
        wide = ulp.Buffer(a.file, a.pd, (most + 1) * PAGE, page_size=PAGE)
        for name, operands in zip(names, ((7, 9), (2,)), strict=True):
            wr = a.qp.wr(name, wide, wide.key_bytes - 4, 8, atomic=operands, **remote(there))
            r.equal(f"{name} into an element with two keys", error_of(a.file.submit, [wr]), "E2BIG")


def test_query(r):
    """What the driver reports of the device and its port, where each field has a value of its own."""
    f = ulp.File("h1", "hca1")
    got = f.call("DEVICE_QUERY")
    want = {
        "max_mr_size": 1 << 40,
        "page_size_cap": 0xFFFFF000,
        "caps": N["CAP_SRQ"] if has().srq else 0,
        "vendor_id": 0x1234,
        "vendor_part_id": 0x11E8,
        "hw_ver": 3,
        "max_qp": 1 << 17,
        "max_qp_wr": 1 << 14,
        "max_send_sge": 16,
        "max_recv_sge": 11,
        "max_sge_rd": 9,
        "max_srq_sge": 7,
        # RC_RNR_NAK_GEN, SYS_IMAGE_GUID, MEM_MGT_EXTENSIONS
        "device_cap_flags": 1 << 12 | 1 << 11 | 1 << 21,
        "max_cq": 1 << 18,
        "max_cqe": 1 << 20,
        "max_mr": 1 << 21,
        "max_pd": 1 << 16,
        "max_qp_rd_atom": 14,
        "max_qp_init_rd_atom": 10,
        "max_fast_reg_pages": 512,
        "num_comp_vectors": os.cpu_count() + 20,
        "local_ca_ack_delay": 13,
        "phys_ports": {"ib": 2}.get(personality(), 1),
        "max_srq": 1 << 15 if has().srq else 0,
        "max_srq_wr": 1 << 13,
        "atomic_cap": N["ATOMIC_HCA"],
        "ud_send_ops": ops_of("SEND", "SEND_WITH_IMM"),
    }
    want["uc_send_ops"] = want["ud_send_ops"] | ops_of("RDMA_WRITE", "RDMA_WRITE_WITH_IMM")
    of_rc = ops_of("RDMA_READ", "ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD")
    want["rc_send_ops"] = want["uc_send_ops"] | of_rc

    def compare(name, got, want, texts=()):
        """Each field is the driver's. On InfiniBand, without shared receive queues, no two are equal otherwise."""
        want_of = {n: want.get(n) for n in OUT[name.lower()] if n not in texts}
        r.equal(f"{name}: each field as the driver reports it", {n: getattr(got, n) for n in want_of}, want_of)
        values = [*want.values()]
        same = {n for n in want if values.count(want[n]) > 1} - {"caps", "max_srq"}
        if personality() == "ib":
            r.equal(f"{name}: no two fields have the same value", same, set())

    compare("DEVICE_QUERY", got, want, ("name", "fw_ver", "node_guid", "sys_image_guid"))
    guid = bytes(got.node_guid)
    said = ulp.text(got.name), ulp.text(got.fw_ver), bytes(got.sys_image_guid)
    r.equal("DEVICE_QUERY: name, firmware, GUIDs", said, ("hca1", "22.44.6", bytes(255 - b for b in guid)))
    port = f.call("PORT_QUERY", port=got.phys_ports)
    want = {"state": 4, "phys_state": 5, "max_mtu": 4096, "max_msg_sz": 1 << 30, "gid_tbl_len": 64, "pkey_tbl_len": 7}
    want |= {"active_width": 8, "active_speed": 32, "port_cap_flags": 1 << 16, "bad_pkey_cntr": 9, "qkey_viol_cntr": 10}
    if personality() == "ib":
        want |= {"lid": 0x50, "sm_lid": 0x38, "lmc": 3, "sm_sl": 6, "active_mtu": 2048, "ifindex": 0}
        want["link_layer"] = N["LINK_INFINIBAND"]
    else:
        want |= {"lid": 0, "sm_lid": 0, "lmc": 0, "sm_sl": 0, "active_mtu": 4096}
        want["ifindex"] = int(ulp.shell("ip netns exec h1 cat /sys/class/net/w1/ifindex")[1])
        want["link_layer"] = N["LINK_ETHERNET"]
    compare("PORT_QUERY", port, want)
    f.close()


def test_reads(r):
    """A device that answers 16 reads at a time and has one under way, and a port with an MTU of 1024."""
    a = End("h1", "hca1")
    r.equal("PORT_QUERY: active_mtu", a.file.call("PORT_QUERY", port=1).active_mtu, 1024)
    said = []
    for reads in ((17, 1), (16, 2), (16, 1)):
        qp = Qp(a.file, a.pd, a.cq)
        said.append(error_of(qp.connect, qp.num, a.file.gid().gid, 0, 0, mtu=3, reads=reads))
    r.equal(
        "QP_MODIFY with more reads as responder, as initiator, and with the most", said, ["ERANGE", "ERANGE", "none"]
    )
    qp = Qp(a.file, a.pd, a.cq)
    said = error_of(qp.connect, qp.num, a.file.gid().gid, 0, 0, mtu=4)
    r.equal("QP_MODIFY with a path MTU of 2048 on a port whose MTU is 1024: ERANGE", said, "ERANGE")
    a.close()
    a, b = End("h1", "hca1", depth=32, max_send_sge=2), End("h2", "hca2", access=ALL)
    a.meet(b)
    b.buffer.map[:16] = data = pattern(5, 16)
    at, _keep = elements(a, (64, 8), (128, 8))
    where = remote(b.grant)
    both = {"num_sge": 2, "sge": S["sge"](offset=at)}
    asked = adapter_says("broken_rules")
    said = error_of(a.file.submit, [a.qp.wr("RDMA_READ", **both, **where)])
    r.equal("a read into two elements, of which the device takes one: E2BIG", said, "E2BIG")
    r.equal("... which the driver is not asked for", adapter_says("broken_rules"), asked)
    a.file.submit([a.qp.wr("RDMA_READ", a.buffer, 64, 16, **where)])
    r.equal("a read into one", (a.cq.wait(1)[0].status, a.buffer.map[64:80]), (0, data))
    a.file.submit([a.qp.wr("RDMA_WRITE", **both, **where)])
    got = a.cq.wait(1)[0].status, b.buffer.map[:16]
    r.equal("a write from two elements", got, (0, data[:8] + a.buffer.map[128:136]))
    a.close()
    b.close()


def test_events(r):
    """Each asynchronous event that a driver raises is read once, with its object or its port."""
    b = End("h2", "hca2")
    port = b.file.call("DEVICE_QUERY").phys_ports
    has_srq = personality() == "mlx4"
    if has_srq:
        srq = Srq(b.file, b.pd, b.cq)
        b.file.destroy(b.qp.handle)
        b.qp = Qp(b.file, b.pd, b.cq, srq=srq.handle)
    of_qp = ("COMM_EST", "SQ_DRAINED", "PATH_MIG", "PATH_MIG_ERR", "QP_REQ_ERR", "QP_ACCESS_ERR", "QP_FATAL")
    eventfd = os.eventfd(0, os.EFD_NONBLOCK)
    b.file.call("CQ_EVENTFD", cq=b.cq.handle, fd=eventfd)
    own = dict.fromkeys(of_qp, b.qp.handle) | {"CQ_ERR": b.cq.handle}
    if has_srq:
        own |= {"SRQ_ERR": srq.handle, "SRQ_LIMIT": srq.handle, "LAST_WQE_REACHED": b.qp.handle}
    # The core raises GID_CHANGE itself, and passes on none of a driver: core/cache.c:ib_cache_event_task.
    ports = ("PORT_ACTIVE", "PORT_ERR", "LID_CHANGE", "PKEY_CHANGE", "SM_CHANGE", "CLIENT_REREGISTER")
    for name in (*own, *ports, "DEVICE_FATAL"):
        number = N["EVENT_" + name]
        b.file.events()
        adapter(event=f"2 {number} {port}")
        got = []
        ulp.until(lambda got=got: got.extend(b.file.events()) or any(e[0] == number for e in got))
        got += b.file.events()
        want = (number, own.get(name, 0), port if name in ports else 0, 0)
        r.equal(f"{name}: read once", [e for e in got if e[0] == number], [want])
        if name == "CQ_ERR":
            # Nobody calls the module for that.
            said = ulp.until(lambda: b.cq.ring.flags == N["CQ_ERROR"])
            r.check("CQ_ERR: the ring says so", said)
            if said:
                select.select([eventfd], [], [], ulp.hang_ns(20) / 1e9)
                r.equal("... and its eventfd, once", os.eventfd_read(eventfd), 1)
    for name in ("QP_REQ_ERR", "QP_ACCESS_ERR", "QP_FATAL"):
        bound = b.file.call("GRANT_CREATE", buffer=b.buffer.handle, access=ALL, length=64, qp=b.qp.handle)
        b.file.events()
        adapter(event=f"2 {N['EVENT_' + name]} {port}")
        got = []
        ended = (N["EVENT_GRANT_ENDED"], bound.handle, 0, N["GRANT_EXPIRED"])
        ulp.until(lambda got=got, ended=ended: got.extend(b.file.events()) or ended in got)
        r.equal(f"{name}: the grants of the queue pair end, though it is not flushed", got.count(ended), 1)
        b.file.destroy(bound.handle)


def test_reused(r):
    """A grant that has ended, and one that has its key since: what is done to the first does not touch the second."""
    b = End("h2", "hca2")
    qp = Qp(b.file, b.pd, b.cq)

    def fail(grant):
        """Has the queue pair fail, and waits for the end of its grant; how often that was reported."""
        qp.modify("STATE PKEY_INDEX PORT ACCESS_FLAGS", qp_state=N["QPS_INIT"], port_num=b.file.port)
        b.file.events()
        qp.modify("STATE", qp_state=N["QPS_ERR"])
        got = []
        ended = (N["EVENT_GRANT_ENDED"], grant.handle, 0, N["GRANT_EXPIRED"])
        ulp.until(lambda: got.extend(b.file.events()) or ended in got)
        qp.modify("STATE", qp_state=N["QPS_RESET"])
        return got.count(ended)

    def bound():
        return b.file.call("GRANT_CREATE", buffer=b.buffer.handle, access=ALL, length=64, qp=qp.handle)

    first = bound()
    r.equal("a grant ends with its queue pair", fail(first), 1)
    second = bound()
    r.equal("the next one has its key", second.rkey, first.rkey)
    r.equal("the first one is destroyed", error_of(b.file.destroy, first.handle), "none")
    r.equal("the second one ends with the queue pair, too", fail(second), 1)
    state = b.file.call("GRANT_QUERY", grant=second.handle)
    r.equal("... and its key is gone", (state.state, state.rkey), (N["GRANT_EXPIRED"], 0))
    b.close()


def test_most(r):
    """Queues as long as the device allows: draining takes one entry."""
    f = ulp.File("h1", "hca1")
    pd, cq = f.pd(), ulp.Cq(f, 64)
    most = {"strict": 512}[personality()]
    said = [error_of(Qp, f, pd, cq, depth=depth) for depth in (most - 1, most, most + 1)]
    r.equal(f"QP_CREATE with {most - 1}, {most} and {most + 1} entries", said, ["none", "ERANGE", "ERANGE"])


def test_halfway(r):
    """A driver changes the state of a queue pair, and then says that it failed: the queue pair is in ERR."""
    a, b = End("h1", "hca1"), End("h2", "hca2")
    # QP_QUERY would look for grants that are to end.
    grant = bound(a)
    adapter(fail_halfway=3)
    r.equal("QP_MODIFY to RTS that fails halfway: ENOMEM", error_of(a.connect, b), "ENOMEM")
    r.equal("... a grant of the queue pair ends", endings(a.file, 1), [(grant.handle, N["GRANT_EXPIRED"])])
    states = [a.file.call("QP_QUERY", qp=a.qp.handle).attr.qp_state, adapter_says("fail_halfway")]
    r.equal("... the queue pair is in ERR", states, [N["QPS_ERR"], "0"])
    a.file.submit([a.qp.wr("RECV", a.buffer, 0, 8, user_data=4)])
    r.equal("... what is posted is flushed", [(c.user_data, c.status) for c in a.cq.wait(1)], [(4, 5)])
    a.qp.modify("STATE", qp_state=N["QPS_RESET"])
    a.meet(b)
    a.file.submit([a.write(b, 8)])
    r.equal("... and it works after RESET", a.cq.wait(1)[0].status, 0)

    def reset(times):
        """RESET, after which the adapter goes to ERR `times` times: what it says, and the state."""
        # The first change is the one to ERR, which drains.
        adapter(fail_halfway=times and times + 1)
        said = error_of(a.qp.modify, "STATE", qp_state=N["QPS_RESET"])
        return said, a.file.call("QP_QUERY", qp=a.qp.handle).attr.qp_state, adapter_says("fail_halfway")

    r.equal("a RESET that lasts the third time", reset(2), ("none", N["QPS_RESET"], "0"))
    a.connect(b)
    r.equal("one that does not last: EIO, and ERR", reset(3), ("EIO", N["QPS_ERR"], "0"))
    r.equal("... another one is made", reset(0), ("none", N["QPS_RESET"], "0"))
    a.connect(b)
    b.qp.modify("STATE", qp_state=N["QPS_RESET"])
    b.connect(a)
    a.file.submit([a.write(b, 8)])
    r.equal("... and it works again", a.cq.wait(1)[0].status, 0)
    grant = bound(a)
    adapter(fail_halfway=1)
    said = error_of(a.qp.modify, "STATE", qp_state=N["QPS_ERR"])
    r.equal("QP_MODIFY to ERR that fails halfway: ENOMEM", said, "ENOMEM")
    r.equal("... a grant of the queue pair ends, too", endings(a.file, 1), [(grant.handle, N["GRANT_EXPIRED"])])
    a.close()
    b.close()


def test_landing(r):
    """An adapter with relaxed ordering: a later Write is there before an earlier one, but no completion is."""
    a, b = two()
    data = pattern(5, 4096)
    a.buffer.map[:4096] = data
    b.buffer.map[:8192] = bytes(8192)
    adapter(hold_writes="Y")
    first = a.write(b, 4088, user_data=1, flags=0)
    a.file.submit([first, a.write(b, 8, offset=4088, remote_offset=4096, user_data=2)])
    there = ulp.until(lambda: b.buffer.map[4096:4104] == data[4088:])
    r.check("the later of two Writes lands", there)
    r.equal("... the last bytes of the earlier one, too", b.buffer.map[4024:4088], data[4024:4088])
    r.equal("... and not the others", b.buffer.map[:4024].count(0), 4024)
    r.equal("... nor a completion", a.cq.reap(), [])
    adapter(hold_writes="N")
    r.equal("the completion of the later one", [(c.user_data, c.status) for c in a.cq.wait(1)], [(2, 0)])
    r.equal("... covers both", b.buffer.map[:4104], data[:4088] + bytes(8) + data[4088:])


def test_srq(r):
    """A shared receive queue, where the driver says when a queue pair has left it."""
    a, b = End("h1", "hca1"), End("h2", "hca2")
    if not has().srq:
        r.equal("a shared receive queue is refused", error_of(Srq, b.file, b.pd, b.cq), "EOPNOTSUPP")
        return
    srq = Srq(b.file, b.pd, b.cq)
    b.qp = Qp(b.file, b.pd, b.cq, srq=srq.handle)
    b.psn = b.qp.num
    a.meet(b)
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
    unused = Qp(b.file, b.pd, b.cq, srq=srq.handle)
    # The second change is the one to RTR.
    adapter(fail_name="modify_qp", fail_command=2)
    failed = error_of(unused.connect, unused.num, b.file.gid().gid, 0, 0, lid=b.file.lid())
    adapter(fail_name="", fail_command=0)
    state = b.file.call("QP_QUERY", qp=unused.handle).attr.qp_state
    r.equal("one whose change to RTR fails stays in INIT", (failed, state), ("EIO", N["QPS_INIT"]))
    r.equal("... and is destroyed", error_of(b.file.destroy, unused.handle), "none")
    b.file.submit([srq.recv(b.buffer, 64 * n, 64, user_data=n) for n in range(3)])
    # Another thread is in the driver with the queue meanwhile.
    adapter(command_us=1_000_000)
    asking = in_background(srq.limit, 1)

    def in_driver():
        try:
            with open(f"/proc/self/task/{asking.native_id}/stat") as f:
                return f.read().rsplit(")", 1)[1].split()[0] == "D"
        except OSError:
            return False

    r.check("a thread changes the queue's limit", ulp.until(in_driver))
    said = error_of(b.file.destroy, srq.handle)
    flushed = [(c.user_data, c.status) for c in b.cq.reap()]
    r.equal("and the queue, which flushes what it has", (said, flushed), ("none", [(n, 5) for n in range(3)]))
    adapter(command_us=0)
    r.equal("... and has done that before", ended(asking), None)


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
    busy = ulp.Cq(a.file, 256, N["DELIVER_WORKQUEUE"], 10_000)
    qp = Qp(a.file, a.pd, busy)
    qp.connect(qp.num, a.file.gid().gid, 0, 0)
    adapter(lose_interrupt=1)
    a.file.submit([qp.wr("RDMA_WRITE", a.buffer, 0, 8, **remote(a.grant), user_data=4)])
    got = [(c.user_data, c.status) for c in busy.wait(1)]
    r.equal("a thread that polls the device's queue needs none", got, [(4, 0)])


def test_contexts(r):
    """A driver calls the completion handler in each context, on the CPU of the vector that the queue asked for."""
    a, b = two()
    nobody = 1 << 20
    for context, name in enumerate(("hard interrupt", "softirq", "worker"), 1):
        for delivery in ("WORKQUEUE", "SOFTIRQ"):
            where = []
            for vector in range(os.cpu_count()):
                cq = ulp.Cq(a.file, 256, N["DELIVER_" + delivery], comp_vector=vector)
                qp = Qp(a.file, a.pd, cq)
                qp.connect(qp.num, a.file.gid().gid, 0, 0)
                adapter(context=context, handler_cpu=nobody)
                to = remote(a.grant)
                a.file.submit([qp.wr("RDMA_WRITE", a.buffer, 0, 8, user_data=n, **to) for n in range(4)])
                got = [c.user_data for c in cq.wait(4)]
                ulp.until(lambda: adapter_says("handler_cpu") != str(nobody))
                adapter(context=0)
                where.append((got, int(adapter_says("handler_cpu"))))
                a.file.destroy(qp.handle)
            want = [([0, 1, 2, 3], vector) for vector in range(os.cpu_count())]
            r.equal(f"{name}, {delivery}: the completions in order, and the CPU of each vector", where, want)
    a.close()
    b.close()


def test_delayed(r):
    """The adapter shows each completion some time after it has carried the request out."""
    a, b = two()
    adapter(completion_us=200_000)
    began = time.monotonic()
    a.file.submit([a.write(b, 8, user_data=n) for n in (1, 2)])
    got = [c.user_data for c in a.cq.wait(2)]
    r.check("completion_us: no completion comes before that time", time.monotonic() - began >= 0.2)
    r.equal("completion_us: the completions come in order", got, [1, 2])
    a.file.submit([a.write(b, 8, user_data=3)])
    adapter(completion_us=0)
    a.file.submit([a.write(b, 8, user_data=4)])
    r.equal("a completion without delay comes after a delayed one", [c.user_data for c in a.cq.wait(2)], [3, 4])
    adapter(completion_us=100_000)
    a.file.submit([a.write(b, 8, user_data=5)])
    r.equal("a queue pair with a delayed completion is destroyed", error_of(a.file.destroy, a.qp.handle), "none")
    adapter(completion_us=0)
    r.equal("... and the request completes once", [c.user_data for c in a.cq.reap()], [5])


def test_undrained(r):
    """A queue pair that the driver does not move to ERR, while a worker handles its completions."""
    for delivery in ("WORKQUEUE", "SOFTIRQ"):
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
    for delivery in ("WORKQUEUE", "SOFTIRQ"):
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
    other = b.file.grant(b.buffer)
    # The first change of a queue pair is the one to ERR, the second is its RESET.
    adapter(fail_name="modify_qp", fail_command=2, flush_register=1)
    said = error_of(b.file.grant, b.buffer), adapter_says("fail_command")
    r.equal("the queue pair that registers fails, and does not come back: another one registers", said, ("none", "0"))
    adapter(fail_name="dereg_mr", fail_command=1)
    r.equal("... and revokes a grant of the first one", error_of(b.file.destroy, other.handle), "none")
    for end in (a, b):
        end.qp.modify("STATE", qp_state=N["QPS_RESET"])
    a.connect(b)
    b.connect(a)
    a.file.submit([a.qp.wr("RDMA_WRITE", a.buffer, 0, 8, remote_addr=other.addr, rkey=other.rkey)])
    r.equal("... whose key lets nothing in", a.cq.wait(1)[0].status, REFUSED)
    a.close()
    b.close()
    adapter(fail_name="")


def test_hidden(r):
    """A driver reports success though its adapter keeps a key: only an invalidation before has ended that."""
    a, b = two()
    adapter(fail_name="destroy_key", fail_command=1)
    said = [error_of(b.file.destroy, handle) for handle in (b.grant.handle, b.buffer.handle)]
    r.equal("DESTROY of a grant whose key the adapter keeps, and of its buffer", said, ["none"] * 2)
    r.equal("... the adapter was asked, and refused", adapter_says("fail_command"), "0")
    adapter(fail_name="")
    a.file.submit([a.write(b, 8)])
    # The module unmaps the memory in any case: by a key that lives on, the adapter finds nothing there.
    lives_on = personality() == "hns"
    name, status = ("the key lives on, which nobody can know", NOT_THERE) if lives_on else ("the key is dead", REFUSED)
    r.equal(f"... {name}", a.cq.wait(1)[0].status, status)
    a.close()
    b.close()


def test_busy(r):
    """A driver is slow to end a connection: fdinfo does not wait for it."""
    connect.End = lambda host, device="", **more: End(host, **more)
    server, c = connect.Server(), connect.client()
    got = connect.meet(server, c)[0]

    def shown():
        with open(f"/proc/self/fdinfo/{c.file.fd}") as f:
            return [line.split()[-1] for line in f if line.startswith("rust_ulp-connection:")]

    r.check("fdinfo: the connection is established", ulp.until(lambda: shown() == ["established"]), shown())
    adapter(command_us=3_000_000)
    leaving = in_background(lambda: c.file.call("DISCONNECT", conn=got.handle))
    r.check("fdinfo while a driver ends the connection: busy", ulp.until(lambda: shown() == ["busy"]), shown())
    adapter(command_us=0)
    r.check("DISCONNECT ends", not isinstance(ended(leaving), str), leaving.result)
    r.check("fdinfo: the connection has ended", ulp.until(lambda: shown() == ["ended"]), shown())
    server.close()
    c.file.close()


def test_kept_key(r):
    """A driver that hides failures does not invalidate a key: the region is kept until it does."""
    a, b = two()
    adapter(refuse_send=1, fail_name="destroy_key", fail_command=1)
    said = error_of(b.file.destroy, b.grant.handle), adapter_says("refuse_send"), adapter_says("fail_command")
    r.equal("DESTROY of a grant whose key is not invalidated: EIO, and its region stays", said, ("EIO", "0", "1"))
    adapter(fail_command=0, fail_name="")
    a.file.submit([a.write(b, 8)])
    r.equal("... the key works", a.cq.wait(1)[0].status, 0)
    r.equal("DESTROY of the grant when the driver works", error_of(b.file.destroy, b.grant.handle), "none")
    a.file.submit([a.write(b, 8)])
    r.equal("... the key is dead", a.cq.wait(1)[0].status, REFUSED)
    a.close()
    b.close()


def test_lost(r):
    """A driver loses a completion: its request is said to have failed when a later one completes."""
    a, b = two()
    adapter(lose_completion=1)
    a.file.submit([a.qp.wr("RDMA_WRITE", a.buffer, 0, 8, user_data=n, **remote(b.grant)) for n in (1, 2)])
    # IB_WC_GENERAL_ERR
    r.equal("the first of two completions is lost", [(c.user_data, c.status) for c in a.cq.wait(2)], [(1, 21), (2, 0)])
    r.equal("... and none is left", (a.cq.reap(), adapter_says("lose_completion")), ([], "0"))
    a.close()
    b.close()


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


def test_kept(r):
    """A key that the driver never revokes: nobody gets the number of its domain."""
    a, b = two()
    asked = adapter_says("broken_rules")
    adapter(fail_name="dereg_mr", fail_command=(1 << 32) - 1)
    b.close()
    r.equal("a file with such a key is closed: its domain stays", adapter_says("broken_rules"), asked)
    adapter(fail_command=0, fail_name="")
    a.close()


def test_leaked(r):
    """A dma-buf that the driver does not give up is leaked. The removal of the device does not wait for it."""
    if os.uname().release.endswith("-debug"):
        raise ulp.Missing(0, "the debug kernel has no heap of dma-bufs")
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
    a.file.submit([a.qp.wr("RDMA_WRITE", a.buffer, 0, 8, **remote(grant))])
    r.equal("after that a grant works", (a.cq.wait(1)[0].status, b.buffer.map[:8]), (0, pattern(3, 8)))


def test_sqe(r):
    """A datagram that fails stops the send queue alone (IBA 10.3.1), and a change to RTS starts it again."""
    a, b = End("h1", "hca1", kind="UD"), End("h2", "hca2", kind="UD")
    for end in (a, b):
        end.qp.start(17)
        end.file.submit([end.qp.wr("RECV", end.buffer, PAGE * n, 256, user_data=90 + n) for n in range(2)])
    to = {end: end.file.ah(end.pd, peer.file.gid().gid).handle for end, peer in ((a, b), (b, a))}

    def send(end, peer, *numbers):
        end.file.submit([end.qp.datagram(to[end], peer.qp.num, 17, end.buffer, 0, 8, user_data=n) for n in numbers])
        return [(c.user_data, c.status) for c in end.cq.wait(len(numbers))]

    def state():
        return a.file.call("QP_QUERY", qp=a.qp.handle).attr.qp_state

    adapter(flush_register=1)
    r.equal("a datagram fails, and those after it are flushed", send(a, b, 1, 2), [(1, 5), (2, 5)])
    r.equal("the queue pair is in SQE", state(), N["QPS_SQE"])
    r.equal("a datagram in SQE is flushed, too", send(a, b, 3), [(3, 5)])
    r.equal("the peer sends one meanwhile", send(b, a, 4), [(4, 0)])
    r.equal("... and it is received", [(c.user_data, c.status) for c in a.cq.wait(1)], [(90, 0)])
    wrong = error_of(a.qp.modify, "STATE CUR_STATE", qp_state=N["QPS_RTS"], cur_qp_state=N["QPS_RTS"])
    r.equal("a change that says it begins in RTS", (wrong, state()), ("EPROTO", N["QPS_SQE"]))
    a.qp.modify("STATE CUR_STATE", qp_state=N["QPS_RTS"], cur_qp_state=N["QPS_SQE"])
    r.equal("one that says SQE moves it to RTS", state(), N["QPS_RTS"])
    r.equal("datagrams arrive again", send(a, b, 5, 6), [(5, 0), (6, 0)])
    r.equal("... the first of all that do", [(c.user_data, c.status) for c in b.cq.wait(2)], [(90, 0), (91, 0)])
    adapter(flush_register=1)
    send(a, b, 7)
    a.qp.modify("STATE", qp_state=N["QPS_RTS"])
    r.equal("nobody needs to say where a change begins", (send(a, b, 8), state()), ([(8, 0)], N["QPS_RTS"]))
    a.close()
    b.close()


def test_unanswered(r):
    """A registration that is not reported, and one that is never carried out."""
    a, b = two()
    adapter(lose_interrupt=1)
    r.check("a grant whose registration is not reported", ended(in_background(b.file.grant, b.buffer)).rkey)
    with open("/sys/module/ulp_hca/parameters/lose_interrupt") as f:
        r.equal("... the interrupt was lost", f.read().strip(), "0")
    begin = time.monotonic()
    adapter(lose_register=1)
    r.equal("a grant whose registration is not carried out", ended(in_background(b.file.grant, b.buffer)), "EIO")
    once = time.monotonic() - begin
    grant = b.file.grant(b.buffer)
    a.buffer.map[:8] = pattern(3, 8)
    a.file.submit([a.qp.wr("RDMA_WRITE", a.buffer, 0, 8, **remote(grant))])
    r.equal("after that a grant works", (a.cq.wait(1)[0].status, b.buffer.map[:8]), (0, pattern(3, 8)))
    other = ulp.Buffer(b.file, b.file.pd(), PAGE)
    begin = time.monotonic()
    adapter(lose_register=5)
    grants = [in_background(b.file.grant, buffer) for buffer in (b.buffer,) * 3 + (other,) * 2]
    said = [ended(grant) for grant in grants]
    r.equal("five grants at once, in two domains, whose registrations are not carried out", said, ["EIO"] * 5)
    seconds = time.monotonic() - begin
    r.check("five that are not carried out wait about as long as one", seconds < 2 * once, f"{seconds} s, {once} s")
    r.check("a grant works after five that were not carried out", b.file.grant(b.buffer).rkey)
    adapter(lose_register=1, fail_name="modify_qp", fail_command=(1 << 32) - 1)
    said = ended(in_background(b.file.grant, b.buffer))
    r.equal("one that is not carried out on a queue pair that the driver does not move to ERR", said, "EIO")
    adapter(fail_command=0, fail_name="")
    r.check("... and a grant works after that", b.file.grant(b.buffer).rkey)
    a.close()
    b.close()


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
    a.meet(b)
    a.file.submit([a.write(b, 8)])
    r.equal("... and others work", a.cq.wait(1)[0].status, 0)
    before = len(ours("mr"))
    adapter(lose_register=1, fail_name="modify_qp destroy_qp", fail_command=(1 << 32) - 1)
    said = ended(in_background(b.file.grant, b.buffer))
    adapter(fail_command=0, fail_name="")
    now = said, len(ours("mr"))
    r.equal("a registration that such a queue pair does not carry out: its region stays", now, ("EIO", before + 1))
    r.check("... and a grant works after that", b.file.grant(b.buffer).rkey)
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
    refused_in_a_batch(r)


def refused_in_a_batch(r):
    """The requests of a batch share the reference of its last one, which the adapter refuses."""
    a, b = two(depth=12)
    batches = Batches(a.file)

    def writes(count, **fields):
        return [a.write(b, 8, remote_offset=8 * n, flags=0, **fields) for n in range(count)]

    adapter(refuse_send=3)
    got = batches.run(writes(4))
    r.equal("a batch of io_uring whose third request the adapter refuses fails as that", got, (-errno.ENOMEM, 2))
    adapter(refuse_send=3)
    got = batches.run(writes(4, timeout_ns=N["TIMEOUT_INFINITE"]))
    r.equal("... also if its requests have a time limit that never ends", got, (-errno.ENOMEM, 2))
    c, d = two(depth=12, flags=N["QP_SIG_ALL"])
    adapter(refuse_send=3)
    got = Batches(c.file).run([c.write(d, 8, flags=0) for _ in range(4)])
    r.equal("... or their queue pair reports all of its requests", got, (-errno.ENOMEM, 2))
    r.equal("... and one after it succeeds", batches.run(writes(2)), (2, 0))
    adapter(pause_storm=1, refuse_send=2)
    got = batches.run(writes(2, user_data=7))
    r.equal("a batch whose second request is refused ends while the first is under way", got, (-errno.ENOMEM, 1))
    batches.begin(writes(2))
    r.equal("... that can be canceled", a.file.call("CANCEL", queue=a.qp.handle, user_data=7).canceled, 1)
    adapter(pause_storm=0)
    r.equal("... which a batch after it is not told", batches.end(), (2, 0))


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
    device = f.call("DEVICE_QUERY")
    f.close()
    most = {"responder_resources": device.max_qp_rd_atom, "initiator_depth": device.max_qp_init_rd_atom}
    connect.PARAM.update({name: min(connect.PARAM[name], n) for name, n in most.items()})
    connect.test_write(r)
    server, c = connect.Server(), connect.client()
    thread = connect.Thread(connect.connect, c, "10.9.0.1", server.port)
    request = server.request()
    # The third change is the one to RTS.
    adapter(fail_name="modify_qp", fail_command=3)
    said = error_of(connect.accept, server.end, request.handle)
    adapter(fail_name="", fail_command=0)
    # A queue pair that its driver does not bring back has no peer, at least.
    state = "ERR" if personality() == "irdma" else "RESET"
    said = said, connect.qp_state(server.end)
    r.equal(f"ACCEPT that fails leaves its queue pair in {state}", said, ("EIO", N["QPS_" + state]))
    server.end.file.destroy(request.handle)
    r.equal("the request, destroyed, is rejected", thread.name(), "ECONNREFUSED")
    server.close()
    c.file.close()


def test_unusable(r):
    """Devices that the module cannot serve: refused, alone and beside Soft-RoCE on the same netdevs."""
    reason, advice = {
        "cxgb4": ("it is iWARP", "is an iWARP device"),
        "hip08": ("it has no fast registration", "is refused by the module"),
        "vf": ("it has no fast registration", "is refused by the module"),
        "ocrdma": ("it has no fast registration", "is refused by the module"),
        "mana": ("its driver has no reliable queue pairs for the kernel", "is refused by the module"),
    }[personality()]
    f = ulp.File("h1")
    r.equal("DEVICE_LIST where the module can serve no device: empty", f.devices(), [])
    sizes = [error_of(f.call, "DEVICE_LIST", capacity=1, entry_size=size) for size in (8, 4096, 4097)]
    r.equal("... also with entries that are too short or too long", sizes, ["EINVAL", "none", "E2BIG"])
    before = len(ulp.shell("dmesg")[1])
    ulp.shell("echo module rust_ulp +p >/proc/dynamic_debug/control")
    for name in ("hca1", "hca2"):
        r.equal(f"ATTACH to {name}: EOPNOTSUPP", error_of(f.attach, name), "EOPNOTSUPP")
    said = re.findall(r"rust_ulp: device \d+: not attached, (.*)", ulp.shell("dmesg")[1][before:])
    r.equal("... and a debug line says why", said, [reason] * 2)
    ulp.shell("echo module rust_ulp -p >/proc/dynamic_debug/control")
    r.equal("ATTACH to the default device where none can be served: ENOENT", error_of(f.attach, ""), "ENOENT")

    def tool(*words):
        return ulp.shell(" ".join(("ip netns exec h1", os.environ.get("ULP", "/ulp") + "/bin/ulp", *words)))

    status, said = tool("devices", "--json")
    rows = {d["name"]: d["rust_ulp"] for d in json.loads(said)["devices"]} if status == 0 else said
    r.equal("`ulp devices` lists them, with nothing of the module", rows, {"hca1": None, "hca2": None})
    status, said = tool("diagnose")
    r.check("`ulp diagnose` fails, and says why", status == 1 and f"hca1 {advice}" in said, said)
    for n in (1, 2):
        made = ulp.shell(f"ip netns exec h{n} rdma link add rxe{n} type rxe netdev w{n}")
        r.equal(f"rxe{n} on the netdev of hca{n}", made, (0, ""))

    def has_default(host):
        mine = ulp.File(host)
        found = any(d.flags & N["DEVICE_DEFAULT"] for d in mine.devices())
        mine.close()
        return found

    r.check("both hosts have a default device then", ulp.until(lambda: has_default("h1") and has_default("h2")))
    listed = sorted(ulp.text(d.name) for d in f.devices())
    r.equal("DEVICE_LIST beside Soft-RoCE: Soft-RoCE alone", listed, ["rxe1", "rxe2"])
    r.equal("ATTACH to hca1 beside it: EOPNOTSUPP", error_of(f.attach, "hca1"), "EOPNOTSUPP")
    f.attach("")
    r.equal("ATTACH of the same file to the default device: Soft-RoCE", f.name, "rxe1")
    f.close()
    status, said = tool("diagnose", "-d hca1")
    r.check("`ulp diagnose -d hca1` says why", status == 1 and f"hca1 {advice}" in said, said)
    if personality() == "cxgb4":
        # The manager would bind their addresses to the iWARP devices, which are older.
        connect.End = lambda host, device="", **more: End(host, **more, device={"h1": "rxe1", "h2": "rxe2"}[host])
        connect.test_write(r)
    for n in (1, 2):
        r.equal(f"rxe{n} goes", ulp.shell(f"rdma link del rxe{n}"), (0, ""))


ulp.main(__doc__, globals())
