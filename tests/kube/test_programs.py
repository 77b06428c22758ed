"""Parts that all programs share: informers waited for together, probes, and running until told to end."""

import asyncio
import os
import random
import signal
from contextlib import asynccontextmanager
from types import SimpleNamespace

import msgspec
import pytest

from tests.kit.clock import ManualClock, settle
from tests.kit.wait import until_async
from tests.kube.world import PATIENCE_S, Receiver, event, pod, running
from turnout.kube.client.informer_factory import CallbackSink, ConfigMapFollower, InformerFactory
from turnout.kube.client.run_until_signal import run_together, run_until_signal
from turnout.kube.errors import BadQuantity, Unreachable
from turnout.kube.objects import Pod
from turnout.kube.server.probes import probe_pages
from turnout.kube.watch_events import Key

PODS, MAPS = "/api/v1/pods", "/api/v1/namespaces/maps/configmaps"
A_MAP = {
    "metadata": {"name": "map", "namespace": "maps", "uid": "u", "annotations": {"by": "admin"}},
    "data": {"k": "v"},
}


class Server:
    """A Source: a list is served once it is opened, or raises its fault; each watch tells what is put."""

    def __init__(self, **items):
        self.items, self.opened, self.asked = items, {}, []
        self.lines = {path: asyncio.Queue() for path in (PODS, MAPS)}

    def open(self, path, items=(), fault=None):
        self._gate(path).set()
        self.items[path] = items, fault

    def _gate(self, path):
        return self.opened.setdefault(path, asyncio.Event())

    async def pages(self, path, params=None, *, limit=500):
        self.asked.append((path, dict(params or {})))
        await self._gate(path).wait()
        items, fault = self.items[path]
        if fault:
            raise fault
        yield msgspec.json.encode({"metadata": {"resourceVersion": "1"}, "items": items})

    async def watch(self, path, params):
        yield b""
        while True:
            yield await self.lines[path].get()


class Program:
    """Watches pods and follows a ConfigMap, whose data are read when the test says so."""

    def __init__(self, read=dict):
        self.clock, self.server, self.receiver, self.taken = ManualClock(), Server(), Receiver(), []
        self.informers = InformerFactory(self.server, self.clock, random.Random(7))
        self.informers.watch("pods", PODS, Pod, self.receiver)
        follower = ConfigMapFollower(read, lambda read, annotations: self.taken.append((read, annotations)))
        self.informers.follow_configmap("map", "maps/map", follower)


@asynccontextmanager
async def watching():
    program = Program()
    async with running(program.informers.run()):
        await settle()
        yield program


@pytest.mark.asyncio
async def test_what_is_not_listed_yet_is_named_and_waited_for():
    async with watching() as program:
        informers, waiting = program.informers, asyncio.create_task(program.informers.wait_for_sync())
        assert informers.unsynced_watches() == ["pods", "map"]
        program.server.open(MAPS, [A_MAP])
        await until_async(lambda: informers.unsynced_watches() == ["pods"])
        await program.clock.advance(1)
        assert not waiting.done()
        program.server.open(PODS, [pod("a")])
        await until_async(lambda: informers.has_synced)
        await program.clock.advance(1)
        assert waiting.done()
        assert program.receiver.told == ["put a@1", "synced"]


@pytest.mark.asyncio
@pytest.mark.parametrize(("items", "is_accepted"), [
    pytest.param([A_MAP], ({"k": "v"}, {"by": "admin"}), id="a ConfigMap is read, with its annotations"),
    pytest.param([{"metadata": {"name": "map"}}], ({}, {}), id="a ConfigMap without data is empty"),
    pytest.param([], (None, {}), id="that there is none is taken too"),
])  # fmt: skip
async def test_a_followed_configmap_must_be_taken_before_all_has_synced(items, is_accepted):
    async with watching() as program:
        program.server.open(PODS)
        program.server.open(MAPS, items)
        await until_async(lambda: not program.informers.unsynced_watches())
        await until_async(lambda: program.informers.has_synced)
        assert program.taken == [is_accepted]
        assert (MAPS, {"fieldSelector": "metadata.name=map"}) in program.server.asked


@pytest.mark.asyncio
async def test_nothing_has_synced_while_the_configmap_is_being_read():
    reads, loop = asyncio.Event(), asyncio.get_running_loop()

    def read(data):
        asyncio.run_coroutine_threadsafe(reads.wait(), loop).result(PATIENCE_S)

    program = Program(read)
    async with running(program.informers.run()):
        program.server.open(PODS)
        program.server.open(MAPS, [A_MAP])
        await until_async(lambda: not program.informers.unsynced_watches())
        assert not program.informers.has_synced
        reads.set()
        await until_async(lambda: program.informers.has_synced)


@pytest.mark.asyncio
async def test_the_age_is_that_of_the_quietest_watch():
    async with watching() as program:
        program.server.open(PODS)
        program.server.open(MAPS)
        await until_async(lambda: program.informers.has_synced)
        await program.clock.advance(20)
        program.server.lines[PODS].put_nowait(event("ADDED", pod("a", 2)))
        await program.receiver.until("put a@2")
        assert program.informers.oldest_event_age_s() == 20
        program.server.lines[MAPS].put_nowait(event("MODIFIED", {**A_MAP, "metadata": {"name": "map", "uid": "u"}}))
        await until_async(lambda: program.informers.oldest_event_age_s() == 0)


