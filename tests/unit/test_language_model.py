"""Test decoder-only models: they equal fairseq's, decode step by step as they train, and train."""

from argparse import Namespace

import fairseq.modules
import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.models.transformer_lm import TransformerLanguageModel

from modular_fairseq.models import layers
from modular_fairseq.models.language_model import ModularTransformerLanguageModel
from modular_fairseq.models.mechanism import Place
from modular_fairseq.models.options import FAMILIES
from modular_fairseq.modules.adaptive_input import AdaptiveInput
from modular_fairseq.modules.expert_mixture import ExpertMixture
from modular_fairseq_cli.errors import UsageError
from tests.helpers import randomize_parts
from tests.language_models import VALUES_OF_OTHER_OPTIONS, build, task

TOKENS = torch.tensor([[2, 7, 9, 4, 30, 12, 5], [2, 8, 8, 21, 1, 1, 1]])


@pytest.mark.parametrize("neutral", [{}, {"mae_gate_init": "zero"}, {"mae_gating": "uniform"}])
def test_neutral_settings_equal_fairseqs_language_model(neutral):
    stock = build("modular_transformer_lm_tiny_cpu", TransformerLanguageModel, seed=3).eval()
    ours = build(
        "mae_transformer_lm_tiny_cpu" if neutral else "modular_transformer_lm_tiny_cpu", **neutral
    ).eval()
    ours.load_state_dict(stock.state_dict())
    real = TOKENS.ne(1)
    torch.testing.assert_close(ours(TOKENS)[0][real], stock(TOKENS)[0][real], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {"mae_gate_window": 1},
        {"mae_gate_window": 3},
        {},
        {"tim_layers": "all", "tim_mechanisms": 4},
        {"tim_layers": "middle", "decoder_layers": 4, "attention_type": "plain"},
        {"attention_type": "dma"},
        {"attention_type": "mae+dma", "dma_decoder_eval_mask": True},
    ],
)
def test_step_by_step_equals_teacher_forcing_and_the_future_changes_nothing(changes):
    model = build("mae_transformer_lm_tiny_cpu", **changes)
    randomize_parts(model)
    model.eval()
    expected, state = model(TOKENS)[0], {}
    for t in range(4):
        found, _ = model(TOKENS[:, : t + 1], incremental_state=state)
        torch.testing.assert_close(found[:, 0], expected[:, t], atol=1e-5, rtol=0)
    changed = TOKENS.clone()
    changed[0, 4:] = 6
    assert torch.equal(model(changed)[0][:, :4], expected[:, :4])
    assert not torch.equal(model(changed)[0][0, 4:], expected[0, 4:])


@pytest.mark.parametrize(
    ("changes", "maps"),
    [
        ({}, 3),
        ({"attention_type": "mae", "mae_gate_window": 100}, 3),
        ({"attention_type": "mae", "mae_gate_context": "prefix"}, 3),
        ({"tim_layers": "all", "tim_mechanisms": 2}, 3),
        ({"attention_type": "dma"}, 4),
    ],
)
def test_nothing_but_attention_grows_with_the_square_of_a_block(changes, maps):
    """In each layer, attention keeps its weights, their dropout and their product; DMA also its mask."""
    tokens = torch.randint(4, 40, (1, 512))
    longest = {"max_target_positions": 512, "tokens_per_sample": 512}
    model = build("modular_transformer_lm_tiny_cpu", **longest, **changes, attention_dropout=0.1).train()
    for module in model.modules():
        if isinstance(module, ExpertMixture):
            module.step = "G"
    kept = {}

    def keep(tensor):
        if tensor.numel() >= tokens.numel() ** 2:
            kept[tensor.untyped_storage().data_ptr()] = tensor  # so that no other tensor gets its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(tokens)[0].sum()
    assert len(kept) == 2 * maps
    assert {tensor.numel() for tensor in kept.values()} == {4 * tokens.numel() ** 2}


def test_gates_that_look_at_a_source_are_refused():
    with pytest.raises(
        UsageError,
        match="--mae-gate-context source needs an encoder; a language model takes window or prefix",
    ):
        build("mae_transformer_lm_tiny_cpu", mae_gate_context="source")


