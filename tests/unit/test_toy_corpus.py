"""Test what the grammar of `modular-fairseq toy-corpus` says in both languages, and which files it writes."""

import hashlib
import os
from collections import Counter, defaultdict
from itertools import combinations

import pytest
from sacrebleu.metrics import BLEU

from modular_fairseq_cli.main import main
from modular_fairseq_cli.toy_corpus import english, german, lexicon, sampler
from modular_fairseq_cli.toy_corpus.command import MAX_SENTENCES
from modular_fairseq_cli.toy_corpus.documents import LENGTH, TOPICS, arrange
from modular_fairseq_cli.toy_corpus.meaning import Clause, NounPhrase, RelativeClause

ME, YOU, HE, SHE, WE, THEY = lexicon.PRONOUNS
FILES = [f"{split}.{language}" for split in ("train", "valid", "test") for language in ("de", "en")]


def noun_phrase(determiner, singular, kind="person", plural=False, adjective="", relative=None):
    (noun,) = (noun for noun in lexicon.NOUNS_OF_KIND[kind] if noun.singular == singular)
    return NounPhrase(noun, plural, determiner, adjective, relative)


def verb(infinitive):
    particle, _, rest = infinitive.rpartition("+")
    (found,) = (
        v
        for verbs in lexicon.VERBS_OF_FRAME.values()
        for v in verbs
        if (v.particle, v.infinitive) == (particle, rest)
    )
    return found


def clause(infinitive, subject, accusative=None, dative=None, **rest):
    arguments = {"nominative": subject, "accusative": accusative, "dative": dative}
    return Clause(verb(infinitive), {case: phrase for case, phrase in arguments.items() if phrase}, **rest)


MAN, WOMAN, CHILD, DOCTOR = (noun_phrase("d", word) for word in ("mann", "frau", "kind", "arzt"))
CHILDREN = noun_phrase("d", "kind", plural=True)
DOG = noun_phrase("d", "hund", "animal")
A_DOG = noun_phrase("ein", "hund", "animal")
BOOK = noun_phrase("d", "buch", "text")

