#!/usr/bin/env python
"""Compare this project with stock fairseq and JoeyNMT: the same text, size and budget, and three seeds.

    python scripts/toolkits.py run CORPUS --work DIR --joeynmt PYTHON     # trains, translates and scores
    python scripts/toolkits.py time CORPUS --work DIR --joeynmt PYTHON    # measures the time of an update
    python scripts/toolkits.py table                                      # writes results/toolkits/table.md

CORPUS is what `modular-fairseq prepare raw` wrote for German and English. PYTHON is the Python of a virtual
environment with JoeyNMT 2.3.0, which needs other versions of packages than fairseq.

All toolkits read the same sub-words, have a Transformer of the same size and the same dropout, and see the
text as often. The checkpoint with the best validation loss translates, with a beam of 5, and `modular-fairseq
score` scores all translations. What is not the same:

    batches         fairseq puts sentences of similar length together, and its batches have at most 1,024
                    tokens. JoeyNMT draws sentences at random, and its batches have at least 1,950 tokens,
                    about half of which are padding. So both make about 468 updates in an epoch
    start           fairseq multiplies the standard deviations of Xavier's rule by 1/sqrt(2) for queries,
                    keys, values and the first layer of a feed-forward sub-layer, by 1/2 for its second
                    layer, and by 1 for the outputs of attention. JoeyNMT has one such factor, `init_gain`.
                    It gets 1/sqrt(2), which is the geometric mean of these in an encoder layer. With its
                    default, 1, it learns far more slowly at this learning rate
    validation      after each epoch in fairseq, and every 500 updates in JoeyNMT, with another smoothed loss
    beam search     fairseq divides a score by the length, and JoeyNMT by ((5 + length) / 6)

fairseq-generate loads the plugin for both rows of fairseq, because fairseq-fixed alone cannot load a
checkpoint with a present torch. Each run has one thread, and `run --jobs N` makes N runs at a time. With
`--device cuda` all runs are made on a GPU. Runs on a CPU and on a GPU are not compared, but times may be
measured on both. A run that has a record in results/toolkits is not made again. A run of this project that
was killed continues, and the others begin again. `time` keeps the rounds that it has finished.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
import yaml
from recorded_runs import PACKAGES, ROOT, Comparison, add_jobs, call, compare
from scipy.stats import ttest_ind
from tabulate import tabulate

from modular_fairseq.runs.evidence.records import is_of_cpu, made
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import digest, only_one, write_file, write_json
from modular_fairseq_cli.scoring.spread import shown
from modular_fairseq_cli.training_log import read_log

CODE = (*PACKAGES, "scripts/toolkits.py")
RESULTS = ROOT / "results" / "toolkits"
SOURCE, TARGET = "de", "en"
LAYERS, WIDTH, INNER, HEADS = 4, 256, 512, 8
DROPOUT = 0.1  # of layers, of attention weights and of the hidden units of feed-forward sub-layers
SMOOTHING, DECAY, CLIP = 0.1, 1e-4, 1.0
RATE, WARMUP = 1e-3, 600  # then the rate falls with the square root of the update
TOKENS, EPOCHS, BEAM = 1024, 8, 5
TOKENS_OF_JOEYNMT = 1950  # with padding; see above
SEEDS = (1, 2, 3)
ROWS = {
    "fairseq": "fairseq-fixed 0.12.3.1, transformer",
    "modular_fairseq": "this project, modular_transformer",
    "joeynmt": "JoeyNMT 2.3.0",
}
TIMED = {"cpu": (20, 60), "cuda": (100, 600)}  # updates of the two trainings that are timed
ROUNDS = 3  # how often they are timed
BASELINE = "fairseq"
DEVICES = {"cpu": "CPU", "cuda": "GPU"}
CPU_OPTION = {"cpu": ["--cpu"], "cuda": []}  # fairseq takes a GPU that it sees, unless it has this option
# What a Python with JoeyNMT prints about itself. JoeyNMT takes the CPU if its torch sees no GPU.
ABOUT = """
import json, platform, torch, joeynmt.training
versions = {"python": platform.python_version(), "torch": torch.__version__}
print(json.dumps(versions | {"cuda": torch.cuda.is_available()}))
"""


def fairseq_options(row: str, device: str) -> str:
    """Return the options of fairseq-train for a row of fairseq, without the budget."""
    own = {
        "fairseq": "--arch transformer --criterion label_smoothed_cross_entropy",
        "modular_fairseq": "--user-dir modular_fairseq --arch modular_transformer --criterion "
        "modular_cross_entropy",
    }[row]
    size = [
        f"--{side}-{name} {value}"
        for side in ("encoder", "decoder")
        for name, value in (
            ("layers", LAYERS),
            ("embed-dim", WIDTH),
            ("ffn-embed-dim", INNER),
            ("attention-heads", HEADS),
        )
    ]
    options = (
        f"{own} {' '.join(size)} --share-all-embeddings --dropout {DROPOUT} "
        f"--attention-dropout {DROPOUT} --activation-dropout {DROPOUT} --required-batch-size-multiple 1 "
        f"--label-smoothing {SMOOTHING} --optimizer adam --adam-betas (0.9,0.98) --weight-decay {DECAY} "
        f"--clip-norm {CLIP} --lr {RATE} --lr-scheduler inverse_sqrt --warmup-updates {WARMUP} "
        f"--max-tokens {TOKENS} --update-epoch-batch-itr True --num-workers 0 --log-format json "
        f"--log-interval 100 --no-epoch-checkpoints"
    )
    return " ".join([options, *CPU_OPTION[device]])


def fairseq_words(
    row: str, corpus: Path, folder: Path, seed: int, device: str, updates: int = 0
) -> list[str]:
    """Return the command that trains a row of fairseq."""
    budget = f"--max-update {updates} --no-save --disable-validation" if updates else f"--max-epoch {EPOCHS}"
    words = [sys.executable, "-m", "fairseq_cli.train", str(corpus / "bin")]
    words += fairseq_options(row, device).split()
    return [*words, *budget.split(), "--seed", str(seed), "--save-dir", str(folder)]


def joeynmt_config(corpus: Path, folder: Path, seed: int, device: str, updates: int = 0) -> dict[str, Any]:
    """Return the configuration of JoeyNMT for the same model and budget."""
    stack = {
        "type": "transformer",
        "num_layers": LAYERS,
        "num_heads": HEADS,
        "embeddings": {"embedding_dim": WIDTH, "scale": True, "dropout": DROPOUT},
        "hidden_size": WIDTH,
        "ff_size": INNER,
        "dropout": DROPOUT,
        "layer_norm": "post",
    }
    side = {"level": "word", "lowercase": False, "voc_file": str(folder / "vocabulary.txt")}
    return {
        "name": "toolkits",
        "joeynmt_version": "2.3.0",
        "model_dir": str(folder / "model"),
        "use_cuda": device == "cuda",
        "random_seed": seed,
        "data": {
            **{part: str(corpus / "bpe" / part) for part in ("train", "test")},
            "dev": str(corpus / "bpe" / "valid"),
            "dataset_type": "plain",
            "src": {"lang": SOURCE, **side},
            "trg": {"lang": TARGET, **side},
        },
        "model": {
            "initializer": "xavier_uniform",
            "init_gain": 0.5**0.5,
            "embed_initializer": "normal",  # as in fairseq
            "embed_init_weight": WIDTH**-0.5,
            "tied_embeddings": True,
            "tied_softmax": True,
            "encoder": stack,
            "decoder": stack,
        },
        "training": {
            "optimizer": "adamw",  # fairseq's adam decouples the weight decay, too
            "adam_betas": [0.9, 0.98],
            "weight_decay": DECAY,
            "clip_grad_norm": CLIP,
            "label_smoothing": SMOOTHING,
            "loss": "crossentropy",
            "normalization": "tokens",
            "learning_rate": RATE,
            "learning_rate_min": 0.0,
            "learning_rate_warmup": WARMUP,
            "scheduling": "warmupinversesquareroot",
            "batch_type": "token",
            "batch_size": TOKENS_OF_JOEYNMT,
            "epochs": EPOCHS,
            "updates": updates or 10**9,
            "shuffle": True,
            "logging_freq": 100,
            "validation_freq": 10**9 if updates else 500,
            "early_stopping_metric": "loss",
            "keep_best_ckpts": 1,
            "overwrite": True,
        },
        "testing": {
            "beam_size": BEAM,
            "beam_alpha": 1.0,
            "batch_type": "token",
            "batch_size": 4096,
            "max_output_length": 100,
            "eval_metrics": [],
        },
    }


def write_joeynmt(corpus: Path, folder: Path, seed: int, device: str, updates: int = 0) -> Path:
    """Write the configuration of JoeyNMT and its vocabulary, and return the path of the former."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [line.rpartition(" ")[0] for line in (corpus / f"bin/dict.{SOURCE}.txt").read_text().splitlines()]
    write_file(folder / "vocabulary.txt", "".join(f"{word}\n" for word in words))
    path = folder / "config.yaml"
    write_file(path, yaml.safe_dump(joeynmt_config(corpus, folder, seed, device, updates)))
    return path


