"""Test modules/mutual_information.py: all estimators equal their loops, also with padding."""

import math

import pytest
import torch

from modular_fairseq.modules.mutual_information import (
    cluster_information,
    lower_bound,
    released_estimate,
    upper_bound,
)
from tests.reference import disentangled as reference

B, H, C, T = 4, 3, 4, 6
# The first sentence has no padding, and the others are padded on the left or on the right.
LENGTHS = [
    6,
    4,
    2,
    1,
]


def posteriors(seed=0, sharpness=2.0, clusters=C, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    log_joint = sharpness * torch.randn(B, H, clusters, T, generator=generator, dtype=dtype)
    return log_joint.requires_grad_(), torch.softmax(log_joint, dim=2)


def valid_tokens():
    valid = torch.zeros(B, T, dtype=torch.bool)
    for b, n in enumerate(LENGTHS):
        valid[b, slice(0, n) if b % 2 else slice(T - n, T)] = True
    return valid


def by_loop(p, log_joint, densities, estimate=reference.upper_bound):
    """Compute Eq. 6 of each sentence by a loop: the mean over all ordered pairs of heads."""
    values = []
    for b, valid in enumerate(valid_tokens()):
        of_sentence = p[b][:, :, valid].transpose(1, 2)
        if of_sentence.size(1) < 2:
            values.append(p.new_zeros(()))
            continue
        log_p = torch.logsumexp(log_joint[b][:, :, valid], dim=1) if densities == "gmm" else None
        pairs = estimate(of_sentence, reference.class_likelihoods(of_sentence, densities, log_p))
        values.append(sum(pairs.values()) / len(pairs))
    return torch.stack(values)


def assert_equal_with_gradients(found, expected, log_joint):
    """Check that the bounds of all sentences and their gradients are equal.

    The last sentence has too few tokens for a bound.
    """
    weights = torch.arange(1.0, B + 1, dtype=torch.float64)
    assert expected[:3].abs().min() > 1e-3
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    (gradient,) = torch.autograd.grad((found * weights).sum(), log_joint, retain_graph=True)
    (wanted,) = torch.autograd.grad((expected * weights).sum(), log_joint)
    assert wanted.abs().max() > 1e-3
    torch.testing.assert_close(gradient, wanted, atol=1e-12, rtol=0)


@pytest.mark.parametrize("densities", ["pooled", "per_head", "gmm"])
def test_the_upper_bound_and_its_gradient_are_those_of_equation_6(densities):
    log_joint, p = posteriors()
    found = upper_bound(p, log_joint, valid_tokens(), densities)
    assert_equal_with_gradients(found, by_loop(p, log_joint, densities), log_joint)


def test_pooled_bounds_are_the_same_for_both_orders_of_a_pair():
    log_joint, p = (each[:, :2] for each in posteriors())

    def bound(densities, p, log_joint):
        torch.manual_seed(1)  # of the two pairs of "per_head", the same one is drawn
        return upper_bound(p, log_joint, valid_tokens(), densities, pairs=1)

    for densities in ("pooled", "per_head"):
        difference = bound(densities, p, log_joint) - bound(densities, p.flip(1), log_joint.flip(1))
        assert (difference.abs().max() < 1e-14) == (densities == "pooled")


@pytest.mark.parametrize("densities", ["pooled", "per_head", "gmm"])
def test_the_released_estimate_and_its_gradient_are_those_of_the_loop(densities):
    log_joint, p = posteriors()
    found = released_estimate(p, log_joint, valid_tokens(), densities)
    expected = by_loop(p, log_joint, densities, reference.released_estimate)
    assert_equal_with_gradients(found, expected, log_joint)
    assert (found >= 0).all()


def test_the_released_estimate_is_0_for_heads_in_different_clusters():
    """Eq. 6 has no lowest value for such heads, and its gradient drives them further apart."""
    valid = torch.ones(1, 8, dtype=torch.bool)
    found = {}
    for sharpness in (5.0, 20.0):
        log_joint = torch.zeros(1, 2, 2, 8, dtype=torch.float64)
        log_joint[0, 0, 0], log_joint[0, 1, 1] = sharpness, sharpness
        log_joint[0, :, :, ::2] *= -1  # every token is in another cluster than its neighbours
        found[sharpness] = [
            estimate(torch.softmax(log_joint, dim=2), log_joint, valid).item()
            for estimate in (upper_bound, released_estimate)
        ]
    (high, small), (low, smaller) = found[5.0], found[20.0]
    assert low < 2 * high < 0 and 0 < small < 1e-2 and abs(smaller) < 2e-6


def test_the_information_of_clusters_and_its_gradient_are_those_of_the_loop():
    log_joint, p = posteriors()
    expected = []
    for b, valid in enumerate(valid_tokens()):
        pairs = reference.cluster_information(p[b][:, :, valid].transpose(1, 2))
        expected.append(sum(pairs.values()) / len(pairs))
    assert_equal_with_gradients(cluster_information(p, valid_tokens()), torch.stack(expected), log_joint)


def test_the_information_of_clusters_is_log_c_for_equal_heads_and_0_for_independent_ones():
    equal = torch.eye(4).repeat(1, 4)
    crossed = torch.eye(4).repeat_interleave(4, dim=1)  # each cluster meets each cluster of `equal` once
    valid = torch.ones(1, 16, dtype=torch.bool)
    same = cluster_information(torch.stack([equal, equal]).unsqueeze(0), valid)
    independent = cluster_information(torch.stack([equal, crossed]).unsqueeze(0), valid)
    assert abs(same.item() - math.log(4)) < 1e-6 and abs(independent.item()) < 1e-6


@pytest.mark.parametrize("critic", ["head", "mean", "others"])
def test_the_lower_bound_and_its_gradient_are_those_of_equation_7(critic):
    log_joint, p = posteriors()
    expected = []
    for b, valid in enumerate(valid_tokens()):
        of_heads = reference.lower_bound(p[b][:, :, valid].transpose(1, 2), critic)
        expected.append(sum(of_heads) / H)
    assert_equal_with_gradients(lower_bound(p, valid_tokens(), critic), torch.stack(expected), log_joint)


def test_some_pairs_are_as_good_as_all_on_average():
    log_joint, p = posteriors()
    whole, valid = upper_bound(p, log_joint, valid_tokens()), valid_tokens()
    torch.manual_seed(0)
    draws = torch.stack([upper_bound(p, log_joint, valid, pairs=1) for _ in range(300)])
    assert len(draws.unique(dim=0)) == 3  # 3 heads have 3 pairs
    torch.testing.assert_close(draws.unique(dim=0).mean(dim=0), whole, atol=1e-12, rtol=0)
    assert (draws.mean(dim=0) - whole).abs().max() < 4 * (draws.std(dim=0) / math.sqrt(300)).max()
    assert torch.equal(upper_bound(p, log_joint, valid, pairs=3), whole) and torch.equal(
        upper_bound(p, log_joint, valid, pairs=9), whole
    )
    (gradient,) = torch.autograd.grad(upper_bound(p, log_joint, valid, pairs=2).sum(), log_joint)
    assert gradient.isfinite().all() and gradient.abs().max() > 1e-3


@pytest.mark.parametrize("densities", ["pooled", "per_head", "gmm"])
def test_padding_changes_nothing_and_gets_no_gradient(densities):
    log_joint, p = posteriors()
    valid = valid_tokens()
    noise = torch.randn_like(log_joint).masked_fill(valid[:, None, None, :], 0.0)
    other = (log_joint + noise).detach().requires_grad_()
    q = torch.softmax(other, dim=2)
    torch.testing.assert_close(
        upper_bound(q, other, valid, densities),
        upper_bound(p, log_joint, valid, densities),
        atol=1e-13,
        rtol=0,
    )
    torch.testing.assert_close(lower_bound(q, valid), lower_bound(p, valid), atol=1e-13, rtol=0)
    released = released_estimate(q, other, valid, densities)
    torch.testing.assert_close(
        released, released_estimate(p, log_joint, valid, densities), atol=1e-13, rtol=0
    )
    information = cluster_information(q, valid)
    torch.testing.assert_close(information, cluster_information(p, valid), atol=1e-13, rtol=0)
    all_losses = upper_bound(q, other, valid, densities) + lower_bound(q, valid) + released + information
    (gradient,) = torch.autograd.grad(all_losses.sum(), other)
    assert (gradient.masked_select(valid[:, None, None, :].logical_not()) == 0).all()


@pytest.mark.parametrize("densities", ["pooled", "per_head", "gmm"])
@pytest.mark.parametrize("sharpness", [0.0, 1.0, 40.0, 1000.0])
def test_one_token_no_token_and_decided_clusters_are_finite(densities, sharpness):
    log_joint, p = posteriors(sharpness=sharpness, dtype=torch.float32)
    valid = torch.zeros(B, T, dtype=torch.bool)
    valid[0], valid[1, 2], valid[2, :2] = True, True, True  # all tokens, one, two, none
    upper, lower = upper_bound(p, log_joint, valid, densities), lower_bound(p, valid)
    released, information = released_estimate(p, log_joint, valid, densities), cluster_information(p, valid)
    (gradient,) = torch.autograd.grad((upper + lower + released + information).sum(), log_joint)
    assert upper.isfinite().all() and lower.isfinite().all() and gradient.isfinite().all()
    assert released.isfinite().all() and information.isfinite().all()
    assert released[1] == released[3] == 0 and information[3] == 0 and abs(information[1]) < 1e-5
    assert upper[1] == upper[3] == 0 and lower[3] == 0 and abs(lower[1]) < 1e-6
    assert (lower.abs() <= 1).all()


def test_equal_heads_share_more_than_independent_ones():
    """If the tokens of one head are shuffled, Eq. 6 must show that it knows nothing of the other."""
    generator = torch.Generator().manual_seed(0)
    one = torch.softmax(3 * torch.randn(1, 1, 4, 40, generator=generator), dim=2)
    shuffled = one[..., torch.randperm(40, generator=generator)]
    valid = torch.ones(1, 40, dtype=torch.bool)
    heads = [torch.cat([one, other], dim=1) for other in (one, shuffled)]
    same, independent = (upper_bound(p, p.log(), valid).item() for p in heads)
    assert same > 0.5 and abs(independent) < 0.3


def test_the_lower_bound_of_decided_clusters_of_equal_size():
    """The largest value of the bound is 1 - log(1 + (e - 1) / C), which is 0.643 for C = 4."""
    p = torch.eye(4).repeat(1, 10).view(1, 1, 4, 40).expand(1, 2, 4, 40)
    found = lower_bound(p, torch.ones(1, 40, dtype=torch.bool)).item()
    assert abs(found - (1 - math.log(1 + (math.e - 1) / 4))) < 1e-6


def test_one_cluster_and_one_head_have_nothing_to_tell():
    valid = torch.ones(B, T, dtype=torch.bool)
    log_joint, p = posteriors(clusters=1)
    assert upper_bound(p, log_joint, valid).abs().max() < 1e-12 and lower_bound(p, valid).abs().max() < 1e-12
    log_joint, p = posteriors()
    assert (upper_bound(p[:, :1], log_joint[:, :1], valid) == 0).all()
    assert (released_estimate(p[:, :1], log_joint[:, :1], valid) == 0).all()
    assert (cluster_information(p[:, :1], valid) == 0).all()


def test_unknown_variants_are_refused():
    log_joint, p = posteriors()
    with pytest.raises(ValueError, match="densities is 'perhead'; it must be one of pooled, per_head, gmm"):
        upper_bound(p, log_joint, valid_tokens(), "perhead")
    with pytest.raises(ValueError, match="densities is 'perhead'; it must be one of pooled, per_head, gmm"):
        released_estimate(p, log_joint, valid_tokens(), "perhead")
    with pytest.raises(ValueError, match="critic is 'all'; it must be one of head, mean, others"):
        lower_bound(p, valid_tokens(), "all")
    with pytest.raises(ValueError, match="the critic 'others' needs at least 2 heads"):
        lower_bound(p[:, :1], valid_tokens(), "others")
