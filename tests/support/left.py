"""What a module of tests has left behind."""

from __future__ import annotations

import os

import pytest

from tests.launcher.agents.crew import command_of
from turnout.launcher.shell.processes.reaping import processes


@pytest.fixture(autouse=True, scope="module")
def keepers_end_with_their_module():
    """One that goes on would be counted as the next test's, and holds its memory."""
    yield
    children = [seen.pid for seen in processes() if seen.parent == os.getpid() and seen.state not in "ZX"]
    left = [command for pid in children if "turnout.launcher.shell.memory.keeper" in (command := command_of(pid))]
    assert left == [], "a Checkpointer of this process was not closed"
