"""The data of a run, which fairseq-preprocess has written, or of which a subset is drawn."""

import glob
import hashlib
import os
import re
from typing import NamedTuple

from modular_fairseq.runs import subsets
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import digest

CONTENT = "content"  # the key with the digest of all data, see `Corpus.sums`
FOLDERS = ("input0", "input1", "label")  # the folders that the data of a classification may have


class Corpus(NamedTuple):
    """A folder of binarized data that fairseq-train reads.

    Args:
        binarized: path of the folder, such as data/iwslt14.de-en/bin.
        languages: source and target language; empty for a task on a single text, such as language modelling.
        percent: the share of the training data. Below 100, `binarized` is a subset of the folder `whole`.
        folders: the folders in `binarized` that each have a dictionary and data, as input0 and label of a
            classification; empty if `binarized` has them itself.
    """

    binarized: str
    languages: tuple[str, ...] = ()
    percent: int = 100
    folders: tuple[str, ...] = ()

    @property
    def whole(self) -> str:
        """Path of the folder that holds all training data."""
        return self.binarized.removesuffix(subsets.ending(self.percent))

    @property
    def folder(self) -> str:
        """Path of the prepared corpus, which has the untokenised references in its folder raw/."""
        return os.path.dirname(self.binarized)

    @property
    def subset_command(self) -> list[str]:
        """The command that draws the subset, or an empty list for the whole corpus."""
        command = ["modular-fairseq", "subset", self.whole, "--percent", str(self.percent)]
        return command if self.percent < 100 else []

    def check(self, needed_by: str) -> None:
        """Check that the corpus is complete, and draw the subset if it does not exist yet.

        Args:
            needed_by: the name of the run, for the message.

        Raises:
            UsageError: a dictionary is missing, or the folder of the subset holds something else.
        """
        for side in self._sides().values():
            if not os.path.isfile(path := side.dictionary(self.whole)):
                raise UsageError(
                    f"{needed_by} needs {path}, which does not exist; give the --data "
                    "that holds this corpus, or prepare it as the table's script says, with "
                    f"--out {self.folder}"
                )
        if self.percent < 100:
            subsets.draw(self.whole, self.percent)

    def sums(self) -> dict[str, str]:
        """Return digests that identify the corpus: of its dictionaries and its .idx files of training data.

        The .idx files hold the lengths of the sentences. The keys are "dictionary LANGUAGE" and
        "train LANGUAGE", with "text" for LANGUAGE if the task has no languages. The first inputs of a
        classification have the key "text", like the text of a pre-training, because both have the same
        dictionary. "train more" is for its second inputs, and for labels that are values. "content" is for
        all training and validation data.
        """
        sums = self.dictionary_sums()
        for name, side in self._sides().items():
            sums[f"train {name}"] = self._digests(side.lengths)
        if self.folders:
            sums["train more"] = self._digests("input1/train*.idx", "label/train.label")
        names = [f"{part}*.{ending}" for part in ("train", "valid") for ending in ("bin", "idx", "label")]
        folders = FOLDERS if self.folders else ()
        content = self._digests(*names, *(f"{folder}/{name}" for folder in folders for name in names))
        return sums | {CONTENT: hashlib.sha256(content.encode()).hexdigest()[:16]}

    def dictionary_sums(self) -> dict[str, str]:
        """Return the digests of the dictionaries alone, with the keys that `sums` gives them."""
        sides = self._sides().items()
        return {f"dictionary {name}": digest(side.dictionary(self.binarized))[:16] for name, side in sides}

    def _digests(self, *patterns: str) -> str:
        """Return the digests of the files in `binarized` that match any of the patterns."""
        folder = glob.escape(self.binarized)
        files = [path for each in patterns for path in glob.glob(os.path.join(folder, each))]
        return " ".join(digest(path)[:16] for path in sorted(files))

    def contents(self) -> dict[str, str]:
        """Return the digests of all files of the prepared corpus: the whole of it, also for a subset.

        The keys are the names of the files in bin/ and raw/, such as "raw/test.en".
        """
        folders = [os.path.join(self.whole, folder) for folder in ("", *FOLDERS)]
        files = [
            os.path.join(folder, name)
            for folder in [*folders, os.path.join(self.folder, "raw")]
            if os.path.isdir(folder)
            for name in sorted(os.listdir(folder))
        ]
        return {
            os.path.relpath(path, self.folder): digest(path)[:16]
            for path in files
            if os.path.isfile(path) and not path.endswith(".log")
        }

    def contents_of(self, subset: str) -> dict[str, str]:
        """Return the digests of all files that an evaluation on a part of the data depends on.

        These are the dictionaries, and the files of the part in the folders of binarized data, of untokenised
        references (raw/) and of text (text/). The keys are names such as "raw/test.en". Files that do not
        exist are left out.
        """
        places = {name: os.path.join(self.binarized, name) for name in ("", *FOLDERS)}
        places |= {name: os.path.join(self.folder, name) for name in ("raw", "text")}
        return {
            os.path.join(name, file): digest(os.path.join(place, file))[:16]
            for name, place in places.items()
            if os.path.isdir(place)
            for file in sorted(os.listdir(place))
            if file.startswith(f"{subset}.") or re.fullmatch(r"dict\.(.+\.)?txt", file)
        }

    def _sides(self) -> dict[str, "Side"]:
        """Return the parts of the data that have a dictionary each, by the names that `sums` gives them."""
        if self.folders:
            names = {folder: "text" if folder == "input0" else folder for folder in self.folders}
            return {name: Side(folder, "") for folder, name in names.items()}
        return {language: Side("", f".{language}") for language in self.languages} or {"text": Side("", "")}


class Side(NamedTuple):
    """The files of a part of the data: the folder in which they are, and what the language adds to names."""

    folder: str
    suffix: str

    def dictionary(self, binarized: str) -> str:
        """Return the path of the dictionary."""
        return os.path.join(binarized, self.folder, f"dict{self.suffix}.txt")

    @property
    def lengths(self) -> str:
        """The pattern of the .idx files of the training data."""
        return os.path.join(self.folder, f"train.*{self.suffix}.idx" if self.suffix else "train*.idx")
