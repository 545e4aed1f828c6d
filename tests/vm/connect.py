#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Connections by the connection manager.

    connect.py NAME...

Expects the module and two hosts. Prints `ok` and `not ok` lines.
"""
import errno
import ipaddress
import os
import signal
import struct
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import ulp
from ulp import N, S, Cq, End, File, error_of

PORT = 7471
SECOND = 10**9
PATIENCE = ulp.PATIENCE
FLUSHED = 5
ACCESS = N["ACCESS_REMOTE_WRITE"] | N["ACCESS_REMOTE_READ"]
# What a stock peer would ask for; the acknowledgement's time-out is short, so that a peer that
# is gone is noticed.
PARAM = {"responder_resources": 4, "initiator_depth": 4, "retry_cnt": 6, "rnr_retry": 6,
         "min_rnr_timer": 12, "ack_timeout": 14, "access_flags": ACCESS}


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
    """CONNECT failed, and the struct says more."""

    def __init__(self, err, got):
        super().__init__(err, os.strerror(err))
        self.reason, self.data = got.reject_reason, bytes(got.private_data[:got.private_len])


def struct_call(file, command, arg):
    arg.size = ulp.ctypes.sizeof(arg)
    ulp.ioctl(file.fd, N["IOC_" + command], ulp.ctypes.byref(arg))
    return arg


def listen(file, where="0.0.0.0", port=0, backlog=16, scope=0):
    return file.call("LISTEN", addr=addr(where, port, scope), backlog=backlog)


def get_request(file, listener, seconds=10):
    return file.call("GET_REQUEST", listener=listener, timeout_ns=int(seconds * PATIENCE * SECOND))


def connect(end, where, port, data=b"", seconds=20, src=None, scope=0, **more):
    arg = S["connect"](qp=end.qp.handle, timeout_ns=int(seconds * SECOND), dst=addr(where, port, scope),
                       src=src or addr(), param=param(**more), **private(data))
    try:
        return struct_call(end.file, "CONNECT", arg)
    except OSError as e:
        raise Refused(e.errno, arg) from None


def accept(end, request, data=b"", seconds=20, **more):
    return end.file.call("ACCEPT", request=request, qp=end.qp.handle,
                         timeout_ns=int(seconds * SECOND), param=param(**more), **private(data))


def reject(file, request, data=b""):
    return file.call("REJECT", request=request, **private(data))


def query(file, handle):
    return file.call("CONN_QUERY", conn=handle)


def qp_state(end):
    return end.file.call("QP_QUERY", qp=end.qp.handle).attr.qp_state


def until(function, seconds=10):
    end = time.monotonic() + seconds * PATIENCE
    while not function():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


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
        self.end = End(host, "rxe1" if host == "h1" else "rxe2", access=ACCESS, **more)
        got = listen(self.end.file, where, port, backlog, scope)
        self.listener, self.port = got.handle, got.addr.port

    def request(self, seconds=10):
        return get_request(self.end.file, self.listener, seconds)

    def close(self):
        self.end.file.close()


def client(**more):
    return End("h2", "rxe2", access=ACCESS, **more)


def grant_of(end):
    return struct.pack("<QI", end.grant.addr, end.grant.rkey)


def write_to(end, granted, data):
    """An RDMA Write of `data` to where the peer granted; its completion."""
    where, rkey = struct.unpack_from("<QI", granted)
    end.buffer.map[:len(data)] = data
    end.file.submit([end.qp.wr("RDMA_WRITE", end.buffer, 0, len(data), remote_addr=where + 4096,
                               rkey=rkey, user_data=7)])
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
    got, request, accepted = meet(server, c, data=b"hello")
    r.equal("the request has the private data", bytes(request.private_data[12:17]), b"hello")
    r.equal("padded with zeros", (request.private_len, bytes(request.private_data[17:56])),
            (56, bytes(39)))
    r.equal("it names the requester", (text_of(request.peer), request.peer_qp_num),
            ("10.9.0.2", c.qp.num))
    r.equal("and the listener", (text_of(request.local), request.local.port), ("10.9.0.1", server.port))
    r.equal("CONNECT names the peer", got.peer_qp_num, server.end.qp.num)
    r.equal("and the address used", text_of(got.src), "10.9.0.2")
    r.check("times are in order", 0 < got.resolve_us <= got.route_us <= got.connect_us,
            (got.resolve_us, got.route_us, got.connect_us))
    r.equal("both queue pairs are in RTS", (qp_state(c), qp_state(server.end)), (3, 3))
    r.equal("a write to the listener's side", write_to(c, bytes(got.private_data), b"ping").status, 0)
    r.equal("arrives", server.end.buffer.map[4096:4100], b"ping")
    r.equal("a write to the connecting side",
            write_to(server.end, bytes(request.private_data), b"pong").status, 0)
    r.equal("arrives too", c.buffer.map[4096:4100], b"pong")

    q = query(c.file, got.handle)
    r.equal("CONN_QUERY of the connecting side", (q.state, q.qp, q.peer_qp_num, text_of(q.local), text_of(q.peer),
            q.peer.port), (N["CONN_ESTABLISHED"], c.qp.handle, server.end.qp.num, "10.9.0.2", "10.9.0.1", server.port))
    q = query(server.end.file, request.handle)
    r.equal("CONN_QUERY of the other", (q.state, q.qp, q.peer_qp_num, text_of(q.local), text_of(q.peer)),
            (N["CONN_ESTABLISHED"], server.end.qp.handle, c.qp.num, "10.9.0.1", "10.9.0.2"))
    q = query(server.end.file, server.listener)
    r.equal("CONN_QUERY of the listener", (q.state, q.local.port, q.waiting, q.backlog, q.rejected),
            (N["CONN_LISTENING"], server.port, 0, 16, 0))
    r.equal("a queue pair with a connection is not destroyed", error_of(c.file.destroy, c.qp.handle), "EBUSY")
    r.equal("and not connected again", error_of(connect, c, "10.9.0.1", server.port), "EISCONN")
    r.equal("a connection is not accepted again", error_of(accept, server.end, request.handle), "EISCONN")
    r.equal("nor rejected", error_of(reject, server.end.file, request.handle), "EISCONN")
    server.close()
    c.file.close()


TESTS = {name[5:]: f for name, f in list(globals().items()) if name.startswith("test_")}

if __name__ == "__main__":
    report = ulp.Report()
    for test in sys.argv[1:]:
        report.run(test, TESTS[test])
    sys.exit(report.status())
