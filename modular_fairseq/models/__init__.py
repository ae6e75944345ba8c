"""The model families and the mechanisms.

Every file of this folder is imported, so a new file that registers a mechanism needs no entry anywhere.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
