"""A gang that has lost a member and finds no room near the rest moves whole, where its owner wishes so, on real parts.

Its pods are those of the real controller manager, which makes an evicted one anew.
"""

from __future__ import annotations

import pytest

from tests import cluster
from tests.e2e.stories import PODS, landed_where
from turnout.kube import labels

pytestmark = [pytest.mark.real, pytest.mark.asyncio]
JOB = "job-name%3Dtrain"


async def test_a_required_gang_that_lost_a_host_moves_whole_where_all_of_it_fits(stage):
    await stage.build(leaves=2, hosts_per_leaf=4)
    stage.start_extender()
    stage.start_scheduler()
    stage.plane.start_controller_manager()
    stage.start_nominator("nominator", "--repair")
    notes = {labels.TOPOLOGY: "required", labels.REPAIR: "move/10"}
    await stage.submit(cluster.indexed_job("train", 4, notes=notes))
    placed = await landed_where(stage, JOB, 4)
    (first,) = set(stage.leaves(placed))
    lost, node = min(placed.items())
    async with stage.plane.api() as api:
        await api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
        await api.delete(f"{PODS}/{lost}")
        pods = await api.until(f"{PODS}?labelSelector={JOB}", lambda pods: whole_elsewhere(pods, placed))
    assert {pod["metadata"]["name"] for pod in pods}.isdisjoint(placed)
    again = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods}
    assert set(stage.leaves(again)) != {first}
    assert len(set(stage.leaves(again))) == 1
    assert len(await stage.events("GangMoved")) == 3


def whole_elsewhere(pods, before):
    """The pods, once four run and none of them is one of before."""
    bound = [p for p in pods if p["spec"].get("nodeName") and not p["metadata"].get("deletionTimestamp")]
    return bound if len(bound) == 4 and not before.keys() & {p["metadata"]["name"] for p in bound} else None
