#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Every operation and option of a reliable queue pair, between h1 and h2.

    ops.py NAME, as 25-ops lists them

Expects the module and two hosts. Prints KTAP.
"""

import contextlib
import ctypes
import errno
import itertools
import mmap
import os
import pathlib
import re
import select
import socket
import struct
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tracing
import ulp
from lifetime import LONG, ended, in_background
from personality import HERE
from ulp import N, S, Buffer, Cq, Qp, UserBuffer, error_of, pair, pattern, remote

ALL = N["ACCESS_REMOTE_WRITE"] | N["ACCESS_REMOTE_READ"] | ulp.REMOTE_ATOMIC


def rights(end):
    """Lets the peer of `end` do everything."""
    end.qp.modify("ACCESS_FLAGS", access_flags=ALL)


def test_read(r):
    a, b = pair(length=1 << 20, access=ALL)
    b.buffer.map[:] = pattern(4, 1 << 20)
    for length, there, here in ((1, 0, 0), (8, 8, 4096), (4097, 4095, 1), (300000, 77, 5), (1 << 20, 0, 0)):
        a.buffer.map[:] = bytes(1 << 20)
        a.file.submit([a.qp.wr("RDMA_READ", a.buffer, here, length, **remote(b.grant, there), user_data=length)])
        done = a.cq.wait(1)[0]
        r.equal(
            f"a read of {length} bytes brings them, and says how many",
            (
                done.status,
                done.user_data,
                done.opcode,
                done.byte_len,
                a.buffer.map[here : here + length] == b.buffer.map[there : there + length],
            ),
            (0, length, N["WC_RDMA_READ"], length, True),
        )
    a.buffer.map[:16] = pattern(9, 16)
    want = a.buffer.map[:16]
    a.file.submit(
        [
            a.write(b, 16, user_data=1),
            a.qp.wr("RDMA_READ", a.buffer, 4096, 16, **remote(b.grant), user_data=2, flags=N["SEND_SIGNALED"]),
            a.write(b, 16, 4096, remote_offset=8192, user_data=3, flags=N["SEND_SIGNALED"] | N["SEND_FENCE"]),
        ]
    )
    r.equal(
        "a write, a read of it and a fenced write of what was read, in one call",
        ([(c.user_data, c.status) for c in a.cq.wait(3)], b.buffer.map[8192:8208]),
        ([(1, 0), (2, 0), (3, 0)], want),
    )


def test_atomics(r):
    a, b = pair(access=ALL)
    if not HERE.atomics:
        raise ulp.Missing(errno.EOPNOTSUPP, "atomics")
    rights(b)
    said = a.file.call("DEVICE_QUERY").atomic_cap
    if not ulp.HCA:  # libibverbs has no driver for the adapter
        from pyverbs.device import Context

        with Context(name=ulp.DEV1) as context:
            r.equal("DEVICE_QUERY: atomic_cap is that of libibverbs", said, context.query_device().atomic_caps)
    word = ctypes.c_uint64.from_buffer(b.buffer.map, 64)
    back = ctypes.c_uint64.from_buffer(a.buffer.map, 128)

    def atomic(op, *operands):
        where = remote(b.grant, 64)
        a.file.submit([a.qp.wr(op, a.buffer, 128, 8, atomic=operands, **where)])
        done = a.cq.wait(1)[0]
        return done.status, done.opcode, done.byte_len, back.value, word.value

    add, swap = N["WC_FETCH_ADD"], N["WC_COMP_SWAP"]
    word.value = 2**64 - 3
    r.equal(
        "fetch-and-add wraps and returns what was there",
        atomic("ATOMIC_FETCH_AND_ADD", 5),
        (0, add, 8, 2**64 - 3, 2),
    )
    r.equal("compare-and-swap that matches", atomic("ATOMIC_CMP_AND_SWP", 2, 99), (0, swap, 8, 2, 99))
    r.equal("compare-and-swap that does not", atomic("ATOMIC_CMP_AND_SWP", 2, 7), (0, swap, 8, 99, 99))
    for what, length, at, operands in (
        ("an atomic on an unaligned address", 8, 65, (1,)),
        ("an atomic that returns four bytes", 4, 64, (1,)),
        ("ATOMIC_FETCH_AND_ADD with a second operand", 8, 64, (1, 1)),
    ):
        where = remote(b.grant, at)
        bad = a.qp.wr("ATOMIC_FETCH_AND_ADD", a.buffer, 128, length, atomic=operands, **where)
        r.equal(f"{what}: EINVAL", error_of(a.file.submit, [bad]), "EINVAL")
    wide = ulp.Buffer(a.file, a.pd, 1024 * ulp.PAGE, page_size=4096)
    where = remote(b.grant, 64)
    across = a.qp.wr("ATOMIC_FETCH_AND_ADD", wide, wide.key_bytes - 4, 8, atomic=(1,), **where)
    r.equal("an atomic across the border of two keys: E2BIG", error_of(a.file.submit, [across]), "E2BIG")
    r.equal("none changed the word", word.value, 99)
    posts = [
        a.qp.wr("ATOMIC_FETCH_AND_ADD", a.buffer, 1024 + 8 * i, 8, **remote(b.grant, 64), atomic=(1,), user_data=i)
        for i in range(100)
    ]
    a.file.submit(posts)
    r.equal(
        "a hundred at once, each once", ([c.user_data for c in a.cq.wait(100)], word.value), (list(range(100)), 199)
    )
    r.equal(
        "and each saw another value",
        [ctypes.c_uint64.from_buffer(a.buffer.map, 1024 + 8 * i).value for i in range(100)],
        list(range(99, 199)),
    )


def elements(end, *parts):
    """The address of an array of elements, and the array, to be kept."""
    array = (S["sge"] * len(parts))(*[S["sge"](buffer=end.buffer.handle, length=n, offset=at) for at, n in parts])
    return ctypes.addressof(array), array


def test_empty(r):
    """Messages of no bytes, by no element and by an empty one."""
    a, b = pair(access=ALL)
    before = pattern(9, len(b.buffer.map[:]))
    b.buffer.map[:] = before
    a.buffer.map[:] = bytes(len(before))
    for what, element in (("no element", {}), ("an empty one", {"buffer": a.buffer.handle})):
        for op, receives in (("RDMA_WRITE", 0), ("RDMA_READ", 0), ("SEND", 1), ("RDMA_WRITE_WITH_IMM", 1)):
            far = {} if op == "SEND" else remote(b.grant)
            if receives:
                b.file.submit([b.qp.wr("RECV", user_data=3)])
            wr = a.qp.wr(op, user_data=4, imm_data=77 if receives and far else 0, **far)
            if element:
                wr.num_sge, wr.sge.buffer = 1, a.buffer.handle
            a.file.submit([wr])
            got = a.cq.wait(1)[0]
            there = [(c.user_data, c.status, c.byte_len, c.imm_data) for c in (b.cq.wait(1) if receives else [])]
            r.equal(
                f"{op} of no bytes, {what}",
                ((got.user_data, got.status, got.byte_len), there),
                ((4, 0, 0), [(3, 0, 0, 77 if far else 0)] * receives),
            )
    r.equal("none of them moved a byte", (b.buffer.map[:] == before, any(a.buffer.map[:])), (True, False))


def test_elements(r):
    a, b = pair(access=ALL, depth=32, max_send_sge=4, max_recv_sge=4)
    a.buffer.map[:] = pattern(6, a.buffer.length)
    at, _keep = elements(a, (10, 100), (4096, 5000), (0, 0), (60000, 7))
    want = a.buffer.map[10:110] + a.buffer.map[4096:9096] + a.buffer.map[60000:60007]
    wr = a.qp.wr("RDMA_WRITE", **remote(b.grant, 3), num_sge=4, sge=S["sge"](offset=at))
    a.file.submit([wr])
    r.equal(
        "four elements, one of them empty, are gathered in order",
        (a.cq.wait(1)[0].status, b.buffer.map[3 : 3 + len(want)] == want),
        (0, True),
    )
    at, _keep2 = elements(b, (20000, 1), (30000, 4999), (40000, 107))
    b.file.submit([b.qp.wr("RECV", num_sge=3, sge=S["sge"](offset=at), user_data=5)])
    at, _keep = elements(a, (10, 100), (4096, 5000), (60000, 7))
    a.file.submit([a.qp.wr("SEND", num_sge=3, sge=S["sge"](offset=at))])
    got = b.cq.wait(1)[0]
    r.equal(
        "and scattered",
        (
            got.status,
            got.byte_len,
            b.buffer.map[20000:20001] + b.buffer.map[30000:34999] + b.buffer.map[40000:40107] == want,
        ),
        (0, 5107, True),
    )
    a.cq.wait(1)
    at, _keep = elements(a, *[(0, 1)] * 5)
    bad = a.qp.wr("SEND", num_sge=5, sge=S["sge"](offset=at))
    r.equal("one element more than the queue pair has", error_of(a.file.submit, [bad]), "E2BIG")
    bad = a.qp.wr("SEND", num_sge=255, sge=S["sge"](offset=at))
    r.equal("255 elements", error_of(a.file.submit, [bad]), "E2BIG")
    at, _keep = elements(a, (0, 8), (65536 - 4, 8))
    bad = a.qp.wr("SEND", num_sge=2, sge=S["sge"](offset=at))
    r.equal("the second of two reaches beyond its buffer", error_of(a.file.submit, [bad]), "ERANGE")
    bad = a.qp.wr("SEND", num_sge=2, sge=S["sge"](offset=8))
    r.equal("elements at an address that cannot be read", error_of(a.file.submit, [bad]), "EFAULT")
    r.equal("nothing was posted of all that", a.cq.reap(), [])


def test_inline(r):
    a, b = pair(access=ALL, depth=32, max_inline=64, max_send_sge=2)
    flags = N["SEND_INLINE"] | N["SEND_SIGNALED"]
    a.buffer.map[:] = pattern(2, a.buffer.length)
    want = a.buffer.map[100:164]
    wr = a.write(b, 64, 100, flags=flags)
    a.file.submit([wr])
    a.buffer.map[100:164] = bytes(64)
    r.equal(
        "inline data is taken from a buffer when it is posted", (a.cq.wait(1)[0].status, b.buffer.map[:64]), (0, want)
    )
    at, _keep = elements(a, (1000, 10), (2000, 20))
    want = a.buffer.map[1000:1010] + a.buffer.map[2000:2020]
    a.file.submit([a.qp.wr("RDMA_WRITE", **remote(b.grant, 500), flags=flags, num_sge=2, sge=S["sge"](offset=at))])
    r.equal("from two pieces of it", (a.cq.wait(1)[0].status, b.buffer.map[500:530]), (0, want))
    local = ctypes.create_string_buffer(b"from anywhere", 64)
    wr = a.qp.wr(
        "RDMA_WRITE",
        **remote(b.grant, 700),
        flags=flags,
        num_sge=1,
        sge=S["sge"](length=13, offset=ctypes.addressof(local)),
    )
    a.file.submit([wr])
    local.raw = bytes(64)
    r.equal("from any memory of the process", (a.cq.wait(1)[0].status, b.buffer.map[700:713]), (0, b"from anywhere"))
    wr.sge.length = 65
    r.equal("one byte more than the queue pair takes inline", error_of(a.file.submit, [wr]), "EMSGSIZE")
    wr.sge.length, wr.sge.offset = 8, 16
    r.equal("inline data at an address that cannot be read", error_of(a.file.submit, [wr]), "EFAULT")
    bad = a.qp.wr("RDMA_READ", a.buffer, 0, 8, **remote(b.grant), flags=flags)
    r.equal("a read cannot be inline", error_of(a.file.submit, [bad]), "EINVAL")


def test_silent(r):
    """Unsignalled requests without end: their slots come back without a completion."""
    a, b = pair(depth=16, access=ALL)

    def post(wr):
        """Posts when there is room, which only the device makes."""
        deadline = time.monotonic() + 20 * ulp.PATIENCE
        while (why := error_of(a.file.submit, [wr])) == "EAGAIN" and time.monotonic() < deadline:
            time.sleep(0.001)
        return why

    posted = [post(a.write(b, 8, offset=8 * i, remote_offset=8 * i, flags=0)) for i in range(1000)]
    r.equal("a thousand unsignalled writes through a queue of 16", set(posted), {"none"})
    post(a.write(b, 8, user_data=77))
    r.equal("and the one that is signalled makes the only completion", [c.user_data for c in a.cq.wait(1)], [77])
    bad = a.write(b, 8, flags=0, user_data=5)
    bad.rkey ^= 0x55
    post(bad)
    got = a.cq.wait(1)[0]
    r.equal("an unsignalled write that fails makes one too", (got.user_data, got.status), (5, 10))
    c, d = pair(access=ALL, depth=32, flags=N["QP_SIG_ALL"])
    c.file.submit([c.write(d, 8, flags=0, user_data=i) for i in range(3)])
    r.equal("with SIG_ALL each makes one", [x.user_data for x in c.cq.wait(3)], [0, 1, 2])


def all_posted(post, wr, count, batch=5):
    """Posts `count` requests like `wr`, some at a time, when there is room, which only the device makes.

    Returns how many were posted, and the last error.
    """
    why, posted = "none", 0
    while why == "none" and posted < count:
        why = ulp.until(lambda: (got := error_of(post, [wr] * batch)) != "EAGAIN" and got, 5) or "EAGAIN"
        posted += batch * (why == "none")
    return posted, why


def test_unreported(r):
    """Unsignaled sends do not fill a completion queue that is shorter than half of their send queue."""
    a, b = pair(depth=256, entries=64, access=ALL)
    far = remote(b.grant)
    for what, wr in (
        ("of 8 bytes", a.write(b, 8, flags=0)),
        ("without an element", a.qp.wr("RDMA_WRITE", flags=0, **far)),
    ):
        name = f"SUBMIT of 600 unsignaled writes {what}, send queue of 256, completion queue of 64"
        if not r.equal(f"{name}: all are posted", all_posted(a.file.submit, wr, 600), (600, "none")):
            return
        r.equal(f"{name}: none has a completion", a.cq.reap(), [])
    error = all_posted(a.file.submit, a.write(b, 8, user_data=7), 1, batch=1)
    r.equal("a signaled write after unsignaled ones: posted", error, (1, "none"))
    r.equal("... it makes the only completion", [(c.user_data, c.status) for c in a.cq.wait(1)], [(7, 0)])


def test_unreported_shared(r):
    """Queue pairs that each leave unsignaled sends do not fill their common completion queue together."""
    a, b = pair(entries=256)
    pairs = [(a.qp, b.qp)]
    for _ in range(15):
        here, there = Qp(a.file, a.pd, a.cq), Qp(b.file, b.pd, b.cq)
        here.connect(there.num, b.file.gid().gid, there.num, here.num, lid=b.file.lid())
        there.connect(here.num, a.file.gid().gid, here.num, there.num, lid=a.file.lid())
        pairs.append((here, there))

    def write(qp, **fields):
        return qp.wr("RDMA_WRITE", a.buffer, 0, 8, **remote(b.grant), **fields)

    got = []
    for qp, _ in pairs:
        got.append(all_posted(a.file.submit, write(qp, flags=0), 30, batch=30))
        if got[-1][1] != "none":
            break
    r.equal("30 unsignaled writes on each of 16 queue pairs of a completion queue of 256", got, [(30, "none")] * 16)
    errors = [all_posted(a.file.submit, write(qp, user_data=i), 1, batch=1) for i, (qp, _) in enumerate(pairs)]
    r.equal("then a signaled write on each: posted", errors, [(1, "none")] * 16)
    r.equal(
        "... these make the only completions",
        sorted((c.user_data, c.status) for c in a.cq.wait(16)),
        [(i, 0) for i in range(16)],
    )
    # Each list takes its room in the completion queue in two parts, and goes from queue to queue.
    receives = [qp.wr("RECV", a.buffer, 0, 8) for _ in range(4) for qp, _ in pairs][:60]
    posted = [a.file.try_submit(receives)[1] for _ in range(6)]
    r.equal("lists of 60 receives, one for each queue pair in turn: 256 are posted", posted, [60, 60, 60, 60, 16, 0])


def test_delivery(r):
    for kind, busy_poll_us in (("WORKQUEUE", 0), ("WORKQUEUE", 1000), ("SOFTIRQ", 0)):
        a, b = ulp.End("h1"), ulp.End("h2")
        a.file.destroy(a.qp.handle)
        a.cq = Cq(a.file, 256, N["DELIVER_" + kind], busy_poll_us)
        kind += f", {busy_poll_us} us of polling"
        a.qp = Qp(a.file, a.pd, a.cq)
        a.psn = a.qp.num * 4099 & 0xFFFFFF
        a.meet(b)
        for batch in range(20):
            a.file.submit([a.write(b, 100 + i, user_data=100 * batch + i) for i in range(50)])
            got = a.cq.wait(50)
            want = [(100 * batch + i, 0) for i in range(50)]
            if [(c.user_data, c.status) for c in got] != want:
                r.equal(f"{kind}: batch {batch}", [(c.user_data, c.status) for c in got], want)
                break
        else:
            r.check(f"{kind}: a thousand writes complete in order", True)
        a.file.submit([a.qp.wr("RECV", a.buffer, 0, 8, user_data=i) for i in range(100)])
        a.file.destroy(a.qp.handle)
        r.equal(
            f"{kind}: receives of a queue pair that is destroyed are flushed",
            [(c.user_data, c.status) for c in a.cq.wait(100)],
            [(i, 5) for i in range(100)],
        )


def test_contexts(r):
    """DELIVER_SOFTIRQ hands completions over in a softirq, and DELIVER_WORKQUEUE in a worker."""
    a, b = pair()
    seen = {}
    for kind in ("SOFTIRQ", "WORKQUEUE"):
        cq = Cq(a.file, 256, N["DELIVER_" + kind])
        qp = Qp(a.file, a.pd, cq)
        qp.connect(qp.num, a.file.gid().gid, 0, 0)
        with tracing.Trace() as trace:
            to = remote(a.grant)
            a.file.submit([qp.wr("RDMA_WRITE", a.buffer, 0, 8, user_data=n, **to) for n in range(8)])
            # No thread waits, which would poll the queue itself.
            got = []
            ulp.until(lambda got=got, cq=cq: got.extend(cq.reap()) or len(got) == 8)
        r.equal(f"DELIVER_{kind}: eight writes complete in order", [c.user_data for c in got], list(range(8)))
        # The third letter: s is a softirq.
        flags = re.findall(r"\] (\S+) +[\d.]+: rust_ulp_completion:", trace.text)
        seen[kind] = {"s" in f[2].lower() for f in flags}
    r.equal("the completions are handed over in a softirq", seen, {"SOFTIRQ": {True}, "WORKQUEUE": {False}})
    a.file.close()
    b.file.close()


def test_solicited(r):
    """SEND_SOLICITED asks the peer for a solicited event: by a bit of the last packet of a message."""
    # No packet is sent again, so that each belongs to the message that was posted last.
    a, b = pair(connect={"timeout": 20})
    b.file.submit([b.qp.wr("RECV", b.buffer, 0, 1 << 16) for _ in range(4)])
    with ulp.host("h2"):
        # ETH_P_IP, as the network has handed it over.
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
    tap.bind(("w2", 0x0800))
    tap.settimeout(20 * ulp.PATIENCE)
    solicited = N["SEND_SIGNALED"] | N["SEND_SOLICITED"]
    for name, flags in (("SEND", N["SEND_SIGNALED"]), ("SEND", solicited), ("SEND_WITH_IMM", solicited)):
        a.file.submit([a.qp.wr(name, a.buffer, 0, 6000, flags=flags)])
        bits = []
        while len(bits) < 2:
            packet = tap.recv(9000)
            # The headers of IPv4 and UDP, then the base transport header: its opcode, and the bit.
            if packet[9] == 17 and packet[22:24] == (4791).to_bytes(2, "big") and packet[28] in (0, 2, 3):
                bits.append(packet[29] >> 7)
        r.equal(f"{name} of two packets with flags {flags}: the bit of each", bits, [0, int(flags == solicited)])
        a.cq.wait(1)
    tap.close()
    a.file.close()
    b.file.close()


def test_query(r):
    """What the module reports of the device and its port is what ibv_devinfo, sysfs and the netdev say."""
    f = ulp.File("h1", "rxe1")
    got = f.call("DEVICE_QUERY")
    port = f.call("PORT_QUERY", port=1)
    said = dict(re.findall(r"^\s*(\w+):\s+(.*)$", ulp.shell("ibv_devinfo -v -d rxe1")[1], re.M))

    def number(name):
        return int(re.match(r"(?:0x)?[0-9a-fA-F]+", said[name])[0], 0)

    names = "hw_ver max_qp max_qp_wr max_cq max_cqe max_mr max_pd max_srq max_srq_wr max_qp_rd_atom max_qp_init_rd_atom"
    names += " max_mr_size page_size_cap vendor_id vendor_part_id local_ca_ack_delay max_sge_rd max_srq_sge"
    for name in names.split():
        r.equal(f"DEVICE_QUERY: {name} as ibv_devinfo says", getattr(got, name), number(name))
    r.equal("DEVICE_QUERY: device_cap_flags as ibv_devinfo says", got.device_cap_flags, number("device_cap_flags_ex"))
    version = pathlib.Path("/sys/class/infiniband/rxe1/fw_ver")
    want = version.read_text().strip() if version.exists() else ""
    r.equal("DEVICE_QUERY: fw_ver as sysfs says", ulp.text(got.fw_ver), want)
    for name in ("node_guid", "sys_image_guid"):
        r.equal(f"DEVICE_QUERY: {name}", bytes(getattr(got, name)).hex(), said[name].replace(":", ""))
    want = [int(said[name].split()[0]) for name in ("max_mtu", "active_mtu")]
    r.equal("PORT_QUERY: max_mtu and active_mtu", [port.max_mtu, port.active_mtu], want)
    for name, there in (("sm_lid", "sm_lid"), ("lid", "port_lid"), ("lmc", "port_lmc"), ("max_msg_sz", "max_msg_sz")):
        r.equal(f"PORT_QUERY: {name} as ibv_devinfo says", getattr(port, name), number(there))
    for name in ("active_width", "active_speed", "phys_state"):
        words = re.search(r"\((\d+)\)", said[name])
        r.equal(f"PORT_QUERY: {name} as ibv_devinfo says", getattr(port, name), int(words[1]))
    base = pathlib.Path("/sys/class/infiniband/rxe1/ports/1")
    r.equal("PORT_QUERY: state as sysfs says", port.state, int((base / "state").read_text().split(":")[0]))
    caps = int((base / "cap_mask").read_text(), 0)
    r.equal("PORT_QUERY: port_cap_flags as sysfs says", port.port_cap_flags, caps)
    interface = int(ulp.shell("ip netns exec h1 cat /sys/class/net/w1/ifindex")[1])
    r.equal("PORT_QUERY: ifindex of the netdev, in its own namespace", port.ifindex, interface)
    other = ulp.File("h2", "rxe1")
    r.equal("... and 0 in another namespace", other.call("PORT_QUERY", port=1).ifindex, 0)
    other.close()
    f.close()


def test_gids(r):
    """A port with more GIDs than a list has room for, of which the last one serves as the others do."""
    many = 100

    def addresses(what):
        lines = "".join(f"addr {what} 10.9.8.{n + 1}/32 dev w1\n" for n in range(many))
        return ulp.shell(f"printf '{lines}' | ip -n h1 -batch -; ip -n h2 route {what} 10.9.8.0/24 dev w2")

    r.equal(f"{many} more addresses", addresses("add"), (0, ""))
    a, b = ulp.End("h1"), ulp.End("h2")

    def listed(room):
        array = (S["gid_entry"] * room)()
        got = a.file.call("GID_QUERY", entries=ctypes.addressof(array), capacity=room, port=1)
        return got.count, [bytes(e.gid) for e in array if any(e.gid)], {bytes(e.gid): e.index for e in array}

    ulp.until(lambda: listed(256)[0] >= many)
    count, gids, index = listed(256)
    want = {bytes(10) + b"\xff\xff" + bytes((10, 9, 8, n + 1)) for n in range(many)}
    r.equal("GID_QUERY with room for 256: all of them, once", (len(gids), want <= set(gids)), (count, True))
    few = listed(64)
    r.equal("GID_QUERY with room for 64: the first 64, and the number of all", (few[0], few[1]), (count, gids[:64]))
    last = max(want, key=lambda gid: index[gid])
    r.check("its index is above 64", index[last] > 64, index[last])
    a.file.gid_index = index[last]
    a.connect(b)
    b.qp.connect(a.qp.num, last, a.psn, b.psn)
    a.buffer.map[:8] = pattern(6, 8)
    a.file.submit([a.write(b, 8)])
    r.equal("a write by the GID with that index", (a.cq.wait(1)[0].status, b.buffer.map[:8]), (0, pattern(6, 8)))
    a.file.close()
    b.file.close()
    r.equal("the addresses go", addresses("del"), (0, ""))
    f = ulp.File("h1", "rxe1")
    r.check("... and their GIDs", ulp.until(lambda: f.call("GID_QUERY", port=1).count < 64))
    f.close()


def test_held(r):
    """A GID that QP_MODIFY uses keeps its index until the call ends, and no longer."""
    a = ulp.End("h1")

    def change(what, n):
        ulp.shell(f"ip -n h1 addr {what} 10.9.9.{n}/32 dev w1")

    def index_of(n):
        """The index of the GID of an address that comes."""
        gid = bytes(10) + b"\xff\xff" + bytes((10, 9, 9, n))
        entries = a.file.entries
        found = ulp.until(lambda: [e.index for e in entries("GID_QUERY", "gid_entry", port=1) if bytes(e.gid) == gid])
        return found[0] if found else None

    for _ in range(10):
        change("add", 1)
        first = index_of(1)
        qp = Qp(a.file, a.pd, a.cq)
        qp.modify("STATE PKEY_INDEX PORT ACCESS_FLAGS", qp_state=N["QPS_INIT"], port_num=a.file.port)
        path = S["ah_attr"](sgid_index=first, port_num=a.file.port, is_global=1)
        # Nobody has that address; the kernel looks for it for a second (addr.c).
        ctypes.memmove(path.dgid, bytes(10) + b"\xff\xff\x0a\x09\x00\x4d", 16)
        call = in_background(qp.to_rtr, path)
        ulp.until(lambda call=call: ulp.resolves(call) or not call.is_alive())
        change("del", 1)
        change("add", 2)
        second = index_of(2)
        if ulp.resolves(call):
            break
        ended(call)
        change("del", 2)
    r.check("QP_MODIFY looks for the peer while its source address is replaced", call.is_alive())
    r.check("... another address has another index", second != first, (first, second))
    said = ended(call)
    # EINVAL if the search looks at the GID once more (core/cache.c:rdma_read_gid_attr_ndev_rcu).
    r.check("... QP_MODIFY fails", said in ("EHOSTUNREACH", "ENETUNREACH", "ETIMEDOUT", "EINVAL"), said)
    change("del", 2)
    for n in range(3, 40):
        change("add", n)
        last = index_of(n)
        change("del", n)
        if last == first:
            break
    r.equal("... after it the index is used again", last, first)
    a.file.close()


def test_busy(r):
    """A thread that waits polls the device's queue before it sleeps, on the only CPU too."""
    a, b = ulp.End("h1"), ulp.End("h2")
    # What 50 waits that poll for 10 ms use for it, at least: half of it.
    polling = 50 * 10_000_000 // 2

    def cpu_time(busy_poll_us):
        """The CPU time of 50 waits in vain."""
        cq = Cq(a.file, 16, N["DELIVER_WORKQUEUE"], busy_poll_us)
        before = time.thread_time_ns()
        errors = [a.file.submit(cq=cq.handle, min_complete=1, timeout_ns=20_000_000).wait_error for _ in range(50)]
        used = time.thread_time_ns() - before
        r.equal(f"waits in vain, with {busy_poll_us} us of polling", errors, 50 * [-errno.ETIME])
        a.file.destroy(cq.handle)
        return used

    polls, sleeps = cpu_time(10_000), cpu_time(0)
    r.check("a thread that polls uses its CPU", polls - sleeps > polling, f"{polls} ns, {sleeps} ns without polling")
    second = pathlib.Path("/sys/devices/system/cpu/cpu1/online")
    second.write_text("0")
    try:
        alone = cpu_time(10_000)
    finally:
        second.write_text("1")
    r.check("it polls on the only CPU too", alone - sleeps > polling, f"{alone} ns, {sleeps} ns without polling")

    a.file.destroy(a.qp.handle)
    a.cq = Cq(a.file, 256, N["DELIVER_WORKQUEUE"], 10_000)
    a.qp = Qp(a.file, a.pd, a.cq)
    a.psn = a.qp.num * 4099 & 0xFFFFFF
    a.meet(b)
    a.file.submit([a.qp.wr("RECV", a.buffer, 0, 8, user_data=i) for i in range(100)])
    sender = in_background(lambda: [b.file.submit([b.qp.wr("SEND", b.buffer, 0, 8)]) for _ in range(100)])
    r.equal(
        "messages that come while it polls",
        [(c.user_data, c.status) for c in a.cq.wait(100)],
        [(i, 0) for i in range(100)],
    )
    sender.join()


