# SPDX-License-Identifier: GPL-2.0
"""/dev/rust_ulp from Python, by the constants and structs of abi.py, which scripts/abi --python makes of the C header.

Nothing here is shared with the Rust crate: when both are wrong about the ABI, they are wrong in the
same header only.

One process can be both hosts: File(host="h1") opens the device inside that
network namespace, and a file keeps the namespace of its opener. Where the hosts
are two machines, what is made on h2 is made there, see away.py.
"""

import _random  # random itself takes longer to load than most tests
import contextlib
import ctypes
import errno
import mmap
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

# In a guest it is beside this file.
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../build/abi"))
from abi import N, OUT, S, SIZES  # noqa: F401 # OUT is for the modules that import this one
from personality import HERE

here = os.path.dirname(os.path.abspath(__file__))
DEVICE = "/dev/rust_ulp"
# The driver whose rules the lab's adapter has, where it takes the place of Soft-RoCE.
HCA = os.environ.get("ULP_HCA", "")
# The right to atomics, where a driver grants it.
REMOTE_ATOMIC = N["ACCESS_REMOTE_ATOMIC"] if HERE.grants_atomics else 0
# A page of the kernel, and how commands are asked for such pages, whatever their size.
PAGE, SMALL = mmap.PAGESIZE, 4096
# The devices of h1 and h2.
DEV1, DEV2 = ("hca1", "hca2") if HCA else ("rxe1", "rxe2")
libc = ctypes.CDLL(None, use_errno=True)

STATUS = {
    0: "success",
    1: "local length",
    2: "local QP operation",
    4: "local protection",
    5: "flushed",
    9: "remote invalid request",
    10: "remote access",
    11: "remote operation",
    12: "retries exceeded",
    13: "receiver not ready, retries exceeded",
}


@contextlib.contextmanager
def host(name):
    """Runs the block in the network namespace `name`; None: where we are."""
    if name is None:
        yield
        return
    with open("/proc/thread-self/ns/net") as before, open("/run/netns/" + name) as there:
        os.setns(there.fileno(), os.CLONE_NEWNET)
        try:
            yield
        finally:
            os.setns(before.fileno(), os.CLONE_NEWNET)


# Where the hosts are two machines: h1 is here, h2 is reached by this command.
PEER = shutil.which("peer")


def at(name):
    """What stands in front of a command that is to run on the host `name`."""
    return ([PEER] if PEER and name == "h2" else []) + ["ip", "netns", "exec", name]


class OnHost:
    """What is made on a host, which is the first argument: on another machine if that is where it is."""

    def __new__(cls, host_name=None, *args, **kwargs):
        if PEER and host_name == "h2":
            import away

            return away.make(cls, host_name, *args, **kwargs)
        return super().__new__(cls)


def text(array):
    return bytes(array).split(b"\0")[0].decode()


def ioctl(fd, cmd, arg):
    """The system call as it is: no retry, no copy of the argument."""
    if libc.ioctl(fd, ctypes.c_ulong(cmd), arg) < 0:
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e))


def sizes_of(struct):
    """The members of `struct` that say the size of another struct."""
    return {member: ctypes.sizeof(S[of]) for member, of in SIZES.get(struct, {}).items()}


def trouble(*kinds, more):
    """Returns a pattern for the kinds of tests/vm/trouble, and for `more`."""
    with open(f"{here}/trouble") as f:
        lines = (line.rstrip("\n").partition(" ") for line in f)
        return re.compile("|".join([more, *(pattern for kind, _, pattern in lines if kind in kinds)]))


def gid_of(name):
    """The index and the text of the device's RoCE v2 GID with an IPv4 address."""
    base = f"/sys/class/infiniband/{name}/ports/1"
    for index in range(16):
        try:
            with open(f"{base}/gids/{index}") as f:
                gid = f.read().strip()
            with open(f"{base}/gid_attrs/types/{index}") as f:
                kind = f.read().strip()
        except OSError:
            continue
        if kind == "RoCE v2" and gid.startswith("0000:0000:0000:0000:0000:ffff:"):
            return index, gid
    raise LookupError(f"{name} has no RoCE v2 GID with an IPv4 address")


DEBUG = bool(os.environ.get("ULP_DEBUG"))


