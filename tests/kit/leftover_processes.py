"""Check what a module of tests has left running."""

from __future__ import annotations

import os

import pytest

from tests.launcher.agent.crew import command_of
from turnout.launcher.linux import processes


@pytest.fixture(autouse=True, scope="module")
def daemons_end_with_their_module():
    """Fail a module that leaves a checkpoint daemon: the next test would count it, and it holds memory."""
    yield
    children = [process.pid for process in processes() if process.parent == os.getpid() and process.state not in "ZX"]
    left = [command for pid in children if "turnout.launcher.checkpoint.daemon" in (command := command_of(pid))]
    assert left == [], "a Checkpointer of this process was not closed"
