"""What a run is worth on a part of its corpus: translation, scores and redundancy, in files beside its
checkpoints.
"""

import json
import os
import shutil
from contextlib import suppress
from typing import Any, NamedTuple

from modular_fairseq.runs.run import PLUGIN, Run, Say, digest, read_json
from modular_fairseq_cli.analysis_folder import INDEX
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import only_one, write_file
from modular_fairseq_cli.scoring import Output, read_lines, read_output, score


class Evaluation(NamedTuple):
    """A run's translation of a part of its corpus, `overrides` being options of the model at inference, and
    its scores.
    """

    run: Run
    subset: str = "test"
    overrides: tuple[tuple[str, Any], ...] = ()
    redundancy: bool = False  # of the attention weights, too

    @property
    def name(self) -> str:
        return "-".join([self.subset, *(str(value) for _, value in self.overrides)])

    def path(self, kind: str) -> str:
        return self.run.path(f"{self.name}.{kind}")

    @property
    def ref(self) -> str:
        """The references that the translation was scored with, beside it."""
        return self.path(f"ref.{self.run.config.languages[1]}")

    @property
    def reference(self) -> str:
        """Untokenised, in the corpus."""
        return self.run.corpus("raw", f"{self.subset}.{self.run.config.languages[1]}")

    @property
    def generate_command(self) -> list[str]:
        overrides = ["--model-overrides", json.dumps(dict(self.overrides))] if self.overrides else []
        own = ["--user-dir", PLUGIN, "--path", self.run.checkpoint, "--gen-subset", self.subset]
        return ["fairseq-generate", self.run.binarized, *own, *self.run.config.generate_options(), *overrides]

    @property
    def redundancy_command(self) -> list[str]:
        own = ["--path", self.run.checkpoint, "--gen-subset", self.subset, "--out", self.path("redundancy")]
        return ["modular-fairseq", "analyze", "redundancy", self.run.binarized, *own]

    @property
    def score_command(self) -> list[str]:
        """For people who want to repeat it; here it is done without a process of its own."""
        return [
            "modular-fairseq",
            "score",
            "--reference",
            self.ref,
            self.path("out"),
            "--detokenize",
            self._detokenizer,
        ]

    @property
    def _detokenizer(self) -> str:
        return "none" if self.run.config.get("common_eval.post_process") == "sentencepiece" else "moses"

    @property
    def result(self) -> dict[str, Any] | None:
        """The scores, as `modular_fairseq_cli.scoring.score` gives them, with redundancy.

        None where they are missing, or of other decoding or another test set.
        """
        result = read_json(self.path("json"))
        checkpoint = (self.run.training or {}).get("checkpoint")
        if (
            result is None
            or result.get("checkpoint") != checkpoint
            or result.get("generate") != self._decoding
            or (self.redundancy and "LR" not in result)
        ):
            return None
        changed = os.path.isfile(self.reference) and digest(self.reference) != digest(self.ref)
        return None if changed else result

    @property
    def _decoding(self) -> list[str]:
        return [*self.run.config.generate_options(), *map(str, self.overrides)]

    def output(self) -> Output:
        """The translation, detokenised."""
        return read_output(self.path("out"), self.run.config.languages[1], self._detokenizer)

    def references(self) -> list[str]:
        return read_lines(self.ref)

    def finish(self, say: Say) -> None:
        """Translates and scores what is not yet.

        Raises:
            UsageError: a command failed, or the corpus does not have the references.
        """
        if self.result is not None:
            return
        os.makedirs(self.run.path(), exist_ok=True)
        if not os.path.isfile(self.reference):
            raise UsageError(
                f"{self.reference}: is missing; it must hold the untokenised references, as the scripts of "
                "data-prep write it"
            )
        with only_one(self.run.path()):
            for old in ("json", "out.tmp"):
                with suppress(FileNotFoundError):
                    os.remove(self.path(old))
            self.run.execute(self.generate_command, os.path.basename(self.path("out.tmp")), say)
            os.replace(self.path("out.tmp"), self.path("out"))
            shutil.copyfile(self.reference, f"{self.ref}.tmp")
            os.replace(f"{self.ref}.tmp", self.ref)
            result = {
                "checkpoint": self.run.training["checkpoint"],
                "generate": self._decoding,
                **score(self.output(), [self.references()], language=self.run.config.languages[1]),
            }
            if self.redundancy:
                self.run.execute(self.redundancy_command, "redundancy.log", say)
                report = read_json(os.path.join(self.path("redundancy"), INDEX))["analyses"]["redundancy"]
                result |= {"LR": report["LR"], "HR": report["HR"]}
            write_file(self.path("json"), json.dumps(result, indent=1) + "\n")
