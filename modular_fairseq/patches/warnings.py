"""The page of warnings that every fairseq command prints on a current torch and hydra, without those known to
be harmless.

Each filter names the message, the category and, where it is always the same, the module that is blamed, so
that the same warning about a user's own code is still shown. Not reached, because they come before
``--user-dir`` is imported: the warnings of ``fairseq-hydra-train`` about ``version_base``, the package
header, the schema and the working directory.
"""

import logging
import warnings

from modular_fairseq.patches.registry import change


@change("warnings.filters", "logging.getLogger('hydra').level", "logging.getLogger('matplotlib').level")
def quiet_known_warnings() -> None:
    """Warnings that a user of fairseq can do nothing about are silent, and so are debug messages of hydra and
    matplotlib.

    Every command of fairseq prints a page of them on a current torch and hydra: when it reads its default
    options (fairseq/dataclass/utils.py:397-399), when it reads data (fairseq/data/iterators.py:222 and 509)
    and when it trains (fairseq/tasks/fairseq_task.py:531, fairseq/optim/amp_optimizer.py:26). One of
    fairseq's speech models turns on the debug messages of the whole process
    (fairseq/models/wav2vec/wav2vec2_classification.py:25).
    """
    for message, category, module in KNOWN:
        warnings.filterwarnings("ignore", message, category, module)
    for library in ("hydra", "matplotlib"):
        logging.getLogger(library).setLevel(logging.INFO)


# (start of the message, category, module), as regular expressions
KNOWN = [
    # fairseq 0.12 reads its default options through the hydra interface of 2020. hydra 1.3 does as asked, and
    # says each time what the new names are.
    (
        r"hydra\.experimental\.initialize\(\) is no longer experimental",
        UserWarning,
        r"hydra\.experimental\.initialize$",
    ),
    (
        r"hydra\.experimental\.compose\(\) is no longer experimental",
        UserWarning,
        r"hydra\.experimental\.compose$",
    ),
    (r"\s*The version_base parameter is not specified", UserWarning, r"hydra\.experimental\.initialize$"),
    (r"\s*The strict flag in the compose API is deprecated", UserWarning, r"hydra\.compose$"),
    # The same, about fairseq's own config.yaml.
    (
        r"In 'config': Usage of deprecated keyword in package header",
        UserWarning,
        r"hydra\.core\.default_element$",
    ),
    # hydra counts frames to find whom to blame for this one, and arrives above the top or at the command: no
    # module to name.
    (r"\s*'config' is validated against ConfigStore schema with the same name", UserWarning, ""),
    # Training and decoding on a CPU: fairseq asks for pinned memory whether or not there is an accelerator to
    # copy to.
    (
        r"'pin_memory' argument is set as true but no accelerator is found",
        UserWarning,
        r"torch\.utils\.data\.dataloader$",
    ),
    # The old spellings of torch.amp.autocast("cuda", ...) and of GradScaler (--amp); the objects are the
    # same.
    (
        r"`torch\.cuda\.amp\.autocast\(args\.\.\.\)` is deprecated",
        FutureWarning,
        r"fairseq\.tasks\.fairseq_task$",
    ),
    (
        r"`torch\.cuda\.amp\.GradScaler\(args\.\.\.\)` is deprecated",
        FutureWarning,
        r"fairseq\.optim\.amp_optimizer$",
    ),
    # fairseq's own attention: a boolean padding mask with an additive causal mask. torch converts the first;
    # the sum is right.
    (
        r"Support for mismatched key_padding_mask and attn_mask is deprecated",
        UserWarning,
        r"torch\.nn\.functional$",
    ),
]
