"""Test the recipes of `modular-fairseq prepare` for classifications and for the Books corpus."""

import gzip
import json
import re
import zipfile

import pytest
from fairseq.data import Dictionary, data_utils

from modular_fairseq_cli import main as cli
from modular_fairseq_cli.corpora.binarize import write_classes
from modular_fairseq_cli.corpora.labels import LONGEST, SHORTEST
from modular_fairseq_cli.toy_corpus.lexicon import NOUNS_OF_KIND
from tests.prepared_corpora import TOY, lines, prepare

SENTENCES = [de for de, _ in TOY["train"]]
PAIRS = {
    "train": [(SENTENCES[i], SENTENCES[i + 1], "cbac"[i % 4]) for i in range(60)],
    "valid": [(SENTENCES[i], SENTENCES[i + 2], "ba"[i % 2]) for i in range(8)],
    "valid1": [(SENTENCES[i], SENTENCES[i + 3], "ca"[i % 2]) for i in range(6)],
}


def refusal(result, code=1):
    assert result.returncode == code and "Traceback" not in result.stderr
    return result.stderr.splitlines()[-1].partition(": error: ")[2]


def write_pairs(folder, pairs=PAIRS, label=str):
    folder.mkdir()
    for split, rows in pairs.items():
        for kind, column in zip(("input0", "input1", "label"), zip(*rows, strict=True), strict=True):
            text = "".join(f"{label(each) if kind == 'label' else each}\n" for each in column)
            (folder / f"{split}.{kind}").write_text(text)
    return folder


def binarized(folder, split):
    """Return the words of a part of binarized data."""
    words = Dictionary.load(str(folder / "dict.txt"))
    data = data_utils.load_indexed_dataset(str(folder / split), words)
    return [words.string(line, bpe_symbol="@@ ") for line in data]


def test_pairs_get_the_words_of_the_text_and_labels_their_own(scripts_root, pretrained_text, tmp_path):
    folder, out = write_pairs(tmp_path / "pairs"), tmp_path / "out"
    (folder / "train.input1.gz").write_bytes(gzip.compress((folder / "train.input1").read_bytes()))
    (folder / "train.input1").unlink()
    result = prepare(scripts_root, "classes", folder, "--like", pretrained_text, "--out", out)
    assert result.returncode == 0, result.stderr
    for split, rows in PAIRS.items():
        for kind, column in zip(("input0", "input1"), list(zip(*rows, strict=True))[:2], strict=True):
            known = (pretrained_text / "bin/dict.txt").read_text()
            assert (out / f"bin/{kind}/dict.txt").read_text() == known
            texts = binarized(out / f"bin/{kind}", split)
            assert [text.replace("&apos;", "'") for text in texts] == [each.lower() for each in column]
        assert binarized(out / "bin/label", split) == [label for _, _, label in rows]
    assert lines(out / "bin/label/dict.txt") == ["a 15", "b 15", "c 30", "madeupword0000 0"]
    settings = json.loads((out / "settings").read_text())
    assert (settings["inputs"], settings["splits"]) == (["input0", "input1"], [*PAIRS])
    again = prepare(scripts_root, "classes", folder, "--like", pretrained_text, "--out", out)
    assert "is already prepared" in again.stderr
    (folder / "valid.label").write_text("c\n" * 8)
    said = refusal(prepare(scripts_root, "classes", folder, "--like", pretrained_text, "--out", out))
    assert "valid.label" in said


def test_the_dictionary_of_classes_differs_from_fairseqs_in_its_order_alone(tmp_path):
    for number in range(2, 14):
        names = [f"class{name}" for name in range(number)]
        labels = [name for place, name in enumerate(names) for _ in range(place + 1)]
        (tmp_path / "labels").write_text("\n".join(labels) + "\n")
        write_classes(tmp_path / "labels", tmp_path / "dict.txt")
        known = Dictionary()
        for label in labels:
            known.add_symbol(label)
        known.finalize(padding_factor=8)
        known.save(str(tmp_path / "fairseqs.txt"))
        found = lines(tmp_path / "dict.txt")
        assert found == sorted(found) == sorted(lines(tmp_path / "fairseqs.txt"))


def test_values_of_single_texts_are_copied(scripts_root, pretrained_text, tmp_path):
    folder, out = tmp_path / "values", tmp_path / "out"
    write_pairs(folder, label=lambda each: {"a": "0.5", "b": "-1e3", "c": "2"}[each])
    for path in folder.glob("*.input1"):
        path.unlink()
    command = ("classes", folder, "--like", pretrained_text, "--out", out)
    assert prepare(scripts_root, *command, "--values").returncode == 0
    for split in PAIRS:
        given = (folder / f"{split}.label").read_text()
        assert (out / f"bin/label/{split}.label").read_text() == given
    assert {path.name for path in (out / "bin").iterdir()} == {"input0", "label"}


