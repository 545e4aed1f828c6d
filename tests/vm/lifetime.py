#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""What happens to open files when the device, or the process, goes away.

    lifetime.py idle|waiter|busy|destroy|ended|drain|reset|attach|flight|peer|load|netdev|mapping|kill

Expects the module and two hosts; `rxe1`, `rxe2` or a netdev may be gone when it
returns. Prints KTAP.
"""

import ctypes
import errno
import functools
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import ulp
from ulp import FINITE, N, Buffer, Cq, End, File, Qp, error_of, pair, remote

ROUNDS = ulp.count("ULP_ROUNDS", 5, 3)
DEADLINE = 20 * ulp.PATIENCE  # seconds after which what takes a device away hangs
LONG = 3600 * 10**9  # a wait that only the removal ends
SIZE = 1 << 16


def remove(r, device):
    r.equal(f"{device} goes", ulp.unplug(device), (0, ""))


def in_background(function, *args):
    """A thread whose result, or errno's name, is `.result` once it has ended."""

    def body():
        try:
            thread.result = function(*args)
        except OSError as e:
            thread.result = errno.errorcode.get(e.errno, str(e))
        except Exception as e:
            thread.result = repr(e)

    thread = threading.Thread(target=body, daemon=True)
    thread.result = "not ended"
    thread.start()
    return thread


def wait_for_one(file, cq):
    """Waits for a completion of `cq`; raises what ended the wait."""
    ulp.ignore_children()
    got = file.submit(cq=cq.handle, min_complete=1, timeout_ns=LONG)
    if got.wait_error:
        raise OSError(-got.wait_error, "SUBMIT")


def ended(thread):
    thread.join(DEADLINE)
    return thread.result


def poll_busily(file, cq):
    """Waits for a completion of `cq` again and again, no longer than it polls. Returns what ended that."""
    error = -errno.ETIME
    while error == -errno.ETIME:
        error = file.submit(cq=cq.handle, min_complete=1, timeout_ns=9_000_000).wait_error
    return errno.errorcode.get(-error, error)


def blocked(threads):
    """Waits until each of the threads sleeps in the module, or polls."""
    for thread in threads:
        if not ulp.until(lambda t=thread: ulp.sleeps_in_module(t) or ulp.sleeps_in_module(t, "do_sys_poll")):
            raise TimeoutError(f"a waiter does not wait: {thread.result}")


def system_ticks(thread):
    """What the thread has run inside the kernel, in clock ticks."""
    with open(f"/proc/self/task/{thread.native_id}/stat") as f:
        return int(f.read().rsplit(")", 1)[1].split()[12])


def events(file, milliseconds):
    p = select.poll()
    p.register(file.fd, select.POLLIN)
    return p.poll(milliseconds)


def hung_up(file):
    got = events(file, 0)
    return bool(got and got[0][1] & select.POLLHUP)


