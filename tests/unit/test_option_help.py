"""Test that the help text of each option names the default that the option has."""

import re
from dataclasses import fields

import pytest
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterionConfig

import modular_fairseq  # noqa: F401
from modular_fairseq.models.dma_losses import DEFAULT_WEIGHTS
from modular_fairseq.models.mae_options import DEFAULT_INTERVAL
from modular_fairseq.models.options import FAMILIES, CommonOptions, LossOptions, flag
from modular_fairseq.models.registry import MECHANISMS

FAIRSEQS = LabelSmoothedCrossEntropyCriterionConfig.__dataclass_fields__
OPTIONS = [
    f
    for options in [
        CommonOptions,
        LossOptions,
        *(mechanism.options for mechanism in MECHANISMS.values()),
        *(mechanism.losses.options for mechanism in MECHANISMS.values() if mechanism.losses),
    ]
    for f in fields(options)
    if f.name != "_name" and f.name not in FAIRSEQS
]
# What mechanisms choose where the option is None.
CHOSEN = {"mae_gate_interval": DEFAULT_INTERVAL} | {
    f"{name}_weight": weight for name, weight in DEFAULT_WEIGHTS.items()
}


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_names_of_parts_of_fairseqs_configuration_are_no_options(family):
    assert [f.name for f in fields(family) if f.name.endswith("_name")] in ([], ["_name"])


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: flag(option.name))
def test_the_help_of_an_option_names_its_default(option):
    text = option.metadata["help"]
    assert "%" not in text  # argparse would take it for a format
    if isinstance(option.default, bool):
        assert option.default is False and "default" not in text
        return
    named = re.search(r"\(default: ([^ ;)]+)[^)]*\)$", text).group(1)
    default = CHOSEN.get(option.name, option.default)
    assert option.default in (None, default)
    if isinstance(default, str):
        assert named == default
    else:
        assert float(named) == default
