#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""A device of iWARP: found, attached to, asked; what it cannot do is refused, and it goes.

    siw.py refused

Expects the module, and siw1 in h1. Prints `ok` and `not ok` lines.
"""
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import ulp
from ulp import N, Cq, File, Qp, error_of


def test_refused(r):
    f = File("h1")
    names = [ulp.text(d.name) for d in f.devices()]
    r.check("it is in the list", "siw1" in names, names)
    f.attach("siw1")
    r.equal("a file is attached to it", f.name, "siw1")
    q = f.call("DEVICE_QUERY")
    r.equal("it has no operation", (q.rc_send_ops, q.uc_send_ops, q.ud_send_ops), (0, 0, 0))
    pd, cq = f.pd(), Cq(f, 16)
    for kind in ("RC", "UC", "UD"):
        r.equal(f"a queue pair of type {kind}", error_of(Qp, f, pd, cq, kind=kind), "EOPNOTSUPP")
    r.equal("a buffer", error_of(f.call, "BUFFER_CREATE", pd=pd, node=N["NODE_ANY"], length=4096), "EOPNOTSUPP")
    other = File("h1", "")
    r.equal("who names no device gets another", other.name, "rxe1")
    f.destroy(pd)
    r.equal("what was made is destroyed", error_of(f.destroy, pd), "EBADF")
    subprocess.run(["rdma", "link", "del", "siw1"], check=True, timeout=20 * ulp.PATIENCE)
    r.equal("when it goes the file is a husk", error_of(f.call, "DEVICE_QUERY"), "ENODEV")
    names = [ulp.text(d.name) for d in other.devices()]
    r.check("and it is in the list no more", "siw1" not in names, names)


if __name__ == "__main__":
    ulp.main(__doc__, globals())
