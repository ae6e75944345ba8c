"""Test models with disentangled mask attention.

The tests cover neutral settings, checkpoints, search, precision, presets and refusals.
"""

import copy

import pytest
import torch

from modular_fairseq.models.dma_losses import measuring, semantic_masks
from modular_fairseq.models.mae import expert_mixtures
from modular_fairseq.modules.disentangled_heads import LossSettings
from modular_fairseq_cli.errors import UsageError
from tests.helpers import LENGTHS, batch, build, build_preset, build_stock
from tests.properties import PROPERTIES, logits, ready, real_logits

DMA = {"attention_type": "dma"}
ALL = LossSettings(kl=True, qq=True, xq=True)


@pytest.mark.parametrize("training", [True, False])
def test_one_cluster_equals_fairseqs_transformer(training):
    """fairseq's state dict loads.

    The logits equal our plain model bit for bit, and fairseq's model within 1e-6.
    """
    stock = build_stock(seed=3).train(training)
    plain, ours = build().train(training), build(**DMA, dma_clusters=1).train(training)
    for model in (plain, ours):
        model.load_state_dict(stock.state_dict())
    sample = batch(LENGTHS)
    assert torch.equal(logits(ours, sample), logits(plain, sample))
    torch.testing.assert_close(real_logits(ours, sample), real_logits(stock, sample), atol=1e-6, rtol=1e-6)


def test_a_plain_checkpoint_loads_and_its_masks_start_near_to_none(caplog):
    stock, ours = build_stock(seed=3).eval(), build(seed=4, **DMA).eval()
    fresh = copy.deepcopy(ours.state_dict())
    with caplog.at_level("INFO"):
        ours.load_state_dict(stock.state_dict())
    assert "6 masks are not in the checkpoint and keep their initial values" in caplog.text
    loaded = ours.state_dict()
    assert all(torch.equal(loaded[key], value) for key, value in stock.state_dict().items())
    assert all(torch.equal(loaded[key], fresh[key]) for key in loaded if ".mask." in key)
    difference = (
        torch.log_softmax(real_logits(ours, batch(LENGTHS)), -1)
        - torch.log_softmax(real_logits(stock, batch(LENGTHS)), -1)
    ).abs()
    assert 1e-5 < difference.mean() < 0.1


def test_half_a_mask_in_a_checkpoint_is_refused():
    model = build(**DMA)
    half = model.state_dict()
    del half["decoder.layers.1.encoder_attn.mask.tokens.logits"]
    with pytest.raises(
        UsageError, match="the checkpoint has no decoder.layers.1.encoder_attn.mask.tokens.logits"
    ):
        model.load_state_dict(half)


def test_every_attention_module_has_a_mask_of_its_own():
    assert len(semantic_masks(build(**DMA, encoder_layers=3))) == 3 + 2 * 2
    model = build(**DMA, streams=2, encoder_layers=4)
    assert {
        "encoder.streams.0.0.self_attn",
        "encoder.streams.1.0.self_attn",
        "decoder.layers.1.encoder_attn",
    } < set(semantic_masks(model))
    assert len({id(p) for mask in semantic_masks(model).values() for p in mask.parameters()}) == 8 * (4 + 4)


@pytest.mark.parametrize("holds", PROPERTIES)
@pytest.mark.parametrize(
    "changes",
    [
        {"dma_decoder_eval_mask": True},
        {"dma_posterior": "sample", "dma_decoder_eval_mask": True},
        {"dma_clusters": 7, "dma_centroid_mode": "hook", "dma_decoder_eval_mask": True},
        {"encoder_normalize_before": True, "decoder_normalize_before": True},
    ],
    ids=str,
)
def test_properties_of_a_translation_model(changes, holds):
    holds(ready(**DMA, **changes))


def test_in_evaluation_only_the_mask_of_the_decoders_self_attention_is_disregarded():
    sample = batch(LENGTHS)
    without, with_mask = (ready(**DMA, dma_decoder_eval_mask=kept) for kept in (False, True))
    assert (logits(without, sample) - logits(with_mask, sample)).abs().max() > 1e-3
    for name, mask in semantic_masks(without).items():
        assert mask.in_evaluation == (not name.endswith("self_attn") or name.startswith("encoder"))
        if mask.in_evaluation:
            expected = logits(without, sample)
            mask.tokens.logits.data.zero_()
            mask.tokens.log_variance.data.add_(1)
            assert (logits(without, sample) - expected).abs().max() > 1e-5, name


