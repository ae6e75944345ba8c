"""modular_fairseq: a fairseq plugin that takes the Transformer apart (`fairseq-train --user-dir
modular_fairseq`).

The door: importing this package changes what its commands need changed in fairseq, torch, numpy and the
process, and registers its models and its criterion with fairseq.
"""

from modular_fairseq import patches
from modular_fairseq.versions import check_torch
from modular_fairseq_cli import __version__  # noqa: F401

patches.apply("warnings", "errors")  # a refusal of torch is one sentence, too
check_torch()
patches.apply()

from modular_fairseq import models  # noqa: E402, F401
from modular_fairseq.criterions import modular_cross_entropy  # noqa: E402, F401