def count(name, few, debug=None):
    """How many: what the variable `name` says, else few, and even fewer on the debug kernel."""
    return int(os.environ.get(name) or (debug if DEBUG and debug else few))


# What a deadline is multiplied by: see lib.sh. Base values are seconds of an idle guest.
PATIENCE = int(os.environ.get("ULP_PATIENCE") or 5)


def hang_ns(seconds=20):
    """A deadline for the module that only a hang meets, in nanoseconds."""
    return int(seconds * PATIENCE * 10**9)


def until(function, seconds=20):
    """Polls until the function's value is true; returns its last value, which is false after a hang."""
    end = time.monotonic() + seconds * PATIENCE
    while not (got := function()) and time.monotonic() < end:
        time.sleep(0.02)
    return got


def shell(words):
    """Runs a command of the shell; its status, and what it printed."""
    command = ["timeout", str(20 * PATIENCE), "sh", "-c", words]
    got = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return got.returncode, got.stdout


def adapter(**parameters):
    """Sets parameters of the lab's adapter."""
    for name, value in parameters.items():
        with open(f"/sys/module/ulp_hca/parameters/{name}", "w") as f:
            # Without the line feed, an empty string would not be written.
            f.write(f"{value}\n")


def unplug(device):
    """Takes a device away."""
    return shell(f"echo 1 >/sys/class/infiniband/{device}/device/remove" if HCA else f"rdma link del {device}")


def plug():
    """Brings the device of h1 back."""
    return shell(f"{here}/../hca/hosts up" if HCA else "ip netns exec h1 rdma link add rxe1 type rxe netdev w1")


@contextlib.contextmanager
def cut():
    """The line between the hosts is cut while the block runs."""
    if HCA:
        adapter(deaf=2)
    else:
        line = "dev w2 root netem loss 100%"
        subprocess.run(f"ip netns exec h2 tc qdisc add {line}".split(), check=True)
    try:
        yield
    finally:
        if HCA:
            adapter(deaf=0)
        else:
            subprocess.run(f"ip netns exec h2 tc qdisc del {line}".split(), check=True)


def sleeps_in_module(thread, function="rust_ulp"):
    """Whether the thread has come into the module, or that function, and sleeps there: one on its way does not."""
    return task_sleeps_in_module(f"self/task/{thread.native_id}", function)


def resolves(thread):
    """Whether the thread has the RDMA core look for an address: the GID is held (verbs.c: rdma_create_user_ah())."""
    return sleeps_in_module(thread, "rdma_addr_find_l2_eth_by_grh")


def task_sleeps_in_module(task, function="rust_ulp"):
    """The same of a directory of /proc."""
    try:
        with open(f"/proc/{task}/stack") as stack, open(f"/proc/{task}/stat") as stat:
            return function in stack.read() and stat.read().rsplit(")", 1)[1].split()[0] in "SD"
    except (FileNotFoundError, ProcessLookupError):
        return False


def ignore_children():
    """Has no child that ends wake this thread. While it forks, subprocess blocks all signals of its own thread: the
    kernel keeps a SIGCHLD then, and gives it to another thread, whose wait is EINTR (kernel/signal.c:sig_ignored)."""
    if threading.current_thread() is not threading.main_thread():
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})


class Missing(OSError):
    """The adapter lacks, by the table of personality.py, what a test needs. The test is skipped; tests/skips.txt must
    allow it."""


def need_reset():
    """Skips a test that is about the change to RESET."""
    if not HERE.resets:
        raise Missing(errno.EOPNOTSUPP, f"{HCA} has not a way back from RESET")


