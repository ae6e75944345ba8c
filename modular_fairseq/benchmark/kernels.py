"""Count the kernels that a piece of work launches, and its waits for their results.

On a GPU small models spend most of their time on launching kernels. Launches can be counted on any machine,
as each one follows a call of an aten operation. The count depends on the model, the options, the sizes and
the version of torch, but not on the speed of the machine.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"
PHASES = (FORWARD, BACKWARD, UPDATE)

# These operations launch no kernel, although torch does not call them views. They allocate memory, return a
# number or a type, or make a number on the CPU.
WITHOUT_KERNEL = {
    "_local_scalar_dense",
    "_unsafe_view",
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "promote_types",
    "scalar_tensor",
}
# The CPU waits for the results of these operations, as it needs a value or the number of results.
WAITING = {
    "_local_scalar_dense",
    "_unique",
    "_unique2",
    "equal",
    "lift_fresh",  # `torch.tensor` copies numbers from the CPU
    "masked_select",
    "nonzero",
    "unique_consecutive",
    "unique_dim",
}
# These methods of a tensor copy it to the CPU. On a CPU they call no operation.
COPIES = {getattr(Tensor, name): name for name in ("cpu", "numpy", "tolist")}


@dataclass
class Count:
    """The operations of one piece of work.

    Attributes:
        kernels: number of calls of each operation that launches a kernel, by phase and name.
        waits: number of waits for the device, by phase and operation.
    """

    kernels: dict[str, Counter[str]] = field(default_factory=lambda: {phase: Counter() for phase in PHASES})
    waits: dict[str, Counter[str]] = field(default_factory=lambda: {phase: Counter() for phase in PHASES})

    def total(self, *phases: str) -> float:
        """Return the number of kernels in some phases, or in all."""
        return sum(self.kernels[phase].total() for phase in phases or PHASES)

    def total_waits(self) -> float:
        """Return the number of waits in all phases."""
        return sum(self.waits[phase].total() for phase in PHASES)

    def most_common(self, number: int) -> Sequence[tuple[str, float]]:
        """Return the operations with most calls, and their numbers."""
        return sum(self.kernels.values(), Counter()).most_common(number)

    def most_waits(self) -> Sequence[tuple[str, float]]:
        """Return the operations that wait, and their numbers."""
        return sum(self.waits.values(), Counter()).most_common()

    def beyond(self, other: "Count", steps: int) -> "Count":
        """Return what one step takes, if this work has `steps` steps more than `other`."""

        def per_step(mine: dict[str, Counter[str]], theirs: dict[str, Counter[str]]) -> dict[str, Counter]:
            return {
                phase: Counter({name: n / steps for name, n in (mine[phase] - theirs[phase]).items()})
                for phase in PHASES
            }

        return Count(per_step(self.kernels, other.kernels), per_step(self.waits, other.waits))


@contextmanager
def counting() -> Iterator[Count]:
    """Count the operations inside the block.

    fairseq's `Trainer` marks its phases by `torch.profiler.record_function`. What is outside of a forward and
    a backward pass belongs to the update: the norm of the gradient, the optimizer and the log.
    """
    count = Count()
    with ExitStack() as stack:
        operations = stack.enter_context(_Operations(count))
        stack.enter_context(_Copies(count, operations))
        yield count


class _Operations(TorchDispatchMode):
    """Count every call of an operation that is no view."""

    def __init__(self, count: Count):
        super().__init__()
        self.count = count
        self.ranges: list[str] = []

    @property
    def phase(self) -> str:
        """The phase that the present operation belongs to."""
        return next((name for name in reversed(self.ranges) if name in (FORWARD, BACKWARD)), UPDATE)

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = operation.overloadpacket.__name__
        if name.startswith("_record_function"):
            if name.startswith("_record_function_enter"):
                self.ranges.append(args[0])
            else:
                self.ranges.pop()
        else:
            is_view = operation.is_view or torch.Tag.inplace_view in operation.tags
            if not is_view and name not in WITHOUT_KERNEL:
                self.count.kernels[self.phase][name] += 1
            if name in WAITING or _looks_up_a_mask(name, args):
                self.count.waits[self.phase][name] += 1
        return operation(*args, **(kwargs or {}))


class _Copies(TorchFunctionMode):
    """Count every method call that copies a tensor to the CPU."""

    def __init__(self, count: Count, operations: _Operations):
        super().__init__()
        self.count, self.operations = count, operations

    def __torch_function__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function in COPIES:
            self.count.waits[self.operations.phase][COPIES[function]] += 1
        return function(*args, **(kwargs or {}))


def _looks_up_a_mask(name: str, args: tuple) -> bool:
    """Tell whether an operation must first find out how many elements of a bool mask are true.

    torch fills one value by `masked_fill`, which need not know.
    """
    if name not in ("index", "index_put", "index_put_"):
        return False
    masks = any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return masks and (name == "index" or args[2].numel() != 1)
