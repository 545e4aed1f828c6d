#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Sums up what tests/bench/run has measured.

    report.py OUTDIR COMMIT RESULT.json...
    report.py --figures README.md DOCUMENT.md PICTURE.chart OUTDIR/bench.json

Writes OUTDIR/bench.json and OUTDIR/bench.md. Each measurement was made in pairs, one run of ours and one of
the other side. The ratio is the median of the pairs' ratios of ours to theirs, so a slow minute of the machine
weighs on no side alone. The two figures beside a ratio are those of that pair, and the ratio is the quotient of
what is printed. bench.json keeps the other modes, and of the same mode the other measurements of the same COMMIT.

The second form writes figures of bench.json between the marks of two documents: the rows of OVER and BESIDE
into the README, and all rows against libibverbs and the floor into DOCUMENT.md. It also writes the lines of a picture:
the cost of a write against the number of queue pairs.
"""

import json
import os
import sys
import textwrap

# Words, unit, and whether more is better.
UNITS = {
    "median_us": ("median", "emulated us", False),
    "p99_us": ("99th percentile", "emulated us", False),
    "buffer_us": ("4 KiB of registered memory, median", "emulated us", False),
    "connect_us": ("connecting, from the queue pair on, median", "emulated us", False),
    "write_us": ("the first write, median", "emulated us", False),
    "total_us": ("all of it, median", "emulated us", False),
    "calls": ("system calls per 1,000 messages", "", False),
    "each_ns": ("instructions of the whole guest for each", "", False),
    "mib_s": ("bandwidth", "emulated MiB/s", True),
    "msg_s": ("messages", "per emulated second", True),
}
WHERE = {
    "smp": "two emulated CPUs: noisy, spinning allowed",
    "icount": "one CPU, one instruction is one nanosecond of guest time: repeatable",
    "hca": "the lab's adapter, one CPU, one instruction is one nanosecond of guest time",
}


def keys(name, test, mode):
    """Which numbers of a test matter: of a rate the messages, and what each of them costs where no CPU is idle; of a
    bandwidth the bytes. The slowest messages of a noisy guest say nothing."""
    sample = test["ours"][0]
    if "median_us" in sample:
        return ["median_us"] if mode == "smp" else ["median_us", "p99_us"]
    if "total_us" in sample or "calls" in sample:
        return list(sample)
    if "rate" not in name:
        return ["mib_s"]
    return ["msg_s"] if mode == "smp" or test.get("late_us") else ["msg_s", "each_ns"]


def value(run, key):
    """One CPU that does nothing else: an instruction is a nanosecond."""
    return 1e9 / run["msg_s"] if key == "each_ns" else run[key]


def number(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:.{1 if value >= 100 else 2}f}"


def printed(value):
    return float(number(value).replace(",", ""))


def beside(ours, theirs):
    """The pair with the median ratio, that ratio, and the lowest and the highest."""
    pairs = [(printed(a), printed(b)) for a, b in zip(ours, theirs, strict=True)]
    pairs = sorted((a / b if b else float("inf"), a, b) for a, b in pairs)
    ratio, a, b = pairs[(len(pairs) - 1) // 2]
    return {"ours": a, "value": b, "ratio": ratio, "low": pairs[0][0], "high": pairs[-1][0]}


def sum_up(result):
    """{test: {what, pairs, commands, rows: {key: {side: {ours, value, ratio, low, high}}}}}"""
    out = {}
    for name, test in result["tests"].items():
        rows = {
            key: {
                side: beside([value(run, key) for run in test["ours"]], [value(run, key) for run in runs])
                for side, runs in test["stock"].items()
            }
            for key in keys(name, test, result["mode"])
        }
        out[name] = {"what": test["what"], "pairs": len(test["ours"]), "rows": rows, "commands": test["commands"]}
    return out


def span(s):
    return f"{s['ratio']:.2f} ({s['low']:.2f} to {s['high']:.2f})"


def table(mode, result):
    lines = [
        f"### {WHERE.get(mode, mode)}",
        "",
        (
            f"Linux {result['kernel']}, {result['cpus']} CPU(s), perftest {result['perftest'] or 'unknown'}, commit"
            f" {result['commit']}."
        ),
        "",
        "| measured | value | rust_ulp | against | theirs | ratio (lowest to highest) |",
        "|---|---|---|---|---|---|",
    ]
    for test in result["summary"].values():
        for key, sides in test["rows"].items():
            words, unit, more = UNITS[key]
            lines += [
                f"| {test['what']} | {words}{unit and ', ' + unit}, {'more' if more else 'less'} is better"
                f" | {number(s['ours'])} | {side} | {number(s['value'])} | {span(s)} |"
                for side, s in sides.items()
            ]
    lines += ["", f"{pairs_of(result)} of runs, alternating, in one guest on the same two devices. {RULE}", ""]
    lines += [
        f"- {test['what']}: " + "; ".join(f"`{c}`" for c in test["commands"].values())
        for test in result["summary"].values()
    ]
    return "\n".join(lines) + "\n"


RULE = (
    "A ratio is the median of the pairs' ratios of ours to theirs; the figures beside it are those of that pair."
    " Behind it are the lowest and the highest."
)


def pairs_of(result):
    return f"{max(t['pairs'] for t in result['summary'].values())} pairs"


MARKS = ("<!-- bench: the figures begin -->", "<!-- bench: the figures end -->")
# The sides that the documents compare with; the others are cross-checks.
SHORT = ("libibverbs", "librdmacm", "the floor")
# The rows of the README. On the adapter, over the floor: words, test, value, and how many instructions one of it is.
OVER = (
    ("8 B write in lists of 64", "write_rate_8", "each_ns", 1),
    ("the same by io_uring", "write_rate_8_uring", "each_ns", 1),
    ("the same on 16 queue pairs", "write_rate_8_16", "each_ns", 1),
    ("8 B write, one at a time, polled", "write_rate_8_one", "each_ns", 1),
    ("8 B send, half a round trip, both ends sleep", "send_lat_8", "median_us", 1000),
)
# On Soft-RoCE: words, mode, test, value, and the beginning of the other side's name.
BESIDE = (
    ("8 B send, half a round trip, both ends sleep", "icount", "send_lat_8", "median_us", "libibverbs"),
    ("8 B writes in lists of 64, rate", "icount", "write_rate_8", "msg_s", "libibverbs"),
    ("64 KiB writes in lists of 16, bandwidth", "icount", "write_bw_64k", "mib_s", "libibverbs"),
    ("connecting, to the end of the first write", "icount", "connect", "total_us", "librdmacm"),
    ("system calls per 1,000 writes in lists of 64", "icount", "syscalls_write", "calls", "libibverbs"),
)
# What the kernel keeps: kinds of tests/bench/memory.
KEPT = (
    "open file with all that one queue pair needs: 128 + 128, 64 bytes inline, 256 completions",
    "connection, both ends, beside their queue pairs",
)
# The points of the picture: queue pairs, and the test.
POINTS = {1: "write_rate_8", 4: "write_rate_8_4", 16: "write_rate_8_16", 64: "write_rate_8_64", 128: "write_rate_8_128"}


def find(results, mode, name, key, prefix):
    """What was measured of a test against a side, and the side's name."""
    try:
        sides = results[mode]["summary"][name]["rows"][key]
        return next((s, side) for side, s in sides.items() if side.startswith(prefix))
    except (KeyError, StopIteration):
        raise SystemExit(f"report.py: {name} of {mode} was not measured: run scripts/bench {mode}") from None