def lacks(command, arg, error):
    """What the adapter lacks for that command, which failed, or nothing."""
    if command == "CQ_CREATE":
        return arg.entries > HERE.cqe and "such long completion queues"
    if command == "SRQ_CREATE":
        return not HERE.srq and "shared receive queues"
    if command == "QP_MODIFY":
        is_reset = arg.attr_mask & N["QP_STATE"] and arg.attr.qp_state == N["QPS_RESET"]
        return is_reset and not HERE.resets and "a way back from RESET"
    if command == "SUBMIT":
        # With any other error the requests may lie where nothing is.
        wrs = (S["wr"] * arg.nr_wrs).from_address(arg.wrs) if error == errno.EOPNOTSUPP else ()
        names = [n for n in N if n.startswith("WR_") for wr in wrs if N[n] == wr.opcode]
        return next((n for n in names if not HERE.posts(n.removeprefix("WR_"))), "")
    if command != "QP_CREATE":
        return ""
    kind = next(k for k in ("RC", "UC", "UD") if N["QPT_" + k] == arg.qp_type)
    if kind not in HERE.kinds:
        return "queue pairs of type " + kind
    if arg.max_send_sge > HERE.send_sge:
        return f"{arg.max_send_sge} elements"
    if arg.max_inline > HERE.inline:
        return f"{arg.max_inline} bytes inline"
    return max(arg.max_send_wr, arg.max_recv_wr) > HERE.wr and "such long queues"


