"""The command `modular-fairseq report`, which makes a page and pictures of analyses and training logs.

`checkpoint` reads an analysis and `training_log` a log; `page` makes the page, and `pictures` the figures.
"""
