"""Rows of tables as runs; `command` is `modular-fairseq table`."""
