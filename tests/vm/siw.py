#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Devices of iWARP: what they do, and what is refused there.

    siw.py NAME...

Expects the module, siw1 in h1 and siw2 in h2, beside rxe1 and rxe2. Prints KTAP.
"""

import collections
import contextlib
import os
import signal
import struct
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import faultpoint
import ulp
from connect import (
    FLUSHED,
    Refused,
    Thread,
    accept,
    addr,
    connect,
    get_request,
    listen,
    param,
    qp_state,
    query,
    reject,
)
from faultpoint import Faults
from faults import ioctl
from ulp import N, S, Cq, End, File, Qp, error_of, until

ACCESS = N["ACCESS_REMOTE_WRITE"] | N["ACCESS_REMOTE_READ"]
LAST = (1 << 16) - 4096
WHERE = {"h1": ("siw1", "10.9.0.1"), "h2": ("siw2", "10.9.0.2")}
SECONDS = 30 * ulp.PATIENCE


def on(host, function, *args, **kwargs):
    """Calls it in the namespace of that host: siw makes its sockets in that of the caller."""
    with ulp.host(host):
        return function(*args, **kwargs)


def end(host, length=1 << 16):
    """An end whose buffer a peer may write, with a grant to read its last page: siw has none for more."""
    e = on(host, End, None, WHERE[host][0], length=length)
    e.page = e.file.grant(e.buffer, N["ACCESS_REMOTE_READ"], length - 4096, 4096)
    return e


def granted(e):
    return struct.pack("<QI", e.grant.addr, e.grant.rkey)


class Server:
    """A listener on h1 with an end for one request."""

    def __init__(self, length=1 << 16):
        self.end = end("h1", length)
        got = on("h1", listen, self.end.file, "10.9.0.1")
        self.listener, self.port = got.handle, got.addr.port

    def request(self):
        return get_request(self.end.file, self.listener, 20)


def asks(server, e, data=b"", **more):
    """CONNECT on h2, aside."""
    return Thread(on, "h2", connect, e, "10.9.0.1", server.port, data, SECONDS, **more)


def meet(length=1 << 16, **more):
    """A server and a client that are connected, and what both were told."""
    server, c = Server(length), end("h2", length)
    thread = asks(server, c, granted(c), **more)
    request = server.request()
    accepted = accept(server.end, request.handle, granted(server.end), SECONDS)
    return server, c, thread.end(), request, accepted


def join(a, b):
    """Connects two ends of this process, of which the first may send first, unless they are connected."""
    if getattr(a, "joined", None) == a.qp.handle:
        return
    listener = on("h2", listen, b.file, "10.9.0.2")
    thread = Thread(on, "h1", connect, a, "10.9.0.2", listener.addr.port, b"", SECONDS)
    accept(b, get_request(b.file, listener.handle, 20).handle, b"", SECONDS)
    thread.end()
    on("h2", b.file.destroy, listener.handle)
    a.joined, b.joined = a.qp.handle, b.qp.handle


def run(e, *wrs):
    """The status of each, as they complete."""
    e.file.submit(list(wrs))
    return [got.status for got in e.cq.wait(len(wrs), 20)]


def close(*all_of_them):
    for x in all_of_them:
        getattr(x, "end", x).close()


def test_refused(r):
    f = File("h1")
    names = [ulp.text(d.name) for d in f.devices()]
    r.check("it is in the list", "siw1" in names, names)
    f.attach("siw1")
    r.equal("a file is attached to it", f.name, "siw1")
    q = f.call("DEVICE_QUERY")
    works = sum(1 << N["WR_" + op] for op in ("RDMA_WRITE", "SEND", "RDMA_READ"))
    r.equal("what works on it", (q.rc_send_ops, q.uc_send_ops, q.ud_send_ops), (works, 0, 0))
    r.equal("it has no shared receive queue", (q.max_srq, q.caps & N["CAP_SRQ"]), (0, 0))
    pd, cq = f.pd(), Cq(f, 16)
    for kind in ("UC", "UD"):
        r.equal(f"a queue pair of type {kind}", error_of(Qp, f, pd, cq, kind=kind), "EOPNOTSUPP")
    r.equal("a shared receive queue", error_of(ulp.Srq, f, pd, cq), "EOPNOTSUPP")
    r.equal("an address", error_of(f.ah, pd, bytes(16)), "EOPNOTSUPP")
    qp = Qp(f, pd, cq, 4)
    r.equal("a queue pair is made in INIT", f.call("QP_QUERY", qp=qp.handle).attr.qp_state, N["QPS_INIT"])
    for state in ("RESET", "INIT", "RTR", "RTS", "ERR"):
        r.equal(f"QP_MODIFY to {state}", error_of(qp.modify, "STATE", qp_state=N["QPS_" + state]), "EOPNOTSUPP")
    r.equal("QP_MODIFY of rights", error_of(qp.modify, "ACCESS_FLAGS", access_flags=ACCESS), "EOPNOTSUPP")
    r.equal("a send before there is a connection", error_of(f.submit, [qp.wr("SEND")]), "ENOTCONN")
    r.equal("a listener of another network namespace", error_of(on, "h2", listen, f, "10.9.0.1"), "EXDEV")
    ask = {"dst": addr("10.9.0.1", 1), "param": param(), "qp": qp.handle, "timeout_ns": ulp.hang_ns()}
    r.equal("a connection of one", error_of(on, "h2", f.call, "CONNECT", **ask), "EXDEV")
    there = error_of(on, "h2", f.call, "BUFFER_CREATE", pd=pd, node=N["NODE_ANY"], length=4096)
    r.equal("the first memory by one", there, "EADDRNOTAVAIL")
    other = File("h1", "")
    r.equal("who names no device gets another", other.name, "rxe1")


def create(f, pd):
    """BUFFER_CREATE on h1, the first of its domain: the device is connected with itself for that."""
    return on("h1", f.call, "BUFFER_CREATE", pd=pd, node=N["NODE_ANY"], length=4096)


@contextlib.contextmanager
def mute():
    """h1 does not hear what it answers itself when it is asked for a connection.

    Requests it does hear: siw leaks the endpoint of a stream that ends before there was one.
    """
    # Of TCP, with time stamps, are 52 bytes without data, 76 with an answer, and 92 with a request.
    subprocess.run(
        [*ulp.at("h1"), "nft", "-f", "-"],
        check=True,
        text=True,
        input="""
        table inet mute { chain in { type filter hook input priority 0;
        iif lo meta length 61-84 drop; }; }""",
    )
    try:
        yield
    finally:
        subprocess.run([*ulp.at("h1"), "nft", "delete", "table", "inet", "mute"], check=True)


def streams(host="h1", state="01"):
    """How many ends of connections TCP has there, established ones unless told otherwise."""

    def count():
        with open("/proc/thread-self/net/tcp", encoding="ascii") as f:
            return sum(line.split()[3] == state for line in f)

    return on(host, count)


def test_alone(r):
    """The connection of the device with itself."""
    for word in ("ip link add bare type dummy", "rdma link add siw3 type siw netdev bare"):
        subprocess.run(ulp.at("h1") + word.split(), check=True)
    f = File("h1", "siw3")
    r.equal("a device without an address has no memory", error_of(create, f, f.pd()), "EADDRNOTAVAIL")
    subprocess.run([*ulp.at("h1"), "ip", "addr", "add", "10.9.7.1/24", "dev", "bare"], check=True)
    subprocess.run([*ulp.at("h1"), "ip", "link", "set", "bare", "up"], check=True)
    r.equal("when it has one it has", error_of(create, f, f.pd()), "none")
    f.close()

    f = File("h1", "siw3")
    with mute():
        child = os.fork()
        if child == 0:
            error_of(create, f, f.pd())
            os._exit(0)
        r.check("a process waits for the connection", until(lambda: streams() >= 2), streams())
        os.kill(child, signal.SIGKILL)
        r.check("it is killed", until(lambda: os.waitpid(child, os.WNOHANG)[0], 40))
        r.check("and the connection ends", until(lambda: streams() == 0, 40), streams())
        pd = f.pd()
        waiting = Thread(create, f, pd)
        r.check("another one waits", until(lambda: streams() >= 2), streams())
        gone = subprocess.run(["rdma", "link", "del", "siw3"], check=False, timeout=60 * ulp.PATIENCE)
        r.equal("the device goes", gone.returncode, 0)
        r.equal("and that ends the wait", waiting.name(), "ENODEV")
    f.close()
    subprocess.run([*ulp.at("h1"), "ip", "link", "del", "bare"], check=True)


def test_data(r):
    server, c, got, request, accepted = meet()
    s = server.end
    r.equal("the request has the private data", bytes(request.private_data[: request.private_len]), granted(c))
    r.equal("and so has the answer", bytes(got.peer_private_data[: got.peer_private_len]), granted(s))
    r.equal("both queue pairs are in RTS", (qp_state(c), qp_state(s)), (N["QPS_RTS"], N["QPS_RTS"]))
    r.equal(
        "both connections are established",
        (query(c.file, got.handle).state, query(s.file, request.handle).state),
        (N["CONN_ESTABLISHED"],) * 2,
    )
    r.equal("reads each way as asked", (got.agreed.initiator_depth, got.agreed.responder_resources), (4, 4))
    r.check(
        "what streams do not have is 0", got.agreed.retry_cnt == got.agreed.path_mtu == accepted.agreed.rnr_retry == 0
    )

    there = {"remote_addr": s.grant.addr, "rkey": s.grant.rkey}
    page = {"remote_addr": s.page.addr, "rkey": s.page.rkey}
    c.buffer.map[:16384] = ulp.pattern(1, 16384)
    s.buffer.map[LAST:] = ulp.pattern(2, 4096)
    r.equal("a write", run(c, c.qp.wr("RDMA_WRITE", c.buffer, 0, 16384, **there)), [0])
    r.equal("a read", run(c, c.qp.wr("RDMA_READ", c.buffer, 32768, 4096, **page)), [0])
    r.equal("brings what is there", c.buffer.map[32768:36864], ulp.pattern(2, 4096))
    # The response to the read came after the write.
    r.equal("what was written is there", s.buffer.map[:16384], ulp.pattern(1, 16384))
    r.equal(
        "a grant to read more than a page",
        error_of(s.file.grant, s.buffer, N["ACCESS_REMOTE_READ"], 4000, 200),
        "EOPNOTSUPP",
    )

    for e, peer, seed in ((c, s, 3), (s, c, 4)):
        e.buffer.map[:3000] = ulp.pattern(seed, 3000)
        peer.file.submit([peer.qp.wr("RECV", peer.buffer, 8192, 4096)])
        r.equal("a send", run(e, e.qp.wr("SEND", e.buffer, 0, 3000)), [0])
        came = peer.cq.wait(1)[0]
        r.equal(
            "is received", (came.status, came.byte_len, peer.buffer.map[8192:11192]), (0, 3000, ulp.pattern(seed, 3000))
        )

    def refused(name, wr, errno):
        r.equal(name, error_of(c.file.submit, [wr]), errno)

    one = (c.buffer, 0, 64)
    for op, more in (
        ("RDMA_WRITE_WITH_IMM", there),
        ("SEND_WITH_IMM", {}),
        ("SEND_WITH_INV", {"imm_data": s.grant.rkey}),
    ):
        refused(op, c.qp.wr(op, *one, **more), "EOPNOTSUPP")
    for op in ("ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD"):
        refused(op, c.qp.wr(op, c.buffer, 0, 8, **there), "EOPNOTSUPP")
    pieces = (S["sge"] * 2)(*[S["sge"](buffer=c.buffer.handle, length=8, offset=at) for at in (0, 64)])
    read = c.qp.wr("RDMA_READ", **page)
    read.num_sge, read.sge = 2, S["sge"](offset=ulp.ctypes.addressof(pieces))
    refused("a read into two elements", read, "E2BIG")
    refused("a read into none", c.qp.wr("RDMA_READ", **page), "EOPNOTSUPP")
    refused(
        "a read that is fenced",
        c.qp.wr("RDMA_READ", *one, flags=N["SEND_SIGNALED"] | N["SEND_FENCE"], **page),
        "EOPNOTSUPP",
    )
    refused("a short message across two pages", c.qp.wr("SEND", c.buffer, 4090, 20), "EOPNOTSUPP")
    refused("a message without data that is inline", c.qp.wr("SEND", flags=N["SEND_INLINE"]), "EOPNOTSUPP")
    large = on("h2", ulp.Buffer, c.file, c.pd, 3 << 20)
    r.equal("a large buffer has keys of 256 pages", (large.keys, large.key_bytes), (3, 1 << 20))
    refused("a read across two keys", c.qp.wr("RDMA_READ", large, (1 << 20) - 32, 64, **page), "E2BIG")
    refused("a write across two keys", c.qp.wr("RDMA_WRITE", large, (1 << 20) - 32, 64, **there), "E2BIG")
    r.equal("more than a key is not granted", error_of(c.file.grant, large), "ERANGE")

    # None of that is in the way of what comes now.
    for at in range(0, 4096, 32):
        c.file.submit(
            [c.qp.wr("RDMA_READ", large, (1 << 20) + at, 32, remote_addr=page["remote_addr"] + at, rkey=page["rkey"])]
        )
    r.equal("many reads", {got.status for got in c.cq.wait(128)}, {0})
    r.equal("bring all of it", large.map[1 << 20 : (1 << 20) + 4096], ulp.pattern(2, 4096))
    large.map[1 << 20 : (1 << 20) + 65536] = ulp.pattern(5, 65536)
    r.equal("a write of 64 KiB", run(c, c.qp.wr("RDMA_WRITE", large, 1 << 20, 65536, **there)), [0])
    r.equal("and a read after it", run(c, c.qp.wr("RDMA_READ", c.buffer, 0, 4096, **page)), [0])
    r.equal("brings what was written", c.buffer.map[:4096], ulp.pattern(5, 65536)[LAST:])
    r.equal("all of which is there", s.buffer.map[:65536], ulp.pattern(5, 65536))
    s.file.destroy(s.page.handle)
    run(c, c.qp.wr("RDMA_READ", c.buffer, 0, 4096, **page))
    r.check(
        "a read by a key that is gone ends the connection",
        until(lambda: query(c.file, got.handle).state == N["CONN_DISCONNECTED"], 20),
    )
    r.equal("and brings nothing", c.buffer.map[:4096], ulp.pattern(5, 65536)[LAST:])
    close(server, c)


def test_ends(r):
    server, c = Server(), end("h2")
    thread = asks(server, c)
    reject(server.end.file, server.request().handle, b"no room")
    try:
        thread.end()
        r.check("CONNECT that is rejected fails", False)
    except Refused as e:
        r.equal("CONNECT that is rejected", (e.errno, e.reason, e.data), (ulp.errno.ECONNREFUSED, 28, b"no room"))
    r.equal("its queue pair is in ERR", qp_state(c), N["QPS_ERR"])
    r.equal("and of no use any more", error_of(on, "h2", connect, c, "10.9.0.1", server.port), "EPROTO")
    close(server, c)

    server, c = Server(), end("h2")
    port = server.port
    on("h1", server.end.file.destroy, server.listener)
    r.equal("CONNECT where nobody listens", error_of(on, "h2", connect, c, "10.9.0.1", port), "ECONNREFUSED")
    r.equal("has left its queue pair in INIT", qp_state(c), N["QPS_INIT"])
    close(server, c)

    server, c, got, request, _ = meet()
    s = server.end
    c.file.submit([c.qp.wr("RECV", c.buffer, 0, 64)])
    s.file.call("DISCONNECT", conn=request.handle)
    r.check("the peer sees the end", until(lambda: query(c.file, got.handle).state == N["CONN_DISCONNECTED"], 20))
    r.equal("its receives are flushed", [wc.status for wc in c.cq.wait(1)], [FLUSHED])
    r.equal("both queue pairs are in ERR", (qp_state(c), qp_state(s)), (N["QPS_ERR"],) * 2)
    c.file.destroy(got.handle)
    c.file.destroy(c.qp.handle)
    r.equal("a queue pair that has ended is destroyed", error_of(c.file.destroy, c.qp.handle), "ENOENT")
    close(server, c)

    server, c, got, request, _ = meet()
    s = server.end
    there = {"remote_addr": s.grant.addr, "rkey": s.grant.rkey}
    c.buffer.map[:4096] = ulp.pattern(6, 4096)
    page = {"remote_addr": s.page.addr, "rkey": s.page.rkey}
    r.equal(
        "a write, and a read after it",
        run(c, c.qp.wr("RDMA_WRITE", c.buffer, 0, 4096, **there), c.qp.wr("RDMA_READ", c.buffer, 8192, 4096, **page)),
        [0, 0],
    )
    r.equal("has landed", s.buffer.map[:4096], ulp.pattern(6, 4096))
    on("h1", s.file.destroy, s.grant.handle)
    s.buffer.map[:4096] = bytes(4096)
    # The stream takes it, the peer does not, and ends the stream.
    wrote = run(c, c.qp.wr("RDMA_WRITE", c.buffer, 0, 4096, **there))
    r.check(
        "a write by a key that is gone ends the connection",
        until(lambda: query(c.file, got.handle).state == N["CONN_DISCONNECTED"], 20),
        wrote,
    )
    r.equal("and does not land", s.buffer.map[:4096], bytes(4096))
    r.equal("the queue pair is in ERR", qp_state(c), N["QPS_ERR"])
    close(server, c)


@contextlib.contextmanager
def unheard():
    """h1 hears nothing of TCP from h2."""
    rule = "table inet unheard { chain in { type filter hook input priority 0; iif w1 meta l4proto 6 drop; }; }"
    subprocess.run([*ulp.at("h1"), "nft", "-f", "-"], check=True, text=True, input=rule)
    try:
        yield
    finally:
        subprocess.run([*ulp.at("h1"), "nft", "delete", "table", "inet", "unheard"], check=True)


def test_lost(r):
    """CONNECT whose SYNs are lost: it waits for TCP, which repeats them."""
    server, c = Server(), end("h2")
    where = {"qp": c.qp.handle, "dst": addr("10.9.0.1", server.port), "param": param()}
    r.equal(
        "CONNECT does not leave that to a worker",
        error_of(on, "h2", c.file.call, "CONNECT", flags=N["NONBLOCK"], **where),
        "EOPNOTSUPP",
    )
    retries = "/proc/sys/net/ipv4/tcp_syn_retries"
    with unheard():
        on("h2", faultpoint.put, retries, 1)
        r.equal("CONNECT that nobody hears", error_of(on, "h2", connect, c, "10.9.0.1", server.port), "ETIMEDOUT")
        r.equal("has left its queue pair in INIT", qp_state(c), N["QPS_INIT"])
        # Hours.
        on("h2", faultpoint.put, retries, 100)
        child = os.fork()
        if child == 0:
            error_of(on, "h2", connect, c, "10.9.0.1", server.port)
            os._exit(0)
        r.check("a process waits for TCP", until(lambda: streams("h2", "02")))
        os.kill(child, signal.SIGKILL)
        r.check("a signal ends it", until(lambda: os.waitpid(child, os.WNOHANG)[0], 40))
        r.check("which gives the queue pair back", until(lambda: qp_state(c) == N["QPS_INIT"], 20), qp_state(c))
    on("h2", faultpoint.put, retries, 6)
    thread = asks(server, c)
    accept(server.end, server.request().handle, b"", SECONDS)
    r.equal("then it connects", (thread.name(), qp_state(c)), ("none", N["QPS_RTS"]))
    close(server, c)


def test_faults(r):
    """The connection of the device with itself, with each call of a verb on its way failing, in turn."""
    f, faults = File("h1", "siw1"), Faults()
    faults.choose("verb")
    said, came, n = collections.Counter(), True, 0
    while came:
        n += 1
        pd = f.pd()
        call = ioctl(f, "BUFFER_CREATE", pd=pd, node=N["NODE_ANY"], length=4096)
        result, err, came = on("h1", faults.call, n, call.function, *call.args)
        said[faultpoint.name_of(err) if result < 0 else "none"] += 1
    faults.choose(None)
    r.check("many of them fail", said["EIO"] > 10, said)
    r.equal("and nothing but that comes of it", set(said), {"EIO", "none"})
    r.equal("in the end there is memory", result, 0)
    pd = f.pd()
    r.equal("and so there is in another domain", error_of(create, f, pd), "none")
    f.close()


def pinned():
    """The KiB that are charged to this process."""
    with open("/proc/self/status", encoding="ascii") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmPin"))


def test_deferred(r):
    """The pages of a buffer that was granted stay until its domain goes; there is a limit to that."""
    most = 1024
    f = File("h1", "siw1")
    pds = [f.pd() for _ in range(2)]
    for pd in pds:
        f.destroy(create(f, pd).handle)

    def granted_once(pd):
        buffer = f.call("BUFFER_CREATE", pd=pd, node=N["NODE_ANY"], length=4096, page_size=4096).handle
        try:
            access = N["ACCESS_REMOTE_WRITE"]
            f.destroy(f.call("GRANT_CREATE", buffer=buffer, access=access, length=4096).handle)
        finally:
            f.destroy(buffer)

    # Each grant that ends waits for RCU.
    faultpoint.put("/sys/kernel/rcu_expedited", 1)
    try:
        before = pinned()
        said = collections.Counter(on("h1", error_of, granted_once, pds[0]) for _ in range(most))
        r.equal(f"{most} buffers are granted in turn", said, {"none": most})
        r.equal("all their pages are still charged", pinned() - before, most * 4)
        r.equal("the next one has no grant", on("h1", error_of, granted_once, pds[0]), "ENOMEM")
        r.equal("in another domain it has", on("h1", error_of, granted_once, pds[1]), "none")
        f.destroy(pds[0])
        r.equal("the pages go with their domain", pinned() - before, 4)
    finally:
        faultpoint.put("/sys/kernel/rcu_expedited", 0)
    f.close()


def test_removal(r):
    """siw1 and siw2 go while they are connected, and while somebody waits; rxe1 and rxe2 go on."""
    a, b = ulp.pair()
    server, c, _got, _request, _ = meet()
    waiting = Thread(get_request, server.end.file, server.listener, 60)
    asking = end("h2")
    unanswered = asks(server, asking)
    taken = waiting.end()
    r.check("a request waits", taken.handle != 0)
    waiting = Thread(get_request, server.end.file, server.listener, 60)
    for device in ("siw1", "siw2"):
        gone = subprocess.run(["rdma", "link", "del", device], check=False, timeout=60 * ulp.PATIENCE)
        r.equal(f"{device} goes", gone.returncode, 0)
    r.equal("GET_REQUEST ends", waiting.name(), "ENODEV")
    r.check("CONNECT ends", unanswered.name() in ("ENODEV", "ECONNREFUSED", "ECONNRESET"), unanswered.error)
    for name, x in (("the listener's", server.end), ("the client's", c)):
        r.equal(f"{name} file is a husk", error_of(x.file.call, "DEVICE_QUERY"), "ENODEV")
    names = [ulp.text(d.name) for d in a.file.devices()]
    r.check("and they are in the list no more", "siw1" not in names and "rxe1" in names, names)
    a.buffer.map[:4096] = ulp.pattern(7, 4096)
    r.equal("a write between the others", run(a, a.write(b, 4096)), [0])
    r.equal("lands", b.buffer.map[:4096], ulp.pattern(7, 4096))
    close(server, c, asking, a, b)


if __name__ == "__main__":
    ulp.main(__doc__, globals())