@pytest.mark.parametrize(
    ("changes", "option"), [({"streams": 2}, "--streams"), ({"stream_skip": True}, "--stream-skip")]
)
def test_streams_are_refused_because_there_is_no_encoder(changes, option):
    with pytest.raises(
        UsageError, match=f"^{option} is for encoders, and a language model has none; leave it out"
    ):
        build("modular_transformer_lm_tiny_cpu", **changes)


def test_wiki103_preset_has_the_papers_parameter_count():
    """The plain model has the 247M of table 4.

    16 gates of 266,504 parameters on d = 1024 make 251M, where the paper prints 249M.
    """
    counts = []
    for arch in ("modular_transformer_lm_wiki103", "mae_transformer_lm_wiki103"):
        args = Namespace(**VALUES_OF_OTHER_OPTIONS)
        ARCH_CONFIG_REGISTRY[arch](args)
        with torch.device("meta"):
            model = ModularTransformerLanguageModel.build_model(
                FAMILIES["modular_transformer_lm"](**vars(args)), task(267_740)
            )
        counts.append(sum(p.numel() for p in model.parameters()))
    assert round(counts[0] / 1e6) == 247
    assert counts[1] - counts[0] == 16 * 266_504


def test_no_number_of_a_new_model_is_left_to_chance(monkeypatch):
    """fairseq makes a buffer of adaptive inputs and softmaxes from memory as it is."""
    monkeypatch.setattr(torch, "FloatTensor", lambda size: torch.full((size,), torch.nan))
    cutoffs = {"adaptive_input_cutoff": "10,20", "adaptive_softmax_cutoff": "10,20"}
    tied = {"adaptive_input": True, "tie_adaptive_weights": True}
    state = build("modular_transformer_lm_tiny_cpu", **cutoffs, **tied).state_dict()
    assert sum(key.endswith("_float_tensor") for key in state) == 2
    assert all(value.isfinite().all() for value in state.values())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"adaptive_softmax_cutoff": "40,900"},
            "--adaptive-softmax-cutoff 40,900: the dictionary has only",
        ),
        (
            {"adaptive_input": True, "adaptive_input_cutoff": "10,900"},
            "--adaptive-input-cutoff 10,900: the dictionary has only 44 types, and no cut-off may exceed",
        ),
        ({"adaptive_softmax_cutoff": "ten"}, "--adaptive-softmax-cutoff ten: give growing whole numbers"),
        ({"adaptive_softmax_cutoff": "20,10"}, "--adaptive-softmax-cutoff 20,10: give growing whole numbers"),
        ({"adaptive_softmax_cutoff": "0,10"}, "--adaptive-softmax-cutoff 0,10: give growing whole numbers"),
        (
            {
                **{"adaptive_input": True, "adaptive_input_cutoff": "10,20", "tie_adaptive_weights": True},
                "adaptive_softmax_cutoff": "10,30",
            },
            "--adaptive-softmax-cutoff 10,30 and --adaptive-input-cutoff 10,20: they must be equal with",
        ),
        ({"adaptive_input": True}, "--adaptive-input and --adaptive-input-cutoff need each other; give both"),
        ({"adaptive_input_cutoff": "10,20"}, "--adaptive-input and --adaptive-input-cutoff need each other"),
        (
            {"adaptive_softmax_cutoff": "10,20", "tie_adaptive_weights": True},
            "--tie-adaptive-weights needs --adaptive-input and --adaptive-softmax-cutoff; add them",
        ),
        (
            {
                **{"adaptive_input": True, "adaptive_input_cutoff": "10,20", "tie_adaptive_weights": True},
                **{"adaptive_softmax_cutoff": "10,20", "decoder_output_dim": 16},
            },
            "--decoder-output-dim 16 does not work with --tie-adaptive-weights, which needs the width",
        ),
        (
            {
                **{"adaptive_input": True, "adaptive_input_cutoff": "10,20"},
                "share_decoder_input_output_embed": True,
            },
            "--share-decoder-input-output-embed does not work with --adaptive-input; use --tie-adaptive-weig",
        ),
        (
            {"decoder_input_dim": 16, "share_decoder_input_output_embed": True},
            "--decoder-output-dim 32 does not work with --share-decoder-input-output-embed, as embeddings",
        ),
        (
            {"adaptive_softmax_cutoff": "5,10,20,30"},
            "--adaptive-softmax-factor 4.*: the last of 5 bands would have no width, as the first has 32",
        ),
        (
            {"adaptive_input": True, "adaptive_input_cutoff": "10,20", "adaptive_input_factor": 8},
            "--adaptive-input-factor 8: the last of 3 bands would have no width, as the first has 32; give",
        ),
        (
            {"adaptive_softmax_cutoff": "10,20", "adaptive_softmax_factor": 0},
            "--adaptive-softmax-factor 0: each band of words is by this factor narrower; give 1 or more",
        ),
        (
            {"character_embeddings": True, "share_decoder_input_output_embed": True},
            "--share-decoder-input-output-embed does not work with --character-embeddings, which make the",
        ),
        (
            {"character_embeddings": True, "adaptive_input": True, "adaptive_input_cutoff": "10,20"},
            "--adaptive-input does not work with --character-embeddings, which make the embedding of a word",
        ),
        (
            {"character_embeddings": True, "decoder_input_dim": 16},
            "--decoder-input-dim 16 has no effect with --character-embeddings, whose width is",
        ),
        ({"tie_adaptive_proj": True}, "--tie-adaptive-proj has no effect without --tie-adaptive-weights"),
        ({"adaptive_softmax_dropout": 0.1}, "--adaptive-softmax-dropout has no effect without --adaptive-so"),
        (
            {
                **{"adaptive_input": True, "adaptive_input_cutoff": "10,20", "tie_adaptive_weights": True},
                **{"adaptive_softmax_cutoff": "10,20", "adaptive_input_factor": 2},
            },
            "--adaptive-softmax-factor 4.* and --adaptive-input-factor 2: they must be equal with",
        ),
    ],
)
def test_wrong_cut_offs_are_one_sentence(changes, sentence):
    with pytest.raises(UsageError, match=sentence):
        build("modular_transformer_lm_tiny_cpu", **changes)
    fitting = {"adaptive_input": True, "adaptive_input_cutoff": "10,44", "adaptive_softmax_cutoff": "10,44"}
    build("modular_transformer_lm_tiny_cpu", **fitting, tie_adaptive_weights=True)
    spaced = {**fitting, "adaptive_input_cutoff": "[10, 44]"}
    build("modular_transformer_lm_tiny_cpu", **spaced, tie_adaptive_weights=True)


