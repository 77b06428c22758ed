"""Fixtures for tests of what touches a GPU. They need neither a control plane nor the fixtures of other tests."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from turnout.launcher.checkpoint.engine.checkpointer import Checkpointer


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return request.param


@pytest.fixture
def memory():
    with tempfile.TemporaryDirectory(prefix="turnout-test-", dir="/dev/shm") as path:
        yield Path(path)


@pytest.fixture
def make(memory):
    """Make checkpointers of this process, which no launcher has started. They are closed with the test."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TURNOUT_")}
    checkpointers = []

    def maker(folder, **options):
        checkpointers.append(Checkpointer(folder, environ=environ | {"TURNOUT_MEMORY_DIR": str(memory)}, **options))
        return checkpointers[-1]

    yield maker
    for each in checkpointers:
        each.close()
