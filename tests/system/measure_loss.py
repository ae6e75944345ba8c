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
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CHUNK, SMOOTHING, PAD = 512, 0.1, 1


def whole(x: Tensor, weight: Tensor, y: Tensor) -> Tensor:
    lprobs = F.log_softmax(F.linear(x, weight), dim=-1)
    return label_smoothed_nll_loss(lprobs, y, SMOOTHING, PAD)[0]


def chunks(x: Tensor, weight: Tensor, y: Tensor) -> Any:
    parts = zip(x.split(CHUNK), y.split(CHUNK), strict=True)
    return sum(checkpoint(whole, a, weight, b, use_reentrant=False) for a, b in parts)


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
