"""A training process tells that it moves: each step, how long steps take, and what it does besides.

A script that marks its steps does so through `Steps` (launcher/shell/progress.py). For one that does not, each step of
an optimizer is a beat. All of it costs some microseconds a step. Only the thread of the training loop may use it.
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

from turnout.launcher.health.step_times import BUCKETS, MOST_COUNTED, aged, bucket_of
from turnout.launcher.shell.watching.words import BEAT_NS, BEATS, MARKED, PROGRESS, TURN_NS, TURNS, Words

COMPILES, SAVES, EVALUATES = "compiling", "saving", "evaluation"


class Beats:
    """Of one process. Nothing of it waits."""

    def __init__(self, words: Words) -> None:
        self._words, self._pid = words, os.getpid()
        self._counts, self._counted, self._beats, self._turns = [0] * BUCKETS, 0, 0, 0
        self._since_ns: int | None = None  # the step began
        self._phases: list[str] = []
        self._turned_ns = 0
        self._marked = self._hears_compiler = False

    def mark(self) -> None:
        """A step is done, says the script itself: from now on optimizers are not asked."""
        if not self._marked:
            self._marked = True
            self._since_ns = None
            self._words.write(MARKED, 1)
        self._beat()

    def guess(self, *_: Any) -> None:
        """An optimizer has made a step."""
        if not self._marked and os.getpid() == self._pid:  # a process that the script has forked has the hook too
            self._beat()

    def _beat(self) -> None:
        now_ns = time.monotonic_ns()
        if self._since_ns is not None:
            self._count(bucket_of((now_ns - self._since_ns) / 1e9))
        self._since_ns = now_ns
        self._beats += 1
        self._words.write(BEAT_NS, now_ns)
        self._words.write(BEATS, self._beats)
        if not self._hears_compiler and (compiler := sys.modules.get("torch._dynamo.callback")) is not None:
            self._hears_compiler = True
            self._hear(compiler)

    def _count(self, bucket: int) -> None:
        self._counts[bucket] += 1
        self._counted += 1
        if self._counted > MOST_COUNTED:
            self._counts = aged(self._counts)
            self._counted = sum(self._counts)
            self._words.write_counts(self._counts)
        else:
            self._words.write_count(bucket, self._counts[bucket])

    def _hear(self, compiler: Any) -> None:
        """torch compiles in the middle of a step, for a minute at times. The first time was before the first beat."""
        try:
            compiler.on_compile_start(lambda *_: self.enter(COMPILES))
            compiler.on_compile_end(lambda *_: self.leave(COMPILES))
        except AttributeError:  # another torch: its compiling is then a long step
            return

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What is done in here is no step."""
        self.enter(name)
        try:
            yield
        finally:
            self.leave(name)

    def enter(self, name: str) -> None:
        """From now on it is not training."""
        self._turn([*self._phases, name])

    def leave(self, name: str) -> None:
        """This is over, if it ever began. The step that it was in the middle of goes on, as if it had not been."""
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
    """What is done in here is no step, where this is the thread of the training loop; nothing to others."""
    ours = beats() if threading.current_thread() is threading.main_thread() else None
    return nullcontext() if ours is None else ours.phase(name)


def beats() -> Beats | None:
    """Of this process, None without an agent."""
    path = os.environ.get(PROGRESS, "")
    return _beats(path, os.getpid()) if path else None


@lru_cache(1)
def _beats(path: str, pid: int) -> Beats:
    return Beats(Words(path))
