"""Shares the progress of a training process with its agent: steps, their times, phases, and the stop step.

Both sides share one memory file per process. A script marks its steps through `Steps` (launcher/elastic/steps.py).
Otherwise each step of an optimizer counts. It costs a few microseconds per step. Only the thread of the training loop
may report.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any

from turnout.launcher.goodput.job_time import RankZero
from turnout.launcher.health.hang_detector import BUCKETS, MAX_COUNTED, Progress, aged, bucket_of

PROGRESS = "TURNOUT_PROGRESS_FILE"

DONE, SAVED, WAITS, STOP, SURE = range(5)  # STOP: the step at which all stop

BEATS, BEAT_NS, TURNS, TURN_NS, MARKED = range(5, 10)  # written by the heartbeat

RESTORE_NS, SAVE_NS, DATA_NS, OTHER_NS, FIRST_NS = range(10, 15)  # spent in phases that have ended; first step

FILE_BYTES = 4_096

NAME_BYTES = 64

_FIRST = (-1, -1, 0, -1)  # DONE, SAVED, WAITS, STOP; all others begin at 0

_NAME_AT, _COUNTS_AT = 512, 1_024

_WORD, _COUNTS = struct.Struct("<q"), struct.Struct(f"<{BUCKETS}q")

assert _COUNTS_AT + _COUNTS.size <= FILE_BYTES


class SharedCounters:
    """64-bit words in a shared file. Each has one writer, and is written in one store."""

    def __init__(self, path: str | Path) -> None:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(file).st_size < FILE_BYTES:
                raise ValueError(f"{path} is no file of progress: it is too short")
            self._map = mmap.mmap(file, FILE_BYTES)
        finally:
            os.close(file)

    def read(self, at: int) -> int:
        return int(_WORD.unpack_from(self._map, at * _WORD.size)[0])

    def write(self, at: int, value: int) -> None:
        _WORD.pack_into(self._map, at * _WORD.size, value)

    def name(self) -> str:
        """Return the name of the phase. If it is read during a write, it may mix two names."""
        raw = self._map[_NAME_AT : _NAME_AT + NAME_BYTES].rstrip(b"\0").decode(errors="replace")
        return "".join(letter if letter.isprintable() else "?" for letter in raw)

    def write_name(self, name: str) -> None:
        self._map[_NAME_AT : _NAME_AT + NAME_BYTES] = name.encode(errors="replace")[:NAME_BYTES].ljust(
            NAME_BYTES, b"\0"
        )

    def counts(self) -> tuple[int, ...]:
        """Return the number of steps in each bucket of step times."""
        return tuple(max(0, count) for count in _COUNTS.unpack_from(self._map, _COUNTS_AT))

    def write_count(self, bucket: int, count: int) -> None:
        _WORD.pack_into(self._map, _COUNTS_AT + bucket * _WORD.size, count)

    def write_counts(self, counts: Sequence[int]) -> None:
        _COUNTS.pack_into(self._map, _COUNTS_AT, *counts)

    def close(self) -> None:
        self._map.close()


def make(path: Path) -> SharedCounters:
    """Create the file for a process of a new round."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(b"".join(map(_WORD.pack, _FIRST)).ljust(FILE_BYTES, b"\0"))
    return SharedCounters(path)


COMPILES, SAVES, EVALUATES, RESTORES, DATA = "compiling", "saving", "evaluation", "restoring", "data"

AGREES, LEFT = "agreeing on the last step", "after the training loop"

