"""List and watch under every fault: the receiver ends up right, the server unhurt.

Source: docs/facts/ecosystem.md 1.3 and 1.6
"""

import asyncio
from contextlib import asynccontextmanager

import pytest

from tests.kit.clock import ManualClock, settle
from tests.kube.world import (
    Dice,
    Receiver,
    bookmark,
    connected,
    event,
    failed,
    fault,
    page,
    plain,
    pod,
    running,
    slammed,
    stream,
)
from turnout.kube.backoff import Backoff
from turnout.kube.client.reflector import Outage, Reflector
from turnout.kube.errors import BadQuantity
from turnout.kube.objects import Pod

pytestmark = pytest.mark.asyncio
PODS = "/api/v1/pods"


class Scene:
    """A reflector at work on a scripted server."""

    def __init__(self, script, clock, receiver, reflector):
        self.script, self.clock, self.receiver, self.reflector = script, clock, receiver, reflector

    def versions(self):
        return [request.query["resourceVersion"] for request in self.script.of("watch")]


@asynccontextmanager
async def reflecting(folder, lists=None, watches=None, fall=1.0, receiver=None, **more):
    clock, receiver = ManualClock(), receiver or Receiver()
    async with connected(folder) as (script, client):
        script.lists, script.watches = lists or script.lists, watches or script.watches
        reflector = Reflector(client, PODS, Pod, receiver, clock=clock, rng=Dice(fall), **more)
        async with running(reflector.run()):
            yield Scene(script, clock, receiver, reflector)


async def test_lists_in_pages_then_watches_from_there(tmp_path):
    lists = [page([pod("a")], more="+/="), page([pod("b")], version=10)]
    watches = [stream(event("ADDED", pod("c", 11)), event("MODIFIED", pod("a", 12)), event("DELETED", pod("b", 13)))]
    async with reflecting(tmp_path, lists, watches, params={"labelSelector": "x=y"}) as scene:
        await scene.receiver.until("drop b#u-b")
        assert scene.receiver.told == ["put a@1", "put b@1", "synced", "put c@11", "put a@12", "drop b#u-b"]
        first, second, watch = scene.script.asked
        assert first.query == {"labelSelector": "x=y", "limit": "500"}
        assert second.query == {"labelSelector": "x=y", "limit": "500", "continue": "+/="}
        assert watch.query == {
            "labelSelector": "x=y",
            "resourceVersion": "10",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": "300",
            "watch": "true",
        }
        assert (scene.reflector.has_synced, scene.reflector.object_count, scene.reflector.skipped_count) == (True, 2, 0)


@pytest.mark.parametrize(("fall", "seconds"), [(0.0, "240"), (0.5, "270")], ids=["at least", "in between"])
async def test_the_length_of_a_watch_is_drawn(tmp_path, fall, seconds):
    async with reflecting(tmp_path, fall=fall) as scene:
        assert (await scene.script.until("watch", 1)).query["timeoutSeconds"] == seconds


MOVES = [
    pytest.param([bookmark(50)], "50", id="a bookmark moves the version"),
    pytest.param([event("MODIFIED", pod("a", 41))], "41", id="so does an event"),
    pytest.param([event("DELETED", pod("a", 42))], "42", id="a deletion"),
    pytest.param([event("ADDED", pod("a", 43, spec="odd"))], "43", id="an object that only shows its version"),
    pytest.param([b"\xff{\n"], "10", id="noise does not"),
    pytest.param([event("INVENTED", pod("a", 99))], "10", id="nor a word we do not know"),
]


@pytest.mark.parametrize(("lines", "version"), MOVES)
async def test_goes_on_from_what_it_saw(tmp_path, lines, version):
    async with reflecting(tmp_path, watches=[stream(*lines, then="end"), stream()]) as scene:
        await scene.clock.skip()
        await scene.script.until("watch", 2)
        assert scene.versions() == ["10", version]
        assert len(scene.script.of("list")) == 1


FAULTS = [
    pytest.param(fault(500), False, id="500 at the watch"),
    pytest.param(fault(503), False, id="503"),
    pytest.param(fault(403), False, id="403 after a change of RBAC"),
    pytest.param(fault(429, retry_after=5), False, id="429 with Retry-After"),
    pytest.param(stream(then="end"), False, id="closes at once, empty"),
    pytest.param(slammed(), False, id="cuts the connection"),
    pytest.param(stream(bookmark(10), then="reset"), False, id="cuts it after a word"),
    pytest.param(stream(event("ERROR", failed(500)), then="end"), False, id="500 in an event"),
    pytest.param(plain(b"<html>nonsense", 502), False, id="a proxy's page"),
    pytest.param(fault(410), True, id="410 as a status, each time"),
    pytest.param(stream(event("ERROR", failed(410)), then="end"), True, id="410 in an event, each time"),
    pytest.param(fault(504, "Too large resource version: 9, current: 3"), True, id="a server put back in time"),
]


