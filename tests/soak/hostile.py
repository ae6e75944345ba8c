"""Give commands files whose author is hostile: nothing in them may run, leave its folder or fill the machine.

A payload would make the file RAN, and reads of the environment would show SECRET.
"""

import functools
import json
import operator
import os
import pickle
import re
import runpy
import struct
import subprocess
import sys
import tarfile
import timeit
import zipfile
from argparse import Namespace
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.utils import import_user_module

from tests.hostile_checkpoints import Pickled, checkpoint
from tests.places import ROOT
from tests.prepared_corpora import TOY, talks_members, write_tar
from tests.soak.cases import Case, Ended, call, judged
from tests.soak.materials import Materials

RAN = "ran"  # the name of the file that a payload would make, in the folder of the case
SECRET = "the-secret-of-the-soak"
BOMB = "de-en/bomb"  # a member of an archive
SIZE = 50 * 2**20  # bytes; a command that is refused a bomb writes less
Make = Callable[[Path, str], None]  # writes a hostile file, which would run a command of the shell


def cases(materials: Materials, seed: int, count: int) -> Iterator[Case]:
    """Yield `count` of the cases, which are of all kinds; `seed` changes nothing."""
    made = [
        *_pickles(materials),
        *_values(materials),
        *_zips(materials),
        *_yaml(materials),
        *_tars(materials),
        *_pages(materials),
    ]
    count = min(count, len(made))
    yield from (made[number * len(made) // count] for number in range(count))


def _words(materials: Materials, what: str, path: Path) -> list[object]:
    """Return the words of a command that reads a checkpoint."""
    data, plugin = materials.folder / "bin", materials.train[-2:]
    short = ["--arch", "mae_transformer", "--max-update", "1", "--no-save", "--disable-validation"]
    return {
        "generate": [materials.python, "-m", "fairseq_cli.generate", data, *plugin, "--path", path],
        "average": [*materials.ours, "average", "--inputs", path, "--output", path.with_name("average.pt")],
        "analyze": [
            *materials.ours,
            "analyze",
            "gates",
            data,
            "--path",
            path,
            "--out",
            path.with_name("out"),
        ],
        "train": [*materials.train, *short, "--restore-file", path, "--save-dir", path.with_name("run")],
    }[what]


# Loads a checkpoint as torch did before weights_only, with the extension registry that its author hopes for.
UNPROTECTED = """
import copyreg
import sys
copyreg._inverted_registry.update({code: ("posix", "system") for code in (1, 0x101, 0x1010101)})
import torch
torch.load(sys.argv[1], weights_only=False)
"""


def _refused(
    materials: Materials,
    name: str,
    make: Make,
    whats: tuple[str, ...] = ("generate", "average"),
    runs: bool = True,
) -> Case:
    """Return a case of a checkpoint that commands must refuse.

    Args:
        make: writes the checkpoint.
        whats: the commands.
        runs: whether the payload runs if the checkpoint is loaded without protection, which is tried first.
    """

    def run(folder: Path) -> str:
        path = folder / "hostile.pt"
        make(path, f"touch {folder / RAN}")
        if runs:
            environment = {**materials.environment, "PYTHONPATH": str(ROOT)}
            call([sys.executable, "-c", UNPROTECTED, path], folder, environment)
            if not (folder / RAN).exists():
                return "the payload does not run even without protection, so the case shows nothing"
            (folder / RAN).unlink()
        for what in whats:
            ended = call(_words(materials, what, path), folder, materials.environment)
            if (folder / RAN).exists():
                return f"{what} ran the payload"
            if wrong := judged(ended):
                return f"{what} {wrong}"
            if ended.status == 0:
                return f"{what} accepts it"
        return ""

    return Case(name, run)


# --- pickles ------------------------------------------------------------------------------------------------


def _text(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text.encode())) + text.encode()


def _short(text: str) -> bytes:
    return b"\x8c" + bytes([len(text.encode())]) + text.encode()


def _zip_of(data: bytes) -> Callable[[Path], None]:
    """Return a function that writes a checkpoint whose pickle is `data`."""

    def write(path: Path) -> None:
        torch.save({"model": torch.zeros(1)}, path)
        with zipfile.ZipFile(path) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, data if name.endswith("data.pkl") else content)

    return write


