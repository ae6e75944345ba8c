"""Test configs/ and the rows that are read from it.

fairseq-train gets the same options as fairseq-hydra-train, and they equal the options of the paper's arch.
"""

import argparse
import json
import re
import runpy
import shutil
import subprocess
import sys
from argparse import Namespace
from fnmatch import fnmatch

import pytest
import yaml
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import ARCH_MODEL_NAME_REGISTRY
from omegaconf import OmegaConf

from modular_fairseq.models.checks import check_options
from modular_fairseq.models.fairseq_options import resolved
from modular_fairseq.models.options import FAMILIES, PRESETS
from modular_fairseq.models.registry import MECHANISMS
from modular_fairseq.runs.config import read_config
from modular_fairseq.runs.corpora import TOYS
from modular_fairseq.runs.evaluations.bleu import Bleu, generate_command
from modular_fairseq.runs.evaluations.model_analyses import Redundancy
from modular_fairseq.runs.evaluations.perplexity import Perplexity
from modular_fairseq.runs.papers import plan as planning
from modular_fairseq.runs.papers.table import COLUMNS, read_table
from modular_fairseq.runs.sizes import check_scale, on_subset, read_scale, scaled
from modular_fairseq_cli.errors import UsageError
from tests.fairseq_commands import train_config
from tests.masked_language_models import build_preset
from tests.places import ROOT
from tests.row_options import options_of
from tests.table_folders import table_arguments

CONFIGS = ROOT / "configs"
ROWS = sorted(
    path for path in CONFIGS.glob("*/*.yaml") if path.name != "table.yaml" and path.parent.name != "scales"
)
TABLES = sorted(CONFIGS.glob("*/table.yaml"))
SCALES = sorted(path.stem for path in CONFIGS.glob("scales/*.yaml"))
SCRIPTS = [
    *sorted((CONFIGS.parent / "scripts" / "tables").glob("*-[0-9]-*.sh")),
    *(CONFIGS.parent / "scripts" / name for name in ("tables/tim-pixels.sh", "transfer.sh")),
]
MANUALS = {
    "modular_transformer": CONFIGS / "manual.yaml",
    "modular_transformer_lm": CONFIGS / "manual-language-model.yaml",
    "modular_roberta": CONFIGS / "manual-masked-language-model.yaml",
}

HYDRA = """
import json, sys
from fairseq.dataclass.initialize import add_defaults, hydra_init
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
import modular_fairseq
composed = {}
for file in sys.argv[1:]:
    folder, _, name = file.removesuffix(".yaml").rpartition("/")
    with initialize_config_dir(folder, version_base=None):
        hydra_init(name)
        config = compose(name)
    add_defaults(config)
    composed[file] = OmegaConf.to_container(config, resolve=True, enum_to_str=True)
print("composed" + json.dumps(composed))
"""

GROUPS = """
import json, os, sys
import fairseq
from fairseq.dataclass.initialize import add_defaults, hydra_init
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
import modular_fairseq
composed = {}
folder, *archs = sys.argv[1:]
hydra_init("config")
with initialize_config_dir(os.path.join(os.path.dirname(fairseq.__file__), "config"), version_base="1.1"):
    for arch in archs:
        tasks = {"transformer_lm": "language_modeling", "roberta": "masked_lm"}
        task = next((task for part, task in tasks.items() if part in arch), "translation")
        chosen = [f"hydra.searchpath=[file://{folder}]", f"model={arch}", f"task={task}", "task.data=DATA"]
        config = compose("config", [*chosen, "criterion=modular_cross_entropy", "optimizer=torch_adam"])
        add_defaults(config)
        assert config.criterion.label_smoothing == 0 and config.optimizer.adam_eps == 1e-8
        composed[arch] = [task, OmegaConf.to_container(config, resolve=True, enum_to_str=True)["model"]]
print("composed" + json.dumps(composed))
"""


def name(path):
    return f"{path.parent.name}/{path.stem}"


def model_options(config):
    """Return the options of the model in a config file, with defaults for the options that the file leaves
    out.
    """
    return Namespace(**{name: value for name, value in config.values["model"].items() if name != "_name"})


def covering(parts):
    """Return names that have all parts together; `parts` has a set of parts for each name."""
    chosen, missing = [], set().union(*parts.values())
    while missing:
        chosen.append(max(parts, key=lambda each: len(parts[each] & missing)))
        missing -= parts[chosen[-1]]
    return chosen


def test_covering_names_have_all_parts_together():
    assert covering({"a": {1, 2}, "b": {2}, "c": {2, 3}}) == ["a", "c"]


def form(value):
    """Return what decides how a value is written and read: itself if it is true or false, else its type."""
    return value if isinstance(value, bool) else type(value)


def forms_of_keys(path):
    """Return each key of a row with the form of its value, beside its task, model, criterion and so on."""
    values = read_config(path).values
    selected = tuple(group.get("_name") for group in values.values())
    return {
        (selected, group, key, form(value)) for group, keys in values.items() for key, value in keys.items()
    }


def test_the_shell_and_hydra_get_the_same():
    """All options of every group are compared, whether the file sets them or not.

    Data and decoding are left out, because they are no options of fairseq-train. Each key is tested in some
    row with each form of value that it has, for each task, model, criterion and optimizer.
    """
    files = covering({str(path): forms_of_keys(path) for path in [*ROWS, *MANUALS.values()]})
    assert len(files) > 10
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HYDRA, *files], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    hydra = json.loads(done.stdout.partition("composed")[2])
    groups = [
        "common",
        "distributed_training",
        "dataset",
        "optimization",
        "checkpoint",
        "ema",
        "task",
        "model",
        "criterion",
        "optimizer",
    ]
    for file in files:
        shell = OmegaConf.to_container(
            train_config("DATA", common=read_config(file).train_options()), resolve=True, enum_to_str=True
        )
        # This setting comes from tests.fairseq_commands.
        shell["common"] |= {
            "no_progress_bar": False,
            "log_interval": hydra[file]["common"]["log_interval"],
        }
        shell["dataset"]["num_workers"] = hydra[file]["dataset"]["num_workers"]
        shell["task"]["data"] = hydra[file]["task"]["data"]
        for group in [*groups, "lr_scheduler"]:
            assert json.loads(json.dumps(shell[group])) == hydra[file][group], (file, group)


