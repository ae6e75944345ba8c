"""How the models use semantic masks (DMA): a mask per attention module, and the losses that a criterion asks of them."""

import functools

import torch
from torch import Tensor

from modular_fairseq.models.arrangement import attends_by
from modular_fairseq.modules.semantic_mask import Losses, SemanticMask


def build_mask(options, num_heads: int, embed_dim: int, self_attention: bool, decoder: bool) -> SemanticMask | None:
    """The `mask` of one attention module, or None for attention without one.

    In the decoder's self-attention "the semantic mask was disregarded [...] in test phase" (section 4.1), unless it is asked for.
    """
    if not attends_by(options, "dma"):
        return None
    return SemanticMask(
        num_heads,
        embed_dim,
        options.dma_clusters,
        options.dma_posterior,
        options.dma_centroid_gradient,
        options.dma_centroid_mode,
        self_attention=self_attention,
        in_evaluation=options.dma_decoder_eval_mask or not (decoder and self_attention),
    )


class TrainsWithLosses:
    """Mixin for fairseq models: what a criterion asks of the semantic masks, and gets from them.

    `num_updates` is how many updates there have been, or None outside fairseq's training.
    """

    num_updates: int | None = None

    @functools.cached_property
    def semantic_masks(self) -> dict[str, SemanticMask]:
        """By the name of their attention module, such as encoder.layers.0.self_attn."""
        return {name.removesuffix(".mask"): module for name, module in self.named_modules() if isinstance(module, SemanticMask)}

    def ask_for_losses(self, wanted: Losses) -> None:
        """Let the forward passes in training that follow compute these."""
        for mask in self.semantic_masks.values():
            mask.wanted, mask.losses = wanted, {}

    def take_losses(self) -> dict[str, Tensor]:
        """Those of the last forward pass by name, [B] each: the mean over the modules that took part (LayerDrop may leave some out)."""
        by_module = [mask.losses for mask in self.semantic_masks.values() if mask.losses]
        for mask in self.semantic_masks.values():
            mask.losses = {}
        return {name: torch.stack([losses[name] for losses in by_module]).mean(dim=0) for name in (by_module[0] if by_module else ())}

    def set_num_updates(self, num_updates: int) -> None:
        """fairseq's training calls it before every forward pass."""
        super().set_num_updates(num_updates)
        self.num_updates = num_updates
