"""The settings that all runs of an ablation have in common.

They come from the command line or from protocol.json, which is saved beside the runs.
"""

import argparse
import glob
import hashlib
import json
import os
import shlex
from dataclasses import fields
from typing import Any, NoReturn

from modular_fairseq.models.checks import check_options as check_model_options
from modular_fairseq.runs.corpus import Corpus
from modular_fairseq.runs.fixed_options import FIXED
from modular_fairseq.runs.greedy.protocol import STACKS, Switch, read_switches, switches_for
from modular_fairseq.runs.run import LIMITS
from modular_fairseq.training.command_line import family_of, family_of_arch, parse
from modular_fairseq_cli.arguments import by_option, read_seeds
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import check_run_folder, is_locked, read_json, write_json

# Options that the command sets itself, and options that must keep their defaults, so that all runs are
# equally long and are compared by the same number.
OWN_OPTIONS = [
    *FIXED,
    "--update-epoch-batch-itr",
    "--best-checkpoint-metric",
    "--maximize-best-checkpoint-metric",
    "--patience",
]
# Options that users must not give either, and the options of this command that they mean.
INSTEAD = {"--seed": "--seeds", "--distributed-world-size": "--gpus"}


def choose_settings(args: argparse.Namespace) -> tuple[dict[str, Any], list[int]]:
    """Return the settings of the runs in a folder, and their seeds, as given or as saved in the folder.

    Returns:
        A dictionary with "data" (a path, or several with colons between them), "options" (words for
        fairseq-train) and "switches" (a list of `Switch`); and the seeds.

    Raises:
        UsageError: there are no settings, they cannot work, or the folder holds runs with others.
    """
    check_run_folder(args.out, "--out")
    saved = read_settings(args.out)
    settings, seeds = saved or (None, [1])
    switches = read_switches(args.mechanisms) if args.mechanisms else default_switches(args.options)
    if saved and args.mechanisms and not args.data and not args.options:
        settings = {**saved[0], "switches": switches}
        check_options(settings["options"], switches)
        refuse_difference(args.out, saved[0], settings)
    elif args.data or args.options or args.mechanisms:
        if not args.data:
            raise UsageError("DATA is missing; give the folder that fairseq-preprocess wrote")
        check_options(args.options, switches)
        # fairseq takes several folders, each with a part of a large training set.
        data = os.pathsep.join(map(os.path.abspath, args.data.split(os.pathsep)))
        settings = {"data": data, "options": args.options, "switches": switches}
        if saved:
            refuse_difference(args.out, saved[0], settings)
    if settings is None:
        raise UsageError(
            f"--out {args.out}: this folder holds no runs; give DATA, and after a -- options of fairseq-train"
        )
    folder = settings["data"].split(os.pathsep)[0]
    if not args.table and not glob.glob(os.path.join(glob.escape(folder), "test[.0-9]*")):
        raise UsageError(
            f"the folder DATA, {folder}, does not exist or holds no test set; give a folder that "
            "fairseq-preprocess wrote with --testpref"
        )
    if args.seeds is not None:
        seeds = read_seeds(args.seeds)
    return settings, seeds


def default_switches(options: list[str]) -> list[Switch]:
    """Return the mechanisms of the paper for the arch that the options of fairseq-train name."""
    given = by_option(options)
    (arch, *_) = [*given.get("--arch", []), *given.get("-a", []), ""]
    family = family_of_arch(arch)
    names = {field.name for field in fields(family)} if family else set()
    return switches_for([stack for stack in STACKS if f"{stack}_attention_heads" in names] or STACKS)


