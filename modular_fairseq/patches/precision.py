"""Number formats: bfloat16 on any device, and the loss scale of --amp."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from types import SimpleNamespace

from fairseq.dataclass.configs import CommonConfig

from modular_fairseq.patches.registry import replace
from modular_fairseq_cli.errors import UsageError


@replace("fairseq.options.parse_args_and_arch")
def bf16_on_any_device(
    parse: Callable, parser: ArgumentParser, input_args=None, *args, **kwargs
) -> Namespace | tuple[Namespace, list[str]]:
    """--bf16 and --memory-efficient-bf16 mean bfloat16 on whatever device there is; --tpu means a TPU, as
    ever.

    On a command line, fairseq takes --bf16 for --tpu (fairseq/options.py:200-203, fairseq issue 4696), which
    needs torch_xla; through hydra it does not. The help text of --bf16 said so too
    (fairseq/dataclass/configs.py:148).
    """
    for action in parser._actions:
        if action.dest == "bf16":
            action.help = "train in bfloat16, on any device"

    def given(option: str) -> bool:
        return getattr(parser.parse_known_args(input_args)[0], option, False)

    try:
        parsed = parse(parser, input_args, *args, **kwargs)
    except ValueError as error:
        if str(error).startswith("Cannot combine --fp16 and --tpu") and not given("tpu"):
            raise UsageError("--fp16 and --bf16 exclude each other; leave one of them out") from None
        raise
    options = parsed[0] if isinstance(parsed, tuple) else parsed
    if getattr(options, "bf16", False) and getattr(options, "tpu", False):
        options.tpu = given("tpu")
    return parsed


@replace("fairseq.optim.amp_optimizer.AMPOptimizer.__init__")
def amp_options_have_their_effect(init: Callable, optimizer, cfg, *args, **kwargs) -> None:
    """--amp-scale-window is how many updates the loss scale of --amp waits before it grows, and
    --amp-init-scale is the loss scale at first.

    fairseq waits --amp-init-scale updates if --amp-scale-window is given, and begins with --fp16-init-scale
    (fairseq/optim/amp_optimizer.py:23-25). Where --amp-init-scale is left at its default, --fp16-init-scale
    still counts.
    """
    common = cfg.common
    scale, default = common.amp_init_scale, CommonConfig.amp_init_scale
    in_the_words_of_init = SimpleNamespace(
        fp16_init_scale=common.fp16_init_scale if scale == default else scale,
        amp_scale_window=common.amp_scale_window,
        amp_init_scale=common.amp_scale_window,
        min_loss_scale=common.min_loss_scale,
    )
    init(optimizer, SimpleNamespace(optimizer=cfg.optimizer, common=in_the_words_of_init), *args, **kwargs)
