"""Test --loss-chunk-size with fairseq-train: translation and language models, and number formats."""

import shutil

import pytest
import torch

from tests.fairseq_commands import run_train, weights
from tests.watched_trainer import Watched


@pytest.mark.parametrize(
    "flags",
    ["", "--amp", "--bf16", "--fp16 --fp16-init-scale 4", "--task language_modeling --tokens-per-sample 16"],
)
def test_a_training_with_chunks_ends_as_another_one(reversal_data, tmp_path, flags):
    data, ends = reversal_data, []
    if "language" in flags:  # of the German side
        data = tmp_path / "bin"
        data.mkdir()
        for path in reversal_data.glob("*.de-en.de.*"):
            shutil.copy(path, data / path.name.replace(".de-en.de", ""))
        shutil.copy(reversal_data / "dict.de.txt", data / "dict.txt")
    for chunks in ("0", "20"):
        model = "modular_transformer_lm" if "language" in flags else "dma_transformer"
        options = ["--arch", model, "--criterion", "modular_cross_entropy", "--label-smoothing", "0.1"]
        options += ["--loss-chunk-size", chunks, "--save-dir", tmp_path / chunks, "--max-epoch", 2, "--cpu"]
        tiny = ["--decoder-layers", 1, "--decoder-embed-dim", 32, "--decoder-attention-heads", 4]
        tiny += ["--encoder-layers", 1, "--encoder-embed-dim", 32] if "language" not in flags else []
        # Adam would make steps of full size of gradients that are 0 but for rounding.
        optimize = ["--optimizer", "sgd", "--lr", "0.5", "--max-tokens", 160]
        run_train(data, *options, *flags.split(), common=[*map(str, tiny + optimize)])
        ends.append(weights(tmp_path / chunks / "checkpoint_last.pt"))
    tolerance = 2e-2 if flags.startswith(("--amp", "--bf16", "--fp16")) else 1e-4
    for name, weight in ends[0].items():
        if not name.endswith("k_proj.bias"):  # its gradient is 0 but for rounding
            torch.testing.assert_close(ends[1][name], weight, atol=tolerance, rtol=tolerance)


def test_logits_are_computed_for_as_many_words_as_the_option_says(reversal_data):
    words = ["--criterion", "modular_cross_entropy", "--loss-chunk-size", "16"]
    watched, rows = Watched(reversal_data, *words, arch="modular_transformer"), []
    watched.model.decoder.output_projection.register_forward_hook(
        lambda module, inputs, output: rows.append(output.numel() // output.size(-1))
    )
    sample = watched.batches[0]
    with torch.no_grad():
        watched.trainer.criterion(watched.model, sample)
    assert rows == [16, 16, 8] and sum(rows) == sample["target"].numel()
