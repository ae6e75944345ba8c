"""Test combinations of attention type, TIM layers, streams and residual connections.

A combination that makes sense works like any other model. All others are refused.
"""

import itertools

import pytest
import torch
import torch.nn.functional as F
from hydra.core.hydra_config import HydraConfig

from modular_fairseq.models.dma_losses import measuring
from modular_fairseq.models.mae import expert_mixtures, gate_parameters
from modular_fairseq.modules.disentangled_heads import LossSettings
from modular_fairseq_cli.errors import UsageError
from tests.helpers import LENGTHS, batch, build, build_preset
from tests.places import ROOT
from tests.properties import PROPERTIES, logits, ready

ATTENTION = [
    {},
    {"attention_type": "mae"},
    {"attention_type": "mae", "mae_gate_context": "source", "mae_dropped_heads": 2},
    {"attention_type": "dma"},
    {"attention_type": "mae+dma", "dma_decoder_eval_mask": True},
]
MECHANISMS = [{}, {"tim_layers": "middle"}, {"tim_layers": "all", "tim_mechanisms": 4}]
STREAMS = [{}, {"stream_skip": True}, {"streams": 2}, {"streams": 2, "stream_skip": True}]
RESIDUAL = [{}, {"no_residual": True}]
BATCHED = {"streams": 2, "encoder_layers": 4, "stream_batched": True}
GRID = [
    {"encoder_layers": 6, "decoder_layers": 4, **attention, **mechanisms, **streams, **residual}
    for attention, mechanisms, streams, residual in itertools.product(
        ATTENTION, MECHANISMS, STREAMS, RESIDUAL
    )
]


def name(changes):
    axes = {
        key: value for key, value in changes.items() if not key.endswith("_layers") or key == "tim_layers"
    }
    return (
        ",".join(str(value) if isinstance(value, str) else f"{key}={value}" for key, value in axes.items())
        or "plain"
    )


def loss_of(model, sample):
    with measuring(model, LossSettings(kl=True, qq=True, xq=True)) as losses:
        loss = F.cross_entropy(logits(model, sample).transpose(1, 2), sample["target"], ignore_index=1)
    return loss + sum(values.mean() for values in losses.values())


@pytest.mark.parametrize("changes", GRID, ids=name)
def test_every_combination_trains_decodes_saves_and_loads(changes, tmp_path):
    model = build(**changes).double().train()
    for mixture in expert_mixtures(model).values():
        mixture.step = "F"
    gates = {id(p) for p in gate_parameters(model)}
    learning = {key: p for key, p in model.named_parameters() if id(p) not in gates}
    before = {key: p.detach().clone() for key, p in model.named_parameters()}
    optimizer = torch.optim.Adam(learning.values(), lr=1e-3)
    loss = loss_of(model, batch(LENGTHS))
    loss.backward()
    optimizer.step()
    assert loss.isfinite()
    for key, p in model.named_parameters():
        assert (p.grad is not None) == (key in learning), key
        # A bias of keys moves all scores of a query alike, so it gets no gradient but rounding; without
        # residual connections hardly any gradient gets through the decoder (1e-11 to 1e-40 at its embeddings,
        # where 1 is usual).
        if not key.endswith("k_proj.bias") and not changes.get("no_residual"):
            assert torch.equal(p, before[key]) == (key not in learning), key
    assert all(
        not torch.equal(p, before[key])
        for key, p in model.decoder.layers[-1].fc2.named_parameters(prefix="decoder.layers.3.fc2")
    )

    model = ready(**changes).double()
    with torch.no_grad():
        for holds in PROPERTIES:
            holds(model)

    torch.save(model.state_dict(), tmp_path / "model.pt")
    again = build(seed=7, **changes).double().eval()
    assert not torch.equal(logits(again, batch(LENGTHS)), logits(model, batch(LENGTHS)))
    again.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    assert torch.equal(logits(again, batch(LENGTHS)), logits(model, batch(LENGTHS)))


def test_experts_streams_and_mechanisms_at_the_size_of_iwslt():
    axes = {
        "streams": 2,
        "stream_skip": True,
        "tim_layers": "middle",
        "share_decoder_input_output_embed": True,
    }
    model = build_preset("mae_transformer_iwslt_de_en", (8848, 6632), **axes)
    assert sum(p.numel() for p in model.parameters()) == 35_740_186


