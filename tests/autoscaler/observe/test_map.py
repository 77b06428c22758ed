"""The topology ConfigMap has one rule, whoever reads it: extender, nominator and autoscaler side by side."""

import asyncio
import logging
import random

import msgspec
import pytest

from tests.kit.clock import ManualClock
from tests.kit.wait import until_async
from tests.kube.world import running
from turnout.autoscaler import settings as autoscaler
from turnout.autoscaler.cache import Cache as AutoscalerView
from turnout.autoscaler.controller import informers as autoscaler_watches
from turnout.autoscaler.settings import WatchedConfigMaps
from turnout.jobs.kinds.registry import KINDS
from turnout.scheduler_ext.model import Rules
from turnout.scheduler_ext.planner.plans import plans_by
from turnout.scheduler_ext.server import watches as extender_watches
from turnout.scheduler_ext.server.metrics import Metrics
from turnout.scheduler_ext.settings import extender_settings
from turnout.topology.map_update import draft_map
from turnout.topology.names import CONFIRMED_MAP_ANNOTATION

OLD = {"topology_config": "asw1 psw1 a\nasw1 psw1 b\nasw2 psw1 c\n"}
LARGE = {"topology_config": "asw1 psw1 a\nasw2 psw1 b\nasw3 psw1 c\n"}
FAULTY = {"topology_config": "asw1 psw1\n"}
MAPS = "/api/v1/namespaces/maps/configmaps"


class Source:
    """Lists the old map, then tells of what is put; of everything else there is nothing."""

    def __init__(self):
        self._lines, self._version = asyncio.Queue(), 1

    def _object(self, data, annotations):
        meta = {"name": "map", "namespace": "maps", "uid": "u", "resourceVersion": str(self._version)}
        return {"metadata": {**meta, "annotations": annotations}, "data": data}

    def put(self, data, **annotations):
        self._version += 1
        change = {"type": "MODIFIED", "object": self._object(data, annotations)}
        self._lines.put_nowait(msgspec.json.encode(change))

    async def pages(self, path, params=None, *, limit=500):
        items = [self._object(OLD, {})] if path == MAPS else []
        yield msgspec.json.encode({"metadata": {"resourceVersion": "1"}, "items": items})

    async def watch(self, path, params):
        yield b""
        while path == MAPS:
            yield await self._lines.get()
        await asyncio.Event().wait()


class Program:
    """One program's watches, with the maps that it has taken."""

    def __init__(self, name, hold_large):
        self.source, self.taken, clock, rng = Source(), [], ManualClock(), random.Random(7)
        if name == "extender":
            plans, metrics = plans_by(Rules()), Metrics()
            self._note(plans.view.layout, "set_map")
            self.informers = extender_watches.Watches(
                plans, self.source, "maps/map", clock, rng, metrics, lambda notice: None, hold_large
            )
        else:
            view = AutoscalerView(KINDS)
            self._note(view.nodes, "use_map")
            watched = WatchedConfigMaps("maps/map", "orders/orders")
            self.informers = autoscaler_watches.AutoscalerInformers(
                view, self.source, KINDS, clock, rng, watched, hold_large=hold_large
            )

    def synced(self):
        return self.informers.has_synced

    def _note(self, view, name):
        use_map = getattr(view, name)

        def noted(fabric):
            use_map(fabric)
            self.taken.append(fabric.paths)

        setattr(view, name, noted)


def paths(data):
    return draft_map(data).fabric.paths


def reasons_logged(caplog, reason, word):
    """True if the extender or nominator has logged this reason, or the autoscaler this word."""
    return lambda: any(getattr(each, "reason", "") == reason or each.msg == word for each in caplog.records)


EACH = pytest.mark.parametrize("name", [
    pytest.param("extender", id="the extender and the nominator"),
    pytest.param("autoscaler", id="the autoscaler"),
])  # fmt: skip


@EACH
@pytest.mark.asyncio
async def test_a_large_change_waits_for_confirmation_where_the_admin_asks_it(name, caplog):
    caplog.set_level(logging.INFO)
    program = Program(name, hold_large=True)
    async with running(program.informers.run()):
        await until_async(lambda: program.taken == [paths(OLD)])
        program.source.put(LARGE)
        await until_async(reasons_logged(caplog, "MapHeld", "map_held"))
        assert program.taken == [paths(OLD)]
        program.source.put(LARGE, **{CONFIRMED_MAP_ANNOTATION: draft_map(LARGE).digest})
        await until_async(lambda: program.taken == [paths(OLD), paths(LARGE)])


@EACH
@pytest.mark.asyncio
async def test_else_a_large_change_is_taken_at_once_and_a_faulty_text_never(name, caplog):
    caplog.set_level(logging.INFO)
    program = Program(name, hold_large=False)
    async with running(program.informers.run()):
        await until_async(lambda: program.taken == [paths(OLD)])
        program.source.put(FAULTY)
        await until_async(reasons_logged(caplog, "MapRejected", "map_rejected"))
        program.source.put(LARGE)
        await until_async(lambda: len(program.taken) > 1)
        program.source.put({})
        await until_async(lambda: len(program.taken) > 2)
        assert program.taken == [paths(OLD), paths(LARGE), {}]


@EACH
@pytest.mark.asyncio
async def test_the_first_look_waits_for_the_map(name):
    program = Program(name, hold_large=False)
    async with running(program.informers.run()):
        await until_async(program.synced)
        assert program.taken == [paths(OLD)]


@pytest.mark.parametrize("read", [
    pytest.param(extender_settings, id="the extender"),
    pytest.param(autoscaler.read_settings, id="the autoscaler"),
])  # fmt: skip
def test_it_is_asked_for_by_the_same_flag(read):
    assert not read([]).confirm_large_changes
    assert read(["--confirm-large-changes"]).confirm_large_changes
