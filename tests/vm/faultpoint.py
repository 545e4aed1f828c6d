# SPDX-License-Identifier: GPL-2.0
"""What the kernel fails on demand, and what shows that nothing is left of it.

`Faults` arms the n-th allocation, copy or verbs call of the calling thread by /proc/thread-self/fail-nth
(lib/fault-inject.c); `Netlink` asks the RDMA core what there is, makes and deletes devices, all without a process
that would have allocations of its own.
"""

import contextlib
import ctypes
import errno
import fnmatch
import gc
import glob
import os
import socket
import struct
import sys

DEBUGFS = "/sys/kernel/debug"
# Who fails what, and what a command may say when that happens. Our own points stand before each call of a verb.
KINDS = {
    # ENFILE is what the kernel says when it has no memory for a socket: rxe has one for each queue pair.
    "slab": ("failslab", {"ENOMEM", "ENFILE"}),
    "page": ("fail_page_alloc", {"ENOMEM", "ENFILE"}),
    "copy": ("fail_usercopy", {"EFAULT"}),
    "verb": ("fail_rust_ulp", {"EIO"}),
    # The n-th and the one after it: what fails while a failure is undone.
    "twin": ("fail_rust_ulp", {"EIO"}),
}
OTHERS = ("fail_futex",)
# Keeps the interpreter's lock over its calls: another thread that wants it makes no system call come between.
libc = ctypes.PyDLL(None, use_errno=True)
sys.setswitchinterval(1000)


def put(path, value):
    with open(path, "w") as f:
        f.write(str(value))


def symbols():
    """Address and name of what the kernel has, in order."""
    with open("/proc/kallsyms") as f:
        return sorted((int(a, 16), n) for a, k, n, *_ in (line.split() for line in f) if k in "tT")


def range_of(name):
    """The addresses of the function that has this name, or whose mangled name matches this pattern."""
    table = symbols()
    at = next(i for i, (_, n) in enumerate(table) if fnmatch.fnmatchcase(n, name))
    return table[at][0], next(a for a, _ in table[at:] if a > table[at][0])


def workers():
    """What arms a fault in each of the kernel's worker threads, opened."""
    for comm in glob.glob("/proc/[0-9]*/comm"):
        with contextlib.suppress(OSError), open(comm) as f:
            if f.read().startswith("kworker/"):
                yield os.open(comm.replace("/comm", "/fail-nth"), os.O_RDWR)


class Faults:
    """The faults of one kind, of the thread that made this."""

    def __init__(self):
        self.fd = os.open("/proc/thread-self/fail-nth", os.O_RDWR)
        self.buffer = ctypes.create_string_buffer(16)
        self.kind = None
        for name, settings in {
            "failslab": ("ignore-gfp-wait", "cache-filter"),
            "fail_page_alloc": ("ignore-gfp-wait", "ignore-gfp-highmem"),
        }.items():
            for setting in settings:
                put(f"{DEBUGFS}/{name}/{setting}", "N")
        put(f"{DEBUGFS}/fail_page_alloc/min-order", 0)
        for name in [name for name, _ in KINDS.values()] + list(OTHERS):
            if os.path.isdir(f"{DEBUGFS}/{name}"):
                put(f"{DEBUGFS}/{name}/verbose", 0)

    def choose(self, kind, inside=None):
        """Lets faults of that kind count and no other, `inside` that range of addresses when there is one.

        It lasts: nothing comes that is not armed.

        A fault whose stack does not fit does not count. With a depth of 0 nothing is looked at: then what stands
        in require-start is all that decides.
        """
        self.kind = kind
        start, end = inside or (0, (1 << 64) - 1)
        for name in [name for name, _ in KINDS.values()] + list(OTHERS):
            if os.path.isdir(f"{DEBUGFS}/{name}"):
                chosen = kind is not None and name == KINDS[kind][0]
                put(f"{DEBUGFS}/{name}/stacktrace-depth", 32 if chosen else 0)
                put(f"{DEBUGFS}/{name}/require-start", f"{start if chosen else 1:#x}")
                put(f"{DEBUGFS}/{name}/require-end", f"{end if chosen else 2:#x}")

    def call(self, n, function, *args):
        """Calls a function of the C library with the n-th fault armed: result, errno, whether the fault came.

        Nothing of Python's own comes between: the arguments are ready.
        """
        if self.kind == "twin":
            return self.call_twice(n, function, *args)
        text = b"%d" % n
        write, read, fd, buffer, length = libc.write, libc.pread, self.fd, self.buffer, len(text)
        get, enabled = ctypes.get_errno, gc.isenabled()
        gc.disable()
        ctypes.set_errno(0)
        write(fd, text, length)
        result = function(*args)
        err = get()
        got = read(fd, buffer, 15, 0)
        # The copy of what is left may be the one that fails.
        came = got > 0 and int(buffer.raw[:got]) == 0
        while write(fd, b"0", 1) != 1:
            pass
        if enabled:
            gc.enable()
        return result, err, came

    def call_aside(self, n, function, *args):
        """The same with the n-th of any worker of the kernel, instead of one of this thread."""
        if self.kind == "verb":
            return self.call_counted(n, 1, "N", function, *args)
        armed = list(workers())
        for fd in armed:
            os.write(fd, b"%d" % n)
        ctypes.set_errno(0)
        result = function(*args)
        err = ctypes.get_errno()
        came = False
        for fd in armed:
            # A worker may have ended.
            with contextlib.suppress(OSError):
                came |= int(os.pread(fd, 15, 0)) == 0
                os.write(fd, b"0")
            os.close(fd)
        return result, err, came

    def call_twice(self, n, function, *args):
        """The same with the n-th and the next, of this thread."""
        put("/proc/thread-self/make-it-fail", 1)
        got = self.call_counted(n, 2, "Y", function, *args)
        put("/proc/thread-self/make-it-fail", 0)
        return got

    def call_always(self, function, *args):
        """The same with all of this thread, in the range of addresses that was chosen."""
        put("/proc/thread-self/make-it-fail", 1)
        got = self.call_counted(0, 1 << 20, "Y", function, *args)
        put("/proc/thread-self/make-it-fail", 0)
        return got

    def call_counted(self, n, times, marked, function, *args):
        """The n-th and those after it fail, by the attribute's own counters: of all tasks, or of those `marked`."""
        at = f"{DEBUGFS}/{KINDS[self.kind][0]}"
        how = {"task-filter": marked, "space": n, "times": times, "interval": 1, "probability": 100}
        for name, value in how.items():
            put(f"{at}/{name}", value)
        ctypes.set_errno(0)
        result = function(*args)
        err = ctypes.get_errno()
        put(f"{at}/probability", 0)
        with open(f"{at}/times") as f:
            return result, err, int(f.read()) < times


