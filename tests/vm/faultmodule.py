# SPDX-License-Identifier: GPL-2.0
"""Faults while the module is loaded and while a device comes and goes; what goes in the middle of a command.

The parts `module`, `device`, `remove` and `gid` of faults.py.
"""

import ctypes
import os
import subprocess
import threading
import time

import connect
import ulp
from faultpoint import DEBUGFS, KINDS, Faults, Netlink, libc, name_of, put, range_of
from faults import FULL, PAGE, PATIENCE, following
from ulp import N, S, File, Qp, error_of

MODULE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../rust_ulp.ko")
FINIT_MODULE, DELETE_MODULE = (273, 106) if os.uname().machine == "aarch64" else (313, 176)
DEADLINE = 10 * PATIENCE
#: How long a command stays at its point, in milliseconds. A removal that begins later finds it done,
#: which shows less and fails nothing.
STALL = 1500


def text_of_module():
    with open("/proc/kallsyms") as f:
        ours = [int(line.split()[0], 16) for line in f if "[rust_ulp]" in line and line.split()[1] in "tT"]
    return min(ours), max(ours) + 0x4000


def is_loaded():
    return os.path.isdir("/sys/module/rust_ulp")


def traces():
    """What a loaded module shows."""
    with open("/proc/devices") as f, open("/proc/misc") as g:
        numbers = [line for line in f.read().split() + g.read().split() if "rust_ulp" in line]
    return [
        p
        for p in (ulp.DEVICE, "/sys/module/rust_ulp", "/sys/class/misc/rust_ulp", f"{DEBUGFS}/fail_rust_ulp")
        if os.path.exists(p)
    ] + numbers


def unload():
    if libc.syscall(DELETE_MODULE, b"rust_ulp", os.O_NONBLOCK):
        raise OSError(ctypes.get_errno(), "delete_module")


def works(r, what):
    """A write across."""
    a, b = ulp.pair()
    a.buffer.map[:4000] = ulp.pattern(5, 4000)
    a.file.submit([a.write(b, 4000)])
    got = [c.status for c in a.cq.wait(1)], b.buffer.map[:4000] == ulp.pattern(5, 4000)
    a.close()
    b.close()
    return r.equal(f"{what}: a write across", got, ([0], True))