STATEMENTS = {
    "article, adjective and noun agree": (
        clause(
            "sehen",
            noun_phrase("d", "mann", adjective="alt"),
            noun_phrase("ein", "hund", "animal", adjective="klein"),
        ),
        "der alte mann sieht einen kleinen hund",
        "the old man sees a small dog",
    ),
    "an adjective after ein shows the gender": (
        clause(
            "helfen",
            noun_phrase("ein", "mädchen", adjective="alt"),
            dative=noun_phrase("dies", "frau", adjective="neu"),
        ),
        "ein altes mädchen hilft dieser neuen frau",
        "an old girl helps this new woman",
    ),
    "a bare plural, a dative plural": (
        clause(
            "folgen",
            noun_phrase("ein", "mann", plural=True, adjective="gut"),
            dative=noun_phrase("unser", "lehrer", plural=True),
        ),
        "gute männer folgen unseren lehrern",
        "good men follow our teachers",
    ),
    "the verb agrees: you": (
        clause("verlassen", YOU, noun_phrase("d", "turm", "building")),
        "du verlässt den turm",
        "you leave the tower",
    ),
    "the verb agrees: we": (clause("sehen", WE, DOG), "wir sehen den hund", "we see the dog"),
    "a separable verb": (clause("an+rufen", HE, DOCTOR), "er ruft den arzt an", "he calls the doctor"),
    "perfect with haben": (
        clause("an+rufen", HE, DOCTOR, mode="perfect"),
        "er hat den arzt angerufen",
        "he has called the doctor",
    ),
    "perfect with sein": (
        clause("ein+schlafen", CHILD, mode="perfect"),
        "das kind ist eingeschlafen",
        "the child has fallen asleep",
    ),
    "a modal verb": (
        clause("an+rufen", ME, DOCTOR, mode="wollen"),
        "ich will den arzt anrufen",
        "i want to call the doctor",
    ),
    "negation": (
        clause("an+rufen", HE, DOCTOR, negated=True),
        "er ruft den arzt nicht an",
        "he does not call the doctor",
    ),
    "negation of the noun phrase": (
        clause("sehen", HE, noun_phrase("kein", "hund", "animal"), mode="perfect", negated=True),
        "er hat keinen hund gesehen",
        "he has not seen a dog",
    ),
    "what must not be": (
        clause("schlafen", SHE, mode="dürfen", negated=True),
        "sie darf nicht schlafen",
        "she must not sleep",
    ),
    "what need not be": (
        clause("schlafen", SHE, mode="müssen", negated=True),
        "sie muss nicht schlafen",
        "she does not have to sleep",
    ),
    "an adverb that becomes a verb": (
        clause("sehen", SHE, A_DOG, mode="gern"),
        "sie sieht gern einen hund",
        "she likes to see a dog",
    ),
    "present as future": (
        clause("sehen", HE, DOG, time="morgen"),
        "er sieht morgen den hund",
        "he will see the dog tomorrow",
    ),
    "present as progressive": (
        clause("schlafen", ME, time="jetzt"),
        "ich schlafe jetzt",
        "i am sleeping now",
    ),
    "perfect as past": (
        clause("sehen", HE, DOG, mode="perfect", time="gestern"),
        "er hat gestern den hund gesehen",
        "he saw the dog yesterday",
    ),
    "two objects": (
        clause("geben", MAN, BOOK, CHILD),
        "der mann gibt dem kind das buch",
        "the man gives the book to the child",
    ),
    "the dative likes": (
        clause("gefallen", BOOK, dative=CHILDREN),
        "das buch gefällt den kindern",
        "the children like the book",
    ),
    "a compound": (
        clause("auf+machen", HE, noun_phrase("d", "küchenfenster", "opening", plural=True)),
        "er macht die küchenfenster auf",
        "he opens the kitchen windows",
    ),
    "die bank: bench": (
        clause("streichen", HE, noun_phrase("d", "bank", "furniture")),
        "er streicht die bank",
        "he paints the bench",
    ),
    "die bank: bank": (
        clause("verklagen", HE, noun_phrase("d", "bank", "institution")),
        "er verklagt die bank",
        "he sues the bank",
    ),
    "das schloss: castle": (
        clause("bauen", HE, noun_phrase("d", "schloss", "building")),
        "er baut das schloss",
        "he builds the castle",
    ),
    "das schloss: lock": (
        clause("ersetzen", HE, noun_phrase("d", "schloss", "fixture")),
        "er ersetzt das schloss",
        "he replaces the lock",
    ),
    "einstellen: hire": (
        clause("ein+stellen", HE, noun_phrase("d", "leiter")),
        "er stellt den leiter ein",
        "he hires the manager",
    ),
    "einstellen: adjust": (
        clause("ein+stellen", HE, noun_phrase("d", "ofen", "device")),
        "er stellt den ofen ein",
        "he adjusts the oven",
    ),
    "particle an": (
        clause("an+machen", HE, noun_phrase("d", "lampe", "device")),
        "er macht die lampe an",
        "he turns on the lamp",
    ),
    "particle zu": (
        clause("zu+machen", HE, noun_phrase("d", "tür", "opening")),
        "er macht die tür zu",
        "he closes the door",
    ),
    "sie: she": (clause("arbeiten", SHE), "sie arbeitet", "she works"),
    "sie: they": (clause("arbeiten", THEY), "sie arbeiten", "they work"),
    "den jungen: the boy": (
        clause("sehen", ME, noun_phrase("d", "junge")),
        "ich sehe den jungen",
        "i see the boy",
    ),
    "den jungen: the boys": (
        clause("danken", ME, dative=noun_phrase("d", "junge", plural=True)),
        "ich danke den jungen",
        "i thank the boys",
    ),
    "groß: tall": (
        clause("schlafen", noun_phrase("mein", "frau", adjective="groß")),
        "meine große frau schläft",
        "my tall woman sleeps",
    ),
    "groß: big": (
        clause("sehen", ME, noun_phrase("mein", "katze", "animal", adjective="groß")),
        "ich sehe meine große katze",
        "i see my big cat",
    ),
    "a subject relative clause": (
        clause(
            "schlafen",
            noun_phrase("d", "mann", relative=RelativeClause("nominative", clause("an+rufen", MAN, DOCTOR))),
        ),
        "der mann , der den arzt anruft , schläft",
        "the man who calls the doctor sleeps",
    ),
    "an object relative clause": (
        clause(
            "schlafen",
            noun_phrase("d", "mann", relative=RelativeClause("accusative", clause("an+rufen", DOCTOR, MAN))),
        ),
        "der mann , den der arzt anruft , schläft",
        "the man whom the doctor calls sleeps",
    ),
    "a dative relative clause": (
        clause(
            "schlafen",
            noun_phrase(
                "d",
                "kind",
                plural=True,
                relative=RelativeClause("dative", clause("zu+hören", WOMAN, dative=CHILDREN)),
            ),
        ),
        "die kinder , denen die frau zuhört , schlafen",
        "the children whom the woman listens to sleep",
    ),
}