def name_of(err):
    return "EOPNOTSUPP" if err == errno.EOPNOTSUPP else errno.errorcode.get(err, str(err))


class Netlink:
    """NETLINK_RDMA, in the network namespace where it is made."""

    GET, NEWLINK, DELLINK, RES_GET = 1, 3, 4, 9
    INDEX, NAME, SUMMARY, ENTRY, ENTRY_NAME, ENTRY_CURR, NETDEV, LINK_TYPE = 1, 2, 15, 16, 17, 18, 51, 65

    def __init__(self):
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 20)
        self.socket.bind((0, 0))
        self.sequence = 0

    def close(self):
        self.socket.close()

    @staticmethod
    def attribute(kind, value):
        data = value if isinstance(value, bytes) else value.encode() + b"\0"
        return struct.pack("HH", len(data) + 4, kind) + data + bytes(-len(data) % 4)

    def message(self, command, attributes=b"", dump=False):
        self.sequence += 1
        flags = 1 | (0x300 if dump else 4)  # REQUEST, DUMP or ACK
        return struct.pack("IHHII", 16 + len(attributes), 5 << 10 | command, flags, self.sequence, 0) + attributes

    def answers(self):
        while True:
            data = self.socket.recv(1 << 16)
            while data:
                length, kind, _, sequence, _ = struct.unpack_from("IHHII", data)
                body, data = data[16:length], data[(length + 3) & ~3 :]
                if sequence != self.sequence:
                    continue
                if kind == 3:  # DONE
                    return
                if kind == 2:  # ERROR, and 0 for none
                    err = -struct.unpack_from("i", body)[0]
                    if err:
                        raise OSError(err, os.strerror(err))
                    return
                yield body

    @staticmethod
    def attributes(data):
        while len(data) >= 4:
            length, kind = struct.unpack_from("HH", data)
            yield kind & 0x3FFF, data[4:length]
            data = data[(length + 3) & ~3 :]

    def devices(self):
        """Index by name."""
        self.socket.send(self.message(self.GET, dump=True))
        found = [dict(self.attributes(body)) for body in self.answers()]
        return {d[self.NAME].rstrip(b"\0").decode(): struct.unpack("I", d[self.INDEX])[0] for d in found}

    def resources(self):
        """What `rdma resource` counts: {device: {kind: count}}."""
        self.socket.send(self.message(self.RES_GET, dump=True))
        out = {}
        for body in self.answers():
            top = dict(self.attributes(body))
            counts = {}
            for _, entry in self.attributes(top.get(self.SUMMARY, b"")):
                entry = dict(self.attributes(entry))
                name = entry[self.ENTRY_NAME].rstrip(b"\0").decode()
                counts[name] = struct.unpack("Q", entry[self.ENTRY_CURR])[0]
            out[top[self.NAME].rstrip(b"\0").decode()] = counts
        return out

    def add_message(self, name, netdev):
        return self.message(
            self.NEWLINK,
            self.attribute(self.NAME, name)
            + self.attribute(self.LINK_TYPE, "rxe")
            + self.attribute(self.NETDEV, netdev),
        )

    def delete_message(self, name):
        return self.message(self.DELLINK, self.attribute(self.INDEX, struct.pack("I", self.devices()[name])))

    def run(self, message):
        self.socket.send(message)
        for _ in self.answers():
            pass

    def add(self, name, netdev):
        self.run(self.add_message(name, netdev))

    def delete(self, name):
        self.run(self.delete_message(name))
