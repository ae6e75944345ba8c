"""A mixture of diagonal Gaussians as the prior of latent vectors (DMA, sections 2.2 and 3.1).

The paper is "Bayesian Transformer Using Disentangled Mask Attention" (Chien and Huang 2022). Each head has a
mixture of its own, or all heads share one:

    p(z) = sum_c pi_c N(z | mu_c, diag sigma_c^2)                                    the prior
    q(z | x) = N(x, diag s^2)                                                        x: the network's vector
    q(c | x) = pi_c N(z | mu_c, sigma_c^2) / sum_c' pi_c' N(z | mu_c', sigma_c'^2)   Eq. 4: cluster posterior
    KL(q(z, c | x) || p(z, c))                                                       the divergence of Eq. 3

s^2 has one of three forms. The paper calls the parameters of q(z | x) "calculated by the transformer layer"
(section 3.1), and its parameter counts leave room for vectors but not for matrices:

    learned     log s_d^2 = b_d                 one vector for each head
    computed    log s_d^2 = w . x + b_d         two vectors for each head; w = 0 at the start
    fixed       s_d^2 = 0.01                    as in the code that the authors released

The parameters of the prior are trained as they are, in all three: pi and sigma^2 as logarithms, and mu.
"""

import math
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from modular_fairseq.modules.autocasting import no_autocast
from modular_fairseq.modules.choices import check_choice
from modular_fairseq.modules.gaussian_densities import (
    Clustering,
    Densities,
    Sample,
    divergence_of,
    log_joint_of,
)
from modular_fairseq.modules.inference import Kept

POSTERIORS = ("expected", "sample")
CENTROID_MODES = ("lr", "hook")
VARIANCES = ("learned", "computed", "fixed")
FIRST_LOG_VARIANCE = -4.0
FIXED_VARIANCE = 0.01
LARGEST_LOG_VARIANCE = 8.0  # limit for clusters and for q(z | x); the lower limit is -8


