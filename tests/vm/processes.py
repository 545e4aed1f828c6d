#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Processes, devices and network namespaces.

    processes.py processes|devices|passed|child|shared|exclusive

Expects the module and two hosts, for `exclusive` in namespaces whose devices are their own. Prints
`ok` and `not ok` lines.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import ulp
from lifetime import left_over
from ulp import N, S, Buffer, Cq, End, File, error_of, pattern

MEBI = 1 << 20


class Child:
    """A process that runs `body` with one end of a socket; the other end is here."""

    def __init__(self, body):
        self.wire, wire = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self.wire.close()
                body(wire)
                os._exit(0)
            except BaseException as e:
                print(f"# child: {e!r}", flush=True)
                os._exit(1)
        wire.close()
        self.wire.settimeout(20 * ulp.PATIENCE)

    def tell(self, *what):
        self.wire.send(json.dumps(what).encode())

    def hear(self):
        return json.loads(self.wire.recv(4096) or b'"it is gone"')

    def end(self):
        with contextlib.suppress(OSError):
            self.wire.send(b"[]")
        return os.waitpid(self.pid, 0)[1]


def say(wire, *what):
    wire.send(json.dumps(what).encode())


def listen(wire):
    return json.loads(wire.recv(4096))


def pinned():
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith("VmPin:"))


def connect(end, gid, qpn, psn):
    end.qp.connect(qpn, gid, psn, end.psn)


def test_processes(r):
    """Two processes on one device write to each other; one of them is killed."""

    def body(wire):
        end = End("h1", ulp.DEV1)
        say(wire, end.qp.num, end.psn, end.grant.addr, end.grant.rkey, end.qp.handle)
        qpn, psn, addr, rkey, seed = listen(wire)
        connect(end, end.file.gid().gid, qpn, psn)
        say(wire, "ready")
        listen(wire)
        end.buffer.map[:4096] = pattern(seed, 4096)
        end.file.submit([end.qp.wr("RDMA_WRITE", end.buffer, 0, 4096, remote_addr=addr + 8192, rkey=rkey)])
        status = end.cq.wait(1)[0].status
        say(wire, status)
        listen(wire)
        say(wire, end.buffer.map[8192:12288] == pattern(3 - seed, 4096))
        while listen(wire):
            say(
                wire,
                error_of(end.file.submit, [end.qp.wr("RDMA_WRITE", end.buffer, 0, 8, remote_addr=addr, rkey=rkey)]),
            )

    a, b = Child(body), Child(body)
    one, two = a.hear(), b.hear()
    r.equal("both have the same handles, for their own objects", (one[4] == two[4], one[0] != two[0]), (True, True))
    a.tell(*two[:4], 1)
    b.tell(*one[:4], 2)
    r.equal("both are connected", (a.hear(), b.hear()), (["ready"], ["ready"]))
    for c in (a, b):
        c.tell("go")
    r.equal("both write", (a.hear(), b.hear()), ([0], [0]))
    for c in (a, b):
        c.tell("look")
    r.equal("and see what the other wrote", (a.hear(), b.hear()), ([True], [True]))
    os.kill(b.pid, signal.SIGKILL)
    r.equal("one is killed", b.end(), signal.SIGKILL)
    a.tell("more")
    r.equal("the other goes on", a.hear(), ["none"])
    r.equal("until it ends", a.end(), 0)


def test_devices(r):
    """One process on two devices: nothing of one can be used with the other."""
    a, b = End("h1", ulp.DEV1), End("h2", ulp.DEV2)
    a.meet(b)
    for end, seed in ((a, 1), (b, 2)):
        end.buffer.map[:4096] = pattern(seed, 4096)
    a.file.submit([a.write(b, 4096, remote_offset=4096)])
    b.file.submit([b.write(a, 4096, remote_offset=4096)])
    r.equal(
        "each writes to the other",
        ([c.status for c in a.cq.wait(1) + b.cq.wait(1)], a.buffer.map[4096:8192], b.buffer.map[4096:8192]),
        ([0, 0], pattern(2, 4096), pattern(1, 4096)),
    )
    more = [b.file.pd() for _ in range(8)]
    got = [
        error_of(a.file.destroy, more[-1]),
        error_of(a.file.grant, Only(more[-1])),
        error_of(a.file.call, "CQ_CREATE", "cq_create", entries=4, comp_vector=99),
    ]
    r.equal("a handle of the other file's names nothing", got[:2], ["ENOENT", "ENOENT"])
    wr = a.write(b, 8)
    wr.sge.buffer = more[-1]
    r.equal("nor in a request", error_of(a.file.submit, [wr]), "ENOENT")
    names = [ulp.text(e.file.call("DEVICE_QUERY").name) for e in (a, b)]
    r.equal("each file has its device", names, [ulp.DEV1, ulp.DEV2])


