"""Each way in which the reaction benchmark times an autoscaler brings a shrink, on a cluster too small to measure."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from hack.bench.reaction.run import FORMS, Plan, measured
from hack.bench.reaction.scene import JOBS, PODS, Size

pytestmark = [pytest.mark.real, pytest.mark.asyncio, pytest.mark.slow]


async def test_every_gang_brings_one_shrink_and_the_cluster_stays_full(control_plane):
    size = Size(jobs=12, workers=3, gpus=2, others=4)
    found = await measured(control_plane, size, Plan(singles=1, bursts=1, baselines=2, together=2), random.Random(5))
    counts = {"floor": 2, "trivial": 2, **dict.fromkeys(FORMS, 1), **{f"{form}, bursts": 2 for form in FORMS}}
    assert {name: len(times) for name, times in found.times_s.items()} == counts
    assert all(took > 0 for times in found.times_s.values() for took in times)
    async with control_plane.api() as api:
        sizes = [job["spec"]["parallelism"] for job in (await api.get(JOBS))["items"]]
        used = Counter(pod["spec"].get("nodeName") for pod in (await api.get(PODS))["items"])
    assert sorted(sizes) == [1] * 12  # a gang each, the first of each form beside those that are timed
    assert used == {f"node-{at:05d}": 4 for at in range(size.nodes)}