def test_an_option_of_the_users_may_undo_what_an_arch_sets():
    """The user says --arch tim_transformer_iwslt_de_en_4 --tim-layers none. The 4 mechanisms come from the
    arch, so they are no error.
    """
    model = build("tim_transformer_iwslt_de_en_4", tim_layers="none", _name="tim_transformer_iwslt_de_en_4")
    assert all(layer.competition is None for layer in model.encoder.layers)


@pytest.mark.parametrize(
    ("arch", "undone"),
    [
        ("multistream_transformer", {"streams": 1, "encoder_layers": 6}),
        ("mae_transformer", {"attention_type": "plain"}),
    ],
)
def test_all_that_an_arch_sets_may_be_undone_but_not_be_lost_through_hydra(arch, undone, monkeypatch):
    """Only hydra fills in every default by itself, so an arch that is given as model._name is lost there."""
    model = build(arch, _name=arch, **undone)
    assert not hasattr(model.encoder, "streams") and not expert_mixtures(model)
    monkeypatch.setattr(HydraConfig, "initialized", lambda: True)
    with pytest.raises(
        UsageError,
        match=f"the arch {arch} has no effect in fairseq-hydra-train as model._name; write model={arch} and "
        f"--config-dir {ROOT}/configs/hydra",
    ):
        build(arch, _name=arch, **undone)


def test_experts_drop_heads_of_the_whole_layer_of_mechanisms():
    """Each of 2 mechanisms has 4 of the 8 heads.

    An expert lacks one of the 8, and every gate sees the whole width.
    """
    heads = {"encoder_attention_heads": 8, "decoder_attention_heads": 8}
    model = build(attention_type="mae", tim_layers="all", **heads)
    for module in expert_mixtures(model).values():
        assert module.num_experts == 8 and module.gate_network.fc1.in_features == 32


def test_every_stream_has_gates_of_its_own():
    model = build(attention_type="mae", streams=2, encoder_layers=6)
    names = [name for name in expert_mixtures(model) if name.startswith("encoder")]
    expected = ["layers.0", "layers.1", "streams.0.0", "streams.0.1", "streams.1.0", "streams.1.1"]
    assert sorted(names) == sorted(f"encoder.{layer}.self_attn" for layer in expected)
    # There are 6 attention modules in the encoder and 4 in the decoder.
    assert len(gate_parameters(model)) == 6 * (6 + 2 * 2)


