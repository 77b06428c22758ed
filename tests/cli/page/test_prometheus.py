"""The time before the page started, from a Prometheus: what is asked, what an answer means, and what a bad one does."""

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from tests.cli.page.served import asking, page
from tests.cli.page.states import job
from tests.cli.page.test_access import Reviews
from tests.kit.clock import ManualClock
from tests.kit.wait import until_async
from turnout.cli.page import past_queries
from turnout.cli.page.access import ClusterAccess
from turnout.cli.page.history import WINDOWS
from turnout.cli.page.messages import QueueSample, SizeSample
from turnout.cli.page.past_queries import BadAnswer, queue_samples, quoted, read_series, size_samples
from turnout.cli.page.prometheus import FAILED_S, KNOWN_S, MAX_BYTES, MAX_KNOWN, Prometheus

NOW_S = 1_800_000_000.0
GAP = (None,) * 6


def matrix(*series):
    """An answer of Prometheus: (labels, [(time, value)])."""
    rows = [{"metric": labels, "values": [[at, str(value)] for at, value in points]} for labels, points in series]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": rows}})


@pytest.mark.parametrize(("lines", "samples"), [
    pytest.param({}, (), id="no series"),
    pytest.param({"used": {0: 6}, "elastic": {0: 2}, "deserved": {0: 8}, "": {0: 1.2}}, ((0, 8, 4, 2, 1, 1, 0),),
                 id="min, elastic, lent and idle fill the quota"),
    pytest.param({"used": {0: 9}, "elastic": {0: 3}, "deserved": {0: 4}}, ((0, 4, 6, 3, 0, 0, 5),),
                 id="what is used beyond the quota is borrowed"),
    pytest.param({"used": {0: 9}, "elastic": {0: 3}}, ((0, None, 6, 3, 0, 0, 0),), id="no quota"),
    pytest.param({"min": {0: 4}, "elastic": {0: 3}}, ((0, None, 4, 3, 0, 0, 0),), id="a queue that only jobs name"),
    pytest.param({"used": {0: 2, 10: 2, 40: 2}}, ((0, None, 2, 0, 0, 0, 0), (10, None, 2, 0, 0, 0, 0), (20, *GAP),
                 (40, None, 2, 0, 0, 0, 0)), id="a gap is shown as a gap"),
    pytest.param({"used": {0: 2}, "elastic": {0: 5}, "": {0: 99}, "deserved": {0: 4}}, ((0, 4, 0, 2, 2, 0, 0),),
                 id="amounts of different moments are bounded by each other"),
])  # fmt: skip
def test_what_the_lines_of_a_queue_mean(lines, samples):
    assert queue_samples(lines, 10.0) == tuple(QueueSample(*each) for each in samples)


def test_only_changes_of_a_jobs_size_are_kept():
    found = size_samples({0: 2, 30: 2, 60: 4, 90: 4})
    assert found == (SizeSample(0, 2), SizeSample(60, 4))
    assert len(size_samples({at: at % 2 for at in range(2_000)})) == past_queries.MAX_CHANGES


@pytest.mark.parametrize(("text", "literal"), [
    ("a", '"a"'), ('a"} or vector(1) #', '"a\\"} or vector(1) #"'), ("a\\", '"a\\\\"'), ("a\nb", '"a\\nb"'),
])  # fmt: skip
def test_a_name_stays_a_string_of_the_query(text, literal):
    assert quoted(text) == literal


BAD = {
    "no JSON": "<html>",
    "deep nesting": "[" * 100_000,
    "another type": json.dumps({"status": "success", "data": {"resultType": "vector", "result": []}}),
    "a refusal": json.dumps({"status": "error", "errorType": "bad_data", "error": "too many samples"}),
    "a value that is no number": matrix(({"type": "used"}, [(0, "many")])),
    "too many series": matrix(*(({"type": str(at)}, [(0, 1)]) for at in range(past_queries.MAX_SERIES + 1))),
    "too many points": matrix(({"type": "used"}, [(at, 1) for at in range(past_queries.MAX_POINTS + 1)])),
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD)
def test_an_answer_that_is_none_is_refused(body):
    with pytest.raises(BadAnswer):
        read_series(body.encode(), "type")


