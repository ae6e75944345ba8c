"""Block coordinate descent for gates (MAE, section 3): G steps update the gates, F steps everything else.

fairseq has no place for a second update of other parameters on the same batch that works with every task, so
`patches/trainer.py` wraps four methods of its Trainer.

In an epoch with G steps (Algorithm 3, `GateTraining.is_g_epoch`), `train_step(samples)` takes a G step on the
whole update (all micro-batches of --update-freq, all workers) and then fairseq's ordinary step, which is the
F step: the gates are outside the main optimizer (`requires_grad` False), so no optimizer, weight decay,
gradient clipping or precision mode can touch them, and the schedule of updates and learning rates counts F
steps only. A G step freezes all else by the same means. Gates follow plain SGD with a constant learning rate,
which has no state to save.
"""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager

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

G_SEED_OFFSET = 0x9E3779B9  # G and F steps of one update draw different dropout masks
DDP_BACKENDS = ("c10d", "pytorch_ddp", "legacy_ddp", "no_c10d")


class GateMonitor:
    """Entropy and expert shares since `reset`, over all instances that this worker has seen."""

    def __init__(self):
        self.reset()

    def reset(self) -> None:
        self.sums: dict[ExpertMixture, Tensor] = {}

    def collect(self, all_mixtures: list[ExpertMixture]) -> None:
        for mixture in all_mixtures:
            sums = mixture.statistics.take()
            if sums is not None:  # LayerDrop may have left it out
                self.sums[mixture] = self.sums.get(mixture, 0) + sums

    def log(self) -> None:
        if not self.sums:
            return
        all_sums = list(self.sums.values())
        # One copy from the device for all.
        sums = torch.cat(all_sums).double().cpu().split([len(sums) for sums in all_sums])
        entropies, shares = zip(*map(entropy_and_shares, sums), strict=True)
        shares = torch.cat(shares)
        # Weight 0: these are means already; a meter shows the last of them.
        metrics.log_scalar("gate_entropy", sum(entropies) / len(entropies), weight=0, priority=300, round=4)
        metrics.log_scalar("gate_max_share", float(shares.max()), weight=0, priority=301, round=4)
        metrics.log_scalar("gate_min_share", float(shares.min()), weight=0, priority=302, round=4)
        metrics.log_scalar("gate_rare_experts", int((shares < RARE).sum()), weight=0, priority=303, round=0)


