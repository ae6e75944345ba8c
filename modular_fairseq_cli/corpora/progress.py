"""Says how far a stage is, on standard error: in a line that changes on a terminal, and elsewhere in a line
every half minute.
"""

import sys
import time

from modular_fairseq_cli.processes import say


class Progress:
    """Counts lines, and says how many there are and how many come in a second."""

    def __init__(self, what: str):
        self.what = what
        self.lines = 0
        self.terminal = sys.stderr.isatty()
        self.interval = 0.5 if self.terminal else 30
        self.begin = self.said = time.monotonic()

    def add(self, lines: int) -> None:
        self.lines += lines
        if time.monotonic() - self.said >= self.interval:
            self.said = time.monotonic()
            if self.terminal:
                sys.stderr.write(f"\r\033[K{self}")
                sys.stderr.flush()
            else:
                say(str(self))

    def done(self) -> None:
        if self.terminal:
            sys.stderr.write("\r\033[K")
        say(str(self))

    def __str__(self) -> str:
        seconds = max(time.monotonic() - self.begin, 1e-3)
        return f"{self.what}: {self.lines:,} lines, {self.lines / seconds:,.0f} lines/s"
