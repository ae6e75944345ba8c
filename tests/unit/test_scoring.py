"""Test that `modular-fairseq score` equals sacrebleu's command to the last digit.

This holds for every form of file. Wrong files are refused.
"""

import gzip
import io
import math
import os
import random
import sys
import urllib.request
from statistics import mean, stdev

import pytest
from sacrebleu import DATASETS
from sacrebleu.metrics import BLEU

from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.main import main
from modular_fairseq_cli.scoring import (
    Output,
    compare_seeds,
    paired_bootstrap,
    read_lines,
    read_output,
    score,
    summarize,
)
from modular_fairseq_cli.scoring.intervals import MARKED, of_scores
from modular_fairseq_cli.scoring.metrics import split_compounds
from modular_fairseq_cli.scoring.significance import welch_p
from tests.score_files import (
    REFERENCE,
    SEPARATORS,
    generated,
    run,
    run_json,
    write_lines,
    write_systems,
)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_systems(tmp_path_factory.mktemp("scores"))


def test_the_default_is_a_thousand_samples(files, tmp_path):
    found = run_json(
        tmp_path,
        "--reference",
        files / "test.en",
        files / "a1.txt",
        "--baseline",
        files / "b1.txt",
        "--metrics",
        "bleu",
    )
    reference, ours, base = (
        (files / name).read_text().removesuffix("\n").split("\n") for name in ("test.en", "a1.txt", "b1.txt")
    )
    ((entry,),) = ([pair["bleu"] for pair in each["bootstrap"]] for each in found["baselines"])
    assert found["samples"] == entry["samples"] == 1000
    assert [{"bleu": entry}] == paired_bootstrap(reference, base, [ours])


def test_order_is_by_number_and_the_best_of_several_counts(tmp_path):
    lines = [
        *[
            "S-10\tx",
            "T-10\tt ten",
            "H-10\t-2.5\tpoor",
            "H-10\t-1.5e-05\tten",
            "H-10\t-0.5\tfair",
            "H-2\t-9\ttwo",
            "T-2\tt two",
        ],
        *[
            f"{kind}"
            for number in (9, 8, 7, 6, 5, 4, 3, 1)
            for kind in (f"H-{number}\t-1\tn{number}", f"T-{number}\tt n{number}")
        ],
        *["T-0\tt zero", "H-0\t-0.5\tfirst", "H-0\t-0.5\tequal"],
    ]
    output = read_output(write_lines(tmp_path / "o", lines), "en")
    assert output.hypotheses == ["first", "n1", "two", *(f"n{number}" for number in range(3, 10)), "ten"]
    assert output.tokens == output.hypotheses
    assert output.reference_tokens == [
        "t zero",
        "t n1",
        "t two",
        *(f"t n{number}" for number in range(3, 10)),
        "t ten",
    ]


def test_tokens_are_detokenized_by_the_rules_of_the_language(tmp_path):
    line = "the man &apos;s well @-@ known &quot; R &amp; D &quot; , l&apos; eau !"
    path = write_lines(tmp_path / "o", generated([line]))
    assert read_output(path, "en").hypotheses == ["the man's well-known \"R & D\", l' eau!"]
    assert read_output(path, "fr").hypotheses == ["the man 's well-known \"R & D\", l'eau !"]
    assert read_output(path, "en").tokens == [line]
    assert (
        read_output(path, detokenize="none").hypotheses
        == read_output(path, detokenize="none").tokens
        == [line]
    )


def test_plain_text_is_taken_as_it_is_unless_told_otherwise(tmp_path):
    path = write_lines(tmp_path / "o", ["it &apos;s ok .", "T-shirts and H-1 visas", "S-1"])
    output = read_output(path, "en")
    assert output.hypotheses == ["it &apos;s ok .", "T-shirts and H-1 visas", "S-1"]
    assert output.tokens is None and output.reference_tokens is None
    assert read_output(path, "en", "moses").hypotheses[0] == "it's ok."


def test_the_ending_of_a_compressed_reference_is_no_language(files, tmp_path):
    (tmp_path / "reference.gz").write_bytes(gzip.compress((files / "test.en").read_bytes()))
    with pytest.raises(
        UsageError, match="the tokens cannot be detokenised without a language; give --target"
    ):
        run("--reference", tmp_path / "reference.gz", files / "a1.out")


