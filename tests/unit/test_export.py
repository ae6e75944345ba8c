"""Test `modular-fairseq export`: exported models compute the same, and others are refused."""

import importlib.util
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from modular_fairseq.export.command import check_folder
from modular_fairseq.export.fixed_heads import check_plain, plain
from modular_fairseq.export.gates import constant_scales, measured_scales
from modular_fairseq.models.mae import expert_mixtures
from modular_fairseq.models.translation import ModularTransformer
from modular_fairseq.modules.attention import MultiheadAttention
from modular_fairseq_cli.errors import UsageError
from tests.helpers import LENGTHS, batch, build, build_stock, options, randomize_parts, task
from tests.language_models import build as build_language_model
from tests.properties import real_logits

pytestmark = pytest.mark.cpu_only("models are exported on a CPU")

needs_ctranslate2 = pytest.mark.skipif(
    importlib.util.find_spec("ctranslate2") is None, reason="the package ctranslate2 is not installed"
)
MAE = {"attention_type": "mae"}
UNIFORM = {**MAE, "mae_gating": "uniform"}


def model_of(make=build, **changes):
    model = make(**changes).eval()
    if make is build:
        randomize_parts(model)
    return model


def logits_with(model, scales, sample):
    """Return the logits of a model whose gates return fixed head scales."""
    handles = [
        module.gate.register_forward_hook(
            lambda _, inputs, y, s=scales[name]: s.float().view(1, -1, 1, 1).expand_as(y)
        )
        for name, module in model.named_modules()
        if isinstance(module, MultiheadAttention) and name in scales
    ]
    found = real_logits(model, sample)
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize("gates", ["mean", "expert"])
@pytest.mark.parametrize("context", ["prefix", "source"])
def test_fixed_scales_are_in_the_weights(gates, context):
    """Heads that an expert lacks are removed, and what remains is the model with these scales."""
    model, sample = model_of(**MAE, mae_gate_context=context), batch(LENGTHS)
    scales = measured_scales(model, gates, [sample, batch(LENGTHS[:2], seed=5)])
    assert set(scales) == set(expert_mixtures(model))
    assert all(mixture.statistics is None for mixture in expert_mixtures(model).values())
    found = plain(model, scales)
    torch.testing.assert_close(
        real_logits(found, sample), logits_with(model, scales, sample), atol=1e-5, rtol=0
    )
    assert (real_logits(found, sample) - real_logits(model, sample)).abs().max() > 1e-3
    heads = {module.num_heads for module in found.modules() if isinstance(module, MultiheadAttention)}
    assert heads == ({4} if gates == "mean" else {3})


@pytest.mark.parametrize("context", ["prefix", "source"])
def test_means_are_over_sentences_or_positions_without_padding(context):
    model = model_of(**MAE, mae_gate_context=context)
    together, seen = batch(LENGTHS), []
    mixtures = expert_mixtures(model)
    found = measured_scales(model, "mean", [together])
    for name, mixture in mixtures.items():
        mixture.register_forward_hook(lambda _, inputs, y, name=name: seen.append((name, y.squeeze(-1))))
    for i, (s, t) in enumerate(LENGTHS):  # alone, without padding
        net_input = together["net_input"]
        model(
            src_tokens=net_input["src_tokens"][i : i + 1, -s:],
            src_lengths=torch.tensor([s]),
            prev_output_tokens=net_input["prev_output_tokens"][i : i + 1, :t],
        )
    for name in mixtures:
        alone = torch.cat([y[0].T for key, y in seen if key == name])  # instances x heads
        assert len(alone) == (sum(t for _, t in LENGTHS) if "decoder" in name and context == "prefix" else 5)
        torch.testing.assert_close(found[name].float(), alone.mean(dim=0), atol=1e-6, rtol=0)


def test_heads_without_a_scale_stay_if_modules_would_differ():
    model, sample = model_of(**MAE), batch(LENGTHS)
    scales = {name: torch.ones(4) for name in expert_mixtures(model)}
    scales["decoder.layers.1.self_attn"][2] = 0.0  # this gate always chooses one expert
    found = plain(model, scales)
    assert {module.num_heads for module in found.modules() if isinstance(module, MultiheadAttention)} == {4}
    torch.testing.assert_close(
        real_logits(found, sample), logits_with(model, scales, sample), atol=1e-5, rtol=0
    )


