"""What `modular-fairseq bench` times (`command.py` is the command): models, batches of random tokens, and a
job for each kind of work.
"""

import argparse
import math
from collections.abc import Callable
from typing import Any

import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.data.language_pair_dataset import collate
from fairseq.models.transformer import TransformerModelBase
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from fairseq.trainer import Trainer
from omegaconf import DictConfig
from torch import Tensor, nn

from modular_fairseq.benchmark.comparison import F_STEP, G_STEP, LAYERS, SEARCH, STOCK, TRAINING
from modular_fairseq.models.options import nested_config
from modular_fairseq.training.bcd import bcd_of
from modular_fairseq_cli.errors import UsageError

Job = Callable[[], Any]
Jobs = dict[tuple[str, str], Job]  # by (model, work)


def random_task(source_types: int, target_types: int) -> TranslationTask:
    """A translation task without data; dictionary sizes include the four special symbols."""
    source, target = Dictionary(), Dictionary()
    for words, types in ((source, source_types), (target, target_types)):
        for i in range(types - len(words)):
            words.add_symbol(f"w{i}")
    return TranslationTask(TranslationConfig(), source, target)


def random_batch(task: TranslationTask, sentences: int, length: int, seed: int) -> dict[str, Any]:
    """Pairs of sentences of 4/5 `length` to `length` tokens, sorted and padded as fairseq does it; one has
    `length` on both sides.
    """
    generator = torch.Generator().manual_seed(seed)

    def sentence(words: Dictionary, shortest: int) -> torch.Tensor:
        tokens = int(torch.randint(shortest, length + 1, (), generator=generator))
        return torch.cat(
            [
                torch.randint(words.nspecial, len(words), (tokens - 1,), generator=generator),
                torch.tensor([words.eos()]),
            ]
        )

    shortest = [length] + [math.ceil(0.8 * length)] * (sentences - 1)
    pairs = [
        {"id": i, "source": sentence(task.src_dict, n), "target": sentence(task.tgt_dict, n)}
        for i, n in enumerate(shortest)
    ]
    return collate(pairs, task.src_dict.pad(), task.src_dict.eos())


def build(model: str, cfg: DictConfig, task: TranslationTask) -> TransformerModelBase:
    """A model of `cfg`, or fairseq's if `model` is one of `STOCK`; the same seed gives the same weights."""
    utils.set_torch_seed(cfg.common.seed)
    return (
        TransformerModelBase.build_model(nested_config(cfg.model), task)
        if model in STOCK
        else task.build_model(cfg.model)
    )


def count_parameters(model: str, cfg: DictConfig, task: TranslationTask) -> int:
    return sum(parameter.numel() for parameter in build(model, cfg, task).parameters())


def all_jobs(
    stock: DictConfig, models: dict[str, DictConfig], task: TranslationTask, args: argparse.Namespace
) -> tuple[Jobs, dict[str, int | None], dict[str, tuple[int, int] | None]]:
    """The jobs of stock's copies and of `models`; then by model, the interval of its G steps, and how many
    hypotheses are stock's when the weights are (`count_equal`)."""
    weights = build(STOCK[0], stock, task).state_dict()
    pairs = random_batch(task, args.sentences, args.length, args.seed)
    sources = random_batch(task, args.search_sentences, args.length, args.seed + 1)
    jobs, intervals, equal = {}, {}, {}
    for model, cfg in {**dict.fromkeys(STOCK, stock), **models}.items():
        training, intervals[model] = training_jobs(model, cfg, task, pairs)
        layers = {(model, LAYERS): layers_job(model, cfg, task, pairs)} if args.layers else {}
        search, fits = search_job(model, cfg, task, sources, weights)
        jobs |= {**training, **layers, (model, SEARCH): search}
        if model == STOCK[0]:
            reference = search()
        elif model in models:
            equal[model] = count_equal(search(), reference) if fits else None
    return jobs, intervals, equal