def husk(r, what, end):
    """Every command of the file is ENODEV, poll hangs up, what was mapped stays."""
    f, b, q = end.file, end.buffer, end.qp
    calls = {
        "QUERY": {},
        "DEVICE_QUERY": {},
        "ATTACH": {},
        "PD_CREATE": {},
        "DEVICE_LIST": {"entry_size": ctypes.sizeof(ulp.S["device_entry"])},
        "PORT_QUERY": {"port": 1},
        "GID_QUERY": {"port": 1, "entry_size": ctypes.sizeof(ulp.S["gid_entry"])},
        "PKEY_QUERY": {"port": 1},
        "CQ_CREATE": {"entries": 4},
        "QP_CREATE": {
            "pd": end.pd,
            "send_cq": end.cq.handle,
            "recv_cq": end.cq.handle,
            "qp_type": N["QPT_RC"],
            "max_send_wr": 1,
            "max_recv_wr": 1,
            "max_send_sge": 1,
            "max_recv_sge": 1,
        },
        "QP_QUERY": {"qp": q.handle},
        "QP_MODIFY": {"qp": q.handle, "attr_mask": N["QP_STATE"], "attr": ulp.S["qp_attr"](qp_state=N["QPS_ERR"])},
        "BUFFER_CREATE": {"pd": end.pd, "node": N["NODE_ANY"], "length": 4096},
        "GRANT_CREATE": {"buffer": b.handle, "access": N["ACCESS_REMOTE_WRITE"], "length": 64},
        "BUFFER_REGISTER": {"pd": end.pd, "length": 4096},
        "BUFFER_IMPORT": {"pd": end.pd, "fd": -1},
        "BUFFER_QUERY": {"buffer": b.handle},
        "GRANT_QUERY": {"grant": end.grant.handle},
        "AH_CREATE": {"pd": end.pd},
        "SRQ_CREATE": {"pd": end.pd, "cq": end.cq.handle, "max_wr": 1, "max_sge": 1},
        "SRQ_MODIFY": {"srq": q.handle},
        "SRQ_QUERY": {"srq": q.handle},
        "LISTEN": {"backlog": 1},
        "GET_REQUEST": {"listener": q.handle},
        "ACCEPT": {"request": q.handle, "qp": q.handle},
        "REJECT": {"request": q.handle},
        "CONNECT": {"qp": q.handle},
        "DISCONNECT": {"conn": q.handle},
        "CONN_QUERY": {"conn": q.handle},
        "CONN_WAIT": {"conn": q.handle},
        "DESTROY": {"handle": q.handle},
        "SUBMIT": {"wr_size": ctypes.sizeof(ulp.S["wr"]), "cq": end.cq.handle},
        "CANCEL": {"queue": q.handle},
        "CQ_EVENTFD": {"cq": end.cq.handle, "fd": -1},
    }
    missing = {n[4:] for n in N if n.startswith("IOC_")} - set(calls) - {"MAGIC"}
    r.equal(f"{what}: every command of the header is tried", sorted(missing), [])
    got = {name: error_of(f.call, name, **fields) for name, fields in calls.items()}
    got["SUBMIT of a write"] = error_of(f.submit, [q.wr("RDMA_WRITE", b, 0, 8)])
    r.equal(f"{what}: every call is ENODEV", {k: v for k, v in got.items() if v != "ENODEV"}, {})
    r.equal(f"{what}: mmap is ENODEV", error_of(f.map, 4096, 0), "ENODEV")
    r.check(f"{what}: poll says POLLHUP", hung_up(f), f"{events(f, 0)}")
    r.check(
        f"{what}: the completion ring says that it is dead",
        end.cq.ring.flags & N["CQ_DEAD"],
        f"flags {end.cq.ring.flags:#x}",
    )


def resources(*what):
    got = subprocess.run(
        ["rdma", "-j", "resource", *what], capture_output=True, text=True, check=True, timeout=30 * ulp.PATIENCE
    ).stdout
    return json.loads(got or "[]")


def ours(kind):
    return [o for o in resources("show", kind) if "rust_ulp" in str(o.get("comm"))]


def left_over():
    kinds = ("qp", "cq", "pd", "mr")
    # The core has one of each for management, and no key.
    if all(d[k] <= (k != "mr") for d in resources() for k in kinds):
        return {}
    return {k: len(o) for k in kinds if (o := ours(k))}


def test_idle(r):
    a, b = pair()
    bare, unattached = File("h1", ulp.DEV1), File("h1")
    r.check(
        "the open files own queue pairs, completion queues, domains and keys",
        set(left_over()) == {"qp", "cq", "pd", "mr"},
        left_over(),
    )
    a.buffer.map[:] = ulp.pattern(7, SIZE)
    a.file.submit([a.write(b, SIZE)])
    a.cq.wait(1)
    remove(r, ulp.DEV1)
    husk(r, "idle file", a)
    r.check("mapped pages stay as they were", a.buffer.map[:] == ulp.pattern(7, SIZE), "they differ")
    a.buffer.map[:5] = b"still"
    r.check("a file without objects hangs up too", hung_up(bare), "no POLLHUP")
    r.equal("a file without objects is a husk too", error_of(bare.pd), "ENODEV")
    r.equal(
        "a file that was never attached lists what is left",
        [ulp.text(d.name) for d in unattached.devices()],
        [ulp.DEV2],
    )
    r.equal("the file on the other device lives on", error_of(b.file.call, "QP_QUERY", qp=b.qp.handle), "none")
    r.check("... and does not hang up", not hung_up(b.file), "POLLHUP")
    r.check("... and the peer's last write is there", b.buffer.map[:] == ulp.pattern(7, SIZE), "it differs")
    a.file.close()
    r.check("mapped pages outlive the close of a husk", a.buffer.map[:5] == b"still", "they differ")


