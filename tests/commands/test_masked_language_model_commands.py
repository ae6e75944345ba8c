"""Test that fairseq's commands pre-train and fine-tune masked language models with every mechanism."""

import logging
import math
import re
import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from fairseq import options, tasks
from fairseq.data import indexed_dataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics
from fairseq_cli import validate
from omegaconf import OmegaConf

from modular_fairseq.criterions.modular_masked_lm import ModularMaskedLmCriterion
from modular_fairseq.models.dma_losses import measuring
from modular_fairseq.models.mae import expert_mixtures, gate_parameters
from modular_fairseq.models.registry import CRITERIA
from modular_fairseq.modules.disentangled_heads import LossSettings
from modular_fairseq.training import criterion_check
from modular_fairseq.training.gate_trainer import gate_trainer_of
from modular_fairseq_cli import main as cli
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.fairseq_log import parse
from tests.fairseq_commands import TINY, differing_weights, going_on, run_train, train_config, weights
from tests.masked_language_models import FINETUNE, MASKED, PAD, SIZE, binarize, build, task, trained
from tests.watched_trainer import Watched

OURS = "--criterion modular_masked_lm"
# fairseq copies tensors by numpy, thousands of times.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
F_AND_G = "--mae-gate-interval 2"
TIM = "--tim-layers all"
GRID = {
    "plain": f"--arch modular_roberta {OURS}",
    "plain-prenorm": f"--arch modular_roberta --encoder-normalize-before {OURS} --checkpoint-activations",
    "mae": f"--arch mae_roberta {F_AND_G} --criterion masked_lm",
    "mae-joint": f"--arch mae_roberta --mae-training joint {OURS}",
    "mae-tim-streams": f"--arch mae_roberta {F_AND_G} {TIM} --encoder-layers 4 --streams 2 {OURS}",
    "dma": f"--arch dma_roberta {OURS} --aux-warmup-updates 2",
    "mae-dma-tim": f"--arch dma_roberta --attention-type mae+dma {F_AND_G} {TIM} {OURS} "
    "--sample-break-mode eos",
    "tim": "--arch tim_roberta --encoder-layers 4 --criterion masked_lm --sample-break-mode complete",
    "no-competition": f"--arch tim_roberta_nocomp --encoder-layers 4 {OURS}",
    "no-residual": f"--arch modular_roberta --no-residual {OURS}",
}
PARTS = {
    "gate.gate_network": r"\bmae",
    "mask.": "dma",
    "communication": "tim|competition",
    "competition": r"\btim",
}


def pretrained(texts, out, name):
    return trained(texts / "bin", out, f"{MASKED} {GRID[name]}")


def loss_by_validate(data, path, task="masked_lm"):
    """Return what fairseq-validate logs about the test set."""
    metrics.reset()
    given = f"--task {task} --criterion {task} --path {path} --valid-subset test --num-workers 0"
    words = [*given.split(), "--batch-size", "4"]
    parser = options.get_validation_parser()
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, [str(data), *words]))
    with metrics.aggregate("outside") as log:
        validate.main(cfg)
    return log.get_smoothed_values()


@pytest.mark.parametrize("name", GRID)
def test_every_mechanism_pre_trains_and_is_evaluated(texts, tmp_path, name):
    """Its parts are there and learn. fairseq-validate shows the loss of naive passes."""
    path = pretrained(texts, tmp_path, name)
    first, last = (weights(each) for each in (tmp_path / "checkpoint1.pt", path))
    moved = {key for key in last if last[key].is_floating_point() and not first[key].equal(last[key])}
    for part, names in PARTS.items():
        of_part = {key for key in last if part in key}
        assert bool(of_part) == bool(of_part & moved) == bool(re.search(names, name)), part
    assert {key for key in moved if "lm_head" in key or "embed_tokens" in key}

    found = loss_by_validate(texts / "bin", path)
    model, total, words = _loaded(texts / "bin", path), 0.0, 0
    for sample in model.samples:
        target = sample["target"][sample["target"].ne(PAD)]
        with torch.no_grad():
            logits = model(sample["net_input"]["src_tokens"])[0][sample["target"].ne(PAD)]
        total += float(F.cross_entropy(logits, target, reduction="sum"))
        words += len(target)
    assert words > 10
    assert found["loss"] == pytest.approx(total / words / math.log(2), abs=2e-3)


