"""List what the plugin changes in fairseq, torch, numpy and the process, with the reason for each change.

modular-fairseq patches > docs/patches.md
"""

import argparse

from modular_fairseq.patches.registry import PATCHES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command has no options."""


def run(args: argparse.Namespace) -> None:
    print(listing(), end="")


def listing() -> str:
    """Return the list as Markdown: a section for each patch, in the order in which they are applied."""
    sections = [
        f"## {patch.name}\n\nChanges {', '.join(map('`{}`'.format, patch.targets))}.\n\n{patch.reason}\n"
        for patch in PATCHES
    ]
    return "\n".join([INTRODUCTION, *sections])


INTRODUCTION = """\
# What this plugin changes in fairseq, torch, numpy and the process

`--user-dir modular_fairseq` or `import modular_fairseq` applies these patches, once and in this order. Each
is one function in `modular_fairseq/patches/`. A test compares this list with what really changes in a
process. Line numbers refer to fairseq-fixed 0.12.3.1. `modular-fairseq patches > docs/patches.md` writes
this page.
"""
