"""Look inside a trained model, on data: gates, experts, clusters, mechanisms, attention patterns, redundancy, single sentences.

    modular-fairseq analyze all DATA --path CHECKPOINT --out DIR
    modular-fairseq analyze gates,redundancy DATA --path CHECKPOINT --gen-subset test
    modular-fairseq analyze samples DATA --path CHECKPOINT --out DIR --sentence "ein hund rennt ."
    modular-fairseq analyze single-expert DATA --path CHECKPOINT -- --beam 4 --remove-bpe

DATA is what fairseq-preprocess wrote. The model reads it once for all analyses, teacher-forced, in evaluation mode; patterns, redundancy
and samples take fairseq's own Transformers and language models as well. DIR gets analysis.json, a .tsv file for each table and the sample
sentences; what an earlier analysis wrote there is replaced. `modular-fairseq report DIR` makes a page of it.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import nn

from modular_fairseq.analysis import folder, samples
from modular_fairseq.analysis.clusters import Clusters
from modular_fairseq.analysis.competition import CompetitionOfMechanisms
from modular_fairseq.analysis.gates import Experts, Gates
from modular_fairseq.analysis.loading import MAX_TOKENS, Loaded, batches, load
from modular_fairseq.analysis.one_pass import Analysis, Report, one_pass
from modular_fairseq.analysis.patterns import Patterns
from modular_fairseq.analysis.redundancy import Redundancy
from modular_fairseq.analysis.single_expert import compare_experts
from modular_fairseq.arguments import add_user_dir, import_user_dir, take_options_after_dashes
from modular_fairseq.errors import UsageError

# By the name on the command line; a --user-dir may add its own.
ANALYSES: dict[str, type[Analysis]] = {
    "gates": Gates,
    "experts": Experts,
    "clusters": Clusters,
    "competition": CompetitionOfMechanisms,
    "patterns": Patterns,
    "redundancy": Redundancy,
}
ALL, SAMPLES, SINGLE_EXPERT = "all", "samples", "single-expert"
DEFAULT_SAMPLES = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    summaries = {
        **{name: kind.summary for name, kind in ANALYSES.items()},
        SAMPLES: "attention, masks, gates and competition of some sentences, for --out",
        SINGLE_EXPERT: "BLEU with the most specialised and with random experts; what follows a -- goes to fairseq-generate",
        ALL: "all that the model has, but single-expert",
    }
    parser.usage = "modular-fairseq analyze WHAT DATA --path CHECKPOINT [options] [-- options of fairseq-generate]"
    parser.add_argument(
        "what", metavar="WHAT", help="; ".join(f"{name}: {text}" for name, text in summaries.items()) + "; several with commas"
    )
    parser.add_argument("data", metavar="DATA", help="binarized data, as for fairseq-generate")
    parser.add_argument("--path", required=True, metavar="FILE", help="checkpoint")
    parser.add_argument("--gen-subset", default="valid", metavar="PART", help="which part of the data (default: valid)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the results")
    parser.add_argument("--samples", type=int, metavar="N", help=f"sentences of the data to step through (default: {DEFAULT_SAMPLES})")
    parser.add_argument(
        "--sentence",
        action="append",
        default=[],
        metavar="TEXT",
        help="one more to step through, as tokens of the training text, and after a tab its translation, or the model translates it; "
        "may be given again",
    )
    parser.add_argument("--max-tokens", type=int, default=MAX_TOKENS, metavar="N", help=f"tokens in a batch (default: {MAX_TOKENS})")
    parser.add_argument(
        "--skip-invalid-size-inputs-valid-test", action="store_true", help="leave out sentences longer than the model's positions"
    )
    add_user_dir(parser)
    take_options_after_dashes(parser)


def run(args: argparse.Namespace) -> None:
    import_user_dir(args)
    names = chosen(args.what)
    check(args, names)
    if args.out:
        folder.prepare(args.out)
    loaded = load(args.path, args.data, args.gen_subset)
    analyses, refused = build(names, loaded.model)
    sentences = collect_samples(args, loaded) if SAMPLES in names or (names == [ALL] and args.out) else None
    found = batches(loaded.model, loaded.task, args.gen_subset, args.max_tokens, args.skip_invalid_size_inputs_valid_test)
    reports = dict(zip(analyses, one_pass(loaded.model, found, analyses.values()), strict=True)) if analyses else {}
    if SINGLE_EXPERT in names:
        reports[SINGLE_EXPERT] = compare_experts(args.path, args.data, args.gen_subset, args.options, args.out)
    if args.out:
        about = {**loaded.about, "sentences": len(loaded.task.dataset(args.gen_subset))}
        tables = {name: rows for report in reports.values() for name, rows in report.tables().items()}
        folder.write(args.out, about, {name: report.data() for name, report in reports.items()}, tables, sentences)
    show(reports, refused)  # last: whoever reads it may stop reading


def analyze(
    path: str | Path, data: str | Path, subset: str = "valid", names: Iterable[str] = (ALL,), max_tokens: int = MAX_TOKENS
) -> dict[str, Report]:
    """The reports of a checkpoint on one part of binarized data, by name; for Python.

    Raises:
        UsageError: files that are missing or do not fit, a model or data with nothing to see.
    """
    loaded = load(path, data, subset)
    analyses, _ = build(list(names), loaded.model)
    return dict(
        zip(analyses, one_pass(loaded.model, batches(loaded.model, loaded.task, subset, max_tokens), analyses.values()), strict=True)
    )


def chosen(what: str) -> list[str]:
    """The names in WHAT.

    Raises:
        UsageError: one is unknown, or `all` among others.
    """
    names, known = what.split(","), [*ANALYSES, SAMPLES, SINGLE_EXPERT]
    for name in names:
        if name not in known and names != [ALL]:
            raise UsageError(f"{what}: there is no analysis {name!r}; give {ALL}, or with commas between them some of {', '.join(known)}")
    return list(dict.fromkeys(names))


def check(args: argparse.Namespace, names: list[str]) -> None:
    """Refuse options that would have no effect, before long work.

    Raises:
        UsageError: one sentence.
    """
    if args.options and SINGLE_EXPERT not in names:
        raise UsageError(f"{' '.join(args.options)} after --: goes to fairseq-generate, which only {SINGLE_EXPERT} calls; leave it out")
    with_samples = SAMPLES in names or names == [ALL]
    if SAMPLES in names and not args.out:
        raise UsageError(f"{SAMPLES}: needs --out, the folder that they are written to")
    for option, value in (("--samples", args.samples is not None), ("--sentence", args.sentence)):
        if value and not (with_samples and args.out):
            raise UsageError(f"{option} has no effect without {SAMPLES} or {ALL}, and --out; leave it out, or add them")
    if args.samples is not None and args.samples < 0:
        raise UsageError(f"--samples {args.samples}: must be 0 or more")


def build(names: list[str], model: nn.Module) -> tuple[dict[str, Analysis], dict[str, str]]:
    """The analyses of the pass, and, with `all`, why the others were left out.

    Raises:
        UsageError: the model has nothing to see for one that was asked for by name.
    """
    if names != [ALL]:
        return {name: ANALYSES[name](model) for name in names if name in ANALYSES}, {}
    analyses: dict[str, Analysis] = {}
    refused: dict[str, str] = {}
    for name, kind in ANALYSES.items():
        try:
            analyses[name] = kind(model)
        except UsageError as error:
            refused[name] = str(error)
    return analyses, refused


def collect_samples(args: argparse.Namespace, loaded: Loaded) -> samples.Samples | None:
    count = DEFAULT_SAMPLES if args.samples is None else args.samples
    model, task = loaded.model, loaded.task
    own: list[Any] = [
        samples.sentence_of_text(model, task, text, f"--sentence {number}") for number, text in enumerate(args.sentence, start=1)
    ]
    sentences = [*own, *samples.sentences_of_data(model, task, args.gen_subset, count)]
    return samples.collect(model, sentences) if sentences or count else None


def show(reports: dict[str, Report], refused: dict[str, str]) -> None:
    for number, (name, report) in enumerate(reports.items()):
        if len(reports) > 1:
            print(("\n" if number else "") + name.upper())
        print(report.text())
    if refused:
        print("\nnot in this model: " + ", ".join(refused))
