"""The loop of the job controllers: a fault in one job is that job's, and one word tells of one decision everywhere."""

import dataclasses

import msgspec
import pytest

from tests.controllers.jobs import job, role
from tests.controllers.runtime.world import KEY, KINDS
from tests.kube.world import ManualClock, running
from turnout.controllers.model import Setup
from turnout.controllers.observed import JobObject
from turnout.controllers.runtime.cache import Cache
from turnout.controllers.runtime.controller import JobController
from turnout.controllers.runtime.metrics import Metrics
from turnout.controllers.runtime.work_queue import WorkQueue
from turnout.kube.backoff import Backoff

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
    """Remembers whose outcome it carried out. faults: what it raises, by the name of a job."""

    def __init__(self):
        self.carried, self.faults = [], {}

    async def carry_out(self, key, uid, version, outcome):
        self.carried.append((key.name, outcome))
        if key.name in self.faults:
            raise self.faults[key.name]

    def names(self):
        return [name for name, _ in self.carried]


class World:
    """A controller over jobs that a test puts in."""

    def __init__(self, *jobs):
        self.clock, self.events, self.writer = ManualClock(), Events(), Writer()
        self.queue = WorkQueue(self.clock, Backoff(first_s=1.0, most_s=8.0), lambda: 1.0)
        self.cache, self.metrics = Cache(self.queue.add, KINDS), Metrics(self.queue.__len__)
        parts = self.queue, self.writer, KINDS, Setup(), self.clock, self.events, self.metrics
        self.controller = JobController(self.cache, *parts)
        for each in jobs:
            self.put(each)

    def put(self, raw):
        obj = msgspec.json.decode(msgspec.json.encode(raw), type=JobObject)
        self.cache.put_job(f"/apis/{raw['apiVersion']}", raw["kind"], obj)

    def faults(self):
        return self.metrics.registry.get_sample_value("turnout_controller_faults_total")


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
        assert sorted(world.writer.names()) == ["b", "c"]
        await world.clock.advance(5.0)
        assert sorted(world.writer.names()) == ["a", "b", "c"]


async def test_a_job_on_which_nothing_can_be_decided_is_tried_again_after_its_back_off():
    world = World(*jobs("a", "c"))
    broken = {**KINDS, KEY.api: _raising(KINDS[KEY.api], "b")}
    parts = world.queue, world.writer, broken, Setup(), world.clock, world.events, world.metrics
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
