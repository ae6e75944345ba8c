"""Train one architecture on raw parallel text, from the preparation of the text to a BLEU score.

    modular-fairseq train-and-score multi30k de en work/multi30k mae_transformer --max-epoch 10 --seed 2

FOLDER holds the raw text {train,valid,test}.{SOURCE,TARGET}. OUT gets the data, prepared by `modular-fairseq
prepare raw` (tok/, bpe/, bin/: lower-cased Moses tokens, 8,000 joint BPE merges, a joined dictionary), and a
folder for each architecture with its options. That folder gets the checkpoints, train.log, generate.out,
generate.log, settings.json, training.json and score.json. score.json is the result of `modular-fairseq
score` for detokenised output and the lower-cased reference. A killed run continues. Finished data and
trainings are not made again; the test set is translated again. A folder that holds a run with other options
is refused.

OPTIONS are options of fairseq-train. They override the recipe, which is shown at the end of this page. The
options of this command itself stand before FOLDER.
"""

import argparse
import os
import re
import shlex
import textwrap

from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_NAME_REGISTRY
from fairseq.tasks.translation import TranslationTask
from omegaconf import OmegaConf

from modular_fairseq.models.tasks import archs_that_translate, check_task, mechanisms_of
from modular_fairseq.runs.corpora import prepare_raw
from modular_fairseq.runs.corpus import Corpus
from modular_fairseq.runs.fixed_options import FIXED_IN_DECODING, refuse_fixed
from modular_fairseq.runs.run import Run
from modular_fairseq.runs.translation import translate
from modular_fairseq.training.checkpoints import weights_digest
from modular_fairseq.training.command_line import parse, parse_generation, short_training
from modular_fairseq.training.overrides import read_overrides, refuse_ignored_options
from modular_fairseq_cli import main
from modular_fairseq_cli.arguments import by_option, refuse_user_dir
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import make_folder, only_one
from modular_fairseq_cli.processes import say

SIZE = (
    "--encoder-layers {0} --decoder-layers {0} --encoder-embed-dim 256 --decoder-embed-dim 256 "
    "--encoder-ffn-embed-dim 512 --decoder-ffn-embed-dim 512 --encoder-attention-heads 8 "
    "--decoder-attention-heads 8"
)
RECIPE = (
    "--dropout 0.2 --share-all-embeddings --optimizer torch_adam --adam-betas (0.9,0.98) --clip-norm 1.0 "
    "--weight-decay 1e-4 --lr 2e-3 --lr-scheduler inverse_sqrt --warmup-updates 600 --criterion "
    "modular_cross_entropy --label-smoothing 0.1 --max-tokens 2048 --max-epoch 12 --update-epoch-batch-itr "
    "True --keep-last-epochs 5 --no-progress-bar --log-interval 100 --num-workers 1"
)
# Options that users must not give, and what to do instead.
INSTEAD = {
    "--arch": "give ARCH before OPTIONS",
    "-a": "give ARCH before OPTIONS",
    "--save-dir": "give OUT, and perhaps --name before FOLDER",
    **dict.fromkeys(("--name", "--size", "--generate"), "give it before FOLDER"),
    "--log-format": "train.log always has lines of JSON, which the command reads",
}
# Options of fairseq-generate that this command sets, or without which its score would lack sentences.
DECODING = (*FIXED_IN_DECODING, "--task", "--source-lang", "-s", "--target-lang", "-t")
STAGES = ("text", "raw", "tok", "bpe", "bin", "settings")  # what `prepare raw` writes to OUT
LONGEST_NAME = 200  # characters; file systems take 255 bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--name", help="name of the folder of the run in OUT (default: made of ARCH, --size and OPTIONS)"
    )
    parser.add_argument(
        "--size",
        metavar='"WORDS"',
        help='options that set the size of the model, as --size="WORDS"; --size="" keeps the size of '
        "the arch. By default any ARCH gets 3 + 3 layers of 256 units and 8 heads, or 4 + 4 layers if it "
        "needs as many. An epoch then takes 4 to 7 minutes on one core for 29,000 sentence pairs",
    )
    parser.add_argument(
        "--generate",
        default="",
        metavar='"WORDS"',
        help='options of fairseq-generate, such as --generate="--beam 1 --lenpen 0.6"; the = is needed',
    )
    for name, text in {
        "folder": "folder of the raw text",
        "source": "source language, which is the suffix of its files",
        "target": "target language, which is the suffix of its files",
        "out": "folder for data and runs",
        "arch": "architecture of this plugin or of fairseq",
    }.items():
        parser.add_argument(name, metavar=name.upper(), help=text)
    parser.add_argument(
        "options", nargs=argparse.REMAINDER, metavar="OPTIONS", help="options of fairseq-train"
    ).required = False
    parser.epilog = (
        f"recipe (options of fairseq-train; OPTIONS override them):\n{_wrapped(RECIPE)}\n\nsize, with 3 or 4 "
        f"in place of N (--size overrides it):\n{_wrapped(SIZE.format('N'))}\n\nA short training also gets "
        "the options that its mechanisms need to take effect early enough, such as\n--aux-warmup-updates 600 "
        "for the losses of dma_transformer, unless OPTIONS set them."
    )