def full(mode, result):
    """Every row against the sides of SHORT."""
    heading = WHERE.get(mode, mode)
    lines = [
        f"## {heading[0].upper()}{heading[1:]}",
        "",
        (
            f"`scripts/bench {mode}` at commit {result['commit']}, Linux {result['kernel']}, {result['cpus']} CPU(s),"
            f" {pairs_of(result)}:"
        ),
        "",
        "| measured | value | rust_ulp | against | theirs | difference | ratio (lowest to highest) |",
        "|---|---|---|---|---|---|---|",
    ]
    for test in result["summary"].values():
        for key, sides in test["rows"].items():
            # The same again.
            if key == "msg_s" and "each_ns" in test["rows"]:
                continue
            words, unit, _ = UNITS[key]
            for side, s in sides.items():
                if not side.startswith(SHORT):
                    continue
                difference = number(abs(s["ours"] - s["value"]))
                lines.append(
                    f"| {test['what']} | {words}{unit and ', ' + unit} | {number(s['ours'])} | {side}"
                    f" | {number(s['value'])} | {'+' if s['ours'] >= s['value'] else '-'}{difference} | {span(s)} |"
                )
    return "\n".join(lines) + "\n"


def summary(results):
    """The README's tables."""
    commits = sorted({results[mode]["commit"] for mode in ("hca", "icount", "memory") if mode in results})
    lines = [
        textwrap.fill(f"Measured at commit {', '.join(commits)}. {RULE}", 100),
        "",
        "| instructions, on the lab's adapter | rust_ulp | the floor | over it |",
        "|---|---|---|---|",
    ]
    for words, name, key, times in OVER:
        s, _ = find(results, "hca", name, key, "the floor")
        ours, theirs = round(s["ours"] * times), round(s["value"] * times)
        lines.append(f"| {words} | {ours:,} | {theirs:,} | {ours - theirs:,} |")
    lines += ["", "| on Soft-RoCE | ours | theirs | ratio (lowest to highest) |", "|---|---|---|---|"]
    for words, mode, name, key, prefix in BESIDE:
        s, side = find(results, mode, name, key, prefix)
        unit = UNITS[key][1]
        ours, theirs = (f"{number(v)} {unit}".rstrip() for v in (s["ours"], s["value"]))
        lines.append(f"| {words} | {ours} | {theirs}, {side} | {span(s)} |")
    if "memory" not in results:
        raise SystemExit("report.py: the memory was not measured: run scripts/bench memory")
    kept = results["memory"]["kernel_bytes"]
    queues, connection = (f"{kept[kind][0]:,}" for kind in KEPT)
    words = f"The kernel keeps {queues} bytes for a file with a queue pair of 128 + 128, {connection} for a connection."
    return "\n".join([*lines, "", textwrap.fill(words, 100)]) + "\n"


