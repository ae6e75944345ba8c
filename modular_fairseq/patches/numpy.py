"""Let fairseq work with a current numpy, which no longer has some names that fairseq uses."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import numpy as np

from modular_fairseq.patches.registry import change, replace


@change("numpy.compat")
def give_numpy_compat_long() -> None:
    """Provide `np.compat.long` as `int` if numpy has no `np.compat`, which is the case since numpy 2.4.

    fairseq uses this name for --sample-break-mode eos and in `build_dataset_for_inference` of language models
    and masked language models (fairseq/data/token_block_dataset.py:125). It also uses it for
    --num-batch-buckets (fairseq/data/language_pair_dataset.py:292). Without the name, all of these crash.
    """
    if not hasattr(np, "compat"):
        vars(np)["compat"] = SimpleNamespace(long=int)


@replace(
    *(
        f"fairseq.data.{module}.get_buckets"
        for module in ("data_utils", "bucket_pad_length_dataset", "audio.raw_audio_dataset")
    )
)
def get_buckets_from_numpy_2(get_buckets: Callable, sizes: Sequence[int], num_buckets: int) -> np.ndarray:
    """Let --num-batch-buckets compute percentiles with the current name of an argument of `np.percentile`.

    fairseq calls this argument `interpolation` (fairseq/data/data_utils.py:875-883). It is called `method`
    since numpy 1.22, and numpy 2.4 rejects the old name.
    """
    upper_bounds = np.percentile(sizes, np.linspace(0, 100, num_buckets + 1), method="lower")[1:]
    return np.unique(upper_bounds)
