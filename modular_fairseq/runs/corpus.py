"""The data of a run, which fairseq-preprocess has written, or of which a subset is drawn."""

import glob
import os
from typing import NamedTuple

from modular_fairseq.runs import subsets
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import digest


class Corpus(NamedTuple):
    """A folder of binarized data that fairseq-train reads.

    Args:
        binarized: path of the folder, such as data/iwslt14.de-en/bin.
        languages: source and target language; empty for a task on a single text, such as language modelling.
        percent: the share of the training data. Below 100, `binarized` is a subset of the folder `whole`.
    """

    binarized: str
    languages: tuple[str, ...] = ()
    percent: int = 100

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
        for name in self._sides():
            if not os.path.isfile(os.path.join(self.whole, f"dict{name}.txt")):
                raise UsageError(
                    f"{needed_by} needs {self.whole}/dict{name}.txt, which does not exist; give the --data "
                    "that holds this corpus, or prepare it as the table's script says, with "
                    f"--out {self.folder}"
                )
        if self.percent < 100:
            subsets.draw(self.whole, self.percent)

    def sums(self) -> dict[str, str]:
        """Return digests that identify the corpus: of its dictionaries and its .idx files of training data.

        The .idx files hold the lengths of the sentences. The keys are "dictionary LANGUAGE" and
        "train LANGUAGE", with "text" for LANGUAGE if the task has no languages.
        """
        sums = {}
        for name, language in self._sides().items():
            pattern = f"train.*{name}.idx" if name else "train*.idx"
            lengths = glob.glob(os.path.join(glob.escape(self.binarized), pattern))
            sums[f"dictionary {language}"] = digest(f"{self.binarized}/dict{name}.txt")[:16]
            sums[f"train {language}"] = " ".join(digest(path)[:16] for path in sorted(lengths))
        return sums

    def contents(self) -> dict[str, str]:
        """Return the digests of all files of the prepared corpus: the whole of it, also for a subset.

        The keys are the names of the files in bin/ and raw/, such as "raw/test.en".
        """
        files = [
            os.path.join(folder, name)
            for folder in (self.whole, os.path.join(self.folder, "raw"))
            if os.path.isdir(folder)
            for name in sorted(os.listdir(folder))
        ]
        return {
            os.path.relpath(path, self.folder): digest(path)[:16]
            for path in files
            if os.path.isfile(path) and not path.endswith(".log")
        }

    def _sides(self) -> dict[str, str]:
        """Return the languages, keyed by the suffix that they add to file names."""
        return {f".{language}": language for language in self.languages} or {"": "text"}
