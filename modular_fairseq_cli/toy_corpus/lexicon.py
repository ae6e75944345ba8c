"""The words of the toy corpus, with their forms and translations."""

import re
from typing import NamedTuple

# The nouns by kind. Each has its gender ("m*" is a masculine noun of the weak n-declension), its singular,
# its plural and its translation, with the English plural after "/" if it is irregular.
NOUNS = {
    "person": "m mann männer man/men, f frau frauen woman/women, n kind kinder child/children, m arzt ärzte "
    "doctor, m lehrer lehrer teacher, f lehrerin lehrerinnen teacher, m* student studenten student, m* junge "
    "jungen boy, n mädchen mädchen girl, m* nachbar nachbarn neighbour, f tochter töchter daughter, m leiter "
    "leiter manager",
    "animal": "m hund hunde dog, f katze katzen cat, n pferd pferde horse, m* löwe löwen lion, m hahn hähne "
    "rooster",
    "food": "m apfel äpfel apple, f suppe suppen soup, n ei eier egg, f birne birnen pear, n gericht "
    "gerichte dish",
    "text": "n buch bücher book, f zeitung zeitungen newspaper, m roman romane novel",
    "mail": "m brief briefe letter, n telegramm telegramme telegram, f karte karten card",
    "clothing": "m mantel mäntel coat, f jacke jacken jacket, n kleid kleider dress",
    "linen": "f decke decken blanket, n handtuch handtücher towel",
    "surface": "f decke decken ceiling, f wand wände wall, m zaun zäune fence",
    "furniture": "m tisch tische table, m stuhl stühle chair, f bank bänke bench",
    "opening": "f tür türen door, n fenster fenster window",
    "device": "f lampe lampen lamp, n radio radios radio/radios, m ofen öfen oven",
    "fixture": "n schloss schlösser lock, m hahn hähne tap, f birne birnen bulb, f leiter leitern ladder",
    "building": "n schloss schlösser castle, f kirche kirchen church, m turm türme tower",
    "institution": "f bank banken bank, n gericht gerichte court, f firma firmen company",
    "training": "f schule schulen school, m kurs kurse course",
    "idea": "m plan pläne plan, n ziel ziele goal, f idee ideen idea",
}
COMPOUND_MODIFIERS = {"haus": "house", "garten": "garden", "küchen": "kitchen", "keller": "cellar"}
COMPOUND_HEADS = ("tür", "fenster", "tisch", "lampe")

