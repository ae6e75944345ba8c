"""settings.json, in the folder of a run, says what its weights depend on, and keeps another run out.

It has the settings that the caller gives, such as the words of the training command, and digests of what
cannot be seen in them: of the corpus, and of the weights that a fine-tuning started from.
"""

import os
from typing import Any

from modular_fairseq.runs.corpus import CONTENT, Corpus
from modular_fairseq.training.checkpoints import weights_digest
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import read_json, write_json

FILE = "settings.json"
STARTING = "starting weights"  # the key with the digest of the weights that are fine-tuned
DICTIONARY = "dictionary "  # the beginning of the keys with digests of dictionaries
DIGESTS = (DICTIONARY, "train ", CONTENT, STARTING)  # beginnings of the keys with digests


def start_digest(checkpoint: str | None) -> dict[str, str]:
    """Return the digest of the weights in a checkpoint, keyed by `STARTING`; nothing if there is no file."""
    if checkpoint is None or not os.path.isfile(checkpoint):
        return {}
    return {STARTING: weights_digest(checkpoint)}


def save_settings(folder: str, settings: dict[str, Any], digests: dict[str, str]) -> None:
    """Write settings.json.

    Args:
        folder: the folder of the run.
        settings: what the weights depend on, as JSON.
        digests: the digests of the corpus (see `Corpus.sums`) and of the starting weights (see
            `start_digest`).
    """
    write_json(os.path.join(folder, FILE), settings | digests)


def refuse_another_run(folder: str, settings: dict[str, Any], digests: dict[str, str]) -> None:
    """Refuse a folder in which a run with other settings, another corpus or another start was trained.

    Args:
        folder, settings: as for `save_settings`.
        digests: as for `save_settings`. What is left out of them is not compared.

    Raises:
        UsageError: the folder holds another run. The message names up to three differences.
    """
    there = os.listdir(folder) if os.path.isdir(folder) else []
    if not any(name.endswith(".pt") or name == "training.json" for name in there):
        return  # nothing was trained in this folder
    shown = os.path.join(folder, "")
    saved = read_json(os.path.join(folder, FILE))
    if saved is None:
        raise UsageError(
            f"{shown} holds an unknown run (it has no {FILE}); give another folder, or remove this one if "
            "nothing in it is needed"
        )
    keys = [key for key in {**saved, **settings} if not key.startswith(DIGESTS)]
    # Early runs did not note what they started from, nor the content of their data.
    keys += [key for key in digests if key not in (STARTING, CONTENT) or key in saved]
    now = settings | digests
    differences = [
        f"{key} {saved.get(key, 'not given')} (now {now.get(key, 'not given')})"
        for key in keys
        if saved.get(key) != now.get(key)
    ]
    if differences:
        raise UsageError(
            f"{shown} holds a run with {', '.join(differences[:3])}; use the earlier value, give another "
            "folder, or remove this one if nothing in it is needed"
        )


def refuse_other_dictionaries(corpus: Corpus, tuned: str, tuned_corpus: Corpus) -> None:
    """Refuse to fine-tune a run with a corpus that has other dictionaries.

    Args:
        corpus: the corpus of the fine-tuning.
        tuned: the folder of the run that is fine-tuned.
        tuned_corpus: its corpus.

    Raises:
        UsageError: a dictionary is not the one that the run was trained with.
    """
    saved = read_json(os.path.join(tuned, FILE)) or {}
    for key, value in corpus.dictionary_sums().items():
        if saved.get(key, value) != value:
            raise UsageError(
                f"{corpus.binarized}: its {key} differs from the dictionary of {os.path.join(tuned, '')}, "
                f"which is to be fine-tuned; prepare the corpus again with --like {tuned_corpus.folder}"
            )
