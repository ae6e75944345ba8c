"""Spoil corpora, tables, checkpoints, analyses and logs."""

import copy
import gzip
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import yaml

from modular_fairseq.training.checkpoints import load_checkpoint
from tests.soak.cases import Case, call, content, copied, judged, left_over
from tests.soak.materials import Materials

Spoil = Callable[[Path, random.Random], None]


def cases(materials: Materials, seed: int, count: int) -> Iterator[Case]:
    """Yield cases of all kinds in turn."""
    rng = random.Random(seed)
    made: Counter[str] = Counter()
    for number in range(count):
        kind, make = KINDS[number % len(KINDS)]
        name, run = make(materials, random.Random(rng.random()), made[kind])
        made[kind] += 1
        yield Case(f"{number} {kind}: {name}", run)


def _checked(materials: Materials, folder: Path, words: list[object], inputs: Path) -> str:
    """Run a command, and return what is wrong with its end, with its inputs or with what it leaves."""
    before = content(inputs)
    ended = call(words, folder, materials.environment)
    wrong = judged(ended)
    after = content(inputs)
    lost = [name for name, data in before.items() if after.get(name) != data]
    if not wrong and lost:
        wrong = f"changes its input {', '.join(lost[:3])}"
    return wrong or left_over(folder)


# --- raw text -----------------------------------------------------------------------------------------------


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().split(b"\n")[:-1]


def _rewritten(change: Callable[[list[bytes], random.Random], bytes]) -> Spoil:
    return lambda path, rng: _write(path, change(_lines(path), rng))


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _insert(what: bytes) -> Spoil:
    def spoil(path: Path, rng: random.Random) -> None:
        lines = _lines(path)
        place = rng.randrange(len(lines))
        lines[place] = lines[place][: rng.randrange(len(lines[place]) + 1)] + what
        path.write_bytes(b"\n".join(lines) + b"\n")

    return spoil


TEXT: dict[str, Spoil] = {
    "Latin-1": _insert(b" stra\xdfe "),
    "UTF-16": _rewritten(lambda lines, _: b"\n".join(lines).decode().encode("utf-16")),
    "a byte order mark": _rewritten(lambda lines, _: b"\xef\xbb\xbf" + b"\n".join(lines) + b"\n"),
    "NUL": _insert(b"\0"),
    "half a character": _insert("ü".encode()[:1]),
    "surrogates": _insert(b"\xed\xa0\x80"),
    "line ends of Windows": _rewritten(lambda lines, _: b"\r\n".join(lines) + b"\r\n"),
    "mixed line ends": _rewritten(lambda lines, _: b"\r".join(lines[:5]) + b"\n" + b"\r\n".join(lines[5:])),
    "line separators of Unicode": _insert("\u2028\u0085".encode()),
    "no last line end": _rewritten(lambda lines, _: b"\n".join(lines)),
    "one line more": _rewritten(lambda lines, _: b"\n".join([*lines, b"w1"]) + b"\n"),
    "one line less": _rewritten(lambda lines, _: b"\n".join(lines[1:]) + b"\n"),
    "empty": _rewritten(lambda lines, _: b""),
    "only empty lines": _rewritten(lambda lines, _: b"\n" * len(lines)),
    "an empty line": _rewritten(lambda lines, rng: b"\n".join([b"", *lines[1:]]) + b"\n"),
    "a line of a megabyte": _insert(b" w1" * 350_000),
    "a word of a megabyte": _insert(b"w" * 1_000_000),
    "marks of sub-words": _insert(b" w1@@ @@ @@w2 </s> <unk> <pad> "),
    "only punctuation": _rewritten(lambda lines, _: b"! ? .\n" * len(lines)),
    "right to left": _insert("\u202e \u200b \ufeff שלום".encode()),
    "binary": _rewritten(lambda lines, rng: rng.randbytes(5000)),
    "gzip in a plain name": _rewritten(lambda lines, _: gzip.compress(b"\n".join(lines))),
    "missing": lambda path, rng: path.unlink(),
    "a folder": lambda path, rng: (path.unlink(), path.mkdir())[0],
    "a link to itself": lambda path, rng: (path.unlink(), path.symlink_to(path.name))[0],
}


def _text(materials: Materials, rng: random.Random, number: int) -> tuple[str, Callable[[Path], str]]:
    name = [*TEXT][number % len(TEXT)]
    file = rng.choice([f"{split}.{side}" for split in ("train", "valid", "test") for side in ("de", "en")])

    def run(folder: Path) -> str:
        text = copied(materials.folder / "text", folder / "text")
        TEXT[name](text / file, rng)
        languages = ["--source-lang", "de", "--target-lang", "en", "--bpe-merges", "50", "--workers", "1"]
        words = [*materials.ours, "prepare", "raw", text, *languages, "--out", folder / "out"]
        return _checked(materials, folder, words, text)

    return f"{file} is {name}", run


