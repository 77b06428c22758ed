"""What every test of the launcher leaves behind: nothing that the next one could take for its own."""

import ctypes
import os

import pytest

from launcher.shell.processes.reaping import processes
from tests.launcher.agents.crew import command_of

_SET_CHILD_SUBREAPER = 36  # prctl(2)


@pytest.fixture(autouse=True, scope="module")
def _orphans_are_adopted_in_this_module_alone(idle_planes):
    """An agent's hands in this process adopt orphans. Those of later tests would lie here, ended, and nobody reaps.

    They end every child of this process that has a session of its own: a control plane that nobody uses ends before.
    """
    while idle_planes:
        idle_planes.pop().stop()
    yield
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.fixture(autouse=True, scope="module")
def _keepers_end_with_their_module(_orphans_are_adopted_in_this_module_alone):
    """One that goes on would be taken for the next test's, and holds its memory."""
    yield
    left = [seen.pid for seen in processes() if seen.parent == os.getpid() and seen.state not in "ZX"]
    assert [command for pid in left if "launcher.shell.memory.keeper" in (command := command_of(pid))] == []
