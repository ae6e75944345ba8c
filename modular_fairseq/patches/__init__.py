"""All changes that this plugin makes to fairseq, torch, numpy and the process.

`modular-fairseq patches` prints the list of changes, which is docs/patches.md. tests/commands/test_patches.py
compares the list with the changes that it finds in a process. Line numbers in docstrings refer to
fairseq-fixed 0.12.3.1.
"""

import importlib

from modular_fairseq.patches.registry import PATCHES, Patch

__all__ = ["PATCHES", "Patch", "apply"]

# The modules of this package that declare patches, in the order in which they are applied. Warnings and
# errors come first, so that they also shape how errors in the other modules are shown. The module `trainer`
# imports the models. The module `literals` comes last, because it changes all modules of fairseq that are
# imported.
SUBJECTS = (
    "warnings",
    "errors",
    "numpy",
    "checkpoints",
    "data",
    "folders",
    "classification",
    "criterions",
    "precision",
    "nan_detector",
    "options",
    "search",
    "best_checkpoint",
    "trainer",
    "continuing",
    "stopping",
    "literals",
)


def apply(*subjects: str) -> None:
    """Apply the patches of some subjects, by default of all `SUBJECTS`.

    A second call changes nothing, because the module of a subject declares its patches only once.
    """
    for subject in subjects or SUBJECTS:
        applied = len(PATCHES)
        importlib.import_module(f"{__name__}.{subject}")
        for patch in PATCHES[applied:]:
            patch.apply()
