"""Test scripts/toolkits.py, which compares this project with stock fairseq and JoeyNMT."""

import json
import shutil
import stat
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch
import yaml
from fairseq.models.transformer.transformer_config import TransformerConfig
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase

from modular_fairseq_cli import main as cli
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.training_log import read_log
from tests.places import PYTHON, ROOT
from tests.scripts import script

# It stands for the Python that has JoeyNMT: it "trains", and translates the test set into its references.
STAND_IN = """#!/bin/sh
if [ "$1" = -c ]; then
    case "$2" in
        *joeynmt.training*) echo '{"python": "3.9", "torch": "1.0", "cuda": false}' ;;
        *) echo 120 ;;  # the steps of a checkpoint
    esac
    exit 0
fi
[ "$1 $2" = "-m joeynmt" ] || exit 9
[ -z "$PYTHONPATH" ] && [ "$OMP_NUM_THREADS" = 1 ] || exit 8
if [ "$3" = train ]; then
    [ -s "$4" ] && [ "$5" = --skip-test ] || exit 7
    echo "Training ended"
else
    [ "$5" = --output-path ] || exit 6
    cp REFERENCES "$6.test"
fi
"""


@pytest.fixture(scope="module")
def toolkits():
    return script("toolkits")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """64 sentences: stock fairseq drops a last batch whose size is no multiple of 8."""
    folder = tmp_path_factory.mktemp("corpus")
    cli.main(["toy-corpus", str(folder / "text"), "--train", "64", "--valid", "8", "--test", "8"])
    words = ["--source-lang", "de", "--target-lang", "en", "--out", str(folder / "out")]
    cli.main(["prepare", "raw", str(folder / "text"), *words, "--bpe-merges", "100"])
    return folder / "out"


@pytest.fixture
def args(corpus, tmp_path):
    python = tmp_path / "python"
    python.write_text(STAND_IN.replace("REFERENCES", str(corpus / "bpe/test.en")))
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "work").mkdir()
    return Namespace(corpus=corpus, work=tmp_path / "work", joeynmt=python, jobs=1, device="cpu")


def test_both_rows_of_fairseq_have_the_same_options(toolkits):
    stock, own = (toolkits.fairseq_options(row, "cpu") for row in ("fairseq", "modular_fairseq"))
    first, second = "--criterion label_smoothed_cross_entropy ", "--criterion modular_cross_entropy "
    assert stock.partition(first)[2] == own.partition(second)[2] != ""
    assert stock.startswith("--arch transformer --crit") and own.startswith(
        "--user-dir modular_fairseq --arch"
    )