class File(OnHost):
    """An open file of the device, and its commands."""

    def __init__(self, host_name=None, attach=None):
        with host(host_name):
            self.fd = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
        if attach is not None:
            self.attach(attach)

    def close(self):
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def call(self, command, name=None, /, **fields):
        """Issues the command with its struct filled from `fields`; returns the struct."""
        struct = name or command.lower()
        arg = S[struct](**{"size": 0} | sizes_of(struct) | fields)
        arg.size = arg.size or ctypes.sizeof(arg)
        try:
            ioctl(self.fd, N["IOC_" + command], ctypes.byref(arg))
        except OSError as e:
            if HCA and (what := lacks(command, arg, e.errno)):
                raise Missing(e.errno, f"{HCA} has not {what}") from None
            raise
        return arg

    def issue(self, command, arg):
        """Issues the command with that struct: the errno, 0 when it succeeded, and the struct."""
        arg.size = ctypes.sizeof(arg)
        try:
            ioctl(self.fd, N["IOC_" + command], ctypes.byref(arg))
        except OSError as e:
            return e.errno, arg
        return 0, arg

    def entries(self, command, entry, **fields):
        kind = S[entry]
        array = (kind * 64)()
        got = self.call(command, entries=ctypes.addressof(array), capacity=64, **fields)
        return list(array[: got.count])

    def devices(self):
        return self.entries("DEVICE_LIST", "device_entry")

    def attach(self, name=""):
        arg = S["attach"](size=ctypes.sizeof(S["attach"]), **sizes_of("attach"))
        ctypes.memmove(arg.name, name.encode(), len(name))
        ioctl(self.fd, N["IOC_ATTACH"], ctypes.byref(arg))
        self.name, self.port, self.gid_index = text(arg.name), arg.port, arg.gid_index
        return arg

    def gid(self):
        return next(e for e in self.entries("GID_QUERY", "gid_entry", port=self.port) if e.index == self.gid_index)

    def lid(self):
        """The LID of the port, 0 on Ethernet."""
        return self.call("PORT_QUERY", port=self.port).lid

    def pd(self):
        return self.call("PD_CREATE").handle

    def ah(self, pd, dgid, **more):
        """An address: of the host with the GID `dgid`, 16 bytes."""
        attr = S["ah_attr"](**{"sgid_index": self.gid_index, "port_num": self.port, "is_global": 1} | more)
        ctypes.memmove(attr.dgid, bytes(dgid), 16)
        return self.call("AH_CREATE", pd=pd, attr=attr)

    def destroy(self, handle):
        self.call("DESTROY", handle=handle)

    def grant(self, buffer, access=None, offset=0, length=None):
        if access is None:
            access = N["ACCESS_REMOTE_WRITE"]
        length = length or buffer.length
        try:
            return self.call("GRANT_CREATE", buffer=buffer.handle, access=access, offset=offset, length=length)
        except OSError as e:
            if HERE.key is not None and length > HERE.key:
                raise Missing(e.errno, f"a key of {HCA} has {HERE.key} bytes, not {length}") from None
            raise

    def submit(self, wrs=(), cq=0, min_complete=0, timeout_ns=0, flags=0):
        """Posts all of `wrs`, and waits. Fails as well when only the first of them are posted: EAGAIN."""
        array = (S["wr"] * max(1, len(wrs)))(*wrs)
        got = self.call(
            "SUBMIT",
            flags=flags,
            wrs=ctypes.addressof(array),
            nr_wrs=len(wrs),
            cq=cq,
            min_complete=min_complete,
            timeout_ns=timeout_ns,
        )
        if got.stop_error:
            raise OSError(-got.stop_error, f"{got.posted} requests of {len(wrs)} were posted")
        return got

    def try_submit(self, requests, **fields):
        """Issues SUBMIT. Returns the name of its errno, `posted`, the name of `stop_error`, and the struct."""
        array = (S["wr"] * len(requests))(*requests)
        fields = {"wrs": ctypes.addressof(array), "nr_wrs": len(requests), **sizes_of("submit"), **fields}
        arg = S["submit"](**fields)
        arg.size = ctypes.sizeof(arg)
        why = error_of(ioctl, self.fd, N["IOC_SUBMIT"], ctypes.byref(arg))
        return why, arg.posted, error_name(-arg.stop_error), arg

    def events(self):
        """The records that are there, as (event, handle, port, info)."""
        return [(e.event, e.handle, e.port, e.info) for e in self.records()]

    def records(self):
        """The records that are there."""
        out = []
        os.set_blocking(self.fd, False)
        try:
            while data := os.read(self.fd, 64 * ctypes.sizeof(S["event"])):
                out += (S["event"] * (len(data) // ctypes.sizeof(S["event"]))).from_buffer_copy(data)
        except BlockingIOError:
            return out
        finally:
            os.set_blocking(self.fd, True)

    def map(self, length, offset):
        return mmap.mmap(self.fd, length, flags=mmap.MAP_SHARED, offset=offset, trackfd=False)


class Cq:
    def __init__(self, file, entries=256, delivery=0, busy_poll_us=0, **more):
        self.file = file
        got = file.call("CQ_CREATE", entries=entries, delivery=delivery, busy_poll_us=busy_poll_us, **more)
        self.handle, self.entries, self.offset = got.handle, got.entries, got.mmap_offset
        self.map = file.map(got.mmap_size, got.mmap_offset)
        self.ring = S["cq_ring"].from_buffer(self.map)
        self.slots = (S["cqe"] * got.entries).from_buffer(self.map, N["CQ_ENTRIES_OFFSET"])

    def reap(self):
        """Copies of the completions that are there."""
        out, head = [], self.ring.head
        while head != self.ring.tail:
            out.append(S["cqe"].from_buffer_copy(self.slots[head & (self.entries - 1)]))
            head = (head + 1) & 0xFFFFFFFF
        self.ring.head = head
        return out

    def wait(self, count, seconds=20):
        """Sleeps until `count` completions were reaped, and returns them."""
        out = self.reap()
        while len(out) < count:
            got = self.file.submit(
                cq=self.handle, min_complete=min(count - len(out), self.entries), timeout_ns=hang_ns(seconds)
            )
            more = self.reap()
            if got.wait_error and not more:
                raise OSError(-got.wait_error, f"{len(out)} of {count} completions came")
            out += more
        return out


class Buffer:
    def __init__(self, file, pd, length, page_size=0, node=N["NODE_ANY"]):
        got = file.call("BUFFER_CREATE", pd=pd, node=node, length=length, page_size=page_size)
        self.handle, self.length, self.page_size = got.handle, got.length, got.page_size
        self.offset = got.mmap_offset
        self.keys, self.key_bytes, self.node = got.keys, got.key_bytes, got.node
        self.map = file.map(got.length, got.mmap_offset)


class UserBuffer:
    """Memory of the process, registered where it is: `length` bytes from `at` on in `memory`, an mmap."""

    def __init__(self, file, pd, memory, at=0, length=None, flags=0):
        self.memory, self.at = memory, at
        start = address_of(memory)
        self.length = len(memory) - at if length is None else length
        got = file.call("BUFFER_REGISTER", pd=pd, addr=start + at, length=self.length, flags=flags)
        self.handle, self.keys, self.key_bytes, self.page_size = got.handle, got.keys, got.key_bytes, got.page_size


def address_of(memory):
    """Where an mmap is, writable or not."""

    class View(ctypes.Structure):
        _fields_ = [(n, ctypes.c_void_p) for n in "buf obj len itemsize".split()] + [("rest", ctypes.c_char * 64)]

    view = View()
    if ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(memory), ctypes.byref(view), 0):
        raise BufferError
    try:
        return view.buf
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(view))


