"""Give a criterion that learns from word alignments the attention weights that it compares with them."""

from fairseq.criterions.label_smoothed_cross_entropy_with_alignment import (
    LabelSmoothedCrossEntropyCriterionWithAlignment,
)
from fairseq.trainer import Trainer

from modular_fairseq.models.decoder import TransformerDecoder


def return_attention_to_the_criterion(trainer: Trainer) -> None:
    """Let the decoder return attention weights in training, if the criterion needs them.

    Other criterions do not, and the decoder saves the time. Stock fairseq's decoder always returns them.
    """
    decoder = getattr(trainer.get_model(), "decoder", None)
    if isinstance(decoder, TransformerDecoder):
        decoder.returns_attention_in_training = isinstance(
            trainer.get_criterion(), LabelSmoothedCrossEntropyCriterionWithAlignment
        )
