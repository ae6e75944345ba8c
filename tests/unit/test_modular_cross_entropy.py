"""Test which losses criterions/modular_cross_entropy.py adds, with which weight and when, and what it
refuses.
"""

import math
from types import SimpleNamespace

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.logging import metrics
from fairseq.models.fconv import FConvDecoder, FConvEncoder, FConvModel
from omegaconf import OmegaConf

from modular_fairseq.criterions import auxiliary
from modular_fairseq.criterions.modular_cross_entropy import ModularCrossEntropyCriterion
from modular_fairseq.models.dma_losses import semantic_masks
from modular_fairseq.models.registry import CRITERIA
from modular_fairseq.modules.mask_losses import measure
from modular_fairseq.training.criterion_check import check_command_line, check_criterion
from modular_fairseq_cli.errors import UsageError
from tests.helpers import LENGTHS, batch, build, build_stock, dictionary, task

PLAIN = {"kl_weight": 0.0, "qq_weight": 0.0, "xq_weight": 0.0, "diversity_weight": 0.0}
ONE_HEAD = {"encoder_attention_heads": 1, "decoder_attention_heads": 1}
TERMS = {"kl": 1, "qq": 1, "xq": -1, "diversity": 1}


DMA = {"attention_type": "dma"}


def criterion(sentence_avg=False, **changes):
    settings = {
        **vars(CRITERIA["modular_cross_entropy"]()),
        "label_smoothing": 0.1,
        "sentence_avg": sentence_avg,
        **changes,
    }
    options = OmegaConf.create(settings)
    made = ModularCrossEntropyCriterion.build_criterion(options, task())
    made.options = options  # for `trainer`
    return made


def dma(**changes):
    return build(attention_type="dma", **changes).double().train()


def gradient(model, loss_and_size_of_batches):
    """Return the gradient that fairseq's Trainer computes for an update.

    It is the sum of the gradients of all batches, divided by the sum of their sample sizes.
    """
    model.zero_grad()
    total = 0
    for loss, size, _ in loss_and_size_of_batches:
        loss.backward()
        total += size
    return torch.cat([p.grad.flatten() for p in model.parameters()]) / total


def split(sample, *parts):
    """Return the sentences in several batches, each as wide as its longest sentence."""
    batches = []
    for rows in map(list, parts):
        source, target = sample["net_input"]["src_tokens"][rows], sample["target"][rows]
        length = int(target.ne(1).sum(dim=1).max())
        net_input = {
            "src_tokens": source[:, -int(source.ne(1).sum(dim=1).max()) :],
            "src_lengths": sample["net_input"]["src_lengths"][rows],
            "prev_output_tokens": sample["net_input"]["prev_output_tokens"][rows][:, :length],
        }
        ntokens = int(target.ne(1).sum())
        batches.append(
            {
                "nsentences": len(rows),
                "ntokens": ntokens,
                "net_input": net_input,
                "target": target[:, :length].contiguous(),
            }
        )
    return batches


@pytest.mark.parametrize("model", [build, build_stock], ids=["ours", "stock"])
@pytest.mark.parametrize("training", [True, False])
def test_without_dma_it_is_fairseqs(model, training):
    model, fairseqs = (
        model().train(training),
        LabelSmoothedCrossEntropyCriterion(task(), False, 0.1, report_accuracy=True),
    )
    found, expected = (c(model, batch(LENGTHS)) for c in (criterion(report_accuracy=True), fairseqs))
    assert torch.equal(found[0], expected[0]) and found[1:] == expected[1:]


def test_the_loss_is_cross_entropy_plus_weighted_terms():
    weights = {"kl_weight": 0.3, "qq_weight": 2.0, "xq_weight": 0.5, "diversity_weight": 0.7}
    model, sample = dma(), batch(LENGTHS)
    loss, size, logged = criterion(**weights)(model, sample)
    nll, _, _ = criterion(**PLAIN)(model, sample)
    assert size == sample["ntokens"] and logged["loss"] == loss.detach()
    added = sum(sign * weights[f"{name}_weight"] * logged[name] for name, sign in TERMS.items())
    torch.testing.assert_close(loss, nll + added, atol=1e-12, rtol=0)
    assert all(abs(logged[name]) > 1e-3 and not logged[name].requires_grad for name in TERMS)
    # The losses have been taken, so no graph is kept.
    assert all(mask.seen is None for mask in semantic_masks(model).values())


