"""Silence the harmless warnings that every fairseq command prints with a current torch and hydra.

Each filter names the message, the category and, if it is always the same, the module that the warning names.
The same warning about a user's own code is therefore still shown. Some warnings of ``fairseq-hydra-train``
cannot be silenced, because they come before ``--user-dir`` is imported. They are about ``version_base``, the
package header, the schema and the working directory.
"""

import logging
import warnings

from modular_fairseq.patches.registry import change


@change("warnings.filters", "logging.getLogger('hydra').level", "logging.getLogger('matplotlib').level")
def quiet_known_warnings() -> None:
    """Silence known harmless warnings, and the debug messages of hydra and matplotlib.

    With a current torch and hydra, every command of fairseq prints a page of warnings that its user can do
    nothing about. They come when fairseq reads its default options (fairseq/dataclass/utils.py:397-399), when
    it reads data (fairseq/data/iterators.py:222 and 509) and when it trains
    (fairseq/tasks/fairseq_task.py:531, fairseq/optim/amp_optimizer.py:26). In addition, one of fairseq's
    speech models turns on the debug messages of the whole process
    (fairseq/models/wav2vec/wav2vec2_classification.py:25).
    """
    for message, category, module in KNOWN:
        warnings.filterwarnings("ignore", message, category, module)
    for library in ("hydra", "matplotlib"):
        logging.getLogger(library).setLevel(logging.INFO)


# The known warnings: (start of the message, category, module). Message and module are regular expressions.
KNOWN = [
    # fairseq 0.12 reads its default options through the hydra interface of 2020. hydra 1.3 still supports it,
    # but warns each time about the new names.
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
    # This one is about fairseq's own config.yaml.
    (
        r"In 'config': Usage of deprecated keyword in package header",
        UserWarning,
        r"hydra\.core\.default_element$",
    ),
    # hydra counts stack frames to find the module that this warning names. It arrives above the outermost
    # frame or at the command itself, so the module is not known.
    (r"\s*'config' is validated against ConfigStore schema with the same name", UserWarning, ""),
    # This one comes with training and decoding on a CPU. fairseq asks for pinned memory even if there is no
    # accelerator to copy to.
    (
        r"'pin_memory' argument is set as true but no accelerator is found",
        UserWarning,
        r"torch\.utils\.data\.dataloader$",
    ),
    # fairseq uses old names of torch.amp.autocast("cuda", ...) and, with --amp, of GradScaler. The objects
    # are the same.
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
    # With --amp on a CPU, fairseq also turns on autocast and a scaler of losses for a GPU.
    (r"CUDA is not available or torch_xla is imported", UserWarning, r"torch\.cuda\.amp\.autocast_mode$"),
    (r"torch\.cuda\.amp\.GradScaler is enabled", UserWarning, r"torch\.cuda\.amp\.grad_scaler$"),
    # fairseq's own attention combines a boolean padding mask with an additive causal mask. torch converts the
    # first, and the result is right.
    (
        r"Support for mismatched key_padding_mask and attn_mask is deprecated",
        UserWarning,
        r"torch\.nn\.functional$",
    ),
]
