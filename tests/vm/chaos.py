#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Devices, namespaces, modules and processes that go while loaders (four; two on the debug kernel) do everything.

    chaos.py rounds|soak

Expects the module and two hosts. A loader is `ulp-test load`; what it finds wrong it says, and what
it met otherwise is an error of the documented kinds. Each round does one thing at a random moment,
makes the hosts whole again, and waits until every loader has gone on. Between rounds, and when they
are over, is a calm, in which fewer errors are documented, and in which each operation must succeed. When
all loaders have ended, at the latest at the end, nothing of the module may be left. Prints `ok` and
`not ok` lines, and a table.

ULP_CHAOS_ROUNDS (15, each kind once) says how many rounds at most, ULP_CHAOS_SECONDS after how many
seconds no other begins, ULP_SEED what the dice are, ULP_CHAOS_ONLY the names of the groups, with
commas; ULP_SOAK_SECONDS is for `soak`.
"""

import collections
import contextlib
import errno
import itertools
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import ulp
from lifetime import ours
from ulp import DEBUG, until

ROUNDS = ulp.count("ULP_CHAOS_ROUNDS", 15)
SECONDS = float(os.environ.get("ULP_CHAOS_SECONDS", "inf"))
SEED = int(os.environ.get("ULP_SEED", "1"))
#: Seconds after which taking something away hangs, among the loaders; and who does not go on.
DEADLINE, RECOVERY = 20 * ulp.PATIENCE, 60 * ulp.PATIENCE
LOADERS = 2 if DEBUG else 4
MODULE = os.environ.get("ULP", "/ulp") + "/rust_ulp.ko"
GROUPS = "/sys/fs/cgroup"
#: What the loaders do, and how often each of it must succeed.
OPERATIONS = (
    "accept, atomic, batch, buffer, buffer destroyed in flight, buffer destroyed while mapped, cancel"
    ", closed under waiters, connect, datagram, datagram received, descriptor passed, disconnect, fork after mmap"
    ", forked under waiters, grant revoked in flight, granted anew, io_uring, left in flight, mapping gone in flight"
    ", mprotect, mremap, open, partial munmap, queue destroyed under waiters, queue pair destroyed in flight, rc, read"
    ", register, reject, ring left in flight, send, uc, ud, wait, write"
).split(", ")
LEAST = 3
# What means trouble in the kernel's log, and any word of the module.
TROUBLE = ulp.trouble("begins", "within", "suite", more="rust_ulp")
HARMLESS = re.compile(
    r"rust_ulp: (loading out-of-tree module taints|module verification failed)"
    r"|# (Subtest: )?rust_ulp_|(not )?ok [0-9]+ rust_ulp_|# module: rust_ulp"
)


def run(*words, seconds=None, check=True):
    got = subprocess.run(words, capture_output=True, text=True, check=False, timeout=seconds or DEADLINE)
    if check and got.returncode:
        raise OSError(f"{' '.join(words)}: status {got.returncode} {got.stderr.strip()}")
    return got.returncode


class Log:
    """The kernel's log from now on."""

    def __init__(self):
        self.fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(self.fd, 0, os.SEEK_END)
        self.killing = False
        self.before = "the beginning"

    def reports(self):
        """What has come that means trouble. The kernel prints a stack when memory of a cgroup is out: that is none."""
        out = []
        while True:
            try:
                line = os.read(self.fd, 8192).decode(errors="replace").split(";", 1)[-1].split("\n")[0]
            except BlockingIOError:
                return out
            except OSError as e:
                if e.errno != errno.EPIPE:
                    raise
                self.before = "lines that were overwritten"
                continue
            before, self.before = self.before, line
            if "invoked oom-killer" in line:
                self.killing = True
            if line.startswith("tests: "):
                continue
            if (
                TROUBLE.search(line)
                and not HARMLESS.search(line)
                and not (self.killing and re.search(r"Call Trace|rust_ulp", line))
            ):
                out.append(f"{line} (after: {before})")
            if "out of memory: Killed" in line:
                self.killing = False


