"""Names of numpy that fairseq uses and a current numpy no longer has."""

from types import SimpleNamespace

import numpy as np

from modular_fairseq.patches.registry import change


@change("numpy.compat")
def give_numpy_compat_long() -> None:
    """`np.compat.long` is `int` where numpy has no `np.compat`, as since numpy 2.4.

    fairseq asks for it in --sample-break-mode eos and in `build_dataset_for_inference` of language models and
    masked language models (fairseq/data/token_block_dataset.py:125), and in --num-batch-buckets
    (fairseq/data/language_pair_dataset.py:292); without the name they crash.
    """
    if not hasattr(np, "compat"):
        np.compat = SimpleNamespace(long=int)
