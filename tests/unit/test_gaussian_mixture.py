"""Test modules/gaussian_mixture.py: the paper's densities, posteriors and divergences.

The tests also cover gradients, precision, and the two ways to multiply the gradient of centroids.
"""

import pytest
import torch
from torch.autograd import gradcheck

from modular_fairseq.benchmark.kernels import counting
from modular_fairseq.modules.gaussian_densities import WeightedSums
from modular_fairseq.modules.gaussian_mixture import GaussianMixture, cluster_together, compute_densities
from tests.reference import disentangled as reference

T, B, H, C, D = 5, 3, 4, 3, 6


def mixture(seed=0, heads=H, clusters=C, dim=D, **changes):
    """Return a mixture whose parameters are all far from their initial values."""
    torch.manual_seed(seed)
    module = GaussianMixture(heads, clusters, dim, **changes).double()
    with torch.no_grad():
        for p in (module.scaled_centroids, module.log_variance, module.logits):
            p.add_(0.5 * torch.randn_like(p))
        if module.noise_log_variance is not None:
            module.noise_log_variance.add_(3 + torch.randn_like(module.noise_log_variance))
        if module.noise_slope is not None:
            module.noise_slope.add_(0.3 * torch.randn_like(module.noise_slope))
    return module


def vectors(seed=1, heads=H, dim=D):
    return torch.randn(T, B, heads, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def close(found, expected, atol=1e-12, rtol=0.0):
    torch.testing.assert_close(found, expected, atol=atol, rtol=rtol)


@pytest.mark.parametrize(
    ("mode", "variance"), [("lr", "learned"), ("hook", "learned"), ("lr", "computed"), ("lr", "fixed")]
)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("posterior", ["expected", "sample"])
def test_posteriors_densities_and_divergences_are_the_papers(posterior, shared, mode, variance):
    changes = {"posterior": posterior, "centroid_mode": mode, "variance": variance}
    module, x = mixture(shared=shared, **changes).eval(), vectors()
    found = module(x, divergence=True)
    assert found.posterior.shape == found.log_joint.shape == (B, H, C, T) and found.divergence.shape == (
        B,
        H,
        T,
    )
    close(torch.softmax(found.log_joint, dim=2), found.posterior)
    for h in range(H):
        of_head = x[:, :, h].transpose(0, 1)  # [B, T, D]
        gamma = (reference.posterior if posterior == "sample" else reference.expected_posterior)(
            module, h, of_head
        )
        close(found.posterior[:, h].transpose(1, 2), gamma)
        close(found.divergence[:, h], reference.divergence(module, h, of_head, gamma))
        if posterior == "sample":
            close(torch.logsumexp(found.log_joint[:, h], dim=1), reference.density(module, h, of_head))


def test_variances_stay_within_e_to_the_8():
    module, x = mixture().eval(), vectors()
    with torch.no_grad():
        module.log_variance[0, 0], module.log_variance[1, 1], module.log_variance[2, 2] = 20, -20, 7
        module.noise_log_variance[0, 0], module.noise_log_variance[1, 1] = 100, -100
    found = module(x, divergence=True)
    for h in range(H):
        of_head = x[:, :, h].transpose(0, 1)
        close(
            found.posterior[:, h].transpose(1, 2),
            reference.expected_posterior(module, h, of_head),
            atol=1e-11,
        )
        gamma = found.posterior[:, h].transpose(1, 2)
        close(found.divergence[:, h], reference.divergence(module, h, of_head, gamma), rtol=1e-11)


@pytest.mark.parametrize("variance", ["learned", "computed", "fixed"])
def test_in_training_the_clusters_and_their_divergence_are_those_of_a_sample(variance):
    module, x = mixture(posterior="sample", variance=variance).train(), vectors()
    torch.manual_seed(5)
    found = module(x.requires_grad_(), divergence=True)
    torch.manual_seed(5)
    noise = torch.randn_like(x)
    heads = [reference.noise_of(module, h, x[:, :, h]).base_dist.stddev for h in range(H)]
    z = x + torch.stack(heads, dim=2) * noise
    given = [x, *module.parameters()]
    expected = []
    for h in range(H):
        gamma = reference.posterior(module, h, z[:, :, h].transpose(0, 1))
        close(found.posterior[:, h].transpose(1, 2), gamma)
        expected.append(reference.divergence(module, h, x[:, :, h].transpose(0, 1), gamma))
        close(found.divergence[:, h], expected[-1])
    weights = torch.randn(H, B, T, dtype=torch.float64)
    fast = torch.autograd.grad((found.divergence.transpose(0, 1) * weights).sum(), given)
    for a, b in zip(fast, torch.autograd.grad((torch.stack(expected) * weights).sum(), given), strict=True):
        close(a, b, atol=1e-11, rtol=1e-11)
    assert not torch.equal(found.posterior, module(x).posterior)
    module.eval()
    assert torch.equal(module(x).posterior, module(x).posterior)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("posterior", ["expected", "sample"])
def test_gradients_are_those_of_the_naive_form(posterior, shared):
    module, x = mixture(shared=shared, posterior=posterior).eval(), vectors().requires_grad_()
    weights = torch.randn(B, H, C, T, dtype=torch.float64), torch.randn(B, H, T, dtype=torch.float64)
    inputs = [x, *module.parameters()]

    found = module(x, divergence=True)
    fast = torch.autograd.grad(
        (found.posterior * weights[0]).sum() + (found.divergence * weights[1]).sum(),
        inputs,
        allow_unused=True,
    )
    naive = 0
    for h in range(H):
        of_head = x[:, :, h].transpose(0, 1)
        gamma = (reference.posterior if posterior == "sample" else reference.expected_posterior)(
            module, h, of_head
        )
        naive = naive + (gamma.transpose(1, 2) * weights[0][:, h]).sum()
        naive = naive + (reference.divergence(module, h, of_head, gamma) * weights[1][:, h]).sum()
    for a, b in zip(fast, torch.autograd.grad(naive, inputs, allow_unused=True), strict=True):
        close(a, b, atol=1e-11, rtol=1e-11)


def test_weighted_sums_pass_gradcheck():
    inputs = [
        torch.randn(*shape, dtype=torch.float64, requires_grad=True)
        for shape in ((2, 4, 3), (2, 5, 3), (2, 5, 3))
    ]
    assert gradcheck(WeightedSums.apply, inputs)


def test_the_divergence_is_that_of_a_million_draws():
    """KL(q(z, c) || p(z, c)) = E_q[log q(z) + log q(c) - log p(z, c)] holds within three standard errors."""
    module, x = mixture(heads=1).eval(), vectors(heads=1)[:1, :1]
    found = module(x, divergence=True)
    with torch.no_grad():
        gamma = torch.distributions.Categorical(probs=found.posterior[0, 0, :, 0])
        weights, gaussians = reference.mixture_of(module, 0)
        q = reference.noise_of(module, 0, x[0, 0, 0])
        torch.manual_seed(0)
        z, c = q.sample((1_000_000,)), gamma.sample((1_000_000,))
        log_ratio = q.log_prob(z) + gamma.log_prob(c) - weights.log_prob(c)
        log_ratio -= (
            torch.stack([log_prob_of_cluster(gaussians, z, k) for k in range(C)], dim=1)
            .gather(1, c.unsqueeze(1))
            .squeeze(1)
        )
    error = log_ratio.std() / 1000
    assert 0 < error < 0.02
    assert abs(log_ratio.mean() - D * found.divergence.item()) < 3 * error


def log_prob_of_cluster(gaussians, z, k):
    base = gaussians.base_dist
    return torch.distributions.Normal(base.loc[k], base.scale[k]).log_prob(z).sum(dim=1)


def test_the_expected_posterior_is_the_one_of_least_divergence():
    module, x = mixture().eval(), vectors()
    found = module(x, divergence=True)
    generator = torch.Generator().manual_seed(3)
    for _ in range(20):
        other = torch.softmax(
            found.log_joint + 0.3 * torch.randn(B, H, C, T, generator=generator, dtype=torch.float64), dim=2
        )
        for h in range(H):
            of_head = x[:, :, h].transpose(0, 1)
            assert (
                reference.divergence(module, h, of_head, other[:, h].transpose(1, 2))
                >= found.divergence[:, h] - 1e-12
            ).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.cpu_only("it uses the autocast of the CPU")
def test_all_is_computed_in_float32_whatever_the_precision(dtype):
    module, x = mixture().to(dtype), vectors().to(dtype)
    whole = mixture()
    whole.load_state_dict(module.state_dict())
    expected = whole.float()(x.float(), divergence=True)
    found = module(x, divergence=True)
    assert found.posterior.dtype == found.divergence.dtype == torch.float32
    close(found.posterior, expected.posterior, atol=1e-6)
    close(found.divergence, expected.divergence, rtol=1e-6)
    with torch.autocast("cpu", dtype=dtype):
        close(whole(x.float(), divergence=True).posterior, expected.posterior, atol=1e-6)


def test_float32_is_exact_enough_in_many_dimensions():
    module = mixture(clusters=8, dim=128)
    x = vectors(dim=128)
    exact = module(x, divergence=True)
    found = module.float()(x.float(), divergence=True)
    close(found.posterior.double(), exact.posterior, atol=2e-5)
    close(found.divergence.double(), exact.divergence, rtol=1e-6)


def test_a_fresh_mixture_is_undecided():
    """A fresh mixture changes plain attention little.

    The measure is the mean of the largest posterior on normalised input. It is 0.25 for uniform posteriors.
    """
    torch.manual_seed(0)
    module, x = GaussianMixture(4, 4, 128), torch.randn(30, 20, 4, 128)
    found = module(x, divergence=True)
    assert 0.4 < found.posterior.max(dim=2).values.mean() < 0.6
    assert 1.9 < found.divergence.mean() < 2.1


def centroids(mixture):
    return mixture.scaled_centroids * mixture.centroid_scale


def steps(mode, optimizer, factor=10.0, lr=1e-3):
    """Return how far the centroid of a single cluster moves in 100 steps."""
    torch.manual_seed(0)
    module = GaussianMixture(1, 1, D, centroid_gradient=factor, centroid_mode=mode)
    start = centroids(module).detach().clone()
    x = 3 + torch.randn(T, B, 1, D)
    optimizer = optimizer([module.scaled_centroids], lr=lr)
    for _ in range(100):
        optimizer.zero_grad()
        module(x, divergence=True).divergence.mean().backward()
        optimizer.step()
    return (centroids(module) - start).abs().mean().item()


def test_under_adam_only_the_mode_lr_makes_longer_steps():
    """The paper multiplies the gradient. Adam divides by the size of the gradient, so the factor has no
    effect there.
    """
    plain = steps("hook", torch.optim.Adam, factor=1.0)
    assert abs(steps("hook", torch.optim.Adam) / plain - 1) < 1e-4
    assert 9 < steps("lr", torch.optim.Adam) / plain < 10.5
    plain = steps("hook", torch.optim.SGD, factor=1.0)
    assert 9 < steps("hook", torch.optim.SGD) / plain < 10.5


@pytest.mark.parametrize("mode", ["lr", "hook"])
def test_both_modes_start_from_the_same_centroids(mode):
    torch.manual_seed(0)
    module = GaussianMixture(2, 3, 64, centroid_mode=mode)
    torch.manual_seed(0)
    expected = centroids(GaussianMixture(2, 3, 64, centroid_gradient=1.0))
    close(centroids(module), expected, atol=1e-6)
    assert 0.11 < centroids(module).std() < 0.14  # 1 / sqrt(64)


@pytest.mark.parametrize(
    "trained", [{"centroid_gradient": 10.0}, {"centroid_gradient": 3.0}, {"centroid_mode": "hook"}]
)
@pytest.mark.parametrize(
    "loaded", [{"centroid_gradient": 10.0}, {"centroid_gradient": 5.0}, {"centroid_mode": "hook"}]
)
def test_options_of_training_do_not_change_what_a_checkpoint_computes(trained, loaded):
    module, x = mixture(**trained), vectors()
    again = mixture(seed=9, **loaded)
    again.load_state_dict(module.state_dict())
    close(again(x).posterior, module(x).posterior, atol=1e-6 if trained != loaded else 0)
    if trained == loaded:
        assert torch.equal(again.scaled_centroids, module.scaled_centroids)
    else:
        assert again.centroid_scale == mixture(**loaded).centroid_scale


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"clusters": 0}, "clusters must be at least 1, not 0"),
        ({"centroid_gradient": 0.0}, "centroid_gradient must be positive and finite, not 0.0"),
        ({"centroid_gradient": float("nan")}, "centroid_gradient must be positive and finite, not nan"),
        ({"posterior": "mean"}, "posterior is 'mean'; it must be one of expected, sample"),
        ({"centroid_mode": "adam"}, "centroid_mode is 'adam'; it must be one of lr, hook"),
    ],
)
def test_bad_settings_are_refused(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        GaussianMixture(**{"num_heads": 2, "clusters": 3, "dim": 4, **changes})


@pytest.mark.parametrize("variance", ["learned", "computed", "fixed"])
@pytest.mark.parametrize("posterior", ["expected", "sample"])
@pytest.mark.parametrize("shared", [False, True])
def test_mixtures_together_are_each_themselves(shared, posterior, variance):
    """In evaluation, as samples of several mixtures come from one random draw."""
    settings = {"shared": shared, "posterior": posterior, "variance": variance}
    modules = [randomized(GaussianMixture(2, 4, D, **settings).double().eval()) for _ in range(3)]
    x = torch.randn(3, T, B, 2, D, dtype=torch.float64)
    together = cluster_together(modules, x, divergence=True)
    for number, module in enumerate(modules):
        alone = module(x[number], divergence=True)
        for name in ("posterior", "log_joint", "divergence"):
            close(getattr(together, name)[number], getattr(alone, name), atol=1e-12)


def test_densities_that_were_computed_for_all_mixtures_give_the_same_clusters_and_gradients():
    modules = [randomized(GaussianMixture(2, 4, D).double()) for _ in range(3)]
    modules.append(randomized(GaussianMixture(2, 5, D).double()))  # of another kind
    x = torch.randn(T, B, 2, D, dtype=torch.float64)
    parameters = [p for module in modules for p in module.parameters()]

    def results():
        found = [module(x, divergence=True) for module in modules]
        total = sum((each.posterior.square().sum() + each.divergence.sum()) for each in found)
        return [each.posterior for each in found], torch.autograd.grad(total, parameters)

    expected = results()
    compute_densities(modules)
    found = results()
    for one, other in zip((*found[0], *found[1]), (*expected[0], *expected[1]), strict=True):
        close(one, other, atol=1e-12)


def randomized(module):
    for p in module.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return module


def test_densities_are_kept_for_a_search_and_not_used_in_another_precision():
    module = randomized(GaussianMixture(2, 4, D))
    x = torch.randn(T, B, 2, D)
    expected = module(x).posterior
    module.make_generation_fast_()
    with torch.no_grad():
        close(module(x).posterior, expected, atol=1e-6)
        with counting() as count:
            found = module(x).posterior
        close(found, expected, atol=1e-6)
        assert count.total() <= 5
        assert module.double()(x.double()).posterior.dtype == torch.float64


def test_computed_variances_stay_within_e_to_the_8():
    module, x = mixture(variance="computed").eval(), vectors()
    with torch.no_grad():
        module.noise_log_variance[0], module.noise_log_variance[1] = 100, -100
    found = module(x, divergence=True)
    for h in range(H):
        of_head = x[:, :, h].transpose(0, 1)
        posterior = found.posterior[:, h].transpose(1, 2)
        close(posterior, reference.expected_posterior(module, h, of_head), atol=1e-11)
        close(found.divergence[:, h], reference.divergence(module, h, of_head, posterior), rtol=1e-11)


def test_a_factor_below_1_makes_the_gradient_of_centroids_smaller():
    found = []
    for factor in (1.0, 0.5):
        torch.manual_seed(0)
        module = GaussianMixture(2, 3, 4, centroid_gradient=factor, centroid_mode="hook")
        module(torch.randn(5, 3, 2, 4), divergence=True).divergence.sum().backward()
        found.append(module.scaled_centroids.grad)
    assert found[0].abs().sum() > 0
    torch.testing.assert_close(found[1], 0.5 * found[0])
