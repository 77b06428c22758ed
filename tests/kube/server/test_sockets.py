"""How many connections a process bears: as many as it was told, and no more than it has files for."""

import resource

import pytest

from turnout.kube.server.http_connection import ConnectionLimits
from turnout.kube.server.sockets import OTHER_FILES, allow_files, limit_connections


@pytest.fixture
def few_files():
    """A process that may open few files and could open more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_process_takes_as_many_files_as_it_may(few_files):
    allowed = allow_files()
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == allowed
    assert allowed > 512 or few_files == 512


@pytest.mark.parametrize(("files", "connections"), [
    pytest.param(65_536, 1024, id="as many as it was told"),
    pytest.param(1024 + OTHER_FILES, 1024, id="just as many as there are files for"),
    pytest.param(1024, 1024 - OTHER_FILES, id="no more than there are files for"),
    pytest.param(100, 1, id="one at least"),
])  # fmt: skip
def test_connections_stay_within_the_files_of_the_process(files, connections):
    assert limit_connections(ConnectionLimits(), files).max_connections == connections
