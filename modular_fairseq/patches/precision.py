"""Mend fairseq's options for number formats: --bf16 on any device, and the loss scale of --amp."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from fairseq.dataclass.configs import CommonConfig
from fairseq.optim.amp_optimizer import AMPOptimizer
from omegaconf import DictConfig

from modular_fairseq.patches.registry import replace
from modular_fairseq_cli.errors import UsageError


@replace("fairseq.options.parse_args_and_arch")
def bf16_on_any_device(
    parse: Callable, parser: ArgumentParser, input_args: list[str] | None = None, *args: Any, **kwargs: Any
) -> Namespace | tuple[Namespace, list[str]]:
    """Let --bf16 and --memory-efficient-bf16 select bfloat16 on any device, and only --tpu select a TPU.

    On a command line, fairseq lets --bf16 turn on --tpu (fairseq/options.py:200-203, fairseq issue 4696),
    which needs torch_xla. Through hydra it does not. The help text of --bf16 also claimed that it implies
    --tpu (fairseq/dataclass/configs.py:148).
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
            raise UsageError("--fp16 and --bf16 cannot be combined; leave one of them out") from None
        raise
    options = parsed[0] if isinstance(parsed, tuple) else parsed
    if getattr(options, "bf16", False) and getattr(options, "tpu", False):
        options.tpu = given("tpu")
    return parsed


@replace("fairseq.optim.amp_optimizer.AMPOptimizer.__init__")
def amp_options_have_their_effect(
    init: Callable, optimizer: AMPOptimizer, cfg: DictConfig, *args: Any, **kwargs: Any
) -> None:
    """Give --amp-scale-window and --amp-init-scale the meaning that their names promise.

    With --amp, --amp-init-scale is the initial loss scale. --amp-scale-window is the number of updates after
    which the loss scale grows. fairseq starts with --fp16-init-scale instead, and if --amp-scale-window is
    given, it lets the scale grow after --amp-init-scale updates (fairseq/optim/amp_optimizer.py:23-25). If
    --amp-init-scale has its default value, --fp16-init-scale still sets the initial loss scale.
    """
    common = cfg.common
    scale, default = common.amp_init_scale, CommonConfig.amp_init_scale
    options_that_init_reads = SimpleNamespace(
        fp16_init_scale=common.fp16_init_scale if scale == default else scale,
        amp_scale_window=common.amp_scale_window,
        amp_init_scale=common.amp_scale_window,
        min_loss_scale=common.min_loss_scale,
    )
    init(optimizer, SimpleNamespace(optimizer=cfg.optimizer, common=options_that_init_reads), *args, **kwargs)