def test_many(r):
    """One call over several queue pairs, in turns."""
    a, b = pair()
    others = []
    for _ in range(7):
        qa, qb = Qp(a.file, a.pd, a.cq), Qp(b.file, b.pd, b.cq)
        psn_a, psn_b = qa.num, qb.num
        qa.connect(qb.num, b.file.gid().gid, psn_b, psn_a)
        qb.connect(qa.num, a.file.gid().gid, psn_a, psn_b)
        others.append(qa)
    qps = [a.qp, *others]
    a.buffer.map[:] = pattern(1, a.buffer.length)
    wrs = [
        qps[i % 8].wr("RDMA_WRITE", a.buffer, 64 * i, 64, **remote(b.grant, 64 * i), user_data=i) for i in range(200)
    ]
    got = a.file.submit(wrs, cq=a.cq.handle, min_complete=200, timeout_ns=ulp.hang_ns())
    done = a.cq.reap()
    r.equal("200 writes over 8 queue pairs in one call", (got.posted, got.completed, len(done)), (200, 200, 200))
    r.equal(
        "each completes once, in order on its queue pair",
        [[c.user_data for c in done if c.qp == q.handle] for q in qps],
        [list(range(k, 200, 8)) for k in range(8)],
    )
    r.check("the data is in place", b.buffer.map[:12800] == a.buffer.map[:12800], "it differs")
    bad = list(wrs)
    bad[150] = a.write(b, 1, 65536)
    b.buffer.map[:] = bytes(b.buffer.length)
    a.buffer.map[:12800] = b"x" * 12800
    got = a.file.try_submit(bad)[:3]
    r.equal("SUBMIT of 200 writes, number 150 out of range: 150 are posted", got, ("ERANGE", 150, "ERANGE"))
    done = a.cq.wait(150)
    r.equal(
        "... they complete, in order on each queue pair",
        [[c.user_data for c in done if c.qp == q.handle] for q in qps],
        [list(range(k, 150, 8)) for k in range(8)],
    )
    r.equal("... and no other writes", (a.cq.reap(), b.buffer.map[:12800].count(b"x")), ([], 64 * 150))


