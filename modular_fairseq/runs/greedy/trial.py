"""Trials of the greedy protocol, each of which trains and evaluates a model with one seed."""

import math
import os
from typing import Any, NamedTuple

from fairseq.utils import get_perplexity

from modular_fairseq.runs.evaluations.perplexity import perplexities
from modular_fairseq.runs.execution import Say
from modular_fairseq.runs.greedy.protocol import Model
from modular_fairseq.runs.run import Run
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import only_one, read_json, write_json

# The perplexities, keyed by "valid", "test" and "train", "train_loss", "updates", and whether training
# "diverged".
Result = dict[str, Any]


class Trial(NamedTuple):
    """A model of the protocol, and the run that trains it with one seed."""

    model: Model
    run: Run

    @property
    def result(self) -> Result | None:
        """The content of result.json, or None if the trial has not ended."""
        return read_json(self.run.path("result.json"), "remove it to evaluate the run again")

    def finish(self, say: Say) -> Result:
        """Complete the training, evaluate, and write result.json.

        Args:
            say: is called with a sentence about each command, and with its progress.

        Returns:
            The content of result.json. Perplexities are NaN if the training diverged before it saved a
            checkpoint, or if its validation loss was never a number.

        Raises:
            UsageError: a command failed (the message names its log), the training saved no checkpoint, or
                another process works in the folder of the run.
        """
        os.makedirs(self.run.folder, exist_ok=True)
        with self.run.noting_failure(), only_one(self.run.folder):
            return self.result or self._finish(say)

    def _finish(self, say: Say) -> Result:
        diverged = self.run.fit(say, may_diverge=True)
        state = self.run.last_checkpoint()
        found = {"valid": math.nan, "test": math.nan}
        if os.path.exists(self.run.checkpoint):
            found = perplexities(self.run, ",".join(found), say)
        elif not diverged and (state is None or math.isfinite(state["extra_state"]["val_loss"] or 0)):
            # The validation loss was a number, so a best checkpoint should exist.
            raise UsageError(
                f"{self.run.name} has no checkpoint_best.pt after training; change the options so that "
                "fairseq-train validates and saves at least once"
            )
        result = {"mechanisms": self.model, "seed": self.run.seed, "diverged": diverged}
        result |= {name: found[name] for name in ("valid", "test")} | last_epoch(state)
        write_json(self.run.path("result.json"), result)
        return result


def last_epoch(state: dict[str, Any] | None) -> Result:
    """Return the training perplexity, the training loss and the number of updates after the last epoch.

    They are read from a checkpoint, because the log may lack them after a kill.

    Args:
        state: content of the last checkpoint. None: the values are NaN and 0 updates.
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
