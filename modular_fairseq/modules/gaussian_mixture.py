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
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

POSTERIORS = ("expected", "sample")
CENTROID_MODES = ("lr", "hook")
VARIANCES = ("learned", "computed", "fixed")
FIRST_LOG_VARIANCE = -4.0
FIXED_VARIANCE = 0.01
LARGEST_LOG_VARIANCE = 8.0  # limit for clusters and for q(z | x); the lower limit is -8


class Clustering(NamedTuple):
    """The clusters of vectors at T positions in B sentences and H heads.

    All tensors are float32, or float64 for float64 vectors.

    Attributes:
        posterior: q(c | x), [B, H, C, T].
        log_joint: log p(c, z), of which the posterior is the softmax over c, [B, H, C, T].
        divergence: KL(q(z, c | x) || p(z, c)) / D in nats per dimension, [B, H, T]; None if it was not asked
            for.
    """

    posterior: Tensor
    log_joint: Tensor
    divergence: Tensor | None


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
            if value not in choices:
                raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(choices)}")
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
        self.noise_log_variance, self.noise_slope = None, None
        if variance != "fixed":
            self.noise_log_variance = nn.Parameter(torch.full((num_heads, dim), FIRST_LOG_VARIANCE))
        if variance == "computed":
            self.noise_slope = nn.Parameter(torch.zeros(num_heads, dim))

    def draw(self, x: Tensor) -> Tensor:
        """Draw z ~ q(z | x) for vectors x [T, B, H, D], in float32 or better."""
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(torch.promote_types(x.dtype, torch.float32))
            return _Sample.apply(x, self._noise(x))

    def forward(self, x: Tensor, divergence: bool = False, z: Tensor | None = None) -> Clustering:
        """Cluster vectors.

        Args:
            x: vectors of all heads [T, B, H, D], of any float type.
            divergence: whether to compute the KL divergence.
            z: a sample of q(z | x) that `draw` has drawn. Without it, one is drawn if it is needed.
        """
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(torch.promote_types(x.dtype, torch.float32))
            if z is not None:
                z = z.to(x.dtype)
            else:
                z = _Sample.apply(x, self._noise(x)) if self.sampled and self.training else x
            log_joint = self._log_joint(z, None if self.sampled else self._noise(x))
            log_evidence = torch.logsumexp(log_joint, dim=2, keepdim=True)
            log_posterior = log_joint - log_evidence
            posterior, kl = log_posterior.exp(), None
            if divergence:
                # This is E_q(z,c)[log q(c) - log p(z, c)]. Without a sample, q(c) minimises it, and the
                # minimum is -logsumexp(log_joint).
                surprise = -log_evidence.squeeze(2)
                if self.sampled:
                    surprise = (posterior * (log_posterior - self._log_joint(x, self._noise(x)))).sum(dim=2)
                kl = (surprise - _entropy(self._noise(x))) / x.size(-1)
            return Clustering(posterior, log_joint, kl)

    def extra_repr(self) -> str:
        shared = "" if len(self.logits) == self.num_heads else ", shared"
        return f"heads={self.num_heads}, clusters={self.clusters}, dim={self.log_variance.size(2)}{shared}"

    def centroids(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return mu [H or 1, C, D]. In the mode "hook" its gradient is multiplied by c_grad."""
        mu = self.scaled_centroids.to(dtype) * self.centroid_scale.to(dtype)
        if self.gradient_factor != 1.0 and mu.requires_grad:
            mu.register_hook(lambda gradient: gradient * self.gradient_factor)
        return mu

    def _noise(self, x: Tensor) -> Tensor:
        """Return log s^2 for vectors x [T, B, H, D]: [H, D], or [T, B, H, D] if it is computed."""
        if self.noise_log_variance is None:
            return x.new_full(x.shape[2:], math.log(FIXED_VARIANCE))
        noise = self.noise_log_variance.to(x.dtype)
        if self.noise_slope is not None:
            noise = noise + (x * self.noise_slope.to(x.dtype)).sum(dim=-1, keepdim=True)
        return noise.clamp(-LARGEST_LOG_VARIANCE, LARGEST_LOG_VARIANCE)

    def _log_joint(self, z: Tensor, noise: Tensor | None = None) -> Tensor:
        """Compute log pi_c + log N(z | c): z [T, B, H, D] -> [B, H, C, T].

        With `noise`, the result of `_noise`, compute its expectation under q(z | x) for x = `z`.
        """
        length, sentences, heads, dim = z.shape
        mu = self.centroids(z.dtype)
        log_variance = self.log_variance.to(z.dtype).clamp(-LARGEST_LOG_VARIANCE, LARGEST_LOG_VARIANCE)
        precision = torch.exp(-log_variance)
        constant = torch.log_softmax(self.logits.to(z.dtype), dim=-1)
        constant = constant - 0.5 * (
            dim * math.log(2 * math.pi) + (log_variance + mu * mu * precision).sum(dim=-1)
        )
        if noise is not None and noise.dim() == 2:
            constant = constant - 0.5 * (precision * noise.exp().unsqueeze(1)).sum(dim=-1)
        # A shared mixture sees the vectors of all heads as vectors of one group.
        vectors = z.reshape(-1, precision.size(0), dim)
        sums = _WeightedSums.apply(vectors, -0.5 * precision, mu * precision)
        if noise is not None and noise.dim() == 4:
            variances = noise.exp().reshape(vectors.shape).permute(1, 2, 0)
            sums = sums - 0.5 * torch.bmm(precision, variances)
        if precision.size(0) == heads:
            sums = sums.view(heads, -1, length, sentences).permute(3, 0, 1, 2)
        else:
            sums = sums.view(-1, length, sentences, heads).permute(2, 3, 0, 1)
        return sums + constant.unsqueeze(-1)

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


def _entropy(noise: Tensor) -> Tensor:
    """Return the entropy of q(z | x) in nats, [H, 1] or [B, H, T], for log s^2 [H, D] or [T, B, H, D]."""
    entropy = 0.5 * (noise + 1 + math.log(2 * math.pi)).sum(dim=-1)
    return entropy.unsqueeze(1) if noise.dim() == 2 else entropy.permute(1, 2, 0)


class _Sample(torch.autograd.Function):
    """Draw z = x + s * noise for x [T, B, H, D] and log s^2, [H, D] or [T, B, H, D].

    The backward pass needs z, which other functions keep anyway, and not the noise.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, log_variance: Tensor) -> Tensor:
        z = torch.addcmul(x, (0.5 * log_variance).exp(), torch.randn_like(x))
        ctx.save_for_backward(x, z)
        ctx.per_vector = log_variance.dim() == x.dim()
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, z = ctx.saved_tensors
        slope = gradient * (z - x)
        return gradient, 0.5 * (slope if ctx.per_vector else slope.sum(dim=(0, 1)))


class _WeightedSums(torch.autograd.Function):
    """Compute sum_d a_cd x_d^2 + b_cd x_d: x [N, G, D], a and b [G, C, D] -> [G, C, N].

    The backward pass needs x, which other functions keep anyway, and not its square.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(x, a, b)
        x = x.transpose(0, 1)
        return torch.bmm(b, x.transpose(1, 2)).baddbmm_(a, x.square().transpose(1, 2))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, a, b = ctx.saved_tensors
        gradient, x = gradient.contiguous(), x.transpose(0, 1)
        by_vector = gradient.transpose(1, 2)
        dx = torch.bmm(by_vector, b).addcmul_(torch.bmm(by_vector, a), x, value=2).transpose(0, 1)
        return dx, torch.bmm(gradient, x.square()), torch.bmm(gradient, x)
