"""How much of some steps is done, and the time that is left: a bar on a terminal, lines elsewhere."""

import sys
import time

from tqdm import tqdm


class Progress:
    """Progress over steps of different lengths.

    Args:
        steps: how long each takes, in any unit; in seconds for the first guess of the time.
    """

    def __init__(self, steps: dict[str, float]):
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
        """Say what is done next; the steps before are done."""
        self.step = step
        self.at(0.0)
        self.bar.write(f"\n[{_clock(time.monotonic() - self.start)}, {self.left} left] {text}")

    def at(self, share: float) -> None:
        """Set how much of the present step is done, 0 to 1."""
        names = list(self.steps)
        before = sum(self.steps[name] for name in names[: names.index(self.step)])
        self.done = before + min(share, 1.0) * self.steps[self.step]
        self.bar.n = 100 * self.done / self.total
        self.bar.set_description_str(f"{self.step}, {self.left} left")

    def say(self, text: str, passing: bool = False) -> None:
        """Show a line; on a terminal one that is only `passing` is not kept."""
        if passing and not self.bar.disable:
            self.bar.set_description_str(f"{text.strip()}, {self.left} left")
        else:
            self.bar.write(f"{text} ({self.left} left)")

    @property
    def left(self) -> str:
        """The time that is left, as m:ss."""
        seconds = time.monotonic() - self.start
        pace = seconds / self.done if self.done > 0.05 * self.total else 1.0
        return _clock((self.total - self.done) * pace)

    def end(self, text: str) -> None:
        """Remove the bar and say how long everything took."""
        self.bar.close()
        print(f"\n[{_clock(time.monotonic() - self.start)}] {text}", flush=True)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
