#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""What completes a command of io_uring, and what the end of a ring costs.

    uring.py exit|resubmit

Expects the module and two hosts. Prints KTAP.
"""

import ctypes
import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tracing
import ulp
from faults import Uring
from ulp import N, S, End

BATCHES = 512
LINKED = 64
ROUNDS = ulp.count("ULP_ROUNDS", 40, 4)
IOSQE_IO_LINK = 1 << 2


def hold(wire):
    """Has batches of two receives under way, says so, and waits."""
    end = End("h1", depth=2 * BATCHES, entries=4 * BATCHES)
    end.qp.modify("STATE PKEY_INDEX PORT ACCESS_FLAGS", qp_state=N["QPS_INIT"], port_num=end.file.port)
    wrs = (S["wr"] * 2)(*[end.qp.wr("RECV", end.buffer, 0, 64) for _ in range(2)])
    batch = S["uring_batch"](wrs=ctypes.addressof(wrs), nr_wrs=2, wr_size=ctypes.sizeof(S["wr"]))
    ring = Uring(BATCHES)
    for _ in range(BATCHES):
        ring.prepare(end.file.fd, N["URING_BATCH"], bytes(batch), None)
    call = ring.enter(BATCHES, 0)
    submitted = call.function(*call.args)
    held = end.file.call("QP_QUERY", qp=end.qp.handle).recvs_in_flight
    os.write(wire, b"%d %d" % (submitted, held))
    signal.pause()


def test_exit(r):
    """The requests of all commands are looked for at once, not those of each command anew."""
    out, wire = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            hold(wire)
        finally:
            os._exit(1)
    os.close(wire)
    r.equal("batches are under way", os.read(out, 100), b"%d %d" % (BATCHES, 2 * BATCHES))
    with tracing.Trace() as trace:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        ended = ulp.until(lambda: "release" in tracing.read("trace"))
    r.check("the process and its file end", ended)
    found = [e["found"] for e in trace.events("uring_cancel")]
    r.equal("each request is found", sum(found), 2 * BATCHES)
    r.check("by few searches", len(found) <= 8, f"{len(found)} searches for {BATCHES} commands")


def test_resubmit(r):
    """A command that has completed has given its place back: the command that is linked to it finds it."""
    a, b = End("h1", depth=1, entries=1), End("h2")
    a.connect(b)
    b.connect(a)
    command = bytes(a.write(b, 8))
    ring = Uring(LINKED)
    results = []
    for _ in range(ROUNDS):
        for i in range(LINKED):
            ring.prepare(a.file.fd, N["URING_REQUEST"], command, None, flags=IOSQE_IO_LINK * (i < LINKED - 1))
        call = ring.enter(LINKED, 0)
        call.function(*call.args)
        results += [res for _, res in ring.wait(LINKED)]
    r.equal("each is posted", {res: results.count(res) for res in results}, {results[0]: ROUNDS * LINKED})
    r.check("and succeeds", results[0] >= 0, results[0])


if __name__ == "__main__":
    ulp.main(__doc__, globals())
