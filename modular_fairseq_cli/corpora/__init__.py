"""`modular-fairseq prepare`: from archives and folders of text to binarized data for fairseq-train.

`runner` names the stages, `recipe` what is known of each data set.
"""
