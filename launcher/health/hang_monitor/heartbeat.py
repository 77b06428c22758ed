"""Reports the progress of a training process: each step, how long steps take, and what else it does.

A script marks its steps through `Steps` (launcher/elastic/steps.py). Otherwise each step of an optimizer counts. It
costs a few microseconds per step. Only the thread of the training loop may use it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import Any

from turnout.launcher.health.hang_monitor.shared_counters import (
    BEAT_NS,
    BEATS,
    MARKED,
    PROGRESS,
    TURN_NS,
    TURNS,
    SharedCounters,
)
from turnout.launcher.health.step_histogram import BUCKETS, MOST_COUNTED, aged, bucket_of

COMPILES, SAVES, EVALUATES = "compiling", "saving", "evaluation"


class ProgressReporter:
    """Reports the progress of one process. No call blocks."""

    def __init__(self, words: SharedCounters) -> None:
        self._words, self._pid = words, os.getpid()
        self._counts, self._counted, self._beats, self._turns = [0] * BUCKETS, 0, 0, 0
        self._since_ns: int | None = None  # when the current step began
        self._phases: list[str] = []
        self._turned_ns = 0
        self._marked = self._watches_compiler = False

    def count_step(self) -> None:
        """Count a step that the script marks. Optimizer steps are no longer counted from then on."""
        if not self._marked:
            self._marked = True
            self._since_ns = None
            self._words.write(MARKED, 1)
        self._beat()

    def count_optimizer_step(self, *_: Any) -> None:
        """Count an optimizer step, unless the script marks its steps."""
        if not self._marked and os.getpid() == self._pid:  # a process forked by the script has this hook, too
            self._beat()

    def _beat(self) -> None:
        now_ns = time.monotonic_ns()
        if self._since_ns is not None:
            self._count(bucket_of((now_ns - self._since_ns) / 1e9))
        self._since_ns = now_ns
        self._beats += 1
        self._words.write(BEAT_NS, now_ns)
        self._words.write(BEATS, self._beats)
        if not self._watches_compiler and (compiler := sys.modules.get("torch._dynamo.callback")) is not None:
            self._watches_compiler = True
            self._watch_compiler(compiler)

    def _count(self, bucket: int) -> None:
        self._counts[bucket] += 1
        self._counted += 1
        if self._counted > MOST_COUNTED:
            self._counts = aged(self._counts)
            self._counted = sum(self._counts)
            self._words.write_counts(self._counts)
        else:
            self._words.write_count(bucket, self._counts[bucket])

    def _watch_compiler(self, compiler: Any) -> None:
        """Hear when torch compiles, which may take a minute within a step. The first compilation comes before the first
        step.
        """
        try:
            compiler.on_compile_start(lambda *_: self.enter(COMPILES))
            compiler.on_compile_end(lambda *_: self.leave(COMPILES))
        except AttributeError:  # another version of torch: compiling then counts as a long step
            return

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Mark the block as a named phase, which is not a step."""
        self.enter(name)
        try:
            yield
        finally:
            self.leave(name)

    def enter(self, name: str) -> None:
        """Begin a phase."""
        self._turn([*self._phases, name])

    def leave(self, name: str) -> None:
        """End a phase if it has begun. Its time does not count for the step that it interrupted."""
        if name in self._phases:
            at = len(self._phases) - 1 - self._phases[::-1].index(name)
            self._turn([*self._phases[:at], *self._phases[at + 1 :]])

    def _turn(self, phases: list[str]) -> None:
        now_ns = time.monotonic_ns()
        if self._phases and self._since_ns is not None:
            self._since_ns += now_ns - max(self._turned_ns, self._since_ns)
        self._phases, self._turned_ns = phases, now_ns
        self._turns += 1
        self._words.write_name(phases[-1] if phases else "")
        self._words.write(TURN_NS, now_ns)
        self._words.write(TURNS, self._turns)


def in_phase(name: str) -> AbstractContextManager[None]:
    """Mark the block as a named phase. Does nothing outside the main thread or without an agent."""
    reporter = progress_reporter() if threading.current_thread() is threading.main_thread() else None
    return nullcontext() if reporter is None else reporter.phase(name)


def progress_reporter() -> ProgressReporter | None:
    """Return this process's heartbeat, or None without an agent."""
    path = os.environ.get(PROGRESS, "")
    return _beats(path, os.getpid()) if path else None


@lru_cache(1)
def _beats(path: str, pid: int) -> ProgressReporter:
    return ProgressReporter(SharedCounters(path))
