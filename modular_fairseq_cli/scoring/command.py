"""Score translations by sacrebleu's BLEU, chrF and TER, over seeds, and test differences for significance.

    modular-fairseq score --reference raw/test.en generate.out
    modular-fairseq score --reference raw/test.en seed1.out seed2.out seed3.out \\
        --baseline base1.out base2.out base3.out --json scores.json
    modular-fairseq score --test-set wmt14/full -l en-de generate.out

A file is the output of fairseq-generate (with --remove-bpe) or plain detokenised text, one sentence per line.
The H- lines of fairseq-generate are sorted and detokenised by sacremoses. Several files are seeds of one
system: their mean and standard deviation are shown, too. The scores equal those of `sacrebleu REFERENCE -i
FILE -m bleu chrf ter` on the detokenised text.

If a file has T- lines, BLEU of the H- tokens against the T- tokens is shown as well, and for German the same
after compound splitting. These scores depend on the tokenisation of the corpus. They are comparable only to
the scores of papers that use the same tokenisation.

TER splits text at spaces only: "today?" and "today ?" are different words to it, while BLEU and chrF count
them as equal. So if the reference is tokenised, as a toy corpus is, even a perfect translation has a TER of
about 25 after detokenisation. Give --detokenize none in this case.

--baseline compares the files with the seeds of another system, pair by pair, or all with a single file. Give
it several times for several systems. With as many seeds of both, at least two, the 95 % interval of the
difference accounts for training noise and for the choice of test sentences. It pairs the files in their
order, so give the seeds of both systems in the same order. Two more p-values are shown, and each
accounts for one of the two alone. The paired bootstrap compares two files, and its p-value accounts for the
choice of test sentences. Welch's t-test compares seeds, and its p-value accounts for training noise.
"""

import argparse
import json
import os
import platform
import re
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import check_file, write_file
from modular_fairseq_cli.scoring.display import find_notes, format_text
from modular_fairseq_cli.scoring.intervals import of_scores
from modular_fairseq_cli.scoring.metrics import METRICS, TOKENIZERS, make_metrics, score, summarize
from modular_fairseq_cli.scoring.significance import compare_seeds, paired_bootstrap
from modular_fairseq_cli.scoring.translations import Output, read_lines, read_output, read_test_set


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="output of fairseq-generate, or plain text; several files are seeds of one system",
    )
    against = parser.add_mutually_exclusive_group(required=True)
    against.add_argument(
        "--reference", metavar="FILE", help="references: untokenised text, one sentence per line"
    )
    against.add_argument(
        "--test-set", metavar="NAME", help="a test set of sacrebleu, such as wmt14/full; needs -l"
    )
    parser.add_argument("-l", "--language-pair", metavar="en-de", help="languages of --test-set")
    parser.add_argument(
        "--baseline",
        nargs="+",
        action="append",
        default=[],
        metavar="FILE",
        help="files of a system to compare with",
    )
    parser.add_argument(
        "--samples", type=int, metavar="N", help="number of samples of the paired bootstrap (default: 1000)"
    )
    parser.add_argument(
        "--metrics",
        nargs="+",
        choices=METRICS,
        default=list(METRICS),
        help="scores to compute (default: all three)",
    )
    parser.add_argument(
        "--lowercase", action="store_true", help="ignore case, as sacrebleu does with -lc --chrf-lowercase"
    )
    parser.add_argument(
        "--tokenize",
        choices=TOKENIZERS,
        help="tokeniser for BLEU (default: sacrebleu's choice for the language, mostly 13a)",
    )
    parser.add_argument(
        "--target-lang",
        metavar="LANG",
        help="language of the translations (default: from -l, or the suffix of --reference)",
    )
    parser.add_argument(
        "--detokenize",
        choices=("moses", "none"),
        help="none: score the lines as they are (default: moses for tokens of fairseq-generate, else none)",
    )
    parser.add_argument(
        "--compound-split",
        action=argparse.BooleanOptionalAction,
        help="whether to show BLEU after compound splitting, for T- lines (default: if the target is German)",
    )
    parser.add_argument(
        "--json", metavar="FILE", help="write all results to this file, once everything has succeeded"
    )


def run(args: argparse.Namespace) -> None:
    _refuse_misfits(args)
    language = _language(args)
    references = (
        [read_lines(args.reference)] if args.reference else read_test_set(args.test_set, args.language_pair)
    )
    systems = [
        [read_output(path, language, args.detokenize) for path in paths]
        for paths in (args.files, *args.baseline)
    ]
    if args.compound_split and not any(output.reference_tokens for output in sum(systems, [])):
        raise UsageError(
            "--compound-split needs T- lines of tokens, which no file has; leave it out, or give the output "
            "of fairseq-generate"
        )
    if (
        args.lowercase
        and not {"bleu", "chrf"} & set(args.metrics)
        and not any(output.reference_tokens for output in sum(systems, []))
    ):
        raise UsageError("--lowercase has an effect on BLEU and chrF only; add bleu or chrf to --metrics")

    options = {
        "names": args.metrics,
        "lowercase": args.lowercase,
        "tokenize": args.tokenize,
        "language": language,
    }
    scored = [
        [score(output, references, compound_split=args.compound_split, **options) for output in outputs]
        for outputs in systems
    ]
    # This refuses the reference of another test set, before anything is drawn many times.
    notes = find_notes(references, systems, args.lowercase)
    results: dict[str, Any] = {
        "reference": args.reference or f"{args.test_set} {args.language_pair}",
        "sentences": len(references[0]),
        "language": language,
        "samples": args.samples or 1000,
        "files": scored[0],
        "summary": summarize(scored[0]),
        "baselines": [],
    }
    for outputs, scores in zip(systems[1:], scored[1:], strict=True):
        pairs = compare(references, outputs, systems[0], args.samples or 1000, **options)
        summaries = summarize(scores)
        both = [name for name in summaries if name in results["summary"]]
        seeds = {
            name: compare_seeds([each[name] for each in scores], [each[name] for each in scored[0]])
            for name in both
        }
        intervals = compare_seeds_and_sentences(references, outputs, systems[0], **options)
        results["baselines"].append(
            {
                "files": scores,
                "summary": summaries,
                "bootstrap": pairs,
                "seeds": seeds,
                "intervals": intervals,
            }
        )
    results["notes"] = notes
    results["versions"] = _versions()
    if args.json:
        _write_json(args.json, results)
    print(format_text(results), end="")