def test_an_empty_translation_and_separators_within_a_line_are_kept(tmp_path):
    output = read_output(
        write_lines(tmp_path / "o", generated(["", SEPARATORS], ["", "b"]), end=" \r\n"), detokenize="none"
    )
    assert output.hypotheses == ["", SEPARATORS]
    assert output.reference_tokens == ["", "b"]


def test_what_fairseq_has_decoded_is_taken_from_its_d_lines(tmp_path):
    def read(hypothesis, decoded):
        lines = ["T-0\ta target .", f"H-0\t-1\t{hypothesis}", f"D-0\t-1\t{decoded}"]
        return read_output(write_lines(tmp_path / "o", lines), "en")

    output = read("it &apos;s", "it's .")  # --tokenizer moses: text, on both sides
    assert (output.hypotheses, output.tokens, output.reference_tokens) == (["it's ."], None, None)
    output = read("\u2581it \u2581s", "it s .")  # --bpe sentencepiece
    assert (output.hypotheses, output.tokens) == (["it s ."], None)
    assert read("a @@ b", "a @@ b").tokens == ["a @@ b"]
    output = read("in@@ deed .", "indeed .")  # --bpe subword_nmt: tokens, on both sides
    assert (output.hypotheses, output.tokens, output.reference_tokens) == (
        ["indeed."],
        ["indeed ."],
        ["a target ."],
    )


def test_compounds_are_split_at_hyphens_between_characters_only():
    assert (
        split_compounds("a well-known - up-to-date -x y-")
        == "a well ##AT##-##AT## known - up ##AT##-##AT## to ##AT##-##AT## date -x y-"
    )
    assert split_compounds(
        "a well @-@ known man&apos;s &quot;-"
    ) == "a well @-@ known man&apos;s &quot; ##AT##-##AT##".replace(" ##AT##-##AT##", "-")
    assert split_compounds("&quot;-&quot;") == "&quot; ##AT##-##AT## &quot;"


@pytest.mark.parametrize("lowercase", [False, True])
def test_token_scores_are_of_h_against_t_lines(lowercase):
    hypotheses = ["The well-known man &apos;s R &amp; D - dog barks .", "so it goes on and on"]
    references = ["the well-known dog &apos;s R &amp; D - man barks .", "so it goes on and off"]
    output = Output("o", ["x"] * 2, hypotheses, references)
    found = score(output, ["y"] * 2, compound_split=True, lowercase=lowercase)
    options = {"tokenize": "none", "force": True, "lowercase": lowercase}
    assert found["tokenized_bleu"] == BLEU(**options).corpus_score(hypotheses, [references]).score
    split = [[line.replace("l-k", "l ##AT##-##AT## k") for line in side] for side in (hypotheses, references)]
    assert (
        found["compound_split_bleu"]
        == BLEU(**options).corpus_score(split[0], [split[1]]).score
        != found["tokenized_bleu"]
    )
    assert (
        "tok:none" in found["tokenized_bleu_signature"]
        and "tok:none" in found["compound_split_bleu_signature"]
    )


def test_hyphens_that_the_tokenizer_has_split_are_not_split_again():
    hypotheses, references = ["a well @-@ known man barks &apos;"], ["the well @-@ known dog barks &apos;"]
    found = score(Output("o", ["x"], hypotheses, references), ["y"], language="de")
    assert found["compound_split_bleu"] == found["tokenized_bleu"] > 5


@pytest.mark.parametrize(
    "options, shown",
    [
        ([], False),
        (["--compound-split"], True),
        (["--target-lang", "de"], True),
        (["--target-lang", "de", "--no-compound-split"], False),
    ],
)
def test_compound_splitting_is_for_german_unless_told_otherwise(files, tmp_path, options, shown, capsys):
    found = run_json(
        tmp_path, "--reference", files / "test.en", files / "a1.out", "--metrics", "bleu", *options
    )
    assert ("compound_split_bleu" in found["files"][0]) == shown
    assert "tokenized_bleu" in found["files"][0]
    text = capsys.readouterr().out
    assert ("compound-split BLEU (comparable to paper)" in text) == shown
    assert "tokenised BLEU (comparable to paper)" in text


