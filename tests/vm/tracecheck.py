#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""What the module shows of itself.

    tracecheck.py events|removal|graph|dyndbg|fdinfo|debugfs|counters

Expects the module and two hosts. Prints KTAP.
"""

import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tracing
import ulp
from ulp import pair

WRITES = 10
EVENTS = {
    "open",
    "release",
    "object_create",
    "object_destroy",
    "submit",
    "post",
    "completion",
    "deliver",
    "take_over",
    "device_add",
    "device_remove",
    "event",
    "cancel",
    "complete_canceled",
    "uring",
    "uring_cancel",
}
CONTROL = "/proc/dynamic_debug/control"


def in_child(function):
    """Runs the function in a process of its own, whose files and mappings end with it."""
    pid = os.fork()
    if pid == 0:
        try:
            function()
            os._exit(0)
        except BaseException as e:
            print(f"# {type(e).__name__}: {e}", flush=True)
        os._exit(1)
    if os.waitpid(pid, 0)[1]:
        raise RuntimeError("the traced program failed")


def some_writes():
    a, b = pair()
    a.file.submit(
        [a.write(b, 100 + i, user_data=0xFEED00 + i) for i in range(WRITES)],
        cq=a.cq.handle,
        min_complete=WRITES,
        timeout_ns=ulp.hang_ns(),
    )
    got = a.cq.reap()
    assert [c.status for c in got] == [0] * WRITES, [c.status for c in got]


def log_lines():
    out = subprocess.run(["dmesg"], capture_output=True, text=True, check=True, timeout=30 * ulp.PATIENCE).stdout
    return [re.sub(r"^\[[^]]*\] *", "", line) for line in out.splitlines() if "rust_ulp" in line]


def test_events(r):
    base = f"{tracing.ROOT}/events/rust_ulp"
    there = {n.removeprefix("rust_ulp_") for n in os.listdir(base) if os.path.isdir(f"{base}/{n}")}
    r.equal("there is a tracepoint for every step", sorted(EVENTS - there), [])
    pointers = []
    for name in os.listdir(base):
        if os.path.isdir(f"{base}/{name}"):
            with open(f"{base}/{name}/format") as f:
                pointers += [f"{name}: {line.strip()}" for line in f if "*" in line.split(";")[0] and "field:" in line]
    r.equal("no event has a pointer in it", pointers, [])

    with tracing.Trace() as trace:
        in_child(some_writes)
    events = trace.events()
    count = {name: sum(e["event"] == name for e in events) for name in EVENTS}
    r.equal("two files opened, two released", (count["open"], count["release"]), (2, 2))
    made = sorted(e["words"][0] for e in events if e["event"] == "object_create")
    r.equal("every object made is told", made, sorted(["pd", "cq", "qp", "buffer", "grant"] * 2))

    def names(event):
        return sorted((e["file"], e["words"][0], e["handle"], e["number"]) for e in events if e["event"] == event)

    r.equal(
        "every object destroyed is told, by the same names, when a process just ends",
        names("object_destroy"),
        names("object_create"),
    )
    opened = {e["file"] for e in events if e["event"] == "open"}
    r.equal("the events name files that were opened", {e["file"] for e in events if "file" in e} - opened, set())
    tags = [0xFEED00 + i for i in range(WRITES)]
    r.equal("one submit of all", [e["nr_wrs"] for e in events if e["event"] == "submit" and e["nr_wrs"]], [WRITES])
    posted = [e for e in events if e["event"] == "post" and e.get("user_data") in tags]
    r.equal(
        "each request is posted once, in order, with its length",
        [(e["user_data"], e["length"], e["words"]) for e in posted],
        [(t, 100 + i, ["RDMA_WRITE"]) for i, t in enumerate(tags)],
    )
    done = [e for e in events if e["event"] == "completion" and e.get("user_data") in tags]
    r.equal(
        "each completes once, in order, with success",
        [(e["user_data"], e["status"], e["words"]) for e in done],
        [(t, 0, ["RDMA_WRITE"]) for t in tags],
    )
    r.equal("on the queue pair it was posted to", {e["qpn"] for e in done}, {e["qpn"] for e in posted})
    told = [e for e in events if e["event"] == "deliver" and e.get("user_data") in tags]
    r.equal("each is delivered once, in order", [e["user_data"] for e in told], tags)
    r.check(
        "post comes before completion, completion before delivery",
        all(p["time"] <= c["time"] <= d["time"] for p, c, d in zip(posted, done, told, strict=True)),
        "they do not",
    )

    with tracing.Trace() as trace:
        pass
    in_child(some_writes)
    r.equal("switched off, nothing is recorded", trace.events(), [])


def test_removal(r):
    def files_and_removal():
        ends = pair()
        subprocess.run(["timeout", str(20 * ulp.PATIENCE), "rdma", "link", "del", "rxe1"], check=True)
        ends[0].file.close()

    with tracing.Trace() as trace:
        in_child(files_and_removal)
    events = trace.events()
    r.equal("the removal of the device is told once", sum(e["event"] == "device_remove" for e in events), 1)
    removal = next((i for i, e in enumerate(events) if e["event"] == "device_remove"), len(events))
    gone = [e["words"][0] for e in events[removal:] if e["event"] == "object_destroy"]
    r.equal("what it takes along is told after it", sorted(gone[:5]), sorted(["pd", "cq", "qp", "buffer", "grant"]))


def nested(text, outer, inner):
    """In a function_graph record: does a task call `inner` inside of `outer`?"""
    depth = {}
    for line in text.splitlines():
        m = re.match(r"^\s*\d+\)\s*(\S.*-\d+)\s*\|[^|]*\|(\s*)(\S.*)$", line)
        # Events stand where they like, and so does the clock where it is not the TSC.
        if not m or m[3].startswith(("/*", "read_hpet")):
            continue
        task, indent, what = m[1], len(m[2]), m[3]
        if task in depth and indent <= depth[task]:
            del depth[task]
        if task in depth and re.match(rf"{inner}(\.\w+)*(?: \[\w+\])?\(\)", what):
            return True
        if re.match(rf"{outer}(\.\w+)*(?: \[\w+\])?\(\) \{{", what):
            depth[task] = indent
    return False


def test_graph(r):
    back = tracing.traceable(["ib_cq_poll_work", "ib_poll_handler", "ib_process_cq_direct"])
    doors = [
        "rust_ulp_ioctl",
        "rust_ulp_open",
        "rust_ulp_release",
        "rust_ulp_mmap",
        "rust_ulp_poll",
        "rust_ulp_uring_cmd",
        "rust_ulp_uring_done",
        "rust_ulp_post_send",
        "rust_ulp_post_recv",
        "rust_ulp_completion",
    ]
    r.equal("the tracer knows every door of the module", sorted(set(doors) - set(tracing.traceable(doors))), [])
    with tracing.Trace("function_graph", graph=["rust_ulp_ioctl", *back]) as trace:
        in_child(some_writes)
    for outer, inner in (
        ("rust_ulp_ioctl", "rust_ulp_post_send"),
        ("rust_ulp_post_send", "rxe_post_send"),
        ("rust_ulp_ioctl", "rxe_post_send"),
    ):
        r.check(f"function_graph: {inner} is called inside {outer}", nested(trace.text, outer, inner), "it is not")
    r.check(
        "function_graph: the completion comes back to rust_ulp_completion inside the core's polling",
        any(nested(trace.text, outer, "rust_ulp_completion") for outer in [*back, "rust_ulp_ioctl"]),
        "it does not",
    )


def sites():
    """The module's lines of the control file: their flags by file and line."""
    out = {}
    with open(CONTROL) as f:
        for line in f:
            m = re.match(r"(\S+):(\d+) \[rust_ulp\](\S+) =(\S+) ", line)
            if m:
                out[m[1], int(m[2])] = m[4]
    return out


