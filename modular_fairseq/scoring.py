"""Scores for Python; they are defined in `modular_fairseq_cli.scoring`, which needs no torch."""

from modular_fairseq_cli.scoring import *  # noqa: F403
from modular_fairseq_cli.scoring import __all__  # noqa: F401
