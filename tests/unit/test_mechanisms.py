"""Test independent mechanisms (TIM): Algorithm 1, which features mix, neutral settings, placement and
presets.
"""

import re

import pytest
import torch

from modular_fairseq.models.layers import TransformerDecoderLayer, TransformerEncoderLayer
from modular_fairseq.models.mechanism import LayerPlace
from modular_fairseq.models.options import nested_config
from modular_fairseq.models.tim import is_tim_layer
from modular_fairseq.modules.independent_mechanisms import Competition, InterMechanismAttention, weigh
from modular_fairseq_cli.errors import UsageError
from tests.helpers import LENGTHS, batch, build, build_preset, build_stock, options
from tests.properties import logits, real_logits
from tests.reference import mechanisms as reference

NEUTRAL = {"tim_layers": "all", "tim_mechanisms": 1, "tim_communication_heads": 0}
ONE = {"tim_layers": "all", "tim_mechanisms": 1}
VARIANTS = [
    {},
    {"tim_mechanisms": 4},
    {"tim_mechanisms": 1},
    {"tim_no_competition": True},
    {"tim_communication_heads": 0},
    {"tim_communication_heads": 3, "tim_communication_dim": 5},
    {"tim_no_competition": True, "tim_communication_heads": 0},
]
PLAIN = {"tim_layers": "none"}
FORMS = [
    {"pre_norm": pre_norm, "residual": residual} for pre_norm in (False, True) for residual in (True, False)
]


def options_of(pre_norm, residual):
    return {
        "encoder_normalize_before": pre_norm,
        "decoder_normalize_before": pre_norm,
        "no_residual": not residual,
    }


def name(changes):
    return ",".join(f"{key.removeprefix('tim_')}={value}" for key, value in changes.items()) or "default"


def build_layer(kind, **changes):
    """Build a layer in float64 with parameters far from their initial values."""
    torch.manual_seed(3)
    layer = kind(nested_config(options(**changes)), LayerPlace(0, 1, 32)).double().eval()
    layer.need_attn = False
    for p in layer.parameters():
        p.data.add_(0.2 * torch.randn_like(p))
    return layer


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def check_equal(module, outputs, inputs):
    """Check that two outputs and their gradients are equal."""
    upstream = torch.randn_like(outputs[0])
    torch.testing.assert_close(*outputs, atol=1e-12, rtol=0)
    leaves = [*inputs, *module.parameters()]
    gradients = [torch.autograd.grad((y * upstream).sum(), leaves, allow_unused=True) for y in outputs]
    for a, b in zip(*gradients, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, atol=1e-11, rtol=0)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("changes", VARIANTS, ids=name)
def test_an_encoder_layer_is_algorithm_1(changes, form):
    layer = build_layer(TransformerEncoderLayer, tim_layers="all", **changes, **options_of(**form))
    x, padding = random(6, 3, 32), torch.zeros(3, 6, dtype=torch.bool)
    padding[1, :2] = True
    expected = reference.layer(layer, x, changes.get("tim_mechanisms", 2), padding[:, None, :], **form)
    check_equal(layer, (layer(x, padding), expected), [x])


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("changes", [*VARIANTS, PLAIN], ids=name)
def test_a_decoder_layer_is_algorithm_1_with_cross_attention(changes, form):
    layer = build_layer(TransformerDecoderLayer, **{"tim_layers": "all", **changes}, **options_of(**form))
    x, source, padding = random(5, 3, 32), random(6, 3, 32), torch.zeros(3, 6, dtype=torch.bool)
    padding[1, :2] = True
    future = torch.ones(5, 5, dtype=torch.bool).triu(1)
    n = 1 if changes is PLAIN else changes.get("tim_mechanisms", 2)
    expected = reference.layer(layer, x, n, future[None], source, padding[:, None, :], **form)
    check_equal(layer, (layer(x, source, padding, self_attn_mask=future)[0], expected), [x, source])


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_plain_encoder_layer_without_residual_connections(form):
    layer, x = build_layer(TransformerEncoderLayer, **options_of(**form)), random(6, 3, 32)
    check_equal(layer, (layer(x, None), reference.layer(layer, x, 1, **form)), [x])


def test_a_decoder_reads_its_slice_of_an_encoder_of_another_width():
    model = build(tim_layers="all", decoder_embed_dim=40, encoder_embed_dim=24).double().eval()
    layer, x, source = model.decoder.layers[0], random(5, 3, 40), random(6, 3, 24)
    layer.need_attn = False
    check_equal(layer, (layer(x, source)[0], reference.layer(layer, x, 2, None, source)), [x, source])


@pytest.mark.parametrize("kind", [TransformerEncoderLayer, TransformerDecoderLayer])
def test_mechanisms_without_communication_never_mix(kind):
    """Not even gradients mix, whatever the parameters are. With communication they do."""
    for heads, mixes in ((0, False), (2, True)):
        layer = build_layer(
            kind, tim_layers="all", tim_mechanisms=4, tim_no_competition=True, tim_communication_heads=heads
        )
        x, source = random(5, 3, 32), random(6, 3, 32)
        y = layer(x, None) if kind is TransformerEncoderLayer else layer(x, source)[0]
        inputs = [x] if kind is TransformerEncoderLayer else [x, source]
        for gradient in torch.autograd.grad(y[..., 8:16].square().sum(), inputs):
            others = torch.cat([gradient[..., :8], gradient[..., 16:]], dim=-1)
            assert gradient[..., 8:16].abs().min() > 0 and (others.abs().max() > 0) == mixes


