#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Every command with every allocation, copy and verbs call on its way failing, one after the other.

    faults.py query|objects|memory|data|manager|uring|file|module|device|remove|gid [CASE...]

Expects the debug kernel and two hosts; the module, but for `module`. For each n from 1 on the n-th of a kind fails,
until the command succeeds without. Each time the errno must be one that is allowed, nothing may have changed, and the
same command must succeed after it. ULP_FAULTS=full tries each n of every kind, otherwise there are gaps. Prints `ok`
and `not ok` lines, and a row `# | case | ...` for each: for each kind, how many faults came, and what the command said.
"""

import collections
import ctypes
import errno
import mmap
import os
import re
import select
import struct
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import connect
import ulp
from cancel import FLUSHED
from faultpoint import KINDS, Faults, Netlink, libc, name_of, put, range_of
from memory import dmabuf
from ring import Uring
from ulp import N, S, End, File, Qp, Srq, error_of, pattern, remote

FULL = os.environ.get("ULP_FAULTS") == "full"
PAGE = 4096
ALL = N["ACCESS_REMOTE_WRITE"] | N["ACCESS_REMOTE_READ"] | N["ACCESS_REMOTE_ATOMIC"]
PATIENCE, hang_ns = ulp.PATIENCE, ulp.hang_ns
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
FAILED = ctypes.c_void_p(-1).value
LATENCY = "/sys/module/rust_ulp/parameters/latency"


class Call:
    """A call of the C library that is ready; `kept` is put back before it is made again."""

    def __init__(self, function, *args, arg=None, undo=None):
        self.function, self.args, self.arg = function, args, arg
        self.kept = bytes(arg) if arg is not None else None
        self.undo = undo

    def reset(self):
        if self.arg is not None:
            ctypes.memmove(ctypes.addressof(self.arg), self.kept, len(self.kept))

    def has_failed(self, result):
        return result == FAILED if self.function is libc.mmap else result < 0


def ioctl(file, command, undo=None, **fields):
    """The ioctl with its struct filled from `fields`."""
    kind = S[command.lower()]
    arg = kind(**{"size": ctypes.sizeof(kind)} | ulp.sizes_of(command.lower()) | fields)
    return Call(
        libc.ioctl, ctypes.c_int(file.fd), ctypes.c_ulong(N["IOC_" + command]), ctypes.byref(arg), arg=arg, undo=undo
    )


def tidy(file, *handles):
    """Destroys those of the handles that there are."""
    for handle in handles:
        error_of(file.destroy, handle)


def made(file, command, **fields):
    """The ioctl, of an object that is destroyed again."""
    call = ioctl(file, command, **fields)
    call.undo = lambda: file.destroy(call.arg.handle)
    return call


class Case:
    def __init__(self, part, commands, name, make, **how):
        self.part, self.commands, self.name, self.make = part, commands, name, make
        # `errors`: what else it may say. `late`: what it says at the end cannot be undone, so that a copy which fails
        # there finds it done. `spends`: it may use up what it needs. `kinds`: of faults.
        self.errors, self.late = set(how.get("errors", ())), how.get("late", False)
        # `strict`: kinds of faults after which it may say nothing else.
        self.strict = how.get("strict", ())
        self.spends, self.kinds = how.get("spends", False), how.get("kinds", tuple(KINDS))
        # `keeps`: what it has made on its way may stay for the next time.
        self.keeps = how.get("keeps", False)
        # `handler`: the function, as range_of() finds it, in which faults come in the kernel's workers.
        self.handler = how.get("handler")
        # `halfway`: tells whether a driver that runs out of memory halfway may leave what it left.
        self.halfway = how.get("halfway", lambda w, call: False)


CASES = []


def case(part, commands, name=None, **how):
    """The decorated function makes the call of a case, in the world that it gets."""

    def add(make):
        CASES.append(Case(part, commands.split(), name or commands, make, **how))
        return make

    return add


def missing(cases):
    """The commands of the header that none of the cases is of."""
    want = {n[4:] for n in N if n.startswith("IOC_") and n != "IOC_MAGIC"}
    want |= {n for n in N if n in ("URING_REQUEST", "URING_BATCH", "URING_CANCEL")}
    return sorted(want - {c for case in cases for c in case.commands})


def pinned():
    with open("/proc/self/status") as f:
        return [line for line in f if line.startswith(("VmPin", "VmLck"))]


def fdinfo(file):
    """The lines of ours but for the counters, which a case may change."""
    with open(f"/proc/self/fdinfo/{file.fd}") as f:
        return [line for line in f if re.match(r"rust_ulp-(?!.*(send|recv|latency):)", line)]


class World:
    """What the cases have in common: an end on either host, connected, and what shows that nothing is left."""

    def __init__(self):
        self.faults, self.netlink = Faults(), Netlink()
        self.a, self.b = ulp.pair(access=ALL)
        for end in (self.a, self.b):
            end.qp.modify("ACCESS_FLAGS", access_flags=ALL)
        self.file, self.pd, self.cq, self.qp = self.a.file, self.a.pd, self.a.cq, self.a.qp
        self.watched = [self.a.file, self.b.file]
        self.calm = lambda: None

    def snapshot(self):
        return [fdinfo(f) for f in self.watched], pinned(), self.netlink.resources()

    def differs(self, before, seconds=4, resources=True):
        """What is not as it was, after some time for what ends by itself."""
        end = time.monotonic() + seconds * PATIENCE
        while True:
            self.calm()
            after = self.snapshot()
            if after == before or (not resources and after[:2] == before[:2]):
                return None
            if time.monotonic() > end:
                parts = [(b, a) for b, a in zip([*before[0], before[1]], [*after[0], after[1]], strict=True) if a != b]
                return [(sorted(set(b) - set(a)), sorted(set(a) - set(b))) for b, a in parts] or (before[2], after[2])
            time.sleep(0.02)

    def works(self):
        """A write across, each way, with its data."""
        for end, peer, seed in ((self.a, self.b, 1), (self.b, self.a, 2)):
            end.buffer.map[:5000] = pattern(seed, 5000)
            end.file.submit([end.write(peer, 5000)])
            status = [c.status for c in end.cq.wait(1)]
            if status != [0] or peer.buffer.map[:5000] != pattern(seed, 5000):
                return False
        return True


def following(n, kind=None):
    """The next n: each one, in full up to 64; else twice as many, of allocations."""
    if FULL:
        return n + max(1, n // 64)
    return n * 2 if kind in ("slab", "page") else n + 1


def sweep(r, w, it, kind):
    """All faults of one kind in one case: how often each outcome was seen. The first thing that is wrong ends it."""
    seen, n = collections.Counter(), 1
    allowed = KINDS[kind][1] | (set() if kind in it.strict else it.errors)

    def wrong(why):
        r.check(f"{it.name}: fault {n} of kind {kind}", False, why)
        if call.undo:
            error_of(call.undo)
        return seen

    w.faults.choose(kind, range_of(it.handler) if it.handler else None)
    calls = w.faults.call_aside if it.handler else w.faults.call
    while True:
        call = it.make(w)
        before = w.snapshot()
        result, err, came = calls(n, call.function, *call.args)
        failed = call.has_failed(result)
        if not came:
            if failed:
                return wrong(f"it fails without a fault: {name_of(err)}")
            if it.handler and n == 1 and kind != "page":
                return wrong("no fault comes in the handler")
            if call.undo:
                call.undo()
            return seen
        done = not failed
        seen[name_of(err) if failed else "none"] += 1
        if failed:
            if name_of(err) not in allowed:
                return wrong(f"{name_of(err)} instead of {sorted(allowed)}")
            spent = it.spends and it.spends(w)
            # What fails while something is undone may leave a queue pair in another state, but no more.
            late = (it.late and err == errno.EFAULT) or kind == "twin"
            change = w.differs(before, 0.3 if late else 4, not it.keeps) if not spent else None
            if spent:
                seen["spent"] += 1
            elif change and late:
                seen[f"{name_of(err)} when done" if kind == "copy" else f"{name_of(err)}, undone in part"] += 1
                seen[name_of(err)] -= 1
                done = True
            elif change and kind in ("slab", "page") and it.halfway(w, call):
                seen[f"{name_of(err)} halfway"] += 1
                seen[name_of(err)] -= 1
                done = True
            elif change:
                return wrong(f"{name_of(err)}, and this changed: {change}")
            else:
                call.reset()
                ctypes.set_errno(0)
                again = call.function(*call.args)
                if call.has_failed(again) and not late:
                    return wrong(f"{name_of(err)}, and then it fails without a fault: {name_of(ctypes.get_errno())}")
                done = not call.has_failed(again) or late
        if done and call.undo:
            call.undo()
        n = following(n, kind)


def run(r, part, chosen):
    w = World()
    if part == "manager":
        meet(w)
    cases = [c for c in CASES if c.part == part and (not chosen or c.name in chosen)]
    for it in cases:
        row, good = [], r.bad
        start = w.snapshot()
        begin = time.monotonic()
        for kind in [k for k in it.kinds if FULL or k != "twin"]:
            try:
                seen = sweep(r, w, it, kind)
            except Exception as e:  # the next kind may go on
                where = e.__traceback__
                while where.tb_next:
                    where = where.tb_next
                r.check(
                    f"{it.name}: {kind}",
                    False,
                    f"{type(e).__name__}: {e}"
                    f" ({os.path.basename(where.tb_frame.f_code.co_filename)}:{where.tb_lineno})",
                )
                seen = collections.Counter()
            row.append(f"{sum(v for k, v in seen.items() if k != 'spent')}")
            row.append(", ".join(f"{k} {v}" for k, v in sorted(seen.items()) if v))
        w.calm()
        counts = [[len(i) for i in s[0]] + [s[1], s[2]] for s in (start, w.snapshot())]
        if counts[0] != counts[1] and (left := w.differs(start)):
            r.check(f"{it.name}: nothing is left", False, left)
        print(f"# | {it.name} | {' | '.join(row)} | {time.monotonic() - begin:.0f} s |", flush=True)
        if r.bad == good:
            r.check(f"{it.name}: every fault ends well", True)
    r.check(f"{part}: a write across, each way, after all of it", w.works())


# --- what asks ---------------------------------------------------------------------


def listing(w, command, entry, **more):
    array = (S[entry] * 64)()
    call = ioctl(
        w.file, command, entries=ctypes.addressof(array), capacity=64, entry_size=ctypes.sizeof(S[entry]), **more
    )
    call.array = array
    return call


case("query", "QUERY")(lambda w: ioctl(w.file, "QUERY"))
case("query", "DEVICE_LIST")(lambda w: listing(w, "DEVICE_LIST", "device_entry"))
case("query", "DEVICE_QUERY")(lambda w: ioctl(w.file, "DEVICE_QUERY"))
case("query", "PORT_QUERY")(lambda w: ioctl(w.file, "PORT_QUERY", port=1))
case("query", "GID_QUERY")(lambda w: listing(w, "GID_QUERY", "gid_entry", port=1))
case("query", "PKEY_QUERY")(lambda w: ioctl(w.file, "PKEY_QUERY", port=1))
case("query", "QP_QUERY")(lambda w: ioctl(w.file, "QP_QUERY", qp=w.qp.handle))
case("query", "BUFFER_QUERY")(lambda w: ioctl(w.file, "BUFFER_QUERY", buffer=w.a.buffer.handle))
case("query", "GRANT_QUERY")(lambda w: ioctl(w.file, "GRANT_QUERY", grant=w.a.grant.handle))


@case("query", "SRQ_QUERY")
def _(w):
    srq = Srq(w.file, w.pd, w.cq)
    return ioctl(w.file, "SRQ_QUERY", srq=srq.handle, undo=lambda: w.file.destroy(srq.handle))


def attach(w, name):
    with ulp.host("h1"):
        fd = os.open(ulp.DEVICE, os.O_RDWR | os.O_CLOEXEC)
    file = File.__new__(File)
    file.fd = fd
    call = ioctl(file, "ATTACH", undo=file.close)
    ctypes.memmove(call.arg.name, name, len(name))
    call.kept = bytes(call.arg)
    return call


case("query", "ATTACH", "ATTACH by name", late=True)(lambda w: attach(w, b"rxe1"))
# Where all ports are said to fail, none is active.
case("query", "ATTACH", "ATTACH to the default", late=True, errors=("ENOENT",))(lambda w: attach(w, b""))

# --- objects -----------------------------------------------------------------------

case("objects", "PD_CREATE")(lambda w: made(w.file, "PD_CREATE"))


def become(uid):
    """The process is this user; root can come back."""
    os.setresuid(0, 0, 0)
    os.setresuid(uid, uid, 0)
    # PR_SET_DUMPABLE: /proc/self stays readable.
    libc.prctl(4, 1, 0, 0, 0)


# Root has no limits, and is not counted.
@case("objects", "PD_CREATE", "PD_CREATE by a user without objects", kinds=("slab", "page"))
def _(w):
    call = made(w.file, "PD_CREATE")
    w.user = getattr(w, "user", 20000) + 1
    become(w.user)
    call.undo = lambda: (become(0), tidy(w.file, call.arg.handle))
    return call


for how in ("WORKQUEUE", "SOFTIRQ"):
    case("objects", "CQ_CREATE", f"CQ_CREATE, delivered by {how.lower()}")(
        lambda w, how=how: made(w.file, "CQ_CREATE", entries=16, delivery=N["DELIVER_" + how])
    )
case("objects", "CQ_CREATE", "CQ_CREATE of 4096 entries")(lambda w: made(w.file, "CQ_CREATE", entries=4096))


def queue_pair(w, kind, srq=0, depth=16):
    return made(
        w.file,
        "QP_CREATE",
        pd=w.pd,
        send_cq=w.cq.handle,
        recv_cq=w.cq.handle,
        qp_type=N["QPT_" + kind],
        srq=srq,
        max_send_wr=depth,
        max_recv_wr=depth,
        max_send_sge=2,
        max_recv_sge=2,
        max_inline=64,
    )


for how in ("RC", "UC", "UD"):
    case("objects", "QP_CREATE", f"QP_CREATE, {how}")(lambda w, how=how: queue_pair(w, how))
case("objects", "QP_CREATE", "QP_CREATE of 1024 requests")(lambda w: queue_pair(w, "RC", depth=1024))


@case("objects", "QP_CREATE", "QP_CREATE with an SRQ")
def _(w):
    srq = Srq(w.file, w.pd, w.cq)
    call = queue_pair(w, "RC", srq=srq.handle)
    call.undo = lambda: (tidy(w.file, call.arg.handle), w.file.destroy(srq.handle))
    return call


case("objects", "SRQ_CREATE")(
    lambda w: made(w.file, "SRQ_CREATE", pd=w.pd, cq=w.cq.handle, max_wr=16, max_sge=2, limit=4)
)


@case("objects", "SRQ_MODIFY")
def _(w):
    srq = Srq(w.file, w.pd, w.cq)
    return ioctl(w.file, "SRQ_MODIFY", srq=srq.handle, limit=3, undo=lambda: w.file.destroy(srq.handle))


def address(w, **more):
    attr = S["ah_attr"](**{"sgid_index": w.file.gid_index, "port_num": 1, "is_global": 1} | more)
    ctypes.memmove(attr.dgid, bytes(w.b.file.gid().gid), 16)
    return attr


case("objects", "AH_CREATE", errors=("EHOSTUNREACH", "ENETUNREACH", "ETIMEDOUT"))(
    lambda w: made(w.file, "AH_CREATE", pd=w.pd, attr=address(w))
)


def modify(w, kind, steps, mask, receives=0, **attr):
    """QP_MODIFY of a queue pair that has gone the `steps` before, with receives."""
    qp = Qp(w.file, w.pd, w.cq, depth=4, kind=kind)
    for bits, fields in steps:
        qp.modify(bits, **fields)
    if receives:
        w.file.submit([qp.wr("RECV", w.a.buffer, 0, 64) for _ in range(receives)])
    bits = 0
    for name in mask.split():
        bits |= N["QP_" + name]
    return ioctl(
        w.file,
        "QP_MODIFY",
        qp=qp.handle,
        attr_mask=bits,
        attr=S["qp_attr"](**attr),
        undo=lambda: w.file.destroy(qp.handle),
    )


INIT = ("STATE PKEY_INDEX PORT ACCESS_FLAGS", {"qp_state": N["QPS_INIT"], "port_num": 1})
RTR = "STATE AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER"
RTS = (
    "STATE SQ_PSN TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC",
    {"qp_state": N["QPS_RTS"], "timeout": 14, "retry_cnt": 7, "max_rd_atomic": 1},
)


def rtr(w):
    return {
        "qp_state": N["QPS_RTR"],
        "path_mtu": 3,
        "dest_qp_num": w.b.qp.num,
        "max_dest_rd_atomic": 1,
        "min_rnr_timer": 12,
        "ah": address(w),
    }


case("objects", "QP_MODIFY", "QP_MODIFY to INIT", late=True)(lambda w: modify(w, "RC", [], INIT[0], **INIT[1]))


def in_error(w, call):
    """Whether the queue pair of the call is in ERR."""
    return w.file.call("QP_QUERY", qp=call.arg.qp).attr.qp_state == N["QPS_ERR"]


UNREACHABLE = ("EHOSTUNREACH", "ENETUNREACH", "ETIMEDOUT")
case("objects", "QP_MODIFY", "QP_MODIFY to RTR, address resolved", late=True, halfway=in_error, errors=UNREACHABLE)(
    lambda w: modify(w, "RC", [INIT], RTR, **rtr(w))
)


@case(
    "objects",
    "QP_MODIFY",
    "QP_MODIFY to RTR with receives",
    late=True,
    halfway=in_error,
    errors=UNREACHABLE,
    kinds=("slab", "page"),
)
def _(w):
    call = modify(w, "RC", [INIT], RTR, receives=3, **rtr(w))

    def undo():
        w.file.destroy(call.arg.qp)
        status = [c.status for c in w.cq.wait(3)]
        if status != [FLUSHED] * 3:
            raise ValueError(f"not three receives that were flushed, but {status}")

    call.undo = undo
    return call


case("objects", "QP_MODIFY", "QP_MODIFY to RTS", late=True)(
    lambda w: modify(w, "RC", [INIT, (RTR, rtr(w))], RTS[0], **RTS[1])
)
case("objects", "QP_MODIFY", "QP_MODIFY to ERR", late=True)(
    lambda w: modify(w, "RC", [INIT, (RTR, rtr(w)), RTS], "STATE", qp_state=N["QPS_ERR"])
)
case("objects", "QP_MODIFY", "QP_MODIFY to RESET", late=True)(
    lambda w: modify(w, "RC", [INIT, (RTR, rtr(w)), RTS], "STATE", qp_state=N["QPS_RESET"])
)
case("objects", "QP_MODIFY", "QP_MODIFY to INIT, UD", late=True)(
    lambda w: modify(w, "UD", [], "STATE PKEY_INDEX PORT QKEY", qp_state=N["QPS_INIT"], port_num=1, qkey=5)
)


def destroy(name, make, **how):
    @case("objects", "DESTROY", f"DESTROY of {name}", **how)
    def _(w):
        call = make(w)
        if call.has_failed(call.function(*call.args)):
            raise OSError(ctypes.get_errno(), "nothing to destroy")
        return ioctl(w.file, "DESTROY", handle=call.arg.handle, undo=getattr(call, "after", None))


destroy("a domain", lambda w: made(w.file, "PD_CREATE"))
destroy("a completion queue", lambda w: made(w.file, "CQ_CREATE", entries=16))
destroy("a queue pair", lambda w: queue_pair(w, "RC"))
destroy("an SRQ", lambda w: made(w.file, "SRQ_CREATE", pd=w.pd, cq=w.cq.handle, max_wr=16, max_sge=2))
destroy("an address", lambda w: made(w.file, "AH_CREATE", pd=w.pd, attr=address(w)))
destroy("a buffer", lambda w: buffer(w, 8 * PAGE))
destroy("a grant", lambda w: grant(w))
destroy("a listener", lambda w: made(w.file, "LISTEN", addr=connect.addr("0.0.0.0"), backlog=4))


@case("objects", "DESTROY", "DESTROY of a connected queue pair with requests")
def _(w):
    qp = Qp(w.file, w.pd, w.cq, depth=8)
    for bits, fields in (INIT, (RTR, rtr(w)), RTS):
        qp.modify(bits, **fields)
    w.file.submit([qp.wr("RECV", w.a.buffer, 0, 64) for _ in range(4)])
    return ioctl(w.file, "DESTROY", handle=qp.handle, undo=w.cq.reap)


@case("objects", "CQ_EVENTFD")
def _(w):
    cq = w.file.call("CQ_CREATE", entries=4).handle
    fd = os.eventfd(0, os.EFD_CLOEXEC)
    return ioctl(w.file, "CQ_EVENTFD", cq=cq, fd=fd, undo=lambda: (w.file.destroy(cq), os.close(fd)))


# --- memory ------------------------------------------------------------------------


def buffer(w, length, page_size=0, pd=None):
    return made(w.file, "BUFFER_CREATE", pd=pd or w.pd, node=N["NODE_ANY"], length=length, page_size=page_size)


case("memory", "BUFFER_CREATE", "BUFFER_CREATE of 32 KiB")(lambda w: buffer(w, 8 * PAGE))
case("memory", "BUFFER_CREATE", "BUFFER_CREATE of 64 KiB in small pages")(lambda w: buffer(w, 16 * PAGE, PAGE))
case("memory", "BUFFER_CREATE", "BUFFER_CREATE of 3 MiB, two keys")(lambda w: buffer(w, 3 << 20, PAGE))
case("memory", "BUFFER_CREATE", "BUFFER_CREATE of 4 MiB in large pages")(lambda w: buffer(w, 4 << 20, 2 << 20))


@case("memory", "BUFFER_CREATE", "BUFFER_CREATE, the first of its domain", keeps=True)
def _(w):
    pd = w.file.pd()
    call = buffer(w, PAGE, pd=pd)
    call.undo = lambda: (tidy(w.file, call.arg.handle), w.file.destroy(pd))
    return call


def registered(w, flags=0):
    memory = mmap.mmap(-1, 16 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:] = bytes(16 * PAGE)
    call = made(w.file, "BUFFER_REGISTER", pd=w.pd, addr=ulp.address_of(memory) + 100, length=9 * PAGE, flags=flags)
    call.undo = lambda: (tidy(w.file, call.arg.handle), memory.close())
    return call


case("memory", "BUFFER_REGISTER")(registered)
case("memory", "BUFFER_REGISTER", "BUFFER_REGISTER, read-only")(lambda w: registered(w, N["BUFFER_READ_ONLY"]))


# Of memory that udmabuf cannot get the core warns itself (dma_buf_vmap(), WARN_ON_ONCE), and says EINVAL.
@case("memory", "BUFFER_IMPORT", kinds=("copy", "verb", "twin"))
def _(w):
    fd, memory = dmabuf(16 * PAGE)
    call = made(w.file, "BUFFER_IMPORT", pd=w.pd, fd=fd)
    call.undo = lambda: (tidy(w.file, call.arg.handle), os.close(fd), memory.close())
    return call


def grant(w, **more):
    return made(w.file, "GRANT_CREATE", **{"buffer": w.a.buffer.handle, "access": ALL, "length": 5000} | more)


case("memory", "GRANT_CREATE")(grant)
case("memory", "GRANT_CREATE", "GRANT_CREATE, one shot")(
    lambda w: grant(w, qp=w.qp.handle, flags=N["GRANT_ONE_SHOT_INV"])
)


# --- requests ----------------------------------------------------------------------


def submit(w, wrs, wait=0, undo=None, **more):
    array = (S["wr"] * max(1, len(wrs)))(*wrs)
    call = ioctl(
        w.file,
        "SUBMIT",
        wrs=ctypes.addressof(array),
        nr_wrs=len(wrs),
        wr_size=ctypes.sizeof(S["wr"]),
        cq=w.cq.handle if wait else 0,
        min_complete=wait,
        timeout_ns=hang_ns() if wait else 0,
        **more,
    )
    call.array = array
    call.undo = undo or (lambda: quiet(w))
    return call


def quiet(w):
    """Until nothing of either end is under way, and its completions are read.

    A send that is not signaled is retired by the completion of a later one: that of a write which this adds.
    """
    for end, peer in ((w.a, w.b), (w.b, w.a)):
        until, added = time.monotonic() + 20 * PATIENCE, False
        while True:
            end.cq.reap()
            q = end.file.call("QP_QUERY", qp=end.qp.handle)
            if not q.sends_in_flight and not q.recvs_in_flight:
                end.cq.reap()
                break
            if time.monotonic() > until:
                raise TimeoutError(f"{q.sends_in_flight} sends and {q.recvs_in_flight} receives do not end")
            if q.recvs_in_flight:
                end.file.call("CANCEL", queue=end.qp.handle, flags=N["CANCEL_ALL"])
                revive(w)
            elif not added:
                added = error_of(end.file.submit, [end.write(peer, 8)]) == "none"
            time.sleep(0.01)


def revive(w):
    """Both queue pairs as they were made, and connected again: what is in them is flushed."""
    for end in (w.a, w.b):
        end.qp.modify("STATE", qp_state=N["QPS_RESET"])
        end.cq.reap()
    for end, peer in ((w.a, w.b), (w.b, w.a)):
        end.connect(peer)
        end.qp.modify("ACCESS_FLAGS", access_flags=ALL)


def elements(*pairs):
    return (S["sge"] * len(pairs))(*[S["sge"](buffer=b, offset=o, length=n) for b, o, n in pairs])


case("data", "SUBMIT", "SUBMIT of a write", late=True)(lambda w: submit(w, [w.a.write(w.b, 3000)]))
case("data", "SUBMIT", "SUBMIT of a write, and its wait", late=True)(
    lambda w: submit(w, [w.a.write(w.b, 3000)], wait=1)
)
case("data", "SUBMIT", "SUBMIT of a read", late=True)(
    lambda w: submit(w, [w.qp.wr("RDMA_READ", w.a.buffer, 0, 3000, **remote(w.b.grant))])
)


def first_posted(_w, call):
    """The requests before one that was refused are posted, and @posted says so."""
    return call.arg.posted > 0


# Our own points refuse a request in the middle: see refused_in_the_middle().
SEVERAL = {"late": True, "kinds": ("slab", "page", "copy"), "halfway": first_posted}
case("data", "SUBMIT", "SUBMIT of eight writes", **SEVERAL)(
    lambda w: submit(w, [w.a.write(w.b, 100 * i, user_data=i) for i in range(1, 9)], wait=8)
)


@case("data", "SUBMIT", "SUBMIT for two queue pairs", **SEVERAL)
def _(w):
    other = Qp(w.file, w.pd, w.cq, depth=4)
    other.modify(INIT[0], **INIT[1])
    call = submit(w, [w.a.write(w.b, 64), other.wr("RECV", w.a.buffer, 0, 64), w.a.write(w.b, 64)])
    call.undo = lambda: (w.file.destroy(other.handle), quiet(w))
    return call


@case("data", "SUBMIT", "SUBMIT of inline data", late=True)
def _(w):
    qp = Qp(w.file, w.pd, w.cq, depth=4, kind="UD", max_send_sge=2, max_recv_sge=2, max_inline=64)
    data = ctypes.create_string_buffer(b"inline data", 32)
    qp.start(5)
    ah = w.file.ah(w.pd, w.b.file.gid().gid).handle
    wr = qp.datagram(ah, w.b.qp.num, 5, flags=N["SEND_SIGNALED"] | N["SEND_INLINE"], num_sge=1)
    wr.sge = S["sge"](offset=ctypes.addressof(data), length=32)
    call = submit(w, [wr])
    call.undo = lambda: (w.file.destroy(qp.handle), w.file.destroy(ah), w.cq.reap(), data)
    return call


@case("data", "SUBMIT", "SUBMIT with an array of elements", late=True)
def _(w):
    qp = Qp(w.file, w.pd, w.cq, depth=4, max_send_sge=3, max_recv_sge=3)
    qp.modify(INIT[0], **INIT[1])
    array = elements(*[(w.a.buffer.handle, i * 128, 64) for i in range(3)])
    wr = qp.wr("RECV", num_sge=3, sge=S["sge"](offset=ctypes.addressof(array)))
    call = submit(w, [wr])
    call.undo = lambda: (w.file.destroy(qp.handle), w.cq.reap(), array)
    return call


def two_elements(file, pd, cq):
    """A queue pair whose requests have up to two elements, and which is connected to itself."""
    qp = Qp(file, pd, cq, depth=4, max_send_sge=2, max_recv_sge=2)
    qp.connect(qp.num, file.gid().gid, 0, 0)
    return qp


# A file keeps the memory of its batches.
@case("data", "SUBMIT", "SUBMIT, the first of its file", late=True, kinds=("slab", "page"))
def _(w):
    end = End("h1", "rxe1")
    qp = Qp(end.file, end.pd, end.cq, depth=4, max_send_sge=3, max_recv_sge=3, max_inline=64)
    qp.connect(qp.num, end.file.gid().gid, 0, 0)
    array = elements(*[(end.buffer.handle, i * 128, 64) for i in range(3)])
    data = ctypes.create_string_buffer(b"inline data", 32)
    inline = {"flags": N["SEND_SIGNALED"] | N["SEND_INLINE"], "num_sge": 1}
    there = {**remote(end.grant), "timeout_ns": hang_ns()}
    wrs = [
        qp.wr("RECV", num_sge=3, sge=S["sge"](offset=ctypes.addressof(array))),
        qp.wr("RDMA_WRITE", sge=S["sge"](offset=ctypes.addressof(data), length=32), **inline | there),
    ]
    w.of_call = array, data
    call = submit(end, wrs)
    call.undo = end.close
    return call


@case("data", "SUBMIT", "SUBMIT to an SRQ", late=True)
def _(w):
    srq = Srq(w.file, w.pd, w.cq)
    return submit(w, [srq.recv(w.a.buffer, 0, 64)], undo=lambda: (w.file.destroy(srq.handle), w.cq.reap()))


@case("data", "CANCEL", late=True)
def _(w):
    qp = Qp(w.file, w.pd, w.cq, depth=8)
    qp.modify(INIT[0], **INIT[1])
    w.file.submit([qp.wr("RECV", w.a.buffer, 0, 64, user_data=i) for i in range(4)])
    return ioctl(
        w.file, "CANCEL", queue=qp.handle, flags=N["CANCEL_ALL"], undo=lambda: (w.file.destroy(qp.handle), w.cq.reap())
    )


def refused_in_the_middle(r):
    """The n-th request of a list is refused by the device: those before it are posted, and complete."""
    w = World()
    w.faults.choose("verb")
    for n in range(1, 9):
        call = submit(w, [w.a.write(w.b, 64, user_data=i) for i in range(8)])
        result, err, came = w.faults.call(n, call.function, *call.args)
        r.equal(f"SUBMIT: request {n} of 8 is refused", (result, name_of(err), came), (-1, "EIO", True))
        r.equal("... and the struct says where", (call.arg.posted, call.arg.stop_error), (n - 1, -errno.EIO))
        r.equal(
            "... those before it complete",
            [(c.user_data, c.status) for c in (w.cq.wait(n - 1) if n > 1 else w.cq.reap())],
            [(i, 0) for i in range(n - 1)],
        )
        q = w.file.call("QP_QUERY", qp=w.qp.handle)
        r.equal("... and no other is under way", q.sends_in_flight, 0)
    r.check("SUBMIT: after all of it a write across, each way", w.works())


def first_without_memory(r):
    """A queue makes arrays for what only some requests have, when the first of them comes. There is no memory."""
    w = World()
    other = ulp.Buffer(w.file, w.pd, PAGE)
    array = elements((w.a.buffer.handle, 0, 64), (other.handle, 0, 64))
    two = {"num_sge": 2, "sge": S["sge"](offset=ctypes.addressof(array))}
    one = {"buffer": w.a.buffer, "length": 64}
    where = remote(w.a.grant)
    w.faults.choose("slab", range_of("*Queue*reserve_sides*"))
    for what, op, fields in (
        ("two regions", "RECV", two),
        ("a deadline", "RECV", {**one, "timeout_ns": hang_ns()}),
        ("two regions", "RDMA_WRITE", {**two, **where}),
        ("a deadline", "RDMA_WRITE", {**one, **where, "timeout_ns": hang_ns()}),
        ("a measured time", "RDMA_WRITE", {**one, **where}),
    ):
        qp = two_elements(w.file, w.pd, w.cq)
        put(LATENCY, int(what == "a measured time"))
        call = submit(w, [qp.wr(op, **fields)])
        before = fdinfo(w.file)
        result, err, _ = w.faults.call_always(call.function, *call.args)
        got = result, name_of(err), call.arg.posted, fdinfo(w.file) == before
        r.equal(f"the first {op} with {what}: ENOMEM, and nothing changes", got, (-1, "ENOMEM", 0, True))
        call.reset()
        r.equal("... and the same request is posted when there is memory", call.function(*call.args), 0)
        put(LATENCY, 0)
        w.file.destroy(qp.handle)
        w.cq.reap()


def refused_with_shared_memory(r):
    """A receive is posted, and the next one, whose memory is the last of the first, is refused. Both buffers are
    destroyed: the posted one keeps its memory."""
    w = World()
    for count in (1, 2):
        qp = two_elements(w.file, w.pd, w.cq)
        buffers = [ulp.Buffer(w.file, w.pd, PAGE) for _ in range(count)]
        array = elements(*[(buffer.handle, 0, 64) for buffer in buffers])
        first = qp.wr("RECV", num_sge=2, sge=S["sge"](offset=ctypes.addressof(array)))
        if count == 1:
            first = qp.wr("RECV", buffers[0], 0, 64)
        call = submit(w, [first, qp.wr("RECV", buffers[-1], 64, 64)])
        w.faults.choose("verb")
        result, err, came = w.faults.call(2, call.function, *call.args)
        got = result, name_of(err), came, call.arg.posted
        r.equal(f"{count} regions: the second receive is refused", got, (-1, "EIO", True, 1))
        for buffer in buffers:
            w.file.destroy(buffer.handle)
        w.a.buffer.map[: 64 * count] = pattern(count, 64 * count)
        w.file.submit([qp.wr("SEND", w.a.buffer, 0, 64 * count)])
        r.equal(f"{count} regions: the first one takes a message", [c.status for c in w.cq.wait(2)], [0, 0])
        data = b"".join(buffer.map[:64] for buffer in buffers)
        r.equal(f"{count} regions: whose bytes are there", data, pattern(count, 64 * count))
        w.file.destroy(qp.handle)


# --- the connection manager --------------------------------------------------------


class Peer:
    """Listens on h2 in a process of its own, accepts, and clears up when it is told to."""

    def __init__(self, w):
        (mine, theirs), (told, tell) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(tell)
                for file in w.watched:
                    file.close()
                self.serve(told, theirs)
            finally:
                os._exit(0)
        os.close(told)
        os.close(theirs)
        self.said, self.tell = mine, tell
        self.port = struct.unpack("I", os.read(mine, 4))[0]

    def serve(self, told, say):
        end = End("h2", "rxe2", access=ALL)
        f, mine = end.file, []
        got = connect.listen(f)
        os.write(say, struct.pack("I", got.addr.port))
        poll = select.poll()
        poll.register(f.fd, select.POLLIN)
        poll.register(told, select.POLLIN)
        while True:
            ready = dict(poll.poll())
            if f.fd in ready:
                f.events()
                while error_of(self.accept, end, got.handle, mine) == "none":
                    pass
            elif told in ready:
                if not os.read(told, 1):
                    return
                tidy(f, *mine)
                mine.clear()
                os.write(say, b"k")

    @staticmethod
    def accept(end, listener, mine):
        request = end.file.call("GET_REQUEST", listener=listener, timeout_ns=0)
        qp = Qp(end.file, end.pd, end.cq, depth=4)
        mine += [request.handle, qp.handle]
        error_of(end.file.call, "ACCEPT", request=request.handle, qp=qp.handle, param=connect.param())

    def clear(self):
        os.write(self.tell, b"c")
        os.read(self.said, 1)


CM_ERRORS = ("ECONNRESET", "ETIME", "ETIMEDOUT", "EHOSTUNREACH", "ENETUNREACH", "EADDRNOTAVAIL")


@case("manager", "LISTEN")
def _(w):
    return made(w.file, "LISTEN", addr=connect.addr("10.9.0.1"), backlog=4)


case("manager", "LISTEN", "LISTEN on any address")(
    lambda w: made(w.file, "LISTEN", addr=connect.addr("0.0.0.0"), backlog=4)
)


def meet(w):
    """Those whom the cases of connections talk to: who answers, and whose requests are answered."""
    w.peer = Peer(w)
    w.calm = w.peer.clear
    got = connect.listen(w.file, "0.0.0.0")
    w.listener, w.port = got.handle, got.addr.port
    w.sender = End("h2", "rxe2", access=ALL)


# A call of ours that fails is not the peer's doing.
@case("manager", "CONNECT", errors=CM_ERRORS, strict=("verb",))
def _(w):
    return connecting(w)


@case("manager", "CONN_WAIT", kinds=("copy",))
def _(w):
    conn, _, undo = connected(w)
    return ioctl(w.file, "CONN_WAIT", conn=conn, undo=undo)


def in_worker(step, function, *kinds):
    """CONNECT and CONN_WAIT of an attempt whose step fails in a worker of the kernel."""
    how = {"errors": CM_ERRORS, "strict": ("verb",), "kinds": kinds, "handler": function}
    case("manager", "CONNECT", f"an attempt, {step}", **how)(lambda w: attempt(w))


in_worker("each step in the manager's handler", "_R*10connection*10Connection*2cm7Handler5event", "verb")
in_worker("each step in the work of the connection", "_R*10connection*10Connection*8WorkItem3run", "verb")
in_worker("resolving the route", "rdma_resolve_route", "slab", "page")
in_worker("sending the request", "rdma_connect_locked", "slab", "page")


def attempt(w):
    """CONNECT, and CONN_WAIT of it; destroyed if that fails."""
    call = connecting(w)
    begin = call.function

    def whole(*args):
        result = begin(*args)
        if result == 0:
            result, handle = wait_for(w.file, call.arg.handle), call.arg.handle
            if result != 0:
                failed = ctypes.get_errno()
                tidy(w.file, handle)
                ctypes.set_errno(failed)
        return result

    call.function = whole
    return call


def wait_for(file, conn):
    waiting = ioctl(file, "CONN_WAIT", conn=conn, timeout_ns=hang_ns())
    return waiting.function(*waiting.args)


def connecting(w):
    peer = w.peer
    peer.clear()
    qp = Qp(w.file, w.pd, w.cq, depth=4)
    call = made(
        w.file,
        "CONNECT",
        qp=qp.handle,
        dst=connect.addr("10.9.0.2", peer.port),
        param=connect.param(path_mtu=2),
        **connect.private(b"hello"),
    )
    call.undo = lambda: (tidy(w.file, call.arg.handle, qp.handle), peer.clear())
    return call


def pending(w, seconds):
    """The next request for our listener, if one comes in time."""
    try:
        return w.file.call("GET_REQUEST", listener=w.listener, timeout_ns=seconds * 10**9).handle
    except OSError as e:
        if e.errno != errno.ETIME:
            raise
        return None


def leave(w, thread):
    """Until the sender has its answer: who was not told, since there was no memory for a message, asks again."""
    end = time.monotonic() + 30 * PATIENCE
    while thread.is_alive() and time.monotonic() < end:
        if (again := pending(w, 0)) is not None:
            w.file.destroy(again)
        thread.join(0.05)


def requested(w):
    """A request for our listener, whose sender waits aside on h2."""

    def ask():
        try:
            where = connect.addr("10.9.0.1", w.port)
            got = w.sender.file.call("CONNECT", qp=qp.handle, dst=where, param=connect.param())
            connect.ended_well(w.sender.file, got.handle)
            w.sender.file.destroy(got.handle)
        except OSError:
            pass
        w.sender.file.destroy(qp.handle)

    # A request whose sender had no memory to say that it gives up waits until it is asked for.
    while (old := pending(w, 0)) is not None:
        w.file.destroy(old)
    qp = Qp(w.sender.file, w.sender.pd, w.sender.cq, depth=4)
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    end = time.monotonic() + 20 * PATIENCE
    while w.file.call("CONN_QUERY", conn=w.listener).waiting == 0:
        if time.monotonic() > end:
            raise TimeoutError("no request arrives")
        time.sleep(0.01)
    return thread


@case("manager", "GET_REQUEST", late=True)
def _(w):
    thread = requested(w)
    call = ioctl(w.file, "GET_REQUEST", listener=w.listener, timeout_ns=0)
    call.undo = lambda: (tidy(w.file, call.arg.handle), leave(w, thread))
    return call


def request_of(w):
    thread = requested(w)
    return thread, pending(w, 0)


def is_spent(w):
    """The request of the last ACCEPT has failed."""
    if w.file.call("CONN_QUERY", conn=w.request).state != N["CONN_FAILED"]:
        return False
    w.file.destroy(w.request)
    leave(w, w.thread)
    w.file.destroy(w.accepting)
    return True


@case("manager", "ACCEPT", late=True, spends=is_spent, errors=CM_ERRORS, strict=("verb",))
def _(w):
    w.thread, w.request = request_of(w)
    thread, request = w.thread, w.request
    qp = Qp(w.file, w.pd, w.cq, depth=4)
    w.accepting = qp.handle
    return ioctl(
        w.file,
        "ACCEPT",
        request=request,
        qp=qp.handle,
        param=connect.param(ack_timeout=14),
        undo=lambda: (tidy(w.file, request, qp.handle), leave(w, thread)),
    )


@case("manager", "REJECT")
def _(w):
    thread, request = request_of(w)
    return ioctl(w.file, "REJECT", request=request, undo=lambda: leave(w, thread), **connect.private(b"no"))


def connected(w):
    peer = w.peer
    peer.clear()
    qp = Qp(w.file, w.pd, w.cq, depth=4)
    where = connect.addr("10.9.0.2", peer.port)
    got = w.file.call("CONNECT", qp=qp.handle, dst=where, param=connect.param())
    connect.ended_well(w.file, got.handle)
    # What the peer has of it stays.
    w.calm = lambda: None

    def undo():
        w.calm = peer.clear
        tidy(w.file, got.handle, qp.handle)
        peer.clear()

    return got.handle, qp.handle, undo


@case("manager", "DISCONNECT")
def _(w):
    conn, _, undo = connected(w)
    return ioctl(w.file, "DISCONNECT", conn=conn, undo=undo)


@case("manager", "CONN_QUERY")
def _(w):
    conn, _, undo = connected(w)
    return ioctl(w.file, "CONN_QUERY", conn=conn, undo=undo)


@case("manager", "DESTROY", "DESTROY of a connection")
def _(w):
    conn, _, undo = connected(w)
    return ioctl(w.file, "DESTROY", handle=conn, undo=undo)


# --- io_uring ----------------------------------------------------------------------


def uring_sweep(r, w, name, kind, make, good, allowed):
    """Faults in io_uring_enter(2) with one command: it completes once, with success, or an error that is allowed."""
    seen, n = collections.Counter(), 1
    w.faults.choose(kind)
    while True:
        ring, command = w.ring, make(w)
        before = w.snapshot()
        ring.prepare(w.file.fd, *command)
        result, err, came = w.faults.call(n, libc.syscall, *ring.enter(1, 0))
        if result < 0:
            # io_uring's own: the entry stays where it is.
            seen[f"io_uring_enter: {name_of(err)}"] += 1
            if not came:
                r.check(f"{name}: io_uring_enter", False, name_of(err))
                return seen
            ring.submit(1)
        elif result == 0:
            seen["io_uring_enter: 0"] += 1
            ring.submit(1)
        done = ring.wait(1)
        if len(done) != 1:
            r.check(f"{name}: fault {n} of kind {kind}", False, f"completions {done}")
            return seen
        res = done[0][1]
        if not came:
            r.check(f"{name}: without a fault", good(res), res)
            command[2]()
            return seen
        seen["none" if good(res) else name_of(-res)] += 1
        if not good(res) and (name_of(-res) not in allowed | KINDS[kind][1]):
            r.check(f"{name}: fault {n} of kind {kind}", False, f"res {res}, {name_of(-res)}")
        if not good(res):
            quiet(w)
            change = w.differs(before)
            if change:
                r.check(f"{name}: fault {n} of kind {kind}", False, f"res {res}, and this changed: {change}")
                return seen
            ring.prepare(w.file.fd, *command)
            ring.submit(1)
            done = ring.wait(1)
            if not good(done[0][1]):
                r.check(f"{name}: after fault {n} of kind {kind}", False, f"it fails without: {done}")
                return seen
        command[2]()
        n = following(n, kind)


URING_COMMANDS = {}


def uring(command, name=None, good=lambda res: res == 0, allowed=("EAGAIN",)):
    name = name or command
    CASES.append(Case("uring", [command], name, None))

    def add(make):
        URING_COMMANDS[name] = (make, good, set(allowed))
        return make

    return add


@uring("URING_REQUEST")
def _(w):
    return N["URING_REQUEST"], bytes(w.a.write(w.b, 3000)), lambda: quiet(w)


@uring("URING_BATCH", good=lambda res: res == 3)
def _(w):
    array = (S["wr"] * 3)(*[w.a.write(w.b, 100 * i) for i in (1, 2, 3)])
    got = S["uring_batch"](wrs=ctypes.addressof(array), nr_wrs=3, wr_size=ctypes.sizeof(S["wr"]))
    return N["URING_BATCH"], bytes(got), lambda: (quiet(w), array)


@uring("URING_CANCEL", good=lambda res: res == 2)
def _(w):
    qp = Qp(w.file, w.pd, w.cq, depth=8)
    qp.modify(INIT[0], **INIT[1])
    w.file.submit([qp.wr("RECV", w.a.buffer, 0, 64) for _ in range(2)])
    got = S["uring_cancel"](queue=qp.handle, flags=N["CANCEL_ALL"])
    return N["URING_CANCEL"], bytes(got), lambda: (w.file.destroy(qp.handle), w.cq.reap())


@uring("URING_BATCH", "URING_BATCH with URING_RING", good=lambda res: res == 2)
def _(w):
    qp = Qp(w.file, w.pd, w.cq, depth=8)
    qp.modify(INIT[0], **INIT[1])
    array = (S["wr"] * 2)(*[qp.wr("RECV", w.a.buffer, 0, 64) for _ in range(2)])
    got = S["uring_batch"](wrs=ctypes.addressof(array), nr_wrs=2, wr_size=ctypes.sizeof(S["wr"]), flags=N["URING_RING"])
    return N["URING_BATCH"], bytes(got), lambda: (w.file.destroy(qp.handle), w.cq.reap(), array)


def run_uring(r, chosen):
    w = World()
    w.ring = Uring()
    for name, (make, good, allowed) in URING_COMMANDS.items():
        if chosen and name not in chosen:
            continue
        row, bad, begin = [], r.bad, time.monotonic()
        for kind in [k for k in KINDS if FULL or k != "twin"]:
            seen = uring_sweep(r, w, name, kind, make, good, allowed)
            row += [f"{sum(seen.values())}", ", ".join(f"{k} {v}" for k, v in sorted(seen.items()))]
        print(f"# | {name} | {' | '.join(row)} | {time.monotonic() - begin:.0f} s |", flush=True)
        if r.bad == bad:
            r.check(f"{name}: every fault ends well", True)
    r.check("uring: a write across, each way, after all of it", w.works())


# --- the file ----------------------------------------------------------------------


@case("file", "open", errors=("ENOMEM", "ENFILE", "ENOTTY"))
def _(w):
    return Call(libc.open, ctypes.c_char_p(b"/dev/rust_ulp"), ctypes.c_int(os.O_RDWR | os.O_CLOEXEC))


@case("file", "mmap", "mmap of a completion ring", errors=("EAGAIN",))
def _(w):
    got = w.file.call("CQ_CREATE", entries=64)
    call = Call(libc.mmap, None, got.mmap_size, 3, 1, w.file.fd, got.mmap_offset)
    call.size = got.mmap_size
    call.undo = lambda: w.file.destroy(got.handle)
    return call


@case("file", "mmap", "mmap of a buffer", errors=("EAGAIN",))
def _(w):
    got = w.file.call("BUFFER_CREATE", pd=w.pd, node=N["NODE_ANY"], length=16 * PAGE, page_size=PAGE)
    call = Call(libc.mmap, None, 16 * PAGE, 3, 1, w.file.fd, got.mmap_offset)
    call.size = 16 * PAGE
    call.undo = lambda: w.file.destroy(got.handle)
    return call


@case("file", "poll", errors=("ENOMEM",))
def _(w):
    fds = struct.pack("ihh", w.file.fd, select.POLLIN, 0)
    array = ctypes.create_string_buffer(fds, 8)
    return Call(libc.poll, array, ctypes.c_ulong(1), ctypes.c_int(0), arg=array)


@case("file", "read", "read of an event")
def _(w):
    qp = Qp(w.file, w.pd, w.cq, depth=4)
    qp.modify(INIT[0], **INIT[1])
    mine = w.file.call("GRANT_CREATE", buffer=w.a.buffer.handle, access=ALL, length=64, qp=qp.handle)
    qp.modify("STATE", qp_state=N["QPS_ERR"])
    p = select.poll()
    p.register(w.file.fd, select.POLLIN)
    if not p.poll(20000 * PATIENCE):
        raise TimeoutError("no event")
    array = ctypes.create_string_buffer(64)
    return Call(
        libc.read,
        ctypes.c_int(w.file.fd),
        array,
        ctypes.c_size_t(32),
        arg=array,
        undo=lambda: (w.file.destroy(mine.handle), w.file.destroy(qp.handle)),
    )


@case("file", "fdinfo")
def _(w):
    fd = os.open(f"/proc/self/fdinfo/{w.file.fd}", os.O_RDONLY)
    array = ctypes.create_string_buffer(8192)
    return Call(
        libc.pread,
        ctypes.c_int(fd),
        array,
        ctypes.c_size_t(8192),
        ctypes.c_long(0),
        arg=array,
        undo=lambda: os.close(fd),
    )


def closing(r):
    """The last close of a file that has one of everything: whatever fails, nothing is left."""
    w = World()
    for kind in [k for k in KINDS if FULL or k in ("slab", "verb")]:
        seen, n = 0, 1
        w.faults.choose(kind)
        while True:
            before = w.snapshot()
            file = File("h1", "rxe1")
            pd = file.pd()
            cq = file.call("CQ_CREATE", entries=64)
            buffer_ = file.call("BUFFER_CREATE", pd=pd, node=N["NODE_ANY"], length=8 * PAGE)
            qp = Qp(file, pd, cq, depth=8).handle
            file.call("GRANT_CREATE", buffer=buffer_.handle, access=ALL, length=64, qp=qp)
            file.call("SRQ_CREATE", pd=pd, cq=cq.handle, max_wr=8, max_sge=1)
            file.ah(pd, w.b.file.gid().gid)
            file.call("LISTEN", addr=connect.addr("0.0.0.0"), backlog=4)
            file.call(
                "QP_MODIFY",
                qp=qp,
                attr_mask=N["QP_STATE"] | N["QP_PKEY_INDEX"] | N["QP_PORT"] | N["QP_ACCESS_FLAGS"],
                attr=S["qp_attr"](qp_state=N["QPS_INIT"], port_num=1),
            )
            file.submit([S["wr"](qp=qp, opcode=N["WR_RECV"]) for _ in range(4)])
            result, err, came = w.faults.call(n, libc.close, ctypes.c_int(file.fd))
            change = w.differs(before)
            if change or result:
                r.check(f"close: fault {n} of kind {kind}", False, (result, name_of(err), change))
                break
            if not came:
                break
            seen += 1
            n = following(n, kind)
        print(f"# | close of a file with everything, {kind} | {seen} |", flush=True)
    r.check("close: nothing is left, whatever fails", r.bad == 0)


def run_file(r, chosen):
    with ulp.host("h1"):
        # In the namespace of the first host, for open() itself.
        for it in [c for c in CASES if c.part == "file"]:
            wrap(it)
        run(r, "file", chosen)
        if not chosen:
            closing(r)


def wrap(it):
    """Undoes what the result names: a descriptor, a mapping."""
    make = it.make

    def wrapped(w):
        call = make(w)
        if call.function not in (libc.open, libc.mmap):
            return call
        function, undo = call.function, call.undo

        class Kept:
            result = None

        kept = Kept()

        def remember(*args):
            kept.result = function(*args)
            return kept.result

        def back():
            if function is libc.open:
                os.close(kept.result)
            else:
                libc.munmap(ctypes.c_void_p(kept.result), ctypes.c_size_t(call.size))
            if undo:
                undo()

        call.has_failed = (lambda result: result == FAILED) if function is libc.mmap else (lambda result: result < 0)
        call.function, call.undo = remember, back
        return call

    it.make = wrapped


# --- the module, devices, removal, addresses: see faultmodule.py ---------------------


def main():
    parts = ("query", "objects", "memory", "data", "manager", "uring", "file", "module", "device", "remove", "gid")
    if len(sys.argv) < 2 or sys.argv[1] not in parts:
        print(__doc__.split("\n\n")[1].strip(), file=sys.stderr)
        sys.exit(2)
    part, chosen = sys.argv[1], sys.argv[2:]
    report = ulp.Report()
    if part == "uring":
        report.run(part, run_uring, chosen)
    elif part == "file":
        report.run(part, run_file, chosen)
    elif part in ("module", "device", "remove", "gid"):
        import faultmodule

        report.run(part, getattr(faultmodule, "test_" + part))
    else:
        report.run(part, run, part, chosen)
        if part == "data" and not chosen:
            report.run("refused in the middle", refused_in_the_middle)
            report.run("refused with shared memory", refused_with_shared_memory)
            report.run("first without memory", first_without_memory)
    sys.stdout.flush()
    os._exit(report.status())


if __name__ == "__main__":
    main()