@pytest.mark.parametrize("pre_norm", [False, True])
def test_without_residual_connections_a_layer_forgets_its_input(pre_norm):
    """If sub-layers return zeros, the layer returns the norm of zeros. With residual connections it returns
    its input.
    """
    norms = {"encoder_normalize_before": pre_norm, "decoder_normalize_before": pre_norm}
    for changes, forgets in (({"no_residual": True}, True), ({}, False)):
        model = build(**changes, **norms).eval()
        for layer in (model.encoder.layers[0], model.decoder.layers[0]):
            for key, p in layer.named_parameters():
                if "out_proj" in key or "fc2" in key:
                    torch.nn.init.zeros_(p)
        x = torch.randn(4, 3, 32)
        outputs = model.encoder.layers[0](x, None), model.decoder.layers[0](x, torch.randn(5, 3, 32))[0]
        for y in outputs:
            assert (y.abs().max() == 0) == forgets


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"streams": 2, "encoder_layers": 5},
            "--encoder-layers 5 with --streams 2: there must be 2 + 2 x L of them, a first one, a last one "
            "and L in each stream, such as 4 or 6",
        ),
        ({"streams": 3, "encoder_layers": 4}, "such as 5 or 8"),
        ({"streams": 2, "encoder_layers": 2}, "such as 4 or 6"),
        ({"streams": 2, "encoder_layers": 1}, "such as 4 or 6"),
        ({"streams": 0}, "--streams must be at least 1, not 0"),
        (
            {"stream_skip": True, "encoder_layers": 2},
            "--encoder-layers 2 with --stream-skip: there must be at least 3",
        ),
        (
            {"streams": 2, "encoder_layers": 4, "encoder_layerdrop": 0.1},
            "--encoder-layerdrop drops whole layers of the encoder",
        ),
        (
            {"stream_skip": True, "encoder_layers": 4, "encoder_layers_to_keep": "0,1,2"},
            "--encoder-layers-to-keep drops whole layers",
        ),
        ({"stream_batched": True}, "--stream-batched has no effect without --streams 2 or more"),
        (BATCHED | {"quant_noise_pq": 0.1}, "--quant-noise-pq does not work with --stream-batched"),
        (BATCHED | {"quant_noise_scalar": 0.1}, "--quant-noise-scalar does not work with --stream-batched"),
        (BATCHED | {"attention_type": "mae"}, "--stream-batched does not work with --attention-type mae"),
        (BATCHED | {"attention_type": "dma"}, "--stream-batched does not work with --attention-type dma"),
        (
            BATCHED | {"checkpoint_activations": True},
            "--stream-batched does not work with --checkpoint-activations",
        ),
        (
            {"attention_type": "mae", "mae_gating": "uniform", "mae_inference_seed": 2},
            "--mae-inference-seed has no effect",
        ),
        ({"tim_mechanisms": 4}, "--tim-mechanisms has no effect without --tim-layers middle or all"),
        ({"tim_no_competition": True}, "--tim-no-competition has no effect without --tim-layers"),
        ({"tim_communication_dim": 16}, "--tim-communication-dim has no effect without --tim-layers"),
        ({"tim_layers": "first"}, "--tim-layers is 'first'; it must be one of none, middle, all"),
        (
            {"tim_layers": "middle", "encoder_layers": 3},
            "so --encoder-layers 3 has no TIM layer: use at least 4 layers, or --tim-layers all",
        ),
        (
            {"tim_layers": "middle", "encoder_layers": 6, "decoder_layers": 2},
            "so --decoder-layers 2 has no TIM layer",
        ),
        (
            {"tim_layers": "middle", "streams": 4, "encoder_layers": 6, "decoder_layers": 6},
            "so --encoder-layers 6 with --streams 4 (a word passes 3 layers) has no TIM layer: use at least "
            "10 layers, or --tim-layers all",
        ),
        (
            {"tim_layers": "all", "tim_mechanisms": 3},
            "--encoder-embed-dim 32 is not a multiple of --tim-mechanisms 3",
        ),
        (
            {"tim_layers": "all", "tim_mechanisms": 8},
            "--encoder-attention-heads 4 is not a multiple of --tim-mechanisms 8",
        ),
        (
            {"tim_layers": "all", "encoder_ffn_embed_dim": 49},
            "--encoder-ffn-embed-dim 49 is not a multiple of --tim-mechanisms 2",
        ),
        ({"tim_layers": "all", "tim_mechanisms": 0}, "--tim-mechanisms must be at least 1, not 0"),
        (
            {"tim_layers": "all", "tim_communication_heads": -1},
            "--tim-communication-heads must be at least 0",
        ),
        ({"tim_layers": "all", "tim_communication_dim": 0}, "--tim-communication-dim must be at least 1"),
        (
            {"tim_layers": "all", "tim_communication_heads": 0, "tim_communication_dim": 16},
            "--tim-communication-dim has no effect with --tim-communication-heads 0",
        ),
        ({"tim_layers": "all", "quant_noise_pq": 0.1}, "--quant-noise-pq does not work with --tim-layers"),
        (
            {"tim_layers": "all", "quant_noise_scalar": 0.1},
            "--quant-noise-scalar does not work with --tim-layers",
        ),
        (
            {"tim_layers": "all", "encoder_ffn_embed_dim": 0},
            "--encoder-ffn-embed-dim must be at least 1, not 0",
        ),
        ({"tim_layers": "all", "decoder_layers_to_keep": "0,1"}, "--decoder-layers-to-keep renumbers layers"),
        ({"encoder_attention_heads": 0}, "--encoder-attention-heads must be at least 1, not 0"),
        (
            {"quant_noise_pq": 0.1, "checkpoint_activations": True},
            "--quant-noise-pq changes weights in every forward pass, so that --checkpoint-activations would",
        ),
        (
            {"attention_type": "mae", "mae_finetune": "gates+output", "decoder_layerdrop": 0.1},
            "--decoder-layerdrop may leave out all layers, and then an F step of --mae-finetune gates+output",
        ),
        ({"encoder_layers_to_keep": "x"}, "--encoder-layers-to-keep x: give different numbers of layers"),
        ({"decoder_layers_to_keep": "0,0"}, "--decoder-layers-to-keep 0,0: give different numbers of layers"),
    ],
)
def test_combinations_that_make_no_sense_are_refused_by_a_sentence(changes, sentence):
    with pytest.raises(UsageError) as error:
        build(**changes)
    assert sentence in str(error.value)
