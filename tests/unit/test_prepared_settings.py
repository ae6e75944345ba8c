"""Test how a folder that was prepared with other settings or files is refused."""

import json

import pytest

from modular_fairseq_cli.corpora.settings import compare
from modular_fairseq_cli.errors import UsageError

CHOSEN = {
    "merges": 8000,
    "valid": None,
    "train_files": ["train"],
    "files": {"train.de": "a", "valid.de": "b"},
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, None),
        ({"merges": 10}, "with merges 8000 (now 10);"),
        ({"valid": "given", "merges": 10}, 'with merges 8000 (now 10), valid not given (now "given");'),
        ({"files": {"train.de": "c", "valid.de": "b"}}, "train.de is not the file that"),
        ({"files": {"train.de": "a"}}, "valid.de is not the file that"),
        ({"files": {"train.de": "a", "valid.de": "b", "more.de": "d"}}, "more.de is not the file that"),
        (
            {"train_files": ["train", "more"], "files": {"train.de": "a", "more.de": "d"}},
            'with train files ["train"] (now ["train", "more"]);',
        ),
    ],
)
def test_what_differs_is_named(tmp_path, changes, said):
    """Nothing but what `prepare` has written is to be removed."""
    (tmp_path / "settings").write_text(json.dumps(CHOSEN))
    (tmp_path / "bin").mkdir()
    (tmp_path / "mine").mkdir()
    if said is None:
        compare(tmp_path, CHOSEN | changes)
        return
    with pytest.raises(UsageError) as error:
        compare(tmp_path, CHOSEN | changes)
    assert said in str(error.value)
    assert str(error.value).endswith(f"; give another folder, or remove bin and settings from {tmp_path}")
