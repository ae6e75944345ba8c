"""Says a meaning in German words, laid out in the topological fields of the clause: prefield, left bracket,
midfield, right bracket.
"""

from collections.abc import Callable

from modular_fairseq_cli.toy_corpus.lexicon import ENDINGS, FINITE_AUXILIARIES, Pronoun, Verb, join
from modular_fairseq_cli.toy_corpus.meaning import Clause, NounPhrase, Phrase, has_determiner

# ---- Phrases
# -----------------------------------------------------------------------------------------------


def say(phrase: Phrase, case: str) -> str:
    if isinstance(phrase, Pronoun):
        return getattr(phrase, case)
    determiner, adjective = inflected(phrase, case)
    return join(determiner, adjective, noun(phrase, case), relative_clause(phrase))


def inflected(phrase: NounPhrase, case: str) -> tuple[str, str]:
    """Return determiner and adjective; the determiner chooses the declension of the adjective."""
    if phrase.determiner == "ein" and phrase.plural:
        determiner, declension = "", "strong plural adjective"
    elif phrase.determiner in ENDINGS and phrase.determiner != "ein":
        determiner, declension = phrase.determiner + ending(phrase.determiner, phrase, case), "weak adjective"
    else:
        determiner, declension = phrase.determiner + ending("ein", phrase, case), "mixed adjective"
    return determiner, phrase.adjective and phrase.adjective + ending(declension, phrase, case)


def ending(declension: str, phrase: NounPhrase, case: str) -> str:
    column = "p" if phrase.plural else phrase.noun.gender
    return ENDINGS[declension][case].split()["mfnp".index(column)].strip("-")


def noun(phrase: NounPhrase, case: str) -> str:
    plural = phrase.noun.plural
    if phrase.plural:
        return plural + "n" if case == "dative" and plural[-1] not in "ns" else plural
    return plural if phrase.noun.weak and case != "nominative" else phrase.noun.singular


def relative_pronoun(head: NounPhrase, case: str) -> str:
    return "denen" if head.plural and case == "dative" else "d" + ending("d", head, case)


def relative_clause(head: NounPhrase) -> str:
    if head.relative is None:
        return ""
    case, clause = head.relative.case, head.relative.clause
    return f", {relative_pronoun(head, case)} {subordinate_clause(clause, without=case)} ,"


def roles_are_marked(
    subject: Phrase, moved: Phrase, case: str, say_moved: Callable[[Phrase, str], str] = say
) -> bool:
    """Return whether case or agreement shows that the phrase of this case in front of the subject is not the
    subject.
    """
    moved_is_marked = say_moved(moved, case) != say_moved(moved, "nominative")
    return (
        moved_is_marked or say(subject, "nominative") != say(subject, case) or subject.plural != moved.plural
    )


# ---- Verbs
# -----------------------------------------------------------------------------------------------


def finite(verb: Verb | str, subject: Phrase) -> str:
    """Return the present tense of a verb, or of an auxiliary given by its infinitive."""
    if isinstance(verb, str):
        forms = FINITE_AUXILIARIES[verb].split()
    else:
        stem = verb.third_person.removesuffix("t")
        forms = [
            verb.infinitive.removesuffix("n"),
            stem + ("t" if stem[-1] in "sßz" else "st"),
            verb.third_person,
            verb.infinitive,
        ]
    return forms[3 if subject.plural else subject.person - 1]


def verb_complex(clause: Clause) -> tuple[str, str]:
    """Return the finite verb, and the participle or infinitive that it governs, or ""."""
    verb, subject = clause.verb, clause.arguments["nominative"]
    if clause.mode == "perfect":
        return finite(verb.auxiliary, subject), verb.particle + verb.participle
    if clause.mode in FINITE_AUXILIARIES:
        return finite(clause.mode, subject), verb.particle + verb.infinitive
    return finite(verb, subject), ""


# ---- Clauses
# -----------------------------------------------------------------------------------------------


def constituents(clause: Clause) -> dict[str, str]:
    """Return what can move to the prefield: the arguments, by case, and the adverbials."""
    return {case: say(phrase, case) for case, phrase in clause.arguments.items()} | {
        "time": clause.time,
        "place": clause.place,
    }


def midfield(clause: Clause, without: str = "") -> str:
    """Return subject, pronoun, time, objects, place; `without` names a constituent that stands elsewhere or
    is missing.
    """
    words = constituents(clause) | {without: ""}
    pronouns = [
        words.pop(case)
        for case in ("accusative", "dative")
        if isinstance(clause.arguments.get(case), Pronoun)
    ]
    adverbs = join(
        "nicht" if clause.negated and not clause.is_negated_by_determiner else "",
        "gern" if clause.mode == "gern" else "",
    )
    accusative = [adverbs, words.get("accusative", "")]
    # Only an indefinite object follows the adverbs.
    if not has_determiner(clause.arguments.get("accusative"), "ein"):
        accusative.reverse()
    return join(
        words["nominative"], *pronouns, words["time"], words.get("dative", ""), *accusative, words["place"]
    )


def main_clause(clause: Clause, prefield: str = "") -> str:
    """Return a main clause. With an empty prefield it is a polar question, or the rest of a sentence whose
    prefield is a subordinate clause.
    """
    finite_verb, governed = verb_complex(clause)
    front = constituents(clause).get(prefield, "")
    return join(front, finite_verb, midfield(clause, without=prefield), governed or clause.verb.particle)


def subordinate_clause(clause: Clause, without: str = "") -> str:
    """Return what follows the conjunction, or the relative pronoun that stands for the argument `without`."""
    finite_verb, governed = verb_complex(clause)
    return join(
        midfield(clause, without),
        f"{governed} {finite_verb}" if governed else clause.verb.particle + finite_verb,
    )


def infinitive_clause(clause: Clause) -> str:
    particle, infinitive = clause.verb.particle, clause.verb.infinitive
    return join(
        midfield(clause, without="nominative"),
        f"{particle}zu{infinitive}" if particle else f"zu {infinitive}",
    )
