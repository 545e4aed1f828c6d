#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""`ulp top` in a pseudo-terminal: what is on the screen, and what the keys do.

    terminal.py ULP QPN

QPN is a queue pair that has posted five requests. Prints KTAP.
"""

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import ulp

ROWS, COLUMNS = 40, 220
CODES = re.compile(r"\x1b\[(\d+;\d+)H|\x1b\[(2J)|(\x1b\[[^a-zA-Z]*[a-zA-Z])|([^\x00-\x1f])")


class Screen:
    """A program in a terminal, and the characters that it has put on the screen."""

    def __init__(self, *command):
        size = struct.pack("HHHH", ROWS, COLUMNS, 0, 0)
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, size)
            os.execve(command[0], command, os.environ | {"TERM": "xterm"})
        self.cells, self.row, self.column, self.all = {}, 1, 1, ""
        # A character or a code may come in two pieces.
        self.decoder, self.rest = codecs.getincrementaldecoder("utf-8")("replace"), ""

    def read(self):
        """Reads what is there. False at the end of the program."""
        if not select.select([self.fd], [], [], 0.1)[0]:
            return True
        try:
            text = self.rest + self.decoder.decode(os.read(self.fd, 1 << 16))
        except OSError:
            return False
        text, self.rest = re.fullmatch(r"(.*?)(\x1b(?:\[[^a-zA-Z]*)?)?", text, re.DOTALL).groups(default="")
        self.all += text
        for move, erase, other, letter in CODES.findall(text):
            if move:
                self.row, self.column = map(int, move.split(";"))
            elif erase:
                self.cells.clear()
            elif not other:
                self.cells[self.row, self.column] = letter
                self.column += 1
        return True

    def lines(self):
        """The lines of the screen."""
        rows, columns = range(1, ROWS + 1), range(1, COLUMNS + 1)
        return ["".join(self.cells.get((row, column), " ") for column in columns).rstrip() for row in rows]

    def has(self, pattern):
        """Whether a line matches."""
        return any(re.search(pattern, line) for line in self.lines())

    def shows(self, pattern):
        """Waits for a line that matches."""
        return ulp.until(lambda: self.read() and self.has(pattern))

    def lacks(self, pattern):
        """Waits until no line matches."""
        return ulp.until(lambda: self.read() and not self.has(pattern))

    def type(self, keys):
        """Types keys."""
        os.write(self.fd, keys.encode())

    def end(self):
        """Waits for the end of the program, and returns its exit status."""
        ulp.until(lambda: not self.read())
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_top(r, program, number):
    """Looks, types and ends."""
    mine = rf"^rxe1 +{number} +RC +RTS .* 5 +- +\d+ +python3"
    screen = Screen(program, "top", "-i", "200ms")
    r.check("the devices are there", screen.shows(r"^rxe1 +ACTIVE +w1 "), screen.lines())
    r.check("so is the queue pair, with its owner", screen.shows(mine), screen.lines())
    r.check("so is the file", screen.shows(r"^\d+ +rxe1 +\d+ +python3 .*writer.py"), screen.lines())
    r.check("the keys are named", screen.shows("^sorted by bytes .*q quit"), screen.lines())
    screen.type("s")
    r.check("s sorts by the next column", screen.shows("^sorted by errors "), screen.lines())
    screen.type("r")
    r.check("r reverses the order", screen.shows("^sorted by errors, reversed "), screen.lines())
    screen.type("/GSI\r")
    r.check("/ leaves only what has the text", screen.lacks(mine), screen.lines())
    r.check("what has it stays", screen.shows(r"^rxe1 +1 +GSI "), screen.lines())
    screen.type("/\r")
    r.check("an empty filter shows all again", screen.shows(mine), screen.lines())
    screen.type("q")
    r.equal("q ends it", screen.end(), 0)
    r.check("the terminal is as before", "\x1b[?1049h" in screen.all and "\x1b[?1049l" in screen.all, screen.all[-80:])
    screen = Screen(program, "top", "-i", "200ms")
    r.check("it begins again", screen.shows("^sorted by bytes "), screen.lines())
    os.kill(screen.pid, signal.SIGTERM)
    r.equal("SIGTERM ends it well", screen.end(), 0)
    r.check("the terminal is as before then, too", "\x1b[?1049l" in screen.all, screen.all[-80:])


if __name__ == "__main__":
    report = ulp.Report()
    report.run("top", test_top, *sys.argv[1:])
    sys.exit(report.status())