def test_last(r):
    """CQ_DEAD follows the last completion."""
    a = End("h1", entries=256)
    queues = [Qp(a.file, a.pd, a.cq, depth=16) for _ in range(16)]
    for q in queues:
        q.modify("STATE PKEY_INDEX PORT ACCESS_FLAGS", qp_state=N["QPS_INIT"], port_num=a.file.port)
        a.file.submit([q.wr("RECV", a.buffer, 0, 8)] * 16)

    def watch():
        while not a.cq.ring.flags & N["CQ_DEAD"]:
            pass
        return a.cq.ring.tail

    watcher = in_background(watch)
    remove(r, ulp.DEV1)
    r.equal("256 receives: CQ_DEAD is seen after all were flushed", ended(watcher), 256)
    r.equal("... and none completes after that", [c.status for c in a.cq.reap()], [5] * 256)
    a.file.close()


def test_busy(r):
    """A signal, kill -9 of the process, DESTROY and the removal of the device end a wait that polls the queue."""

    def polling(end):
        return Cq(end.file, 16, N["DELIVER_WORKQUEUE"], 10_000)

    a = End("h1")
    cq = polling(a)
    signal.signal(signal.SIGALRM, lambda *_: None)
    # Again and again, and more often than it sleeps: on a busy machine the first may precede the call.
    signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
    got = a.file.submit(cq=cq.handle, min_complete=1, timeout_ns=LONG)
    signal.setitimer(signal.ITIMER_REAL, 0)
    r.equal("a signal ends it with EINTR", -got.wait_error, errno.EINTR)

    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        end = End("h1")
        mine = polling(end)
        os.write(writing, b"x")
        poll_busily(end.file, mine)
        os._exit(1)
    r.equal("a process that polls", os.read(reading, 1), b"x")
    os.kill(child, signal.SIGKILL)
    r.equal("dies of kill -9", os.WTERMSIG(os.waitpid(child, 0)[1]), signal.SIGKILL)

    second = polling(a)
    threads = [in_background(poll_busily, a.file, of) for of in (cq, second)]
    for thread in threads:
        r.check("a thread polls", ulp.until(lambda t=thread: system_ticks(t) > 0), thread.result)
    a.file.destroy(second.handle)
    r.equal("DESTROY of its queue ends it with ENOENT", ended(threads[1]), "ENOENT")
    remove(r, ulp.DEV1)
    r.equal("the removal ends the other with ENODEV", ended(threads[0]), "ENODEV")
    a.file.close()


def test_waiter(r):
    a, b = pair()
    second = Cq(a.file, 16)
    other = File("h2", ulp.DEV2)
    sleepers = [in_background(wait_for_one, a.file, cq) for cq in (a.cq, a.cq, second)]
    poster = in_background(
        lambda: a.file.submit([a.write(b, 8, flags=0)], cq=second.handle, min_complete=1, timeout_ns=LONG)
    )
    poller = in_background(events, a.file, 600000)
    counter = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    a.file.call("CQ_EVENTFD", cq=second.handle, fd=counter)
    bystander = in_background(events, other, 600000)
    blocked([*sleepers, poster, poller, bystander])
    remove(r, ulp.DEV1)
    for i, sleeper in enumerate(sleepers):
        r.equal(f"blocked waiter {i} gets ENODEV", ended(sleeper), "ENODEV")
    got = ended(poster)
    r.equal(
        "a SUBMIT that has posted succeeds, and says what ended its wait",
        (getattr(got, "posted", got), getattr(got, "wait_error", got)),
        (1, -errno.ENODEV),
    )
    got = ended(poller)
    r.check("a blocked poll returns POLLHUP", isinstance(got, list) and got and got[0][1] & select.POLLHUP, got)
    r.equal("who polls a file of the other device sleeps on", bystander.result, "not ended")
    husk(r, "file with waiters", a)
    r.check("an eventfd is told", os.eventfd_read(counter), "it is not")


