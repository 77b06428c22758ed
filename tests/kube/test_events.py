"""Events: the same thing is one object with a count, and nothing that goes wrong ever reaches who tells."""

import asyncio
import json

import pytest
import pytest_asyncio

from tests.kit.clock import ManualClock, settle
from tests.kube.world import PATIENCE_S, connected, fault, plain, running
from turnout.kube.client.api_client import Client
from turnout.kube.client.events import EventRecorder, ObjectRef
from turnout.kube.errors import Conflict, Forbidden, NotFound, ServerFault, Unreachable
from turnout.simulator.api.server.serve import serve

pytestmark = pytest.mark.asyncio
POD = ObjectRef("Pod", "v1", "ml", "bert-0", "u1")
NODE = ObjectRef("Node", "v1", "", "gpu-1", "u2")
NOW = 1_800_000_000.0


class FakeApi:
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


class StoringApi:
    """Stores Events by path, and refuses one that exists."""

    def __init__(self):
        self.events = {}

    async def create(self, path, body, *, deadline_s):
        name = f"{path}/{body['metadata']['name']}"
        if name in self.events:
            raise Conflict("POST", path, 409, "it exists", reason="AlreadyExists")
        self.events[name] = dict(body)
        return b"{}"

    async def patch(self, path, body, *, deadline_s):
        self.events[path].update(body)
        return json.dumps(self.events[path]).encode()


def recorder(api, **more):
    clock = ManualClock()
    return clock, EventRecorder(api, "turnout-extender", "extender-0", clock=clock, **more)


async def test_an_event_says_who_what_why_and_when():
    api = FakeApi()
    _, events = recorder(api)
    events.emit(POD, "Warning", "NoRoom", "8 GPUs short", NOW)
    async with running(events.run()):
        await settle()
    ((path, body),) = api.events
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
    assert (body["type"], body["reason"], body["count"]) == ("Warning", "NoRoom", 1)
    assert body["message"] == "8 GPUs short (turnout explain NoRoom)"
    assert body["firstTimestamp"] == body["lastTimestamp"] == "2027-01-15T08:00:00Z"
    assert body["reportingComponent"] == body["source"]["component"] == "turnout-extender"


@pytest.mark.parametrize(
    ("reason", "message", "ends"),
    [
        pytest.param(
            "NoRoom", "8 short", "8 short (https://docs/reference/reasons.html#noroom)", id="a reason of ours"
        ),
        pytest.param("NoRoom", "x" * 5000, "x... (https://docs/reference/reasons.html#noroom)", id="a long message"),
        pytest.param("Foreign", "8 short", "8 short", id="a word that nobody explains"),
    ],
)
async def test_an_event_links_to_the_text_of_its_reason(reason, message, ends):
    api = FakeApi()
    _, events = recorder(api, docs="https://docs")
    events.emit(POD, "Warning", reason, message, NOW)
    async with running(events.run()):
        await settle()
    ((_, body),) = api.events
    assert body["message"].endswith(ends)
    assert len(body["message"].encode()) <= 1024


async def test_what_has_no_namespace_is_told_in_default():
    api = FakeApi()
    _, events = recorder(api)
    events.emit(NODE, "Normal", "Moved", "", NOW)
    async with running(events.run()):
        await settle()
    ((path, body),) = api.events
    assert path == "/api/v1/namespaces/default/events"
    assert "namespace" not in body["involvedObject"]


async def test_the_same_thing_is_counted_up_and_another_is_not():
    api = FakeApi()
    _, events = recorder(api)
    async with running(events.run()):
        for after_s in (0, 1, 2):
            events.emit(POD, "Warning", "NoRoom", "short", NOW + after_s)
        events.emit(POD, "Warning", "NoRoom", "shorter", NOW)
        await settle()
        assert [body["count"] for _, body in api.events] == [3, 1]
        assert [body["lastTimestamp"][-3:] for _, body in api.events] == ["02Z", "00Z"]
        events.emit(POD, "Warning", "NoRoom", "short", NOW + 9)
        await settle()
        path, name = api.events[0][0], api.events[0][1]["metadata"]["name"]
        assert api.patches == [(f"{path}/{name}", {"count": 4, "lastTimestamp": "2027-01-15T08:00:09Z"})]