@pytest.mark.parametrize(("meaning", "german_text", "english_text"), STATEMENTS.values(), ids=STATEMENTS)
def test_statement(meaning, german_text, english_text):
    assert german.main_clause(meaning, "nominative") == german_text
    assert english.statement(meaning) == english_text


@pytest.mark.parametrize(
    ("meaning", "prefield", "german_text", "english_text"),
    [
        (clause("sehen", WOMAN, DOG), "accusative", "den hund sieht die frau", "the woman sees the dog"),
        (
            clause("helfen", WOMAN, dative=CHILD),
            "dative",
            "dem kind hilft die frau",
            "the woman helps the child",
        ),
        (
            clause("an+sehen", WOMAN, CHILDREN),
            "accusative",
            "die kinder sieht die frau an",
            "the woman looks at the children",
        ),
        (
            clause("an+rufen", HE, DOCTOR, time="morgen"),
            "time",
            "morgen ruft er den arzt an",
            "tomorrow he will call the doctor",
        ),
        (clause("warten", HE, place="am see"), "place", "am see wartet er", "by the lake he waits"),
        (
            clause("schlafen", HE, mode="perfect", time="gestern"),
            "time",
            "gestern hat er geschlafen",
            "yesterday he slept",
        ),
    ],
)
def test_finite_verb_is_second_whatever_comes_first(meaning, prefield, german_text, english_text):
    assert german.main_clause(meaning, prefield) == german_text
    assert english.statement(meaning, prefield) == english_text


@pytest.mark.parametrize(
    ("subject", "moved", "marked"),
    [
        (WOMAN, CHILD, False),
        (WOMAN, CHILDREN, True),  # by agreement: die kinder sieht die frau
        (WOMAN, MAN, True),  # den mann
        (MAN, WOMAN, True),  # die frau sieht der mann
        (HE, WOMAN, True),
        (SHE, WOMAN, False),
        (SHE, CHILDREN, True),
        (THEY, CHILDREN, False),
    ],
)
def test_object_moves_only_where_case_or_agreement_shows_it(subject, moved, marked):
    assert german.roles_are_marked(subject, moved, "accusative") is marked


@pytest.mark.parametrize(
    ("meaning", "text"),
    [
        (clause("an+rufen", HE, DOCTOR), "er den arzt anruft"),
        (clause("an+rufen", HE, DOCTOR, mode="perfect"), "er den arzt angerufen hat"),
        (clause("an+rufen", THEY, DOCTOR, mode="sollen", negated=True), "sie den arzt nicht anrufen sollen"),
        (clause("zurück+geben", WE, BOOK, HE, time="heute"), "wir ihm heute das buch zurückgeben"),
    ],
)
def test_finite_verb_is_last_in_a_subordinate_clause(meaning, text):
    assert german.subordinate_clause(meaning) == text


def test_zu_stands_between_particle_and_infinitive():
    assert german.infinitive_clause(clause("an+rufen", HE, DOCTOR)) == "den arzt anzurufen"
    assert german.infinitive_clause(clause("sehen", HE, DOG)) == "den hund zu sehen"
    assert english.infinitive_clause(clause("an+rufen", HE, DOCTOR)) == "to call the doctor"


@pytest.mark.parametrize(
    ("meaning", "german_text", "english_text"),
    [
        (clause("an+rufen", HE, DOCTOR), "ruft er den arzt an", "does he call the doctor"),
        (
            clause("an+rufen", HE, DOCTOR, mode="perfect", time="gestern"),
            "hat er gestern den arzt angerufen",
            "did he call the doctor yesterday",
        ),
        (
            clause("sehen", YOU, DOG, mode="können", negated=True),
            "kannst du den hund nicht sehen",
            "can you not see the dog",
        ),
        (clause("gefallen", BOOK, dative=WOMAN), "gefällt das buch der frau", "does the woman like the book"),
    ],
)
def test_polar_question(meaning, german_text, english_text):
    assert german.main_clause(meaning) == german_text
    assert english.question(meaning) == english_text


