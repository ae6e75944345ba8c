"""Measure the time and the memory of a loss with and without chunks (--loss-chunk-size).

    python tests/system/measure_loss.py POSITIONS TYPES WIDTH

It prints a line for each way to compute the loss: the loss, CPU seconds of forward and backward pass (the
least of 3), and how much the memory of the process grew. "torch" is `linear_cross_entropy` of torch 2.13 in
chunks, with the smoothed loss computed from its result.
"""

import multiprocessing
import resource
import sys
import time
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from torch import Tensor

import modular_fairseq  # noqa: F401
from modular_fairseq.criterions.modular_cross_entropy import NAME, ModularCrossEntropyCriterion
from modular_fairseq.models.registry import CRITERIA

CHUNK, SMOOTHING, PAD = 512, 0.1, 1


def ours(x: Tensor, weight: Tensor, y: Tensor, chunk_size: int) -> Tensor:
    """Return the loss of the criterion for features x [N, C] and an output projection."""
    options = CRITERIA[NAME](label_smoothing=SMOOTHING, loss_chunk_size=chunk_size)
    criterion = ModularCrossEntropyCriterion(
        options, TranslationTask(TranslationConfig(), Dictionary(), Dictionary())
    )
    model = SimpleNamespace(
        decoder=SimpleNamespace(output_layer=lambda features: F.linear(features, weight)),
        get_normalized_probs=lambda output, log_probs: F.log_softmax(output[0], dim=-1),
        get_targets=lambda sample, output: sample["target"],
    )
    output = x[None] if chunk_size else F.linear(x[None], weight)
    return criterion.compute_loss(model, (output, None), {"target": y[None]})[0]


def whole(x: Tensor, weight: Tensor, y: Tensor) -> Tensor:
    return ours(x, weight, y, 0)


def chunks(x: Tensor, weight: Tensor, y: Tensor) -> Tensor:
    return ours(x, weight, y, CHUNK)


def torchs(x: Tensor, weight: Tensor, y: Tensor) -> Tensor:
    options = torch.nn.LinearCrossEntropyOptions()
    nll = F.linear_cross_entropy(x, weight, y, reduction="sum", ignore_index=PAD, options=options)
    known, types = x * y.ne(PAD).unsqueeze(1), len(weight)
    smooth = types * (nll + (known * weight[y]).sum()) - known.sum(dim=0) @ weight.sum(dim=0)
    other = SMOOTHING / (types - 1)
    return (1 - SMOOTHING - other) * nll + other * smooth


WAYS = {"whole": whole, "chunks": chunks, "torch": torchs}


def measure(name: str, positions: int, types: int, width: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(positions, width, requires_grad=True)
    weight = (torch.randn(types, width) / width**0.5).requires_grad_()
    y = torch.randint(4, types, (positions,))
    y[::7] = PAD
    before, seconds = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
    for _ in range(3):
        x.grad = weight.grad = None
        start = time.process_time()
        loss = WAYS[name](x, weight, y)
        loss.backward()
        seconds.append(time.process_time() - start)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    print(f"{name:7} loss {loss.item():.4f}  {min(seconds):.2f} s  {grown} MB", flush=True)


if __name__ == "__main__":
    for way in WAYS:  # each in a process of its own, for its memory
        process = multiprocessing.get_context("spawn").Process(
            target=measure, args=(way, *map(int, sys.argv[1:4]))
        )
        process.start()
        process.join()
