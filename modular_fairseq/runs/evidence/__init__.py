"""Test claims of the papers by runs that were registered before they were made.

The module `command` is `modular-fairseq evidence`.
"""
