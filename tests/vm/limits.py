#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""The limits of a process and of an open file.

    limits.py memlock|held|dropped|softirq|users|namespaces|keys|entries|rdma|memcg|accounted

Expects the module with max_entries=1000 max_objects=64, and two hosts. Prints `ok` and `not ok`
lines.
"""

import ctypes
import mmap
import os
import re
import resource
import subprocess
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tracing
import ulp
from connect import Thread, listen
from ring import Uring
from ulp import N, PAGE, S, SMALL, Buffer, Cq, File, Qp, Srq, UserBuffer, error_of

MEBI = 1 << 20
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


def pinned():
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith("VmPin:"))


def fdinfo(file, key):
    with open(f"/proc/self/fdinfo/{file.fd}") as f:
        return [line.split(":", 1)[1].strip() for line in f if line.startswith(f"rust_ulp-{key}:")]


def test_memlock(r):
    file = File("h1", "")
    pd = file.pd()
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (MEBI, MEBI))
    buffer = Buffer(file, pd, 2 * MEBI, SMALL)
    r.equal(
        "who may lock memory has no limit, and is counted",
        (pinned(), file.call("BUFFER_QUERY", buffer=buffer.handle).charged),
        (2 * MEBI, 2 * MEBI),
    )
    r.check("fdinfo shows it", fdinfo(file, "buffer")[0].endswith(f"charged {2 * MEBI}"), fdinfo(file, "buffer"))
    buffer.map.close()
    file.destroy(buffer.handle)
    r.equal("it is given back", pinned(), 0)

    def create(length, page_size=SMALL):
        return file.call("BUFFER_CREATE", pd=pd, node=N["NODE_ANY"], length=length, page_size=page_size).handle

    # The process has a limit as well, whoever its user is.
    os.setresuid(65533, 65533, 0)
    handles = [create(MEBI // 2)]
    os.setresuid(0, 0, 0)
    os.setresuid(65534, 65534, 0)
    r.equal("a page more than the user before has left", error_of(create, MEBI // 2 + 1), "ENOMEM")
    handles.append(create(MEBI // 2))
    r.equal("as much as the user before has left", pinned(), MEBI)
    for handle in handles:
        file.destroy(handle)
    os.setresuid(0, 0, 0)
    os.setresuid(65534, 65534, 65534)

    own = mmap.mmap(-1, 4 * MEBI, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for _ in range(3):
        r.equal("a page more than the limit", error_of(create, MEBI + 1), "ENOMEM")
        r.equal("... of any size", error_of(create, 4 * MEBI, 0), "ENOMEM")
        r.equal("... in place", error_of(UserBuffer, file, pd, own, 0, MEBI + 1), "ENOMEM")
        r.equal("... by where it begins", error_of(UserBuffer, file, pd, own, 1, MEBI), "ENOMEM")
        r.equal("nothing is counted for it", pinned(), 0)
        half = create(MEBI // 2)
        user = UserBuffer(file, pd, own, PAGE, MEBI // 2)
        r.equal("the limit itself, half of it in place", pinned(), MEBI)
        r.equal("one page more", (error_of(create, 1), error_of(UserBuffer, file, pd, own, 0, 1)), ("ENOMEM", "ENOMEM"))
        file.destroy(user.handle)
        r.equal("as much as was given back", error_of(lambda: file.destroy(create(MEBI // 2))), "none")
        file.destroy(half)
        r.equal("all of it is", pinned(), 0)
    create(MEBI // 2)
    file.close()
    r.equal("nothing is counted for a file that was closed", pinned(), 0)


class Part:
    """A mapping of a buffer of which parts can be unmapped."""

    def __init__(self, file, got):
        self.at = LIBC.mmap(
            None, got.length, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file.fd, got.mmap_offset
        )
        self.length = got.length

    def unmap(self, offset, length):
        if LIBC.munmap(ctypes.c_void_p(self.at + offset), ctypes.c_size_t(length)):
            raise OSError(ctypes.get_errno(), "munmap")

    def keep_last(self):
        """Unmaps all but the last page."""
        self.unmap(0, self.length - PAGE)
        self.at, self.length = self.at + self.length - PAGE, PAGE


def test_held(r):
    """Memory is charged while a mapping holds it, to the user whatever process asked."""
    limit, large = 8 * MEBI, 2 * MEBI
    file, other = File("h1", ""), File("h1", "")
    pd, other_pd = file.pd(), other.pd()
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
    os.setresuid(65534, 65534, 65534)

    def create(file, pd, length, page_size):
        return file.call("BUFFER_CREATE", pd=pd, node=N["NODE_ANY"], length=length, page_size=page_size)

    parts = []

    def hold():
        got = create(file, pd, large, large)
        parts.append(Part(file, got))
        parts[-1].keep_last()
        file.destroy(got.handle)

    for _ in range(2):
        r.equal("a page holds its large page", [error_of(hold) for _ in range(6)], ["none"] * 4 + ["ENOMEM"] * 2)
        r.equal("which is counted", pinned(), limit)
        while parts:
            parts.pop().unmap(0, PAGE)
        r.equal("until it is unmapped", pinned(), 0)

    pid = os.fork()
    if not pid:
        os._exit(0 if error_of(create, other, other_pd, limit, SMALL) == "none" else 1)
    r.equal("a child takes all there is", os.waitpid(pid, 0)[1], 0)
    r.equal("its parent has no more", error_of(create, file, pd, PAGE, SMALL), "ENOMEM")
    other.close()
    r.equal("until that is given back", error_of(create, file, pd, PAGE, SMALL), "none")

    own, uring = mmap.mmap(-1, limit // 2, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), Uring()
    vector = (ctypes.c_uint64 * 2)(ulp.address_of(own), limit // 2)
    r.equal("memory for io_uring", LIBC.syscall(427, uring.fd, 0, vector, 1), 0)  # IORING_REGISTER_BUFFERS
    pid = os.fork()
    if not pid:
        got = [error_of(create, file, pd, length, SMALL) for length in (limit // 2, limit // 4)]
        os._exit(0 if got == ["ENOMEM", "none"] else 1)
    r.equal("... counts against the limit of the user in another process", os.waitpid(pid, 0)[1], 0)


def test_dropped(r):
    """Pages that madvise() takes out of a mapping come back with what is in them."""

    def look():
        file = File("h1", "")
        cq = Cq(file, 16)
        cq.map.madvise(mmap.MADV_DONTNEED)
        part = Part(
            file, file.call("BUFFER_CREATE", pd=file.pd(), node=N["NODE_ANY"], length=8 * PAGE, page_size=SMALL)
        )
        pages = (ctypes.c_uint64 * (part.length // 8)).from_address(part.at)
        for i in range(8):
            pages[i * PAGE // 8] = 100 + i
        # In two areas, of which the first begins behind the first page.
        part.unmap(0, PAGE)
        part.unmap(4 * PAGE, PAGE)
        for first, count in ((1, 3), (5, 3)):
            LIBC.madvise(ctypes.c_void_p(part.at + first * PAGE), ctypes.c_size_t(count * PAGE), mmap.MADV_DONTNEED)
        return cq.ring.entries, [pages[i * PAGE // 8] for i in (1, 2, 3, 5, 6, 7)]

    out, wire = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(wire, repr(look()).encode())
        os._exit(0)
    os.close(wire)
    r.equal("a ring and a buffer", os.read(out, 1000).decode(), repr((16, [101, 102, 103, 105, 106, 107])))
    r.equal("without a signal", os.waitpid(pid, 0)[1], 0)


def as_user(uid, body, prepare=None):
    """What the function returns in a process of that user; `prepare` is called there before, as root."""
    out, wire = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            if prepare:
                prepare()
            os.setresuid(uid, uid, uid)
            os.write(wire, repr(body()).encode())
        except OSError as e:
            os.write(wire, repr(e).encode())
        finally:
            os._exit(0)
    os.close(wire)
    got = os.read(out, 1000).decode()
    os.close(out)
    os.waitpid(pid, 0)
    return got


def test_users(r):
    """A user has its limits in all files and processes, and another user has its own."""
    files = [File("h1", "") for _ in range(3)]
    first = files[0].pd()

    def cq(file, entries):
        return file.call("CQ_CREATE", entries=entries).handle

    cqs = [cq(file, 1024) for file in files]
    r.equal("who may exceed limits has none", len(cqs), 3)
    for file, handle in zip(files, cqs, strict=True):
        file.destroy(handle)

    def entries():
        return [error_of(cq, file, 512) for file in (*files, files[0])]

    r.equal("entries of three files", as_user(1001, entries), repr(["none", "none", "EDQUOT", "EDQUOT"]))
    r.equal("of the same user again", as_user(1001, entries), repr(["EDQUOT"] * 4))
    r.equal("of another user", as_user(1002, entries), repr(["none", "none", "EDQUOT", "EDQUOT"]))

    def backlogs():
        return [error_of(listen, file, backlog=62) for file in files]

    r.equal("requests that listeners hold", as_user(1003, backlogs), repr(["none", "none", "EDQUOT"]))

    other, shared = files[2].pd(), cq(files[2], 16)

    def queue_pairs(inline):
        """How many of 30 sends and a receive the user may have."""
        arg = {"pd": other, "send_cq": shared, "recv_cq": shared, "qp_type": N["QPT_RC"], "max_inline": inline}
        sizes = {"max_send_wr": 30, "max_send_sge": 2, "max_recv_wr": 1, "max_recv_sge": 1}
        made = 0
        while (why := error_of(files[2].call, "QP_CREATE", **arg, **sizes)) == "none":
            made += 1
        return made, why

    # A send has a slot of 256 bytes, or of 512: 208, and three elements or the inline data. The receives have 512.
    for uid, inline, want in ((1006, 0, 300 * 1024 // (32 * 256 + 512)), (1007, 256, 300 * 1024 // (32 * 512 + 512))):
        got = as_user(uid, lambda inline=inline: queue_pairs(inline))
        r.equal(f"queue pairs with {inline} bytes inline", got, repr((want, "EDQUOT")))

    bare = [File("h1") for _ in range(102)]

    def attached(files):
        got = [error_of(file.attach) for file in files]
        return got.count("none"), got[-2:]

    r.equal("attached files", as_user(1004, lambda: attached(bare)), repr((100, ["EDQUOT"] * 2)))
    bare[0].close()
    r.equal("one is closed", as_user(1004, lambda: attached(bare[100:])), repr((1, ["none", "EDQUOT"])))

    def posted(make, request):
        """Objects of a user, of which posted requests use those that it destroys; how many it has then."""
        end = ends.pop()
        handles = []

        def fill():
            before = len(handles)
            while error_of(lambda: handles.append(make(end))) == "none":
                pass
            return len(handles) - before

        got = [fill()]
        end.file.submit([request(end, handle) for handle in handles[:60]])
        for handle in handles[:60]:
            end.file.destroy(handle)
        got.append(fill())
        end.qp.modify("STATE", qp_state=N["QPS_ERR"])
        # A child has no mapping of the queue.
        end.file.submit(cq=end.cq.handle, min_complete=60, timeout_ns=ulp.hang_ns())
        return [*got, fill()]

    def receive(end, buffer):
        wr = end.qp.wr("RECV")
        wr.num_sge, wr.sge = 1, S["sge"](buffer=buffer, length=64)
        return wr

    ends = [ulp.End("h1", kind="UD") for _ in range(2)]
    for end in ends:
        end.qp.start(5)
        end.qp.modify("STATE", qp_state=N["QPS_SQD"])
    for what, freed, make, request in (
        ("buffers", 60, lambda end: end.file.call("BUFFER_CREATE", pd=end.pd, length=PAGE).handle, receive),
        (
            "addresses",
            59,  # a queue pair keeps its first one
            lambda end: end.file.ah(end.pd, end.file.gid().gid).handle,
            lambda end, ah: end.qp.datagram(ah, end.qp.num, 5, end.buffer, 0, 64),
        ),
    ):
        got = as_user(1005, lambda make=make, request=request: posted(make, request))
        r.equal(f"{what} count while a request uses them", got, repr([100, 0, freed]))
        ends.pop().close()

    def objects(make):
        made = 0
        while (why := error_of(make, made % 3)) == "none":
            made += 1
        return made, why

    def domain(at):
        return files[at].pd()

    # What registers the memory of a domain counts with it: queues of 1024, 512 and 1024 bytes.
    got = as_user(1008, lambda: (error_of(cq, files[0], 512), *objects(domain)))
    r.equal("domains beside a queue of 128 KiB", got, repr(("none", (300 - 128) * 1024 // 2560, "EDQUOT")))
    pds, gid = [it.pd() for it in files], files[0].gid().gid

    def address(at):
        return files[at].ah(pds[at], gid)

    got = as_user(1001, lambda: objects(address))
    r.equal("objects of three files, beside the queues", got, repr((98, "EDQUOT")))
    files[1].close()
    got = as_user(1001, lambda: objects(address))
    r.check("what is given back can be had again", got not in (repr((0, "EDQUOT")), ""))
    files[0].destroy(first)


def namespace_of(owner, first):
    """A function that makes a user namespace as `owner`, and becomes root there, which is no user of the machine.

    As with newuidmap, another process says which users there are: the owner as user 100, and those from `first` on.
    """

    def enter():
        ready, go = os.pipe(), os.pipe()
        me = os.getpid()
        helper = os.fork()
        if not helper:
            try:
                os.close(ready[1])
                os.read(ready[0], 1)
                with open(f"/proc/{me}/uid_map", "w") as f:
                    f.write(f"0 {first} 100\n100 {owner} 1\n")
                with open(f"/proc/{me}/gid_map", "w") as f:
                    f.write(f"0 {first} 100\n")
                os.write(go[1], b"+")
            finally:
                os._exit(0)
        os.close(go[1])
        os.setresuid(owner, owner, owner)
        if ulp.libc.unshare(0x10000000):  # CLONE_NEWUSER
            raise OSError(ctypes.get_errno(), "unshare")
        os.write(ready[1], b"+")
        os.read(go[0], 1)
        os.waitpid(helper, 0)
        os.setresgid(1, 1, 1)

    return enter


def nested():
    """Goes to a user namespace of its own, which has no users, in the one that it is in."""
    if ulp.libc.unshare(0x10000000):
        raise OSError(ctypes.get_errno(), "unshare")


def test_namespaces(r):
    """The users of a user namespace share the limits of the user who made it, unless that is root of the machine."""
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (MEBI, MEBI))
    file = File("h1", "")
    pd, made = file.pd(), []

    def queue():
        made.append(file.call("CQ_CREATE", entries=512).handle)

    def memory():
        made.append(file.call("BUFFER_CREATE", pd=pd, node=N["NODE_ANY"], length=MEBI // 2, page_size=SMALL).handle)

    def nested_try(make):
        nested()
        return error_of(make)

    def give_back(handles):
        for handle in handles:
            file.destroy(handle)

    def known():
        """The handles of the file, by what fdinfo says."""
        found = fdinfo(file, "cq") + fdinfo(file, "buffer")
        return [int(line.split()[0].rstrip(":"), 0) for line in found]

    for what, make, full in (("queues", queue, "EDQUOT"), ("memory", memory, "ENOMEM")):
        owner = 1010
        inside = namespace_of(owner, 200000)
        got = [as_user(uid, lambda make=make: error_of(make), inside) for uid in (1, 2, 3, 4)]
        want = [repr("none")] * 2 + [repr(full)] * 2
        r.equal(f"{what} of four users of one user's namespace: one limit", got, want)
        other = namespace_of(owner, 400000)
        got = [
            as_user(owner, lambda make=make: error_of(make)),
            as_user(5, lambda make=make: error_of(make), other),
            as_user(100, lambda make=make: error_of(make), other),
            as_user(6, lambda make=make: nested_try(make), inside),
        ]
        r.equal(
            f"{what} of the owner, in another namespace of the owner, as the owner there, in a nested one: the same",
            got,
            [repr(full)] * 4,
        )
        r.equal(f"{what} of another user", as_user(1011, lambda make=make: error_of(make)), repr("none"))
        give_back(known())
        r.equal(f"{what} that were given back", as_user(7, lambda make=make: error_of(make), inside), repr("none"))
        give_back(known())
        inside = namespace_of(0, 300000)
        got = [as_user(uid, lambda make=make: error_of(make), inside) for uid in (1, 1, 1, 2, 2, 2)]
        want = [repr("none"), repr("none"), repr(full)] * 2
        r.equal(f"{what} of users of a namespace that root made: a limit for each", got, want)
        give_back(known())
    file.close()


def test_keys(r):
    """The tables of regions count for the user, beside queues: the module has a limit of 32 MiB."""
    if ulp.HCA:
        raise ulp.Missing(0, f"{ulp.HCA} has not tables as long as those of rxe")
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 * MEBI, 64 * MEBI))
    file = File("h1", "")
    pd = file.pd()
    # Tables have an entry for each page, whatever its size.
    buffer = Buffer(file, pd, 1792 * ulp.PAGE)
    own = mmap.mmap(-1, 512 * ulp.PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    own.madvise(mmap.MADV_NOHUGEPAGE)

    def fill(count=1000):
        grants, why = [], "none"
        while len(grants) < count and why == "none":
            why = error_of(lambda: grants.append(file.grant(buffer).handle))
        return grants, why

    def pin():
        return error_of(UserBuffer, file, pd, own, flags=N["BUFFER_READ_ONLY"])

    def run():
        grants, why = fill()
        first, got = len(grants), [why]
        # What a region has is a little less than 34 KiB of 1792 pages, and 9 KiB of 512.
        got += [pin() for _ in range(4)]
        for grant in grants[:100]:
            file.destroy(grant)
        more, why = fill()
        got += [first, len(more), why]
        return got

    got = as_user(1020, run)
    r.equal(
        "grants of 1792 pages, regions of 512, and grants when 100 are destroyed: up to the limit",
        got,
        repr(["EDQUOT", "none", "none", "none", "EDQUOT", 992, 100, "EDQUOT"]),
    )
    r.equal("another user has a limit of its own", as_user(1021, lambda: error_of(file.grant, buffer)), repr("none"))
    r.equal("who may exceed limits has none", error_of(file.grant, buffer), "none")
    file.close()
    file = File("h1", "")
    buffer = Buffer(file, file.pd(), 1792 * ulp.PAGE)
    r.equal("all is given back with the file", as_user(1020, lambda: len(fill()[0])), repr(992))
    file.close()


def test_softirq(r):
    """Delivery by softirq, at the price of other processes, is not every user's choice."""
    file = File("h1", "")

    def create(delivery):
        return file.call("CQ_CREATE", entries=16, delivery=N["DELIVER_" + delivery]).delivery

    r.equal("who may raise priorities may choose it", create("SOFTIRQ"), N["DELIVER_SOFTIRQ"])
    os.setresuid(65534, 65534, 65534)
    r.equal("others may not", error_of(create, "SOFTIRQ"), "EPERM")
    r.equal("but the rest", [create(name) for name in ("DEFAULT", "WORKQUEUE")], [1, 1])