@pytest.mark.parametrize(
    ("file", "line", "text", "said"),
    [
        ("train.label", 3, "two words", r"'two words' is no name of a class, which has no spaces"),
        ("train.label", 5, "<unk>", r"<unk> is a symbol of fairseq and cannot be the name of a class"),
        ("train.label", 6, "madeupword0001", r"madeupword0001 is a symbol of fairseq"),
        ("valid.label", 2, "new", r"train has no class new; correct the label"),
        ("valid.input1", 4, " ", r"is empty; remove this line from all files of valid"),
        ("train.input0", 2, "\u200b", r"is empty; remove this line from all files of train"),
        ("train.input1", 0, None, r"has 59 lines and .*train.input0 has 60"),
        ("valid1.label", -1, None, r"valid1.label is missing: the folder needs the label of each line"),
    ],
)
def test_bad_classes_are_refused_by_file_and_line(
    scripts_root, pretrained_text, tmp_path, file, line, text, said
):
    folder = write_pairs(tmp_path / "pairs")
    given = (folder / file).read_text().splitlines()
    if text is None:
        (folder / file).unlink() if line < 0 else (folder / file).write_text("\n".join(given[:-1]) + "\n")
    else:
        given[line - 1] = text
        (folder / file).write_text("\n".join(given) + "\n")
    out = tmp_path / "out"
    found = refusal(prepare(scripts_root, "classes", folder, "--like", pretrained_text, "--out", out))
    assert re.search(said, found), found
    assert (f"line {line}:" in found) == (text is not None) and not (out / "text").exists()


def test_second_inputs_of_a_part_need_those_of_train(scripts_root, pretrained_text, tmp_path):
    folder = write_pairs(tmp_path / "pairs")
    command = ("classes", folder, "--like", pretrained_text, "--out", tmp_path / "out")
    (folder / "train.input1").unlink()
    said = "train.input1 is missing, but there is {0}.input1; add the second inputs of train, or remove "
    said = f"{folder}/{said}{{0}}.input1"
    assert refusal(prepare(scripts_root, *command)) == said.format("valid")
    for split in ("valid", "valid1"):
        (folder / f"{split}.input1").unlink()
    (folder / "test.input1.gz").write_bytes(gzip.compress(b"a text\n"))
    assert refusal(prepare(scripts_root, *command)) == said.format("test")


def test_values_must_be_numbers_and_classes_several(scripts_root, pretrained_text, tmp_path):
    folder = write_pairs(tmp_path / "pairs")
    command = ("classes", folder, "--like", pretrained_text, "--out", tmp_path / "out")
    assert "train.label, line 1: 'c' is no number" in refusal(prepare(scripts_root, *command, "--values"))
    (folder / "train.label").write_text("a\n" * 60)
    assert "has only the class a" in refusal(prepare(scripts_root, *command))
    assert "--like is missing" in refusal(prepare(scripts_root, *command[:2], "--out", tmp_path / "o"), 2)


GLUE = {
    "mnli": (
        "MNLI.zip",
        ["sentence1", "sentence2"],
        "gold_label",
        ["train", "dev_matched", "dev_mismatched"],
    ),
    "qnli": ("QNLIv2.zip", ["question", "sentence"], "label", ["train", "dev"]),
    "sst-2": ("SST-2.zip", ["sentence"], "label", ["train", "dev"]),
    "sts-b": ("STS-B.zip", ["sentence1", "sentence2"], "score", ["train", "dev"]),
}


def write_glue(folder, task, damage=lambda text: text):
    """Write an archive as GLUE's, with further columns and quotation marks that mean nothing."""
    name, columns, label, members = GLUE[task]
    heads = ["index", *columns, "other", label]
    with zipfile.ZipFile(folder / name, "w") as archive:
        for number, member in enumerate(members):
            rows = ["\t".join(heads)]
            for i in range(20 - 5 * number):
                texts = [f'{SENTENCES[i + k]} "' for k in range(len(columns))]
                value = f"{i % 6}.000" if label == "score" else ("yes", "no")[i % 2]
                rows.append("\t".join([str(i), *texts, "x", value]))
            content = damage("\n".join(rows) + "\n")
            archive.writestr(f"{name.partition('.')[0].removesuffix('v2')}/{member}.tsv", content)
    return folder / name


