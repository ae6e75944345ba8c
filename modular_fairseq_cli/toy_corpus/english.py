"""Say a meaning in English."""

import re

from modular_fairseq_cli.toy_corpus.lexicon import (
    ADJECTIVES,
    DETERMINERS,
    ENGLISH_CATENATIVES,
    ENGLISH_MODALS,
    ENGLISH_PAST_FORMS,
    PLACES,
    TIMES,
    Pronoun,
    add_s,
    join,
)
from modular_fairseq_cli.toy_corpus.meaning import Clause, NounPhrase, Phrase

# ---- Phrases
# -----------------------------------------------------------------------------------------------


def say(phrase: Phrase, subject: bool = False) -> str:
    """Return the words of a noun phrase, or of a pronoun as a subject or an object."""
    if isinstance(phrase, Pronoun):
        return phrase.english_subject if subject else phrase.english_object
    adjective = (
        "tall"
        if phrase.adjective == "groß" and phrase.kind == "person"
        else ADJECTIVES.get(phrase.adjective, "")
    )
    words = join(adjective, phrase.noun.english_plural if phrase.plural else phrase.noun.english)
    determiner = DETERMINERS[phrase.determiner][phrase.plural]
    if determiner == "a" and words[0] in "aeiou":
        determiner = "an"
    return join(determiner, words, relative_clause(phrase))


def relative_clause(head: NounPhrase) -> str:
    """Return the relative clause of a noun phrase, or "" if it has none."""
    if head.relative is None:
        return ""
    case, clause = head.relative.case, head.relative.clause
    return f"who {predicate(clause)}" if case == "nominative" else f"whom {statement(clause, without=case)}"


# ---- Verbs
# -----------------------------------------------------------------------------------------------


def inflect(verb: str, form: str) -> str:
    """Return a verb such as "look for" with its first word inflected.

    `form` is "third person", "progressive", "past" or "participle".
    """
    word, _, rest = verb.partition(" ")
    if form == "third person":
        inflected = "has" if word == "have" else add_s(word)
    elif form == "progressive":
        stem = re.sub("([^e])e$", r"\1", word)
        inflected = stem + ("ting" if word == "put" else "ing")
    else:
        regular = word + "d" if word.endswith("e") else re.sub("([^aeiou])y$", r"\1i", word) + "ed"
        past, participle = ENGLISH_PAST_FORMS.get(word, (regular, regular))
        inflected = past if form == "past" else participle
    return join(inflected, rest)


def agree(auxiliary: str, subject: Phrase) -> str:
    """Return the form of the present tense of "have", "do" or "be" that agrees with a subject."""
    if subject.plural or subject.person == 2:
        return "are" if auxiliary == "be" else auxiliary
    third, first = {"have": ("has", "have"), "do": ("does", "do"), "be": ("is", "am")}[auxiliary]
    return third if subject.person == 3 else first


def subject_of(clause: Clause) -> Phrase:
    """Return the subject of the English clause: of an experiencer verb it is the German dative."""
    return clause.arguments["dative" if clause.verb.frame == "experiencer" else "nominative"]


def main_verb(clause: Clause) -> str:
    """Return the verb of a clause, after "have to", "want to" or "like to" if its mode needs that.

    The last object selects the sense of the verb; of an experiencer verb, the German nominative does.
    """
    frame = clause.verb.frame
    selecting = clause.arguments.get("nominative" if frame == "experiencer" else frame.split(" ")[-1])
    return join(
        ENGLISH_CATENATIVES.get(clause.mode, ""), clause.verb.senses[selecting.kind if selecting else ""]
    )


def verb_group(clause: Clause, needs_auxiliary: bool) -> tuple[str, str]:
    """Return the auxiliary (or "") and the inflected verb of a clause.

    The mode and the adverbial of time together decide the tense.

    Args:
        clause: the clause.
        needs_auxiliary: whether negation or a question asks for "do" if the verb has no other auxiliary.
    """
    subject, verb = subject_of(clause), main_verb(clause)
    if clause.mode in ENGLISH_MODALS:
        return "must" if clause.negated and clause.mode == "dürfen" else ENGLISH_MODALS[clause.mode], verb
    if clause.mode == "perfect" and clause.time != "gestern":
        return agree("have", subject), inflect(verb, "participle")
    if clause.mode == "present" and clause.time == "morgen":
        return "will", verb
    if clause.mode == "present" and clause.time == "jetzt":
        return agree("be", subject), inflect(verb, "progressive")
    past = clause.mode == "perfect"
    if needs_auxiliary:
        return "did" if past else agree("do", subject), verb
    if past:
        return "", inflect(verb, "past")
    return "", inflect(verb, "third person") if subject.person == 3 and not subject.plural else verb


# ---- Clauses
# -----------------------------------------------------------------------------------------------


def complements(clause: Clause, without: str = "") -> str:
    """Return the objects, the place and the time of a clause, in this order.

    `without` names a part that stands elsewhere and is left out: a case, "place" or "time".
    "" leaves out none.
    """
    words = {case: say(phrase) for case, phrase in clause.arguments.items()}
    words |= {"place": PLACES.get(clause.place, ""), "time": TIMES.get(clause.time, ""), without: ""}
    if clause.verb.frame == "experiencer":
        objects = words["nominative"]
    elif clause.verb.frame == "dative accusative":
        objects = join(words["accusative"], "to", words["dative"])
    else:
        objects = words.get(clause.verb.frame, "")
    return join(objects, words["place"], words["time"])


def predicate(clause: Clause, without: str = "") -> str:
    """Return the verb group and the complements of a statement; see `complements` for `without`."""
    auxiliary, verb = verb_group(clause, needs_auxiliary=clause.negated)
    return join(auxiliary, "not" if clause.negated else "", verb, complements(clause, without))


def statement(clause: Clause, fronted: str = "", without: str = "") -> str:
    """Return a clause as a statement.

    Args:
        clause: the clause.
        fronted: what stands in the German prefield: "time" or "place" comes first in English too, a case does
            not.
        without: the complement that stands elsewhere, see `complements`.
    """
    front = {"time": TIMES.get(clause.time, ""), "place": PLACES.get(clause.place, "")}.get(fronted, "")
    return join(
        front, say(subject_of(clause), subject=True), predicate(clause, fronted if front else without)
    )


def question(clause: Clause, without: str = "") -> str:
    """Return a clause as a polar question; see `complements` for `without`."""
    auxiliary, verb = verb_group(clause, needs_auxiliary=True)
    subject = say(subject_of(clause), subject=True)
    return join(auxiliary, subject, "not" if clause.negated else "", verb, complements(clause, without))


def infinitive_clause(clause: Clause) -> str:
    """Return a clause as an infinitive with "to", without its subject."""
    return join("to", main_verb(clause), complements(clause))
