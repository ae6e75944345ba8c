"""Test modules/inference.py: packed linear layers, and results that are kept until parameters change."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from modular_fairseq.benchmark.kernels import counting
from modular_fairseq.modules import inference
from modular_fairseq.modules.inference import Kept, PackedLinear, pack
from tests.helpers import LENGTHS, batch
from tests.properties import ready

pytestmark = pytest.mark.cpu_only("weights are packed on a CPU only")

PACKED = torch.backends.mkldnn.is_available()


def packed_linear(bias=True):
    linear = nn.Linear(12, 20, bias=bias)
    pack(nn.ModuleList([linear]))
    assert isinstance(linear, PackedLinear)
    return linear


def operations(call):
    with counting() as count:
        call()
    return set(count.kernels["update"])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(12,), (1, 12), (3, 12), (1, 5, 12), (4, 3, 12), (0, 12)])
def test_packed_layers_compute_what_plain_ones_do(shape, bias):
    torch.manual_seed(1)
    linear, x = packed_linear(bias), torch.randn(*shape)
    expected = F.linear(x, linear.weight, linear.bias)
    with torch.no_grad():
        torch.testing.assert_close(linear(x), expected, atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(linear.relu(x), expected.relu(), atol=1e-6, rtol=1e-6)
        if len(shape) > 1:
            turned = x.transpose(0, -2).contiguous().transpose(0, -2)
            torch.testing.assert_close(linear(turned), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.skipif(not PACKED, reason="this torch has no oneDNN")
def test_the_packed_weight_is_used_on_a_cpu_in_float32_without_gradients_only():
    linear, x = packed_linear(), torch.randn(3, 12)
    with torch.no_grad():
        assert operations(lambda: linear(x)) == {"_reorder_linear_weight", "_linear_pointwise"}
        assert operations(lambda: linear(x)) == {"_linear_pointwise"}
        with torch.autocast("cpu"):
            assert "_linear_pointwise" not in operations(lambda: linear(x))
        with torch.backends.mkldnn.flags(enabled=False):
            assert operations(lambda: linear(x)) == {"addmm"}
    linear(x).sum().backward()
    assert linear.weight.grad is not None
    for dtype in (torch.float64, torch.bfloat16):
        converted, y = linear.to(dtype), x.to(dtype)
        with torch.no_grad():
            torch.testing.assert_close(converted(y), F.linear(y, linear.weight, linear.bias))
            torch.testing.assert_close(converted.relu(y), F.linear(y, linear.weight, linear.bias).relu())


def test_a_result_is_kept_until_a_parameter_changes():
    parameter, kept, calls = nn.Parameter(torch.ones(2)), Kept(), []

    def compute():
        calls.append(1)
        return parameter * 2

    with torch.no_grad():
        found = [kept.get([parameter, None], compute) for _ in range(3)]
        assert len(calls) == 1 and not found[0].requires_grad
        parameter.copy_(torch.tensor([3.0, 4.0]))
        assert kept.get([parameter], compute).tolist() == [6, 8]
        parameter.data = torch.tensor([5.0, 6.0])
        assert kept.get([parameter], compute).tolist() == [10, 12]
        parameter.data = parameter.data.double()
        assert kept.get([parameter], compute).dtype == torch.float64
    assert len(calls) == 4


@pytest.mark.parametrize("before", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("changes", [{}, {"attention_type": "mae+dma"}, {"tim_layers": "all"}], ids=str)
def test_a_model_that_has_translated_still_has_all_its_gradients(before, changes):
    model, sample = ready(**changes), batch(LENGTHS)["net_input"]

    def gradients():
        model.zero_grad()
        model(**sample)[0].pow(2).sum().backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    expected = gradients()
    model.make_generation_fast_()
    with before():
        model(**sample)
    found = gradients()
    assert found.keys() == expected.keys() and len(found) > 20
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-4, rtol=1e-3)


def test_a_model_that_has_translated_can_be_copied():
    model, sample = ready(attention_type="mae+dma"), batch(LENGTHS)["net_input"]
    model.make_generation_fast_()
    with torch.no_grad():
        expected = model(**sample)[0]
        other = copy.deepcopy(model)
        torch.testing.assert_close(other(**sample)[0], expected)
        other.decoder.output_projection.weight.mul_(2)
        torch.testing.assert_close(other(**sample)[0], 2 * expected)
        torch.testing.assert_close(model(**sample)[0], expected)


def test_a_packed_layer_that_was_used_can_be_pickled():
    linear, x = packed_linear(), torch.randn(3, 12)
    with torch.no_grad():
        expected = linear(x)
        torch.testing.assert_close(pickle.loads(pickle.dumps(linear))(x), expected)


def test_a_model_that_was_made_in_inference_mode_translates():
    """Its parameters do not count their changes, so nothing that depends on them is kept."""
    with torch.inference_mode():
        model, sample = ready(attention_type="mae+dma"), batch(LENGTHS)["net_input"]
        expected = model(**sample)[0]
        model.make_generation_fast_()
        torch.testing.assert_close(model(**sample)[0], expected)
        model.decoder.output_projection.weight.mul_(2)
        torch.testing.assert_close(model(**sample)[0], 2 * expected)


@pytest.mark.parametrize("attention", ["plain", "mae", "dma"])
def test_preparing_a_model_packs_its_linear_layers_and_changes_no_parameter(attention):
    model = ready(attention_type=attention)
    before = copy.deepcopy(model.state_dict())
    model.make_generation_fast_()
    after = model.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert not any(type(module) is nn.Linear for module in model.modules())


def test_a_hook_on_the_first_layer_of_a_feed_forward_network_sees_its_output(monkeypatch):
    model = ready()
    model.make_generation_fast_()
    layer = model.encoder.layers[0]
    seen = []
    handle = layer.fc1.register_forward_hook(lambda module, inputs, output: seen.append(output.min().item()))
    with torch.no_grad():
        with_hook = model(**batch(LENGTHS)["net_input"])[0]
        handle.remove()
        without = model(**batch(LENGTHS)["net_input"])[0]
    assert len(seen) == 1 and seen[0] < 0  # before the activation
    torch.testing.assert_close(with_hook, without, atol=1e-5, rtol=1e-5)


def test_other_activations_than_relu_are_applied():
    models = [ready(activation_fn="gelu") for _ in range(2)]
    models[0].make_generation_fast_()
    with torch.no_grad():
        found, expected = (model(**batch(LENGTHS)["net_input"])[0] for model in models)
    of_words = batch(LENGTHS)["target"].ne(1)
    torch.testing.assert_close(found[of_words], expected[of_words], atol=1e-5, rtol=1e-5)


def test_without_onednn_the_plain_weight_is_used(monkeypatch):
    monkeypatch.setattr(inference, "_can_pack", lambda x, weight: False)
    linear, x = packed_linear(), torch.randn(2, 3, 12)
    with torch.no_grad():
        torch.testing.assert_close(linear.relu(x), F.linear(x, linear.weight, linear.bias).relu())
        assert operations(lambda: linear.relu(x)) == {"_addmm_activation"}
