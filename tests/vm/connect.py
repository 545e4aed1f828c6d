#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Connections by the connection manager.

    connect.py NAME...

Expects the module and two hosts. Prints KTAP.
"""

import errno
import glob
import ipaddress
import mmap
import os
import pathlib
import re
import select
import signal
import struct
import subprocess
import sys
import threading
import time
import warnings

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import contextlib

import tracing
import ulp
from lifetime import LONG, remove
from personality import HERE
from ulp import N, S, End, File, error_of, hang_ns, remote, until

# Of fork() with threads: the children need none of their locks.
warnings.simplefilter("ignore", DeprecationWarning)

SECOND = 10**9
PATIENCE = ulp.PATIENCE
ROUNDS = ulp.count("ULP_ROUNDS", 5)
FLUSHED = 5
# An attempt whose route or source has gone.
AWAY = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL)
ACCESS = N["ACCESS_REMOTE_WRITE"] | N["ACCESS_REMOTE_READ"]
# What a stock peer would ask for; the acknowledgement's time-out is short, so that a peer that
# is gone is noticed, but longer than a second guest may sleep.
PARAM = {
    "responder_resources": 4,
    "initiator_depth": 4,
    "retry_cnt": 6,
    "rnr_retry": 6,
    "min_rnr_timer": 12,
    "ack_timeout": 17 if ulp.PEER else 16,
    "access_flags": ACCESS,
}


def addr(text="", port=0, scope=0):
    if not text:
        return S["addr"]()
    ip = ipaddress.ip_address(text)
    out = S["addr"](family={4: 2, 6: 10}[ip.version], port=port, scope_id=scope)
    for i, byte in enumerate(ip.packed):
        out.addr[i] = byte
    return out


def text_of(a):
    raw = bytes(a.addr)
    return str(ipaddress.ip_address(raw[:4] if a.family == 2 else raw))


def param(**more):
    return S["conn_param"](**PARAM | more)


def private(data):
    out = (S["connect"]().private_data.__class__)()
    for i, byte in enumerate(data):
        out[i] = byte
    return {"private_data": out, "private_len": len(data)}


class Refused(OSError):
    """An attempt failed, and the struct of CONN_WAIT says more."""

    def __init__(self, err, got=None):
        super().__init__(err, os.strerror(err))
        self.reason = got.reject_reason if got else 0
        self.data = bytes(got.private_data[: got.private_len]) if got else b""


def listen(file, where="0.0.0.0", port=0, backlog=16, scope=0):
    return file.call("LISTEN", addr=addr(where, port, scope), backlog=backlog)


def get_request(file, listener, seconds=10):
    return file.call("GET_REQUEST", listener=listener, timeout_ns=hang_ns(seconds))


def renew(file, qp):
    """Where no queue pair comes back from ERR, another one is connected."""
    if not HERE.resets and file.call("QP_QUERY", qp=qp.handle).attr.qp_state == N["QPS_ERR"]:
        qp.reset()


def start(end, where, port, data=b"", src=None, scope=0, **more):
    """CONNECT: its struct, with the handle of the attempt."""
    renew(end.file, end.qp)
    arg = S["connect"](
        qp=end.qp.handle, dst=addr(where, port, scope), src=src or addr(), param=param(**more), **private(data)
    )
    failed, arg = end.file.issue("CONNECT", arg)
    if failed:
        raise Refused(failed)
    return arg


def wait(file, handle, seconds=None):
    """CONN_WAIT, with a time-out of so many seconds, or one that only a hang meets: its errno and its struct."""
    ulp.ignore_children()
    return file.issue(
        "CONN_WAIT", S["conn_wait"](conn=handle, timeout_ns=hang_ns() if seconds is None else int(seconds * SECOND))
    )


def ended_well(file, handle, seconds=None):
    """The struct of CONN_WAIT. An attempt that fails, or does not end, is destroyed."""
    failed, got = wait(file, handle, seconds)
    if failed:
        if failed not in (errno.ENODEV, errno.ENXIO, errno.ENOENT):
            file.destroy(handle)
        raise Refused(failed, got)
    got.handle = handle
    return got


def connect(end, where, port, data=b"", seconds=None, **more):
    """CONNECT, and CONN_WAIT with that time-out. What does not succeed is destroyed."""
    asked = start(end, where, port, data, **more)
    got = ended_well(end.file, asked.handle, seconds)
    got.asked = asked
    return got


def begin_accept(end, request, data=b"", **more):
    """ACCEPT. A request that has failed by it is destroyed."""
    renew(end.file, end.qp)
    try:
        return end.file.call("ACCEPT", request=request, qp=end.qp.handle, param=param(**more), **private(data))
    except OSError as e:
        if (
            e.errno not in (errno.ENODEV, errno.ENXIO, errno.ENOENT)
            and query(end.file, request).state == N["CONN_FAILED"]
        ):
            end.file.destroy(request)
        raise


def accept(end, request, data=b"", seconds=None, **more):
    """ACCEPT, and CONN_WAIT with that time-out. What does not succeed is destroyed, but for a request that still
    waits."""
    asked = begin_accept(end, request, data, **more)
    got = ended_well(end.file, request, seconds)
    got.asked = asked
    return got


def heard(end, event, handle, seconds=20):
    """Waits for an event of `handle`; returns its info, or None and what was heard instead."""
    seen = []

    def look():
        seen.extend(end.file.events())
        return [e for e in seen if e[:2] == (N["EVENT_" + event], handle)]

    found = until(look, seconds)
    return found[0][3] if found else (None, seen)


def reject(file, request, data=b""):
    return file.call("REJECT", request=request, **private(data))


def query(file, handle):
    return file.call("CONN_QUERY", conn=handle)


def qp_state(end):
    return end.file.call("QP_QUERY", qp=end.qp.handle).attr.qp_state


def is_idle(end):
    """Whether an attempt that has failed left the queue pair in RESET, or in ERR, where the driver has no way back."""
    return qp_state(end) in (N["QPS_RESET"], *([] if HERE.resets else [N["QPS_ERR"]]))


class Thread:
    """Runs the call aside; `.end()` is its result, or raises what it raised."""

    def __init__(self, function, *args, **kwargs):
        def body():
            try:
                self.result = function(*args, **kwargs)
            except Exception as e:
                self.error = e

        self.error = self.result = None
        self.thread = threading.Thread(target=body, daemon=True)
        self.thread.start()

    def over(self):
        """Whether the call has returned."""
        return not self.thread.is_alive()

    def end(self, seconds=40):
        self.thread.join(seconds * PATIENCE)
        if self.thread.is_alive():
            raise TimeoutError("the call does not return")
        if self.error:
            raise self.error
        return self.result

    def name(self, seconds=40):
        """The errno's name."""
        return error_of(self.end, seconds)


class Server:
    """A listener on h1, and an end for each request that it accepts."""

    def __init__(self, where="0.0.0.0", port=0, backlog=16, host="h1", scope=0, **more):
        self.end = End(host, ulp.DEV1 if host == "h1" else ulp.DEV2, access=ACCESS, **more)
        got = listen(self.end.file, where, port, backlog, scope)
        self.listener, self.port = got.handle, got.addr.port

    def request(self, seconds=10):
        return get_request(self.end.file, self.listener, seconds)

    def close(self):
        self.end.file.close()


class Bare:
    """A file with queue pairs and no mapping: closing it releases it."""

    def __init__(self, host_name, device, count=1):
        self.file = File(host_name, device)
        pd = self.file.pd()
        cq = self.file.call("CQ_CREATE", entries=16 * count)
        self.qps = [ulp.Qp(self.file, pd, cq, depth=1) for _ in range(count)]
        self.qp = self.qps[0]


def aside(function, *args):
    """A process that runs the call; its number."""
    pid = os.fork()
    if not pid:
        try:
            function(*args)
        finally:
            os._exit(1)
    return pid


def client(**more):
    return End("h2", ulp.DEV2, access=ACCESS, **more)


def connect_and_stay(port):
    connect(client(), "10.9.0.1", port)
    signal.pause()


def grant_of(end):
    return struct.pack("<QI", end.grant.addr, end.grant.rkey)


def write_to(end, granted, data):
    """An RDMA Write of `data` to where the peer granted; its completion."""
    where, rkey = struct.unpack_from("<QI", granted)
    end.buffer.map[: len(data)] = data
    end.file.submit(
        [end.qp.wr("RDMA_WRITE", end.buffer, 0, len(data), remote_addr=where + 4096, rkey=rkey, user_data=7)]
    )
    return end.cq.wait(1)[0]


def meet(server, end, where="10.9.0.1", data=b"", **more):
    """Connects `end` with the server's end; the results of CONNECT, GET_REQUEST and ACCEPT."""
    thread = Thread(connect, end, where, server.port, grant_of(end) + data, **more)
    request = server.request()
    accepted = accept(server.end, request.handle, grant_of(server.end))
    return thread.end(), request, accepted


def test_write(r):
    server, c = Server(), client()
    r.check("LISTEN with port 0 says which port it is", server.port > 1023, server.port)
    got, request, _accepted = meet(server, c, data=b"hello")
    r.equal("the request has the private data", bytes(request.private_data[12:17]), b"hello")
    r.equal("padded with zeros", (request.private_len, bytes(request.private_data[17:56])), (56, bytes(39)))
    r.equal("it names the requester", (text_of(request.peer), request.peer_qp_num), ("10.9.0.2", c.qp.num))
    r.equal("and the listener", (text_of(request.local), request.local.port), ("10.9.0.1", server.port))
    r.equal("CONN_WAIT names the peer", got.peer_qp_num, server.end.qp.num)
    r.equal("and the address used", text_of(got.local), "10.9.0.2")
    r.equal("both queue pairs are in RTS", (qp_state(c), qp_state(server.end)), (3, 3))
    r.equal("a write to the listener's side", write_to(c, bytes(got.private_data), b"ping").status, 0)
    r.equal("arrives", server.end.buffer.map[4096:4100], b"ping")
    r.equal("a write to the connecting side", write_to(server.end, bytes(request.private_data), b"pong").status, 0)
    r.equal("arrives too", c.buffer.map[4096:4100], b"pong")

    q = query(c.file, got.handle)
    r.equal(
        "CONN_QUERY of the connecting side",
        (q.state, q.qp, q.peer_qp_num, text_of(q.local), text_of(q.peer), q.peer.port),
        (N["CONN_ESTABLISHED"], c.qp.handle, server.end.qp.num, "10.9.0.2", "10.9.0.1", server.port),
    )
    q = query(server.end.file, request.handle)
    r.equal(
        "CONN_QUERY of the other",
        (q.state, q.qp, q.peer_qp_num, text_of(q.local), text_of(q.peer)),
        (N["CONN_ESTABLISHED"], server.end.qp.handle, c.qp.num, "10.9.0.1", "10.9.0.2"),
    )
    q = query(server.end.file, server.listener)
    r.equal(
        "CONN_QUERY of the listener",
        (q.state, q.local.port, q.waiting, q.backlog, q.rejected),
        (N["CONN_LISTENING"], server.port, 0, 16, 0),
    )
    r.equal("a queue pair with a connection is not destroyed", error_of(c.file.destroy, c.qp.handle), "EBUSY")
    r.equal("and not connected again", error_of(connect, c, "10.9.0.1", server.port), "EISCONN")
    r.equal("a connection is not accepted again", error_of(accept, server.end, request.handle), "EISCONN")
    r.equal("nor rejected", error_of(reject, server.end.file, request.handle), "EISCONN")
    server.close()
    c.file.close()


def test_look(r):
    """CONN_QUERY while a connection is established: what it says of the state and of the addresses is of one moment."""
    server, c = Server(), client()
    begun, seen = start(c, "10.9.0.1", server.port).handle, set()
    ends = {(N["CONN_CONNECTING"], 0, 0), (N["CONN_ESTABLISHED"], 2, 2)}

    def look():
        q = query(c.file, begun)
        seen.add((q.state, q.local.family, q.peer.family))
        return ends <= seen

    threads = [Thread(until, look) for _ in range(4)]
    until(lambda: seen)
    accept(server.end, server.request().handle)
    r.equal("a connection has its addresses when it is established", [t.end() for t in threads], [True] * 4)
    r.equal("... and not before", seen, ends)
    server.close()
    c.file.close()


def test_reject(r):
    server, c = Server(), client()
    thread = Thread(connect, c, "10.9.0.1", server.port)
    request = server.request()
    reject(server.end.file, request.handle, b"not today")
    r.equal("CONNECT of a rejected request", thread.name(), "ECONNREFUSED")
    r.equal(
        "the reason is the consumer's, and the private data is the peer's",
        (thread.error.reason, thread.error.data[:9], len(thread.error.data)),
        (28, b"not today", 148),
    )
    r.equal("the queue pair is in RESET", is_idle(c), True)
    r.equal("the request is gone", error_of(query, server.end.file, request.handle), "ENOENT")

    attempt = start(c, "10.9.0.1", 1)
    r.equal("CONNECT to a port without a listener", ulp.error_name(wait(c.file, attempt.handle)[0]), "ECONNREFUSED")
    r.equal("REJECT of an attempt that has failed", error_of(reject, c.file, attempt.handle), "ENOTCONN")
    r.equal("... which stays", query(c.file, attempt.handle).state, N["CONN_FAILED"])
    c.file.destroy(attempt.handle)

    thread = Thread(connect, c, "10.9.0.1", server.port)
    server.end.file.destroy(server.request().handle)
    r.equal("destroying a request rejects it", (thread.name(), thread.error.reason), ("ECONNREFUSED", 28))

    c.qp.modify("STATE PKEY_INDEX PORT ACCESS_FLAGS", qp_state=N["QPS_INIT"], port_num=1, access_flags=ACCESS)
    c.file.submit([c.qp.wr("RECV", c.buffer, 0, 64, user_data=9)])
    thread = Thread(connect, c, "10.9.0.1", server.port)
    reject(server.end.file, server.request().handle)
    thread.name()
    info = c.file.call("QP_QUERY", qp=c.qp.handle)
    r.equal(
        "a queue pair in INIT stays there, with its receives",
        (info.attr.qp_state, info.recvs_in_flight),
        (N["QPS_INIT"], 1),
    )
    meet(server, c)
    server.end.file.submit([server.end.qp.wr("SEND", server.end.buffer, 0, 8)])
    done = c.cq.wait(1)[0]
    r.equal("and connected, takes a message with it", (done.user_data, done.status, done.byte_len), (9, 0, 8))
    bare = Bare("h1", ulp.DEV1)
    got = listen(bare.file)
    thread = Thread(connect, client(), "10.9.0.1", got.addr.port)
    r.check("a request waits", until(lambda: query(bare.file, got.handle).waiting == 1))
    bare.file.close()
    server.close()
    r.equal(
        "closing the listener's file rejects what waits", (thread.name(), thread.error.reason), ("ECONNREFUSED", 28)
    )
    c.file.close()


