#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Sums up what tests/bench/run has measured.

    report.py OUTDIR COMMIT RESULT.json...
    report.py --figures README.md DOCUMENT.md PICTURES OUTDIR/bench.json

Writes OUTDIR/bench.json and OUTDIR/bench.md. Each measurement was made in pairs, one run of ours and one of
the other side. The ratio is the median of the pairs' ratios of ours to theirs, so a slow minute of the machine
weighs on no side alone. The two figures beside a ratio are those of that pair, and the ratio is the quotient of
what is printed. bench.json keeps the other modes, and of the same mode the other measurements of the same COMMIT.

The second form writes figures of bench.json between the marks of two documents: the rows of OVER and BESIDE
into the README, and all rows against libibverbs and the floor and those of tests/bench/scaling into DOCUMENT.md. It
also writes the lines of pictures into the folder PICTURES: the cost of a write against the number of queue pairs, and
rows of tests/bench/scaling beside what is expected.

A row of tests/bench/scaling is as expected when no two of its points differ by more than LIMITS from their expected
values. A row that is not makes the exit status 1, after everything was written.
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


SCALED = (
    "Each number is measured by itself, in one process, with the peer's part of the work in it. Flat is the mean, a"
    " curve goes through the first and the last point; the last column is what the points have of their expected"
    " values, the largest by the smallest."
)
# How many times more of its expected value a point of a row may have than another one. Allocators round queues up to
# powers of two.
LIMITS = {"flat": 1.25, "shared": 1.25, "line": 1.5}
LAWS = {"flat": "flat", "shared": "a + b / number", "line": "a + b * number"}
# The pictures of the scaling: rows that share their axes, with their names there.
DRAWN = {
    "scaling-connections": {"connect": "connecting", "disconnect": "destroying", "close": "closing the files"},
    "scaling-lists": {"lists": "rust_ulp"},
}


def expected(law, points):
    """What the law says of each of the points: one level, or the curve through the first and the last of them."""
    (x, y), (x2, y2) = points[0], points[-1]
    if law == "flat":
        return [sum(value for _, value in points) / len(points)] * len(points)
    at = {"shared": lambda number: 1 / number, "line": lambda number: number}[law]
    slope = (y2 - y) / (at(x2) - at(x))
    return [y + slope * (at(number) - at(x)) for number, _ in points]


def quotient(row):
    """How many times more of its expected value one point has than another one."""
    wanted = expected(row["law"], row["points"])
    if min(*wanted, *(value for _, value in row["points"])) <= 0:
        return float("inf")
    parts = [value / of for (_, value), of in zip(row["points"], wanted, strict=True)]
    return max(parts) / min(parts)


def bent(rows):
    """What is to be said of the rows that are not as expected."""
    return [
        f"{name}: {row['what']}: {quotient(row):.2f} from {LAWS[row['law']]}, {LIMITS[row['law']]} allowed"
        for name, row in rows.items()
        if not quotient(row) <= LIMITS[row["law"]]
    ]


def scaling(result):
    """The table of the rows, each number with its value."""
    lines = [
        "## How costs grow with numbers",
        "",
        textwrap.fill(
            f"`scripts/bench scaling` at commit {result['commit']}, Linux {result['kernel']}, on the lab's adapter,"
            f" {result['cpus']} CPU(s). {SCALED}",
            100,
        ),
        "",
        "| measured | for each of | number: value | expected | largest / smallest |",
        "|---|---|---|---|---|",
    ]
    for row in result["rows"].values():
        values = ", ".join(f"{number:,}: {value:,.0f}" for number, value in row["points"])
        verdict = f"{quotient(row):.2f}"
        if quotient(row) > LIMITS[row["law"]]:
            verdict = f"**{verdict}**"
        lines.append(f"| {row['what']}, {row['unit']} | {row['of']} | {values} | {LAWS[row['law']]} | {verdict} |")
    return "\n".join(lines) + "\n"


def curves(result):
    """The lines of the pictures, by their names, for scripts/pictures."""
    out = {}
    for picture, drawn in DRAWN.items():
        rows = {words: result["rows"][name] for name, words in drawn.items() if name in result["rows"]}
        if len(rows) != len(drawn):
            continue
        one = next(iter(rows.values()))
        of = f": {one['what']}" if len(rows) == 1 else ""
        lines = [f"# Measured and expected{of} (scripts/bench scaling)", f"# {one['of']}", f"# {one['unit']}"]
        for words, row in rows.items():
            lines.append(words + "".join(f"\t{x}:{round(y)}" for x, y in row["points"]))
            wanted = zip(row["points"], expected(row["law"], row["points"]), strict=True)
            lines.append("expected" + "".join(f"\t{x}:{round(y)}" for (x, _), y in wanted))
        out[picture] = "\n".join(lines) + "\n"
    return out


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


def figures(readme, document, pictures, report):
    with open(report) as f:
        results = json.load(f)
    # All before anything is written: what was not measured changes nothing.
    first, lines = summary(results), chart(results)
    rest = "\n".join(full(mode, results[mode]) for mode in ("icount", "hca") if mode in results)
    between_marks(readme, first)
    charts = {"queue-pairs": lines}
    if "scaling" in results:
        rest += "\n" + scaling(results["scaling"])
        charts |= curves(results["scaling"])
    between_marks(document, f"{textwrap.fill(RULE, 100)}\n\n{rest}")
    for name, lines in charts.items():
        with open(f"{pictures}/{name}.chart", "w") as f:
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
        elif mode == "scaling":
            new |= {key: result[key] for key in ("kernel", "cpus", "rows")}
        else:
            new |= {key: result[key] for key in ("kernel", "cpus", "perftest")}
            new |= {"summary": sum_up(result), "runs": result["tests"], "reports": result.get("reports", [])}
        every[mode] = merge(every.get(mode, {}), new)
    os.makedirs(outdir, exist_ok=True)
    text = "\n".join(table(mode, result) for mode, result in every.items() if mode not in ("memory", "scaling"))
    if "scaling" in every:
        text += "\n" + scaling(every["scaling"])
    with open(os.path.join(outdir, "bench.md"), "w") as f:
        f.write(text)
    with open(os.path.join(outdir, "bench.json"), "w") as f:
        json.dump(every, f, indent=1)
        f.write("\n")
    print(text)
    if wrong := bent(every.get("scaling", {"rows": {}})["rows"]):
        raise SystemExit("".join(f"report.py: {line}\n" for line in wrong))


if __name__ == "__main__":
    main()