def control(query):
    with open(CONTROL, "w") as f:
        f.write(query)


def test_dyndbg(r):
    at = sites()
    r.check("there are dynamic_debug sites", at, "none")
    r.equal("they are off", {k: v for k, v in at.items() if v != "_"}, {})
    r.equal("each is in a file of the module", [f for f, _ in at if not re.search(r"rust_ulp/.*\.(rs|c)$", f)], [])
    before = len(log_lines())
    in_child(some_writes)
    r.equal("off means silent", log_lines()[before:], [])
    control("module rust_ulp +p")
    r.equal("+p sets them all", set(sites().values()), {"p"})
    in_child(some_writes)
    loud = ulp.until(lambda: log_lines()[before:])
    r.check("+p makes them speak", loud, "nothing in the log")
    r.equal("no kernel address in what they say", [s for s in loud if re.search(r"\bf{4,}[0-9a-f]{8,}\b", s)], [])
    control("module rust_ulp +pmfl")
    before = len(log_lines())
    in_child(some_writes)
    silent = [s for s in log_lines()[before:] if not re.match(r"rust_ulp:rust_ulp\S*:\d+: \S", s)]
    r.equal("+mfl names module, function and line of each", silent, [])
    control("module rust_ulp -pmfl")
    r.equal("-pmfl takes it all back", set(sites().values()), {"_"})
    before = len(log_lines())
    in_child(some_writes)
    r.equal("and they are silent again", log_lines()[before:], [])
    (file, line), *_ = at
    control(f"file {file} line {line} +p")
    r.equal("a single site can be chosen", [k for k, v in sites().items() if v == "p"], [(file, line)])
    control("module rust_ulp -p")