def test_module(r):
    """Each fault in the module's own part of finit_module(2): loaded, or all undone."""
    faults, net = Faults(), Netlink()
    inside = range_of("do_one_initcall")
    if is_loaded():
        unload()
    empty, before = traces(), net.resources()
    for kind in [k for k in KINDS if k != "twin"]:
        n, seen, begin = 1, {}, time.monotonic()
        while True:
            fd = os.open(MODULE, os.O_RDONLY | os.O_CLOEXEC)
            faults.choose(kind, inside)
            # Our own attribute is made anew with the module, and counts from the start.
            result, err, came = faults.call(
                n, libc.syscall, FINIT_MODULE, ctypes.c_int(fd), ctypes.c_char_p(b""), ctypes.c_int(0)
            )
            os.close(fd)
            name = "none" if result == 0 else name_of(err)
            seen[name] = seen.get(name, 0) + came
            if result == 0:
                unload()
            elif name not in KINDS[kind][1] | {"EIO"}:
                r.check(f"insmod: fault {n} of kind {kind}", False, f"{name}")
            if traces() != empty or net.resources() != before:
                r.check(f"insmod: fault {n} of kind {kind} leaves nothing", False, (name, traces(), net.resources()))
                break
            if not came:
                r.check(f"insmod without a fault, kind {kind}", result == 0, name)
                break
            # What comes first is debugfs', which nobody minds: close enough to meet each thing that init makes.
            n += 1 if FULL else max(1, n // 6)
        print(
            f"# | insmod, {kind} | {sum(seen.values())} | {', '.join(f'{k} {v}' for k, v in seen.items() if v)}"
            f" | {time.monotonic() - begin:.0f} s |",
            flush=True,
        )
    r.check("insmod: loaded, or all undone", r.bad == 0)
    fd = os.open(MODULE, os.O_RDONLY | os.O_CLOEXEC)
    r.equal("insmod after all of it", libc.syscall(FINIT_MODULE, fd, b"", 0), 0)
    os.close(fd)
    works(r, "insmod")


def names():
    file = File()
    try:
        return [ulp.text(d.name) for d in file.devices()]
    finally:
        file.close()


def add(net, device="rxe1", netdev="w1"):
    net.add(device, netdev)
    addressed(device)


def addressed(device):
    end = time.monotonic() + 20 * PATIENCE
    while True:
        try:
            return ulp.gid_of(device)
        except LookupError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def run_message(faults, net, n, message):
    """One request by netlink, with a fault in what it does: the kernel does it in the call that sends it."""
    buffer = ctypes.create_string_buffer(message, len(message))
    result, err, came = faults.call(
        n, libc.send, ctypes.c_int(net.socket.fileno()), buffer, ctypes.c_size_t(len(message)), ctypes.c_int(0)
    )
    if result < 0:
        return err, came
    try:
        for _ in net.answers():
            pass
    except OSError as e:
        return e.errno, came
    return 0, came


def test_device(r):
    """Faults in the module while a device comes, and while one goes that is in use."""
    with ulp.host("h1"):
        faults, net = Faults(), Netlink()
        inside = text_of_module()

        def add_it():
            return net.add_message("rxe1", "w1")

        for kind in [k for k in KINDS if FULL or k == "slab"]:
            for what in ("comes", "goes"):
                n, seen, begin = 1, {}, time.monotonic()
                while True:
                    busy = None
                    if what == "comes":
                        net.delete("rxe1")
                        message = add_it()
                    else:
                        busy, other = ulp.pair()
                        busy.file.submit([busy.write(other, 1000) for _ in range(8)])
                        busy.file.call("LISTEN", addr=connect.addr("0.0.0.0"), backlog=4)
                        message = net.delete_message("rxe1")
                    faults.choose(kind, inside)
                    err, came = run_message(faults, net, n, message)
                    there = "rxe1" in net.devices()
                    heard = "rxe1" in names()
                    name = "none" if not err else name_of(err)
                    if what == "comes":
                        outcome = f"{name}, {'heard of' if heard else 'not heard of'}" if there else name
                        good = (not err and there and (heard or came)) or (err and not there and not heard)
                    else:
                        outcome = name
                        good = not err and not there and not heard and error_of(busy.file.pd) == "ENODEV"
                    if came:
                        seen[outcome] = seen.get(outcome, 0) + 1
                    if (
                        not r.equal(f"a device {what}: fault {n} of kind {kind}", bool(good), True)
                        if not good
                        else False
                    ):
                        break
                    if busy:
                        busy.close()
                        other.close()
                    if not there:
                        add(net)
                    elif not heard:
                        net.delete("rxe1")
                        add(net)
                    else:
                        addressed("rxe1")
                    if "rxe1" not in names():
                        r.check(f"a device {what}: fault {n} of kind {kind}", False, "it is not heard of afterwards")
                        break
                    if not came:
                        break
                    n = following(n, kind)
                print(
                    f"# | a device {what}, {kind} | {sum(seen.values())}"
                    f" | {', '.join(f'{k}: {v}' for k, v in seen.items())} | {time.monotonic() - begin:.0f} s |",
                    flush=True,
                )
        r.check("devices come and go, whatever fails", r.bad == 0)
    works(r, "devices")


# --- removal at each step ------------------------------------------------------------


def stall(milliseconds):
    put(f"{DEBUGFS}/fail_rust_ulp/stall-ms", milliseconds)


class Stalled:
    """A call in a thread of its own, which stays at its n-th point for a while."""

    def __init__(self, n, function):
        self.n, self.function, self.result = n, function, "not ended"
        self.armed, self.came = threading.Event(), None
        self.thread = threading.Thread(target=self.body, daemon=True)
        self.thread.start()
        self.armed.wait(20)

    def body(self):
        fd = os.open("/proc/thread-self/fail-nth", os.O_RDWR)
        self.tid = threading.get_native_id()
        os.write(fd, b"%d" % self.n)
        self.armed.set()
        try:
            self.function()
            self.result = "none"
        except OSError as e:
            self.result = name_of(e.errno)
        except Exception as e:
            self.result = repr(e)
        self.came = int(os.pread(fd, 16, 0)) == 0
        os.write(fd, b"0")
        os.close(fd)

    def at_point(self):
        """Waits until it has come to its point, or to its end: whether it stays there."""
        end = time.monotonic() + DEADLINE
        path = f"/proc/self/task/{self.tid}/fail-nth"
        while self.result == "not ended" and time.monotonic() < end:
            try:
                with open(path) as f:
                    if int(f.read()) == 0:
                        return self.result == "not ended"
            except (FileNotFoundError, ProcessLookupError):
                # It has ended.
                return False
            time.sleep(0.005)
        return False

    def ended(self):
        self.thread.join(DEADLINE * 2)
        return self.result


def scenes():
    """Commands, each made ready on a fresh device: name, and what makes the call."""

    def create_qp(e, _):
        return lambda: Qp(e.file, e.pd, e.cq, depth=4)

    def create_cq(e, _):
        return lambda: e.file.call("CQ_CREATE", entries=16)

    def create_srq(e, _):
        return lambda: e.file.call("SRQ_CREATE", pd=e.pd, cq=e.cq.handle, max_wr=4, max_sge=1, limit=1)

    def create_buffer(e, _):
        pd = e.file.pd()
        return lambda: e.file.call("BUFFER_CREATE", pd=pd, node=N["NODE_ANY"], length=4 * PAGE)

    def create_grant(e, _):
        return lambda: e.file.grant(e.buffer)

    def create_ah(e, peer):
        gid = peer.file.gid().gid
        return lambda: e.file.ah(e.pd, gid)

    def destroy_qp(e, peer):
        e.file.submit([e.qp.wr("RECV", e.buffer, 0, 64) for _ in range(4)] + [e.write(peer, 1000) for _ in range(4)])
        return lambda: e.file.destroy(e.qp.handle)

    def destroy_grant(e, _):
        return lambda: e.file.destroy(e.grant.handle)

    def listen(e, _):
        return lambda: connect.listen(e.file)

    def connect_to(e, peer):
        got = connect.listen(peer.file)

        def accept():
            try:
                request = connect.get_request(peer.file, got.handle)
                qp = Qp(peer.file, peer.pd, peer.cq, depth=4)
                peer.file.call("ACCEPT", request=request.handle, qp=qp.handle, param=connect.param())
            except OSError:
                pass

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        # Who waits for a request leaves when the listener goes.
        peer.after = lambda: (error_of(peer.file.destroy, got.handle), thread.join(30 * PATIENCE))
        qp = Qp(e.file, e.pd, e.cq, depth=4)

        def call():
            where = connect.addr("10.9.0.2", got.addr.port)
            attempt = e.file.call("CONNECT", qp=qp.handle, dst=where, param=connect.param())
            return e.file.call("CONN_WAIT", conn=attempt.handle, timeout_ns=ulp.hang_ns())

        return call

    def connect_later(e, peer):
        got = connect.listen(peer.file)
        qp = Qp(e.file, e.pd, e.cq, depth=4)
        return lambda: e.file.call(
            "CONNECT",
            qp=qp.handle,
            dst=connect.addr("10.9.0.2", got.addr.port),
            param=connect.param(),
        )

    def close(e, peer):
        e.file.submit([e.write(peer, 1000) for _ in range(4)])
        e.buffer.map.close()
        del e.cq.ring, e.cq.slots
        e.cq.map.close()
        fd, e.file.fd = e.file.fd, -1
        return lambda: os.close(fd)

    return [
        (f.__name__.replace("_", " "), f)
        for f in (
            create_qp,
            create_cq,
            create_srq,
            create_buffer,
            create_grant,
            create_ah,
            destroy_qp,
            destroy_grant,
            listen,
            connect_to,
            connect_later,
            close,
        )
    ]


def released(end):
    """Closes what is left of an end, whatever a scene has closed."""
    getattr(end, "after", lambda: None)()
    if end.file.fd >= 0:
        end.close()


def steps(n):
    return n + 1 if FULL else 3 * n


def test_remove(r):
    """A device goes while a command is at its k-th point, and a file while the removal is at its k-th."""
    with ulp.host("h1"):
        net = Netlink()
        # Where a thread is held up, it is one of our own points that counts.
        Faults().choose("verb")
        before = net.resources()
        for name, scene in [s for s in scenes() if FULL or s[0] in ("create buffer", "destroy qp", "connect to")]:
            n, seen, bad, begin = 1, {}, r.bad, time.monotonic()
            while n < 64:
                end, peer = ulp.pair()
                call = scene(end, peer)
                stall(STALL)
                task = Stalled(n, call)
                came = task.at_point()
                if came:
                    net.delete("rxe1")
                    outcome = task.ended()
                    stall(0)
                    seen[outcome] = seen.get(outcome, 0) + 1
                    if outcome not in ("none", "ENODEV"):
                        r.check(f"removal at point {n} of {name}", False, f"the command ends with {outcome}")
                    if end.file.fd >= 0 and error_of(end.file.pd) != "ENODEV":
                        r.check(f"removal at point {n} of {name}: its file is a husk", False, error_of(end.file.pd))
                else:
                    task.ended()
                    stall(0)
                released(end)
                released(peer)
                if came:
                    add(net)
                if not came or r.bad != bad:
                    break
                n = steps(n)
            if r.bad == bad:
                r.check(f"removal at each point of {name}", seen, "it has no point")
            print(
                f"# | removal in {name} | {sum(seen.values())} | {', '.join(f'{k} {v}' for k, v in seen.items())}"
                f" | {time.monotonic() - begin:.0f} s |",
                flush=True,
            )

        n, seen, begin, bad = 1, 0, time.monotonic(), r.bad
        while n < 64:
            end, peer = ulp.pair()
            end.file.submit([end.write(peer, 1000) for _ in range(4)])
            connect.listen(end.file)
            stall(STALL)
            message = net.delete_message("rxe1")
            task = Stalled(n, lambda: net.run(message))
            came = task.at_point()
            if came:
                seen += 1
                if error_of(end.file.pd) != "ENODEV":
                    r.check(f"a command while the removal is at point {n}", False, error_of(end.file.pd))
                if n % 2:
                    end.close()
            outcome = task.ended()
            stall(0)
            if outcome != "none":
                r.check(f"the removal that stays at point {n}", False, outcome)
            released(end)
            released(peer)
            add(net)
            if not came or r.bad != bad:
                break
            n = steps(n)
        if r.bad == bad:
            r.check("the removal at each of its points, with a file that goes", seen > 2, seen)
        print(f"# | removal at its own points | {seen} | | {time.monotonic() - begin:.0f} s |", flush=True)
        after = net.resources()
        r.equal("what the core counts is as it was", after, before)
    works(r, "removal")


# --- addresses that change in the middle of a command ----------------------------------


def ip(*args):
    subprocess.run(["ip", *args], check=True)


def gids(device):
    """The GIDs of a port by their index."""
    where, out = f"/sys/class/infiniband/{device}/ports/1/gids", {}
    for index in os.listdir(where):
        with open(f"{where}/{index}") as f:
            if (gid := f.read().strip()).strip("0:"):
                out[int(index)] = gid
    return out


def index_of(address):
    """Where rxe1 has the GIDs of 10.9.0.0/16, of the second half of an address."""
    end = ":ffff:0a09:{:02x}{:02x}".format(*map(int, address.split(".")))
    return sorted(index for index, gid in gids("rxe1").items() if gid.endswith(end))


def test_gid(r):
    """A GID goes, and one of another namespace comes, while a command that names it is at its k-th point."""

    def create_ah(end, attr):
        return lambda: end.file.call("AH_CREATE", pd=end.pd, attr=attr)

    def to_rtr(end, attr):
        qp = Qp(end.file, end.pd, end.cq, depth=4)
        qp.modify("STATE PKEY_INDEX PORT ACCESS_FLAGS", qp_state=N["QPS_INIT"], port_num=1)
        return lambda: qp.to_rtr(attr)

    with ulp.host("h1"):
        Faults().choose("verb")
        ip("link", "add", "w1.7", "link", "w1", "type", "vlan", "id", "7")
        ip("link", "add", "w1.8", "link", "w1", "type", "vlan", "id", "8")
        ip("link", "set", "w1.8", "netns", "h2")
        ip("link", "set", "w1.7", "up")
        ip("-n", "h2", "link", "set", "w1.8", "up")
        # A peer that need not be there.
        ip("route", "add", "10.9.7.2/32", "dev", "w1.7")
        ip("neigh", "add", "10.9.7.2", "lladdr", "02:00:00:00:00:01", "dev", "w1.7", "nud", "permanent")
        try:
            for name, scene in (("AH_CREATE", create_ah), ("QP_MODIFY to RTR", to_rtr)):
                n, stay, seen = 1, STALL, []
                while n < 64:
                    ip("addr", "add", "10.9.7.1/32", "dev", "w1.7")
                    ulp.until(lambda: index_of("7.1"))
                    index = index_of("7.1")[-1]
                    end = ulp.End("h1", "rxe1")
                    attr = S["ah_attr"](sgid_index=index, port_num=1, is_global=1, hop_limit=64)
                    ctypes.memmove(attr.dgid, bytes(10) + b"\xff\xff\x0a\x09\x07\x02", 16)
                    stall(stay)
                    task = Stalled(n, scene(end, attr))
                    came = task.at_point()
                    if came:
                        ip("addr", "del", "10.9.7.1/32", "dev", "w1.7")
                        ip("-n", "h2", "addr", "add", "10.9.8.1/32", "dev", "w1.8")
                        ulp.until(lambda: index_of("8.1") and not index_of("7.1"))
                        forced, foreign = task.result == "not ended", index_of("8.1")
                    outcome = task.ended()
                    stall(0)
                    end.close()
                    if not came:
                        r.equal(f"{name} with nothing in its way", outcome, "none")
                        ip("addr", "del", "10.9.7.1/32", "dev", "w1.7")
                        break
                    ip("-n", "h2", "addr", "del", "10.9.8.1/32", "dev", "w1.8")
                    ulp.until(lambda: not index_of("8.1"))
                    if not forced:
                        # The point was passed before the addresses had changed.
                        stay *= 2
                        continue
                    seen.append((index in foreign, outcome))
                    r.check(f"{name} at point {n}: it has no GID of another namespace", outcome != "none", seen[-1])
                    n += 1
                r.check(f"{name}: the command has points", seen)
                # The command itself has the index, or the other namespace has, and never both.
                r.check(f"{name}: at one of them the index is kept", any(not taken for taken, _ in seen), seen)
                print(f"# | {name}, its GID goes | {len(seen)} | {seen} |", flush=True)
        finally:
            stall(0)
            ip("link", "del", "w1.7")
            ip("-n", "h2", "link", "del", "w1.8")
    works(r, "gid")
