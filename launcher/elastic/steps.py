"""`Steps` for the training loop: tells the agent which step is done, and tells the loop when all ranks stop.

The numbers are in a shared memory file, which the agent reads through launcher/health/hang_monitor/progress.py.
Without an agent nothing happens.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress

from turnout.launcher.health.hang_monitor.prepare_process import make_traceable
from turnout.launcher.health.hang_monitor.progress import (
    AFTER_LOOP_PHASE,
    AGREEING_PHASE,
    DONE,
    PROGRESS,
    SAVED,
    STOP,
    SURE,
    WAITS,
    SharedCounters,
    progress_reporter,
)

_LOOK_S = 0.001


class Steps:
    """The steps of a training loop: `for step in steps.count(start): train(); ...; if steps.done(step): save(); break`.

    Raises OSError or ValueError if the agent's progress file cannot be used.
    """

    def __init__(self) -> None:
        path = os.environ.get(PROGRESS, "")
        self._words = SharedCounters(path) if path else None
        self._beats = progress_reporter()
        with suppress(OSError):  # training works without it
            make_traceable()

    def count(self, start: int = 0) -> Iterator[int]:
        """Yield the numbers of the steps: start, start + 1, and so on, without end."""
        step = start
        if self._beats is not None:
            self._beats.leave(AFTER_LOOP_PHASE)
        try:
            while True:
                yield step
                step += 1
        finally:  # the loop was left
            self._mark_loop_end()

    def done(self, step: int) -> bool:
        """Report that this step is done. True if it is the last one for now: save and leave the loop, as all ranks do.

        Waits while the other ranks have not yet agreed on the last step. Always False without an agent.
        """
        if self._words is None or self._beats is None:
            return False
        self._words.write(DONE, step)
        self._beats.count_step()
        if not 0 <= self._words.read(STOP) <= step:
            return False
        with self._beats.phase(AGREEING_PHASE):
            self._agree(self._words, step)
        if last := bool(self._words.read(SURE)) and self._words.read(STOP) <= step:
            self._mark_loop_end()
        return last

    @staticmethod
    def _agree(words: SharedCounters, step: int) -> None:
        """Wait until the agent confirms the stop step, or names another one."""
        words.write(WAITS, 1)
        while not words.read(SURE):
            if words.read(STOP) > step or words.read(STOP) < 0:
                break
            time.sleep(_LOOK_S)
        words.write(WAITS, 0)

    def _mark_loop_end(self) -> None:
        """Report that the training loop has ended, so that no further step is expected."""
        if self._beats is not None:
            self._beats.leave(AFTER_LOOP_PHASE)
            self._beats.enter(AFTER_LOOP_PHASE)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Mark a block that is not a step and may take long: `with steps.phase("evaluation"):`.

        name: of the phase, for reports of hangs. Without an agent nothing is marked.
        """
        return nullcontext() if self._beats is None else self._beats.phase(name)

    def saved(self, step: int) -> None:
        """Report that this step is saved, so that the agent refills the job's restart budget. Does nothing without an
        agent.
        """
        if self._words is not None:
            self._words.write(SAVED, step)
