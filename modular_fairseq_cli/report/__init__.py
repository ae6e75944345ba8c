"""The command `modular-fairseq report`, which makes a page and pictures of analyses and training logs.

`checkpoint` reads an analysis; `page` makes the page, and `pictures` the figures.
"""
