"""Crews of agents that end with the test."""

from __future__ import annotations

import pytest

from tests.launcher.agent.crew import Crew


@pytest.fixture
def crew(tmp_path, request):
    """Makes crews: crew("1:4", "--max-restarts", "2")."""

    def make(*args, **more) -> Crew:
        new_crew = Crew(tmp_path / "crew", *args, **more)
        request.addfinalizer(new_crew.end)
        return new_crew

    return make