# Where the time of a phase is added. Phases after the last step are not counted: the coordinator knows what ends there.
_SPENT_IN = {RESTORES: RESTORE_NS, SAVES: SAVE_NS, DATA: DATA_NS, AGREES: None, LEFT: None}


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
        """Record one sign of progress: its time, and the time since the sign before in the histogram."""
        now_ns = time.monotonic_ns()
        if self._since_ns is not None:
            self._count(bucket_of((now_ns - self._since_ns) / 1e9))
        self._since_ns = now_ns
        self._beats += 1
        if self._beats == 1:
            self._words.write(FIRST_NS, now_ns)
        self._words.write(BEAT_NS, now_ns)
        self._words.write(BEATS, self._beats)
        if not self._watches_compiler and (compiler := sys.modules.get("torch._dynamo.callback")) is not None:
            self._watches_compiler = True
            self._watch_compiler(compiler)

    def _count(self, bucket: int) -> None:
        """Add one interval to a bucket of the histogram. All counts are aged when their sum exceeds MAX_COUNTED."""
        self._counts[bucket] += 1
        self._counted += 1
        if self._counted > MAX_COUNTED:
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
        self._set_phases([*self._phases, name])

    def leave(self, name: str) -> None:
        """End a phase if it has begun. Its time does not count for the step that it interrupted."""
        if name in self._phases:
            at = len(self._phases) - 1 - self._phases[::-1].index(name)
            self._set_phases([*self._phases[:at], *self._phases[at + 1 :]])

    def _set_phases(self, phases: list[str]) -> None:
        """Enter or leave a named phase, such as compilation.

        Time inside phases does not count as time without progress. phases: the open phases, outermost first.
        """
        now_ns = time.monotonic_ns()
        if self._phases and (spent_in := _SPENT_IN.get(self._phases[-1], OTHER_NS)) is not None:
            self._words.write(spent_in, self._words.read(spent_in) + now_ns - self._turned_ns)
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
    """Return this process's progress reporter, or None without an agent."""
    path = os.environ.get(PROGRESS, "")
    return _reporter_of(path, os.getpid()) if path else None


@lru_cache(1)
def _reporter_of(path: str, pid: int) -> ProgressReporter:
    """Return the reporter of this process. pid: a forked process gets its own."""
    return ProgressReporter(SharedCounters(path))


class StepCounters:
    """The agent's side of the counters: one file per process, new for each round."""

    def __init__(self, folder: Path, processes: int) -> None:
        self.paths = [folder / f"progress-{local_rank}" for local_rank in range(processes)]
        self._words = [make(path) for path in self.paths]

    def done(self) -> int:
        """Return the newest step that all processes have done, -1 for none or if one does not report."""
        return min(words.read(DONE) for words in self._words)

    def saved(self) -> int:
        """Return the newest step that any process has saved, -1 for none."""
        return max(words.read(SAVED) for words in self._words)

    def progress(self) -> list[Progress]:
        """Return the progress of each process. Times are of time.monotonic()."""
        return [
            Progress(
                words.read(BEATS),
                words.read(BEAT_NS) / 1e9,
                words.name(),
                words.read(TURNS),
                words.read(TURN_NS) / 1e9,
                bool(words.read(MARKED)),
                words.counts(),
            )
            for words in self._words
        ]

    def rank_zero(self, round_: int) -> RankZero:
        """Return the progress of the first process up to now, the current phase included."""
        words, now_ns = self._words[0], time.monotonic_ns()
        spent_ns = {at: words.read(at) for at in (RESTORE_NS, SAVE_NS, DATA_NS, OTHER_NS)}
        name = words.name()
        if name and (spent_in := _SPENT_IN.get(name, OTHER_NS)) is not None:
            spent_ns[spent_in] += max(now_ns - words.read(TURN_NS), 0)
        step, beats = words.read(DONE), words.read(BEATS)
        since_step_ns, since_first_ns = (max(now_ns - words.read(at), 0) for at in (BEAT_NS, FIRST_NS))
        is_marked = step >= 0 and beats > 0
        return RankZero(
            round_,
            step,
            spent_ns[RESTORE_NS],
            spent_ns[SAVE_NS],
            spent_ns[DATA_NS],
            spent_ns[OTHER_NS],
            since_step_ns if is_marked else 0,
            max(step - beats + 1, 0) if is_marked else -1,
            since_first_ns if is_marked else 0,
        )

    def stop_at(self, step: int, *, sure: bool) -> int:
        """Set the step after which all stop. Return the farthest step that a process may have begun, as seen now."""
        for words in self._words:
            words.write(STOP, step)
            words.write(SURE, int(sure))
        return max(words.read(DONE) + (not words.read(WAITS)) for words in self._words)

    def close(self) -> None:
        """Remove the files. A process that has one open keeps it."""
        for words, path in zip(self._words, self.paths, strict=True):
            words.close()
            path.unlink(missing_ok=True)
