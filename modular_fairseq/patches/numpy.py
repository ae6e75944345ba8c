"""Names of numpy that fairseq uses and a current numpy no longer has."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import numpy as np

from modular_fairseq.patches.registry import change, replace


@change("numpy.compat")
def give_numpy_compat_long() -> None:
    """`np.compat.long` is `int` where numpy has no `np.compat`, as since numpy 2.4.

    fairseq asks for it in --sample-break-mode eos and in `build_dataset_for_inference` of language models and
    masked language models (fairseq/data/token_block_dataset.py:125), and in --num-batch-buckets
    (fairseq/data/language_pair_dataset.py:292); without the name they crash.
    """
    if not hasattr(np, "compat"):
        np.compat = SimpleNamespace(long=int)


@replace(
    *(
        f"fairseq.data.{module}.get_buckets"
        for module in ("data_utils", "bucket_pad_length_dataset", "audio.raw_audio_dataset")
    )
)
def get_buckets_from_numpy_2(get_buckets: Callable, sizes: Sequence[int], num_buckets: int) -> np.ndarray:
    """--num-batch-buckets asks numpy for its percentiles by the name that the argument has today.

    fairseq calls it `interpolation` (fairseq/data/data_utils.py:875-883). It is `method` since numpy 1.22,
    and numpy 2.4 refuses the old name.
    """
    upper_bounds = np.percentile(sizes, np.linspace(0, 100, num_buckets + 1), method="lower")[1:]
    return np.unique(upper_bounds)
