"""`modular-fairseq draw` samples pictures from a language model of pixels, and completes given ones."""
