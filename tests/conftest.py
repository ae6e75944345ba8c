"""Tests run on one thread: results do not depend on how a machine splits sums, and two test runs do not fight
over cores.
"""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def reversal_data(tmp_path_factory):
    """A binarized corpus of random words and their reversals."""
    from tests.fairseq_commands import binarize, write_reversal_corpus

    folder = tmp_path_factory.mktemp("reversal")
    write_reversal_corpus(folder)
    binarize(folder, folder / "bin")
    return folder / "bin"
