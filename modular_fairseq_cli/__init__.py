"""The part of the project that needs no torch: command line, files, processes, corpora, scores, reports.

Nothing here imports torch or fairseq, so a command that needs neither starts at once. The command line knows
the commands of the plugin by name only (`main.COMMANDS`), so nothing here imports the plugin either.
"""

__version__ = "0.2.0.dev0"  # setup.py reads the version from here; no other file states it
