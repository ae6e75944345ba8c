"""Multi-Stream encoders: Eq. 1, the loop and the batched form, neutral settings, initialisation, checkpoints, presets."""

import copy

import pytest
import torch
from torch import nn

from modular_fairseq.errors import UsageError
from modular_fairseq.models.encoder import _wide_layers
from modular_fairseq.modules.streams import Streams
from tests.helpers import LENGTHS, batch, build, build_preset, build_stock
from tests.properties import logits
from tests.reference import streams as reference

SIX = {"encoder_layers": 6}
CASES = [
    {"streams": 2, "encoder_layers": 4},
    {"streams": 2, "encoder_layers": 6},
    {"streams": 4, "encoder_layers": 6, "stream_skip": True},
    {"streams": 2, "encoder_layers": 6, "stream_skip": True, "encoder_normalize_before": True},
    {"streams": 2, "encoder_layers": 6, "no_residual": True},
    {"streams": 2, "encoder_layers": 6, "tim_layers": "middle", "decoder_layers": 4},
    {"streams": 2, "encoder_layers": 4, "tim_layers": "all", "tim_mechanisms": 4},
]


def name(changes):
    return ",".join(f"{key}={value}" for key, value in changes.items())


def encoder_in_float64(**changes):
    encoder = build(**changes).double().eval().encoder
    torch.manual_seed(4)
    x, padding = torch.randn(7, 3, 32, dtype=torch.float64, requires_grad=True), torch.zeros(3, 7, dtype=torch.bool)
    padding[1, :3] = True
    return encoder, x, padding


def output(encoder, x, padding):
    *_, last = encoder._run_layers(x, padding)
    return last


