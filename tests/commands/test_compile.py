"""Test --compile with torch's own compiler: training, validation by translation, resuming and translating."""

import pytest
import torch

from modular_fairseq.training import compilation
from tests.compiling import compiling
from tests.fairseq_commands import run_generate, run_train, weights

NO_COMPILER = compilation.missing("cpu")


@pytest.mark.skipif(NO_COMPILER is not None, reason=str(NO_COMPILER))
def test_a_compiled_training_ends_as_another_one_and_resumes(reversal_data, tmp_path):
    args = ["--arch", "modular_transformer", "--dropout", 0, "--eval-bleu", "--eval-bleu-args", '{"beam": 2}']
    run_train(reversal_data, *args, "--max-epoch", 3, "--save-dir", tmp_path / "plain", "--cpu")
    with compiling() as counters:
        for max_epoch, flags in ((1, ["--compile"]), (2, ["--compile"]), (3, [])):
            options = [*flags, "--max-epoch", max_epoch, "--save-dir", tmp_path / "compiled", "--cpu"]
            run_train(reversal_data, *args, *options)
        assert counters["stats"]["unique_graphs"] > 1
    plain, compiled = (weights(tmp_path / name / "checkpoint_last.pt") for name in ("plain", "compiled"))
    assert list(plain) == list(compiled)
    for name, weight in plain.items():
        if not name.endswith("k_proj.bias"):  # its gradient is 0 but for rounding
            torch.testing.assert_close(compiled[name], weight, atol=1e-4, rtol=1e-4)
    found = [
        run_generate(reversal_data, tmp_path / name / "checkpoint_last.pt", "--cpu")[0]
        for name in ("plain", "compiled")
    ]
    assert found[0] == found[1]
