"""Test encoder-decoder models: they equal fairseq's where they should, and are causal.

Padding changes nothing, and step-by-step decoding equals teacher forcing.
"""

from argparse import Namespace

import pytest
import torch
import torch.nn.functional as F
from fairseq.modules.fairseq_dropout import FairseqDropout
from fairseq.sequence_generator import SequenceGenerator

from modular_fairseq.models.mae import expert_mixtures, gate_parameters
from modular_fairseq.models.translation import ModularTransformer
from modular_fairseq.modules import expert_mixture, gate_inputs, mutual_information
from modular_fairseq.modules.gate_statistics import GateStatistics
from modular_fairseq.training.running_statistics import RunningStatistics
from modular_fairseq_cli.errors import UsageError
from tests.helpers import LENGTHS, batch, build, build_preset, build_stock, options, task
from tests.properties import PROPERTIES, logits, ready, real_logits

MAE = [
    {"mae_gate_context": "prefix"},
    {"mae_gate_context": "window", "mae_gate_window": 3},
    {"mae_gate_context": "source"},
    {"mae_dropped_heads": 2},
    {"mae_gate_norm": "lagged"},
    {"mae_gate_norm": "layer"},
    {"mae_gate_norm": "none"},
    {"mae_inference": "specialised"},
    {"mae_inference": "random"},
    {"mae_training": "joint"},
    {"mae_training": "joint_main"},
    {"mae_gating": "uniform"},
    {"mae_gating": "uniform", "mae_inference": "random"},
]
ALL = [{}, *({"attention_type": "mae", **changes} for changes in MAE)]
SHAPES = [
    {},
    {"encoder_normalize_before": True, "decoder_normalize_before": True},
    {"decoder_embed_dim": 40, "encoder_embed_dim": 24},
]


def name(changes):
    return ",".join(f"{key.removeprefix('mae_')}={value}" for key, value in changes.items()) or "plain"


@pytest.mark.parametrize(
    "neutral",
    [
        {},
        {"mae_gate_init": "zero"},
        {"mae_gate_init": "zero", "mae_gate_context": "source"},
        {"mae_gating": "uniform"},
    ],
    ids=name,
)
@pytest.mark.parametrize("shape", SHAPES, ids=name)
@pytest.mark.parametrize("heads", [2, 4, 8])
def test_neutral_settings_equal_fairseqs_transformer(neutral, shape, heads):
    """A stock state dict loads.

    The logits of our models are equal bit for bit, and equal fairseq's within 1e-6 where there is no padding.
    """
    size = {
        **shape,
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "attention_type": "mae" if neutral else "plain",
    }
    stock = build_stock(seed=3, **shape, encoder_attention_heads=heads, decoder_attention_heads=heads).eval()
    ours = build(**size, **neutral).eval()
    ours.load_state_dict(stock.state_dict())
    sample = batch(LENGTHS)
    torch.testing.assert_close(real_logits(ours, sample), real_logits(stock, sample), atol=1e-6, rtol=1e-6)
    plain = build(**{**size, "attention_type": "plain"}).eval()
    plain.load_state_dict(stock.state_dict())
    assert torch.equal(logits(ours, sample), logits(plain, sample))


def left_padded_targets():
    """Return a batch as `--left-pad-target True` makes it."""
    sample = batch(LENGTHS)
    before = sample["net_input"]["prev_output_tokens"]
    for tokens in (before, sample["target"]):
        for i, (_, length) in enumerate(LENGTHS):
            tokens[i] = tokens[i].roll(tokens.size(1) - length)
    return sample


@pytest.mark.parametrize("shape", SHAPES, ids=name)
def test_targets_that_are_padded_on_the_left_get_fairseqs_logits(shape):
    stock, ours = build_stock(seed=3, **shape).eval(), build(**shape).eval()
    ours.load_state_dict(stock.state_dict())
    sample = left_padded_targets()
    assert sample["target"][0, 0] == 1
    torch.testing.assert_close(real_logits(ours, sample), real_logits(stock, sample), atol=1e-6, rtol=1e-6)


