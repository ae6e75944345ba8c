"""Evaluations that take numbers from analyses of the trained model, by `modular-fairseq analyze`."""

import itertools
import os
import shlex
from abc import abstractmethod
from statistics import fmean
from typing import Any, ClassVar

from modular_fairseq.analysis.analyses import ALL, build
from modular_fairseq.analysis.attention_maps import ENCODER
from modular_fairseq.analysis.places import SOURCE, side_of
from modular_fairseq.loading import SKIP_INVALID, load
from modular_fairseq.runs.config import LANGUAGE_MODELING
from modular_fairseq.runs.evaluation import Column, Evaluation, Measurement, register
from modular_fairseq.runs.execution import Say
from modular_fairseq.runs.run import Run
from modular_fairseq.training.averaging import checkpoints_of_updates
from modular_fairseq_cli.analysis_folder import INDEX
from modular_fairseq_cli.arguments import by_option
from modular_fairseq_cli.files import read_json

MAPS = {"all": "all maps", "encoder": "encoder"}
OVER_TRAINING = ("eta_squared", "eta_squared_heads")  # columns that are measured over the training, too


def by_update(column: str) -> str:
    """Return the key of the values of a column over the training."""
    return f"{column}_by_update"


class AnalysisEvaluation(Evaluation):
    """The base of evaluations that read the result of one analysis.

    Attributes:
        analysis: the name of the analysis.
        needs_mechanism: whether the analysis is of a mechanism that not every model has. The columns of a
            model without it have no value.
        needs_encoder: whether all columns are about the encoder, which a language model does not have.
    """

    analysis: ClassVar[str]
    needs_mechanism: ClassVar[bool] = False
    needs_encoder: ClassVar[bool] = False
    takes_overrides = False

    def fits(self, run: Run) -> bool:
        return not (self.needs_encoder and by_option(list(run.words)).get("--task") == [LANGUAGE_MODELING])

    def is_done(self, measurement: Measurement, found: dict[str, Any]) -> bool:
        return self.columns.keys() <= found.keys()

    def command(self, measurement: Measurement, checkpoint: str = "", suffix: str = "") -> list[str]:
        """Return the words of the command that analyses the model, or another checkpoint of its training.

        Args:
            measurement: the measurement.
            checkpoint: the path of the checkpoint; "": the one that the run is judged by.
            suffix: is added to the name of the folder that the command writes.
        """
        own = ["--path", checkpoint or measurement.run.checkpoint, "--gen-subset", measurement.subset]
        own += ["--out", measurement.path(self.analysis + suffix), *measurement.run.plugin_option]
        own += [SKIP_INVALID] if SKIP_INVALID in by_option(list(measurement.run.words)) else []
        return ["modular-fairseq", "analyze", self.analysis, measurement.run.corpus.binarized, *own]

    def commands(self, measurement: Measurement) -> list[str]:
        note = "  # skipped for a model without such a part" if self.needs_mechanism else ""
        return [shlex.join(self.command(measurement)) + note]

    def measure(self, measurement: Measurement, say: Say) -> dict[str, Any]:
        if self.needs_mechanism and not self._applies(measurement):
            return dict.fromkeys(self.columns)
        report = self._analyse(measurement, say)
        return self.read(report) | {self.analysis: _numbers(report)}

    def _analyse(
        self, measurement: Measurement, say: Say, checkpoint: str = "", suffix: str = ""
    ) -> dict[str, Any]:
        """Run the command, and return the analysis's part of analysis.json."""
        command = self.command(measurement, checkpoint, suffix)
        measurement.run.execute(command, f"{self.analysis}{suffix}.log", say)
        found = read_json(os.path.join(measurement.path(self.analysis + suffix), INDEX))
        assert found is not None  # the command has written the file
        return found["analyses"][self.analysis]

    def _applies(self, measurement: Measurement) -> bool:
        run = measurement.run
        loaded = load(run.checkpoint, run.corpus.binarized, measurement.subset)
        return self.analysis in build([ALL], loaded)[0]

    @abstractmethod
    def read(self, report: dict[str, Any]) -> dict[str, Any]:
        """Return the columns from the analysis's part of analysis.json."""


def _numbers(report: dict[str, Any]) -> dict[str, Any]:
    """Return the lists of a report with an entry for each module, layer or type, without nested values."""
    return {
        key: [
            {name: each for name, each in entry.items() if isinstance(each, str | int | float)}
            for entry in value
        ]
        for key, value in report.items()
        if isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value)
    }


def _redundancy(measure: str, definition: str, maps: str) -> Column:
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
class Redundancy(AnalysisEvaluation):
    """The evaluation that measures layer redundancy (LR) and head redundancy (HR) of attention weights.

    Each (Chien and Huang 2022) is measured by two definitions, which `analysis.redundancy` explains, for the
    attention maps of all types and for those of the encoder.
    """

    analysis = "redundancy"
    columns = {
        f"{measure}_{definition}_{maps}": _redundancy(measure, definition, maps)
        for definition, maps, measure in itertools.product(("distance", "divergence"), MAPS, ("LR", "HR"))
    }

    def read(self, report: dict[str, Any]) -> dict[str, Any]:
        return {column: report[column] for column in self.columns}


