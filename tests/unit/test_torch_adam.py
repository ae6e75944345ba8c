"""Test optim/torch_adam.py: it is fairseq's Adam, in a few kernels, in every number format."""

import copy
import math

import pytest
import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.optim import build_optimizer
from fairseq.optim.adam import FairseqAdam
from fairseq.trainer import Trainer
from omegaconf import OmegaConf

from modular_fairseq.benchmark.jobs import random_batch, random_task
from modular_fairseq.benchmark.kernels import UPDATE, counting
from modular_fairseq.optim import torch_adam
from modular_fairseq.optim.torch_adam import Adam, TorchAdam
from modular_fairseq_cli.errors import UsageError

SHAPES = [(3, 4), (5,), (2, 3, 2)]
FORMATS = ["", "--fp16 --fp16-init-scale 4", "--bf16", "--memory-efficient-fp16", "--amp", "--amp --bf16"]
TASK = random_task(40, 30)


def optimizer_of(name, params, **values):
    cfg = {"_name": name, "lr": [0.01], "adam_betas": "(0.9, 0.98)", "adam_eps": 1e-8, "weight_decay": 0.1}
    if name == "adam":
        cfg |= {"tpu": False, "use_old_adam": True, "fp16_adam_stats": False}
    return build_optimizer(OmegaConf.create(cfg | values), params)


def parameters(dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]


def set_gradients(params, step, missing=None):
    generator = torch.Generator().manual_seed(100 + step)
    for number, p in enumerate(params):
        gradient = 10 ** (-2.0 * number) * torch.randn(p.shape, generator=generator)
        p.grad = None if (number, step) == missing else gradient.to(p.dtype)


@pytest.mark.parametrize("eps", [1e-8, 1e-2])
@pytest.mark.parametrize("missing", [None, (1, 1)])
def test_it_computes_what_fairseqs_adam_computes(eps, missing):
    """The eps of torch's Adam is another one, which a large eps shows."""
    both = {name: parameters() for name in ("adam", "torch_adam")}
    optimizers = {name: optimizer_of(name, params, adam_eps=eps) for name, params in both.items()}
    for step in range(1, 30):
        for name, params in both.items():
            set_gradients(params, step, missing)
            optimizers[name].set_lr(0.01 / step)
            optimizers[name].step()
    for ours, theirs in zip(both["torch_adam"], both["adam"], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=1e-7)
    ours, theirs = (optimizers[name].state_dict() for name in ("torch_adam", "adam"))
    assert [state["step"] for state in ours["state"].values()] == [
        state["step"] for state in theirs["state"].values()
    ]


