"""Analyses of trained models, one file each; `command` is `modular-fairseq analyze`.

A file of this folder that adds to `ANALYSES` is found by itself.
"""

import importlib
import pkgutil

from modular_fairseq.analysis.analyses import ANALYSES, analyze

__all__ = ["ANALYSES", "analyze"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
