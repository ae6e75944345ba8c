"""`--device` puts new tensors on another device. The device meta of torch stands for a GPU here."""

import pytest
import torch

from tests.devices import OnDevice

pytestmark = pytest.mark.cpu_only("these tests choose the device themselves")


def test_new_tensors_are_on_the_device_unless_the_call_names_one():
    with OnDevice("meta"):
        assert torch.zeros(2).is_meta and torch.tensor([1]).is_meta and torch.nn.Linear(2, 3).weight.is_meta
        assert torch.zeros(2, device="cpu").device.type == "cpu"
    assert torch.zeros(2).device.type == "cpu"


def test_a_generator_of_the_cpu_draws_for_the_device():
    generator = torch.Generator().manual_seed(0)
    with OnDevice("meta"):
        assert torch.randn(2, generator=generator).is_meta
    twice = torch.Generator().manual_seed(0)
    torch.randn(2, generator=twice)
    assert torch.equal(generator.get_state(), twice.get_state())


def test_numpy_copies_from_the_device():
    """The device meta has no numbers to copy, so the copy is what fails, not numpy."""
    with OnDevice("meta"), pytest.raises(NotImplementedError, match="copy out of meta tensor"):
        torch.ones(2).numpy()
