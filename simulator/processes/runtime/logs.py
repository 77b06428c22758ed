"""The logs of pods that are processes, for whoever answers `kubectl logs`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnout.simulator.processes.pod_lifecycle import State
from turnout.simulator.processes.runtime.pod_runner import Runner
from turnout.simulator.processes.runtime.pod_worker import Life


@dataclass(frozen=True, slots=True)
class PodLog:
    """The output of one run of a container."""

    life: Life
    container: str
    run: int
    path: Path | None

    def live(self) -> bool:
        """May more come?"""
        now = self.life.book.named(self.container)
        return now.state is State.RUNNING and now.restarts == self.run


class PodLogs:
    """Finds the logs of a runner's pods; without a runner there are none."""

    def __init__(self) -> None:
        self.runner: Runner | None = None

    def find(self, pod: dict[str, Any], container: str, previous: bool) -> PodLog | None:
        """The log of a container."""
        meta = pod["metadata"]
        life = self.runner.find(meta["namespace"], meta["name"]) if self.runner is not None else None
        if life is None:
            return None
        return PodLog(life, container, life.book.named(container).restarts - previous, life.log_of(container, previous))