@pytest.mark.parametrize(
    ("kind", "seed", "german_text", "english_text"),
    [
        (
            "statement",
            5,
            "meinen gartentisch sollen leiter streichen .",
            "managers should paint my garden table .",
        ),
        (
            "statement_with_relative_clause",
            5,
            "das mädchen , dem er hilft , stellt morgen seine pläne zu hause vor .",
            "the girl whom he helps will present his plans at home tomorrow .",
        ),
        ("polar_question", 2, "bauen sie jeden tag den turm ?", "do they build the tower every day ?"),
        ("subject_question", 1, "wer ist aufgestanden ?", "who has stood up ?"),
        ("object_question", 5, "wen holt dieses mädchen ab ?", "whom does this girl fetch ?"),
        (
            "adverb_question",
            2,
            "warum sieht das mädchen eine frau an ?",
            "why does the girl look at a woman ?",
        ),
        (
            "subordinate_clause_first",
            4,
            "weil er wartet , besuchst du deinen nachbarn .",
            "because he waits , you visit your neighbour .",
        ),
        (
            "subordinate_clause_last",
            4,
            "du besuchst deinen nachbarn , weil er wartet .",
            "you visit your neighbour because he waits .",
        ),
        ("object_clause", 3, "sie kann sagen , dass sie aufstehen .", "she can say that they stand up ."),
        ("infinitive_clause", 3, "sie kann versuchen , aufzustehen .", "she can try to stand up ."),
        (
            "purpose_clause",
            3,
            "sie schickt mir die briefe , um das ziel zu verfolgen .",
            "she sends the letters to me in order to pursue the goal .",
        ),
    ],
)
def test_kinds_of_sentence(kind, seed, german_text, english_text):
    assert getattr(sampler.Sampler(seed), kind)() == (german_text, english_text)


def narrow_grammar(monkeypatch):
    """Leave so few words that many sentences are drawn twice.

    The sentences are short, and their nouns have two senses or are persons whose forms coincide.
    """
    nouns_kept = {"bank", "schloss", "hahn", "birne", "gericht", "decke", "leiter", "junge", "frau", "kind"}
    verbs_kept = {
        "sehen",
        "stellen",
        "verklagen",
        "streichen",
        "kochen",
        "ersetzen",
        "helfen",
        "geben",
        "gefallen",
        "schlafen",
    }
    for kind, nouns in lexicon.NOUNS_OF_KIND.items():
        monkeypatch.setitem(
            lexicon.NOUNS_OF_KIND, kind, [noun for noun in nouns if noun.singular in nouns_kept] or nouns[:1]
        )
    for frame, verbs in lexicon.VERBS_OF_FRAME.items():
        monkeypatch.setitem(
            lexicon.VERBS_OF_FRAME,
            frame,
            [verb for verb in verbs if verb.infinitive in verbs_kept] or verbs[:1],
        )
    monkeypatch.setattr(sampler, "VERBS_WITH_PERSON", [verb("sehen"), verb("helfen")])
    monkeypatch.setattr(sampler, "ADJECTIVES", ["groß"])
    monkeypatch.setattr(sampler, "DETERMINERS", ["d", "ein"])
    monkeypatch.setattr(sampler, "MODES", ["present", "perfect"])
    monkeypatch.setattr(sampler, "TOKENS", range(4, 10))


def test_each_german_sentence_has_one_translation(monkeypatch):
    narrow_grammar(monkeypatch)
    source = sampler.Sampler(3)
    translations = defaultdict(Counter)
    for _ in range(20_000):
        german_text, english_text = source.sentence()
        translations[german_text][english_text] += 1
    assert sum(count.total() > 1 for count in translations.values()) > 2000
    assert {text: count for text, count in translations.items() if len(count) > 1} == {}


