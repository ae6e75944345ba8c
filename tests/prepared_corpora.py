"""Write small archives in the form of the published ones, and prepare corpora from them."""

import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile

import pytest

from modular_fairseq_cli.toy_corpus import command as toy_corpus
from tests.places import PYTHON, ROOT

TALKS_TEST = ["TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012"]

TOY = toy_corpus.draw_splits({"train": 480, "valid": 30, "test": 30}, seed=3)


def sentence(words):
    """Return a toy sentence as people write it: "der mann lacht ." becomes "Der mann lacht."."""
    return (words[0].upper() + words[1:]).replace(" .", ".").replace(" ?", "?").replace(" ,", ",")


def sides(pairs):
    return {lang: [pair[i] for pair in pairs] for i, lang in enumerate(("de", "en"))}


def write_tar(path, members):
    """Write an archive with `members`, which maps names to text or bytes.

    A value may also be a TarInfo, for members that no archive should hold.
    """
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            if isinstance(content, tarfile.TarInfo):
                tar.addfile(content)
                continue
            data = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def lines(path):
    text = path.read_bytes().decode()
    assert text == "" or text.endswith("\n")
    return text.split("\n")[:-1]


def all_files(folder):
    """Return the content of every file below the folder, without the log and the lock, which may differ."""
    paths = (
        path for path in folder.rglob("*") if path.is_file() and path.name not in ("preprocess.log", ".lock")
    )
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.fixture(scope="session")
def scripts_root(tmp_path_factory):
    root = tmp_path_factory.mktemp("root")
    (root / ".venv/bin").mkdir(parents=True)
    program = root / ".venv/bin/modular-fairseq"
    call = f'exec "{PYTHON}" -P -m modular_fairseq_cli "$@"'
    program.write_text(f"#!/bin/sh\nexport PYTHONPATH='{root}'\n{call}\n")
    program.chmod(0o755)
    (root / "scripts").mkdir()
    (root / "scripts/setup.sh").write_text("")
    # The package finds nothing else of the project beside it. What it starts may be a preloaded Python.
    (root / "sitecustomize.py").write_text(
        "import os, sys\nsys.executable = os.environ.get('FAST_PYTHON', sys.executable)\n"
    )
    for folder in ("data-prep", "modular_fairseq_cli"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return root


def command(root, script, *args):
    return ["bash", str(root / f"data-prep/prepare-{script}.sh"), *map(str, args)]


def prepare(root, script, *args, **env):
    own = {"OMP_NUM_THREADS": "1", "FAST_PYTHON": sys.executable}
    environment = {**os.environ, **own, **{name: str(value) for name, value in env.items()}}
    return subprocess.run(command(root, script, *args), env=environment, capture_output=True, text=True)


def talks_members(train, test):
    """Return the members of de-en.tgz.

    Each 20th train sentence is the title that begins a talk. The sentence after it is the description.
    """
    members = {"de-en/README": "toy talks\n"}
    for lang in ("de", "en"):
        tagged = []
        for i, words in enumerate(sides(train)[lang]):
            if i % 20 == 0:
                tagged += [
                    f"<url>http://www.ted.com/talks/{i}</url>",
                    "<keywords>talks, dogs</keywords>",
                    f"<talkid>{i}</talkid>",
                ]
                tagged.append(f"<title>{sentence(words)}</title>")
            else:
                tagged.append(
                    f"<description>{sentence(words)}</description>" if i % 20 == 1 else f" {sentence(words)} "
                )
        members[f"de-en/train.tags.de-en.{lang}"] = "".join(line + "\n" for line in tagged)
        for n, name in enumerate(TALKS_TEST):
            segments = [
                f'<seg id="{i + 1}"> {sentence(words)} </seg>'
                for i, words in enumerate(sides(test[n * 6 : n * 6 + 6])[lang])
            ]
            document = [
                '<?xml version="1.0" encoding="UTF-8"?>',
                "<mteval>",
                '<doc docid="1">',
                "<talkid>1</talkid>",
                *segments,
                "</doc>",
            ]
            members[f"de-en/IWSLT14.{name}.de-en.{lang}.xml"] = "\n".join([*document, "</mteval>"]) + "\n"
    return members


@pytest.fixture(scope="session")
def talks_archive(tmp_path_factory):
    return write_tar(tmp_path_factory.mktemp("talks") / "de-en.tgz", talks_members(TOY["train"], TOY["test"]))


@pytest.fixture(scope="session")
def talks(scripts_root, talks_archive, tmp_path_factory):
    out = tmp_path_factory.mktemp("iwslt") / "out"
    result = prepare(
        scripts_root,
        "iwslt14-de-en",
        "--out",
        out,
        "--bpe-merges",
        200,
        "--workers",
        2,
        IWSLT14_URL=f"file://{talks_archive.parent}",
    )
    assert result.returncode == 0, result.stderr
    return out, result


DOCUMENTS = {"train": [[de for de, _ in TOY["train"][k : k + 3]] for k in range(0, 300, 3)]}
DOCUMENTS |= {split: [[de for de, _ in TOY[split][:5]], [TOY[split][5][0]]] for split in ("valid", "test")}


def write_documents(folder):
    """Write a text of documents with blank lines between them; its training text is compressed."""
    folder.mkdir()
    for split, found in DOCUMENTS.items():
        text = "\n".join("".join(f"{line}\n" for line in document) for document in found).encode()
        path = folder / f"{split}.txt"
        path.write_bytes(text) if split != "train" else path.with_suffix(".txt.gz").write_bytes(
            gzip.compress(text)
        )
    return folder


@pytest.fixture(scope="session")
def pretrained_text(scripts_root, tmp_path_factory):
    """Prepare the text on which a model is pre-trained, in lower case, and return its folder."""
    folder = tmp_path_factory.mktemp("pretraining")
    text, out = write_documents(folder / "text"), folder / "out"
    result = prepare(scripts_root, "text", text, "--out", out, "--bpe-merges", 60, "--lowercase")
    assert result.returncode == 0, result.stderr
    return out
