# SPDX-License-Identifier: GPL-2.0
"""The kernel's tracer around a piece of work, and its record as steps in plain words."""

import os
import pathlib
import re

from texts import say

ROOT = "/sys/kernel/tracing"

# The function by which the driver takes a request.
DRIVER = "hca_run" if os.environ.get("ULP_HCA") else "rxe_post_send"
# Functions on the way of a request. Which of them a kernel has differs a little.
WORDS = {
    "rust_ulp_ioctl": "a system call enters the module",
    "rust_ulp_submit": "the module has read the request: {nr_wrs} to post, {min_complete} to wait for",
    "rust_ulp_post": "it hands {opcode} of {length} bytes for queue pair {qpn} to the driver",
    "rust_ulp_post_send": "through the door to the driver's post_send",
    "rxe_post_send": "rxe takes the request into the queue of the queue pair",
    "rxe_sender": "rxe's worker looks at the queue pair",
    "rxe_requester": "rxe's requester turns the request into packets",
    "rxe_xmit_packet": "rxe sends a packet",
    "rxe_udp_encap_recv": "a RoCE packet arrives",
    "rxe_rcv": "rxe checks the packet and finds its queue pair",
    "rxe_receiver": "rxe's responder looks at the packet",
    "rxe_mr_copy": "rxe copies between the packet and the registered memory",
    "rxe_completer": "rxe's completer matches acknowledgements with requests",
    "rxe_cq_post": "rxe puts a completion into the completion queue",
    "hca_run": "the adapter carries the request out",
    "hca_push_cqe": "it puts a completion into the completion queue",
    "rust_ulp_completion": "the completion comes back to the module",
    "rust_ulp_completion:": "it is {opcode} with status {status}",
    "rust_ulp_deliver": "it stands in the ring that the program reads",
    "rust_ulp_wait": "the waiting program goes on",
}
LINE = re.compile(r"^\s*(?P<comm>.+)-(?P<pid>\d+)\s+\[(?P<cpu>\d+)\]\s+\S+\s+(?P<time>[\d.]+): (?P<what>.*)$")


def write(name, text):
    with open(os.path.join(ROOT, name), "w") as f:
        f.write(text)


def read(name):
    with open(os.path.join(ROOT, name)) as f:
        return f.read()


def traceable(names):
    """Those of the names that the function tracer knows."""
    with open(os.path.join(ROOT, "available_filter_functions")) as f:
        known = {line.split()[0] for line in f}
    return [n for n in names if n in known]


class Trace:
    """Records the module's events and `others`, and functions by `tracer`, while the block runs."""

    def __init__(self, tracer="nop", functions=(), graph=(), others=()):
        self.tracer, self.functions, self.graph, self.others = tracer, functions, graph, others

    def reset(self):
        write("tracing_on", "0")
        write("current_tracer", "nop")
        if os.path.isdir(f"{ROOT}/events/rust_ulp"):
            write("events/rust_ulp/enable", "0")
        for name in self.others:
            write(f"events/{name}/enable", "0")
        for name in ("set_ftrace_filter", "set_graph_function", "trace"):
            write(name, "")

    def __enter__(self):
        self.reset()
        write("trace_clock", "mono")
        if self.functions:
            write("set_ftrace_filter", "\n".join(self.functions) + "\n")
        if self.graph:
            write("set_graph_function", "\n".join(self.graph) + "\n")
        write("current_tracer", self.tracer)
        if self.tracer == "function_graph":
            # Tasks take turns on a CPU: a line without its task cannot be told apart.
            write("options/funcgraph-proc", "1")
        write("events/rust_ulp/enable", "1")
        for name in self.others:
            write(f"events/{name}/enable", "1")
        write("tracing_on", "1")
        return self

    def __exit__(self, *_):
        write("tracing_on", "0")
        self.text = read("trace")
        self.reset()
        # As after boot, for what comes later in the guest.
        write("tracing_on", "1")

    def records(self):
        """The lines of the record as dicts: comm, pid, cpu, time and what."""
        out = [m.groupdict() for m in map(LINE.match, self.text.splitlines()) if m]
        for record in out:
            record["time"], record["comm"] = float(record["time"]), name_of(record["comm"].strip(), record["pid"])
        return out

    def events(self, name=None):
        """The module's events as dicts: their fields, the task, and `event`, the name without its prefix."""
        out = []
        for record in self.records():
            m = re.match(r"rust_ulp_(\w+): (.*)", record["what"])
            if m and name in (None, m[1]):
                task = {"comm": record["comm"], "pid": int(record["pid"])}
                out.append({"event": m[1], "time": record["time"]} | task | fields(m[2]))
        return out


def name_of(comm, pid):
    """The name of a task. The record lacks it when another CPU was noting one (trace_save_cmdline())."""
    if comm != "<...>":
        return comm
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return comm


def timeouts(wait):
    """How often the thread that `wait` starts, and whose sleep it ends, has slept with a time-out."""
    with Trace(others=["timer/timer_start"]) as trace:
        thread = wait()
    armed = [e["what"] for e in trace.records() if int(e["pid"]) == thread.native_id]
    return sum(what.startswith("timer_start:") and "function=process_timeout" in what for what in armed)


def fields(text):
    """`a=1 WORD b=0x2`: numbers by name, and the words that stand alone."""
    out = {k: int(v, 0) for k, v in re.findall(r"(\w+)=(-?(?:0x[0-9a-f]+|\d+))", text)}
    alone = [w for w in text.split() if "=" not in w]
    return out | {"words": alone}


def way():
    """The functions of WORDS that this kernel can trace."""
    return traceable([n for n in WORDS if not n.endswith(":")])


def steps(trace):
    """The record in plain words: (seconds since the first, cpu, who, words, name)."""
    out = []
    for record in trace.records():
        event = re.match(r"(rust_ulp_\w+): (.*)", record["what"])
        called = re.match(r"(\w+)(?: \[\w+\])? <-", record["what"])
        if event:
            name = event[1]
            values = fields(event[2])
            words = values.pop("words")
            text = WORDS.get(name + ":", WORDS.get(name))
            if text is None:
                continue
            text = say(text, opcode=words[0] if words else "", **values)
        elif called and called[1] in WORDS:
            name, text = called[1], say(WORDS[called[1]])
        else:
            continue
        out.append((record["time"], record["cpu"].lstrip("0") or "0", record["comm"], text, name))
    first = out[0][0] if out else 0
    return [(t - first, *rest) for t, *rest in out]


def show(rows):
    """The steps as a table."""
    lines = [say("       us    later  cpu  who              what")]
    last = 0
    for t, cpu, who, words, name in rows:
        lines.append(f"{t * 1e6:9.0f} {(t - last) * 1e6:+8.0f}  {cpu:>3}  {who:<16} {words}  ({name})")
        last = t
    return "\n".join(lines)


def lacking(rows):
    """What a full trace of one write must have and these steps have not, in its order."""
    names = [row[4] for row in rows]
    wanted = [
        "rust_ulp_ioctl",
        "rust_ulp_submit",
        "rust_ulp_post",
        "rust_ulp_post_send",
        DRIVER,
        "rust_ulp_completion",
        "rust_ulp_deliver",
    ]
    at = -1
    for name in wanted:
        try:
            at = names.index(name, at + 1)
        except ValueError:
            return name
    return None