def test_a_pad_inside_a_target_gets_fairseqs_logits():
    """fairseq's dictionary reads the word `<pad>` in a text as padding."""
    stock, ours = build_stock(seed=3).eval(), build().eval()
    ours.load_state_dict(stock.state_dict())
    sample = batch(LENGTHS)
    plain = real_logits(ours, sample)
    for tokens in (sample["net_input"]["prev_output_tokens"], sample["target"]):
        tokens[0, 2] = 1
    found = real_logits(ours, sample)
    torch.testing.assert_close(found, real_logits(stock, sample), atol=1e-6, rtol=1e-6)
    assert len(found) == len(plain) - 1


@pytest.mark.parametrize("name", ["weights", "_float_tensor"])
def test_a_checkpoint_with_a_former_buffer_of_positions_loads(name):
    """Older versions of fairseq wrote them."""
    stock, ours = build_stock(seed=3), build()
    state = stock.state_dict()
    for stack in ("encoder", "decoder"):
        state[f"{stack}.embed_positions.{name}"] = torch.zeros(1)
    ours.load_state_dict(dict(state))
    stock.load_state_dict(dict(state))
    found = ours.state_dict()
    assert all(torch.equal(found[key], value) for key, value in stock.state_dict().items())


@pytest.mark.parametrize("attention", ["plain", "mae", "dma"])
def test_a_model_of_some_layers_of_a_checkpoint_loads(attention):
    """fairseq renumbers the layers of the checkpoint. Missing gates and masks get the new numbers."""
    whole = build(encoder_layers=4, decoder_layers=4).state_dict()
    keep = {"encoder_layers_to_keep": "1,3", "decoder_layers_to_keep": "0,2"}
    model = build(attention_type=attention, encoder_layers=4, decoder_layers=4, **keep)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model.load_state_dict(dict(whole), model_cfg=Namespace(arch="modular_transformer", **keep))
    found = model.state_dict()
    for stack, layers in (("encoder", (1, 3)), ("decoder", (0, 2))):
        for new, old in enumerate(layers):
            key = f"{stack}.layers.{{}}.fc1.weight"
            assert torch.equal(found[key.format(new)], whole[key.format(old)])
    new = [key for key in found if ".gate." in key or ".mask." in key]
    assert bool(new) == (attention != "plain")
    assert all(torch.equal(found[key], before[key]) for key in new)


def test_a_checkpoint_of_which_some_layers_are_kept_is_checked():
    keep = {"encoder_layers_to_keep": "1,3", "decoder_layers_to_keep": "0,1"}
    model = build(encoder_layers=4, **keep)
    state = build(encoder_layers=4, encoder_ffn_embed_dim=20).state_dict()
    with pytest.raises(UsageError, match=r"encoder.layers.0.fc1.weight is \["):
        model.load_state_dict(state, model_cfg=Namespace(arch="modular_transformer", **keep))


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_layers_of_one_stack_are_kept_and_those_of_a_pruned_checkpoint_stay(stack):
    whole = build(encoder_layers=3, decoder_layers=3)
    keep = {f"{stack}_layers_to_keep": "0,2"}
    model = build(encoder_layers=3, decoder_layers=3, **keep)
    cfg = Namespace(arch="modular_transformer", **keep)
    model.load_state_dict(whole.state_dict(), model_cfg=cfg)
    for part in ("encoder", "decoder"):
        layers = getattr(whole, part).layers
        kept = [layers[0], layers[2]] if part == stack else layers
        for own, expected in zip(getattr(model, part).layers, kept, strict=True):
            assert torch.equal(own.fc1.weight, expected.fc1.weight)
    assert getattr(cfg, f"{stack}_layers_to_keep") == "0,2"
    again = build(encoder_layers=3, decoder_layers=3, **keep)
    again.load_state_dict(model.state_dict(), model_cfg=cfg)
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in again.state_dict().items())
    with pytest.raises(
        UsageError, match=f"the {stack} of the checkpoint has no layer 5; its layers are 0 to 2"
    ):
        other = Namespace(**{f"{stack}_layers_to_keep": "0,5"})
        again.load_state_dict(whole.state_dict(), model_cfg=other)


