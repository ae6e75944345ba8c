"""The Transformer decoder of both model families."""

from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerConfig, TransformerDecoderBase
from torch import Tensor, nn

from modular_fairseq.models.layers import TransformerDecoderLayer
from modular_fairseq.models.mechanism import LayerPlace
from modular_fairseq.models.wrapping import wrap_layer
from modular_fairseq.modules.grouped import contiguous_rows


class TransformerDecoder(TransformerDecoderBase):
    """fairseq's Transformer decoder with the layers of `layers.py`."""

    def __init__(
        self,
        cfg: TransformerConfig,
        dictionary: Dictionary,
        embed_tokens: nn.Module,
        no_encoder_attn: bool = False,
    ):
        # fairseq asks for one layer after the other without saying which.
        self._places = iter(range(cfg.decoder.layers))
        super().__init__(cfg, dictionary, embed_tokens, no_encoder_attn)
        del self._places

    def build_decoder_layer(self, cfg: TransformerConfig, no_encoder_attn: bool = False) -> nn.Module:
        """Build the next layer; fairseq's constructor calls this for each layer in turn."""
        place = LayerPlace(next(self._places), cfg.decoder.layers, cfg.decoder.embed_dim)
        return wrap_layer(TransformerDecoderLayer(cfg, place, no_encoder_attn), cfg)

    def output_layer(self, features: Tensor) -> Tensor:
        """Project features [B, T, C] to scores of the vocabulary [B, T, V]."""
        # Otherwise torch would compute one small product per sentence if the embeddings are frozen, as in a G
        # step or in a model that was fine-tuned by --mae-finetune.
        return super().output_layer(contiguous_rows(features))