def gradients(encoder, y, x):
    parameters = [x, *(p for key, p in encoder.named_parameters() if "layers" in key or "streams" in key)]
    return torch.autograd.grad((y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum(), parameters)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("changes", CASES, ids=name)
def test_an_encoder_of_streams_is_equation_1(changes, batched):
    """Outputs and gradients, with padding, in float64: the loop over layers that are ordinary ones, and all streams at once."""
    encoder, x, padding = encoder_in_float64(**changes)
    encoder.streams.batched = batched
    y, expected = output(encoder, x, padding), reference.encode(encoder, x, padding)
    torch.testing.assert_close(y, expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(gradients(encoder, y, x), gradients(encoder, expected, x), atol=1e-11, rtol=0)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("k", [1, 2])
def test_dropping_and_repeating_streams_by_hand(k, batched):
    """One stream is the plain encoder with the same weights; two equal streams are the layers between, counted twice."""
    model = build(**SIX).double().eval()
    encoder, x, padding = model.encoder, torch.randn(7, 3, 32, dtype=torch.float64), None
    first, *body, last = encoder.layers
    middle = first(x, padding)
    for layer in body:
        middle = layer(middle, padding)
    streams = [body, *[copy.deepcopy(body) for _ in range(k - 1)]]
    cfg = copy.copy(model.cfg)
    cfg.streams = k
    encoder.streams = Streams(streams, _wide_layers(cfg, [False] * 4, body))
    encoder.layers = nn.ModuleList([first, last])
    encoder.streams.batched = batched
    torch.testing.assert_close(output(encoder, x, padding), last(k * middle, padding), atol=1e-12, rtol=0)


def test_the_encoder_of_one_stream_is_fairseqs():
    stock, ours = build_stock(seed=3, **SIX).eval(), build(**SIX, streams=1).eval()
    ours.load_state_dict(stock.state_dict())
    torch.testing.assert_close(logits(ours, batch(LENGTHS)), logits(stock, batch(LENGTHS)), atol=1e-6, rtol=0)


def test_the_skip_of_one_stream_adds_what_the_first_layer_says():
    """Transformer + skip, the paper's second baseline: a plain state dict loads."""
    plain, skip = build(**SIX).double().eval(), build(**SIX, stream_skip=True).double().eval()
    skip.load_state_dict(plain.state_dict())
    x = torch.randn(7, 3, 32, dtype=torch.float64)
    first, *body, last = plain.encoder.layers
    y = z = first(x, None)
    for layer in body:
        y = layer(y, None)
    torch.testing.assert_close(output(skip.encoder, x, None), last(y + z, None), atol=1e-12, rtol=0)
    assert (output(plain.encoder, x, None) - output(skip.encoder, x, None)).abs().max() > 0.01


def test_streams_start_different():
    streams = build(streams=4, **SIX).encoder.streams
    for key, value in streams[0].named_parameters():
        if value.dim() > 1:
            assert all(not torch.equal(value, stream.get_parameter(key)) for stream in streams[1:]), key


@pytest.mark.parametrize("kind", ["dropout", "attention_dropout", "activation_dropout"])
@pytest.mark.parametrize("batched", [False, True])
def test_every_stream_has_its_own_dropout(kind, batched):
    """Streams of equal parameters differ in training, and only there."""
    encoder = build(streams=2, encoder_layers=4, **{"dropout": 0.0, kind: 0.5}).encoder
    encoder.streams[1].load_state_dict(encoder.streams[0].state_dict())
    found = []
    if batched:
        wide = encoder.streams._wide[0]
        wide.register_forward_hook(lambda module, args, y: found.append(y.chunk(2, dim=-1)))
        encoder.streams.batched = True
    else:
        each = []
        for stream in encoder.streams:
            stream[0].register_forward_hook(lambda module, args, y: each.append(y))
    x = torch.randn(7, 3, 32)
    for training in (True, False):
        encoder.train(training)
        list(encoder.streams(x))
    if not batched:
        found = [each[:2], each[2:]]
    assert not torch.allclose(*found[0]) and torch.allclose(*found[1], atol=1e-6)


def test_all_streams_at_once_is_for_devices_other_than_the_cpu_and_for_streams_that_are_their_parameters():
    x = torch.randn(7, 3, 32)
    encoder = build(streams=2, encoder_layers=4).encoder
    calls = []
    encoder.streams._wide[0].register_forward_hook(lambda *_: calls.append("at once"))
    list(encoder.streams(x))
    assert calls == []
    encoder.streams.batched = True
    list(encoder.streams(x))
    assert calls == ["at once"]
    assert encoder.streams._wide[0].fc1.weight.is_meta  # the wide layers hold no parameters
    for changes in ({"attention_type": "mae"}, {"checkpoint_activations": True}):
        assert build(streams=2, encoder_layers=4, **changes).encoder.streams._wide is None


def test_hidden_states_are_those_of_the_input_the_sums_of_streams_and_the_output():
    model = build(streams=2, stream_skip=True, **SIX).eval()
    sample = batch(LENGTHS)["net_input"]
    found = model.encoder(sample["src_tokens"], sample["src_lengths"], return_all_hiddens=True)
    states = found["encoder_states"]
    assert len(states) == 5 and all(state.shape == found["encoder_out"][0].shape for state in states)
    streams = model.encoder.streams
    padding = sample["src_tokens"].eq(1)
    outputs = [stream[0](states[1], padding) for stream in streams]
    torch.testing.assert_close(states[2], outputs[0] + outputs[1])
    torch.testing.assert_close(states[3], streams[0][1](outputs[0], padding) + streams[1][1](outputs[1], padding))
    torch.testing.assert_close(states[4], model.encoder.layers[1](states[3] + states[1], padding))
    assert torch.equal(states[4], found["encoder_out"][0])


def test_a_checkpoint_names_each_stream_with_the_shapes_of_a_plain_layer():
    state, plain = build(streams=2, **SIX).state_dict(), build(**SIX).state_dict()
    per_layer = {key.removeprefix("encoder.layers.2."): value.shape for key, value in plain.items() if key.startswith("encoder.layers.2.")}
    for i in range(2):
        for layer in range(2):
            prefix = f"encoder.streams.{i}.{layer}."
            assert {key.removeprefix(prefix): value.shape for key, value in state.items() if key.startswith(prefix)} == per_layer
    assert sum(value.numel() for value in state.values()) == sum(value.numel() for value in plain.values())


def test_a_checkpoint_of_other_streams_is_refused_by_name():
    with pytest.raises(UsageError, match=r"the checkpoint has no encoder.streams.2.0"):
        build(streams=4, **SIX).load_state_dict(build(streams=2, **SIX).state_dict())


def test_a_checkpoint_of_streams_without_gates_loads_into_streams_of_experts():
    changes = {"streams": 2, "encoder_layers": 4}
    plain, experts = build(**changes).eval(), build(attention_type="mae", mae_gate_init="zero", seed=2, **changes).eval()
    experts.load_state_dict(plain.state_dict())
    assert torch.equal(logits(experts, batch(LENGTHS)), logits(plain, batch(LENGTHS)))


@pytest.mark.parametrize(
    ("arch", "streams", "layers", "decoder_layers"),
    [("_2x1", 2, 4, 4), ("_2x2", 2, 6, 6), ("_4x1", 4, 6, 6), ("_iwslt_de_en", 2, 6, 6), ("_wmt_en_de", 2, 6, 6), ("", 2, 6, 6)],
)
def test_presets_have_as_many_parameters_as_the_plain_encoder_of_as_many_layers(arch, streams, layers, decoder_layers):
    vocabulary, shared = (8848, 6632), {"share_decoder_input_output_embed": True}
    model = build_preset(f"multistream_transformer{arch}", vocabulary, **shared)
    assert (len(model.encoder.streams), len(model.encoder.streams[0])) == (streams, (layers - 2) // streams)
    assert len(model.decoder.layers) == decoder_layers
    size = {key: getattr(model.cfg.encoder, key) for key in ("embed_dim", "ffn_embed_dim", "attention_heads")}
    assert size == (
        {"embed_dim": 128, "ffn_embed_dim": 512, "attention_heads": 8}
        if arch == "_2x1"
        else {"embed_dim": 512, "ffn_embed_dim": 1024, "attention_heads": 4}
        if arch == "_iwslt_de_en"
        else {"embed_dim": 512, "ffn_embed_dim": 2048, "attention_heads": 8}
    )
    plain = build_preset(f"multistream_transformer{arch}", vocabulary, **shared, streams=1)
    counts = [sum(p.numel() for p in m.parameters()) for m in (model, plain)]
    assert counts[0] == counts[1]
    if arch == "_iwslt_de_en":
        assert counts[0] == 39_469_056
