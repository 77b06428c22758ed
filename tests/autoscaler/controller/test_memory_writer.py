"""The next leader is told on which terms workers were lent and who left room unused, by no word of a tenant."""

import asyncio
import json

import pytest

from tests.autoscaler.test_cache import node
from tests.autoscaler.test_shares import NOW_S, POLICY, raw
from turnout.autoscaler.cache import Cache
from turnout.autoscaler.controller.memory_writer import WRITE_INTERVAL_S, MemoryWriter
from turnout.autoscaler.decide import decide
from turnout.autoscaler.memory import MAX_STRIKES, MAX_TERMS, Memory, Strike, Terms, encode, read
from turnout.autoscaler.observe.room_history import UnusedRoom
from turnout.jobs.kinds.registry import KINDS
from turnout.jobs.model import JobKey, Sizes
from turnout.kube import labels
from turnout.kube.errors import Forbidden, NotFound, Unreachable

TERMS = Terms(2, Sizes(2, True), {labels.MIN_WORKERS: "2"}, True)
GHOST = JobKey("Pod", "greedy", "ghost")
KNOWN = Memory({"uid": TERMS}, (Strike(GHOST, 3, 10.0, 200.0), Strike("greedy", 5, 20.0, 100.0)))


class Api:
    """An API server that keeps one ConfigMap; the errors that were put in come first."""

    def __init__(self):
        self.data, self.writes, self.errors = None, 0, []

    def _fail(self):
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error

    async def get(self, path):
        self._fail()
        if self.data is None:
            raise NotFound("GET", "/", 404, "no")
        return json.dumps({"data": self.data}).encode()

    async def patch(self, path, body, content_type, field_manager):
        self._fail()
        if self.data is None:
            raise NotFound("GET", "/", 404, "no")
        self.data, self.writes = body["data"], self.writes + 1
        return b"{}"

    async def create(self, path, body):
        self.data, self.writes = body["data"], self.writes + 1
        return b"{}"


class Clock:
    """A clock moved by hand; who sleeps moves it, too."""

    def __init__(self):
        self.now_s = 1_000.0

    def monotonic(self):
        return self.now_s

    async def sleep(self, seconds):
        self.now_s += seconds


def writer(api, clock=None):
    return MemoryWriter(api, "turnout-system", clock or Clock())


def grown(**notes):
    """A job of 8 workers, 2 of which were its min when it began."""
    return raw("a", "mine", 8, 2, 16, **notes)


def leader():
    view = Cache(KINDS)
    view.put_node(node("n", 16))
    return view


@pytest.mark.parametrize(
    "words",
    [
        pytest.param({labels.MIN_WORKERS: "8"}, id="that all it has is its min"),
        pytest.param({labels.MIN_WORKERS: "8", labels.UNIT: "8"}, id="that it has one size only"),
        pytest.param({labels.PRIORITY: "much"}, id="what nobody can read"),
    ],
)
def test_terms_outlive_a_leader_whatever_is_written_between_two(words):
    api, first, second = Api(), leader(), leader()
    first.put_job("Job", raw("a", "mine", 2, 2, 16))
    asyncio.run(writer(api).write_changes(Memory(first.reader.lent_terms([JobKey("Job", "mine", "a")])), NOW_S))
    second.put_job("Job", grown(**words))
    second.reader.restore_terms(asyncio.run(writer(api).read_memory(NOW_S)).terms)
    (job,) = second.jobs.by_uid.values()
    assert job.bounds.minimum == 2


def test_memory_is_read_again_after_an_answer_of_a_proxy():
    answers = [b"<html>", b'{"data": "\xff"}', b"[]"]

    class Proxied(Api):
        async def get(self, path):
            return answers.pop() if answers else await super().get(path)

    assert asyncio.run(writer(Proxied()).read_memory(NOW_S)).terms == {}
    assert answers == []


def test_a_job_that_has_only_its_min_is_held_on_its_owners_terms():
    api, first, second = Api(), leader(), leader()
    first.put_job("Job", raw("a", "mine", 2, 2, 16))
    asyncio.run(writer(api).write_changes(Memory(first.reader.lent_terms([JobKey("Job", "mine", "a")])), NOW_S))
    second.put_job("Job", raw("a", "mine", 2, 1, 16))
    second.reader.restore_terms(asyncio.run(writer(api).read_memory(NOW_S)).terms)
    assert [job.bounds.minimum for job in second.jobs.by_uid.values()] == [1]
    assert second.reader.lent_terms([]) == {
        "a": Terms(1, Sizes(), {labels.MIN_WORKERS: "1", labels.MAX_WORKERS: "16"}, True)
    }


def test_nothing_is_kept_of_jobs_that_are_gone():
    view = leader()
    view.reader.restore_terms({"gone": TERMS})
    assert view.reader.lent_terms([]) == {}