def test_all_toolkits_are_trained_translated_scored_and_shown(toolkits, args, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(toolkits, "RESULTS", tmp_path / "results")
    (tmp_path / "results").mkdir()
    for name, value in (
        ("LAYERS", 1),
        ("WIDTH", 16),
        ("INNER", 16),
        ("HEADS", 2),
        ("EPOCHS", 2),
        ("SEEDS", (1,)),
    ):
        monkeypatch.setattr(toolkits, name, value)
    changed = []  # files that differ from the commit at which a run began
    monkeypatch.setattr(
        sys.modules["recorded_runs"],
        "git",
        lambda word, *_: "0123" if word == "rev-parse" else "".join(changed),
    )
    toolkits.run(args)
    found = {row: json.loads((tmp_path / f"results/{row}-1.json").read_text()) for row in toolkits.ROWS}
    joeynmt = found["joeynmt"]
    assert joeynmt["bleu"] == pytest.approx(100) and joeynmt["updates"] == 120
    assert (joeynmt["made"]["device"], joeynmt["made"]["torch"]) == ("cpu", "1.0")  # of its own Python
    assert found["fairseq"]["made"]["torch"] == torch.__version__
    stock, own = found["fairseq"], found["modular_fairseq"]
    assert stock["updates"] == own["updates"] > 2
    assert stock["data"] == own["data"] == joeynmt["data"] and own["commit"] == "0123"
    assert "--arch modular_transformer --criterion modular_cross_entropy" in own["options"]
    assert "--seed" not in own["options"] and "random_seed" not in joeynmt["options"]
    # the same model, data and budget: what differs is how numbers are rounded
    curves = [
        read_log(args.work / f"{row}-1/train.log")["valid"]["ppl"] for row in ("fairseq", "modular_fairseq")
    ]
    assert curves[0][-1][1] == pytest.approx(curves[1][-1][1], rel=2e-3)
    seconds = {"modular_fairseq": 1.5, "fairseq again": 1.5, "joeynmt": 4.0}
    times = toolkits.about_times(toolkits.comparison_of(own["data"], "cpu"), "cpu")
    times |= {"rounds": [seconds | {"fairseq": value} for value in (3.0, 1.0, 2.0)]}
    (tmp_path / "results/time-cpu.json").write_text(json.dumps(times))
    # times may be measured on another device, too
    on_gpu = toolkits.about_times(toolkits.comparison_of(own["data"], "cuda"), "cuda")
    on_gpu |= {"rounds": [dict.fromkeys([*toolkits.ROWS, "fairseq again"], 0.5)]}
    (tmp_path / "results/time-cuda.json").write_text(json.dumps(on_gpu))
    capsys.readouterr()
    toolkits.table(args)
    lines = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()
    ]
    assert lines[2][1:] == [
        f"{stock['bleu']:.2f}",
        "",  # one seed has no interval
        f"{stock['updates']:,}",
        "2.000 (1.000 to 3.000)",
        f"{2 * stock['updates'] / 2 / 60:.1f}",
        "0.500 (0.500 to 0.500)",
        f"{0.5 * stock['updates'] / 2 / 60:.1f}",
        "1",
    ]
    assert lines[0][4:8:2] == ["seconds per update, CPU", "seconds per update, GPU"]
    assert lines[4][1:5] == ["100.00", "", "120", "4.000 (4.000 to 4.000)"]
    assert lines[5][1:5] == ["", "", "", "1.500 (1.500 to 1.500)"] and lines[3][4] == lines[5][4]
    before = (tmp_path / "results/joeynmt-1.json").stat().st_mtime_ns
    toolkits.run(args)  # makes nothing again
    assert (tmp_path / "results/joeynmt-1.json").stat().st_mtime_ns == before
    write = (tmp_path / "results/joeynmt-1.json").write_text
    write(json.dumps(joeynmt | {"data": {}}))
    with pytest.raises(
        UsageError, match="joeynmt-1.json: data is not what this comparison has; remove the re"
    ):
        toolkits.run(args)
    with pytest.raises(
        UsageError, match="joeynmt-1.json: data is not what this comparison has; remove the re"
    ):
        toolkits.table(args)
    (tmp_path / "results/joeynmt-1.json").unlink()
    (tmp_path / "results/time-cpu.json").write_text(json.dumps(times | {"updates": [1, 2]}))
    with pytest.raises(UsageError, match="time-cpu.json: updates is not what this comparison has; remove it"):
        toolkits.table(args)
    monkeypatch.setattr(toolkits, "EPOCHS", 3)
    with pytest.raises(UsageError, match="fairseq-1.json: options is not what this comparison has"):
        toolkits.run(args)
    monkeypatch.setattr(toolkits, "EPOCHS", 2)
    changed.append("scripts/toolkits.py")
    with pytest.raises(UsageError, match="fairseq-1.json is of commit 0123, and scripts/toolkits.py differs"):
        toolkits.run(args)


