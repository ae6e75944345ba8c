"""Write a synthetic German-English parallel corpus, on which a tiny Transformer learns to translate in minutes.

The sentences come from a small grammar. It draws a meaning (a `Clause`: who does what to whom, when, where) and says it in both
languages. A German clause is laid out in its topological fields: prefield, left bracket, midfield, right bracket. Whatever stands in
the prefield, the finite verb follows it; the particle, participle or infinitive closes the clause, and in a subordinate clause the finite
verb closes it. The corpus exercises agreement (gender, case and number in the noun phrase; subject and verb), V2 order with fronted
adverbials and objects, separable verbs, the perfect with haben and sein, modal verbs, two kinds of negation, questions, relative,
subordinate and infinitive clauses, compounds (one German word, two English ones), tense chosen by an adverbial (present with "morgen" is
an English future), and words whose translation is decided elsewhere in the sentence: nouns by their verb ("bank": bench or bank), verbs by
their object or particle ("stellt ... ein": hires or adjusts), "sie" by agreement (she or they), "den jungen" by the case the verb governs.

Each German sentence has exactly one translation, so 100 BLEU can be reached: an object moves in front of the subject only where case or
agreement shows who does what, and no verb takes both senses of an ambiguous noun as its object. All text is lower-case, with spaces between
tokens. Sentences of valid and test occur in no other split, but all their words occur in train. The same seed gives the same bytes.
"""

import argparse
import os
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from modular_fairseq.errors import UsageError

MAX_SENTENCES = 1_000_000  # of all splits together; the grammar has far more
MAX_REJECTED = 20_000  # draws in a row that repeat a sentence or hold a word that is not in train
TOKENS = range(4, 17)  # sentence lengths, on either side

Item = TypeVar("Item")

# ---- Lexicon ---------------------------------------------------------------------------------------------------------------------------

CASES = ("nominative", "accusative", "dative")

# kind of thing -> gender, German singular and plural, English singular (and an irregular plural). "m*" declines weakly (n-declension).
NOUNS = {
    "person": "m mann männer man/men, f frau frauen woman/women, n kind kinder child/children, m arzt ärzte doctor, m lehrer lehrer teacher, "
    "f lehrerin lehrerinnen teacher, m* student studenten student, m* junge jungen boy, n mädchen mädchen girl, m* nachbar nachbarn neighbour, "
    "f tochter töchter daughter, m leiter leiter manager",
    "animal": "m hund hunde dog, f katze katzen cat, n pferd pferde horse, m* löwe löwen lion, m hahn hähne rooster",
    "food": "m apfel äpfel apple, f suppe suppen soup, n ei eier egg, f birne birnen pear, n gericht gerichte dish",
    "text": "n buch bücher book, f zeitung zeitungen newspaper, m roman romane novel",
    "mail": "m brief briefe letter, n paket pakete parcel, f karte karten card",
    "clothing": "m mantel mäntel coat, f jacke jacken jacket, n kleid kleider dress",
    "textile": "f decke decken blanket, n handtuch handtücher towel",
    "surface": "f decke decken ceiling, f wand wände wall, m zaun zäune fence",
    "furniture": "m tisch tische table, m stuhl stühle chair, f bank bänke bench",
    "opening": "f tür türen door, n fenster fenster window",
    "device": "f lampe lampen lamp, n radio radios radio, m ofen öfen oven",
    "fixture": "n schloss schlösser lock, m hahn hähne tap, f birne birnen bulb, f leiter leitern ladder",
    "building": "n schloss schlösser castle, f kirche kirchen church, m turm türme tower",
    "institution": "f bank banken bank, n gericht gerichte court, f firma firmen company",
    "course": "f schule schulen school, m kurs kurse course",
    "idea": "m plan pläne plan, n ziel ziele goal, f idee ideen idea",
}
COMPOUND_MODIFIERS = {"haus": "house", "garten": "garden", "küchen": "kitchen", "keller": "cellar"}
COMPOUND_HEADS = ("tür", "fenster", "tisch", "lampe")

