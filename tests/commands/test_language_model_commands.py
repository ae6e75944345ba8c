"""Test that fairseq's commands train, evaluate and sample language models with every mechanism."""

import math
import re
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils, options
from fairseq.data import indexed_dataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics
from fairseq_cli import eval_lm

from modular_fairseq.training.checkpoints import load_checkpoint
from modular_fairseq_cli.errors import UsageError
from tests.fairseq_commands import run_generate, run_preprocess, run_train, write_reversal_corpus

SIZE = "--decoder-embed-dim 32 --decoder-ffn-embed-dim 32 --decoder-attention-heads 4"
COMMON = f"--task language_modeling --optimizer adam --lr 5e-3 --max-tokens 64 --max-epoch 2 {SIZE}"
PLAIN, MAE = (f"--arch {name}_transformer_lm" for name in ("modular", "mae"))
OURS = "--criterion modular_cross_entropy"
UNTIED = "--adaptive-input --adaptive-input-cutoff 6,10 --adaptive-softmax-cutoff 8"
TIED = (
    "--adaptive-input --adaptive-input-cutoff 6,10 --adaptive-softmax-cutoff 6,10 --tie-adaptive-weights "
    "--tie-adaptive-proj"
)
EOS = 2
SHARED = "--share-decoder-input-output-embed"
BLOCKS, COMPLETE, SENTENCES = (f"--sample-break-mode {name}" for name in ("none", "complete", "eos"))
DMA, BOTH = "--attention-type dma", "--attention-type mae+dma"
TIM = "--tim-layers all --tim-mechanisms 2"
F_AND_G = "--mae-gate-interval 2"
# Each pair of an attention, a kind of layers, a softmax and a kind of blocks occurs, as far as it can.
GRID = {
    "mae": f"{MAE} {F_AND_G} --decoder-layers 1 {SHARED} {BLOCKS} --criterion cross_entropy",
    "mae-recomputed": f"{MAE} {F_AND_G} --decoder-layers 2 {TIED} {BLOCKS} {OURS} --checkpoint-activations",
    "mae-prefix": f"{MAE} {F_AND_G} --mae-gate-context prefix --decoder-layers 1 {UNTIED} {COMPLETE} "
    "--criterion adaptive_loss --ddp-backend legacy_ddp",
    "mae-joint": f"{MAE} --mae-training joint --decoder-layers 1 {TIED} {SENTENCES} {OURS}",
    "mae-tim": f"{MAE} {F_AND_G} {TIM} --decoder-layers 2 {UNTIED} {SENTENCES} {OURS}",
    "dma": f"{PLAIN} {DMA} --decoder-layers 1 {UNTIED} {BLOCKS} {OURS}",
    "dma-tim": f"{PLAIN} {DMA} {TIM} --decoder-layers 1 {TIED} {COMPLETE} {OURS} --checkpoint-activations",
    "mae-dma": f"{PLAIN} {BOTH} {F_AND_G} --decoder-layers 1 {SHARED} {SENTENCES} {OURS}",
    "mae-dma-tim": f"{PLAIN} {BOTH} {F_AND_G} {TIM} --decoder-layers 1 {TIED} {BLOCKS} {OURS} "
    "--checkpoint-activations",
    "tim": f"{PLAIN} {TIM} --decoder-layers 1 {TIED} {BLOCKS} --criterion adaptive_loss --ddp-backend "
    "legacy_ddp",
    "tim-middle": f"{PLAIN} --tim-layers middle --decoder-layers 4 {SHARED} {COMPLETE} {OURS}",
    "no-competition": f"{PLAIN} {TIM} --tim-no-competition --decoder-layers 1 {UNTIED} {SENTENCES} {OURS}",
    "plain": f"{PLAIN} --decoder-layers 1 {UNTIED} {BLOCKS} {OURS}",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Binarize sentences of random words, which repeat themselves in the second half of each sentence."""
    folder = tmp_path_factory.mktemp("text")
    write_reversal_corpus(folder)
    for split in ("train", "valid", "test"):
        (folder / split).write_text((folder / f"{split}.en").read_text())
    prefixes = [
        word for split in ("train", "valid", "test") for word in (f"--{split}pref", f"{folder}/{split}")
    ]
    run_preprocess("--only-source", "--destdir", folder / "bin", *prefixes)
    return folder / "bin"


def trained(data, folder, words):
    """Train a model, and return the path of its last checkpoint."""
    words = [*COMMON.split(), "--tokens-per-sample", "16", "--save-dir", str(folder), *words.split()]
    run_train(data, *words, common=())
    return folder / "checkpoint_last.pt"


def loss_by_eval_lm(data, path, *words):
    """Return the loss in bits per token that fairseq-eval-lm measures."""
    metrics.reset()
    parser = options.get_eval_lm_parser()
    words = ["--path", str(path), "--gen-subset", "test", "--max-tokens", "64", "--num-workers", "0", *words]
    found = eval_lm.main(
        convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, [str(data), *words]))
    )
    return found["loss"]


# The parts of a state_dict that a mechanism adds, and the names in GRID that have them.
PARTS = {
    "gate.gate_network": r"\bmae",
    "mask.": "dma",
    "communication": "tim|competition",
    "competition": r"\btim",
}


def loaded(path, data):
    """Return a trained model in evaluation mode, and its dictionary."""
    models, _, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(path)], arg_overrides={"data": str(data)}
    )
    return models[0].eval(), task.target_dictionary


@torch.no_grad()
def bits_of(model, tokens, before):
    """Return the bits of each of the tokens [T] after the token `before` and those in front of it."""
    inputs = torch.cat([torch.tensor([before]), tokens[:-1]])
    log_probs = model.get_normalized_probs(model(inputs[None]), log_probs=True)[0]
    return -log_probs.gather(1, tokens[:, None]).squeeze(1) / math.log(2)


def naive_loss(model, data, new, context, subset="test"):
    """Return the bits per token of a part of the data, in blocks of `new` tokens after `context` others."""
    dataset = indexed_dataset.make_dataset(str(data / subset), "mmap")
    tokens = torch.cat([dataset[k] for k in range(len(dataset))])
    total = 0.0
    for begin in range(0, len(tokens), new):
        first = max(begin - context, 0)
        before = int(tokens[first - 1]) if first else EOS
        total += float(bits_of(model, tokens[first : begin + new], before)[begin - first :].sum())
    return total / len(tokens)


@pytest.mark.parametrize("name", GRID)
def test_every_mechanism_trains_is_evaluated_and_samples(data, tmp_path, name):
    """Its parts are there and learn. fairseq-eval-lm shows the loss of naive passes, with a context and
    without one. The search, which decodes step by step, keeps the beginnings, and its scores equal the scores
    of one pass over the whole text.
    """
    path = trained(data, tmp_path, GRID[name])
    first, last = (load_checkpoint(each)["model"] for each in (tmp_path / "checkpoint1.pt", path))
    moved = {key for key in last if last[key].is_floating_point() and not first[key].equal(last[key])}
    for part, names in PARTS.items():
        of_part = {key for key in last if part in key}
        assert bool(of_part) == bool(of_part & moved) == bool(re.search(names, name)), part

    model, dictionary = loaded(path, data)
    for size, context in ((16, 0), (16, 12)):
        words = ["--tokens-per-sample", str(size), "--context-window", str(context)]
        found = loss_by_eval_lm(data, path, "--sample-break-mode", "none", *words)
        assert found == pytest.approx(naive_loss(model, data, size - context, context), abs=2e-3)

    words = ["--task", "language_modeling", "--sample-break-mode", "eos", "--prefix-size", "2"]
    hypotheses, out = run_generate(data, path, *words, "--beam", "2", "--max-len-b", "8")
    targets = [line.split("\t")[1].split()[:2] for line in out.splitlines() if line.startswith("T-")]
    assert len(hypotheses) == 12 and sorted(targets) == sorted(each.split()[:2] for each in hypotheses)
    lines = dict(re.findall(r"^([HP]-\d+)\t(?:-[\d.]+\t)?(.*)$", out, re.MULTILINE))
    for number in range(12):
        text = dictionary.encode_line(lines[f"H-{number}"], add_if_not_exist=False, append_eos=True).long()
        scores = [-float(score) for score in lines[f"P-{number}"].split()]
        expected = bits_of(model, text, EOS).tolist()[: len(scores)]
        assert scores == pytest.approx(expected, abs=2e-3)


def test_words_are_sampled_by_their_probabilities(data, tmp_path):
    """Of each of 60 sentences, 15 samples continue the first two words. In all of them together, each next
    word is about as frequent as its probabilities say.
    """
    path = trained(data, tmp_path, GRID["mae"])
    model, dictionary = loaded(path, data)
    words = "--task language_modeling --sample-break-mode eos --prefix-size 2 --sampling --nbest 15 --seed 1"
    words += " --gen-subset train --max-len-b 3"
    _, out = run_generate(data, path, *words.split(), "--beam", "15")
    shares, expected, number = torch.zeros(len(dictionary)), torch.zeros(len(dictionary)), 0
    for text in re.findall(r"^H-\d+\t-[\d.]+\t(.*)$", out, re.MULTILINE):
        tokens = dictionary.encode_line(text, add_if_not_exist=False, append_eos=True).tolist()
        with torch.no_grad():
            inputs = torch.tensor([[EOS, *tokens[:2]]])
            expected += model.get_normalized_probs(model(inputs), log_probs=False)[0, -1]
        shares[tokens[2]] += 1
        number += 1
    assert number == 60 * 15
    assert ((shares - expected) / number).abs().max() < 0.06
    assert (shares / number - 1 / len(dictionary)).abs().max() > 0.1  # they are not equally frequent


def test_recomputed_activations_change_no_weight(data, tmp_path):
    words = GRID["mae-recomputed"]
    assert "--checkpoint-activations" in words
    paths = [
        trained(data, tmp_path / name, given)
        for name, given in (("with", words), ("without", words.replace("--checkpoint-activations", "")))
    ]
    ours, theirs = (load_checkpoint(path)["model"] for path in paths)
    assert ours.keys() == theirs.keys()
    assert all(torch.allclose(ours[key], theirs[key], atol=1e-6) for key in ours)


@pytest.mark.parametrize("words", [f"{MAE} {F_AND_G}", f"{PLAIN} {TIM}"])
def test_blocks_of_3072_tokens(tmp_path, words):
    write_reversal_corpus(tmp_path, train_pairs=2000)
    prefixes = ["--trainpref", f"{tmp_path}/train.en", "--validpref", f"{tmp_path}/valid.en"]
    run_preprocess("--only-source", "--destdir", tmp_path / "bin", *prefixes)
    long = "--tokens-per-sample 3072 --max-tokens 3072 --decoder-layers 1 --decoder-attention-heads 2"
    path = trained(tmp_path / "bin", tmp_path, f"{words} {SHARED} {OURS} {long}")
    assert load_checkpoint(path)["optimizer_history"][-1]["num_updates"] >= 4
    by_eval_lm = ["--gen-subset", "train", "--tokens-per-sample", "3072", "--max-tokens", "3072"]
    model, _ = loaded(path, tmp_path / "bin")
    expected = naive_loss(model, tmp_path / "bin", 3072, 0, "train")
    assert loss_by_eval_lm(tmp_path / "bin", path, *by_eval_lm) == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize(("window", "left"), [(16, 0), (20, -4)])
def test_a_context_as_long_as_a_block_is_one_sentence(data, tmp_path, window, left):
    path = trained(data, tmp_path, f"{GRID['plain']} --max-update 1")
    given = ["--tokens-per-sample", "16", "--context-window", str(window)]
    with pytest.raises(
        UsageError, match=f"^--tokens-per-sample, less the --context-window of .*, is {left}, so no token"
    ):
        loss_by_eval_lm(data, path, *given)


def test_a_part_of_the_data_that_does_not_exist_is_one_sentence(data, tmp_path):
    path = trained(data, tmp_path, f"{GRID['plain']} --max-update 1")
    sentence = r"bin has no part test2 \(test2.idx and test2.bin\); prepare the text with it, or name another"
    with pytest.raises(UsageError, match=sentence):
        loss_by_eval_lm(data, path, "--tokens-per-sample", "16", "--gen-subset", "test2")


def test_a_model_that_translates_is_refused(data):
    path = Path(__file__).parents[1] / "fixtures/v0.1/mae-prefix.pt"
    sentence = "has a model for --task translation; this command needs a model for --task language_modeling$"
    with pytest.raises(UsageError, match=f"^{path} {sentence}"):
        loss_by_eval_lm(data, path)


def test_blocks_beyond_the_positions_are_refused(data, tmp_path):
    """fairseq would leave them out, and show the perplexity of the rest, or 1.00."""
    path = trained(data, tmp_path, f"{GRID['plain']} --max-update 1")
    for words in ([], ["--tokens-per-sample", "17"]):
        with pytest.raises(UsageError, match="a block has .* tokens, and the model has 16 positions, so its"):
            loss_by_eval_lm(data, path, *words)
    assert loss_by_eval_lm(data, path, "--tokens-per-sample", "16") > 0
    window = [
        "--context-window",
        "12",
        "--tokens-per-sample",
    ]  # a block gets 12 tokens of context
    assert loss_by_eval_lm(data, path, *window, "16") > 0
    with pytest.raises(UsageError, match="^a block with its --context-window has 17 tokens, and the model"):
        loss_by_eval_lm(data, path, *window, "17")


def test_an_empty_line_is_continued_from_nothing(data, tmp_path):
    path = trained(data, tmp_path, f"{GRID['plain']} --max-update 1")
    (tmp_path / "test").write_text("w1 w2 w3 w4\n\nw5\nw6 w7 w8\n")
    words = ["--only-source", "--srcdict", str(data / "dict.txt"), "--destdir", str(tmp_path / "bin")]
    run_preprocess(*words, "--testpref", tmp_path / "test")
    words = ["--task", "language_modeling", "--sample-break-mode", "eos", "--prefix-size", "2"]
    hypotheses, _ = run_generate(tmp_path / "bin", path, *words, "--beam", "3", "--max-len-b", "6")
    assert [text.split()[:2] for text in hypotheses[::3]] == [["w1", "w2"], ["w6", "w7"]]
    assert hypotheses[2].split() == ["w5"] and hypotheses[1].split()
