"""The errors of this package, re-exported from `modular_fairseq_cli.errors`, which does not import torch."""

from modular_fairseq_cli.errors import UsageError, find_usage_error, unreadable_checkpoint

__all__ = ["UsageError", "find_usage_error", "unreadable_checkpoint"]
