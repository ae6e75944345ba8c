"""Test modules/semantic_mask.py: the paper's renormalised mask and its losses.

The mask works in every kind of attention, step by step and in beams.
"""

from collections import Counter

import pytest
import torch

from modular_fairseq.modules.attention import MultiheadAttention
from modular_fairseq.modules.disentangled_heads import LossSettings
from modular_fairseq.modules.mask_losses import measure
from modular_fairseq.modules.mutual_information import (
    cluster_information,
    lower_bound,
    released_estimate,
    upper_bound,
)
from modular_fairseq.modules.semantic_mask import SMALLEST_OVERLAP, SemanticMask, _LogOverlap, log_overlap
from tests.reference import disentangled as reference

B, H, T, S, C, CLUSTERS = 3, 4, 5, 6, 24, 3
CAUSAL = torch.full((T, T), float("-inf"), dtype=torch.float64).triu(1)
KINDS = ["self", "causal", "cross"]


def attention(kind, seed=0, **changes):
    """Return attention whose mask has parameters far from their initial values."""
    torch.manual_seed(seed)
    own = {"self_attention": True} if kind != "cross" else {"encoder_decoder_attention": True}
    module = MultiheadAttention(
        C, H, mask=SemanticMask(H, C, CLUSTERS, self_attention=kind != "cross", **changes), **own
    ).double()
    with torch.no_grad():
        for mixture in (module.mask.tokens, module.mask.queries.mixture):
            for p in (mixture.scaled_centroids, mixture.log_variance, mixture.logits):
                p.add_(0.3 * torch.randn_like(p))
    return module


def inputs(kind, seed=1):
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(T, B, C, dtype=torch.float64, generator=generator).requires_grad_()
    key = (
        query
        if kind != "cross"
        else torch.randn(S, B, C, dtype=torch.float64, generator=generator).requires_grad_()
    )
    return query, key


def padding(length, kind="self"):
    """Return a mask that pads the third sentence on the right and the second on the left.

    In causal attention the second one is padded on the right, too, because every word must see a word.
    """
    mask = torch.zeros(B, length, dtype=torch.bool)
    mask[2, -1:] = True
    mask[1, slice(-2, None) if kind == "causal" else slice(2)] = True
    return mask


def by_the_equations(module, kind, query, key, posterior=reference.expected_posterior, drawn=None):
    """Compute Eq. 4, Eq. 5 and the equation after it, one head of one sentence at a time.

    Args:
        drawn: the samples (z of queries [T, B, C], z of keys [S, B, C], q [B, H, T, C / H]) that the scores
            and clusters see; None for no samples.

    Returns:
        the output [T, B, C] and the weights [H, B, T, S].
    """
    outputs, weights = [], torch.zeros(H, B, len(query), len(key), dtype=torch.float64)
    d = C // H
    z_queries, z_keys, drawn_q = drawn or (query, key, None)
    for b in range(B):
        blocked = padding(len(key), kind)[b].expand(len(query), -1).clone()
        if kind == "causal":
            blocked |= CAUSAL.isinf()
        heads = []
        for h in range(H):
            part = slice(h * d, (h + 1) * d)
            q, k, v = (
                p(x[:, b])[:, part]
                for p, x in ((module.q_proj, z_queries), (module.k_proj, z_keys), (module.v_proj, key))
            )
            q = q if drawn_q is None else drawn_q[b, h]
            z_query, z_key = (posterior(module.mask.tokens, h, x[:, b, part]) for x in (z_queries, z_keys))
            m = reference.mask(z_query, z_key, blocked)
            a = reference.masked_attention(q @ k.T / d**0.5, m, blocked)
            weights[h, b] = a
            heads.append(a @ v)
        outputs.append(module.out_proj(torch.cat(heads, dim=1)))
    return torch.stack(outputs, dim=1), weights


def losses_of(mask):
    """Return the losses of the last forward pass of a mask, [B] each, by name."""
    found = measure([mask], mask.wanted) if mask.seen else {}
    return {name: loss.squeeze(0) for name, loss in found.items()}


