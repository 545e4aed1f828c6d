#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""What a process can do with its own memory, while the kernel uses it, and by not running.

    stalled.py unscheduled|idle|stopped|parts|uncommitted|written|copies|ring|killed

Expects the module and two hosts; `rxe1` is gone when `written` or `copies` returns. Prints KTAP.
"""

import contextlib
import ctypes
import errno
import mmap
import os
import pathlib
import random
import select
import signal
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import connect
import tracing
import ulp
from lifetime import DEADLINE, LONG, ended, in_background, ours, remove
from ulp import N, PAGE, S, Cq, End, error_of, pair, remote

SYS_USERFAULTFD = 282 if os.uname().machine == "aarch64" else 323
UFFDIO_API, UFFDIO_REGISTER, UFFDIO_COPY = 0xC018AA3F, 0xC020AA00, 0xC028AA03
REGISTER_MODE_MISSING = 1


class Absent:
    """Pages that nobody has touched, and that stay away until they are given."""

    def __init__(self, pages):
        self.memory = mmap.mmap(-1, pages * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.at = ulp.address_of(self.memory)
        self.fd = ulp.libc.syscall(SYS_USERFAULTFD, os.O_CLOEXEC | os.O_NONBLOCK)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "userfaultfd")
        self.ioctl(UFFDIO_API, struct.pack("QQQ", 0xAA, 0, 0))
        self.ioctl(UFFDIO_REGISTER, struct.pack("QQQQ", self.at, pages * PAGE, REGISTER_MODE_MISSING, 0))

    def ioctl(self, command, packed):
        ulp.ioctl(self.fd, command, ctypes.create_string_buffer(packed, len(packed)))

    def stalled(self, count=None):
        """Waits until somebody stalls at `count` of the pages, or at each."""
        pages, count = set(), count or len(self.memory) // PAGE

        def look():
            with contextlib.suppress(BlockingIOError):
                # struct uffd_msg: the address stands at 16.
                while message := os.read(self.fd, 32):
                    pages.add(struct.unpack_from("Q", message, 16)[0] // PAGE)
            return len(pages) >= count

        return ulp.until(look)

    def page(self, number):
        return self.at + number * PAGE

    def give(self, number, content=b""):
        """The page is there, with that in it: who waits for it goes on."""
        source = ctypes.create_string_buffer(content.ljust(2 * PAGE, b"\0"), 2 * PAGE)
        aligned = ctypes.addressof(source) + PAGE - 1 & ~(PAGE - 1)
        ctypes.memmove(aligned, content.ljust(PAGE, b"\0"), PAGE)
        self.ioctl(UFFDIO_COPY, struct.pack("QQQQq", self.page(number), aligned, PAGE, 0, 0))


def absent_or_skip(r, pages):
    """Such pages; None, and a line, on a kernel without them."""
    try:
        return Absent(pages)
    except OSError as e:
        if e.errno != errno.ENOSYS:
            raise
        r.skip("copies that stall", "no userfaultfd in this kernel")
        return None


def inline_end():
    """An end with room for inline data and two elements, connected to itself."""
    end = End("h1", "rxe1", depth=16, max_send_sge=2, max_recv_sge=2, max_inline=64)
    end.connect(end)
    return end


def stalls(file, end, absent):
    """By name: a call that stalls at its page of `absent`, and what that page will have in it."""
    write = end.write(end, 8)
    lists = end.qp.wr("RDMA_WRITE", **remote(end.grant), num_sge=2)
    lists.sge = S["sge"](offset=absent.page(2))
    inline = end.qp.wr("RDMA_WRITE", **remote(end.grant), num_sge=1, flags=N["SEND_INLINE"])
    inline.sge = S["sge"](offset=absent.page(3), length=8)
    one = bytes(S["sge"](buffer=end.buffer.handle, length=8))
    size = ctypes.sizeof(S["wr"])
    return {
        "the struct of a command": (
            lambda: ulp.ioctl(file.fd, N["IOC_PD_CREATE"], ctypes.c_void_p(absent.page(0))),
            bytes(S["pd_create"](size=ctypes.sizeof(S["pd_create"]))),
        ),
        "requests": (lambda: file.call("SUBMIT", wrs=absent.page(1), nr_wrs=1, wr_size=size), bytes(write)),
        "the elements of a request": (lambda: file.submit([lists]), one * 2),
        "inline data": (lambda: file.submit([inline]), b"8 bytes!"),
        "entries that are written": (
            lambda: file.call(
                "GID_QUERY", entries=absent.page(4), capacity=4, port=1, entry_size=ctypes.sizeof(S["gid_entry"])
            ),
            b"",
        ),
        "memory that is registered": (
            lambda: file.call("BUFFER_REGISTER", pd=end.pd, addr=absent.page(5), length=PAGE),
            b"",
        ),
    }


def test_parts(r):
    """A queue that goes between two parts of a list ends the wait for it, and refuses no request."""
    absent = absent_or_skip(r, 3)
    if absent is None:
        return
    a, b = pair()
    other = Cq(a.file, 16)
    # The module copies 64 requests at a time: the last one alone is on the page that is not there.
    size, count = ctypes.sizeof(S["wr"]), 65
    wrs = [bytes(a.write(b, 8, user_data=n, flags=N["SEND_SIGNALED"])) for n in range(count)]
    at = absent.page(2) - 64 * size
    before = b"".join(wrs[:64]).rjust(2 * PAGE, b"\0")
    absent.give(0, before[:PAGE])
    absent.give(1, before[PAGE:])
    call = {"wrs": at, "nr_wrs": count, "wr_size": size, "cq": other.handle, "min_complete": 1, "timeout_ns": LONG}
    sleeper = in_background(lambda: a.file.call("SUBMIT", **call))
    r.check("parts: a list stalls behind its first 64 requests", absent.stalled(1), sleeper.result)
    r.equal("these complete", [(c.user_data, c.status) for c in a.cq.wait(64)], [(n, 0) for n in range(64)])
    r.equal("the queue that it is to wait for is destroyed", error_of(a.file.destroy, other.handle), "none")
    absent.give(2, wrs[64])
    got = ended(sleeper)
    r.equal(
        "parts: all are posted, and the wait fails",
        (got.posted, got.stop_error, got.completed, got.wait_error),
        (count, 0, 0, -errno.ENOENT),
    )
    r.equal("the last one completes", [(c.user_data, c.status) for c in a.cq.wait(1)], [(64, 0)])


def test_copies(r):
    """Copies that stall for as long as user space likes hold nobody: not their file, not the device."""
    absent = absent_or_skip(r, 6)
    if absent is None:
        return
    end = inline_end()
    calls = stalls(end.file, end, absent)
    sleepers = {name: in_background(call) for name, (call, _) in calls.items()}
    r.check("every one of them stalls", absent.stalled(), {n: s.result for n, s in sleepers.items()})
    r.equal(
        "others make and destroy objects of the same file meanwhile",
        [ended(in_background(f)) for f in (end.file.pd, lambda: end.file.destroy(end.file.pd()))][1:],
        [None],
    )
    remove(r, "rxe1")
    r.equal("they still stall", {n: s.result for n, s in sleepers.items()}, dict.fromkeys(sleepers, "not ended"))
    r.equal(
        "and yet nothing is left of the device's objects",
        [o for kind in ("qp", "cq", "pd", "mr") for o in ours(kind)],
        [],
    )
    for number, (_, content) in enumerate(calls.values()):
        absent.give(number, content)
    got = {name: ended(s) for name, s in sleepers.items()}
    entries = got.pop("entries that are written")
    r.equal("then they find that the device is gone", got, dict.fromkeys(got, "ENODEV"))
    r.check("what was asked before that is answered", entries == "ENODEV" or getattr(entries, "count", 0) > 0, entries)
    end.close()


def test_uncommitted(r):
    """A request that was taken, whose handle has not been written yet: nobody can use or destroy it by a guess."""
    absent = absent_or_skip(r, 1)
    if absent is None:
        return
    a, b = End("h1", "rxe1"), End("h2", "rxe2")
    listener = connect.listen(a.file)
    size = ctypes.sizeof(S["get_request"])
    asked = bytes(S["get_request"](size=size, listener=listener.handle, timeout_ns=LONG))
    absent.give(0, asked)
    waiter = in_background(lambda: ulp.ioctl(a.file.fd, N["IOC_GET_REQUEST"], ctypes.c_void_p(absent.page(0))))
    r.check("GET_REQUEST waits", ulp.until(lambda: ulp.sleeps_in_module(waiter)), waiter.result)
    # Its struct goes away.
    absent.memory.madvise(mmap.MADV_DONTNEED)
    before = a.file.pd()
    attempt = connect.start(b, "10.9.0.1", listener.addr.port)
    r.check("... and stalls when it has one", absent.stalled(), waiter.result)
    after = a.file.pd()
    index = before & 0xFFFF
    r.equal("a table gives its indices in turns", after & 0xFFFF, index + 2)
    guess = 9 << 27 | before & 0x7FF0000 | index + 1
    said = [error_of(a.file.call, "CONN_QUERY", conn=guess), error_of(a.file.destroy, guess)]
    r.equal("CONN_QUERY and DESTROY by its handle", said, ["ENOENT"] * 2)
    absent.give(0, asked)
    r.equal("the struct comes back", ended(waiter), None)
    got = S["get_request"].from_buffer_copy(absent.memory[:size])
    r.equal("... with that handle", hex(got.handle), hex(guess))
    r.equal("which is destroyed", error_of(a.file.destroy, guess), "none")
    r.equal("the attempt fails", connect.wait(b.file, attempt.handle)[0], errno.ECONNREFUSED)
    a.close()
    b.close()


def test_written(r):
    """A device can be removed while the kernel waits to write a new handle back to its caller."""
    absent = absent_or_skip(r, 2)
    if absent is None:
        return
    end = End("h1", "rxe1")
    size = ctypes.sizeof(S["buffer_register"])
    asked = bytes(S["buffer_register"](size=size, pd=end.pd, addr=absent.page(1), length=PAGE))
    absent.give(0, asked)
    waiter = in_background(lambda: ulp.ioctl(end.file.fd, N["IOC_BUFFER_REGISTER"], ctypes.c_void_p(absent.page(0))))
    r.check("BUFFER_REGISTER stalls at its memory", absent.stalled(1), waiter.result)
    absent.memory.madvise(mmap.MADV_DONTNEED, 0, PAGE)
    absent.give(1)
    r.check("... then at its struct, which is gone", absent.stalled(1), waiter.result)
    r.equal("the device is removed while the command stalls", ended(in_background(ulp.unplug, "rxe1")), (0, ""))
    r.equal("it still stalls", waiter.result, "not ended")
    absent.give(0, asked)
    r.equal("then it finds that the device is gone", ended(waiter), "ENODEV")
    end.close()


def test_killed(r):
    """Who stalls in a copy is killed: all of it goes."""
    if absent_or_skip(r, 1) is None:
        return
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        end = inline_end()
        absent = Absent(6)
        for call, _ in stalls(end.file, end, absent).values():
            in_background(call)
        os.write(writing, b"y" if absent.stalled() else b"n")
        time.sleep(3600)
    r.equal("all its calls stall", os.read(reading, 1), b"y")
    r.check("it has objects", ours("qp"), "none")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    r.check("and none of them is left", ulp.until(lambda: not any(ours(kind) for kind in ("qp", "cq", "pd", "mr"))))


def test_ring(r):
    """Two processes share a ring, and one of them overwrites all of it without a pause for ULP_RING_SECONDS or more."""
    seed = int(os.environ.get("ULP_SEED", "1"))
    seconds = float(os.environ.get("ULP_RING_SECONDS", "2"))
    a, b = pair(entries=64)
    other = Cq(a.file, 64)
    child = os.fork()
    if child == 0:
        # A fork does not get the mapping, and may make one.
        dice, ring = random.Random(seed), a.file.map(len(a.cq.map), a.cq.offset)
        while True:
            at = dice.choice((0, 64, 68, 72, 76, dice.randrange(len(ring) - 4)))
            ring[at : at + 4] = dice.choice((b"\0" * 4, b"\xff" * 4, dice.randbytes(4)))
    results, posted = {}, 0
    begin = time.monotonic()
    while (took := time.monotonic() - begin) < seconds or (posted <= 3 and took < seconds + DEADLINE):
        got = error_of(a.file.submit, [a.write(b, 64)])
        results[got] = results.get(got, 0) + 1
        posted += got == "none"
        wait = a.file.submit(cq=a.cq.handle, min_complete=1, timeout_ns=10**6)
        results[wait.wait_error] = results.get(wait.wait_error, 0) + 1
        if wait.completed > 64:
            results["more unread than entries"] = wait.completed
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print(f"# {seconds:.0f} s with seed {seed}: {posted} posted, {results}")
    r.check(
        "requests are posted, or the queue is full, and waits end",
        set(results) <= {"none", "EAGAIN", 0, -62} and posted > 3,
        results,
    )
    r.equal("another queue of the file is as it was", (other.reap(), other.ring.flags, other.ring.entries), ([], 0, 64))
    r.equal("what it hides is there no more than once", error_of(a.file.destroy, a.qp.handle), "none")
    r.equal("nor does the queue stay", error_of(a.file.destroy, a.cq.handle), "none")
    c, d = pair()
    c.buffer.map[:64] = ulp.pattern(seed, 64)
    c.file.submit([c.write(d, 64)])
    r.equal("and others work", ([w.status for w in c.cq.wait(1)], d.buffer.map[:64]), ([0], ulp.pattern(seed, 64)))


SPIN = """
import os
os.sched_setaffinity(0, {1})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
print(flush=True)
while True:
    pass
