"""A controller may die at any write: the end state is the same, and no pod is there twice."""

import asyncio
import copy

import pytest

from tests.controllers import elasticjobs
from tests.controllers.jobs import NOW_S, job, role
from tests.controllers.runtime.world import JOB, Api, Controller, Killed
from tests.controllers.test_colossalaijob import job as colossalaijob
from tests.controllers.test_msjob import job as msjob
from tests.controllers.test_msjob import role as msrole
from tests.controllers.volcano import volcanojobs
from turnout.controllers.model import Create, GangDialect, GangSettings, ReconcileOutcome
from turnout.controllers.runtime.writer import NameTaken
from turnout.kube.client.leased_calls import LeasedCalls
from turnout.kube.errors import Conflict, NotLeading
from turnout.kube.times import rfc3339

SCALED = {"minReplicas": 1, "maxReplicas": 4, "metrics": [{"type": "Resource"}]}


async def grown(api, controller):
    """A job comes up, one of its pods fails, it shrinks, and ends."""
    await controller().until_quiet()
    for name in ("bert-worker-0", "bert-worker-1", "bert-worker-2"):
        api.phase(name, "Running")
    api.phase("bert-worker-1", "Failed", 1)
    await controller().until_quiet()
    api.phase("bert-worker-1", "Running")
    api.resize("Worker", 2)
    await controller().until_quiet()
    for name in ("bert-worker-0", "bert-worker-1"):
        api.phase(name, "Succeeded")
    await controller().until_quiet()


async def replaced(api, controller):
    """An ElasticJob comes up, loses its master and twice a worker, shrinks and ends."""
    await controller().until_quiet()
    await lose(api, controller, "elasticjob-bert-dlrover-master-0", 137)
    await lose(api, controller, "bert-edljob-worker-1", 1)
    await lose(api, controller, "bert-edljob-worker-3", 138)
    api.resize("worker", 2)
    await controller().until_quiet()
    for name in ("bert-edljob-worker-0", "bert-edljob-worker-4"):
        api.phase(name, "Succeeded")
    await controller().until_quiet()


async def lose(api, controller, name, code, now_s=NOW_S):
    """All run, and one pod fails."""
    for each in api.names("Pod"):
        api.phase(each, "Running")
    api.phase(name, "Failed", code)
    await controller().until_quiet(now_s)


async def retried(api, controller):
    """A Volcano Job comes up, is restarted for a lost pod, then for an exit code, shrinks, and ends."""
    await controller().until_quiet()
    await lose(api, controller, "bert-worker-1", 1)
    await lose(api, controller, "bert-worker-2", 7)
    api.resize("worker", 2)
    await controller().until_quiet()
    for name in ("bert-worker-0", "bert-worker-1"):
        api.phase(name, "Succeeded")
    await controller().until_quiet()


async def dynamic(api, controller):
    """An MSJob comes up, loses a worker, shrinks, and ends with all of the others."""
    await controller().until_quiet()
    await lose(api, controller, "deep-worker-1", 137)
    api.resize("Worker", 2)
    await controller().until_quiet()
    for name in ("deep-worker-0", "deep-worker-1"):
        api.phase(name, "Succeeded")
    await controller().until_quiet()


async def launched(api, controller):
    """A ColossalAIJob comes up, is paused, goes on, trains and ends."""
    for paused in (True, False):
        await controller().until_quiet()
        for name in api.names("Pod"):
            api.phase(name, "Running")
        await controller().until_quiet()
        api.change(runMode={"pause": {"enabled": paused}})
        await controller().until_quiet()
    for name in api.names("Pod"):
        api.phase(name, "Running")
    await controller().until_quiet()
    api.phase("colossal-launcher", "Succeeded")
    await controller().until_quiet()


async def backs_off(api, controller):
    """A worker fails five times in a row, and is made anew after each pause."""
    now_s = NOW_S
    await controller().until_quiet(now_s)
    for pause_s in (0, 0, 0, 10, 20):
        await lose(api, controller, "bert-worker-1", 137, now_s)
        assert ("bert-worker-1" in api.names("Pod")) is (pause_s == 0)
        now_s += pause_s
        await controller().until_quiet(now_s)
    assert api.names("Pod") == ["bert-worker-0", "bert-worker-1"]


