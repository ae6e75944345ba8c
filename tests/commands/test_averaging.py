"""Test that `modular-fairseq average` computes exact means, takes one model only, and never leaves half a
file.
"""

import copy
import os
import weakref
from argparse import Namespace
from collections import OrderedDict
from fractions import Fraction

import pytest
import torch

from modular_fairseq.training import averaging
from modular_fairseq.training.averaging import average_checkpoints, find_checkpoints
from modular_fairseq.training.checkpoints import load_checkpoint, save_checkpoint
from modular_fairseq_cli import main as cli
from modular_fairseq_cli.errors import UsageError
from tests.fairseq_commands import run_generate, run_train
from tests.hostile_checkpoints import full_disk
from tests.plugins import registries
from tests.refusals import refusal


def write(path, model=None, arch="some_arch", maximize=False, **extra):
    """Write a checkpoint with the given weights, or with a single number as its only weight."""
    model = (
        OrderedDict(model)
        if isinstance(model, dict)
        else OrderedDict(weight=torch.full((2,), float(model or 0)))
    )
    cfg = {
        "model": Namespace(arch=arch, _name=arch),
        "checkpoint": {"maximize_best_checkpoint_metric": maximize},
    }
    state = {
        "args": None,
        "cfg": cfg,
        "model": model,
        "last_optimizer_state": {"state": torch.zeros(9)},
        "extra_state": {},
        **extra,
    }
    torch.save(state, path)
    return str(path)


def error_of(*paths):
    with pytest.raises(UsageError) as caught:
        average_checkpoints(paths)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 3, 7])
