# SPDX-License-Identifier: GPL-2.0
"""What the checks of the labs share.

A check is the other end of a learner's program: it runs in h1, on rxe1, and the program in h2, on rxe2.
It judges what the machine saw: memory, packets on the line, counters, states, tracepoints. It prints one
line of JSON: `key` is null, or names the assertion that failed, for which hints.*.txt have a hint.
"""

import contextlib
import ctypes
import glob
import ipaddress
import json
import mmap
import os
import random
import re
import select
import shlex
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from typing import NamedTuple

from texts import say

PATIENCE = int(os.environ.get("ULP_PATIENCE") or 5)
# So many seconds at most a deadline counts between two looks at it: a machine that stalls takes none of it.
STEP = 0.25
TRACEFS = "/sys/kernel/tracing"
TRACING = f"{TRACEFS}/instances/learn"
HOST, HOST6, PORT = "10.9.0.1", "fd09::1", 18600
ROCE = 4791
draw = random.SystemRandom()


class Failed(Exception):
    """An assertion of a check: its key, what was seen, what was expected."""

    def __init__(self, key, seen, expected):
        super().__init__(key)
        self.key, self.seen, self.expected = key, str(seen), str(expected)


def split(key, command):
    """The words of a command of the learner's."""
    try:
        return shlex.split(command)
    except ValueError as error:
        raise Failed(key, f"{command}: {error}", say("a command")) from error


def expect(key, good, seen, expected):
    if not good:
        raise Failed(key, seen, expected)


class Limit:
    """A deadline, as long as this guest is slow. It tells a hang, and nothing else."""

    def __init__(self, count):
        self.seconds = self.left = count * PATIENCE
        self.seen = time.monotonic()

    def over(self):
        now = time.monotonic()
        self.left -= min(now - self.seen, STEP)
        self.seen = now
        return self.left < 0


def until(condition, count=2):
    """Waits for the condition; what it returned, or None after that time."""
    limit = Limit(count)
    while not (got := condition()):
        if limit.over():
            return None
        time.sleep(0.005)
    return got


def run(*command):
    """What a command prints. That it fails is no mistake of the learner's."""
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60 * PATIENCE).stdout


def write(path, text):
    with open(path, "w") as f:
        f.write(text)


def append(path, text):
    """Appends to a file that cannot seek to its end, as open() would (fs/seq_file.c:seq_lseek)."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def in_host(host):
    """A command's words that run what follows in a host, or with None in the guest itself."""
    return ["ip", "netns", "exec", host] if host else ["nsenter", "--net=/proc/1/ns/net"]


class Program:
    """The learner's program, or another, with its output in a file."""

    def __init__(self, *words, host="h2"):
        self.output = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [*in_host(host), *map(str, words)], stdin=subprocess.DEVNULL, stdout=self.output, stderr=subprocess.STDOUT
        )
        self.pid = self.process.pid

    def status(self):
        return self.process.poll()

    def said(self):
        self.output.seek(0)
        return self.output.read()

    def last(self):
        lines = self.said().strip().splitlines()
        return lines[-1] if lines else say("it printed nothing")

    def early(self):
        """Returns how the program ended, which it did before its next line."""
        if self.status() < 0 or not self.said().strip():
            return self.ended()
        return say("The program ended before that line, with status {}; its message is below", self.status())

    def ended(self, who=None):
        """How it ended, in words; `who` is another one than the program."""
        who, status = who or say("the program"), self.status()
        if status < 0:
            return say("{} ended with signal {}: {}", who, -status, self.last())
        return say("{} ended with status {}: {}", who, status, self.last())

    def wait(self, count=4):
        """Its status; a program that goes on is a failure."""
        if not until(lambda: self.status() is not None, count):
            self.stop()
            seen = say("no end after {} s; it says: {}", count * PATIENCE, self.last())
            raise Failed("time", seen, say("an end"))
        return self.status()

    def rest(self):
        """Waits until the program waits."""
        until(self.resting(), 4)

    def resting(self):
        """A condition: the program waits. It sleeps, and nothing has woken it between some looks in a row."""
        before, same, seen = None, 0, time.monotonic()

        def look():
            nonlocal before, same, seen
            if time.monotonic() - seen >= 0.05:
                seen, now = time.monotonic(), self._sleeps()
                same = same + 1 if now and now == before else 0
                before = now
            return same >= 10 or self.status() is not None

        return look

    def _sleeps(self):
        """How often each thread has slept, or nothing when one of them runs."""
        found = []
        for path in sorted(glob.glob(f"/proc/{self.pid}/task/*/status")):
            with contextlib.suppress(OSError), open(path) as f:
                fields = dict(re.findall(r"^(\w+):\s+(\w+)", f.read(), re.MULTILINE))
                if fields["State"] != "S":
                    return []
                found.append(fields["voluntary_ctxt_switches"])
        return found

    def stop(self):
        """Kills it. One that sleeps in the kernel stays."""
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=PATIENCE)