def test_competition_sums_to_one_at_every_position():
    competition = Competition(4, 32)
    c = competition(torch.randn(5, 3, 32))
    torch.testing.assert_close(c.sum(dim=-1), torch.ones(5, 3))
    assert c.std() > 0
    torch.testing.assert_close(competition(torch.zeros(1, 1, 32)), torch.full((1, 1, 4), 0.25))


def test_half_precision_competes_in_float32():
    competition = Competition(2, 32).to(torch.bfloat16)
    c = competition(torch.randn(5, 3, 32, dtype=torch.bfloat16))
    assert c.dtype == torch.float32
    assert weigh(torch.randn(5, 3, 32, dtype=torch.bfloat16), c).dtype == torch.bfloat16


def test_half_precision_weighs_mechanisms_in_float32():
    attention = InterMechanismAttention(4, 32, 2, 8)
    q, k = torch.randn(2, 3, 2, 4, 2, 8, dtype=torch.bfloat16)
    weights = attention._weights(q, k)
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights.sum(dim=3), torch.ones(3, 2, 4, 2), atol=1e-6, rtol=0)


@pytest.mark.parametrize("pre_norm", [False, True])
def test_one_mechanism_without_communication_is_a_plain_model(pre_norm):
    shape = {"encoder_normalize_before": pre_norm, "decoder_normalize_before": pre_norm}
    stock, ours = build_stock(seed=3, **shape).eval(), build(**NEUTRAL, **shape).eval()
    ours.load_state_dict(stock.state_dict())
    sample = batch(LENGTHS)
    torch.testing.assert_close(real_logits(ours, sample), real_logits(stock, sample), atol=1e-6, rtol=1e-6)


def with_parameters_without_effect(model):
    """Return the state dict that version 0.1 wrote of a model with one mechanism."""
    state = model.state_dict()
    for side in ("encoder", "decoder"):
        for i in range(2):
            start = f"{side}.layers.{i}."
            inner = model.cfg.tim_communication_heads * model.cfg.tim_communication_dim
            sizes = {"competition.linear": 1, "communication.q_proj": inner, "communication.k_proj": inner}
            for module, size in sizes.items():
                state[f"{start}{module}.weight"] = torch.randn(size, 32)
                state[f"{start}{module}.bias"] = torch.randn(size)
    return state


def test_one_mechanism_has_no_parameters_without_effect():
    model, sample = build(**ONE), batch(LENGTHS)
    logits(model, sample).square().sum().backward()
    for key, parameter in model.named_parameters():
        # Keys have no bias gradient: a number that all scores of a query share does not change its softmax.
        if not key.endswith("k_proj.bias"):
            assert parameter.grad is not None and parameter.grad.abs().max() > 0, key


def test_parameters_without_effect_of_old_checkpoints_are_left_out():
    model, again = build(**ONE).eval(), build(seed=2, **ONE).eval()
    old = with_parameters_without_effect(model)
    assert len(old) == len(model.state_dict()) + 4 * 6
    again.load_state_dict(old)
    assert torch.equal(logits(again, batch(LENGTHS)), logits(model, batch(LENGTHS)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            PLAIN,
            "the checkpoint has encoder.layers.0.competition.linear.weight, which this model does not have",
        ),
        ({"tim_layers": "all"}, "encoder.layers.0.competition.linear.weight is [1, 32] in the checkpoint"),
    ],
    ids=["no mechanisms", "two mechanisms"],
)
def test_models_without_a_single_mechanism_refuse_them(changes, message):
    old, model = with_parameters_without_effect(build(**ONE)), build(**changes)
    old = {key: value for key, value in old.items() if "competition" in key}
    with pytest.raises(UsageError, match=re.escape(message)):
        model.load_state_dict({**model.state_dict(), **old})


def test_mechanisms_with_dense_block_diagonal_matrices_are_a_plain_layer_with_other_norms():
    """The same heads see the same slices.

    So a TIM layer without competition differs from a plain one only by normalisation over a slice.
    """
    tim = build_layer(
        TransformerEncoderLayer, tim_layers="all", tim_no_competition=True, tim_communication_heads=0
    )
    plain = build_layer(TransformerEncoderLayer)
    for key, value in tim.state_dict().items():
        if "layer_norm" not in key:
            dense = torch.block_diag(*value) if key.endswith("weight") else value.flatten()
            plain.state_dict()[key].copy_(dense)
    plain.self_attn_layer_norm, plain.final_layer_norm = tim.self_attn_layer_norm, tim.final_layer_norm
    x = random(6, 3, 32)
    torch.testing.assert_close(tim(x, None), plain(x, None), atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("placement", "depth", "expected"),
    [
        ("none", 6, []),
        ("all", 3, [0, 1, 2]),
        ("middle", 6, [2, 3, 4]),
        ("middle", 8, [2, 3, 4, 5, 6]),
        ("middle", 4, [2]),
    ],
)
def test_the_first_two_layers_and_the_last_one_are_plain(placement, depth, expected):
    assert [number for number in range(depth) if is_tim_layer(placement, number, depth)] == expected
    model = build(tim_layers=placement, encoder_layers=depth, decoder_layers=depth)
    for stack in (model.encoder, model.decoder):
        assert [
            number for number, layer in enumerate(stack.layers) if layer.competition is not None
        ] == expected


