"""Test that tiny models of every architecture learn a small task through fairseq's own training."""

import pytest

from tests.fairseq_commands import (
    binarize,
    run_generate,
    run_train,
    write_reversal_corpus,
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reversal")
    write_reversal_corpus(folder, train_pairs=2000, types=8, longest=5)
    binarize(folder, folder / "bin")
    return folder


@pytest.mark.parametrize(
    "arch",
    [
        "modular_transformer",
        "mae_transformer",
        "dma_transformer",
        "multistream_transformer",
        "tim_transformer",
    ],
)
def test_a_tiny_model_learns_to_reverse(corpus, tmp_path, arch):
    recipe = ["--optimizer", "adam", "--adam-betas", "(0.9,0.98)", "--max-tokens", "300", "--dropout", "0"]
    recipe += [
        "--criterion",
        *(
            ["modular_cross_entropy", "--aux-warmup-updates", "200"]
            if arch.startswith("dma")
            else ["cross_entropy"]
        ),
    ]
    recipe += [
        "--lr-scheduler",
        "polynomial_decay",
        "--lr",
        "4e-3",
        "--warmup-updates",
        "28",
        "--total-num-update",
        "200",
    ]
    gates = ["--mae-gate-interval", "2"] if arch.startswith("mae") else []
    run_train(
        corpus / "bin",
        "--arch",
        f"{arch}_tiny_cpu",
        *gates,
        "--max-update",
        200,
        "--disable-validation",
        "--save-interval",
        1000,  # and at the end
        "--save-dir",
        tmp_path / "checkpoints",
        common=recipe,
    )
    hypotheses, _ = run_generate(corpus / "bin", tmp_path / "checkpoints" / "checkpoint_last.pt")
    references = (corpus / "test.en").read_text().splitlines()
    right = sum(h == r for h, r in zip(hypotheses, references, strict=True))
    assert right >= 10, f"{right} of 12 test sentences"