def make_wr(queue, op, buffer, offset, length, fields):
    """A request for that queue over `length` bytes of `buffer`, if there is one."""
    wr = S["wr"](qp=queue, opcode=N["WR_" + op], **fields)
    if wr.timeout_ns:
        wr.flags |= N["REQUEST_TIMEOUT"]
    if buffer is not None:
        wr.num_sge = 1
        wr.sge = S["sge"](buffer=buffer.handle, length=length, offset=offset)
    return wr


class Srq:
    """A shared receive queue."""

    def __init__(self, file, pd, cq, max_wr=64, max_sge=1, limit=0):
        self.file, self.cq = file, cq
        got = file.call("SRQ_CREATE", pd=pd, cq=cq.handle, max_wr=max_wr, max_sge=max_sge, limit=limit)
        self.handle, self.max_wr, self.max_sge = got.handle, got.max_wr, got.max_sge

    def query(self):
        return self.file.call("SRQ_QUERY", srq=self.handle)

    def limit(self, limit):
        self.file.call("SRQ_MODIFY", srq=self.handle, limit=limit)

    def recv(self, buffer=None, offset=0, length=0, **fields):
        """A receive request over `length` bytes of `buffer`."""
        return make_wr(self.handle, "RECV", buffer, offset, length, fields)


class Qp:
    """A queue pair. `caps` are more fields of QP_CREATE."""

    def __init__(self, file, pd, cq, depth=128, recv_cq=None, kind="RC", srq=0, **caps):
        self.file, self.cq, self.kind = file, cq, kind
        caps = {"max_send_wr": depth, "max_recv_wr": depth, "max_send_sge": 1, "max_recv_sge": 1} | caps
        queues = {"pd": pd, "send_cq": cq.handle, "recv_cq": (recv_cq or cq).handle, "srq": srq}
        self.fields = queues | {"qp_type": N["QPT_" + kind]} | caps
        self.create()

    def create(self):
        got = self.file.call("QP_CREATE", **self.fields)
        self.handle, self.num = got.handle, got.qp_num

    def reset(self):
        """Back to RESET. Where the driver has no way, a new queue pair with another number takes its place."""
        if HERE.resets:
            self.modify("STATE", qp_state=N["QPS_RESET"])
        else:
            self.file.destroy(self.handle)
            self.create()

    def modify(self, mask, **fields):
        ah = fields.pop("ah", None)
        attr = S["qp_attr"](**fields)
        if ah:
            attr.ah = ah
        bits = 0
        for name in mask.split():
            bits |= N["QP_" + name]
        return self.file.call("QP_MODIFY", qp=self.handle, attr_mask=bits, attr=attr)

    def connect(self, *where, **more):
        """INIT, RTR, RTS towards the peer whose number, GID of 16 bytes, and first packets are `where`."""
        try:
            self.to_rts(*where, **more)
        except OSError as e:
            raise type(e)(e.errno, f"{e.strerror}, on the way to {self.step}") from None

    def to_rts(
        self, dest_qp_num, dgid, rq_psn, sq_psn, mtu=0, timeout=14, retry_cnt=7, rnr_retry=7, lid=0, reads=(1, 1)
    ):
        f = self.file
        if not mtu:
            # The MTU of a port depends on the personality of the lab's adapter.
            mtu = f.call("PORT_QUERY", port=f.port).active_mtu.bit_length() - 8 if f.name.startswith("hca") else 5
        self.step = "INIT"
        self.modify(
            "STATE PKEY_INDEX PORT ACCESS_FLAGS",
            qp_state=N["QPS_INIT"],
            port_num=f.port,
            access_flags=N["ACCESS_REMOTE_WRITE"] | N["ACCESS_REMOTE_READ"],
        )
        ah = S["ah_attr"](sgid_index=f.gid_index, port_num=f.port, is_global=1, hop_limit=64)
        ctypes.memmove(ah.dgid, bytes(dgid), 16)
        ah.dlid, ah.dlid_high = lid & 0xFFFF, lid >> 16
        self.step = "RTR"
        self.to_rtr(ah, dest_qp_num, rq_psn, mtu, reads[0])
        self.step = "RTS"
        self.modify(
            "STATE SQ_PSN" + (self.kind == "RC") * " TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC",
            qp_state=N["QPS_RTS"],
            timeout=timeout,
            retry_cnt=retry_cnt,
            rnr_retry=rnr_retry,
            sq_psn=sq_psn,
            max_rd_atomic=reads[1],
        )

    def to_rtr(self, ah, dest_qp_num=17, rq_psn=0, mtu=3, reads=1):
        """From INIT to RTR, towards a queue pair that need not exist."""
        self.modify(
            "STATE AV PATH_MTU DEST_QPN RQ_PSN" + (self.kind == "RC") * " MAX_DEST_RD_ATOMIC MIN_RNR_TIMER",
            qp_state=N["QPS_RTR"],
            path_mtu=mtu,
            dest_qp_num=dest_qp_num,
            rq_psn=rq_psn,
            max_dest_rd_atomic=reads,
            min_rnr_timer=12,
            ah=ah,
        )

    def start(self, qkey, sq_psn=0):
        """INIT, RTR, RTS, of a queue pair of datagrams."""
        self.modify("STATE PKEY_INDEX PORT QKEY", qp_state=N["QPS_INIT"], port_num=self.file.port, qkey=qkey)
        self.modify("STATE", qp_state=N["QPS_RTR"])
        self.modify("STATE SQ_PSN", qp_state=N["QPS_RTS"], sq_psn=sq_psn)

    def datagram(self, ah, peer, qkey, *args, op="SEND", **fields):
        """A request as wr() makes it, to the queue pair numbered `peer` by way of `ah`."""
        return self.wr(op, *args, ud=(ah, peer, qkey), **fields)

    def wr(self, op, buffer=None, offset=0, length=0, atomic=(), ud=(), **fields):
        """One request over `length` bytes of `buffer`, signalled unless flags say otherwise.

        `atomic` and `ud` are the members of that arm of `args`, in their order.
        """
        if op != "RECV":
            fields.setdefault("flags", N["SEND_SIGNALED"])
        wr = make_wr(self.handle, op, buffer, offset, length, fields)
        if atomic:
            wr.args.atomic = atomic
        if ud:
            wr.args.ud = ud
        return wr


