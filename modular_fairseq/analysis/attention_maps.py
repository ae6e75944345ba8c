"""The attention weights of a model as it runs: of our attention modules and of fairseq's, per head, by
forward hooks.

    with attention_maps(model) as maps:
        model(**batch["net_input"])
    maps[0].weights     # [H, B, T, S]

Hooks ask each module for the weights of its heads, and hand on what its caller asked for, so that the model
computes what it did (to rounding: where weights are wanted, attention takes another way to the same numbers).
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from fairseq.modules.multihead_attention import MultiheadAttention as FairseqAttention
from torch import Tensor, nn

from modular_fairseq.modules.attention import MultiheadAttention

ENCODER, DECODER, CROSS = KINDS = ("encoder self-attention", "decoder self-attention", "cross-attention")
# What is added to the score of a key that a query may not see: -inf, or in fairseq's encoder -1e8, in float16
# -1e4.
HIDDEN = -1e4


@dataclass
class AttentionMap:
    """What one call of an attention module attended to.

    Args:
        module: its name in the model, such as encoder.layers.0.self_attn.
        kind: one of `KINDS`.
        weights: [H, B, T, S], the output of the softmax: it includes masks, but neither dropout nor head
            scales (MAE); 0 where a key is hidden.
        query_padding, key_padding: bool [B, T] and [B, S], True = pad; None: no pad.
        hidden: bool [T, S], True: a key that this query may not see, such as a later word; None: it may see
            all.
    """

    module: str
    kind: str
    weights: Tensor
    query_padding: Tensor | None = None
    key_padding: Tensor | None = None
    hidden: Tensor | None = None

    def valid_queries(self) -> Tensor:
        """Those that are words: bool [B, T]."""
        if self.query_padding is None:
            return torch.ones(self.weights.shape[1:3], dtype=torch.bool, device=self.weights.device)
        return ~self.query_padding

    def seen(self) -> Tensor:
        """Which keys each query may see: bool [B, T, S]."""
        seen = torch.ones(self.weights.shape[1:], dtype=torch.bool, device=self.weights.device)
        if self.key_padding is not None:
            seen &= ~self.key_padding[:, None, :]
        if self.hidden is not None:
            seen &= ~self.hidden
        return seen


def attention_modules(model: nn.Module) -> dict[str, nn.Module]:
    """By name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, MultiheadAttention | FairseqAttention)
    }


def kind_of(name: str, module: nn.Module) -> str:
    """One of `KINDS`; a language model is a decoder."""
    if module.encoder_decoder_attention:
        return CROSS
    return DECODER if "decoder" in name.split(".") else ENCODER


@contextmanager
def attention_maps(model: nn.Module) -> Iterator[list[AttentionMap]]:
    """Inside it, every call of an attention module adds a map to the list, which is the caller's to clear."""
    maps: list[AttentionMap] = []
    layers: dict[str, Tensor | None] = {}
    watchers = [_Watcher(name, module, maps, layers) for name, module in attention_modules(model).items()]
    try:
        yield maps
    finally:
        for watcher in watchers:
            watcher.leave()


class _Watcher:
    """The hooks of one attention module.

    fairseq's cross-attention is not told which of its queries are pads; the self-attention before it in the
    same layer is.

    Args:
        padding_of_layers: bool [B, T] or None by the name of a layer; shared by all watchers.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        maps: list[AttentionMap],
        padding_of_layers: dict[str, Tensor | None],
    ):
        self.name, self.kind, self.layer = name, kind_of(name, module), name.rpartition(".")[0]
        self.maps, self.padding_of_layers = maps, padding_of_layers
        self.signature = inspect.signature(module.forward)
        self.asked = (False, False)
        self.handles = [
            module.register_forward_pre_hook(self.before, with_kwargs=True),
            module.register_forward_hook(self.after, with_kwargs=True),
        ]

    def leave(self) -> None:
        for handle in self.handles:
            handle.remove()

    def before(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        call = self.signature.bind(*args, **kwargs)
        call.apply_defaults()
        asked = call.arguments
        self.asked = (asked["need_weights"], asked["need_head_weights"])
        wanted = {**asked, "need_weights": True, "need_head_weights": True}
        if asked["incremental_state"] is None:
            # Without a cache this means nothing, but else fairseq takes torch's attention, which averages
            # heads.
            wanted["static_kv"] = True
        return (), wanted

    def after(
        self, module: nn.Module, args: tuple, kwargs: dict, output: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        attended, weights = output
        key_padding = _as_bool(kwargs["key_padding_mask"])
        query_padding = _as_bool(kwargs.get("query_padding_mask"))
        if query_padding is None:
            if self.kind == CROSS:
                query_padding = self.padding_of_layers.get(self.layer)
            elif key_padding is not None:
                # With --cross-self-attention, keys are the source and then the queries.
                query_padding = key_padding[:, -weights.size(2) :]
        if self.kind != CROSS:
            self.padding_of_layers[self.layer] = query_padding
        self.maps.append(
            AttentionMap(
                self.name, self.kind, weights, query_padding, key_padding, _hidden(kwargs["attn_mask"])
            )
        )
        need_weights, need_head_weights = self.asked
        if not need_head_weights:
            weights = weights.mean(dim=0) if need_weights else None
        return attended, weights


def _as_bool(padding_mask: Tensor | None) -> Tensor | None:
    return None if padding_mask is None else padding_mask.to(torch.bool)


def _hidden(attn_mask: Tensor | None) -> Tensor | None:
    if attn_mask is None or attn_mask.dtype == torch.bool:
        return attn_mask
    return attn_mask <= HIDDEN
