"""Test that a training continues only with the state of an optimizer that trained the same parameters."""

import pytest
import torch
from fairseq_cli import train
from omegaconf import OmegaConf, open_dict

from modular_fairseq.training.optimizer_state import OtherParametersError, compare_parameters, refusal
from modular_fairseq_cli.errors import UsageError
from tests.fairseq_commands import OPTIMIZE, TINY, going_on, run_generate, run_train, train_config, weights
from tests.watched_trainer import Watched

OTHER = "trained other parameters than this training would; continue with the options of the earlier training"
MAE = ["--arch", "mae_transformer"]


def test_a_training_of_some_layers_of_a_checkpoint_goes_on_and_translates(reversal_data, tmp_path):
    layers = ["--arch", "mae_transformer", "--encoder-layers", 3, "--decoder-layers", 2]
    run_train(reversal_data, *layers, "--max-epoch", 1, "--save-dir", tmp_path / "whole")
    start = ["--finetune-from-model", tmp_path / "whole/checkpoint_last.pt"]
    words = [*layers, "--encoder-layers-to-keep", "0,2", *start, "--save-dir", tmp_path / "some"]
    run_train(reversal_data, *words, "--max-epoch", 1)
    with going_on(tmp_path / "some"):
        run_train(reversal_data, *words, "--max-epoch", 2)
    assert len(run_generate(reversal_data, tmp_path / "some/checkpoint_last.pt")[0]) == 12
    found = weights(tmp_path / "some/checkpoint_last.pt")
    assert {key.split(".")[2] for key in found if key.startswith("encoder.layers.")} == {"0", "1"}


def test_an_adaptive_softmax_beside_shared_embeddings_goes_on_and_translates(reversal_data, tmp_path):
    adaptive = ["--criterion", "adaptive_loss", "--adaptive-softmax-cutoff", "6,10", "--save-dir", tmp_path]
    words = ["--arch", "modular_transformer", "--share-all-embeddings", *adaptive]
    common = [*TINY, *OPTIMIZE]
    smoothing = common.index("--label-smoothing")  # which this criterion does not have
    del common[smoothing : smoothing + 2]
    run_train(reversal_data, *words, "--max-epoch", 1, common=common)
    with going_on(tmp_path):
        run_train(reversal_data, *words, "--max-epoch", 2, common=common)
    assert len(run_generate(reversal_data, tmp_path / "checkpoint_last.pt")[0]) == 12
    words[2] = "--share-decoder-input-output-embed"
    with pytest.raises(UsageError, match="output-embed has no effect with --adaptive-softmax-cutoff, whose"):
        run_train(reversal_data, *words[:-1], tmp_path / "other", common=common)


@pytest.mark.parametrize("fp32", [[], ["--fp16", "--fp16-init-scale", 4, "--ema-fp32"]])
def test_ema_begins_with_the_weights_of_a_checkpoint_without_ema(reversal_data, tmp_path, fp32, caplog):
    run_train(reversal_data, *MAE, "--max-epoch", 1, "--save-dir", tmp_path / "first")
    start = tmp_path / "first/checkpoint_last.pt"
    words = ["--finetune-from-model", start, "--store-ema", "--ema-decay", 1, "--save-dir", tmp_path / "ema"]
    run_train(reversal_data, *MAE, *words, *fp32, "--max-epoch", 1)
    assert f"the checkpoint {start} has no moving average of the weights (EMA); the average" in caplog.text
    state = torch.load(tmp_path / "ema/checkpoint_last.pt", weights_only=False)
    kept, first = state["extra_state"]["ema"], weights(start)
    names = [name for name in kept if name.endswith("fc1.weight")]
    for name in names:
        rounding = 1e-3 if fp32 else 0  # of the weights that --fp16 trains
        torch.testing.assert_close(kept[name].float(), first[name], rtol=rounding, atol=1e-3 * rounding)
    assert not torch.equal(state["model"][names[0]].float(), first[names[0]])


