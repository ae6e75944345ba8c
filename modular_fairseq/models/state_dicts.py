"""Load a state dict, and say in one sentence why it does not fit the model."""

import logging
from argparse import Namespace
from typing import Any

from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import Tensor, nn

from modular_fairseq.models.mechanism import SEAMS
from modular_fairseq.models.pruning import pruned
from modular_fairseq.modules.attention import MultiheadAttention
from modular_fairseq_cli.errors import UsageError

logger = logging.getLogger(__name__)

# Checkpoints of older versions of fairseq have these, and nothing is learned in them.
FORMER_BUFFERS_OF_POSITIONS = ("weights", "_float_tensor")


class ChecksStateDict(BaseFairseqModel):
    """A base of fairseq models whose `load_state_dict` names the first parameter that does not fit.

    Gates and masks that the checkpoint does not have keep their initial values. A plain Transformer of
    fairseq therefore loads into a model with any mechanism that only adds a gate or a mask.
    """

    def load_state_dict(
        self,
        state_dict: dict[str, Tensor],
        strict: bool = True,
        model_cfg: TransformerConfig | None = None,
        args: Namespace | None = None,
    ) -> Any:
        """Load parameters and buffers.

        Raises:
            UsageError: names or shapes differ, and `strict` is True.
        """
        state_dict = pruned(state_dict, model_cfg)
        if strict:
            state_dict = self._upgrade_and_check(state_dict)
        else:
            # A state dict that EMA loads has no version. fairseq would take it for one that is older than the
            # final LayerNorm.
            versions = {key: value for key, value in self.state_dict().items() if key.endswith("version")}
            state_dict = {**versions, **state_dict}
        return super().load_state_dict(state_dict, strict)  # without the options, by which fairseq prunes

    def upgrade_state_dict(self, state_dict: dict[str, Tensor]) -> None:
        """Upgrade older names, and leave out what is `obsolete` (`LayerParts`) or was a buffer of positions.

        fairseq leaves out these buffers when it loads them
        (fairseq/modules/sinusoidal_positional_embedding.py:36), which is after the names were checked.
        """
        for name, module in self.named_modules():
            former = FORMER_BUFFERS_OF_POSITIONS if isinstance(module, SinusoidalPositionalEmbedding) else ()
            for parameter in (*getattr(module, "obsolete", ()), *former):
                state_dict.pop(f"{name}.{parameter}", None)
        super().upgrade_state_dict(state_dict)

    def _upgrade_and_check(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        """Upgrade old names, add the initial values of missing gates and masks, and check the rest.

        The caller has pruned the state dict before. Its layers must have the numbers that they have in this
        model, because the names of gates and masks contain these numbers.
        """
        attentions = [name for name, module in self.named_modules() if isinstance(module, MultiheadAttention)]
        own = self.state_dict()
        missing = {}
        for seam in SEAMS:
            prefixes = [f"{name}.{seam}." for name in attentions]
            missing[seam] = [
                p
                for p in prefixes
                if any(k.startswith(p) for k in own) and not any(k.startswith(p) for k in state_dict)
            ]
        self.upgrade_state_dict(state_dict)
        for seam, prefixes in missing.items():
            if prefixes:
                logger.info(
                    f"{len(prefixes)} {seam}s are not in the checkpoint and keep their initial values"
                )
                state_dict.update(
                    {
                        key: value
                        for key, value in self.state_dict().items()
                        if key.startswith(tuple(prefixes))
                    }
                )
        check_state_dict(self, state_dict)
        return state_dict


def check_state_dict(model: nn.Module, state_dict: dict[str, Tensor]) -> None:
    """Check that a state dict has the parameters and buffers of `model` in their shapes, and no others.

    Raises:
        UsageError: it does not; the sentence names the first one that does not fit.
    """
    own = model.state_dict()
    for key, value in own.items():
        if key not in state_dict:
            raise UsageError(
                f"the checkpoint has no {key}, which this model has: it was trained with another --arch or "
                "other model options"
            )
        if state_dict[key].shape != value.shape:
            raise UsageError(
                f"{key} is {list(state_dict[key].shape)} in the checkpoint and {list(value.shape)} in this "
                "model: use the dictionaries, sizes and other model options that the checkpoint was trained "
                "with"
            )
    for key in state_dict:
        if key not in own:
            raise UsageError(
                f"the checkpoint has {key}, which this model does not have: it was trained with another "
                "--arch or other model options"
            )
