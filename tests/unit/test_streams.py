"""Test Multi-Stream encoders: Eq. 1, the loop and the batched form, and neutral settings.

Other tests cover initialisation, checkpoints and presets.
"""

import copy

import pytest
import torch
from torch import nn

from modular_fairseq.models.multistream import MultiStream
from modular_fairseq.modules.masks import AttentionMasks
from modular_fairseq.modules.streams import Streams
from modular_fairseq_cli.errors import UsageError
from tests.helpers import LENGTHS, batch, build, build_preset, build_stock
from tests.properties import logits, real_logits
from tests.reference import streams as reference

# On a CPU, vmap warns that the attention of all streams at once is slow.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")

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
    """Build an encoder without dropout in training mode, in which streams may run at once."""
    encoder = build(**changes).double().train().encoder
    torch.manual_seed(4)
    x, padding = (
        torch.randn(7, 3, 32, dtype=torch.float64, requires_grad=True),
        torch.zeros(3, 7, dtype=torch.bool),
    )
    padding[1, :3] = True
    return encoder, x, padding


def output(encoder, x, padding):
    return encoder._run_layers(x, padding, None)


def gradients(encoder, y, x):
    parameters = [x, *(p for key, p in encoder.named_parameters() if "layers" in key or "streams" in key)]
    return torch.autograd.grad(
        (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum(), parameters
    )


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("changes", CASES, ids=name)
def test_an_encoder_of_streams_is_equation_1(changes, batched):
    """Outputs and gradients with padding equal those of a loop over ordinary layers, in float64.

    This holds for the loop over streams and for all streams at once.
    """
    encoder, x, padding = encoder_in_float64(**changes, stream_batched=batched)
    y, expected = output(encoder, x, padding), reference.encode(encoder, x, padding)
    torch.testing.assert_close(y, expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(gradients(encoder, y, x), gradients(encoder, expected, x), atol=1e-11, rtol=0)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("k", [1, 2])
def test_one_stream_is_the_plain_encoder_and_equal_streams_are_multiples_of_it(k, batched):
    encoder, x, padding = encoder_in_float64(**SIX)
    first, *body, last = encoder.layers
    middle = first(x, padding)
    for layer in body:
        middle = layer(middle, padding)
    streams = Streams([body, *[copy.deepcopy(body) for _ in range(k - 1)]], batched).train()
    torch.testing.assert_close(
        streams(first(x, padding), AttentionMasks(None, padding)), k * middle, atol=1e-12, rtol=0
    )
    if k == 1:
        expected = output(encoder, x, padding)
        encoder.layers, encoder.streams = nn.ModuleList([first, last]), streams
        encoder.arrangement = MultiStream(2, skip=False, batched=batched)
        torch.testing.assert_close(output(encoder, x, padding), expected, atol=1e-12, rtol=0)


def test_the_encoder_of_one_stream_is_fairseqs():
    stock, ours = build_stock(seed=3, **SIX).eval(), build(**SIX, streams=1).eval()
    ours.load_state_dict(stock.state_dict())
    found, expected = (real_logits(model, batch(LENGTHS)) for model in (ours, stock))
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)


def test_the_skip_of_one_stream_adds_what_the_first_layer_says():
    """This is Transformer + skip, the paper's second baseline. It loads a plain state dict."""
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
    """The streams have equal weights. Their sum is twice one of them, unless their dropout masks differ."""
    encoder = build(
        streams=2, encoder_layers=4, stream_batched=batched, **{"dropout": 0.0, kind: 0.5}
    ).encoder
    encoder.streams[1].load_state_dict(encoder.streams[0].state_dict())
    z = torch.randn(7, 3, 32)
    one = Streams([list(encoder.streams[0])])
    for training in (True, False):
        encoder.train(training)
        one.train(training)
        if batched and training:
            with torch.no_grad():
                outputs = encoder.streams._at_once(
                    [stream[0] for stream in encoder.streams], z.expand(2, *z.shape), AttentionMasks(None)
                )
            assert not torch.allclose(outputs[0], outputs[1])
        torch.manual_seed(1)
        both = encoder.streams(z)
        torch.manual_seed(1)
        assert torch.allclose(both, 2 * one(z), atol=1e-5) == (not training)


def test_streams_run_at_once_in_training_only():
    """In evaluation every layer is called, so that hooks and analyses see it."""
    streams, seen = build(streams=2, encoder_layers=4, stream_batched=True).encoder.streams, []
    for i, stream in enumerate(streams):
        stream[0].self_attn.register_forward_hook(lambda *_, i=i: seen.append(i))
    streams.eval()(torch.randn(7, 3, 32))
    assert seen == [0, 1]
    streams.train()(torch.randn(7, 3, 32))
    assert seen == [0, 1, 0]  # the modules of the first stream, with the parameters of all


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
    torch.testing.assert_close(
        states[3], streams[0][1](outputs[0], padding) + streams[1][1](outputs[1], padding)
    )
    torch.testing.assert_close(states[4], model.encoder.layers[1](states[3] + states[1], padding))
    assert torch.equal(states[4], found["encoder_out"][0])


def test_a_checkpoint_names_each_stream_with_the_shapes_of_a_plain_layer():
    state, plain = build(streams=2, **SIX).state_dict(), build(**SIX).state_dict()
    per_layer = {
        key.removeprefix("encoder.layers.2."): value.shape
        for key, value in plain.items()
        if key.startswith("encoder.layers.2.")
    }
    for i in range(2):
        for layer in range(2):
            prefix = f"encoder.streams.{i}.{layer}."
            assert {
                key.removeprefix(prefix): value.shape
                for key, value in state.items()
                if key.startswith(prefix)
            } == per_layer
    assert sum(value.numel() for value in state.values()) == sum(value.numel() for value in plain.values())


def test_a_checkpoint_of_other_streams_is_refused_by_name():
    with pytest.raises(UsageError, match=r"the checkpoint has no encoder.streams.2.0"):
        build(streams=4, **SIX).load_state_dict(build(streams=2, **SIX).state_dict())


def test_a_checkpoint_of_streams_without_gates_loads_into_streams_of_experts():
    changes = {"streams": 2, "encoder_layers": 4}
    plain, experts = (
        build(**changes).eval(),
        build(attention_type="mae", mae_gate_init="zero", seed=2, **changes).eval(),
    )
    experts.load_state_dict(plain.state_dict())
    assert torch.equal(logits(experts, batch(LENGTHS)), logits(plain, batch(LENGTHS)))


@pytest.mark.parametrize(
    ("arch", "streams", "layers", "decoder_layers", "size"),
    [
        ("_2x1", 2, 4, 4, (128, 512, 8)),
        ("_2x2", 2, 6, 6, (512, 2048, 8)),
        ("_4x1", 4, 6, 6, (512, 2048, 8)),
        ("_iwslt_de_en", 2, 6, 6, (512, 1024, 4)),
        ("_wmt_en_de", 2, 6, 6, (512, 2048, 8)),
        ("", 2, 6, 6, (512, 2048, 8)),
    ],
)
def test_presets_have_as_many_parameters_as_the_plain_encoder_of_as_many_layers(
    arch, streams, layers, decoder_layers, size
):
    vocabulary, shared = (8848, 6632), {"share_decoder_input_output_embed": True}
    model = build_preset(f"multistream_transformer{arch}", vocabulary, **shared)
    assert (len(model.encoder.streams), len(model.encoder.streams[0])) == (streams, (layers - 2) // streams)
    assert len(model.decoder.layers) == decoder_layers
    sizes = tuple(
        getattr(model.cfg.encoder, key) for key in ("embed_dim", "ffn_embed_dim", "attention_heads")
    )
    assert sizes == size
    plain = build_preset(f"multistream_transformer{arch}", vocabulary, **shared, streams=1)
    counts = [sum(p.numel() for p in m.parameters()) for m in (model, plain)]
    assert counts[0] == counts[1]
    if arch == "_iwslt_de_en":
        assert counts[0] == 39_469_056