class End(OnHost):
    """One end of a connection with all it needs: attached file, PD, CQ, QP, a granted buffer. `more` is for Qp."""

    def __init__(self, host_name=None, device="", length=1 << 16, access=None, entries=256, **more):
        # On InfiniBand each host sees both.
        self.file = File(host_name, device or (HCA and {"h2": DEV2}.get(host_name, DEV1)))
        self.pd = self.file.pd()
        self.cq = Cq(self.file, entries)
        self.buffer = Buffer(self.file, self.pd, length)
        self.grant = self.file.grant(self.buffer, access)
        self.qp = Qp(self.file, self.pd, self.cq, **more)
        self.psn = self.qp.num * 4099 & 0xFFFFFF

    def close(self):
        """Closes the file and its mappings, each of which would keep it open."""
        self.file.close()
        self.buffer.map.close()
        del self.cq.ring, self.cq.slots
        self.cq.map.close()

    def connect(self, peer, **more):
        self.qp.connect(peer.qp.num, peer.file.gid().gid, peer.psn, self.psn, lid=peer.file.lid(), **more)

    def meet(self, peer, **more):
        """Connects the two ends with each other."""
        self.connect(peer, **more)
        peer.connect(self, **more)

    def write(self, peer, length, offset=0, remote_offset=0, **fields):
        return self.qp.wr(
            "RDMA_WRITE",
            self.buffer,
            offset,
            length,
            **remote(peer.grant, remote_offset),
            **fields,
        )


def remote(grant, offset=0):
    """The fields of a request that name the memory of that grant, from `offset` on."""
    return {"remote_addr": grant.addr + offset, "rkey": grant.rkey}


# A sender notices that its peer is gone, after 7 tries of 0.27 s each. With rxe a
# retry count of 7 stands for ever, as it does for the receiver's readiness.
FINITE = {"retry_cnt": 6, "timeout": 16}


