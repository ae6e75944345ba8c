"""The tables of the papers, which define runs and compare their results with the papers'.

The module `command` is `modular-fairseq table`.
"""
