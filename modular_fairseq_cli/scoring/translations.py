"""Reads translations and references: fairseq-generate's output, plain text, sacrebleu's own test sets.

Lines end at "\\n" only, and white space at their ends, "\\r" included, is dropped, as sacrebleu's command
does.
"""

import difflib
import gzip
import itertools
import logging
import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sacrebleu import DATASETS
from sacrebleu.utils import SACREBLEU_DIR, get_reference_files

from modular_fairseq_cli.errors import UsageError

GENERATED = re.compile(r"([SHTD])-(\d+)(?:\t(.*))?")
HYPOTHESIS = re.compile(r"(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|-?inf|nan)\t(.*)")  # score and words
SUBWORD_MARK = re.compile(r"\S@@(?: |$)|\u2581")


@dataclass
class Output:
    """One system's translation of a test set, in the order of the set.

    Attributes:
        path: of the file, as given.
        hypotheses: what sacrebleu scores.
        tokens: the hypotheses as tokens joined by spaces, as the model wrote them; None for plain text, and
            for text that fairseq-generate has detokenised (--tokenizer, --bpe sentencepiece).
        reference_tokens: the T- lines, of the same length; None where `tokens` is None or the file has no T-
            lines.
        made_by: in words, how hypotheses come from the file.
    """

    path: str
    hypotheses: list[str]
    tokens: list[str] | None = None
    reference_tokens: list[str] | None = None
    made_by: str = "lines of text, as they are"


def read_lines(path: str | os.PathLike) -> list[str]:
    """Return the lines of a text file (UTF-8; compressed if it is called .gz), without white space at their
    ends.

    Raises:
        UsageError: it cannot be read, is not UTF-8, or has nothing in it.
    """
    return [line.rstrip() for line in _raw_lines(path)]


def read_output(
    path: str | os.PathLike, language: str | None = None, detokenize: str | None = None
) -> Output:
    """Return translations from the output of fairseq-generate, told by its S-, H-, T- or D- lines, or from
    plain text.

    Of several hypotheses of a sentence (--nbest) the one with the highest score counts, the first among
    equals. D- lines differ from H- lines only where fairseq-generate was given --bpe or --tokenizer, and then
    they are taken. If more than sub-word marks "@@ " is gone from them, they are text that fairseq has
    detokenised, and so are the T- lines.

    Args:
        language: of the target, as sacremoses knows it ("en"); "moses" needs it.
        detokenize: "moses" or "none"; by default "moses" for tokens, "none" for text.

    Raises:
        UsageError: a file that cannot be read; sentences that are missing, come twice or are cut short;
            sub-word marks; "moses" without a language.
    """
    path = os.fspath(path)
    lines = _raw_lines(path)
    found = [(number, match) for number, line in enumerate(lines, 1) if (match := GENERATED.fullmatch(line))]
    generated = any(match[3] is not None for _, match in found)
    text = (
        _from_generate(path, found)
        if generated
        else _Text([line.rstrip() for line in lines], False, None, "lines of text")
    )
    for number, line in enumerate(text.lines):
        if SUBWORD_MARK.search(line):
            where = f"H-{number}" if generated else f"line {number + 1}"
            option = "--remove-bpe sentencepiece" if "\u2581" in line else "--remove-bpe"
            raise UsageError(
                f"{path}, {where}: has sub-word marks ({line[:40]} ...); give {option} to fairseq-generate"
            )

    hypotheses, how = text.lines, "as they are"
    if (detokenize or ("moses" if text.tokenized else "none")) == "moses":
        if not language:
            raise UsageError(
                f"{path}: cannot be detokenised without a language; give --target-lang, or --detokenize none"
            )
        from sacremoses import MosesDetokenizer  # its tables take a third of a second

        moses = MosesDetokenizer(language)
        hypotheses, how = (
            [moses.detokenize(line.split()) for line in hypotheses],
            f"detokenised by sacremoses ({language})",
        )
    return Output(
        path, hypotheses, text.lines if text.tokenized else None, text.references, f"{text.name}, {how}"
    )


