"""Let fairseq's generator search in fewer kernels."""

from collections.abc import Callable
from typing import Any

from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from modular_fairseq.patches.registry import replace
from modular_fairseq.search.beam_search import beam_search, can_search


@replace("fairseq.sequence_generator.SequenceGenerator._generate")
def search_in_fewer_kernels(
    generate: Callable,
    generator: SequenceGenerator,
    sample: dict[str, Any],
    prefix_tokens: Tensor | None = None,
    constraints: Tensor | None = None,
    bos_token: int | None = None,
) -> list[list[dict[str, Tensor]]]:
    """Search for the best translations of this package's models in fewer kernels, with the same result.

    Beside the model's kernels, every step of fairseq's generator launches 50 kernels of its own and waits 10
    times for the device (fairseq/sequence_generator.py:200-555). It still searches with prefixes,
    constraints or sampling, and for fairseq's own models.
    """
    if can_search(generator, prefix_tokens, constraints):
        return beam_search(generator, sample, bos_token)
    return generate(generator, sample, prefix_tokens, constraints, bos_token)