def test_each_term_is_a_mean_over_modules_and_over_sentences_by_their_share():
    model, sample = dma(), batch(LENGTHS)
    asked = criterion(diversity_weight=0.1)
    asked(model, sample)
    model(**sample["net_input"])
    by_module = [measure([mask], mask.wanted) for mask in semantic_masks(model).values()]
    assert len(by_module) == 2 + 2 * 2
    _, _, logged = asked(model, sample)
    tokens = torch.tensor([t for _, t in LENGTHS])
    for name in TERMS:
        expected = (sum(losses[name].squeeze(0) for losses in by_module) / len(by_module) * tokens).sum()
        torch.testing.assert_close(logged[name], expected.detach(), atol=1e-10, rtol=0)


@pytest.mark.parametrize("chunk", [1, 7, 1000])
@pytest.mark.parametrize("changes", [{}, {"label_smoothing": 0.0}, {"ignore_prefix_size": 2}], ids=str)
def test_a_loss_in_chunks_is_the_same(chunk, changes):
    model, sample, rows = dma(), batch(LENGTHS), []
    asked, in_chunks = criterion(**changes), criterion(loss_chunk_size=chunk, **changes)
    model.decoder.output_projection.register_forward_hook(lambda _, x, y: rows.append(len(y.flatten(0, -2))))
    expected, found = asked(model, sample), in_chunks(model, sample)
    assert expected[1] == found[1] and expected[2].keys() == found[2].keys()
    for name in ("loss", "nll_loss", "kl"):
        torch.testing.assert_close(found[2][name], expected[2][name], atol=1e-4, rtol=1e-6)
    gradients = [gradient(model, [each]) for each in (found, expected)]
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-5)
    positions = sample["target"][:, changes.get("ignore_prefix_size", 0) :].numel()
    assert rows[0] == sample["target"].numel()  # without chunks
    once = rows[1 : 1 + math.ceil(positions / chunk)]
    assert max(once) <= chunk and sum(once) == positions
    assert sorted(rows[1:]) == sorted(2 * once)  # again in the backward pass

    model.eval()
    sums, tokens = (in_chunks(model, sample, reduce)[0] for reduce in (True, False))
    torch.testing.assert_close(asked(model, sample, reduce=False)[0], tokens, atol=1e-4, rtol=1e-6)
    torch.testing.assert_close(sums, tokens.sum(), atol=1e-4, rtol=1e-6)


def test_auxiliary_losses_belong_to_no_token():
    with pytest.raises(ValueError, match="auxiliary losses belong to no token; give reduce=True"):
        criterion()(dma(), batch(LENGTHS), reduce=False)


def test_what_needs_all_logits_is_refused_beside_chunks():
    with pytest.raises(UsageError, match="--report-accuracy needs all logits at once"):
        criterion(loss_chunk_size=5, report_accuracy=True)
    with pytest.raises(UsageError, match="--loss-chunk-size must be at least 0, not -1"):
        criterion(loss_chunk_size=-1)
    model, asked = build(), criterion(**PLAIN, loss_chunk_size=5)
    made = trainer(model, asked)
    check_command_line(made)
    # fairseq's base class of decoders has the method output_layer, too.
    made.get_model = lambda: FConvModel(
        FConvEncoder(dictionary()), FConvDecoder(dictionary(), convolutions=((8, 3),))
    )
    with pytest.raises(UsageError, match="--loss-chunk-size needs the decoder of a Transformer"):
        check_command_line(made)


@pytest.mark.parametrize("sentence_avg", [True, False])
def test_weights_do_not_depend_on_batches_or_update_freq(sentence_avg):
    """The gradient is the same for one batch, for several micro-batches, for another order, and for a doubled
    batch.
    """
    model, asked, sample = (
        dma(),
        criterion(sentence_avg, kl_weight=1.0, qq_weight=1.0, xq_weight=1.0),
        batch(LENGTHS),
    )
    whole = gradient(model, [asked(model, sample)])
    plain = gradient(model, [criterion(sentence_avg, **PLAIN)(model, sample)])
    assert (whole - plain).abs().max() > 1e-3
    for parts in ([[0, 1], [2, 3, 4]], [[4], [3], [2], [1], [0]], [[0, 1, 2, 3, 4, 0, 1, 2, 3, 4]]):
        found = gradient(model, (asked(model, part) for part in split(sample, *parts)))
        torch.testing.assert_close(found, whole, atol=1e-12, rtol=0)


