"""Records: the small JSON files that finished runs leave in a folder such as results/.

A record has no text of a corpus. Its keys are

    commit        the commit that made the run
    corpus        digests of the corpus, as `Corpus.contents` returns them
    settings      everything but the corpus that the weights depend on (`Run.settings`)
    weights       the digest of the weights of the model that is measured (`weights_digest`)
    start         for a fine-tuned run the name of the run that it starts from, and the digest of the weights
                  of that run
    commands      the commands that made the run, in which the folders of the corpora, of runs and of the code
                  have the names that scripts/evidence.sh gives them (`Folders.neutral`)
    claims        for each claim that needs the run its digest (`Claim.digest`) when the run was made
    training      the statistics of the training (`Run.statistics`)
    curves        the curves of the log, by split and name, as lists of [update, value]; of the split
                  "train_inner", which has a point every --log-interval updates, perplexity alone
    rows          for each row of the table its measurements, one for each set of overrides: how they were
                  made ("how"), their columns, the numbers of the analyses by module, and for BLEU "counts":
                  for each sentence sacrebleu's lengths of hypothesis and reference and its matches of 1- to
                  4-grams. Measurements of a quantity of `by_unit.OF_PARTS` have the numbers of the pictures
                  or inputs, whose sums decide the score, as "parts". by_unit.py packs both
    core_minutes  the time of processors that training and measuring have taken
    made          the date, the device, the name of the GPU or null, the versions of Python and torch, the
                  processor, the instructions that torch's kernels use ("AVX512" or "AVX2"), and the names of
                  the libraries in LD_PRELOAD (scripts/mkl_on_amd.sh)

Older records lack "train_inner", "parts", and the GPU, the processor, the instructions and the libraries of
"made".

The log of a training for a primary claim is kept beside its record as seed-N.log.xz (`write_log`), or as
seed-N.log.gz by commits of 2026-11-28 to 2026-12-01. Records of older commits have none.

`read_record` adds "by_unit" to a measurement: the pseudo-values of the sentences or parts, which follow from
the counts or parts (`by_unit.scores_of`).

A training that diverged, and a run that should start from one, have records too. "diverged" is true there,
"training" and "weights" are null, and there are no curves and rows.
"""

import datetime
import json
import lzma
import math
import os
import platform
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from modular_fairseq.runs.evaluation import Measurement
from modular_fairseq.runs.evaluations.bleu import metric_of, output_of
from modular_fairseq.runs.evaluations.parts import OverParts
from modular_fairseq.runs.evidence.by_unit import COUNTS, OF_PARTS, packed, packed_parts, scores_of
from modular_fairseq.runs.run import Run
from modular_fairseq.training.checkpoints import weights_digest
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import read_json, write_file, write_json
from modular_fairseq_cli.processes import processor_name
from modular_fairseq_cli.scoring.intervals import sentence_counts
from modular_fairseq_cli.training_log import read_log

OF_EPOCHS = (
    "ppl",
    "nll_loss",
    "loss",
    "lr",
    "gate_entropy",
    "gate_max_share",
    "gate_min_share",
    "gate_rare_experts",
    "g_loss",
    "kl",
    "qq",
    "xq",
)
CURVES = {"train": OF_EPOCHS, "valid": OF_EPOCHS, "train_inner": ("ppl",)}  # what is kept of each split
LOGS = (".log.xz", ".log.gz")  # the endings of kept logs: the present one, and that of older commits
TEXT = ("path", "made_by")  # of a measurement, what is no number and names a file
# The types of the values of a record's keys.
KEYS: dict[str, type | tuple[type, ...]] = {
    **{key: dict for key in ("corpus", "claims", "curves", "rows", "made")},
    **{key: (dict, type(None)) for key in ("settings", "training", "start")},
    **{"commit": str, "weights": (str, type(None)), "diverged": bool, "core_minutes": (int, float)},
}