def _loaded(data, path):
    """Return a trained model in evaluation mode; `samples` are the masked sentences of the test set."""
    from fairseq import checkpoint_utils

    models, _, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(path)], arg_overrides={"data": str(data)}
    )
    task.load_dataset("test")
    dataset = task.dataset("test")
    dataset.set_epoch(1)
    model = models[0].eval()
    model.samples = [dataset.collater([dataset[number]]) for number in range(len(dataset))]
    return model


def test_both_criteria_train_a_plain_model_alike(texts, tmp_path):
    paths = [
        trained(texts / "bin", tmp_path / name, f"{MASKED} --arch modular_roberta --criterion {name}")
        for name in ("masked_lm", "modular_masked_lm")
    ]
    one, other = map(weights, paths)
    assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_a_plain_model_trains_as_fairseqs_roberta(texts, tmp_path):
    """Without dropout, two epochs from the same seed give the same weights, and each loads into the other."""
    common = f"{MASKED} --criterion masked_lm --dropout 0 --attention-dropout 0"
    theirs = trained(texts / "bin", tmp_path / "stock", f"{common} --arch roberta --max-positions 16")
    ours = trained(texts / "bin", tmp_path / "ours", f"{common} --arch modular_roberta")
    one, other = weights(theirs), weights(ours)
    assert one.keys() == other.keys()
    for key in one:
        torch.testing.assert_close(one[key], other[key], atol=2e-5, rtol=1e-4)
    again = trained(
        texts / "bin",
        tmp_path / "again",
        f"{common} --arch modular_roberta --finetune-from-model {theirs} --lr 1e-9",
    )
    assert all(torch.allclose(one[key], value, atol=1e-6) for key, value in weights(again).items())


def test_stopping_and_resuming_equals_training_on(texts, tmp_path):
    words = f"{MASKED} {GRID['mae-dma-tim']}".replace("--max-epoch 2", "--max-epoch 3")
    whole = trained(texts / "bin", tmp_path / "whole", words)
    trained(texts / "bin", tmp_path / "parts", f"{words} --max-epoch 1")
    with going_on(tmp_path / "parts"):
        parts = trained(texts / "bin", tmp_path / "parts", words)
    assert differing_weights(whole, parts) == []


def watched(texts, *words, arch="mae_roberta"):
    """Return a `Watched` trainer with batches of masked sentences."""
    common = [*f"{MASKED} --dropout 0 --attention-dropout 0".split(), *map(str, words)]
    trainer = Watched(texts / "bin", *common, arch=arch, common=())
    trainer.task.load_dataset("train")
    dataset = trainer.task.dataset("train")
    dataset.set_epoch(1)
    trainer.batches = [
        dataset.collater([dataset[number] for number in range(first, first + 5)]) for first in range(0, 20, 5)
    ]
    return trainer


def test_g_steps_change_gates_only_and_f_steps_the_rest_only(texts, monkeypatch):
    trainer = watched(texts, "--mae-gate-interval", 1, "--criterion", "modular_masked_lm")
    trainer.watch(monkeypatch)
    trainer.trainer.begin_epoch(1)
    for number in range(3):
        trainer.step(trainer.batches[number : number + 1])
    assert trainer.changed == [("G", True, False), ("F", False, True)] * 3


