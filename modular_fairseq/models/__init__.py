"""Model families and mechanisms. A file of this folder that registers a mechanism is found by itself."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
