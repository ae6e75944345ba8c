"""The tests of this folder run the real commands, started by tests/preloaded."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def _commands_start_fast(fast_commands: None) -> None:
    pass
