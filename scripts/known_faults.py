# SPDX-License-Identifier: GPL-2.0
"""Faults of the emulator and of rxe that a run of the suites meets now and then.

None of them is the module's: `known` names them only when they are all that the kernel reported, each twice at most,
with the frames that belong to it and none of the module's, on a kernel on which it was seen.

- stale-int3: while the kernel patches its own code (static keys, tracing), multi-threaded TCG of QEMU 7.2 now and
  then runs a stale translation that still has the breakpoint of the patch. The code in memory has none there. It
  patches the module's tracepoints, too, so frames of the module do not matter.
- rxe-task: rxe_resp_queue_pkt() gives the packet away, with the reference that keeps the queue pair, before it
  schedules the task. The task of a freed queue pair is scheduled: a warning, a second one when the task is idle
  (__reserve_if_idle()), then mostly a NULL dereference.
- rxe-task-idle: the same, with the second warning only: the queue pair was freed between the two.
- rxe-socket: rxe puts the socket of a network namespace twice when the namespace goes (docs/trust.md).
  42-chaos waits for the device of a namespace that it deletes, so that no `rdma link del` meets that.
- rxe-completer: check_ack() returns COMPST_ERROR for a late or doubled response without a status.
- rxe-zero-write: a Write with a length of 0 and a payload, which no driver sends (docs/trust.md). A warning for each.
"""

import pathlib
import re

# A line that begins a report, as tests/vm/trouble has it, and those of a fault: `BUG: ` comes before its `Oops: `,
# the panic after its end.
TROUBLE = pathlib.Path(__file__).resolve().parent.parent / "tests/vm/trouble"
HEAD = re.compile("|".join(re.findall(r"^begins (.+)$", TROUBLE.read_text(), re.MULTILINE)))
FAULT = re.compile(r"BUG: |Oops: ")
PANIC = re.compile(r"Kernel panic - not syncing: Fatal exception")
END = re.compile(r"---\[ end trace ")

STOCK = {"7.2.12+deb13-amd64"}
RXE_TASK = [r"(RIP: .*:|pc : )rxe_sched_task\+", r" rxe_udp_encap_recv\+"]
# Those that frames of the module do not rule out.
ANYWHERE = {"stale-int3"}
# Name: kernels, and for each report its first line and what else must be in it. Reports beyond the first may lack.
FAULTS = {
    "stale-int3": (STOCK, [(r"Oops: int3", [r"RIP: 0010:", r"Code: (?!.* cc <)"])]),
    "rxe-task": (
        STOCK | {"7.2.12+deb13-arm64-16k"},
        [
            (r"WARNING: .*rxe_task\.c:249\b", RXE_TASK),
            (r"WARNING: .*rxe_task\.c:38\b|BUG: kernel NULL pointer dereference", RXE_TASK),
            (r"BUG: kernel NULL pointer dereference", RXE_TASK),
        ],
    ),
    "rxe-task-idle": (
        STOCK,
        [
            (r"WARNING: .*rxe_task\.c:38\b", RXE_TASK),
            (r"BUG: kernel NULL pointer dereference", RXE_TASK),
        ],
    ),
    "rxe-socket": (STOCK, [(r"WARNING: .*lib/refcount\.c", [r" inet_release\+", r" rxe_net_del\+"])]),
    "rxe-completer": (STOCK, [(r"WARNING: .*rxe_comp\.c:827\b", [r"RIP: .*:rxe_completer\+"])]),
    "rxe-zero-write": (STOCK, [(r"WARNING: .*rxe_mr\.c:393\b", [r"RIP: .*:rxe_mr_copy\+", r" rxe_receiver\+"])]),
}


def reports(log_text):
    """Splits the log into its reports, each a list of lines; what is between them is left out."""
    out, is_open = [], False
    for line in log_text.replace("\r", "").splitlines():
        # scripts/vm sets a bar before the log of a guest that is gone.
        line = re.sub(r"^(  \| )?\[[^]]*\] ?", "", line)
        is_bug = is_open and out[-1][0].startswith("BUG: ") and not any(map(FAULT.match, out[-1][1:]))
        goes_on = (is_bug and line.startswith("Oops: ")) or (
            bool(out) and FAULT.match(out[-1][0]) and PANIC.match(line)
        )
        if HEAD.search(line) and not goes_on:
            out.append([line])
            is_open = True
        elif is_open:
            out[-1].append(line)
            is_open = not END.search(line)
    return out


def shown(log_text, most=60):
    """Returns the lines of a log that say why a suite ended: the reports, or else its end."""
    found = [line for report in reports(log_text) for line in report]
    return found[:most] or log_text.replace("\r", "").splitlines()[-(most // 3) :]


def _reports_of(name, found):
    """Returns how many of the first reports are those of the fault."""
    count = 0
    for (first, parts), report in zip(FAULTS[name][1], found, strict=False):
        is_ours = name not in ANYWHERE and any("[rust_ulp]" in line for line in report)
        has_parts = all(any(re.search(part, line) for line in report) for part in parts)
        if is_ours or not has_parts or not re.match(first, report[0]):
            break
        count += 1
    return count


def known(log_text: str, kernel_release: str) -> str | None:
    """Returns the names of the faults that are all that the kernel has reported, or None."""
    found, names = reports(log_text), []
    here = [name for name, (releases, _) in FAULTS.items() if kernel_release in releases]
    while found:
        count, name = max(((_reports_of(name, found), name) for name in here), default=(0, None))
        if not count or names.count(name) == 2:
            return None
        names.append(name)
        found = found[count:]
    return " ".join(dict.fromkeys(names)) or None
