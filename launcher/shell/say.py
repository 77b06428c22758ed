"""How a shell tells what happened: a past-tense word and its facts. The log and the metrics both hear it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

Say: TypeAlias = Callable[[str, Mapping[str, object]], None]

_ORDINARY = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}  # a log record's own names


def into(log: logging.Logger, quiet: Collection[str] = (), *, foreign: bool = False) -> Say:
    """Tell it to this log, one line each. quiet: words for who debugs. foreign: lines are not formatted by us, and so
    have the facts in their text, too.
    """

    def say(what: str, fields: Mapping[str, object]) -> None:
        extra = {f"{name}_" if name in _ORDINARY else name: value for name, value in fields.items()}
        text = " ".join([what, *(f"{name}={value}" for name, value in fields.items())]) if foreign else what
        log.log(logging.DEBUG if what in quiet else logging.INFO, text, extra=extra)

    return say
