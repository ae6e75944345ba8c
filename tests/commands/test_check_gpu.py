"""Test `modular-fairseq check-gpu` with --device cpu: its parts, what they find, and what it refuses."""

import json
import math
import re
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from modular_fairseq.benchmark.command import PRECISIONS
from modular_fairseq.benchmark.comparison import F_STEP, G_STEP, SEARCH, STOCK, TRAINING, evaluate
from modular_fairseq.benchmark.configs import parse_model
from modular_fairseq.benchmark.jobs import random_batch, random_task, training_jobs
from modular_fairseq.device_check import check, command, formats, outputs, speed
from modular_fairseq.models import layers
from modular_fairseq.training import compilation
from modular_fairseq_cli import main as cli

ONE_LAYER = " --encoder-layers 1 --decoder-layers 1"
MAE, PLAIN = f"mae_transformer_tiny_cpu{ONE_LAYER}", f"modular_transformer_tiny_cpu{ONE_LAYER}"
SMALL = ["--device", "cpu", "--no-demo", "--updates", "20", "--rounds", "1"]
SMALL += ["--sentences", "3", "--length", "5"]


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """Keep searches small, and return the models that would be compiled.

    A compiler takes minutes. tests/commands/test_compile.py and tests/unit/test_compilation.py compile.
    """
    models = []
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "search_sentences": 2,
            "steps": 4,
            "source_types": 99,
            "target_types": 99,
        }.items():
            patch.setitem(command.SIZES, name, value)
        patch.setattr(compilation, "compile_layers", models.append)
        yield models


def leave_out(patch, *parts):
    for part in parts:
        patch.setattr(check.Check, part, lambda self: iter(()))


def run(folder, *words):
    """Run the command; return its last sentence if it fails, the page and the JSON report."""
    try:
        cli.main(["check-gpu", *SMALL, "--out", str(folder), *words])
        refusal = None
    except SystemExit as exit:
        refusal = exit.code
    return refusal, (folder / "check.txt").read_text(), json.loads((folder / "check.json").read_text())


def test_the_page_and_the_report_have_all_parts(tmp_path, compiled):
    before = len(compiled)
    refusal, page, report = run(tmp_path, MAE)
    assert len(compiled) > before + 1  # to learn, and to be timed
    assert refusal is None and page.endswith("all checks passed\n")
    found = [report["outputs"][f"{MAE}, {name}"] for name in ("float32", "float64")]
    assert [each["gradient"] for each in found] == [0, 0]  # the CPU against itself
    assert found[0]["limit"] > found[1]["limit"] and found[0]["length"] == 5
    formats_of_models = {"stock": PRECISIONS, MAE: [*PRECISIONS, "compiled"]}
    steps = [f"{model}, {name}" for model, names in formats_of_models.items() for name in names]
    assert list(report["formats"]) == steps
    losses = [report["formats"][step]["loss"] for step in steps]
    assert all(3 < loss < 6 for loss in losses) and len(set(losses)) > 5  # formats round differently
    assert list(report["speed"]) == [f"{MAE}, {name}" for name in formats_of_models[MAE]]
    for found in report["speed"].values():
        assert found["operations"] > 1e6 and found["tokens_per_second"] > 0
    assert f"torch: {torch.__version__}" in page and "F step" in page


def test_what_differs_from_the_cpu_or_from_float32_fails(tmp_path, monkeypatch):
    def another(model, cfg, task, device, dtype, *size):
        logits = 2e-4 if dtype is torch.float32 else 0.0
        return outputs.Difference(0.0, logits, 2e-4, "fc1.weight", outputs.GRADIENT_LIMITS[dtype], *size)

    def drifting(model, cfg, *rest):
        ours = model == PLAIN and cfg.common.fp16
        return formats.Training([math.nan] * 3 + [7.0] * 30 + [7.0 + 0.06 * ours] * 20)

    monkeypatch.setattr(check, "compare_outputs", another)
    monkeypatch.setattr(check, "train", drifting)
    leave_out(monkeypatch, "_speed")
    refusal, page, _ = run(tmp_path, PLAIN)
    assert refusal is not None and "3 of the checks failed" in refusal
    assert [line for line in page.splitlines() if "FAILED" in line] == [
        f"    {PLAIN}, float32: loss 0.0e+00, logits 2.0e-04, gradient 2.0e-04 (fc1.weight)   <- FAILED",
        f"    {PLAIN}, float64: loss 0.0e+00, logits 0.0e+00, gradient 2.0e-04 (fc1.weight)   <- FAILED",
        f"    {PLAIN}, fp16: 7.0600 (+0.0600)   <- FAILED",
    ]
    failed = f"outputs of {PLAIN}, float32; outputs of {PLAIN}, float64; formats of {PLAIN}, fp16"
    assert page.splitlines()[-1] == f"failed: {failed}"


