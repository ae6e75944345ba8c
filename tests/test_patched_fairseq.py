"""fairseq with its defects mended by patches/: data, copies of checkpoints, options."""

import shutil

import numpy as np
import pytest
from fairseq import options
from fairseq.data import data_utils
from fairseq.file_io import PathManager

import modular_fairseq  # noqa: F401
from modular_fairseq_cli.errors import UsageError


@pytest.mark.parametrize("sentences", [0, 1, 7, 8, 12, 17])
def test_no_sentence_is_left_out_of_the_batches(sentences):
    indices = np.arange(sentences)[::-1].copy()
    lengths = np.full(sentences, 10)
    batches = data_utils.batch_by_size(
        indices, lambda i: 10, lengths, max_tokens=80, required_batch_size_multiple=8
    )
    assert [i for batch in batches for i in batch] == indices.tolist()
    assert all(len(batch) <= 8 for batch in batches)


def test_a_copy_that_is_killed_leaves_the_old_file(tmp_path, monkeypatch):
    new, last = tmp_path / "checkpoint2.pt", tmp_path / "checkpoint_last.pt"
    new.write_text("new and whole")
    last.write_text("old")

    def killed(source, target):
        with open(target, "w") as file:
            file.write("new and")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", killed)
        with pytest.raises(KeyboardInterrupt):
            PathManager.copy(str(new), str(last), overwrite=True)
    assert last.read_text() == "old"
    assert PathManager.copy(str(new), str(last), overwrite=True)
    assert last.read_text() == "new and whole"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint2.pt", "checkpoint_last.pt"]


def test_an_option_of_our_criterion_is_named_and_any_other_is_left_to_fairseq():
    for arguments, expected in (
        (["--kl-weight", "1"], UsageError),
        (["--qq-weight=1"], UsageError),
        (["--kl-wieght", "1"], SystemExit),
    ):
        parser = options.get_training_parser()
        with pytest.raises(expected):
            options.parse_args_and_arch(parser, ["data", "--arch", "transformer", *arguments])