def attend(module, kind, query, key, **call):
    mask = CAUSAL if kind == "causal" else None
    call.setdefault("key_padding_mask", padding(len(key), kind))
    return module(
        query,
        key,
        key,
        attn_mask=mask,
        static_kv=kind == "cross",
        **call,
    )


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_bias_is_the_papers_renormalised_mask(kind, training):
    module = attention(kind).train(training)
    query, key = inputs(kind)
    expected, expected_weights = by_the_equations(module, kind, query, key)
    found, _ = attend(module, kind, query, key)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    by_hand, weights = attend(module, kind, query, key, need_head_weights=True)
    torch.testing.assert_close(by_hand, expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(weights, expected_weights, atol=1e-12, rtol=0)
    module.mask = None
    assert (attend(module, kind, query, key)[0] - found).abs().max() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_the_equations(kind):
    module = attention(kind).train()
    query, key = inputs(kind)
    weights = torch.randn(T, B, C, dtype=torch.float64)
    given = [
        query,
        *([key] if kind == "cross" else []),
        *(p for name, p in module.named_parameters() if "queries" not in name),
    ]
    found = torch.autograd.grad((attend(module, kind, query, key)[0] * weights).sum(), given)
    expected = torch.autograd.grad((by_the_equations(module, kind, query, key)[0] * weights).sum(), given)
    assert all(
        g.abs().max() > 1e-6 for g, p in zip(expected, given, strict=True) if p is not module.k_proj.bias
    )
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=0)