@pytest.mark.parametrize("posterior", ["expected", "sample"])
def test_activation_checkpointing_changes_nothing(posterior):
    """Gradients and losses are equal over two batches, and nothing of the second forward pass remains."""
    results = []
    for checkpoint in (False, True):
        model = build(**DMA, dma_posterior=posterior, dropout=0.1, checkpoint_activations=checkpoint).train()
        torch.manual_seed(5)
        losses = []
        for seed in (0, 1):
            with measuring(model, ALL) as measured:
                output = logits(model, batch(LENGTHS, seed)).square().sum()
            losses += measured.values()
            (output + 100 * sum(value.sum() for value in losses[-3:])).backward()
        assert all(mask.seen is None for mask in semantic_masks(model).values())
        results.append([*(p.grad for p in model.parameters()), *losses])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


def test_a_source_without_a_word_and_targets_of_one_give_finite_gradients():
    model, sample = build(**DMA).train(), batch([(4, 1), (1, 1), (6, 5)])
    sample["net_input"]["src_tokens"][0] = 1
    with measuring(model, ALL) as losses:
        loss = logits(model, sample).square().sum()
    (loss + sum(values.sum() for values in losses.values())).backward()
    assert loss.isfinite() and all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(("dtype", "posterior"), [(torch.float16, "expected"), (torch.bfloat16, "sample")])
def test_half_precision_stays_finite_for_100_steps_with_large_scores(dtype, posterior):
    """The weights are in half precision, and Adam works on copies in float32, as in fairseq. Clusters and
    losses are in float32.
    """
    whole = build(**DMA, dma_posterior=posterior, dropout=0.1)
    with torch.no_grad():
        for name, p in whole.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                p.mul_(4)
    half = copy.deepcopy(whole).to(dtype).train()
    optimizer = torch.optim.Adam(whole.parameters(), lr=1e-3)
    attention, projected, losses_of_steps = half.encoder.layers[0].self_attn, {}, []
    for name in ("q_proj", "k_proj"):
        getattr(attention, name).register_forward_hook(
            lambda _, args, output, name=name: projected.update({name: output.detach().float()})
        )
    for step in range(100):
        sample = batch([(12, 9), (5, 11), (1, 1), (9, 6)], seed=step % 5)
        with measuring(half, ALL) as losses:
            lprobs = half.get_normalized_probs(half(**sample["net_input"]), log_probs=True)
        if step == 0:
            q, k = (attention._split(projected[name]) for name in ("q_proj", "k_proj"))
            assert (q @ k.transpose(2, 3)).abs().max() / attention.head_dim**0.5 > 10
        nll = torch.nn.functional.nll_loss(lprobs.float().transpose(1, 2), sample["target"], ignore_index=1)
        terms = [nll, *(values.mean() for values in losses.values())]
        half.zero_grad()
        (nll + 0.1 * sum(terms[1:])).backward()
        assert all(term.isfinite() for term in terms) and len(terms) == 4, step
        assert all(p.grad.isfinite().all() for p in half.parameters()), step
        for p, q in zip(whole.parameters(), half.parameters(), strict=True):
            p.grad = q.grad.float()
        optimizer.step()
        with torch.no_grad():
            for p, q in zip(whole.parameters(), half.parameters(), strict=True):
                q.copy_(p)
        losses_of_steps.append(nll.item())
    assert losses_of_steps[-1] < 0.8 * losses_of_steps[0]


@pytest.mark.parametrize(
    ("arch", "vocabulary", "parameters"),
    [  # The paper: 39.7, 26.1 and 11.9 million; 66.6 and 46.4, with one dictionary of some 43,690 types.
        ("dma_transformer_iwslt_de_en", (8848, 6632), 39_672_528),
        ("dma_transformer_iwslt_de_en_small", (8848, 6632), 26_149_224),
        ("dma_transformer_iwslt_de_en_tiny", (8848, 6632), 11_925_864),
        ("dma_transformer_wmt_en_de", (43_690, 43_690), 66_609_800),
        ("dma_transformer_wmt_en_de_small", (43_690, 43_690), 46_424_712),
        ("dma_transformer_wmt_zh_en", (8848, 6632), 39_580_008),
    ],
)
def test_presets_have_the_papers_parameter_counts(arch, vocabulary, parameters):
    shared = (
        {"share_all_embeddings": True}
        if vocabulary[0] == vocabulary[1]
        else {"share_decoder_input_output_embed": True}
    )
    assert sum(p.numel() for p in build_preset(arch, vocabulary, **shared).parameters()) == parameters


