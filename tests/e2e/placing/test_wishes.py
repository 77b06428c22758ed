"""Wishes in the words of other projects, on a real kube-scheduler that asks our extender."""

from __future__ import annotations

import asyncio

import pytest

from tests import cluster
from tests.e2e.stories import bound_now
from turnout.jobs.wishes import koordinator, kueue, sets
from turnout.kube import labels
from turnout.scheduler_ext.model import EventReason

pytestmark = [pytest.mark.real, pytest.mark.asyncio]

RACK = "cloud.provider.com/topology-rack"  # a word for a leaf, since no node has the label
MUST = '{"gatherStrategy": [{"layer": "SpineLayer", "strategy": "MustGather"}]}'
SLICES = {kueue.SLICE_LEVEL: RACK, kueue.SLICE_SIZE: "2"}


async def fill(stage, left):
    """Fill all but so many nodes of each leaf with strangers."""
    by_leaf = {}
    for node, ip in sorted(stage.ip_of.items()):
        by_leaf.setdefault(stage.leaf[ip], []).append(node)
    nodes = [node for each in by_leaf.values() for node in each[left:]]
    await stage.submit(*(cluster.make_pod(f"stranger-{node}", 8, nodeName=node) for node in nodes))


@pytest.mark.parametrize(("notes", "size", "left", "leaves"), [
    pytest.param({kueue.REQUIRED: RACK}, 3, 3, [3], id="Kueue: required rack"),
    pytest.param({koordinator.SPEC: MUST}, 4, 2, [2, 2], id="koordinator: must gather under a spine"),
    pytest.param(SLICES, 4, 3, [2, 2], id="Kueue: pairs in a rack"),
])  # fmt: skip
async def test_a_gang_lands_as_its_words_say(stage, notes, size, left, leaves):
    await stage.build(leaves=4, hosts_per_leaf=4)
    await fill(stage, left)
    stage.start_extender()
    stage.start_scheduler()
    await stage.submit(*cluster.koordinator_gang("bert", size, notes=notes))
    placed = await stage.landed("bert", size)
    assert sorted(stage.leaves(placed).values()) == leaves


async def test_jobs_of_a_set_that_ask_for_a_rack_each_share_none(stage):
    await stage.build(leaves=4, hosts_per_leaf=4)
    stage.start_extender()
    stage.start_scheduler()
    marks, notes = {labels.JOBSET_NAME: "js"}, {sets.JOBSET: RACK}
    names = [f"js-{at}" for at in range(3)]
    await stage.submit(*(pod for name in names for pod in cluster.koordinator_gang(name, 2, marks=marks, notes=notes)))
    found = [stage.leaves(await stage.landed(name, 2)) for name in names]
    assert all(len(each) == 1 for each in found)
    assert len({leaf for each in found for leaf in each}) == 3


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
    placed = await stage.landed("bert", 4)
    assert (len(stage.leaves(placed)), first in placed.values()) == (1, False)


async def test_what_is_not_kept_is_told_in_one_event_for_the_gang(stage):
    await stage.build(leaves=2, hosts_per_leaf=4)
    stage.start_extender()
    stage.start_scheduler()
    await stage.submit(*cluster.koordinator_gang("bert", 4, notes={kueue.REQUIRED: "example.com/island"}))
    await stage.landed("bert", 4)
    (told,) = await stage.events(EventReason.WISH_NOT_KEPT.value)
    assert "'example.com/island', which is no level here" in told["message"]


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
