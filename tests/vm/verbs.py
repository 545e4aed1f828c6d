#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Queue pairs that are not reliable, and what goes with them, between h1 and h2.

    verbs.py uc|states|loss|ud|ud_refused|ud_flight|srq|srq_end|srq_taken|sqd|churn|events|gone

Expects the module and two hosts. Prints KTAP.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import ulp
from ulp import N, error_of, pair, pattern, remote, until

INVALID = {
    "READ": "RDMA_READ",
    "compare-and-swap": "ATOMIC_CMP_AND_SWP",
    "fetch-and-add": "ATOMIC_FETCH_AND_ADD",
    "send with invalidate": "SEND_WITH_INV",
}
UNSUPPORTED = "EOPNOTSUPP"


def ops_of(*names):
    """The mask of these operations, as DEVICE_QUERY gives it."""
    return sum(1 << N["WR_" + name] for name in names)


@contextlib.contextmanager
def netem(host_name, device, *what):
    """What `host_name` sends from `device` goes through netem while the block runs."""
    if ulp.HCA:
        raise ulp.Missing(0, "the adapter's link loses and delays nothing")
    tc = ["ip", "netns", "exec", host_name, "tc", "qdisc"]
    subprocess.run([*tc, "add", "dev", device, "root", "netem", *what], check=True)
    try:
        yield
    finally:
        subprocess.run([*tc, "del", "dev", device, "root"], check=True)


def settle(cq):
    """What comes though nothing is to come: a slow machine may miss it, and fails no test by that."""
    time.sleep(0.3)
    return cq.reap()


def refused(r, end, what, wr, want):
    """`wr` is refused, and what comes after it is not posted."""
    before = end.file.call("QP_QUERY", qp=end.qp.handle).sends_in_flight
    good = end.qp.wr("SEND")
    r.equal(f"{what} is refused", end.file.try_submit([wr, good])[:3], (want, 0, want))
    r.equal(
        f"{what}: what comes after it is not posted",
        end.file.call("QP_QUERY", qp=end.qp.handle).sends_in_flight,
        before,
    )


def test_uc(r):
    a, b = pair(kind="UC")
    got = a.file.call("DEVICE_QUERY")
    r.equal(
        "an unreliable connection writes and sends",
        got.uc_send_ops,
        ops_of("RDMA_WRITE", "RDMA_WRITE_WITH_IMM", "SEND", "SEND_WITH_IMM"),
    )
    a.buffer.map[:] = pattern(1, 1 << 16)
    for length in (1, 4096, 4097, 40000):
        b.buffer.map[:] = bytes(1 << 16)
        a.file.submit([a.write(b, length, 5, 9, user_data=length)])
        r.equal(f"a write of {length} bytes is done", [(c.user_data, c.status) for c in a.cq.wait(1)], [(length, 0)])
        b.file.submit([b.qp.wr("RECV", user_data=7)])
        a.file.submit([a.qp.wr("RDMA_WRITE_WITH_IMM", a.buffer, 5, 1, **remote(b.grant, 9), imm_data=0xFEEDBEEF)])
        c = b.cq.wait(1)[0]
        a.cq.wait(1)
        r.equal(
            "a write with immediate data completes a receive, with no GRH",
            (c.user_data, c.status, c.opcode, c.imm_data, c.flags, c.byte_len, c.qp),
            (7, 0, N["WC_RECV_RDMA_WITH_IMM"], 0xFEEDBEEF, N["WC_WITH_IMM"], 1, b.qp.handle),
        )
        r.check(
            f"all {length} bytes came, and no others",
            b.buffer.map[:] == bytes(9) + pattern(1, 1 << 16)[5 : 5 + length] + bytes((1 << 16) - 9 - length),
            "they differ",
        )
    b.file.submit([b.qp.wr("RECV", b.buffer, i * 10000, 10000, user_data=i) for i in range(4)])
    a.file.submit([a.qp.wr("SEND_WITH_IMM", a.buffer, i * 100, 9999, imm_data=i, user_data=i) for i in range(4)])
    r.equal(
        "sends arrive in order",
        [(c.user_data, c.status, c.byte_len, c.imm_data, c.flags) for c in b.cq.wait(4)],
        [(i, 0, 9999, i, N["WC_WITH_IMM"]) for i in range(4)],
    )
    r.equal("and complete", [(c.user_data, c.status) for c in a.cq.wait(4)], [(i, 0) for i in range(4)])
    r.check(
        "with their bytes",
        all(
            b.buffer.map[i * 10000 : i * 10000 + 9999] == pattern(1, 1 << 16)[i * 100 : i * 100 + 9999]
            for i in range(4)
        ),
        "they differ",
    )

    for what, op in INVALID.items():
        where = {} if op.startswith("SEND") else remote(b.grant)
        refused(r, a, what, a.qp.wr(op, a.buffer, 0, 8, **where), UNSUPPORTED)

    # A key that was not given, and no receive: the peer drops it, and nobody is told.
    b.buffer.map[:] = bytes(1 << 16)
    a.file.submit([a.qp.wr("RDMA_WRITE", a.buffer, 0, 64, remote_addr=b.grant.addr, rkey=b.grant.rkey ^ 0xFF)])
    r.equal("a write with a wrong key is done for its sender", a.cq.wait(1)[0].status, 0)
    a.file.submit([a.qp.wr("SEND", a.buffer, 0, 64)])
    r.equal("and a send that nobody waits for", a.cq.wait(1)[0].status, 0)
    r.equal("the receiver hears of neither", settle(b.cq), [])
    r.check("and has none of it", not any(b.buffer.map[:]), "bytes came")
    a.file.submit([a.write(b, 64)])
    b.file.submit([b.qp.wr("RECV", b.buffer, 100, 64)])
    a.file.submit([a.qp.wr("SEND", a.buffer, 0, 64)])
    r.equal("the connection works on", [c.status for c in b.cq.wait(1) + a.cq.wait(2)], [0, 0, 0])


