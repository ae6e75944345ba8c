"""Test that YAML files of users are read, or refused with the line and what would be right."""

import re

import pytest

from modular_fairseq.runs.yaml_files import read_yaml
from modular_fairseq_cli.errors import UsageError


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"a: [", "line 1: "),
        (b"a: 1\nb: *unknown", "line 2: found undefined alias"),
        (b"a: \xff", "can't decode byte 0xff"),
        (b"a: 2020-13-45", "month must be in 1..12"),
        (b"{" * 5000, "recursion"),
    ],
)
def test_what_is_no_yaml_is_refused(text, reason, tmp_path):
    path = tmp_path / "x.yaml"
    path.write_bytes(text)
    with pytest.raises(UsageError, match=re.escape(f"--x {path}: cannot be read (")) as caught:
        read_yaml(path, "give another", "--x")
    assert reason in str(caught.value) and str(caught.value).endswith("); give another")


def test_a_file_that_cannot_be_opened_is_refused(tmp_path):
    with pytest.raises(UsageError, match=rf"^{tmp_path}: cannot be read \(Is a directory\); give another$"):
        read_yaml(tmp_path, "give another")


def test_the_content_is_returned(tmp_path):
    (tmp_path / "x.yaml").write_text("ä: [1, on]\n", encoding="utf-8")
    assert read_yaml(tmp_path / "x.yaml", "") == {"ä": [1, True]}
    assert read_yaml(tmp_path / "x.yaml", "", load=len) == len("ä: [1, on]\n")
