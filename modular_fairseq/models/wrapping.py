"""Activation checkpointing and FSDP around a layer."""

import functools
from contextlib import nullcontext

import torch
from fairseq.distributed import fsdp_wrap
from torch import nn
from torch.utils.checkpoint import checkpoint

from modular_fairseq.modules.recomputation import recomputation


def wrap_layer(layer: nn.Module, cfg) -> nn.Module:
    """torch's checkpointing instead of fairseq's, which gives no gradient to a layer whose input needs none:
    in a G step, and when fine-tuning a part of the model, embeddings are frozen.
    """
    if cfg.checkpoint_activations:
        layer.forward = functools.partial(_checkpointed, layer.forward)
    return fsdp_wrap(layer, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap)


def _checkpointed(forward, *args, **kwargs):
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(
        forward, *args, use_reentrant=False, context_fn=lambda: (nullcontext(), recomputation()), **kwargs
    )
