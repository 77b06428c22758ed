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
from turnout.launcher.health.hang_detector import Hang, HangLimits, HangPolicy, ProgressWatch, Resumed, observe
from turnout.launcher.health.hang_monitor.progress import StepCounters
from turnout.launcher.health.hang_monitor.stack_capture import CapturedStack, StackFolder, capture_stacks, find_py_spy

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

    def __init__(self, hangs: HangPolicy, log_event: EventLog, limits: HangLimits | None = None) -> None:
        self._log_event, self._folder = log_event, StackFolder(hangs.folder)
        self._limits = replace(limits or HangLimits(), at_most_s=hangs.at_most_s)
        self._workers: RunningWorkers | None = None
        self._looking: asyncio.Task[None] | None = None
        self._capture_lock = asyncio.Lock()
        self._last_capture: tuple[float, dict[int, CapturedStack]] | None = None
        self.hanging: dict[int, str] = {}

    def begin(self, crew: RunningWorkers) -> None:
        """Start to watch a round's processes."""
        self._workers, self._last_capture, self.hanging = crew, None, {}
        self._looking = asyncio.create_task(self._watch_progress(crew))

    async def end(self) -> None:
        """Stop watching, since the processes are stopped or about to be."""
        looking, self._looking, self._workers, self.hanging = self._looking, None, None, {}
        if looking is not None:
            looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await looking

    async def _watch_progress(self, crew: RunningWorkers) -> None:
        """Check the progress of all worker processes every `look_s` seconds, without end.

        Stacks are captured when the first process hangs.
        """
        watches = [ProgressWatch()] * len(crew.watched.paths)
        while True:
            await asyncio.sleep(self._limits.look_s)
            some_hung, alive = bool(self.hanging), crew.pids()
            for local_rank, progress in enumerate(crew.watched.progress()):
                if local_rank in alive:
                    watches[local_rank], change = observe(watches[local_rank], progress, self._limits, time.monotonic())
                    self._log_change(crew, local_rank, change)
            if self.hanging and not some_hung:
                await self.capture_stacks()

    def _log_change(self, crew: RunningWorkers, local_rank: int, change: Hang | Resumed | None) -> None:
        """Log that a process hangs or has resumed, and update `hanging`. None changes nothing."""
        match change:
            case Hang():
                self.hanging[local_rank] = str(change)
                self._log_event("process_hung", {"rank": crew.first_rank + local_rank, "why": str(change)})
            case Resumed(after_s):
                self.hanging.pop(local_rank, None)
                self._log_event("process_moved", {"rank": crew.first_rank + local_rank, "after_s": round(after_s, 1)})

    async def capture_stacks(self) -> dict[int, CapturedStack]:
        """Take the stack traces of all processes, by local rank, not only of the hanging one.

        They are also written here, since the coordinator that asked may be lost.
        """
        async with self._capture_lock:
            if (crew := self._workers) is None:
                return {}
            if self._last_capture is None or time.monotonic() > self._last_capture[0] + FRESH_S:
                stacks = await self._capture(crew)
                self._last_capture = time.monotonic(), stacks
            return self._last_capture[1]

    async def _capture(self, crew: RunningWorkers) -> dict[int, CapturedStack]:
        """Capture the stacks of all running workers and write them to the folder of stacks.

        Returns local rank -> stack. A folder that cannot be written is logged.
        """
        processes = {rank: (pid, crew.watched.paths[rank]) for rank, pid in crew.pids().items()}
        stacks = await capture_stacks(processes, await asyncio.to_thread(find_py_spy))
        files = {crew.first_rank + local_rank: each.file for local_rank, each in stacks.items()}
        why = {str(crew.first_rank + local_rank): each.why for local_rank, each in stacks.items() if each.why}
        try:
            await asyncio.to_thread(self._folder.keep, files, crew.world)
        except OSError as error:
            self._log_event("stacks_lost", {"folder": str(self._folder.path), "why": str(error)})
        else:
            ranks = [crew.first_rank + local_rank for local_rank, each in sorted(stacks.items()) if each.shown]
            self._log_event(
                "stacks_taken", {"folder": str(self._folder.path), "ranks": ranks, "world": crew.world, "why": why}
            )
        return stacks
