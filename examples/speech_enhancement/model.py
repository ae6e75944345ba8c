"""The model: four convolutions in place of positions, then plain or TIM layers, then log magnitudes (A.2).

It is causal but for two frames. Two convolutions see the next frame. The others, and the attention, see no
later one. So no output changes with frames that are more than two frames (32 ms) ahead.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.dataclass import FairseqDataclass
from fairseq.models import BaseFairseqModel, register_model
from fairseq.models.transformer import TransformerConfig
from fairseq.tasks import FairseqTask
from torch import Tensor, nn

from modular_fairseq.models.architectures import register
from modular_fairseq.models.checks import check_options
from modular_fairseq.models.fairseq_options import Options, resolved
from modular_fairseq.models.layers import TransformerEncoderLayer
from modular_fairseq.models.mechanism import LayerPlace
from modular_fairseq.models.options import FAMILIES
from modular_fairseq.models.tim import TimOptions, mechanisms
from modular_fairseq.modules.masks import AttentionMasks

from .audio import Frames

CHANNELS = (1024, 512, 128)  # of the first three convolutions; the last has the width of the layers
LOOK_AHEAD = 2  # frames, one for each convolution that sees the next frame


@dataclass
class EnhancerOptions(TimOptions, FairseqDataclass):
    """The options of the model, which include the options of TIM layers."""

    encoder_embed_dim: int = field(default=256, metadata={"help": "width of the layers"})
    encoder_ffn_embed_dim: int = field(default=256, metadata={"help": "width of the feed-forward sub-layers"})
    encoder_attention_heads: int = field(default=16, metadata={"help": "number of attention heads"})
    encoder_layers: int = field(default=8, metadata={"help": "number of layers"})
    encoder_normalize_before: bool = field(
        default=False, metadata={"help": "apply LayerNorm before each sub-layer instead of after it"}
    )
    dropout: float = field(default=0.1, metadata={"help": "dropout probability"})
    attention_dropout: float = field(
        default=0.1, metadata={"help": "dropout probability of attention weights"}
    )
    masking: bool = field(
        default=False,
        metadata={"help": "estimate by how much to scale each log magnitude, instead of the log magnitude"},
    )


class Convolution(nn.Module):
    """A convolution over three frames, LayerNorm and LeakyReLU.

    Args:
        channels, out: widths of input and output.
        ahead: whether the last of the three frames is the next one, and not the present one.
    """

    def __init__(self, channels: int, out: int, ahead: bool):
        super().__init__()
        self.conv = nn.Conv1d(channels, out, kernel_size=3)
        self.norm = nn.LayerNorm(out)
        self.zeros = (1, 1) if ahead else (2, 0)  # before the first and after the last frame

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, T, out] for x [B, T, channels]."""
        x = self.conv(F.pad(x.transpose(1, 2), self.zeros))
        return F.leaky_relu(self.norm(x.transpose(1, 2)))


class Encoder(nn.Module):
    """The convolutions and layers.

    Args:
        bins: the number of frequencies.
        cfg: the options of the model, as fairseq's `TransformerConfig`.
    """

    def __init__(self, bins: int, cfg: TransformerConfig):
        super().__init__()
        width, depth = cfg.encoder.embed_dim, cfg.encoder.layers
        widths = (bins, *CHANNELS, width)
        self.convolutions = nn.ModuleList(
            Convolution(channels, out, ahead=number < LOOK_AHEAD)
            for number, (channels, out) in enumerate(zip(widths, widths[1:], strict=False))
        )
        self.layers = nn.ModuleList(
            TransformerEncoderLayer(cfg, LayerPlace(number, depth, width)) for number in range(depth)
        )
        for layer in self.layers:
            layer.activation_fn = F.leaky_relu  # fairseq's options do not have it
        self.layer_norm = nn.LayerNorm(width) if cfg.encoder.normalize_before else nn.Identity()
        self.dropout = nn.Dropout(cfg.dropout)

    def forward(self, x: Tensor, frames: Tensor) -> Tensor:
        """Return [B, T, C] for log magnitudes x [B, T, bins]; `frames`: bool [B, T], False = padding.

        Padding is after the frames of a recording. Convolutions must see zeros there. The attention of a
        frame sees no later one, so the padding mask only tells analyses which frames count.
        """
        for convolution in self.convolutions:
            x = convolution(x * frames.unsqueeze(-1))
        later = torch.full((x.size(1), x.size(1)), float("-inf"), device=x.device, dtype=x.dtype).triu(1)
        padding = None if frames.all() else ~frames
        masks = AttentionMasks(later, padding, is_causal=True)
        x = self.dropout(x).transpose(0, 1)
        for layer in self.layers:
            x = layer(x, padding, masks=masks)
        return self.layer_norm(x.transpose(0, 1))


@register_model("speech_enhancer", dataclass=EnhancerOptions)
class SpeechEnhancer(BaseFairseqModel):
    """Estimate the log magnitudes of clean speech.

    Args:
        bins: the number of frequencies.
        cfg: the options of the model, as fairseq's `TransformerConfig`.
        masking: whether the output scales the noisy log magnitudes; a new model leaves them as they are.
    """

    def __init__(self, bins: int, cfg: TransformerConfig, masking: bool):
        super().__init__()
        self.encoder = Encoder(bins, cfg)
        self.output = nn.Linear(cfg.encoder.embed_dim, bins)
        self.masking = masking
        if masking:
            nn.init.zeros_(self.output.weight)
            nn.init.zeros_(self.output.bias)

    @classmethod
    def build_model(cls, cfg: Options, task: FairseqTask) -> "SpeechEnhancer":
        """Build the model for the sample rate of the task.

        Raises:
            UsageError: options do not work together, or would have no effect.
        """
        family = FAMILIES["modular_roberta"]  # its encoder has our options; the others keep their defaults
        check_options(cfg, family)
        nested = TransformerConfig.from_namespace(resolved(cfg, family))
        return cls(Frames(task.cfg.sample_rate).bins, nested, cfg.masking)

    def forward(self, noisy: Tensor, frames: Tensor) -> Tensor:
        """Return the estimate [B, T, bins] for log magnitudes `noisy` [B, T, bins]; frames: see `Encoder`."""
        output = self.output(self.encoder(noisy, frames))
        return noisy * F.relu(1 + output) if self.masking else output


def width(embed_dim: int) -> dict[str, Any]:
    """Return the options of a model whose feed-forward sub-layers are as wide as its layers."""
    return {"encoder_embed_dim": embed_dim, "encoder_ffn_embed_dim": embed_dim}


# A.2 names 6M parameters, and widths of 256 and of 512 for TIM; 4.2 says that TIM is about 20 % wider. With a
# width of 512 TIM has 12.25M parameters. These archs have 5.90M (plain) and 5.89M (TIM) at 16 kHz.
register("speech_enhancer_base", width(256), model="speech_enhancer")
TIM = [width(288), mechanisms(2)]
register("tim_speech_enhancer", *TIM, model="speech_enhancer", peer="speech_enhancer_base")
register(
    "tim_speech_enhancer_nocomp",
    *TIM,
    {"tim_no_competition": True},
    model="speech_enhancer",
    peer="speech_enhancer_base",
)