# cases of the objects -> (particle+)infinitive, third person, participle (and "sein" for its auxiliary) = kinds of object: English verb
VERBS = {
    "": """
        schlafen schläft geschlafen = sleep
        arbeiten arbeitet gearbeitet = work
        warten wartet gewartet = wait
        lachen lacht gelacht = laugh
        ein+schlafen schläft geschlafen sein = fall asleep
        auf+stehen steht gestanden sein = stand up
        an+kommen kommt gekommen sein = arrive""",
    "accusative": """
        sehen sieht gesehen = person animal: see
        an+sehen sieht gesehen = person building: look at
        suchen sucht gesucht = person animal clothing: look for
        fangen fängt gefangen = animal: catch
        verfolgen verfolgt verfolgt = animal: chase; idea: pursue
        an+rufen ruft gerufen = person institution: call
        ein+stellen stellt gestellt = person: hire; device: adjust
        vor+stellen stellt gestellt = person: introduce; idea: present
        besuchen besucht besucht = person: visit; course: attend
        verklagen verklagt verklagt = person institution: sue
        leiten leitet geleitet = institution: manage
        ab+holen holt geholt = person mail: pick up
        auf+geben gibt gegeben = mail: send; idea: give up
        schreiben schreibt geschrieben = text mail: write
        lesen liest gelesen = text mail: read
        kaufen kauft gekauft = food text clothing furniture: buy
        verkaufen verkauft verkauft = food text clothing furniture: sell
        essen isst gegessen = food: eat
        kochen kocht gekocht = food: cook
        an+ziehen zieht gezogen = clothing: put on
        aus+ziehen zieht gezogen = clothing: take off
        waschen wäscht gewaschen = clothing textile: wash
        streichen streicht gestrichen = surface furniture: paint
        auf+machen macht gemacht = opening: open
        zu+machen macht gemacht = opening: close
        an+machen macht gemacht = device: turn on
        aus+machen macht gemacht = device: turn off
        reparieren repariert repariert = fixture device: repair
        ersetzen ersetzt ersetzt = fixture: replace
        bauen baut gebaut = building: build
        verlassen verlässt verlassen = building: leave""",
    "dative": """
        helfen hilft geholfen = person: help
        danken dankt gedankt = person: thank
        zu+hören hört gehört = person: listen to
        folgen folgt gefolgt sein = person animal: follow""",
    "dative accusative": """
        geben gibt gegeben = food text: give
        zeigen zeigt gezeigt = text clothing: show
        schicken schickt geschickt = mail: send
        zurück+geben gibt gegeben = text clothing: return""",
    "experiencer": "gefallen gefällt gefallen = text clothing: like",
    "dass": """
        sagen sagt gesagt = say
        glauben glaubt geglaubt = believe
        hoffen hofft gehofft = hope""",
    "zu": """
        versuchen versucht versucht = try
        versprechen verspricht versprochen = promise
        vergessen vergisst vergessen = forget""",
}
IRREGULAR_ENGLISH = """
    be was been, build built built, buy bought bought, catch caught caught, eat ate eaten, fall fell fallen, find found found,
    forget forgot forgotten, give gave given, have had had, leave left left, put put put, read read read, say said said, see saw seen,
    sell sold sold, send sent sent, show showed shown, sleep slept slept, stand stood stood, take took taken, write wrote written"""

ADJECTIVES = {"alt": "old", "neu": "new", "klein": "small", "groß": "big", "schön": "beautiful", "gut": "good", "seltsam": "strange"}
TIMES = {"heute": "today", "jeden tag": "every day", "jetzt": "now", "morgen": "tomorrow", "gestern": "yesterday"}
PLACES = {"im garten": "in the garden", "in der stadt": "in the city", "auf dem markt": "at the market", "zu hause": "at home", "am see": "by the lake"}
CONJUNCTIONS = {"weil": "because", "obwohl": "although", "wenn": "if", "bevor": "before"}
QUESTION_ADVERBS = {"wo": "where", "warum": "why"}

# ich, du, er/sie, wir/sie
FINITE = {
    "haben": "habe hast hat haben",
    "sein": "bin bist ist sind",
    "können": "kann kannst kann können",
    "müssen": "muss musst muss müssen",
    "wollen": "will willst will wollen",
    "sollen": "soll sollst soll sollen",
    "dürfen": "darf darfst darf dürfen",
}
ENGLISH_MODALS = {"können": "can", "sollen": "should", "dürfen": "may"}
ENGLISH_CATENATIVES = {"müssen": "have to", "wollen": "want to", "gern": "like to"}