def test_suspend(r):
    """The machine suspends and resumes while a connection carries data and a thread waits.

    /sys/power/pm_test ends a suspend at a level and resumes: when the devices have suspended, and when one CPU is left
    where the machine has such a state.
    """
    if not os.path.exists("/sys/power/pm_test"):
        raise ulp.Missing(0, "the kernel has no test of suspending")
    with open("/sys/module/suspend/parameters/pm_test_delay", "w") as f:
        f.write("1")
    a, b = pair()
    waited = Cq(a.file, 16)
    qp = Qp(a.file, a.pd, waited)
    qp.connect(qp.num, a.file.gid().gid, 0, 0)
    goes_on, statuses = [True], []

    def stream():
        while goes_on:
            a.file.submit([a.write(b, 64)])
            got = []
            ulp.until(lambda: got.extend(a.cq.reap()) or got)
            statuses.append([c.status for c in got])

    writer = in_background(stream)
    with open("/sys/power/mem_sleep") as f:
        deep = "deep" in f.read()
    # Suspend to idle, all that QEMU's arm64 has, does not go to one CPU (kernel/power/suspend.c:enter_state).
    for state, level in (("freeze", "devices"), ("mem", "core") if deep else ("freeze", "platform")):
        name = f"{state}, up to {level}"
        waiter = in_background(wait_for_one, a.file, waited)
        blocked([waiter])
        before = len(statuses)
        ulp.until(lambda before=before: len(statuses) > before)
        words = f"echo {level} >/sys/power/pm_test; echo {state} >/sys/power/state; s=$?; echo none >/sys/power/pm_test"
        r.equal(f"{name}: the machine suspends and resumes", ulp.shell(f"{words}; exit $s"), (0, ""))
        r.equal(f"{name}: the wait ends as by a signal", ended(waiter), "EINTR")
        after = len(statuses)
        r.check(f"{name}: the connection carries data again", ulp.until(lambda after=after: len(statuses) > after + 3))
        again = in_background(wait_for_one, a.file, waited)
        blocked([again])
        a.file.submit([qp.wr("RDMA_WRITE", a.buffer, 0, 8, **remote(a.grant))])
        r.equal(f"{name}: a thread that waits again has its completion", ended(again), None)
        r.equal("... which is a success", [c.status for c in waited.reap()], [0])
    goes_on.clear()
    r.equal("no write has failed", (ended(writer), {tuple(s) for s in statuses}), (None, {(0,)}))
    a.file.close()
    b.file.close()


def test_destroy(r):
    """DESTROY of a completion queue ends the waits for it, whoever delivers its completions."""
    f = File("h1", ulp.DEV1)
    for name in ("WORKQUEUE", "SOFTIRQ"):
        cq = Cq(f, 16, N["DELIVER_" + name])
        waits = [in_background(wait_for_one, f, cq) for _ in range(2)]
        blocked(waits)
        counter = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        f.call("CQ_EVENTFD", cq=cq.handle, fd=counter)
        f.destroy(cq.handle)
        got = [ended(t) for t in waits]
        r.equal(f"{name}: waits end with ENOENT", got, ["ENOENT"] * 2)
        r.equal(f"{name}: an eventfd is not signalled", error_of(os.eventfd_read, counter), "EAGAIN")
        r.equal(f"{name}: the handle is gone", error_of(f.submit, cq=cq.handle), "ENOENT")
        if "not ended" in got:
            return  # The device's removal would wait for them.
    remove(r, ulp.DEV1)


