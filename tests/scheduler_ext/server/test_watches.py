"""When what the watches have shown may be old: while one is down, and until it has caught up."""

import asyncio
import random
from contextlib import asynccontextmanager

import msgspec
import pytest

from tests.kit import world
from tests.kit.clock import ManualClock, settle
from tests.kube.world import running
from turnout.jobs.gang import COMPOSITE_GROUP_PATH, POD_GROUP_PATHS, Dialect
from turnout.kube import labels
from turnout.kube.client.clock import RealClock
from turnout.kube.client.reflector import UNSERVED_RETRY_S
from turnout.kube.errors import NotFound, Unreachable
from turnout.scheduler_ext.__main__ import run_all_parts
from turnout.scheduler_ext.cluster.request_hints import PodGroupState
from turnout.scheduler_ext.model import Rules
from turnout.scheduler_ext.planner.plans import plans_by
from turnout.scheduler_ext.server.metrics import Metrics
from turnout.scheduler_ext.server.watches import CAUGHT_UP_S, Watches

pytestmark = pytest.mark.asyncio
NODES, PODS = "/api/v1/nodes", "/api/v1/pods"


class Cluster:
    """A Source of a few objects by path, whose watches break when told to, and are refused until told otherwise."""

    def __init__(self, items=None, unserved=()):
        self.down, self._cut, self.items = set(), {}, items or {}
        self.unserved = set(unserved)

    async def pages(self, path, params=None, *, limit=500):
        if path in self.unserved:
            raise NotFound("GET", path, 404, "no such kind")
        yield msgspec.json.encode({"metadata": {"resourceVersion": "1"}, "items": self.items.get(path, [])})

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
async def seeing(items=None, unserved=(), **more):
    """Watches at work, which have seen all there is for a while."""
    clock, cluster = ManualClock(), Cluster(items, unserved)
    plans, metrics = plans_by(Rules()), Metrics()
    watches = Watches(plans, cluster, "default/map", clock, random.Random(7), metrics, lambda notice: None, **more)
    async with running(watches.run()):
        await settle()
        yield cluster, clock, watches


async def test_a_view_is_old_until_its_first_watches_have_caught_up():
    async with seeing() as (_, clock, watches):
        assert watches.may_be_old()
        await clock.advance(CAUGHT_UP_S)
        assert not watches.may_be_old()


@pytest.mark.parametrize("path", [NODES, PODS])
async def test_a_watch_that_breaks_makes_it_old_until_another_has_caught_up(path):
    async with seeing() as (cluster, clock, watches):
        await clock.advance(CAUGHT_UP_S)
        cluster.cut(path)
        await clock.advance(0)
        assert watches.may_be_old()
        await clock.advance(60)  # it tries again and again
        assert watches.may_be_old()
        cluster.down.clear()
        await clock.advance(30 + CAUGHT_UP_S)  # the longest pause between two tries
        assert not watches.may_be_old()


async def test_of_what_a_scheduler_does_not_watch_nothing_is_asked():
    async with seeing() as (cluster, clock, watches):
        await clock.advance(CAUGHT_UP_S)
        cluster.cut("/apis/batch/v1/jobs")
        await clock.advance(5)
        assert not watches.may_be_old()


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
        part.wait_for_sync = lambda: self._work("synced")
        return part


@pytest.mark.asyncio
@pytest.mark.parametrize("fails", ["watches", "planning", "events", "notices", "certificates", "synced"])
async def test_the_fault_of_any_part_ends_it(fails):
    parts = Parts(fails)
    all_of_it = [parts.at(each) for each in ("watches", "planning", "events", "notices", "certificates")]
    async with asyncio.timeout(10):
        with pytest.raises(RuntimeError, match=fails):
            await run_all_parts(*all_of_it, RealClock())


QUEUES = {
    "/apis/kueue.x-k8s.io/v1beta2/clusterqueues": [
        {"metadata": {"name": "gpus"}, "spec": {"queueingStrategy": "StrictFIFO"}},
        {"metadata": {"name": "free"}, "spec": {"queueingStrategy": "BestEffortFIFO"}},
    ],
    "/apis/kueue.x-k8s.io/v1beta2/localqueues": [
        {"metadata": {"name": "train", "namespace": "a"}, "spec": {"clusterQueue": "gpus"}},
        {"metadata": {"name": "train", "namespace": "b"}, "spec": {"clusterQueue": "free"}},
    ],
}


@pytest.mark.parametrize(("read_queues", "strict"), [(True, ["kueue/gpus", ""]), (False, ["", ""])])
async def test_the_order_of_queues_is_read_where_that_is_wished(read_queues, strict):
    async with seeing(QUEUES, read_queues=read_queues) as (_, _, watches):
        queues = watches.plans.strict_order.queues
        assert [queues.of(namespace, "train") for namespace in "ab"] == strict


async def test_a_podgroup_may_be_on_its_way_only_where_its_kind_is_served():
    unserved = POD_GROUP_PATHS[Dialect.NATIVE]
    async with seeing(unserved={unserved}) as (cluster, clock, watches):
        assert [watches.may_show_group(dialect.value) for dialect in POD_GROUP_PATHS] == [
            path != unserved for path in POD_GROUP_PATHS.values()
        ]
        cluster.unserved.clear()
        await clock.advance(UNSERVED_RETRY_S)
        assert watches.may_show_group(Dialect.NATIVE.value)


async def test_composite_groups_are_shown_where_served_and_not_missed_elsewhere(caplog):
    composite = {
        "metadata": {"name": "set", "namespace": "default"},
        "spec": {"schedulingPolicy": {"gang": {"minGroupCount": 3}}},
    }
    async with seeing({COMPOSITE_GROUP_PATH: [composite]}) as (_, _, watches):
        assert watches.may_show_parents()
        assert watches.plans.view.groups.composites.min_groups("default", "set") == 3
    async with seeing(unserved=[COMPOSITE_GROUP_PATH]) as (_, _, watches):
        assert (watches.missing(), watches.may_show_parents()) == (None, False)
        assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


@pytest.mark.parametrize("pods", [
    pytest.param([world.pod("lone", 1)], id="a pod of no gang"),
    pytest.param([world.pod("owned", 1, owner="Job/train", marks={labels.JOB_INDEX: "0"})], id="a gang of an owner"),
    pytest.param(world.koordinator("k", 1), id="a gang that states its min itself"),
])  # fmt: skip
async def test_a_gang_that_names_no_podgroup_waits_for_none(pods):
    async with seeing() as (_, _, watches):
        for pod in pods:
            watches.put_pod(pod)
        assert [watches.pod_group_state(key) for key in watches.plans.view.gangs] == [PodGroupState.KNOWN]
