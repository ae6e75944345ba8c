"""Analyse a trained model on data: gates, experts, clusters, competition, attention patterns and redundancy.

The command also collects what the model computes on sample sentences.

    modular-fairseq analyze all DATA --path CHECKPOINT --out DIR
    modular-fairseq analyze gates,redundancy DATA --path CHECKPOINT --gen-subset test
    modular-fairseq analyze samples DATA --path CHECKPOINT --out DIR --sentence "ein hund rennt ."
    modular-fairseq analyze single-expert DATA --path CHECKPOINT -- --beam 4 --remove-bpe

DATA is a folder that fairseq-preprocess wrote. The model reads the data once for all analyses, teacher-forced
and in evaluation mode. The analyses patterns, redundancy and samples also work with fairseq's own
Transformers and language models. The results in DIR are analysis.json, a .tsv file for each table, and the
sample sentences. They replace the results of an earlier analysis. `modular-fairseq report DIR` makes an HTML
page of them.
"""

import argparse
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from modular_fairseq.analysis import samples
from modular_fairseq.analysis.analyses import ALL, ANALYSES, build, chosen, look
from modular_fairseq.analysis.one_pass import Report
from modular_fairseq.analysis.sentences import sentence_of_text, sentences_of_data
from modular_fairseq.analysis.single_expert import SINGLE_EXPERT, compare_experts
from modular_fairseq.loading import (
    MAX_TOKENS,
    SKIP_INVALID,
    Loaded,
    add_model_and_data,
    add_skip_invalid,
    batches,
    load,
)
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
        SAMPLES: "attention, masks, gates and competition on some sentences, written to --out",
        SINGLE_EXPERT: "BLEU with the most specialised expert and with random experts of each layer; options "
        "after -- are for fairseq-generate",
        ALL: f"all that the model supports, except {SINGLE_EXPERT}; {SAMPLES} only with --out",
    }
    parser.usage = (
        "modular-fairseq analyze WHAT DATA --path CHECKPOINT [options] [-- options of fairseq-generate]"
    )
    parser.add_argument(
        "what",
        metavar="WHAT",
        help="one or more analyses, with commas between them: "
        + "; ".join(f"{name} ({text})" for name, text in summaries.items())
        + "; or an analysis that the plugin in --user-dir adds",
    )
    add_model_and_data(parser)
    add_skip_invalid(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the results")
    parser.add_argument(
        "--samples",
        type=int,
        metavar="N",
        help=f"number of sentences of the data to show in the samples (default: {DEFAULT_SAMPLES})",
    )
    parser.add_argument(
        "--sentence",
        action="append",
        default=[],
        metavar="TEXT",
        help="add this sentence to the samples; it consists of tokens as in the training text, and may be "
        "followed by a tab and its translation; without a translation, the model translates it; this option "
        "may be repeated",
    )
    parser.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        help=f"maximum number of tokens in a batch (default: {MAX_TOKENS})",
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
        # Reports are shown after they are written, because a closed pipe may end the output early.
        show(*_analyze_and_write(args, names))
    if args.out:
        say(
            f"the results are in {args.out}; `modular-fairseq report {args.out} --out report.html` makes a "
            "page of them"
        )


def _analyze_and_write(
    args: argparse.Namespace, names: list[str]
) -> tuple[dict[str, Report], dict[str, str]]:
    """Run the analyses and write their results to --out, if it is given.

    Returns:
        the reports by name; and with "all", for each analysis that is left out, a sentence that says why.
    """
    loaded = load(args.path, args.data, args.gen_subset)
    analyses, left_out = build(names, loaded)
    sentences = (
        collect_samples(args, names, loaded, left_out)
        if SAMPLES in names or (names == [ALL] and args.out)
        else None
    )
    reports: dict[str, Report] = {}
    about = {**loaded.about, "sentences": 0 if analyses else len(loaded.task.dataset(args.gen_subset))}
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
    if not reports and sentences is None:
        reasons = " ".join(f"{name}: {reason}." for name, reason in left_out.items())
        raise UsageError(f"no analysis is for this checkpoint and these data. {reasons}")
    if args.out:
        tables = {name: rows for report in reports.values() for name, rows in report.tables().items()}
        folder.write(
            args.out, about, {name: report.data() for name, report in reports.items()}, tables, sentences
        )
    return reports, left_out


def _counted(batches: Iterable[dict], about: dict[str, Any]) -> Iterator[dict]:
    """Yield the batches, and add the number of their sentences to `about["sentences"]`."""
    for batch in batches:
        about["sentences"] += batch["nsentences"]
        yield batch


def check(args: argparse.Namespace, names: list[str]) -> None:
    """Raise UsageError for options that would have no effect, before a long analysis begins."""
    if args.options and SINGLE_EXPERT not in names:
        raise UsageError(
            f"{' '.join(args.options)} after -- has no effect, because only {SINGLE_EXPERT} calls "
            "fairseq-generate; leave it out"
        )
    if SAMPLES in names and not args.out:
        raise UsageError(f"{SAMPLES} needs --out, the folder for the sample sentences")
    with_samples = args.out and (SAMPLES in names or names == [ALL])
    reads_all_data = names == [ALL] or any(name in ANALYSES for name in names)
    for option, is_given, has_effect, needs in (
        ("--samples", args.samples is not None, with_samples, f"{SAMPLES} or {ALL}, together with --out"),
        ("--sentence", args.sentence, with_samples, f"{SAMPLES} or {ALL}, together with --out"),
        ("--max-tokens", args.max_tokens is not None, reads_all_data, "an analysis of all the data"),
        (
            SKIP_INVALID,
            args.skip_invalid_size_inputs_valid_test,
            reads_all_data,
            "an analysis of all the data",
        ),
    ):
        if is_given and not has_effect:
            raise UsageError(f"{option} has no effect without {needs}; leave out {option}")
    if args.samples is not None and args.samples < 0:
        raise UsageError(f"--samples must be 0 or more, not {args.samples}")
    if SAMPLES in names and args.samples == 0 and not args.sentence:
        raise UsageError(
            f"{SAMPLES} with --samples 0 has nothing to write; give a larger number, or add --sentence"
        )


def collect_samples(
    args: argparse.Namespace, names: list[str], loaded: Loaded, left_out: dict[str, str]
) -> samples.Samples | None:
    """Return samples of the sentences in --sentence and of the data, or None if there are none.

    With "all", an error does not stop the other analyses: its message is added to `left_out` instead.

    Raises:
        UsageError: a --sentence cannot be used; or samples were requested by name and the model does not
            support them, or the data has no sentence that is short enough.
    """
    model, task = loaded.model, loaded.task
    count = DEFAULT_SAMPLES if args.samples is None else args.samples
    if not count and not args.sentence:
        return None
    try:
        samples.check(model)
        own = [
            sentence_of_text(model, task, text, f"--sentence {number}")
            for number, text in enumerate(args.sentence, start=1)
        ]
        return samples.collect(model, [*own, *sentences_of_data(model, task, args.gen_subset, count)])
    except UsageError as error:
        if names != [ALL] or args.sentence:
            raise
        left_out[SAMPLES] = str(error)
        return None


def show(reports: dict[str, Report], left_out: dict[str, str]) -> None:
    """Print the reports, and for each analysis that is left out the reason."""
    for number, (name, report) in enumerate(reports.items()):
        if len(reports) > 1:
            print(("\n" if number else "") + name.upper())
        print(report.text())
    for number, (name, reason) in enumerate(left_out.items()):
        print(("" if number else "\nleft out\n") + f"  {name}: {reason}")
