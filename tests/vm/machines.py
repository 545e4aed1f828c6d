#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""What only two machines show: h2 is killed, frozen, started anew, cut off.

    machines.py apart|line|cut|frozen|killed|rebooted

Expects `scripts/vm run --hosts 2`, the module on both and two hosts. Prints
KTAP.
"""

import os
import random
import subprocess
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import away
import connect as cm
import loss
import ulp
from ulp import N, End, error_of, pattern, remote, until

ALL = N["ACCESS_REMOTE_WRITE"] | N["ACCESS_REMOTE_READ"] | N["ACCESS_REMOTE_ATOMIC"]
FLUSHED, RETRY_EXCEEDED = 5, 12
# A reason of the manager to reject, IBA 12.6.7.2.
STALE = 10
SEED = int(os.environ.get("ULP_SEED", "1"))
# Half a second and seven times: who is gone is noticed, who is slow is not.
SOON = {"timeout": 17, "retry_cnt": 6}
# With rxe 7 stands for ever.
NEVER = {"timeout": 14, "retry_cnt": 7}


def run(*command, seconds=300):
    subprocess.run(command, stdin=subprocess.DEVNULL, check=True, timeout=seconds * ulp.PATIENCE)


def there(*command):
    return subprocess.run(
        [ulp.PEER, *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=60 * ulp.PATIENCE,
    ).stdout.strip()


def ready():
    """The second machine is as a suite leaves it at its beginning."""
    run("two-hosts", "up")
    there("bash", "-c", ". /ulp/tests/vm/lib.sh; trap - EXIT; is_loaded || load_module")


def ends(**more):
    return tuple(End(f"h{i}", f"rxe{i}", access=ALL, **more) for i in (1, 2))


def joined(length=1 << 16, **how):
    a, b = ends(length=length)
    a.meet(b, **how)
    return a, b


def statuses(completions):
    return [(c.user_data, c.status) for c in completions]


def works(r, name, a, b, data):
    """A write there, which is read back."""
    a.buffer.map[: len(data)] = data
    a.buffer.map[8192 : 8192 + len(data)] = bytes(len(data))
    a.file.submit(
        [
            a.write(b, len(data), user_data=1),
            a.qp.wr("RDMA_READ", a.buffer, 8192, len(data), **remote(b.grant), user_data=2),
        ]
    )
    r.equal(
        name,
        (
            statuses(a.cq.wait(2, seconds=60)),
            b.buffer.map[: len(data)] == data,
            a.buffer.map[8192 : 8192 + len(data)] == data,
        ),
        ([(1, 0), (2, 0)], True, True),
    )


def test_apart(r):
    """They are two: kernels, devices, files."""
    with open("/proc/sys/kernel/random/boot_id") as f:
        here = f.read().strip()
    r.check("two kernels run", here != there("cat", "/proc/sys/kernel/random/boot_id"), "they are one")
    print(f"# here Linux {os.uname().release}, there {there('uname', '-r')}", flush=True)
    r.equal(
        "each has its device",
        (os.listdir("/sys/class/infiniband"), there("ls", "/sys/class/infiniband")),
        (["rxe1"], "rxe2"),
    )
    got = subprocess.run(
        [ulp.PEER, "sh", "-c", "cat; echo wrong >&2; exit 7"],
        input="to there\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=60 * ulp.PATIENCE,
    )
    r.equal(
        "peer: input, output and status are the command's",
        (got.stdout, got.stderr, got.returncode),
        ("to there\n", "wrong\n", 7),
    )
    got = subprocess.run(
        [ulp.PEER, "/no/such/program"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60 * ulp.PATIENCE,
    )
    r.equal("peer: a program that is not there", got.returncode, 127)
    a, b = joined()
    r.equal("an error there is an error here", error_of(b.file.destroy, 12345), error_of(a.file.destroy, 12345))
    works(r, "a write and a read cross", a, b, pattern(1, 5000))
    works(r, "the other way, too", b, a, pattern(2, 5000))


def sequence(r, how, a, b, count, dice):
    """Writes with immediate data at random places: each is there when its receive completes."""
    span = 32 * 1024
    model = bytearray(a.buffer.length)
    source = dice.randbytes(span)
    a.buffer.map[:span] = source
    b.buffer.map[:] = bytes(model)
    sent, wrong = 0, []
    while sent < count and not wrong:
        n = min(16, count - sent)
        b.file.submit([b.qp.wr("RECV", user_data=sent + i) for i in range(n)])
        wrs, want = [], []
        for i in range(n):
            length, at, to = dice.randrange(1, 9000), dice.randrange(span - 9000), dice.randrange(len(model) - 9000)
            model[to : to + length] = source[at : at + length]
            wrs.append(
                a.qp.wr(
                    "RDMA_WRITE_WITH_IMM",
                    a.buffer,
                    at,
                    length,
                    **remote(b.grant, to),
                    imm_data=sent + i,
                    user_data=sent + i,
                )
            )
            want.append((sent + i, 0, length, sent + i))
        a.file.submit(wrs)
        if (got := statuses(a.cq.wait(n, seconds=60))) != [(w[0], 0) for w in want]:
            wrong.append(f"completions {got}")
        if (got := [(c.user_data, c.status, c.byte_len, c.imm_data) for c in b.cq.wait(n, seconds=60)]) != want:
            wrong.append(f"receives {got}, want {want}")
        sent += n
        if b.buffer.map[:] != bytes(model):
            wrong.append(f"bytes differ after {sent}")
    r.equal(f"{how}: {count} writes with immediate data, in order and whole", wrong, [])


def test_line(r):
    dice = random.Random(SEED)
    for how in (
        "delay 20ms",
        "loss 3%",
        "duplicate 5%",
        "delay 2ms reorder 5% 50%",
        "delay 1ms loss 1% duplicate 1% reorder 5% 50%",
    ):
        a, b = joined(**NEVER)
        with loss.line(*how.split()):
            sequence(r, how, a, b, 64, dice)
            sequence(r, f"{how}, the other way", b, a, 64, dice)
        r.equal(f"{how}: nothing came twice", (a.cq.reap(), b.cq.reap()), ([], []))


def test_cut(r):
    """The cable is cut, of which neither kernel knows."""
    a, b = joined(**SOON)
    works(r, "while it is whole", a, b, pattern(3, 5000))
    got = subprocess.run([ulp.PEER, "--boot"], capture_output=True, text=True, check=False, timeout=60 * ulp.PATIENCE)
    r.equal(
        "peer: a second guest that runs is not booted",
        (got.returncode, got.stderr),
        (255, "peer: boot: the second guest is running\n"),
    )
    run(ulp.PEER, "--cut")
    try:
        a.file.submit([a.write(b, 3000, user_data=i) for i in range(3)])
        b.file.submit([b.write(a, 3000, user_data=i) for i in range(3)])
        want = [(0, RETRY_EXCEEDED), (1, FLUSHED), (2, FLUSHED)]
        r.equal(
            "cut: the first request of either side fails, what is behind it is flushed",
            (statuses(a.cq.wait(3, seconds=60)), statuses(b.cq.wait(3, seconds=60))),
            (want, want),
        )
        r.equal("both queue pairs are in ERR", (cm.qp_state(a), cm.qp_state(b)), (N["QPS_ERR"],) * 2)
    finally:
        run(ulp.PEER, "--heal")
    for end in (a, b):
        end.qp.modify("STATE", qp_state=N["QPS_RESET"])
    a.meet(b, **NEVER)
    works(r, "healed, the same queue pairs are connected anew", a, b, pattern(4, 5000))
    data = pattern(5, 9000)
    a.buffer.map[:9000] = data
    run(ulp.PEER, "--cut")
    try:
        a.file.submit([a.write(b, 9000, user_data=9)])
        r.equal(
            "cut for a while: nothing completes",
            a.file.submit(cq=a.cq.handle, min_complete=1, timeout_ns=10**9).completed,
            0,
        )
    finally:
        run(ulp.PEER, "--heal")
    r.equal(
        "healed, it goes on where it was",
        (statuses(a.cq.wait(1, seconds=60)), b.buffer.map[:9000] == data),
        ([(9, 0)], True),
    )


def test_frozen(r):
    """h2 stands still, and goes on."""
    a, b = joined(**NEVER)
    c, d = joined(**SOON)
    server, own = cm.Server(host="h2"), End("h1", "rxe1", access=ALL)
    data = pattern(6, 20000)
    a.buffer.map[:20000] = data
    # What the peers granted is asked for while they answer.
    one, two = [a.write(b, 20000, user_data=1)], [c.write(d, 8, user_data=i) for i in range(2)]
    run(ulp.PEER, "--freeze")
    try:
        a.file.submit(one)
        c.file.submit(two)
        r.equal(
            "frozen: who tries a few times gives up",
            statuses(c.cq.wait(2, seconds=60)),
            [(0, RETRY_EXCEEDED), (1, FLUSHED)],
        )
        r.equal(
            "who tries for ever waits", a.file.submit(cq=a.cq.handle, min_complete=1, timeout_ns=10**9).completed, 0
        )
        # Whether its link address is still known depends on how long it has been silent.
        name = error_of(cm.connect, own, "10.9.0.2", server.port, seconds=2)
        r.check("CONNECT ends in time", name in ("ETIME", "ETIMEDOUT", "EHOSTUNREACH"), name)
        r.note(f"CONNECT: {name}; its neighbour: {ulp.shell('ip -n h1 neigh show 10.9.0.2')[1].strip()}")
        r.equal("its queue pair is in RESET", cm.qp_state(own), N["QPS_RESET"])
    finally:
        run(ulp.PEER, "--thaw")
    r.equal(
        "thawed, the write is done",
        (statuses(a.cq.wait(1, seconds=60)), b.buffer.map[:20000] == data),
        ([(1, 0)], True),
    )
    met(r, "and who listens there is reached", server, own)


def request_of(thread, server, own):
    """The request that the CONNECT in `thread` sends for `own`; None if that has ended before. Requests of those who
    gave up are rejected."""
    granted = cm.grant_of(own)
    while True:
        try:
            request = server.request(seconds=0.2)
        except OSError as e:
            if e.errno != cm.errno.ETIME:
                raise
            if thread.over():
                return None
            continue
        if (request.peer_qp_num, bytes(request.private_data[: len(granted)])) == (own.qp.num, granted):
            return request
        cm.reject(server.end.file, request.handle)


def met(r, name, server, own, where="10.9.0.2"):
    """`own` connects with the server. A CONNECT that was given up may have left its request there, if the rejection
    that follows it was lost. As long as the manager there has that, it rejects the next one of the same queue pair, of
    which the listener learns nothing (cm_match_req(), drivers/infiniband/core/cm.c)."""
    for _ in range(3):
        thread = cm.Thread(cm.connect, own, where, server.port, cm.grant_of(own), seconds=60)
        request = request_of(thread, server, own)
        reason = getattr(thread.error, "reason", 0)
        if request is not None or reason != STALE:
            break
    if request is None:
        raise RuntimeError(f"CONNECT has ended, and its request has not come: {thread.error!r}, reason {reason}")
    cm.accept(server.end, request.handle, cm.grant_of(server.end), seconds=60)
    got = thread.end(60)
    done = cm.write_to(own, bytes(got.private_data), b"met again")
    r.equal(name, (done.status, server.end.buffer.map[4096:4105]), (0, b"met again"))
    return got


class Stream:
    """Writes without end, in batches, until one fails; `failed` then has what did not go well, in order."""

    def __init__(self, a, b):
        self.done, self.failed, self.error = 0, [], None
        # What the peer granted is asked for while it answers.
        wrs = [a.write(b, 20000, user_data=i) for i in range(16)]
        self.thread = threading.Thread(target=self.run, args=(a, wrs), daemon=True)
        self.thread.start()

    def run(self, a, wrs):
        try:
            while not self.failed:
                a.file.submit(wrs)
                got = statuses(a.cq.wait(16, seconds=120))
                good = next((i for i, (_, status) in enumerate(got) if status), 16)
                self.done += good
                self.failed = [status for _, status in got[good:]]
                if [number for number, _ in got] != list(range(16)):
                    self.error = got
        except Exception as e:
            self.error = e

    def check(self, r, name):
        self.thread.join(200 * ulp.PATIENCE)
        r.check(
            f"{name}: the stream of writes ends",
            not self.thread.is_alive() and self.error is None,
            self.error or "it hangs",
        )
        r.equal(
            f"{name}: one fails, what is behind it is flushed, each once and in order",
            (self.failed[:1], set(self.failed[1:]) <= {FLUSHED}),
            ([RETRY_EXCEEDED], True),
        )


def anew(r, name, a):
    """`a` and a new end there are connected."""
    a.qp.modify("STATE", qp_state=N["QPS_RESET"])
    _, b = ends()
    a.meet(b, **NEVER)
    works(r, name, a, b, pattern(7, 5000))


def test_killed(r):
    """The power of h2 fails in the middle of a stream of writes, and comes back."""
    a, b = joined(**SOON)
    server, own = cm.Server(host="h2"), End("h1", "rxe1", access=ALL)
    got = met(r, "connected before", server, own)
    waiting = End("h1", "rxe1", access=ALL)
    stream = Stream(a, b)
    r.check("writes go", until(lambda: stream.done > 50, 60), stream.done)
    asking = cm.Thread(cm.connect, waiting, "10.9.0.2", server.port, seconds=10)
    run(ulp.PEER, "--kill")
    away.drop()
    stream.check(r, "killed")
    name = asking.name(60)
    r.check("CONNECT that nobody answers ends", name in ("ETIME", "ETIMEDOUT", "EHOSTUNREACH"), name)
    r.equal(
        "a write over the connection fails",
        cm.write_to(own, bytes(got.private_data), b"lost").status,
        RETRY_EXCEEDED,
    )
    r.equal("its queue pair is in ERR", cm.qp_state(own), N["QPS_ERR"])
    ending = cm.Thread(own.file.destroy, got.handle)
    r.equal("the connection is destroyed all the same", ending.name(20), "none")
    name = error_of(cm.connect, waiting, "10.9.0.2", server.port, seconds=3)
    r.check("nobody is reached", name in ("ETIME", "ETIMEDOUT", "EHOSTUNREACH"), name)
    run(ulp.PEER, "--boot", seconds=700)
    ready()
    own.qp.modify("STATE", qp_state=N["QPS_RESET"])
    server = cm.Server(host="h2")
    met(r, "started anew, it is connected again, with the same queue pair", server, own)
    anew(r, "and without the manager", a)


def test_rebooted(r):
    """h2 is reset in the middle of a stream of writes."""
    a, b = joined(**SOON)
    stream = Stream(a, b)
    r.check("writes go", until(lambda: stream.done > 50, 60), stream.done)
    run(ulp.PEER, "--reboot", seconds=900)
    away.drop()
    stream.check(r, "reset")
    ready()
    anew(r, "the same queue pair works with the machine that came back", a)


if __name__ == "__main__":
    ulp.main(__doc__, globals())