@pytest.mark.parametrize("asked", [{"alignment_layer": 0}, {"alignment_heads": 2}, {"alignment_heads": 1}])
def test_the_alignment_of_a_layer_and_of_some_heads_is_fairseqs(asked):
    stock, ours = build_stock(seed=3).eval(), build().eval()
    ours.load_state_dict(stock.state_dict())
    net_input = batch(LENGTHS)["net_input"]
    expected, found, default = (
        model(**net_input, **options)[1]["attn"][0]
        for model, options in ((stock, asked), (ours, asked), (ours, {}))
    )
    valid = net_input["prev_output_tokens"].ne(1)
    torch.testing.assert_close(found[valid], expected[valid], atol=1e-6, rtol=0)
    assert not torch.allclose(found[valid], default[valid], atol=1e-3)


def test_gradients_equal_fairseqs():
    stock, ours = build_stock(seed=3), build(seed=4)
    ours.load_state_dict(stock.state_dict())
    sample = batch(LENGTHS)
    for model in (stock.train(), ours.train()):
        real_logits(model, sample).square().sum().backward()
    expected = {key: p.grad for key, p in stock.named_parameters()}
    for key, p in ours.named_parameters():
        torch.testing.assert_close(p.grad, expected[key], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("holds", PROPERTIES)
@pytest.mark.parametrize("changes", ALL, ids=name)
def test_properties_of_a_translation_model(changes, holds):
    holds(ready(**changes))


def change_of_earlier_logits_in_training(step="G", **changes):
    """Return how much the logits of a MAE in training change with later words and later positions."""
    model = build(attention_type="mae", mae_gate_dropout=0.0, **changes).train()
    for mixture in expert_mixtures(model).values():
        mixture.step = step
    norms = {key: value.clone() for key, value in model.state_dict().items() if "running" in key}

    def trained(sample):
        model.load_state_dict({**model.state_dict(), **norms})
        torch.manual_seed(1)  # an F step draws the same expert
        return logits(model, sample)[:, :4]

    sample = batch([(5, 6), (8, 6)])
    before = trained(sample)
    sample["net_input"]["prev_output_tokens"][:, 4:] = 5
    other_words = (trained(sample) - before).abs().max()
    sample["net_input"]["prev_output_tokens"] = sample["net_input"]["prev_output_tokens"][:, :4]
    return other_words, (trained(sample) - before).abs().max()


@pytest.mark.parametrize("context", ["prefix", "window"])
@pytest.mark.parametrize(("training", "step"), [("joint", None), ("bcd", "G"), ("bcd", "F")])
def test_words_to_come_do_not_change_earlier_logits_in_training(training, step, context):
    other_words, fewer_words = change_of_earlier_logits_in_training(
        step, mae_training=training, mae_gate_context=context
    )
    assert other_words == 0
    assert fewer_words < 1e-5  # shorter inputs are summed in another order


@pytest.mark.parametrize("context", ["prefix", "window"])
def test_statistics_of_the_batch_tell_how_long_a_target_is(context):
    assert min(change_of_earlier_logits_in_training(mae_gate_norm="batch", mae_gate_context=context)) > 1e-4


def generate(model, sample, beam):
    generator = SequenceGenerator([model], task().target_dictionary, beam_size=beam, max_len_b=12)
    return generator.generate([model], sample)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attention_type": "mae", "mae_gate_init": "zero"},
        {"attention_type": "mae", "mae_gating": "uniform"},
    ],
    ids=name,
)
def test_beam_search_gives_the_same_output_as_fairseqs(changes):
    stock = build_stock(seed=3)
    for p in stock.parameters():
        p.data.mul_(2)  # distinct hypotheses of different lengths
    ours = build(**changes)
    ours.load_state_dict(stock.state_dict())
    sample = batch([(5, 4), (8, 4), (2, 4), (1, 4), (11, 4), (8, 4)])
    for beam in (5, 1, 3):
        for expected, found in zip(generate(stock, sample, beam), generate(ours, sample, beam), strict=True):
            assert [h["tokens"].tolist() for h in found] == [h["tokens"].tolist() for h in expected]
            for a, b in zip(found, expected, strict=True):
                torch.testing.assert_close(
                    a["positional_scores"], b["positional_scores"], atol=1e-4, rtol=1e-4
                )
                torch.testing.assert_close(a["attention"], b["attention"], atol=1e-5, rtol=1e-4)


