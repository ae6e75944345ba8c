"""Test `modular-fairseq predict` against naive passes over single inputs and against fairseq-validate."""

import json
import math
import re

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils
from scipy.stats import spearmanr

from modular_fairseq.prediction.classes import correlations, inputs_of, ranks
from modular_fairseq.prediction.masked_words import Block, numbers
from modular_fairseq_cli import main as cli
from tests.masked_language_models import BOS, EOS, FINETUNE, MASKED, PAD, binarize, trained
from tests.refusals import refusal

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
PLAIN = "--arch modular_roberta --criterion masked_lm"


@pytest.fixture(scope="module")
def pretrained(texts, tmp_path_factory):
    return trained(texts / "bin", tmp_path_factory.mktemp("run"), f"{MASKED} {PLAIN}")


def predict(data, path, *words):
    cli.main(["predict", *map(str, (data, "--path", path, "--gen-subset", "test", *words))])


def written(name):
    """Return the numbers and the lines that the command has written."""
    lines = [line.split("\t") for line in name.with_suffix(".tsv").read_text().splitlines()]
    return json.loads(name.with_suffix(".json").read_text()), lines


def loaded(data, path, **overrides):
    models, _, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(path)], arg_overrides={"data": str(data), **overrides}
    )
    task.load_dataset("test")
    return models[0].eval(), task.dataset("test")


@pytest.mark.parametrize(("seed", "overrides"), [(1, {}), (2, {}), (1, {"no_residual": True})])
def test_masked_words_are_those_of_naive_passes(texts, pretrained, tmp_path, capsys, seed, overrides):
    words = ["--seed", seed, "--max-tokens", 50, "--model-overrides", overrides]
    predict(texts / "bin", pretrained, "--out", tmp_path / "found", *words)
    found, (heads, *lines) = written(tmp_path / "found")
    model, data = loaded(texts / "bin", pretrained, seed=seed, **overrides)
    data.set_epoch(1)
    nll, masked, correct, symbols, blocks = 0.0, 0, 0, 0, 0
    assert heads == ["nll", "masked", "correct"] and len(lines) == len(data) >= 5
    for number, line in enumerate(lines):
        source, target = (data[number][key] for key in ("net_input.src_tokens", "target"))
        with torch.no_grad():
            scores = model(source[None])[0][0].log_softmax(-1)
        places = target.ne(PAD) & target.ne(BOS) & target.ne(EOS)
        symbols += int(target.ne(PAD).sum() - places.sum())
        own = -scores[places].gather(1, target[places, None]).sum().item()
        right = int(scores[places].argmax(-1).eq(target[places]).sum())
        assert float(line[0]) == pytest.approx(own, rel=1e-4, abs=1e-6)
        assert [int(each) for each in line[1:]] == [int(places.sum()), right]
        blocks += bool(places.any())
        nll, masked, correct = nll + own, masked + int(places.sum()), correct + right
    assert found["masked"] == masked > 4 and found["blocks"] == blocks and symbols > 0
    assert found["seed"] == seed and found["overrides"] == overrides and found["updates"] > 0
    assert found["nll"] == pytest.approx(nll / masked / math.log(2), rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(nll / masked), rel=1e-5)
    assert found["accuracy"] == pytest.approx(100 * correct / masked)
    assert f"NLL {found['nll']:.3f} bits, perplexity {found['perplexity']:.2f}" in capsys.readouterr().out


def test_inputs_that_are_too_long_are_left_out_on_demand(texts, tmp_path, capsys):
    words = f"{MASKED} {PLAIN} --sample-break-mode eos --skip-invalid-size-inputs-valid-test"
    path = trained(texts / "bin", tmp_path / "run", words.replace("sample 16", "sample 7"))
    assert re.search(r"has \d+ tokens, and the model has 7 positions", refused(texts / "bin", path))
    predict(texts / "bin", path, "--skip-invalid-size-inputs-valid-test", "--out", tmp_path / "found")
    sizes = [len(line.split()) + 2 for line in (texts / "test.en").read_text().splitlines()]
    assert 0 < sum(size <= 7 for size in sizes) < len(sizes)
    assert len(written(tmp_path / "found")[1]) - 1 == sum(size <= 7 for size in sizes)
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.en").write_text(" ".join(["w1"] * 9) + "\n")
    binarize(tmp_path, "bin", "en", "--srcdict", str(texts / "bin/dict.txt"))
    said = refused(tmp_path / "bin", path, "--skip-invalid-size-inputs-valid-test")
    assert "every sentence of test is longer than the maximum positions of the model" in said


def test_a_result_that_cannot_be_written_is_shown(texts, pretrained, tmp_path, capsys):
    said = refused(texts / "bin", pretrained, "--out", tmp_path / ("a" * 300))
    assert "cannot be written (File name too long); give another name" in said
    assert re.search(r"test: [\d,]+ masked words .*, NLL [\d.]+ bits", capsys.readouterr().out)


