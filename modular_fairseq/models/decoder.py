"""The decoder that both families share."""

from fairseq.models.transformer import TransformerDecoderBase
from torch import Tensor, nn

from modular_fairseq.models.layers import TransformerDecoderLayer
from modular_fairseq.models.mechanism import LayerPlace
from modular_fairseq.models.wrapping import wrap_layer


class TransformerDecoder(TransformerDecoderBase):
    """fairseq's decoder with our layers."""

    def __init__(self, cfg, dictionary, embed_tokens, no_encoder_attn: bool = False):
        self._places = iter(range(cfg.decoder.layers))  # fairseq builds layers without saying which
        super().__init__(cfg, dictionary, embed_tokens, no_encoder_attn)
        del self._places

    def build_decoder_layer(self, cfg, no_encoder_attn: bool = False) -> nn.Module:
        place = LayerPlace(next(self._places), cfg.decoder.layers, cfg.decoder.embed_dim)
        return wrap_layer(TransformerDecoderLayer(cfg, place, no_encoder_attn), cfg)

    def output_layer(self, features: Tensor) -> Tensor:
        # Contiguous, or torch makes one small product a sentence of it in a G step, where the embeddings are
        # frozen.
        return super().output_layer(features.contiguous())