def refusals(a, b, good):
    """Requests that SUBMIT refuses, each at another step of its way: a name, the request, the errno."""
    unready = Qp(a.file, a.pd, a.cq)
    foreign = Buffer(a.file, a.file.pd(), 4096)
    inline = N["SEND_INLINE"] | N["SEND_SIGNALED"]
    sge = S["sge"]
    return (
        ("a flag that is not defined", good(flags=0x8000), "EINVAL"),
        ("an opcode that is not defined", good(opcode=99), "EINVAL"),
        ("a handle of no queue", good(qp=0), "ENOENT"),
        ("a queue pair in RESET", good(qp=unready.handle), "ENOTCONN"),
        ("a handle of no buffer", good(sge=sge(buffer=0x7777, length=8)), "ENOENT"),
        ("a buffer of another domain", good(sge=sge(buffer=foreign.handle, length=8)), "EXDEV"),
        ("an element out of range", good(sge=sge(buffer=a.buffer.handle, length=8, offset=1 << 20)), "ERANGE"),
        ("elements that cannot be read", good(num_sge=2, sge=sge(offset=8)), "EFAULT"),
        ("inline data that cannot be read", good(flags=inline, sge=sge(offset=8, length=8)), "EFAULT"),
        ("too much inline data", good(flags=inline, sge=sge(buffer=a.buffer.handle, length=1000)), "EMSGSIZE"),
    )