def check_options(options: list[str], switches: list[Switch]) -> None:
    """Check that the protocol can train with the options of the user and of the mechanisms.

    Raises:
        UsageError: two of user, mechanisms and protocol set the same option, --arch is missing, the training
            has no end, or fairseq-train would refuse the options.
    """
    given = by_option(options)
    for name in given:
        if name in INSTEAD:
            raise UsageError(
                f"{name} cannot be given after the --, because `ablate` sets it; give {INSTEAD[name]} instead"
            )
        if name in OWN_OPTIONS:
            raise UsageError(
                f"{name} cannot be given after the --, because `ablate` sets it or needs its default; leave "
                "it out"
            )
    owner = dict.fromkeys(given, "")  # the mechanism that sets an option; "" is the user
    for each in switches:
        for name in by_option(each.off + each.on):
            if name in [*OWN_OPTIONS, *INSTEAD]:
                raise UsageError(
                    f"{name} cannot be an option of the mechanism {each.name}, because `ablate` sets it or "
                    "needs its default; change the mechanisms"
                )
            if name and owner.setdefault(name, each.name) != each.name:
                other = f"by the mechanism {owner[name]}" if owner[name] else "by you after the --"
                raise UsageError(
                    f"{name} is set by the mechanism {each.name} and {other}; leave one of them out"
                )
    if not given.keys() & {"--arch", "-a"}:
        raise UsageError("--arch is missing; give it after the --")
    if all(given.get(name, ["0"])[-1].startswith(("0", "-")) for name in LIMITS):
        raise UsageError(f"nothing ends the training; give {' or '.join(LIMITS)} after the --")

    for state in ("off", "on"):
        words = [word for each in switches for word in getattr(each, state)]

        def refuse(message: str, state: str = state) -> NoReturn:
            raise UsageError(
                f"with all mechanisms {state}, fairseq-train refuses your options and theirs: "
                f"{message.partition(' (choose from')[0]}; "
                "change your options, or give other mechanisms by --mechanisms FILE"
            )

        _, args = parse([*options, *words], refuse)
        if family := family_of(args):
            try:
                check_model_options(args, family)
            except UsageError as error:
                refuse(str(error))


def read_settings(folder: str) -> tuple[dict[str, Any], list[int]] | None:
    """Return the settings and seeds in the folder's protocol.json, or None if there is no such file.

    Raises:
        UsageError: the file cannot be read.
    """
    path = os.path.join(folder, "protocol.json")
    remedy = "restore it, or give another --out"
    saved = read_json(path, remedy) if os.path.isdir(folder) else None
    if saved is None:
        return None
    try:
        switches = [Switch(name, shlex.split(off), shlex.split(on)) for name, off, on in saved["mechanisms"]]
        options = shlex.split(saved["options"])
        settings = {"data": saved["data"], "options": options, "switches": switches}
        return settings | {"content": saved.get("content")}, saved["seeds"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path}: cannot be read ({error}); {remedy}") from None


def write_settings(folder: str, settings: dict[str, Any], seeds: list[int]) -> None:
    """Write protocol.json, with options as a user would type them; `read_settings` reads it."""
    saved = {
        "data": settings["data"],
        "options": shlex.join(settings["options"]),
        "mechanisms": [(name, shlex.join(off), shlex.join(on)) for name, off, on in settings["switches"]],
        "seeds": seeds,
        "content": content_of(settings["data"]),
    }
    write_json(os.path.join(folder, "protocol.json"), saved)


def content_of(data: str) -> str:
    """Return a digest of the prepared corpora in DATA, one path or several with colons between them."""
    contents = [Corpus(folder).contents() for folder in data.split(os.pathsep)]
    return hashlib.sha256(json.dumps(contents).encode()).hexdigest()[:16]


def refuse_difference(folder: str, saved: dict[str, Any], settings: dict[str, Any]) -> None:
    """Refuse settings that differ from the saved ones, because the runs could not be compared.

    They are accepted if nothing has been trained in the folder yet, and nothing is being trained.

    Raises:
        UsageError: the settings differ. The message names the differences.
    """

    def of_runs(name: str) -> list[str]:
        return glob.glob(os.path.join(glob.escape(folder), "*", name))

    if not any([*map(of_runs, ("result.json", "checkpoint*.pt")), *map(is_locked, of_runs(".lock"))]):
        return
    there, here = ({"DATA": [each["data"]], **by_option(each["options"])} for each in (saved, settings))
    differences = [
        f"{name} {' '.join(there.get(name, ['not given']))} (now {' '.join(here.get(name, ['not given']))})"
        for name in {**there, **here}
        if there.get(name) != here.get(name)
    ]
    if saved["switches"] != settings["switches"]:
        differences.append("other mechanisms")
    before = saved.get("content")  # version 0.1 did not note it
    if not differences and before and before != content_of(settings["data"]):
        differences.append("other data in the same folder DATA")
    if differences:
        raise UsageError(
            f"--out {folder}: the folder holds runs with {', '.join(differences)}; give the same settings, "
            "or another --out"
        )