def fdinfo(file):
    """The lines of ours, as (key, value)."""
    with open(f"/proc/self/fdinfo/{file.fd}") as f:
        pairs = [re.match(r"([^:]+):\s*(.*)", line).groups() for line in f]
    return [(k.removeprefix("rust_ulp-"), v) for k, v in pairs if k.startswith("rust_ulp-")]


def test_fdinfo(r):
    r.equal("fdinfo of a file that is not attached says so", dict(fdinfo(ulp.File("h1")))["device"], "none")
    a, b = pair()
    a.file.submit([a.write(b, 64) for _ in range(5)], cq=a.cq.handle, min_complete=5, timeout_ns=ulp.hang_ns())
    lines = fdinfo(a.file)
    for line in lines:
        print("# fdinfo: {}: {}".format(*line))
    one = dict(lines)
    r.equal(
        "fdinfo names the device and each object once",
        sorted(k for k, _ in lines),
        sorted("file device entries pd cq qp qp-send qp-recv buffer grant send recv".split()),
    )
    r.equal("by the device's name", one["device"], "rxe1")
    handles = {"pd": a.pd, "cq": a.cq.handle, "qp": a.qp.handle, "buffer": a.buffer.handle, "grant": a.grant.handle}
    r.equal("and by their handles", {k: int(one[k].split()[0], 0) for k in handles}, handles)
    r.check("the completion queue's line tells what is unread", " unread 5 " in one["cq"] + " ", one["cq"])
    r.check(
        "the queue pair's line has its number and state",
        f" qpn {a.qp.num} " in one["qp"] and "rts" in one["qp"].lower(),
        one["qp"],
    )
    r.check("the buffer's line has its size", f" bytes {a.buffer.length} " in one["buffer"] + " ", one["buffer"])
    a.cq.reap()
    r.check("what was read is no longer unread", " unread 0 " in dict(fdinfo(a.file))["cq"] + " ", "")
    r.equal("no kernel address in it", [v for _, v in lines if re.search(r"\bf{4,}[0-9a-f]{8,}\b", v)], [])
    a.file.destroy(a.grant.handle)
    r.check("what was destroyed is gone from it", "grant" not in dict(fdinfo(a.file)), fdinfo(a.file))
    subprocess.run(["timeout", str(20 * ulp.PATIENCE), "rdma", "link", "del", "rxe1"], check=True)
    r.equal("a husk's fdinfo says so", dict(fdinfo(a.file))["device"], "gone")