def test_weights_and_warm_up_by_default():
    model, sample = dma(), batch(LENGTHS)
    explicit = criterion(kl_weight=0.01, qq_weight=0.1, xq_weight=0.1)
    for updates in (None, 0, 1999, 3999, 5000):
        model.num_updates = updates
        assert criterion()(model, sample)[0] == explicit(model, sample)[0]
    nll, model.num_updates = criterion(**PLAIN)(model, sample)[0], 1999
    half, model.num_updates = criterion()(model, sample)[0] - nll, 3999
    torch.testing.assert_close(2 * half, criterion()(model, sample)[0] - nll, atol=1e-10, rtol=0)


def test_a_batch_without_a_target_has_no_loss():
    model, sample = dma(), batch(LENGTHS)
    sample["target"].fill_(1)
    loss, _, _ = criterion()(model, sample)
    assert loss == 0


def test_validation_is_free_of_them():
    model, sample = dma().eval(), batch(LENGTHS)
    found, fairseqs = (
        criterion()(model, sample),
        LabelSmoothedCrossEntropyCriterion(task(), False, 0.1)(model, sample),
    )
    assert torch.equal(found[0], fairseqs[0]) and found[2].keys() == fairseqs[2].keys()


def test_weights_grow_from_zero():
    model, sample = dma(), batch(LENGTHS)
    nll, _, _ = criterion(**PLAIN)(model, sample)
    asked = criterion(aux_warmup_updates=10, kl_weight=1.0, qq_weight=0.0, xq_weight=0.0)
    whole, _, logged = asked(model, sample)  # as fairseq calls it outside training
    torch.testing.assert_close(whole - nll, logged["kl"], atol=1e-10, rtol=0)
    for updates, share in ((0, 0.1), (4, 0.5), (9, 1.0), (500, 1.0)):
        model.set_num_updates(updates)
        loss, _, again = asked(model, sample)
        assert again["kl"] == logged["kl"]
        torch.testing.assert_close(
            (loss - nll) / logged["kl"], torch.tensor(share, dtype=torch.float64), atol=1e-10, rtol=0
        )
    model.set_num_updates(0)
    loss, _, _ = criterion(aux_warmup_updates=0, kl_weight=1.0, qq_weight=0.0, xq_weight=0.0)(model, sample)
    torch.testing.assert_close(loss, whole, atol=1e-10, rtol=0)


def test_qq_at_intervals_has_the_same_weight_on_average():
    model, sample = dma(), batch(LENGTHS)
    asked = criterion(aux_warmup_updates=0, kl_weight=0.0, qq_weight=0.5, xq_weight=0.0, qq_interval=3)
    nll, _, _ = criterion(**PLAIN)(model, sample)
    added = []
    for updates in range(6):
        model.set_num_updates(updates)
        loss, _, logged = asked(model, sample)
        assert ("qq" in logged) == (updates % 3 == 0)
        added.append((loss - nll).item())
    every = 0.5 * criterion(qq_weight=0.5)(model, sample)[2]["qq"].item()
    assert added == pytest.approx([3 * every, 0, 0, 3 * every, 0, 0], abs=1e-10)


def test_options_of_the_bounds_reach_them():
    model, sample = dma(), batch(LENGTHS)
    every = {"diversity_weight": 0.1}
    usual = criterion(**every)(model, sample)[2]
    for change, changed in (
        ({"qq_densities": "gmm"}, "qq"),
        ({"qq_densities": "per_head"}, "qq"),
        ({"qq_pairs": 1}, "qq"),
        ({"qq_estimator": "released"}, "qq"),
        ({"qq_estimator": "clusters"}, "qq"),
        ({"xq_critic": "mean"}, "xq"),
        ({"xq_critic": "others"}, "xq"),
    ):
        found = criterion(**every, **change)(model, sample)[2]
        assert {name for name in TERMS if abs(found[name] - usual[name]) > 1e-9} == {changed}


