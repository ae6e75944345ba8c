"""Read what the report shows of a checkpoint: the folder of an analysis, or the log of a training."""

import io
import json
import re
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from modular_fairseq_cli.analysis_folder import ARRAYS, FORMAT, INDEX, SAMPLES
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.fairseq_log import PARAMETERS
from modular_fairseq_cli.training_log import Log, read_log

# The report needs these parts of each analysis: a list, and the key by which an entry of the list is named.
ENTRIES = {
    "gates": ("modules", "module"),
    "experts": ("modules", "module"),
    "single-expert": ("rows", "inference"),
    "clusters": ("modules", "module"),
    "patterns": ("modules", "module"),
    "competition": ("layers", "module"),
    "pictures": ("layers", "module"),
    "redundancy": ("types", "type"),
}
ARCH = re.compile(r"\barch='([^']+)'")  # in the options that fairseq-train logs


@dataclass
class Checkpoint:
    """What the report shows of one checkpoint, or of a training of which there is only a log.

    Attributes:
        label: its name in the report.
        facts: the content of analysis.json without the analyses: arch, data, parameters, ... Of a log, they
            are arch and parameters, if the log has them.
        analyses: the data of each analysis by name.
        modules: the attention modules of samples.json; empty if there are no samples.
        competition_layers: the layers with a competition in samples.json; empty if there are no samples.
        sentences: the sentences of samples.json, each with "target_in" and other lists of tokens; empty if
            there are no samples.
        arrays: for each sentence the arrays of samples.npz by "KIND/NAME", such as
            "attention/encoder.layers.0.self_attn". They have 2 or 3 dimensions and values in [0, 1].
        log: the curves of its training, see `read_log`; empty if no log is given.
    """

    label: str
    facts: dict[str, Any]
    analyses: dict[str, Any]
    modules: list[dict[str, Any]] = field(default_factory=list)
    competition_layers: list[str] = field(default_factory=list)
    sentences: list[dict[str, Any]] = field(default_factory=list)
    arrays: list[dict[str, np.ndarray]] = field(default_factory=list)
    log: Log = field(default_factory=dict)


def read_analysis(folder: Path) -> Checkpoint:
    """Read the folder that an analysis wrote; the label of the checkpoint is its arch.

    Raises:
        UsageError: the folder does not exist, was not written by `analyze --out`, has another format, is
            damaged, or is of a model that diverged.
    """
    facts = _read_json(folder / INDEX, folder)
    analyses = facts.pop("analyses", None)
    if not isinstance(analyses, dict) or not isinstance(facts.get("arch"), str):
        raise UsageError(
            f"{folder / INDEX}: has no analyses or no arch; write the folder again with `modular-fairseq "
            "analyze`"
        )
    for name, (part, key) in ENTRIES.items():
        if name in analyses:
            _check_entries(analyses[name], part, key, f"{folder / INDEX}: {name}")
    checkpoint = Checkpoint(facts["arch"], facts, analyses)
    if (folder / SAMPLES).exists():
        samples = _read_json(folder / SAMPLES, folder)
        for part, key in (("modules", "module"), ("sentences", "target_in")):
            _check_entries(samples, part, key, str(folder / SAMPLES))
        checkpoint.modules = samples["modules"]
        checkpoint.sentences = samples["sentences"]
        checkpoint.competition_layers = samples.get("competition_layers", [])
        checkpoint.arrays = _read_arrays(folder / ARRAYS, len(checkpoint.sentences))
    if not analyses and not checkpoint.sentences:
        raise UsageError(
            f"{folder}: has no analysis; write the folder again with `modular-fairseq analyze all DATA "
            f"--path CHECKPOINT --out {folder}`"
        )
    return checkpoint


def read_training(file: Path) -> Checkpoint:
    """Read the log of a training; the label is its arch, or "" if the log does not show it.

    Raises:
        UsageError: the file is no log of a training (see `read_log`).
    """
    log = read_log(file)
    text = file.read_text(encoding="utf-8", errors="replace")
    facts: dict[str, Any] = {}
    if arch := ARCH.search(text):
        facts["arch"] = arch[1]
    if counts := PARAMETERS.search(text):
        facts["parameters"] = int(counts[1].replace(",", ""))
    return Checkpoint(facts.get("arch", ""), facts, {}, log=log)


