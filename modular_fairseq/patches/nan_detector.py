"""Let fairseq name the module in which numbers overflow."""

from collections.abc import Callable, Iterator
from typing import Any

from fairseq.nan_detector import NanDetector
from torch import Tensor, nn

from modular_fairseq.patches.registry import replace


@replace("fairseq.nan_detector.NanDetector.add_hooks")
def watch_gradients_in_dictionaries(add_hooks: Callable, detector: NanDetector, module: nn.Module) -> None:
    """Let a training whose numbers overflow name the module where that began, also in the backward pass.

    If gradients are infinite or NaN, fairseq repeats the step with hooks at all modules. It names the first
    output with such values, and the first such gradient of an output (fairseq/trainer.py:984-990). The hook
    that fairseq sets for gradients (fairseq/nan_detector.py:51) fails for modules that return a dictionary of
    lists, as encoders do. The training ended in a StopIteration, for fairseq's own models too. This patch
    gives each tensor of an output a hook of its own. It also turns off the programs of --compile, because
    they call no hooks of the modules in a compiled layer.
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