def test_ended(r):
    """DESTROY of a queue pair ends it, whichever other calls have it."""

    def resolves(name, file, qp, **more):
        """Destroys the queue pair, and then these objects, while another thread has it look for an address. Returns
        the results, and that thread, or None when it had failed before: the kernel looks for a second (addr.c)."""
        nobody = ulp.S["ah_attr"](sgid_index=file.gid_index, port_num=file.port, is_global=1, hop_limit=64)
        ctypes.memmove(nobody.dgid, bytes(10) + b"\xff\xff" + bytes([10, 9, 0, 77]), 16)
        resolving = in_background(lambda: qp.modify("AV", ah=nobody))
        has_begun = ulp.until(lambda: ulp.resolves(resolving) or resolving.result != "not ended")
        got = {what: error_of(file.destroy, handle) for what, handle in {"queue pair": qp.handle, **more}.items()}
        if resolving.result != "not ended":
            return got, None
        r.check(name, has_begun, "it does not sleep there")
        return got, resolving

    for _ in range(10):
        a, b = pair(connect={"retry_cnt": 1, "timeout": 16})
        objects = {"grant": a.grant.handle, "completion queue": a.cq.handle, "buffer": a.buffer.handle, "domain": a.pd}
        got, resolving = resolves("QP_MODIFY resolves an address", a.file, a.qp, **objects)
        if resolving:
            break
        a.close()
        b.close()
    r.check("it still does when DESTROY has returned", resolving)
    r.equal("and so has DESTROY of what it has used", got, dict.fromkeys(got, "none"))
    ended(resolving)
    a.file.close()

    # The same once more: what does the peer see?
    for _ in range(10):
        a, b = pair(connect={"retry_cnt": 1, "timeout": 16})
        _, resolving = resolves("QP_MODIFY resolves it again", a.file, a.qp)
        if resolving:
            break
        a.close()
        b.close()
    b.buffer.map[:8] = b"too late"
    b.file.submit([b.write(a, 8)])
    r.equal("a write of the peer fails after DESTROY", [c.status for c in b.cq.wait(1)], [12])
    r.equal("and its bytes are nowhere", a.buffer.map[:8], bytes(8))
    r.check("QP_MODIFY fails", ended(resolving) in ("EHOSTUNREACH", "ETIMEDOUT", "ENOENT"), resolving.result)

    # With a shared receive queue, which uses the completion queue as well.
    for _ in range(10):
        f = File("h1", ulp.DEV1)
        pd = f.pd()
        cq = Cq(f, 256)
        srq = ulp.Srq(f, pd, cq)
        qp = Qp(f, pd, cq, srq=srq.handle)
        qp.connect(qp.num, f.gid().gid, 0, 0)
        objects = {"SRQ": srq.handle, "completion queue": cq.handle, "domain": pd}
        got, resolving = resolves("QP_MODIFY resolves for the user of an SRQ", f, qp, **objects)
        if resolving:
            break
        f.close()
    r.equal("DESTROY of what it uses succeeds before that", (bool(resolving), got), (True, dict.fromkeys(got, "none")))
    ended(resolving)
    f.close()

    def post(end, qp):
        """Posts until that fails, and returns the error."""
        write = qp.wr("RDMA_WRITE", end.buffer, 0, 8, **remote(end.grant))
        while (error := error_of(end.file.submit, [write] * 8)) in ("none", "EAGAIN"):
            pass
        return error

    # Threads that post to a queue pair while it ends.
    end, seen = End("h1", ulp.DEV1), []
    for _ in range(4 * ROUNDS):
        cq = Cq(end.file, 1024)
        qp = Qp(end.file, end.pd, cq)
        qp.connect(qp.num, end.file.gid().gid, 0, 0)
        posting = [in_background(post, end, qp) for _ in range(2)]
        cq.wait(1)
        calls = [error_of(end.file.destroy, o.handle) for o in (qp, cq)]
        seen.append((calls, sorted(set(map(ended, posting)) - {"ENOENT", "ENOTCONN"})))
    r.equal("a post fails when its queue pair has ended, and its queue goes", seen, [(["none"] * 2, [])] * len(seen))

    def cancel(end, depth):
        """CANCEL of all receives of a full queue; whether it has told the first ones."""
        for _ in range(0, depth, 1024):
            end.file.submit([end.qp.wr("RECV", end.buffer, 0, 8)] * 1024)
        tail = end.cq.ring.tail
        call = functools.partial(end.file.call, "CANCEL", queue=end.qp.handle, flags=N["CANCEL_ALL"])
        return call, lambda: end.cq.ring.tail != tail

    def destroy(end, depth):
        """DESTROY of a buffer, which takes from all queue pairs the memory of ended requests; whether it has begun."""
        idle = Qp(end.file, end.pd, Cq(end.file, depth), depth)
        idle.modify("STATE PKEY_INDEX PORT ACCESS_FLAGS", qp_state=N["QPS_INIT"], port_num=end.file.port)
        request = {"pd": end.pd, "node": N["NODE_ANY"], "length": 4 * SIZE, "page_size": ulp.SMALL}
        first, *others = (end.file.call("BUFFER_CREATE", **request) for _ in range(depth))
        end.file.submit([idle.wr("RECV", buffer, 0, 8) for buffer in (first, *others)])
        for buffer in others:
            end.file.destroy(buffer.handle)
        idle.modify("STATE", qp_state=N["QPS_ERR"])
        idle.cq.wait(depth)
        is_gone = functools.partial(error_of, end.file.call, "BUFFER_QUERY", buffer=first.handle)
        return functools.partial(end.file.destroy, first.handle), lambda: is_gone() == "ENOENT"

    # Calls that have the queue pair for long while its peer writes.
    for name, begin, depth in (("CANCEL", cancel, 4096), ("DESTROY of a buffer", destroy, 64 if ulp.DEBUG else 512)):
        # A busy machine may stop this thread until the call, or the peer, has done its work.
        for _ in range(5):
            a, b = pair(length=SIZE, depth=max(depth, 512), entries=8192, connect={"retry_cnt": 1, "timeout": 16})
            b.buffer.map[:] = b"\xff" * SIZE
            call, is_under_way = begin(a, depth)
            b.file.submit([b.write(a, SIZE)] * 512)
            other = in_background(call)
            while other.result == "not ended" and not is_under_way():
                pass
            holds = other.result == "not ended"
            a.file.destroy(a.qp.handle)
            a.buffer.map[:] = bytes(SIZE)
            queue = error_of(a.file.destroy, a.cq.handle)
            failed = any(c.status for c in b.cq.wait(512))
            landed = any(a.buffer.map[:])
            got = ended(other)
            a.close()
            b.close()
            if holds and failed:
                break
        r.equal(f"{name} has the queue pair when DESTROY begins, and the peer writes", (holds, failed), (True, True))
        r.check(f"{name}: it ends", not isinstance(got, str), got)
        r.equal(f"{name}: the completion queue can be destroyed after the queue pair", queue, "none")
        r.check(f"{name}: nothing of the peer lands after DESTROY", not landed, "its bytes are there")


