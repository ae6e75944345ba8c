"""Multi-Stream encoders: "Multi-Stream Transformers" (Burtsev and Rumshisky 2021).

The maths is in `modules/streams.py`.
"""

from dataclasses import dataclass, field
from typing import Any

from fairseq.dataclass import FairseqDataclass
from fairseq.models.transformer import TransformerEncoderBase
from torch import Tensor, nn

from modular_fairseq.models.architectures import (
    IWSLT_DE_EN,
    TINY_CPU,
    TINY_CPU_ROBERTA,
    WMT_EN_DE,
    register_all,
    size,
)
from modular_fairseq.models.arrangement import Arrangement, RunLayers
from modular_fairseq.models.checks import Choice
from modular_fairseq.models.fairseq_options import Options
from modular_fairseq.models.options import flag
from modular_fairseq.models.registry import register_encoder
from modular_fairseq.modules.divided_input import DividesInput
from modular_fairseq.modules.masks import AttentionMasks
from modular_fairseq.modules.streams import Streams
from modular_fairseq_cli.errors import UsageError


@dataclass
class StreamOptions(FairseqDataclass):
    """The options of encoders with several streams."""

    streams: int = field(
        default=1,
        metadata={
            "help": "number of parallel streams between the first and the last encoder layer, whose "
            "outputs are summed; each has (encoder layers - 2) / streams layers. 1: layers follow "
            "one another (default: 1)"
        },
    )
    stream_batched: bool = field(
        default=False,
        metadata={
            "help": "in training, compute each layer of all streams at once instead of one after the "
            "other; for GPUs, as it is slower on CPUs. Only with --streams 2 or more"
        },
    )
    stream_skip: bool = field(
        default=False,
        metadata={
            "help": "add the output of the first encoder layer to the input of the last one, also with "
            "--streams 1"
        },
    )


class MultiStream(Arrangement):
    """The encoder of --streams K and --stream-skip (Eq. 1).

        Z_in = L_in(x),    Z_out = L_out(sum_i S_i(Z_in) + [skip] Z_in)

    With several streams `encoder.layers` holds L_in and L_out, and `encoder.streams` holds the K stacks of
    (layers - 2) / K layers between them. With one stream `encoder.layers` holds all layers. Every layer is
    initialised by itself, so streams differ from the start. In a pre-norm model the streams and their sum
    have no norm at their end; L_out normalises the sum.

    In a post-norm model the sum of n outputs is about n times as large as one of them: 1.9 for n = 2 and 3.7
    for n = 4 at the start. Attention, residual connection and output of L_out use the sum, as Eq. 1 has it.
    The softmaxes of other mechanisms in L_out (`DividesInput`) use the mean, as they would start almost
    decided otherwise. With 4 streams the largest posterior of 4 clusters (DMA) was 0.83 in L_out and 0.52 in
    the streams, and is 0.51 now. Division by the root of n would give 0.69. The mixture of queries (DMA),
    which only losses use, gets the queries of attention as they are: divided, they learned more slowly
    (docs/mechanisms/multistream.md).

    Args:
        streams: K.
        skip: whether Z_in is added to the sum.
        batched: whether each layer of all streams is computed at once in training.
    """

    def __init__(self, streams: int, skip: bool, batched: bool):
        self.streams, self.skip, self.batched = streams, skip, batched
        self.option = f"--streams {streams}"

    def depth(self, layers: int) -> int:
        """Return the number of layers that a word passes: the layers of one stream plus 2."""
        return layers if self.streams == 1 else 2 + (layers - 2) // self.streams

    def layers_for(self, depth: int) -> int:
        """Return the number of layers that an encoder needs so that a word passes `depth` of them."""
        return depth if self.streams == 1 else 2 + (depth - 2) * self.streams

    def places(self, layers: int) -> list[int]:
        """Return the place of every layer on a word's way. Streams are built one after the other."""
        depth = self.depth(layers)
        return [0, *list(range(1, depth - 1)) * self.streams, depth - 1]

    def arrange(self, encoder: TransformerEncoderBase) -> None:
        """Move the layers between the first and the last one into `encoder.streams`."""
        first, *layers, last = encoder.layers
        if self.streams > 1:
            each = len(layers) // self.streams
            stacks = [layers[i : i + each] for i in range(0, len(layers), each)]
            encoder.layers = nn.ModuleList([first, last])
            encoder.num_layers = 2
            encoder.streams = Streams(stacks, self.batched)
        if not encoder.cfg.encoder.normalize_before:
            for module in last.modules():
                if isinstance(module, DividesInput):
                    module.divide_input(self.streams + self.skip)

    def run(
        self,
        encoder: TransformerEncoderBase,
        x: Tensor,
        masks: AttentionMasks,
        states: list[Tensor] | None,
        run_layers: RunLayers,
    ) -> Tensor:
        """Apply all layers to x [T, B, C]; see `Arrangement.run`."""
        first, *body, last = encoder.layers
        z = run_layers([first], x)
        x = run_layers(body, z) if self.streams == 1 else encoder.streams(z, masks, states)
        return run_layers([last], x + z if self.skip else x)


