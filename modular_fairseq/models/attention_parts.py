"""The name that `registry.py` had in version 0.1, for plugins that were written for it."""

from modular_fairseq.models.registry import Place, register_attention

__all__ = ["Place", "register_attention"]
