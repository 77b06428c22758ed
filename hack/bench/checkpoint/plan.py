"""The sizes and repetitions of a run, and the results of a scene."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from hack.bench.checkpoint.state import ModelSize


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """One run. firsts, steady, loops, persists, loads, sockets: how often each is done.

    size: of the state whose saves are timed. small: of the one that is saved beside training. wide: of the one that is
    loaded by others, in worlds: pairs of world sizes, who saved and who loads. loop_s: the least that a training loop
    is timed. sent_bytes: over a socket.
    """

    size: ModelSize
    small: ModelSize
    wide: ModelSize
    firsts: int
    steady: int
    loops: int
    loop_s: float
    persists: int
    worlds: Sequence[tuple[int, int]]
    loads: int
    sent_bytes: int
    sockets: int


@dataclass(frozen=True, slots=True)
class BenchmarkFolders:
    """memory: a folder in tmpfs; disk: one on a disk. Both are empty at first and removed at last."""

    memory: Path
    disk: Path


@dataclass(slots=True)
class SceneResult:
    """The results of one scene. times_s: by name; figures: all but times; faults: what broke, by name."""

    state_bytes: int = 0
    times_s: dict[str, list[float]] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)

    def timed(self, name: str, call: Callable[[], object]) -> None:
        """Call `call`, and store its time under `name`, such as that of a saver."""
        self.keep(name, took_s(call))

    def keep(self, name: str, took_s: float) -> None:
        """Store one more time, in seconds, under `name`, such as that of a saver."""
        self.times_s.setdefault(name, []).append(took_s)

    def best_s(self, name: str) -> float:
        """Return the shortest time of a saver in seconds; NaN without any."""
        return min(self.times_s.get(name, ()), default=float("nan"))

    def median_s(self, name: str) -> float:
        """Return the median time of a saver in seconds; NaN without any."""
        return median(self.times_s.get(name) or [float("nan")])


def took_s(call: Callable[[], object]) -> float:
    """Call the function and return the seconds that it took."""
    began_s = time.perf_counter()
    call()
    return time.perf_counter() - began_s
