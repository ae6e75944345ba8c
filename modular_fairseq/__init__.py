"""modular_fairseq: a fairseq plugin that takes the Transformer apart (`fairseq-train --user-dir modular_fairseq ...`).

The door: importing this package registers its models with fairseq and installs what its commands need, in this order.
"""

from modular_fairseq.errors import show_usage_errors_as_sentences
from modular_fairseq.fairseq_fixes import keep_every_sentence
from modular_fairseq.models import language_model, translation, architectures  # noqa: F401, I001  (architectures name registered models)
from modular_fairseq.training import bcd
from modular_fairseq.training.checkpoints import allow_fairseq_checkpoints

show_usage_errors_as_sentences()
allow_fairseq_checkpoints()
keep_every_sentence()
bcd.install()
