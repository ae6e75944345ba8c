"""Draw docs/mechanisms/dma-redundancy.svg from dma-redundancy.csv beside it: redundancy against perplexity.

python scripts/redundancy_figure.py
"""

import csv
from collections import defaultdict
from pathlib import Path
from statistics import mean

import matplotlib.pyplot as plt

FOLDER = Path(__file__).resolve().parents[1] / "docs/mechanisms"
MEASURES = ("LR", "HR")
GOAL = 0.08  # how far below plain attention both should be, at a perplexity that is at most 1 % larger
STYLES = [(color, marker) for marker in "os^D" for color in plt.rcParams["axes.prop_cycle"].by_key()["color"]]

runs: dict[str, dict[str, list[dict[str, float]]]] = defaultdict(lambda: defaultdict(list))
with open(FOLDER / "dma-redundancy.csv", encoding="utf-8", newline="") as file:
    for row in csv.DictReader(file):
        numbers = {measure: float(row[f"{measure}_divergence_encoder"]) for measure in MEASURES}
        numbers["perplexity"] = float(row["perplexity"])
        runs[row["size"]][row["model"]].append(numbers)
names = list(dict.fromkeys(name for models in runs.values() for name in models))
# So that the same numbers give the same file, with text instead of outlines of letters.
plt.rcParams |= {"svg.hashsalt": "dma-redundancy", "svg.fonttype": "none"}
figure, panels = plt.subplots(len(runs), 2, figsize=(9, 3.4 * len(runs)), squeeze=False, layout="constrained")
for line, (size, models) in zip(panels, runs.items(), strict=True):
    plain = {key: mean(run[key] for run in models["plain"]) for key in ("perplexity", *MEASURES)}
    for panel, measure in zip(line, MEASURES, strict=True):
        panel.axhline(plain[measure] - GOAL, color="grey", linestyle=":", linewidth=1)
        panel.axvline(1, color="grey", linestyle=":", linewidth=1)
        for name, seeds in models.items():
            x = [100 * (run["perplexity"] / plain["perplexity"] - 1) for run in seeds]
            color, marker = STYLES[names.index(name)]
            panel.scatter(x, [run[measure] for run in seeds], s=22, color=color, marker=marker, label=name)
        panel.set(title=f"{size}: {measure}", xlabel="validation perplexity above plain attention (%)")
        panel.set_ylabel(f"{measure} (divergence, encoder)")
    line[1].legend(fontsize=6, loc="center left", bbox_to_anchor=(1, 0.5))
figure.savefig(FOLDER / "dma-redundancy.svg", metadata={"Date": None})