@pytest.mark.parametrize("loss", ["instance", "token", "sentence"])
@pytest.mark.parametrize("training", ["bcd", "joint"])
def test_a_step_of_the_gates_is_sgd_on_the_mean_loss(texts, loss, training):
    """A gate of an encoder sees a whole block of text, so that is one instance. Tokens are masked words."""
    words = f"--mae-training {training} --mae-gate-dropout 0 --mae-gate-norm layer --mae-gate-lr 0.5"
    words += f" --mae-gate-loss {loss} --update-freq 2 --criterion masked_lm --lr-scheduler fixed"
    words += " --mae-gate-interval 1" if training == "bcd" else ""
    trainer = watched(texts, *words.split())
    model, samples = trainer.model.train(), trainer.batches[:2]
    trainer.trainer.begin_epoch(1)
    own = gate_trainer_of(trainer.trainer)
    for parameter in trainer.gates:
        parameter.requires_grad_(True)
    for mixture in expert_mixtures(model).values():
        mixture.step = "G"
    total = sum(trainer.trainer.get_criterion()(model, sample)[0] for sample in samples)
    gradients = torch.autograd.grad(total, trainer.gates)
    blocks = sum(len(sample["target"]) for sample in samples)
    masked = sum(int(sample["target"].ne(PAD).sum()) for sample in samples)
    assert 0 < masked != blocks
    count = masked if loss == "token" else blocks
    expected = [p.detach() - 0.5 * each / count for p, each in zip(trainer.gates, gradients, strict=True)]
    for parameter in trainer.gates:
        parameter.requires_grad_(False)
    if training == "bcd":
        own.g_step(samples)
    else:
        trainer.step(samples)
    for parameter, value in zip(trainer.gates, expected, strict=True):
        torch.testing.assert_close(parameter.detach(), value, atol=1e-6, rtol=1e-5)


def test_the_auxiliary_losses_of_a_block_count_as_its_masked_words():
    """The criterion is compared with the sum by hand, at full weights; only masked words count."""
    options = OmegaConf.create({**vars(CRITERIA["modular_masked_lm"]()), "tpu": False})
    options.update({"kl_weight": 0.5, "qq_weight": 0.3, "xq_weight": 0.2})
    criterion = ModularMaskedLmCriterion.build_criterion(options, task())
    model = build("dma_roberta", dropout=0.0, attention_dropout=0.0).train()
    tokens = torch.tensor([[0, 7, 9, 4, 30, 12, 2], [0, 8, 8, 21, 2, 1, 1]])
    target = torch.full_like(tokens, PAD)
    target[0, 1], target[0, 3], target[1, 2] = 11, 12, 13
    sample = {"net_input": {"src_tokens": tokens}, "target": target, "ntokens": 12, "nsentences": 2}
    loss, size, log = criterion(model, sample)
    with measuring(model, LossSettings(kl=True, qq=True, xq=True, floor=-2.0)) as losses:
        logits = model(tokens)[0]
    nll = F.cross_entropy(logits.transpose(1, 2), target, ignore_index=PAD, reduction="sum")
    shares = torch.tensor([2.0, 1.0])
    expected = nll + sum(
        weight * (losses[name] * shares).sum() for name, weight in (("kl", 0.5), ("qq", 0.3), ("xq", -0.2))
    )
    assert int(size) == 3
    assert log["nll_loss"].item() == pytest.approx(nll.item(), rel=1e-5)
    assert loss.item() == log["loss"].item() == pytest.approx(expected.item(), rel=1e-5)
    model.eval()
    loss, _, log = criterion(model, sample)
    assert "kl" not in log and loss.item() == pytest.approx(log["nll_loss"].item())