class Traced:
    """The program, traced: it runs from system call to system call, and can be stopped behind one."""

    SYSCALL, DETACH, SEIZE, INTERRUPT, WALL = 24, 17, 0x4206, 0x4207, 0x40000000

    def __init__(self, program):
        self.program, self.libc = program, ctypes.CDLL(None, use_errno=True)
        self.libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
        self._do(self.SEIZE)
        # The signal that it gets when it goes on; None when it has ended.
        self.signal = self._wait(lambda: True)

    def _do(self, request, data=0):
        if self.libc.ptrace(request, self.program.pid, None, data):
            raise OSError(ctypes.get_errno(), f"ptrace {request:#x}")

    def _wait(self, interrupts):
        limit, asked = Limit(6), False
        while not limit.over():
            pid, status = os.waitpid(self.program.pid, self.WALL | os.WNOHANG)
            if pid and not os.WIFSTOPPED(status):
                self.program.process.returncode = os.waitstatus_to_exitcode(status)
                return None
            if pid:
                number = os.WSTOPSIG(status)
                return 0 if number == signal.SIGTRAP or status >> 16 else number
            if not asked and interrupts():
                asked = True
                self._do(self.INTERRUPT)
            time.sleep(0.0005)
        raise RuntimeError("the program cannot be stopped")

    def run_until(self, condition, pause=0.0):
        """Lets it run until the condition holds, which gets `pause` seconds after each system call, or it ends."""
        limit = Limit(3)
        while self.signal is not None:
            end = time.monotonic() + pause
            while not (holds := condition()) and time.monotonic() < end:
                time.sleep(0.0005)
            if holds or limit.over():
                return
            self._do(self.SYSCALL, self.signal)
            self.signal = self._wait(lambda: condition() or limit.over())

    def end(self):
        """Lets it run on, not traced any more."""
        if self.signal is not None:
            self._do(self.DETACH, self.signal)


