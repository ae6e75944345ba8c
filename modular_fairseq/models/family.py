"""Base classes that all model families share."""

from argparse import ArgumentParser, Namespace
from typing import Any, TypeVar

from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import BaseFairseqModel
from fairseq.models.roberta import RobertaModel
from fairseq.tasks import FairseqTask
from torch import nn

from modular_fairseq.models import assembly
from modular_fairseq.models.checks import check_options
from modular_fairseq.models.fairseq_options import Options, resolved
from modular_fairseq.models.options import FAMILIES
from modular_fairseq.models.state_dicts import ChecksStateDict
from modular_fairseq.models.tasks import check_task
from modular_fairseq.modules.dropout import replace_dropout
from modular_fairseq.modules.inference import pack

Model = TypeVar("Model", bound=BaseFairseqModel)


class CountsUpdates(BaseFairseqModel):
    """A base of fairseq models that know how many updates they have had.

    Attributes:
        num_updates: number of updates so far, or None outside training.
    """

    num_updates: int | None = None

    def set_num_updates(self, num_updates: int) -> None:
        """Set the number of updates; fairseq's training calls this before every forward pass."""
        super().set_num_updates(num_updates)
        self.num_updates = num_updates


def is_masked(model: nn.Module) -> bool:
    """Return whether a model is a masked language model, or a classifier made from one: RoBERTa's encoder."""
    return isinstance(model, RobertaModel)


class ModularModel(CountsUpdates, ChecksStateDict):
    """A base of fairseq models that can be built with any combination of mechanisms.

    Attributes:
        family: the name under which the model is registered.
    """

    family: str

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add the options of the model family to the command line."""
        # The parser gets no defaults, so that an arch can set them.
        gen_parser_from_dataclass(parser, FAMILIES[cls.family](), delete_default=True)
        (attention_type,) = (each for each in parser._actions if each.dest == "attention_type")
        attention_type.help = assembly.describe_attention_types()

    @classmethod
    def checked_options(cls, cfg: Options, task: FairseqTask) -> Namespace:
        """Check the options and the task, and return the options with every width set.

        A width that was not given equals the option that it follows.

        Raises:
            UsageError: the options do not work together, one of them would have no effect, or the model is
                for another task.
        """
        check_task(getattr(cfg, "arch", None) or cls.family, type(task))
        check_options(cfg, FAMILIES[cls.family])
        return resolved(cfg, FAMILIES[cls.family])

    def make_generation_fast_(self, **kwargs: Any) -> None:
        """Prepare the model for translating alone; fairseq calls this before a search."""
        super().make_generation_fast_(**kwargs)
        pack(self)

    @staticmethod
    def finish(model: Model) -> Model:
        """Return the built model with our dropout, after its mechanisms have prepared it.

        fairseq leaves a buffer of adaptive inputs and tied softmaxes uninitialised, of which only the device
        matters. It becomes zero, so that equal trainings save equal files.
        """
        for name, buffer in model.named_buffers():
            if name.endswith("._float_tensor"):
                buffer.zero_()
        replace_dropout(model)
        assembly.finish(model, model.cfg)
        return model
