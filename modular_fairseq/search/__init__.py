"""Beam search in fewer kernels than fairseq's, with the same hypotheses."""
