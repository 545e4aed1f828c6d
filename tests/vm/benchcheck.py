# SPDX-License-Identifier: GPL-2.0
"""What `ulp bench` prints and how it ends, for 80-bench. Two hosts and the module are there.

Asserts counts, keys, order and contents, never times.
"""

import json
import os
import re
import signal
import subprocess
import sys

import schema
import ulp
from ulp import DEBUG, PATIENCE

ULP = os.environ.get("ULP", "/ulp") + "/bin/ulp"
SERVER = "10.9.0.1"
PORT = 18515
LATENCY = ("min", "p50", "p90", "p99", "p99_9", "p99_99", "max")
results = ulp.Report()
SCHEMA = schema.of("bench")


def said(good, name, why=""):
    return results.check(name, good, why or "failed")


def in_host(host, *command):
    return ["ip", "netns", "exec", host, *command]


def bench(*arguments, timeout=30):
    command = in_host("h2", ULP, "bench", *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout * PATIENCE)


class Serve:
    """A server on h1, which listens when this returns."""

    def __init__(self, *options):
        self.process = subprocess.Popen(
            in_host("h1", ULP, "bench", "serve", *options), stderr=subprocess.PIPE, text=True
        )
        self.hello = self.process.stderr.readline()
        assert "listening at" in self.hello, self.hello

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(10 * PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def wrong_row(row, want):
    """What is wrong with a row, or nothing."""
    for key, value in want.items():
        if row[key] != value:
            return f"{key} is {row[key]}, not {value}"
    latency, flow = row["latency_ns"], row["throughput"]
    if (row["metric"] == "latency") != (latency is not None) or (latency is None) == (flow is None):
        return "latency and throughput are not one or the other"
    if latency:
        values = [latency[key] for key in LATENCY]
        if values != sorted(values) or values[0] <= 0:
            return f"the percentiles are out of order: {values}"
        if not latency["min"] <= latency["avg"] <= latency["max"] or latency["typical"] != latency["p50"]:
            return f"average and median make no sense: {latency}"
        curve = latency["curve"]
        if curve != sorted(curve) or [y for _, y in curve] != sorted(y for _, y in curve):
            return "the curve goes down"
        if curve[-1] != [1.0, latency["max"]]:
            return f"the curve ends at {curve[-1]}"
    elif not 0 < flow["avg_mib_s"] <= flow["peak_mib_s"] * 1.000001:
        return f"the peak is below the average: {flow}"
    return None


def run(name, want, *arguments, rows=1):
    """A run that works, with `want` in each of its rows; its report."""
    got = bench(*arguments, "--format", "json")
    if got.returncode:
        said(False, name, f"status {got.returncode}: {got.stderr}")
        return None
    try:
        report = json.loads(got.stdout)
    except ValueError as error:
        said(False, name, f"{error}: {got.stdout[-200:]}")
        return None
    why = schema.violation(SCHEMA, report)
    if len(report["rows"]) != rows:
        why = f"{len(report['rows'])} rows, not {rows}"
    for row in report["rows"]:
        why = why or wrong_row(row, want)
    if got.stderr:
        why = why or f"it said {got.stderr}"
    said(why is None, name, why)
    return report


def everything():
    tests = {
        "write": ["write"],
        "read": ["read"],
        "send": ["send"],
        "fetch_add": ["atomic"],
        "cmp_swap": ["atomic", "--op", "cmp-swap"],
    }
    for backend in ("call", "uring", "verbs"):
        for test, words in tests.items():
            atomic = test in ("fetch_add", "cmp_swap")
            # Bandwidth and rate are one loop, and so are both atomics: each has one of them, writes both.
            metrics = ["latency"] + ["bandwidth"] * (not atomic) + ["rate"] * (test in ("write", "fetch_add"))
            if DEBUG:
                metrics = metrics[:1] if test in ("write", "send", "fetch_add") else []
            for metric in metrics:
                # Two that spin on two emulated CPUs take their time: one test does.
                modes = ["event"] + ["poll"] * (metric == "latency" and test == "write")
                for mode in modes:
                    if metric == "latency":
                        # Atomics are looked at one by one, and their sum once; what goes to and fro at
                        # both ends.
                        n, options = 20, []
                        verified = {"read": 22, "fetch_add": 23, "cmp_swap": 23}.get(test, 44)
                    else:
                        n, options = 400, ["-q", "2", "-l", "32"]
                        verified = 442 if atomic else 440
                        if metric == "bandwidth":
                            options += ["-s", "5000"]
                    want = {
                        "test": test,
                        "metric": metric,
                        "backend": backend,
                        "mode": mode,
                        "iterations": n,
                        "interrupted": False,
                        "verified": verified,
                    }
                    run(
                        f"{test} {metric} by {backend}, {mode}",
                        want,
                        *words,
                        metric,
                        SERVER,
                        "-n",
                        str(n),
                        "--warmup",
                        str(n // 10),
                        "--verify",
                        "--backend",
                        backend,
                        *options,
                        *(["-e"] if mode == "event" else []),
                    )


def mixed():
    run(
        "io_uring with a thread of the kernel's",
        {"verified": 440},
        "write",
        "rate",
        SERVER,
        "-n",
        "400",
        "--warmup",
        "40",
        "--verify",
        "--backend",
        "uring",
        "--sqpoll",
        "-l",
        "32",
    )
    run(
        "io_uring at one end, verbs at the other",
        {"verified": 88},
        "send",
        "lat",
        SERVER,
        "-e",
        "-n",
        "40",
        "--warmup",
        "4",
        "--verify",
        "--backend",
        "uring",
        "--peer-backend",
        "verbs",
    )
    run(
        "call at one end, verbs at the other",
        {"verified": 88},
        "send",
        "lat",
        SERVER,
        "-e",
        "-n",
        "40",
        "--warmup",
        "4",
        "--verify",
        "--backend",
        "call",
        "--peer-backend",
        "verbs",
    )
    run(
        "verbs at one end, call at the other",
        {"verified": 88},
        "write",
        "lat",
        SERVER,
        "-e",
        "-n",
        "40",
        "--warmup",
        "4",
        "--verify",
        "--backend",
        "verbs",
        "--peer-backend",
        "call",
    )
    report = run(
        "several sizes, threads and queue pairs",
        {"iterations": 200},
        "write",
        "bw",
        SERVER,
        "-e",
        "-s",
        "2,1K,100000",
        "-n",
        "100",
        "--threads",
        "2",
        "-q",
        "3",
        "-l",
        "7",
        "-t",
        "16",
        "--verify",
        rows=3,
    )
    if report:
        said([row["size"] for row in report["rows"]] == [2, 1024, 100000], "a row for each size, in order")
        said(
            report["config"]["qps"] == 3
            and report["config"]["threads"] == 2
            and report["version"] == 2
            and report["client"]["kernel"] == report["server"]["kernel"] == os.uname().release
            and report["client"]["module"]
            and report["command"][1:3] == ["bench", "write"],
            "the report has configuration, machines and command",
            report,
        )
    for backend in ("call", "verbs"):
        report = run(
            f"connect by {backend}",
            {"iterations": 10},
            "connect",
            SERVER,
            "-n",
            "10",
            "--backend",
            backend,
            "-e",
            rows=6,
        )
        if report:
            steps = [row["step"] for row in report["rows"]]
            said(
                steps == ["buffer", "address", "route", "connect", "write", "total"],
                f"connect by {backend}: steps",
                steps,
            )
        report = run(
            f"register by {backend}",
            {"iterations": 5},
            "register",
            "-n",
            "5",
            "-s",
            "4096,1M",
            "--backend",
            backend,
            rows=10,
        )
        said(report and report["server"] is None, f"register by {backend} needs no server")
    report = run("a duration in place of a count", {"interrupted": False}, "send", "rate", SERVER, "-e", "-D", "0.2")
    if report:
        said(report["rows"][0]["elapsed_ns"] >= 200_000_000, "a duration: it took as long")
    got = bench("write", "lat", SERVER, "-e", "-n", "20")
    said(
        got.returncode == 0 and "t_typical[usec]" in got.stdout and "99.99%[usec]" in got.stdout,
        "a table has perftest's columns",
        got.stdout + got.stderr,
    )
    said("\x1b" not in got.stdout + got.stderr, "no colours and bars off a terminal")


def refusals():
    for what, arguments in {
        "no metric": ["write"],
        "an unknown metric": ["write", "speed", SERVER],
        "an unknown option": ["write", "lat", SERVER, "--frob"],
        "size 0": ["write", "lat", SERVER, "-s", "0"],
        "a size beyond all": ["write", "bw", SERVER, "-s", "4000M"],
        "both -n and -D": ["write", "lat", SERVER, "-n", "5", "-D", "1"],
        "a list beyond the queue": ["write", "bw", SERVER, "-l", "64", "-t", "8"],
        "no queue pairs": ["write", "bw", SERVER, "-q", "0"],
        "latency on two": ["write", "lat", SERVER, "-q", "2"],
        "an atomic of 16 bytes": ["atomic", "lat", SERVER, "-s", "16"],
        "connections by io_uring": ["connect", SERVER, "--backend", "uring"],
        "an unknown back end": ["write", "lat", SERVER, "--backend", "pigeon"],
        "a plot of nothing": ["plot"],
    }.items():
        got = bench(*arguments)
        said(
            got.returncode == 2 and got.stderr and not got.stdout,
            f"status 2: {what}",
            f"status {got.returncode}: {got.stderr} {got.stdout}",
        )
    got = bench("write", "lat", SERVER, "-p", "9")
    said(
        got.returncode == 2 and "ulp bench serve" in got.stderr and not got.stdout,
        "no server: status 2, and what to do",
        f"status {got.returncode}: {got.stderr}",
    )
    got = bench("write", "lat", SERVER, "-d", "nothing0", "-e")
    said(got.returncode == 2 and "nothing0" in got.stderr, "no such device: it is named", got.stderr)
    got = bench("write", "lat", SERVER, "-d", "nothing0", "-e", "--backend", "verbs")
    said(got.returncode == 2 and "nothing0" in got.stderr, "libibverbs: no such device: it is named", got.stderr)


# Says one thing after the other to a server, each on a connection of its own, as far as it is heard.
SAY = """
import json, socket, sys
for frame in json.load(sys.stdin):
    s = socket.create_connection(("10.9.0.1", 18600), float(sys.argv[1]))
    s.sendall(bytes.fromhex(frame["bytes"]))
    for _ in range(frame["answers"]):
        s.recv(65536)
    if not frame["answers"]:
        # The server may have hung up by now.
        try:
            s.shutdown(socket.SHUT_WR)
            while s.recv(4096): pass
        except TimeoutError: raise
        except OSError: pass
    s.close()
"""


def frame_of(*messages):
    bodies = [json.dumps(m).encode() for m in messages]
    return b"".join(len(b).to_bytes(4, "big") + b for b in bodies)


def hostile():
    """A server survives whatever is said to it, and says why it hung up."""
    config = json.loads(bench("register", "-n", "1", "--format", "json").stdout)["config"]
    hello = {
        "magic": "ulp bench",
        "version": 2,
        "config": config | {"test": "write", "metric": "rate", "sizes": [8], "depth": 8, "list": 8},
    }

    def spoilt(**changes):
        return frame_of({"hello": hello | {"config": hello["config"] | changes}})

    end = {
        "qps": [
            {
                "qp_num": 1,
                "psn": 1,
                "gid": [0] * 10 + [255, 255, 10, 9, 0, 2],
                "lid": 0,
                "mtu": 1024,
                "rd_atomic": [1, 1],
            }
        ],
        "addr": 4096,
        "len": 1 << 20,
        "rkey": 1,
    }
    frames = {
        "another program": b"GET / HTTP/1.0\r\n\r\n",
        "a length of 4 GiB": b"\xff" * 64,
        "no JSON": b"\0\0\0\4{{{{",
        "half a message": b"\0\0\1\0{",
        "nothing": b"",
        "another magic": frame_of({"hello": hello | {"magic": "x"}}),
        "another version": frame_of({"hello": hello | {"version": 99}}),
        "65,536 threads": spoilt(threads=65536),
        "no queue pairs": spoilt(qps=0),
        "4 billion queue pairs": spoilt(qps=2**32 - 1),
        "a size of 4 GiB": spoilt(sizes=[2**32 - 1]),
        "a depth of 4 billion": spoilt(depth=2**32 - 1),
        "a field too many": spoilt(extra=1),
        "a turn that is not its": frame_of({"done": {"verified": 1}}),
        "a row that was not announced": frame_of({"hello": hello}, {"row": {"size": 9, "ends": [end]}}),
        "a row without ends": frame_of({"hello": hello}, {"row": {"size": 8, "ends": []}}),
        "a buffer that is too small": frame_of({"hello": hello}, {"row": {"size": 8, "ends": [end | {"len": 8}]}}),
        "a buffer over the end": frame_of(
            {"hello": hello}, {"row": {"size": 8, "ends": [end | {"addr": 2**64 - 4096}]}}
        ),
        "a row, and gone": frame_of({"hello": hello}, {"row": {"size": 8, "ends": [end]}}),
    }
    with Serve("-p", "18600") as server:
        said_to_it = json.dumps(
            [{"bytes": frame.hex(), "answers": 2 if what == "a row, and gone" else 0} for what, frame in frames.items()]
        )
        got = subprocess.run(
            in_host("h2", "python3", "-c", SAY, str(10 * PATIENCE)),
            input=said_to_it,
            text=True,
            check=False,
            timeout=30 * PATIENCE,
            capture_output=True,
        )
        said(got.returncode == 0, "hostile: it hangs up each time", got.stderr)
        run(
            "hostile: then it serves a friend",
            {"iterations": 20},
            "write",
            "lat",
            SERVER,
            "-p",
            "18600",
            "-e",
            "-n",
            "20",
        )
    words = server.process.stderr.read().splitlines()
    for what, line in zip(frames, words + [""] * len(frames), strict=False):
        said(line.startswith("ulp: client") and "panicked" not in line, f"hostile: {what}: refused, with a word", line)
    said(len(words) == len(frames), "hostile: a word for each", words)


def takes_interrupts(pid):
    """Whether the program has come so far."""
    with open(f"/proc/{pid}/status") as f:
        caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", f.read(), re.M)
    return caught and int(caught[1], 16) >> (signal.SIGINT - 1) & 1


def sent():
    """How many packets the client's device has sent."""
    with open("/sys/class/infiniband/rxe2/ports/1/hw_counters/sent_pkts") as f:
        return int(f.read())


def interrupted():
    for backend, words in (("call", ["send", "lat"]), ("verbs", ["send", "lat"]), ("uring", ["write", "rate"])):
        name = f"Ctrl-C: {' '.join(words)} by {backend}"
        process = subprocess.Popen(
            in_host(
                "h2",
                ULP,
                "bench",
                *words,
                SERVER,
                "-e",
                "-n",
                "100000000",
                "--warmup",
                "0",
                "--backend",
                backend,
                "--format",
                "json",
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        # It has set its handler, and something has crossed.
        before = sent()
        ulp.until(lambda: takes_interrupts(process.pid) and sent() > before + 500)
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=20 * PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            said(False, name, "it goes on")
            continue
        try:
            report = json.loads(out)
            row = report["rows"][0]
            good = process.returncode == 2 and report["interrupted"] and row["interrupted"]
            said(
                good and 0 < row["iterations"] < 100000000 and wrong_row(row, {}) is None,
                f"{name} prints what there is",
                f"status {process.returncode}: {row}",
            )
        except (ValueError, LookupError) as error:
            said(False, f"{name} prints what there is", f"{error!r}: {out[-200:]} {err}")


def plots():
    path = "/tmp/bench-plot"
    for n, words in enumerate((["write", "lat"], ["write", "bw", "-s", "8,64,4096"])):
        got = bench(words[0], words[1], SERVER, "-e", "-n", "64", *words[2:], "--output", f"{path}-{n}.json")
        if not said(got.returncode == 0, f"--output: {words}", got.stderr):
            return
    got = bench("plot", f"{path}-0.json", f"{path}-1.json", "-o", path)
    files = got.stdout.split()
    names = sorted(os.path.basename(f) for f in files)
    said(
        got.returncode == 0 and names == ["bandwidth-write.svg", "latency-write-latency-8-B.svg", "rate-write.svg"],
        "plot: the files it names",
        f"{names} {got.stderr}",
    )
    for name in files:
        with open(name) as f:
            text = f.read()
        said(
            text.startswith("<svg")
            and text.rstrip().endswith("</svg>")
            and "polyline" in text
            and re.search(r"call by events", text),
            f"plot: {os.path.basename(name)} has its curve",
            text[:200],
        )
    got = bench("plot", "/etc/passwd", "-o", path)
    said(got.returncode == 2 and "/etc/passwd" in got.stderr, "plot: what is no report is refused", got.stderr)


def main():
    with Serve() as server:
        everything()
        mixed()
        refusals()
        interrupted()
        plots()
        said(server.process.poll() is None, "the server outlived all of it")
    said(
        server.process.returncode == 0, "the server ends with status 0 when it is told to", server.process.stderr.read()
    )
    hostile()


results.run("ulp bench", lambda _: main())
sys.exit(results.status())
