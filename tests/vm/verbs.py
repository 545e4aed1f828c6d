#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Queue pairs that are not reliable, and what goes with them, between h1 and h2.

    verbs.py uc|states|loss

Expects the module and two hosts. Prints `ok` and `not ok` lines.
"""
import contextlib
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import ulp
from ulp import N, error_of, pair, pattern

INVALID = {"READ": "RDMA_READ", "compare-and-swap": "ATOMIC_CMP_AND_SWP",
           "fetch-and-add": "ATOMIC_FETCH_AND_ADD", "send with invalidate": "SEND_WITH_INV"}
UNSUPPORTED = "ENOTSUP"  # Python's name for EOPNOTSUPP


def ops_of(*names):
    """The mask of these operations, as DEVICE_QUERY gives it."""
    return sum(1 << N["WR_" + name] for name in names)


@contextlib.contextmanager
def netem(host_name, device, *what):
    """What `host_name` sends from `device` goes through netem while the block runs."""
    tc = ["ip", "netns", "exec", host_name, "tc", "qdisc"]
    subprocess.run([*tc, "add", "dev", device, "root", "netem", *what], check=True)
    try:
        yield
    finally:
        subprocess.run([*tc, "del", "dev", device, "root"], check=True)


def settle(cq, quiet=1.0):
    """All completions until none came for `quiet` seconds."""
    out, last = [], time.monotonic()
    while time.monotonic() - last < quiet * ulp.PATIENCE:
        if more := cq.reap():
            out += more
            last = time.monotonic()
        time.sleep(0.02)
    return out


def refused(r, end, what, wr, want):
    """`wr` is refused, and so is all that comes with it."""
    before = end.file.call("QP_QUERY", qp=end.qp.handle).sends_in_flight
    good = end.qp.wr("SEND")
    r.equal(f"{what} is refused", error_of(end.file.submit, [good, wr]), want)
    r.equal(f"{what}: and nothing with it is posted",
            end.file.call("QP_QUERY", qp=end.qp.handle).sends_in_flight, before)


def test_uc(r):
    a, b = pair(kind="UC")
    got = a.file.call("DEVICE_QUERY")
    r.equal("an unreliable connection writes and sends", got.uc_send_ops,
            ops_of("RDMA_WRITE", "RDMA_WRITE_WITH_IMM", "SEND", "SEND_WITH_IMM"))
    a.buffer.map[:] = pattern(1, 1 << 16)
    for length in (1, 4096, 4097, 40000):
        b.buffer.map[:] = bytes(1 << 16)
        a.file.submit([a.write(b, length, 5, 9, user_data=length)])
        r.equal(f"a write of {length} bytes is done", [(c.user_data, c.status) for c in a.cq.wait(1)],
                [(length, 0)])
        b.file.submit([b.qp.wr("RECV", user_data=7)])
        a.file.submit([a.qp.wr("RDMA_WRITE_WITH_IMM", a.buffer, 5, 1, remote_addr=b.grant.addr + 9,
                               rkey=b.grant.rkey, imm_data=0xfeedbeef)])
        c = b.cq.wait(1)[0]
        a.cq.wait(1)
        r.equal("a write with immediate data completes a receive, with no GRH",
                (c.user_data, c.status, c.opcode, c.imm_data, c.flags, c.byte_len, c.qp),
                (7, 0, N["WC_RECV_RDMA_WITH_IMM"], 0xfeedbeef, N["WC_WITH_IMM"], 1, b.qp.handle))
        r.check(f"all {length} bytes came, and no others",
                b.buffer.map[:] == bytes(9) + pattern(1, 1 << 16)[5:5 + length] + bytes((1 << 16) - 9 - length),
                "they differ")
    b.file.submit([b.qp.wr("RECV", b.buffer, i * 10000, 10000, user_data=i) for i in range(4)])
    a.file.submit([a.qp.wr("SEND_WITH_IMM", a.buffer, i * 100, 9999, imm_data=i, user_data=i) for i in range(4)])
    r.equal("sends arrive in order",
            [(c.user_data, c.status, c.byte_len, c.imm_data, c.flags) for c in b.cq.wait(4)],
            [(i, 0, 9999, i, N["WC_WITH_IMM"]) for i in range(4)])
    r.equal("and complete", [(c.user_data, c.status) for c in a.cq.wait(4)], [(i, 0) for i in range(4)])
    r.check("with their bytes", all(b.buffer.map[i * 10000:i * 10000 + 9999] == pattern(1, 1 << 16)[i * 100:i * 100 + 9999]
                                    for i in range(4)), "they differ")

    for what, op in INVALID.items():
        remote = {} if op.startswith("SEND") else {"remote_addr": b.grant.addr, "rkey": b.grant.rkey}
        refused(r, a, what, a.qp.wr(op, a.buffer, 0, 8, **remote), UNSUPPORTED)

    # A key that was not given, and no receive: the peer drops it, and nobody is told.
    b.buffer.map[:] = bytes(1 << 16)
    a.file.submit([a.qp.wr("RDMA_WRITE", a.buffer, 0, 64, remote_addr=b.grant.addr, rkey=b.grant.rkey ^ 0xff)])
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
    ah = ulp.S["ah_attr"](sgid_index=a.file.gid_index, port_num=a.file.port, is_global=1)
    ah.dgid[:] = bytes(b.file.gid().gid)
    rtr = {"qp_state": N["QPS_RTR"], "path_mtu": 3, "dest_qp_num": b.qp.num, "ah": ah, "min_rnr_timer": 1,
           "max_dest_rd_atomic": 1}
    for more in ("MAX_DEST_RD_ATOMIC", "MIN_RNR_TIMER", "QKEY"):
        r.equal(f"to RTR with {more}", error_of(a.qp.modify, "STATE AV PATH_MTU DEST_QPN RQ_PSN " + more, **rtr), "EPROTO")
    r.equal("to RTR without an address", error_of(a.qp.modify, "STATE PATH_MTU DEST_QPN RQ_PSN", **rtr), "EPROTO")
    a.qp.modify("STATE AV PATH_MTU DEST_QPN RQ_PSN", **rtr)
    rts = {"qp_state": N["QPS_RTS"], "timeout": 14, "retry_cnt": 7, "max_rd_atomic": 1}
    for more in ("TIMEOUT", "RETRY_CNT", "MAX_QP_RD_ATOMIC"):
        r.equal(f"to RTS with {more}", error_of(a.qp.modify, "STATE SQ_PSN " + more, **rts), "EPROTO")
    r.equal("a send in RTR", error_of(a.file.submit, [a.qp.wr("SEND")]), "ENOTCONN")
    a.qp.modify("STATE SQ_PSN", **rts)
    got = a.file.call("QP_QUERY", qp=a.qp.handle)
    r.equal("QP_QUERY says what it is", (got.qp_type, got.attr.qp_state, got.attr.path_mtu, got.attr.dest_qp_num),
            (N["QPT_UC"], N["QPS_RTS"], 3, b.qp.num))

    # Receives and sends in any state of completion: each completes once.
    a.qp.modify("STATE", **reset)
    a.connect(b)
    for turn in range(4):
        a.file.submit([a.qp.wr("RECV", a.buffer, 0, 8, user_data=i) for i in range(20)])
        a.file.submit([a.write(b, 4096, user_data=100 + i) for i in range(60)])
        a.qp.modify("STATE", qp_state=N["QPS_ERR" if turn % 2 else "QPS_RESET"])
        got = a.cq.wait(80)
        r.equal(f"turn {turn}: each request completes once, in order",
                ([c.user_data for c in got if c.opcode == N["WC_RECV"]],
                 [c.user_data for c in got if c.opcode == N["WC_RDMA_WRITE"]], {c.status for c in got} <= {0, 5}),
                (list(range(20)), list(range(100, 160)), True))
        a.qp.modify("STATE", **reset)
        a.connect(b)


def test_loss(r):
    """A quarter of the packets is lost: what arrives is whole, in order, and counted."""
    count, length = 120, 9000
    a, b = pair(kind="UC", length=1 << 21, depth=256, entries=512)
    messages = [pattern(i, length) for i in range(count)]
    for i, message in enumerate(messages):
        a.buffer.map[i * length:(i + 1) * length] = message
    b.file.submit([b.qp.wr("RECV", b.buffer, i * length, length, user_data=i) for i in range(count)])
    with netem("h1", "w1", "loss", "25%"):
        a.file.submit([a.qp.wr("SEND_WITH_IMM", a.buffer, i * length, length, imm_data=i, user_data=i) for i in range(count)])
        r.equal("all sends complete, lost or not", [(c.user_data, c.status) for c in a.cq.wait(count)],
                [(i, 0) for i in range(count)])
        got = settle(b.cq)
    # A message is three packets at an MTU of 4096.
    r.check(f"some of {count} arrive, not all", 0 < len(got) < count, f"{len(got)} did")
    r.equal("those that do are good, and use the receives in order", [(c.user_data, c.status, c.byte_len) for c in got],
            [(i, 0, length) for i in range(len(got))])
    order = [c.imm_data for c in got]
    r.equal("they come in the order of sending", order, sorted(set(order)))
    r.check("none is made of pieces of two", all(b.buffer.map[c.user_data * length:(c.user_data + 1) * length] == messages[c.imm_data]
                                                for c in got), "bytes differ")
    r.equal("what is left of the receives is there", b.file.call("QP_QUERY", qp=b.qp.handle).recvs_in_flight, count - len(got))


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