def compare(
    references: Sequence[Sequence[str]],
    baseline: list[Output],
    system: list[Output],
    samples: int,
    **options: Any,
) -> list[dict]:
    """Compare each output of a system with an output of the baseline, by `paired_bootstrap`.

    Args:
        references: the lines of each reference.
        baseline: one output for each of `system`, in the same order, or a single one for all.
        system: the outputs of the system, one per seed.
        samples: number of resamples.
        options: as for `paired_bootstrap`.

    Returns:
        For each output of the system the results of `paired_bootstrap`, keyed by metric, and the paths of
        both files under "file" and "baseline".
    """
    partners = baseline * len(system) if len(baseline) == 1 else baseline
    return [
        {"file": output.path, "baseline": partner.path}
        | paired_bootstrap(references, partner.hypotheses, [output.hypotheses], samples, **options)[0]
        for output, partner in zip(system, partners, strict=True)
    ]


def compare_seeds_and_sentences(
    references: Sequence[Sequence[str]], baseline: list[Output], system: list[Output], **options: Any
) -> dict[str, dict[str, Any]]:
    """Return the intervals of the differences over seeds and sentences, keyed by metric.

    Args:
        references: the lines of each reference.
        baseline, system: the outputs of both systems, in the same order of seeds.
        options: as for `make_metrics`.

    Returns:
        For each metric the fields of `intervals.Interval`. It is empty if there are fewer than two pairs of
        seeds, or fewer than two sentences.
    """
    if len(baseline) != len(system):
        return {}
    pairs = [[(theirs.hypotheses, ours.hypotheses)] for theirs, ours in zip(baseline, system, strict=True)]
    metrics = make_metrics(references=references, **options)
    found = {name: of_scores(metric, pairs) for name, metric in metrics.items()}
    return {name: interval._asdict() for name, interval in found.items() if interval}


def _refuse_misfits(args: argparse.Namespace) -> None:
    """Raise UsageError if options do not fit together."""
    if args.test_set and not args.language_pair:
        raise UsageError(f"--test-set {args.test_set} needs the languages; add, for example, -l en-de")
    if args.language_pair and not args.test_set:
        raise UsageError(
            f"-l {args.language_pair} has an effect only with --test-set; for the language of --reference, "
            "give --target-lang"
        )
    if args.samples is not None and (args.samples < 1 or not args.baseline):
        raise UsageError(
            f"--samples {args.samples}: the number must be at least 1, and needs --baseline; correct it or "
            "leave it out"
        )
    if args.tokenize and "bleu" not in args.metrics:
        raise UsageError(f"--tokenize {args.tokenize} has an effect on BLEU only; add bleu to --metrics")
    for paths in (args.files, *args.baseline):
        real = [os.path.realpath(path) for path in paths]
        for path, place in zip(paths, real, strict=True):
            if real.count(place) > 1:
                raise UsageError(f"{path} is given twice; give each seed once")
    for paths in args.baseline:
        shared = [path for path in paths if os.path.realpath(path) in map(os.path.realpath, args.files)]
        if shared:
            raise UsageError(
                f"--baseline {shared[0]}: this file would be compared with itself; give the translation of "
                "another system"
            )
        if len(paths) not in (1, len(args.files)):
            raise UsageError(
                f"--baseline {' '.join(paths)}: {len(paths)} files cannot be paired with {len(args.files)}; "
                f"give 1 file, or {len(args.files)}"
            )
    if args.json:
        target = os.path.realpath(args.json)
        check_file(args.json, "--json")
        inputs = [*args.files, *sum(args.baseline, []), *([args.reference] if args.reference else [])]
        if target in map(os.path.realpath, inputs):
            raise UsageError(
                f"--json {args.json}: this file is one of the inputs and would be lost; give another file"
            )


def _language(args: argparse.Namespace) -> str | None:
    """Return the target language, or None if it is unknown.

    It comes from --target-lang, else from -l, else from the name of the reference, such as test.de or
    test.de.gz.
    """
    if args.target_lang or args.test_set:
        return args.target_lang or args.language_pair.rpartition("-")[2]
    suffix = re.search(r"\.([a-z]{2})(?:[-_]\w+)?$", args.reference.removesuffix(".gz"))
    return suffix[1] if suffix else None


def _versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide the scores."""
    versions = {"python": platform.python_version()}
    for package in ("modular_fairseq", "sacrebleu", "sacremoses", "numpy", "scipy"):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def _write_json(path: str, results: dict[str, Any]) -> None:
    try:
        write_file(path, json.dumps(results, indent=2, allow_nan=False) + "\n")
    except OSError as error:
        raise UsageError(
            f"--json {path}: the file cannot be written ({error.strerror}), and an earlier one is unchanged; "
            "give another file, or make room"
        ) from None