@pytest.mark.parametrize(
    ("errors", "after_s", "names"),
    [
        pytest.param((None, NotFound("PATCH", "", 404, "")), 5, 1, id="it expired on the server: its name is free"),
        pytest.param((), 3600, 2, id="it is of another hour"),
    ],
)
async def test_a_repetition_of_what_is_gone_is_a_new_event(errors, after_s, names):
    api = FakeApi(*errors)
    _, events = recorder(api)
    async with running(events.run()):
        events.emit(POD, "Normal", "Placed", "leaf a", NOW)
        await settle()
        events.emit(POD, "Normal", "Placed", "leaf a", NOW + after_s)
        await settle()
    assert [body["count"] for _, body in api.events] == [1, 1]
    assert len({body["metadata"]["name"] for _, body in api.events}) == names
    assert events.dropped == 0


@pytest.mark.parametrize(
    "error", [Unreachable("PATCH", "", 0, ""), ServerFault("PATCH", "", 500, "")], ids=["cut", "5xx"]
)
async def test_a_failed_patch_loses_only_its_own_repetitions(error):
    api = FakeApi(None, error)
    _, events = recorder(api)
    async with running(events.run()):
        for after_s in range(4):
            events.emit(POD, "Warning", "NoRoom", "short", NOW + after_s)
            await settle()
    assert ([body["count"] for _, body in api.events], [body["count"] for _, body in api.patches]) == ([1], [2, 3])
    assert events.dropped == 1


async def test_a_flood_is_bounded_in_memory_and_in_rate():
    api = FakeApi()
    clock, events = recorder(api, capacity=100, per_s=5, burst=10)
    for number in range(1000):
        events.emit(POD, "Normal", "Flood", str(number), NOW)
    assert events.dropped == 900
    async with running(events.run()):
        await settle()
        assert len(api.events) == 10
        await clock.advance(10)
        assert 59 <= len(api.events) <= 61
        await clock.advance(60)
        assert len(api.events) == 100


async def test_a_refusal_is_logged_once_and_the_rest_is_still_tried(caplog):
    forbidden = [Forbidden("POST", "", 403, "rbac") for _ in range(3)]
    api = FakeApi(*forbidden, ServerFault("POST", "", 500, "etcd"))
    _, events = recorder(api)
    for number in range(5):
        events.emit(POD, "Normal", "Told", str(number), NOW)
    async with running(events.run()):
        await settle()
    assert [record.message for record in caplog.records] == ["event_not_written"] * 2
    assert (len(api.events), events.dropped) == (1, 4)


@pytest.mark.parametrize(
    "message",
    ["x" * 5000, "é" * 3000, "\N{GRINNING FACE}" * 1000, "\ud800 lone", "", "line\nbreak"],
    ids=["long", "two bytes", "four bytes", "half a pair", "empty", "two lines"],
)
async def test_a_message_is_cut_at_a_kilobyte(message):
    api = FakeApi()
    _, events = recorder(api)
    events.emit(POD, "Normal", "Told" * 99, message, NOW)
    async with running(events.run()):
        await settle()
    ((_, body),) = api.events
    assert len(body["message"].encode()) <= 1024
    assert len(body["reason"]) <= 128
    assert json.dumps(body).encode()


async def test_a_long_name_makes_a_name_that_the_server_takes():
    api = FakeApi()
    _, events = recorder(api)
    events.emit(POD._replace(name="n" * 253), "Normal", "Told", "", NOW)
    async with running(events.run()):
        await settle()
    assert len(api.events[-1][1]["metadata"]["name"]) <= 253