class Folders(NamedTuple):
    """The folders of a machine that are in commands and logs.

    Args:
        data: the prepared corpora.
        out: the files of runs.
        code: the code that makes the runs.
    """

    data: str
    out: str
    code: str

    def neutral(self, text: str, commit: str) -> str:
        """Return a text in which the folders have the names that scripts/evidence.sh gives them.

        Args:
            text: commands, or a log.
            commit: the commit of the code.
        """
        named = {self.data: "evidence/data", self.out: "evidence/runs", self.code: f"evidence/{commit}"}
        # A folder comes before the one that it lies in.
        for folder, name in sorted(named.items(), key=lambda each: -len(each[0])):
            text = re.sub(rf"(?<![\w./-]){re.escape(os.path.abspath(folder))}(?![\w.-])", name, text)
        return text


def record_of(
    run: Run,
    measurements: dict[str, list[Measurement]],
    commit: str,
    claims: dict[str, str],
    core_minutes: float,
    device: str,
    folders: Folders,
    diverged: bool = False,
) -> dict[str, Any]:
    """Return the record of a finished run.

    Args:
        run: the run.
        measurements: for each row that measures the run its finished measurements.
        commit: the commit that made it.
        claims: the digest of each claim that needs it.
        core_minutes: the time of processors that it has taken.
        device: where it was made, cpu or cuda.
        folders: the folders that have other names in the record.
        diverged: whether the run diverged, or was not made because it should start from one that diverged.
            It has no measurements then.
    """
    log = read_log(Path(run.path("train.log"))) if run.trains and not diverged else {}
    curves = {
        split: {name: points for name, points in log[split].items() if name in names}
        for split, names in CURVES.items()
        if split in log
    }
    start = None
    if isinstance(run.start, Run) and run.start.training:
        start = {"run": run.start.name, "weights": weights_digest(run.start.checkpoint)}
    commands = [folders.neutral(" ".join(command), commit) for command in run.commands]
    return {
        "commit": commit,
        "corpus": run.corpus.contents(),
        "settings": plain(run.settings),
        "weights": None if diverged else weights_digest(run.checkpoint),
        "start": start,
        "commands": commands,
        "claims": claims,
        "diverged": diverged,
        "training": run.training,
        "curves": curves,
        "rows": {row: [_numbers(each) for each in found] for row, found in measurements.items()},
        "core_minutes": round(core_minutes, 2),
        "made": made(device),
    }