@pytest.mark.parametrize("task", GLUE)
def test_glue_is_read_as_published(scripts_root, pretrained_text, tmp_path, task):
    archive, out = write_glue(tmp_path, task), tmp_path / "out"
    given = ("--archive", archive, "--like", pretrained_text, "--out", out)
    result = prepare(scripts_root, f"glue-{task}", *given)
    assert result.returncode == 0, result.stderr
    _, columns, _, members = GLUE[task]
    for number, split in enumerate(["train", "valid", "valid1"][: len(members)]):
        size = 20 - 5 * number
        for k in range(len(columns)):
            assert lines(out / f"text/{split}.input{k}") == [f'{SENTENCES[i + k]} "' for i in range(size)]
        if task == "sts-b":
            values = [float(each) for each in lines(out / f"bin/label/{split}.label")]
            assert values == pytest.approx([i % 6 / 5 for i in range(size)])
        else:
            assert binarized(out / "bin/label", split) == [("yes", "no")[i % 2] for i in range(size)]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (
            lambda text: text.replace("question", "q"),
            "has no column question, so it is not the official file",
        ),
        (lambda text: text.replace("\tx\t", "\t"), "line 2: has 4 cells and not 5, so it is damaged"),
        (
            lambda text: text.replace("\tno\n", "\t \n"),
            "QNLIv2.zip, QNLI/train.tsv, line 3: has nothing in the column label, so it is damaged; download "
            "it again",
        ),
        (lambda text: text.splitlines()[0] + "\n", "has no line below the names of the columns"),
    ],
)
def test_damaged_files_of_glue_are_refused(scripts_root, pretrained_text, tmp_path, damage, said):
    archive = write_glue(tmp_path, "qnli", damage)
    given = ("--archive", archive, "--like", pretrained_text, "--out", tmp_path / "out")
    assert said in refusal(prepare(scripts_root, "glue-qnli", *given))


def test_a_value_that_is_no_number_is_named_with_its_line(scripts_root, pretrained_text, tmp_path):
    archive = write_glue(tmp_path, "sts-b", lambda text: text.replace("\t1.000", "\thigh", 1))
    given = ("--archive", archive, "--like", pretrained_text, "--out", tmp_path / "out")
    said = refusal(prepare(scripts_root, "glue-sts-b", *given))
    assert "STS-B/train.tsv, line 3: 'high' is no number" in said  # line 1 has the names of the columns


def test_pairs_of_documents_are_the_same_or_others(scripts_root, pretrained_text, tmp_path):
    folder, out = tmp_path / "text", tmp_path / "out"
    folder.mkdir()
    words = [word for sentence in SENTENCES for word in sentence.split()]
    documents = [[f"d{n}l{k} " + " ".join(words[n : n + 8 + 6 * k]) for k in range(7)] for n in range(12)]
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text(
            "\n\n".join("\n".join(document) for document in documents) + "\n"
        )
    result = prepare(scripts_root, "same-document", folder, "--like", pretrained_text, "--out", out)
    assert result.returncode == 0, result.stderr
    used = [
        " ".join(line.split()[:LONGEST])
        for document in documents
        for line in document
        if len(line.split()) >= SHORTEST
    ]
    first, second, labels = (lines(out / f"text/train.{kind}") for kind in ("input0", "input1", "label"))
    assert first == used and len(used) == 12 * 6 and {*second} <= {*used}
    for one, other, label in zip(first, second, labels, strict=True):
        of_one, of_other = (line.split("l")[0] for line in (one, other))
        assert one != other and (of_one == of_other) == (label == "same")
    assert 20 < labels.count("same") < 52
    others = lines(out / "text/valid.label")
    assert others != labels  # each part has draws of its own
    one = tmp_path / "one"
    one.mkdir()
    for split in ("train", "valid", "test"):
        (one / f"{split}.txt").write_text("\n".join(documents[0]) + "\n")
    given = ("--like", pretrained_text, "--out", tmp_path / "second")
    assert "fewer than two documents" in refusal(prepare(scripts_root, "same-document", one, *given))


def test_books_are_split_by_their_lines(scripts_root, tmp_path):
    folder, out = tmp_path / "books", tmp_path / "out"
    folder.mkdir()
    (folder / "books_large_p1.txt").write_text("\n".join(SENTENCES[:150]) + "\n")
    (folder / "books_large_p2.txt.gz").write_bytes(
        gzip.compress(("\n".join(SENTENCES[150:300]) + "\n").encode())
    )
    given = ("books", folder, "--bpe-merges", 60, "--out", out)
    said = refusal(prepare(scripts_root, *given))
    assert "of 300 lines with text, 10 % cannot be for training and twice 10,000 for validation and" in said
    result = prepare(scripts_root, *given, "--held-out", 20, "--percent", 55)
    assert result.returncode == 0, result.stderr
    for split, begin, end in (("train", 0, 165), ("valid", 260, 280), ("test", 280, 300)):
        assert lines(out / f"text/{split}.txt") == SENTENCES[begin:end]