def test_an_expert_that_is_always_used_is_exported():
    model, sample = model_of(**UNIFORM, mae_inference="random"), batch(LENGTHS)
    check_plain(model)
    found = plain(model, constant_scales(model))
    assert {module.num_heads for module in found.modules() if isinstance(module, MultiheadAttention)} == {3}
    torch.testing.assert_close(real_logits(found, sample), real_logits(model, sample), atol=1e-5, rtol=0)


SHAPES = [
    {},
    {"encoder_normalize_before": True, "decoder_normalize_before": True, "activation_fn": "gelu"},
    {"layernorm_embedding": True, "encoder_learned_pos": True, "decoder_learned_pos": True},
    {"share_decoder_input_output_embed": True, "no_scale_embedding": True},
    {"encoder_attention_heads": 8, "encoder_layers": 3, "activation_fn": "gelu_accurate"},
    {"activation_fn": "gelu_fast"},
]


def exported_and_expected(model, found, folder, expected=real_logits):
    """Return the log-probabilities of all target words of a batch, by CTranslate2 and by the model."""
    from ctranslate2 import Translator

    from modular_fairseq.export.to_ctranslate2 import save

    of = SimpleNamespace(src_dict=task().source_dictionary, tgt_dict=task().target_dictionary)
    save(found, of, str(folder), "float32")
    sample = batch(LENGTHS)
    sources, targets = (
        [[words[i] for i in row if i not in (1, 2)] for row in side.tolist()]
        for words, side in (
            (of.src_dict.symbols, sample["net_input"]["src_tokens"]),
            (of.tgt_dict.symbols, sample["target"]),
        )
    )
    scores = Translator(str(folder), device="cpu", intra_threads=1).score_batch(sources, targets)
    theirs = torch.tensor([each for score in scores for each in score.log_probs])
    lprobs = expected(model, sample).log_softmax(-1)
    real = sample["target"][sample["target"].ne(1)]
    return theirs, lprobs.gather(1, real.unsqueeze(1)).squeeze(1)


@needs_ctranslate2
@pytest.mark.parametrize(
    "changes",
    [*SHAPES, UNIFORM, {"tim_layers": "all", "tim_mechanisms": 1, "tim_communication_heads": 0}],
    ids=str,
)
def test_an_exported_model_has_the_same_probabilities(changes, tmp_path):
    model = model_of(**changes)
    check_plain(model)
    torch.testing.assert_close(
        *exported_and_expected(model, plain(model, {}), tmp_path / "model"), atol=1e-5, rtol=0
    )


@needs_ctranslate2
def test_fairseqs_own_transformer_is_exported(tmp_path):
    model = model_of(build_stock)
    check_plain(model)
    torch.testing.assert_close(
        *exported_and_expected(model, plain(model, {}), tmp_path / "model"), atol=1e-5, rtol=0
    )


@needs_ctranslate2
@pytest.mark.parametrize("gates", ["mean", "expert"])
def test_fixed_gates_have_the_probabilities_of_their_scales(gates, tmp_path):
    model = model_of(**MAE)
    scales = measured_scales(model, gates, [batch(LENGTHS)])

    def expected(model, sample):
        return logits_with(model, scales, sample)

    found = exported_and_expected(model, plain(model, scales), tmp_path / "model", expected)
    torch.testing.assert_close(*found, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"attention_type": "dma"}, "encoder.layers.0.self_attn has a mask that depends on the input"),
        ({"streams": 2, "encoder_layers": 4}, "the layers of its encoder do not follow one another"),
        ({"tim_layers": "all"}, "encoder.layers.0 has independent mechanisms"),
        (
            {"tim_layers": "all", "tim_mechanisms": 1},
            "encoder.layers.0 has a sub-layer in which mechanisms communicate",
        ),
        ({"no_residual": True}, "encoder.layers.0 has no residual connections"),
        ({"no_token_positional_embeddings": True}, "its encoder has no positions"),
        ({"adaptive_softmax_cutoff": "10,25"}, "it has an adaptive softmax"),
    ],
    ids=str,
)
def test_other_models_are_refused(changes, sentence):
    with pytest.raises(UsageError, match=f"the model cannot be exported: {sentence}"):
        check_plain(build(**changes))


