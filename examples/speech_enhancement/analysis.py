"""The analysis `modular-fairseq analyze speech`: when are the mechanisms of TIM layers active? (Figure 3)

In a layer with a competition, c [frames, mechanisms] are the activations of the mechanisms. The analysis has
for each layer:

    entropy       the mean entropy of c over frames, and its 5th and 95th percentiles, as shares of ln n, the
                  entropy of equally active mechanisms
    correlation   Pearson's correlation over frames of the c of each mechanism with "this frame has speech"
    AUC           the area under the ROC curve: the probability that a frame with speech has a higher c than a
                  frame without of the same recording, where equal ones count half, averaged over recordings;
                  .5 says that c tells nothing
    layers        Pearson's correlation over frames between the c of two layers, averaged over mechanisms

A control is what the loudness tells: the log energy of the noisy frames, less its mean over the recording. It
is averaged over some frames, of which at most 2 are ahead, as the model hears these, too. A gate that
saturates may have a higher correlation than the loudness that opens it. The AUC is the same for every
increasing function of this loudness, which may be another one in each recording. A mechanism with a higher
AUC knows more than this loudness. That may still be loudness, of some frequencies or of other frames.

A frame has speech if its energy in the clean recording is at most 40 dB below the loudest frame. (STOI has
this range, too.) Which of the mechanisms learns the speech is chance. Their names can be fixed with one part
of the data, and judged with another.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean

import torch
from fairseq.tasks import FairseqTask
from scipy.stats import rankdata
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
from .model import LOOK_AHEAD
from .training import SpeechEnhancement

RANGE = 40  # dB from the loudest frame to the most silent one that still counts as speech
AVERAGED = 1, 3, 5, 9, 15  # numbers of frames over which the loudness is averaged
SHOWN = 4  # recordings in the report
LONGEST = 250  # frames of them


@dataclass
class Speech(Report):
    """The result of the analysis.

    Attributes:
        about: what the table shows, for the report.
        table: a row for each layer, with its entropy, and each mechanism's correlation and AUC.
        layers: a row for each layer, with its correlation with every layer.
        loudness: a row for each number of frames, with the correlation and AUC of their loudness, a control.
        frames: the number of frames.
        share: the share of frames that have speech.
        timelines: some recordings with the activations of the first mechanism of each layer.
    """

    about: str
    table: list[dict]
    layers: list[dict]
    loudness: list[dict]
    frames: int
    share: float
    timelines: list[Timeline]

    def text(self) -> str:
        rows = self.table, self.loudness, self.layers
        tables = [tabulate(each, "keys", "plain", floatfmt=".3f") for each in rows]
        return "\n\n".join([self.about, *tables])

    def tables(self) -> dict[str, list[dict]]:
        return {"speech": self.table, "speech-loudness": self.loudness, "speech-layers": self.layers}


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
        self.loudness: list[Tensor] = []  # of each recording, as all of these
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
            told = {
                f"c{m + 1}": _told([each[:, m] for each in values], self.speech) for m in range(c.size(1))
            }
            by_measure = {
                f"{measure} {m}": told[m][measure] for measure in ("correlation", "AUC") for m in told
            }
            rows.append(
                {"layer": self.layers[name], "entropy": float(entropy.mean()), **percentiles, **by_measure}
            )
        between = Correlation()
        between.add(torch.stack([torch.cat(values) for values in self.activations.values()]))
        layers = [
            {"layer": name, **dict(zip(self.layers.values(), row, strict=True))}
            for name, row in zip(self.layers.values(), between.matrix(), strict=True)
        ]
        loudness = [
            {"frames": n, **_told([averaged(each, n) for each in self.loudness], self.speech)}
            for n in AVERAGED
        ]
        share = float(speech.mean())
        about = (
            f"{len(speech):,} frames, of which {share:.0%} have speech. The entropy of the competition is 1 "
            "if all mechanisms are equally active, and the percentiles are over frames. The correlation is "
            'between the activation of a mechanism and "this frame has speech". The AUC is the probability '
            "that a frame with speech activates the mechanism more than a frame without of the same "
            "recording. For comparison, the second table has the same for the loudness of the noisy "
            "recordings, averaged over frames."
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


def averaged(x: Tensor, frames: int) -> Tensor:
    """Return the means of a series [T] over a number of frames, of which at most LOOK_AHEAD are ahead. At the
    ends of the series there are fewer frames.
    """
    ahead = min(frames // 2, LOOK_AHEAD) + 1
    sums = torch.cat([x.new_zeros(1), x.cumsum(0)])
    last = (torch.arange(len(x)) + ahead).clamp(max=len(x))
    first = (torch.arange(len(x)) + ahead - frames).clamp(min=0)
    return (sums[last] - sums[first]) / (last - first)


def _told(x: list[Tensor], speech: list[Tensor]) -> dict[str, float | None]:
    """Return what series of some recordings tell about which frames have speech, by the name of the measure.

    Args:
        x: the series of each recording [T].
        speech: which frames of each recording have speech, bool [T].
    """
    areas = [found for pair in zip(x, speech, strict=True) if (found := area(*pair)) is not None]
    return {
        "correlation": correlation(torch.cat(x).double(), torch.cat(speech).double()),
        "AUC": fmean(areas) if areas else None,
    }


def area(x: Tensor, speech: Tensor) -> float | None:
    """Return the area under the ROC curve: the share of pairs of a frame with speech and one without in which
    the former has the higher x. Equal ones count half. None if all frames have speech, or none has.

    Args:
        x: a series [N].
        speech: which frames have speech, bool [N].
    """
    there = speech.numpy()
    pairs = there.sum() * (~there).sum()
    if not pairs:
        return None
    lowest = there.sum() * (there.sum() + 1) / 2  # the sum of ranks if no pair counts
    return float((rankdata(x.numpy())[there].sum() - lowest) / pairs)


def correlation(x: Tensor, y: Tensor) -> float | None:
    """Return Pearson's correlation of two series [N], or None if one of them never changes."""
    if not (x.std() > 0 and y.std() > 0):
        return None
    return float(torch.corrcoef(torch.stack([x, y]))[0, 1])


ANALYSES["speech"] = SpeechOfMechanisms
