#!/usr/bin/env python
"""Show what the statistics of a batch tell the gates of a trained MAE that translates.

    python scripts/batch_statistics.py DATA --path CHECKPOINT

It prints the loss on the validation data in bits: of the ends of sentences, of all other target tokens, and
of both. Gates are normalised by the running statistics, as in inference, or by the statistics of the batch,
as --mae-gate-norm batch does in training. A batch has sentences of about the same length, as fairseq makes
them, or random ones. If the batches of one length have a lower loss than the random ones, the model uses the
length of its batch, which inference does not know (docs/mechanisms/mae.md, "Statistics of the batch").
"""

import argparse
import math
import sys
from collections.abc import Sequence

import numpy as np
import torch
from fairseq.data import LanguagePairDataset
from fairseq.models import BaseFairseqModel
from fairseq.utils import move_to_cuda
from tabulate import tabulate

from modular_fairseq.loading import add_model_and_data, load
from modular_fairseq.modules.gates import GateNorm
from modular_fairseq_cli.errors import UsageError

SENTENCES = 58  # of Multi30k in an average batch of --max-tokens 1024


def table(model: BaseFairseqModel, dataset: LanguagePairDataset, norms: Sequence[GateNorm]) -> str:
    """Return the losses for both orders of sentences and both kinds of statistics, as text."""
    shuffled = np.random.RandomState(1).permutation(len(dataset))
    orders = {"of one length": sorted(shuffled, key=dataset.tgt_sizes.__getitem__), "random": shuffled}
    rows = []
    for order, sentences in orders.items():
        for statistics in ("running", "of the batch"):
            for norm in norms:
                norm.lagged, norm.momentum = False, 0.0  # the running statistics stay as they are
                norm.train(statistics != "running")
            rows.append([order, statistics, *losses(model, dataset, sentences)])
    head = ["batches", "statistics", "ends of sentences", "other tokens", "both"]
    return tabulate(rows, head, floatfmt=".4f")


@torch.no_grad()
def losses(model: BaseFairseqModel, dataset: LanguagePairDataset, sentences: Sequence[int]) -> list[float]:
    """Return the mean loss of ends of sentences, of other target tokens and of both, in bits."""
    sums, counts = np.zeros(2), np.zeros(2)
    for first in range(0, len(sentences), SENTENCES):
        batch = dataset.collater([dataset[i] for i in sentences[first : first + SENTENCES]])
        batch = move_to_cuda(batch) if torch.cuda.is_available() else batch
        target = batch["target"]
        scores = model.get_normalized_probs(model(**batch["net_input"]), log_probs=True)
        bits = -scores.gather(2, target.unsqueeze(2)).squeeze(2) / math.log(2)
        ends = target == dataset.tgt_dict.eos()
        for k, chosen in enumerate((ends, ~ends & (target != dataset.tgt_dict.pad()))):
            sums[k] += bits[chosen].sum().item()
            counts[k] += chosen.sum().item()
    return [*(sums / counts).tolist(), sums.sum() / counts.sum()]


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_model_and_data(parser)
    args = parser.parse_args(words)
    loaded = load(args.path, args.data, args.gen_subset)
    dataset = loaded.task.dataset(args.gen_subset)
    norms = [module for module in loaded.model.modules() if isinstance(module, GateNorm)]
    if not norms or not isinstance(dataset, LanguagePairDataset):
        raise UsageError(
            f"{args.path} has no gates with a BatchNorm, or does not translate; give a checkpoint of a MAE "
            "that was trained with --mae-gate-norm lagged or batch"
        )
    print(table(loaded.model, dataset, norms))


if __name__ == "__main__":
    try:
        main()
    except UsageError as error:
        sys.exit(f"batch_statistics.py: error: {error}")
