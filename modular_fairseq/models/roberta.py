"""The encoder-only model family for masked language models: fairseq's RoBERTa with our layers."""

from argparse import Namespace
from typing import Any

from fairseq.data import Dictionary
from fairseq.models import FairseqEncoderModel, register_model
from fairseq.models.roberta import RobertaEncoder, RobertaModel
from fairseq.models.transformer import TransformerConfig
from fairseq.tasks import FairseqTask
from torch import Tensor, nn

from modular_fairseq.models.assembly import finish_head
from modular_fairseq.models.encoder import TransformerEncoder
from modular_fairseq.models.fairseq_options import ROBERTA_STRUCTURE, Options
from modular_fairseq.models.family import ModularModel
from modular_fairseq.models.options import FAMILIES
from modular_fairseq.modules.attention import MultiheadAttention
from modular_fairseq.modules.dropout import replace_dropout
from modular_fairseq.modules.grouped import GroupLinear
from modular_fairseq_cli.errors import UsageError

MASK = "<mask>"
BERTS_DEVIATION = 0.02  # standard deviation of the initial weights
# The parts of a layer that keep the initial weights which their papers give them.
_OWN_INITIAL_WEIGHTS = {"gate", "mask", "competition"}


@register_model("modular_roberta", dataclass=FAMILIES["modular_roberta"])
class ModularRoberta(ModularModel, RobertaModel):
    """A masked language model with any combination of mechanisms, which may have classification heads.

    With plain attention it is fairseq's RoBERTa: it has the same parameter names, computes the same numbers,
    and starts from the same weights with the same seed.
    """

    family = "modular_roberta"

    def __init__(self, args: Namespace, encoder: RobertaEncoder):
        FairseqEncoderModel.__init__(self, encoder)  # the constructor of RobertaModel would initialise gates
        self.args = args
        self.cfg = encoder.sentence_encoder.cfg
        initialise(self)
        self.classification_heads = nn.ModuleDict()

    @classmethod
    def build_model(cls, cfg: Options, task: FairseqTask) -> "ModularRoberta":
        """Build a masked language model for a task.

        Raises:
            UsageError: the options do not work together, one of them would have no effect, or the dictionary
                has no <mask>.
        """
        options = cls.checked_options(cfg, task)
        if MASK not in task.source_dictionary:
            raise UsageError(
                f"the dictionary has no {MASK}, which a masked language model needs; use --task masked_lm, "
                "sentence_prediction or sentence_ranking, which add it; modular-fairseq predict measures a "
                "trained model"
            )
        if options.max_positions is None:
            options.max_positions = task.max_positions()
        if options.layernorm_embedding is None:
            options.layernorm_embedding = not options.encoder_normalize_before
        options.max_source_positions = options.max_positions
        vars(options).update(ROBERTA_STRUCTURE)
        return cls.finish(cls(options, _Encoder(options, task.source_dictionary)))

    def register_classification_head(
        self, name: str, num_classes: int | None = None, inner_dim: int | None = None, **kwargs: Any
    ) -> None:
        """Add a classification head, as fairseq's RoBERTa does; its tasks call this for a built model.

        Args:
            name: its name.
            num_classes: number of classes, or of values in a regression.
            inner_dim: width of its hidden layer; by default the width of the model.
            kwargs: not used, as in fairseq.
        """
        super().register_classification_head(name, num_classes, inner_dim, **kwargs)
        replace_dropout(self.classification_heads[name])
        finish_head(self, self.cfg)

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Upgrade older names, and leave out classification heads that the model does not have.

        Raises:
            UsageError: the checkpoint has another number of positions; or it has a head of the same name with
                another number of classes. (fairseq's RoBERTa would train a new head, with a warning.)
        """
        positions = self.encoder.sentence_encoder.embed_positions
        key = f"{name}." if name else ""
        learned = state_dict.get(f"{key}encoder.sentence_encoder.embed_positions.weight", positions.weight)
        if len(learned) != len(positions.weight):
            first = positions.padding_idx + 1  # positions before it are not used
            raise UsageError(
                f"the model in the checkpoint has {len(learned) - first:,} positions and this model "
                f"{len(positions.weight) - first:,}: give --max-positions {len(learned) - first}, or measure "
                "the model by modular-fairseq predict, which needs no such option"
            )
        for head, module in self.classification_heads.items():
            own = module.get_parameter("out_proj.weight")
            stored = state_dict.get(f"{key}classification_heads.{head}.out_proj.weight", own)
            theirs, ours = len(stored), len(own)
            if theirs != ours:
                raise UsageError(
                    f"the classification head {head} has {theirs} classes in the checkpoint and {ours} in "
                    f"this model: give --num-classes {theirs}, or train a new head under another name with "
                    "--classification-head-name"
                )
        super().upgrade_state_dict_named(state_dict, name)


class _Encoder(RobertaEncoder):
    """fairseq's RoBERTa encoder with our layers."""

    def build_encoder(self, args: Namespace, dictionary: Dictionary, embed_tokens: nn.Module) -> nn.Module:
        encoder = TransformerEncoder(TransformerConfig.from_namespace(args), dictionary, embed_tokens)
        initialise(encoder)
        return encoder


def initialise(module: nn.Module) -> None:
    """Give a module BERT's initial weights: N(0, 0.02^2) for matrices, and 0 for biases and padding.

    Random numbers are drawn in the same order as by fairseq's `init_bert_params`, so a plain model starts
    from the same weights. `init_bert_params` itself would leave out every `GroupLinear`. It would also
    overwrite gates, masks and competitions, which have initial weights of their own.
    """
    for name, child in module.named_children():
        if name not in _OWN_INITIAL_WEIGHTS:
            initialise(child)
    if isinstance(module, nn.Linear | GroupLinear | nn.Embedding):
        nn.init.normal_(module.weight, std=BERTS_DEVIATION)
    if isinstance(module, nn.Linear | GroupLinear) and module.bias is not None:
        nn.init.zeros_(module.bias)
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        nn.init.zeros_(module.weight[module.padding_idx])
    if isinstance(module, MultiheadAttention):
        for projection in (module.q_proj, module.k_proj, module.v_proj):  # a second time, as fairseq does
            nn.init.normal_(projection.weight, std=BERTS_DEVIATION)
