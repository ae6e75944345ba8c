"""Draw sentences at random: a kind of sentence, its meaning, and what both languages make of it."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

from modular_fairseq_cli.toy_corpus import english, german
from modular_fairseq_cli.toy_corpus.lexicon import (
    ADJECTIVES,
    CONJUNCTIONS,
    NOUNS_OF_KIND,
    PLACES,
    PRONOUNS,
    QUESTION_ADVERBS,
    VERBS_OF_FRAME,
    WHO,
    Verb,
)
from modular_fairseq_cli.toy_corpus.meaning import Clause, NounPhrase, Phrase, RelativeClause, has_determiner

Item = TypeVar("Item")
Pair = tuple[str, str]  # a German sentence and its translation

# In these lists, an item that is repeated is drawn more often.
TOKENS = range(4, 17)  # the lengths that a sentence may have in either language
FRAMES = ["", "dative", "experiencer", "dative accusative", *4 * ["accusative"]]
DETERMINERS = ["dies", "mein", "dein", "sein", "unser", *3 * ["ein"], *6 * ["d"]]
MODES = ["gern", "können", "müssen", "wollen", "sollen", "dürfen", *5 * ["perfect"], *8 * ["present"]]
TIMES_OF_MODE = {
    "present": ["heute", "jeden tag", "jetzt", "morgen"],
    "perfect": ["gestern"],
    "gern": ["jeden tag"],
}
TIMES_OF_MODALS = ["heute", "jetzt", "morgen"]
VERBS_WITH_PERSON = [
    verb for frame in ("accusative", "dative") for verb in VERBS_OF_FRAME[frame] if "person" in verb.senses
]


class Sampler:
    """A source of random sentences, which are the same for the same seed in every version of Python.

    Every choice is made by `random()`, as Python promises only for this method of its generator that it
    returns the same numbers in every version.
    """

    def __init__(self, seed: int):
        """Start with the seed of the random numbers."""
        self.random = random.Random(seed).random

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.random() < probability

    def pick(self, items: Sequence[Item]) -> Item:
        """Return one of the items, each with the same probability."""
        return items[int(self.random() * len(items))]

    # ---- Meanings
    # -----------------------------------------------------------------------------------------------

    def noun_phrase(self, kind: str) -> NounPhrase:
        """Draw a noun phrase with a noun of a kind."""
        adjective = self.pick(list(ADJECTIVES)) if self.chance(0.3) else ""
        return NounPhrase(self.pick(NOUNS_OF_KIND[kind]), self.chance(0.3), self.pick(DETERMINERS), adjective)

    def phrase(self, kind: str, case: str = "nominative", others: Sequence[Phrase] = ()) -> Phrase:
        """Draw a noun phrase or pronoun of a kind.

        It never is an accusative "sie", as nothing in the clause would tell "her" from "them".

        Args:
            kind: a key of lexicon.NOUNS; only persons have pronouns.
            case: its case in the clause.
            others: the other phrases of the clause, from which it differs in noun and person.
        """
        if kind == "person" and self.chance(0.4):
            taken = [other.person for other in others if other.person < 3]
            return self.pick(
                [
                    p
                    for p in PRONOUNS
                    if p.person not in taken and (case, p.accusative) != ("accusative", "sie")
                ]
            )
        phrase = self.noun_phrase(kind)
        while any(phrase.noun == other.noun for other in others if isinstance(other, NounPhrase)):
            phrase = self.noun_phrase(kind)
        return phrase

    def arguments(self, verb: Verb, given: Mapping[str, Phrase]) -> dict[str, Phrase]:
        """Draw the subject and the objects of a verb, by case, except for those that are given."""
        selected = self.pick(list(verb.senses))
        kinds = {
            "experiencer": {"nominative": selected, "dative": "person"},
            "accusative": {"nominative": "person", "accusative": selected},
            "dative": {"nominative": "person", "dative": selected},
            "dative accusative": {"nominative": "person", "dative": "person", "accusative": selected},
        }.get(verb.frame, {"nominative": "person"})
        arguments = dict(given)
        for case, kind in kinds.items():
            if case not in given:
                arguments[case] = self.phrase(kind, case, list(arguments.values()))
        return arguments

    def verb(self, personal: bool) -> Verb:
        """Draw a verb that takes no clause; if `personal`, one whose subject is a person."""
        frames = [frame for frame in FRAMES if frame != "experiencer"] if personal else FRAMES
        return self.pick(VERBS_OF_FRAME[self.pick(frames)])

    def clause(
        self,
        verb: Verb | None = None,
        adverbials: bool = True,
        given: Mapping[str, Phrase] = MappingProxyType({}),
    ) -> Clause:
        """Draw a finite clause.

        Args:
            verb: its verb; None draws one.
            adverbials: whether it may have a time and a place.
            given: the arguments that are not drawn, by case; they are persons.
        """
        clause = self.tenseless_clause(verb or self.verb(personal="nominative" in given), given)
        negated = self.chance(0.15)
        if clause.verb.frame == "experiencer":
            return replace(clause, mode=self.pick(["present", "perfect"]), negated=negated)

        mode, time, place = self.pick(MODES), "", ""
        if adverbials and self.chance(0.4):
            time = self.pick(TIMES_OF_MODE.get(mode, TIMES_OF_MODALS))
        if adverbials and clause.verb.frame in ("", "accusative") and self.chance(0.2):
            place = self.pick(list(PLACES))
        arguments = clause.arguments
        accusative = arguments.get("accusative")
        if negated and mode != "gern" and "accusative" not in given and has_determiner(accusative, "ein"):
            arguments = arguments | {"accusative": replace(accusative, determiner="kein")}
        return Clause(clause.verb, arguments, mode, time, place, negated)

    def tenseless_clause(
        self, verb: Verb | None = None, given: Mapping[str, Phrase] = MappingProxyType({})
    ) -> Clause:
        """Draw a clause without tense, negation and adverbials. `clause` explains `verb` and `given`."""
        verb = verb or self.verb(personal=True)
        return Clause(verb, self.arguments(verb, given))

    def relative_clause(self, head: NounPhrase) -> RelativeClause:
        """Draw a relative clause that describes a person.

        The person is its object only if the words show that it is not its subject.
        """
        verb = self.pick(VERBS_WITH_PERSON)
        clause = self.clause(verb, given={verb.frame: head})
        if self.chance(0.5) and german.relative_roles_are_marked(
            clause.arguments["nominative"], head, verb.frame
        ):
            return RelativeClause(verb.frame, clause)
        return RelativeClause("nominative", self.clause(given={"nominative": head}))

    def prefield(self, clause: Clause) -> str:
        """Draw what comes first in a German main clause: "time", "place" or the case of an argument.

        An object comes first only if the words show that it is not the subject.
        """
        subject = clause.arguments["nominative"]
        movable = [name for name in ("time", "place") if getattr(clause, name)]
        for case, phrase in clause.arguments.items():
            if case != "nominative" and german.roles_are_marked(subject, phrase, case):
                movable.append(case)
        return self.pick(movable) if movable and self.chance(0.5) else "nominative"

    # ---- Sentences
    # -----------------------------------------------------------------------------------------------

    # Each method draws a sentence of the kind that its name says.

    def statement(self) -> Pair:
        clause = self.clause()
        prefield = self.prefield(clause)
        return f"{german.main_clause(clause, prefield)} .", f"{english.statement(clause, prefield)} ."

    def statement_with_relative_clause(self) -> Pair:
        head = self.noun_phrase("person")
        clause = self.clause(given={"nominative": replace(head, relative=self.relative_clause(head))})
        return f"{german.main_clause(clause, 'nominative')} .", f"{english.statement(clause)} ."

    def polar_question(self) -> Pair:
        clause = self.clause()
        return f"{german.main_clause(clause)} ?", f"{english.question(clause)} ?"

    def subject_question(self) -> Pair:
        clause = self.clause(given={"nominative": WHO})
        return f"{german.main_clause(clause, 'nominative')} ?", f"{english.statement(clause)} ?"

    def object_question(self) -> Pair:
        verb = self.pick(VERBS_WITH_PERSON)
        clause = self.clause(verb, given={verb.frame: WHO})
        return (
            f"{german.main_clause(clause, verb.frame)} ?",
            f"whom {english.question(clause, without=verb.frame)} ?",
        )

    def adverb_question(self) -> Pair:
        adverb, clause = self.pick(list(QUESTION_ADVERBS)), self.clause(adverbials=False)
        return (
            f"{adverb} {german.main_clause(clause)} ?",
            f"{QUESTION_ADVERBS[adverb]} {english.question(clause)} ?",
        )

    def subordinate_clause_first(self) -> Pair:
        conjunction, subordinate, main = self.pick(list(CONJUNCTIONS)), self.clause(), self.clause()
        return (
            f"{conjunction} {german.subordinate_clause(subordinate)} , {german.main_clause(main)} .",
            f"{CONJUNCTIONS[conjunction]} {english.statement(subordinate)} , {english.statement(main)} .",
        )

    def subordinate_clause_last(self) -> Pair:
        conjunction, subordinate, main = self.pick(list(CONJUNCTIONS)), self.clause(), self.clause()
        return (
            f"{german.main_clause(main, 'nominative')} , {conjunction} "
            f"{german.subordinate_clause(subordinate)} .",
            f"{english.statement(main)} {CONJUNCTIONS[conjunction]} {english.statement(subordinate)} .",
        )

    def object_clause(self) -> Pair:
        main, subordinate = self.clause(self.pick(VERBS_OF_FRAME["dass"]), adverbials=False), self.clause()
        return (
            f"{german.main_clause(main, 'nominative')} , dass {german.subordinate_clause(subordinate)} .",
            f"{english.statement(main)} that {english.statement(subordinate)} .",
        )

    def infinitive_clause(self) -> Pair:
        main = self.clause(self.pick(VERBS_OF_FRAME["zu"]), adverbials=False)
        infinitive = self.tenseless_clause(given={"nominative": main.arguments["nominative"]})
        return (
            f"{german.main_clause(main, 'nominative')} , {german.infinitive_clause(infinitive)} .",
            f"{english.statement(main)} {english.infinitive_clause(infinitive)} .",
        )

    def purpose_clause(self) -> Pair:
        given = {"nominative": self.phrase("person")}
        main, purpose = self.clause(given=given), self.tenseless_clause(given=given)
        return (
            f"{german.main_clause(main, 'nominative')} , um {german.infinitive_clause(purpose)} .",
            f"{english.statement(main)} in order {english.infinitive_clause(purpose)} .",
        )

    def sentence(self) -> Pair:
        """Draw a sentence of any kind that has a permitted length in both languages."""
        while True:
            pair = self.pick(SENTENCES)(self)
            if all(len(text.split()) in TOKENS for text in pair):
                return pair


SENTENCES: list[Callable[[Sampler], Pair]] = [
    *6 * [Sampler.statement],
    *2 * [Sampler.statement_with_relative_clause],
    Sampler.polar_question,
    Sampler.subject_question,
    Sampler.object_question,
    Sampler.adverb_question,
    Sampler.subordinate_clause_first,
    Sampler.subordinate_clause_last,
    Sampler.object_clause,
    Sampler.infinitive_clause,
    Sampler.purpose_clause,
]