@pytest.mark.asyncio
async def test_a_fault_of_ours_ends_all_watches():
    program = Program()
    program.server.open(PODS, fault=ZeroDivisionError("ours"))
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(ExceptionGroup) as ended:
            await program.informers.run()
    assert [str(each) for each in ended.value.exceptions] == ["ours"]


@pytest.mark.asyncio
async def test_a_fault_of_the_server_ends_none():
    async with watching() as program:
        program.server.open(PODS, fault=Unreachable("GET", PODS, 0, "refused"))
        program.server.open(MAPS)
        await until_async(lambda: program.informers.unsynced_watches() == ["pods"])
        program.server.open(PODS)
        await program.clock.advance(60)
        await until_async(lambda: program.informers.has_synced)


@pytest.mark.parametrize(("call", "order"), [
    pytest.param(lambda sink: sink.put("a"), ["put a", "changed"], id="an object"),
    pytest.param(lambda sink: sink.drop(Key("ml", "a", "u")), ["drop a", "changed"], id="one that is gone"),
    pytest.param(lambda sink: sink.synced("9"), ["changed"], id="a whole list"),
])  # fmt: skip
def test_handlers_are_told_first_and_then_that_something_changed(call, order):
    calls = []
    put, drop = (lambda obj: calls.append(f"put {obj}")), (lambda key: calls.append(f"drop {key.name}"))
    call(CallbackSink(put, drop, lambda: calls.append("changed")))
    assert calls == order
    call(CallbackSink(put, drop))
    assert calls == order + [each for each in order if each != "changed"]


def test_an_object_that_cannot_be_used_changes_nothing():
    changed = []

    def put(obj):
        raise BadQuantity("1x")

    with pytest.raises(BadQuantity):
        CallbackSink(put, put, lambda: changed.append(1)).put(SimpleNamespace())
    assert not changed


@pytest.mark.parametrize(("path", "why", "answer"), [
    pytest.param("/healthz", None, (200, b"ok\n"), id="one that is ready is alive"),
    pytest.param("/healthz", "leaving", (200, b"ok\n"), id="one that is not ready is alive too"),
    pytest.param("/readyz", None, (200, b"ok\n"), id="one that is ready"),
    pytest.param("/readyz", "leaving", (503, b"leaving\n"), id="one that is not ready says why"),
    pytest.param("/metrics", "leaving", (200, b"up 1\n"), id="metrics are shown at any time"),
])  # fmt: skip
def test_the_probe_pages_of_a_service(path, why, answer):
    response = probe_pages(lambda: why, lambda: b"up 1\n")[path](None)
    assert (response.status, response.body) == answer
    prometheus = "text/plain; version=0.0.4; charset=utf-8"
    assert (response.headers["Content-Type"] == prometheus) is (path == "/metrics")


class Works:
    """Stands for the parts of a program; notes what became of each."""

    def __init__(self):
        self.ends = []

    async def lasts(self, name="lasts"):
        try:
            await asyncio.Event().wait()
        finally:
            self.ends.append(name)

    async def fails(self):
        raise RuntimeError("fails")

    async def returns(self):
        self.ends.append("returns")

    async def leaves(self):
        self.ends.append("leaves")


@pytest.mark.asyncio
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_program_that_is_told_leaves_first_and_then_ends_all(number):
    works = Works()
    program = asyncio.create_task(
        run_until_signal(works.lasts(), may_end=(works.returns(), works.lasts("beside")), leave=works.leaves)
    )
    await settle()
    assert works.ends == ["returns"]
    os.kill(os.getpid(), number)
    async with asyncio.timeout(PATIENCE_S):
        await program
    assert works.ends == ["returns", "leaves", "lasts", "beside"]


@pytest.mark.asyncio
@pytest.mark.parametrize(("lasting", "ending"), [
    pytest.param(["lasts", "fails"], [], id="a work that must last"),
    pytest.param(["lasts"], ["fails"], id="a work that may end"),
])  # fmt: skip
async def test_the_fault_of_any_work_ends_a_program_at_once(lasting, ending):
    works = Works()
    must, may = ([getattr(works, name)() for name in names] for names in (lasting, ending))
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(RuntimeError, match="fails"):
            await run_until_signal(*must, may_end=may, leave=works.leaves)
    assert works.ends == ["lasts"]


@pytest.mark.asyncio
async def test_the_end_of_a_work_that_must_last_ends_a_program_and_is_told(caplog):
    works = Works()
    async with asyncio.timeout(PATIENCE_S):
        await run_until_signal(works.lasts(), works.returns())
    assert works.ends == ["returns", "lasts"]
    assert [(record.msg, record.work) for record in caplog.records] == [("work_ended", "Works.returns")]


@pytest.mark.asyncio
async def test_of_works_together_none_goes_on_without_the_others():
    works = Works()
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(ExceptionGroup):
            await run_together(works.lasts, works.returns, works.fails)
    assert works.ends == ["returns", "lasts"]
