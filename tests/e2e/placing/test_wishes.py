"""Wishes that other filters, queues and owners have a part in, on a real kube-scheduler that asks our extender."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.stories import bound_now, fill
from tests.kit import cluster
from turnout.jobs.wishes import kueue
from turnout.kube import labels
from turnout.scheduler_ext.model import EventReason

pytestmark = [pytest.mark.real, pytest.mark.asyncio]


@pytest.mark.slow
async def test_a_gang_moves_whole_off_a_host_that_another_filter_refuses(stage):
    """Anti-affinity against pods of another kind is the scheduler's business: we learn it from what it leaves out."""
    await stage.build(leaves=2, hosts_per_leaf=4)
    stage.start_extender()
    first = min(stage.ip_of, key=lambda node: stage.ip_of[node])
    await stage.submit(cluster.make_pod("noisy", 0, marks={"app": "noisy"}, nodeName=first))
    stage.start_scheduler()
    term = {"topologyKey": labels.HOSTNAME, "labelSelector": {"matchLabels": {"app": "noisy"}}}
    against = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    notes = {labels.TOPOLOGY: "required"}
    await stage.submit(*cluster.koordinator_gang("bert", 4, notes=notes, affinity=against))
    node_by_pod = await stage.landed("bert", 4)
    assert (len(stage.leaves(node_by_pod)), first in node_by_pod.values()) == (1, False)


async def test_what_is_not_kept_is_told_in_one_event_for_the_gang(stage):
    await stage.build(leaves=2, hosts_per_leaf=4)
    stage.start_extender()
    stage.start_scheduler()
    await stage.submit(*cluster.koordinator_gang("bert", 4, notes={kueue.REQUIRED: "example.com/island"}))
    await stage.landed("bert", 4)
    (event,) = await stage.events(EventReason.WISH_NOT_KEPT.value)
    assert "'example.com/island', which is no level here" in event["message"]


@pytest.mark.slow
async def test_small_gangs_wait_for_the_oldest_in_a_queue_of_strict_order(stage):
    await stage.build(leaves=1, hosts_per_leaf=4)
    await fill(stage, 3)
    stage.start_extender("extender", "--strict-queue", "default/train")
    stage.start_scheduler()
    marks = {labels.KUEUE_QUEUE: "train"}
    await stage.submit(*cluster.koordinator_gang("large", 4, marks=marks))
    await stage.events(EventReason.NO_ROOM.value)
    await stage.submit(*cluster.koordinator_gang("small", 1, marks=marks))
    await asyncio.sleep(3)
    assert await bound_now(stage, "small") == {}
    (stranger,) = [f"stranger-{node}" for node in sorted(stage.ip_of)[3:]]
    async with stage.plane.api() as api:
        await api.delete(f"/api/v1/namespaces/default/pods/{stranger}")
    assert len(await stage.landed("large", 4)) == 4
