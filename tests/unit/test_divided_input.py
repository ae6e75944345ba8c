"""Test that the softmaxes of the last encoder layer look at the mean of streams, and all else at the sum.

The softmaxes are those of clusters (DMA) and of the competition (TIM). Checkpoints of version 0.1 keep their
meaning.
"""

import copy

import pytest
import torch

from modular_fairseq.models.dma_losses import measuring
from modular_fairseq.modules.disentangled_heads import LossSettings
from modular_fairseq.training.averaging import average_checkpoints
from modular_fairseq_cli.errors import UsageError
from tests.helpers import LENGTHS, batch, build, randomize_parts
from tests.properties import logits
from tests.reference import disentangled, mechanisms, streams

DMA, TIM = {"attention_type": "dma"}, {"tim_layers": "all", "tim_mechanisms": 4}
MECHANISMS = pytest.mark.parametrize("mechanism", [DMA, TIM], ids=["dma", "tim"])
STREAMS = {"streams": 3, "encoder_layers": 5}
PRE_NORM = {"encoder_normalize_before": True, "decoder_normalize_before": True}
# Options, and the number of outputs that are summed.
SUMS = [
    (STREAMS, 3),
    ({**STREAMS, "stream_skip": True}, 4),
    ({"streams": 1, "encoder_layers": 3, "stream_skip": True}, 2),
]
KEY = "input_divisor"


def encoder_and_input(changes):
    model = build(**changes).double()
    randomize_parts(model)
    generator = torch.Generator().manual_seed(4)
    return model.encoder.eval(), torch.randn(7, 3, 32, generator=generator, dtype=torch.float64)


def inputs_of(module, run):
    """Return the first argument of `module` in one forward pass."""
    seen = []
    with module.register_forward_pre_hook(lambda module, args: seen.append(args[0])):
        run()
    (only,) = seen
    return only


def outputs_before_the_last_layer(encoder, x):
    if hasattr(encoder, "streams"):
        return streams.summands(encoder, x)
    first, body, _ = encoder.layers
    return [first(x, None), body(first(x, None), None)]


@pytest.mark.parametrize(("changes", "n"), SUMS)
def test_clusters_of_the_last_layer_are_those_of_the_mean(changes, n):
    encoder, x = encoder_and_input({**DMA, **changes})
    attention = encoder.layers[-1].self_attn
    outputs = outputs_before_the_last_layer(encoder, x)
    assert len(outputs) == n

    def run():
        encoder._run_layers(x, None, None)

    torch.testing.assert_close(inputs_of(attention, run), sum(outputs), atol=1e-12, rtol=0)
    found = attention.mask.cluster(sum(outputs)).posterior  # B x H x C x T
    heads = (sum(outputs) / n).unflatten(2, (4, 8))
    for head in range(4):
        expected = disentangled.expected_posterior(attention.mask.tokens, head, heads[:, :, head])
        torch.testing.assert_close(found[:, head], expected.permute(1, 2, 0), atol=1e-10, rtol=0)
    # In every other layer they are those of the input itself.
    assert torch.equal(inputs_of(encoder.layers[0].self_attn.mask.tokens, run).flatten(2), x)


@pytest.mark.parametrize("changes", [changes for changes, _ in SUMS], ids=str)
def test_losses_of_queries_are_those_of_the_queries_that_attention_uses(changes):
    model = build(**DMA, **changes).train()
    attention = model.encoder.layers[-1].self_attn
    projected = []
    with (
        attention.q_proj.register_forward_hook(lambda module, args, y: projected.append(y)),
        measuring(model, LossSettings(kl=True)),
    ):
        logits(model, batch(LENGTHS))
        seen = attention.mask.seen.projected.permute(2, 0, 1, 3).flatten(2)
    assert torch.equal(seen, projected[0])


@pytest.mark.parametrize(("changes", "n"), SUMS)
def test_mechanisms_of_the_last_layer_compete_for_the_mean(changes, n):
    """The layer is Algorithm 1 on the sum, with weights of the competition that are n times smaller."""
    encoder, x = encoder_and_input({**TIM, **changes})
    last = copy.deepcopy(encoder.layers[-1])
    last.competition.linear.weight.data /= n
    expected = mechanisms.layer(last, sum(outputs_before_the_last_layer(encoder, x)), 4)
    torch.testing.assert_close(encoder._run_layers(x, None, None), expected, atol=1e-12, rtol=0)