class Written:
    """A client that tells when an Event with a given message is written."""

    def __init__(self, client):
        self._client, self._written = client, {}

    async def create(self, path, body, *, deadline_s):
        answer = await self._client.create(path, body, deadline_s=deadline_s)
        self.when(body["message"]).set()
        return answer

    async def patch(self, path, body, *, deadline_s):
        return await self._client.patch(path, body, deadline_s=deadline_s)

    def when(self, message):
        return self._written.setdefault(message, asyncio.Event())


async def told_by(client, instance, *emitted, component="turnout-extender"):
    """Let one replica write what it has seen, one after another, and give how many of it were dropped."""
    event_writer = Written(client)
    events = EventRecorder(event_writer, component, instance, clock=ManualClock())
    async with running(events.run()), asyncio.timeout(PATIENCE_S):
        for number, each in enumerate(emitted):
            last = f"{component} {instance} {number}"
            events.emit(*each)
            events.emit(POD, "Normal", "Last", last, NOW)  # written after it, being of the same namespace
            await event_writer.when(last).wait()
    return events.dropped


async def listed(client):
    """Give the count and the writer of each Event of NoRoom."""
    items = json.loads(await client.get("/api/v1/events"))["items"]
    return sorted((item["count"], item["reportingInstance"]) for item in items if item["reason"] == "NoRoom")


@pytest_asyncio.fixture
async def api(tmp_path):
    """The kubeconfig of an embedded API with the namespace of the pod."""
    async with serve(tmp_path / "kubeconfig") as served:
        async with await Client.open(str(served.kubeconfig)) as client:
            await client.create("/api/v1/namespaces", {"metadata": {"name": POD.namespace}})
        yield str(served.kubeconfig)


SEEN = (POD, "Warning", "NoRoom", "8 GPUs short", NOW)


@pytest.mark.parametrize(
    ("first", "second", "listing"),
    [
        pytest.param([SEEN], [SEEN], [(1, "one")], id="what both see is one Event, its count that of who wrote it"),
        pytest.param([SEEN], [(*SEEN[:4], NOW + 9.0)], [(1, "one")], id="seconds apart, too"),
        pytest.param([SEEN], [SEEN, (*SEEN[:4], NOW + 9.0)], [(1, "one")], id="who came second counts nothing up"),
        pytest.param([SEEN, SEEN], [SEEN], [(2, "one")], id="who came first does"),
        pytest.param(
            [SEEN], [(*SEEN[:3], "7 GPUs short", NOW)], [(1, "one"), (1, "two")], id="other words are another"
        ),
        pytest.param([SEEN], [(*SEEN[:4], NOW + 3600.0)], [(1, "one"), (1, "two")], id="another hour is another"),
    ],
)
async def test_two_replicas_write_one_event_of_what_both_see(api, first, second, listing):
    async with await Client.open(api) as one, await Client.open(api) as two:
        assert await told_by(one, "one", *first) == 0
        assert await told_by(two, "two", *second) == 0
        assert await listed(one) == listing


class FirstAnswerLost:
    """A client whose first create has no answer. arrives: whether the server carries it out."""

    def __init__(self, client, arrives):
        self._client, self._arrives, self._is_first = client, arrives, True
        self.patch = client.patch

    async def create(self, path, body, *, deadline_s):
        is_first, self._is_first = self._is_first, False
        if self._arrives or not is_first:
            answer = await self._client.create(path, body, deadline_s=deadline_s)
        if is_first:
            raise Unreachable("POST", path, 0, "no answer")
        return answer