def test_entries(r):
    file = File("h1", "")
    pd = file.pd()
    r.equal("the limit is shown", file.call("QUERY").max_entries, 1000)
    cq = Cq(file, 512)
    qp = Qp(file, pd, cq, depth=128)
    r.equal("and what is used of it", fdinfo(file, "entries"), ["768 of 1000"])

    def refused():
        return [
            error_of(f)
            for f in (lambda: Cq(file, 256), lambda: Qp(file, pd, cq, depth=117), lambda: Srq(file, pd, cq, max_wr=233))
        ]

    for _ in range(3):
        r.equal("more than that", refused(), ["EDQUOT"] * 3)
        srq = Srq(file, pd, cq, max_wr=232)
        r.equal("all of it", (fdinfo(file, "entries"), refused()), (["1000 of 1000"], ["EDQUOT"] * 3))
        file.destroy(srq.handle)
        more = Cq(file, 128)
        file.destroy(more.handle)
        del more  # its mapping holds the entries
    r.equal("another file has as much", error_of(lambda: Cq(File("h1", ""), 512)), "none")
    file.destroy(qp.handle)
    r.equal("what was destroyed is free again", fdinfo(file, "entries"), ["512 of 1000"])
    handles = []

    def fill():
        while True:
            handles.append(file.pd())

    r.equal("more objects than a file may have", (error_of(fill), len(handles)), ("EMFILE", 62))
    file.destroy(handles.pop())
    r.equal("one was given back", error_of(file.pd), "none")


