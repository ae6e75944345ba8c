"""Pictures as text: one token for each pixel, in raster order, for language models that draw.

`modular-fairseq prepare-pixels` writes such a text, and `shape.Shape` tells analyses where a token stands.
"""
