#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Sums up what tests/bench/run has measured.

    report.py OUTDIR RESULT.json...

Writes OUTDIR/bench.json and OUTDIR/bench.md: the median over the runs of each
side, and the ratio of ours to each of the others'. The ratio is the median of the
ratios of the pairs, so a slow minute of the machine weighs on no side alone.
"""
import json
import os
import statistics
import sys

UNITS = {"median_us": ("median", "us", False), "p99_us": ("99th percentile", "us", False),
         "buffer_us": ("4 KiB of registered memory, median", "us", False),
         "address_us": ("resolving the address, median", "us", False),
         "route_us": ("resolving the route, median", "us", False),
         "connect_us": ("connecting, median", "us", False),
         "write_us": ("the first write, median", "us", False),
         "total_us": ("all of it, median", "us", False),
         "calls": ("system calls per 1,000 messages", "", False),
         "mib_s": ("bandwidth", "MiB/s", True), "msg_s": ("messages", "/s", True)}
WHERE = {"smp": "emulated, several CPUs: noisy, spinning allowed",
         "icount": "one CPU, one instruction is one nanosecond of guest time: repeatable"}


def keys(name, sample):
    """Which numbers of a test matter: of a rate the messages, of a bandwidth the bytes."""
    if "median_us" in sample:
        return ["median_us", "p99_us"]
    if "total_us" in sample or "calls" in sample:
        return list(sample)
    return ["msg_s"] if "rate" in name else ["mib_s"]


def sum_up(result):
    """{test: {key: {ours, stock: {side: {value, ratio, low, high}}}}}"""
    out = {}
    for name, test in result["tests"].items():
        rows = {}
        for key in keys(name, test["ours"][0]):
            ours = [run[key] for run in test["ours"]]
            sides = {}
            for side, runs in test["stock"].items():
                theirs = [run[key] for run in runs]
                ratios = [a / b if b else float("inf") for a, b in zip(ours, theirs, strict=True)]
                sides[side] = {"value": statistics.median(theirs), "ratio": statistics.median(ratios),
                               "low": min(ratios), "high": max(ratios)}
            rows[key] = {"ours": statistics.median(ours), "stock": sides}
        out[name] = {"what": test["what"], "pairs": len(test["ours"]), "rows": rows,
                     "commands": test["commands"]}
    return out


def number(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def table(result, summed):
    lines = [f"### {WHERE.get(result['mode'], result['mode'])}", "",
             f"Linux {result['kernel']}, {result['cpus']} CPU(s), perftest {result['perftest'] or 'unknown'}.", "",
             "| measured | value | rust_ulp | against | theirs | ratio (lowest to highest) |",
             "|---|---|---|---|---|---|"]
    for test in summed.values():
        for key, row in test["rows"].items():
            words, unit, more = UNITS[key]
            for side, s in row["stock"].items():
                lines.append(f"| {test['what']} | {words}{unit and ', ' + unit}, {'more' if more else 'less'} is better"
                             f" | {number(row['ours'])} | {side} | {number(s['value'])}"
                             f" | {s['ratio']:.2f} ({s['low']:.2f} to {s['high']:.2f}) |")
    pairs = {test["pairs"] for test in summed.values()}
    lines += ["", f"Medians of {'/'.join(map(str, sorted(pairs)))} pairs of runs, alternating, in one guest on the"
              " same two devices. The ratio is ours to theirs.", ""]
    lines += [f"- {test['what']}: " + "; ".join(f"`{c}`" for c in test["commands"].values())
              for test in summed.values()]
    return "\n".join(lines) + "\n"


def main():
    if len(sys.argv) < 3:
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
        json.dump({r["mode"]: {"kernel": r["kernel"], "cpus": r["cpus"], "summary": s, "runs": r["tests"],
                               "reports": r.get("reports", [])}
                   for r, s in zip(results, summed, strict=True)}, f, indent=1)
        f.write("\n")
    print(text)


if __name__ == "__main__":
    main()