# columns: masculine, feminine, neuter, plural; "-" is no ending
ENDINGS = {
    "d": {"nominative": "er ie as ie", "accusative": "en ie as ie", "dative": "em er em en"},
    "dies": {"nominative": "er e es e", "accusative": "en e es e", "dative": "em er em en"},
    "ein": {"nominative": "- e - e", "accusative": "en e - e", "dative": "em er em en"},
    "weak adjective": {"nominative": "e e e en", "accusative": "en e e en", "dative": "en en en en"},
    "mixed adjective": {"nominative": "er e es en", "accusative": "en e es en", "dative": "en en en en"},
    "bare adjective": {"nominative": "e e e e", "accusative": "e e e e", "dative": "en en en en"},
}
DETERMINERS = {  # stem -> English singular and plural
    "d": ("the", "the"),
    "dies": ("this", "these"),
    "ein": ("a", ""),
    "kein": ("a", ""),  # the English clause carries the negation
    "mein": ("my", "my"),
    "dein": ("your", "your"),
    "sein": ("his", "his"),
    "unser": ("our", "our"),
}


class Noun(NamedTuple):
    kind: str
    gender: str  # m, f, n
    weak: bool  # n-declension: every case but the nominative singular has the plural's form
    singular: str
    plural: str
    english: str
    english_plural: str


class Verb(NamedTuple):
    frame: str  # what it takes: a key of VERBS
    particle: str  # of a separable verb, or ""
    infinitive: str
    third_person: str
    participle: str
    auxiliary: str  # of the perfect
    senses: dict[str, str]  # kind of object ("" where there is none) -> English verb


def read_nouns() -> list[Noun]:
    nouns = []
    for kind, entries in NOUNS.items():
        for entry in entries.split(", "):
            gender, singular, plural, english = entry.split()
            english, _, irregular = english.partition("/")
            nouns.append(Noun(kind, gender[0], gender.endswith("*"), singular, plural, english, irregular or add_s(english)))
    heads = [noun for noun in nouns if noun.singular in COMPOUND_HEADS]
    for modifier, translation in COMPOUND_MODIFIERS.items():
        for head in heads:
            english, english_plural = f"{translation} {head.english}", f"{translation} {head.english_plural}"
            nouns.append(Noun(head.kind, head.gender, False, modifier + head.singular, modifier + head.plural, english, english_plural))
    return nouns


def read_verbs() -> list[Verb]:
    verbs = []
    for frame, entries in VERBS.items():
        for entry in entries.strip().splitlines():
            forms, _, translations = entry.strip().partition(" = ")
            infinitive, third_person, participle, *auxiliary = forms.split()
            particle, _, infinitive = infinitive.rpartition("+")
            senses = {}
            for translation in translations.split("; "):
                kinds, _, english = translation.rpartition(": ")
                senses |= dict.fromkeys(kinds.split() or [""], english)
            verbs.append(Verb(frame, particle, infinitive, third_person, participle, *auxiliary or ["haben"], senses))
    return verbs


def add_s(word: str) -> str:
    """The plural of a regular English noun, or the third person of an English verb."""
    if word == "have":
        return "has"
    if re.search("(s|sh|ch|x|o)$", word):
        return word + "es"
    return re.sub("([^aeiou])y$", r"\1ie", word) + "s"


NOUNS_OF_KIND = {kind: [noun for noun in read_nouns() if noun.kind == kind] for kind in NOUNS}
VERBS_OF_FRAME = {frame: [verb for verb in read_verbs() if verb.frame == frame] for frame in VERBS}
PERSON_OBJECT_VERBS = [verb for frame in ("accusative", "dative") for verb in VERBS_OF_FRAME[frame] if "person" in verb.senses]
ENGLISH_PAST = {base: (past, participle) for base, past, participle in (row.split() for row in IRREGULAR_ENGLISH.split(","))}

# ---- Noun phrases ----------------------------------------------------------------------------------------------------------------------


def join(*words: str) -> str:
    return " ".join(filter(None, words))


def inflect(stem: str, paradigm: str, case: str, column: int) -> str:
    return stem + ENDINGS[paradigm][case].split()[column].strip("-")


@dataclass(frozen=True)
class Pronoun:
    person: int
    plural: bool
    german_forms: tuple[str, str, str]  # by case
    english_forms: tuple[str, str]  # as subject, elsewhere
    kind = "person"

    def german(self, case: str) -> str:
        return self.german_forms[CASES.index(case)]

    def english(self, subject: bool = False) -> str:
        return self.english_forms[0 if subject else 1]