def training_jobs(model: str, cfg: DictConfig, task: TranslationTask, batch: dict) -> tuple[Jobs, int | None]:
    """Return the training step; or F step, G step, and the number of epochs of which one has G steps."""
    trainer = start_training(build(model, cfg, task), cfg, task)
    bcd = bcd_of(trainer)
    if bcd is None or not bcd.alternates:
        return {(model, TRAINING): lambda: trainer.train_step([batch])}, None
    bcd.paused = True  # no epoch has G steps: they are timed by themselves
    f_step, g_step = lambda: trainer.train_step([batch]), lambda: bcd.g_step([batch])
    return {(model, F_STEP): f_step, (model, G_STEP): g_step}, bcd.settings.interval


def start_training(model: TransformerModelBase, cfg: DictConfig, task: TranslationTask) -> Trainer:
    trainer = Trainer(cfg, task, model, task.build_criterion(cfg.criterion))
    trainer.begin_epoch(1)
    return trainer


class Given(nn.Module):
    """Stands for an embedding: the same vectors every time, with a gradient, so that the first layer's
    backward pass is whole.
    """

    def __init__(self, vectors: Tensor):
        super().__init__()
        self.vectors = nn.Parameter(vectors.detach())

    def forward(self, tokens: Tensor) -> Tensor:
        return self.vectors


def layers_job(model: str, cfg: DictConfig, task: TranslationTask, batch: dict) -> Job:
    """Forward and backward of all layers as in a training step (F step), without what comes before and after
    them: embedded tokens [B, T, C] are given, and the gradient of the decoder's output. It returns that
    output."""
    built = build(model, cfg, task)
    tokens = move(built, batch, cfg)["net_input"]
    start_training(built, cfg, task)  # as in an F step
    for stack, name in ((built.encoder, "src_tokens"), (built.decoder, "prev_output_tokens")):
        stack.embed_tokens = Given(stack.embed_tokens(tokens[name]))
        stack.embed_positions = stack.layernorm_embedding = None
        stack.dropout_module = nn.Identity()  # of embeddings: layers have their own

    def forward() -> Tensor:
        with torch.autocast("cuda", enabled=cfg.common.amp and not cfg.common.cpu):
            return built(**tokens, features_only=True)[0]

    gradient = torch.randn_like(forward())

    def run() -> Tensor:
        built.zero_grad(set_to_none=True)
        features = forward()
        features.backward(gradient)
        return features

    return run


def move(model: nn.Module, batch: dict, cfg: DictConfig) -> dict:
    """Gives `model` the precision and device of `cfg`, and returns the batch on that device."""
    if cfg.common.fp16:
        model.half()
    if cfg.common.cpu:
        return batch
    model.cuda()
    return utils.move_to_cuda(batch)


def search_job(
    model: str, cfg: DictConfig, task: TranslationTask, batch: dict, weights: dict
) -> tuple[Job, bool]:
    """Beam search as fairseq-generate does it, with `weights` if they fit the model, and whether they do."""
    built, fits = build(model, cfg, task), True
    try:
        built.load_state_dict(dict(weights))
    except (UsageError, RuntimeError):
        fits = False
    batch = move(built, batch, cfg)
    built.prepare_for_inference_(cfg)
    generator = task.build_generator([built], cfg.generation)
    return lambda: task.inference_step(generator, [built], batch), fits


def count_equal(hypotheses: list[list[dict]], reference: list[list[dict]]) -> tuple[int, int]:
    """How many hypotheses have the tokens and, up to 0.1 %, the score of the one in the same place of
    `reference`; and of how many.
    """
    pairs = [
        pair
        for ours, theirs in zip(hypotheses, reference, strict=True)
        for pair in zip(ours, theirs, strict=True)
    ]
    same = [
        torch.equal(a["tokens"], b["tokens"]) and math.isclose(a["score"], b["score"], rel_tol=1e-3)
        for a, b in pairs
    ]
    return sum(same), len(same)