def test_below_its_floor_qq_is_the_floor_and_has_no_gradient():
    model, sample = dma(), batch(LENGTHS)
    results = []
    for floor in (-math.inf, 9.0):
        asked = criterion(kl_weight=0.0, qq_weight=1.0, xq_weight=0.0, qq_floor=floor)
        results.append((asked(model, sample)[2]["qq"], gradient(model, [asked(model, sample)])))
    plain = gradient(model, [criterion(**PLAIN)(model, sample)])
    (_, with_qq), (value, without) = results
    assert (
        value / sample["ntokens"] == 9
        and torch.equal(without, plain)
        and (with_qq - plain).abs().max() > 1e-3
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"dma_clusters": 1},
        {},
        {"dma_posterior": "sample"},
        {"dma_posterior": "sample", "dma_sampled_scores": True, "dma_variance": "computed"},
    ],
    ids=str,
)
@pytest.mark.parametrize("wanted", [PLAIN, *({**PLAIN, name: 1.0} for name in PLAIN)], ids=str)
def test_every_parameter_gets_a_gradient_whatever_is_wanted(wanted, changes):
    """DistributedDataParallel stops if a parameter has no gradient."""
    model = dma(**changes)
    criterion(**wanted)(model, batch(LENGTHS))[0].backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


def test_parameters_whose_sum_is_infinite_in_half_precision_leave_the_loss_finite():
    model = build(attention_type="dma").train()
    masks = [p for name, p in model.named_parameters() if ".mask." in name]
    for parameter in masks:
        parameter.data.fill_(1e4)
    assert torch.cat([p.flatten() for p in masks]).half().sum().isinf()
    sample, made = batch(LENGTHS), criterion(**PLAIN)
    (losses,) = made.auxiliary
    losses.without_gradient = lambda model, weights: [p.half() for p in masks]
    assert made(model, sample)[0].isfinite()


def test_a_model_that_does_not_count_its_updates_has_the_final_weights(monkeypatch):
    """A model class of another plugin may not count them."""
    model, sample = dma(), batch(LENGTHS)
    made, model.num_updates = criterion(aux_warmup_updates=100), 0
    first = made(model, sample)[0]
    monkeypatch.setattr(auxiliary, "CountsUpdates", FConvModel)
    last = made(model, sample)[0]
    assert not torch.isclose(first, last)
    torch.testing.assert_close(last, criterion(aux_warmup_updates=0)(model, sample)[0])


def test_an_exception_leaves_no_losses_behind():
    model, sample = dma(), batch(LENGTHS)
    sample["target"] = sample["target"][:, :3]
    with pytest.raises(RuntimeError):
        criterion()(model, sample)
    assert all(mask.seen is None for mask in semantic_masks(model).values())


def test_all_is_logged_as_a_mean():
    metrics.reset()
    logs = [
        {
            "loss": 20.0,
            "nll_loss": 18.0,
            "ntokens": 4,
            "nsentences": 1,
            "sample_size": 4,
            "kl": 8.0,
            "xq": 0.4,
        },
        {
            "loss": 20.0,
            "nll_loss": 18.0,
            "ntokens": 6,
            "nsentences": 1,
            "sample_size": 6,
            "kl": 7.0,
            "xq": 0.6,
        },
    ]
    with metrics.aggregate() as found:
        ModularCrossEntropyCriterion.reduce_metrics(logs)
    values = found.get_smoothed_values()
    assert values["kl"] == 1.5 and values["xq"] == 0.1 and "qq" not in values
    assert values["loss"] == round(4 / math.log(2), 3)
    with metrics.aggregate() as found:  # two updates count by their sample sizes
        for log in logs:
            ModularCrossEntropyCriterion.reduce_metrics([log])
    assert found.get_smoothed_values() == values


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"kl_weight": -1.0}, "--kl-weight must be 0 or a positive number, not -1.0"),
        ({"qq_weight": float("nan")}, "--qq-weight must be 0 or a positive number, not nan"),
        ({"xq_weight": float("inf")}, "--xq-weight must be 0 or a positive number, not inf"),
        ({"aux_warmup_updates": -1}, "--aux-warmup-updates must be at least 0, not -1"),
        ({"qq_pairs": -1}, "--qq-pairs must be at least 0, not -1"),
        ({"qq_interval": 0}, "--qq-interval must be at least 1, not 0"),
        (
            {"qq_floor": float("nan")},
            "--qq-floor=nan: give a number, such as --qq-floor -2, or --qq-floor=-inf for",
        ),
        ({"qq_weight": 0.0, "qq_floor": -1.0}, "--qq-floor has no effect with --qq-weight 0; leave it out"),
        ({"qq_weight": 0.0, "qq_pairs": 2}, "--qq-pairs has no effect with --qq-weight 0; leave it out"),
        (
            {"xq_weight": 0.0, "xq_critic": "mean"},
            "--xq-critic has no effect with --xq-weight 0; leave it out",
        ),
        (
            {**PLAIN, "aux_warmup_updates": 10},
            "--aux-warmup-updates has no effect with --kl-weight 0 --qq-weight 0 --xq-weight 0; leave it out",
        ),
        ({"diversity_weight": -1.0}, "--diversity-weight must be 0 or a positive number, not -1.0"),
        (
            {"qq_weight": 0.0, "qq_estimator": "released"},
            "--qq-estimator has no effect with --qq-weight 0; leave it out",
        ),
        (
            {"qq_estimator": "released", "qq_floor": -1.0},
            "--qq-floor has no effect with --qq-estimator released; leave it out",
        ),
        (
            {"qq_estimator": "released", "qq_pairs": 2},
            "--qq-pairs has no effect with --qq-estimator released; leave it out",
        ),
        (
            {"qq_estimator": "clusters", "qq_densities": "gmm"},
            "--qq-densities has no effect with --qq-estimator clusters; leave it out",
        ),
    ],
)
def test_bad_settings_are_refused(changes, sentence):
    with pytest.raises(UsageError) as error:
        criterion(**changes)
    assert sentence in str(error.value)