# --- tables and rows ----------------------------------------------------------------------------------------

STRANGE: list[Any] = [
    *(None, True, -1, 0, 1e30, float("nan"), "", "x", "../..", "ü\0", [], [1, [2]], {}, {"a": {"b": 1}}),
    *(["x"], "${oc.env:HOME}", "${model.dropout}", "1e-3", 10**30),
]
YAML_TEXTS = [
    *(
        "",
        "\t",
        "a: [",
        "- 1",
        "x",
        "a: &a [*a]",
        "!!python/object/apply:os.system [echo]",
        "\x00",
        "\ufeffa: 1",
    ),
    *("a: 1\na: 2", "{" * 500, "a: !!binary aGk=", "? [1, 2]\n: 3", "---\na: 1\n---\nb: 2", "a: *unknown"),
]


def _table(materials: Materials, rng: random.Random, number: int) -> tuple[str, Callable[[Path], str]]:
    files = ["table.yaml", "plain.yaml", "experts.yaml", "gates.yaml"]
    file = rng.choice(files)
    loaded = yaml.safe_load((materials.folder / "configs/mine" / file).read_text())
    if number % 4 == 0:
        text = rng.choice(YAML_TEXTS)
        name = f"{file} is {text[:20]!r}"
    else:
        place, key = rng.choice([*_places(loaded)])
        value = rng.choice([*STRANGE, KeyError])
        if value is KeyError:
            del place[key]
        else:
            place[key] = value
        text = yaml.safe_dump(loaded, allow_unicode=True)
        name = f"{key} of {file} is {'missing' if value is KeyError else repr(value)}"

    def run(folder: Path) -> str:
        configs = copied(materials.folder / "configs", folder / "configs")
        (configs / "mine" / file).write_text(text, encoding="utf-8")
        table = [configs / "mine/table.yaml", "--data", materials.folder, "--out", folder / "out"]
        words = [*materials.ours, "table", *table, rng.choice(["--dry-run", "--status"])]
        return _checked(materials, folder, words, configs)

    return name, run


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each container below a value, with each of its keys or indices."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    for key in keys:
        yield value, key
        yield from _places(value[key])


# --- checkpoints --------------------------------------------------------------------------------------------


def _cut(path: Path, rng: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data))])


def _flipped(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 1, 1, 10])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def _changed(change: Callable[[dict[str, Any], random.Random], Any]) -> Spoil:
    def spoil(path: Path, rng: random.Random) -> None:
        state = copy.deepcopy(load_checkpoint(path))
        change(state, rng)
        torch.save(state, path)

    return spoil


def _weight(state: dict[str, Any], rng: random.Random) -> str:
    """Return the name of a weight."""
    return rng.choice([name for name, value in state["model"].items() if value.dim()])


def _replace_weight(make: Callable[[torch.Tensor], Any]) -> Spoil:
    def change(state: dict[str, Any], rng: random.Random) -> None:
        name = _weight(state, rng)
        state["model"][name] = make(state["model"][name])

    return _changed(change)


def _without(state: dict[str, Any], rng: random.Random) -> None:
    del state[rng.choice([*state])]


def _option(state: dict[str, Any], rng: random.Random) -> None:
    names = [name for name in state["cfg"]["model"] if not name.startswith("_")]
    state["cfg"]["model"][rng.choice(names)] = rng.choice([None, -1, 0, 7, "x", [1], 1e9, True])


CHECKPOINT: dict[str, Spoil] = {
    "cut short": _cut,
    "flipped": _flipped,
    "cut short (2)": _cut,
    "flipped (2)": _flipped,
    "without a part": _changed(_without),
    "without a weight": _changed(lambda state, rng: state["model"].pop(_weight(state, rng))),
    "with a weight more": _changed(lambda state, rng: state["model"].update(more=torch.zeros(3))),
    "with a weight of another shape": _replace_weight(
        lambda value: torch.zeros([n + 1 for n in value.shape])
    ),
    "with an empty weight": _replace_weight(lambda value: torch.zeros(0)),
    "with a weight of another type": _replace_weight(lambda value: value.to(torch.int8)),
    "with a complex weight": _replace_weight(lambda value: value.to(torch.complex64)),
    "with a weight in float64": _replace_weight(lambda value: value.double()),
    "with a weight that is none": _replace_weight(lambda value: None),
    "with a list for a weight": _replace_weight(lambda value: value.tolist()),
    "with a sparse weight": _replace_weight(lambda value: value.to_sparse()),
    "with numbers that are none": _replace_weight(lambda value: value * float("nan")),
    "of another arch": _changed(lambda state, rng: state["cfg"]["model"].update(arch="transformer")),
    "of an unknown arch": _changed(lambda state, rng: state["cfg"]["model"].update(_name="nothing")),
    "with another option": _changed(_option),
    "with another option (2)": _changed(_option),
    "with another task": _changed(lambda state, rng: state["cfg"].update(task="nothing")),
    "a list": lambda path, rng: torch.save([1, 2], path),
    "a tensor": lambda path, rng: torch.save(torch.zeros(3), path),
    "text": lambda path, rng: path.write_text("no checkpoint\n"),
    "empty": lambda path, rng: path.write_bytes(b""),
    "a folder": lambda path, rng: (path.unlink(), path.mkdir())[0],
    "missing": lambda path, rng: path.unlink(),
}


