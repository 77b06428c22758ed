"""When what the watches have shown may be old: while one is down, and until it has caught up."""

import asyncio
import random
from contextlib import asynccontextmanager

import pytest

from tests.kube.world import ManualClock, running, settle
from turnout.kube.client.clock import RealClock
from turnout.kube.errors import Unreachable
from turnout.scheduler_ext.__main__ import run_until_told
from turnout.scheduler_ext.model import Rules
from turnout.scheduler_ext.server.extender import Extender
from turnout.scheduler_ext.server.informers import CAUGHT_UP_S, Informers
from turnout.scheduler_ext.server.metrics import Metrics

pytestmark = pytest.mark.asyncio
NODES, PODS = "/api/v1/nodes", "/api/v1/pods"


class Cluster:
    """A Source of nothing, whose watches break when told to, and are refused until told otherwise."""

    def __init__(self):
        self.down, self._cut = set(), {}

    async def pages(self, path, params=None, *, limit=500):
        yield b'{"metadata": {"resourceVersion": "1"}, "items": []}'

    async def watch(self, path, params):
        if path in self.down:
            raise Unreachable("GET", path, 0, "refused")
        self._cut[path] = asyncio.Event()
        yield b""
        await self._cut[path].wait()
        raise Unreachable("GET", path, 0, "cut off")

    def cut(self, path):
        self.down.add(path)
        self._cut[path].set()


@asynccontextmanager
async def seeing():
    """Informers at work, which have seen all there is for a while."""
    clock, cluster = ManualClock(), Cluster()
    view = Extender(Rules(), clock, Metrics(), lambda notice: None)
    informers = Informers(view, cluster, "default/map", clock, random.Random(7))
    async with running(informers.run()):
        await settle()
        yield cluster, clock, view


async def test_a_view_is_old_until_its_first_watches_have_caught_up():
    async with seeing() as (_, clock, view):
        assert view.may_be_old()
        await clock.advance(CAUGHT_UP_S)
        assert not view.may_be_old()


@pytest.mark.parametrize("path", [NODES, PODS])
async def test_a_watch_that_breaks_makes_it_old_until_another_has_caught_up(path):
    async with seeing() as (cluster, clock, view):
        await clock.advance(CAUGHT_UP_S)
        cluster.cut(path)
        await clock.advance(0)
        assert view.may_be_old()
        await clock.advance(60)  # it tries again and again
        assert view.may_be_old()
        cluster.down.clear()
        await clock.advance(30 + CAUGHT_UP_S)  # the longest pause between two tries
        assert not view.may_be_old()


async def test_of_what_a_scheduler_does_not_watch_nothing_is_asked():
    async with seeing() as (cluster, clock, view):
        await clock.advance(CAUGHT_UP_S)
        cluster.cut("/apis/batch/v1/jobs")
        await clock.advance(5)
        assert not view.may_be_old()


class Parts:
    """Stands for the watches, the writer of Events and the listeners: one of them fails."""

    def __init__(self, fails):
        self.fails = fails

    async def _work(self, name):
        if name == self.fails:
            raise RuntimeError(name)
        await asyncio.Event().wait()

    def at(self, name):
        part = Parts(self.fails)
        part.run = lambda: self._work(name)
        part.follow = lambda clock: self._work(name)
        part.synced = lambda: self._work("synced")
        return part


@pytest.mark.asyncio
@pytest.mark.parametrize("fails", ["watches", "events", "notices", "certificates", "synced"])
async def test_the_fault_of_any_part_ends_it(fails):
    parts = Parts(fails)
    all_of_it = [parts.at(each) for each in ("watches", "events", "notices", "certificates")]
    async with asyncio.timeout(10):
        with pytest.raises(RuntimeError, match=fails):
            await run_until_told(*all_of_it, RealClock())
