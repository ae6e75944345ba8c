"""What fairseq-fixed 0.12.3.1 gets wrong and our results would suffer from."""

import functools

from fairseq.data import data_utils


def keep_every_sentence() -> None:
    """Let `batch_by_size` return all sentences; a second call changes nothing.

    Unlike fairseq, fairseq-fixed drops the last batch unless its size is a multiple of --required-batch-size-multiple (8): without a word,
    `fairseq-generate` leaves up to seven sentences of a test set untranslated, and they are the longest ones.
    """
    batch_by_size = data_utils.batch_by_size
    if getattr(batch_by_size, "keeps_every_sentence", False):
        return

    @functools.wraps(batch_by_size)
    def batch_by_size_of_all(indices, *args, fixed_shapes=None, **kwargs):
        if len(indices) == 0:
            return []
        batches = batch_by_size(indices, *args, fixed_shapes=fixed_shapes, **kwargs)
        kept = sum(len(batch) for batch in batches)
        if fixed_shapes is None and kept < len(indices):
            batches.append(indices[kept:])
        return batches

    batch_by_size_of_all.keeps_every_sentence = True
    data_utils.batch_by_size = batch_by_size_of_all