def test_stops(r):
    """SUBMIT posts in order, and stops at the first request that is refused."""
    a, b = pair(access=ALL, depth=32, max_inline=64, max_send_sge=2)
    a.buffer.map[:] = b"x" * a.buffer.length
    far = remote(b.grant)

    def good(place=7, **fields):
        wr = a.write(b, 8, remote_offset=8 * place, user_data=place)
        for name, value in fields.items():
            setattr(wr, name, value)
        return wr

    hang = ulp.hang_ns()
    wait = {"cq": a.cq.handle, "min_complete": 5, "timeout_ns": hang}
    for what, bad, want in refusals(a, b, good):
        for silent in (0, N["SEND_SIGNALED"]):
            b.buffer.map[:64] = bytes(64)
            before = [good(0), good(1, flags=silent), good(2, num_sge=0, sge=S["sge"]())]
            *got, arg = a.file.try_submit([*before, bad, good(4)], **wait)
            name = f"{what}, after three writes, flags {silent}"
            r.equal(f"{name}: SUBMIT fails, three are posted", got, [want, 3, want])
            r.equal("... it does not wait", (arg.completed, arg.timeout_ns), (0, hang))
            signaled = [0, 1, 2] if silent else [0, 2]
            done = [(c.user_data, c.status) for c in a.cq.wait(len(signaled))]
            r.equal("... they complete", done, [(i, 0) for i in signaled])
            r.equal("... and write, no other", (a.cq.reap(), b.buffer.map[:64]), ([], b"x" * 16 + bytes(48)))
        *got, arg = a.file.try_submit([bad, good(4)], **wait)
        r.equal(f"{what}, first: nothing is posted", [*got, arg.timeout_ns], [want, 0, want, hang])
    r.equal("nothing else completes", a.cq.reap(), [])

    with mmap.mmap(-1, 2 * mmap.PAGESIZE) as area:
        start, two = ulp.address_of(area), bytes(good(0)) + bytes(good(1))
        area[mmap.PAGESIZE - len(two) : mmap.PAGESIZE] = two
        ulp.libc.mprotect(ctypes.c_void_p(start + mmap.PAGESIZE), ctypes.c_size_t(mmap.PAGESIZE), 0)
        *got, _ = a.file.try_submit([], wrs=start + mmap.PAGESIZE - len(two), nr_wrs=4)
        r.equal("an array whose third request cannot be read: two are posted", got, ["EFAULT", 2, "EFAULT"])
        r.equal("... they complete", [(c.user_data, c.status) for c in a.cq.wait(2)], [(0, 0), (1, 0)])
    spoiled = (ctypes.c_char * 400).from_buffer_copy(b"".join(bytes(good(i)).ljust(100, b"\0") for i in range(4)))
    spoiled[299] = b"\1"
    *got, _ = a.file.try_submit([], wrs=ctypes.addressof(spoiled), nr_wrs=4, wr_size=100)
    r.equal("a third request with bytes that the kernel does not know: two are posted", got, ["E2BIG", 2, "E2BIG"])
    r.equal("... they complete", [(c.user_data, c.status) for c in a.cq.wait(2)], [(0, 0), (1, 0)])

    def when_room(wrs):
        """What SUBMIT says when the queue is not full, which only the device changes."""
        return ulp.until(lambda: (got := a.file.try_submit(wrs)[:3])[2] != "EAGAIN" and got, 5)

    silent = [a.qp.wr("RDMA_WRITE", flags=0, **far)] * 5
    errors = {when_room([*silent, good(qp=0)]) for _ in range(200)}
    r.equal("200 lists of silent writes that are stopped: room comes back", errors, {("ENOENT", 5, "ENOENT")})
    long = good(flags=N["SEND_INLINE"], sge=S["sge"](buffer=a.buffer.handle, length=1000))
    errors = {when_room([long, good(0)]) for _ in range(200)}
    r.equal("200 lists of which the first is refused: room comes back", errors, {("EMSGSIZE", 0, "EMSGSIZE")})
    r.equal("... a write after them is posted", when_room([good(0)]), ("none", 1, "none"))
    r.equal("... and makes the only completion", [c.user_data for c in a.cq.wait(1)], [0])


