"""Compare the state of a main optimizer in a checkpoint with the parameters that the optimizer has now."""

from itertools import chain
from typing import Any

import torch
from torch import nn

from modular_fairseq.models.mae import GateTraining, gate_parameters
from modular_fairseq.training.checkpoints import load_checkpoint, options_of
from modular_fairseq_cli.errors import UsageError

PRECISIONS = ("fp16", "bf16", "amp")  # options of fairseq-train


class OtherParametersError(ValueError):
    """The saved state is for other parameters than the optimizer has.

    Attributes:
        saved: number of parameters in the saved state, or of elements if each side is one vector.
        present: the same number of the optimizer.
        in_elements: whether the numbers count elements. With --fp16, fairseq keeps all parameters in one
            vector.
    """

    def __init__(self, saved: int, present: int, in_elements: bool):
        what = "elements" if in_elements else "parameters"
        super().__init__(f"the saved state of the optimizer has {saved} {what}, the optimizer {present}")
        self.saved, self.present, self.in_elements = saved, present, in_elements


def compare_parameters(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Raise OtherParametersError if `state`, which was saved, is for other parameters than `optimizer` has.

    torch itself compares the sizes of the parameter groups. It does not compare the length of a vector, and
    an update would end in a traceback.
    """
    saved = [group["params"] for group in state["param_groups"]]
    present = [group["params"] for group in optimizer.param_groups]
    if [len(group) for group in saved] != [len(group) for group in present]:
        raise OtherParametersError(sum(map(len, saved)), sum(map(len, present)), in_elements=False)
    for key, parameter in zip(chain(*saved), chain(*present), strict=True):
        for value in (state["state"].get(key) or {}).values() if parameter.dim() == 1 else ():
            if torch.is_tensor(value) and value.dim() == 1 and value.numel() != parameter.numel():
                raise OtherParametersError(value.numel(), parameter.numel(), in_elements=True)


def refuse_another_precision(cfg: Any, filename: str) -> None:
    """Refuse a checkpoint of a training in another precision, whose optimizer has another kind of state.

    Args:
        cfg: the options of the present training.
        filename: the checkpoint.

    Raises:
        UsageError: the precision differs.
    """
    both = options_of(load_checkpoint(filename), "common"), cfg.common
    former, present = (
        " and ".join(name for name in PRECISIONS if each.get(name)) or "float32" for each in both
    )
    if former != present:
        raise UsageError(
            f"{filename} was trained in {former}, and this training is in {present}; continue as it was "
            "trained, or start the optimizer afresh with --reset-optimizer"
        )


def refusal(model: nn.Module, filename: str, error: OtherParametersError) -> UsageError:
    """Return the sentence that says how a training with `model` can go on from a checkpoint.

    It speaks of gates only if the number of parameters differs by the gates, and only if the main optimizer
    may have all gates beside all other parameters. With --mae-finetune, it has a part of the model.

    Args:
        filename: the checkpoint.
        error: how the optimizer's state differs.
    """
    settings: GateTraining | None = getattr(model, "gate_training", None)
    gates = gate_parameters(model)
    size = sum(parameter.numel() for parameter in gates) if error.in_elements else len(gates)
    if gates and settings is not None and not settings.finetunes and error.saved == error.present + size:
        return UsageError(
            f"the main optimizer in {filename} trained the gates too, as --mae-training joint did in version "
            "0.1; continue with --mae-training joint_main, or start the optimizer afresh with "
            "--reset-optimizer"
        )
    if gates and settings is None and error.saved == error.present - size:
        return UsageError(
            f"the main optimizer in {filename} did not train the gates, as --mae-training joint_main does; "
            "continue with the --mae-training of that file, or start the optimizer afresh with "
            "--reset-optimizer"
        )
    return UsageError(
        f"the main optimizer in {filename} trained other parameters than this training would; continue with "
        "the options of the earlier training, or start the optimizer afresh with --reset-optimizer"
    )