def _mapped(command: str) -> bytes:
    """Return opcodes of a map that calls os.system when its values are taken."""
    return b"cbuiltins\nmap\ncposix\nsystem\n]" + _text(command) + b"a\x86\x81"


# Each opcode that can import or call, with a payload {} for a shell.
OPCODES: dict[str, Callable[[str], bytes]] = {
    "GLOBAL and REDUCE": lambda c: b"\x80\x02cposix\nsystem\n" + _text(c) + b"\x85R.",
    "STACK_GLOBAL and REDUCE": lambda c: (
        b"\x80\x04" + _short("posix") + _short("system") + b"\x93" + _text(c) + b"\x85R."
    ),
    "a dotted name": lambda c: (
        b"\x80\x04" + _short("torch") + _short("os.system") + b"\x93" + _text(c) + b"\x85R."
    ),
    "INST": lambda c: b"(V" + c.encode() + b"\niposix\nsystem\n.",
    "OBJ": lambda c: b"(cposix\nsystem\nV" + c.encode() + b"\no.",
    # tuple.__new__ takes the values of map.__new__(map, os.system, [command]), which calls the function.
    "NEWOBJ": lambda c: b"\x80\x02cbuiltins\ntuple\n" + _mapped(c) + b"\x85\x81.",
    "NEWOBJ_EX": lambda c: b"\x80\x04cbuiltins\ntuple\n" + _mapped(c) + b"\x85}\x92.",
    # The first BUILD gives an object of an allowed class a __setstate__, and the second one calls it.
    "BUILD of an allowed class": lambda c: (
        b"\x80\x02cargparse\nNamespace\n)R}"
        + _text("__setstate__")
        + b"cposix\nsystem\nsb"
        + _text(c)
        + b"b."
    ),
    "BUILD with slots": lambda c: (
        b"\x80\x02cargparse\nNamespace\n)RN}"
        + _text("__setstate__")
        + b"cposix\nsystem\ns\x86b"
        + _text(c)
        + b"b."
    ),
    "EXT1": lambda c: b"\x80\x02\x82\x01" + _text(c) + b"\x85R.",
    "EXT2": lambda c: b"\x80\x02\x83\x01\x01" + _text(c) + b"\x85R.",
    "EXT4": lambda c: b"\x80\x02\x84\x01\x01\x01\x01" + _text(c) + b"\x85R.",
    "PERSID": lambda c: b"P" + c.encode() + b"\n.",
    "BINPERSID": lambda c: (
        b"\x80\x02(" + _text("storage") + b"cposix\nsystem\n" + _text(c) + _text("cpu") + b"K\x01tQ."
    ),
    "a reduced tensor": lambda c: (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(cposix\nsystem\n" + _text(c) + b"\x85RK\x00)K\x01)tR."
    ),
    "no STOP": lambda c: b"\x80\x02cposix\nsystem\n" + _text(c) + b"\x85R",
    "protocol 5 and a bytearray": lambda c: (
        b"\x80\x05\x96" + struct.pack("<Q", 1) + b"x0cposix\nsystem\n" + _text(c) + b"\x85R."
    ),
    "a memo without an end": lambda c: (
        b"\x80\x02" + b"]q\x00h\x00a" * 1000 + b"cposix\nsystem\n" + _text(c) + b"\x85R."
    ),
}


def _pickles(materials: Materials) -> Iterator[Case]:
    for name, opcodes in OPCODES.items():

        def make(path: Path, command: str, opcodes: Callable[[str], bytes] = opcodes) -> None:
            _zip_of(opcodes(command))(path)

        # The opcodes of persistent ids call a function of torch, which runs nothing.
        yield _refused(materials, f"pickle: {name}", make, runs="PERSID" not in name)


class _Dataclass:
    """A class that only the author of a hostile file has. Pickle names it in the file."""

    def __init__(self, payload: Any):
        self.payload = payload


def _called(function: Any, value: Any) -> Pickled:
    """Return what calls a function, which is itself made by a call, when it is unpickled."""
    return Pickled(list, (Pickled(map, (function, [value])),))


def _beside(path: Path, name: str, write: Callable[[Path], Any]) -> str:
    """Write another hostile file beside a checkpoint, and return its path."""
    other = path.parent / name
    other.parent.mkdir(exist_ok=True)
    write(other)
    return str(other)


def _program(command: str) -> str:
    return f"__import__('os').system({command!r})"


