"""Gives the agent a view of its training processes: the newest step of each, and the step after which all stop.

The training loop writes through `Steps`. Both sides share one memory file per process.
"""

from __future__ import annotations

from pathlib import Path

from turnout.launcher.health.hang_detector import Progress
from turnout.launcher.health.hang_monitor.shared_counters import (
    BEAT_NS,
    BEATS,
    DONE,
    MARKED,
    SAVED,
    STOP,
    SURE,
    TURN_NS,
    TURNS,
    WAITS,
    make,
)


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