class GaussianMixture(nn.Module):
    """Cluster the vectors of all heads, and measure their divergence from the prior.

    Everything is computed in float32 or better, whatever the precision of the model. Densities come from one
    weighted sum over dimensions:

        log pi_c N(z | c) = sum_d (-z_d^2 / 2 sigma_cd^2 + z_d mu_cd / sigma_cd^2) + constant of c

    It is computed as the sum of two matrix products with clusters as rows. On a CPU this is 3 times as fast
    as one product on [z^2, z] with clusters as columns.

    --weight-decay acts on all parameters, as fairseq knows no exceptions. At a learning rate of 5e-4 and a
    decay of 1e-4 they lose 5e-8 of their value in an update, which is negligible beside the gradient of the
    divergence.

    At the start pi is uniform, sigma = 1, mu ~ N(0, 1 / dim) and s^2 = e^-4. On normalised input the mask is
    then close to plain attention. With mu ~ N(0, 1) the clusters would be decided before they have learned
    anything.

    Args:
        num_heads: H.
        clusters: C.
        dim: D, the width of the vectors of a head.
        shared: whether all heads share one mixture; otherwise each head has its own. s is per head in both
            cases.
        posterior: "sample" draws z ~ q(z | x) in training (the paper's estimator) and takes z = x in
            evaluation. "expected" replaces log N(z | c) by E_q[log N(z | c)] = log N(x | c) - sum_d s_d^2 / 2
            sigma_cd^2, in training and in evaluation. It needs no random numbers: a training step takes 0.91
            of the time on a CPU. On the demo's corpus both translate equally well (98.7 BLEU; "sample" 99.1).
        centroid_gradient: the paper's factor c_grad, "to rapid the convergence" of centroids.
        centroid_mode: "hook" multiplies the gradient of centroids by c_grad, as the paper says. Adam undoes
            this, as it divides by the size of the gradient. "lr" stores mu = c_grad x parameter, which makes
            the steps of mu c_grad times as long under Adam. (It makes them c_grad^2 times as long with SGD,
            and has no such effect with optimizers that scale steps by the size of parameters.) Both modes
            multiply the gradient that gradient clipping sees. If training resumes with another value,
            centroids stay where they are, while Adam's moments at first have the old scale.
        variance: the form of s^2, one of `VARIANCES`; see the top of this file.

    Raises:
        ValueError: there is less than 1 cluster, the centroid gradient is not positive and finite, or the
            posterior, the centroid mode or the variance is unknown.

    Attributes:
        prepared: the densities, if they are known (`compute_densities`); otherwise every call computes them.
    """

    centroid_scale: Tensor

    def __init__(
        self,
        num_heads: int,
        clusters: int,
        dim: int,
        shared: bool = False,
        posterior: str = "expected",
        centroid_gradient: float = 10.0,
        centroid_mode: str = "lr",
        variance: str = "learned",
    ):
        super().__init__()
        if clusters < 1:
            raise ValueError(f"clusters must be at least 1, not {clusters}")
        if not 0 < centroid_gradient < math.inf:
            raise ValueError(f"centroid_gradient must be positive and finite, not {centroid_gradient}")
        for name, value, choices in (
            ("posterior", posterior, POSTERIORS),
            ("centroid_mode", centroid_mode, CENTROID_MODES),
            ("variance", variance, VARIANCES),
        ):
            check_choice(name, value, choices)
        self.num_heads = num_heads
        self.clusters = clusters
        self.sampled = posterior == "sample"
        self.gradient_factor = centroid_gradient if centroid_mode == "hook" else 1.0
        mixtures = 1 if shared else num_heads
        # The scale is saved with the parameters, so a checkpoint means the same under any training options.
        self.register_buffer(
            "centroid_scale", torch.tensor(centroid_gradient if centroid_mode == "lr" else 1.0)
        )
        self.scaled_centroids = nn.Parameter(
            torch.randn(mixtures, clusters, dim) / math.sqrt(dim) / self.centroid_scale
        )
        self.log_variance = nn.Parameter(torch.zeros(mixtures, clusters, dim))
        self.logits = nn.Parameter(torch.zeros(mixtures, clusters))
        self.prepared: Densities | None = None
        self.kept: Kept[Densities] | None = None  # for inference
        self.noise_log_variance, self.noise_slope = None, None
        if variance != "fixed":
            self.noise_log_variance = nn.Parameter(torch.full((num_heads, dim), FIRST_LOG_VARIANCE))
        if variance == "computed":
            self.noise_slope = nn.Parameter(torch.zeros(num_heads, dim))

    def draw(self, x: Tensor) -> Tensor:
        """Draw z ~ q(z | x) for vectors x [T, B, H, D], in float32 or better: [T, B, H, D]."""
        with no_autocast(x):
            x = x.to(torch.promote_types(x.dtype, torch.float32)).unsqueeze(0)
            return Sample.apply(x, _noise_of([self], densities_of([self], x.dtype), x)).squeeze(0)

    def forward(self, x: Tensor, divergence: bool = False, z: Tensor | None = None) -> Clustering:
        """Cluster vectors.

        Args:
            x: vectors of all heads [T, B, H, D], of any float type.
            divergence: whether to compute the KL divergence.
            z: a sample of q(z | x) that `draw` has drawn, [T, B, H, D]. Without it, one is drawn if it is
                needed.
        """
        z = None if z is None else z.unsqueeze(0)
        densities = self.prepared
        if self.kept is not None:
            dtype = torch.promote_types(self.logits.dtype, torch.float32)
            used = [*self.parameters(), self.centroid_scale]
            densities = self.kept.get(used, lambda: densities_of([self], dtype))
        found = cluster_together([self], x.unsqueeze(0), divergence, z, densities)
        kl = None if found.divergence is None else found.divergence.squeeze(0)
        return Clustering(found.posterior.squeeze(0), found.log_joint.squeeze(0), kl)

    def make_generation_fast_(self, **kwargs: Any) -> None:
        """Keep the densities; fairseq calls this before a model translates."""
        self.kept = Kept()

    @property
    def needs_vectors(self) -> bool:
        """Whether the divergence depends on the vectors themselves, and not only on `log_joint`."""
        return self.sampled or self.noise_slope is not None

    def kind(self) -> Hashable:
        """Return what tells apart mixtures that cannot be computed together."""
        shape, dtype = self.scaled_centroids.shape, self.scaled_centroids.dtype
        variance = self.noise_log_variance is None, self.noise_slope is None
        return shape, dtype, self.num_heads, self.sampled, self.gradient_factor, variance

    def extra_repr(self) -> str:
        shared = "" if len(self.logits) == self.num_heads else ", shared"
        return f"heads={self.num_heads}, clusters={self.clusters}, dim={self.log_variance.size(2)}{shared}"

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        """Load parameters; centroids that were trained with another scale are converted to this one."""
        scaled, scale = (state_dict.get(prefix + name) for name in ("scaled_centroids", "centroid_scale"))
        if (
            scaled is not None
            and scale is not None
            and not torch.equal(scale.to(self.centroid_scale), self.centroid_scale)
        ):
            state_dict[prefix + "scaled_centroids"] = scaled * (scale / self.centroid_scale.to(scale.device))
            state_dict[prefix + "centroid_scale"] = self.centroid_scale.clone()
        super()._load_from_state_dict(state_dict, prefix, *args)


