"""Compare the weights and translations of two versions, bit for bit.

    python tests/system/compare_versions.py OTHER_CHECKOUT            # about 10 minutes on one core
    python tests/system/compare_versions.py OTHER_CHECKOUT --only mae dma --keep work/compared
    python tests/system/compare_versions.py OTHER_CHECKOUT --data evidence/data \\
        --records results/evidence/multi30k/*/seed-1.json

Each of `ROWS` is trained for 20 updates on a toy corpus with the demo's options, G steps included, and its
test set is translated: once by OTHER_CHECKOUT and once by the checkout that this file is in. Each does so in
a process of its own, on one thread, with the Python of this process and the packages that it finds. A line
for each row says whether all weights, the optimizer's state and the output are equal. The exit code is 1 if
a row differs or fails.

With --records, each checkout runs the training commands of these records of registered runs for 12 updates
instead, with G steps in every epoch, and nothing is translated. `modular-fairseq evidence --prepare` has put
their corpora into the folder --data.

The scores in the output of the rows in `ROUNDED` may differ by `TOLERANCE`. Their weights are frozen, and
since version 0.1 such weights are multiplied by another operation, which is faster and rounds otherwise.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parents[2]

SHARED = """
    --optimizer adam --adam-betas (0.9,0.98) --lr 4e-3 --lr-scheduler polynomial_decay --warmup-updates 5
    --total-num-update 20 --max-update 20 --dropout 0.1 --seed 1 --num-workers 0 --no-progress-bar
    --log-interval 1 --no-epoch-checkpoints --disable-validation --cpu
"""
TRANSLATION = f"{SHARED} data --max-tokens 400 --criterion modular_cross_entropy --label-smoothing 0.1"
LANGUAGE_MODEL = f"{SHARED} data-en --task language_modeling --tokens-per-sample 64 --max-tokens 400"
# In a post-norm model the competition of the last layer looks at the mean of streams; in 0.1 at their sum.
PRE_NORM = "--encoder-normalize-before --decoder-normalize-before"
ALL_AT_ONCE = f"--encoder-layers 4 --streams 2 --stream-skip --tim-layers all {PRE_NORM}"
FINETUNE = "--finetune-from-model modular_transformer/checkpoint_last.pt"
NORM = "--mae-gate-norm batch"  # the default of version 0.1
G_STEPS = f"--mae-gate-loss sentence --mae-gate-lr 0.2 {NORM}"  # the defaults of version 0.1
G = f"--mae-gate-interval 2 {G_STEPS}"  # in every second of 4 or 5 epochs
L_D = "--aux-warmup-updates 10 --qq-floor 0"  # with the floor of version 0.1
ROWS = {
    "modular_transformer": "modular_transformer_tiny_cpu",
    "no-residual": "modular_transformer_tiny_cpu --no-residual",
    "mae": f"mae_transformer_tiny_cpu {G}",
    "mae-6": f"mae_transformer_tiny_cpu --mae-dropped-heads 2 --mae-gate-context source {G}",
    "uni-mae": "mae_transformer_tiny_cpu --mae-gating uniform",
    "nobcd": f"mae_transformer_tiny_cpu --mae-training joint_main {NORM}",
    "ftg": f"mae_transformer_tiny_cpu --mae-finetune gates {G_STEPS} {FINETUNE}",
    "ftg+": f"mae_transformer_tiny_cpu --mae-finetune gates+output {G_STEPS} {FINETUNE}",
    "dma": f"dma_transformer_tiny_cpu {L_D}",
    "dma-sample": f"""dma_transformer_tiny_cpu {L_D} --dma-posterior sample --dma-centroid-mode hook
        --dma-decoder-eval-mask""",
    "mae+dma": f"mae_transformer_tiny_cpu --attention-type mae+dma {L_D} {G}",
    "multistream": "multistream_transformer_tiny_cpu",
    "tim": "tim_transformer_tiny_cpu",
    "all-at-once": f"mae_transformer_tiny_cpu {ALL_AT_ONCE} {G}",
    "lm": "modular_transformer_lm_tiny_cpu",
    "lm-mae": f"mae_transformer_lm_tiny_cpu {G}",
    "lm-tim": "modular_transformer_lm_tiny_cpu --tim-layers all",
}
OF_RECORDS = "--max-update 12 --disable-validation --num-workers 0 --cpu"
DATA = "evidence/data/"  # where the commands of records look for corpora
NUMBER = re.compile(r"-?\d+\.\d+")
ROUNDED, TOLERANCE = ("ftg", "ftg+"), 2e-4  # scores have four digits after the point
RENAMED = {"joint_main": "joint"}  # values that version 0.1 calls otherwise
# One process trains and translates, as starting Python and torch takes longer than either.
COMMANDS = """
import sys
from importlib import import_module
for name, *arguments in eval(sys.argv[1]):
    print("command", name, flush=True)
    sys.argv[1:] = arguments
    import_module(f"fairseq_cli.{name}").cli_main()
