"""Times against stock fairseq; `command` is `modular-fairseq bench`."""
