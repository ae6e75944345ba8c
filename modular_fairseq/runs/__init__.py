"""Runs train, average and evaluate models; the commands of this package plan runs and compare them."""
