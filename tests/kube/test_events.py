"""Events: the same thing is one object with a count, and nothing that goes wrong ever reaches who tells."""

import json

import pytest

from tests.kube.world import ManualClock, connected, fault, plain, running, settle
from turnout.kube.client.events import EventRecorder, ObjectRef
from turnout.kube.errors import Forbidden, NotFound, ServerFault

pytestmark = pytest.mark.asyncio
POD = ObjectRef("Pod", "v1", "ml", "bert-0", "u1")
NODE = ObjectRef("Node", "v1", "", "gpu-1", "u2")
NOW = 1_800_000_000.0


class Desk:
    """Takes Events in. errors: raised one after the other, None for a good answer."""

    def __init__(self, *errors):
        self.events, self.patches, self.errors = [], [], list(errors)

    async def create(self, path, body, *, deadline_s):
        self._maybe_fail()
        self.events.append((path, body))
        return b"{}"

    async def patch(self, path, body, *, deadline_s):
        self._maybe_fail()
        self.patches.append((path, body))
        return b"{}"

    def _maybe_fail(self):
        if self.errors and (error := self.errors.pop(0)):
            raise error


def recorder(desk, **more):
    clock = ManualClock()
    return clock, EventRecorder(desk, "turnout-extender", "extender-0", clock=clock, **more)


async def test_an_event_says_who_what_why_and_when():
    desk = Desk()
    _, events = recorder(desk)
    events.emit(POD, "Warning", "NoRoom", "8 GPUs short", NOW)
    async with running(events.run()):
        await settle()
    ((path, body),) = desk.events
    assert path == "/api/v1/namespaces/ml/events"
    assert body["metadata"]["namespace"] == "ml"
    assert body["metadata"]["name"].startswith("bert-0.")
    assert body["involvedObject"] == {
        "kind": "Pod",
        "apiVersion": "v1",
        "namespace": "ml",
        "name": "bert-0",
        "uid": "u1",
    }
    assert (body["type"], body["reason"], body["message"], body["count"]) == ("Warning", "NoRoom", "8 GPUs short", 1)
    assert body["firstTimestamp"] == body["lastTimestamp"] == "2027-01-15T08:00:00Z"
    assert body["reportingComponent"] == body["source"]["component"] == "turnout-extender"


async def test_what_has_no_namespace_is_told_in_default():
    desk = Desk()
    _, events = recorder(desk)
    events.emit(NODE, "Normal", "Moved", "", NOW)
    async with running(events.run()):
        await settle()
    ((path, body),) = desk.events
    assert path == "/api/v1/namespaces/default/events"
    assert "namespace" not in body["involvedObject"]


async def test_the_same_thing_is_counted_up_and_another_is_not():
    desk = Desk()
    _, events = recorder(desk)
    async with running(events.run()):
        for after_s in (0, 1, 2):
            events.emit(POD, "Warning", "NoRoom", "short", NOW + after_s)
        events.emit(POD, "Warning", "NoRoom", "shorter", NOW)
        await settle()
        assert [body["count"] for _, body in desk.events] == [3, 1]
        assert [body["lastTimestamp"][-3:] for _, body in desk.events] == ["02Z", "00Z"]
        events.emit(POD, "Warning", "NoRoom", "short", NOW + 9)
        await settle()
        path, name = desk.events[0][0], desk.events[0][1]["metadata"]["name"]
        assert desk.patches == [(f"{path}/{name}", {"count": 4, "lastTimestamp": "2027-01-15T08:00:09Z"})]


@pytest.mark.parametrize("how", ["it expired on the server", "it is long ago"])
async def test_a_repetition_of_what_is_gone_is_a_new_event(how):
    desk = Desk(None, NotFound("PATCH", "", 404, "")) if "expired" in how else Desk()
    _, events = recorder(desk)
    async with running(events.run()):
        events.emit(POD, "Normal", "Placed", "leaf a", NOW)
        await settle()
        events.emit(POD, "Normal", "Placed", "leaf a", NOW + (5 if "expired" in how else 3600))
        await settle()
    assert [body["count"] for _, body in desk.events] == [1, 1]
    assert len({body["metadata"]["name"] for _, body in desk.events}) == 2
    assert events.dropped == 0


async def test_a_flood_is_bounded_in_memory_and_in_rate():
    desk = Desk()
    clock, events = recorder(desk, capacity=100, per_s=5, burst=10)
    for number in range(1000):
        events.emit(POD, "Normal", "Flood", str(number), NOW)
    assert events.dropped == 900
    async with running(events.run()):
        await settle()
        assert len(desk.events) == 10
        await clock.advance(10)
        assert 59 <= len(desk.events) <= 61
        await clock.advance(60)
        assert len(desk.events) == 100


async def test_a_refusal_is_logged_once_and_the_rest_is_still_tried(caplog):
    forbidden = [Forbidden("POST", "", 403, "rbac") for _ in range(3)]
    desk = Desk(*forbidden, ServerFault("POST", "", 500, "etcd"))
    _, events = recorder(desk)
    for number in range(5):
        events.emit(POD, "Normal", "Told", str(number), NOW)
    async with running(events.run()):
        await settle()
    assert [record.message for record in caplog.records] == ["event_not_written"] * 2
    assert (len(desk.events), events.dropped) == (1, 4)


@pytest.mark.parametrize(
    "message",
    ["x" * 5000, "é" * 3000, "\N{GRINNING FACE}" * 1000, "\ud800 lone", "", "line\nbreak"],
    ids=["long", "two bytes", "four bytes", "half a pair", "empty", "two lines"],
)
async def test_a_message_is_cut_at_a_kilobyte(message):
    desk = Desk()
    _, events = recorder(desk)
    events.emit(POD, "Normal", "Told" * 99, message, NOW)
    async with running(events.run()):
        await settle()
    ((_, body),) = desk.events
    assert len(body["message"].encode()) <= 1024
    assert len(body["reason"]) <= 128
    assert json.dumps(body).encode()


async def test_two_replicas_and_a_long_name_make_names_that_the_server_takes():
    desk = Desk()
    names = []
    for instance in ("extender-0", "extender-1"):
        clock = ManualClock()
        events = EventRecorder(desk, "turnout-extender", instance, clock=clock)
        events.emit(POD._replace(name="n" * 253), "Normal", "Told", "", NOW)
        async with running(events.run()):
            await settle()
        names.append(desk.events[-1][1]["metadata"]["name"])
    assert len(set(names)) == 2
    assert max(map(len, names)) <= 253


@pytest.mark.parametrize("answer", [plain({}), fault(403), fault(500)], ids=["ok", "403", "500"])
async def test_over_the_real_client(tmp_path, answer):
    async with connected(tmp_path) as (script, client):
        script.others = [answer]
        _, events = recorder(client)
        async with running(events.run()) as task:
            events.emit(POD, "Normal", "Told", "once", NOW)
            asked = await script.until("POST", 1)
            events.emit(NODE, "Normal", "Told", "twice", NOW)
            await script.until("POST", 2)
            assert not task.done()
        assert json.loads(asked.body)["reason"] == "Told"