class Wire:
    """The exchange: a TCP connection on which each end sends lines of `name=value`."""

    def __init__(self, port=PORT):
        self.server = socket.create_server((HOST, port), reuse_port=True)
        self.server.settimeout(0.05)
        self.program = self.socket = None
        self.rest = b""

    def meet(self, program):
        self.program = program
        until(lambda: self._accept() or program.status() is not None, 3)
        # What a program that has ended had begun is there.
        self._accept()
        seen = say("no connection") if program.status() is None else program.ended()
        expect("exchange", self.socket, seen, say("a connection to {}:{}", HOST, PORT))
        self.socket.settimeout(0.05)

    def _accept(self):
        with contextlib.suppress(TimeoutError):
            self.socket = self.socket or self.server.accept()[0]
        return self.socket

    def say(self, **fields):
        with contextlib.suppress(ConnectionError):
            self.socket.sendall((" ".join(f"{k}={v}" for k, v in fields.items()) + "\n").encode())

    def tell(self, word):
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(f"{word}\n".encode())

    def _more(self):
        try:
            data = self.socket.recv(4096)
        except TimeoutError:
            return None
        except ConnectionError:
            data = b""
        self.rest += data
        return data or b"\n" in self.rest or "closed"

    def has_line(self):
        """Whether the next line is there."""
        if b"\n" not in self.rest and select.select([self.socket], [], [], 0)[0]:
            self._more()
        return b"\n" in self.rest

    def line(self, count=3):
        """The next line; None when the program has closed the connection."""
        limit = Limit(count)
        while b"\n" not in self.rest:
            if self._more() == "closed":
                return None
            if limit.over():
                seen = say("no line after {} s; it says: {}", limit.seconds, self.program.last())
                raise Failed("time", seen, say("a line"))
        line, _, self.rest = self.rest.partition(b"\n")
        return line.decode(errors="replace").strip()

    def hear(self, *names):
        """The next line's fields as numbers; `gid` as 16 bytes."""
        line = self.line()
        wanted = say("a line with {}", " ".join(f"{name}=" for name in names))
        if line is None:
            self.program.wait()
            raise Failed("exchange", self.program.early(), wanted)
        found = dict(re.findall(r"(\w+)=(\S+)", line))
        try:
            return {name: gid(found[name]) if name == "gid" else int(found[name], 0) for name in names}
        except (KeyError, ValueError):
            raise Failed("exchange", repr(line), wanted) from None

    def word(self, word):
        line = self.line()
        if line is None:
            self.program.wait()
            raise Failed("exchange", self.program.early(), say("the line '{}'", word))
        expect("exchange", line == word, repr(line), say("the line '{}'", word))


def gid(text):
    return ipaddress.IPv6Address(text).packed


def text_of(gid_bytes):
    """A GID as libibverbs writes it."""
    return ":".join(re.findall("....", gid_bytes.hex()))


def gids(device):
    """The entries of the device's table: index, GID, type."""
    base = f"/sys/class/infiniband/{device}/ports/1"
    found = []
    for index in range(32):
        with (
            contextlib.suppress(OSError),
            open(f"{base}/gids/{index}") as g,
            open(f"{base}/gid_attrs/types/{index}") as t,
        ):
            found.append((index, gid(g.read().strip()), t.read().strip()))
    return found


def gid_entry(device, address):
    """The index and the GID by which a device sends from an address."""
    address = ipaddress.ip_address(address)
    wanted = (b"\0" * 10 + b"\xff\xff" if address.version == 4 else b"") + address.packed
    return next((index, g) for index, g, kind in gids(device) if g == wanted and kind == "RoCE v2")


