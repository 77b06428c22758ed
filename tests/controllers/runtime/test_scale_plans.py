"""A plan is carried out once: whoever ends between its two writes, its job has the size and its status says so."""

import asyncio

import msgspec
import pytest
from yarl import URL

from tests.controllers import elasticjobs
from tests.controllers.runtime.world import Api, Killed
from tests.kit.clock import ManualClock
from tests.kube.world import running
from turnout.controllers.model import JobKey
from turnout.controllers.runtime.controller import Metrics
from turnout.controllers.runtime.owned_objects import JobObject
from turnout.controllers.runtime.scale_plans import PATH, ScalePlans
from turnout.controllers.runtime.work_queue import WorkQueue
from turnout.kube.backoff import Backoff
from turnout.kube.errors import ServerFault
from turnout.kube.watch_events import Key

KEY = JobKey(PATH, "ns", "bert-plan")
PLAN = f"{PATH}/namespaces/ns/scaleplans/bert-plan"


def world(owner="bert"):
    """Return an API server with a job of two workers and a plan of three."""
    api, raw = Api(elasticjobs.job()), elasticjobs.plan(owner)
    meta = {**raw["metadata"], "name": "bert-plan", "namespace": "ns", "uid": "p", "resourceVersion": "1"}
    meta["managedFields"] = [{"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {}}}]
    api.objects[PLAN] = {**raw, "metadata": meta}
    return api


def single_queue(clock):
    return WorkQueue(clock, Backoff(first_s=1.0, max_s=8.0), lambda: 1.0, one_per_namespace=True)


def plans(api, clock=None, events=None):
    """Return a process that has seen the plan."""
    clock = clock or ManualClock()
    queue = single_queue(clock)
    scale_plans = ScalePlans(api, queue, clock, events or Events(), Metrics(queue.__len__))
    scale_plans.store_plan(msgspec.json.decode(msgspec.json.encode(api.objects[PLAN]), type=JobObject))
    return scale_plans


def end(api):
    return api.objects[api.job]["spec"]["replicaSpecs"]["worker"]["replicas"], api.objects[PLAN]["status"]["phase"]


def test_a_plan_is_carried_out_by_two_writes_and_not_again():
    api = world()
    scale_plans = plans(api)
    asyncio.run(scale_plans.carry_out(KEY))
    asyncio.run(scale_plans.carry_out(KEY))
    asyncio.run(plans(api).carry_out(KEY))
    assert (end(api), api.writes) == ((3, "Succeeded"), 2)


@pytest.mark.parametrize("kill_after", [False, True], ids=["before it", "after it"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_process_that_ends_at_any_write_changes_nothing_in_the_end(number, kill_after):
    api = world()
    api.kill_at, api.kill_after = number, kill_after
    with pytest.raises(Killed):
        asyncio.run(plans(api).carry_out(KEY))
    asyncio.run(plans(api).carry_out(KEY))
    assert end(api) == (3, "Succeeded")


def test_a_plan_for_a_job_that_is_not_there_fails():
    api = world("other")
    asyncio.run(plans(api).carry_out(KEY))
    assert end(api) == (2, "Failed")


class Events:
    """Remembers of what an Event was told, and its reason."""

    def __init__(self):
        self.told = []

    def emit(self, ref, type_, reason, message, now):
        self.told.append((ref, reason))


def plan_of(namespace):
    return f"{PATH}/namespaces/{namespace}/scaleplans/bert-plan"


class Faulty(Api):
    """An API server behind a client with a fault of ours at some paths."""

    faulty = "/nowhere/"

    def __init__(self, job):
        super().__init__(job)
        self.objects |= world().objects

    def add(self, namespace, number):
        """Add a namespace with a job and its plan."""
        for path in (self.job, PLAN):
            meta = {**self.objects[path]["metadata"], "namespace": namespace, "uid": f"{namespace}{number}"}
            self.objects[path.replace("/ns/", f"/{namespace}/")] = {**self.objects[path], "metadata": meta}

    async def get(self, path):
        if self.faulty in path:
            raise ZeroDivisionError("ours")
        return await super().get(path)


class Resolving(Api):
    """An API server behind a client that resolves a path as every HTTP client does."""

    async def get(self, path):
        return await super().get(URL(f"http://api{path}").path)

    def _patch(self, path, body):
        return super()._patch(URL(f"http://api{path}").path, body)


@pytest.mark.parametrize(
    "owner",
    [
        pytest.param("../../victims/elasticjobs/bert", id="by a path upwards"),
        pytest.param("%2e%2e/%2e%2e/victims/elasticjobs/bert", id="by a path upwards, encoded"),
        pytest.param("bert/../../../victims/elasticjobs/bert", id="by a path behind a job of its own"),
    ],
)
def test_a_plan_reaches_no_job_of_another_namespace(owner):
    api = world(owner)
    api.__class__ = Resolving
    victim = f"{PATH}/namespaces/victims/elasticjobs/bert"
    api.objects[victim] = {
        **api.objects[api.job],
        "metadata": {**api.objects[api.job]["metadata"], "namespace": "victims"},
    }
    before = api.objects[victim]
    asyncio.run(plans(api).carry_out(KEY))
    assert api.objects[victim] == before
    assert end(api) == (2, "Failed")


@pytest.mark.asyncio
async def test_a_fault_of_ours_while_a_plan_is_carried_out_is_that_plans_alone(caplog):
    clock, events = ManualClock(), Events()
    api = Faulty(elasticjobs.job())
    for number, namespace in enumerate(("a", "b", "c")):
        api.add(namespace, number)
    scale_plans = plans(api, clock, events)
    for namespace in ("a", "b", "c"):
        scale_plans.store_plan(
            msgspec.json.decode(msgspec.json.encode(api.objects[plan_of(namespace)]), type=JobObject)
        )
    api.faulty = "/namespaces/b/"
    async with running(scale_plans.run()):
        await clock.advance(0.5)
        assert [api.objects[plan_of(each)].get("status", {}).get("phase") for each in "abc"] == [
            "Succeeded",
            None,
            "Succeeded",
        ]
        assert [(record.msg, record.plan) for record in caplog.records] == [("scale_plan_refused", "b/bert-plan")]
        assert [(ref.namespace, ref.kind, reason) for ref, reason in events.told] == [
            ("b", "ScalePlan", "ControllerFault")
        ]
        api.faulty = "/nowhere/"
        await clock.advance(5.0)
        assert api.objects[plan_of("b")]["status"]["phase"] == "Succeeded"


class Busy(Api):
    """An API server that refuses the first change of the job with 503."""

    async def patch(self, path, body, *rest):
        if path == self.job and not self.is_past_fault:
            self.is_past_fault = True
            raise ServerFault("PATCH", path, 503, "busy")
        return await super().patch(path, body, *rest)

    is_past_fault = False


def store(scale_plans, api, name, workers, created, phase=None):
    """Add a plan to the server, and show it to the process."""
    path, raw = PLAN.replace("bert-plan", name), elasticjobs.plan(workers=workers)
    meta = {**raw["metadata"], "name": name, "namespace": "ns", "uid": name, "resourceVersion": "1"}
    api.objects[path] = {**raw, "metadata": {**meta, "creationTimestamp": created}}
    if phase:
        api.objects[path]["status"] = {"phase": phase}
    scale_plans.store_plan(msgspec.json.decode(msgspec.json.encode(api.objects[path]), type=JobObject))
    return path


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "created",
    [
        pytest.param(("2026-01-01T00:00:00Z", "2026-01-01T00:00:09Z"), id="seconds apart"),
        pytest.param(("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"), id="in one second"),
    ],
)
async def test_a_plan_that_a_newer_one_of_its_job_overtook_fails(created):
    clock, api = ManualClock(), Busy(elasticjobs.job())
    scale_plans = ScalePlans(api, single_queue(clock), clock, Events(), Metrics(lambda: 0))
    older, newer = (store(scale_plans, api, *each) for each in (("older", 4, created[0]), ("newer", 8, created[1])))
    async with running(scale_plans.run()):
        await clock.advance(0.5)
        await clock.advance(5.0)
    assert api.objects[api.job]["spec"]["replicaSpecs"]["worker"]["replicas"] == 8
    assert [api.objects[each]["status"]["phase"] for each in (older, newer)] == ["Failed", "Succeeded"]
    assert "newer is a newer plan of bert" in api.objects[older]["status"]["message"]


@pytest.mark.parametrize(
    ("created", "phase", "is_deleted", "workers"),
    [
        pytest.param("2026-01-01T00:00:09Z", "Succeeded", False, 2, id="newer"),
        pytest.param("2026-01-01T00:00:00Z", "Succeeded", False, 4, id="of the same second"),
        pytest.param("2026-01-01T00:00:09Z", "Failed", False, 4, id="newer, and failed"),
        pytest.param("2026-01-01T00:00:09Z", "Succeeded", True, 4, id="newer, and deleted since"),
    ],
)
def test_plans_that_were_carried_out_before_a_restart_count(created, phase, is_deleted, workers):
    api, clock = Api(elasticjobs.job()), ManualClock()
    scale_plans = ScalePlans(api, single_queue(clock), clock, Events(), Metrics(lambda: 0))
    store(scale_plans, api, "done", 8, created, phase)
    store(scale_plans, api, "pending", 4, "2026-01-01T00:00:00Z")
    if is_deleted:
        scale_plans.drop_plan(Key("ns", "done", "done"))
    asyncio.run(scale_plans.carry_out(JobKey(PATH, "ns", "pending")))
    assert api.objects[api.job]["spec"]["replicaSpecs"]["worker"]["replicas"] == workers


def test_a_plan_that_is_gone_is_forgotten():
    api = world()
    scale_plans = plans(api)
    scale_plans.drop_plan(Key("ns", "bert-plan", "p"))
    asyncio.run(scale_plans.carry_out(KEY))
    assert api.writes == 0