class Only:
    """A handle, as File.grant() wants it."""

    def __init__(self, handle):
        self.handle, self.length, self.key_bytes = handle, 8, 8


def test_passed(r):
    """A descriptor that is sent to another process: of the device, and of what the file has."""

    def body(wire):
        data, fds, *_ = socket.recv_fds(wire, 4096, 1)
        at, length, cq, qp, addr, rkey, buffer = json.loads(data)
        file = File.__new__(File)
        file.fd = fds[0]
        with ulp.host("h2"):
            names = [ulp.text(d.name) for d in file.devices() if d.flags & N["DEVICE_LOCAL_NET"]]
            say(wire, names)
        shown = file.map(length, at)
        seen = shown[:4096] == pattern(6, 4096)
        wr = S["wr"](
            qp=qp,
            opcode=N["WR_RDMA_WRITE"],
            flags=N["SEND_SIGNALED"],
            remote_addr=addr,
            rkey=rkey,
            num_sge=1,
            sge=S["sge"](buffer=buffer, length=4096),
        )
        got = file.submit([wr], cq=cq, min_complete=1, timeout_ns=ulp.hang_ns())
        say(wire, seen, got.posted, got.completed)
        pd = file.pd()
        file.call("BUFFER_CREATE", pd=pd, node=N["NODE_ANY"], length=MEBI, page_size=4096)
        say(wire, pinned())
        listen(wire)
        shown.close()
        os.close(file.fd)
        say(wire, pinned())
        listen(wire)

    child = Child(body)
    a, b = End("h1"), End("h2")
    a.meet(b)
    a.buffer.map[:4096] = pattern(6, 4096)
    mine = pinned()
    at = a.file.call("BUFFER_QUERY", buffer=a.buffer.handle).mmap_offset
    what = json.dumps(
        [at, a.buffer.length, a.cq.handle, a.qp.handle, b.grant.addr, b.grant.rkey, a.buffer.handle]
    ).encode()
    socket.send_fds(child.wire, [what], [a.file.fd])
    r.equal("the namespace is that of who opened it", child.hear(), [[ulp.DEV1]])
    r.equal("who got it maps its buffers, posts and waits", child.hear(), [True, 1, 1])
    r.equal("what was written is there", (b.buffer.map[:4096], a.cq.reap()[0].status), (pattern(6, 4096), 0))
    r.equal("who makes a buffer pays for it", (child.hear(), pinned()), ([MEBI], mine))
    child.tell("close")
    r.equal("for as long as it lives", child.hear(), [MEBI])
    a.close()
    b.close()
    r.equal("the last one closes it", (ulp.until(lambda: pinned() == 0), child.end()), (True, 0))


def test_child(r):
    """A child has the file, and not its mappings; its parent is killed."""
    up, wire = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def parent(wire):
        a, b = End("h1"), End("h2")
        a.meet(b)
        a.buffer.map[:4096] = pattern(2, 4096)
        if os.fork():
            listen(wire)
            os.kill(os.getpid(), signal.SIGKILL)
        with open("/proc/self/maps") as f:
            inherited = sum("rust_ulp" in line for line in f)
        shown = a.file.map(a.buffer.length, a.file.call("BUFFER_QUERY", buffer=a.buffer.handle).mmap_offset)
        ring = a.file.map(4096, a.cq.offset)
        same = shown[:4096] == pattern(2, 4096)

        def write(fill):
            shown[:64] = bytes([fill]) * 64
            got = a.file.submit([a.write(b, 64)], cq=a.cq.handle, min_complete=fill, timeout_ns=ulp.hang_ns())
            there = b.file.map(b.buffer.length, b.buffer.offset)
            return [got.posted, got.completed, there[:64] == bytes([fill]) * 64]

        up.send(json.dumps([inherited, same, *write(1)]).encode())
        say(up, "kill")
        up.recv(10)
        up.send(json.dumps([*write(2), error_of(a.file.pd), len(ring)]).encode())
        up.recv(10)
        os._exit(0)

    top = Child(parent)
    wire.settimeout(20 * ulp.PATIENCE)
    inherited, *got = json.loads(wire.recv(4096))
    r.equal("a child has no mapping of its parent's", inherited, 0)
    r.equal("a child maps, posts and waits by its parent's file", got, [True, 1, 1, True])
    wire.recv(4096)
    top.tell("die")
    r.equal("its parent is killed", os.waitpid(top.pid, 0)[1], signal.SIGKILL)
    wire.send(b"go")
    r.equal("the file, and all that is in it, is the child's", json.loads(wire.recv(4096)), [1, 2, True, "none", 4096])
    wire.send(b"end")
    r.check("it ends", ulp.until(lambda: not left_over()), left_over())