def test_same_shape(r):
    """Requests with one opcode, number of elements and flags: each is looked at, and each other one of a list, too."""
    a, b = pair(access=ALL)
    timed = N["REQUEST_TIMEOUT"]

    def write(place, **fields):
        return a.write(b, 8, 8 * place, remote_offset=8 * place, user_data=place, **fields)

    def send(place, **fields):
        return a.qp.wr("SEND", a.buffer, 8 * place, 8, user_data=place, **fields)

    def recv(place, **fields):
        return b.qp.wr("RECV", b.buffer, 8 * place, 8, user_data=place, **fields)

    def changed(wr, **fields):
        for name, value in fields.items():
            setattr(wr, name, value)
        return wr

    def of_length(wr, length):
        return changed(wr, sge=S["sge"](wr.sge.buffer, length))

    def with_operand(wr):
        wr.args.atomic.swap = 1
        return wr

    for what, end, make, spoil, want in (
        ("immediate data of a write", a, write, lambda wr: changed(wr, imm_data=1), "EINVAL"),
        ("an operand of a write", a, write, with_operand, "EINVAL"),
        ("a time without its flag", a, write, lambda wr: changed(wr, timeout_ns=1), "EINVAL"),
        (
            "a flag without its time",
            a,
            lambda place: write(place, timeout_ns=N["TIMEOUT_INFINITE"]),
            lambda wr: changed(wr, timeout_ns=0, flags=wr.flags | timed),
            "EINVAL",
        ),
        ("a write of too many bytes", a, write, lambda wr: of_length(wr, (1 << 31) + 1), "EMSGSIZE"),
        ("a write outside of the buffer", a, write, lambda wr: of_length(wr, 1 << 20), "ERANGE"),
        ("a peer's key of a send", a, send, lambda wr: changed(wr, rkey=1), "EINVAL"),
        ("a peer's address of a receive", b, recv, lambda wr: changed(wr, remote_addr=8), "EINVAL"),
        ("immediate data of a receive", b, recv, lambda wr: changed(wr, imm_data=1), "EINVAL"),
    ):
        if make is send:
            b.file.submit([recv(0), recv(1)])
        good, other, bad = make(0), make(1), spoil(make(2))
        name = f"{what}, after two that have none"
        got = end.file.try_submit([good, other, bad, make(3)])[:3]
        r.equal(f"{name}: two are posted", got, (want, 2, want))
        if make is recv:
            a.file.submit([send(0), send(1)])
        if make in (send, recv):
            b.cq.wait(2)
        done = [(c.user_data, c.status) for c in a.cq.wait(2)]
        r.equal("... and complete", (done, a.cq.reap()), ([(0, 0), (1, 0)], []))

    a.buffer.map[:64], b.buffer.map[:64] = pattern(1, 64), pattern(2, 64)
    read = a.qp.wr("RDMA_READ", a.buffer, 32, 8, **remote(b.grant, 56), user_data=2)
    a.file.submit([write(0), write(1, flags=0), read, write(3), write(2, flags=0), write(5)])
    done = [(c.user_data, c.opcode, c.status) for c in a.cq.wait(4)]
    write_done, read_done = N["WC_RDMA_WRITE"], N["WC_RDMA_READ"]
    want = [(0, write_done, 0), (2, read_done, 0), (3, write_done, 0), (5, write_done, 0)]
    r.equal("opcodes and flags in turn: each has its own", (done, a.cq.reap()), (want, []))
    expected = pattern(1, 32) + pattern(2, 64)[32:40] + pattern(1, 64)[40:48] + pattern(2, 64)[48:]
    r.equal("... the writes write", b.buffer.map[:64], expected)
    r.equal("... the read reads", a.buffer.map[32:40], pattern(2, 64)[56:])


def test_stops_when_full(r):
    """A queue that is full ends SUBMIT after the first request, which still waits."""
    a, b = pair(access=ALL, depth=16, entries=64, connect={"retry_cnt": 7, "rnr_retry": 7})
    depth = a.file.call("QP_QUERY", qp=a.qp.handle).max_send_wr
    total = 3 * depth + 1
    a.buffer.map[:] = pattern(5, a.buffer.length)
    wrs = [a.write(b, 8, offset=8 * i, remote_offset=8 * i, user_data=i) for i in range(total)]
    hang, done, rounds = ulp.hang_ns(), [], []
    rest = wrs
    while rest and len(rounds) < 100:
        why, posted, stop, arg = a.file.try_submit(rest, cq=a.cq.handle, min_complete=1, timeout_ns=hang)
        if (why, posted) == ("EAGAIN", 0):
            # The requests before have taken the places of all that completed: one of them completes.
            done += a.cq.wait(1)
            continue
        if why != "none":
            break
        rounds.append((posted <= depth, stop == ("none" if posted == len(rest) else "EAGAIN"), arg.wait_error))
        done += a.cq.reap()
        rest = rest[posted:]
    r.equal(
        "SUBMIT of more than the queue holds: 0, the first are posted, and it waits", set(rounds), {(True, True, 0)}
    )
    done += a.cq.wait(total - len(done))
    r.equal("... what is submitted from there on completes in order", [c.user_data for c in done], list(range(total)))
    r.equal("... and all arrive", b.buffer.map[: 8 * total] == a.buffer.map[: 8 * total], True)

    silent = [a.write(b, 8, flags=0)] * depth
    *got, arg = a.file.try_submit([*silent, a.write(b, 8)], cq=a.cq.handle, min_complete=1, timeout_ns=hang)
    r.equal(
        "of more writes than the queue holds the last one is signaled: the others are posted",
        (got, arg.wait_error, arg.completed),
        (["none", depth, "EAGAIN"], 0, 0),
    )
    ends = ulp.until(lambda: error_of(a.file.submit, [a.write(b, 8, user_data=total)]) == "none")
    r.equal("... and it finds room when they have completed", (ends, a.cq.wait(1)[0].user_data), (True, total))

    elsewhere = Qp(a.file, a.pd, Cq(a.file, 8))
    elsewhere.modify("STATE PKEY_INDEX PORT ACCESS_FLAGS", qp_state=N["QPS_INIT"], port_num=a.file.port)
    receive = elsewhere.wr("RECV", a.buffer, 0, 8)
    *got, arg = a.file.try_submit([receive, *silent, a.write(b, 8)], cq=a.cq.handle, min_complete=1, timeout_ns=hang)
    r.equal(
        "with a receive that completes in another completion queue it waits for nothing",
        (got, arg.wait_error, arg.completed),
        (["none", 1 + depth, "EAGAIN"], 0, 0),
    )
    ends = ulp.until(lambda: error_of(a.file.submit, [a.write(b, 8, user_data=total)]) == "none")
    r.equal("... and the queue has room when they have completed", (ends, a.cq.wait(1)[0].user_data), (True, total))

    # The peer has no receives: nothing completes.
    spare = Buffer(a.file, a.pd, 4096)
    spare.map[:4096] = pattern(6, 4096)
    sends = [a.qp.wr("SEND", spare, 64 * i, 64, user_data=i) for i in range(depth + 4)]
    *got, arg = a.file.try_submit(sends, cq=a.cq.handle, min_complete=1, timeout_ns=10**6)
    r.equal("with sends that wait: the queue's depth is posted", got, ["none", depth, "EAGAIN"])
    r.equal("... and the wait ends by time", (arg.wait_error, arg.completed, arg.timeout_ns), (-errno.ETIME, 0, 0))
    *got, arg = a.file.try_submit(sends[depth:], cq=a.cq.handle, min_complete=1, timeout_ns=hang)
    r.equal("the first finds no room: EAGAIN, nothing is posted", got, ["EAGAIN", 0, "EAGAIN"])
    r.equal("... and nothing waits", (arg.wait_error, arg.timeout_ns), (0, hang))
    errors = {a.file.try_submit(sends[depth:])[:3] for _ in range(100)}
    r.equal("... nor does it 100 times more", errors, {("EAGAIN", 0, "EAGAIN")})
    # The room of these in the completion queue has come back.
    other = Qp(a.file, a.pd, a.cq)
    other.modify("STATE PKEY_INDEX PORT ACCESS_FLAGS", qp_state=N["QPS_INIT"], port_num=a.file.port)
    recvs = [other.wr("RECV", a.buffer, 0, 8, user_data=100 + i) for i in range(2)]
    *got, _ = a.file.try_submit([*recvs, sends[0], *recvs])
    r.equal("a full queue after another one: that one's are posted", got, ["none", 2, "EAGAIN"])
    # The requests keep the memory, also those before the one that was stopped. A mapping would keep it, too.
    spare.map.close()
    a.file.destroy(spare.handle)
    # If it were free, these would take it.
    for later in [Buffer(a.file, a.pd, 4096) for _ in range(64)]:
        later.map[:4096] = pattern(7, 4096)
    b.file.submit([b.qp.wr("RECV", b.buffer, 64 * i, 64) for i in range(depth)])
    done = [(c.user_data, c.status) for c in a.cq.wait(depth)]
    r.equal("the posted sends succeed when their buffer is destroyed", done, [(i, 0) for i in range(depth)])
    r.equal("... and arrive", (len(b.cq.wait(depth)), b.buffer.map[: 64 * depth]), (depth, pattern(6, 64 * depth)))
    other.modify("STATE", qp_state=N["QPS_ERR"])
    flushed = [(c.user_data, c.status) for c in a.cq.wait(2)]
    r.equal("two receives were posted", (flushed, a.cq.reap()), ([(100, 5), (101, 5)], []))