ICH = Pronoun(1, False, ("ich", "mich", "mir"), ("i", "me"))
DU = Pronoun(2, False, ("du", "dich", "dir"), ("you", "you"))
ER = Pronoun(3, False, ("er", "ihn", "ihm"), ("he", "him"))
SIE = Pronoun(3, False, ("sie", "sie", "ihr"), ("she", "her"))
WIR = Pronoun(1, True, ("wir", "uns", "uns"), ("we", "us"))
SIE_PLURAL = Pronoun(3, True, ("sie", "sie", "ihnen"), ("they", "them"))
WER = Pronoun(3, False, ("wer", "wen", "wem"), ("who", "whom"))
PRONOUNS = [ICH, DU, ER, SIE, WIR, SIE_PLURAL]


@dataclass(frozen=True)
class NounPhrase:
    noun: Noun
    plural: bool
    determiner: str
    adjective: str = ""
    relative: "Relative | None" = None
    person = 3

    @property
    def kind(self) -> str:
        return self.noun.kind

    @property
    def column(self) -> int:
        return 3 if self.plural else "mfn".index(self.noun.gender)

    def german(self, case: str) -> str:
        paradigm = self.determiner if self.determiner in ("d", "dies") else "ein"
        determiner = inflect(self.determiner, paradigm, case, self.column)
        adjective_paradigm = "mixed adjective" if paradigm == "ein" else "weak adjective"
        if self.plural and self.determiner == "ein":
            determiner, adjective_paradigm = "", "bare adjective"
        adjective = self.adjective and inflect(self.adjective, adjective_paradigm, case, self.column)
        return join(determiner, adjective, self.german_noun(case), self.relative and self.relative.german(self))

    def german_noun(self, case: str) -> str:
        if not self.plural:
            return self.noun.plural if self.noun.weak and case != "nominative" else self.noun.singular
        return self.noun.plural + ("n" if case == "dative" and self.noun.plural[-1] not in "ns" else "")

    def english(self, subject: bool = False) -> str:
        determiner = DETERMINERS[self.determiner][self.plural]
        adjective = ADJECTIVES.get(self.adjective, "")
        if adjective == "big" and self.kind == "person":
            adjective = "tall"
        phrase = join(adjective, self.noun.english_plural if self.plural else self.noun.english)
        if determiner == "a" and phrase[0] in "aeiou":
            determiner = "an"
        return join(determiner, phrase, self.relative and self.relative.english())


Phrase = Pronoun | NounPhrase


def relative_pronoun(head: NounPhrase, case: str) -> str:
    return "denen" if head.plural and case == "dative" else inflect("d", "d", case, head.column)


# ---- Clauses ---------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clause:
    verb: Verb
    arguments: dict[str, Phrase]  # by German case; the nominative is the German subject
    mode: str = "present"  # "present", "perfect", "gern" (present with that adverb) or a modal verb
    time: str = ""  # a key of TIMES
    place: str = ""  # a key of PLACES
    negated: bool = False

    @property
    def subject(self) -> Phrase:
        return self.arguments["nominative"]

    @property
    def english_subject(self) -> Phrase:
        return self.arguments["dative" if self.verb.frame == "experiencer" else "nominative"]

    @property
    def english_verb(self) -> str:
        deciding = {"experiencer": "nominative", "dative": "dative"}.get(self.verb.frame, "accusative")
        return self.verb.senses[self.arguments[deciding].kind if deciding in self.arguments else ""]


@dataclass(frozen=True)
class Relative:
    case: str  # of the relative pronoun: what the head is in the clause
    clause: Clause

    def german(self, head: NounPhrase) -> str:
        return join(",", relative_pronoun(head, self.case), verb_final(self.clause, without=self.case), ",")

    def english(self) -> str:
        if self.case == "nominative":
            return join("who", english_predicate(self.clause))
        return join("whom", english_clause(self.clause, without=self.case))


def finite(verb: Verb | str, subject: Phrase) -> str:
    """The present tense of a verb, or of an auxiliary given by its infinitive."""
    slot = 3 if subject.plural else subject.person - 1
    if isinstance(verb, str):
        return FINITE[verb].split()[slot]
    second_person = verb.third_person[:-1] + ("t" if verb.third_person[-2] in "sßz" else "st")
    return (verb.infinitive[:-1], second_person, verb.third_person, verb.infinitive)[slot]


