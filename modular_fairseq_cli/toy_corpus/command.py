"""Write a synthetic German-English parallel corpus, on which a tiny Transformer learns to translate in
minutes.

The sentences come from a small grammar: a meaning is drawn at random (`sampler`: who does what to whom, when
and where), and each language says it in its own way (`german`, `english`). The two differ as the real
languages do. Articles, adjectives and nouns agree in gender, case and number, and verbs with their subjects.
The German verb comes second, whatever stands first, and last in a subordinate clause; participles,
infinitives and the particles of separable verbs close the clause; an object may come first, where case or
agreement shows that it is one. There are negation with "nicht" and "kein", questions, relative clauses,
infinitive clauses, and compounds (one German word, two English ones). Much depends on words elsewhere in the
sentence: the sense of a noun on the verb ("bank": bench or bank), the sense of a verb on its object or
particle ("stellt ... ein": hires or adjusts), "sie" on agreement (she or they), "den jungen" on the case that
the verb governs (the boy or the boys), the English tense on an adverbial (the present with "morgen" is a
future).

Each German sentence has exactly one translation, so a perfect score is possible. The text is lower-case, with
spaces between the tokens, 4 to 16 to a sentence. No sentence occurs twice, in either language; every word of
valid and test occurs in train. The same seed gives the same files everywhere.
"""

import argparse
import os
import tempfile
from pathlib import Path

from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.toy_corpus.sampler import Pair, Sampler

MAX_SENTENCES = 1_000_000  # in all three splits; the grammar has far more
MAX_REJECTED = 20_000  # sentences in a row that are not new or hold a word that is not in train


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "out",
        type=Path,
        metavar="OUT",
        help="folder for train.de, train.en, valid.de, valid.en, test.de and test.en",
    )
    parser.add_argument(
        "--train", type=int, default=16_000, metavar="N", help="sentences to train on (default: %(default)s)"
    )
    parser.add_argument(
        "--valid", type=int, default=300, metavar="N", help="sentences to validate on (default: %(default)s)"
    )
    parser.add_argument(
        "--test", type=int, default=500, metavar="N", help="sentences to test on (default: %(default)s)"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        metavar="S",
        help="another seed gives another corpus (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> None:
    sizes = {"train": args.train, "valid": args.valid, "test": args.test}
    for split, size in sizes.items():
        if size < 1:
            raise UsageError(f"--{split} {size}: is no number of sentences; give at least 1")
    if sum(sizes.values()) > MAX_SENTENCES:
        raise UsageError(
            f"--train {args.train}, --valid {args.valid}, --test {args.test}: give at most {MAX_SENTENCES} "
            "sentences together"
        )
    if args.seed < 0:
        raise UsageError(f"--seed {args.seed}: give 0 or more")
    if os.path.isfile(args.out):
        raise UsageError(f"{args.out}: is a file; give a folder, which need not exist yet")

    splits = draw_splits(sizes, args.seed)
    texts = {}
    for split, pairs in splits.items():
        for language, sentences in zip(("de", "en"), zip(*pairs, strict=True), strict=True):
            texts[f"{split}.{language}"] = "".join(f"{sentence}\n" for sentence in sentences)
    write(args.out, texts)
    print(f"{args.out}: sentences: train {args.train}, valid {args.valid}, test {args.test}")


def draw_splits(sizes: dict[str, int], seed: int) -> dict[str, list[Pair]]:
    """Return the sentences of each split. `sizes` names train first; the others use only its words."""
    sampler = Sampler(seed)
    splits: dict[str, list[Pair]] = {}
    seen: set[str] = set()
    train_words: set[str] = set()
    for split, size in sizes.items():
        pairs = splits[split] = []
        rejected = 0
        while len(pairs) < size:
            pair = sampler.sentence()
            words = " ".join(pair).split()
            if seen.isdisjoint(pair) and (split == "train" or train_words.issuperset(words)):
                pairs.append(pair)
                seen.update(pair)
                rejected = 0
            elif (rejected := rejected + 1) == MAX_REJECTED:
                raise UsageError(
                    f"--train {sizes['train']}: has too few words for --{split} {size}; give more for --train"
                )
            if split == "train":
                train_words.update(words)
    return splits


def write(folder: Path, texts: dict[str, str]) -> None:
    """Write the files, by name; an error leaves none of them half-written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as unfinished:
            for name, text in texts.items():
                Path(unfinished, name).write_bytes(text.encode())
            for name in texts:
                os.replace(Path(unfinished, name), folder / name)
    except OSError as error:
        raise UsageError(
            f"{folder}: cannot be written ({error.strerror}); give a folder that you may write to"
        ) from error
