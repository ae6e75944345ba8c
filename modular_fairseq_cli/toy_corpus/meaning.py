"""The meaning of a sentence, from which each language makes its words."""

from dataclasses import dataclass
from typing import ClassVar, TypeGuard

from modular_fairseq_cli.toy_corpus.lexicon import Noun, Pronoun, Verb


@dataclass(frozen=True)
class NounPhrase:
    """A noun with all that belongs to it."""

    noun: Noun
    plural: bool
    determiner: str  # a key of lexicon.DETERMINERS
    adjective: str = ""  # a key of lexicon.ADJECTIVES, or ""
    relative: "RelativeClause | None" = None
    person: ClassVar[int] = 3

    @property
    def kind(self) -> str:
        """The kind of its noun, a key of lexicon.NOUNS."""
        return self.noun.kind


Phrase = NounPhrase | Pronoun


@dataclass(frozen=True)
class Clause:
    """A verb with its subject, objects and adverbials."""

    verb: Verb
    arguments: dict[str, Phrase]  # the subject and the objects by their German case
    mode: str = "present"  # "present", "perfect", "gern" (the present with this adverb) or a modal verb
    time: str = ""  # a key of lexicon.TIMES, or ""
    place: str = ""  # a key of lexicon.PLACES, or ""
    negated: bool = False

    @property
    def is_negated_by_determiner(self) -> bool:
        """Whether "kein" negates the clause, so that German needs no "nicht"."""
        return has_determiner(self.arguments.get("accusative"), "kein")


@dataclass(frozen=True)
class RelativeClause:
    """A clause that describes a noun phrase."""

    case: str  # the case of the relative pronoun
    clause: Clause  # its argument of this case is the noun phrase that it describes


def has_determiner(phrase: Phrase | None, determiner: str) -> TypeGuard[NounPhrase]:
    """Return whether a phrase is a noun phrase with this determiner."""
    return isinstance(phrase, NounPhrase) and phrase.determiner == determiner
