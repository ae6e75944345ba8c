"""What mechanisms ask of a training that is much shorter than those of their papers."""

import re


def short_training(arch: str, options: list[str], updates: int, epochs: int) -> list[str]:
    """Return words of fairseq-train for a short training; options of the user's overrule them.

    To be replaced by what the mechanisms register.

    Args:
        arch, options: what is trained.
        updates: of the warm-up.
        epochs: of the whole training.
    """
    asked, words = " ".join([arch, *options]), []
    if epochs <= 5 and arch.startswith("mae_") and not re.search("uniform|joint|attention-type plain", asked):
        words += ["--mae-gate-interval", "2"]
    masked = re.search(r"^dma_|attention-type (mae\+)?dma", asked)
    if masked and not re.search("attention-type plain|-weight|aux-warmup", asked):
        words += ["--aux-warmup-updates", str(updates)]
    return words


def least_depth(arch: str) -> int:
    """Return how many layers encoder and decoder of a small model need at least.

    To be replaced by what the mechanisms register.
    """
    return 4 if arch.startswith(("multistream_", "tim_")) else 3
