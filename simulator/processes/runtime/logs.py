"""Find the logs of pods that are processes, for `kubectl logs`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnout.simulator.processes.pod_lifecycle import ContainerState
from turnout.simulator.processes.runtime.pod_runner import Runner
from turnout.simulator.processes.runtime.pod_worker import RunningPod


@dataclass(frozen=True, slots=True)
class PodLog:
    """The output of one run of a container."""

    life: RunningPod
    container: str
    run: int
    path: Path | None

    def live(self) -> bool:
        """True if more output may come."""
        now = self.life.lifecycle.named(self.container)
        return now.state is ContainerState.RUNNING and now.restarts == self.run


class PodLogs:
    """Finds the logs of a runner's pods. Without a runner there are none."""

    def __init__(self) -> None:
        self.runner: Runner | None = None

    def find(self, pod: dict[str, Any], container: str, previous: bool) -> PodLog | None:
        """Return the log of a container; None when the pod is not one of the runner's."""
        meta = pod["metadata"]
        life = self.runner.find(meta["namespace"], meta["name"]) if self.runner is not None else None
        if life is None:
            return None
        return PodLog(
            life, container, life.lifecycle.named(container).restarts - previous, life.log_of(container, previous)
        )