def test_each_arch_is_a_config_group_of_hydra_with_the_same_options():
    """Archs are composed that have each option together, with each form of its value."""
    written = {
        str(path.relative_to(CONFIGS / "hydra")): path.read_text()
        for path in (CONFIGS / "hydra").glob("*/*.yaml")
    }
    program = runpy.run_path(str(ROOT / "scripts/hydra_groups.py"))
    assert written == program["groups"](), "run python scripts/hydra_groups.py"
    assert len(PRESETS) > 30 and {f"model/{arch}.yaml" for arch in PRESETS} <= written.keys()
    archs = covering(
        {
            arch: {(ARCH_MODEL_NAME_REGISTRY[arch], key, form(value)) for key, value in preset.items()}
            for arch, preset in PRESETS.items()
        }
    )
    assert {ARCH_MODEL_NAME_REGISTRY[arch] for arch in archs} == {*MANUALS}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", GROUPS, str(CONFIGS / "hydra"), *archs],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    composed = json.loads(done.stdout.partition("composed")[2])
    assert composed.keys() == set(archs)
    for arch, (task, model) in composed.items():
        shell = train_config("DATA", common=["--task", task, "--arch", arch]).model
        assert json.loads(json.dumps(OmegaConf.to_container(shell, resolve=True, enum_to_str=True))) == model


def heading(path):
    """Return the arch and the options that the comment at the head of a file names, or None."""
    found = re.search(r"^# Its model is that of (--arch .*(?:\n# --.*)?)\.$", path.read_text(), re.MULTILINE)
    return found and found[1].replace("\n#", "")


def test_most_rows_are_archs():
    assert len([path for path in ROWS if heading(path)]) >= 33


@pytest.mark.parametrize("path", [path for path in ROWS if heading(path)], ids=name)
def test_a_row_is_the_arch_that_its_heading_says(path):
    """All options of the model are equal, except for options that belong to the recipe."""
    _, arch, *words = heading(path).split()
    row = read_config(path)
    family = FAMILIES[row.values["model"]["_name"]]
    parser = argparse.ArgumentParser()
    gen_parser_from_dataclass(parser, family(), delete_default=True)
    left_out = vars(parser.parse_args([]))
    given = {name: value for name, value in vars(parser.parse_args(words)).items() if value != left_out[name]}
    arch = Namespace(**{**PRESETS[arch], **given})
    theirs, ours = (vars(resolved(each, family)) for each in (arch, model_options(row)))
    for options in (theirs, ours):
        options["mae_gate_interval"] = options["mae_gate_interval"] or 5
    recipe = {"share_all_embeddings", "share_decoder_input_output_embed", "dropout"}
    theirs, ours = (
        {name: value for name, value in options.items() if name not in recipe} for options in (theirs, ours)
    )
    assert ours == theirs


# Values that appendix A of the MAE paper and appendix B of the Multi-Stream paper print, by config file.
PRINTED = {
    "mae-2/*": {"ffn": 2048, "heads": 8, "dropout": 0.1},
    "mae-2/base": {"warmup": 4000},
    "mae-2/[!b]*": {"warmup": 8000},
    "mae-3/*": {"ffn": 1024, "heads": 8, "dropout": 0.3, "warmup": 8000, "weight_decay": 1e-4},
    "multistream-1/*": {"heads": 8, "dropout": 0.1, "batch": 64},
    "multistream-1/transformer-4*": {"width": 128, "ffn": 512, "warmup": 4000},
    "multistream-1/2x1*": {"width": 128, "ffn": 512, "warmup": 4000},
    "multistream-1/transformer-6*": {"width": 512, "ffn": 2048, "warmup": 32000},
    "multistream-1/2x2*": {"width": 512, "ffn": 2048, "warmup": 32000},
    "multistream-1/4x1*": {"width": 512, "ffn": 2048, "warmup": 32000},
}


@pytest.mark.parametrize(("files", "printed"), PRINTED.items())
def test_rows_have_the_hyper_parameters_that_the_appendices_print(files, printed):
    rows = [read_config(path).values for path in ROWS if fnmatch(name(path), files)]
    assert rows
    for row in rows:
        model = row["model"]
        for stack in ("encoder", "decoder"):
            of_row = {
                "width": model[f"{stack}_embed_dim"],
                "ffn": model[f"{stack}_ffn_embed_dim"],
                "heads": model[f"{stack}_attention_heads"],
                "dropout": model["dropout"],
                "warmup": row["lr_scheduler"]["warmup_updates"],
                "weight_decay": row["optimizer"].get("weight_decay", 0.0),
                "batch": row["dataset"].get("batch_size"),
            }
            assert {key: of_row[key] for key in printed} == printed


def test_rows_of_language_models_have_what_the_paper_and_baevski_and_auli_print():
    """MAE, section 4.3, appendix A and table 4: contexts of 512 and 480, 16 layers, windows of 100."""
    rows = {name(path): read_config(path).values for path in ROWS if fnmatch(name(path), "mae-4/*")}
    assert len(rows) == 4
    for row in rows.values():
        model = row["model"]
        assert (row["task"]["tokens_per_sample"], row["eval_lm"]["context_window"]) == (512, 480)
        sizes = ("decoder_layers", "decoder_embed_dim", "decoder_ffn_embed_dim", "decoder_attention_heads")
        assert [model[key] for key in sizes] == [16, 1024, 4096, 8]
        assert model["adaptive_input_cutoff"] == model["adaptive_softmax_cutoff"] == "20000,60000"
        assert (row["optimizer"]["_name"], row["optimizer"]["momentum"]) == ("nag", 0.99)
        assert row["lr_scheduler"]["_name"] == "cosine" and row["optimization"]["clip_norm"] == 0.1
        updates = row["lr_scheduler"]["warmup_updates"] + row["lr_scheduler"]["lr_period_updates"]
        assert updates == row["optimization"]["max_update"] == 286_000
        assert row["dataset"]["max_tokens"] * row["optimization"]["update_freq"][0] == 73_728
        if model.get("mae_gating") == "learned":
            gates = ("mae_gate_context", "mae_gate_window", "mae_gate_dim", "mae_gate_lr")
            assert [model[key] for key in gates] == ["window", 100, 256, 1.0]