def test_states(r):
    """What the state table asks of an unreliable connection, and what it does not take."""
    a, b = pair(kind="UC")
    reset = {"qp_state": N["QPS_RESET"]}
    a.qp.modify("STATE", **reset)
    init = {"qp_state": N["QPS_INIT"], "port_num": a.file.port}
    for mask in ("STATE PKEY_INDEX PORT", "STATE PKEY_INDEX PORT QKEY", "STATE PKEY_INDEX PORT ACCESS_FLAGS QKEY"):
        r.equal(f"to INIT with {mask}", error_of(a.qp.modify, mask, **init), "EPROTO")
    a.qp.modify("STATE PKEY_INDEX PORT ACCESS_FLAGS", **init)
    before = {"qp": a.qp.handle, "missing_mask": 1, "extra_mask": 1, "attr": ulp.S["qp_attr"](**init)}
    masks = [N["QP_STATE"] | N["QP_PKEY_INDEX"], N["QP_DEST_QPN"], N["QP_CUR_STATE"]]
    got = [a.file.issue("QP_MODIFY", ulp.S["qp_modify"](attr_mask=mask, **before)) for mask in masks]
    r.equal(
        "what a caller had in the masks of an error does not come back, with success or another error",
        [(ulp.error_name(failed), arg.missing_mask, arg.extra_mask) for failed, arg in got],
        [("none", 0, 0), ("EPROTO", 0, N["QP_DEST_QPN"]), ("EPROTO", 0, N["QP_CUR_STATE"])],
    )
    ah = ulp.S["ah_attr"](sgid_index=a.file.gid_index, port_num=a.file.port, is_global=1)
    ah.dgid[:] = bytes(b.file.gid().gid)
    rtr = {
        "qp_state": N["QPS_RTR"],
        "path_mtu": 3,
        "dest_qp_num": b.qp.num,
        "ah": ah,
        "min_rnr_timer": 1,
        "max_dest_rd_atomic": 1,
    }
    for more in ("MAX_DEST_RD_ATOMIC", "MIN_RNR_TIMER", "QKEY"):
        r.equal(
            f"to RTR with {more}", error_of(a.qp.modify, "STATE AV PATH_MTU DEST_QPN RQ_PSN " + more, **rtr), "EPROTO"
        )
    r.equal("to RTR without an address", error_of(a.qp.modify, "STATE PATH_MTU DEST_QPN RQ_PSN", **rtr), "EPROTO")
    a.qp.modify("STATE AV PATH_MTU DEST_QPN RQ_PSN", **rtr)
    rts = {"qp_state": N["QPS_RTS"], "timeout": 14, "retry_cnt": 7, "max_rd_atomic": 1}
    for more in ("TIMEOUT", "RETRY_CNT", "MAX_QP_RD_ATOMIC"):
        r.equal(f"to RTS with {more}", error_of(a.qp.modify, "STATE SQ_PSN " + more, **rts), "EPROTO")
    r.equal("a send in RTR", error_of(a.file.submit, [a.qp.wr("SEND")]), "ENOTCONN")
    a.qp.modify("STATE SQ_PSN", **rts)
    got = a.file.call("QP_QUERY", qp=a.qp.handle)
    r.equal(
        "QP_QUERY says what it is",
        (got.qp_type, got.attr.qp_state, got.attr.path_mtu, got.attr.dest_qp_num),
        (N["QPT_UC"], N["QPS_RTS"], 3, b.qp.num),
    )

    # Receives and sends in any state of completion: each completes once.
    a.qp.modify("STATE", **reset)
    a.connect(b)
    for turn in range(4):
        a.file.submit([a.qp.wr("RECV", a.buffer, 0, 8, user_data=i) for i in range(20)])
        a.file.submit([a.write(b, 4096, user_data=100 + i) for i in range(60)])
        a.qp.modify("STATE", qp_state=N["QPS_ERR" if turn % 2 else "QPS_RESET"])
        got = a.cq.wait(80)
        ulp.each_once(r, f"turn {turn}: each request completes once, in order", got, "WC_RDMA_WRITE", 60)
        a.qp.modify("STATE", **reset)
        a.connect(b)


def test_loss(r):
    """A quarter of the packets is lost: what arrives is whole, in order, and counted."""
    count, length = 120, 9000
    a, b = pair(kind="UC", length=1 << 21, depth=256, entries=512)
    messages = [pattern(i, length) for i in range(count)]
    for i, message in enumerate(messages):
        a.buffer.map[i * length : (i + 1) * length] = message
    b.file.submit([b.qp.wr("RECV", b.buffer, i * length, length, user_data=i) for i in range(count + 8)])
    with netem("h1", "w1", "loss", "25%"):
        a.file.submit(
            [a.qp.wr("SEND_WITH_IMM", a.buffer, i * length, length, imm_data=i, user_data=i) for i in range(count)]
        )
        r.equal(
            "all sends complete, lost or not",
            [(c.user_data, c.status) for c in a.cq.wait(count)],
            [(i, 0) for i in range(count)],
        )
    # None of these is lost. When the last message lacks its end, rxe drops the first of them
    # (do_class_d1e_error() in rxe_resp.c). When the last of them is here, nothing else will come.
    a.file.submit([a.qp.wr("SEND_WITH_IMM", a.buffer, 0, 1, imm_data=count + i) for i in range(8)])
    a.cq.wait(8)
    all_of_it = b.cq.wait(1)
    while all_of_it[-1].imm_data != count + 7:
        all_of_it += b.cq.wait(1)
    got = [c for c in all_of_it if c.imm_data < count]
    # A message is three packets at an MTU of 4096.
    r.check(f"some of {count} arrive, not all", 0 < len(got) < count, f"{len(got)} did")
    r.equal(
        "those that do are good, and use the receives in order",
        [(c.user_data, c.status, c.byte_len) for c in got],
        [(i, 0, length) for i in range(len(got))],
    )
    order = [c.imm_data for c in got]
    r.equal("they come in the order of sending", order, sorted(set(order)))
    r.check(
        "none is made of pieces of two",
        all(b.buffer.map[c.user_data * length : (c.user_data + 1) * length] == messages[c.imm_data] for c in got),
        "bytes differ",
    )
    r.equal(
        "what is left of the receives is there",
        b.file.call("QP_QUERY", qp=b.qp.handle).recvs_in_flight,
        count + 8 - len(all_of_it),
    )


QKEY = 0x11223344
GRH = 40


def datagrams(length=1 << 16, qkey=QKEY, **more):
    """Two ends that send datagrams, on h1 and h2, each with the address of the other."""
    ends = [ulp.End(f"h{i}", length=length, kind="UD", **more) for i in (1, 2)]
    for end in ends:
        end.qp.start(qkey)
    for end, peer in zip(ends, reversed(ends), strict=True):
        end.ah = end.file.ah(end.pd, peer.file.gid().gid)
    return ends


