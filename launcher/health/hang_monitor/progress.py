"""Shares the progress of a training process with its agent: steps, their times, phases, and the stop step.

A training process and its agent map one file per process. A script marks its steps through `Steps`
(launcher/elastic/steps.py); without marks, each step of an optimizer counts. Reporting costs a few microseconds per
step. Only the thread of the training loop may report.
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
from turnout.launcher.health.hang_detector import BUCKETS, MAX_COUNTED, Progress, bucket_of, halve_counts

PROGRESS = "TURNOUT_PROGRESS_FILE"

# Indexes of the 64-bit words in the file. The process writes the newest steps done and saved, and whether it waits at
# the stop step. The agent writes the step after which all stop, and whether that step is confirmed.
DONE, SAVED, WAITS, STOP, SURE = range(5)
# Written by ProgressReporter: the fields of Progress, times in nanoseconds of time.monotonic_ns().
BEATS, BEAT_NS, TURNS, TURN_NS, MARKED = range(5, 10)
RESTORE_NS, SAVE_NS, DATA_NS, OTHER_NS, FIRST_NS = range(10, 15)  # time spent in ended phases; time of the first step
FILE_BYTES = 4_096
NAME_BYTES = 64  # of the phase's name

_FIRST = (-1, -1, 0, -1)  # DONE, SAVED, WAITS, STOP; all others begin at 0

_NAME_AT, _COUNTS_AT = 512, 1_024

_WORD, _COUNTS = struct.Struct("<q"), struct.Struct(f"<{BUCKETS}q")

assert _COUNTS_AT + _COUNTS.size <= FILE_BYTES


class SharedCounters:
    """64-bit words in a file that a training process and its agent share. Each word has one writer, and is written in
    one store, so a reader never sees a part of it. Raises OSError if the file cannot be opened, and ValueError if it is
    too short.
    """

    def __init__(self, path: str | Path) -> None:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(file).st_size < FILE_BYTES:
                raise ValueError(f"{path} is no file of progress: it is too short")
            self._map = mmap.mmap(file, FILE_BYTES)
        finally:
            os.close(file)

    def read(self, index: int) -> int:
        """Return the word at an index, such as DONE."""
        return int(_WORD.unpack_from(self._map, index * _WORD.size)[0])

    def write(self, index: int, value: int) -> None:
        """Set the word at an index, such as DONE."""
        _WORD.pack_into(self._map, index * _WORD.size, value)

    def name(self) -> str:
        """Return the name of the open phase, "" for none. During a write it may be a mixture of two names."""
        raw = self._map[_NAME_AT : _NAME_AT + NAME_BYTES].rstrip(b"\0").decode(errors="replace")
        return "".join(letter if letter.isprintable() else "?" for letter in raw)

    def write_name(self, name: str) -> None:
        """Write the name of the open phase into the shared memory, "" for none, cut to NAME_BYTES."""
        self._map[_NAME_AT : _NAME_AT + NAME_BYTES] = name.encode(errors="replace")[:NAME_BYTES].ljust(
            NAME_BYTES, b"\0"
        )

    def counts(self) -> tuple[int, ...]:
        """Return the number of steps in each bucket of step times."""
        return tuple(max(0, count) for count in _COUNTS.unpack_from(self._map, _COUNTS_AT))

    def write_count(self, bucket: int, count: int) -> None:
        """Set the number of steps in one bucket of step times."""
        _WORD.pack_into(self._map, _COUNTS_AT + bucket * _WORD.size, count)

    def write_counts(self, counts: Sequence[int]) -> None:
        """Set the number of steps in all buckets."""
        _COUNTS.pack_into(self._map, _COUNTS_AT, *counts)

    def close(self) -> None:
        """Unmap the file."""
        self._map.close()


def make(path: Path) -> SharedCounters:
    """Create the file of counters for a process of a new round, in place of an older one, and return the counters."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(b"".join(map(_WORD.pack, _FIRST)).ljust(FILE_BYTES, b"\0"))
    return SharedCounters(path)


COMPILING_PHASE, SAVING_PHASE, EVALUATING_PHASE, RESTORING_PHASE, DATA_PHASE = (
    "compiling",
    "saving",
    "evaluation",
    "restoring",
    "data",
)