def _read_json(file: Path, folder: Path) -> dict[str, Any]:
    """Return the content of a JSON file of `analyze --out`. Raises UsageError if the file is not one."""
    text = _attempt(file.read_bytes, file, folder)
    try:
        content = json.loads(text, parse_constant=lambda name: None)  # a browser refuses NaN in JSON
    except ValueError as error:
        raise UsageError(
            f"{file}: is not JSON, or is cut short ({error}); write the folder again with `modular-fairseq "
            "analyze`"
        ) from None
    if not isinstance(content, dict) or "format" not in content:
        raise UsageError(
            f"{file}: names no format, so `modular-fairseq analyze` did not write it; give a folder that "
            "`analyze --out` wrote"
        )
    if content["format"] != FORMAT:
        raise UsageError(
            f"{file}: has format {content['format']}, and this version reads format {FORMAT}; write the "
            "folder again with this version"
        )
    return content


def _attempt(read: Callable[[], bytes], file: Path, folder: Path) -> bytes:
    """Return what `read` returns, and raise UsageError if the file or its folder cannot be read."""
    try:
        return read()
    except FileNotFoundError:
        if not folder.is_dir():
            raise UsageError(
                f"{folder}: there is no such folder; give one that `modular-fairseq analyze --out` wrote"
            ) from None
        raise UsageError(
            f"{folder}: {file.name} is missing; give a folder that `modular-fairseq analyze --out` wrote"
        ) from None
    except OSError as error:
        raise UsageError(
            f"{file}: cannot be read ({error.strerror}); make it readable, or give another folder"
        ) from None


def _check_entries(content: Any, part: str, key: str, where: str) -> None:
    """Raise UsageError unless `content` has the list `part`, and every entry of the list has `key`."""
    entries = content.get(part) if isinstance(content, dict) else None
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) and key in entry for entry in entries
    ):
        raise UsageError(
            f'{where} has no list "{part}" of entries with a "{key}"; write the folder again with '
            "`modular-fairseq analyze`"
        )


def _read_arrays(file: Path, sentences: int) -> list[dict[str, np.ndarray]]:
    """Return the arrays of each sentence. Raises UsageError if the file is damaged or the model diverged."""
    content = _attempt(file.read_bytes, file, file.parent)
    try:
        arrays = _unpack(content, sentences)
    except (
        ValueError,
        TypeError,
        EOFError,
        RuntimeError,
        MemoryError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise UsageError(
            f"{file}: is damaged, or does not belong to these sentences ({error}); write the folder again "
            "with `modular-fairseq analyze`"
        ) from None
    for sentence, values in enumerate(arrays, start=1):
        for name in values:
            if np.isnan(values[name]).any():
                raise UsageError(
                    f"{file}: {name} of sentence {sentence} has values that are not numbers (NaN), so the "
                    "model diverged; analyze an earlier checkpoint"
                )
    return arrays


def _unpack(content: bytes, sentences: int) -> list[dict[str, np.ndarray]]:
    """Return the arrays of each sentence from the content of an .npz file.

    If the archive is damaged, NumPy, zipfile or zlib raise errors of many kinds.
    """
    arrays: list[dict[str, np.ndarray]] = [{} for _ in range(sentences)]
    with io.BytesIO(content) as file:
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("it is not an archive of arrays")
        for key in archive.files:
            kind, sentence, name = key.split("/", 2)
            values = archive[key].astype(np.float32)
            if values.ndim not in (2, 3) or values.min(initial=0) < -0.001 or values.max(initial=0) > 1.001:
                raise ValueError(f"{key} is not a table of numbers from 0 to 1")
            if not 0 <= int(sentence) < sentences:
                raise ValueError(f"{key} belongs to a sentence that {SAMPLES} does not have")
            arrays[int(sentence)][f"{kind}/{name}"] = values
    return arrays
