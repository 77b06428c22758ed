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

FRESH_S = 10.0  # seconds for which captured stacks are reused, so that no process is traced twice for one hang


@dataclass(frozen=True, slots=True)
class RunningWorkers:
    """The training processes of one agent in a round, as the hang monitor watches them."""

    counters: StepCounters  # shared with the processes
    pids: Callable[[], Mapping[int, int]]  # returns the pids of running processes by local rank
    first_rank: int  # of this agent
    world: int  # number of ranks


class HangMonitor:
    """Watches the processes of one agent, round after round.

    `hanging`: why each hanging process counts as hung, by local rank. limits: None for the defaults.
    """

    def __init__(self, hangs: HangPolicy, log_event: EventLog, limits: HangLimits | None = None) -> None:
        self._log_event, self._folder = log_event, StackFolder(hangs.folder)
        self._limits = replace(limits or HangLimits(), at_most_s=hangs.at_most_s)
        self._workers: RunningWorkers | None = None
        self._watch_task: asyncio.Task[None] | None = None
        self._capture_lock = asyncio.Lock()
        self._last_capture: tuple[float, dict[int, CapturedStack]] | None = None
        self.hanging: dict[int, str] = {}

    def begin(self, workers: RunningWorkers) -> None:
        """Start to watch a round's processes."""
        self._workers, self._last_capture, self.hanging = workers, None, {}
        self._watch_task = asyncio.create_task(self._watch_progress(workers))

    async def end(self) -> None:
        """Stop watching, since the processes have ended or will be ended."""
        watch_task, self._watch_task, self._workers, self.hanging = self._watch_task, None, None, {}
        if watch_task is not None:
            watch_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch_task

    async def _watch_progress(self, workers: RunningWorkers) -> None:
        """Check the progress of all worker processes every `look_s` seconds, without end.

        Stacks are captured when the first process hangs.
        """
        watches = [ProgressWatch()] * len(workers.counters.paths)
        while True:
            await asyncio.sleep(self._limits.look_s)
            some_hung, alive = bool(self.hanging), workers.pids()
            for local_rank, progress in enumerate(workers.counters.progress()):
                if local_rank in alive:
                    watches[local_rank], change = observe(watches[local_rank], progress, self._limits, time.monotonic())
                    self._log_change(workers, local_rank, change)
            if self.hanging and not some_hung:
                await self.capture_stacks()

    def _log_change(self, workers: RunningWorkers, local_rank: int, change: Hang | Resumed | None) -> None:
        """Log that a process hangs or has resumed, and update `hanging`. None changes nothing."""
        match change:
            case Hang():
                self.hanging[local_rank] = str(change)
                self._log_event("process_hung", {"rank": workers.first_rank + local_rank, "why": str(change)})
            case Resumed(after_s):
                self.hanging.pop(local_rank, None)
                self._log_event(
                    "process_moved", {"rank": workers.first_rank + local_rank, "after_s": round(after_s, 1)}
                )

    async def capture_stacks(self) -> dict[int, CapturedStack]:
        """Return the stacks of all running processes by local rank; {} if no process is watched.

        They are also written to the folder for stacks, since the coordinator that asks may be lost. Stacks that are
        younger than FRESH_S are returned again.
        """
        async with self._capture_lock:
            if (workers := self._workers) is None:
                return {}
            if self._last_capture is None or time.monotonic() > self._last_capture[0] + FRESH_S:
                stacks = await self._capture(workers)
                self._last_capture = time.monotonic(), stacks
            return self._last_capture[1]

    async def _capture(self, workers: RunningWorkers) -> dict[int, CapturedStack]:
        """Capture the stacks of all running workers and write them to the folder of stacks.

        Returns local rank -> stack. A folder that cannot be written is logged.
        """
        processes = {rank: (pid, workers.counters.paths[rank]) for rank, pid in workers.pids().items()}
        stacks = await capture_stacks(processes, await asyncio.to_thread(find_py_spy))
        files = {workers.first_rank + local_rank: each.file for local_rank, each in stacks.items()}
        why = {str(workers.first_rank + local_rank): each.why for local_rank, each in stacks.items() if each.why}
        try:
            await asyncio.to_thread(self._folder.replace_all, files, workers.world)
        except OSError as error:
            self._log_event("stacks_lost", {"folder": str(self._folder.path), "why": str(error)})
        else:
            ranks = [workers.first_rank + local_rank for local_rank, each in sorted(stacks.items()) if each.shown]
            self._log_event(
                "stacks_taken", {"folder": str(self._folder.path), "ranks": ranks, "world": workers.world, "why": why}
            )
        return stacks
