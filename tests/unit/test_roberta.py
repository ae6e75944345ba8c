"""Test encoder-only models: they equal fairseq's RoBERTa and have the papers' sizes."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from fairseq.data import Dictionary

from modular_fairseq.models.dma_losses import measuring
from modular_fairseq.models.mae import expert_mixtures, gate_parameters
from modular_fairseq.modules.disentangled_heads import LossSettings
from modular_fairseq.modules.grouped import GroupLinear
from modular_fairseq_cli.errors import UsageError
from tests.helpers import randomize_parts
from tests.masked_language_models import PAD, build, build_preset, build_stock

TOKENS = torch.tensor([[0, 7, 9, 4, 30, 12, 2], [0, 8, 8, 21, 2, 1, 1]])
ONE_WORD = torch.tensor([[0, 7, 2]])
PRE_NORM = {"encoder_normalize_before": True, "layernorm_embedding": False}
REAL = TOKENS.ne(PAD)


@pytest.mark.parametrize(
    ("neutral", "stock"),
    [
        ({}, {}),
        ({"untie_weights_roberta": True}, {"untie_weights_roberta": True}),
        ({"encoder_normalize_before": True}, PRE_NORM),
        (
            {"encoder_normalize_before": True, "layernorm_embedding": True},
            {"encoder_normalize_before": True, "layernorm_embedding": True},
        ),
        ({"activation_fn": "relu"}, {"activation_fn": "relu"}),
        ({"arch": "mae_roberta", "mae_gate_init": "zero"}, {}),
        ({"arch": "mae_roberta", "mae_gating": "uniform"}, {}),
        ({"arch": "dma_roberta", "dma_clusters": 1}, {}),
    ],
)
def test_neutral_settings_equal_fairseqs_roberta(neutral, stock):
    theirs = build_stock(seed=3, **stock).eval()
    ours = build(**neutral).eval()
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours(TOKENS)[0][REAL], theirs(TOKENS)[0][REAL], atol=1e-6, rtol=1e-6)


def test_one_mechanism_without_communication_equals_fairseqs_roberta():
    theirs, ours = build_stock(seed=3).eval(), build(tim_layers="all", tim_mechanisms=1).eval()
    assert {key for key in ours.state_dict() if key not in theirs.state_dict()}  # it has the communication
    ours = build(tim_layers="all", tim_mechanisms=1, tim_communication_heads=0).eval()
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours(TOKENS)[0][REAL], theirs(TOKENS)[0][REAL], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("changes", [{}, {"encoder_layers": 3, "encoder_embed_dim": 64}])
def test_the_same_seed_gives_the_weights_of_fairseqs_roberta(changes):
    ours, theirs = build(seed=5, **changes).state_dict(), build_stock(seed=5, **changes).state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(value, theirs[key]) for key, value in ours.items())


def test_only_masked_words_are_projected_to_the_vocabulary():
    model, masked = build().eval(), torch.zeros_like(TOKENS, dtype=torch.bool)
    masked[0, 2] = masked[1, 1] = True
    some, _ = model(TOKENS, masked_tokens=masked)
    assert some.shape == (2, 45)
    torch.testing.assert_close(some, model(TOKENS)[0][masked], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    ("arch", "types", "millions", "papers"),
    [
        ("modular_roberta", 32_678, 111.2, 110),
        ("modular_roberta_130m", 32_678, 130.1, 130),
        ("tim_roberta", 32_678, 132.0, 130),
        ("tim_roberta_nocomp", 32_678, 132.0, 130),
        ("tim_roberta_all", 32_678, 113.9, 110),
        ("modular_roberta_4_layers", 50_265, 68.0, None),
    ],
)
def test_presets_have_the_papers_parameter_counts(arch, types, millions, papers):
    """Table 2 of the TIM paper. The ensemble paper does not print a count."""
    count = sum(p.numel() for p in build_preset(arch, types).parameters())
    assert round(count / 1e6, 1) == millions
    assert papers is None or abs(count / 1e6 - papers) <= 0.04 * papers


def test_tim_has_within_2_percent_the_parameters_of_its_peer():
    counts = {
        arch: sum(p.numel() for p in build_preset(arch, 32_678).parameters())
        for arch in ("tim_roberta", "modular_roberta_130m")
    }
    assert abs(counts["tim_roberta"] / counts["modular_roberta_130m"] - 1) < 0.02


@pytest.mark.parametrize(
    ("arch", "expected"),
    [
        ("tim_roberta", [False] * 2 + [True] * 9 + [False]),
        ("tim_roberta_nocomp", [False] * 2 + [True] * 9 + [False]),
        ("tim_roberta_all", [True] * 12),
    ],
)
def test_tim_presets_replace_the_layers_of_table_2(arch, expected):
    layers = build_preset(arch, 1000).encoder.sentence_encoder.layers
    assert [isinstance(layer.fc1, GroupLinear) for layer in layers] == expected
    assert all((layer.competition is not None) == (arch == "tim_roberta") for layer in layers[2:11])


def test_weights_start_as_berts_except_for_parts_with_initial_values_of_their_own():
    model = build("mae_roberta", tim_layers="all", encoder_embed_dim=256, encoder_ffn_embed_dim=512)
    layer = model.encoder.sentence_encoder.layers[0]
    for linear in (layer.fc1, layer.self_attn.q_proj, layer.self_attn.out_proj, layer.communication.q_proj):
        assert isinstance(linear, GroupLinear)
        assert linear.weight.std().item() == pytest.approx(0.02, rel=0.05)
        assert torch.equal(linear.bias, torch.zeros_like(linear.bias))
    gate_weights = [p for p in gate_parameters(model) if p.dim() == 2]
    assert all(weight.std().item() > 0.025 for weight in gate_weights)
    zero = build("mae_roberta", mae_gate_init="zero")
    assert any(not p.any() for p in gate_parameters(zero) if p.dim() == 2)


ATTENTION = [{}, {"attention_type": "mae"}, {"attention_type": "dma"}, {"attention_type": "mae+dma"}]
LAYERS = [{}, {"tim_layers": "middle"}, {"tim_layers": "all", "tim_mechanisms": 4}]
STREAMS = [{}, {"streams": 2, "stream_skip": True}]
RESIDUAL = [{}, {"no_residual": True}]
GRID = [
    {"encoder_layers": 6, **attention, **layers, **streams, **residual}
    for attention, layers, streams, residual in itertools.product(ATTENTION, LAYERS, STREAMS, RESIDUAL)
]


def name(changes):
    return ",".join(f"{key}={value}" for key, value in changes.items() if key != "encoder_layers") or "plain"


@pytest.mark.parametrize("changes", GRID, ids=name)
def test_every_combination_trains_and_ignores_padding(changes, tmp_path):
    model = build(**changes).double().train()
    for mixture in expert_mixtures(model).values():
        mixture.step = "F"
    gates = {id(p) for p in gate_parameters(model)}
    masked = TOKENS.eq(8) | TOKENS.eq(9)
    with measuring(model, LossSettings(kl=True, qq=True, xq=True)) as losses:
        loss = F.cross_entropy(model(TOKENS, masked_tokens=masked)[0], TOKENS[masked])
    loss = loss + sum(values.mean() for values in losses.values())
    loss.backward()
    assert loss.isfinite()
    for key, parameter in model.named_parameters():
        assert (parameter.grad is not None) == (id(parameter) not in gates), key

    randomize_parts(model)
    model.eval()
    both, alone = model(TOKENS)[0], model(TOKENS[1:, :5])[0]
    torch.testing.assert_close(both[1, :5], alone[0])
    assert model(ONE_WORD)[0].isfinite().all()

    torch.save(model.state_dict(), tmp_path / "model.pt")
    again = build(seed=7, **changes).double().eval()
    assert not torch.equal(again(TOKENS)[0], both)
    again.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    assert torch.equal(again(TOKENS)[0], both)


@pytest.mark.parametrize("arch", ["modular_roberta", "mae_roberta", "dma_roberta", "tim_roberta"])
def test_every_word_sees_every_other(arch):
    """No part of an encoder may be causal."""
    model = build(arch, encoder_layers=4)
    randomize_parts(model)
    model.eval()
    expected = model(TOKENS[:1])[0]
    for changed in range(7):
        tokens = TOKENS[:1].clone()
        tokens[0, changed] = 6
        assert not (model(tokens)[0] == expected).all(dim=-1).any()


def test_a_classification_head_reads_the_first_word():
    model = build().eval()
    model.register_classification_head("kinds", num_classes=3)
    logits, _ = model(TOKENS, classification_head_name="kinds")
    features, _ = model(TOKENS, features_only=True)
    head = model.classification_heads["kinds"]
    assert logits.shape == (2, 3)
    torch.testing.assert_close(logits, head.out_proj(torch.tanh(head.dense(features[:, 0]))))


@pytest.mark.parametrize("given", [{}, {"load_checkpoint_heads": True}])
def test_heads_of_a_checkpoint_load_if_the_model_has_or_asks_for_them(given):
    saved = build(seed=2)
    saved.register_classification_head("kinds", num_classes=3)
    state = saved.state_dict()
    model = build(**given)
    if not given:
        model.register_classification_head("kinds", num_classes=3)
    model.load_state_dict(state)
    assert torch.equal(
        model.classification_heads["kinds"].dense.weight, state["classification_heads.kinds.dense.weight"]
    )


def test_a_new_head_keeps_its_weights_when_a_checkpoint_without_it_loads():
    model = build()
    model.register_classification_head("kinds", num_classes=3)
    before = model.classification_heads["kinds"].dense.weight.clone()
    pretrained = build(seed=2).state_dict()
    model.load_state_dict(pretrained)
    assert torch.equal(model.classification_heads["kinds"].dense.weight, before)
    assert torch.equal(model.encoder.lm_head.dense.weight, pretrained["encoder.lm_head.dense.weight"])


def test_a_head_with_another_number_of_classes_is_refused():
    saved = build()
    saved.register_classification_head("kinds", num_classes=3)
    model = build()
    model.register_classification_head("kinds", num_classes=2)
    with pytest.raises(UsageError) as error:
        model.load_state_dict(saved.state_dict())
    assert str(error.value) == (
        "the classification head kinds has 3 classes in the checkpoint and 2 in this model: give "
        "--num-classes "
        "3, or train a new head under another name with --classification-head-name"
    )


def test_another_number_of_positions_is_refused():
    saved = build(positions=20).state_dict()
    with pytest.raises(UsageError) as error:
        build(positions=16).load_state_dict(saved)
    assert str(error.value) == (
        "the model in the checkpoint has 20 positions and this model 16: give --max-positions 20, or "
        "measure the model by modular-fairseq predict, which needs no such option"
    )


def test_finetuning_of_gates_trains_a_new_head_too():
    model = build("mae_roberta", mae_finetune="gates")
    assert model.gate_training.gates_only
    model.register_classification_head("kinds", num_classes=2)
    assert not model.gate_training.gates_only and model.gate_training.interval_of(False) == 1
    learning = {name for name, p in model.named_parameters() if p.requires_grad}
    assert learning == {
        f"classification_heads.kinds.{name}"
        for name, _ in model.classification_heads["kinds"].named_parameters()
    }


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"arch": "tim_roberta", "encoder_layers": 3},
            "--tim-layers middle leaves the first two layers and the last one plain, so --encoder-layers 3 "
            "has no TIM layer: use at least 4 layers, or --tim-layers all",
        ),
        (
            {"tim_layers": "all", "tim_mechanisms": 3},
            "--encoder-embed-dim 32 is not a multiple of --tim-mechanisms 3; give for example 30 or 33",
        ),
        (
            {"streams": 2, "encoder_layers": 5},
            "--encoder-layers 5 with --streams 2: there must be 2 + 2 x L of them, a first one, a last one "
            "and L in each stream, such as 4 or 6",
        ),
        (
            {"arch": "mae_roberta", "mae_gate_context": "window"},
            "--mae-gate-context has no effect in a model without a decoder, where every gate averages the "
            "whole sentence; leave it out",
        ),
        (
            {"arch": "mae_roberta", "mae_gate_context": "source"},
            "--mae-gate-context has no effect in a model without a decoder, where every gate averages the "
            "whole sentence; leave it out",
        ),
        (
            {"arch": "mae_roberta", "mae_gate_window": 7},
            "--mae-gate-window has no effect in a model without a decoder, where every gate averages the "
            "whole sentence; leave it out",
        ),
        (
            {"arch": "dma_roberta", "dma_decoder_eval_mask": True},
            "--dma-decoder-eval-mask has no effect in a model without a decoder; leave it out",
        ),
        (
            {"encoder_attention_heads": 5},
            "--encoder-embed-dim 32 is not a multiple of --encoder-attention-heads 5; give for example 30 or "
            "35",
        ),
    ],
)
def test_what_an_encoder_cannot_have_is_refused(changes, sentence):
    with pytest.raises(UsageError) as error:
        build(**changes)
    assert str(error.value) == sentence


def test_a_dictionary_without_the_mask_is_refused(monkeypatch):
    monkeypatch.setattr("tests.masked_language_models.dictionary", lambda size: _Without())
    with pytest.raises(UsageError) as error:
        build()
    assert str(error.value) == (
        "the dictionary has no <mask>, which a masked language model needs; use --task masked_lm, "
        "sentence_prediction or sentence_ranking, which add it; modular-fairseq predict measures a trained "
        "model"
    )


class _Without(Dictionary):
    def add_symbol(self, word, n=1, overwrite=False):
        return 0 if word == "<mask>" else super().add_symbol(word, n, overwrite)


def test_the_positions_are_those_of_the_task_or_of_the_option():
    assert build(positions=20).max_positions() == 20
    assert build(max_positions=9).max_positions() == 9
    assert len(build(max_positions=9).encoder.sentence_encoder.embed_positions.weight) == 9 + PAD + 1
