"""Crews of agents that end with the test."""

from __future__ import annotations

from itertools import count

import pytest

from hack.chaos.testbed.hosts import Hosts
from tests.launcher.agent.crew import Crew


@pytest.fixture
def crew(tmp_path, request):
    """Makes crews: crew("1:4", "--max-restarts", "2")."""
    numbers = count()

    def make(*args, **more) -> Crew:
        new_crew = Crew(tmp_path / f"crew{next(numbers)}", *args, **more)
        request.addfinalizer(new_crew.end)
        return new_crew

    return make


@pytest.fixture
def hosts(request):
    """Makes hosts, which end with the test."""

    def make(size):
        new_hosts = Hosts(size)
        request.addfinalizer(new_hosts.end)
        return new_hosts

    return make