def test_shared(r):
    """Devices are shared: that of another namespace can be attached, but its GIDs cannot be used."""
    file = File("h1")
    local = {ulp.text(d.name): bool(d.flags & N["DEVICE_LOCAL_NET"]) for d in file.devices()}
    r.equal("both are listed, with whose they are", local, {ulp.DEV1: True, ulp.DEV2: False})
    got = file.attach("")
    r.equal("the default one is our own", ulp.text(got.name), ulp.DEV1)
    other = File("h1")
    got = other.attach(ulp.DEV2)
    r.equal("it has no GID that can be used here", got.gid_index, 2**32 - 1)
    gids = other.entries("GID_QUERY", "gid_entry", port=1)
    r.equal("the GIDs of the other namespace are not shown", [bytes(g.gid).hex() for g in gids], [])
    pd = other.pd()
    other.gid_index, gid = ulp.gid_of(ulp.DEV2)
    gid = bytes.fromhex(gid.replace(":", ""))
    r.equal("AH_CREATE refuses the index of one", error_of(other.ah, pd, gid), "ENOENT")
    qp = ulp.Qp(other, pd, Cq(other, 4))
    r.equal("QP_MODIFY refuses it", (error_of(qp.connect, qp.num, gid, 1, 1), qp.step), ("ENOENT", "RTR"))
    buffer = Buffer(other, pd, 4096)
    cq = Cq(other, 4)
    r.equal("memory is registered there", error_of(other.grant, buffer), "none")
    r.check("and queues are made", error_of(lambda: ulp.Qp(other, pd, cq)) == "none", "no queue pair")


def test_exclusive(r):
    """Devices of a namespace are nobody else's; which those are, `rdma dev` says there."""
    shown = {}
    for host in (None, "h1", "h2"):
        with ulp.host(host):
            got = subprocess.run(
                ["rdma", "-j", "dev"], capture_output=True, text=True, check=True, timeout=30 * ulp.PATIENCE
            ).stdout
        shown[host] = sorted(d["ifname"] for d in json.loads(got or "[]"))
    r.equal(
        "each device is in one namespace",
        sorted(name for names in shown.values() for name in names),
        [ulp.DEV1, ulp.DEV2],
    )
    for host, names in shown.items():
        where = host or "the first one"
        r.equal(f"{where}: its own are listed alone", sorted(ulp.text(d.name) for d in File(host).devices()), names)
        for name in (ulp.DEV1, ulp.DEV2):
            want = "none" if name in names else "ENOENT"
            file = File(host)
            r.equal(
                f"{where}: {name} {'can' if name in names else 'cannot'} be named", error_of(file.attach, name), want
            )
            r.equal(f"{where}: and used", error_of(file.pd), "none" if name in names else "ENXIO")
        if not names:
            r.equal(f"{where}: and there is no default one", error_of(File(host).attach, ""), "ENOENT")
    other = "h1" if shown[None] else None
    owner = next(host for host, names in shown.items() if names)
    file, foreign = File(owner), File(other)
    with ulp.host(other):
        got = error_of(file.attach, shown[owner][0])
    with ulp.host(owner):
        got = got, error_of(foreign.attach, shown[owner][0])
    r.equal("what counts is who opened the file", got, ("none", "ENOENT"))


if __name__ == "__main__":
    ulp.main(__doc__, globals())