def training_of(row: str, args: argparse.Namespace, folder: Path, seed: int, updates: int = 0) -> list[str]:
    """Return the command that trains a row."""
    if row != "joeynmt":
        return fairseq_words(row, args.corpus, folder, seed, args.device, updates)
    config = write_joeynmt(args.corpus, folder, seed, args.device, updates)
    return [str(args.joeynmt), "-m", "joeynmt", "train", str(config), "--skip-test"]


def translate(row: str, args: argparse.Namespace, folder: Path) -> Path:
    """Translate the test set, and return a file as fairseq-generate writes it."""
    out = folder / "generate.out"
    if row != "joeynmt":
        words = [sys.executable, "-m", "fairseq_cli.generate", str(args.corpus / "bin")]
        words += ["--user-dir", "modular_fairseq"]  # stock fairseq cannot load a checkpoint here
        words += ["--path", str(folder / "checkpoint_best.pt"), "--beam", str(BEAM), "--remove-bpe"]
        words += CPU_OPTION[args.device]
        out.unlink(missing_ok=True)
        call([*words, "--max-tokens", "4096", "--num-workers", "0"], out)
        return out
    words = [args.joeynmt, "-m", "joeynmt", "test", folder / "config.yaml"]
    call([*words, "--output-path", folder / "output"], folder / "test.log", own=False)
    hypotheses = (folder / "output.test").read_text().splitlines()
    references = (args.corpus / f"bpe/test.{TARGET}").read_text().splitlines()
    lines = []
    for number, pair in enumerate(zip(hypotheses, references, strict=True)):
        hypothesis, reference = (line.replace("@@ ", "").removesuffix("@@") for line in pair)
        lines += [f"T-{number}\t{reference}", f"H-{number}\t0\t{hypothesis}"]
    write_file(out, "\n".join(lines) + "\n")
    return out


