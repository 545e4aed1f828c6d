# SPDX-License-Identifier: GPL-2.0
"""What each personality of the lab's adapter has, for the tests that need it.

The rows were read in tests/hca/personality.c and, where the module offers less than the adapter has, in
rust_ulp/rdma/quirks.rs. Nothing here is asked of the module: a test is skipped because this table says that the
adapter cannot, and fails when the module alone says so. Soft-RoCE has all that the tests need.
"""

import dataclasses
import os
import sys


@dataclasses.dataclass(frozen=True)
class Personality:
    """What an adapter has. The numbers are the largest that a command may ask for."""

    kinds: tuple = ("RC", "UC", "UD")
    # Whether the driver posts atomics, and whether its REG_MR grants them.
    posts_atomics: bool = True
    grants_atomics: bool = True
    # Whether its driver tells when a queue pair takes no more of a shared receive queue.
    srq: bool = False
    send_sge: int = 16
    inline: int = 256
    # Whether a queue pair comes back from RESET.
    resets: bool = True
    # Entries of a queue of a queue pair, without the one for draining, and of a completion queue.
    wr: int = (1 << 14) - 1
    cqe: int = 1 << 20
    # Bytes under a key, where a region has no larger pages than the kernel; None where it has.
    key: int | None = None
    # No adapter has Send with Invalidate.
    send_with_inv: bool = False

    def posts(self, op):
        """Whether a reliable queue pair posts the request WR_`op`."""
        return self.send_with_inv if op == "SEND_WITH_INV" else self.posts_atomics or not op.startswith("ATOMIC_")

    @property
    def atomics(self):
        """Whether atomics are posted and granted."""
        return self.posts_atomics and self.grants_atomics


RC_UD = {"kinds": ("RC", "UD")}
PERSONALITIES = {
    "plain": Personality(),
    "mlx4": Personality(srq=True, inline=0),
    "mlx5": Personality(srq=True, posts_atomics=False),
    "vf": Personality(srq=True, posts_atomics=False, key=0),
    "irdma": Personality(**RC_UD, inline=101, grants_atomics=False, resets=False, key=512 << 12),
    "qedr": Personality(kinds=("RC",), send_sge=4),
    "bnxt": Personality(**RC_UD, srq=True, posts_atomics=False),
    "erdma": Personality(**RC_UD, send_sge=6, inline=96, key=512 << 12),
    "pvrdma": Personality(**RC_UD, inline=0, key=128 << 12),
    "ionic": Personality(**RC_UD),
    "hns": Personality(**RC_UD, srq=True),
    "hip08": Personality(**RC_UD, srq=True, key=0),
    "ocrdma": Personality(key=0),
    "mana": Personality(kinds=("UD",), key=0),
    "ib": Personality(),
    "opa": Personality(srq=True, inline=0, key=512 << 12),
    "cxgb4": Personality(),
    "strict": Personality(kinds=("RC",), posts_atomics=False, send_sge=1, inline=0, wr=511, cqe=1024, key=16 << 12),
}
SOFT_ROCE = Personality(srq=True, send_with_inv=True)
# That of the adapter which takes the place of Soft-RoCE.
HERE = PERSONALITIES[os.environ["ULP_HCA"]] if os.environ.get("ULP_HCA") else SOFT_ROCE

if __name__ == "__main__":
    value = getattr(HERE, sys.argv[1])
    print("" if value is None else value)
