"""Show the progress of a stage on standard error.

On a terminal one line is rewritten twice a second; elsewhere a new line is written every half minute.
"""

import sys
import time

from modular_fairseq_cli.processes import say


class Progress:
    """A counter of lines that shows their number and rate."""

    def __init__(self, what: str):
        """Start counting; `what` names the work in front of the numbers."""
        self.what = what
        self.lines = 0
        self.terminal = sys.stderr.isatty()
        self.interval = 0.5 if self.terminal else 30
        self.begin = self.said = time.monotonic()

    def add(self, lines: int) -> None:
        """Count lines, and show the progress if it is time to do so."""
        self.lines += lines
        if time.monotonic() - self.said >= self.interval:
            self.said = time.monotonic()
            if self.terminal:
                sys.stderr.write(f"\r\033[K{self}")
                sys.stderr.flush()
            else:
                say(str(self))

    def done(self) -> None:
        """Show the final numbers."""
        if self.terminal:
            sys.stderr.write("\r\033[K")
        say(str(self))

    def __str__(self) -> str:
        seconds = max(time.monotonic() - self.begin, 1e-3)
        return f"{self.what}: {self.lines:,} lines, {self.lines / seconds:,.0f} lines/s"