def run(args: argparse.Namespace) -> None:
    """Make the runs that have no record."""
    of_joeynmt = check(args)

    def make_one(folder: Path, row: str, seed: int) -> dict[str, Any]:
        record = make(folder, row, seed, args)
        if row == "joeynmt":
            record["made"] |= {name: of_joeynmt[name] for name in ("python", "torch")}
        return record

    comparison_of(data_of(args.corpus), args.device).make(args.work, make_one, args.jobs)


def data_of(corpus: Path) -> dict[str, str]:
    """Return digests of all files that a toolkit reads.

    Raises:
        UsageError: one is missing.
    """
    sides = SOURCE, TARGET
    names = [f"bpe/{part}.{side}" for part in ("train", "valid", "test") for side in sides]
    names += [
        f"bin/{part}.{SOURCE}-{TARGET}.{side}.{end}"
        for part in ("train", "valid", "test")
        for side in sides
        for end in ("bin", "idx")
    ]
    names += [*(f"bin/dict.{side}.txt" for side in sides), f"raw/test.{TARGET}"]
    for name in names:
        if not (corpus / name).exists():
            raise UsageError(
                f"{corpus} has no {name}; prepare {SOURCE}-{TARGET} there by modular-fairseq prepare raw"
            )
    return {name: digest(corpus / name)[:16] for name in names}


def comparison_of(data: dict[str, str], device: str) -> Comparison:
    """Return the runs that are compared, on data with these digests, and on a device."""
    config = joeynmt_config(Path(), Path(), 0, device)
    search = " ".join(["fairseq-generate --beam", str(BEAM), "--remove-bpe", *CPU_OPTION[device]])
    options = {
        row: f"{fairseq_options(row, device)} --max-epoch {EPOCHS}; {search}"
        for row in ROWS
        if row != "joeynmt"
    }
    of_all = {
        name: value for name, value in config.items() if name not in ("data", "model_dir", "random_seed")
    }
    return Comparison(RESULTS, list(SEEDS), options | {"joeynmt": json.dumps(of_all)}, data, CODE)


