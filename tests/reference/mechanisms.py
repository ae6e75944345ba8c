"""Compute a TIM layer exactly as Algorithm 1 writes it, one mechanism at a time.

Everything is a loop over mechanisms with ordinary matrices. Only the parameters of one of our layers are
shared with the package.
"""

import math

import torch
import torch.nn.functional as F


def slice_of(x, m, n):
    """Return the features of slice m of n."""
    return x[..., m * x.size(-1) // n : (m + 1) * x.size(-1) // n]


def group_linear(x, module, n):
    """Apply the linear layer of each of n mechanisms to its slice of x.

    With one mechanism, parameters have no dimension for mechanisms.
    """
    weight, bias = (
        p.view(n, -1, p.size(-1)) if p.dim() == 2 + (n > 1) else p.view(n, -1)
        for p in (module.weight, module.bias)
    )
    return torch.cat([slice_of(x, m, n) @ weight[m].T + bias[m] for m in range(n)], dim=-1)


def group_norm(x, module, n):
    """Apply the LayerNorm of each of n mechanisms to its slice of x."""
    weight, bias = module.weight.view(n, -1), module.bias.view(n, -1)
    return torch.cat(
        [F.layer_norm(slice_of(x, m, n), weight[m].shape, weight[m], bias[m]) for m in range(n)], dim=-1
    )


def attention(module, query, key, n, blocked=None):
    """Return the multi-head attention of each mechanism.

    Args:
        query, key: [T, B, C], [S, B, C'].
        n: number of mechanisms.
        blocked: bool [B, T, S], True = the query does not see the key, or None.
    """
    q, k, v = (
        group_linear(query, module.q_proj, n),
        group_linear(key, module.k_proj, n),
        group_linear(key, module.v_proj, n),
    )
    heads = []
    for h in range(module.num_heads):
        qh, kh, vh = (slice_of(x, h, module.num_heads).transpose(0, 1) for x in (q, k, v))
        scores = qh @ kh.transpose(1, 2) / math.sqrt(qh.size(-1))
        if blocked is not None:
            scores = scores.masked_fill(blocked, float("-inf"))
        heads.append((torch.softmax(scores, dim=-1) @ vh).transpose(0, 1))
    return group_linear(torch.cat(heads, dim=-1), module.out_proj, n)


def communication(module, x, n):
    """Return the attention between the n mechanisms of every position of x [T, B, C]."""
    v = group_linear(x, module.v_proj, n)
    # The softmax over a single mechanism is 1, whatever the queries and keys are.
    q, k = (v, v) if n == 1 else (group_linear(x, module.q_proj, n), group_linear(x, module.k_proj, n))
    out = torch.empty_like(q)
    for t in range(x.size(0)):
        for b in range(x.size(1)):
            sequences = [p[t, b].view(n, module.num_heads, module.head_dim) for p in (q, k, v)]
            for h in range(module.num_heads):
                qh, kh, vh = (s[:, h] for s in sequences)
                head = torch.softmax(qh @ kh.T / math.sqrt(module.head_dim), dim=-1) @ vh
                out[t, b].view(n, module.num_heads, module.head_dim)[:, h] = head
    return group_linear(out, module.out_proj, n)


def layer(module, x, n, blocked=None, encoder_out=None, encoder_blocked=None, pre_norm=False, residual=True):
    """Return the output [T, B, C] of an encoder or decoder layer.

    Each sub-layer F is norm(x + F(x)), or x + F(norm(x)) with pre-norm.

    Args:
        x: [T, B, C].
        n: number of mechanisms.
        blocked, encoder_blocked: bool [B, T, S], for self- and cross-attention, or None.
        encoder_out: [S, B, C'] for a decoder layer, None for an encoder layer.
        residual: whether sub-layers have residual connections.
    """

    def sub_layer(x, norm, function):
        update = function(group_norm(x, norm, n) if pre_norm else x)
        update = x + update if residual else update
        return update if pre_norm else group_norm(update, norm, n)

    def self_attention(h):
        update = attention(module.self_attn, h, h, n, blocked)
        if module.competition is None:
            return update
        scores = group_linear(h, module.competition.linear, n)
        return torch.softmax(scores, dim=-1).repeat_interleave(h.size(-1) // n, dim=-1) * update

    def feed_forward(h):
        return group_linear(torch.relu(group_linear(h, module.fc1, n)), module.fc2, n)

    x = sub_layer(x, module.self_attn_layer_norm, self_attention)
    if encoder_out is not None:
        x = sub_layer(
            x,
            module.encoder_attn_layer_norm,
            lambda h: attention(module.encoder_attn, h, encoder_out, n, encoder_blocked),
        )
    if module.communication is not None:
        x = sub_layer(x, module.communication_layer_norm, lambda h: communication(module.communication, h, n))
    return sub_layer(x, module.final_layer_norm, feed_forward)