def test_drain(r):
    """The end of a queue pair waits for its last completion, not for a tenth of a second, whoever polls."""
    seconds = []
    for name in ("WORKQUEUE", "SOFTIRQ"):
        f = File("h1", ulp.DEV1)
        pd = f.pd()
        cq = Cq(f, 256, N["DELIVER_" + name])
        buffer = Buffer(f, pd, 4096)
        qps = [Qp(f, pd, cq) for _ in range(32)]
        for qp in qps:
            qp.connect(qp.num, f.gid().gid, 0, 0)
        f.submit([qp.wr("RECV", buffer, 0, 8) for qp in qps])
        begin = time.monotonic()
        for qp in qps:
            f.destroy(qp.handle)
        seconds.append(time.monotonic() - begin)
        f.close()
    r.check("where a softirq polls it takes as long as where a worker does", seconds[1] < 40 * seconds[0], seconds)


def test_reset(r):
    """Queue pairs that are reset under traffic are destroyed at once, and so are those that send to them."""
    rounds = ulp.count("ULP_ROUNDS", 60, 20)

    def given_up():
        """What rxe said of queue pairs that it has freed while they are in use, after it had waited in vain."""
        log = subprocess.run("dmesg", capture_output=True, text=True, check=True, timeout=DEADLINE).stdout
        return [line for line in log.splitlines() if "cleanup failed" in line]

    before = given_up()

    def reset_and_destroy(number, order):
        end = End("h1", ulp.DEV1, length=SIZE)
        for done in range(rounds):
            # rxe clears the queues while a packet that comes stays: long queues take long.
            sender, target = Qp(end.file, end.pd, end.cq), Qp(end.file, end.pd, end.cq, depth=4096)
            sender.connect(target.num, end.file.gid().gid, 0, 0)
            target.connect(sender.num, end.file.gid().gid, 0, 0)
            write = sender.wr("RDMA_WRITE", end.buffer, 0, SIZE, **remote(end.grant))
            end.file.submit([write] * 4)
            # Not before it sends, and each time a bit later.
            end.cq.wait(1 + done % 3)
            target.modify("STATE", qp_state=N["QPS_RESET"])
            for qp in {"target": (target, sender), "sender": (sender, target)}[order]:
                end.file.destroy(qp.handle)
            end.cq.reap()
        end.close()
        return f"{number}: {rounds} rounds"

    for order in ("target", "sender"):
        threads = [in_background(reset_and_destroy, number, order) for number in range(3)]
        got = [ended(t) for t in threads]
        r.equal(f"the {order} first: every DESTROY returns", got, [f"{n}: {rounds} rounds" for n in range(3)])
        new = [line for line in given_up() if line not in before]
        r.equal(f"the {order} first: and the driver frees nothing that is in use", new, [])


def test_attach(r):
    """Threads that attach one file at the same time: one succeeds, and the file hears of its device."""
    attached, files = [], [File("h1") for _ in range(12 * ROUNDS)]
    for file in files:
        barrier = threading.Barrier(4)

        def attach(file=file, barrier=barrier):
            barrier.wait()
            file.attach("")
            return "attached"

        threads = [in_background(attach) for _ in range(4)]
        attached.append(sorted(ended(t) for t in threads))
    r.equal("one attaches, the others are told", set(map(tuple, attached)), {("EALREADY",) * 3 + ("attached",)})
    subprocess.run(f"rdma dev set {ulp.DEV1} name renamed".split(), check=True, timeout=DEADLINE)
    subprocess.run(f"rdma dev set renamed name {ulp.DEV1}".split(), check=True, timeout=DEADLINE)
    heard = [sum(e[0] == N["EVENT_DEVICE_RENAMED"] for e in file.events()) for file in files]
    r.equal("every file hears each event once", {n: heard.count(n) for n in heard}, {2: len(files)})
    for file in files:
        file.close()


