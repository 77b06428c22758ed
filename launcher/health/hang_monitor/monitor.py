"""Watches an agent's processes while they train: a hang is reported, and all stack traces are written.

What counts as a hang is decided in launcher/health/hang_detector.py. Nothing is ended here: the coordinator decides
about the round.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from turnout.launcher.event_log import EventLog
from turnout.launcher.health.hang_detector import Hang, HangLimits, HangPolicy, ProgressWatch, Resumed, look
from turnout.launcher.health.hang_monitor.stack_capture import CapturedStack, find_py_spy, take
from turnout.launcher.health.hang_monitor.stack_files import StackFolder
from turnout.launcher.health.hang_monitor.step_counters import StepCounters

FRESH_S = 10.0  # seconds for which stacks serve for the same hang, so that no process is traced twice


@dataclass(frozen=True, slots=True)
class RunningWorkers:
    """The training processes of one agent in a round, as the hang monitor watches them."""

    watched: StepCounters
    pids: Callable[[], Mapping[int, int]]  # returns those that run, by local rank
    first_rank: int  # of this agent
    world: int  # number of ranks


class HangMonitor:
    """Watches the processes of one agent, round after round. `hung` holds the reasons of hanging processes by local
    rank.
    """

    def __init__(self, hangs: HangPolicy, say: EventLog, limits: HangLimits | None = None) -> None:
        self._say, self._folder = say, StackFolder(hangs.folder)
        self._limits = replace(limits or HangLimits(), at_most_s=hangs.at_most_s)
        self._crew: RunningWorkers | None = None
        self._looking: asyncio.Task[None] | None = None
        self._taking = asyncio.Lock()
        self._taken: tuple[float, dict[int, CapturedStack]] | None = None
        self.hung: dict[int, str] = {}

    def begin(self, crew: RunningWorkers) -> None:
        """Start to watch a round's processes."""
        self._crew, self._taken, self.hung = crew, None, {}
        self._looking = asyncio.create_task(self._look(crew))

    async def end(self) -> None:
        """Stop watching, since the processes are stopped or about to be."""
        looking, self._looking, self._crew, self.hung = self._looking, None, None, {}
        if looking is not None:
            looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await looking

    async def _look(self, crew: RunningWorkers) -> None:
        watches = [ProgressWatch()] * len(crew.watched.paths)
        while True:
            await asyncio.sleep(self._limits.look_s)
            some_hung, alive = bool(self.hung), crew.pids()
            for local_rank, seen in enumerate(crew.watched.seen()):
                if local_rank in alive:
                    watches[local_rank], news = look(watches[local_rank], seen, self._limits, time.monotonic())
                    self._tell(crew, local_rank, news)
            if self.hung and not some_hung:
                await self.show()

    def _tell(self, crew: RunningWorkers, local_rank: int, news: Hang | Resumed | None) -> None:
        match news:
            case Hang():
                self.hung[local_rank] = str(news)
                self._say("process_hung", {"rank": crew.first_rank + local_rank, "why": str(news)})
            case Resumed(after_s):
                self.hung.pop(local_rank, None)
                self._say("process_moved", {"rank": crew.first_rank + local_rank, "after_s": round(after_s, 1)})

    async def show(self) -> dict[int, CapturedStack]:
        """Take the stack traces of all processes, by local rank, not only of the hanging one.

        They are also written here, since the coordinator that asked may be lost.
        """
        async with self._taking:
            if (crew := self._crew) is None:
                return {}
            if self._taken is None or time.monotonic() > self._taken[0] + FRESH_S:
                taken = await self._take(crew)
                self._taken = time.monotonic(), taken
            return self._taken[1]

    async def _take(self, crew: RunningWorkers) -> dict[int, CapturedStack]:
        processes = {rank: (pid, crew.watched.paths[rank]) for rank, pid in crew.pids().items()}
        taken = await take(processes, await asyncio.to_thread(find_py_spy))
        files = {crew.first_rank + local_rank: each.file for local_rank, each in taken.items()}
        why = {str(crew.first_rank + local_rank): each.why for local_rank, each in taken.items() if each.why}
        try:
            await asyncio.to_thread(self._folder.keep, files, crew.world)
        except OSError as error:
            self._say("stacks_lost", {"folder": str(self._folder.path), "why": str(error)})
        else:
            ranks = [crew.first_rank + local_rank for local_rank, each in sorted(taken.items()) if each.shown]
            self._say(
                "stacks_taken", {"folder": str(self._folder.path), "ranks": ranks, "world": crew.world, "why": why}
            )
        return taken