def test_ud(r):
    a, b = datagrams()
    got = a.file.call("DEVICE_QUERY")
    r.equal("datagrams are sent, with immediate data or not", got.ud_send_ops, ops_of("SEND", "SEND_WITH_IMM"))
    r.check(
        "the address was resolved, and so was the hop limit",
        any(a.ah.attr.dmac) and a.ah.attr.hop_limit > 0,
        "they are 0",
    )
    said = a.file.call("QP_QUERY", qp=a.qp.handle)
    r.equal(
        "QP_QUERY says what it is",
        (said.qp_type, said.attr.qp_state, said.attr.qkey),
        (N["QPT_UD"], N["QPS_RTS"], QKEY),
    )
    a.buffer.map[:] = pattern(1, 1 << 16)
    for i, (length, op) in enumerate(((0, "SEND"), (1, "SEND_WITH_IMM"), (1000, "SEND"), (4096, "SEND_WITH_IMM"))):
        b.buffer.map[:] = bytes([0xEE]) * (1 << 16)
        b.file.submit([b.qp.wr("RECV", b.buffer, 100, 8192, user_data=i)])
        imm = 0xABCD0000 + i if op == "SEND_WITH_IMM" else 0
        a.file.submit(
            [a.qp.datagram(a.ah.handle, b.qp.num, QKEY, a.buffer, 3, length, op=op, imm_data=imm, user_data=50 + i)]
        )
        c = b.cq.wait(1)[0]
        r.equal(
            f"a datagram of {length} bytes comes with a GRH before it, and says from whom",
            (c.user_data, c.status, c.opcode, c.byte_len, c.flags, c.imm_data, c.src_qp, c.qp),
            (
                i,
                0,
                N["WC_RECV"],
                GRH + length,
                N["WC_GRH"] | (N["WC_WITH_IMM"] if imm else 0),
                imm,
                a.qp.num,
                b.qp.handle,
            ),
        )
        r.equal(
            "... and the port, but nothing of InfiniBand",
            (c.port, c.pkey_index, c.slid, c.sl, c.dlid_path_bits),
            (b.file.port, 0, 0, 0, 0),
        )
        r.equal(
            f"its {length} bytes, and no others",
            b.buffer.map[100 + GRH : 100 + 8192],
            pattern(1, 1 << 16)[3 : 3 + length] + bytes([0xEE]) * (8192 - GRH - length),
        )
        header = b.buffer.map[100 + 20 : 100 + GRH]
        r.equal(
            "the GRH's place holds the IP header of RoCE v2",
            (header[0], header[12:]),
            (0x45, bytes([10, 9, 0, 1, 10, 9, 0, 2])),
        )
        r.equal("its sender is told", [(c.user_data, c.status) for c in a.cq.wait(1)], [(50 + i, 0)])

    # One queue pair, many receivers: to the peer, to itself, to another queue pair of its own host.
    c = ulp.End("h1", kind="UD")
    c.qp.start(7)
    self_ah = a.file.ah(a.pd, a.file.gid().gid).handle
    for end in (a, b, c):
        end.file.submit([end.qp.wr("RECV", end.buffer, 0, 256, user_data=end.qp.num)])
    a.file.submit(
        [
            a.qp.datagram(a.ah.handle, b.qp.num, QKEY, a.buffer, 0, 8),
            a.qp.datagram(self_ah, a.qp.num, QKEY, a.buffer, 0, 8),
            a.qp.datagram(self_ah, c.qp.num, 7, a.buffer, 0, 8),
        ]
    )
    r.equal("one queue pair reaches many", [end.cq.wait(1)[0].user_data for end in (b, c)], [b.qp.num, c.qp.num])
    r.equal("itself among them", sorted(x.user_data for x in a.cq.wait(4)), [0, 0, 0, a.qp.num])

    # With the highest bit a queue key stands for the sender's own.
    b.file.submit([b.qp.wr("RECV", b.buffer, 0, 256)])
    a.file.submit([a.qp.datagram(a.ah.handle, b.qp.num, 1 << 31, a.buffer, 0, 8)])
    r.equal("a queue key with the highest bit is the sender's own", [x.status for x in b.cq.wait(1)], [0])
    a.cq.wait(1)

    # What does not fit: a wrong key, no receive, no room. The sender is not told.
    before = b.file.call("PORT_QUERY", port=b.file.port).qkey_viol_cntr
    b.file.submit([b.qp.wr("RECV", b.buffer, 0, GRH + 7, user_data=1)])
    a.file.submit(
        [
            a.qp.datagram(a.ah.handle, b.qp.num, QKEY + 1, a.buffer, 0, 4),
            a.qp.datagram(a.ah.handle, b.qp.num, QKEY, a.buffer, 0, 8),
        ]
    )
    r.equal("a datagram that is dropped is done for its sender", [x.status for x in a.cq.wait(2)], [0, 0])
    r.check(
        "the receiver counts the one with a wrong key",
        until(lambda: b.file.call("PORT_QUERY", port=b.file.port).qkey_viol_cntr == before + 1),
    )
    r.equal("and has none of it", settle(b.cq), [])
    a.file.submit([a.qp.datagram(a.ah.handle, b.qp.num, QKEY, a.buffer, 0, 7)])
    r.equal("its receive waits for one that fits", [(x.user_data, x.byte_len) for x in b.cq.wait(1)], [(1, GRH + 7)])
    a.cq.wait(1)


def test_ud_refused(r):
    a, b = datagrams()
    other = a.file.pd()
    foreign = a.file.ah(other, b.file.gid().gid).handle

    def send(ah=a.ah.handle, qpn=b.qp.num, qkey=QKEY, length=8, **more):
        return a.qp.datagram(ah, qpn, qkey, a.buffer, 0, length, **more)

    for what, wr, want in (
        ("more than the path's MTU", send(length=4097), "EMSGSIZE"),
        ("no address", send(ah=0), "ENOENT"),
        ("another kind of object for an address", send(ah=a.pd), "EBADFD"),
        ("an address of another domain", send(ah=foreign), "EXDEV"),
        ("a number of 25 bits", send(qpn=1 << 24), "ERANGE"),
        (
            "a receiver with padding that is not zero",
            a.qp.wr("SEND", a.buffer, 0, 8, ud=(a.ah.handle, b.qp.num, QKEY, 1)),
            "EINVAL",
        ),
        ("a send that names nobody", a.qp.wr("SEND", a.buffer, 0, 8), "ENOENT"),
        ("a write", a.qp.wr("RDMA_WRITE", a.buffer, 0, 8), UNSUPPORTED),
        ("a read", a.qp.wr("RDMA_READ", a.buffer, 0, 8), UNSUPPORTED),
        ("an atomic", a.qp.wr("ATOMIC_FETCH_AND_ADD", a.buffer, 0, 8, atomic=(1,)), UNSUPPORTED),
        ("a receive that names somebody", a.qp.wr("RECV", a.buffer, 0, 8, ud=(a.ah.handle,)), "EINVAL"),
    ):
        r.equal(f"{what} is refused", a.file.try_submit([wr, send()])[:3], (want, 0, want))
    r.equal("and nothing of all that was posted", settle(a.cq), [])
    rc, _ = pair()
    r.equal("a connection's send names nobody", error_of(rc.file.submit, [rc.qp.wr("SEND", ud=(1,))]), "EINVAL")

    ip("h1", "link", "set", "w1", "mtu", "1500")
    r.equal(
        "when the netdev becomes narrower, so does what is taken",
        [error_of(a.file.submit, [send(length=n)]) for n in (1025, 1024)],
        ["EMSGSIZE", "none"],
    )
    ip("h1", "link", "set", "w1", "mtu", "4200")
    r.equal("and wide again", error_of(a.file.submit, [send(length=4096)]), "none")
    r.equal("both are sent", [c.status for c in a.cq.wait(2)], [0, 0])

    gid = b.file.gid().gid
    for what, more, want in (
        ("a port that is not there", {"port_num": 2}, "ENOENT"),
        ("port 0", {"port_num": 0}, "ENOENT"),
        ("a GID that is not in use", {"sgid_index": 200}, "ENOENT"),
        ("no GRH", {"is_global": 0}, "EINVAL"),
        ("is_global 2", {"is_global": 2}, "EINVAL"),
        ("a flow label of 21 bits", {"flow_label": 1 << 20}, "ERANGE"),
        ("a service level of 5 bits", {"sl": 16}, "ERANGE"),
        ("path bits of 8 bits", {"src_path_bits": 128}, "ERANGE"),
        ("a rate that is not defined", {"static_rate": 1}, "EINVAL"),
    ):
        r.equal(f"an address with {what}", error_of(a.file.ah, a.pd, gid, **more), want)
    r.equal(
        "an address of a host that is not there",
        error_of(a.file.ah, a.pd, bytes(10) + b"\xff\xff" + bytes([10, 9, 0, 77])) in ("EHOSTUNREACH", "ETIMEDOUT"),
        True,
    )
    # 0.0.0.0 is local, and no netdev has it: the resolver says ENODEV, which is not for a caller whose device is there.
    nobody = bytes(10) + b"\xff\xff" + bytes(4)
    new = ulp.Qp(rc.file, rc.pd, rc.cq)
    r.equal(
        "an address that is nobody's, for datagrams and for a connection",
        (error_of(a.file.ah, a.pd, nobody), error_of(new.connect, b.qp.num, nobody, 0, 0)),
        ("EHOSTUNREACH",) * 2,
    )
    given = a.ah.attr
    again = a.file.ah(a.pd, gid, dmac=given.dmac, hop_limit=9)
    r.equal(
        "the peer's link-layer address may be given, and the hop limit stays",
        (bytes(again.attr.dmac), again.attr.hop_limit),
        (bytes(given.dmac), 9),
    )
    # hw/irdma/utils.c:irdma_add_arp has one table of them for all users.
    wrong = type(given.dmac)(2, 0, 0, 0, 0, 1)
    r.equal("another one is refused to an address", error_of(a.file.ah, a.pd, gid, dmac=wrong), "EPERM")
    a.file.destroy(again.handle)
    near = a.file.ah(a.pd, gid, hop_limit=7)
    r.equal(
        "a hop limit that is given stays when the link-layer address is resolved",
        (bytes(near.attr.dmac), near.attr.hop_limit),
        (bytes(given.dmac), 7),
    )
    b.file.submit([b.qp.wr("RECV", b.buffer, 0, 256)])
    a.file.submit([a.qp.datagram(near.handle, b.qp.num, QKEY, a.buffer, 0, 8)])
    r.equal("... and its datagrams have it", [(c.status, b.buffer.map[20 + 8]) for c in b.cq.wait(1)], [(0, 7)])
    a.cq.wait(1)
    a.file.destroy(near.handle)
    path = ulp.S["ah_attr"](sgid_index=rc.file.gid_index, port_num=rc.file.port, is_global=1, hop_limit=7)
    ctypes.memmove(path.dgid, bytes(gid), 16)
    path.dmac = wrong
    r.equal("... and to a connection", error_of(new.to_rtr, path), "EPERM")
    path.dmac = given.dmac
    new.to_rtr(path)
    got = rc.file.call("QP_QUERY", qp=new.handle).attr.ah.hop_limit
    r.equal("... and so has a connected queue pair", got, 7)
    r.equal("an address that was destroyed", error_of(a.file.submit, [send(ah=again.handle)]), "ENOENT")

    # Queue keys with the highest bit are for those who may have raw sockets.
    def without_raw(call):
        pid = os.fork()
        if not pid:
            header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
            ulp.libc.capget(header, data)
            data[0] &= ~(1 << 13)  # CAP_NET_RAW, effective
            ulp.libc.capset(header, data)
            os._exit({"EPERM": 1, "none": 2}.get(error_of(call), 3))
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def change(qkey):
        return a.qp.modify("QKEY", qkey=qkey)

    r.equal("a queue key with the highest bit needs CAP_NET_RAW", without_raw(lambda: change(1 << 31 | 5)), 1)
    r.equal("one without does not", without_raw(lambda: change(QKEY)), 2)
    r.equal("root has that", error_of(change, 1 << 31 | 5), "none")

    # Its GID is the table's no more, and names no netdev: that has become no narrower.
    ip("h1", "addr", "del", "10.9.0.1/24", "dev", "w1")
    r.check("the address goes, and the GID with it", until(lambda: not ipv4_gid(ulp.DEV1)))
    r.equal(
        "a datagram may be as long as before",
        [error_of(a.file.submit, [send(length=n)]) for n in (4097, 4096)],
        ["EMSGSIZE", "none"],
    )
    r.equal("it is done, whether it was sent or not", len(a.cq.wait(1)), 1)
    ip("h1", "addr", "add", "10.9.0.1/24", "dev", "w1")
    r.check("both come back", until(lambda: ipv4_gid(ulp.DEV1)))


