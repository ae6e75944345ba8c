"""Test modules/dropout.py, and where models drop out."""

import pytest
import torch
from fairseq.modules.fairseq_dropout import FairseqDropout

from modular_fairseq.modules.attention import MultiheadAttention
from modular_fairseq.modules.dropout import Dropout, GrowingDropout
from modular_fairseq.modules.independent_mechanisms import InterMechanismAttention
from modular_fairseq_cli.errors import UsageError
from tests.helpers import build


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9999])
@pytest.mark.parametrize("size", [200_003, 1_000_000])
def test_share_of_zeros_and_scale(p, size):
    torch.manual_seed(0)
    x = torch.ones(size, requires_grad=True)
    y = Dropout(p).train()(x)
    zeros = (y == 0).float().mean().item()
    assert zeros == pytest.approx(p, abs=4 * (p * (1 - p) / size) ** 0.5)
    torch.testing.assert_close(
        y[y != 0], torch.full_like(y[y != 0], 1 / (1 - p)), rtol=1e-4 if p < 0.99 else 0.1, atol=0
    )
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


def test_neighbours_are_independent():
    """Four neighbouring elements come from one random number."""
    torch.manual_seed(0)
    kept = (Dropout(0.5).train()(torch.ones(400_000)) != 0).view(-1, 4).float()
    correlation = torch.corrcoef(kept.t())
    assert (correlation - torch.eye(4)).abs().max() < 0.01


def test_the_seed_decides_and_calls_differ():
    x, dropout = torch.ones(1000), Dropout(0.3).train()
    torch.manual_seed(1)
    first, second = dropout(x), dropout(x)
    torch.manual_seed(1)
    assert torch.equal(dropout(x), first) and not torch.equal(first, second)


def test_nothing_is_dropped_outside_training_and_everything_with_probability_one():
    x = torch.randn(5, 7)
    assert torch.equal(Dropout(0.3).eval()(x), x)
    assert torch.equal(Dropout(0.0).train()(x), x)
    assert torch.equal(Dropout(1.0).train()(x), torch.zeros(5, 7))
    assert Dropout(0.3).train()(x.half()).dtype == torch.float16


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("retained", [False, True])
def test_attention_weights_are_dropped_with_their_probability(need_weights, retained):
    """All keys get the weight 1 / S, and the value of key s is the unit vector s, so outputs are weights."""
    size, p = 160, 0.3
    attention = MultiheadAttention(size, 1, dropout=p, bias=False, self_attention=True).train(not retained)
    attention.dropout_module.apply_during_inference = retained
    for projection in (attention.q_proj, attention.k_proj):
        torch.nn.init.zeros_(projection.weight)
    for projection in (attention.v_proj, attention.out_proj):
        torch.nn.init.eye_(projection.weight)
    x = torch.eye(size).unsqueeze(1).repeat(1, 4, 1)  # [S, B, S]
    torch.manual_seed(0)
    found, weights = attention(x, x, x, need_weights=need_weights)
    if need_weights:  # the weights that are returned are not dropped
        torch.testing.assert_close(weights, torch.full((4, size, size), 1 / size))
    assert (found == 0).float().mean().item() == pytest.approx(p, abs=0.01)
    torch.testing.assert_close(found[found != 0], torch.full_like(found[found != 0], 1 / size / (1 - p)))


def test_models_use_it_everywhere():
    dropouts = [m for m in build("mae_transformer", dropout=0.2).modules() if isinstance(m, FairseqDropout)]
    assert len(dropouts) > 10 and all(type(m) is Dropout for m in dropouts)
    assert {m.p for m in dropouts} == {0.0, 0.1, 0.2}


def test_retained_dropout_stays_on_in_generation():
    model = build(dropout=0.5)
    model.make_generation_fast_(retain_dropout=True, retain_dropout_modules=["TransformerEncoderLayer"])
    x = torch.ones(100)
    assert (model.encoder.layers[0].dropout_module(x) == 0).any()
    assert torch.equal(model.decoder.dropout_module(x), x)


@pytest.mark.parametrize("updates", [0, 1, 5, 10, 20])
def test_attention_dropout_grows_in_every_attention_and_nothing_else_does(updates):
    sizes = {"encoder_layers": 6, "decoder_layers": 6, "attention_dropout": 0.4, "dropout": 0.2}
    for changes in ({"streams": 2, "stream_batched": True}, {"tim_layers": "all", "attention_type": "mae"}):
        constant = dict(build(**sizes, **changes).named_modules())
        model = build(attention_dropout_warmup_updates=10, **sizes, **changes)
        model.set_num_updates(updates)
        kinds = MultiheadAttention | InterMechanismAttention
        attentions = [module for module in model.modules() if isinstance(module, kinds)]
        grown = {id(m.dropout_module) for m in attentions}
        assert len(grown) == len(attentions) >= 18
        for name, module in model.named_modules():
            if id(module) in grown:
                assert module.p == pytest.approx(0.4 * min(1, updates / 10)) and module.module_name
            elif isinstance(module, FairseqDropout):
                assert type(module) is Dropout and module.p == constant[name].p


def test_growing_dropout_drops_the_share_that_its_update_gives():
    torch.manual_seed(0)
    dropout, x = GrowingDropout(0.4, 100).train(), torch.ones(100_000)
    for updates, share in ((None, 0.4), (0, 0.0), (25, 0.1), (100, 0.4), (101, 0.4)):
        if updates is not None:
            dropout.set_num_updates(updates)
        assert (dropout(x) == 0).float().mean().item() == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_dropout_warmup_updates": -1}, "it must be at least 0"),
        ({"attention_dropout": 0.0}, "has no effect with --attention-dropout 0"),
        ({"compile": True}, "does not work with --compile"),
    ],
)
def test_growing_attention_dropout_is_refused_where_it_cannot_work(changes, message):
    with pytest.raises(UsageError, match=message):
        build(**{"attention_dropout": 0.1, "attention_dropout_warmup_updates": 10} | changes)
