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
    """The states of one run, and how often each measurement is repeated."""

    size: ModelSize  # of the state whose saves are timed
    small: ModelSize  # of the state that is saved beside training
    wide: ModelSize  # of the state that other worlds load
    firsts: int  # first saves of each saver
    steady: int  # further saves of each saver
    loops: int  # training loops of each kind
    loop_s: float  # shortest time for which a training loop is timed
    persists: int  # saves to disk of each saver
    worlds: Sequence[tuple[int, int]]  # (size of the world that saved, size of the world that loads)
    loads: int  # loads of each saver, for each of `worlds`
    sent_bytes: int  # of one transfer over a socket
    sockets: int  # transfers of each kind


@dataclass(frozen=True, slots=True)
class BenchmarkFolders:
    """The folders of a run, empty at first and removed at the end."""

    memory: Path  # in tmpfs
    disk: Path  # on a disk


@dataclass(slots=True)
class SceneResult:
    """The results of one scene."""

    state_bytes: int = 0  # of the saved state
    times_s: dict[str, list[float]] = field(default_factory=dict)  # by name, such as a saver's
    figures: dict[str, float] = field(default_factory=dict)  # by name; all but times
    faults: dict[str, str] = field(default_factory=dict)  # by name of a saver: its exception, as text

    def time(self, name: str, call: Callable[[], object]) -> None:
        """Call `call`, and store its time under `name`, such as a saver's."""
        self.keep(name, took_s(call))

    def keep(self, name: str, took_s: float) -> None:
        """Store one more time, in seconds, under `name`, such as a saver's."""
        self.times_s.setdefault(name, []).append(took_s)

    def best_s(self, name: str) -> float:
        """Return the shortest time under `name` in seconds; NaN without any."""
        return min(self.times_s.get(name, ()), default=float("nan"))

    def median_s(self, name: str) -> float:
        """Return the median time under `name` in seconds; NaN without any."""
        return median(self.times_s.get(name) or [float("nan")])


def took_s(call: Callable[[], object]) -> float:
    """Call the function and return the seconds that it took."""
    began_s = time.perf_counter()
    call()
    return time.perf_counter() - began_s
