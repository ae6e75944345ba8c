"""Scores for use from Python, re-exported from `modular_fairseq_cli.scoring`, which does not import torch."""

from modular_fairseq_cli.scoring import *  # noqa: F403
from modular_fairseq_cli.scoring import __all__  # noqa: F401