def test_no_verb_takes_two_senses_of_a_noun():
    nouns = [noun for nouns in lexicon.NOUNS_OF_KIND.values() for noun in nouns]
    ambiguous = [
        (a, b)
        for a, b in combinations(nouns, 2)
        if {a.singular, a.plural} & {b.singular, b.plural} and a.english != b.english
    ]
    assert sorted({a.singular for a, _ in ambiguous}) == [
        "bank",
        "birne",
        "decke",
        "gericht",
        "hahn",
        "leiter",
        "schloss",
    ]
    for a, b in ambiguous:
        for verbs in lexicon.VERBS_OF_FRAME.values():
            assert [v.infinitive for v in verbs if {a.kind, b.kind} <= set(v.senses)] == []


def write_corpus(folder, *options):
    main(["toy-corpus", str(folder), *options])
    return {name: (folder / name).read_text(encoding="utf-8").splitlines() for name in FILES}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("toy"), "--train", "4000", "--valid", "100", "--test", "200")


def digest(folder):
    return hashlib.sha256(b"".join((folder / name).read_bytes() for name in FILES)).hexdigest()


def test_same_seed_same_bytes_on_every_machine(tmp_path):
    sizes = ["--train", "1000", "--valid", "10", "--test", "10"]
    for name, seed in (("a", "7"), ("b", "7"), ("c", "8")):
        write_corpus(tmp_path / name, *sizes, "--seed", seed)
    assert (
        digest(tmp_path / "a")
        == digest(tmp_path / "b")
        == "496940bfc566d89b30d5902e0076a495db1f9e889b59844e93dd620cf5d750c7"
    )
    assert digest(tmp_path / "c") != digest(tmp_path / "a")


def test_sizes_and_lengths(corpus):
    assert [len(corpus[name]) for name in FILES] == [4000, 4000, 100, 100, 200, 200]
    lengths = {len(line.split(" ")) for lines in corpus.values() for line in lines}
    assert lengths == set(range(4, 17))


def test_no_sentence_occurs_twice(corpus):
    for language in ("de", "en"):
        lines = [line for split in ("train", "valid", "test") for line in corpus[f"{split}.{language}"]]
        assert len(lines) == len(set(lines)) == 4300


def test_words_of_valid_and_test_occur_in_train(corpus):
    for language in ("de", "en"):
        words = {
            name: set(" ".join(corpus[f"{name}.{language}"]).split()) for name in ("train", "valid", "test")
        }
        assert words["valid"] | words["test"] <= words["train"]


def test_text_is_lower_case_tokens(corpus):
    for lines in corpus.values():
        for line in lines:
            assert line == line.lower()
            assert line[-2:] in (" .", " ?")
            assert all(token in {".", ",", "?"} or token.isalpha() for token in line.split(" "))


def likeliest_translations(pairs, iterations=6):
    """Return the most probable English word for each German word, by IBM model 1."""
    probability = defaultdict(lambda: 1.0)
    for _ in range(iterations):
        count, total = defaultdict(float), defaultdict(float)
        for source, target in pairs:
            for word in target:
                norm = sum(probability[word, other] for other in source)
                for other in source:
                    share = probability[word, other] / norm
                    count[word, other] += share
                    total[other] += share
        probability = defaultdict(
            float, {(word, other): value / total[other] for (word, other), value in count.items()}
        )
    best = {}
    for (word, other), value in probability.items():
        best[other] = max(best.get(other, (0.0, "")), (value, word))
    return {other: word for other, (_, word) in best.items()}


def test_neither_copying_nor_word_for_word_translation_scores(corpus):
    pairs = [
        (source.split(), target.split())
        for source, target in zip(corpus["train.de"][:2000], corpus["train.en"][:2000], strict=True)
    ]
    dictionary = likeliest_translations(pairs)
    assert [dictionary[word] for word in ("hund", "buch", "nicht", "er")] == ["dog", "book", "not", "he"]
    word_for_word = [
        " ".join(dictionary.get(word, word) for word in line.split()) for line in corpus["test.de"]
    ]
    bleu = BLEU(tokenize="none", force=True)
    assert bleu.corpus_score(corpus["test.de"], [corpus["test.en"]]).score < 3
    assert 5 < bleu.corpus_score(word_for_word, [corpus["test.en"]]).score < 30


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--train", "0"], "--train 0: is not a number of sentences; give at least 1"),
        (["--test", "-3"], "--test -3: is not a number of sentences; give at least 1"),
        (["--train", str(MAX_SENTENCES)], "give at most 1000000 sentences together"),
        (["--train", "5"], "--train 5: has too few words for --valid 300; give a larger --train"),
        (["--seed", "-1"], "--seed -1: give 0 or more"),
    ],
)
def test_bad_options_are_refused(tmp_path, options, message):
    with pytest.raises(SystemExit, match=f"toy-corpus: error: .*{message}$"):
        main(["toy-corpus", str(tmp_path / "out"), *options])
    assert list(tmp_path.iterdir()) == []


