"""modular_fairseq: a fairseq plugin that takes the Transformer apart (`fairseq-train --user-dir
modular_fairseq ...`).

The door: importing this package changes what its commands need changed in fairseq, torch, numpy and the
process, and registers its models and its criterion with fairseq.
"""

from modular_fairseq import patches

patches.apply()

from modular_fairseq.criterions import modular_cross_entropy  # noqa: E402, F401
from modular_fairseq.models import architectures  # noqa: E402, F401