def test_the_former_default_of_the_floor_is_no_wish_of_the_user():
    """A checkpoint of version 0.1 has it, whatever its model, and must be validated with its criterion."""
    asked_for = {
        floor: [option for each in criterion(qq_floor=floor).auxiliary for option in each.asked_for]
        for floor in (0.0, -2.0, -1.0)
    }
    assert asked_for == {0.0: [], -2.0: [], -1.0: ["--qq-floor"]}


def trainer(model, criterion):
    return SimpleNamespace(
        get_model=lambda: model,
        get_criterion=lambda: criterion,
        cfg=SimpleNamespace(
            model=model.cfg, criterion=getattr(criterion, "options", SimpleNamespace(_name="its_name"))
        ),
    )


@pytest.mark.parametrize(
    "changes", [{"kl_weight": 0.01}, {"qq_pairs": 2}, {"xq_critic": "mean"}, {"aux_warmup_updates": 10}]
)
@pytest.mark.parametrize("model", [build, build_stock], ids=["ours", "stock"])
def test_losses_of_dma_asked_of_another_model_are_refused(changes, model):
    (name,) = changes
    with pytest.raises(
        UsageError,
        match=f"--{name.replace('_', '-')} cannot have an effect, because this model has no losses of that "
        "kind; add --attention-type dma",
    ):
        check_criterion(trainer(model(), criterion(**changes)))
    for fine in (criterion(), criterion(**PLAIN), LabelSmoothedCrossEntropyCriterion(task(), False, 0.1)):
        check_criterion(trainer(model(), fine))


@pytest.mark.parametrize(
    ("changes", "options", "sentence"),
    [
        ({"dma_clusters": 1}, {"qq_weight": 0.5}, "--qq-weight has no effect with --dma-clusters 1"),
        ({"dma_clusters": 1}, {"xq_critic": "mean"}, "--xq-critic has no effect with --dma-clusters 1"),
        (ONE_HEAD, {"qq_floor": -1.0}, "--qq-floor has no effect with 1 attention head"),
        (ONE_HEAD, {"xq_critic": "others"}, "--xq-critic others needs at least 2 heads in every attention"),
        (
            {"encoder_attention_heads": 1},
            {"xq_critic": "others"},
            "--xq-critic others needs at least 2 heads in every attention",
        ),
        (ONE_HEAD, {"xq_critic": "mean"}, "--xq-critic mean has no effect with 1 attention head"),
        (
            {"dma_clusters": 1},
            {"diversity_weight": 0.5},
            "--diversity-weight has no effect with --dma-clusters 1",
        ),
        ({}, {"qq_pairs": 6}, "--qq-pairs 6 has no effect, as 4 heads have 6 pairs"),
        (
            {},
            {"qq_pairs": 12, "qq_densities": "gmm"},
            "--qq-pairs 12 has no effect, as 4 heads have 12 pairs",
        ),
    ],
)
def test_options_of_losses_that_are_always_zero_are_refused(changes, options, sentence):
    with pytest.raises(UsageError, match=sentence):
        check_criterion(trainer(dma(**changes), criterion(**options)))


