"""The former name of `registry.py`, kept for plugins that were written for version 0.1."""

from modular_fairseq.models.registry import Place, register_attention

__all__ = ["Place", "register_attention"]
