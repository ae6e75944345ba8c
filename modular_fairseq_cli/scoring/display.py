"""Format the output of `modular-fairseq score`: tables, signatures, and notes on what was compared."""

import html
from collections.abc import Sequence
from typing import Any

from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.scoring.intervals import Interval, notes_on
from modular_fairseq_cli.scoring.metrics import METRICS, TOKEN_METRICS
from modular_fairseq_cli.scoring.spread import Spread
from modular_fairseq_cli.scoring.translations import Output

FEW_SENTENCES = 100  # with fewer, resamples are too much alike for the bootstrap to be trusted
LABELS = METRICS | TOKEN_METRICS
REMARKS = {"ter": " (lower is better)"} | dict.fromkeys(TOKEN_METRICS, " (comparable to paper)")


def find_notes(
    references: Sequence[Sequence[str]], systems: list[list[Output]], lowercase: bool
) -> list[str]:
    """Return sentences that say what was compared, and what looks wrong without being certainly wrong.

    Args:
        references: the lines of each reference.
        systems: the outputs of the system, then the outputs of each baseline.
        lowercase: whether the scores ignore case.

    Raises:
        UsageError: the reference belongs to another test set.
    """
    outputs = sum(systems, [])
    notes = []
    for made_by in dict.fromkeys(output.made_by for output in outputs):
        paths = [output.path for output in outputs if output.made_by == made_by]
        notes.append(f"Hypotheses{'' if len(paths) == len(outputs) else f' of {_listed(paths)}'}: {made_by}.")
    notes += _notes_on_case(references, outputs) if not lowercase else []
    for what, texts in (
        ("the reference", references),
        *((output.path, [output.hypotheses]) for output in outputs),
    ):
        empty = [number for number, lines in enumerate(zip(*texts, strict=True), 1) if not "".join(lines)]
        if empty:
            notes.append(
                f"{len(empty)} of {len(texts[0])} sentences of {what} are empty, the first at {empty[0]}."
            )
    for system in systems:
        paths_by_text: dict[tuple[str, ...], str] = {}
        for output in system:
            first = paths_by_text.setdefault(tuple(output.hypotheses), output.path)
            if first != output.path:
                notes.append(
                    f"{first} and {output.path} are equal. If they are not of two seeds, leave one out: the "
                    "interval and Welch's t-test count them as two."
                )
    notes += _notes_on_references(references, outputs)
    if len(systems) > 1:
        notes.append(
            "The 95 % interval accounts for training noise and for the choice of sentences; it needs two "
            "seeds or more of both systems. The bootstrap's p accounts for the choice of sentences alone. "
            "The p of Welch's t-test accounts for training noise alone."
        )
    if len(systems) > 1 and len(references[0]) < FEW_SENTENCES:
        notes.append(f"{len(references[0])} sentences are too few for a bootstrap: its p means little.")
    return notes


def _notes_on_case(references: Sequence[Sequence[str]], outputs: list[Output]) -> list[str]:
    """Return sentences about capitals that the reference or a file has in contrast to the other."""
    notes = []
    small, cased = (
        all(_is_lower(lines) for lines in references),
        any(line != line.upper() for line in references[0]),
    )
    if small and cased:
        notes.append(
            "The reference has no capitals: these are scores of lower-cased text, whatever case the "
            "signature states."
        )
    wrong = [output.path for output in outputs if _is_lower(output.hypotheses) != small]
    if wrong and cased:
        which = "and the reference has none" if small else "unlike the reference"
        has = "has capitals" if small else "has no capitals"
        notes.append(
            f"{_listed(wrong)} {has}, {which}: BLEU and chrF count this as errors; --lowercase would ignore "
            "case."
        )
    return notes


