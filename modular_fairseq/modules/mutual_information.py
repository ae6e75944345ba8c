"""Bounds on the mutual information between attention heads (DMA, section 3.2).

The paper is "Bayesian Transformer Using Disentangled Mask Attention" (Chien and Huang 2022). The bounds are
computed from the cluster posteriors p(c | q_i^h) of the queries of n tokens in H heads. Eq. 6 is an upper
bound on I(q^a, q^b), and Eq. 7 is a lower bound on I(x, q^h):

    L_Dqq = mean_i [ log p(q_i^a | q_i^b) - 1/(n-1) sum_{j != i} log p(q_i^a | q_j^b) ]    Eq. 6
    p(q_i^a | q_j^b) = sum_c p(q_i^a | c) p(c | q_j^b)
    p(q_i^a | c) = p(c | q_i^a) p(q_i^a) / sum_i' p(c | q_i'^a) p(q_i'^a)

    L_Dxq = mean_i [ f(q_i^h, x_i) - log 1/n sum_j exp f(q_i^h, x_j) ]                     Eq. 7
    f(q_i^h, x_j) = sum_c p(c | q_i^h) p(c | q_j^h')

In Eq. 6 the factor p(q_i^a) is the same in both terms and cancels. Let U_ic = p(c | q_i^a) w_c, where w_c is
1 over the sum in the last denominator. Then p(q_i^a | q_j^b) may be replaced by G_ij = sum_c U_ic p(c |
q_j^b). For the same reason each row of U may be multiplied by any factor.

Minimised, Eq. 6 has no lowest value, because the p(q_i^a | q_j^b) above is a model and not the true density.
Two other estimators of L_Dqq are at least 0, the first one up to 1e-6:

    released   mean_i [ -log(1 - p(q_i^a | q_i^b)) ], as in the code that the authors released
    clusters   sum_{c, d} J_cd log(J_cd / (J_c J_d)),    J_cd = mean_i p(c | q_i^a) p(d | q_i^b)

The second one is the mutual information of the cluster c of a query in head a and the cluster d of the query
of the same token in head b. It is the variational upper bound E[log p(c | d) / r(c)] (Poole et al. 2019, "On
Variational Bounds of Mutual Information", Eq. 1), which holds for every r, at the r for which it is equal to
the mutual information. p(c | d) is known exactly, as the clusters are discrete.

All of them are computed for each sentence, from the tokens of that sentence only. Eq. 6 and Eq. 7 compute
their gradient in the forward pass, while the products of all pairs of tokens are at hand. Only the gradient
is kept, which has the size of the posteriors.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from modular_fairseq.modules.autocasting import no_autocast
from modular_fairseq.modules.choices import check_choice

DENSITIES = ("pooled", "per_head", "gmm")
ESTIMATORS = ("eq6", "released", "clusters")
CRITICS = ("head", "mean", "others")
SMALLEST = 1e-30  # lower limit of G_ij, which is a density up to a factor
# Eq. 6 is computed for as many pairs of heads at once as have this many elements [B, pairs, T, T].
LARGEST_ON_CPU = 1 << 19  # more do not fit into the caches of a core
LARGEST_ON_GPU = 1 << 25
NEVER_CERTAIN = 1e-6  # added to 1 - p in the released estimator, which would be infinite for p = 1


def upper_bound(
    posterior: Tensor, log_joint: Tensor, valid: Tensor, densities: str = "pooled", pairs: int = 0
) -> Tensor:
    """Compute L_Dqq (Eq. 6) for each sentence [B], the mean over pairs of heads.

    Args:
        posterior: p(c | q_i^h), [B, H, C, T].
        log_joint: log p(c, q_i^h), of which the posterior is the softmax over c.
        valid: bool [B, T], False = padding.
        densities: the density p(q_i) in p(q_i | c). "pooled": 1/n, with one sum over the tokens of all heads,
            which share the clusters. The sum is taken as constant (no gradient). The ordered pairs (a, b) and
            (b, a) then have the same bound, so only half of them are computed. "per_head": 1/n, with one sum
            for each head. "gmm": the density of the mixture, which is the literal reading. In many dimensions
            p(q_i | c) is then nearly one-hot over tokens.
        pairs: if positive, use only this number of pairs, drawn at random. The expectation is the same.

    Returns:
        [B], 0 for sentences of fewer than 2 tokens and for 1 head. It is a bound only in expectation, and
        only where p(q_i | q_j) is the true density. As computed here it has no lowest value: it is far below
        0 for heads whose tokens are never in the same clusters.

    Raises:
        ValueError: `densities` is unknown.
    """
    check_choice("densities", densities, DENSITIES)
    _, log_sums = _class_sums(log_joint, valid, densities)
    # Each row of U is divided by its sum. Therefore no row underflows, however unlikely its token is.
    u = torch.softmax(log_joint - log_sums, dim=2)
    heads = posterior.size(1)
    chosen = [
        (a, b) for a in range(heads) for b in range(heads) if a < b or (a != b and densities != "pooled")
    ]
    if 0 < pairs < len(chosen):
        chosen = [chosen[i] for i in torch.randperm(len(chosen))[:pairs].tolist()]
    return _with_gradient(lambda u, p: _leave_one_out(u, p, valid, chosen), u, posterior)


def lower_bound(posterior: Tensor, valid: Tensor, critic: str = "head") -> Tensor:
    """Compute L_Dxq (Eq. 7) for each sentence [B], the mean over heads.

    Args:
        posterior: p(c | q_i^h), [B, H, C, T].
        valid: bool [B, T], False = padding.
        critic: which head h' is in f, which the paper leaves open. "head": h itself, as I(x, q^h) concerns no
            other head, and Eq. 6 is to make heads independent. "mean": f is the mean over all h'. "others": f
            is the mean over all h' other than h, because the paper writes h' for another head than h.

    Returns:
        [B], between -1 and 1; 0 for a sentence of one token or none.

    Raises:
        ValueError: `critic` is unknown, or it is "others" and there is only 1 head.
    """
    check_choice("critic", critic, CRITICS)
    heads = posterior.size(1)
    if critic == "head":
        seen = posterior
    elif critic == "mean":
        seen = posterior.mean(dim=1, keepdim=True).expand_as(posterior)
    elif heads > 1:
        seen = (posterior.sum(dim=1, keepdim=True) - posterior) / (heads - 1)
    else:
        raise ValueError("the critic 'others' needs at least 2 heads")
    return _with_gradient(lambda p, seen: _noise_contrastive(p, seen, valid), posterior, seen)


def released_estimate(
    posterior: Tensor, log_joint: Tensor, valid: Tensor, densities: str = "pooled"
) -> Tensor:
    """Compute -log(1 - p(q_i^a | q_i^b)) for each sentence [B], the mean over tokens and pairs of heads.

    p(q_i^a | q_i^b) is the probability of token i among the tokens that `densities` sums over. The estimate
    is about 0 if the queries of a token are in different clusters in any two heads, and positive otherwise.

    Args:
        posterior, log_joint, valid, densities: see `upper_bound`. The released code has the densities "gmm".

    Returns:
        [B], above -1e-6; 0 for sentences of fewer than 2 tokens and for 1 head.

    Raises:
        ValueError: `densities` is unknown.
    """
    check_choice("densities", densities, DENSITIES)
    with no_autocast(posterior):
        log_p, log_sums = _class_sums(log_joint, valid, densities)
        likelihoods = (log_p - log_sums).exp()  # p(q_i | c), 0 for padding
        same_token = torch.einsum("bhct,bgct->bhgt", likelihoods, posterior).clamp(max=1)
        surprise = -torch.log(1 - same_token + NEVER_CERTAIN)
        n = valid.sum(dim=1)
        counted = (valid & (n > 1).unsqueeze(1)).to(surprise.dtype)
        return _mean_over_pairs(
            (surprise * counted[:, None, None]).sum(dim=3) / n.clamp_min(1)[:, None, None]
        )


def cluster_information(posterior: Tensor, valid: Tensor) -> Tensor:
    """Compute the mutual information of the clusters of two heads for each sentence [B], the mean over pairs.

    Args:
        posterior, valid: see `upper_bound`.

    Returns:
        [B] in nats, between 0 and log C; 0 for a sentence without tokens and for 1 head.
    """
    sentences, heads, clusters, length = posterior.shape
    with no_autocast(posterior):
        n = valid.sum(dim=1).clamp_min(1).to(posterior.dtype)
        counted = (posterior * valid[:, None, None]).flatten(1, 2)
        joint = torch.bmm(counted, counted.transpose(1, 2)) / n[:, None, None]
        marginal = counted.sum(dim=2) / n.unsqueeze(1)
        independent = marginal.unsqueeze(2) * marginal.unsqueeze(1)
        tiny = torch.finfo(joint.dtype).tiny
        terms = joint * (joint.clamp_min(tiny).log() - independent.clamp_min(tiny).log())
        return _mean_over_pairs(terms.view(sentences, heads, clusters, heads, clusters).sum(dim=(2, 4)))


def _mean_over_pairs(values: Tensor) -> Tensor:
    """Return the mean of values [B, H, H] over ordered pairs of different heads, [B]; 0 for 1 head."""
    heads = values.size(1)
    total = values.sum(dim=(1, 2)) - values.diagonal(dim1=1, dim2=2).sum(dim=1)
    return total / max(heads * (heads - 1), 1)


def _class_sums(log_joint: Tensor, valid: Tensor, densities: str) -> tuple[Tensor, Tensor]:
    """Return numerator [B, H, C, T] and denominator [B, H or 1, C, 1] of p(q_i | c), as logarithms.

    The numerator is log p(c, q_i) for the densities "gmm", else log p(c | q_i). It is very small for padding.
    The denominator is summed over the tokens of the sentence.
    """
    log_p = log_joint if densities == "gmm" else torch.log_softmax(log_joint, dim=2)
    log_p = log_p.masked_fill(valid.logical_not()[:, None, None, :], torch.finfo(log_p.dtype).min / 2)
    if densities == "pooled":
        return log_p, torch.logsumexp(log_p.detach(), dim=(1, 3), keepdim=True)
    return log_p, torch.logsumexp(log_p, dim=3, keepdim=True)


def _leave_one_out(
    u: Tensor, p: Tensor, valid: Tensor, pairs: list[tuple[int, int]]
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute Eq. 6, the mean over `pairs` of heads [B], and its gradients with respect to u and p.

    Args:
        u: U in the notation of this file, [B, H, C, T].
        p: posteriors, [B, H, C, T].
        valid: bool [B, T], False = padding.
        pairs: ordered pairs of heads.
    """
    length = u.size(3)
    weights = (_pair_weights(valid, u.dtype) / max(len(pairs), 1)).unsqueeze(1)
    value, du, dp = u.new_zeros(len(u)), torch.zeros_like(u), torch.zeros_like(p)
    largest = LARGEST_ON_CPU if u.device.type == "cpu" else LARGEST_ON_GPU
    at_once = max(largest // (len(u) * length * length), 1)  # pairs of heads
    for start in range(0, len(pairs), at_once):
        a, b = _indices(tuple(pairs[start : start + at_once]), u.device)
        of_a, of_b = u.index_select(1, a), p.index_select(1, b)  # B x pairs x C x T
        densities = torch.matmul(of_a.transpose(2, 3), of_b).clamp_min_(SMALLEST)
        slopes = weights / densities
        value += densities.log_().mul_(weights).sum(dim=(1, 2, 3))
        du.index_add_(1, a, torch.matmul(of_b, slopes.transpose(2, 3)))
        dp.index_add_(1, b, torch.matmul(of_a, slopes))
    return value, du, dp


@functools.lru_cache(maxsize=64)
def _indices(pairs: tuple[tuple[int, int], ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the first and the second heads of pairs as tensors."""
    first, second = torch.tensor(pairs, device=device).unbind(dim=1)
    return first, second


def _pair_weights(valid: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the weight of each pair of tokens in Eq. 6, [B, T, T].

    It is 1/n where i = j, else -1/(n (n - 1)). It is 0 for padding, and 0 everywhere in a sentence with n <
    2.
    """
    counted = valid.to(dtype)
    n = counted.sum(dim=1, keepdim=True)
    enough = (n > 1).to(dtype)
    others = counted * enough / (n * (n - 1)).clamp_min(1)
    weights = -others.unsqueeze(2) * counted.unsqueeze(1)
    weights.diagonal(dim1=1, dim2=2).copy_(counted * enough / n.clamp_min(1))
    return weights


def _noise_contrastive(p: Tensor, seen: Tensor, valid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute Eq. 7, the mean over heads [B], and its gradients with respect to p and seen.

    f_ij is p_i . seen_j.

    Args:
        p: posteriors of the queries, [B, H, C, T].
        seen: posteriors of the tokens as the critic sees them, [B, H, C, T].
        valid: bool [B, T], False = padding.
    """
    sentences, heads, clusters, length = p.shape
    counted = valid.to(p.dtype)
    n = counted.sum(dim=1, keepdim=True)
    weights = (counted / (n.clamp_min(1) * heads))[:, None]  # weights of (sentence, head, token)
    diagonal = (p * seen).sum(dim=2)
    # f is at most 1, so its exponential cannot overflow.
    ratios = torch.matmul(p.transpose(2, 3), seen).exp_().mul_(counted[:, None, None, :])
    sums = ratios.sum(dim=3)
    sums = torch.where(sums > 0, sums, 1.0)  # for a sentence that is only padding
    value = ((diagonal - sums.log() + n.clamp_min(1).log()[:, None]) * weights).sum(dim=(1, 2))
    ratios.mul_((weights / sums).unsqueeze(3))
    dp = (seen * weights.unsqueeze(2)).sub_(torch.matmul(seen, ratios.transpose(2, 3)))
    dseen = (p * weights.unsqueeze(2)).sub_(torch.matmul(p, ratios))
    return value, dp, dseen


def _with_gradient(
    bound: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]], x: Tensor, y: Tensor
) -> Tensor:
    """Return the value [B] of `bound(x, y)`; its backward pass uses the gradients that `bound` returns."""
    with no_autocast(x):
        return _WithGradient.apply(bound, x, y)


class _WithGradient(torch.autograd.Function):
    """A function whose gradients were computed in its forward pass."""

    @staticmethod
    def forward(ctx: Any, bound: Callable, x: Tensor, y: Tensor) -> Tensor:
        value, dx, dy = bound(x, y)
        ctx.save_for_backward(dx, dy)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, Tensor]:
        dx, dy = ctx.saved_tensors
        gradient = gradient[:, None, None, None]
        return None, dx * gradient, dy * gradient
