"""What copies take of the memory of a worker is looked at before the first byte of it is taken."""

from __future__ import annotations

import os

import pytest

from tests.launcher.memory.test_keeper import Keeper, hello
from turnout.launcher.checkpoint.need import need_bytes
from turnout.launcher.checkpoint.wire import Need, Refused

GENERATIONS = 4


@pytest.mark.parametrize("replicas", [1, 3])
def test_own_generations_and_those_of_others_are_asked_for_together(tmp_path, replicas):
    """There is room for all of its own, and not for the copies that it will keep: the YAML tells how much that is."""
    there = os.statvfs(tmp_path)
    size = there.f_bavail * there.f_frsize // (GENERATIONS + 1)
    keeper = Keeper(tmp_path)
    try:
        refused = keeper.meet(hello(replicas=replicas)).ask(Need(size, GENERATIONS), Refused)
    finally:
        keeper.close()
    assert refused.reason == "no_memory"
    assert f"({need_bytes(size, GENERATIONS, 1, replicas)} bytes)" in refused.detail
    assert "sizeLimit" in refused.detail or "limits" in refused.detail
    assert list(tmp_path.glob("turnout-*.arena")) == []
