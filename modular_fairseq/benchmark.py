"""Time training steps and beam search against fairseq's own Transformer of the same size.

    modular-fairseq bench
    modular-fairseq bench --rounds 15 --json times.json 'mae_transformer_iwslt_de_en --mae-dropped-heads 2' modular_transformer_tiny_cpu
    modular-fairseq bench --device cuda --sentences 128 'mae_transformer_wmt_en_de --fp16'

A MODEL is an arch of this package, which gives the size, and any options of fairseq-train, in quotes. Every model has --dropout 0.3
--share-decoder-input-output-embed, Adam and label smoothing 0.1 unless it says otherwise. Batches are random tokens: no data is needed.

Its peer, "stock", is fairseq's Transformer with the same options except ours, built twice. Every round times each job once, in random
order (a first round warms up and does not count). A ratio is a time over the mean of the two stock copies in the same round; shown is the
median [min..max] over rounds. Where the ratios of the two copies are more than 3 % apart, other programs decide and not the models: then
seconds are shown, but no ratios, and the exit status is 1. Times are process CPU time, summed over threads, or wall time on a GPU.

training step  fairseq's Trainer.train_step: forward, loss, backward, Adam. For a model whose gates learn in G steps instead:
F step         the training step in an epoch without G steps
G step         what comes before each F step in an epoch with G steps; its ratio is to stock's training step
BCD average    F step + G step / --mae-gate-interval
beam search    fairseq's SequenceGenerator, random weights; sentences end after --steps and not before, so that all do the same work
"""

import argparse
import json
import logging
import math
import os
import platform
import random
import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib.metadata import distributions
from typing import Any, NoReturn

import torch
from fairseq import options, utils
from fairseq.data import Dictionary
from fairseq.data.language_pair_dataset import collate
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.models.transformer import TransformerModelBase
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from fairseq.trainer import Trainer
from omegaconf import DictConfig, OmegaConf

from modular_fairseq.comparison import F_STEP, G_STEP, SEARCH, STOCK, TRAINING, Comparison, Times, evaluate, format_comparison
from modular_fairseq.errors import UsageError
from modular_fairseq.models.options import nested_config
from modular_fairseq.models.translation import ModularTransformer
from modular_fairseq.warnings_filters import quiet_known_warnings

MODELS = ["modular_transformer_iwslt_de_en", "mae_transformer_iwslt_de_en", "mae_transformer_iwslt_de_en --mae-gate-context source"]
COMMON = (
    "--dropout 0.3 --share-decoder-input-output-embed --optimizer adam --adam-betas (0.9,0.98) --lr 5e-4 --clip-norm 0 "
    "--criterion label_smoothed_cross_entropy --label-smoothing 0.1 --distributed-world-size 1"
)
COUNTS = {  # option: default, smallest value, help
    "rounds": (9, 1, "timed rounds"),
    "sentences": (34, 1, "sentence pairs in a training batch"),
    "length": (30, 2, "tokens of the longest sentences; the shortest have 4/5 of it"),
    "search-sentences": (16, 1, "sentences translated at a time"),
    "beam": (5, 1, "beam size"),
    "steps": (30, 1, "tokens of every translation"),
    "source-types": (8848, 10, "size of the source dictionary"),
    "target-types": (6632, 10, "size of the target dictionary"),
    "threads": (None, 1, "threads of torch; default 1, with a GPU as torch decides"),
}
Job = Callable[[], Any]
Jobs = dict[tuple[str, str], Job]  # by (model, work)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL", help=f"default: {', '.join(map(repr, MODELS))}")
    for name, (default, _, text) in COUNTS.items():
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{text}; default {default}" if default else text)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="default cpu")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of weights, batches and the order of jobs; default 1")
    parser.add_argument("--json", metavar="FILE", help="write settings, versions, all times and the ratios that are reported")


def run(args: argparse.Namespace) -> None:
    quiet_known_warnings()
    logging.disable(logging.INFO)  # what trainers and models say when they are built
    check_arguments(args)
    if args.threads or args.device == "cpu":
        torch.set_num_threads(args.threads or 1)
    task = random_task(args.source_types, args.target_types)
    configs = {model: parse_model(model, task, args) for model in dict.fromkeys(args.models)}
    versions = {name: next((d.version for d in distributions(name=name)), None) for name in ("torch", "fairseq-fixed", "modular_fairseq")}
    report = {"device": device_name(args.device), "threads": torch.get_num_threads(), "versions": versions, "settings": vars(args)}
    print(format_header(report), flush=True)
    comparisons = []
    for group in group_by_stock(configs):
        comparisons.append(compare(group, task, args))
        print(f"\n{format_comparison(comparisons[-1])}", flush=True)
    if args.json:
        with open(args.json, "w") as file:
            json.dump({**report, "comparisons": [asdict(comparison) for comparison in comparisons]}, file, indent=1)
    refusals = [refusal for comparison in comparisons for refusal in comparison.refusals]
    if refusals:
        raise UsageError(f"{'; '.join(refusals)}; close other programs or raise --rounds")


