"""Prepare corpora: from archives and folders of text to binarized data for fairseq-train; `runner` names the stages."""
