"""A trainer is killed at any moment: the newest step that it had sealed is there, whole, and nothing else is shown."""

import os
import random
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tests.launcher.checkpoint.daemon.saver import bytes_of, record_of
from turnout.launcher.checkpoint.arena.arena import Arena
from turnout.launcher.checkpoint.arena.arena_files import boot_id
from turnout.launcher.checkpoint.format.arena_layout import Identity, SlotState, newest_generation
from turnout.launcher.checkpoint.format.shard_file import sums_of

ROOT = Path(__file__).resolve().parents[4]
WITHIN_S = 30.0
MAX_ALIVE_S = 0.04


class Savers:
    """The process that starts one saver after another on an arena, and the pipe on which they tell what they do."""

    def __init__(self, arena):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.launcher.checkpoint.daemon.saver", arena.path],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self._unread = b""
        self.pid = self.sealed = -1

    def line(self):
        """The next word and number that was told."""
        while b"\n" not in self._unread:
            assert select.select([self._process.stdout], [], [], WITHIN_S)[0], "the saver tells nothing"
            more = os.read(self._process.stdout.fileno(), 65_536)
            assert more, "the saver's parent has ended"
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        word, _, number = line.decode().partition(" ")
        return word, int(number or -1)

    def start(self):
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        word, self.pid = self.line()
        assert word == "saver"

    def until(self, word):
        """Hear what it tells up to this word. sealed: the last step that was told to be."""
        while (words := self.line())[0] != word:
            if words[0] == "sealed":
                self.sealed = words[1]

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        self.until("ended")

    def end(self):
        with suppress(ProcessLookupError):
            self._process.kill()  # the saver dies with it
        self._process.communicate()


@pytest.fixture
def arena(request):
    new_arena = Arena.make("/dev/shm", Identity("kills", "w-0", 0, boot_id(), request.param))
    yield new_arena
    new_arena.remove()
    new_arena.close()


@pytest.fixture
def savers(arena):
    started = Savers(arena)
    yield started
    started.end()


def check(arena, generation):
    """This generation is one step, whole. Gives the step."""
    slot = arena.slots()[generation]
    step = slot.record.step
    assert slot.record.shard_bytes == record_of(step).shard_bytes
    assert np.array_equal(np.frombuffer(arena.map(generation, slot.record.shard_bytes), np.uint8), bytes_of(step))
    if slot.state is SlotState.HASHED:
        assert arena.sums(generation) == tuple(sums_of(arena.map(generation, slot.record.shard_bytes)))
    return step


def read_along(arena, until_s):
    """Do what a daemon does, beside the saver: pin the newest, look at it twice, hash it in between."""
    while time.monotonic() < until_s:
        generation = newest_generation(arena.slots())
        if generation is None or (record := arena.pin(generation)) is None:
            continue
        assert check(arena, generation) == record.step
        arena.set_hashed(generation, sums_of(arena.map(generation, record.shard_bytes)))
        assert check(arena, generation) == record.step
        arena.unpin(generation)


@pytest.mark.parametrize("arena", [2, 3], indirect=True, ids=["two generations", "three generations"])
@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(30, id="killed 30 times"),
        pytest.param(500, id="killed 500 times", marks=[pytest.mark.long, pytest.mark.timeout(900)]),
    ],
)
def test_the_newest_sealed_step_is_whole_wherever_its_saver_was_killed(arena, savers, kills):
    dice, in_mid_save = random.Random(7), 0
    for at in range(kills):
        savers.start()
        if at % 3:
            savers.until("began")
        if at % 5 == 4:  # however busy the machine is, some live so long
            savers.until("sealed")
        alive_until_s = time.monotonic() + dice.uniform(0, MAX_ALIVE_S)
        if at % 2:
            read_along(arena, alive_until_s)
        else:
            select.select([], [], [], max(0.0, alive_until_s - time.monotonic()))
        savers.kill()
        slots = arena.slots()
        assert [slot.fault for slot in slots if slot.fault] == []
        in_mid_save += any(slot.state is SlotState.WRITING for slot in slots)
        found = newest_generation(slots)
        if found is None:
            assert savers.sealed == -1
            continue
        steps = [check(arena, each) for each, slot in enumerate(slots) if slot.record is not None]
        assert max(steps) == slots[found].record.step >= savers.sealed
        savers.sealed = max(steps)  # it may have been killed between sealing and telling: from now on it is known
    assert savers.sealed > 0
    assert in_mid_save > 0