# The verbs by frame: the cases of their objects, or the clause that they take. A line has the infinitive
# (with the particle of a separable verb before "+"), the third person, the participle, and the auxiliary of
# the perfect if it is not "haben". After "=" come the translations, each after the kinds of object that
# select it. The last object selects the translation; of an experiencer verb, the nominative does.
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
        besuchen besucht besucht = person: visit; training: attend
        verklagen verklagt verklagt = person institution: sue
        leiten leitet geleitet = institution: manage
        ab+holen holt geholt = person mail: fetch
        auf+geben gibt gegeben = mail: send; idea: give up
        schreiben schreibt geschrieben = text mail: write
        lesen liest gelesen = text mail: read
        kaufen kauft gekauft = food text clothing furniture: buy
        verkaufen verkauft verkauft = food text clothing furniture: sell
        essen isst gegessen = food: eat
        kochen kocht gekocht = food: cook
        an+ziehen zieht gezogen = clothing: put on
        aus+ziehen zieht gezogen = clothing: take off
        waschen wäscht gewaschen = clothing linen: wash
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
    "experiencer": "gefallen gefällt gefallen = text clothing: like",  # the dative likes the nominative
    "dass": """
        sagen sagt gesagt = say
        glauben glaubt geglaubt = believe
        hoffen hofft gehofft = hope""",
    "zu": """
        versuchen versucht versucht = try
        versprechen verspricht versprochen = promise
        vergessen vergisst vergessen = forget""",
}
FINITE_AUXILIARIES = {  # the forms for ich, du, er, wir
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
# Base form, past tense and participle.
IRREGULAR_ENGLISH = """
    build built built, buy bought bought, catch caught caught, eat ate eaten, fall fell fallen,
    forget forgot forgotten, give gave given, have had had, leave left left, put put put, read read read,
    say said said, see saw seen, sell sold sold, send sent sent, show showed shown, sleep slept slept,
    stand stood stood, take took taken, write wrote written"""

DETERMINERS = {  # from the stem to the English singular and plural
    "d": ("the", "the"),
    "dies": ("this", "these"),
    "ein": ("a", ""),
    "kein": ("a", ""),  # English negates the verb instead
    "mein": ("my", "my"),
    "dein": ("your", "your"),
    "sein": ("his", "his"),
    "unser": ("our", "our"),
}
ENDINGS = {  # masculine, feminine, neuter, plural; "-" is no ending
    "d": {"nominative": "er ie as ie", "accusative": "en ie as ie", "dative": "em er em en"},
    "dies": {"nominative": "er e es e", "accusative": "en e es e", "dative": "em er em en"},
    "ein": {"nominative": "- e - e", "accusative": "en e - e", "dative": "em er em en"},
    "weak adjective": {"nominative": "e e e en", "accusative": "en e e en", "dative": "en en en en"},
    "mixed adjective": {"nominative": "er e es en", "accusative": "en e es en", "dative": "en en en en"},
    "strong plural adjective": {"nominative": "- - - e", "accusative": "- - - e", "dative": "- - - en"},
}
ADJECTIVES = {
    "alt": "old",
    "neu": "new",
    "klein": "small",
    "groß": "big",
    "schön": "beautiful",
    "gut": "good",
    "seltsam": "strange",
}
TIMES = {
    "heute": "today",
    "jeden tag": "every day",
    "jetzt": "now",
    "morgen": "tomorrow",
    "gestern": "yesterday",
}
PLACES = {
    "im garten": "in the garden",
    "in der stadt": "in the city",
    "auf dem markt": "at the market",
    "zu hause": "at home",
    "am see": "by the lake",
}
CONJUNCTIONS = {"weil": "because", "obwohl": "although", "wenn": "if", "bevor": "before"}
QUESTION_ADVERBS = {"wo": "where", "warum": "why"}


class Noun(NamedTuple):
    """A German noun with its translation."""

    kind: str  # a key of NOUNS
    gender: str  # m, f or n
    weak: bool  # whether every case but the nominative singular has the form of the plural
    singular: str
    plural: str
    english: str
    english_plural: str


class Verb(NamedTuple):
    """A German verb with its translations."""

    frame: str  # a key of VERBS
    particle: str  # the particle of a separable verb, or ""; the forms below are without it
    infinitive: str
    third_person: str
    participle: str
    auxiliary: str  # the auxiliary of the perfect, "haben" or "sein"
    senses: dict[str, str]  # the English verb by the kind of object that selects it ("": there is no object)


class Pronoun(NamedTuple):
    """A personal or interrogative pronoun in both languages."""

    person: int  # 1, 2 or 3
    plural: bool
    nominative: str
    accusative: str
    dative: str
    english_subject: str
    english_object: str

    @property
    def kind(self) -> str:
        """The kind of noun that the pronoun stands for: all are persons."""
        return "person"


PRONOUNS = [
    Pronoun(1, False, "ich", "mich", "mir", "i", "me"),
    Pronoun(2, False, "du", "dich", "dir", "you", "you"),
    Pronoun(3, False, "er", "ihn", "ihm", "he", "him"),
    Pronoun(3, False, "sie", "sie", "ihr", "she", "her"),
    Pronoun(1, True, "wir", "uns", "uns", "we", "us"),
    Pronoun(3, True, "sie", "sie", "ihnen", "they", "them"),
]
WHO = Pronoun(3, False, "wer", "wen", "wem", "who", "whom")


def join(*words: str) -> str:
    """Return the words that are not empty, separated by spaces."""
    return " ".join(filter(None, words))


def add_s(word: str) -> str:
    """Return the plural of a regular English noun, or the third person of any verb but "have"."""
    if re.search("(s|sh|ch|x|o)$", word):
        return word + "es"
    return re.sub("([^aeiou])y$", r"\1ie", word) + "s"


def read_nouns() -> list[Noun]:
    """Return the nouns of `NOUNS`, and all compounds."""
    nouns = []
    for kind, rows in NOUNS.items():
        for row in rows.split(", "):
            gender, singular, plural, english = row.split()
            english, _, english_plural = english.partition("/")
            nouns.append(
                Noun(
                    kind,
                    gender[0],
                    gender.endswith("*"),
                    singular,
                    plural,
                    english,
                    english_plural or add_s(english),
                )
            )
    heads = [noun for noun in nouns if noun.singular in COMPOUND_HEADS]
    return nouns + [compound(modifier, head) for modifier in COMPOUND_MODIFIERS for head in heads]


def compound(modifier: str, head: Noun) -> Noun:
    """Return a compound, which is one word in German and two in English."""
    english = COMPOUND_MODIFIERS[modifier]
    return head._replace(
        singular=modifier + head.singular,
        plural=modifier + head.plural,
        english=f"{english} {head.english}",
        english_plural=f"{english} {head.english_plural}",
    )


def read_verbs() -> list[Verb]:
    """Return the verbs of `VERBS`."""
    verbs = []
    for frame, rows in VERBS.items():
        for row in rows.strip().splitlines():
            forms, _, translations = row.partition(" = ")
            infinitive, third_person, participle, *others = forms.split()
            particle, _, infinitive = infinitive.rpartition("+")
            auxiliary = others[0] if others else "haben"
            senses: dict[str, str] = {}
            for translation in translations.split("; "):
                kinds, _, english = translation.rpartition(": ")
                senses |= dict.fromkeys(kinds.split() or [""], english)
            verbs.append(Verb(frame, particle, infinitive, third_person, participle, auxiliary, senses))
    return verbs


NOUNS_OF_KIND = {kind: [noun for noun in read_nouns() if noun.kind == kind] for kind in NOUNS}
VERBS_OF_FRAME = {frame: [verb for verb in read_verbs() if verb.frame == frame] for frame in VERBS}
ENGLISH_PAST_FORMS = {base: forms for base, *forms in map(str.split, IRREGULAR_ENGLISH.split(","))}