@pytest.mark.parametrize("scale", ["paper", "small", "cpu", "smoke"])
def test_every_row_is_a_model_at_every_scale(scale):
    for path in ROWS:
        config = scaled(read_config(path), read_scale(path, scale))
        # This raises the error that a run would raise.
        check_options(model_options(config), FAMILIES[config.get("model._name")])


def test_the_small_scale_ends_the_decay_of_the_learning_rate_after_a_quarter_of_the_updates():
    decays = 0
    for path in ROWS:
        row = read_config(path)
        small = scaled(row, read_scale(path, "small"))
        if total := row.get("lr_scheduler.total_num_update"):
            assert small.get("lr_scheduler.total_num_update") == total // 4, path
            updates = small.get("optimization.max_update", total // 4)
            assert updates == total // 4, path
            decays += 1
    assert decays > 20


@pytest.mark.parametrize("scale", ["paper", "small"])
def test_tim_for_masked_words_has_about_as_many_parameters_as_its_peer(scale):
    def size(row):
        path = CONFIGS / f"tim-2/{row}.yaml"
        config = scaled(read_config(path), read_scale(path, scale))
        model = build_preset("modular_roberta", 32_678, **vars(model_options(config)))
        return sum(p.numel() for p in model.parameters())

    for row, peer in (("tim", "bert-130m"), ("tim-nocomp", "bert-130m"), ("tim-all", "bert")):
        assert abs(size(row) / size(peer) - 1) < 0.04, row


def test_rows_of_a_table_differ_in_the_model_and_in_nothing_else():
    """Rows share data, budget, optimizer and decoding. The exceptions come from the paper, and are named
    here.
    """
    transfer = {
        "optimization.max_epoch",
        "checkpoint.finetune_from_model",
        "optimization.lr",
        "lr_scheduler.warmup_updates",
    }
    updates = {"optimization.max_update", "lr_scheduler.total_num_update", "lr_scheduler.warmup_updates"}
    inputs = {"task.data", "task.num_classes", "task.separator_token"}
    allowed = {
        "tim-2-glue": {*updates, *inputs, "checkpoint.finetune_from_model"},
        "tim-2-sts": {"checkpoint.finetune_from_model"},
        "tim-pixels": {  # pictures of two sizes
            *("task.data", "task.tokens_per_sample", "dataset.max_tokens", "optimization.max_update"),
            *("lr_scheduler.warmup_updates", "lr_scheduler.lr_period_updates"),
            "checkpoint.save_interval_updates",  # figure 2 of the paper shows the pairs over their training
        },
        "mae-2": {"lr_scheduler.warmup_updates"},
        "multi30k": {  # rows that ask whether longer training or a slower warm-up changes the gain of MAE
            *("optimization.max_epoch", "lr_scheduler.total_num_update", "lr_scheduler.warmup_updates"),
        },
        "mae-7": transfer,
        "transfer": transfer,
        "multistream-1": {
            "optimization.max_epoch",
            "optimization.lr",
            "lr_scheduler.warmup_updates",
        },  # 4 and 6 layers
    }
    for table in TABLES:
        rows = [read_config(row.config).values for row in read_table(table).rows if row.name]
        flat = [
            {f"{group}.{key}": value for group, keys in row.items() for key, value in keys.items()}
            for row in rows
        ]
        keys = {key for row in flat for key in row if not key.startswith("model.")}
        differ = {key for key in keys if len({str(row.get(key)) for row in flat}) > 1}
        losses = {f"{group}.{f.name}" for each in MECHANISMS.values() for group, f in options_of(each)}
        assert differ - losses == allowed.get(table.parent.name, set()), table


def test_the_manuals_explain_every_key_that_a_row_uses():
    keys = {
        (group, key) for path in ROWS for group, values in read_config(path).values.items() for key in values
    }
    explained = set()
    for family, manual in MANUALS.items():
        explained |= {(group, key) for group, values in read_config(manual).values.items() for key in values}
        group = ""
        for line in manual.read_text().splitlines():  # keys of another scheduler are in comments
            if found := re.match(r"(\w+):", line):
                group = found[1]
            elif found := re.match(r"  # (\w+): \S", line):
                explained.add((group, found[1]))
        assert read_config(manual).get("model._name") == family
        check_options(model_options(read_config(manual)), FAMILIES[family])
    assert keys - explained == set()


def test_every_table_has_a_script_and_stand_ins_for_its_corpora():
    scripted = [re.search(r"^table=(\S+)$", script.read_text(), re.MULTILINE)[1] for script in SCRIPTS]
    # scripts/evidence.sh makes the runs of these tables.
    registered = {"multi30k", "multi30k-experts", "multi30k-transfer", "iwslt14-seventh"}
    assert {*scripted} | registered == {table.parent.name for table in TABLES} and len(TABLES) == len(
        {*scripted} | registered
    )
    assert {read_config(path).data for path in ROWS} == TOYS.keys()


def test_a_script_shows_the_commands_of_its_table_and_writes_nothing(tmp_path):
    script = next(script for script in SCRIPTS if script.name == "mae-7-transfer.sh")
    words = ["bash", str(script), "--scale", "smoke", "--dry-run", "--out", str(tmp_path / "out")]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir())
    for name in ("mae-7/scratch", "mae-2/mae-7", "mae-7/ftg", "mae-7/ftg-plus", "mae-7/ftall"):
        assert f" --save-dir {tmp_path}/out/smoke/{name}/seed-1/ " in done.stdout
    assert done.stdout.count("fairseq-train ") == 5 and done.stdout.count("fairseq-generate ") == 5
    assert f"{tmp_path}/out/smoke/data/iwslt14.de-en.like-wmt14/bin" in done.stdout


