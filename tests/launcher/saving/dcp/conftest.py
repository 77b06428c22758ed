"""A process that saves and loads alone; what it has in memory ends with the test."""

import pytest

from launcher.shell.saving.dcp_reading import memories
from tests.launcher.saving.dcp.alone import Alone


@pytest.fixture
def alone(tmp_path, environ):
    yield Alone(tmp_path / "checkpoints", environ)
    memories.close()
