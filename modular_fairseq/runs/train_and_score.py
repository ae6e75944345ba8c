"""From raw parallel text to a BLEU score, for one architecture. What is done already is not done again; a
killed run continues.

    modular-fairseq train-and-score multi30k de en results mae_transformer --max-epoch 10 --seed 2

FOLDER holds raw {train,valid,test}.{SOURCE,TARGET}. OUT gets the data, by `modular-fairseq prepare raw`
(tok/, bpe/, bin/: lower-cased Moses tokens, 8,000 joint BPE merges, joined dictionary), and a folder for each
architecture and its options: checkpoints, train.log, generate.out, generate.log, and score.json (what
`modular-fairseq score` shows: detokenised output against the lower-cased reference). OPTIONS are those of
fairseq-train; they overrule the recipe.

Environment variables:
    NAME         the name of that folder
    SIZE         options for the size of the model; empty: the arch's own. Default: 3 + 3 layers of 256
                 units and 4 heads for any ARCH, but 4 + 4 for those that need as many (4 to 7 minutes an
                 epoch on one core for 29,000 sentence pairs)
    GENERATE     options of fairseq-generate, as '--model-overrides {"mae_inference":"specialised"}'
"""

import argparse
import os
import re

from modular_fairseq.models.checks import mechanisms_of
from modular_fairseq.runs.corpora import prepare_raw
from modular_fairseq.runs.corpus import Corpus
from modular_fairseq.runs.run import Run
from modular_fairseq.runs.translation import translate
from modular_fairseq.training.command_line import short_training
from modular_fairseq_cli import main
from modular_fairseq_cli.arguments import by_option, refuse_user_dir
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import only_one
from modular_fairseq_cli.processes import say

SIZE = (
    "--encoder-layers {0} --decoder-layers {0} --encoder-embed-dim 256 --decoder-embed-dim 256 "
    "--encoder-ffn-embed-dim 512 --decoder-ffn-embed-dim 512 --encoder-attention-heads 4 "
    "--decoder-attention-heads 4"
)
RECIPE = (
    "--dropout 0.3 --share-all-embeddings --optimizer adam --adam-betas (0.9,0.98) --clip-norm 1.0 "
    "--weight-decay 1e-4 --lr 2e-3 --lr-scheduler inverse_sqrt --warmup-updates 600 --criterion "
    "modular_cross_entropy --label-smoothing 0.1 --max-tokens 2048 --max-epoch 12 --update-epoch-batch-itr "
    "True --keep-last-epochs 5 --no-progress-bar --log-interval 100 --num-workers 1"
)
LONGEST_NAME = 200  # characters; file systems take 255 bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name, text in {
        "folder": "raw text",
        "source": "ending of its files",
        "target": "ending of their translations",
        "out": "folder for data and runs",
        "arch": "of this plugin or of fairseq",
    }.items():
        parser.add_argument(name, metavar=name.upper(), help=text)
    rest = {"nargs": argparse.REMAINDER, "metavar": "OPTIONS", "help": "of fairseq-train"}
    parser.add_argument("options", **rest).required = False


def run(args: argparse.Namespace) -> None:
    refuse_user_dir(args.options)
    out, size = os.path.abspath(args.out), os.environ.get("SIZE")
    label = re.sub("[^a-zA-Z0-9.]+", "_", " ".join([args.arch, size or "", *args.options])).strip("_")
    label = os.environ.get("NAME") or label
    if len(label) > LONGEST_NAME:
        raise UsageError(
            f"the options make a name of {len(label)} characters for the folder in {args.out}; set the "
            f"environment variable NAME to one of at most {LONGEST_NAME}"
        )

    # Mechanisms that arrange layers, or replace some of them, need as many.
    depth = 4 if any(each.kind in ("layer", "encoder") for each in mechanisms_of(args.arch)) else 3
    sized = SIZE.format(depth) if size is None else size
    words = ["--arch", args.arch, *sized.split(), *RECIPE.split()]
    short = short_training([*words, *args.options], epochs=12, warmup_updates=600)
    os.makedirs(out, exist_ok=True)
    prepare_raw(os.path.abspath(args.folder), args.source, args.target, out)
    folder = os.path.join(out, label)
    seed = by_option(args.options).get("--seed", ["1"])[-1]
    of = Run(
        os.path.basename(folder),
        folder,
        Corpus(os.path.join(out, "bin"), (args.source, args.target)),
        [*words, *short, *args.options],
        int(seed),
    )
    os.makedirs(folder, exist_ok=True)
    with only_one(folder):
        of.fit(say)
        decoding = [
            "--beam",
            "5",
            "--batch-size",
            "64",
            "--remove-bpe",
            *os.environ.get("GENERATE", "").split(),
        ]
        translation = translate(of, decoding, say)
    reference = os.path.join(out, "raw", f"test.{args.target}")
    main.main(["score", "--reference", reference, translation, "--json", of.path("score.json")])