def test_a_format_may_drift_as_far_as_stock_does(tmp_path, monkeypatch):
    def drifting(model, cfg, *rest):
        return formats.Training([7.0 + 0.2 * cfg.common.bf16 * (1 if model == PLAIN else 0.1)] * 30)

    monkeypatch.setattr(check, "train", drifting)
    monkeypatch.setattr(check, "PRECISIONS", {name: PRECISIONS[name] for name in ("float32", "bf16")})
    leave_out(monkeypatch, "_outputs", "_speed")
    _, page, _ = run(tmp_path, PLAIN)
    assert "bf16: 7.2000 (+0.2000)   <- FAILED" in page

    def far(model, cfg, *rest):
        return formats.Training([7.0 + 0.21 * cfg.common.bf16] * 30)

    monkeypatch.setattr(check, "train", far)  # stock has no format at all that is so far from float32
    _, page, _ = run(tmp_path, PLAIN)
    assert page.count("bf16: 7.2100 (+0.2100)   <- FAILED") == 2

    def together(model, cfg, *rest):
        return formats.Training([7.0 + 0.19 * cfg.common.bf16] * 30)

    monkeypatch.setattr(check, "train", together)
    _, page, _ = run(tmp_path, PLAIN)
    assert "bf16: 7.1900 (+0.1900)\n" in page and "FAILED" not in page


@pytest.mark.parametrize(
    ("losses", "norms", "finite"),
    [
        ([5.0] * 30, [], True),
        ([math.nan] * 3 + [5.0] * 27, [1.0] * 9 + [math.inf], True),
        ([math.nan] * 4 + [5.0] * 26, [], False),
        ([5.0] * 29 + [math.inf], [], False),
        ([5.0] * 30, [1.0] * 8 + [math.nan] * 2, False),
    ],
)
def test_few_updates_and_g_steps_may_overflow(losses, norms, finite):
    found = formats.Training(losses, norms)
    assert found.is_finite is finite
    infinite, without = sum(map(math.isinf, losses)), sum(map(math.isnan, losses))
    assert f"{without} of 30 updates and" in found.left_out and f"and {infinite} losses" in found.left_out


def test_the_last_fifth_of_the_updates_have_g_steps():
    task = random_task(99, 99)
    args = SimpleNamespace(device="cpu", seed=1, beam=5, steps=5, length=5)
    for model, expected in (
        (f"{MAE} --mae-gate-interval 9", 5),
        (f"{MAE} --mae-training joint", 0),
        (PLAIN, 0),
    ):
        cfg = parse_model(model, task, args).own
        training = formats.train(model, cfg, task, 25, 3, 5)
        assert len(training.losses) == 25 and len(training.gate_norms) == expected
        assert training.is_finite and all(norm > 0 for norm in training.gate_norms)


@pytest.mark.parametrize("what", ["logits", "gradients"])
def test_what_is_no_number_does_not_pass(what, monkeypatch):
    """NaN is found wherever it is: a maximum of numbers with NaN depends on their order."""
    task, results, calls = random_task(99, 99), outputs._results, []
    cfg = parse_model(PLAIN, task, SimpleNamespace(device="cpu", seed=1, beam=5, steps=5, length=5)).own

    def of_a_broken_device(*arguments):
        found = results(*arguments)
        calls.append(found)
        if len(calls) == 1:
            broken = found.logits if what == "logits" else list(found.gradients.values())[-1]
            broken.fill_(math.nan)
        return found

    monkeypatch.setattr(outputs, "_results", of_a_broken_device)
    found = outputs.compare_outputs(PLAIN, cfg, task, "cpu", torch.float32, 3, 5)
    assert not found.passed and math.isnan(found.logits if what == "logits" else found.gradient)
    if what == "gradients":
        assert found.parameter == list(calls[0].gradients)[-1]