class BlockCoordinateDescent:
    """G steps, gate statistics and gate buffers of one trainer.

    Raises:
        UsageError: the trainer is set up in a way that gates cannot be trained in.
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
        self.paused = False  # True: no epoch has G steps, whatever the settings say
        self.g_loss: float | None = None
        for mixture in self.mixtures:
            mixture.statistics = GateStatistics()
            mixture.step = "F"
        if self.settings is not None:
            self._check_trainer()

    @property
    def alternates(self) -> bool:
        """Whether both G and F steps are taken."""
        return self.settings is not None and not self.settings.gates_only

    def _check_trainer(self) -> None:
        cfg = self.trainer.cfg
        backend = cfg.distributed_training.ddp_backend
        if backend not in DDP_BACKENDS:
            raise UsageError(
                f"--ddp-backend {backend} cannot train gates in G steps; use one of "
                f"{', '.join(DDP_BACKENDS)}, or --mae-training joint"
            )
        if cfg.optimization.use_bmuf:
            raise UsageError(
                "--use-bmuf cannot train gates in G steps; leave it out, or use --mae-training joint"
            )
        files = cfg.checkpoint
        if self.settings.finetunes and not (
            files.finetune_from_model
            or files.restore_file != "checkpoint_last.pt"
            or self.trainer.get_num_updates()
        ):
            raise UsageError(
                "--mae-finetune gates or gates+output trains parts of a trained model; name it with "
                "--finetune-from-model"
            )
        max_epoch = cfg.optimization.max_epoch
        if 0 < max_epoch < self.settings.interval and not self.settings.gates_only:
            logger.warning(
                f"--max-epoch {max_epoch} ends before the first epoch with G steps (--mae-gate-interval "
                f"{self.settings.interval})"
            )
        if self.settings.gates_only and cfg.ema.store_ema:
            raise UsageError(
                "--store-ema has no effect with --mae-finetune gates, which takes no F steps; leave it out"
            )

    def begin_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.train_monitor.reset()

    def train_step(self, f_step, samples: list, raise_oom: bool):
        """One update: G step if this epoch has them, then `f_step`, fairseq's own `train_step`."""
        # fairseq calls itself to try a batch again after an AMP overflow; its G step is taken already.
        if self.in_update:
            return f_step(self.trainer, samples, raise_oom)
        self.in_update = True
        try:
            if self.settings is not None and self.settings.gates_only:
                logging_output = self._gates_only_step(samples)
            else:
                if self.alternates and not self.paused and self.settings.is_g_epoch(self.epoch):
                    self.g_step(samples)
                elif self.g_loss is not None:
                    # The last one, or the log says None.
                    metrics.log_scalar("g_loss", self.g_loss, weight=0, priority=299, round=3)
                logging_output = f_step(self.trainer, samples, raise_oom)
        finally:
            self.in_update = False
        self._average_norm_statistics()
        self.train_monitor.collect(self.mixtures)
        self.train_monitor.log()
        return logging_output

    def valid_step(self, valid_step, sample: dict, raise_oom: bool):
        logging_output = valid_step(self.trainer, sample, raise_oom)
        self.valid_monitor.collect(self.mixtures)
        self.valid_monitor.log()
        return logging_output

    def g_step(self, samples: list) -> tuple[list[dict], float, Tensor]:
        """Algorithm 1 on all micro-batches of an update; only gates change, and only if their gradient is
        finite.

        Returns:
            the criterion's logging outputs on this worker (of a dummy batch when there is no other: workers
            must agree on their keys), its summed sample size without dummies, and the norm of the gates'
            gradient over all workers.
        """
        trainer, cfg = self.trainer, self.trainer.cfg
        scaler = getattr(trainer.optimizer, "scaler", None)
        loss_scale = 1.0 if scaler is None else scaler.get_scale() if cfg.common.amp else scaler.loss_scale
        utils.set_torch_seed(cfg.common.seed + trainer.get_num_updates() + G_SEED_OFFSET)
        trainer.get_model().set_num_updates(trainer.get_num_updates())
        trainer.model.train()
        trainer.criterion.train()
        logging_outputs, loss_sum, sample_size, denominator = [], 0.0, 0.0, 0.0
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
                    # Without a gradient if LayerDrop left out every gate.
                    new = (
                        torch.autograd.grad(loss * loss_scale, self.gates, allow_unused=True)
                        if loss.requires_grad
                        else [None] * len(self.gates)
                    )
                except RuntimeError as error:
                    if "out of memory" not in str(error):
                        raise
                    # The other workers wait for this one in the all-reduce: take part with what there is.
                    logger.warning("ran out of memory in a G step, leaving this batch out")
                    torch.cuda.empty_cache()
                    continue
                gradients = [
                    old if g is None else old + g / loss_scale for old, g in zip(gradients, new, strict=True)
                ]
                logging_outputs.append(logging_output)
                loss_sum += float(loss.detach())
                sample_size += float(size)
                denominator += float(
                    logging_output["nsentences"] if self.settings.loss == "sentence" else size
                )
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
            if self.settings.gates_only and scaler is not None:  # no F step will lower the scale
                scaler.update(scaler.get_scale() / 2) if cfg.common.amp else setattr(
                    scaler, "loss_scale", scaler.loss_scale / 2
                )
            return logging_outputs, sample_size, flat.norm()
        flat = flat / denominator
        with torch.no_grad():
            for parameter, step in zip(self.gates, flat.split([p.numel() for p in self.gates]), strict=True):
                parameter.sub_(self.settings.lr * step.view_as(parameter))
        self.g_loss = loss_sum / total_size / math.log(2)
        metrics.log_scalar("g_loss", self.g_loss, weight=total_size, priority=299, round=3)
        return logging_outputs, sample_size, flat.norm()

    @contextmanager
    def _only_gates_learn(self) -> Iterator[None]:
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
        """FTG: a G step that counts as the update, with what fairseq's `train_step` does around one."""
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
        """Running statistics come from each worker's own batches; their mean keeps the model the same
        everywhere.
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
    """Return the BCD of a trainer, made when it is first asked for; None for a model without gates."""
    if not hasattr(trainer, "_bcd"):
        model = trainer.get_model()
        trainer._bcd = (
            BlockCoordinateDescent(trainer)
            if hasattr(model, "gate_training") and expert_mixtures(model)
            else None
        )
    return trainer._bcd
