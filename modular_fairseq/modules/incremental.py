"""Modules that keep state from one step of incremental decoding to the next, as fairseq's own modules do."""

from collections.abc import Callable
from typing import Any

from fairseq.incremental_decoding_utils import FairseqIncrementalState
from torch import nn


class IncrementalModule(FairseqIncrementalState, nn.Module):
    """A module that keeps state in fairseq's dictionary `incremental_state`, which belongs to one batch.

    `get_incremental_state(incremental_state, key)` returns what this module has stored under `key`, or None.
    `set_incremental_state(incremental_state, key, value)` stores it. If the dictionary is None, as in
    training, nothing is stored. Modules never share state, as each has keys of its own.
    """

    get_incremental_state: Callable[[dict | None, str], Any]
    set_incremental_state: Callable[[dict | None, str, Any], dict | None]
