"""Fixtures that any test may ask for. What they start ends with the test, also when the test is killed."""

from __future__ import annotations

import pytest
from hypothesis import settings

from hack.controlplane.errors import NotBuilt
from hack.controlplane.plane import ControlPlane

# The files beside a test may hold the machine for a while: no example has to end in 200 ms, hypothesis' own limit.
settings.register_profile("side by side", settings.default, deadline=None)
settings.load_profile("side by side")


def pytest_collection_modifyitems(items):
    """Put the stories on real control planes first: they wait the longest, and side by side others fill the gaps."""
    items.sort(key=lambda item: item.get_closest_marker("real") is None)


def _start(request, **settings):
    """Start a control plane, or fail with the command that builds it: a missing binary is no reason to skip."""
    try:
        plane = ControlPlane(**settings).start()
    except NotBuilt as error:
        pytest.fail(str(error), pytrace=False)
    request.addfinalizer(plane.stop)
    return plane


@pytest.fixture
def control_plane(request):
    """A fresh control plane (etcd and API server) for one test; the rest is started by its methods.

    Settings for ControlPlane may be given by @pytest.mark.parametrize("control_plane", [{...}], indirect=True).
    """
    return _start(request, **getattr(request, "param", {}))


@pytest.fixture(scope="module")
def module_plane(request):
    """One control plane for a whole module, whose tests do not disturb one another."""
    return _start(request)


@pytest.fixture(scope="session")
def make_control_plane(request):
    """Start further control planes, with settings of their own; they end with the session or by stop()."""
    return lambda **settings: _start(request, **settings)
