"""Combinations of options that cannot work, and options that would be ignored: refused by a sentence before
anything is built.
"""

from argparse import Namespace
from collections.abc import Iterable
from dataclasses import fields
from enum import Enum

from hydra.core.hydra_config import HydraConfig

from modular_fairseq.models.arrangement import depth_of_encoder
from modular_fairseq.models.attention_parts import PARTS, check_attention_type, option_names
from modular_fairseq.models.fairseq_options import resolved, value_of
from modular_fairseq.models.options import FAMILIES, PRESETS, BodyOptions, MaeOptions, uses
from modular_fairseq_cli.errors import UsageError


def check_options(options, family: type) -> None:
    """Refuse what cannot work and what would be ignored.

    Args:
        options: of the command line or a checkpoint.
        family: the dataclass of their model family, for its defaults.

    Raises:
        UsageError: one sentence that names the option.
    """
    preset = PRESETS.get(getattr(options, "_name", None) or getattr(options, "arch", None), {})
    _check_preset(options, family)
    check_attention_type(str(getattr(options, "attention_type", "plain")))
    for f in [f for own in (BodyOptions, *(part.options for part in PARTS.values())) for f in fields(own)]:
        choices = (
            [choice.value for choice in f.type]
            if isinstance(f.type, type) and issubclass(f.type, Enum)
            else None
        )
        if choices and value_of(options, f) not in choices:
            raise UsageError(
                f"{flag(f.name)} is {value_of(options, f)!r}; it must be one of {', '.join(choices)}"
            )
    options = resolved(options, family)
    stacks = [stack for stack in ("encoder", "decoder") if hasattr(options, f"{stack}_attention_heads")]
    # What the user set; what an arch set may lose its effect by an option of the user's.
    changed = {
        f.name
        for f in fields(family)
        if getattr(options, f.name, f.default) not in (f.default, preset.get(f.name, f.default))
    }
    for stack in stacks:
        _check_multiple(options, f"{stack}_embed_dim", f"{stack}_attention_heads")
    _check_streams(options, stacks, changed)
    _check_mechanisms(options, stacks, changed)
    for name, part in PARTS.items():
        if not uses(options, name):
            arch = next(
                (
                    f" (or an arch such as {arch})"
                    for arch, preset in PRESETS.items()
                    if preset.get("attention_type") == name
                ),
                "",
            )
            _refuse(changed, option_names(part.options), f"without --attention-type {name}{arch}")
    if uses(options, "mae"):
        _check_experts(options, stacks, changed)
    if uses(options, "dma"):
        _check_masks(options, stacks, changed)


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _refuse(changed: set[str], names: Iterable[str], unless: str) -> None:
    """Refuse options that were set although they have no effect."""
    for name in names:
        if name in changed:
            raise UsageError(f"{flag(name)} has no effect {unless}; leave it out")


def _check_multiple(options: Namespace, name: str, divisor: str) -> None:
    value, by = getattr(options, name), getattr(options, divisor)
    for option, number in ((divisor, by), (name, value)):
        if number < 1:
            raise UsageError(f"{flag(option)} must be at least 1, not {number}")
    if value % by:
        raise UsageError(f"{flag(name)} {value} is not a multiple of {flag(divisor)} {by}")


def _refuse_quantisation(options: Namespace, where: str) -> None:
    """fairseq's quantisation noise is for `nn.Linear`, and not for parameters in groups or stacks."""
    for name in ("quant_noise_pq", "quant_noise_scalar"):
        if getattr(options, name) > 0:
            raise UsageError(f"{flag(name)} does not work with {where}; leave one of them out")


