"""What the prepare-*.sh scripts share; `runner` names the stages."""


class CorpusError(Exception):
    """What is wrong with a file, an archive or a folder: one sentence that names it, and what would be right."""
