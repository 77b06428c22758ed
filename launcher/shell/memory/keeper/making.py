"""Memory made ahead: of each arena the generation that is written first before its process is answered, then the rest.

A kernel gives a gigabyte or two a second, and less where its host has to find them first: nobody is to wait for all of
them. What was promised and is not there yet counts as taken for who asks next.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace

from turnout.launcher.checkpoint.generations import slot_to_write
from turnout.launcher.checkpoint.need import Limits
from turnout.launcher.errors import NoMemory
from turnout.launcher.shell.memory.arena import Arena


@dataclass(eq=False, slots=True)
class _Promise:
    arena: Arena
    generations: int
    size: int

    @property
    def left_bytes(self) -> int:
        with suppress(ValueError):  # it was closed
            slots = self.arena.slots()[: self.generations]
            return sum(max(self.size - slot.reserved_bytes, 0) for slot in slots)
        return 0


class Making:
    """Of one keeper."""

    def __init__(self) -> None:
        self._promises: dict[_Promise, asyncio.Task[None] | None] = {}

    def left(self, limits: Limits) -> Limits:
        """What will be left once all that was promised is there."""
        taken = sum(promise.left_bytes for promise in self._promises)
        cgroup, available = limits.cgroup_left_bytes, limits.available_bytes
        return replace(
            limits,
            free_bytes=max(limits.free_bytes - taken, 0),
            cgroup_left_bytes=None if cgroup is None else max(cgroup - taken, 0),
            available_bytes=None if available is None else max(available - taken, 0),
        )

    async def make(self, arena: Arena, generations: int, size: int) -> None:
        """So many generations of this size: one now, the others soon. Raises NoMemory, for the first one.

        Of the others it is told by the save that finds no memory.
        """
        soonest = slot_to_write(arena.slots()[:generations]) or 0
        promise = _Promise(arena, generations, size)
        self._promises[promise] = None
        try:
            await asyncio.to_thread(arena.reserve, soonest, size)
        except BaseException:
            del self._promises[promise]
            raise
        others = [generation for generation in range(generations) if generation != soonest]
        self._promises[promise] = asyncio.get_running_loop().create_task(self._others(promise, others))

    async def _others(self, promise: _Promise, generations: list[int]) -> None:
        try:
            for generation in generations:
                with suppress(NoMemory, ValueError):
                    await asyncio.to_thread(promise.arena.reserve, generation, promise.size)
        finally:
            del self._promises[promise]
