"""Jobs to look at: once each, one at a time, and a failing one holds up nobody."""

import asyncio

import pytest

from tests.kube.world import ManualClock
from turnout.controllers.model import JobKey
from turnout.controllers.runtime.work_queue import WorkQueue
from turnout.kube.backoff import Backoff

pytestmark = pytest.mark.asyncio

A, B = (JobKey("/apis/x/v1", "ns", name) for name in "ab")


def queue(clock=None):
    return WorkQueue(clock or ManualClock(), Backoff(first_s=1.0, most_s=8.0), lambda: 1.0)


async def test_what_changes_often_is_looked_at_once():
    waiting = queue()
    for key in (A, B, A, A):
        waiting.add(key)
    assert [await waiting.next(), await waiting.next()] == [A, B]
    assert len(waiting) == 0


async def test_what_changes_during_its_look_is_looked_at_again_and_not_beside_it():
    waiting = queue()
    waiting.add(A)
    assert await waiting.next() == A
    waiting.add(A)
    assert len(waiting) == 0
    waiting.done(A)
    assert await waiting.next() == A


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
