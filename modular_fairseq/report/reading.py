"""What `modular-fairseq analyze --out` wrote, read back and checked."""

import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from modular_fairseq.errors import UsageError
from modular_fairseq.report.training_log import Log

FORMAT = 1


@dataclass
class Checkpoint:
    """What is known of one checkpoint.

    Args:
        label: how the report calls it.
        facts: analysis.json without its analyses: arch, data, parameters, ...
        analyses: by name.
        modules, competition_layers, sentences: those of samples.json; empty: no samples.
        arrays: by sentence, and in it by "KIND/NAME", such as "attention/encoder.layers.0.self_attn"; 2 or 3 dimensions, in [0, 1].
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
    """
    Raises:
        UsageError: no such folder, not one of `analyze --out`, one of another format, or damaged.
    """
    facts = _read_json(folder / "analysis.json", folder)
    analyses = facts.pop("analyses", None)
    if not isinstance(analyses, dict) or not isinstance(facts.get("arch"), str):
        raise UsageError(f"{folder / 'analysis.json'}: has no analyses or no arch; write the folder again with `modular-fairseq analyze`")
    checkpoint = Checkpoint(facts["arch"], facts, analyses)
    if (folder / "samples.json").exists():
        samples = _read_json(folder / "samples.json", folder)
        checkpoint.modules = samples.get("modules", [])
        checkpoint.sentences = samples.get("sentences", [])
        checkpoint.competition_layers = samples.get("competition_layers", [])
        checkpoint.arrays = _read_arrays(folder / "samples.npz", checkpoint.sentences)
    if not analyses and not checkpoint.sentences:
        raise UsageError(
            f"{folder}: no analysis is in it; write it again with `modular-fairseq analyze all DATA --path CHECKPOINT --out {folder}`"
        )
    return checkpoint


def _read_json(file: Path, folder: Path) -> dict[str, Any]:
    text = _attempt(file.read_bytes, file, folder)
    try:
        content = json.loads(text, parse_constant=lambda name: None)  # NaN is no JSON to a browser
    except ValueError as error:
        raise UsageError(f"{file}: is no JSON or is cut short ({error}); write the folder again with `modular-fairseq analyze`") from None
    if not isinstance(content, dict) or "format" not in content:
        raise UsageError(f"{file}: was not written by `modular-fairseq analyze`, as it names no format; give a folder of `analyze --out`")
    if content["format"] != FORMAT:
        raise UsageError(
            f"{file}: is of format {content['format']}, and this version reads format {FORMAT}; write the folder again with this version"
        )
    return content


def _attempt(read: Callable[[], Any], file: Path, folder: Path) -> Any:
    try:
        return read()
    except FileNotFoundError:
        if not folder.is_dir():
            raise UsageError(f"{folder}: no such folder; give one that `modular-fairseq analyze --out` wrote") from None
        raise UsageError(f"{folder}: is not what `modular-fairseq analyze --out` writes, {file.name} is missing") from None
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror})") from None


def _read_arrays(file: Path, sentences: list[dict]) -> list[dict[str, np.ndarray]]:
    arrays: list[dict[str, np.ndarray]] = [{} for _ in sentences]
    try:
        with _attempt(lambda: np.load(file, allow_pickle=False), file, file.parent) as archive:
            for key in archive.files:
                kind, sentence, name = key.split("/", 2)
                values = np.nan_to_num(archive[key].astype(np.float32))
                if values.ndim not in (2, 3) or values.min(initial=0) < -0.001 or values.max(initial=0) > 1.001:
                    raise ValueError(f"{key} is no table of numbers from 0 to 1")
                arrays[int(sentence)][f"{kind}/{name}"] = values
    except (ValueError, IndexError, EOFError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{file}: is damaged or not of these sentences ({error}); write the folder again") from None
    return arrays
