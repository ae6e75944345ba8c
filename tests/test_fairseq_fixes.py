import numpy as np
import pytest
from fairseq.data import data_utils

import modular_fairseq  # noqa: F401
from modular_fairseq.fairseq_fixes import keep_every_sentence


@pytest.mark.parametrize("sentences", [0, 1, 7, 8, 12, 17])
def test_no_sentence_is_left_out_of_the_batches(sentences):
    keep_every_sentence()
    indices = np.arange(sentences)[::-1].copy()
    lengths = np.full(sentences, 10)
    batches = data_utils.batch_by_size(indices, lambda i: 10, lengths, max_tokens=80, required_batch_size_multiple=8)
    assert [i for batch in batches for i in batch] == indices.tolist()
    assert all(len(batch) <= 8 for batch in batches)
