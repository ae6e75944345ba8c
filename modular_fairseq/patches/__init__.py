"""Everything that this plugin changes in fairseq, torch, numpy and the process.

`modular-fairseq patches` prints the list (docs/patches.md), and tests/unit/test_patches.py compares it with what
really changes in a process. The line numbers in docstrings refer to fairseq-fixed 0.12.3.1.
"""

import importlib

from modular_fairseq.patches.registry import PATCHES, Patch

__all__ = ["PATCHES", "Patch", "apply"]

# Applied in this order. What a user sees of warnings and errors comes first, so that an error while the rest
# is imported is shown in the same way. The trainer's subject imports the models. Literals come last, when all
# modules of fairseq are there.
SUBJECTS = (
    "warnings",
    "errors",
    "numpy",
    "checkpoints",
    "data",
    "precision",
    "options",
    "trainer",
    "literals",
)


def apply(*subjects: str) -> None:
    """Apply the patches of `subjects`, by default all. A second call changes nothing: a subject is
    imported once.
    """
    for subject in subjects or SUBJECTS:
        applied = len(PATCHES)
        importlib.import_module(f"{__name__}.{subject}")
        for patch in PATCHES[applied:]:
            patch.apply()
