"""Build the models, the random batches and the jobs that `modular-fairseq bench` times."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel
from fairseq.tasks import FairseqTask
from fairseq.trainer import Trainer
from omegaconf import DictConfig
from torch import Tensor, nn

from modular_fairseq.benchmark.comparison import F_STEP, G_STEP, STOCK, TRAINING
from modular_fairseq.benchmark.tasks import KINDS, kind_of
from modular_fairseq.training.gate_trainer import gate_trainer_of
from modular_fairseq_cli.errors import UsageError

Job = Callable[[], Any]
Jobs = dict[tuple[str, str], Job]  # keyed by (model, work)


def random_task(source_types: int, target_types: int, kind: str = "translation") -> FairseqTask:
    """Return a task without data, of a kind of `KINDS`.

    The sizes of its dictionaries include four special symbols.
    """
    return KINDS[kind].make(source_types, target_types)


def random_batch(task: FairseqTask, sentences: int, length: int, seed: int) -> dict[str, Any]:
    """Return a batch of random sentences, or pairs of them, sorted and padded as fairseq does it.

    Each sentence has between 4/5 of `length` and `length` tokens. One of them, or one pair, has `length`.
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
    return kind_of(task).batch(task, [partial(sentence, shortest=n) for n in shortest])


def build(model: str, cfg: DictConfig, task: FairseqTask) -> BaseFairseqModel:
    """Build the model that a configuration describes, or fairseq's Transformer if `model` is in `STOCK`.

    The same seed gives the same weights.
    """
    utils.set_torch_seed(cfg.common.seed)
    return kind_of(task).stock(cfg, task) if model in STOCK else task.build_model(cfg.model)


def count_parameters(model: str, cfg: DictConfig, task: FairseqTask) -> int:
    """Return the number of parameters of a model."""
    return sum(parameter.numel() for parameter in build(model, cfg, task).parameters())


def training_jobs(model: str, cfg: DictConfig, task: FairseqTask, batch: dict) -> tuple[Jobs, int | None]:
    """Return a job for a training step, or jobs for an F step and a G step if the gates learn in G steps.

    The second value is the number of epochs of which one has G steps, or None if the model has no G steps.
    """
    trainer = start_training(build(model, cfg, task), cfg, task)
    gates = gate_trainer_of(trainer)
    if gates is None or not gates.alternates:
        return {(model, TRAINING): lambda: trainer.train_step([batch], raise_oom=True)}, None
    gates.paused = True  # train_step takes F steps only, because G steps are timed separately
    f_step, g_step = lambda: trainer.train_step([batch], raise_oom=True), lambda: gates.g_step([batch])
    return {(model, F_STEP): f_step, (model, G_STEP): g_step}, gates.interval


def start_training(model: BaseFairseqModel, cfg: DictConfig, task: FairseqTask) -> Trainer:
    """Return a trainer of the model whose first epoch has begun."""
    trainer = Trainer(cfg, task, model, task.build_criterion(cfg.criterion))
    trainer.begin_epoch(1)
    return trainer


class Given(nn.Module):
    """A replacement for an embedding that returns the same vectors in every call.

    The vectors are a parameter with a gradient, so that the backward pass includes all of the first layer.
    """

    def __init__(self, vectors: Tensor):
        super().__init__()
        self.vectors = nn.Parameter(vectors.detach())

    def forward(self, tokens: Tensor) -> Tensor:
        return self.vectors


def layers_job(model: str, cfg: DictConfig, task: FairseqTask, batch: dict) -> Job:
    """Return a job for the forward and backward pass of all layers, as in a training step (F step).

    Embeddings, output projection and losses are left out. The job starts from fixed embedded tokens [B, T, C]
    and a fixed gradient of the output of the last layer. It returns that output.
    """
    built = build(model, cfg, task)
    tokens = move(built, batch, cfg)["net_input"]
    trainer = start_training(built, cfg, task)  # puts mixtures of experts into their F step
    for place, name in kind_of(task).stacks.items():
        stack = built.get_submodule(place)
        stack.embed_tokens = Given(stack.embed_tokens(tokens[name]))
        stack.embed_positions = stack.layernorm_embedding = None
        stack.dropout_module = nn.Identity()  # the dropout of embeddings; layers have dropout of their own

    def forward() -> Tensor:
        device = "cpu" if cfg.common.cpu else "cuda"
        with torch.autocast(device, trainer.autocast_dtype, enabled=cfg.common.amp):
            return built(**tokens, features_only=True)[0]

    gradient = torch.randn_like(forward())

    def run() -> Tensor:
        built.zero_grad(set_to_none=True)
        features = forward()
        features.backward(gradient)
        return features

    return run


def move(model: nn.Module, batch: dict, cfg: DictConfig) -> dict:
    """Move a model to the device and precision of its configuration, and return the batch on that device."""
    if cfg.common.fp16:
        model.half()
    if cfg.common.cpu:
        return batch
    model.cuda()
    return utils.move_to_cuda(batch)


def search_job(
    model: str, cfg: DictConfig, task: FairseqTask, batch: dict, weights: dict | None = None
) -> tuple[Job, bool]:
    """Return a job for beam search as in fairseq-generate, and whether `weights` fit the model.

    The model gets these weights if they fit.
    """
    built, fits = build(model, cfg, task), weights is not None
    if weights is not None:
        try:
            built.load_state_dict(dict(weights))
        except (UsageError, RuntimeError):
            fits = False
    batch = move(built, batch, cfg)
    built.prepare_for_inference_(cfg)
    generator = task.build_generator([built], cfg.generation)
    return lambda: task.inference_step(generator, [built], batch), fits


def count_equal(hypotheses: list[list[dict]], reference: list[list[dict]]) -> tuple[int, int]:
    """Return how many hypotheses equal the hypothesis in the same place of `reference`, and their number.

    Two hypotheses are equal if their tokens are, and if their scores differ by at most 0.1 %.
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