@pytest.mark.parametrize("table", TABLES, ids=lambda path: path.parent.name)
def test_every_table_has_commands_for_all_its_rows(table, tmp_path):
    found = read_table(table)
    shown = planning.show_commands(planning.plan(found, Namespace(**arguments(table, tmp_path))), [])
    tried = [f"-lr-{value}" for value in found.search.get("optimization.lr", [])] or [""]
    for row in found.rows:
        for value in tried if row.name and not row.pretrained else []:
            assert f" --save-dir {tmp_path}/paper/{read_config(row.config).name}{value}/seed-1/ " in shown
    kinds = ("fairseq-generate ", "fairseq-eval-lm ", "modular-fairseq predict ")
    evaluations = sum(len(row.overrides) for row in found.rows if row.name) * len(tried)
    assert sum(map(shown.count, kinds)) == evaluations


def arguments(table, folder):
    return table_arguments(table, out=str(folder))


@pytest.mark.parametrize(
    "changes",
    [{"checkpoint": {"no_save": True}}, {"dataset": {"valid_subset": "test"}}, {"common": {"log_file": "a"}}],
    ids=str,
)
def test_a_row_may_not_say_how_runs_are_stored_and_validated(changes, tmp_path):
    values = read_config(CONFIGS / "dma-1" / "dma-small.yaml").values
    [(group, keys)] = changes.items()
    (tmp_path / "row.yaml").write_text(yaml.safe_dump({**values, group: values.get(group, {}) | keys}))
    [option] = ["--" + key.replace("_", "-") for key in keys]
    with pytest.raises(
        UsageError, match=f"{option} cannot be given in {tmp_path}/row.yaml, because this com"
    ):
        read_config(tmp_path / "row.yaml")


@pytest.mark.parametrize("option", ["--no-epoch-checkpoints", "--save-interval 100"])
def test_epochs_that_are_averaged_keep_their_checkpoints(tmp_path, option):
    table = CONFIGS / "dma-2" / "table.yaml"
    args = Namespace(**arguments(table, tmp_path) | {"options": option.split()})
    with pytest.raises(UsageError, match=f"{option.split()[0]} cannot be given for .*transformer.yaml"):
        planning.plan(read_table(table), args)
    args.options = ["--save-interval", "1"]
    planning.plan(read_table(table), args)


def test_null_in_a_row_means_the_default():
    config = read_config(CONFIGS / "dma-1" / "dma-small.yaml")
    nulls = {"checkpoint": {"keep_last_epochs": None}, "common_eval": {"post_process": None}}
    changed = config._replace(values={**config.values, **nulls})
    assert changed.averaged == 0 and "None" not in changed.decoding_options()


@pytest.mark.parametrize(
    "scale",
    [
        {"divide": {"model.encoder_layers": 2}},
        {"set": {"model.encoder_layers": 1}},
        {"finetuning": {"model.encoder_layers": 1}},
        {"corpora": {"iwslt14.de-en": {"model.encoder_layers": 1}}},
        {"rows": {"dma-1/dma-small": {"model.encoder_layers": 1}}},
    ],
)
def test_a_scale_that_would_pass_over_the_sizes_of_an_arch_is_refused(scale):
    config = read_config(CONFIGS / "dma-1" / "dma-small.yaml")
    model = {"_name": "dma_transformer_tiny_cpu", "encoder_embed_dim": 64}
    values = config.values | {"model": model}
    values["checkpoint"] = values.get("checkpoint", {}) | {"finetune_from_model": "dma.yaml"}
    of_arch = config._replace(values=values)
    assert scaled(of_arch, {"divide": {"model.encoder_embed_dim": 2}}).get("model.encoder_embed_dim") == 32
    with pytest.raises(
        UsageError, match="encoder_layers comes from the arch dma_transformer_tiny_cpu, and a"
    ):
        scaled(of_arch, scale)


def test_a_scale_divides_and_sets_only_what_the_row_has(tmp_path):
    config = read_config(CONFIGS / "dma-1" / "dma-small.yaml")
    scale = {
        "divide": {"model.encoder_embed_dim": 8, "model.mae_gate_dim": 8},
        "set": {"optimization.max_epoch": 2, "dataset.batch_size": 9},
    }
    small = scaled(config, scale)
    assert small.get("model.encoder_embed_dim") == 48 and small.get("optimization.max_epoch") == 2
    assert small.get("model.mae_gate_dim") is None and small.get("dataset.batch_size") is None
    assert config.get("model.encoder_embed_dim") == 384  # the original is untouched
    scale = {
        "set": {"optimization.max_epoch": 4, "optimization.lr": [1]},
        "finetuning": {"optimization.max_epoch": 2},
    }
    trained, tuned = (
        scaled(read_config(CONFIGS / "mae-7" / f"{row}.yaml"), scale) for row in ("scratch", "ftg")
    )
    assert trained.get("optimization.max_epoch") == 4 and tuned.get("optimization.max_epoch") == 2
    assert trained.get("optimization.lr") == tuned.get("optimization.lr") == [1]
    scale["corpora"] = {
        trained.data: {"optimization.max_epoch": 7, "dataset.batch_size": 9},
        "another": {"optimization.lr": [2]},
    }
    assert scaled(config, scale).get("optimization.max_epoch") == 4  # of a third corpus
    on_corpus = scaled(read_config(CONFIGS / "mae-7" / "ftg.yaml"), scale)
    assert on_corpus.data == trained.data and on_corpus.get("optimization.max_epoch") == 7
    assert on_corpus.get("optimization.lr") == [1] and on_corpus.get("dataset.batch_size") is None
    scale["rows"] = {"mae-7/ftg": {"optimization.lr": [3]}, "mae-7/scratch": {"optimization.lr": [4]}}
    of_row = scaled(read_config(CONFIGS / "mae-7" / "ftg.yaml"), scale)
    assert of_row.get("optimization.lr") == [3] and of_row.get("optimization.max_epoch") == 7
    none = config._replace(values={**config.values, "optimization": {"max_update": 0, "max_epoch": 3}})
    none = none._replace(values={**none.values, "checkpoint": {"keep_last_epochs": -1}})
    scale = {"divide": dict.fromkeys(("optimization.max_update", "checkpoint.keep_last_epochs"), 4)}
    assert scaled(none, scale).values == none.values  # 0 and -1 mean "none" to fairseq
    with pytest.raises(UsageError, match="optimization.lr is .*, which the scale cannot divide"):
        scaled(config, {"divide": {"optimization.lr": 2}})
    for wrong in (
        None,
        [],
        {"dived": {}},
        {"set": [1]},
        {"set": {1: 2}},
        {"divide": {"model.dropout": 0}},
        {"divide": {"model.dropout": "2"}},
        {"rows": {"mae-7/ftg": {"lr": [1]}}},
        {"rows": ["mae-7/ftg"]},
        {"corpora": {"a": None}},
        {"set": {"max_epoch": 3}},
        {"finetuning": {"max_epoch": 3}},
        {"start_seed": {"mae-7": 1}},
        {"start_seed": ["mae-7"]},
        {"start_seed": {"mae-7": ["same"]}},
        {"corpora": {"a": {"max_epoch": 3}}},
    ):
        with pytest.raises(UsageError, match="^huge.yaml: a scale has"):
            check_scale(wrong, "huge.yaml")


