"""Block coordinate descent for gates (MAE, section 3): G steps update the gates, F steps everything else.

fairseq offers no hook that works with every task and can update other parameters on the same batch. Therefore
`patches/trainer.py` wraps four methods of its Trainer.

In an epoch with G steps (Algorithm 3, `GateTraining.is_g_epoch`), `train_step(samples)` first takes a G step
on the whole update, that is, on all micro-batches of --update-freq and on all workers. Then it takes
fairseq's ordinary step, which is the F step. The gates are outside the main optimizer (`requires_grad` is
False), so no optimizer, weight decay, gradient clipping or precision mode can change them. The number of
updates and the learning-rate schedule count F steps only. A G step freezes all other parameters in the same
way. Gates are trained by plain SGD with a constant learning rate, which has no state to save.
"""

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from fairseq import utils
from fairseq.logging import metrics
from fairseq.trainer import Trainer
from torch import Tensor

from modular_fairseq.models.mae import GateTraining, expert_mixtures, gate_parameters
from modular_fairseq.modules.expert_mixture import RARE, ExpertMixture, GateStatistics, entropy_and_shares
from modular_fairseq.modules.gates import GateNorm
from modular_fairseq_cli.errors import UsageError

logger = logging.getLogger(__name__)

G_SEED_OFFSET = 0x9E3779B9  # lets the G and F steps of one update draw different dropout masks
DDP_BACKENDS = ("c10d", "pytorch_ddp", "legacy_ddp", "no_c10d")