def test_the_perplexity_of_a_training_is_that_of_its_masked_words(texts, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    trained(texts / "bin", tmp_path, f"{MASKED} {GRID['dma']} --log-format json --max-epoch 1")
    logs = [
        numbers
        for split, numbers in (parse(f"| {each.name} | {each.getMessage()}") for each in caplog.records)
        if split == "train"
    ]
    assert logs
    for log in logs:
        assert log["ppl"] == pytest.approx(2 ** log["nll_loss"], rel=2e-3) and log["loss"] != log["nll_loss"]
        assert {"kl", "qq", "xq"} <= log.keys()


@pytest.mark.parametrize(
    "words", ["", "--mae-finetune gates", "--mae-finetune gates+output", "--mae-training joint"]
)
def test_finetuning_for_classes_trains_what_it_says(texts, tmp_path, words):
    start = pretrained(texts, tmp_path / "start", "mae")
    words = f"{FINETUNE} --arch mae_roberta --finetune-from-model {start} {words}"
    before, after = weights(start), weights(trained(texts / "classes", tmp_path / "classes", words))
    moved = {key for key in before if before[key].is_floating_point() and not before[key].equal(after[key])}
    heads = {key for key in after if key.startswith("classification_heads.")}
    first = weights(tmp_path / "classes/checkpoint1.pt")
    assert len(heads) == 4 and all(not first[key].equal(after[key]) for key in heads)
    gates = {key for key in before if ".gate.gate_network." in key}
    assert moved & gates
    rest = moved - gates
    if "gates+output" in words:
        assert rest and all(key.endswith("self_attn.out_proj.weight") for key in rest)
    elif "gates" in words:
        assert not rest
    else:
        assert any("fc1" in key for key in rest)


def test_finetuning_learns_the_classes(texts, tmp_path):
    start = pretrained(texts, tmp_path / "start", "tim")
    words = f"{FINETUNE} --arch tim_roberta --encoder-layers 4 --finetune-from-model {start} --max-epoch 25"
    path = trained(texts / "classes", tmp_path / "classes", words)
    found = loss_by_validate(texts / "classes", path, task="sentence_prediction")
    assert found["accuracy"] >= 80


@pytest.mark.parametrize("name", ["dma", "mae-dma-tim"])
def test_finetuning_leaves_out_the_losses_of_pre_training_and_says_so(texts, tmp_path, caplog, name):
    criterion_check.say_once.cache_clear()
    caplog.set_level(logging.INFO)
    start = pretrained(texts, tmp_path / "start", name)
    model = re.sub(r"--(criterion|aux-warmup-updates|sample-break-mode) \S+", "", GRID[name])
    trained(texts / "classes", tmp_path / "classes", f"{FINETUNE} {model} --finetune-from-model {start}")
    sentence = "the losses of dma are for pre-training; they are not added to the loss of the classification"
    assert [record.getMessage() for record in caplog.records].count(sentence) == 1


def test_values_are_predicted_by_regression(texts, tmp_path):
    data = tmp_path / "values"
    (data / "label").mkdir(parents=True)
    (data / "input0").symlink_to(texts / "classes/input0")
    for split in ("train", "valid", "test"):
        lengths = [len(line.split()) for line in (texts / f"{split}.en").read_text().splitlines()]
        (data / f"label/{split}.label").write_text("".join(f"{length / 5}\n" for length in lengths))
    words = FINETUNE.replace("--num-classes 2", "--num-classes 1").replace("--max-epoch 2", "--max-epoch 12")
    words += " --regression-target --report-pearson-and-spearman --arch modular_roberta"
    path = trained(data, tmp_path / "out", words)
    found = loss_by_validate(data, path, task="sentence_prediction")
    assert found["pearson"] > 80
    with pytest.raises(UsageError, match="labels of .* are values; add --num-classes 1 --regression-target"):
        trained(data, tmp_path / "classes", FINETUNE + " --arch modular_roberta")


def test_several_values_of_each_input_are_predicted(texts, tmp_path):
    data = tmp_path / "values"
    (data / "label").mkdir(parents=True)
    (data / "input0").symlink_to(texts / "classes/input0")
    for split in ("train", "valid", "test"):
        lines = len((texts / f"{split}.en").read_text().splitlines())
        (data / f"label/{split}.label").write_text("0.5 -1\n" * lines)
    words = f"{FINETUNE} --regression-target --arch modular_roberta"
    path = trained(data, tmp_path / "out", words)
    assert weights(path)["classification_heads.sentence_classification_head.out_proj.weight"].size(0) == 2
    with pytest.raises(SystemExit, match="the model predicts 2 values for each input, and this command"):
        cli.main(["predict", str(data), "--path", str(path)])
    with pytest.raises(UsageError, match="valid.label, line 1: has 2 values; give --num-classes 2, or 3 in "):
        trained(data, tmp_path / "three", words.replace("--num-classes 2", "--num-classes 3"))


def test_fairseq_validate_takes_the_options_of_a_classification(texts):
    """It parses them a second time, without default values (fairseq_cli/validate.py:145)."""
    words = f"--task sentence_prediction --criterion sentence_prediction --num-classes 2 --path {texts}/c.pt"
    found = options.parse_args_and_arch(
        options.get_validation_parser(), [str(texts / "classes"), *words.split()], suppress_defaults=True
    )
    assert found.num_classes == 2 and not hasattr(found, "regression_target")


def test_fairseqs_own_models_train_with_a_loss_of_all_words(texts, tmp_path):
    trained(texts / "bin", tmp_path, f"{MASKED} --arch roberta --criterion cross_entropy")
    assert (tmp_path / "checkpoint_last.pt").exists()


def test_sentences_are_ranked(texts, tmp_path):
    """The right one of two sentences is the one that says w1."""
    data = tmp_path / "ranking"
    (data / "label").mkdir(parents=True)
    (data / "input0").symlink_to(texts / "classes/input0")
    random = np.random.default_rng(1)
    for split in ("train", "valid", "test"):
        number = len((texts / f"{split}.en").read_text().splitlines())
        right = random.integers(0, 2, number)
        (data / f"label/{split}.label").write_text("".join(f"{each}\n" for each in right))
        for option in (0, 1):
            lines = ["w1 w3\n" if each == option else "w2 w3\n" for each in right]
            (tmp_path / f"{split}.{option}").write_text("".join(lines))
    for option in (0, 1):
        words = ["--srcdict", str(texts / "bin/dict.txt")]
        binarize(tmp_path, f"ranking/input{option + 1}", str(option), *words)
    words = f"--task sentence_ranking --criterion sentence_ranking --num-classes 2 --init-token 0 {SIZE}"
    words += " --max-positions 32 --max-epoch 12 --arch mae_roberta --mae-gate-interval 1"
    path = trained(data, tmp_path / "out", words)
    head = weights(path)["classification_heads.sentence_classification_head.out_proj.weight"]
    assert head.shape == (1, 32)
    assert loss_by_validate(data, path, task="sentence_ranking")["accuracy"] > 90


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "--arch dma_roberta --criterion masked_lm",
            "--attention-type dma has losses that --criterion masked_lm does not add; use --criterion "
            "modular_masked_lm (with --kl-weight 0 --qq-weight 0 --xq-weight 0 to train the model without "
            "them)",
        ),
        (
            "--arch modular_roberta --criterion modular_cross_entropy",
            "--criterion modular_cross_entropy would count every word, but a masked language model predicts "
            "only "
            "those that were masked; use --criterion modular_masked_lm",
        ),
        (
            "--arch modular_roberta --criterion modular_masked_lm --kl-weight 0.1",
            "--kl-weight cannot have an effect, because this model has no losses of that kind; add "
            "--attention-type dma (or an arch such as dma_transformer), or leave out --kl-weight",
        ),
        (
            "--arch modular_roberta --criterion masked_lm --kl-weight 0.1",
            "--kl-weight has no effect without --criterion modular_cross_entropy or modular_masked_lm; add "
            "this "
            "criterion, or leave out --kl-weight",
        ),
        (
            "--arch mae_roberta --mae-finetune gates --criterion masked_lm",
            "--mae-finetune gates or gates+output trains a part of a trained model; give the model's "
            "checkpoint "
            "as --finetune-from-model",
        ),
        (
            "--arch modular_roberta --criterion masked_lm --pooler-dropout 0.2",
            "--pooler-dropout has no effect with --task masked_lm, whose model has no classification head; "
            "leave it out",
        ),
        (
            "--arch modular_roberta --criterion sentence_prediction",
            "--criterion sentence_prediction needs --task sentence_prediction, and data of a classification; "
            "use --criterion masked_lm or modular_masked_lm with --task masked_lm",
        ),
        (
            "--arch mae_transformer_tiny_cpu --criterion modular_masked_lm",
            "--arch mae_transformer_tiny_cpu is a model for --task translation; give --arch "
            "mae_roberta_tiny_cpu for --task masked_lm",
        ),
        (
            "--arch modular_roberta --criterion masked_lm --mask-prob 1.5",
            "--mask-prob 1.5: give a share of the words between 0 and 1, such as 0.15",
        ),
        (
            "--arch modular_roberta --criterion masked_lm --leave-unmasked-prob 0.95",
            "--random-token-prob 0.1 and --leave-unmasked-prob 0.95 are shares of the masked words: each "
            "must be at least 0, and both together at most 1",
        ),
    ],
)
def test_what_does_not_fit_a_masked_language_model_is_refused(texts, tmp_path, words, sentence):
    with pytest.raises(UsageError) as error:
        trained(texts / "bin", tmp_path, f"{MASKED} {words}")
    assert str(error.value) == sentence