@pytest.mark.parametrize(("answer", "lists_again"), FAULTS)
@pytest.mark.parametrize("fall", [1.0, 0.5], ids=["slow", "middling"])
async def test_no_storm_whatever_the_watch_says(tmp_path, answer, lists_again, fall):
    async with reflecting(tmp_path, [page([pod("a")])], [answer], fall) as scene:
        await scene.clock.live(600)
        watches, lists, tries = (
            len(scene.script.of("watch")),
            len(scene.script.of("list")),
            scene.reflector.reconnect_count + 1,
        )
        assert 15 <= tries <= 50, "it goes on trying, a few times a minute"
        assert tries <= watches <= tries * 2, "aiohttp itself repeats, once, what was cut before a word"
        assert lists == (tries if lists_again else 1)
        assert set(scene.versions()) == {"10"}
        assert scene.reflector.relist_count == lists - 1
        assert scene.receiver.objects.keys() == {("ml", "a")}, "what was known is still served"


async def test_no_storm_when_lists_fail(tmp_path):
    async with reflecting(tmp_path, [fault(500)]) as scene:
        await scene.clock.live(600)
        assert 15 <= len(scene.script.asked) <= 50
        assert not scene.reflector.has_synced
        assert scene.receiver.told == []
        assert "500" in scene.reflector.last_error


async def test_waits_double_each_time_and_start_over_after_a_healthy_minute(tmp_path):
    watches = [fault(500)] * 7 + [stream(then="hang"), fault(500), stream()]
    async with reflecting(tmp_path, watches=watches) as scene:
        pauses = []
        for _ in range(7):
            pauses.append(round(await scene.clock.until_asleep(), 3))
            await scene.clock.advance(pauses[-1])
        assert pauses == [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0]
        await scene.script.until("watch", 8)
        await scene.clock.advance(330)  # the healthy watch falls silent at last
        assert await scene.clock.until_asleep() == pytest.approx(0.8)


async def test_a_healthy_watch_that_ends_is_followed_at_once(tmp_path):
    async def ends_when_told(request, server):
        await server.closing.wait()
        server.closing.clear()
        return await stream(bookmark(77), then="end")(request, server)

    async with reflecting(tmp_path, watches=[ends_when_told, stream()]) as scene:
        await scene.script.until("watch", 1)
        await scene.clock.advance(250)
        scene.script.closing.set()
        await scene.script.until("watch", 2)
        assert scene.versions() == ["10", "77"]
        assert scene.clock.monotonic() == 1250


@pytest.mark.parametrize("where", ["list", "watch"])
async def test_the_pause_that_the_server_asks_for_is_kept(tmp_path, where):
    busy = fault(429, retry_after=17)
    async with reflecting(tmp_path, [busy, page()] if where == "list" else None, [busy, stream()]) as scene:
        assert await scene.clock.until_asleep() == pytest.approx(17)
        await scene.clock.advance(16.9)
        assert len(scene.script.of(where)) == 1
        await scene.clock.advance(0.2)
        await scene.script.until(where, 2)


async def test_a_list_that_is_asked_for_after_an_outage_comes_soon(tmp_path):
    async with reflecting(tmp_path, [page([pod("a")])], [*[fault(503)] * 8, fault(410), stream()]) as scene:
        pauses = []
        while len(scene.script.of("list")) < 2:
            pauses.append(await scene.clock.until_asleep(31))
            await scene.clock.skip()
            await settle(100)
        assert pauses[-2:] == [30.0, pytest.approx(0.8)]


async def test_the_first_watch_answered_after_an_outage_wakes_the_others(tmp_path):
    """Each once in the longest pause at most, and none that the server has answered."""
    outage = Outage()
    async with reflecting(tmp_path, [fault(503)], outage=outage) as scene:
        while max(scene.clock.sleepers(), default=0.0) < 30.0:
            await scene.clock.skip()
            await settle(100)
        for pause_s in (1.0, 0.8, 1.6):  # woken; then its failures count anew, and it is not woken so soon again
            outage.end()
            await settle(100)
            assert await scene.clock.until_asleep() == pytest.approx(pause_s)
            await scene.clock.skip()
        scene.script.lists, scene.script.watches = [page([pod("a")])], [stream()]
        woken = asyncio.create_task(outage.wait_for_end())
        await scene.clock.skip()
        await scene.script.until("watch", 1)
        await woken


