"""Runs: from the words of a training to what it is worth, and the plans that ask for them."""
