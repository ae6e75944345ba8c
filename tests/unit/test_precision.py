"""Test patches/precision.py: all number formats train on any device, and --amp as its options ask."""

import pytest
import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer
from omegaconf import OmegaConf

from modular_fairseq.benchmark.jobs import random_batch, random_task
from modular_fairseq_cli.errors import UsageError

pytestmark = pytest.mark.cpu_only("these tests train in each number format on a CPU")


def parsed(*args, **kwargs):
    return options.parse_args_and_arch(
        options.get_training_parser(), ["data", "--arch", "transformer", *args], **kwargs
    )


@pytest.mark.parametrize("flag", ["--bf16", "--memory-efficient-bf16"])
def test_bf16_is_no_tpu_mode_unless_tpu_is_given(flag):
    assert (parsed().bf16, parsed().tpu) == (False, False)
    assert (parsed(flag).bf16, parsed(flag).tpu) == (True, False)
    assert (parsed(flag, "--tpu").bf16, parsed(flag, "--tpu").tpu) == (True, True)
    known, rest = parsed(flag, "--unheard-of", parse_known=True)
    assert (known.bf16, known.tpu, rest) == (True, False, ["--unheard-of"])
    assert not hasattr(parsed(flag, suppress_defaults=True), "tpu")


def test_fp16_with_bf16_is_refused_and_with_a_tpu_left_to_fairseq():
    with pytest.raises(UsageError, match="--fp16 and --bf16 cannot be combined"):
        parsed("--fp16", "--bf16")
    with pytest.raises(ValueError, match="Cannot combine --fp16 and --tpu"):
        parsed("--fp16", "--tpu")


def test_the_help_of_bf16_does_not_speak_of_a_tpu(capsys):
    with pytest.raises(SystemExit):
        parsed("--help")
    help_of_bf16 = capsys.readouterr().out.partition("\n  --bf16 ")[2].partition("\n  --")[0]
    assert help_of_bf16.split() == ["train", "in", "bfloat16,", "on", "any", "device"]


SMALL = (
    "data --arch modular_transformer_tiny_cpu --encoder-layers 1 --decoder-layers 1 --dropout 0 --cpu "
    "--optimizer adam --lr 0.001 --criterion label_smoothed_cross_entropy --distributed-world-size 1"
)
TASK = random_task(40, 30)


def trainer(*args, **seen):
    """Return a trainer of a small model on the CPU, whose first epoch has begun."""
    parser = options.get_training_parser()
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, [*SMALL.split(), *args]))
    torch.manual_seed(0)
    model = TASK.build_model(cfg.model)
    made = Trainer(cfg, TASK, model, TASK.build_criterion(cfg.criterion))
    made.begin_epoch(1)
    return made


def types_of_a_step(made):
    """Take an update, and return the types of the weights, of a product in the forward pass and of its
    gradient.
    """
    seen = []
    layer = made.get_model().decoder.layers[0].fc1
    layer.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    layer.weight.register_hook(lambda gradient: seen.append(gradient.dtype))
    before = layer.weight.detach().clone()
    assert made.train_step([random_batch(TASK, 3, 8, 1)]) is not None
    assert not torch.equal(layer.weight, before)
    return layer.weight.dtype, *seen


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("", (torch.float32, torch.float32, torch.float32)),
        ("--fp16 --fp16-init-scale 4", (torch.float16, torch.float16, torch.float16)),
        ("--bf16", (torch.bfloat16, torch.bfloat16, torch.bfloat16)),
        ("--amp", (torch.float32, torch.bfloat16, torch.float32)),  # torch's choice on a CPU
        ("--amp --bf16", (torch.float32, torch.bfloat16, torch.float32)),
    ],
)
def test_every_number_format_trains_on_a_cpu(args, expected):
    made = trainer(*args.split(), "--lr-scheduler", "fixed")
    assert types_of_a_step(made) == expected and made.get_num_updates() == 1


@pytest.fixture
def _float16_is_chosen():
    """Let torch choose float16, as it does on a GPU."""
    chosen = torch.get_autocast_dtype("cpu")
    torch.set_autocast_dtype("cpu", torch.float16)
    yield
    torch.set_autocast_dtype("cpu", chosen)


@pytest.mark.usefixtures("_float16_is_chosen")
def test_amp_computes_in_the_format_that_it_is_asked_for():
    for args, expected in (("--amp", torch.float16), ("--amp --bf16", torch.bfloat16)):
        assert types_of_a_step(trainer(*args.split()))[1] == expected


def test_an_update_whose_gradient_overflows_is_left_out_on_a_cpu():
    made = trainer("--fp16", "--fp16-init-scale", str(2**40))
    before = made.get_model().decoder.layers[0].fc1.weight.clone()
    made.train_step([random_batch(TASK, 3, 8, 1)])
    assert torch.equal(made.get_model().decoder.layers[0].fc1.weight, before)
    assert made.get_num_updates() == 0 and made.optimizer.scaler.loss_scale == 2**39


