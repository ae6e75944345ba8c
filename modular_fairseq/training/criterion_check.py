"""Check the options of a training, and that the auxiliary losses of the model and the criterion match.

A model with auxiliary losses needs the criterion that adds them, and options for such losses need a model
that has them. fairseq builds the model and the criterion independently of each other. `patches/trainer.py`
therefore lets fairseq's Trainer compare them before each epoch.
"""

from fairseq.models.transformer import TransformerDecoderBase
from fairseq.trainer import Trainer

from modular_fairseq.criterions.modular_cross_entropy import ModularCrossEntropyCriterion, adaptive_softmax
from modular_fairseq.models.checks import check_options, what_turns_on
from modular_fairseq.models.options import FAMILIES, of_a_command_line
from modular_fairseq.models.registry import CRITERIA, MECHANISMS
from modular_fairseq_cli.errors import UsageError


def check_command_line(trainer: Trainer) -> None:
    """Check the options of a training, and compare its model with the losses that its criterion adds.

    When fairseq built the model and the criterion, an option with a default of an earlier version was taken
    for one of an old checkpoint. Here all options are the user's.

    Raises:
        UsageError: an option would have no effect; or see `check_criterion`.
    """
    with of_a_command_line():
        if family := FAMILIES.get(getattr(trainer.get_model(), "family", "")):
            check_options(trainer.cfg.model, family)
        check_criterion(trainer)
        _check_adaptive_softmax(trainer)
        if getattr(trainer.get_criterion(), "chunk_size", 0):
            _check_chunks(trainer)


def _check_adaptive_softmax(trainer: Trainer) -> None:
    """Refuse what needs the probabilities of all words, which an adaptive softmax does not compute."""
    criterion = trainer.get_criterion()
    if adaptive_softmax(trainer.get_model()) is None or not isinstance(
        criterion, ModularCrossEntropyCriterion
    ):
        return
    for option, value in {
        "--label-smoothing": criterion.eps,
        "--loss-chunk-size": criterion.chunk_size,
    }.items():
        if value:
            raise UsageError(
                f"{option} {value} needs the probabilities of all words, which the softmax of "
                "--adaptive-softmax-cutoff does not compute; leave one of them out"
            )


def _check_chunks(trainer: Trainer) -> None:
    """Refuse what does not work with --loss-chunk-size."""
    if not isinstance(getattr(trainer.get_model(), "decoder", None), TransformerDecoderBase):
        raise UsageError("--loss-chunk-size needs the decoder of a Transformer; leave it out with this model")
    if trainer.cfg.distributed_training.find_unused_parameters:
        raise UsageError(
            "--loss-chunk-size does not work with --find-unused-parameters, which would take the output "
            "layer for unused; leave one of them out"
        )


def check_criterion(trainer: Trainer) -> None:
    """Compare the auxiliary losses of a trainer's model with the losses that its criterion adds.

    Raises:
        UsageError: the criterion would leave out losses of the model; an option weighs a loss that the model
            does not have; or such a loss is always 0 in this model.
    """
    model, criterion = trainer.get_model(), trainer.get_criterion()
    adds_losses = isinstance(criterion, ModularCrossEntropyCriterion)
    for mechanism in MECHANISMS.values():
        if mechanism.losses is None:
            continue
        has_losses = mechanism.losses.concerns(model)
        if not adds_losses:
            if has_losses:
                needs = mechanism.needs or f"--attention-type {model.cfg.attention_type}"
                raise UsageError(
                    f"{needs} has losses that --criterion {trainer.cfg.criterion._name} does not add; use "
                    f"--criterion {' or '.join(CRITERIA)} (with {mechanism.losses.left_out_by} to train the "
                    "model without them)"
                )
            continue
        losses = mechanism.losses(trainer.cfg.criterion)
        if has_losses:
            losses.check_model(model)
        elif losses.asked_for:
            options = " and ".join(losses.asked_for)
            raise UsageError(
                f"{options} cannot have an effect, because this model has no losses of that kind; add "
                f"{what_turns_on(mechanism)}, or leave out {options}"
            )
