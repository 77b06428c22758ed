"""How far each training process is: words in a file of memory that its agent reads, and the step at which all stop.

Both sides are here. `Steps` is for the training loop, three lines of it; without an agent it does nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from turnout.launcher.health.hangs import Seen
from turnout.launcher.shell.watching.beats import beats
from turnout.launcher.shell.watching.start import be_seen
from turnout.launcher.shell.watching.words import (
    BEAT_NS,
    BEATS,
    DONE,
    MARKED,
    PROGRESS,
    SAVED,
    STOP,
    SURE,
    TURN_NS,
    TURNS,
    WAITS,
    Words,
    make,
)

_LOOK_S = 0.001
_AGREES, _LEFT = "agreeing on the last step", "after the training loop"


class Steps:
    """In the training loop: `for step in steps.count(start): train(); ...; if steps.done(step): save(); break`."""

    def __init__(self) -> None:
        path = os.environ.get(PROGRESS, "")
        self._words = Words(path) if path else None
        self._beats = beats()
        with suppress(OSError):  # it trains as well without
            be_seen()

    def count(self, start: int = 0) -> Iterator[int]:
        """start, start + 1, and so on."""
        step = start
        if self._beats is not None:
            self._beats.leave(_LEFT)
        try:
            while True:
                yield step
                step += 1
        finally:  # the loop was left
            self._rest()

    def done(self, step: int) -> bool:
        """Tell that this step is done. Is it the last one for now? Then save and leave the loop, as all ranks do.

        Waits where the others still have to agree that nobody is past it.
        """
        if self._words is None or self._beats is None:
            return False
        self._words.write(DONE, step)
        self._beats.mark()
        if not 0 <= self._words.read(STOP) <= step:
            return False
        with self._beats.phase(_AGREES):
            self._agree(self._words, step)
        if last := bool(self._words.read(SURE)) and self._words.read(STOP) <= step:
            self._rest()
        return last

    @staticmethod
    def _agree(words: Words, step: int) -> None:
        words.write(WAITS, 1)
        while not words.read(SURE):
            if words.read(STOP) > step or words.read(STOP) < 0:
                break
            time.sleep(_LOOK_S)
        words.write(WAITS, 0)

    def _rest(self) -> None:
        if self._beats is not None:
            self._beats.leave(_LEFT)
            self._beats.enter(_LEFT)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """`with steps.phase("evaluation"):` what is done in here is no step, and may take its time."""
        return nullcontext() if self._beats is None else self._beats.phase(name)

    def saved(self, step: int) -> None:
        """Tell that this step is saved: it will never be trained again, and restarts are counted afresh."""
        if self._words is not None:
            self._words.write(SAVED, step)


class Watched:
    """The agent's side: one file for each of its processes, new for each round."""

    def __init__(self, folder: Path, processes: int) -> None:
        self.paths = [folder / f"progress-{local_rank}" for local_rank in range(processes)]
        self._words = [make(path) for path in self.paths]

    def done(self) -> int:
        """The newest step that all processes have done, -1 for none or when one does not tell."""
        return min(words.read(DONE) for words in self._words)

    def saved(self) -> int:
        """The newest step that any process has saved, -1 for none."""
        return max(words.read(SAVED) for words in self._words)

    def seen(self) -> list[Seen]:
        """When each process last moved, by time.monotonic()."""
        return [
            Seen(
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

    def stop_at(self, step: int, *, sure: bool) -> int:
        """Stop after this step. Gives the farthest step that a process may have begun, as far as can be seen now."""
        for words in self._words:
            words.write(STOP, step)
            words.write(SURE, int(sure))
        return max(words.read(DONE) + (not words.read(WAITS)) for words in self._words)

    def close(self) -> None:
        """Remove the files; a process that still has one keeps it."""
        for words, path in zip(self._words, self.paths, strict=True):
            words.close()
            path.unlink(missing_ok=True)
