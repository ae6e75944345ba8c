"""What the gates of a mixture of attentive experts do on a data set (MAE, section 5.1 and appendix C).

For every attention module: the entropy of its gate in nats (ln E is uniform), and for every expert the share of instances whose
largest gate is that expert's. Instances are sentences where a gate sees a whole sentence, and positions where it sees a prefix or window.
"""

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from fairseq import checkpoint_utils, utils
from torch import nn

from modular_fairseq.errors import UsageError
from modular_fairseq.models.mixture import mixtures
from modular_fairseq.modules.mixture import RARE, GateStatistics, entropy_and_shares
from modular_fairseq.training.checkpoints import load_checkpoint


@dataclass
class GateReport:
    """One attention module: mean entropy in nats, and a share per expert."""

    module: str
    entropy: float
    shares: list[float]


def gate_reports(model: nn.Module, batches: Iterator[dict]) -> list[GateReport]:
    """Run the model in evaluation mode, teacher-forced, on batches with a `net_input`.

    Raises:
        UsageError: the model has no gates.
    """
    gated = mixtures(model)
    if not gated:
        raise UsageError("the model has no learned gates to look at; it needs --attention-type mae --mae-gating learned")
    for mixture in gated.values():
        mixture.statistics = GateStatistics()
    model.eval()
    with torch.no_grad():
        for batch in batches:
            model(**batch["net_input"])
    reports = []
    for name, mixture in gated.items():
        entropy, shares = entropy_and_shares(mixture.statistics.take().double())
        reports.append(GateReport(name, entropy, shares.tolist()))
        mixture.statistics = None
    return reports


def table(reports: list[GateReport]) -> str:
    """The reports as text, a row a module, and a summary."""
    width = max(len(report.module) for report in reports)
    lines = [f"{'module':<{width}}  entropy  largest gate: % of instances at each expert"]
    for report in reports:
        lines.append(f"{report.module:<{width}}  {report.entropy:7.3f}  " + " ".join(f"{100 * share:5.1f}" for share in report.shares))
    shares = [share for report in reports for share in report.shares]
    mean = sum(report.entropy for report in reports) / len(reports)
    uniform = sum(math.log(len(report.shares)) for report in reports) / len(reports)
    rare = sum(share < RARE for share in shares)
    lines.append(
        f"mean gate entropy {mean:.3f} nats ({mean / uniform:.3f} of uniform, {uniform:.3f}); "
        f"shares {100 * min(shares):.1f} to {100 * max(shares):.1f} %, {rare} of {len(shares)} experts under {100 * RARE:.0f} %"
    )
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=["gates"], help="gates: entropy and expert shares of a mixture of attentive experts")
    parser.add_argument("data", help="binarized data, as for fairseq-generate")
    parser.add_argument("--path", required=True, help="checkpoint")
    parser.add_argument("--gen-subset", default="valid", help="which part of the data (default: valid)")
    parser.add_argument("--max-tokens", type=int, default=4000, help="tokens in a batch")
    parser.add_argument("--json", type=Path, help="write the numbers to this file as well")


def run(args: argparse.Namespace) -> None:
    if not any(Path(args.data).glob("dict.*txt")):
        raise UsageError(f"{args.data} has no dictionary; give the folder that fairseq-preprocess wrote")
    load_checkpoint(args.path)  # for its sentences about files that cannot be read
    models, _, task = checkpoint_utils.load_model_ensemble_and_task([args.path], arg_overrides={"data": args.data})
    try:
        task.load_dataset(args.gen_subset)
    except FileNotFoundError as error:
        raise UsageError(f"{error}: give the folder that fairseq-preprocess wrote, and one of its parts as --gen-subset") from None
    model = models[0]
    if torch.cuda.is_available():
        model.cuda()
    batches = task.get_batch_iterator(
        task.dataset(args.gen_subset),
        max_tokens=args.max_tokens,
        max_positions=utils.resolve_max_positions(task.max_positions(), model.max_positions()),
        ignore_invalid_inputs=True,
    ).next_epoch_itr(shuffle=False)
    moved = (utils.move_to_cuda(batch) if torch.cuda.is_available() else batch for batch in batches)
    reports = gate_reports(model, moved)
    print(table(reports))
    if args.json:
        try:
            args.json.write_text(json.dumps([asdict(report) for report in reports], indent=1))
        except OSError as error:
            raise UsageError(f"--json {args.json} cannot be written ({error.strerror})") from None
