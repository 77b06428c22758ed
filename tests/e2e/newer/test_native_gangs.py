"""Gangs of Kubernetes' own, on the API server and the scheduler of 1.37: the extender is asked, and obeyed."""

from __future__ import annotations

import pytest

from hack.controlplane.tools.parts import NEXT
from tests.e2e.stories import tempt
from tests.kit import cluster
from turnout.kube import labels

GATE = "--feature-gates=GenericWorkload=true"
SERVED = ("--runtime-config=scheduling.k8s.io/v1beta1=true", GATE)

pytestmark = [
    pytest.mark.real,
    pytest.mark.asyncio,
    pytest.mark.parametrize(
        "control_plane", [{"release": NEXT, "apiserver_flags": SERVED}], indirect=True, ids=["1.37"]
    ),
]


async def test_a_native_gang_lands_ringed_under_one_leaf(stage):
    await stage.build()
    free_leaf = await tempt(stage)
    stage.start_extender()
    stage.start_scheduler(flags=(GATE,))
    await stage.submit(cluster.pod_group("native", "bert", 8), *cluster.native_gang("bert", 8))
    node_by_pod = await stage.landed("bert", 8)
    assert set(stage.leaves(node_by_pod)) == {free_leaf}
    assert stage.ring(node_by_pod).total == 0


@pytest.mark.slow
async def test_a_native_gang_that_is_required_waits_for_a_leaf_that_holds_it(stage):
    await stage.build(leaves=2, hosts_per_leaf=4)
    stage.start_extender()
    stage.start_scheduler(flags=(GATE,))
    notes = {labels.TOPOLOGY: "required"}
    await stage.submit(cluster.pod_group("native", "wide", 6), *cluster.native_gang("wide", 6, notes=notes))
    await stage.submit(cluster.pod_group("native", "bert", 4), *cluster.native_gang("bert", 4, notes=notes))
    assert len(stage.leaves(await stage.landed("bert", 4))) == 1
    async with stage.plane.api() as api:
        assert not any(pod["spec"].get("nodeName") for pod in await api.pods(selector="gang=wide"))