@pytest.mark.parametrize(("scale", "starts"), [("smoke", [1, 1]), ("cpu", [1, 2])])
def test_a_scale_may_let_each_seed_start_from_its_own_pretraining(scale, starts, tmp_path):
    table = CONFIGS / "tim-2-glue/table.yaml"
    args = arguments(table, tmp_path) | {"scale": scale, "seeds": "1,2"}
    found = planning.plan(read_table(table), Namespace(**args))["qnli-tim"].measurements
    assert [each.run.start.name for each in found] == [f"tim-2/tim/seed-{seed}" for seed in starts]


def test_rows_that_a_scale_makes_equal_are_refused(tmp_path):
    shutil.copytree(CONFIGS, tmp_path / "configs")
    folder = tmp_path / "configs/mae-3"
    for name, change in (
        ("slow", ("lr: [0.0005]", "lr: [0.0001]")),
        ("wide", ("mae_gate_dim: 256", "mae_gate_dim: 512")),
    ):
        (folder / f"{name}.yaml").write_text((folder / "mae-7.yaml").read_text().replace(*change))
    (folder / "table.yaml").write_text(
        (folder / "table.yaml").read_text().replace("notes:", "  - {name: wide}\n  - {name: slow}\nnotes:")
    )
    args = arguments(folder / "table.yaml", tmp_path)
    assert "slow" in planning.plan(read_table(folder / "table.yaml"), Namespace(**args))
    with pytest.raises(UsageError, match="rows mae-7 and slow are the same at --scale smoke"):
        planning.plan(read_table(folder / "table.yaml"), Namespace(**args | {"scale": "smoke"}))


def test_an_option_in_which_rows_differ_cannot_be_given_for_all(tmp_path):
    """The rows of this table differ in a weight of the criterion."""
    table = CONFIGS / "dma-2" / "table.yaml"
    args = Namespace(**arguments(table, tmp_path) | {"options": ["--diversity-weight", "0.5"]})
    with pytest.raises(UsageError, match="--diversity-weight cannot be given after the --"):
        planning.plan(read_table(table), args)


def test_rows_that_differ_in_a_later_set_of_overrides_are_not_equal(tmp_path):
    shutil.copytree(CONFIGS, tmp_path / "configs")
    path = tmp_path / "configs/mae-3/table.yaml"
    spec = OmegaConf.to_container(OmegaConf.load(CONFIGS / "mae-3/table.yaml"))
    ways = [{"mae_inference": "random"}, {"mae_inference": "specialised"}]
    rows = [{"name": "one", "config": "mae-7.yaml", "overrides": ways[:1]}]
    rows.append({"name": "two", "config": "mae-7.yaml", "overrides": ways})
    path.write_text(OmegaConf.to_yaml(spec | {"rows": rows, "baseline": "one", "columns": ["bleu"]}))
    assert len(planning.plan(read_table(path), Namespace(**arguments(path, tmp_path)))) == 2
    path.write_text(
        OmegaConf.to_yaml({**spec, "rows": [rows[1], {**rows[1], "name": "one"}], "baseline": ""})
    )
    with pytest.raises(UsageError, match="rows two and one are the same"):
        planning.plan(read_table(path), Namespace(**arguments(path, tmp_path)))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"mae_inferenc": "random"}, "model.mae_inferenc is no option of fairseq or of this plugin"),
        ({"mae_inference": "rndom"}, "argument --mae-inference: invalid .*'rndom'"),
    ],
)
def test_overrides_that_cannot_work_are_refused_before_anything_is_trained(tmp_path, overrides, said):
    shutil.copytree(CONFIGS, tmp_path / "configs")
    path = tmp_path / "configs/mae-3/table.yaml"
    spec = OmegaConf.to_container(OmegaConf.load(CONFIGS / "mae-3/table.yaml"))
    rows = [{"name": "one", "config": "mae-7.yaml", "overrides": overrides}]
    path.write_text(OmegaConf.to_yaml(spec | {"rows": rows, "baseline": "one", "columns": ["bleu"]}))
    with pytest.raises(UsageError, match=f"table.yaml: row one has overrides .*: .*{said}"):
        planning.plan(read_table(path), Namespace(**arguments(path, tmp_path)))


@pytest.mark.parametrize("scale", ["cpu", "small", "smoke"])
@pytest.mark.parametrize("table", TABLES, ids=lambda path: path.parent.name)
def test_no_scale_makes_rows_of_a_table_equal_or_ends_before_what_is_averaged(table, scale, tmp_path):
    # It raises an error if two rows are equal.
    results = planning.plan(read_table(table), Namespace(**arguments(table, tmp_path) | {"scale": scale}))
    for found in results.values():
        config = found.config
        assert config.averaged <= config.get("optimization.max_epoch", config.averaged)
        patience = config.get("checkpoint.patience")
        assert patience is None or config.averaged <= patience + 1  # the first epoch is always an improvement


