#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""What a process can do with its own memory, while the kernel uses it.

    stalled.py copies|ring|killed

Expects the module and two hosts; `rxe1` is gone when `copies` returns. Prints KTAP.
"""

import contextlib
import ctypes
import errno
import mmap
import os
import random
import signal
import struct
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import ulp
from lifetime import DEADLINE, ended, in_background, ours, remove
from ulp import N, PAGE, S, Cq, End, error_of, pair

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

    def stalled(self):
        """Waits until somebody stalls at each of the pages."""
        pages = set()

        def look():
            with contextlib.suppress(BlockingIOError):
                # struct uffd_msg: the address stands at 16.
                while message := os.read(self.fd, 32):
                    pages.add(struct.unpack_from("Q", message, 16)[0] // PAGE)
            return len(pages) * PAGE >= len(self.memory)

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


def stalls(file, end, absent):
    """By name: a call that stalls at its page of `absent`, and what that page will have in it."""
    write = end.qp.wr("RDMA_WRITE", end.buffer, 0, 8, remote_addr=end.grant.addr, rkey=end.grant.rkey)
    lists = end.qp.wr("RDMA_WRITE", remote_addr=end.grant.addr, rkey=end.grant.rkey, num_sge=2)
    lists.sge = S["sge"](offset=absent.page(2))
    inline = end.qp.wr("RDMA_WRITE", remote_addr=end.grant.addr, rkey=end.grant.rkey, num_sge=1, flags=N["SEND_INLINE"])
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


def test_copies(r):
    """Copies that stall for as long as user space likes hold nobody: not their file, not the device."""
    absent = absent_or_skip(r, 6)
    if absent is None:
        return
    end = End("h1", "rxe1")
    end.qp = inline_qp(end)
    end.connect(end)
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


def inline_qp(end):
    """A queue pair with room for inline data and two elements."""
    got = end.file.call(
        "QP_CREATE",
        pd=end.pd,
        send_cq=end.cq.handle,
        recv_cq=end.cq.handle,
        qp_type=N["QPT_RC"],
        max_send_wr=16,
        max_recv_wr=16,
        max_send_sge=2,
        max_recv_sge=2,
        max_inline=64,
    )
    qp = end.qp
    qp.handle, qp.num = got.handle, got.qp_num
    return qp


def test_killed(r):
    """Who stalls in a copy is killed: all of it goes."""
    if absent_or_skip(r, 1) is None:
        return
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        end = End("h1", "rxe1")
        end.qp = inline_qp(end)
        end.connect(end)
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


if __name__ == "__main__":
    ulp.main(__doc__, globals())
