"""Allocates the memory of arenas ahead: the first generation before the process is answered, the others afterwards.

A kernel provides one or two gigabytes per second, so nobody should wait for all. Memory that is promised but not
allocated yet counts as taken.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace

from turnout.launcher.checkpoint.arena.arena import Arena
from turnout.launcher.checkpoint.format.arena_layout import slot_to_write
from turnout.launcher.checkpoint.format.memory_budget import Limits
from turnout.launcher.errors import NoMemory


@dataclass(eq=False, slots=True)
class _Promise:
    arena: Arena
    generations: int
    size: int

    @property
    def left_bytes(self) -> int:
        with suppress(ValueError):  # the arena was closed
            slots = self.arena.slots()[: self.generations]
            return sum(max(self.size - slot.reserved_bytes, 0) for slot in slots)
        return 0


class Preallocator:
    """Allocates arenas for all ranks of one daemon."""

    def __init__(self) -> None:
        self._promises: dict[_Promise, asyncio.Task[None] | None] = {}

    def left(self, limits: Limits) -> Limits:
        """Return the limits that remain after all promised memory is allocated. Safe in any thread."""
        promised_bytes = sum(promise.left_bytes for promise in tuple(self._promises))  # the loop changes them meanwhile
        cgroup, available = limits.cgroup_left_bytes, limits.available_bytes
        return replace(
            limits,
            free_bytes=max(limits.free_bytes - promised_bytes, 0),
            cgroup_left_bytes=None if cgroup is None else max(cgroup - promised_bytes, 0),
            available_bytes=None if available is None else max(available - promised_bytes, 0),
        )

    async def make(self, arena: Arena, generations: int, size: int) -> None:
        """Allocate the generation that is written first, and the others in the background. `size` is in bytes.

        Raises NoMemory for the first. For the others, the save that finds no memory reports it.
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
