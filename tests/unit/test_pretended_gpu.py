"""Every architecture keeps devices apart: tests/pretended_gpu.py stands for a GPU.

Tests that compare with the CPU need no tolerance, as the same kernels compute on both.
"""

from contextlib import nullcontext
from typing import NamedTuple

import pytest
import torch
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY
from omegaconf import DictConfig

from modular_fairseq.benchmark.configs import COMMON, set_steps
from modular_fairseq.benchmark.jobs import build, random_batch, random_task, search_job, start_training
from modular_fairseq.benchmark.tasks import KINDS
from modular_fairseq.training.command_line import parse
from tests.pretended_gpu import PretendedGpu, WrongDevice

pytestmark = pytest.mark.cpu_only("these tests choose the device themselves")

TYPES = 40
ENCODER, DECODER = (f"--{side}-embed-dim 16 --{side}-ffn-embed-dim 24" for side in ("encoder", "decoder"))
SIZES = {"translation": f"{ENCODER} {DECODER}", "language_modeling": DECODER, "masked_lm": ENCODER}
VARIANTS = [
    "mae_transformer_tiny_cpu --mae-gate-interval 1 --update-freq 2",
    "mae_transformer_tiny_cpu --mae-gate-context source --mae-gate-interval 1",
    "mae_transformer_tiny_cpu --mae-gate-context window --mae-gate-window 3 --mae-gate-norm lagged",
    "mae_transformer_tiny_cpu --mae-gate-norm batch --mae-gate-loss token --mae-inference specialised",
    "mae_transformer_tiny_cpu --mae-gate-init zero --mae-dropped-heads 2 --mae-inference random",
    "mae_transformer_tiny_cpu --mae-training joint",
    "mae_transformer_tiny_cpu --mae-gating uniform",
    "mae_transformer_tiny_cpu --attention-type mae+dma --encoder-layers 4 --streams 2 --stream-skip",
    "mae_transformer_tiny_cpu --tim-layers all --checkpoint-activations",
    "dma_transformer_tiny_cpu --dma-posterior sample",
    "dma_transformer_tiny_cpu --dma-centroid-mode hook --dma-decoder-eval-mask",
    "dma_transformer_tiny_cpu --kl-weight .1 --qq-weight .1 --xq-weight .1 --aux-warmup-updates 5",
    "tim_transformer_tiny_cpu --tim-no-competition",
    "modular_transformer_tiny_cpu --no-residual --layernorm-embedding --decoder-learned-pos",
]
FORMATS = [
    "mae_transformer_tiny_cpu --fp16",
    "mae_transformer_tiny_cpu --memory-efficient-fp16",
    "mae_transformer_tiny_cpu --bf16",
    "mae_transformer_tiny_cpu --amp",
    "dma_transformer_tiny_cpu --fp16",
    "dma_transformer_tiny_cpu --amp --bf16",
    "tim_transformer_tiny_cpu --fp16",
    "tim_transformer_tiny_cpu --amp",
    "multistream_transformer_tiny_cpu --stream-skip --fp16",
]
# Dropout draws other numbers on a GPU.
NO_DROPOUT = "--dropout 0 --attention-dropout 0 --activation-dropout 0"


class Outcome(NamedTuple):
    """The weights, the validation loss and the translations of a model after two updates."""

    weights: dict[str, torch.Tensor]
    valid_loss: float
    hypotheses: list[torch.Tensor]


def configuration(kind: str, model: str) -> DictConfig:
    """Return the configuration that fairseq-train makes of an arch and its options."""
    arch, *options = [*model.split(), *SIZES[kind].split()]
    words = [*COMMON.split(), *KINDS[kind].options.split(), *options, "--seed", "1", "--arch", arch]
    _, args = parse(words, pytest.fail)
    cfg = convert_namespace_to_omegaconf(args)
    cfg.generation.beam = 2
    set_steps(cfg, 4)
    return cfg


def outcome(kind: str, cfg: DictConfig, device: str) -> Outcome:
    """Train a model with a batch that has padding and one that has none, validate it, and let it search."""
    task = random_task(TYPES, TYPES, kind)
    cfg.common.cpu = device == "cpu"
    padded, single = (random_batch(task, sentences, length=8, seed=1) for sentences in (4, 1))
    trainer = start_training(build("", cfg, task), cfg, task)
    for batch in (padded, single):
        before = {name: weight.clone() for name, weight in trainer.model.state_dict().items()}
        trainer.train_step([batch] * cfg.optimization.update_freq[0], raise_oom=True)
    after = trainer.model.state_dict()
    assert trainer.get_num_updates() == 2 and not all(after[name].equal(before[name]) for name in before)
    valid = trainer.valid_step(padded, raise_oom=True)
    hypotheses = []
    if KINDS[kind].searches:
        found, _ = search_job("", cfg, task, random_batch(task, sentences=3, length=6, seed=2))
        hypotheses = [hypothesis["tokens"] for beams in found() for hypothesis in beams]
        # After its prefix of three tokens, a language model has one step left, which is the end.
        assert len(hypotheses) == 3 * (2 if kind == "translation" else 1)
    assert all(parameter.is_cuda == (device == "cuda") for parameter in trainer.model.parameters())
    assert all(tokens.is_cuda == (device == "cuda") for tokens in hypotheses)
    weights = {name: weight.cpu() for name, weight in trainer.model.state_dict().items()}
    return Outcome(weights, float(valid["loss"]), [tokens.cpu() for tokens in hypotheses])


