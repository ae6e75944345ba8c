"""Compute disentangled mask attention exactly as the paper writes it, by loops and torch.distributions.

Only the parameters are shared with the package.
"""

import itertools
import math

import torch
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal, kl_divergence


def mixture_of(module, head):
    """Return the prior of one head of a `GaussianMixture`: its cluster weights and its C Gaussians."""
    m = head if len(module.logits) > 1 else 0
    mu = module.scaled_centroids[m].double() * module.centroid_scale.double()
    deviation = (0.5 * module.log_variance[m].double().clamp(-8, 8)).exp()
    return Categorical(logits=module.logits[m].double()), Independent(Normal(mu, deviation), 1)


def noise_of(module, head, x):
    """Return q(z | x), x [..., D]."""
    if module.noise_log_variance is None:
        log_variance = torch.tensor(math.log(0.01), dtype=x.dtype)
    else:
        log_variance = module.noise_log_variance[head].double()
    if module.noise_slope is not None:
        log_variance = log_variance + (x * module.noise_slope[head].double()).sum(dim=-1, keepdim=True)
    return Independent(Normal(x, (0.5 * log_variance.clamp(-8, 8)).exp().expand_as(x)), 1)


def density(module, head, z):
    """Return log p(z), z [..., D]."""
    return MixtureSameFamily(*mixture_of(module, head)).log_prob(z)


def posterior(module, head, z):
    """Return p(c | z) (Eq. 4): z [..., D] -> [..., C]."""
    weights, gaussians = mixture_of(module, head)
    joint = weights.probs * gaussians.log_prob(z.unsqueeze(-2)).exp()
    return joint / joint.sum(dim=-1, keepdim=True)


def expected_posterior(module, head, x):
    """Return Eq. 4 with E_q[log N(z | c)] in the place of log N(z | c): x [..., D] -> [..., C].

    The expectation is minus the cross-entropy of q and N.
    """
    weights, gaussians = mixture_of(module, head)
    q = noise_of(module, head, x.unsqueeze(-2))
    cross_entropy = kl_divergence(q, gaussians) + q.entropy()
    return torch.softmax(weights.logits - cross_entropy, dim=-1)


def divergence(module, head, x, gamma):
    """Return KL(q(z, c | x) || p(z, c)) / D for q(z, c | x) = q(z | x) q(c | x).

    It is the expected divergence of z plus that of c.

    Args:
        x: [..., D].
        gamma: q(c | x), [..., C].
    """
    weights, gaussians = mixture_of(module, head)
    of_z = kl_divergence(noise_of(module, head, x.unsqueeze(-2)), gaussians)
    return ((gamma * of_z).sum(dim=-1) + kl_divergence(Categorical(probs=gamma), weights)) / x.size(-1)


def mask(p_query, p_key, blocked=None):
    """Return M [T, S] (Eq. 5) of posteriors [T, C] and [S, C].

    The sum in the denominator is over the keys that a query sees.

    Args:
        blocked: bool [T, S], True = the query does not see the key, or None.
    """
    m = torch.zeros(len(p_query), len(p_key), dtype=p_query.dtype)
    for i, p_i in enumerate(p_query):
        for j, p_j in enumerate(p_key):
            if blocked is None or not blocked[i, j]:
                m[i, j] = sum(p_i[c] * p_j[c] for c in range(len(p_i)))
    return m / m.sum(dim=1, keepdim=True)


def masked_attention(scores, m, blocked=None):
    """Return the attention weights [T, S] of the equation after Eq. 5, for scores and M [T, S]."""
    if blocked is not None:
        scores = scores.masked_fill(blocked, -math.inf)
    a = torch.softmax(scores, dim=1)
    return m * a / (m * a).sum(dim=1, keepdim=True)


def fold(scores, overlap, values):
    """Compute the masked attention in another form, from the overlap G [..., T, S].

    The weights are multiplied by G after the softmax, and the output is normalised.
    """
    weights = torch.softmax(scores, dim=-1) * overlap
    return weights @ values / weights.sum(dim=-1, keepdim=True)