def pair(length=1 << 16, connect=None, prepare=None, **more):
    """Two connected ends, on h1 and h2; `connect` is for Qp.connect, `prepare` is called with each end before."""
    a, b = End("h1", length=length, **more), End("h2", length=length, **more)
    for end in (a, b) if prepare else ():
        prepare(end)
    a.meet(b, **connect or {})
    return a, b


def each_once(r, name, got, opcode, count):
    """The completions are those of 20 receives and of `count` sends from 100 on, each once, in order."""
    r.equal(
        name,
        (
            [c.user_data for c in got if c.opcode == N["WC_RECV"]],
            [c.user_data for c in got if c.opcode == N[opcode]],
            {c.status for c in got} <= {0, 5},
        ),
        (list(range(20)), list(range(100, 100 + count)), True),
    )


def error_of(function, *args, **kwargs):
    """The name of the errno that the call fails with; "none" when it does not."""
    try:
        function(*args, **kwargs)
    except OSError as e:
        return error_name(e.errno)
    return "none"


def error_name(number):
    """The name of an errno; "none" of 0."""
    if number == errno.EOPNOTSUPP:
        return "EOPNOTSUPP"
    return errno.errorcode.get(number, str(number)) if number else "none"


def delete_module(name=b"rust_ulp"):
    """Unloads a module: "none", or the errno's name."""
    return "none" if libc.delete_module(name, os.O_NONBLOCK) == 0 else errno.errorcode[ctypes.get_errno()]


def plain(text):
    """The text as one line without `#`, which begins a directive in KTAP."""
    return " ".join(str(text).split("\n")).replace("#", "_")


class Report:
    """Prints KTAP: a line for each test as it ends, and the plan with `status`, which is for sys.exit."""

    def __init__(self):
        self.bad = self.good = self.skipped = 0
        print("KTAP version 1", flush=True)

    def line(self, result, rest):
        print(f"{result} {self.good + self.bad + self.skipped} {rest}", flush=True)

    def note(self, text):
        """Prints a diagnostic."""
        print("".join(f"# {line}\n" for line in str(text).splitlines()), end="", flush=True)

    def skip(self, name, why):
        self.skipped += 1
        self.line("ok", f"{plain(name)} # SKIP {plain(why)}")

    def check(self, name, condition, why="it is not so"):
        if condition:
            self.good += 1
            self.line("ok", plain(name))
        else:
            if len(str(why)) > 600 or "\n" in str(why):
                self.note(why)
            why = plain(why)[:600]
            # `# SKIP` and the like would be a pass.
            if re.match(r"\s*(SKIP|TODO|XFAIL)", why, re.I):
                why = f"failed: {why}"
            self.bad += 1
            self.line("not ok", f"{plain(name)} # {why}")
        return condition

    def equal(self, name, got, want):
        return self.check(name, got == want, f"got {got!r}, want {want!r}")

    def run(self, name, function, *args):
        """Calls a test that makes checks of its own; what it raises is a failure."""
        try:
            return function(self, *args)
        except Missing as e:
            self.skip(name, e.strerror)
            return None
        except Exception as e:  # a test that breaks off is a failed test, the others go on
            where = e.__traceback__
            while where.tb_next:
                where = where.tb_next
            self.check(
                name,
                False,
                f"{type(e).__name__}: {e} (line {where.tb_lineno}"
                f" of {os.path.basename(where.tb_frame.f_code.co_filename)})",
            )
            return None

    def status(self):
        """Prints the plan; 0 when there were tests, and none failed."""
        total = self.good + self.bad + self.skipped
        print(f"1..{total}", flush=True)
        return 0 if total and not self.bad else 1


def pattern(seed, length):
    """Bytes that look random, and are others with each seed; a shorter pattern begins a longer one."""
    size = (length + 3) & ~3
    return _random.Random(seed).getrandbits(8 * size).to_bytes(size, "little")[:length]


def main(doc, tests):
    """Runs test_NAME of `tests` for the only argument NAME; else prints the usage, the second part of `doc`."""
    test = tests.get("test_" + (sys.argv[1] if len(sys.argv) == 2 else ""))
    if test is None:
        print(doc.split("\n\n")[1].strip(), file=sys.stderr)
        sys.exit(2)
    report = Report()
    report.run(sys.argv[1], test)
    sys.stdout.flush()
    os._exit(report.status())  # threads that still hang must not hold us