def planned(table, tmp_path, **changes):
    table = CONFIGS / table / "table.yaml"
    return planning.plan(read_table(table), Namespace(**arguments(table, tmp_path) | changes))


def test_one_expert_is_drawn_five_times_for_each_seed(tmp_path):
    results = planned("mae-5", tmp_path, seeds="1,2")
    drawn = [
        (each.run.seed, dict(each.overrides)["mae_inference_seed"])
        for each in results["uni-mae-7-random"].measurements
    ]
    assert drawn == [(seed, draw) for seed in (1, 2) for draw in (1, 2, 3, 4, 5)]
    names = {
        each.run.name for each in results["uni-mae-7-random"].measurements + results["uni-mae-7"].measurements
    }
    assert names == {"mae-2/uni-mae-7/seed-1", "mae-2/uni-mae-7/seed-2"}
    assert len({each.path("out") for each in results["uni-mae-7-random"].measurements}) == 10
    assert "'mae_inference_seed': 3" in " ".join(
        generate_command(results["uni-mae-7-random"].measurements[2])
    )


def test_fine_tuning_starts_from_seed_1_or_from_what_is_given(tmp_path):
    results = planned("mae-7", tmp_path, seeds="2,3")
    assert [each.run.seed for each in results["ftg"].measurements] == [2, 3]
    assert {each.run.start.name for each in results["ftg"].measurements} == {"mae-2/mae-7/seed-1"}
    (untuned,) = results["noft"].measurements
    assert untuned.run.checkpoint == untuned.run.start.checkpoint and untuned.run.checkpoint.endswith(
        "mae-2/mae-7/seed-1/averaged.pt"
    )
    assert results["ftall"].measurements[0].run.checkpoint.endswith("mae-7/ftall/seed-2/checkpoint_best.pt")
    given = planned("mae-7", tmp_path, pretrained="some.pt")
    assert given["ftall"].measurements[0].run.start == given["noft"].measurements[0].run.checkpoint
    assert (
        given["ftall"].measurements[0].run.start.endswith("/some.pt")
        and given["scratch"].measurements[0].run.start is None
    )


def test_redundancy_and_detokenisation_are_of_the_tables_that_need_them(tmp_path):
    for table in ("dma-1", "dma-2", "dma-3", "mae-3"):
        (first, *_) = planned(table, tmp_path).values()
        (measurement, *_) = first.measurements
        assert [type(each) for each in measurement.evaluations] == (
            [Bleu, Redundancy] if table.startswith("dma") else [Bleu]
        )
        _, _, score_command, *_ = [
            line for each in measurement.evaluations for line in each.commands(measurement)
        ]
        assert score_command.split()[-1] == ("none" if table == "dma-3" else "moses")


def test_a_pretrained_row_without_a_checkpoint_is_refused(tmp_path):
    shutil.copytree(CONFIGS, tmp_path / "configs")
    table = tmp_path / "configs/mae-3/table.yaml"
    table.write_text(
        table.read_text().replace("notes:", "  - {name: base-7, config: base.yaml, pretrained: true}\nnotes:")
    )
    with pytest.raises(UsageError, match="row base-7 is pretrained, but .*base.yaml names no checkpoint"):
        planning.plan(read_table(table), Namespace(**arguments(table, tmp_path)))


@pytest.mark.parametrize("name", COLUMNS)
def test_the_differences_of_every_column_have_a_sign(name):
    assert COLUMNS[name].signed.format(1)[0] == "+"


TUNED = ("checkpoint:", "checkpoint:\n  finetune_from_model: base.yaml")


def refusal_of_edited(folder, **changes):
    """Plan a copy of table mae-3 in whose files a text is replaced by another, and return the refusal."""
    shutil.copytree(CONFIGS, folder / "configs")
    for name, (old, new) in changes.items():
        path = folder / "configs/mae-3" / f"{name.replace('_', '-')}.yaml"
        assert old in (text := path.read_text())
        path.write_text(text.replace(old, new))
    path = folder / "configs/mae-3/table.yaml"
    with pytest.raises(UsageError) as error:
        planning.plan(read_table(path), Namespace(**arguments(path, folder)))
    return str(error.value)


def test_a_row_is_not_fine_tuned_after_itself(tmp_path):
    said = refusal_of_edited(tmp_path / "a", base=TUNED)
    assert "base.yaml: checkpoint.finetune_from_model is base.yaml, which is fine-tuned after this" in said
    round_about = ("checkpoint:", "checkpoint:\n  finetune_from_model: mae-7.yaml")
    said = refusal_of_edited(tmp_path / "b", mae_7=TUNED, base=round_about)
    assert "mae-7.yaml: checkpoint.finetune_from_model is base.yaml, which is fine-tuned after this" in said


def test_a_value_that_fairseq_train_refuses_is_one_of_the_row_and_not_of_its_overrides(tmp_path):
    said = refusal_of_edited(tmp_path, base=("task:", "distributed_training:\n  ddp_backend: foo\ntask:"))
    assert "row base (" in said and "base.yaml): " in said and "--ddp-backend" in said and "overr" not in said


def test_a_row_that_is_trained_and_one_that_is_pretrained_have_a_file_each(tmp_path):
    """The runs of both would have the same folder, so the results of one would count for the other."""
    rows = "  - {name: as-it-is, config: mae-7.yaml, pretrained: true}\nnotes:"
    said = refusal_of_edited(tmp_path, mae_7=TUNED, table=("notes:", rows))
    assert "rows mae-7 and as-it-is have the same file, but only one of them is pretrained" in said


def test_a_row_on_a_small_share_of_the_data_may_average_its_last_epochs(tmp_path):
    config = read_config(CONFIGS / "mae-2/mae-7.yaml")
    share = on_subset(config, 1)
    assert config.averaged and share.get("checkpoint.save_interval") == 1
    assert on_subset(read_config(CONFIGS / "mae-7/ftg.yaml"), 1).get("checkpoint.save_interval") == 10