def test_ud_flight(r):
    """Addresses and queue pairs are destroyed while datagrams are under way."""
    a, b = datagrams(entries=512)
    count = 64
    for turn in range(6):
        b.file.submit([b.qp.wr("RECV", b.buffer, i * 256, 256, user_data=i) for i in range(count)])
        for i in range(count):
            a.buffer.map[i * 8 : i * 8 + 8] = (turn << 32 | i).to_bytes(8, "little")
        ah = a.file.ah(a.pd, b.file.gid().gid).handle
        flags = N["SEND_SIGNALED"] if turn % 2 else 0
        a.file.submit(
            [
                a.qp.datagram(
                    ah,
                    b.qp.num,
                    QKEY,
                    a.buffer,
                    i * 8,
                    8,
                    user_data=i,
                    flags=flags if i < count - 1 else N["SEND_SIGNALED"],
                )
                for i in range(count)
            ]
        )
        a.file.destroy(ah)
        # The device may give its number to the next one.
        others = [a.file.ah(a.pd, a.file.gid().gid).handle for _ in range(8)]
        want = list(range(count)) if flags else [count - 1]
        r.equal(
            f"turn {turn}: the address goes, the datagrams do not",
            [(c.user_data, c.status) for c in a.cq.wait(len(want))],
            [(i, 0) for i in want],
        )
        b.cq.wait(count)
        r.equal(
            f"turn {turn}: all of them arrive",
            [int.from_bytes(b.buffer.map[i * 256 + GRH : i * 256 + GRH + 8], "little") for i in range(count)],
            [turn << 32 | i for i in range(count)],
        )
        for handle in others:
            a.file.destroy(handle)

    reset = {"qp_state": N["QPS_RESET"]}
    for turn in range(4):
        a.file.submit([a.qp.wr("RECV", a.buffer, 0, 256, user_data=i) for i in range(20)])
        a.file.submit(
            [a.qp.datagram(a.ah.handle, b.qp.num, QKEY, a.buffer, 0, 1024, user_data=100 + i) for i in range(100)]
        )
        a.qp.modify("STATE", qp_state=N["QPS_ERR" if turn % 2 else "QPS_RESET"])
        got = a.cq.wait(120)
        name = f"turn {turn}: on the way to ERR or RESET each request completes once, in order"
        ulp.each_once(r, name, got, "WC_SEND", 100)
        a.qp.modify("STATE", **reset)
        a.qp.start(QKEY)
    # Silent ones complete only when they fail.
    a.file.submit(
        [a.qp.datagram(a.ah.handle, b.qp.num, QKEY, a.buffer, 0, 64, flags=0, user_data=i) for i in range(30)]
    )
    a.qp.modify("STATE", **reset)
    r.check("silent ones are done", until(lambda: not a.file.call("QP_QUERY", qp=a.qp.handle).sends_in_flight))
    r.equal("and not heard of unless they failed", {c.status for c in settle(a.cq)} <= {5}, True)
    with open(f"/proc/self/fdinfo/{a.file.fd}") as f:
        usage = next(line for line in f if line.startswith("rust_ulp-cq"))
    r.check("no place in the ring is lost", "reserved 0" in usage, usage)
    a.qp.start(QKEY)
    for delivery in ("SOFTIRQ", "WORKQUEUE"):
        cq = ulp.Cq(a.file, 256, N["DELIVER_" + delivery])
        qp = ulp.Qp(a.file, a.pd, cq, kind="UD")
        qp.start(QKEY)
        a.file.submit([qp.wr("RECV", a.buffer, 0, 256, user_data=i) for i in range(20)])
        a.file.submit(
            [qp.datagram(a.ah.handle, b.qp.num, QKEY, a.buffer, 0, 1024, user_data=100 + i) for i in range(60)]
        )
        a.file.destroy(qp.handle)
        got = cq.reap()
        r.equal(
            f"{delivery.lower()}: destroyed in the middle, each request completes once",
            (sorted(c.user_data for c in got), {c.status for c in got} <= {0, 5}),
            (list(range(20)) + list(range(100, 160)), True),
        )
    if not (pid := os.fork()):
        end = ulp.End("h1", kind="UD")
        end.qp.start(QKEY)
        ah = end.file.ah(end.pd, b.file.gid().gid).handle
        end.file.submit([end.qp.datagram(ah, b.qp.num, QKEY, end.buffer, 0, 4096) for i in range(100)])
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)


