"""An idle cluster fills with jobs of two kinds, each under one leaf as it grows, no edge of its ring outside."""

from __future__ import annotations

import pytest

from tests.e2e.autoscaler.lending import (
    AT_ONCE,
    KUBEFLOW,
    elastic,
    job_of,
    listed,
    runs,
    start_around,
    start_autoscaler,
)
from tests.kit import cluster
from turnout.kube import labels

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.asyncio]


async def test_a_pytorch_and_an_indexed_job_fill_a_cluster_each_under_one_leaf(stage):
    await stage.build(leaves=2, hosts_per_leaf=4, gpus=2)
    stage.plane.start_training_operator()
    await listed(stage, f"{KUBEFLOW}/pytorchjobs")
    start_around(stage)
    annotations = {
        labels.MIN_WORKERS: "2",
        labels.MAX_WORKERS: "8",
    }  # on its pods, too: by these the extender leaves room
    await stage.submit(
        cluster.pytorch_job("torch", 2, gpus=1, maximum=8),
        elastic(cluster.indexed_job("plain", 2, gpus=1, notes=annotations), 2, 8),
    )
    small = await runs(stage, torch=2, plain=2)
    start_autoscaler(stage, *AT_ONCE)
    node_by_pod = await runs(stage, torch=8, plain=8)
    assert small.items() <= node_by_pod.items()  # it grows by workers, and moves nobody
    async with stage.plane.api() as api:
        of = {pod["metadata"]["name"]: (job_of(pod), _rank(pod)) for pod in await api.pods()}
    for name in ("torch", "plain"):
        mine = {f"{name}-{of[pod][1]}": node for pod, node in node_by_pod.items() if of[pod][0] == name}
        assert len(stage.leaves(mine)) == 1
        assert stage.ring(mine).total == 0  # no edge of its ring leaves the leaf


def _rank(pod):
    marks = pod["metadata"]["labels"]
    return marks.get(labels.TRAINING_INDEX) or marks[labels.JOB_INDEX]
