"""modular_fairseq: a fairseq plugin that takes the Transformer apart (`fairseq-train --user-dir
modular_fairseq ...`).

The door: importing this package registers its models with fairseq and installs what its commands need.
"""

from modular_fairseq.versions import check_torch
from modular_fairseq_cli.errors import show_usage_errors_as_sentences

show_usage_errors_as_sentences()
check_torch()

# ruff: noqa: E402 (all else needs the torch that was checked)
from modular_fairseq.criterions.modular_cross_entropy import own_options
from modular_fairseq.fairseq_fixes import (
    copy_checkpoints_whole,
    keep_every_sentence,
    name_the_criterion_of_options,
)
from modular_fairseq.models import architectures  # noqa: F401
from modular_fairseq.models.checks import flag
from modular_fairseq.training import bcd, criterion_check
from modular_fairseq.training.checkpoints import allow_fairseq_checkpoints
from modular_fairseq.training.literal_options import evaluate_options_as_literals
from modular_fairseq.warnings_filters import quiet_known_warnings

quiet_known_warnings()
allow_fairseq_checkpoints()
evaluate_options_as_literals()
keep_every_sentence()
copy_checkpoints_whole()
name_the_criterion_of_options("modular_cross_entropy", {flag(option.name) for option in own_options()})
bcd.install()
criterion_check.install()
