"""What a sentence says, before either language says it."""

from dataclasses import dataclass

from modular_fairseq_cli.toy_corpus.lexicon import Noun, Pronoun, Verb


@dataclass(frozen=True)
class NounPhrase:
    noun: Noun
    plural: bool
    determiner: str  # a key of DETERMINERS
    adjective: str = ""  # a key of ADJECTIVES
    relative: "RelativeClause | None" = None
    person = 3

    @property
    def kind(self) -> str:
        return self.noun.kind


Phrase = NounPhrase | Pronoun


@dataclass(frozen=True)
class Clause:
    verb: Verb
    arguments: dict[str, Phrase]  # by German case
    mode: str = "present"  # "present", "perfect", "gern" (the present with that adverb) or a modal verb
    time: str = ""  # a key of TIMES
    place: str = ""  # a key of PLACES
    negated: bool = False

    @property
    def is_negated_by_determiner(self) -> bool:
        return has_determiner(self.arguments.get("accusative"), "kein")


@dataclass(frozen=True)
class RelativeClause:
    case: str  # of the relative pronoun
    clause: Clause  # whose argument of that case is the noun phrase it belongs to


def has_determiner(phrase: Phrase | None, determiner: str) -> bool:
    return isinstance(phrase, NounPhrase) and phrase.determiner == determiner