@pytest.mark.parametrize(
    ("creators", "listing"),
    [
        pytest.param(["one"], [(3, "one")], id="our own Event is counted up"),
        pytest.param(["two"], [(1, "two")], id="the Event of another replica is not"),
        pytest.param([], [(2, "one")], id="an Event that does not exist is created"),
    ],
)
async def test_an_event_whose_creation_had_no_answer_may_be_ours(api, creators, listing):
    async with await Client.open(api) as client:
        if "two" in creators:
            await told_by(client, "two", SEEN)
        unlucky = FirstAnswerLost(client, arrives="one" in creators)
        events = EventRecorder(unlucky, "turnout-extender", "one", clock=ManualClock())
        for _ in range(3):
            events.emit(*SEEN)
            await events.flush()
        assert events.dropped == 1
        assert await listed(client) == listing


async def test_a_restarted_process_counts_its_own_event_on(api):
    async with await Client.open(api) as client:
        for _ in range(2):
            events = EventRecorder(client, "turnout-extender", "one", clock=ManualClock())
            for _ in range(2):
                events.emit(*SEEN)
                await events.flush()
            assert events.dropped == 0
        assert await listed(client) == [(4, "one")]


async def test_an_event_that_was_forgotten_meanwhile_is_counted_on():
    api = StoringApi()
    _, events = recorder(api, capacity=10_000, burst=10_000.0)
    for after_s in range(2):
        for number in range(2049):
            events.emit(POD._replace(uid=str(number)), "Warning", "NoRoom", "short", NOW + after_s)
        await events.flush()
    assert ({event["count"] for event in api.events.values()}, events.dropped) == ({2}, 0)


async def test_two_programs_write_an_event_each(api):
    async with await Client.open(api) as client:
        for component in ("turnout-extender", "turnout-autoscaler"):
            assert await told_by(client, component, SEEN, component=component) == 0
        assert len(await listed(client)) == 2


async def test_a_conflict_that_is_not_about_the_name_is_told(caplog):
    api = FakeApi(Conflict("POST", "", 409, "quota was changed", reason="Conflict"))
    _, events = recorder(api)
    events.emit(*SEEN)
    async with running(events.run()):
        await settle()
    assert [record.message for record in caplog.records] == ["event_not_written"]
    assert (api.events, events.dropped) == ([], 1)


@pytest.mark.parametrize("answer", [plain({}), fault(403), fault(500)], ids=["ok", "403", "500"])
async def test_over_the_real_client(tmp_path, answer):
    async with connected(tmp_path) as (script, client):
        script.others = [answer]
        _, events = recorder(client)
        async with running(events.run()) as task:
            events.emit(POD, "Normal", "Told", "once", NOW)
            requests = await script.until("POST", 1)
            events.emit(NODE, "Normal", "Told", "twice", NOW)
            await script.until("POST", 2)
            assert not task.done()
        assert json.loads(requests.body)["reason"] == "Told"


def of(namespace, number):
    """An Event of a namespace, the number saying which."""
    return ObjectRef("Pod", "v1", namespace, f"p{number}", f"{namespace}-{number}"), "Normal", "Told", str(number), NOW


async def test_namespaces_have_their_turns_one_after_another():
    api = FakeApi()
    _, events = recorder(api)
    for number in range(3):
        events.emit(*of("loud", number))
    for number in range(2):
        events.emit(*of("quiet", number))
    async with running(events.run()):
        await settle()
    messages = [(path.split("/")[4], body["message"]) for path, body in api.events]
    assert messages == [("loud", "0"), ("quiet", "0"), ("loud", "1"), ("quiet", "1"), ("loud", "2")]


async def test_a_namespace_that_fills_the_queue_drops_its_own_events_first():
    api = FakeApi()
    _, events = recorder(api, capacity=4)
    for number in range(9):
        events.emit(*of("loud", number))
    assert events.dropped == 5
    for number in range(9):
        events.emit(*of("quiet", number))
    assert events.dropped == 14
    async with running(events.run()):
        await settle()
    messages = sorted((path.split("/")[4], body["message"]) for path, body in api.events)
    assert messages == [("loud", "0"), ("loud", "1"), ("quiet", "0"), ("quiet", "1")]
