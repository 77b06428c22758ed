"""Callers with bad manners: each gets a clear answer or an end, others go on, and no secret is ever told."""

import asyncio
import gzip
import json
import logging
import os
from contextlib import AsyncExitStack

import pytest

from tests.kit.wait import until_async
from tests.scheduler_ext.server_support import Scripted, body, head, one_answer, opened, raw, rest
from turnout.scheduler_ext.wire.extender_v1 import MAX_BYTES, MAX_VALUES

pytestmark = pytest.mark.timeout(60)
DEEP = b'{"Pod":{"x":' + b"[" * 10**6 + b"]" * 10**6 + b'},"NodeNames":["a"]}'
SECRET = "hunter2-is-planted-here"


async def still_answers(served):
    """The next caller is served."""
    status, answer = await served.post("filter", body())
    return status == 200 and answer["NodeNames"] == ["a", "b"]


@pytest.mark.asyncio
@pytest.mark.parametrize(("data", "status", "outcome"), [
    pytest.param(b"", 400, "bad_request", id="an empty body"),
    pytest.param(b"{", 400, "bad_request", id="malformed JSON"),
    pytest.param(b'{"Pod":{"x":NaN},"NodeNames":["a"]}', 400, "bad_request", id="NaN"),
    pytest.param(b'{"Pod":{},"Pod":{},"NodeNames":["a"]}', 400, "bad_request", id="a pod twice"),
    pytest.param(b'{"Pod":{"x":"\xff"},"NodeNames":["a"]}', 400, "bad_request", id="not UTF-8"),
    pytest.param(body() + b"{}", 400, "bad_request", id="trailing bytes"),
    pytest.param(DEEP, 400, "bad_request", id="a nesting of 10^6"),
    pytest.param(b" " * 3000, 413, "too_large", id="too long"),
])  # fmt: skip
async def test_a_bad_body_is_refused_in_a_few_words(data, status, outcome):
    limit = 1 << 22 if data is DEEP else 2048
    async with opened(max_body_bytes=limit) as served:
        response_status, answer = await served.post("filter", data)
        assert response_status == status
        assert list(answer) == ["Error"]
        assert 0 < len(answer["Error"]) <= 256
        assert served.counted("turnout_extender_requests_total", verb="filter", outcome=outcome) == 1
        assert await still_answers(served)


@pytest.mark.asyncio
async def test_a_wrong_method_is_told_the_right_one():
    async with opened() as served:
        for method in ("GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"):
            async with served.session.request(method, f"http://127.0.0.1:{served.listeners.port}/filter") as answer:
                assert (answer.status, answer.headers["Allow"]) == (405, "POST")


@pytest.mark.asyncio
@pytest.mark.parametrize("path", ["", "bind", "filter/", "Filter", "metrics", "debug/view", "readyz", "..%2ffilter"])
async def test_a_wrong_path_is_not_found(path):
    async with opened() as served:
        assert (await served.post(path, body()))[0] == 404
        assert served.counted("turnout_extender_requests_total", verb="other", outcome="no_such_verb") == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "GZIP", "identity, gzip"])
async def test_a_compressed_body_is_refused_unread(coding):
    bomb = gzip.compress(bytes(1 << 28), 1)
    before = _rss_bytes()
    async with opened() as served:
        status, answer = await served.post("filter", bomb, headers={"Content-Encoding": coding}, compress=False)
        assert (status, answer) == (415, {"Error": "a compressed body is not read"})
        assert _rss_bytes() - before < 64 << 20
        assert await still_answers(served)


def _rss_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.asyncio
async def test_a_body_without_a_length_is_counted_as_it_comes():
    async def endless():
        for _ in range(1000):
            yield b" " * 1000

    async with opened(max_body_bytes=10_000) as served:
        assert (await served.post("filter", endless()))[0] == 413
        assert await still_answers(served)