def test_an_answer_of_another_type_names_the_type():
    with pytest.raises(BadAnswer, match="its answer is a vector, not a matrix"):
        read_series(BAD["another type"].encode(), "type")


def test_values_that_are_no_amount_are_left_out():
    points = [(0, "NaN"), (1, "+Inf"), (2, -1), (3, 1e300), (4, 5)]
    assert read_series(matrix(({"type": "used"}, points)).encode(), "type") == {"used": {4: 5.0}}


class Server:
    """A Prometheus whose answers a test sets. forms: the questions that it got."""

    def __init__(self, answer=lambda form: matrix()):
        self.answer, self.forms, self.release = answer, [], asyncio.Event()
        self.release.set()

    async def query_range(self, request):
        form = dict(await request.post())
        self.forms.append(form)
        await self.release.wait()
        answer = self.answer(form)
        return answer if isinstance(answer, web.Response) else web.Response(text=answer)

    @asynccontextmanager
    async def running(self):
        """Serve it; give its address."""
        app = web.Application()
        app.router.add_post("/sub/api/v1/query_range", self.query_range)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/sub/"
        finally:
            self.release.set()
            await runner.cleanup()


@asynccontextmanager
async def samples_of(server, cluster=""):
    """Give a source of the past from this server, and its clock."""
    clock = ManualClock(wall_s=NOW_S)
    async with server.running() as url, aiohttp.ClientSession() as session:
        past = Prometheus(session, url, cluster, clock)
        try:
            yield past, clock
        finally:
            await past.close()


def two_points(form):
    """Six used GPUs of the queue at the last two moments that are asked for."""
    end_s = float(form["end"])
    points = [(end_s - 20, 6), (end_s - 10, 6)]
    return matrix(({"type": "used"}, points)) if "queue_gpus" in form["query"] else matrix()


@pytest.mark.asyncio
async def test_an_answer_counts_for_some_minutes():
    server = Server(two_points)
    async with samples_of(server, 'a"b') as (past, clock):
        for _ in range(3):
            found = await past.queue("team", "1h", NOW_S)
        assert [each.min_gpus for each in found.samples] == [6, 6]
        assert found.note == ""
        assert len(server.forms) == 3
        assert 'turnout_queue_gpus{queue="team",cluster="a\\"b"}' in server.forms[0]["query"]
        span_s = float(server.forms[0]["end"]) - float(server.forms[0]["start"])
        assert span_s == (past_queries.MAX_POINTS - 1) * WINDOWS["1h"]
        clock.now_s += KNOWN_S
        await past.queue("team", "1h", NOW_S)
        await until_async(lambda: len(server.forms) == 6)


