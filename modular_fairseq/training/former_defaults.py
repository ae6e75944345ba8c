"""Warn if a training that continues would silently go on with defaults that have changed meanwhile.

A field of options whose default has changed has the old one as "former_default" in its metadata.
"""

import logging
import zipfile
from collections.abc import Iterator
from dataclasses import Field, fields
from typing import Any

import torch
from fairseq.file_io import PathManager
from fairseq.trainer import Trainer

from modular_fairseq.criterions.auxiliary import AddsAuxiliaryLosses
from modular_fairseq.models.checks import has_effect
from modular_fairseq.models.options import FAMILIES, flag
from modular_fairseq.models.registry import MECHANISMS
from modular_fairseq.training.checkpoints import options_of
from modular_fairseq.training.gate_checks import warn_of_another_interval

logger = logging.getLogger(__name__)


def warn_of_other_defaults(trainer: Trainer, filename: str) -> None:
    """Log which options a training needs to go on from a checkpoint as it was, if defaults are others now.

    An option counts if the checkpoint has its former default, the trainer has the present one, and the option
    has an effect. A user who gives the present default is warned too, because the options of a trainer do not
    show who set them.
    """
    state = _without_tensors(filename)
    if state.get("cfg"):
        fine_tuned = bool(options_of(state, "checkpoint").get("finetune_from_model"))
        warn_of_another_interval(trainer, fine_tuned, filename)
    words = [
        f"{flag(f.name)} {f.metadata['former_default']}"
        for part, f in _options_with_effect(trainer)
        if _is(options_of(state, part).get(f.name), f.metadata["former_default"])
        and _is(getattr(getattr(trainer.cfg, part), f.name, None), f.default)
    ]
    if words:
        logger.warning(
            f"{filename} was trained with the defaults of an earlier version, but the training goes on with "
            f"those of this version; to continue as before, give {' '.join(words)}"
        )


def _without_tensors(filename: str) -> dict[str, Any]:
    """Return the contents of a checkpoint. Its tensors stay in the file where its format allows it."""
    path = PathManager.get_local_path(filename)
    return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))


def _options_with_effect(trainer: Trainer) -> Iterator[tuple[str, Field]]:
    """Yield the options whose defaults have changed, with their part, as far as they have an effect."""
    model, criterion = trainer.get_model(), trainer.get_criterion()
    family = FAMILIES.get(getattr(model, "family", ""))
    if family is None:
        return
    for mechanism in MECHANISMS.values():
        for f in mechanism.own_options:
            if "former_default" in f.metadata and has_effect(trainer.cfg.model, family, mechanism, f.name):
                yield "model", f
    for losses in criterion.auxiliary if isinstance(criterion, AddsAuxiliaryLosses) else ():
        for f in fields(losses.options):
            if "former_default" in f.metadata and losses.has_effect(f.name, model):
                yield "criterion", f


def _is(found: Any, value: Any) -> bool:
    """Tell whether an option that was found has a value. The option may be saved as a string."""
    return found is not None and (found == value or str(found) == str(value))