def test_training_after_a_beam_search_is_not_changed_by_it():
    """fairseq's own beam-shared attention would take 5 sentences for hypotheses of one (`--eval-bleu`)."""
    model, sample = build().eval(), batch(LENGTHS)
    before = logits(model, sample)
    generate(model, sample, beam=5)
    assert torch.equal(logits(model, sample), before)


@pytest.mark.parametrize("changes", ALL, ids=name)
def test_every_parameter_learns_or_is_declared_not_to(changes):
    model = build(**changes).train()
    for mixture in expert_mixtures(model).values():
        mixture.step = "F"
    logits(model, batch(LENGTHS)).square().sum().backward()
    gates = {id(p) for p in gate_parameters(model)}
    for key, p in model.named_parameters():
        learns = id(p) not in gates or changes.get("mae_training") == "joint_main"
        assert (p.grad is not None) == p.requires_grad == learns, key


@pytest.mark.parametrize("norm", ["batch", "lagged", "layer"])
@pytest.mark.parametrize("step", ["F", "G"])
def test_activation_checkpointing_changes_nothing(norm, step):
    """Gradients, running statistics and counts of experts are equal over two updates of two passes each.

    Both forward passes of the second update come before its backward pass.
    """
    results = []
    for checkpoint in (False, True):
        model = build(
            attention_type="mae", mae_gate_norm=norm, dropout=0.1, checkpoint_activations=checkpoint
        ).train()
        for p in gate_parameters(model):
            p.requires_grad_(step == "G")
        for mixture in expert_mixtures(model).values():
            mixture.step, mixture.statistics = step, GateStatistics()
        statistics = RunningStatistics(model)
        torch.manual_seed(5)
        for together in (False, True):
            losses = []
            for seed in (0, 1):
                losses.append(logits(model, batch(LENGTHS, seed)).square().sum())
                statistics.end_pass()
                if not together:
                    losses.pop().backward()
            if losses:
                sum(losses).backward()
            statistics.update()
        counts = [mixture.statistics.take() for mixture in expert_mixtures(model).values()]
        results.append([*(p.grad for p in model.parameters() if p.requires_grad), *model.buffers(), *counts])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("lengths", [LENGTHS, [(7, 5), (7, 5)]], ids=["padded", "one length"])
@pytest.mark.parametrize("arch", ["mae_transformer", "dma_transformer"])
def test_a_model_trains_after_the_inference_mode(arch, lengths):
    """Constants that were computed in the inference mode are kept, and the backward pass needs them."""
    for module in (expert_mixture, gate_inputs, mutual_information):
        for function in vars(module).values():
            if hasattr(function, "cache_clear"):
                function.cache_clear()
    model = build(arch, mae_training="joint") if arch == "mae_transformer" else build(arch)
    model.train()
    with torch.inference_mode():
        logits(model, batch(lengths))
    logits(model, batch(lengths)).sum().backward()
    assert model.decoder.embed_tokens.weight.grad.any()


