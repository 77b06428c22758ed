"""A folder in memory, where a sync costs nothing: what a kill leaves is the same there as on a disk."""

import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="turnout-test-", dir="/dev/shm") as path:
        yield Path(path)
