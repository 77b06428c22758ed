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

    quiet: event names that are logged at level DEBUG; all others at INFO. foreign: True if a formatter that is not ours
    writes the lines: the text then contains the fields.
    """

    def log_event(what: str, fields: Mapping[str, object]) -> None:
        """Log one event. A field with the name of an attribute of log records gets a trailing underscore.

        what: name of the event.
        """
        extra = {f"{name}_" if name in _ORDINARY else name: value for name, value in fields.items()}
        text = " ".join([what, *(f"{name}={value}" for name, value in fields.items())]) if foreign else what
        log.log(logging.DEBUG if what in quiet else logging.INFO, text, extra=extra)

    return log_event


SELDOM_S = 10.0  # seconds between two lines of one event that anybody on the network can cause


def limit_rate(log_event: EventLog, every_s: float = SELDOM_S, now_s: Callable[[], float] = time.monotonic) -> EventLog:
    """Return an event log that writes at most one line per event name in `every_s` seconds, for events that anybody on
    the network can cause.

    The next line has the number of dropped lines in the field `left_out`. now_s: a monotonic clock.
    """
    logged_s: dict[str, float] = {}
    left_out: dict[str, int] = {}

    def log_rarely(what: str, fields: Mapping[str, object]) -> None:
        """Log an event, or count it as dropped if its name was logged less than `every_s` seconds ago.

        The next one that is logged has the count as the field `left_out`. what: name of the event.
        """
        if now_s() < logged_s.get(what, -every_s) + every_s:
            left_out[what] = left_out.get(what, 0) + 1
            return
        logged_s[what] = now_s()
        since = left_out.pop(what, 0)
        log_event(what, {**fields, "left_out": since} if since else fields)

    return log_rarely
