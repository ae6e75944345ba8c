"""Record which parameters each step of a trainer changes."""

import hashlib

from fairseq import tasks, utils
from fairseq.logging import metrics
from fairseq.trainer import Trainer

from modular_fairseq.models.mae import gate_parameters
from modular_fairseq.training.g_steps import GSteps
from tests.fairseq_commands import train_config
from tests.helpers import LENGTHS, batch


def digest(parameters):
    """Return a hash of the values of parameters."""
    return hashlib.sha256(b"".join(p.detach().float().numpy().tobytes() for p in parameters)).hexdigest()


class Watched:
    """A trainer that records what each step of an update changes.

    Attributes:
        changed: a tuple (step, whether gates changed, whether other parameters changed) for each step, "G" or
            "F".
    """

    def __init__(self, data, *args, arch="mae_transformer", **kwargs):
        metrics.reset()
        cfg = train_config(data, "--arch", arch, *args, **kwargs)
        utils.set_torch_seed(cfg.common.seed)
        self.task = tasks.setup_task(cfg.task)
        self.model = self.task.build_model(cfg.model)
        self.trainer = Trainer(cfg, self.task, self.model, self.task.build_criterion(cfg.criterion))
        self.gates = gate_parameters(self.model)
        gates = {id(p) for p in self.gates}
        self.rest = [p for p in self.model.parameters() if id(p) not in gates]
        self.batches = [batch(LENGTHS, seed=i, types=16) for i in range(4)]
        self.changed = []

    def state(self):
        """Return hashes of the gates and of the other parameters."""
        return digest(self.gates), digest(self.rest)

    def watch(self, monkeypatch):
        """Record G steps from now on."""
        original = GSteps.take

        def take(g_steps, samples):
            before = self.state()
            result = original(g_steps, samples)
            self.changed.append(("G", *(a != b for a, b in zip(before, self.state(), strict=True))))
            self.after_g = self.state()
            return result

        monkeypatch.setattr(GSteps, "take", take)

    def step(self, samples):
        """Take one update and record its F step."""
        self.after_g = self.state()
        with metrics.aggregate("train"):
            output = self.trainer.train_step(samples)
        self.changed.append(("F", *(a != b for a, b in zip(self.after_g, self.state(), strict=True))))
        return output


PRECISIONS = [
    "--fp16 --fp16-init-scale 4",
    "--fp16 --fp16-no-flatten-grads --fp16-init-scale 4",
    "--memory-efficient-fp16 --fp16-init-scale 4",
    "--amp",
    "--amp --bf16",
    "--bf16",
    "--memory-efficient-bf16",
]

COMBINED = "--encoder-layers 4 --streams 2 --stream-skip --tim-layers all"

WITH_MASKS = "--attention-type mae+dma --criterion modular_cross_entropy --kl-weight 1 --aux-warmup-updates 1"
# Options with which gates must learn, and everything else must learn apart from them.
TRAININGS = [
    "",
    "--weight-decay 0.01 --clip-norm 0.1 --store-ema --ema-decay 0",
    "--update-freq 2",
    "--checkpoint-activations",
    COMBINED,
    WITH_MASKS,
    *PRECISIONS,
]
