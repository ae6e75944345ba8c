"""Show progress and the remaining time: as a bar on a terminal, as lines of text elsewhere."""

import sys
import time
from collections.abc import Mapping

from tqdm import tqdm


class StepProgress:
    """The progress of work that consists of named steps of different lengths.

    Args:
        steps: the expected length of each step in seconds, in the order of the steps. The remaining time is
            computed from these until a twentieth of the work is done, and from the measured pace after that.
    """

    def __init__(self, steps: Mapping[str, float]):
        self.steps, self.total, self.done, self.step = steps, sum(steps.values()), 0.0, ""
        self.start = time.monotonic()
        self.bar = tqdm(
            total=100,
            bar_format="{percentage:3.0f} % |{bar:40}| {desc}",
            disable=not sys.stdout.isatty(),
            file=sys.stdout,
            leave=False,
        )

    def begin(self, step: str, text: str) -> None:
        """Start a step, so that all steps before it count as done, and print `text` about it."""
        self.step = step
        self.at(0.0)
        self._write(f"\n[{_clock(time.monotonic() - self.start)}, {self.left} left] {text}")

    def at(self, share: float) -> None:
        """Set the share of the current step that is done, from 0 to 1."""
        names = list(self.steps)
        before = sum(self.steps[name] for name in names[: names.index(self.step)])
        self.done = before + min(share, 1.0) * self.steps[self.step]
        self.bar.n = 100 * self.done / self.total
        self.bar.set_description_str(f"{self.step}, {self.left} left")

    def say(self, text: str, passing: bool = False) -> None:
        """Show a line of text with the remaining time.

        On a terminal, a `passing` line is shown in the bar only, until the next one replaces it.
        """
        if passing and not self.bar.disable:
            self.bar.set_description_str(f"{text.strip()}, {self.left} left")
        else:
            self._write(f"{text} ({self.left} left)")

    def _write(self, text: str) -> None:
        """Write a line that is seen at once, in a file or through a pipe too."""
        self.bar.write(text)
        sys.stdout.flush()

    @property
    def left(self) -> str:
        """The time that remains, in the form m:ss."""
        seconds = time.monotonic() - self.start
        pace = seconds / self.done if self.done > 0.05 * self.total else 1.0
        return _clock((self.total - self.done) * pace)

    def end(self, text: str) -> None:
        """Remove the bar, and print `text` after the time that all steps took together."""
        self.bar.close()
        print(f"\n[{_clock(time.monotonic() - self.start)}] {text}", flush=True)


def _clock(seconds: float) -> str:
    """Return a time in the form m:ss."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
