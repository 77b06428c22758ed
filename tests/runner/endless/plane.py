"""A test that never ends, for test_interrupt.py: a control plane with programs. Its name keeps it out of the suite."""

import os
import signal
from pathlib import Path

import pytest

from hack.controlplane.nodes import gpu_nodes


@pytest.mark.asyncio
async def test_a_control_plane_is_at_work(control_plane):
    async with control_plane.api() as api:
        await api.create_all(gpu_nodes(2))
    control_plane.start_kwok()
    control_plane.start_scheduler()
    (Path(os.environ["TURNOUT_TEST_STARTED"]) / "plane").touch()
    signal.pause()
