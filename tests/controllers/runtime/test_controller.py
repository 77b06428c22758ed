"""The loop of the job controllers: a fault in one job is that job's, and one word tells of one decision everywhere."""

import dataclasses

import msgspec
import pytest

from tests.controllers.jobs import NOW_S, job, role
from tests.controllers.runtime.world import KEY, KINDS
from tests.kit.clock import ManualClock
from tests.kube.world import running
from turnout.controllers.model import KUBEFLOW, Create, GangSettings, Reason, RestartReason
from turnout.controllers.runtime.controller import JobController, Metrics
from turnout.controllers.runtime.owned_objects import ChildCache, JobObject, OwnedPod
from turnout.controllers.runtime.work_queue import WorkQueue
from turnout.controllers.runtime.writer import NameTaken
from turnout.kube.backoff import Backoff
from turnout.kube.client.clock import SteadyTime
from turnout.kube.errors import Conflict, Forbidden
from turnout.kube.times import rfc3339

pytestmark = pytest.mark.asyncio


class Events:
    """Remembers what is told. fault: raised instead, once."""

    def __init__(self):
        self.told, self.fault = [], None

    def emit(self, ref, type_, reason, message, now):
        if (fault := self.fault) is not None:
            self.fault = None
            raise fault
        self.told.append((ref.name, reason, message))


class Writer:
    """Remembers whose outcome it carried out. faults: what it raises, by the name of a job.

    after_status: it raises after the status of the job was written, else before.
    """

    def __init__(self):
        self.carried, self.faults, self.after_status = [], {}, False

    async def carry_out(self, key, uid, version, outcome, on_decided):
        self.carried.append((key.name, outcome))
        if self.after_status:
            on_decided()
        if key.name in self.faults:
            raise self.faults[key.name]
        if not self.after_status:
            on_decided()

    def names(self):
        return [name for name, _ in self.carried]

    def any(self, happens):
        return any(happens(outcome) for _, outcome in self.carried)


class World:
    """A controller over jobs that a test puts in."""

    def __init__(self, *jobs, server_ahead_s=lambda: None):
        self.clock, self.events, self.writer = ManualClock(), Events(), Writer()
        self.queue = WorkQueue(self.clock, Backoff(first_s=1.0, max_s=8.0), lambda: 1.0)
        self.cache, self.metrics = ChildCache(self.queue.add, KINDS), Metrics(self.queue.__len__)
        parts = self.queue, self.writer, KINDS, GangSettings(), self.clock, self.events, self.metrics
        self.controller = JobController(self.cache, *parts, SteadyTime(self.clock, server_ahead_s))
        for each in jobs:
            self.put(each)

    def put(self, raw):
        obj = msgspec.json.decode(msgspec.json.encode(raw), type=JobObject)
        self.cache.put_job(f"/apis/{raw['apiVersion']}", raw["kind"], obj)

    def faults(self):
        labels = {"job_kind": "PyTorchJob"}
        return self.metrics.registry.get_sample_value("turnout_controller_internal_errors_total", labels)


def jobs(*names):
    return [job(name, worker=role()) for name in names]


async def test_a_fault_of_ours_while_a_job_is_written_is_that_jobs_alone(caplog):
    world = World(*jobs("a", "b", "c"))
    world.writer.faults["b"] = ZeroDivisionError("ours")
    async with running(world.controller.run()):
        await world.clock.advance(0.5)
        assert sorted(world.writer.names()) == ["a", "b", "c"]
        assert [(record.msg, record.job) for record in caplog.records] == [("job_refused", "ns/b")]
        assert world.faults() == 1
        refusals = [(name, message) for name, reason, message in world.events.told if reason == "ControllerFault"]
        assert [(name, "ours" in message) for name, message in refusals] == [("b", True)]
        world.writer.faults.clear()
        world.put(job("d", worker=role()))  # the loop goes on
        await world.clock.advance(5.0)
        assert sorted(world.writer.names()) == ["a", "b", "b", "c", "d"]


async def test_a_fault_of_ours_while_a_job_is_told_of_is_that_jobs_alone():
    world = World(job("a"), *jobs("b", "c"))  # the first has no roles, and is told so
    world.events.fault = ZeroDivisionError("ours")
    async with running(world.controller.run()):
        await world.clock.advance(0.5)
        assert sorted(world.writer.names()) == ["a", "b", "c"]
        await world.clock.advance(5.0)
        assert sorted(world.writer.names()) == ["a", "a", "b", "c"]


async def test_a_decision_whose_write_lost_a_conflict_is_reported_once():
    world = World(job("a"))  # it has no roles, and is refused
    world.writer.faults["a"] = Conflict("PATCH", "/", 409, "changed")
    async with running(world.controller.run()):
        await world.clock.advance(0.5)
        assert world.writer.names() == ["a"]
        assert world.events.told == []
        world.writer.faults.clear()
        await world.clock.advance(2.0)
    assert [(name, reason) for name, reason, _ in world.events.told] == [("a", "Invalid")]