def run(args: argparse.Namespace) -> None:
    refuse_user_dir(args.options)
    for option in by_option(args.options):
        if option in INSTEAD:
            raise UsageError(f"{option} cannot be given among OPTIONS; {INSTEAD[option]}")
    refuse_fixed(args.options, "among OPTIONS")
    decoding = ["--beam", "5", "--batch-size", "64", "--remove-bpe", *args.generate.split()]
    refuse_fixed(args.generate.split(), f"in --generate {args.generate}", fixed=DECODING)
    if args.arch not in ARCH_MODEL_NAME_REGISTRY:
        ours = ", ".join(archs_that_translate())
        raise UsageError(f"there is no arch {args.arch}; give {ours}, or an arch of fairseq")
    check_task(args.arch, TranslationTask)
    out = os.path.abspath(args.out)
    size = "own size" if args.size == "" else args.size or ""
    label = re.sub("[^a-zA-Z0-9.]+", "_", " ".join([args.arch, size, *args.options])).strip("_")
    label = label if args.name is None else args.name
    if len(label) > LONGEST_NAME:
        raise UsageError(
            f"the options make a name of {len(label)} characters for the folder in {args.out}; give a --name "
            f"of at most {LONGEST_NAME} characters before FOLDER"
        )
    if os.path.basename(label) != label or os.pathsep in label or label in ("", ".", "..", *STAGES):
        raise UsageError(
            f"--name {label}: it names a folder in {args.out}; give a name without / and {os.pathsep}, and "
            f"not {', '.join(STAGES)}"
        )

    # Mechanisms that arrange layers, or replace some of them, need four.
    depth = 4 if any(each.kind in ("layer", "encoder") for each in mechanisms_of(args.arch)) else 3
    sized = SIZE.format(depth) if args.size is None else args.size
    words = ["--arch", args.arch, *sized.split(), *RECIPE.split()]
    words += short_training([*words, *args.options]) + args.options
    _check_decoding(decoding, words, args.generate)
    make_folder(out, "OUT")
    prepare_raw(os.path.abspath(args.folder), args.source, args.target, out)
    folder = os.path.join(out, label)
    seed = by_option(args.options).get("--seed", ["1"])[-1]
    training = Run(
        os.path.basename(folder),
        folder,
        Corpus(os.path.join(out, "bin"), (args.source, args.target)),
        words,
        int(seed),
        settings=_settings(words),
    )
    training.check()
    training.train(say)
    with only_one(folder):
        translation = translate(training, decoding, say)
    reference = os.path.join(out, "raw", f"test.{args.target}")
    scored = ["--reference", reference, translation, "--target-lang", args.target]
    main.main(["score", *scored, "--json", training.path("score.json")])


def _settings(words: list[str]) -> dict[str, str]:
    """Return what the weights depend on: the options, and a digest of the weights that are fine-tuned."""
    options = {option: shlex.join(values) for option, values in by_option(words).items() if option}
    files = by_option(words).get("--finetune-from-model", [])
    return options | {f"weights of {file}": weights_digest(file) for file in files if os.path.isfile(file)}


def _check_decoding(decoding: list[str], words: list[str], given: str) -> None:
    """Refuse options that fairseq-generate would refuse after the training.

    Args:
        decoding: the options of fairseq-generate.
        words: the options of fairseq-train, with the model that --model-overrides changes.
        given: the value of --generate, for the message.
    """
    text = parse_generation(decoding, f"--generate {given}").model_overrides
    overrides = read_overrides(text, "--generate with --model-overrides")
    config = OmegaConf.to_container(convert_namespace_to_omegaconf(parse(words)[1]))
    refuse_ignored_options(overrides, {"the model": config}, f"--generate {given}")


def _wrapped(options: str) -> str:
    """Return words of a command line in indented lines, with each option beside its value."""
    words = shlex.join(options.split())
    together = [option.replace(" ", "\0") for option in re.split(" (?=--)", words)]
    lines = textwrap.wrap(" ".join(together), 100, break_on_hyphens=False, break_long_words=False)
    return "\n".join(f"    {line}" for line in lines).replace("\0", " ")