@pytest.mark.asyncio
@pytest.mark.parametrize("is_complete", [True, False], ids=["with its length", "as it comes"])
@pytest.mark.parametrize(("path", "status"), [("gate", 413), ("filter", 400)])
async def test_a_review_has_a_bound_of_its_own_below_that_of_other_bodies(path, status, is_complete):
    async def pieces():
        for _ in range(MAX_BYTES // (1 << 16) + 1):
            yield b" " * (1 << 16)

    async with opened() as served:
        response_status, answer = await served.post(path, b" " * (MAX_BYTES + 1) if is_complete else pieces())
        assert response_status == status
        assert path == "filter" or f"at most {MAX_BYTES} bytes" in answer["Error"]
        assert await still_answers(served)


@pytest.mark.asyncio
async def test_the_pod_of_a_question_has_a_bound_of_values():
    many = b'{"Pod":{"spec":{"volumes":[' + b",".join([b'{"":{}}'] * MAX_VALUES) + b']}},"NodeNames":["a"]}'
    async with opened() as served:
        status, answer = await served.post("filter", many)
        assert status == 400
        assert f"at most {MAX_VALUES} values" in answer["Error"]
        assert await still_answers(served)


@pytest.mark.asyncio
async def test_half_a_body_is_refused_in_time_and_the_connection_ends():
    async with opened(body_s=0.2) as served, raw(served.listeners.port) as (reader, writer):
        writer.write(head(len(body())) + body()[:20])
        answer = await rest(reader)
        assert answer.startswith(b"HTTP/1.1 408")
        assert answer.endswith(b'{"Error":"the body did not come in time"}')
        assert await still_answers(served)


@pytest.mark.asyncio
@pytest.mark.parametrize("start", [b"P", b"POST /filter HTTP/1.1\r\n", head(10)[:-2]])
async def test_half_a_head_ends_the_connection_in_time(start):
    async with opened(head_s=0.2) as served, raw(served.listeners.port) as (reader, writer):
        writer.write(start)
        assert await rest(reader) == b""
        assert await still_answers(served)


@pytest.mark.asyncio
async def test_a_head_that_trickles_in_has_no_more_time_than_others():
    async with opened(head_s=0.3) as served, raw(served.listeners.port) as (reader, writer):
        end = asyncio.create_task(rest(reader))
        for byte in head(10, "/filter", "X-Slow: " + "x" * 400):
            if await asyncio.wait({end}, timeout=0.01) != (set(), {end}):
                break
            writer.write(bytes([byte]))
        assert await end == b""
        assert await still_answers(served)


@pytest.mark.asyncio
async def test_the_second_request_of_a_connection_has_the_same_time():
    async with opened(head_s=0.2) as served, raw(served.listeners.port) as (reader, writer):
        writer.write(head(len(body())) + body())
        assert (await one_answer(reader))[0].startswith("http/1.1 200")
        writer.write(b"POST /fil")
        assert await rest(reader) == b""


@pytest.mark.asyncio
async def test_a_silent_connection_ends_with_the_idle_time():
    async with opened(keepalive_s=0.2) as served, raw(served.listeners.port) as (reader, _):
        assert await rest(reader) == b""
        assert await still_answers(served)


@pytest.mark.asyncio
async def test_a_caller_that_never_takes_its_answer_is_dropped():
    names = [f"{n:0240d}" for n in range(60_000)]
    big = json.dumps({"Pod": {}, "NodeNames": names}).encode()
    async with opened(Scripted(error=KeyError()), write_s=0.3, body_s=20) as served:
        async with raw(served.listeners.port) as (reader, writer):
            reader._transport.pause_reading()  # what the kernel holds is all that it takes
            writer.write(head(len(big)) + big)
            labels = {"verb": "filter", "outcome": "no_advice"}
            await until_async(lambda: served.counted("turnout_extender_requests_total", **labels))
            await until_async(lambda: not served.counted("turnout_extender_connections"))
        served.extender.error = None
        assert await still_answers(served)


@pytest.mark.asyncio
async def test_beyond_the_cap_the_longest_idle_ends_and_one_owed_an_answer_stays():
    async with (
        opened(max_connections=3) as served,
        raw(served.listeners.port) as (busy, writer),
        raw(served.listeners.port) as (idle, _),
    ):
        writer.write(head(len(body())) + body()[:9])
        await _in_flight(served, 1)
        async with raw(served.listeners.port) as (late, second), raw(served.listeners.port):
            assert await rest(idle) == b""
            for each, reader, part in ((writer, busy, body()[9:]), (second, late, head(len(body())) + body())):
                each.write(part)
                assert (await one_answer(reader))[0].startswith("http/1.1 200")


@pytest.mark.asyncio
async def test_of_two_addresses_the_one_with_the_most_connections_loses_one():
    async with opened(max_connections=3) as served, AsyncExitStack() as many:
        only, writer = await many.enter_async_context(raw(served.listeners.port, "127.0.0.2"))
        first, *_ = [(await many.enter_async_context(raw(served.listeners.port)))[0] for _ in range(3)]
        assert await rest(first) == b""
        writer.write(head(len(body())) + body())
        assert (await one_answer(only))[0].startswith("http/1.1 200")


@pytest.mark.asyncio
async def test_where_an_answer_is_owed_to_all_the_newest_connection_ends():
    async with opened(max_connections=1) as served, raw(served.listeners.port) as (busy, writer):
        writer.write(head(len(body())) + body()[:9])
        await _in_flight(served, 1)
        async with raw(served.listeners.port) as (late, _):
            assert await rest(late) == b""
        writer.write(body()[9:])
        assert (await one_answer(busy))[0].startswith("http/1.1 200")


@pytest.mark.asyncio
async def test_probes_are_answered_beside_idle_connections_on_the_plain_port():
    async with opened() as served, AsyncExitStack() as idle:
        for _ in range(1_100):
            await idle.enter_async_context(raw(served.listeners.health_port))
        for _ in range(5):
            assert (await served.get("/healthz"))[0] == 200


@pytest.mark.asyncio
async def test_beyond_the_places_in_flight_the_next_is_busy():
    async with opened(max_in_flight=2, max_waiting=0) as served:
        async with raw(served.listeners.port) as (one, first), raw(served.listeners.port) as (two, second):
            for writer in (first, second):
                writer.write(head(len(body())) + body()[:9])
            await _in_flight(served, 2)
            assert await served.post("filter", body()) == (503, {"Error": "busy"})
            for reader, writer in ((one, first), (two, second)):
                writer.write(body()[9:])
                assert (await one_answer(reader))[0].startswith("http/1.1 200")
        assert await still_answers(served)
        assert served.counted("turnout_extender_requests_in_flight") == 0


@pytest.mark.asyncio
async def test_some_may_wait_for_a_place_a_moment():
    async with opened(max_in_flight=1, max_waiting=1, wait_s=0.3) as served, raw(served.listeners.port) as (one, first):
        first.write(head(len(body())) + body()[:9])
        await _in_flight(served, 1)
        assert await served.post("filter", body()) == (503, {"Error": "busy"})
        waiting = asyncio.create_task(served.post("filter", body()))
        first.write(body()[9:])
        assert (await one_answer(one))[0].startswith("http/1.1 200")
        assert (await waiting)[0] == 200


@pytest.mark.asyncio
async def test_all_bodies_together_may_hold_only_so_much():
    async with opened(max_all_bodies_bytes=100_000) as served, raw(served.listeners.port) as (reader, writer):
        writer.write(head(90_001) + b" " * 90_000)
        await _in_flight(served, 1)
        status, answer = await served.post("filter", b" " * 50_000)
        assert (status, answer) == (503, {"Error": "busy: too many bytes in hand"})
        writer.write(b" ")
        assert (await one_answer(reader))[0].startswith("http/1.1 400")
        assert await still_answers(served)


async def _in_flight(served, count):
    await until_async(lambda: served.counted("turnout_extender_requests_in_flight") == count)


@pytest.mark.asyncio
async def test_a_caller_that_leaves_in_the_middle_leaves_nothing_behind():
    async with opened() as served:
        async with raw(served.listeners.port) as (_, writer):
            writer.write(head(len(body())) + body()[:9])
            await _in_flight(served, 1)
        await _in_flight(served, 0)
        assert await still_answers(served)


MISBEHAVED = [
    pytest.param(f"{SECRET}\r\n\r\n".encode(), id="no HTTP"),
    pytest.param(f"POST /filter HTTP/1.1\r\nHost: x\r\nBad {SECRET}\r\n\r\n".encode(), id="a broken header"),
    pytest.param(f"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: {SECRET}\r\n\r\n".encode(), id="no length"),
    pytest.param(f"POST /{SECRET} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode(), id="a path that tells"),
    pytest.param(head(9) + body(secret=SECRET) + b"\r\n\r\n", id="a length too short: the body reads as a head"),
    pytest.param(head(5, "/filter", "Transfer-Encoding: chunked") + SECRET.encode() + b"\r\n\r\n", id="two lengths"),
    pytest.param(head(900) + body(secret=SECRET), id="a length too long"),
    pytest.param(head(900, "/filter", "Content-Encoding: gzip") + body(secret=SECRET), id="compressed"),
    pytest.param(head(len(body(secret=SECRET)), "/filter") + body(secret=SECRET), id="an extender that tells"),
    pytest.param(head(40, "/filter") + f'{{"Pod":"{SECRET}"'.encode().ljust(40), id="malformed JSON"),
]  # fmt: skip


@pytest.mark.asyncio
@pytest.mark.parametrize("sent", MISBEHAVED)
async def test_a_planted_secret_is_in_no_log_and_no_answer(sent, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    async with opened(Scripted(error=ValueError(SECRET)), body_s=0.2, head_s=3.0, keepalive_s=0.3) as served:
        async with raw(served.listeners.port) as (reader, writer):
            writer.write(sent)
            answer = await rest(reader)
        _, page = await served.get("/metrics")
        _, view = await served.get("/debug/view")
    log_texts = [str(record.__dict__) + caplog.handler.format(record) for record in caplog.records]
    assert answer.startswith((b"HTTP/1.1 ", b"HTTP/1.0 "))
    assert b"hunter" not in answer
    assert "hunter" not in "".join([*log_texts, page, view, *capfd.readouterr()])


@pytest.mark.asyncio
async def test_debug_view_is_for_local_callers_by_a_local_name():
    async with opened() as served:
        assert await served.get("/debug/view") == (200, '{"gangs":["bert"]}')
        assert (await served.get("/debug/view", headers={"Host": "evil.example"}))[0] == 404
        assert (await served.get("/nothing"))[0] == 404
        async with served.session.post(f"http://127.0.0.1:{served.listeners.health_port}/metrics") as answer:
            assert answer.status == 405
