#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Sums up what tests/bench/run has measured.

    report.py OUTDIR RESULT.json...
    report.py --readme README.md OUTDIR/bench.json COMMIT

Writes OUTDIR/bench.json and OUTDIR/bench.md: the median over the runs of each
side, and the ratio of ours to each of the others'. The ratio is the median of the
ratios of the pairs, so a slow minute of the machine weighs on no side alone. The second form puts the
short tables of bench.json, against libibverbs and the floor, between the marks in a README.
"""

import json
import os
import statistics
import sys

UNITS = {
    "median_us": ("median", "us", False),
    "p99_us": ("99th percentile", "us", False),
    "buffer_us": ("4 KiB of registered memory, median", "us", False),
    "address_us": ("resolving the address, median", "us", False),
    "route_us": ("resolving the route, median", "us", False),
    "connect_us": ("connecting, median", "us", False),
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
    return ["msg_s", "each_ns"] if mode == "icount" else ["msg_s"]


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
# Whom the README compares with; the others are cross-checks.
SHORT = ("libibverbs", "librdmacm", "inside the kernel")


def short(mode, result):
    """A row for each value and each of those that count."""
    lines = [
        (
            f"{WHERE.get(mode, mode)} (`scripts/bench {mode}`), Linux {result['kernel']}, {result['cpus']} CPU(s),"
            f" medians of {max(t['pairs'] for t in result['summary'].values())} pairs:"
        ),
        "",
        "| measured | value | rust_ulp | against | theirs | ratio |",
        "|---|---|---|---|---|---|",
    ]
    lines[0] = lines[0][0].upper() + lines[0][1:]
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


def to_readme(readme, report, commit):
    with open(report) as f:
        results = json.load(f)
    with open(readme) as f:
        text = f.read()
    if any(text.count(mark) != 1 for mark in MARKS):
        raise SystemExit(f"report.py: {readme} has not both marks once")
    head, rest = text.split(MARKS[0])
    tail = rest.split(MARKS[1])[1]
    tables = "\n".join(short(mode, result) for mode, result in results.items())
    with open(readme, "w") as f:
        f.write(
            f"{head}{MARKS[0]}\nMeasured at commit {commit}. The ratio is ours to theirs.\n\n{tables}{MARKS[1]}{tail}"
        )


def main():
    if len(sys.argv) == 5 and sys.argv[1] == "--readme":
        to_readme(*sys.argv[2:])
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
