"""Gangs below one CompositePodGroup, on the API server and the scheduler of 1.37 with all their gates."""

from __future__ import annotations

import pytest

from hack.controlplane.tools.parts import NEXT
from tests.e2e.stories import bound_now, fill, refused
from tests.kit import cluster

GATES = "--feature-gates=GenericWorkload=true,TopologyAwareWorkloadScheduling=true,CompositePodGroup=true"
VERSIONS = "--runtime-config=scheduling.k8s.io/v1beta1=true,scheduling.k8s.io/v1alpha3=true"
RACK = "cloud.provider.com/topology-rack"

pytestmark = [
    pytest.mark.real,
    pytest.mark.asyncio,
    pytest.mark.parametrize(
        "control_plane", [{"release": NEXT, "apiserver_flags": (VERSIONS, GATES)}], indirect=True, ids=["1.37"]
    ),
]


def of_workload(template):
    return {"workloadRef": {"workloadName": "serve", "templateName": template}}


def tree():
    """Two gangs that share one rack, and start together."""
    spec = {
        "schedulingPolicy": {"gang": {"minGroupCount": 2}},
        "schedulingConstraints": {"topology": [{"key": RACK}]},
        **of_workload("root"),
    }
    meta = {"name": "serve", "namespace": "default"}
    yield {"apiVersion": "scheduling.k8s.io/v1alpha3", "kind": "CompositePodGroup", "metadata": meta, "spec": spec}
    for name, size in (("prefill", 1), ("decode", 2)):
        group = cluster.pod_group("native", name, size)
        group["spec"] |= {"parentCompositePodGroupName": "serve", **of_workload(name)}
        yield group


async def test_gangs_of_one_tree_wait_for_a_rack_that_holds_them_all(stage):
    await stage.build(leaves=2, hosts_per_leaf=4)
    await fill(stage, 2)  # a rack holds two of the three pods
    async with stage.plane.api() as api:
        racks = {node: stage.leaf[ip] for node, ip in stage.ip_of.items()}
        for node, rack in racks.items():
            await api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {RACK: rack}}})
        stage.start_extender()
        stage.start_scheduler(flags=(GATES,))
        for each in tree():
            (raw_group,) = await stage.submit(each)
        assert raw_group["spec"]["parentCompositePodGroupName"] == "serve"  # not dropped
        await stage.submit(*cluster.native_gang("prefill", 1), *cluster.native_gang("decode", 2))
        await refused(stage, "decode", 2)
        assert await bound_now(stage, "prefill") == {}
        stranger = min(pod["metadata"]["name"] for pod in await api.pods() if "stranger" in pod["metadata"]["name"])
        await api.delete(f"/api/v1/namespaces/default/pods/{stranger}")
    node_by_pod = {**await stage.landed("prefill", 1), **await stage.landed("decode", 2)}
    assert {racks[node] for node in node_by_pod.values()} == {racks[stranger.removeprefix("stranger-")]}
