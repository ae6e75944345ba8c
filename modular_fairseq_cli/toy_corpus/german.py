"""Say a meaning in German.

The words of a clause are laid out in its topological fields: prefield, left bracket, midfield, right bracket.
"""

from modular_fairseq_cli.toy_corpus.lexicon import ENDINGS, FINITE_AUXILIARIES, Pronoun, Verb, join
from modular_fairseq_cli.toy_corpus.meaning import Clause, NounPhrase, Phrase, has_determiner

# ---- Phrases
# -----------------------------------------------------------------------------------------------


def say(phrase: Phrase, case: str) -> str:
    """Return the words of a noun phrase or pronoun in a case."""
    if isinstance(phrase, Pronoun):
        return getattr(phrase, case)
    determiner, adjective = inflected(phrase, case)
    return join(determiner, adjective, noun(phrase, case), relative_clause(phrase))


def inflected(phrase: NounPhrase, case: str) -> tuple[str, str]:
    """Return the determiner and the adjective of a noun phrase in a case, each "" if there is none.

    The determiner decides the declension of the adjective.
    """
    if phrase.determiner == "ein" and phrase.plural:
        determiner, declension = "", "strong plural adjective"
    elif phrase.determiner in ENDINGS and phrase.determiner != "ein":
        determiner, declension = phrase.determiner + ending(phrase.determiner, phrase, case), "weak adjective"
    else:
        determiner, declension = phrase.determiner + ending("ein", phrase, case), "mixed adjective"
    return determiner, phrase.adjective and phrase.adjective + ending(declension, phrase, case)


def ending(declension: str, phrase: NounPhrase, case: str) -> str:
    """Return the ending, by a row of `ENDINGS`, that agrees with a noun phrase in a case."""
    column = "p" if phrase.plural else phrase.noun.gender
    return ENDINGS[declension][case].split()["mfnp".index(column)].strip("-")


def noun(phrase: NounPhrase, case: str) -> str:
    """Return the noun of a phrase in its number and in a case."""
    plural = phrase.noun.plural
    if phrase.plural:
        return plural + "n" if case == "dative" and plural[-1] not in "ns" else plural
    return plural if phrase.noun.weak and case != "nominative" else phrase.noun.singular


def relative_pronoun(head: NounPhrase, case: str) -> str:
    """Return the relative pronoun that agrees with a noun phrase and has this case in the relative clause."""
    return "denen" if head.plural and case == "dative" else "d" + ending("d", head, case)


def relative_clause(head: NounPhrase) -> str:
    """Return the relative clause of a noun phrase between its commas, or "" if it has none."""
    if head.relative is None:
        return ""
    case, clause = head.relative.case, head.relative.clause
    return f", {relative_pronoun(head, case)} {subordinate_clause(clause, without=case)} ,"


def roles_are_marked(subject: Phrase, moved: Phrase, case: str) -> bool:
    """Return whether the words show which of two phrases is the subject, if `moved` stands before it.

    Args:
        subject: the subject.
        moved: the object.
        case: the case of the object.
    """
    return say(moved, case) != say(moved, "nominative") or _subject_is_marked(subject, moved, case)


def relative_roles_are_marked(subject: Phrase, head: NounPhrase, case: str) -> bool:
    """Return whether a relative clause shows that its pronoun is the object, and not the subject.

    Args:
        subject: the subject of the relative clause.
        head: the noun phrase to which the clause belongs.
        case: the case of the relative pronoun as an object.
    """
    pronoun_is_marked = relative_pronoun(head, case) != relative_pronoun(head, "nominative")
    return pronoun_is_marked or _subject_is_marked(subject, head, case)


def _subject_is_marked(subject: Phrase, other: Phrase, case: str) -> bool:
    """Return whether the subject differs from its own form in this case, or the verb agrees with it alone."""
    return say(subject, "nominative") != say(subject, case) or subject.plural != other.plural


# ---- Verbs
# -----------------------------------------------------------------------------------------------


def finite(verb: Verb | str, subject: Phrase) -> str:
    """Return the form of the present tense that agrees with a subject.

    `verb` is a verb, or the infinitive of an auxiliary. The particle of a separable verb is left out.
    """
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
    """Return the finite verb of a clause, and the participle or infinitive that it governs (or "")."""
    verb, subject = clause.verb, clause.arguments["nominative"]
    if clause.mode == "perfect":
        return finite(verb.auxiliary, subject), verb.particle + verb.participle
    if clause.mode in FINITE_AUXILIARIES:
        return finite(clause.mode, subject), verb.particle + verb.infinitive
    return finite(verb, subject), ""


# ---- Clauses
# -----------------------------------------------------------------------------------------------


def constituents(clause: Clause) -> dict[str, str]:
    """Return the words of everything that can stand in the prefield.

    The keys are the cases of the arguments, "time" and "place".
    """
    return {case: say(phrase, case) for case, phrase in clause.arguments.items()} | {
        "time": clause.time,
        "place": clause.place,
    }


def midfield(clause: Clause, without: str = "") -> str:
    """Return the midfield of a clause: subject, pronouns, time, objects, place.

    `without` is the key (see `constituents`) of one that stands elsewhere or is missing, or "".
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
    # Only an indefinite object follows the adverbs; other objects precede them.
    if not has_determiner(clause.arguments.get("accusative"), "ein"):
        accusative.reverse()
    return join(
        words["nominative"], *pronouns, words["time"], words.get("dative", ""), *accusative, words["place"]
    )


def main_clause(clause: Clause, prefield: str = "") -> str:
    """Return a main clause with the verb in second place.

    `prefield` is the key (see `constituents`) of what comes first. With "" the verb comes first: then the
    clause is a polar question, or follows a subordinate clause or question word that fills the prefield.
    """
    finite_verb, governed = verb_complex(clause)
    front = constituents(clause).get(prefield, "")
    return join(front, finite_verb, midfield(clause, without=prefield), governed or clause.verb.particle)


def subordinate_clause(clause: Clause, without: str = "") -> str:
    """Return a clause with the verb last, without its conjunction.

    `without` is the case of the argument that a relative pronoun replaces, or "".
    """
    finite_verb, governed = verb_complex(clause)
    return join(
        midfield(clause, without),
        f"{governed} {finite_verb}" if governed else clause.verb.particle + finite_verb,
    )


def infinitive_clause(clause: Clause) -> str:
    """Return a clause as an infinitive with "zu", without its subject."""
    particle, infinitive = clause.verb.particle, clause.verb.infinitive
    return join(
        midfield(clause, without="nominative"),
        f"{particle}zu{infinitive}" if particle else f"zu {infinitive}",
    )
