"""Look inside a trained model, on data: gates, experts, clusters, mechanisms, attention patterns, redundancy,
single sentences.

    modular-fairseq analyze all DATA --path CHECKPOINT --out DIR
    modular-fairseq analyze gates,redundancy DATA --path CHECKPOINT --gen-subset test
    modular-fairseq analyze samples DATA --path CHECKPOINT --out DIR --sentence "ein hund rennt ."
    modular-fairseq analyze single-expert DATA --path CHECKPOINT -- --beam 4 --remove-bpe

DATA is what fairseq-preprocess wrote. The model reads it once for all analyses, teacher-forced, in evaluation
mode; patterns, redundancy and samples take fairseq's own Transformers and language models as well. DIR gets
analysis.json, a .tsv file for each table and the sample sentences; what an earlier analysis wrote there is
replaced. `modular-fairseq report DIR` makes a page of it.
"""

import argparse
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from modular_fairseq.analysis import samples
from modular_fairseq.analysis.analyses import ALL, ANALYSES, build, chosen, look
from modular_fairseq.analysis.model_and_data import MAX_TOKENS, Loaded, batches, load
from modular_fairseq.analysis.one_pass import Report
from modular_fairseq.analysis.single_expert import SINGLE_EXPERT, compare_experts
from modular_fairseq.user_dir import add_user_dir, import_user_dir
from modular_fairseq_cli import analysis_folder as folder
from modular_fairseq_cli.arguments import take_options_after_dashes
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import only_one
from modular_fairseq_cli.processes import say

SAMPLES = "samples"
DEFAULT_SAMPLES = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    summaries = {
        **{name: kind.summary for name, kind in ANALYSES.items()},
        SAMPLES: "attention, masks, gates and competition of some sentences, for --out",
        SINGLE_EXPERT: "BLEU with the most specialised and with random experts; what follows a -- goes to "
        "fairseq-generate",
        ALL: "all that the model has, but single-expert",
    }
    parser.usage = (
        "modular-fairseq analyze WHAT DATA --path CHECKPOINT [options] [-- options of fairseq-generate]"
    )
    parser.add_argument(
        "what",
        metavar="WHAT",
        help="; ".join(f"{name}: {text}" for name, text in summaries.items()) + "; several with commas",
    )
    parser.add_argument("data", metavar="DATA", help="binarized data, as for fairseq-generate")
    parser.add_argument("--path", required=True, metavar="FILE", help="checkpoint")
    parser.add_argument(
        "--gen-subset", default="valid", metavar="PART", help="which part of the data (default: valid)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the results")
    parser.add_argument(
        "--samples",
        type=int,
        metavar="N",
        help=f"sentences of the data to step through (default: {DEFAULT_SAMPLES})",
    )
    parser.add_argument(
        "--sentence",
        action="append",
        default=[],
        metavar="TEXT",
        help="one more to step through, as tokens of the training text, and after a tab its translation, or "
        "the model translates it; may be given again",
    )
    parser.add_argument(
        "--max-tokens", type=int, metavar="N", help=f"tokens in a batch (default: {MAX_TOKENS})"
    )
    parser.add_argument(
        "--skip-invalid-size-inputs-valid-test",
        action="store_true",
        help="leave out sentences longer than the model's positions",
    )
    add_user_dir(parser)
    take_options_after_dashes(parser)


def run(args: argparse.Namespace) -> None:
    import_user_dir(args)
    names = chosen((name.strip() for name in args.what.split(",")), others=[SAMPLES, SINGLE_EXPERT])
    check(args, names)
    with ExitStack() as stack:
        if args.out:
            folder.prepare(args.out)
            stack.enter_context(only_one(str(args.out)))
        show(*_analyze_and_write(args, names))  # last: whoever reads it may stop reading
    if args.out:
        say(
            f"{args.out} has the results; `modular-fairseq report {args.out} --out report.html` makes a page "
            "of them"
        )


