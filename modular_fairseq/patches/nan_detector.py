"""Let fairseq name the module in which numbers overflow."""

from collections.abc import Callable, Iterator
from typing import Any

from fairseq.nan_detector import NanDetector
from torch import Tensor, nn

from modular_fairseq.patches.registry import replace


@replace("fairseq.nan_detector.NanDetector.add_hooks")
def watch_gradients_in_dictionaries(add_hooks: Callable, detector: NanDetector, module: nn.Module) -> None:
    """Let a training whose numbers overflow name the module where that began, also in the backward pass.

    If gradients are infinite or NaN, fairseq repeats the step with hooks at all modules and names the
    first output, and the first gradient of an output, with such values (fairseq/trainer.py:984-990). Its hook
    for gradients (fairseq/nan_detector.py:51) does not take outputs like those of the encoder, a dictionary
    of lists, and ended in a StopIteration, for fairseq's own models too. Here each tensor of an output has a
    hook of its own. Layers that --compile compiled run as they are, as their programs call no hooks of the
    modules in them.
    """
    module._compiled_call_impl = None
    backward, detector.backward = detector.backward, False
    add_hooks(detector, module)
    detector.backward = backward
    if not backward:
        return

    def watch(module: nn.Module, inputs: tuple, output: Any) -> None:
        for tensor in _tensors(output):
            if tensor.requires_grad:
                tensor.register_hook(lambda gradient: detector.bhook_fn(module, None, gradient))

    detector.bhooks.append(module.register_forward_hook(watch))


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, dict | list | tuple):
        for part in output.values() if isinstance(output, dict) else output:
            yield from _tensors(part)