SMALL = ["--train", "500", "--valid", "2", "--test", "2"]


def test_out_that_is_a_file_is_refused(tmp_path):
    file = tmp_path / "file"
    file.write_text("kept")
    with pytest.raises(SystemExit, match="file: is a file; give a folder, which need not exist yet$"):
        main(["toy-corpus", str(file), *SMALL])
    with pytest.raises(
        SystemExit,
        match=r"file/out: cannot be written \(Not a directory\); give a folder that you may write to$",
    ):
        main(["toy-corpus", str(file / "out"), *SMALL])
    assert file.read_text() == "kept"


def test_a_failed_write_leaves_nothing_unfinished(tmp_path, monkeypatch):
    def replace(*paths):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(SystemExit, match=r"cannot be written \(No space left on device\)"):
        main(["toy-corpus", str(tmp_path), *SMALL])
    assert not list(tmp_path.iterdir())


def test_another_text_of_the_same_name_is_not_overwritten(tmp_path):
    """It may be a corpus of the user's own, such as the text of a language model in train.txt."""
    write_corpus(tmp_path, *SMALL)
    first = digest(tmp_path)
    write_corpus(tmp_path, *SMALL)  # the same corpus again
    with pytest.raises(SystemExit, match="train.de: exists, and is a file of yours or was made with other"):
        write_corpus(tmp_path, *SMALL, "--seed", "2")
    assert digest(tmp_path) == first
    (tmp_path / "own/train.txt").mkdir(parents=True)
    (tmp_path / "own/valid.txt").write_text("my text\n")
    for taken in ("train", "valid"):
        with pytest.raises(SystemExit, match=f"{taken}.txt: exists, and is a file of yours or was made"):
            main(["toy-corpus", str(tmp_path / "own"), *SMALL, "--documents"])
        if taken == "train":
            (tmp_path / "own/train.txt").rmdir()
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["valid.txt"]


def test_a_corpus_of_another_kind_is_not_mixed_with_this_one(tmp_path):
    """Files input0 and input1 of pairs, and input0 of single sentences, would be read as pairs."""
    main(["toy-corpus", str(tmp_path), *SMALL, "--classes", "topic"])
    before = sorted(tmp_path.iterdir())
    with pytest.raises(
        SystemExit, match="has train.input1 of another kind of corpus, .*; give another folder"
    ):
        main(["toy-corpus", str(tmp_path), *SMALL, "--classes", "plural"])
    with pytest.raises(SystemExit, match="has train.input0 of another kind of corpus"):
        main(["toy-corpus", str(tmp_path), *SMALL])
    assert sorted(tmp_path.iterdir()) == before


def test_documents_are_about_one_thing(tmp_path):
    sizes = ["--train", "400", "--valid", "30", "--test", "30"]
    main(["toy-corpus", str(tmp_path / "pairs"), *sizes])
    main(["toy-corpus", str(tmp_path / "text"), "--documents", *sizes])
    for split in ("train", "valid", "test"):
        text = (tmp_path / f"text/{split}.txt").read_text()
        found = [document.splitlines() for document in text.strip("\n").split("\n\n")]
        sentences = (tmp_path / f"pairs/{split}.en").read_text().splitlines()
        assert sorted(sum(found, [])) == sorted(sentences)
        assert max(map(len, found)) <= LENGTH and (split != "train" or len(found[0]) == LENGTH)
        for document in found:
            topics = [{TOPICS[word] for word in line.split() if word in TOPICS} for line in document]
            if named := [each for each in topics if each]:
                assert set.intersection(*named)


def test_a_sentence_is_put_into_the_longest_document_about_a_thing_that_it_names():
    one, other = [*dict.fromkeys(TOPICS.values())][:2]
    both, neither = f"{one} and {other}", "yes ."
    assert [*arrange([one, other, other, both, neither])] == [[one], [other, other, both, neither]]
