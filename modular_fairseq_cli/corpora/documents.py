"""The documents of a text in one language: where each begins, and how many lines it has.

The stage text/ writes SPLIT.documents beside SPLIT.txt, with the number of lines of each document, one in a
line. The later stages keep the lines of the text, so these numbers are valid for the binarized data, too.
Significance tests resample documents (see `evaluations.language_model`).
"""

import re
from collections.abc import Iterable, Iterator

from modular_fairseq_cli.corpora.lines import is_visible

TITLE = re.compile(r" ?= [^=].* = ?")  # a title of the first level in WikiText; the others have more signs

# By the rule "blank-lines" a document begins after one or more blank lines, and by "titles" with a title
# after a blank line, such as "= Title =" in WikiText. Blank lines before a document belong to the one before.
RULES = ("blank-lines", "titles")


class Documents:
    """Counts the lines of documents.

    Attributes:
        lengths: the number of lines of each document so far.
    """

    def __init__(self, rule: str):
        """Start a text whose documents begin according to a rule, which is one of `RULES`."""
        self.rule = rule
        self.lengths: list[int] = []
        self._after_blank = True
        self._has_text = False  # whether the present document has a visible line

    def count(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the lines, and count them."""
        for line in lines:
            visible = is_visible(line)
            begins = visible and self._after_blank and (self.rule != "titles" or TITLE.fullmatch(line))
            if not self.lengths or (begins and self._has_text):
                self.lengths.append(0)
                self._has_text = False
            self.lengths[-1] += 1
            self._has_text = self._has_text or visible
            self._after_blank = not visible
            yield line

    def text(self) -> str:
        """Return the content of the file SPLIT.documents."""
        return "".join(f"{length}\n" for length in self.lengths)
