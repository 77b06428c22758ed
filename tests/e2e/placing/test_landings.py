"""Wishes in the words of those who have them, where a real kube-scheduler that asks our extender puts the pods.

One cluster serves all rows: two spines of two leaves with three hosts free in each, so that four pods without a wish
lie three and one. Who is submitted is removed again.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter

import pytest

from tests.e2e.stage import Stage
from tests.e2e.stories import PODS, bound_now, fill
from tests.e2e.test_gang_waits import established
from tests.kit import cluster
from tests.kit.published_crds import published
from turnout.jobs.wishes import kai, koordinator, kueue, sets
from turnout.kube import labels

pytestmark = [pytest.mark.real, pytest.mark.asyncio]

RACK = "cloud.provider.com/topology-rack"  # a word for a leaf, since no node has the label
HARD = {"mode": "hard", "highestTierAllowed": 1}
GROUPS_URLS = [f"/apis/{cluster.GROUPS[dialect]}/namespaces/default/podgroups" for dialect in ("volcano", "kai")]


@pytest.fixture(scope="module")
def shared(module_plane):
    """A cluster with the CRDs of Volcano's and KAI's PodGroups, our extender and a scheduler that asks it."""
    stage = Stage(module_plane, random.Random(7))

    async def build():
        await stage.submit(published("volcano", "scheduling.volcano.sh_podgroups"))
        await stage.submit(published("kai", "scheduling.run.ai_podgroups"))
        async with module_plane.api() as api:
            await api.until("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", established)
        await stage.build(leaves=4, hosts_per_leaf=4)
        await fill(stage, 3)

    asyncio.run(build())
    stage.start_extender()
    stage.start_scheduler()
    return stage


def koord(size, notes, **more):
    """Pods of a koordinator gang called g."""
    return cluster.koordinator_gang("g", size, notes=notes, **more)


def volcano(size, part):
    """Pods of a Volcano Job's task, in partitions of `part` pods."""
    pods = cluster.volcano_gang("g", size)
    for at, pod in enumerate(pods):
        index = {labels.VOLCANO_TASK_INDEX: str(at), labels.VOLCANO_TASK_SPEC: "w"}
        pod["metadata"]["labels"].update({**index, "volcano.sh/partition-id": str(at // part)})
    return pods


def pod_group(minimum, **spec):
    """Volcano's PodGroup of these pods."""
    raw_group = cluster.pod_group("volcano", "g", minimum)
    raw_group["spec"].update(spec)
    return raw_group


def subgroups(size):
    """Volcano's PodGroup whose partitions stay in a leaf each."""
    rule = {"name": "w", "subGroupSize": 2, "labelSelector": {"matchLabels": {labels.VOLCANO_TASK_SPEC: "w"}},
            "matchLabelKeys": ["volcano.sh/partition-id"], "networkTopology": HARD}  # fmt: skip
    return pod_group(size, subGroupPolicy=[rule])


def kai_pods(size, part):
    """Pods of KAI's PodGroup, in subgroups w-0, w-1 of `part` pods."""
    pods = cluster.kai_gang("g", size)
    for at, pod in enumerate(pods):
        pod["metadata"]["labels"][kai.SUBGROUP] = f"w-{at // part}"
    return pods


def kai_group(**spec):
    """KAI's PodGroup of these pods."""
    return {**cluster.pod_group("kai", "g", 0), "spec": spec}


def lws(groups, size, notes):
    """Pods of a LeaderWorkerSet."""
    return [
        cluster.make_pod(f"g-{group * size + at}", 8, notes={labels.LWS_SIZE: str(size), **notes},
            marks={"gang": "g", labels.LWS_NAME: "s", labels.LWS_GROUP: str(group), labels.LWS_WORKER: str(at)})
        for group in range(groups) for at in range(size)
    ]  # fmt: skip


def jobset(jobs, size, notes):
    """Pods of the jobs of a JobSet."""
    marks = {labels.JOBSET_NAME: "js"}
    pods_by_job = [cluster.koordinator_gang(f"js-{at}", size, notes=notes, marks=marks) for at in range(jobs)]
    pods = [pod for each in pods_by_job for pod in each]
    for at, pod in enumerate(pods):
        pod["metadata"]["name"], pod["metadata"]["labels"]["gang"] = f"g-{at}", "g"
    return pods


def named(name, objects):
    """Objects of a gang under this name.

    Its own, since the extender may still know the PodGroup of the row before, and form another's groups by its min.
    """
    return json.loads(json.dumps(objects).replace('"g"', f'"{name}"').replace('"g-', f'"{name}-'))


NUMBER = itertools.count()
MUST = {koordinator.SPEC: json.dumps({"gatherStrategy": [{"layer": "SpineLayer", "strategy": "MustGather"}]})}
A_RACK = {"requiredTopologyLevel": RACK}
TWO = [{"name": f"w-{at}", "minMember": 2, "topologyConstraint": A_RACK} for at in range(2)]


@pytest.mark.parametrize(("objects", "size", "leaves", "run"), [
    pytest.param(koord(3, {kueue.REQUIRED: RACK}), 3, [3], 3, id="Kueue: required rack"),
    pytest.param(koord(6, MUST), 6, [3, 3], 3, id="koordinator: must gather under a spine"),
    pytest.param([pod_group(3, networkTopology=HARD), *volcano(3, 3)], 3, [3], 3, id="Volcano: hard"),
    pytest.param([subgroups(4), *volcano(4, 2)], 4, [2, 2], 2, id="Volcano: partitions in a leaf each"),
    pytest.param([kai_group(subGroups=TWO), *kai_pods(4, 2)], 4, [2, 2], 2, id="KAI: each subgroup in a rack"),
    pytest.param(lws(3, 1, {sets.LWS: RACK}), 3, [1, 1, 1], 1, id="LWS: a rack for each group"),
    pytest.param(jobset(3, 2, {sets.JOBSET: RACK}), 6, [2, 2, 2], 2, id="JobSet: a rack for each job"),
    pytest.param(koord(4, {labels.MESH: "dp=2,ep=2,tp=8"}), 4, [2, 2], 2, id="ours: a mesh"),
])  # fmt: skip
async def test_pods_land_as_their_wish_says(shared, objects, size, leaves, run):
    name = f"g{next(NUMBER)}"
    await shared.submit(*named(name, objects))  # side by side: pods may be there before the PodGroup that they name
    node_by_pod = await shared.landed(name, size)
    at = [shared.leaf[shared.ip_of[node_by_pod[f"{name}-{rank}"]]] for rank in range(size)]
    await clear(shared)
    assert sorted(Counter(at).values(), reverse=True) == leaves
    assert all(len(set(at[first : first + run])) == 1 for first in range(0, size, run))


async def test_gangs_that_start_together_leave_room_that_is_too_small_to_others(shared):
    notes = {labels.TOGETHER: "training/2"}
    both = [pod for name in ("one", "two") for pod in cluster.koordinator_gang(name, 7, notes=notes)]
    await shared.submit(*both, *cluster.koordinator_gang("g", 6))
    await shared.landed("g", 6)
    assert [await bound_now(shared, name) for name in ("one", "two")] == [{}, {}]
    await clear(shared)


async def clear(stage):
    """Remove every gang and PodGroup."""
    async with stage.plane.api() as api:
        for url in GROUPS_URLS:
            await api.delete(url)
        await api.delete(f"{PODS}?labelSelector=gang")
        await api.until(f"{PODS}?labelSelector=gang", lambda pods: not pods)
