"""The parts of `modular-fairseq check-gpu`, and the page that they fill."""

import argparse
import gc
import math
import os
import platform
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from fairseq.tasks.translation import TranslationTask

from modular_fairseq.benchmark.command import PRECISIONS, default_models, device_name, package_versions
from modular_fairseq.benchmark.comparison import STOCK
from modular_fairseq.benchmark.configs import Configs, parse_model
from modular_fairseq.benchmark.jobs import random_task
from modular_fairseq.device_check.formats import train
from modular_fairseq.device_check.outputs import compare_outputs
from modular_fairseq.device_check.speed import measure_speed
from modular_fairseq.training.compilation import missing
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import finite, read_json, write_file, write_json
from modular_fairseq_cli.processes import python_module

# A format may differ from float32 by the first number of nats per token, whatever stock does, and by at most
# the second one.
SMALLEST_BAND, LARGEST_BAND = 0.05, 0.2
SMALL = 8, 16  # sentences, and tokens of a sentence, in float64, which some GPUs compute slowly
LOWEST_BLEU = 97.0  # BLEU that a demo reaches on a CPU, whatever the processor

STOCK_NAME = "stock"
COMPILED = {"compiled": "--compile"}  # layers in float32, compiled by torch.compile

Result = tuple[dict[str, Any], str, bool]  # for check.json, for check.txt, and whether the step passed
Step = tuple[str, dict[str, Any], str, bool]  # the same after the name of the step


