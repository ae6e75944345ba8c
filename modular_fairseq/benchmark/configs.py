"""The configurations of the models that are compared, and of the stock Transformers beside them."""

import argparse
from dataclasses import fields
from typing import NamedTuple, NoReturn

from fairseq.criterions import CRITERION_DATACLASS_REGISTRY
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import FairseqTask
from omegaconf import DictConfig, OmegaConf

from modular_fairseq.benchmark.comparison import STOCK
from modular_fairseq.benchmark.jobs import build
from modular_fairseq.benchmark.tasks import kind_of
from modular_fairseq.models.architectures import PEERS
from modular_fairseq.models.registry import CRITERIA
from modular_fairseq.training.command_line import parse
from modular_fairseq_cli.errors import UsageError

COMMON = (
    "--dropout 0.3 --optimizer torch_adam --adam-betas (0.9,0.98) --lr 5e-4 --clip-norm 0 "
    "--distributed-world-size 1"
)


class Configs(NamedTuple):
    """The configurations of a model and of the stock Transformer with which it is compared."""

    own: DictConfig
    stock: DictConfig


def parse_model(model: str, task: FairseqTask, args: argparse.Namespace) -> Configs:
    """Return the configurations of a model and of the stock Transformer with which it is compared.

    They are those that fairseq-train makes from the options. Both models are built once, so that options with
    which they cannot be built are refused before anything is timed.

    Args:
        model: an arch and options of fairseq-train, as in "ARCH --option value ...".
        args: the options of `modular-fairseq bench`.

    Raises:
        UsageError: there is no such arch, or fairseq's parser or one of the models refuses an option.
    """

    kind = kind_of(task)

    def refuse(message: str) -> NoReturn:
        raise UsageError(f"'{model}': {message}")

    def configure(arch: str) -> DictConfig:
        words = [*COMMON.split(), *kind.options.split(), "--seed", str(args.seed), *flags, "--arch", arch]
        _, namespace = parse(words, refuse)
        if not any(getattr(namespace, name, None) for name in ("adaptive_input", "adaptive_softmax_cutoff")):
            _, namespace = parse([*kind.sharing.split(), *words], refuse)
        namespace.cpu = args.device == "cpu"
        cfg = convert_namespace_to_omegaconf(namespace)
        cfg.generation.beam = args.beam
        set_steps(cfg, args.steps)
        return cfg

    def check(model: str, cfg: DictConfig, prefix: str = "") -> None:
        try:
            build(model, cfg, task)
        except (ValueError, AssertionError) as error:
            refuse(f"{prefix}{error}")

    archs = sorted(arch for arch, model in ARCH_MODEL_REGISTRY.items() if issubclass(model, kind.model))
    arch, *flags = model.split() or [""]
    if arch not in archs:
        refuse(f"a MODEL must begin with an arch that can be timed; use one of {', '.join(archs)}")
    own = configure(arch)
    if max(args.length, args.steps if kind.searches else 0) > kind.longest(own):
        refuse(
            "--length and --steps must not be larger than the --max-source-positions and "
            "--max-target-positions of the model, or the --tokens-per-sample of a language model, or the "
            "--max-positions of a masked one"
        )
    check(model, own)
    stock = configure(PEERS.get(arch, arch))
    if stock.optimizer._name == "torch_adam":
        stock.optimizer = OmegaConf.create({**stock.optimizer, "_name": "adam"})
    if stock.criterion._name in CRITERIA:
        name = kind.stock_criterion(stock)
        known = fields(CRITERION_DATACLASS_REGISTRY[name])
        fairseqs = {f.name: stock.criterion[f.name] for f in known if f.name in stock.criterion}
        if name == "adaptive_loss":  # it also has an option that ours does not have
            fairseqs["ddp_backend"] = stock.distributed_training.ddp_backend
        stock.criterion = OmegaConf.create({**fairseqs, "_name": name})
    if arch in PEERS:
        check(
            STOCK[0],
            stock,
            f"its stock, fairseq's Transformer in the size of {PEERS[arch]}, refuses the same options: ",
        )
    return Configs(own, stock)


def set_steps(cfg: DictConfig, steps: int) -> None:
    """Let every hypothesis of a search have `steps` tokens, of which the last one is </s> and no other is."""
    cfg.generation.min_len = cfg.generation.max_len_b = steps - 1
