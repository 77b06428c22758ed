"""A plan is half done when something breaks: the leader dies, sleeps too long, or the API server goes away."""

from __future__ import annotations

import asyncio
import random
import signal
from itertools import pairwise

import pytest
import pytest_asyncio

from tests.e2e.autoscaler.lending import (
    AT_ONCE,
    JOBS,
    LEASE,
    PODS,
    clear,
    decided,
    elastic,
    job_of,
    leader,
    let_go,
    log_lines,
    runs,
    signal_to,
    sized,
    slow_to_go,
    start_around,
    start_autoscaler,
    wait_for_decisions,
    written_resizes,
)
from tests.e2e.autoscaler.webhook import Webhook, admission
from tests.e2e.stage import Stage
from tests.kit import cluster
from turnout.kube import labels

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.asyncio]


@pytest.fixture(scope="module")
def module_stage(module_plane):
    """Eight GPUs for all stories of this module; each starts its own autoscalers."""
    stage = Stage(module_plane, random.Random(7))
    asyncio.run(stage.build(leaves=1, hosts_per_leaf=4, gpus=2))
    start_around(stage)
    return stage


@pytest_asyncio.fixture
async def stage(module_stage):
    """The stage of the module; no autoscaler, Lease or job is left on it afterwards."""
    yield module_stage
    for name in set(module_stage.health) - {"extender"}:
        module_stage.plane.stop_program(name)
        del module_stage.health[name]
    await clear(module_stage)
    module_stage.plane.request("DELETE", LEASE)


def lends(name="lends"):
    return elastic(cluster.indexed_job(name, 2, gpus=1), 2, 8)


def shrinks(stage, *names):
    """The shrinks that autoscalers have written."""
    return [(job, was, size) for name in names for job, was, size in written_resizes(stage, name) if size < was]


async def two_autoscalers(stage, story):
    """Start two of them with a short Lease. Gives who leads, and who stands by."""
    names = f"{story}-one", f"{story}-two"
    for name in names:
        start_autoscaler(stage, *AT_ONCE, "--lease-seconds", "3", name=name)
    first = await stage.eventually(lambda: leader(stage, names))
    return first, names[names[0] == first]


async def test_a_leader_killed_mid_shrink_is_followed_and_nobody_shrinks_twice(stage):
    first, second = await two_autoscalers(stage, "killed")
    async with stage.plane.api() as api:
        await api.create(slow_to_go(lends()))
        await runs(stage, lends=8)
        await api.create(cluster.indexed_job("waits", 3, gpus=1))
        shrunk = await api.until(JOBS, sized("lends", 5))
        stage.plane.kill_program(first)
        await stage.eventually(lambda: leader(stage, [second]))
        await decided(stage, "waits", "WaitsForRoom", name=second)
        await wait_for_decisions(stage, api, 5, second)
        leaving = [pod for pod in await api.pods() if pod["metadata"].get("deletionTimestamp")]
        assert [job_of(pod) for pod in leaving] == ["lends"] * 3  # the plan is still half done
        await let_go(api)
        await runs(stage, lends=5, waits=3)
        now = await api.get(f"{JOBS}/lends")
    assert now["metadata"]["generation"] == shrunk["metadata"]["generation"]
    assert now["metadata"]["annotations"] == shrunk["metadata"]["annotations"]
    assert written_resizes(stage, second) == []


async def test_a_leader_that_slept_past_its_lease_writes_nothing_when_it_wakes(stage):
    first, second = await two_autoscalers(stage, "slept")
    async with stage.plane.api() as api:
        await api.create(lends())
        await runs(stage, lends=8)
        signal_to(stage, first, signal.SIGSTOP)
        before = written_resizes(stage, first)
        await api.create(cluster.indexed_job("waits", 3, gpus=1))
        await runs(stage, lends=5, waits=3)
        assert leader(stage, [second]) == second
        signal_to(stage, first, signal.SIGCONT)  # what it saw last is a job that waits for it to act
        await stage.eventually(lambda: log_lines(stage, "lease_lost", first))
        await api.delete(f"{JOBS}/waits?propagationPolicy=Background")
        await runs(stage, lends=8)
        await wait_for_decisions(stage, api, 5, second)
        now = await api.get(f"{JOBS}/lends")
    assert written_resizes(stage, first) == before
    changes = written_resizes(stage, second)  # one growth, or more: the rigid job's pods end each in its own time
    sizes = [8, *(size for _, _, size in changes)]
    assert changes == [("lends", was, size) for was, size in pairwise(sizes)]
    assert (sizes[1], sizes[1:], sizes[-1]) == (5, sorted(sizes[1:]), 8)
    assert now["metadata"]["generation"] == 1 + len(before) + len(changes)  # each change is one that a log owns up to
    assert leader(stage, [second]) == second


async def test_the_api_server_restarts_between_a_shrink_and_the_pods_end(stage):
    start_autoscaler(stage, *AT_ONCE, name="restarted")
    async with stage.plane.api() as api:
        await api.create(slow_to_go(lends()))
        await runs(stage, lends=8)
        await api.create(cluster.indexed_job("waits", 3, gpus=1))
        await api.until(JOBS, sized("lends", 5))
    await asyncio.to_thread(stage.plane.restart_apiserver)
    async with stage.plane.api() as api:
        await api.until(PODS, lambda pods: sum(bool(p["metadata"].get("deletionTimestamp")) for p in pods) == 3)
        await wait_for_decisions(stage, api, 5, "restarted")
        await let_go(api)
        await runs(stage, lends=5, waits=3)
        assert (await api.get(f"{JOBS}/lends"))["metadata"]["annotations"][labels.WROTE_WORKERS] == "5"
    assert shrinks(stage, "restarted") == [("lends", 8, 5)]


async def test_the_api_server_restarts_while_a_shrink_is_being_written(stage):
    start_autoscaler(stage, *AT_ONCE, name="unanswered")
    webhook = Webhook("lends")
    webhook.refuses = False
    async with stage.plane.api() as api:
        await api.create(lends())
        await runs(stage, lends=8)
    async with admission(stage, webhook):
        webhook.answers.clear()
        await stage.submit(cluster.indexed_job("waits", 3, gpus=1))
        await stage.eventually(lambda: webhook.asked_s)
        assert shrinks(stage, "unanswered") == []
        await asyncio.to_thread(stage.plane.restart_apiserver)
        webhook.answers.set()
        await runs(stage, lends=5, waits=3)
    assert shrinks(stage, "unanswered") == [("lends", 8, 5)]
    assert "Refused" in [line["outcome"] for line in log_lines(stage, "not_resized", "unanswered")]  # nobody answered