class GateMonitor:
    """Collect gate entropy and expert shares over the instances that this worker saw since `reset`."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.sums: dict[ExpertMixture, Tensor] = {}

    def collect(self, all_mixtures: list[ExpertMixture]) -> None:
        """Take the sums that each mixture has recorded since the last call, and add them to the totals."""
        for mixture in all_mixtures:
            assert mixture.statistics is not None  # BlockCoordinateDescent sets it
            sums = mixture.statistics.take()
            if sums is not None:  # LayerDrop may have skipped the layer
                self.sums[mixture] = self.sums.get(mixture, 0) + sums

    def log(self) -> None:
        """Log gate_entropy (nats), gate_max_share, gate_min_share and gate_rare_experts through fairseq."""
        if not self.sums:
            return
        all_sums = list(self.sums.values())
        # All sums are copied from the device at once.
        split_sums = torch.cat(all_sums).double().cpu().split([len(sums) for sums in all_sums])
        measured = [entropy_and_shares(sums) for sums in split_sums]
        entropies = [entropy for entropy, _ in measured]
        shares = torch.cat([share for _, share in measured])
        # The values are means already. With weight 0, a meter shows the last value.
        metrics.log_scalar("gate_entropy", sum(entropies) / len(entropies), weight=0, priority=300, round=4)
        metrics.log_scalar("gate_max_share", float(shares.max()), weight=0, priority=301, round=4)
        metrics.log_scalar("gate_min_share", float(shares.min()), weight=0, priority=302, round=4)
        metrics.log_scalar("gate_rare_experts", int((shares < RARE).sum()), weight=0, priority=303, round=0)


class BlockCoordinateDescent:
    """Train the gates of one trainer's model: take G steps, log gate statistics and keep gate buffers equal.

    Attributes:
        settings: how the gates learn, or None if they learn with everything else (--mae-training joint).
        paused: if True, no epoch has G steps, whatever `settings` say.

    Raises:
        UsageError: gates cannot be trained with the options of the trainer.
    """

    def __init__(self, trainer: Trainer):
        model = trainer.get_model()
        self.trainer = trainer
        self.settings: GateTraining | None = model.gate_training
        self.mixtures = list(expert_mixtures(model).values())
        self.gates = gate_parameters(model)
        self.norms = [module for module in model.modules() if isinstance(module, GateNorm)]
        self.train_monitor = GateMonitor()
        self.valid_monitor = GateMonitor()
        self.epoch = 0
        self.in_update = False
        self.paused = False
        self.g_loss: float | None = None  # loss of the last G step, in bits
        for mixture in self.mixtures:
            mixture.statistics = GateStatistics()
            mixture.step = "F"
        if self.settings is not None:
            self._check_trainer(self.settings)

    @property
    def alternates(self) -> bool:
        """Whether training takes both G steps and F steps."""
        return self.settings is not None and not self.settings.gates_only

    def _check_trainer(self, settings: GateTraining) -> None:
        """Raise UsageError for options of fairseq-train with which G steps cannot work."""
        cfg = self.trainer.cfg
        backend = cfg.distributed_training.ddp_backend
        if backend not in DDP_BACKENDS:
            raise UsageError(
                f"--ddp-backend {backend} does not work with G steps; use one of "
                f"{', '.join(DDP_BACKENDS)}, or train the gates with everything else by --mae-training joint"
            )
        if cfg.optimization.use_bmuf:
            raise UsageError(
                "--use-bmuf does not work with G steps; leave it out, or train the gates with everything "
                "else by --mae-training joint"
            )
        files = cfg.checkpoint
        if settings.finetunes and not (
            files.finetune_from_model
            or files.restore_file != "checkpoint_last.pt"
            or self.trainer.get_num_updates()
        ):
            raise UsageError(
                "--mae-finetune gates or gates+output trains a part of a trained model; give the model's "
                "checkpoint as --finetune-from-model"
            )
        max_epoch = cfg.optimization.max_epoch
        if 0 < max_epoch < settings.interval and not settings.gates_only:
            logger.warning(
                f"--max-epoch {max_epoch} is less than --mae-gate-interval {settings.interval}: no epoch has "
                "G steps, so the gates are not trained"
            )
        if settings.gates_only and cfg.ema.store_ema:
            raise UsageError(
                "--store-ema has no effect with --mae-finetune gates, which takes no F steps; leave it out"
            )

    def begin_epoch(self, epoch: int) -> None:
        """Note which epoch begins (1 is the first), and reset the statistics of training."""
        self.epoch = epoch
        self.train_monitor.reset()

    def train_step(
        self, f_step: Callable[..., dict[str, Any] | None], samples: list, raise_oom: bool
    ) -> dict[str, Any] | None:
        """Make one update: a G step if this epoch has them, then the F step.

        With --mae-finetune gates (FTG), a G step is the whole update.

        Args:
            f_step: fairseq's own `Trainer.train_step`, as a function of the trainer and its arguments.
            samples: the micro-batches of the update.

        Returns:
            what `Trainer.train_step` returns.
        """
        # fairseq's train_step calls itself to try a batch again after an AMP overflow. The G step of that
        # update has been taken by then.
        if self.in_update:
            return f_step(self.trainer, samples, raise_oom)
        self.in_update = True
        settings = self.settings
        logging_output: dict[str, Any] | None
        try:
            if settings is not None and settings.gates_only:
                logging_output = self._gates_only_step(samples)
            else:
                if settings is not None and not self.paused and settings.is_g_epoch(self.epoch):
                    self.g_step(samples)
                elif self.g_loss is not None:
                    # Without a new value, the log would show None; the last value is shown instead.
                    metrics.log_scalar("g_loss", self.g_loss, weight=0, priority=299, round=3)
                logging_output = f_step(self.trainer, samples, raise_oom)
        finally:
            self.in_update = False
        self._average_norm_statistics()
        self.train_monitor.collect(self.mixtures)
        self.train_monitor.log()
        return logging_output

    def valid_step(
        self, valid_step: Callable[..., dict[str, Any] | None], sample: dict, raise_oom: bool
    ) -> dict[str, Any] | None:
        """Take a validation step by `valid_step`, fairseq's own method, and log the gate statistics."""
        logging_output = valid_step(self.trainer, sample, raise_oom)
        self.valid_monitor.collect(self.mixtures)
        self.valid_monitor.log()
        return logging_output

    def g_step(self, samples: list) -> tuple[list[dict], float, Tensor]:
        """Take a G step (Algorithm 1) on all micro-batches of an update.

        Only gates change, and only if their gradient is finite. The model must have gate settings
        (`alternates`, or --mae-finetune gates).

        Returns:
            the criterion's logging outputs on this worker, the sum of their sample sizes without dummy
            batches, and the norm of the gates' gradient over all workers. If this worker has dummy batches
            only, the logging output of one of them is returned, because workers must agree on its keys.
        """
        settings = self.settings
        assert settings is not None
        trainer, cfg = self.trainer, self.trainer.cfg
        scaler = getattr(trainer.optimizer, "scaler", None)
        loss_scale = 1.0 if scaler is None else scaler.get_scale() if cfg.common.amp else scaler.loss_scale
        utils.set_torch_seed(cfg.common.seed + trainer.get_num_updates() + G_SEED_OFFSET)
        trainer.get_model().set_num_updates(trainer.get_num_updates())
        trainer.model.train()
        trainer.criterion.train()
        logging_outputs: list[dict] = []
        loss_sum, sample_size, denominator = 0.0, 0.0, 0.0
        gradients = [torch.zeros_like(p) for p in self.gates]
        with self._only_gates_learn():
            for sample in samples:
                sample, is_dummy = trainer._prepare_sample(sample)
                try:
                    with torch.autocast(trainer.device.type, enabled=cfg.common.amp):
                        loss, size, logging_output = trainer.get_criterion()(trainer.get_model(), sample)
                    if is_dummy:
                        logging_outputs = logging_outputs or [logging_output]
                        continue
                    # If LayerDrop skipped every layer with a gate, the loss has no gradient.
                    new = (
                        torch.autograd.grad(loss * loss_scale, self.gates, allow_unused=True)
                        if loss.requires_grad
                        else [None] * len(self.gates)
                    )
                except RuntimeError as error:
                    if "out of memory" not in str(error):
                        raise
                    # The other workers wait for this one in the all-reduce. It takes part with the gradients
                    # that it has.
                    logger.warning("ran out of memory in a G step; this batch is left out of the step")
                    torch.cuda.empty_cache()
                    continue
                gradients = [
                    old if g is None else old + g / loss_scale for old, g in zip(gradients, new, strict=True)
                ]
                logging_outputs.append(logging_output)
                loss_sum += float(loss.detach())
                sample_size += float(size)
                denominator += float(logging_output["nsentences"] if settings.loss == "sentence" else size)
        flat = torch.cat(
            [g.flatten() for g in gradients] + [gradients[0].new_tensor([denominator, loss_sum, sample_size])]
        )
        if trainer.data_parallel_world_size > 1:
            dist.all_reduce(flat, group=trainer.data_parallel_process_group)
        flat, (denominator, loss_sum, total_size) = flat[:-3], flat[-3:].tolist()
        if denominator == 0 or not torch.isfinite(flat).all():
            logger.info(
                "G step skipped: "
                + ("no batch was left" if denominator == 0 else "the gates' gradient is not finite")
            )
            if settings.gates_only and scaler is not None:  # there is no F step that would lower the scale
                if cfg.common.amp:
                    scaler.update(scaler.get_scale() / 2)
                else:
                    scaler.loss_scale /= 2
            return logging_outputs, sample_size, flat.norm()
        flat = flat / denominator
        with torch.no_grad():
            for parameter, step in zip(self.gates, flat.split([p.numel() for p in self.gates]), strict=True):
                parameter.sub_(settings.lr * step.view_as(parameter))
        self.g_loss = loss_sum / total_size / math.log(2)
        metrics.log_scalar("g_loss", self.g_loss, weight=total_size, priority=299, round=3)
        return logging_outputs, sample_size, flat.norm()

    @contextmanager
    def _only_gates_learn(self) -> Iterator[None]:
        """Freeze all parameters but the gates, and put the mixtures into their G step, inside the block."""
        assert self.settings is not None
        gates = set(self.gates)
        frozen = [p for p in self.trainer.get_model().parameters() if p.requires_grad and p not in gates]
        frozen += [p for p in self.trainer.get_criterion().parameters() if p.requires_grad]
        gates_frozen_in_f = not self.settings.gates_only
        for parameter in frozen:
            parameter.requires_grad_(False)
        for parameter in self.gates:
            parameter.requires_grad_(True)
        for mixture in self.mixtures:
            mixture.step = "G"
        try:
            yield
        finally:
            for parameter in frozen:
                parameter.requires_grad_(True)
            for parameter in self.gates:
                parameter.requires_grad_(not gates_frozen_in_f)
            for mixture in self.mixtures:
                mixture.step = "F"

    def _gates_only_step(self, samples: list) -> dict:
        """Take a G step that counts as the whole update (FTG), and log it as fairseq's `train_step` does."""
        trainer = self.trainer
        metrics.log_start_time("train_wall", priority=800, round=0)
        logging_outputs, sample_size, gradient_norm = self.g_step(samples)
        if trainer._sync_stats():
            logging_outputs, (sample_size,) = trainer._aggregate_logging_outputs(
                logging_outputs, sample_size, ignore=sample_size == 0
            )
        trainer.set_num_updates(trainer.get_num_updates() + 1)
        logging_output = trainer._reduce_and_log_stats(logging_outputs, sample_size, gradient_norm)
        metrics.log_stop_time("train_wall")
        return logging_output

    def _average_norm_statistics(self) -> None:
        """Replace the running statistics of the gates' norms by their mean over all workers.

        Each worker collects them from its own batches. Their mean keeps the model equal on all workers.
        """
        world_size = self.trainer.data_parallel_world_size
        if world_size == 1 or not self.norms:
            return
        buffers = [buffer for norm in self.norms for buffer in (norm.running_mean, norm.running_var)]
        flat = torch.cat(buffers)
        dist.all_reduce(flat, group=self.trainer.data_parallel_process_group)
        for buffer, mean in zip(buffers, (flat / world_size).split([len(b) for b in buffers]), strict=True):
            buffer.copy_(mean)


def bcd_of(trainer: Trainer) -> BlockCoordinateDescent | None:
    """Return the BlockCoordinateDescent of a trainer, or None if its model has no gates.

    The first call makes it.
    """
    if not hasattr(trainer, "_bcd"):
        model = trainer.get_model()
        trainer._bcd = (
            BlockCoordinateDescent(trainer)
            if hasattr(model, "gate_training") and expert_mixtures(model)
            else None
        )
    return trainer._bcd
