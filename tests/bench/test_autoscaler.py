"""The autoscaler that is fed takes in every change, and each gang brings a shrink, on clusters too small to measure."""

from __future__ import annotations

import random
from collections import Counter
from itertools import islice

import pytest

from hack.bench.autoscaler import cluster, feeder
from hack.bench.autoscaler.cluster import GPU, PER_NODE, PODS
from hack.bench.autoscaler.reaction import FORMS, ReactionPlan, measure_reactions
from hack.bench.autoscaler.scene import JOBS, ClusterSize
from hack.bench.autoscaler.scene import PODS as OF_DEFAULT


def test_every_node_of_the_cluster_is_full():
    objects = cluster.build(60, 80, random.Random(1), waiters=2)
    pods = objects.objects[PODS].values()
    requests = [
        (pod["spec"].get("nodeName"), pod["spec"]["containers"][0]["resources"]["requests"][GPU]) for pod in pods
    ]
    assert sum(int(gpus) for node, gpus in requests if node) == 80 * PER_NODE
    assert [gpus for node, gpus in requests if not node] == ["8"] * 4


def test_an_autoscaler_takes_in_every_change_that_it_is_fed(tmp_path):
    dice = random.Random(2)
    objects = cluster.build(60, 80, dice, waiters=2)
    feeder.write_input(tmp_path, objects, islice(cluster.changes(objects, dice), 900))
    measure_reactions = feeder.run_fed_autoscaler(tmp_path)
    assert (measure_reactions["changes"], measure_reactions["jobs"], measure_reactions["nodes"]) == (900, 62, 80)
    assert measure_reactions["pods"] == len(objects.objects[PODS])
    assert measure_reactions["look_s"]
    assert measure_reactions["peak_mib"] >= measure_reactions["mib"] > measure_reactions["before_mib"] / 2


@pytest.mark.real
@pytest.mark.asyncio
@pytest.mark.slow
async def test_every_gang_brings_one_shrink_and_the_cluster_stays_full(control_plane):
    size = ClusterSize(jobs=12, workers=3, gpus=2, others=4)
    found = await measure_reactions(
        control_plane, size, ReactionPlan(singles=1, bursts=1, baselines=2, together=2), random.Random(5)
    )
    counts = {"floor": 2, "trivial": 2, **dict.fromkeys(FORMS, 1), **{f"{form}, bursts": 2 for form in FORMS}}
    assert {name: len(times) for name, times in found.times_s.items()} == counts
    assert all(took > 0 for times in found.times_s.values() for took in times)
    async with control_plane.api() as api:
        sizes = [job["spec"]["parallelism"] for job in (await api.get(JOBS))["items"]]
        used = Counter(pod["spec"].get("nodeName") for pod in (await api.get(OF_DEFAULT))["items"])
    assert sorted(sizes) == [1] * 12  # a gang each, the first of each form beside those that are timed
    assert used == {f"node-{at:05d}": 4 for at in range(size.nodes)}
