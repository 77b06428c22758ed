"""The memory for copies is checked before the first byte of it is taken."""

from __future__ import annotations

import os

import pytest

from tests.launcher.checkpoint.daemon.test_daemon import DaemonProcess, hello
from turnout.launcher.checkpoint.format.daemon_messages import RequestRefused, ReserveMemory
from turnout.launcher.checkpoint.format.memory_budget import need_bytes

GENERATIONS = 4


@pytest.mark.parametrize("replicas", [1, 3])
def test_own_generations_and_those_of_others_are_asked_for_together(tmp_path, replicas):
    """There is room for all of its own, and not for the copies that it will keep: the YAML tells how much that is."""
    file_system = os.statvfs(tmp_path)
    size = file_system.f_bavail * file_system.f_frsize // (GENERATIONS + 1)
    daemon = DaemonProcess(tmp_path)
    try:
        refused = daemon.meet(hello(replicas=replicas)).ask(ReserveMemory(size, GENERATIONS), RequestRefused)
    finally:
        daemon.close()
    assert refused.reason == "no_memory"
    assert f"({need_bytes(size, GENERATIONS, 1, replicas)} bytes)" in refused.detail
    assert "sizeLimit" in refused.detail or "limits" in refused.detail
    assert list(tmp_path.glob("turnout-*.arena")) == []
