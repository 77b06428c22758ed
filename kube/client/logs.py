"""How programs log: a JSON object a line for machines, one plain line for a person at a terminal.

An event's word is the message, its facts are `extra` fields. What looks like a secret never leaves.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

_ORDINARY = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_SECRET_FIELD = re.compile(r"token|secret|password|authorization|private_?key|credential", re.IGNORECASE)
_SECRET_VALUE = re.compile(
    r"\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"  # an Authorization header
    r"|\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"  # a service account's JSON web token
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.IGNORECASE | re.DOTALL,
)
_HIDDEN = "[hidden]"
_LONGEST_VALUE = 4096
_LONGEST_TRACE = 16_384  # its end is kept: that is where the error stands


def setup(level: str | int = "INFO", stream: TextIO | None = None) -> None:
    """Send everything from `level` on to `stream` (standard error), instead of to what was set up before."""
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PlainFormatter() if stream.isatty() else JsonFormatter())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper() if isinstance(level, str) else level)
    logging.captureWarnings(True)


class JsonFormatter(logging.Formatter):
    """time, level, logger, event, then the event's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": _clean(record.getMessage()),
        }
        for name, value in _fields(record).items():
            line[f"{name}_" if name in line else name] = value
        if record.exc_info:
            line["trace"] = _clean(self.formatException(record.exc_info)[-_LONGEST_TRACE:], _LONGEST_TRACE)
        return json.dumps(line, ensure_ascii=True, default=_text)


class PlainFormatter(logging.Formatter):
    """12:00:00 warning lease_lost lease=... : control characters are shown, never obeyed by the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        fields = "".join(f" {name}={printable(_text(value))}" for name, value in _fields(record).items())
        line = f"{when} {record.levelname.lower():7} {printable(_clean(record.getMessage()))}{fields}"
        if record.exc_info:
            line += "\n" + _clean(self.formatException(record.exc_info)[-_LONGEST_TRACE:], _LONGEST_TRACE)
        return line


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields given as `extra`, in their order, without secrets."""
    kept = {}
    for name, value in vars(record).items():
        if name not in _ORDINARY and not name.startswith("_"):
            plain = value is None or (isinstance(value, bool | int | float) and math.isfinite(value))  # JSON has no NaN
            kept[name] = _HIDDEN if _SECRET_FIELD.search(name) else value if plain else _clean(_text(value))
    return kept


def _text(value: object) -> str:
    try:
        return value if isinstance(value, str) else str(value)
    except Exception as error:  # a log line must never break the work it tells of
        return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"


def _clean(text: str, longest: int = _LONGEST_VALUE) -> str:
    return _SECRET_VALUE.sub(_HIDDEN, text[:longest])


def printable(text: str) -> str:
    """Return a text that moves no cursor, though a tenant wrote it: what is not printable stands as its escape."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
