"""Let a training with early stopping (--patience) continue from its checkpoint as if it had not stopped."""

import sys
from collections.abc import Callable
from typing import Any

from fairseq import checkpoint_utils
from fairseq.trainer import Trainer

from modular_fairseq.patches.registry import replace

# The names that fairseq_cli/train.py may have in a process: the program itself (python -m fairseq_cli.train),
# the same in a worker that the program has started, and a module that a script or hydra has imported.
PROGRAMS = ("__main__", "__mp_main__", "fairseq_cli.train")
KEYS = ("best", "num_runs")  # the attributes of `should_stop_early`


def _counters() -> list[Callable]:
    """Return the functions of this process in which fairseq counts validations without improvement."""
    found = [getattr(sys.modules.get(name), "should_stop_early", None) for name in PROGRAMS]
    return [function for function in found if function is not None]


@replace("fairseq.trainer.Trainer.save_checkpoint")
def save_early_stopping(
    save_checkpoint: Callable, trainer: Trainer, filename: str, extra_state: dict[str, Any]
) -> None:
    """Save with a checkpoint how many validations in a row have brought no improvement, with --patience.

    fairseq keeps this number and the best loss as attributes of a function (fairseq_cli/train.py:242-249).
    They are lost when the process ends, so that a training that is killed and continued would stop later than
    an uninterrupted one. `restore_early_stopping` reads them again.
    """
    for function in _counters():
        found = {key: getattr(function, key) for key in KEYS if hasattr(function, key)}
        if found:  # without --patience there is nothing
            extra_state["early_stopping"] = found
    return save_checkpoint(trainer, filename, extra_state)


@replace("fairseq.trainer.Trainer.load_checkpoint")
def restore_early_stopping(
    load_checkpoint: Callable,
    trainer: Trainer,
    filename: str,
    reset_optimizer: bool = False,
    reset_lr_scheduler: bool = False,
    optimizer_overrides: dict[str, Any] | None = None,
    reset_meters: bool = False,
) -> dict[str, Any] | None:
    """Restore what `save_early_stopping` saved when a training continues.

    A training that starts afresh, fine-tuning included, counts from 0, also if another one ran in the same
    process. fairseq restores the best loss under the same conditions for checkpoint_best.pt
    (fairseq/checkpoint_utils.py:276-282). The best loss of another training of the process is forgotten here;
    fairseq kept it, so that a second training with a worse loss wrote no checkpoint_best.pt.
    """
    extra_state = load_checkpoint(
        trainer, filename, reset_optimizer, reset_lr_scheduler, optimizer_overrides, reset_meters
    )
    afresh = extra_state is None or reset_optimizer or reset_meters
    vars(checkpoint_utils.save_checkpoint).pop("best", None)  # fairseq now sets what the checkpoint has
    saved = {} if afresh else extra_state.get("early_stopping", {})
    for function in _counters():
        for key in KEYS:
            if key in saved:
                setattr(function, key, saved[key])
            elif hasattr(function, key):
                delattr(function, key)
    return extra_state
