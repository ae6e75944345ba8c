"""Compare the speed of models with stock fairseq; `command` is the command `modular-fairseq bench`."""