class Peer:
    """The other end, by libibverbs: a queue pair and memory that other processes see, too."""

    def __init__(self, kind="RC", length=1 << 16, address=HOST, depth=64, device="rxe1", memory=None, more=0):
        from pyverbs import libibverbs_enums as e
        from pyverbs.cq import CQ
        from pyverbs.device import Context
        from pyverbs.mr import MR
        from pyverbs.pd import PD
        from pyverbs.qp import QP, QPCap, QPInitAttr

        self.e, self.kind, self.length = e, kind, length
        self.index, self.gid = gid_entry(device, address)
        self.context = Context(name=device)
        self.pd, self.cq = PD(self.context), CQ(self.context, 2 * depth)
        self.memory = memory or mmap.mmap(-1, length)
        where = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        # What peers may do; `more` adds rights.
        self.access = e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | more
        self.mr = MR(self.pd, length, e.IBV_ACCESS_LOCAL_WRITE | self.access, where)
        cap = QPCap(max_send_wr=depth, max_recv_wr=depth)
        kind_of = {"RC": e.IBV_QPT_RC, "UC": e.IBV_QPT_UC, "UD": e.IBV_QPT_UD}[kind]
        self.qp = QP(self.pd, QPInitAttr(qp_type=kind_of, scq=self.cq, rcq=self.cq, cap=cap))
        self.qpn, self.psn = self.qp.qp_num, draw.randrange(1 << 24)
        self.addr, self.rkey, self.handles = where, self.mr.rkey, {}

    def ends(self):
        """The fields of the line that it sends."""
        return {"qpn": self.qpn, "psn": self.psn, "gid": text_of(self.gid), "rkey": self.rkey, "addr": self.addr}

    def connect(self, their, *, retry=7, rnr=7, timeout=14, mtu=1024, wait=12):
        """Brings the queue pair to RTS. `wait` is the code of the time that RNR NAKs ask for: 12 is 0.64 ms."""
        from pyverbs.qp import QPAttr

        attr = QPAttr(port_num=1)
        attr.qp_access_flags = self.access
        self.qp.to_init(attr)
        attr.ah_attr = self.way(their["gid"])
        attr.path_mtu, attr.dest_qp_num, attr.rq_psn = mtu.bit_length() - 8, their["qpn"], their["psn"]
        attr.max_dest_rd_atomic, attr.min_rnr_timer = 4, wait
        self.qp.to_rtr(attr)
        attr.timeout, attr.retry_cnt, attr.rnr_retry = timeout, retry, rnr
        attr.sq_psn, attr.max_rd_atomic = self.psn, 4
        self.qp.to_rts(attr)

    def start(self, qkey):
        """Brings a queue pair of datagrams to RTS."""
        from pyverbs.qp import QPAttr

        attr = QPAttr(port_num=1)
        attr.qkey = qkey
        self.qp.to_init(attr)
        self.qp.to_rtr(attr)
        attr.sq_psn = self.psn
        self.qp.to_rts(attr)

    def way(self, to):
        """The path to a GID."""
        from pyverbs.addr import GID, AHAttr, GlobalRoute

        return AHAttr(
            port_num=1, is_global=1, gr=GlobalRoute(dgid=GID(text_of(to)), sgid_index=self.index, hop_limit=64)
        )

    def receive(self, offset, length, number=0):
        from pyverbs.wr import SGE, RecvWR

        self.qp.post_recv(RecvWR(num_sge=1, sg=[SGE(self.addr + offset, length, self.mr.lkey)], wr_id=1 << 32 | number))

    def send(self, offset, length, number=0, to=None, qkey=0):
        """Posts a Send; `to` names the queue pair that a datagram is for."""
        from pyverbs.addr import AH
        from pyverbs.wr import SGE, SendWR

        sg = [SGE(self.addr + offset, length, self.mr.lkey)]
        wr = SendWR(opcode=self.e.IBV_WR_SEND, num_sge=1, sg=sg, wr_id=number)
        if to:
            # Kept: a request that is posted needs its address handle (rxe_av.c:rxe_get_av).
            if to["gid"] not in self.handles:
                self.handles[to["gid"]] = AH(self.pd, attr=self.way(to["gid"]))
            wr.set_wr_ud(self.handles[to["gid"]], to["qpn"], qkey)
        self.qp.post_send(wr)

    def one_sided(self, opcode, offset, length, addr, rkey):
        """Posts an RDMA Write or Read."""
        from pyverbs.wr import SGE, SendWR

        sg = [SGE(self.addr + offset, length, self.mr.lkey)]
        wr = SendWR(opcode=opcode, num_sge=1, sg=sg)
        wr.set_wr_rdma(rkey, addr)
        self.qp.post_send(wr)

    def completion(self):
        """The next completion, of a check's own work."""
        if not (found := until(self.poll, 10)):
            raise RuntimeError("no completion")
        return found[0]

    def poll(self):
        """Completions that have come: whether of a receive, number, status, bytes, sender."""
        _, wcs = self.cq.poll(64)
        return [(wc.wr_id >> 32, wc.wr_id & 0xFFFFFFFF, wc.status, wc.byte_len, wc.src_qp) for wc in wcs]


class Packet:
    """A RoCE v2 packet as it was on the line."""

    def __init__(self, when, source, destination, bth):
        self.when, self.source, self.destination = when, source, destination
        self.opcode, self.qpn = bth[0], int.from_bytes(bth[5:8], "big")
        self.psn, self.rest = int.from_bytes(bth[9:12], "big"), bth[12:-4]

    def syndrome(self):
        """Of an acknowledgement: 0x00 ACK, 0x20 RNR NAK, 0x60 NAK; else None."""
        return self.rest[0] & 0xFF if self.opcode & 0x1F == 17 else None


