"""Redundancy of attention (LR and HR of Chien and Huang 2022), which `modular-fairseq analyze` computes."""

import os
import shlex
from typing import Any

from modular_fairseq.runs.evaluation import Column, Evaluation, Measurement, register
from modular_fairseq.runs.run import Say
from modular_fairseq_cli.analysis_folder import INDEX
from modular_fairseq_cli.files import read_json


@register
class Redundancy(Evaluation):
    """The evaluation that measures layer redundancy (LR) and head redundancy (HR) of attention weights."""

    columns = {"LR": Column("LR", "paper: LR", "{:.3f}"), "HR": Column("HR", "paper: HR", "{:.3f}")}
    takes_overrides = False

    def commands(self, measurement: Measurement) -> list[str]:
        return [shlex.join(analyze_command(measurement))]

    def measure(self, measurement: Measurement, say: Say) -> dict[str, Any]:
        measurement.run.execute(analyze_command(measurement), "redundancy.log", say)
        found = read_json(os.path.join(measurement.path("redundancy"), INDEX))
        assert found is not None  # the command has written the file
        report = found["analyses"]["redundancy"]
        return {column: report[column] for column in self.columns}


def analyze_command(measurement: Measurement) -> list[str]:
    """Return the words of the command that analyses the model."""
    own = ["--path", measurement.run.checkpoint, "--gen-subset", measurement.subset]
    own += ["--out", measurement.path("redundancy")]
    return ["modular-fairseq", "analyze", "redundancy", measurement.run.corpus.binarized, *own]
