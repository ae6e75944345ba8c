"""Print what the plugin changes in fairseq, torch, numpy and the process, with the reason for each change.

The list is a page in Markdown, docs/patches.md:

    modular-fairseq patches > docs/patches.md
"""

import argparse

from modular_fairseq.patches.registry import PATCHES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command has no options."""


def run(args: argparse.Namespace) -> None:
    print(listing(), end="")


def listing() -> str:
    """Return the list as Markdown, with a section for each patch, in the order in which they are applied."""
    sections = [
        f"## {patch.name}\n\nChanges {', '.join(map('`{}`'.format, patch.targets))}.\n\n{patch.reason}\n"
        for patch in PATCHES
    ]
    return "\n".join([INTRODUCTION, *sections])


INTRODUCTION = """\
# What this plugin changes in fairseq, torch, numpy and the process

`--user-dir modular_fairseq` and `import modular_fairseq` apply the patches below to the running process, once
and in this order. No file of an installed package is changed. Each section describes one patch. Its title is
the name of a function in `modular_fairseq/patches/`, and its text says what the patch does and why it is
needed. Line numbers refer to fairseq-fixed 0.12.3.1.

`modular-fairseq patches > docs/patches.md` writes this page. A test compares the page with the changes that
it finds in a process.
"""