def test_debugfs(r):
    """/sys/kernel/debug/rust_ulp/files has the lines of fdinfo of each file that is attached."""
    path = "/sys/kernel/debug/rust_ulp/files"

    def read():
        with open(path) as f:
            return [tuple(re.match(r"rust_ulp-([^:]+):\s*(.*)", line).groups()) for line in f]

    r.equal("root alone may read it", oct(os.stat(path).st_mode & 0o777), "0o400")
    r.equal("without an attached file it is empty", read(), [])
    loose = ulp.File("h1")
    a, b = pair()
    for _ in range(200):
        # More than a page, so that the kernel reads again with a larger buffer.
        a.file.pd()
    a.file.submit([a.write(b, 64) for _ in range(5)], cq=a.cq.handle, min_complete=5, timeout_ns=ulp.hang_ns())
    lines = read()
    starts = [i for i, (key, _) in enumerate(lines) if key == "file"]
    sections = [lines[i:j] for i, j in zip(starts, [*starts[1:], len(lines)], strict=True)]
    r.equal("it has what fdinfo has, of each attached file", sorted(sections), sorted([fdinfo(a.file), fdinfo(b.file)]))
    with open(path) as held:
        for opened in (loose, a, b):
            opened.close()
        r.equal("closed files are gone from it", held.read(), "")
        # Nobody has the device open: an operation of the module could be called after it has gone.
        r.equal("the module stays while it is open", ulp.delete_module(), "EAGAIN")
    r.equal("and goes when it is not", ulp.delete_module(), "none")
    r.check("and the file goes with it", not os.path.exists(os.path.dirname(path)), "it is there")


def counted(file, key):
    """The counters of fdinfo's line: (posted, bytes, completions by status), by handle if it names one."""
    out = {}
    for handle, *rest in (
        re.fullmatch(r"(0x\S+ )?posted (\d+) bytes (\d+) status(.*)", v).groups() for k, v in fdinfo(file) if k == key
    ):
        statuses = dict(tuple(map(int, pair.split(":"))) for pair in rest[2].split())
        out[int(handle, 0) if handle else None] = (int(rest[0]), int(rest[1]), statuses)
    return out.get(None, out)


def took(file, key):
    """How many requests the histogram of fdinfo's line has; None without the line."""
    for line in (v for k, v in fdinfo(file) if k == key):
        buckets = [tuple(map(int, pair.split(":"))) for pair in line.partition("below_ns ")[2].split()]
        assert buckets == sorted(buckets) and all(b & (b - 1) == 0 or b == 2**64 - 1 for b, _ in buckets), buckets
        return sum(count for _, count in buckets)
    return None


def latency(on):
    with open("/sys/module/rust_ulp/parameters/latency", "w") as f:
        f.write("1" if on else "0")


