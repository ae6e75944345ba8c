"""Test that modules/attention.py equals fairseq's MultiheadAttention in parameters, outputs and caches, and
test its two seams.
"""

import pytest
import torch
from fairseq.modules import MultiheadAttention as StockAttention
from torch import nn

from modular_fairseq.modules import key_values
from modular_fairseq.modules.attention import MultiheadAttention
from modular_fairseq.modules.beams import fold_beam

T, S, B, C, H = 6, 7, 3, 16, 4


def pair(seed=0, **kind):
    torch.manual_seed(seed)
    stock = StockAttention(C, H, **kind)
    torch.manual_seed(seed)
    return stock.eval(), MultiheadAttention(C, H, **kind).eval()


def padding(rows=B, length=S):
    mask = torch.zeros(rows, length, dtype=torch.bool)
    mask[1, :2] = True
    mask[2, -3:] = True
    return mask


CAUSAL = torch.full((T, T), float("-inf")).triu(1)


@pytest.mark.parametrize(
    "kind",
    [
        {"self_attention": True},
        {"encoder_decoder_attention": True},
        {"encoder_decoder_attention": True, "kdim": 12, "vdim": 12},
    ],
)
def test_same_seed_gives_fairseqs_parameters(kind):
    stock, ours = pair(**kind)
    expected = stock.state_dict()
    assert ours.state_dict().keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in ours.state_dict().items())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("need_head_weights", [False, True])
def test_self_attention_equals_fairseqs(causal, padded, need_head_weights):
    stock, ours = pair(self_attention=True)
    x = torch.randn(T, B, C)
    mask = torch.zeros(B, T, dtype=torch.bool)
    mask[2, -2:] = padded
    call = {"key_padding_mask": mask if padded else None, "attn_mask": CAUSAL if causal else None}
    expected, _ = stock(x, x, x, **call)
    found, weights = ours(x, x, x, need_head_weights=need_head_weights, **call)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    assert (weights is not None) == need_head_weights


@pytest.mark.parametrize("need_head_weights", [False, True])
def test_cross_attention_and_its_weights_equal_fairseqs(need_head_weights):
    stock, ours = pair(encoder_decoder_attention=True)
    query, key = torch.randn(T, B, C), torch.randn(S, B, C)
    call = {
        "key_padding_mask": padding(),
        "static_kv": True,
        "need_weights": True,
        "need_head_weights": need_head_weights,
    }
    expected, expected_weights = stock(query, key, key, **call)
    found, weights = ours(query, key, key, **call)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(weights, expected_weights, atol=1e-6, rtol=0)


def test_both_ways_to_attend_give_the_same_output():
    _, ours = pair(encoder_decoder_attention=True)
    query, key = torch.randn(T, B, C), torch.randn(S, B, C)
    fused, _ = ours(query, key, key, key_padding_mask=padding())
    by_hand, _ = ours(query, key, key, key_padding_mask=padding(), need_weights=True)
    torch.testing.assert_close(fused, by_hand, atol=1e-6, rtol=0)


def test_the_softmax_of_half_precision_is_that_of_float32():
    _, ours = pair(encoder_decoder_attention=True)
    ours.bfloat16()
    query, key = torch.randn(T, B, C, dtype=torch.bfloat16), torch.randn(S, B, C, dtype=torch.bfloat16)
    output, weights = ours(query, key, key, need_weights=True, need_head_weights=True)
    assert (output.dtype, weights.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:-1]), atol=1e-6, rtol=0)


def test_a_sentence_with_no_key_gets_the_output_bias():
    _, ours = pair(encoder_decoder_attention=True)
    nn.init.normal_(ours.out_proj.bias)
    query, key = torch.randn(T, B, C), torch.randn(S, B, C)
    mask = padding()
    mask[0] = True
    for need_weights in (False, True):
        ours.zero_grad()
        output, _ = ours(query, key, key, key_padding_mask=mask, need_weights=need_weights)
        torch.testing.assert_close(output[:, 0], ours.out_proj.bias.expand(T, C), atol=0, rtol=0)
        output.sum().backward()
        assert all(p.grad.isfinite().all() for p in ours.parameters())


@pytest.mark.parametrize("capacity", [1, 2, 4, 100])
@pytest.mark.parametrize("prepared", [False, True])
def test_step_by_step_with_reordering_equals_all_at_once(monkeypatch, prepared, capacity):
    """The memory of keys and values may have to grow in any step."""
    monkeypatch.setattr(key_values, "FIRST_CAPACITY", capacity)
    _, ours = pair(self_attention=True)
    if prepared:
        ours.make_generation_fast_()
    x = torch.randn(T, B, C)
    order, state = torch.arange(B), {}
    for t in range(T):
        output, _ = ours(x[t : t + 1, order], None, None, incremental_state=state)
        expected, _ = ours(x[:, order], None, None, attn_mask=CAUSAL)
        torch.testing.assert_close(output, expected[t : t + 1], atol=1e-6, rtol=0)
        new_order = torch.tensor([2, 0, 0] if t == 3 else [1, 2, 0])
        ours.reorder_incremental_state(state, new_order)
        order = order[new_order]


