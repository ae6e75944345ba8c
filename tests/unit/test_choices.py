"""Test that the rows of the tables name every option of their mechanisms, each with its reason."""

import re

import pytest

from modular_fairseq.models.registry import MECHANISMS
from modular_fairseq.runs.config import read_config
from tests.places import ROOT
from tests.row_options import active_mechanisms, effective_options, options_of

CONFIGS = ROOT / "configs"
ROWS = sorted(
    path for path in CONFIGS.glob("*/*.yaml") if path.name != "table.yaml" and path.parent.name != "scales"
)
OPTIONS = {(group, field.name) for each in MECHANISMS.values() for group, field in options_of(each)}


def row(path):
    return f"{path.parent.name}/{path.stem}"


def named(config):
    """Return the options of mechanisms that a row names, as (group, name)."""
    return OPTIONS & {(group, name) for group, values in config.values.items() for name in values}


@pytest.mark.parametrize("path", ROWS, ids=row)
def test_a_row_names_every_option_of_its_mechanisms_that_has_an_effect(path):
    config = read_config(path)
    assert sorted(named(config)) == sorted(effective_options(config))


@pytest.mark.parametrize("path", ROWS, ids=row)
def test_a_row_says_why_it_has_each_value(path):
    text = path.read_text()
    for _, name in named(read_config(path)):
        (line,) = re.findall(rf"^  {name}: .*$", text, re.MULTILINE)
        assert re.search(r"  # \S.{10,}", line), line


@pytest.mark.parametrize("path", ROWS, ids=row)
def test_a_row_keeps_the_width_of_the_code(path):
    assert max(map(len, path.read_text().splitlines())) <= 110


def test_the_manual_explains_every_option_of_every_mechanism():
    assert len(OPTIONS) > 30
    assert named(read_config(CONFIGS / "manual.yaml")) == OPTIONS


def config_with(**model):
    config = read_config(CONFIGS / "dma-1/dma-small.yaml")
    sizes = {key: value for key, value in config.values["model"].items() if not key.startswith("dma_")}
    return config._replace(values=config.values | {"model": sizes | model})


def test_options_without_effect_are_found_by_the_checks():
    def effective(**model):
        return {name for _, name in effective_options(config_with(**model))}

    learned = effective(attention_type="mae")
    assert {"mae_gating", "mae_training", "mae_gate_lr", "mae_finetune", "mae_inference"} <= learned
    assert not {"mae_gate_window", "mae_inference_seed", "dma_clusters", "kl_weight"} & learned
    assert "mae_gate_window" in effective(attention_type="mae", mae_gate_context="window")
    assert "mae_inference_seed" in effective(attention_type="mae", mae_inference="random")
    uniform = effective(attention_type="mae", mae_gating="uniform")
    assert uniform == {"mae_dropped_heads", "mae_gating", "mae_inference"}
    joint = effective(attention_type="mae", mae_training="joint")
    assert learned - joint == {"mae_gate_interval", "mae_finetune"}
    joint_main = effective(attention_type="mae", mae_training="joint_main")
    assert joint - joint_main == {"mae_gate_lr", "mae_gate_loss"}
    gates = effective(attention_type="mae", mae_finetune="gates")
    assert {"mae_gating", "mae_training"} <= gates and "mae_gate_interval" not in gates
    assert effective(attention_type="plain") == set()
    assert effective(attention_type="plain", no_residual=True) == {"no_residual"}
    assert effective(attention_type="plain", stream_skip=True) == {"streams", "stream_skip"}
    assert effective(attention_type="plain", streams=2) == {"streams", "stream_skip", "stream_batched"}
    both = effective(attention_type="mae+dma")
    assert learned | {"dma_posterior", "qq_floor", "xq_critic", "aux_warmup_updates"} <= both


def test_options_of_losses_without_weight_have_no_effect():
    config = read_config(CONFIGS / "dma-1/dma-small.yaml")
    losses = config.values["criterion"] | {"qq_weight": 0.0}
    for name in ("qq_densities", "qq_pairs", "qq_interval", "qq_floor"):
        losses.pop(name, None)
    found = {
        name for _, name in effective_options(config._replace(values=config.values | {"criterion": losses}))
    }
    assert {"qq_weight", "xq_critic"} <= found
    assert not {"qq_densities", "qq_pairs", "qq_interval", "qq_floor"} & found


def test_mechanisms_of_rows_are_those_of_the_papers():
    kinds = {row(path): {each.name for each in active_mechanisms(read_config(path))} for path in ROWS}
    assert kinds["mae-3/base"] == kinds["dma-1/transformer"] == kinds["ensemble-1/full"] == set()
    assert kinds["mae-7/ftg"] == {"mae"} and kinds["dma-3/dma"] == {"dma"}
    assert kinds["multistream-1/transformer-4-skip"] == kinds["multistream-1/2x1"] == {"stream"}
    assert kinds["ensemble-1/baseline"] == {"no_residual"}
