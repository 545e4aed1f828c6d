#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Records what the module answers to seeded calls, and replays such traces.

    traces.py record SEED CALLS FILE    makes up calls, issues them, and writes the trace
    traces.py replay FILE...            issues the calls of each trace again, and prints KTAP: a test for each

One thread issues the calls on one file, attached to the device of h1, whose queue pairs are connected to each other.
After each call the program waits until all posted sends have completed, so a trace does not depend on time. A trace is
text. A call is a line with its command and the fields that are not zero; `@3`, `#3`, `$3` and `&3` are the handle, the
number of the queue pair, the rkey and the address that call 3 returned, and `^` and `+` change them. Lines with `wr`
are its requests. The last line of a call ends with two blanks and

    = ERRNO NAME=VALUE...    the errno and the fields that the module has written, without handles, keys and addresses

Then come

    + @QP send|recv ...      each completion, in the order of its work queue
    ~ CRC...                 the contents of the buffers after a SUBMIT

A receive that is flushed is shown when its queue pair goes to ERR or is destroyed. Differences that are intended are in
tests/fuzz/traces/intended, a line each: `COMMAND: RECORDED -> REPLAYED`, with wildcards.
"""

import ctypes
import errno
import fnmatch
import os
import re
import sys
import zlib

from ulp import DEV1, N, OUT, S, SIZES, Cq, File, Report, hang_ns, here, ioctl, pattern, sizes_of

TRACES = os.path.join(here, "../fuzz/traces")
# What differs from run to run, or is a handle.
HIDDEN = {"handle", "qp_num", "rkey", "addr", "mmap_offset", "buffer", "qp", "attr", "pad", "reserved"}
HANDLES = {"pd", "cq", "send_cq", "recv_cq", "srq", "buffer", "qp"}
# These say something when they fail as well.
SAYS = ("SUBMIT", "QP_MODIFY")
SIGNALED = N["SEND_SIGNALED"]
ACCESS = sum(N["ACCESS_REMOTE_" + name] for name in ("WRITE", "READ", "ATOMIC"))
# The offset that tells receives from sends in user_data.
RECV = 1 << 32
OPS = {n: N["WR_" + n] for n in ("RDMA_WRITE", "RDMA_WRITE_WITH_IMM", "SEND", "SEND_WITH_IMM", "RDMA_READ", "RECV")} | {
    n: N["WR_" + n] for n in ("ATOMIC_FETCH_AND_ADD", "ATOMIC_CMP_AND_SWP")
}
# A request that takes a receive of the peer.
TAKES = r"\bopcode=({})\b".format("|".join(str(op) for name, op in OPS.items() if "SEND" in name or "IMM" in name))


class Machine:
    """A file with what its calls have made, which issues calls and says what came of each."""

    def __init__(self):
        self.file = File("h1", DEV1)
        self.gid = bytes(self.file.gid().gid)
        # Per call: its struct after it, and what it made.
        self.results, self.cqs, self.buffers, self.names = {}, {}, {}, {}
        self.left, self.held = {}, []

    def close(self):
        self.file.close()
        for buffer in self.buffers.values():
            buffer.close()
        for cq in self.cqs.values():
            del cq.ring, cq.slots
            cq.map.close()

    def value(self, text):
        if text == "gid":
            return self.gid
        if text == "gid_index":
            return self.file.gid_index
        if not (match := re.fullmatch(r"([@#$&])(\d+)(?:([+^])(\w+))?", text)):
            return int(text, 0)
        field = {"@": "handle", "#": "qp_num", "$": "rkey", "&": "addr"}[match[1]]
        base = getattr(self.results.get(int(match[2])), field, 0)
        change = int(match[4], 0) if match[4] else 0
        return base ^ change if match[3] == "^" else base + change

    def fill(self, arg, fields):
        for path, text in fields:
            *names, last = path.split(".")
            where = arg
            for name in names:
                where = getattr(where, name)
            value = self.value(text)
            if isinstance(value, bytes):
                ctypes.memmove(getattr(where, last), value, len(value))
            else:
                kind = {f[0]: f[1] for f in where._fields_}[last]
                setattr(where, last, kind(value & ((1 << 64) - 1)).value)
        return arg

    def call(self, number, line, requests):
        """Issues a call. Returns the lines of what came of it."""
        command, *fields = line.split()
        fields = [tuple(f.split("=", 1)) for f in fields]
        struct = command.lower()
        arg = S[struct](**sizes_of(struct)) if SIZES.get(struct) else S[struct]()
        self.fill(arg, fields)
        arg.size = ctypes.sizeof(arg)
        wrs = [self.fill(S["wr"](), [tuple(f.split("=", 1)) for f in wr.split()[1:]]) for wr in requests]
        array = (S["wr"] * max(1, len(wrs)))(*wrs)
        if command == "SUBMIT":
            arg.wrs, arg.nr_wrs = ctypes.addressof(array), len(wrs)
        code = 0
        try:
            ioctl(self.file.fd, N["IOC_" + command], ctypes.byref(arg))
        except OSError as e:
            code = e.errno
        said = ["=", errno.errorcode.get(code, str(code)) if code else "0"]
        if code == 0 or command in SAYS:
            said += [
                f"{name}={value}"
                for name in OUT[struct]
                if name not in HIDDEN and (value := self.shown(arg, name)) != 0
            ]
        if code == 0 and command == "QP_QUERY":
            said.append(f"state={arg.attr.qp_state}")
        lines = [" ".join(said)]
        if code == 0:
            self.results[number] = arg
            self.made(number, command, arg)
        if command == "SUBMIT":
            for wr in wrs[: arg.posted]:
                key = self.left.setdefault(wr.qp, set())
                key.add(wr.user_data)
        if command == "SUBMIT" or (command == "QP_MODIFY" and code == 0):
            to_error = command == "QP_MODIFY" and arg.attr_mask & N["QP_STATE"] and arg.attr.qp_state == N["QPS_ERR"]
            lines += self.completions(arg.qp if to_error else None)
        if command == "SUBMIT":
            lines.append(" ".join(["~", *(f"{zlib.crc32(buffer):08x}" for buffer in self.buffers.values())]))
        return lines

    @staticmethod
    def shown(arg, name):
        value = getattr(arg, name)
        return value if isinstance(value, int) else 0

    def made(self, number, command, arg):
        if handle := getattr(arg, "handle", 0) if command.endswith("_CREATE") else 0:
            self.names[handle] = f"@{number}"
        if command == "CQ_CREATE":
            cq = Cq.__new__(Cq)
            cq.file, cq.handle = self.file, arg.handle
            cq.map = self.file.map(arg.mmap_size, arg.mmap_offset)
            cq.ring = S["cq_ring"].from_buffer(cq.map)
            cq.entries = cq.ring.entries
            cq.slots = (S["cqe"] * cq.entries).from_buffer(cq.map, N["CQ_ENTRIES_OFFSET"])
            self.cqs[arg.handle] = cq
        elif command == "BUFFER_CREATE" and arg.length <= 1 << 20:
            self.buffers[number] = self.file.map(arg.length, arg.mmap_offset)
            self.buffers[number][:] = pattern(number, arg.length)

    def completions(self, failed):
        """Waits for the sends that were posted, and for all requests of the queue pair `failed`."""
        out = {}
        while True:
            for cq in self.cqs.values():
                self.held += cq.reap()
            late = []
            for cqe in self.held:
                # A receive that is flushed comes when it likes, until its queue pair goes to ERR.
                if cqe.user_data & RECV and cqe.status and cqe.qp != failed:
                    late.append(cqe)
                    continue
                self.left.get(cqe.qp, set()).discard(cqe.user_data)
                key = (self.names.get(cqe.qp, "@0"), "recv" if cqe.user_data & RECV else "send")
                out.setdefault(key, []).append(self.completion(cqe))
            self.held = late
            waits = [
                qp for qp, those in self.left.items() if (qp == failed and those) or any(not u & RECV for u in those)
            ]
            if not waits:
                break
            for cq in self.cqs.values():
                arg = S["submit"](cq=cq.handle, min_complete=1, timeout_ns=hang_ns())
                arg.size = ctypes.sizeof(arg)
                ioctl(self.file.fd, N["IOC_SUBMIT"], ctypes.byref(arg))
                if arg.wait_error:
                    return [f"! {len(waits)} queue pairs wait for completions: {errno.errorcode[-arg.wait_error]}"]
                break
        return [f"+ {qp} {kind} {said}" for (qp, kind), those in sorted(out.items()) for said in those]

    @staticmethod
    def completion(cqe):
        said = f"{cqe.user_data & ~RECV} status={cqe.status}"
        if cqe.status == 0:
            said += f" opcode={cqe.opcode} flags={cqe.flags:#x} len={cqe.byte_len} imm={cqe.imm_data:#x}"
        return said


# --- making calls up ------------------------------------------------------------------------


class Maker:
    """Makes calls up from a seed, and records them."""

    def __init__(self, seed, out):
        self.state, self.out, self.number = seed * 2654435761 + 1, out, 0
        self.machine = Machine()
        self.made = {kind: [] for kind in ("PD", "CQ", "BUFFER", "GRANT", "QP", "SRQ")}
        self.peers, self.gone, self.posts = {}, [], 0

    def below(self, count):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) & ((1 << 64) - 1)
        return (self.state >> 33) % count

    def pick(self, these):
        return these[self.below(len(these))] if these else "0"

    def call(self, line, *requests):
        """Issues and records a call; the first word of what came of it."""
        self.number += 1
        said = self.machine.call(self.number, line, requests)
        lines = [f"{self.number} {line}", *(f"  {wr}" for wr in requests)]
        lines[-1] += f"  {said[0]}"
        self.out.write("\n".join([*lines, *said[1:]]) + "\n")
        command, code = line.split()[0], said[0].split()[1]
        kind = command.removesuffix("_CREATE")
        if code == "0" and kind in self.made:
            self.made[kind].append(f"@{self.number}")
        return code, said

    def pair(self):
        """Two queue pairs that are connected to each other."""
        pd, cq = self.made["PD"][0], self.made["CQ"][0]
        for _ in range(2):
            self.call(
                f"QP_CREATE pd={pd} send_cq={cq} recv_cq={cq} qp_type={N['QPT_RC']} max_send_wr=16 max_recv_wr=16 "
                "max_send_sge=2 max_recv_sge=2 max_inline=64"
            )
        pair = [self.number - 1, self.number]
        address = "attr.ah.sgid_index=gid_index attr.ah.port_num=1 attr.ah.is_global=1 attr.ah.hop_limit=64"
        address += " attr.ah.dgid=gid"
        steps = {
            "INIT": ("STATE PKEY_INDEX PORT ACCESS_FLAGS", f"attr.port_num=1 attr.access_flags={ACCESS}"),
            "RTR": (
                "STATE AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER",
                f"attr.path_mtu=3 attr.min_rnr_timer=1 attr.max_dest_rd_atomic=4 {address}",
            ),
            "RTS": (
                "STATE SQ_PSN TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC",
                "attr.timeout=18 attr.retry_cnt=6 attr.rnr_retry=1 attr.max_rd_atomic=4",
            ),
        }
        for state, (mask, fields) in steps.items():
            bits = sum(N["QP_" + name] for name in mask.split())
            for mine, peer in (pair, pair[::-1]):
                number = f" attr.dest_qp_num=#{peer}" if state == "RTR" else ""
                self.call(
                    f"QP_MODIFY qp=@{mine} attr_mask={bits:#x} attr.qp_state={N['QPS_' + state]} {fields}{number}"
                )
        self.peers = {f"@{pair[0]}": f"@{pair[1]}", f"@{pair[1]}": f"@{pair[0]}"}

    def fail(self):
        """Both queue pairs of the pair go to ERR, and are destroyed."""
        for qp in self.peers:
            self.call(f"QP_MODIFY qp={qp} attr_mask={N['QP_STATE']:#x} attr.qp_state={N['QPS_ERR']}")
        for qp in self.peers:
            self.call(f"DESTROY handle={qp}")
            self.made["QP"].remove(qp)
            self.gone.append(qp)

    def request(self, qp, receives):
        """A request of the queue pair, wrong now and then; the peer has so many receives left.

        What is read is in the first buffer, what peers write in the second, and what comes back in the third: requests
        of a queue pair overlap in time, and their data must not.
        """
        op = self.pick([*OPS, "RDMA_WRITE", "SEND", "RECV", "RECV"])
        self.posts += 1
        if (op.startswith("SEND") or "IMM" in op) and not receives:
            # It would fail, now for want of the receiver, now for want of an answer.
            op = "RDMA_WRITE"
        grant, buffers = self.made["GRANT"][0], self.made["BUFFER"]
        buffer = buffers[{"RECV": 1, "RDMA_READ": 2}.get(op, 2 if op.startswith("ATOMIC") else 0)]
        length = 8 if op.startswith("ATOMIC") else self.pick([0, 1, 8, 64, 1000, 2048])
        fields = {
            "user_data": self.posts + (RECV if op == "RECV" else 0),
            "qp": qp,
            "opcode": OPS[op],
            "num_sge": 1,
            "flags": 0 if op == "RECV" else SIGNALED,
            "sge.buffer": buffer,
            "sge.length": length,
            "sge.offset": self.pick([0, 8, 512, 2048]),
        }
        if "RDMA" in op or "ATOMIC" in op:
            fields |= {"remote_addr": f"&{grant[1:]}+{self.pick([0, 8, 1024])}", "rkey": f"${grant[1:]}"}
        if "IMM" in op:
            fields["imm_data"] = self.below(1 << 16)
        if "ATOMIC" in op:
            fields |= {"args.atomic.compare_add": self.below(4)}
            second = self.below(1 << 16)
            if op == "ATOMIC_CMP_AND_SWP":
                fields["args.atomic.swap"] = second
        if self.below(6) == 0:
            name, value = self.pick(
                [
                    ("opcode", 200),
                    ("num_sge", 9),
                    ("flags", 0x8000),
                    ("qp", f"{fields['qp']}^0x10000"),
                    ("sge.buffer", self.made["PD"][0]),
                    ("sge.offset", 4096),
                    ("sge.offset", (1 << 64) - 8),
                    ("sge.length", 1 << 20),
                    ("rkey", f"${grant[1:]}^0x55"),
                    ("remote_addr", f"&{grant[1:]}+4090"),
                    ("timeout_ns", 5),
                    ("args.ud.pad", 1),
                ]
            )
            fields[name] = value
        return "wr " + " ".join(f"{name}={value}" for name, value in fields.items() if value)

    def submit(self):
        qp = self.pick(list(self.peers))
        peer = self.machine.value(self.peers[qp])
        receives = sum(1 for posted in self.machine.left.get(peer, ()) if posted & RECV)
        requests = []
        for _ in range(1 + self.below(4)):
            requests.append(self.request(qp, receives))
            receives -= bool(re.search(TAKES, requests[-1]))
        _, said = self.call(f"SUBMIT wr_size={ctypes.sizeof(S['wr'])}", *requests)
        if any(re.match(r"\+ .* status=[1-9]", line) for line in said):
            self.fail()
            self.pair()

    def create(self):
        pd, cq, buffer = (self.pick(self.made[kind]) for kind in ("PD", "CQ", "BUFFER"))
        sizes = f" max_send_wr={self.pick([0, 1, 64, 1 << 30])} max_send_sge={self.pick([0, 1, 99])}"
        sizes += " max_recv_wr=4 max_recv_sge=1"
        line = self.pick(
            [
                "PD_CREATE",
                f"CQ_CREATE entries={self.pick([0, 1, 3, 64, 1 << 31])}",
                f"BUFFER_CREATE pd={pd} length={self.pick([0, 1, 4096, 8192, 1 << 62])} node=0xffffffff",
                f"GRANT_CREATE buffer={buffer} access={self.below(16)} length={self.pick([0, 1, 4096, 1 << 40])}"
                + self.pick(["", " offset=1", " offset=4096", " offset=8192"]),
                f"SRQ_CREATE pd={pd} cq={cq} max_wr={self.pick([0, 1, 64, 1 << 30])} max_sge={self.pick([0, 1, 200])}",
                f"QP_CREATE pd={pd} send_cq={cq} recv_cq={cq} qp_type={self.below(8)}{sizes}",
            ]
        )
        if self.below(3) == 0:
            line = self.spoil(line)
        self.call(line)

    def spoil(self, line):
        """The call with one field that is odd."""
        struct = line.split()[0].lower()
        fields = [f[0] for f in S[struct]._fields_ if f[0] not in OUT[struct] and f[0] not in ("size", "length")]
        name = self.pick(fields)
        words = [word for word in line.split() if not word.startswith(name + "=")]
        # The number of a handle may differ between runs, so that it only stands for handles.
        odd = ["@1", "@2", "@4"] if name in HANDLES else [1, 7, 0x80, 0x7FFFFFFF, 0xFFFFFFFF]
        return " ".join([*words, f"{name}={self.pick(odd)}"])

    def query(self):
        kind = self.pick(["BUFFER", "GRANT", "QP", "SRQ"])
        handle = self.pick([*self.made[kind], *self.gone, self.made["PD"][0]])
        self.call(f"{kind}_QUERY {kind.lower()}={handle}" + self.pick(["", "", "", " flags=1"]))

    def modify(self):
        """A transition of a queue pair outside the pair, mostly a wrong one."""
        qp = self.pick([q for q in self.made["QP"] if q not in self.peers] or [self.made["PD"][0]])
        mask = self.pick([1, 0x39, 0x10001, self.below(1 << 21), 0x80000001])
        self.call(f"QP_MODIFY qp={qp} attr_mask={mask:#x} attr.qp_state={self.below(8)} attr.port_num={self.below(3)}")

    def destroy(self):
        spare = {kind: those[3 if kind == "BUFFER" else 1 :] for kind, those in self.made.items()}
        spare["QP"] = [qp for qp in self.made["QP"] if qp not in self.peers]
        # In use, gone, or none at all.
        odd = [self.made["PD"][0], self.made["CQ"][0], self.made["BUFFER"][1], *self.gone, "77", "@1^0x100"]
        every = [handle for those in spare.values() for handle in those]
        handle = self.pick(odd if self.below(3) == 0 else every or odd)
        code, _ = self.call(f"DESTROY handle={handle}")
        for those in self.made.values():
            if code == "0" and handle in those:
                those.remove(handle)
                self.gone.append(handle)

    def run(self, calls):
        self.call("PD_CREATE")
        self.call("CQ_CREATE entries=256")
        for _ in range(3):
            self.call("BUFFER_CREATE pd=@1 length=4096 node=0xffffffff")
        self.call(f"GRANT_CREATE buffer=@4 access={ACCESS} length=4096")
        self.pair()
        while self.number < calls:
            draw = self.below(20)
            kinds = [self.submit] * 9 + [self.create] * 4 + [self.query] * 3 + [self.destroy] * 3 + [self.modify]
            kinds[draw]()
        self.fail()
        self.machine.close()


# --- replaying ---------------------------------------------------------------------------------


def calls(text):
    """The calls of a trace, as (number of the line, call, its requests, what came of it)."""
    out = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#") or not line:
            continue
        if line[0] in "+~!":
            out[-1][3].append(line)
            continue
        line, _, answer = line.partition("  = ")
        if line.startswith("  wr "):
            out[-1][2].append(line.strip())
        else:
            out.append((number, line, [], []))
        if answer:
            out[-1][3].append(f"= {answer}")
    return out


def intended():
    with open(os.path.join(TRACES, "intended")) as f:
        return [line.strip() for line in f if line.strip() and not line.startswith("#")]


def replay(text, allowed=()):
    """Issues the calls of a trace again. Returns how many there were, and the differences."""
    machine, differences, count = Machine(), [], 0
    for line, call, requests, want in calls(text):
        number, _, call = call.partition(" ")
        count += 1
        got = machine.call(int(number), call, requests)
        if got != want:
            was, now = next(
                ((a, b) for a, b in zip([*want, "nothing"], [*got, "nothing"], strict=False) if a != b), ("", "")
            )
            said = f"{call.split()[0]}: {was} -> {now}"
            if not any(fnmatch.fnmatchcase(said, pattern) for pattern in allowed):
                differences.append(f"line {line}: {said}")
    machine.close()
    return count, differences


def test(r, path):
    with open(path) as f:
        count, differences = replay(f.read(), intended())
    for line in differences[:40]:
        r.note(line)
    r.check(
        f"{os.path.basename(path)}: {count} calls have the recorded results", not differences and count, differences[:1]
    )


def main():
    match sys.argv[1:]:
        case ["record", seed, number, path]:
            with open(path, "w") as f:
                f.write(f"# SPDX-License-Identifier: GPL-2.0\n# traces.py record {seed} {number}\n")
                Maker(int(seed), f).run(int(number))
        case ["replay", *paths] if paths:
            report = Report()
            for path in paths:
                report.run(os.path.basename(path), test, path)
            sys.exit(report.status())
        case _:
            sys.exit(__doc__.split("\n\n")[1])


if __name__ == "__main__":
    main()