ROOT = "/run/ulp-cgroup"


def cgroup(name, controllers):
    os.makedirs(ROOT, exist_ok=True)
    if not os.path.exists(f"{ROOT}/cgroup.procs"):
        subprocess.run(["mount", "-t", "cgroup2", "none", ROOT], check=True)
    write("cgroup.subtree_control", " ".join("+" + c for c in controllers), "")
    os.makedirs(f"{ROOT}/{name}", exist_ok=True)


def write(key, value, name):
    with open(f"{ROOT}/{name}/{key}", "w") as f:
        f.write(value)


def read(key, name):
    with open(f"{ROOT}/{name}/{key}") as f:
        return f.read().split("\n")[:-1]


def test_rdma(r):
    cgroup("rdma", ["rdma"])

    def current():
        return {
            line.split()[0]: tuple(int(p.split("=")[1]) for p in line.split()[1:])
            for line in read("rdma.current", "rdma")
        }

    write("rdma.max", f"{ulp.DEV1} hca_handle=2 hca_object=4", "rdma")
    before = File("h1", ulp.DEV1)
    before.pd()
    write("cgroup.procs", "0", "rdma")
    file, second = File("h1", ulp.DEV1), File("h1", ulp.DEV1)
    r.equal("attached files are counted", current()[ulp.DEV1], (2, 0))
    third = File("h1")
    r.equal("one more than the limit", error_of(third.attach, ulp.DEV1), "EDQUOT")
    r.equal("is not attached", error_of(third.pd), "ENXIO")
    pd, cq = file.pd(), Cq(file, 16)
    pd_of_second = second.pd()
    buffer = second.call("BUFFER_CREATE", pd=pd_of_second, node=N["NODE_ANY"], length=4096)
    r.equal("objects are counted", current()[ulp.DEV1], (2, 4))
    got = [
        error_of(f)
        for f in (
            file.pd,
            lambda: Cq(file, 16),
            lambda: Qp(file, pd, cq, depth=4),
            lambda: Srq(file, pd, cq),
            lambda: Buffer(file, pd, 4096),
            lambda: second.grant(buffer),
            lambda: file.call("LISTEN", backlog=1, addr=S["addr"](family=2)),
        )
    ]
    r.equal("none of any kind goes beyond the limit", got, ["EDQUOT"] * 7)
    r.equal("nor is it counted", current()[ulp.DEV1], (2, 4))
    file.destroy(cq.handle)
    spare = Cq(file, 16)
    r.equal("one was given back, and another made", current()[ulp.DEV1], (2, 4))
    write("rdma.max", f"{ulp.DEV1} hca_handle=2 hca_object=5", "rdma")
    r.equal("a grant without room for the queue pair that registers it", error_of(second.grant, buffer), "EDQUOT")
    r.equal("... counts nothing", current()[ulp.DEV1], (2, 4))
    write("rdma.max", f"{ulp.DEV1} hca_handle=2 hca_object=7", "rdma")
    grant = second.grant(buffer)
    r.equal("the first grant of a domain: a region, a queue pair and its queue", current()[ulp.DEV1], (2, 7))
    second.destroy(grant.handle)
    r.equal("... of which the domain keeps the last two", current()[ulp.DEV1], (2, 6))

    def first_grants():
        """Two threads make the first grants of a domain, with room for its queue pair and queue, and two regions."""
        write("rdma.max", f"{ulp.DEV1} hca_object=max", "rdma")
        pd = second.pd()
        buffer = second.call("BUFFER_CREATE", pd=pd, node=N["NODE_ANY"], length=4096)
        write("rdma.max", f"{ulp.DEV1} hca_object={current()[ulp.DEV1][1] + 4}", "rdma")
        both = threading.Barrier(2)
        threads = [Thread(lambda: (both.wait(), second.grant(buffer))[1].handle) for _ in range(2)]
        got = [thread.name() for thread in threads]
        for handle in [thread.result for thread in threads if thread.result] + [buffer.handle, pd]:
            second.destroy(handle)
        return got

    got = [first_grants() for _ in range(20)]
    r.equal("two first grants at a time, with room for both: both are made", got, [["none", "none"]] * 20)
    write("rdma.max", f"{ulp.DEV1} hca_handle=2 hca_object=max", "rdma")
    own = mmap.mmap(-1, 8 * MEBI, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    own.madvise(mmap.MADV_NOHUGEPAGE)
    many = UserBuffer(second, pd_of_second, own, flags=N["BUFFER_READ_ONLY"])
    r.equal("a buffer of several regions counts each", current()[ulp.DEV1], (2, 6 + many.keys))
    write("rdma.max", f"{ulp.DEV1} hca_handle=2 hca_object={5 + 2 * many.keys}", "rdma")
    again = error_of(UserBuffer, second, pd_of_second, own, flags=N["BUFFER_READ_ONLY"])
    r.equal("... all of them, or none", (again, current()[ulp.DEV1]), ("EDQUOT", (2, 6 + many.keys)))
    second.destroy(many.handle)
    file.destroy(spare.handle)
    write("rdma.max", f"{ulp.DEV1} hca_handle=2 hca_object=4", "rdma")
    second.close()
    r.equal("a file that was closed has nothing", current()[ulp.DEV1], (1, 1))
    r.equal("and another can be attached", error_of(third.attach, ulp.DEV1), "none")
    r.equal("who attached before pays no more than before", error_of(before.pd), "none")
    r.equal("objects are counted where they are made", current()[ulp.DEV1], (2, 2))
    child = os.fork()
    if child == 0:
        file.pd()
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    r.equal("what a child made is there when it was killed", current()[ulp.DEV1], (2, 3))
    r.equal("the device goes", ulp.unplug(ulp.DEV1), (0, ""))
    r.equal("and what was counted with it", current().get(ulp.DEV1), None)
    write("cgroup.procs", "0", "")
    for f in (file, third, before):
        f.close()
    os.rmdir(f"{ROOT}/rdma")
    r.equal("it comes back", ulp.plug(), (0, ""))


def charged():
    """What the cgroup is charged for, without the heap of this program, which may get a huge page."""
    anonymous = next(line for line in read("memory.stat", "memory") if line.startswith("anon "))
    return int(read("memory.current", "memory")[0]) - int(anonymous.split()[1])


def test_memcg(r):
    cgroup("memory", ["memory"])
    write("memory.max", str(64 * MEBI), "memory")
    if os.path.exists(f"{ROOT}/memory/memory.swap.max"):
        write("memory.swap.max", "0", "memory")
    write("cgroup.procs", "0", "memory")
    file = File("h2", "")
    pd = file.pd()
    for size in (0, SMALL, 2 * MEBI):
        r.equal(
            f"more than the cgroup has, in pages of {size}",
            error_of(file.call, "BUFFER_CREATE", pd=pd, node=N["NODE_ANY"], length=128 * MEBI, page_size=size),
            "ENOMEM",
        )
        before = charged()
        buffer = Buffer(file, pd, 16 * MEBI, size)
        more = charged() - before
        # A CPU charges up to 64 pages at a time before they are used, and memory.stat may be old by hundreds.
        slack = 4 * MEBI
        r.check(f"16 MiB are charged, in pages of {size}", more >= 16 * MEBI - slack, f"{more} more")
        buffer.map.close()
        file.destroy(buffer.handle)
        # The kernel may free what the buffer needed a little later.
        back = ulp.until(lambda: charged() - before <= slack)
        r.check(f"and given back, in pages of {size}", back, [before, *read("memory.stat", "memory")])
    events = dict(line.split() for line in read("memory.events", "memory"))
    r.equal("nobody was killed for it", events["oom_kill"], "0")
    file.close()
    write("cgroup.procs", "0", "")


#: Who allocates for the module: itself, and functions of the kernel crate that nothing else under way there uses.
ALLOCATORS = r"\[rust_ulp\]|kvrealloc|rust_helper_"


def test_accounted(r):
    """What the module allocates for a queue of requests is charged to the process: the kernel's allocator says so.

    What drivers allocate is charged to nobody; these calls come from elsewhere.
    """
    file = File("h1", "")
    pd, cq = file.pd(), Cq(file, 64)
    srq, buffer = Srq(file, pd, cq), Buffer(file, pd, 1 << 16)
    makers = {
        "a file": lambda: File("h1"),
        "a protection domain": file.pd,
        "a completion queue": lambda: Cq(file, 8),
        "a queue pair": lambda: Qp(file, pd, cq, depth=8),
        "a queue pair of a shared receive queue": lambda: Qp(file, pd, cq, depth=8, srq=srq.handle),
        "a shared receive queue": lambda: Srq(file, pd, cq, max_wr=8),
        "an address handle": lambda: file.ah(pd, file.gid().gid),
        "a buffer": lambda: Buffer(file, pd, 1 << 16),
        "the first buffer of a domain": lambda: Buffer(file, domains.pop(), 1 << 16),
        "a grant": lambda: file.grant(buffer),
        "a listener": lambda: file.call("LISTEN", addr=S["addr"](family=2), backlog=16),
    }
    domains = [file.pd()]
    event = "events/kmem/kmalloc"
    tracing.write("tracing_on", "1")
    for name, make in makers.items():
        tracing.write(f"{event}/filter", f"common_pid == {os.getpid()}")
        tracing.write("trace", "")
        tracing.write(f"{event}/enable", "1")
        try:
            make()
        finally:
            tracing.write(f"{event}/enable", "0")
            tracing.write(f"{event}/filter", "0")
        calls = [
            (found[1], found[2])
            for line in tracing.read("trace").splitlines()
            if (found := re.search(rf"call_site=(.*(?:{ALLOCATORS}).*) ptr=.* accounted=(\w+)", line))
        ]
        r.check(f"{name} takes memory", calls)
        r.equal(f"{name}: all of it is charged", [site for site, accounted in calls if accounted != "true"], [])
    file.close()


if __name__ == "__main__":
    ulp.main(__doc__, globals())