def test_padding_that_comes_late_in_the_cache_is_masked():
    stock, ours = pair(self_attention=True)
    x = torch.randn(T, B, C)
    mask = torch.zeros(B, T, dtype=torch.bool)
    mask[1, 2] = True
    states = {}, {}
    for t in range(T):
        now = x[t : t + 1]
        step_mask = mask[:, t : t + 1] if mask[:, t].any() else None
        expected, _ = stock(
            now, now, now, key_padding_mask=step_mask, incremental_state=states[0], need_weights=False
        )
        found, _ = ours(now, now, now, key_padding_mask=step_mask, incremental_state=states[1])
        if t != 2:
            torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_hypotheses_share_the_keys_of_their_sentence():
    beam = 5
    _, ours = pair(encoder_decoder_attention=True)
    key, query = torch.randn(S, B, C), torch.randn(1, B * beam, C)
    call = {"static_kv": True, "need_weights": True}
    repeat = {"repeats": beam, "dim": 1}
    expected, expected_weights = ours(
        query,
        *[key.repeat_interleave(**repeat)] * 2,
        key_padding_mask=padding().repeat_interleave(beam, 0),
        **call,
    )
    state = {}
    found, weights = ours(query, key, key, key_padding_mask=padding(), incremental_state=state, **call)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(weights, expected_weights, atol=1e-6, rtol=0)
    assert ours._get_input_buffer(state).keys.size(0) == B

    # Sentence 1 is finished: only the hypotheses of the sentences 0 and 2 remain, in some order.
    remaining = torch.tensor([2, 0, 1, 4, 3, 10, 10, 14, 13, 11])
    ours.reorder_incremental_state(state, remaining)
    found, _ = ours(
        query[:, remaining],
        key[:, [0, 2]],
        None,
        key_padding_mask=padding()[[0, 2]],
        incremental_state=state,
        **call,
    )
    torch.testing.assert_close(found, expected[:, remaining], atol=1e-6, rtol=0)


def test_searches_of_different_beam_sizes_can_alternate():
    _, ours = pair(encoder_decoder_attention=True)
    key = torch.randn(S, B, C)
    wide, narrow = {}, {}
    query = torch.randn(1, B * 2, C)
    expected, _ = ours(query[:, ::2], key, key, static_kv=True)
    ours(query, key, key, static_kv=True, incremental_state=wide)
    found, _ = ours(query[:, ::2], key, key, static_kv=True, incremental_state=narrow)
    ours.reorder_incremental_state(narrow, torch.tensor([2, 0]))
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    assert torch.equal(ours._get_input_buffer(narrow).keys, ours._get_input_buffer(wide).keys[[2, 0]])


def test_gate_scales_the_heads_before_the_output_projection():
    scale = torch.rand(B, H, T, 1)

    class Gate(nn.Module):
        def forward(self, x, padding_mask, incremental_state, rows):
            self.saw = (x, padding_mask, rows)
            return scale

    _, ours = pair(self_attention=True)
    x, mask = torch.randn(T, B, C), padding(length=T)
    ours.out_proj = nn.Identity()
    plain, _ = ours(x, x, x, key_padding_mask=mask)
    ours.gate = Gate()
    found, _ = ours(x, x, x, key_padding_mask=mask)
    expected = plain.view(T, B, H, C // H) * scale.permute(2, 0, 1, 3)
    torch.testing.assert_close(found, expected.flatten(2))
    assert ours.gate.saw[0] is x and ours.gate.saw[1] is mask and ours.gate.saw[2] == B


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("beam", [1, 2])
def test_mask_adds_a_bias_to_the_scores(need_weights, beam):
    """A bias of log P multiplies the attention weights by P, up to normalisation."""
    factor = torch.rand(B * beam, H, T, S) + 0.1

    class Mask(nn.Module):
        def forward(self, *args):
            self.saw = args
            return fold_beam(factor.log(), beam)

    _, ours = pair(encoder_decoder_attention=True)
    query, key = torch.randn(T, B * beam, C), torch.randn(S, B, C)
    _, weights = ours(query, key, key, need_head_weights=True, key_padding_mask=padding())
    ours.mask = Mask()
    expected = weights.transpose(0, 1) * factor
    expected = expected / expected.sum(dim=-1, keepdim=True)
    query_padding = padding(B * beam, T)
    _, found = ours(
        query, key, key, need_head_weights=True, key_padding_mask=padding(), query_padding_mask=query_padding
    )
    torch.testing.assert_close(found.transpose(0, 1), expected, atol=1e-6, rtol=1e-5)
    assert ours.mask.saw[0] is query and ours.mask.saw[1] is key and ours.mask.saw[3] is query_padding
    assert torch.equal(ours.mask.saw[2], ours._split(ours.q_proj(query))) and torch.equal(
        ours.mask.saw[4], padding()
    )
    value = ours._split(ours.v_proj(key)).repeat_interleave(beam, 0)
    output, _ = ours(query, key, key, need_weights=need_weights, key_padding_mask=padding())
    by_hand = ours.out_proj((expected @ value).permute(2, 0, 1, 3).flatten(2))
    torch.testing.assert_close(output, by_hand, atol=1e-6, rtol=1e-5)


def test_packed_projections_of_old_checkpoints_load():
    stock, ours = pair(seed=3, self_attention=True)
    packed = {"a.out_proj.weight": stock.out_proj.weight, "a.out_proj.bias": stock.out_proj.bias}
    for kind in ("weight", "bias"):
        packed[f"a.in_proj_{kind}"] = torch.cat([getattr(getattr(stock, f"{p}_proj"), kind) for p in "qkv"])
    ours.upgrade_state_dict_named(packed, "a")
    assert {name: value.tolist() for name, value in packed.items()} == {
        f"a.{n}": v.tolist() for n, v in stock.state_dict().items()
    }


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError, match="embed_dim 10 is not a multiple of num_heads 4"):
        MultiheadAttention(10, 4)
