"""Checkpointers of this process, each with memory of its own and a daemon that ends with the test."""

import os
import tempfile
from pathlib import Path

import pytest

from tests.launcher.agent.crew import pids_of
from turnout.launcher.checkpoint.engine.checkpointer import Checkpointer


@pytest.fixture
def memory():
    with tempfile.TemporaryDirectory(prefix="turnout-test-", dir="/dev/shm") as path:
        yield Path(path)


@pytest.fixture
def daemons(memory):
    """Lists the daemons of this test's memory: whatever other tests have left says nothing about it."""
    return lambda: pids_of(f"--folder {memory} --run ")


@pytest.fixture
def environ(memory):
    """Give the environment of a process that no launcher has started."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TURNOUT_")}
    return kept | {"TURNOUT_MEMORY_DIR": str(memory)}


@pytest.fixture
def make(environ):
    """A checkpointer for a folder; with keywords of its own, and variables of the environment in capitals."""
    made = []

    def maker(folder, **options):
        told = {name: options.pop(name) for name in list(options) if name.isupper()}
        made.append(Checkpointer(folder, environ=environ | told, **options))
        return made[-1]

    yield maker
    for each in made:
        each.close()