def test_reaped(r):
    """A completion that was read has made room: as many requests are posted at once, whoever handles completions."""
    for what, depth, entries in (("send queue", 16, 256), ("completion queue", 256, 16)):
        a, b = pair(depth=depth, entries=entries)
        hang, said = time.monotonic() + 20 * ulp.PATIENCE, set()
        got = a.file.try_submit([a.write(b, 8)] * 64)[:3]
        r.equal(f"64 writes, room for 16 in the {what}: 16 are posted", got, ("none", 16, "EAGAIN"))
        for _ in range(ulp.count("ULP_WRITES", 1000, 300)):
            while not (done := a.cq.reap()) and time.monotonic() < hang:
                pass
            why, posted, stop, _ = a.file.try_submit([a.write(b, 8)] * len(done))
            said.add((why, posted == len(done) > 0, stop))
        r.equal("... for each completion that was read another one is posted", said, {("none", True, "none")})


class Renamer(threading.Thread):
    """Gives a device two names in turns, as `rdma dev set` does, until it is stopped. `last` is its name then."""

    def __init__(self, index, names, last):
        super().__init__(daemon=True)
        self.requests = itertools.cycle([self.request(index, name) for name in names])
        self.last = self.request(index, last)
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 20)  # NETLINK_RDMA
        self.stopped, self.count, self.errors = False, 0, []

    @staticmethod
    def request(index, name):
        """RDMA_NLDEV_CMD_SET with RDMA_NLDEV_ATTR_DEV_INDEX and RDMA_NLDEV_ATTR_DEV_NAME."""
        text = name.encode() + b"\0"
        attributes = struct.pack("<HHI", 8, 1, index) + struct.pack("<HH", 4 + len(text), 2) + text
        attributes = attributes.ljust((len(attributes) + 3) & ~3, b"\0")
        # RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_SET); NLM_F_REQUEST | NLM_F_ACK
        return struct.pack("<IHHII", 16 + len(attributes), 5 << 10 | 2, 1 | 4, 0, 0) + attributes

    def rename(self, request):
        self.socket.send(request)
        error = struct.unpack_from("<i", self.socket.recv(4096), 16)[0]
        if error and error not in self.errors:
            self.errors.append(error)
        self.count += 1

    def run(self):
        while not self.stopped:
            self.rename(next(self.requests))
        self.rename(self.last)


def test_renamed(r):
    """A device is renamed in a loop while its name is listed, looked up and queried."""
    file = ulp.File("h1", ulp.DEV1)
    # As long as names may be: the core writes them in pieces, and a reader may see some of both.
    names = {"a" * 63, "b" * 63}
    index = next(d.index for d in file.devices() if ulp.text(d.name) == ulp.DEV1)
    renamer = Renamer(index, sorted(names), ulp.DEV1)
    listed, queried, attached, found = set(), set(), set(), set()

    def attach(name):
        with contextlib.closing(ulp.File("h1")) as other:
            found.add(error_of(lambda: attached.add(ulp.text(other.attach(name).name))))

    renamer.start()
    try:
        for _ in range(ulp.count("ULP_ROUNDS", 300, 100)):
            listed |= {ulp.text(d.name) for d in file.devices() if d.index == index}
            queried |= {ulp.text(file.call("DEVICE_QUERY").name) for _ in range(20)}
            for name in names:
                attach(name)
    finally:
        renamer.stopped = True
        renamer.join()
    r.check("the device is renamed meanwhile", renamer.count > 100 and not renamer.errors, renamer.errors)
    for command, seen in (("DEVICE_LIST", listed), ("DEVICE_QUERY", queried), ("ATTACH", attached)):
        # The first calls may come before the first rename.
        r.equal(f"{command} during renames: each name is one of the two", seen - names - {ulp.DEV1}, set())
        r.check(f"{command} during renames: it succeeds", seen & names, "it saw no new name")
    r.equal("ATTACH by either name during renames: it is found, or ENOENT", found - {"none", "ENOENT"}, set())


def test_listed(r):
    """DEVICE_LIST asks the driver for the state of each port once, whatever the number of its GIDs."""
    file = ulp.File("h1")
    with tracing.Trace("function", ["ib_query_port"]) as trace:
        devices = file.devices()
    asked = [e for e in trace.records() if e["what"].startswith("ib_query_port") and int(e["pid"]) == os.getpid()]
    # Of a device that has only addresses of other namespaces no port is asked for.
    ports = [d.phys_ports for d in devices if d.flags & N["DEVICE_LOCAL_NET"]]
    r.check("DEVICE_LIST has devices of this namespace", ports)
    r.equal("DEVICE_LIST: ib_query_port() once for each of their ports", len(asked), sum(ports))


def test_domains(r):
    a, b = pair()
    pd = a.file.pd()
    foreign = Buffer(a.file, pd, 4096)
    wr = a.qp.wr("RDMA_WRITE", foreign, 0, 8, **remote(b.grant))
    inline = a.qp.wr("RDMA_WRITE", foreign, 0, 8, **remote(b.grant), flags=N["SEND_INLINE"])
    r.equal(
        "a buffer of another protection domain, also with inline data",
        [error_of(a.file.submit, [w]) for w in (wr, inline)],
        ["EXDEV"] * 2,
    )
    r.equal("a domain with a buffer", error_of(a.file.destroy, pd), "EBUSY")
    r.equal("a buffer with a grant", error_of(a.file.destroy, a.buffer.handle), "EBUSY")
    r.equal("a completion queue with a queue pair", error_of(a.file.destroy, a.cq.handle), "EBUSY")
    a.file.destroy(foreign.handle)
    a.file.destroy(pd)
    for handle in (a.qp.handle, a.grant.handle, a.buffer.handle, a.cq.handle, a.pd):
        a.file.destroy(handle)
    r.equal("and all of it in order", error_of(a.file.destroy, a.pd), "ENOENT")


def test_queried(r):
    """A thread that asks about a grant or a buffer keeps nobody from destroying what that used."""
    a = pair()[0]
    known, over, wrong = {}, threading.Event(), []

    def ask():
        while not over.is_set():
            for command, name in (("GRANT_QUERY", "grant"), ("BUFFER_QUERY", "buffer")):
                error_of(a.file.call, command, **{name: known.get(name, 0)})

    asking = threading.Thread(target=ask)
    asking.start()
    for _ in range(200):
        pd = a.file.pd()
        buffer = Buffer(a.file, pd, 4096)
        known["buffer"] = buffer.handle
        known["grant"] = grant = a.file.grant(buffer, ALL).handle
        for handle in (grant, buffer.handle, pd):
            if (why := error_of(a.file.destroy, handle)) != "none":
                wrong.append(why)
                ulp.until(lambda handle=handle: error_of(a.file.destroy, handle) == "none")
    over.set()
    asking.join()
    r.equal("grants, buffers and domains that another thread asks about are destroyed at once", wrong, [])


def test_too_long_inline(r):
    """Requests after one with too much inline data take no room that another thread needs."""
    a, b = pair(entries=64)
    other, over = Qp(a.file, a.pd, a.cq, max_inline=8), threading.Event()
    other.connect(other.num, a.file.gid().gid, 0, 0)
    wr = other.wr("RDMA_WRITE", a.buffer, 0, 256, **remote(b.grant), flags=N["SEND_INLINE"])
    refused = set()

    def refuse():
        while not over.is_set():
            refused.add(error_of(a.file.submit, [wr] * 64))

    refusing = threading.Thread(target=refuse)
    refusing.start()
    wrong = set()
    for _ in range(500):
        if (why := error_of(a.file.submit, [a.write(b, 8)])) == "none":
            wrong |= {c.status for c in a.cq.wait(1)} - {0}
        else:
            wrong.add(why)
    over.set()
    refusing.join()
    r.equal("a thread posts too much inline data again and again", refused, {"EMSGSIZE"})
    r.equal("... and another one writes meanwhile", wrong, set())


def regions():
    out = subprocess.run(
        ["rdma", "resource", "show", "mr"], capture_output=True, text=True, check=True, timeout=20 * ulp.PATIENCE
    ).stdout
    return sum("rust_ulp" in line for line in out.splitlines())


def test_flight(r):
    """A buffer is destroyed while the device reads it: one of the kernel's pages, and one that has regions."""
    size = 8 << 20
    # Where its pages are not one behind the other, a buffer has several keys.
    room = {"max_send_sge": min(8, HERE.send_sge), "max_recv_sge": min(8, HERE.send_sge)}
    a, b = pair(length=size, **room)
    want = pattern(12, size)
    spare = Buffer(a.file, a.pd, size)
    spare.map[:] = want
    fly(r, "", a, b, spare, spare.map, want)
    # The slots of those may keep regions.
    a, b = pair(length=size, **room)
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:] = want
    spare = UserBuffer(a.file, a.pd, memory, flags=N["BUFFER_READ_ONLY"])
    before = regions()
    fly(r, "read-only: ", a, b, spare, memory, want)
    other = Buffer(a.file, a.pd, 4096)
    a.file.destroy(other.handle)
    r.equal("the regions go when the next buffer does", regions(), before - spare.keys)
    for _ in range(200):
        a.file.destroy(a.file.grant(a.buffer, ALL, 100, 1000).handle)
    r.equal("two hundred grants come and go", regions(), before - spare.keys)
    before = regions()
    UserBuffer(a.file, a.pd, mmap.mmap(-1, 4096), flags=N["BUFFER_READ_ONLY"])
    r.equal("a read-only page has a region", regions(), before + 1)


