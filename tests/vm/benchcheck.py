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


def bench(words, timeout=30):
    command = in_host("h2", ULP, "bench", *words.split())
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
    elif flow["avg_mib_s"] <= 0:
        return f"there is no throughput: {flow}"
    elif abs(flow["avg_gbit_s"] / flow["avg_mib_s"] - 8 * 1.048576e-3) > 1e-9:
        return f"Gbit/s and MiB/s differ: {flow}"
    return None


def run(name, want, words, rows=1):
    """A run that works, with `want` in each of its rows; its report.

    Each message is a packet at least, or the answer of one.
    """
    before = sent()
    got = bench(f"{words} --format json")
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
    packets, messages = sent() - before, sum(row["iterations"] for row in report["rows"] if "step" not in row)
    if packets < messages:
        why = why or f"{messages} messages in {packets} packets"
    if got.stderr:
        why = why or f"it said {got.stderr}"
    said(why is None, name, why)
    return report


def everything():
    tests = {
        "write": "write",
        "write_imm": "write --write-with-imm",
        "read": "read",
        "send": "send",
        "fetch_add": "atomic",
        "cmp_swap": "atomic --op cmp-swap",
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
                        n, options = 20, ""
                    else:
                        n, options = 400, "-q 2 -l 32"
                        if metric == "bandwidth":
                            options += " -s 5000"
                    if mode == "event":
                        options += " -e"
                    want = {
                        "test": test,
                        "metric": metric,
                        "backend": backend,
                        "mode": mode,
                        "iterations": n,
                        "interrupted": False,
                    }
                    run(
                        f"{test} {metric} by {backend}, {mode}",
                        want,
                        f"{words} {metric} {SERVER} -n {n} --warmup {n // 10} --backend {backend} {options}",
                    )


def transports():
    """UC and UD by each back end, whose receivers count the messages."""
    for backend in ("call", "uring", "verbs"):
        for transport, test, metric, options in (
            ("uc", "write", "latency", ""),
            ("uc", "write", "bandwidth", "-s 5000"),
            ("uc", "write_imm", "rate", "-q 2"),
            ("uc", "send", "latency", "-s 5000"),
            ("uc", "send", "bandwidth", "-q 2 -l 32 -s 5000"),
            ("ud", "send", "latency", ""),
            ("ud", "send", "rate", "-q 2 -l 32 -s 1024"),
        ):
            name = f"{test} {metric} over {transport} by {backend}"
            latency = metric == "latency"
            n = 20 if latency else 400
            words = "write --write-with-imm" if test == "write_imm" else test
            report = run(
                name,
                {"test": test, "metric": metric, "backend": backend, "iterations": n},
                f"{words} {metric} {SERVER} -e -c {transport.upper()} --backend {backend}"
                f" -n {n} --warmup {n // 10} {options}",
            )
            if report:
                row, counted = report["rows"][0], not latency and test != "write"
                said(report["config"]["transport"] == transport, f"{name}: the report has the transport")
                said((row["lost"] is not None) == counted, f"{name}: losses are counted where they can be", row)
                if counted:
                    said(row["lost"] < 440, f"{name}: some messages arrived", row["lost"])


def lossy():
    """A line that drops every fourth packet, the first of the last messages among them."""
    nft = in_host("h1", "nft")
    rules = (
        "add table inet lossy; add chain inet lossy input { type filter hook input priority 0; };"
        "add rule inet lossy input udp dport 4791 numgen inc mod 4 == 0 drop"
    )
    for backend in ("call", "uring", "verbs"):
        name = f"datagrams by {backend} over a line that drops every fourth"
        subprocess.run([*nft, rules], check=True)
        try:
            report = run(
                name,
                {"iterations": 400},
                f"send rate {SERVER} -e -c UD --backend {backend} -n 400 --warmup 40 -l 32",
            )
        finally:
            subprocess.run([*nft, "delete table inet lossy"], check=True)
        if report:
            row = report["rows"][0]
            said(440 > row["lost"] >= 110, f"{name}: it counts the lost ones", row)


def mixed():
    run(
        "io_uring with a thread of the kernel's",
        {"iterations": 400},
        f"write rate {SERVER} -n 400 --warmup 40 --backend uring --sqpoll -l 32",
    )
    run(
        "io_uring at one end, verbs at the other",
        {"iterations": 40},
        f"send lat {SERVER} -e -n 40 --warmup 4 --backend uring --peer-backend verbs",
    )
    run(
        "call at one end, verbs at the other",
        {"iterations": 40},
        f"send lat {SERVER} -e -n 40 --warmup 4 --backend call --peer-backend verbs",
    )
    run(
        "verbs at one end, call at the other",
        {"iterations": 40},
        f"write lat {SERVER} -e -n 40 --warmup 4 --backend verbs --peer-backend call",
    )
    for backend in ("call", "verbs"):
        before = sent()
        run(
            f"an MTU of 1024, a service level and a traffic class by {backend}",
            {"iterations": 50},
            f"write bw {SERVER} -e -s 4096 -n 50 --warmup 0 -l 5 -t 50 --backend {backend} -m 1024 -S 1 --tclass 32",
        )
        packets = sent() - before
        said(packets >= 4 * 50, f"by {backend}, a message of 4096 bytes is four packets", f"{packets} packets")
    run(
        "two threads that share an open device",
        {"iterations": 400},
        f"write rate {SERVER} -e -n 200 --warmup 20 -l 8 --threads 2 --one-file",
    )
    report = run(
        "several sizes, threads and queue pairs",
        {"iterations": 200},
        f"write bw {SERVER} -e -s 2,1K,100000 -n 100 --threads 2 -q 3 -l 7 -t 16",
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
        words = f"connect {SERVER} -n 10 --backend {backend} -e"
        report = run(f"connect by {backend}", {"iterations": 10}, words, rows=4)
        if report:
            steps = [row["step"] for row in report["rows"]]
            said(steps == ["buffer", "connect", "write", "total"], f"connect by {backend}: steps", steps)
        words = f"register -n 5 -s 4096,1M --backend {backend}"
        report = run(f"register by {backend}", {"iterations": 5}, words, rows=10)
        said(report and report["server"] is None, f"register by {backend} needs no server")
    report = run("a duration in place of a count", {"interrupted": False}, f"send rate {SERVER} -e -D 0.2")
    if report:
        said(report["rows"][0]["elapsed_ns"] >= 200_000_000, "a duration: it took as long")
    got = bench(f"write lat {SERVER} -e -n 20")
    said(
        got.returncode == 0 and "t_typical[usec]" in got.stdout and "99.99%[usec]" in got.stdout,
        "a table has perftest's columns",
        got.stdout + got.stderr,
    )
    said("\x1b" not in got.stdout + got.stderr, "no colours off a terminal")


def study():
    """One parameter at a time: every value is measured, and every factor ranked."""
    got = bench(f"study {SERVER} -e -n 128 --warmup 0 --repeat 1 -j", timeout=120)
    if not said(got.returncode == 0 and not got.stderr, "study: it ends well", got.stderr):
        return
    report = json.loads(got.stdout)
    why = schema.violation(schema.of("bench-study"), report)
    said(why is None, "study: it has its schema", why)
    values = {}
    for value in report["values"]:
        values.setdefault(value["factor"], []).append(value["value"])
        slow, fast = value["range"]
        good = 0 < slow <= fast or value["value"] in ("UC", "UD")
        said(good and slow <= value["messages_per_s"] <= fast, f"study: {value['factor']} {value['value']}", value)
    want = {
        "transport (-c)": ["RC", "UC", "UD"],
        "operation": ["send", "write-imm", "write", "read", "fetch-add"],
        "size (-s)": ["8", "1024", "65536"],
        "inline (-I)": ["0", "8"],
        "list (-l)": ["1", "16", "64"],
        "signaling (-Q)": ["1", "4", "64"],
        "waiting (-e)": ["polling", "by events"],
        "queue pairs (-q)": ["1", "4", "16"],
    }
    said(values == want, "study: all values of all factors", values)
    effects = report["effects"]
    said(sorted(e["factor"] for e in effects) == sorted(want), "study: each factor is ranked", effects)
    ratios = [e["ratio"] for e in effects if not e["may_be_chance"]]
    said(ratios == sorted(ratios, reverse=True) and min(ratios, default=1) >= 1, "study: the largest first", effects)


def signaling():
    """-Q signals within lists: a queue of 64 requests gets a completion for each 4, or for each."""
    for backend in ("call", "uring", "verbs"):
        for every in (1, 4, 64):
            run(
                f"every request number {every} signaled by {backend}",
                {"iterations": 400},
                f"read bw {SERVER} -e -s 64 -n 400 --warmup 40 -q 3 -l 50 -t 64 -Q {every} --backend {backend}",
            )


class Capture:
    """Records the packets of the client's interface while the block runs."""

    def __enter__(self):
        self.path = "/tmp/bench-capture.pcap"
        command = in_host("h2", ULP, "sniff", "w2", "-w", self.path, "--lang", "en")
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        hello = self.process.stderr.readline()
        assert "capturing at w2" in hello, hello
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=10 * PATIENCE)

    def packets(self):
        """Source address, opcode and PSN of each RoCE packet, in order."""
        with open(self.path, "rb") as f:
            data = f.read()
        at, found = 24, []
        while at < len(data):
            length = int.from_bytes(data[at + 8 : at + 12], "little")
            frame = data[at + 16 : at + 16 + length]
            at += 16 + length
            bth = frame[42:54]
            found.append((".".join(map(str, frame[26:30])), bth[0], int.from_bytes(bth[9:12], "big")))
        return found


READ_REQUEST, READ_LAST, READ_ONLY = 0x0C, 0x0F, 0x10


def outstanding(packets):
    """The most reads that were outstanding at the same time."""
    psns, most = set(), 0
    for _, opcode, psn in packets:
        if opcode == READ_REQUEST:
            psns.add(psn)
            most = max(most, len(psns))
        elif opcode in (READ_LAST, READ_ONLY):
            psns.discard(psn)
    return most


def outstanding_reads():
    """-o: so many reads at a time are on the line."""
    for backend in ("call", "verbs"):
        for outs in (1, 4):
            name = f"-o {outs} by {backend}"
            with Capture() as capture:
                run(
                    name,
                    {"iterations": 64},
                    f"read bw {SERVER} -e -s 8 -n 64 --warmup 0 -l 16 --backend {backend} -o {outs}",
                )
            most = outstanding(capture.packets())
            said(1 <= most <= outs and (most > 1) == (outs > 1), f"{name}: reads at a time", f"{most}")
    got = bench(f"read bw {SERVER} -o 255")
    said(got.returncode == 2 and "outstanding reads and atomics (-o)" in got.stderr, "-o 255: refused", got.stderr)


def acknowledgement_timeout():
    """-u: without an acknowledgement, a message is repeated after that time, or never."""
    nft = in_host("h1", "nft")
    rules = (
        "add table inet deaf; add chain inet deaf input { type filter hook input priority 0; };"
        "add rule inet deaf input udp dport 4791 drop"
    )
    subprocess.run([*nft, rules], check=True)
    try:
        for backend in ("call", "verbs"):
            for timeout in (0, 8):
                before = sent()
                got = bench(
                    f"write bw {SERVER} -e -s 8 -n 1 --warmup 0 -l 1 --backend {backend} -u {timeout} --timeout 2"
                )
                packets = sent() - before
                name = f"-u {timeout} by {backend} to a host that does not answer"
                said(got.returncode == 2, f"{name}: status 2", f"{got.returncode}: {got.stderr}")
                said((packets == 1) == (timeout == 0) and packets > 0, f"{name}: packets", f"{packets}: {got.stderr}")
    finally:
        subprocess.run([*nft, "delete table inet deaf"], check=True)


def shared_receives():
    """--use-srq: the messages of all queue pairs arrive at one queue."""
    for backend in ("call", "verbs"):
        name = f"sends to a shared receive queue by {backend}"
        options = f"-e --use-srq --backend {backend}"
        run(f"{name}: latency", {"iterations": 20}, f"send lat {SERVER} -n 20 --warmup 2 {options}")
        flow = f"send bw {SERVER} -s 5000 -n 400 --warmup 40 -q 3 -l 32"
        report = run(name, {"iterations": 400}, f"{flow} {options} -r 16")
        said(report and report["config"]["srq"], f"{name}: the report has it")
        # The queue pairs' own receives would be too many.
        many = f"send rate {SERVER} -e -n 400 -q 16 -r 4200 -t 8 -l 32 --backend {backend}"
        run(f"{name}: 4200 receives of 16 queue pairs", {"iterations": 400}, f"{many} --use-srq")
        got = bench(many)
        said(
            got.returncode == 2 and "queue pairs (-q) times depth" in got.stderr,
            f"{name}: without it, as many for each are refused",
            got.stderr,
        )
    report = run(
        "datagrams to a shared receive queue",
        {"iterations": 400},
        f"send rate {SERVER} -e -c UD -n 400 --warmup 40 -q 2 -l 32 --use-srq",
    )
    if report:
        row = report["rows"][0]
        said(row["lost"] < 440, "datagrams to a shared receive queue: some arrived", row)


def killed():
    """A server whose client was killed serves the next one, also if it slept on a shared receive queue."""
    with Serve("-p", "18602"):
        words = f"send bw {SERVER} -p 18602 -e -D 60 --use-srq --backend verbs"
        before = sent()
        client = subprocess.Popen(in_host("h2", ULP, "bench", *words.split()), stderr=subprocess.DEVNULL)
        ulp.until(lambda: sent() > before + 500)
        client.kill()
        client.wait()
        try:
            got = bench(f"write lat {SERVER} -p 18602 -e -n 20")
            said(got.returncode == 0, "a client by libibverbs is killed: the next one is served", got.stderr)
        except subprocess.TimeoutExpired:
            said(False, "a client by libibverbs is killed: the next one is served", "the server hangs")


def rate_limit():
    """--rate_limit: the average is at most the limit, but for the first list."""
    for backend in ("call", "verbs"):
        for words in "", "--threads 2":
            n = 100 if words else 200
            name = f"--rate_limit {words} by {backend}"
            report = run(
                name,
                {"iterations": 200},
                f"send rate {SERVER} -e -s 1000 -n {n} --warmup 0 -l 8 --backend {backend} --rate_limit 0.0032 {words}",
            )
            if report:
                flow = report["rows"][0]["throughput"]
                most = 400 * n / (n - 8)
                said(flow["messages_per_s"] <= most * 1.001, f"{name}: the average", f"{flow}, at most {most}")


# Accepts a connection, and says where it came from.
WHENCE = """
import socket
s = socket.create_server(("10.9.0.1", 18601))
print("ready", flush=True)
print(s.accept()[1][0], flush=True)
"""


def source_address():
    """--bind_source_ip: the client connects from that address, by TCP and by the connection manager."""
    source = "10.9.0.77"
    address = [f"{source}/24", "dev", "w2"]
    subprocess.run(["ip", "-n", "h2", "address", "add", *address], check=True)
    try:
        command = in_host("h1", "python3", "-c", WHENCE)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as peer:
            peer.stdout.readline()
            bench(f"send bw {SERVER} -p 18601 --bind_source_ip {source}")
            whence = peer.stdout.read().strip()
        said(whence == source, "--bind_source_ip: the TCP connection", whence)
        for backend in ("call", "verbs"):
            name = f"connect --bind_source_ip by {backend}"
            with Capture() as capture:
                run(
                    name,
                    {"iterations": 5},
                    f"connect {SERVER} -e -n 5 --warmup 0 --backend {backend} --bind_source_ip {source}",
                    rows=4,
                )
            sources = {address for address, _, _ in capture.packets()}
            said(sources == {source, SERVER}, f"{name}: the addresses of the packets", sources)
    finally:
        subprocess.run(["ip", "-n", "h2", "address", "del", *address], check=True)


def link_local():
    """connect: an address of the link keeps its interface."""
    command = ["ip", "-n", "h1", "-j", "-6", "address", "show", "dev", "w1", "scope", "link"]
    shown = subprocess.run(command, capture_output=True, check=True)
    # What the filter leaves out is an empty object.
    address = next(a["local"] for a in json.loads(shown.stdout)[0]["addr_info"] if "local" in a)
    for backend in ("call", "verbs"):
        run(
            f"connect by {backend} to an address of the link",
            {"iterations": 5},
            f"connect {address}%w2 -e -n 5 --warmup 0 --backend {backend}",
            rows=4,
        )


def gbits():
    """--report_gbits: the table has the throughput in Gbit/s instead of MiB/s."""
    for words, want in (
        ([], "BW average[MiB/sec] BW average[Gb/sec] MsgRate[Mpps]"),
        (["--report_gbits"], "BW average[Gb/sec] MsgRate[Mpps]"),
    ):
        got = bench(" ".join([f"write bw {SERVER} -e -s 64K -n 64", *words]))
        head, row = [*got.stdout.splitlines(), "", ""][1:3]
        said(" ".join(head.split()) == f"#bytes #iterations {want}", f"columns with {words}", got.stdout + got.stderr)
        cells = [float(cell) for cell in row.split()]
        average, rate = cells[-2:]
        good = abs(average / (rate * 65536 * 8e-3) - 1) < 0.05
        good = good and (words or abs(cells[2] * 8.388608e-3 / average - 1) < 0.01)
        said(good, f"the values with {words}", got.stdout)


def for_ever():
    """--run_infinitely: a report after each duration, until Ctrl-C."""
    words = f"write bw {SERVER} -e -D 0.2 --warmup 0 --run_infinitely -j"
    path = "/tmp/bench-for-ever"

    def printed():
        with open(path) as f:
            return f.read()

    with open(path, "w") as f:
        process = subprocess.Popen(
            in_host("h2", ULP, "bench", *words.split()), stdout=f, stderr=subprocess.PIPE, text=True
        )
    ulp.until(lambda: printed().count('"version"') >= 3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20 * PATIENCE)
    out, reports = printed(), []
    while out.strip():
        report, end = json.JSONDecoder().raw_decode(out)
        reports.append(report)
        out = out[end:].lstrip()
    good = len(reports) >= 3 and err == "ulp: interrupted\n"
    said(good, "--run_infinitely: several reports", f"{len(reports)}: {err}")
    good = all(schema.violation(SCHEMA, report) is None for report in reports)
    good = good and all(row["elapsed_ns"] >= 200_000_000 for report in reports[:-1] for row in report["rows"])
    said(good, "--run_infinitely: each is of one duration", reports)
    last = process.returncode == 2 and reports[-1]["interrupted"] and not reports[0]["interrupted"]
    said(last, "--run_infinitely: Ctrl-C ends it, with status 2", process.returncode)


def refusals():
    """What a device or a host is missing for; what is wrong by itself is a test of userspace/ulp/src/main.rs."""
    got = bench(f"write lat {SERVER} -p 9")
    said(
        got.returncode == 2 and "ulp bench serve" in got.stderr and not got.stdout,
        "no server: status 2, and what to do",
        f"status {got.returncode}: {got.stderr}",
    )
    got = bench(f"write lat {SERVER} -d nothing0 -e")
    said(got.returncode == 2 and "nothing0" in got.stderr, "no such device: it is named", got.stderr)
    got = bench(f"write lat {SERVER} -d nothing0 -e --backend verbs")
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
    config = json.loads(bench("register -n 1 --format json").stdout)["config"]
    hello = {
        "magic": "ulp bench",
        "version": 9,
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
        "a turn that is not its": frame_of({"done": {"lost": 1}}),
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
        run("hostile: then it serves a friend", {"iterations": 20}, f"write lat {SERVER} -p 18600 -e -n 20")
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
    for backend, words in (
        ("call", "send lat"),
        ("verbs", "send lat"),
        ("uring", "write rate"),
        ("call", "send rate"),
    ):
        name = f"Ctrl-C: {words} by {backend}"
        words += f" {SERVER} -e -n 100000000 --warmup 0 --backend {backend} --format json"
        process = subprocess.Popen(
            in_host("h2", ULP, "bench", *words.split()),
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
        got = bench(" ".join([*words[:2], SERVER, "-e -n 64", *words[2:], "-j"]))
        if not said(got.returncode == 0, f"plot: {words}: a report", got.stderr):
            return
        with open(f"{path}-{n}.json", "w") as f:
            f.write(got.stdout)
    got = bench(f"plot {path}-0.json {path}-1.json -o {path}")
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


def main():
    with Serve() as server:
        everything()
        transports()
        lossy()
        signaling()
        outstanding_reads()
        acknowledgement_timeout()
        shared_receives()
        killed()
        rate_limit()
        source_address()
        link_local()
        gbits()
        for_ever()
        study()
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
