"""Crews of agents that end with the test."""

from __future__ import annotations

import pytest

from tests.launcher.agent.crew import Crew


@pytest.fixture
def crew(tmp_path, request):
    """Makes crews: crew("1:4", "--max-restarts", "2")."""

    def make(*args, **more) -> Crew:
        made = Crew(tmp_path / "crew", *args, **more)
        request.addfinalizer(made.end)
        return made

    return make