def made(device: str) -> dict[str, Any]:
    """Return when, on which device and with which versions a run was made, for its record.

    Args:
        device: "cpu", "cuda" or the name of a GPU.
    """
    return {
        "date": datetime.date.today().isoformat(),
        "device": device,
        "gpu": None if device == "cpu" else torch.cuda.get_device_name(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": processor_name(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "preload": preloaded_libraries(),
    }


def is_of_cpu(record: dict[str, Any]) -> bool:
    """Return whether a record is of a run on a CPU."""
    return bool(record["made"]["device"] == "cpu")


def of_one_device(records: Iterable[dict[str, Any]]) -> bool:
    """Return whether all records are of runs on the same kind of device."""
    return len({record["made"].get("device") for record in records}) == 1


def preloaded_libraries() -> list[str]:
    """Return the names of the libraries that LD_PRELOAD puts before others, without their folders."""
    paths = re.split("[ :]+", os.environ.get("LD_PRELOAD", ""))
    return [os.path.basename(path) for path in paths if path]


def _numbers(measurement: Measurement) -> dict[str, Any]:
    """Return the columns of a measurement, and its scores by sentence if it has any."""
    result = {key: value for key, value in measurement.finished_result().items() if key not in TEXT}
    for key in ("generate", "checkpoint"):
        result.pop(key, None)
    result["how"] = how(measurement)
    if "bleu" in result:
        metric, hypotheses = metric_of(measurement), output_of(measurement).hypotheses
        result["counts"] = packed(sentence_counts(metric, hypotheses)[:, :COUNTS])
    for each in measurement.evaluations:
        if isinstance(each, OverParts) and not each.scores.keys().isdisjoint(OF_PARTS):
            result["parts"] = packed_parts(each.statistics(measurement))
    return result


def how(measurement: Measurement) -> dict[str, Any]:
    """Return what a measurement depends on, apart from the run, as it is read from JSON."""
    made = {
        "subset": measurement.subset,
        "overrides": measurement.overrides,
        "decoding": measurement.decoding,
    }
    return plain(made)


def plain(value: Any) -> Any:
    """Return a value as it is read again from JSON. Tuples are lists there, and infinity is a text."""
    return json.loads(json.dumps(value), parse_constant=str)


def path_of(results: str | os.PathLike, name: str) -> Path:
    """Return the path of the record of the run called `name`, such as multi30k/base/seed-1."""
    return Path(results, f"{name}.json")


def read_record(results: str | os.PathLike, name: str) -> dict[str, Any] | None:
    """Return the record of a run, or None if there is none.

    Raises:
        UsageError: the file is no record, or not the whole of one.
    """
    path, remedy = path_of(results, name), "restore it, or remove it to make the run again"
    record = read_json(path, remedy)
    if record is None:
        return None
    for key, kind in KEYS.items():
        if not isinstance(record, dict) or key not in record or not isinstance(record[key], kind):
            raise UsageError(f"{path}: {key} is missing or has another type than in a record; {remedy}")
    for key in ("date", "device"):
        if not isinstance(record["made"].get(key), str):
            raise UsageError(f"{path}: made has no {key}; {remedy}")
    if not record["diverged"] and None in (record["training"], record["weights"]):
        raise UsageError(f"{path}: training or weights are null, though the run did not diverge; {remedy}")
    for row, found in record["rows"].items():
        for each in found:
            if "how" not in each or ("bleu" in each and not isinstance(each.get("counts"), str)):
                raise UsageError(f"{path}: a measurement of {row} has no `how` or `counts`; {remedy}")
            try:
                scores = scores_of(each)
            except ValueError as error:
                raise UsageError(
                    f"{path}: the counts or parts of {row} cannot be read ({error}); {remedy}"
                ) from None
            for name, (score, _) in scores.items():
                tolerance = 1e-6 if name == "bleu" else 1e-5 * score  # parts are in float32
                if not math.isclose(each[name], score, abs_tol=tolerance):
                    raise UsageError(
                        f"{path}: {row} has {name} {each[name]}, but its sentences or parts give {score}; "
                        f"{remedy}"
                    )
            each["by_unit"] = {name: by_unit for name, (_, by_unit) in scores.items()}
    return record


def recorded(results: str | os.PathLike) -> dict[str, dict[str, Any]]:
    """Return all records of a folder, keyed by the names of their runs."""
    paths = sorted(Path(results).glob("*/*/seed-*.json"))
    names = [str(path.relative_to(results).with_suffix("")) for path in paths]
    return {name: record for name in names if (record := read_record(results, name)) is not None}


def write_record(results: str | os.PathLike, name: str, record: dict[str, Any]) -> None:
    """Write the record of a run."""
    path = path_of(results, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, record, compact=True)


def logs_of(results: str | os.PathLike, name: str) -> list[Path]:
    """Return the logs of a run that are kept beside its record: none, or one in each form of `LOGS`."""
    return [path for ending in LOGS if (path := Path(results, f"{name}{ending}")).exists()]


def write_log(results: str | os.PathLike, run: Run, commit: str, folders: Folders) -> None:
    """Keep the log of a run, compressed. The same log gives the same file."""
    text = Path(run.path("train.log")).read_text(encoding="utf-8", errors="replace")
    content = lzma.compress(folders.neutral(text, commit).encode(), preset=9 | lzma.PRESET_EXTREME)
    path = Path(results, f"{run.name}{LOGS[0]}")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, content)
