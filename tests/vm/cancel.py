#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Requests that are over for their caller before they are for the device, between h1 and h2.

    cancel.py deadline|expiry|burst|cancel|sections|walk|silent|room|receive|shared|once|gone|reset|killed

Expects the module and two hosts. Prints KTAP.
"""

import os
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tracing
import ulp
from ulp import N, End, Qp, Srq, error_of, pair, pattern

TIMEOUT, CANCELED, FLUSHED, REMOTE_ACCESS, RETRY_EXCEEDED = N["WC_STATUS_TIMEOUT"], N["WC_STATUS_CANCELED"], 5, 10, 12
MS = 10**6
#: Much later than anything that happens here.
LATER = 600 * 10**9
#: Nobody takes a message for now, and the sender does not give up.
PATIENT = {"retry_cnt": 7, "rnr_retry": 7}


def flight(end):
    """Requests of `end` that the device has: sends, receives."""
    got = end.file.call("QP_QUERY", qp=end.qp.handle)
    return got.sends_in_flight, got.recvs_in_flight


def drained(end, sends=0, recvs=0):
    """Waits until the device has no more than that."""
    ulp.until(lambda: flight(end) == (sends, recvs))
    return flight(end)


def said(entries):
    return [(c.user_data, c.status) for c in entries]


def cancel(end, user_data=0, flags=0, queue=None):
    return end.file.call("CANCEL", queue=queue or end.qp.handle, user_data=user_data, flags=flags).canceled


def send(end, number, length=8, **fields):
    return end.qp.wr("SEND", end.buffer, 8 * number, length, user_data=number, **fields)


def recv(end, number, **fields):
    return end.qp.wr("RECV", end.buffer, 4096 + 64 * number, 64, user_data=number, **fields)


def test_deadline(r):
    a, b = pair(connect=PATIENT)
    a.buffer.map[:4096] = pattern(1, 4096)
    a.file.submit([send(a, 1, timeout_ns=20 * MS)])
    done = a.cq.wait(1)[0]
    r.equal(
        "a send that nobody receives times out",
        (done.user_data, done.status, done.opcode, done.qp, done.qp_num, done.byte_len),
        (1, TIMEOUT, N["WC_SEND"], a.qp.handle, a.qp.num, 0),
    )
    r.equal("and is still with the device", flight(a), (1, 0))
    b.file.submit([recv(b, 7), recv(b, 8)])
    r.equal(
        "it arrives late", (said(b.cq.wait(1)), b.buffer.map[4096 + 448 : 4096 + 456]), ([(7, 0)], a.buffer.map[8:16])
    )
    r.equal("then the device is done with it", drained(a), (0, 0))
    r.equal("of which nobody hears", said(a.cq.reap()), [])
    a.file.submit([send(a, 2, timeout_ns=LATER)])
    r.equal("one that is in time succeeds", (said(a.cq.wait(1)), said(b.cq.wait(1))), ([(2, 0)], [(8, 0)]))

    a.file.submit([send(a, i, timeout_ns=i * MS if i % 3 else 0) for i in range(1, 64)])
    want = [i for i in range(1, 64) if i % 3]
    r.equal(
        "of 63 each that has a deadline meets it, in the order of the deadlines",
        said(a.cq.wait(len(want))),
        [(i, TIMEOUT) for i in want],
    )
    r.equal("the others wait", (flight(a), said(a.cq.reap())), ((63, 0), []))
    b.file.submit([recv(b, i) for i in range(1, 64)])
    r.equal("and succeed, in order", said(a.cq.wait(21)), [(i, 0) for i in range(3, 64, 3)])
    r.equal("all 63 messages come, each once, in order", said(b.cq.wait(63)), [(i, 0) for i in range(1, 64)])
    r.equal("nothing is left", (drained(a), said(a.cq.reap()), flight(b)), ((0, 0), [], (0, 0)))

    a.file.submit([send(a, 1, flags=0, timeout_ns=LATER), send(a, 2, flags=0, timeout_ns=20 * MS)])
    r.equal("a silent request that times out is heard of", said(a.cq.wait(1)), [(2, TIMEOUT)])
    b.file.submit([recv(b, 1), recv(b, 2)])
    r.equal(
        "and one that succeeds is not",
        (said(b.cq.wait(2)), drained(a), said(a.cq.reap())),
        ([(1, 0), (2, 0)], (0, 0), []),
    )

    for what, flags, ns in (("no time at all", N["REQUEST_TIMEOUT"], 0), ("a time without its flag", 0, MS)):
        wr = send(a, 1, flags=flags)
        wr.timeout_ns = ns
        r.equal(what, error_of(a.file.submit, [wr]), "EINVAL")
    forever = [send(a, 1, timeout_ns=N["TIMEOUT_INFINITE"]), send(a, 2, timeout_ns=N["TIMEOUT_INFINITE"] - 1)]
    timed = [send(a, 5, timeout_ns=LATER), send(a, 3, timeout_ns=1), send(a, 4, timeout_ns=20 * MS)]
    begin = time.monotonic_ns()
    a.file.submit(forever + timed)
    r.equal(
        "deadlines pass in their own order, whatever the order of the requests",
        said(a.cq.wait(2)),
        [(3, TIMEOUT), (4, TIMEOUT)],
    )
    r.check("the last one not before its time", time.monotonic_ns() >= begin + 20 * MS)
    r.equal("requests without an end, and one with a later one, wait", said(a.cq.reap()), [])
    b.file.submit([recv(b, i) for i in range(1, 6)])
    r.equal("and succeed", (said(a.cq.wait(3)), len(b.cq.wait(5)), drained(a)), ([(1, 0), (2, 0), (5, 0)], 5, (0, 0)))


LOCK, UNLOCK = "rust_ulp_h_spin_lock_bh", "rust_ulp_h_spin_unlock_bh"


def receives(depth, timeout_of):
    """An end whose receive queue is full of receives, numbered; `timeout_of` says how long each batch may take."""
    end, _ = pair(depth=depth + 1, entries=2 * depth)
    for _ in range(0, depth, 128):
        left = timeout_of()
        end.file.submit([recv(end, 0, timeout_ns=left) for _ in range(128)])
    return end


def test_expiry(r):
    """A worker looks for what is over, few at a time with bottom halves off: counted by its unlocks."""
    depth, most = 4096, 64
    end = receives(depth, lambda: LATER)
    with tracing.Trace("function", [UNLOCK]) as trace:
        end.file.submit([recv(end, 7, timeout_ns=MS)])
        r.equal("a deadline behind many later ones passes", said(end.cq.wait(1)), [(7, TIMEOUT)])
        # The worker has looked at all when the next deadline passes.
        r.equal("the others wait", flight(end), (0, depth + 1))
    calls, workers = {}, set()
    for record in trace.records():
        if record["what"].startswith(UNLOCK):
            calls[record["pid"]] = calls.get(record["pid"], 0) + 1
        elif record["what"].startswith("rust_ulp_deliver"):
            workers.add(record["pid"])
    r.equal("one worker tells", len(workers), 1)
    unlocks = sum(calls.get(worker, 0) for worker in workers)
    r.note(f"{unlocks} unlocks")
    r.equal(f"after one unlock at least for each {most} before it", unlocks >= depth // most, True)


def test_burst(r):
    """Of many deadlines that pass together, a worker tells few at a time with bottom halves off."""
    depth, most = 4096, 64
    when = time.monotonic_ns() + 3000 * ulp.PATIENCE * MS
    end = receives(depth, lambda: when - time.monotonic_ns())
    with tracing.Trace("function", [LOCK, UNLOCK]) as trace:
        in_time = time.monotonic_ns() < when
        got = said(end.cq.wait(depth, 60))
    r.equal("all are posted before their deadline", in_time, True)
    r.equal(f"{depth} receives time out, each once", got, [(0, TIMEOUT)] * depth)
    held, told, counts, where = {}, {}, [], set()
    for record in trace.records():
        what, task = record["what"], record["pid"]
        if what.startswith(LOCK):
            held[task] = held.get(task, 0) + 1
        elif what.startswith("rust_ulp_deliver"):
            told[task] = told.get(task, 0) + 1
            where.add(record["comm"].split("/")[0])
        elif what.startswith(UNLOCK):
            held[task] = held.get(task, 0) - 1
            if held[task] <= 0:
                counts.append(told.pop(task, 0))
    r.note(f"{sum(map(bool, counts))} times")
    r.equal("workers tell", where, {"kworker"})
    r.equal("all are told", sum(counts) + sum(told.values()), depth)
    r.equal(f"no more than {most} before bottom halves are on again", max(counts), most)


def test_cancel(r):
    a, b = pair(connect=PATIENT)
    r.equal("nothing to cancel", (cancel(a, 5), cancel(a, flags=N["CANCEL_ALL"])), (0, 0))
    a.file.submit([send(a, i % 4) for i in range(16)])
    r.equal("those with that number", cancel(a, 2), 4)
    r.equal("are told", said(a.cq.wait(4)), [(2, CANCELED)] * 4)
    r.equal("not twice", (cancel(a, 2), said(a.cq.reap())), (0, []))
    r.equal("all that are left", cancel(a, flags=N["CANCEL_ALL"]), 12)
    r.equal("are told in order", said(a.cq.wait(12)), [(i % 4, CANCELED) for i in range(16) if i % 4 != 2])
    r.equal("the device has all of them", flight(a), (16, 0))
    b.file.submit([recv(b, i) for i in range(17)])
    r.equal("and delivers them", said(b.cq.wait(16)), [(i, 0) for i in range(16)])
    r.equal("late, and silently", (drained(a), said(a.cq.reap())), ((0, 0), []))
    a.file.submit([send(a, 3)])
    r.equal("the next one succeeds", (said(a.cq.wait(1)), said(b.cq.wait(1))), ([(3, 0)], [(16, 0)]))
    r.equal("what is done cannot be canceled", cancel(a, 3), 0)

    def refused(**fields):
        return error_of(a.file.call, "CANCEL", **{"queue": a.qp.handle} | fields)

    r.equal("unknown flags", refused(flags=2), "EINVAL")
    r.equal("all, and a number", refused(flags=N["CANCEL_ALL"], user_data=1), "EINVAL")
    r.equal("no handle", refused(queue=0), "ENOENT")
    r.equal("another file's handle", refused(queue=0x7FFFFFFF), "ENOENT")
    r.equal("a completion queue", refused(queue=a.cq.handle), "EBADFD")


def test_sections(r):
    """CANCEL looks at few requests at a time with bottom halves off: counted by its unlocks, not by a clock."""
    depth, most = 4096, 64
    tracing.write("set_ftrace_pid", str(os.getpid()))
    try:
        for name, post in (("receives", recv), ("sends", send)):
            end, _ = pair(depth=depth, entries=4 * depth, connect=PATIENT)
            for first in range(0, depth, 128):
                end.file.submit([post(end, (first + i) % 4) for i in range(128)])
            with tracing.Trace("function", [UNLOCK]) as trace:
                none = cancel(end, 9)
            calls = sum(record["what"].startswith(UNLOCK) for record in trace.records())
            r.note(f"{name}: {calls} unlocks")
            r.equal(f"no number among {depth} {name}", none, 0)
            r.equal(f"one unlock at least for each {most} {name}", calls >= depth // most, True)
            r.equal(f"a fourth of the {name} is canceled", cancel(end, 2), depth // 4)
            r.equal("and told", said(end.cq.wait(depth // 4)), [(2, CANCELED)] * (depth // 4))
            r.equal(f"all other {name} are canceled", cancel(end, flags=N["CANCEL_ALL"]), depth - depth // 4)
            rest = [(i % 4, CANCELED) for i in range(depth) if i % 4 != 2]
            r.equal("in order", said(end.cq.wait(len(rest))), rest)
    finally:
        tracing.write("set_ftrace_pid", "")


def test_walk(r):
    """A deadline makes a completion look at each silent request: few at a time with bottom halves off."""
    count, most = 1500, 64
    # The device reports none of them: they leave half of the completion queue free. It has room for two
    # rounds: the third needs the places of the first.
    a, b = pair(depth=4096, entries=4096)
    silent = [send(a, i, flags=0) for i in range(count)]
    for status in (0, 0, REMOTE_ACCESS):
        for first in range(0, count, 125):
            b.file.submit([recv(b, i % 64) for i in range(first, first + 125)])
            a.file.submit(silent[first : first + 125])
        r.equal(
            "silent requests succeed", (len(b.cq.wait(count)), said(a.cq.reap()), flight(a)), (count, [], (count, 0))
        )
        b.file.submit([recv(b, 1), recv(b, 2)])
        told = [send(a, count), send(a, count + 1, timeout_ns=LATER)]
        if status:
            told[0] = a.qp.wr("RDMA_WRITE", a.buffer, 0, 8, rkey=1, user_data=count)
        with tracing.Trace("function", ["rust_ulp_completion", UNLOCK]) as trace:
            a.file.submit(told)
            got = said(a.cq.wait(2))
        unlocks = walk_of(trace, UNLOCK, count)
        r.note(f"{unlocks} unlocks")
        want = [(count, status), (count + 1, FLUSHED if status else 0)]
        r.equal("only those that are signaled are told", (got, said(a.cq.reap()), drained(a)), (want, [], (0, 0)))
        r.equal(f"after one unlock at least for each {most} before them", unlocks >= count // most, True)
        r.equal("the peer has all of them", len(b.cq.wait(2)), 2)


def walk_of(trace, unlock, user_data):
    """The unlocks of the completion that delivers `user_data`."""
    calls = {}
    for record in trace.records():
        task, what = record["pid"], record["what"]
        if what.startswith("rust_ulp_completion <-"):
            calls[task] = 0
        elif what.startswith(unlock):
            calls[task] = calls.get(task, 0) + 1
        elif what.startswith("rust_ulp_deliver") and tracing.fields(what)["user_data"] == user_data:
            return calls[task]
    return -1


def test_silent(r):
    """A request that is canceled among others that are not signaled; each time the queues are full."""
    a, b = (End(f"h{i}", entries=8, depth=8) for i in (1, 2))
    a.meet(b, **PATIENT)
    for number in (1, 3, 7):
        a.file.submit([send(a, i, flags=0) for i in range(1, 8)] + [send(a, 8)])
        r.equal(
            f"silent request {number} of 7 is canceled",
            (cancel(a, number), said(a.cq.wait(1))),
            (1, [(number, CANCELED)]),
        )
        b.file.submit([recv(b, i) for i in range(8)])
        r.equal("all arrive", said(b.cq.wait(8)), [(i, 0) for i in range(8)])
        r.equal("of the others the last is told", (said(a.cq.wait(1)), drained(a)), ([(8, 0)], (0, 0)))
        r.equal("and nothing else", said(a.cq.reap()), [])


def test_room(r):
    """What the device still has takes its place in both queues."""
    a, b = (End(f"h{i}", entries=8, depth=4) for i in (1, 2))
    a.meet(b, **PATIENT)
    a.file.submit([send(a, i) for i in range(4)])
    r.equal("four are canceled", (cancel(a, flags=N["CANCEL_ALL"]), len(a.cq.wait(4))), (4, 4))
    r.equal("their places in the queue pair are taken", error_of(a.file.submit, [send(a, 4)]), "EAGAIN")
    other = End("h1", entries=8, depth=8)
    other.qp = Qp(a.file, a.pd, a.cq, 8)
    other.file, other.cq, other.psn, other.buffer = a.file, a.cq, 77, a.buffer
    peer = End("h2", depth=8)
    other.meet(peer, **PATIENT)
    a.file.submit([send(other, i) for i in range(4)])
    r.equal("and those in the completion queue", error_of(a.file.submit, [send(other, 4)]), "EAGAIN")
    b.file.submit([recv(b, i) for i in range(4)])
    r.equal("until the device is done", (drained(a), len(b.cq.wait(4))), ((0, 0), 4))
    a.file.submit([send(other, 4), send(other, 5), send(other, 6)])
    a.file.submit([send(a, 9)])
    r.equal("then there is room, and no more", error_of(a.file.submit, [send(a, 10)]), "EAGAIN")
    peer.file.submit([recv(peer, i) for i in range(7)])
    b.file.submit([recv(b, 1)])
    r.equal("all of which succeed", sorted(said(a.cq.wait(8))), [(i, 0) for i in (0, 1, 2, 3, 4, 5, 6, 9)])


def test_receive(r):
    a, b = pair(connect=PATIENT)
    b.file.submit([recv(b, 1, timeout_ns=20 * MS), recv(b, 2), recv(b, 3, timeout_ns=LATER), recv(b, 4)])
    done = b.cq.wait(1)[0]
    r.equal("a receive times out", (done.user_data, done.status, done.opcode), (1, TIMEOUT, N["WC_RECV"]))
    r.equal("another is canceled", (cancel(b, 2), said(b.cq.wait(1))), (1, [(2, CANCELED)]))
    r.equal("the device has all four", flight(b), (0, 4))
    for i in range(1, 5):
        a.file.submit([send(a, i)])
    r.equal(
        "the first two messages are lost, the next two are not",
        (said(a.cq.wait(4)), said(b.cq.wait(2))),
        ([(i, 0) for i in range(1, 5)], [(3, 0), (4, 0)]),
    )
    r.equal("and nothing else is said", (drained(b), said(b.cq.reap())), ((0, 0), []))


def sharing():
    """Two connected ends, and the shared receive queue of the second."""
    a, b = End("h1"), End("h2")
    srq = Srq(b.file, b.pd, b.cq)
    b.file.destroy(b.qp.handle)
    b.qp = Qp(b.file, b.pd, b.cq, srq=srq.handle)
    a.meet(b, **PATIENT)
    return a, b, srq


def test_shared(r):
    a, b, srq = sharing()

    def take(number, **fields):
        return srq.recv(b.buffer, 64 * number, 64, user_data=number, **fields)

    b.file.submit([take(1, timeout_ns=20 * MS), take(2), take(3), take(4, timeout_ns=LATER)])
    done = b.cq.wait(1)[0]
    r.equal(
        "a shared receive times out, with the queue's handle",
        (done.user_data, done.status, done.opcode, done.qp),
        (1, TIMEOUT, N["WC_RECV"], srq.handle),
    )
    r.equal("another is canceled", (cancel(b, 3, queue=srq.handle), said(b.cq.wait(1))), (1, [(3, CANCELED)]))
    r.equal("not by the queue pair's handle", cancel(b, flags=N["CANCEL_ALL"]), 0)
    r.equal("the device has all four", srq.query().recvs_in_flight, 4)
    for i in range(1, 5):
        a.file.submit([send(a, i)])
    r.equal(
        "messages that take these are lost",
        (said(a.cq.wait(4)), said(b.cq.wait(2))),
        ([(i, 0) for i in range(1, 5)], [(2, 0), (4, 0)]),
    )
    r.equal("nothing is left", (srq.query().recvs_in_flight, said(b.cq.reap())), (0, []))
    b.file.submit([take(5, timeout_ns=20 * MS), take(6)])
    r.equal("one more times out", said(b.cq.wait(1)), [(5, TIMEOUT)])
    b.file.destroy(b.qp.handle)
    b.file.destroy(srq.handle)
    r.equal("when the queue goes, only the other is flushed", said(b.cq.reap()), [(6, FLUSHED)])


def test_once(r):
    """A one-shot grant ends with its use, though the shared receive that tells of it was canceled."""
    a, b, srq = sharing()
    for canceled in (False, True):
        how = "canceled" if canceled else "kept"
        grant = b.file.call(
            "GRANT_CREATE",
            buffer=b.buffer.handle,
            access=N["ACCESS_REMOTE_WRITE"],
            length=64,
            qp=b.qp.handle,
            flags=N["GRANT_ONE_SHOT_INV"],
        )
        b.file.submit([srq.recv(b.buffer, 4096, 64, user_data=1)])
        if canceled:
            r.equal("a shared receive is canceled", cancel(b, 1, queue=srq.handle), 1)
        a.file.submit([a.qp.wr("SEND_WITH_INV", a.buffer, 0, 8, imm_data=grant.rkey)])
        r.equal(f"{how}: the grant is used", said(a.cq.wait(1)), [(0, 0)])
        ended = ulp.until(lambda: b.file.call("GRANT_QUERY", grant=grant.handle).state != N["GRANT_ACTIVE"], 5)
        r.equal(f"{how}: and has ended", ended, True)
        r.equal(f"{how}: the receive is told of once", said(b.cq.wait(1)), [(1, CANCELED if canceled else 0)])


def test_gone(r):
    """The peer vanishes: its line is cut."""
    a, b = pair(connect={"retry_cnt": 5, "timeout": 17})
    with ulp.cut():
        a.file.submit(
            [
                a.write(b, 8, user_data=1, timeout_ns=20 * MS),
                a.write(b, 8, user_data=2),
                a.write(b, 8, user_data=3, timeout_ns=20 * MS),
                a.write(b, 8, user_data=4),
            ]
        )
        r.equal("those with a deadline time out", said(a.cq.wait(2)), [(1, TIMEOUT), (3, TIMEOUT)])
        r.equal("the device goes on", flight(a), (4, 0))
        r.equal(
            "when it gives up, the others are flushed, and nothing is said twice",
            (said(a.cq.wait(2, 60)), drained(a), said(a.cq.reap())),
            ([(2, FLUSHED), (4, FLUSHED)], (0, 0), []),
        )


def test_reset(r):
    for how in ("error", "destroy", "reset"):
        a, b = pair(connect=PATIENT)
        a.file.submit([send(a, i, timeout_ns=(20 * MS, LATER, 0)[i % 3]) for i in range(6)])
        a.file.submit([recv(a, 10, timeout_ns=20 * MS), recv(a, 11, timeout_ns=LATER)])
        r.equal(f"{how}: three time out", sorted(said(a.cq.wait(3))), [(0, TIMEOUT), (3, TIMEOUT), (10, TIMEOUT)])
        r.equal(f"{how}: one is canceled", (cancel(a, 1), said(a.cq.wait(1))), (1, [(1, CANCELED)]))
        if how == "destroy":
            a.file.destroy(a.qp.handle)
        else:
            a.qp.modify("STATE", qp_state=N["QPS_" + {"reset": "RESET", "error": "ERR"}[how]])
        r.equal(
            f"{how}: the others are flushed, once",
            sorted(said(a.cq.wait(4))),
            [(2, FLUSHED), (4, FLUSHED), (5, FLUSHED), (11, FLUSHED)],
        )
        if how == "reset":
            r.equal("reset: nothing is with the device", flight(a), (0, 0))
            a.connect(b, **PATIENT)
            a.file.submit([recv(a, 12)])
            r.equal("reset: the next one is told as ever", (cancel(a, 12), said(a.cq.wait(1))), (1, [(12, CANCELED)]))
        r.equal(f"{how}: and nothing more", said(a.cq.reap()), [])


def test_killed(r):
    """A process dies while deadlines are under way, and before they pass."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        a, b = pair(connect=PATIENT)
        a.file.submit([send(a, i, timeout_ns=(i + 1) * 10 * MS) for i in range(100)])
        b.file.submit([recv(b, i, timeout_ns=LATER) for i in range(64)])
        cancel(a, 50)
        os.write(writing, b"x")
        time.sleep(600)
        os._exit(1)
    r.equal("a process with deadlines", os.read(reading, 1), b"x")
    os.kill(child, signal.SIGKILL)
    r.equal("dies of it", os.WTERMSIG(os.waitpid(child, 0)[1]), signal.SIGKILL)


if __name__ == "__main__":
    ulp.main(__doc__, globals())