@pytest.mark.parametrize(
    ("args", "initial", "interval"),
    [
        ([], 128, 2000),
        (["--fp16-init-scale", "4"], 4, 2000),
        (["--amp-init-scale", "8"], 8, 2000),
        (["--amp-scale-window", "50"], 128, 50),
        (["--amp-init-scale", "8", "--amp-scale-window", "50"], 8, 50),
    ],
)
def test_the_loss_scale_of_amp_is_as_asked_for(args, initial, interval):
    optimizer = trainer("--amp", "--min-loss-scale", "0.5", *args).optimizer
    scaler = optimizer.scaler
    assert (scaler.get_scale(), scaler.get_growth_interval(), scaler.is_enabled()) == (
        initial,
        interval,
        True,
    )
    assert optimizer.min_loss_scale == 0.5


def test_the_loss_scale_of_amp_goes_on_after_a_resume(tmp_path):
    """The loss scale is saved, and --amp-scale-window of the training that continues says when it grows."""
    path = str(tmp_path / "checkpoint.pt")
    words = ["--amp", "--amp-scale-window", "3", "--lr-scheduler", "fixed", "--log-format", "none"]
    made = trainer(*words)
    for seed in range(4):
        made.train_step([random_batch(TASK, 3, 8, seed)])
    assert made.optimizer.scaler.get_scale() == 256  # after three updates
    made.consolidate_optimizer()
    made.save_checkpoint(path, {"train_iterator": {"epoch": 1}, "val_loss": None})
    resumed = trainer(*words)
    resumed.load_checkpoint(path)
    for seed in range(4, 6):
        resumed.train_step([random_batch(TASK, 3, 8, seed)])
    assert resumed.optimizer.scaler.get_scale() == 512  # the fourth update counts, too
    for more, window in ((["--amp-scale-window", "50"], 50), ([], 3)):
        resumed = trainer(*words, *more)
        resumed.load_checkpoint(path)
        scaler = resumed.optimizer.scaler
        assert (scaler.get_scale(), scaler.get_growth_interval()) == (256, window)
    state = torch.load(path, weights_only=False)
    del state["last_optimizer_state"]["amp_scaler"]  # a checkpoint that stock fairseq saved
    torch.save(state, path)
    resumed = trainer(*words)
    resumed.load_checkpoint(path)
    assert resumed.optimizer.scaler.get_scale() == 128
    unscaled = trainer(*words, "--bf16")
    unscaled.load_checkpoint(path)
    assert not unscaled.optimizer.scaler.is_enabled()


def options_saved_by(made):
    made.consolidate_optimizer()  # as before each checkpoint
    return made.state_dict()["cfg"]


def test_amp_in_bfloat16_scales_no_losses_and_keeps_the_weights_in_float32():
    made = trainer("--amp", "--bf16")
    assert not made.optimizer.scaler.is_enabled() and not made.cfg.common.bf16
    assert {p.dtype for p in made.get_model().parameters()} == {torch.float32}
    assert options_saved_by(made)["common"]["bf16"]
    assert not options_saved_by(trainer("--amp"))["common"]["bf16"]


def test_another_trainer_with_the_options_of_amp_in_bfloat16_trains_in_bfloat16():
    made = trainer("--amp", "--bf16")
    cfg = OmegaConf.create(options_saved_by(made))
    again = Trainer(cfg, made.task, made.model, made.criterion)
    assert cfg.common.bf16 and again.autocast_dtype == torch.bfloat16


@pytest.mark.parametrize("option", ["--fp16", "--memory-efficient-fp16", "--memory-efficient-bf16"])
def test_amp_and_weights_in_half_precision_are_refused(option):
    with pytest.raises(UsageError, match=f"--amp and {option} cannot be combined; leave one of them out"):
        trainer("--amp", option)


def test_amp_divides_gradients_by_the_loss_scale_once():
    made = trainer("--amp", "--fp16-init-scale", "1024", "--clip-norm", "1e6")
    optimizer, seen = made.optimizer, []
    clip, step = optimizer.clip_grad_norm, optimizer.optimizer.step

    def norm():
        gradients = [p.grad for p in made.get_model().parameters() if p.grad is not None]
        return float(torch.nn.utils.get_total_norm(gradients))

    def watched_clip(*args, **kwargs):
        seen.append(float(clip(*args, **kwargs)))
        return torch.tensor(seen[-1])

    optimizer.clip_grad_norm = watched_clip
    optimizer.optimizer.step = lambda *args, **kwargs: seen.append(norm()) or step(*args, **kwargs)
    made.train_step([random_batch(TASK, 3, 8, 1)])
    assert seen[1] == pytest.approx(seen[0], rel=1e-3) and seen[0] > 0.01