"""


@contextlib.contextmanager
def starved():
    """Nothing but a process that spins runs on CPU 1: real-time tasks come before all others."""
    # What the scheduler keeps for the others, if this kernel does that; 0 where it was not set up.
    server = pathlib.Path("/sys/kernel/debug/sched/fair_server/cpu1/runtime")
    before = int(server.read_text()) if server.exists() else 0
    hog = subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE)
    try:
        if before:
            server.write_text("0")
        hog.stdout.readline()
        yield
    finally:
        hog.kill()
        hog.wait()
        if before:
            server.write_text(str(before))


def announced(eventfd):
    """Whether an eventfd becomes readable; takes what it has."""
    return bool(select.select([eventfd], [], [], DEADLINE)[0]) and os.eventfd_read(eventfd) > 0


def handlers(trace):
    """Who handled the completions, in their order: the thread's number, "worker" for a kernel worker."""
    return ["worker" if e["comm"].startswith("kworker") else e["pid"] for e in trace.events("completion")]


def test_unscheduled(r):
    """A thread that waits for completions, and gets no CPU time, holds up nobody on its queue."""
    workers = pathlib.Path("/sys/devices/virtual/workqueue/cpumask")
    mask = workers.read_text()
    a, b = pair()
    eventfd = os.eventfd(0, os.EFD_NONBLOCK)
    a.file.call("CQ_EVENTFD", cq=a.cq.handle, fd=eventfd)

    def wait():
        os.sched_setaffinity(0, {1})
        return a.file.submit(cq=a.cq.handle, min_complete=8, timeout_ns=LONG).wait_error

    waiter = in_background(wait)
    ulp.until(lambda: ulp.sleeps_in_module(waiter))
    os.sched_setaffinity(0, {0})
    workers.write_text("1")
    # The first trace makes its buffers by a work item on each CPU (kernel/trace/ring_buffer.c:ring_buffer_resize).
    with tracing.Trace():
        pass
    try:
        with starved():
            with tracing.Trace() as trace:
                for number in range(5):
                    a.file.submit([a.write(b, 8)])
                    # Not longer: the kernel reports its own tasks that CPU 1 has kept for two minutes.
                    if not announced(eventfd):
                        raise TimeoutError(f"no eventfd announces completion {number}")
            got = a.file.submit([a.write(b, 8)], cq=a.cq.handle, min_complete=6, timeout_ns=ulp.hang_ns())
            a.file.submit([a.write(b, 8)])
            destroyed = error_of(a.file.destroy, a.qp.handle)
            still = waiter.result
    finally:
        workers.write_text(mask)
        os.sched_setaffinity(0, range(os.cpu_count()))
    r.equal("an eventfd announces each completion, which a worker handles", handlers(trace), ["worker"] * 5)
    r.equal(
        "... once in place of a thread that was called", [e["cq"] for e in trace.events("take_over")], [a.cq.handle]
    )
    r.equal("another thread that waits has its completion", (got.wait_error, got.completed), (0, 6))
    r.equal("the queue pair is destroyed", destroyed, "none")
    r.equal("all that while the first one waits", still, "not ended")
    a.file.destroy(a.cq.handle)
    r.equal("it ends with the queue", ended(waiter), -errno.ENOENT)