def fly(r, name, a, b, spare, memory, want):
    """Destroys `spare`, of `memory`, while a send of it is under way."""
    size = len(want)
    # It cannot end before the peer has a receive for it.
    a.file.submit([a.qp.wr("SEND", spare, 0, size, user_data=1)])
    r.equal(f"{name}a buffer with a request under way can be destroyed", error_of(a.file.destroy, spare.handle), "none")
    again = a.qp.wr("RDMA_WRITE", spare, 0, 8, **remote(b.grant))
    r.equal(f"{name}its handle is gone", error_of(a.file.submit, [again]), "ENOENT")
    r.equal(
        f"{name}the request is under way still",
        (a.cq.reap(), a.file.call("QP_QUERY", qp=a.qp.handle).sends_in_flight),
        ([], 1),
    )
    b.buffer.map[:] = bytes(size)
    b.file.submit([b.qp.wr("RECV", b.buffer, 0, size)])
    r.equal(f"{name}the request ends well all the same", [(c.user_data, c.status) for c in a.cq.wait(1)], [(1, 0)])
    b.cq.wait(1)
    r.check(f"{name}with the right bytes", b.buffer.map[:] == want, "they differ")
    r.check(f"{name}the mapping stays", memory[:] == want, "it changed")


def test_room(r):
    """A queue is as long as it says, also while what lies in its free places is cleared away."""
    a, b = pair(access=ALL, depth=32, max_send_wr=4096)
    stop, said, under_way = threading.Event(), set(), 0

    def churn():
        while not stop.is_set():
            got = a.file.call("BUFFER_CREATE", pd=a.pd, node=N["NODE_ANY"], length=4096)
            a.file.destroy(got.handle)

    threads = [threading.Thread(target=churn, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(ulp.count("ULP_WRITES", 1000, 500)):
            error = error_of(a.file.submit, [a.write(b, 8)])
            said.add(error)
            under_way += error == "none"
            under_way -= len(a.cq.wait(32) if under_way > 64 else a.cq.reap())
    finally:
        stop.set()
        for thread in threads:
            thread.join(30 * ulp.PATIENCE)
    r.equal("one more than 64 finds a place, whatever is destroyed meanwhile", said, {"none"})


def test_both_full(r):
    """A list that neither its queue nor the completion queue can hold keeps no room for what is not posted."""
    a, b = ulp.End("h1"), ulp.End("h2")
    cq, where = Cq(a.file, 32), (b.qp.num, b.file.gid().gid, 0, 0)
    short, long = (Qp(a.file, a.pd, cq, depth=depth) for depth in (8, 64))
    for qp in short, long:
        qp.connect(*where, lid=b.file.lid())
    depth = a.file.call("QP_QUERY", qp=short.handle).max_recv_wr
    r.equal("the short queue takes fewer receives than the completion queue has entries", depth < cq.entries, True)
    got = [a.file.try_submit([qp.wr("RECV", a.buffer, 0, 8)] * 40)[:3] for qp in (short, long)]
    r.equal("40 receives for the short queue: it is filled", got[0], ("none", depth, "EAGAIN"))
    r.equal("40 for another one: they take all entries that are left", got[1], ("none", cq.entries - depth, "EAGAIN"))


def test_reserve(r):
    """A completion queue of the device has an entry beside those of the ring: draining needs it.

    rxe rounds the number up, so that a queue without it works as well: what is asked for counts.
    """
    file, asked = ulp.File("h1", ""), []
    tracing.write("tracing_on", "1")
    # `cqe` is the first member of the attributes.
    tracing.write("kprobe_events", "p:ulp_asked ib_core:__ib_create_cq cqe=+0($arg5):u32\n")
    try:
        tracing.write("events/kprobes/ulp_asked/enable", "1")
        for entries in (1, 16, 256):
            tracing.write("trace", "")
            Cq(file, entries)
            asked.append((entries, [int(n) for n in re.findall(r"ulp_asked: .*cqe=(\d+)", tracing.read("trace"))]))
        tracing.write("events/kprobes/ulp_asked/enable", "0")
    finally:
        tracing.write("kprobe_events", "\n")
    r.equal("the device is asked for one entry more than the ring has", asked, [(n, [n + 1]) for n in (1, 16, 256)])


def test_holds(r):
    """Locks are held for a bounded number of requests: 64 that are posted, 1,024 that complete."""
    a, b = pair(depth=200)
    budgets, calls = [], []
    probes = "p:ulp_post rust_ulp:rust_ulp_post_send\np:ulp_poll ib_core:ib_process_cq_direct budget=$arg2:s32\n"
    tracing.write("kprobe_events", probes)
    tracing.write("tracing_on", "1")
    try:
        tracing.write("trace", "")
        tracing.write("events/kprobes/enable", "1")
        for count in (64, 65, 200):
            tracing.write("trace", "")
            a.file.submit([a.write(b, 8)] * count)
            calls.append(tracing.read("trace").count(" ulp_post:"))
            a.cq.wait(count)
        tracing.write("trace", "")
        many = Cq(a.file, 4096)
        queues = [Qp(a.file, a.pd, many, depth=128) for _ in range(16)]
        for q in queues:
            q.modify("STATE PKEY_INDEX PORT ACCESS_FLAGS", qp_state=N["QPS_INIT"], port_num=a.file.port)
            a.file.submit([q.wr("RECV", a.buffer, 0, 8)] * 128)
        for q in queues:
            a.file.destroy(q.handle)
        budgets = [int(n) for n in re.findall(r" ulp_poll: .* budget=(\d+)", tracing.read("trace"))]
    finally:
        # Those that are on cannot be removed.
        tracing.write("events/kprobes/enable", "0")
        tracing.write("kprobe_events", "\n")
    r.equal("the driver gets 64, 65, 200 requests in 1, 2, 4 calls", calls, [1, 2, 4])
    r.equal("with 2,048 completions a queue is polled for 1,024 at most", max(budgets), 1024)
    r.equal("... and all of them come", [c.status for c in many.wait(2048)], [5] * 2048)


def test_waiters(r):
    """Two wait for one queue: a completion wakes the one that came first and needs less."""
    a, b = pair()
    rounds, states, statuses = 10, [], []
    with tracing.Trace() as trace:
        for i in range(rounds):
            sleepers = []
            for count in (1, 3):
                waiter = in_background(
                    lambda n=count: a.file.submit(cq=a.cq.handle, min_complete=n, timeout_ns=LONG).wait_error
                )
                states.append(ulp.until(lambda thread=waiter: ulp.sleeps_in_module(thread)))
                sleepers.append(waiter)
            a.file.submit([a.write(b, 8, user_data=100 + i)])
            states.append(ended(sleepers[0]))
            a.file.submit([a.write(b, 8) for _ in range(2)])
            states.append(ended(sleepers[1]))
            statuses += [c.status for c in a.cq.reap()]
    r.equal("both sleep, and go on without an error", states, [True, True, 0, 0] * rounds)
    r.equal("for completions that are there", statuses, [0, 0, 0] * rounds)
    woke = {e["user_data"]: e["woke"] for e in trace.events("deliver")}
    r.equal("the first completion wakes, each time", [woke.get(100 + i) for i in range(rounds)], [1] * rounds)


def test_served(r):
    """A thread that sleeps in a wait polls the device's queue itself; a worker polls when none does."""
    a, b = pair()
    rounds, threads, states = 20, [], []
    with tracing.Trace() as trace:
        for i in range(rounds):
            waiter = in_background(lambda: a.file.submit(cq=a.cq.handle, min_complete=1, timeout_ns=LONG).wait_error)
            states.append(ulp.until(lambda thread=waiter: ulp.sleeps_in_module(thread)))
            threads.append(waiter.native_id)
            a.file.submit([a.write(b, 8, user_data=100 + i)])
            states.append(ended(waiter))
            a.cq.reap()
        a.file.submit([a.write(b, 8, user_data=99)])
        ulp.until(lambda: a.cq.reap())
    r.equal("each sleeps, and goes on without an error", states, [True, 0] * rounds)
    by = {e["user_data"]: (e["comm"], e["pid"]) for e in trace.events("completion")}
    others = [by[100 + i] for i in range(rounds) if by[100 + i][1] != threads[i]]
    r.check(
        "each has handled the completion it slept for, unless a worker took over",
        len(others) <= len(trace.events("take_over")),
        others,
    )
    r.equal("a worker handles what nobody waits for", by[99][0].split("/")[0], "kworker")


def test_served_early(r):
    """A thread that posts and waits in one call handles its completion itself, however early that comes."""
    a, b = pair()
    rounds = 200
    with tracing.Trace() as trace:
        for i in range(rounds):
            a.file.submit([a.write(b, 8, user_data=i)], cq=a.cq.handle, min_complete=1, timeout_ns=LONG)
            a.cq.reap()
    by = [(e["comm"], e["pid"]) for e in trace.events("completion")]
    others = [it for it in by if it[1] != threading.get_native_id()]
    r.check(
        "no worker handles a completion, unless it took over", len(others) <= len(trace.events("take_over")), others
    )
    r.equal("... and each completes once", len(by), rounds)


def test_timers(r):
    """SUBMIT that waits without a limit arms no timer; with a limit it arms one."""
    a, b = pair()
    ends = []

    def wait(limit):
        waiter = in_background(lambda: a.file.submit(cq=a.cq.handle, min_complete=1, timeout_ns=limit).wait_error)
        ends.append(ulp.until(lambda: ulp.sleeps_in_module(waiter)))
        a.file.submit([a.write(b, 8)])
        ends.append(ended(waiter))
        a.cq.reap()
        return waiter

    r.equal("SUBMIT without a limit arms no timer", tracing.timeouts(lambda: wait(N["TIMEOUT_INFINITE"])), 0)
    r.check("SUBMIT with a limit arms one", tracing.timeouts(lambda: wait(LONG)), "none")
    r.equal("... both sleep, and end with the completion", ends, [True, 0] * 2)


def test_last(r):
    """A queue pair that is destroyed as soon as its last message is there acknowledges the message.

    rxe acknowledges after the completion. The receiver and rxe's worker have one CPU, which the receiver
    takes as soon as it is woken. A lost acknowledgment shows when the only try has taken 4.3 s.
    """
    rounds, seen = 10, []

    def receive(end):
        os.sched_setaffinity(0, {0})
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        got = end.file.submit(cq=end.cq.handle, min_complete=1, timeout_ns=LONG).wait_error
        end.file.destroy(end.qp.handle)
        return got

    def receive_early(end):
        end.qp.modify("STATE PKEY_INDEX PORT ACCESS_FLAGS", qp_state=N["QPS_INIT"], port_num=end.file.port)
        end.file.submit([end.qp.wr("RECV", end.buffer, 0, 8)])

    workers = pathlib.Path("/sys/devices/virtual/workqueue/cpumask")
    before = workers.read_text()
    workers.write_text("1")
    try:
        for turn in range(rounds):
            # Every other receive is posted before the queue pair can receive.
            early = turn % 2
            a, b = pair(connect={"timeout": 20, "retry_cnt": 0}, prepare=receive_early if early else None)
            if not early:
                b.file.submit([b.qp.wr("RECV", b.buffer, 0, 8)])
            receiver = in_background(receive, b)
            ulp.until(lambda thread=receiver: ulp.sleeps_in_module(thread))
            # In one call: the receiver need not wait for the interpreter.
            a.file.submit([a.qp.wr("SEND", a.buffer, 0, 8)], cq=a.cq.handle, min_complete=1, timeout_ns=LONG)
            seen.append(([c.status for c in a.cq.reap()], ended(receiver)))
            a.close()
            b.close()
    finally:
        workers.write_text(before)
    r.equal("each send succeeds", seen, [([0], 0)] * rounds)


def test_reset(r):
    """ERR and RESET at any time: every request completes, and the queue pair works again."""
    a, b = pair()
    for turn in range(5):
        a.file.submit([a.qp.wr("RECV", a.buffer, 0, 8, user_data=i) for i in range(20)])
        a.file.submit([a.write(b, 4096, user_data=100 + i) for i in range(100)])
        a.qp.modify("STATE", qp_state=N["QPS_ERR" if turn % 2 else "QPS_RESET"])
        got = a.cq.wait(120)
        ulp.each_once(r, f"turn {turn}: each request completes once, in order", got, "WC_RDMA_WRITE", 100)
        a.qp.modify("STATE", qp_state=N["QPS_RESET"])
        b.qp.modify("STATE", qp_state=N["QPS_RESET"])
        a.meet(b)
    a.buffer.map[:8] = b"resumed!"
    a.file.submit([a.write(b, 8)])
    r.equal("and it works again", (a.cq.wait(1)[0].status, b.buffer.map[:8]), (0, b"resumed!"))


def test_cookies(r):
    """The user_data of a queue pair and of a grant come back in completions and events."""
    one, two, three = 0x1122334455667788, (1 << 64) - 1, 1 << 63
    a, b = ulp.End("h1"), ulp.End("h2")
    made = a.qp = Qp(a.file, a.pd, a.cq, depth=4, user_data=one)
    a.meet(b)
    a.file.submit([a.qp.wr("RECV", a.buffer, 0, 8, user_data=1), a.write(b, 8, user_data=2)])
    b.file.submit([b.qp.wr("SEND", b.buffer, 0, 8, user_data=3)])
    r.equal("its completions have it", {c.user_data: c.qp_user_data for c in a.cq.wait(2)}, {1: one, 2: one})
    r.equal("those of one without do not", [(c.user_data, c.qp_user_data) for c in b.cq.wait(1)], [(3, 0)])
    r.equal("QP_QUERY has it", a.file.call("QP_QUERY", qp=made.handle).user_data, one)
    grant = a.file.call(
        "GRANT_CREATE",
        buffer=a.buffer.handle,
        access=N["ACCESS_REMOTE_WRITE"],
        length=8,
        qp=made.handle,
        user_data=two,
    )
    r.equal("GRANT_QUERY has that of the grant", a.file.call("GRANT_QUERY", grant=grant.handle).user_data, two)
    srq = ulp.Srq(a.file, a.pd, a.cq)
    last = Qp(a.file, a.pd, a.cq, depth=1, max_recv_wr=0, max_recv_sge=0, srq=srq.handle, user_data=three)
    a.file.submit([srq.recv(user_data=4), a.qp.wr("RECV", user_data=5)])
    a.file.records()
    a.qp.modify("STATE", qp_state=N["QPS_ERR"])
    a.qp = last
    # Of one that fails in INIT not every driver says that it has left its shared receive queue.
    a.connect(b)
    a.qp.modify("STATE", qp_state=N["QPS_ERR"])
    r.equal("a flushed request has it", [(c.user_data, c.qp_user_data) for c in a.cq.wait(1)], [(5, one)])
    heard = {}

    def both():
        heard.update({e.handle: e.user_data for e in a.file.records()})
        return grant.handle in heard and last.handle in heard

    r.check("the grant ends, and the queue pair leaves its shared receive queue", ulp.until(both), heard)
    want = {grant.handle: two, last.handle: three, made.handle: one}
    r.equal("their events have it", heard, {handle: want.get(handle) for handle in heard})
    a.file.destroy(last.handle)
    a.file.destroy(srq.handle)
    r.equal("the shared receive queue has none", [(c.user_data, c.qp_user_data) for c in a.cq.wait(1)], [(4, 0)])


def test_eventfd(r):
    a, b = pair()
    counter = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def bind(fd, cq=a.cq.handle):
        return error_of(a.file.call, "CQ_EVENTFD", cq=cq, fd=fd)

    def counted(want=0):
        """What it counts: a completion is counted after it is in the ring."""
        total = 0

        def reached():
            nonlocal total
            with contextlib.suppress(BlockingIOError):
                total += os.eventfd_read(counter)
            return total >= want

        ulp.until(reached)
        return total

    a.file.submit([a.write(b, 8)])
    a.cq.wait(1)
    r.equal("an eventfd is taken", (bind(counter), counted()), ("none", 0))
    r.equal("a second one is not", bind(counter), "EBUSY")
    a.file.submit([a.write(b, 8, user_data=i) for i in range(100)])
    r.equal("it counts each completion", (len(a.cq.wait(100)), counted(100)), (100, 100))
    a.file.submit([a.write(b, 8, flags=0), a.write(b, 8)])
    r.equal("not those that make none", (len(a.cq.wait(1)), counted(1)), (1, 1))
    poll = select.epoll()
    poll.register(counter, select.EPOLLIN)
    a.file.submit([a.write(b, 8)])
    r.equal("who sleeps on it is woken", poll.poll(20 * ulp.PATIENCE), [(counter, select.EPOLLIN)])
    a.cq.wait(1)
    r.equal("it is taken away, and once more", (bind(-1), bind(-1), counted()), ("none", "none", 1))
    a.file.submit([a.write(b, 8)])
    r.equal("and counts no more", (len(a.cq.wait(1)), counted()), (1, 0))
    r.equal("what is no file", bind(1000), "EBADF")
    r.equal("what is no eventfd", bind(a.file.fd), "EINVAL")
    r.equal("what is no completion queue", (bind(counter, a.qp.handle), bind(counter, 0)), ("EBADFD", "ENOENT"))
    r.equal("unknown flags", error_of(a.file.call, "CQ_EVENTFD", cq=a.cq.handle, fd=-1, flags=1), "EINVAL")
    bind(counter)
    os.close(poll.fileno())
    a.file.submit([a.qp.wr("RECV", a.buffer, 0, 8, user_data=i) for i in range(5)])
    a.file.destroy(a.qp.handle)
    r.equal("flushes are counted too", (len(a.cq.wait(5)), counted(5)), (5, 5))
    a.file.destroy(a.cq.handle)
    r.equal("with the queue it goes", counted(), 0)


if __name__ == "__main__":
    ulp.main(__doc__, globals())
