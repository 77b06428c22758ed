"""A page on an embedded API server, for the tests of the server and of the browser."""

import asyncio
import json
from contextlib import asynccontextmanager, suppress

import aiohttp

from turnout.autoscaler.settings import Settings
from turnout.cli.page.access import LocalAccess
from turnout.cli.page.serve import serving
from turnout.cli.page.viewers import PageSettings
from turnout.kube.client.api_client import Client
from turnout.simulator.api.server.serve import serve

SECRET = "the-secret-of-the-address"
GPU = "nvidia.com/gpu"
MAP = "".join(f"leaf-{at // 2} spine n{at}\n" for at in range(4))


def node(name, gpus=8, **spec):
    return {
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec,
        "status": {"allocatable": {GPU: str(gpus), "pods": "110", "cpu": "64", "memory": "256Gi"},
                   "conditions": [{"type": "Ready", "status": "True"}]},
    }  # fmt: skip


def pod(namespace, name, node_name="", gpus=8, **meta):
    containers = [{"name": "c", "image": "i", "resources": {"limits": {GPU: gpus}}}]
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace, **meta},
        "spec": {"nodeName": node_name, "containers": containers},
        "status": {"phase": "Running" if node_name else "Pending"},
    }  # fmt: skip


async def fill(client):
    """Four nodes under two leaf switches, one of them closed; a pod of team-a runs, one of team-b waits."""
    for namespace in ("team-a", "team-b", "turnout-system"):
        await client.create(
            "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        )
    config = {
        "metadata": {"name": "node-topology-config", "namespace": "turnout-system"},
        "data": {"topology_config": MAP},
    }
    await client.create(
        "/api/v1/namespaces/turnout-system/configmaps", {"apiVersion": "v1", "kind": "ConfigMap", **config}
    )
    for at in range(4):
        await client.create("/api/v1/nodes", node(f"n{at}", unschedulable=at == 3))
    await client.create("/api/v1/namespaces/team-a/pods", pod("team-a", "bert", "n0"))
    await client.create("/api/v1/namespaces/team-b/pods", pod("team-b", "ocr"))


@asynccontextmanager
async def page(folder, access=None, filled=fill, reads_logs=False, decision_log=None, prometheus_url="", **settings):
    """Serve the page of an embedded cluster; give its address, a client of the cluster, and the source."""
    async with serve(folder / "kubeconfig"), await Client.open(str(folder / "kubeconfig")) as client:
        await filled(client)
        chosen = access or LocalAccess(SECRET)
        place = ("127.0.0.1", 0)
        chosen_settings = PageSettings(**settings)
        async with serving(
            client,
            Settings(),
            chosen,
            place,
            lambda _: chosen_settings,
            reads_logs=reads_logs,
            decision_log=decision_log,
            prometheus_url=prometheus_url,
        ) as served:
            source, port = served.source, served.port
            running = asyncio.create_task(source.run())
            try:
                while not source.has_synced:
                    assert not running.done(), running.exception()
                    await asyncio.wait([running], timeout=0.02)
                yield f"http://127.0.0.1:{port}", client, source
            finally:
                running.cancel()
                with suppress(asyncio.CancelledError):
                    await running


@asynccontextmanager
async def asking(address, token=SECRET, **headers):
    """Give a function that asks the page for a path, and returns the status and what the answer says."""
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}", **headers}) as session:

        async def ask(path, **more):
            async with session.get(f"{address}/api/v1/{path}", **more) as response:
                return response.status, await response.json() if response.status != 304 else None

        yield ask


async def next_event(response):
    """Return the data of the next event of a stream."""
    async with asyncio.timeout(20):
        while not (line := await response.content.readline()).startswith(b"data: "):
            assert line
    return json.loads(line.removeprefix(b"data: "))
