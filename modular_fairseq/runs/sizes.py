"""Change the size of an experiment: by a scale, or by a share of the training data."""

import copy
from pathlib import Path
from typing import Any

from modular_fairseq.models.options import PRESETS
from modular_fairseq.runs import subsets
from modular_fairseq.runs.config import Config, check_context
from modular_fairseq.runs.yaml_files import read_yaml
from modular_fairseq_cli.errors import UsageError


def scaled(config: Config, scale: dict[str, Any]) -> Config:
    """Return the same experiment at another size.

    Args:
        config: the row.
        scale: changes of the row's values. "divide": {"group.key": n} divides values by a whole number.
            "set": {"group.key": value} replaces values. "finetuning" does the same after that, but only for a
            row that is fine-tuned. "corpora": {name: {"group.key": value}} does the same after that, but only
            for rows that are trained on this corpus. "rows": {TABLE/ROW: {"group.key": value}} does the same
            last, but only for this row. Keys that the row does not set are skipped, so one scale serves all
            rows. Whole numbers remain whole numbers of at least 1, and 0 and negative ones, which mean "none"
            to fairseq, remain as they are. Two other parts do not change values.
            With "search": false no table searches values of options: each row is trained once, with the
            values that it has after these changes. "start_seed": {TABLE: same} lets seed n of a fine-tuned
            row of this table start from seed n, like the key `start_seed` of a table.yaml.

    Raises:
        UsageError: a value is to be divided that is no number, a context is as long as a block, or the row
            takes a value from an arch of this project that the scale would change.
    """
    values = copy.deepcopy(config.values)
    arch = config.get("model._name")
    finetuning = scale.get("finetuning", {}) if config.get("checkpoint.finetune_from_model") else {}
    of_corpus = scale.get("corpora", {}).get(config.data, {})
    of_row = scale.get("rows", {}).get(config.name, {})
    replaced = {**scale.get("set", {}), **finetuning, **of_corpus, **of_row}
    for key in {**scale.get("divide", {}), **replaced}:
        group, name = key.split(".")
        if group == "model" and name in PRESETS.get(arch, {}) and name not in values["model"]:
            raise UsageError(
                f"{config.path}: {name} comes from the arch {arch}, and a scale changes only what a row "
                f"says; write model.{name} and the other values of the arch into the row"
            )
    for key, by in scale.get("divide", {}).items():
        group, name = key.split(".")
        if name in values.get(group, {}):
            value = values[group][name]
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise UsageError(
                    f"{config.path}: {key} is {value!r}, which the scale cannot divide; set it in the scale"
                )
            if isinstance(value, float):
                values[group][name] = value / by
            elif value > 0:
                values[group][name] = max(value // by, 1)
    for key, value in replaced.items():
        group, name = key.split(".")
        if name in values.get(group, {}):
            values[group][name] = value
    changed = config._replace(values=values)
    check_context(changed)
    return changed


def with_values(config: Config, values: dict[str, Any]) -> Config:
    """Return the same experiment with other values of some options, and a name that tells them.

    Args:
        config: the row, scaled.
        values: the values, keyed by "group.key"; the row must set these keys.

    Raises:
        UsageError: the row does not set a key, or fairseq does not accept a value.
    """
    if not values:
        return config
    groups = {group: dict(keys) for group, keys in config.values.items()}
    name = config.name
    for key, value in values.items():
        group, option = key.split(".")
        if option not in groups.get(group, {}):
            raise UsageError(f"{config.path}: {key} is missing, which the table searches; add it")
        groups[group][option] = [value] if isinstance(groups[group][option], list) else value
        name += f"-{option.replace('_', '-')}-{value}"
    changed = config._replace(name=name, values=groups)
    changed.train_options()  # refuses values of a wrong type
    return changed


def read_scale(table: str, name: str) -> dict:
    """Read the file of a scale.

    Args:
        table: path of the table.yaml. The file is scales/NAME.yaml beside the folder of the table.
        name: name of the scale; "paper" is the empty scale, which changes nothing.

    Returns:
        The scale, as for `scaled`.

    Raises:
        UsageError: there is no such scale, or its file cannot be read or has other parts.
    """
    if name == "paper":
        return {}
    folder = Path(table).resolve().parent.parent / "scales"
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in known:
        raise UsageError(
            f"--scale {name}: there is no {folder / name}.yaml; give one of {', '.join([*known, 'paper'])}"
        )
    path = folder / f"{name}.yaml"
    scale = read_yaml(path, "see configs/scales/smoke.yaml")
    check_scale(scale, str(path))
    return scale


def check_scale(scale: Any, path: str) -> None:
    """Raise a UsageError unless a scale has the parts that `scaled` explains.

    Args:
        scale: the content of the file.
        path: the file, for the message.
    """
    parts: dict[str, Any] = scale if isinstance(scale, dict) else {"": None}
    nested = [parts.get(name, {}) for name in ("corpora", "rows")]
    changes = [parts.get(name, {}) for name in ("divide", "set", "finetuning")]
    starts = parts.get("start_seed", {})
    changes += [part for each in nested if isinstance(each, dict) for part in each.values()]
    if (
        not parts.keys() <= {"divide", "set", "finetuning", "corpora", "rows", "search", "start_seed"}
        or not isinstance(parts.get("search", True), bool)
        or not isinstance(starts, dict)
        or not all(value == "same" for value in starts.values())
        or not all(isinstance(each, dict) for each in [*nested, *changes])
        or not all(isinstance(key, str) and key.count(".") == 1 for part in changes for key in part)
        or not all(type(by) is int and by > 0 for by in parts.get("divide", {}).values())
    ):
        raise UsageError(
            f"{path}: a scale has `divide:` (by whole numbers), `set:` and `finetuning:`, each with keys of "
            "the form group.key, `corpora:` and `rows:` with the same for each corpus and row, `search:` "
            "with true or false, and `start_seed:` with `same` for a table; see configs/scales/cpu.yaml"
        )


def on_subset(config: Config, percent: int) -> Config:
    """Return the same experiment on a share of the training data, with the same number of updates.

    max_epoch is divided by percent / 100. So the number of updates, to which warm-up and decay are adjusted,
    remains the same, apart from rounding. An epoch of a small subset has few updates. Therefore the model is
    validated and saved every N epochs, which together are about a tenth of an epoch of the whole corpus. N is
    1 if percent is above 5, or if the checkpoints of the last epochs are averaged. max_epoch is rounded to a
    multiple of N. If the learning rate decays to 0 after a given number of updates, training stops there,
    unless max_update stops it before.

    Args:
        config: the row, possibly scaled. The result is named NAME-PERCENT.
        percent: a whole number from 1 to 100; for 100 the result is `config`.
    """
    if percent == 100:
        return config
    values = {group: dict(keys) for group, keys in config.values.items()}
    values["task"]["data"] = subsets.name(config.get("task.data"), percent)
    interval = 1 if config.averaged else max(10 // percent, 1)
    if epochs := config.get("optimization.max_epoch"):
        values["optimization"]["max_epoch"] = interval * max(round(epochs * 100 / percent / interval), 1)
    if updates := config.get("lr_scheduler.total_num_update"):
        limit = config.get("optimization.max_update", 0)
        values["optimization"]["max_update"] = min(limit, updates) if limit > 0 else updates
    values.setdefault("dataset", {})["validate_interval"] = interval
    values.setdefault("checkpoint", {})["save_interval"] = interval
    return config._replace(name=f"{config.name}-{percent}", values=values, percent=percent)
