"""The autoscaler on a real control plane: an Indexed Job and a PyTorchJob lend what they do not need."""

from __future__ import annotations

import pytest

from tests.e2e.autoscaler.lending import AT_ONCE, JOBS, PODS, elastic, pods_bound, runs, start_around, start_autoscaler
from tests.kit import cluster

pytestmark = [pytest.mark.real, pytest.mark.asyncio]


@pytest.mark.contract("CS-13", "VE-11", "VE-30")
async def test_an_indexed_job_fills_an_idle_leaf_gives_back_and_grows_again(stage):
    await stage.build(leaves=2, hosts_per_leaf=4, gpus=2)
    start_around(stage)
    start_autoscaler(stage, *AT_ONCE)
    await stage.submit(elastic(cluster.indexed_job("a", 2, gpus=2), 2, 4))
    node_by_pod = await runs(stage, a=4)
    assert len(stage.leaves(node_by_pod)) == 1
    await stage.submit(elastic(cluster.indexed_job("c", 1, gpus=2), 1, 8))
    await runs(stage, a=4, c=4)
    stage.plane.restart_apiserver()
    await stage.submit(cluster.indexed_job("b", 3, gpus=2))
    async with stage.plane.api() as api:
        await api.until(PODS, pods_bound("b", 3), 60.0)
        await api.call("DELETE", f"{JOBS}/b?propagationPolicy=Background")
    await runs(stage, a=4, c=4)


@pytest.mark.contract("CS-14", "VE-10", "VE-31", "XD-03")
async def test_a_pytorch_job_makes_room_for_one_of_equal_priority(stage):
    """The case that Volcano leaves waiting (volcano#3979)."""
    await stage.build(leaves=1, hosts_per_leaf=4, gpus=2)
    start_around(stage)
    stage.plane.start_training_operator()
    start_autoscaler(stage, *AT_ONCE)
    await stage.submit(cluster.pytorch_job("a", 2, gpus=1, maximum=8))
    await runs(stage, a=8)
    await stage.submit(cluster.indexed_job("b", 3, gpus=1))
    await runs(stage, a=5, b=3)


async def test_a_second_autoscaler_takes_over_and_an_observer_writes_nothing(stage):
    await stage.build(leaves=1, hosts_per_leaf=4, gpus=2)
    start_around(stage)
    start_autoscaler(stage, name="observer")
    await stage.submit(elastic(cluster.indexed_job("a", 2, gpus=2), 2, 4))
    await stage.eventually(lambda: '"outcome": "DryRun"' in stage.plane.logs("observer"), 30.0)
    await runs(stage, a=2)
    stage.plane.stop_program("observer")
    start_autoscaler(stage, "--act")
    await runs(stage, a=4)
