"""Moses tokens by sacremoses, many times faster than sentence by sentence and with exactly its result.

What a sentence's words become in sacremoses depends on their neighbours only where a full stop, an apostrophe
or a comma stands beside the space: on whether the next word begins in lower case ("No. 5", "etc. and"), on
what an apostrophe touches, on the digits round a comma. Every other space is a border that none of its rules
looks across, so a sentence is cut there, each piece (nearly always one word) is tokenized by sacremoses by
itself, and the result is kept for the next time the piece occurs. A comma that ends a word is cut off in
every rule, whatever follows, so it is no obstacle after an ordinary character.
"""

import re

import regex
from sacremoses import MosesPunctNormalizer, MosesTokenizer

# Pieces remembered by a process, about 60 MB; then it begins anew, so that memory stays bounded.
MAX_PIECES = 300_000

BORDER = re.compile(r" (?:(?<=[^ .',] )|(?<=[^ .',], ))(?=[^ .',])")
# Each rule of the punctuation normalizer needs one of these to change anything.
NORMALIZABLE = re.compile(r"[\r`„“”–—´‘‚’…«»\u00a0()]|  |''| [%:;]|\"[.,]|[.,]\"")


class QuickMosesTokenizer(MosesTokenizer):
    """sacremoses' tokenizer, which makes two sets of characters anew for each word that ends in a full stop
    (milliseconds); here they are made once.
    """

    def __init__(self, lang: str):
        super().__init__(lang)
        self.lower = frozenset(self.IsLower)
        self.alpha = frozenset(self.IsAlpha)

    def islower(self, text: str) -> bool:
        return self.lower.issuperset(text)

    def isanyalpha(self, text: str) -> bool:
        return not self.alpha.isdisjoint(text)


class Tokenizer:
    """A function from a raw line to its tokens, separated by single spaces.

    normalize: first Moses' normalization of punctuation, then a space for each non-printing character
        (Unicode category C).
    aggressive_hyphens: "well-kept" becomes "well @-@ kept".
    lowercase: after tokenizing, so that abbreviations are told by their case.
    """

    def __init__(
        self, lang: str, normalize: bool = False, aggressive_hyphens: bool = False, lowercase: bool = False
    ):
        self.moses = QuickMosesTokenizer(lang)
        self.normalizer = MosesPunctNormalizer(lang) if normalize else None
        self.aggressive_hyphens = aggressive_hyphens
        self.lowercase = lowercase
        self.pieces: dict[str, str] = {}

    def __call__(self, line: str) -> str:
        if self.normalizer:
            if NORMALIZABLE.search(line):
                line = self.normalizer.normalize(line)
            if not line.isprintable():
                line = regex.sub(r"\p{C}", " ", line)
        for pattern, substitute in (self.moses.DEDUPLICATE_SPACE, self.moses.ASCII_JUNK):
            line = pattern.sub(substitute, line)
        known = self.pieces
        tokens = []
        for piece in BORDER.split(line.strip()):
            tokenized = known.get(piece)
            if tokenized is None:
                tokenized = self.tokenize_piece(piece)
            tokens.append(tokenized)
        return " ".join(tokens)

    def tokenize_piece(self, piece: str) -> str:
        tokenized = self.moses.tokenize(
            piece, aggressive_dash_splits=self.aggressive_hyphens, return_str=True
        )
        if self.lowercase:
            tokenized = tokenized.lower()
        if len(self.pieces) >= MAX_PIECES:
            self.pieces.clear()
        self.pieces[piece] = tokenized
        return tokenized