def test_options_of_losses_that_are_not_zero_are_taken():
    for changes, options in (
        ({"dma_clusters": 1}, {"kl_weight": 0.5}),
        ({"dma_clusters": 1}, PLAIN),
        ({"encoder_attention_heads": 1}, {"xq_critic": "mean"}),
        ({}, {"qq_pairs": 5}),
        ({}, {"qq_pairs": 11, "qq_densities": "gmm"}),
    ):
        check_criterion(trainer(dma(**changes), criterion(**options)))


@pytest.mark.parametrize(
    ("changes", "options", "sentence"),
    [
        ({"mae_gate_lr": 0.2}, {}, "--mae-gate-lr has no effect without --attention-type mae"),
        (
            {"tim_layers": "all", "tim_mechanisms": 1, "tim_no_competition": True},
            {},
            "--tim-no-competition has no effect with --tim-mechanisms 1",
        ),
        (
            {"attention_type": "mae", "mae_training": "joint_main", "mae_gate_lr": 0.2},
            {},
            "--mae-gate-lr has no effect with --mae-training joint_main",
        ),
        (
            {"attention_type": "mae", "mae_gating": "uniform", "mae_gate_loss": "sentence"},
            {},
            "--mae-gate-loss has no effect with --mae-gating uniform",
        ),
        (DMA, {"qq_weight": 0.0, "qq_floor": 0.0}, "--qq-floor has no effect with --qq-weight 0"),
        (
            DMA,
            {"qq_estimator": "released", "qq_floor": 0.0},
            "--qq-floor has no effect with --qq-estimator released",
        ),
        ({}, {"qq_floor": 0.0}, "--qq-floor cannot have an effect"),
    ],
)
def test_an_option_of_old_checkpoints_is_refused_on_the_command_line_where_it_has_no_effect(
    changes, options, sentence
):
    """A checkpoint may hold it, so the model and the criterion are built."""
    asked = trainer(build(**changes), criterion(**options))
    with pytest.raises(UsageError, match=sentence):
        check_command_line(asked)


def test_a_former_default_on_the_command_line_is_taken_where_it_has_an_effect():
    check_command_line(trainer(build(**DMA), criterion(qq_floor=0.0)))
    model = build(attention_type="mae", mae_gate_lr=0.2, mae_gate_loss="sentence")
    check_command_line(trainer(model, criterion()))


def test_a_criterion_that_leaves_the_losses_out_is_refused():
    with pytest.raises(
        UsageError,
        match="losses that --criterion its_name does not add; use --criterion modular_cross_entropy",
    ):
        check_criterion(trainer(dma(), LabelSmoothedCrossEntropyCriterion(task(), False, 0.1)))
    for fine in (criterion(), criterion(**PLAIN)):
        check_criterion(trainer(dma(), fine))


ADAPTIVE = {"adaptive_softmax_cutoff": "10,25", "share_decoder_input_output_embed": False}


def test_losses_of_a_mechanism_are_added_to_that_of_an_adaptive_softmax():
    weights = {f"{name}_weight": 0.5 for name in TERMS}
    model, sample = dma(**ADAPTIVE), batch(LENGTHS)
    loss, _, logged = criterion(label_smoothing=0.0, **weights)(model, sample)
    nll, _, _ = criterion(label_smoothing=0.0, **PLAIN)(model, sample)
    added = sum(0.5 * sign * logged[name] for name, sign in TERMS.items())
    assert abs(added) > 1
    torch.testing.assert_close(loss, nll + added, atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    "changes", [{"label_smoothing": 0.1}, {"label_smoothing": 0.0, "loss_chunk_size": 5}]
)
def test_what_needs_all_words_is_refused_with_an_adaptive_softmax(changes):
    name = "--loss-chunk-size 5" if "loss_chunk_size" in changes else "--label-smoothing 0.1"
    with pytest.raises(UsageError, match=f"{name} needs the probabilities of all words"):
        check_command_line(trainer(build(**ADAPTIVE), criterion(**PLAIN, **changes)))
    made = trainer(build(**ADAPTIVE), criterion(**PLAIN, label_smoothing=0.0))
    check_command_line(made)
