#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""What completes a command of io_uring, what the end of a ring costs, and what is only posted by one.

    uring.py exit|resubmit|destroyed|posted|unreported|stops|words

Expects the module and two hosts. Prints KTAP.
"""

import ctypes
import errno
import os
import signal
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tracing
import ulp
from ring import Uring
from ulp import N, S, End, File, Qp, Srq, error_of, pattern
from verbs import GRH, QKEY, datagrams

BATCHES, SINGLES = 512, 8
LINKED = 64
ROUNDS = ulp.count("ULP_ROUNDS", 40, 4)
IOSQE_IO_LINK, IOSQE_ASYNC, IOSQE_CQE_SKIP_SUCCESS = 1 << 2, 1 << 4, 1 << 6
URING_CMD_FIXED = 1 << 0
FLUSHED = 5
REFUSED_ACCESS = 10
FAILED = -errno.EREMOTEIO
INDEX = N["URING_INDEX_SHIFT"]


def hold(wire, batches, singles, shared=False):
    """Has commands under way, batches of two receives or single ones, says so, and waits."""
    end = End("h1", depth=2 * BATCHES, entries=4 * BATCHES)
    end.qp.modify("STATE PKEY_INDEX PORT ACCESS_FLAGS", qp_state=N["QPS_INIT"], port_num=end.file.port)
    queue = Srq(end.file, end.pd, end.cq, 2 * BATCHES) if shared else end.qp
    recvs = [queue.recv(end.buffer, 0, 64) if shared else queue.wr("RECV", end.buffer, 0, 64) for _ in range(2)]
    wrs = (S["wr"] * 2)(*recvs)
    batch = S["uring_batch"](wrs=ctypes.addressof(wrs), nr_wrs=2, wr_size=ctypes.sizeof(S["wr"]))
    ring = Uring(BATCHES)
    for _ in range(batches):
        ring.prepare(end.file.fd, N["URING_BATCH"], bytes(batch))
    for _ in range(singles):
        ring.prepare(end.file.fd, N["URING_REQUEST"], bytes(wrs[0]))
    submitted = ring.submit(batches + singles)
    asked = queue.query() if shared else end.file.call("QP_QUERY", qp=queue.handle)
    held = asked.recvs_in_flight
    os.write(wire, b"%d %d" % (submitted, held))
    signal.pause()


def test_exit(r):
    """All requests are canceled; those of batches are looked for at once, not those of each batch anew."""
    for what, batches, singles, searches, shared in (
        ("batches", BATCHES, 0, 8, False),
        ("single requests", 0, SINGLES, SINGLES, False),
        ("batches of a shared receive queue", BATCHES, 0, 8, True),
        ("single requests of a shared receive queue", 0, SINGLES, SINGLES, True),
    ):
        out, wire = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                hold(wire, batches, singles, shared)
            finally:
                os._exit(1)
        os.close(wire)
        requests = 2 * batches + singles
        r.equal(f"{what} are under way", os.read(out, 100), b"%d %d" % (batches + singles, requests))
        with tracing.Trace() as trace:
            os.kill(pid, signal.SIGKILL)
            gone = ulp.until(lambda pid=pid: os.waitpid(pid, os.WNOHANG)[0])
            ended = gone and ulp.until(lambda: "release" in tracing.read("trace"))
        r.check(f"{what}: the process and its file end", ended)
        found = [e["found"] for e in trace.events("uring_cancel")]
        r.equal(f"{what}: each request is found", sum(found), requests)
        r.check(f"{what}: by few searches", len(found) <= searches, f"{len(found)} searches")


def test_resubmit(r):
    """A command that has completed has given its place back: the command that is linked to it finds it."""
    a, b = End("h1", depth=1, entries=1), End("h2")
    a.meet(b)
    command = bytes(a.write(b, 8))
    ring = Uring(LINKED)
    results = []
    for _ in range(ROUNDS):
        for i in range(LINKED):
            ring.prepare(a.file.fd, N["URING_REQUEST"], command, flags=IOSQE_IO_LINK * (i < LINKED - 1))
        ring.submit(LINKED)
        results += [res for _, res in ring.wait(LINKED)]
    r.equal("each is posted", {res: results.count(res) for res in results}, {results[0]: ROUNDS * LINKED})
    r.check("and succeeds", results[0] >= 0, results[0])


def test_posted(r):
    """A batch for the rings of the completion queues completes when it is posted: by entries of 64 and of 128 bytes."""
    a, b = ulp.pair(entries=64)
    other = File("h1", "")
    a.buffer.map[:4096] = pattern(1, 4096)
    for small in (True, False):
        uring = Uring(small=small)
        size = f"entries of {uring.sqe} bytes"

        def run(*commands, flags=0, fd=a.file.fd, late=False, uring=uring, cmd_flags=0):
            for command in commands:
                uring.prepare(fd, N["URING_BATCH"], command, flags=flags, cmd_flags=cmd_flags)
            submitted = uring.submit(len(commands))
            return submitted, [res for _, res in (uring.wait(len(commands)) if late else uring.reap())]

        def post(wrs, number=1, ring=N["URING_RING"], run=run, **how):
            array = (S["wr"] * len(wrs))(*wrs)
            where = {"wrs": ctypes.addressof(array), "nr_wrs": len(wrs), "wr_size": ctypes.sizeof(S["wr"])}
            return run(*[bytes(S["uring_batch"](**where, flags=ring))] * number, **how)

        def writes(count):
            return [a.write(b, 8, offset=8 * i, remote_offset=8 * i, user_data=i) for i in range(count)]

        def done(count):
            return [(c.user_data, c.status) for c in a.cq.wait(count)]

        b.buffer.map[:64] = bytes(64)
        r.equal(f"{size}: five are posted at once", post(writes(5)), (1, [5]))
        r.equal("they complete in the ring of their queue", done(5), [(i, 0) for i in range(5)])
        r.equal("the peer has them", b.buffer.map[:40] == a.buffer.map[:40], True)
        silent = post(writes(2), flags=IOSQE_CQE_SKIP_SUCCESS)
        r.equal("with SKIP_SUCCESS there is no completion of io_uring", silent, (1, []))
        r.equal("... and the requests complete", done(2), [(0, 0), (1, 0)])
        wrong = writes(3)
        wrong[2].qp = 0
        refused = -errno.ENOENT
        r.equal("a batch that is refused says so", post(wrong, flags=IOSQE_CQE_SKIP_SUCCESS), (1, [refused]))
        r.equal("... those before the wrong one are posted", done(2), [(0, 0), (1, 0)])
        if not small:
            r.equal("... and which request is wrong", uring.extra, 2 << INDEX)
        r.equal(
            "a refusal ends a chain of links",
            post(wrong, number=2, flags=IOSQE_IO_LINK, late=True),
            (2, [refused, -errno.ECANCELED]),
        )
        r.equal("... after it has posted", done(2), [(0, 0), (1, 0)])
        for what, got, want in (
            ("none", post([]), errno.EINVAL),
            ("a flag", post(writes(1), ring=N["URING_RING"] | 2), errno.EINVAL),
            ("a file that has no such queue pair", post(writes(1), fd=other.fd), errno.ENOENT),
            ("a registered buffer", post(writes(1), cmd_flags=URING_CMD_FIXED), errno.EINVAL),
        ):
            r.equal(f"{size}: {what}", got, (1, [-want]))
        r.equal("nothing was posted", a.cq.reap(), [])


def test_unreported(r):
    """Unsignaled sends by io_uring leave room in a short completion queue for commands of every kind."""
    a, b = ulp.pair(depth=256, entries=64)
    uring = Uring()
    silent = a.write(b, 8, flags=0)

    def run(number, command):
        uring.prepare(a.file.fd, N[number], command)
        uring.submit(1)
        return uring.wait(1)[0][1]

    def when_room(number, command):
        """Issues a command until it finds room, which only the device makes; its result."""
        full = -errno.EAGAIN
        done = ulp.until(lambda: (res := run(number, command)) != full and (res,), 5)
        return done[0] if done else full

    def batch(wrs, flags):
        where = {"wrs": ctypes.addressof(wrs), "nr_wrs": len(wrs), "wr_size": ctypes.sizeof(S["wr"])}
        return when_room("URING_BATCH", bytes(S["uring_batch"](**where, flags=flags)))

    posted, six = [], (S["wr"] * 6)(*[silent] * 6)
    while len(posted) < 100 and (not posted or posted[-1] == 6):
        posted.append(batch(six, N["URING_RING"]))
    r.equal("URING_BATCH of 600 unsignaled writes, completion queue of 64: all are posted", set(posted), {6})
    r.equal("... and none has a completion", a.cq.reap(), [])
    got = when_room("URING_REQUEST", bytes(a.write(b, 8)))
    r.equal("a request by io_uring after unsignaled ones succeeds", got, 0)
    wrs = (S["wr"] * 2)(silent, a.write(b, 8, user_data=7))
    for flags, want in ((0, []), (N["URING_RING"], [(7, 0)])):
        got = batch(wrs, flags)
        done = [(c.user_data, c.status) for c in a.cq.wait(len(want))]
        r.equal(f"a batch with flags {flags} after unsignaled ones succeeds", (got, done), (2, want))
    # The former have room in the ring, the latter not, and one completion of the device ends both.
    three = (S["wr"] * 3)(*[silent] * 3)
    rounds = {(error_of(a.file.submit, [silent] * 3), batch(three, 0)) for _ in range(60)}
    r.equal("60 times three unsignaled writes and a batch of three: all find room", rounds, {("none", 3)})
    receives = [a.qp.wr("RECV", a.buffer, 0, 8)] * 64
    r.equal("... which they give back: 64 receives find room", a.file.try_submit(receives)[:2], ("none", 64))


class Batches:
    """A ring, and what its batches come to."""

    def __init__(self, file):
        self.file, self.ring, self.keep = file, Uring(), []

    def begin(self, wrs, flags=0, **fields):
        array = (S["wr"] * len(wrs))(*wrs)
        self.keep.append(array)
        fields = {"wrs": ctypes.addressof(array), "nr_wrs": len(wrs), "wr_size": ctypes.sizeof(S["wr"])} | fields
        self.ring.prepare(self.file.fd, N["URING_BATCH"], bytes(S["uring_batch"](flags=flags, **fields)))
        return self.ring.submit(1)

    def run(self, wrs, flags=0, **fields):
        """The result, with the status in place of -EREMOTEIO, and the index; the whole extra word if it has more."""
        self.begin(wrs, flags, **fields)
        return self.end()

    def end(self):
        """The same of the next batch that completes."""
        ((_, res),) = self.ring.wait(1)
        word = self.ring.extra
        index, status = word >> INDEX & 0xFFFF, word & 0xFFFF
        if res == FAILED:
            return f"status {status}", index
        return res, index if word == index << INDEX else hex(word)


def test_stops(r):
    """A batch posts in order, stops at the first request that is refused, and completes after those before it."""
    a, b = ulp.pair(depth=16, entries=64, connect={"retry_cnt": 7, "rnr_retry": 7})
    batches = Batches(a.file)
    a.buffer.map[:] = b"x" * a.buffer.length

    def good(place, **fields):
        return a.write(b, 8, remote_offset=8 * place, user_data=place, **fields)

    def bad(**fields):
        return a.write(b, 1, a.buffer.length, **fields)

    def completions(count=0):
        return [(c.user_data, c.status) for c in a.cq.wait(count)]

    refused = -errno.ERANGE
    for flags in (0, N["URING_RING"]):
        for silent in (0, N["SEND_SIGNALED"]):
            name = f"a batch with flags {flags}, requests with flags {silent}"
            b.buffer.map[:64] = bytes(64)
            got = batches.run([good(i, flags=silent) for i in range(2)] + [good(2), bad(), good(5)], flags)
            r.equal(f"{name}: number 3 is refused, after those before it", got, (refused, 3))
            want = [(i, 0) for i in range(0 if silent else 2, 3)] if flags else []
            r.equal("... the ring of their queue", completions(len(want)), want)
            r.equal("... they have written, no other", b.buffer.map[:64], b"x" * 24 + bytes(40))
            r.equal("... the first is refused", batches.run([bad(), good(5)], flags), (refused, 0))
            r.equal("... a batch after that", batches.run([good(0, flags=0), good(1, flags=0)], flags), (2, 0))
    got = batches.run([good(0, flags=0), good(1, flags=0), bad()])
    r.equal("silent requests before one that is refused: the batch completes", got, (refused, 2))
    r.equal("nothing else completes", completions(), [])
    nowhere = {"num_sge": 2, "sge": S["sge"](offset=8)}
    got = batches.run([good(0), good(1), a.qp.wr("RDMA_WRITE", **nowhere), good(3)])
    r.equal("elements that cannot be read: those before it complete first", got, (-errno.EFAULT, 2))
    got = batches.run([good(0)] * 3, nr_wrs=2, wr_size=5000)
    r.equal("an array of entries that are too large", got, (-errno.E2BIG, 0))

    b.file.submit([b.qp.wr("RECV", b.buffer, 0, 64) for _ in range(16)])
    depth = a.file.call("QP_QUERY", qp=a.qp.handle).max_send_wr
    sends = [a.qp.wr("SEND", a.buffer, 0, 8, flags=0) for _ in range(depth + 3)]
    r.equal("more than the queue holds: EAGAIN, and the index", batches.run(sends), (-errno.EAGAIN, depth))
    r.equal("... those before it have arrived", len(b.cq.wait(depth)), depth)

    wrong = good(1)
    wrong.rkey ^= 0x55
    got = batches.run([good(0), wrong, good(2), bad()])
    r.equal("a posted request fails, and a later one is refused: the posted one", got, (f"status {REFUSED_ACCESS}", 1))


def test_words(r):
    """The first extra word of a completion says what the entry of a completion ring says."""
    a, b = ulp.pair(entries=64)
    wrong = a.write(b, 8)
    wrong.rkey ^= 0x55
    a.file.submit([wrong])
    want = a.cq.wait(1)[0]
    for small in (False, True):
        a, b = ulp.pair(entries=64)
        uring = Uring(small=small)
        wrs = (S["wr"] * 3)(*[a.write(b, 8) for _ in range(3)])
        wrs[2].rkey ^= 0x55
        where = {"wrs": ctypes.addressof(wrs), "nr_wrs": 3, "wr_size": ctypes.sizeof(S["wr"])}
        uring.prepare(a.file.fd, N["URING_BATCH"], bytes(S["uring_batch"](**where)))
        uring.submit(1)
        results = [res for _, res in uring.wait(1)]
        r.equal(f"a batch with a wrong key, completions of {uring.cqe} bytes: EREMOTEIO", results, [FAILED])
        if not small:
            word = want.status | 2 << INDEX | want.vendor_err << N["URING_VENDOR_ERR_SHIFT"]
            r.equal("... status, index and the vendor's code", uring.extra, word)
            if ulp.HCA:
                r.equal("... which the adapter makes", hex(want.vendor_err), hex(0xBAD00000 | want.status))

    a, b = datagrams()
    uring = Uring()
    for imm in (None, 0x89ABCDEF):
        how = {} if imm is None else {"op": "SEND_WITH_IMM", "imm_data": imm}
        uring.prepare(b.file.fd, N["URING_REQUEST"], bytes(b.qp.wr("RECV", b.buffer, 0, 128)))
        uring.submit(1)
        a.file.submit([a.qp.datagram(a.ah.handle, b.qp.num, QKEY, a.buffer, 0, 8, **how)])
        results = [res for _, res in uring.wait(1)]
        flags = N["WC_GRH"] | (0 if imm is None else N["WC_WITH_IMM"])
        word = (imm or 0) | a.qp.num << N["URING_SRC_QP_SHIFT"] | flags << N["URING_FLAGS_SHIFT"]
        r.equal(
            f"a datagram with immediate data {imm}: its length, sender and flags",
            (results, hex(uring.extra)),
            ([GRH + 8], hex(word)),
        )

    # The kernel gives two commands the memory of two before: one that had words and no completion, and one with both.
    for flags in (IOSQE_CQE_SKIP_SUCCESS, 0):
        uring.prepare(b.file.fd, N["URING_REQUEST"], bytes(b.qp.wr("RECV", b.buffer, 0, 128)), None, flags)
    uring.submit(2)
    a.file.submit([a.qp.datagram(a.ah.handle, b.qp.num, QKEY, a.buffer, 0, 8, **how) for _ in range(2)])
    uring.wait(1)
    cancel = N["URING_CANCEL"], bytes(S["uring_cancel"](queue=b.qp.handle, user_data=1)), None
    for _ in range(2):
        uring.prepare(b.file.fd, *cancel)
    uring.submit(2)
    results = [res for _, res in uring.wait(2)]
    r.equal("commands that are answered at once have no extra words", (results, uring.extras[-2:]), ([0, 0], [0, 0]))
    uring.prepare(b.file.fd, *cancel, IOSQE_ASYNC)
    uring.submit(1)
    results = [res for _, res in uring.wait(1)]
    r.equal("a command that a worker of io_uring answers has none, either", (results, uring.extra), ([0], 0))


class Destroyed:
    """A command whose queue pair is destroyed while another thread holds it: QP_MODIFY asks for a host that is not."""

    def __init__(self):
        self.end = end = End("h1")
        self.qp = qp = Qp(end.file, end.pd, end.cq)
        qp.modify("STATE PKEY_INDEX PORT ACCESS_FLAGS", qp_state=N["QPS_INIT"], port_num=end.file.port)
        self.ring = Uring()
        self.ring.prepare(end.file.fd, N["URING_REQUEST"], bytes(qp.wr("RECV", end.buffer, 0, 64)))
        self.submitted = self.ring.submit(1)
        path = S["ah_attr"](sgid_index=end.file.gid_index, port_num=end.file.port, is_global=1)
        ctypes.memmove(path.dgid, bytes(10) + b"\xff\xff\x0a\x09\x00\x4d", 16)
        self.thread = threading.Thread(target=self.resolve, args=(qp, path), daemon=True)
        self.thread.start()
        alive = self.thread.is_alive
        self.is_held = ulp.until(lambda: ulp.sleeps_in_module(self.thread) or not alive()) and alive()
        self.said = error_of(end.file.destroy, qp.handle)
        self.was_held = self.thread.is_alive() and ulp.sleeps_in_module(self.thread)

    def resolve(self, qp, path):
        self.modified = error_of(qp.to_rtr, path)


def destroyed():
    """One whose queue pair was destroyed in time: the kernel looks for the host for a second (addr.c)."""
    for _ in range(10):
        it = Destroyed()
        if it.was_held:
            break
        it.thread.join()
        it.end.file.close()
    return it


def test_destroyed(r):
    """No command is lost when its queue pair leaves the table while another thread holds it."""
    it = destroyed()
    done, alive = it.ring.wait(1), it.thread.is_alive()
    r.equal("a queue pair that another thread holds is destroyed", (it.submitted, it.said), (1, "none"))
    r.equal("the command completes once, as flushed", [res for _, res in done], [FAILED])
    r.equal("... in its extra word", it.ring.extra & 0xFFFFFFFF, FLUSHED)
    held = bool(it.is_held), it.was_held, alive
    r.equal("while the other thread still holds the queue pair", held, (True, True, True))
    it.thread.join()
    r.check("when that thread has failed", it.modified in ("EHOSTUNREACH", "ENETUNREACH", "ETIMEDOUT"), it.modified)
    r.equal("and no other", it.ring.reap(), [])
    it.end.file.close()

    out, wire = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            it = destroyed()
            os.write(wire, b"%d %d" % (it.submitted, it.was_held))
            signal.pause()
        finally:
            os._exit(1)
    os.close(wire)
    r.equal("so it is in another process", os.read(out, 100), b"1 1")
    os.kill(pid, signal.SIGKILL)
    r.check("which goes when it is killed", ulp.until(lambda: os.waitpid(pid, os.WNOHANG)[0]))


if __name__ == "__main__":
    ulp.main(__doc__, globals())
