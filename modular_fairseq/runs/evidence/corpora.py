"""Prepare the registered corpora, and compare them with the registered digests."""

import os
import shlex
from collections.abc import Sequence

import yaml

from modular_fairseq.runs.corpora import call_command
from modular_fairseq.runs.corpus import Corpus
from modular_fairseq.runs.evidence.claims import Register
from modular_fairseq.runs.evidence.jobs import Plan
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.processes import say


def prepare(plan: Plan, tables: Sequence[str], text: str, data: str) -> None:
    """Prepare the corpora by their registered commands, which skip finished steps.

    A corpus that no claim needs is prepared only as long as it has no digests.

    Args:
        plan: the plan. A command of its register has {text} and {data} in place of the following folders.
        tables: the tables whose corpora are prepared; () means all.
        text: the folder of the raw text.
        data: the folder of the prepared corpora.

    Raises:
        UsageError: a command failed and has written the reason to standard error, or a corpus differs from
            the registered one.
    """
    register = plan.register
    needed = {os.path.basename(job.run.corpus.folder) for job in plan.jobs_of(tables)}
    for name, corpus in register.corpora.items():
        if (corpus["sums"] or tables) and name not in needed:
            continue
        say(f"preparing {name}")
        words = shlex.split(corpus["command"])
        call_command(*(word.replace("{text}", text).replace("{data}", data) for word in words[1:]))
        found = Corpus(os.path.join(data, name, "bin")).contents()
        if corpus["sums"]:
            compare(register, name, found)
        else:
            print(yaml.safe_dump({name: {"sums": found}}, width=10**6), end="")


def compare(register: Register, name: str, found: dict[str, str]) -> None:
    """Refuse a corpus that differs from the registered one.

    Args:
        register: the claims.
        name: the name of the corpus.
        found: the result of `Corpus.contents`.

    Raises:
        UsageError: it differs, or no digests are registered.
    """
    sums = register.corpora.get(name, {}).get("sums")
    if not sums:
        raise UsageError(
            f"{register.path} registers no digests of the corpus {name}; copy those that --prepare TEXT "
            "prints into its `sums`"
        )
    for file in [*sums, *found]:
        if sums.get(file) != found.get(file):
            raise UsageError(
                f"the corpus {name} differs in {file} from the one that {register.path} registers; prepare "
                "it again by --prepare TEXT, from the same text"
            )