@pytest.mark.parametrize("precision", ["", "--fp16 --fp16-init-scale 4"])
def test_a_training_whose_main_optimizer_has_the_gates_goes_on_as_such_only(
    reversal_data, tmp_path, precision
):
    """Version 0.1 called the training that is now joint_main joint. Its checkpoints say so."""
    arch = ["--arch", "mae_transformer", "--save-dir", tmp_path, *precision.split()]
    run_train(reversal_data, *arch, "--mae-training", "joint_main", "--max-epoch", 1)
    path = tmp_path / "checkpoint_last.pt"
    state = torch.load(path, weights_only=False)
    state["cfg"]["model"]["mae_training"] = "joint"
    torch.save(state, path)
    hypotheses, _ = run_generate(reversal_data, path)
    assert len(hypotheses) == 12
    for training in ("joint", "bcd"):
        with pytest.raises(UsageError, match="continue with --mae-training joint_main, or start") as refusal:
            run_train(reversal_data, *arch, "--mae-training", training, "--max-epoch", 2)
        assert str(path) in str(refusal.value)
    run_train(reversal_data, *arch, "--mae-training", "joint_main", "--max-epoch", 2)
    run_train(reversal_data, *arch, "--mae-training", "joint", "--max-epoch", 3, "--reset-optimizer")
    with pytest.raises(UsageError, match="did not train the gates, as --mae-training joint_main does"):
        run_train(reversal_data, *arch, "--mae-training", "joint_main", "--max-epoch", 4)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("--arch mae_transformer", "--arch mae_transformer --attention-type mae+dma"),
        (
            "--arch mae_transformer --mae-training joint_main",
            "--arch mae_transformer --attention-type mae+dma",
        ),
        ("--arch transformer", "--arch dma_transformer"),
    ],
)
def test_parameters_that_are_no_gates_are_not_called_gates(reversal_data, tmp_path, first, then):
    """The masks of DMA are new parameters."""
    criterion = "--criterion modular_cross_entropy"
    run_train(reversal_data, *first.split(), *criterion.split(), "--max-epoch", 1, "--save-dir", tmp_path)
    with pytest.raises(UsageError, match=OTHER) as refused:
        run_train(reversal_data, *then.split(), *criterion.split(), "--max-epoch", 2, "--save-dir", tmp_path)
    assert str(tmp_path / "checkpoint_last.pt") in str(refused.value) and "gates" not in str(refused.value)


@pytest.mark.parametrize(
    ("first", "then", "said"),
    [
        ("--fp16", "--bf16", "in fp16, and this training is in bf16; continue as it was trained"),
        ("--bf16", "--fp16", "in bf16, and this training is in fp16; continue as it was trained"),
        ("--fp16", "", "in fp16, and this training is in float32; continue as it was trained"),
        ("", "--amp", "in float32, and this training is in amp; continue as it was trained"),
    ],
)
def test_a_training_in_another_precision_is_named(reversal_data, tmp_path, first, then, said):
    """fairseq ends in an AssertionError about classes, or takes the optimizer for one of another model."""
    words = ["--arch", "modular_transformer", "--save-dir", tmp_path, "--fp16-init-scale", 4]
    run_train(reversal_data, *words, *first.split(), "--max-epoch", 1)
    with pytest.raises(UsageError, match=f"checkpoint_last.pt was trained {said}"):
        run_train(reversal_data, *words, *then.split(), "--max-epoch", 2)
    run_train(reversal_data, *words, *then.split(), "--max-epoch", 2, "--reset-optimizer")


def test_a_state_with_parameters_that_are_gone_is_refused_without_gates(reversal_data, tmp_path):
    """The optimizer of version 0.1 had further parameters with --tim-mechanisms 1."""
    args = ["--arch", "tim_transformer", "--tim-mechanisms", 1, "--tim-layers", "all", "--save-dir", tmp_path]
    run_train(reversal_data, *args, "--max-epoch", 1)
    path = tmp_path / "checkpoint_last.pt"
    state = torch.load(path, weights_only=False)
    state["last_optimizer_state"]["param_groups"][0]["params"] += [1000, 1001]
    torch.save(state, path)
    with pytest.raises(UsageError, match=OTHER):
        run_train(reversal_data, *args, "--max-epoch", 2)
    run_train(reversal_data, *args, "--max-epoch", 2, "--reset-optimizer")