def _array(command: str) -> np.ndarray:
    return np.array([Pickled(os.system, (command,))], dtype=object)


# Functions that programs have imported anyway, and that run what they get: a command, or a file that is
# written beside the checkpoint.
FUNCTIONS: dict[str, Callable[[Path, str], Any]] = {
    "os.system": lambda p, c: Pickled(os.system, (c,)),
    "subprocess": lambda p, c: Pickled(subprocess.Popen, (c, -1, None, None, None, None, None, True, True)),
    "eval": lambda p, c: Pickled(eval, (_program(c),)),
    "exec": lambda p, c: Pickled(exec, (_program(c),)),
    "getattr": lambda p, c: _called(Pickled(getattr, (Pickled(__import__, ("os",)), "system")), c),
    "runpy": lambda p, c: Pickled(
        runpy.run_path, (_beside(p, "evil.py", lambda f: f.write_text(_program(c))),)
    ),
    "functools.partial": lambda p, c: _called(functools.partial(eval), _program(c)),
    "operator": lambda p, c: _called(operator.methodcaller("system", c), Pickled(__import__, ("os",))),
    "timeit": lambda p, c: Pickled(timeit.timeit, (_program(c), "pass", timeit.default_timer, 1)),
    "pickle in a pickle": lambda p, c: Pickled(pickle.loads, (pickle.dumps(Pickled(eval, (_program(c),))),)),
    "torch.load": lambda p, c: _called(
        functools.partial(torch.load, weights_only=False),
        _beside(p, "evil.pt", lambda f: torch.save({"a": Pickled(os.system, (c,))}, f)),
    ),
    "numpy.load": lambda p, c: Pickled(
        np.load, (_beside(p, "evil.npy", lambda f: np.save(f, _array(c), allow_pickle=True)), None, True)
    ),
    "fairseq's import of a plugin": lambda p, c: Pickled(
        import_user_module,
        (
            Namespace(
                user_dir=str(Path(_beside(p, "evil/__init__.py", lambda f: f.write_text(_program(c)))).parent)
            ),
        ),
    ),
}


def _values(materials: Materials) -> Iterator[Case]:
    """Yield checkpoints that are whole but for one value."""
    for name, function in FUNCTIONS.items():

        def make(path: Path, command: str, function: Callable[[Path, str], Any] = function) -> None:
            torch.save(checkpoint(extra_state={"value": function(path, command)}), path)

        yield _refused(materials, f"value: {name}", make, ("generate", "train"))

    def nested(wrap: Callable[[Any], Any]) -> Make:
        def make(path: Path, command: str) -> None:
            payload = Pickled(os.system, (command,))
            torch.save(checkpoint(extra_state={"value": wrap(payload)}), path)

        return make

    wraps: dict[str, Callable[[Any], Any]] = {
        "an array of objects": lambda payload: np.array([payload], dtype=object),
        "a class of the author's": _Dataclass,
        "options": lambda payload: Namespace(a=[Namespace(b=payload)]),
        "a key of a dictionary": lambda payload: {(1, 2): OrderedDict(a=payload)},
        "a default factory": lambda payload: Pickled(defaultdict, (payload,)),
    }
    for name, wrap in wraps.items():
        yield _refused(materials, f"nested: {name}", nested(wrap))
    for name, value in {
        "a hydra node": {"_target_": "os.system", "command": "touch " + RAN},
        "an interpolation of the environment": "${oc.env:SECRET}",
        "an interpolation in options": ["${oc.env:SECRET,x}", {"a": "${oc.decode:${oc.env:SECRET}}"}],
    }.items():
        yield _shows_no_secret(materials, f"options: {name}", value)


def _shows_no_secret(materials: Materials, name: str, value: Any) -> Case:
    """Return a case of a checkpoint with a value among its options, which is neither run nor resolved."""

    def run(folder: Path) -> str:
        state = torch.load(materials.checkpoint, weights_only=False)
        state["cfg"]["common"] = {**dict(state["cfg"]["common"]), "wandb_project": value}
        state["cfg"]["model"]["evil"] = value
        path = folder / "hostile.pt"
        torch.save(state, path)
        environment = {**materials.environment, "SECRET": SECRET}
        for what in ("generate", "average", "train"):
            ended = call(_words(materials, what, path), folder, environment)
            if (folder / RAN).exists():
                return f"{what} ran the payload"
            if SECRET in ended.out + ended.err:
                return f"{what} shows the environment"
            if wrong := judged(ended):
                return f"{what} {wrong}"
        if any(SECRET.encode() in each.read_bytes() for each in folder.rglob("*") if each.is_file()):
            return "a file has a value of the environment"
        return ""

    return Case(name, run)


