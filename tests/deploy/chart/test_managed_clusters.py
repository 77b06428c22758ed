"""The five commands of docs/managed-clusters.md, typed as they stand on nodes that are labelled as each provider's."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress

import pytest
import pytest_asyncio

from hack.chaos.chart.world import cluster
from hack.controlplane.api import MERGE
from hack.controlplane.tools import cache
from hack.controlplane.tools.parts import NEXT
from hack.lint.code_blocks import run_by
from tests.deploy.chart.test_readme import HELM, ROOT, typed
from tests.kit.listener import serving
from turnout.kube import labels
from turnout.simulator.cluster.node_builder import nodes_of_map
from turnout.topology.map_formats import read_text

pytestmark = [pytest.mark.real, pytest.mark.asyncio, pytest.mark.root]

FABRIC = "".join(f"leaf-{at // 4} spine-0 10.0.{at // 4}.{at % 4 + 1}\n" for at in range(8))
SLOW = pytest.mark.slow
LABELS = {
    "EKS": ("topology.k8s.aws/network-node-layer-3", "topology.k8s.aws/network-node-layer-2"),
    "GKE": ("cloud.google.com/gce-topology-subblock", "cloud.google.com/gce-topology-block"),
    "AKS": ("fabric.topograph.run/tier-0", "fabric.topograph.run/tier-1"),
}
GANG = "/api/v1/namespaces/default/pods?labelSelector=job-name%3Dbert"


def block(mark):
    """Give the code block after a mark of the page."""
    shown = run_by("tests/deploy/chart/test_managed_clusters.py::test_five_commands_lead_to_a_gang_under_one_leaf")
    (found,) = [each.text for each in shown if mark in each.comments]
    return found


@pytest_asyncio.fixture
async def world(control_plane, tmp_path, monkeypatch):
    """A machine with helm and kubectl on its path, in a clone, beside a cluster whose scheduler is the default one."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "helm").write_text(HELM.format(helm=cache.binary("helm")))
    (programs / "helm").chmod(0o755)
    for name in ("deploy", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    kubernetes = cache.binary("kubectl").parent
    monkeypatch.setenv("PATH", os.pathsep.join([str(programs), str(kubernetes), os.environ["PATH"]]))
    async with cluster(control_plane, tmp_path, nodes_of_map(read_text(FABRIC).entries)) as installed:
        yield installed


async def proxy(world):
    """Serve at the Service of the webhook, as kube-proxy would: each connection goes to one of its pods."""

    async def is_reachable():
        found = (await world.get("/api/v1/services?fieldSelector=metadata.name%3Dturnout-nominator"))["items"]
        return [each["spec"]["clusterIP"] for each in found]

    async def pipe(reader, writer):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def forward(reader, writer):
        pods = (await world.get("/api/v1/namespaces/turnout-system/pods"))["items"]
        ready = [each["status"]["podIP"] for each in pods if "nominator" in each["metadata"]["name"]]
        if not ready:
            return
        far_reader, far_writer = await asyncio.open_connection(ready[0], 9444)
        try:
            with suppress(ConnectionError):
                await asyncio.gather(pipe(reader, far_writer), pipe(far_reader, writer))
        finally:
            far_writer.close()

    (address,) = await world.until(is_reachable, within_s=100)
    async with serving(forward, address, 9444):
        await asyncio.Event().wait()


# A managed API server: as it is, without flags. 1.35 serves no policy for it, so the nominator is asked; 1.37 does.
@pytest.mark.parametrize(
    ("control_plane", "provider"),
    [
        pytest.param({}, "EKS", id="EKS"),
        *(pytest.param({}, provider, id=provider, marks=SLOW) for provider in LABELS if provider != "EKS"),
        pytest.param({"release": NEXT}, "EKS", id="1.37", marks=SLOW),
    ],
    indirect=["control_plane"],
)
async def test_five_commands_lead_to_a_gang_under_one_leaf(world, tmp_path, provider):
    proxying = asyncio.create_task(proxy(world))
    try:
        await lead_to_a_gang_under_one_leaf(world, tmp_path, provider)
    finally:
        proxying.cancel()
        await asyncio.wait([proxying])


async def lead_to_a_gang_under_one_leaf(world, tmp_path, provider):
    leaf_of = {place.name: place.path for place in nodes_of_map(read_text(FABRIC).entries)}
    for name, path in leaf_of.items():
        marks = dict(zip(LABELS[provider], reversed(path), strict=True))
        await world.api.call("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"labels": marks}}, MERGE)
    await typed(world, tmp_path, block(provider))
    assert len((tmp_path / "topology.txt").read_text().splitlines()) == 8
    await typed(world, tmp_path, block("everywhere"))
    pods = (await world.get(GANG))["items"]
    assert len(pods) == 4
    assert len({leaf_of[pod["spec"]["nodeName"]] for pod in pods}) == 1
    managers = {entry["manager"] for pod in pods for entry in pod["metadata"]["managedFields"]}
    assert labels.FIELD_MANAGER_NOMINATOR in managers  # it came by the gate, not by chance