PYTORCH = job(worker=role(3), elastic=SCALED, run={"cleanPodPolicy": "All", "backoffLimit": 3})
MINDSPORE = msjob({"Scheduler": msrole(), "Worker": msrole(3, "ExitCode")}, enableDynamicWorker=True)
MINDSPORE["spec"] |= {"successPolicy": "AllWorkers", "runPolicy": {"cleanPodPolicy": "All"}}
RETRIES = [{"exitCode": 7, "action": "RestartJob"}, {"event": "PodFailed", "action": "RestartJob"}]
VOLCANO = volcanojobs.job(volcanojobs.task(minimum=1), minAvailable=1, policies=RETRIES, plugins={"svc": [], "env": []})
STORIES = {
    "PyTorchJob": (PYTORCH, grown),
    "PyTorchJob that fails at once": (job(worker=role(2, restart="ExitCode")), backs_off),
    "ElasticJob": (elasticjobs.job(elasticjobs.worker(3)), replaced),
    "MSJob": (MINDSPORE, dynamic),
    "ColossalAIJob": (colossalaijob(runPolicy={"cleanUpWorkers": True}), launched),
    "VolcanoJob": (VOLCANO, retried),
}


def writer_and_events(kind="PyTorchJob", kill_at=None, kill_after=False):
    """Play the story of a kind with a controller that is killed once and started anew; the API server after it."""
    raw, story = STORIES[kind]
    api = Api(copy.deepcopy(raw))
    api.kill_at, api.kill_after = kill_at, kill_after
    setup = GangSettings(GangDialect.VOLCANO)

    class Restarted(Controller):
        async def until_quiet(self, now_s=NOW_S):
            try:
                await super().until_quiet(now_s)
            except Killed:
                await Controller(api, setup).until_quiet(now_s)

    asyncio.run(story(api, lambda: Restarted(api, setup)))
    return api


def test_the_story_needs_many_writes_and_ends_clean():
    api = writer_and_events()
    assert api.writes > 20
    assert (api.names("Pod"), api.names("Service"), api.names("PodGroup")) == ([], [], [])


def test_an_elasticjobs_story_replaces_each_rank_under_a_new_id():
    api = writer_and_events("ElasticJob")
    roles = api.objects[api.job]["status"]["replicaStatuses"]
    assert (roles["worker"]["restartCounts"], roles["dlrover-master"]["restarts"]) == ({"1": 2}, 1)
    assert roles["worker"]["nextNumber"] == 5
    assert api.names("Pod") == ["bert-edljob-worker-0", "bert-edljob-worker-4"]


def test_an_ms_jobs_story_makes_a_worker_anew_and_leaves_no_pod():
    api = writer_and_events("MSJob")
    roles = api.objects[api.job]["status"]["replicaStatuses"]
    assert (roles["Worker"]["restarts"], api.names("Pod")) == (1, [])
    assert api.end()[api.job][2][-1][:2] == ("Succeeded", "True")


def test_a_colossalai_jobs_story_leaves_its_launcher_for_its_log():
    api = writer_and_events("ColossalAIJob")
    assert api.objects[api.job]["status"]["phase"] == "Succeeded"
    assert api.names("Pod") == ["colossal-launcher"]
    keys = next(each for each in api.objects.values() if each["kind"] == "Secret")["stringData"]
    assert sorted(keys) == ["authorized_keys", "config", "id_ecdsa", "id_ecdsa.pub", "ssh_host_ecdsa_key"]


def test_a_volcano_jobs_story_counts_each_restart_once():
    api = writer_and_events("VolcanoJob")
    status = api.objects[api.job]["status"]
    assert (status["state"]["phase"], status["retryCount"], status["version"]) == ("Completed", 2, 2)
    assert (api.names("Pod"), api.names("PodGroup")) == (["bert-worker-0", "bert-worker-1"], [])


ENDS = {kind: writer_and_events(kind) for kind in STORIES}
KILLS = [(kind, number) for kind, api in ENDS.items() for number in range(1, api.writes + 1)]


@pytest.mark.contract("XD-10", "DL-94")
@pytest.mark.parametrize("kill_after", [False, True], ids=["before it", "after it"])
@pytest.mark.parametrize(("kind", "number"), KILLS)
def test_a_controller_killed_at_any_write_changes_nothing_in_the_end(kind, number, kill_after):
    assert writer_and_events(kind, number, kill_after).end() == ENDS[kind].end()


