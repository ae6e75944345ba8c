"""Draw docs/mechanisms/gate-steps.svg from gate-steps.csv beside it: gate entropies during training.

python scripts/gate_steps_figure.py
"""

import csv
import math
from collections import defaultdict
from pathlib import Path

import matplotlib.pyplot as plt

FOLDER = Path(__file__).resolve().parents[1] / "docs/mechanisms"
curves: dict[str, dict[str, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
with open(FOLDER / "gate-steps.csv", encoding="utf-8", newline="") as file:
    for row in csv.DictReader(file):
        curves[row["task"]][row["gates"]].append((int(row["update"]), float(row["entropy"])))
# So that the same numbers give the same file, with text instead of outlines of letters.
plt.rcParams |= {"svg.hashsalt": "gate-steps", "svg.fonttype": "none"}
figure, panels = plt.subplots(1, len(curves), figsize=(9, 3.2), sharey=True, layout="constrained")
for panel, (task, lines) in zip(panels, curves.items(), strict=True):
    panel.axhline(math.log(8), color="grey", linestyle=":", linewidth=1)
    for gates, points in lines.items():
        panel.plot(*zip(*points, strict=True), label=gates)
    panel.set(title=task, xlabel="update")
    panel.legend(fontsize=7)
panels[0].set_ylabel("gate entropy (nats)")
figure.savefig(FOLDER / "gate-steps.svg", metadata={"Date": None})
