"""A test that never ends, for test_interrupt.py: an agent that trains. Its name is none that pytest looks for."""

import os
import signal
from pathlib import Path

from tests.launcher.agent.crew import Crew


def test_agents_train(tmp_path, request):
    job = Crew(tmp_path / "crew", "1")
    request.addfinalizer(job.end)
    job.start("a")
    job.world(1)
    (Path(os.environ["TURNOUT_TEST_STARTED"]) / "agents").touch()
    signal.pause()
