"""A job whose gang is Kubernetes' own lends workers on 1.37: its minCount follows, and a lost pod comes back.

No Job controller runs: that of 1.35 drops `schedulingGroup` from the pods that it makes. The story makes them instead.
"""

from __future__ import annotations

import pytest

from hack.controlplane.tools.parts import NEXT
from tests.e2e.autoscaler.lending import AT_ONCE, EVENTS, JOBS, PODS, elastic, start_autoscaler
from tests.kit import cluster
from turnout.kube import labels

GATE = "--feature-gates=GenericWorkload=true"
SERVED = ("--runtime-config=scheduling.k8s.io/v1beta1=true", GATE)
GROUPS = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups"

pytestmark = [
    pytest.mark.real,
    pytest.mark.asyncio,
    pytest.mark.parametrize(
        "control_plane", [{"release": NEXT, "apiserver_flags": SERVED}], indirect=True, ids=["1.37"]
    ),
]


def worker(job, index):
    """A pod of an Indexed Job, as its controller makes it, in the native gang of the same name."""
    name = job["metadata"]["name"]
    marks = {**job["spec"]["template"]["metadata"]["labels"], labels.JOB_INDEX: str(index), "gang": name}
    one_pod = cluster.make_pod(f"{name}-{index}", 2, marks=marks, schedulingGroup={"podGroupName": name})
    one_pod["metadata"]["ownerReferences"] = [
        {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job["metadata"]["uid"], "controller": True}
    ]
    return one_pod


def has_min(count):
    """Make a condition on PodGroups: that of `a` has this minCount. It then gives the object."""
    return lambda groups: next(
        (
            each
            for each in groups
            if each["metadata"]["name"] == "a" and each["spec"]["schedulingPolicy"]["gang"]["minCount"] == count
        ),
        None,
    )


def sized(count):
    """Make a condition on Jobs: `a` has this size. It then gives the object."""
    return lambda jobs: next((each for each in jobs if each["spec"]["parallelism"] == count), None)


def reported(*reasons):
    """Make a condition on Events: all of these reasons were reported on `a`."""
    return lambda events: {*reasons} <= {event["reason"] for event in events if event["involvedObject"]["name"] == "a"}


async def test_min_count_follows_the_size_and_a_lost_pod_comes_back(stage):
    await stage.build(leaves=1, hosts_per_leaf=4, gpus=2)
    stage.start_extender()
    stage.start_scheduler(flags=(GATE,))
    job = elastic(cluster.indexed_job("a", 4, gpus=2), 2, 4)
    job["spec"]["template"]["spec"]["schedulingGroup"] = {"podGroupName": "a"}
    await stage.submit(cluster.pod_group("native", "a", 4))
    (job,) = await stage.submit(job)
    await stage.submit(*(worker(job, index) for index in range(4)))
    await stage.landed("a", 4)
    start_autoscaler(stage, *AT_ONCE)
    await stage.submit(*cluster.koordinator_gang("b", 2, gpus=2))
    async with stage.plane.api() as api:
        shrunk = await api.until(JOBS, sized(2), 60.0)
        (lowered,) = (await api.get(GROUPS))["items"]
        assert lowered["spec"]["schedulingPolicy"]["gang"]["minCount"] == 2
        notes = lowered["metadata"]["annotations"]
        assert (notes[labels.STATED_MIN_COUNT], notes[labels.WROTE_MIN_COUNT]) == ("4", "2")
        assert int(lowered["metadata"]["resourceVersion"]) < int(shrunk["metadata"]["resourceVersion"])
        for index in (2, 3):
            await api.delete(f"{PODS}/a-{index}")
        await stage.landed("b", 2)
        await api.delete(f"{PODS}/a-1")  # a node fails
        await stage.submit(worker(job, 1))
        await stage.landed("a", 2)
        for index in range(2):
            await api.delete(f"{PODS}/b-{index}")
        await api.until(JOBS, sized(4), 60.0)
        await stage.submit(*(worker(job, index) for index in (2, 3)))
        await stage.landed("a", 4)
        raised = await api.until(GROUPS, has_min(4), 60.0)
        assert labels.STATED_MIN_COUNT not in (raised["metadata"].get("annotations") or {})
        await api.until(EVENTS, reported("GangMinLowered", "GangMinRaised"), 30.0)
