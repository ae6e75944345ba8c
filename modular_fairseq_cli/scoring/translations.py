"""Read translations and references: fairseq-generate's output, plain text, sacrebleu's test sets.

As in sacrebleu's command, a line ends at "\\n" only, and white space at its end, "\\r" included, is dropped.
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
HYPOTHESIS = re.compile(r"(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|-?inf|nan)\t(.*)")  # a score and words
SUBWORD_MARK = re.compile(r"\S@@(?: |$)|\u2581")


@dataclass
class Output:
    """A system's translation of a test set, in the order of the set.

    Attributes:
        path: path of the file, as the user gave it.
        hypotheses: the text that sacrebleu scores, one string per sentence.
        tokens: the hypotheses as the model wrote them: tokens joined by spaces. None for plain text, and for
            text that fairseq-generate has detokenised (--tokenizer, --bpe sentencepiece).
        reference_tokens: the T- lines, as many as `tokens`. None if `tokens` is None, or if the file has no
            T- lines.
        made_by: a phrase that says how the hypotheses were made from the file.
    """

    path: str
    hypotheses: list[str]
    tokens: list[str] | None = None
    reference_tokens: list[str] | None = None
    made_by: str = "lines of text, as they are"


def read_lines(path: str | os.PathLike) -> list[str]:
    """Return the lines of a UTF-8 text file, without white space at their ends.

    A file with the suffix .gz is decompressed.

    Raises:
        UsageError: the file cannot be read, is not UTF-8, or is empty.
    """
    return [line.rstrip() for line in _raw_lines(path)]


def read_output(
    path: str | os.PathLike, language: str | None = None, detokenize: str | None = None
) -> Output:
    """Read translations from the output of fairseq-generate or from plain text.

    A file with S-, H-, T- or D- lines is output of fairseq-generate. If a sentence has several hypotheses
    (--nbest), the one with the highest score counts, and the first one of equals. D- lines differ from H-
    lines only if fairseq-generate was given --bpe or --tokenizer; then the D- lines are read. If they lack
    more than the sub-word marks "@@ ", fairseq has detokenised them, and the T- lines as well.

    Args:
        path: path of the file.
        language: target language as sacremoses names it, such as "en". Detokenisation needs it.
        detokenize: "moses" or "none"; None: "moses" for tokens, "none" for text.

    Raises:
        UsageError: the file cannot be read; sentences are missing, cut short or present twice; there are
            sub-word marks; or a language is missing for "moses".
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
                f"{path}, {where}: the line has sub-word marks ({line[:40]} ...); give {option} to "
                "fairseq-generate"
            )

    hypotheses, how = text.lines, "as they are"
    if (detokenize or ("moses" if text.tokenized else "none")) == "moses":
        if not language:
            raise UsageError(
                f"{path}: the tokens cannot be detokenised without a language; give --target-lang, or "
                "--detokenize none"
            )
        from sacremoses import MosesDetokenizer  # here, because the import takes a third of a second

        moses = MosesDetokenizer(language)
        hypotheses, how = (
            [moses.detokenize(line.split()) for line in hypotheses],
            f"detokenised by sacremoses ({language})",
        )
    return Output(
        path, hypotheses, text.lines if text.tokenized else None, text.references, f"{text.name}, {how}"
    )


def read_test_set(name: str, pair: str) -> list[list[str]]:
    """Return the lines of each reference of a test set of sacrebleu, which downloads it if necessary.

    Args:
        name: name of the test set, such as "wmt14/full".
        pair: language pair, such as "en-de".

    Raises:
        UsageError: sacrebleu has no such set or pair, or cannot download it.
    """
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=3, cutoff=0.4)
        raise UsageError(
            f"--test-set {name}: sacrebleu has no test set of this name; give another, "
            f"{' or '.join(near) or 'such as wmt14/full'}"
        )
    if pair not in DATASETS[name].langpairs:
        raise UsageError(
            f"-l {pair}: --test-set {name} does not have this pair; give one of "
            f"{', '.join(DATASETS[name].langpairs)}"
        )
    logger = logging.getLogger("sacrebleu")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # the error below says the same in one sentence
    try:
        return [read_lines(file) for file in get_reference_files(name, pair)]
    # Without a network, after a wrong checksum or with a damaged archive, sacrebleu raises various errors.
    except (Exception, SystemExit) as error:
        reason = (
            getattr(error, "reason", error)
            if not isinstance(error, SystemExit)
            else "a wrong checksum, or no certificate"
        )
        folder = os.path.join(SACREBLEU_DIR, name)
        raise UsageError(
            f"--test-set {name}: the test set cannot be downloaded ({reason}); remove {folder} and try again "
            "with a network, or give the reference as a file to --reference"
        ) from None
    finally:
        logger.setLevel(level)


