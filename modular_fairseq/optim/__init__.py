"""Optimizers for fairseq-train."""
