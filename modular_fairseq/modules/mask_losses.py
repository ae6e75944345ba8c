"""The losses of semantic masks, computed for many attention modules at once (DMA, sections 3.2 and 3.3)."""

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from modular_fairseq.modules.autocasting import no_autocast
from modular_fairseq.modules.disentangled_heads import (
    LossSettings,
    diversity,
    losses_of_queries,
    mean_over_tokens,
)
from modular_fairseq.modules.gaussian_densities import Clustering, divergence_of
from modular_fairseq.modules.gaussian_mixture import densities_of, stack
from modular_fairseq.modules.semantic_mask import SemanticMask


def measure(masks: Sequence[SemanticMask], wanted: LossSettings) -> dict[str, Tensor]:
    """Compute the losses that are `wanted` of masks that have `seen` a batch, by name, [M, B] each.

    Masks that look at the same positions and have mixtures of the same kind are computed together. The
    results are in another order than `masks`.

    In cross-attention the tokens of both sides count. The diversity loss is the mean of the two sides, as it
    compares tokens of one sentence with each other.
    """
    alike: dict[Hashable, list[SemanticMask]] = {}
    for mask in masks:
        alike.setdefault(mask.kind(), []).append(mask)
    found = [_measure_alike(group, wanted) for group in alike.values()]
    return {name: torch.cat([losses[name] for losses in found]) for name in (found[0] if found else ())}


def _measure_alike(masks: list[SemanticMask], wanted: LossSettings) -> dict[str, Tensor]:
    """Compute the losses of M masks of one kind (`SemanticMask.kind`), [M, B] each."""
    seen = [mask.seen for mask in masks if mask.seen is not None]
    first = seen[0]
    valid = _valid(first.query_padding_mask, first.tokens.posterior)
    queries, drawn = (
        [each.projected for each in seen],
        [each.drawn for each in seen if each.drawn is not None],
    )
    losses = losses_of_queries([mask.queries for mask in masks], queries, valid, wanted, drawn or None)
    sides = [([each.tokens for each in seen], valid)]
    keys = [each.keys for each in seen if each.keys is not None]
    if not masks[0].self_attention:
        sides.append((keys, _valid(first.key_padding_mask, keys[0].posterior)))
    if wanted.diversity:
        of_sides = [_diversity(clusters, counted) for clusters, counted in sides]
        losses["diversity"] = losses["diversity"] + sum(of_sides) / len(of_sides)
    if wanted.kl:
        divergences = [_divergence(masks, clusters) for clusters, _ in sides]
        divergence = torch.cat(divergences, dim=3).flatten(0, 1)  # M B x H x T
        counted = torch.cat([each for _, each in sides], dim=1).repeat(len(masks), 1)
        losses["kl"] = losses["kl"] + mean_over_tokens(divergence, counted).view(len(masks), -1)
    return losses


def _diversity(clusters: list[Clustering], valid: Tensor) -> Tensor:
    """Return the diversity loss of the tokens of M masks, [M, B]."""
    posterior = stack([each.posterior for each in clusters]).flatten(0, 1)
    return diversity(posterior, valid.repeat(len(clusters), 1)).view(len(clusters), -1)


def _divergence(masks: list[SemanticMask], clusters: list[Clustering]) -> Tensor:
    """Return the divergence of the tokens of M masks from their mixtures, [M, B, H, T]."""
    known = [each.divergence for each in clusters if each.divergence is not None]
    if known:
        return stack(known)
    log_joint = stack([each.log_joint for each in clusters])
    with no_autocast(log_joint):
        noise = densities_of([mask.tokens for mask in masks], log_joint.dtype).noise
        assert noise is not None  # it does not depend on the vectors
        return divergence_of(log_joint, noise)


def _valid(padding_mask: Tensor | None, posterior: Tensor) -> Tensor:
    """Return which tokens count, bool [B, T].

    Args:
        padding_mask: bool [B, T], True = pad. None means that all tokens count.
        posterior: posteriors [B, H, C, T], for their sizes.
    """
    if padding_mask is None:
        return torch.ones(posterior.size(0), posterior.size(3), dtype=torch.bool, device=posterior.device)
    return padding_mask.to(torch.bool).logical_not()