def test_flight(r):
    a, b = pair(length=SIZE, depth=128)
    wrs = [a.write(b, SIZE, user_data=i) for i in range(100)]
    r.equal("100 writes are posted", a.file.submit(wrs).posted, 100)
    remove(r, ulp.DEV1)
    got = a.cq.reap()
    r.equal("each of them completes, once and in order", [c.user_data for c in got], list(range(100)))
    statuses = [c.status for c in got]
    good = statuses.count(0)
    r.equal("the first ones succeed, the rest is flushed", statuses, [0] * good + [5] * (100 - good))
    husk(r, "file with requests in flight", a)


def test_peer(r):
    """The device of the other end: here the requests fail one by one, and the file lives."""
    a, b = pair(length=SIZE, depth=128, connect=FINITE)
    a.file.submit([a.write(b, SIZE, user_data=i) for i in range(100)])
    remove(r, ulp.DEV2)
    got = a.cq.wait(100)
    r.equal("each of 100 requests completes once, in order", [c.user_data for c in got], list(range(100)))
    states = [c.status for c in got]
    good = states.index(next((s for s in states if s), 0)) if any(states) else 100
    r.equal(
        "success, then one error, then flushes", states, [0] * good + ([12] + [5] * (99 - good) if good < 100 else [])
    )
    r.equal(
        "the queue pair is in error, its file alive",
        a.file.call("QP_QUERY", qp=a.qp.handle).attr.qp_state,
        N["QPS_ERR"] if good < 100 else N["QPS_RTS"],
    )
    r.check("the file of the living device does not hang up", not hung_up(a.file), "POLLHUP")
    husk(r, "the peer's file", b)


