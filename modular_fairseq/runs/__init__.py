"""Runs, which train, average and evaluate models, and the commands that plan and compare runs."""
