"""The runs of an ablation: fairseq's commands for each, in processes of their own, and what they leave in a
folder each.

A run may be killed at any moment and started again: it ends as it would have ended.
"""

import json
import math
import os
import re
import shlex
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from fairseq.utils import get_perplexity

import modular_fairseq
from modular_fairseq.runs.greedy.protocol import Mechanism, Model
from modular_fairseq.runs.greedy.table import Result
from modular_fairseq.training.checkpoints import load_checkpoint, training_ended
from modular_fairseq_cli.arguments import by_option
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.fairseq_log import LOGGED, progress
from modular_fairseq_cli.files import write_file
from modular_fairseq_cli.processes import call

PLUGIN = os.path.dirname(os.path.abspath(modular_fairseq.__file__))
DIVERGED = re.compile(r"FloatingPointError: (gradients are Nan/Inf|.*Minimum loss scale reached)")
LIMITS = ("--max-update", "--max-epoch")


class Run(NamedTuple):
    """A model and a seed; `folder` is that of all runs, and `options` those of fairseq-train that all of them
    have.
    """

    data: str
    options: list[str]
    mechanisms: list[Mechanism]
    folder: str
    model: Model
    seed: int

    @property
    def name(self) -> str:
        """That of the run's own folder: the mechanisms that are on, in their own order, and the seed."""
        on = [mechanism.file_name for mechanism in self.mechanisms if mechanism.name in self.model]
        return f"{'+'.join(on) or 'baseline'}-seed{self.seed}"

    def path(self, file: str) -> str:
        return os.path.join(self.folder, self.name, file)

    @property
    def train_command(self) -> list[str]:
        switches = [
            word for each in self.mechanisms for word in (each.on if each.name in self.model else each.off)
        ]
        # Updating the iterator gives a resumed run the batches of an uninterrupted one: all runs see the same
        # data in the same order.
        own = (
            f"--seed {self.seed} --update-epoch-batch-itr True --best-checkpoint-metric ppl --log-format json"
        )
        own = ["--user-dir", PLUGIN, "--save-dir", self.path(""), *own.split()]
        return [sys.executable, "-m", "fairseq_cli.train", self.data, *self.options, *switches, *own]

    @property
    def validate_command(self) -> list[str]:
        given = {"--task": ["translation"], **by_option(self.options)}
        sizes = ["--max-tokens", "--batch-size", "--max-sentences"]
        given |= {name: given[f"{name}-valid"] for name in sizes if f"{name}-valid" in given}
        names = ["--task", *sizes, "--num-workers", "--cpu", "--skip-invalid-size-inputs-valid-test"]
        own = [
            "--user-dir",
            PLUGIN,
            "--path",
            self.path("checkpoint_best.pt"),
            "--valid-subset",
            "valid,test",
            "--log-format",
            "json",
        ]
        own += [word for name in names if name in given for word in (name, *given[name])]
        return [sys.executable, "-m", "fairseq_cli.validate", self.data, *own]

    @property
    def result(self) -> Result | None:
        """Perplexities on valid, test and train, train_loss, updates, and whether training diverged; None
        before the run has ended.
        """
        try:
            with open(self.path("result.json")) as file:
                return json.load(file)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise UsageError(
                f"{self.path('result.json')}: cannot be read ({error}); remove it to have the run evaluated "
                "again"
            ) from None

    def finish(self, say: Callable[[str], None]) -> None:
        """Trains what is left to train, evaluates and writes result.json; `say` gets each command before it
        runs, and its progress.

        Raises:
            UsageError: a command failed; the message names its log.
        """
        os.makedirs(self.path(""), exist_ok=True)
        state, diverged = self._last_checkpoint(), False
        if not self._is_trained(state):
            diverged = any(map(DIVERGED.search, self._call(self.train_command, "train.log", say)))
            state = self._last_checkpoint()
        valid = test = math.nan
        if os.path.exists(self.path("checkpoint_best.pt")):
            logged = map(LOGGED.search, self._call(self.validate_command, "validate.log", say))
            stats = {name: value for match in logged if match for name, value in json.loads(match[2]).items()}
            if not {"valid_ppl", "test_ppl"} <= stats.keys():
                raise UsageError(
                    f"{self.name}: fairseq_cli.validate shows no perplexity; see {self.path('validate.log')}"
                )
            valid, test = float(stats["valid_ppl"]), float(stats["test_ppl"])
        elif not diverged and (
            state is None or math.isfinite(state["extra_state"]["val_loss"] or 0)
        ):  # and not because it was nan
            raise UsageError(
                f"{self.name}: has no checkpoint_best.pt after training; let fairseq-train validate and save "
                "at least once"
            )
        result = {
            "mechanisms": self.model,
            "seed": self.seed,
            "diverged": diverged,
            "valid": valid,
            "test": test,
        }
        write_file(self.path("result.json"), json.dumps(result | training_statistics(state), indent=1) + "\n")

    def _last_checkpoint(self) -> dict[str, Any] | None:
        path = self.path("checkpoint_last.pt")
        return load_checkpoint(path) if os.path.exists(path) else None

    def _is_trained(self, state: dict[str, Any] | None) -> bool:
        given = by_option(self.options)
        return state is not None and training_ended(
            state, *(int((given.get(name) or ["0"])[0]) for name in LIMITS)
        )

    def _call(self, command: list[str], log: str, say: Callable[[str], None]) -> list[str]:
        """The last lines of what one of fairseq's commands says, after it has ended, or diverged; all of it
        goes to `log`.
        """
        say(shlex.join(command))
        status, tail = call(command, self.path(log), lambda line: (text := progress(line)) and say(text))
        if status != 0 and not any(map(DIVERGED.search, tail)):
            last = next((line.strip()[:300] for line in reversed(tail) if line.strip()), "no word")
            raise UsageError(
                f"{self.name}: {command[2]} failed with status {status} ({last}); see {self.path(log)}; "
                "nothing is lost"
            )
        return tail


def training_statistics(state: dict[str, Any] | None) -> Result:
    """What fairseq-train logged of its last epoch, from its last checkpoint: after a kill the log may lack
    it.
    """
    if state is None:
        return {"train": math.nan, "train_loss": math.nan, "updates": 0}
    meters = {
        name: meter
        for _, name, kind, meter in state["extra_state"]["metrics"]["train"]
        if kind == "AverageMeter"
    }
    loss, nll = (
        float(meters[name]["sum"] / meters[name]["count"])
        for name in ("loss", "nll_loss" if "nll_loss" in meters else "loss")
    )
    return {
        "train": get_perplexity(nll),
        "train_loss": loss,
        "updates": state["optimizer_history"][-1]["num_updates"],
    }