# --- archives -----------------------------------------------------------------------------------------------


def _zips(materials: Materials) -> Iterator[Case]:
    def rewritten(
        change: Callable[[dict[str, bytes]], dict[str, bytes]], compression: int = zipfile.ZIP_STORED
    ) -> Make:
        def make(path: Path, command: str) -> None:
            with zipfile.ZipFile(materials.checkpoint) as archive:
                members = {name: archive.read(name) for name in archive.namelist()}
            with zipfile.ZipFile(path, "w", compression) as archive:
                for name, content in change(members).items():
                    archive.writestr(name, content)

        return make

    def without_pickle(members: dict[str, bytes]) -> dict[str, bytes]:
        return {name: content for name, content in members.items() if not name.endswith("data.pkl")}

    def script(path: Path, command: str) -> None:
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), path)

    yield _refused(
        materials,
        "zip: names that lead out",
        rewritten(lambda m: {f"../../{n}": c for n, c in m.items()}),
        runs=False,
    )
    yield _refused(
        materials,
        "zip: absolute names",
        rewritten(lambda m: {f"/tmp/{n}": c for n, c in m.items()}),
        runs=False,
    )
    yield _refused(materials, "zip: no pickle", rewritten(without_pickle), runs=False)

    def with_bomb(members: dict[str, bytes]) -> dict[str, bytes]:
        """Make one storage a gigabyte of zeros, which is a megabyte in the archive."""
        storage = next(name for name in members if "/data/" in name)
        return {**members, storage: b"\0" * 2**30}

    bomb = rewritten(with_bomb, zipfile.ZIP_DEFLATED)
    yield _refused(materials, "zip: a bomb", bomb, ("average",), runs=False)
    yield _refused(materials, "zip: TorchScript", script, runs=False)


def _tars(materials: Materials) -> Iterator[Case]:
    """Yield archives of talks with one member that should not be there."""

    def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, target
        return info

    def bomb() -> bytes:
        return b"\0" * 2**28

    members: dict[str, tuple[str, Any]] = {
        "a name that leads out": ("../../escaped", "x"),
        "an absolute name": ("/tmp/soak-escaped", "x"),
        "a link that leads out": ("de-en/train.tags.de-en.de", member("", tarfile.SYMTYPE, "/etc/passwd")),
        "a hard link that leads out": (
            "de-en/train.tags.de-en.de",
            member("", tarfile.LNKTYPE, "/etc/passwd"),
        ),
        "a device": ("de-en/train.tags.de-en.de", member("", tarfile.CHRTYPE)),
        "a pipe": ("de-en/train.tags.de-en.de", member("", tarfile.FIFOTYPE)),
        "a folder for a file": ("de-en/train.tags.de-en.de", member("", tarfile.DIRTYPE)),
        "a bomb": (BOMB, bomb()),
    }
    for name, (where, what) in members.items():

        def run(folder: Path, where: str = where, what: Any = what) -> str:
            if isinstance(what, tarfile.TarInfo):
                what.name = where
            content = {**talks_members(TOY["train"][:60], TOY["test"]), where: what}
            archive = write_tar(folder / "de-en.tgz", content)
            words = [
                *materials.ours,
                "prepare",
                "iwslt14-de-en",
                "--archive",
                archive,
                "--out",
                folder / "data/out",
            ]
            ended = call([*words, "--bpe-merges", "50", "--workers", "1"], folder, materials.environment)
            out = [
                *folder.parent.glob("escaped*"),
                *folder.rglob("escaped*"),
                *Path("/tmp").glob("soak-escaped*"),
            ]
            if out:
                return f"writes {out[0]}"
            if any(b"root:" in path.read_bytes() for path in folder.rglob("*.de") if path.is_file()):
                return "reads a file of this machine"
            size = sum(path.stat().st_size for path in (folder / "data").rglob("*") if path.is_file())
            if wrong := judged(ended) or (f"writes {size} bytes" if size > SIZE else ""):
                return wrong
            # A member of a name that is not needed is not read, however large it is.
            return "accepts it" if ended.status == 0 and where != BOMB else ""

        yield Case(f"tar: {name}", run)


