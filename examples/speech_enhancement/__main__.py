"""Prepare spoken digits, score a model, or remove the noise from a file.

    python examples/speech_enhancement toys TOYS
    python examples/speech_enhancement digits DIGITS NOISES --out DATA
    python examples/speech_enhancement evaluate DATA --path CHECKPOINT --gen-subset test
    python examples/speech_enhancement clean noisy.wav --path CHECKPOINT --out clean.wav

docs/speech.md explains the commands.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from speech_enhancement.commands import main  # noqa: E402  (the line above finds it)

if __name__ == "__main__":
    main(__doc__)
