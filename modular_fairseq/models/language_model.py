"""The decoder-only model family: fairseq's Transformer language model with our layers."""

import ast
from argparse import Namespace

from fairseq.data import Dictionary
from fairseq.models import register_model
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer_lm import TransformerLanguageModel
from fairseq.modules import CharacterTokenEmbedder
from fairseq.options import eval_str_list
from fairseq.tasks import FairseqTask
from torch import nn

from modular_fairseq.models.decoder import TransformerDecoder
from modular_fairseq.models.fairseq_options import Options
from modular_fairseq.models.family import ModularModel
from modular_fairseq.models.options import FAMILIES
from modular_fairseq.models.pruning import layers_to_keep
from modular_fairseq.models.vocabulary_checks import check_adaptive
from modular_fairseq.modules.adaptive_input import AdaptiveInput


@register_model("modular_transformer_lm", dataclass=FAMILIES["modular_transformer_lm"])
class ModularTransformerLanguageModel(ModularModel, TransformerLanguageModel):
    """A Transformer language model with any combination of mechanisms."""

    family = "modular_transformer_lm"

    @classmethod
    def build_model(cls, cfg: Options, task: FairseqTask) -> "ModularTransformerLanguageModel":
        """Build a language model for a task.

        Raises:
            UsageError: the options do not work together, or one of them would have no effect.
        """
        options = cls.checked_options(cfg, task)
        check_adaptive(options, task.target_dictionary)
        if options.decoder_layers_to_keep:
            options.decoder_layers = len(layers_to_keep(options.decoder_layers_to_keep, "decoder"))
        if options.max_target_positions is None:
            options.max_target_positions = options.tokens_per_sample
        nested = TransformerConfig.from_namespace(options)
        embed_tokens = cls.build_embedding(options, task.source_dictionary, options.decoder_input_dim)
        model = cls(TransformerDecoder(nested, task.target_dictionary, embed_tokens, no_encoder_attn=True))
        model.cfg = nested
        return cls.finish(model)

    @classmethod
    def build_embedding(
        cls, args: Namespace, dictionary: Dictionary, embed_dim: int, path: str | None = None
    ) -> nn.Module:
        """Return the embedding that the options choose: of characters, adaptive or simple.

        fairseq's `build_model` makes the first two, but builds a decoder of its own with them.
        """
        if args.character_embeddings:
            return CharacterTokenEmbedder(
                dictionary,
                ast.literal_eval(args.character_filters),
                args.character_embedding_dim,
                args.decoder_embed_dim,
                args.char_embedder_highway_layers,
            )
        if args.adaptive_input:
            return AdaptiveInput(
                len(dictionary),
                dictionary.pad(),
                embed_dim,
                args.adaptive_input_factor,
                args.decoder_embed_dim,
                eval_str_list(args.adaptive_input_cutoff, type=int),
                args.quant_noise_pq,
                args.quant_noise_pq_block_size,
            )
        return super().build_embedding(args, dictionary, embed_dim)
