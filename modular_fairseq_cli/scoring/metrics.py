"""BLEU, chrF and TER of a translation, by sacrebleu's own classes with the defaults of its command.

Beside them, for comparison with papers only, BLEU of tokens as fairseq-generate wrote them (H- against T-
lines, not detokenised, split at spaces), and the same after compound splitting, the rule of tensor2tensor and
of fairseq's compound_split_bleu.sh: a hyphen between two characters that are no spaces becomes a token of its
own, "##AT##-##AT##", on both sides. The latter is about 1 BLEU higher on German.

Escapes of Moses ("&apos;s", "&amp;") stay as they are in tokens: both sides have them, none holds a space or
a hyphen, and so each counts as the character it stands for. A token "@-@" stays, too: tokenisers that split
hyphens write it (tokenizer.perl -a), and it is already what the rule makes; "##AT##-##AT##" is its older
name. On such text both scores are about equal. fairseq's script would break each "@-@" into three tokens that
always match, which raises BLEU for nothing.
"""

import logging
import re
from collections.abc import Iterable, Sequence
from typing import Any

from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric

from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.scoring.spread import spread
from modular_fairseq_cli.scoring.translations import Output

# By sacrebleu's names of options, its names of scores.
METRICS = {
    "bleu": "BLEU",
    "chrf": "chrF2",
    "ter": "TER",
}
TOKEN_METRICS = {"tokenized_bleu": "tokenised BLEU", "compound_split_bleu": "compound-split BLEU"}
TOKENIZERS = ("13a", "zh", "ja-mecab", "ko-mecab", "intl", "char", "none")

logging.getLogger("sacrebleu").setLevel(logging.WARNING)  # fairseq asks every library to tell what it does

References = Sequence[str] | Sequence[Sequence[str]]


def make_metrics(
    names: Iterable[str],
    references: References,
    lowercase: bool = False,
    tokenize: str | None = None,
    language: str | None = None,
) -> dict[str, Metric]:
    """Return sacrebleu's metrics with their references.

    Args:
        names: of `METRICS`.
        references: the lines of one reference, or of several.
        lowercase: as -lc --chrf-lowercase of sacrebleu's command; TER ignores case anyway.
        tokenize: of `TOKENIZERS`, for BLEU; by default sacrebleu's choice for the language: zh, ja-mecab,
            ko-mecab, or 13a.
        language: of the target, as -l of sacrebleu's command.

    Raises:
        UsageError: the tokenizer is not installed.
    """
    references = [references] if isinstance(references[0], str) else references
    make = {
        "bleu": lambda: BLEU(
            lowercase=lowercase,
            tokenize=tokenize,
            force=tokenize == "none",  # the text is meant to be tokenised: no warning about that
            trg_lang=language or "",
            references=references,
        ),
        "chrf": lambda: CHRF(lowercase=lowercase, references=references),
        "ter": lambda: TER(references=references),
    }
    try:
        return {name: make[name]() for name in names}
    except RuntimeError:
        raise UsageError(
            f"--tokenize {tokenize or BLEU._TOKENIZER_MAP[language]}: is not installed; pip install "
            "'sacrebleu[ja,ko]', or give another"
        ) from None


def split_compounds(line: str) -> str:
    """Turn "a well-known @-@" into "a well ##AT##-##AT## known @-@"."""
    return " ".join(
        token if token == "@-@" else re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", token)
        for token in line.split()
    )


def score(
    output: Output,
    references: References,
    *,
    names: Iterable[str] = tuple(METRICS),
    compound_split: bool | None = None,
    lowercase: bool = False,
    tokenize: str | None = None,
    language: str | None = None,
) -> dict[str, Any]:
    """Return scores in percent, unrounded, and sacrebleu's signatures of them.

    Args:
        references: the lines of one reference, or of several.
        compound_split: whether compound-split BLEU is wanted; None: where the target language is German.
        names, lowercase, tokenize, language: as for `make_metrics`.

    Returns:
        path, sentences, made_by; bleu, bleu_signature, chrf, chrf_signature, ter, ter_signature; and if there
        are T- lines tokenized_bleu, tokenized_bleu_signature, compound_split_bleu,
        compound_split_bleu_signature.

    Raises:
        UsageError: another number of sentences than the reference has; a tokenizer that is not installed.
    """
    references = [references] if isinstance(references[0], str) else references
    for reference in references:
        if len(reference) != len(output.hypotheses):
            raise UsageError(
                f"{output.path}: has {len(output.hypotheses)} sentences and the reference {len(reference)}; "
                "give the reference of this test set, and a translation of all of it"
            )
    scores: dict[str, Any] = {
        "path": output.path,
        "sentences": len(output.hypotheses),
        "made_by": output.made_by,
    }

    def add(name: str, metric: Metric, hypotheses: list[str]) -> None:
        scores[name] = metric.corpus_score(hypotheses, None).score
        scores[f"{name}_signature"] = metric.get_signature().format()

    for name, metric in make_metrics(names, references, lowercase, tokenize, language).items():
        add(name, metric, output.hypotheses)
    if output.reference_tokens is not None:
        pairs = {"tokenized_bleu": (output.tokens, output.reference_tokens)}
        if language == "de" if compound_split is None else compound_split:
            pairs["compound_split_bleu"] = tuple(
                [split_compounds(line) for line in side] for side in pairs["tokenized_bleu"]
            )
        for name, (hypotheses, reference) in pairs.items():
            add(
                name,
                BLEU(lowercase=lowercase, tokenize="none", force=True, references=[reference]),
                hypotheses,
            )
    return scores


def summarize(scores: Sequence[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Return mean and standard deviation (of a sample; None for one) over seeds, of each metric that all
    have.
    """
    names = [name for name in (*METRICS, *TOKEN_METRICS) if all(name in each for each in scores)]
    spreads = {name: spread([each[name] for each in scores]) for name in names}
    return {name: {"mean": found.mean, "std": found.deviation} for name, found in spreads.items()}
