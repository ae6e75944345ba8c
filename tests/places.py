"""Folders that several tests need."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]  # the root of the repository