import modular_fairseq
print("plugin", modular_fairseq.__file__)
"""


def run(folder: Path, checkout: Path, *command: str) -> str:
    """Run Python with `checkout` first on its path and return all that it prints. Raises RuntimeError."""
    environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"with {checkout}, after `{' '.join(command[-1:])}`: {done.stdout[-2000:]}")
    return done.stdout


def execute(folder: Path, checkout: Path, *commands: list[str]) -> str:
    """Run commands of fairseq with the code of a checkout and return what they print.

    Raises:
        RuntimeError: a command fails, or Python imported the package from another folder than the checkout.
    """
    output = run(folder, checkout, "-c", COMMANDS, repr(commands))
    if f"plugin {checkout}/modular_fairseq/" not in output:
        raise RuntimeError(f"Python did not take modular_fairseq from {checkout}")
    return output


def make_data(folder: Path) -> None:
    """Write data (German-English) and data-en (English alone), binarized."""
    sizes = ["--train", "200", "--valid", "10", "--test", "30"]
    run(folder, HERE, "-m", "modular_fairseq_cli", "toy-corpus", "text", *sizes)
    prefixes = [f"--{split}pref=text/{split}" for split in ("train", "valid", "test")]
    for options in ("-s de -t en --destdir data", "-s en --only-source --destdir data-en"):
        run(folder, HERE, "-m", "fairseq_cli.preprocess", *options.split(), *prefixes)
    for file in (folder / "data-en").iterdir():  # --only-source gives names such as train.en-None.en.bin
        file.rename(file.with_name(file.name.replace(".en-None.en", "").replace("dict.en", "dict")))


def train_and_translate(folder: Path, checkout: Path, name: str) -> tuple[dict, list[str]]:
    """Return the state in the last checkpoint, and the lines of the output that tell what was found."""
    plugin = ["--user-dir", str(checkout / "modular_fairseq")]
    language_model = name.startswith("lm")
    options = (LANGUAGE_MODEL if language_model else TRANSLATION).split()
    row = ROWS[name].split()
    if not (checkout / "modular_fairseq/models/mae_options.py").exists():
        row = [RENAMED.get(word, word) for word in row]
    training = ["train", *options, *plugin, "--arch", *row, "--save-dir", name]
    path = ["--path", f"{name}/checkpoint_last.pt", "--gen-subset", "test", "--num-workers", "0", "--cpu"]
    if language_model:
        second = ["eval_lm", "data-en", *plugin, *path, "--output-word-probs", "--tokens-per-sample", "64"]
    else:
        second = ["generate", "data", *plugin, *path, "--beam", "5", "--min-len", "6"]
    output = execute(folder, checkout, training, second)
    (folder / f"{name}.log").write_text(output)
    log, _, found = output.partition(f"command {second[0]}")
    if G in ROWS[name] and "g_loss" not in log:
        raise RuntimeError(f"{checkout} trained without a G step")
    state = torch.load(folder / name / "checkpoint_last.pt", weights_only=False)  # written a moment ago
    return state, [line for line in map(without_time, found.splitlines()) if line]


def command_of(record: Path) -> list[str]:
    """Return the words of the training command of a record, without fairseq-train.

    Raises:
        ValueError: the file is no record of a training from scratch.
    """
    try:
        command = json.loads(record.read_text())["commands"][0]
    except (OSError, ValueError, LookupError, TypeError):
        command = ""
    if not command.startswith("fairseq-train ") or "--finetune-from-model" in command:
        raise ValueError(f"{record} is no record of a training from scratch, as results/evidence has them")
    return command.split()[1:]  # records write commands without quotes, and no value contains a blank


def train_as_recorded(folder: Path, checkout: Path, command: list[str], data: Path) -> tuple[dict, list[str]]:
    """Train as a record says, for a few updates. Return the state in the checkpoint, and no output."""
    words = [str(data / word.removeprefix(DATA)) if word.startswith(DATA) else word for word in command]
    # The last of several values of an option counts.
    words += [*OF_RECORDS.split(), "--user-dir", str(checkout / "modular_fairseq"), "--save-dir", "model"]
    words += ["--mae-gate-interval", "1"] if "--mae-gate-interval" in words else []
    folder.mkdir(parents=True)
    (folder / "train.log").write_text(execute(folder, checkout, ["train", *words]))
    return torch.load(folder / "model/checkpoint_last.pt", weights_only=False), []


def without_time(line: str) -> str:
    """Return a line of fairseq's output without its time if it is a result, else ""."""
    if line[:2] in ("S-", "T-", "H-", "D-", "P-"):
        return line
    words = line.rpartition(" | ")[2]
    return words if re.match(r"Loss \(base 2\)|\d+ .*\[-?[\d.]+\]", words) else ""