class Pool:
    """A host with a shared receive queue and `count` queue pairs on it, connected to a peer's."""

    def __init__(self, count=3, kind="RC", max_wr=64, entries=256, length=1 << 20, delivery=0):
        self.file, self.far = ulp.File("h2", ""), ulp.File("h1", "")
        self.pd, self.far_pd = self.file.pd(), self.far.pd()
        self.cq = ulp.Cq(self.file, entries, delivery)
        self.far_cq = ulp.Cq(self.far, 512)
        self.buffer = ulp.Buffer(self.file, self.pd, length)
        self.far_buffer = ulp.Buffer(self.far, self.far_pd, length)
        self.srq = ulp.Srq(self.file, self.pd, self.cq, max_wr)
        self.kind, self.qps, self.peers = kind, [], []
        for _ in range(count):
            self.add()

    def add(self):
        """One more pair of connected queue pairs; returns its number."""
        self.qps.append(ulp.Qp(self.file, self.pd, self.cq, kind=self.kind, srq=self.srq.handle))
        self.peers.append(ulp.Qp(self.far, self.far_pd, self.far_cq, kind=self.kind))
        self.connect(len(self.qps) - 1)
        return len(self.qps) - 1

    def connect(self, i, **more):
        self.qps[i].connect(self.peers[i].num, self.far.gid().gid, 1, 2, **more)
        self.peers[i].connect(self.qps[i].num, self.file.gid().gid, 2, 1, **more)

    def post(self, count, size=64, first=0):
        """Receives of `size` bytes; number i has its place in the buffer."""
        self.file.submit([self.srq.recv(self.buffer, i * size, size, user_data=i) for i in range(first, first + count)])

    def send(self, i, text=b"", imm=0, length=None, offset=0, **fields):
        self.far_buffer.map[offset : offset + len(text)] = text
        self.far.submit(
            [self.peers[i].wr("SEND_WITH_IMM", self.far_buffer, offset, length or len(text), imm_data=imm, **fields)]
        )