# --- YAML ---------------------------------------------------------------------------------------------------


def _yaml(materials: Materials) -> Iterator[Case]:
    tags = ["!!python/object/apply:os.system", "!!python/object/new:os.system", "!!python/name:os.system"]
    for tag in tags:
        for option in ("row", "table", "resources", "mechanisms", "claims"):

            def run(folder: Path, tag: str = tag, option: str = option) -> str:
                payload = f"{tag} [touch {folder / RAN}]" if "apply" in tag or "new" in tag else tag
                path = folder / "configs/mine" / ("table.yaml" if option == "table" else "plain.yaml")
                path.parent.mkdir(parents=True)
                for each in (materials.folder / "configs/mine").iterdir():
                    (path.parent / each.name).write_bytes(each.read_bytes())
                path.write_text(f"{path.read_text()}\nmore: {payload}\n")
                table = ["table", folder / "configs/mine/table.yaml", "--data", folder]
                words = {
                    "row": [*table, "--dry-run"],
                    "table": [*table, "--dry-run"],
                    "resources": [*table, "--run", "--launcher", "slurm", "--resources", path],
                    "mechanisms": [
                        "ablate",
                        materials.folder / "bin",
                        "--out",
                        "a",
                        "--mechanisms",
                        path,
                        "--dry-run",
                    ],
                    "claims": ["evidence", path],
                }[option]
                ended = call([*materials.ours, *words], folder, materials.environment)
                if (folder / RAN).exists():
                    return "runs the payload"
                return judged(ended) or ("accepts it" if ended.status == 0 else "")

            yield Case(f"YAML: {tag} in {option}", run)


# --- the report ---------------------------------------------------------------------------------------------

HTML = [
    "<script>document.title='ran'</script>",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' onmouseover='alert(1)",
    "javascript:alert(1)",
    "<!--",
    "]]><iframe src=//x>",
    "\u202e<b>",
]


class _Elements(HTMLParser):
    """The elements of a page in their order, with the names of their attributes, and the text of programs."""

    def __init__(self, page: str):
        super().__init__()
        self.found: list[object] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, sorted(name for name, _ in attrs)))
        self.found += [value for _, value in attrs if (value or "").lower().startswith("javascript:")]
        self.is_program = tag == "script" and "type" not in dict(attrs)

    def handle_endtag(self, tag: str) -> None:
        self.found.append(f"/{tag}")
        self.is_program = False

    def handle_comment(self, data: str) -> None:
        self.found.append("a comment")

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script" and self.is_program:
            self.found.append(hash(data))


def foreign(page: str, plain: str) -> str:
    """Return what a page has that a page without hostile text has not, or ""."""
    ours, theirs = (_Elements(each).found for each in (page, plain))
    return next(
        (f"{one} in place of {other}" for one, other in zip_longest(ours, theirs) if one != other), ""
    )


def _pages(materials: Materials) -> Iterator[Case]:
    """Yield analyses with HTML in words, labels and file names; nothing of it may become an element."""

    def page_of(inside: Path, folder: Path, label: str) -> tuple[Ended, str]:
        words = ["report", inside, "--out", folder / "page.html", "--label", label]
        ended = call([*materials.ours, *words], folder, materials.environment)
        return ended, (folder / "page.html").read_text(encoding="utf-8") if ended.status == 0 else ""

    for html in HTML:
        for where in ("word", "label", "name"):

            def run(folder: Path, html: str = html, where: str = where) -> str:
                (folder / "plain").mkdir()
                _, plain = page_of(materials.folder / "inside", folder / "plain", "plain")
                inside = folder / (re.sub("/", "", html) if where == "name" else "inside")
                for path in (materials.folder / "inside").rglob("*"):
                    target = inside / path.relative_to(materials.folder / "inside")
                    target.parent.mkdir(parents=True, exist_ok=True)
                    if path.is_file():
                        data = path.read_bytes()
                        if where == "word" and path.suffix == ".json":
                            data = data.replace(b'"w1"', json.dumps(html).encode())
                        target.write_bytes(data)
                ended, page = page_of(inside, folder, html if where == "label" else "plain")
                if wrong := judged(ended):
                    return wrong
                found = foreign(page, plain) if page else ""
                return f"the page has {found}" if found else ""

            yield Case(f"page: {html[:30]!r} as {where}", run)
