#!/usr/bin/env python
"""Show what the statistics of a batch tell the gates of a trained MAE that translates.

    python scripts/batch_statistics.py DATA --path CHECKPOINT

It prints the loss on the validation data in bits: of the ends of sentences, of all other target tokens, and
of both. Gates are normalised by the running statistics, as in inference, or by the statistics of the batch,
as --mae-gate-norm batch does in training. Batches have sentences of one target length (as nearly as the data
allow), of one source length (fairseq's order, which in large training data has one target length, too), or
random ones. If batches of one length have a lower loss than random ones, the model uses the length of its
batch, which inference does not know (docs/mechanisms/mae.md, "Statistics of the batch").
"""

import argparse
import math
import sys
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from fairseq.data import LanguagePairDataset
from fairseq.models import BaseFairseqModel
from fairseq.utils import move_to_cuda
from tabulate import tabulate

from modular_fairseq.loading import add_model_and_data, load
from modular_fairseq.modules.gates import GateNorm
from modular_fairseq_cli.errors import UsageError


def orders(dataset: LanguagePairDataset) -> Mapping[str, Sequence[int]]:
    """Return the orders of sentences from which batches are made."""
    shuffled = np.random.RandomState(1).permutation(len(dataset))
    return {
        "target length": sorted(shuffled, key=dataset.tgt_sizes.__getitem__),
        "source length": dataset.ordered_indices(),
        "random": shuffled,
    }


def use_statistics(norms: Sequence[GateNorm], of_batch: bool) -> None:
    """Let norms use the statistics of batches or the running ones, which stay as they are."""
    for norm in norms:
        norm.lagged = False
        norm.train(of_batch)


@torch.no_grad()
def losses(
    model: BaseFairseqModel, dataset: LanguagePairDataset, sentences: Sequence[int], batch_size: int
) -> list[float]:
    """Return the mean loss of ends of sentences, of other target tokens and of both, in bits."""
    sums, counts = np.zeros(2), np.zeros(2)
    for first in range(0, len(sentences), batch_size):
        batch = dataset.collater([dataset[i] for i in sentences[first : first + batch_size]])
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
    parser.add_argument(
        "--batch-size", type=int, default=58, help="sentences in a batch (default: 58, about 1,024 tokens)"
    )
    parser.add_argument(
        "--gates", choices=("all", "encoder", "decoder"), default="all", help="the gates that use the batch"
    )
    args = parser.parse_args(words)
    if args.batch_size < 2:
        raise UsageError(f"--batch-size {args.batch_size}: statistics need at least 2 sentences")
    model, task, _ = load(args.path, args.data, args.gen_subset)
    dataset = task.dataset(args.gen_subset)
    if not isinstance(dataset, LanguagePairDataset):
        raise UsageError(f"{args.path} does not translate; give a checkpoint of a translation model")
    modules = {name: module for name, module in model.named_modules() if isinstance(module, GateNorm)}
    if not modules:
        raise UsageError(
            f"{args.path} has no gates with a BatchNorm; give a checkpoint of a MAE that was trained with "
            "--mae-gate-norm lagged or batch"
        )
    norms = [norm for name, norm in modules.items() if args.gates in ("all", name.partition(".")[0])]
    rows = []
    for order, sentences in orders(dataset).items():
        for of_batch in (False, True):
            use_statistics(norms, of_batch)
            found = losses(model, dataset, sentences, args.batch_size)
            rows.append([order, "of the batch" if of_batch else "running", *found])
    head = ["batches by", "statistics", "ends of sentences", "other tokens", "both"]
    print(tabulate(rows, head, floatfmt=".4f"))


if __name__ == "__main__":
    try:
        main()
    except UsageError as error:
        sys.exit(f"batch_statistics.py: error: {error}")
