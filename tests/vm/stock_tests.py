#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""rdma-core's own tests, as its package has them, on one device: what became of each.

    stock_tests.py DEVICE GID-INDEX FAMILY...

Prints a line per test, `OUTCOME CLASS.TEST REASON`, where the outcome is ok, skip, fail or error. One
that does not pass has a second turn, and that counts: they poll for so many seconds, which on a busy
machine may be too few. Standard error names it, with 'again:'. The families are those of tests/pyverbs.md.
"""

import importlib
import os
import sys
import unittest

ROOT = "/usr/share/doc/rdma-core"
# On rxe a completion is lost now and then when its queue is resized meanwhile, and the test waits for it
# for 15 s: seen on a guest that had never loaded a module of ours.
LEFT_OUT = {"CQTest.test_resize_cq"}


class Outcomes(unittest.TestResult):
    def __init__(self, again=True):
        super().__init__()
        self.again = again

    def say(self, outcome, test, reason=""):
        name = ".".join(test.id().split(".")[-2:])
        print(outcome, name, " ".join(str(reason).split())[:200], flush=True)

    def addSuccess(self, test):
        self.say("ok", test)

    def addSkip(self, test, reason):
        self.say("skip", test, reason)

    def addFailure(self, test, err):
        self.bad("fail", test, err[1])

    def addError(self, test, err):
        self.bad("error", test, err[1])

    def bad(self, outcome, test, reason):
        if self.again and isinstance(test, unittest.TestCase):
            print("again:", test.id(), outcome, reason, file=sys.stderr)
            type(test)(test._testMethodName).run(Outcomes(again=False))
        else:
            self.say(outcome, test, reason)


def main():
    device, gid, *families = sys.argv[1:]
    root = os.environ.get("PYVERBS_TESTS", ROOT)
    sys.path[:0] = [root, root + "/tests"]
    sys.argv[1:] = ["--dev", device, "--port", "1", "--gid", gid]
    from args_parser import parser

    parser.parse_args()
    # The package's own __init__ would load the tests of other vendors' devices as well.
    package = type(sys)("tests")
    package.__path__ = [root + "/tests"]
    sys.modules["tests"] = package
    loader = unittest.TestLoader()
    for family in families:
        for suite in loader.loadTestsFromModule(importlib.import_module("tests." + family)):
            for test in suite:
                if ".".join(test.id().split(".")[-2:]) not in LEFT_OUT:
                    test.run(Outcomes())
    # What the tests leave to the collector is not always collected in an order that works.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
