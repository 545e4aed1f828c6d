#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""One end of a conversation over a reliable connection, by libibverbs or by /dev/rust_ulp.

    stock_peer.py stock|mapped|ulp listen|connect ADDRESS:PORT DEVICE [LENGTH]

`stock` knows nothing of rust_ulp: pyverbs, a queue pair brought up by explicit
INIT, RTR, RTS with an address handle attribute, a registered buffer. `mapped` is
the same, but the memory that it registers is a buffer of the module's, mapped.
`ulp` does the same through the ABI of the module. The two ends meet over TCP, and each
sends one line
    qpn=%d psn=%d gid=%s rkey=%d addr=%d len=%d
From there on a line `at STEP` says that an end has come to that step. Both ends
walk through the same steps, so that any two kinds of ends can be put together:
stock with stock shows that the conversation is right, ulp with stock that the
module is.

The first half of each buffer is the inbox, which the peer writes into; the
second the outbox, which the peer may read. Prints KTAP.
"""

import os
import re
import socket
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import ulp

LINE = "qpn=%(qpn)d psn=%(psn)d gid=%(gid)s rkey=%(rkey)d addr=%(addr)d len=%(len)d\n"
SECONDS = 20 * ulp.PATIENCE
REMOTE_ACCESS_ERROR = 10


class Stock:
    """libibverbs, through pyverbs."""

    def __init__(self, device, length, address=None):
        from pyverbs import libibverbs_enums as e
        from pyverbs.cq import CQ
        from pyverbs.device import Context
        from pyverbs.mr import MR
        from pyverbs.pd import PD
        from pyverbs.qp import QP, QPCap, QPInitAttr

        self.e = e
        self.context = Context(name=device)
        self.gid_index, self.gid = ulp.gid_of(device)
        self.pd, self.cq = PD(self.context), CQ(self.context, 64)
        self.mr = MR(
            self.pd, length, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ, address
        )
        self.length = length
        self.qp = QP(
            self.pd,
            QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=QPCap(max_send_wr=16, max_recv_wr=16)),
        )
        self.psn = self.qp.qp_num * 4099 & 0xFFFFFF
        self.early = []

    def params(self):
        return {
            "qpn": self.qp.qp_num,
            "psn": self.psn,
            "gid": self.gid,
            "rkey": self.mr.rkey,
            "addr": self.mr.buf,
            "len": self.length,
        }

    def connect(self, peer):
        from pyverbs.addr import GID, AHAttr, GlobalRoute
        from pyverbs.qp import QPAttr

        e = self.e
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
        self.qp.to_init(attr)
        route = GlobalRoute(dgid=GID(peer["gid"]), sgid_index=self.gid_index, hop_limit=64)
        attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
        attr.path_mtu, attr.dest_qp_num, attr.rq_psn = e.IBV_MTU_4096, peer["qpn"], peer["psn"]
        attr.max_dest_rd_atomic, attr.min_rnr_timer = 1, 12
        self.qp.to_rtr(attr)
        attr.timeout, attr.retry_cnt, attr.rnr_retry = 14, 7, 7
        attr.sq_psn, attr.max_rd_atomic = self.psn, 1
        self.qp.to_rts(attr)

    def put(self, offset, data):
        self.mr.write(data, len(data), offset)

    def get(self, offset, length):
        return bytes(self.mr.read(length, offset))

    def post(self, op, offset, length, addr=0, rkey=0, imm=None):
        from pyverbs.wr import SGE, RecvWR, SendWR

        sg = [SGE(self.mr.buf + offset, length, self.mr.lkey)]
        if op == "recv":
            self.qp.post_recv(RecvWR(num_sge=1, sg=sg, wr_id=2))
            return
        opcode = {
            "write": self.e.IBV_WR_RDMA_WRITE,
            "read": self.e.IBV_WR_RDMA_READ,
            "write_imm": self.e.IBV_WR_RDMA_WRITE_WITH_IMM,
            "send": self.e.IBV_WR_SEND,
            "send_imm": self.e.IBV_WR_SEND_WITH_IMM,
        }[op]
        wr = SendWR(opcode=opcode, num_sge=1, sg=sg, wr_id=1)
        if op in ("write", "write_imm", "read"):
            wr.set_wr_rdma(rkey, addr)
        if imm is not None:
            wr.imm_data = socket.htonl(imm)
        self.qp.post_send(wr)

    def poll(self):
        _, wcs = self.cq.poll(16)
        return [
            {
                "id": wc.wr_id,
                "status": wc.status,
                "opcode": wc.opcode,
                "bytes": wc.byte_len,
                "imm": socket.ntohl(wc.imm_data) if wc.wc_flags & self.e.IBV_WC_WITH_IMM else None,
            }
            for wc in wcs
        ]


class Mapped(Stock):
    """libibverbs over pages that the module allocated and mapped, large ones if there are."""

    def __init__(self, device, length):
        self.file = ulp.File(None, device)
        self.buffer = ulp.Buffer(self.file, self.file.pd(), length)
        super().__init__(device, length, ulp.address_of(self.buffer.map))


class Ulp:
    """The module, through its ABI."""

    def __init__(self, device, length):
        access = ulp.N["ACCESS_REMOTE_WRITE"] | ulp.N["ACCESS_REMOTE_READ"]
        self.end = ulp.End(device=device, length=length, access=access)
        self.length = length
        self.early = []

    def params(self):
        gid = bytes(self.end.file.gid().gid).hex()
        return {
            "qpn": self.end.qp.num,
            "psn": self.end.psn,
            "gid": ":".join(re.findall("....", gid)),
            "rkey": self.end.grant.rkey,
            "addr": self.end.grant.addr,
            "len": self.length,
        }

    def connect(self, peer):
        self.end.qp.connect(peer["qpn"], socket.inet_pton(socket.AF_INET6, peer["gid"]), peer["psn"], self.end.psn)

    def put(self, offset, data):
        self.end.buffer.map[offset : offset + len(data)] = data

    def get(self, offset, length):
        return self.end.buffer.map[offset : offset + length]

    def post(self, op, offset, length, addr=0, rkey=0, imm=None):
        name = {
            "write": "RDMA_WRITE",
            "write_imm": "RDMA_WRITE_WITH_IMM",
            "read": "RDMA_READ",
            "send": "SEND",
            "send_imm": "SEND_WITH_IMM",
            "recv": "RECV",
        }[op]
        self.end.file.submit(
            [
                self.end.qp.wr(
                    name,
                    self.end.buffer,
                    offset,
                    length,
                    remote_addr=addr,
                    rkey=rkey,
                    imm_data=imm or 0,
                    user_data=2 if op == "recv" else 1,
                )
            ]
        )

    def poll(self):
        return [
            {
                "id": c.user_data,
                "status": c.status,
                "opcode": c.opcode,
                "bytes": c.byte_len,
                "imm": c.imm_data if c.flags & ulp.N["WC_WITH_IMM"] else None,
            }
            for c in self.end.cq.reap()
        ]


def completion(end, number):
    """The next completion of sends (1) or receives (2)."""
    until = time.monotonic() + SECONDS
    while True:
        for i, c in enumerate(end.early):
            if c["id"] == number:
                return end.early.pop(i)
        if time.monotonic() > until:
            raise TimeoutError(f"no completion of a {'receive' if number == 2 else 'send'}")
        end.early += end.poll()


class Wire:
    """The TCP connection, line by line."""

    def __init__(self, role, address):
        where, port = address.rsplit(":", 1)
        if role == "listen":
            with socket.create_server((where, int(port))) as server:
                server.settimeout(SECONDS)
                self.socket, _ = server.accept()
        else:
            until = time.monotonic() + SECONDS
            while True:
                try:
                    self.socket = socket.create_connection((where, int(port)), SECONDS)
                    break
                except ConnectionRefusedError:
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.1)
        self.socket.settimeout(SECONDS)
        self.file = self.socket.makefile("rw")

    def say(self, line):
        self.file.write(line)
        self.file.flush()

    def meet(self, step):
        """Waits until the peer, too, is here."""
        self.say(f"at {step}\n")
        if (line := self.file.readline()) != f"at {step}\n":
            raise ConnectionError(f"the peer is at {line.strip()!r}, not at {step}")

    def exchange(self, params):
        self.say(LINE % params)
        line = self.file.readline()
        found = dict(re.findall(r"(\w+)=(\S+)", line))
        return {k: v if k == "gid" else int(v) for k, v in found.items()}


def converse(report, kind, role, address, device, length):
    end = {"stock": Stock, "mapped": Mapped, "ulp": Ulp}[kind](device, length)
    half = length // 2
    mine, theirs = (1, 2) if role == "listen" else (2, 1)
    wire = Wire(role, address)
    peer = wire.exchange(end.params())
    end.connect(peer)
    wire.meet("connected")

    def succeed(what, number=1):
        c = completion(end, number)
        if c["status"]:
            raise RuntimeError(f"{what} completed with status {c['status']}")
        return c

    # Whole, then pieces at odd places into a filled inbox, whose rest must stay.
    pieces = [(0, half)]
    pieces += [(o, n) for o, n in ((5, 1), (64, 8), (1024, 1023), (8191, 4097)) if o + n <= half]
    for i, (offset, count) in enumerate(pieces):
        out = ulp.pattern(mine * 100 + i, count)
        fill = bytes([0xE0 + i]) * half
        end.put(half, out)
        end.put(0, fill)
        wire.meet(f"write {i}")
        end.post("write", half, count, peer["addr"] + offset, peer["rkey"])
        succeed("the write")
        wire.meet(f"written {i}")
        want = fill[:offset] + ulp.pattern(theirs * 100 + i, count) + fill[offset + count :]
        report.check(
            f"{kind} {role}: {count} bytes written by the peer at {offset}, and nothing else",
            end.get(0, half) == want,
            "the inbox differs",
        )
    wire.meet("writes")

    end.put(0, bytes(half))
    end.put(half, ulp.pattern(mine, half))
    wire.meet("read")
    end.post("read", 0, half, peer["addr"] + half, peer["rkey"])
    succeed("the read")
    report.check(
        f"{kind} {role}: {half} bytes read from the peer",
        end.get(0, half) == ulp.pattern(theirs, half),
        "the inbox differs",
    )
    wire.meet("reads")

    end.put(half, ulp.pattern(mine + 10, 256))
    end.post("recv", 0, 0)
    wire.meet("write with immediate")
    end.post("write_imm", half, 256, peer["addr"] + 512, peer["rkey"], imm=0xA1B2C300 + mine)
    succeed("the write with immediate")
    c = succeed("the receive", 2)
    report.equal(
        f"{kind} {role}: a write with immediate completes a receive with its data",
        (c["opcode"], c["bytes"], c["imm"], end.get(512, 256)),
        (129, 256, 0xA1B2C300 + theirs, ulp.pattern(theirs + 10, 256)),
    )
    wire.meet("immediates")

    for op, imm in (("send", None), ("send_imm", 7)):
        end.put(0, bytes(half))
        end.put(half, ulp.pattern(mine + 20, 3000))
        end.post("recv", 0, 4096)
        wire.meet(op)
        end.post(op, half, 3000, imm=imm)
        succeed(op)
        c = succeed("the receive", 2)
        report.equal(
            f"{kind} {role}: {op} of 3000 bytes into a posted buffer",
            (c["opcode"], c["bytes"], c["imm"], end.get(0, 4096)),
            (128, 3000, imm, ulp.pattern(theirs + 20, 3000) + bytes(1096)),
        )
    wire.meet("sends")

    # A key that the listener never gave out. This ends the connection, so it comes last.
    end.put(0, bytes([0x55]) * half)
    wire.meet("refused")
    if role == "connect":
        end.post("write", half, 64, peer["addr"], peer["rkey"] ^ 0xFF)
        report.equal(
            f"{kind} {role}: a write with a wrong key is a remote access error",
            completion(end, 1)["status"],
            REMOTE_ACCESS_ERROR,
        )
    wire.meet("the end")
    report.check(
        f"{kind} {role}: that write touched nothing", end.get(0, half) == bytes([0x55]) * half, "the inbox differs"
    )


def main():
    kind, role, address, device = sys.argv[1:5]
    length = int(sys.argv[5]) if len(sys.argv) > 5 else 1 << 16
    report = ulp.Report()
    report.run(f"{kind} {role}: the conversation", converse, kind, role, address, device, length)
    sys.stdout.flush()
    os._exit(report.status())  # libibverbs does not survive what Python tears down in its own order


if __name__ == "__main__":
    if len(sys.argv) < 5 or sys.argv[1] not in ("stock", "mapped", "ulp") or sys.argv[2] not in ("listen", "connect"):
        print(__doc__.split("\n\n")[1].strip(), file=sys.stderr)
        sys.exit(2)
    main()
