"""How the models use semantic masks (DMA): a mask per attention module, and the losses that a criterion wants
of them.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from modular_fairseq.models.attention_parts import Place, register_attention
from modular_fairseq.models.options import DmaOptions
from modular_fairseq.modules.disentangled_heads import LossSettings
from modular_fairseq.modules.semantic_mask import SemanticMask


@register_attention("dma", seam="mask", options=DmaOptions)
def build_mask(options, place: Place) -> SemanticMask:
    """The `mask` of one attention module.

    In the decoder's self-attention "the semantic mask was disregarded [...] in test phase" (section 4.1),
    unless it is asked for.
    """
    return SemanticMask(
        place.num_heads,
        place.embed_dim,
        options.dma_clusters,
        options.dma_posterior,
        options.dma_centroid_gradient,
        options.dma_centroid_mode,
        self_attention=place.self_attention,
        in_evaluation=options.dma_decoder_eval_mask or not (place.decoder and place.self_attention),
    )


def semantic_masks(model: nn.Module) -> dict[str, SemanticMask]:
    """By the name of their attention module, such as encoder.layers.0.self_attn."""
    return {
        name.removesuffix(".mask"): module
        for name, module in model.named_modules()
        if isinstance(module, SemanticMask)
    }


@contextmanager
def measuring(model: nn.Module, wanted: LossSettings) -> Iterator[dict[str, Tensor]]:
    """Around a forward pass in training: afterwards the dictionary has the losses that are `wanted`, [B]
    each, by name.

    They are means over the modules that took part: LayerDrop may leave some out. No module keeps a graph,
    also after an exception.
    """
    masks, losses = semantic_masks(model).values(), {}
    for mask in masks:
        mask.wanted, mask.losses = wanted, {}
    try:
        yield losses
        by_module = [mask.losses for mask in masks if mask.losses]
        for name in by_module[0] if by_module else ():
            losses[name] = torch.stack([of_module[name] for of_module in by_module]).mean(dim=0)
    finally:
        for mask in masks:
            mask.losses = {}


class CountsUpdates:
    """Mixin for fairseq models: `num_updates` is how many updates there have been, or None outside fairseq's
    training.
    """

    num_updates: int | None = None

    def set_num_updates(self, num_updates: int) -> None:
        """fairseq's training calls it before every forward pass."""
        super().set_num_updates(num_updates)
        self.num_updates = num_updates