@pytest.mark.parametrize(
    ("attribute", "value", "sentence"),
    [
        ("encoder_attn", None, "decoder.layers.1 has no cross-attention"),
        ("cross_self_attention", True, "decoder.layers.1 attends to source and target at once"),
    ],
)
def test_layers_of_fairseq_that_the_engine_does_not_have_are_refused(attribute, value, sentence):
    model = build_stock()
    setattr(model.decoder.layers[1], attribute, value)
    with pytest.raises(UsageError, match=sentence):
        check_plain(model)


class _Sharpened(MultiheadAttention):
    """Attention of a plugin."""


class _Mixer(nn.Module):
    """A part that a plugin adds to attention."""


class _Model(ModularTransformer):
    """A model of a plugin."""


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: build_language_model("modular_transformer_lm"), "it is not a Transformer for translation"),
        (
            lambda: _Model.build_model(options(), task()),
            "the model is a _Model, which is no part of a plain Transformer",
        ),
    ],
)
def test_models_of_other_classes_are_refused(make, sentence):
    with pytest.raises(UsageError, match=f"the model cannot be exported: {sentence}"):
        check_plain(make())


def _replace(attention):
    attention.__class__ = _Sharpened


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_replace, "encoder.layers.0.self_attn is a _Sharpened, which is no part of a plain Transformer"),
        (
            lambda attention: attention.add_module("mixer", _Mixer()),
            "encoder.layers.0.self_attn.mixer is a _Mixer, which is no part of a plain Transformer",
        ),
        (
            lambda attention: setattr(attention, "gate", _Mixer()),
            "encoder.layers.0.self_attn has a gate that depends on the input",
        ),
        (
            lambda attention: attention.register_parameter("slope", nn.Parameter(torch.ones(1))),
            "encoder.layers.0.self_attn.slope is a weight that a plain Transformer does not have",
        ),
        (
            lambda attention: attention.add_module("extra", nn.Linear(4, 4)),
            "encoder.layers.0.self_attn.extra.weight is a weight that a plain Transformer does not have",
        ),
        (
            lambda attention: attention.add_module("out_proj", nn.Sequential(attention.out_proj, nn.Tanh())),
            "encoder.layers.0.self_attn.out_proj.0.weight is a weight that a plain Transformer does not have",
        ),
        (
            lambda attention: attention.register_forward_hook(lambda module, inputs, output: output),
            "encoder.layers.0.self_attn has a forward hook, which may change what it computes",
        ),
        (
            lambda attention: attention.register_forward_pre_hook(lambda module, inputs: None),
            "encoder.layers.0.self_attn has a forward hook, which may change what it computes",
        ),
    ],
)
def test_what_a_plugin_has_added_is_refused(change, sentence):
    model = build(attention_type="mae", mae_gating="uniform")
    check_plain(model)
    change(model.encoder.layers[0].self_attn)
    with pytest.raises(UsageError, match=f"the model cannot be exported: {sentence}"):
        check_plain(model)


def test_only_a_folder_of_export_is_replaced(tmp_path):
    """Nothing is deleted that another program has written, and nothing is tried that cannot work."""
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "checkpoint_best.pt").touch()
    (tmp_path / "file").touch()
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "export.json").touch()
    (tmp_path / "link").symlink_to(tmp_path / "ours")
    check_folder(str(tmp_path / "ours"), force=True)
    check_folder(str(tmp_path / "new"), force=False)
    for name in ("weights", "file", "link"):
        with pytest.raises(UsageError, match="--force replaces only what export has written"):
            check_folder(str(tmp_path / name), force=True)
    for name in ("weights", "file", "link", "ours"):
        with pytest.raises(UsageError, match="exists; give another folder, or replace it with --force"):
            check_folder(str(tmp_path / name), force=False)
