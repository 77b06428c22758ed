"""Memory that is made ahead: who asks waits for one generation, and what was promised counts before it is there."""

import asyncio
import tempfile
import time
from pathlib import Path

import pytest

from turnout.launcher.checkpoint.arena.arena import Arena
from turnout.launcher.checkpoint.arena.arena_files import boot_id
from turnout.launcher.checkpoint.daemon.rank_store import Preallocator
from turnout.launcher.checkpoint.format.arena_layout import PAGE_BYTES, Identity
from turnout.launcher.checkpoint.format.memory_budget import Limits
from turnout.launcher.errors import NoMemory

SIZE = 16 * PAGE_BYTES
FREE = Limits(free_bytes=100 * SIZE, cgroup_left_bytes=10 * SIZE)
TOO_MUCH = 1 << 50  # more than any file system has: none of it is taken


@pytest.fixture
def arena():
    with tempfile.TemporaryDirectory(prefix="turnout-test-", dir="/dev/shm") as folder:
        new_arena = Arena.make(Path(folder), Identity("run", "worker", 0, boot_id(), 3))
        yield new_arena
        new_arena.close()


def reserved(arena):
    return [slot.reserved_bytes for slot in arena.slots()]


async def all_made(making):
    until_s = time.monotonic() + 20
    while making.remaining_limits(FREE) != FREE and time.monotonic() < until_s:
        await asyncio.to_thread(time.sleep, 0.001)
    assert making.remaining_limits(FREE) == FREE


def test_one_generation_is_there_at_once_and_the_others_come(arena):
    async def story():
        making = Preallocator()
        await making.allocate(arena, 3, SIZE)
        sizes = reserved(arena), making.remaining_limits(FREE)
        await all_made(making)
        return sizes

    at_once, left = asyncio.run(story())
    assert at_once == [SIZE, 0, 0]
    assert (left.free_bytes, left.cgroup_left_bytes) == (98 * SIZE, 8 * SIZE)
    assert reserved(arena) == [SIZE] * 3


def test_where_the_first_cannot_be_had_nothing_is_promised(arena):
    async def story():
        making = Preallocator()
        with pytest.raises(NoMemory):
            await making.allocate(arena, 3, TOO_MUCH)
        return making.remaining_limits(FREE)

    assert asyncio.run(story()) == FREE
    assert reserved(arena) == [0, 0, 0]


def test_an_arena_that_is_closed_meanwhile_ends_it(arena):
    async def story():
        making, other = Preallocator(), Arena.open(arena.path)
        await making.allocate(other, 3, SIZE)
        other.close()
        await all_made(making)

    asyncio.run(story())
    assert reserved(arena) == [SIZE, 0, 0]


def test_two_who_have_it_open_take_it_once(arena):
    other = Arena.open(arena.path)

    async def story():
        await asyncio.gather(*(asyncio.to_thread(each.reserve, at, SIZE) for each in (arena, other) for at in range(3)))

    asyncio.run(story())
    other.close()
    assert reserved(arena) == [SIZE] * 3
    assert arena.path.stat().st_blocks * 512 == 4 * PAGE_BYTES + 3 * SIZE


class Shifting:
    """An arena in which another rank's memory is promised while it is asked how much is still to come."""

    def __init__(self, of):
        self.of, self.meanwhile = of, lambda: None

    def slots(self):
        self.meanwhile()
        return self.of.slots()

    def reserve(self, generation, size):
        self.of.reserve(generation, size)


def test_what_is_promised_may_change_while_it_is_counted(arena):
    """A thread counts it while the loop promises more: a save failed once in a whole run on a busy machine."""

    async def story():
        making, shifting, begun = Preallocator(), Shifting(arena), []

        def promise_more():
            begun.append(making.allocate(arena, 3, SIZE))
            begun[-1].send(None)  # as far as its promise

        await making.allocate(shifting, 3, SIZE)
        shifting.meanwhile = promise_more
        left = making.remaining_limits(FREE)
        shifting.meanwhile = lambda: None
        for each in begun:
            each.close()
        await all_made(making)
        return left

    assert asyncio.run(story()).free_bytes == 98 * SIZE