def verb_complex(clause: Clause) -> tuple[str, str]:
    """The finite verb, and the participle or infinitive it governs (or "")."""
    verb = clause.verb
    if clause.mode == "perfect":
        return finite(verb.auxiliary, clause.subject), verb.particle + verb.participle
    if clause.mode in FINITE:
        return finite(clause.mode, clause.subject), verb.particle + verb.infinitive
    return finite(verb, clause.subject), ""


def midfield(clause: Clause, without: str = "") -> str:
    """Subject, pronouns, time, objects, adverbs, place; `without` names the constituent that stands elsewhere."""
    phrases = {case: phrase for case, phrase in clause.arguments.items() if case != without}
    words = {case: phrase.german(case) for case, phrase in phrases.items()}
    pronouns = [words.pop(case) for case in ("accusative", "dative") if isinstance(phrases.get(case), Pronoun)]
    accusative = clause.arguments.get("accusative")
    determiner = accusative.determiner if isinstance(accusative, NounPhrase) else ""
    adverbs = join("nicht" if clause.negated and determiner != "kein" else "", "gern" if clause.mode == "gern" else "")
    objects = [words.get("accusative", ""), adverbs]
    return join(
        words.get("nominative", ""),
        *pronouns,
        clause.time if without != "time" else "",
        words.get("dative", ""),
        *(reversed(objects) if determiner == "ein" else objects),
        clause.place if without != "place" else "",
    )


def verb_second(clause: Clause, prefield: str = "") -> str:
    """A main clause; without anything in the prefield it is a yes/no question, or follows its subordinate clause."""
    finite_verb, governed = verb_complex(clause)
    front = clause.arguments[prefield].german(prefield) if prefield in clause.arguments else getattr(clause, prefield, "")
    return join(front, finite_verb, midfield(clause, without=prefield), governed or clause.verb.particle)


def verb_final(clause: Clause, without: str = "") -> str:
    """A subordinate clause after its conjunction or relative pronoun."""
    finite_verb, governed = verb_complex(clause)
    return join(midfield(clause, without), f"{governed} {finite_verb}" if governed else clause.verb.particle + finite_verb)


def zu_infinitive(clause: Clause) -> str:
    verb = clause.verb
    return join(midfield(clause, without="nominative"), f"{verb.particle}zu{verb.infinitive}" if verb.particle else f"zu {verb.infinitive}")


def english_form(verb: str, form: str) -> str:
    """Inflect the first word of an English verb such as "look for"."""
    word, _, rest = verb.partition(" ")
    regular_past = word + "d" if word.endswith("e") else re.sub("([^aeiou])y$", r"\1i", word) + "ed"
    past, participle = ENGLISH_PAST.get(word, (regular_past, regular_past))
    stem = re.sub("([^e])e$", r"\1", word)
    stem = stem + stem[-1] if re.fullmatch("[^aeiou]*[aeiou][^aeiouwxy]", stem) and not word.endswith("e") else stem
    return join({"third": add_s(word), "past": past, "participle": participle, "progressive": stem + "ing"}[form], rest)


def agree(auxiliary: str, subject: Phrase) -> str:
    if auxiliary == "be":
        return "am" if subject == ICH else "are" if subject.plural or subject.person < 3 else "is"
    return auxiliary if subject.plural or subject.person < 3 else {"have": "has", "do": "does"}[auxiliary]


def english_verbs(clause: Clause, needs_auxiliary: bool) -> tuple[str, str]:
    """The auxiliary, if there is one, and the main verb."""
    subject, mode, time = clause.english_subject, clause.mode, clause.time
    if mode in ENGLISH_MODALS:
        return "must" if clause.negated and mode == "dürfen" else ENGLISH_MODALS[mode], clause.english_verb
    verb = join(ENGLISH_CATENATIVES.get(mode, ""), clause.english_verb)
    if mode == "perfect" and time != "gestern":
        return agree("have", subject), english_form(verb, "participle")
    if mode == "present" and time == "morgen":
        return "will", verb
    if mode == "present" and time == "jetzt":
        return agree("be", subject), english_form(verb, "progressive")
    if needs_auxiliary:
        return "did" if mode == "perfect" else agree("do", subject), verb
    if mode == "perfect":
        return "", english_form(verb, "past")
    return "", verb if subject.plural or subject.person < 3 else english_form(verb, "third")


