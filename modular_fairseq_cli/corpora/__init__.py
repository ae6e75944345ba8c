"""The command `modular-fairseq prepare`: it turns archives and folders of text into data for fairseq-train.

`recipe` reads what is known of each data set, and `runner` runs the stages, each of which writes one folder:
`texts` text/, `tokens` tok/ and raw/, `subwords` bpe/, and `binarize` bin/.
"""