@pytest.mark.parametrize("kind", ["dropout", "attention_dropout", "activation_dropout"])
def test_dropout_acts_where_fairseqs_does(kind):
    called, in_attention = [], []
    for model in (build_stock(**{"dropout": 0.0, kind: 0.5}), build(**{"dropout": 0.0, kind: 0.5})):
        order = []
        modules = dict(model.named_modules())
        in_attention.append({n: modules[n].p for n in modules if n.endswith("attn.dropout_module")})
        for name, module in model.named_modules():
            if isinstance(module, FairseqDropout) and not name.endswith("attn.dropout_module"):
                module.register_forward_pre_hook(lambda module, _, order=order: order.append(module.p))
        model.train()
        sample = batch(LENGTHS)
        torch.manual_seed(1)
        first = logits(model, sample)
        torch.manual_seed(1)
        assert torch.equal(logits(model, sample), first)
        assert not torch.allclose(logits(model, sample), first)
        called.append(order[: len(order) // 3])
    assert called[0] == called[1] and (kind == "attention_dropout" or 0.5 in called[0])
    assert in_attention[0] == in_attention[1]
    assert {*in_attention[0].values()} == {0.5 if kind == "attention_dropout" else 0.0}


@pytest.mark.parametrize(
    ("arch", "vocabulary", "changes", "parameters"),
    [
        # section 0.1 of the specification: separate dictionaries of 8848 and 6632 types; one of 32,768
        (
            "modular_transformer_iwslt_de_en",
            (8848, 6632),
            {"share_decoder_input_output_embed": True},
            39_469_056,
        ),
        (
            "mae_transformer_iwslt_de_en",
            (8848, 6632),
            {"share_decoder_input_output_embed": True},
            39_469_056 + 18 * 134_408,
        ),  # the paper's 41M
        (
            "mae_transformer_iwslt_de_en",
            (8848, 6632),
            {"share_decoder_input_output_embed": True, "mae_gating": "uniform"},
            39_469_056,
        ),
        ("modular_transformer_wmt_en_de", (32768, 32768), {"share_all_embeddings": True}, 60_915_712),  # 61M
        (
            "mae_transformer_wmt_en_de",
            (32768, 32768),
            {"share_all_embeddings": True},
            60_915_712 + 18 * 134_408,
        ),  # 63M
        (
            "mae_transformer_wmt_en_de",
            (32768, 32768),
            {"share_all_embeddings": True, "mae_dropped_heads": 2},
            60_915_712 + 18 * 139_548,
        ),
    ],
)
def test_presets_have_the_papers_parameter_counts(arch, vocabulary, changes, parameters):
    assert sum(p.numel() for p in build_preset(arch, vocabulary, **changes).parameters()) == parameters


@pytest.mark.parametrize(
    ("finetune", "trainable"),
    [
        ("all", lambda key: ".gate." not in key),
        ("gates", lambda key: ".gate." in key),
        ("gates+output", lambda key: key.endswith("out_proj.weight")),
    ],
)
def test_finetuning_leaves_frozen_parameters_out(finetune, trainable):
    model = build(attention_type="mae", mae_finetune=finetune)
    assert {key for key, p in model.named_parameters() if p.requires_grad} == {
        key for key, _ in model.named_parameters() if trainable(key)
    }
    assert model.gate_training.interval_of(False) == (5 if finetune == "all" else 1)
    assert model.gate_training.interval_of(True) == 1


def test_ftg_plus_updates_a_ninth_of_the_model():
    """Table 7 says 7M of 63M: the gates and 18 matrices of 512 x 512."""
    model = build_preset(
        "mae_transformer_wmt_en_de", (32768, 32768), share_all_embeddings=True, mae_finetune="gates+output"
    )
    learning = sum(p.numel() for p in model.parameters() if p.requires_grad) + sum(
        p.numel() for p in gate_parameters(model)
    )
    assert learning == 7_137_936


# What is refused


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"attention_type": "mae", "mae_dropped_heads": 4},
            "--mae-dropped-heads 4 with --encoder-attention-heads 4",
        ),
        ({"attention_type": "mae", "mae_dropped_heads": 0}, "--mae-dropped-heads 0"),
        ({"attention_type": "mae", "mae_dropped_heads": -1}, "--mae-dropped-heads -1"),
        (
            {"attention_type": "mae", "mae_dropped_heads": 2, "decoder_attention_heads": 2},
            "with --decoder-attention-heads 2",
        ),
        ({"dropout": 1.5}, "--dropout must be from 0 to 1, not 1.5"),
        ({"attention_dropout": -1.0}, "--attention-dropout must be from 0 to 1, not -1.0"),
        ({"activation_dropout": float("nan")}, "--activation-dropout must be from 0 to 1, not nan"),
        ({"decoder_layerdrop": 2.0}, "--decoder-layerdrop must be from 0 to 1, not 2.0"),
        ({"encoder_layers": -3}, "--encoder-layers must be at least 0, not -3"),
        (
            {"attention_type": "mae", "mae_inference": "random", "mae_inference_seed": 2**63},
            "--mae-inference-seed must be from 0 to 9223372036854775807, not 9223372036854775808",
        ),
        ({"mae_dropped_heads": 2}, "--mae-dropped-heads has no effect without --attention-type mae"),
        ({"mae_gate_lr": 0.5}, "--mae-gate-lr has no effect without --attention-type mae"),
        ({"attention_type": "mae", "mae_gate_lr": float("nan")}, "--mae-gate-lr must be positive and finite"),
        ({"attention_type": "mae", "mae_gate_lr": float("inf")}, "--mae-gate-lr must be positive and finite"),
        (
            {"attention_type": "mae", "mae_inference_seed": 2},
            "--mae-inference-seed has no effect without --mae-inference random",
        ),
        ({"attention_type": "mae", "quant_noise_pq": 0.1}, "--quant-noise-pq changes weights"),
        (
            {"attention_type": "mae", "mae_inference": "specialized"},
            "it must be one of mixture, specialised, random",
        ),
        ({"attention_type": "MAE"}, "--attention-type is 'MAE'; it must be one of plain, mae"),
        (
            {"encoder_attention_heads": 5},
            "32 is not a multiple of --encoder-attention-heads 5; give for example 30 or 35",
        ),
        ({"attention_type": "mae", "mae_gate_interval": 0}, "--mae-gate-interval must be at least 1"),
        ({"attention_type": "mae", "mae_gate_lr": 0.0}, "--mae-gate-lr must be positive"),
        (
            {"attention_type": "mae", "mae_gate_dropout": 1.0},
            "--mae-gate-dropout must be at least 0 and less than 1",
        ),
        (
            {"attention_type": "mae", "mae_gate_window": 5},
            "--mae-gate-window has no effect without --mae-gate-context window",
        ),
        (
            {"attention_type": "mae", "mae_gate_context": "window", "mae_gate_window": 0},
            "--mae-gate-window must be positive",
        ),
        (
            {"attention_type": "mae", "mae_gating": "uniform", "mae_gate_lr": 2.0},
            "--mae-gate-lr has no effect with --mae-gating uniform",
        ),
        (
            {"attention_type": "mae", "mae_gating": "uniform", "mae_training": "joint"},
            "--mae-training has no effect with --mae-gating uniform",
        ),
        (
            {"attention_type": "mae", "mae_gating": "uniform", "mae_inference": "specialised"},
            "--mae-inference specialised needs learned gates",
        ),
        (
            {"attention_type": "mae", "mae_training": "joint", "mae_gate_interval": 2},
            "--mae-gate-interval has no effect with --mae-training joint, which takes no G steps",
        ),
        (
            {"attention_type": "mae", "encoder_attention_heads": 16, "mae_dropped_heads": 8},
            "8 of 16 heads: there would be 12,870 experts; give a number of heads for which",
        ),
        (
            {"attention_type": "mae", "mae_training": "joint", "mae_finetune": "gates"},
            "--mae-finetune has no effect with --mae-training joint, which takes no G steps",
        ),
        (
            {"attention_type": "mae", "mae_training": "joint_main", "mae_gate_lr": 2.0},
            "--mae-gate-lr has no effect with --mae-training joint_main, where the main optimizer",
        ),
        (
            {"attention_type": "mae", "mae_training": "joint_main", "mae_gate_loss": "token"},
            "--mae-gate-loss has no effect with --mae-training joint_main, where the main optimizer",
        ),
        (
            {"decoder_input_dim": 16},
            "--decoder-input-dim 16 has no effect in translation, where embeddings have the width "
            "--decoder-embed-dim 32; leave it out",
        ),
        (
            {"decoder_output_dim": 16, "share_decoder_input_output_embed": True},
            "--decoder-output-dim 16 does not work with --share-decoder-input-output-embed, as embeddings",
        ),
        (
            {"tie_adaptive_weights": True, "adaptive_softmax_cutoff": "10,20"},
            "--tie-adaptive-weights needs an adaptive input, which only language models have; leave it out",
        ),
        (
            {"attention_type": "mae", "mae_finetune": "gates", "mae_gate_interval": 2},
            "--mae-gate-interval has no effect with --mae-finetune gates",
        ),
    ],
)
def test_options_that_cannot_work_or_would_be_ignored_are_refused(changes, sentence):
    with pytest.raises(UsageError) as error:
        build(**changes)
    assert sentence in str(error.value)