def test_srq(r):
    p = Pool()
    r.equal(
        "DEVICE_QUERY: the device has shared receive queues",
        p.file.call("DEVICE_QUERY").caps & N["CAP_SRQ"] != 0,
        True,
    )
    r.equal(
        "a queue pair with one has no receives of its own",
        [getattr(p.file.call("QP_QUERY", qp=p.qps[0].handle), name) for name in ("max_recv_wr", "max_recv_sge")],
        [0, 0],
    )
    p.post(30)
    r.equal(
        "SRQ_QUERY counts what is posted",
        (p.srq.query().recvs_in_flight, p.srq.query().max_wr, p.srq.query().max_sge),
        (30, 64, 1),
    )
    p.far_buffer.map[: 3 * 640] = b"".join(b"%d:%02d" % (i, j) + bytes(60) for i in range(3) for j in range(10))
    for j in range(10):
        p.far.submit(
            [
                p.peers[i].wr("SEND_WITH_IMM", p.far_buffer, (i * 10 + j) * 64, 64, imm_data=i * 100 + j)
                for i in range(3)
            ]
        )
    r.equal("all sends are done", {c.status for c in p.far_cq.wait(30)}, {0})
    got = p.cq.wait(30)
    r.equal("each receive is used once", sorted(c.user_data for c in got), list(range(30)))
    r.check(
        "each completion has the handle and number of the queue pair that used it",
        all((c.qp, c.qp_num) == (p.qps[c.imm_data // 100].handle, p.qps[c.imm_data // 100].num) for c in got),
        "it has not",
    )
    r.equal(
        "and is good",
        {(c.status, c.byte_len, c.flags, c.opcode) for c in got},
        {(0, 64, N["WC_WITH_IMM"], N["WC_RECV"])},
    )
    r.check(
        "the bytes are where the receive said",
        all(p.buffer.map[c.user_data * 64 : c.user_data * 64 + 4] == b"%d:%02d" % divmod(c.imm_data, 100) for c in got),
        "they are not",
    )
    for i in range(3):
        r.equal(
            f"queue pair {i}: its messages in order",
            [c.imm_data % 100 for c in got if c.qp == p.qps[i].handle],
            list(range(10)),
        )
    r.equal("none is left", p.srq.query().recvs_in_flight, 0)

    # What is refused.
    wr = p.srq.recv(p.buffer, 0, 64)
    other = p.file.pd()
    strange = ulp.Buffer(p.file, other, 4096)
    cq = ulp.Cq(p.file)
    send = p.peers[0].wr("SEND")
    send.qp = p.srq.handle
    for what, call, want in (
        ("a receive of a queue pair that has one", lambda: p.file.submit([p.qps[0].wr("RECV"), wr]), UNSUPPORTED),
        ("a send to it", lambda: p.file.submit([send, wr]), "EBADFD"),
        ("a receive into another domain", lambda: p.file.submit([p.srq.recv(strange, 0, 8), wr]), "EXDEV"),
        ("a receive with a flag", lambda: p.file.submit([p.srq.recv(flags=N["SEND_SIGNALED"]), wr]), "EINVAL"),
        ("destroying it while it is used", lambda: p.file.destroy(p.srq.handle), "EBUSY"),
        (
            "a queue pair that completes elsewhere",
            lambda: ulp.Qp(p.file, p.pd, p.cq, recv_cq=cq, srq=p.srq.handle),
            "EXDEV",
        ),
        ("a queue pair of another domain", lambda: ulp.Qp(p.file, other, p.cq, srq=p.srq.handle), "EXDEV"),
        ("a limit above its size", lambda: p.srq.limit(65), "ERANGE"),
        ("one with too many requests", lambda: ulp.Srq(p.file, p.pd, cq, (1 << 14) + 1), "ERANGE"),
        ("one with too many elements", lambda: ulp.Srq(p.file, p.pd, cq, 4, 17), "ERANGE"),
        ("one with a limit above its size", lambda: ulp.Srq(p.file, p.pd, cq, 4, 1, 5), "ERANGE"),
    ):
        r.equal(f"{what} is refused", error_of(call), want)
    r.equal("and nothing of it is posted", p.srq.query().recvs_in_flight, 0)
    p.post(64)
    r.equal("a full one says so", error_of(p.post, 1), "EAGAIN")
    small = ulp.Cq(p.file, 16)
    srq = ulp.Srq(p.file, p.pd, small, 64)
    p.file.submit([srq.recv() for _ in range(16)])
    r.equal("and one whose completion queue is", error_of(p.file.submit, [srq.recv()]), "EAGAIN")
    p.file.destroy(srq.handle)
    got = small.reap()
    r.equal("destroyed, it completes what it has, as flushed", [(c.status, c.qp) for c in got], [(5, srq.handle)] * 16)

    # The limit, once.
    p.srq.limit(60)
    r.equal("a limit is armed", p.srq.query().limit, 60)
    p.file.events()
    for _ in range(4):
        p.send(0, b"x")
    p.cq.wait(4)
    r.equal("as many as the limit are left: no event", (p.file.events(), p.srq.query().limit), ([], 60))
    for _ in range(4):
        p.send(0, b"x")
    p.cq.wait(4)
    r.equal("one fewer: an event, once", p.file.events(), [(N["EVENT_SRQ_LIMIT"], p.srq.handle, 0, 0)])
    r.equal("and the limit is disarmed", p.srq.query().limit, 0)
    p.far_cq.wait(8)
    armed = ulp.Srq(p.file, p.pd, cq, 8, 1, 3)
    r.equal("a limit can be set from the start", armed.query().limit, 3)
    least = ulp.Srq(p.file, p.pd, cq, 0, 1, 1)
    r.equal("one of 0 requests has 1, and a limit of 1", (least.max_wr, least.query().limit), (1, 1))


def test_srq_end(r):
    """Queue pairs end while others go on with the same shared receive queue."""
    p = Pool(max_wr=128)
    p.post(100)
    p.file.events()
    p.qps[0].modify("STATE", qp_state=N["QPS_ERR"])
    events = until(p.file.events)
    r.equal(
        "a queue pair in ERR says that it takes no more, once",
        events,
        [(N["EVENT_LAST_WQE_REACHED"], p.qps[0].handle, 0, 0)],
    )
    p.qps[0].modify("STATE", qp_state=N["QPS_ERR"])
    time.sleep(0.2)  # rxe says it again, now
    r.equal("asked once more, it says nothing more", p.file.events(), [])
    r.equal("it takes no receive with it", (p.cq.reap(), p.srq.query().recvs_in_flight), ([], 100))
    for turn in range(3):
        for i in (1, 2):
            p.send(i, b"on", imm=i)
        r.equal(
            f"turn {turn}: the others go on", sorted((c.imm_data, c.status) for c in p.cq.wait(2)), [(1, 0), (2, 0)]
        )
    p.far_cq.wait(6)
    for qp in (p.qps[0], p.peers[0]):
        qp.modify("STATE", qp_state=N["QPS_RESET"])
    p.connect(0)
    p.send(0, b"back", imm=7)
    r.equal("after RESET it is back", [(c.imm_data, c.qp, c.status) for c in p.cq.wait(1)], [(7, p.qps[0].handle, 0)])
    p.far_cq.wait(1)
    p.qps[0].modify("STATE", qp_state=N["QPS_ERR"])
    events = until(p.file.events)
    r.equal(
        "and in ERR once more, it says so once more", events, [(N["EVENT_LAST_WQE_REACHED"], p.qps[0].handle, 0, 0)]
    )

    # In the middle of traffic, in each way of delivery.
    for delivery in ("WORKQUEUE", "SOFTIRQ"):
        p = Pool(max_wr=128, delivery=N["DELIVER_" + delivery])
        p.post(90)
        for i in range(3):
            p.far.submit([p.peers[i].wr("SEND_WITH_IMM", p.far_buffer, 0, 64, imm_data=i) for _ in range(25)])
        gone = p.qps[0].handle
        p.file.destroy(gone)
        p.peers[0].modify("STATE", qp_state=N["QPS_ERR"])
        sent = p.far_cq.wait(75)
        alive = [qp.handle for qp in p.peers[1:]]
        r.equal(
            f"{delivery.lower()}: all of the others' messages are acknowledged",
            [sum(c.qp == qp and c.status == 0 for c in sent) for qp in alive],
            [25, 25],
        )
        got = []

        def theirs(p=p, got=got):
            got += p.cq.reap()
            return [sum(c.imm_data == i and c.status == 0 for c in got) for i in (1, 2)]

        until(lambda: theirs() == [25, 25])
        r.equal(f"{delivery.lower()}: one is destroyed, the others get all that is theirs", theirs(), [25, 25])
        r.equal(f"{delivery.lower()}: no receive comes twice", len({c.user_data for c in got}), len(got))
        left = p.srq.query().recvs_in_flight
        got += p.cq.reap()
        r.equal(f"{delivery.lower()}: each is there or has completed", left + len(got), 90)
        for qp in p.qps[1:]:
            p.file.destroy(qp.handle)
        p.file.destroy(p.srq.handle)
        got += p.cq.reap()
        r.equal(f"{delivery.lower()}: in the end all have, once", sorted(c.user_data for c in got), list(range(90)))
    if not (pid := os.fork()):
        p = Pool()
        p.post(60)
        for i in range(3):
            p.far.submit([p.peers[i].wr("SEND", p.far_buffer, 0, 64) for _ in range(30)])
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)


def test_srq_taken(r):
    """Queue pairs end in the middle of a message, with a receive that they have taken."""
    for how in ("destroyed", "reset"):
        p = Pool(2, "UC", length=1 << 18)
        p.post(8, 1 << 15)
        # The first of eight packets arrives after a second at least, the last long after that.
        with netem("h1", "w1", "rate", f"{max(1, 150 // ulp.PATIENCE)}kbit"):
            p.send(0, pattern(1, 1 << 15), imm=1)
            # A packet that rxe has counted may not have taken the receive yet; one whose bytes are there has.
            r.check(f"{how}: in the middle of a message", until(lambda: any(p.buffer.map[:64])))
            if how == "destroyed":
                p.file.destroy(p.qps[0].handle)
            else:
                p.qps[0].modify("STATE", qp_state=N["QPS_RESET"])
        p.far_cq.wait(1)
        q = p.srq.query()
        none = (settle(p.cq), q.recvs_in_flight, q.orphans)
        r.equal(f"{how}: nobody completed the receive yet, nor a later one", none, ([], 8, 0))
        p.send(1, b"next", imm=2)
        c = p.cq.wait(1)[0]
        r.equal(
            f"{how}: the next message takes the next receive",
            (c.user_data, c.imm_data, c.status, c.qp),
            (1, 2, 0, p.qps[1].handle),
        )
        if how == "reset":
            q = p.srq.query()
            r.equal("the queue pair may still have it", (q.recvs_in_flight, q.orphans, p.cq.reap()), (7, 1, []))
            p.peers[0].modify("STATE", qp_state=N["QPS_RESET"])
            p.connect(0)
            p.send(0, b"again", imm=3)
            r.equal("until it takes another", [(c.user_data, c.imm_data, c.status) for c in p.cq.wait(1)], [(2, 3, 0)])
        p.far_cq.wait(1 if how == "destroyed" else 2)
        left = 6 if how == "destroyed" else 5
        q = p.srq.query()
        r.equal(f"{how}: then what was taken is given back", (q.recvs_in_flight, q.orphans), (left, 0))
        r.equal(
            f"{how}: as flushed, by nobody",
            [(c.user_data, c.status, c.qp, c.qp_num) for c in p.cq.reap()],
            [(0, 5, p.srq.handle, 0)],
        )
        r.equal(f"{how}: and once", (p.srq.query().recvs_in_flight, p.cq.reap()), (left, []))
        p.post(1, 1 << 15)
        for i in range(left + 1):
            p.send(1, b"%d" % i, imm=i)
        r.equal(f"{how}: its place is good again", [c.user_data for c in p.cq.wait(left + 1)], [*range(8 - left, 8), 0])
        p.far_cq.wait(left + 1)

    # Datagrams use it too.
    b, a = Pool(0), ulp.End("h1", kind="UD")
    qp = ulp.Qp(b.file, b.pd, b.cq, kind="UD", srq=b.srq.handle)
    a.qp.start(QKEY)
    qp.start(QKEY)
    ah = a.file.ah(a.pd, b.file.gid().gid).handle
    b.post(3, 256)
    a.buffer.map[:4] = b"data"
    a.file.submit([a.qp.datagram(ah, qp.num, QKEY, a.buffer, 0, 4) for _ in range(3)])
    r.equal(
        "datagrams come by a shared receive queue",
        [(c.user_data, c.status, c.byte_len, c.flags, c.src_qp, c.qp) for c in b.cq.wait(3)],
        [(i, 0, GRH + 4, N["WC_GRH"], a.qp.num, qp.handle) for i in range(3)],
    )
    r.equal("with their bytes", b.buffer.map[GRH : GRH + 4], b"data")
    a.cq.wait(3)


def ready(file, seconds=0):
    poll = select.poll()
    poll.register(file.fd, select.POLLIN)
    return (poll.poll(seconds * ulp.PATIENCE * 1000) or [(0, 0)])[0][1]


def ip(host_name, *what):
    subprocess.run(["ip", "-n", host_name, *what], check=True)


def ipv4_gid(device):
    try:
        return ulp.gid_of(device)
    except LookupError:
        return None


def await_events(file, want):
    """The records until `want` is among their types."""
    out = []
    if not until(lambda: want in [e[0] for e in out] or out.extend(file.events())):
        raise TimeoutError(f"no event {want}, only {out}")
    return out


def test_events(r):
    r.equal("a file without a device has no events", error_of(os.read, ulp.File("h1").fd, 64), "ENXIO")
    a, also, b = ulp.File("h1", ulp.DEV1), ulp.File("h1", ulp.DEV1), ulp.File("h2", ulp.DEV2)
    r.equal("read() wants room for a record", error_of(os.read, a.fd, 31), "EINVAL")
    os.set_blocking(a.fd, False)
    r.equal("with O_NONBLOCK it does not wait", error_of(os.read, a.fd, 32), "EAGAIN")
    os.set_blocking(a.fd, True)
    r.equal("nothing is ready", ready(a), 0)
    r.equal(
        "there is nothing to write or to seek",
        (error_of(os.write, a.fd, b"x"), error_of(os.lseek, a.fd, 0, 0)),
        ("EINVAL", "ESPIPE"),
    )

    before = time.monotonic_ns()
    ip("h1", "addr", "add", "10.9.0.101/24", "dev", "w1")
    gid = (N["EVENT_GID_CHANGE"], 0, 1, 0)
    r.equal("a new address is a GID that changed", await_events(a, gid[0]), [gid])
    r.equal("the file is readable", ready(also, 5), select.POLLIN)
    start = time.monotonic_ns()
    data = os.read(also.fd, 33)
    record = ulp.S["event"].from_buffer_copy(data)
    r.equal("read() gives whole records", (len(data), record.event, record.port, record.user_data), (32, gid[0], 1, 0))
    r.check(
        "with the time at which it happened",
        before < record.time_ns < start,
        f"{record.time_ns}, between {before} and {start}",
    )
    r.equal("then nothing is ready", ready(also), 0)
    ip("h1", "addr", "del", "10.9.0.101/24", "dev", "w1")
    await_events(a, gid[0])
    r.equal("the other device's files hear of none of it", b.events(), [])

    # Those who wait.
    got = []
    reader = threading.Thread(target=lambda: got.append(os.read(b.fd, 4096)))
    reader.start()
    time.sleep(0.2)
    ip("h2", "link", "set", "w2", "down")
    reader.join(10 * ulp.PATIENCE)
    r.check("who waits is woken", got and len(got[0]) % 32 == 0, f"{got}")
    events = [e.event for e in (ulp.S["event"] * (len(got[0]) // 32)).from_buffer_copy(got[0])] if got else []
    if N["EVENT_PORT_ERR"] not in events:
        events += [e[0] for e in await_events(b, N["EVENT_PORT_ERR"])]
    r.check("a port that goes down is an event", N["EVENT_PORT_ERR"] in events, f"{events}")
    ip("h2", "link", "set", "w2", "up")
    up = await_events(b, N["EVENT_PORT_ACTIVE"])
    r.check("and one that comes up", (N["EVENT_PORT_ACTIVE"], 0, 1, 0) in up, f"{up}")
    if not ulp.HCA:  # the adapter's link is not a cable: the other end stays up
        await_events(a, N["EVENT_PORT_ACTIVE"])
    a.events(), also.events(), b.events()

    class Interrupted(Exception):
        pass

    def interrupt(*_):
        raise Interrupted

    signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        while True:  # the line that came up may have more to say
            os.read(a.fd, 32)
    except Interrupted:
        r.check("a signal ends the wait", True)
    subprocess.run(["rdma", "dev", "set", ulp.DEV1, "name", "renamed"], check=True)
    renamed = (N["EVENT_DEVICE_RENAMED"], 0, 0, 0)
    r.equal("a new name is an event, once", await_events(a, renamed[0]).count(renamed), 1)
    r.equal("and the name is the new one", ulp.text(a.call("DEVICE_QUERY").name), "renamed")
    subprocess.run(["rdma", "dev", "set", "renamed", "name", ulp.DEV1], check=True)
    await_events(a, N["EVENT_DEVICE_RENAMED"])

    # A bad address loses no record.
    ip("h1", "addr", "add", "10.9.0.101/24", "dev", "w1")
    ready(a, 5)
    done = ulp.libc.read(a.fd, ctypes.c_void_p(8), ctypes.c_size_t(64))
    r.equal("an address that cannot be written", (done, ctypes.get_errno()), (-1, 14))
    # The line that came up may have given the device another address.
    r.check("loses no record", set(a.events()) == {gid}, "another event")
    ip("h1", "addr", "del", "10.9.0.101/24", "dev", "w1")
    await_events(a, gid[0])
    also.events()

    # More than there is room for. The other file is read all the time, and counts. On a slow machine it
    # loses some, too, and says how many.
    turns, total = 160, 0

    def happened(events):
        return sum(lost if kind == N["EVENT_LOST"] else 1 for kind, _, _, lost in events)

    batch = "".join(
        f"addr add 10.9.0.{101 + i % 100}/24 dev w1\naddr del 10.9.0.{101 + i % 100}/24 dev w1\n" for i in range(turns)
    )
    writer = subprocess.Popen(["ip", "-n", "h1", "-batch", "-"], stdin=subprocess.PIPE, text=True)
    feeder = threading.Thread(target=writer.communicate, args=(batch,))
    feeder.start()
    while feeder.is_alive():
        total += happened(also.events())
        feeder.join(0.02)

    def enough():
        nonlocal total
        total += happened(also.events())
        return total > N["EVENTS_MAX"]

    r.check(f"more than {N['EVENTS_MAX']} events happened", until(enough), f"{total} did")
    kept = a.events()
    r.equal(
        "a file that is not read keeps the oldest", [e[0] for e in kept[: N["EVENTS_MAX"]]], [gid[0]] * N["EVENTS_MAX"]
    )
    # Events may still come, to both files alike.
    more = []

    def counted():
        nonlocal total
        more.extend(a.events())
        total += happened(also.events())
        return kept[N["EVENTS_MAX"] :] == [(N["EVENT_LOST"], 0, 0, total - N["EVENTS_MAX"] - happened(more))]

    r.check(
        "and says how many it lost", until(counted), f"{kept[N['EVENTS_MAX'] :]}, {total} happened, {len(more)} since"
    )
    ip("h1", "addr", "add", "10.9.0.101/24", "dev", "w1")
    r.equal("after which it goes on", await_events(a, gid[0]), [gid])
    ip("h1", "addr", "del", "10.9.0.101/24", "dev", "w1")


def test_sqd(r):
    """The send queue stops, says that it is empty, and goes on."""
    for kind in ("RC", "UD", "UC"):
        if kind == "UD":
            a, b = datagrams()

            def request(i):
                return a.qp.datagram(a.ah.handle, b.qp.num, QKEY, a.buffer, 0, 64, user_data=i)
        else:
            a, b = pair(kind=kind)

            def request(i):
                return a.write(b, 64, user_data=i)

        a.file.submit([request(i) for i in range(10)])
        a.file.events()
        a.qp.modify("STATE EN_SQD_ASYNC_NOTIFY", qp_state=N["QPS_SQD"], en_sqd_async_notify=1)
        got = await_events(a.file, N["EVENT_SQ_DRAINED"])
        r.equal(f"{kind}: a send queue that has drained says so", got, [(N["EVENT_SQ_DRAINED"], a.qp.handle, 0, 0)])
        state = a.file.call("QP_QUERY", qp=a.qp.handle)
        r.equal(
            f"{kind}: it is in SQD, and drains no more",
            (state.attr.qp_state, state.attr.sq_draining),
            (N["QPS_SQD"], 0),
        )
        begun = [c.user_data for c in a.cq.reap()]
        a.file.submit([request(i) for i in range(10, 15)])
        r.equal(f"{kind}: what is posted now waits", settle(a.cq), [])
        a.qp.modify("STATE", qp_state=N["QPS_RTS"])
        a.file.submit([request(15)])
        got = [(c.user_data, c.status) for c in a.cq.wait(16 - len(begun))]
        r.equal(f"{kind}: in RTS it goes on, in order", got, [(i, 0) for i in range(len(begun), 16)])
        a.qp.modify("STATE", qp_state=N["QPS_SQD"])
        a.file.submit([request(i) for i in range(5)])
        a.qp.modify("STATE", qp_state=N["QPS_ERR"])
        r.equal(
            f"{kind}: from SQD to ERR all that waits is flushed",
            [(c.user_data, c.status) for c in a.cq.wait(5)],
            [(i, 5) for i in range(5)],
        )
        a.qp.modify("STATE", qp_state=N["QPS_RESET"])
        if kind == "UD":
            a.qp.start(QKEY)
        else:
            b.qp.modify("STATE", qp_state=N["QPS_RESET"])
            a.meet(b)
        a.file.submit([request(99)])
        r.equal(f"{kind}: and after RESET it works again", [(c.user_data, c.status) for c in a.cq.wait(1)], [(99, 0)])

        # Once its ring has wrapped, rxe may take a queue for one that still drains: it looks at the state of a
        # request that is long done (req_check_sq_drain_done() in rxe_req.c), and lets it go to ERR only.
        for _ in range(3):
            a.file.submit([request(i) for i in range(100)])
            a.cq.wait(100)
        a.qp.modify("STATE", qp_state=N["QPS_SQD"])
        said = error_of(a.qp.modify, "STATE", qp_state=N["QPS_RTS"])
        r.check(
            f"{kind}: back from SQD after many requests, or refused by the driver", said in ("none", "EINVAL"), said
        )
        a.qp.modify("STATE", qp_state=N["QPS_ERR"])
        a.qp.modify("STATE", qp_state=N["QPS_RESET"])
        if kind == "UD":
            a.qp.start(QKEY)
        else:
            b.qp.modify("STATE", qp_state=N["QPS_RESET"])
            a.meet(b)
        a.file.submit([request(98)])
        r.equal(
            f"{kind}: by ERR and RESET there is always a way back",
            [(c.user_data, c.status) for c in a.cq.wait(1)],
            [(98, 0)],
        )


def test_churn(r):
    """Addresses, queue pairs and receives come and go at the same time, each in a thread of its own."""
    rounds = ulp.count("ULP_ROUNDS", 10)
    p, (a, b) = Pool(1, max_wr=128), datagrams()
    posted, completed, failures, stop = [], [], [], threading.Event()

    def thread(function):
        def run():
            try:
                function()
            except Exception as e:  # shown below
                failures.append(f"{function.__name__}: {type(e).__name__}: {e}")

        return threading.Thread(target=run)

    def addresses():
        for turn in range(rounds):
            ah = a.file.ah(a.pd, b.file.gid().gid).handle
            a.file.submit([a.qp.datagram(ah, b.qp.num, QKEY, a.buffer, 0, 512, user_data=i) for i in range(16)])
            a.file.destroy(ah)
            got = [c.user_data for c in a.cq.wait(16)]
            if got != list(range(16)):
                raise ValueError(f"turn {turn}: {got}")

    def queue_pairs():
        for turn in range(rounds):
            i = p.add()
            p.far.submit([p.peers[i].wr("SEND_WITH_IMM", p.far_buffer, 0, 3000, imm_data=i) for _ in range(4)])
            if turn == 0:
                p.far_cq.wait(4)  # one that is not interrupted, however slow the others are
            elif turn % 3 == 0:
                p.qps[i].modify("STATE", qp_state=N["QPS_RESET"])
            if turn % 2:
                p.far_cq.reap()
            p.file.destroy(p.qps[i].handle)
            p.far.destroy(p.peers[i].handle)

    def receives():
        number = 0
        while not stop.is_set():
            completed.extend(p.cq.reap())
            try:
                p.file.submit([p.srq.recv(p.buffer, 0, 4096, user_data=number)])
                posted.append(number)
                number += 1
            except BlockingIOError:  # EAGAIN: it is full
                time.sleep(0.005)

    def happenings():
        while not stop.is_set():
            os.read(p.file.fd, 4096) if ready(p.file) & select.POLLIN else time.sleep(0.005)
            ready(a.file)

    workers, others = [thread(f) for f in (addresses, queue_pairs)], [thread(f) for f in (receives, happenings)]
    for t in workers + others:
        t.start()
    for t in workers:
        t.join(100 * ulp.PATIENCE)
    stop.set()
    for t in others:
        t.join(10 * ulp.PATIENCE)
    r.equal("all of them came to their end", (failures, any(t.is_alive() for t in workers + others)), ([], False))
    p.file.destroy(p.qps[0].handle)
    p.file.destroy(p.srq.handle)
    completed.extend(p.cq.reap())
    r.check(f"queue pairs took some of the {len(posted)} receives", sum(c.status == 0 for c in completed) >= 1, "none")
    r.equal("each receive completed, and once", sorted(c.user_data for c in completed), posted)
    usage = []
    for end in (p, a):
        with open(f"/proc/self/fdinfo/{end.file.fd}") as f:
            usage += [line for line in f if line.startswith("rust_ulp-cq")]
    r.check("no place in a ring is lost", all("reserved 0" in line for line in usage), f"{usage}")


def test_gone(r):
    """The device goes, under shared receive queues, datagrams and readers."""
    p, (a, b) = Pool(), datagrams()
    p.post(50)
    for i in range(3):
        p.far.submit([p.peers[i].wr("SEND", p.far_buffer, 0, 64) for _ in range(30)])
    b.file.submit([b.qp.wr("RECV", b.buffer, 0, 8192) for _ in range(100)])
    a.file.submit([a.qp.datagram(a.ah.handle, b.qp.num, QKEY, a.buffer, 0, 4096) for _ in range(100)])
    got = []
    idle = ulp.File("h2", ulp.DEV2)
    reader = threading.Thread(target=lambda: got.append(os.read(idle.fd, 4096)))
    reader.start()
    for name in (ulp.DEV1, ulp.DEV2):
        r.equal(f"{name} goes", (ulp.unplug(name), os.path.exists(f"/sys/class/infiniband/{name}")), ((0, ""), False))
    reader.join(10 * ulp.PATIENCE)
    removed = N["EVENT_DEVICE_REMOVED"]
    r.equal(
        "who waits for events hears of it",
        [e.event for e in (ulp.S["event"] * (len(got[0]) // 32)).from_buffer_copy(got[0])][-1:] if got else None,
        [removed],
    )
    for file in (p.file, p.far, a.file, b.file):
        r.check(
            "poll says that there is something, and that it is over",
            ready(file) & select.POLLIN and ready(file) & select.POLLHUP,
            f"{ready(file)}",
        )
        data = os.read(file.fd, 320 * 32)
        r.equal(
            "the last record is that the device was removed", ulp.S["event"].from_buffer_copy(data[-32:]).event, removed
        )
        r.equal("and then there is none", error_of(os.read, file.fd, 32), "ENODEV")
        r.check("which poll still says", ready(file) & select.POLLHUP, f"{ready(file)}")
    for call in ("AH_CREATE", "SRQ_CREATE", "SRQ_MODIFY", "SRQ_QUERY"):
        r.equal(f"{call} of a husk", error_of(p.file.call, call), "ENODEV")


if __name__ == "__main__":
    ulp.main(__doc__, globals())