def _check_streams(options: Namespace, stacks: list[str], changed: set[str]) -> None:
    if "encoder" not in stacks:
        for name in ("streams", "stream_skip", "stream_batched"):
            if name in changed:
                raise UsageError(f"{flag(name)} is for encoders, and a language model has none; leave it out")
        return
    layers, k = options.encoder_layers, options.streams
    if k < 1:
        raise UsageError(f"--streams must be at least 1, not {k}")
    if k == 1:
        _refuse(changed, ["stream_batched"], "without --streams 2 or more")
        if not options.stream_skip:
            return
        if layers < 3:
            raise UsageError(
                f"--encoder-layers {layers} with --stream-skip: there must be at least 3, or nothing is "
                "skipped"
            )
    elif layers < 2 + k or (layers - 2) % k:
        fitting = max((layers - 2) // k, 1)
        raise UsageError(
            f"--encoder-layers {layers} with --streams {k}: there must be 2 + {k} x L of them, "
            f"a first one, a last one and L in each stream, such as {2 + k * fitting} or "
            f"{2 + k * (fitting + 1)}"
        )
    used = "--streams" if k > 1 else "--stream-skip"
    for name in ("encoder_layerdrop", "encoder_layers_to_keep"):
        if name in changed:
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
        _refuse_quantisation(options, "--stream-batched")


def _check_mechanisms(options: Namespace, stacks: list[str], changed: set[str]) -> None:
    if options.tim_layers == "none":
        _refuse(
            changed,
            [f.name for f in fields(BodyOptions) if f.name.startswith("tim_")],
            "without --tim-layers middle or all (or an arch such as tim_transformer)",
        )
        return
    if options.tim_communication_heads < 0:
        raise UsageError(
            f"--tim-communication-heads must be at least 0 (none), not {options.tim_communication_heads}"
        )
    if options.tim_communication_heads == 0:
        _refuse(changed, ["tim_communication_dim"], "with --tim-communication-heads 0")
    elif options.tim_communication_dim < 1:
        raise UsageError(f"--tim-communication-dim must be at least 1, not {options.tim_communication_dim}")
    for stack in stacks:
        for size in ("embed_dim", "ffn_embed_dim", "attention_heads"):
            _check_multiple(options, f"{stack}_{size}", "tim_mechanisms")
        layers = getattr(options, f"{stack}_layers")
        depth = depth_of_encoder(layers, options.streams) if stack == "encoder" else layers
        if options.tim_layers == "middle" and depth < 4:
            k = options.streams
            way, enough = (
                ("", 4)
                if depth == layers
                else (f" with --streams {k} (a word passes {depth} layers)", 2 + 2 * k)
            )
            raise UsageError(
                "--tim-layers middle leaves the first two layers and the last one plain, so "
                f"--{stack}-layers {layers}{way} "
                f"has no TIM layer: use at least {enough} layers, or --tim-layers all"
            )
        if f"{stack}_layers_to_keep" in changed:
            raise UsageError(
                f"--{stack}-layers-to-keep renumbers layers, so that TIM layers would be others; leave it "
                "out with --tim-layers"
            )
    _refuse_quantisation(options, "--tim-layers")


def _check_experts(options: Namespace, stacks: list[str], changed: set[str]) -> None:
    for stack in stacks:
        heads = getattr(options, f"{stack}_attention_heads")
        if not 0 < options.mae_dropped_heads < heads:
            raise UsageError(
                f"--mae-dropped-heads {options.mae_dropped_heads} with --{stack}-attention-heads {heads}: "
                "an expert must drop at least 1 head and keep at least 1"
            )
    if options.mae_inference != "random":
        _refuse(changed, ["mae_inference_seed"], "without --mae-inference random")
    if options.mae_gating == "uniform":
        _refuse(
            changed,
            [name for name in option_names(MaeOptions) if "gate" in name],
            "with --mae-gating uniform, which has no gate networks",
        )
        _refuse(
            changed, ["mae_training", "mae_finetune"], "with --mae-gating uniform, which has no gate networks"
        )
        if options.mae_inference == "specialised":
            raise UsageError(
                "--mae-inference specialised needs learned gates; with --mae-gating uniform all experts are "
                "equal, use random"
            )
        return
    if options.mae_training == "bcd" and options.quant_noise_pq > 0:
        raise UsageError(
            "--quant-noise-pq rewrites weights in every forward pass, also those that a G step must not "
            "change; leave it out"
        )
    if options.mae_training == "joint":
        _refuse(
            changed,
            ["mae_gate_interval", "mae_gate_lr", "mae_gate_loss", "mae_finetune"],
            "with --mae-training joint, which takes no G steps",
        )
    if options.mae_finetune == "gates":
        _refuse(changed, ["mae_gate_interval"], "with --mae-finetune gates, where every step is a G step")
    if options.mae_gate_context != "window":
        _refuse(changed, ["mae_gate_window"], "without --mae-gate-context window")
    if options.mae_gate_context == "source" and "encoder" not in stacks:
        raise UsageError(
            "--mae-gate-context source needs an encoder; a language model takes window or prefix"
        )
    for name in ("mae_gate_window", "mae_gate_dim", "mae_gate_lr"):
        if not getattr(options, name) > 0:
            raise UsageError(f"{flag(name)} must be positive, not {getattr(options, name)}")
    if not 0 <= options.mae_gate_dropout < 1:
        raise UsageError(
            f"--mae-gate-dropout must be at least 0 and less than 1, not {options.mae_gate_dropout}"
        )
    if options.mae_gate_interval is not None and options.mae_gate_interval < 1:
        raise UsageError(
            "--mae-gate-interval must be at least 1 (1 = G steps in every epoch), not "
            f"{options.mae_gate_interval}"
        )


def _check_masks(options: Namespace, stacks: list[str], changed: set[str]) -> None:
    if options.dma_clusters < 1:
        raise UsageError(
            f"--dma-clusters must be at least 1 (which is plain attention), not {options.dma_clusters}"
        )
    if not 1e-3 <= options.dma_centroid_gradient <= 1e3:  # it is multiplied in half precision, too
        raise UsageError(
            f"--dma-centroid-gradient must be positive, 0.001 to 1000, not {options.dma_centroid_gradient}"
        )
    if options.dma_clusters == 1:
        _refuse(
            changed,
            ["dma_posterior", "dma_decoder_eval_mask"],
            "with --dma-clusters 1, which is plain attention",
        )
    if options.dma_centroid_gradient == 1:
        _refuse(changed, ["dma_centroid_mode"], "with --dma-centroid-gradient 1")
    if "encoder" in stacks and options.encoder_embed_dim != options.decoder_embed_dim:
        raise UsageError(
            f"--decoder-embed-dim {options.decoder_embed_dim} with --encoder-embed-dim "
            f"{options.encoder_embed_dim}: they must be equal "
            f"with --attention-type {options.attention_type}, where source and target words are in the same "
            "clusters"
        )
    if options.adaptive_softmax_cutoff is not None:
        raise UsageError(
            f"--adaptive-softmax-cutoff does not work with --attention-type {options.attention_type}, whose "
            "losses --criterion "
            "modular_cross_entropy adds, and adaptive_loss does not; leave one of them out"
        )


def _check_preset(options, family: type) -> None:
    """fairseq-hydra-train fills in every default before an arch can set its own, which then has no effect at
    all.

    Elsewhere an option of the user's may well undo all that an arch sets (--arch multistream_transformer
    --streams 1).
    """
    if not HydraConfig.initialized():
        return
    arch = getattr(options, "_name", None)
    defaults = {f.name: f.default for f in fields(family)}
    preset = {name: value for name, value in PRESETS.get(arch, {}).items() if value != defaults[name]}
    if preset and all(getattr(options, name, defaults[name]) == defaults[name] for name in preset):
        settings = " ".join(f"+model.{name}={value}" for name, value in preset.items())
        model = next(name for name, options in FAMILIES.items() if issubclass(options, family))
        raise UsageError(
            f"the arch {arch} has no effect through hydra; write +model._name={model} {settings}"
        )
