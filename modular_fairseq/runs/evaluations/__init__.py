"""The kinds of evaluations, each of which is a file of this folder and registers its columns for tables.

This module imports every file of the folder, so a new file needs no mention elsewhere.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
