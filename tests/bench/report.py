#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Sums up what tests/bench/run has measured.

    report.py OUTDIR RESULT.json...
    report.py --figures README.md DOCUMENT.md OUTDIR/bench.json COMMIT

Writes OUTDIR/bench.json and OUTDIR/bench.md: the median over the runs of each
side, and the ratio of ours to each of the others'. The ratio is the median of the
ratios of the pairs, so a slow minute of the machine weighs on no side alone. The second form
writes figures of bench.json between the marks of two documents: the rows of SUMMARY, with a
verdict in words, into the README, and all rows against libibverbs and the floor into DOCUMENT.md.
"""

import json
import os
import statistics
import sys

UNITS = {
    "median_us": ("median", "us", False),
    "p99_us": ("99th percentile", "us", False),
    "buffer_us": ("4 KiB of registered memory, median", "us", False),
    "connect_us": ("connecting, from the queue pair on, median", "us", False),
    "write_us": ("the first write, median", "us", False),
    "total_us": ("all of it, median", "us", False),
    "calls": ("system calls per 1,000 messages", "", False),
    "each_ns": ("instructions of the whole guest for each", "", False),
    "mib_s": ("bandwidth", "MiB/s", True),
    "msg_s": ("messages", "/s", True),
}
WHERE = {
    "smp": "emulated, several CPUs: noisy, spinning allowed",
    "icount": "one CPU, one instruction is one nanosecond of guest time: repeatable",
    "hca": "the lab's adapter, one CPU, one instruction is one nanosecond of guest time",
}


def keys(name, sample, mode):
    """Which numbers of a test matter: of a rate the messages, and what each of them costs where that is known; of a
    bandwidth the bytes."""
    if "median_us" in sample:
        return ["median_us", "p99_us"]
    if "total_us" in sample or "calls" in sample:
        return list(sample)
    if "rate" not in name:
        return ["mib_s"]
    return ["msg_s"] if mode == "smp" else ["msg_s", "each_ns"]


def value(run, key):
    """One CPU that does nothing else: an instruction is a nanosecond."""
    return 1e9 / run["msg_s"] if key == "each_ns" else run[key]


def sum_up(result):
    """{test: {key: {ours, stock: {side: {value, ratio, low, high}}}}}"""
    out = {}
    for name, test in result["tests"].items():
        rows = {}
        for key in keys(name, test["ours"][0], result["mode"]):
            ours = [value(run, key) for run in test["ours"]]
            sides = {}
            for side, runs in test["stock"].items():
                theirs = [value(run, key) for run in runs]
                ratios = [a / b if b else float("inf") for a, b in zip(ours, theirs, strict=True)]
                sides[side] = {
                    "value": statistics.median(theirs),
                    "ratio": statistics.median(ratios),
                    "low": min(ratios),
                    "high": max(ratios),
                }
            rows[key] = {"ours": statistics.median(ours), "stock": sides}
        out[name] = {"what": test["what"], "pairs": len(test["ours"]), "rows": rows, "commands": test["commands"]}
    return out


def number(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def table(result, summed):
    lines = [
        f"### {WHERE.get(result['mode'], result['mode'])}",
        "",
        f"Linux {result['kernel']}, {result['cpus']} CPU(s), perftest {result['perftest'] or 'unknown'}.",
        "",
        "| measured | value | rust_ulp | against | theirs | ratio (lowest to highest) |",
        "|---|---|---|---|---|---|",
    ]
    for test in summed.values():
        for key, row in test["rows"].items():
            words, unit, more = UNITS[key]
            for side, s in row["stock"].items():
                lines.append(
                    f"| {test['what']} | {words}{unit and ', ' + unit}, {'more' if more else 'less'} is better"
                    f" | {number(row['ours'])} | {side} | {number(s['value'])}"
                    f" | {s['ratio']:.2f} ({s['low']:.2f} to {s['high']:.2f}) |"
                )
    pairs = {test["pairs"] for test in summed.values()}
    lines += [
        "",
        (
            f"Medians of {'/'.join(map(str, sorted(pairs)))} pairs of runs, alternating, in one guest on the"
            " same two devices. The ratio is ours to theirs."
        ),
        "",
    ]
    lines += [
        f"- {test['what']}: " + "; ".join(f"`{c}`" for c in test["commands"].values()) for test in summed.values()
    ]
    return "\n".join(lines) + "\n"


MARKS = ("<!-- bench: the figures begin -->", "<!-- bench: the figures end -->")
# The sides that the documents compare with; the others are cross-checks.
SHORT = ("libibverbs", "librdmacm", "inside the kernel")
# The rows of the README: words, mode, test, value, and the beginning of the other side's name.
SUMMARY = (
    ("8 B write, median latency, both ends spin", "smp", "write_lat_8", "median_us", "libibverbs"),
    ("8 B read, median latency, the reader spins", "smp", "read_lat_8", "median_us", "libibverbs"),
    ("8 B send, median latency, both ends sleep", "icount", "send_lat_8", "median_us", "libibverbs"),
    ("8 B writes in lists of 64, messages", "icount", "write_rate_8", "msg_s", "libibverbs"),
    ("64 KiB writes in lists of 16, bandwidth", "smp", "write_bw_64k", "mib_s", "libibverbs"),
    ("connecting, to the end of the first write, median", "icount", "connect", "total_us", "librdmacm"),
    ("system calls per 1,000 writes in lists of 64", "icount", "syscalls_write", "calls", "libibverbs"),
)


def full(mode, result):
    """Every row against the sides of SHORT."""
    heading = WHERE.get(mode, mode)
    lines = [
        f"## {heading[0].upper()}{heading[1:]}",
        "",
        (
            f"`scripts/bench {mode}`, Linux {result['kernel']}, {result['cpus']} CPU(s),"
            f" medians of {max(t['pairs'] for t in result['summary'].values())} pairs:"
        ),
        "",
        "| measured | value | rust_ulp | against | theirs | ratio |",
        "|---|---|---|---|---|---|",
    ]
    for test in result["summary"].values():
        for key, row in test["rows"].items():
            words, unit, _ = UNITS[key]
            for side, s in row["stock"].items():
                if side.startswith(SHORT):
                    lines.append(
                        f"| {test['what']} | {words}{unit and ', ' + unit} | {number(row['ours'])} | {side}"
                        f" | {number(s['value'])} | {s['ratio']:.2f} |"
                    )
    return "\n".join(lines) + "\n"


def verdict(key, ratio):
    """What the ratio of ours to theirs means."""
    percent = round(abs(ratio - 1) * 100)
    if percent < 2:
        return "equal"
    if key == "calls":
        return f"{percent} % {'more' if ratio > 1 else 'fewer'}"
    return f"{percent} % {'faster' if (ratio > 1) == UNITS[key][2] else 'slower'}"


def summary(results):
    lines = ["| measured | CPUs | ours | theirs | ratio | verdict |", "|---|---|---|---|---|---|"]
    for words, mode, name, key, prefix in SUMMARY:
        try:
            result = results[mode]
            row = result["summary"][name]["rows"][key]
            side, s = next((side, s) for side, s in row["stock"].items() if side.startswith(prefix))
        except (KeyError, StopIteration):
            raise SystemExit(f"report.py: {name} of {mode} was not measured: run make bench") from None
        unit = UNITS[key][1]
        ours, theirs = (f"{number(v)} {unit}".rstrip() for v in (row["ours"], s["value"]))
        lines.append(
            f"| {words} | {result['cpus']} | {ours} | {theirs}, {side} | {s['ratio']:.2f}"
            f" | {verdict(key, s['ratio'])} |"
        )
    return "\n".join(lines) + "\n"


def between_marks(document, words):
    with open(document) as f:
        text = f.read()
    if any(text.count(mark) != 1 for mark in MARKS):
        raise SystemExit(f"report.py: {document} has not both marks once")
    head, rest = text.split(MARKS[0])
    with open(document, "w") as f:
        f.write(f"{head}{MARKS[0]}\n{words}{MARKS[1]}{rest.split(MARKS[1])[1]}")


def figures(readme, document, report, commit):
    with open(report) as f:
        results = json.load(f)
    measured = f"Measured at commit {commit}. The ratio is ours to theirs.\n\n"
    between_marks(readme, measured + summary(results))
    between_marks(document, measured + "\n".join(full(mode, result) for mode, result in results.items()))


def main():
    if len(sys.argv) == 6 and sys.argv[1] == "--figures":
        figures(*sys.argv[2:])
        return
    if len(sys.argv) < 3 or sys.argv[1].startswith("--"):
        print("usage: " + __doc__.split("\n\n")[1].strip(), file=sys.stderr)
        sys.exit(2)
    outdir, files = sys.argv[1], sys.argv[2:]
    results = []
    for name in files:
        with open(name) as f:
            results.append(json.load(f))
    summed = [sum_up(r) for r in results]
    os.makedirs(outdir, exist_ok=True)
    text = "\n".join(table(r, s) for r, s in zip(results, summed, strict=True))
    with open(os.path.join(outdir, "bench.md"), "w") as f:
        f.write(text)
    with open(os.path.join(outdir, "bench.json"), "w") as f:
        json.dump(
            {
                r["mode"]: {
                    "kernel": r["kernel"],
                    "cpus": r["cpus"],
                    "summary": s,
                    "runs": r["tests"],
                    "reports": r.get("reports", []),
                }
                for r, s in zip(results, summed, strict=True)
            },
            f,
            indent=1,
        )
        f.write("\n")
    print(text)


if __name__ == "__main__":
    main()
