"""The topology ConfigMap under a running extender: edited, broken, deleted."""

from __future__ import annotations

import time

import pytest

from tests import cluster
from topology.cost import cost
from topology.fabric import build
from topology.parse import read

pytestmark = [pytest.mark.real, pytest.mark.asyncio]
CONFIG = "/api/v1/namespaces/default/configmaps/node-topology-config"
FAULTS = "turnout_topology_faults"


def reloads(outcome):
    return f'turnout_topology_reloads_total{{outcome="{outcome}"}}'


async def edit(stage, text):
    """Change the map as `kubectl edit` does."""
    async with stage.plane.api() as api:
        await api.patch(CONFIG, {"data": {"topology_config": text}})


def turned(stage):
    """The same hosts, dealt over the leaves another way: first of each leaf together, second of each together ..."""
    ips = [line.split()[2] for line in stage.text.splitlines()]
    return "".join(f"asw-{at % 8:02d} psw-{at % 8 // 2:02d} {ip}\n" for at, ip in enumerate(ips))


async def test_an_edited_map_changes_the_next_gang(stage):
    await stage.build()
    stage.start_extender()
    stage.start_scheduler()
    await stage.submit(*cluster.koordinator_gang("before", 8))
    assert len(stage.leaves(await stage.landed("before", 8))) == 1
    since_s = time.monotonic()
    stage.text = turned(stage)
    await edit(stage, stage.text)
    await stage.eventually(lambda: stage.metric(reloads("MapChangedMuch")) == 1, within_s=5)
    assert time.monotonic() - since_s < 5
    await stage.events("MapChangedMuch")  # every host moved: applied, and told
    stage.leaf = cluster.leaf_of(stage.text)
    await stage.submit(*cluster.koordinator_gang("after", 7))
    placed = await stage.landed("after", 7)
    assert len(stage.leaves(placed)) == 1
    fabric = build(read({"topology_config": stage.text}).entries)
    by_rank = [fabric.index[stage.ip_of[placed[f"after-{i}"]]] for i in range(7)]
    assert cost(fabric, by_rank).total == 0


@pytest.mark.parametrize("fate", ["garbage", "gone"])
async def test_a_map_that_is_broken_or_deleted_leaves_the_last_good_one_in_use(stage, fate):
    await stage.build()
    stage.start_extender()
    stage.start_scheduler()
    if fate == "garbage":
        await edit(stage, "asw-00 psw-00\nnot an address at all\n")
        (event, *_) = await stage.events("MapRejected")
        assert "line 1" in event["message"]
        assert event["involvedObject"]["kind"] == "ConfigMap"
        await stage.eventually(lambda: stage.metric(FAULTS) == 2, within_s=5)
    else:
        async with stage.plane.api() as api:
            await api.delete(CONFIG)
        await stage.events("MapMissing")
    await stage.submit(*cluster.koordinator_gang("bert", 8))
    assert len(stage.leaves(await stage.landed("bert", 8))) == 1
    assert stage.view()["mapped_hosts"] == 64