def test_idle(r):
    """A thread that any other one takes the CPU from leaves the completions to a worker."""
    a, b = pair()
    for what, calm in (
        ("SCHED_IDLE", lambda: os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))),
        ("nice 1", lambda: os.setpriority(os.PRIO_PROCESS, 0, 1)),
    ):

        def wait():
            calm()
            return a.file.submit([a.write(b, 8)], cq=a.cq.handle, min_complete=1, timeout_ns=LONG).wait_error

        with tracing.Trace() as trace:
            waiter = in_background(wait)
            result = ended(waiter)
        r.equal(f"{what}: its completion comes by a worker", (result, handlers(trace)), (0, ["worker"]))
        a.cq.reap()


def test_stopped(r):
    """A process that is stopped while it waits no longer handles the completions of others."""
    a, b = pair()
    eventfd = os.eventfd(0, os.EFD_NONBLOCK)
    a.file.call("CQ_EVENTFD", cq=a.cq.handle, fd=eventfd)
    child = os.fork()
    if child == 0:
        error_of(a.file.submit, cq=a.cq.handle, min_complete=1, timeout_ns=LONG)
        os._exit(0)
    r.check("a child waits", ulp.until(lambda: ulp.task_sleeps_in_module(child)))
    os.kill(child, signal.SIGSTOP)
    os.waitpid(child, os.WUNTRACED)
    with tracing.Trace() as trace:
        a.file.submit([a.write(b, 8)])
        came = announced(eventfd)
    r.equal("stopped: a completion is announced", came, True)
    r.equal("... by a worker at once", (handlers(trace), trace.events("take_over")), (["worker"], []))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


if __name__ == "__main__":
    ulp.main(__doc__, globals())