class Capture:
    """Records the packets to UDP port 4791 on h1's end of the line while the block runs."""

    def __enter__(self):
        self.frames, self.end = [], None
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self.socket.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
        self.socket.bind(("w1", 0))
        self.socket.settimeout(0.1)
        self.thread = threading.Thread(target=self._record)
        self.thread.start()
        return self

    def _record(self):
        while self.end is None or not self.end.over():
            try:
                self.frames.append((time.time(), self.socket.recv(8192)))
            except TimeoutError:
                if self.end is not None:
                    return

    def __exit__(self, *_):
        # What is on its way comes before a silence of 0.1 s. A device that repeats for ever is never silent.
        self.end = Limit(0.2)
        self.thread.join()
        self.socket.close()

    def packets(self):
        found = []
        for when, frame in list(self.frames):
            kind, ip = int.from_bytes(frame[12:14], "big"), frame[14:]
            if kind == 0x0800 and ip[9] == 17:
                head, source, to = 4 * (ip[0] & 15), ip[12:16], ip[16:20]
            elif kind == 0x86DD and ip[6] == 17:
                head, source, to = 40, ip[8:24], ip[24:40]
            else:
                continue
            _, port, length = struct.unpack("!HHH", ip[head : head + 6])
            if port == ROCE:
                udp = ip[head + 8 : head + length]
                found.append(Packet(when, ipaddress.ip_address(source), ipaddress.ip_address(to), udp))
        return found

    def sent(self, opcodes=None):
        """Those that came from h2."""
        theirs = [p for p in self.packets() if str(p.source) not in (HOST, HOST6)]
        return [p for p in theirs if opcodes is None or p.opcode in opcodes]


def counters(device):
    """The hardware counters of a device, by netlink."""
    text = run(*in_host("h1"), "rdma", "statistic", "show", "link", f"{device}/1")
    return {name: int(value) for name, value in re.findall(r"(\w+) (\d+)", text)}


def queue_pair(qpn, device="rxe2"):
    """What `rdma resource` shows of a queue pair; nothing when it is gone."""
    shown = json.loads(run("rdma", "-j", "resource", "show", "qp") or "[]")
    return next((q for q in shown if q["ifname"] == device and q["lqpn"] == qpn), {})


class Event(NamedTuple):
    """A line of a trace: its place, seconds, the event without the module's name, its fields, the thread."""

    place: int
    time: float
    name: str
    text: str
    thread: int


class Trace:
    """Records the module's events, and functions of others by a probe each, while the block runs.

    Recording goes on afterwards: each time that it begins or ends, the kernel patches its own code, which QEMU
    survives less than always. For the same reason it does not note the names of processes, for which the scheduler
    would be patched.
    """

    def __init__(self, **probes):
        self.probes = probes

    def __enter__(self):
        if not os.path.isdir(TRACING):
            write(f"{TRACEFS}/trace_options", "norecord-cmd")
            os.mkdir(TRACING)
            write(f"{TRACING}/trace_clock", "mono")
            write(f"{TRACING}/events/rust_ulp/enable", "1")
        for name, what in self.probes.items():
            if not os.path.isdir(f"{TRACING}/events/learn/{name}"):
                append(f"{TRACEFS}/kprobe_events", f"{'r' if '$retval' in what else 'p'}:learn/{name} {what}\n")
            write(f"{TRACING}/events/learn/{name}/enable", "1")
        write(f"{TRACING}/trace", "")
        return self

    def __exit__(self, *_):
        self.now()

    def now(self):
        """What has been recorded up to now."""
        with open(f"{TRACING}/trace") as f:
            self.text = f.read()
        return self

    def events(self, pid=None):
        """The lines in their order, of all processes or of one."""
        pattern = re.compile(r"^\s*.+-(\d+)\s+\[\d+\]\s+\S+\s+([\d.]+): (?:rust_ulp_)?(\w+): (.*)$")
        lines = [m for m in map(pattern.match, self.text.splitlines()) if m]
        found = [Event(place, float(m[2]), m[3], m[4], int(m[1])) for place, m in enumerate(lines)]
        return [event for event in found if pid in (None, event.thread)]

    def buffers(self, pid):
        """The events of the buffers that were registered by the files that the process has opened."""
        files = [e.text for e in self.events(pid) if e.name == "open"]
        made = [e for e in self.events() if e.name == "object_create" and " buffer " in e.text]
        return [e for e in made if e.text.split()[0] in files]

    def requests(self, name, qpn, what):
        """The events `post`, or `completion` with status 0, of a queue pair's requests of a kind."""
        found = [e for e in self.events() if e.name == name and e.text.startswith(f"qpn={qpn} ")]
        return [e for e in found if f" {what} " in e.text and (name == "post" or " status=0 " in e.text)]