def _analyze_and_write(
    args: argparse.Namespace, names: list[str]
) -> tuple[dict[str, Report], dict[str, str]]:
    """Reports, which are in --out already, and why others are left out."""
    loaded = load(args.path, args.data, args.gen_subset)
    analyses, left_out = build(names, loaded.model)
    sentences = (
        collect_samples(args, names, loaded, left_out)
        if SAMPLES in names or (names == [ALL] and args.out)
        else None
    )
    reports, about = (
        {},
        {**loaded.about, "sentences": 0 if analyses else len(loaded.task.dataset(args.gen_subset))},
    )
    if analyses:
        max_tokens = MAX_TOKENS if args.max_tokens is None else args.max_tokens
        found = batches(
            loaded.model, loaded.task, args.gen_subset, max_tokens, args.skip_invalid_size_inputs_valid_test
        )
        reports, seen_nothing = look(names, loaded.model, _counted(found, about), analyses)
        left_out |= seen_nothing
    if SINGLE_EXPERT in names:
        reports[SINGLE_EXPERT] = compare_experts(
            args.path, args.data, args.gen_subset, args.options, args.out, args.user_dir
        )
    if args.out:
        tables = {name: rows for report in reports.values() for name, rows in report.tables().items()}
        folder.write(
            args.out, about, {name: report.data() for name, report in reports.items()}, tables, sentences
        )
    return reports, left_out


def _counted(batches: Iterable[dict], about: dict[str, Any]) -> Iterator[dict]:
    """The same batches; `about` gets how many sentences were in them."""
    for batch in batches:
        about["sentences"] += batch["nsentences"]
        yield batch


def check(args: argparse.Namespace, names: list[str]) -> None:
    """Refuse options that would have no effect, before long work.

    Raises:
        UsageError: one sentence.
    """
    if args.options and SINGLE_EXPERT not in names:
        raise UsageError(
            f"{' '.join(args.options)} after --: goes to fairseq-generate, which only {SINGLE_EXPERT} calls; "
            "leave it out"
        )
    if SAMPLES in names and not args.out:
        raise UsageError(f"{SAMPLES}: needs --out, the folder that they are written to")
    with_samples = args.out and (SAMPLES in names or names == [ALL])
    of_the_pass = names == [ALL] or any(name in ANALYSES for name in names)
    for option, is_given, has_effect, needs in (
        ("--samples", args.samples is not None, with_samples, f"{SAMPLES} or {ALL}, and --out"),
        ("--sentence", args.sentence, with_samples, f"{SAMPLES} or {ALL}, and --out"),
        ("--max-tokens", args.max_tokens is not None, of_the_pass, "an analysis of all the data"),
        (
            "--skip-invalid-size-inputs-valid-test",
            args.skip_invalid_size_inputs_valid_test,
            of_the_pass,
            "an analysis of all the data",
        ),
    ):
        if is_given and not has_effect:
            raise UsageError(f"{option} has no effect without {needs}; leave it out, or add them")
    if args.samples is not None and args.samples < 0:
        raise UsageError(f"--samples {args.samples}: must be 0 or more")
    if SAMPLES in names and args.samples == 0 and not args.sentence:
        raise UsageError(f"{SAMPLES} --samples 0: leaves nothing to write; ask for some, or give --sentence")


def collect_samples(
    args: argparse.Namespace, names: list[str], loaded: Loaded, left_out: dict[str, str]
) -> samples.Samples | None:
    """Of --sentence and the data; with `all`, `left_out` gets why there are none.

    Raises:
        UsageError: a sentence that cannot be read, or, by name, a model or data that samples cannot be of.
    """
    model, task = loaded.model, loaded.task
    count = DEFAULT_SAMPLES if args.samples is None else args.samples
    if not count and not args.sentence:
        return None
    try:
        samples.check(model)
        own = [
            samples.sentence_of_text(model, task, text, f"--sentence {number}")
            for number, text in enumerate(args.sentence, start=1)
        ]
        return samples.collect(model, [*own, *samples.sentences_of_data(model, task, args.gen_subset, count)])
    except UsageError as error:
        if names != [ALL] or args.sentence:
            raise
        left_out[SAMPLES] = str(error)
        return None


def show(reports: dict[str, Report], left_out: dict[str, str]) -> None:
    """Prints them, and what is left out with the reason."""
    for number, (name, report) in enumerate(reports.items()):
        if len(reports) > 1:
            print(("\n" if number else "") + name.upper())
        print(report.text())
    for number, (name, reason) in enumerate(left_out.items()):
        print(("" if number else "\nleft out\n") + f"  {name}: {reason}")
