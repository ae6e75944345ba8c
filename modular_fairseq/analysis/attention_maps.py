"""Record the attention weights of each head while a model runs, by forward hooks.

    with attention_maps(model) as maps:
        model(**batch["net_input"])
    maps[0].weights     # [H, B, T, S]

The hooks work with this package's attention modules and with fairseq's. They request the weights of all heads
from each module, and return to its caller only what the caller requested. The output of the model stays the
same up to rounding, because attention that returns weights uses another order of operations.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import torch
from fairseq.modules.multihead_attention import MultiheadAttention as FairseqAttention
from torch import Tensor, nn

from modular_fairseq.modules.attention import MultiheadAttention

ENCODER, DECODER, CROSS = KINDS = ("encoder self-attention", "decoder self-attention", "cross-attention")
# The largest value that counts as hiding a key from a query when it is added to the score. fairseq adds -inf,
# in its encoder -1e8, and there in float16 -1e4.
HIDDEN = -1e4

AttentionModule: TypeAlias = MultiheadAttention | FairseqAttention


@dataclass
class AttentionMap:
    """The attention weights of one call of an attention module.

    Attributes:
        module: name of the module in the model, such as encoder.layers.0.self_attn.
        kind: one of `KINDS`.
        weights: [H, B, T, S], the output of the softmax. It includes masks, but neither dropout nor the head
            scales of MAE. It is 0 where a key is hidden.
        query_padding, key_padding: bool [B, T] and [B, S], True = padding. None means that there is no
            padding.
        hidden: bool [T, S], True for a key that a query may not see, such as a later word. None means that
            every query may see every key.
    """

    module: str
    kind: str
    weights: Tensor
    query_padding: Tensor | None = None
    key_padding: Tensor | None = None
    hidden: Tensor | None = None

    def valid_queries(self) -> Tensor:
        """Return which queries are words and not padding, bool [B, T]."""
        if self.query_padding is None:
            return torch.ones(self.weights.shape[1:3], dtype=torch.bool, device=self.weights.device)
        return ~self.query_padding

    def seen(self) -> Tensor:
        """Return which keys each query may see, bool [B, T, S]."""
        seen = torch.ones(self.weights.shape[1:], dtype=torch.bool, device=self.weights.device)
        if self.key_padding is not None:
            seen &= ~self.key_padding[:, None, :]
        if self.hidden is not None:
            seen &= ~self.hidden
        return seen


def attention_modules(model: nn.Module) -> dict[str, AttentionModule]:
    """Return the attention modules of a model, keyed by their dotted name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, MultiheadAttention | FairseqAttention)
    }


def kind_of(name: str, module: AttentionModule) -> str:
    """Return which of `KINDS` an attention module belongs to. A language model has the kind of a decoder."""
    if module.encoder_decoder_attention:
        return CROSS
    return DECODER if "decoder" in name.split(".") else ENCODER


@contextmanager
def attention_maps(model: nn.Module) -> Iterator[list[AttentionMap]]:
    """Record all attention inside the block: each call of an attention module adds a map to the list.

    The caller clears the list when it has used the maps.
    """
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

    fairseq's cross-attention gets no padding mask of its queries. The self-attention before it in the same
    layer gets one, which is therefore remembered.

    Args:
        maps: the list that receives the map of each call.
        padding_of_layers: for each layer by name, the padding mask of its queries, bool [B, T] or None. All
            watchers share it.
    """

    def __init__(
        self,
        name: str,
        module: AttentionModule,
        maps: list[AttentionMap],
        padding_of_layers: dict[str, Tensor | None],
    ):
        self.name, self.kind, self.layer = name, kind_of(name, module), name.rpartition(".")[0]
        self.maps, self.padding_of_layers = maps, padding_of_layers
        self.signature = inspect.signature(module.forward)
        self.requested = (False, False)  # need_weights and need_head_weights of the caller
        self.handles = [
            module.register_forward_pre_hook(self.before, with_kwargs=True),
            module.register_forward_hook(self.after, with_kwargs=True),
        ]

    def leave(self) -> None:
        for handle in self.handles:
            handle.remove()

    def before(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """Change the arguments of a call so that the module returns the weights of all heads."""
        call = self.signature.bind(*args, **kwargs)
        call.apply_defaults()
        requested = call.arguments
        self.requested = (requested["need_weights"], requested["need_head_weights"])
        changed = {**requested, "need_weights": True, "need_head_weights": True}
        if requested["incremental_state"] is None:
            # Without a cache, this argument only keeps fairseq from calling torch's attention, which would
            # average the weights of the heads.
            changed["static_kv"] = True
        return (), changed

    def after(
        self, module: nn.Module, args: tuple, kwargs: dict, output: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        """Record the weights of a call, and return what the caller requested."""
        attended, weights = output
        returned: Tensor | None = weights
        key_padding = _as_bool(kwargs["key_padding_mask"])
        query_padding = _as_bool(kwargs.get("query_padding_mask"))
        if query_padding is None:
            if self.kind == CROSS:
                query_padding = self.padding_of_layers.get(self.layer)
            elif key_padding is not None:
                # With --cross-self-attention, the keys are those of the source, followed by the queries.
                query_padding = key_padding[:, -weights.size(2) :]
        if self.kind != CROSS:
            self.padding_of_layers[self.layer] = query_padding
        self.maps.append(
            AttentionMap(
                self.name, self.kind, weights, query_padding, key_padding, _hidden(kwargs["attn_mask"])
            )
        )
        need_weights, need_head_weights = self.requested
        if not need_head_weights:
            returned = weights.mean(dim=0) if need_weights else None
        return attended, returned


def _as_bool(padding_mask: Tensor | None) -> Tensor | None:
    return None if padding_mask is None else padding_mask.to(torch.bool)


def _hidden(attn_mask: Tensor | None) -> Tensor | None:
    """Return which keys an attention mask hides from which queries, bool [T, S], or None without a mask."""
    if attn_mask is None or attn_mask.dtype == torch.bool:
        return attn_mask
    return attn_mask <= HIDDEN