async def test_after_a_gap_deletes_are_made_up_and_unchanged_objects_are_silent(tmp_path):
    lists = [
        page([pod("same"), pod("gone"), pod("changed"), pod("again", uid="old")]),
        page([pod("same"), pod("changed", 2), pod("again", 3, uid="new"), pod("fresh", 4)], version=20),
    ]
    async with reflecting(tmp_path, lists, [fault(410), stream()]) as scene:
        await scene.receiver.until("synced")
        first = len(scene.receiver.told)
        await scene.clock.skip()
        await scene.script.until("watch", 2)
        assert scene.receiver.told[first:] == [
            "put changed@2",
            "drop again#old",
            "put again@3",
            "put fresh@4",
            "drop gone#u-gone",
            "synced",
        ]
        assert scene.versions() == ["10", "20"]
        assert (scene.reflector.relist_count, scene.reflector.reconnect_count) == (1, 1)


async def test_duplicate_late_and_re_created_events_end_in_the_same_state(tmp_path):
    lines = [
        event("ADDED", pod("a", 11, uid="1")),
        event("ADDED", pod("a", 11, uid="1")),
        event("ADDED", pod("a", 12, uid="2")),
        event("DELETED", pod("a", 13, uid="1")),
        event("DELETED", pod("b", 14)),
        event("ADDED", pod("end", 15)),
    ]
    async with reflecting(tmp_path, watches=[stream(*lines)]) as scene:
        await scene.receiver.until("put end@15")
        assert scene.receiver.told == ["synced", "put a@11", "drop a#1", "put a@12", "put end@15"]


async def test_what_cannot_be_read_costs_only_itself(tmp_path):
    lines = [
        b"not json\n",
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
        event("ADDED", pod("bad", 11, spec={"containers": "none"})),
        event("ADDED", {"metadata": {"labels": {"a": 1}, "name": "worse"}}),
        event("ADDED", {"nameless": True}),
        event("SOMETHING", pod("new", 12)),
        event("ADDED", pod("huge", 12, data="x" * 5_000_000)),
        event("ADDED", pod("good", 13)),
    ]
    async with reflecting(tmp_path, watches=[stream(*lines)]) as scene:
        await scene.receiver.until("put good@13")
        assert scene.receiver.told == ["synced", "put good@13"]
        assert scene.reflector.skipped_count == 8
        assert len(scene.script.of("watch")) == 1, "the stream was kept"


async def test_an_object_that_became_unreadable_stays_as_last_seen_until_deleted(tmp_path):
    bad = pod("a", 2, spec={"containers": 1})
    lists = [page([pod("a"), pod("b")]), page([bad, pod("c", spec="odd"), "noise"], version=20)]
    watches = [fault(410), stream(event("DELETED", {**bad, "metadata": {**bad["metadata"], "resourceVersion": "21"}}))]
    async with reflecting(tmp_path, lists, watches) as scene:
        await scene.receiver.until("synced")
        await scene.clock.skip()
        await scene.receiver.until("drop a#u-a")
        assert scene.receiver.told == ["put a@1", "put b@1", "synced", "drop b#u-b", "synced", "drop a#u-a"]
        assert scene.reflector.skipped_count == 3


async def test_an_object_that_the_receiver_cannot_use_is_counted(tmp_path):
    def refuse(obj):
        return BadQuantity("1K") if obj.metadata.name == "odd" else None

    async with reflecting(tmp_path, [page([pod("odd"), pod("fine")])], receiver=Receiver(refuse)) as scene:
        await scene.receiver.until("synced")
        assert (scene.receiver.objects.keys(), scene.reflector.skipped_count) == ({("ml", "fine")}, 1)


@pytest.mark.parametrize(
    ("lines", "bound_s"),
    [
        pytest.param(
            [bookmark(10), event("ADDED", pod("a", 11))], 120, id="within two bookmarks, from a server that sends them"
        ),
        pytest.param([], 330, id="past its own end, from one that does not"),
    ],
)
async def test_a_half_dead_connection_is_noticed(tmp_path, lines, bound_s):
    async with reflecting(tmp_path, watches=[stream(*lines), stream()]) as scene:
        await scene.clock.until_asleep(120)
        if lines:
            await scene.receiver.until("put a@11")
        await scene.clock.advance(bound_s - 1)
        assert len(scene.script.of("watch")) == 1
        await scene.clock.advance(1)
        await scene.clock.skip()
        await scene.script.until("watch", 2)
        assert "silent" in scene.reflector.last_error
        assert len(scene.script.of("list")) == 1


async def test_pages_that_outlive_their_version_are_taken_in_one_piece(tmp_path):
    lists = [page([pod("a"), pod("stale")], more="next"), fault(410), page([pod("a"), pod("b")], version=12)]
    async with reflecting(tmp_path, lists) as scene:
        await scene.receiver.until("synced")
        assert [request.query for request in scene.script.of("list")] == [
            {"limit": "500"},
            {"limit": "500", "continue": "next"},
            {},
        ]
        assert scene.receiver.objects.keys() == {("ml", "a"), ("ml", "b")}