def augmented_values(scores, p_query, p_key, values):
    """Compute the masked attention in a third form, without a bias.

    Attention over values p_j (x) [v_j, 1] is contracted with p_i. The posteriors are [..., T, C] and [..., S,
    C].
    """
    with_ones = torch.cat([values, torch.ones_like(values[..., :1])], dim=-1)
    wide = (p_key.unsqueeze(-1) * with_ones.unsqueeze(-2)).flatten(-2)
    out = (torch.softmax(scores, dim=-1) @ wide).unflatten(-1, (p_key.size(-1), -1))
    out = (p_query.unsqueeze(-1) * out).sum(dim=-2)
    return out[..., :-1] / out[..., -1:]


def class_likelihoods(p, densities="per_head", log_p=None):
    """Return p(q_i^h | c) of posteriors p [H, n, C], by Bayes' rule.

    Args:
        p: p(c | q_i^h).
        densities: "per_head" sums over the tokens of a head, "pooled" over the tokens of all heads.
        log_p: log p(q_i^h), [H, n]; without it p(q_i) = 1/n.
    """
    prior = torch.full(p.shape[:2], 1 / p.size(1), dtype=p.dtype) if log_p is None else log_p.exp()
    likelihoods = torch.zeros_like(p)
    for h in range(p.size(0)):
        for c in range(p.size(2)):
            if densities == "pooled":
                total = sum(
                    p[g, i, c] * prior[g, i] for g in range(p.size(0)) for i in range(p.size(1))
                ).detach()
            else:
                total = sum(p[h, i, c] * prior[h, i] for i in range(p.size(1)))
            for i in range(p.size(1)):
                likelihoods[h, i, c] = p[h, i, c] * prior[h, i] / total
    return likelihoods


def upper_bound(p, likelihoods):
    """Return Eq. 6 for every ordered pair of heads: p [H, n, C] -> {(a, b): scalar}."""
    heads, n, _ = p.shape

    def log_p(a, i, b, j):
        return (likelihoods[a, i] * p[b, j]).sum().log()

    return {
        (a, b): sum(
            log_p(a, i, b, i) / n - sum(log_p(a, i, b, j) for j in range(n) if j != i) / (n * (n - 1))
            for i in range(n)
        )
        for a in range(heads)
        for b in range(heads)
        if a != b
    }


def released_estimate(p, likelihoods):
    """Return the released code's L_Dqq for every ordered pair of heads: p [H, n, C] -> {(a, b): scalar}."""
    heads, n, _ = p.shape
    return {
        (a, b): sum(-torch.log(1 - (likelihoods[a, i] * p[b, i]).sum() + 1e-6) for i in range(n)) / n
        for a in range(heads)
        for b in range(heads)
        if a != b
    }


def cluster_information(p):
    """Return the mutual information of the clusters of every ordered pair of heads of p [H, n, C]."""
    heads, n, clusters = p.shape
    values = {}
    for a, b in itertools.permutations(range(heads), 2):
        values[a, b] = torch.zeros((), dtype=p.dtype)
        for c, d in itertools.product(range(clusters), repeat=2):
            joint = sum(p[a, i, c] * p[b, i, d] for i in range(n)) / n
            independent = p[a, :, c].mean() * p[b, :, d].mean()
            values[a, b] = values[a, b] + joint * (joint / independent).log()
    return values


def diversity(p):
    """Return the mean of the weighted (P P^T - I)^2 of every head: p [H, n, C] -> [scalar]."""
    heads, n, _ = p.shape
    return [
        sum(
            (1.25 if i == k else 0.75) * ((p[h, i] * p[h, k]).sum() - float(i == k)) ** 2
            for i in range(n)
            for k in range(n)
        )
        / n**2
        for h in range(heads)
    ]


def lower_bound(p, critic="head"):
    """Return Eq. 7 for every head: p [H, n, C] -> [scalar]."""
    heads, n, _ = p.shape

    def f(h, i, j):
        seen = {"head": [h], "mean": range(heads), "others": [g for g in range(heads) if g != h]}[critic]
        return sum((p[h, i] * p[g, j]).sum() for g in seen) / len(seen)

    return [
        sum(torch.log(f(h, i, i).exp() / (sum(f(h, i, j).exp() for j in range(n)) / n)) for i in range(n)) / n
        for h in range(heads)
    ]
