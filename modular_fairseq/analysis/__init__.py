"""Analyses of trained models, one in each file; `command` is the command `modular-fairseq analyze`.

Every file in this folder is imported, so a new file can add its analysis to `ANALYSES` by itself.
"""

import importlib
import pkgutil

from modular_fairseq.analysis.analyses import ANALYSES, analyze

__all__ = ["ANALYSES", "analyze"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
