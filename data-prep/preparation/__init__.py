"""What the prepare-*.sh scripts share; `runner` names the stages.

Nothing here imports the package modular_fairseq, not even for its errors: that would import torch, and a
tenth of a second become several.
"""


class CorpusError(Exception):
    """What is wrong with a file, an archive or a folder: one sentence that names it, and what would be
    right.
    """
