"""Control planes for tests: one a worker, lent from test to test, and fresh ones for those that break theirs.

A plane that is given back is brought to how it began. One that has died fails the test that had it, with the end of
its log; the next test gets another.
"""

from __future__ import annotations

import pytest

from hack.controlplane.errors import ControlPlaneError, NotBuilt
from hack.controlplane.plane import ControlPlane


def _start(request, **settings):
    """Start a control plane, or fail with the command that builds it: a missing binary is no reason to skip."""
    try:
        plane = ControlPlane(fork=True, **settings).start()
    except NotBuilt as error:
        pytest.fail(str(error), pytrace=False)
    request.addfinalizer(plane.stop)
    return plane


@pytest.fixture(scope="session")
def idle_planes():
    """Control planes that nobody uses now. What is left ends with the session."""
    planes = []
    yield planes
    for plane in planes:
        plane.stop()


def borrow(request, idle):
    """Give a plane that is as if it were fresh: an idle one, else a new one. It is given back if it still lives."""
    plane = idle.pop() if idle else None
    try:
        plane = plane or ControlPlane(fork=True).start()
    except NotBuilt as error:
        pytest.fail(str(error), pytrace=False)
    yield plane
    try:
        fresh_plane = plane.reset()
    except ControlPlaneError as error:  # it has died: the end of its log is in the message
        plane.stop()
        pytest.fail(str(error), pytrace=False)
    except BaseException:
        plane.stop()
        raise
    if fresh_plane:
        idle.append(plane)
    else:
        plane.stop()


@pytest.fixture
def control_plane(request, idle_planes):
    """A control plane (etcd and API server) without any object, for one test; the rest is started by its methods.

    Settings for ControlPlane may be given by @pytest.mark.parametrize("control_plane", [{...}], indirect=True); such
    a one, and that of a test with the mark `fresh_plane`, is started for this test alone; {} are no settings.
    """
    if (settings := getattr(request, "param", {})) or request.node.get_closest_marker("fresh_plane"):
        yield _start(request, **settings)
    else:
        yield from borrow(request, idle_planes)


@pytest.fixture(scope="module")
def module_plane(request, idle_planes):
    """One control plane for a whole module, whose tests do not disturb one another."""
    yield from borrow(request, idle_planes)


@pytest.fixture(scope="session")
def make_control_plane(request):
    """Start further control planes, with settings of their own; they end with the session or by stop()."""
    return lambda **settings: _start(request, **settings)