def check_arguments(args: argparse.Namespace) -> None:
    for name, (_, smallest, _) in COUNTS.items():
        value = getattr(args, name.replace("-", "_"))
        if value is not None and value < smallest:
            raise UsageError(f"--{name} {value}: must be at least {smallest}")
    if 2 * args.beam >= args.target_types:
        raise UsageError(f"--beam {args.beam}: must be less than half of --target-types {args.target_types}")
    if args.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch finds no GPU; use --device cpu, or install a torch built for this GPU")
    if args.json and (os.path.isdir(args.json) or not os.path.isdir(os.path.dirname(os.path.abspath(args.json)))):
        raise UsageError(f"--json {args.json}: is a folder or in a folder that does not exist; give a file in one that does")


def parse_model(model: str, task: TranslationTask, args: argparse.Namespace) -> DictConfig:
    """The configuration that fairseq-train makes of "ARCH --option value ...", after building it once to see that it can be built.

    Raises:
        UsageError: no such arch, or fairseq's parser or the model refuses an option.
    """

    def refuse(message: str) -> NoReturn:
        raise UsageError(f"'{model}': {message}")

    archs = sorted(arch for arch, kind in ARCH_MODEL_REGISTRY.items() if issubclass(kind, ModularTransformer))
    arch, *flags = model.split() or [""]
    if arch not in archs:
        refuse(f"{arch or 'nothing'} is not an arch that can be timed; use one of {', '.join(archs)}")
    parser = options.get_training_parser()
    parser.error = refuse
    namespace = options.parse_args_and_arch(parser, ["no-data", *COMMON.split(), "--seed", str(args.seed), *flags, "--arch", arch])
    namespace.cpu = args.device == "cpu"
    cfg = convert_namespace_to_omegaconf(namespace)
    if max(args.length, args.steps) > min(cfg.model.max_source_positions, cfg.model.max_target_positions):
        refuse("--length or --steps is more than its --max-source-positions or --max-target-positions")
    # The last of `steps` tokens is </s>, and no other can be.
    cfg.generation.beam, cfg.generation.min_len, cfg.generation.max_len_b = args.beam, args.steps - 1, args.steps - 1
    try:
        build(model, cfg, task)
    except (ValueError, AssertionError) as error:
        refuse(str(error))
    return cfg


def group_by_stock(configs: dict[str, DictConfig]) -> list[dict[str, DictConfig]]:
    """The models that share their stock: those with the same options of fairseq's, for the model and for its training."""
    groups: dict[str, dict[str, DictConfig]] = {}
    for model, cfg in configs.items():
        training = {name: value for name, value in OmegaConf.to_container(cfg).items() if name not in ("model", "task")}
        groups.setdefault(repr((asdict(nested_config(cfg.model)), training)), {})[model] = cfg
    return list(groups.values())


def random_task(source_types: int, target_types: int) -> TranslationTask:
    """A translation task without data; dictionary sizes include the four special symbols."""
    source, target = Dictionary(), Dictionary()
    for words, types in ((source, source_types), (target, target_types)):
        for i in range(types - len(words)):
            words.add_symbol(f"w{i}")
    return TranslationTask(TranslationConfig(), source, target)


def random_batch(task: TranslationTask, sentences: int, length: int, seed: int) -> dict[str, Any]:
    """Pairs of sentences of 4/5 `length` to `length` tokens, sorted and padded as fairseq does it; one has `length` on both sides."""
    generator = torch.Generator().manual_seed(seed)

    def sentence(words: Dictionary, shortest: int) -> torch.Tensor:
        tokens = int(torch.randint(shortest, length + 1, (), generator=generator))
        return torch.cat([torch.randint(words.nspecial, len(words), (tokens - 1,), generator=generator), torch.tensor([words.eos()])])

    shortest = [length] + [math.ceil(0.8 * length)] * (sentences - 1)
    pairs = [{"id": i, "source": sentence(task.src_dict, n), "target": sentence(task.tgt_dict, n)} for i, n in enumerate(shortest)]
    return collate(pairs, task.src_dict.pad(), task.src_dict.eos())


def build(model: str, cfg: DictConfig, task: TranslationTask) -> TransformerModelBase:
    """A model of `cfg`, or fairseq's if `model` is one of `STOCK`; the same seed gives the same weights."""
    utils.set_torch_seed(cfg.common.seed)
    return TransformerModelBase.build_model(nested_config(cfg.model), task) if model in STOCK else task.build_model(cfg.model)