def test_mean_and_deviation_over_seeds():
    seeds = [
        {"bleu": 1.0, "ter": 5.0},
        {"bleu": 2.0, "ter": 5.0},
        {"bleu": 6.0, "tokenized_bleu": 3.0, "ter": 5.0},
    ]
    assert summarize(seeds[:2])["bleu"] == {"mean": 1.5, "std": 0.5**0.5}
    assert summarize(seeds) == {"bleu": {"mean": 3.0, "std": 7**0.5}, "ter": {"mean": 5.0, "std": 0.0}}
    assert summarize(seeds[2:]) == {
        key: {"mean": value, "std": None} for key, value in (("bleu", 6), ("ter", 5), ("tokenized_bleu", 3))
    }


def test_differences_over_seeds():
    assert compare_seeds([0.0, 2.0], [4.0, 8.0]) == {
        "difference": 5.0,
        "std": 2**0.5,
        "welch_p": pytest.approx(0.2, abs=0.01),
    }
    # 2 degrees: 1 - t / sqrt(t^2 + 2).
    assert compare_seeds([0.0, 2.0], [4.0, 6.0])["welch_p"] == pytest.approx(1 - (8 / 10) ** 0.5)
    # 1 degree.
    assert compare_seeds([5.0, 5.0], [0.0, 2.0])["welch_p"] == pytest.approx(1 - math.atan(4) * 2 / math.pi)
    assert compare_seeds([1.0], [2.0, 4.0]) == {"difference": 2.0, "std": None, "welch_p": None}
    assert compare_seeds([1.0, 2.0], [2.0, 4.0, 6.0])["std"] is None
    assert compare_seeds([1.0, 1.0], [2.0, 2.0]) == {"difference": 1.0, "std": 0.0, "welch_p": None}


def test_welchs_p_is_that_of_scipy():
    from scipy.stats import ttest_ind

    numbers = random.Random(1)
    for _ in range(200):
        samples = [
            [numbers.gauss(mean, deviation) for _ in range(numbers.randint(2, 7))]
            for mean, deviation in ((30, 0.1), (30 + numbers.choice([0, 0.3, 5]), numbers.choice([0.1, 3])))
        ]
        expected = ttest_ind(*samples, equal_var=False).pvalue
        assert welch_p(*samples) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_seeds_are_compared_in_pairs_with_each_baseline(files, tmp_path, capsys):
    def paths(kind, numbers="123"):
        return [str(files / f"{kind}{number}.txt") for number in numbers]

    options = ["--samples", 20, "--metrics", "bleu", "chrf"]
    found = run_json(
        tmp_path,
        "--reference",
        files / "test.en",
        *paths("a"),
        "--baseline",
        *paths("b"),
        "--baseline",
        *paths("b", "2"),
        *options,
    )
    ours, (pairs, single) = [each["bleu"] for each in found["files"]], found["baselines"]
    theirs = [each["bleu"] for each in pairs["files"]]
    assert [(each["file"], each["baseline"]) for each in pairs["bootstrap"]] == list(
        zip(paths("a"), paths("b"), strict=True)
    )
    assert [each["bleu"]["difference"] for each in pairs["bootstrap"]] == [
        a - b for a, b in zip(ours, theirs, strict=True)
    ]
    assert found["summary"]["bleu"] == {"mean": pytest.approx(mean(ours)), "std": pytest.approx(stdev(ours))}
    assert pairs["seeds"]["bleu"]["difference"] == pytest.approx(mean(ours) - mean(theirs))
    assert pairs["seeds"]["bleu"]["std"] == pytest.approx(
        stdev([a - b for a, b in zip(ours, theirs, strict=True)])
    )
    assert 0 < pairs["seeds"]["bleu"]["welch_p"] < 0.5
    assert {each["baseline"] for each in single["bootstrap"]} == set(paths("b", "2"))
    assert single["seeds"]["bleu"] == {
        "difference": pytest.approx(mean(ours) - theirs[1]),
        "std": None,
        "welch_p": None,
    }

    references = read_lines(files / "test.en")
    outputs = [[read_lines(path) for path in paths(kind)] for kind in "ba"]
    expected = of_scores(BLEU(references=[references]), [[pair] for pair in zip(*outputs, strict=True)])
    assert pairs["intervals"]["bleu"] == pytest.approx(expected._asdict()) and single["intervals"] == {}

    text = capsys.readouterr().out
    limits = f"[{expected.low:+.2f}, {expected.high:+.2f}] (p {expected.p_value:.4f})"
    (line,) = [line for line in text.splitlines() if line.endswith("95 % interval over seeds and sentences")]
    assert line.split("  ")[0].strip() == limits and MARKED not in text
    assert f"{mean(ours):.2f} ± {stdev(ours):.2f}" in text
    p = pairs["bootstrap"][1]["bleu"]["p_value"]
    assert f"{ours[1] - theirs[1]:+.2f} (p {p:.4f})" in text and f"{paths('a')[1]} - {paths('b')[1]}" in text
    assert f"(p {pairs['seeds']['chrf']['welch_p']:.4f})" in text


