#!/usr/bin/env python
"""Tell whether another checkout trains the rows of some records as this one does, bit for bit.

    python scripts/same_updates.py OTHER --data evidence/data results/evidence/multi30k/*/seed-1.json

OTHER is a checkout of this project at another commit, such as the clone in evidence/ that makes registered
runs. A record says how its run was trained. Each of the two checkouts runs the command of each record for 12
updates on a CPU. G steps are made in every epoch then, so that they are compared, too. Both checkouts use the
Python of this process and its packages. `modular-fairseq evidence --prepare` has put the corpora into DATA. A
line for each record says whether all weights are the same. The exit code is 1 if any differ or a training
fails. An entry of `changes` in results/claims.yaml that has `before` names the rows that were compared so.
"""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from modular_fairseq.runs.evidence.records import weights_digest
from modular_fairseq_cli.files import read_json

HERE = Path(__file__).resolve().parents[1]
UPDATES = 12
REMEDY = "give a record, such as results/evidence/multi30k/base/seed-1.json"
TRAIN = """
import sys
import fairseq_cli.train
fairseq_cli.train.cli_main()
import modular_fairseq, modular_fairseq_cli
print("plugin", modular_fairseq.__file__, modular_fairseq_cli.__file__)
"""
# Records write the folder of the corpora in this way, wherever it was.
DATA = "evidence/data/"


def command_of(record: str) -> list[str]:
    """Return the words of the training command of a record, without fairseq-train.

    Raises:
        SystemExit: the file is no record of a training.
    """
    content = read_json(Path(record), REMEDY)
    commands = content.get("commands", []) if isinstance(content, dict) else []
    if not commands or not commands[0].startswith("fairseq-train "):
        raise SystemExit(f"same_updates.py: {record} has no command of a training; {REMEDY}")
    if "--finetune-from-model" in commands[0]:
        raise SystemExit(f"same_updates.py: {record} is fine-tuned; give the record of its pre-training")
    # Commands are stored without quotes. No value has blanks, but those of tuples have brackets.
    return commands[0].split()[1:]


def trained(command: list[str], checkout: Path, data: str, folder: str) -> str:
    """Train for a few updates with the code of a checkout, and return the digest of the weights.

    Raises:
        RuntimeError: the training fails, or has other code than that of the checkout.
    """
    words = [data + word.removeprefix(DATA) if word.startswith(DATA) else word for word in command]
    # The last of several values of an option counts.
    words += ["--user-dir", str(checkout / "modular_fairseq"), "--save-dir", folder, "--cpu"]
    words += ["--max-update", str(UPDATES), "--disable-validation", "--num-workers", "0"]
    if "--mae-gate-interval" in words:
        words += ["--mae-gate-interval", "1"]
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{shlex.join(words)} fails with {checkout}: {done.stdout[-2000:]}")
    if done.stdout.rpartition("plugin ")[2].count(f"{checkout}/modular_fairseq") != 2:
        raise RuntimeError(f"Python did not take the code from {checkout}")
    return weights_digest(os.path.join(folder, "checkpoint_last.pt"))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path, metavar="OTHER", help="folder of the other checkout")
    parser.add_argument("records", nargs="+", metavar="RECORD", help="records of trainings")
    parser.add_argument("--data", required=True, metavar="DIR", help="folder of the prepared corpora")
    args = parser.parse_args()
    other = args.other.resolve()
    if not (other / "modular_fairseq").is_dir():
        parser.error(f"{other} has no folder modular_fairseq; name a checkout of this project")
    data = f"{Path(args.data).resolve()}/"
    commands = {record: command_of(record) for record in args.records}
    differing = 0
    for record, command in commands.items():
        digests = []
        try:
            for checkout in (HERE, other):
                with tempfile.TemporaryDirectory() as folder:
                    digests.append(trained(command, checkout, data, folder))
            verdict = "the same" if digests[0] == digests[1] else f"differs: {digests[0]} and {digests[1]}"
        except RuntimeError as error:
            verdict = f"failed: {error}"
        differing += verdict != "the same"
        print(f"{record}: {verdict}", flush=True)
    print(f"{len(commands) - differing} of {len(commands)} are the same in {HERE} and {other}")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