def test_joeynmt_gets_the_same_model_words_and_budget(toolkits, args):
    path = toolkits.write_joeynmt(args.corpus, args.work / "joeynmt-2", 2, "cpu")
    config = yaml.safe_load(path.read_text())
    words = toolkits.fairseq_words("fairseq", args.corpus, args.work, 2, "cpu")
    given = {words[i]: words[i + 1] for i in range(len(words) - 1) if words[i].startswith("--")}
    encoder, training = config["model"]["encoder"], config["training"]
    assert given["--encoder-layers"] == str(encoder["num_layers"]) == given["--decoder-layers"]
    assert given["--encoder-embed-dim"] == str(encoder["hidden_size"])
    assert given["--encoder-ffn-embed-dim"] == str(encoder["ff_size"])
    assert given["--encoder-attention-heads"] == str(encoder["num_heads"])
    for option, key in (
        ("--lr", "learning_rate"),
        ("--warmup-updates", "learning_rate_warmup"),
        ("--max-epoch", "epochs"),
        ("--label-smoothing", "label_smoothing"),
        ("--weight-decay", "weight_decay"),
        ("--clip-norm", "clip_grad_norm"),
    ):
        assert float(given[option]) == training[key]
    assert given["--max-tokens"] == str(toolkits.TOKENS)
    assert training["batch_size"] == toolkits.TOKENS_OF_JOEYNMT  # with padding, for as many updates
    for option in (
        "--dropout",
        "--attention-dropout",
        "--activation-dropout",
    ):  # JoeyNMT has one for all three
        assert float(given[option]) == encoder["dropout"]
    assert given["--seed"] == str(config["random_seed"])
    assert config["model"]["embed_init_weight"] == float(given["--encoder-embed-dim"]) ** -0.5  # fairseq's
    assert "--cpu" in words and config["use_cuda"] is False
    vocabulary = (path.parent / "vocabulary.txt").read_text().splitlines()
    lines = (args.corpus / "bin/dict.de.txt").read_text().splitlines()
    assert [f"{word} " for word in vocabulary] == [line[: line.rindex(" ") + 1] for line in lines]


@pytest.mark.parametrize(("sees", "whose"), [(False, "torch"), (True, "the torch of JoeyNMT")])
def test_a_gpu_that_a_torch_does_not_see_is_refused(toolkits, args, monkeypatch, sees, whose):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: sees)
    args.device = "cuda"
    with pytest.raises(UsageError, match=f"--device cuda: {whose} sees no GPU; use --device cpu"):
        toolkits.run(args)


def test_on_a_gpu_all_toolkits_train_there(toolkits, args, monkeypatch):
    """No GPU is needed: the commands are not run."""
    on_cpu = toolkits.comparison_of({}, "cpu").options
    on_gpu = toolkits.comparison_of({}, "cuda").options
    for row in ("fairseq", "modular_fairseq"):
        assert on_gpu[row] == on_cpu[row].replace(" --cpu", "") and on_cpu[row].count(" --cpu") == 2
    assert on_gpu["joeynmt"] == on_cpu["joeynmt"].replace('"use_cuda": false', '"use_cuda": true')
    args.device = "cuda"
    trained = toolkits.training_of("joeynmt", args, args.work / "a", 1)[4]
    assert yaml.safe_load(Path(trained).read_text())["use_cuda"] is True
    assert "--cpu" not in toolkits.training_of("fairseq", args, args.work / "b", 1)
    calls = []
    monkeypatch.setattr(toolkits, "call", lambda words, log, own=True: calls.append(words))
    toolkits.translate("fairseq", args, args.work)
    args.device = "cpu"
    toolkits.translate("fairseq", args, args.work)
    assert ["--cpu" in words for words in calls] == [False, True]


