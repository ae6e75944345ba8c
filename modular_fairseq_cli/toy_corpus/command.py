"""Write a synthetic German-English parallel corpus, or a text in English.

A tiny Transformer learns to translate it in minutes. A small grammar draws a meaning at random (who does what
to whom, when and where), and each language says it in its own way. The two differ as the real languages do:

  - Articles, adjectives and nouns agree in gender, case and number, and verbs agree with their subjects.
  - The German verb is second in a main clause, whatever comes first, and last in a subordinate clause.
    Participles, infinitives and the particles of separable verbs close the clause.
  - A German object may come first if case or agreement shows that it is the object.
  - There are negation with "nicht" and "kein", questions, relative clauses, infinitive clauses, and compounds
    (one word in German, two in English).

The translation of many words depends on other words of the sentence. The verb decides the sense of a noun
("bank": bench or bank). The object or the particle decides the sense of a verb ("stellt ... ein": hires or
adjusts). Agreement decides whether "sie" is she or they. The case that the verb governs decides whether "den
jungen" is the boy or the boys. An adverbial decides the English tense (the present with "morgen" is a
future).

Each German sentence has exactly one translation, so a perfect score is possible. The text is lower-cased, and
spaces separate its tokens, of which a sentence has 4 to 16. No sentence occurs twice, in either language, and
train has every word of valid and test. The same seed gives the same files on every machine.

With --documents the corpus is a text for language models: the English sentences, in documents of up to 8
sentences about the same thing, with a blank line after each document.

With --classes the corpus is a classification of English sentences, or of pairs of them, for models that are
fine-tuned: plural (does a sentence name several things of a kind?), topic (do two sentences name the same
thing?), entailment (the three classes of MNLI) or similarity (a value from 0 to 1).

With --pictures there is no text: bright strokes in the dark, as of digits, and coloured textures, as of
photographs, for `modular-fairseq prepare-pixels`.
"""

import argparse
import os
import tempfile
from pathlib import Path

from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.toy_corpus import pictures
from modular_fairseq_cli.toy_corpus.classes import KINDS
from modular_fairseq_cli.toy_corpus.documents import arrange
from modular_fairseq_cli.toy_corpus.sampler import Pair, Sampler

MAX_SENTENCES = 1_000_000  # in all three splits together; the grammar can make far more
ENDINGS = ("de", "en", "txt", "input0", "input1", "label")  # of the files of all kinds of corpora
MAX_REJECTED = 20_000  # this number of sentences in a row that cannot be used shows that no more can be found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the folder to write, the sizes of the splits and the seed."""
    parser.add_argument(
        "out",
        type=Path,
        metavar="OUT",
        help="the folder to write: train.de, train.en, valid.de, valid.en, test.de and test.en; or "
        "train.txt, valid.txt and test.txt; or train.input0, train.input1, train.label and so on",
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--documents",
        action="store_true",
        help="write a text in English, in documents, for language models",
    )
    kind.add_argument(
        "--classes",
        choices=KINDS,
        help="write a classification of English sentences or of pairs of them, for fine-tuning",
    )
    kind.add_argument(
        "--pictures",
        action="store_true",
        help="write pictures for prepare-pixels: strokes.idx and textures.npz, each with as many as train, "
        "valid and test together",
    )
    parser.add_argument(
        "--train",
        type=int,
        default=16_000,
        metavar="N",
        help="number of sentences in train (default: %(default)s)",
    )
    parser.add_argument(
        "--valid",
        type=int,
        default=300,
        metavar="N",
        help="number of sentences in valid (default: %(default)s)",
    )
    parser.add_argument(
        "--test",
        type=int,
        default=500,
        metavar="N",
        help="number of sentences in test (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        metavar="S",
        help="seed of the random numbers; another seed gives another corpus (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> None:
    """Write the corpus. Raises UsageError if an option makes no sense or the folder cannot be written."""
    sizes = {"train": args.train, "valid": args.valid, "test": args.test}
    for split, size in sizes.items():
        if size < 1:
            raise UsageError(f"--{split} {size}: is not a number of sentences; give at least 1")
    if sum(sizes.values()) > MAX_SENTENCES:
        raise UsageError(
            f"--train {args.train}, --valid {args.valid}, --test {args.test}: give at most {MAX_SENTENCES} "
            "sentences together"
        )
    if args.seed < 0:
        raise UsageError(f"--seed {args.seed}: give 0 or more")
    if os.path.isfile(args.out):
        raise UsageError(f"{args.out}: is a file; give a folder, which need not exist yet")

    if args.pictures:
        write(args.out, pictures.write(sizes, args.seed))
        print(f"{args.out}: {sum(sizes.values())} pictures of strokes, and as many of textures")
        return
    splits = draw_splits(sizes, args.seed)
    texts: dict[str, str] = {}
    sampler = Sampler(args.seed)
    for split, pairs in splits.items():
        if args.classes:
            for name, lines in KINDS[args.classes]([english for _, english in pairs], sampler).items():
                texts[f"{split}.{name}"] = "".join(f"{line}\n" for line in lines)
            continue
        if args.documents:
            documents = arrange(english for _, english in pairs)
            texts[f"{split}.txt"] = "\n".join("".join(f"{line}\n" for line in each) for each in documents)
            continue
        for language, sentences in zip(("de", "en"), zip(*pairs, strict=True), strict=True):
            texts[f"{split}.{language}"] = "".join(f"{sentence}\n" for sentence in sentences)
    other = [f"{split}.{end}" for split in sizes for end in ENDINGS if (args.out / f"{split}.{end}").exists()]
    if left := [name for name in other if name not in texts]:
        raise UsageError(
            f"{args.out}: has {left[0]} of another kind of corpus, which would be read with this one; give "
            "another folder"
        )
    write(args.out, texts)
    print(f"{args.out}: sentences: train {args.train}, valid {args.valid}, test {args.test}")


def draw_splits(sizes: dict[str, int], seed: int) -> dict[str, list[Pair]]:
    """Draw the sentences of each split.

    Args:
        sizes: the number of sentences of each split. The first split is "train"; the other splits have only
            words that occur in it.
        seed: the seed of the random numbers.

    Raises:
        UsageError: train has too few words for the other splits.
    """
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
                    f"--train {sizes['train']}: has too few words for --{split} {size}; give a larger --train"
                )
            if split == "train":
                train_words.update(words)
    return splits


def write(folder: Path, texts: dict[str, str] | dict[str, bytes]) -> None:
    """Write texts, or bytes, to the files of their names in a folder.

    Raises UsageError if one of the files exists and has another content, or if the folder cannot be written.
    Then no file is incomplete, and no file that exists has changed.
    """
    contents = {name: text.encode() if isinstance(text, str) else text for name, text in texts.items()}
    try:
        for name, content in contents.items():
            path = folder / name
            if path.exists() and (not path.is_file() or path.read_bytes() != content):
                raise UsageError(
                    f"{path}: exists, and is a file of yours or was made with other options; move it, or "
                    "give another folder"
                )
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as unfinished:
            for name, content in contents.items():
                Path(unfinished, name).write_bytes(content)
            for name in contents:
                os.replace(Path(unfinished, name), folder / name)
    except OSError as error:
        raise UsageError(
            f"{folder}: cannot be written ({error.strerror}); give a folder that you may write to"
        ) from error
