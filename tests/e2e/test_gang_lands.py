"""A gang lands under one switch: our extender beside a real kube-scheduler, on 64 fake GPU nodes."""

from __future__ import annotations

import pytest

from tests import cluster

pytestmark = [pytest.mark.real, pytest.mark.asyncio]


async def test_a_gang_of_eight_lands_under_one_leaf_in_ring_order(stage):
    await stage.build()
    stage.start_extender()
    stage.start_scheduler()
    await stage.submit(cluster.pod_group_crd("volcano"))
    await stage.submit(*cluster.volcano_gang("bert", 8))
    placed = await stage.landed("bert", 8)
    assert len(stage.leaves(placed)) == 1
    assert stage.ring(placed).total == 0
