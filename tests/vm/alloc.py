#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""What the kernel allocates on the way of 1,000 writes, inside the module.

    alloc.py PROGRAM call|request|batch

PROGRAM is ulp-test, which writes `begin` and `end` into the trace. Prints KTAP.
"""

import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tracing
import ulp

EVENTS = ("kmalloc", "kmem_cache_alloc", "mm_page_alloc")


def main():
    program, how = sys.argv[1:]
    r = ulp.Report()
    for event in EVENTS:
        tracing.write(f"events/kmem/{event}/trigger", "stacktrace")
    tracing.write("buffer_size_kb", "32768")
    tracing.write("trace", "")
    tracing.write("tracing_on", "1")
    # In a network namespace of its own the program has another /sys.
    with open(os.path.join(tracing.ROOT, "trace_marker"), "wb", buffering=0) as marker:
        env = {**os.environ, "ULP_MARKER": f"/proc/self/fd/{marker.fileno()}"}
        task = subprocess.Popen(
            ["ip", "netns", "exec", "h1", program, "uring", how],
            env=env,
            pass_fds=[marker.fileno()],
            stdout=subprocess.PIPE,
            text=True,
        )
        said = task.communicate(timeout=25 * ulp.PATIENCE)[0]
    tracing.write("tracing_on", "0")
    text = tracing.read("trace")
    for event in EVENTS:
        tracing.write(f"events/kmem/{event}/trigger", "!stacktrace")
    tracing.write("trace", "")
    tracing.write("tracing_on", "1")
    r.check(f"{how}: 1,000 writes", task.returncode == 0, said)
    match = re.search(r"tracing_mark_write: begin(.*)tracing_mark_write: end", text, re.S)
    if r.check(f"{how}: both marks are in the trace", match, f"{len(text)} bytes"):
        # A stack is a line `=> function` for each frame, the innermost first.
        stacks = [s for s in re.split(r"\n(?=\s*\S+-\d+\s+\[)", match[1]) if "<stack trace>" in s]
        mine = [s for s in stacks if re.search(rf"-{task.pid}\s+\[", s)]
        ours = [s for s in mine if "rust_ulp_" in s and not re.search(r"=> (rxe|ib)_", s)]
        r.check(f"{how}: the task's allocations are seen", mine, f"none of {len(stacks)} stacks is of {task.pid}")
        r.check(f"{how}: none of them is the module's", not ours, f"{len(ours)} of {len(mine)}: {ours[:1]}")
    sys.exit(r.status())


if __name__ == "__main__":
    main()
