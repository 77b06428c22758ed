"""A process that saves and loads alone; what it has in memory ends with the test."""

import pytest

from tests.launcher.checkpoint.dcp.alone import Alone
from turnout.launcher.checkpoint.dcp.reader import memories


@pytest.fixture
def single_process(tmp_path, environ):
    yield Alone(tmp_path / "checkpoints", environ)
    memories.close()
