"""Disentangled mask attention as the paper writes it, by loops and torch.distributions; only parameters are
shared with the package.
"""

import math

import torch
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal, kl_divergence


def mixture_of(module, head):
    """The prior of one head of a `GaussianMixture`: cluster weights, and the Gaussians [C] over D
    dimensions.
    """
    m = head if len(module.logits) > 1 else 0
    mu = module.scaled_centroids[m].double() * module.centroid_scale.double()
    deviation = (0.5 * module.log_variance[m].double().clamp(-8, 8)).exp()
    return Categorical(logits=module.logits[m].double()), Independent(Normal(mu, deviation), 1)


def noise_of(module, head, x):
    """q(z | x)."""
    return Independent(
        Normal(x, (0.5 * module.noise_log_variance[head].double().clamp(-8, 8)).exp().expand_as(x)), 1
    )


def density(module, head, z):
    """log p(z), z [..., D]."""
    return MixtureSameFamily(*mixture_of(module, head)).log_prob(z)


def posterior(module, head, z):
    """Eq. 4: [..., D] -> [..., C]."""
    weights, gaussians = mixture_of(module, head)
    joint = weights.probs * gaussians.log_prob(z.unsqueeze(-2)).exp()
    return joint / joint.sum(dim=-1, keepdim=True)


def expected_posterior(module, head, x):
    """Eq. 4 with E_q[log N(z | c)], which is minus the cross-entropy, in the place of log N(z | c)."""
    weights, gaussians = mixture_of(module, head)
    q = noise_of(module, head, x.unsqueeze(-2))
    cross_entropy = kl_divergence(q, gaussians) + q.entropy()
    return torch.softmax(weights.logits - cross_entropy, dim=-1)


def divergence(module, head, x, gamma):
    """KL(q(z, c | x) || p(z, c)) / D for q(z | x) q(c | x), q(c | x) = gamma: the expected divergence of z,
    and that of c.
    """
    weights, gaussians = mixture_of(module, head)
    of_z = kl_divergence(noise_of(module, head, x.unsqueeze(-2)), gaussians)
    return ((gamma * of_z).sum(dim=-1) + kl_divergence(Categorical(probs=gamma), weights)) / x.size(-1)


def mask(p_query, p_key, blocked=None):
    """Eq. 5: posteriors [T, C], [S, C] -> M [T, S]; the sum in it is over the keys that a query sees."""
    m = torch.zeros(len(p_query), len(p_key), dtype=p_query.dtype)
    for i, p_i in enumerate(p_query):
        for j, p_j in enumerate(p_key):
            if blocked is None or not blocked[i, j]:
                m[i, j] = sum(p_i[c] * p_j[c] for c in range(len(p_i)))
    return m / m.sum(dim=1, keepdim=True)


def masked_attention(scores, m, blocked=None):
    """The equation after Eq. 5: scores [T, S] -> attention weights [T, S]."""
    if blocked is not None:
        scores = scores.masked_fill(blocked, -math.inf)
    a = torch.softmax(scores, dim=1)
    return m * a / (m * a).sum(dim=1, keepdim=True)


def fold(scores, overlap, values):
    """Another form of it: multiply by the overlap G [..., T, S] after the softmax, and normalise the
    output.
    """
    weights = torch.softmax(scores, dim=-1) * overlap
    return weights @ values / weights.sum(dim=-1, keepdim=True)


def augmented_values(scores, p_query, p_key, values):
    """A third: attention without a bias over values p_j (x) [v_j, 1], contracted with p_i; posteriors [...,
    T, C], [..., S, C].
    """
    with_ones = torch.cat([values, torch.ones_like(values[..., :1])], dim=-1)
    wide = (p_key.unsqueeze(-1) * with_ones.unsqueeze(-2)).flatten(-2)
    out = (torch.softmax(scores, dim=-1) @ wide).unflatten(-1, (p_key.size(-1), -1))
    out = (p_query.unsqueeze(-1) * out).sum(dim=-2)
    return out[..., :-1] / out[..., -1:]


def class_likelihoods(p, densities="per_head", log_p=None):
    """p(q_i^h | c) of posteriors p [H, n, C]: by Bayes' rule with p(q_i) = 1/n, or exp(log_p [H, n]).
    "pooled": the sum over tokens is one over the tokens of all heads."""
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
    """Eq. 6 of every ordered pair of heads (a, b), by name of the pair: p [H, n, C] -> {(a, b): scalar}."""
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


def lower_bound(p, critic="head"):
    """Eq. 7 of every head: p [H, n, C] -> [scalar]."""
    heads, n, _ = p.shape

    def f(h, i, j):
        seen = [h] if critic == "head" else range(heads)
        return sum((p[h, i] * p[g, j]).sum() for g in seen) / len(seen)

    return [
        sum(torch.log(f(h, i, i).exp() / (sum(f(h, i, j).exp() for j in range(n)) / n)) for i in range(n)) / n
        for h in range(heads)
    ]
