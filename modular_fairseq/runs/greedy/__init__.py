"""The greedy protocol, which ranks mechanisms of the Transformer.

The module `command` is `modular-fairseq ablate`.
"""