def test_a_name_that_somebody_else_has_is_never_taken_over():
    api = Api(job(worker=role(1)))
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bert-worker-0"}, "spec": {}}
    asyncio.run(api.create("/api/v1/namespaces/ns/pods", body))
    with pytest.raises(NameTaken, match="Pod bert-worker-0 exists and belongs to somebody else"):
        asyncio.run(Controller(api).until_quiet())
    assert api.names("Service") == ["bert-worker-0"]
    assert "ownerReferences" not in api.objects["/api/v1/namespaces/ns/pods/bert-worker-0"]["metadata"]


@pytest.mark.parametrize(
    ("status_first", "pods"),
    [
        pytest.param(True, [], id="before the children, if it counts those that are deleted"),
        pytest.param(False, ["bert-worker-0"], id="after the children"),
    ],
)
def test_a_decision_is_noted_when_its_status_is_written(status_first, pods):
    api, noted = Api(job(worker=role(1))), []
    controller = Controller(api)
    controller.list()
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bert-worker-0"}, "spec": {}}
    outcome = ReconcileOutcome((Create(body),), status={"startTime": rfc3339(NOW_S)}, status_first=status_first)
    meta = api.objects[api.job]["metadata"]

    def note():
        noted.append((api.objects[api.job]["status"]["startTime"], api.names("Pod")))

    asyncio.run(controller.writer.carry_out(api.key, meta["uid"], meta["resourceVersion"], outcome, note))
    assert noted == [(rfc3339(NOW_S), pods)]
    assert api.names("Pod") == ["bert-worker-0"]


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
    api.resize("Worker", 0)
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


class Slow(Api):
    """An API server that takes its time to make a pod, and notes what was asked for meanwhile."""

    def __init__(self, job):
        super().__init__(job)
        self.noted = []

    async def create(self, path, body):
        if body["kind"] != "Pod":
            return await super().create(path, body)
        self.noted.append(f"asked {body['metadata']['name']}")
        await asyncio.sleep(0)
        stored = await super().create(path, body)
        self.noted.append(f"made {body['metadata']['name']}")
        return stored


@pytest.mark.contract("VE-25")
def test_the_pod_of_worker_0_is_there_before_another_is_asked_for():
    api = Slow(job(worker=role(3)))
    asyncio.run(Controller(api).until_quiet())
    assert api.noted[:2] == ["asked bert-worker-0", "made bert-worker-0"]
    assert sorted(api.noted[2:4]) == ["asked bert-worker-1", "asked bert-worker-2"]


class Silent(Slow):
    """An API server that never answers whoever asks for a pod."""

    def __init__(self, job):
        super().__init__(job)
        self.asked = asyncio.Event()

    async def create(self, path, body):
        if body["kind"] == "Pod":
            self.noted.append(body["metadata"]["name"])
            self.asked.set()
            await asyncio.Event().wait()
        return await super().create(path, body)


@pytest.mark.asyncio
async def test_a_controller_that_lost_its_lease_writes_nothing_more():
    """Before, the other pods were made: past the grace of a lost Lease, so that the whole program ended."""
    api = Silent(job(worker=role(3)))
    working = asyncio.create_task(Controller(api).until_quiet())
    await api.asked.wait()
    working.cancel()
    for _ in range(20):
        await asyncio.sleep(0)
    assert (working.done(), api.noted) == (True, ["bert-worker-0"])
    assert working.cancelled()


def test_what_is_refused_for_one_pod_keeps_no_other_from_being_made():
    class Refusing(Slow):
        async def create(self, path, body):
            if body["metadata"]["name"] == "bert-worker-0" and body["kind"] == "Pod":
                raise Conflict("POST", path, 409, "changed meanwhile")
            return await super().create(path, body)

    api = Refusing(job(worker=role(3)))
    with pytest.raises(Conflict):
        asyncio.run(Controller(api).until_quiet())
    assert api.names("Pod") == ["bert-worker-1", "bert-worker-2"]


@pytest.mark.parametrize("writes", [pytest.param(number, id=f"after {number} writes") for number in range(4)])
def test_a_replica_that_lost_its_lease_writes_nothing_more(writes):
    """Whatever it had still to write: another replica leads by now."""
    api = Api(job(worker=role(3)))
    controller = Controller(api, calls=LeasedCalls(api, lambda: api.writes < writes))
    with pytest.raises(NotLeading):
        asyncio.run(controller.until_quiet())
    assert api.writes == writes