def test_who_left_room_unused_waits_on_under_the_next_leader():
    first, second = (UnusedRoom(60.0, lambda _: False) for _ in range(2))
    first.restore_strikes([Strike("greedy", 5, 0.0, 500.0)], 100.0)
    memory = read(encode(Memory(strikes=first.strikes(200.0)), NOW_S), NOW_S + 50.0)
    second.restore_strikes(memory.strikes, 7.0)
    assert second.strikes(7.0) == (Strike("greedy", 5, 150.0, 350.0),)


@pytest.mark.parametrize("after_s", [0.0, 150.0])
def test_what_is_written_is_read_with_the_time_that_went_by(after_s):
    found = read(encode(KNOWN, NOW_S), NOW_S + after_s)
    assert found.terms == KNOWN.terms
    assert [(each.owner, each.times, each.age_s, each.left_s) for each in found.strikes] == [
        (GHOST, 3, 10.0 + after_s, 200.0 - after_s),
        ("greedy", 5, 20.0 + after_s, max(0.0, 100.0 - after_s)),
    ]


@pytest.mark.parametrize("text", ["", "{", "[1]", "²", '{"a": 1}', "[" * 5_000])
def test_what_cannot_be_read_counts_as_absent(text):
    assert read(dict.fromkeys(("terms", "strikes", "at"), text), NOW_S) == Memory()


def test_an_entry_with_a_number_out_of_range_is_left_out():
    terms = '{"a":[0,1,false,true,["","",""]],"b":[1,0,false,true,["","",""]],"c":[1,1,false,true,["","",""]]}'
    strikes = '[["a",0,1,1],["b",1,-5,1],["c",1,1,-1],["d",1,0,0]]'
    memory = read({"terms": terms, "strikes": strikes, "at": f"{NOW_S:.0f}"}, NOW_S)
    assert (list(memory.terms), memory.strikes) == (["c"], (Strike("d", 1, 0.0, 0.0),))


def test_what_is_written_fits_a_configmap():
    words = dict.fromkeys((labels.MIN_WORKERS, labels.MAX_WORKERS, labels.UNIT), "9" * 14)
    terms = {f"{number:036d}": Terms(9_999, Sizes(9_999), words, True) for number in range(MAX_TERMS + 9)}
    strikes = tuple(Strike(JobKey("P" * 16, "n" * 63, f"{number:0253d}"), 9, 9.0, 9.0) for number in range(2_000))
    data = encode(Memory(terms, strikes), NOW_S)
    assert (len(json.loads(data["terms"])), len(json.loads(data["strikes"]))) == (MAX_TERMS, MAX_STRIKES)
    assert sum(map(len, data.values())) < 1 << 20


def test_terms_are_written_before_the_growth_and_the_rest_now_and_then():
    api, clock = Api(), Clock()
    scale_writer = writer(api, clock)
    struck = Memory({"uid": TERMS}, (Strike("greedy", 1, 0.0, 0.0),))

    async def story():
        await scale_writer.read_memory(NOW_S)
        found = [
            await scale_writer.write_changes(Memory({"uid": TERMS}), NOW_S),
            await scale_writer.write_changes(Memory({"uid": TERMS}), NOW_S),
        ]
        found.append(await scale_writer.write_changes(struck, NOW_S))
        clock.now_s += WRITE_INTERVAL_S
        return [
            *found,
            await scale_writer.write_changes(struck, NOW_S),
            await scale_writer.write_changes(struck, NOW_S),
        ]

    assert asyncio.run(story()) == [True, False, False, True, False]


def test_a_write_that_fails_is_tried_again_a_while_later(caplog):
    api, clock = Api(), Clock()
    scale_writer = writer(api, clock)

    async def story():
        await scale_writer.read_memory(NOW_S)
        api.errors = [Forbidden("PATCH", "/", 403, "no")]
        found = [await scale_writer.write_changes(KNOWN, NOW_S) for _ in range(3)]
        clock.now_s += WRITE_INTERVAL_S
        return [*found, await scale_writer.write_changes(KNOWN, NOW_S)]

    assert asyncio.run(story()) == [False, False, False, True]
    assert [record.msg for record in caplog.records if record.levelname == "WARNING"] == ["memory_not_written"]


@pytest.mark.parametrize(
    ("errors", "known"),
    [
        pytest.param([Unreachable("GET", "/", 0, "down")] * 3, 1, id="a server that does not answer is asked again"),
        pytest.param([Forbidden("PATCH", "/", 403, "no")], 0, id="without the right nothing is known"),
    ],
)
def test_a_new_leader_asks_once(errors, known):
    api = Api()
    asyncio.run(writer(api).write_changes(KNOWN, NOW_S))
    api.errors = list(errors)
    assert len(asyncio.run(writer(api).read_memory(NOW_S)).terms) == known


def test_a_job_held_on_old_terms_gives_what_it_borrowed():
    view = leader()
    view.put_job("Job", grown(**{labels.MIN_WORKERS: "8"}))
    view.reader.restore_terms({"a": Terms(2, Sizes(), {}, True)})
    (job,) = view.jobs.by_uid.values()
    assert (job.bounds.minimum, job.replicas, len(decide(view.observation(NOW_S), POLICY, NOW_S))) == (2, 8, 1)
