"""Test that known warnings of fairseq's commands are silent, but not the same warnings of other code."""

import logging
import warnings

import pytest
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from modular_fairseq.patches.warnings import quiet_known_warnings
from tests.quick_composition import leave_to_hydra


@pytest.fixture
def recorded():
    with warnings.catch_warnings(record=True) as records:
        warnings.resetwarnings()
        warnings.simplefilter("always")
        yield records


def compose():
    convert_namespace_to_omegaconf(
        options.parse_args_and_arch(options.get_generation_parser(), ["data", "--path", "model.pt"])
    )


def test_composing_options_is_silent(recorded, monkeypatch):
    leave_to_hydra(monkeypatch)
    compose()
    assert len(recorded) >= 5
    recorded.clear()
    quiet_known_warnings()
    compose()
    assert [str(record.message) for record in recorded] == []


@pytest.mark.parametrize(
    ("message", "category", "module"),
    [
        (
            "'pin_memory' argument is set as true but no accelerator is found, then ...",
            UserWarning,
            "torch.utils.data.dataloader",
        ),
        (
            "`torch.cuda.amp.autocast(args...)` is deprecated. Please use ...",
            FutureWarning,
            "fairseq.tasks.fairseq_task",
        ),
        (
            "`torch.cuda.amp.GradScaler(args...)` is deprecated. Please use ...",
            FutureWarning,
            "fairseq.optim.amp_optimizer",
        ),
        (
            "CUDA is not available or torch_xla is imported. Disabling autocast.",
            UserWarning,
            "torch.cuda.amp.autocast_mode",
        ),
        (
            "torch.cuda.amp.GradScaler is enabled, but CUDA is not available.  Disabling.",
            UserWarning,
            "torch.cuda.amp.grad_scaler",
        ),
        (
            "Support for mismatched key_padding_mask and attn_mask is deprecated. Use ...",
            UserWarning,
            "torch.nn.functional",
        ),
    ],
)
def test_a_warning_is_silent_only_where_it_is_known(recorded, message, category, module):
    quiet_known_warnings()
    warnings.warn_explicit(message, category, "file.py", 1, module=module)
    assert recorded == []
    for other in [
        (message, category, "my_model"),
        (message, DeprecationWarning, module),
        ("Something else", category, module),
    ]:
        warnings.warn_explicit(*other[:2], "file.py", 1, module=other[2])
    assert len(recorded) == 3


@pytest.mark.parametrize("library", ["hydra", "matplotlib"])
def test_debug_messages_of_a_library_are_silent(recorded, library):
    logging.getLogger(library).setLevel(logging.DEBUG)
    quiet_known_warnings()
    assert logging.getLogger(library).level == logging.INFO
