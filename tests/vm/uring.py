#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""What the end of a ring of io_uring costs.

    uring.py exit

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


if __name__ == "__main__":
    ulp.main(__doc__, globals())