def test_inputs(r):
    server, c = Server(), client()
    f, qp, pd = c.file, c.qp.handle, c.pd
    good = {"addr": addr("0.0.0.0"), "backlog": 1}
    peer = addr("10.9.0.1", server.port)
    odd = addr("10.9.0.1", 1)
    odd.addr[4] = 1
    family = addr("10.9.0.1", 1)
    family.family = 3
    for name, fields, want in (
        ("a flag", {"flags": 1}, "EINVAL"),
        ("no address", {"addr": addr()}, "EINVAL"),
        ("an unknown family", {"addr": family}, "EINVAL"),
        ("bytes behind an IPv4 address", {"addr": odd}, "EINVAL"),
        ("a link for an IPv4 address", {"addr": addr("10.9.0.2", 0, 1)}, "EINVAL"),
        ("a link-local address without a link", {"addr": addr("fe80::1")}, "EINVAL"),
        ("a link for another IPv6 address", {"addr": addr("fd09::2", 0, 2)}, "EINVAL"),
        ("no backlog", {"backlog": 0}, "ERANGE"),
        ("too large a backlog", {"backlog": 1025}, "ERANGE"),
        ("an address that nobody has", {"addr": addr("10.9.0.9")}, "EADDRNOTAVAIL"),
        ("the peer's address", {"addr": addr("10.9.0.1")}, "EADDRNOTAVAIL"),
        ("a loopback address", {"addr": addr("127.0.0.1")}, "EADDRNOTAVAIL"),
        ("an address of network zero", {"addr": addr("0.0.0.1")}, "EADDRNOTAVAIL"),
    ):
        r.equal(f"LISTEN, {name}", error_of(f.call, "LISTEN", **good | fields), want)

    good = {"qp": qp, "dst": peer, "param": param()}
    for name, fields, want in (
        ("a flag", {"flags": 1}, "EINVAL"),
        ("padding", {"pad": 1}, "EINVAL"),
        ("no address", {"dst": addr()}, "EINVAL"),
        ("any address", {"dst": addr("0.0.0.0", 1)}, "EINVAL"),
        ("no port", {"dst": addr("10.9.0.1")}, "EINVAL"),
        ("an unknown family", {"dst": family}, "EINVAL"),
        ("a source of another family", {"src": addr("fd09::2")}, "EINVAL"),
        ("a loopback address", {"dst": addr("127.0.0.1", 1)}, "EHOSTUNREACH"),
        ("no queue pair", {"qp": 0}, "ENOENT"),
        ("a PD for a queue pair", {"qp": pd}, "EBADFD"),
        ("too much private data", {"private_len": 57}, "EMSGSIZE"),
        ("more private data than its length", private(b"1234") | {"private_len": 3}, "EINVAL"),
        ("an unknown flag of the parameters", {"param": param(flags=4)}, "EINVAL"),
        ("local rights", {"param": param(access_flags=1)}, "EINVAL"),
        ("a path MTU of 6", {"param": param(path_mtu=6)}, "EINVAL"),
        ("8 retries", {"param": param(retry_cnt=8)}, "ERANGE"),
        ("8 retries of the receiver", {"param": param(rnr_retry=8)}, "ERANGE"),
        ("an RNR timer of 32", {"param": param(min_rnr_timer=32)}, "ERANGE"),
        ("a time-out of 22", {"param": param(ack_timeout=22)}, "ERANGE"),
        ("more responder resources than the device has", {"param": param(responder_resources=255)}, "ERANGE"),
        ("more outstanding reads than the device has", {"param": param(initiator_depth=255)}, "ERANGE"),
    ):
        r.equal(f"CONNECT, {name}", error_of(f.call, "CONNECT", **good | fields), want)

    g, h = server.end.file, server.listener
    for name, fields, want in (
        ("a flag", {"flags": 4}, "EINVAL"),
        ("another flag", {"flags": 2}, "EINVAL"),
        ("no listener", {"listener": 0}, "ENOENT"),
        ("a PD", {"listener": server.end.pd}, "EBADFD"),
        ("nothing there, no time", {}, "ETIME"),
        ("nothing there", {"timeout_ns": SECOND // 10}, "ETIME"),
    ):
        r.equal(f"GET_REQUEST, {name}", error_of(g.call, "GET_REQUEST", **{"listener": h} | fields), want)

    thread = Thread(connect, c, "10.9.0.1", server.port)
    request = server.request().handle
    good = {"request": request, "qp": server.end.qp.handle, "param": param()}
    for name, fields, want in (
        ("a flag", {"flags": 1}, "EINVAL"),
        ("padding", {"pad": 1}, "EINVAL"),
        ("no request", {"request": 0}, "ENOENT"),
        ("the listener", {"request": h}, "EBADFD"),
        ("no queue pair", {"qp": 0}, "ENOENT"),
        ("the request for a queue pair", {"qp": request}, "EBADFD"),
        ("too much private data", {"private_len": 197}, "EMSGSIZE"),
        ("more private data than its length", private(b"1234") | {"private_len": 0}, "EINVAL"),
        ("a smaller path MTU", {"param": param(path_mtu=1)}, "ERANGE"),
        ("a time-out of 22", {"param": param(ack_timeout=22)}, "ERANGE"),
        ("an unknown flag of the parameters", {"param": param(flags=8)}, "EINVAL"),
        ("more responder resources than the device has", {"param": param(responder_resources=255)}, "ERANGE"),
    ):
        r.equal(f"ACCEPT, {name}", error_of(g.call, "ACCEPT", **good | fields), want)
    for name, fields, want in (
        ("a flag", {"flags": 1}, "EINVAL"),
        ("padding", {"agreed": S["conn_param"](reserved=(1, 0, 0, 0))}, "EINVAL"),
        ("no connection", {"conn": 0}, "ENOENT"),
        ("a queue pair", {"conn": server.end.qp.handle}, "EBADFD"),
        ("the listener", {"conn": h}, "EBADFD"),
        ("a request that was not accepted", {}, "ENOTCONN"),
    ):
        waiting = {"conn": request, "timeout_ns": SECOND}
        r.equal(f"CONN_WAIT, {name}", error_of(g.call, "CONN_WAIT", **waiting | fields), want)
    for name, fields, want in (
        ("a flag", {"flags": 1}, "EINVAL"),
        ("no request", {"request": 0}, "ENOENT"),
        ("too much private data", {"private_len": 149}, "EMSGSIZE"),
        ("more private data than its length", private(b"1234") | {"private_len": 3}, "EINVAL"),
    ):
        r.equal(f"REJECT, {name}", error_of(g.call, "REJECT", **{"request": request} | fields), want)
    r.equal("DISCONNECT of a request", error_of(g.call, "DISCONNECT", conn=request), "ENOTCONN")
    r.equal("DISCONNECT of a listener", error_of(g.call, "DISCONNECT", conn=h), "EBADFD")
    r.equal("DISCONNECT, padding", error_of(g.call, "DISCONNECT", conn=request, pad=1), "EINVAL")
    r.equal("CONN_QUERY of a queue pair", error_of(query, g, server.end.qp.handle), "EBADFD")
    r.equal("CONN_QUERY of a request", query(g, request).state, N["CONN_REQUESTED"])
    accept(server.end, request)
    r.equal("after all that, the request is accepted", thread.name(), "none")
    c2 = client()
    c2.qp.modify("STATE PKEY_INDEX PORT ACCESS_FLAGS", qp_state=N["QPS_INIT"], port_num=1)
    c2.qp.modify("STATE", qp_state=N["QPS_ERR"])
    said = error_of(c2.file.call, "CONNECT", qp=c2.qp.handle, dst=addr("10.9.0.1", server.port), param=param())
    r.equal("CONNECT with a queue pair in ERR", said, "EPROTO")
    f2 = File("h2")
    r.equal("LISTEN of a file without a device", error_of(listen, f2), "ENXIO")
    for x in (server.end.file, f, c2.file, f2):
        x.close()


def test_refused(r):
    server, c = Server(), client()
    thread = Thread(connect, c, "10.9.0.1", server.port + 1 if server.port < 65535 else 1025)
    r.equal("nobody listens", (thread.name(), thread.error.reason), ("ECONNREFUSED", 8))
    r.equal("and with the longest time-out", error_of(connect, c, "10.9.0.1", 1025, ack_timeout=21), "ECONNREFUSED")
    r.equal("no route", error_of(connect, c, "192.0.2.1", 7), "ENETUNREACH")
    r.equal(
        "a source that is not ours",
        error_of(connect, c, "10.9.0.1", server.port, src=addr("10.9.0.7")),
        "EADDRNOTAVAIL",
    )
    thread = Thread(connect, c, "10.9.0.77", 7)
    r.equal("nobody has the address", thread.name(), "EHOSTUNREACH")
    r.equal("the queue pair is in RESET", is_idle(c), True)
    f, port = server.end.file, server.port
    r.equal("LISTEN, any address, a port that is taken", error_of(listen, f, port=port), "EADDRINUSE")
    r.equal("LISTEN, an address, a port that is taken on any", error_of(listen, f, "10.9.0.1", port), "EADDRINUSE")
    one = listen(f, "10.9.0.1")
    r.equal(
        "LISTEN, an address and a port that are taken", error_of(listen, f, "10.9.0.1", one.addr.port), "EADDRINUSE"
    )
    other = listen(f, "fd09::1", one.addr.port)
    r.equal("the port of another address is free", other.addr.port, one.addr.port)
    f.destroy(one.handle)
    again = listen(f, "10.9.0.1", one.addr.port)
    r.equal("a port is free when its listener is gone", again.addr.port, one.addr.port)

    # The file's device is the peer's, its namespace is not.
    odd = End("h2", ulp.DEV1)
    r.equal("a route by another device", error_of(connect, odd, "10.9.0.1", port), "EXDEV")
    r.equal("an address of another device", error_of(listen, odd.file, "10.9.0.2"), "EXDEV")
    there = listen(odd.file)
    a = End("h1", ulp.DEV1)
    thread = Thread(connect, a, "10.9.0.2", there.addr.port)
    r.equal("a request of another device is for nobody", (thread.name(), thread.error.reason), ("ECONNREFUSED", 8))
    q = query(odd.file, there.handle)
    r.equal("and is not counted", (q.waiting, q.rejected), (0, 0))
    for x in (server.end.file, c.file, odd.file, a.file):
        x.close()


def test_backlog(r):
    server = Server(backlog=2)
    clients = [client() for _ in range(4)]
    threads = [Thread(connect, c, "10.9.0.1", server.port) for c in clients[:2]]
    f, h = server.end.file, server.listener
    r.check("two requests wait", until(lambda: query(f, h).waiting == 2))
    late = [Thread(connect, c, "10.9.0.1", server.port) for c in clients[2:]]
    r.equal(
        "those beyond the backlog are rejected", [(t.name(), t.error.reason) for t in late], [("ECONNREFUSED", 3)] * 2
    )
    q = query(f, h)
    r.equal("and counted", (q.waiting, q.backlog, q.rejected), (2, 2, 2))
    first = server.request()
    r.check("the oldest is taken first", first.peer_qp_num in [c.qp.num for c in clients[:2]])
    again = Thread(connect, clients[2], "10.9.0.1", server.port)
    r.check("there is room again", until(lambda: query(f, h).waiting == 2))
    accept(server.end, first.handle)
    reject(f, server.request().handle)
    last = server.request()
    r.equal("the last comes last", last.peer_qp_num, clients[2].qp.num)
    reject(f, last.handle)
    r.equal(
        "one is connected, two are rejected",
        sorted(t.name() for t in [*threads, again]),
        ["ECONNREFUSED", "ECONNREFUSED", "none"],
    )
    bad = S["get_request"](size=ulp.ctypes.sizeof(S["get_request"]), listener=h)
    thread = Thread(connect, clients[3], "10.9.0.1", server.port)
    until(lambda: query(f, h).waiting == 1)
    r.equal(
        "a struct that cannot be written takes no request",
        (error_of(ulp.ioctl, f.fd, N["IOC_GET_REQUEST"], read_only(bad)), query(f, h).waiting),
        ("EFAULT", 1),
    )
    # A struct that can no longer be written when the request comes.
    reject(f, server.request().handle)
    r.equal("it is rejected", (thread.name(), thread.error.reason), ("ECONNREFUSED", 28))
    page = Page(S["get_request"](size=bad.size, listener=h, timeout_ns=30 * PATIENCE * SECOND))
    waiter = Thread(ulp.ioctl, f.fd, N["IOC_GET_REQUEST"], page.at)
    r.check("GET_REQUEST waits", until(lambda: ulp.sleeps_in_module(waiter.thread)))
    page.protect()
    thread = Thread(connect, clients[3], "10.9.0.1", server.port)
    r.equal("GET_REQUEST whose struct cannot be written any more", waiter.name(), "EFAULT")
    r.equal("rejects its request", (thread.name(), thread.error.reason), ("ECONNREFUSED", 28))
    thread = Thread(connect, clients[3], "10.9.0.1", server.port)
    r.check("another one waits", until(lambda: query(f, h).waiting == 1))
    # With as many objects as there may be, there is no handle for the request: it waits on.
    full = []
    while len(full) < f.call("QUERY").max_objects:
        try:
            full.append(f.pd())
        except OSError as e:
            r.equal("a file that is full of objects", e.errno, errno.EMFILE)
            break
    for _ in range(2):
        r.equal(
            "a request for which there is no handle waits on",
            (error_of(get_request, f, h, 0.2), query(f, h).waiting),
            ("EMFILE", 1),
        )
    for handle in full:
        f.destroy(handle)
    accept_of = server.request()
    r.equal("and is there when there is one", accept_of.peer_qp_num, clients[3].qp.num)
    reject(f, accept_of.handle)
    r.equal("its sender was there all the time", (thread.name(), thread.error.reason), ("ECONNREFUSED", 28))
    for x in [server.end, *clients]:
        x.file.close()


def identifiers(port):
    """How many identifiers of the connection manager have that local port."""
    shown = subprocess.run(["rdma", "resource", "show", "cm_id"], capture_output=True, text=True, check=True).stdout
    return len([line for line in shown.splitlines() if f"src-addr 10.9.0.1:{port} " in line + " "])


def test_dead(r):
    """Requests whose senders have gone take no place: a peer that makes many does not keep others out."""
    server, other, gone = Server("10.9.0.1", backlog=3), client(), client()
    f, h = server.end.file, server.listener

    def waiting():
        return query(f, h).waiting

    def arrives():
        return until(lambda: (N["EVENT_CONNECT_REQUEST"], h) in [e[:2] for e in f.events()], 5)

    seen = []
    for _ in range(3):
        attempt = start(gone, "10.9.0.1", server.port)
        came = arrives()
        gone.file.destroy(attempt.handle)
        # The listener has one.
        seen.append((came, until(lambda: identifiers(server.port) == 1, 5)))
    r.equal("three requests leave no identifier when their senders have gone", seen, [(True, True)] * 3)
    alive = start(other, "10.9.0.1", server.port)
    r.check("a live one takes the place of one of them in a backlog of three", arrives())
    r.equal("the only one that waits", waiting(), 1)
    r.check("its identifier is the only one", until(lambda: identifiers(server.port) == 2), identifiers(server.port))
    late = start(gone, "10.9.0.1", server.port)
    r.check("and another one", until(lambda: waiting() == 2), waiting())
    gone.file.destroy(late.handle)
    r.check("until its sender goes", until(lambda: waiting() == 1), waiting())
    request = server.request()
    r.equal("GET_REQUEST takes the live one", request.peer_qp_num, other.qp.num)
    accept(server.end, request.handle)
    got = wait(other.file, alive.handle)[0], waiting(), query(f, h).rejected
    r.equal("which is connected", got, (0, 0, 0))
    for x in (server.end, other, gone):
        x.file.close()


def test_cookies(r):
    """The user_data of listeners and connections come back in their events, and in CONN_QUERY."""
    server, c = End("h1", ulp.DEV1, access=ACCESS), client()
    f = server.file
    door = f.call("LISTEN", addr=addr("10.9.0.1"), backlog=4, user_data=11)
    asked = {"qp": c.qp.handle, "dst": addr("10.9.0.1", door.addr.port), "param": param()}
    got = c.file.call("CONNECT", user_data=22, **asked)
    request = get_request(f, door.handle).handle
    r.equal("of the listener", [query(f, door.handle).user_data, query(f, request).user_data], [11, 0])
    # The event comes after the request.
    r.equal("CONNECT_REQUEST has it", [e.user_data for e in until(f.records)], [11])
    wrong = {"request": request, "qp": server.qp.handle, "param": param(path_mtu=1)}
    r.equal("an ACCEPT that fails", error_of(f.call, "ACCEPT", user_data=44, **wrong), "ERANGE")
    r.equal("leaves none", query(f, request).user_data, 0)
    f.call("ACCEPT", user_data=33, **wrong | {"param": param()})
    r.equal("both are connected", (wait(f, request)[0], wait(c.file, got.handle)[0]), (0, 0))
    r.equal("of the ends", [query(f, request).user_data, query(c.file, got.handle).user_data], [33, 22])
    f.records()
    c.file.records()
    f.call("DISCONNECT", conn=request)
    ends = {"accepting": (f, request, 33), "connecting": (c.file, got.handle, 22)}
    for name, (file, handle, want) in ends.items():
        seen = []
        r.check(f"{name}: events arrive", until(lambda s=seen, x=file: s.extend(x.records()) or s), name)
        r.equal(f"{name}: they have it", {e.user_data for e in seen if e.handle == handle}, {want})
    for x in (f, c.file):
        x.close()


def test_flood(r):
    """A peer that asks again and again, and events that nobody reads meanwhile."""
    server, c, other = Server(), client(), client()
    got, request, _ = meet(server, c)
    f = server.end.file
    f.events()
    for i in range(N["EVENTS_MAX"] + 10):
        thread = Thread(connect, other, "10.9.0.1", server.port)
        reject(f, server.request().handle)
        if thread.name() != "ECONNREFUSED":
            r.equal(f"request {i} is rejected", thread.name(), "ECONNREFUSED")
    c.file.call("DISCONNECT", conn=got.handle)
    seen = []
    r.check(
        "the event of a connection has its place",
        until(lambda: seen.extend(f.events()) or N["EVENT_DISCONNECTED"] in [e[0] for e in seen], 5),
        seen[:8],
    )
    ends = (N["EVENT_DISCONNECTED"], N["EVENT_TIMEWAIT_EXIT"])
    r.equal(
        "one event for all requests, and none is lost",
        [e for e in seen if e[0] not in ends],
        [(N["EVENT_CONNECT_REQUEST"], server.listener, 0, 1)],
    )
    thread = Thread(connect, other, "10.9.0.1", server.port)
    reject(f, server.request().handle)
    r.equal(
        "the next one is an event again",
        (thread.name(), len([e for e in f.events() if e[1] != request.handle])),
        ("ECONNREFUSED", 1),
    )
    for x in (server.end, c, other):
        x.file.close()


class Page:
    """A page with a copy of a struct."""

    def __init__(self, struct_):
        self.area = mmap.mmap(-1, 4096)
        self.area[: ulp.ctypes.sizeof(struct_)] = bytes(struct_)
        self.at = ulp.ctypes.c_void_p(ulp.address_of(self.area))

    def protect(self):
        """From now on it cannot be written."""
        if ulp.libc.mprotect(self.at, 4096, mmap.PROT_READ):
            raise OSError(ulp.ctypes.get_errno(), "mprotect")


def read_only(struct_):
    """The address of a copy that cannot be written."""
    read_only.keep = page = Page(struct_)
    page.protect()
    return page.at


def test_unwritable(r):
    """The struct of CONNECT cannot be written, and that of CONN_WAIT can no longer be when the peer has accepted."""
    server, c = Server(), client()
    f = c.file
    arg = S["connect"](size=ulp.ctypes.sizeof(S["connect"]), qp=c.qp.handle, dst=addr("10.9.0.77", 7), param=param())
    r.equal("CONNECT of it", error_of(ulp.ioctl, f.fd, N["IOC_CONNECT"], read_only(arg)), "EFAULT")
    r.equal("leaves the queue pair in RESET, and free", (is_idle(c), error_of(f.destroy, c.qp.handle)), (True, "none"))
    c.close()
    c = client()
    asked = start(c, "10.9.0.1", server.port)
    page = Page(S["conn_wait"](size=ulp.ctypes.sizeof(S["conn_wait"]), conn=asked.handle, timeout_ns=hang_ns()))
    thread = Thread(ulp.ioctl, c.file.fd, N["IOC_CONN_WAIT"], page.at)
    request = server.request().handle
    r.check("CONN_WAIT waits", until(lambda: ulp.sleeps_in_module(thread.thread)))
    page.protect()
    accept(server.end, request, grant_of(server.end))
    r.equal("CONN_WAIT whose struct cannot be written any more", thread.name(), "EFAULT")
    failed, got = wait(c.file, asked.handle)
    r.equal("changes nothing: the next one has the result", failed, 0)
    r.equal("a write arrives", write_to(c, bytes(got.private_data), b"again").status, 0)
    for x in (server.end, c):
        x.file.close()


@ulp.contextlib.contextmanager
def alarm(seconds=0.3):
    """A signal comes to this process in `seconds`, and again: on a busy machine the first may precede the call."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def test_waits(r):
    server, c = Server(), client()
    f, h = server.end.file, server.listener
    r.equal("CONN_WAIT that nobody answers", error_of(connect, c, "10.9.0.1", server.port, seconds=0.5), "ETIME")
    r.equal("and DESTROY leaves the queue pair in RESET", is_idle(c), True)
    for pause in (0.3, 1, 3, 9):
        time.sleep(pause)  # its farewell is on the way
        try:
            f.destroy(f.call("GET_REQUEST", listener=h, timeout_ns=SECOND // 5).handle)
            passed = "the request"
        except OSError as e:
            passed = errno.errorcode[e.errno]
        if passed == "ETIME":
            break
        error_of(connect, c, "10.9.0.1", server.port, seconds=0.5)
    r.equal("GET_REQUEST passes over a requester that has gone", passed, "ETIME")
    # The signal comes here, so that who connects has to be here.
    there, near = Server(host="h2"), End("h1", ulp.DEV1, access=ACCESS)
    with alarm():
        r.equal("a signal during CONN_WAIT", error_of(connect, near, "10.9.0.2", there.port), "EINTR")
    r.equal("and DESTROY leave the queue pair in RESET too", is_idle(near), True)
    with alarm():
        r.equal("a signal while the address is resolved", error_of(connect, near, "10.9.0.78", 7), "EINTR")
    near.file.close()
    there.close()
    with alarm():
        r.equal("a signal during GET_REQUEST", error_of(get_request, f, h), "EINTR")
        arg = S["get_request"](listener=h, timeout_ns=hang_ns())
        r.equal("EINTR of a wait with a time", f.issue("GET_REQUEST", arg)[0], errno.EINTR)
        r.check("leaves the rest of it", 0 < arg.timeout_ns < hang_ns(), arg.timeout_ns)
        arg = S["get_request"](listener=h, timeout_ns=N["TIMEOUT_INFINITE"])
        r.equal("EINTR of a wait for ever", (f.issue("GET_REQUEST", arg)[0], arg.timeout_ns), (errno.EINTR, 2**64 - 1))
    thread = Thread(get_request, f, h, 30)
    time.sleep(0.2)
    f.destroy(h)
    r.equal("GET_REQUEST of a listener that is destroyed", thread.name(), "ENOENT")
    r.equal("and from now on nobody listens", error_of(connect, c, "10.9.0.1", server.port), "ECONNREFUSED")
    server.close()
    c.file.close()


@ulp.contextlib.contextmanager
def deaf(host):
    """What comes to the host by RoCE is lost meanwhile; yields a function that says whether a packet was."""

    def nft(command):
        words = [*ulp.at(host), "nft", command]
        return subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True).stdout

    if ulp.HCA:
        ulp.adapter(deaf=host[1:], unheard=0)
        try:
            yield lambda: ulp.shell("cat /sys/module/ulp_hca/parameters/unheard") != (0, "0\n")
        finally:
            ulp.adapter(deaf=0)
        return
    nft(
        "add table inet deaf; add chain inet deaf in { type filter hook input priority 0; };"
        " add rule inet deaf in udp dport 4791 counter drop"
    )
    try:
        yield lambda: "packets 0 " not in nft("list table inet deaf")
    finally:
        nft("delete table inet deaf")


def asked(server, c, seconds):
    """A requester that gives up after so many seconds, if it can ask by then: its thread, and its request."""
    thread = Thread(connect, c, "10.9.0.1", server.port, seconds=seconds)
    try:
        got = server.end.file.call("GET_REQUEST", listener=server.listener, timeout_ns=seconds * SECOND)
        return thread, got.handle
    except OSError:
        thread.name()
        return asked(server, c, 4 * seconds) if seconds < 1000 else (thread, 0)


def test_pending(r):
    """Attempts that no command waits for, and any number of waits for one."""
    server, c = Server(), client()
    f = server.end.file
    arg = start(c, "10.9.0.1", server.port, grant_of(c))
    r.check("CONNECT names its connection", arg.handle, arg.handle)
    r.equal("CONN_WAIT with no time", wait(c.file, arg.handle, 0)[0], errno.ETIME)
    request = server.request().handle
    r.equal(
        "it is being established",
        (query(c.file, arg.handle).state, error_of(c.file.destroy, c.qp.handle)),
        (N["CONN_CONNECTING"], "EBUSY"),
    )
    threads = [Thread(wait, c.file, arg.handle) for _ in range(3)]
    r.check("three threads wait", until(lambda: all(ulp.sleeps_in_module(t.thread) for t in threads)))
    begin_accept(server.end, request, grant_of(server.end))
    r.equal("an event tells the end to one side", heard(c, "ESTABLISHED", arg.handle), 0)
    r.equal("and to the other", heard(server.end, "ESTABLISHED", request), 0)
    r.equal("both queue pairs are in RTS", (qp_state(c), qp_state(server.end)), (3, 3))
    waits = [t.end() for t in threads] + [wait(c.file, arg.handle, 0), wait(c.file, arg.handle)]
    r.equal("each CONN_WAIT has the result", [failed for failed, _ in waits], [0] * 5)
    told = [(got.peer_qp_num, text_of(got.local), bytes(got.agreed), bytes(got.private_data)) for _, got in waits]
    r.equal("and the same values", len(set(told)), 1)
    r.equal("the peer's number, and the address used", told[0][:2], (server.end.qp.num, "10.9.0.2"))
    failed, got = wait(f, request)
    r.equal(
        "so has that of the other side, and the data of the request",
        (failed, got.agreed.responder_resources, got.peer_qp_num, bytes(got.private_data[:12])),
        (0, 4, c.qp.num, grant_of(c)),
    )
    r.equal("a write arrives", write_to(c, told[0][3], b"later").status, 0)
    f.call("DISCONNECT", conn=request)
    r.check("the connection ends", until(lambda: query(c.file, arg.handle).state >= N["CONN_DISCONNECTED"], 20))
    r.equal(
        "CONN_WAIT of one that has ended has the same result",
        (wait(c.file, arg.handle, 0)[0], wait(f, request, 0)[0]),
        (0, 0),
    )
    c.file.destroy(arg.handle)
    f.destroy(request)
    for end in (c, server.end):
        end.qp.reset()

    nobody = server.port + 1 if server.port < 65535 else 1025
    for what, where, port, want, reason in (
        ("nobody listens", "10.9.0.1", nobody, errno.ECONNREFUSED, 8),
        ("nobody has the address", "10.9.0.77", 7, errno.EHOSTUNREACH, 0),
    ):
        arg = start(c, where, port)
        r.equal(f"{what}: an event has the cause", heard(c, "CONNECT_FAILED", arg.handle), want)
        r.equal(
            "the queue pair is free, and the connection is not",
            (is_idle(c), error_of(c.qp.reset), query(c.file, arg.handle).state),
            (True, "none", N["CONN_FAILED"]),
        )
        for times in ("CONN_WAIT has the cause too", "each time"):
            failed, got = wait(c.file, arg.handle, 0)
            r.equal(times, (failed, got.reject_reason), (want, reason))
        c.file.destroy(arg.handle)

    # The signal comes here, so that who connects has to be here.
    there, near = Server(host="h2"), End("h1", ulp.DEV1, access=ACCESS)
    handle = start(near, "10.9.0.2", there.port).handle
    arg = S["conn_wait"](conn=handle, timeout_ns=hang_ns())
    with alarm():
        r.equal("a signal during CONN_WAIT", near.file.issue("CONN_WAIT", arg)[0], errno.EINTR)
        r.check("leaves the rest of the time", 0 < arg.timeout_ns < hang_ns(), arg.timeout_ns)
        forever = S["conn_wait"](conn=handle, timeout_ns=N["TIMEOUT_INFINITE"])
        got = near.file.issue("CONN_WAIT", forever)[0], forever.timeout_ns
        r.equal("EINTR of a wait for ever", got, (errno.EINTR, 2**64 - 1))
    r.equal("the attempt goes on", query(near.file, handle).state, N["CONN_CONNECTING"])
    left = arg.timeout_ns
    thread = Thread(near.file.issue, "CONN_WAIT", arg)
    request = there.request().handle
    accept(there.end, request)
    r.equal("CONN_WAIT again, with the same struct, returns the result", thread.end()[0], 0)
    r.check("in what was left", arg.timeout_ns <= left, arg.timeout_ns)
    r.equal("an event tells it as well", heard(near, "ESTABLISHED", handle), 0)
    near.file.destroy(handle)
    there.end.file.destroy(request)
    for end in (near, there.end):
        end.qp.reset()

    handle = start(near, "10.9.0.2", there.port).handle
    arg = S["conn_wait"](conn=handle, timeout_ns=SECOND // 10)
    got = near.file.issue("CONN_WAIT", arg)[0], query(near.file, handle).state, arg.timeout_ns
    r.equal("time that runs out leaves the attempt pending too", got, (errno.ETIME, N["CONN_CONNECTING"], 0))
    thread = Thread(wait, near.file, handle)
    r.check("a thread waits", until(lambda: ulp.sleeps_in_module(thread.thread)))
    near.file.destroy(handle)
    r.equal("CONN_WAIT of an attempt that is destroyed", thread.end()[0], errno.ENOENT)
    r.equal(
        "DESTROY gives it up, and the queue pair back",
        (is_idle(near), error_of(near.file.destroy, near.qp.handle)),
        (True, "none"),
    )

    thread = Thread(connect, c, "10.9.0.1", server.port)
    request = server.request().handle
    with deaf("h1"), alarm():
        begin_accept(server.end, request)
        got = wait(f, request)[0], query(f, request).state, qp_state(server.end)
        r.equal(
            "a signal during CONN_WAIT, when the last message is lost, leaves the request pending, in RTS",
            got,
            (errno.EINTR, N["CONN_CONNECTING"], N["QPS_RTS"]),
        )
    r.equal("the requester is connected", thread.name(), "none")
    write_to(c, grant_of(server.end), b"before")
    r.equal("CONN_WAIT again returns the result", wait(f, request)[0], 0)
    r.equal("an event tells it as well", heard(server.end, "ESTABLISHED", request), 0)
    c.file.destroy(thread.result.handle)
    f.destroy(request)
    for end in (c, server.end):
        end.qp.reset()

    thread = Thread(connect, c, "10.9.0.1", server.port)
    request = server.request().handle
    with deaf("h1"):
        begin_accept(server.end, request)
        f.destroy(request)
        r.equal("DESTROY gives it up, and brings the queue pair back", is_idle(server.end), True)
    thread.name()

    bare = Bare("h2", ulp.DEV2, 8)
    for i, qp in enumerate(bare.qps):
        where = "10.9.0.77" if i % 2 else "10.9.0.1"
        bare.file.call("CONNECT", qp=qp.handle, dst=addr(where, server.port), param=param())
    bare.file.close()
    r.check("a file with pending attempts is closed", True)
    for x in (server, c, there, near):
        x.close()


def test_gone(r):
    server, c = Server(), client()
    thread, request = asked(server, c, 1)
    r.equal("the requester gives up", thread.name(), "ETIME")
    with tracing.Trace() as trace:
        got = error_of(accept, server.end, request), error_of(query, server.end.file, request)
    r.equal("ACCEPT of its request, which is gone then", got, ("ECONNRESET", "ENOENT"))
    told = [(e["handle"], e["qpn"], e["error"]) for e in trace.events("connect")]
    r.equal("... the tracepoint tells why", told, [(request, server.end.qp.num, -errno.ECONNRESET)])
    r.equal("the queue pair is in RESET", is_idle(server.end), True)

    for seconds in (1, 4, 16, 64):
        thread, request = asked(server, c, seconds)
        with deaf("h1") as lost:
            silent = thread.thread.is_alive()
            thread.name()
            until(lost)  # its rejection, which the device sends later
        if silent:
            break
        # It gave up before nobody heard of it, and the request is gone.
        error_of(accept, server.end, request)
    again = Thread(connect, c, "10.9.0.1", server.port)
    r.equal(
        "while that request waits, the manager there rejects another one of the same queue pair as stale",
        (again.name(), getattr(again.error, "reason", 0)),
        ("ECONNREFUSED", 10),
    )
    server.end.qp.modify("STATE PKEY_INDEX PORT ACCESS_FLAGS", qp_state=N["QPS_INIT"], port_num=1, access_flags=ACCESS)
    server.end.file.submit([server.end.qp.wr("RECV", server.end.buffer, 0, 64, user_data=5)])
    got = error_of(accept, server.end, request, seconds=1.5)
    r.check(
        "ACCEPT and CONN_WAIT of a request whose sender went silently", got in ("ETIME", "ETIMEDOUT", "ECONNRESET"), got
    )
    r.equal("the queue pair is in RESET", is_idle(server.end), True)
    r.equal("its receives are flushed", [(d.user_data, d.status) for d in server.end.cq.wait(1)], [(5, FLUSHED)])
    r.equal("the request is gone", error_of(query, server.end.file, request), "ENOENT")

    thread = Thread(connect, c, "10.9.0.1", server.port)
    request = server.request().handle
    with deaf("h1"), alarm():
        got = error_of(accept, server.end, request)
        r.equal("a signal during CONN_WAIT, when the last message is lost", got, "EINTR")
    r.equal("DESTROY leaves the queue pair in RESET again", is_idle(server.end), True)
    got = thread.name()
    r.check("the requester was connected, or refused", got in ("none", "ECONNREFUSED"), got)
    if got == "none":
        r.check(
            "and then disconnected", until(lambda: query(c.file, thread.result.handle).state >= N["CONN_DISCONNECTED"])
        )
        c.file.destroy(thread.result.handle)
    c.qp.reset()

    thread = Thread(connect, c, "10.9.0.1", server.port)
    request = server.request().handle
    with deaf("h2"):
        late = Thread(accept, server.end, request)
        time.sleep(1)  # the answer is lost, and sent again
    r.equal("an answer that was lost is sent again", (late.name(), thread.name()), ("none", "none"))
    r.equal("and the connection works", write_to(c, grant_of(server.end), b"late").status, 0)
    server.close()
    c.file.close()


def test_ended(r):
    server, c = Server(), client()
    got, request, _ = meet(server, c)
    for i in range(3):
        c.file.submit([c.qp.wr("RECV", c.buffer, 64 * i, 64, user_data=i)])
    server.end.file.submit([server.end.qp.wr("RECV", server.end.buffer, 0, 64, user_data=8)])
    server.end.file.call("DISCONNECT", conn=request.handle)
    r.equal(
        "the peer's requests are flushed, in order",
        [(d.user_data, d.status) for d in c.cq.wait(3)],
        [(i, FLUSHED) for i in range(3)],
    )
    r.equal("our own too", [(d.user_data, d.status) for d in server.end.cq.wait(1)], [(8, FLUSHED)])
    r.equal("both queue pairs are in ERR", (qp_state(c), qp_state(server.end)), (N["QPS_ERR"],) * 2)
    r.check(
        "both ends know",
        query(c.file, got.handle).state >= N["CONN_DISCONNECTED"]
        and query(server.end.file, request.handle).state >= N["CONN_DISCONNECTED"],
    )
    r.equal(
        "DISCONNECT of what has ended",
        (
            error_of(c.file.call, "DISCONNECT", conn=got.handle),
            error_of(server.end.file.call, "DISCONNECT", conn=request.handle),
        ),
        ("ENOTCONN",) * 2,
    )
    r.check(
        "late packets are gone, in time",
        until(lambda: query(server.end.file, request.handle).state == N["CONN_TIMEWAIT_OVER"], 20),
    )
    c.file.destroy(got.handle)
    server.end.file.destroy(request.handle)
    for how in ("destroying a connection", "closing its file", "killing its process"):
        if how == "destroying a connection":
            c.qp.reset()
            server.end.qp.reset()
            got, request, _ = meet(server, c)
            r.equal(
                "the same queue pairs are connected again",
                (write_to(c, bytes(got.private_data), b"again").status, server.end.buffer.map[4096:4101]),
                (0, b"again"),
            )
            c.file.destroy(got.handle)
        elif how == "closing its file":
            server.end.qp.reset()
            bare = Bare("h2", ulp.DEV2)
            thread = Thread(connect, bare, "10.9.0.1", server.port)
            request = server.request()
            accept(server.end, request.handle)
            thread.end()
            bare.file.close()
        else:
            server.end.qp.reset()
            pid = aside(connect_and_stay, server.port)
            request = server.request()
            accept(server.end, request.handle)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        r.check(
            f"{how} disconnects the peer",
            until(lambda: query(server.end.file, request.handle).state >= N["CONN_DISCONNECTED"])
            and qp_state(server.end) == N["QPS_ERR"],
        )
        server.end.file.destroy(request.handle)
    server.close()


def test_unheard(r):
    """A peer ends, and what it says of that is lost. The end of its file sends one DREQ (cm.c, cm_destroy_id());
    DISCONNECT repeats it until it is answered."""
    server, bare, c = Server(), Bare("h2", ulp.DEV2), client()
    end = server.end

    def completes(op, **more):
        end.file.submit([end.qp.wr(op, end.buffer, 0, 8, **more)])
        return end.cq.wait(1)[0].status

    thread = Thread(connect, bare, "10.9.0.1", server.port)
    conn = server.request().handle
    accept(end, conn)
    thread.end()
    with deaf("h1") as lost:
        bare.file.close()
        r.check("the message of a file that is closed is lost", until(lost))
    r.equal("a receive ends at its deadline", completes("RECV", timeout_ns=SECOND), N["WC_STATUS_TIMEOUT"])
    r.equal(
        "and the connection is as before",
        (query(end.file, conn).state, qp_state(end)),
        (N["CONN_ESTABLISHED"], N["QPS_RTS"]),
    )
    r.equal("a send finds that the peer has gone", ulp.STATUS.get(completes("SEND")), "retries exceeded")
    end.file.destroy(conn)
    end.qp.reset()
    got, request, _ = meet(server, c)
    with deaf("h1") as lost:
        c.file.call("DISCONNECT", conn=got.handle)
        r.check("the first message of DISCONNECT is lost", until(lost))
    r.check(
        "and the next one is not", until(lambda: query(end.file, request.handle).state >= N["CONN_DISCONNECTED"], 40)
    )
    server.close()
    c.file.close()


def test_owned(r):
    """A queue pair that a connection has is changed by nobody else, but to ERR."""
    ulp.need_reset()
    server, c = Server(), client()
    stop = threading.Event()
    seen = set()

    def disturb():
        while not stop.is_set():
            seen.add(error_of(c.qp.modify, "STATE", qp_state=N["QPS_RESET"]))

    thread = Thread(disturb)
    results = []
    for _ in range(10):
        # The end of a connection leaves its queue pair in ERR; the thread takes it out of that.
        until(lambda: qp_state(c) == N["QPS_RESET"])
        connecting = Thread(connect, c, "10.9.0.1", server.port)
        request = server.request().handle
        results.append((error_of(accept, server.end, request), connecting.name()))
        if results[-1] != ("none", "none"):
            break
        c.file.destroy(connecting.result.handle)
        server.end.file.destroy(request)
        server.end.qp.reset()
    stop.set()
    thread.end()
    r.equal("QP_MODIFY does not disturb CONNECT", results, [("none", "none")] * 10)
    r.equal("it says why", seen - {"none"}, {"EISCONN"})
    c.qp.reset()

    got, request, _ = meet(server, c)
    r.equal("to RESET", error_of(c.qp.modify, "STATE", qp_state=N["QPS_RESET"]), "EISCONN")
    r.equal("of rights alone", error_of(c.qp.modify, "ACCESS_FLAGS", access_flags=0), "EISCONN")
    r.equal("the connection goes on", write_to(c, bytes(got.private_data), b"on").status, 0)
    r.equal("to ERR", error_of(c.qp.modify, "STATE", qp_state=N["QPS_ERR"]), "none")
    r.equal("out of ERR", error_of(c.qp.modify, "STATE", qp_state=N["QPS_RESET"]), "EISCONN")
    c.file.destroy(got.handle)
    r.equal("when the connection is gone", error_of(c.qp.modify, "STATE", qp_state=N["QPS_RESET"]), "none")
    server.end.file.destroy(request.handle)
    server.end.qp.reset()

    # The first peer goes when a second one is connected by the same queue pair.
    got, request, _ = meet(server, c)
    server.end.file.destroy(request.handle)
    server.end.qp.reset()
    other = client()
    theirs, request, _ = meet(server, other)
    c.file.destroy(got.handle)
    r.equal("the old peer's end is not the new one's", write_to(other, bytes(theirs.private_data), b"two").status, 0)
    r.equal("nor its connection's", query(server.end.file, request.handle).state, N["CONN_ESTABLISHED"])
    for x in (server.end, c, other):
        x.file.close()


def test_grants(r):
    """Grants that are bound to a connection's queue pair end with it, whoever ends it and how."""
    ulp.need_reset()
    server = Server()
    f, mine, expired = server.end.file, server.end.qp.handle, N["GRANT_EXPIRED"]
    # Another peer, who tries the same keys.
    door, witness = ulp.Qp(f, server.end.pd, server.end.cq), client()

    def tries(grant, data):
        """The status of the other peer's write, and whether it arrived."""
        for qp in (door, witness.qp):
            qp.reset()
        door.connect(witness.qp.num, witness.file.gid().gid, witness.psn, 77)
        witness.qp.connect(door.num, f.gid().gid, 77, witness.psn)
        witness.cq.reap()
        witness.buffer.map[: len(data)] = data
        witness.file.submit([witness.qp.wr("RDMA_WRITE", witness.buffer, 0, len(data), **remote(grant))])
        return witness.cq.wait(1)[0].status, server.end.buffer.map[grant.addr : grant.addr + len(data)] == data

    def bound(offset, **more):
        return f.call(
            "GRANT_CREATE",
            **{"buffer": server.end.buffer.handle, "access": ACCESS, "offset": offset, "length": 64, "qp": mine} | more,
        )

    def disconnects(end, connection):
        end.file.call("DISCONNECT", conn=connection)

    # Each of these makes a connection, and when it is told the grants, ends it.
    def dies(silently):
        """A process that is killed; its host says so, or nobody hears of it."""
        pid = aside(connect_and_stay, server.port)
        request = server.request()
        accept(server.end, request.handle)
        grants = yield request
        if silently:
            with deaf("h1") as lost:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                until(lost)
            r.equal(
                "a peer that died in silence: nobody knows",
                (query(f, request.handle).state, query_grants(grants)),
                (N["CONN_ESTABLISHED"], {(N["GRANT_ACTIVE"], True)}),
            )
            # Until something is sent to it, and not acknowledged.
            f.submit([server.end.qp.wr("RDMA_WRITE", server.end.buffer, 0, 8, remote_addr=4096, rkey=1)])
        else:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        yield None

    def query_grants(grants):
        return {(q.state, q.rkey != 0) for q in (f.call("GRANT_QUERY", grant=g.handle) for g in grants)}

    def lives(end_it):
        """A peer of our own, by what ends its connection."""
        c = client() if end_it != "close" else Bare("h2", ulp.DEV2)
        thread = Thread(connect, c, "10.9.0.1", server.port)
        request = server.request()
        accept(server.end, request.handle)
        got = thread.end()
        yield request
        if end_it == "disconnect":
            disconnects(c, got.handle)
        elif end_it == "here":
            disconnects(server.end, request.handle)
        elif end_it == "destroy":
            c.file.destroy(got.handle)
        elif end_it == "error":  # a key that is none
            f.submit([server.end.qp.wr("RECV", server.end.buffer, 0, 64)])
            c.file.submit([c.qp.wr("RDMA_WRITE", c.buffer, 0, 8, remote_addr=0, rkey=0xABCDEF)])
        else:
            c.file.close()
        yield None
        if end_it != "close":
            c.close()

    for name, how in (
        ("the peer disconnects", lives("disconnect")),
        ("the owner disconnects", lives("here")),
        ("the peer destroys the connection", lives("destroy")),
        ("the peer closes its file", lives("close")),
        ("the peer does what it may not", lives("error")),
        ("the peer is killed", dies(False)),
        ("the peer dies in silence", dies(True)),
    ):
        server.end.qp.reset()
        f.events()
        request = next(how)
        grants, free = [bound(8192 + 64 * i) for i in range(4)], bound(8192 + 64 * 4, qp=0)
        once = bound(8192 + 64 * 5, flags=N["GRANT_ONE_SHOT_INV"])
        r.equal(
            f"{name}: the keys open their ranges until then",
            {tries(g, ulp.pattern(g.rkey & 255, 64)) for g in (grants[0], free)},
            {(0, True)},
        )
        how.send(grants)
        seen = []
        r.check(
            f"{name}: the grants of that connection end",
            until(
                lambda: seen.extend(e[1:] for e in f.events() if e[0] == N["EVENT_GRANT_ENDED"]) or len(seen) >= 5, 20
            ),
            seen,
        )
        r.equal(f"{name}: each once, and why", sorted(seen), sorted((g.handle, 0, expired) for g in [*grants, once]))
        r.equal(f"{name}: they say so", query_grants([*grants, once]), {(expired, False)})
        r.equal(f"{name}: another is as it was", query_grants([free]), {(N["GRANT_ACTIVE"], True)})
        r.equal(
            f"{name}: their keys open nothing, whoever has them",
            {tries(g, bytes(range(64))) for g in (grants[0], once)},
            {(10, False)},
        )
        r.equal(f"{name}: the other's does", tries(free, bytes(range(64))), (0, True))
        for g in [*grants, once, free]:
            f.destroy(g.handle)
        next(how, None)
        f.destroy(request.handle)
        server.end.cq.reap()
    r.equal("no grant is left but the first", f.call("BUFFER_QUERY", buffer=server.end.buffer.handle).grants, 1)
    witness.close()
    server.close()


def link_local(host, dev):
    with ulp.host(host):
        got = subprocess.run(
            ["ip", "-6", "-o", "addr", "show", "dev", dev, "scope", "link"], capture_output=True, text=True, check=True
        ).stdout
        return got.split("inet6 ")[1].split("/")[0], __import__("socket").if_nametoindex(dev)


def test_moved(r):
    """The peer's address has another link-layer address: the connection's events say so."""
    server, c = Server(), client()
    got, _request, _ = meet(server, c)
    c.file.events()
    ip = ["ip", "-n", "h2", "neigh"]
    # Another neighbour that moves is not this one's business.
    for neighbour in ("10.9.0.77", "10.9.0.1"):
        subprocess.run(
            [*ip, "replace", neighbour, "lladdr", "02:00:00:00:00:77", "dev", "w2", "nud", "permanent"],
            check=True,
            timeout=10 * ulp.PATIENCE,
        )
    try:
        seen = []
        r.check(
            "a peer whose address moves is an event",
            until(lambda: seen.extend(c.file.events()) or N["EVENT_UNREACHABLE"] in [e[0] for e in seen]),
            seen,
        )
        r.equal(
            "of that connection, once",
            [e for e in seen if e[0] == N["EVENT_UNREACHABLE"]],
            [(N["EVENT_UNREACHABLE"], got.handle, 0, 0)],
        )
        r.equal("it is not ended by that", query(c.file, got.handle).state, N["CONN_ESTABLISHED"])
    finally:
        for neighbour in ("10.9.0.77", "10.9.0.1"):
            subprocess.run([*ip, "del", neighbour, "dev", "w2"], check=True, timeout=10 * ulp.PATIENCE)
    r.equal("when the peer is where it was, it goes on", write_to(c, bytes(got.private_data), b"there").status, 0)


def test_narrow(r):
    """A path of an MTU below 256: the manager calls that an invalid argument (cma_resolve_iboe_route())."""

    def ip(*words):
        subprocess.run(["ip", "-n", "h2", *words], check=True, timeout=10 * ulp.PATIENCE)

    def has_gids():
        names = glob.glob(f"/sys/class/infiniband/{ulp.DEV2}/ports/1/gids/?")
        gids = [pathlib.Path(name).read_text() for name in names]
        return all(any(part in gid for gid in gids) for part in ("ffff:0a09:0002", "fd09:", "fe80:"))

    c = client()
    ip("link", "set", "w2", "mtu", "200")
    try:
        got = error_of(connect, c, "10.9.0.1", 7)
    finally:
        ip("link", "set", "w2", "mtu", "4200")
        # Addresses of IPv6 go with an MTU below 1280.
        ip("addr", "replace", "fd09::2/64", "dev", "w2", "nodad")
    r.equal("a path that is too narrow", got, "EHOSTUNREACH")
    r.equal("the queue pair is free", is_idle(c), True)
    r.check("the addresses are back", until(has_gids))


def test_addresses(r):
    near, near_scope = link_local("h1", "w1")
    far, far_scope = link_local("h2", "w2")
    for name, where, here, scopes in (
        ("IPv4", "10.9.0.1", "10.9.0.2", (0, 0)),
        ("IPv6", "fd09::1", "fd09::2", (0, 0)),
        ("link-local", near, far, (near_scope, far_scope)),
    ):
        for bound in (where, "::" if ":" in where else "0.0.0.0"):
            server = Server(bound, scope=scopes[0] if bound == where else 0)
            c = client()
            src = addr(here, 0, scopes[1])
            got, request, _ = meet(server, c, where, scope=scopes[1], src=src)
            r.equal(
                f"{name}, a listener on {'the' if bound == where else 'any'} address",
                (
                    text_of(got.local),
                    text_of(request.peer),
                    text_of(request.local),
                    request.peer.scope_id,
                    got.local.scope_id,
                ),
                (here, here, where, scopes[0], scopes[1]),
            )
            r.equal(
                f"{name}, a write arrives",
                (write_to(c, bytes(got.private_data), b"to you").status, server.end.buffer.map[4096:4102]),
                (0, b"to you"),
            )
            q = query(c.file, got.handle)
            r.equal(f"{name}, CONN_QUERY", (text_of(q.local), text_of(q.peer), q.peer.port), (here, where, server.port))
            server.close()
            c.file.close()


def test_flow(r):
    """Flow control is what the requester asked for."""
    server = Server()
    for flags in (0, N["CONN_FLOW_CONTROL"]):
        c = client()
        thread = Thread(connect, c, "10.9.0.1", server.port, flags=flags)
        request = server.request()
        r.equal(f"CONNECT with flags {flags}: the request has them", request.param.flags, flags)
        reject(server.end.file, request.handle)
        r.equal("... and ends as rejected", thread.name(), "ECONNREFUSED")
        c.close()
    server.close()


def test_two_devices(r):
    """Two devices with an active port each in one namespace: connections and data of each are its own."""
    lines = (
        "ip -n h1 link add w5 mtu 4200 type veth peer name w6 mtu 4200 netns h2",
        *(f"ip -n h{n} addr add 10.8.0.{n}/24 dev w{n + 4}" for n in (1, 2)),
        *(f"ip -n h{n} link set w{n + 4} up" for n in (1, 2)),
        *(f"ip netns exec h{n} rdma link add rxe{n + 4} type rxe netdev w{n + 4}" for n in (1, 2)),
    )
    r.equal("a second device for each host", ulp.shell(" && ".join(lines)), (0, ""))

    def has_address(name):
        try:
            return ulp.gid_of(name)
        except LookupError:
            return None

    r.check("... with an address", until(lambda: has_address("rxe5") and has_address("rxe6")))
    f = File("h1")
    mine = {ulp.text(d.name): d.flags for d in f.devices() if d.flags & N["DEVICE_LOCAL_NET"]}
    r.equal("DEVICE_LIST: both are of this namespace", sorted(mine), ["rxe1", "rxe5"])
    defaults = [name for name, flags in mine.items() if flags & N["DEVICE_DEFAULT"]]
    r.equal("... and one is the default", len(defaults), 1)
    f.attach("")
    r.equal("ATTACH without a name: that one", [f.name], defaults)
    f.close()
    # The GIDs of a port stay when its link is lost. The peer keeps fd09::2.
    lose = "ip netns exec h2 sysctl -qw net.ipv6.conf.w2.keep_addr_on_down=1 && ip -n h2 link set w2 down"
    r.equal("the link of rxe1 is lost", ulp.shell(lose), (0, ""))
    f = File("h1", "rxe1")
    r.check("... its port is not active", until(lambda: f.call("PORT_QUERY", port=1).state == 1))
    f.close()
    r.check("... and has its GID", has_address("rxe1"))
    r.equal("rxe5 has a link-local GID only", ulp.shell("ip -n h1 addr del 10.8.0.1/24 dev w5"), (0, ""))
    r.check("... then", until(lambda: not has_address("rxe5")))
    f = File("h1")
    defaults = [ulp.text(d.name) for d in f.devices() if d.flags & N["DEVICE_DEFAULT"]]
    r.equal("DEVICE_LIST: the default device is the one whose port is active", defaults, ["rxe5"])
    f.attach("")
    r.equal("ATTACH without a name: that one", f.name, "rxe5")
    f.close()
    restore = "ip -n h2 link set w2 up && ip -n h1 addr add 10.8.0.1/24 dev w5"
    r.equal("the link of rxe1 and the address of rxe5 are back", ulp.shell(restore), (0, ""))
    r.check("... and so are all GIDs", until(lambda: all(has_address(f"rxe{n}") for n in (1, 2, 5, 6))))
    for ours, dst, others in (("rxe1", "10.9.0.1", "10.8.0.1"), ("rxe5", "10.8.0.1", "10.9.0.1")):
        server = End("h1", ours, access=ACCESS)
        port = server.file.call("PORT_QUERY", port=1)
        r.equal(f"{ours}: its port is active", port.state, 4)
        got = listen(server.file)
        peers = {"10.9.0.1": "rxe2", "10.8.0.1": "rxe6"}
        c = End("h2", peers[others], access=ACCESS)
        said = error_of(connect, c, others, got.addr.port)
        r.equal(f"{ours}: CONNECT to its wildcard listener by way of the other device", said, "ECONNREFUSED")
        c.close()
        c = End("h2", peers[dst], access=ACCESS)
        thread = Thread(connect, c, dst, got.addr.port, grant_of(c))
        request = get_request(server.file, got.handle)
        accept(server, request.handle, grant_of(server))
        answer = thread.end()
        r.equal(f"{ours}: by way of its own it succeeds", text_of(request.local), dst)
        r.equal(f"{ours}: a write arrives", write_to(c, bytes(answer.private_data), b"ping").status, 0)
        r.equal(f"{ours}: ... with its content", server.buffer.map[4096:4100], b"ping")
        c.close()
        server.close()
    for name in ("rxe5", "rxe6"):
        r.equal(f"{name} goes", ulp.shell(f"rdma link del {name}"), (0, ""))
    r.equal("and its line", ulp.shell("ip -n h1 link del w5"), (0, ""))


def test_params(r):
    server, c = Server(), client()
    asked = {
        "responder_resources": 2,
        "initiator_depth": 8,
        "retry_cnt": 5,
        "rnr_retry": 2,
        "min_rnr_timer": 20,
        "ack_timeout": 17,
        "path_mtu": 3,
        "traffic_class": 0x68,
        "flags": N["CONN_TRAFFIC_CLASS"],
    }
    thread = Thread(connect, c, "10.9.0.1", server.port, **asked)
    request = server.request()
    p = request.param
    r.equal(
        "the request shows what is asked for, from the other side",
        (p.responder_resources, p.initiator_depth, p.retry_cnt, p.rnr_retry, p.path_mtu, p.traffic_class),
        (8, 2, 5, 2, 3, 0x68),
    )
    accepted = accept(
        server.end,
        request.handle,
        responder_resources=4,
        initiator_depth=5,
        rnr_retry=4,
        min_rnr_timer=11,
        ack_timeout=15,
    )
    p = accepted.agreed
    r.equal(
        "CONN_WAIT says what was agreed",
        (
            p.responder_resources,
            p.initiator_depth,
            p.retry_cnt,
            p.rnr_retry,
            p.min_rnr_timer,
            p.ack_timeout,
            p.traffic_class,
            p.path_mtu,
            p.access_flags,
        ),
        (4, 2, 5, 2, 11, 15, 0x68, 3, ACCESS),
    )
    p = thread.end().agreed
    r.equal(
        "at the other side too",
        (
            p.responder_resources,
            p.initiator_depth,
            p.retry_cnt,
            p.rnr_retry,
            p.min_rnr_timer,
            p.ack_timeout,
            p.traffic_class,
            p.path_mtu,
            p.access_flags,
        ),
        (2, 4, 5, 4, 20, 17, 0x68, 3, ACCESS),
    )
    for name, end, want in (
        ("connecting", c, (2, 4, 5, 4, 20, 17, 0x68, 3)),
        ("accepting", server.end, (4, 2, 5, 2, 11, 15, 0x68, 3)),
    ):
        a = end.file.call("QP_QUERY", qp=end.qp.handle).attr
        r.equal(
            f"the queue pair of the {name} side has it",
            (
                a.max_dest_rd_atomic,
                a.max_rd_atomic,
                a.retry_cnt,
                a.rnr_retry,
                a.min_rnr_timer,
                a.timeout,
                a.ah.traffic_class,
                a.path_mtu,
            ),
            want,
        )
    r.equal("CONN_QUERY says so", bytes(query(c.file, thread.result.handle).param), bytes(thread.result.agreed))
    r.equal(
        "the structs keep what was asked for",
        (bytes(thread.result.asked.param), bytes(thread.result.asked.src), thread.result.asked.private_len),
        (bytes(param(**asked)), bytes(addr()), 0),
    )
    r.equal("of both sides", (accepted.asked.param.responder_resources, accepted.asked.param.initiator_depth), (4, 5))
    server.end.buffer.map[:8192] = ulp.pattern(3, 8192)
    where, rkey = server.end.grant.addr, server.end.grant.rkey
    c.file.submit([c.qp.wr("RDMA_READ", c.buffer, 0, 8192, remote_addr=where, rkey=rkey)])
    r.equal("a read of many packets", (c.cq.wait(1)[0].status, bytes(c.buffer.map[:8192])), (0, ulp.pattern(3, 8192)))
    server.close()
    c.file.close()
    server, c = Server(), client()
    thread = Thread(connect, c, "10.9.0.1", server.port, access_flags=N["ACCESS_REMOTE_READ"])
    accept(server.end, server.request().handle)
    thread.end()
    r.equal("a right that was not given is not there", write_to(server.end, grant_of(c), b"no").status, 9)
    server.close()
    c.file.close()


class Umad:
    """Sends messages of the connection manager from h2 that no manager would send."""

    def __init__(self, port):
        ulp.shell("modprobe ib_umad")
        self.path = until(lambda: [p for p in glob.glob("/sys/class/infiniband_mad/umad*") if self.is_ours(p)])[0]
        self.gid_index, gid = ulp.gid_of(ulp.DEV2)
        self.gid, self.peer = bytes.fromhex(gid.replace(":", "")), bytes(10) + b"\xff\xff" + bytes((10, 9, 0, 1))
        self.port, self.count = port, 0
        self.fd = os.open("/dev/infiniband/" + os.path.basename(self.path), os.O_RDWR)
        ulp.ioctl(self.fd, 0x1B03, None)  # IB_USER_MAD_ENABLE_PKEY
        agent = ulp.ctypes.create_string_buffer(28)
        agent[20] = 1  # of QP1
        ulp.ioctl(self.fd, 0xC01C1B01, agent)  # IB_USER_MAD_REGISTER_AGENT
        self.agent = agent.raw[:4]

    @staticmethod
    def is_ours(path):
        return pathlib.Path(path, "ibdev").read_text().strip() == ulp.DEV2

    def request(self, qpn, mtu=3, ack_timeout=14, responder=4, initiator=4):
        """A REQ (IBA 12.6.5) for the port, with the header of the IP addressing annex."""
        req = bytearray(232)
        struct.pack_into(">I4xQQ", req, 0, self.unique(), 0x1060000 | self.port, 0x1234)
        struct.pack_into(">II", req, 32, qpn << 8 | responder, initiator)
        struct.pack_into(">IIHBB", req, 40, 20 << 3 | 1, 20 << 3 | 6, 0xFFFF, mtu << 4 | 6, 15 << 4)
        struct.pack_into(">HH16s16sI", req, 52, 0xFFFF, 0xFFFF, self.gid, self.peer, 3)
        struct.pack_into(">BBBB", req, 92, 0, 64, 0, ack_timeout << 3)
        struct.pack_into(">BBH16s16s", req, 140, 0, 4 << 4, 7, bytes(12) + self.gid[12:], bytes(12) + self.peer[12:])
        self.send(0x10, req)

    def answer(self, request, qpn, ack_delay):
        """A REP (IBA 12.6.8) to the request with that communication ID."""
        rep = struct.pack(">IIIIIIBB", self.unique(), request, 0, qpn << 8, 0, 0, 4, 4)
        rep += struct.pack(">BBQ", ack_delay << 3, 7 << 5, 0x1234)
        self.send(0x13, rep.ljust(232, b"\0"))

    def unique(self):
        self.count += 1
        return (os.getpid() << 8 | self.count) & 0xFFFFFFFF

    def send(self, attribute, body):
        mad = struct.pack(">BBBBIQHHI", 1, 7, 2, 3, 0, self.count, attribute, 0, 0) + body
        route = struct.pack(">IIHBBBBBB16sI", 1, 0x80010000, 0, 0, 0, 1, self.gid_index, 64, 0, self.peer, 0)
        os.write(self.fd, self.agent + struct.pack("<IIII", 0, 0, 0, len(mad)) + route + bytes(8) + mad)


def test_crafted(r):
    """A peer asks with numbers that no connection has."""
    server = Server("10.9.0.1")
    f, umad = server.end.file, Umad(server.port)
    for i, bad in enumerate(({"mtu": 0}, {"mtu": 6}, {"mtu": 15}, {"ack_timeout": 22}, {"ack_timeout": 31})):
        umad.request(100 + i, **bad)
    limits = f.call("DEVICE_QUERY")
    for i, good in enumerate(({"responder": 255, "initiator": 255}, {"mtu": 5, "ack_timeout": 21}, {"ack_timeout": 0})):
        umad.request(200 + i, **good)
        request = server.request()
        # Those before it were rejected, and take no place.
        got = request.peer_qp_num, query(f, server.listener).waiting
        r.equal(f"{good}: GET_REQUEST returns it", got, (200 + i, 0))
        p = request.param
        many = good.get("responder", 4)
        r.equal(
            "its numbers are those of the device",
            (p.responder_resources, p.initiator_depth, p.path_mtu),
            (min(many, limits.max_qp_rd_atom), min(many, limits.max_qp_init_rd_atom), good.get("mtu", 3)),
        )
        mine = {"request": request.handle, "qp": server.end.qp.handle, "param": p}
        got = error_of(f.call, "ACCEPT", **mine), qp_state(server.end)
        r.equal("which ACCEPT takes", got, ("none", N["QPS_RTS"]))
        f.destroy(request.handle)
    r.equal("no other request arrived", error_of(f.call, "GET_REQUEST", listener=server.listener), "ETIME")
    server.close()
    # A peer that asks and then is silent.
    server = Server("10.9.0.1", backlog=2)
    f, h, umad.port = server.end.file, server.listener, server.port
    for qpn in (300, 301):
        umad.request(qpn)
    r.check("two requests wait", until(lambda: query(f, h).waiting == 2))
    umad.request(302)
    r.check("a third one is rejected", until(lambda: query(f, h).rejected == 1))
    if ROUNDS >= 50:
        time.sleep(70)
        umad.request(303)
        r.equal("after 69 s, a new one takes the place of the old ones", server.request().peer_qp_num, 303)
        q = query(f, h)
        r.equal("they wait no longer", (q.waiting, q.rejected), (0, 1))
        r.check("and have no identifier", until(lambda: identifiers(server.port) == 2), identifiers(server.port))
    server.close()


def communication_id(end, server, **more):
    """CONNECT to a server that does not answer: its struct, and the communication ID of its request."""
    with tracing.Trace() as trace:
        tracing.write("events/ib_cma/icm_send_req/enable", "1")
        attempt = start(end, "10.9.0.2", server.port, **more)
        server.request()
        tracing.write("events/ib_cma/icm_send_req/enable", "0")
    return attempt, int(re.findall(r"icm_send_req: local_id=(\d+)", trace.text)[-1])


def test_answered(r):
    """A peer answers with a delay that would keep the manager's memory of the connection for hours."""
    server = Server("10.9.0.2", host="h2")
    umad = Umad(server.port)
    cases = [(own, delay) for own in (0, 14, 21) for delay in (21, 23, 31)]
    for i, (own, delay) in enumerate(cases):
        c = End("h1", ulp.DEV1, access=ACCESS)
        attempt, request = communication_id(c, server, ack_timeout=own)
        umad.answer(request, 300 + i, delay)
        name = f"CONNECT with ack_timeout {own}, answered with a Target ACK Delay of {delay}"
        event, handle, _, info = until(c.file.events)[0][:4]
        got = (event, handle, info), qp_state(c)
        if delay > 21:
            want = N["EVENT_CONNECT_FAILED"], attempt.handle, errno.EPROTO
            r.equal(f"{name}: EPROTO, and the queue pair is free again", (got[0], is_idle(c)), (want, True))
        else:
            r.equal(f"{name}: established", got, ((N["EVENT_ESTABLISHED"], attempt.handle, 0), N["QPS_RTS"]))
            r.equal(
                "its queue pair has the caller's time, or else the manager's",
                c.file.call("QP_QUERY", qp=c.qp.handle).attr.timeout,
                own or 21,
            )
        c.file.close()
    server.close()


def seen_at(offset):
    """What times_of_events_and_waits() says in a process whose CLOCK_MONOTONIC is so many seconds ahead."""
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        os.waitpid(child, 0)
        with open(reader) as f:
            return f.read()
    try:
        os.unshare(os.CLONE_NEWTIME)
        pathlib.Path("/proc/self/timens_offsets").write_text(f"monotonic {offset} 0\n")
        if inside := os.fork():  # the namespace is that of children
            os.waitpid(inside, 0)
        else:
            os.write(writer, repr(times_of_events()).encode())
    except OSError as e:
        os.write(writer, repr(e).encode())
    finally:
        os._exit(0)


def times_of_events():
    """Whether the times of the events of a connection are right."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 20 * PATIENCE)
    server, c = Server(), client()
    f = server.end.file
    before = time.monotonic_ns()
    start(c, "10.9.0.1", server.port)
    return [before <= e.time_ns <= time.monotonic_ns() for e in until(f.records)]


def test_clock(r):
    """Times of events are those of the process's time namespace."""
    past = -int(time.monotonic()) // 2
    for name, offset in (("the host's", 0), ("ahead", 100_000), ("behind", past)):
        r.equal(f"{name}: an event has the right time", seen_at(offset), repr([True]))


def crowd_client(port, count, pipe):
    """Connects `count` queue pairs, says so, and disconnects half of them when told to end."""
    bare = Bare("h2", ulp.DEV2, count)
    handles = []
    for qp in bare.qps:
        bare.qp = qp
        handles.append(connect(bare, "10.9.0.1", port).handle)
    os.write(pipe, b"x")
    signal.sigwait([signal.SIGTERM])
    for handle in handles[::2]:
        bare.file.call("DISCONNECT", conn=handle)


def voluntary_switches():
    """How often this thread has gone to sleep."""
    with open("/proc/thread-self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("voluntary_ctxt_switches"))


def sleeps_of_connects(port, count, pipe):
    """Connects `count` queue pairs; writes how often the thread slept in each CONNECT and CONN_WAIT."""
    bare = Bare("h2", ulp.DEV2, count)
    sleeps = []
    for qp in bare.qps:
        bare.qp = qp
        before = voluntary_switches()
        connect(bare, "10.9.0.1", port)
        sleeps.append(voluntary_switches() - before)
    os.write(pipe, bytes(sleeps))


def get_in_vain(limit):
    """A thread that slept in GET_REQUEST until its listener was destroyed."""
    file = File("h1", ulp.DEV1)
    handle = listen(file).handle
    waiter = Thread(file.call, "GET_REQUEST", listener=handle, timeout_ns=limit)
    until(lambda: ulp.sleeps_in_module(waiter.thread))
    file.destroy(handle)
    waiter.name()
    file.close()
    return waiter.thread


def test_sleeps(r):
    """The manager's handler resolves the route and sends the request, the work of the connection takes the last step:
    who connects sleeps for the end only."""
    count = 20
    server = Bare("h1", ulp.DEV1, count)
    listener = listen(server.file)
    reader, writer = os.pipe()
    # In a process of its own: a thread of this one would also sleep for the interpreter's lock.
    child = aside(sleeps_of_connects, listener.addr.port, count, writer)
    os.close(writer)
    for qp in server.qps:
        request = get_request(server.file, listener.handle).handle
        server.file.call("ACCEPT", request=request, qp=qp.handle, param=param())
    sleeps = os.read(reader, count)
    os.close(reader)
    os.waitpid(child, 0)
    r.equal("each connection was counted", len(sleeps), count)
    print("# sleeps:", *sleeps)
    # A lock that the handler holds makes some of them sleep once more, on the debug kernel 8 of 20.
    r.check("CONNECT and CONN_WAIT sleep once", sorted(sleeps)[len(sleeps) // 4] <= 1, sleeps)
    server.file.close()
    r.equal(
        "GET_REQUEST without a limit arms no timer", tracing.timeouts(lambda: get_in_vain(N["TIMEOUT_INFINITE"])), 0
    )
    r.check("GET_REQUEST with a limit arms one", tracing.timeouts(lambda: get_in_vain(LONG)), "none")


def test_crowd(r):
    processes, each, acceptors = 10, 20, 4
    for _ in range(max(1, ROUNDS // 10)):
        server = Bare("h1", ulp.DEV1, processes * each)
        file = server.file
        got = listen(file, backlog=256)
        accepted, errors = [], []

        def serve(qps):
            try:
                for qp in qps:
                    request = get_request(file, got.handle, 30).handle
                    file.call("ACCEPT", request=request, qp=qp.handle, param=param())
                    ended_well(file, request)
                    accepted.append((request, qp.handle))
            except OSError as e:
                errors.append(e)

        reader, writer = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        children = []
        for _ in range(processes):
            pid = os.fork()
            if not pid:
                status = 1
                try:
                    os.close(file.fd)
                    crowd_client(got.addr.port, each, writer)
                    status = 0
                except OSError as e:
                    print("#", e, flush=True)
                finally:
                    os._exit(status)
            children.append(pid)
        os.close(writer)
        threads = [Thread(serve, server.qps[i::acceptors]) for i in range(acceptors)]
        ready = 0
        while ready < processes and (chunk := os.read(reader, 64)):
            ready += len(chunk)
        for thread in threads:
            thread.end(60)
        ok = r.equal("all connect", (ready, len(accepted), errors), (processes, processes * each, []))
        for i, pid in enumerate(children):
            os.kill(pid, signal.SIGKILL if i % 2 else signal.SIGTERM)
        status = [os.waitpid(pid, 0)[1] for pid in children]
        r.equal("half are killed, half end", status, [0, signal.SIGKILL] * (processes // 2))
        r.check(
            "every peer sees the end",
            ok
            and until(lambda: all(query(file, handle).state >= N["CONN_DISCONNECTED"] for handle, _ in accepted), 20),
        )
        r.equal(
            "every queue pair is in ERR",
            {file.call("QP_QUERY", qp=qp).attr.qp_state for _, qp in accepted},
            {N["QPS_ERR"]},
        )
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        os.close(reader)
        if ok:
            for handle, qp in accepted[::2]:
                file.destroy(handle)
                file.destroy(qp)
        file.close()
        left = subprocess.run(["rdma", "resource", "show", "cm_id"], capture_output=True, text=True, check=True)
        r.equal("nothing is left", [line for line in left.stdout.splitlines() if "rust_ulp" in line], [])


def test_removal(r):
    """Everything at once on rxe2, then it goes; then rxe1."""
    server, c = Server(), client()
    got, request, _ = meet(server, c)
    f = c.file
    here = listen(f)
    waiting = [client() for _ in range(3)]
    pending = [client() for _ in range(3)]
    attempts = [start(pending[0], "10.9.0.1", server.port).handle, start(pending[1], "10.9.0.98", 7).handle]
    unanswered = Thread(connect, waiting[0], "10.9.0.1", server.port)
    unresolved = Thread(connect, waiting[1], "10.9.0.99", 7)
    for_request = Thread(get_request, f, here.handle, 60)
    other = Bare("h1", ulp.DEV1, 3)
    stuck = Thread(connect, other, "10.9.0.2", listen(waiting[2].file).addr.port, seconds=3)  # waits in a backlog
    second = listen(waiting[2].file, "10.9.0.2")
    other.qp = other.qps[1]
    late = Thread(connect, other, "10.9.0.2", second.addr.port)
    taken = get_request(waiting[2].file, second.handle).handle
    third = listen(pending[2].file, "10.9.0.2")
    other.file.call("CONNECT", qp=other.qps[2].handle, dst=addr("10.9.0.2", third.addr.port), param=param())
    attempts.append(get_request(pending[2].file, third.handle).handle)
    with deaf("h2"):
        half_open = Thread(accept, waiting[2], taken)
        late.end()
        begin_accept(pending[2], attempts[2])
        # That without an address may have failed by now.
        r.equal(
            "attempts that nobody waits for are under way",
            [query(pending[i].file, attempts[i]).state for i in (0, 2)],
            [N["CONN_CONNECTING"]] * 2,
        )
        time.sleep(0.2)
        remove(r, ulp.DEV2)
    for name, thread in (
        ("CONN_WAIT that nobody answered", unanswered),
        ("GET_REQUEST", for_request),
    ):
        r.equal(f"{name} ends", thread.name(5), "ENODEV")
    # The resolver gives up after some seconds, which may be over on a busy machine.
    r.check("CONN_WAIT without an address ends", unresolved.name(5) in ("ENODEV", "EHOSTUNREACH"), unresolved.error)
    r.equal(
        "attempts that nobody waits for end",
        [error_of(query, x.file, attempt) for x, attempt in zip(pending, attempts, strict=True)],
        ["ENODEV"] * 3,
    )
    poll = select.poll()
    for x in pending:
        poll.register(x.file.fd, select.POLLIN)
    r.equal("and their files hang up", [bits & select.POLLHUP for _, bits in poll.poll(0)], [select.POLLHUP] * 3)
    r.check("CONN_WAIT after ACCEPT ends", half_open.name(5) in ("ENODEV", "none"))
    r.equal("commands on a connection", error_of(query, f, got.handle), "ENODEV")
    r.check(
        "the peer of the established one sees the end",
        until(lambda: query(server.end.file, request.handle).state >= N["CONN_DISCONNECTED"], 20)
        and qp_state(server.end) == N["QPS_ERR"],
    )
    r.check("a request in a backlog is rejected, or times out", stuck.name() in ("ECONNREFUSED", "ETIME", "ETIMEDOUT"))
    for_request = Thread(get_request, server.end.file, server.listener, 60)
    time.sleep(0.1)
    remove(r, ulp.DEV1)
    r.equal("GET_REQUEST of the other side ends too", for_request.name(5), "ENODEV")
    for x in [server.end, c, other, *waiting, *pending]:
        x.file.close()


def serve_all(server, listener, qp):
    """Accepts and disconnects, until the device or the listener goes."""
    file = server.file
    while True:
        request = get_request(file, listener, 30).handle
        try:
            file.call("ACCEPT", request=request, qp=qp.handle, param=param())
            failed = file.issue("CONN_WAIT", S["conn_wait"](conn=request, timeout_ns=hang_ns(5)))[0]
            if failed:
                raise OSError(failed, os.strerror(failed))
            error_of(file.call, "DISCONNECT", conn=request)  # unless the peer was faster
            file.destroy(request)
        except OSError as e:
            if e.errno not in (errno.ECONNRESET, errno.ETIME, errno.ETIMEDOUT):
                raise
            file.destroy(request)
        reset(server, qp)


def reset(bare, qp):
    if bare.file.call("QP_QUERY", qp=qp.handle).attr.qp_state:
        qp.reset()


def ask_always(bare, port):
    """Connects and disconnects, until there is nobody any more; `bare.count` is how often it went well."""
    bare.count, bare.alone = 0, False
    while True:
        try:
            handle = connect(bare, "10.9.0.1", port, seconds=2).handle
            bare.file.destroy(handle)
            bare.count += 1
        except Refused as e:
            late = e.errno in (errno.ETIME, errno.ETIMEDOUT) and not bare.alone
            if not late and e.errno not in (errno.ECONNREFUSED, errno.ECONNRESET):
                return
        reset(bare, bare.qp)


def test_killed(r):
    """Clients, and then servers, that are killed at any step."""
    server = Bare("h1", ulp.DEV1, 4)
    got = listen(server.file, backlog=64)
    threads = [Thread(serve_all, server, got.handle, qp) for qp in server.qps]
    for i in range(max(5, ROUNDS // 2)):
        pid = aside(lambda: ask_always(Bare("h2", ulp.DEV2), got.addr.port))
        time.sleep((40 + 7 * i % 50) / 1000)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    bare = Bare("h2", ulp.DEV2)
    handle = connect_patiently(bare, "10.9.0.1", got.addr.port).handle
    r.check("the server lives when its clients are killed", handle != 0)
    server.file.destroy(got.handle)
    r.equal("its threads end with the listener", {t.name() for t in threads}, {"ENOENT"})
    server.file.close()
    bare.file.destroy(handle)
    reset(bare, bare.qp)

    def one_server(port):
        alone = Bare("h1", ulp.DEV1)
        serve_all(alone, listen(alone.file, port=port).handle, alone.qp)

    results = set()
    for i in range(max(3, ROUNDS // 4)):
        pid = aside(one_server, got.addr.port)
        end = time.monotonic() + (60 + 7 * i % 50) / 1000
        killer = threading.Timer(max(0, end - time.monotonic()), os.kill, (pid, signal.SIGKILL))
        killer.start()
        for _ in range(6):
            try:
                bare.file.destroy(connect(bare, "10.9.0.1", got.addr.port).handle)
                results.add("none")
            except Refused as e:
                results.add(errno.errorcode[e.errno])
            reset(bare, bare.qp)
        killer.join()
        os.waitpid(pid, 0)
    r.check(
        "a client is connected or refused when servers are killed",
        results <= {"none", "ECONNREFUSED", "ECONNRESET"},
        results,
    )
    r.equal("then nobody listens", error_of(connect, bare, "10.9.0.1", got.addr.port), "ECONNREFUSED")
    bare.file.close()


HOSTS_UP = f"{ulp.here}/../hca/hosts up" if ulp.HCA else "two-hosts up"


class Elsewhere:
    """A file on one device, and attempts whose route or source belongs to h2's other device."""

    # rxe goes whole by rmmod, in the order of its devices: that of the file is the last one.
    OWN = ulp.DEV1 if ulp.HCA else "rxe3"

    def __init__(self, is_there=False):
        third = (
            "{ ip -n h2 link show d3 || ip -n h2 link add d3 up type dummy; } >/dev/null 2>&1",
            "{ [ -e /sys/class/infiniband/rxe3 ] || ip netns exec h2 rdma link add rxe3 type rxe netdev d3; }",
        )
        self.ready = is_there or ulp.shell(" && ".join([HOSTS_UP, *(third if not ulp.HCA else ())]))
        self.bare = Bare("h2", self.OWN, 6)
        self.left = list(self.bare.qps)

    def attempt(self, dst, **more):
        """CONNECT with one more queue pair; its struct."""
        return self.bare.file.call("CONNECT", qp=self.left.pop().handle, dst=addr(dst, 7), param=param(), **more)

    def failed(self, arg):
        """The errno of an attempt that ended; None when it does not end."""
        if until(lambda: query(self.bare.file, arg.handle).state == N["CONN_FAILED"], 40):
            return wait(self.bare.file, arg.handle)[0]
        return None

    def pending(self):
        """An attempt that is pending now. The one before may have ended, on a busy machine."""
        while True:
            arg = self.attempt("10.9.0.98", src=addr("10.9.0.2"))
            if wait(self.bare.file, arg.handle, 0)[0] == errno.ETIME:
                return arg


def our_identifiers():
    """The identifiers of the connection manager that are bound to a device, and are the module's."""
    shown = subprocess.run(["rdma", "resource", "show", "cm_id"], capture_output=True, text=True, check=True).stdout
    return [line for line in shown.splitlines() if "rust_ulp" in line]


def goes(command, file):
    """Takes a device away by a command, while a network namespace exits: its status, and whether the namespace went.
    Who hangs goes on when `file` is closed."""
    lines = "ip netns add gone && ip -n gone link add g0 type veth peer name gone1 netns 1"
    if ulp.shell(lines) != (0, ""):
        return "no namespace", False
    words = ["sh", "-c", command]
    process = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    ulp.shell("ip netns del gone")
    try:
        result = process.wait(20 * PATIENCE), process.stdout.read()
    except subprocess.TimeoutExpired:
        result = "it does not end"
    # What stands in the namespace goes with it, when all that the namespace has of RDMA has gone.
    went = until(lambda: not os.path.exists("/sys/class/net/gone1"), 20)
    if isinstance(result, str):
        file.close()
        process.wait(40 * PATIENCE)
    return result, bool(went)


def test_elsewhere(r):
    """A device goes to which an attempt of a file on another device belonged, or belongs. Nobody closes the file."""

    def by_route(x):
        """The route to h1 begins at h2's device. An event tells the end."""
        return [(x.attempt("10.9.0.1"), errno.EXDEV)]

    def by_source(x):
        return [(x.attempt("10.9.0.1", src=addr("10.9.0.2")), errno.EXDEV)]

    def timed_out(x):
        """A wait ends before the attempt."""
        return [(x.pending(), errno.EHOSTUNREACH)]

    def of_all(x):
        return [*by_route(x), *by_source(x), *timed_out(x)]

    rmmod = "rmmod rdma_rxe"
    cases = [
        ("link del, a route", f"rdma link del {ulp.DEV2}", by_route, False),
        ("link del, a source", f"rdma link del {ulp.DEV2}", by_source, False),
        ("link del, a pending source", f"rdma link del {ulp.DEV2}", None, True),
        ("link del of the netdev", "ip -n h2 link del w2", of_all, True),
        ("rmmod", rmmod, of_all, True),
    ]
    if os.path.exists("/proc/lockdep"):
        # rmmod is refused there: for lockdep, the socket of each queue pair holds the module
        # (rxe_qp.c: rxe_reclassify_send_socket()).
        cases.pop()
    if ulp.HCA:
        cases = [("unplugged", f"echo 1 >/sys/class/infiniband/{ulp.DEV2}/device/remove", of_all, True)]
    for name, command, fail, waits in cases:
        x = Elsewhere()
        r.equal(f"{name}: a third device", x.ready, (0, ""))
        over = [(arg, want, x.failed(arg)) for arg, want in (fail(x) if fail else ())]
        r.equal(f"{name}: attempts that failed", [got for _, _, got in over], [want for _, want, _ in over])
        r.equal(f"{name}: have no identifier", our_identifiers(), [])
        if waits:
            asleep = Thread(wait, x.bare.file, x.attempt("10.9.0.97", src=addr("10.9.0.2")).handle, 40 * PATIENCE)
            pending = x.pending()
        r.equal(
            f"{name}: the device goes, and a namespace that exits meanwhile",
            goes(command, x.bare.file),
            ((0, ""), True),
        )
        if x.bare.file.fd < 0:
            break
        if waits and command != rmmod:
            got = x.failed(pending)
            r.check(f"{name}: what was pending has failed", got in AWAY, got)
        if waits:
            got = asleep.end()[0]
            r.check(f"{name}: who waits is told", got in (*AWAY, errno.ENODEV), got)
        x.bare.file.close()
    if not ulp.HCA:
        ulp.shell("rdma link del rxe3")
    r.equal("the hosts are there again", ulp.shell(HOSTS_UP)[0], 0)


def test_stays(r):
    """The device of another file's attempts is to go to another network namespace. As long as devices are shared, the
    core refuses that (core/device.c: ib_device_set_netns_put())."""
    x = Elsewhere()
    r.equal("a third device", x.ready, (0, ""))
    got = [x.failed(x.attempt("10.9.0.1")), x.failed(x.attempt("10.9.0.1", src=addr("10.9.0.2")))]
    r.equal("attempts by route and by source fail", got, [errno.EXDEV] * 2)
    asleep = Thread(wait, x.bare.file, x.attempt("10.9.0.97", src=addr("10.9.0.2")).handle, 40 * PATIENCE)
    pending = x.pending()
    got = goes(f"rdma dev set {ulp.DEV2} netns h1", x.bare.file)
    want = (1, "error: Operation not supported\n"), True
    r.equal("`rdma dev set netns` fails, and a namespace exits meanwhile", got, want)
    devices = [ulp.text(d.name) for d in x.bare.file.devices()]
    r.check("the device is there", ulp.DEV2 in devices, devices)
    got = x.failed(pending), asleep.end()[0]
    r.equal("what was pending ends as without that", got, (errno.EHOSTUNREACH,) * 2)
    r.equal("no attempt has an identifier", our_identifiers(), [])
    x.bare.file.close()


def test_moved_away(r):
    """The device of another file's attempts goes to another network namespace. Expects both in that of h2."""
    x = Elsewhere(is_there=True)
    got = [x.failed(x.attempt("10.9.0.1")), x.failed(x.attempt("10.9.0.1", src=addr("10.9.0.2")))]
    r.equal("attempts by route and by source fail", got, [errno.EXDEV] * 2)
    asleep = Thread(wait, x.bare.file, x.attempt("10.9.0.97", src=addr("10.9.0.2")).handle, 40 * PATIENCE)
    pending = x.pending()
    got = goes(f"ip netns exec h2 rdma dev set {ulp.DEV2} netns h1", x.bare.file)
    r.equal("`rdma dev set netns` succeeds, and a namespace exits meanwhile", got, ((0, ""), True))
    if x.bare.file.fd < 0:
        return
    got = x.failed(pending), asleep.end()[0]
    r.check("what was pending has failed", set(got) <= {*AWAY, errno.ENODEV}, got)
    r.equal("the file's own device lives", error_of(x.bare.file.pd), "none")
    x.bare.file.close()
    r.equal("h1 has the other", [ulp.text(d.name) for d in File("h1").devices()], [ulp.DEV2])
    bare = Bare("h1", ulp.DEV2)
    bare.file.close()


def test_removal_under_load(r):
    """Clients that connect and disconnect all the time, while rxe1 goes."""
    server = Bare("h1", ulp.DEV1, 8)
    got = listen(server.file, backlog=64)
    servers = [Thread(serve_all, server, got.handle, qp) for qp in server.qps]
    clients = [Bare("h2", ulp.DEV2) for _ in range(8)]
    threads = [Thread(ask_always, bare, got.addr.port) for bare in clients]
    r.check("clients come and go", until(lambda: sum(getattr(bare, "count", 0) for bare in clients) > 40))
    remove(r, ulp.DEV1)
    for bare in clients:
        bare.alone = True
    r.equal("those who serve are told", [t.name(10) for t in servers], ["ENODEV"] * len(servers))
    r.equal("those who ask find nobody", [t.name(20) for t in threads], ["none"] * len(threads))
    for x in [server, *clients]:
        x.file.close()


class Flushed(Exception):
    """The queue pair was in error before the request was done."""


class Talker(End):
    """An end that exchanges messages of one length."""

    def __init__(self, host_name, device, length, count=32):
        super().__init__(host_name, device, access=ACCESS)
        self.size, self.kept, self.flushed = length, [], False
        self.qp.modify("STATE PKEY_INDEX PORT ACCESS_FLAGS", qp_state=N["QPS_INIT"], port_num=1, access_flags=ACCESS)
        self.file.submit([self.qp.wr("RECV", self.buffer, 256 * i, length, user_data=i) for i in range(count)])

    def done(self, receive):
        """The oldest completion of that side; what was flushed comes after it."""
        while True:
            for i, cqe in enumerate(self.kept):
                if (cqe.opcode == N["WC_RECV"]) == receive:
                    return self.kept.pop(i)
            if self.flushed:
                raise Flushed()
            for cqe in self.cq.wait(1):
                if cqe.status == FLUSHED:
                    self.flushed = True
                elif cqe.status:
                    raise OSError(errno.EIO, ulp.STATUS.get(cqe.status, str(cqe.status)))
                else:
                    self.kept.append(cqe)

    def recv(self):
        cqe = self.done(True)
        return bytes(self.buffer.map[256 * cqe.user_data : 256 * cqe.user_data + cqe.byte_len])

    def post(self, op, offset, length, **fields):
        self.file.submit([self.qp.wr(op, self.buffer, offset, length, **fields)])
        self.done(False)

    def send(self, data):
        self.buffer.map[16384 : 16384 + len(data)] = data
        self.post("SEND", 16384, len(data))

    def send_last(self, data):
        """To who hangs up when it has that: its DREQ takes the queue pair to ERR, and rxe flushes a request
        whose acknowledgement it has received and not looked at (rxe_comp.c, drain_resp_pkts())."""
        with contextlib.suppress(Flushed):
            self.send(data)


def stock(host, *command):
    if ulp.HCA and ulp.DEV1 not in ulp.shell("ibv_devices")[1]:
        raise ulp.Missing(0, "libibverbs has no driver for the adapter")
    return subprocess.Popen(
        [*ulp.at(host), "timeout", str(30 * PATIENCE), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(r, name, process):
    out = process.communicate(timeout=40 * PATIENCE)[0]
    r.check(name, process.returncode == 0, f"status {process.returncode}: {out[-300:]}")
    return out


def connect_patiently(end, where, port, **more):
    """Until the stock program listens."""

    def there():
        try:
            return connect(end, where, port, **more)
        except Refused as e:
            if e.reason != 8:
                raise
            return None

    if got := until(there):
        return got
    raise TimeoutError("the stock program does not listen")


def accept_stock(r, name, length, *command):
    """A stock client on h2 connects to ours; the process, our end, and the connection."""
    talker = Talker("h1", ulp.DEV1, length)
    got = listen(talker.file)
    process = stock("h2", *(word.format(port=got.addr.port) for word in command))
    request = get_request(talker.file, got.handle, 20)
    p = request.param
    accept(talker, request.handle, responder_resources=p.responder_resources, initiator_depth=p.initiator_depth)
    r.check(f"{name} connects", True)
    return process, talker, request.handle


def test_rping(r):
    process, talker, _ = accept_stock(
        r, "rping", 16, "rping", "-c", "-a", "10.9.0.1", "-p", "{port}", "-C", "3", "-V", "-v"
    )
    for i in range(3):
        where, rkey, size = struct.unpack("!QII", talker.recv())
        talker.post("RDMA_READ", 8192, size, remote_addr=where, rkey=rkey)
        r.check(
            f"ping {i} has its text",
            talker.buffer.map[8192:8204].startswith(b"rdma-ping-%d" % i),
            talker.buffer.map[8192:8204],
        )
        talker.send(bytes(16))
        where, rkey, size = struct.unpack("!QII", talker.recv())
        talker.post("RDMA_WRITE", 8192, size, remote_addr=where, rkey=rkey)
        talker.send_last(bytes(16))
    ended(r, "rping has got back what it sent", process)

    process = stock("h1", "rping", "-s", "-a", "10.9.0.1", "-p", "7175", "-C", "3")
    talker = Talker("h2", ulp.DEV2, 16)
    got = connect_patiently(talker, "10.9.0.1", 7175)
    for i in range(3):
        ping = b"rdma-ping-%d: ours" % i + bytes(46)
        talker.buffer.map[8192 : 8192 + len(ping)] = ping
        talker.send(struct.pack("!QII", talker.grant.addr + 8192, talker.grant.rkey, len(ping)))
        talker.recv()
        talker.send(struct.pack("!QII", talker.grant.addr + 12288, talker.grant.rkey, len(ping)))
        talker.recv()
        r.equal(f"rping's server echoes ping {i}", talker.buffer.map[12288 : 12288 + len(ping)], ping)
    talker.file.call("DISCONNECT", conn=got.handle)
    r.check("rping's server ends", process.wait(20 * PATIENCE) is not None)


def test_rdma_client(r):
    process, talker, _ = accept_stock(r, "rdma_client", 16, "rdma_client", "-s", "10.9.0.1", "-p", "{port}")
    r.equal("its message has 16 bytes", len(talker.recv()), 16)
    talker.send_last(bytes(16))
    ended(r, "rdma_client is content", process)

    process = stock("h1", "rdma_server", "-p", "7176")
    talker = Talker("h2", ulp.DEV2, 16)
    connect_patiently(talker, "10.9.0.1", 7176)
    talker.send_last(b"sixteen bytes at")
    r.equal("rdma_server's answer has 16 bytes", len(talker.recv()), 16)
    ended(r, "rdma_server is content", process)


def test_cmatose(r):
    process, talker, handle = accept_stock(r, "ucmatose", 100, "ucmatose", "-s", "10.9.0.1", "-p", "{port}")
    for i in range(10):
        talker.send(bytes([i]) * 100)
    r.equal("ten messages of a hundred bytes came", [len(talker.recv()) for _ in range(10)], [100] * 10)
    talker.file.call("DISCONNECT", conn=handle)
    ended(r, "ucmatose is content", process)

    process = stock("h1", "ucmatose", "-p", "7177")
    talker = Talker("h2", ulp.DEV2, 100)
    got = connect_patiently(talker, "10.9.0.1", 7177)
    r.equal("ten messages came from its server", [len(talker.recv()) for _ in range(10)], [100] * 10)
    for i in range(10):
        talker.send_last(bytes([i]) * 100)
    r.check(
        "its server ends the connection",
        until(lambda: query(talker.file, got.handle).state >= N["CONN_DISCONNECTED"], 20),
    )
    talker.file.destroy(got.handle)
    ended(r, "ucmatose's server is content", process)


TESTS = {name[5:]: f for name, f in list(globals().items()) if name.startswith("test_")}

if __name__ == "__main__":
    report = ulp.Report()
    for test in sys.argv[1:]:
        report.run(test, TESTS[test])
    sys.exit(report.status())
