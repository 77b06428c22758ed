"""A gang that has lost a member and finds no room near the rest moves whole, where its owner wishes so, on real parts.

Its pods are those of the real Training Operator, which makes an evicted one anew.
"""

from __future__ import annotations

import pytest

from tests import cluster
from tests.e2e.stories import PODS, landed_where
from turnout.kube import labels

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.asyncio]
JOB = f"{labels.TRAINING_JOB}%3Dtrain"


async def test_a_required_gang_that_lost_a_host_moves_whole_where_all_of_it_fits(stage):
    await stage.build(leaves=2, hosts_per_leaf=4)
    stage.start_extender()
    stage.start_scheduler()
    stage.plane.start_training_operator()
    stage.start_nominator("nominator", "--repair")
    notes = {labels.TOPOLOGY: "required", labels.REPAIR: "move/10"}
    await stage.submit(cluster.pytorch_job("train", 4, notes=notes))
    placed = await landed_where(stage, JOB, 4)
    (first,) = set(stage.leaves(placed))
    lost, node = min(placed.items())
    async with stage.plane.api() as api:
        before = {pod["metadata"]["uid"] for pod in await api.pods(selector=JOB.replace("%3D", "="))}
        await api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
        await api.delete(f"{PODS}/{lost}")
        again = await api.until(f"{PODS}?labelSelector={JOB}", lambda pods: moved(pods, before))
    (leaf,) = set(stage.leaves(again))
    assert leaf != first
    told = {event["involvedObject"]["name"] for event in await stage.events("GangMoved")}
    assert told == placed.keys() - {lost}


def moved(pods, before):
    """{pod: node} once four pods have a node, and none of them was there before."""
    bound = [pod for pod in pods if pod["spec"].get("nodeName") and pod["metadata"]["uid"] not in before]
    return {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in bound} if len(bound) == 4 else None