def test_an_interval_is_marked_if_seeds_agree_better_than_sentences_let_one_expect(tmp_path, capsys):
    right = [f"sentence {number} has these words" for number in range(60)]
    (tmp_path / "test.en").write_text("".join(f"{line}\n" for line in right))

    def translation(name):
        """Return the path of a translation with a wrong word in ten sentences."""
        wrong = random.Random(name).sample(range(60), 10)
        lines = [line.replace("these", "other") if at in wrong else line for at, line in enumerate(right)]
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
        return tmp_path / name

    system, baseline = ([translation(f"{name}{seed}") for seed in range(3)] for name in "ab")
    files = [tmp_path / "test.en", *system, "--baseline", *baseline]
    found = run_json(tmp_path, "--reference", *files, "--samples", 20, "--metrics", "bleu")
    interval = found["baselines"][0]["intervals"]["bleu"]
    assert interval["high"] - interval["low"] < 2 * interval["half_by_sentences"]
    limits = f"[{interval['low']:+.2f}, {interval['high']:+.2f}]† (p 1.0000)"
    text = capsys.readouterr().out
    assert limits in text and text.endswith(f"{MARKED}\n")


def test_the_bootstrap_is_silent_though_fairseq_logs(caplog):
    caplog.set_level("INFO")
    assert paired_bootstrap(["so it goes on"], ["so it goes"], [["so it is"]], samples=2)
    assert not caplog.records


def test_the_same_translations_do_not_differ_significantly(files):
    lines = (files / "a1.txt").read_text().removesuffix("\n").split("\n")
    ((entry,), other) = (
        [each["bleu"]] for each in paired_bootstrap(REFERENCE, lines, [lines, REFERENCE], samples=50)
    )
    assert entry["difference"] == 0 and entry["p_value"] == 1
    capitals = [line.upper() for line in lines]
    ((cased,),) = ([each["bleu"]] for each in paired_bootstrap(REFERENCE, lines, [capitals], lowercase=True))
    assert cased["difference"] == 0 and cased["p_value"] == 1
    assert other[0]["score"] == pytest.approx(100)
    assert other[0]["p_value"] == 1 / 51


def test_json_has_everything(files, tmp_path):
    found = run_json(tmp_path, "--reference", files / "test.en", files / "a1.out", files / "b1.txt")
    assert (found["reference"], found["sentences"], found["language"]) == (str(files / "test.en"), 60, "en")
    first, second = found["files"]
    assert first["path"] == str(files / "a1.out") and first["sentences"] == 60
    assert (
        first["made_by"] == "H- lines, detokenised by sacremoses (en)"
        and second["made_by"] == "lines of text, as they are"
    )
    assert "tokenized_bleu" in first and "tokenized_bleu" not in second
    assert found["versions"].keys() >= {"python", "sacrebleu", "sacremoses", "numpy", "scipy"}
    assert found["versions"]["sacrebleu"] in first["bleu_signature"]
    assert list(tmp_path.iterdir()) == [tmp_path / "scores.json"]


def test_the_text_has_scores_and_signatures(files, tmp_path, capsys):
    found = run_json(tmp_path, "--reference", files / "test.en", files / "a1.out")["files"][0]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["BLEU", "chrF2", "TER"] and lines[0].endswith(
        f"60 sentences of {files / 'test.en'}"
    )
    assert lines[1].split() == [
        *(f"{found[name]:.2f}" for name in ("bleu", "chrf", "ter", "tokenized_bleu")),
        str(files / "a1.out"),
    ]
    for line in (f"BLEU: {found['bleu_signature']}", f"TER (lower is better): {found['ter_signature']}"):
        assert line in lines


