"""Wrap a layer for activation checkpointing and FSDP."""

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerConfig
from torch import nn
from torch.utils.checkpoint import checkpoint

from modular_fairseq.modules.recomputation import recomputation


def wrap_layer(layer: nn.Module, cfg: TransformerConfig) -> nn.Module:
    """Return the layer with activation checkpointing and FSDP, as far as the options ask for them.

    The checkpointing is torch's. fairseq's gives no gradient to a layer whose input needs none. This happens
    when embeddings are frozen, as in a G step or when only a part of the model is fine-tuned.
    """
    if cfg.checkpoint_activations:
        layer.forward = functools.partial(_checkpointed, layer.forward)
    return fsdp_wrap(layer, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap)


def _checkpointed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(
        forward, *args, use_reentrant=False, context_fn=lambda: (nullcontext(), recomputation()), **kwargs
    )