def test_a_part_in_a_language_model_sees_no_encoder_output(monkeypatch):
    seen, build_attention = [], layers.TransformerDecoderLayer._build_attention

    def built(layer, cfg, place, **options):
        seen.append(place)
        return build_attention(layer, cfg, place, **options)

    monkeypatch.setattr(layers.TransformerDecoderLayer, "_build_attention", built)
    build("modular_transformer_lm", decoder_layers=1)
    assert seen == [Place(4, 32, None, self_attention=True, decoder=True)]


def test_words_that_do_not_occur_get_gradients_of_zeros_in_an_adaptive_input():
    """Several workers need a gradient of every parameter. The embeddings equal those of fairseq."""
    torch.manual_seed(0)
    theirs = fairseq.modules.AdaptiveInput(44, 1, 32, 4, 16, [10, 20])
    ours = AdaptiveInput(44, 1, 32, 4, 16, [10, 20])
    ours.load_state_dict(theirs.state_dict())
    everywhere = torch.arange(44).view(4, 11)
    assert torch.equal(ours(everywhere), theirs(everywhere))
    frequent = torch.tensor([[4, 5, 9], [7, 4, 1]])
    ours(frequent).square().sum().backward()
    gradients = [[p.grad for p in band.parameters()] for band in ours.embeddings]
    assert all(g.abs().max() > 0 for g in gradients[0])
    assert all(g.abs().max() == 0 for band in gradients[1:] for g in band)
