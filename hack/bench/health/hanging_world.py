"""A warm forkserver, and worlds of its children that are watched as an agent watches them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from turnout.launcher.health.hang_detector import HangLimits, HangPolicy
from turnout.launcher.health.hang_monitor.monitor import HangMonitor, RunningWorkers
from turnout.launcher.health.hang_monitor.progress import PROGRESS, StepCounters
from turnout.launcher.workers.worker_processes import WorkerProcesses
from turnout.launcher.workers.worker_spec import CommandKind, SpawnSpec, Stream

ROOT = Path(__file__).resolve().parents[3]
TRAIN_SCRIPT = Path(__file__).with_name("hanging_script.py")


class HangingWorld:
    """A world of ranks in one folder, started repeatedly.

    events: (monotonic seconds, name) of all that the monitor reported during the last run.
    """

    def __init__(self, folder: Path, ranks: int, limits: HangLimits) -> None:
        self._folder, self._ranks, self._limits = folder, ranks, limits
        self._env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self._processes = WorkerProcesses(
            fork=True, preload=("torch",), shutdown_timeout_s=1.0, log_event=lambda *_: None, env=self._env
        )
        self.events: list[tuple[float, str]] = []
        self._stacks_taken = asyncio.Event()

    async def warm(self) -> None:
        os.mkfifo(self._folder / "queue")
        await self._processes.warm_parent.start()

    async def train(self, steps: int, hangs: int = -1, where: str = "-", *, limit_s: float) -> float:
        """Run the training script on all ranks to its end, or until the stacks of a hang are taken.

        Returns when a rank last made progress, monotonic seconds. steps: that each rank makes before the hang or the
        end. hangs, where: the rank that hangs and the place; -1 for none. Raises TimeoutError after limit_s seconds,
        and AssertionError if a rank fails without a hang.
        """
        watched, self.events, self._stacks_taken = StepCounters(self._folder, self._ranks), [], asyncio.Event()
        watching = HangMonitor(HangPolicy(folder=str(self.stacks)), self._say, self._limits)
        orders = self._orders(watched, str(steps), str(hangs), where)
        try:
            await self._processes.start(orders)
            watching.begin(RunningWorkers(watched, self._processes.pids, 0, self._ranks))
            async with asyncio.timeout(limit_s):
                if hangs < 0:
                    ended = await self._processes.wait_ended()
                    assert not any(each.has_failed for each in ended), [each.error or str(each) for each in ended]
                else:
                    await self._stacks_taken.wait()
            return max(progress.beat_s for progress in watched.progress())
        finally:
            await watching.end()
            await self._processes.stop(signal.SIGKILL, 0.0)
            watched.close()

    @property
    def stacks(self) -> Path:
        return self._folder / "stacks"

    def _say(self, what: str, fields: Mapping[str, object]) -> None:
        self.events.append((time.monotonic(), what))
        if what == "stacks_taken":
            self._stacks_taken.set()

    def event_times(self, what: str) -> list[float]:
        """Return the times at which the monitor reported the event `what`, monotonic seconds."""
        return [at_s for at_s, name in self.events if name == what]

    def _orders(self, watched: StepCounters, *arguments: str) -> list[SpawnSpec]:
        """Return, for each rank, how its process is started. arguments: of the training script.

        watched: counters of the ranks' steps.
        """
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        world = {"WORLD_SIZE": str(self._ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        return [
            SpawnSpec(
                rank,
                (str(TRAIN_SCRIPT), str(self._folder), *arguments),
                {**self._env, **world, "RANK": str(rank), PROGRESS: str(watched.paths[rank])},
                CommandKind.SCRIPT,
                stdout=Stream(str(self._folder / f"out{rank}")),
                stderr=Stream(str(self._folder / f"err{rank}")),
            )
            for rank in range(self._ranks)
        ]

    async def close(self) -> None:
        await self._processes.close()
