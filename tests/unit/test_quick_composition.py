"""Test that tests/quick_composition.py composes what hydra composes."""

import pytest
from fairseq import options
from fairseq.dataclass import utils
from hydra import initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.errors import ConfigCompositionException, OverrideParseException

from tests import quick_composition

TRAINING = options.get_training_parser
COMMANDS = [
    (TRAINING, "--arch mae_transformer_tiny_cpu --optimizer adam --adam-betas (0.9,0.98) --seed 7"),
    (TRAINING, "--arch dma_transformer --criterion modular_cross_entropy --aux-warmup-updates 3 --fp16"),
    (TRAINING, "--arch transformer --tokenizer moses -s de -t en --bpe subword_nmt --bpe-codes c"),
    (TRAINING, "--arch tim_roberta --task masked_lm --criterion masked_lm --optimizer torch_adam"),
    (TRAINING, "--arch mae_transformer_lm --task language_modeling --tokens-per-sample 16 --lr 1e-3,2e-3"),
    (options.get_generation_parser, "--path a,b=c.pt --beam 4 --model-overrides {'dropout':0.1}"),
    (options.get_eval_lm_parser, "--path model.pt --context-window 3 --max-tokens 9"),
]


def composed(make_parser, words):
    """Return the configuration of a command, by hydra alone and then twice by quick_composition."""
    args = options.parse_args_and_arch(make_parser(), ["DATA", *words.split()])
    with pytest.MonkeyPatch.context() as patch:
        quick_composition.leave_to_hydra(patch)
        expected = utils.convert_namespace_to_omegaconf(args)
    return expected, *(utils.convert_namespace_to_omegaconf(args) for _ in range(2))


@pytest.mark.parametrize(("make_parser", "words"), COMMANDS)
def test_the_configuration_is_hydras(make_parser, words):
    assert utils.compose is quick_composition.compose
    expected, *found = composed(make_parser, words)
    assert found == [expected, expected] and found[0] is not found[1]
    assert repr(found[0]) == repr(expected)


def here(caller):
    return caller(1)


class Method:
    def here(self, caller):
        return caller(1)


@pytest.mark.parametrize("function", [here, Method().here], ids=["function", "method"])
def test_the_caller_is_the_one_that_hydra_finds(function):
    found = function(quick_composition.caller)
    assert found == function(quick_composition.hydras_caller) == (__file__, __name__)


def test_a_change_of_a_configuration_changes_no_other_one():
    with initialize_config_module("fairseq.config", version_base="1.1"):
        first = utils.compose("config", overrides=["common.seed=5"], strict=False)
        first.optimization.lr.append(5.0)
        found = utils.compose("config", overrides=[], strict=False)
        assert found == quick_composition.hydras_compose("config", overrides=[], strict=False)
    assert (first.common.seed, found.common.seed) == (5, 1) and 5.0 not in found.optimization.lr


def test_a_choice_that_is_registered_again_is_composed_again(monkeypatch):
    store = ConfigStore.instance()
    monkeypatch.setitem(store.repo, "scoring", dict(store.repo["scoring"]))
    for value in (1, 2):
        store.store(group="scoring", name="of_this_test", node={"one": value}, provider="fairseq")
        with initialize_config_module("fairseq.config", version_base="1.1"):
            found = utils.compose("config", overrides=["scoring=of_this_test"], strict=False)
        assert found.scoring.one == value


@pytest.mark.parametrize(
    ("override", "error", "sentence"),
    [
        ("common.seed=[", OverrideParseException, "no viable alternative"),
        ("common.seed=1,2", ConfigCompositionException, "Ambiguous value"),
        ("common.seed=text", ConfigCompositionException, "Error merging override common.seed=text"),
        ("common.no_option=1", ConfigCompositionException, "Could not override 'common.no_option'"),
    ],
)
def test_errors_are_hydras(override, error, sentence):
    said = []
    for compose in (quick_composition.hydras_compose, quick_composition.compose):
        with (
            initialize_config_module("fairseq.config", version_base="1.1"),
            pytest.raises(error, match=sentence) as raised,
        ):
            compose("config", overrides=["task=translation", override], strict=False)
        said.append(str(raised.value))
    assert said[0] == said[1]