def test_words_on_what_was_compared(files, tmp_path):
    def notes(reference, *args):
        return run_json(tmp_path, "--reference", reference, *args, "--metrics", "bleu")["notes"]

    caseless = write_lines(tmp_path / "caseless.en", ["1 2 3 4 5", "6 7"])
    assert len(notes(caseless, caseless)) == 1
    lower = write_lines(tmp_path / "lower.en", [line.lower() for line in REFERENCE])
    reference, output = files / "test.en", files / "a1.out"
    assert notes(reference, output) == ["Hypotheses: H- lines, detokenised by sacremoses (en)."]
    assert any("reference has no capitals" in note for note in notes(lower, lower))
    assert any("a1.out has capitals" in note for note in notes(lower, output))
    assert any("lower.en has no capitals" in note for note in notes(reference, lower))
    assert not any("lower.en has" in note for note in notes(reference, lower, "--lowercase"))
    again = write_lines(tmp_path / "again.out", output.read_text().splitlines())
    assert any(
        "a1.out and" in note and "again.out are equal. If" in note for note in notes(reference, output, again)
    )
    assert not any("are equal" in note for note in notes(reference, output, "--baseline", again))
    turned = write_lines(tmp_path / "turned.en", [REFERENCE[0], *REFERENCE[:0:-1][:29], *REFERENCE[1:31]])
    assert any(note.startswith("Only 1 of 60 T- lines") for note in notes(turned, output))
    with pytest.raises(UsageError, match="no T- line has the letters of the reference"):
        notes(write_lines(tmp_path / "other.en", REFERENCE[::-1]), output)
    escaped = write_lines(tmp_path / "escaped.out", generated(["So &amp; so &lt;"], ["So &amp; so &lt;"]))
    assert len(notes(write_lines(tmp_path / "one.en", ["So & so <"]), escaped)) == 1
    gaps = write_lines(tmp_path / "gaps.en", ["", *REFERENCE[1:]])
    assert any(
        note == "1 of 60 sentences of the reference are empty, the first at 1."
        for note in notes(gaps, output)
    )
    assert any(
        "60 sentences are too few" in note
        for note in notes(reference, output, "--baseline", lower, "--samples", "5")
    )


GOOD = generated([f"word {number}" for number in range(60)], [f"word {number}" for number in range(60)])
H5 = next(index for index, line in enumerate(GOOD) if line.startswith("H-5\t"))


def without(*starts):
    return [line for line in GOOD if not line.startswith(starts)]


FILES = {
    "missing one": (without("H-5\t", "D-5\t"), r"lacks H-5 of 60 sentences"),
    "missing many": (without("H-1", "D-1"), r"lacks H-1, H-10, H-11, H-12, H-13 and 6 more of 60 sentences"),
    "no hypotheses": (without("H-", "D-"), r"lacks H-0, H-1, .* of 60 sentences"),
    "missing the last": (
        without(*(f"{kind}-59" for kind in "STHDP")),
        r"has 59 sentences and the reference 60",
    ),
    "missing target": (without("T-7\t"), r"lacks T-7 of 60 sentences"),
    "missing D": (without("D-7\t"), r"lacks D-7 of 60 sentences"),
    "huge number": ([*GOOD, "H-99999999999999\t-1\tx"], r"lacks H-60, .* more of 100000000000000 sentences"),
    "second run": ([*GOOD, *GOOD], rf"line {len(GOOD) + 2}: S-0 is present a second time"),
    "second run of one": (
        [line for line in GOOD if "-0\t" in line] * 2,
        r"line 6: S-0 is present a second time",
    ),
    "second run of H": (
        [line for line in GOOD if line[0] == "H"] * 2,
        r"line 61: H-0 is present a second time",
    ),
    "other D": ([*GOOD[:H5], GOOD[H5], *GOOD[H5:]], r"the D- lines do not match the H- lines"),
    "cut after number": ([*GOOD[:H5], "H-5"], rf"line {H5 + 1}: H-5 is cut short"),
    "cut in score": ([*GOOD[:H5], "H-5\t-0.52"], rf"line {H5 + 1}: H-5 is cut short"),
    "no score": (
        [*GOOD[:H5], "H-5\tsome words\tmore", *GOOD[H5 + 1 :]],
        rf"line {H5 + 1}: H-5 is cut short or damaged",
    ),
    "sub-words": (
        [line.replace("word 7", "wo@@ rd 7") for line in GOOD],
        r"H-7: the line has sub-word marks .* --remove-bpe to",
    ),
    "sentencepiece": (
        [line.replace("word 7", "\u2581word 7") for line in GOOD],
        r"H-7: .* --remove-bpe sentencepiece to",
    ),
    "text of sub-words": (["a b", "a@@ b"], r"line 2: the line has sub-word marks"),
    "text of another length": (["a b"] * 61, r"has 61 sentences and the reference 60"),
    "empty": ([], r"is empty"),
    "blank": (["", " "], r"is empty"),
}


