"""Redundancy of the attention weights: LR and HR of Chien and Huang (2022), by `modular-fairseq analyze`."""

import os
import shlex
from typing import Any

from modular_fairseq.runs.evaluation import Column, Evaluation, Measurement, register
from modular_fairseq.runs.run import Say
from modular_fairseq_cli.analysis_folder import INDEX
from modular_fairseq_cli.files import read_json


@register
class Redundancy(Evaluation):
    columns = {"LR": Column("LR", "paper: LR", "{:.3f}"), "HR": Column("HR", "paper: HR", "{:.3f}")}
    takes_overrides = False

    def commands(self, of: Measurement) -> list[str]:
        return [shlex.join(analyze_command(of))]

    def measure(self, of: Measurement, say: Say) -> dict[str, Any]:
        of.run.execute(analyze_command(of), "redundancy.log", say)
        report = read_json(os.path.join(of.path("redundancy"), INDEX))["analyses"]["redundancy"]
        return {column: report[column] for column in self.columns}


def analyze_command(of: Measurement) -> list[str]:
    own = ["--path", of.run.checkpoint, "--gen-subset", of.subset, "--out", of.path("redundancy")]
    return ["modular-fairseq", "analyze", "redundancy", of.run.corpus.binarized, *own]