@MECHANISMS
@pytest.mark.parametrize(("changes", "n"), SUMS)
def test_only_the_last_encoder_layer_of_a_post_norm_model_divides(mechanism, changes, n):
    model = build(**mechanism, **changes)
    (key,) = (key for key in model.state_dict() if KEY in key)
    assert key.startswith(f"encoder.layers.{len(model.encoder.layers) - 1}.")
    assert model.state_dict()[key] == n
    assert model.bfloat16().state_dict()[key] == n


@MECHANISMS
@pytest.mark.parametrize("changes", [{}, {"streams": 1}, {**STREAMS, **PRE_NORM}], ids=str)
def test_models_without_a_sum_and_pre_norm_models_have_no_divisor(mechanism, changes):
    """The last layer of a pre-norm model normalises the sum itself."""
    assert not [key for key in build(**mechanism, **changes).state_dict() if KEY in key]


def largest(model, divided):
    """Return the mean of the largest posterior or competition, in the streams and in the last layer.

    If `divided` is False, nothing divides its input.
    """
    found = {True: [], False: []}
    for name, module in model.encoder.named_modules():
        if hasattr(module, KEY) and not name.startswith("layers.0."):
            mine = name.startswith("layers.1.")
            if not divided:
                module.input_divisor = None
            watched = getattr(module, "tokens", module)
            watched.register_forward_hook(
                lambda module, args, y, mine=mine: found[mine].append(
                    y.amax(-1).mean() if torch.is_tensor(y) else y.posterior.amax(2).mean()
                )
            )
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        model.encoder(torch.randint(4, 44, (8, 20), generator=generator))
    return [float(torch.stack(found[mine]).mean()) for mine in (False, True)]


@MECHANISMS
def test_the_last_layer_starts_as_undecided_as_the_streams(mechanism):
    changes = {**mechanism, **STREAMS, "encoder_embed_dim": 128, "stream_skip": True}
    elsewhere, last = largest(build(**changes).eval(), divided=True)
    assert last == pytest.approx(elsewhere, abs=0.06)
    assert largest(build(**changes).eval(), divided=False)[1] > elsewhere + 0.2


@MECHANISMS
def test_a_checkpoint_of_version_0_1_keeps_its_meaning(mechanism):
    model = build(**mechanism, **STREAMS).eval()
    new = logits(model, batch(LENGTHS))
    old_state = {key: value for key, value in model.state_dict().items() if KEY not in key}
    for module in model.modules():
        if hasattr(module, KEY):
            module.input_divisor = None
    old = logits(model, batch(LENGTHS))
    assert not torch.allclose(old, new, atol=1e-5)
    for strict in (True, False):
        again = build(**mechanism, **STREAMS, seed=2).eval()
        again.load_state_dict(dict(old_state), strict=strict)
        assert torch.equal(logits(again, batch(LENGTHS)), old)
    # It also keeps it when it is saved again, and a new one keeps its own.
    third = build(**mechanism, **STREAMS, seed=3).eval()
    third.load_state_dict(again.state_dict())
    assert torch.equal(logits(third, batch(LENGTHS)), old)
    third.load_state_dict(build(**mechanism, **STREAMS).state_dict())
    assert torch.equal(logits(third, batch(LENGTHS)), new)


def test_masks_that_a_checkpoint_does_not_have_keep_their_divisor():
    model = build(**DMA, **STREAMS)
    model.load_state_dict(build(**STREAMS).state_dict())
    assert [value.item() for key, value in model.state_dict().items() if KEY in key] == [3]


def test_checkpoints_of_different_divisors_cannot_be_averaged(tmp_path):
    state = build(**DMA, **STREAMS).state_dict()
    for name, divisor in (("one.pt", 3.0), ("other.pt", 1.0)):
        state["encoder.layers.1.self_attn.mask.input_divisor"] = torch.tensor(divisor)
        torch.save({"model": state, "cfg": None, "args": None}, tmp_path / name)
    with pytest.raises(UsageError, match="divide their input by another number"):
        average_checkpoints([tmp_path / "one.pt", tmp_path / "other.pt"])
