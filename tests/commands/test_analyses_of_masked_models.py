"""Test what `modular-fairseq analyze` and `report` make of masked language models and of classifiers."""

import json

import numpy as np
import pytest

from modular_fairseq.analysis.sentences import sentence_of_text
from modular_fairseq.loading import load
from modular_fairseq_cli import main as cli
from modular_fairseq_cli.report.page import content_of
from tests.helpers import OF_TEXT
from tests.masked_language_models import FINETUNE, MASKED, binarize, trained

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
EVERYTHING = (
    "--arch mae_roberta --attention-type mae+dma --tim-layers all --encoder-layers 4 --streams 2 "
    "--criterion modular_masked_lm --mae-gate-interval 2"
)


@pytest.fixture(scope="module")
def model(texts, tmp_path_factory):
    """Train a model with experts, masks, TIM layers and streams, and return its path."""
    return trained(texts / "bin", tmp_path_factory.mktemp("run"), f"{MASKED} {EVERYTHING}")


def analyze(data, path, out, *options):
    cli.main(["analyze", "all", *map(str, (data, "--path", path, "--out", out, *options))])
    index, samples = (json.loads((out / f"{name}.json").read_text()) for name in ("analysis", "samples"))
    return index, samples, np.load(out / "samples.npz")


def test_all_analyses_of_a_masked_language_model(texts, model, tmp_path):
    index, samples, arrays = analyze(
        texts / "bin", model, tmp_path / "found", "--samples", 2, "--sentence", "w1 <mask> w3"
    )
    assert list(index["analyses"]) == OF_TEXT and index["task"] == "masked_lm"
    layers = index["analyses"]["competition"]["layers"]
    assert [layer["layer"] for layer in layers] == [1, 2, 2, 3]
    assert all(0 <= layer["entropy"] <= np.log(2) + 1e-6 for layer in layers)
    typed, *of_data = samples["sentences"]
    assert [each["origin"] for each in of_data] == ["valid 1", "valid 2"]
    assert typed["source"] == ["<s>", "w1", "<mask>", "w3", "</s>"] and typed["translated"]
    assert [typed["target"][place] for place in (0, 1, 3, 4)] == ["<s>", "w1", "w3", "</s>"]
    words = (texts / "valid.en").read_text().split()
    for each in of_data:
        assert each["target_in"] == [] and not each["translated"]
        assert len(each["source"]) == len(each["target"]) and "<mask>" not in each["target"]
        shown = [word for word in each["target"] if word not in ("<s>", "</s>")]
        assert " ".join(shown) in " ".join(words)  # the blocks have the text in its order
    assert any("<mask>" in each["source"] for each in of_data)
    kinds = {name.split("/")[0] for name in arrays.files}
    assert kinds == {"attention", "mask", "clusters", "gates", "competition"}
    length = len(of_data[0]["source"])
    name = "attention/1/encoder.sentence_encoder.layers.0.self_attn"
    assert arrays[name].shape == (4, length, length)


def test_a_mask_is_filled_with_the_most_likely_word(texts, model):
    loaded = load(model, texts / "bin", "valid")
    found = sentence_of_text(loaded.model, loaded.task, "w2 <mask>", "--sentence 1")
    scores = loaded.model(found.source[None])[0][0]
    assert found.target.tolist() == [*found.source[:2].tolist(), int(scores[2].argmax()), 2]
    plain = sentence_of_text(loaded.model, loaded.task, "w2 w3", "--sentence 1")
    assert plain.source.equal(plain.target) and not plain.translated


def test_a_classifier_is_analysed_and_the_report_shows_both(texts, model, tmp_path):
    words = f"{FINETUNE} {EVERYTHING} --finetune-from-model {model}".replace(
        "modular_masked_lm", "sentence_prediction"
    )
    path = trained(texts / "classes", tmp_path / "run", words)
    index, samples, _ = analyze(texts / "classes", path, tmp_path / "classes", "--samples", 1)
    assert list(index["analyses"]) == OF_TEXT and index["task"] == "sentence_prediction"
    (sentence,) = samples["sentences"]
    assert sentence["source"] == sentence["target"] and sentence["source"][0] == "<s>"
    analyze(texts / "bin", model, tmp_path / "masked", "--samples", 1)
    folders = [str(tmp_path / name) for name in ("classes", "masked")]
    cli.main(
        ["report", *folders, "--out", str(tmp_path / "report.html"), "--pictures", str(tmp_path / "png")]
    )
    shown = content_of((tmp_path / "report.html").read_text())["data"]["checkpoints"]
    assert [each["facts"]["task"] for each in shown] == ["sentence_prediction", "masked_lm"]
    for each in shown:
        assert each["modules"][0]["module"] == "encoder.sentence_encoder.layers.0.self_attn"
        assert [sentence["target_in"] for sentence in each["sentences"]] == [[]]


def test_a_regression_is_analysed(texts, tmp_path):
    words = FINETUNE.replace("--num-classes 2", "--num-classes 1 --regression-target")
    words = f"{words} {EVERYTHING} --best-checkpoint-metric loss".replace(
        "modular_masked_lm", "sentence_prediction"
    )
    path = trained(texts / "values", tmp_path / "run", words)
    index, samples, _ = analyze(texts / "values", path, tmp_path / "found", "--samples", 2)
    assert list(index["analyses"]) == OF_TEXT and len(samples["sentences"]) == 2


def test_lines_without_words_are_no_samples(texts, tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.en").write_text("w1 w2 w3 w4\n\nw5 w6\n")
    binarize(tmp_path, "bin", "en", "--srcdict", str(texts / "bin/dict.txt"))
    words = f"{MASKED} --arch modular_roberta --criterion masked_lm --sample-break-mode eos --max-update 1"
    path = trained(tmp_path / "bin", tmp_path / "run", words)
    _, samples, _ = analyze(tmp_path / "bin", path, tmp_path / "found", "--samples", 2)
    assert [each["origin"] for each in samples["sentences"]] == ["valid 1", "valid 3"]


def test_the_words_are_masked_that_fairseq_validate_masks(texts, model, tmp_path):
    _, samples, _ = analyze(texts / "bin", model, tmp_path / "found", "--samples", 3)
    task = load(model, texts / "bin", "valid").task
    data = task.dataset("valid")
    task.get_batch_iterator(data, max_tokens=100)  # as fairseq-validate
    assert len(samples["sentences"]) == 3
    for number, sentence in enumerate(samples["sentences"]):
        tokens = data[number]["net_input.src_tokens"].tolist()
        assert sentence["source"] == [task.source_dictionary[token] for token in tokens]


def test_a_translation_is_refused(texts, model, tmp_path):
    with pytest.raises(
        SystemExit, match="--sentence 1 has a translation after a tab, which a language model"
    ):
        analyze(texts / "bin", model, tmp_path / "found", "--sentence", "w1\tw2")
