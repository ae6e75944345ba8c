"""What all model families share: their options, how a model is finished, and how many updates it has had."""

from argparse import Namespace

from fairseq.dataclass.utils import gen_parser_from_dataclass
from torch import nn

from modular_fairseq.models import assembly
from modular_fairseq.models.checks import check_options
from modular_fairseq.models.fairseq_options import resolved
from modular_fairseq.models.options import FAMILIES
from modular_fairseq.models.state_dicts import ChecksStateDict
from modular_fairseq.modules.dropout import replace_dropout


class CountsUpdates:
    """Mixin for fairseq models: `num_updates` is how many updates there have been, or None outside
    training.
    """

    num_updates: int | None = None

    def set_num_updates(self, num_updates: int) -> None:
        """fairseq's training calls it before every forward pass."""
        super().set_num_updates(num_updates)
        self.num_updates = num_updates


class ModularModel(CountsUpdates, ChecksStateDict):
    """Mixin for fairseq models with any combination of mechanisms; `family` is the name of the model."""

    family: str

    @classmethod
    def add_args(cls, parser) -> None:
        # Without defaults, so that an arch can set them.
        gen_parser_from_dataclass(parser, FAMILIES[cls.family](), delete_default=True)
        (attention_type,) = (each for each in parser._actions if each.dest == "attention_type")
        attention_type.help = assembly.describe_attention_types()

    @classmethod
    def checked_options(cls, cfg) -> Namespace:
        """Return the options of the family; a width that was not given is that of the option it follows.

        Raises:
            UsageError: they do not work together.
        """
        check_options(cfg, FAMILIES[cls.family])
        return resolved(cfg, FAMILIES[cls.family])

    @staticmethod
    def finish(model: nn.Module) -> nn.Module:
        """Return the built model with our dropout, prepared by its mechanisms for training and inference."""
        replace_dropout(model)
        assembly.finish(model, model.cfg)
        return model