class Check:
    """One run of the command. Every result is in the files as soon as it is known.

    Attributes:
        failures: what has failed, one phrase each.
    """

    def __init__(self, args: argparse.Namespace):
        self.args = args
        self.models = list(dict.fromkeys(args.models or default_models()))
        self.task: TranslationTask = random_task(args.source_types, args.target_types)
        for model in self.models:
            self._configs(model)  # refuses what cannot be built
        self.without_compiler = missing(args.device)
        self.formats = PRECISIONS | ({} if self.without_compiler else COMPILED)
        self.failures: list[str] = []
        self.lines: list[str] = []
        self.results: dict[str, Any] = {"machine": machine(args.device), "settings": vars(args)}

    def run(self) -> None:
        """Do all parts."""
        for name, value in self.results["machine"].items():
            self._say(f"{name}: {value}")
        if self.without_compiler:
            self._say(f"left out: compiled layers; {self.without_compiler}")
        self._part("outputs", "the device against the CPU, largest relative differences", self._outputs)
        self._part(
            "formats", f"cross-entropy after {self.args.updates} updates, in nats per token", self._formats
        )
        if not self.args.no_demo:
            self._part("demo", "a model that was trained on the device", self._demo)
        self._part("speed", "ratios of times to stock", self._speed)
        self._say("", f"failed: {'; '.join(self.failures)}" if self.failures else "all checks passed")

    def _part(self, name: str, title: str, steps: Callable[[], Iterator[Step]]) -> None:
        """Do the steps of a part, and write the result of each one."""
        self._say("", f"{name}: {title}")
        found = self.results.setdefault(name, {})
        for step, result, text, passed in steps():
            found[step] = result
            if not passed:
                self.failures.append(f"{name} of {step}")
            self._say(f"    {step}: {text}{'' if passed else '   <- FAILED'}")

    def _say(self, *lines: str) -> None:
        for line in lines:
            print(line, flush=True)
        self.lines += lines
        write_file(os.path.join(self.args.out, "check.txt"), "\n".join([*self.lines, ""]))
        write_json(os.path.join(self.args.out, "check.json"), self.results)

    def _configs(self, model: str, options: str = "") -> Configs:
        return parse_model(f"{model} {options}".rstrip(), self.task, self.args)

    def _outputs(self) -> Iterator[Step]:
        sizes = self.args.sentences, self.args.length
        smaller = [min(pair) for pair in zip(sizes, SMALL, strict=True)]
        for model in self.models:
            for dtype, size in ((torch.float32, sizes), (torch.float64, smaller)):
                step = f"{model}, {str(dtype).removeprefix('torch.')}"
                yield self._guarded(step, partial(self._compare_outputs, model, dtype, *size))

    def _compare_outputs(self, model: str, dtype: torch.dtype, sentences: int, length: int) -> Result:
        cfg = self._configs(model).own
        found = compare_outputs(model, cfg, self.task, self.args.device, dtype, sentences, length)
        text = (
            f"loss {found.loss:.1e}, logits {found.logits:.1e}, gradient {found.gradient:.1e} "
            f"({found.parameter})"
        )
        numbers = {k: finite(v) if isinstance(v, float) else v for k, v in asdict(found).items()}
        return numbers, text, found.passed

    def _formats(self) -> Iterator[Step]:
        bands: dict[str, float] = {}
        for model in (STOCK[0], *self.models):
            reference = math.nan  # no format passes if training in float32 needs too much memory
            for name in self.formats:
                if model == STOCK[0] and name in COMPILED:
                    continue
                step = f"{STOCK_NAME if model == STOCK[0] else model}, {name}"
                done = self._guarded(step, partial(self._train_in_format, model, name, reference, bands))
                if name == "float32":
                    reference = done[1].get("loss") or math.nan
                yield done

    def _train_in_format(self, model: str, name: str, reference: float, bands: dict[str, float]) -> Result:
        """Train a model in one number format, and compare its loss with the `reference`, which has float32.

        Stock comes first. It has the size of the first model, and fills the `bands`: differences that are
        accepted in each format.
        """
        configs = self._configs(self.models[0] if model == STOCK[0] else model, self.formats[name])
        cfg = configs.stock if model == STOCK[0] else configs.own
        found = train(model, cfg, self.task, self.args.updates, self.args.sentences, self.args.length)
        difference = found.last - (found.last if name == "float32" else reference)
        if model == STOCK[0]:
            bands[name] = min(max(SMALLEST_BAND, 3 * abs(difference)), LARGEST_BAND)
        passed = found.is_finite and abs(difference) <= bands.get(name, SMALLEST_BAND)
        result = {
            "loss": finite(found.last),
            "losses": [finite(loss) for loss in found.losses],
            "gate_norms": [finite(norm) for norm in found.gate_norms],
            "difference": finite(difference),
        }
        text = f"{found.last:.4f} ({difference:+.4f})"
        return result, text if found.is_finite else f"{text}; {found.left_out}", passed

    def _demo(self) -> Iterator[Step]:
        yield self._guarded("demo", self._run_demo)

    def _run_demo(self) -> Result:
        command = [*python_module("modular_fairseq_cli"), "demo"]
        environment = os.environ | ({} if self.args.device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""})
        with open(os.path.join(self.args.out, "demo.log"), "w") as log:
            done = subprocess.run(
                command, cwd=self.args.out, stdout=log, stderr=log, env=environment, check=False
            )
        score = read_json(os.path.join(self.args.out, "demo/mae_transformer_tiny_cpu/score.json")) or {}
        bleu = score.get("bleu", math.nan)
        passed = done.returncode == 0 and bleu >= LOWEST_BLEU
        text = (
            f"BLEU {bleu:.2f}"
            if done.returncode == 0
            else f"ended with status {done.returncode}; see demo.log"
        )
        return {"status": done.returncode, "bleu": finite(bleu)}, text, passed

    def _speed(self) -> Iterator[Step]:
        for name in self.formats:
            for model in self.models:
                yield self._guarded(f"{model}, {name}", partial(self._measure_speed, model, name))

    def _measure_speed(self, model: str, name: str) -> Result:
        found = measure_speed(model, self._configs(model, self.formats[name]), self.task, name, self.args)
        return asdict(found), str(found), True

    def _guarded(self, step: str, work: Callable[[], Result]) -> Step:
        """Do a step. An error fails the step, is told, and does not stop the others."""
        try:
            return step, *work()
        except torch.cuda.OutOfMemoryError:
            result: dict[str, Any] = {"out_of_memory": True}
            text = "the GPU has too little memory; give smaller --sentences or --length"
        except Exception as error:  # a faulty device may raise anything
            cause: BaseException = error
            # fairseq may fail again while it reports the first error.
            while cause.__context__ is not None and not isinstance(cause, UsageError):
                cause = cause.__context__
            text = f"{type(cause).__name__}: {str(cause).strip().partition(chr(10))[0]}"
            result = {"error": text}
        gc.collect()  # trainers refer to themselves
        torch.cuda.empty_cache()
        return step, result, text, False


def machine(device: str) -> dict[str, str | None]:
    """Describe the device, its driver and the versions of packages."""
    found: dict[str, str | None] = {"device": device_name(device), "python": platform.python_version()}
    found |= package_versions()
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "capability": f"{properties.major}.{properties.minor}",
            "memory": f"{properties.total_memory / 2**30:.1f} GiB",
            "CUDA": str(torch.version.cuda),
            "bfloat16": "yes" if torch.cuda.is_bf16_supported() else "no",
        }
    return found
