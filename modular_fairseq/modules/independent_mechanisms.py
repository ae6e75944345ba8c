"""Competition and communication between the mechanisms of a layer, TIM ("Transformers with Competitive
Ensembles of Independent Mechanisms", Algorithm 1).

A layer of width d has n mechanisms of width d/n: feature c of mechanism m is feature m * d/n + c of the
hidden state [T, B, d]. Attention, feed-forward and LayerNorm with grouped parameters (`grouped.py`) keep them
apart, since the heads of an attention belong to one mechanism each. What joins them is here: the competition
for updates (step 1) and attention between mechanisms (step 3), both within a position, so padding, causality
and step-by-step decoding need nothing.
"""

import math

import torch
from fairseq.modules.fairseq_dropout import FairseqDropout
from torch import Tensor, nn

from modular_fairseq.modules.grouped import build_linear, xavier_uniform


class Competition(nn.Module):
    """Step 1: c = softmax over mechanisms of GroupLinear(h, W^c), which weighs the update after the
    self-attention (step 2).

    c sums to 1 over the mechanisms of a position, so an undecided competition scales an update by 1/n, where
    no competition scales it by 1: the paper's algorithm to the letter.

    W^c starts as `nn.Linear` does, its bias at 0; the paper does not say how. Xavier's initialisation of a
    matrix with one output starts half decided: on normalised inputs the larger of two c is 0.78 in the mean,
    here 0.65 (20 seeds). It gave 97.4 and 97.4 BLEU on the synthetic corpus, this 97.9 and 98.1
    (`tim_transformer_tiny_cpu`, two seeds), and no competition 97.7 (one seed).

    Args:
        mechanisms: n.
        embed_dim: width of the layer.
    """

    def __init__(self, mechanisms: int, embed_dim: int):
        super().__init__()
        self.mechanisms = mechanisms
        self.linear = build_linear(mechanisms, embed_dim, mechanisms)
        nn.init.zeros_(self.linear.bias)

    def forward(self, h: Tensor) -> Tensor:
        """h [T, B, C], what queries, keys and values are made of -> c [T, B, mechanisms], float32 or
        better.
        """
        scores = self.linear(h)
        return torch.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))


def weigh(update: Tensor, competition: Tensor) -> Tensor:
    """c * M: update [T, B, C], competition [T, B, mechanisms] -> [T, B, C], the features of each mechanism
    weighed by its own value.
    """
    groups = update.unflatten(-1, (competition.size(-1), -1))
    return (groups * competition.unsqueeze(-1).to(update.dtype)).flatten(-2)


class InterMechanismAttention(nn.Module):
    """Step 3: multi-head attention in which the mechanisms of a position are the sequence.

    It is computed as sums of elementwise products. For two mechanisms this is faster on a CPU than a tiny
    matrix product for each position and head (1.8 ms against 3.5, forward and backward of 1,020 positions);
    for four it is slower (10.5 against 4.0). A layer takes about 100 ms.

    Args:
        mechanisms: n.
        embed_dim: width of the layer.
        num_heads, head_dim: the paper's 2 heads of 32 units.
        dropout: probability on the attention weights.
    """

    def __init__(self, mechanisms: int, embed_dim: int, num_heads: int, head_dim: int, dropout: float = 0.0):
        super().__init__()
        self.mechanisms, self.num_heads, self.head_dim = mechanisms, num_heads, head_dim
        inner = mechanisms * num_heads * head_dim
        self.k_proj = build_linear(mechanisms, embed_dim, inner)
        self.v_proj = build_linear(mechanisms, embed_dim, inner)
        self.q_proj = build_linear(mechanisms, embed_dim, inner)
        self.out_proj = build_linear(mechanisms, inner, embed_dim)
        self.dropout_module = FairseqDropout(dropout, module_name=self.__class__.__name__)
        for projection in (self.k_proj, self.v_proj, self.q_proj):  # as in `MultiheadAttention`
            xavier_uniform(projection, gain=1 / math.sqrt(2))
        xavier_uniform(self.out_proj)
        nn.init.zeros_(self.out_proj.bias)

    def forward(self, h: Tensor) -> Tensor:
        """[T, B, C] -> [T, B, C]."""
        q, k, v = (self._split(projection(h)) for projection in (self.q_proj, self.k_proj, self.v_proj))
        # ... x n (queries) x n (keys) x heads
        scores = (q.unsqueeze(-3) * k.unsqueeze(-4)).sum(dim=-1) * self.head_dim**-0.5
        weights = torch.softmax(scores, dim=-2, dtype=torch.promote_types(scores.dtype, torch.float32)).to(
            v.dtype
        )
        weights = self.dropout_module(weights)
        # ... x n x heads x head_dim
        heads = (weights.unsqueeze(-1) * v.unsqueeze(-4)).sum(dim=-3)
        return self.out_proj(heads.flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        """[T, B, n x heads x head_dim] -> [T, B, n, heads, head_dim]."""
        return x.unflatten(-1, (self.mechanisms, self.num_heads, self.head_dim))
