"""Draws random meanings, and the kinds of sentence that say them."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
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
Pair = tuple[str, str]  # a German sentence, and its translation

TOKENS = range(4, 17)  # the length of a sentence in either language
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
    """Draws with `random()` alone: of all the generator's methods, Python promises for this one that its
    numbers stay the same.
    """

    def __init__(self, seed: int):
        self.random = random.Random(seed).random

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def pick(self, items: Sequence[Item]) -> Item:
        return items[int(self.random() * len(items))]

    # ---- Meanings
    # -----------------------------------------------------------------------------------------------

    def noun_phrase(self, kind: str) -> NounPhrase:
        adjective = self.pick(list(ADJECTIVES)) if self.chance(0.3) else ""
        return NounPhrase(self.pick(NOUNS_OF_KIND[kind]), self.chance(0.3), self.pick(DETERMINERS), adjective)

    def phrase(self, kind: str, case: str = "nominative", others: Sequence[Phrase] = ()) -> Phrase:
        """Draw a phrase that differs from the others of its clause; never an accusative "sie", since nothing
        would tell her from them.
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

    def arguments(self, verb: Verb, given: dict[str, Phrase]) -> dict[str, Phrase]:
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
        frames = [frame for frame in FRAMES if frame != "experiencer"] if personal else FRAMES
        return self.pick(VERBS_OF_FRAME[self.pick(frames)])

    def clause(self, verb: Verb | None = None, adverbials: bool = True, **given: Phrase) -> Clause:
        """Draw a finite clause; the given arguments, by case, are persons."""
        clause = self.tenseless_clause(verb or self.verb(personal="nominative" in given), **given)
        negated = self.chance(0.15)
        if clause.verb.frame == "experiencer":
            return replace(clause, mode=self.pick(["present", "perfect"]), negated=negated)

        mode, time, place = self.pick(MODES), "", ""
        if adverbials and self.chance(0.4):
            time = self.pick(TIMES_OF_MODE.get(mode, TIMES_OF_MODALS))
        if adverbials and clause.verb.frame in ("", "accusative") and self.chance(0.2):
            place = self.pick(list(PLACES))
        arguments = clause.arguments
        if (
            negated
            and mode != "gern"
            and "accusative" not in given
            and has_determiner(arguments.get("accusative"), "ein")
        ):
            arguments = arguments | {"accusative": replace(arguments["accusative"], determiner="kein")}
        return Clause(clause.verb, arguments, mode, time, place, negated)

    def tenseless_clause(self, verb: Verb | None = None, **given: Phrase) -> Clause:
        verb = verb or self.verb(personal=True)
        return Clause(verb, self.arguments(verb, given))

    def relative_clause(self, head: NounPhrase) -> RelativeClause:
        """Draw a relative clause. The head is its object only where the words show that it is not its
        subject.
        """
        verb = self.pick(VERBS_WITH_PERSON)
        clause = self.clause(verb, **{verb.frame: head})
        if self.chance(0.5) and german.roles_are_marked(
            clause.arguments["nominative"], head, verb.frame, german.relative_pronoun
        ):
            return RelativeClause(verb.frame, clause)
        return RelativeClause("nominative", self.clause(nominative=head))

    def prefield(self, clause: Clause) -> str:
        subject = clause.arguments["nominative"]
        movable = [name for name in ("time", "place") if getattr(clause, name)]
        for case, phrase in clause.arguments.items():
            if case != "nominative" and german.roles_are_marked(subject, phrase, case):
                movable.append(case)
        return self.pick(movable) if movable and self.chance(0.5) else "nominative"

    # ---- Sentences
    # -----------------------------------------------------------------------------------------------

    def statement(self) -> Pair:
        clause = self.clause()
        prefield = self.prefield(clause)
        return f"{german.main_clause(clause, prefield)} .", f"{english.statement(clause, prefield)} ."

    def statement_with_relative_clause(self) -> Pair:
        head = self.noun_phrase("person")
        clause = self.clause(nominative=replace(head, relative=self.relative_clause(head)))
        return f"{german.main_clause(clause, 'nominative')} .", f"{english.statement(clause)} ."

    def polar_question(self) -> Pair:
        clause = self.clause()
        return f"{german.main_clause(clause)} ?", f"{english.question(clause)} ?"

    def subject_question(self) -> Pair:
        clause = self.clause(nominative=WHO)
        return f"{german.main_clause(clause, 'nominative')} ?", f"{english.statement(clause)} ?"

    def object_question(self) -> Pair:
        verb = self.pick(VERBS_WITH_PERSON)
        clause = self.clause(verb, **{verb.frame: WHO})
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
        infinitive = self.tenseless_clause(nominative=main.arguments["nominative"])
        return (
            f"{german.main_clause(main, 'nominative')} , {german.infinitive_clause(infinitive)} .",
            f"{english.statement(main)} {english.infinitive_clause(infinitive)} .",
        )

    def purpose_clause(self) -> Pair:
        subject = self.phrase("person")
        main, purpose = self.clause(nominative=subject), self.tenseless_clause(nominative=subject)
        return (
            f"{german.main_clause(main, 'nominative')} , um {german.infinitive_clause(purpose)} .",
            f"{english.statement(main)} in order {english.infinitive_clause(purpose)} .",
        )

    def sentence(self) -> Pair:
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