async def test_an_optional_kind_may_come_late_and_go_again(tmp_path):
    lists = [fault(404), fault(404), page([pod("a")]), fault(404)]
    async with reflecting(tmp_path, lists, [fault(404), stream()], optional=True) as scene:
        await scene.receiver.until("synced")
        assert scene.reflector.has_synced
        assert await scene.clock.until_asleep() == 30
        await scene.clock.live(61)
        await scene.receiver.until("put a@1", "drop a#u-a")
        assert scene.receiver.told == ["synced", "put a@1", "synced", "drop a#u-a", "synced"]
        await scene.clock.live(600)
        assert len(scene.script.asked) <= 5 + 600 / 30


async def test_a_kind_that_must_be_served_is_not_synced_by_its_absence(tmp_path):
    async with reflecting(tmp_path, [fault(404)]) as scene:
        await scene.clock.live(100)
        assert not scene.reflector.has_synced
        assert len(scene.script.asked) < 15


@pytest.mark.parametrize(
    "answer",
    [plain(b"<html>"), plain({"items": []}), plain({"metadata": {}, "items": [1]})],
    ids=["html", "bare", "odd"],
)
async def test_what_is_no_list_is_no_sync(tmp_path, answer):
    async with reflecting(tmp_path, [answer, page([pod("a")])]) as scene:
        await scene.clock.until_asleep()
        assert not scene.reflector.has_synced
        await scene.clock.skip()
        await scene.receiver.until("synced", "put a@1")


async def test_a_list_of_nothing_may_be_null(tmp_path):
    async with reflecting(tmp_path, [plain({"metadata": {"resourceVersion": "3"}, "items": None})]) as scene:
        await scene.receiver.until("synced")
        assert scene.reflector.skipped_count == 0


async def test_it_is_known_since_when_a_watch_shows_what_changes(tmp_path):
    watches = [stream(event("ADDED", pod("a", 11)), then="reset"), fault(503), stream(event("ADDED", pod("b", 12)))]
    async with reflecting(tmp_path, watches=watches) as scene:
        assert scene.reflector.watching_since_s is None  # nothing was asked yet
        for pause_s in (0.8, 1.6):  # cut off, then refused
            assert await scene.clock.until_asleep() == pytest.approx(pause_s)
            assert scene.reflector.watching_since_s is None
            await scene.clock.skip()
        await scene.receiver.until("put b@12")
        taken_s = scene.clock.monotonic()
        await scene.clock.advance(60)
        assert scene.reflector.watching_since_s == taken_s


async def test_the_age_of_the_last_word_is_known(tmp_path):
    async with reflecting(tmp_path, watches=[stream(bookmark(11))]) as scene:
        await scene.receiver.until("synced")
        await scene.clock.until_asleep(330)
        await scene.clock.advance(70)
        assert scene.clock.monotonic() - scene.reflector.last_event_s == pytest.approx(70)


@pytest.mark.parametrize("answer", [slammed(), fault(503)], ids=["no connection", "refused"])
async def test_a_watch_that_is_not_answered_is_no_word(tmp_path, answer):
    """Each try counted as a word: the view of an unreachable server looked young, and no alert could fire."""
    async with reflecting(tmp_path, watches=[stream(bookmark(11), then="reset"), answer]) as scene:
        await scene.receiver.until("synced")
        await scene.clock.until_asleep()
        heard_s = scene.reflector.last_event_s
        await scene.clock.live(300)
        assert scene.reflector.last_event_s == heard_s


async def test_a_watch_that_is_answered_again_is_a_word(tmp_path):
    watches = [stream(bookmark(11), then="reset"), fault(503), stream(event("ADDED", pod("b", 12)))]
    async with reflecting(tmp_path, watches=watches) as scene:
        await scene.receiver.until("synced")
        for _ in range(2):
            await scene.clock.skip()
        await scene.receiver.until("put b@12")
        assert scene.reflector.last_event_s == scene.reflector.watching_since_s


@pytest.mark.parametrize(
    ("failures", "draw", "asked_s", "wait_s"),
    [
        (1, 1.0, 0, 0.8),
        (3, 0.5, 0, 1.6),
        (100_000, 1.0, 0, 30.0),
        (1, 0.0, 0, 0.0),
        (1, 1.0, 5, 5.0),
        (1, 1.0, 10**9, 300.0),
    ],
    ids=["first", "third, half drawn", "bounded", "full jitter", "as asked", "but not for ever"],
)
async def test_back_off(failures, draw, asked_s, wait_s):
    assert Backoff().wait_s(failures, draw, asked_s) == pytest.approx(wait_s)
