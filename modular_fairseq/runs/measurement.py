"""What a run is worth on a part of its data, in a file beside its checkpoints."""

import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from modular_fairseq.runs.run import Run, Say
from modular_fairseq_cli.files import only_one, read_json, write_file

if TYPE_CHECKING:
    from modular_fairseq.runs.evaluations.evaluation import Evaluation


class Measurement(NamedTuple):
    """A run, a part of its data, and what is to be found out there.

    Args:
        evaluations: may be none: then the statistics of the training are all that is wanted.
        subset: a part of the data, such as test.
        overrides: options of the model at inference, names and values.
        decoding: words of fairseq-generate.
    """

    run: Run
    evaluations: tuple["Evaluation", ...] = ()
    subset: str = "test"
    overrides: tuple[tuple[str, Any], ...] = ()
    decoding: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What its files are called: test, or test-specialised."""
        return "-".join([self.subset, *(str(value) for _, value in self.overrides)])

    def path(self, kind: str) -> str:
        return self.run.path(f"{self.name}.{kind}")

    @property
    def model_overrides(self) -> list[str]:
        """The words for fairseq's commands that `overrides` become."""
        return ["--model-overrides", json.dumps(dict(self.overrides))] if self.overrides else []

    @property
    def found(self) -> dict[str, Any]:
        """What the evaluations found for the checkpoint as it is now, and the digest of that checkpoint."""
        kept, training = read_json(self.path("json")) or {}, self.run.training or {}
        checkpoint = training.get("checkpoint")
        return kept if kept.get("checkpoint") == checkpoint else {"checkpoint": checkpoint}

    @property
    def result(self) -> dict[str, Any] | None:
        """The statistics of the training and what all evaluations found; None if any of it is missing."""
        training, found = self.run.training, self.found
        if training is None or not all(each.is_done(self, found) for each in self.evaluations):
            return None
        return {**training, **found}

    def finish(self, say: Say) -> None:
        """Make the evaluations that are not done yet. The run must have been trained.

        Raises:
            UsageError: a command failed, the data lack what an evaluation needs, or another process works in
                the run's folder.
        """
        if self.result is not None:
            return
        os.makedirs(self.run.folder, exist_ok=True)
        with only_one(self.run.folder):
            for each in self.evaluations:
                found = self.found
                if not each.is_done(self, found):
                    # An interruption must not leave what was found of an earlier translation.
                    others = {key: value for key, value in found.items() if key not in each.columns}
                    self._write(others)
                    self._write(others | each.measure(self, say))

    def _write(self, content: dict[str, Any]) -> None:
        write_file(self.path("json"), json.dumps(content, indent=1) + "\n")