AGREEING_PHASE, AFTER_LOOP_PHASE = "agreeing on the last step", "after the training loop"

# The word to which the time of a phase is added; OTHER_NS for all other phases. None: that time is not counted, since
# the coordinator counts the time after the last step.
_SPENT_IN = {
    RESTORING_PHASE: RESTORE_NS,
    SAVING_PHASE: SAVE_NS,
    DATA_PHASE: DATA_NS,
    AGREEING_PHASE: None,
    AFTER_LOOP_PHASE: None,
}


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
        """Add one interval to a bucket of the histogram. All counts are halved when their sum exceeds
        MAX_COUNTED.
        """
        self._counts[bucket] += 1
        self._counted += 1
        if self._counted > MAX_COUNTED:
            self._counts = halve_counts(self._counts)
            self._counted = sum(self._counts)
            self._words.write_counts(self._counts)
        else:
            self._words.write_count(bucket, self._counts[bucket])

    def _watch_compiler(self, compiler: Any) -> None:
        """Enter a phase whenever torch compiles, which may take a minute within a step.

        compiler: the module torch._dynamo.callback.
        """
        try:
            compiler.on_compile_start(lambda *_: self.enter(COMPILING_PHASE))
            compiler.on_compile_end(lambda *_: self.leave(COMPILING_PHASE))
        except AttributeError:  # another version of torch: compiling then counts as a long step
            return

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Mark the time of the block as a named phase: it does not count as step time, and the name is shown if the
        process hangs.
        """
        self.enter(name)
        try:
            yield
        finally:
            self.leave(name)

    def enter(self, name: str) -> None:
        """Begin a phase. Phases may be nested. name: of the phase, cut to NAME_BYTES for reports."""
        self._set_phases([*self._phases, name])

    def leave(self, name: str) -> None:
        """End the innermost open phase of this name; do nothing if none is open. Its time does not count as time of the
        open step.
        """
        if name in self._phases:
            index = len(self._phases) - 1 - self._phases[::-1].index(name)
            self._set_phases([*self._phases[:index], *self._phases[index + 1 :]])

    def _set_phases(self, phases: list[str]) -> None:
        """Replace the open phases, and add the time that the innermost one was open to the shared counter of its kind.

        phases: names, the outermost first; [] if none is open.
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
    """Mark a `with` block as a named phase. Does nothing outside the main thread or without an agent."""
    reporter = progress_reporter() if threading.current_thread() is threading.main_thread() else None
    return nullcontext() if reporter is None else reporter.phase(name)


def progress_reporter() -> ProgressReporter | None:
    """Return this process's progress reporter, the same one at each call; None without an agent.

    Raises OSError or ValueError if the agent's file cannot be used.
    """
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

    def done_step(self) -> int:
        """Return the newest step that all processes have done, -1 for none or if one does not report."""
        return min(words.read(DONE) for words in self._words)

    def saved_step(self) -> int:
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
        """Return the progress of local rank 0 in this round up to now, the open phase included.

        The times of steps are 0, and the first step -1, as long as it has done no step with `Steps`.
        """
        words, now_ns = self._words[0], time.monotonic_ns()
        spent_ns = {index: words.read(index) for index in (RESTORE_NS, SAVE_NS, DATA_NS, OTHER_NS)}
        name = words.name()
        if name and (spent_in := _SPENT_IN.get(name, OTHER_NS)) is not None:
            spent_ns[spent_in] += max(now_ns - words.read(TURN_NS), 0)
        step, beats = words.read(DONE), words.read(BEATS)
        since_step_ns, since_first_ns = (max(now_ns - words.read(index), 0) for index in (BEAT_NS, FIRST_NS))
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
        """Tell the processes the step after which all stop. Return the farthest step that one of them may have begun.

        sure: the step is confirmed; otherwise a process that reaches it waits.
        """
        for words in self._words:
            words.write(STOP, step)
            words.write(SURE, int(sure))
        return max(words.read(DONE) + (not words.read(WAITS)) for words in self._words)

    def close(self) -> None:
        """Remove the files. A process that has its file mapped can still write to it."""
        for words, path in zip(self._words, self.paths, strict=True):
            words.close()
            path.unlink(missing_ok=True)