@pytest.mark.parametrize("what", ["weights", "gradients"])
def test_another_computation_is_found(what):
    """A weight matrix that differs by 1e-3 is found, and a gradient that differs by 5e-4 in float64."""
    task = random_task(99, 99)
    args = SimpleNamespace(device="cpu", seed=1, beam=5, steps=5, length=5)
    cfg = parse_model(f"{PLAIN} --dropout 0", task, args).own
    build = outputs.build

    def built(*arguments):
        model = build(*arguments)
        calls.append(model)
        if len(calls) == 2:
            weight = model.decoder.layers[0].fc1.weight
            if what == "weights":
                weight.data *= 1.001
            else:
                weight.register_hook(lambda gradient: gradient * 1.0005)
        return model

    for dtype in (torch.float32, torch.float64):
        calls = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(outputs, "build", built)
            found = outputs.compare_outputs(PLAIN, cfg, task, "cpu", dtype, 3, 5)
        assert found.passed == (what == "gradients" and dtype is torch.float32), found
        assert (found.logits > 1e-6) == (what == "weights") and found.gradient > 4e-4
        layer = calls[0].decoder.layers[0]
        assert layer.fc1.weight.dtype == dtype
        assert layer.activation_fn(torch.tensor(-1.0)) < 0  # no ReLU
        assert outputs.compare_outputs(PLAIN, cfg, task, "cpu", dtype, 3, 5).passed


def test_too_little_memory_is_one_sentence_and_the_check_goes_on(tmp_path, monkeypatch):
    def full(*arguments):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(check, "compare_outputs", full)
    leave_out(monkeypatch, "_formats", "_speed")
    refusal, page, report = run(tmp_path, PLAIN)
    assert refusal is not None and report["outputs"][f"{PLAIN}, float32"] == {"out_of_memory": True}
    assert f"{PLAIN}, float32: the GPU has too little memory; give smaller --sentences or --length" in page
    assert page.splitlines()[-1] == f"failed: outputs of {PLAIN}, float32; outputs of {PLAIN}, float64"


@pytest.mark.parametrize(
    ("broken", "said", "result"),
    [
        (lambda x: x * math.nan, "FloatingPointError: ", "error"),
        ("CUDA out of memory", "the GPU has too little memory; give smaller", "out_of_memory"),
        ("no kernel image is available\nSee", "RuntimeError: no kernel image is available   <-", "error"),
    ],
)
def test_a_step_that_fails_is_told_and_the_others_go_on(tmp_path, monkeypatch, broken, said, result):
    """The forward pass of models of this package fails, and stock's does not."""
    forward = layers.TransformerDecoderLayer.forward

    def fail(*args, **kwargs):
        if isinstance(broken, str):
            kind = torch.cuda.OutOfMemoryError if "memory" in broken else RuntimeError
            raise kind(broken)
        x, *rest = forward(*args, **kwargs)
        return broken(x), *rest

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(layers.TransformerDecoderLayer, "forward", fail)
    monkeypatch.setattr(check, "PRECISIONS", {"float32": ""})
    monkeypatch.setattr(check, "COMPILED", {})
    leave_out(monkeypatch, "_outputs", "_speed")
    refusal, page, report = run(tmp_path / "out", PLAIN)
    assert refusal.endswith(f"1 of the checks failed: formats of {PLAIN}, float32")
    assert said in page, page
    assert page.endswith(f"failed: formats of {PLAIN}, float32\n")
    assert (
        result in report["formats"][f"{PLAIN}, float32"] and report["formats"]["stock, float32"]["loss"] > 1
    )
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_demo_counts_if_it_ends_with_the_score_of_a_cpu(tmp_path, monkeypatch):
    scores = iter([(0, 98.0), (0, 20.0), (1, 98.0)])

    def demo(command, cwd, env, **streams):
        assert env["CUDA_VISIBLE_DEVICES"] == ""
        status, bleu = next(scores)
        folder = tmp_path / "demo" / "mae_transformer_tiny_cpu"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "score.json").write_text(json.dumps({"bleu": bleu}))
        assert command[-1] == "demo" and cwd == str(tmp_path)
        return SimpleNamespace(returncode=status)

    monkeypatch.setattr(check.subprocess, "run", demo)
    made = object.__new__(check.Check)
    made.args = SimpleNamespace(out=str(tmp_path), device="cpu")
    results = [made._run_demo() for _ in range(3)]
    assert [passed for _, _, passed in results] == [True, False, False]
    assert [text for _, text, _ in results] == [
        "BLEU 98.00",
        "BLEU 20.00",
        "ended with status 1; see demo.log",
    ]