def test_it_uses_torchs_loops_where_there_is_no_fused_kernel(monkeypatch):
    fused, looped, used, adamw = parameters(), parameters(), [], torch_adam.adamw

    def recorder(*tensors, **options):
        used.append((options["fused"], options["foreach"]))
        adamw(*tensors, **options)

    monkeypatch.setattr(torch_adam, "adamw", recorder)
    for params, devices in ((fused, ("cpu",)), (looped, ())):
        monkeypatch.setattr(torch_adam, "FUSED", devices)
        optimizer = Adam(params, lr=0.01, weight_decay=0.1)
        for step in range(1, 4):
            set_gradients(params, step)
            optimizer.step()
    assert used == [(True, False)] * 3 + [(False, True)] * 3
    for one, other in zip(fused, looped, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("chunk", [1, 13, 1000])
def test_half_precision_has_a_state_in_float32_and_rounds_the_weights_only(monkeypatch, dtype, chunk):
    monkeypatch.setattr(torch_adam, "CHUNK", chunk)
    both = {name: parameters(dtype) for name in ("adam", "torch_adam")}
    optimizers = {name: optimizer_of(name, params) for name, params in both.items()}
    for step in range(1, 6):
        for name, params in both.items():
            set_gradients(params, step)
            optimizers[name].step()
    for ours, theirs in zip(both["torch_adam"], both["adam"], strict=True):
        assert ours.dtype == dtype
        states = [optimizers[name].optimizer.state[p] for name, p in (("torch_adam", ours), ("adam", theirs))]
        torch.testing.assert_close(*(state["exp_avg_sq"] for state in states), rtol=1e-5, atol=0)
        assert states[0]["exp_avg"].dtype == torch.float32
        step_of_the_type = torch.finfo(dtype).eps * theirs.abs().float()
        assert ((ours.float() - theirs.float()).abs() <= step_of_the_type).all()


def test_chunks_have_all_parameters_in_order_and_a_limited_size(monkeypatch):
    monkeypatch.setattr(torch_adam, "CHUNK", 17)
    params = parameters()
    chunks = list(torch_adam._chunks(params))
    assert [p for chunk in chunks for p in chunk] == params
    assert [sum(p.numel() for p in chunk) for chunk in chunks] == [17, 12]


def test_a_state_loads_from_fairseqs_adam_and_into_it():
    """After five updates by one optimizer, the other one goes on as the first one would."""
    for first, second in (("adam", "torch_adam"), ("torch_adam", "adam"), ("torch_adam", "torch_adam")):
        params = parameters()
        optimizer = optimizer_of(first, params)
        for step in range(1, 6):
            set_gradients(params, step)
            optimizer.step()
        saved = copy.deepcopy(optimizer.state_dict())
        others = [torch.nn.Parameter(p.detach().clone()) for p in params]
        other = optimizer_of(second, others, lr=[0.5])
        other.load_state_dict(saved, other.optimizer_config)
        assert other.get_lr() == 0.5
        other.set_lr(0.01)
        for step in range(6, 9):
            for these, their_optimizer in ((params, optimizer), (others, other)):
                set_gradients(these, step)
                their_optimizer.step()
        exactly = {"rtol": 0, "atol": 0} if first == second else {"rtol": 1e-6, "atol": 1e-7}
        for one, another in zip(params, others, strict=True):
            torch.testing.assert_close(one, another, **exactly)


def test_the_norm_is_that_of_all_gradients_and_clipping_limits_it():
    for max_norm in (0.0, 1.0, 1e6):
        params, theirs = parameters(), parameters()
        for each in (params, theirs):
            set_gradients(each, 1)
        ours, fairseqs = optimizer_of("torch_adam", params), optimizer_of("adam", theirs)
        torch.testing.assert_close(ours.clip_grad_norm(max_norm), fairseqs.clip_grad_norm(max_norm))
        for p, other in zip(params, theirs, strict=True):
            torch.testing.assert_close(p.grad, other.grad)
    params[0].expert = True
    without = math.sqrt(sum(float(p.grad.square().sum()) for p in params[1:]))
    assert float(ours.clip_grad_norm(0)) == pytest.approx(without)
    doubled = ours.clip_grad_norm(0.5 * without, aggregate_norm_fn=lambda norm: 2 * norm)
    assert float(doubled) == pytest.approx(2 * without)
    assert float(ours.clip_grad_norm(0)) == pytest.approx(without / 4, rel=1e-4)
    for p in params:
        p.grad = None
    assert float(ours.clip_grad_norm(1.0)) == 0


def test_a_sparse_gradient_is_refused():
    embedding = torch.nn.Embedding(3, 2, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="torch_adam does not support sparse gradients"):
        Adam(embedding.parameters()).step()


def trainer(optimizer, *args):
    """Return a trainer with the usual recipe for IWSLT, whose first epoch has begun."""
    words = (
        "data --arch modular_transformer_tiny_cpu --encoder-layers 1 --decoder-layers 1 --dropout 0.3 --cpu "
        "--adam-betas (0.9,0.98) --lr 5e-4 --lr-scheduler inverse_sqrt --warmup-updates 4000 --clip-norm 1 "
        "--weight-decay 1e-4 --criterion label_smoothed_cross_entropy --label-smoothing 0.1 "
        "--distributed-world-size 1"
    )
    parser = options.get_training_parser()
    words = [*words.split(), "--optimizer", optimizer, *args]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, words))
    torch.manual_seed(0)
    model = TASK.build_model(cfg.model)
    made = Trainer(cfg, TASK, model, TASK.build_criterion(cfg.criterion))
    made.begin_epoch(1)
    return made