def test_the_seed_decides_which_words_are_masked(texts, pretrained, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        predict(texts / "bin", pretrained, "--out", tmp_path / name, "--seed", seed)
    a, b, c = (written(tmp_path / name)[1] for name in "abc")
    assert a == b != c
    a, b, c = (written(tmp_path / name)[0]["words"] for name in "abc")
    assert a == b != c


def test_classes_are_those_of_naive_passes(texts, tmp_path, capsys):
    words = f"{FINETUNE} --arch modular_roberta"
    path = trained(texts / "classes", tmp_path / "run", words)
    predict(texts / "classes", path, "--out", tmp_path / "found")
    found, (heads, *lines) = written(tmp_path / "found")
    model, data = loaded(texts / "classes", path)
    right = 0
    for number, line in enumerate(lines):
        with torch.no_grad():
            tokens = data[number]["net_input.src_tokens"][None]
            scores, _ = model(
                tokens, features_only=True, classification_head_name="sentence_classification_head"
            )
        names = [line for line in (texts / "test.label").read_text().splitlines()]
        known = [line.split()[0] for line in (texts / "classes/label/dict.txt").read_text().splitlines()]
        assert line == [known[scores.argmax()], names[number]]
        right += line[0] == line[1]
    assert heads == ["predicted", "target"] and len(lines) == len(data)
    assert "--seed has no effect on a classification" in refused(texts / "classes", path, "--seed", 1)
    assert found["accuracy"] == pytest.approx(100 * right / len(lines))
    assert found["inputs"] == inputs_of(range(len(lines))) != inputs_of(range(1, len(lines)))
    assert f"test: {len(lines)} inputs, accuracy {found['accuracy']:.2f} %" in capsys.readouterr().out


def test_values_are_correlated_with_those_of_the_data(texts, tmp_path, capsys):
    words = FINETUNE.replace("--num-classes 2", "--num-classes 1 --regression-target")
    path = trained(
        texts / "values",
        tmp_path / "run",
        f"{words} --arch modular_roberta --best-checkpoint-metric loss",
    )
    predict(texts / "values", path, "--out", tmp_path / "found")
    found, (_, *lines) = written(tmp_path / "found")
    predicted, targets = np.array(lines, dtype=float).T
    assert targets.tolist() == [
        float(line) for line in (texts / "values/label/test.label").read_text().split()
    ]
    model, data = loaded(texts / "values", path)
    head = {"features_only": True, "classification_head_name": "sentence_classification_head"}
    with torch.no_grad():
        naive = [
            model(data[number]["net_input.src_tokens"][None], **head)[0].item() for number in range(len(data))
        ]
    assert predicted == pytest.approx(naive, rel=1e-4, abs=1e-6)
    assert found["pearson"] == pytest.approx(100 * np.corrcoef(predicted, targets)[0, 1])
    assert found["spearman"] == pytest.approx(100 * spearmanr(predicted, targets).statistic)
    assert f"pearson {found['pearson']:.2f} %, spearman" in capsys.readouterr().out


def test_equal_values_share_their_rank():
    assert ranks(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [3.5, 1, 3.5, 2]
    found = correlations([(1, 10), (2, 100), (3, 1000)])
    assert found["spearman"] == pytest.approx(100) and found["pearson"] < 95
    assert all(math.isnan(value) for value in correlations([(1, 5), (1, 6)]).values())


def test_data_without_masked_words_has_no_numbers():
    assert all(math.isnan(value) for value in numbers([Block(0.0, 0, 0)]).values())


def test_a_diverged_model_has_an_infinite_perplexity():
    assert numbers([Block(9000.0, 3, 0), Block(0.0, 0, 0)])["perplexity"] == math.inf
    found = numbers([Block(6.0, 3, 2), Block(2.0, 1, 0)])
    assert found == pytest.approx({"nll": 2 / math.log(2), "perplexity": math.exp(2), "accuracy": 50})


def refused(*args):
    return refusal(predict, *args)


def test_what_cannot_be_predicted_is_refused(texts, pretrained, tmp_path):
    assert "no.pt" in refused(texts / "bin", texts / "no.pt")
    assert "--max-tokens 3 is less" in refused(texts / "bin", pretrained, "--max-tokens", 3)
    for value in ("[1]", "{", '{"no_residual": true}'):
        assert "give a dictionary of options of the model" in refused(
            texts / "bin", pretrained, "--model-overrides", value
        )
    assert "has no dict.txt; give" in refused(tmp_path, pretrained)
    for seed in (-1, 2**32):
        assert f"--seed {seed}: give a number from 0 to 4294967295" in refused(
            texts / "bin", pretrained, f"--seed={seed}"
        )
    for name in ("no/found", "no/", f"{tmp_path}/"):
        said = refused(texts / "bin", pretrained, "--out", name)
        assert f"--out {name}: give a name in a folder that exists" in said
    (tmp_path / "found.tsv").mkdir()
    said = refused(texts / "bin", pretrained, "--out", tmp_path / "found")
    assert "found.tsv is a folder, or its folder does not exist; give a file in an existing folder" in said
    for name in ("nosuch", "seed", "mask_prob"):
        said = refused(texts / "bin", pretrained, "--model-overrides", f'{{"{name}": 1}}')
        assert f"{name} is no option of the model that can be changed" in said
    for name, value in (("dropout", "'0.1'"), ("encoder_layers", "'a'"), ("encoder_layers", "True")):
        said = refused(texts / "bin", pretrained, "--model-overrides", f"{{'{name}': {value}}}")
        assert f"in the checkpoint, and {value} is of another kind; give a value of the same kind" in said
    torch.save({"model": {"a": torch.ones(1)}}, tmp_path / "bare.pt")
    said = refused(texts / "bin", tmp_path / "bare.pt", "--model-overrides", '{"dropout": 0}')
    assert "bare.pt is not a whole fairseq checkpoint, because it has no extra_state and no" in said
    sizes = "--decoder-layers 1 --decoder-embed-dim 8 --decoder-attention-heads 2 --optimizer adam"
    language_model = f"--task language_modeling --arch modular_transformer_lm {sizes} --max-tokens 100"
    path = trained(texts / "bin", tmp_path / "lm", f"{language_model} --tokens-per-sample 16 --max-epoch 1")
    assert "the model has the task language_modeling" in refused(texts / "bin", path)