class Calls:
    """Counts the system calls of a process, and of the threads that it starts from now on: all but clock_gettime, which
    is one only where the machine's clock is slow."""

    OPEN, SET_FILTER, INHERIT = 298, 0x40082406, 2

    def __init__(self, pid):
        with open(f"{TRACEFS}/events/raw_syscalls/sys_enter/id") as f:
            number = int(f.read())
        # struct perf_event_attr: a tracepoint, counted, also in threads that begin later.
        attr = struct.pack("IIQQQQQIIQ", 2, 64, number, 0, 0, 0, self.INHERIT, 0, 0, 0)
        libc, self.files = ctypes.CDLL(None, use_errno=True), []
        for thread in os.listdir(f"/proc/{pid}/task"):
            fd = libc.syscall(self.OPEN, attr, int(thread), -1, -1, 0)
            if fd < 0 or libc.ioctl(fd, self.SET_FILTER, b"id != 228"):
                raise OSError(ctypes.get_errno(), "perf_event_open")
            self.files.append(fd)

    def count(self):
        return sum(struct.unpack("Q", os.read(fd, 8))[0] for fd in self.files)


class Lab:
    """What a check is called with: the program, its language, and the evidence that it finds."""

    def __init__(self, program, kind):
        self.program, self.kind, self.evidence, self.started = program, kind, [], []
        # Whether the check leaves something behind that hangs.
        self.stuck = False

    def saw(self, text):
        self.evidence.append(text)

    def start(self, *words, host="h2"):
        self.started.append(Program(self.program, *words, host=host))
        return self.started[-1]

    def meet(self, *words, device="rxe2", host="h2"):
        """Starts the program, which connects to the exchange."""
        wire = Wire()
        program = self.start(device, f"{HOST}:{PORT}", *words, host=host)
        wire.meet(program)
        return program, wire

    def finish(self, program):
        """The program has to end, and well."""
        status = program.wait()
        expect("ends", status == 0, program.ended(), say("exit status {}", 0))


def main(check):
    """check PROGRAM KIND: prints the verdict. Status 0: passed, 1: not, 2: the check itself failed."""
    if len(sys.argv) != 3:
        print("usage: check PROGRAM rust|c|text", file=sys.stderr)
        sys.exit(2)
    os.setns(os.open("/run/netns/h1", os.O_RDONLY), os.CLONE_NEWNET)
    lab = Lab(*sys.argv[1:])
    verdict, status = {"key": None, "seen": "", "expected": ""}, 0
    try:
        check(lab)
    except Failed as failed:
        verdict, status = {"key": failed.key, "seen": failed.seen, "expected": failed.expected}, 1
    finally:
        for program in lab.started:
            if program.status() is None:
                program.stop()
    verdict["evidence"] = lab.evidence
    verdict["stuck"] = lab.stuck or any(program.status() is None for program in lab.started)
    verdict["program"] = lab.started[-1].said()[-2000:] if lab.started else ""
    print(json.dumps(verdict), flush=True)
    os._exit(status)  # libibverbs does not survive what Python tears down in its own order