def english_complements(clause: Clause, without: str = "") -> str:
    """Objects, place and time, in this order."""
    objects = {case: phrase.english() if case != without else "" for case, phrase in clause.arguments.items() if case != "nominative"}
    if clause.verb.frame == "experiencer":
        objects = {"accusative": clause.subject.english()}
    recipient = join("to", objects.pop("dative")) if len(objects) == 2 else ""
    place = PLACES[clause.place] if clause.place and without != "place" else ""
    time = TIMES[clause.time] if clause.time and without != "time" else ""
    return join(*objects.values(), recipient, place, time)


def english_predicate(clause: Clause, without: str = "") -> str:
    auxiliary, verb = english_verbs(clause, needs_auxiliary=clause.negated)
    return join(auxiliary, "not" if clause.negated else "", verb, english_complements(clause, without))


def english_clause(clause: Clause, without: str = "") -> str:
    return join(clause.english_subject.english(subject=True), english_predicate(clause, without))


def english_infinitive(clause: Clause) -> str:
    return join("to", clause.english_verb, english_complements(clause))


def english_statement(clause: Clause, prefield: str = "") -> str:
    """An adverbial that German puts first comes first in English too; an object does not."""
    fronted = prefield if prefield in ("time", "place") else ""
    front = TIMES[clause.time] if fronted == "time" else PLACES[clause.place] if fronted == "place" else ""
    return join(front, english_clause(clause, without=fronted))


def english_question(clause: Clause, without: str = "") -> str:
    auxiliary, verb = english_verbs(clause, needs_auxiliary=True)
    subject = clause.english_subject.english(subject=True)
    return join(auxiliary, subject, "not" if clause.negated else "", verb, english_complements(clause, without))


# ---- Sampling --------------------------------------------------------------------------------------------------------------------------


FRAME_CHOICES = ["", "dative", "experiencer", "dative accusative"] + 4 * ["accusative"]
DETERMINER_CHOICES = ["dies", "mein", "dein", "sein", "unser"] + 3 * ["ein"] + 6 * ["d"]
MODE_CHOICES = ["gern", "können", "müssen", "wollen", "sollen", "dürfen"] + 5 * ["perfect"] + 8 * ["present"]
TIME_CHOICES = {"perfect": ["gestern"], "present": ["heute", "jeden tag", "jetzt", "morgen"], "gern": ["jeden tag"]}
MODAL_TIME_CHOICES = ["heute", "jetzt", "morgen"]


def roles_are_marked(subject: Phrase, moved: Phrase, case: str, form: Callable[[Phrase, str], str]) -> bool:
    """Whether case or agreement tells a moved object from the subject; `form` gives the German words that move."""
    moved_is_marked = form(moved, case) != form(moved, "nominative")
    return moved_is_marked or subject.german("nominative") != subject.german(case) or subject.plural != moved.plural


