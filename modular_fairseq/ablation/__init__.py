"""The greedy protocol; `command` is `modular-fairseq ablate`."""