def test_experts_and_masks_together_are_each_themselves():
    """mae+dma with neutral gates equals dma, and with one cluster it equals mae, bit for bit."""
    sample = batch(LENGTHS)
    both = ready(attention_type="mae+dma", mae_gating="uniform")
    dma = build(**DMA).eval()
    dma.load_state_dict(both.state_dict())
    assert torch.equal(logits(both, sample), logits(dma, sample))
    both = ready(attention_type="mae+dma", dma_clusters=1)
    mae = build(attention_type="mae").eval()
    mae.load_state_dict({key: value for key, value in both.state_dict().items() if ".mask." not in key})
    assert torch.equal(logits(both, sample), logits(mae, sample))
    assert len(expert_mixtures(both)) == len(semantic_masks(both)) == 6


def test_mechanisms_stay_apart_under_a_mask():
    """Heads and their clusters lie within the features of a mechanism.

    So what one mechanism attends to does not depend on the features of the other.
    """
    model = ready(**DMA, tim_layers="all", tim_mechanisms=2)
    attention = model.encoder.layers[0].self_attn
    x = torch.randn(5, 3, 32)
    other = torch.cat([x[..., :16], torch.randn(5, 3, 16)], dim=-1)
    a, b = (attention(y, y, y)[0] for y in (x, other))
    assert torch.equal(a[..., :16], b[..., :16]) and not torch.allclose(a[..., 16:], b[..., 16:])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({**DMA, "dma_clusters": 0}, "--dma-clusters must be at least 1 (which is plain attention), not 0"),
        (
            {**DMA, "dma_centroid_gradient": 0.0},
            "--dma-centroid-gradient must be between 0.001 and 1000, not 0.0",
        ),
        (
            {**DMA, "dma_centroid_gradient": -10.0},
            "--dma-centroid-gradient must be between 0.001 and 1000, not -10.0",
        ),
        (
            {**DMA, "dma_centroid_gradient": float("inf")},
            "--dma-centroid-gradient must be between 0.001 and 1000, not inf",
        ),
        (
            {**DMA, "dma_centroid_gradient": 1.0, "dma_centroid_mode": "hook"},
            "--dma-centroid-mode has no effect with --dma-centroid-gradient 1; leave it out",
        ),
        (
            {**DMA, "dma_clusters": 1, "dma_decoder_eval_mask": True},
            "--dma-decoder-eval-mask has no effect with --dma-clusters 1",
        ),
        (
            {**DMA, "dma_clusters": 1, "dma_posterior": "sample"},
            "--dma-posterior has no effect with --dma-clusters 1",
        ),
        (
            {**DMA, "dma_sampled_scores": True},
            "--dma-sampled-scores has no effect without --dma-posterior sample, as there are no samples",
        ),
        (
            {**DMA, "dma_clusters": 1, "dma_sampled_scores": True},
            "--dma-sampled-scores has no effect with --dma-clusters 1",
        ),
        ({**DMA, "dma_posterior": "mean"}, "--dma-posterior is 'mean'; it must be one of expected, sample"),
        (
            {"dma_clusters": 8},
            "--dma-clusters has no effect without --attention-type dma (or an arch such as dma_transformer)",
        ),
        (
            {"attention_type": "mae", "dma_decoder_eval_mask": True},
            "--dma-decoder-eval-mask has no effect without --attention-type dma",
        ),
        ({**DMA, "mae_dropped_heads": 2}, "--mae-dropped-heads has no effect without --attention-type mae"),
        (
            {**DMA, "encoder_embed_dim": 24, "decoder_embed_dim": 40},
            "--decoder-embed-dim 40 with --encoder-embed-dim 24: they must be equal",
        ),
        (
            {"attention_type": "dma+moe"},
            "--attention-type is 'dma+moe'; it must be one of plain, mae, dma, mae+dma",
        ),
    ],
)
def test_options_that_cannot_work_or_would_be_ignored_are_refused(changes, sentence):
    with pytest.raises(UsageError) as error:
        build(**changes)
    assert sentence in str(error.value)


@pytest.mark.parametrize("part", ["tokens", "queries.mixture"])
def test_options_reach_every_mask(part):
    def of(name, arch="modular_transformer", **changes):
        masks = semantic_masks(build(arch, **changes)).values()
        values = {float(getattr(mask.get_submodule(part), name)) for mask in masks}
        assert len(masks) == 6 and len(values) == 1
        return values.pop()

    assert of("clusters", **DMA) == 4 and of("clusters", "dma_transformer_iwslt_de_en", encoder_layers=2) == 8
    assert of("sampled", **DMA) == 0 and of("sampled", **DMA, dma_posterior="sample") == 1
    assert of("centroid_scale", **DMA) == 10 and of("gradient_factor", **DMA) == 1
    assert of("centroid_scale", "dma_transformer_wmt_zh_en") == 5
    hook = {**DMA, "dma_centroid_mode": "hook", "dma_centroid_gradient": 7.0}
    assert of("centroid_scale", **hook) == 1 and of("gradient_factor", **hook) == 7
