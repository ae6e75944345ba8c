"""Multi-Stream encoders: "Multi-Stream Transformers" (Burtsev and Rumshisky 2021).

The maths is in `modules/streams.py`.
"""

from dataclasses import dataclass, field

from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from modular_fairseq.models.architectures import IWSLT_DE_EN, TINY_CPU, WMT_EN_DE, register_all, size
from modular_fairseq.models.arrangement import Arrangement, RunLayers
from modular_fairseq.models.checks import Choice
from modular_fairseq.models.options import flag
from modular_fairseq.models.registry import register_encoder
from modular_fairseq.modules.streams import Streams
from modular_fairseq_cli.errors import UsageError


@dataclass
class StreamOptions(FairseqDataclass):
    """Options of encoders with several streams."""

    streams: int = field(
        default=1,
        metadata={
            "help": "parallel streams between first and last encoder layer, of (encoder layers - 2) / "
            "streams layers each, summed"
        },
    )
    stream_batched: bool = field(
        default=False,
        metadata={
            "help": "train each layer of all streams in one computation instead of one after the other (for "
            "GPUs; slower on CPUs)"
        },
    )
    stream_skip: bool = field(
        default=False,
        metadata={
            "help": "add the output of the first encoder layer to the input of the last (also with one "
            "stream)"
        },
    )


class MultiStream(Arrangement):
    """With --streams K and --stream-skip (Eq. 1):

        Z_in = L_in(x),    Z_out = L_out(sum_i S_i(Z_in) + [skip] Z_in)

    `encoder.layers` are L_in and L_out, and `encoder.streams` the K stacks of (layers - 2) / K layers between
    them; with one stream `encoder.layers` are all of them. Every layer is initialised by itself, so streams
    differ from the start. In a pre-norm model the streams, and so their sum, have no norm at their end; L_out
    normalises it.
    """

    def __init__(self, streams: int, skip: bool, batched: bool):
        self.streams, self.skip, self.batched = streams, skip, batched
        self.option = f"--streams {streams}"

    def depth(self, layers: int) -> int:
        return layers if self.streams == 1 else 2 + (layers - 2) // self.streams

    def layers_for(self, depth: int) -> int:
        return depth if self.streams == 1 else 2 + (depth - 2) * self.streams

    def places(self, layers: int) -> list[int]:
        """The first layer, stream after stream, the last layer."""
        depth = self.depth(layers)
        return [0, *list(range(1, depth - 1)) * self.streams, depth - 1]

    def arrange(self, encoder: nn.Module) -> None:
        if self.streams == 1:
            return
        first, *layers, last = encoder.layers
        each = len(layers) // self.streams
        encoder.layers = nn.ModuleList([first, last])
        encoder.num_layers = 2
        encoder.streams = Streams([layers[i : i + each] for i in range(0, len(layers), each)], self.batched)

    def run(
        self,
        encoder: nn.Module,
        x: Tensor,
        padding_mask: Tensor | None,
        states: list[Tensor] | None,
        run_layers: RunLayers,
    ) -> Tensor:
        first, *body, last = encoder.layers
        z = run_layers([first], x)
        x = run_layers(body, z) if self.streams == 1 else encoder.streams(z, padding_mask, states)
        return run_layers([last], x + z if self.skip else x)


def check(choice: Choice) -> None:
    """Raise UsageError for streams that cannot be built and options that would be ignored."""
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
                f"--stream-batched does not work with --attention-type {options.attention_type}; leave it out"
            )
        if options.checkpoint_activations:
            raise UsageError("--stream-batched does not work with --checkpoint-activations; leave it out")
        choice.refuse_quantisation("--stream-batched")


@register_encoder(
    "stream",
    options=StreamOptions,
    is_used=lambda options: options.streams != 1 or options.stream_skip,
    needs="--streams 2 or more",
    check=check,
    benched=("multistream_transformer_iwslt_de_en --stream-skip",),
)
def build_streams(options) -> MultiStream:
    return MultiStream(options.streams, options.stream_skip, options.stream_batched)


def streams(k: int, layers: int) -> dict:
    """k(l) in the paper's notation; the decoder keeps its depth."""
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