def check(choice: Choice) -> None:
    """Raise UsageError for streams that cannot be built and options that would have no effect."""
    options = choice.options
    layers, k = options.encoder_layers, options.streams
    if k < 1:
        raise UsageError(f"--streams must be at least 1, not {k}")
    if k == 1:
        choice.refuse(["stream_batched"], "without --streams 2 or more")
        if layers < 3:
            raise UsageError(
                f"--encoder-layers {layers} with --stream-skip: there must be at least 3, or nothing is "
                "skipped"
            )
    elif layers < 2 + k or (layers - 2) % k:
        fitting = max((layers - 2) // k, 1)
        raise UsageError(
            f"--encoder-layers {layers} with --streams {k}: there must be 2 + {k} x L of them, a first one, "
            f"a last one and L in each stream, such as {2 + k * fitting} or {2 + k * (fitting + 1)}"
        )
    used = "--streams" if k > 1 else "--stream-skip"
    for name in ("encoder_layerdrop", "encoder_layers_to_keep"):
        if name in choice.changed:
            raise UsageError(
                f"{flag(name)} drops whole layers of the encoder, which does not work with {used}; leave one "
                "of them out"
            )
    if options.stream_batched:
        if options.attention_type != "plain":
            raise UsageError(
                f"--stream-batched does not work with --attention-type {options.attention_type}; leave one "
                "of them out"
            )
        if options.checkpoint_activations:
            raise UsageError(
                "--stream-batched does not work with --checkpoint-activations; leave one of them out"
            )
        choice.refuse_quantisation("--stream-batched")


@register_encoder(
    "stream",
    options=StreamOptions,
    is_used=lambda options: options.streams != 1 or options.stream_skip,
    needs="--streams 2 or more",
    check=check,
    must_agree={
        ".input_divisor": "in one of them the softmaxes of the last encoder layer divide their input by "
        "another number, as one of the models comes from another version"
    },
    benched=("multistream_transformer_iwslt_de_en --stream-skip", "multistream_roberta"),
)
def build_streams(options: Options) -> MultiStream:
    """Build the arrangement of an encoder with streams or a skip connection."""
    return MultiStream(options.streams, options.stream_skip, options.stream_batched)


def streams(k: int, layers: int) -> dict[str, Any]:
    """Return the options of k streams of `layers` layers, k(l) in the paper. The decoder keeps its depth."""
    return {"streams": k, "encoder_layers": 2 + k * layers}


ARCHS = {
    "multistream_transformer": [streams(2, 2)],
    "multistream_transformer_iwslt_de_en": [IWSLT_DE_EN, streams(2, 2)],
    "multistream_transformer_wmt_en_de": [WMT_EN_DE, streams(2, 2)],
    "multistream_transformer_tiny_cpu": [TINY_CPU, streams(2, 1)],
    "multistream_transformer_2x1": [size(128, 512, heads=8, layers=4), streams(2, 1)],
    "multistream_transformer_2x2": [size(512, 2048, heads=8), streams(2, 2)],
    "multistream_transformer_4x1": [size(512, 2048, heads=8), streams(4, 1)],
}
register_all(ARCHS)
MASKED_LANGUAGE_MODELS = {
    "multistream_roberta": [streams(2, 5)],
    "multistream_roberta_tiny_cpu": [TINY_CPU_ROBERTA, streams(2, 1)],
}
register_all(MASKED_LANGUAGE_MODELS, "modular_roberta")
