"""Check that a command ends with one sentence."""

import re

import pytest


def refusal(run, *args):
    """Return the sentence with which a command of `modular-fairseq` ends, with what precedes it.

    Args:
        run: calls the command with `args` in this process.
    """
    with pytest.raises(SystemExit) as caught:
        run(*args)
    message = str(caught.value)
    assert re.fullmatch(r"modular-fairseq( [a-z-]+)?: error: .+", message), message
    return message
