"""The data of a run: what fairseq-preprocess wrote, or a subset of its training data."""

import glob
import os
from typing import NamedTuple

from modular_fairseq.runs import subsets
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import digest


class Corpus(NamedTuple):
    """A folder for fairseq-train.

    Args:
        binarized: the folder, for instance data/iwslt14.de-en/bin.
        languages: source and target of a translation; empty for a task on one text (language models).
        percent: of the training data that are used; below 100, `binarized` is a subset of `whole`.
    """

    binarized: str
    languages: tuple[str, ...] = ()
    percent: int = 100

    @property
    def whole(self) -> str:
        """The folder with all of the training data."""
        return self.binarized.removesuffix(subsets.ending(self.percent))

    @property
    def folder(self) -> str:
        """The prepared corpus, which has the untokenised references in raw/."""
        return os.path.dirname(self.binarized)

    @property
    def subset_command(self) -> list[str]:
        """The command that draws the subset, for people who want to repeat it; empty for the whole corpus."""
        command = ["modular-fairseq", "subset", self.whole, "--percent", str(self.percent)]
        return command if self.percent < 100 else []

    def check(self, needed_by: str) -> None:
        """Draw the subset if it is not there yet.

        Raises:
            UsageError: a dictionary is missing, or the folder of the subset holds something else.
        """
        for name in self._sides():
            if not os.path.isfile(os.path.join(self.whole, f"dict{name}.txt")):
                raise UsageError(
                    f"--data has no {self.whole}/dict{name}.txt, which {needed_by} needs; give the --data "
                    f"that has it, or prepare it as the table's script says, with --out {self.folder}"
                )
        if self.percent < 100:
            subsets.draw(self.whole, self.percent)

    def sums(self) -> dict[str, str]:
        """Return digests that tell the corpus from others: of its dictionaries, and of the lengths of its
        training sentences.
        """
        sums = {}
        for name, language in self._sides().items():
            pattern = f"train.*{name}.idx" if name else "train*.idx"
            lengths = glob.glob(os.path.join(glob.escape(self.binarized), pattern))
            sums[f"dictionary {language}"] = digest(f"{self.binarized}/dict{name}.txt")[:16]
            sums[f"train {language}"] = " ".join(digest(path)[:16] for path in sorted(lengths))
        return sums

    def _sides(self) -> dict[str, str]:
        """The languages, by what they add to the names of files."""
        return {f".{language}": language for language in self.languages} or {"": "text"}