def test_counters(r):
    a, b = pair()
    sends, recvs = (
        (lambda end: counted(end.file, "qp-send")[end.qp.handle]),
        (lambda end: counted(end.file, "qp-recv")[end.qp.handle]),
    )
    r.equal("a new queue pair has counted nothing", (sends(a), recvs(a)), ((0, 0, {}), (0, 0, {})))
    silent = {"flags": 0}
    a.file.submit([a.write(b, 64, **silent) for _ in range(4)] + [a.write(b, 64)])
    a.cq.wait(1)
    r.equal("requests that make no completion count as well", sends(a), (5, 320, {0: 5}))
    b.file.submit([b.qp.wr("RECV", b.buffer, 0, 4096) for _ in range(3)])
    r.equal("receives count when they are posted, their bytes do not", recvs(b), (3, 0, {}))
    a.file.submit([a.qp.wr("SEND", a.buffer, 0, 100) for _ in range(2)])
    a.cq.wait(2)
    b.cq.wait(2)
    r.equal("a receive counts the bytes that came", recvs(b), (3, 200, {0: 2}))
    a.file.submit([a.qp.wr("RDMA_READ", a.buffer, 0, 8, remote_addr=0, rkey=b.grant.rkey)])
    a.cq.wait(1)
    r.equal("a failure has its status", sends(a), (8, 528, {0: 7, 10: 1}))
    a.file.submit([a.write(b, 1) for _ in range(3)])
    a.cq.wait(3)
    r.equal("what follows it is flushed", sends(a), (11, 531, {0: 7, 10: 1, 5: 3}))
    error = ulp.error_of(a.file.submit, [a.qp.wr("RDMA_WRITE", a.buffer, a.buffer.length, 1), a.write(b, 1)])
    r.equal("what is refused does not count", (error, sends(a)), ("ERANGE", (11, 531, {0: 7, 10: 1, 5: 3})))
    r.equal("the file's counters are those of its queue pair", counted(a.file, "send"), sends(a))

    timed_out, canceled = ulp.N["WC_STATUS_TIMEOUT"], ulp.N["WC_STATUS_CANCELED"]
    c = ulp.End("h1")
    c.connect(a)  # a's queue pair is in error, so nobody answers
    c.file.submit([c.qp.wr("RECV", timeout_ns=1_000_000), c.qp.wr("RECV", user_data=7)])
    c.cq.wait(1)
    c.file.call("CANCEL", queue=c.qp.handle, user_data=7, flags=0)
    c.cq.wait(1)
    r.equal("time-outs and cancels count once each", recvs(c), (2, 0, {timed_out: 1, canceled: 1}))
    c.file.destroy(c.qp.handle)
    r.equal("the queue pair's counters end with it", counted(c.file, "qp-recv"), {})
    r.equal("the file keeps them", counted(c.file, "recv"), (2, 0, {timed_out: 1, canceled: 1}))

    srq = ulp.Srq(c.file, c.pd, c.cq)
    c.qp = ulp.Qp(c.file, c.pd, c.cq, srq=srq.handle)
    d = ulp.End("h2")
    c.meet(d)
    c.file.submit([srq.recv(c.buffer, 0, 64) for _ in range(3)])
    d.file.submit([d.qp.wr("SEND", d.buffer, 0, 10)])
    c.cq.wait(1)
    r.equal("a shared queue counts posts", counted(c.file, "srq-recv"), {srq.handle: (3, 0, {})})
    r.equal("its queue pair counts completions", recvs(c), (0, 10, {0: 1}))
    r.equal("the file has the sum", counted(c.file, "recv"), (5, 10, {0: 1, timed_out: 1, canceled: 1}))
    c.file.destroy(c.qp.handle)
    c.file.destroy(srq.handle)
    posted, size, statuses = counted(c.file, "recv")
    r.equal("and keeps it when both are gone", (posted, size, statuses[0]), (5, 10, 1))

    a, b = pair()
    r.equal("latencies are off", took(a.file, "qp-latency"), None)
    latency(True)
    a.file.submit([a.write(b, 8, **silent)] + [a.write(b, 8) for _ in range(5)])
    a.cq.wait(5)
    latency(False)
    r.equal("switched on, each request that completes is in the histogram", took(a.file, "qp-latency"), 5)
    a.file.submit([a.write(b, 8)])
    a.cq.wait(1)
    r.equal("switched off, none is", took(a.file, "qp-latency"), 5)
    a.file.destroy(a.qp.handle)
    r.equal("the file keeps that, too", (took(a.file, "qp-latency"), took(a.file, "latency")), (None, 5))


if __name__ == "__main__":
    ulp.main(__doc__, globals())
