"""Write the folders in which `modular-fairseq table` works: a small table and the files of its runs."""

import json
import subprocess
import sys
from argparse import Namespace

import sacrebleu
import yaml

from modular_fairseq.runs.papers import plan as planning
from modular_fairseq.runs.papers.table import read_table
from tests.places import ROOT

BASE = {
    "task": {"_name": "translation", "data": "toy.de-en/bin", "source_lang": "de", "target_lang": "en"},
    "model": {
        "_name": "modular_transformer",
        **{
            f"{stack}_{size}": value
            for stack in ("encoder", "decoder")
            for size, value in (("embed_dim", 32), ("ffn_embed_dim", 32))
        },
        **{
            f"{stack}_{size}": value
            for stack in ("encoder", "decoder")
            for size, value in (("attention_heads", 4), ("layers", 1))
        },
    },
    "criterion": {"_name": "modular_cross_entropy"},
    "optimizer": {"_name": "adam"},
    "lr_scheduler": {"_name": "fixed"},
    "optimization": {"lr": [0.005], "max_epoch": 4},
    "dataset": {"max_tokens": 60, "update_epoch_batch_itr": True, "num_workers": 0},
    "checkpoint": {"keep_last_epochs": 2},
    "generation": {"beam": 2},
    "common": {"log_interval": 5},
}

EXPERTS = {"attention_type": "mae", "mae_gate_interval": 2}

START = {"finetune_from_model": "experts.yaml", "no_epoch_checkpoints": True}

ROWS = {
    "plain": {},
    "experts": {"model": EXPERTS},
    "gates": {"model": {**EXPERTS, "mae_finetune": "gates", "mae_gate_interval": None}, "checkpoint": START},
    "untuned": {"model": EXPERTS, "checkpoint": START},
}

TABLE = {
    "title": "A table",
    "baseline": "plain",
    "columns": ["bleu", "parameters", "trained_parameters", "updates"],
    "rows": [
        {"label": "Somebody's", "paper": {"bleu": 30.1}},
        {"name": "plain", "label": "Plain", "paper": {"bleu": 31.2, "parameters": "1M"}},
        {"name": "experts", "label": "Experts"},
        {
            "name": "specialised",
            "config": "experts.yaml",
            "baseline": "experts",
            "overrides": {"mae_inference": "specialised"},
        },
        {"name": "gates", "subset": "valid", "baseline": "untuned"},
        {"name": "untuned", "subset": "valid", "pretrained": True, "baseline": ""},
    ],
}


def write_configs(folder, **changes):
    for name, row in ROWS.items():
        values = {group: {**BASE[group], **row.get(group, {}), **changes.get(group, {})} for group in BASE}
        if "no_epoch_checkpoints" in values["checkpoint"]:
            del values["checkpoint"]["keep_last_epochs"]
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(values))
    (folder / "table.yaml").write_text(yaml.safe_dump(TABLE, allow_unicode=True, sort_keys=False))


def command(place, *args, out="results"):
    table = [
        "table",
        place / "configs/mine/table.yaml",
        "--data",
        place / "data",
        "--out",
        place / out,
        *args,
    ]
    return [sys.executable, "-m", "modular_fairseq_cli", *map(str, table)]


def call(place, *args, out="results"):
    words = command(place, *args, out=out)
    return subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=600)


WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "while",
    "many",
    "small",
    "birds",
    "sing",
]

REFERENCES = [" ".join(WORDS[i % 5 :] + WORDS[: i % 7]) for i in range(30)]


def translation(spoilt):
    """Return a translation whose first `spoilt` lines are wrong."""
    return [line.replace("fox", "cat") if i < spoilt else line for i, line in enumerate(REFERENCES)]


UNTRAINED = {"trained_parameters": 0, "updates": 0}


def write_result(place, row, seed, spoilt, file="test", overrides=()):
    """Write the files of a finished run, and return its BLEU. The first `spoilt` lines of its translation are
    wrong.
    """
    hypotheses = translation(spoilt)
    bleu = sacrebleu.corpus_bleu(hypotheses, [REFERENCES]).score
    folder = place / f"results/paper/mine/{row}/seed-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{file}.out").write_text("".join(f"{line}\n" for line in hypotheses))
    (folder / f"{file}.ref.en").write_text("".join(f"{line}\n" for line in REFERENCES))
    generate = ["--source-lang", "de", "--target-lang", "en", "--beam", "2", *map(str, overrides)]
    (folder / f"{file}.json").write_text(
        json.dumps({"checkpoint": "c", "generate": generate, "bleu": bleu, "bleu_signature": "s"})
    )
    (run,) = [
        each.run
        for found in planning.plan(
            read_table(place / "configs/mine/table.yaml"), arguments(place, str(seed))
        ).values()
        for each in found.measurements[:1]
        if each.run.name == f"mine/{row}/seed-{seed}" and not each.overrides
    ]
    (folder / "settings.json").write_text(json.dumps(run.settings))
    trained = {"trained_parameters": 7, "updates": 10 * seed} if run.trains else UNTRAINED
    (folder / "training.json").write_text(json.dumps({"checkpoint": "c", "parameters": 7, **trained}))
    return bleu


def table_arguments(table, **changes):
    """Return what the command line of `modular-fairseq table TABLE --run` gives, with changes."""
    defaults = {
        "only": [],
        "scale": "paper",
        "jobs": 1,
        "run": True,
        "samples": 1000,
        "options": [],
        "user_dir": None,
        "workers": 1,
    }
    return {"table": str(table), "seeds": "1", "data": ".", "pretrained": None} | defaults | changes


def arguments(place, seeds):
    paths = {"data": str(place / "data"), "out": str(place / "results")}
    return Namespace(**table_arguments(place / "configs/mine/table.yaml", **paths, seeds=seeds, samples=100))
