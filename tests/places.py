"""Places that several tests need."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]  # the root of the repository
PYTHON = sys.executable  # the interpreter, also where tests/preloaded takes its place
