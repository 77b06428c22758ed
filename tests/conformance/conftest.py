"""The embedded and the real API server, for every story."""

from __future__ import annotations

import ssl
import uuid

import pytest
import pytest_asyncio

from tests.conformance.sides import Both, opened
from turnout.simulator.api.server.serve import serve

CONTROLLERS = (
    "garbage-collector-controller",
    "namespace-controller",
)  # what an API server leaves to others and the embedded one does


@pytest.fixture(scope="module")
def real_server(module_plane):
    """A real API server with its garbage collector, for a module: each story has its own namespace."""
    module_plane.start_controller_manager(CONTROLLERS)
    return module_plane


@pytest_asyncio.fixture
async def both(real_server):
    """The embedded API and the real one."""
    namespace = f"c-{uuid.uuid4().hex[:8]}"
    api = real_server.api()
    trust = ssl.create_default_context(cafile=str(api._ca))
    async with (
        serve() as served,
        opened(served.url, namespace) as embedded,
        opened(api.url, namespace, trust=trust, headers=api._headers) as real,
    ):
        yield Both(embedded, real)
