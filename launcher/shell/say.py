"""How a shell tells what happened: a past-tense word and its facts. The log and the metrics both hear it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

Say: TypeAlias = Callable[[str, Mapping[str, object]], None]

_ORDINARY = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}  # a log record's own names


def into(log: logging.Logger, quiet: Collection[str] = ()) -> Say:
    """Tell it to this log, one line each. quiet: words for who debugs."""

    def say(what: str, fields: Mapping[str, object]) -> None:
        extra = {f"{name}_" if name in _ORDINARY else name: value for name, value in fields.items()}
        log.log(logging.DEBUG if what in quiet else logging.INFO, what, extra=extra)

    return say
