"""Checks that each test of the launcher leaves nothing behind that the next one could take for its own."""

import ctypes

import pytest

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