def test_the_mean_is_the_exact_mean_rounded_once(tmp_path, dtype, count):
    torch.manual_seed(count)
    files = [(torch.randn(40) * 10 ** torch.randint(-2, 3, (40,))).to(dtype) for _ in range(count)]
    average = average_checkpoints([write(tmp_path / f"{i}.pt", {"w": w}) for i, w in enumerate(files)])[
        "model"
    ]["w"]
    exact = [
        sum(map(Fraction, column)) / count
        for column in zip(*(w.double().tolist() for w in files), strict=True)
    ]
    expected = torch.tensor([float(mean) for mean in exact], dtype=torch.float64)
    assert average.dtype == dtype
    if dtype == torch.float64:
        torch.testing.assert_close(average, expected, rtol=1e-15, atol=1e-15)
    else:
        assert average.equal(expected.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_mean_of_equal_checkpoints_is_the_checkpoint(tmp_path, dtype):
    weight = torch.randn(1000).to(dtype)
    paths = [write(tmp_path / f"{i}.pt", {"w": weight, "version": torch.tensor([3.0])}) for i in range(7)]
    average = average_checkpoints(paths)["model"]
    assert average["w"].equal(weight) and average["version"].item() == 3.0


def test_half_precision_does_not_overflow_in_the_sum(tmp_path):
    paths = [write(tmp_path / f"{i}.pt", {"w": torch.tensor([60000.0]).half()}) for i in range(3)]
    assert average_checkpoints(paths)["model"]["w"].item() == 60000.0  # float16 ends at 65504


def test_counters_are_those_of_the_last_file(tmp_path):
    def model(i):
        return {
            "norm.running_mean": torch.tensor([float(i)]),
            "norm.num_batches_tracked": torch.tensor(10 * i),
            "on": torch.tensor(i > 1),
        }

    average = average_checkpoints([write(tmp_path / f"{i}.pt", model(i)) for i in (1, 2, 4)])["model"]
    assert average["norm.running_mean"].equal(torch.tensor([7 / 3]))
    assert average["norm.num_batches_tracked"].equal(torch.tensor(40)) and average["on"].equal(
        torch.tensor(True)
    )


def test_tied_weights_stay_tied(tmp_path):
    def model(i):
        weight = torch.randn(100, 10, generator=torch.Generator().manual_seed(i))
        both = {"encoder.weight": weight, "decoder.weight": weight}
        return {**both, "first_rows": weight[:20], "other": weight.clone()}

    paths = [write(tmp_path / f"{i}.pt", model(i)) for i in range(3)]
    save_checkpoint(average_checkpoints(paths), tmp_path / "average.pt")
    average = load_checkpoint(tmp_path / "average.pt")["model"]
    assert (
        average["encoder.weight"].data_ptr()
        == average["decoder.weight"].data_ptr()
        != average["other"].data_ptr()
    )
    assert average["other"].equal(average["encoder.weight"])
    assert average["first_rows"].equal(average["encoder.weight"][:20])


def test_weights_tied_in_some_files_only_are_averaged_apart(tmp_path):
    tied = torch.tensor([1.0, 2.0])
    paths = [
        write(tmp_path / "1.pt", {"a": tied, "b": tied}),
        write(tmp_path / "2.pt", {"a": torch.tensor([4.0, 5.0]), "b": torch.tensor([7.0, 8.0])}),
        write(tmp_path / "3.pt", {"a": tied, "b": tied}),
    ]
    for order in (paths, paths[::-1], [paths[1], paths[0], paths[2]]):
        average = average_checkpoints(order)["model"]
        assert average["a"].tolist() == [2.0, 3.0] and average["b"].tolist() == [3.0, 4.0]


def test_everything_but_weights_and_optimizer_is_that_of_the_last_file(tmp_path):
    parts = [
        {"extra_state": {"epoch": i}, "task_state": {"n": i}, "optimizer_history": [{"num_updates": i}]}
        for i in (1, 2)
    ]
    paths = [write(tmp_path / f"{i}.pt", i, **copy.deepcopy(part)) for i, part in enumerate(parts)]
    assert {name: average_checkpoints(paths)[name] for name in parts[1]} == parts[1]
    last = copy.deepcopy(parts[1])
    last["extra_state"] |= {"ema": {"weight": torch.ones(1)}, "ema_fp32_params": {"weight": torch.ones(1)}}
    average = average_checkpoints([paths[0], write(tmp_path / "with_ema.pt", 2, **last)])
    assert {name: average[name] for name in parts[1]} == parts[1]  # the weights of an average have no EMA
    assert average["cfg"]["model"].arch == "some_arch" and average["args"] is None
    assert "last_optimizer_state" not in average


def test_one_file_at_a_time_is_in_memory(tmp_path, monkeypatch):
    earlier = []

    def load(path):
        assert all(tensor() is None for tensor in earlier)
        state = load_checkpoint(path)
        earlier.extend(
            [weakref.ref(state["model"]["weight"]), weakref.ref(state["last_optimizer_state"]["state"])]
        )
        return state

    monkeypatch.setattr(averaging, "load_checkpoint", load)
    average_checkpoints([write(tmp_path / f"{i}.pt", i) for i in range(4)])
    assert len(earlier) == 8


def test_different_models_are_refused_by_the_first_difference(tmp_path):
    two, three = {"a": torch.zeros(2), "b": torch.zeros(2)}, {"a": torch.zeros(2), "b": torch.zeros(3)}
    first = write(tmp_path / "first.pt", two)
    shape = write(tmp_path / "shape.pt", three)
    fewer = write(tmp_path / "fewer.pt", {"a": torch.zeros(2)})
    kind = write(tmp_path / "kind.pt", {"a": torch.zeros(2), "b": torch.zeros(2, dtype=torch.long)})
    arch = write(tmp_path / "arch.pt", two, arch="other_arch")
    cannot = "cannot be averaged"
    assert (
        f"{first} and {shape} {cannot}: b is floating-point (2,) in the one and floating-point (3,) in the"
        in error_of(first, shape)
    )
    assert f"{first} and {fewer} {cannot}: only {first} has b" in error_of(first, fewer)
    assert f"{fewer} and {first} {cannot}: only {first} has b" in error_of(fewer, first)
    assert "b is floating-point (2,) in the one and integer (2,) in the other" in error_of(first, kind)
    assert "--arch is some_arch in the one and other_arch in the other" in error_of(first, arch)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_checkpoint_that_diverged_is_refused(tmp_path, value):
    bad = write(tmp_path / "bad.pt", {"weight": torch.tensor([1.0, value])})
    good = write(tmp_path / "good.pt", 1, extra_state=None)
    assert f"{bad}: weight has numbers that are not finite" in error_of(good, bad)
    assert average_checkpoints([good])["model"]["weight"].tolist() == [1, 1]


def test_an_architecture_in_the_old_place_counts(tmp_path):
    first = write(tmp_path / "first.pt", 1, cfg=None, args=Namespace(arch="some_arch"))
    assert "--arch is some_arch in the one and other_arch" in error_of(
        first, write(tmp_path / "second.pt", 1, arch="other_arch")
    )
    assert average_checkpoints([first, write(tmp_path / "third.pt", 2)])["model"]["weight"].tolist() == [
        1.5,
        1.5,
    ]


def test_bad_inputs_are_refused(tmp_path):
    good = write(tmp_path / "good.pt", 1)
    (tmp_path / "short.pt").write_bytes((tmp_path / "good.pt").read_bytes()[:-100])
    torch.save({"model": {}, "args": Namespace(x=os.getpid)}, tmp_path / "hostile.pt")
    (tmp_path / "link.pt").symlink_to(good)
    assert "at least one" in error_of()
    assert "No such file" in error_of(good, tmp_path / "missing.pt")
    assert "short.pt" in error_of(good, tmp_path / "short.pt")
    assert "hostile.pt is refused" in error_of(good, tmp_path / "hostile.pt")
    assert "link.pt is given twice" in error_of(tmp_path / "link.pt", good)


def names(paths):
    return [os.path.basename(path) for path in paths]


def test_the_last_epochs_and_updates_are_found_by_number(tmp_path):
    epochs, updates = (
        [f"checkpoint{i}.pt" for i in (1, 2, 9, 10, 11)],
        [f"checkpoint_{i}.pt" for i in ("1_500", "2_1000", "9_950")],
    )
    others = [
        "checkpoint_best.pt",
        "checkpoint_last.pt",
        "checkpoint3.pt.12.tmp",
        "checkpoint12-shard0.pt",
        "average.pt",
    ]
    for name in epochs + updates + others:
        (tmp_path / name).touch()
    assert names(find_checkpoints(tmp_path, "epoch", 3)) == [
        "checkpoint9.pt",
        "checkpoint10.pt",
        "checkpoint11.pt",
    ]
    assert names(find_checkpoints(tmp_path, "epoch", 2, upper_bound=10)) == [
        "checkpoint9.pt",
        "checkpoint10.pt",
    ]
    assert names(find_checkpoints(tmp_path, "update", 2)) == ["checkpoint_9_950.pt", "checkpoint_2_1000.pt"]
    assert names(find_checkpoints(tmp_path, "update", 2, upper_bound=999)) == [
        "checkpoint_1_500.pt",
        "checkpoint_9_950.pt",
    ]
    for kind, count, bound, found in (("epoch", 6, None, 5), ("epoch", 5, 10, 4), ("update", 4, None, 3)):
        refusal = f"--num-{kind}-checkpoints {count} needs more checkpoints than the {found} in "
        with pytest.raises(UsageError, match=refusal):
            find_checkpoints(tmp_path, kind, count, bound)
    with pytest.raises(UsageError, match="must be at least 1"):
        find_checkpoints(tmp_path, "epoch", 0)


def test_a_negative_metric_is_read_from_the_name(tmp_path):
    for value in ("-0.200", "0.100", "-0.300"):
        write(tmp_path / f"checkpoint.best_mcc_{value}.pt", maximize=True)
    assert names(find_checkpoints(tmp_path, "best", 2)) == [
        "checkpoint.best_mcc_-0.200.pt",
        "checkpoint.best_mcc_0.100.pt",
    ]


@pytest.mark.parametrize(
    ("metric", "maximize", "best"),
    [("bleu", True, ["27.3412", "101.0000"]), ("nll_loss", False, ["9.5001", "4.1000"])],
)
def test_the_best_are_best_by_the_metric_of_the_run(tmp_path, metric, maximize, best):
    for value in ("4.1000", "9.5001", "27.3412", "101.0000"):
        write(tmp_path / f"checkpoint.best_{metric}_{value}.pt", maximize=maximize)
    write(tmp_path / "checkpoint_best.pt")
    assert names(find_checkpoints(tmp_path, "best", 2)) == [
        f"checkpoint.best_{metric}_{value}.pt" for value in best
    ]


def test_the_best_one_is_checkpoint_best_if_no_others_are_kept(tmp_path):
    write(tmp_path / "checkpoint_best.pt")
    assert names(find_checkpoints(tmp_path, "best", 1)) == ["checkpoint_best.pt"]
    with pytest.raises(UsageError, match="than the 0 in"):
        find_checkpoints(tmp_path, "best", 2)


def test_the_best_by_two_metrics_are_refused(tmp_path):
    write(tmp_path / "checkpoint.best_bleu_27.3412.pt", maximize=True)
    write(tmp_path / "checkpoint.best_loss_3.1000.pt")
    with pytest.raises(UsageError, match="best by bleu and by loss; give the files"):
        find_checkpoints(tmp_path, "best", 1)


def average(*args):
    cli.main(["average", *map(str, args)])


def test_the_command_averages_and_says_what_it_reads(tmp_path, capsys):
    for i in (1, 2, 3):
        write(tmp_path / f"checkpoint{i}.pt", i)
    average("--inputs", tmp_path, "--num-epoch-checkpoints", 2, "--output", tmp_path / "average.pt")
    assert load_checkpoint(tmp_path / "average.pt")["model"]["weight"].tolist() == [2.5, 2.5]
    assert capsys.readouterr().out.splitlines() == [
        f"read {tmp_path}/checkpoint2.pt (1 of 2)",
        f"read {tmp_path}/checkpoint3.pt (2 of 2)",
        f"wrote {tmp_path}/average.pt, the average of 2 checkpoints",
    ]


def test_the_command_refuses_what_makes_no_sense(tmp_path, capsys):
    files = [write(tmp_path / f"checkpoint{i}.pt", i) for i in (1, 2)]
    before = {path: (tmp_path / path).read_bytes() for path in os.listdir(tmp_path)}
    output = ("--output", tmp_path / "average.pt")
    assert "is one of the inputs" in refusal(
        average, "--inputs", *files, "--output", f"{tmp_path}/./checkpoint1.pt"
    )
    for none in ([], ["--num-epoch-checkpoints", 1]):
        said = refusal(average, "--inputs", tmp_path / "none", *none, *output)
        assert "none does not exist; give checkpoint files, or a folder of them and a --num option" in said
    assert "is a folder; add a --num option" in refusal(average, "--inputs", tmp_path, *output)
    assert "chooses from one folder" in refusal(
        average, "--inputs", *files, "--num-epoch-checkpoints", 1, *output
    )
    assert "chooses from one folder" in refusal(
        average, "--inputs", tmp_path, tmp_path, "--num-epoch-checkpoints", 1, *output
    )
    assert "--checkpoint-upper-bound needs" in refusal(
        average, "--inputs", *files, "--checkpoint-upper-bound", 1, *output
    )
    assert "or its folder does not exist" in refusal(
        average, "--inputs", *files, "--output", tmp_path / "nowhere" / "average.pt"
    )
    assert "is a folder" in refusal(average, "--inputs", *files, "--output", tmp_path)
    assert {path: (tmp_path / path).read_bytes() for path in os.listdir(tmp_path)} == before
    assert "read" not in capsys.readouterr().out  # it is refused before any file is read


PLUGIN = """
from modular_fairseq.models.registry import register_attention
@register_attention("agreeing", "gate", must_agree={".steps": "they count other steps"})
def build(options, place):
    return None
"""


def test_a_plugin_says_which_weights_must_agree(tmp_path, monkeypatch):
    plugin = tmp_path / "plugin_whose_weights_agree"
    plugin.mkdir()
    (plugin / "__init__.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    files = [write(tmp_path / f"{steps}.pt", {"gate.steps": torch.tensor([steps])}) for steps in (1, 2)]
    command = ("--inputs", *files, "--output", tmp_path / "average.pt")
    with registries():
        sentence = refusal(average, *command, "--user-dir", plugin)
    assert sentence.endswith("cannot be averaged: they count other steps; give checkpoints from after that")
    average(*command)
    assert load_checkpoint(tmp_path / "average.pt")["model"]["gate.steps"].tolist() == [2]
    assert "there is no such folder" in refusal(average, *command, "--user-dir", tmp_path / "nowhere")


def test_a_full_disk_leaves_the_earlier_average(tmp_path, monkeypatch):
    files = [write(tmp_path / f"{i}.pt", i) for i in (1, 2)]
    output = tmp_path / "average.pt"
    average("--inputs", *files, "--output", output)
    old, listing = output.read_bytes(), sorted(os.listdir(tmp_path))

    monkeypatch.setattr(torch, "save", full_disk)
    assert "No space left on device" in refusal(average, "--inputs", *files, "--output", output)
    assert output.read_bytes() == old and sorted(os.listdir(tmp_path)) == listing


def test_fairseq_translates_and_trains_with_it(tmp_path, reversal_data):
    options = ("--arch", "transformer", "--share-all-embeddings", "--max-epoch", 3, "--eval-bleu")
    run_train(reversal_data, *options, "--save-dir", tmp_path)
    averaged = tmp_path / "average.pt"
    average("--inputs", tmp_path, "--num-epoch-checkpoints", 2, "--output", averaged)

    two, three, weights = (
        load_checkpoint(tmp_path / f"{name}.pt")["model"]
        for name in ("checkpoint2", "checkpoint3", "average")
    )
    assert all(weights[name].equal(((two[name].double() + three[name]) / 2).float()) for name in two)
    assert (
        weights["encoder.embed_tokens.weight"].data_ptr()
        == weights["decoder.output_projection.weight"].data_ptr()
    )
    assert averaged.stat().st_size < 0.5 * (tmp_path / "checkpoint3.pt").stat().st_size
    hypotheses, _ = run_generate(reversal_data, averaged)
    assert len(hypotheses) == 12
    run_train(
        reversal_data,
        *options,
        "--no-save",
        "--finetune-from-model",
        averaged,
        "--save-dir",
        tmp_path / "tuned",
    )
