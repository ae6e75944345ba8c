"""A fairseq plugin that takes the Transformer apart: `fairseq-train --user-dir modular_fairseq`.

Importing this package changes what its commands need changed in fairseq, torch, numpy and the process
(`patches/`). It also registers the models, the criterion, the optimizer and the hooks of the Trainer.
"""

from modular_fairseq import patches
from modular_fairseq.versions import check_torch
from modular_fairseq_cli import __version__  # noqa: F401

# First, so that a torch that is too old is refused by one sentence instead of a traceback.
patches.apply("warnings", "errors")
check_torch()
patches.apply()

from modular_fairseq import models  # noqa: E402, F401
from modular_fairseq.criterions import modular_cross_entropy, modular_masked_lm  # noqa: E402, F401
from modular_fairseq.optim import torch_adam  # noqa: E402, F401
from modular_fairseq.training import gate_trainer  # noqa: E402, F401