def test_blank_lines_of_books_do_not_count(scripts_root, tmp_path):
    folder, out = tmp_path / "books", tmp_path / "out"
    folder.mkdir()
    text = "".join(f"{SENTENCES[n]}\n" + ("\n" if n % 8 == 7 else "") for n in range(60))
    (folder / "books_large_p1.txt").write_text(text)
    (folder / "books_large_p2.txt").write_text(" \n\u200b\n" * 10 + f"{SENTENCES[60]}\n" + "\n" * 20)
    given = ("books", folder, "--bpe-merges", 60, "--out", out, "--held-out", 10)
    said = refusal(prepare(scripts_root, *given, "--percent", 70))
    assert "of 61 lines with text, 70 % cannot be for training and twice 10" in said
    result = prepare(scripts_root, *given, "--percent", 40)
    assert result.returncode == 0, result.stderr
    for split, begin, end, documents in (
        ("train", 0, 24, ["9", "9", "8"]),
        ("valid", 41, 51, ["8", "3"]),
        ("test", 51, 61, ["6", "24", "1"]),
    ):
        found = lines(out / f"text/{split}.txt")
        assert [line for line in found if line.strip(" \u200b")] == SENTENCES[begin:end]
        assert found[0] == SENTENCES[begin] and found[-1] == SENTENCES[end - 1]
        assert lines(out / f"text/{split}.documents") == documents


def test_a_text_may_consist_of_files_in_several_folders(scripts_root, tmp_path):
    for name in ("one/train.txt", "two/part.en", "two/valid.en", "one/test.txt"):
        path = tmp_path / "texts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{name} {line}\n" for line in SENTENCES[:30]))
    names = ["--train", "one/train,two/part.en", "--valid-files", "two/valid.en", "--test-files", "one/test"]
    out = tmp_path / "out"
    result = prepare(scripts_root, "text", tmp_path / "texts", *names, "--bpe-merges", 60, "--out", out)
    assert result.returncode == 0, result.stderr
    expected = {
        "train": ["one/train.txt", "two/part.en"],
        "valid": ["two/valid.en"],
        "test": ["one/test.txt"],
    }
    for split, files in expected.items():
        assert [line.split()[0] for line in lines(out / f"text/{split}.txt")] == [
            name for name in files for _ in range(30)
        ]
    for wrong in ("../train", "/train", "one//train", "a,a"):
        bad = ("text", tmp_path / "texts", "--train", wrong, "--out", tmp_path / "other")
        assert f"--train {wrong}: give different names of files" in refusal(prepare(scripts_root, *bad), 2)


@pytest.mark.parametrize(
    ("kind", "labels"),
    [
        ("plural", {"singular", "plural"}),
        ("topic", {"same", "other"}),
        ("entailment", {"entailment", "contradiction", "neutral"}),
    ],
)
def test_toy_classifications_follow_from_the_words(tmp_path, kind, labels):
    sizes = ("--train", "300", "--valid", "20", "--test", "20")
    for name in ("one", "two"):
        cli.main(["toy-corpus", str(tmp_path / name), "--classes", kind, *sizes])
    files = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "two").iterdir()}
    found = lines(tmp_path / "one/train.label")
    assert {*found} == labels and all(found.count(label) > 40 for label in labels) and len(found) == 300
    first = lines(tmp_path / "one/train.input0")
    nouns = [noun for nouns in NOUNS_OF_KIND.values() for noun in nouns]
    if kind == "plural":
        several = {noun.english_plural for noun in nouns}
        assert found == ["plural" if several & {*line.split()} else "singular" for line in first]
    if kind == "topic":
        things = {word: n for n, noun in enumerate(nouns) for word in (noun.english, noun.english_plural)}
        pairs = zip(first, lines(tmp_path / "one/train.input1"), strict=True)
        named = [[{*map(things.get, line.split())} - {None} for line in pair] for pair in pairs]
        assert found == ["same" if one & other else "other" for one, other in named]
    if kind == "entailment":
        second = lines(tmp_path / "one/train.input1")
        for one, other, label in zip(first, second, found, strict=True):
            differ = [a != b for a, b in zip(one.split(), other.split(), strict=False)]
            assert (label == "entailment") == (one == other)
            assert label != "contradiction" or (sum(differ) == 1 and len(one.split()) == len(other.split()))
            assert label != "neutral" or other in first


def test_toy_similarities_are_shares_of_words(tmp_path):
    sizes = ("--train", "300", "--valid", "20", "--test", "20")
    cli.main(["toy-corpus", str(tmp_path / "out"), "--classes", "similarity", *sizes])
    columns = (lines(tmp_path / f"out/train.{kind}") for kind in ("input0", "input1", "label"))
    values = []
    for one, other, value in zip(*columns, strict=True):
        first, second = {*one.split()}, {*other.split()}
        assert float(value) == pytest.approx(len(first & second) / len(first | second), abs=5.1e-4)
        values.append(float(value))
    assert min(values) == 0 and max(values) > 0.6