def read_test_set(name: str, pair: str) -> list[list[str]]:
    """Return the reference or references of a test set that sacrebleu knows ("wmt14/full", "en-de");
    sacrebleu fetches what it does not have.

    Raises:
        UsageError: no such set or pair, or it cannot be fetched.
    """
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=3, cutoff=0.4)
        raise UsageError(
            f"--test-set {name}: sacrebleu knows none of that name; give another, "
            f"{' or '.join(near) or 'as wmt14/full'}"
        )
    if pair not in DATASETS[name].langpairs:
        raise UsageError(
            f"-l {pair}: --test-set {name} has no such pair; give one of "
            f"{', '.join(DATASETS[name].langpairs)}"
        )
    logger = logging.getLogger("sacrebleu")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # what it would say comes in one sentence below
    try:
        return [read_lines(file) for file in get_reference_files(name, pair)]
    except (
        Exception,
        SystemExit,
    ) as error:  # no network, a wrong sum, a cut archive: it raises and exits in many ways
        reason = (
            getattr(error, "reason", error)
            if not isinstance(error, SystemExit)
            else "a wrong sum, or no certificate"
        )
        folder = os.path.join(SACREBLEU_DIR, name)
        raise UsageError(
            f"--test-set {name}: cannot be fetched ({reason}); remove what there is of it in {folder} and "
            "try again with a network, or give the reference as a file to --reference"
        ) from None
    finally:
        logger.setLevel(level)


class _Text(NamedTuple):
    """Sentences by number, whether they are `tokenized`, the T- lines if both are tokens, and what the lines
    are called.
    """

    lines: list[str]
    tokenized: bool
    references: list[str] | None
    name: str


def _raw_lines(path: str | os.PathLike) -> list[str]:
    try:
        data = Path(path).read_bytes()
        data = gzip.decompress(data) if str(path).endswith(".gz") else data
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(
            f"{path}: cannot be read ({getattr(error, 'strerror', None) or error}); give text, or text in .gz"
        ) from None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        number = data[: error.start].count(b"\n") + 1
        raise UsageError(
            f"{path}, line {number}: is not UTF-8; convert the file, for example with iconv -t utf-8"
        ) from None
    if not text.strip():
        raise UsageError(
            f"{path}: is empty; give a file of one sentence a line, or the output of fairseq-generate"
        )
    return text.removesuffix("\n").split("\n")


def _from_generate(path: str, found: list[tuple[int, re.Match]]) -> _Text:
    """Sort the lines that `found` holds with their numbers in the file."""
    # Score and words by sentence.
    seen: dict[str, dict[int, list[tuple[float, str]]]] = {kind: {} for kind in "SHTD"}
    before: dict[str, int] = {}
    for line, match in found:
        kind, number, rest = match[1], int(match[2]), match[3]
        where = f"{path}, line {line}: {kind}-{number}"
        # Several hypotheses of a sentence follow one another; what comes back after another sentence comes
        # from another run.
        if number in seen[kind] and (kind in "ST" or before[kind] != number):
            raise UsageError(f"{where} is there a second time; give the output of one run")
        before[kind] = number
        scored = HYPOTHESIS.fullmatch(rest or "") if kind in "HD" else None
        if rest is None or (kind in "HD" and not scored):
            raise UsageError(f"{where} is cut short or damaged; give the whole output of fairseq-generate")
        entry = (float(scored[1]), scored[2].rstrip()) if scored else (0.0, rest.rstrip())
        seen[kind].setdefault(number, []).append(entry)

    count = 1 + max(max(numbers) for numbers in seen.values() if numbers)
    for kind in "HTD":
        numbers = seen[kind]
        if (numbers or kind == "H") and len(numbers) < count:
            missing = [
                f"{kind}-{number}"
                for number in itertools.islice((n for n in range(count) if n not in numbers), 5)
            ]
            more = count - len(numbers) - len(missing)
            listed = ", ".join(missing) + (f" and {more} more" if more else "")
            raise UsageError(
                f"{path}: lacks {listed} of {count} sentences; give the whole output for the whole test set"
            )
    hypotheses, decoded = seen["H"], seen["D"]
    if decoded and any(len(decoded[number]) != len(hypotheses[number]) for number in hypotheses):
        raise UsageError(
            f"{path}: has other D- lines than H- lines; give the whole output of fairseq-generate"
        )

    best = [
        max(range(len(hypotheses[n])), key=lambda index, n=n: hypotheses[n][index][0]) for n in range(count)
    ]
    lines = [hypotheses[n][index][1] for n, index in enumerate(best)]
    final = [decoded[n][index][1] for n, index in enumerate(best)] if decoded else lines
    if final != [re.sub(r"(?<=\S)@@( |$)", "", line) for line in lines]:
        return _Text(final, False, None, "D- lines")
    references = [seen["T"][n][0][1] for n in range(count)] if seen["T"] else None
    return _Text(final, True, references, "H- lines" if final == lines else "D- lines")
