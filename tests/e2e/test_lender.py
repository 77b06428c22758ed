"""The lender on a real control plane: an Indexed Job and a PyTorchJob lend what they do not need."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from kube import labels
from tests import cluster

pytestmark = [pytest.mark.real, pytest.mark.asyncio]
JOBS = "/apis/batch/v1/namespaces/default/jobs"


def elastic(made, least, most):
    made["metadata"]["annotations"] = {labels.MIN_WORKERS: str(least), labels.MAX_WORKERS: str(most)}
    return made


def start_lender(stage, *flags, name="lender"):
    argv = [sys.executable, "-m", "autoscaler", "--kubeconfig", str(stage.plane.kubeconfig)]
    stage.plane.start_program(
        name, [*argv, "--lease", "default/turnout-autoscaler", "--metrics-bind", "127.0.0.1:0", *flags]
    )


async def runs(stage, **wanted):
    """Wait until exactly so many pods of each job have a node; where they are, by pod."""

    def seen(pods):
        living = [p for p in pods if p["status"].get("phase") not in ("Succeeded", "Failed")]
        here = [p for p in living if p["spec"].get("nodeName") and not p["metadata"].get("deletionTimestamp")]
        if len(living) != len(here):
            return None
        count = Counter(
            p["metadata"]["labels"].get("job-name") or p["metadata"]["labels"][labels.TRAINING_JOB] for p in here
        )
        return count == wanted and {p["metadata"]["name"]: p["spec"]["nodeName"] for p in here}

    async with stage.plane.api() as api:
        try:
            return await api.until("/api/v1/namespaces/default/pods", seen, 60.0)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{stage.plane.logs('lender')[-4000:]}") from None


async def test_an_indexed_job_fills_an_idle_leaf_gives_back_and_grows_again(stage):
    await stage.build(leaves=2, hosts_per_leaf=4, gpus=2)
    stage.start_extender()
    stage.start_scheduler()
    stage.plane.start_controller_manager()
    start_lender(stage, "--act", "--cooldown-s", "1")
    await stage.submit(elastic(cluster.indexed_job("a", 2, gpus=2), 2, 4))
    placed = await runs(stage, a=4)
    assert len(stage.leaves(placed)) == 1
    await stage.submit(elastic(cluster.indexed_job("c", 1, gpus=2), 1, 8))
    await runs(stage, a=4, c=4)
    stage.plane.restart_apiserver()
    await stage.submit(cluster.indexed_job("b", 3, gpus=2))
    async with stage.plane.api() as api:
        shrunk = await api.until("/api/v1/namespaces/default/pods", lambda pods: _has(pods, "b", 3), 60.0)
        assert shrunk
        await api.call("DELETE", f"{JOBS}/b?propagationPolicy=Background")
    await runs(stage, a=4, c=4)


def _has(pods, name, count):
    here = [p for p in pods if p["metadata"]["labels"].get("job-name") == name and p["spec"].get("nodeName")]
    return len(here) == count


async def test_a_pytorch_job_makes_room_for_one_of_equal_priority(stage):
    """The case that Volcano leaves waiting (volcano#3979)."""
    await stage.build(leaves=1, hosts_per_leaf=4, gpus=2)
    stage.start_extender()
    stage.start_scheduler()
    stage.plane.start_controller_manager()
    stage.plane.start_training_operator()
    start_lender(stage, "--act", "--cooldown-s", "1")
    await stage.submit(cluster.pytorch_job("a", 2, gpus=1, most=8))
    await runs(stage, a=8)
    await stage.submit(cluster.indexed_job("b", 3, gpus=1))
    await runs(stage, a=5, b=3)


async def test_a_second_lender_takes_over_and_an_observer_writes_nothing(stage):
    await stage.build(leaves=1, hosts_per_leaf=4, gpus=2)
    stage.start_extender()
    stage.start_scheduler()
    stage.plane.start_controller_manager()
    start_lender(stage, name="observer")
    await stage.submit(elastic(cluster.indexed_job("a", 2, gpus=2), 2, 4))
    await stage.eventually(lambda: '"outcome": "DryRun"' in stage.plane.logs("observer"), 30.0)
    await runs(stage, a=2)
    stage.plane.stop_program("observer")
    start_lender(stage, "--act")
    await runs(stage, a=4)
