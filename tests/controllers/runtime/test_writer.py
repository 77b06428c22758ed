"""A controller may die at any write: the end state is the same, and no pod is there twice."""

import asyncio

import pytest

from tests.controllers.jobs import NOW_S, job, role
from tests.controllers.runtime.world import JOB, Api, Controller, Killed
from turnout.controllers.model import Dialect, Setup
from turnout.controllers.runtime.writer import NameTaken
from turnout.kube.errors import Conflict

SCALED = {"minReplicas": 1, "maxReplicas": 4, "metrics": [{"type": "Resource"}]}


async def grown(api, controller):
    """A job comes up, one of its pods fails, it shrinks, and ends."""
    await controller().until_quiet()
    for name in ("bert-worker-0", "bert-worker-1", "bert-worker-2"):
        api.phase(name, "Running")
    api.phase("bert-worker-1", "Failed", 1)
    await controller().until_quiet()
    api.phase("bert-worker-1", "Running")
    api.objects[JOB]["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 2
    api.objects[JOB]["metadata"]["resourceVersion"] = api._version()
    await controller().until_quiet()
    for name in ("bert-worker-0", "bert-worker-1"):
        api.phase(name, "Succeeded")
    await controller().until_quiet()


def told(kill_at=None, kill_after=False):
    """Play the story with a controller that is killed once, and started anew; the API server after it."""
    api = Api(job(worker=role(3), elastic=SCALED, run={"cleanPodPolicy": "All", "backoffLimit": 3}))
    api.kill_at, api.kill_after = kill_at, kill_after
    setup = Setup(Dialect.VOLCANO)

    class Restarted(Controller):
        async def until_quiet(self, now_s=NOW_S):
            try:
                await super().until_quiet(now_s)
            except Killed:
                await Controller(api, setup).until_quiet(now_s)

    asyncio.run(grown(api, lambda: Restarted(api, setup)))
    return api


def test_the_story_needs_many_writes_and_ends_clean():
    api = told()
    assert api.writes > 20
    assert (api.names("Pod"), api.names("Service"), api.names("PodGroup")) == ([], [], [])


WRITES = told().writes


@pytest.mark.contract("XD-10")
@pytest.mark.parametrize("kill_after", [False, True], ids=["before it", "after it"])
@pytest.mark.parametrize("number", range(1, WRITES + 1))
def test_a_controller_killed_at_any_write_changes_nothing_in_the_end(number, kill_after):
    assert told(number, kill_after).end() == told().end()


def test_a_name_that_somebody_else_has_is_never_taken_over():
    api = Api(job(worker=role(1)))
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bert-worker-0"}, "spec": {}}
    asyncio.run(api.create("/api/v1/namespaces/ns/pods", body))
    with pytest.raises(NameTaken, match="Pod bert-worker-0 exists and belongs to somebody else"):
        asyncio.run(Controller(api).until_quiet())
    assert api.names("Service") == ["bert-worker-0"]
    assert "ownerReferences" not in api.objects["/api/v1/namespaces/ns/pods/bert-worker-0"]["metadata"]


def test_a_child_that_the_cache_has_not_seen_yet_is_ours_all_the_same():
    api = Api(job(worker=role(1)))
    blind = Controller(api)
    asyncio.run(Controller(api).until_quiet())
    with pytest.raises(Conflict):  # the status is newer: the job is looked at again
        asyncio.run(blind.look())  # it creates what is there
    assert api.names("Pod") == ["bert-worker-0"]


def test_a_pod_that_was_made_anew_meanwhile_is_not_deleted():
    api = Api(job(worker=role(1)))
    stale = Controller(api)
    asyncio.run(stale.until_quiet())
    del api.objects["/api/v1/namespaces/ns/pods/bert-worker-0"]
    asyncio.run(Controller(api).until_quiet())
    api.objects[JOB]["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 0
    asyncio.run(stale.look())
    assert api.names("Pod") == ["bert-worker-0"]


def test_a_job_whose_time_is_over_is_deleted_with_all_it_owns():
    api = Api(job(worker=role(1), run={"ttlSecondsAfterFinished": 60}))
    asyncio.run(Controller(api).until_quiet())
    api.phase("bert-worker-0", "Succeeded")
    asyncio.run(Controller(api).until_quiet())
    assert JOB in api.objects
    asyncio.run(Controller(api).until_quiet(NOW_S + 61))
    assert api.objects == {}
