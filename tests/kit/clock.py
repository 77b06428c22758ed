"""A clock that stands still until a test moves it, for every module that takes `turnout.kube.client.clock.Clock`."""

import asyncio
import heapq
import itertools
import math
from contextlib import asynccontextmanager, contextmanager

PATIENCE_S = 10  # of real time: past it a test hangs, whatever it waits for


class ManualClock:
    """Time that stands still until a test moves it."""

    def __init__(self, monotonic_s=1000.0, wall_s=1_800_000_000.0):
        self.now_s, self.wall_offset_s = monotonic_s, wall_s - monotonic_s
        self._due, self._number, self._news = [], itertools.count(), asyncio.Event()

    def monotonic(self):
        return self.now_s

    def wall(self):
        return self.now_s + self.wall_offset_s

    async def sleep(self, seconds):
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken = asyncio.get_running_loop().create_future()
        with self._at(seconds, lambda: woken.done() or woken.set_result(None), is_sleeper=True):
            await woken

    @asynccontextmanager
    async def timeout(self, seconds):
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(None) as scope:
            with self._at(seconds, lambda: scope.reschedule(loop.time()), is_sleeper=False):
                yield

    @contextmanager
    def _at(self, seconds, wake, is_sleeper):
        # A pause too short for a float still takes time, as it does in the world.
        entry = [max(self.now_s + seconds, math.nextafter(self.now_s, math.inf)), next(self._number), wake, is_sleeper]
        heapq.heappush(self._due, entry)
        self._news.set()
        try:
            yield
        finally:
            entry[2] = None

    def sleepers(self):
        """How much longer each one sleeps, the shortest first."""
        return sorted(at - self.now_s for at, _, wake, is_sleeper in self._due if wake and is_sleeper)

    async def until_asleep(self, at_most_s=60.0):
        """Wait, in real time, until somebody sleeps no longer than that. Returns how long they still sleep."""
        async with asyncio.timeout(PATIENCE_S):
            while not (short := [s for s in self.sleepers() if s <= at_most_s]):
                self._news.clear()
                await self._news.wait()
        return short[0]

    async def advance(self, seconds):
        """Move on, waking each sleeper at its own moment and letting it do what needs no I/O."""
        end_s = self.now_s + seconds
        await settle()
        while True:
            while self._due and (self._due[0][2] is None):
                heapq.heappop(self._due)
            if not self._due or self._due[0][0] > end_s:
                break
            at_s, _, wake, _ = heapq.heappop(self._due)
            self.now_s = max(self.now_s, at_s)
            wake()
            await settle()
        self.now_s = end_s

    def jump(self, seconds):
        """A process that was stopped: time has passed and nobody was woken yet."""
        self.now_s += seconds

    async def skip(self):
        """Wait for the next pause and let it pass."""
        await self.advance(await self.until_asleep())

    async def live(self, seconds, at_most_s=60.0):
        """Let that much time pass, waiting in real time for whoever pauses in between."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            step_s = await self.until_asleep(at_most_s)
            await self.advance(min(step_s, end_s - self.now_s))


async def settle(turns=30):
    for _ in range(turns):
        await asyncio.sleep(0)
