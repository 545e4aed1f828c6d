# SPDX-License-Identifier: GPL-2.0
"""An io_uring, by its system calls."""

import ctypes
import mmap
import struct
import time

import ulp


class Uring:
    """A ring with entries of 128 bytes and completions of 32, or half of that: io_uring_setup(2).

    With `polled`, a thread of the kernel submits. `extras` are the first further words of all completions.
    """

    def __init__(self, entries=8, small=False, polled=False):
        params = (ctypes.c_uint32 * 30)()
        params[2] = 0 if small else 1 << 10 | 1 << 11  # IORING_SETUP_SQE128, IORING_SETUP_CQE32
        params[2] |= polled << 1  # IORING_SETUP_SQPOLL
        # IORING_ENTER_GETEVENTS, IORING_ENTER_SQ_WAKEUP
        self.how = 1 | polled << 1
        self.extras = []
        self.sqe, self.cqe = (64, 16) if small else (128, 32)
        self.fd = ulp.libc.syscall(425, entries, params)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "io_uring_setup")
        entries, cq_entries = params[0], params[1]
        sq, cq = params[10:20], params[20:30]
        size = max(sq[6] + 4 * entries, cq[5] + self.cqe * cq_entries)
        self.rings = mmap.mmap(self.fd, size, flags=mmap.MAP_SHARED, offset=0, trackfd=False)
        self.sqes = mmap.mmap(self.fd, self.sqe * entries, flags=mmap.MAP_SHARED, offset=0x10000000, trackfd=False)
        self.word = lambda at: ctypes.c_uint32.from_buffer(self.rings, at)
        self.sq_tail, self.sq_mask, self.array = self.word(sq[1]), self.word(sq[2]).value, sq[6]
        self.cq_head, self.cq_tail, self.cq_mask, self.cqes = (
            self.word(cq[0]),
            self.word(cq[1]),
            self.word(cq[2]).value,
            cq[5],
        )

    @property
    def extra(self):
        """That of the last one."""
        return self.extras[-1]

    def prepare(self, fd, op, command, _undo=None, flags=0, cmd_flags=0, number=1):
        """Puts one entry there: IORING_OP_URING_CMD, with these flags of the entry and of the command.

        Its completion has that number.
        """
        at = self.sq_tail.value & self.sq_mask
        sqe = struct.pack("=BBHiQQIIQHHi", 46, flags, 0, fd, op, 0, 0, cmd_flags, number, 0, 0, 0) + command
        self.sqes[at * self.sqe : (at + 1) * self.sqe] = sqe.ljust(self.sqe, b"\0")
        self.word(self.array + 4 * at).value = at
        self.sq_tail.value = (self.sq_tail.value + 1) & 0xFFFFFFFF

    def enter(self, submit, wait):
        """The arguments of syscall(2) to submit, and to wait for as many: io_uring_enter(2)."""
        return (
            ctypes.c_long(426),
            ctypes.c_int(self.fd),
            ctypes.c_uint(submit),
            ctypes.c_uint(wait),
            ctypes.c_uint(self.how),
            None,
            ctypes.c_size_t(0),
        )

    def submit(self, count):
        """Submits entries, and does not wait."""
        return ulp.libc.syscall(*self.enter(count, 0))

    def reap(self):
        """The completions that are there, as (number, res)."""
        out = []
        while self.cq_head.value != self.cq_tail.value:
            at = self.cqes + self.cqe * (self.cq_head.value & self.cq_mask)
            out.append(struct.unpack_from("QiI", self.rings, at)[:2])
            if self.cqe == 32:
                self.extras += struct.unpack_from("Q", self.rings, at + 16)
            self.cq_head.value = (self.cq_head.value + 1) & 0xFFFFFFFF
        return out

    def wait(self, count, seconds=20):
        out, end = self.reap(), time.monotonic() + seconds * ulp.PATIENCE
        while len(out) < count:
            if time.monotonic() > end:
                raise TimeoutError(f"{len(out)} of {count} commands complete")
            self.submit(0)
            out += self.reap()
            time.sleep(0.005)
        return out