def _checkpoint(materials: Materials, rng: random.Random, number: int) -> tuple[str, Callable[[Path], str]]:
    name = [*CHECKPOINT][number % len(CHECKPOINT)]
    commands = ["generate", "average", "analyze", "train", "export", "finetune"]
    what = commands[number // len(CHECKPOINT) % len(commands)]

    def run(folder: Path) -> str:
        path = copied(materials.checkpoint, folder / "model/checkpoint_last.pt")
        CHECKPOINT[name](path, rng)
        data, plugin = materials.folder / "bin", materials.train[-2:]
        experts = ["--arch", "mae_transformer", "--max-update", "40", "--disable-validation"]
        words = {
            "generate": [materials.python, "-m", "fairseq_cli.generate", data, *plugin, "--path", path],
            "average": [*materials.ours, "average", "--inputs", path, "--output", folder / "average.pt"],
            "analyze": [*materials.ours, "analyze", "gates", data, "--path", path, "--out", folder / "out"],
            "train": [*materials.train, *experts, "--save-dir", folder / "copy", "--restore-file", path],
            "finetune": [
                *(*materials.train, *experts, "--no-save", "--save-dir", folder / "copy"),
                *("--finetune-from-model", path),
            ],
            "export": [
                *(*materials.ours, "export", data, "--path", path, "--to", "ctranslate2", "--gates", "mean"),
                *("--out", folder / "out"),
            ],
        }[what]
        return _checked(materials, folder, words, folder / "model")

    return f"{what} of a checkpoint that is {name}", run


# --- analyses and logs --------------------------------------------------------------------------------------


def _analysis(materials: Materials, rng: random.Random, number: int) -> tuple[str, Callable[[Path], str]]:
    files = [path.relative_to(materials.folder) for path in sorted(materials.folder.glob("inside/**/*.json"))]
    file, how = rng.choice(files), rng.choice(["cut", "flip", "key", "value", "empty", "missing"])

    def run(folder: Path) -> str:
        inside = copied(materials.folder / "inside", folder / "inside")
        _spoil_json(folder / file, how, rng)
        words = [*materials.ours, "report", inside, "--out", folder / "report.html"]
        return _checked(materials, folder, words, inside)

    return f"{file.name}, {how}", run


def _spoil_json(path: Path, how: str, rng: random.Random) -> None:
    if how == "missing":
        path.unlink()
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "cut":
        _cut(path, rng)
    elif how == "flip":
        _flipped(path, rng)
    else:
        loaded = json.loads(path.read_text())
        place, key = rng.choice([*_places(loaded)])
        if how == "key":
            del place[key]
        else:
            place[key] = rng.choice([None, -1, "x", [], {}, 1e300, "<script>alert(1)</script>"])
        path.write_text(json.dumps(loaded))


def _log(materials: Materials, rng: random.Random, number: int) -> tuple[str, Callable[[Path], str]]:
    how = rng.choice(["cut", "flip", "lines in another order", "empty", "binary", "line ends", "twice"])

    def run(folder: Path) -> str:
        log = copied(materials.folder / "train.log", folder / "logs/train.txt")
        if how == "cut":
            _cut(log, rng)
        elif how == "flip":
            for _ in range(20):
                _flipped(log, rng)
        elif how == "lines in another order":
            lines = _lines(log)
            rng.shuffle(lines)
            log.write_bytes(b"\n".join(lines))
        elif how == "line ends":
            log.write_bytes(log.read_bytes().replace(b"\n", b"\r\n"))
        elif how == "twice":
            log.write_bytes(log.read_bytes() * 2)
        else:
            log.write_bytes(b"" if how == "empty" else rng.randbytes(10_000))
        inside = copied(materials.folder / "inside", folder / "inside")
        curves = [*materials.ours, "curves", "--system", "a", log, "--out", folder / "curves"]
        report = [*materials.ours, "report", inside, "--log", log, "--out", folder / "report.html"]
        return _checked(materials, folder, rng.choice([curves, report]), folder / "logs")

    return how, run


KINDS = [
    ("corpus", _text),
    ("table", _table),
    ("checkpoint", _checkpoint),
    ("table", _table),
    ("checkpoint", _checkpoint),
    ("analysis", _analysis),
    ("log", _log),
]