def chart(results):
    """The lines of the picture, for scripts/pictures."""
    at = {qps: find(results, "hca", name, "each_ns", "the floor")[0] for qps, name in POINTS.items()}
    lines = [
        "# 8 B writes on the lab's adapter, lists of 64 over all queue pairs (scripts/bench hca)",
        "# queue pairs",
        "# instructions for each write",
    ]
    for words, which in (("rust_ulp", "ours"), ("the floor", "value")):
        lines.append(words + "".join(f"\t{qps}:{round(s[which])}" for qps, s in at.items()))
    return "\n".join(lines) + "\n"


def between_marks(document, words):
    with open(document) as f:
        text = f.read()
    if any(text.count(mark) != 1 for mark in MARKS):
        raise SystemExit(f"report.py: {document} has not both marks once")
    head, rest = text.split(MARKS[0])
    with open(document, "w") as f:
        f.write(f"{head}{MARKS[0]}\n{words}{MARKS[1]}{rest.split(MARKS[1])[1]}")


def figures(readme, document, picture, report):
    with open(report) as f:
        results = json.load(f)
    # All before anything is written: what was not measured changes nothing.
    first, lines = summary(results), chart(results)
    rest = "\n".join(full(mode, results[mode]) for mode in ("icount", "hca") if mode in results)
    between_marks(readme, first)
    between_marks(document, f"{textwrap.fill(RULE, 100)}\n\n{rest}")
    with open(picture, "w") as f:
        f.write(lines)


def merge(old, new):
    """A mode's results, with what was measured of it before at the same commit."""
    if old.get("commit") == new["commit"]:
        for key, value in old.items():
            if isinstance(value, dict):
                new[key] = value | new.get(key, {})
    return new


def main():
    if len(sys.argv) == 6 and sys.argv[1] == "--figures":
        figures(*sys.argv[2:])
        return
    if len(sys.argv) < 4 or sys.argv[1].startswith("-"):
        print("usage: " + __doc__.split("\n\n")[1].strip(), file=sys.stderr)
        sys.exit(2)
    outdir, commit, *files = sys.argv[1:]
    every = {}
    if os.path.exists(f"{outdir}/bench.json"):
        with open(f"{outdir}/bench.json") as f:
            every = json.load(f)
    for name in files:
        with open(name) as f:
            result = json.load(f)
        mode, new = result.get("mode", "memory"), {"commit": commit}
        if mode == "memory":
            new["kernel_bytes"] = result["kernel_bytes"]
        else:
            new |= {key: result[key] for key in ("kernel", "cpus", "perftest")}
            new |= {"summary": sum_up(result), "runs": result["tests"], "reports": result.get("reports", [])}
        every[mode] = merge(every.get(mode, {}), new)
    os.makedirs(outdir, exist_ok=True)
    text = "\n".join(table(mode, result) for mode, result in every.items() if mode != "memory")
    with open(os.path.join(outdir, "bench.md"), "w") as f:
        f.write(text)
    with open(os.path.join(outdir, "bench.json"), "w") as f:
        json.dump(every, f, indent=1)
        f.write("\n")
    print(text)


if __name__ == "__main__":
    main()