def test_a_scale_names_only_keys_that_some_row_has():
    keys = {
        f"{group}.{key}"
        for path in ROWS
        for group, values in read_config(path).values.items()
        for key in values
    }
    for name in SCALES:
        scale = read_scale(ROWS[0], name)
        parts = [scale.get(name, {}) for name in ("divide", "set", "finetuning")]
        parts += [*scale.get("corpora", {}).values(), *scale.get("rows", {}).values()]
        assert {key for part in parts for key in part} <= keys, name


def test_a_scale_names_only_rows_corpora_and_tables_that_exist():
    configs = [read_config(path) for path in ROWS]
    there = {
        "rows": {config.name for config in configs},
        "corpora": {config.data for config in configs},
        "start_seed": {read_table(path).name for path in TABLES},
    }
    for name in SCALES:
        scale = read_scale(ROWS[0], name)
        unknown = [each for part, known in there.items() for each in scale.get(part, {}) if each not in known]
        assert unknown == [], name


def test_words_of_the_commands(tmp_path):
    config = read_config(CONFIGS / "mae-2" / "mae-7.yaml")
    words = " ".join(config.train_options())
    assert (
        "--attention-type mae --mae-dropped-heads 1" in words
        and "--share-all-embeddings --dropout 0.1" in words
    )
    assert (
        "--adam-betas (0.9,0.98)" in words
        and "--update-freq 8" in words
        and "--update-epoch-batch-itr True" in words
    )
    assert "beam" not in words and "wmt14" not in words
    assert (
        " ".join(config.decoding_options())
        == "--source-lang en --target-lang de --beam 5 --lenpen 0.6 --post-process subword_nmt"
    )
    assert config.averaged == 5 and read_config(CONFIGS / "mae-7" / "ftg.yaml").averaged == 0
    assert config.name == "mae-2/mae-7" and config.data == "wmt14.en-de"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("beam: 5", "beams: 5"), "generation.beams is no option"),
        (("dropout: 0.3", "dropuot: 0.3"), "model.dropuot is no option"),
        (
            ("optimization:", "optimization:\n  keep_last_epochs: 5"),
            "keep_last_epochs to the group checkpoint",
        ),
        (("task:", "task:\n  max_epoch: 5"), "task.max_epoch is no option of fairseq; move max_epoch to"),
        (("max_epoch: 50", "max_epoch: 50\n  dropout: .1"), "optimization.dropout is no option of fairseq"),
        (("max_epoch: 50", "max_epoch: '50'"), "optimization.max_epoch is the text '50'; give a number"),
        (("beam: 5", "beam: 5\n  nbest: 5"), "--nbest cannot be given in"),
        (("common_eval:", "common_eval:\n  model_overrides: a"), "--model-overrides cannot be given in"),
        (("dataset:", "dataset:\n  gen_subset: valid"), "--gen-subset cannot be given in"),
        (("dataset:", "bpe:\n  _name: gpt2\ndataset:"), "bpe._name has no effect in the row of a table"),
        (("optimization:", "optimisation:"), "optimisation is no group"),
        (
            ("optimization:", "seed: 1\noptimization:"),
            "the file must hold groups of keys, such as `optimizat",
        ),
        (("source_lang: de", "source_lan: de"), "task.source_lang is missing"),
        (("/bin", ""), "must be SET/bin"),
        (("update_epoch_batch_itr: true", "skip_invalid_size_inputs_valid_test: 3"), "must be true or false"),
        (("encoder_layers: 6", "encoder_layers: [x]"), "model.encoder_layers is ['x'], which --encoder-la"),
        (
            ("max_tokens: 4096", "max_tokens: {}"),
            "dataset.max_tokens is {}, which --max-tokens does not accept",
        ),
        (("_name: torch_adam", "_name: torch_adamm"), "fairseq-train refuses"),
        (("_name: torch_adam", "_name: {}"), "optimizer._name is {}; it must be text"),
        (("_name: translation", "_name: [a]"), "task._name is ['a']; it must be text"),
        (("task:", "task: &a [*a]\nmodel:"), "cannot be read"),
        (("source_lang: de", "source_lang: [de]"), "task.source_lang is ['de']; it must be text"),
        (("checkpoint:", "checkpoint:\n  finetune_from_model: []"), "finetune_from_model is []; it must be"),
        (("lr: [0.0005]", "lr: [0.0005"), "cannot be read (line"),
        (
            ("encoder_attention_heads: 8", "encoder_attention_heads: 7"),
            "is not a multiple of --encoder-attention-heads 7",
        ),
        (("dropout: 0.3", "attention_type: moe"), "must be one of plain, mae, dma, "),
        (("dropout: 0.3", "dropout: '${'"), "cannot be read"),
    ],
)
def test_a_wrong_file_is_one_sentence_that_names_it(tmp_path, change, sentence):
    text = (CONFIGS / "mae-3" / "base.yaml").read_text()
    assert change[0] in text
    path = tmp_path / "row.yaml"
    path.write_text(text.replace(*change))
    with pytest.raises(UsageError) as error:
        config = read_config(path)
        config.train_options(), config.decoding_options()
    assert sentence in str(error.value) and "\n" not in str(error.value)
    assert "row.yaml" in str(error.value) or "adamm" in str(error.value)


