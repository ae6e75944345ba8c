"""Check the options of a training, and that the auxiliary losses of the model and the criterion match.

A model with auxiliary losses needs the criterion that adds them, and options for such losses need a model
that has them. fairseq builds the model and the criterion independently of each other. `patches/trainer.py`
therefore lets fairseq's Trainer compare them before each epoch.
"""

import functools
import logging

from fairseq.models.transformer import TransformerDecoderBase
from fairseq.trainer import Trainer

from modular_fairseq.criterions.auxiliary import AddsAuxiliaryLosses
from modular_fairseq.criterions.modular_cross_entropy import ModularCrossEntropyCriterion, adaptive_softmax
from modular_fairseq.criterions.modular_masked_lm import ModularMaskedLmCriterion
from modular_fairseq.models.checks import check_options, what_turns_on
from modular_fairseq.models.family import ModularModel, is_masked
from modular_fairseq.models.options import FAMILIES, flag, of_a_command_line
from modular_fairseq.models.registry import MECHANISMS
from modular_fairseq_cli.errors import NoEffectError, UsageError

logger = logging.getLogger(__name__)
OF_HEADS = {"pooler_dropout": 0.0, "pooler_activation_fn": "tanh"}  # options of classification heads
OF_ALL_WORDS = ("cross_entropy", "label_smoothed_cross_entropy")  # criteria of fairseq for all target words


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
        _check_kind(trainer)
        _check_heads(trainer)
        check_criterion(trainer)
        _check_adaptive_softmax(trainer)
        if getattr(trainer.get_criterion(), "chunk_size", 0):
            _check_chunks(trainer)


@functools.cache
def say_once(sentence: str) -> None:
    """Log a sentence, but not again in a later epoch."""
    logger.info(sentence)


def _check_heads(trainer: Trainer) -> None:
    """Refuse options of classification heads in a training that has none, and warn of inputs without <s>."""
    model, options = trainer.get_model(), trainer.cfg.model
    if not (is_masked(model) and isinstance(model, ModularModel)):
        return
    if model.classification_heads:
        if getattr(trainer.cfg.task, "init_token", 0) is None:
            say_once(
                "without --init-token 0 the first word of an input is classified in place of <s>, with which "
                "every input of --task masked_lm begins"
            )
        return
    for name, default in OF_HEADS.items():
        if getattr(options, name, default) != default:
            raise NoEffectError(
                f"{flag(name)} has no effect with --task {trainer.cfg.task._name}, whose model "
                "has no classification head; leave it out"
            )


def _check_kind(trainer: Trainer) -> None:
    """Refuse one of our criteria with a model whose targets it does not know."""
    criterion, name = trainer.get_criterion(), trainer.cfg.criterion._name
    model = trainer.get_model()
    masked = is_masked(model)
    if isinstance(criterion, ModularMaskedLmCriterion) and not masked:
        raise UsageError(
            f"--criterion {name} needs a masked language model, such as --arch modular_roberta; use "
            "--criterion modular_cross_entropy with this model"
        )
    of_words = name in OF_ALL_WORDS and trainer.cfg.task._name == "masked_lm"
    if masked and of_words and isinstance(model, ModularModel):  # fairseq's own models train as fairseq does
        raise UsageError(
            f"--criterion {name} would divide the loss of the masked words by the number of all words; use "
            "--criterion masked_lm or modular_masked_lm with --task masked_lm"
        )
    if isinstance(criterion, ModularCrossEntropyCriterion) and masked:
        raise UsageError(
            f"--criterion {name} would count every word, but a masked language model predicts only those "
            "that were masked; use --criterion modular_masked_lm"
        )


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
    """Refuse a decoder whose features --loss-chunk-size cannot ask for."""
    if not isinstance(getattr(trainer.get_model(), "decoder", None), TransformerDecoderBase):
        raise UsageError("--loss-chunk-size needs the decoder of a Transformer; leave it out with this model")


def check_criterion(trainer: Trainer) -> None:
    """Compare the auxiliary losses of a trainer's model with the losses that its criterion adds.

    Raises:
        UsageError: the criterion would leave out losses of the model; an option weighs a loss that the model
            does not have; or such a loss is always 0 in this model.
    """
    model, criterion = trainer.get_model(), trainer.get_criterion()
    adds_losses = isinstance(criterion, AddsAuxiliaryLosses)
    right = "modular_masked_lm" if is_masked(model) else "modular_cross_entropy"
    for mechanism in MECHANISMS.values():
        if mechanism.losses is None:
            continue
        has_losses = mechanism.losses.concerns(model)
        if not adds_losses:
            if has_losses and getattr(model, "classification_heads", None):
                say_once(
                    f"the losses of {mechanism.name} are for pre-training; they are not added to the loss of "
                    "the classification"
                )
            elif has_losses:
                needs = mechanism.needs or f"--attention-type {model.cfg.attention_type}"
                raise UsageError(
                    f"{needs} has losses that --criterion {trainer.cfg.criterion._name} does not add; use "
                    f"--criterion {right} (with {mechanism.losses.left_out_by} to train the "
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
