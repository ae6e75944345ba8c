"""Compute a mixture of attentive experts exactly as the paper writes it.

The output of every expert is computed by itself, and the mixture is their weighted sum.
"""

import itertools

import torch
from torch import Tensor, nn


def attention_heads(
    attention: nn.Module, query: Tensor, key: Tensor, blocked: Tensor | None = None
) -> list[Tensor]:
    """Return H~_j of Eq. 2 for every head j, [B, T, head_dim] each.

    Args:
        query, key: [T, B, C], [S, B, C].
        blocked: bool [B, T, S], True = the query does not see the key, or None.
    """
    q, k, v = (
        p(x).transpose(0, 1)
        for p, x in ((attention.q_proj, query), (attention.k_proj, key), (attention.v_proj, key))
    )
    heads = []
    for j in range(attention.num_heads):
        columns = slice(j * attention.head_dim, (j + 1) * attention.head_dim)
        scores = q[..., columns] @ k[..., columns].transpose(1, 2) / attention.head_dim**0.5
        if blocked is not None:
            scores = scores.masked_fill(blocked, float("-inf"))
        heads.append(scores.softmax(dim=-1) @ v[..., columns])
    return heads


def mixture_of_experts(
    attention: nn.Module,
    query: Tensor,
    key: Tensor,
    gates: Tensor,
    dropped_heads: int,
    blocked: Tensor | None = None,
) -> Tensor:
    """Return sum_S g_S f_S plus the output bias, [T, B, C].

    f_S = h/(h-t) sum_{j not in S} H~_j W_j (Eq. 5 and 6).

    Args:
        query, key: [T, B, C], [S, B, C].
        gates: [B, T or 1, E].
        dropped_heads: t.
        blocked: bool [B, T, S], True = the query does not see the key, or None.
    """
    h = attention.num_heads
    projected = [
        head @ attention.out_proj.weight[:, j * attention.head_dim : (j + 1) * attention.head_dim].t()
        for j, head in enumerate(attention_heads(attention, query, key, blocked))
    ]
    output = 0
    for i, lacking in enumerate(itertools.combinations(range(h), dropped_heads)):
        expert = h / (h - dropped_heads) * sum(projected[j] for j in range(h) if j not in lacking)
        output = output + gates[..., i : i + 1] * expert
    return (output + attention.out_proj.bias).transpose(0, 1)


def mean_of_recent(x: Tensor, padding_mask: Tensor | None, window: int | None) -> Tensor:
    """Return the mean of the inputs at positions t - window + 1 .. t, one by one: x [T, B, d] -> [T, B, d].

    Padding does not count.
    """
    means = torch.zeros_like(x)
    for b in range(x.size(1)):
        for t in range(x.size(0)):
            first = 0 if window is None else max(0, t - window + 1)
            seen = [x[s, b] for s in range(first, t + 1) if padding_mask is None or not padding_mask[b, s]]
            if seen:
                means[t, b] = torch.stack(seen).mean(dim=0)
    return means
