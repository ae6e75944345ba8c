"""`modular-fairseq predict` measures how well a model predicts masked words, or the classes of inputs."""