@pytest.mark.parametrize("name", FILES)
def test_wrong_files_are_refused(files, tmp_path, name):
    lines, message = FILES[name]
    wrong, result = write_lines(tmp_path / "wrong.out", lines), tmp_path / "scores.json"
    result.write_text("earlier")
    for args in ([wrong], [files / "a1.out", "--baseline", wrong]):
        with pytest.raises(UsageError, match=message) as error:
            run("--reference", files / "test.en", *args, "--json", result)
        assert str(error.value).startswith(str(wrong)) and "\n" not in str(error.value)
    assert result.read_text() == "earlier"
    assert sorted(tmp_path.iterdir()) == [result, wrong]


def test_bytes_that_are_no_text_are_refused_by_line(files, tmp_path):
    wrong = tmp_path / "wrong.en"
    wrong.write_bytes(b"one\ntw\xff\n")
    for args in (["--reference", wrong, files / "a1.txt"], ["--reference", files / "test.en", wrong]):
        with pytest.raises(UsageError, match="wrong.en, line 2: the text is not UTF-8"):
            run(*args)
    broken = tmp_path / "wrong.en.gz"
    broken.write_bytes(gzip.compress(b"one\n" * 1000)[:-9])
    for path in (broken, tmp_path / "none.en", tmp_path):
        with pytest.raises(UsageError, match=f"{path}: cannot be read"):
            run("--reference", path, files / "a1.txt")


@pytest.mark.parametrize(
    "args, message",
    [
        ("--reference test.en a1.out a1.out", "a1.out is given twice"),
        ("--reference test.en a1.out --baseline b1.out ./b1.out", "b1.out is given twice"),
        (
            "--reference test.en a1.out a2.out --baseline b1.out ./a2.out",
            "a2.out: this file would be compared with itself",
        ),
        (
            "--reference test.en a1.out a2.out a3.out --baseline b1.out b2.out",
            "2 files cannot be paired with 3; give 1 file, or 3",
        ),
        ("--reference test.en a1.out --baseline b1.out b2.out", "2 files cannot be paired with 1; give 1"),
        ("--reference test.en a1.out --baseline b1.out --samples 0", "--samples 0"),
        ("--reference test.en a1.out --samples 10", "--samples 10"),
        ("--reference test.en a1.out -l en-de", "-l en-de has an effect only with --test-set"),
        ("--reference test.en a1.txt --compound-split", "--compound-split needs T- lines"),
        (
            "--reference test.en a1.txt --metrics chrf --tokenize char",
            "--tokenize char has an effect on BLEU",
        ),
        (
            "--reference test.en a1.txt --metrics ter --lowercase",
            "--lowercase has an effect on BLEU and chrF",
        ),
        (
            "--reference a1.txt a1.out",
            "a1.out: the tokens cannot be detokenised without a language; give --target-lang",
        ),
        ("--reference test.en a1.out --json test.en", "--json test.en: this file is one of the inputs"),
        ("--reference test.en a1.out --json .", "--json . is a folder"),
        (
            "--reference test.en a1.out --json no/a.json",
            "--json no/a.json is a folder, or its folder does not exist",
        ),
        (
            "--reference test.en a1.txt --tokenize ko-mecab",
            "--tokenize ko-mecab: this tokeniser is not installed",
        ),
        (
            "--reference test.en a1.txt --target-lang ko",
            "--tokenize ko-mecab: this tokeniser is not installed",
        ),
        ("--test-set wmt14/full a1.out", "needs the languages; add, for example, -l en-de"),
        (
            "--test-set wmt14/ful -l en-de a1.out",
            "--test-set wmt14/ful: sacrebleu has no test set of this name; give another, wmt14/full or",
        ),
        (
            "--test-set wmt14/full -l en-zh a1.out",
            "-l en-zh: --test-set wmt14/full does not have this pair; give one of cs-en, ",
        ),
    ],
)
def test_options_that_make_no_sense_are_refused(files, monkeypatch, args, message):
    monkeypatch.chdir(files)
    monkeypatch.setitem(sys.modules, "mecab_ko", None)
    before = {path: path.read_bytes() for path in files.iterdir()}
    with pytest.raises(UsageError) as error:
        run(*args.split())
    assert message in str(error.value) and "\n" not in str(error.value)
    assert {path: path.read_bytes() for path in files.iterdir()} == before


