"""A gang of Kubernetes' own that is constrained by a node label's key, placed by its scheduler and by us alike."""

from __future__ import annotations

import asyncio

import pytest

from hack.controlplane.tools.parts import NEXT
from tests.e2e.stories import bound_now, fill
from tests.kit import cluster

GATES = "--feature-gates=GenericWorkload=true,TopologyAwareWorkloadScheduling=true"
SERVED = ("--runtime-config=scheduling.k8s.io/v1beta1=true", GATES)
RACK = "cloud.provider.com/topology-rack"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.real,
    pytest.mark.asyncio,
    pytest.mark.parametrize(
        "control_plane", [{"release": NEXT, "apiserver_flags": SERVED}], indirect=True, ids=["1.37"]
    ),
]


async def test_a_native_gang_waits_for_a_rack_that_holds_it_and_lands_there(stage):
    await stage.build(leaves=2, hosts_per_leaf=4)
    await fill(stage, 3)
    async with stage.plane.api() as api:
        racks = {node: stage.leaf[ip] for node, ip in stage.ip_of.items()}
        for node, rack in racks.items():
            await api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {RACK: rack}}})
        stage.start_extender()
        stage.start_scheduler(flags=(GATES,))
        group = cluster.pod_group("native", "bert", 4)
        group["spec"]["schedulingConstraints"] = {"topology": [{"key": RACK}]}
        (raw_group,) = await stage.submit(group)
        assert raw_group["spec"]["schedulingConstraints"]["topology"] == [{"key": RACK}]  # not dropped
        await stage.submit(*cluster.native_gang("bert", 4))
        await asyncio.sleep(3)
        assert await bound_now(stage, "bert") == {}
        stranger = min(pod["metadata"]["name"] for pod in await api.pods() if "stranger" in pod["metadata"]["name"])
        await api.delete(f"/api/v1/namespaces/default/pods/{stranger}")
    node_by_pod = await stage.landed("bert", 4)
    assert {racks[node] for node in node_by_pod.values()} == {racks[stranger.removeprefix("stranger-")]}