class _Text(NamedTuple):
    """The sentences that a file holds, in the order of the test set."""

    lines: list[str]
    tokenized: bool  # whether the lines are tokens
    references: list[str] | None  # the T- lines, if `lines` are tokens and there are T- lines
    name: str  # what messages call the lines


def _raw_lines(path: str | os.PathLike) -> list[str]:
    """Return the lines as they stand in the file; raises as `read_lines` does."""
    try:
        data = Path(path).read_bytes()
        data = gzip.decompress(data) if str(path).endswith(".gz") else data
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(
            f"{path}: cannot be read ({getattr(error, 'strerror', None) or error}); give a text file, or a "
            ".gz file of text"
        ) from None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        number = data[: error.start].count(b"\n") + 1
        raise UsageError(
            f"{path}, line {number}: the text is not UTF-8; convert the file, for example with iconv -t utf-8"
        ) from None
    if not text.strip():
        raise UsageError(
            f"{path} is empty; give a file with one sentence per line, or the output of fairseq-generate"
        )
    return text.removesuffix("\n").split("\n")


def _from_generate(path: str, found: list[tuple[int, re.Match]]) -> _Text:
    """Sort the lines of fairseq-generate's output by sentence, and choose the best hypotheses.

    Args:
        path: path of the file, for messages.
        found: matches of `GENERATED`, each with the number of its line in the file.
    """
    # For each kind of line and each sentence, scores and words.
    seen: dict[str, dict[int, list[tuple[float, str]]]] = {kind: {} for kind in "SHTD"}
    before: dict[str, int] = {}
    for line, match in found:
        kind, number, rest = match[1], int(match[2]), match[3]
        where = f"{path}, line {line}: {kind}-{number}"
        # Several hypotheses of a sentence follow one another. A sentence that comes again after another
        # sentence stems from another run.
        if number in seen[kind] and (kind in "ST" or before[kind] != number):
            raise UsageError(f"{where} is present a second time; give the output of a single run")
        before[kind] = number
        scored = HYPOTHESIS.fullmatch(rest or "") if kind in "HD" else None
        if rest is None or (kind in "HD" and not scored):
            raise UsageError(f"{where} is cut short or damaged; give the complete output of fairseq-generate")
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
                f"{path} lacks {listed} of {count} sentences; give the complete output for the whole test set"
            )
    hypotheses, decoded = seen["H"], seen["D"]
    if decoded and any(len(decoded[number]) != len(hypotheses[number]) for number in hypotheses):
        raise UsageError(
            f"{path}: the D- lines do not match the H- lines; give the complete output of fairseq-generate"
        )

    best = [_place_of_best(hypotheses[n]) for n in range(count)]
    lines = [hypotheses[n][index][1] for n, index in enumerate(best)]
    final = [decoded[n][index][1] for n, index in enumerate(best)] if decoded else lines
    if final != [re.sub(r"(?<=\S)@@( |$)", "", line) for line in lines]:
        return _Text(final, False, None, "D- lines")
    references = [seen["T"][n][0][1] for n in range(count)] if seen["T"] else None
    return _Text(final, True, references, "H- lines" if final == lines else "D- lines")


def _place_of_best(hypotheses: list[tuple[float, str]]) -> int:
    """Return the index of the hypothesis with the highest score, the first one of equals."""
    return max(range(len(hypotheses)), key=lambda index: hypotheses[index][0])
