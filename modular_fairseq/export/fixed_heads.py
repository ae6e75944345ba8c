"""Turn a model into a plain Transformer, if in inference it is one: head scales become part of the weights.

A gate multiplies head j of an attention module by a scale s_j. If the scales do not depend on the input, the
output projection W can take them over, as W (s_j H_j) = (s_j W) H_j. A head whose scale is 0 is removed. What
remains is the model of "Attention Is All You Need", which every engine can run.
"""

import copy
import re
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from fairseq.models.transformer import TransformerModelBase
from torch import Tensor, nn

from modular_fairseq.export.gates import can_be_fixed
from modular_fairseq.models.arrangement import Arrangement
from modular_fairseq.models.decoder import TransformerDecoder
from modular_fairseq.models.encoder import TransformerEncoder
from modular_fairseq.models.layers import TransformerDecoderLayer, TransformerEncoderLayer
from modular_fairseq.models.mechanism import add_residual
from modular_fairseq.models.translation import ModularTransformer
from modular_fairseq.modules.attention import MultiheadAttention
from modular_fairseq.modules.dropout import Dropout, GrowingDropout
from modular_fairseq.modules.inference import PackedLinear
from modular_fairseq_cli.errors import UsageError

# A plain Transformer consists of modules of these classes, and of classes of fairseq and torch.
PLAIN = {
    Dropout,
    GrowingDropout,
    ModularTransformer,
    MultiheadAttention,
    PackedLinear,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
}
# The names of its weights. Any other weight would be left out of the exported model.
WEIGHTS = re.compile(
    r"(encoder|decoder)\.embed_(tokens|positions)\.weight"
    r"|(encoder|decoder)\.(layers\.\d+\.)?\w*layer_?norm(_embedding)?\.(weight|bias)"
    r"|(encoder|decoder)\.layers\.\d+\.(fc[12]|\w+_attn\.[qkv]_proj|\w+_attn\.out_proj)\.(weight|bias)"
    r"|decoder\.(project_in_dim|project_out_dim|output_projection)\.weight"
)


def check_plain(model: nn.Module) -> None:
    """Refuse a model that no head scales can turn into a plain Transformer.

    Raises:
        UsageError: its sentence says what the model has beside a Transformer.
    """

    def refuse(reason: str) -> NoReturn:
        raise UsageError(f"the model cannot be exported: {reason}")

    if not isinstance(model, TransformerModelBase):
        refuse("it is not a Transformer for translation")
    encoder, decoder = model.encoder, model.decoder
    if type(getattr(encoder, "arrangement", None)) not in (Arrangement, type(None)):
        refuse("the layers of its encoder do not follow one another")
    if decoder.output_projection is None or getattr(decoder, "adaptive_softmax", None) is not None:
        refuse("it has an adaptive softmax")
    for name, module in model.named_modules():
        if isinstance(module, (TransformerEncoderLayer, TransformerDecoderLayer)):
            if module.groups > 1 or module.competition is not None:
                refuse(f"{name} has independent mechanisms, and its features are in groups")
            if module.communication is not None:
                refuse(f"{name} has a sub-layer in which mechanisms communicate")
            if module.residual_connection is not add_residual:
                refuse(f"{name} has no residual connections")
        if isinstance(module, MultiheadAttention):
            if module.mask is not None:
                refuse(f"{name} has a mask that depends on the input")
            if module.gate is not None and not can_be_fixed(module.gate):
                refuse(f"{name} has a gate that depends on the input")
    in_gates = {
        id(part)
        for module in model.modules()
        if isinstance(module, MultiheadAttention) and module.gate is not None
        for part in module.gate.modules()
    }
    for name, module in model.named_modules():
        shown, package = name or "the model", type(module).__module__.partition(".")[0]
        if type(module) not in PLAIN and package not in ("fairseq", "torch") and id(module) not in in_gates:
            refuse(f"{shown} is a {type(module).__name__}, which is no part of a plain Transformer")
        if module._forward_hooks or module._forward_pre_hooks:
            refuse(f"{shown} has a forward hook, which may change what it computes")
        for own, _ in module.named_parameters(name, recurse=False):
            if not WEIGHTS.fullmatch(own) and id(module) not in in_gates:
                refuse(f"{own} is a weight that a plain Transformer does not have")
    for number, layer in enumerate(decoder.layers):
        if layer.encoder_attn is None:
            refuse(f"decoder.layers.{number} has no cross-attention")
        if getattr(layer, "cross_self_attention", False):
            refuse(f"decoder.layers.{number} attends to source and target at once (--cross-self-attention)")
    for side, stack in (("encoder", encoder), ("decoder", decoder)):
        if stack.embed_positions is None:
            refuse(f"its {side} has no positions")


def plain(model: Any, scales: Mapping[str, Tensor]) -> Any:
    """Return a copy of a model in which attention modules have no gates, but heads with fixed scales.

    The copy is for its weights. Heads whose scale is 0 are missing in all projections, and `num_heads` says
    how many are left. They are kept, with weights of 0, in an encoder or decoder whose modules would
    otherwise have different numbers of heads.

    Args:
        model: a model that `check_plain` accepts.
        scales: head scales [H] by the name of the attention module. The others keep all heads as they are.
    """
    found = copy.deepcopy(model).float().cpu()
    left: dict[str, set[int]] = {}
    for name, module in found.named_modules():
        if isinstance(module, MultiheadAttention):
            scale = scales.get(name)
            heads = module.num_heads if scale is None else int(scale.count_nonzero())
            left.setdefault(name.split(".")[0], set()).add(heads)
    alike = {stack for stack, numbers in left.items() if len(numbers) == 1}
    for name, module in found.named_modules():
        if not isinstance(module, MultiheadAttention):
            continue
        module.gate = None
        if name in scales:
            _fix(module, scales[name], removes=name.split(".")[0] in alike)
    return found


@torch.no_grad()
def _fix(module: MultiheadAttention, scales: Tensor, removes: bool) -> None:
    """Multiply the heads of a module by scales [H], and remove heads whose scale is 0 if `removes`."""
    kept = scales.nonzero().flatten() if removes else torch.arange(len(scales))
    columns = (kept.unsqueeze(1) * module.head_dim + torch.arange(module.head_dim)).flatten()
    for projection in (module.q_proj, module.k_proj, module.v_proj):
        assert isinstance(projection, nn.Linear)
        projection.weight = nn.Parameter(projection.weight[columns])
        if projection.bias is not None:
            projection.bias = nn.Parameter(projection.bias[columns])
    factors = scales[kept].to(module.out_proj.weight).repeat_interleave(module.head_dim)
    module.out_proj.weight = nn.Parameter(module.out_proj.weight[:, columns] * factors)
    module.num_heads = len(kept)
