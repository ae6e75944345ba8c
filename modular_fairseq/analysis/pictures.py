"""Analyse where in pictures the mechanisms of TIM layers are active.

This analysis is not part of `competition`, which speaks of tokens: its numbers need the size of pictures, and
its control needs no mechanism.

The paper is "Transformers with Competitive Ensembles of Independent Mechanisms", section 4.1. A language
model draws pictures of `modular-fairseq prepare-pixels` pixel by pixel. In a layer with a competition, c
[pixels, mechanisms] are the activations of the mechanisms at the position that predicts a pixel. The analysis
computes:

    maps      c at each place of a picture: the mean over pictures, and c in some single pictures (figures 1
              and 2)
    regions   in pictures of two sources, the mean of c in each region, and eta squared: the variance of c
              between regions, as a share of its whole variance over pixels (figure 2 shows such a "relative
              variance", without a formula). It is 1 if each mechanism is active in one region only, and 0 if
              the regions have the same means

Two controls tell how much of this any model shows, and one without mechanisms has the second one alone:

    brightness    eta squared of the brightness of the pixels, which a layer that only told dark from bright
                  pixels would have
    heads         in each layer, eta squared of the shares of the heads in what the self-attention writes: the
                  norm of a head's output, before the output projection, over the sum of all heads. The heads
                  are divided in two groups, whose shares sum to 1 like the c of two mechanisms, and the
                  division with the highest eta squared counts. So this control is generous
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.tasks import FairseqTask
from fairseq.tasks.language_modeling import LanguageModelingTask
from tabulate import tabulate
from torch import Tensor, nn

from modular_fairseq.analysis.attention_maps import AttentionMap, attention_modules
from modular_fairseq.analysis.competition import competitions
from modular_fairseq.analysis.one_pass import Analysis, Report
from modular_fairseq.analysis.places import in_order, place
from modular_fairseq.analysis.recording import pop, recorded
from modular_fairseq.analysis.regions import BetweenRegions
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.pixels.shape import Shape, read

SHOWN = 8  # number of pictures of which the report has maps


@dataclass
class LayerMaps:
    """The activation of the mechanisms in one layer.

    Attributes:
        module: name of the layer.
        layer: number of the layer, from 1.
        mean: for each mechanism, the mean of c at each pixel over pictures.
        single: for each of the first pictures, the same of this picture.
        regions: for each region, the mean of c over its pixels for each mechanism; empty without regions.
        eta_squared: variance between the regions / variance over pixels, summed over mechanisms; None without
            regions, or if c never changes.
    """

    module: str
    layer: int
    mean: list[list[float]]
    single: list[list[list[float]]]
    regions: dict[str, list[float]]
    eta_squared: float | None


@dataclass
class PicturesReport(Report):
    """The activation of the mechanisms in all layers, over pictures.

    Attributes:
        height, width: size of a picture.
        regions: the columns of each region: the first, and the one after the last.
        palette: the colours, each with one value or three, from 0 to 255.
        count: number of pictures.
        pictures: the first pictures, as numbers of colours in raster order.
        brightness: eta squared of the brightness of pixels; None without regions.
        heads: for each layer its "module", its number "layer", and the "eta_squared" of its heads, which is
            None without regions.
        layers: one entry for each layer with a competition.
    """

    height: int
    width: int
    regions: dict[str, tuple[int, int]]
    palette: list[list[int]]
    count: int
    pictures: list[list[int]]
    brightness: float | None
    heads: list[dict[str, Any]]
    layers: list[LayerMaps]

    def text(self) -> str:
        mechanisms = range(len(self.layers[0].mean) if self.layers else 0)
        headers = [
            "module",
            "eta squared",
            *(f"c{m + 1} {name}" for name in self.regions for m in mechanisms),
        ]
        rows = [
            [each.module, each.eta_squared, *(value for values in each.regions.values() for value in values)]
            for each in self.layers
        ]
        if not self.regions:
            maps = "maps alone (--out)" if self.layers else "no numbers of a model without mechanisms"
            return f"{self.count:,} pictures; they have no regions, so there are {maps}"
        control = "none" if self.brightness is None else f"{self.brightness:.3f}"
        heads = [[each["module"], each["eta_squared"]] for each in self.heads]
        tables = [
            f"{self.count:,} pictures; eta squared of the brightness: {control}",
            *([tabulate(rows, headers, floatfmt=".3f", tablefmt="plain")] if rows else []),
            tabulate(heads, ["control: heads", "eta squared"], floatfmt=".3f", tablefmt="plain"),
        ]
        return "\n".join(tables)

    def data(self) -> dict:
        """Return the report, with the maps rounded to four digits."""
        data = super().data()
        for layer in data["layers"]:
            layer["mean"] = _rounded(layer["mean"])
            layer["single"] = _rounded(layer["single"])
        return data

    def tables(self) -> dict[str, list[dict]]:
        rows = [
            {
                "module": each.module,
                "eta squared": each.eta_squared,
                **{
                    f"c{m + 1} {name}": c
                    for name, values in each.regions.items()
                    for m, c in enumerate(values)
                },
            }
            for each in self.layers
        ]
        return {"pictures": rows, "pictures-heads": self.heads}


def _rounded(values: Any) -> Any:
    """Return a number, or nested lists of numbers, rounded to four digits."""
    return [_rounded(each) for each in values] if isinstance(values, list) else round(values, 4)


class CompetitionInPictures(Analysis):
    """The analysis `pictures` (see the top of this file). It needs pictures.

    Attributes:
        parts: the competitions, keyed by the name of their layer; empty for a model without.
        attention: for each self-attention its output projection, which reads the outputs of the heads, and
            the number of heads.
    """

    summary = "activation of the mechanisms of TIM layers over pictures, and between their regions"
    needs_attention = True  # else fairseq's own attention does not call its output projection

    def __init__(self, model: nn.Module):
        self.parts = competitions(model)
        self.attention = {
            name: (module.out_proj, module.num_heads) for name, module in attention_modules(model).items()
        }

    @contextmanager
    def watching(self) -> Iterator[None]:
        projections = {name: projection for name, (projection, _) in self.attention.items()}
        with (
            recorded(self.parts) as self.outputs,
            recorded(projections, lambda module, args, output: args[0]) as self.of_heads,
        ):
            yield

    @classmethod
    def is_for(cls, task: FairseqTask) -> bool:
        return _shape_of(task) is not None

    def of_task(self, task: FairseqTask) -> None:
        shape = _shape_of(task)
        if shape is None:
            raise UsageError("the data has no pictures; prepare them by modular-fairseq prepare-pixels")
        self.shape, self.first_colour = shape, task.source_dictionary.nspecial
        region = _region_of_pixels(shape)
        self.maps = {name: Maps() for name in self.parts}
        self.regions = {name: BetweenRegions(region) for name in self.parts}
        self.heads = {name: BetweenRegions(region) for name in self.attention}
        self.brightness = BetweenRegions(region)
        self.pictures: list[list[int]] = []
        self.count = 0

    def see(self, batch: dict, maps: list[AttentionMap]) -> None:
        outputs = pop(self.outputs)
        pixels = self.shape.height * self.shape.width
        target = batch["target"]
        if target.size(1) != pixels + 1:
            raise UsageError(
                f"a block has {target.size(1):,} tokens and a picture {pixels:,} and </s>; train the model "
                f"with --sample-break-mode eos and --tokens-per-sample {pixels + 1}"
            )
        colours = (target[:, :pixels] - self.first_colour).cpu()
        kept = max(SHOWN - len(self.pictures), 0)
        self.pictures += colours[:kept].tolist()
        self.count += len(colours)
        palette = torch.tensor(self.shape.brightness(), dtype=torch.float64)
        self.brightness.add(palette[colours].unsqueeze(-1))
        for name, c in outputs.items():
            values = c.transpose(0, 1)[:, :pixels].double().cpu()  # T x B x n -> B x pixels x n
            self.maps[name].add(values, kept)
            self.regions[name].add(values)
        for name, written in pop(self.of_heads).items():  # T x B x C
            norms = written.unflatten(2, (self.attention[name][1], -1)).double().norm(dim=3)
            shares = norms / norms.sum(dim=2, keepdim=True)
            self.heads[name].add(shares.transpose(0, 1)[:, :pixels].cpu())

    def report(self) -> PicturesReport:
        layers = [
            LayerMaps(
                name,
                place(name, self.parts)[0],
                maps.mean().T.tolist(),
                [each.T.tolist() for each in maps.single],
                dict(zip(self.shape.regions, self.regions[name].means(), strict=True)),
                self.regions[name].eta_squared(),
            )
            for name, maps in self.maps.items()
        ]
        shape = self.shape
        return PicturesReport(
            shape.height,
            shape.width,
            shape.regions,
            shape.palette,
            self.count,
            self.pictures,
            self.brightness.eta_squared(),
            [
                {
                    "module": name,
                    "layer": place(name, self.attention)[0],
                    "eta_squared": shares.best_division(),
                }
                for name, shares in in_order(self.heads).items()
            ],
            layers,
        )


def _shape_of(task: FairseqTask) -> Shape | None:
    """Return the shape of the pictures that a language model draws, or None for another task or text."""
    return read(task.args.data) if isinstance(task, LanguageModelingTask) else None


def _region_of_pixels(shape: Shape) -> Tensor:
    """Return the number of the region of each pixel, int64 [pixels]; -1 outside of all regions."""
    columns = torch.full((shape.width,), -1)
    for number, (first, end) in enumerate(shape.regions.values()):
        columns[first:end] = number
    return columns.repeat(shape.height)


class Maps:
    """The sums of values at each pixel over pictures, and the values of single pictures."""

    def __init__(self) -> None:
        self.count = 0
        self.sum: Tensor | float = 0.0  # [pixels, n]
        self.single: list[Tensor] = []

    def add(self, values: Tensor, kept: int) -> None:
        """Add the values of a batch of pictures, and keep those of its first pictures.

        Args:
            values: float64 [B, pixels, n].
            kept: the number of pictures of the batch whose values are kept.
        """
        self.count += len(values)
        self.sum = self.sum + values.sum(0)
        self.single += list(values[:kept])

    def mean(self) -> Tensor:
        """Return the mean over pictures [pixels, n]."""
        return torch.as_tensor(self.sum / self.count)