def losses(made, updates, monkeypatch):
    """Return the loss of each update per token."""
    found = []
    forward = type(made.get_criterion()).forward

    def recorded(*args, **kwargs):
        loss, size, log = forward(*args, **kwargs)
        found.append(float(loss) / size)
        return loss, size, log

    monkeypatch.setattr(type(made.get_criterion()), "forward", recorded)
    for i in range(updates):
        made.train_step([random_batch(TASK, 6, 9, seed=i % 7)])
    monkeypatch.setattr(type(made.get_criterion()), "forward", forward)
    return found


@pytest.mark.cpu_only("its batches are made on the CPU")
def test_two_hundred_updates_have_the_losses_of_fairseqs_adam(monkeypatch):
    ours, theirs = (losses(trainer(name), 200, monkeypatch) for name in ("torch_adam", "adam"))
    assert sum(theirs[-7:]) < 0.95 * sum(theirs[:7])
    assert ours == pytest.approx(theirs, rel=1e-5)


@pytest.mark.parametrize("args", FORMATS)
@pytest.mark.cpu_only("its batches are made on the CPU")
def test_every_number_format_learns_as_with_fairseqs_adam(args, monkeypatch):
    args = [*args.split(), "--lr", "5e-3", "--warmup-updates", "100"]
    ours, theirs = (losses(trainer(name, *args), 42, monkeypatch) for name in ("torch_adam", "adam"))
    assert sum(theirs[-7:]) < 0.9 * sum(theirs[:7])
    assert ours == pytest.approx(theirs, rel=1e-2)


@pytest.mark.parametrize("args", FORMATS)
@pytest.mark.cpu_only("it counts the operations that torch calls on a CPU")
def test_an_update_takes_few_kernels_in_every_number_format(args):
    """fairseq's Adam takes more than eight for each parameter."""
    made, samples = trainer("torch_adam", *args.split()), [random_batch(TASK, 6, 9, seed=1)]
    made.train_step(samples)
    with counting() as count:
        made.train_step(samples)
    assert count.total(UPDATE) < 75 < 8 * len(list(made.get_model().parameters()))


def test_it_is_an_adam_for_fairseqs_other_code():
    optimizer = optimizer_of("torch_adam", parameters())
    assert isinstance(optimizer, TorchAdam) and isinstance(optimizer, FairseqAdam)
    assert optimizer.supports_flat_params and optimizer.supports_memory_efficient_fp16
    assert isinstance(optimizer.optimizer, Adam)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"betas": (1, 2)}, r"--adam-betas \(1, 2\) must be two numbers from 0 to less than 1"),
        ({"betas": 1.5}, "--adam-betas 1.5 must be two numbers"),
        ({"betas": (0.9,)}, "--adam-betas .* must be two numbers"),
        ({"betas": ("a", 0.9)}, "--adam-betas .* must be two numbers"),
        ({"betas": (0.9, float("nan"))}, "--adam-betas .* must be two numbers"),
        ({"lr": -1.0}, "--lr -1.0 must be at least 0"),
        ({"eps": -1.0}, "--adam-eps -1.0 must be at least 0"),
        ({"weight_decay": float("inf")}, "--weight-decay inf must be at least 0, and finite"),
    ],
)
def test_numbers_out_of_their_ranges_are_refused(options, sentence):
    with pytest.raises(UsageError, match=sentence):
        Adam([torch.zeros(2)], **options)


def test_betas_that_are_no_numbers_are_refused_by_the_name_of_the_option():
    with pytest.raises(UsageError, match="--adam-betas foo: an option is 'foo', but fairseq expects numbers"):
        trainer("torch_adam", "--adam-betas", "foo")


def test_the_norm_of_gradients_in_half_precision_does_not_overflow():
    """The largest number of float16 is 65,504."""
    parameter = torch.nn.Parameter(torch.zeros(64, dtype=torch.float16))
    parameter.grad = torch.full_like(parameter, 3e4)
    norm = optimizer_of("torch_adam", [parameter]).clip_grad_norm(0.0)
    assert float(norm) == pytest.approx(8 * 3e4, rel=1e-3)