def flat(value, name: str = "") -> dict[str, object]:
    """Return the leaves of nested dictionaries and lists, keyed by their dotted names."""
    if isinstance(value, dict | list | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {key: leaf for k, v in items for key, leaf in flat(v, f"{name}.{k}").items()}
    return {name: value.numpy().tobytes() if isinstance(value, torch.Tensor) else value}


def same(line: str, other: str, tolerance: float) -> bool:
    """Tell whether two lines have the same words, with numbers that differ by at most `tolerance`."""
    pairs = list(zip(line.split(), other.split(), strict=False))
    return len(line.split()) == len(other.split()) and all(
        a == b or (NUMBER.fullmatch(a) and NUMBER.fullmatch(b) and abs(float(a) - float(b)) <= tolerance)
        for a, b in pairs
    )


def difference(ours: tuple[dict, list[str]], others: tuple[dict, list[str]], tolerance: float = 0.0) -> str:
    """Return the first differences in weights, optimizer's state and output, or "" if there are none.

    Args:
        ours, others: what `train_and_translate` returned.
        tolerance: the largest difference of numbers in the output that does not count.
    """
    found = []
    for part in ("model", "last_optimizer_state"):
        a, b = (flat(state[part]) for state, _ in (ours, others))
        names = [key for key in {**a, **b} if key not in a or key not in b or a[key] != b[key]]
        if names:
            found.append(
                f"{len(names)} of {len({**a, **b})} values of {part} differ, the first is {names[0][1:]}"
            )
    lines = [pair for pair in zip(ours[1], others[1], strict=False) if not same(*pair, tolerance)]
    if lines or len(ours[1]) != len(others[1]):
        found.append(f"{len(lines)} lines of output differ, {len(ours[1])} and {len(others[1])} in all")
    return "; ".join(found)


def compare(names: list[str], train: Callable, checkouts: dict[str, Path]) -> int:
    """Print a line for each name; return the number of those that differ or fail.

    Args:
        names: what is trained.
        train: `(name, side, checkout)` -> the state and lines of output (`train_and_translate`).
        checkouts: the checkout of each side.
    """
    failed = 0
    for name in names:
        start = time.time()
        try:
            results = [train(name, side, path) for side, path in checkouts.items()]
            verdict = difference(*results, TOLERANCE if name in ROUNDED else 0.0)
        except RuntimeError as error:
            verdict = f"failed: {error}"
        failed += bool(verdict)
        size = "" if verdict else f"equal: {len(results[0][0]['model'])} tensors, {len(results[0][1])} lines"
        print(f"{name:20} {time.time() - start:4.0f} s  {verdict or size}", flush=True)
    return failed


def compare_rows(folder: Path, checkouts: dict[str, Path], names: list[str]) -> int:
    """Compare the given rows of `ROWS` on a toy corpus (`compare`)."""
    for side in checkouts:
        (folder / side).mkdir(parents=True)
        make_data(folder / side)

    def train(name: str, side: str, checkout: Path) -> tuple[dict, list[str]]:
        state, lines = train_and_translate(folder / side, checkout, name)
        if not lines:
            raise RuntimeError("there is no output to compare")
        return state, lines

    return compare(names, train, checkouts)


def compare_records(
    folder: Path, checkouts: dict[str, Path], commands: dict[str, list[str]], data: Path
) -> int:
    """Compare trainings by the commands of records, which are given by the path of the record (`compare`)."""

    def train(name: str, side: str, checkout: Path) -> tuple[dict, list[str]]:
        place = folder / side / str(list(commands).index(name))
        return train_as_recorded(place, checkout, commands[name], data)

    return compare(list(commands), train, checkouts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path, metavar="OTHER_CHECKOUT", help="folder of the other version")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW", help="these rows")
    what.add_argument(
        "--records", nargs="+", type=Path, metavar="FILE", help="the trainings of these records"
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of the corpora of --records")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="keep data, logs and checkpoints in a new folder"
    )
    args = parser.parse_args()
    other = args.other.resolve()
    if not (other / "modular_fairseq").is_dir():
        parser.error(f"{other} has no folder modular_fairseq; name a checkout of this project")
    if bool(args.records) != bool(args.data):
        parser.error("--records and --data belong together; give both or neither")
    checkouts = {"here": HERE, "other": other}
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.keep or Path(temporary)).resolve()
        if args.records:
            try:
                names = {str(record): command_of(record) for record in args.records}
            except ValueError as error:
                parser.error(str(error))
            failed = compare_records(folder, checkouts, names, args.data.resolve())
        else:
            names = args.only
            if {"ftg", "ftg+"} & set(names) and "modular_transformer" not in names:
                names = ["modular_transformer", *names]  # the fine-tuned rows start from it
            failed = compare_rows(folder, checkouts, names)
    print(f"{len(names) - failed} of {len(names)} trainings are equal in {HERE} and {other}")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
