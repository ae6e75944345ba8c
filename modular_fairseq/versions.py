"""Refuse a torch that is too old before anything else fails because of it.

docs/versions.md lists the versions that were tested.
"""

import torch
from torch.torch_version import TorchVersion

from modular_fairseq_cli.errors import UsageError

OLDEST_TORCH = TorchVersion("2.6")


def check_torch() -> None:
    """Raise UsageError if the installed torch is older than `OLDEST_TORCH`."""
    if torch.__version__ < OLDEST_TORCH:
        raise UsageError(
            f"torch {torch.__version__} is too old for modular_fairseq, which needs torch {OLDEST_TORCH} or "
            "newer; install one, for example with `bash scripts/setup.sh`"
        )
