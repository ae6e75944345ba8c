"""The tables of the papers as plans for runs; `command` is `modular-fairseq table`."""