FAULTS = {
    "an error": lambda form: web.Response(status=503, text="no"),
    "a redirect is not followed": lambda form: web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"}),
    "no answer of a Prometheus": lambda form: "<html>",
    "an endless answer": lambda form: web.Response(body=b"x" * (MAX_BYTES + 1)),
    "no samples": lambda form: matrix(),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_a_fault_is_a_note_and_is_asked_again_later(fault):
    server = Server(fault)
    async with samples_of(server) as (past, clock):
        first = await past.queue("team", "1h", NOW_S)
        assert (first.samples, bool(first.note)) == ((), True)
        count = len(server.forms)
        await past.queue("team", "1h", NOW_S)
        assert len(server.forms) == count
        server.answer = two_points
        clock.now_s += FAILED_S
        await past.queue("team", "1h", NOW_S)
        await until_async(lambda: len(server.forms) == count + 3)


@pytest.mark.asyncio
async def test_a_fault_does_not_take_what_was_known():
    server = Server(two_points)
    async with samples_of(server) as (past, clock):
        before = await past.queue("team", "1h", NOW_S)
        server.answer = FAULTS["an error"]
        clock.now_s += KNOWN_S
        assert await past.queue("team", "1h", NOW_S) == before
        await until_async(lambda: len(server.forms) == 4)
        await past.queue("other", "1h", NOW_S)  # answered after it
        found = await past.queue("team", "1h", NOW_S)
        assert found.samples == before.samples
        assert "503" in found.note


@pytest.mark.asyncio
async def test_nobody_listens():
    async with aiohttp.ClientSession() as session:
        past = Prometheus(session, "http://127.0.0.1:1", "", ManualClock())
        assert (await past.queue("team", "1h", NOW_S)).note == "Prometheus cannot be reached."


@pytest.mark.asyncio
async def test_a_slow_prometheus_lets_nobody_wait_for_long():
    server = Server(two_points)
    server.release.clear()
    async with samples_of(server) as (past, _):
        found = await asyncio.gather(*(past.queue("team", "1h", NOW_S) for _ in range(5)))
        assert {each.note for each in found} == {"Prometheus has not answered yet."}
        assert len(server.forms) == 1
        server.release.set()
        await until_async(lambda: len(server.forms) == 3)
        await past.queue("other", "1h", NOW_S)  # answered after it
        assert len((await past.queue("team", "1h", NOW_S)).samples) == 2


@pytest.mark.asyncio
async def test_a_bounded_number_of_answers_is_remembered():
    server = Server(two_points)
    async with samples_of(server) as (past, _):
        for at in range(MAX_KNOWN + 1):
            await past.queue(f"q{at}", "1h", NOW_S)
        count = len(server.forms)
        await past.queue(f"q{MAX_KNOWN}", "1h", NOW_S)
        assert len(server.forms) == count
        await past.queue("q0", "1h", NOW_S)
        assert len(server.forms) == count + 3


@pytest.mark.asyncio
async def test_the_past_of_a_job_begins_with_the_job():
    server = Server(lambda form: matrix(({}, [(NOW_S - 60, 2), (NOW_S - 30, 3)])))
    async with samples_of(server) as (past, _):
        found = await past.job(job("Job/team-a/bert", since_at_s=NOW_S - 3_600), NOW_S)
        assert found.samples == (SizeSample(NOW_S - 60, 2), SizeSample(NOW_S - 30, 3))
        assert float(server.forms[0]["end"]) - float(server.forms[0]["start"]) == 3_600
        of_job = 'turnout_job_gpus{job_namespace="team-a",job_kind="Job",job_name="bert"}'
        assert f"max by (part) ({of_job})) / 8" in server.forms[0]["query"]


@pytest.mark.asyncio
async def test_a_job_that_is_created_again_has_a_past_of_its_own():
    server = Server(lambda form: matrix(({}, [(float(form["end"]) - 30, 2)])))
    async with samples_of(server) as (past, clock):
        await past.job(job("Job/team-a/bert", since_at_s=NOW_S - 3_600), NOW_S)
        clock.now_s += 60
        found = await past.job(job("Job/team-a/bert", since_at_s=NOW_S + 10), NOW_S + 60)
        assert found.samples == (SizeSample(NOW_S + 30, 2),)
        assert len(server.forms) == 2


@pytest.mark.asyncio
async def test_the_page_joins_the_past_with_its_own_samples_for_who_may_see_them(tmp_path):
    def answer(form):
        return matrix(({}, [(float(form["end"]) - 60, 3)])) if "job_gpus" in form["query"] else two_points(form)

    server = Server(answer)
    access = ClusterAccess(Reviews({"t1": "ann", "t2": "eve"}, {("ann", "pods", "team-a")}), ManualClock())
    async with (
        server.running() as url,
        page(tmp_path, access, prometheus_url=url) as (address, _, _),
        asking(address, "t1") as ann,
        asking(address, "t2") as eve,
    ):
        assert (await eve("queues/namespace%2Fteam-a/history"))[0] == 403
        assert (await eve("jobs/Pod/team-a/bert/sizes"))[0] == 404
        assert server.forms == []
        _, past = await ann("queues/namespace%2Fteam-a/history")
        times = [sample[0] for sample in past["samples"]]
        assert times == sorted(set(times))
        assert [sample[2] for sample in past["samples"][:2]] == [6, 6]
        assert past["own_since_at_s"] in times[2:]
        assert past["note"] == ""
        _, sizes = await ann("jobs/Pod/team-a/bert/sizes")
        assert [workers for _, workers in sizes["sizes"]] == [3]


@pytest.mark.asyncio
async def test_without_a_prometheus_the_page_says_so(tmp_path):
    async with page(tmp_path) as (address, _, _), asking(address) as ask:
        assert (await ask("queues/namespace%2Fteam-a/history"))[1]["note"] == ""
        _, sizes = await ask("jobs/Pod/team-a/bert/sizes")
        assert (sizes["sizes"], "--prometheus-url" in sizes["note"]) == ([], True)
