"""The ground floor of modular_fairseq: command line, errors, files and processes, corpora, scores, reports.

Nothing here imports torch or fairseq, so that a command that needs neither answers at once. The commands of
the plugin are known by name only (`main.COMMANDS`), so nothing here imports the plugin either.
"""

__version__ = "0.2.0.dev0"  # the only place: setup.py reads it here
