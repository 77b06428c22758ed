"""A gang that has lost a member and finds no room near the rest moves whole, where its owner wishes so, on real parts.

Its pods are those of the real Training Operator, which makes an evicted one anew.
"""

from __future__ import annotations

import pytest

from tests.e2e.stories import PODS, landed_where
from tests.kit import cluster
from turnout.kube import labels

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.asyncio]
JOB = f"{labels.TRAINING_JOB}%3Dtrain"
RESERVATIONS = "/api/v1/namespaces/default/configmaps?fieldSelector=metadata.name%3Dturnout-reservations"


async def test_a_required_gang_that_lost_a_host_moves_whole_where_all_of_it_fits(stage):
    await stage.build(leaves=2, hosts_per_leaf=4)
    stage.start_extender()
    stage.start_scheduler()
    stage.plane.start_training_operator()
    stage.start_nominator("nominator", "--repair")
    notes = {labels.TOPOLOGY: "required", labels.REPAIR: "move/10"}
    await stage.submit(cluster.pytorch_job("train", 4, notes=notes))
    node_by_pod = await landed_where(stage, JOB, 4)
    (first,) = set(stage.leaves(node_by_pod))
    lost, node = min(node_by_pod.items())
    async with stage.plane.api() as api:
        before = {pod["metadata"]["uid"] for pod in await api.pods(selector=JOB.replace("%3D", "="))}
        await api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
        await api.delete(f"{PODS}/{lost}")
        new_node_by_pod = await api.until(f"{PODS}?labelSelector={JOB}", lambda pods: moved(pods, before))
    (leaf,) = set(stage.leaves(new_node_by_pod))
    assert leaf != first
    pods_of_events = {event["involvedObject"]["name"] for event in await stage.events("GangMoved")}
    assert pods_of_events == node_by_pod.keys() - {lost}


async def test_a_younger_gang_does_not_take_the_place_to_which_a_gang_moves(stage):
    """The evicted pods stay until the test lets them go, as pods with a long grace period do."""
    await stage.build(leaves=2, hosts_per_leaf=4)
    stage.start_extender()
    stage.start_scheduler()
    stage.plane.start_training_operator()
    stage.start_nominator("nominator", "--repair")
    job = cluster.pytorch_job("train", 4, notes={labels.TOPOLOGY: "required", labels.REPAIR: "move/10"})
    for role in job["spec"]["pytorchReplicaSpecs"].values():
        role["template"].setdefault("metadata", {})["finalizers"] = ["turnout.dev/grace"]
    await stage.submit(job)
    node_by_pod = await landed_where(stage, JOB, 4)
    (first,) = set(stage.leaves(node_by_pod))
    lost, node = min(node_by_pod.items())
    async with stage.plane.api() as api:
        before = {pod["metadata"]["uid"] for pod in await api.pods(selector=JOB.replace("%3D", "="))}
        await api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
        await api.delete(f"{PODS}/{lost}")
        await let_go(api, [lost])
        await api.until(f"{PODS}?labelSelector={JOB}", lambda pods: leaving(pods) == node_by_pod.keys() - {lost})
        await stage.submit(*cluster.koordinator_gang("young", 2, notes={labels.TOPOLOGY: "required"}))
        await api.until("/api/v1/namespaces/default/events", names_the_reservation)
        await let_go(api, node_by_pod.keys() - {lost})
        new_node_by_pod = await api.until(f"{PODS}?labelSelector={JOB}", lambda pods: moved(pods, before))
        assert set(stage.leaves(new_node_by_pod)).isdisjoint({first})
        young = await stage.landed("young", 2)
        assert set(stage.leaves(young)) == {first}
        await api.until(RESERVATIONS, lambda found: not found[0].get("data"))


def leaving(pods):
    """The names of the pods that terminate."""
    return {pod["metadata"]["name"] for pod in pods if pod["metadata"].get("deletionTimestamp")}


def names_the_reservation(events):
    """Whether an Event tells a pod of the younger gang for whom the hosts are reserved."""
    about = [each["message"] for each in events if each["involvedObject"]["name"].startswith("young")]
    return any("4 hosts are reserved for default/PyTorchJob/train until" in message for message in about)


async def let_go(api, names):
    """Take the finalizers off some pods."""
    for name in names:
        await api.patch(f"{PODS}/{name}", {"metadata": {"finalizers": None}})


def moved(pods, before):
    """{pod: node} once four pods have a node, and none of them was there before."""
    bound = [pod for pod in pods if pod["spec"].get("nodeName") and pod["metadata"]["uid"] not in before]
    return {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in bound} if len(bound) == 4 else None