@register
class GateEntropy(AnalysisEvaluation):
    """The evaluation that measures how focused the gates of MAE are (Peng et al. 2020, section 5.1).

    The number is the mean entropy of the gates in nats, averaged over the layers of the encoder.
    """

    analysis = "gates"
    needs_mechanism = needs_encoder = True
    columns = {"gate_entropy_encoder": Column("entropy of gates (encoder), nats", "", "{:.3f}")}

    def read(self, report: dict[str, Any]) -> dict[str, Any]:
        return {"gate_entropy_encoder": report["kinds"].get(ENCODER)}


@register
class ExpertInformation(AnalysisEvaluation):
    """The evaluation that measures how much experts of MAE specialise in tokens.

    The number is the mean pointwise mutual information of source tokens and experts of the encoder (Peng et
    al. 2020, section 5.1), in nats; see `analysis.tokens.information`. It is 0 if they are independent. Gates
    that have not been trained have a positive one, because they compute with the tokens' vectors.
    """

    analysis = "experts"
    needs_mechanism = needs_encoder = True
    columns = {
        "expert_information": Column("mutual information of tokens and experts (encoder), nats", "", "{:.3f}")
    }

    def read(self, report: dict[str, Any]) -> dict[str, Any]:
        # Not each["side"], which says what a gate reads: with --mae-gate-context source, gates of a decoder
        # read the source, too.
        of_encoder = [each["information"] for each in report["modules"] if side_of(each["module"]) == SOURCE]
        return {"expert_information": fmean(of_encoder) if of_encoder else None}


@register
class CompetitionInPictures(AnalysisEvaluation):
    """The evaluation that measures how well the mechanisms of TIM divide the regions of pictures.

    The number is eta squared of the last TIM layer: the variance of the competition between the regions, as a
    share of its variance over pixels (Lamb et al. 2021, figure 2); see `analysis.pictures`. Its controls are
    the brightness of the pixels, and the layer of which two groups of heads divide the regions best.

    A training with `checkpoint.save_interval_updates` leaves checkpoints at regular intervals. Of each of
    them the result has both numbers too, as lists of [update, value] whose keys `by_update` returns.
    """

    analysis = "pictures"
    columns = {
        "eta_squared": Column("eta squared between regions, last layer", "", "{:.3f}"),
        "eta_squared_heads": Column("eta squared of two groups of heads, best layer", "", "{:.3f}"),
        "eta_squared_brightness": Column("eta squared of the brightness", "", "{:.3f}"),
    }

    def fits(self, run: Run) -> bool:
        return by_option(list(run.words)).get("--task") == [LANGUAGE_MODELING]

    def commands(self, measurement: Measurement) -> list[str]:
        also = "  # and the same of each checkpoint_EPOCH_UPDATE.pt that the training keeps"
        return [shlex.join(self.command(measurement)) + also]

    def measure(self, measurement: Measurement, say: Say) -> dict[str, Any]:
        found = super().measure(measurement, say)
        points: dict[str, list[list[float]]] = {}
        for update, path in checkpoints_of_updates(measurement.run.save_dir):
            report = self._analyse(measurement, say, path, f"-{update}")
            for name, value in self.read(report).items():
                if name in OVER_TRAINING and value is not None:
                    points.setdefault(by_update(name), []).append([update, value])
        return found | points

    def read(self, report: dict[str, Any]) -> dict[str, Any]:
        last = max(report["layers"], key=lambda layer: layer["layer"], default={"eta_squared": None})
        of_heads = [each["eta_squared"] for each in report["heads"] if each["eta_squared"] is not None]
        return {
            "eta_squared": last["eta_squared"],
            "eta_squared_heads": max(of_heads, default=None),
            "eta_squared_brightness": report["brightness"],
        }


@register
class CompetitionByDepth(AnalysisEvaluation):
    """The evaluation that measures whether competition in TIM is surer in deeper layers of the encoder.

    The number is the mean entropy of the competition in the last encoder layer that has one, less that in the
    first, as a share of the entropy of mechanisms that are equally active (Lamb et al. 2021, figure 3). It is
    negative if the competition is surer in the last layer.
    """

    analysis = "competition"
    needs_mechanism = needs_encoder = True
    columns = {"competition_by_depth": Column("entropy of competition, last less first layer", "", "{:+.3f}")}

    def read(self, report: dict[str, Any]) -> dict[str, Any]:
        layers: dict[int, list[float]] = {}  # streams have several of a layer
        for each in report["layers"]:
            if each["side"] == SOURCE:
                layers.setdefault(each["layer"], []).append(each["entropy"] / each["uniform"])
        depth = fmean(layers[max(layers)]) - fmean(layers[min(layers)]) if len(layers) > 1 else None
        return {"competition_by_depth": depth}