async def test_a_refused_write_is_reported_without_what_was_decided():
    world = World(job("a"))
    world.writer.faults["a"] = Forbidden("POST", "/", 403, "exceeded quota")
    async with running(world.controller.run()):
        await world.clock.advance(0.5)
    assert [(name, reason) for name, reason, _ in world.events.told] == [("a", "CreationFailed")]


async def test_a_decision_is_reported_though_a_pod_is_refused_after_its_status():
    world = World(job("a"))
    world.writer.after_status, world.writer.faults["a"] = True, Forbidden("POST", "/", 403, "exceeded quota")
    async with running(world.controller.run()):
        await world.clock.advance(0.5)
    assert [(name, reason) for name, reason, _ in world.events.told] == [("a", "Invalid"), ("a", "CreationFailed")]


async def test_a_job_on_which_nothing_can_be_decided_is_tried_again_later():
    world = World(*jobs("a", "c"))
    broken = {**KINDS, KEY.api: _raising(KINDS[KEY.api], "b")}
    parts = world.queue, world.writer, broken, GangSettings(), world.clock, world.events, world.metrics
    world.controller = JobController(world.cache, *parts)
    world.put(job("b", worker=role()))
    async with running(world.controller.run()):
        await world.clock.advance(0.5)
        assert (sorted(world.writer.names()), world.faults()) == (["a", "c"], 1)
        await world.clock.advance(2.0)
        assert (sorted(world.writer.names()), world.faults()) == (["a", "c"], 2)


def _raising(kind, name):
    def read(raw):
        if raw["metadata"]["name"] == name:
            raise ZeroDivisionError("ours")
        return kind.read(raw)

    return dataclasses.replace(kind, read=read)


BEGAN = {"startTime": rfc3339(NOW_S), "conditions": [{"type": "Created", "status": "True"}]}
ENDED = {
    "completionTime": rfc3339(NOW_S),
    "conditions": [{"type": "Succeeded", "status": "True", "reason": "PyTorchJobSucceeded"}],
}
FAILING = {**BEGAN, "replicaStatuses": {"Worker": {"quickFailures": {"0": 9}, "lastFailures": {"0": int(NOW_S)}}}}


def ended(outcome):
    """True if the job was ended."""
    return "Failed" in [each["type"] for each in (outcome.status or {}).get("conditions", ())]


def deleted(outcome):
    """True if the job was deleted."""
    return outcome.delete_job


def made(outcome):
    """True if its pod was made."""
    return any(isinstance(each, Create) and each.body["kind"] == "Pod" for each in outcome.writes)


TIMED = {
    "its end": (job(worker=role(), run={"activeDeadlineSeconds": 3600}, status=BEGAN), 3600.0, ended),
    "its deletion": (job(worker=role(), run={"ttlSecondsAfterFinished": 3600}, status=ENDED), 3600.0, deleted),
    "a replica that waits": (job(worker=role(), status=FAILING), 300.0, made),
}


@pytest.mark.parametrize("what", TIMED)
async def test_time_alone_decides_nothing_for_two_looks_after_a_clock_jumped(what, caplog):
    raw, after_s, happens = TIMED[what]
    world = World(raw)
    async with running(world.controller.run()):
        await world.clock.advance(60.0)
        assert not world.writer.any(happens)
        world.clock.wall_offset_s += after_s
        await world.clock.advance(9.0 + 10.0)  # to the first look, and a second
        assert not world.writer.any(happens)
        assert world.metrics.registry.get_sample_value("turnout_controller_clock_jump_seconds") == after_s
        await world.clock.advance(30.0)  # it has not jumped back: that is the time now
        assert world.writer.any(happens)
    assert [record.msg for record in caplog.records if record.msg == "clock_jumped"] == ["clock_jumped"]


@pytest.mark.parametrize("what", TIMED)
async def test_a_wall_clock_that_the_api_server_contradicts_decides_nothing(what):
    raw, after_s, happens = TIMED[what]
    world = World(raw, server_ahead_s=lambda: NOW_S - 1000.0)
    async with running(world.controller.run()):
        world.clock.wall_offset_s += after_s
        await world.clock.advance(120.0)
        assert not world.writer.any(happens)
        await world.clock.advance(after_s)
        assert world.writer.any(happens)


@pytest.mark.parametrize("what", ["its end", "its deletion"])
async def test_what_a_jump_puts_off_is_told_to_the_jobs_owner(what):
    raw, after_s, happens = TIMED[what]
    world = World(raw)
    async with running(world.controller.run()):
        await world.clock.advance(after_s - 12.0)
        world.clock.wall_offset_s -= 7200.0
        await world.clock.advance(14.0)
        assert not world.writer.any(happens)
        assert ("bert", "ClockJumped", f"{what} is put off: a clock has jumped by -7200 s") in world.events.told