def test_all_forms_of_the_mask_are_equal():
    """The bias, which is in use, equals the fold and the augmented values. It was chosen for its speed."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    scores, values = random(B, H, T, S), random(B, H, S, 5)
    p, k = torch.softmax(random(B, H, T, CLUSTERS), dim=-1), torch.softmax(random(B, H, S, CLUSTERS), dim=-1)
    bias = _LogOverlap.apply(p.transpose(2, 3), k.transpose(2, 3))
    found = torch.softmax(scores + bias, dim=-1) @ values
    for b in range(B):
        for h in range(H):
            expected = (
                reference.masked_attention(scores[b, h], reference.mask(p[b, h], k[b, h])) @ values[b, h]
            )
            torch.testing.assert_close(found[b, h], expected, atol=1e-14, rtol=0)
    torch.testing.assert_close(
        reference.fold(scores, p @ k.transpose(2, 3), values), found, atol=1e-14, rtol=0
    )
    torch.testing.assert_close(reference.augmented_values(scores, p, k, values), found, atol=1e-14, rtol=0)


def test_the_floor_of_the_overlap_and_its_gradient():
    """Above the floor the bias is exact. A query that shares clusters with no key attends as if there were no
    mask.
    """
    p = torch.softmax(4 * torch.randn(2, 2, CLUSTERS, T, dtype=torch.float64), dim=2).requires_grad_()
    k = torch.softmax(4 * torch.randn(2, 2, CLUSTERS, S, dtype=torch.float64), dim=2).requires_grad_()
    assert torch.autograd.gradcheck(_LogOverlap.apply, (p, k))
    apart = torch.tensor([1.0, 0.0]).view(1, 1, 2, 1), torch.tensor([[0.0, 0.0], [1.0, 1.0]]).view(1, 1, 2, 2)
    bias = _LogOverlap.apply(*(x.requires_grad_() for x in apart))
    assert torch.equal(bias, torch.full((1, 1, 1, 2), SMALLEST_OVERLAP).log())
    assert all((g == 0).all() for g in torch.autograd.grad(bias.sum(), apart))
    with torch.no_grad():
        assert torch.equal(log_overlap(*apart), bias)


@pytest.mark.parametrize("kind", KINDS)
def test_one_cluster_is_plain_attention_bit_for_bit(kind):
    torch.manual_seed(0)
    own = {"self_attention": True} if kind != "cross" else {"encoder_decoder_attention": True}
    module = MultiheadAttention(
        C, H, mask=SemanticMask(H, C, 1, self_attention=kind != "cross"), **own
    ).double()
    query, key = inputs(kind)
    for training in (True, False):
        module.train(training)
        found, weights = attend(module, kind, query, key, need_head_weights=True)
        mask, module.mask = module.mask, None
        expected, expected_weights = attend(module, kind, query, key, need_head_weights=True)
        module.mask = mask
        assert torch.equal(found, expected) and torch.equal(weights, expected_weights)
        module.mask.wanted = LossSettings(kl=True, qq=True, xq=True)
        assert torch.equal(attend(module, kind, query, key, need_head_weights=True)[0], expected)
        module.mask.wanted = LossSettings()


@pytest.mark.parametrize("in_evaluation", [True, False])
def test_the_decoders_mask_is_for_training_unless_it_is_wanted(in_evaluation):
    module = attention("causal", in_evaluation=in_evaluation)
    query, key = inputs("causal")
    trained = attend(module.train(), "causal", query, key)[0]
    evaluated = attend(module.eval(), "causal", query, key)[0]
    module.mask = None
    plain = attend(module, "causal", query, key)[0]
    torch.testing.assert_close(evaluated, trained if in_evaluation else plain, atol=1e-12, rtol=0)
    assert (trained - plain).abs().max() > 1e-3


@pytest.mark.parametrize("kind", ["causal", "cross"])
def test_step_by_step_with_beams_it_is_the_same(kind):
    """Hypotheses of a sentence share its source. They are reordered, and a finished sentence leaves the
    batch.
    """
    beam, module = 2, attention(kind).eval()
    generator = torch.Generator().manual_seed(2)
    target = torch.randn(T, B * beam, C, dtype=torch.float64, generator=generator)
    key = torch.randn(S, B, C, dtype=torch.float64, generator=generator)
    order, left, state, rows = torch.tensor([1, 0, 4, 4]), torch.tensor([0, 2]), {}, torch.arange(B * beam)
    for t in range(T):
        past = target[: t + 1, rows]
        if kind == "cross":
            sources = key if len(rows) == B * beam else key[:, left]
            blocked = padding(S) if len(rows) == B * beam else padding(S)[left]
            call = {"key_padding_mask": blocked, "static_kv": True}
            found, _ = module(past[-1:], sources, sources, incremental_state=state, **call)
            call["key_padding_mask"] = blocked.repeat_interleave(beam, 0)
            expected, _ = module(past, *[sources.repeat_interleave(beam, 1)] * 2, **call)
        else:
            found, _ = module(past[-1:], None, None, incremental_state=state)
            expected, _ = module(past, None, None, attn_mask=CAUSAL[: t + 1, : t + 1])
        torch.testing.assert_close(found[0], expected[-1], atol=1e-12, rtol=0)
        if t == 1:
            for part in (module, module.mask):
                part.reorder_incremental_state(state, order)
            rows = rows[order]


@pytest.mark.parametrize("densities", ["pooled", "per_head", "gmm"])
@pytest.mark.parametrize("estimator", ["eq6", "released", "clusters"])
def test_l_qq_is_by_the_estimator_and_the_densities_that_are_wanted(estimator, densities):
    module = attention("self").train()
    module.mask.wanted = LossSettings(qq=True, estimator=estimator, densities=densities)
    query, _ = inputs("self")
    attend(module, "self", query, query, query_padding_mask=padding(T))
    clusters = module.mask.queries.mixture(module.q_proj(query).view(T, B, H, C // H))
    valid = padding(T).logical_not()
    expected = {
        "eq6": lambda: upper_bound(clusters.posterior, clusters.log_joint, valid, densities),
        "released": lambda: released_estimate(clusters.posterior, clusters.log_joint, valid, densities),
        "clusters": lambda: cluster_information(clusters.posterior, valid),
    }[estimator]()
    assert expected.abs().max() > 1e-4
    torch.testing.assert_close(losses_of(module.mask)["qq"], expected, atol=1e-13, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_those_of_its_tokens_and_queries(kind):
    module = attention(kind).train()
    module.mask.wanted = LossSettings(kl=True, qq=True, xq=True)
    query, key = inputs(kind)
    attend(module, kind, query, key, query_padding_mask=padding(T, kind))
    losses = losses_of(module.mask)
    assert {name: tuple(value.shape) for name, value in losses.items()} == {
        "kl": (B,),
        "qq": (B,),
        "xq": (B,),
    }
    sides = [query, key] if kind == "cross" else [query]
    expected = divergences(module.mask.tokens, kind, sides)
    expected = expected + divergences(module.mask.queries.mixture, kind, [module.q_proj(query)])
    torch.testing.assert_close(losses["kl"], expected, atol=1e-12, rtol=0)
    queries = module.mask.queries.mixture(module.q_proj(query).view(T, B, H, C // H))
    valid = padding(T, kind).logical_not()
    torch.testing.assert_close(
        losses["qq"], upper_bound(queries.posterior, queries.log_joint, valid), atol=1e-13, rtol=0
    )
    torch.testing.assert_close(losses["xq"], lower_bound(queries.posterior, valid), atol=1e-13, rtol=0)


def divergences(mixture, kind, vectors, samples=None):
    """Return the mean KL over heads and tokens [B] by the reference.

    Args:
        vectors: vectors [T or S, B, C] of which all tokens count together.
        samples: samples of them that decide the clusters; None: the expected densities do.
    """

    def tokens(all_of, b, h):
        part = slice(h * C // H, (h + 1) * C // H)
        return torch.cat([x[padding(len(x), kind)[b].logical_not(), b, part] for x in all_of])

    def mean(b, h):
        x = tokens(vectors, b, h)
        if samples is None:
            posterior = reference.expected_posterior(mixture, h, x)
        else:
            posterior = reference.posterior(mixture, h, tokens(samples, b, h))
        return reference.divergence(mixture, h, x, posterior).mean()

    return torch.stack([torch.stack([mean(b, h) for h in range(H)]).mean() for b in range(B)])


@pytest.mark.parametrize("kind", KINDS)
def test_the_diversity_loss_is_that_of_its_tokens_and_queries(kind):
    module = attention(kind).train()
    module.mask.wanted = LossSettings(diversity=True)
    query, key = inputs(kind)
    attend(module, kind, query, key, query_padding_mask=padding(T, kind))
    found = losses_of(module.mask)["diversity"]
    (gradient,) = torch.autograd.grad(found.sum(), module.mask.tokens.scaled_centroids, retain_graph=True)
    queries = module.mask.queries.mixture(module.q_proj(query).view(T, B, H, C // H)).posterior
    sides = [module.mask.cluster(x).posterior for x in ([query, key] if kind == "cross" else [query])]
    expected = []
    for b in range(B):
        seen = [padding(x.size(3), kind)[b].logical_not() for x in (queries, *sides)]
        of_queries, *of_tokens = (
            sum(reference.diversity(x[b][:, :, valid].transpose(1, 2))) / H
            for x, valid in zip((queries, *sides), seen, strict=True)
        )
        expected.append(of_queries + sum(of_tokens) / len(of_tokens))
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-12, rtol=0)
    (wanted,) = torch.autograd.grad(torch.stack(expected).sum(), module.mask.tokens.scaled_centroids)
    torch.testing.assert_close(gradient, wanted, atol=1e-12, rtol=0)
    assert wanted.abs().max() > 1e-3


def test_latents_are_drawn_from_samples_only():
    with pytest.raises(ValueError, match="draws_latents needs the posterior 'sample', not 'expected'"):
        SemanticMask(H, C, CLUSTERS, draws_latents=True)


@pytest.mark.parametrize("variance", ["learned", "computed", "fixed"])
@pytest.mark.parametrize("kind", KINDS)
def test_samples_enter_scores_clusters_and_losses(kind, variance):
    """In training the module computes its weights from samples of z and q. Its values see no sample."""
    module = attention(kind, posterior="sample", draws_latents=True, variance=variance).train()
    module.mask.wanted = LossSettings(kl=True, qq=True, xq=True)
    query, key = inputs(kind)
    drawn = {}
    draw, draw_queries = module.mask.draw, module.mask.draw_queries
    module.mask.draw = lambda *x: drawn.setdefault("z", draw(*x))
    module.mask.draw_queries = lambda *x: drawn.setdefault("q", draw_queries(*x))
    found, _ = attend(module, kind, query, key, query_padding_mask=padding(T, kind))
    z, q = drawn["z"], drawn["q"]
    assert (z.keys is z.tokens) == (kind != "cross")
    means = module.q_proj(z.tokens).view(T, B, H, C // H).permute(1, 2, 0, 3)
    for sample, mean in ((z.tokens, query), (z.keys, key), (q, means)):
        assert 0.01 < (sample - mean).std() < 1
    expected, _ = by_the_equations(module, kind, query, key, reference.posterior, (z.tokens, z.keys, q))
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    used = [*module.mask.tokens.parameters(), module.q_proj.weight, module.v_proj.weight]
    for a, b in zip(
        torch.autograd.grad(found.sum(), used, retain_graph=True, allow_unused=True),
        torch.autograd.grad(expected.sum(), used, retain_graph=True, allow_unused=True),
        strict=True,
    ):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-9)
    clusters = module.mask.queries.mixture(means.permute(2, 0, 1, 3), True, q.permute(2, 0, 1, 3))
    valid = padding(T, kind).logical_not()
    losses = losses_of(module.mask)
    torch.testing.assert_close(losses["xq"], lower_bound(clusters.posterior, valid), atol=1e-13, rtol=0)
    torch.testing.assert_close(
        losses["qq"], upper_bound(clusters.posterior, clusters.log_joint, valid), atol=1e-13, rtol=0
    )
    sides, samples = ([query, key], [z.tokens, z.keys]) if kind == "cross" else ([query], [z.tokens])
    kl = divergences(module.mask.tokens, kind, sides, samples)
    mixture, flat = module.mask.queries.mixture, q.permute(2, 0, 1, 3).flatten(2)
    kl = kl + divergences(mixture, kind, [module.q_proj(z.tokens)], [flat])
    torch.testing.assert_close(losses["kl"], kl, atol=1e-12, rtol=0)
    module.eval()
    assert torch.equal(attend(module, kind, query, key)[0], attend(module, kind, query, key)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_samples_of_a_divided_input_are_those_of_its_clusters(kind):
    """The noise is that of the divided input, and scores see a sample of the input itself."""
    module = attention(kind, posterior="sample", draws_latents=True).train()
    query, key = inputs(kind)
    drawn = []
    for divisor in (None, 4):
        if divisor:
            module.mask.divide_input(divisor)
        torch.manual_seed(7)
        latents = module.mask.draw(query, key)
        drawn.append([latents.tokens - query, latents.keys - key])
    for noise, of_divided in zip(*drawn, strict=True):
        torch.testing.assert_close(of_divided, 4 * noise, atol=1e-12, rtol=0)
    clusters = module.mask.cluster(query, z=latents.tokens).posterior
    expected = module.mask.tokens(
        query.unflatten(2, (H, -1)), z=latents.tokens.unflatten(2, (H, -1)) / 4
    ).posterior
    torch.testing.assert_close(clusters, expected, atol=1e-12, rtol=0)


def test_below_its_floor_the_upper_bound_is_not_lowered():
    """Where the bound of a sentence is below the floor, its value is the floor and its gradient is 0."""
    module = attention("self").train()
    query, key = inputs("self")
    gradients, values = {}, {}
    for floor in (-float("inf"), 0.0, 9.0):
        module.mask.wanted = LossSettings(qq=True, floor=floor)
        attend(module, "self", query, key)
        values[floor] = losses_of(module.mask)["qq"]
        (gradients[floor],) = torch.autograd.grad(values[floor].sum(), query)
        assert torch.equal(values[floor], values[-float("inf")].clamp_min(floor))
    low, all_low = values[-float("inf")] < 0, gradients[9.0]
    assert low.any() and not low.all() and (all_low == 0).all()
    whole = gradients[-float("inf")]
    assert (whole.abs().amax(dim=(0, 2)) > 1e-4).all()
    torch.testing.assert_close(gradients[0.0], whole * low.logical_not()[None, :, None], atol=1e-15, rtol=0)


def test_only_losses_that_are_wanted_are_computed_and_only_in_training():
    module = attention("self").train()
    query, key = inputs("self")
    for wanted, names in (
        (LossSettings(kl=True), {"kl"}),
        (LossSettings(qq=True), {"qq"}),
        (LossSettings(xq=True), {"xq"}),
        (LossSettings(diversity=True), {"diversity"}),
        (LossSettings(), set()),
    ):
        module.mask.wanted, module.mask.seen = wanted, None
        attend(module, "self", query, key)
        assert losses_of(module.mask).keys() == names
    module.mask.wanted = LossSettings(kl=True, qq=True, xq=True)
    attend(module.eval(), "self", query, key)
    assert losses_of(module.mask) == {}


def test_masks_together_have_the_losses_that_each_has_by_itself():
    """Masks of the same kind over the same positions are computed together, the others apart."""
    everything = LossSettings(kl=True, qq=True, xq=True, diversity=True)
    modules, kinds = [], ("self", "cross", "self", "cross", "self")
    pads = {"self": padding(T), "cross": padding(S)}
    for number, kind in enumerate(kinds):
        modules.append(attention(kind).train())
        for parameter in modules[-1].mask.parameters():
            parameter.data += 0.1 * number * torch.randn_like(parameter)
        modules[-1].mask.wanted = everything
        attend(modules[-1], kind, *inputs(kind, seed=number), key_padding_mask=pads[kind])
    masks = [module.mask for module in modules]
    assert sorted(Counter(mask.kind() for mask in masks).values()) == [2, 3]
    together = measure(masks, everything)
    for name in ("kl", "qq", "xq", "diversity"):
        alone = torch.stack([losses_of(mask)[name] for mask in masks])
        assert together[name].shape == alone.shape and len(alone.unique(dim=0)) == len(kinds)
        torch.testing.assert_close(together[name].sort(dim=0)[0], alone.sort(dim=0)[0], atol=1e-12, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.cpu_only("it uses the autocast of the CPU")
def test_under_autocast_masks_and_losses_are_in_float32(kind):
    """Projections, and so queries, are in bfloat16 under autocast. Nothing else changes."""
    module = attention(kind).float().train()
    module.mask.wanted = LossSettings(kl=True, qq=True, xq=True)
    query, key = (x.detach().float() for x in inputs(kind))
    projected = module._split(module.q_proj(query))
    pads = padding(T, kind), padding(len(key), kind)
    expected = module.mask(query, key, projected, *pads)
    losses = losses_of(module.mask)
    with torch.autocast("cpu", torch.bfloat16):
        bias = module.mask(query, key, projected, *pads)
    assert bias.dtype == torch.float32 and torch.equal(bias, expected)
    assert (
        all(torch.equal(losses[name], value) for name, value in losses_of(module.mask).items())
        and len(losses) == 3
    )


@pytest.mark.parametrize("kind", KINDS)
def test_one_token_and_no_token_at_all_are_finite(kind):
    module = attention(kind).float().train()
    module.mask.wanted = LossSettings(kl=True, qq=True, xq=True)
    for length, blocked in ((1, False), (1, True), (4, True)):
        query = torch.randn(length, 2, C, requires_grad=True)
        pads = torch.tensor([[blocked] * length, [False] * length])
        call = {
            "key_padding_mask": pads,
            "query_padding_mask": pads,
            "attn_mask": CAUSAL[:length, :length].float() if kind == "causal" else None,
        }
        module.zero_grad()
        for need_weights in (False, True):
            output, _ = module(query, query, query, need_weights=need_weights, **call)
            (output.sum() + sum(loss.sum() for loss in losses_of(module.mask).values())).backward()
            assert output.isfinite().all() and query.grad.isfinite().all()
            assert all(loss.isfinite().all() for loss in losses_of(module.mask).values())
            assert all(p.grad.isfinite().all() for p in module.parameters())
            if blocked:
                assert all(loss[0] == 0 for loss in losses_of(module.mask).values())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_differs_by_its_rounding_only(dtype, monkeypatch):
    module = attention("self").eval()
    query, key = inputs("self")
    expected, _ = attend(module, "self", query, key)
    half = attention("self").eval().to(dtype)
    bias = half.mask(query.to(dtype), None, half._split(query.to(dtype)), None, None)
    assert bias.dtype == torch.float32
    attends, dtypes = torch.nn.functional.scaled_dot_product_attention, []

    def attend_and_note(q, k, v, attn_mask, **kwargs):
        dtypes.append((q.dtype, attn_mask.dtype))  # on a GPU both must be equal
        return attends(q, k, v, attn_mask=attn_mask, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend_and_note)
    found, _ = attend(half, "self", query.to(dtype), key.to(dtype))
    assert found.dtype == dtype and dtypes == [(dtype, dtype)]
    torch.testing.assert_close(
        found.double(), expected, atol=0.05 if dtype == torch.bfloat16 else 0.01, rtol=0
    )