class Loader:
    """A process that does everything, in a memory cgroup of its own."""

    def __init__(self, number, seed):
        self.number = number
        self.cgroup = f"{GROUPS}/load{number}"
        os.makedirs(self.cgroup, exist_ok=True)
        with open(self.cgroup + "/memory.max", "w") as f:
            f.write("max")
        self.wrong, self.did, self.met, self.at = [], collections.Counter(), collections.Counter(), None
        self.answered = threading.Event()
        command = f"echo $$ >{self.cgroup}/cgroup.procs && exec nice -n 30 ulp-test load {seed}"
        self.process = subprocess.Popen(["sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            word, _, rest = line.rstrip("\n").partition(" ")
            if word == "at":
                self.at = int(rest.split()[0])
                self.answered.set()
            elif word in ("did", "met"):
                count, _, what = rest.partition(" ")
                getattr(self, word)[what] = int(count)
            else:
                self.wrong.append(line.strip())

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def count(self, question="?"):
        """How many things it has done. With "did" as the question it says which, too."""
        self.answered.clear()
        try:
            self.tell(question)
        except BrokenPipeError:
            raise OSError(f"loader {self.number} has ended: {self.process.poll()}") from None
        if not self.answered.wait(DEADLINE):
            raise TimeoutError(f"loader {self.number} does not answer")
        return self.at

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        return self.process.wait(DEADLINE)

    def stop(self):
        """Tells it to end in good order."""
        with contextlib.suppress(BrokenPipeError):
            self.tell("stop")
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def end(self):
        """Waits until it has ended, which it was told."""
        try:
            status = self.process.wait(RECOVERY)
        except subprocess.TimeoutExpired:
            self.wrong.append("it does not end")
            status = self.kill()
        self.reader.join(DEADLINE)
        if status and not self.wrong:
            self.wrong.append(f"status {status}")


def module_refs():
    with open("/proc/modules") as f:
        return next((int(line.split()[2]) for line in f if line.startswith("rust_ulp ")), None)


class Chaos:
    def __init__(self, dice):
        self.dice = dice
        self.seeds = iter(range(SEED * 100000, SEED * 100000 + 99999))
        self.log = Log()
        self.did, self.met = collections.Counter(), collections.Counter()
        with open(GROUPS + "/cgroup.subtree_control", "w") as f:
            f.write("+memory")
        # Who takes things away must have its turn among 32 threads that never rest.
        os.setpriority(os.PRIO_PROCESS, 0, -15)
        self.loaders = []
        self.wrong = []
        self.broken = False  # a device or an address may be missing
        self.start()

    def start(self):
        self.loaders = [Loader(n, next(self.seeds)) for n in range(LOADERS)]

    def collect(self, loader):
        """Takes what a loader that has ended has said."""
        self.wrong += [f"loader {loader.number}: {w}" for w in loader.wrong]
        self.did += loader.did
        self.met += loader.met
        loader.wrong, loader.did, loader.met = [], collections.Counter(), collections.Counter()

    def replace(self, loader):
        self.collect(loader)
        self.loaders[loader.number] = Loader(loader.number, next(self.seeds))

    def pause(self, most=0.5):
        time.sleep(self.dice.uniform(0, most))

    def any(self):
        return self.dice.choice(self.loaders)

    def begins(self, phase):
        """Tells every loader that a calm begins, or an outage, and waits until they know."""
        for loader in self.loaders:
            loader.tell(phase)
        for loader in self.loaders:
            loader.count()

    def rare(self):
        """Operations that have not succeeded often enough yet."""
        for loader in self.loaders:
            loader.count("did")
        did = sum((loader.did for loader in self.loaders), self.did)
        return {what: did[what] for what in OPERATIONS if did[what] < LEAST}

    def gone_on(self):
        """Waits until every loader has done something since now."""
        before = {loader.process.pid: loader.count() for loader in self.loaders}
        late = [loader for loader in self.loaders if not until(lambda: loader.count() > before[loader.process.pid], 60)]
        for loader in late:
            self.wrong.append(f"loader {loader.number} does nothing any more")

    def end_all(self):
        """Ends the loaders, some of them by force: what is left then, in words."""
        killed = [self.dice.random() < 0.3 for _ in self.loaders]
        for loader, by_force in zip(self.loaders, killed, strict=True):
            if not by_force:
                loader.stop()
        for loader, by_force in zip(self.loaders, killed, strict=True):
            if by_force:
                loader.kill()
            else:
                loader.end()
            self.collect(loader)
        # A program that was handed a file may live a little longer.
        until(lambda: module_refs() in (0, None))
        left = [f"{kind}: {o}" for kind in ("qp", "cq", "pd", "mr", "srq", "cm_id") for o in ours(kind)]
        if module_refs():
            left.append(f"{module_refs()} references to the module")
        with open("/proc/slabinfo") as f:
            left += [line.strip() for line in f if "rust_ulp" in line]
        return left

    def whole(self):
        """Makes what was taken away, and waits until the devices have their addresses."""
        if self.broken:
            run("two-hosts", "up", seconds=RECOVERY)
            self.broken = False

    # --- what may happen ------------------------------------------------------------

    def link_del(self):
        """one device is deleted"""
        self.broken = True
        run("rdma", "link", "del", self.dice.choice(("rxe1", "rxe2")))

    def links_del(self):
        """both devices are, one right after the other"""
        self.broken = True
        for name in self.dice.sample(("rxe1", "rxe2"), 2):
            run("rdma", "link", "del", name)

    def netdev_down(self):
        """a netdev goes down, and up"""
        self.broken = True
        n = self.dice.choice("12")
        run("ip", "-n", "h" + n, "link", "set", "w" + n, "down")
        self.pause(1.5)
        run("ip", "-n", "h" + n, "link", "set", "w" + n, "up")
        # An address of IPv6 goes with the link.
        run("ip", "-n", "h" + n, "addr", "replace", f"fd09::{n}/64", "dev", "w" + n, "nodad")

    def netdev_del(self):
        """the netdevs are deleted"""
        self.broken = True
        n = self.dice.choice("12")
        run("ip", "-n", "h" + n, "link", "del", "w" + n)

    def netns_del(self):
        """a namespace is deleted"""
        self.broken = True
        n = self.dice.choice("12")
        run("ip", "netns", "del", "h" + n)
        # The device goes with the last user of the namespace. A `rdma link del` at the same moment would make rxe
        # release the namespace's socket twice (rxe-socket in scripts/known_faults.py).
        if not until(lambda: not os.path.exists(f"/sys/class/infiniband/rxe{n}")):
            self.wrong.append(f"rxe{n} outlives its namespace")
        self.pause()

    def rename(self):
        """a device gets another name, and its old one"""
        name = self.dice.choice(("rxe1", "rxe2"))
        run("rdma", "dev", "set", name, "name", "chaos0")
        self.pause()
        run("rdma", "dev", "set", "chaos0", "name", name)

    def rxe_rmmod(self):
        """rdma_rxe is unloaded"""
        self.links_del()
        got = until(lambda: ulp.delete_module(b"rdma_rxe") == "none")
        if not got:
            self.wrong.append("rdma_rxe cannot be unloaded when its devices are gone")

    def rmmod_busy(self):
        """rmmod of our module, which is in use"""
        got = ulp.delete_module()
        if got == "none":
            # Nobody had it open at that moment.
            run("insmod", MODULE)
        elif got != "EAGAIN":
            self.wrong.append(f"rmmod while it is in use is {got}")

    def reload(self):
        """everyone ends, and our module is unloaded and loaded"""
        left = self.end_all()
        got = ulp.delete_module()
        if got != "none":
            left.append(f"rmmod after the last one has ended is {got}")
        else:
            run("insmod", MODULE)
        self.start()
        return left

    def kill(self):
        """kill -9 of a loader"""
        loader = self.any()
        loader.kill()
        self.replace(loader)

    def kill_all(self):
        """kill -9 of all of them at once"""
        for loader in self.loaders:
            loader.process.send_signal(signal.SIGKILL)
        for loader in list(self.loaders):
            loader.process.wait(DEADLINE)
            self.replace(loader)

    def oom(self):
        """a loader runs out of the memory of its cgroup"""
        loader = self.any()
        with contextlib.suppress(OSError), open(loader.cgroup + "/memory.max", "w") as f:
            f.write(str(1 << 20))
        status = loader.process.wait(DEADLINE)
        with open(loader.cgroup + "/memory.events") as f:
            killed = int(re.search(r"oom_kill (\d+)", f.read())[1])
        if status != -signal.SIGKILL or not killed:
            self.wrong.append(f"a loader without memory ended with {status}, {killed} kills")
        self.replace(loader)

    def exec(self):
        """a loader becomes another program"""
        loader = self.any()
        loader.count("did")
        self.did += loader.did
        loader.did.clear()
        # Both lines in one write: the second is for the new program.
        loader.count("exec\n?")

    def stopped(self):
        """a device is deleted while a loader is stopped"""
        loader = self.any()
        loader.process.send_signal(signal.SIGSTOP)
        try:
            self.pause(0.1)
            self.link_del()
            self.pause()
        finally:
            loader.process.send_signal(signal.SIGCONT)

    def hotplug(self):
        """a CPU goes, and comes back"""
        path = "/sys/devices/system/cpu/cpu1/online"
        for what in "01":
            with open(path, "w") as f:
                f.write(what)
            self.pause()

    GROUPS = (
        link_del,
        links_del,
        netdev_down,
        netdev_del,
        netns_del,
        rename,
        rxe_rmmod,
        rmmod_busy,
        reload,
        kill,
        kill_all,
        oom,
        exec,
        stopped,
        hotplug,
    )

    def happens(self, group):
        """One round: what it found wrong, and what was left."""
        left = []
        try:
            self.pause()
            self.begins("outage")
            times = [time.monotonic()]
            left = group(self) or []
            times.append(time.monotonic())
            self.pause(0.2)
            self.whole()
            times.append(time.monotonic())
            self.gone_on()
            self.begins("calm")
            times.append(time.monotonic())
            print(
                "#   {:.1f} s, {:.1f} s until all is there again, {:.1f} s until everyone has gone on".format(
                    *(b - a for a, b in itertools.pairwise(times))
                ),
                flush=True,
            )
        except Exception as e:
            self.wrong.append(f"{type(e).__name__}: {e}")
            self.broken = True
            with contextlib.suppress(Exception):
                self.whole()
        for loader in self.loaders:
            self.wrong += [f"loader {loader.number}: {w}" for w in loader.wrong]
            loader.wrong.clear()
        wrong, self.wrong = self.wrong + [f"the kernel's log: {line}" for line in self.log.reports()], []
        return wrong, left


def table(rows):
    print(f"# {'case group':58} {'rounds':>6} {'reports':>7} {'leaks':>5} {'seconds':>7}")
    for name, (rounds, reports, leaks, seconds) in rows.items():
        print(f"# {name:58} {rounds:6} {reports:7} {leaks:5} {seconds:7.1f}")
    print(
        f"# {'all':58} "
        + " ".join(
            f"{sum(row[i] for row in rows.values()):{w}.{p}f}"
            for i, (w, p) in enumerate(((6, 0), (7, 0), (5, 0), (7, 1)))
        ),
        flush=True,
    )


def sums(chaos):
    for what, counter in (("did", chaos.did), ("met", chaos.met)):
        print(
            f"# {what}: " + ", ".join(f"{n} {k}" for k, n in sorted(counter.items(), key=lambda kn: -kn[1])), flush=True
        )


def test_rounds(r):
    dice = random.Random(SEED)
    chaos = Chaos(dice)
    only = [g for g in os.environ.get("ULP_CHAOS_ONLY", "").split(",") if g]
    groups = [g for g in Chaos.GROUPS if not only or g.__name__ in only]
    rows = {g.__doc__: [0, 0, 0, 0.0] for g in groups}
    since = []  # what has happened since the last look at what is left
    end = time.monotonic() + SECONDS
    order, done, bad = [], 0, 0
    chaos.gone_on()
    chaos.begins("calm")
    while done < ROUNDS and time.monotonic() < end and bad < 5:
        # Each group once, in another order each time.
        order = order or dice.sample(groups, len(groups))
        group = order.pop()
        row, begin = rows[group.__doc__], time.monotonic()
        print(f"# round {done + 1}: {group.__name__}", flush=True)
        with open("/dev/kmsg", "w") as f:  # for who reads a report
            f.write(f"tests: chaos round {done + 1}: {group.__name__}\n")
        wrong, left = chaos.happens(group)
        row[0] += 1
        row[1] += len(wrong)
        row[3] += time.monotonic() - begin
        done += 1
        since.append(group)
        if left:
            for g in set(since):
                rows[g.__doc__][2] += 1
        if group is Chaos.reload:
            since = []
        for why in wrong + left:
            bad += 1
            r.check(f"round {done} (ULP_SEED={SEED}): {group.__doc__}", False, why)
    r.check("the loaders did something", until(lambda: any(loader.count() for loader in chaos.loaders)))
    # A short run may end before each kind of session has had its turn.
    if "ULP_LONG" in os.environ and not DEBUG and not only:
        r.equal(f"each operation has succeeded {LEAST} times", chaos.rare(), {})
    left = chaos.end_all()
    if left:
        for g in set(since):
            rows[g.__doc__][2] += 1
    wrong = chaos.wrong + chaos.log.reports()
    table(rows)
    sums(chaos)
    r.equal(
        f"{done} rounds (ULP_SEED={SEED}): the loaders ended in order, the kernel's log is quiet",
        (wrong, bad),
        ([], 0),
    )
    r.equal("nothing of ours is left after the last one", left, [])


# --- the soak ---------------------------------------------------------------------

#: What the line does to packets. Reordered packets break rxe's atomics, see loss.py; ULP_LOAD_LINE tells the loaders.
LINE = ("delay", "200us", "loss", "1%", "duplicate", "1%", "reorder", "5%", "50%")
#: Growth that is no leak: caches of the kernel's own, which fill as time goes by.
SLACK_KIB, SLACK_OBJECTS = 16 << 10, 20000


def netem():
    """Both ways go through netem, as far as they do not yet."""
    for n in "12":
        tc = ["ip", "netns", "exec", "h" + n, "tc", "qdisc"]
        shown = subprocess.run(
            [*tc, "show", "dev", "w" + n], capture_output=True, text=True, check=False, timeout=DEADLINE
        ).stdout
        if "netem" not in shown:
            run(*tc, "add", "dev", "w" + n, "root", "netem", *LINE)


def packets():
    """What the devices have counted so far."""
    got = {}
    for n in "12":
        base = f"/sys/class/infiniband/rxe{n}/ports/1/hw_counters"
        for name in os.listdir(base) if os.path.isdir(base) else ():
            with contextlib.suppress(OSError, ValueError), open(f"{base}/{name}") as f:
                got[name] = got.get(name, 0) + int(f.read())
    return got


def memory():
    """KiB by name, and objects in the general caches: when nobody works, after what is freed late was freed."""
    time.sleep(5)
    with open("/proc/sys/vm/drop_caches", "w") as f:
        f.write("3")
    with open("/proc/meminfo") as f:
        info = {line.split(":")[0]: int(line.split()[1]) for line in f}
    got = {k: info[k] for k in ("MemAvailable", "SUnreclaim", "VmallocUsed", "Percpu", "KernelStack")}
    with open("/proc/slabinfo") as f:
        got["kmalloc objects"] = sum(int(line.split()[1]) for line in f if line.startswith("kmalloc-"))
    return got


def test_soak(r):
    """Everything together, over a line that loses, doubles and reorders, for so many seconds."""
    seconds = float(os.environ.get("ULP_SOAK_SECONDS", "1800"))
    os.environ["ULP_LOAD_LINE"] = "rough"
    dice = random.Random(SEED)
    netem()
    chaos = Chaos(dice)
    chaos.whole = lambda: (Chaos.whole(chaos), netem())
    kinds = [g for g in Chaos.GROUPS if g not in (Chaos.reload, Chaos.kill_all)]
    rows = {g.__doc__: [0, 0, 0, 0.0] for g in (*kinds, Chaos.reload)}
    counted, samples, begin = collections.Counter(packets()), [], time.monotonic()
    sent, bad = collections.Counter(), 0

    def rest():
        """Everyone ends, what there is then is counted, everyone begins."""
        left = chaos.reload()
        for loader in chaos.loaders:
            loader.kill()
            chaos.collect(loader)
        until(lambda: not module_refs())
        samples.append((time.monotonic() - begin, memory()))
        print(f"# after {samples[-1][0]:.0f} s: {samples[-1][1]}", flush=True)
        chaos.start()
        return left

    rest.__doc__ = Chaos.reload.__doc__

    def round_of(group):
        nonlocal bad, counted
        row, since = rows[group.__doc__], time.monotonic()
        before = collections.Counter(packets())
        sent.update({k: n - counted[k] for k, n in before.items() if n > counted[k]})
        wrong, left = chaos.happens((lambda _: rest()) if group is rest else group)
        counted = collections.Counter(packets())
        for i, n in enumerate((1, len(wrong), len(left), time.monotonic() - since)):
            row[i] += n
        for why in wrong + left:
            bad += 1
            r.check(f"after {time.monotonic() - begin:.0f} s (ULP_SEED={SEED}): {group.__doc__}", False, why)

    order = []
    round_of(rest)
    while time.monotonic() < begin + seconds and bad < 10:
        # Undisturbed for a while, then something happens.
        time.sleep(min(seconds / 20, 15))
        order = order or dice.sample(kinds, len(kinds))
        round_of(order.pop())
        if time.monotonic() - begin > samples[-1][0] + min(seconds / 3, 300):
            round_of(rest)
    round_of(rest)
    left = chaos.end_all()
    table(rows)
    sums(chaos)
    print("# packets: " + ", ".join(f"{n} {k}" for k, n in sorted(sent.items())), flush=True)
    print(f"# memory: {samples}", flush=True)
    r.equal(
        f"{time.monotonic() - begin:.0f} s (ULP_SEED={SEED}): the loaders ended in order, the kernel's log is quiet",
        (chaos.wrong + chaos.log.reports(), bad),
        ([], 0),
    )
    r.equal("nothing of ours is left after the last one", left, [])
    # The first sample is that of a machine that has just begun.
    first, last = samples[min(1, len(samples) - 2)][1], samples[-1][1]
    grown = {k: last[k] - n for k, n in first.items()}
    grown["MemAvailable"] *= -1
    r.check(
        "memory did not grow",
        all(n < (SLACK_OBJECTS if "objects" in k else SLACK_KIB) for k, n in grown.items()),
        grown,
    )
    print(f"# growth from the second rest to the last: {grown}", flush=True)
    r.check(
        "packets were lost and sent again",
        sent["duplicate_request"]
        + sent["retry_exceeded_err"]
        + sent["completer_retry_err"]
        + sent["rcvd_seq_err"]
        + sent["out_of_seq_request"]
        > 0,
        dict(sent),
    )


if __name__ == "__main__":
    ulp.main(__doc__, globals())
