"""Compare the outputs and gradients of a model on a device with those on the CPU.

Models with ReLU are compared with GELU in its place. In float32, rounding decides which hidden units near
zero pass a ReLU, and each such unit changes the gradients of its weights. Gradients of single parameters
differed by up to 1.1e-3 between an H200 and a CPU. They differ as much on a CPU alone, between float32 and
float64 (1.2e-3), and with GELU by 2e-5. So the limit of gradients in float32 is far above rounding. It is
lower in float64, for which torch may use other kernels, so that neither comparison replaces the other.
fairseq's log-softmax and GELU compute in float32 in both cases. With weights in float64, logits differed by
1.9e-8 and gradients by 3.4e-6.
"""

import math
from dataclasses import dataclass

import torch
from fairseq import utils
from fairseq.tasks.translation import TranslationTask
from omegaconf import DictConfig
from torch import Tensor

from modular_fairseq.benchmark.jobs import build, random_batch

LIMIT = 1e-4  # largest accepted relative difference
GRADIENT_LIMITS = {torch.float32: 1e-3, torch.float64: LIMIT}


@dataclass(frozen=True)
class Difference:
    """How far the results of one model on two devices are apart.

    Attributes:
        loss, logits: relative differences, of the logits in the Euclidean norm.
        gradient: the largest relative difference of the gradient of one parameter, in the Euclidean norm.
            Differences are measured against the parameter's own gradient, or against 1e-3 of the largest one
            if its own is smaller.
        parameter: the name of that parameter.
        limit: the largest accepted difference of a gradient. That of the loss and logits is `LIMIT`.
        sentences, length: size of the batch.
    """

    loss: float
    logits: float
    gradient: float
    parameter: str
    limit: float
    sentences: int
    length: int

    @property
    def passed(self) -> bool:
        # A comparison with NaN is false, so NaN does not pass.
        return self.loss <= LIMIT and self.logits <= LIMIT and self.gradient <= self.limit


def compare_outputs(
    model: str,
    cfg: DictConfig,
    task: TranslationTask,
    device: str,
    dtype: torch.dtype,
    sentences: int,
    length: int,
) -> Difference:
    """Compare a model with itself on the CPU: same weights, same batch, no dropout, TF32 switched off.

    Args:
        model: an arch and options.
        cfg: its configuration, in which GELU takes the place of ReLU.
        task: a task without data.
        device: "cuda" or "cpu".
        dtype: the type of the weights, and of all that is computed but the loss; float32 or float64.
        sentences, length: size of the random batch.
    """
    if getattr(cfg.model, "activation_fn", None) == "relu":
        cfg.model.activation_fn = "gelu"
    batch = random_batch(task, sentences, length, cfg.common.seed)
    matmul, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        ours, theirs = (_results(model, cfg, task, batch, each, dtype) for each in (device, "cpu"))
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, cudnn
    largest = max(gradient.norm().item() for gradient in theirs.gradients.values())
    of_parameters = {
        name: (ours.gradients[name] - gradient).norm().item() / max(gradient.norm().item(), 1e-3 * largest)
        for name, gradient in theirs.gradients.items()
    }
    worst = max(of_parameters, key=lambda name: (math.isnan(of_parameters[name]), of_parameters[name]))
    return Difference(
        abs(ours.loss - theirs.loss) / abs(theirs.loss),
        (ours.logits - theirs.logits).norm().item() / theirs.logits.norm().item(),
        of_parameters[worst],
        worst,
        GRADIENT_LIMITS[dtype],
        sentences,
        length,
    )


@dataclass(frozen=True)
class _Results:
    loss: float
    logits: Tensor
    gradients: dict[str, Tensor]


def _results(
    model: str, cfg: DictConfig, task: TranslationTask, batch: dict, device: str, dtype: torch.dtype
) -> _Results:
    """Return the loss per token, the logits of the target tokens and the gradients, on the CPU in float64."""
    built = build(model, cfg, task).eval().to(device, dtype)  # without random numbers
    criterion = task.build_criterion(cfg.criterion)
    sample = utils.apply_to_sample(lambda tensor: tensor.to(device), batch)
    with torch.no_grad():
        logits = built(**sample["net_input"])[0][sample["target"].ne(task.tgt_dict.pad())]
    loss, size, _ = criterion(built, sample)
    (loss / size).backward()
    gradients = {
        name: parameter.grad.double().cpu()
        for name, parameter in built.named_parameters()
        if parameter.grad is not None
    }
    return _Results(loss.item() / size, logits.double().cpu(), gradients)
