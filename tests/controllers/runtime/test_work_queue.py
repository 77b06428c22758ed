"""Jobs to look at: once each, one at a time, and a failing one holds up nobody."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.clock import ManualClock
from turnout.controllers.model import JobKey
from turnout.controllers.runtime.work_queue import WorkQueue
from turnout.kube.backoff import Backoff

A, B = (JobKey("/apis/x/v1", "ns", name) for name in "ab")


def queue(clock=None, *, is_single=False):
    return WorkQueue(clock or ManualClock(), Backoff(first_s=1.0, max_s=8.0), lambda: 1.0, one_per_namespace=is_single)


def keys(namespace, count):
    return [JobKey("/apis/x/v1", namespace, str(number)) for number in range(count)]


@pytest.mark.asyncio
async def test_what_changes_often_is_looked_at_once():
    waiting = queue()
    for key in (A, B, A, A):
        waiting.add(key)
    assert [await waiting.next(), await waiting.next()] == [A, B]
    assert len(waiting) == 0


@pytest.mark.asyncio
async def test_what_changes_during_its_look_is_looked_at_again_and_not_beside_it():
    waiting = queue()
    waiting.add(A)
    assert await waiting.next() == A
    waiting.add(A)
    assert len(waiting) == 0
    waiting.done(A)
    assert await waiting.next() == A


@pytest.mark.asyncio
@pytest.mark.parametrize("failures", [1, 2, 3, 5])
async def test_a_failed_look_comes_again_after_its_back_off(failures):
    clock = ManualClock()
    waiting = queue(clock)
    running = asyncio.create_task(waiting.run())
    waiting.add(A)
    for number in range(failures):
        assert await waiting.next() == A
        waiting.add(B)
        assert await waiting.next() == B  # nobody waits for it
        waiting.done(B)
        waiting.done(A, failed=True)
        wait_s = min(8.0, 2.0**number)
        await clock.until_asleep(wait_s)
        await clock.advance(wait_s - 0.01)
        assert len(waiting) == 0
        await clock.advance(0.02)
        assert len(waiting) == 1
    running.cancel()


@pytest.mark.asyncio
async def test_an_earlier_time_counts():
    clock = ManualClock()
    waiting = queue(clock)
    running = asyncio.create_task(waiting.run())
    waiting.add_after(A, 100.0)
    waiting.add_after(A, 5.0)
    waiting.add_after(A, 50.0)
    await clock.until_asleep(5.0)
    await clock.advance(5.0)
    assert await waiting.next() == A
    waiting.done(A)
    await clock.advance(100.0)
    assert len(waiting) == 0
    running.cancel()


@pytest.mark.asyncio
async def test_ten_thousand_jobs_of_one_tenant_delay_anothers_by_one_turn():
    waiting = queue()
    many, two = keys("many", 10_000), keys("other", 2)
    for key in (*many, *two):
        waiting.add(key)
    assert [await waiting.next() for _ in range(5)] == [many[0], two[0], many[1], two[1], many[2]]
    assert len(waiting) == 10_002 - 5


@pytest.mark.asyncio
async def test_where_a_namespace_is_alone_its_next_comes_once_its_last_is_done():
    waiting = queue(is_single=True)
    (first, second), (other,) = keys("many", 2), keys("other", 1)
    for key in (first, second, other):
        waiting.add(key)
    assert [await waiting.next(), await waiting.next()] == [first, other]
    assert len(waiting) == 1
    more = asyncio.create_task(waiting.next())
    await asyncio.sleep(0)
    waiting.done(other)
    await asyncio.sleep(0)
    assert not more.done()
    waiting.done(first, failed=True)
    assert await more == second


@pytest.mark.asyncio
async def test_what_changes_while_it_is_looked_at_alone_comes_behind_the_others():
    clock = ManualClock()
    waiting = queue(clock, is_single=True)
    running = asyncio.create_task(waiting.run())
    first, second = keys("many", 2)
    for key in (first, second):
        waiting.add(key)
    assert await waiting.next() == first
    waiting.add(first)  # it has changed meanwhile
    waiting.done(first)
    assert await waiting.next() == second
    waiting.done(second)
    assert await waiting.next() == first
    running.cancel()


STEPS = st.lists(st.tuples(st.sampled_from("xyz"), st.integers(0, 5), st.booleans()), max_size=60)


@pytest.mark.parametrize("is_single", [False, True], ids=["side by side", "alone"])
@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_all_that_comes_is_looked_at_and_nothing_twice_at_a_time(is_single, steps):
    async def played():
        waiting, busy, arrivals, runs = queue(is_single=is_single), [], set(), set()

        async def take():
            if (key := await at_once(waiting)) is not None:
                assert key not in busy
                assert not is_single or key.namespace not in {each.namespace for each in busy}
                busy.append(key)
                runs.add(key)

        for namespace, number, ends in steps:
            if ends and busy:
                waiting.done(busy.pop(0))
            key = JobKey("/apis/x/v1", namespace, str(number))
            waiting.add(key)
            arrivals.add(key)
            await take()
        while busy or len(waiting):
            await take()
            waiting.done(busy.pop(0))
        assert runs == arrivals

    asyncio.run(played())


async def at_once(waiting):
    """The next job, None where there is none now."""
    task = asyncio.create_task(waiting.next())
    for _ in range(3):
        await asyncio.sleep(0)
    if task.done():
        return task.result()
    task.cancel()
    return None