@pytest.mark.parametrize(
    ("arch", "vocabulary", "changes", "parameters", "plain"),
    [
        (
            "tim_transformer_iwslt_de_en",
            (8848, 6632),
            {"share_decoder_input_output_embed": True},
            39_773_964,
            39_469_056,
        ),
        (
            "tim_transformer_iwslt_de_en_4",
            (8848, 6632),
            {"share_decoder_input_output_embed": True},
            39_892_248,
            39_469_056,
        ),
        ("tim_transformer_wmt_en_de", (32768, 32768), {"share_all_embeddings": True}, 61_689_612, 60_915_712),
        ("tim_transformer", (32768, 32768), {"share_all_embeddings": True}, 61_689_612, 60_915_712),
        (
            "tim_transformer_wmt_en_de_4",
            (32768, 32768),
            {"share_all_embeddings": True},
            60_184_088,
            60_915_712,
        ),
    ],
)
def test_presets_have_as_many_parameters_as_the_plain_transformer(
    arch, vocabulary, changes, parameters, plain
):
    """The numbers of section 3.4 of the specification hold within 1.3 %."""
    assert sum(p.numel() for p in build_preset(arch, vocabulary, **changes).parameters()) == parameters
    assert abs(parameters / plain - 1) < 0.013


def test_middle_layers_of_mechanisms_at_equal_width():
    model = build_preset(
        "modular_transformer_iwslt_de_en",
        (8848, 6632),
        share_decoder_input_output_embed=True,
        tim_layers="middle",
    )
    assert sum(p.numel() for p in model.parameters()) == 32_405_772


@pytest.mark.parametrize(("n", "encoder", "decoder"), [(2, 0.565, 0.544), (4, 0.316, 0.295)])
def test_a_layer_of_mechanisms_is_as_much_smaller_as_specified(n, encoder, decoder):
    size = {"encoder_embed_dim": 512, "encoder_ffn_embed_dim": 1024}
    tim, plain = build(tim_layers="all", tim_mechanisms=n, **size), build(**size)
    for stack, ratio in (("encoder", encoder), ("decoder", decoder)):
        counts = [
            sum(p.numel() for p in getattr(model, stack).layers[0].parameters()) for model in (tim, plain)
        ]
        assert counts[0] / counts[1] == pytest.approx(ratio, abs=5e-4)


def test_dropout_acts_on_what_mechanisms_tell_each_other():
    layer = build_layer(TransformerEncoderLayer, tim_layers="all", attention_dropout=0.5)
    assert layer.communication.dropout_module.p == 0.5
    layer.train()
    x = random(4, 3, 32)
    torch.manual_seed(1)
    first = layer.communication(x)
    assert not torch.equal(layer.communication(x), first)
    torch.manual_seed(1)
    assert torch.equal(layer.communication(x), first)


@pytest.mark.parametrize("kind", [TransformerEncoderLayer, TransformerDecoderLayer])
def test_hidden_dropout_comes_once_after_every_sub_layer_and_after_the_competition(kind):
    layer = build_layer(kind, tim_layers="all", dropout=0.5).train()
    seen = []
    layer.dropout_module.register_forward_hook(lambda module, args, y: seen.append((args[0], y)))
    x, source = random(4, 3, 32), random(5, 3, 32)
    weighed = []
    layer.self_attn.register_forward_hook(
        lambda module, args, y: weighed.append(weigh(y[0], layer.competition(x)))
    )
    layer(x, None) if kind is TransformerEncoderLayer else layer(x, source)
    assert len(seen) == (3 if kind is TransformerEncoderLayer else 4)
    torch.testing.assert_close(seen[0][0], weighed[0])
    assert all(0.2 < (y == 0).double().mean() < 0.8 for _, y in seen)


def test_every_matrix_of_a_mechanism_starts_as_specified():
    communication = InterMechanismAttention(2, 576, 2, 32)
    for projection, gain in (
        (communication.q_proj, 0.5**0.5),
        (communication.k_proj, 0.5**0.5),
        (communication.out_proj, 1.0),
    ):
        bound = gain * (6 / (288 + 64)) ** 0.5
        assert all(
            matrix.abs().max().item() == pytest.approx(bound, rel=0.01) for matrix in projection.weight
        )
    assert not communication.out_proj.bias.any()
    competition = Competition(2, 576).linear
    assert all(
        matrix.abs().max().item() == pytest.approx(288**-0.5, rel=0.05) for matrix in competition.weight
    )
    assert not competition.bias.any()