def test_a_classification_is_no_text(texts, tmp_path):
    with pytest.raises(UsageError, match="holds a classification, with the folders input0 and label; train"):
        trained(texts / "classes", tmp_path, f"{MASKED} --arch modular_roberta --criterion masked_lm")


@pytest.mark.parametrize("criterion", ["cross_entropy", "label_smoothed_cross_entropy"])
def test_a_loss_of_all_words_is_refused(texts, tmp_path, criterion):
    """fairseq would log a perplexity of about 2."""
    with pytest.raises(
        UsageError, match=f"^--criterion {criterion} would divide the loss of the masked words by"
    ):
        trained(texts / "bin", tmp_path, f"{MASKED} --arch modular_roberta --criterion {criterion}")


def test_the_loss_of_masked_words_needs_a_masked_language_model(reversal_data, tmp_path):
    words = ["--arch", "mae_transformer", "--criterion", "modular_masked_lm", "--save-dir", tmp_path]
    with pytest.raises(UsageError) as error:
        run_train(reversal_data, *words, "--max-tokens", "150", "--optimizer", "adam", common=TINY)
    assert str(error.value) == (
        "--criterion modular_masked_lm needs a masked language model, such as --arch modular_roberta; use "
        "--criterion modular_cross_entropy with this model"
    )