def test_without_a_compiler_compiled_layers_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "missing", lambda device: "--compile needs a compiler; install one")
    monkeypatch.setattr(check, "train", lambda *arguments: formats.Training([7.0] * 30))
    leave_out(monkeypatch, "_outputs", "_speed")
    refusal, page, report = run(tmp_path, PLAIN)
    assert refusal is None and "left out: compiled layers; --compile needs a compiler; install one" in page
    assert len(report["formats"]) == 2 * len(PRECISIONS)


def test_speed_is_the_target_tokens_and_the_operations_of_one_step_by_its_median_time(monkeypatch):
    """The F steps of the MAE model alone decide its speed.

    The measured times are replaced by fixed ones. The median of the F steps is 2 s. Training steps of stock
    fairseq, G steps and beam searches take 8 or 9 s, so any of these would give another speed.
    """
    task = random_task(99, 99)
    args = SimpleNamespace(device="cpu", seed=1, beam=5, steps=5, sentences=3, length=5)
    configs = parse_model(MAE, task, args)
    times = {(copy, work): [9.0] * 3 for copy in STOCK for work in (TRAINING, SEARCH)}
    times |= {(MAE, F_STEP): [1.0, 7.0, 2.0], (MAE, G_STEP): [8.0] * 3, (MAE, SEARCH): [9.0] * 3}
    comparison = evaluate(MAE, "stock", times, interval=5)
    monkeypatch.setattr(speed, "compare", lambda *arguments: comparison)
    found = speed.measure_speed(MAE, configs, task, "float32", args)

    pairs = random_batch(task, 3, 5, seed=1)
    jobs, _ = training_jobs(MAE, configs.own, task, pairs)
    with FlopCounterMode(display=False) as counter:
        jobs[MAE, F_STEP]()
    assert found.operations == counter.get_total_flops() > 1e6
    assert found.tokens_per_second == (pairs["target"] != task.target_dictionary.pad()).sum() / 2.0
    assert found.comparison is comparison and found.utilisation is None and found.memory is None


def test_speed_is_told_in_one_line():
    rows = [speed.Comparison("m", "s", None, None, {}, [], [])]
    found = speed.Speed(rows[0], 1234.5, 10, 0.41, 3 << 29)
    assert str(found).endswith("1,234 target tokens/s, 41% of the speed of a large product, 1.50 GiB")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--updates", "19"], "--updates must be at least 20, not 19"),
        (["--length", "1"], "--length must be at least 2, not 1"),
        (["no_such_arch"], "'no_such_arch': a MODEL must begin with an arch"),
    ],
)
def test_what_cannot_be_checked_is_refused_in_one_sentence(tmp_path, words, sentence):
    with pytest.raises(SystemExit, match=re.escape(sentence)):
        cli.main(["check-gpu", *SMALL, "--out", str(tmp_path / "out"), *words])
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file/inside"):
        with pytest.raises(SystemExit, match=f"--out {out}: cannot be made .*; give another folder"):
            cli.main(["check-gpu", *SMALL, "--out", str(out), PLAIN])


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so(tmp_path):
    with pytest.raises(SystemExit, match="check-gpu needs a GPU, but torch finds none"):
        cli.main(["check-gpu", "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