def make(folder: Path, row: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Train, translate and score a run in a folder, and return its record."""
    print(f"{row}, seed {seed}", flush=True)
    if row != "modular_fairseq":  # they begin again
        for path in folder.iterdir():
            if path.name != "run.json":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    call(training_of(row, args, folder, seed), folder / "train.log", own=row != "joeynmt")
    out, scores = translate(row, args, folder), folder / "score.json"
    reference = args.corpus / f"raw/test.{TARGET}"
    words = [sys.executable, "-m", "modular_fairseq_cli", "score", "--reference", str(reference), str(out)]
    call([*words, "--metrics", "bleu", "--json", str(scores)], folder / "score.log")
    [scored] = json.loads(scores.read_text())["files"]
    found = {"bleu": scored["bleu"], "updates": updates_of(row, args, folder)}
    return found | {"made": made(name_of(args.device))}


def name_of(device: str) -> str:
    """Return the name of a device: "cpu", or the name of the GPU."""
    return torch.cuda.get_device_name() if device == "cuda" else device


def updates_of(row: str, args: argparse.Namespace, folder: Path) -> int:
    """Return the number of updates of a training."""
    if row != "joeynmt":
        return read_log(folder / "train.log")["valid"]["ppl"][-1][0]
    code = "import sys, torch; print(torch.load(sys.argv[1], weights_only=False)['stats_state']['steps'])"
    words = [str(args.joeynmt), "-c", code, str(folder / "model/latest.ckpt")]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def check(args: argparse.Namespace) -> dict[str, Any]:
    """Return the versions of the Python with JoeyNMT and of its torch, and whether that torch sees a GPU.

    Raises:
        UsageError: this Python has no JoeyNMT; or a torch sees no GPU, and one is asked for.
    """
    try:
        done = subprocess.run([str(args.joeynmt), "-c", ABOUT], capture_output=True, text=True)
        status, said = done.returncode, done.stderr
    except OSError as error:
        status, said = -1, str(error)
    if status:
        why = said.strip().rpartition("\n")[2] or f"status {status}"
        raise UsageError(
            f"--joeynmt {args.joeynmt}: cannot import joeynmt.training ({why}); give the Python of an "
            "environment with JoeyNMT"
        )
    about: dict[str, Any] = json.loads(done.stdout)
    if args.device == "cuda":
        for found, whose in ((torch.cuda.is_available(), "torch"), (about["cuda"], "the torch of JoeyNMT")):
            if not found:
                raise UsageError(f"--device cuda: {whose} sees no GPU; use --device cpu")
    return about


def measure(args: argparse.Namespace) -> None:
    """Measure the seconds of an update: a long and a short training, in turn with the other toolkits."""
    check(args)
    comparison = comparison_of(data_of(args.corpus), args.device)
    folder = args.work / f"time-{args.device}"
    about = about_times(comparison, args.device) | {"device": name_of(args.device)}
    short, long = about["updates"]
    with only_one(args.work, "--work"):
        about |= {"commit": comparison.begin(folder, about)}
        kept = folder / "seconds.json"
        found: list[dict[str, float]] = json.loads(kept.read_text()) if kept.exists() else []
        while len(found) < ROUNDS:
            seconds = {}
            for name in [*ROWS, f"{BASELINE} again"]:
                row, took = name.removesuffix(" again"), {}
                for updates in (short, long):
                    shutil.rmtree(folder / row, ignore_errors=True)
                    words = training_of(row, args, folder / row, 1, updates)
                    took[updates] = call(words, folder / f"{row}.log", own=row != "joeynmt")
                seconds[name] = (took[long] - took[short]) / (long - short)
                print(f"round {len(found) + 1}: {name} {seconds[name]:.3f} s", flush=True)
            found.append(seconds)
            write_json(kept, found)
        comparison.check_code(folder, about["commit"])  # it may have changed meanwhile
        times = about | {"made": made(name_of(args.device)), "rounds": found}
        write_json(times_of(args.device), times)


def times_of(device: str) -> Path:
    """Return the file that has the times of updates on a device."""
    return RESULTS / f"time-{device}.json"


def about_times(comparison: Comparison, device: str) -> dict[str, Any]:
    """Return what the measured times are of."""
    return {"options": comparison.options, "data": comparison.data, "updates": [*TIMED[device]]}


def table(args: argparse.Namespace) -> None:
    """Write the table of all records."""
    found = {path: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    data = next((each["data"] for each in found.values()), {})
    of_runs = {
        DEVICES["cpu" if is_of_cpu(each) else "cuda"]: path for path, each in found.items() if "row" in each
    }
    if len(of_runs) > 1:
        told = ", and ".join(f"{path} was made on a {name}" for name, path in of_runs.items())
        raise UsageError(f"{told}; remove one of them")
    every = comparison_of(data, "cuda" if DEVICES["cuda"] in of_runs else "cpu").records()
    rounds: dict[str, list[dict[str, float]]] = {}  # by device
    for device in DEVICES:
        if measured := found.get(times_of(device)):
            wanted = about_times(comparison_of(data, device), device)
            compare(times_of(device), measured, wanted, "remove it")
            rounds[device] = measured["rounds"]
    lines = []
    scores_of_baseline = [record["bleu"] for (name, _), record in every.items() if name == BASELINE]
    again = {f"{BASELINE} again": f"{ROWS[BASELINE]}, timed again"} if rounds else {}
    for row, label in {**ROWS, **again}.items():
        records = [record for (name, _), record in every.items() if name == row]
        cells = [
            shown([record[key] for record in records], pattern)
            for key, pattern in (("bleu", "{:.2f}"), ("updates", "{:,.0f}"))
        ]
        scores = [record["bleu"] for record in records]
        cells.insert(1, "" if row == BASELINE else less_baseline(scores, scores_of_baseline))
        for measured_rounds in rounds.values():
            times = [seconds[row] for seconds in measured_rounds]
            cells.append(f"{median(times):.3f} ({min(times):.3f} to {max(times):.3f})")
            updates = sum(record["updates"] for record in records) / len(records) if records else 0
            cells.append(f"{median(times) * updates / EPOCHS / 60:.1f}" if updates else "")
        lines.append([label, *cells, len(records) or ""])
    columns = "seconds per update", "minutes per epoch"
    of_device = [f"{column}, {DEVICES[device]}" for device in rounds for column in columns]
    head = ["toolkit", "BLEU", "less stock fairseq [95 %]", "updates", *of_device, "seeds"]
    text = tabulate(lines, head, tablefmt="github", disable_numparse=True) + "\n"
    write_file(RESULTS / "table.md", text)
    print(text, end="")


def less_baseline(scores: Sequence[float], of_baseline: Sequence[float]) -> str:
    """Return the difference of the means with the 95 % interval of Welch's t.

    It is "" if there are fewer than two seeds of either.

    Toolkits draw other random numbers from the same seed, so runs of one seed are no pair. The interval
    accounts for seeds, and not for the choice of sentences.
    """
    if min(len(scores), len(of_baseline)) < 2:
        return ""
    low, high = ttest_ind(scores, of_baseline, equal_var=False).confidence_interval()
    return f"{fmean(scores) - fmean(of_baseline):+.2f} [{low:+.2f}, {high:+.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for function, name, summary in (
        (run, "run", "make the runs that have no record"),
        (measure, "time", "measure the time of an update"),
        (table, "table", "show what the records say"),
    ):
        command = commands.add_parser(name, help=summary)
        command.set_defaults(function=function)
        if function is not table:
            command.add_argument("corpus", type=Path, metavar="CORPUS", help="prepared corpus")
            command.add_argument("--work", type=Path, required=True, help="folder for the runs")
            command.add_argument("--joeynmt", type=Path, required=True, help="Python that has JoeyNMT")
            command.add_argument("--device", choices=DEVICES, default="cpu", help="default: %(default)s")
        if function is run:
            add_jobs(command)
    args = parser.parse_args()
    try:
        if args.function is not table:
            args.work.mkdir(parents=True, exist_ok=True)
            args.corpus, args.work = args.corpus.absolute(), args.work.absolute()
            args.joeynmt = Path(shutil.which(args.joeynmt) or args.joeynmt).absolute()
        RESULTS.mkdir(parents=True, exist_ok=True)
        args.function(args)
    except UsageError as error:
        sys.exit(f"toolkits.py: error: {error}")


if __name__ == "__main__":
    main()
