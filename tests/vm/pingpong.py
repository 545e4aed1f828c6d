#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""The other end of a stock ibv_*_pingpong, by /dev/rust_ulp.

    pingpong.py rc|uc|ud|srq ADDRESS:PORT DEVICE ITERATIONS SIZE

The stock program listens. Both ends send over TCP, for each of their queue
pairs (for srq always 256 of them, unused ones as zeros), 52 bytes
    "%04x:%06x:%06x:%32s" lid:qpn:psn:gid, and a NUL
this end first; it answers the other's with "done" and a NUL. This end sends
first, and whoever has received sends again, from the buffer into which it has
received: so it gets its own bytes back. Prints KTAP.
"""

import os
import socket
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import ulp

SECONDS = 20 * ulp.PATIENCE
QKEY = 0x11111111
MTU = 3  # 1024 bytes, as those programs have it
GRH = 40
RECEIVES = 64


def content(size, turn):
    """What is sent. The first byte of each page is zero, which the option -c of the stock programs looks at."""
    data = bytearray(ulp.pattern(turn, size))
    for at in range(0, size, 4096):
        data[at] = 0
    return bytes(data)


class End:
    def __init__(self, kind, device, size):
        self.kind, self.size = kind, size
        self.file = ulp.File(attach=device)
        self.pd, self.cq = self.file.pd(), ulp.Cq(self.file, 256)
        self.head = GRH if kind == "ud" else 0
        self.slot = (size + self.head + 63) & ~63
        self.buffer = ulp.Buffer(self.file, self.pd, self.slot * (RECEIVES + 1))
        self.srq = ulp.Srq(self.file, self.pd, self.cq, RECEIVES) if kind == "srq" else None
        count, transport = (16, "RC") if self.srq else (1, kind.upper())
        self.qps = [
            ulp.Qp(self.file, self.pd, self.cq, kind=transport, srq=self.srq.handle if self.srq else 0)
            for _ in range(count)
        ]
        for qp in self.qps:
            qp.psn = qp.num * 4099 & 0xFFFFFF

    def lines(self):
        gid = bytes(self.file.gid().gid).hex()
        out = [b"%04x:%06x:%06x:%s\0" % (0, qp.num, qp.psn, gid.encode()) for qp in self.qps]
        return b"".join(out + [b"%04x:%06x:%06x:%s\0" % (0, 0, 0, b"0" * 32)] * (256 - len(out) if self.srq else 0))

    def connect(self, theirs):
        for qp, line in zip(self.qps, [theirs[i : i + 52] for i in range(0, len(theirs), 52)], strict=False):
            _, num, psn, gid = line.rstrip(b"\0").split(b":")
            qp.peer = int(num, 16)
            if self.kind == "ud":
                qp.start(QKEY, qp.psn)
                self.ah = self.file.ah(self.pd, bytes.fromhex(gid.decode())).handle
            else:
                qp.connect(qp.peer, bytes.fromhex(gid.decode()), int(psn, 16), qp.psn, mtu=MTU)

    def receive(self, slot):
        queue = self.srq.recv if self.srq else lambda *a, **k: self.qps[0].wr("RECV", *a, **k)
        return queue(self.buffer, slot * self.slot, self.size + self.head, user_data=slot)

    def send(self, qp, data):
        at = RECEIVES * self.slot
        self.buffer.map[at : at + self.size] = data
        if self.kind == "ud":
            return qp.datagram(self.ah, qp.peer, QKEY, self.buffer, at, self.size)
        return qp.wr("SEND", self.buffer, at, self.size)


def exact(stream, count):
    data = b""
    while len(data) < count:
        more = stream.recv(count - len(data))
        if not more:
            raise ConnectionError(f"{len(data)} of {count} bytes came")
        data += more
    return data


def meet(end, where, port):
    """Tells the other end who we are, and the other way round."""
    mine = end.lines()
    stream = socket.create_connection((where, port), SECONDS)
    stream.sendall(mine)
    theirs = exact(stream, len(mine))
    stream.sendall(b"done\0")
    end.connect(theirs)
    return stream


def play(report, kind, address, device, turns, size):
    end = End(kind, device, size)
    where, port = address.rsplit(":", 1)
    for qp in end.qps if not end.srq else []:
        # Receives stand before the peer may send; it is told of us only then.
        init = "STATE PKEY_INDEX PORT " + ("QKEY" if kind == "ud" else "ACCESS_FLAGS")
        qp.modify(init, qp_state=ulp.N["QPS_INIT"], port_num=end.file.port, qkey=QKEY)
    end.file.submit([end.receive(i) for i in range(RECEIVES)])
    stream = meet(end, where, int(port))
    by_handle = {qp.handle: qp for qp in end.qps}
    waits = {qp.handle: {"send", "recv"} for qp in end.qps}
    sent = received = 0
    wrong = []
    for qp in end.qps:
        end.file.submit([end.send(qp, content(size, 0))])
    until = time.monotonic() + SECONDS
    while sent < turns or received < turns:
        if time.monotonic() > until:
            raise TimeoutError(f"{sent} of {turns} were sent, {received} came")
        for c in end.cq.wait(1):
            if c.status:
                raise RuntimeError(f"opcode {c.opcode} completed with status {c.status}")
            if c.opcode == ulp.N["WC_RECV"]:
                at = c.user_data * end.slot
                # Many queue pairs share the stock end's one buffer: there all turns are alike.
                turn = 0 if end.srq else received
                data = end.buffer.map[at + end.head : at + end.head + size]
                if (c.byte_len, data) != (size + end.head, content(size, turn)):
                    wrong.append((received, c.byte_len, data[:4].hex(), len(set(data))))
                received += 1
                end.file.submit([end.receive(c.user_data)])
            else:
                sent += 1
            waits[c.qp].discard("recv" if c.opcode == ulp.N["WC_RECV"] else "send")
            if not waits[c.qp] and sent < turns:
                end.file.submit([end.send(by_handle[c.qp], content(size, 0 if end.srq else received))])
                waits[c.qp] = {"send", "recv"}
    report.equal(
        f"{kind}: {turns} messages of {size} bytes each way, with the bytes they should have",
        (received >= turns, sent >= turns, wrong[:4]),
        (True, True, []),
    )
    report.equal(
        f"{kind}: on {len(end.qps)} queue pairs, all in RTS",
        {end.file.call("QP_QUERY", qp=qp.handle).attr.qp_state for qp in end.qps},
        {ulp.N["QPS_RTS"]},
    )
    stream.close()


def main():
    kind, address, device, turns, size = sys.argv[1:]
    report = ulp.Report()
    report.run(kind, play, kind, address, device, int(turns), int(size))
    sys.stdout.flush()
    os._exit(report.status())


if __name__ == "__main__":
    if len(sys.argv) != 6 or sys.argv[1] not in ("rc", "uc", "ud", "srq"):
        print(__doc__.split("\n\n")[1].strip(), file=sys.stderr)
        sys.exit(2)
    main()