def tiny_archs() -> list[tuple[str, str]]:
    return [
        (name, arch)
        for name, kind in KINDS.items()
        for arch, model in sorted(ARCH_MODEL_REGISTRY.items())
        if arch.endswith("_tiny_cpu") and issubclass(model, kind.model)
    ]


@pytest.mark.parametrize("kind,model", [*tiny_archs(), *(("translation", model) for model in VARIANTS)])
def test_a_model_computes_the_same_on_the_gpu(kind, model):
    has_gate_networks = model.startswith("mae") and "uniform" not in model
    model = f"{model} {NO_DROPOUT}{' --mae-gate-dropout 0' if has_gate_networks else ''}"
    cfg = configuration(kind, model)
    here = outcome(kind, cfg, "cpu")
    with PretendedGpu():
        there = outcome(kind, cfg, "cuda")
    assert there.valid_loss == here.valid_loss
    assert all(one.equal(other) for one, other in zip(there.hypotheses, here.hypotheses, strict=True))
    assert there.weights.keys() == here.weights.keys()
    different = [name for name, weight in there.weights.items() if not weight.equal(here.weights[name])]
    assert not different


@pytest.mark.parametrize("model", FORMATS)
def test_a_model_trains_in_other_number_formats(model):
    """Autocast has no effect on the pretended GPU, so values are not compared."""
    cfg = configuration("translation", model)
    with PretendedGpu():
        found = outcome("translation", cfg, "cuda")
    assert 0 < found.valid_loss < 1000


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_streams_at_once_use_no_fused_attention_of_a_gpu(device, monkeypatch):
    attend, fused = torch.nn.functional.scaled_dot_product_attention, []

    def watched(*args, **kwargs):
        fused.append(torch.backends.cuda.mem_efficient_sdp_enabled())
        return attend(*args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    cfg = configuration("translation", f"multistream_transformer_tiny_cpu --stream-batched {NO_DROPOUT}")
    with PretendedGpu() if device == "cuda" else nullcontext():
        outcome("translation", cfg, device)
    assert any(fused) and all(fused) == (device == "cpu")


@pytest.fixture
def gpu():
    with PretendedGpu() as context:
        yield context


REFUSED = {
    "both devices": lambda there, here: there + here,
    "both devices in a function": lambda there, here: torch.nn.functional.linear(there, torch.ones(3, 3)),
    "both devices in a list": lambda there, here: torch.cat([there, here]),
    "an index on the GPU": lambda there, here: here[there.bool()],
    "a value of the CPU": lambda there, here: there.__setitem__(slice(2), here[:2]),
    "numpy": lambda there, here: there.numpy(),
    "a generator of the CPU": lambda there, here: torch.rand(2, device="cuda", generator=torch.Generator()),
    "a generator of the CPU in place": lambda there, here: there.uniform_(generator=torch.Generator()),
}


@pytest.mark.parametrize("mistake", REFUSED.values(), ids=REFUSED)
def test_a_mistake_is_refused(gpu, mistake):
    with pytest.raises(WrongDevice):
        mistake(torch.ones(3, device="cuda"), torch.ones(3))


RESULTS = {
    "a sum": lambda there, here: there + there,
    "a view": lambda there, here: there[1:],
    "a number of the CPU": lambda there, here: there * torch.tensor(2.0),
    "a new tensor": lambda there, here: there.new_zeros(2),
    "a tensor like another": lambda there, here: torch.empty_like(there),
    "a copy": lambda there, here: here.cuda(),
    "a copy by to": lambda there, here: here.to("cuda", torch.float64),
    "a copy to the place of another tensor": lambda there, here: here.to(there),
    "an index of the CPU": lambda there, here: there[torch.tensor([0])],
    "a gradient": lambda there, here: torch.autograd.grad(there.requires_grad_().square().sum(), there)[0],
    "a parameter": lambda there, here: torch.nn.Linear(3, 3).to(device="cuda").weight,
}


@pytest.mark.parametrize("make", RESULTS.values(), ids=RESULTS)
def test_a_result_is_on_the_gpu(gpu, make):
    assert make(torch.ones(3, device="cuda"), torch.ones(3)).device == torch.device("cuda", 0)


def test_a_copy_comes_back(gpu):
    here = torch.ones(3)
    there = here.cuda()
    assert not there.cpu().is_cuda and not there.to("cpu").is_cuda and not here.is_cuda
    assert not here.copy_(there).is_cuda
    assert there.cpu().numpy().tolist() == there.tolist() == [1, 1, 1]
