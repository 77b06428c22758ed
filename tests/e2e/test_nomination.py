"""The plan ahead on a real API server and kube-scheduler: nominations written, kept true, and taken back."""

from __future__ import annotations

import pytest

from tests import cluster

pytestmark = [pytest.mark.real, pytest.mark.asyncio]
PODS = "/api/v1/namespaces/default/pods"


def nominated(count):
    """Ask of a list of pods: are `count` of them nominated? Gives {pod: node} then."""

    def seen(pods):
        told = {p["metadata"]["name"]: p["status"].get("nominatedNodeName") for p in pods}
        told = {name: node for name, node in told.items() if node}
        return told if len(told) >= count else None

    return seen


async def test_a_gang_is_nominated_whole_and_lands_there(stage):
    await stage.build()
    stage.start_extender()
    stage.start_nominator()
    await stage.submit(cluster.pod_group_crd("volcano"))
    await stage.submit(*cluster.volcano_gang("bert", 8))
    async with stage.plane.api() as api:
        planned = await api.until(PODS, nominated(8))
    stage.start_scheduler()
    placed = await stage.landed("bert", 8)
    assert placed == planned
    assert len(stage.leaves(placed)) == 1
    assert stage.ring(placed).total == 0