def test_a_checkpoint_of_other_shapes_is_refused_by_name():
    model = build(attention_type="mae")
    with pytest.raises(
        UsageError,
        match=r"encoder.layers.0.fc1.weight is \[64, 32\] in the checkpoint and \[48, 32\] in this model",
    ):
        model.load_state_dict(build_stock(encoder_ffn_embed_dim=64).state_dict())
    with pytest.raises(UsageError, match="the checkpoint has no encoder.layers.1.self_attn.k_proj.weight"):
        model.load_state_dict(build_stock(encoder_layers=1).state_dict())
    with pytest.raises(UsageError, match="the checkpoint has encoder.layers.2"):
        model.load_state_dict(build_stock(encoder_layers=3).state_dict())
    half = model.state_dict()
    del half["encoder.layers.0.self_attn.gate.gate_network.fc1.weight"]
    with pytest.raises(
        UsageError, match="the checkpoint has no encoder.layers.0.self_attn.gate.gate_network.fc1.weight"
    ):
        model.load_state_dict(half)


def test_a_checkpoint_from_before_an_option_existed_is_read():
    cfg = Namespace(**vars(options("mae_transformer")))
    del cfg.mae_gate_window, cfg.mae_inference_seed
    model = ModularTransformer.build_model(cfg, task())
    assert len(expert_mixtures(model)) == 6