@pytest.mark.parametrize(
    ("data", "words", "sentence"),
    [
        (
            "bin",
            "",
            "/bin/input0 has no dict.txt; give the folder of a prepared classification, which has the "
            "folders input0 and label",
        ),
        (
            "classes",
            "--num-classes -1",
            "--num-classes must be the number of classes, or of values with --regression-target, not -1",
        ),
        (
            "values",
            "--regression-target --num-classes 1 --best-checkpoint-metric accuracy",
            "--regression-target: the best checkpoint is the one with the lowest loss; use "
            "--best-checkpoint-metric loss, without --maximize-best-checkpoint-metric",
        ),
        (
            "values",
            "--regression-target --num-classes 1 --best-checkpoint-metric loss "
            "--maximize-best-checkpoint-metric",
            "--regression-target: the best checkpoint is the one with the lowest loss; use "
            "--best-checkpoint-metric loss, without --maximize-best-checkpoint-metric",
        ),
        (
            "classes",
            "--valid-subset valid2",
            "/classes has no file input0/valid2.idx, which the part valid2 of a classification needs; "
            "prepare the classification with this part",
        ),
        (
            "classes",
            "--regression-target --num-classes 1",
            "/classes has no file label/valid.label, which the part valid of a classification needs; "
            "prepare the classification with --values, since its labels are classes",
        ),
    ],
)
def test_what_a_classification_lacks_is_one_sentence(texts, tmp_path, data, words, sentence):
    with pytest.raises(UsageError) as error:
        trained(texts / data, tmp_path, f"{FINETUNE} --arch modular_roberta {words}")
    assert str(error.value).removeprefix(str(texts)) == sentence


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "--num-classes 1",
            "--num-classes 1: {}/label/dict.txt has 2 classes; give their number, or the data",
        ),
        (
            "--num-classes 3",
            "--num-classes 3: {}/label/dict.txt has 2 classes; give their number, or the data",
        ),
    ],
)
def test_the_number_of_classes_is_that_of_the_labels(texts, tmp_path, words, sentence):
    with pytest.raises(UsageError) as error:
        trained(texts / "classes", tmp_path, f"{FINETUNE} --arch modular_roberta {words}")
    assert str(error.value).startswith(sentence.format(texts / "classes"))


