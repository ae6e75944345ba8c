"""Adaptive input ("Adaptive Input Representations", Baevski and Auli 2019) for several workers."""

import fairseq.modules
from torch import Tensor


class AdaptiveInput(fairseq.modules.AdaptiveInput):
    """fairseq's adaptive input, in which words that do not occur in a batch get gradients of zeros.

    In fairseq's, the parameters of a band without a word get none, and torch's DistributedDataParallel waits
    for them.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the embeddings [..., D] of words [...]."""
        result = self._float_tensor.new_empty(*input.shape, self.embedding_dim)
        start = 0
        for end, band in zip(self.cutoff, self.embeddings, strict=True):
            words = (input >= start) & (input < end)
            result[words] = band(input[words] - start).to(result)
            start = end
        return result