def _notes_on_references(references: Sequence[Sequence[str]], outputs: list[Output]) -> list[str]:
    """Return sentences about files whose own references differ much from the reference.

    Raises:
        UsageError: the reference belongs to another test set.
    """
    notes = []
    expected = [{_letters(line) for line in lines} for lines in zip(*references, strict=True)]
    for output in outputs:
        if output.reference_tokens:
            same = sum(
                _letters(html.unescape(line)) in letters
                for line, letters in zip(output.reference_tokens, expected, strict=True)
            )
            if not same and len(expected) >= 10:
                raise UsageError(
                    f"{output.path}: no T- line has the letters of the reference; give the reference of the "
                    "same test set"
                )
            if same < len(expected) / 2:
                notes.append(
                    f"Only {same} of {len(expected)} T- lines of {output.path} have the letters of the "
                    "reference: it may belong to another test set."
                )
    return notes


def format_text(results: dict[str, Any]) -> str:
    """Format the results of the command, which have the structure of its JSON file, as text.

    File names are in the last column, because they can be long.
    """
    systems = [results, *results["baselines"]]
    files = [file for system in systems for file in system["files"]]
    names = [name for name in LABELS if any(name in file for file in files)]
    table = [
        [*(LABELS[name] for name in names), f"{results['sentences']} sentences of {results['reference']}"]
    ]
    for number, system in enumerate(systems):
        prefix = "baseline: " if number else ""
        for file in system["files"]:
            table.append(
                [*(f"{file[name]:.2f}" if name in file else "-" for name in names), prefix + file["path"]]
            )
        if len(system["files"]) > 1:
            cells = [_spread(system["summary"][name]) if name in system["summary"] else "-" for name in names]
            table.append([*cells, f"{prefix}mean ± standard deviation over seeds"])
    lines = [*_aligned(table), ""]
    for name in names:
        signature = next(file for file in files if name in file)[f"{name}_signature"]
        lines.append(f"{LABELS[name] + REMARKS.get(name, '')}: {signature}")

    shown = [name for name in names if name in METRICS]
    every: list[Interval] = []
    for baseline in results["baselines"]:
        table = [[*(LABELS[name] for name in shown), "difference (p of the paired bootstrap)"]]
        for pair in baseline["bootstrap"]:
            cells = [f"{pair[name]['difference']:+.2f} (p {pair[name]['p_value']:.4f})" for name in shown]
            table.append([*cells, f"{pair['file']} - {pair['baseline']}"])
        seeds = [baseline["seeds"][name] for name in shown]
        if len(results["files"]) > 1:
            of_pairs = " ± standard deviation of the pairs" if seeds[0]["std"] is not None else ""
            table.append(
                [*(_spread(each, "difference", "+") for each in seeds), f"difference of the means{of_pairs}"]
            )
        if intervals := baseline["intervals"]:
            found = [Interval(**intervals[name]) for name in shown]
            cells = [f"{each.limits('{:+.2f}')} (p {each.p_value:.4f})" for each in found]
            every += found
            table.append([*cells, "95 % interval over seeds and sentences"])
        if any(each["welch_p"] is not None for each in seeds):
            cells = ["-" if each["welch_p"] is None else f"(p {each['welch_p']:.4f})" for each in seeds]
            table.append([*cells, "Welch's t-test over seeds"])
        lines += ["", *_aligned(table)]
    return "\n".join([*lines, "", *results["notes"], *notes_on(every)]) + "\n"


def _aligned(table: list[list[str]]) -> list[str]:
    """Return the rows of a table as lines; all columns but the last are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)][:-1]
    return ["  ".join([*map(str.rjust, cells, widths), cells[-1]]) for cells in table]


def _spread(found: dict[str, Any], key: str = "mean", sign: str = "") -> str:
    """Format found[key] and the standard deviation found["std"], which may be None."""
    return Spread(found[key], found["std"]).shown(f"{{:{sign}.2f}}")


def _is_lower(lines: Sequence[str]) -> bool:
    return all(line == line.lower() for line in lines)


def _letters(line: str) -> str:
    return "".join(filter(str.isalnum, line.lower()))


def _listed(paths: list[str]) -> str:
    return ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
