"""What all runs of an ablation have in common: it is given on the command line, checked first, and kept in
protocol.json beside the runs.
"""

import argparse
import glob
import json
import os
import shlex
from typing import Any, NoReturn

from modular_fairseq.models.checks import check_options as check_model_options
from modular_fairseq.runs.greedy.protocol import SWITCHES, Switch, read_switches
from modular_fairseq.runs.run import LIMITS
from modular_fairseq.training.command_line import family_of, parse
from modular_fairseq_cli.arguments import by_option, read_seeds
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import read_json, write_file

# Options that the command sets, and others without whose defaults runs would not be equally long, validated,
# or continued after a kill.
OWN_OPTIONS = [
    "--seed",
    "--save-dir",
    "--user-dir",
    "--log-format",
    "--valid-subset",
    "--update-epoch-batch-itr",
    "--best-checkpoint-metric",
    "--maximize-best-checkpoint-metric",
    "--disable-validation",
    "--patience",
    "--stop-time-hours",
    "--no-save",
    "--no-last-checkpoints",
    "--no-save-optimizer-state",
    "--checkpoint-suffix",
    "--restore-file",
    "--reset-dataloader",
    "--reset-lr-scheduler",
    "--reset-meters",
    "--reset-optimizer",
]


def choose_settings(args: argparse.Namespace) -> tuple[dict[str, Any], list[int]]:
    """Return data, options and switches, which all runs of a folder have in common, and the seeds: as given,
    or as the folder has them.

    Raises:
        UsageError: there are none, they are refused, or the folder has others.
    """
    saved = read_settings(args.out)
    settings, seeds = saved or (None, [1])
    switches = read_switches(args.mechanisms) if args.mechanisms else SWITCHES
    if saved and args.mechanisms and not args.data and not args.options:
        refuse_difference(args.out, settings, {**settings, "switches": switches})
    elif args.data or args.options or args.mechanisms:
        if not args.data:
            raise UsageError("DATA is missing: give the folder that fairseq-preprocess wrote")
        check_options(args.options, switches)
        # fairseq takes several folders, with parts of a large train set.
        data = os.pathsep.join(map(os.path.abspath, args.data.split(os.pathsep)))
        settings = {"data": data, "options": args.options, "switches": switches}
        if saved:
            refuse_difference(args.out, saved[0], settings)
    if settings is None:
        raise UsageError(
            f"--out {args.out}: holds no runs; give DATA, and after a -- the options of fairseq-train"
        )
    folder = settings["data"].split(os.pathsep)[0]
    if not args.table and not glob.glob(os.path.join(glob.escape(folder), "test[.0-9]*")):
        raise UsageError(
            f"DATA {folder}: does not exist or holds no test set; give what fairseq-preprocess wrote, with "
            "--testpref"
        )
    if args.seeds is not None:
        seeds = read_seeds(args.seeds)
    return settings, seeds


def check_options(options: list[str], switches: list[Switch]) -> None:
    """Refuses options that no protocol can be made of.

    Raises:
        UsageError: two of user, mechanisms and protocol set the same; no --arch, or no end to training;
            fairseq-train would refuse them.
    """
    owner = dict.fromkeys(OWN_OPTIONS, "the protocol sets it, or needs its default")
    given = by_option(options)
    for who, names in [
        ("it is given", given),
        *((f"{each.name} sets it", by_option(each.off + each.on)) for each in switches),
    ]:
        for name in names:
            if name and owner.setdefault(name, who) != who:
                raise UsageError(f"{name}: {who}, and {owner[name]}; leave one of them out")
    if not given.keys() & {"--arch", "-a"}:
        raise UsageError("--arch is missing: give it after the --")
    if all(given.get(name, ["0"]) == ["0"] for name in LIMITS):
        raise UsageError(f"nothing ends the training: give {' or '.join(LIMITS)} after the --")

    for state in ("off", "on"):
        words = [word for each in switches for word in getattr(each, state)]

        def refuse(message: str, state: str = state) -> NoReturn:
            raise UsageError(
                f"with all mechanisms {state}, fairseq-train refuses your options and theirs: "
                f"{message.partition(' (choose from')[0]}; "
                "change yours, or name other mechanisms by --mechanisms FILE"
            )

        _, args = parse([*options, *words], refuse)
        if family := family_of(args):
            try:
                check_model_options(args, family)
            except UsageError as error:
                refuse(str(error))


def read_settings(folder: str) -> tuple[dict[str, Any], list[int]] | None:
    """Read the settings and seeds in the folder's protocol.json; None if there is none."""
    path = os.path.join(folder, "protocol.json")
    remedy = "restore it, or give another --out"
    saved = read_json(path, remedy) if os.path.isdir(folder) else None
    if saved is None:
        return None
    try:
        switches = [Switch(name, shlex.split(off), shlex.split(on)) for name, off, on in saved["mechanisms"]]
        options = shlex.split(saved["options"])
        return {"data": saved["data"], "options": options, "switches": switches}, saved["seeds"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path}: cannot be read ({error}); {remedy}") from None


def write_settings(folder: str, settings: dict[str, Any], seeds: list[int]) -> None:
    """Write what `read_settings` reads: options as one would type them."""
    saved = {
        "data": settings["data"],
        "options": shlex.join(settings["options"]),
        "mechanisms": [(name, shlex.join(off), shlex.join(on)) for name, off, on in settings["switches"]],
        "seeds": seeds,
    }
    write_file(os.path.join(folder, "protocol.json"), json.dumps(saved, indent=1) + "\n")


def refuse_difference(folder: str, saved: dict[str, Any], settings: dict[str, Any]) -> None:
    """Refuse other settings than those of the runs in the folder: they could not be compared. A folder in
    which nothing was trained yet takes new ones.
    """
    if not any(
        glob.glob(os.path.join(glob.escape(folder), "*", name)) for name in ("result.json", "checkpoint*.pt")
    ):
        return
    there, here = ({"DATA": [each["data"]], **by_option(each["options"])} for each in (saved, settings))
    differences = [
        f"{name} {' '.join(there.get(name, ['not given']))} (now {' '.join(here.get(name, ['not given']))})"
        for name in {**there, **here}
        if there.get(name) != here.get(name)
    ]
    if saved["switches"] != settings["switches"]:
        differences.append("other mechanisms")
    if differences:
        raise UsageError(
            f"--out {folder}: holds runs with {', '.join(differences)}; give the same, or another --out"
        )
