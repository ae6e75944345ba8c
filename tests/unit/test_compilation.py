"""Test --compile: layers are compiled whole, fit all shapes, and learn what they learn without it.

torch's backend "eager" traces the layers and runs what it has traced as it is; "aot_eager" also traces their
backward pass. tests/commands/test_compile.py has the default backend, which writes and compiles code.
"""

import copy
import importlib.util
import shutil
from types import SimpleNamespace

import pytest
import torch
from fairseq.trainer import Trainer
from torch._inductor import cpp_builder, exc

from modular_fairseq.benchmark.configs import parse_model
from modular_fairseq.benchmark.jobs import build, random_batch, random_task, start_training
from modular_fairseq.training import compilation
from modular_fairseq.training.compilation import compile_layers
from modular_fairseq.training.gate_trainer import gate_trainer_of
from modular_fairseq_cli.errors import UsageError
from tests.compiling import compiling

pytestmark = pytest.mark.cpu_only("the layers are compiled for the CPU")

TASK = random_task(40, 40)
OTHER_SHAPES = range(4, 8)
ARGS = SimpleNamespace(device="cpu", seed=1, beam=5, steps=5, length=9)
# Random numbers of compiled layers are others, so there is no dropout here.
SMALL = "--encoder-layers 1 --decoder-layers 1 --dropout 0"
PLAIN = f"modular_transformer_tiny_cpu {SMALL}"
MAE = f"mae_transformer_tiny_cpu {SMALL} --mae-gate-dropout 0"


@pytest.fixture(autouse=True)
def counters():
    """Return torch's counters of compiled programs and graph breaks, which start at 0."""
    with compiling() as found:
        yield found


def start(model, flags=""):
    cfg = parse_model(f"{model} {flags}".rstrip(), TASK, ARGS).own
    return start_training(build(model, cfg, TASK), cfg, TASK)


def losses(trainer, numbers=range(4)):
    """Take updates and G steps on batches of various shapes, and return the losses."""
    gates, found = gate_trainer_of(trainer), []
    if gates is not None:
        gates.paused = True
    for number in numbers:
        batch = random_batch(TASK, 4 + number, 7 + number % 3, number)
        torch.manual_seed(number)
        if gates is not None and gates.alternates and number % 2:
            gates.g_step([batch])
        found.append(trainer.train_step([batch])["loss"])
    return found


@pytest.mark.parametrize(
    ("model", "programs", "backend"),
    [
        (f"modular_transformer_tiny_cpu {SMALL} --encoder-layers 2 --decoder-layers 2", 5, "eager"),
        (f"{PLAIN} --bf16 --decoder-normalize-before", 3, "aot_eager"),
        (MAE, 10, "eager"),
        (f"{MAE} --mae-gate-norm batch", 10, "eager"),
        (f"mae_transformer_tiny_cpu {SMALL} --mae-gating uniform --no-residual --fp16", 3, "eager"),
        (f"dma_transformer_tiny_cpu {SMALL} --amp", 3, "eager"),
        (f"tim_transformer_tiny_cpu {SMALL}", 3, "eager"),
        (f"multistream_transformer_tiny_cpu {SMALL} --encoder-layers 4", 5, "eager"),
    ],
)
def test_layers_are_compiled_whole_and_learn_the_same(model, programs, backend, counters):
    plain, compiled = start(model), start(model)
    compile_layers(compiled.get_model(), backend=backend)
    assert losses(compiled) == pytest.approx(losses(plain), abs=1e-2)
    assert not counters["graph_break"] and not counters["unimplemented"]
    assert 1 < counters["stats"]["unique_graphs"] <= programs
    losses(compiled, OTHER_SHAPES)
    losses(plain, OTHER_SHAPES)
    assert counters["stats"]["unique_graphs"] <= programs
    if gates := gate_trainer_of(plain):
        expected = gates.train_monitor.values()
        assert len(expected) > 3 and gate_trainer_of(compiled).train_monitor.values() == pytest.approx(
            expected
        )
    ours, theirs = (each.get_model().state_dict() for each in (compiled, plain))
    assert list(ours) == list(theirs)
    tolerance = 2e-2 if {"--bf16", "--fp16", "--amp"} & {*model.split()} else 1e-5
    for name, value in theirs.items():
        if not name.endswith("k_proj.bias"):  # its gradient is 0 but for rounding
            torch.testing.assert_close(
                ours[name],
                value,
                atol=tolerance,
                rtol=tolerance,
                msg=lambda text, name=name: f"{name}: {text}",
            )


def test_copies_and_validations_are_not_compiled(counters):
    trainer = start(PLAIN)
    trainer.cfg.model.compile = True
    model = trainer.get_model()
    compile_layers(model, backend="eager")
    assert copy.deepcopy(model).encoder.layers[0]._compiled_call_impl is None
    trainer.valid_step(random_batch(TASK, 3, 5, 1))
    assert not counters["stats"]
    trainer.train_step([random_batch(TASK, 3, 5, 1)])
    assert counters["stats"]["unique_graphs"] > 0


def test_only_the_option_compiles(monkeypatch):
    compiled = []
    monkeypatch.setattr(compilation, "compile_layers", compiled.append)
    monkeypatch.setattr(compilation, "missing", lambda device: None)
    start(PLAIN)
    assert compiled == []
    trainer = start(PLAIN, "--compile")
    trainer.begin_epoch(2)
    assert compiled == [trainer.get_model()]
    cfg = parse_model(f"{PLAIN} --compile", TASK, ARGS).own
    trainer = Trainer(cfg, TASK, build(PLAIN, cfg, TASK), TASK.build_criterion(cfg.criterion))
    trainer.valid_step(random_batch(TASK, 3, 5, 1))  # as a program may that drives a Trainer itself
    trainer.begin_epoch(1)
    assert compiled[1:] == [trainer.get_model()]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--checkpoint-activations", "--checkpoint-activations does not work with --compile; leave one of"),
        ("--quant-noise-pq 0.1", "--quant-noise-pq does not work with --compile; leave one of them out"),
    ],
)
def test_options_that_do_not_go_together_are_refused(flags, sentence):
    with pytest.raises(UsageError, match=sentence):
        start(PLAIN, f"--compile {flags}")


def test_sharded_parameters_are_refused():
    trainer = start(PLAIN)
    trainer.cfg.model.compile = True
    trainer.cfg.distributed_training.ddp_backend = "fully_sharded"
    with pytest.raises(
        UsageError, match="--ddp-backend fully_sharded does not work with --compile; use c10d"
    ):
        compilation.compile_if_asked(trainer)


def test_what_torch_needs_is_asked_for_before_training(monkeypatch):
    def no_compiler():
        raise exc.InvalidCxxCompiler

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: "triton")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(shutil, "which", lambda name: name == "gcc" or None)
    monkeypatch.delenv("CC", raising=False)
    assert compilation.missing("cuda") is None
    for there, named, is_enough in (("clang", "", True), ("cc", "cc -m64", True), ("gcc", "cc -m64", False)):
        monkeypatch.setattr(shutil, "which", lambda name, there=there: name == there or None)
        monkeypatch.setenv("CC", named)
        assert (compilation.missing("cuda") is None) == is_enough
    assert "needs a C compiler; install gcc" in compilation.missing("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (6, 1))
    assert "compute capability 7.0" in compilation.missing("cuda")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install triton" in compilation.missing("cuda")
    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", no_compiler)
    with pytest.raises(UsageError, match=r"--compile needs a C\+\+ compiler; install g\+\+"):
        start(PLAIN, "--compile")
    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", lambda: "g++")
    assert compilation.missing("cpu") is None
