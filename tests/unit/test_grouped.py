"""Test groups of features: their block-diagonal matrices, their initialisation, and the equality of loop and
batched form.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from modular_fairseq.modules.attention import MultiheadAttention
from modular_fairseq.modules.grouped import GroupLayerNorm, GroupLinear, build_layer_norm, build_linear


def group_linear(groups, d_in, d_out):
    torch.manual_seed(groups)
    layer = GroupLinear(groups, d_in, d_out).double()
    return layer, torch.randn(5, 3, d_in, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_group_linear_layer_is_a_block_diagonal_matrix(groups):
    """Outputs and gradients equal those of the block-diagonal matrix."""
    layer, x = group_linear(groups, 8, 12)
    weight, bias = torch.block_diag(*layer.weight), layer.bias.flatten()
    upstream = torch.randn(5, 3, 12, dtype=torch.float64)
    expected = torch.autograd.grad(
        (F.linear(x, weight, bias) * upstream).sum(), [x, layer.weight, layer.bias]
    )
    y = layer(x)
    torch.testing.assert_close(y, F.linear(x, weight, bias), atol=1e-12, rtol=0)
    torch.testing.assert_close(
        torch.autograd.grad((y * upstream).sum(), [x, layer.weight, layer.bias]), expected, atol=1e-12, rtol=0
    )


@pytest.mark.parametrize("frozen", [["x"], ["weight"], ["bias"], ["weight", "bias"], ["x", "weight"]])
def test_frozen_tensors_get_no_gradient(frozen):
    """The others get the gradients that they get if nothing is frozen."""
    layer, x = group_linear(2, 8, 12)
    tensors = {"x": x, "weight": layer.weight, "bias": layer.bias}
    layer(x).square().sum().backward()
    expected = {name: tensor.grad for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        tensor.grad = None
        tensor.requires_grad = name not in frozen
    layer(x).square().sum().backward()
    for name, tensor in tensors.items():
        if name in frozen:
            assert tensor.grad is None
        else:
            assert torch.equal(tensor.grad, expected[name])


def test_autocast_chooses_the_precision():
    layer = GroupLinear(2, 8, 12)
    x = torch.randn(5, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), layer(x), atol=0.05, rtol=0)
    y.sum().backward()
    assert layer.weight.grad.dtype == torch.float32


def test_layers_can_be_computed_together_by_vmap():
    layers = [GroupLinear(2, 8, 12) for _ in range(3)]
    x = torch.randn(3, 5, 8)
    weight, bias = (torch.stack([getattr(layer, name) for layer in layers]) for name in ("weight", "bias"))
    together = torch.vmap(layers[0].project)(x, weight, bias)
    expected = torch.stack([layer(part) for layer, part in zip(layers, x, strict=True)])
    torch.testing.assert_close(together, expected)


def test_inputs_need_not_be_contiguous():
    layer, x = group_linear(2, 8, 12)
    torch.testing.assert_close(layer(x.transpose(0, 1)).transpose(0, 1), layer(x), atol=1e-12, rtol=0)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_layer_norm_of_groups_is_a_layer_norm_of_each(groups):
    layer = GroupLayerNorm(groups, 8).double()
    layer.weight.data.normal_()
    layer.bias.data.normal_()
    x = torch.randn(5, 3, 8, dtype=torch.float64)
    expected = [
        F.layer_norm(part, part.shape[-1:], w, b)
        for part, w, b in zip(x.chunk(groups, -1), layer.weight, layer.bias, strict=True)
    ]
    torch.testing.assert_close(layer(x), torch.cat(expected, dim=-1), atol=1e-12, rtol=0)


def test_every_slice_is_initialised_as_a_matrix_of_its_own():
    """xavier_uniform_ on the stacked weight would give about a tenth of this bound. Slices must differ."""
    linear, plain = GroupLinear(2, 512, 512), nn.Linear(256, 256)
    assert linear.weight.abs().max().item() == pytest.approx(plain.weight.abs().max().item(), rel=0.01)
    assert not torch.equal(linear.weight[0], linear.weight[1])
    attention = MultiheadAttention(512, 8, self_attention=True, groups=2)
    for projection, gain in ((attention.q_proj, 1 / math.sqrt(2)), (attention.out_proj, 1.0)):
        bound = gain * math.sqrt(6 / (256 + 256))
        for matrix in projection.weight:
            assert matrix.abs().max().item() == pytest.approx(bound, rel=0.01)
        assert not torch.equal(projection.weight[0], projection.weight[1])
    assert not attention.out_proj.bias.any()


def test_one_group_has_the_parameters_of_a_plain_layer():
    assert type(build_linear(1, 8, 12)) is nn.Linear
    assert build_layer_norm(1, 8).weight.shape == (8,)


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: GroupLinear(3, 8, 12), "8 and 12 features cannot be divided into 3 groups"),
        (lambda: GroupLinear(3, 12, 8), "12 and 8 features cannot be divided into 3 groups"),
        (lambda: MultiheadAttention(12, 4, self_attention=True, groups=3), "multiple of groups 3"),
        (lambda: GroupLayerNorm(3, 8), "8 features cannot be divided into 3 groups"),
    ],
)
def test_groups_that_do_not_divide_are_refused(build, sentence):
    with pytest.raises(ValueError, match=sentence):
        build()


@pytest.mark.parametrize(
    ("changes", "found"),
    [({"bias": False}, "bias False and q_noise 0.0"), ({"q_noise": 0.1}, "bias True and q_noise 0.1")],
)
def test_groups_cannot_be_without_bias_or_have_quantisation_noise(changes, found):
    with pytest.raises(ValueError, match=f"of 2 groups needs bias True and q_noise 0, not {found}"):
        build_linear(2, 8, 12, **changes)