@pytest.mark.contract("XD-07")
@pytest.mark.parametrize(("raw", "reason"), [
    pytest.param(job(), "Invalid", id="an object that cannot be obeyed"),
    pytest.param(job(worker=role(), run={"suspend": True}), "Suspended", id="a job that is suspended"),
    pytest.param(
        job(worker=role(), run={"activeDeadlineSeconds": 1}, status={**BEGAN, "startTime": rfc3339(NOW_S - 9)}),
        "Failed",
        id="one that is past its limits",
    ),
])  # fmt: skip
async def test_one_decision_has_one_word_in_log_event_and_metric(raw, reason, caplog):
    caplog.set_level("INFO")
    world = World(raw)
    async with running(world.controller.run()):
        await world.clock.advance(0.5)
    assert [each[1] for each in world.events.told] == [reason]
    assert [record.reason for record in caplog.records if record.msg == "event_recorded"] == [reason]
    labels = {"job_kind": "PyTorchJob", "reason": reason}
    assert world.metrics.registry.get_sample_value("turnout_controller_events_total", labels) == 1
    assert reason in {each.value for each in Reason}


CREATED_S = NOW_S - 60


def created(raw):
    """A job with the time of its creation."""
    return {**raw, "metadata": {**raw["metadata"], "creationTimestamp": rfc3339(CREATED_S)}}


def owned_pod(raw, after_s):
    """The pod of a job, created so many seconds after the job."""
    owner = {"apiVersion": raw["apiVersion"], "kind": raw["kind"], "name": "bert", "uid": "uid-bert"}
    meta = {"name": "bert-worker-0", "namespace": "ns", "uid": "uid-0", "resourceVersion": "5"}
    meta |= {"creationTimestamp": rfc3339(CREATED_S + after_s), "ownerReferences": [{**owner, "controller": True}]}
    return msgspec.convert({"metadata": meta}, OwnedPod)


@pytest.mark.parametrize(("statuses", "observed"), [
    pytest.param([{}, BEGAN], [4.0], id="a new job"),
    pytest.param([BEGAN, BEGAN], [], id="a job that is older than this leader's term"),
    pytest.param(
        [{}, {"conditions": [{"type": "Suspended", "status": "True"}]}, BEGAN], [], id="a job that was suspended first"
    ),
])  # fmt: skip
async def test_the_time_to_the_first_pod_is_observed_once(statuses, observed):
    world = World()
    async with running(world.controller.run()):
        for number, status in enumerate(statuses):
            raw = created(job(worker=role(), status=status))
            world.put({**raw, "metadata": {**raw["metadata"], "resourceVersion": str(number + 1)}})
            await world.clock.advance(0.5)
        for after_s in (4, 9):
            world.cache.put_pod(owned_pod(raw, after_s))
            await world.clock.advance(0.5)
    labels = {"job_kind": "PyTorchJob"}
    value = world.metrics.registry.get_sample_value
    name = "turnout_controller_first_pod_seconds"
    assert (value(f"{name}_count", labels) or 0, value(f"{name}_sum", labels) or 0) == (len(observed), sum(observed))


async def test_jobs_are_counted_by_kind_and_phase_while_leading():
    world = World(*jobs("a", "b"), job("c", worker=role(), status=ENDED))
    leads = []
    metrics = Metrics(int, ["PyTorchJob"], lambda: world.cache.count_by_phase() if leads else None)

    def count(phase):
        labels = {"job_kind": "PyTorchJob", "phase": phase}
        return metrics.registry.get_sample_value("turnout_controller_jobs", labels)

    assert count("pending") is None
    leads.append(True)
    phases = ("pending", "running", "restarting", "suspended", "succeeded", "failed")
    assert [count(phase) for phase in phases] == [2, 0, 0, 0, 1, 0]


@pytest.mark.parametrize("fault", [Conflict("PATCH", "/", 409, "changed"), NameTaken("Pod", "bert-worker-0")])
async def test_restarts_are_counted_once_they_are_written(fault):
    raw = job(worker=role(), status=BEGAN)
    world = World()
    failed = owned_pod(raw, 4)
    failed.metadata.labels = {KUBEFLOW.job: "bert", KUBEFLOW.role: "worker", KUBEFLOW.index: "0"}
    failed.status.phase = "Failed"
    world.writer.faults["bert"] = fault
    world.put(raw)
    world.cache.put_pod(failed)
    labels = {"job_kind": "PyTorchJob", "reason": "process_failed"}
    async with running(world.controller.run()):
        await world.clock.advance(0.5)
        assert world.metrics.registry.get_sample_value("turnout_controller_restarts_total", labels) is None
        world.writer.faults.clear()
        await world.clock.advance(31.0)
    assert world.metrics.registry.get_sample_value("turnout_controller_restarts_total", labels) >= 1


async def test_restarts_start_at_0_for_every_kind_and_reason():
    registry = Metrics(int, ["PyTorchJob"]).registry
    for reason in RestartReason:
        labels = {"job_kind": "PyTorchJob", "reason": reason.value}
        assert registry.get_sample_value("turnout_controller_restarts_total", labels) == 0