def test_random_experts_depend_on_their_seed_alone():
    def experts(seed, torch_seed):
        model = build("mae_transformer", seed=torch_seed, mae_inference="random", mae_inference_seed=seed)
        return [mixture.random_expert for mixture in expert_mixtures(model).values()]

    assert experts(1, 1) == experts(1, 2)
    assert len({tuple(experts(seed, 1)) for seed in range(5)}) > 1 and len(set(experts(1, 1))) > 1


def test_drawing_random_experts_leaves_the_initial_weights_as_they_are():
    plain, random = (
        build("mae_transformer", mae_inference=inference).state_dict() for inference in ("mixture", "random")
    )
    assert all(torch.equal(plain[key], random[key]) for key in plain)


def test_a_source_without_a_key_gives_finite_gradients():
    model, sample = build().train(), batch(LENGTHS)
    sample["net_input"]["src_tokens"][2] = 1
    logits(model, sample).square().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_only_the_input_counts_for_gate_statistics_not_the_hypotheses_of_a_search():
    model, sample = build("mae_transformer").eval(), batch([(5, 4), (8, 4)])
    for mixture in expert_mixtures(model).values():
        mixture.statistics = GateStatistics()
    logits(model, sample)
    generate(model, sample, beam=5)
    counts = {
        name: int(mixture.statistics.take()[1:].sum()) for name, mixture in expert_mixtures(model).items()
    }
    assert {count for name, count in counts.items() if name.startswith("decoder")} == {8}


@pytest.mark.parametrize("context", ["prefix", "source"])
def test_padding_moves_neither_the_norms_nor_the_statistics_in_training(context):
    """The sentences are the same, with and without columns of padding on both sides."""
    seen = []
    for pads in (0, 3):
        model, sample = (
            build("mae_transformer", mae_gate_context=context, mae_gate_dropout=0.0).train(),
            batch([(5, 4), (5, 4)]),
        )
        inputs = sample["net_input"]
        inputs["src_tokens"] = F.pad(inputs["src_tokens"], (pads, 0), value=1)
        inputs["prev_output_tokens"] = F.pad(inputs["prev_output_tokens"], (0, pads), value=1)
        for mixture in expert_mixtures(model).values():
            mixture.step, mixture.statistics = "G", GateStatistics()
        statistics = RunningStatistics(model)
        logits(model, sample)
        statistics.update()
        seen.append(
            [b for name, b in model.named_buffers() if "running" in name]
            + [m.statistics.take() for m in expert_mixtures(model).values()]
        )
        assert len(seen[-1]) == 3 * len(expert_mixtures(model))
    for a, b in zip(*seen, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