def cluster_together(
    mixtures: Sequence[GaussianMixture],
    x: Tensor,
    divergence: bool = False,
    z: Tensor | None = None,
    densities: Densities | None = None,
) -> Clustering:
    """Cluster vectors by a stack of M mixtures that differ only in their parameters.

    Args:
        mixtures: the mixtures.
        x: vectors of all heads [M, T, B, H, D], of any float type.
        divergence: whether to compute the KL divergence.
        z: samples of q(z | x), [M, T, B, H, D]. Without them, samples are drawn if they are needed.
        densities: what `densities_of` returned for the mixtures.
    """
    first = mixtures[0]
    with no_autocast(x):
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        if densities is None or densities.linear.dtype != x.dtype or densities.linear.device != x.device:
            densities = densities_of(mixtures, x.dtype)
        noise = _noise_of(mixtures, densities, x)
        if z is not None:
            z = z.to(x.dtype)
        else:
            z = Sample.apply(x, noise) if first.sampled and first.training else x
        log_joint = log_joint_of(densities, z, None if first.sampled else noise)
        posterior, kl = torch.softmax(log_joint, dim=3), None
        if divergence:
            at_x = log_joint_of(densities, x, noise) if first.sampled else None
            kl = divergence_of(log_joint, noise, at_x)
        return Clustering(posterior, log_joint, kl)


def densities_of(mixtures: Sequence[GaussianMixture], dtype: torch.dtype) -> Densities:
    """Compute the densities of mixtures that differ only in their parameters, in a few kernels for all."""
    first = mixtures[0]
    mu = stack([each.scaled_centroids for each in mixtures]).to(dtype)
    mu = mu * stack([each.centroid_scale for each in mixtures]).to(dtype)[:, None, None, None]
    if first.gradient_factor != 1.0 and mu.requires_grad:
        mu.register_hook(lambda gradient: gradient * first.gradient_factor)
    log_variance = stack([each.log_variance for each in mixtures]).to(dtype)
    log_variance = log_variance.clamp(-LARGEST_LOG_VARIANCE, LARGEST_LOG_VARIANCE)
    precision = torch.exp(-log_variance)
    linear = mu * precision
    squares = torch.addcmul(log_variance, mu, linear).sum(dim=-1) + mu.size(-1) * math.log(2 * math.pi)
    log_pi = torch.log_softmax(stack([each.logits for each in mixtures]).to(dtype), dim=-1)
    constant = torch.sub(log_pi, squares, alpha=0.5)
    noise = expected = None
    if first.noise_log_variance is None:
        noise = mu.new_full((len(mixtures), first.num_heads, mu.size(-1)), math.log(FIXED_VARIANCE))
    elif first.noise_slope is None:
        noise = stack([each.noise_log_variance for each in mixtures]).to(dtype)
        noise = noise.clamp(-LARGEST_LOG_VARIANCE, LARGEST_LOG_VARIANCE)
    if noise is not None:
        variances = (precision * noise.exp().unsqueeze(2)).sum(dim=-1)  # M x H x C
        expected = torch.sub(constant, variances, alpha=0.5)
    return Densities(-0.5 * precision, linear, constant, expected, noise)


def compute_densities(mixtures: Sequence[GaussianMixture]) -> None:
    """Compute the densities of all mixtures together, in a few kernels, and keep them as `prepared`.

    The caller must set `prepared` to None again before the parameters change.
    """
    alike: dict[Hashable, list[GaussianMixture]] = {}
    for mixture in mixtures:
        alike.setdefault(mixture.kind(), []).append(mixture)
    for group in alike.values():
        dtype = torch.promote_types(group[0].logits.dtype, torch.float32)
        with no_autocast(group[0].logits):
            densities = densities_of(group, dtype).one_by_one()
        for mixture, each in zip(group, densities, strict=True):
            mixture.prepared = each


def _noise_of(mixtures: Sequence[GaussianMixture], densities: Densities, x: Tensor) -> Tensor:
    """Return log s^2 for vectors x [M, T, B, H, D]: [M, H, D], or [M, T, B, H, D] if it is computed."""
    if densities.noise is not None:
        return densities.noise
    bias, slope = (
        stack([getattr(each, name) for each in mixtures]).to(x.dtype)[:, None, None]
        for name in ("noise_log_variance", "noise_slope")
    )
    noise = bias + (x * slope).sum(dim=-1, keepdim=True)
    return noise.clamp(-LARGEST_LOG_VARIANCE, LARGEST_LOG_VARIANCE)


def stack(tensors: Sequence[Any]) -> Tensor:
    """Stack M tensors in a new first dimension, [M, ...], without a copy of a single one."""
    return tensors[0].unsqueeze(0) if len(tensors) == 1 else torch.stack(list(tensors))
