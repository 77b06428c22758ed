"""An account that may not list something: nodes are done without, and pods that cannot be read are Unknown."""

import asyncio
import random
from contextlib import suppress

import msgspec
import pytest

from tests.controllers.jobs import NOW_S, role, with_status
from tests.controllers.jobs import job as pytorchjob
from tests.controllers.test_colossalaijob import ALL, COLOSSALAIJOB, after, job, launcher, others, worker
from tests.controllers.test_colossalaijob import S as SUCCEEDED
from tests.kit.clock import ManualClock, settle
from turnout.controllers.kinds.registry import by_api
from turnout.controllers.model import GangSettings, JobKey, OwnedObjects
from turnout.controllers.reconcile import NOTHING, reconcile
from turnout.controllers.runtime.owned_objects import ChildCache, JobObject
from turnout.controllers.runtime.watches import PODS_UNREADABLE_AFTER_S, ControllerInformers
from turnout.kube.errors import Forbidden

KINDS = by_api(["ColossalAIJob", "PyTorchJob"])
API = "/apis/batch.tensorstack.dev/v1beta1"


class Server:
    """Serves empty lists, and watches in which nothing happens. forbidden: paths that may not be listed or watched."""

    def __init__(self, *forbidden):
        self.forbidden, self.ends = set(forbidden), asyncio.Event()

    def _check(self, path):
        if path in self.forbidden:
            raise Forbidden("GET", path, 403, "may not")

    async def pages(self, path, params=None, *, limit=500):
        self._check(path)
        yield b'{"metadata":{"resourceVersion":"1"},"items":[]}'

    async def watch(self, path, params):
        self._check(path)
        yield b""
        await self.ends.wait()
        self._check(path)


def watched(play, *forbidden):
    """Run the informers against such a server while `play` moves the clock."""

    async def all_listed():
        changed, clock, server = [], ManualClock(), Server(*forbidden)
        cache = ChildCache(changed.append, KINDS)
        informers = ControllerInformers(cache, server, KINDS, GangSettings(), clock, random.Random(1))
        running = asyncio.create_task(informers.run())
        await settle(100)
        try:
            await play(informers, cache, clock, server, changed)
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    asyncio.run(all_listed())


def test_jobs_are_controlled_by_an_account_that_may_not_list_nodes():
    async def play(informers, cache, clock, server, changed):
        assert (informers.has_synced, informers.unready_reason(), cache.nodes.offered) == (True, None, None)
        assert not informers.reflectors["nodes"].has_synced

    watched(play, "/api/v1/nodes")


def test_without_pods_no_job_is_looked_at():
    async def play(informers, cache, clock, server, changed):
        assert not informers.has_synced

    watched(play, "/api/v1/pods")


def test_nodes_that_are_listed_are_known():
    async def play(informers, cache, clock, server, changed):
        assert cache.nodes.offered == frozenset()

    watched(play)


@pytest.mark.contract("CA-55")
def test_pods_that_cannot_be_read_for_a_minute_are_told_to_their_jobs():
    key = JobKey(API, "ns", "colossal")

    async def play(informers, cache, clock, server, changed):
        raw = job()
        cache.put_job(
            API, "ColossalAIJob", msgspec.convert({each: raw[each] for each in ("metadata", "spec")}, JobObject)
        )
        changed.clear()
        server.forbidden.add("/api/v1/pods")
        server.ends.set()
        await clock.advance(PODS_UNREADABLE_AFTER_S - 10.0)
        assert (changed, cache.job(key)[1].pods_unreadable) == ([], False)
        await clock.advance(30.0)
        assert (changed, cache.job(key)[1].pods_unreadable) == ([key], True)
        server.forbidden.clear()
        server.ends.clear()
        await clock.advance(90.0)
        assert (changed, cache.job(key)[1].pods_unreadable) == ([key, key], False)

    watched(play)


def test_once_pods_can_be_read_again_every_job_is_looked_at():
    """Nothing was decided in between, not even on jobs whose status tells nothing of pods that cannot be read."""
    key = JobKey("/apis/kubeflow.org/v1", "ns", "bert")

    async def play(informers, cache, clock, server, changed):
        server.forbidden.add("/api/v1/pods")
        server.ends.set()
        await clock.advance(PODS_UNREADABLE_AFTER_S + 20.0)
        cache.put_job(key.api, "PyTorchJob", msgspec.convert(pytorchjob(worker=role(1)), JobObject))
        raw, owned = cache.job(key)
        assert owned.pods_unreadable
        assert reconcile(KINDS[key.api], raw, owned, NOW_S) == NOTHING
        changed.clear()
        server.forbidden.clear()
        server.ends.clear()
        await clock.advance(90.0)
        assert changed == [key]

    watched(play)


@pytest.mark.contract("CA-55")
def test_while_pods_cannot_be_read_the_phase_is_unknown_and_nothing_done():
    raw = after(job(), *ALL)
    outcome = reconcile(COLOSSALAIJOB, raw, OwnedObjects((worker(0),), others(raw), pods_unreadable=True), NOW_S)
    raw = with_status(raw, outcome)
    assert (raw["status"]["phase"], outcome.writes) == ("Unknown", ())
    assert (
        reconcile(COLOSSALAIJOB, raw, OwnedObjects((worker(0),), others(raw), pods_unreadable=True), NOW_S).status
        is None
    )
    assert after(raw, *ALL)["status"]["phase"] == "Running"


@pytest.mark.contract("CA-55")
def test_the_end_of_a_job_stays_though_pods_cannot_be_read():
    raw = after(after(job(), *ALL), launcher(SUCCEEDED), worker(0), worker(1))
    outcome = reconcile(COLOSSALAIJOB, raw, OwnedObjects((), others(raw), pods_unreadable=True), NOW_S)
    assert with_status(raw, outcome)["status"]["phase"] == "Succeeded"
