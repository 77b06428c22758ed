"""Reports events as a past-tense word with its facts. The log and the metrics both receive them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

EventLog: TypeAlias = Callable[[str, Mapping[str, object]], None]

_ORDINARY = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}  # a log record's own names


def log_to(log: logging.Logger, quiet: Collection[str] = (), *, foreign: bool = False) -> EventLog:
    """Make an event log that writes one line per event to this log.

    quiet: words that are logged for debugging only. foreign: the lines are formatted elsewhere, so their text repeats
    the facts.
    """

    def log_event(what: str, fields: Mapping[str, object]) -> None:
        extra = {f"{name}_" if name in _ORDINARY else name: value for name, value in fields.items()}
        text = " ".join([what, *(f"{name}={value}" for name, value in fields.items())]) if foreign else what
        log.log(logging.DEBUG if what in quiet else logging.INFO, text, extra=extra)

    return log_event


SELDOM_S = 10.0


def rate_limited(
    log_event: EventLog, every_s: float = SELDOM_S, now_s: Callable[[], float] = time.monotonic
) -> EventLog:
    """Limit an event log to one line per word in `every_s` seconds; the next line counts those left out.

    It is for events that anybody on the network can cause.
    """
    told_s: dict[str, float] = {}
    left_out: dict[str, int] = {}

    def log_rarely(what: str, fields: Mapping[str, object]) -> None:
        """Log an event at most once per period for each event name.

        The next logged event says how many were left out.
        """
        if now_s() < told_s.get(what, -every_s) + every_s:
            left_out[what] = left_out.get(what, 0) + 1
            return
        told_s[what] = now_s()
        since = left_out.pop(what, 0)
        log_event(what, {**fields, "left_out": since} if since else fields)

    return log_rarely