class Sampler:
    """Draws sentences. Only `random()` is used: Python promises that its sequence stays the same in every version."""

    def __init__(self, seed: int):
        self.random = random.Random(seed).random

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def pick(self, items: Sequence[Item]) -> Item:
        return items[int(self.random() * len(items))]

    def noun_phrase(self, kind: str) -> NounPhrase:
        adjective = self.pick(list(ADJECTIVES)) if self.chance(0.3) else ""
        return NounPhrase(self.pick(NOUNS_OF_KIND[kind]), self.chance(0.3), self.pick(DETERMINER_CHOICES), adjective)

    def argument(self, kind: str, case: str, others: Sequence[Phrase]) -> Phrase:
        """A phrase that differs from the others; "sie" is no accusative, where nothing would tell her from them."""
        if kind != "person" or self.chance(0.6):
            taken = [other.noun for other in others if isinstance(other, NounPhrase)]
            while (phrase := self.noun_phrase(kind)).noun in taken:
                pass
            return phrase
        taken = [other.person for other in others if other.person < 3]
        return self.pick([p for p in PRONOUNS if p.person not in taken and (case != "accusative" or p.german(case) != "sie")])

    def verb(self, agentive: bool) -> Verb:
        """`agentive`: one whose German subject is a person."""
        frame = self.pick(FRAME_CHOICES)
        while agentive and frame == "experiencer":
            frame = self.pick(FRAME_CHOICES)
        return self.pick(VERBS_OF_FRAME[frame])

    def arguments(self, verb: Verb, given: dict[str, Phrase]) -> dict[str, Phrase]:
        if verb.frame == "experiencer":
            kinds = {"nominative": self.pick(list(verb.senses)), "dative": "person"}
        else:
            kinds = {"nominative": "person"} | {case: "person" for case in verb.frame.split() if case in CASES}
            kinds |= {case: self.pick(list(verb.senses)) for case in verb.frame.split()[-1:] if case in CASES}
        arguments = dict(given)
        for case, kind in kinds.items():
            if case not in given:
                arguments[case] = self.argument(kind, case, list(arguments.values()))
        return arguments

    def clause(self, verb: Verb | None = None, tensed: bool = True, adverbials: bool = True, **given: Phrase) -> Clause:
        """A clause with the given arguments, by case, and others drawn."""
        verb = verb or self.verb(agentive="nominative" in given)
        arguments = self.arguments(verb, given)
        mode = self.pick(MODE_CHOICES) if tensed and verb.frame != "experiencer" else "present"
        adverbials = adverbials and tensed and verb.frame != "experiencer"
        time = self.pick(TIME_CHOICES.get(mode, MODAL_TIME_CHOICES)) if adverbials and self.chance(0.4) else ""
        place = self.pick(list(PLACES)) if adverbials and verb.frame in ("", "accusative") and self.chance(0.2) else ""
        negated = tensed and self.chance(0.15)
        accusative = arguments.get("accusative")
        if negated and mode != "gern" and "accusative" not in given and isinstance(accusative, NounPhrase) and accusative.determiner == "ein":
            arguments["accusative"] = replace(accusative, determiner="kein")
        return Clause(verb, arguments, mode, time, place, negated)

    def relative(self, head: NounPhrase) -> Relative:
        verb = self.pick(PERSON_OBJECT_VERBS)
        clause = self.clause(verb, **{verb.frame: head})
        if self.chance(0.5) and roles_are_marked(clause.subject, head, verb.frame, relative_pronoun):
            return Relative(verb.frame, clause)
        return Relative("nominative", self.clause(nominative=head))

    def prefield(self, clause: Clause) -> str:
        objects = [
            case
            for case, phrase in clause.arguments.items()
            if case != "nominative" and roles_are_marked(clause.subject, phrase, case, lambda phrase, case: phrase.german(case))
        ]
        movable = objects + [name for name in ("time", "place") if getattr(clause, name)]
        return self.pick(movable) if movable and self.chance(0.5) else "nominative"

    def statement(self) -> tuple[str, str]:
        clause = self.clause()
        prefield = self.prefield(clause)
        return f"{verb_second(clause, prefield)} .", f"{english_statement(clause, prefield)} ."

    def relative_clause(self) -> tuple[str, str]:
        head = self.noun_phrase("person")
        clause = self.clause(nominative=replace(head, relative=self.relative(head)))
        return f"{verb_second(clause, 'nominative')} .", f"{english_clause(clause)} ."

    def polar_question(self) -> tuple[str, str]:
        clause = self.clause()
        return f"{verb_second(clause)} ?", f"{english_question(clause)} ?"

    def subject_question(self) -> tuple[str, str]:
        clause = self.clause(nominative=WER)
        return f"{verb_second(clause, 'nominative')} ?", f"{english_clause(clause)} ?"

    def object_question(self) -> tuple[str, str]:
        verb = self.pick(PERSON_OBJECT_VERBS)
        clause = self.clause(verb, **{verb.frame: WER})
        return f"{verb_second(clause, verb.frame)} ?", f"whom {english_question(clause, without=verb.frame)} ?"

    def adverb_question(self) -> tuple[str, str]:
        german, english = self.pick(list(QUESTION_ADVERBS.items()))
        clause = self.clause(adverbials=False)
        return f"{german} {verb_second(clause)} ?", f"{english} {english_question(clause)} ?"

    def subordinate_last(self) -> tuple[str, str]:
        german, english = self.pick(list(CONJUNCTIONS.items()))
        main, subordinate = self.clause(), self.clause()
        return f"{verb_second(main, 'nominative')} , {german} {verb_final(subordinate)} .", f"{english_clause(main)} {english} {english_clause(subordinate)} ."

    def subordinate_first(self) -> tuple[str, str]:
        german, english = self.pick(list(CONJUNCTIONS.items()))
        main, subordinate = self.clause(), self.clause()
        return f"{german} {verb_final(subordinate)} , {verb_second(main)} .", f"{english} {english_clause(subordinate)} , {english_clause(main)} ."

    def complement_clause(self) -> tuple[str, str]:
        main = self.clause(self.pick(VERBS_OF_FRAME["dass"]), adverbials=False)
        subordinate = self.clause()
        return f"{verb_second(main, 'nominative')} , dass {verb_final(subordinate)} .", f"{english_clause(main)} that {english_clause(subordinate)} ."

    def infinitive_clause(self) -> tuple[str, str]:
        main = self.clause(self.pick(VERBS_OF_FRAME["zu"]), adverbials=False)
        infinitive = self.clause(tensed=False, nominative=main.subject)
        return f"{verb_second(main, 'nominative')} , {zu_infinitive(infinitive)} .", f"{english_clause(main)} {english_infinitive(infinitive)} ."

    def purpose_clause(self) -> tuple[str, str]:
        subject = self.argument("person", "nominative", [])
        main, purpose = self.clause(nominative=subject), self.clause(tensed=False, nominative=subject)
        german = f"{verb_second(main, 'nominative')} , um {zu_infinitive(purpose)} ."
        return german, f"{english_clause(main)} in order {english_infinitive(purpose)} ."

    def sentence(self) -> tuple[str, str]:
        """A German sentence of the usual length, and its translation."""
        while True:
            german, english = self.pick(SENTENCE_CHOICES)(self)
            if len(german.split()) in TOKENS and len(english.split()) in TOKENS:
                return german, english


