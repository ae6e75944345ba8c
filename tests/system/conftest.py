"""The tests of this folder run what takes long: kills, several workers, the set-up, the demo, the browser."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def _commands_start_fast(fast_commands: None) -> None:
    pass