TABLE = {
    "title": "t",
    "baseline": "a",
    "columns": ["bleu"],
    "rows": [{"name": "a"}, {"label": "quoted", "paper": {"bleu": 1}}],
}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"columns": ["blue"]}, "there is no column blue"),
        ({"columns": [["bleu"]]}, r"there is no column \['bleu'\]"),
        ({"figure": [["bleu"]]}, "figure is .*, which is no list of columns"),
        ({"columns": 5}, "columns is 5; it must be a list"),
        ({"title": ["t"]}, "title is .*; it must be text"),
        ({"notes": 3}, "notes is 3; it must be a sentence or a list of sentences"),
        ({"rows": [{"name": "a", "subset": 1.5}]}, "row a: subset is 1.5; it must be the name of a part"),
        ({"rows": [{"name": "a", "overrides": -1}]}, "row a: overrides is -1; it must be options of the"),
        ({"rows": [{"name": "a", "overrides": [-1]}]}, r"row a has overrides \[-1\]; give options of the"),
        ({"rows": [{"name": "a", "overrides": []}]}, r"row a has overrides \[\]; give options of the model"),
        ({"rows": [{"name": "a", "overrides": {"mae_inference": [1]}}]}, "row a has overrides .*; give opt"),
        ({"rows": [{"name": "a", "paper": None}]}, "row a: paper is None; it must be keys with values"),
        ({"rows": [{"name": "a", "config": 7}]}, "row a: config is 7; it must be the path of a YAML file"),
        ({"rows": [{"name": "a", "pretrained": "x"}]}, "row a: pretrained is 'x'; it must be true or false"),
        ({"rows": [{"name": "a", "papper": {}}]}, "must have name or label"),
        ({"rows": [{"name": "a"}, {"name": "a"}]}, "has two rows a"),
        (
            {"rows": [{"label": "quoted"}]},
            "no row has a name, so nothing would be trained; give a row `name`",
        ),
        ({"baseline": "b"}, "compared with b, which is no row; give one of a"),
        (
            {"rows": [{"name": "a", "paper": {"blue": 3}}]},
            "has the paper's blue, for which there is no column",
        ),
        (
            {"columns": ["chrf"], "rows": [{"name": "a", "paper": {"chrf": 3}}]},
            "row a has a figure of the paper for column chrf, whose definition no paper has figures of",
        ),
        (
            {"columns": ["HR_distance_all"], "rows": [{"label": "b", "paper": {"HR_distance_all": "0.65"}}]},
            "row b has a figure of the paper for column HR_distance_all.* give it for HR_divergence_encoder",
        ),
        (
            {
                "columns": ["bleu", "HR_distance_all"],
                "rows": [{"name": "a", "overrides": {"mae_inference": "random"}}],
            },
            "row a has overrides, which HR_distance_all cannot",
        ),
        (
            {"rows": [{"name": "a", "percent": 0}]},
            "row a has percent 0; it must be a whole number from 1 to 100",
        ),
        (
            {"rows": [{"name": "a", "percent": "5%"}]},
            "row a: percent is '5%'; it must be a whole number from 1 to 100",
        ),
        (
            {"rows": [{"name": "a", "percent": 5, "pretrained": True}]},
            "row a has percent 5; .* and 100 for a pretrained row",
        ),
        ({"figure": "bleu"}, "figure is 'bleu'; it must be a list"),
        (
            {"figure": ["chrf"]},
            r"figure is \['chrf'\], which is no list of columns of the table; use only bleu",
        ),
        ({"titel": "t"}, "must have title"),
        ({"rows": "a"}, "must have title"),
    ],
)
def test_a_wrong_table_is_one_sentence_that_names_it(tmp_path, change, sentence):
    path = tmp_path / "table.yaml"
    path.write_text(OmegaConf.to_yaml(TABLE | change))
    with pytest.raises(UsageError, match=sentence) as error:
        read_table(path)
    assert "table.yaml" in str(error.value)


def test_rows_of_mae_take_the_checkpoints_that_appendix_a_names():
    """It stops early and averages 5 checkpoints for WMT14. For IWSLT14 it names neither."""
    for path in ROWS:
        config, table = read_config(path), path.parent.name
        if table == "mae-2":
            assert (config.averaged, config.get("checkpoint.patience")) == (5, 5)
            assert "--patience 5" in " ".join(config.train_options())
        elif table.startswith("mae"):
            assert (config.averaged, config.get("checkpoint.no_epoch_checkpoints")) == (0, True)
    assert {row.config.split("/")[-2] for row in read_table(CONFIGS / "mae-5/table.yaml").rows} == {"mae-2"}


def test_patience_may_be_given_to_all_rows(tmp_path):
    found = planned("mae-3", tmp_path, options=["--patience", "3"])
    for row in ("base", "mae-7"):
        run = found[row].measurements[0].run
        assert run.words[-2:] == ("--patience", "3") and run.settings["options"] == "--patience 3"


def test_the_perplexity_of_the_ensemble_paper_is_of_the_test_set(tmp_path):
    """Its table 1 is called "Model Perplexity on Test Set"."""
    table = read_table(CONFIGS / "ensemble-1/table.yaml")
    assert [type(each) for each in table.evaluations] == [Bleu, Perplexity]
    assert all(row.paper.keys() == {"perplexity"} for row in table.rows)
    commands = Perplexity().commands(planned("ensemble-1", tmp_path)["full"].measurements[0])
    assert len(commands) == 1 and " --valid-subset test " in commands[0]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"seeds": "1,1"}, "--seeds 1,1: seeds must be different"),
        ({"seeds": "one"}, "--seeds one: seeds must be different"),
        ({"only": ["mae-8"]}, "--only mae-8: .*table.yaml has no such row; give one of base"),
        ({"scale": "huge"}, "give one of cpu, narrow, small, smoke, paper"),
        ({"jobs": 0}, "--jobs must be at least 1, not 0"),
        ({"samples": 0}, "--samples must be at least 1, not 0"),
        ({"jobs": 2, "run": False}, "--jobs has no effect without --run"),
        ({"pretrained": "some.pt"}, "--pretrained has no effect"),
        (
            {"options": ["--max-epoch", "3"]},
            "--max-epoch cannot be given after the --, because the table sets it",
        ),
        (
            {"options": ["--fp16", "--mae-gating=uniform"]},
            "--mae-gating cannot be given after the --, .* or its rows differ in it",
        ),
    ],
)
def test_a_wrong_option_is_one_sentence(change, sentence, tmp_path):
    table = CONFIGS / "mae-3" / "table.yaml"
    args = arguments(table, tmp_path)
    assert planning.plan(read_table(table), Namespace(**args)).keys() >= {"base", "mae-7"}
    with pytest.raises(UsageError, match=sentence):
        planning.plan(read_table(table), Namespace(**args | change))