def test_runs_on_different_devices_are_not_compared(toolkits, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(toolkits, "RESULTS", tmp_path)

    def record(row, device, name):
        about = toolkits.comparison_of({}, device).about(row, 1)
        found = {"commit": "0123", "bleu": 30.0, "updates": 9, "made": {"device": name}}
        (tmp_path / f"{row}-1.json").write_text(json.dumps(about | found))

    record("joeynmt", "cuda", "NVIDIA H200")
    record("fairseq", "cuda", "NVIDIA H200")
    toolkits.table(None)
    assert capsys.readouterr().out.count("30.00") == 2
    record("fairseq", "cpu", "cpu")
    said = "fairseq-1.json was made on a CPU, and .*joeynmt-1.json was made on a GPU; remove one of them"
    with pytest.raises(UsageError, match=said):
        toolkits.table(None)


def test_the_time_of_an_update_is_of_the_longer_training_less_the_shorter(
    toolkits, args, tmp_path, monkeypatch
):
    monkeypatch.setattr(toolkits, "RESULTS", tmp_path)
    seconds = {"fairseq": 0.5, "modular_fairseq": 0.25, "joeynmt": 1.0}

    calls = []

    def call(words, log, own=True):
        if len(calls) == 11:  # in the second round
            raise KeyboardInterrupt
        row = log.stem
        assert own == (row != "joeynmt")
        if row == "joeynmt":
            config = yaml.safe_load((args.work / "time-cpu/joeynmt/config.yaml").read_text())
            updates = config["training"]["updates"]
        else:
            updates = int(words[words.index("--max-update") + 1])
        calls.append(row)
        return 7.0 + updates * seconds[row] + (len(calls) > 8)

    monkeypatch.setattr(toolkits, "call", call)
    monkeypatch.setattr(sys.modules["recorded_runs"], "git", lambda word, *_: "0123" * (word == "rev-parse"))
    with pytest.raises(KeyboardInterrupt):
        toolkits.measure(args)
    assert not (tmp_path / "time-cpu.json").exists()
    calls.append("")
    toolkits.measure(args)
    assert len(calls) == 12 + 16  # the first round is kept
    found = json.loads((tmp_path / "time-cpu.json").read_text())
    assert found["made"]["device"] == "cpu"
    assert found["commit"] == "0123" and "--arch transformer" in found["options"]["fairseq"]
    assert found["rounds"] == [pytest.approx({**seconds, "fairseq again": 0.5})] * 3
    monkeypatch.setattr(toolkits, "WIDTH", 8)
    with pytest.raises(
        UsageError, match="time-cpu: options is not what this comparison has; remove the folder"
    ):
        toolkits.measure(args)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"joeynmt": Path("/no/python")},
            r"--joeynmt /no/python: cannot import joeynmt.training \(.*No such file.*\); give the Python of",
        ),
        (
            {"corpus": Path("/no/corpus")},
            "/no/corpus has no bpe/train.de; prepare de-en there by modular-fairseq prepare raw",
        ),
    ],
)
def test_what_is_missing_is_told_before_any_run(toolkits, args, changes, sentence):
    with pytest.raises(UsageError, match=sentence):
        toolkits.run(Namespace(**vars(args) | changes))


def test_a_module_that_joeynmt_lacks_is_named(toolkits, args):
    args.joeynmt.write_text(
        "#!/bin/sh\nprintf 'Traceback:\\nNo module named importlib_metadata\\n' >&2\nexit 1\n"
    )
    with pytest.raises(UsageError, match=r"joeynmt.training \(No module named importlib_metadata\); give"):
        toolkits.run(args)


def test_a_toolkit_that_fails_is_named_with_its_log(toolkits, args):
    with pytest.raises(UsageError, match=r"-m joeynmt .* failed with status 7; see .*train.log"):
        toolkits.call([args.joeynmt, "-m", "joeynmt", "train"], args.work / "train.log", own=False)


@pytest.mark.parametrize(("command", "length"), [("train", 1), ("test", 100)])
def test_joeynmt_translates_one_token_per_sentence_in_validations_only(tmp_path, command, length):
    package = tmp_path / "joeynmt"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "training.py").write_text("def predict(model, args): return model, args.max_output_length\n")
    (package / "__main__.py").write_text(
        "from collections import namedtuple\n"
        "from joeynmt import training\n"
        "args = namedtuple('Args', 'max_output_length')(100)\n"
        "print(*training.predict(model='a', args=args))\n"
    )
    shutil.copy(ROOT / "scripts/joeynmt_sitecustomize.py", tmp_path / "sitecustomize.py")
    words = [PYTHON, "-m", "joeynmt", command, "config.yaml"]
    done = subprocess.run(words, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"a {length}\n", "")


def test_joeynmt_starts_with_the_spread_of_fairseqs_matrices(toolkits):
    """The factor is the geometric mean of fairseq's in an encoder layer, relative to Xavier's rule."""
    config = TransformerConfig()
    config.encoder.embed_dim, config.encoder.ffn_embed_dim = toolkits.WIDTH, toolkits.INNER
    config.encoder.attention_heads = toolkits.HEADS
    torch.manual_seed(1)
    layer = TransformerEncoderLayerBase(config)
    gains = [each.std() / (2 / sum(each.shape)) ** 0.5 for each in layer.parameters() if each.dim() == 2]
    assert len(gains) == 6
    mean = torch.stack(gains).log().mean().exp().item()
    given = toolkits.joeynmt_config(Path(), Path(), 1, "cpu")["model"]["init_gain"]
    assert given == pytest.approx(mean, 0.01)