def write_items(path, number):
    """Write binarized data of so many lines, with a word in each."""
    builder = indexed_dataset.make_builder(f"{path}.bin", "mmap", vocab_size=40)
    for _ in range(number):
        builder.add_item(torch.tensor([4, 2]))
    builder.finalize(f"{path}.idx")


@pytest.mark.parametrize(
    ("kind", "damage", "sentence"),
    [
        (
            "classes",
            lambda data: (data / "label/valid.bin").unlink(),
            "{} has no file label/valid.bin, which the part valid of a classification needs",
        ),
        (
            "classes",
            lambda data: write_items(data / "input0/valid", 0),
            "{}/input0/valid.bin is empty; prepare the classification with inputs and labels in the part",
        ),
        (
            "classes",
            lambda data: write_items(data / "label/valid", 3),
            "the part valid of {} has 3 lines in label and 12 in input0; prepare the classification again",
        ),
        (
            "classes",
            lambda data: write_items(data / "label/train1", 3),
            "the part train of {} has 83 lines in label and 80 in input0",
        ),
        (
            "classes",
            lambda data: (data / "input1").mkdir(),
            "{} has no file input1/valid.idx, which the part valid of a classification needs",
        ),
        (
            "values",
            lambda data: (data / "label/valid.label").write_text("1\n\n3\n"),
            "{}/label/valid.label, line 2: '' is no number; give the value of each input",
        ),
        (
            "values",
            lambda data: (data / "label/train.label").write_text("1\n2 3\n"),
            "{}/label/train.label, line 2: has 2 values; give --num-classes 2, or 1 in each line",
        ),
        (
            "values",
            lambda data: (data / "label/train.label").write_text("1\n2\n"),
            "the part train of {} has 2 lines in label and 80 in input0",
        ),
        (
            "values",
            lambda data: (data / "label/valid.label").write_text(""),
            "{}/label/valid.label is empty",
        ),
    ],
)
def test_labels_that_do_not_fit_the_inputs_are_one_sentence(texts, tmp_path, kind, damage, sentence):
    data = tmp_path / "data"
    shutil.copytree(texts / kind, data)
    damage(data)
    words = FINETUNE if kind == "classes" else f"{FINETUNE} --num-classes 1 --regression-target"
    with pytest.raises(UsageError) as error:
        trained(data, tmp_path / "out", f"{words} --arch modular_roberta")
    assert str(error.value).startswith(sentence.format(data))


def test_tasks_still_build_what_they_are(texts):
    """A task that inherits from sentence_prediction is not taken for it."""
    cfg = train_config(texts / "classes", *f"{FINETUNE} --arch modular_roberta".split(), common=())
    from fairseq.tasks.sentence_prediction import SentencePredictionTask

    class Mine(SentencePredictionTask):
        pass

    assert type(Mine.setup_task(cfg.task)) is Mine
    assert type(tasks.setup_task(cfg.task)) is SentencePredictionTask


def test_gate_parameters_of_a_masked_language_model_are_outside_the_main_optimizer(texts):
    trainer = watched(texts, "--criterion", "masked_lm")
    main = {id(p) for group in trainer.trainer.optimizer.param_groups for p in group["params"]}
    assert gate_parameters(trainer.model) and not main & {id(p) for p in gate_parameters(trainer.model)}
