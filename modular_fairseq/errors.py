"""The errors of this package; they are defined in `modular_fairseq_cli.errors`, which needs no torch."""

from modular_fairseq_cli.errors import UsageError, find_usage_error, unreadable_checkpoint

__all__ = ["UsageError", "find_usage_error", "unreadable_checkpoint"]
