"""Idle connections at the plain port of each service: its probes answer beside them, and its watches go on."""

import asyncio
import resource
import sys
from contextlib import asynccontextmanager

import pytest

from hack.controlplane.children import Children
from hack.controlplane.plane import free_ports
from tests.deploy.test_pages import SERVICES, get
from tests.kit.listener import Listener
from tests.kit.wait import until_async
from tests.kube.world import kubeconfig

IDLE = 1_100
FILES = 512  # that the service may open: fewer than there are strangers


class Api:
    """An API server that serves nothing, and counts who comes."""

    def __init__(self):
        self.came = 0

    async def answer(self, reader, writer):
        """Refuse one call, and end its connection."""
        self.came += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


@asynccontextmanager
async def idle_connections(port, count):
    """So many connections that say nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4 * IDLE)), hard))
    writers = []
    try:
        for _ in range(count):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writers.append(writer)
        yield
    finally:
        for writer in writers:
            writer.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.asyncio
@pytest.mark.parametrize("name", SERVICES)
async def test_a_service_answers_its_probes_and_goes_on_beside_idle_strangers(name, tmp_path):
    api, port, children = Api(), free_ports(1)[0], Children(tmp_path)
    module, flags = SERVICES[name]
    listener = Listener(api.answer)
    config = kubeconfig(tmp_path, f"http://127.0.0.1:{await listener.open()}")
    common = ["--kubeconfig", str(config), "--metrics-bind", f"127.0.0.1:{port}"]
    limited = ["prlimit", f"--nofile={FILES}:{FILES}"]

    async def alive():
        return (await asyncio.to_thread(get, port, "/healthz"))[0] == 200

    try:
        children.start(name, [*limited, sys.executable, "-m", module, *common, *flags])
        await until_async(alive, f"{name} is alive: {children.log(name)[-1000:]}")
        async with idle_connections(port, IDLE):
            before = api.came
            for _ in range(5):
                assert await alive()

            async def asks():
                return api.came > before + 2

            await until_async(asks, f"{name} asks the API server")
        assert "Too many open files" not in children.log(name)
    finally:
        children.close()
        await listener.close()