@pytest.mark.parametrize(("first", "then"), [("gates+output", "gates"), ("gates", "gates+output")])
def test_fine_tuning_goes_on_with_the_same_part_of_the_model_only(reversal_data, tmp_path, first, then):
    """The main optimizer has the output projections with gates+output, and the gates with gates."""
    run_train(reversal_data, *MAE, "--max-epoch", 1, "--save-dir", tmp_path / "whole")
    args = [*MAE, "--finetune-from-model", tmp_path / "whole" / "checkpoint_last.pt", "--save-dir", tmp_path]
    run_train(reversal_data, *args, "--mae-finetune", first, "--max-epoch", 1)
    run_train(reversal_data, *args, "--mae-finetune", first, "--max-epoch", 2)
    with pytest.raises(UsageError, match=OTHER):
        run_train(reversal_data, *args, "--mae-finetune", then, "--max-epoch", 3)


@pytest.mark.parametrize("training", ["bcd", "joint"])
def test_a_composite_optimizer_trains_and_continues(reversal_data, tmp_path, training):
    """fairseq-hydra-train alone can set its groups. Its inner optimizer has neither groups nor a state."""

    def run(training, epochs):
        cfg = train_config(
            reversal_data, *MAE, "--mae-training", training, "--max-epoch", epochs, "--save-dir", tmp_path
        )
        schedule = {"_name": "fixed", "force_anneal": None, "lr_shrink": 0.1, "warmup_updates": 0}
        group = {
            "optimizer": cfg.optimizer,
            "lr_scheduler": {**schedule, "lr": [5e-3]},
            "lr_float": None,
        }
        with open_dict(cfg):
            cfg.optimizer = OmegaConf.create(
                {"_name": "composite", "groups": {"default": group}, "dynamic_groups": False}
            )
            cfg.lr_scheduler = OmegaConf.create({"_name": "pass_through"})
        train.main(cfg)

    run(training, 1)
    run(training, 2)
    state = torch.load(tmp_path / "checkpoint_last.pt", weights_only=False)
    assert state["extra_state"]["train_iterator"]["epoch"] == 3
    with pytest.raises(UsageError, match="did not train the gates"):
        run("joint_main", 3)


def test_a_vector_of_another_length_is_noticed():
    """With --fp16, fairseq's optimizer has one vector of all parameters, whose state torch does not check."""
    vector = torch.nn.Parameter(torch.zeros(7))
    optimizer = torch.optim.Adam([vector])
    vector.grad = torch.ones(7)
    optimizer.step()
    state = optimizer.state_dict()
    compare_parameters(optimizer, state)
    state["state"][0]["exp_avg"] = torch.zeros(9)
    with pytest.raises(OtherParametersError) as error:
        compare_parameters(optimizer, state)
    assert (error.value.saved, error.value.present, error.value.in_elements) == (9, 7, True)


@pytest.mark.parametrize("in_elements", [False, True])
def test_gates_are_named_if_the_parameters_differ_by_them(reversal_data, in_elements):
    for training, sign in (("joint", 1), ("joint_main", -1)):
        watched = Watched(reversal_data, "--mae-training", training)
        gates = sum(p.numel() for p in watched.gates) if in_elements else len(watched.gates)
        for more, names_gates in ((gates, True), (-gates, False), (gates + 1, False), (0, False)):
            error = OtherParametersError(5000 + sign * more, 5000, in_elements)
            assert ("gates" in str(refusal(watched.model, "x.pt", error))) == names_gates


@pytest.mark.parametrize("precision", [[], ["--amp", "--bf16"]], ids=["float32", "amp"])
@pytest.mark.parametrize(("first", "then"), [("adam", "torch_adam"), ("torch_adam", "adam")])
def test_a_training_goes_on_with_another_adam(reversal_data, tmp_path, first, then, precision):
    """A change between adam and torch_adam does not change the result of a training.

    The weights equal, up to rounding, those of a training that keeps its optimizer.
    """
    words = ["--arch", "modular_transformer", "--dropout", 0, *precision]
    parts, whole = tmp_path / "parts", tmp_path / "whole"
    run_train(reversal_data, *words, "--optimizer", first, "--max-epoch", 2, "--save-dir", whole)
    run_train(reversal_data, *words, "--optimizer", first, "--max-epoch", 1, "--save-dir", parts)
    with going_on(parts):
        run_train(reversal_data, *words, "--optimizer", then, "--max-epoch", 2, "--save-dir", parts)
    ours, theirs = (weights(folder / "checkpoint_last.pt") for folder in (parts, whole))
    before = weights(parts / "checkpoint1.pt")
    moved = [name for name in ours if (ours[name].float() - before[name].float()).abs().max() > 1e-3]
    assert moved and all(torch.allclose(ours[name], theirs[name], atol=1e-4) for name in moved)