@pytest.mark.parametrize(
    "args", ["a1.out", "--reference test.en --test-set wmt14/full -l en-de a1.out", "--reference test.en"]
)
def test_one_reference_and_a_file_are_needed(args):
    with pytest.raises(SystemExit) as error:
        run(*args.split())
    assert error.value.code == 2


@pytest.mark.parametrize("seed", ["many", "-1", "0"])
def test_a_seed_that_sacrebleu_would_not_take_is_refused(monkeypatch, seed):
    monkeypatch.setenv("SACREBLEU_SEED", seed)
    with pytest.raises(UsageError, match=f"SACREBLEU_SEED={seed}: "):
        paired_bootstrap(["a"], ["a"], [["b"]])


@pytest.mark.parametrize("seed", ["none", "None"])
def test_no_seed_is_one_that_sacrebleu_takes(monkeypatch, seed):
    monkeypatch.setenv("SACREBLEU_SEED", seed)
    [found] = paired_bootstrap(["a"], ["a"], [["b"]], samples=2)
    assert "seed:none" in found["bleu"]["signature"]


@pytest.mark.parametrize(
    "texts", [(["a"] * 2, ["a"], [["a"]]), (["a"], ["a"] * 2, [["a"]]), ([["a"]], ["a"], [["a"], ["a"] * 2])]
)
def test_texts_of_different_lengths_are_not_compared(texts):
    with pytest.raises(UsageError, match=r"not of \[1, 2\] sentences"):
        paired_bootstrap(*texts)


def test_the_command_ends_with_a_sentence_and_an_exit_status(tmp_path):
    empty = write_lines(tmp_path / "empty.en", [])
    with pytest.raises(SystemExit) as error:  # Python prints the sentence and exits with 1
        main(["score", "--reference", str(empty), str(empty)])
    assert str(error.value).startswith(f"modular-fairseq score: error: {empty} is empty; ")


def test_without_a_network_a_test_set_is_refused(tmp_path, monkeypatch, caplog):
    def fail(*args):
        raise urllib.error.URLError("no route to host")

    text = write_lines(tmp_path / "a.txt", ["a"])
    monkeypatch.setattr(urllib.request, "urlopen", fail)
    for name in ("_outdir", "_rawdir"):
        monkeypatch.setattr(DATASETS["wmt14/full"], name, str(tmp_path / name))
    with pytest.raises(
        UsageError, match=r"--test-set wmt14/full: the test set cannot be downloaded \(no route to host\)"
    ):
        run("--test-set", "wmt14/full", "-l", "en-de", text)
    monkeypatch.setattr(urllib.request, "urlopen", lambda *args: io.BytesIO(b"a"))  # its checksum is wrong
    with pytest.raises(
        UsageError, match=r"--test-set wmt14/full: the test set cannot be downloaded \(a wrong checksum"
    ):
        run("--test-set", "wmt14/full", "-l", "en-de", text)
    assert not caplog.records


def test_a_json_that_cannot_be_written_leaves_the_earlier_one(files, tmp_path, monkeypatch):
    result = tmp_path / "scores.json"
    result.write_text("earlier")

    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(UsageError, match="No space left on device"):
        run("--reference", files / "test.en", files / "a1.txt", "--metrics", "bleu", "--json", result)
    assert result.read_text() == "earlier" and list(tmp_path.iterdir()) == [result]


def test_only_ter_counts_detokenised_text_against_a_tokenised_reference_as_wrong(tmp_path):
    """TER splits text at spaces only; the help of the command explains what to do."""
    lines = ["does the dog sleep today ?", "the old man sees a dog ."]
    reference = write_lines(tmp_path / "test.en", lines)
    output = write_lines(tmp_path / "generate.out", generated(lines))
    (moses,) = run_json(tmp_path, "--reference", reference, output)["files"]
    (plain,) = run_json(tmp_path, "--reference", reference, output, "--detokenize", "none")["files"]
    assert round(moses["bleu"], 9) == round(moses["chrf"], 9) == 100 and moses["ter"] > 20
    assert plain["ter"] == 0
