"""Log the faults of our own code, at a bounded rate. The text of an error is never logged: it may quote a pod."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from typing import TypeVar

LOG_INTERVAL_S = 10.0  # a fault may occur with every request: its place is logged at most once in this time
_MAX_FRAMES = 3  # of the innermost calls

_T = TypeVar("_T")

log = logging.getLogger("turnout.scheduler_ext.faults")


class FaultLog:
    """A log of exceptions by kind and place: each place at most once in LOG_INTERVAL_S. clock: monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._logged_s: dict[str, float] = {}  # place in our code -> when it was logged

    def call(self, event: str, decide: Callable[[], _T], default: _T, **fields: str) -> _T:
        """Return the result of `decide`; `default` if it raises. The exception is reported as `event`, with `fields`.

        So a fault of ours with one object does not end the program, and the work on all others goes on.
        """
        try:
            return decide()
        except Exception as error:
            self.report(event, error, **fields)
            return default

    def report(self, event: str, error: Exception, **fields: str) -> None:
        """Log `event` with the kind and the place of an error, and with `fields`.

        Nothing is logged if the place was logged less than LOG_INTERVAL_S ago.
        """
        frames = traceback.extract_tb(error.__traceback__)[-_MAX_FRAMES:]
        where = " < ".join(f"{each.filename.rpartition('/')[2]}:{each.lineno}" for each in reversed(frames))
        now_s = self._clock()
        if now_s - self._logged_s.get(where, -LOG_INTERVAL_S) < LOG_INTERVAL_S:
            return
        self._logged_s[where] = now_s
        log.warning(event, extra={**fields, "kind": type(error).__name__, "where": where})
