"""Let fairseq say where a training would not continue as it began."""

from collections.abc import Callable
from typing import Any

from fairseq.optim import FairseqOptimizer
from fairseq.trainer import Trainer

from modular_fairseq.patches.registry import replace
from modular_fairseq.training.former_defaults import warn_of_other_defaults
from modular_fairseq.training.optimizer_state import OtherParametersError, compare_parameters, refusal


@replace("fairseq.optim.fairseq_optimizer.FairseqOptimizer.load_state_dict")
def compare_optimizer_states(
    load_state_dict: Callable,
    optimizer: FairseqOptimizer,
    state_dict: dict[str, Any],
    optimizer_overrides: dict[str, Any] | None = None,
) -> None:
    """Refuse a saved state if the optimizer has another number of parameters, before it is loaded.

    torch's message about parameter groups has no numbers. Under --fp16 nothing notices that the vector of all
    parameters has another length (fairseq/optim/fairseq_optimizer.py:79-93). Each of the optimizers of
    --optimizer composite is compared by itself.
    """
    compare_parameters(optimizer.optimizer, state_dict)
    return load_state_dict(optimizer, state_dict, optimizer_overrides)


@replace("fairseq.trainer.Trainer.load_checkpoint")
def refuse_other_optimizers(
    load_checkpoint: Callable, trainer: Trainer, filename: str, *args: Any, **kwargs: Any
) -> Any:
    """Say how a training can go on from a checkpoint whose optimizer trained other parameters.

    fairseq would end with a traceback of torch, or crash in the first update under --fp16
    (fairseq/trainer.py:588-632).
    """
    try:
        return load_checkpoint(trainer, filename, *args, **kwargs)
    except OtherParametersError as error:
        raise refusal(trainer.get_model(), filename, error) from error


@replace("fairseq.trainer.Trainer.load_checkpoint")
def name_former_defaults(
    load_checkpoint: Callable, trainer: Trainer, filename: str, *args: Any, **kwargs: Any
) -> Any:
    """Warn if a training continues with other defaults of options than those of its checkpoint.

    fairseq takes the options of a training from the command line only, also when it continues
    (fairseq/trainer.py:467-640). The first worker warns. A training that starts from the weights of
    --finetune-from-model is a new one.
    """
    extra_state = load_checkpoint(trainer, filename, *args, **kwargs)
    continues = extra_state is not None and filename != trainer.cfg.checkpoint.finetune_from_model
    if continues and trainer.data_parallel_rank == 0:
        warn_of_other_defaults(trainer, filename)
    return extra_state