def test_load(r):
    """Removal against threads that post, wait, make and destroy without a pause."""

    def post(end, peer, until_failure):
        while True:
            try:
                end.file.submit([end.write(peer, SIZE) for _ in range(16)])
            except BlockingIOError:
                # Never more than 16 of 128 are under way.
                with open(f"/proc/self/fdinfo/{end.file.fd}") as f:
                    print("# full?", *f.read().splitlines(), sep="\n# ", flush=True)
                raise
            if any(c.status for c in end.cq.wait(16)) and until_failure:
                return "failed"

    def churn(file):
        while True:
            pd = file.pd()
            buffer = file.call("BUFFER_CREATE", pd=pd, node=N["NODE_ANY"], length=8192).handle
            cq = file.call("CQ_CREATE", entries=4).handle
            for handle in (cq, buffer, pd):
                file.destroy(handle)

    def knock(host_name):
        while True:
            file = File(host_name)
            try:
                file.attach(ulp.DEV1)
                file.pd()
            finally:
                file.close()

    for i in range(max(2, ROUNDS // 10)):
        a, b = pair(connect=FINITE)
        workers = [
            in_background(post, a, b, False),
            in_background(post, b, a, True),
            in_background(churn, a.file),
            in_background(churn, File("h1", ulp.DEV1)),
            in_background(knock, "h1"),
        ]
        time.sleep(0.2 + 0.05 * i)
        running = [w.result for w in workers]
        remove(r, ulp.DEV1)
        got = [ended(w) for w in (workers[0], workers[2], workers[3])]
        r.equal(
            f"round {i}: every worker on the removed device ends with ENODEV",
            (running, got),
            (["not ended"] * 5, ["ENODEV"] * 3),
        )
        r.check(
            f"round {i}: who keeps opening gets ENOENT or ENODEV",
            ended(workers[4]) in ("ENOENT", "ENODEV"),
            workers[4].result,
        )
        r.equal(f"round {i}: the peer's writes fail", ended(workers[1]), "failed")
        for file in (a.file, b.file):
            file.close()
        r.equal(f"round {i}: {ulp.DEV1} comes back", ulp.plug(), (0, ""))
        ulp.until(lambda: error_of(ulp.gid_of, ulp.DEV1) == "none")


def test_netdev(r):
    """The netdev under the device goes, and the device with it."""
    a, _ = pair()
    sleeper = in_background(wait_for_one, a.file, a.cq)
    blocked([sleeper])
    failed, why = ulp.shell("ip -n h1 link del w1")
    if failed and ulp.HCA and "not supported" in why:
        raise ulp.Missing(0, "the netdev is the adapter's, and goes with it")
    r.equal("the netdev is deleted", (failed, why), (0, ""))
    r.equal("a waiter gets ENODEV when the netdev is deleted", ended(sleeper), "ENODEV")
    husk(r, "file whose netdev is gone", a)


def test_mapping(r):
    """Mappings hold the module, forks do not get them, and pages outlive the close."""

    def refs():
        with open("/proc/modules") as f:
            return next(int(line.split()[2]) for line in f if line.startswith("rust_ulp "))

    a, b = pair()
    for end, seed in ((a, 1), (b, 2)):
        end.buffer.map[:] = ulp.pattern(seed, SIZE)
    child = os.fork()
    if child == 0:
        ctypes.string_at(ctypes.addressof(ctypes.c_char.from_buffer(a.buffer.map)), 1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    r.equal("a forked child does not have the mapping", status & 0x7F, signal.SIGSEGV)
    r.equal("two open files are two references", refs(), 2)
    a.file.submit([a.write(b, SIZE, user_data=i) for i in range(20)])
    a.file.close()
    b.file.close()
    r.check("a mapping alone keeps the module", refs() > 0, f"{refs()} references")
    r.equal("removing the module with nothing but a mapping", ulp.delete_module(), "EAGAIN")  # delete_module(2)
    r.equal("what stays mapped after close is readable", a.buffer.map[:] == ulp.pattern(1, SIZE), True)
    for end in (a, b):
        end.buffer.map.close()
        del end.cq.ring, end.cq.slots
        end.cq.map.close()
    r.equal("no reference after the last munmap", refs(), 0)


def test_kill(r):
    """kill -9 of both ends in the middle of a transfer."""

    def body(host_name, device, wire, up):
        end = End(host_name, device, length=SIZE, depth=64)
        mine = [end.qp.num, end.psn, bytes(end.file.gid().gid).hex(), end.grant.addr, end.grant.rkey]
        wire.sendall(json.dumps(mine).encode().ljust(256))
        qpn, psn, gid, addr, rkey = json.loads(wire.recv(256, socket.MSG_WAITALL))
        end.qp.connect(qpn, bytes.fromhex(gid), psn, end.psn)
        wire.sendall(b"x")  # nobody sends before both are up
        wire.recv(1)
        wrs = [end.qp.wr("RDMA_WRITE", end.buffer, 0, SIZE, remote_addr=addr, rkey=rkey) for _ in range(32)]
        end.file.submit(wrs)
        os.write(up, b"x")
        while True:
            end.cq.wait(16)
            end.file.submit(wrs[:16])

    seed = int(os.environ.get("ULP_SEED", "1"))
    rng = random.Random(seed)
    for i in range(ROUNDS):
        wires, (ready, up) = socket.socketpair(), os.pipe()
        children = []
        for n in (0, 1):
            pid = os.fork()
            if pid == 0:
                try:
                    wires[1 - n].close()
                    body(f"h{n + 1}", (ulp.DEV1, ulp.DEV2)[n], wires[n], up)
                except BaseException as e:
                    print(f"# end {n + 1} of round {i}: {e!r}", flush=True)
                os._exit(1)
            children.append(pid)
        os.close(up)
        for wire in wires:
            wire.close()
        running = 0
        while running < 2 and select.select([ready], [], [], DEADLINE)[0] and os.read(ready, 1):
            running += 1
        os.close(ready)
        objects = left_over()
        time.sleep(rng.uniform(0, 0.05))
        rng.shuffle(children)
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        ends = [os.waitpid(pid, 0)[1] for pid in children]
        ulp.until(lambda: not left_over())
        left = left_over()
        if (running, ends, left) != (2, [9, 9], {}) or objects.get("qp", 0) < 2:
            r.check(
                f"kill -9 of both ends, round {i}",
                False,
                f"{running} of 2 were running with {objects}, ended with {ends}, left {left} (ULP_SEED={seed})",
            )
            return
    r.check(f"kill -9 of both ends in mid-transfer, {ROUNDS} times, leaves nothing", True)


if __name__ == "__main__":
    ulp.main(__doc__, globals())
