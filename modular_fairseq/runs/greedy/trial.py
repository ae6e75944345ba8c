"""A model of the greedy protocol and a seed: its run, and what the protocol needs of it."""

import json
import math
import os
from typing import Any, NamedTuple

from fairseq.utils import get_perplexity

from modular_fairseq.runs.evaluations.perplexity import perplexities
from modular_fairseq.runs.greedy.protocol import Model
from modular_fairseq.runs.run import Run, Say
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import read_json, write_file

Result = dict[str, Any]  # perplexities by the name of the data, and whether training `diverged`


class Trial(NamedTuple):
    """A model of the protocol, and the run that trains it."""

    model: Model
    run: Run

    @property
    def result(self) -> Result | None:
        """Perplexities on valid, test and train, train_loss, updates, and whether training diverged; None
        before the trial has ended.
        """
        return read_json(self.run.path("result.json"), "remove it to have the run evaluated again")

    def finish(self, say: Say) -> None:
        """Train what is left to train, evaluate, and write result.json.

        Args:
            say: gets a sentence about each command, and its progress.

        Raises:
            UsageError: a command failed; the message names its log.
        """
        diverged = self.run.fit(say, may_diverge=True)
        state = self.run.last_checkpoint()
        found = {"valid": math.nan, "test": math.nan}
        if os.path.exists(self.run.checkpoint):
            found = perplexities(self.run, ",".join(found), say)
        elif not diverged and (
            state is None or math.isfinite(state["extra_state"]["val_loss"] or 0)
        ):  # and not because it was nan
            raise UsageError(
                f"{self.run.name}: has no checkpoint_best.pt after training; let fairseq-train validate and "
                "save at least once"
            )
        result = {"mechanisms": self.model, "seed": self.run.seed, "diverged": diverged}
        result |= {name: found[name] for name in ("valid", "test")} | last_epoch(state)
        write_file(self.run.path("result.json"), json.dumps(result, indent=1) + "\n")


def last_epoch(state: dict[str, Any] | None) -> Result:
    """Return what fairseq-train logged of its last epoch, from its last checkpoint: after a kill the log may
    lack it.
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
