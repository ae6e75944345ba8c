"""Redundancy of attention (LR and HR of Chien and Huang 2022), which `modular-fairseq analyze` computes."""

import itertools
import os
import shlex
from typing import Any

from modular_fairseq.runs.evaluation import Column, Evaluation, Measurement, register
from modular_fairseq.runs.run import Say
from modular_fairseq_cli.analysis_folder import INDEX
from modular_fairseq_cli.files import read_json

MAPS = {"all": "all maps", "encoder": "encoder"}


def _column(measure: str, definition: str, maps: str) -> Column:
    """Return a column of LR or HR.

    The paper prints figures by divergence, of the encoder self-attention. No other column has one.
    """
    heading = f"{measure} ({definition}, {MAPS[maps]})"
    printed = (definition, maps) == ("divergence", "encoder")
    return Column(
        heading,
        f"paper: {heading}" if printed else "",
        "{:.3f}",
        "" if printed else f"{measure}_divergence_encoder",
    )


@register
class Redundancy(Evaluation):
    """The evaluation that measures layer redundancy (LR) and head redundancy (HR) of attention weights.

    Each is measured by two definitions, which `analysis.redundancy` explains, for the attention maps of all
    types and for those of the encoder.
    """

    columns = {
        f"{measure}_{definition}_{maps}": _column(measure, definition, maps)
        for definition, maps, measure in itertools.product(("distance", "divergence"), MAPS, ("LR", "HR"))
    }
    takes_overrides = False

    def is_done(self, measurement: Measurement, found: dict[str, Any]) -> bool:
        return self.columns.keys() <= found.keys()

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
