"""Measure how well a model predicts masked words, or the classes of inputs.

    modular-fairseq predict DATA --path CHECKPOINT --gen-subset test
    modular-fairseq predict DATA --path CHECKPOINT --out predictions

The model has been trained by --task masked_lm or sentence_prediction, and DATA is a folder of data for this
task. For masked words the command shows the mean negative log-likelihood (NLL) in bits, as fairseq logs it,
the perplexity and the accuracy. Words are masked at random as in training. --seed decides which, so that
models can be compared on the same words; fairseq-validate takes the seed of the training, and counts the
masked symbols <s> and </s> as words, which this command does not. The text is cut into blocks as in the
training (--tokens-per-sample, --sample-break-mode), so the words are the same only for models with the same
blocks. For classes the command shows the accuracy, and for values (--regression-target) the correlations of
Pearson and Spearman.

--out NAME writes two files. NAME.json has these numbers. NAME.tsv has a line for each block of text (its NLL
in nats, the number of masked words, and the number of right ones), or for each input (what is predicted, and
what is right).
"""

import argparse
import os
from typing import Any

from modular_fairseq.loading import (
    MAX_TOKENS,
    Loaded,
    add_model_and_data,
    add_skip_invalid,
    batches,
    load,
)
from modular_fairseq.prediction import classes, masked_words
from modular_fairseq.training.checkpoints import load_checkpoint, options_of
from modular_fairseq.training.overrides import read_overrides
from modular_fairseq.user_dir import add_user_dir, import_user_dir
from modular_fairseq_cli.errors import NoEffectError, UsageError
from modular_fairseq_cli.files import check_file, finite, write_file, write_json

Rows = list[list[Any]]
NOT_OVERRIDDEN = {"_name", "arch", "seed", "data"}  # what other options say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_and_data(parser)
    add_skip_invalid(parser)
    parser.add_argument("--out", metavar="NAME", help="write NAME.json and NAME.tsv")
    parser.add_argument(
        "--seed", type=int, metavar="N", help="seed of the masks of a masked language model (default: 1)"
    )
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=MAX_TOKENS,
        metavar="N",
        help=f"maximum number of tokens in a batch (default: {MAX_TOKENS})",
    )
    parser.add_argument(
        "--model-overrides",
        default="{}",
        metavar="DICTIONARY",
        help="options of the model to change, such as \"{'dropout': 0.1}\" (default: {})",
    )
    add_user_dir(parser)


def run(args: argparse.Namespace) -> None:
    import_user_dir(args)
    overrides = read_overrides(args.model_overrides, "--model-overrides")
    _check(args, overrides)
    seed = 1 if args.seed is None else args.seed
    loaded = load(args.path, args.data, args.gen_subset, {**overrides, "seed": seed})
    if args.seed is not None and loaded.about["task"] == "sentence_prediction":
        raise NoEffectError("--seed has no effect on a classification, where nothing is masked; leave it out")
    numbers, rows = measure(
        loaded, args.gen_subset, args.max_tokens, args.skip_invalid_size_inputs_valid_test
    )
    print(f"{args.gen_subset}: {describe(numbers, len(rows) - 1)}")
    if args.out:
        floats = {name: finite(value) for name, value in numbers.items() if isinstance(value, float)}
        content = {**loaded.about, "seed": seed, "overrides": overrides, **numbers, **floats}
        try:
            write_json(f"{args.out}.json", content)
            write_file(f"{args.out}.tsv", "".join("\t".join(map(str, row)) + "\n" for row in rows))
        except OSError as error:
            raise UsageError(
                f"--out {args.out} cannot be written ({error.strerror}); give another name"
            ) from None


def _check(args: argparse.Namespace, overrides: dict[str, Any]) -> None:
    """Raise UsageError if the seed, the name of the files, or an override cannot work."""
    if args.seed is not None and not 0 <= args.seed < 2**32:
        raise UsageError(f"--seed {args.seed}: give a number from 0 to {2**32 - 1}")
    if args.out and not (os.path.basename(args.out) and os.path.isdir(os.path.dirname(args.out) or ".")):
        raise UsageError(f"--out {args.out}: give a name in a folder that exists, without an ending")
    for ending in ("json", "tsv") if args.out else ():
        check_file(f"{args.out}.{ending}", "--out")
    options = options_of(load_checkpoint(args.path), "model") if overrides else {}
    for name in overrides if options else ():  # if it has none, `load` refuses the checkpoint
        if name not in options or name in NOT_OVERRIDDEN:
            raise UsageError(
                f"--model-overrides {args.model_overrides}: {name} is no option of the model that can be "
                "changed; see docs/mechanisms for the options"
            )
        before, value = options[name], overrides[name]
        fits = isinstance(value, type(before)) or (type(value), type(before)) == (int, float)
        if None not in (before, value) and (not fits or isinstance(value, bool) != isinstance(before, bool)):
            raise UsageError(
                f"--model-overrides {args.model_overrides}: {name} is {before!r} in the checkpoint, and "
                f"{value!r} is of another kind; give a value of the same kind"
            )


def measure(
    loaded: Loaded, subset: str, max_tokens: int, skip_invalid: bool = False
) -> tuple[dict[str, Any], Rows]:
    """Return what the command shows of a model: the numbers, and the lines for a file, with their heads.

    Raises:
        UsageError: the model has another task, or the data cannot be read (see `batches`).
    """
    model, task = loaded.model, loaded.task
    name = loaded.about["task"]
    found = batches(model, task, subset, max_tokens, skip_invalid)
    if name == "masked_lm":
        blocks = masked_words.predict(model, found, task.source_dictionary)
        rows: Rows = [["nll", "masked", "correct"], *(list(each[:3]) for each in blocks)]
        counts = {
            "words": masked_words.words_of(blocks),
            "masked": sum(each.masked for each in blocks),
            "blocks": sum(each.masked > 0 for each in blocks),
        }
        return {**masked_words.numbers(blocks), **counts}, rows
    if name != "sentence_prediction":
        raise UsageError(
            f"the model has the task {name}; this command is for models of the tasks masked_lm and "
            "sentence_prediction"
        )
    regression = task.cfg.regression_target
    if regression and task.cfg.num_classes != 1:
        raise UsageError(
            f"the model predicts {task.cfg.num_classes} values for each input, and this command shows the "
            "correlations of one; measure it by fairseq-validate"
        )
    numbered = classes.predict(model, found, task.cfg.classification_head_name, regression)
    predictions = [*numbered.values()]
    inputs = {"inputs": classes.inputs_of(numbered)}
    heads = ["predicted", "target"]
    if regression:
        return classes.correlations(predictions) | inputs, [heads, *(list(each) for each in predictions)]
    labels = task.label_dictionary
    names = [[labels[int(number) + labels.nspecial] for number in each] for each in predictions]
    return {"accuracy": classes.accuracy(predictions)} | inputs, [heads, *names]


def describe(numbers: dict[str, Any], inputs: int) -> str:
    """Return a sentence with the numbers of `measure` for a number of inputs."""
    if "nll" in numbers:
        return (
            f"{numbers['masked']:,} masked words in {numbers['blocks']:,} blocks of text, "
            f"NLL {numbers['nll']:.3f} bits, perplexity {numbers['perplexity']:.2f}, "
            f"accuracy {numbers['accuracy']:.2f} %"
        )
    shown = ", ".join(f"{name} {value:.2f} %" for name, value in numbers.items() if name != "inputs")
    return f"{inputs:,} inputs, {shown}"
