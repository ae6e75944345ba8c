"""Keep the running statistics of the gates' norms equal on all workers."""

import torch
import torch.distributed as dist
from fairseq.trainer import Trainer

from modular_fairseq.modules.gates import GateNorm


class NormPooling:
    """Update the running statistics of gates from the inputs of all workers, once in an update.

    With one worker, the norms update them themselves in each forward pass.
    """

    def __init__(self, trainer: Trainer):
        self.workers = trainer.data_parallel_world_size
        self.group = trainer.data_parallel_process_group
        self.norms = [module for module in trainer.get_model().modules() if isinstance(module, GateNorm)]
        if self.workers > 1:
            for norm in self.norms:
                norm.collect()

    def pool(self) -> None:
        """Update the running statistics at the end of an update. All workers must call it."""
        if self.workers == 1 or not self.norms:
            return
        sums = [norm.take_sums() for norm in self.norms]
        flat = torch.cat(sums)
        dist.all_reduce(flat, group=self.group)
        for norm, of_all in zip(self.norms, flat.split([len(each) for each in sums]), strict=True):
            norm.pool(of_all, self.workers)
