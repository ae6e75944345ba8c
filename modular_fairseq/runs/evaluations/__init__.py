"""What a run can be worth: one evaluation a file of this folder, registered by the columns that it gives a
table. A new file needs no mention elsewhere.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