def training_jobs(model: str, cfg: DictConfig, task: TranslationTask, batch: dict) -> tuple[Jobs, int | None]:
    """The training step; or F step, G step, and the number of epochs of which one has G steps."""
    built = build(model, cfg, task)
    gates = getattr(built, "gate_training", None)
    alternates = gates is not None and not gates.gates_only
    if alternates:
        built.gate_training = replace(gates, interval=sys.maxsize)  # no epoch has G steps: they are timed by themselves
    trainer = Trainer(cfg, task, built, task.build_criterion(cfg.criterion))
    trainer.begin_epoch(1)
    if not alternates:
        return {(model, TRAINING): lambda: trainer.train_step([batch])}, None
    return {(model, F_STEP): lambda: trainer.train_step([batch]), (model, G_STEP): lambda: trainer.bcd_of().g_step([batch])}, gates.interval


def search_job(model: str, cfg: DictConfig, task: TranslationTask, batch: dict, weights: dict) -> tuple[Job, bool]:
    """Beam search as fairseq-generate does it, with `weights` if they fit the model, and whether they do."""
    built, fits = build(model, cfg, task), True
    try:
        built.load_state_dict(dict(weights))
    except (UsageError, RuntimeError):
        fits = False
    if cfg.common.fp16:
        built.half()
    if not cfg.common.cpu:
        built, batch = built.cuda(), utils.move_to_cuda(batch)
    built.prepare_for_inference_(cfg)
    generator = task.build_generator([built], cfg.generation)
    return lambda: task.inference_step(generator, [built], batch), fits


def count_equal(hypotheses: list[list[dict]], reference: list[list[dict]]) -> tuple[int, int]:
    """How many hypotheses have the tokens and, up to 0.1 %, the score of the one in the same place of `reference`; and of how many."""
    pairs = [pair for ours, theirs in zip(hypotheses, reference, strict=True) for pair in zip(ours, theirs, strict=True)]
    same = [torch.equal(a["tokens"], b["tokens"]) and math.isclose(a["score"], b["score"], rel_tol=1e-3) for a, b in pairs]
    return sum(same), len(same)


def compare(group: dict[str, DictConfig], task: TranslationTask, args: argparse.Namespace) -> Comparison:
    """Times models that share their stock."""
    cfg = next(iter(group.values()))
    weights = build(STOCK[0], cfg, task).state_dict()
    pairs = random_batch(task, args.sentences, args.length, args.seed)
    sources = random_batch(task, args.search_sentences, args.length, args.seed + 1)
    jobs, intervals, equal = {}, {}, {}
    for model, own_cfg in {**dict.fromkeys(STOCK, cfg), **group}.items():
        training, intervals[model] = training_jobs(model, own_cfg, task, pairs)
        search, fits = search_job(model, own_cfg, task, sources, weights)
        jobs |= {**training, (model, SEARCH): search}
        if model == STOCK[0]:
            reference = search()
        elif model in group:
            equal[model] = count_equal(search(), reference) if fits else None
    stock = format_size(nested_config(cfg.model))
    return evaluate(stock, equal, measure(jobs, args, stock), intervals)


def measure(jobs: Jobs, args: argparse.Namespace, title: str) -> Times:
    """Runs every job once a round, each round in another order; the first of `args.rounds` + 1 does not count."""
    order = random.Random(args.seed)
    times: Times = {key: [] for key in jobs}
    for number in range(args.rounds + 1):
        print(f"{title}: {f'round {number} of {args.rounds}' if number else 'warming up'}", file=sys.stderr, flush=True)
        for key in order.sample(list(jobs), len(jobs)):
            start = clock(args.device)
            jobs[key]()
            if number:
                times[key].append(clock(args.device) - start)
    return times


def clock(device: str) -> float:
    """Seconds: CPU time of all threads of this process, or the time when the GPU has done all that it was given."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def format_size(config: Any) -> str:
    names = {"width": "embed_dim", "feed-forward": "ffn_embed_dim", "heads": "attention_heads", "layers": "layers"}
    sizes = [f"{name} {getattr(config.encoder, key)}+{getattr(config.decoder, key)}" for name, key in names.items()]
    return f"fairseq's Transformer ({', '.join(sizes)})"


def format_header(report: dict[str, Any]) -> str:
    settings, versions = report["settings"], ", ".join(f"{name} {version}" for name, version in report["versions"].items() if version)
    kind = "wall time" if settings["device"] == "cuda" else "process CPU time"
    sizes = ", ".join(f"--{name} {settings[name.replace('-', '_')]}" for name in COUNTS if name != "threads")
    return f"{report['device']}, {report['threads']} thread(s), {versions}; seconds of {kind}, ratios to stock\n{sizes}"


def device_name(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    names = []
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as file:
            names = re.findall(r"^model name\s*: (.+)", file.read(), re.MULTILINE)
    return names[0] if names else platform.machine()
