"""Compute the redundancy of attention for one sentence, pair of heads and word at a time in plain Python.

Sentences have no padding.
"""

import itertools
import math


def entropy(row):
    """Return the entropy of a distribution in bits."""
    return -sum(p * math.log2(p) for p in row if p > 0)


def divergence(*rows):
    """Return the generalised Jensen-Shannon divergence of rows of weights, which for two is the usual one."""
    middle = [sum(weights) / len(rows) for weights in zip(*rows, strict=True)]
    return max(0.0, entropy(middle) - sum(entropy(row) for row in rows) / len(rows))


def distance(a, b):
    """Return the Jensen-Shannon distance of two rows of weights."""
    return math.sqrt(divergence(a, b))


def mean_redundancy_of_pairs(heads):
    """Return the mean of 1 - distance over pairs of heads; a head is a list of rows of weights."""
    values = []
    for a, b in itertools.combinations(heads, 2):
        distances = [distance(p, q) for p, q in zip(a, b, strict=True)]
        values.append(1 - sum(distances) / len(distances))
    return sum(values) / len(values)


def layer_and_head_redundancy(modules):
    """Return LR, HR and {module: LR} of one type of attention.

    Args:
        modules: {module: list of heads}.
    """
    by_module = {name: mean_redundancy_of_pairs(heads) for name, heads in modules.items()}
    return (
        sum(by_module.values()) / len(by_module),
        mean_redundancy_of_pairs([head for heads in modules.values() for head in heads]),
        by_module,
    )


def layer_redundancy_by_divergence(heads):
    """Return (log2 h - generalised divergence of the h heads) / log2 h, averaged over rows."""
    most, values = math.log2(len(heads)), []
    for rows in zip(*heads, strict=True):
        values.append((most - divergence(*rows)) / most)
    return sum(values) / len(values)


def layer_and_head_redundancy_by_divergence(modules):
    """Return LR, HR and {module: LR} of one type of attention by the formulas of the paper's authors.

    HR is over all ordered pairs of heads, a head with itself included.

    Args:
        modules: {module: list of heads}.
    """
    by_module = {name: layer_redundancy_by_divergence(heads) for name, heads in modules.items()}
    all_heads = [head for heads in modules.values() for head in heads]
    values = []
    for a in all_heads:
        for b in all_heads:
            divergences = [divergence(p, q) for p, q in zip(a, b, strict=True)]
            values.append(1 - sum(divergences) / len(divergences))
    return sum(by_module.values()) / len(by_module), sum(values) / len(values), by_module


def attention(module, query, key, causal):
    """Return the attention weights of one sentence, [H][T][visible keys].

    They are the softmax of the scaled products, with the bias of the mask if the module has one.

    Args:
        query, key: [T, 1, C], [S, 1, C].
        causal: whether query t sees only keys up to t.
    """
    heads, width = module.num_heads, module.head_dim
    q = module.q_proj(query).view(-1, heads, width).transpose(0, 1)
    k = module.k_proj(key).view(-1, heads, width).transpose(0, 1)
    scores = q @ k.transpose(1, 2) / math.sqrt(width)
    mask = getattr(module, "mask", None)
    bias = None if mask is None else mask(query, key, q[None], None, None)
    if bias is not None:
        scores = scores + bias[0]
    weights = []
    for head in scores.tolist():
        rows = [row[: t + 1] if causal else row for t, row in enumerate(head)]
        exponentials = [[math.exp(score) for score in row] for row in rows]
        weights.append([[e / sum(row) for e in row] for row in exponentials])
    return weights


def heads_of_sentences(model, sentences):
    """Return {type of attention: {module: list of heads}}, without rows of a single key.

    Args:
        sentences: the `net_input` of one sentence each.
    """
    found, calls = {}, []

    def record(name):
        def hook(module, args, kwargs):
            query, key = (*args, kwargs.get("query"), kwargs.get("key"))[:2]
            calls.append((name, module, query, key))

        return hook

    names = [name for name, _ in model.named_modules() if name.endswith(("self_attn", "encoder_attn"))]
    handles = [
        model.get_submodule(name).register_forward_pre_hook(record(name), with_kwargs=True) for name in names
    ]
    for sentence in sentences:
        model(**sentence)
    for handle in handles:
        handle.remove()
    for name, module, query, key in calls:
        cross, decoder = name.endswith("encoder_attn"), name.startswith("decoder")
        kind = (
            "cross-attention" if cross else "decoder self-attention" if decoder else "encoder self-attention"
        )
        heads = found.setdefault(kind, {}).setdefault(name, [[] for _ in range(module.num_heads)])
        for head, rows in zip(heads, attention(module, query, key, decoder and not cross), strict=True):
            head.extend(row for row in rows if len(row) > 1)
    return found
