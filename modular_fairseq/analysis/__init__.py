"""Analyses of trained models, one file each; `command` is `modular-fairseq analyze`."""

from modular_fairseq.analysis.analyses import ANALYSES, analyze

__all__ = ["ANALYSES", "analyze"]
