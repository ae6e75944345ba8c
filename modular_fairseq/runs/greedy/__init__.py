"""The greedy protocol as a plan for runs; `command` is `modular-fairseq ablate`."""