SENTENCE_CHOICES = [
    *6 * [Sampler.statement],
    *2 * [Sampler.relative_clause],
    Sampler.polar_question,
    Sampler.subject_question,
    Sampler.object_question,
    Sampler.adverb_question,
    Sampler.subordinate_last,
    Sampler.subordinate_first,
    Sampler.complement_clause,
    Sampler.infinitive_clause,
    Sampler.purpose_clause,
]

# ---- The corpus ------------------------------------------------------------------------------------------------------------------------


def draw_splits(sizes: dict[str, int], seed: int) -> dict[str, list[tuple[str, str]]]:
    """Sentence pairs for each split; no sentence of either language occurs twice, and the words of all splits occur in the first."""
    sampler = Sampler(seed)
    splits: dict[str, list[tuple[str, str]]] = {}
    used: set[str] = set()
    train_words: set[str] = set()
    for name, size in sizes.items():
        pairs = splits[name] = []
        rejected = 0
        while len(pairs) < size:
            pair = sampler.sentence()
            unknown_words = bool(train_words) and not train_words.issuperset(" ".join(pair).split())
            if unknown_words or not used.isdisjoint(pair):
                rejected += 1
                if rejected == MAX_REJECTED:
                    raise UsageError(f"--train {sizes['train']} holds too few words for --{name} {size}: --train takes a larger number, or --{name} a smaller one.")
                continue
            rejected = 0
            pairs.append(pair)
            used.update(pair)
        train_words = train_words or set(" ".join(word for pair in pairs for word in pair).split())
    return splits


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for train, valid and test, each with .de and .en")
    parser.add_argument("--train", type=int, default=16_000, metavar="N", help="training sentences (default: %(default)s)")
    parser.add_argument("--valid", type=int, default=300, metavar="N", help="validation sentences (default: %(default)s)")
    parser.add_argument("--test", type=int, default=500, metavar="N", help="test sentences (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="the same seed gives the same files (default: %(default)s)")


def run(args: argparse.Namespace) -> None:
    sizes = {"train": args.train, "valid": args.valid, "test": args.test}
    for name, size in sizes.items():
        if size < 1:
            raise UsageError(f"--{name} {size}: at least 1 sentence is needed.")
    if sum(sizes.values()) > MAX_SENTENCES:
        raise UsageError(f"--train, --valid and --test ask for {sum(sizes.values())} sentences: together they may be at most {MAX_SENTENCES}.")
    if args.out.exists() and not args.out.is_dir():
        raise UsageError(f"{args.out} is a file: OUT must be a folder, which is made where it does not exist.")

    splits = draw_splits(sizes, args.seed)
    for name, pairs in splits.items():
        write(args.out / f"{name}.de", [german for german, _ in pairs])
        write(args.out / f"{name}.en", [english for _, english in pairs])


def write(path: Path, lines: list[str]) -> None:
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes("".join(line + "\n" for line in lines).encode())
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written ({error.strerror}): OUT must be a folder that this user may write to.") from error
