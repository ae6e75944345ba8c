"""Reads and checks what `modular-fairseq analyze --out` wrote about a checkpoint."""

import io
import json
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from modular_fairseq_cli.analysis_folder import ARRAYS, FORMAT, INDEX, SAMPLES
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.report.training_log import Log

# Of each analysis that is shown: its list, and what names an entry of it.
ENTRIES = {
    "gates": ("modules", "module"),
    "experts": ("modules", "module"),
    "single-expert": ("rows", "inference"),
    "clusters": ("modules", "module"),
    "patterns": ("modules", "module"),
    "competition": ("layers", "module"),
    "redundancy": ("types", "type"),
}


@dataclass
class Checkpoint:
    """What is known of one checkpoint.

    Args:
        label: how the report calls it.
        facts: analysis.json without its analyses: arch, data, parameters, ...
        analyses: by name.
        modules, competition_layers, sentences: those of samples.json; empty: no samples.
        arrays: by sentence, and in it by "KIND/NAME", such as "attention/encoder.layers.0.self_attn"; 2 or 3
            dimensions, in [0, 1].
        log: curves of its training; empty: no log.
    """

    label: str
    facts: dict[str, Any]
    analyses: dict[str, Any]
    modules: list[dict] = field(default_factory=list)
    competition_layers: list[str] = field(default_factory=list)
    sentences: list[dict] = field(default_factory=list)
    arrays: list[dict[str, np.ndarray]] = field(default_factory=list)
    log: Log = field(default_factory=dict)


def read_analysis(folder: Path) -> Checkpoint:
    """Read what an analysis wrote into a folder.

    Raises:
        UsageError: no such folder, not one of `analyze --out`, one of another format, damaged, or of a model
            that diverged.
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
            f"{folder}: no analysis is in it; write it again with `modular-fairseq analyze all DATA --path "
            f"CHECKPOINT --out {folder}`"
        )
    return checkpoint


def _read_json(file: Path, folder: Path) -> dict[str, Any]:
    text = _attempt(file.read_bytes, file, folder)
    try:
        content = json.loads(text, parse_constant=lambda name: None)  # NaN is no JSON to a browser
    except ValueError as error:
        raise UsageError(
            f"{file}: is no JSON or is cut short ({error}); write the folder again with `modular-fairseq "
            "analyze`"
        ) from None
    if not isinstance(content, dict) or "format" not in content:
        raise UsageError(
            f"{file}: was not written by `modular-fairseq analyze`, as it names no format; give a folder of "
            "`analyze --out`"
        )
    if content["format"] != FORMAT:
        raise UsageError(
            f"{file}: is of format {content['format']}, and this version reads format {FORMAT}; write the "
            "folder again with this version"
        )
    return content


def _attempt(read: Callable[[], Any], file: Path, folder: Path) -> Any:
    try:
        return read()
    except FileNotFoundError:
        if not folder.is_dir():
            raise UsageError(
                f"{folder}: no such folder; give one that `modular-fairseq analyze --out` wrote"
            ) from None
        raise UsageError(
            f"{folder}: is not what `modular-fairseq analyze --out` writes, {file.name} is missing"
        ) from None
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror})") from None


def _check_entries(content: Any, part: str, key: str, where: str) -> None:
    entries = content.get(part) if isinstance(content, dict) else None
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) and key in entry for entry in entries
    ):
        raise UsageError(
            f'{where} has no list "{part}" of entries with a "{key}"; write the folder again with '
            "`modular-fairseq analyze`"
        )


def _read_arrays(file: Path, sentences: int) -> list[dict[str, np.ndarray]]:
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
            f"{file}: is damaged or not of these sentences ({error}); write the folder again"
        ) from None
    for sentence, values in enumerate(arrays, start=1):
        for name in values:
            if np.isnan(values[name]).any():
                raise UsageError(
                    f"{file}: {name} of sentence {sentence} has values that are no numbers (NaN), which is "
                    "what a model computes that diverged; analyze an earlier checkpoint"
                )
    return arrays


def _unpack(content: bytes, sentences: int) -> list[dict[str, np.ndarray]]:
    """Return the arrays of each sentence. Raises whatever NumPy, zipfile and zlib raise where the archive is
    damaged.
    """
    arrays: list[dict[str, np.ndarray]] = [{} for _ in range(sentences)]
    with io.BytesIO(content) as file:
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("is no archive of arrays")
        for key in archive.files:
            kind, sentence, name = key.split("/", 2)
            values = archive[key].astype(np.float32)
            if values.ndim not in (2, 3) or values.min(initial=0) < -0.001 or values.max(initial=0) > 1.001:
                raise ValueError(f"{key} is no table of numbers from 0 to 1")
            if not 0 <= int(sentence) < sentences:
                raise ValueError(f"{key} is of a sentence that {SAMPLES} does not have")
            arrays[int(sentence)][f"{kind}/{name}"] = values
    return arrays
