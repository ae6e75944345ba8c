"""The command `modular-fairseq toy-corpus`, which writes a synthetic German-English corpus.

`sampler` draws a meaning (`meaning`) at random, and `german` and `english` say it with the words of
`lexicon`.
"""
