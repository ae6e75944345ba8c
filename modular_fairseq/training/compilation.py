"""Compile the layers of a model that is trained, by torch.compile (--compile)."""

import importlib.util
import os
import shutil
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from fairseq.trainer import Trainer
from torch import nn
from torch.fx.experimental import _config as shapes

from modular_fairseq.models.layers import TransformerDecoderLayer, TransformerEncoderLayer
from modular_fairseq.models.options import flag
from modular_fairseq_cli.errors import UsageError

# The layers of one model are a handful of different programs: encoder and decoder, F and G steps, the first
# layer (whose input lies in another order in memory) and the others. torch's own limit is 8.
MOST_PROGRAMS = 64
LEAST_CAPABILITY = (7, 0)  # of triton


def compile_layers(model: nn.Module, backend: str = "inductor") -> None:
    """Let torch compile each layer of a model when it first runs.

    Layers of the same kind share their programs, and a program fits all lengths and numbers of sentences. The
    names of parameters stay the same.

    Args:
        model: any model of fairseq. Only layers of this package are compiled.
        backend: a backend of torch.compile.
    """
    config = torch._dynamo.config
    config.cache_size_limit = max(config.cache_size_limit, MOST_PROGRAMS)
    # DistributedDataParallel would split each layer into several programs.
    config.optimize_ddp = False
    # Otherwise a program that was made from as many sentences as tokens would fit such batches only.
    shapes.use_duck_shape = False
    # The compiler computes the results of these functions in its own kernels.
    warnings.filterwarnings("ignore", "Dynamo detected a call to a `functools.lru_cache`", UserWarning)
    for layer in model.modules():
        if isinstance(layer, (TransformerEncoderLayer, TransformerDecoderLayer)):
            layer.compile(dynamic=True, backend=backend)


def compile_if_asked(trainer: Trainer) -> None:
    """Compile the layers of a trainer's model if its options have --compile.

    Raises:
        UsageError: something that torch.compile needs is missing, or another option does not work with it.
    """
    cfg = trainer.cfg
    if not getattr(cfg.model, "compile", False):
        return
    for name in ("checkpoint_activations", "quant_noise_pq", "quant_noise_scalar"):
        if getattr(cfg.model, name, False):
            raise UsageError(f"{flag(name)} does not work with --compile; leave one of them out")
    if cfg.distributed_training.ddp_backend == "fully_sharded":
        raise UsageError(
            "--ddp-backend fully_sharded does not work with --compile; use c10d, or leave --compile out"
        )
    if problem := missing(trainer.device.type):
        raise UsageError(f"{problem}, or leave --compile out")
    compile_layers(trainer.get_model())


def without_programs(trainer: Trainer) -> AbstractContextManager[Any]:
    """Let layers run as they are inside the block, even if they were compiled."""
    # Without --compile, torch's compiler is not imported, which would take a second.
    asked = getattr(trainer.cfg.model, "compile", False)
    return torch.compiler.set_stance("force_eager") if asked else nullcontext()


def missing(device: str) -> str | None:
    """Return a sentence about what --compile lacks on a device and how to get it, or None."""
    if device == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "--compile needs the package triton; install it with pip install triton"
        if torch.cuda.get_device_capability() < LEAST_CAPABILITY:
            return "--compile needs a GPU of compute capability 7.0 or more; use another GPU"
        if not any(map(shutil.which, ((os.environ.get("CC") or "gcc").split()[0], "clang"))):
            return "--compile needs a C compiler; install gcc, or name yours in the environment variable CC"
        return None
    from torch._inductor import cpp_builder, exc

    try:
        cpp_builder.get_cpp_compiler()
    except exc.InvalidCxxCompiler:
        return "--compile needs a C++ compiler; install g++, or name yours in the environment variable CXX"
    return None
