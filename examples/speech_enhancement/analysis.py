"""The analysis `modular-fairseq analyze speech`: when are the mechanisms of TIM layers active? (Figure 3)

In a layer with a competition, c [frames, mechanisms] are the activations of the mechanisms. The analysis has
for each layer:

    entropy       the mean entropy of c over frames, and its 5th and 95th percentiles, as shares of ln n, the
                  entropy of equally active mechanisms
    correlation   Pearson's correlation over frames of the c of each mechanism with "this frame has speech"
    layers        Pearson's correlation over frames between the c of two layers, averaged over mechanisms

A control is the correlation of the loudness: the log energy of the noisy frame, less its mean over the
recording. A frame has speech if its energy in the clean recording is at most 40 dB below the loudest frame.
(STOI has this range, too.) Which of the mechanisms learns the speech is chance. Their names can be fixed with
one part of the data, and judged with another.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from fairseq.tasks import FairseqTask
from tabulate import tabulate
from torch import Tensor, nn

from modular_fairseq.analysis import ANALYSES
from modular_fairseq.analysis.attention_maps import AttentionMap
from modular_fairseq.analysis.competition import Correlation, OfCompetitions
from modular_fairseq.analysis.one_pass import Report
from modular_fairseq.analysis.places import place
from modular_fairseq.analysis.recording import pop, recorded
from modular_fairseq.analysis.timelines import Image, Timeline

from .audio import HOP
from .training import SpeechEnhancement

RANGE = 40  # dB from the loudest frame to the most silent one that still counts as speech
SHOWN = 4  # recordings in the report
LONGEST = 250  # frames of them


@dataclass
class Speech(Report):
    """The result of the analysis.

    Attributes:
        about: what the table shows, for the report.
        table: a row for each layer, with its entropy and the correlation of each mechanism with speech.
        layers: a row for each layer, with its correlation with every layer.
        loudness: the correlation of the loudness with speech, a control.
        frames: the number of frames.
        share: the share of frames that have speech.
        timelines: some recordings with the activations of the first mechanism of each layer.
    """

    about: str
    table: list[dict]
    layers: list[dict]
    loudness: float | None
    frames: int
    share: float
    timelines: list[Timeline]

    def text(self) -> str:
        tables = [tabulate(rows, "keys", "plain", floatfmt=".3f") for rows in (self.table, self.layers)]
        return "\n\n".join([self.about, *tables])

    def tables(self) -> dict[str, list[dict]]:
        return {"speech": self.table, "speech-layers": self.layers}


class SpeechOfMechanisms(OfCompetitions):
    """The analysis (see the top of this file)."""

    summary = "activation of the mechanisms of TIM layers in frames with speech and without"

    @classmethod
    def is_for(cls, task: FairseqTask) -> bool:
        return isinstance(task, SpeechEnhancement)

    def __init__(self, model: nn.Module):
        super().__init__(model)
        self.model = model
        self.layers = {name: f"layer {place(name, self.parts)[0]}" for name in self.parts}

    @contextmanager
    def watching(self) -> Iterator[None]:
        with super().watching(), recorded({"model": self.model}) as self.estimates:
            yield

    def of_task(self, task: FairseqTask) -> None:
        self.speech: list[Tensor] = []
        self.loudness: list[Tensor] = []
        self.activations: dict[str, list[Tensor]] = {name: [] for name in self.parts}
        self.timelines: list[Timeline] = []
        [self.data] = task.datasets.values()  # an analysis loads one part of the data

    def see(self, batch: dict, maps: list[AttentionMap]) -> None:
        outputs = {name: c.transpose(0, 1) for name, c in pop(self.outputs).items()}  # B x T x n
        estimate = pop(self.estimates)["model"]
        for index, frames in enumerate(batch["net_input"]["frames"]):
            clean, noisy = batch["target"][index][frames], batch["net_input"]["noisy"][index][frames]
            speech = has_speech(clean)
            self.speech.append(speech.cpu())
            loudness = energy(noisy).double().clamp(min=1e-12).log()
            self.loudness.append((loudness - loudness.mean()).cpu())
            for name, c in outputs.items():
                self.activations[name].append(c[index][frames].double().cpu())
            if len(self.timelines) < SHOWN:
                shown = {"noisy": noisy, "output": estimate[index][frames], "clean": clean}
                self.timelines.append(self._timeline(int(batch["id"][index]), shown, speech))

    def _timeline(self, number: int, shown: dict[str, Tensor], speech: Tensor) -> Timeline:
        rows = {"speech": speech.float()}
        rows |= {f"c1, {self.layers[name]}": values[-1][:, 0] for name, values in self.activations.items()}
        highest = self.data.frames.rate / 2000
        return Timeline(
            self.data.recordings[number].clean.name,
            min(len(speech), LONGEST) * HOP / 1000,
            [_spectrogram(f"{label}, 0 to {highest:g} kHz", values) for label, values in shown.items()],
            {label: [round(value, 3) for value in each[:LONGEST].tolist()] for label, each in rows.items()},
        )

    def report(self) -> Speech:
        speech = torch.cat(self.speech).double()
        rows = []
        for name, values in self.activations.items():
            c = torch.cat(values)
            entropy = torch.special.entr(c).sum(dim=1) / math.log(c.size(1))
            percentiles = {f"{p} %": float(entropy.quantile(p / 100)) for p in (5, 95)}
            correlations = {f"correlation c{m + 1}": correlation(each, speech) for m, each in enumerate(c.T)}
            rows.append(
                {"layer": self.layers[name], "entropy": float(entropy.mean()), **percentiles, **correlations}
            )
        between = Correlation()
        between.add(torch.stack([torch.cat(values) for values in self.activations.values()]))
        layers = [
            {"layer": name, **dict(zip(self.layers.values(), row, strict=True))}
            for name, row in zip(self.layers.values(), between.matrix(), strict=True)
        ]
        loudness = correlation(torch.cat(self.loudness), speech)
        share = float(speech.mean())
        about = (
            f"{len(speech):,} frames, of which {share:.0%} have speech. The entropy of the competition is 1 "
            "if all mechanisms are equally active, and the percentiles are over frames. The correlation is "
            'between the activation of a mechanism and "this frame has speech". For comparison, the loudness '
            f"of the noisy frames has {'none' if loudness is None else f'{loudness:.3f}'}."
        )
        return Speech(about, rows, layers, loudness, len(speech), share, self.timelines)


def _spectrogram(label: str, log_magnitudes: Tensor) -> Image:
    """Return an image of log magnitudes [T, bins], with low frequencies at the bottom."""
    return Image.of(label, log_magnitudes[:LONGEST].T.flip(0))


def has_speech(clean: Tensor) -> Tensor:
    """Return which frames have speech, bool [T], for log magnitudes of clean speech [T, bins]."""
    found = energy(clean)
    return (found >= found.max() / 10 ** (RANGE / 10)) & (found > 0)


def energy(log_magnitudes: Tensor) -> Tensor:
    """Return the energy of frames [T], in units of FLOOR squared, for log magnitudes [T, bins]."""
    return log_magnitudes.expm1().square().sum(dim=-1)


def correlation(x: Tensor, y: Tensor) -> float | None:
    """Return Pearson's correlation of two series [N], or None if one of them never changes."""
    if not (x.std() > 0 and y.std() > 0):
        return None
    return float(torch.corrcoef(torch.stack([x, y]))[0, 1])


ANALYSES["speech"] = SpeechOfMechanisms
