"""Compute BLEU, chrF and TER by sacrebleu's own classes, with the defaults of its command.

Two more scores serve for comparison with papers only. Tokenised BLEU compares tokens as fairseq-generate
wrote them: H- lines against T- lines, not detokenised, split at spaces. Compound-split BLEU is the same after
compound splitting, the rule of tensor2tensor and of fairseq's compound_split_bleu.sh: on both sides, a hyphen
between two characters that are not spaces becomes the token "##AT##-##AT##". It is about 1 BLEU higher on
German.

Escapes of Moses ("&apos;s", "&amp;") are kept in tokens. Both sides have them and none contains a space or a
hyphen, so each counts as the character that it stands for. The token "@-@", which tokenisers write if they
split hyphens (tokenizer.perl -a), is kept, too: it is a split hyphen already, and "##AT##-##AT##" is its
older name. On such text both scores are about equal. fairseq's script would break each "@-@" into three
tokens that always match, which raises BLEU without a reason.
"""

import logging
import re
from collections.abc import Iterable, Sequence
from typing import Any, cast

from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric

from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.scoring.spread import spread
from modular_fairseq_cli.scoring.translations import Output

# The names of the scores, keyed by the names of sacrebleu's option -m.
METRICS = {
    "bleu": "BLEU",
    "chrf": "chrF2",
    "ter": "TER",
}
TOKEN_METRICS = {"tokenized_bleu": "tokenised BLEU", "compound_split_bleu": "compound-split BLEU"}
TOKENIZERS = ("13a", "zh", "ja-mecab", "ko-mecab", "intl", "char", "none")

# fairseq makes every library log messages of level INFO.
logging.getLogger("sacrebleu").setLevel(logging.WARNING)

References = Sequence[str] | Sequence[Sequence[str]]


def make_metrics(
    names: Iterable[str],
    references: References,
    lowercase: bool = False,
    tokenize: str | None = None,
    language: str | None = None,
) -> dict[str, Metric]:
    """Return sacrebleu's metrics, which know their references.

    Args:
        names: keys of `METRICS`.
        references: the lines of one reference, or of several.
        lowercase: whether to ignore case, as sacrebleu's command does with -lc --chrf-lowercase. TER ignores
            case in any event.
        tokenize: the tokeniser for BLEU, one of `TOKENIZERS`. None: sacrebleu's choice for the language,
            which is zh, ja-mecab, ko-mecab or 13a.
        language: the target language, as for -l of sacrebleu's command.

    Raises:
        UsageError: the tokeniser is not installed.
    """
    references = each_reference(references)
    make = {
        "bleu": lambda: BLEU(
            lowercase=lowercase,
            tokenize=tokenize,
            force=tokenize == "none",  # the user says that the text is tokenised, so no warning is needed
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
            f"--tokenize {tokenize or BLEU._TOKENIZER_MAP[language or '']}: this tokeniser is not installed; "
            "run pip install 'sacrebleu[ja,ko]', or give another one"
        ) from None


def split_compounds(line: str) -> str:
    """Split compounds at their hyphens: "a well-known @-@" becomes "a well ##AT##-##AT## known @-@"."""
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
    """Compute the scores of an output, in percent and unrounded, and sacrebleu's signatures of them.

    Args:
        output: the translation.
        references: the lines of one reference, or of several.
        compound_split: whether to compute compound-split BLEU. None: only if the target language is German.
        names, lowercase, tokenize, language: as for `make_metrics`.

    Returns:
        A dictionary with the keys path, sentences, made_by; bleu, bleu_signature, chrf, chrf_signature, ter,
        ter_signature; and, if the output has T- lines, tokenized_bleu, tokenized_bleu_signature,
        compound_split_bleu, compound_split_bleu_signature.

    Raises:
        UsageError: the output and a reference have different numbers of sentences, or the tokeniser is not
            installed.
    """
    references = each_reference(references)
    for reference in references:
        if len(reference) != len(output.hypotheses):
            raise UsageError(
                f"{output.path} has {len(output.hypotheses)} sentences and the reference {len(reference)}; "
                "give the reference of the same test set, and a translation of the whole set"
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
    if output.tokens is not None and output.reference_tokens is not None:
        pairs = {"tokenized_bleu": (output.tokens, output.reference_tokens)}
        if language == "de" if compound_split is None else compound_split:
            hypotheses, reference = (
                [split_compounds(line) for line in side] for side in pairs["tokenized_bleu"]
            )
            pairs["compound_split_bleu"] = (hypotheses, reference)
        for name, (hypotheses, reference) in pairs.items():
            add(
                name,
                BLEU(lowercase=lowercase, tokenize="none", force=True, references=[reference]),
                hypotheses,
            )
    return scores


def summarize(scores: Sequence[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Compute the mean and the sample standard deviation over seeds, for each metric that all `scores` have.

    Returns:
        For each metric a dictionary with "mean" and "std"; "std" is None for a single seed.
    """
    return {
        name: {"mean": found.mean, "std": found.deviation}
        for name in (*METRICS, *TOKEN_METRICS)
        if all(name in each for each in scores) and (found := spread([each[name] for each in scores]))
    }


def each_reference(references: References) -> list[Sequence[str]]:
    """Return the lines of each reference, also if only the lines of a single one are given."""
    if isinstance(references[0], str):
        return [cast(Sequence[str], references)]
    return list(references)
